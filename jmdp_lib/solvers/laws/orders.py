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
from numba import prange
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import cached, hot, inline, threaded
from jmdp_lib.solvers.laws.rows import Rows

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # reward differences that stochastic order tells apart, about
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one
_OCTAVE = 16  # points between a distance and twice this distance, at least
_TAIL = 0.02  # probability beyond which the grid gets coarser
_CHUNK = 32  # rows that are worked on at once; each of them sees what the chunks before it found
_FINE = 2.0  # reward differences that are closer than a spacing over this are read together
_plain: Any = cached(nogil=True, error_model="numpy")
_ROOM = 1 << 14  # numbers of an array that is worked on at once
_LONG = 1 << 12  # bounds in a chunk from which on threads are worth it


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
        while _sweep_cuts(bounds, order, sweeps, *rest):
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


@hot
def _sweep_cuts(
    bounds: Any, rows: Any, now: Any, starts: Any, gaps: Any, ends: Any, after: Any, weights: Any,
    reads: Any, moved: Any, fallen: Any, tol: Any, rounding: Any, mixed: Any, total: Any,
) -> Any:  # fmt: skip
    """Sweep number `now`: Gauss-Seidel over rows, where one that follows moved since the last.

    bounds: (2 N, 2n + 1). moved: (2 N,) in which sweep a row moved last: it moves when its bounds
    have fallen by `tol` since then, see fallen (2 N,). mixed, total: room, (2n + 1,). Returns how
    many rows moved.
    """
    last, count = bounds.shape[1] - 1, 0
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
                weight, successor = weights[e], after[e]
                for k in range(last + 1):
                    mixed[k] += weight * bounds[successor, k]
            gap = gaps[g]
            for k in range(last):
                total[k] += mixed[reads[gap, k]]
        fall = 0.0
        for k in range(last):
            new = total[k] * (1.0 + rounding)
            if new < bounds[r, k]:
                fall = max(fall, bounds[r, k] - new)
                bounds[r, k] = new
        fallen[r] += fall
        if fallen[r] > tol:
            fallen[r], moved[r] = 0.0, now
            count += 1
    return count


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


@inline
def _add_chords(out: Any, values: Any, per_width: Any, w: Any, c: Any, flipped: Any) -> None:
    """Add w times phi (n,) of a row, at `c` to the right of each point, to out (n,); or phi(-x)."""
    last = out.size - 1
    if c == 0.0 and flipped:
        for k in range(out.size):
            out[k] += w * values[last - k]
    elif c == 0.0:
        for k in range(out.size):
            out[k] += w * values[k]
    elif flipped:
        out[last] += w * values[0]
        for k in range(last):
            u = values[last - k]
            out[k] += w * (u - c * (u - values[last - k - 1]) * per_width[last - k - 1])
    else:
        out[last] += w * (values[last] + c)
        for k in range(last):
            out[k] += w * (values[k] + c * (values[k + 1] - values[k]) * per_width[k])


@_plain
def _upper_row(out: Any, r: Any, bounds: Any, grid: Any, groups: Any, known: Any) -> None:
    """One step of row r from above, into out[0]; out[3] is room."""
    x, per_width, reads, spans = grid
    starts, kind, ends, after, flipped, weights, beyond, differences = groups
    factors, means, mean_error = known[0], known[1], known[2]
    factor = factors[r]
    out[0] = 0.0
    for g in range(starts[r], starts[r + 1]):
        e, single = ends[g], ends[g + 1] == ends[g] + 1
        single = single and beyond[e] == 0.0 and not flipped[e]
        mixed, scale = (bounds[after[e], 0], weights[e]) if single else (out[3], 1.0)
        if not single:
            mixed[:] = 0.0
        mass, mean, turned, shift = 0.0, 0.0, 0.0, 0.0
        for e in range(ends[g], ends[g + 1]):
            j, w, c = after[e], weights[e], beyond[e]
            mass += w
            mean += w * ((-means[j] if flipped[e] else means[j]) - c)
            turned += w * flipped[e]
            shift += w * flipped[e] * (means[j] + mean_error + c)
            if not single:
                _add_chords(mixed, bounds[j, 0], per_width, w, c, flipped[e])
        if turned:
            for k in range(x.size):
                mixed[k] += turned * x[k] + shift
        first, last = spans[kind[g], 0], spans[kind[g], 1]
        start, per_factor = differences[kind[g]], 1.0 / factor
        for k in range(first, last):
            i = reads[kind[g], k]
            share = ((x[k] - start) * per_factor - x[i]) * per_width[i]
            out[0, k] += factor * scale * (mixed[i] + share * (mixed[i + 1] - mixed[i]))
        for k in range(last, x.size):
            y = (x[k] - start) * per_factor
            out[0, k] += factor * (mass * (y + mean_error) - mean)
    for k in range(x.size):
        out[0, k] = out[0, k] * (1.0 + known[3]) + known[4]


