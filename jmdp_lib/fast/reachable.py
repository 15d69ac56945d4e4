"""Pairs of states that some gaps reach, and the collapsed pair operator on these alone.

The states that the gaps lead to are indexed, successors first. A set of pairs (i, j), j <= i, of
their indices is a bitmap.

The place of a pair in the set is the number of bits before it. So c is one vector, by place, and
c -> c_0 + gamma^2 P_2 c needs a sparse matrix. If a policy never returns to a state it left, every
pair leads to itself and to earlier places only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import config
from numba.extending import intrinsic
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.affine import Solved
from jmdp_lib.fast.collapsed import CollapsedBackup, CollapsedT2, Gaps
from jmdp_lib.fast.dense import largest_of
from jmdp_lib.machine import cached, hot, inline


class Indexing(NamedTuple):
    """Indices of N states, successors first, and the steps of two branches in these indices.

    states: (N,) state of each index. index_of: (S,) index of each state; -1 for none.

    Branches at distinct states i, j move by the D kernels of `CollapsedT2.kernels`, whose rows
    i * D to i * D + D - 1 belong to i: indptr, indices and gamma times the probabilities. Branches
    at one state i move by entries starts[i] to starts[i + 1] - 1 of first, second and gamma^2 times
    weights, as in `CollapsedT2.diagonal`.
    """

    states: Ints
    index_of: Ints
    indptr: Ints
    indices: Ints
    probs: Floats
    draws: int
    starts: Ints
    first: Ints
    second: Ints
    weights: Floats

    @classmethod
    def of(cls, system: CollapsedT2, gaps: Gaps) -> Indexing:
        """Index the states that branches of the gaps lead to."""
        jm = system.jm
        size = jm.num_states
        others = gaps.states if gaps.others is None else gaps.others
        branches = (gaps.states, gaps.first), (others, gaps.second)
        starts = np.unique([s * jm.num_actions + a for s, a in branches])
        after = np.unique(jm.transitions[starts].indices)
        steps = csgraph.dijkstra(system.kernel, indices=after, unweighted=True, min_only=True)
        order = system.order[np.isfinite(steps[system.order])]
        index = np.full(size, -1)
        index[order] = np.arange(order.size)
        draws = len(system.kernels)
        stacked = (order[:, None] + size * np.arange(draws)).ravel()
        rows = sparse.vstack(system.kernels, format="csr")[stacked]
        shared = system.diagonal[order]
        return cls(
            states=order,
            index_of=index,
            indptr=rows.indptr.astype(np.int64),
            indices=index[rows.indices],
            probs=jm.gamma * rows.data,
            draws=draws,
            starts=shared.indptr.astype(np.int64),
            first=index[shared.indices // size],
            second=index[shared.indices % size],
            weights=jm.gamma**2 * shared.data,
        )

    def scratch(self) -> tuple[Ints, Ints, Floats]:
        """Arrays for the successors of one pair: two states, and a weight."""
        most = self.draws * int(np.diff(self.indptr).max(initial=0)) ** 2
        most += int(np.diff(self.starts).max(initial=0))
        return np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)


class Bitmap(NamedTuple):
    """Set of pairs (i, j), j <= i < N: (i, j) is bit j % 64 of word rows[i] + j // 64.

    rows: (N + 1,) first word of each i. words: (W,). ranks: (W,) number of pairs before each word,
    by `rank` once the set is complete.
    """

    rows: Ints
    words: Any
    ranks: Ints

    @classmethod
    def empty(cls, size: int) -> Bitmap:
        """Empty set for N = size. It takes up memory only where it is written to."""
        rows = np.concatenate([[0], np.cumsum((np.arange(size) >> 6) + 1)])
        return cls(rows, np.zeros(rows[-1], np.uint64), np.zeros(rows[-1], np.int64))

    def rank(self) -> None:
        """Compute the ranks."""
        written = np.flatnonzero(self.words)
        bits = np.bitwise_count(self.words[written]).astype(np.int64)
        self.ranks[written] = np.cumsum(bits) - bits


@dataclass(frozen=True)
class PairSet:
    """Set of the unordered pairs of states that some gaps reach: closed under the pair chain.

    size: number of pairs. num_successors: number of entries of `kernel`.
    """

    indexing: Indexing
    bitmap: Bitmap
    size: int
    num_successors: int

    @classmethod
    def of(cls, system: CollapsedT2, gaps: Gaps, most: float = np.inf) -> PairSet | None:
        """Follow the branches of the gaps to all pairs they reach; None beyond `most` pairs."""
        indexing = Indexing.of(system, gaps)
        index = indexing.index_of
        bitmap = Bitmap.empty(indexing.states.size)
        followed = np.zeros_like(bitmap.words)
        counts = np.zeros(3, np.int64)  # pairs in the set, pairs followed, and their successors
        for part in gaps.parts(system.entries):
            step = system.step(part)
            _add_all(bitmap, counts, index[step.first], index[step.second])
        scratch = indexing.scratch()
        while counts[1] < counts[0] <= most:
            _follow(bitmap, followed, indexing, scratch, counts, most)
        if counts[0] > most:
            return None
        bitmap.rank()
        size, _, num_successors = counts.tolist()
        return cls(indexing, bitmap, size, num_successors)

    @property
    def members(self) -> tuple[Ints, Ints]:
        """Two states (size,) of each pair, by its place; the one of the larger index first."""
        rows, words, _ = self.bitmap
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        word, bit = np.divmod(np.flatnonzero(bits), 64)
        row = np.searchsorted(rows, word, "right") - 1
        states = self.indexing.states
        return states[row], states[(word - rows[row]) * 64 + bit]

    def places(self, first: Ints, second: Ints) -> Ints:
        """Places of pairs of states, of any one shape; -1 for a pair that is not in the set."""
        index = self.indexing.index_of
        places = _places(self.bitmap, index[first].ravel(), index[second].ravel())
        return np.reshape(places, first.shape)

    def kernel(self) -> sparse.csr_array:
        """Matrix gamma^2 P_2, (size, size) sparse."""
        index = np.int32 if max(self.size, self.num_successors) < 2**31 else np.int64
        starts = np.zeros(self.size + 1, index)
        columns = np.empty(self.num_successors, index)
        weights = np.empty(self.num_successors)
        indexing = self.indexing
        _fill(self.bitmap, indexing, indexing.scratch(), (starts, columns, weights))
        return sparse.csr_array((weights, columns, starts), (self.size, self.size))

    def source(self, backup: CollapsedBackup) -> Floats:
        """Source c_0, (size,)."""
        source = np.zeros(self.size + 1)  # the last entry is that of pairs outside the set
        if backup.noise_source.size:
            first, second = self.members
            for noise in backup.noise_source.T:
                source[:-1] += noise[first] * noise[second]
        states = self.indexing.states
        source[self.places(states, states)] = backup.diagonal_source[states]
        return source[:-1]

    def solve_in_order(self, source: Floats) -> Solved:
        """Solve for c (size,) from c_0 (size,) if every pair leads to itself and earlier places.

        One sweep is then exact. It needs no matrix, so that a large set takes up little memory. The
        residual is an upper bound on the largest |c_0 + gamma^2 P_2 c - c|.
        """
        steps = self.indexing
        c, after = np.zeros(self.size), np.zeros(self.size)
        for out in (c, after):
            _step_in_order(self.bitmap, steps, steps.scratch(), source, c, out)
        after -= c
        return Solved(c, np.array([largest_of(after)]), 2)


def _count_bits(_: Any, word: Any) -> Any:
    """Count the bits that are set in a 64-bit word."""
    return word(word), lambda context, builder, signature, words: builder.ctpop(words[0])


# With compilation disabled, Numba has no intrinsics.
_bits: Any = intrinsic(_count_bits)
if vars(config)["DISABLE_JIT"]:
    _bits = lambda word: int(word).bit_count()  # noqa: E731


@inline
def _lowest(word):
    """Position of the lowest bit that is set."""
    return np.int64(_bits(~word & (word - np.uint64(1))))


@inline
def _find(bitmap, i, j):
    """Word of the pair (i, j), and its bit in that word."""
    if i < j:
        i, j = j, i
    return bitmap.rows[i] + (j >> 6), np.uint64(1) << np.uint64(j & 63)


@inline
def _add(bitmap, counts, i, j):
    k, bit = _find(bitmap, i, j)
    if not bitmap.words[k] & bit:
        bitmap.words[k] |= bit
        counts[0] += 1


@hot
def _add_all(bitmap, counts, first, second):
    for n in range(first.size):
        _add(bitmap, counts, first[n], second[n])


@inline
def _successors(steps, i, j, scratch):
    """Write the successors of the pair (i, j) to `Indexing.scratch`, and return their number.

    steps: an `Indexing`.
    """
    first, second, weights = scratch
    n = 0
    if i == j:
        for e in range(steps.starts[i], steps.starts[i + 1]):
            first[n] = steps.first[e]
            second[n] = steps.second[e]
            weights[n] = steps.weights[e]
            n += 1
        return n
    for d in range(steps.draws):
        p, q = i * steps.draws + d, j * steps.draws + d
        for a in range(steps.indptr[p], steps.indptr[p + 1]):
            for b in range(steps.indptr[q], steps.indptr[q + 1]):
                first[n] = steps.indices[a]
                second[n] = steps.indices[b]
                weights[n] = steps.probs[a] * steps.probs[b]
                n += 1
    return n


@hot
def _follow(bitmap, followed, steps, scratch, counts, most):
    """Add the successors of pairs that were not followed yet, word by word, up to `most` pairs.

    The search starts at the last word, since most successors have smaller indices.
    """
    rows, words, _ = bitmap
    for i in range(rows.size - 2, -1, -1):
        for k in range(rows[i + 1] - 1, rows[i] - 1, -1):
            new = words[k] & ~followed[k]
            while new and counts[0] <= most:  # a pair may lead to others of its own word
                followed[k] |= new
                while new:
                    j = ((k - rows[i]) << 6) + _lowest(new)
                    new &= new - np.uint64(1)
                    size = _successors(steps, i, j, scratch)
                    counts[1] += 1
                    counts[2] += size
                    for e in range(size):
                        _add(bitmap, counts, scratch[0][e], scratch[1][e])
                new = words[k] & ~followed[k]


@inline
def _place(bitmap, k, bit):
    """Place of a pair that is in the set, by its word and bit."""
    return bitmap.ranks[k] + np.int64(_bits(bitmap.words[k] & (bit - np.uint64(1))))


@cached()
def _places(bitmap, first, second):
    """Places (N,) of the pairs (first[n], second[n]); -1 for a pair that is not in the set."""
    out = np.full(first.size, -1, np.int64)
    for n in range(first.size):
        if min(first[n], second[n]) >= 0:
            k, bit = _find(bitmap, first[n], second[n])
            if bitmap.words[k] & bit:
                out[n] = _place(bitmap, k, bit)
    return out


@hot
def _fill(bitmap, steps, scratch, matrix):
    """Write `PairSet.kernel`, place by place."""
    rows, words, _ = bitmap
    starts, columns, weights = matrix
    place = 0
    n = 0
    for i in range(rows.size - 1):
        for k in range(rows[i], rows[i + 1]):
            word = words[k]
            while word:
                j = ((k - rows[i]) << 6) + _lowest(word)
                word &= word - np.uint64(1)
                for e in range(_successors(steps, i, j, scratch)):
                    after, bit = _find(bitmap, scratch[0][e], scratch[1][e])
                    columns[n] = _place(bitmap, after, bit)
                    weights[n] = scratch[2][e]
                    n += 1
                place += 1
                starts[place] = n


@hot
def _step_in_order(bitmap, steps, scratch, source, x, out):
    """Write source + gamma^2 P_2 x to `out`, which may be x, dividing by 1 - (weight of a loop)."""
    rows, words, _ = bitmap
    place = 0
    for i in range(rows.size - 1):
        for k in range(rows[i], rows[i + 1]):
            word = words[k]
            while word:
                j = ((k - rows[i]) << 6) + _lowest(word)
                word &= word - np.uint64(1)
                after = 0.0
                loop = 0.0
                for e in range(_successors(steps, i, j, scratch)):
                    where, bit = _find(bitmap, scratch[0][e], scratch[1][e])
                    n = _place(bitmap, where, bit)
                    if n == place:
                        loop += scratch[2][e]
                    else:
                        after += scratch[2][e] * x[n]
                out[place] = (source[place] + after) / (1.0 - loop)
                place += 1
