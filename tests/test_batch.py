"""The batch runner, on small projects made for each test."""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

BATCH = Path(__file__).resolve().parents[1] / "workflow" / "batch.py"
sys.path.insert(0, str(BATCH.parent))

import batch  # noqa: E402
import notebook_job  # noqa: E402
import results  # noqa: E402

GOOD = """\
# %% [markdown]
# # A notebook

# %% tags=["parameters"]
level = 1.0
num_points = 3
seed = 7
out_dir = ""

# %%
from pathlib import Path

if out_dir:
    Path(out_dir, "{figure}").write_text(f"{{level}} {{num_points}}")

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
print("claim | value | verdict")
print(f"|S| is large | {{level}} | holds")
"""

FAILING = """\
# %% tags=["parameters"]
out_dir = ""

# %%
from pathlib import Path

if out_dir:
    Path(out_dir, "half.txt").write_text("made before the failure")
raise RuntimeError("this one is broken")
"""

# Waits for a file that the test makes, so that the test and not the clock decides when it ends.
WAITING = """\
# %% tags=["parameters"]
gate = ""
out_dir = ""

# %%
import time
from pathlib import Path

Path(gate + ".reached").touch()
Path(out_dir, "wait.txt").write_text("half")
while not Path(gate).exists():
    time.sleep(0.05)
Path(out_dir, "wait.txt").write_text("whole")

# %% tags=["summary"]
print("waited | yes | holds")
"""

READING = """\
# %% tags=["parameters"]
result_files = ["one.csv", "two.csv"]
out_dir = ""

# %%
from pathlib import Path

for file in result_files:
    Path(out_dir, Path(file).name).write_text(Path("..", file).read_text())

# %% tags=["summary"]
print("read | yes | holds")
"""


class Project:
    """A folder with notebooks and profiles, and the command run on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "notebooks").mkdir(parents=True)
        (root / "workflow" / "profiles").mkdir(parents=True)

    def notebook(self, name: str, text: str) -> None:
        # Latin-1, so that a test can write what is not UTF-8; all else is ASCII
        (self.root / "notebooks" / f"{name}.py").write_text(text, encoding="latin-1")

    def profile(self, name: str, text: str) -> None:
        (self.root / "workflow" / "profiles" / f"{name}.yaml").write_text(text, encoding="latin-1")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(BATCH), "--root", str(self.root), "--cores", "2", *arguments]

    def refusal(self, *arguments: str) -> str:
        """What the same command says where it refuses to start; in this process, for speed."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            assert batch.main(self.command(*arguments)[2:]) == 2
        assert not (self.root / "out").exists()
        return said.getvalue()

    def copy_workflow(self) -> None:
        """Give the project the Makefile and the workflow that users have."""
        shutil.copy(BATCH.parents[1] / "Makefile", self.root)
        unwanted = shutil.ignore_patterns("profiles", "__pycache__")
        shutil.copytree(BATCH.parent, self.root / "workflow", dirs_exist_ok=True, ignore=unwanted)

    def out(self, *parts: str) -> Path:
        return self.root.joinpath("out", "quick", *parts)

    def results(self) -> dict[str, tuple[int, bytes]]:
        """Everything a user reads, with its time and content."""
        folders = ("notebooks", "figures", "provenance", "failed")
        files = [
            p for folder in folders for p in sorted(self.out(folder).rglob("*")) if p.is_file()
        ]
        return {
            str(p.relative_to(self.out())): (p.stat().st_mtime_ns, p.read_bytes()) for p in files
        }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "a project")  # the space is on purpose
    made.notebook("01_first", GOOD.format(figure="first.txt"))
    made.notebook("02_second", GOOD.format(figure="second.txt"))
    made.profile("quick", "01_first:\n  level: 2.5\n")
    made.profile("paper", "")
    return made


@pytest.fixture
def run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command in this process, which has imported what it needs: its code, and what it said."""
    monkeypatch.setattr(batch.signal, "signal", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str]:
        code = batch.main(project.command(*arguments)[2:])
        return code, capfd.readouterr().out

    return run


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the awaited state did not come")
        time.sleep(0.05)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """Processes that a test leaves alone for a while; none survives it, even when it fails."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if alive(process):
            process.kill()


