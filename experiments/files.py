"""Files that appear whole or not at all, and arrays in them."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Flags = NDArray[np.bool_]


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


def write_tables(out: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Write the tables of results as NAME.csv."""
    for name, table in tables.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_whole(out / f"{name}.csv", text)


def claim(path: Path, settings: dict[str, Any]) -> None:
    """Note settings in a file of a folder, by name; refuse a folder that was made with others."""
    here = json.loads(json.dumps(settings))
    try:
        there = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if different := [name for name in here.keys() & there.keys() if here[name] != there[name]]:
        raise ValueError(f"{path.parent} has files of other settings: {', '.join(different)}")
    write_whole(path, json.dumps(there | here, indent=1) + "\n")


def save_once(path: Path, make: Callable[..., Arrays], *args: Any) -> None:
    """Write the result of `make(*args)`, if it is not there yet."""
    if not path.exists():
        make(*args).save(path)


class Arrays:
    """A frozen dataclass of arrays, which an .npz file holds."""

    @classmethod
    def joined(cls, parts: Sequence[Self], **shared: Any) -> Self:
        """The parts, one after the other; the `shared` fields are taken as they are."""
        names = vars(parts[0]).keys() - shared.keys()
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names}, **shared)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all fields; a run that is killed leaves no half of a file."""
        with replacing(path) as part, part.open("wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `save`; no code in it is executed."""
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(**{name: x if x.ndim else int(x) for name, x in arrays.items()})
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} holds no {cls.__name__}: {error}") from error
