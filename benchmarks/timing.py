"""What the benchmarks share: the timer, and the line that says where they were run."""

from __future__ import annotations

import csv
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numba


def once(work: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few runs, after one that compiles and warms up."""
    work()
    return min(once(work) for _ in range(repeats))


def machine(*packages: str) -> str:
    """Where it was measured, with the versions that matter."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"Measured on {platform.machine()}, Python {platform.python_version()}, {versions}, "
        f"{numba.get_num_threads()} threads."
    )


def markdown_table(path: Path) -> list[str]:
    """The lines of a CSV file as a Markdown table."""
    with path.open() as file:
        head, *rows = csv.reader(file)
    line = "| {} |".format
    return [line(" | ".join(head)), "|---" * len(head) + "|", *(line(" | ".join(r)) for r in rows)]
