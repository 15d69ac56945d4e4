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


def programme(raw, objective, extra=0):
    """The least mean of `objective` over laws on the grid with these moments, by linear programs.

    (N,) objective, or (2 N,) with a second law below the first whose mass is `extra`.
    """
    size = GRID.size
    equations = np.vander(GRID / 3.0, raw.size, increasing=True).T
    right, below = raw / 3.0 ** np.arange(raw.size), None
    if extra:
        equations = np.block(
            [[equations, 0 * equations], [np.zeros((1, size)), np.ones((1, size))]]
        )
        right, below = np.append(right, extra), np.hstack([-np.eye(size), np.eye(size)])
    found = linprog(objective, below, None if below is None else np.zeros(size), equations, right)
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
        assert free.order == odd.order == order


def test_more_moments_and_a_support_make_bounds_narrower(law):
    t, cdf = GRID[::7], np.cumsum(law)[::7]
    before = np.zeros(t.size), np.ones(t.size)
    for order in range(1, 9):
        raw = moments_of(GRID, law, order)
        low, high = jl.laws.tail_bounds(raw, t, support=ENDS)
        assert np.all((low >= before[0] - 1e-8) & (high <= before[1] + 1e-8))
        assert np.all((low <= cdf + 1e-8) & (cdf <= high + 1e-8))
        free = jl.laws.tail_bounds(raw, t)
        assert np.all((free.low <= low + 1e-8) & (free.high >= high - 1e-8))
        before = low, high


def test_order_two_is_cantelli():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=50), rng.exponential(size=50)
    for m, v in zip(mean, variance, strict=True):
        low, high = jl.laws.tail_bounds([1.0, m, v + m**2], 0.0)
        assert high == pytest.approx(float(jl.cantelli_bound(m, v)))
        assert low == pytest.approx(1.0 - float(jl.cantelli_bound(-m, v)))


def test_few_atoms_are_determined_and_higher_orders_gain_nothing():
    atoms, probs = [-1.0, 0.5, 2.0], [0.2, 0.5, 0.3]
    between, at = [-2.0, -0.5, 1.0, 3.0], atoms
    for order, used in ((6, 6), (7, 6), (10, 6)):
        raw = moments_of(atoms, probs, order)
        bounds = jl.laws.tail_bounds(raw, between)
        np.testing.assert_allclose(bounds, [[0.0, 0.2, 0.7, 1.0]] * 2, atol=1e-6)
        assert bounds.order == used
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
    bounds = [jl.laws.tail_bounds([np.mean(x**k) for k in range(n + 1)], 1.0) for n in (8, 20, 40)]
    assert bounds[0].order == 8
    assert bounds[2].order <= 30
    for low, high in bounds:
        assert low <= np.mean(x <= 1.0) <= high


def test_gap_moments_of_a_solution_bound_its_law():
    """Without a future the law of a gap is that of one table's rewards."""
    rng = np.random.default_rng(3)
    probs, rewards = rng.dirichlet(np.ones(6)), rng.normal(size=(6, 2))
    jm = jl.JMDP([probs], [rewards], np.zeros((1, 6, 2), int), 0.0)
    moments = jl.jipe(jm, [[0.5, 0.5]], order=6).moments
    raw = [moments.gap_moment([(0, 0, 1)] * k) if k else 1.0 for k in range(7)]
    gap, t = rewards[:, 0] - rewards[:, 1], np.linspace(-3.0, 3.0, 31)
    low, high = jl.laws.tail_bounds(raw, t)
    cdf = np.where(gap <= t[:, None], probs, 0.0).sum(1)
    assert np.all((low - 1e-7 <= cdf) & (cdf <= high + 1e-7))
    assert np.mean(high - low) < 0.25


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_quantiles_and_cvar_of_order_two_have_closed_forms(p):
    raw, sigma = [1.0, 2.0, 13.0], 3.0
    low, high = jl.quantile_bounds(raw, p)
    assert low == pytest.approx(2.0 - sigma * np.sqrt((1 - p) / p))
    assert high == pytest.approx(2.0 + sigma * np.sqrt(p / (1 - p)))
    least, largest = jl.cvar_bounds(raw, p)
    assert least == pytest.approx(low, abs=1e-3)
    assert largest == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("order", [1, 4])
def test_quantiles_and_cvar_on_a_support(law, order):
    raw, levels = moments_of(GRID, law, order), np.array([0.05, 0.6])
    quantile = jl.quantile_bounds(raw, levels, support=ENDS)
    low, high = jl.laws.tail_bounds(raw, quantile.low + 1e-6, ENDS)[1], quantile.high - 1e-6
    assert np.all(low >= levels - 1e-4)
    assert np.all(jl.laws.tail_bounds(raw, high, ENDS)[0] <= levels + 1e-4)
    cvar = jl.cvar_bounds(raw, levels, support=ENDS)
    for i, p in enumerate(levels):
        least = programme(raw, np.append(0 * GRID, GRID / p), extra=p)
        assert cvar.low[i] == pytest.approx(least, abs=5e-3)
        cuts = GRID[::12]
        largest = max(c - programme(raw, np.maximum(c - GRID, 0.0)) / p for c in cuts)
        assert largest - 1e-3 <= cvar.high[i] <= largest + 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jl.laws.tail_bounds([1, 2, 3], 0.0), "negative variance, -1"),
        (
            lambda: jl.laws.tail_bounds([1, 0, 1, 0, 0.5], 0.0),
            "degree 2 would have the squared norm",
        ),
        (lambda: jl.laws.tail_bounds([1, 5.0], 0.0, (0, 1)), r"no law on \[0, 1\]"),
        (lambda: jl.laws.tail_bounds([1, 0.5, 0.6], 0.0, (0, 1)), r"no law on \[0, 1\]"),
        (lambda: jl.laws.tail_bounds([2, 0, 1], 0.0), r"raw_moments\[0\] must be 1"),
        (lambda: jl.laws.tail_bounds([1, 0, np.nan], 0.0), "not finite"),
        (lambda: jl.laws.tail_bounds([1, 0, 1], np.inf), "t.*not finite"),
        (lambda: jl.laws.tail_bounds([1, 0, 1], 0.0, (1, -1)), "a < b"),
        (lambda: jl.quantile_bounds([1, 0, 1], [0.5, 1.0]), r"p\[1\].*not in \(0, 1\)"),
        (lambda: jl.cvar_bounds([1, 0.0], 0.5), "support, or moments of order 2"),
    ],
)
def test_impossible_moments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
