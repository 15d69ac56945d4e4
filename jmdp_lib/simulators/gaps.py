"""Statistics of gaps: sums over runs, estimates from these, and confidence sequences.

**To add a statistic of gaps**, give `GapEstimate` a field and `GapEstimate.of` a line. If the
statistic needs another sum, add that as a field of `Sums`.

A confidence sequence for a mean holds at all sample sizes at once. So one may look after every run
and stop when the interval is narrow enough: see `lower_bound`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import ReadOnly, hot
from jmdp_lib.simulators.plans import Plan, Runs

if TYPE_CHECKING:
    from jmdp_lib.laws.brackets import GapLaw

_ROUNDING = 1e-12  # gaps below this share of the largest gap are ties
_NO_VARIATION = 1e-12  # a variance below this share of the squared mean is rounding
_ENOUGH = 5  # least number of runs that carry a variance, for a meaningful normal interval
# A gambler's stakes, and the shares of the capital that are staked so. Large stakes have large
# shares, since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_AT_ONCE = 16  # values whose profits are multiplied before a logarithm is taken
_CLOSE = 1e-3  # error of a bound, as a share of its distance from the mean
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of the allowance for skewed distributions in that sequence
FIRST_ASYMPTOTIC = 128  # sample size from which that sequence is finite


class Sums(NamedTuple):
    """Sums over N gaps that all their statistics need; sums of parts of a sample can be merged.

    square, cube, fourth: sums of powers of the gaps minus their mean. worse, tie, better: numbers
    of gaps that are certainly below zero, zero, and above zero. tail: sum of the discounts from
    which gaps are open.
    """

    size: Any
    mean: Any
    square: Any
    cube: Any
    fourth: Any
    worse: Any
    tie: Any
    better: Any
    tail: Any

    @classmethod
    def of(cls, gaps: Any, tails: Any, future: float, tie: float, xp: Any) -> Sums:
        """Sums of gaps (N,), an array of the library `xp`.

        tails: (N,) discounts; a gap may still change by its own times `future`. tie: gaps up to
        this size count as zero.
        """
        mean = float(xp.mean(gaps))
        difference = gaps - mean
        square = difference * difference
        cut = may_change(tails, future, xp)
        unsure = cut + tie
        powers = (square, square * difference, square * square)
        signs = (gaps < -unsure, (cut == 0.0) & (xp.abs(gaps) <= tie), gaps > unsure)
        sums = (float(xp.sum(x)) for x in powers)
        counts = (int(xp.count_nonzero(x)) for x in signs)
        return cls._make([gaps.shape[0], mean, *sums, *counts, float(xp.sum(tails))])

    @classmethod
    def merged(cls, parts: Sequence[Sequence[Sums]]) -> Sums:
        """Sums (P,) of P samples, merged from K parts without cancellation (Pébay 2008)."""
        rows = np.reshape(np.array(parts, float), (len(parts), -1, len(cls._fields)))
        sums = cls(*np.moveaxis(rows, 2, 0))  # (K, P) each
        n = sums.size.sum(0)
        mean = (sums.size * sums.mean).sum(0) / n
        shift = sums.mean - mean
        square = sums.square + sums.size * shift**2
        cube = sums.cube + 3.0 * shift * sums.square + sums.size * shift**3
        fourth = sums.fourth + 4.0 * shift * sums.cube + 6.0 * shift**2 * sums.square
        fourth = fourth + sums.size * shift**4
        counts = (x.sum(0) for x in (sums.worse, sums.tie, sums.better, sums.tail))
        return cls(n, mean, square.sum(0), cube.sum(0), fourth.sum(0), *counts)

    def both_ways(self, size: int) -> Sums:
        """Sums of all entries (m, m), from those of all pairs (P,); a branch ties with itself."""
        back = self._replace(mean=-self.mean, cube=-self.cube, worse=self.better, better=self.worse)
        rows, columns = np.triu_indices(size, 1)
        tables = np.zeros((len(self), size, size))
        tables[:, rows, columns] = self
        tables[:, columns, rows] = back
        sums = Sums(*tables)
        for table in (sums.size, sums.tie):
            np.fill_diagonal(table, self.size.max(initial=3))
        return sums


def may_change(tails: Any, future: float, xp: Any = np) -> Any:
    """Largest later changes (N,) of gaps: 0 for a final gap, even if `future` is infinite."""
    return tails * future if future < math.inf else xp.where(tails > 0.0, future, tails)


Column = tuple[Any, Any]
"""Gaps or returns (N,), and their tails (N,), the discounts from which they are open."""


def gap_columns(plan: Plan, runs: Runs, xp: Any) -> list[Column]:
    """Gaps of all pairs, and their tails, which are zero for final gaps."""
    columns = []
    for (i, j), one in zip(plan.pairs, runs.coalesced, strict=True):
        either = xp.maximum(runs.tails[i, :], runs.tails[j, :])
        columns.append((runs.gap(i, j), xp.where(one, 0.0, either)))
    return columns


def return_columns(plan: Plan, runs: Runs, xp: Any) -> list[Column]:
    """Returns of all branches, and their tails. If gamma is 1, returns end at the horizon."""
    least = 1.0 if plan.gamma == 1.0 else 0.0
    tails = xp.where(runs.tails > least, runs.tails, 0.0)
    return [(runs.total(b), tails[b, :]) for b in range(len(plan.kinds))]


def sums_of(plan: Plan, columns: Sequence[Any], seen: tuple[float, float], xp: Any) -> list[Sums]:
    """Sums of columns, each of type `Column`. seen: the lowest and the highest reward."""
    spread = seen[1] - seen[0]
    tie = _ROUNDING * plan.up_to_horizon(spread)
    future = plan.future(spread)
    return [Sums.of(x, tails, future, tie, xp) for x, tails in columns]


def _values(
    plan: Plan, parts: Sequence[Sequence[Sums]], seen: tuple[float, float]
) -> dict[str, Floats]:
    """Values of `GapEstimate`, from parts of the sums of returns; nan if there are none.

    After a cut, rewards are estimated by the one in [low, high] that is nearest to zero.
    """
    if not parts:
        return dict.fromkeys(("value", "value_error"), np.full(len(plan.kinds), math.nan))
    low, high = seen
    common = 0.0 if plan.gamma == 1.0 else min(max(low, 0.0), high)
    more = plan.future(max(high - common, common - low))
    s = Sums.merged(parts)
    tail = s.tail / s.size
    error = np.sqrt(s.square / (s.size - 1) / s.size)
    mean = s.mean + tail * plan.future(common)
    return {"value": mean, "value_error": error + may_change(tail, more)}


Statistic = Literal["mean", "prob_worse", "prob_tie", "prob_better"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GapEstimate(ReadOnly):
    """Estimates of gaps, $G = Z(s, a) - Z(s, b)$, with their standard errors, (m, m) each.

    Entry [i, j] is about actions[i] against actions[j] of the m actions that were requested.

    Attributes:
        mean, mean_error: the unbiased estimate of $E G$, and its standard error.
        variance, variance_error: the unbiased estimate of $Var G$, and its standard error.
        prob_worse, prob_tie, prob_better: shares of runs with $G < 0$, $G = 0$ and $G > 0$,
            whatever follows the cut. In the other runs, the cut leaves the sign of $G$ open.
        truncation_error: largest change of $E G$ by cuts, at the horizon or earlier at a time limit
            of the environment. For a simulator it assumes that later rewards lie between the
            lowest and the highest reward of all runs (or 0, where episodes can end).
        num_runs: number of runs; an array for a decision, where it differs between gaps.
        returns: (num_runs, m), the returns of the branches if `estimate_gaps` kept them, or None.
        gaps: (P, num_runs, 2) if returns were kept, the ends between which each gap of a run lies,
            for all pairs i < j in their order; used by `law`.
        largest_gap: upper bound of the size of any gap, infinite if none is known; used by `law`.
        entropy: an integer that reproduces the runs when it is passed as `rng`. A `Decision` has
            its own.
        value, value_error: (m,), the estimate of $E Z$ of each branch, and its error: the standard
            error plus the largest change by cuts. If gamma is 1, $Z$ is the return up to the
            horizon. Most runs end when their branches have coalesced, but a value needs runs to the
            end. So values come from a few extra runs; to compare actions, use `mean`, which is more
            exact. The errors ignore events that no run showed. Values are nan if fewer than three
            runs went to the end, as in most decisions: call `estimate_gaps(...).value` instead.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(3, gamma=0.8)
        >>> options = {"actions": [0, 1, 2], "state": 4, "num_runs": 100, "rng": 0}
        >>> estimate = jl.simulators.estimate_gaps(jm, jl.goal_policy(3), **options)
        >>> estimate
        GapEstimate(gaps=6, num_runs=100, means up to 1.607, standard errors up to 0.06)
        >>> low, high = estimate.interval("mean", level=0.95)
        >>> print(low[0, 2].round(2), high[0, 2].round(2))
        1.5 1.71
        >>> print(f"after action 0: {estimate.value[0]:.2f} +- {estimate.value_error[0]:.2f}")
        after action 0: 3.53 +- 0.16
        >>> kept = jl.simulators.estimate_gaps(jm, jl.goal_policy(3), **options, keep_returns=True)
        >>> print("the median is from {:.2f} to {:.2f}".format(*kept.law(0, 2).quantile(0.5)))
        the median is from 1.44 to 1.89
    """

    mean: Floats
    mean_error: Floats
    variance: Floats
    variance_error: Floats
    prob_worse: Floats
    prob_tie: Floats
    prob_better: Floats
    truncation_error: Floats
    num_runs: Ints | int
    value: Floats
    value_error: Floats
    returns: Any = None
    entropy: int | None = None
    gaps: Any = None
    largest_gap: float = math.inf

    @classmethod
    def of(
        cls,
        plan: Plan,
        parts: Sequence[Sequence[Sums]],
        value_parts: Sequence[Sequence[Sums]],
        seen: tuple[float, float],
        **others: Any,
    ) -> GapEstimate:
        """Estimates from parts of the sums of all gaps and of the returns of all branches.
        seen: the lowest and the highest reward. The error of the variance is that of the jackknife,
        which assumes no distribution.
        """
        s = Sums.merged(parts).both_ways(len(plan.kinds))
        n = s.size
        variance = s.square / (n - 1)
        spread = np.sqrt(np.maximum(s.fourth - s.square**2 / n, 0.0) / (n - 1))  # of the squares
        return cls(
            mean=s.mean,
            mean_error=np.sqrt(variance / n),
            variance=variance,
            variance_error=n / (n - 2) * spread / np.sqrt(n),
            prob_worse=s.worse / n,
            prob_tie=s.tie / n,
            prob_better=s.better / n,
            truncation_error=may_change(s.tail / n, plan.future(seen[1] - seen[0])),
            **{"num_runs": n.astype(int)} | _values(plan, value_parts, seen) | others,
        )

    def __repr__(self) -> str:
        size = len(self.mean)
        largest = np.abs(self.mean).max()
        counts = f"gaps={size * (size - 1):,}, num_runs={np.max(self.num_runs):,}"
        errors = f"standard errors up to {self.mean_error.max():.2g}"
        return f"GapEstimate({counts}, means up to {largest:.4g}, {errors})"

    def interval(self, name: Statistic, *, level: float = 0.95) -> tuple[Floats, Floats]:
        """Ends of confidence intervals, entry by entry.

        Intervals of "mean" are normal, with the truncation error added. A warning says if they rest
        on too few runs, such as the few that met a rare event. Intervals of "prob_worse",
        "prob_tie" and "prob_better" are Wilson's and allow for either sign of an open gap.

        Args:
            name: name of the estimate that the intervals are for.
            level: probability with which an interval holds, in (0, 1).

        Returns:
            Lower and upper ends, of the shape of the estimate.
        """
        value = getattr(self, checks.one_of("name", name, get_args(Statistic)))
        z = NormalDist().inv_cdf((1.0 + checks.fraction("level", level)) / 2.0)
        if name == "mean":
            self._warn_of_few_runs()
            reach = z * self.mean_error + self.truncation_error
            return value - reach, value + reach
        unsure = 1.0 - self.prob_worse - self.prob_tie - self.prob_better
        return self._wilson(value, -z), self._wilson(value + unsure, z)

    def law(self, i: int, j: int, *, alpha: float = 0.05) -> GapLaw:
        """Distribution of gap [i, j]: `quantile`, `cvar` and probabilities, as pairs (low, high).

        All of them hold at once with probability $1 - alpha$, as in `GapLaw.from_sample`, and allow
        for changes by cuts. The estimate must come from `estimate_gaps` with `keep_returns=True`.

        A sample alone says nothing about rare gaps that it does not show. So the ends of `cvar`,
        and of extreme quantiles, are finite only if the range of the rewards is known: a JMDP and
        an `ImplicitJMDP` know theirs, and a simulator may declare a `reward_range`. If gamma is 1,
        this bounds the returns only if every run ended within the horizon.

        Args:
            i: index of the first action of the gap, in the order in which actions were passed.
            j: index of the other action.
            alpha: probability that any bound fails.

        Returns:
            Brackets of the distribution.

        Raises:
            ValueError: no gaps were kept, or i and j are one action.
        """
        from jmdp_lib.laws.brackets import sampled_law  # imports all of jmdp_lib.laws

        if self.gaps is None:
            raise ValueError(
                "no gap was kept: pass keep_returns=True to estimate_gaps (a comparison has no "
                "distribution of gaps, since it stops once it is decided)"
            )
        size = len(self.mean)
        pair = (checks.index("i", i, size), checks.index("j", j, size))
        if i == j:
            raise ValueError(f"i and j must be two actions, got {i} twice")
        ends = self.gaps[[*combinations(range(size), 2)].index((min(pair), max(pair)))]
        if i > j:
            ends = -ends[:, ::-1]
        return sampled_law(pair, ends, alpha, (-self.largest_gap, self.largest_gap))

    def _warn_of_few_runs(self) -> None:
        """Warn if few runs carry a variance.

        Their number is n / kurtosis: k, if the variance comes from an event that k runs met.
        """
        n = np.asarray(self.num_runs)
        square = self.variance**2
        enough = n * square >= _ENOUGH * (square + n * self.variance_error**2)
        varied = self.variance > _NO_VARIATION * self.mean**2
        few = ~(enough & varied)
        np.fill_diagonal(few, False)
        if few.any():
            warnings.warn(
                f"the intervals of {few.sum():,} gaps rest on too few runs: fewer than {_ENOUGH} "
                f"of {n.max():,} carry the variance, and rarer events were not seen",
                stacklevel=3,
            )

    def _wilson(self, share: Floats, z: float) -> Floats:
        """End of Wilson's interval for a share of the runs: the upper one if z > 0."""
        n = np.maximum(self.num_runs, 1)
        error = np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
        return (share + z**2 / (2 * n) + z * error) / (1 + z**2 / n)


