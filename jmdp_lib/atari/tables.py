"""Queried outcome tables, from the emulator or from a tabular JMDP, for the learner."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import replacing
from jmdp_lib.model import JMDP

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
_PAIR_STEPS = 4  # for which `tables_of` follows two branches


class Arrays:
    """A frozen dataclass of arrays, which an .npz file holds."""

    @classmethod
    def joined(cls, parts: Sequence[Self], **given: Any) -> Self:
        """The parts, one after the other; fields in `given` are taken as they are."""
        names = vars(parts[0]).keys() - given.keys()
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names}, **given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all fields; a run that is killed leaves no half of a file."""
        with replacing(path) as part, part.open("wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; no code in the file is executed."""
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(**{name: x if x.ndim else int(x) for name, x in arrays.items()})
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} holds no {cls.__name__}: {error}") from error

    @classmethod
    def kept(cls, path: Path, make: Callable[[], Self]) -> Self:
        """What the file holds; made and saved there first if it is missing."""
        if not path.exists():
            make().save(path)
        return cls.load(path)


@dataclass(frozen=True, eq=False)
class Tables(Arrays):
    """N outcome tables of queried JMDP states, m of the game's A actions in each.

    Attributes:
        num_actions: A.
        actions: (N, m) the queried actions, in increasing order.
        observations: (N, D) uint8 raw observation of the queried state (RAM: D = 128).
        previous: (N,) previous action, part of the state; A where it is not (sticky_prob = 0).
        rewards: (N, m) reward of each action, without a shock.
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

    def __len__(self) -> int:
        return len(self.rewards)

    @staticmethod
    def concatenate(parts: Sequence[Tables]) -> Tables:
        """One collection after the other; pairs keep pointing at their rows."""
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        pairs = [part.pairs + start for part, start in zip(parts, starts, strict=True)]
        actions = parts[0].num_actions
        return Tables.joined(parts, num_actions=actions, pairs=np.concatenate(pairs))

    def first(self, count: int) -> Tables:
        """The first rows, and the pairs among them.

        Example:
            >>> from jmdp_lib.atari import Game, collect
            >>> tables = collect(Game("Breakout"), num_states=4, seed=0, processes=1)
            >>> len(tables.first(2).weights)
            2
        """
        rows = {name: array[:count] for name, array in vars(self).items() if np.ndim(array)}
        rows["pairs"] = self.pairs[(self.pairs < count).all(1)]
        return Tables(self.num_actions, **rows)

    @property
    def checksum(self) -> int:
        """Of everything: it tells one collection of tables from another."""
        found = 0
        for array in vars(self).values():
            found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
        return found


def with_shock(jm: JMDP, sigma: float) -> JMDP:
    """R(a) + sigma U with U = +-1 fair, one per table: the tables twice, at half the weight."""
    shock = checks.real("sigma", sigma)
    return JMDP.from_tables(
        np.tile(jm.table_states, 2), np.tile(jm.probs / 2, 2),
        np.concatenate([jm.rewards + shock, jm.rewards - shock]),
        np.tile(jm.next_states, (2, 1)), jm.num_states, jm.gamma,
    )  # fmt: skip


def tables_of(jm: JMDP, observations: ArrayLike, num_pairs: int = 0, seed: int = 0) -> Tables:
    """All tables of a JMDP whose states are seen as observations (S, D) uint8.

    So training can be tested on a model with a known answer. About `num_pairs` pairs are followed:
    from a uniform state, two distinct actions of one table, then up to four steps with uniform
    independent actions until the branches meet. No branch ends; absorbing states go on.
    """
    sizes: dict[str, int | None] = {"state": jm.num_states, "byte": None}
    seen = checks.integers("observations", observations, below=256, **sizes).astype(np.uint8)
    count = jm.probs.size
    return Tables(
        num_actions=jm.num_actions,
        actions=np.tile(np.arange(jm.num_actions), (count, 1)),
        observations=seen[jm.table_states],
        previous=np.full(count, jm.num_actions),
        rewards=jm.rewards,
        next_observations=seen[jm.next_states],
        next_previous=np.full(jm.next_states.shape, jm.num_actions),
        terminated=np.zeros(jm.next_states.shape, dtype=bool),
        next_ids=jm.next_states,
        state_ids=jm.table_states,
        weights=jm.probs,
        pairs=_followed(jm, num_pairs, checks.generator(seed)),
    )


def _followed(jm: JMDP, num_pairs: int, rng: np.random.Generator) -> Ints:
    """(P, 2) rows of the states where two branches of one query stood before they met."""
    found, more = [np.empty((0, 2), dtype=np.int64)], jm.num_actions > 1
    while more and sum(map(len, found)) < num_pairs:
        table = _draw(jm, rng.integers(jm.num_states, size=num_pairs), rng)
        first = rng.integers(jm.num_actions, size=num_pairs)
        other = (first + rng.integers(1, jm.num_actions, size=num_pairs)) % jm.num_actions
        ends = jm.next_states[table[:, None], np.stack([first, other], 1)]
        more = bool((ends[:, 0] != ends[:, 1]).any())  # else no two branches ever part
        for _ in range(_PAIR_STEPS):
            ends = ends[ends[:, 0] != ends[:, 1]]
            width = jm.starts[ends + 1] - jm.starts[ends]
            found.append(jm.starts[ends] + (rng.random(ends.shape) * width).astype(int))
            moved = (
                jm.next_states[_draw(jm, x, rng), rng.integers(jm.num_actions, size=len(x))]
                for x in ends.T
            )
            ends = np.stack(list(moved), 1)
    return rng.permutation(np.concatenate(found))[:num_pairs]


def _draw(jm: JMDP, states: Ints, rng: np.random.Generator) -> Ints:
    """A table of each state; the probabilities of the states before it add up to its number."""
    table = np.searchsorted(np.cumsum(jm.probs), states + rng.random(len(states)), "right")
    return np.clip(table, jm.starts[states], jm.starts[states + 1] - 1)
