"""How functions are compiled by Numba: kept on disk where that is possible; a line says when.

`cached`, `hot`, `inline` and `both` are the only ways to do so; `jmdp_lib.fast.threads` adds those
that run on all threads.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.core import event
from numba.extending import register_jitable

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


def rounding_of(longest_sum: int) -> float:
    """What rounding leaves of a sum of so many terms, relative to their size."""
    return (2.0 + math.sqrt(longest_sum)) * float(np.finfo(float).eps)


def rounding_of_returns(gamma: float, reward_bound: float) -> float:
    """How far off a return may be only since a number has some sixteen digits."""
    return rounding_of(0) * reward_bound / (1.0 - gamma)
