"""How results were made, of notebooks and of experiments.

Standard library only: the import of jmdp_lib takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

RECORDED_PACKAGES = (
    *("jmdp_lib", "numpy", "scipy", "numba", "llvmlite", "pandas", "matplotlib", "seaborn"),
    *("torch", "gymnasium", "ale_py", "papermill", "jupytext", "nbclient", "ipykernel"),
    "snakemake",
)


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
