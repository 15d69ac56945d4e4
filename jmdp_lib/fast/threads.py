"""Threads: compiled functions, where threads are safe, and chunks of random rows."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
from numba import get_num_threads
from numba.np.ufunc.parallel import get_thread_count, threading_layer

from jmdp_lib import randomness
from jmdp_lib.machine import cached, progress


class _Threads:
    """Lock on Numba's threads: not all of its threading layers survive two calls at once.

    Nor does GNU OpenMP, the usual layer on Linux, survive a fork: Numba would end the new process,
    and a pool of such processes would never return.
    """

    lock = threading.Lock()
    lost = False  # in a process that was forked from one that used GNU OpenMP

    @classmethod
    def after_fork(cls) -> None:
        """Reset the lock in a new process."""
        cls.lock = threading.Lock()  # the old one may be held by a thread that was not copied
        with suppress(ValueError):  # no thread was started before the fork
            cls.lost |= threading_layer() == "omp"


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_Threads.after_fork)


def threaded(function: Callable[..., Any], size: Callable[..., int], least: int) -> Any:
    """Compile a function for all threads, and for one thread if size(*arguments) < least.

    One thread is also used if there is no other, or none after a fork, so the result must not
    depend on the number of threads.
    """
    on_all = cached(error_model="numpy", parallel=True)(function)
    copied = FunctionType(function.__code__, function.__globals__)
    copied.__qualname__ += "_alone"  # else the cache on disk would confuse the two versions
    alone = cached(error_model="numpy", nogil=True)(copied)

    def run(*arguments: Any) -> Any:
        if _Threads.lost or get_thread_count() == 1 or size(*arguments) < least:
            return alone(*arguments)
        with _Threads.lock:
            return on_all(*arguments)

    run.__doc__ = function.__doc__
    return run


def fill_rows(
    fill: Callable[[np.random.Generator, slice], None],
    size: int,
    per_stream: int,
    root: np.random.SeedSequence,
) -> None:
    """Call fill(rng, rows) for all rows, in threads: compiled loops release the GIL.

    Every chunk of rows has its own random stream, so the numbers do not depend on the threads.
    """

    def fill_chunk(start: int) -> None:
        stream = np.random.default_rng(randomness.part(root, start // per_stream))
        fill(stream, slice(start, start + per_stream))

    starts = range(0, size, per_stream)
    if len(starts) == 1:  # faster than to start threads
        fill_chunk(0)
        return
    with ThreadPoolExecutor(get_num_threads()) as pool:
        chunks = pool.map(fill_chunk, starts)
        for _ in progress(len(starts), "runs of a JMDP", "chunk", chunks):
            pass
