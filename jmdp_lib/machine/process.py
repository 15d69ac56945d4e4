"""This process: the memory and cores that it may use, what it tells its user, how it shares work.

A process may use less memory than the machine has: control groups limit containers and the jobs of
many clusters. What needs more is refused.

A user is told what is not installed (`extra`) and how far a long run is (`progress`). Work is
shared with processes of our own, which end with this one, or with an executor of the user's.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tqdm import tqdm

from jmdp_lib import checks

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
# What control groups of version 2 and of version 1 call their limit and what they use.
_MEMORY = {
    "": ("memory.max", "memory.current"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}

Result = TypeVar("Result")


def available_bytes() -> int:
    """Bytes that this process can take now without swapping and without breaking a limit."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Bytes that each control group around this process has left, of those that have a limit.

    Pages of files count as left, since they can be dropped.
    """
    for line in MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.exists() else []:
        _, controller, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        # A container may see its own group as the topmost one, under the path of the outer system.
        for folder in (own, *own.parents) if controller in _MEMORY else ():
            group = GROUPS / controller / folder
            limit, used = (group / name for name in _MEMORY[controller])
            with suppress(OSError):  # not all groups can be seen
                if (most := limit.read_text().strip()) != "max":
                    stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                    files = int(stat["inactive_file"]) + int(stat["active_file"])
                    yield int(most) - int(used.read_text()) + files


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


def cores() -> int:
    """The number of cores that this process may run on."""
    bound = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1


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
        total=total,
        desc=name,
        unit=unit,
        unit_scale=unit == "update",
        delay=2.0,
        disable=not output_is_seen(),
        leave=False,
        mininterval=0.5,
    )


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
    workers = cores() if processes is None else processes
    workers = min(checks.at_least("processes", workers, 1), len(jobs))
    if workers > 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker runs the script again: its parent says what is wrong
    context = multiprocessing.get_context("spawn")
    columns = zip(*jobs, strict=True)
    results: list[Result] = []
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


def in_executor(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], executor: Executor, label: str
) -> tuple[list[Result], BaseException | None]:
    """What `work` made of the jobs, in their order, by an executor of the user's.

    If a job fails, because of its own error or since its worker died, the jobs that wait are
    cancelled; what was done by then comes back, with the error.
    """
    futures: list[Future[Result]] = []
    error: BaseException | None = None
    try:
        futures.extend(executor.submit(work, *job) for job in jobs)
        with progress(len(jobs), label, unit="chunk") as bar:
            for future in as_completed(futures):
                future.result()
                bar.update()
    except Exception as failure:
        error = failure
    finally:
        for future in futures:
            future.cancel()
    done = [x for x in futures if x.done() and not x.cancelled() and x.exception() is None]
    return [future.result() for future in done], error


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to.

    It knows its parent by `multiprocessing`, on Windows too. The jobs of a batch are no workers,
    and have their own version in workflow/job.py.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
