"""Compiled functions that run on all threads, where that is safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

from numba.np.ufunc.parallel import get_thread_count, threading_layer

from jmdp_lib.machine import cached


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
