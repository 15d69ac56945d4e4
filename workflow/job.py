"""What all jobs share: files written whole, what made a result, an end with whoever started them.

Standard library only: the Atari runs use it on machines without any notebook software.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import os
import platform
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

RECORDED_PACKAGES = (
    *("jmdp_lib", "numpy", "scipy", "numba", "llvmlite", "pandas", "matplotlib", "seaborn"),
    *("torch", "gymnasium", "ale_py", "papermill", "jupytext", "nbclient", "ipykernel"),
    "snakemake",
)


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def git_state(root: Path) -> dict[str, Any]:
    def git(*arguments: str) -> str | None:
        with contextlib.suppress(OSError):
            done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
            return done.stdout.strip() if done.returncode == 0 else None
        return None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return {"commit": None, "dirty": None}
    status = git("status", "--porcelain")
    commit = git("rev-parse", "--verify", "HEAD")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def hardware() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(ln for ln in lines if ln.startswith("model name")).split(":", 1)[1].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.machine()}"
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": system,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def end_with_parent() -> None:
    """From now on this process ends, its children first, when whoever started it has died.

    An orphan of a Snakemake that was killed outright would race with its successor.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        for child in multiprocessing.active_children():
            child.terminate()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
