"""Compilation by Numba: kept on disk where that is possible, and announced by one line.

`cached`, `hot`, `inline` and `both` are the only ways to compile a function; those that run on all
threads are in `jmdp_lib.fast.threads`.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.core.compiler import Compiler
from numba.extending import register_jitable

from jmdp_lib.machine.process import output_is_seen


class _Compiler(Compiler):
    """Numba's compiler for our functions; it says once in a process that it compiles.

    That may take twenty seconds. It is not called for functions that Numba finds on disk.
    """

    kept = "once: the result is kept on disk"
    said = False

    def compile_extra(self, func: Any) -> Any:
        if not self.said and output_is_seen():
            _Compiler.said = True
            print(f"jmdp_lib compiles what is called, {self.kept}", file=sys.stderr, flush=True)
        compiler: Any = super()
        return compiler.compile_extra(func)


def cached(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's `njit(cache=True)`, or without its cache where Numba finds no folder for it.

    There is none in a read-only installation whose user has no home.
    """
    compiler: Any = partial(njit, pipeline_class=_Compiler, **options)

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return compiler(cache=True)(function)
        except RuntimeError:  # no folder
            _Compiler.kept = "in every process, unless NUMBA_CACHE_DIR is a folder it can write to"
            return compiler()(function)

    return decorate


# Loops that allocate nothing need no reference counts: without them they run six times as fast.
_NO_COUNTS: Any = {"_nrt": False}
hot: Callable[..., Any] = cached(nogil=True, error_model="numpy", **_NO_COUNTS)
inline: Callable[..., Any] = cached(error_model="numpy", inline="always")
# For functions that Python calls, too: there they stay Python, which is faster than to call them.
both: Callable[..., Any] = partial(register_jitable, error_model="numpy", **_NO_COUNTS)


def rounding_of(longest_sum: int) -> float:
    """Rounding error of a sum of `longest_sum` terms, relative to their size."""
    return (2.0 + math.sqrt(longest_sum)) * float(np.finfo(float).eps)


def rounding_of_returns(gamma: float, reward_bound: float) -> float:
    """Rounding error of a return."""
    return rounding_of(0) * reward_bound / (1.0 - gamma)
