"""coupling="common": one noise per time step for all branches, wherever they are."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import product

import brute
import numpy as np
import pytest
from strategies import random_policy

import jmdp_lib as jl
from jmdp_lib.moments import norm_weight
from jmdp_lib.operators.backups import LAYOUTS
from jmdp_lib.operators.collapsed import CollapsedT2

ROUTES = [{"route": "sweeps"}, {"route": "reachable"}, {"route": "dense"}, {"device": "cpu"}]


def shared_noise(rng, num_states, num_actions=2, num_tables=2, gamma=0.7):
    """A random model in which all states have one law of tables; signed rewards."""
    shape = (num_states, num_tables, num_actions)
    probs = np.tile(rng.dirichlet(np.ones(num_tables)), (num_states, 1))
    return jl.JMDP(probs, rng.uniform(-2, 2, shape), rng.integers(num_states, size=shape), gamma)


def matches(jm, policy, wanted, how, atol):
    """The moments of `jipe2` and `jipe` against {sorted state-actions: E of the product}."""
    second = jl.jipe2(jm, policy, 1e-11, "common", **how)
    order = max(map(len, wanted))
    higher = jl.jipe(jm, policy, order, 1e-11, "common")
    assert second.converged
    assert higher.converged
    everywhere = second.pairs == jm.num_states * (jm.num_states + 1) // 2
    full = second.moments.full_second() if everywhere else None
    for x, moment in wanted.items():
        if len(x) > 2 or (x and order < 3):
            assert higher.moments.moment(x) == pytest.approx(moment, abs=atol)
        if len(x) == 1 or (len(x) == 2 and (everywhere or x[0][0] == x[1][0])):
            assert second.moments.moment(x) == pytest.approx(moment, abs=atol)
        if len(x) == 2 and everywhere:
            assert full[x[0] + x[1]] == pytest.approx(moment, abs=atol)


@pytest.mark.parametrize("deterministic", [False, True])
def test_equals_a_linear_solve_from_the_definition(deterministic):
    """60 models for each kind of policy, every route in turn."""
    rng = np.random.default_rng(int(deterministic))
    for n in range(60):
        jm = shared_noise(
            rng, 1 + n // 3 % 3, 1 + (n % 5 > 0), 1 + n % 3, (0.0, 0.5, 0.8)[n // 4 % 3]
        )
        policy = random_policy(rng, jm, deterministic)
        wanted = brute.moments(jm, policy, 3 if n % 7 == 0 else 2, common=True)
        matches(jm, policy, wanted, ROUTES[n % 4], 1e-8)


def test_equals_the_enumeration_of_all_noises():
    """60 models: under a deterministic policy all returns are functions of one noise sequence."""
    rng, horizon = np.random.default_rng(2), 9
    for n in range(60):
        jm = shared_noise(rng, 2 + n % 3, gamma=0.2)
        policy = random_policy(rng, jm, deterministic=True)
        noises = np.array(list(product(range(2), repeat=horizon)))
        prob = jm.noise_probs[noises].prod(1)
        rewards, after = (
            x.reshape(-1, 2, jm.num_actions) for x in (jm.rewards, jm.next_states)
        )  # by state and noise
        sequences, value = np.arange(len(noises))[:, None], np.zeros((len(noises), jm.num_states))
        for u in noises.T[::-1]:
            x = after[:, u].swapaxes(0, 1)
            returns = rewards[:, u].swapaxes(0, 1) + jm.gamma * value[sequences[..., None], x]
            value = returns[:, np.arange(jm.num_states), policy.argmax(1)]
        pairs = list(product(range(jm.num_states), range(jm.num_actions)))
        drawn = (rng.integers(len(pairs), size=k) for k in (1, 2, 2, 2, *[3] * (n % 3)))
        wanted = {
            x: prob @ np.prod([returns[:, s, a] for s, a in x], axis=0)
            for x in (tuple(sorted(pairs[i] for i in picks)) for picks in drawn)
        }
        matches(jm, policy, wanted, ROUTES[n % 4], 2e-4)


def test_monte_carlo_is_within_its_error():
    rng = np.random.default_rng(3)
    for n in range(6):
        jm = shared_noise(rng, 4, 3, 3)
        policy = random_policy(rng, jm, deterministic=n % 2 == 0)
        exact = jl.jipe2(jm, policy, coupling="common").moments
        gaps = [(s, 0, 2) for s in range(4)]
        played = jl.simulators.estimate_gaps(
            jm, policy, gaps, num_runs=20_000, seed=n, coupling="common", truncation=1e-7
        )
        s, a, b = np.transpose(gaps)
        assert (np.abs(played.mean - exact.gap_mean[s, a, b]) < 5 * played.mean_error).all()
        wrong = np.abs(played.variance - exact.gap_variance[s, a, b])
        assert (wrong < 5 * played.variance_error).all()


def test_is_joint_where_only_one_state_is_occupied():
    """A state that every branch stays at, or leaves for one in which nothing is random."""
    rng = np.random.default_rng(4)
    pay = rng.uniform(-1, 1, (3, 3))
    for leave in (False, True):
        jm = jl.JMDP.from_step(
            2,
            3,
            0.9,
            [0.2, 0.3, 0.5],
            lambda s, a, u, leave=leave: (0.5, 1) if s else (pay[u, a], int(leave and u == a)),
        )
        policy = random_policy(rng, jm)
        for how in ROUTES:
            one, other = (
                jl.jipe2(jm, policy, 1e-11, coupling, **how).moments
                for coupling in ("joint", "common")
            )
            np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-9)
        same = (jl.jipe(jm, policy, 3, coupling=name).moments for name in ("joint", "common"))
        np.testing.assert_allclose(*(m.same_state(3) for m in same), atol=1e-6)


def test_is_a_mixture_of_contractions():
    """T_2 is the average over the noise of operators that all have the modulus of Lemma 5.2."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        jm = shared_noise(rng, 3, num_tables=3)
        policy, shape = random_policy(rng, jm), (jm.num_states, jm.num_actions)
        points = [(rng.normal(size=shape), 9.0 * rng.normal(size=shape * 2)) for _ in range(2)]
        images = [jl.apply_t2(jm, policy, *m, "common") for m in points]
        for m, image in zip(points, images, strict=True):
            given = [jl.apply_t2(certain, policy, *m) for certain in jm.given_noise]
            for part in (0, 1):
                mixed = sum(p * g[part] for p, g in zip(jm.noise_probs, given, strict=True))
                np.testing.assert_allclose(image[part], mixed, atol=1e-12)
        weight = norm_weight(2, jm.gamma, jm.reward_bound)
        before, after = (
            max(np.abs(x[0] - y[0]).max(), np.abs(x[1] - y[1]).max() / weight)
            for x, y in (points, images)
        )
        assert after <= jl.contraction_modulus(2, jm.gamma) * before * (1 + 1e-12)


