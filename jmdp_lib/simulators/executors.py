"""Work that is shared with an executor of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any, TypeVar

from jmdp_lib.machine import progress

Result = TypeVar("Result")


def in_executor(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], executor: Executor
) -> tuple[list[Result], BaseException | None]:
    """What `work` made of the jobs, in their order, by an executor of the user's.

    If a job fails, because of its own error or since its worker died, the jobs that wait are
    cancelled; what was done by then comes back, with the error.
    """
    futures: list[Future[Result]] = []
    error: BaseException | None = None
    try:
        for job in jobs:
            future = executor.submit(work, *job)
            if not isinstance(future, Future):
                raise TypeError(f"executor.submit must return a Future, got {future!r}")
            futures.append(future)
        with progress(len(jobs), "estimate_gaps", unit="chunk") as bar:
            for future in as_completed(futures):
                if future.result() is None:
                    raise TypeError("a future of the executor returned None and not what it played")
                bar.update()
    except Exception as failure:
        error = failure
    finally:
        for future in futures:
            future.cancel()
    done = [x for x in futures if x.done() and not x.cancelled() and x.exception() is None]
    results = [future.result() for future in done]
    return [result for result in results if result is not None], error
