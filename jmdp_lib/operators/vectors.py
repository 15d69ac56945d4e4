"""Vector operations for large arrays: threaded, and the same bits on any number of cores.

BLAS is as fast on an idle machine, but its threads wait for each other by spinning: on a busy one a
sum of a few numbers takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import get_num_threads, njit, prange, set_num_threads

_CHUNK = 1 << 16
_THREADS_FROM = 8 * _CHUNK  # shorter vectors are done before a second thread has started


def threaded(function: Callable[..., Any], size: Callable[..., int], least: int) -> Any:
    """The function compiled, on all threads, or on one for arguments smaller than `least`.

    (Not compiled twice: the cache on disk would take one version for the other.)
    """
    compiled = njit(cache=True, error_model="numpy", parallel=True)(function)

    def run(*arguments: Any) -> Any:
        if size(*arguments) >= least:
            return compiled(*arguments)
        threads = get_num_threads()
        set_num_threads(1)
        try:
            return compiled(*arguments)
        finally:
            set_num_threads(threads)

    run.__doc__ = function.__doc__
    return run


def _combine(a: Any, x: Any, b: Any, y: Any) -> None:
    """y = a x + b y, both (N,)."""
    for chunk in prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(chunk * _CHUNK, min(x.size, (chunk + 1) * _CHUNK)):
            y[i] = a * x[i] + b * y[i]


def _largest(x: Any) -> Any:
    """max |x|, x (N,); nan where there is one."""
    parts = np.zeros((x.size + _CHUNK - 1) // _CHUNK)
    for chunk in prange(parts.size):
        for i in range(chunk * _CHUNK, min(x.size, (chunk + 1) * _CHUNK)):
            value = abs(x[i])
            if value > parts[chunk] or value != value:  # and nothing is greater than nan
                parts[chunk] = value
    return parts.sum() if np.isnan(parts).any() else parts.max()


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


combine = threaded(_combine, lambda a, x, b, y: x.size, _THREADS_FROM)
largest = threaded(_largest, lambda x: x.size, _THREADS_FROM)
inner_product = threaded(_inner_product, lambda x, y: x.size, _THREADS_FROM)
