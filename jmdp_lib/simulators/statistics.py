"""Sample statistics, tests and confidence sequences: what estimates and decisions rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats

# A gambler's stakes, and the shares of the capital that are staked so; large ones count for more,
# since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_CLOSE = 1e-3  # of the distance of a bound from the mean: how exactly it is worked out
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of its allowance for skewed laws


class GapSums(NamedTuple):
    """Sums over N gaps, all that their statistics need: parts of a sample merge into the whole.

    mean: (...). central: (3, ...), sums of second, third and fourth powers of what the gaps differ
    from their mean. signs: (4, ...), how many are below, at and above zero, and open at zero.
    """

    num_gaps: int
    mean: Floats
    central: Floats
    signs: Floats

    @classmethod
    def of(cls, gaps: Any, cut: Any, rounding: float, xp: Any) -> GapSums:
        """Of gaps (N,), an array of the library `xp`.

        cut: (N,) how much a gap may still change; it is zero where the gap is final. Gaps up to
        `cut` + `rounding` count as zero.
        """
        unsure = cut + rounding
        mean = xp.mean(gaps)
        apart = gaps - mean
        squares = apart * apart
        below = xp.count_nonzero(gaps < -unsure)
        above = xp.count_nonzero(gaps > unsure)
        left_open = xp.count_nonzero((xp.abs(gaps) <= unsure) & (cut > 0.0))
        powers = [float(xp.sum(squares * part)) for part in (1.0, apart, squares)]
        zero = gaps.shape[0] - int(below) - int(above)
        counts = [int(below), zero, int(above), int(left_open)]
        return cls(gaps.shape[0], np.array(float(mean)), np.array(powers), np.array(counts, float))

    def plus(self, other: GapSums) -> GapSums:
        """Of both samples together (Pébay 2008, eqs. 1.1 to 1.3): nothing large is subtracted."""
        total = self.num_gaps + other.num_gaps
        first = self.num_gaps / total
        second = other.num_gaps / total
        step = other.mean - self.mean
        square, cube, fourth = self.central + other.central
        (own2, own3, _), (its2, its3, _) = self.central, other.central
        weight = self.num_gaps * second
        fourth += weight * step**4 * (first**2 - first * second + second**2)
        fourth += 6.0 * step**2 * (first**2 * its2 + second**2 * own2)
        fourth += 4.0 * step * (first * its3 - second * own3)
        cube += weight * step**3 * (first - second) + 3.0 * step * (first * its2 - second * own2)
        square += weight * step**2
        central = np.stack([square, cube, fourth])
        return GapSums(total, self.mean + second * step, central, self.signs + other.signs)

    def statistics(self) -> Any:
        """(8, ...) mean and variance with their standard errors, and shares of signs.

        The error of the variance is the jackknife's: no law is assumed. The shares are those below,
        at and above zero, and those at zero whose sign the cut left open.
        """
        n = self.num_gaps
        square, _, fourth = self.central
        variance = square / (n - 1)
        spread = np.sqrt(np.maximum(fourth - square**2 / n, 0.0) / (n - 1))  # of the squares
        errors = np.sqrt(variance / n), n / (n - 2) * spread / np.sqrt(n)
        return np.stack([self.mean, errors[0], variance, errors[1], *self.signs / n])


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
    x: Floats, low: float, high: float, alpha: float, known: float = -np.inf
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the distribution, the bounds for all T at once hold with probability 1 - alpha. A
    gambler bets that the mean exceeds m, at odds that are fair if it is equal. The gambler starts
    with 1 and splits it into shares. Share $j$ stakes $2^{-j}$ of what it owns by then on every
    value, so that some share stakes about the best part. If the mean is at most m, the probability
    that the capital ever reaches 1 / alpha is at most alpha. The bound is the largest m against
    which it is as large by now (Waudby-Smith and Ramdas 2024, Section 4), to a thousandth of its
    distance from the sample mean.

    known: the bound of fewer values, which the new one does not fall below.
    """
    if low == high:
        return low
    z, counts = np.unique(np.clip((x - low) / (high - low), 0.0, 1.0), return_counts=True)
    centre = top = float(counts @ z / counts.sum())  # nothing is ever won against the sample mean
    bottom = max((known - low) / (high - low), 0.0)
    while top - bottom > _CLOSE * (centre - bottom):
        middle = 0.5 * (bottom + top)
        capital = np.logaddexp.reduce(_LOG_SHARES + counts @ _log_growth(z[:, None], middle, _BETS))
        bottom, top = (middle, top) if capital >= -np.log(alpha) else (bottom, middle)
    return low + (high - low) * bottom


def _log_growth(z: Any, mean: float, bet: Any) -> Any:
    """Logarithm of the factor that a stake grows by on values z in [0, 1]."""
    with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
        return np.log1p(bet * (z / mean - 1.0))


