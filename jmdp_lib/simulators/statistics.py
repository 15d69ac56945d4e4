"""Sample statistics, tests and confidence sequences: what estimates and decisions rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats

# A gambler's stakes, and the shares of the capital that are staked so; large ones count for more,
# since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_CLOSE = 1e-3  # of the distance of a bound from the mean: how exactly it is worked out
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of its allowance for skewed laws
FIRST_ASYMPTOTIC = 128  # values before it says anything


class GapSums(NamedTuple):
    """Sums over N gaps, all that their statistics need: parts of a sample merge into the whole.

    central: (3,), sums of second, third and fourth powers of what the gaps differ from their mean.
    counts: (5,), how many are below, at and above zero, at zero since the cut at the horizon or
    rounding left their sign open, and the discounts from which on gaps are open.
    """

    num_gaps: int
    mean: float
    central: Floats
    counts: Floats

    @classmethod
    def of(
        cls, gaps: Any, apart: Any, rest: float, rounding: tuple[float, float], xp: Any
    ) -> GapSums:
        """Of gaps (N,), an array of the library `xp`.

        apart: (N,) a gap may still change by this times `rest`. rounding: up to which sizes other
        gaps are ties, and may be anything. Whatever may be a tie counts as zero.
        """
        tie, lost = rounding
        cut = _cut(apart, rest, xp)
        unsure = cut + lost
        mean = float(xp.mean(gaps))
        off = gaps - mean
        squares = off * off
        powers = [float(xp.sum(squares * part)) for part in (1.0, off, squares)]
        zero = xp.abs(gaps) <= unsure
        unknown = zero & ((cut > 0.0) | (xp.abs(gaps) > tie))
        signs = (gaps < -unsure, zero, gaps > unsure, unknown)
        counts = [*(float(xp.count_nonzero(sign)) for sign in signs), float(xp.sum(apart))]
        return cls(gaps.shape[0], mean, np.array(powers), np.array(counts))


def _cut(apart: Any, rest: float, xp: Any) -> Any:
    """(N,) how much gaps may still change: none that is final, even if `rest` is infinite."""
    return apart * xp.where(apart > 0.0, xp.full_like(apart, rest), xp.zeros_like(apart))


def gap_ends(gaps: Floats, apart: Floats, rest: float, rounding: tuple[float, float]) -> Floats:
    """(N, 2) ends between which every gap lies; arguments as of `GapSums.of`."""
    tie, lost = rounding
    final = (np.abs(gaps) <= tie) & (apart == 0.0)
    reach = np.where(final, 0.0, _cut(apart, rest, np) + lost)
    gaps = np.where(final, 0.0, gaps)
    return np.stack([gaps - reach, gaps + reach], axis=1)


def value_sums(returns: Any, left: Any, offset: float, xp: Any) -> GapSums:
    """Of returns (N,) of whole runs of one branch, as if they were gaps.

    left: (N,) the discounts from which on they are cut. offset: a part that they are without.
    """
    sums = GapSums.of(returns, left, 0.0, (0.0, 0.0), xp)
    return sums._replace(mean=sums.mean + offset)


def gap_statistics(parts: Sequence[GapSums]) -> Floats:
    """(9,) mean and variance with their standard errors, and shares of all gaps.

    parts: of one sample, which are merged (Pébay 2008): nothing large is subtracted. The error of
    the variance is the jackknife's: no law is assumed. The shares are those of `counts`.
    """
    sizes, means, central, counts = map(np.array, zip(*parts, strict=True))
    n = sizes.sum()
    mean = sizes / n @ means
    off = means - mean
    square, cube, fourth = central.T
    fourth = np.sum(fourth + 4.0 * off * cube + 6.0 * off**2 * square + sizes * off**4)
    square = np.sum(square + sizes * off**2)
    variance = square / (n - 1)
    spread = np.sqrt(max(fourth - square**2 / n, 0.0) / (n - 1))  # of the squares
    errors = np.sqrt(variance / n), n / (n - 2) * spread / np.sqrt(n)
    return np.array([mean, errors[0], variance, errors[1], *counts.sum(0) / n])


def variance_reduction(returns: Floats) -> float:
    """What `Decision` says of it, from the returns (m, N) of whole runs; nan if there are none."""
    size, count = returns.shape
    if not count:
        return math.nan
    alone = returns.var(1).sum()
    gaps = max(size * alone - returns.sum(0).var(), 0.0)  # Var(Z_a - Z_b) over all pairs
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide((size - 1) * alone, gaps))


def betting_bound(
    x: Floats, low: float, high: float, alpha: float, known: float = -np.inf, times: float = 1.0
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the distribution, the bounds for all T at once hold with probability 1 - alpha. A
    gambler bets that the mean exceeds m, at odds that are fair if it is equal. The gambler starts
    with 1 and splits it into shares. Share $j$ stakes $2^{-j}$ of what it owns by then on every
    value, so that some share stakes about the best part. If the mean is at most m, the probability
    that the capital ever reaches 1 / alpha is at most alpha. The bound is the largest m against
    which it is as large by now (Waudby-Smith and Ramdas 2024, Section 4), to a thousandth of its
    distance from the sample mean.

    known: the bound of fewer values, which the new one does not fall below. times: how often each
    of the values is counted.
    """
    if low == high:
        return low
    z, counts = np.unique(np.clip((x - low) / (high - low), 0.0, 1.0), return_counts=True)
    centre = top = float(counts @ z / counts.sum())  # nothing is ever won against the sample mean
    bottom = max((known - low) / (high - low), 0.0)
    while top - bottom > _CLOSE * (centre - bottom):
        middle = 0.5 * (bottom + top)
        with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
            growth = np.log1p(_BETS * (z[:, None] / middle - 1.0))
        capital = np.logaddexp.reduce(_LOG_SHARES + times * (counts @ growth))
        bottom, top = (middle, top) if capital >= -np.log(alpha) else (bottom, middle)
    return low + (high - low) * bottom