@pytest.mark.parametrize("form", list(LAYOUTS))
def test_incremental_has_the_same_fixed_point(form):
    """Two states that branches rarely leave, so that much is shared: joint tables are far off."""
    jm = jl.JMDP.from_step(
        2, 2, 0.5, [0.4, 0.6], lambda s, a, u: (2.0 * u - 1.0 + 0.2 * u * a, (a + s * u) % 2)
    )
    policy = [[0.9, 0.1], [0.2, 0.8]]
    exact = jl.jipe2(jm, policy, 1e-12, "common")
    layout = LAYOUTS[form](np.array(policy), "common")
    values = layout.pack(exact.moments.mean, exact.moments.full_second())
    np.testing.assert_allclose(layout.applied(jm, values), layout.raw(values), atol=1e-9)
    learned = jl.incremental_jipe2(
        jm, policy, 1_000_000, (1.0, 0.8), form=form, reference=exact, coupling="common"
    )
    assert learned.errors[-1] < 0.1 * learned.errors[0]
    wrong = jl.jipe2(jm, policy).moments.covariance - exact.moments.covariance
    off = learned.moments.covariance - exact.moments.covariance
    assert np.abs(off).max() < 0.25 * np.abs(wrong).max()


def depot():
    """The depot of the guide as a step with its noise, and a base-stock policy of level 6."""
    demand = np.array([math.exp(-3) * 3.0**k / math.factorial(k) for k in range(30)])

    def step(stock, order, wanted):
        have = min(stock + order, 11)
        return 3.0 * min(have, wanted) - 1.5 * order, max(have - wanted, 0)

    jm = jl.JMDP.from_step(12, 5, 0.9, demand / demand.sum(), step)
    return jm, [min(max(6 - stock, 0), 4) for stock in range(12)]