@contextlib.contextmanager
def mounted(folder: Path, *all_options: list[str]) -> Iterator[None]:
    """Mount something at a folder, as root."""
    for options in all_options:
        mount = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
        if mount.returncode:
            pytest.skip(f"root may not mount a folder here: {mount.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# ---- long tests, the longest first, so that no process is left alone with one at the end ---------


SLURM = """\
ClusterName=trial
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=localhost CPUs=2 RealMemory=4500
PartitionName=main Nodes=localhost Default=YES
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm cluster of one node, without an accounting database, with memory for one notebook."""
    daemons = ("munged", "slurmctld", "slurmd")
    missing = [name for name in (*daemons, "sbatch", "squeue") if not shutil.which(name)]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and the packages slurm-wlm and munge; not found: {missing}")
    with (
        # not tmp_path: paths of sockets must be short
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        socket.socket() as one,
        socket.socket() as two,
        contextlib.ExitStack() as stack,
    ):
        place = Path(folder)
        ports = []
        for bound in (one, two):
            bound.bind(("localhost", 0))
            ports.append(bound.getsockname()[1])
            bound.close()
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o600)
        (place / "spool").mkdir()
        (place / "state").mkdir()
        (place / "slurm.conf").write_text(SLURM.format(ports=ports, folder=folder))
        monkeypatch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
        # Snakemake's plugin keeps SLURM_CONF from srun, which would look for it in /etc.
        srun = place / "bin" / "srun"
        srun.parent.mkdir()
        srun.write_text(
            f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n'
        )
        srun.chmod(0o755)
        monkeypatch.setenv("PATH", f"{srun.parent}{os.pathsep}{os.environ['PATH']}")
        munged = ["munged", "--force", "--foreground", f"--socket={folder}/munge.socket"]
        munged += [f"--{file}-file={folder}/{file}" for file in ("key", "pid", "log", "seed")]
        said = stack.enter_context(open(place / "said", "w"))
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            started = subprocess.Popen(command, stdout=said, stderr=said)
            stack.callback(started.wait)
            stack.callback(started.terminate)
        idle = ["sinfo", "--noheader", "--format=%T"]
        try:
            wait_until(
                lambda: "idle" in subprocess.run(idle, capture_output=True, text=True).stdout
            )
        except TimeoutError:
            pytest.fail((place / "said").read_text())
        yield


