"""Two orders of laws. In each, one step of all rows leads from bounds of laws to bounds of laws.

**Stochastic order** bounds the distribution functions themselves: over the outcomes d, j of a row,

    P(D <= x) = sum of w P(D_j <= (x - d) / factor),

and so for P(D < x). The *cuts* are these two functions at the points of a grid, in ascending order:
P(D < x_0), P(D <= x_0), P(D < x_1), ... Reading every function at the first cut that is not below
the wanted one bounds it from above. This operator is monotone, so that it leads from one upper
bound to another. Lower bounds are upper bounds of -D, since the grid is symmetric.

A read is exact where (x - d) / factor is a point itself, so that an atom there stays whole. Where
rounding makes it inexact, it is taken a few roundings higher, and points may be intervals of that
size, with the cuts P(D < lower end) and P(D <= upper end). Sums of probabilities are rounded up.

**Convex order** bounds phi(x) = E (x - D)^+, a convex function with slopes P(D < x), P(D <= x):

    phi(x) = sum of w factor phi_j((x - d) / factor),        phi of -D at x = x + E D + phi(-x).

Chords between the points of a grid lie above phi. Lines that support a lower bound of phi lie below
it: at each point one keeps its value and both one-sided slopes, and reads between two points the
higher one of the right line of the left point and the left line of the right point. Both errors are
of second order in the spacing. Reading lower lines is not monotone, but leads from lines below phi
to lines below phi: of the old and the new line at a point, the higher one is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import threaded
from jmdp_lib.solvers.laws.rows import Rows
from jmdp_lib.solvers.laws.sweeps import sweep_cuts, sweep_lines

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # reward differences that stochastic order tells apart, about
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one
_OCTAVE = 8  # points between a distance and twice this distance, at least
_TAIL = 0.02  # probability beyond which the grid gets coarser
_CHUNK = 32  # rows that are worked on at once; each of them sees what the chunks before it found
_FINE = 2.0  # reward differences that are closer than a spacing over this are read together
_ROOM = 1 << 14  # numbers of an array that is worked on at once

_LONG = 1 << 12  # bounds in a chunk from which on threads are worth it
_sweep_lines = threaded(sweep_lines, lambda x, *rest: (len(rest[-1]) - 1) * x[0].size, _LONG)


def line(spacing: float, bulk: float, top: float) -> Floats:
    """(n,) multiples of `spacing` up to `bulk`, either way; from there on, up to `top`, it is four
    times as wide whenever the distance to zero doubles, since gaps are less and less likely."""
    points = spacing * np.arange(np.ceil(bulk / spacing) + 1.0)
    while points[-1] < top:
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


# --- Stochastic order --------------------------------------------------------------------------


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
    def reads(self) -> int:
        """How many numbers a sweep reads, for each cut."""
        return self.groups[1].size + self.groups[3].size

    def memory_on(self, points: int) -> float:
        """Bytes that bounds at the cuts of a grid of so many points take, with their reads."""
        return (
            2.0
            * points
            * (8.5 * self.largest.size + 24.0 * self.asked.size + 4.0 * self.factors.size)
        )

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
        for rows in _parts(len(out), finer.size):
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
        rest = (*self.groups, reads, moved, fallen, tol, self.rows.rounding, *room)
        size = self.rows.factors.size
        order = np.stack([np.arange(size - 1), size + np.arange(size - 1)], axis=1).ravel()
        sweeps = 1
        while sweep_cuts(bounds, order, sweeps, *rest):
            order = order if self.rows.halved else order[::-1].copy()
            sweeps += 1
        return sweeps

    def bracket(self, bounds: Floats) -> tuple[Floats, Floats]:
        """Lower and upper bounds (Q, 2n) of the gaps at the cuts."""
        high, other = np.minimum.accumulate(bounds[self.asked, -2::-1], axis=2)
        return np.maximum(0.0, 1.0 - other - _EPS), high[:, ::-1]


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


# --- Convex order ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """The outcomes of each row, those with one reward difference together, on a grid x (n,).

    outcomes: (starts, kind, ends, after, flipped, weights, beyond, differences). Row r owns the
    groups starts[r] to starts[r + 1] - 1. Group g has the reward difference differences[kind[g]],
    and owns the entries ends[g] to ends[g + 1] - 1: each a row that follows, whether flipped, and
    its probability. Where there are many differences, close ones are read together at the largest
    of them: an entry is then read `beyond` that point, by less than any cell is wide. That is
    linear for a chord; and below, phi at the average of several points is at most its average.

    grid: (x, 1 / widths of its cells, reads, spans). A point k with spans[kind, 0] <= k <
    spans[kind, 1] is read in the cell reads[kind, k]; phi is zero to the left of them, and has
    slope one to the right.
    """

    outcomes: Any
    grid: Any

    @property
    def reads(self) -> float:
        """How many numbers a sweep reads from above."""
        return float((self.outcomes[1].size + self.outcomes[3].size) * self.grid[0].size)


@dataclass(frozen=True)
class Convex:
    """Bounds of phi of N rows on a symmetric grid x (n,): from above (N, 1, n), the values at the
    points; from below (N, 3, n), the values and the slopes of lines to the left and to the right.
    """

    rows: Rows

    def groups(self, x: Floats) -> Groups:
        """The outcomes of each row by reward differences, and where these are read on a grid."""
        made = self.rows.outcomes
        factor = self.rows.factors[made.row]
        cell = factor * np.diff(x).min() / _FINE
        d = np.ceil(made.d / cell) * cell
        if 2 * _count(made.row, d) > _count(made.row, made.d):
            d = made.d
        order = np.lexsort((made.flipped, made.after, d, made.row))
        row, d, after, flipped = (y[order] for y in (made.row, d, made.after, made.flipped))
        group = np.append(True, (np.diff(row) != 0) | (np.diff(d) != 0.0))
        entry = group | np.append(True, (np.diff(after) != 0) | (np.diff(flipped) != 0))
        first = np.flatnonzero(entry)
        weights = np.add.reduceat(made.weights[order], first)
        beyond = made.weights[order] * np.maximum((d - made.d[order]) / factor[order], 0.0)
        beyond = np.add.reduceat(beyond, first) / weights
        starts = np.searchsorted(row[group], np.arange(self.rows.factors.size + 1))
        ends = np.append(np.searchsorted(first, np.flatnonzero(group)), first.size)
        kinds = np.stack([d[group], self.rows.factors[row[group]]])
        (differences, factors), kind = np.unique(kinds, axis=1, return_inverse=True)
        found = (
            starts,
            kind.ravel(),
            ends,
            after[first],
            flipped[first],
            weights,
            beyond,
            differences,
        )
        reads = np.empty((differences.size, x.size), np.int32)
        spans = np.empty((differences.size, 2), np.int64)
        for index, (one, factor) in enumerate(zip(differences, factors, strict=True)):
            y = (x - one) * (1.0 / factor)  # as the sweeps do it
            reads[index] = np.searchsorted(x, y, "right") - 1
            spans[index] = np.searchsorted(y, x[0], "right"), np.searchsorted(y, x[-1])
        entries = (after[first], flipped[first], weights, beyond)
        found = (starts, kind.ravel(), ends, *entries, differences)
        return Groups(found, (x, 1.0 / np.diff(x), reads, spans))

    def above(self, x: Floats) -> Floats:
        """(N, 1, n) phi of the widest law with a row's mean: on the two ends of its support."""
        end = self.rows.largest[:, None]
        rest = end - self.rows.means[:, None] + self.rows.mean_error
        chord = np.clip((x + end) / np.maximum(2.0 * end, 1e-300), 0.0, 1.0) * rest
        return np.where(x < end, chord, rest + x - end)[:, None]

    def below(self, x: Floats) -> Floats:
        """(N, 3, n) phi of the narrowest law with a row's mean: a point there."""
        value = x - self.rows.means[:, None] - self.rows.mean_error
        return np.stack([np.maximum(value, 0.0), value > 0.0, value >= 0.0], axis=1)

    def refined(self, x: Floats, bounds: Floats, finer: Floats) -> Floats:
        """Bounds on another grid that reaches as far, or farther."""
        lower = bounds.shape[1] == 3
        out = self.below(finer) if lower else self.above(finer)
        cell = np.clip(np.searchsorted(x, finer, "right") - 1, 0, x.size - 2)
        inside = (finer >= x[0]) & (finer <= x[-1])
        past = finer - x[cell]
        ahead = x[cell + 1] - finer
        for rows in _parts(len(out), finer.size):
            old, new = bounds[rows], out[rows]
            if lower:
                found = _lines_between(old, cell, past, ahead)
                new[:] = np.where((inside & (found[:, 0] > new[:, 0]))[:, None], found, new)
            else:
                ends = old[..., cell], old[..., cell + 1]
                chord = ends[0] + past / (past + ahead) * (ends[1] - ends[0])
                new[:] = np.where(inside, np.minimum(chord * (1.0 + 4.0 * _EPS), new), new)
        return out

    def settle(self, groups: Groups, bounds: Floats, tol: float) -> int:
        """Sweep until no bound moves by `tol`, in place; returns how many sweeps that took."""
        rows = self.rows
        slack = 32.0 * _EPS * rows.top + rows.mean_error * (rows.longest + 16.0) * _EPS
        known = (rows.factors, rows.means, rows.mean_error, rows.rounding, slack)
        moved = np.zeros(rows.factors.size, np.int64)
        unsaid = np.zeros(rows.factors.size)
        # Half-steps lead to pairs and these to half-steps, so that many rows can be done at once;
        # whole steps are best done one by one, each with what the ones before it found.
        room = np.empty((_CHUNK if rows.halved else 1, 6, bounds.shape[2]))
        made = (groups.grid, groups.outcomes, known)
        order = np.arange(rows.factors.size - 1)
        sweeps = 1
        while True:
            _sweep_lines(bounds, order, sweeps, *made, moved, unsaid, tol, room)
            if not (moved == sweeps).any():
                return sweeps
            order = order if rows.halved else order[::-1].copy()
            sweeps += 1

    def likely(self, x: Floats, above: Floats) -> float:
        """How far from zero some row is likely to be, about: slopes of phi are probabilities."""
        slopes = np.diff(above[:, 0]) / np.diff(x)
        cells = ((slopes > _TAIL) & (slopes < 1.0 - _TAIL)).any(0)
        reach = np.maximum(np.abs(x[:-1]), np.abs(x[1:]))
        return float(reach[cells].max(initial=np.diff(x).min()))


