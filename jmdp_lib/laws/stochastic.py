"""Stochastic order: bounds of distribution functions, exact where rewards lie on a lattice.

Over the outcomes d, j of a row,

    P(D <= x) = sum of w P(D_j <= (x - d) / factor),

and so for P(D < x). The *cuts* are these two functions at the points of a grid, in ascending order:
P(D < x_0), P(D <= x_0), P(D < x_1), ... Reading every function at the first cut that is not below
the wanted one bounds it from above. This operator is monotone, so that it leads from one upper
bound to another. Lower bounds are upper bounds of -D, since the grid is symmetric.

A read is exact where (x - d) / factor is a point itself, so that an atom there stays whole. Where
rounding makes it inexact, it is taken a few roundings higher, and points may be intervals of that
size, with the cuts P(D < lower end) and P(D <= upper end). Sums of probabilities are rounded up.
"""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Outcomes, Rows
from jmdp_lib.laws.sweeps import Groups, Reads, Step, settle

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # reward differences that are told apart, about
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one
_OCTAVE = 8  # points between a distance and twice this distance, at least


def line(spacing: float, bulk: float, top: float) -> Floats:
    """(n,) multiples of `spacing` up to `bulk`, either way; from there on, up to `top`, it is four
    times as wide whenever the distance to zero doubles, since gaps are less and less likely. The
    last point is a spacing beyond both: what is read next to a point lies between points, too."""
    points = spacing * np.arange(np.ceil(bulk / spacing) + 2.0)
    reach = top + spacing
    while points[-1] < reach:
        end = points[-1]
        spacing = min(4.0 * spacing, end / _OCTAVE)
        points = np.append(points, end + spacing * np.arange(1.0, np.ceil(end / spacing) + 1.0))
    return np.append(-points[:0:-1], points)


def with_reads(points: Floats, reads: Floats) -> Floats:
    """The points of a line and the read points, with either sign; these replace points nearby.
    The ends of the line lie a spacing beyond all mass, and there is one more point on either side.
    """
    both = np.append(reads, 0.0 - reads)
    apart = np.abs(points[:, None] - both).min(1) >= np.diff(points).min() / 2.0
    return np.unique(np.concatenate([points[apart], both, 2.0 * points[[0, -1]]]))