def slurm_jobs(*options: str) -> list[list[str]]:
    """State, memory and time limit of each job; of those alive unless asked for all."""
    command = ["squeue", "--noheader", "--format=%T %m %l", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_slurm_jobs_are_cancelled_when_they_should_be_and_run_to_their_end_once(
    project: Project, tmp_path: Path, family: list[psutil.Process]
) -> None:
    gate, said = tmp_path / "gate", tmp_path / "said"
    (project.root / "jmdp_lib").mkdir()
    for number in range(90):
        (project.root / "jmdp_lib" / f"module_{number}.py").touch()
    project.notebook("01_first", WAITING)
    project.notebook("02_second", WAITING + "\n# %%\nraise RuntimeError")
    names = ("01_first", "02_second")
    project.profile("quick", "\n".join(f"{name}:\n  gate: '{gate}'" for name in names))
    command = project.command("--slurm", "--", "--slurm-init-seconds-before-status-checks", "2")
    partition = ["scontrol", "update", "PartitionName=main"]
    for signum, found in (
        (signal.SIGKILL, ["PENDING", "RUNNING"]),
        (signal.SIGTERM, ["PENDING", "PENDING"]),
    ):
        with open(said, "w") as file:
            running = subprocess.Popen(command, stdout=file, stderr=file)
        family.append(psutil.Process(running.pid))
        wait_until(lambda found=found: sorted(state for state, *_ in slurm_jobs()) == found)
        left = slurm_jobs()
        family.extend(family[-1].children(recursive=True))
        running.send_signal(signum)
        running.wait()
        wait_until(lambda: not any(map(alive, family)))
        if signum == signal.SIGKILL:
            assert slurm_jobs() == left  # orphans, which the next run must not meet
            subprocess.run([*partition, "State=DOWN"], check=True)  # so that its own jobs wait
    assert "Cancelling Slurm jobs of an interrupted run" in said.read_text()
    assert not slurm_jobs()

    subprocess.run([*partition, "State=UP"], check=True)
    gate.touch()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED 02_second: read out/quick/failed/02_second.ipynb" in done.stdout
    assert "All 1 claims hold" in done.stdout
    assert project.out("figures", "wait.txt").read_text() == "whole"
    assert "has been submitted with SLURM jobid" in done.stderr  # progress is visible here too
    assert "module_7" not in done.stderr
    jobs = slurm_jobs("--states=all")
    assert [state for state, *_ in jobs].count("COMPLETED") == 1
    assert all(asked == ["4000M", "2:00:00"] for _, *asked in jobs)


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

    victims = (
        "make by TERM",
        "make",
        "make by TERM as it starts",
        "batch",
        "snakemake as it starts",
    )
    for victim in (*victims, "job by TERM", "job", "kernel"):
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
    assert first.items() <= results.items()


PLAYED = """\
# %% tags=["parameters"]
result_files = ["figures/atari_reward_gaps.csv", "figures/atari_sticky_gaps.csv"]
out_dir = ""

# %%
import csv
from pathlib import Path

rows = [row for file in result_files for row in csv.DictReader((Path.cwd().parent / file).open())]

# %% tags=["summary"]
found = sorted({" ".join((row["game"], row["noise"], row["seed"])) for row in rows})
print(f"games and seeds | {', '.join(found)} | holds")
"""


SMALL = "atari:\n  games: [Pong]\n  seeds: [0]\n  settings: small.toml\n"
SETTINGS = """\
[lottery]
fresh = 0
trials.base = {}
experiment = { num_states = 60, num_held_out = 10, num_evaluation = 3, repeats = 4, horizon = 10 }
config = { kinds = ["gram", "near"], steps = 20, batch = 16, hidden = 32, log_every = 5 }
"""


@pytest.fixture
def games(project: Project) -> Project:
    project.notebook("03_played", PLAYED)
    project.profile("quick", SMALL)
    (project.root / "small.toml").write_text(SETTINGS)
    (project.root / "figures").mkdir()
    for noise in ("reward", "sticky"):
        path = project.root / "figures" / f"atari_{noise}_gaps.csv"
        path.write_text(f"game,noise,seed\ncommitted,{noise},9\n")
    return project


@pytest.mark.slow
def test_games_are_trained_anew_only_where_asked_for(
    games: Project, run: Callable[..., tuple[int, str]]
) -> None:
    files = [f"figures/atari_{noise}_gaps.csv" for noise in ("reward", "sticky")]
    committed = batch.make_plan(games.root, "quick")
    assert committed["notebooks"]["03_played"] == {"result_files": files}
    plan = batch.make_plan(games.root, "quick", "cpu")
    made = [file.replace("figures", "out/quick/atari") for file in files]
    assert plan["notebooks"]["03_played"] == {"result_files": made}

    sticky = f"{SMALL}03_played:\n  result_files: [{files[1]}]\n"
    games.profile("quick", sticky)
    # On one core: to spawn a process takes longer than it saves.
    again = ("--atari", "cpu", "--only", "03_played", "--cores", "1")
    code, said = run(*again)
    assert code == 0, said
    assert "games and seeds  Pong sticky 0 " in said
    tables = {f"atari_sticky_{name}.csv" for name in ("gaps", "table", "curves")}
    assert {p.name for p in games.out("atari").glob("atari_*")} == {*tables, "atari_sticky.json"}

    committed_file = games.root / files[1]
    assert committed_file.read_text().endswith("committed,sticky,9\n")
    committed_file.unlink()  # what is made anew need not be there
    games.profile("quick", sticky.replace("[0]", "[0, 1]"))
    _, said = run(*again, "--", "--dry-run")  # would train the new seed, and no game or seed again
    assert dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)) == {
        "atari_seed": "1", "atari_results": "1", "notebook": "1", "total": "3",
    }  # fmt: skip
    with pytest.raises(batch.ProjectError, match=f"there is no file {files[1]}"):
        batch.make_plan(games.root, "quick")


