"""Statistics of gaps: sums of runs, the estimates that these give, and confidence sequences.

**One more statistic of gaps** is a field of `GapStatistics`, with a line in `of`, and one in
`flipped` if swapping branches changes it. If it needs another sum, that is a field of `GapSums`.

A confidence sequence around a mean holds at all sample sizes at once, so that one may look after
every run and stop when it says enough: `gap_interval`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import ReadOnly

if TYPE_CHECKING:
    from jmdp_lib.laws.brackets import GapLaw

_NO_VARIATION = 1e-12  # of a squared mean: less variance than this is rounding
_ENOUGH = 5  # runs that carry a variance, for a normal interval to mean something
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

    square, cube, fourth: of powers of what gaps differ from their mean. below, zero, above: how
    many are. unsure: how many are at zero since the cut at the horizon, or rounding, left their
    sign open. apart: of the discounts from which on gaps are open.
    """

    size: float
    mean: float
    square: float
    cube: float
    fourth: float
    below: float
    zero: float
    above: float
    unsure: float
    apart: float

    @classmethod
    def of(
        cls, gaps: Any, apart: Any, rest: float, rounding: tuple[float, float], xp: Any
    ) -> GapSums:
        """Of gaps (N,), an array of the library `xp`.

        apart: (N,) a gap may still change by this times `rest`. rounding: up to which sizes other
        gaps are ties, and may be anything. Whatever may be a tie counts as zero.
        """
        tie, lost = rounding
        cut = may_change(apart, rest, xp)
        open_up_to = cut + lost
        mean = float(xp.mean(gaps))
        difference = gaps - mean
        square = difference * difference
        zero = xp.abs(gaps) <= open_up_to
        unsure = zero & ((cut > 0.0) | (xp.abs(gaps) > tie))
        return cls(
            size=gaps.shape[0],
            mean=mean,
            square=float(xp.sum(square)),
            cube=float(xp.sum(square * difference)),
            fourth=float(xp.sum(square * square)),
            below=float(xp.count_nonzero(gaps < -open_up_to)),
            zero=float(xp.count_nonzero(zero)),
            above=float(xp.count_nonzero(gaps > open_up_to)),
            unsure=float(xp.count_nonzero(unsure)),
            apart=float(xp.sum(apart)),
        )


def may_change(apart: Any, rest: float, xp: Any = np) -> Any:
    """(N,) how much gaps may still change: none that is final, even if `rest` is infinite."""
    return apart * xp.where(apart > 0.0, xp.full_like(apart, rest), xp.zeros_like(apart))


@dataclass(frozen=True, eq=False)
class GapStatistics:
    """Estimates for P gaps, arrays (P,); `GapEstimate` says what they are.

    truncation_error, prob_open: since runs are cut off.
    """

    mean: Floats
    mean_error: Floats
    variance: Floats
    variance_error: Floats
    prob_worse: Floats
    prob_tie: Floats
    prob_better: Floats
    truncation_error: Floats
    prob_open: Floats

    @classmethod
    def of(cls, parts: Sequence[Sequence[GapSums]], rest: float) -> GapStatistics:
        """Of the parts of one sample, which are merged (Pébay 2008): nothing large is subtracted.

        The error of the variance is the jackknife's: no law is assumed. parts: of all gaps each.
        rest: how much a gap may change that is open from the start.
        """
        rows = np.reshape(np.array(parts, float), (len(parts), -1, len(GapSums._fields)))
        sums: Any = GapSums(*np.moveaxis(rows, 2, 0))  # (parts, P) each
        n = sums.size.sum(0)
        mean = (sums.size * sums.mean).sum(0) / n
        shift = sums.mean - mean
        fourth = sums.fourth + 4.0 * shift * sums.cube + 6.0 * shift**2 * sums.square
        fourth = np.sum(fourth + sums.size * shift**4, axis=0)
        square = np.sum(sums.square + sums.size * shift**2, axis=0)
        variance = square / (n - 1)
        spread = np.sqrt(np.maximum(fourth - square**2 / n, 0.0) / (n - 1))  # of the squares
        return cls(
            mean=mean,
            mean_error=np.sqrt(variance / n),
            variance=variance,
            variance_error=n / (n - 2) * spread / np.sqrt(n),
            prob_worse=sums.below.sum(0) / n,
            prob_tie=sums.zero.sum(0) / n,
            prob_better=sums.above.sum(0) / n,
            truncation_error=may_change(sums.apart.sum(0) / n, rest),
            prob_open=sums.unsure.sum(0) / n,
        )

    def flipped(self) -> GapStatistics:
        """Of the other branches against these: what is worse for one is better for the other."""
        return replace(
            self, mean=-self.mean, prob_worse=self.prob_better, prob_better=self.prob_worse
        )

    def tables(self, size: int) -> dict[str, Any]:
        """All fields as (m, m), from those of all pairs i < j; no branch differs from itself."""
        above = np.triu_indices(size, 1)
        other = self.flipped()
        tables = {field.name: np.zeros((size, size)) for field in fields(GapStatistics)}
        tables["prob_tie"] += np.eye(size)
        for name, table in tables.items():
            table[above] = getattr(self, name)
            table.T[above] = getattr(other, name)
        return tables


