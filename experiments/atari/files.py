"""Files that appear whole or not at all, and processes that end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`: it replaces `path` at the end, or is removed on failure.

    The folder is made if it is not there. No other thread, process or machine uses the same path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


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
