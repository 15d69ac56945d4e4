"""The pairs of states that some gaps reach, and the collapsed pair operator on these alone.

The states that these gaps lead to are numbered, successors first. A set of pairs (i, j), j <= i,
of their numbers is a bitmap. The place of a pair in the set is the number of bits before it, so
that c is one plain vector, and c -> c_0 + gamma^2 P_2 c a sparse matrix. A policy that never
returns to a state it left leads from every pair to places before its own.
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


class Numbering(NamedTuple):
    """N states, successors first, and where two branches go in one step, in their numbers.

    order: (N,) the state of each number. number: (S,) the number of each state; -1 for none.

    From distinct states i, j branches go by the D kernels of `CollapsedT2.kernels`, whose rows
    i * D to i * D + D - 1 belong to i: indptr, indices and gamma times the probabilities. From one
    state i they go by entries starts[i] to starts[i + 1] - 1 of first, second and gamma^2 times
    weights, as in `CollapsedT2.diagonal`.
    """

    order: Ints
    number: Ints
    indptr: Ints
    indices: Ints
    probs: Floats
    draws: int
    starts: Ints
    first: Ints
    second: Ints
    weights: Floats

    @classmethod
    def of(cls, system: CollapsedT2, gaps: Gaps) -> Numbering:
        """Number the states that branches of the gaps come to."""
        jm = system.jm
        size = jm.num_states
        others = gaps.states if gaps.others is None else gaps.others
        branches = (gaps.states, gaps.first), (others, gaps.second)
        starts = np.unique([s * jm.num_actions + a for s, a in branches])
        after = np.unique(jm.transitions[starts].indices)
        steps = csgraph.dijkstra(system.kernel, indices=after, unweighted=True, min_only=True)
        order = system.order[np.isfinite(steps[system.order])]
        number = np.full(size, -1)
        number[order] = np.arange(order.size)
        draws = len(system.kernels)
        stacked = (order[:, None] + size * np.arange(draws)).ravel()
        rows = sparse.vstack(system.kernels, format="csr")[stacked]
        together = system.diagonal[order]
        return cls(
            order=order,
            number=number,
            indptr=rows.indptr.astype(np.int64),
            indices=number[rows.indices],
            probs=jm.gamma * rows.data,
            draws=draws,
            starts=together.indptr.astype(np.int64),
            first=number[together.indices // size],
            second=number[together.indices % size],
            weights=jm.gamma**2 * together.data,
        )

    def buffers(self) -> tuple[Ints, Ints, Floats]:
        """Arrays that hold the successors of any pair: two states, and a weight."""
        distinct = self.draws * int(np.diff(self.indptr).max(initial=0)) ** 2
        most = max(distinct, int(np.diff(self.starts).max(initial=0)))
        return np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)


class Bitmap(NamedTuple):
    """Pairs (i, j), j <= i, of N numbers: (i, j) is bit j % 64 of word rows[i] + j // 64.

    rows: (N + 1,) where the words of each i start. words: (W,). ranks: (W,) how many pairs are
    before each word, once all are there.
    """

    rows: Ints
    words: Any
    ranks: Ints

    @classmethod
    def empty(cls, size: int) -> Bitmap:
        """For N = size numbers. It takes up memory only where it is written to."""
        rows = np.concatenate([[0], np.cumsum((np.arange(size) >> 6) + 1)])
        return cls(rows, np.zeros(rows[-1], np.uint64), np.zeros(rows[-1], np.int64))

    def rank(self) -> None:
        """Fill in the ranks."""
        written = np.flatnonzero(self.words)
        bits = np.bitwise_count(self.words[written]).astype(np.int64)
        self.ranks[written] = np.cumsum(bits) - bits


@dataclass(frozen=True)
class PairSet:
    """The unordered pairs of states that some gaps reach: closed under the pair chain.

    size: how many pairs. num_successors: of all pairs.
    """

    numbering: Numbering
    bitmap: Bitmap
    size: int
    num_successors: int

    @classmethod
    def of(cls, system: CollapsedT2, gaps: Gaps, most: float = np.inf) -> PairSet | None:
        """Follow the branches of gaps until nothing new is reached; None beyond `most` pairs."""
        numbering = Numbering.of(system, gaps)
        number = numbering.number
        bitmap = Bitmap.empty(numbering.order.size)
        followed = np.zeros_like(bitmap.words)
        counts = np.zeros(3, np.int64)  # pairs in the set, pairs followed, and their successors
        for part in gaps.parts(system.entries):
            step = system.step(part)
            _add_all(bitmap, counts, number[step.first], number[step.second])
        buffers = numbering.buffers()
        while counts[1] < counts[0] <= most:
            _follow(bitmap, followed, numbering, buffers, counts, most)
        if counts[0] > most:
            return None
        bitmap.rank()
        size, _, num_successors = counts.tolist()
        return cls(numbering, bitmap, size, num_successors)

    @property
    def members(self) -> tuple[Ints, Ints]:
        """The two states (size,) of every pair, by its place; that of the higher number first."""
        rows, words, _ = self.bitmap
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        word, bit = np.divmod(np.flatnonzero(bits), 64)
        row = np.searchsorted(rows, word, "right") - 1
        order = self.numbering.order
        return order[row], order[(word - rows[row]) * 64 + bit]

    def places(self, first: Ints, second: Ints) -> Ints:
        """The places of pairs of states, of any one shape; -1 for a pair that is not in the set."""
        number = self.numbering.number
        places = _places(self.bitmap, number[first].ravel(), number[second].ravel())
        return np.reshape(places, first.shape)

    def kernel(self) -> sparse.csr_array:
        """(size, size) sparse: gamma^2 P_2."""
        index = np.int32 if max(self.size, self.num_successors) < 2**31 else np.int64
        starts = np.zeros(self.size + 1, index)
        columns = np.empty(self.num_successors, index)
        weights = np.empty(self.num_successors)
        numbering = self.numbering
        _fill(self.bitmap, numbering, numbering.buffers(), (starts, columns, weights))
        return sparse.csr_array((weights, columns, starts), (self.size, self.size))

    def source(self, backup: CollapsedBackup) -> Floats:
        """(size,) c_0."""
        source = np.zeros(self.size)
        if backup.noise_source.size:
            first, second = self.members
            for noise in backup.noise_source.T:
                source += noise[first] * noise[second]
        states = self.numbering.order
        place = self.places(states, states)
        source[place[place >= 0]] = backup.diagonal_source[states[place >= 0]]
        return source

    def solve_in_order(self, source: Floats) -> Solved:
        """c (size,) for c_0 (size,), and max |c_0 + gamma^2 P_2 c - c|, or a little more.

        Where every pair leads to places before its own, and to itself, one sweep is exact. It needs
        no matrix: a large set takes up little memory.
        """
        steps = self.numbering
        c, after = np.zeros(self.size), np.zeros(self.size)
        for out in (c, after):
            _step_in_order(self.bitmap, steps, steps.buffers(), source, c, out)
        after -= c
        return Solved(c, np.array([largest_of(after)]), 2)

    def values(self, c: Floats, first: Ints, second: Ints) -> Floats:
        """c (size,) at pairs of states, first and second of any one shape; nan if not reached."""
        place = self.places(first, second)
        values = np.full(place.shape, np.nan)
        values[place >= 0] = c[place[place >= 0]]
        return values


def _count_bits(_: Any, word: Any) -> Any:
    """How many bits of a 64-bit word are set."""
    return word(word), lambda context, builder, signature, words: builder.ctpop(words[0])


# Numba knows no intrinsics when it compiles nothing.
_bits: Any = intrinsic(_count_bits)
if vars(config)["DISABLE_JIT"]:
    _bits = lambda word: int(word).bit_count()  # noqa: E731


@inline
def _lowest(word: Any) -> Any:
    """The position of the lowest bit that is set."""
    return np.int64(_bits(~word & (word - np.uint64(1))))


@inline
def _find(bitmap: Any, i: Any, j: Any) -> Any:
    """The number of the word of the pair (i, j), and its bit in it."""
    if i < j:
        i, j = j, i
    return bitmap.rows[i] + (j >> 6), np.uint64(1) << np.uint64(j & 63)


@inline
def _add(bitmap: Any, counts: Any, i: Any, j: Any) -> None:
    k, bit = _find(bitmap, i, j)
    if not bitmap.words[k] & bit:
        bitmap.words[k] |= bit
        counts[0] += 1


@hot
def _add_all(bitmap: Any, counts: Any, first: Any, second: Any) -> None:
    for n in range(first.size):
        _add(bitmap, counts, first[n], second[n])


@inline
def _successors(steps: Any, i: Any, j: Any, buffers: Any) -> Any:
    """Write where branches at the states i and j go into `Numbering.buffers`; how many pairs.

    steps: a `Numbering`.
    """
    first, second, weights = buffers
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
def _follow(bitmap: Any, followed: Any, steps: Any, buffers: Any, counts: Any, most: Any) -> None:
    """Add the successors of pairs that were not followed yet, word by word, up to `most` pairs.

    It starts at the last word, since most successors have lower numbers.
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
                    size = _successors(steps, i, j, buffers)
                    counts[1] += 1
                    counts[2] += size
                    for e in range(size):
                        _add(bitmap, counts, buffers[0][e], buffers[1][e])
                new = words[k] & ~followed[k]


