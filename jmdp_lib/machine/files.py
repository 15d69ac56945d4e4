"""Files that appear whole or not at all; results that are read-only, saved in files, and tables."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import numpy as np

from jmdp_lib.machine.process import extra, require

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_HEADER = 2**24  # bytes: arrays are not in it


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
    path: str | os.PathLike[str],
    what: str,
    version: str,
    writer: str,
    remedy: str,
    check: Callable[[dict[str, Any]], None] = lambda outline: None,
) -> dict[str, Any]:
    """The parts that `save_parts` wrote, tuples for lists; no code in the file is executed.

    writer: the method that writes such files; remedy: what to do if it is of another version.
    check: refuses parts by the shapes and types of their arrays, before any array is read.
    """
    content = io.BytesIO(Path(path).read_bytes())
    with content_of(path, writer), zipfile.ZipFile(content) as archive:
        if archive.getinfo("header.npy").file_size > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header = str(_array(archive, "header"))
        outline = _parts(header, partial(_blank, archive))
        name, found = str(outline.pop("file")).rsplit(" of jmdp_lib, format ", 1)
        if name != what:
            raise ValueError(f"it is {name}")
        if found == version:
            check(outline)
            require(sum(member.file_size for member in archive.infolist()), f"reading {path}")
            parts = _parts(header, partial(_array, archive))
            del parts["file"]
            return parts
    raise ValueError(
        f"{path} is {what} in format {found}; this version of jmdp_lib reads format {version} "
        f"alone: {remedy}"
    )


def _parts(header: str, array: Callable[[str], Any]) -> dict[str, Any]:
    """What a header says, with arrays in their places; array: gives one by its name."""

    def read(part: dict[str, Any]) -> Any:
        if part.keys() == {"array"}:
            return array(part["array"])
        return {name: _tuples(x) for name, x in part.items()}

    parts: dict[str, Any] = json.loads(header, object_hook=read)
    return parts


def _array(archive: zipfile.ZipFile, name: str) -> Any:
    """An array of a file."""
    _blank(archive, name)  # refuses one that would take more memory than it fills
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _blank(archive: zipfile.ZipFile, name: str) -> Any:
    """Zeros of an array's shape and type, in no memory: nothing but its first bytes is read."""
    with archive.open(f"{name}.npy") as member:
        np.lib.format.read_magic(member)
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        blank = np.broadcast_to(np.zeros((), dtype), shape)
        if member.tell() + blank.nbytes != archive.getinfo(f"{name}.npy").file_size:
            raise ValueError(f"array {name} has another size than it says")
    return blank


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
