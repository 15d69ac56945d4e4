"""The gap of two rules: against a recursion over its steps, and closed forms."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from brute import tables_of
from numpy.testing import assert_allclose, assert_array_equal
from strategies import (
    COUPLINGS,
    on_all_couplings,
    random_jmdp,
    random_policy,
    shared_noise_model,
)

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2

RULES = {"mixed": (False, False), "deterministic": (True, True), "one of each": (False, True)}


def two_rules(jm, kinds, seed=0):
    rng = np.random.default_rng(seed)
    return [random_policy(rng, jm, deterministic) for deterministic in kinds]


def expected(jm, rules, state, coupling):
    """Mean and variance of the gap, by a recursion over the 40 steps that are left."""

    def actions(x, y, together):
        """[(probability, a, b)], from cut points of the unit interval."""
        if not together:
            pairs = product(range(jm.num_actions), repeat=2)
            return [(rules[0][x, a] * rules[1][y, b], a, b) for a, b in pairs]
        ends = [np.cumsum(rule[x]) for rule in rules]
        cuts = np.unique(np.concatenate([[0.0], *ends]).round(12))
        found = [np.searchsorted(end, (cuts[1:] + cuts[:-1]) / 2) for end in ends]
        return list(zip(np.diff(cuts), *found, strict=True))

    @cache
    def play(x, y, together, left):
        """E G and E G^2."""
        total = np.zeros(2)
        for w, a, b in actions(x, y, together) if left else ():
            one = x == y and a == b
            shared = one or coupling == "common" or (coupling == "joint" and x == y)
            for (p, r, n), (q, r_, n_) in (zip if shared else product)(
                tables_of(jm, x), tables_of(jm, y)
            ):
                mean, square = jm.gamma * play(int(n[a]), int(n_[b]), one, left - 1)
                paid = r[a] - r_[b]
                later = paid**2 + 2.0 * paid * mean + jm.gamma * square
                total += w * p * (1.0 if shared else q) * np.array([paid + mean, later])
        return total

    mean, square = play(state, state, True, 40)
    return mean, square - mean**2


@pytest.mark.parametrize("kinds", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("coupling", [*COUPLINGS, "ragged"])
def test_the_gap_is_that_of_a_recursion_over_its_steps(coupling, kinds):
    """ragged: states with different numbers of tables, which share none between states."""
    jm = shared_noise_model(2, 2, 2, 2, gamma=0.5)
    if coupling == "ragged":
        jm, coupling = random_jmdp(np.random.default_rng(9), num_states=2, gamma=0.5), "joint"
    rules = two_rules(jm, kinds, seed=4)
    mean, variance = jl.laws.policy_gaps(jm, *rules, coupling=coupling)
    for s in range(jm.num_states):
        exact = expected(jm, rules, s, coupling)
        assert_allclose((mean[s], variance[s]), exact, atol=1e-10)


@on_all_couplings
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
    assert_array_equal(mean[:2], 0.0)
    assert_array_equal(variance[:2], 0.0)
    assert (np.abs(mean[2:]) > 1e-3).all()
    assert (variance[2:] > 1e-3).all()


@pytest.mark.parametrize("coupling", ["joint", "independent"])
def test_sparse_rows_and_matrices_give_the_same(coupling, monkeypatch):
    """Which of the two is faster depends on how many successors there are."""
    jm = jl.windy_gridworld(4, gamma=0.9)
    rules = jl.goal_policy(4), jl.epsilon_mixture(jm, jl.goal_policy(4)[:, ::-1], 0.3)
    found = []
    for few in (True, False):
        monkeypatch.setattr(CollapsedT2, "few_successors", few)
        found.append(jl.laws.policy_gaps(jm, *rules, coupling=coupling))
    assert_allclose(*found, rtol=1e-10, atol=1e-12)
    assert found[0][1].max() > 0.1
