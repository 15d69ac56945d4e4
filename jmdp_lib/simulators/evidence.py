"""What a comparison knows: runs, intervals, and what they say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

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
from jmdp_lib.simulators.plans import LONGEST, Plan, Runs, joined_extremes

_SHORTER = 0.1  # of the tail of runs after a horizon has grown
_CUT = 0.25  # of the half width without cuts: the mean cut at which a horizon grows
_FIRST_CERTAIN = 8  # runs before the first look at one that always holds
_GROWTH = 1.1  # of the number of runs between two looks


@dataclass
class Evidence:
    """What a comparison is given, arguments as of `compare_actions`, and what it knows so far.

    whole: the plan of all branches. certain: whether it is a betting sequence, with the limits of
    the plan. grows: whether the horizon may.

    plan: of the branches that are simulated on; active: their numbers, those that no other was
    found to be better than. gaps: of all pairs, (3, N) of the runs that had both branches: gaps,
    and the discounts from which on they are open because of the horizon, or of a time limit.
    values: of every branch, returns and tails (2, N) of its runs to the end. seen: the lowest and
    the highest reward. intervals: (m, m, 2). next_look: runs before it.
    """

    whole: Plan
    certain: bool
    alpha: float
    margin: float
    budget: int
    seed: np.random.SeedSequence
    grows: bool

    def __post_init__(self) -> None:
        self.plan = self.whole
        self.active = list(range(len(self.whole.names)))
        self.gaps = dict.fromkeys(self.whole.pairs, np.zeros((3, 0)))
        self.values = [np.zeros((2, 0)) for _ in self.active]
        self.intervals = np.where(self.whole.identical[..., None], 0.0, [-math.inf, math.inf])
        self.seen = (math.inf, -math.inf)
        if self.certain and self.whole.limits:
            self.seen = self.whole.limits
        self.queries = self.num_runs = 0
        self.next_look = self.look_after(0)
        self.verdict = "undecided"
        self.looks: list[tuple[int, Floats]] = []

    def look_after(self, num_runs: int) -> int:
        """Runs before the look after one at so many runs."""
        return math.ceil(_GROWTH * num_runs) or max(self.fewest, self.whole.world.least)

    @property
    def fewest(self) -> int:
        """Runs before the first look."""
        return _FIRST_CERTAIN if self.certain else FIRST_ASYMPTOTIC

    def last_look(self) -> None:
        """Look at the runs since the last look, which the budget ended."""
        looked_at = self.looks[-1][0] if self.looks else 0
        if self.num_runs >= self.fewest and self.queries > looked_at:
            self.look()

    @property
    def spread(self) -> float:
        """How far rewards can differ, as far as is known."""
        return max(self.seen[1] - self.seen[0], 0.0)

    def cut(self, tails: Floats) -> Floats:
        """(N,) how much gaps, or what they have lost, may still change."""
        return may_change(tails, self.plan.future(self.spread))

    def add(self, runs: Runs) -> None:
        """Take in runs of all active branches."""
        plan = self.plan
        for (i, j), (gap, tails) in zip(plan.pairs, open_gaps(plan, runs, np), strict=True):
            limited = tails > plan.gamma**plan.horizon
            column = np.stack([gap, tails * ~limited, tails * limited])
            pair = self.active[i], self.active[j]
            self.gaps[pair] = np.append(self.gaps[pair], column, axis=1)
        if not plan.coalesces:
            self.add_values(runs, self.active)
        self.seen = joined_extremes([self.seen, runs.extremes])
        self.queries += runs.queries
        self.num_runs += runs.totals.shape[1]

    def add_values(self, runs: Runs, branches: Iterable[int]) -> None:
        """Take in returns of runs of these branches to the end."""
        for i, branch in enumerate(branches):
            column = np.stack([runs.total(i), runs.tails[i]])
            self.values[branch] = np.append(self.values[branch], column, axis=1)
        self.seen = joined_extremes([self.seen, runs.extremes])

    def look(self) -> None:
        """Work out the intervals, drop the branches that are beaten, and give a verdict."""
        for a, b in combinations(self.active, 2):
            if not self.whole.identical[a, b]:
                low, high = self._interval(a, b)
                self.intervals[a, b] = low, high
                self.intervals[b, a] = -high, -low
        self.looks.append((self.queries, self.intervals.copy()))
        self.next_look = self.look_after(self.num_runs)
        lows = self.intervals[np.ix_(self.active, self.active)][..., 0]
        unbeaten = np.flatnonzero(lows.max(0) <= self.margin).tolist()
        close = lows[np.ix_(unbeaten, unbeaten)].min(initial=0.0) >= -self.margin
        if 0 < len(unbeaten) < len(self.active):
            self.active = [self.active[k] for k in unbeaten]
            self.plan = self.plan.only(unbeaten)
        if len(self.active) == 1:
            self.verdict = "better"
        elif close and (self.margin or not self.spread or self.plan.identical.all()):
            self.verdict = "equivalent"
        elif self.grows:
            self.plan = self._longer()

    def _interval(self, a: int, b: int) -> tuple[float, float]:
        """Of the mean gap of a pair."""
        gaps = self.gaps[a, b]
        alpha = self.alpha / len(self.whole.pairs)
        largest = self.plan.up_to_horizon(self.spread) if self.certain else None
        cut = self.cut(gaps[1:].sum(0))
        return gap_interval(gaps[0], cut, self.intervals[a, b], alpha, largest)

    def half_width(self, a: int, b: int) -> float:
        """Without cuts."""
        cut = self.cut(self.gaps[a, b][1:].sum(0)).mean()
        return float(0.5 * np.ptp(self.intervals[a, b]) - cut) if np.isfinite(cut) else math.inf

    def _longer(self) -> Plan:
        """The plan of later runs: with a longer horizon if that of these cuts too much off."""
        plan = self.plan
        tail = plan.gamma**plan.horizon
        for a, b in combinations(self.active, 2):
            cut = self.cut(np.minimum(self.gaps[a, b][1], tail)).mean()
            if cut > _CUT * self.half_width(a, b):
                horizon = plan.horizon + math.ceil(math.log(_SHORTER) / math.log(plan.gamma))
                longest = min(horizon, LONGEST)
                return plan if longest == plan.horizon else replace(plan, horizon=longest)
        return plan

    def estimates(self) -> GapEstimate | None:
        """What the runs say about all gaps, if there are enough of them."""
        if self.num_runs < 3:
            return None
        plan = self.whole
        seen = self.seen if self.seen[0] <= self.seen[1] else (0.0, 0.0)  # no step was made
        gaps = gap_sums(plan, [(x[0], x[1:].sum(0)) for x in self.gaps.values()], seen, np)
        returns = [(x[0], x[1]) for x in self.values if x.size]
        values = [value_sums(plan, returns, np)] if returns else []
        return GapEstimate.of(plan, [gaps], values, seen)

    def outlook(self, estimates: GapEstimate | None) -> dict[str, Any]:
        """`Decision.open_pairs`, `Decision.deciding_budget` and `Decision.blocked_by`."""
        if self.verdict != "undecided" or estimates is None:
            return {}
        names, mean, error = self.whole.names, estimates.mean, estimates.mean_error
        leader, *others = sorted(self.active, key=lambda k: -mean[k, self.active].sum())
        pairs = combinations([leader, *others], 2)
        needed = [self._needed(estimates, leader, j) for j in others]
        return {
            "open_pairs": tuple(
                (names[i], names[j], float(mean[i, j]), float(error[i, j])) for i, j in pairs
            ),
            "deciding_budget": max(budget for budget, _ in needed),
            "blocked_by": next((block for _, block in needed if block), None),
        }

    def _needed(self, estimates: GapEstimate, a: int, b: int) -> tuple[float, str | None]:
        """Roughly how many queries decide between two branches, or what prevents it.

        The half width of an interval is taken as x / sqrt(n) + y / n in the number n of runs.
        """
        pair = min(a, b), max(a, b)
        horizon, limit = (float(self.cut(tails).mean()) for tails in self.gaps[pair][1:])
        stays = limit if self.grows else limit + horizon
        distance = abs(abs(estimates.mean[pair]) - self.margin) - stays
        if distance <= 0.0:
            block = "time limit" if self.grows or limit > horizon else "horizon"
            return math.inf, block if stays else None
        n, half = self.num_runs, self.half_width(*pair)
        sure = 2.0 * math.log(2.0 * len(self.whole.pairs) / self.alpha)
        x = 1.25 * math.sqrt(sure * estimates.variance[pair])
        y = max(n * half - x * math.sqrt(n), 0.0) if math.isfinite(half) else 0.0
        runs = ((x + math.sqrt(x**2 + 4.0 * distance * y)) / (2.0 * distance)) ** 2
        return self.queries / n * max(runs, self.next_look), None
