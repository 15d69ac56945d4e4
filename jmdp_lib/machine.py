"""What concerns the machine: memory, extras, whole files, progress, worker processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from tqdm import tqdm

from jmdp_lib import checks, limits

Result = TypeVar("Result")


def available_bytes() -> int:
    """Bytes that can be taken now without swapping, within the limits of this process."""
    return limits.available_bytes()


def gibibytes(size: float) -> str:
    """A size in bytes for people."""
    return f"{size / 2**30:,.2f} GiB"


def fits(size: float) -> bool:
    """Whether so many bytes are available."""
    return size <= available_bytes()


def require(size: float, what: str, instead: str = "") -> None:
    """Refuse `what` when its `size` in bytes is more than is available; say what to do instead."""
    if not fits(size):
        raise MemoryError(
            f"{what} needs {gibibytes(size)}, available are {gibibytes(available_bytes())}"
            + f": {instead}" * bool(instead)
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


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`: it replaces `path` at the end, or is removed on failure.

    No other thread, process or machine uses the same one.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be written: there is no folder {target.parent}")
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def watched() -> bool:
    """Whether somebody sees what goes to stderr: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress(total: int | None, name: str, unit: str = "update") -> Any:
    """A progress bar once a run takes longer than two seconds and somebody is watching."""
    return tqdm(
        total=total, desc=name, unit=unit, unit_scale=unit == "update", delay=2.0,
        disable=not watched(), leave=False, mininterval=0.5,
    )  # fmt: skip


def in_processes(
    work: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    processes: int | None,
    label: str,
) -> list[Result]:
    """[work(*job) for job in jobs] in `processes` processes, one per core unless given.

    For what holds the GIL, so that threads would give nothing. Jobs carry their own seeds, so how
    many processes share them changes nothing. New processes are spawned, not forked, since the
    parent may run threads (numba, torch): a script must start its work under
    `if __name__ == "__main__"`. They end with this process, however it ends.
    """
    workers = limits.cores() if processes is None else processes
    workers = min(checks.at_least("processes", workers, 1), len(jobs))
    if workers > 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker runs the script again: its parent says what is wrong
    context, columns, results = multiprocessing.get_context("spawn"), zip(*jobs, strict=True), []
    pool = ProcessPoolExecutor(workers, context, _end_with_parent)  # starts none by itself
    try:
        with pool, progress(len(jobs), label, unit="chunk") as bar:
            for result in map(work, *columns) if workers == 1 else pool.map(work, *columns):
                results.append(result)
                bar.update()
    except BrokenProcessPool:
        raise RuntimeError(
            f"{label}: a process that was started for processes={processes} ended before its work "
            'was done. A script must do its work under `if __name__ == "__main__":`, since new '
            "processes import it. They must find the simulator and the policy in a module, not in "
            "a notebook or a shell. If that is so, it crashed: processes=1 may show why"
        ) from None
    return results


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
