"""What runs in threads: compiled functions, where that is safe, and chunks of random rows."""

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


def fill_rows(
    fill: Callable[[np.random.Generator, slice], None],
    size: int,
    per_stream: int,
    root: np.random.SeedSequence,
) -> None:
    """Call fill(rng, rows) for all rows, in threads: kernels release the GIL.

    Every chunk of rows has a random stream of its own, so threads do not change the numbers.
    """

    def fill_chunk(start: int) -> None:
        stream = np.random.default_rng(randomness.part(root, start // per_stream))
        fill(stream, slice(start, start + per_stream))

    starts = range(0, size, per_stream)
    if len(starts) == 1:  # threads would take longer to start
        fill_chunk(0)
        return
    with ThreadPoolExecutor(get_num_threads()) as pool:
        chunks = pool.map(fill_chunk, starts)
        for _ in progress(len(starts), "runs of a JMDP", "chunk", chunks):
            pass
