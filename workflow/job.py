"""What all jobs share: atomic writing of files, provenance, and ending together with the parent.

Standard library only, and nothing of jmdp_lib: its import takes seconds, and if the library cannot
be imported, a job still has to keep the notebook that failed and to say why. That is why
`replacing` has a twin in `jmdp_lib.machine`, and `end_with_parent` one in
`experiments.atari.tables`; tests/test_machine.py holds both to the same.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

RECORDED_PACKAGES = (
    *("jmdp_lib", "numpy", "scipy", "numba", "llvmlite", "pandas", "matplotlib", "seaborn"),
    *("torch", "gymnasium", "ale_py", "papermill", "jupytext", "nbclient", "ipykernel"),
    "snakemake",
)


@contextlib.contextmanager
def replacing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """A temporary path in `folder`, or beside the path, which it replaces at the end.

    On failure it is removed. The folder of the path is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = (folder or path.parent) / f".{path.name}.{uuid4().hex}.part"
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, folder: Path | None = None) -> None:
    """Write a file in one step. It is made in `folder` first, or beside the path."""
    with replacing(path, folder) as part:
        part.write_text(text, encoding="utf-8")


def provenance(root: Path) -> dict[str, Any]:
    """The commit of a repository in `root`, whether files differ from it, versions, the machine.

    Where there is no repository, the variable JMDP_COMMIT may say which commit it is.
    """
    # Not the state of a repository around it.
    here = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    command = "git status --porcelain=v2 --branch"
    told = subprocess.run(command, shell=True, cwd=root, env=here, capture_output=True, text=True)
    commit, dirty = os.environ.get("JMDP_COMMIT"), None
    if not told.returncode:
        first, *lines = told.stdout.splitlines()
        commit = first.removeprefix("# branch.oid ")
        dirty = any(not line.startswith("#") for line in lines)
    found = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return {"commit": commit, "dirty": dirty, "versions": found, "hardware": hardware()}


def hardware() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(ln for ln in lines if ln.startswith("model name")).split(":", 1)[1].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.machine()}"
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory, 1), "system": system}


def end_with_parent(parent: int | None = None, signum: int = signal.SIGTERM) -> None:
    """From now on this process ends when its parent has died.

    Without this, the orphan of a run that was killed outright would race with the next run. A
    process that may be orphaned before it gets here needs the parent's number from its caller.
    """
    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signum)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    # Snakemake, which ends with the batch that started it: `job.py PARENT OPTIONS...`
    import sys

    from snakemake.cli import main

    end_with_parent(int(sys.argv.pop(1)), signal.SIGKILL)
    main()
