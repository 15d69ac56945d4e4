"""Results: what the calls of this room return. Estimates of gaps with their errors, and decisions.

`GapEstimate` is what branches that were played say about gaps, $G = Z(s, a) - Z(s, b)$; a further
statistic of gaps is a field of it. `Decision` is what a comparison decided.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import ReadOnly

if TYPE_CHECKING:
    from jmdp_lib.laws.brackets import GapLaw

_NO_VARIATION = 1e-12  # of a squared mean: less variance than this is rounding
_ENOUGH = 5  # runs that carry a variance, for a normal interval to mean something


@dataclass(frozen=True, eq=False, repr=False)
class GapEstimate(ReadOnly):
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
        entropy: of the seed; passed as the seed, it repeats runs that had none. A `Decision` has
            its own.
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
        >>> asked = {"actions": [0, 1, 2], "state": 4, "num_runs": 100}
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

    mean: Floats
    mean_error: Floats
    variance: Floats
    variance_error: Floats
    prob_worse: Floats
    prob_tie: Floats
    prob_better: Floats
    truncation_error: Floats | float
    num_runs: Ints | int
    returns: Any = None
    prob_open: Floats | float = 0.0
    entropy: Any = None
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
        return ~np.eye(*shape, dtype=bool) if len(shape) == 2 else np.ones(shape, bool)

    def interval(self, name: str, level: float = 0.95) -> tuple[Floats, Floats]:
        """Ends of confidence intervals, entry by entry.

        Those of "mean" are normal, with the truncation error added. A warning says where they rest
        on too few runs, such as those that met a rare event. Those of "prob_worse", "prob_tie" and
        "prob_better" are Wilson's, for any signs of the gaps that are open.
        """
        names = ("mean", "prob_worse", "prob_tie", "prob_better")
        value = getattr(self, checks.one_of("name", name, names))
        z = NormalDist().inv_cdf((1.0 + checks.real("level", level, "(0, 1)")) / 2.0)
        if name == "mean":
            self._warn_of_few_runs()
            reach = z * self.mean_error + self.truncation_error
            return value - reach, value + reach
        tie = name == "prob_tie"
        low, _ = self._wilson(value - self.prob_open if tie else value, z)
        _, high = self._wilson(value if tie else value + self.prob_open, z)
        return low, high

    def law(self, i: int, j: int, alpha: float = 0.05) -> GapLaw:
        """The law of gap [i, j]: `quantile`, `cvar` and probabilities, as pairs (low, high).

        All of them hold at once with probability $1 - alpha$, as in `GapLaw.from_sample`. What cuts
        may have changed is included. `estimate_gaps` must have been asked for `keep_returns`. A
        sample alone says nothing of rare gaps that it does not show: the ends of `cvar`, and of
        extreme quantiles, are finite only if something says how large gaps can be. That is the
        range of the rewards: a JMDP and an `ImplicitJMDP` know theirs, and a simulator may declare
        a `reward_range`. If gamma is 1, no range of returns follows from it.
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
            limit of the environment, is included. If the range of the
            rewards is known, all intervals hold at all looks at once with probability $1 - alpha$;
            for an asymptotic sequence this is so only in the limit of large samples.
        margin: as it was given.
        num_queries: queries that were made: calls at one state, for one or more actions.
        num_runs: runs of all branches.
        variance_reduction: how many times as many independent runs would be needed for the same
            certainty, estimated: the sum of $Var Z_a + Var Z_b$ over the pairs of actions, divided
            by that of $Var(Z_a - Z_b)$.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: (L, 1 + 2 m**2), the number of queries and the intervals at each of L looks.
        estimates: what the same runs say about all gaps, with standard errors, as from
            `estimate_gaps`; of two actions, from the runs that played both; and the value of every
            action, from the first runs, which are whole. None before three runs.
            Its intervals do not know that a decision ended the runs: `intervals` do.
        entropy: of the seed; passed as the seed, it repeats a call that had none.
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
    history: Floats
    estimates: GapEstimate | None = None
    entropy: Any = None
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
