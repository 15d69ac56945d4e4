"""The pairs of states that asked gaps reach, and the collapsed pair operator on these alone.

The states that these gaps lead to are numbered, successors first. A set of pairs (i, j), j <= i,
of their numbers is a bitmap of 64-bit words: (i, j) is a bit of word rows[i] + j // 64. The place
of a pair in the set is the number of bits before it, so that c is one plain vector, and c -> c_0 +
gamma^2 P_2 c a sparse matrix. A policy that never returns to a state it left leads from every
pair to places before its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import config
from numba.extending import intrinsic
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.collapsed import AskedGaps, CollapsedT2
from jmdp_lib.machine import cached, hot, inline
from jmdp_lib.operators.pairs import Backup

_BLOCK = 1 << 20  # successors of pairs that are held at once


def reached_states(system: CollapsedT2, asked: AskedGaps) -> Ints:
    """The states that branches of the gaps come to."""
    jm = system.jm
    others = asked.states if asked.others is None else asked.others
    branches = (asked.states, asked.first), (others, asked.second)
    starts = np.unique([s * jm.num_actions + a for s, a in branches])
    after = np.unique(jm.transitions[starts].indices)
    steps = csgraph.dijkstra(system.kernel, indices=after, unweighted=True, min_only=True)
    return np.flatnonzero(np.isfinite(steps))


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
    def of(cls, system: CollapsedT2, states: Ints) -> Numbering:
        """Number the given states, which the policy does not lead out of."""
        gamma = system.jm.gamma
        size = system.jm.num_states
        order = system.order[np.isin(system.order, states)]
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
            probs=gamma * rows.data,
            draws=draws,
            starts=together.indptr.astype(np.int64),
            first=number[together.indices // size],
            second=number[together.indices % size],
            weights=gamma**2 * together.data,
        )

    @property
    def room(self) -> tuple[Ints, Ints, Floats]:
        """Arrays that hold the successors of any pair."""
        apart = self.draws * int(np.diff(self.indptr).max(initial=0)) ** 2
        most = max(apart, int(np.diff(self.starts).max(initial=0)))
        return np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)


@dataclass(frozen=True)
class PairSet:
    """The unordered pairs of states that asked gaps reach: closed under the pair chain.

    rows: (N + 1,) where the words of each row start. words: (W, 2) the bits of each word, and how
    many bits are before it. ends: (N + 1, 2) how many pairs, and successors of these, are in the
    rows before each. acyclic: pairs lead to places before their own only, and to themselves.
    """

    numbering: Numbering
    rows: Ints
    words: Any
    ends: Ints
    acyclic: bool

    @property
    def size(self) -> int:
        """How many pairs."""
        return int(self.ends[-1, 0])

    @classmethod
    def of(
        cls, system: CollapsedT2, asked: AskedGaps, most: float = np.inf, free: float = np.inf
    ) -> PairSet | None:
        """Follow the branches of the gaps until nothing new is reached.

        If there are more pairs than `most`, or than a bitmap and vectors of `free` bytes hold, the
        result is None.
        """
        numbering = Numbering.of(system, reached_states(system, asked))
        number = numbering.number
        rows = np.concatenate([[0], np.cumsum((np.arange(numbering.order.size) >> 6) + 1)])
        limit = min(most, (free - 16.0 * rows[-1]) / bytes_of_a_pair(system))
        if limit < 0.0:
            return None
        words = np.zeros((rows[-1], 2), np.uint64)  # takes memory only where it is written to
        counts = np.zeros(2, np.int64)  # pairs in the set, and pairs followed
        followed = np.zeros((rows.size, 2), np.int64)  # by row, one row ahead: see `ends`
        for part in asked.parts(system.entries):
            step = system.step(part)
            _add_all(rows, words, counts, number[step.first], number[step.second])
        while counts[1] < counts[0] <= limit:
            _follow(rows, words, (numbering, numbering.room), counts, followed, limit)
        if counts[0] > limit:
            return None
        used = np.flatnonzero(words[:, 0])  # what was never written takes up no memory
        bits = np.bitwise_count(words[used, 0]).astype(np.uint64)
        words[used, 1] = np.cumsum(bits) - bits
        return cls(numbering, rows, words, np.cumsum(followed, axis=0), system.acyclic)

    @property
    def members(self) -> tuple[Ints, Ints]:
        """The two states (size,) of every pair, by its place; that of the higher number first."""
        bits = np.unpackbits(self.words[:, 0].copy().view(np.uint8), bitorder="little")
        word, bit = np.divmod(np.flatnonzero(bits), 64)
        row = np.searchsorted(self.rows, word, "right") - 1
        order = self.numbering.order
        return order[row], order[(word - self.rows[row]) * 64 + bit]

    def kernel(self, low: int, high: int) -> sparse.csr_array:
        """(n, size) sparse: gamma^2 P_2 from the pairs in the rows low to high - 1."""
        pairs, successors = self.ends[high] - self.ends[low]
        index = np.int32 if max(self.size, successors) < 2**31 else np.int64
        matrix = np.zeros(pairs + 1, index), np.empty(successors, index), np.empty(successors)
        steps = self.numbering, self.numbering.room
        _fill(self.rows, self.words, steps, low, high, matrix)
        return sparse.csr_array(matrix[::-1], (pairs, self.size))

    @cached_property
    def _whole(self) -> sparse.csr_array:
        return self.kernel(0, len(self.ends) - 1)

    def blocks(self) -> Iterator[tuple[int, sparse.csr_array]]:
        """All of gamma^2 P_2, some rows at a time, and the place of the first.

        With cycles it is needed often, and is kept. Otherwise, if it is large, it is made anew, and
        takes up little memory.
        """
        if not self.acyclic or self.ends[-1, 1] <= _BLOCK:
            yield 0, self._whole
            return
        parts = np.arange(_BLOCK, self.ends[-1, 1], _BLOCK)
        cuts = np.unique(np.searchsorted(self.ends[:, 1], parts))
        for low, high in pairwise([0, *cuts.tolist(), len(self.ends) - 1]):
            yield int(self.ends[low, 0]), self.kernel(low, high)

    def source(self, backup: Backup) -> Floats:
        """(size,) c_0."""
        source = np.zeros(self.size)
        if backup.noise_source.size:
            first, second = self.members
            for noise in backup.noise_source.T:
                source += noise[first] * noise[second]
        order = self.numbering.order
        numbers = np.arange(order.size)
        same = places(self.rows, self.words, numbers, numbers)
        source[same[same >= 0]] = backup.diagonal_source[order[same >= 0]]
        return source

    def values(self, c: Floats, first: Ints, second: Ints) -> Floats:
        """c (size,) at pairs of states, first and second of any one shape; nan if not reached."""
        number = self.numbering.number
        found = np.full(first.shape, np.nan)
        numbers = number[first].ravel(), number[second].ravel()
        place = places(self.rows, self.words, *numbers).reshape(first.shape)
        found[place >= 0] = c[place[place >= 0]]
        return found


def bytes_of_a_pair(system: CollapsedT2) -> float:
    """Bytes that a pair takes while c is solved for, roughly: its successors, and its vectors."""
    if system.acyclic:
        return 32.0
    successors = sum((kernel.nnz / system.jm.num_states) ** 2 for kernel in system.kernels)
    return 80.0 + 12.0 * successors


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
def _find(rows: Any, i: Any, j: Any) -> Any:
    """The number of the word of the pair (i, j), and its bit in it."""
    if i < j:
        i, j = j, i
    return rows[i] + (j >> 6), np.uint64(1) << np.uint64(j & 63)


@inline
def _add(rows: Any, words: Any, counts: Any, i: Any, j: Any) -> None:
    k, bit = _find(rows, i, j)
    if not words[k, 0] & bit:
        words[k, 0] |= bit
        counts[0] += 1


@hot
def _add_all(rows: Any, words: Any, counts: Any, first: Any, second: Any) -> None:
    for n in range(first.size):
        _add(rows, words, counts, first[n], second[n])


@inline
def _successors(steps: Any, i: Any, j: Any, room: Any) -> Any:
    """Write where branches at the states i and j go into `room`, `Steps.room`; how many pairs."""
    first, second, weights = room
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
def _follow(rows: Any, words: Any, steps: Any, counts: Any, followed: Any, limit: Any) -> None:
    """Add the successors of pairs that were not followed yet, word by word, up to `limit` pairs.

    It starts at the last word, since most successors have lower numbers.
    """
    arrays, room = steps
    for i in range(rows.size - 2, -1, -1):
        for k in range(rows[i + 1] - 1, rows[i] - 1, -1):
            new = words[k, 0] & ~words[k, 1]
            while new and counts[0] <= limit:  # a pair may lead to others of its own word
                words[k, 1] |= new
                while new:
                    j = ((k - rows[i]) << 6) + _lowest(new)
                    new &= new - np.uint64(1)
                    found = _successors(arrays, i, j, room)
                    counts[1] += 1
                    followed[i + 1, 0] += 1
                    followed[i + 1, 1] += found
                    for e in range(found):
                        _add(rows, words, counts, room[0][e], room[1][e])
                new = words[k, 0] & ~words[k, 1]


@inline
def _place(words: Any, k: Any, bit: Any) -> Any:
    """The place of a pair in the set, which holds it, by its word and bit."""
    return np.int64(words[k, 1] + _bits(words[k, 0] & (bit - np.uint64(1))))


@cached()
def places(rows: Any, words: Any, first: Any, second: Any) -> Any:
    """(N,) the places of the pairs (first[n], second[n]); -1 for a pair that is not in the set."""
    out = np.full(first.size, -1, np.int64)
    for n in range(first.size):
        if min(first[n], second[n]) >= 0:
            k, bit = _find(rows, first[n], second[n])
            if words[k, 0] & bit:
                out[n] = _place(words, k, bit)
    return out


@hot
def _fill(rows: Any, words: Any, steps: Any, low: Any, high: Any, matrix: Any) -> None:
    """Write what `PairSet.kernel` has of the rows low to high - 1, place by place."""
    arrays, room = steps
    starts, columns, weights = matrix
    place = 0
    n = 0
    for i in range(low, high):
        for k in range(rows[i], rows[i + 1]):
            word = words[k, 0]
            while word:
                j = ((k - rows[i]) << 6) + _lowest(word)
                word &= word - np.uint64(1)
                for e in range(_successors(arrays, i, j, room)):
                    after, bit = _find(rows, room[0][e], room[1][e])
                    columns[n] = _place(words, after, bit)
                    weights[n] = room[2][e]
                    n += 1
                place += 1
                starts[place] = n
