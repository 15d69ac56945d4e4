"""Upper bounds of the distribution functions of differences of returns, one for each two states.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. Two branches at one
state that draw the same action are one branch, so that D = 0; otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. With d = R - R',

    P(D <= x) = sum over outcomes of p P(D(S', T') <= (x - d) / gamma),

and so for P(D < x). The *cuts* are these two functions at the points of a grid, in ascending order:
P(D < x_0), P(D <= x_0), P(D < x_1), ... Reading every function at the first cut that is not below
the wanted one bounds it from above. This operator is monotone, so that it leads from one upper
bound to another. Lower bounds are upper bounds of D(t, s) = -D(s, t), since the grid is symmetric.

A read is exact where (x - d) / gamma is a point itself, so that an atom there stays whole. Where
rounding makes it inexact, it is taken a few roundings higher, and points may be intervals of that
size, with the cuts P(D < lower end) and P(D <= upper end). Sums of probabilities are rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import hot
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import CollapsedT2, ragged
from jmdp_lib.operators.reachable import PairSet, places

_EPS = float(np.finfo(float).eps)
_ROUNDS = 64  # steps that bound |D|, at least
_GAPS = 1024  # reward differences that are told apart, about
_DIGITS = 12  # decimals of reward differences that count, in units of the largest reward
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one


@dataclass(frozen=True)
class Steps:
    """One step of R differences: P pairs of states with both signs, Q queries with both, and zero.

    Row r < P is the pair at place r of a set, and P + r the same with the other sign. outcomes:
    (starts, gaps, ends, after, weights). Row r owns the groups starts[r] to starts[r + 1] - 1. A
    group holds the outcomes of one reward difference, differences[gaps[g]], and owns the entries
    ends[g] to ends[g + 1] - 1: each a successor's row, after (N,), and its probability, weights
    (N,). largest: (R,) bounds of |D|, zero where D is nothing but zero. asked: (2, Q) the rows of
    the queries, with either sign. longest: how many draws a row sums at most.
    """

    gamma: float
    outcomes: Any
    differences: Floats
    largest: Floats
    asked: Ints
    longest: int

    @classmethod
    def of(
        cls, jm: JMDP, policy: Floats, coupling: str, pairs: PairSet, queries: Ints,
        unit: float = 1.0,
    ) -> Steps:  # fmt: skip
        """queries: (Q, 3), rows (s, a, b), whose successors are in the set of pairs.

        unit: of all differences, a power of ten, such that the largest reward is 1 to 10 units.
        """
        first, second = pairs.members
        first, second = np.append(first, second), np.append(second, first)
        both = policy[first, :, None] * policy[second, None, :]
        same = first == second
        both[same] *= 1.0 - np.eye(jm.num_actions)
        # Two branches: their row, their states and actions, and how likely they act so.
        row, a, b = np.nonzero(both)
        asked, (s, i, j) = first.size + np.arange(2 * len(queries)), queries.T
        chance = np.append(both[row, a, b], np.ones(asked.size))
        a, b = np.concatenate([a, i, j]), np.concatenate([b, j, i])
        s, t = np.concatenate([first[row], s, s]), np.concatenate([second[row], s, s])
        row, zero = np.append(row, asked), first.size + asked.size
        # Branches that draw the same action are one from there on; zero stays zero.
        one, merged = np.append(np.flatnonzero(same), zero), (policy[first[same]] ** 2).sum(1)
        parts = [(one, np.zeros(one.size), np.full(one.size, zero), np.append(merged, 1.0))]
        shared = {"joint": s == t, "independent": s < 0, "common": s >= 0}[coupling]
        for together in (True, False):
            n = np.flatnonzero(shared == together)
            draw, i, j, weight = _draws(jm, s[n], t[n], together)
            n = n[draw]
            x, y = (pairs.numbering.number[jm.next_states[k]] for k in ((i, a[n]), (j, b[n])))
            after = places(pairs.rows, pairs.words, x, y) + pairs.size * (x < y)
            after = after if jm.gamma else np.full_like(after, zero)
            d = jm.rewards[i, a[n]] - jm.rewards[j, b[n]]
            parts.append((row[n], d, after, chance[n] * weight))
        row, d, after, weight = map(np.concatenate, zip(*parts, strict=True))
        longest = int(np.bincount(row).max())
        d = np.round(d / unit, _DIGITS) + 0.0
        if np.unique(d).size > _GAPS:  # rounded down, which raises P(D <= x)
            steps = np.floor(d * (_GAPS / np.ptp(d)))
            found, gap = _distinct((steps - steps.min()).astype(np.int64))
            differences = (found + steps.min()) * (np.ptp(d) / _GAPS)
        else:
            differences, gap = np.unique(d, return_inverse=True)
        keys = (row * differences.size + gap) * (zero + 1) + after
        keys, entry = _distinct(keys)
        groups, ends = np.unique(keys // (zero + 1), return_index=True)
        row, gaps = np.divmod(groups, differences.size)
        starts, ends = np.searchsorted(row, np.arange(zero + 2)), np.append(ends, keys.size)
        after, size = keys % (zero + 1), np.abs(differences[np.repeat(gaps, np.diff(ends))])
        largest = _largest(jm.gamma, ends[starts[:-1]], size, after)
        outcomes = (starts, gaps, ends, after, np.bincount(entry, weight))
        return cls(jm.gamma or 1.0, outcomes, differences, largest, asked.reshape(2, -1), longest)

    @staticmethod
    def memory(system: CollapsedT2, pairs: PairSet, queries: Ints) -> float:
        """Bytes that `of` takes, and then `nearby`, at most.

        An outcome of two branches is in 24 arrays while outcomes are made and sorted, and two
        branches with their actions are in 9. `nearby` has a matrix over all reward differences,
        which takes 18 MB at most.
        """
        jm, (first, second) = system.jm, pairs.members
        same, states = first == second, queries[:, 0]
        tables, played = np.diff(jm.starts), (system.policy > 0.0).sum(1)
        shared = {"joint": same, "independent": False, "common": True}[system.coupling]
        alone = {"joint": False, "independent": True, "common": False}[system.coupling]
        branches = np.where(
            same, played[first] * (played[first] - 1), played[first] * played[second]
        )
        outcomes = (branches * tables[first] * np.where(shared, 1, tables[second])).sum()
        outcomes += (tables[states] * np.where(alone, tables[states], 1)).sum() + same.sum()
        differences = min(np.unique(jm.rewards).size ** 2, 2 * outcomes, _GAPS)
        drawn = first.size * jm.num_actions**2 + len(queries)
        return float(2 * (24 * 8 * outcomes + 9 * 8 * drawn) + 18 * differences**2)

    def memory_on(self, points: Floats) -> float:
        """Bytes that bounds at the cuts of a grid (n, 2) take, with their reads, at most.

        Those of the queries are in another six arrays while they are read off.
        """
        rows = 8.5 * self.largest.size + 6 * 8 * self.asked.size / 2
        return points.size * (rows + 4.0 * self.differences.size)

    @property
    def rounding(self) -> float:
        """How much too small a sum of probabilities can be, relative to it.

        A row's draws are summed, first those with one outcome, and then the outcomes: each addition
        loses half an _EPS at most. The rest is for the products.
        """
        return _EPS * (16.0 + self.longest)

    def nearby(self, limit: int) -> Floats:
        """(n, 2) zero, and the points that are read, step by step, to know the queries at zero.

        There are few of them where few rewards differ, as in a world whose only reward is its goal.
        Where there are more than `limit`, those of the first steps. A step widens an interval by
        1 / gamma; one that is no longer much narrower than points that are taken for one is left
        out, so that none reaches zero.
        """
        starts, gaps, ends, after, _ = self.outcomes
        shape, lasting = (self.largest.size, self.differences.size), self.largest[after] > 0.0
        gaps = np.repeat(gaps, np.diff(ends))[lasting]
        rows = np.repeat(np.arange(shape[0]), np.diff(ends[starts]))[lasting]
        has = sparse.csr_array((np.ones(gaps.size), (rows, gaps)), shape)
        follow = (
            sparse.csr_array((np.ones(gaps.size), (after[lasting], gaps)), shape).T.tocsr() @ has
        )
        found: dict[Any, Any] = {None: (0.0, 0.0)}
        top, alike = self.largest.max(), _ALIKE * self.largest.max()
        todo = [(0.0, 0.0, np.unique(has[self.asked.ravel()].indices))]
        for start, end, then in todo:
            for gap in then:
                if len(found) >= limit:
                    break
                ends, off = _shifted(np.array([start, end]), self.differences[gap], self.gamma)
                low, high = ends[0] - off[0], ends[1] + off[1]
                node = round(low / alike), gap
                if node not in found and max(-low, high) < top and high - low < alike / 4.0:
                    found[node] = (low, high) if node[0] else (0.0, 0.0)
                    after_it = follow.indices[follow.indptr[gap] : follow.indptr[gap + 1]]
                    todo.append((*found[node], after_it))
        points = np.array(list(found.values()))
        return np.concatenate([points, 0.0 - points[:, ::-1]])

    def grid(self, spacing: float, bulk: float, others: Floats) -> Floats:
        """(n, 2) points: multiples of `spacing` up to `bulk`, and `others`, (m, 2).

        From there on, as far as D can reach, it doubles whenever the distance to zero does.
        """
        line = spacing * np.arange(np.ceil(bulk / spacing) + 1.0)
        while line[-1] < self.largest.max():
            line = np.append(line, 2.0 * line[line > line[-1] / 2.0])
        line = np.append(-line[:0:-1], line)
        points = np.concatenate([np.stack([line, line], axis=1), others])
        points = points[np.argsort(points[:, 0])]
        apart = points[1:, 0] > np.maximum.accumulate(points[:, 1])[:-1]
        first = np.flatnonzero(np.append(True, apart))
        return np.stack([points[first, 0], np.maximum.reduceat(points[:, 1], first)], axis=1)

    def trivial(self, points: Floats) -> Floats:
        """(R, 2n + 1) upper bounds at the cuts from nothing but the size of D; the last is one."""
        bounds, least = np.ones((self.largest.size, points.size + 1)), -self.largest[:, None]
        bounds[:, :-1:2][points[:, 0] <= least] = 0.0
        bounds[:, 1::2][points[:, 1] < least] = 0.0
        return bounds

    def reads(self, points: Floats) -> Any:
        """(G, 2n) the cut that is read for each cut, after a step with each reward difference."""
        out = np.empty((self.differences.size, points.size), np.int32)
        for index, d in enumerate(self.differences):
            out[index] = first_cut(points, *_shifted(points.ravel(), d, self.gamma))
        return out


def first_cut(points: Floats, x: Floats, off: Floats | float = 0.0) -> Ints:
    """(2m,) the first cut of a grid (n, 2) not below those at x (2m,); 2n where there is none.

    x: where P(D < x[0]), P(D <= x[1]), P(D < x[2]), ... are wanted. off: how inexact x is. Both
    functions are read at x + off, where they are no less: D < x implies D < x + off.
    """
    cuts, x = points.ravel(), x + off
    after = np.searchsorted(cuts, x, "right")
    found = after - ((after % 2 == 0) & (cuts[after - 1] == x))  # there x is an upper end
    found[::2] = np.searchsorted(cuts, x[::2])
    return found


def _distinct(numbers: Ints) -> tuple[Ints, Ints]:
    """`np.unique` with its inverse for integers from zero on, without sorting if they are dense."""
    if numbers.max() > numbers.size:
        return np.unique(numbers, return_inverse=True)
    there = np.bincount(numbers) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def _draws(jm: JMDP, s: Ints, t: Ints, together: bool) -> tuple[Ints, Ints, Ints, Floats]:
    """What two branches at states s and t, (N,), draw: one table number, or each its own.

    Returns for every draw which of the N it belongs to, the two tables and the probability.
    """
    counts = np.diff(jm.starts)
    width = np.ones_like(t) if together else counts[t]
    _, draw, within = ragged(counts[s] * width)
    i, j = np.divmod(within, width[draw])
    i, j = jm.starts[s][draw] + i, jm.starts[t][draw] + (i if together else j)
    return draw, i, j, jm.probs[i] * (1.0 if together else jm.probs[j])


def _largest(gamma: float, starts: Ints, size: Floats, after: Ints) -> Floats:
    """(R,) bounds of |D| for entries (N,), in order of rows: |d| and the row of the successor."""
    bound, rounds, positive = np.zeros(starts.size), 0, -1
    while rounds < _ROUNDS or (bound > 0.0).sum() > positive:
        positive, rounds = (bound > 0.0).sum(), rounds + 1
        bound = np.maximum.reduceat(size + gamma * bound[after], starts)
    rest = gamma**rounds * size.max() / (1.0 - gamma)
    return np.where(bound > 0.0, (bound + rest) * (1.0 + 1e-9), 0.0)


def _shifted(x: Floats, d: float, gamma: float) -> tuple[Floats, Floats]:
    """(x - d) / gamma, and how inexact: not at all where d = x, or where gamma is a power of two
    and the difference a float. Otherwise the difference, the quotient and the sum of both results
    are rounded, each by half an _EPS of (|x| + |d|) / gamma at most."""
    y = x - d
    lost = (x - (y - (y - x))) - (d + (y - x))
    exact = (y == 0.0) | ((lost == 0.0) & (np.frexp(gamma)[0] == 0.5))
    return y / gamma, np.where(exact, 0.0, 2.0 * _EPS * (np.abs(x) + np.abs(d)) / gamma)


@hot
def sweep(
    bounds: Any, rows: Any, now: Any, starts: Any, gaps: Any, ends: Any, after: Any, weights: Any,
    reads: Any, moved: Any, fallen: Any, tol: Any, rounding: Any, mixed: Any, total: Any,
) -> Any:  # fmt: skip
    """Sweep number `now`: Gauss-Seidel over these rows, where a successor moved since the last one.

    bounds: (R, 2n + 1). moved: (R,) in which sweep a row moved last: it moves when its bounds have
    fallen by `tol` since then, see fallen (R,). mixed, total: room, (2n + 1,). Returns how many
    rows moved.
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
