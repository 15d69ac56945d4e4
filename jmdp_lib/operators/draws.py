"""Draws from many finite distributions at once, in compiled loops.

The entries of all distributions stand one after another; those of distribution s are starts[s] up
to starts[s + 1] - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import both, cached
from jmdp_lib.model import JMDP


@cached()
def alias_tables(starts, probs):
    """Walker's method: threshold (L,) and alias (L,) for probs (L,).

    A uniform number picks a cell i of n and a place in it: below threshold[i] it draws entry i,
    else alias[i]. That is one comparison for any n.
    """
    threshold = np.ones(probs.size)
    alias = np.arange(probs.size)
    stack = np.empty(probs.size, np.int64)
    for s in range(starts.size - 1):
        low = starts[s]
        size = starts[s + 1] - starts[s]
        scaled = probs[low : low + size] * size
        small, large = 0, size  # light entries from the left of the stack, heavy from the right
        for i in range(size):
            if scaled[i] < 1.0:
                stack[small] = i
                small += 1
            else:
                large -= 1
                stack[large] = i
        while small > 0 and large < size:
            light, heavy = stack[small - 1], stack[large]
            threshold[low + light] = scaled[light]
            alias[low + light] = low + heavy
            scaled[heavy] -= 1.0 - scaled[light]
            if scaled[heavy] < 1.0:
                stack[small - 1] = heavy
                large += 1
            else:
                small -= 1
    return threshold, alias


class AliasTables(NamedTuple):
    """N distributions, from which `draw` draws.

    starts: (N + 1,). threshold: (L,). meaning: (2 L,), results of each entry and of its alias.
    """

    starts: Ints
    threshold: Floats
    meaning: Ints

    @classmethod
    def of(cls, starts: Ints, probs: Floats, meaning: Ints) -> AliasTables:
        """Alias tables of entries (L,); those of probability zero are left out."""
        kept = np.flatnonzero(probs)
        starts = np.searchsorted(kept, starts)
        threshold, alias = alias_tables(starts, probs[kept])
        entries = np.stack([kept, kept[alias]], axis=1)
        return cls(starts, threshold, meaning[entries].ravel())


def of_tables(jm: JMDP) -> AliasTables:
    """Alias tables of the outcome tables of each state."""
    return AliasTables.of(jm.starts, jm.probs, np.arange(jm.probs.size))


def of_actions(policy: Floats) -> AliasTables:
    """Alias tables of the actions of a policy (S, A) at each state, as state-actions s A + a."""
    pairs = np.arange(policy.size + 1)
    return AliasTables.of(pairs[:: policy.shape[1]], policy.ravel(), pairs)


@both()
def draw(rng: Any, tables: Any, s: int) -> int:
    """A draw from distribution s: the meaning of an entry. One entry alone takes no random number.

    The choice between an entry and its alias is no branch of the code: none could be predicted.
    """
    low = tables.starts[s]
    size = tables.starts[s + 1] - low
    if size == 1:
        return tables.meaning[2 * low]
    u = rng.random() * size
    i = low + int(u)
    return tables.meaning[2 * i + int(u - int(u) >= tables.threshold[i])]
