"""A comparison in progress: its runs, the intervals computed from them, and the verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from jmdp_lib import randomness
from jmdp_lib.checks import Floats
from jmdp_lib.simulators.estimates import Job, in_order, joined
from jmdp_lib.simulators.gaps import (
    FIRST_ASYMPTOTIC,
    Column,
    GapEstimate,
    gap_columns,
    lower_bound,
    may_change,
    return_columns,
    sums_of,
)
from jmdp_lib.simulators.plans import LONGEST, Plan, Runs, joined_extremes

_SHORTER = 0.1  # factor of the truncated tail when a horizon grows
_CUT = 0.25  # a horizon grows if the mean cut exceeds this share of the half width without cuts
_FIRST_CERTAIN = 8  # runs before the first look at a betting sequence, which holds at every size
_GROWTH = 1.1  # factor of the number of runs from one look to the next
_VALUE_SHARE = 5  # the runs for values take at most one in this many queries
_UNDER_WAY = 32  # chunks that an executor has at once


@dataclass
class Comparison:
    """Runs of a comparison, with arguments as in `compare_actions`, and their results so far.

    full_plan: the plan of all branches. certain: whether the confidence sequence is the betting
    one, which needs the limits of the plan. grows: whether the horizon may grow.

    plan: the plan of the branches that are still simulated. active: their indices: no other branch
    has beaten them. columns: for each pair, and for each single branch, an array (3, N) over the
    runs that simulated it. Its rows are the gaps or returns; their tails, the discounts from which
    they are open; and these tails again, zero unless a time limit is the cause. seen: the lowest
    and the highest reward. lows: (m, m), lower ends of mean gaps. looked_at: number of runs at the
    last look. looks: number of queries and lower ends at each look.
    """

    full_plan: Plan
    certain: bool
    alpha: float
    margin: float
    budget: int
    seed: np.random.SeedSequence
    grows: bool
    executor: Executor | None

    def __post_init__(self) -> None:
        plan = self.plan = self.full_plan
        self.active = [*range(len(plan.names))]
        self.columns: dict[Any, Floats] = dict.fromkeys(
            [*plan.pairs, *self.active], np.zeros((3, 0))
        )
        self.seen = (math.inf, -math.inf)
        if self.certain and plan.limits:
            self.seen = plan.limits
        self.lows = np.where(plan.identical, 0.0, -math.inf)
        self.queries = self.num_runs = self.looked_at = 0
        self.looks: list[tuple[int, Floats]] = []
        self.verdict = "undecided"
        self.fewest = _FIRST_CERTAIN if self.certain else FIRST_ASYMPTOTIC

    def look_after(self, num_runs: int) -> int:
        """Number of runs at the next look, after a look at `num_runs` runs."""
        return math.ceil(_GROWTH * num_runs) or max(self.fewest, self.full_plan.world.least)

    def decide(self, bar: Any) -> None:
        """Simulate branches until the best one is certain or the budget is spent."""
        while self.verdict == "undecided":
            plan = self.plan
            with closing(in_order(self._jobs(), self.executor, _UNDER_WAY)) as chunks:
                for runs in chunks:
                    if self.queries + runs.queries > self.budget:
                        self._end()
                        return
                    self.add(runs)
                    bar.update(self.queries - bar.n)
                    if self.num_runs == self.look_after(self.looked_at):
                        self.look()
                    if self.verdict != "undecided" or self.plan is not plan:
                        break

    def _jobs(self) -> Iterator[Job]:
        """Endless stream of chunks of runs; it is closed when the branches or the horizon change.

        The bounds of chunks, and their seeds, depend on the looks and on the kind of simulator.
        """
        plan = self.plan
        start = self.num_runs
        look = self.look_after(self.looked_at)
        while True:
            size = min(look - start, plan.world.batch(start))
            unspent = replace(plan, budget=self.budget - self.queries)
            yield Job(unspent, size, randomness.part(self.seed, start))
            start += size
            if start == look:
                look = self.look_after(look)

    def _end(self) -> None:
        """Look at the runs since the last look; without any runs, make all that the budget pays."""
        if self.num_runs >= max(self.fewest, self.looked_at + 1):
            self.look()
        elif not self.num_runs:
            size = self.budget // self.plan.most_queries
            job = Job(self.plan, size, randomness.part(self.seed, 0))
            for runs in in_order([job], self.executor, 1):
                self.add(runs)

    def add(self, runs: Runs) -> None:
        """Add runs of all active branches."""
        plan = self.plan
        names: list[Any] = [(self.active[i], self.active[j]) for i, j in plan.pairs]
        columns = gap_columns(plan, runs, np)
        if not plan.coalesces:
            names += self.active
            columns += return_columns(plan, runs, np)
        self._append(names, columns, runs)
        self.num_runs += runs.size

    def _append(self, names: Sequence[Any], columns: Sequence[Column], runs: Runs) -> None:
        """Add columns of runs."""
        for name, (x, tails) in zip(names, columns, strict=True):
            limited = tails > self.plan.gamma**self.plan.horizon
            column = np.stack([x, tails, tails * limited])
            self.columns[name] = np.append(self.columns[name], column, axis=1)
        self.queries += runs.queries
        self.seen = joined_extremes([self.seen, runs.extremes])

    def add_values(self) -> None:
        """Add runs of all branches to the end, if a fifth of the queries pays for three of them."""
        plan = self.full_plan
        share = min(self.queries // _VALUE_SHARE, self.budget - self.queries)
        size = share // plan.most_queries
        if not plan.coalesces or self.verdict == "undecided" or size < 3:
            return
        most = plan.world.batch(size)
        jobs = [
            Job(plan, min(most, size - start), randomness.part(self.seed, "values", start), True)
            for start in range(0, size, most)
        ]
        try:
            runs = joined([*in_order(jobs, self.executor, len(jobs))])
        except Exception as error:
            warnings.warn(f"values are nan, since their runs failed: {error}", stacklevel=4)
            return
        self._append(range(len(plan.names)), return_columns(plan, runs, np), runs)

    @property
    def spread(self) -> float:
        """Difference of the highest and the lowest reward, declared or seen."""
        return max(self.seen[1] - self.seen[0], 0.0)

    def cut(self, tails: Floats) -> Floats:
        """Largest later changes (N,) of gaps that were cut off."""
        return may_change(tails, self.plan.future(self.spread))

    def look(self) -> None:
        """Compute the intervals, drop the branches that are beaten, and give a verdict."""
        alpha = self.alpha / len(self.full_plan.pairs)
        largest = self.plan.up_to_horizon(self.spread) if self.certain else None
        for a, b in permutations(self.active, 2):
            gap, tails, _ = self.columns[min(a, b), max(a, b)]
            least = (gap if a < b else -gap) - self.cut(tails)
            self.lows[a, b] = lower_bound(least, self.lows[a, b], alpha, largest)
        self.looked_at = self.num_runs
        self.looks.append((self.queries, self.lows.copy()))
        lows = self.lows[np.ix_(self.active, self.active)]
        unbeaten = np.flatnonzero(lows.max(0) <= self.margin).tolist()
        close = lows[np.ix_(unbeaten, unbeaten)].min(initial=0.0) >= -self.margin
        if 0 < len(unbeaten) < len(self.active):
            self.active = [self.active[k] for k in unbeaten]
            self.plan = self.plan.only(unbeaten)
        if len(self.active) == 1:
            self.verdict = "better"
        elif close and (self.margin or not self.spread or self.plan.identical.all()):
            self.verdict = "equivalent"
        elif self.grows and any(self._is_cut(*pair) for pair in combinations(self.active, 2)):
            steps = math.ceil(math.log(_SHORTER) / math.log(self.plan.gamma))
            self.plan = replace(self.plan, horizon=min(self.plan.horizon + steps, LONGEST))

    def _is_cut(self, a: int, b: int) -> bool:
        """True if the present horizon cuts too much off the gaps of a pair."""
        _, tails, limited = self.columns[a, b]
        tail = self.plan.gamma**self.plan.horizon
        cut = self.cut(np.minimum(tails - limited, tail)).mean()
        return bool(cut > _CUT * self._half_width(a, b))

    def _half_width(self, a: int, b: int) -> float:
        """Half width of the interval of a pair, without the cuts."""
        width = -self.lows[a, b] - self.lows[b, a]
        return float(0.5 * width - self.cut(self.columns[a, b][1]).mean())

    def estimates(self) -> GapEstimate | None:
        """Estimates of all gaps from the runs so far; None if fewer than three were made."""
        if self.num_runs < 3:
            return None
        plan = self.full_plan
        seen = self.seen if self.seen[0] <= self.seen[1] else (0.0, 0.0)  # no step was made
        names = [plan.pairs, [*range(len(plan.names))] if self.columns[0].size else []]
        gaps, returns = (
            sums_of(plan, [self.columns[name][:2] for name in each], seen, np) for each in names
        )
        return GapEstimate.of(plan, [gaps], [returns] if returns else [], seen)

    def outlook(self, estimates: GapEstimate | None) -> dict[str, Any]:
        """Values of `Decision.open_pairs`, `deciding_budget` and `blocked_by`."""
        if self.verdict != "undecided" or estimates is None:
            return {}
        names, mean, error = self.full_plan.names, estimates.mean, estimates.mean_error
        leader, *others = sorted(self.active, key=lambda k: -mean[k, self.active].sum())
        pairs = combinations([leader, *others], 2)
        needed = [self._needed(estimates, leader, other) for other in others]
        return {
            "open_pairs": tuple(
                (names[i], names[j], float(mean[i, j]), float(error[i, j])) for i, j in pairs
            ),
            "deciding_budget": max(budget for budget, _ in needed),
            "blocked_by": next((block for _, block in needed if block), None),
        }

    def _needed(self, estimates: GapEstimate, a: int, b: int) -> tuple[float, str | None]:
        """Approximate number of queries that decide between two branches, or the obstacle.

        One part of the half width at n runs shrinks like 1 / n; the other like the root of the
        variance over n.
        """
        a, b = min(a, b), max(a, b)
        _, tails, limited = self.columns[a, b]
        cut, limit = (float(self.cut(x).mean()) for x in (tails, limited))
        stays = limit if self.grows else cut
        distance = abs(abs(estimates.mean[a, b]) - self.margin) - stays
        if distance <= 0.0:
            block = "time limit" if self.grows or 2.0 * limit > cut else "horizon"
            return math.inf, block if stays else None
        sure = 3.0 * math.log(2.0 * len(self.full_plan.pairs) / self.alpha)
        runs = sure * estimates.variance[a, b] / distance**2
        if self.looks:
            runs += self.num_runs * self._half_width(a, b) / distance
        return self.queries / self.num_runs * max(runs, self.look_after(self.looked_at)), None


def both_ends(lows: Floats) -> Floats:
    """Intervals (..., m, m, 2) from the lower ends (..., m, m) of all gaps."""
    return np.stack([lows, -lows.swapaxes(-1, -2)], axis=-1)