@inline
def _place(bitmap: Any, k: Any, bit: Any) -> Any:
    """The place of a pair in the set, which holds it, by its word and bit."""
    return bitmap.ranks[k] + np.int64(_bits(bitmap.words[k] & (bit - np.uint64(1))))


@cached()
def _places(bitmap: Any, first: Any, second: Any) -> Any:
    """(N,) the places of the pairs (first[n], second[n]); -1 for a pair that is not in the set."""
    out = np.full(first.size, -1, np.int64)
    for n in range(first.size):
        if min(first[n], second[n]) >= 0:
            k, bit = _find(bitmap, first[n], second[n])
            if bitmap.words[k] & bit:
                out[n] = _place(bitmap, k, bit)
    return out


@hot
def _fill(bitmap: Any, steps: Any, buffers: Any, matrix: Any) -> None:
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
                for e in range(_successors(steps, i, j, buffers)):
                    after, bit = _find(bitmap, buffers[0][e], buffers[1][e])
                    columns[n] = _place(bitmap, after, bit)
                    weights[n] = buffers[2][e]
                    n += 1
                place += 1
                starts[place] = n


@hot
def _step_in_order(bitmap: Any, steps: Any, buffers: Any, source: Any, x: Any, out: Any) -> None:
    """out = source + gamma^2 P_2 x, with what leads back to a pair solved for; out may be x."""
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
                for e in range(_successors(steps, i, j, buffers)):
                    where, bit = _find(bitmap, buffers[0][e], buffers[1][e])
                    n = _place(bitmap, where, bit)
                    if n == place:
                        loop += buffers[2][e]
                    else:
                        after += buffers[2][e] * x[n]
                out[place] = (source[place] + after) / (1.0 - loop)
                place += 1
