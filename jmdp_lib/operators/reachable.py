"""The collapsed pair operator on the pairs that the asked gaps reach, and on no others.

The states that these gaps lead to are numbered, successors first. A set of pairs (i, j), j <= i,
of their numbers is a bitmap of 64-bit words: (i, j) is a bit of word rows[i] + j // 64. The place
of a pair in the set is the number of bits before it, so that c is one plain vector.

Gauss-Seidel visits the pairs in that order. A policy that never returns to a state it left is
solved by one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import get_num_threads
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import cached, hot, inline
from jmdp_lib.operators.collapsed import AskedGaps, Backup, CollapsedT2, ragged, successors_first

_MANY_WORDS = 10_000  # fewer are done before a second thread has started


def reached_states(system: CollapsedT2, asked: AskedGaps) -> Ints:
    """The states that branches of the gaps come to."""
    jm = system.jm
    states, first, second, *others = asked.columns
    branches = (states, first), ([*others, states][0], second)
    starts = np.unique([s * jm.num_actions + a for s, a in branches])
    after = np.unique(jm.transitions[starts].indices)
    steps = csgraph.dijkstra(system.kernel, indices=after, unweighted=True, min_only=True)
    return np.flatnonzero(np.isfinite(steps))


@dataclass(frozen=True)
class Numbering:
    """N states, successors first, and the collapsed operator in their numbers.

    order: (N,) the state of each number. number: (S,) the number of each state; -1 for none.
    acyclic: no chain returns to a state it left. chain: (indptr, indices, gamma * kernel, D), the
    rows of a state's D kernels one after the other, see `CollapsedT2.kernels`. diagonal: (starts,
    x, y, gamma^2 * weight), see `CollapsedT2.diagonal`.
    """

    order: Ints
    number: Ints
    acyclic: bool
    chain: Any
    diagonal: Any

    @classmethod
    def of(cls, system: CollapsedT2, states: Ints) -> Numbering:
        """Number the given states, which the policy does not lead out of."""
        gamma = system.jm.gamma
        law = system.diagonal
        number = np.full(system.jm.num_states, -1)
        number[states] = 0
        order = successors_first(system.kernel)
        order = order[number[order] >= 0]
        number[order] = np.arange(order.size)
        draws = len(system.kernels)
        stacked = (order[:, None] + system.jm.num_states * np.arange(draws)).ravel()
        rows = sparse.vstack(system.kernels, format="csr")[stacked]
        shape = (stacked.size, order.size)
        rows = sparse.csr_array((rows.data, number[rows.indices], rows.indptr), shape)
        rows.sort_indices()
        here = np.repeat(np.arange(stacked.size) // draws, np.diff(rows.indptr))
        indptr = rows.indptr.astype(np.int64)
        indices = rows.indices.astype(np.int32)
        starts, row, within = ragged(np.diff(law.starts)[order])
        entries = law.starts[order][row] + within
        left, right = (number[x[entries]].astype(np.int32) for x in (law.first, law.second))
        diagonal = (starts, left, right, gamma**2 * law.weights[entries])
        chain = (indptr, indices, gamma * rows.data, draws)
        return cls(order, number, bool((rows.indices <= here).all()), chain, diagonal)


@dataclass(frozen=True)
class PairSet:
    """The unordered pairs of states that asked gaps reach: closed under the pair chain.

    rows: (N + 1,) where the words of each row start. words: (W, 2) the bits of each word, and how
    many bits are before it. size: how many pairs.
    """

    numbering: Numbering
    rows: Ints
    words: Any
    size: int

    @classmethod
    def of(
        cls, system: CollapsedT2, asked: AskedGaps, most: Callable[[Numbering, float], float]
    ) -> PairSet | None:
        """Follow the branches of the gaps until nothing new is reached.

        most: how many pairs there may be, for the states that are reached and the bytes that a set
        of their pairs takes. If there are more, the result is None.
        """
        numbering = Numbering.of(system, reached_states(system, asked))
        rows = np.concatenate([[0], np.cumsum((np.arange(numbering.order.size) >> 6) + 1)])
        limit = most(numbering, 16.0 * rows[-1])
        if limit < 0.0:
            return None
        words = np.zeros((rows[-1], 2), np.uint64)  # takes memory only where it is written to
        counts = np.zeros(2, np.int64)  # pairs in the set, and pairs followed
        for part in asked.parts(system.entries):
            law = system.law(*part)
            first, second = numbering.number[law.first], numbering.number[law.second]
            _add_all(rows, words, counts, first, second)
        backward = True  # from the top first: successors have lower numbers
        while counts[1] < counts[0] <= limit:
            _follow(rows, words, counts, numbering.chain, numbering.diagonal, backward, limit)
            backward = not backward
        if counts[0] > limit:
            return None
        _rank(words)
        return cls(numbering, rows, words, int(counts[0]))

    @property
    def members(self) -> tuple[Ints, Ints]:
        """The two states (size,) of every pair, by its place; that of the higher number first."""
        bits = np.unpackbits(self.words[:, 0].copy().view(np.uint8), bitorder="little")
        word, bit = np.divmod(np.flatnonzero(bits), 64)
        row = np.searchsorted(self.rows, word, "right") - 1
        order = self.numbering.order
        return order[row], order[(word - self.rows[row]) * 64 + bit]


@dataclass(frozen=True)
class ReachablePairs:
    """c over the pairs of a set, (size,). backup: has c_0."""

    pairs: PairSet
    backup: Backup

    def _system(self, with_source: bool = True) -> Any:
        pairs = self.pairs
        numbering = self.pairs.numbering
        c_0 = (self.backup.diagonal_source, self.backup.noise_source)
        source = tuple(part[numbering.order] * with_source for part in c_0)
        return pairs.rows, pairs.words, numbering.chain, numbering.diagonal, source

    def zeros(self) -> Floats:
        """c = 0."""
        return np.zeros(self.pairs.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """A Gauss-Seidel sweep of c = c_0 + gamma^2 P_2 c there and back, or of it without c_0.

        It has the fixed point of the operator itself and contracts at least as fast.
        """
        out[...] = x
        system = self._system(with_source)
        size = len(self.pairs.words)
        for backward in (False,) if self.pairs.numbering.acyclic else (False, True):
            _sweep(system, out, out, True, backward, 0, size, np.empty(64, np.int64))

    def residual(self, x: Floats) -> float:
        """max |c_0 + gamma^2 P_2 c - c|."""
        out = self.zeros()
        system = self._system()
        size = len(self.pairs.words)
        threads = get_num_threads() if size >= _MANY_WORDS else 1
        ends = np.linspace(0, size, 16 * threads + 1, dtype=np.int64).tolist()

        def part(start: int, end: int) -> None:
            _sweep(system, x, out, False, False, start, end, np.empty(64, np.int64))

        if threads == 1:
            part(0, size)
        else:
            with ThreadPoolExecutor(threads) as pool:  # the kernel releases the GIL
                list(pool.map(part, ends[:-1], ends[1:]))
        out -= x
        return float(max(out.max(initial=0.0), -out.min(initial=0.0)))

    def values(self, x: Floats, first: Ints, second: Ints) -> Floats:
        """c at pairs of states, first and second of any one shape; nan at one not reached."""
        number = self.pairs.numbering.number
        found = np.full(first.shape, np.nan)
        numbers = number[first].ravel(), number[second].ravel()
        place = places(self.pairs.rows, self.pairs.words, *numbers).reshape(first.shape)
        found[place >= 0] = x[place[place >= 0]]
        return found


@inline
def _bits(word: Any) -> Any:
    """How many bits of a 64-bit word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inline
