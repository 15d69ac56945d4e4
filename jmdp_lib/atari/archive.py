"""Dataclasses of arrays as .npz files: whole or not there, and read without executing code."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import fields
from typing import Any, Self

import numpy as np

from jmdp_lib.files import replacing


class Archive:
    """`save` and `load` for a dataclass whose fields are all arrays or numbers."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all fields; a run that is killed leaves no half of a file."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        with replacing(path) as part, part.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        try:
            with zipfile.ZipFile(path) as parts:
                missing = sorted(
                    set(names) - {name.removesuffix(".npy") for name in parts.namelist()}
                )
            if missing:
                raise ValueError(f"{', '.join(missing)} missing")
            with np.load(path, allow_pickle=False) as file:
                return cls(**{name: file[name] for name in names})
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} holds no {cls.__name__}: {error}") from error
