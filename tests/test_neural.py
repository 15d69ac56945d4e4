"""Networks and blocks of neural JIPE-2 against the exact operator."""

from dataclasses import replace

import numpy as np
import pytest
import strategies
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

import jmdp_lib as jl
from experiments.atari.networks import Estimate, Network
from experiments.atari.predictions import gaps_of
from experiments.atari.replay import Replay
from experiments.atari.settings import NETWORK_KINDS, TD_BLOCKS, Config
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.tables import QueryTables
from experiments.atari.td_errors import (
    between_states,
    block_errors,
    cross_targets,
    look_ahead,
    state_targets,
)


def tabulated(jm, parts, sigma=0.0, policy=None):
    """A stand-in for a network of one member, with given moments; the byte is the state.

    policy: (A,) at every state; None: uniform.
    """
    probs = np.full(jm.num_actions, 1 / jm.num_actions) if policy is None else policy
    table = Estimate(*(torch.tensor(x, dtype=torch.float32) for x in parts))

    def network(params, observations):
        return Estimate(*(part[observations[..., 0].long()][None] for part in table))

    network.gammas = torch.tensor([jm.gamma])[:, None, None, None]
    network.sigmas = torch.tensor([sigma])[:, None, None, None]
    network.policy = torch.as_tensor(probs, dtype=torch.float32)
    return network


def observed(jm):
    """All tables of a model, whose states are seen as their indices."""
    return tables_of(jm, np.arange(jm.num_states, dtype=np.uint8)[:, None])


def random_moments(rng, jm):
    """An Estimate for all states, and the second moments (S, A, S, A) that it stands for."""
    shape = (jm.num_states, jm.num_actions)
    parts = Estimate(
        mean=rng.normal(size=shape),
        shared=rng.normal(size=(*shape, 4)),
        near=rng.normal(size=(*shape, 2)),
        local=rng.normal(size=(*shape, 3)),
        own=rng.uniform(0, 2, size=shape),
        place=rng.normal(size=(jm.num_states, 2)),
    )
    second = np.einsum("sav,tbv->satb", parts.shared, parts.shared)
    second += np.multiply.outer(parts.mean, parts.mean)
    distance = ((parts.place[:, None] - parts.place[None]) ** 2).sum(-1)
    second += np.einsum("st,saq,tbq->satb", np.exp(-distance), parts.near, parts.near)
    for s in range(jm.num_states):
        second[s, :, s] += parts.local[s] @ parts.local[s].T + np.diag(parts.own[s])
    return parts, second


def problem(seed):
    """A generator, a model, and the probabilities (A,) of actions at every state."""
    rng = np.random.default_rng(seed)
    jm = strategies.random_jmdp(rng, 4, 3, 3)
    return rng, jm, rng.dirichlet(np.ones(3))


def targets(network, data, entries, columns=None, pairs=((0, 0),)):
    """All targets at entries of some data."""
    batch = data.gather(torch.tensor(entries), columns)
    ahead = look_ahead(network, {}, batch)
    between = cross_targets(network, batch, ahead, torch.tensor(pairs))
    return (*state_targets(network, batch, ahead), between)


@pytest.mark.parametrize("seed", range(2))
def test_targets_and_gaps_are_the_operator_of_the_library(seed):
    """A state has several tables, with probabilities, as with sticky actions."""
    rng, jm, probs = problem(seed)
    policy = np.tile(probs, (4, 1))
    parts, second = random_moments(rng, jm)
    sigma = 0.7
    new_mean, new_second = jl.apply_t2(with_shock(jm, sigma), policy, parts.mean, second)
    centred = new_second - np.multiply.outer(new_mean, new_mean)
    network = tabulated(jm, parts, sigma, probs)
    data = Replay.of(observed(jm))
    order = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0], [2, 1, 0]])
    pairs = [(s, t) for s in range(4) for t in range(4) if s != t]
    mean, covariance, cross = targets(network, data, range(4), order, pairs)
    for s in range(4):
        a = order[s].numpy()
        assert_allclose(mean[0, s], new_mean[s, a], atol=1e-5)
        assert_allclose(covariance[0, s], centred[s, a][:, s, a], atol=2e-5)
    for k, (s, t) in enumerate(pairs):
        expected = centred[s, order[s].numpy()][:, t, order[t].numpy()]
        assert_allclose(cross[0, k], expected, atol=2e-5)

    gap_mean, gap_variance = gaps_of(*targets(network, data, range(4))[:2])
    same = centred[np.arange(4), :, np.arange(4)]
    variance = np.diagonal(same, axis1=1, axis2=2)
    sums = variance[:, :, None] + variance[:, None]
    assert_allclose(gap_mean[0], new_mean[:, :, None] - new_mean[:, None], atol=1e-5)
    assert_allclose(gap_variance[0], sums - 2 * same, atol=1e-4)


def test_targets_are_the_same_for_a_part_of_the_actions():
    rng, jm, probs = problem(4)
    network = tabulated(jm, random_moments(rng, jm)[0], 0.7, probs)
    whole = observed(jm)
    queried = [(0, 1), (0, 2), (1, 2)]  # every state is queried three times, two actions each
    names = ("actions", "rewards", "next_observations", "terminated", "next_ids")
    queries = [
        replace(whole, **{name: getattr(whole, name)[:, columns] for name in names})
        for columns in queried
    ]
    part = Replay.of(QueryTables.concatenate(queries))
    assert len(part.rows) == 12
    seen = part.gather(torch.arange(12))
    assert sorted(map(tuple, seen.actions.tolist())) == sorted(queried * 4)
    pairs = [(i, j) for i in range(12) for j in range(12)]
    full = targets(network, Replay.of(whole), seen.state_ids.tolist(), seen.actions, pairs)
    assert_close(full, targets(network, part, range(12), None, pairs))


