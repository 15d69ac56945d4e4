"""Networks and blocks of neural JIPE-2 against the exact operator."""

from __future__ import annotations

import itertools
import types
from dataclasses import replace

import numpy as np
import pytest
import strategies
import torch

import jmdp_lib as jl
from experiments.atari.networks import (
    TD_BLOCKS,
    Config,
    Estimate,
    Network,
)
from experiments.atari.predictions import backed_up_gaps
from experiments.atari.replay import Replay
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.tables import QueryTables
from experiments.atari.td_errors import (
    block_errors,
    cross_targets,
    look_ahead,
    spread_targets,
    state_targets,
)

CONFIG = Config(hidden=16, shared_dim=5, local_dim=3)


def tabulated(jm, parts, sigma=0.0, policy=None):
    """What looks like a network of one member and returns given moments; the byte is the state.

    policy: (A,) what is played at every state; None: uniform.
    """
    law = np.full(jm.num_actions, 1 / jm.num_actions) if policy is None else policy
    spread = (parts[0] ** 2) @ law - (parts[0] @ law) ** 2
    table = Estimate(*(torch.tensor(x, dtype=torch.float32) for x in (*parts[:6], spread)))

    def network(params, observations):
        return Estimate(*(part[observations[..., 0].long()][None] for part in table))

    network.gammas = torch.tensor([jm.gamma])
    network.num_actions, network.sigma, network.num_spreads = jm.num_actions, sigma, 0
    network.policy = torch.as_tensor(law, dtype=torch.float32)
    return network


def observed(jm):
    return np.arange(jm.num_states, dtype=np.uint8)[:, None]


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
        spread=np.zeros(jm.num_states),
    )
    second = np.einsum("sav,tbv->satb", parts.shared, parts.shared)
    second += np.multiply.outer(parts.mean, parts.mean)
    distance = ((parts.place[:, None] - parts.place[None]) ** 2).sum(-1)
    second += np.einsum("st,saq,tbq->satb", np.exp(-distance), parts.near, parts.near)
    for s in range(jm.num_states):
        second[s, :, s] += parts.local[s] @ parts.local[s].T + np.diag(parts.own[s])
    return parts, second


def problem(seed):
    """A model, and what is played at every state: a law (A,), and as a policy (S, A)."""
    rng = np.random.default_rng(seed)
    jm = strategies.random_jmdp(rng, 4, 3, 3)
    law = rng.dirichlet(np.ones(3))
    return rng, jm, law, np.tile(law, (4, 1))


@pytest.mark.parametrize("seed", range(4))
def test_targets_are_the_operator_of_the_library(seed):
    rng, jm, law, policy = problem(seed)
    parts, second = random_moments(rng, jm)
    sigma = 0.7
    exact = with_shock(jm, sigma)
    new_mean, new_second = jl.apply_t2(exact, policy, parts.mean, second)
    centred = new_second - np.multiply.outer(new_mean, new_mean)

    network = tabulated(jm, parts, sigma, law)
    data = Replay.of(tables_of(jm, observed(jm)))
    order = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0], [2, 1, 0]])
    batch = data.gather(torch.arange(4), order)
    ahead = look_ahead(network, {}, batch)
    target, covariance = state_targets(network, batch, ahead)
    pairs = torch.tensor([(s, t) for s in range(4) for t in range(4) if s != t])
    cross = cross_targets(network, batch, ahead, pairs)
    for s in range(4):
        a = order[s].numpy()
        np.testing.assert_allclose(target[0, s], new_mean[s, a], atol=1e-5)
        np.testing.assert_allclose(covariance[0, s], centred[s, a][:, s, a], atol=2e-5)
    for k, (s, t) in enumerate(pairs.tolist()):
        expected = centred[s, order[s].numpy()][:, t, order[t].numpy()]
        np.testing.assert_allclose(cross[0, k], expected, atol=2e-5)


def test_backed_up_gaps_are_those_of_one_backup():
    rng, jm, law, policy = problem(6)
    parts, second = random_moments(rng, jm)
    sigma = 0.7
    new_mean, new_second = jl.apply_t2(with_shock(jm, sigma), policy, parts.mean, second)
    data = Replay.of(tables_of(jm, observed(jm)))
    gaps = backed_up_gaps(tabulated(jm, parts, sigma, law), {}, data)
    every = np.arange(4)
    same = (new_second - np.multiply.outer(new_mean, new_mean))[every, :, every]
    variance = np.diagonal(same, axis1=1, axis2=2)
    apart = variance[:, :, None] + variance[:, None]
    means = new_mean[:, :, None] - new_mean[:, None]
    np.testing.assert_allclose(gaps.gap_mean[0], means, atol=1e-5)
    np.testing.assert_allclose(gaps.coupled[0], apart - 2 * same, atol=1e-4)


