"""Work that several processes share, which end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from jmdp_lib import checks
from jmdp_lib.machine.memory import cores
from jmdp_lib.machine.messages import progress

Result = TypeVar("Result")


def in_processes(
    work: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    processes: int | None,
    label: str,
) -> list[Result]:
    """[work(*job) for job in jobs] in `processes` processes, one per core unless given.

    For what holds the GIL, so that threads would give nothing. Jobs carry their own seeds, so how
    many processes share them changes nothing. New processes are spawned, not forked, since the
    parent may run threads (numba, torch): a script must start its work under
    `if __name__ == "__main__"`. They end with this process, however it ends.
    """
    workers = cores() if processes is None else processes
    workers = min(checks.at_least("processes", workers, 1), len(jobs))
    if workers > 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker runs the script again: its parent says what is wrong
    context = multiprocessing.get_context("spawn")
    columns = zip(*jobs, strict=True)
    results: list[Result] = []
    pool = ProcessPoolExecutor(workers, context, _end_with_parent)  # starts none by itself
    try:
        with pool, progress(len(jobs), label, unit="chunk") as bar:
            for result in map(work, *columns) if workers == 1 else pool.map(work, *columns):
                results.append(result)
                bar.update()
    except BrokenProcessPool:
        raise RuntimeError(
            f"{label}: a process that was started for processes={processes} ended before its work "
            'was done. A script must do its work under `if __name__ == "__main__":`, since new '
            "processes import it. They must find the simulator and the policy in a module, not in "
            "a notebook or a shell. If that is so, it crashed: processes=1 may show why"
        ) from None
    return results


def in_executor(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], executor: Executor, label: str
) -> tuple[list[Result], BaseException | None]:
    """What `work` made of the jobs, in their order, by an executor of the user's.

    If a job fails, because of its own error or since its worker died, the jobs that wait are
    cancelled; what was done by then comes back, with the error.
    """
    futures: list[Future[Result]] = []
    error: BaseException | None = None
    try:
        futures.extend(executor.submit(work, *job) for job in jobs)
        with progress(len(jobs), label, unit="chunk") as bar:
            for future in as_completed(futures):
                future.result()
                bar.update()
    except Exception as failure:
        error = failure
    finally:
        for future in futures:
            future.cancel()
    done = [x for x in futures if x.done() and not x.cancelled() and x.exception() is None]
    return [future.result() for future in done], error


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