@pytest.mark.slow
def test_failures_are_named_and_the_failed_notebook_is_kept(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    # On one core Snakemake takes the largest first, so the others have not begun when it fails.
    project.notebook("00_zero", GOOD.format(figure="second.txt").replace("| holds", "| FAILS"))
    project.notebook("01_first", FAILING + "# padding\n" * 500)
    project.profile("quick", "")
    code, said = run("--profile", "quick", "--cores", "1")
    assert code == 1
    assert [line for line in said.splitlines() if line.startswith("FAILED")] == [
        "FAILED second.txt is written by two notebooks",
        "FAILED 01_first: read out/quick/failed/01_first.ipynb",
        "FAILED 1 of 2 claims",
    ]
    assert re.search("  FAILED  01_first  0:.*this one is broken", said)
    assert sorted(project.results()) == [
        "failed/01_first.ipynb",
        "figures/second.txt",
        "notebooks/00_zero.ipynb",
        "notebooks/02_second.ipynb",
        "provenance/00_zero.json",
        "provenance/02_second.json",
    ]
    kept = nbformat.read(project.out("failed", "01_first.ipynb"), as_version=4)
    errors = [o for c in kept.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert errors[0].evalue == "this one is broken"

    # The same command runs the failed notebook again, and a changed one, but not what is done.
    before = project.results()
    project.notebook("00_zero", GOOD.format(figure="zero.txt"))
    code, said = run("--profile", "quick")
    assert code == 1
    assert said.count("FAILED") == 2
    assert "02_second  |S| is large  1.0    holds" in said  # the table has it all the same
    after = project.results()
    assert after["notebooks/02_second.ipynb"] == before["notebooks/02_second.ipynb"]
    # The figure of two notebooks went with one of them, and came back with the other.
    assert after["figures/second.txt"] == before["figures/second.txt"]
    assert "figures/zero.txt" in after

    # A rerun that fails must not leave the earlier success looking valid.
    project.notebook("01_first", GOOD.format(figure="first.txt"))
    project.notebook("02_second", FAILING)
    project.out("figures", "mine.txt").write_text("a user's own file stays")
    library = project.root / "jmdp_lib" / "new.py"
    library.parent.mkdir()
    library.write_text("pass")  # every notebook may import it, and is run again
    assert run("--profile", "quick")[0] == 1
    before, after = after, project.results()
    assert {name for name in after if name.startswith(("failed", "figures"))} == {
        "failed/02_second.ipynb",
        *(f"figures/{name}.txt" for name in ("zero", "first", "mine")),
    }
    assert "notebooks/02_second.ipynb" not in after
    assert after["notebooks/00_zero.ipynb"][0] > before["notebooks/00_zero.ipynb"][0]


@pytest.mark.slow
def test_a_good_run_and_then_only_what_changed(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    committed = project.root / "figures" / "first.txt"
    committed.parent.mkdir()
    committed.write_text("of the paper profile")
    project.notebook("03_third", READING)
    (project.root / "one.csv").write_text("1")
    said = project.refusal("--profile", "quick")
    assert said == "error: 03_third.py: there is no file two.csv\n"
    (project.root / "two.csv").write_text("2")
    code, said = run("--profile", "quick")
    assert code == 0, said
    assert committed.read_text() == "of the paper profile"
    assert not (project.root / "out" / "paper").exists()
    assert "All 3 claims hold" in said
    names = ("01_first", "02_second", "03_third")
    assert set(project.results()) == {
        *(f"figures/{file}" for file in ("first.txt", "second.txt", "one.csv", "two.csv")),
        *(f"notebooks/{name}.ipynb" for name in names),
        *(f"provenance/{name}.json" for name in names),
    }
    # the profile's value in one, the defaults in the other
    assert project.out("figures", "first.txt").read_text() == "2.5 3"
    assert project.out("figures", "second.txt").read_text() == "1.0 3"
    assert "01_first   |S| is large  2.5    holds" in said
    assert "02_second  |S| is large  1.0    holds" in said
    for name in names:
        for word in ("start", "done"):
            assert f"  {word:<6}  {name}  0:" in said

    text = project.out("provenance", "01_first.json").read_text()
    record = json.loads(text)
    assert record["parameters"] == {"level": 2.5, "num_points": 3, "seed": 7}
    assert record["seeds"] == {"seed": 7}
    assert record["figures"] == ["first.txt"]
    assert record["claims"] == [["|S| is large", "2.5", "holds"]]
    assert record["commit"] is None  # this folder is no repository
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["wall_seconds"] > 0
    assert record["hardware"]["cores"] == os.cpu_count()
    assert str(project.root) not in text

    before = project.results()
    project.profile("quick", "01_first:\n  level: 3.5\n")
    (project.root / "two.csv").write_text("3")
    project.notebook("02_second", GOOD.format(figure="other.txt"))
    project.out("figures", "second.txt").unlink()  # a deleted figure comes back, and damaged files
    os.truncate(project.out("notebooks", "02_second.ipynb"), 1000)
    os.truncate(project.out("provenance", "02_second.json"), 100)
    code, said = run("--profile", "quick", "--only", "01_first", "03_third")
    assert code == 0, said
    after = project.results()
    assert after["figures/first.txt"][1] == b"3.5 3"
    assert after["figures/two.csv"][1] == b"3"
    assert after["figures/second.txt"] == before["figures/second.txt"]
    assert after["notebooks/02_second.ipynb"] == before["notebooks/02_second.ipynb"]
    assert after["provenance/02_second.json"] == before["provenance/02_second.json"]


FILLING = """\
# %% tags=["parameters"]
out_dir = ""

# %%
from pathlib import Path

with Path(out_dir, "big.txt").open("wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_leaves_no_half_file_and_is_gone_on_from(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    """`failed/` had files of no or some bytes, and notebooks that never started had "FAILED"."""
    # On one core Snakemake takes the largest first, so the others come when the disk is full.
    project.notebook("00_filling", FILLING + "# padding\n" * 500)
    project.out().mkdir(parents=True)
    with mounted(project.out(), ["-t", "tmpfs", "-o", "size=2m", "none"]):
        code, said = run("--cores", "1")
        assert code == 1
        assert "No space left on device" in said
        assert "00_filling cannot be kept in failed/: [Errno 28]" in said
        assert [line for line in said.splitlines() if line.startswith("FAILED")] == [
            "FAILED 00_filling: read the messages above and out/quick/snakemake.log; "
            "nothing of it could be kept"
        ]
        assert "  not started          01_first, 02_second" in said
        assert not project.results()

        project.notebook("00_filling", FILLING.replace("while True", "for _ in range(100)"))
        code, said = run("--cores", "1")
        assert code == 0, said
        assert project.out("figures", "big.txt").stat().st_size == 409_600


# Runs one job again and again, each time killed at the next operation on files; `execute` is a
# stand-in that writes what a kernel would have written.
KILLED = """\
import json, os, shutil, signal, sys
from pathlib import Path

root, workflow = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, workflow)
import notebook_job as jobs

notebook = jobs.read_source(root / "notebooks" / "01_first.py")
for number, cell in enumerate(notebook.cells):
    cell.id = str(number)  # they are random otherwise

def execute(nb, parameters, source, keep):
    for name in ("a.txt", "sub/b.txt"):
        path = Path(parameters["out_dir"], name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("whole " * 2000)
    return nb

jobs.execute, jobs.provenance = execute, lambda root: {}
jobs.read_source = lambda path: notebook  # once: it opens nothing for writing
out = root / "out" / "quick"
run = out / ".runs" / "01_first"

def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

def seen():
    return {name: text for name, text in files(out).items() if not name.startswith(".runs")}

def start(stop):
    child = os.fork()
    if child == 0:
        left = [stop]
        def hook(event, arguments):
            writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in ("os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir"):
                if str(root) in str(arguments[0]) or event in ("os.remove", "os.rmdir"):
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        ok = jobs.run_job(out, "01_first", {})
        os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def content(files):
    return {k: v for k, v in files.items() if not k.startswith("provenance")}

assert start(-1) == 0
whole = seen()
assert content(whole) == content(files(run))
old = {"figures/a.txt": b"old", "figures/gone.txt": b"old", "notebooks/01_first.ipynb": b"old",
       "provenance/01_first.json": b"{}"}
kills, code = 0, -signal.SIGKILL
while code == -signal.SIGKILL:
    shutil.rmtree(out)
    for name, text in old.items():  # what an earlier version of the notebook had made
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(text)
    jobs.publish(out, "01_first")
    assert seen() == old
    code = start(kills + 1)
    kills += code == -signal.SIGKILL
    for name, text in content(seen()).items():
        assert text in (content(whole).get(name), old.get(name)), (kills, name, text[:50])
    for path in (out / "provenance").glob("*"):
        json.loads(path.read_text())
    assert start(-1) == 0
    assert content(seen()) == content(whole) == content(files(run)), (kills, sorted(seen()))
    assert sorted(seen()) == sorted(whole), (kills, sorted(seen()))
assert code == 0
print(kills)
"""


@pytest.mark.slow
def test_a_job_killed_at_any_operation_on_files_leaves_them_old_or_new(project: Project) -> None:
    command = [sys.executable, "-c", KILLED, str(project.root), str(BATCH.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 20


@pytest.mark.slow
def test_paired_notebooks_are_reproduced_byte_for_byte(project: Project) -> None:
    noisy = GOOD.format(figure="first.txt") + (
        "\n# %%\nimport sys\n\n"
        "print('one', flush=True)\nprint('progress', file=sys.stderr, flush=True)\nprint('two')\n"
    )
    project.notebook("01_first", noisy)
    project.copy_workflow()
    command = [sys.executable, str(project.root / "workflow" / "pair.py"), "01_first"]
    path = project.root / "notebooks" / "01_first.ipynb"
    subprocess.run(command, check=True, capture_output=True)
    content = path.read_bytes()
    path.unlink()
    shown = GOOD.format(figure="x") + f"\n# %%\nprint({str(project.root)!r})\n"
    project.notebook("02_second", shown)
    refused = subprocess.run([*command, "02_second"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "02_second.py: an output shows this machine's folder" in refused.stderr
    assert not path.with_name("02_second.ipynb").exists()
    assert path.read_bytes() == content
    cells = json.loads(content)["cells"]
    assert "".join(cells[3]["source"]).startswith("# NBVAL_CHECK_OUTPUT\n")
    assert cells[3]["metadata"] == {"tags": ["summary"]}
    streams = [(o["name"], "".join(o["text"])) for o in cells[4]["outputs"]]
    assert streams == [("stdout", "one\ntwo\n")]


# ---- short tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01_first: {levle: 1.0}", ["01_first", "'levle'", "level, num_points"]),
        ("03_third: {level: 1.0}", ["'03_third'", "02_second"]),
        ("01_first: {num_points: ten}", ["01_first: num_points", "integer", "'ten'"]),
        ("01_first: {num_points: true}", ["01_first: num_points", "integer", "True"]),
        ("01_first: {num_points: 3.0}", ["01_first: num_points", "integer", "3.0"]),
        ("01_first: {level: 1e-8}", ["01_first: level", "number", "1.0e-8"]),
        ("01_first: {out_dir: x}", ["01_first", "'out_dir'", "level, num_points, seed"]),
        ("01_first: [1, 2]", ["01_first", "[1, 2]"]),
        ("- 01_first", ["'object'"]),
        ("01_first: {", ["not valid YAML"]),
        ("01_first: {level: '\xff'}", ["not valid YAML"]),
        ("01_first: {a: 1, b: 2}\n04_none: {}", ["'a'", "'b'", "04_none"]),  # all at once
    ],
)
def test_bad_profile_is_refused_before_any_work(
    project: Project, text: str, expected: list[str]
) -> None:
    project.profile("quick", text)
    said = project.refusal("--profile", "quick")
    for part in ["quick.yaml", *expected]:
        assert part in said


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("# %%\nlevel = 1\n", ['tags=["parameters"]', "found 0"]),
        ('# %% tags=["parameters"]\nlevel = 2 * 3\nout_dir = ""\n', ["parameters cell", "BinOp"]),
        ('# %% tags=["parameters"]\nimport os\nout_dir = ""\n', ["import os"]),
        ('# %% tags=["parameters"]\nlevel = 1\n', ['out_dir = ""']),
        ('# %% tags=["parameters"]\nlevel = (\n', ["parameters cell"]),
        ("# %%\nlevel = '\xff'\n", ["utf-8"]),
    ],
)
def test_bad_parameters_cell_is_refused_before_any_work(
    project: Project, cells: str, expected: list[str]
) -> None:
    project.notebook("03_bad", cells)
    said = project.refusal("--profile", "quick")
    for part in ["03_bad.py", *expected]:
        assert part in said


def test_entries_of_lists_are_of_the_default_s_type(project: Project) -> None:
    cell = 'gammas = [0.9]\nsizes = (3, 4)\nothers = []\nlabels = ["a"]\nout_dir = ""\n'
    project.notebook("01_first", f'# %% tags=["parameters"]\n{cell}')
    project.profile("quick", "01_first:\n  gammas: [1, 0.5]\n  sizes: [5]\n  others: [a, 1]\n")
    assert batch.make_plan(project.root, "quick")["notebooks"]["01_first"]["sizes"] == [5]
    wrong = "gammas: [0.9, 1e-8], sizes: [5, 0.5], labels: [b, 3]"
    project.profile("quick", f"01_first: {{{wrong}}}")
    said = project.refusal()
    assert "01_first: gammas: 1: '1e-8' is not of type 'number'; in YAML write 1.0e-8" in said
    assert "01_first: sizes: 1: 0.5 is not of type 'integer'" in said
    assert "01_first: labels: 1: 3 is not of type 'string'" in said


def test_bad_options_are_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    said = project.refusal("--profile", "quik")
    assert "unknown profile 'quik'" in said
    assert "paper, quick" in said
    assert "'09_nine'; known: 01_first, 02_second" in project.refusal("--only", "09_nine")
    assert "'09_nine'; known" in project.refusal("--only", "01_first", "09_nine")
    assert "--cores must be at least 1" in project.refusal("--cores", "0")
    monkeypatch.setenv("PATH", str(project.root))
    assert "--slurm: there is no command sbatch" in project.refusal("--slurm")


@pytest.fixture
def finished(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose first notebook is done; a stand-in wrote what a kernel would have written."""

    def execute(nb: Any, parameters: dict[str, Any], source: Path, keep: Any) -> Any:
        for name in ("a.txt", "b.txt", "sub/c.txt", "sub/d.txt"):
            path = Path(parameters["out_dir"], name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("whole " * 200)
        return nb

    monkeypatch.setattr(notebook_job, "execute", execute)
    monkeypatch.setattr(notebook_job, "provenance", lambda root: {})
    assert notebook_job.run_job(project.out(), "01_first", {})
    return project


def test_shown_files_are_not_those_that_are_kept(finished: Project) -> None:
    """They were hard links: what damaged one damaged both, and nothing was left to mend it with."""
    shown = [p for p in finished.out().rglob("*") if p.is_file() and ".runs" not in p.parts]
    assert len(shown) == 6
    for path in shown:
        kept = finished.out(".runs", "01_first", str(path.relative_to(finished.out())))
        assert path.read_bytes() == kept.read_bytes()
        assert not path.samefile(kept)
        assert path.stat().st_mtime_ns == kept.stat().st_mtime_ns


def test_the_record_has_size_and_hash_of_every_file(finished: Project) -> None:
    record = json.loads(finished.out("provenance", "01_first.json").read_text())
    assert record["figures"] == ["a.txt", "b.txt", "sub/c.txt", "sub/d.txt"]
    names = {"notebooks/01_first.ipynb", *(f"figures/{name}" for name in record["figures"])}
    assert set(record["files"]) == names
    for name, made in record["files"].items():
        content = finished.out(name).read_bytes()
        assert made == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def truncate(path: Path) -> None:
    os.truncate(path, 50)


def flip(path: Path) -> None:
    """Damage that the size does not show."""
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("file", ["provenance/01_first.json", "notebooks/01_first.ipynb"])
def test_a_damaged_file_that_is_shown_is_copied_again(
    finished: Project, file: str, damage: Callable[[Path], None]
) -> None:
    """A damaged record was a traceback for ever, and a damaged notebook was "up to date"."""
    before = finished.results()
    assert results.mend(finished.out(), "01_first") is None
    damage(finished.out(file))
    told = f"out/quick/{file} is damaged or missing: copied again from the run of 01_first"
    assert results.mend(finished.out(), "01_first") == told
    assert finished.results() == before
    assert results.mend(finished.out(), "01_first") is None


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("file", ["figures/sub/c.txt", "notebooks/01_first.ipynb"])
def test_a_damaged_file_that_is_kept_is_made_again(
    finished: Project, file: str, damage: Callable[[Path], None]
) -> None:
    damage(finished.out(".runs", "01_first", file))
    told = f"out/quick/.runs/01_first/{file} is damaged or missing: 01_first has to run again"
    assert results.mend(finished.out(), "01_first") == told
    assert not finished.results()
    assert results.state_of(finished.out(), "01_first") == "not started"


LISTS = b'{"claims": [], "figures": [], "files": '


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{}", b"[]", b"null", b"\xff", LISTS + b"3}", LISTS + b'{"a": 3}}']
)
def test_a_damaged_record_means_that_its_notebook_runs_again(
    finished: Project, text: bytes
) -> None:
    results.record_of(finished.out(), "01_first").write_bytes(text)
    told = results.mend(finished.out(), "01_first")
    assert told is not None
    file = "a" if b'"a"' in text else "provenance/01_first.json"
    assert f".runs/01_first/{file} is damaged or missing: 01_first has to run again" in told
    assert not finished.results()


def test_many_files_are_said_in_one_line(finished: Project) -> None:
    before = finished.results()
    shutil.rmtree(finished.out("figures"))
    assert results.mend(finished.out(), "01_first") == (
        "out/quick/figures/a.txt, out/quick/figures/b.txt, out/quick/figures/sub/c.txt, 1 more "
        "are damaged or missing: copied again from the run of 01_first"
    )
    assert finished.results() == before


@pytest.mark.parametrize("place", ["notebooks", "failed"])
def test_a_file_that_cannot_be_written_whole_is_not_there(
    finished: Project,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A disk that is full, or gets full: half of the text, then an error."""
    write = Path.write_text

    def write_half(path: Path, text: str, **options: Any) -> int:
        write(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    def execute(nb: Any, parameters: dict[str, Any], source: Path, keep: Any) -> Any:
        monkeypatch.setattr(Path, "write_text", write_half)
        if place == "notebooks":
            return nb
        keep(nb)
        raise RuntimeError("this one is broken")

    monkeypatch.setattr(notebook_job, "execute", execute)
    assert not notebook_job.run_job(finished.out(), "01_first", {})
    assert not finished.results()
    assert "No space left on device" in capsys.readouterr().out
    assert results.state_of(finished.out(), "01_first") == "failed"
    assert not [path for path in finished.out().rglob("*") if path.is_file()]


def test_a_slurm_job_that_does_not_end_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch waited for it for ever."""
    calls = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append(command)
        listed = f"other 3\n{batch.job_prefix(project.out())}-x 71\n"
        return subprocess.CompletedProcess(command, 0, listed, "")

    monkeypatch.setattr(batch.subprocess, "run", run)

    def sleep(seconds: float) -> None:
        assert len(calls) < 1000

    monkeypatch.setattr(batch.time, "sleep", sleep)
    with pytest.raises(batch.ProjectError, match=r"jobs 71 do not end.*`scancel --signal=KILL 71`"):
        batch.cancel_jobs(project.out())
    assert ["scancel", "71"] in calls
    assert capsys.readouterr().out == "Cancelling Slurm jobs of an interrupted run: 71\n"


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


def test_all_cores_that_may_be_used_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jmdp_lib.machine.cores", lambda: 3)
    assert batch.cores_of(argparse.Namespace(cores=None)) == 3
    assert batch.cores_of(argparse.Namespace(cores=5)) == 5


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Keep everybody from writing into a folder: root too, by a mount."""
    folder.mkdir(parents=True)
    if os.getuid() != 0:
        folder.chmod(0o555)
        yield
        return
    with mounted(folder, ["--bind", str(folder)], ["-o", "remount,ro,bind"]):
        yield


@pytest.mark.parametrize("place", ["out", "out/quick"])
def test_a_read_only_folder_is_one_line_of_error(
    project: Project, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    with read_only(project.root / place):
        assert batch.main(project.command()[2:]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert str(project.root / "out") in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "device", "message"),
    [
        ({"games": "[Pnog]"}, "cpu", "Pnog"),
        ({"games": "[Pong, pong]"}, "cpu", "distinct"),
        ({"games": "Pong"}, "cpu", "games: 'Pong' is not of type 'array'"),
        ({"seeds": "[-1]"}, "cpu", "seeds: 0: -1 is less than"),
        ({"seeds": "0"}, "cpu", "seeds: 0 is not of type 'array'"),
        ({"settings": "none.toml"}, "cpu", "quick.yaml: there is no file none.toml"),
        ({}, "toaster", "is unknown"),
    ],
)
def test_wrong_games_are_refused_before_any_work(
    games: Project, changed: dict[str, str], device: str, message: str
) -> None:
    entry = {"games": "[Pong]", "seeds": "[0]"} | changed
    games.profile("quick", "\n  ".join(["atari:", *(f"{k}: {v}" for k, v in entry.items())]))
    assert message in games.refusal("--atari", device)
    games.profile("quick", "")
    assert "needs an entry `atari:`" in games.refusal("--atari", "cpu")
