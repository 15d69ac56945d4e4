"""Convex order: bounds of psi(x) = E |x - D|, whose errors are of second order in the spacing.

psi is convex, with the slopes 2 P(D < x) - 1 and 2 P(D <= x) - 1, and over the outcomes d, j of a
row

    psi(x) = sum of w factor psi_j((x - d) / factor),        psi of -D at x = psi(-x).

Chords between the points of a grid lie above psi. Lines that support a lower bound of psi lie below
it: at each point one keeps its value and both one-sided slopes, and reads between two points the
higher one of the right line of the left point and the left line of the right point. Reading lower
lines is not monotone, but leads from lines below psi to lines below psi: of the old and the new
line at a point, the higher one is kept. The outer cells of a grid lie beyond all mass: psi is
linear there, and is read so beyond the grid.

What sums to a bound is rounded: see `Convex.slack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jmdp_lib.checks import Floats
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.sweeps import ABOVE, CHUNK, Groups, Limits, Reads, Step, carry, place, settle

_TAIL = 0.02  # probability beyond which the grid gets coarser
_FINE = 2.0  # reward differences that are closer than a spacing over this may be read together
_KINDS = 2048  # reward differences that are read, about


@dataclass(frozen=True)
class Convex:
    """Bounds of psi of N rows on a symmetric grid x (n,): from above (N, 1, n), the values at the
    points; from below (N, 3, n), the values and the slopes of lines to the left and to the right.
    """

    rows: Rows

    def slack(self, reach: float) -> float:
        """How wrong one step of a row may be computed, on a grid that reaches so far.

        All numbers in it are at most 2 reach, and their probabilities sum to one. Beside sums over
        draws, the place (x - d) / factor, its share of a cell and what is read there lose some ten
        roundings, which `Rows.rounding` has in it.
        """
        return self.rows.rounding * 2.0 * reach

    def step(self, x: Floats) -> Step:
        """One step of all rows on a grid, from above."""
        groups, kinds = self._grouped(x)
        return self._step(groups, place(x, x, kinds), float(x[-1]))

    def _step(self, groups: Groups, reads: Reads, reach: float) -> Step:
        limits = Limits(ABOVE, self.slack(reach), self.rows.rounding)
        return Step(groups, reads, limits)

    @cached_property
    def _exact(self) -> tuple[Groups, Floats]:
        return Groups.of(self.rows.outcomes, self.rows.factors)

    def _grouped(self, x: Floats) -> tuple[Groups, Floats]:
        """The groups of outcomes; those of close differences are one, if that is much faster."""
        made = self.rows.outcomes
        factors = self.rows.factors
        cell = factors[made.row] * np.diff(x).min() / _FINE
        close = Groups.of(made.together(np.ceil(made.d / cell) * cell, factors), factors)
        worth = 1 if np.unique(made.d).size > _KINDS else 2  # tables of so many reads are slow
        return close if worth * close[0].cost <= self._exact[0].cost else self._exact

    def above(self, x: Floats) -> Floats:
        """(N, 1, n) psi of the widest law with a row's mean: on the two ends of its support."""
        end = self.rows.largest[:, None]
        share = np.clip(x / np.where(end > 0.0, end, 1.0), -1.0, 1.0)
        psi = np.maximum(np.abs(x), end) - share * self.rows.means[:, None]
        return psi[:, None] + self.rows.mean_error + self.slack(x[-1])

    def below(self, x: Floats) -> Floats:
        """(N, 3, n) psi of the narrowest law with a row's mean: a point there."""
        past = x - self.rows.means[:, None]
        value = np.abs(past) - self.rows.mean_error - self.slack(x[-1])
        slope = np.where(past > 0.0, 1.0, -1.0)
        return np.stack([value, slope, slope], axis=1)

    def refined(self, x: Floats, bounds: Floats, finer: Floats) -> Floats:
        """Bounds on another grid that reaches as far, or farther."""
        reads = place(x, finer, np.array([[0.0], [1.0]]))
        step = self._step(Groups.identity(len(bounds)), reads, float(finer[-1]))
        if bounds.shape[1] == 1:
            return carry(bounds, step, self.above(finer))
        return carry(bounds, step.from_below, self.below(finer))

    def settle(self, step: Step, bounds: Floats, tol: float) -> int:
        """Sweep until no bound moves by `tol`, in place; returns how many sweeps that took.

        Half-steps lead to pairs and these to half-steps, so that many rows can be done at once;
        whole steps are best done one by one, each with what the ones before it found.
        """
        order = np.arange(len(bounds) - 1)
        halved = self.rows.halved
        return settle(bounds, step, order, tol, not halved, CHUNK if halved else 1)

    def likely(self, x: Floats, above: Floats) -> float:
        """How far from zero some row is likely to be, about: slopes of psi are probabilities."""
        slopes = np.diff(above[:, 0]) / np.diff(x)
        cells = (np.abs(slopes) < 1.0 - 2.0 * _TAIL).any(0)
        reach = np.maximum(np.abs(x[:-1]), np.abs(x[1:]))
        return float(reach[cells].max(initial=np.diff(x).min()))
