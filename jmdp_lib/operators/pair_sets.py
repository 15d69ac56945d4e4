"""Sets of unordered pairs of states, grown until they are closed under the pair chain.

A set of pairs (i, j), j <= i, is a bitmap of 64-bit words, rows[i] + j // 64 being the one that
holds (i, j). Where the whole triangle is too large, only the words that hold a pair are kept, and
found by hashing. The place of a pair among all of the set is the number of bits before it, so a
function of the pairs is one plain vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from jmdp_lib.operators.chains import hot, inline


@inline
def bits(word: Any) -> Any:
    """How many bits of a 64-bit word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inline
def lowest(word: Any) -> Any:
    """The position of the lowest bit that is set."""
    return bits((word & -word) - np.uint64(1))


@inline
def _slot(slots: Any, keys: Any, key: Any) -> Any:
    """Where the word `key` stands, or would stand. Neighbouring keys share a line of memory."""
    mask = slots.size - 1
    high = np.uint64(key >> 3) * np.uint64(0x9E3779B97F4A7C15)
    place = (np.int64(high >> np.uint64(24)) << 3 | (key & 7)) & mask
    while slots[place] >= 0 and keys[slots[place]] != key:
        place = (place + 1) & mask
    return place


@inline
def _word(slots: Any, keys: Any, key: Any) -> Any:
    """The number of the word `key`: itself in a whole bitmap, else hashed, and -1 for none."""
    return key if slots.size == 0 else np.int64(slots[_slot(slots, keys, key)])


@hot
def _rehash(slots: Any, keys: Any, count: Any) -> None:
    for i in range(count):
        slots[_slot(slots, keys, keys[i])] = i


@dataclass
class PairSet:
    """Unordered pairs of S states, on the way to being closed under the pair chain.

    rows: (S + 1,). slots, keys: hash table of the words, empty for a bitmap of the whole triangle.
    words: (W, 2), the bits of each word and, once `ranked`, the number of bits before it.
    stack: pairs that wait to be expanded. counts: how many words, pairs and waiting pairs.
    """

    rows: Any
    slots: Any
    keys: Any
    words: Any
    stack: Any
    counts: Any

    @classmethod
    def empty(cls, num_states: int, whole: bool) -> PairSet:
        """No pairs. whole: a bitmap of the triangle, whose memory is used only as it is touched."""
        rows = np.concatenate([[0], np.cumsum((np.arange(num_states) >> 6) + 1)])
        slots = np.full(0 if whole else 1 << 12, -1, np.int32)
        keys = np.empty(0 if whole else 1 << 10, np.int64)
        words = np.zeros((rows[-1] if whole else 1 << 10, 2), np.uint64)
        return cls(rows, slots, keys, words, np.empty(1 << 10, np.int64), np.zeros(3, np.int64))

    def add(self, first: Any, second: Any) -> None:
        """Put the pairs (first[n], second[n]) on the list."""
        done = 0
        while done < first.size:
            done = _add_all(self._arrays(), first, second, done)
            self._grow()

    def expand(self, chain: Any, diagonal: Any, budget: int) -> bool:
        """Add about `budget` successors of waiting pairs; whether any pair still waits.

        chain: the collapsed kernel (indptr, indices, ...), for two branches at distinct states.
        diagonal: (starts, x, y, ...), where two branches at one state go that drew two actions.
        """
        while budget > 0 and self.counts[2] > 0:
            waiting = self.counts[2]
            added = _expand(self._arrays(), chain, diagonal, budget)
            self._grow(stuck=self.counts[2] == waiting and added == 0)
            budget -= added
        return bool(self.counts[2])

    def ranked(self) -> Any:
        """(rows, slots, keys, words) of the closed set: sorted, with the bits before each word."""
        if self.keys.size:
            count = int(self.counts[0])
            order = np.argsort(self.keys[:count])
            self.keys, self.words = self.keys[order], self.words[order]
            self.slots.fill(-1)
            _rehash(self.slots, self.keys, count)
        self.stack = np.empty(0, np.int64)
        _rank(self.words)
        return self.rows, self.slots, self.keys, self.words

    def _arrays(self) -> Any:
        return self.rows, self.slots, self.keys, self.words, self.stack, self.counts

    def _grow(self, stuck: bool = False) -> None:
        """Room for as much again, where half is taken, or a pair has more successors than that."""
        words, _, waiting = self.counts
        if stuck or 2 * waiting > self.stack.size:
            self.stack = np.resize(self.stack, 2 * self.stack.size)
        if self.keys.size and (stuck or 2 * words > self.keys.size):
            self.keys = np.resize(self.keys, 2 * self.keys.size)
            self.words = np.concatenate([self.words, np.zeros_like(self.words)])
            self.slots = np.full(2 * self.slots.size, -1, np.int32)
            _rehash(self.slots, self.keys, words)


