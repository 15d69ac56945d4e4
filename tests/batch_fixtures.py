"""The batch on small projects: see projects.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest


@pytest.fixture
def project(tmp_path: Path) -> Any:
    """A `projects.Project` of two notebooks that succeed."""
    import projects

    made = projects.Project(tmp_path / "a project")  # the space is on purpose
    made.notebook("01_first", projects.good("first.txt"))
    made.notebook("02_second", projects.good("second.txt"))
    made.profile("quick", "01_first:\n  level: 2.5\n")
    made.profile("paper", "")
    return made


@pytest.fixture
def run(
    project: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command in this process, which has imported what it needs: its code, and what it said."""
    import batch

    monkeypatch.setattr(batch.signal, "signal", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str]:
        code = batch.main(project.command(*arguments)[2:])
        return code, capfd.readouterr().out

    return run


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """Processes that a test leaves alone for a while; none survives it, even when it fails."""
    import projects

    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if projects.alive(process):
            process.kill()
