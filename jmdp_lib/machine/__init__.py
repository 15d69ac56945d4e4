"""What concerns the computer and not the mathematics: this process, compiled code, results."""

from jmdp_lib.machine.compiled import (
    add_scaled,
    both,
    cached,
    hot,
    inline,
    inner_product,
    largest_of,
    rounding_of,
    rounding_of_returns,
    threaded,
)
from jmdp_lib.machine.process import available_bytes, extra, gibibytes, progress, require
from jmdp_lib.machine.results import ReadOnly

__all__ = [
    "add_scaled",
    "both",
    "cached",
    "hot",
    "inline",
    "inner_product",
    "largest_of",
    "rounding_of",
    "rounding_of_returns",
    "threaded",
]
__all__ += ["available_bytes", "extra", "gibibytes", "progress", "require"]
__all__ += ["ReadOnly"]
