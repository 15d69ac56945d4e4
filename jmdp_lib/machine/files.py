"""Files that appear whole or not at all; results that are read-only, saved in files, and tables."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import numpy as np

from jmdp_lib.machine.process import extra, require

if TYPE_CHECKING:
    import pandas as pd


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
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{what} cannot be saved: {value!r} is no number, text, array or tuple")
        arrays[str(len(arrays))] = value
        return {"array": str(len(arrays) - 1)}

    header = {"file": f"{what} of jmdp_lib, format {version}", **parts}
    arrays["header"] = np.array(json.dumps(header, default=stored))
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


@contextmanager
def content_of(path: str | os.PathLike[str], writer: str) -> Iterator[None]:
    """Around what reads a file: whatever is wrong with its content is one kind of ValueError.

    writer: the method that writes such files.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # NumPy, zipfile and json have many
        raise ValueError(f"{path} is no file that {writer} has written: {error}") from None


def load_parts(
    path: str | os.PathLike[str], what: str, version: str, writer: str, remedy: str
) -> dict[str, Any]:
    """The parts that `save_parts` wrote, tuples for lists; no code in the file is executed.

    writer: the method that writes such files; remedy: what to do if it is of another version.
    """
    content = io.BytesIO(Path(path).read_bytes())
    with content_of(path, writer), np.load(content, allow_pickle=False) as archive:
        require(sum(member.file_size for member in archive.zip.infolist()), f"reading {path}")

        def read(part: dict[str, Any]) -> Any:
            if part.keys() == {"array"}:
                return archive[part["array"]]
            return {name: _tuples(value) for name, value in part.items()}

        parts: dict[str, Any] = json.loads(str(archive["header"]), object_hook=read)
        name, found = parts.pop("file").rsplit(" of jmdp_lib, format ", 1)
        if name != what:
            raise ValueError(f"it is {name}")
    if found != version:
        raise ValueError(
            f"{path} is {what} in format {found}; this version of jmdp_lib reads format {version} "
            f"alone: {remedy}"
        )
    return parts


def _tuples(value: Any) -> Any:
    """Tuples for lists, inside others too."""
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def table(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A pandas table. Pandas is imported only now: a plain install does without it."""
    with extra("figures"):
        import pandas as pd
    return pd.DataFrame(columns)


def printed_names(things: Sequence[Any]) -> Any:
    """(m,) what tables and files call things: their numbers, or what they print as."""
    numbered = all(isinstance(thing, int | np.integer) for thing in things)
    return np.array([*things] if numbered else [repr(thing) for thing in things])


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
