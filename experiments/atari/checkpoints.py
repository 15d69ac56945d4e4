"""Checkpoints of training: what they must hold, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jmdp_lib.machine import extra

with extra("torch"):
    import torch


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint, on the CPU; its tensors only, no code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    if not isinstance(state, dict) or state.keys() != {"of", "network", "params"}:
        raise ValueError(f"{path} is not a checkpoint of this kind of run")
    return state


def refuse_other(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to continue from files that were made with other settings, and name those."""
    different = [
        f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if different:
        raise ValueError(f"{path} is of another run: {'; '.join(different)}")