def asymptotic_bound(x: Floats, alpha: float, times: float = 1.0) -> Any:
    """A lower end of an asymptotic confidence sequence for the mean of values x.

    x: (T, ...), T values, each counted so many times; the bound has the shape (...).

    All intervals with these ends on both sides, from the sample size `FIRST_ASYMPTOTIC` on, hold at
    once with a probability that is at least 1 - alpha in the limit of a large first size
    (Waudby-Smith et al. 2024, Theorem 2.2); earlier ones are infinite. A term of order 1 / T, as in
    Bernstein's inequality, makes up for skewed laws in small samples.
    """
    t = times * len(x)
    if t < FIRST_ASYMPTOTIC:
        return np.full(x.shape[1:], -np.inf)
    level = -2.0 * np.log(alpha)
    rate = (level + np.log(level) + 1.0) / _TIGHT * t
    radius = np.sqrt(x.var(0) * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    return x.mean(0) - radius - _SKEW * np.ptp(x, 0) * level / t


def gap_interval(
    gap: Floats,
    cut: Floats,
    known: Floats,
    alpha: float,
    largest_gap: float | None,
    times: float = 1.0,
) -> tuple[float, float]:
    """Ends of an interval for the mean of gaps (N,), which holds at all sample sizes at once.

    cut: (N,) how much a gap may still change. known: the interval of fewer gaps. largest_gap: no
    gap is larger; None asks for the asymptotic sequence. times: how often each gap is counted.
    """
    if not np.isfinite(cut).all():  # gamma is 1, and a run was cut off: anything may follow
        return -math.inf, math.inf

    def bound(least: Floats, before: float) -> float:
        if largest_gap is None:
            return max(before, float(asymptotic_bound(least, alpha, times)))
        return betting_bound(least, -largest_gap, largest_gap, alpha / 2.0, before, times)

    return bound(gap - cut, known[0]), -bound(-gap - cut, -known[1])
