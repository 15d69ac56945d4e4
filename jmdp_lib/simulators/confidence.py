"""Confidence sequences, and the decision that rests on them.

A confidence sequence around a mean holds at all sample sizes at once, so that one may look after
every run and stop when it says enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats, Ints, frozen
from jmdp_lib.machine import ReadOnly
from jmdp_lib.simulators.gaps import GapEstimate

# A gambler's stakes, and the shares of the capital that are staked so; large ones count for more,
# since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_CLOSE = 1e-3  # of the distance of a bound from the mean: how exactly it is worked out
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of its allowance for skewed laws
FIRST_ASYMPTOTIC = 128  # values before it says anything


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
    with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
        while top - bottom > _CLOSE * (centre - bottom):
            middle = 0.5 * (bottom + top)
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


class History(NamedTuple):
    """The number of queries (L,) and the intervals (L, m, m, 2) at each of L looks."""

    num_queries: Ints
    intervals: Floats

    @classmethod
    def of(cls, looks: list[tuple[int, Floats]], shape: tuple[int, ...]) -> History:
        """From the looks that there were, perhaps none."""
        intervals = np.reshape([own for _, own in looks], (-1, *shape))
        return cls(frozen(np.array([n for n, _ in looks], dtype=np.int64)), frozen(intervals))


@dataclass(frozen=True, eq=False, repr=False)
class Decision(ReadOnly):
    """What `compare_actions` or `compare_policies` found.

    Attributes:
        actions: the m actions that were asked for, or the numbers of the m policies.
        verdict: "better", one action is best by more than the margin; "equivalent", those that
            remain differ by at most the margin; or "undecided" when the budget ended.
        best: the best action if the verdict is "better", else None.
        remaining: the actions that no other was found to be better than.
        intervals: (m, m, 2), lower and upper end for $E[Z(s, a_i) - Z(s, a_j)]$ at [i, j], where
            $a_i$ is actions[i]. What returns lose by being cut off, at the horizon or by a time
            limit of the environment, is included. If the range of the rewards is known, all
            intervals hold at all looks at once with probability $1 - alpha$; for an asymptotic
            sequence this is so only in the limit of large samples.
        margin: as it was given.
        num_queries: queries that were made: calls at one state, for one or more actions.
        num_runs: runs of all branches.
        variance_reduction: how many times as many independent runs would be needed for the same
            certainty, estimated: the sum of $Var Z_a + Var Z_b$ over the pairs of actions, divided
            by that of $Var(Z_a - Z_b)$.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: `num_queries` (L,) and `intervals` (L, m, m, 2) at each of L looks.
        estimates: what the same runs say about all gaps, with standard errors, as from
            `estimate_gaps`; of two actions, from the runs that played both; and the value of every
            action, from the first runs, which are whole. None before three runs. Its intervals do
            not know that a decision ended the runs: `intervals` do.
        entropy: an integer that repeats the call when it is passed as `rng`.
        open_pairs: if undecided, the pairs of `remaining`, (action, other, estimate of the mean
            gap, its standard error), the one with the larger mean first; those of the leader come
            first. Empty before the first look.
        deciding_budget: if undecided, about how many queries would decide between the leader and
            all others if the estimates are right: if all further runs are like those that were
            played. Infinite where no budget would, nan if it is decided.
    """

    actions: tuple[Any, ...]
    verdict: str
    best: Any
    remaining: tuple[Any, ...]
    intervals: Floats
    margin: float
    num_queries: int
    num_runs: int
    variance_reduction: float
    method: str
    history: History
    estimates: GapEstimate | None = None
    entropy: int | None = None
    open_pairs: tuple[tuple[Any, Any, float, float], ...] = ()
    deciding_budget: float = math.nan

    def __repr__(self) -> str:
        best = "" if self.best is None else f"best={self.best}, "
        return (
            f"Decision({self.verdict!r}, {best}num_queries={self.num_queries:,}, "
            f"variance_reduction={self.variance_reduction:.3g}, {self.method}{self._outlook})"
        )

    @property
    def _outlook(self) -> str:
        """What would decide, in words: the leader against the others."""
        if not self.open_pairs:
            return ""
        leader = self.open_pairs[0][0]
        shown = [
            f"{a} against {b}: {mean:.3g} +- {error:.2g}"
            for a, b, mean, error in self.open_pairs
            if a == leader
        ]
        budget = f"a budget of about {self.deciding_budget:,.0f} decides if that is right"
        if math.isinf(self.deciding_budget):
            budget = "no budget decides if that is right"
        return f"; {', '.join(shown)}; {budget}"
