"""Sweeps over rows that narrow their bounds, compiled: the same for both orders.

A bound of a row follows from bounds of the rows that come after it. Its outcomes with one reward
difference are a group: their bounds are mixed, and the mixture is read at (x - d) / factor. What is
read there is either

    from above   on the chord between two points: bounds of psi(x) = E |x - D|, see `convex`, and of
                 P(D < x) and P(D <= x), which are read at points only, see `stochastic`;
    from below   on lines that never exceed psi: at each point a value and a slope.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.rows import Outcomes
from jmdp_lib.machine import cached, inline, threaded

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

    @property
    def cost(self) -> int:
        """How long a sweep takes: reading a group takes twice as long as adding an entry."""
        return 2 * self.kind.size + self.after.size


class Reads(NamedTuple):
    """Where n points are read among those of a grid, for each of K kinds.

    cells: (K, n) the cell of the grid. shares: (K, n) after which share of its width; beyond the
    grid, whose outer cells have no mass, less than zero or more than one. widths: of the cells.
    factors: (K,) by which what is read is multiplied.
    """

    cells: Ints
    shares: Floats
    widths: Floats
    factors: Floats


class Step(NamedTuple):
    """One step of all rows, from above or from below. slack: how wrong it may be computed."""

    groups: Groups
    reads: Reads
    slack: float
    lower: bool = False


class Progress(NamedTuple):
    """Sweep number `now` over rows. moved: (N,) in which sweep a row moved last: it moves when it
    has changed by `tol` since then, see unsaid (N,). room: (chunk, 4, n)."""

    rows: Ints
    now: int
    moved: Ints
    unsaid: Floats
    tol: float
    room: Floats


def settle(bounds: Floats, step: Step, rows: Ints, tol: float, chunk: int = 1) -> None:
    """Sweep over rows until no bound moves by `tol`, in place.

    chunk: so many rows are done at a time; each of them sees what the chunks before it found. Rows
    that are done one by one are done from the last to the first in every second sweep.
    """
    size = len(bounds)
    moved = np.zeros(size, np.int64)
    room = np.empty((chunk, 4, bounds.shape[2]))
    progress = Progress(rows, 1, moved, np.zeros(size), tol, room)
    while True:
        _sweep(bounds, *step, progress)
        if not (moved == progress.now).any():
            return
        rows = rows[::-1].copy() if chunk == 1 else rows
        progress = progress._replace(rows=rows, now=progress.now + 1)


def place(x: Floats, kinds: Floats) -> Reads:
    """Where the points x (n,) of a grid are read on it, for kinds (2, K)."""
    widths = np.diff(x)
    cells: Any = np.empty((kinds.shape[1], x.size), np.int32)
    shares = np.empty(cells.shape)
    for kind, (d, factor) in enumerate(kinds.T):
        y = (x - d) / factor
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
    """What follows in group g, (n,), and by what to multiply it; out[2:] is room."""
    start = groups.ends[g]
    if _is_read_alone(g, groups):
        return bounds[groups.after[start], 0], groups.weights[start]
    mixed = out[2]
    ahead = out[3]
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
def upper_row(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, slack: Any) -> None:
    """One step of row r from above, into out[0]; out[2:] is room."""
    total = out[0]
    total[:] = slack
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
    """Lines (2, n) of what follows in group g, and by what to multiply them; out[2:] is room."""
    start = groups.ends[g]
    if _is_read_alone(g, groups):
        return bounds[groups.after[start]], groups.weights[start]
    mixed = out[2:]
    mixed[:] = 0.0
    for e in range(start, groups.ends[g + 1]):
        lines = bounds[groups.after[e]]
        weight = groups.weights[e]
        flipped = groups.flipped[e]
        turned = -weight if flipped else weight
        _add(mixed[0], lines[0], weight, flipped)
        _add(mixed[1], lines[1], turned, flipped)
        if groups.beyond[e] > 0.0:
            _add(mixed[0], lines[1], turned * groups.beyond[e], flipped)
    return mixed, 1.0


@_plain
def lower_row(out: Any, r: Any, bounds: Any, groups: Any, reads: Any, slack: Any) -> None:
    """One step of row r from below: values and slopes into out[:2]; out[2:] is room."""
    out[0] = -slack
    out[1] = 0.0
    for g in range(groups.starts[r], groups.starts[r + 1]):
        lines, scale = _mixed_lines(out, g, bounds, groups)
        kind = groups.kind[g]
        scaled = scale * reads.factors[kind]
        cells = reads.cells[kind]
        shares = reads.shares[kind]
        values = lines[0]
        slopes = lines[1]
        for k in range(cells.size):
            i = np.uintp(cells[k])
            after = i + np.uintp(1)
            width = reads.widths[i]
            past = shares[k] * width
            value = values[i] + slopes[i] * past
            other = values[after] - slopes[after] * (width - past)
            first = value >= other
            out[0, k] += scaled * (value if first else other)
            out[1, k] += scale * (slopes[i] if first else slopes[after])


@_plain
def _is_stale(r: Any, groups: Any, moved: Any, now: Any) -> Any:
    """Whether a row that follows row r moved since the last sweep."""
    stale = False
    for e in range(groups.ends[groups.starts[r]], groups.ends[groups.starts[r + 1]]):
        stale |= moved[groups.after[e]] >= now - 1
    return stale


@_plain
def _keep_better(bounds: Any, found: Any, lower: Any) -> Any:
    """Put what is found where it is a better bound; returns by how much it is, at most."""
    change = 0.0
    sign = 1.0 if lower else -1.0
    for k in range(bounds.shape[1]):
        better = sign * (found[0, k] - bounds[0, k])
        if better > 0.0:
            change = max(change, better)
            for part in range(len(bounds)):
                bounds[part, k] = found[part, k]
    return change


def _sweep_rows(
    bounds: Any, groups: Any, reads: Any, slack: Any, lower: Any, progress: Any
) -> None:
    """One sweep over rows, where one that follows moved since the last sweep."""
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
                if lower:
                    lower_row(room[n], r, bounds, groups, reads, slack)
                else:
                    upper_row(room[n], r, bounds, groups, reads, slack)
        for n in prange(size):
            if stale[n]:
                r = rows[start + n]
                unsaid[r] += _keep_better(bounds[r], room[n], lower)
                if unsaid[r] > tol:
                    unsaid[r] = 0.0
                    moved[r] = now


_sweep = threaded(_sweep_rows, lambda *given: given[-1].room[1:].size // 4, _LONG)