def test_the_depot_with_demand_shared_through_time():
    """31.7 against 0.14, and 0.454 against 0.063, were counted from 200,000 other pairs each."""
    jm, policy = depot()
    again = jl.inventory(
        11, 4, gamma=0.9, holding_cost=0.0, lost_sale_cost=0.0
    )  # as the guide does
    for coupling, variance, worse in [("joint", 31.7, 0.454), ("common", 0.14, 0.063)]:
        exact = jl.jipe2(jm, policy, coupling=coupling).moments
        played = jl.simulators.estimate_gaps(
            jm, policy, [(5, 1, 2)], num_runs=50_000, coupling=coupling, truncation=1e-7
        )
        assert exact.gap_variance[5, 1, 2] == pytest.approx(variance, rel=0.015)
        guide = jl.jipe2(again, policy, coupling=coupling).moments
        assert guide.gap_variance[5, 1, 2] == pytest.approx(exact.gap_variance[5, 1, 2], abs=1e-6)
        assert abs(played.variance[0] - exact.gap_variance[5, 1, 2]) < 4 * played.variance_error[0]
        error = math.sqrt(worse * (1 - worse) / 50_000)
        assert (played.prob_worse + played.prob_tie)[0] == pytest.approx(worse, abs=4 * error)


def test_no_more_pairs_are_reached_than_with_joint_tables():
    jm, policy = depot()
    joint, common = (
        jl.jipe2(jm, policy, coupling=coupling, route="reachable").pairs
        for coupling in ("joint", "common")
    )
    assert common < joint


def test_the_law_of_a_pair_of_states():
    rng = np.random.default_rng(8)
    jm = shared_noise(rng, 3, num_tables=3)
    law = CollapsedT2(jm, random_policy(rng, jm), "common").law(*np.array([[0], [1], [0], [2]]))
    wanted = [
        (p, r[1], t[0])
        for (p, _, r), (_, _, t) in zip(brute.tables_of(jm, 0), brute.tables_of(jm, 2), strict=True)
    ]
    assert list(zip(law.weights, law.first, law.second, strict=True)) == wanted
    assert [x.tolist() for x in law.tables] == [[0, 1, 2], [6, 7, 8]]


