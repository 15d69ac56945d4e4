"""What concerns the computer and not the mathematics: this process, files, compiled code."""

from jmdp_lib.machine.compiled import (
    add_scaled,
    cached,
    hot,
    inline,
    inner_product,
    largest_of,
    rounding_of,
    rounding_of_returns,
    threaded,
)
from jmdp_lib.machine.files import (
    ReadOnly,
    content_of,
    load_parts,
    printed_names,
    replacing,
    save_parts,
    table,
)
from jmdp_lib.machine.process import (
    available_bytes,
    cores,
    extra,
    fits,
    gibibytes,
    in_executor,
    progress,
    require,
)

__all__ = [
    "ReadOnly",
    "add_scaled",
    "available_bytes",
    "cached",
    "content_of",
    "cores",
    "extra",
    "fits",
    "gibibytes",
    "hot",
    "in_executor",
    "inline",
    "inner_product",
    "largest_of",
    "load_parts",
    "printed_names",
    "progress",
    "replacing",
    "require",
    "rounding_of",
    "rounding_of_returns",
    "save_parts",
    "table",
    "threaded",
]