def _lowest(word: Any) -> Any:
    """The position of the lowest bit that is set."""
    return _bits((word & -word) - np.uint64(1))


@inline
def _add(rows: Any, words: Any, counts: Any, i: Any, j: Any) -> None:
    if i < j:
        i, j = j, i
    k = rows[i] + (j >> 6)
    bit = np.uint64(1) << np.uint64(j & 63)
    if not words[k, 0] & bit:
        words[k, 0] |= bit
        counts[0] += 1


@hot
def _add_all(rows: Any, words: Any, counts: Any, first: Any, second: Any) -> None:
    for n in range(first.size):
        _add(rows, words, counts, first[n], second[n])


@hot
def _follow(
    rows: Any, words: Any, counts: Any, chain: Any, diagonal: Any, backward: Any, limit: Any
) -> None:
    """Add the successors of pairs that were not followed yet, word by word, up to `limit` pairs."""
    indptr = chain[0]
    indices = chain[1]
    draws = chain[3]
    starts = diagonal[0]
    left = diagonal[1]
    right = diagonal[2]
    i = np.int64(rows.size - 2 if backward else 0)
    for n in range(len(words)):
        if counts[0] > limit:
            break
        k = np.int64(len(words) - 1 - n if backward else n)
        new = words[k, 0] & ~words[k, 1]
        while new:  # a pair may lead to others of its own word
            words[k, 1] |= new
            while k < rows[i]:
                i -= 1
            while k >= rows[i + 1]:
                i += 1
            while new:
                j = ((k - rows[i]) << 6) + _lowest(new)
                new &= new - np.uint64(1)
                counts[1] += 1
                if i == j:
                    for e in range(starts[i], starts[i + 1]):
                        _add(rows, words, counts, np.int64(left[e]), np.int64(right[e]))
                    continue
                for d in range(draws):
                    p, q = i * draws + d, j * draws + d
                    for a in range(indptr[p], indptr[p + 1]):
                        for b in range(indptr[q], indptr[q + 1]):
                            _add(rows, words, counts, np.int64(indices[a]), np.int64(indices[b]))
            new = words[k, 0] & ~words[k, 1]


