"""Jobs that the batch sends to a real Slurm cluster of one node, and cancels."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import batch
import psutil
import pytest
from programs import finished, run
from projects import alive, wait_until
from test_batch import WAITING

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


def free_port():
    with socket.create_server(("localhost", 0)) as bound:
        return bound.getsockname()[1]


@pytest.fixture
def cluster(monkeypatch):
    """A Slurm cluster of one node, without an accounting database, with memory for one notebook."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
    missing = [name for name in programs if not shutil.which(name)]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and the packages slurm-wlm and munge; not found: {missing}")
    with (
        # not tmp_path: paths of sockets must be short
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        contextlib.ExitStack() as stack,
    ):
        place = Path(folder)
        ports = free_port(), free_port()
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
        log = stack.enter_context(open(place / "printed", "w"))
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            started = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(started.wait)
            stack.callback(started.terminate)
        idle = ["sinfo", "--noheader", "--format=%T"]
        try:
            wait_until(lambda: "idle" in finished(*idle).stdout)
        except TimeoutError:
            pytest.fail((place / "printed").read_text())
        yield


def slurm_jobs(*options):
    """State, memory and time limit of each job; by default of those alive."""
    printed = run("squeue", "--noheader", "--format=%T %m %l", *options)
    return [line.split() for line in printed.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_slurm_jobs_end_with_the_batch_and_run_with_the_next(project, tmp_path, family):
    gate, output = tmp_path / "gate", tmp_path / "output"
    project.notebook("01_first", WAITING)
    project.notebook("02_second", WAITING + "\n# %%\nraise RuntimeError")
    names = ("01_first", "02_second")
    project.profile("quick", "\n".join(f"{name}:\n  gate: '{gate}'" for name in names))
    command = project.command("--slurm", "--", "--slurm-init-seconds-before-status-checks", "2")

    def started():
        """A batch that has a job running and one waiting, as all clusters keep some waiting."""
        with open(output, "w") as file:
            running = psutil.Popen(command, stdout=file, stderr=file)
        family.append(running)
        wait_until(lambda: output.read_text().count(" has been submitted with ") == 2)
        wait_until(lambda: sorted(state for state, *_ in slurm_jobs()) == ["PENDING", "RUNNING"])
        family.extend(running.children(recursive=True))
        return running

    running = started()
    for process in filter(alive, family):
        process.kill()  # as when the login node goes down
    running.wait()
    running = started()  # not four jobs: two were cancelled
    assert "Cancelling Slurm jobs that were left: " in output.read_text()
    running.terminate()
    assert running.wait() == batch.INTERRUPTED, output.read_text()
    wait_until(lambda: not slurm_jobs() and not any(map(alive, family)))

    gate.touch()
    done = finished(*command, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED 02_second: read out/quick/failed/02_second.ipynb" in done.stdout
    assert "\nClaims: holds 1\n" in done.stdout
    assert project.out("figures", "wait.txt").read_text() == "whole"
    jobs = slurm_jobs("--states=all")
    assert [state for state, *_ in jobs].count("COMPLETED") == 1
    assert all(limits == ["4000M", "2:00:00"] for _, *limits in jobs)
