"""Queried outcome tables: what a simulator hands to learning."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jmdp_lib.checks import Floats, Ints


@dataclass(frozen=True, eq=False)
class Tables:
    """N queried JMDP states: one drawn outcome table each, all A actions.

    observations: (N, D) uint8 raw observation (RAM: D = 128) of the queried state.
    previous: (N,) previous action, part of the JMDP state; A where there is none.
    rewards: (N, A) raw reward of each action (not clipped, without shock).
    next_observations: (N, A, D) uint8; next_previous: (N, A).
    terminated: (N, A) bool: that branch ended (its continuation value is 0).
    same: (N, A) the smallest action whose successor is the same JMDP state. Two actions a, b merge
        iff same[n, a] == same[n, b]; two ended branches both have value 0, whatever `same` says.
    state_ids: (N,) equal iff the queried JMDP states are equal.
    weights: (N,) probability of this table among the rows with its state id: 1 for a sampled
        table, the lottery's probability where all its outcomes are enumerated.
    pairs: (P, 2) rows (i, j) of distinct states: where the two branches of one query stood after
        1..L further steps with independent actions, until they merge or one ends.
    num_actions: A.
    """

    observations: NDArray[np.uint8]
    previous: Ints
    rewards: Floats
    next_observations: NDArray[np.uint8]
    next_previous: Ints
    terminated: NDArray[np.bool_]
    same: Ints
    state_ids: Ints
    weights: Floats
    pairs: Ints
    num_actions: int

    def save(self, path: str | Path) -> None:
        """One .npz, complete or not there at all."""
        part = Path(f"{path}.part")
        with part.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | Path) -> Tables:
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            missing = [f.name for f in fields(cls) if f.name not in stored]
            if missing:
                raise ValueError(f"{path} holds no tables: {', '.join(missing)} missing")
            arrays = {f.name: stored[f.name] for f in fields(cls)}
        return cls(**{**arrays, "num_actions": int(arrays["num_actions"])})