@inline
def _add_lines(out: Any, lines: Any, x: Any, w: Any, c: Any, flipped: Any) -> None:
    """Add w times the lines (3, n) of a row, `c` to the right of each point, to out (3, n).

    flipped: the lines of phi(-x) instead, whose slopes are one minus those of phi.
    """
    last = x.size - 1
    if c == 0.0 and flipped:
        for k in range(x.size):
            out[0, k] += w * lines[0, last - k]
            out[1, k] += w * (1.0 - lines[2, last - k])
            out[2, k] += w * (1.0 - lines[1, last - k])
    elif c == 0.0:
        for k in range(x.size):
            out[0, k] += w * lines[0, k]
            out[1, k] += w * lines[1, k]
            out[2, k] += w * lines[2, k]
    elif flipped:  # the left line of the point to the right, or the right line of the one before
        for k in range(last):
            p = last - k
            slope, before = lines[1, p], lines[2, p - 1]
            value = lines[0, p] - slope * c
            other = lines[0, p - 1] + before * (x[p] - x[p - 1] - c)
            slope = slope if value >= other else before
            out[0, k] += w * max(value, other)
            out[1, k] += w * (1.0 - slope)
            out[2, k] += w * (1.0 - slope)
        out[0, last] += w * (lines[0, 0] - lines[1, 0] * c)
        out[1, last] += w * (1.0 - lines[1, 0])
        out[2, last] += w * (1.0 - lines[1, 0])
    else:
        for k in range(last):
            slope, ahead = lines[2, k], lines[1, k + 1]
            value = lines[0, k] + slope * c
            other = lines[0, k + 1] - ahead * (x[k + 1] - x[k] - c)
            slope = slope if value >= other else ahead
            out[0, k] += w * max(value, other)
            out[1, k] += w * slope
            out[2, k] += w * slope
        out[0, last] += w * (lines[0, last] + lines[2, last] * c)
        out[1, last] += w * lines[2, last]
        out[2, last] += w * lines[2, last]


@_plain
def _lower_row(out: Any, r: Any, bounds: Any, grid: Any, groups: Any, known: Any) -> None:
    """One step of row r from below: value and slopes into out[:3]; out[3:] is room."""
    x, _, reads, spans = grid
    starts, kind, ends, after, flipped, weights, beyond, differences = groups
    factors, means, mean_error = known[0], known[1], known[2]
    factor = factors[r]
    out[:3] = 0.0
    for g in range(starts[r], starts[r + 1]):
        e, single = ends[g], ends[g + 1] == ends[g] + 1
        single = single and beyond[e] == 0.0 and not flipped[e]
        mixed, scale = (bounds[after[e]], weights[e]) if single else (out[3:], 1.0)
        if not single:
            mixed[:] = 0.0
        mass, mean, turned, shift = 0.0, 0.0, 0.0, 0.0
        for e in range(ends[g], ends[g + 1]):
            j, w, c = after[e], weights[e], beyond[e]
            mass += w
            mean += w * ((-means[j] if flipped[e] else means[j]) - c)
            turned += w * flipped[e]
            shift += w * flipped[e] * (means[j] - mean_error + c)
            if not single:
                _add_lines(mixed, bounds[j], x, w, c, flipped[e])
        if turned:
            for k in range(x.size):
                mixed[0, k] += turned * x[k] + shift
        first, last = spans[kind[g], 0], spans[kind[g], 1]
        start, per_factor = differences[kind[g]], 1.0 / factor
        for k in range(first, last):
            i = reads[kind[g], k]
            past = (x[k] - start) * per_factor - x[i]
            value = mixed[0, i] + mixed[2, i] * past
            other = mixed[0, i + 1] - mixed[1, i + 1] * (x[i + 1] - x[i] - past)
            left = mixed[2, i] if value >= other else mixed[1, i + 1]
            right = mixed[1, i + 1] if other > value else mixed[2, i]
            out[0, k] += factor * scale * max(value, other)
            out[1, k] += scale * (mixed[1, i] if past == 0.0 else left)
            out[2, k] += scale * right
        for k in range(last, x.size):
            y = (x[k] - start) * per_factor
            out[0, k] += factor * (mass * (y - mean_error) - mean)
            out[1, k] += mass
            out[2, k] += mass
    for k in range(x.size):
        out[0, k] = out[0, k] * (1.0 - known[3]) - known[4]
        out[1, k] = min(1.0, out[1, k] * (1.0 + known[3]))
        out[2, k] *= 1.0 - known[3]


def _all_lines(
    bounds: Any, order: Any, now: Any, grid: Any, groups: Any, known: Any, moved: Any, unsaid: Any,
    tol: Any, room: Any,
) -> None:  # fmt: skip
    """Sweep number `now` over all rows, where one that follows moved since the last sweep.

    bounds: (N, 1, n) from above or (N, 3, n) from below. moved: (N,) in which sweep a row moved
    last: it moves when it has changed by `tol` since then, see unsaid (N,).
    """
    starts, ends, after = groups[0], groups[2], groups[3]
    lower = bounds.shape[1] == 3
    fresh = np.zeros(room.shape[0], np.bool_)
    for start in range(0, order.size, room.shape[0]):
        size = min(room.shape[0], order.size - start)
        for n in prange(size):
            r = order[start + n]
            fresh[n] = False
            for e in range(ends[starts[r]], ends[starts[r + 1]]):
                fresh[n] |= moved[after[e]] >= now - 1
            if fresh[n] and lower:
                _lower_row(room[n], r, bounds, grid, groups, known)
            elif fresh[n]:
                _upper_row(room[n], r, bounds, grid, groups, known)
        for n in prange(size):
            if not fresh[n]:
                continue
            r = order[start + n]
            step = 0.0
            for k in range(bounds.shape[2]):
                change = room[n, 0, k] - bounds[r, 0, k]
                better = change > 0.0 if lower else change < 0.0
                if better:
                    step = max(step, abs(change))
                    for part in range(bounds.shape[1]):
                        bounds[r, part, k] = room[n, part, k]
                elif lower and change == 0.0:
                    bounds[r, 1, k] = min(bounds[r, 1, k], room[n, 1, k])
                    bounds[r, 2, k] = max(bounds[r, 2, k], room[n, 2, k])
            unsaid[r] += step
            if unsaid[r] > tol:
                unsaid[r] = 0.0
                moved[r] = now


_sweep_lines = threaded(_all_lines, lambda x, *rest: (len(rest[-1]) - 1) * x[0].size, _LONG)
