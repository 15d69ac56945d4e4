"""One sweep over all rows in each of the two orders, compiled: see `orders` for what is done."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from jmdp_lib.machine import cached, hot, inline

_plain: Any = cached(nogil=True, error_model="numpy")


@hot
def sweep_cuts(
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


@inline
def _totals(g: Any, groups: Any, means: Any, off: Any) -> Any:
    """Of the outcomes of group g: their mass, and the mean of what follows. Of those that are
    flipped: their mass, and what phi of -D has beside x + phi(-x), with means `off` the truth."""
    ends, after, flipped, weights, beyond = groups[2:7]
    mass, mean, turned, shift = 0.0, 0.0, 0.0, 0.0
    for e in range(ends[g], ends[g + 1]):
        w, m, c = weights[e], means[after[e]], beyond[e]
        mass += w
        mean += w * ((-m if flipped[e] else m) - c)
        turned += w * flipped[e]
        shift += w * flipped[e] * (m + off + c)
    return mass, mean, turned, shift


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


@inline
def _read_chords(out: Any, law: Any, place: Any, x: Any, per_width: Any, factor: Any) -> None:
    """Add factor * phi((x - d) / factor) of a mixture to out[0].

    law: (phi at the points, by what to multiply it, its mass, its mean). place: (d, the cells that
    are read, the first and the last of them).
    """
    mixed, scale, mass, mean = law
    d, cells, first, last = place
    per_factor = 1.0 / factor
    for k in range(first, last):
        i = cells[k]
        share = ((x[k] - d) * per_factor - x[i]) * per_width[i]
        out[0, k] += factor * scale * (mixed[i] + share * (mixed[i + 1] - mixed[i]))
    for k in range(last, x.size):
        out[0, k] += factor * (mass * ((x[k] - d) * per_factor) - mean)


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
            for e in range(ends[g], ends[g + 1]):
                _add_chords(
                    mixed, bounds[after[e], 0], per_width, weights[e], beyond[e], flipped[e]
                )
        mass, mean, turned, shift = _totals(g, groups, means, mean_error)
        if turned:
            for k in range(x.size):
                mixed[k] += turned * x[k] + shift
        law = (mixed, scale, mass, mean - mass * mean_error)
        place = (differences[kind[g]], reads[kind[g]], spans[kind[g], 0], spans[kind[g], 1])
        _read_chords(out, law, place, x, per_width, factor)
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


@inline
def _read_lines(out: Any, law: Any, place: Any, x: Any, factor: Any) -> None:
    """Add the lines below factor * phi((x - d) / factor) of a mixture to out[:3], as above."""
    mixed, scale, mass, mean = law
    d, cells, first, last = place
    per_factor = 1.0 / factor
    for k in range(first, last):
        i = cells[k]
        past = (x[k] - d) * per_factor - x[i]
        value = mixed[0, i] + mixed[2, i] * past
        other = mixed[0, i + 1] - mixed[1, i + 1] * (x[i + 1] - x[i] - past)
        left = mixed[2, i] if value >= other else mixed[1, i + 1]
        right = mixed[1, i + 1] if other > value else mixed[2, i]
        out[0, k] += factor * scale * max(value, other)
        out[1, k] += scale * (mixed[1, i] if past == 0.0 else left)
        out[2, k] += scale * right
    for k in range(last, x.size):
        out[0, k] += factor * (mass * ((x[k] - d) * per_factor) - mean)
        out[1, k] += mass
        out[2, k] += mass


@inline
def _round_down(out: Any, rounding: Any, slack: Any) -> None:
    """Lower the values out[0], and turn the lines to either side, as far as rounding may matter."""
    for k in range(out.shape[1]):
        out[0, k] = out[0, k] * (1.0 - rounding) - slack
        out[1, k] = min(1.0, out[1, k] * (1.0 + rounding))
        out[2, k] *= 1.0 - rounding


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
            for e in range(ends[g], ends[g + 1]):
                _add_lines(mixed, bounds[after[e]], x, weights[e], beyond[e], flipped[e])
        mass, mean, turned, shift = _totals(g, groups, means, -mean_error)
        if turned:
            for k in range(x.size):
                mixed[0, k] += turned * x[k] + shift
        law = (mixed, scale, mass, mean + mass * mean_error)
        place = (differences[kind[g]], reads[kind[g]], spans[kind[g], 0], spans[kind[g], 1])
        _read_lines(out, law, place, x, factor)
    _round_down(out, known[3], known[4])


def sweep_lines(
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