@hot
def _capital(z: Any, mean: float) -> float:
    """Capital of a gambler after bets that the mean of values z (T,) exceeds `mean`."""
    capital = 0.0
    for j in range(_BETS.size):
        kept = 1.0 - _BETS[j]
        stake = _BETS[j] / mean
        logarithm = _LOG_SHARES[j]
        for start in range(0, z.size, _AT_ONCE):
            profit = 1.0
            for t in range(start, min(start + _AT_ONCE, z.size)):
                profit *= kept + stake * z[t]
            logarithm += math.log(profit)
        capital += math.exp(logarithm)
    return capital


def betting_bound(
    x: Floats, low: float, high: float, alpha: float, earlier: float = -np.inf
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the distribution, the bounds for all T at once hold with probability 1 - alpha. A
    gambler bets that the mean exceeds m, at odds that are fair if the mean is m. The gambler starts
    with capital 1 and splits it into shares. Share $j$ stakes the part $2^{-j}$ of its present
    capital on every value, so some share is close to the best stake. If the mean is at most m, the
    capital ever reaches 1 / alpha with probability at most alpha. The bound is the largest m
    against which the capital is at least 1 / alpha now (Waudby-Smith and Ramdas 2024, Section 4).
    It is exact to a thousandth of its distance from the sample mean, and never below `earlier`, the
    bound from fewer values.
    """
    if low == high:
        return low
    z = np.clip((x - low) / (high - low), 0.0, 1.0)
    centre = top = float(z.mean())  # no bet against the sample mean wins
    bottom = max((earlier - low) / (high - low), 0.0)
    while top - bottom > _CLOSE * (centre - bottom):
        middle = 0.5 * (bottom + top)
        enough = _capital(z, middle) >= 1.0 / alpha
        bottom, top = (middle, top) if enough else (bottom, middle)
    return low + (high - low) * bottom


def asymptotic_bound(x: Floats, alpha: float) -> Any:
    """A lower end of an asymptotic confidence sequence for the mean of values x.

    x: (T, ...), T values; the bound has the shape (...).

    The two-sided intervals with such ends, from the sample size `FIRST_ASYMPTOTIC` on, all hold at
    once with a probability of at least 1 - alpha, in the limit of a large first sample size
    (Waudby-Smith et al. 2024, Theorem 2.2); earlier intervals are infinite. A term of order 1 / T,
    as in Bernstein's inequality, allows for skewed distributions in small samples.
    """
    t = len(x)
    level = -2.0 * np.log(alpha)
    rate = (level + np.log(level) + 1.0) / _TIGHT * t
    radius = np.sqrt(x.var(0) * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    bound = x.mean(0) - radius - _SKEW * np.ptp(x, 0) * level / t
    return np.where(t < FIRST_ASYMPTOTIC, -np.inf, bound)


def lower_bound(x: Floats, earlier: float, alpha: float, largest: float | None) -> float:
    """Lower end of an interval for a mean gap, which holds at all sample sizes at once.

    x: (T,) gaps minus their largest later changes. earlier: the end from fewer gaps. largest: upper
    bound of the size of gaps; None selects the asymptotic sequence.
    """
    if not np.isfinite(x).all():  # gamma is 1, and a run was cut off: the gap is unbounded
        return -math.inf
    if largest is None:
        return max(earlier, float(asymptotic_bound(x, alpha)))
    return betting_bound(x, -largest, largest, alpha / 2.0, earlier)
