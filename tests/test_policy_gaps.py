"""The gap of two policies: against rational systems for its moments."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from brute import tables_of
from numpy.testing import assert_allclose, assert_array_equal
from strategies import COUPLINGS, on_all_couplings, random_policy

import jmdp_lib as jl
from jmdp_lib.fast import Chain, CollapsedT2

RULES = {"mixed": (False, False), "deterministic": (True, True), "one of each": (False, True)}


def two_rules(jm, kinds, seed=0):
    rng = np.random.default_rng(seed)
    return [random_policy(rng, jm, deterministic) for deterministic in kinds]


def exact(jm, rules, coupling):
    """Means and variances (S,) of the gap: a rational system for E G and one for E G^2."""
    size = jm.num_states
    gamma = Fraction(jm.gamma)
    tables = [[(Fraction(p), r, n) for p, r, n in tables_of(jm, s)] for s in range(size)]
    first, second = (np.vectorize(Fraction)(rule) for rule in rules)

    def chance_of(x, y, coupled, a, b):
        """The probability of two actions that one number draws, or two numbers."""
        one, two = first[x], second[y]
        if not coupled:
            return one[a] * two[b]
        return max(0, min(sum(one[: a + 1]), sum(two[: b + 1])) - max(sum(one[:a]), sum(two[:b])))

    pairs = [*product(range(size), range(size), [False]), *((s, s, True) for s in range(size))]
    steps = []  # row, probability, paid, next row
    for (i, pair), a, b in product(enumerate(pairs), *2 * [range(jm.num_actions)]):
        x, y, _ = pair
        one = x == y and a == b
        shared = one or coupling == "common" or (coupling == "joint" and x == y)
        for (p, r, n), (q, r_, n_) in (zip if shared else product)(tables[x], tables[y]):
            chance = chance_of(*pair, a, b) * p * (1 if shared else q)
            paid = Fraction(r[a]) - Fraction(r_[b])
            steps.append((i, chance, paid, pairs.index((n[a], n_[b], one))))
    leads = np.full((len(pairs), len(pairs)), Fraction(0))
    mean, square = leads[0].copy(), leads[0].copy()
    for i, chance, paid, j in steps:
        leads[i, j] += chance
        mean[i] += chance * paid
    one = np.eye(len(pairs), dtype=int)
    mean = solved(one - gamma * leads, mean)
    for i, chance, paid, j in steps:
        square[i] += chance * (paid**2 + 2 * paid * gamma * mean[j])
    square = solved(one - gamma**2 * leads, square)
    return mean[-size:], (square - mean**2)[-size:]


def solved(matrix, right):
    """x of a rational system, by elimination; I - gamma P is diagonally dominant: no pivot is 0."""
    rows = np.column_stack([matrix, right])
    for i in range(len(rows)):
        rows[i] /= rows[i, i]
        for k in range(len(rows)):
            if k != i:
                rows[k] -= rows[k, i] * rows[i]
    return rows[:, -1]


def in_eighths(rng, *shape):
    """Probabilities that add up to one exactly."""
    return rng.multinomial(8, np.ones(shape[-1]) / shape[-1], size=shape[:-1]) / 8.0


def exact_problem(coupling, seed, gamma, kinds=(False, False), scale=1.0):
    """A small model whose probabilities are exact, and two rules."""
    rng = np.random.default_rng(seed)
    probs = in_eighths(rng, 2 if coupling == "ragged" else 1, 3)
    rewards = scale * rng.normal(size=(2, 3, 2))
    jm = jl.JMDP(
        np.tile(probs, (2 // len(probs), 1)), rewards, rng.integers(2, size=(2, 3, 2)), gamma
    )
    rules = [random_policy(rng, jm, True) if one else in_eighths(rng, 2, 2) for one in kinds]
    return jm, rules


def errors(result, jm, rules, coupling):
    """The largest errors of means and of variances."""
    pairs = zip(result, exact(jm, rules, coupling), strict=True)
    return [max(abs(np.vectorize(Fraction)(values) - truth)) for values, truth in pairs]


@pytest.mark.parametrize("kinds", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("coupling", [*COUPLINGS, "ragged"])
@pytest.mark.parametrize(("gamma", "scale"), [(0.5, 1.0), (0.99, 1e6), (0.999, 1e-6)])
def test_gaps_are_within_their_bounds(coupling, kinds, gamma, scale):
    """ragged: states with different laws of tables, which share none between states."""
    jm, rules = exact_problem(coupling, 4, gamma, kinds, scale)
    coupling = coupling if coupling in COUPLINGS else "joint"
    result = jl.laws.policy_gaps(jm, *rules, coupling=coupling)
    assert result.converged
    off = errors(result, jm, rules, coupling)
    for power, error, bound in zip((1, 2), off, result.error_bound, strict=True):
        assert error <= bound <= 1e-9 * (scale / (1.0 - gamma)) ** power


@on_all_couplings
def test_errors_of_means_are_counted(coupling, monkeypatch):
    """Values that are wrong by a thousandth: both bounds hold, and are of that size."""
    jm, rules = exact_problem(coupling, 5, 0.9)
    solution = Chain.solution
    wrong = 1e-3 * np.array([1.0, -1.0])
    monkeypatch.setattr(Chain, "solution", lambda chain, goal: solution(chain, goal) + wrong)
    with pytest.warns(jl.ConvergenceWarning):
        result = jl.laws.policy_gaps(jm, *rules, coupling=coupling)
    for error, bound in zip(errors(result, jm, rules, coupling), result.error_bound, strict=True):
        assert 1e-5 < error <= bound <= 1e3 * error


def test_a_gap_lost_in_rounding_is_reported():
    jm, rules = exact_problem("joint", 6, 1.0 - 1e-9)
    with pytest.warns(jl.ConvergenceWarning, match="policy_gaps: means may be off by"):
        assert not jl.laws.policy_gaps(jm, *rules).converged


@on_all_couplings
def test_no_gap_where_policies_agree_from_then_on(coupling):
    """States 0 and 1 never lead to 2 and 3, where the policies differ."""
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
    results = []
    for few in (True, False):
        monkeypatch.setattr(CollapsedT2, "few_successors", few)
        results.append(jl.laws.policy_gaps(jm, *rules, coupling=coupling))
    assert_allclose(*map(list, results), rtol=1e-10, atol=1e-12)
    assert results[0].variance.max() > 0.1
