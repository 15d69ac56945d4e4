"""Processes that work side by side and end with their parent, and the device that they train on."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jmdp_lib import checks
from jmdp_lib.atari.emulator import title
from jmdp_lib.machine import extra, progress

PROJECT = Path(__file__).resolve().parents[1]
sys.path.append(str(PROJECT / "workflow"))

from job import outlive_terminal, provenance  # noqa: E402

__all__ = ["outlive_terminal"]
Result = TypeVar("Result")


def end_with_parent() -> None:
    """From now on this process ends when its parent has died, even by a `kill -9`.

    A process of a pool that starts late may find its parent dead already.
    """
    started_by, parent = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        if started_by is not None:
            started_by.join()
        else:
            while os.getppid() == parent:
                time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def in_processes(
    work: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    processes: int,
    label: str,
    deadline: float = math.inf,
) -> list[Result]:
    """[work(*job) for job in jobs] in `processes` processes.

    Jobs carry their own seeds, so how many processes share them changes nothing. New processes are
    spawned, not forked, since the parent may run threads (numba, torch): a script must start its
    work under `if __name__ == "__main__"`. deadline: on the clock of `time.monotonic`; jobs that it
    finds under way end with a TimeoutError, which is raised here.
    """
    workers = min(processes, len(jobs))
    context = multiprocessing.get_context("spawn")
    columns = zip(*jobs, strict=True)
    results: list[Result] = []
    with (
        ProcessPoolExecutor(workers, context, end_with_parent) as pool,  # starts none by itself
        progress(len(jobs), label, unit="chunk") as bar,
    ):
        timed = work if deadline == math.inf else partial(_in_time, work, deadline)
        for result in map(timed, *columns) if workers == 1 else pool.map(timed, *columns):
            results.append(result)
            bar.update()
    return results


def _in_time(work: Callable[..., Result], deadline: float, *job: Any) -> Result:
    """work(*job), which ends with a TimeoutError at the deadline."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 1e-6))
    try:
        return work(*job)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def program(doc: str) -> argparse.ArgumentParser:
    """The options that all programs of experiments share."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of work in progress")
    parser.add_argument("--out", type=Path, help="folder of results; by default WORK/results")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or, say, cuda:1")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--games", nargs="+", help="any games of the emulator")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after these")
    parser.add_argument("--miniature", action="store_true", help="does all of it run?")
    return parser


def run_program(
    parser: argparse.ArgumentParser,
    words: Sequence[str] | None,
    work: Callable[[argparse.Namespace], None],
) -> None:
    """Do the work of a program by its options; an error ends it with one line.

    The work finds its games by their titles, and a deadline on the clock of `time.monotonic`.
    """
    options = parser.parse_args(words)
    options.out = options.out or options.work / "results"
    try:
        if not options.minutes > 0.0:
            raise ValueError(f"--minutes must be above 0, got {options.minutes}")
        options.deadline = time.monotonic() + 60.0 * options.minutes
        options.games = [title(game) for game in options.games or ()]
        options.seeds = [checks.at_least("--seeds", seed, 0) for seed in options.seeds or ()]
        checks.at_least("--processes", options.processes, 1)
        device = require_device(options.device)
        if device.type == "cuda":
            import torch

            torch.cuda.set_device(device.index or 0)
        work(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def made_with(options: argparse.Namespace) -> dict[str, Any]:
    """The commit, versions and machine that results come from."""
    facts = provenance(PROJECT) | {"device": "cpu"}
    if options.device != "cpu":
        import torch

        facts["device"] = torch.cuda.get_device_name()
    return facts


def require_device(name: str) -> Any:
    """The device `cpu`, `cuda` or, say, `cuda:1`; raises if the machine lacks it."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(name)):
        raise ValueError(f"device {name!r} is unknown: give 'cpu', 'cuda' or, say, 'cuda:1'")
    with extra("torch"):
        import torch  # here: processes that simulate do without it
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count() or "no"
        raise ValueError(f"device {name!r} was requested, but there is {count} GPU")
    return device
