"""The functions that Numba compiles: all of them are made here.

`cached`, `hot`, `inline`, `both` and `threaded` keep them on disk where that is possible and run
them on all threads where that is safe. A line says when a call compiles.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit
from numba.core import event
from numba.extending import register_jitable
from numba.np.ufunc.parallel import get_thread_count, threading_layer

from jmdp_lib.machine.process import output_is_seen


class _CompileNotice(event.Listener):
    """Says, once in a process, that a call compiles, which may take twenty seconds.

    Numba sends its events only for what it really compiles, not for what it finds on disk.
    """

    said = False

    def on_start(self, event: Any) -> None:
        compiled = event.data["dispatcher"]
        if self.said or not compiled.__module__.startswith("jmdp_lib") or not output_is_seen():
            return
        self.said = True
        kept = "once: the result is kept on disk"
        if compiled.stats.cache_path is None:
            kept = "in every process, unless NUMBA_CACHE_DIR is a folder it can write to"
        print(f"jmdp_lib compiles what is called, {kept}", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Numba asks for this method, too."""


event.register("numba:compile", _CompileNotice())


def cached(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's `njit(cache=True)`, or without its cache where Numba finds no folder for it.

    That is a read-only installation whose user has no home.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no folder
            return njit(**options)(function)

    return decorate


# Loops that allocate nothing need no reference counts: without them they run six times as fast.
_NO_COUNTS: Any = {"_nrt": False}
hot: Callable[..., Any] = cached(nogil=True, error_model="numpy", **_NO_COUNTS)
inline: Callable[..., Any] = cached(error_model="numpy", inline="always")
# For functions that Python calls, too: there they stay Python, sooner done than a compiled call.
both: Callable[..., Any] = partial(register_jitable, error_model="numpy", **_NO_COUNTS)


class _Threads:
    """Numba's threads: one call at a time, since not all of its layers survive two at once.

    GNU OpenMP, the usual layer on Linux, does not survive a fork either: Numba would end the new
    process, and a pool of such processes would never return.
    """

    lock = threading.Lock()
    lost = False  # in a process that was forked from one that used GNU OpenMP

    @classmethod
    def after_fork(cls) -> None:
        """In the new process."""
        cls.lock = threading.Lock()  # a thread that was not copied may have held the old one
        with suppress(ValueError):  # no thread was started before the fork
            cls.lost |= threading_layer() == "omp"


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_Threads.after_fork)


def threaded(function: Callable[..., Any], size: Callable[..., int], least: int) -> Any:
    """The function compiled: on all threads, or on this one for arguments smaller than `least`.

    It also runs on this one where there is no other, and where there are none after a fork, so that
    its result must not depend on their number.
    """
    on_all = cached(error_model="numpy", parallel=True)(function)
    copied = FunctionType(function.__code__, function.__globals__)
    copied.__qualname__ += "_alone"  # else the cache on disk would take one version for the other
    alone = cached(error_model="numpy", nogil=True)(copied)

    def run(*arguments: Any) -> Any:
        if _Threads.lost or get_thread_count() == 1 or size(*arguments) < least:
            return alone(*arguments)
        with _Threads.lock:
            return on_all(*arguments)

    run.__doc__ = function.__doc__
    return run


def rounding_of(longest_sum: int) -> float:
    """What rounding leaves of a sum of so many terms, relative to their size."""
    return (2.0 + math.sqrt(longest_sum)) * float(np.finfo(float).eps)


def rounding_of_returns(gamma: float, reward_bound: float) -> float:
    """How far off a return may be only since a number has some sixteen digits."""
    return rounding_of(0) * reward_bound / (1.0 - gamma)
