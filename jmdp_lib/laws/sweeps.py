"""Compiled sweeps that narrow the bounds of rows, for both orders.

A bound of a row follows from bounds of its next rows. The outcomes of a row with one reward
difference form a group: the bounds of their next rows are mixed, and the mixture is read at
(x - d) / factor. Bounds (N, 1, n) are upper ones; a read between two points takes the chord in
`convex`, and the bound of a cut in `stochastic`. Bounds (N, 2, n) are the values and slopes of
lines below a convex function.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import threaded
from jmdp_lib.laws.rows import Outcomes
from jmdp_lib.machine import cached, inline

_CHUNK = 32  # rows that are swept at a time where there are half-steps
_LONG = 1 << 12  # threads are faster if a chunk has at least this many bounds
_plain: Any = cached(nogil=True, error_model="numpy", fastmath={"contract"}, _nrt=False)


class Groups(NamedTuple):
    """The outcomes of each row, grouped by reward difference.

    Row r owns the groups starts[r] to starts[r + 1] - 1. Group g has a kind, a reward difference
    and a factor, and owns the entries ends[g] to ends[g + 1] - 1 of after, flipped and weights, as
    in `Outcomes`.
    """

    starts: Ints
    kind: Ints
    ends: Ints
    after: Ints
    flipped: Ints
    weights: Floats

    @classmethod
    def of(cls, outcomes: Outcomes, factors: Floats) -> tuple[Groups, Floats]:
        """Groups of merged outcomes; also the difference and the factor of each kind, (2, K).

        Kinds are in the order in which groups use them, so the reads of a row are close in memory.
        """
        new = np.append(True, (np.diff(outcomes.row) != 0) | (np.diff(outcomes.d) != 0.0))
        first = np.flatnonzero(new)
        row = outcomes.row[first]
        pairs = np.stack([outcomes.d[first], factors[row]])
        kinds, used, kind = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(used)
        kinds = kinds.take(order, 1)  # contiguous, or another layout would be compiled
        kind = np.argsort(order)[kind.ravel()]
        starts = np.searchsorted(row, np.arange(factors.size + 1))
        ends = np.append(first, new.size)
        return cls(
            starts, kind.ravel(), ends, outcomes.after, outcomes.flipped, outcomes.weights
        ), kinds

    @property
    def cost(self) -> float:
        """Cost of a sweep, in entries: reading a group takes as long as adding two entries."""
        return 2.0 * self.kind.size + self.after.size


class Reads(NamedTuple):
    """Reads of n bounds for each of K kinds.

    cells: (K, n) the index of the bound of a cut, or of the cell of a grid. shares: (K, n) the
    position in the cell, as a share of its width; below zero or above one beyond the grid, whose
    outer cells have no mass. widths: widths of the cells; empty if bounds of cuts are read.
    factors: (K,).
    """

    cells: Ints
    shares: Floats
    widths: Floats
    factors: Floats


class Step(NamedTuple):
    """Arrays for one step of all rows. slack: an upper limit of the rounding error of a bound."""

    groups: Groups
    reads: Reads
    slack: float


def settle(bounds: Floats, step: Step, tol: float, halved: bool) -> int:
    """Sweep until no bound moves by `tol`, in place; returns the number of sweeps.

    Half-steps lead to pairs and pairs to half-steps, so many rows can be swept at once. Whole steps
    are best swept one by one, each from the new bounds of the rows before it.
    """
    scratch = np.empty((_CHUNK if halved else 1, 4, bounds.shape[2]))
    sweeps = 1
    while _sweep(bounds, *step, scratch) > tol:
        sweeps += 1
    return sweeps


@cached(nogil=True, error_model="numpy")
def place(x, points, kinds):
    """Reads of a grid x at ascending points (n,), for kinds (2, K).

    It is compiled, since K may reach a hundred thousand.
    """
    shape = kinds.shape[1], points.size
    cells = np.empty(shape, np.int32)
    shares = np.empty(shape)
    for kind in range(shape[0]):
        i = 0
        for k in range(points.size):
            y = (points[k] - kinds[0, kind]) / kinds[1, kind]
            while i < x.size - 2 and x[i + 1] <= y:
                i += 1
            cells[kind, k] = i
            shares[kind, k] = (y - x[i]) / (x[i + 1] - x[i])
    return Reads(cells, shares, np.diff(x), kinds[1])


@inline
def _add(out, values, weight, flipped):
    """Add values (n,), times a weight, to out (n,); in reverse order if flipped."""
    if flipped:
        last = out.size - 1
        for k in range(out.size):
            out[k] += weight * values[last - k]
    else:
        for k in range(out.size):
            out[k] += weight * values[k]


@_plain
def _mixture(scratch, g, bounds, groups):
    """Mixture of the next bounds of group g, (2, n), and a factor still to be applied to it."""
    start = groups.ends[g]
    stop = groups.ends[g + 1]
    if stop == start + 1 and not groups.flipped[start]:
        return bounds[groups.after[start]], groups.weights[start]
    scratch[:] = 0.0
    for e in range(start, stop):
        after = bounds[groups.after[e]]
        flipped = groups.flipped[e]
        weight = groups.weights[e]
        _add(scratch[0], after[0], weight, flipped)
        if bounds.shape[1] == 2:
            _add(scratch[1], after[1], -weight if flipped else weight, flipped)
    return scratch, 1.0


@_plain
def _upper_row(out, r, bounds, groups, reads, slack):
    """Write one step of the upper bounds of row r to out[0]; out[2:] is scratch."""
    total = out[0]
    total[:] = slack
    for g in range(groups.starts[r], groups.starts[r + 1]):
        mixed, scale = _mixture(out[2:], g, bounds, groups)
        values = mixed[0]
        kind = groups.kind[g]
        cells = reads.cells[kind]
        if reads.widths.size == 0:
            for k in range(total.size):
                # An unsigned index needs no test for negative values.
                total[k] += scale * values[np.uintp(cells[k])]
        else:
            scale *= reads.factors[kind]
            shares = reads.shares[kind]
            for k in range(total.size):
                i = np.uintp(cells[k])
                value = values[i]
                total[k] += scale * (value + shares[k] * (values[i + np.uintp(1)] - value))


@_plain
def _lower_row(out, r, bounds, groups, reads, slack):
    """Write one step of the lines below row r to out[:2]; out[2:] is scratch.

    A read between two points takes the higher of their two lines.
    """
    total = out[0]
    slopes = out[1]
    total[:] = -slack
    slopes[:] = 0.0
    for g in range(groups.starts[r], groups.starts[r + 1]):
        lines, scale = _mixture(out[2:], g, bounds, groups)
        kind = groups.kind[g]
        cells = reads.cells[kind]
        shares = reads.shares[kind]
        scaled = scale * reads.factors[kind]
        for k in range(total.size):
            i = np.uintp(cells[k])
            after = i + np.uintp(1)
            width = reads.widths[i]
            past = shares[k] * width
            value = lines[0, i] + lines[1, i] * past
            other = lines[0, after] - lines[1, after] * (width - past)
            first = value >= other
            total[k] += scaled * (value if first else other)
            slopes[k] += scale * (lines[1, i] if first else lines[1, after])


@_plain
def follow(out, r, bounds, groups, reads, slack):
    """Write one step of row r to out (4, n): its bounds; values and slopes for lines."""
    if bounds.shape[1] == 2:
        _lower_row(out, r, bounds, groups, reads, slack)
    else:
        _upper_row(out, r, bounds, groups, reads, slack)


@_plain
def _keep_better(bounds, new):
    """Replace bounds by new ones where these are narrower; returns the largest change."""
    lines = len(bounds) == 2
    change = 0.0
    for k in range(bounds.shape[1]):
        better = new[0, k] - bounds[0, k] if lines else bounds[0, k] - new[0, k]
        if better > 0.0:
            change = max(change, better)
            bounds[0, k] = new[0, k]
            if lines:
                bounds[1, k] = min(max(new[1, k], -1.0), 1.0)  # no other slope is possible
    return change


def _sweep_rows(bounds, groups, reads, slack, scratch):
    """Sweep once over all rows; returns the largest change of a bound. scratch: (chunk, 4, n)."""
    moved = np.zeros(len(scratch))
    for start in range(0, len(bounds), len(scratch)):
        size = min(len(scratch), len(bounds) - start)
        for n in prange(size):
            follow(scratch[n], start + n, bounds, groups, reads, slack)
        for n in prange(size):
            moved[n] = max(moved[n], _keep_better(bounds[start + n], scratch[n]))
    return moved.max()


_sweep = threaded(_sweep_rows, lambda *arguments: arguments[-1][1:].size // 4, _LONG)
