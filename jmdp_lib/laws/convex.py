"""Convex order: bounds of phi(x) = E (x - D)^+, whose errors are of second order in the spacing.

phi is convex, with slopes P(D < x) and P(D <= x), and over the outcomes d, j of a row

    phi(x) = sum of w factor phi_j((x - d) / factor),        phi of -D at x = x + E D + phi(-x).

Chords between the points of a grid lie above phi. Lines that support a lower bound of phi lie below
it: at each point one keeps its value and both one-sided slopes, and reads between two points the
higher one of the right line of the left point and the left line of the right point. Reading lower
lines is not monotone, but leads from lines below phi to lines below phi: of the old and the new
line at a point, the higher one is kept.

What sums to a bound is rounded: see `Convex.slack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.stochastic import parts
from jmdp_lib.machine import cached, inline, threaded

_EPS = float(np.finfo(float).eps)
_TAIL = 0.02  # probability beyond which the grid gets coarser
_CHUNK = 32  # rows that are worked on at once; each of them sees what the chunks before it found
_FINE = 2.0  # reward differences that are closer than a spacing over this may be read together
_KINDS = 2048  # reward differences that are read, about
_plain: Any = cached(nogil=True, error_model="numpy", fastmath={"contract"})


class Grid(NamedTuple):
    """Where a grid x (n,) is read, for each kind of outcomes: a reward difference and a factor.

    A point k with spans[kind, 0] <= k < spans[kind, 1] is read in the cell cells[kind, k], after a
    share shares[kind, k] of its width. phi is zero left of them, and has slope one to the right.
    """

    x: Floats
    widths: Floats
    cells: Ints
    shares: Floats
    spans: Ints


class Groups(NamedTuple):
    """The outcomes of each row, those with one reward difference together.

    Row r owns the groups starts[r] to starts[r + 1] - 1. Group g is of a kind, see `Grid`, with the
    reward difference d[g], and owns the entries ends[g] to ends[g + 1] - 1: each a row that
    follows, whether flipped, and its probability. Where there are many differences, close ones are
    read together at the largest of them: an entry is then read `beyond` that point, by less than
    any cell is wide. That is linear for a chord, and for a line.

    Of the entries of a group together: their mass, and the mean of what follows. Of those that are
    flipped: their mass, `turned`, and what phi of -D has beside x + phi(-x), their `shift`.
    """

    starts: Ints
    kind: Ints
    d: Floats
    mass: Floats
    mean: Floats
    turned: Floats
    shift: Floats
    ends: Ints
    after: Ints
    flipped: Ints
    weights: Floats
    beyond: Floats

    @property
    def numbers_read(self) -> int:
        """How many numbers a sweep from above reads, for each point."""
        return self.kind.size + self.after.size


@dataclass(frozen=True)
class Convex:
    """Bounds of phi of N rows on a symmetric grid x (n,): from above (N, 1, n), the values at the
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

    def grouped(self, x: Floats) -> tuple[Grid, Groups]:
        """The outcomes of each row by reward differences, and where these are read on a grid."""
        made = self.rows.outcomes
        factor = self.rows.factors[made.row]
        d = self._together(x)
        order = np.lexsort((made.flipped, made.after, d, made.row))
        row = made.row[order]
        d = d[order]
        after = made.after[order]
        flipped = made.flipped[order]
        new_group = np.append(True, (np.diff(row) != 0) | (np.diff(d) != 0.0))
        new_entry = new_group | np.append(True, (np.diff(after) != 0) | (np.diff(flipped) != 0))
        first = np.flatnonzero(new_entry)
        weights = np.add.reduceat(made.weights[order], first)
        off = made.weights[order] * np.maximum((d - made.d[order]) / factor[order], 0.0)
        beyond = np.add.reduceat(off, first) / weights
        starts = np.searchsorted(row[new_group], np.arange(self.rows.factors.size + 1))
        ends = np.searchsorted(first, np.flatnonzero(new_group))
        kinds = np.stack([d[new_group], self.rows.factors[row[new_group]]])
        kinds, kind = np.unique(kinds, axis=1, return_inverse=True)
        entries = (after[first], flipped[first], weights, beyond)
        mass, mean, turned, shift = self._totals(ends, *entries)
        of_group = (kind.ravel(), d[new_group], mass, mean, turned, shift)
        groups = Groups(starts, *of_group, np.append(ends, first.size), *entries)
        return _grid(x, *kinds), groups

    def _together(self, x: Floats) -> Floats:
        """(M,) reward differences; those that are close are one, if that makes sweeps much faster.

        Reading a group takes about twice as long as adding up one of its entries.
        """
        made = self.rows.outcomes
        cell = self.rows.factors[made.row] * np.diff(x).min() / _FINE
        close = np.ceil(made.d / cell) * cell
        costs = []
        for d in (close, made.d):
            groups = _count(made.row, d)
            costs.append(2 * groups + _count(made.row, d, made.after, made.flipped))
        worth = 1 if np.unique(made.d).size > _KINDS else 2  # tables of so many reads are slow
        return close if worth * costs[0] <= costs[1] else made.d

    def _totals(
        self, first: Ints, after: Ints, flipped: Ints, weights: Floats, beyond: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """(G,) mass, mean, turned and shift of groups, whose first entries are given."""
        mean = self.rows.means[after]
        signed = np.where(flipped, -mean, mean) - beyond
        turned = weights * flipped
        return (
            np.add.reduceat(weights, first),
            np.add.reduceat(weights * signed, first),
            np.add.reduceat(turned, first),
            np.add.reduceat(turned * (mean + beyond), first),
        )

    def above(self, x: Floats) -> Floats:
        """(N, 1, n) phi of the widest law with a row's mean: on the two ends of its support."""
        end = self.rows.largest[:, None]
        rest = end - self.rows.means[:, None] + self.rows.mean_error
        chord = np.clip((x + end) / np.maximum(2.0 * end, 1e-300), 0.0, 1.0) * rest
        return np.where(x < end, chord, rest + x - end)[:, None] + self.slack(x[-1])

    def below(self, x: Floats) -> Floats:
        """(N, 3, n) phi of the narrowest law with a row's mean: a point there."""
        value = x - self.rows.means[:, None] - self.rows.mean_error - self.slack(x[-1])
        return np.stack([np.maximum(value, 0.0), value > 0.0, value >= 0.0], axis=1)

    def refined(self, x: Floats, bounds: Floats, finer: Floats) -> Floats:
        """Bounds on another grid that reaches as far, or farther."""
        lower = bounds.shape[1] == 3
        out = self.below(finer) if lower else self.above(finer)
        cell = np.clip(np.searchsorted(x, finer, "right") - 1, 0, x.size - 2)
        inside = (finer >= x[0]) & (finer <= x[-1])
        past = finer - x[cell]
        ahead = x[cell + 1] - finer
        slack = self.slack(x[-1])
        for rows in parts(len(out), finer.size):
            old = bounds[rows]
            new = out[rows]
            if lower:
                found = _lines_between(old, cell, past, ahead)
                found[:, 0] -= slack
                new[:] = np.where((inside & (found[:, 0] > new[:, 0]))[:, None], found, new)
            else:
                left = old[..., cell]
                chord = left + past / (past + ahead) * (old[..., cell + 1] - left) + slack
                new[:] = np.where(inside, np.minimum(chord, new), new)
        return out

    def settle(self, grid: Grid, groups: Groups, bounds: Floats, tol: float) -> int:
        """Sweep until no bound moves by `tol`, in place; returns how many sweeps that took."""
        rows = self.rows
        known = (rows.factors, rows.mean_error, rows.rounding, self.slack(grid.x[-1]))
        moved = np.zeros(rows.factors.size, np.int64)
        unsaid = np.zeros(rows.factors.size)
        # Half-steps lead to pairs and these to half-steps, so that many rows can be done at once;
        # whole steps are best done one by one, each with what the ones before it found.
        room = np.empty((_CHUNK if rows.halved else 1, 6, bounds.shape[2]))
        order = np.arange(rows.factors.size - 1)
        sweeps = 1
        while True:
            _sweep_on_threads(bounds, order, sweeps, grid, groups, known, moved, unsaid, tol, room)
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


def _count(*columns: Any) -> int:
    """How many distinct rows columns (M,) have."""
    order = np.lexsort(columns[::-1])
    return 1 + int(np.any([np.diff(column[order]) != 0 for column in columns], axis=0).sum())


def _grid(x: Floats, differences: Floats, factors: Floats) -> Grid:
    """Where a grid x (n,) is read for each of the kinds (K,)."""
    shape = (differences.size, x.size)
    grid = Grid(
        x, np.diff(x), np.empty(shape, np.int32), np.empty(shape), np.empty((shape[0], 2), np.int64)
    )
    _place(grid, differences, factors)
    return grid


@_plain
def _place(grid: Any, differences: Any, factors: Any) -> None:
    """Find the cells, shares and spans of a grid: cells move to the right with the points."""
    x = grid.x
    last = x.size - 1
    for kind in range(differences.size):
        cell = 0
        first = 0
        end = 0
        for k in range(x.size):
            y = (x[k] - differences[kind]) / factors[kind]
            first += y < x[0]
            end += y < x[last]
            while cell < last - 1 and x[cell + 1] <= y:
                cell += 1
            grid.cells[kind, k] = cell
            grid.shares[kind, k] = (y - x[cell]) / grid.widths[cell]
        grid.spans[kind, 0] = first
        grid.spans[kind, 1] = end


def _lines_between(rows: Floats, cell: Ints, past: Floats, ahead: Floats) -> Floats:
    """(M, 3, m) value and slopes of lower bounds (M, 3, n) in cells, `past` their left ends and
    `ahead` of their right ones; at an end those of the point itself."""
    here = rows[..., cell]
    there = rows[..., cell + 1]
    from_left = here[:, 0] + here[:, 2] * past
    from_right = there[:, 0] - there[:, 1] * ahead
    slope = np.where(from_left >= from_right, here[:, 2], there[:, 1])
    between = np.stack([np.maximum(from_left, from_right), slope, slope], axis=1)
    return np.where(past == 0.0, here, np.where(ahead == 0.0, there, between))


# --- Sweeps, compiled ---------------------------------------------------------------------------


@inline
def _add(out: Any, values: Any, weight: Any, flipped: Any) -> None:
    """Add values (n,), or the same from the last to the first, times a weight to out (n,)."""
    if flipped:
        last = out.size - 1
        for k in range(out.size):
            out[k] += weight * values[last - k]
    else:
        for k in range(out.size):
            out[k] += weight * values[k]


@inline
def _is_read_alone(g: Any, groups: Any) -> Any:
    """Whether a group is one entry that is read as it stands."""
    e = groups.ends[g]
    return groups.ends[g + 1] == e + 1 and groups.beyond[e] == 0.0 and not groups.flipped[e]


@_plain
def _mix_chords(mixed: Any, ahead: Any, g: Any, bounds: Any, grid: Any, groups: Any) -> None:
    """Add what follows in group g to mixed (n,). ahead: room, (n,)."""
    ahead[:] = 0.0
    past_the_end = 0.0
    some = False
    for e in range(groups.ends[g], groups.ends[g + 1]):
        values = bounds[groups.after[e], 0]
        _add(mixed, values, groups.weights[e], groups.flipped[e])
        if groups.beyond[e] > 0.0:
            some = True
            distance = groups.weights[e] * groups.beyond[e]
            _add(ahead, values, distance, groups.flipped[e])
            past_the_end += 0.0 if groups.flipped[e] else distance
    if some:
        for k in range(mixed.size - 1):
            mixed[k] += (ahead[k + 1] - ahead[k]) / grid.widths[k]
        mixed[-1] += past_the_end


@inline
def _read_chords(total: Any, mixed: Any, scale: Any, kind: Any, grid: Any) -> None:
    """Add the values of a mixture (n,), where it is read, times scale to total (n,)."""
    cells = grid.cells[kind]
    shares = grid.shares[kind]
    for k in range(np.uintp(grid.spans[kind, 0]), np.uintp(grid.spans[kind, 1])):
        i = np.uintp(cells[k])  # unsigned numbers need no look whether they count from the end
        value = mixed[i]
        total[k] += scale * (value + shares[k] * (mixed[i + np.uintp(1)] - value))


@_plain
def _upper_row(out: Any, r: Any, bounds: Any, grid: Any, groups: Any, known: Any) -> None:
    """One step of row r from above, into out[0]; out[3:5] is room."""
    factors, mean_error, _, slack = known
    factor = factors[r]
    total = out[0]
    total[:] = slack
    for g in range(groups.starts[r], groups.starts[r + 1]):
        mixed = out[3]
        scale = factor
        if _is_read_alone(g, groups):
            mixed = bounds[groups.after[groups.ends[g]], 0]
            scale = factor * groups.mass[g]
        else:
            shift = groups.shift[g] + groups.turned[g] * mean_error
            for k in range(mixed.size):
                mixed[k] = groups.turned[g] * grid.x[k] + shift
            _mix_chords(mixed, out[4], g, bounds, grid, groups)
        kind = groups.kind[g]
        _read_chords(total, mixed, scale, kind, grid)
        rest = factor * (groups.mass[g] * mean_error - groups.mean[g])
        for k in range(grid.spans[kind, 1], total.size):
            total[k] += groups.mass[g] * (grid.x[k] - groups.d[g]) + rest


@_plain
def _mix_lines(mixed: Any, g: Any, bounds: Any, groups: Any) -> None:
    """Add what follows in group g to mixed (3, n). Slopes of phi(-x) are one minus those of phi.
    What is read beyond a point is on the line that goes to the right there."""
    for e in range(groups.ends[g], groups.ends[g + 1]):
        lines = bounds[groups.after[e]]
        w = groups.weights[e]
        flipped = groups.flipped[e]
        sign = -1.0 if flipped else 1.0
        right = lines[1] if flipped else lines[2]
        left = right
        if groups.beyond[e] == 0.0:
            left = lines[2] if flipped else lines[1]
        else:
            _add(mixed[0], right, sign * w * groups.beyond[e], flipped)
        _add(mixed[0], lines[0], w, flipped)
        _add(mixed[1], left, sign * w, flipped)
        _add(mixed[2], right, sign * w, flipped)


@_plain
def _lower_row(out: Any, r: Any, bounds: Any, grid: Any, groups: Any, known: Any) -> None:
    """One step of row r from below: value and slopes into out[:3]; out[3:] is room."""
    factors, mean_error, rounding, slack = known
    factor = factors[r]
    total = out[0]
    kinks = out[1]  # by how much the left slope differs from the right one
    slopes = out[2]
    total[:] = -slack
    kinks[:] = 2.0 * rounding
    slopes[:] = -rounding
    for g in range(groups.starts[r], groups.starts[r + 1]):
        mixed = out[3:]
        scale = 1.0
        if _is_read_alone(g, groups):
            mixed = bounds[groups.after[groups.ends[g]]]
            scale = groups.mass[g]
        else:
            shift = groups.shift[g] - groups.turned[g] * mean_error
            for k in range(total.size):
                mixed[0, k] = groups.turned[g] * grid.x[k] + shift
            mixed[1:] = groups.turned[g]
            _mix_lines(mixed, g, bounds, groups)
        _read_lines(out, mixed, scale, factor * scale, groups.kind[g], grid)
        mass = groups.mass[g]
        rest = -factor * (mass * mean_error + groups.mean[g])
        for k in range(grid.spans[groups.kind[g], 1], total.size):
            total[k] += mass * (grid.x[k] - groups.d[g]) + rest
            slopes[k] += mass
    for k in range(total.size):
        kinks[k] += slopes[k]


@inline
def _read_lines(out: Any, mixed: Any, scale: Any, scaled: Any, kind: Any, grid: Any) -> None:
    """Add values, kinks and slopes of a mixture (3, n), where it is read, to out[:3]."""
    cells = grid.cells[kind]
    shares = grid.shares[kind]
    values = mixed[0]
    lefts = mixed[1]
    rights = mixed[2]
    for k in range(np.uintp(grid.spans[kind, 0]), np.uintp(grid.spans[kind, 1])):
        i = np.uintp(cells[k])
        after = i + np.uintp(1)
        width = grid.widths[i]
        past = shares[k] * width
        value = values[i] + rights[i] * past
        other = values[after] - lefts[after] * (width - past)
        first = value >= other
        out[0, k] += scaled * (value if first else other)
        out[2, k] += scale * (rights[i] if first else lefts[after])
        if first and past == 0.0:  # else the left line of the point is not on what is read
            out[1, k] += scale * (lefts[i] - rights[i])


@_plain
def _keep_better(bounds: Any, found: Any, lower: Any) -> Any:
    """Put what is found where it is a better bound of a row; returns by how much it is, at most."""
    step = 0.0
    for k in range(bounds.shape[1]):
        change = found[0, k] - bounds[0, k] if lower else bounds[0, k] - found[0, k]
        if change > 0.0:
            step = max(step, change)
            for part in range(bounds.shape[0]):
                bounds[part, k] = found[part, k]
        elif lower and change == 0.0:
            bounds[1, k] = min(bounds[1, k], found[1, k])
            bounds[2, k] = max(bounds[2, k], found[2, k])
    return step


def _sweep(
    bounds: Any,
    order: Any,
    now: Any,
    grid: Any,
    groups: Any,
    known: Any,
    moved: Any,
    unsaid: Any,
    tol: Any,
    room: Any,
) -> None:
    """Sweep number `now` over all rows, where one that follows moved since the last sweep.

    bounds: (N, 1, n) from above or (N, 3, n) from below. moved: (N,) in which sweep a row moved
    last: it moves when it has changed by `tol` since then, see unsaid (N,).
    """
    lower = bounds.shape[1] == 3
    stale = np.zeros(room.shape[0], np.bool_)
    for start in range(0, order.size, room.shape[0]):
        size = min(room.shape[0], order.size - start)
        for n in prange(size):
            r = order[start + n]
            stale[n] = False
            for e in range(groups.ends[groups.starts[r]], groups.ends[groups.starts[r + 1]]):
                stale[n] |= moved[groups.after[e]] >= now - 1
            if stale[n] and lower:
                _lower_row(room[n], r, bounds, grid, groups, known)
            elif stale[n]:
                _upper_row(room[n], r, bounds, grid, groups, known)
        for n in prange(size):
            if stale[n]:
                r = order[start + n]
                unsaid[r] += _keep_better(bounds[r], room[n], lower)
                if unsaid[r] > tol:
                    unsaid[r] = 0.0
                    moved[r] = now


_LONG = 1 << 12  # bounds in a chunk from which on threads are worth it
_sweep_on_threads = threaded(_sweep, lambda x, *rest: (len(rest[-1]) - 1) * x[0].size, _LONG)