@inline
def _add(
    rows: Any, slots: Any, keys: Any, words: Any, stack: Any, counts: Any, i: Any, j: Any
) -> None:
    """Add one pair; there must be room for a word and on the stack."""
    if i < j:
        i, j = j, i
    key = rows[i] + (j >> 6)
    word = _word(slots, keys, key)
    if word < 0:
        word = counts[0]
        slots[_slot(slots, keys, key)], keys[word] = word, key
        counts[0] += 1
    bit = np.uint64(1) << np.uint64(j & 63)
    if not words[word, 0] & bit:
        words[word, 0] |= bit
        stack[counts[2]] = i * (rows.size - 1) + j
        counts[1] += 1
        counts[2] += 1


@inline
def _room(keys: Any, stack: Any, counts: Any) -> Any:
    """How many pairs can be added before anything has to grow."""
    room = stack.size - counts[2]
    return min(room, keys.size - counts[0]) if keys.size else room


@hot
def _add_all(pairs: Any, first: Any, second: Any, done: Any) -> Any:
    rows, slots, keys, words, stack, counts = pairs
    end = min(first.size, done + _room(keys, stack, counts))
    for n in range(done, end):
        _add(rows, slots, keys, words, stack, counts, np.int64(first[n]), np.int64(second[n]))
    return end


@hot
def _expand(pairs: Any, chain: Any, diagonal: Any, budget: Any) -> Any:
    rows, slots, keys, words, stack, counts = pairs
    indptr, indices = chain[0], chain[1]
    starts, left, right = diagonal[0], diagonal[1], diagonal[2]
    added = 0
    while added < budget and counts[2] > 0:
        s, t = divmod(stack[counts[2] - 1], rows.size - 1)
        need = (indptr[s + 1] - indptr[s]) * (indptr[t + 1] - indptr[t])
        if s == t:
            need = starts[s + 1] - starts[s]
        if need > _room(keys, stack, counts):
            break
        added += need
        counts[2] -= 1
        if s == t:
            for e in range(starts[s], starts[s + 1]):
                x, y = np.int64(left[e]), np.int64(right[e])
                _add(rows, slots, keys, words, stack, counts, x, y)
            continue
        for a in range(indptr[s], indptr[s + 1]):
            for b in range(indptr[t], indptr[t + 1]):
                x, y = np.int64(indices[a]), np.int64(indices[b])
                _add(rows, slots, keys, words, stack, counts, x, y)
    return added


@hot
def _rank(words: Any) -> None:
    before = np.uint64(0)
    for k in range(len(words)):
        if words[k, 0]:  # what was never written takes up no memory
            words[k, 1] = before
            before += np.uint64(bits(words[k, 0]))


@inline
def place_of(index: Any, i: Any, j: Any) -> Any:
    """The place of the pair (i, j) in the set, which holds it."""
    rows, slots, keys, words = index
    if i < j:
        i, j = j, i
    word = _word(slots, keys, rows[i] + (j >> 6))
    before = (np.uint64(1) << np.uint64(j & 63)) - np.uint64(1)
    return np.int64(words[word, 1]) + bits(words[word, 0] & before)


@njit(cache=True)
def places(index: Any, first: Any, second: Any) -> Any:
    """(N,) the places of the pairs (first[n], second[n]); -1 for a pair that is not in the set."""
    rows, slots, keys, words = index
    out = np.full(first.size, -1, np.int64)
    for n in range(first.size):
        i, j = np.int64(max(first[n], second[n])), np.int64(min(first[n], second[n]))
        word = _word(slots, keys, rows[i] + (j >> 6))
        if word >= 0 and words[word, 0] >> np.uint64(j & 63) & np.uint64(1):
            out[n] = place_of(index, i, j)
    return out
