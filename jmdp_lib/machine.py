"""What the library asks of the machine and says while it works: memory, extras, progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Around imports that a plain install lacks: a missing one names the command that installs it.

    `names` are the extras of pyproject.toml that bring what is imported:

        with extra("torch"):
            import torch

    The module keeps its type, so annotations may use it. In an `__init__.py`, one `with` goes
    around the imports of all its modules, which import as usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "jmdp_lib").startswith("jmdp_lib"):
            raise
        # An ImportError, so that an outer `extra` lets it through.
        raise ImportError(
            f"{error.name} is not installed, and this part of jmdp_lib needs it: "
            f'pip install "jmdp_lib[{",".join(names)}]"',
            name=error.name,
        ) from error


def progress(total: int | None, name: str, unit: str = "update") -> Any:
    """A progress bar once a run takes longer than two seconds and somebody is watching.

    Watching is a terminal, or a notebook (where stderr is no terminal).
    """
    watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(
        total=total, desc=name, unit=unit, unit_scale=unit == "update", delay=2.0,
        disable=not watched, leave=False, mininterval=0.5,
    )  # fmt: skip
