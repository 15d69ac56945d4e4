"""Sums over long arrays, of NumPy or of torch: in place, on all threads, and always the same.

Sums do not depend on the number of threads. BLAS is as fast on an idle machine, but its threads
wait for each other by spinning.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import prange

from jmdp_lib.machine.compiled import threaded

_CHUNK = 1 << 14  # terms that one thread sums
_LONG = 1 << 19  # shorter vectors are done before a second thread has started


def add_scaled(a: float, x: Any, b: float, y: Any) -> None:
    """y = a x + b y, in place."""
    if isinstance(y, np.ndarray):
        _scaled_sum(a, x.ravel(), b, y.ravel())
    else:
        y.mul_(b).add_(x, alpha=a)


def inner_product(x: Any, y: Any) -> float:
    """sum x y."""
    product = _product_sum if isinstance(y, np.ndarray) else type(y).dot
    return float(product(x.ravel(), y.ravel()))


def largest_of(x: Any) -> float:
    """max |x|; nan where there is one."""
    return float(max(x.max(), -x.min())) if len(x) else 0.0


def rounding_of(longest_sum: int) -> float:
    """What rounding leaves of a sum of so many terms, relative to their size."""
    return (2.0 + math.sqrt(longest_sum)) * float(np.finfo(float).eps)


def _add_scaled(a: Any, x: Any, b: Any, y: Any) -> None:
    for i in prange(y.size):  # one by one: an array of sums would be one more in memory
        y[i] = a * x[i] + b * y[i]


def _sum_products(x: Any, y: Any) -> Any:
    parts = np.zeros((x.size + _CHUNK - 1) // _CHUNK)  # the same ones on any number of threads
    for k in prange(parts.size):
        total = 0.0
        for i in range(k * _CHUNK, min(x.size, (k + 1) * _CHUNK)):
            total += x[i] * y[i]
        parts[k] = total
    whole = 0.0  # and in the same order: parts.sum() would be shared among the threads
    for k in range(parts.size):
        whole += parts[k]
    return whole


_scaled_sum = threaded(_add_scaled, lambda a, x, b, y: x.size, _LONG)
_product_sum = threaded(_sum_products, lambda x, y: x.size, _LONG)
