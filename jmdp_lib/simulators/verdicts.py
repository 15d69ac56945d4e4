"""What a comparison decided: the verdict, its intervals, and what an undecided one would take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jmdp_lib.checks import Floats
from jmdp_lib.machine import ReadOnly, Saved, table
from jmdp_lib.simulators.estimates import PlayedGaps
from jmdp_lib.simulators.players import action_labels

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Decision(ReadOnly, Saved):
    """What `compare_actions` or `compare_policies` found.

    Attributes:
        actions: the m actions that were asked for, or the numbers of the m policies.
        verdict: "better", one action is best by more than the margin; "equivalent", those that
            remain differ by at most the margin; or "undecided" when the budget ended.
        best: the best action if the verdict is "better", else None.
        remaining: the actions that no other was found to be better than.
        intervals: (m, m, 2), lower and upper end for $E[Z(s, a_i) - Z(s, a_j)]$ at [i, j], where
            $a_i$ is actions[i]. What returns lose by being cut off is included. If the range of the
            rewards is known, all intervals hold at all looks at once with probability $1 - alpha$;
            for an asymptotic sequence this is so only in the limit of large samples.
        margin: as it was given.
        num_queries: queries that were made: calls at one state, for one or more actions.
        num_runs: runs of all branches.
        saving: how many times as many independent runs would be needed for the same certainty,
            estimated: the sum of $Var Z_a + Var Z_b$ over the pairs of actions, divided by that of
            $Var(Z_a - Z_b)$.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: (L, 1 + 2 m**2), the number of queries and the intervals at each of L looks.
        deciding_budget, deciding_margin: if undecided, about how many queries would decide if what
            is still to come is like what was seen, and which margin the intervals already keep.
            Infinite where none would do.
        estimates: what the same runs say about all gaps, with standard errors, as from
            `estimate_gaps`; of two actions, from the runs that played both. None before three runs.
            Its intervals do not know that a decision ended the runs: `intervals` do.
        compared: what `actions` are, "action" or "policy".
    """

    _nested: ClassVar[Any] = {"estimates": PlayedGaps}

    actions: tuple[Any, ...]
    verdict: str
    best: Any
    remaining: tuple[Any, ...]
    intervals: Floats
    margin: float
    num_queries: int
    num_runs: int
    saving: float
    method: str
    history: Floats
    deciding_budget: float = math.nan
    deciding_margin: float = math.nan
    estimates: PlayedGaps | None = None
    compared: str = "action"

    def __repr__(self) -> str:
        best = "" if self.best is None else f"best={self.best}, "
        outlook = f"; {self.outlook}" if self.outlook else ""
        return (
            f"Decision({self.verdict!r}, {best}num_queries={self.num_queries:,}, "
            f"saving={self.saving:.3g}, {self.method}{outlook})"
        )

    @property
    def outlook(self) -> str:
        """What would decide, in words, from what was seen; empty once it is decided."""
        if self.verdict != "undecided":
            return ""
        ways = []
        if math.isfinite(self.deciding_budget):
            ways.append(f"a budget of about {self.deciding_budget:,.0f} queries")
        if math.isfinite(self.deciding_margin):
            ways.append(f"margin={self.deciding_margin:.3g}")
        if ways:
            return f"{' or '.join(ways)} would decide"
        if math.isnan(self.deciding_margin):
            return "too few runs to say what would decide"
        return "no budget would decide: runs are cut off too soon, and need a longer horizon"

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for every two actions: the ends of the interval of their gap.

        Example:
            >>> import jmdp_lib as jl
            >>> found = jl.compare_actions(jl.example_1(0.5), [0], [0, 1], state=0, budget=500)
            >>> list(found.to_frame().columns)
            ['action', 'other', 'low', 'high']
        """
        names = action_labels(self.actions)
        first, second = np.nonzero(~np.eye(names.size, dtype=bool))
        low, high = self.intervals[first, second].T
        ends = {"low": low, "high": high}
        return table({self.compared: names[first], "other": names[second], **ends})

    def plot(self, ax: Any) -> Any:
        """The intervals of the first action that remains against the others, by queries.

        Example:
            >>> import jmdp_lib as jl
            >>> from matplotlib.figure import Figure
            >>> jm = jl.example_1(gamma=0.5)
            >>> found = jl.compare_actions(jm, [0], [0, 1], state=0, budget=500)
            >>> found.plot(Figure().subplots()).get_ylabel()
            'mean gap'
        """
        size = len(self.actions)
        first = self.actions.index(self.remaining[0])
        queries = self.history[:, 0]
        bands = self.history[:, 1:].reshape(-1, size, size, 2)
        for other in (i for i in range(size) if i != first):
            low, high = bands[:, first, other].T
            shown = slice(np.flatnonzero(np.diff(high - low)).max(initial=0) + 2)  # until beaten
            label = f"{self.compared} {self.actions[first]} minus {self.actions[other]}"
            ends = queries[shown], low[shown], high[shown]
            ax.fill_between(*ends, alpha=0.4, step="post", label=label)
        for edge in {self.margin, -self.margin}:
            ax.axhline(edge, color="0.3", lw=0.8, ls=":")
        ax.set(xlabel="queries", ylabel="mean gap")
        ax.legend()
        return ax
