"""How much memory there is, so that work that cannot fit is refused before it starts."""

from __future__ import annotations

import psutil


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
