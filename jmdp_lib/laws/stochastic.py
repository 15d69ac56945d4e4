"""Stochastic order: bounds of distribution functions, exact where all reads are on the grid.

Over the outcomes d, j of a row,

    P(D <= x) = sum of w P(D_j <= (x - d) / factor),

and likewise for P(D < x). The *cuts* are these two functions at the points of a grid, in ascending
order: P(D < x_0), P(D <= x_0), P(D < x_1), ... A read at the first cut that is not below the
requested one gives an upper bound. This operator is monotone, so it maps upper bounds to upper
bounds. Upper bounds for -D give lower bounds for D, since the grid is symmetric.

A read is exact if (x - d) / factor is a point of the grid; then an atom there stays whole. If
rounding makes the quotient inexact, the read is a few roundings higher. Sums of probabilities are
rounded up.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Outcomes, Rows
from jmdp_lib.laws.sweeps import Groups, Reads, Step, settle

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # approximate number of reward differences that are distinguished
_OCTAVE = 8  # least number of points between a distance and twice this distance


def line(spacing: float, bulk: float, top: float) -> Floats:
    """Points (n,) of a symmetric grid, with this spacing up to `bulk` and coarser up to `top`.

    Beyond `bulk`, where gaps become unlikely, the spacing grows by a factor of four whenever the
    distance to zero doubles. The last point lies a spacing beyond both, so that reads near it lie
    between points, too.
    """
    points = spacing * np.arange(np.ceil(bulk / spacing) + 2.0)
    reach = top + spacing
    while points[-1] < reach:
        end = points[-1]
        spacing = min(4.0 * spacing, end / _OCTAVE)
        points = np.append(points, end + spacing * np.arange(1.0, np.ceil(end / spacing) + 1.0))
    return np.append(-points[:0:-1], points)


def with_reads(points: Floats, reads: Floats) -> Floats:
    """Points of a line, with read points of either sign in place of the points near them.

    The ends of the line lie a spacing beyond all mass; one more point is added on either side.
    """
    both = np.append(reads, 0.0 - reads)
    kept = np.abs(points[:, None] - both).min(1) >= np.diff(points).min() / 2.0
    return np.unique(np.concatenate([points[kept], both, 2.0 * points[[0, -1]]]))


class Stochastic:
    """Upper bounds of the distribution functions of N rows and of their negatives.

    bounds: (2 N, 1, 2n + 1), each row followed by its negative, at the 2n cuts of a symmetric grid
    x (n,); the last bound, beyond the grid, is one.
    """

    bounds: Floats

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.x = np.zeros(0)
        self.largest = np.repeat(rows.largest, 2)
        self.gaps: Ints = np.stack([2 * rows.gaps, 2 * rows.gaps + 1])  # with either sign

    @cached_property
    def exact(self) -> bool:
        """True if all reward differences are distinguished."""
        return bool(np.unique(np.abs(self.rows.outcomes.d)).size <= _GAPS // 2)

    @cached_property
    def _groups(self) -> tuple[Groups, Floats]:
        """Groups of the outcomes of all rows, with both signs."""
        outcomes = self.rows.outcomes
        row = np.append(2 * outcomes.row, 2 * outcomes.row + 1)
        after = 2 * outcomes.after + outcomes.flipped
        after = np.append(after, after ^ 1)  # the other sign
        d = np.append(outcomes.d, 0.0 - outcomes.d)
        if not self.exact:  # rounded down, which raises P(D <= x)
            step = np.ptp(d) / _GAPS
            d = np.floor(d / step) * step
        signed = Outcomes(row, d, after, np.zeros_like(row), np.tile(outcomes.weights, 2))
        return Groups.of(signed.merged, np.repeat(self.rows.factors, 2))

    def refine(self, x: Floats) -> None:
        """Move the bounds to another grid."""
        self.bounds = self._on(x, slice(None))
        self.x = x

    def _on(self, x: Floats, rows: Ints | slice) -> Floats:
        """Bounds (..., 1, 2n + 1) of some rows on another grid, from old ones and bounds of |D|."""
        largest = self.largest[rows]
        beyond = -largest[..., None, None]
        bounds = np.ones((*largest.shape, 1, 2 * x.size + 1))
        bounds[..., :-1:2][x <= beyond] = 0.0
        bounds[..., 1::2][x < beyond] = 0.0
        if self.x.size:
            old = self.bounds[rows][..., first_cut(self.x, x)]
            bounds[..., :-1] = np.minimum(bounds[..., :-1], old)
        return bounds

    def settle(self, tol: float) -> float:
        """Sweep until no bound falls by `tol`; returns the cost."""
        groups, kinds = self._groups
        beyond = 2 * self.x.size
        cells = [np.append(first_cut(self.x, *_shifted(self.x, *kind)), beyond) for kind in kinds.T]
        none = np.zeros((0, 2))
        reads = Reads(np.array(cells, np.int32), none, none.ravel(), none.ravel())
        step = Step(groups, reads, self.rows.rounding)
        return groups.cost * beyond * settle(self.bounds, step, tol, self.rows.halved)

    def bracket(self, x: Floats) -> Floats:
        """Lower and upper bounds (2, Q, 2n) of the gaps at the cuts of a grid x (n,)."""
        high, other = np.minimum.accumulate(self._on(x, self.gaps)[..., 0, -2::-1], axis=2)
        return np.stack([np.maximum(0.0, 1.0 - other - _EPS), high[:, ::-1]])


def first_cut(x: Floats, y: Floats, inexact: Floats | float = 0.0) -> Ints:
    """The first cuts (2m,) of a grid x (n,) not below P(D < y) and P(D <= y), for each y (m,).

    An index is 2n if no cut is. inexact: a bound on the error of y. Both functions are read at
    y + inexact, where they are at least as large: D < y implies D < y + inexact.
    """
    y = y + inexact
    place = np.searchsorted(x, y)
    whole = np.append(x, np.inf)[place] == y  # the cut of P(D <= y) is on the grid, too
    return np.stack([2 * place, 2 * place + whole], axis=1).ravel()


def _shifted(x: Floats, d: float, factor: float) -> tuple[Floats, Floats]:
    """Quotients (x - d) / factor, and a bound on their errors.

    A quotient is exact if d = x, or if the factor is a power of two and the difference is a float.
    Otherwise the difference, the quotient and the sum of both results are rounded, each by at most
    half an _EPS of (|x| + |d|) / factor.
    """
    y = x - d
    lost = (x - (y - (y - x))) - (d + (y - x))
    exact = (y == 0.0) | ((lost == 0.0) & (np.frexp(factor)[0] == 0.5))
    return y / factor, np.where(exact, 0.0, 2.0 * _EPS * (np.abs(x) + np.abs(d)) / factor)
