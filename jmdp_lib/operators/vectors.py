"""Vector operations for large arrays: threaded, and the same bits on any number of cores.

BLAS is as fast on an idle machine, but its threads wait for each other by spinning: on a busy one a
sum of a few numbers takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange

_CHUNK = 1 << 16
_THREADS_FROM = 8 * _CHUNK  # shorter vectors are done before a second thread has started


def threaded(function: Callable[..., Any], size: Callable[..., int], least: int) -> Any:
    """The function compiled with threads, and without them for arguments smaller than `least`."""
    many = njit(cache=True, error_model="numpy", parallel=True)(function)
    one = njit(cache=True, error_model="numpy")(function)

    def chosen(*arguments: Any) -> Any:
        return (many if size(*arguments) >= least else one)(*arguments)

    chosen.__doc__ = function.__doc__
    return chosen


def _add_scaled(scale: Any, x: Any, y: Any) -> None:
    """y += scale * x, both (N,)."""
    for chunk in prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(chunk * _CHUNK, min(x.size, (chunk + 1) * _CHUNK)):
            y[i] += scale * x[i]


def _inner_product(x: Any, y: Any) -> Any:
    """sum x y, both (N,), chunk by chunk."""
    parts = np.zeros((x.size + _CHUNK - 1) // _CHUNK)
    for chunk in prange(parts.size):
        total = np.zeros(8)  # eight sums side by side: one would wait for itself
        start, end = chunk * _CHUNK, min(x.size, (chunk + 1) * _CHUNK)
        whole = start + (end - start) // 8 * 8
        for i in range(start, whole, 8):
            for j in range(8):
                total[j] += x[i + j] * y[i + j]
        for i in range(whole, end):
            total[0] += x[i] * y[i]
        parts[chunk] = total.sum()
    return parts.sum()


add_scaled = threaded(_add_scaled, lambda scale, x, y: x.size, _THREADS_FROM)
inner_product = threaded(_inner_product, lambda x, y: x.size, _THREADS_FROM)