def test_of_a_part_of_the_actions_the_targets_are_the_same():
    rng, jm, law, _ = problem(4)
    parts, _ = random_moments(rng, jm)
    network = tabulated(jm, parts, 0.7, law)
    whole = tables_of(jm, observed(jm))
    asked = [(0, 1), (0, 2), (1, 2)]  # every state is queried three times, two actions each
    queries = []
    for columns in asked:
        cut = {
            name: getattr(whole, name)[:, columns]
            for name in ("rewards", "next_observations", "terminated", "next_ids")
        }
        queries.append(replace(whole, actions=whole.actions[:, columns], **cut))
    data, part = Replay.of(whole), Replay.of(QueryTables.concatenate(queries))
    assert len(part.rows) == 12
    both = torch.arange(2).expand(12, -1)
    seen = part.gather(torch.arange(12), both)
    full = data.gather(seen.state_ids, seen.actions)
    found = []
    for batch in (full, seen):
        ahead = look_ahead(network, {}, batch)
        pairs = torch.tensor([(i, j) for i in range(12) for j in range(12)])
        cross = cross_targets(network, batch, ahead, pairs)
        found.append((*state_targets(network, batch, ahead), cross))
    assert sorted(map(tuple, seen.actions.tolist())) == sorted(asked * 4)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("seed", range(3))
def test_errors_vanish_at_the_exact_solution(seed):
    _, jm, law, policy = problem(seed)
    sigma = 0.5
    solution = jl.jipe2(with_shock(jm, sigma), policy, tol=1e-11).moments
    mean = solution.mean
    size = mean.size
    covariance = solution.full_second().reshape(size, size) - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(0))).reshape(*mean.shape, size)
    nothing = np.zeros((*mean.shape, 1))
    rest = (nothing, nothing, nothing[..., 0], nothing[:, 0])
    data = Replay.of(tables_of(jm, observed(jm)))
    entries = torch.cat([data.pairs.T.flatten(), torch.arange(len(data.rows))])
    batch = data.gather(entries, pairs=len(data.pairs))

    def errors(parts):
        return block_errors(tabulated(jm, parts, sigma, law), {}, {}, batch)

    found = errors((mean, root, *rest))
    assert found.shape == (len(TD_BLOCKS), 1)
    assert float(found.max()) < 1e-9
    assert float(errors((mean + 0.1, 1.1 * root + 0.1, *rest))[:-1].min()) > 1e-7  # no spread


def test_errors_of_known_numbers():
    """Two states and two actions; nothing is worth anything, so all targets are zero."""
    jm = jl.JMDP(np.ones((2, 1)), np.zeros((2, 1, 2)), np.ones((2, 1, 2), int), 0.0)
    mean = np.array([[1.0, 2.0], [0.0, 0.0]])
    shared = np.array([[[1.0], [3.0]], [[2.0], [0.0]]])
    nothing = np.zeros((2, 2, 1))
    parts = (mean, shared, nothing, nothing, np.zeros((2, 2)), np.zeros((2, 1)))
    batch = Replay.of(tables_of(jm, observed(jm))).gather(torch.tensor([0, 1, 1]))
    found = block_errors(tabulated(jm, parts), {}, {}, batch)[:, 0]
    expected = {"mu": 5 / 6, "sigma_diag": (1 + 81 + 16 + 16) / 6}
    expected["sigma_same"] = (9 + 9) / 6
    expected["gap"] = (2 * 4.0**2 + 4 * 4.0**2) / 6  # (1 - 3)^2 and (2 - 0)^2
    # states 0 and 1, then 1 and 0; between is 1 and 1, which are one state
    expected["sigma_cross"] = (4 + 36) / 4
    assert dict(zip(TD_BLOCKS, found.tolist(), strict=True)) == pytest.approx(
        expected | {"sigma_pairs": 0.0, "spread": 0.0}
    )


def test_the_target_of_a_spread_is_unbiased_if_actions_are_drawn():
    mean = torch.tensor([0.0, 1.0, 3.0, 7.0])
    network = types.SimpleNamespace(num_actions=4)
    drawn = [list(chosen) for chosen in itertools.combinations(range(4), 2)]
    targets = spread_targets(network, mean[torch.tensor(drawn)][None])
    assert float(targets.mean()) == pytest.approx(float(mean.var(correction=0)))


