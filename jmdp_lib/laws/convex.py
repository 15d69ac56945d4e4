"""Convex order: bounds of psi(x) = E |x - D|, whose errors are of second order in the spacing.

psi is convex, with slopes from 2 P(D < x) - 1 to 2 P(D <= x) - 1. For the outcomes d, j of a row

    psi(x) = sum of w factor psi_j((x - d) / factor),        psi of -D at x = psi(-x).

Chords between the points of a grid lie above psi. From below, each point keeps a line
that lies below psi everywhere, and a read between two points takes the higher one of their lines.
Reading lines is not monotone, but it leads from lines below psi to lines below psi: a point keeps
the line, old or new, that is higher there. The outer cells of a grid lie beyond all mass: psi is
linear there, and is extrapolated beyond the grid.

Sums are rounded: see `Convex.slack`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from jmdp_lib.checks import Floats
from jmdp_lib.laws.brackets import PhiBracket, highest_lines
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.sweeps import Groups, Step, place, settle

_TAIL = 0.02  # probability beyond which the grid gets coarser


class Convex:
    """Bounds of psi of N rows on a symmetric grid x (n,).

    above: (N, 1, n), the values at the points. below: (N, 2, n), the values and slopes of lines.
    """

    above: Floats
    below: Floats

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.x = np.zeros(0)

    def slack(self, reach: float) -> float:
        """A bound on the rounding error of one step of a row, on a grid from -reach to reach.

        All numbers in it are at most 2 reach, and their probabilities sum to one. Apart from the
        sums over draws, about ten roundings occur in the place (x - d) / factor, its share of a
        cell, and the value read there; `Rows.rounding` includes them. A slope has the same error,
        and its line is at most 2 reach long; beyond the grid no slope exceeds one.
        """
        return self.rows.rounding * 4.0 * reach

    def refine(self, x: Floats) -> None:
        """Move the bounds to another grid.

        Upper bounds come from the distribution with the row's mean on the two ends of the support,
        lower bounds from the mean alone, and both from the old bounds.
        """
        slack = self.slack(x[-1])
        error = self.rows.mean_error + slack
        means = self.rows.means[:, None]
        end = self.rows.largest[:, None]
        share = np.clip(x / np.where(end > 0.0, end, 1.0), -1.0, 1.0)
        above = (np.maximum(np.abs(x), end) - share * means + error)[:, None]
        below = np.stack([np.abs(x - means) - error, np.where(x > means, 1.0, -1.0)], axis=1)
        if self.x.size:
            cells, shares, _, _ = place(self.x, x, np.array([[0.0], [1.0]]))
            old = self.above.take(cells[0], -1)
            old += shares[0] * (self.above.take(cells[0] + 1, -1) - old) + slack
            above = np.minimum(above, old)
            below = highest_lines(self.x, self.below, x)
            below[:, 0] -= slack
        self.x = x
        self.above = above
        self.below = below

    def step(self) -> Step:
        """One step of all rows."""
        groups, kinds = self.groups
        return Step(groups, place(self.x, self.x, kinds), self.slack(self.x[-1]))

    @cached_property
    def groups(self) -> tuple[Groups, Floats]:
        """Outcomes by reward difference; also difference and factor of each kind, (2, K)."""
        return Groups.of(self.rows.outcomes, self.rows.factors)

    @property
    def num_reads(self) -> int:
        """Number of kinds, each of which has its own reads of the grid."""
        return self.groups[1].shape[1]

    def settle(self, tol: float) -> float:
        """Sweep until no bound moves by `tol`; returns the cost."""
        step = self.step()
        upper = settle(self.above, step, tol, self.rows.halved)
        lower = settle(self.below, step, tol, self.rows.halved)
        return step.groups.cost * self.x.size * (upper + 2 * lower)

    def likely(self) -> float:
        """Distance from zero that some row is likely to reach, from the slopes of psi."""
        x = self.x
        slopes = np.diff(self.above[:, 0]) / np.diff(x)
        cells = (np.abs(slopes) < 1.0 - 2.0 * _TAIL).any(0)
        reach = np.maximum(np.abs(x[:-1]), np.abs(x[1:]))
        return float(reach[cells].max(initial=np.diff(x).min()))

    def bracket(self, n: int) -> PhiBracket:
        """Bracket of gap n without the outermost points: phi(x) = (psi(x) + x - E G) / 2."""
        row = self.rows.gaps[n]
        x = self.x[1:-1]
        past = x - self.rows.means[row]
        error = self.rows.mean_error
        value, slopes = self.below[row, :, 1:-1]
        above = 0.5 * (self.above[row, 0, 1:-1] + past + error)
        return PhiBracket(x, above, 0.5 * (value + past - error), 0.5 * (1.0 + slopes))
