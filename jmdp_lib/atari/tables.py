"""Queried outcome tables: what the emulator hands to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.atari.archive import Archive
from jmdp_lib.checks import Floats, Ints

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tables(Archive):
    """N outcome tables of queried JMDP states, m of the game's A actions in each.

    Attributes:
        num_actions: A.
        actions: (N, m) the queried actions, in increasing order.
        observations: (N, D) uint8 raw observation of the queried state (RAM: D = 128).
        previous: (N,) previous action, part of the state; A where it is not (sticky_prob = 0).
        rewards: (N, m) raw emulator reward of each action, neither clipped nor shocked.
        next_observations: (N, m, D) uint8.
        next_previous: (N, m).
        terminated: (N, m) bool: this branch ended, its continuation is worth 0.
        next_ids: (N, m) equal iff the successors are the same JMDP state, in one row or in two:
            that is where branches merge. Terminated branches are worth 0 whatever it says.
        state_ids: (N,) equal iff the queried JMDP states are; numbered as `next_ids` are.
        weights: (N,) probability of this table among the rows of its state: 1 for a drawn table,
            the probability of the sticky pattern where all patterns are enumerated.
        pairs: (P, 2) rows (i, j) of distinct states: where the two branches of one query stood
            some steps later (`collect` says which), with independent actions, before they met or
            one ended. Of a state with several rows, the first.
    """

    num_actions: int
    actions: Ints
    observations: Bytes
    previous: Ints
    rewards: Floats
    next_observations: Bytes
    next_previous: Ints
    terminated: Flags
    next_ids: Ints
    state_ids: Ints
    weights: Floats
    pairs: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_actions", int(self.num_actions))  # an array in a file
        for name, axes in (("rewards", "(N, m)"), ("observations", "(N, D)")):
            if np.ndim(getattr(self, name)) != 2:
                found = np.shape(getattr(self, name))
                raise ValueError(f"{name} must have shape {axes}, got {found}")
        (n, m), d = np.shape(self.rewards), np.shape(self.observations)[1]
        for name, shape, meaning in (
            ("actions", (n, m), "(N, m)"),
            ("observations", (n, d), "(N, D)"),
            ("previous", (n,), "(N,)"),
            ("next_observations", (n, m, d), "(N, m, D)"),
            ("next_previous", (n, m), "(N, m)"),
            ("terminated", (n, m), "(N, m)"),
            ("next_ids", (n, m), "(N, m)"),
            ("state_ids", (n,), "(N,)"),
            ("weights", (n,), "(N,)"),
            ("pairs", (len(self.pairs), 2), "(P, 2)"),
        ):
            checks.same_shape(name, getattr(self, name).shape, shape, meaning)

    def __len__(self) -> int:
        return len(self.rewards)

    @staticmethod
    def concatenate(parts: Sequence[Tables]) -> Tables:
        """One collection after the other; pairs keep pointing at their rows."""
        joined: dict[str, Any] = {
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(Tables)
            if f.name not in ("num_actions", "pairs")
        }
        offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
        pairs = [part.pairs + start for part, start in zip(parts, offsets, strict=True)]
        return Tables(parts[0].num_actions, **joined, pairs=np.concatenate(pairs))