@hot
def _rank(words: Any) -> None:
    before = np.uint64(0)
    for k in range(len(words)):
        if words[k, 0]:  # what was never written takes up no memory
            words[k, 1] = before
            before += np.uint64(_bits(words[k, 0]))


@inline
def _place(rows: Any, words: Any, i: Any, j: Any) -> Any:
    """The place of the pair (i, j) in the set, which holds it."""
    if i < j:
        i, j = j, i
    k = rows[i] + (j >> 6)
    before = (np.uint64(1) << np.uint64(j & 63)) - np.uint64(1)
    return np.int64(words[k, 1]) + _bits(words[k, 0] & before)


@cached()
def places(rows: Any, words: Any, first: Any, second: Any) -> Any:
    """(N,) the places of the pairs (first[n], second[n]); -1 for a pair that is not in the set."""
    out = np.full(first.size, -1, np.int64)
    for n in range(first.size):
        i, j = max(first[n], second[n]), min(first[n], second[n])
        if j >= 0 and words[rows[i] + (j >> 6), 0] >> np.uint64(j & 63) & np.uint64(1):
            out[n] = _place(rows, words, i, j)
    return out


@inline
def _backup(system: Any, x: Any, i: Any, j: Any, place: Any) -> Any:
    """c_0 + gamma^2 P_2 c at the pair (i, j): its part without the pair itself, and that weight."""
    rows, words, chain, diagonal, source = system
    indptr, indices, probs, draws = chain
    total = loop = 0.0
    if i == j:
        starts, left, right, weights = diagonal
        total = source[0][i]
        for e in range(starts[i], starts[i + 1]):
            at = _place(rows, words, np.int64(left[e]), np.int64(right[e]))
            if at == place:
                loop += weights[e]
            else:
                total += weights[e] * x[at]
    else:
        for k in range(source[1].shape[1]):
            total += source[1][i, k] * source[1][j, k]
        for d in range(draws):
            p, q = i * draws + d, j * draws + d
            for a in range(indptr[p], indptr[p + 1]):
                inner = 0.0
                for b in range(indptr[q], indptr[q + 1]):
                    at = _place(rows, words, np.int64(indices[a]), np.int64(indices[b]))
                    if at == place:
                        loop += probs[a] * probs[b]
                    else:
                        inner += probs[b] * x[at]
                total += probs[a] * inner
    return total, loop


@hot
def _sweep(
    system: Any, x: Any, out: Any, in_place: Any, backward: Any, start: Any, end: Any, low: Any
) -> None:
    """out = c_0 + gamma^2 P_2 x, both (size,), at the pairs of words start to end - 1.

    in_place: out is x itself. This is a Gauss-Seidel sweep, and a pair that returns to itself is
    solved for. low: room for the second numbers of the pairs of one word, (64,).
    """
    rows, words = system[:2]
    i = np.int64(rows.size - 2 if backward else 0)
    for n in range(start, end):
        k = np.int64(len(words) - 1 - n if backward else n)
        word = words[k, 0]
        place = np.int64(words[k, 1])
        held = 0
        if not word:
            continue
        while k < rows[i]:
            i -= 1
        while k >= rows[i + 1]:
            i += 1
        while word:
            low[held] = ((k - rows[i]) << 6) + _lowest(word)
            word &= word - np.uint64(1)
            held += 1
        for m in range(held):
            p = held - 1 - m if backward else m
            total, loop = _backup(system, x, i, low[p], place + p)
            out[place + p] = total / (1.0 - loop) if in_place else total + loop * x[place + p]
