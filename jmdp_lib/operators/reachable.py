"""The collapsed pair operator on the pairs that the queries reach, and on no others.

Gauss-Seidel visits the pairs (i, j), j <= i, in that order. With states numbered so that the
successors of a state come first (`topological_order`), a policy that never returns to a state it
left is solved by one sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.operators.chains import hot, inline
from jmdp_lib.operators.collapsed import Collapsed, Numbering, Queries
from jmdp_lib.operators.pair_sets import PairSet, lowest, place_of, places
from jmdp_lib.operators.vectors import threaded

_STEP = 1 << 24  # successors that are added between two looks at the watch


def closure(
    numbering: Numbering,
    seeds: Iterable[tuple[Ints, Ints]],
    whole: bool,
    watch: Callable[[PairSet], bool],
) -> PairSet | None:
    """All pairs reachable from the seeds, pairs of states (first (N,), second (N,)).

    watch: is shown the set now and then, and says whether to go on; None when it says no.
    """
    pairs = PairSet.empty(numbering.number.size, whole)
    for first, second in seeds:
        pairs.add(numbering.number[first], numbering.number[second])
        while pairs.expand(numbering.chain, numbering.diagonal, _STEP):
            if not watch(pairs):
                return None
    return pairs if watch(pairs) else None


def steps_to_reach(system: Collapsed, queries: Queries) -> Ints:
    """(S, S) steps after which two branches can first stand at each pair of states; 0 for never.

    `closure` on the whole matrix, one step of all pairs at a time: for small models.
    """
    size, law = system.jm.num_states, system.diagonal
    moves = (system.kernel.toarray() > 0.0).astype(float)
    here = np.repeat(np.arange(size), np.diff(law.starts))
    steps, new = np.zeros((size, size), np.int64), np.zeros((size, size), bool)
    for part in queries.parts(system.entries):
        asked = system.law(*part)
        new[asked.first, asked.second] = True
    while (new := (new | new.T) & (steps == 0)).any():
        steps[new] = steps.max() + 1
        together = new.diagonal()[here]
        new = moves.T @ (new & ~np.eye(size, dtype=bool)) @ moves > 0.0
        new[law.first[together], law.second[together]] = True
    return steps


@dataclass(frozen=True)
class ReachablePairs:
    """c over the pairs of a closed set, (N,). source: (S,) c_0, by state."""

    numbering: Numbering
    index: Any
    size: int
    source: Floats

    @classmethod
    def of(cls, numbering: Numbering, pairs: PairSet, source: Floats) -> ReachablePairs:
        """The operator on a closed set."""
        return cls(numbering, pairs.ranked(), int(pairs.counts[1]), source)

    def _numbered(self, with_source: bool) -> Floats:
        source = np.zeros(self.source.size)
        if with_source:
            source[self.numbering.number] = self.source
        return source

    def zeros(self) -> Floats:
        """c = 0."""
        return np.zeros(self.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """A Gauss-Seidel sweep of c = c_0 + gamma^2 P_2 c there and back, or of it without c_0.

        It has the fixed point of the operator itself and contracts at least as fast.
        """
        source, low = self._numbered(with_source), np.empty(64, np.int64)
        out[...] = x
        for backward in (False,) if self.numbering.acyclic else (False, True):
            _sweep(self.index, self.numbering.chain, self.numbering.diagonal, source, out,
                   backward, low)  # fmt: skip

    def residual(self, x: Floats) -> float:
        """max |c_0 + gamma^2 P_2 c - c|."""
        if not self.size:
            return 0.0
        numbering = self.numbering
        source = self._numbered(True)
        return float(_residual(self.index, numbering.chain, numbering.diagonal, source, x))

    def values(self, x: Floats, first: Ints, second: Ints) -> Floats:
        """(N,) c at the given pairs of states; nan at a pair that was not reached."""
        number = self.numbering.number
        place = places(self.index, number[first], number[second])
        if not x.size:
            return np.full(place.shape, np.nan)
        return np.where(place >= 0, x[place], np.nan)


@inline
def _backup(
    index: Any, chain: Any, diagonal: Any, source: Any, x: Any, i: Any, j: Any, place: Any
) -> Any:
    """c_0 + gamma^2 P_2 c at the pair (i, j): its part without the pair itself, and that weight."""
    indptr, indices, probs = chain
    total = loop = 0.0
    if i == j:
        starts, left, right, weights = diagonal
        total = source[i]
        for e in range(starts[i], starts[i + 1]):
            at = place_of(index, np.int64(left[e]), np.int64(right[e]))
            if at == place:
                loop += weights[e]
            else:
                total += weights[e] * x[at]
    else:
        for a in range(indptr[i], indptr[i + 1]):
            inner = 0.0
            for b in range(indptr[j], indptr[j + 1]):
                at = place_of(index, np.int64(indices[a]), np.int64(indices[b]))
                if at == place:
                    loop += probs[a] * probs[b]
                else:
                    inner += probs[b] * x[at]
            total += probs[a] * inner
    return total, loop


@hot
def _sweep(
    index: Any, chain: Any, diagonal: Any, source: Any, x: Any, backward: Any, low: Any
) -> None:
    """One Gauss-Seidel sweep of x (N,) in place; a pair that returns to itself is solved for."""
    rows, keys, words = index[0], index[2], index[3]
    i = np.int64(rows.size - 2 if backward else 0)
    for n in range(len(words)):
        k = np.int64(len(words) - 1 - n if backward else n)
        word, place, held = words[k, 0], np.int64(words[k, 1]), 0
        if not word:
            continue
        key = keys[k] if keys.size else k
        while key < rows[i]:
            i -= 1
        while key >= rows[i + 1]:
            i += 1
        while word:
            low[held] = ((key - rows[i]) << 6) + lowest(word)
            word &= word - np.uint64(1)
            held += 1
        for m in range(held):
            p = held - 1 - m if backward else m
            total, loop = _backup(index, chain, diagonal, source, x, i, low[p], place + p)
            x[place + p] = total / (1.0 - loop)


def _worst(index: Any, chain: Any, diagonal: Any, source: Any, x: Any) -> Any:
    """max |c_0 + gamma^2 P_2 x - x| over the pairs."""
    rows, keys, words = index[0], index[2], index[3]
    chunks = min(1024, len(words))
    worst = np.zeros(chunks)
    for chunk in prange(chunks):
        for k in range(chunk * len(words) // chunks, (chunk + 1) * len(words) // chunks):
            word, place = words[k, 0], np.int64(words[k, 1])
            if not word:
                continue
            key = keys[k] if keys.size else k
            i = np.searchsorted(rows, key, side="right") - 1
            while word:
                j = ((key - rows[i]) << 6) + lowest(word)
                word &= word - np.uint64(1)
                total, loop = _backup(index, chain, diagonal, source, x, i, j, place)
                error = abs(total + loop * x[place] - x[place])
                if error > worst[chunk] or error != error:  # and nothing is greater than nan
                    worst[chunk] = error
                place += 1
    return worst.sum() if np.isnan(worst).any() else worst.max()


_residual = threaded(_worst, lambda *arguments: arguments[-1].size, 100_000)
