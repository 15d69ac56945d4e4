"""Dataclasses of arrays as .npz files: whole or not there, and read without executing code."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np


class Archive:
    """`save` and `load` for a dataclass whose fields are all arrays or numbers."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a temporary name first: a run that is killed leaves no half of a file."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        with np.load(path, allow_pickle=False) as file:
            missing = sorted(set(names) - set(file.files))
            if missing:
                raise ValueError(f"{path} holds no {cls.__name__}: {', '.join(missing)} missing")
            return cls(**{name: file[name] for name in names})
