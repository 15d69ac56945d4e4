"""Checkpoints and metrics of a run: whole or not there, and refused where they do not fit."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from jmdp_lib.atari.config import BLOCKS, Config
from jmdp_lib.files import replacing

_PARTS = {"config", "shape", "policy", "units", "step", "params", "window"}
COLUMNS = ("step", "seed", "gamma", "kind", "curve", *BLOCKS)


def save(path: Path, state: dict[str, Any]) -> None:
    """Tensors, numbers and strings only: `torch.load(weights_only=True)` reads it."""
    with replacing(path) as part:
        torch.save(state, part)


def load(path: str | Path) -> dict[str, Any]:
    """A checkpoint, on the CPU; its tensors only, no code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    if not isinstance(state, dict) or not state.keys() >= _PARTS:
        raise ValueError(f"{path} is not a checkpoint of this kind of run")
    return state


def check_fits(
    path: Path, state: dict[str, Any], config: Config, shape: dict[str, int], policy: torch.Tensor
) -> None:
    """Refuse a checkpoint of another game, shape, collection of tables, configuration or policy.

    policy: (n, A) what it does at the first states; devices may round it differently.
    """
    there = state["config"].get("name")
    if there != config.name:
        raise ValueError(f"{path} is a checkpoint of {there!r}; this run is of {config.name!r}")
    for name, value in shape.items():
        if state["shape"].get(name) != value:
            raise ValueError(
                f"{path} is a checkpoint for {name} = {state['shape'].get(name)}; "
                f"these tables have {value}"
            )
    different = config.differences(state["config"])
    if different:
        raise ValueError(f"{path} was written by another configuration: {'; '.join(different)}")
    if not torch.allclose(state["policy"], policy.cpu(), atol=1e-3):
        raise ValueError(f"{path} was written under another policy")


class Metrics:
    """A CSV with a row per member, curve and logged step, written as the run goes.

    curve "td": what is descended, of covariances C, the mean over the last log_every steps;
    "sampled": the paper's TD errors (`sampled`) of a batch of held-out states at this step;
    "expected": errors of the expected backup, of C, on held-out tables at this step;
    "expected_raw": the same in the paper's coordinates, Sigma = C + mu mu'. All mean squares.
    """

    def __init__(self, path: Path, config: Config, up_to: int | None) -> None:
        """Start afresh, or go on from a checkpoint: rows after its step are dropped."""
        self.path, self.config = path, config
        kept: list[list[str]] = []
        if up_to is not None:
            if not path.exists():
                raise ValueError(f"{path} is missing: its checkpoint cannot be gone on from")
            with path.open(newline="") as file:
                rows = [row for row in list(csv.reader(file))[1:] if len(row) == len(COLUMNS)]
            kept = [row for row in rows if int(row[0]) <= up_to]
        with replacing(path) as part:
            self._write(part, "w", [COLUMNS, *kept])

    def append(self, step: int, curve: str, blocks: torch.Tensor) -> None:
        """blocks: (len(BLOCKS), E)."""
        members = zip(self.config.members, blocks.T.tolist(), strict=True)
        seed = self.config.seed
        self._write(
            self.path, "a",
            [(step, seed, gamma, kind, curve, *values) for (gamma, kind), values in members],
        )  # fmt: skip

    @staticmethod
    def _write(path: Path, mode: str, rows: Iterable[Sequence[object]]) -> None:
        with path.open(mode, newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
