"""What concerns the computer and not the mathematics: this process, compiled code, results."""

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
    "both",
    "cached",
    "hot",
    "inline",
    "rounding_of",
    "rounding_of_returns",
]
__all__ += ["available_bytes", "extra", "gibibytes", "progress", "require"]
__all__ += ["ReadOnly"]
