"""Work in processes: the emulator holds the GIL, so threads give nothing."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from typing import TypeVar

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari
from jmdp_lib.machine import progress

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_processes(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    processes: int | None,
    label: str,
) -> list[Result]:
    """[work(job) for job in jobs] in `processes` processes, one per core unless given.

    Jobs carry their own seeds, so how many processes share them changes nothing. New processes
    are spawned, not forked, since the parent may run threads (numba, torch): a script must start
    its work under `if __name__ == "__main__"`. They end with this process, however it ends.
    """
    workers = os.cpu_count() or 1 if processes is None else processes
    workers = min(checks.at_least("processes", workers, 1), len(jobs))
    bar = progress(len(jobs), label, unit="chunk")
    if workers == 1:
        results = []
        for job in jobs:
            results.append(work(job))
            bar.update()
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _end_with_parent) as pool:
            futures = [pool.submit(work, job) for job in jobs]
            for future in futures:
                future.add_done_callback(lambda _: bar.update())
            try:
                results = [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    bar.close()
    return results


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@lru_cache(maxsize=4)
def shared_env(
    game: str, sticky_prob: float, frame_skip: int, obs: str, number: int
) -> CoupledAtari:
    """Emulator `number` of this process for these settings: loading a ROM takes half a second."""
    return CoupledAtari(game, sticky_prob, frame_skip, obs=obs)
