"""What a user is told beside the results: what is not installed, and how far a long run is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


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


def output_is_seen() -> bool:
    """Whether somebody sees what goes to stderr: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress(total: int | None, name: str, unit: str = "update") -> Any:
    """A progress bar once a run takes longer than two seconds and somebody is watching."""
    return tqdm(
        total=total, desc=name, unit=unit, unit_scale=unit == "update", delay=2.0,
        disable=not output_is_seen(), leave=False, mininterval=0.5,
    )  # fmt: skip
