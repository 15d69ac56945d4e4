"""This process: the memory that it may use, and messages to its user.

A process may use less memory than the machine has: control groups limit containers and the jobs of
many clusters. A call that needs more is refused (`require`). A missing package is named by `extra`,
and `progress` shows how far a long run is.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that this process can allocate now without swapping and within all limits."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Bytes that are left in each control group (version 2) around this process that has a limit.

    Pages of files count as left, since they can be dropped.
    """
    lines = MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.exists() else []
    for own in [Path(line[len("0::/") :]) for line in lines if line.startswith("0::/")]:
        # A container may see its own group as the topmost one, under the path of the outer system.
        for group in (GROUPS / own, *(GROUPS / outer for outer in own.parents)):
            with suppress(OSError):  # not all groups can be seen
                if (most := (group / "memory.max").read_text().strip()) != "max":
                    stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                    files = int(stat["inactive_file"]) + int(stat["active_file"])
                    yield int(most) - int((group / "memory.current").read_text()) + files


def gibibytes(size: float) -> str:
    """A size in bytes for people."""
    return f"{size / 2**30:,.2f} GiB"


def require(size: float, what: str, instead: str = "") -> None:
    """Refuse `what` when its `size` in bytes is more than is available; say what to do instead."""
    if size > available_bytes():
        advice = f": {instead}" if instead else ""
        left = gibibytes(available_bytes())
        raise MemoryError(f"{what} needs {gibibytes(size)}, available are {left}{advice}")


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Context of imports that a plain install lacks: an error names the command that installs them.

    `names` are the extras of pyproject.toml that bring these packages:

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
    """True in a terminal or a notebook, where somebody sees the lines of stderr."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress(
    total: int | None, name: str, unit: str = "update", steps: Iterable[Any] | None = None
) -> Any:
    """A progress bar, shown if a run takes longer than two seconds and somebody is watching.

    It moves as its `steps` are taken, or by its `update`.
    """
    return tqdm(
        iterable=steps,
        total=total,
        desc=name,
        unit=unit,
        unit_scale=unit == "update",
        delay=2.0,
        disable=not output_is_seen(),
        leave=False,
        mininterval=0.5,
    )
