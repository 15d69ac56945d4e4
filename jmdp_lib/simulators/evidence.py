"""What a comparison knows: runs, intervals, and what they say.

`Evidence` never changes: more runs, or a look, make another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats
from jmdp_lib.simulators.gaps import (
    FIRST_ASYMPTOTIC,
    GapEstimate,
    gap_interval,
    gap_sums,
    may_change,
    open_gaps,
    value_sums,
)
from jmdp_lib.simulators.plans import LONGEST, Plan, Runs

_SHORTER = 0.1  # of the tail of runs after a horizon has grown
_CUT = 0.25  # of the half width without cuts: the mean cut at which a horizon grows
_FIRST_CERTAIN = 8  # runs before the first look at one that always holds
_GROWTH = 1.1  # of the number of runs between two looks


class Rules(NamedTuple):
    """What a comparison is given; arguments as of `compare_actions`.

    whole: the plan of all branches. grows: whether the horizon may.
    """

    whole: Plan
    reward_range: tuple[float, float] | None
    alpha: float
    margin: float
    budget: int
    seed: np.random.SeedSequence
    grows: bool

    def next_look(self, num_runs: int) -> int:
        """Runs before the look after one at so many runs."""
        first = _FIRST_CERTAIN if self.reward_range else FIRST_ASYMPTOTIC
        return math.ceil(_GROWTH * num_runs) or max(first, self.whole.world.least)


class Gaps(NamedTuple):
    """Gaps (N,) of the runs that had both branches of a pair.

    tails: the discounts from which on they are open. limited: whether a time limit is the reason.
    """

    gap: Floats
    tails: Floats
    limited: Any

    def cut(self, rest: float, tail: float = math.inf) -> Floats:
        """(N,) how much they may still change. tail: if no horizon had a larger one."""
        tails = np.where(self.limited, self.tails, np.minimum(self.tails, tail))
        return may_change(tails, rest)


_NO_GAPS = Gaps(np.zeros(0), np.zeros(0), np.zeros(0, bool))
_NO_VALUES = np.zeros((2, 0))


@dataclass(frozen=True)
class Evidence:
    """What is known so far.

    plan: of the branches that are simulated on; active: their numbers, those that no other was
    found to be better than. gaps: of all pairs. values: of every branch, returns and tails (2, N)
    of its runs to the end. seen: the lowest and the highest reward. intervals: (m, m, 2).
    next_look: runs before it.
    """

    rules: Rules
    plan: Plan
    active: tuple[int, ...]
    gaps: dict[tuple[int, int], Gaps]
    values: tuple[Floats, ...]
    intervals: Floats
    seen: tuple[float, float]
    queries: int = 0
    num_runs: int = 0
    next_look: int = 0
    verdict: str = "undecided"
    looks: tuple[tuple[int, Floats], ...] = ()

    @classmethod
    def none(cls, rules: Rules) -> Evidence:
        """Before the first run."""
        plan = rules.whole
        size = len(plan.names)
        intervals = np.where(plan.identical[..., None], 0.0, [-math.inf, math.inf])
        gaps = dict.fromkeys(plan.pairs, _NO_GAPS)
        seen = rules.reward_range or (math.inf, -math.inf)
        first = rules.next_look(0)
        values = (_NO_VALUES,) * size
        return cls(rules, plan, tuple(range(size)), gaps, values, intervals, seen, next_look=first)

    @property
    def spread(self) -> float:
        """How far rewards can differ, as far as is known."""
        return max(self.seen[1] - self.seen[0], 0.0)

    @property
    def rest(self) -> float:
        """How far returns can."""
        return self.plan.future(self.spread)

    def with_runs(self, runs: Runs) -> Evidence:
        """With runs of all active branches."""
        plan = self.plan
        gaps = dict(self.gaps)
        columns = open_gaps(plan, runs, np)
        for (i, j), (gap, tails) in zip(plan.pairs, columns, strict=True):
            pair = self.active[i], self.active[j]
            new = Gaps(gap, tails, tails > plan.gamma**plan.horizon)
            gaps[pair] = Gaps(*map(np.append, gaps[pair], new))
        return replace(
            self,
            gaps=gaps,
            values=self._values(runs) if not plan.coalesces else self.values,
            seen=(min(self.seen[0], runs.extremes[0]), max(self.seen[1], runs.extremes[1])),
            queries=self.queries + runs.queries,
            num_runs=self.num_runs + runs.totals.shape[1],
        )

    def with_values(self, runs: Runs) -> Evidence:
        """With runs of all branches to the end, after the verdict."""
        everyone = replace(self, active=tuple(range(len(self.values))))
        return replace(self, values=everyone._values(runs), queries=self.queries + runs.queries)

    def _values(self, runs: Runs) -> tuple[Floats, ...]:
        """With returns and tails of runs to the end."""
        values = [*self.values]
        for i, branch in enumerate(self.active):
            column = np.stack([runs.total(i), runs.tails[i]])
            values[branch] = np.append(values[branch], column, axis=1)
        return tuple(values)

    def looked(self) -> Evidence:
        """Work out the intervals, drop the branches that are beaten, and give a verdict."""
        intervals = self.intervals.copy()
        for a, b in combinations(self.active, 2):
            if not self.rules.whole.identical[a, b]:
                low, high = self._interval(a, b)
                intervals[a, b] = low, high
                intervals[b, a] = -high, -low
        looks = (*self.looks, (self.queries, intervals.copy()))
        lows = intervals[np.ix_(self.active, self.active)][..., 0]
        unbeaten = np.flatnonzero(lows.max(0) <= self.rules.margin).tolist()
        next_look = self.rules.next_look(self.num_runs)
        after = replace(self, intervals=intervals, looks=looks, next_look=next_look)
        if 0 < len(unbeaten) < len(self.active):
            active = tuple(self.active[k] for k in unbeaten)
            after = replace(after, active=active, plan=self.plan.only(unbeaten))
        close = lows[np.ix_(unbeaten, unbeaten)].min(initial=0.0) >= -self.rules.margin
        if len(after.active) == 1:
            return replace(after, verdict="better")
        if close and (self.rules.margin or not self.spread or after.plan.identical.all()):
            return replace(after, verdict="equivalent")
        return replace(after, plan=after._longer()) if self.rules.grows else after

    def _interval(self, a: int, b: int) -> tuple[float, float]:
        """Of the mean gap of a pair."""
        gaps = self.gaps[a, b]
        alpha = self.rules.alpha / len(self.rules.whole.pairs)
        largest = self.plan.up_to_horizon(self.spread) if self.rules.reward_range else None
        return gap_interval(gaps.gap, gaps.cut(self.rest), self.intervals[a, b], alpha, largest)

    def half_width(self, a: int, b: int) -> float:
        """Without cuts."""
        cut = self.gaps[a, b].cut(self.rest).mean()
        return float(0.5 * np.ptp(self.intervals[a, b]) - cut) if np.isfinite(cut) else math.inf

    def _longer(self) -> Plan:
        """The plan of later runs: with a longer horizon if that of these cuts too much off."""
        plan = self.plan
        tail = plan.gamma**plan.horizon
        for a, b in combinations(self.active, 2):
            gaps = self.gaps[a, b]._replace(limited=False)
            at_horizon = gaps.tails * ~self.gaps[a, b].limited
            cut = may_change(np.minimum(at_horizon, tail), self.rest).mean()
            if cut > _CUT * self.half_width(a, b):
                horizon = plan.horizon + math.ceil(math.log(_SHORTER) / math.log(plan.gamma))
                longer = replace(plan, horizon=min(horizon, LONGEST))
                fits = self.queries + longer.most_queries <= self.rules.budget
                return longer if fits else plan
        return plan


def estimates_of(known: Evidence) -> GapEstimate | None:
    """What the runs say about all gaps, if there are enough of them."""
    if known.num_runs < 3:
        return None
    plan = known.rules.whole
    gaps = gap_sums(plan, [(x.gap, x.tails) for x in known.gaps.values()], known.seen, np)
    returns = [(x[0], x[1]) for x in known.values if x.size]
    values = [value_sums(plan, returns, np)] if returns else []
    return GapEstimate.of(plan, [gaps], values, known.seen)


def outlook(known: Evidence, estimates: GapEstimate | None) -> dict[str, Any]:
    """`Decision.open_pairs`, `Decision.deciding_budget` and `Decision.blocked_by`."""
    if known.verdict != "undecided" or estimates is None:
        return {}
    names, mean, error = known.rules.whole.names, estimates.mean, estimates.mean_error
    ranked = sorted(known.active, key=lambda k: -mean[k, known.active].sum())
    pairs = tuple(
        (names[i], names[j], float(mean[i, j]), float(error[i, j]))
        for i, j in combinations(ranked, 2)
    )
    outlooks = [_needed(known, estimates, ranked[0], j) for j in ranked[1:]]
    blocks = [block for _, block in outlooks if block is not None]
    return {
        "open_pairs": pairs,
        "deciding_budget": max(budget for budget, _ in outlooks),
        "blocked_by": blocks[0] if blocks else None,
    }


def _needed(known: Evidence, estimates: GapEstimate, a: int, b: int) -> tuple[float, str | None]:
    """Roughly how many queries decide between two branches, or what prevents it.

    The half width of an interval is taken as x / sqrt(n) + y / n in the number n of runs.
    """
    rules = known.rules
    gaps = known.gaps[min(a, b), max(a, b)]
    limited, cut = (
        float(may_change(gaps.tails * mask, known.rest).mean())
        for mask in (gaps.limited, ~gaps.limited)
    )
    stays = limited if rules.grows else limited + cut
    distance = abs(abs(estimates.mean[a, b]) - rules.margin) - stays
    if distance <= 0.0:
        block = "time limit" if rules.grows or limited > cut else "horizon"
        return math.inf, block if stays else None
    n = known.num_runs
    half = known.half_width(min(a, b), max(a, b))
    sure = 2.0 * math.log(2.0 * len(rules.whole.pairs) / rules.alpha)
    x = 1.25 * math.sqrt(sure * estimates.variance[a, b])
    y = max(n * half - x * math.sqrt(n), 0.0) if math.isfinite(half) else 0.0
    runs = ((x + math.sqrt(x**2 + 4.0 * distance * y)) / (2.0 * distance)) ** 2
    return known.queries / n * max(runs, known.next_look), None
