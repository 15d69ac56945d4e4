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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Rows
from jmdp_lib.machine import hot, inline

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # reward differences that are told apart, about
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one
_OCTAVE = 8  # points between a distance and twice this distance, at least
_ROOM = 1 << 14  # numbers of an array that is worked on at once


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
    """The points of a line and the read points, with either sign; these replace points nearby."""
    both = np.unique(np.append(reads, 0.0 - reads))
    place = np.searchsorted(both, points)
    padded = np.concatenate([[-np.inf], both, [np.inf]])
    apart = np.minimum(points - padded[place], padded[place + 1] - points)
    apart[[0, -1]] = np.inf  # the ends stay
    return np.union1d(points[apart >= np.diff(points).min() / 2.0], both)


@dataclass(frozen=True)
class Stochastic:
    """Upper bounds of the distribution functions of N rows and their negatives, 2 N in all.

    groups: (starts, gaps, ends, after, weights). Row r, or r - N with the other sign, owns the
    groups starts[r] to starts[r + 1] - 1. A group holds the outcomes with one reward difference
    and factor, differences[gaps[g]] and factors[gaps[g]], and owns the entries ends[g] to
    ends[g + 1] - 1: each a row that follows, after (M,), and its probability, weights (M,).
    """

    rows: Rows
    groups: Any
    differences: Floats
    factors: Floats

    @classmethod
    def of(cls, rows: Rows) -> Stochastic:
        """Group the outcomes of all rows with both signs."""
        made = rows.outcomes
        size = rows.factors.size
        row = np.append(made.row, made.row + size)
        after = np.append(made.after + size * made.flipped, made.after + size * (1 - made.flipped))
        d = _told_apart(np.append(made.d, 0.0 - made.d))
        factor = np.tile(rows.factors[made.row], 2)
        weights = np.tile(made.weights, 2)
        kinds, gap = np.unique(np.stack([d, factor]), axis=1, return_inverse=True)
        keys = (row * kinds.shape[1] + gap.ravel()) * (2 * size) + after
        keys, entry = _distinct(keys)
        groups, ends = np.unique(keys // (2 * size), return_index=True)
        row, gaps = np.divmod(groups, kinds.shape[1])
        starts = np.searchsorted(row, np.arange(2 * size + 1))
        found = (
            starts,
            gaps,
            np.append(ends, keys.size),
            keys % (2 * size),
            np.bincount(entry, weights),
        )
        return cls(rows, found, *kinds)

    @cached_property
    def largest(self) -> Floats:
        """(2 N,) bounds of |D|."""
        return np.tile(self.rows.largest, 2)

    @cached_property
    def asked(self) -> Ints:
        """(2, Q) the rows of the gaps, with either sign."""
        return np.stack([self.rows.asked, self.rows.asked + self.rows.factors.size])

    @property
    def numbers_read(self) -> int:
        """How many numbers a sweep reads, for each cut."""
        return self.groups[1].size + self.groups[3].size

    def nearby(self, at: Floats, limit: int) -> tuple[Floats, bool]:
        """(n, 2) the points `at`, and those that are read, step by step, to know the gaps there;
        and whether these are all.

        There are few of them where few rewards differ, as in a world whose only reward is its goal.
        Where there are more than `limit`, only some of the first steps are made. A step widens an
        interval by 1 / factor; one that is no longer much narrower than points that are taken for
        one is left out, so that none reaches another.
        """
        if self.differences.size > limit:
            return _mirrored([(float(x), float(x)) for x in at]), False
        top = self.rows.top
        alike = _ALIKE * top
        has, follow = self._followers
        found = {(round(float(x) / alike) if alike else 0, -1): (float(x), float(x)) for x in at}
        known = {node[0]: ends for node, ends in found.items()}
        todo = [(x, x, np.unique(has[self.asked.ravel()].indices)) for x, _ in found.values()]
        for start, end, then in todo:
            for gap in then:
                if len(found) >= limit:
                    return _mirrored([*found.values()][: len(at) + limit // 8]), False
                low, high = _interval(start, end, self.differences[gap], self.factors[gap])
                node = round(low / alike), gap
                if node not in found and max(-low, high) < top and high - low < alike / 4.0:
                    found[node] = known.get(node[0], (low, high))
                    after_it = follow.indices[follow.indptr[gap] : follow.indptr[gap + 1]]
                    todo.append((*found[node], after_it))
        return _mirrored([*found.values()]), True

    @cached_property
    def _followers(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """(2 N, G) which differences a row has, and (G, G) which ones follow another."""
        starts, gaps, ends, after, _ = self.groups
        shape = (self.largest.size, self.differences.size)
        lasting = self.largest[after] > 0.0
        gap = np.repeat(gaps, np.diff(ends))[lasting]
        row = np.repeat(np.arange(shape[0]), np.diff(ends[starts]))[lasting]
        ones = np.ones(gap.size)
        has = sparse.csr_array((ones, (row, gap)), shape)
        return has, sparse.csr_array((ones, (after[lasting], gap)), shape).T.tocsr() @ has

    def start(self, points: Floats) -> Floats:
        """(2 N, 2n + 1) upper bounds at the cuts of a grid (n, 2) from nothing but the size of D;
        the last one, beyond the grid, is one."""
        least = -self.largest[:, None]
        bounds = np.ones((self.largest.size, points.size + 1))
        bounds[:, :-1:2][points[:, 0] <= least] = 0.0
        bounds[:, 1::2][points[:, 1] < least] = 0.0
        return bounds

    def refined(self, grid: Floats, bounds: Floats, finer: Floats) -> Floats:
        """The bounds on a finer grid."""
        out = self.start(finer)
        same = first_cut(grid, finer.ravel())
        for rows in parts(len(out), finer.size):
            out[rows, :-1] = np.minimum(out[rows, :-1], bounds[rows][:, same])
        return out

    def settle(self, points: Floats, bounds: Floats, tol: float) -> int:
        """Sweep until no bound falls by `tol`, in place; returns how many sweeps that took."""
        reads = np.empty((self.differences.size, points.size), np.int32)
        for index, (d, factor) in enumerate(zip(self.differences, self.factors, strict=True)):
            reads[index] = first_cut(points, *_shifted(points.ravel(), d, factor))
        moved = np.zeros(self.largest.size, np.int64)
        fallen = np.zeros(self.largest.size)
        room = np.empty((2, points.size + 1))
        rest = (self.groups, reads, moved, fallen, tol, self.rows.rounding, *room)
        size = self.rows.factors.size
        order = np.stack([np.arange(size - 1), size + np.arange(size - 1)], axis=1).ravel()
        sweeps = 1
        while _sweep(bounds, order, sweeps, *rest):
            order = order if self.rows.halved else order[::-1].copy()
            sweeps += 1
        return sweeps

    def bracket(self, bounds: Floats) -> tuple[Floats, Floats]:
        """Lower and upper bounds (Q, 2n) of the gaps at the cuts."""
        high, other = np.minimum.accumulate(bounds[self.asked, -2::-1], axis=2)
        return np.maximum(0.0, 1.0 - other - _EPS), high[:, ::-1]


def parts(size: int, width: int) -> Iterator[slice]:
    """All rows of an array, as many at a time as do not take much memory."""
    step = max(1, _ROOM // width)
    for start in range(0, size, step):
        yield slice(start, start + step)


def _mirrored(intervals: list[tuple[float, float]]) -> Floats:
    """Intervals, and the same with the other sign."""
    points = np.array(intervals)
    return np.concatenate([points, 0.0 - points[:, ::-1]])


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


def _told_apart(d: Floats) -> Floats:
    """Reward differences, rounded down where there are too many, which raises P(D <= x)."""
    if np.unique(d).size <= _GAPS:
        return d
    step = np.ptp(d) / _GAPS
    return np.floor(d / step) * step


def _distinct(numbers: Ints) -> tuple[Ints, Ints]:
    """`np.unique` with its inverse for integers from zero on, without sorting if they are dense."""
    if numbers.max() > numbers.size:
        return np.unique(numbers, return_inverse=True)
    there = np.bincount(numbers) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def _interval(start: float, end: float, d: float, factor: float) -> tuple[float, float]:
    """Where an interval is read after a step, with its rounding."""
    ends, off = _shifted(np.array([start, end]), d, factor)
    return float(ends[0] - off[0]), float(ends[1] + off[1])


def _shifted(x: Floats, d: float, factor: float) -> tuple[Floats, Floats]:
    """(x - d) / factor, and how inexact: not at all where d = x, or where the factor is a power of
    two and the difference a float. Otherwise the difference, the quotient and the sum of both
    results are rounded, each by half an _EPS of (|x| + |d|) / factor at most."""
    y = x - d
    lost = (x - (y - (y - x))) - (d + (y - x))
    exact = (y == 0.0) | ((lost == 0.0) & (np.frexp(factor)[0] == 0.5))
    return y / factor, np.where(exact, 0.0, 2.0 * _EPS * (np.abs(x) + np.abs(d)) / factor)


@inline
def _lower(bounds: Any, total: Any, rounding: Any) -> Any:
    """Lower bounds (2n + 1,), but the last, to the total, rounded up; by how much, at most."""
    fall = 0.0
    for k in range(bounds.size - 1):
        new = total[k] * (1.0 + rounding)
        if new < bounds[k]:
            fall = max(fall, bounds[k] - new)
            bounds[k] = new
    return fall


@hot
def _sweep(
    bounds: Any,
    rows: Any,
    now: Any,
    groups: Any,
    reads: Any,
    moved: Any,
    fallen: Any,
    tol: Any,
    rounding: Any,
    mixed: Any,
    total: Any,
) -> Any:
    """Sweep number `now`: Gauss-Seidel over rows, where one that follows moved since the last.

    bounds: (2 N, 2n + 1). moved: (2 N,) in which sweep a row moved last: it moves when its bounds
    have fallen by `tol` since then, see fallen (2 N,). mixed, total: room, (2n + 1,). Returns how
    many rows moved.
    """
    starts, gaps, ends, after, weights = groups
    last = bounds.shape[1] - 1
    count = 0
    for r in rows:
        stale = False
        for e in range(ends[starts[r]], ends[starts[r + 1]]):
            stale |= moved[after[e]] >= now - 1
        if not stale:
            continue
        total[:] = 0.0
        for g in range(starts[r], starts[r + 1]):
            mixed[:] = 0.0
            for e in range(ends[g], ends[g + 1]):
                weight = weights[e]
                successor = after[e]
                for k in range(last + 1):
                    mixed[k] += weight * bounds[successor, k]
            gap = gaps[g]
            for k in range(last):
                total[k] += mixed[reads[gap, k]]
        fallen[r] += _lower(bounds[r], total, rounding)
        if fallen[r] > tol:
            fallen[r] = 0.0
            moved[r] = now
            count += 1
    return count
