"""The memory and the cores that this process may use, and the refusal of what needs more memory.

A process may use less than the machine has: control groups limit containers and the jobs of many
clusters, Slurm tells its jobs by variables what they have been given, and a process can be bound to
some of the cores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**60  # version 1 says "no limit" by a number that no machine has


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