def convex_memory(rows: int, outcomes: int, points: int) -> float:
    """Bytes that convex order takes on a grid, at most: bounds and their refinement, groups of
    outcomes, and where reward differences are read, if there are no more than a few thousand."""
    each = 8.0 * 9.0 * rows + 6.0 * 8.0 * _CHUNK + 5.0 * min(outcomes, 2 * _GAPS)
    return points * each + 20.0 * 8.0 * outcomes


def _count(row: Ints, d: Floats) -> int:
    """How many distinct pairs of a row and a difference there are."""
    order = np.lexsort((d, row))
    return 1 + int(((np.diff(row[order]) != 0) | (np.diff(d[order]) != 0.0)).sum())


def _parts(size: int, width: int) -> Iterator[slice]:
    """All rows of an array, as many at a time as do not take much memory."""
    step = max(1, _ROOM // width)
    for start in range(0, size, step):
        yield slice(start, start + step)


def _lines_between(rows: Floats, cell: Ints, past: Floats, ahead: Floats) -> Floats:
    """(M, 3, m) value and slopes of lower bounds (M, 3, n) in cells, `past` their left ends and
    `ahead` of their right ones; at an end those of the point itself."""
    here, there = rows[..., cell], rows[..., cell + 1]
    from_left = (1.0 - 4.0 * _EPS) * here[:, 0] + here[:, 2] * past
    from_right = (1.0 - 4.0 * _EPS) * there[:, 0] - there[:, 1] * ahead
    slope = np.where(from_left >= from_right, here[:, 2], there[:, 1])
    between = np.stack([np.maximum(from_left, from_right), slope, slope], axis=1)
    return np.where(past == 0.0, here, np.where(ahead == 0.0, there, between))
