"""Programs that this one starts, waits for, and ends with all that they have started."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import psutil

INTERRUPTED = 130  # the exit code


def on_signals(handler: Any) -> None:
    """Handle Ctrl-C and SIGTERM in the same way."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handler)


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """All processes that a process has started, directly or not."""
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def stop(program: psutil.Popen, patience: float) -> None:
    """Ask a program and its family to end; those that have not after `patience` s are killed.

    The program gets SIGINT, the others SIGTERM: Snakemake cancels its Slurm jobs on SIGINT. On
    SIGTERM it would wait for them.
    """
    family = family_of(program)
    with contextlib.suppress(psutil.NoSuchProcess):
        program.send_signal(signal.SIGINT)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    left = psutil.wait_procs([program, *family], timeout=patience)[1]
    killed = [*left, *(child for parent in left for child in family_of(parent))]
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(killed, timeout=patience)  # a process is there until its memory is free


def wait_for(program: psutil.Popen, patience: float) -> int:
    """Wait for the end of a program, or for a signal, which ends it; its code or INTERRUPTED."""
    try:
        return int(program.wait())
    except KeyboardInterrupt:
        on_signals(signal.SIG_IGN)  # a second one must not stop the tidying up
        stop(program, patience)
        return INTERRUPTED