def asymptotic_sequence(x: Floats, alpha: float, first: int) -> tuple[Floats, Floats]:
    """Lower and upper ends of an asymptotic confidence sequence for the mean of values x.

    x: (T, ...), T values one after the other; both ends have this shape.

    All intervals from the sample size `first` on hold at once with a probability that is at
    least 1 - alpha in the limit of large `first` (Waudby-Smith et al. 2024, Theorem 2.2); earlier
    ones are infinite. A term of order 1 / T, as in Bernstein's inequality, makes up for skewed laws
    in small samples.
    """
    t = np.arange(1.0, len(x) + 1.0).reshape(-1, *(1,) * (x.ndim - 1))
    shifted = x - x[:1]
    mean = np.cumsum(shifted, 0) / t
    variance = np.maximum(np.cumsum(shifted**2, 0) / t - mean**2, 0.0)
    level = -2.0 * np.log(alpha)
    rate = (level + np.log(level) + 1.0) / _TIGHT * t
    radius = np.sqrt(variance * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    seen = np.maximum.accumulate(x, 0) - np.minimum.accumulate(x, 0)
    radius += _SKEW * seen * level / t
    radius[: first - 1] = np.inf
    return x[:1] + mean - radius, x[:1] + mean + radius


class GapIntervals:
    """Confidence intervals of all mean gaps of m branches, which narrow as runs come in.

    alike: (m, m) where gaps are zero for certain. alpha: probability with which any of them may
    fail. first: runs before an asymptotic sequence says anything. intervals: (m, m, 2), entry
    [i, j] for branch i against j. centres: (m, m, 2), means of gaps, less and plus what may have
    been cut off.
    """

    def __init__(self, alike: NDArray[np.bool_], alpha: float, first: int) -> None:
        self.alike = alike
        self.alpha = alpha
        self.first = first
        self.intervals = np.full((*alike.shape, 2), [-math.inf, math.inf])
        self.intervals[alike] = 0.0
        self.centres = np.full((*alike.shape, 2), math.nan)
        self.centres[alike] = 0.0

    def narrow(
        self, pair: tuple[int, int], gap: Floats, cut: Floats, largest_gap: float | None
    ) -> None:
        """New intervals for two of the branches, from all runs that played both.

        gap: (N,). cut: (N,) how much it may still change. largest_gap: no gap is larger; None asks
        for the asymptotic sequence.
        """
        a, b = pair
        if self.alike[a, b]:
            return
        low, high = self._ends(gap - cut, gap + cut, largest_gap, self.intervals[a, b])
        self.intervals[a, b] = (low, high)
        self.intervals[b, a] = (-high, -low)
        centres = (gap.mean() - cut.mean(), gap.mean() + cut.mean())
        self.centres[a, b] = centres
        self.centres[b, a] = (-centres[1], -centres[0])

    def _ends(
        self, least: Floats, most: Floats, largest_gap: float | None, known: Floats
    ) -> tuple[float, float]:
        """Of an interval for the mean of gaps (N,) that lie between `least` and `most`.

        known: the interval so far.
        """
        if not np.isfinite(least).all():  # gamma is 1, and a run was cut off: anything may follow
            return -math.inf, math.inf
        alpha = self.alpha / math.comb(len(self.alike), 2)
        if largest_gap is None:
            below, _ = asymptotic_sequence(least, alpha, self.first)
            _, above = asymptotic_sequence(most, alpha, self.first)
            return float(below.max()), float(above.min())
        support = (-largest_gap, largest_gap)
        low = betting_bound(least, *support, alpha / 2.0, known[0])
        return low, -betting_bound(-most, *support, alpha / 2.0, -known[1])

    def standing(self, chosen: Sequence[int], margin: float) -> Standing:
        """How well some of the branches are told apart."""
        pairs = np.ix_(chosen, chosen)
        return Standing(self.intervals[pairs], self.centres[pairs], self.alike[pairs], margin)


class Standing(NamedTuple):
    """How well k branches are told apart, by their part of `GapIntervals`.

    intervals, centres: (k, k, 2). alike: (k, k). margin: gaps up to it do not matter.
    """

    intervals: Floats
    centres: Floats
    alike: NDArray[np.bool_]
    margin: float

    def kept_margin(self) -> float:
        """The margin that all intervals keep."""
        return float(-self.intervals[..., 0].min())

    def growth_to_decide(self) -> float:
        """About how many times as many runs decide; infinite where none would do.

        This supposes that means stay and intervals shrink as 1 / sqrt(runs). The largest mean beats
        each other one, or is close to it; those that are close to it must be so to each other, too.
        """
        if not np.isfinite(self.intervals).all():
            return math.inf
        best = max(range(len(self.centres)), key=lambda i: self.centres[i].sum())
        others = [i for i in range(len(self.centres)) if i != best]
        close = [i for i in others if self.growth_to_tie(best, i) < self.growth_to_beat(best, i)]
        growths = [self.growth_to_beat(best, i) for i in others if i not in close]
        growths += [self.growth_to_tie(*pair) for pair in combinations([best, *close], 2)]
        return max(1.0, *growths)

    def growth_to_beat(self, a: int, b: int) -> float:
        """How many times as many runs would show that a beats b by more than the margin."""
        return self._growth(a, b, self.margin)

    def growth_to_tie(self, a: int, b: int) -> float:
        """How many times as many runs would show that they differ by at most the margin."""
        if self.alike[a, b]:
            return 1.0
        return max(self._growth(a, b, -self.margin), self._growth(b, a, -self.margin))

    def _growth(self, a: int, b: int, goal: float) -> float:
        """How many times as many runs lift the lower end of an interval above a goal."""
        centre = self.centres[a, b, 0]
        if centre <= goal:
            return math.inf
        return float(((centre - self.intervals[a, b, 0]) / (centre - goal)) ** 2)


def normal_quantile(level: float) -> float:
    """z with P(|N(0, 1)| <= z) = level."""
    return NormalDist().inv_cdf((1.0 + checks.real("level", level, "(0, 1)")) / 2.0)
