"""Bounds from n moments: sharp against linear programs, exact where the law is determined."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

import jmdp_lib as jl

GRID = np.linspace(-3.0, 3.0, 241)
ENDS = (-3.0, 3.0)


def moments_of(atoms, probs, order):
    return np.array([np.dot(probs, np.power(atoms, k)) for k in range(order + 1)])


def programme(raw, objective):
    """The least mean of `objective` (N,) over laws on the grid with these moments."""
    equations = np.vander(GRID / 3.0, raw.size, increasing=True).T
    found = linprog(objective, A_eq=equations, b_eq=raw / 3.0 ** np.arange(raw.size))
    assert found.status == 0
    return found.fun


@pytest.fixture
def law():
    rng = np.random.default_rng(5)
    return rng.dirichlet(np.full(GRID.size, 0.05))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6])
def test_tail_bounds_are_sharp_on_a_support(law, order):
    """A program on a grid is never outside the bounds, and as near as the grid allows."""
    raw = moments_of(GRID, law, order)
    for t in GRID[[0, 30, 100, 121, 222]]:
        low, high = jl.laws.tail_bounds(raw, t, support=ENDS)
        least = programme(raw, 1.0 * np.less_equal(GRID, t))
        largest = -programme(raw, -1.0 * np.less_equal(GRID, t))
        assert low - 1e-6 <= least <= low + 0.03
        assert high - 0.03 <= largest <= high + 1e-6


def test_tail_bounds_of_the_whole_line_are_those_of_a_very_wide_support(law):
    t = np.linspace(-2.9, 2.9, 30)
    for order in (2, 4, 6):
        raw = moments_of(GRID, law, order)
        free, wide = jl.laws.tail_bounds(raw, t), jl.laws.tail_bounds(raw, t, support=(-1e5, 1e5))
        np.testing.assert_allclose(free, wide, atol=1e-4)
        odd = jl.laws.tail_bounds(moments_of(GRID, law, order + 1), t)
        np.testing.assert_allclose(free, odd, atol=1e-12)


def test_more_moments_and_a_support_make_bounds_narrower(law):
    t, cdf = GRID[::7], np.cumsum(law)[::7]
    before = np.zeros(t.size), np.ones(t.size)
    for order in range(1, 9):
        raw = moments_of(GRID, law, order)
        low, high = jl.laws.tail_bounds(raw, t, support=ENDS)
        assert np.all((low >= before[0] - 1e-8) & (high <= before[1] + 1e-8))
        assert np.all((low <= cdf + 1e-8) & (cdf <= high + 1e-8))
        lowest, highest = jl.laws.tail_bounds(raw, t)
        assert np.all((lowest <= low + 1e-8) & (highest >= high - 1e-8))
        before = low, high


def test_order_two_is_cantelli():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=50), rng.exponential(size=50)
    for m, v in zip(mean, variance, strict=True):
        low, high = jl.laws.tail_bounds([1.0, m, v + m**2], 0.0)
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert high == pytest.approx(float(jl.cantelli_bound(m, v)))
        assert low == pytest.approx(1.0 - float(jl.cantelli_bound(-m, v)))


def test_few_atoms_are_determined_and_higher_orders_gain_nothing():
    atoms, probs = [-1.0, 0.5, 2.0], [0.2, 0.5, 0.3]
    between, at = [-2.0, -0.5, 1.0, 3.0], atoms
    for order in (6, 7, 10):
        raw = moments_of(atoms, probs, order)
        bounds = jl.laws.tail_bounds(raw, between)
        np.testing.assert_allclose(bounds, [[0.0, 0.2, 0.7, 1.0]] * 2, atol=1e-6)
        low, high = jl.laws.tail_bounds(raw, at)
        np.testing.assert_allclose(low, [0.0, 0.2, 0.7], atol=1e-6)
        np.testing.assert_allclose(high, [0.2, 0.7, 1.0], atol=1e-6)
    known = jl.laws.tail_bounds(moments_of(atoms, probs, 9), between, support=(-1.0, 2.0))
    np.testing.assert_allclose(known, [[0.0, 0.2, 0.7, 1.0]] * 2, atol=1e-6)
    constant = jl.laws.tail_bounds([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(constant, [[0, 0, 1], [0, 1, 1]], atol=1e-9)


def test_ill_conditioned_moments_fall_back_to_the_order_that_they_bear():
    rng = np.random.default_rng(0)
    x = rng.exponential(size=10_000)
    for order in (8, 20, 40):
        low, high = jl.laws.tail_bounds([np.mean(x**k) for k in range(order + 1)], 1.0)
        assert low <= np.mean(x <= 1.0) <= high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jl.laws.tail_bounds([1, 2, 3], 0.0), "degree 1 would have the squared norm"),
        (
            lambda: jl.laws.tail_bounds([1, 0, 1, 0, 0.5], 0.0),
            "degree 2 would have the squared norm",
        ),
        (lambda: jl.laws.tail_bounds([1, 5.0], 0.0, (0, 1)), r"no law on the support"),
        (lambda: jl.laws.tail_bounds([1, 0.5, 0.6], 0.0, (0, 1)), r"no law on the support"),
        (lambda: jl.laws.tail_bounds([2, 0, 1], 0.0), r"raw_moments\[0\] must be 1"),
        (lambda: jl.laws.tail_bounds([1, 0, np.nan], 0.0), "not finite"),
        (lambda: jl.laws.tail_bounds([1, 0, 1], np.inf), "t.*not finite"),
        (lambda: jl.laws.tail_bounds([1, 0, 1], 0.0, (1, -1)), "a < b"),
    ],
)
def test_impossible_moments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
