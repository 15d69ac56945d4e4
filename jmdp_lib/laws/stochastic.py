"""Stochastic order: bounds of distribution functions, exact where rewards lie on a lattice.

Over the outcomes d, j of a row,

    P(D <= x) = sum of w P(D_j <= (x - d) / factor),

and so for P(D < x). The *cuts* are these two functions at the points of a grid, in ascending order:
P(D < x_0), P(D <= x_0), P(D < x_1), ... Reading every function at the first cut that is not below
the wanted one bounds it from above. This operator is monotone, so that it leads from one upper
bound to another. Lower bounds are upper bounds of -D, since the grid is symmetric.

A read is exact where (x - d) / factor is a point itself, so that an atom there stays whole. Where
rounding makes it inexact, it is taken a few roundings higher. Sums of probabilities are rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.laws.brackets import StepBracket
from jmdp_lib.laws.rows import Outcomes, Rows
from jmdp_lib.laws.sweeps import Groups, Reads, Step, settle

_EPS = float(np.finfo(float).eps)
_GAPS = 1024  # reward differences that are told apart, about
_COARSE = 16  # points on either side of zero, at least, beside those nearby
_NEARBY = 512  # points that are read for the gaps at the read points, at most
_ALIKE = 1e-10  # points that differ by less, relative to the largest gap, are taken for one
_EXACT = 1e-13  # sweeps end when exact probabilities move by less


@dataclass(frozen=True)
class Stochastic:
    """Upper bounds of the distribution functions of N rows and their negatives at 2n cuts."""

    rows: Rows

    @cached_property
    def largest(self) -> Floats:
        """(2 N,) bounds of |D|."""
        return np.tile(self.rows.largest, 2)

    @cached_property
    def asked(self) -> Ints:
        """(2, Q) the rows of the gaps, with either sign."""
        return np.stack([self.rows.asked, self.rows.asked + self.rows.factors.size])

    @cached_property
    def _outcomes(self) -> Outcomes:
        """Of all rows with both signs."""
        made = self.rows.outcomes
        size = self.rows.factors.size
        row = np.append(made.row, made.row + size)
        after = np.append(made.after + size * made.flipped, made.after + size * (1 - made.flipped))
        d = _told_apart(np.append(made.d, 0.0 - made.d))
        none = np.zeros(row.size, np.int64)
        return Outcomes(row, d, after, none, np.tile(made.weights, 2), np.zeros(row.size)).merged

    @cached_property
    def _grouped(self) -> tuple[Groups, Floats]:
        return Groups.of(self._outcomes, np.tile(self.rows.factors, 2))

    def bracket(self, reads: Floats, tol: float) -> StepBracket:
        """Of the Q gaps, (Q, 2n) each, on one grid: the read points, and those nearby.

        tol: sweeps end when probabilities that are not exact move by less.
        """
        top = self.rows.top
        nearby, exact = self._nearby(reads)
        spacing = 2.0 ** np.floor(np.log2((top or 1.0) / _COARSE))
        half = np.append(spacing * np.arange(np.ceil(top / spacing) + 1.0), nearby)
        points = np.unique(np.append(half, 0.0 - half))
        bounds = self.start(points)
        self.settle(points, bounds, _EXACT if exact else tol)
        return StepBracket(points, *self.ends(bounds))

    def _nearby(self, reads: Floats) -> tuple[Floats, bool]:
        """(n,) the read points, and those at which others are read, step by step, to know the gaps
        there; and whether these are all.

        There are few of them where few rewards differ, as in a world whose only reward is its goal.
        Those that are nearly the same are read at the same point above them.
        """
        kinds = self._grouped[1].T
        top = self.rows.top
        if len(kinds) > _NEARBY or top == 0.0:
            return reads, top == 0.0
        alike = _ALIKE * top
        has, follow = self._followers
        found = set[tuple[float, int]]()
        todo = [(x, np.unique(has[self.asked.ravel()].indices)) for x in reads.tolist()]
        for x, then in todo:
            for kind in then.tolist():
                y = float(np.add(*shifted(x, *kinds[kind])))
                node = (float(np.ceil(y / alike + 1e-3 * (y != 0.0))) * alike, kind)
                if node in found or abs(node[0]) >= top:
                    continue
                if len(found) == _NEARBY:
                    return np.append(reads, [x for x, _ in todo[: _NEARBY // 8]]), False
                found.add(node)
                after_it = follow.indices[follow.indptr[kind] : follow.indptr[kind + 1]]
                todo.append((node[0], after_it))
        return np.array([x for x, _ in todo]), True

    @cached_property
    def _followers(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """(2 N, K) which kinds a row has, and (K, K) which ones follow another."""
        groups, kinds = self._grouped
        shape = (self.largest.size, kinds.shape[1])
        lasting = self.largest[groups.after] > 0.0
        kind = np.repeat(groups.kind, np.diff(groups.ends))[lasting]
        ones = np.ones(kind.size)
        has = sparse.csr_array((ones, (self._outcomes.row[lasting], kind)), shape)
        after = sparse.csr_array((ones, (groups.after[lasting], kind)), shape)
        return has, after.T.tocsr() @ has

    def start(self, points: Floats) -> Floats:
        """(2 N, 1, 2n + 2) upper bounds from nothing but the size of D; the last two are one."""
        least = -self.largest[:, None, None]
        bounds = np.ones((self.largest.size, 1, 2 * points.size + 2))
        bounds[..., :-2:2][points <= least] = 0.0
        bounds[..., 1:-2:2][points < least] = 0.0
        return bounds

    def settle(self, points: Floats, bounds: Floats, tol: float) -> None:
        """Sweep until no bound falls by `tol`, in place."""
        groups, kinds = self._grouped
        cuts = [first_cuts(points, *shifted(points, *kind)) for kind in kinds.T]
        cells: Any = np.array(cuts, np.int32)
        zeros = np.zeros(cells.shape)
        reads = Reads(cells, zeros, np.ones(cells.shape[1]), np.ones(len(cells)))
        size = self.rows.factors.size
        rows = np.stack([np.arange(size - 1), size + np.arange(size - 1)], axis=1).ravel()
        settle(bounds, Step(groups, reads, self.rows.rounding), rows, tol)

    def ends(self, bounds: Floats) -> tuple[Floats, Floats]:
        """Lower and upper bounds (Q, 2n) of the gaps at the cuts."""
        high, other = np.minimum.accumulate(bounds[self.asked, 0, -3::-1], axis=2)
        return np.maximum(0.0, 1.0 - other - _EPS), high[:, ::-1]


def first_cuts(points: Floats, x: Floats, off: Floats) -> Ints:
    """(2n + 2,) the first cuts of a grid (n,) not below P(D < x[k]) and P(D <= x[k]), in turn; 2n
    where there is none, as for the last two.

    off: (n,) how inexact x is. Both functions are read at x + off, where they are no less: D < x
    implies D < x + off.
    """
    left = np.searchsorted(points, x + off)
    right = np.searchsorted(points, x + off, "right")
    return np.append(np.stack([2 * left, left + right], axis=1).ravel(), [2 * points.size] * 2)


def _told_apart(d: Floats) -> Floats:
    """Reward differences, rounded down where there are too many, which raises P(D <= x)."""
    if np.unique(d).size <= _GAPS:
        return d
    step = np.ptp(d) / _GAPS
    return np.floor(d / step) * step


def shifted(x: Any, d: float, factor: float) -> tuple[Floats, Floats]:
    """(x - d) / factor, and how inexact: not at all where d = x, or where the factor is a power of
    two and the difference a float. Otherwise the difference, the quotient and the sum of both
    results are rounded, each by half an _EPS of (|x| + |d|) / factor at most."""
    y = x - d
    lost = (x - (y - (y - x))) - (d + (y - x))
    exact = (y == 0.0) | ((lost == 0.0) & (np.frexp(factor)[0] == 0.5))
    return y / factor, np.where(exact, 0.0, 2.0 * _EPS * (np.abs(x) + np.abs(d)) / factor)