def test_constant_features_are_left_out():
    seen = np.zeros((3, 2), np.uint8)
    seen[:, 1] = (4, 5, 12)  # bits 0 and 3 vary, bit 2 does not
    jm = strategies.random_jmdp(np.random.default_rng(0), 3, 2, 1)
    network = Network.of(tables_of(jm, seen), CONFIG)
    assert network.varied == [1, 2 + 8, 2 + 8 + 3]


def test_an_ended_branch_is_worth_what_a_state_without_reward_is():
    rng, jm, _, _ = problem(7)
    parts, _ = random_moments(rng, jm)
    for part in parts[:-1]:
        part[3] = 0.0
    tables = tables_of(jm, observed(jm))
    terminated = tables.next_observations[..., 0] == 3
    seen = np.where(terminated[..., None], 1, tables.next_observations).astype(np.uint8)
    ended = replace(tables, terminated=terminated, next_observations=seen)
    network = tabulated(jm, parts)
    results = []
    for version in (tables, ended):
        data = Replay.of(version)
        batch = data.gather(torch.arange(4))
        ahead = look_ahead(network, {}, batch)
        pairs = torch.tensor([(0, 1), (1, 2), (3, 0)])
        cross = cross_targets(network, batch, ahead, pairs)
        results.append((*state_targets(network, batch, ahead), cross))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_covariances_are_positive_semidefinite():
    rng = np.random.default_rng(0)
    jm = strategies.random_jmdp(rng, 5, 4, 2)
    seen = rng.integers(256, size=(5, 6), dtype=np.uint8)
    config = Config(
        gammas=(0.1, 0.99),
        kinds=("gram", "local", "near"),
        sigma=1.0,
        hidden=16,
        shared_dim=5,
        near_dim=2,
        local_dim=3,
        place_dim=4,
    )
    tables = tables_of(jm, seen)
    network = Network.of(tables, config)
    params = network.initial(torch.Generator().manual_seed(1))
    here = network(params, torch.as_tensor(seen))
    assert here.mean.shape == (6, 5, 4)
    for e, (_, kind) in enumerate(config.members):
        v = here.shared[e].double().flatten(0, 1)
        full = v @ v.T
        q, place = here.near[e].double().flatten(0, 1), here.place[e].double()
        close = torch.cdist(place, place).square().neg().exp()
        full += (q @ q.T) * close.repeat_interleave(4, 0).repeat_interleave(4, 1)
        full += torch.block_diag(*here.local[e].double() @ here.local[e].double().mT)
        full += torch.diag(here.own[e].double().flatten())
        assert float(torch.linalg.eigvalsh(full).min()) > -1e-6 * float(full.diagonal().max())
        blocks = torch.stack([full[4 * s : 4 * s + 4, 4 * s : 4 * s + 4] for s in range(5)])
        torch.testing.assert_close(blocks.float(), here.covariance[e], rtol=1e-4, atol=1e-4)
        assert (kind == "gram") == (float(here.own[e].abs().max()) == 0.0)
        assert (kind == "near") == (float(q.abs().max()) > 0.0)


def test_a_shock_is_known_or_learned_whatever_the_other_terms():
    kinds = ("gram", "gram known", "local", "near", "near learned")
    config = Config(gammas=(0.9,), kinds=kinds, sigma=2.0, hidden=8, shared_dim=3)
    network = Network(config, (2, 4), (0.0, 1.0), [*range(4)])
    seen = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=torch.uint8)
    params = network.initial(torch.Generator().manual_seed(0))
    here = network(params, seen)
    for kind, shock, rest, own in zip(
        kinds, here.local[..., 0], here.local[..., 1:], here.own, strict=True
    ):
        known = kind in ("gram known", "local", "near")
        assert (shock == (2.0 if known else 0.0)).all(), kind
        assert bool((rest != 0).any()) == (not kind.startswith("gram")), kind
        assert bool((own > 0).all()) == (not kind.startswith("gram")), kind
    scale = dict(zip(kinds, network.scale.tolist(), strict=True))
    assert scale["gram known"] == scale["local"] < scale["near learned"] == scale["gram"]


def test_equal_tables_of_a_state_become_one():
    jm = jl.windy_gridworld(3)
    once = tables_of(jm, observed(jm))
    data = Replay.of(QueryTables.concatenate([once, once]))
    assert data.rows.shape == (9, 2)
    torch.testing.assert_close(data.weights.sum(1), torch.ones(9))
    assert len(data.pairs) == 2 * len(once.pairs)
    assert bool((data.pairs[:, 0] != data.pairs[:, 1]).all())


def test_bad_tables_are_named():
    jm = jl.windy_gridworld(2)
    with pytest.raises(ValueError, match=r"observations must have shape \(state = 4, byte\)"):
        tables_of(jm, np.zeros((3, 1), dtype=np.uint8))
