"""What concerns the machine: memory, extras, whole files, progress, processes, compiled functions.

All of the library's compiled functions are made here, by `cached`, `hot`, `inline` or `threaded`:
kept on disk where that is possible, and on all threads where that is safe.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import stat
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Self, TypeVar
from uuid import uuid4

import numpy as np
from numba import config, njit
from numba.core import event
from numba.np.ufunc.parallel import threading_layer
from tqdm import tqdm

from jmdp_lib import checks, limits

Result = TypeVar("Result")


def available_bytes() -> int:
    """Bytes that can be taken now without swapping, within the limits of this process."""
    return limits.available_bytes()


def gibibytes(size: float) -> str:
    """A size in bytes for people."""
    return f"{size / 2**30:,.2f} GiB"


def fits(size: float) -> bool:
    """Whether so many bytes are available."""
    return size <= available_bytes()


def require(size: float, what: str, instead: str = "") -> None:
    """Refuse `what` when its `size` in bytes is more than is available; say what to do instead."""
    if not fits(size):
        raise MemoryError(
            f"{what} needs {gibibytes(size)}, available are {gibibytes(available_bytes())}"
            + f": {instead}" * bool(instead)
        )


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Around imports that a plain install lacks: a missing one names the command that installs it.

    `names` are the extras of pyproject.toml that bring what is imported:

        with extra("torch"):
            import torch

    The module keeps its type, so annotations may use it. In an `__init__.py`, one `with` goes
    around the imports of all its modules, which import as usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "jmdp_lib").startswith("jmdp_lib"):
            raise
        # An ImportError, so that an outer `extra` lets it through.
        raise ImportError(
            f"{error.name} is not installed, and this part of jmdp_lib needs it: "
            f'pip install "jmdp_lib[{",".join(names)}]"',
            name=error.name,
        ) from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`: it replaces `path` at the end, or is removed on failure.

    No other thread, process or machine uses the same one.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be written: there is no folder {target.parent}")
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def save_parts(
    path: str | os.PathLike[str], what: str, version: str, parts: dict[str, Any]
) -> None:
    """Write one .npz file, which appears whole or not at all.

    Arrays, wherever they are in the parts, stand in the file by number; all else is in its header.
    what, version: what the file says it is; `load_parts` asks for the same.
    """
    arrays = dict[str, Any]()

    def stored(value: Any) -> Any:
        """What JSON knows: the name of an array, a plain number for one of NumPy's."""
        if not isinstance(value, np.ndarray):
            return value.item()
        arrays[str(len(arrays))] = value
        return {"array": str(len(arrays) - 1)}

    header = {"file": f"{what} of jmdp_lib, format {version}", **parts}
    arrays["header"] = np.array(json.dumps(header, default=stored))
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_parts(
    path: str | os.PathLike[str], what: str, version: str, writer: str, again: str
) -> dict[str, Any]:
    """The parts that `save_parts` wrote, tuples for lists; no code in the file is executed.

    writer: the method that writes such files; again: what to do if it is of another version.
    """
    try:
        parts = _read_parts(path)
        name, found = str(parts.pop("file")).rsplit(" of jmdp_lib, format ", 1)
        if name != what:
            raise ValueError
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is no file that {writer} has written") from None
    if found != version:
        raise ValueError(
            f"{path} is {what} in format {found}; this version of jmdp_lib reads format {version} "
            f"alone: {again}"
        )
    return parts


def _read_parts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a file, with its arrays in their places."""
    with open(path, "rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))

    def read(part: dict[str, Any]) -> Any:
        if part.keys() == {"array"}:
            return arrays[part["array"]]
        return {name: tuple(x) if isinstance(x, list) else x for name, x in part.items()}

    parts: dict[str, Any] = json.loads(str(arrays["header"]), object_hook=read)
    return parts


class ReadOnly:
    """A frozen dataclass whose arrays cannot be written to, in copies and pickles either."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was cached can be worked out again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()