def test_a_model_knows_its_noise_or_says_which_state_has_another():
    rng = np.random.default_rng(9)
    jm = shared_noise(rng, 4, num_tables=3)
    order = rng.permutation(jm.probs.size)
    order = order[np.argsort(np.arange(jm.probs.size)[order] % 3, kind="stable")]
    stacked = (jm.table_states[order], jm.probs[order], jm.rewards[order], jm.next_states[order])
    for same in (pickle.loads(pickle.dumps(jm)), jl.JMDP.from_tables(*stacked, 4, jm.gamma)):
        np.testing.assert_array_equal(same.noise_probs, jm.noise_probs)
        np.testing.assert_array_equal(same.rewards, jm.rewards)
    zero = jl.JMDP.from_step(2, 1, 0.5, [0.5, 0.0, 0.5], lambda s, a, u: (float(u), 0))
    np.testing.assert_array_equal(zero.noise_probs, [0.5, 0.5])

    shape, row = (3, 2, 1), [0.25, 0.75]
    for rows, state in [([row, row, row[::-1]], 2), ([row, [1.0, 0.0], row[::-1]], 1)]:
        other = jl.JMDP(rows, np.zeros(shape), np.zeros(shape, int), 0.5)
        policy, zeros = [[1.0]] * 3, (np.zeros((3, 1)), np.zeros((3, 1, 3, 1)))
        for function, arguments in [
            (jl.jipe2, ()),
            (jl.jipe, (3,)),
            (jl.apply_t2, zeros),
            (jl.simulate_pairs, (0, (0, 0), 9)),
            (jl.simulate_returns, (9,)),
            (jl.laws.policy_gaps, (policy,)),
            (jl.simulators.estimate_gaps, ([(0, 0, 0)],)),
            (jl.incremental_jipe2, (9,)),
        ]:
            with pytest.raises(ValueError, match=f"one law of tables.* state {state} has"):
                function(other, policy, *arguments, coupling="common")


def test_a_simulator_does_not_say_which_noise_it_drew():
    class Coin:
        num_states, num_actions, gamma = 2, 2, 0.5

        def query(self, state, actions, rng):
            return [float(rng.random()) for _ in actions], [0 for _ in actions]

    counted = jl.JMDP.from_simulator(Coin(), queries_per_state=4)  # at every state 4 times 1/4
    with pytest.raises(ValueError, match="needs a known noise, and the tables of this model"):
        jl.jipe2(counted, [[0.5, 0.5]] * 2, coupling="common")
    with pytest.raises(ValueError, match="draws the noise of one state, not of two"):
        jl.incremental_jipe2(Coin(), [[0.5, 0.5]] * 2, 9, coupling="common")
    with pytest.raises(ValueError, match="coupling must be one of 'joint', 'common'"):
        jl.incremental_jipe2(Coin(), [[0.5, 0.5]] * 2, 9, coupling="independent")


def equal_laws():
    """An MDP whose states all have the probabilities (1/2, 1/2): its tables look like a noise."""
    moves = np.full((2, 2, 2), 0.5)
    return moves, np.array([[0.0, 1.0], [1.0, 0.0]])


class Fair:
    num_states, num_actions, gamma = 2, 1, 0.9

    def query(self, state, actions, rng):
        return [0.0] * len(actions), [int(rng.random() < 0.5)] * len(actions)


UNKNOWN = {
    "from_mdp": lambda: jl.JMDP.from_mdp(*equal_laws(), 0.9),
    "from_gymnasium": lambda: jl.JMDP.from_gymnasium("CliffWalking-v1"),
    "from_simulator": lambda: jl.JMDP.from_simulator(Fair(), 2, seed=3),
    "coupling_range": lambda: jl.laws.coupling_range(jl.example_2_1(), [0, 0]).low,
}


@pytest.mark.parametrize("made", UNKNOWN.values(), ids=UNKNOWN)
def test_models_that_do_not_know_their_noise_refuse_it_however_they_look(made):
    jm = made()
    policy = jl.uniform_policy(jm)
    for model in (jm, copy.deepcopy(jm), pickle.loads(pickle.dumps(jm))):
        with pytest.raises(ValueError, match=r'coupling="common" needs a known noise, '):
            jl.jipe2(model, policy, coupling="common")
    for model in (jm, jl.large.ImplicitJMDP.from_jmdp(jm)):
        with pytest.raises(ValueError, match=r'coupling="common" needs a known noise, '):
            jl.large.local_jipe2(model, policy, [0], coupling="common")


def test_tables_with_one_law_keep_their_noise_in_copies():
    jm = jl.JMDP([[0.5, 0.5]] * 2, np.zeros((2, 2, 1)), np.zeros((2, 2, 1), int), 0.9)
    for model in (jm, pickle.loads(pickle.dumps(jm)), jl.inventory(2, 1)):
        assert jl.jipe2(model, jl.uniform_policy(model), coupling="common").converged