class Stochastic:
    """Upper bounds (2 N, 1, 2n + 1) of the distribution functions of N rows and their negatives,
    one after the other, at the 2n cuts of a grid `points` (n, 2); the last bound, beyond the grid,
    is one."""

    bounds: Floats

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.points = np.zeros((0, 2))
        self.largest = np.repeat(rows.largest, 2)
        self.asked: Ints = np.stack([2 * rows.asked, 2 * rows.asked + 1])  # with either sign

    @cached_property
    def _outcomes(self) -> Outcomes:
        """Of all rows with both signs."""
        made = self.rows.outcomes
        row = np.append(2 * made.row, 2 * made.row + 1)
        after = np.append(2 * made.after + made.flipped, 2 * made.after + 1 - made.flipped)
        d = np.append(made.d, 0.0 - made.d)
        if np.unique(d).size > _GAPS:  # rounded down, which raises P(D <= x)
            step = np.ptp(d) / _GAPS
            d = np.floor(d / step) * step
        none = np.zeros(row.size, np.int64)
        return Outcomes(row, d, after, none, np.tile(made.weights, 2)).merged

    @cached_property
    def _grouped(self) -> tuple[Groups, Floats]:
        return Groups.of(self._outcomes, np.repeat(self.rows.factors, 2))

    def nearby(self, at: Floats, limit: int) -> tuple[Floats, bool]:
        """(n, 2) the points `at`, and those that are read, step by step, to know the gaps there;
        and whether these are all.

        There are few of them where few rewards differ, as in a world whose only reward is its goal.
        Where there are more than `limit`, only some of the first steps are made. A step widens an
        interval by 1 / factor; one that is no longer much narrower than points that are taken for
        one is left out, so that none reaches another.
        """
        groups, kinds = self._grouped
        made = self._outcomes
        kind_of = np.repeat(groups.kind, np.diff(groups.ends))
        lasting = self.largest[made.after] > 0.0

        @cache
        def following(kind: int) -> Ints:
            """The kinds of all rows that outcomes of a kind lead to; or, of -1, of the gaps."""
            after = np.isin(made.row, made.after[kind_of == kind] if kind >= 0 else self.asked)
            return np.unique(kind_of[after & lasting])

        top = self.rows.top
        alike = _ALIKE * (top or 1.0)
        known = {round(x / alike): (x, x) for x in at.tolist()}
        found = {(number, -1): ends for number, ends in known.items()}
        todo = [*found] if kinds.shape[1] <= limit else []
        steps = ((node, kind) for node in todo for kind in following(node[1]).tolist())
        for here, kind in steps:  # `todo` grows on the way
            if len(found) >= limit:
                break
            x, off = _shifted(np.array(found[here]), *kinds[:, kind])
            low, high = (x + off * [-1.0, 1.0]).tolist()
            new = round(low / alike), kind
            if new not in found and max(-low, high) < top and high - low < alike / 4.0:
                found[new] = known.get(new[0], (low, high))
                todo.append(new)
        exact = 0 < len(todo) < limit
        points = np.array([*found.values()][: None if exact else len(at) + limit // 8])
        return np.concatenate([points, 0.0 - points[:, ::-1]]), exact

    def refine(self, points: Floats) -> None:
        """Bounds on another grid: from the size of D, and from the old ones."""
        least = -self.largest[:, None, None]
        bounds = np.ones((self.largest.size, 1, points.size + 1))
        bounds[..., :-1:2][points[:, 0] <= least] = 0.0
        bounds[..., 1::2][points[:, 1] < least] = 0.0
        if len(self.points):
            old = self.bounds[..., first_cut(self.points, points.ravel())]
            bounds[..., :-1] = np.minimum(bounds[..., :-1], old)
        self.points, self.bounds = points, bounds

    def settle(self, tol: float) -> float:
        """Sweep until no bound falls by `tol`; returns how much work that took."""
        cuts = self.points.ravel()
        groups, kinds = self._grouped
        cells = [np.append(first_cut(self.points, *_shifted(cuts, *x)), cuts.size) for x in kinds.T]
        none = np.zeros((0, 2))
        reads = Reads(np.array(cells, np.int32), none, none.ravel(), none.ravel())
        step = Step(groups, reads, self.rows.rounding)
        return groups.cost * cuts.size * settle(self.bounds, step, tol, self.rows.halved)

    def bracket(self) -> Floats:
        """(2, Q, 2n) lower and upper bounds of the gaps at the cuts."""
        high, other = np.minimum.accumulate(self.bounds[self.asked, 0, -2::-1], axis=2)
        return np.stack([np.maximum(0.0, 1.0 - other - _EPS), high[:, ::-1]])


def first_cut(points: Floats, x: Floats, off: Floats | float = 0.0) -> Ints:
    """(2m,) the first cut of a grid (n, 2) not below those at x (2m,); 2n where there is none.

    x: where P(D < x[0]), P(D <= x[1]), P(D < x[2]), ... are wanted. off: how inexact x is. Both
    functions are read at x + off, where they are no less: D < x implies D < x + off.
    """
    cuts = points.ravel()
    x = x + off
    after = np.searchsorted(cuts, x, "right")
    found = after - ((after % 2 == 0) & (cuts[after - 1] == x))  # there x is an upper end
    found[::2] = np.searchsorted(cuts, x[::2])
    return found


def _shifted(x: Floats, d: float, factor: float) -> tuple[Floats, Floats]:
    """(x - d) / factor, and how inexact: not at all where d = x, or where the factor is a power of
    two and the difference a float. Otherwise the difference, the quotient and the sum of both
    results are rounded, each by half an _EPS of (|x| + |d|) / factor at most."""
    y = x - d
    lost = (x - (y - (y - x))) - (d + (y - x))
    exact = (y == 0.0) | ((lost == 0.0) & (np.frexp(factor)[0] == 0.5))
    return y / factor, np.where(exact, 0.0, 2.0 * _EPS * (np.abs(x) + np.abs(d)) / factor)
