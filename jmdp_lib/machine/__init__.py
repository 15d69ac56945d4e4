"""Tools without mathematics: memory and warnings of the process, compiled code, results."""

from jmdp_lib.machine.compiled import (
    both,
    cached,
    hot,
    inline,
    rounding_of,
    rounding_of_returns,
)
from jmdp_lib.machine.process import available_bytes, extra, gibibytes, progress, require
from jmdp_lib.machine.results import ReadOnly

__all__ = [
    "ReadOnly",
    "available_bytes",
    "both",
    "cached",
    "extra",
    "gibibytes",
    "hot",
    "inline",
    "progress",
    "require",
    "rounding_of",
    "rounding_of_returns",
]
