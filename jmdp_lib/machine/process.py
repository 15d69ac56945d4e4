"""This process: the memory and cores that it may use, what it tells its user, how it shares work.

A process may use less than the machine has: control groups limit containers and the jobs of many
clusters, Slurm tells its jobs by variables what they have been given, and a process can be bound to
some of the cores. What needs more memory is refused.

A user is told what is not installed (`extra`) and how far a long run is (`progress`). Work is
shared with an executor of the user's.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tqdm import tqdm

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**60  # version 1 says "no limit" by a number that no machine has

Result = TypeVar("Result")


def available_bytes() -> int:
    """Bytes that this process can take now without swapping and without breaking a limit."""
    left = [psutil.virtual_memory().available, _slurm_memory() - psutil.Process().memory_info().rss]
    left += [_memory_left(group) for group in _groups("memory")]
    return max(0, int(min(left)))


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
    """The number of cores that this process may keep busy, at least one."""
    bound = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    quotas = [_quota(group) for group in _groups("cpu")]
    return max(1, math.ceil(min(found, _variable("SLURM_CPUS_ON_NODE"), *quotas)))


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in, of version 2 and of version 1."""
    if not MEMBERSHIP.exists():
        return
    for line in MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        base = GROUPS / controller if controllers else GROUPS
        # A container may see its own group as the topmost one, under the path of the outer system.
        yield from (base / part for part in (group, *group.parents))


def _numbers(path: Path) -> list[float]:
    """The numbers in a file; infinity if there is no such file, or no such limit ("max")."""
    try:
        words = path.read_text().split()
    except OSError:
        return [math.inf]
    return [float(word) if word.isdigit() else math.inf for word in words]


def _memory_left(group: Path) -> float:
    """Bytes that a control group has left; pages of files count, since they can be dropped."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        (most,) = _numbers(group / limit)
        if most < NO_LIMIT:
            lines = (group / "memory.stat").read_text().splitlines()
            counts = {name: int(value) for name, value in map(str.split, lines)}
            kinds = ("inactive_file", "active_file")
            files = sum(counts.get(f"total_{kind}", counts.get(kind, 0)) for kind in kinds)
            return most - _numbers(group / used)[0] + files
    return math.inf


def _quota(group: Path) -> float:
    """Cores that a control group may use on average: its time over the period."""
    given, period = [*_numbers(group / "cpu.max"), 1.0][:2]
    if given == math.inf:
        (given,) = _numbers(group / "cpu.cfs_quota_us")
        (period,) = _numbers(group / "cpu.cfs_period_us")
    return given / period if given < math.inf else math.inf


def _variable(name: str) -> float:
    """A number that Slurm has set; infinity without it, and for zero, which stands for all."""
    text = os.environ.get(name, "")
    return float(text) if text.isdigit() and int(text) else math.inf


def _slurm_memory() -> float:
    """Bytes that the Slurm job may use on this node."""
    per_cpu = _variable("SLURM_MEM_PER_CPU") * _variable("SLURM_CPUS_ON_NODE")
    return min(_variable("SLURM_MEM_PER_NODE"), per_cpu) * 2**20


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