def value_sums(returns: Any, left: Any, offset: float, xp: Any) -> GapSums:
    """Of returns (N,) of whole runs of one branch, as if they were gaps.

    left: (N,) the discounts from which on they are cut. offset: a part that they are without.
    """
    sums = GapSums.of(returns, left, 0.0, (0.0, 0.0), xp)
    return sums._replace(mean=sums.mean + offset)


Statistic = Literal["mean", "prob_worse", "prob_tie", "prob_better"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GapEstimate(GapStatistics, ReadOnly):
    """Estimates of gaps, $G = Z(s, a) - Z(s, b)$, with their standard errors, all of one shape.

    `estimate_gaps` has arrays (m, m), entry [i, j] about actions[i] against actions[j] of the m
    actions that were asked for; or (K,) for K rows (state, action, other action).

    Attributes:
        mean, mean_error: the unbiased estimate of $E G$, and its standard error.
        variance, variance_error: the unbiased estimate of $Var G$, and its standard error.
        prob_worse, prob_tie, prob_better: shares of runs with $G < 0$, $G = 0$ and $G > 0$. A gap
            whose sign the cut at the horizon, or the rounding of returns, may have changed counts
            as 0.
        truncation_error: how far cuts may have moved $E G$, at the horizon, or earlier by a time
            limit of the environment; of a simulator, if later rewards are like those that were
            seen, or 0 where episodes can end.
        num_runs: runs, or pairs, per gap; an array where gaps have different numbers of them.
        returns: (num_runs, m) of the branches, if `estimate_gaps` was asked to keep them, or None.
        gaps, largest_gap: (num_runs, P, 2), if returns were kept, what `law` is made of: the ends
            between which gap p of a run lies, of the pairs i < j in their order; and what no gap
            exceeds by size, infinite if nothing says so.
        prob_open: share of runs that count as $G = 0$ only since the cut, or rounding, left their
            sign open.
        entropy: an integer that repeats the runs when it is passed as `rng`. A `Decision` has its
            own.
        value, value_error: (m,), or (K, 2) of both actions of every row: the estimate of $E Z$ of
            each branch, what it earns by itself, and its error, the standard error plus how far
            cuts may have moved the estimate. If gamma is 1, $Z$ is what the steps of the horizon
            earn. Values take whole runs, and most runs end where their branches are one. So those
            of a simulator come from a few runs more, and those of a decision from its first runs:
            compare by `mean`, which is more exact. Errors know nothing of events that no run
            showed. nan if fewer than three runs were whole.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(3, gamma=0.8)
        >>> asked = {"actions": [0, 1, 2], "state": 4, "num_runs": 100, "rng": 0}
        >>> found = jl.simulators.estimate_gaps(jm, jl.goal_policy(3), **asked)
        >>> found
        GapEstimate(gaps=6, num_runs=100, means up to 1.607, standard errors up to 0.06)
        >>> low, high = found.interval("mean", level=0.95)
        >>> print(low[0, 2].round(2), high[0, 2].round(2))
        1.5 1.71
        >>> print(f"after action 0: {found.value[0]:.2f} +- {found.value_error[0]:.2f}")
        after action 0: 3.61 +- 0.05
        >>> kept = jl.simulators.estimate_gaps(jm, jl.goal_policy(3), **asked, keep_returns=True)
        >>> print("the median is from {:.2f} to {:.2f}".format(*kept.law(0, 2).quantile(0.5)))
        the median is from 1.44 to 1.89
    """

    num_runs: Ints | int
    returns: Any = None
    entropy: int | None = None
    value: Any = None
    value_error: Any = None
    gaps: Any = None
    largest_gap: float = math.inf

    def __repr__(self) -> str:
        largest = np.abs(self.mean).max()
        counts = f"gaps={self._apart.sum():,}, num_runs={np.max(self.num_runs):,}"
        errors = f"standard errors up to {self.mean_error.max():.2g}"
        return f"GapEstimate({counts}, means up to {largest:.4g}, {errors})"

    @property
    def _apart(self) -> Any:
        """Which entries tell something: in tables of all pairs, those of two different actions."""
        shape = self.mean.shape
        return ~np.eye(shape[0], dtype=bool) if len(shape) == 2 else np.ones(shape, bool)

    def interval(self, name: Statistic, *, level: float = 0.95) -> tuple[Floats, Floats]:
        """Ends of confidence intervals, entry by entry.

        Those of "mean" are normal, with the truncation error added. A warning says where they rest
        on too few runs, such as those that met a rare event. Those of "prob_worse", "prob_tie" and
        "prob_better" are Wilson's, for any signs of the gaps that are open.

        Args:
            name: of the estimate that the intervals are for.
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
        tie = name == "prob_tie"
        low, _ = self._wilson(value - self.prob_open if tie else value, z)
        _, high = self._wilson(value if tie else value + self.prob_open, z)
        return low, high

    def law(self, i: int, j: int, *, alpha: float = 0.05) -> GapLaw:
        """The law of gap [i, j]: `quantile`, `cvar` and probabilities, as pairs (low, high).

        All of them hold at once with probability $1 - alpha$, as in `GapLaw.from_sample`. What cuts
        may have changed is included. `estimate_gaps` must have been asked for `keep_returns`. A
        sample alone says nothing of rare gaps that it does not show: the ends of `cvar`, and of
        extreme quantiles, are finite only if something says how large gaps can be. That is the
        range of the rewards: a JMDP and an `ImplicitJMDP` know theirs, and a simulator may declare
        a `reward_range`. If gamma is 1, returns are those of the steps of the horizon, and have
        a range only if every run ended within them.

        Args:
            i: the number of the action whose gap it is, in the order in which actions were given.
            j: that of the other one.
            alpha: probability with which a bound may fail.

        Returns:
            The law, as brackets.

        Raises:
            ValueError: no gaps were kept, or i and j are one action.
        """
        from jmdp_lib.laws.brackets import sampled_law  # with it come all laws

        if self.gaps is None:
            raise ValueError(
                "no gap was kept: pass keep_returns=True to estimate_gaps (a comparison has no "
                "law of gaps, since it stops when it knows enough)"
            )
        size = len(self.mean)
        pair = (checks.index("i", i, size), checks.index("j", j, size))
        if i == j:
            raise ValueError(f"i and j must be two actions, got {i} twice")
        ends = self.gaps[:, [*combinations(range(size), 2)].index((min(pair), max(pair)))]
        if i > j:
            ends = -ends[:, ::-1]
        return sampled_law(pair, ends, alpha, (-self.largest_gap, self.largest_gap))

    def _warn_of_few_runs(self) -> None:
        """Of n runs, n / kurtosis carry a variance: k, if these met an event and no others did."""
        n = np.asarray(self.num_runs)
        square = self.variance**2
        enough = n * square >= _ENOUGH * (square + n * self.variance_error**2)
        varied = self.variance > _NO_VARIATION * self.mean**2
        few = self._apart & ~(enough & varied)
        if few.any():
            warnings.warn(
                f"the intervals of {few.sum():,} gaps rest on too few runs: fewer than {_ENOUGH} "
                f"of {n.max():,} carry the variance, and rarer events were not seen",
                stacklevel=3,
            )

    def _wilson(self, share: Floats, z: float) -> tuple[Floats, Floats]:
        """Wilson's interval of a share of the runs, at z standard errors."""
        n = self.num_runs
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        reach = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
        return centre - reach, centre + reach


def betting_bound(
    x: Floats, low: float, high: float, alpha: float, known: float = -np.inf
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the distribution, the bounds for all T at once hold with probability 1 - alpha. A
    gambler bets that the mean exceeds m, at odds that are fair if it is equal. The gambler starts
    with 1 and splits it into shares. Share $j$ stakes $2^{-j}$ of what it owns by then on every
    value: some share stakes about the best part. If the mean is at most m, the probability that the
    capital ever reaches 1 / alpha is at most alpha. The bound is the largest m against which it is
    as large by now (Waudby-Smith and Ramdas 2024, Section 4), to a thousandth of its distance from
    the sample mean; at least `known`, the bound of fewer values.
    """
    if low == high:
        return low
    z, counts = np.unique(np.clip((x - low) / (high - low), 0.0, 1.0), return_counts=True)
    centre = top = float(counts @ z / counts.sum())  # nothing is ever won against the sample mean
    bottom = max((known - low) / (high - low), 0.0)
    with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
        while top - bottom > _CLOSE * (centre - bottom):
            middle = 0.5 * (bottom + top)
            capital = np.logaddexp.reduce(_LOG_SHARES + _won(z, counts, middle))
            bottom, top = (middle, top) if capital >= -np.log(alpha) else (bottom, middle)
    return low + (high - low) * bottom


def _won(z: Floats, counts: Any, mean: float) -> Any:
    """(16,) by which factors shares of the capital have grown in bets against a mean, in logs."""
    return counts @ np.log1p(_BETS * (z[:, None] / mean - 1.0))


def asymptotic_bound(x: Floats, alpha: float, times: Any = 1.0) -> Any:
    """A lower end of an asymptotic confidence sequence for the mean of values x.

    x: (T, ...), T values; the bound has the shape (...). times: how often each of (T,) is counted.

    All intervals with these ends on both sides, from the sample size `FIRST_ASYMPTOTIC` on, hold at
    once with a probability that is at least 1 - alpha in the limit of a large first size
    (Waudby-Smith et al. 2024, Theorem 2.2); earlier ones are infinite. A term of order 1 / T, as in
    Bernstein's inequality, makes up for skewed laws in small samples.
    """
    t = times * len(x)
    level = -2.0 * np.log(alpha)
    rate = (level + np.log(level) + 1.0) / _TIGHT * t
    radius = np.sqrt(x.var(0) * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    bound = x.mean(0) - radius - _SKEW * np.ptp(x, 0) * level / t
    return np.where(t < FIRST_ASYMPTOTIC, -np.inf, bound)


def exceeds(gaps: Floats, goal: float, alpha: float, largest_gap: float | None, times: Any) -> Any:
    """(L,) whether the lower end of `gap_interval` would exceed a goal if gaps came so many times.

    What a share of the capital grows by is then taken as many times.
    """
    if largest_gap is None:
        return asymptotic_bound(gaps, alpha, times) > goal
    z = np.clip(0.5 * (gaps / largest_gap + 1.0), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        won = _won(z, np.ones(z.size), 0.5 * (goal / largest_gap + 1.0))
    capital = np.logaddexp.reduce(_LOG_SHARES + np.multiply.outer(times, won), axis=1)
    return capital >= -np.log(alpha / 2.0)


def gap_interval(
    gap: Floats,
    cut: Floats,
    known: Floats,
    alpha: float,
    largest_gap: float | None,
) -> tuple[float, float]:
    """Ends of an interval for the mean of gaps (N,), which holds at all sample sizes at once.

    cut: (N,) how much a gap may still change. known: the interval of fewer gaps. largest_gap: no
    gap is larger; None asks for the asymptotic sequence.
    """
    if not np.isfinite(cut).all():  # gamma is 1, and a run was cut off: anything may follow
        return -math.inf, math.inf

    def bound(least: Floats, before: float) -> float:
        if largest_gap is None:
            return max(before, float(asymptotic_bound(least, alpha)))
        return betting_bound(least, -largest_gap, largest_gap, alpha / 2.0, before)

    return bound(gap - cut, known[0]), -bound(-gap - cut, -known[1])


def variance_reduction(returns: Floats) -> float:
    """What `Decision` says of it, from the returns (m, N) of whole runs; nan if there are none."""
    size, count = returns.shape
    if not count:
        return math.nan
    alone = returns.var(1).sum()
    gaps = max(size * alone - returns.sum(0).var(), 0.0)  # Var(Z_a - Z_b) over all pairs
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide((size - 1) * alone, gaps))
