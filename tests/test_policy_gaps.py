"""The gap of two rules: against play, enumeration, closed forms and `jipe2`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from brute import tables_of
from strategies import random_jmdp, random_policy, shared_noise_model

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2

COUPLINGS = ("joint", "independent", "common")
RULES = {"mixed": (False, False), "deterministic": (True, True), "one of each": (False, True)}


def two_rules(jm, kinds, seed=0):
    rng = np.random.default_rng(seed)
    return [random_policy(rng, jm, deterministic) for deterministic in kinds]


def enumerated(jm, rules, state, steps, coupling):
    """Mean and variance of the gap of a few steps: all draws of all paths, one by one."""
    share = [np.diff(np.cumsum(rule, axis=1), axis=1, prepend=0.0) for rule in rules]

    def actions(x, y, together):
        """[(probability, a, b)], from cut points of the unit interval."""
        if not together:
            pairs = product(range(jm.num_actions), repeat=2)
            return [(share[0][x, a] * share[1][y, b], a, b) for a, b in pairs]
        ends = [np.cumsum(rule[x]) for rule in rules]
        cuts = np.unique(np.concatenate([[0.0], *ends]).round(12))
        middles = (cuts[1:] + cuts[:-1]) / 2
        found = [np.searchsorted(end, middles) for end in ends]
        return list(zip(np.diff(cuts), *found, strict=True))

    def play(x, y, together, left):
        """[(probability, gap)]"""
        if left == 0:
            return [(1.0, 0.0)]
        ends = []
        for w, a, b in actions(x, y, together):
            one = x == y and a == b
            shared = one or coupling == "common" or (coupling == "joint" and x == y)
            for (p, r, n), (q, r_, n_) in (zip if shared else product)(
                tables_of(jm, x), tables_of(jm, y)
            ):
                chance = w * p * (1.0 if shared else q)
                if chance > 0.0:
                    later = play(int(n[a]), int(n_[b]), one, left - 1)
                    ends += [(chance * c, r[a] - r_[b] + jm.gamma * gap) for c, gap in later]
        return ends

    probs, gaps = np.transpose(play(state, state, True, steps))
    mean = probs @ gaps
    return mean, probs @ (gaps - mean) ** 2


def with_time(jm, steps):
    """The model whose states are (time, state) and which ends, without rewards, after the steps."""
    size = jm.num_states
    tables = [tables_of(jm, s) for s in range(size)]
    most = max(map(len, tables))
    shape = (steps * size + 1, most, jm.num_actions)
    probs = np.zeros(shape[:2])
    rewards = np.zeros(shape)
    after = np.full(shape, steps * size)
    for t, s in product(range(steps), range(size)):
        for k, (p, r, n) in enumerate(tables[s]):
            probs[t * size + s, k] = p
            rewards[t * size + s, k] = r
            after[t * size + s, k] = n + (t + 1) * size if t + 1 < steps else steps * size
    probs[-1] = probs[0]
    return jl.JMDP(probs, rewards, after, jm.gamma)


@pytest.mark.parametrize("kinds", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("coupling", [*COUPLINGS, "ragged"])
def test_enumeration_of_all_paths_of_three_steps(coupling, kinds):
    """ragged: states with different numbers of tables, which share none between states."""
    steps = 3
    jm = shared_noise_model(2, 2, 2, 2, gamma=0.8)
    if coupling == "ragged":
        jm = random_jmdp(np.random.default_rng(9), num_states=2, gamma=0.5)
        with pytest.raises(ValueError, match="one law of tables"):
            jl.laws.policy_gaps(jm, [0, 0], [1, 0], coupling="common")
        coupling = "joint"
    rules = two_rules(jm, kinds, seed=4)
    timed = [np.vstack([*[rule] * steps, rule[:1]]) for rule in rules]
    mean, variance = jl.laws.policy_gaps(with_time(jm, steps), *timed, coupling=coupling)
    for s in range(jm.num_states):
        exact = enumerated(jm, rules, s, steps, coupling)
        np.testing.assert_allclose((mean[s], variance[s]), exact, atol=1e-10)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.999])
def test_equal_rules_have_no_gap_at_all(coupling, gamma):
    jm = shared_noise_model(3, 6, gamma=gamma)
    for rule in two_rules(jm, (False, True)):
        mean, variance = jl.laws.policy_gaps(jm, rule, rule.copy(), coupling=coupling)
        np.testing.assert_array_equal(mean, np.zeros(6))
        np.testing.assert_array_equal(variance, np.zeros(6))


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_no_gap_where_rules_agree_on_all_that_can_still_come(coupling):
    """States 0 and 1 are never left for 2 and 3, where the rules differ."""
    rng = np.random.default_rng(5)
    after = rng.integers(4, size=(4, 2, 2))
    after[:2] %= 2
    after[3] = 2
    after[2, 0] = 3
    jm = jl.JMDP([[0.3, 0.7]] * 4, rng.normal(size=(4, 2, 2)), after, 0.9)
    policy = rng.dirichlet(np.ones(2), size=4)
    other = policy.copy()
    other[2:] = policy[2:, ::-1]
    mean, variance = jl.laws.policy_gaps(jm, policy, other, coupling=coupling)
    np.testing.assert_array_equal(mean[:2], 0.0)
    np.testing.assert_array_equal(variance[:2], 0.0)
    assert (np.abs(mean[2:]) > 1e-3).all()
    assert (variance[2:] > 1e-3).all()


def test_one_number_draws_both_actions():
    """Rewards 0 or 1 by the action alone: the gap of a step is 1 where only one rule plays 1."""
    jm = jl.JMDP([[1.0]], [[[0.0, 1.0]]], [[[0, 0]]], 0.0)
    mean, variance = jl.laws.policy_gaps(jm, [[0.2, 0.8]], [[0.7, 0.3]])
    assert mean[0] == pytest.approx(0.5)
    assert variance[0] == pytest.approx(0.5 * 0.5)  # with two numbers: 0.16 + 0.21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [0, 0]), r"^policy must"),
        (([0, 0], [0, 5]), r"^other: policy\[1\]"),
        (([0, 0], [[1, 1], [1, 0]]), "^other: sum of"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        jl.laws.policy_gaps(jl.coupled_reward_chain(2), *arguments)
    with pytest.raises(TypeError, match="policy_gaps needs a JMDP"):
        jl.laws.policy_gaps(None, [0, 0], [0, 0])


def test_what_does_not_fit_is_refused(leave):
    chain = jl.coupled_reward_chain(20)
    leave(1000)
    with pytest.raises(MemoryError, match="policy_gaps on the 400 pairs of 20 states"):
        jl.laws.policy_gaps(chain, [0] * 20, [1] * 20)


@pytest.mark.parametrize("coupling", ["joint", "independent"])
def test_sparse_rows_and_matrices_give_the_same(coupling, monkeypatch):
    """Which of the two is faster depends on how many successors there are."""
    jm = jl.windy_gridworld(4, gamma=0.9)
    rules = jl.goal_policy(4), jl.epsilon_mixture(jm, jl.goal_policy(4)[:, ::-1], 0.3)
    found = []
    for few in (True, False):
        monkeypatch.setattr(CollapsedT2, "few_successors", few)
        found.append(jl.laws.policy_gaps(jm, *rules, coupling=coupling))
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12)
    assert found[0][1].max() > 0.1