def test_errors_of_known_numbers():
    """Two states and two actions; nothing is worth anything, so all targets are zero."""
    jm = jl.JMDP(np.ones((2, 1)), np.zeros((2, 1, 2)), np.ones((2, 1, 2), int), 0.0)
    mean = np.array([[1.0, 2.0], [0.0, 0.0]])
    shared = np.array([[[1.0], [3.0]], [[2.0], [0.0]]])
    near = np.array([[[1.0], [0.0]]] * 2)
    place = np.array([[0.0], [1.0]])
    local = np.array([[[0.0], [0.0]], [[1.0], [0.0]]])
    own = np.array([[0.5, 0.0], [0.0, 0.0]])
    parts = (mean, shared, near, local, own, place)
    batch = Replay.of(observed(jm)).gather(torch.tensor([0, 1, 1]), pairs=1)
    errors = block_errors(tabulated(jm, parts), {}, {}, batch)[:, 0]
    expected = {"mu": 5 / 6, "sigma_diag": (2.5**2 + 9**2 + 6**2 + 6**2) / 6}
    expected["sigma_same"] = (9 + 9) / 6
    expected["gap"] = (2 * 5.5**2 + 4 * 6.0**2) / 6  # 2.5 + 9 - 2 * 3 and 6 + 0
    # states 0 and 1, then 1 and 0; between is 1 and 1, which are one state; followed are 0 and 1
    expected["sigma_cross"] = expected["sigma_pairs"] = ((2 + np.exp(-1)) ** 2 + 36) / 4
    assert dict(zip(TD_BLOCKS, errors.tolist(), strict=True)) == pytest.approx(expected)


def test_constant_features_are_left_out():
    seen = np.zeros((3, 2), np.uint8)
    seen[:, 1] = (4, 5, 12)  # bits 0 and 3 vary, bit 2 does not
    jm = strategies.random_jmdp(np.random.default_rng(0), 3, 2, 1)
    network = Network(tables_of(jm, seen), Config(((0.9, "near", 0.0),)))
    assert network.columns.tolist() == [1, 2 + 8, 2 + 8 + 3]


def test_an_ended_branch_is_worth_what_a_state_without_reward_is():
    rng, jm, _ = problem(7)
    parts, _ = random_moments(rng, jm)
    for part in parts[:-1]:
        part[3] = 0.0
    tables = observed(jm)
    terminated = tables.next_observations[..., 0] == 3
    seen = np.where(terminated[..., None], 1, tables.next_observations).astype(np.uint8)
    ended = replace(tables, terminated=terminated, next_observations=seen)
    results = [
        targets(tabulated(jm, parts), Replay.of(version), range(4), None, [(0, 1), (1, 2), (3, 0)])
        for version in (tables, ended)
    ]
    assert_close(*results)


def test_covariances_are_sums_of_the_terms_of_a_kind():
    """They are positive semidefinite, in units of each member; some kinds are given the shock."""
    rng = np.random.default_rng(0)
    tables = tables_of(
        strategies.random_jmdp(rng, 5, 4, 2), rng.integers(256, size=(5, 6), dtype=np.uint8)
    )
    cases = [(0.1, 0.0), (0.99, 2.0)]
    members = tuple((gamma, kind, sigma) for kind in NETWORK_KINDS for gamma, sigma in cases)
    config = Config(members, hidden=16, shared_dim=5, near_dim=2, local_dim=3, place_dim=4)
    network = Network(tables, config)
    states = torch.as_tensor(tables.observations[[0, 2, 4, 6, 8]])
    here = network(network.initial(torch.Generator().manual_seed(1)), states)
    same = torch.arange(5)[:, None] == torch.arange(5)
    pairs = torch.argwhere(torch.ones(5, 5))
    full = between_states(here, pairs).unflatten(1, (5, 5))
    full[:, same] = here.covariance
    for e, (gamma, kind, sigma) in enumerate(members):
        square = full[e].transpose(1, 2).reshape(20, 20).double()
        assert float(torch.linalg.eigvalsh(square).min()) > -1e-6 * float(square.diagonal().max())
        has_local, has_near, told = NETWORK_KINDS[kind]
        assert (here.local[e, ..., 0] == sigma * told).all(), kind
        terms = here.local[e, ..., 1:], here.own[e], here.near[e]
        assert [bool(term.any()) for term in terms] == [has_local, has_local, has_near], kind
        variance = tables.rewards.var() + 1e-6 + sigma**2 * (gamma**2 if told else 1.0)
        assert float(network.scale[e]) == pytest.approx(variance / (1 - gamma**2)), kind


def test_equal_tables_of_a_state_become_one():
    jm = jl.windy_gridworld(3)
    once = observed(jm)
    data = Replay.of(QueryTables.concatenate([once, once]))
    assert data.rows.shape == (9, 2)
    assert_close(data.weights.sum(1), torch.ones(9))
    assert len(data.pairs) == 2 * len(once.pairs)
    assert bool((data.pairs[:, 0] != data.pairs[:, 1]).all())
