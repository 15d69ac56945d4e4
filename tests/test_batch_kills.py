"""Whatever is killed, all processes end, no half file is shown, and the same command goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from projects import BATCH, WAITING, Project, alive, wait_until

KILLED_JOB = Path(__file__).with_name("killed_job.py")


def has_started_snakemake(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # a child that has just ended
        return any("--snakefile" in p.cmdline() for p in process.children(recursive=True))
    return False


def kill(
    command: list[str],
    victim: str,
    ready: Callable[[], bool],
    family: list[psutil.Process],
    said: Path,
) -> str:
    """Start a command and kill one of its processes when it is ready; all of them must end.

    A victim that "starts" is killed as soon as there is a Snakemake, before that has done anything.
    Returns what it said, in the file `said`.
    """
    with open(said, "wb") as file:
        running = subprocess.Popen(command, stdout=file, stderr=file)
    family[:] = [psutil.Process(running.pid)]
    names = ("make", "batch", "snakemake", "job", "kernel")
    if "starts" in victim:
        names, ready = names[:3], lambda: has_started_snakemake(family[0])
    elif command[0] != "make":
        names = names[3:]
    try:
        wait_until(ready)
    finally:
        family += family[0].children(recursive=True)
    process = dict(zip(names, family, strict=True))[victim.split()[0]]
    process.send_signal(signal.SIGTERM if "TERM" in victim else signal.SIGKILL)
    assert running.wait() != 0
    wait_until(lambda: not any(map(alive, family)))
    return said.read_text()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of programs that a test starts; paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def set_up(project: Project) -> list[str]:
    """The command that users give, in a project whose environment stands for the one of here."""
    project.copy_workflow()
    for name in ("pyproject.toml", "constraints.txt"):
        (project.root / name).touch()
    python = project.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (project.root / ".venv" / ".folder").write_text(f"define MADE_IN\n{project.root}\nendef\n")
    (project.root / ".venv" / ".complete").touch()
    return ["make", "-C", str(project.root), "figures", "PROFILE=quick", "CORES=2"]


VICTIMS = (
    "make by TERM",
    "make",
    "make by TERM as it starts",
    "batch",
    "snakemake as it starts",
    "job by TERM",
    "job",
    "kernel",
)


@pytest.mark.slow
def test_killed_again_and_again_the_same_command_still_finishes(
    project: Project, tmp_path: Path, family: list[psutil.Process], temporary: Path
) -> None:
    gate, reached = tmp_path / "gate", tmp_path / "gate.reached"
    project.notebook("02_second", WAITING)
    project.profile("quick", f"02_second:\n  gate: '{gate}'\n")
    make = set_up(project)
    script, plan = project.root / "workflow" / "notebook_job.py", project.out("plan.json")
    job = [sys.executable, str(script), str(plan), "02_second", str(os.getpid())]
    whole = ("notebooks/01_first.ipynb", "provenance/01_first.json", "figures/first.txt")
    first: dict[str, tuple[int, bytes]] = {}

    def ready() -> bool:
        """The second notebook waits, and Snakemake has recorded that the first one is done."""
        log = project.out("snakemake.log")
        return reached.exists() and (bool(first) or "1 of 2 steps" in log.read_text())

    for victim in VICTIMS:
        # Whoever is killed, everything ends, though the gate is still shut. A job and its kernel
        # end without the help of Snakemake, so those two are started without it.
        alone = victim.startswith(("job", "kernel"))
        there = set(temporary.glob("nb*"))
        said = kill(job if alone else make, victim, ready, family, tmp_path / "said")
        reached.unlink(missing_ok="starts" in victim)
        if "TERM" in victim:
            assert set(temporary.glob("nb*")) == there  # the kernel's folder is gone
            assert alone or "interrupted; the same command goes on from here" in said
        keys = [p for p in temporary.rglob("*") if p.is_file() and b'"key"' in p.read_bytes()]
        assert not keys  # not even after a kill -9
        if victim == "make by TERM":
            assert "1 of 2 notebooks done" in said
            assert "  interrupted          02_second" in said
            assert "FAILED" not in said
        left = project.results()
        assert "notebooks/02_second.ipynb" not in left
        assert "figures/wait.txt" not in left  # nothing half written where users look
        first = first or {name: left[name] for name in whole}
        assert first.items() <= left.items()  # what was done before the kill was not done again
    assert "kernel died after cell 2, perhaps for want of memory: the job's peak was 0." in said
    kept = nbformat.read(project.out("failed", "02_second.ipynb"), as_version=4)
    assert [c.execution_count for c in kept.cells] == [1, 2, 3, None]  # the third began

    gate.touch()
    done = subprocess.run(make, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = project.results()
    assert results["figures/wait.txt"][1] == b"whole"
    assert set(results) >= {"notebooks/02_second.ipynb", "provenance/02_second.json"}
    assert "failed/02_second.ipynb" not in results
    assert first.items() <= results.items()


@pytest.mark.slow
def test_a_job_killed_at_any_operation_on_files_leaves_them_old_or_new(project: Project) -> None:
    command = [sys.executable, str(KILLED_JOB), str(project.root), str(BATCH.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 20


@pytest.mark.parametrize("inside", [False, True], ids=["beside others", "as process 1"])
def test_make_ends_at_once_on_term_while_it_looks_at_its_environment(
    project: Project, inside: bool, family: list[psutil.Process]
) -> None:
    """As process 1, of a container, make did not end at all while its $(shell) asked a program."""
    enter = ["unshare", "--pid", "--fork", "--kill-child"] if inside else []
    if inside and subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("needs root, to make a namespace of processes")
    make = set_up(project)
    asked = project.root / "asked"
    python = project.root / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\ntouch "{asked}"\nexec sleep 600\n')  # whatever is asked
    running = subprocess.Popen([*enter, *make])
    family.append(psutil.Process(running.pid))
    wait_until(asked.exists)
    family.extend(family[0].children(recursive=True))
    family[1 if inside else 0].send_signal(signal.SIGTERM)
    assert running.wait(timeout=60) != 0