class Saved:
    """A dataclass that is kept in one .npz file, all of its fields."""

    _format: ClassVar[str] = "1"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this to one .npz file, which appears whole or not at all."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        parts = {name: getattr(self, name) for name in names}
        save_parts(path, type(self).__name__, self._format, parts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; a file of another format is refused with its version."""
        name = cls.__name__
        again = "make it again, and save"
        return cls(**load_parts(path, name, cls._format, f"{name}.save", again))


def output_is_seen() -> bool:
    """Whether somebody sees what goes to stderr: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress(total: int | None, name: str, unit: str = "update") -> Any:
    """A progress bar once a run takes longer than two seconds and somebody is watching."""
    return tqdm(
        total=total, desc=name, unit=unit, unit_scale=unit == "update", delay=2.0,
        disable=not output_is_seen(), leave=False, mininterval=0.5,
    )  # fmt: skip


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
    workers = limits.cores() if processes is None else processes
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


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _CompileNotice(event.Listener):
    """Says that a call compiles, which takes seconds; functions that it compiles next are silent.

    Numba sends its events only for what it really compiles, not for what it finds on disk.
    """

    depth = 0  # functions compile the functions they call
    ended = float("-inf")
    complained = False  # that what is compiled cannot be kept

    def on_start(self, event: Any) -> None:
        compiled = event.data["dispatcher"]
        ours = compiled.__module__.startswith("jmdp_lib")
        if ours and not self.depth and time.monotonic() > self.ended + 1.0:
            self.say(compiled.stats.cache_path)
        self.depth += 1

    def say(self, folder: str | None) -> None:
        """Say that a call compiles and, the first time, that the result cannot be kept for good."""
        text = "jmdp_lib is compiling this call"
        level = logging.INFO
        if folder is not None and Path(folder).parent.name != _OWN_FOLDER:
            text += ", only this once: the result is kept on disk"
        elif not self.complained:
            until = f"{Path(folder).parent} is emptied" if folder else "the next process starts"
            text += (
                f", and will again when {until}: it can write neither to its own folder nor to a "
                "home. To have it compile only once, set NUMBA_CACHE_DIR to a folder that lasts"
            )
            level = logging.WARNING
            self.complained = True
        if output_is_seen():
            print(text, file=sys.stderr, flush=True)
        else:
            logging.getLogger("jmdp_lib").log(level, text)

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        self.ended = time.monotonic()


event.register("numba:compile", _CompileNotice())


_OWN_FOLDER = f"jmdp_lib-{os.geteuid() if os.name == 'posix' else ''}"


def _own_folder() -> Path | None:
    """A temporary folder that this user alone can read and write, or None.

    Numba runs what it finds there, so a folder that somebody else may have made is not used.
    """
    if os.name != "posix":
        return None
    try:
        folder = Path(tempfile.gettempdir(), _OWN_FOLDER)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return folder if own and not found.st_mode & 0o077 else None


def cached(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's `njit(cache=True)`, which also works where Numba finds no folder for its cache.

    That is a read-only installation whose user has no home. What is compiled is then kept in a
    temporary folder of the user's own, or not at all, and `_CompileNotice` says so.
    """

    numba_config: Any = config  # whose settings are made when it is imported

    def decorate(function: Callable[..., Any]) -> Any:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~")
        try:
            if numba_config.CACHE_DIR or os.path.isabs(home):  # else Numba makes a folder named ~
                return njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator" not in str(error):
                raise
        folder = _own_folder()
        before = numba_config.CACHE_DIR
        numba_config.CACHE_DIR = str(folder or "")  # for this function: it is the user's setting
        try:
            return njit(cache=folder is not None, **options)(function)
        finally:
            numba_config.CACHE_DIR = before

    return decorate


# Loops that allocate nothing need no reference counts: without them they run six times as fast.
_NO_COUNTS: Any = {"_nrt": False}
hot: Callable[..., Any] = cached(nogil=True, error_model="numpy", **_NO_COUNTS)
inline: Callable[..., Any] = cached(error_model="numpy", inline="always")


class _Threads:
    """Numba's threads: one call at a time, since not all of its layers survive two at once.

    GNU OpenMP, the usual layer on Linux, does not survive a fork either: Numba would end the new
    process, and a pool of such processes would never return.
    """

    lock = threading.Lock()
    lost = False  # in a process that was forked from one that used GNU OpenMP

    @classmethod
    def after_fork(cls) -> None:
        """In the new process."""
        cls.lock = threading.Lock()  # a thread that was not copied may have held the old one
        with suppress(ValueError):  # no thread was started before the fork
            cls.lost |= threading_layer() == "omp"


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_Threads.after_fork)


def threaded(function: Callable[..., Any], size: Callable[..., int], least: int) -> Any:
    """The function compiled: on all threads, or on this one for arguments smaller than `least`.

    It also runs on this one where there are no threads after a fork, so that its result must not
    depend on their number.
    """
    on_all = cached(error_model="numpy", parallel=True)(function)
    copied = FunctionType(function.__code__, function.__globals__)
    copied.__qualname__ += "_alone"  # else the cache on disk would take one version for the other
    alone = cached(error_model="numpy", nogil=True)(copied)

    def run(*arguments: Any) -> Any:
        if _Threads.lost or size(*arguments) < least:
            return alone(*arguments)
        with _Threads.lock:
            return on_all(*arguments)

    run.__doc__ = function.__doc__
    return run
