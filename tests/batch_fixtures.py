"""The batch on small projects: see projects.py."""

import contextlib

import psutil
import pytest


@pytest.fixture
def project(tmp_path):
    """A `projects.Project` of two notebooks that succeed."""
    import projects

    made = projects.Project(tmp_path / "a project")  # the space is on purpose
    made.notebook("01_first", projects.good("first.txt"))
    made.notebook("02_second", projects.good("second.txt"))
    made.profile("quick", "01_first:\n  level: 2.5\n")
    made.profile("paper", "")
    return made


@pytest.fixture
def run(project, monkeypatch, capfd):
    """The command in this process, which saves imports: its exit code and output."""
    import batch

    monkeypatch.setattr(batch.signal, "signal", lambda *_: None)

    def run(*arguments):
        code = batch.main(project.command(*arguments)[2:])
        return code, capfd.readouterr().out

    return run


@pytest.fixture
def family():
    """Processes that a test leaves alone for a while; none survives it, even when it fails."""
    processes = []
    yield processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not psutil.wait_procs(processes, timeout=300)[1]
