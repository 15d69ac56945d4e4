"""Long programs share this: a terminal that may close, and the record of how results were made.

Standard library only: the import of jmdp_lib takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORDED_PACKAGES = """
jmdp_lib numpy scipy numba llvmlite pandas matplotlib seaborn torch gymnasium ale_py papermill
jupytext nbclient ipykernel snakemake
"""


class Unfailing(io.FileIO):
    """A file of messages: one that cannot be written is lost, and its program goes on."""

    def write(self, message: Any) -> int:
        try:
            return super().write(message)
        except OSError:
            return len(message)


def outlive_terminal() -> None:
    """From now on no message ends this process, though its terminal or pipe was closed.

    The SIGHUP of a closing terminal does what SIGTERM does, but nothing under `nohup`.
    """
    for name in ("stdout", "stderr"):
        if stream := getattr(sys, name):
            file = io.BufferedWriter(Unfailing(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(file, stream.encoding, line_buffering=True))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def provenance(root: Path) -> dict[str, Any]:
    """The commit of a repository in `root`, whether files differ from it, versions, the machine.

    Where there is no repository, the variable JMDP_COMMIT may say which commit it is.
    """
    # Not the state of a repository around it.
    here = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    command = "git status --porcelain=v2 --branch"
    status = subprocess.run(command, shell=True, cwd=root, env=here, capture_output=True, text=True)
    commit, dirty = os.environ.get("JMDP_COMMIT"), None
    if not status.returncode:
        first, *lines = status.stdout.splitlines()
        commit = first.removeprefix("# branch.oid ")
        dirty = any(not line.startswith("#") for line in lines)
    versions = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {"commit": commit, "dirty": dirty, "versions": versions, "hardware": hardware()}


def hardware() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    cpu = model[1] if model else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
