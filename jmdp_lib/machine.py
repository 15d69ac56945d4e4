"""What the library asks of the machine and says while it works: memory, progress."""

from __future__ import annotations

import sys
from typing import Any

import psutil
from tqdm import tqdm


def available_bytes() -> int:
    """Bytes that can be taken now without swapping."""
    return int(psutil.virtual_memory().available)


def gibibytes(size: float) -> str:
    """A size in bytes for people."""
    return f"{size / 2**30:,.2f} GiB"


def require(size: float, what: str) -> None:
    """Refuse `what` when its `size` in bytes is more than is available."""
    if size > available_bytes():
        raise MemoryError(
            f"{what} needs {gibibytes(size)}, available are {gibibytes(available_bytes())}"
        )


def progress(total: int | None, name: str, unit: str = "update") -> Any:
    """A progress bar once a run takes longer than two seconds and somebody is watching.

    Watching is a terminal, or a notebook (where stderr is no terminal).
    """
    watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(
        total=total, desc=name, unit=unit, unit_scale=unit == "update", delay=2.0,
        disable=not watched, leave=False, mininterval=0.5,
    )  # fmt: skip
