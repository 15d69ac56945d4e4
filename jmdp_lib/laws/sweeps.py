"""Sweeps over rows that narrow their bounds, compiled: the same for both orders.

A bound of a row follows from bounds of the rows that come after it. Its outcomes with one reward
difference are a group: their bounds are mixed, and the mixture is read at (x - d) / factor. What is
read where depends on the order:

    CUTS   bounds of P(D < x) and P(D <= x), from above, see `stochastic`;
    ABOVE  bounds of psi(x) = E |x - D| from above, by chords, see `convex`;
    BELOW  lines below psi: at each point a value, and slopes to the left and to the right.

To carry bounds over to another grid is a sweep, too, in which every row follows from itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Outcomes
from jmdp_lib.machine import cached, inline, threaded

CUTS, ABOVE, BELOW = range(3)
CHUNK = 32  # rows that are done at a time where that is worth it
_LONG = 1 << 12  # bounds in a chunk from which on threads are worth it
_plain: Any = cached(nogil=True, error_model="numpy", fastmath={"contract"}, _nrt=False)


class Groups(NamedTuple):
    """The outcomes of each row, those with one reward difference together.

    Row r owns the groups starts[r] to starts[r + 1] - 1. Group g is of a kind, a reward difference
    and a factor, and owns the entries ends[g] to ends[g + 1] - 1, as in `Outcomes`: each a row that
    follows, whether flipped, and its probability. An entry may be read `beyond` the point where its
    group is read, by less than any cell is wide: that is linear for a chord, and for a line.
    """

    starts: Ints
    kind: Ints
    ends: Ints
    after: Ints
    flipped: Ints
    weights: Floats
    beyond: Floats

    @classmethod
    def of(cls, made: Outcomes, factors: Floats) -> tuple[Groups, Floats]:
        """The groups of merged outcomes; and (2, K), difference and factor of each kind."""
        new = np.append(True, (np.diff(made.row) != 0) | (np.diff(made.d) != 0.0))
        first = np.flatnonzero(new)
        row = made.row[first]
        pairs = np.stack([made.d[first], factors[row]])
        kinds, kind = np.unique(pairs, axis=1, return_inverse=True)
        starts = np.searchsorted(row, np.arange(factors.size + 1))
        entries = (made.after, made.flipped, made.weights, made.beyond)
        return cls(starts, kind.ravel(), np.append(first, new.size), *entries), kinds

    @classmethod
    def identity(cls, size: int) -> Groups:
        """Every row follows from itself."""
        each = np.arange(size + 1)
        none = np.zeros(size, np.int64)
        return cls(each, none, each, each[:-1], none, np.ones(size), np.zeros(size))

    @property
    def cost(self) -> int:
        """How long a sweep takes: reading a group takes twice as long as adding an entry."""
        return 2 * self.kind.size + self.after.size

    @property
    def numbers_read(self) -> int:
        """How many numbers a sweep reads, for each point."""
        return self.kind.size + self.after.size


class Reads(NamedTuple):
    """Where n points are read among those of a grid, for each of K kinds.

    cells: (K, n) the cut, or the cell of the grid. shares: (K, n) after which share of its width;
    beyond the grid, whose outer cells have no mass, less than zero or more than one. widths: of the
    cells. factors: (K,).
    """

    cells: Ints
    shares: Floats
    widths: Floats
    factors: Floats


class Limits(NamedTuple):
    """What is in all sums of an order: CUTS, ABOVE or BELOW. slack: how wrong a value may be
    computed; rounding: a probability, or a slope."""

    order: int
    slack: float
    rounding: float


class Step(NamedTuple):
    """One step of all rows."""

    groups: Groups
    reads: Reads
    limits: Limits

    @property
    def from_below(self) -> Step:
        """The same step of lines below psi."""
        return self._replace(limits=self.limits._replace(order=BELOW))


class Progress(NamedTuple):
    """Sweep number `now` over rows. moved: (N,) in which sweep a row moved last: it moves when it
    has changed by `tol` since then, see unsaid (N,). room: (chunk, 6, n)."""

    rows: Ints
    now: int
    moved: Ints
    unsaid: Floats
    tol: float
    room: Floats

    @classmethod
    def start(cls, rows: Ints, bounds: Floats, tol: float, chunk: int) -> Progress:
        """Before the first sweep."""
        size = len(bounds)
        room = np.empty((chunk, 6, bounds.shape[2]))
        return cls(rows, 1, np.zeros(size, np.int64), np.zeros(size), tol, room)


def settle(bounds: Floats, step: Step, rows: Ints, tol: float, back: bool, chunk: int = 1) -> int:
    """Sweep over rows until no bound moves by `tol`, in place; returns how many sweeps that took.

    back: every second sweep goes from the last row to the first. chunk: so many rows are done at a
    time; each of them sees what the chunks before it found.
    """
    progress = Progress.start(rows, bounds, tol, chunk)
    while True:
        _sweep(bounds, bounds, *step, progress)
        if not (progress.moved == progress.now).any():
            return progress.now
        rows = rows[::-1].copy() if back else rows
        progress = progress._replace(rows=rows, now=progress.now + 1)


def carry(bounds: Floats, step: Step, out: Floats) -> Floats:
    """Put the bounds of a grid where they are better than those of another, in place.

    step: of rows that follow from themselves.
    """
    progress = Progress.start(np.arange(len(out)), out, np.inf, CHUNK)
    _sweep(bounds, out, *step, progress)
    return out


def place(x: Floats, points: Floats, kinds: Floats) -> Reads:
    """Where points (n,) are read on a grid x, for kinds (2, K)."""
    widths = np.diff(x)
    cells: Any = np.empty((kinds.shape[1], points.size), np.int32)
    shares = np.empty(cells.shape)
    for kind, (d, factor) in enumerate(kinds.T):
        y = (points - d) / factor
        cells[kind] = np.clip(np.searchsorted(x, y, "right") - 1, 0, widths.size - 1)
        shares[kind] = (y - x[cells[kind]]) / widths[cells[kind]]
    return Reads(cells, shares, widths, kinds[1])


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
def _mixture(out: Any, g: Any, bounds: Any, groups: Any, widths: Any) -> Any:
    """What follows in group g, (n,), and by what to multiply it; out[3:5] is room."""
    start = groups.ends[g]
    if _is_read_alone(g, groups):
        return bounds[groups.after[start], 0], groups.weights[start]
    mixed = out[3]
    ahead = out[4]
    mixed[:] = 0.0
    past_the_end = 0.0
    for e in range(start, groups.ends[g + 1]):
        values = bounds[groups.after[e], 0]
        _add(mixed, values, groups.weights[e], groups.flipped[e])
        if groups.beyond[e] > 0.0:
            if past_the_end == 0.0:
                ahead[:] = 0.0
            distance = groups.weights[e] * groups.beyond[e]
            _add(ahead, values, distance, groups.flipped[e])
            past_the_end += distance
    if past_the_end > 0.0:
        for k in range(mixed.size - 1):
            mixed[k] += (ahead[k + 1] - ahead[k]) / widths[k]
        mixed[-1] += past_the_end  # no slope exceeds one
    return mixed, 1.0


@_plain
def _cuts_row(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, limits: Any) -> None:
    """One step of row r in stochastic order, into out[0]; out[3:5] is room."""
    total = out[0]
    total[:] = 0.0
    for g in range(groups.starts[r], groups.starts[r + 1]):
        mixed, scale = _mixture(out, g, bounds, groups, reads.widths)
        cells = reads.cells[groups.kind[g]]
        for k in range(cells.size):
            total[k] += scale * mixed[np.uintp(cells[k])]  # see `_upper_row`
    for k in range(total.size):
        total[k] *= 1.0 + limits.rounding
    total[-1] = 1.0  # beyond the grid


@_plain
def _upper_row(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, limits: Any) -> None:
    """One step of row r from above, into out[0]; out[3:5] is room."""
    total = out[0]
    total[:] = limits.slack
    for g in range(groups.starts[r], groups.starts[r + 1]):
        mixed, scale = _mixture(out, g, bounds, groups, reads.widths)
        kind = groups.kind[g]
        scale *= reads.factors[kind]
        cells = reads.cells[kind]
        shares = reads.shares[kind]
        for k in range(total.size):
            i = np.uintp(cells[k])  # unsigned numbers need no look whether they count from the end
            value = mixed[i]
            total[k] += scale * (value + shares[k] * (mixed[i + np.uintp(1)] - value))


@_plain
def _mixed_lines(out: Any, g: Any, bounds: Any, groups: Any) -> Any:
    """Lines (3, n) of what follows in group g, and by what to multiply them; out[3:] is room.
    What is read beyond a point is on the line that goes to the right there."""
    start = groups.ends[g]
    if _is_read_alone(g, groups):
        return bounds[groups.after[start]], groups.weights[start]
    mixed = out[3:]
    mixed[:] = 0.0
    for e in range(start, groups.ends[g + 1]):
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
    return mixed, 1.0


@_plain
def _lower_row(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, limits: Any) -> None:
    """One step of row r from below: value and slopes into out[:3]; out[3:] is room."""
    total = out[0]
    kinks = out[1]  # by how much the left slope differs from the right one
    slopes = out[2]
    total[:] = -limits.slack
    kinks[:] = 2.0 * limits.rounding
    slopes[:] = -limits.rounding
    for g in range(groups.starts[r], groups.starts[r + 1]):
        lines, scale = _mixed_lines(out, g, bounds, groups)
        _read_lines(out, lines, scale, groups.kind[g], reads)
    for k in range(total.size):
        kinks[k] += slopes[k]


@inline
def _read_lines(out: Any, lines: Any, scale: Any, kind: Any, reads: Any) -> None:
    """Add values, kinks and slopes of lines (3, n), where they are read, to out[:3]."""
    cells = reads.cells[kind]
    shares = reads.shares[kind]
    scaled = scale * reads.factors[kind]
    values = lines[0]
    lefts = lines[1]
    rights = lines[2]
    for k in range(cells.size):
        i = np.uintp(cells[k])
        after = i + np.uintp(1)
        width = reads.widths[i]
        past = shares[k] * width
        value = values[i] + rights[i] * past
        other = values[after] - lefts[after] * (width - past)
        first = value >= other
        out[0, k] += scaled * (value if first else other)
        out[2, k] += scale * (rights[i] if first else lefts[after])
        if first and past == 0.0:  # else the left line of the point is not on what is read
            out[1, k] += scale * (lefts[i] - rights[i])


@_plain
def follow(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, limits: Any) -> None:
    """One step of row r into out (6, n): value, and slopes if there are any."""
    if limits.order == CUTS:
        _cuts_row(out, r, bounds, groups, reads, limits)
    elif limits.order == ABOVE:
        _upper_row(out, r, bounds, groups, reads, limits)
    else:
        _lower_row(out, r, bounds, groups, reads, limits)


@_plain
def _is_stale(r: Any, groups: Any, moved: Any, now: Any) -> Any:
    """Whether a row that follows row r moved since the last sweep."""
    stale = False
    for e in range(groups.ends[groups.starts[r]], groups.ends[groups.starts[r + 1]]):
        stale |= moved[groups.after[e]] >= now - 1
    return stale


@_plain
def _keep_lower(values: Any, found: Any) -> Any:
    """Put what is found where it is a lower upper bound; returns by how much it is, at most."""
    change = 0.0
    for k in range(values.size):
        change = max(change, values[k] - found[k])
        values[k] = min(values[k], found[k])
    return change


@_plain
def _keep_higher(lines: Any, found: Any) -> Any:
    """The same for lines below psi; of two that are equally high, what lies higher beside them."""
    change = 0.0
    for k in range(lines.shape[1]):
        better = found[0, k] - lines[0, k]
        if better > 0.0:
            change = max(change, better)
            for part in range(3):
                lines[part, k] = found[part, k]
        elif better == 0.0:
            lines[1, k] = min(lines[1, k], found[1, k])
            lines[2, k] = max(lines[2, k], found[2, k])
    return change


def _sweep_rows(
    source: Any, bounds: Any, groups: Any, reads: Any, limits: Any, progress: Any
) -> None:
    """One sweep over rows, where one that follows moved since the last sweep.

    source, bounds: the bounds that are read, and those that are narrowed.
    """
    lower = limits.order == BELOW
    rows = progress.rows
    now = progress.now
    moved = progress.moved  # what is written on threads must have a name of its own
    unsaid = progress.unsaid
    tol = progress.tol
    room = progress.room
    chunk = len(room)
    stale = np.zeros(chunk, np.bool_)
    for start in range(0, rows.size, chunk):
        size = min(chunk, rows.size - start)
        for n in prange(size):
            r = rows[start + n]
            stale[n] = _is_stale(r, groups, moved, now)
            if stale[n]:
                follow(room[n], r, source, groups, reads, limits)
        for n in prange(size):
            if stale[n]:
                r = rows[start + n]
                if lower:
                    unsaid[r] += _keep_higher(bounds[r], room[n])
                else:
                    unsaid[r] += _keep_lower(bounds[r, 0], room[n, 0])
                if unsaid[r] > tol:
                    unsaid[r] = 0.0
                    moved[r] = now


_sweep = threaded(_sweep_rows, lambda *given: given[-1].room[1:].size // 6, _LONG)
