"""Checkpoints of training: what they must hold, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jmdp_lib
from jmdp_lib.machine import extra

with extra("torch"):
    import torch


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint, on the CPU; its tensors only, no code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    if not isinstance(state, dict) or not isinstance(state.get("of"), dict):
        raise ValueError(f"{path} is not a checkpoint of this kind of run")
    need_fields(path, state, "network", "step", "rows")
    network = dict(zip(("sizes", "rewards", "varied"), state["network"], strict=False))
    need_fields(path, network, "sizes", "rewards", "varied", version=state.get("version"))
    return state


def need_fields(
    path: Path | str, part: Mapping[str, Any], *names: str, version: str | None = None
) -> None:
    """Refuse a part of a checkpoint that lacks fields which this version of jmdp_lib reads.

    version: the one that wrote it, unless the part itself says so; early ones did not.
    """
    missing = [repr(name) for name in names if name not in part]
    if missing:
        by = part.get("version", version)
        raise ValueError(
            f"{path} is of {f'jmdp_lib {by}' if by else 'another version of jmdp_lib'}, and this "
            f"is {jmdp_lib.__version__}: it lacks {', '.join(missing)}"
        )


def refuse_other(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to continue from files that were made with other settings, and name those."""
    different = [
        f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if different:
        raise ValueError(f"{path} is of another run: {'; '.join(different)}")
