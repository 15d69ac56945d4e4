"""Sample statistics, tests and confidence sequences: what estimates and decisions rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints

# A gambler's stakes, and the shares of the capital that are staked so; large ones count for more,
# since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_CLOSE = 1e-3  # of the distance of a bound from the mean: how exactly it is worked out
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of its allowance for skewed laws


def mean_and_error(x: ArrayLike) -> tuple[Any, Any]:
    """Mean of a sample (M, ...), two values or more, and its standard error, each (...)."""
    values = np.asarray(x)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def variance_and_error(x: ArrayLike) -> tuple[Any, Any]:
    """Unbiased variance of a sample (M, ...), three values or more, and its standard error.

    The error is the jackknife's: no law is assumed, unlike in variance * sqrt(2 / (M - 1)).
    """
    return mean_and_error(variance_values(x))


def variance_values(x: Any) -> Floats:
    """(M, ...) jackknife values of a sample (M, ...): their mean is its unbiased variance."""
    size = len(x)
    squares = (x - np.mean(x, 0)) ** 2
    return (size * squares - squares.sum(0) / (size - 1)) / (size - 2)


def gap_statistics(gaps: Floats, unsure: Floats | float) -> Any:
    """(7, ...) of gaps (N, ...): mean and variance with their errors, shares below, at, above zero.

    unsure: gaps of this size count as zero.
    """
    signs = gaps < -unsure, np.abs(gaps) <= unsure, gaps > unsure
    shares = [sign.mean(0) for sign in signs]
    return np.stack([*mean_and_error(gaps), *variance_and_error(gaps), *shares])


class GapSums(NamedTuple):
    """Sums over N gaps, all that their statistics need: parts of a sample merge into the whole.

    mean: (...). central: (3, ...), sums of second, third and fourth powers of what the gaps differ
    from their mean. signs: (3, ...), how many are below, at and above zero.
    """

    num_gaps: int
    mean: Floats
    central: Floats
    signs: Floats

    @classmethod
    def of(cls, gaps: Any, unsure: Any, xp: Any) -> GapSums:
        """Of gaps (N,), an array of the library `xp`. unsure: gaps of this size count as zero."""
        mean = xp.mean(gaps)
        apart = gaps - mean
        squares = apart * apart
        below = xp.count_nonzero(gaps < -unsure)
        above = xp.count_nonzero(gaps > unsure)
        powers = [float(xp.sum(squares * part)) for part in (1.0, apart, squares)]
        counts = [int(below), gaps.shape[0] - int(below) - int(above), int(above)]
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
        """(7, ...) as `gap_statistics` of all the gaps."""
        n = self.num_gaps
        square, _, fourth = self.central
        variance = square / (n - 1)
        spread = np.sqrt(np.maximum(fourth - square**2 / n, 0.0) / (n - 1))  # of the squares
        errors = np.sqrt(variance / n), n / (n - 2) * spread / np.sqrt(n)
        return np.stack([self.mean, errors[0], variance, errors[1], *self.signs / n])


def coupling_saving(runs: Sequence[Sequence[float]], num_branches: int) -> float:
    """What `Decision.saving` is, from the returns (N, m) of whole runs; nan if there are none."""
    returns = np.array(runs or [[math.nan] * num_branches])
    alone = returns.var(0).sum()
    gaps = max(num_branches * alone - returns.sum(1).var(), 0.0)  # Var(Z_a - Z_b) over all pairs
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide((num_branches - 1) * alone, gaps))


def unseen_variance(
    mean: Floats, num_draws: Ints | int, ends: tuple[float, float] | None, gamma: float
) -> Floats:
    """What `EstimatedGaps.unseen_variance` is for gaps that were drawn, entry by entry.

    With rewards in `ends`, no gap is farther from the mean than that of the two worst returns.
    """
    low, high = (0.0, np.inf) if ends is None else ends
    farthest = (high - low) / (1.0 - gamma) + np.abs(mean)
    return np.asarray(farthest**2 / num_draws)


def betting_bound(
    x: Floats, low: float, high: float, alpha: float, known: float = -np.inf
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the law, the bounds for all T at once hold with probability 1 - alpha. A gambler bets
    that the mean exceeds a number, at odds that are fair if it is equal, and splits a capital of 1
    into shares: share $j$ stakes $2^{-j}$ of what it owns by then on every value, so that some
    share stakes about the best part for any law. The bound is the largest mean against which the
    gambler has come to own 1 / alpha (Waudby-Smith and Ramdas 2024, Section 4), to a thousandth of
    its distance from the sample mean.

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


def asymptotic_sequence(x: ArrayLike, alpha: float, first: int) -> tuple[Floats, Floats]:
    """Lower and upper ends of an asymptotic confidence sequence for the mean of values x.

    x: (T, ...), T values one after the other; both ends have this shape.

    All intervals from the sample size `first` on hold at once with a probability that is at
    least 1 - alpha in the limit of large `first` (Waudby-Smith et al. 2024, Theorem 2.2); earlier
    ones are infinite. A term of order 1 / T, as in Bernstein's inequality, makes up for skewed laws
    in small samples.

    Example:
        >>> import numpy as np
        >>> from jmdp_lib.simulators.statistics import asymptotic_sequence
        >>> values = np.random.default_rng(0).normal(1.0, 1.0, size=2000)
        >>> low, high = asymptotic_sequence(values, alpha=0.05, first=128)
        >>> print(f"after 2,000 values {low[-1]:.2f} to {high[-1]:.2f}; before the 128th, {low[0]}")
        after 2,000 values 0.90 to 1.04; before the 128th, -inf
    """
    x = checks.as_array("x", x).astype(float)
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
        self, chosen: Sequence[int], returns: Floats, labels: Ints, rest: float,
        largest_gap: float | None,
    ) -> None:  # fmt: skip
        """New intervals for some of the branches, from all runs so far.

        returns, labels: (N, m), as in `Run`. rest: how much a gap that is open at the horizon may
        still change. largest_gap: no gap is larger; None asks for the asymptotic sequence.
        """
        alpha = self.alpha / math.comb(len(self.alike), 2)
        for a, b in combinations(chosen, 2):
            if self.alike[a, b]:
                continue
            gap = returns[:, a] - returns[:, b]
            cut = np.where(labels[:, a] != labels[:, b], rest, 0.0)
            known = self.intervals[a, b]
            low, high = self._ends(gap - cut, gap + cut, largest_gap, alpha, known)
            self.intervals[a, b] = (low, high)
            self.intervals[b, a] = (-high, -low)
            centres = (gap.mean() - cut.mean(), gap.mean() + cut.mean())
            self.centres[a, b] = centres
            self.centres[b, a] = (-centres[1], -centres[0])

    def _ends(
        self, least: Floats, most: Floats, largest_gap: float | None, alpha: float, known: Floats
    ) -> tuple[float, float]:
        """Of an interval for the mean of gaps (N,) that lie between `least` and `most`.

        known: the interval so far.
        """
        if not np.isfinite(least).all():  # gamma is 1, and a run was cut off: anything may follow
            return -math.inf, math.inf
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
