"""Files that appear whole or not at all; results that are read-only, saved in files, and tables."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from uuid import uuid4

import numpy as np

from jmdp_lib.machine.process import extra

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`: it replaces `path` at the end, or is removed on failure.

    No other thread, process or machine uses the same one. The jobs of a batch have their own
    version in workflow/job.py, which says why.
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


def load_parts(
    path: str | os.PathLike[str], what: str, version: str, writer: str, remedy: str
) -> dict[str, Any]:
    """The parts that `save_parts` wrote, tuples for lists; no code in the file is executed.

    writer: the method that writes such files; remedy: what to do if it is of another version.
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
            f"alone: {remedy}"
        )
    return parts


def _read_parts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a file, with its arrays in their places."""
    with open(path, "rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))

    def read(part: dict[str, Any]) -> Any:
        if part.keys() == {"array"}:
            return arrays[part["array"]]
        return {name: _tuples(x) for name, x in part.items()}

    parts: dict[str, Any] = json.loads(str(arrays["header"]), object_hook=read)
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


class Saved:
    """A dataclass that is kept in one .npz file, all of its fields.

    A field that is a dataclass itself is named in `_nested`, with the function that makes it again
    from its own fields. A new field that has a default and is not in `_nested` may be missing
    in older files, which are read as before. Any other change of the fields needs another
    `_format`: older files are refused then.
    """

    _format: ClassVar[str] = "1"
    _nested: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this to one .npz file, which appears whole or not at all."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        parts = {name: getattr(self, name) for name in names}
        parts |= {name: _plain(parts[name]) for name in self._nested}
        save_parts(path, type(self).__name__, self._format, parts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; a file of another format is refused with its version."""
        name = cls.__name__
        parts = load_parts(path, name, cls._format, f"{name}.save", "make it again, and save")
        for part, make in cls._nested.items():
            if parts[part] is not None:
                parts[part] = make(**parts[part])
        return cls(**parts)


def _plain(value: Any) -> Any:
    """A dataclass as a dictionary, and those in it, too; anything else as it is."""
    if not is_dataclass(value):
        return value
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
