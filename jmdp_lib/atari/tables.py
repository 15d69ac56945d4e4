"""Queried outcome tables for the learner, collected along uniform random play or from a JMDP.

A chunk of states is one trajectory with a random stream of its own, so results do not depend on
how many processes share the chunks. With probability `follow_share` two branches of a query are
followed with independent actions. The states that they reach stay correlated as long as the
branches may meet again, which states drawn at random from a buffer never show.
"""

from __future__ import annotations

import atexit
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari, Game, Snapshot
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.machine import in_processes, replacing, require
from jmdp_lib.model import JMDP
from jmdp_lib.model.queries import Outcome

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
_PAIR_STEPS = 4  # for which `tables_of` follows two branches
# States per trajectory: enough to pay for the way to its start; few for evaluation, where states
# should be independent.
_CHUNK, _EVALUATION_CHUNK, _EVALUATION_SPACING = 256, 4, 100
_START_STEPS = 500  # a trajectory starts after fewer random actions than this
# Steps after a query at which its two branches are queried again: few, but early and late ones.
_AGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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


@lru_cache(maxsize=4)
def emulator_of(game: Game, number: int = 0) -> CoupledAtari:
    """Emulator `number` of this process for a game: loading a ROM takes half a second."""
    return CoupledAtari(game.name, game.sticky_prob, game.frame_skip, obs=game.obs)


atexit.register(emulator_of.cache_clear)  # else threads keep them, and ale-py complains


def collect(
    game: Game,
    num_states: int,
    seed: Seed,
    *,
    actions: int | None = None,
    follow_share: float = 0.05,
    spacing: int = 4,
    enumerated: bool = False,
    processes: int | None = None,
) -> Tables:
    """Query actions at `num_states` states of random play, those of followed branches included.

    Rewards are clipped to [-1, 1], as Atari's usually are.

    seed: of the play. The play does not depend on what is queried, so states that are held out or
        evaluated need another seed.
    actions: how many actions of each state are queried, drawn afresh; None: all. A few actions of
        many states cost as much as all actions of few states.
    follow_share: share of the queries of which two branches are followed. They are queried again 1,
        2, 3, 4, 6, 8, 12, ..., 64 steps later.
    spacing: steps from one queried state of a trajectory to the next.
    enumerated: instead of one drawn table per state, all sticky patterns that differ, each with
        its probability as weight: expectations over the table are then exact.

    Example:
        >>> from jmdp_lib.atari import Game, Tables, collect
        >>> tables = collect(Game("Breakout"), num_states=4, seed=0, processes=1)
        >>> tables.actions.shape, tables.next_observations.shape
        ((4, 4), (4, 4, 128))
        >>> len(Tables.concatenate([tables, tables]).weights)
        8
    """
    checks.probability("follow_share", follow_share)
    known = emulator_of(game).num_actions
    if actions is not None and not 2 <= checks.at_least("actions", actions, 0) <= known:
        raise ValueError(f"actions must lie in 2..{known}, got {actions}")
    how = _Trajectory(game, spacing, enumerated, actions, follow_share)
    return _in_chunks(how, _CHUNK, num_states, seed, processes)[1]


def evaluation_states(
    game: Game, num_states: int, seed: Seed, *, processes: int | None = None
) -> tuple[list[Snapshot], Tables]:
    """Nearly independent states, and all their tables, state by state.

    Example:
        >>> from jmdp_lib.atari import Game, evaluation_states
        >>> starts, tables = evaluation_states(Game("Breakout"), num_states=1, seed=0, processes=1)
        >>> len(starts), len(tables.weights), round(float(tables.weights.sum()), 6)
        (1, 5, 1.0)
    """
    how = _Trajectory(game, _EVALUATION_SPACING, enumerated=True, keep=True)
    return _in_chunks(how, _EVALUATION_CHUNK, num_states, seed, processes)


def _in_chunks(
    how: _Trajectory, chunk: int, num_states: int, seed: Seed, processes: int | None
) -> tuple[list[Snapshot], Tables]:
    """Check what both kinds of collection share, then play the chunks."""
    checks.at_least("num_states", num_states, 1)
    checks.at_least("spacing", how.spacing, 1)
    env, name = emulator_of(how.game), how.game.name
    asked, drawn = how.actions or env.num_actions, len(how.game.draws) if how.enumerated else 1
    rows, width = num_states * drawn, env.reset()[0].size * (asked + 1) + 33 * asked + 40
    played = min(chunk, num_states) * (3072.0 + width * drawn)  # as objects, one chunk at a time
    require(2.25 * width * rows + played, f"{rows:,} tables of {name}")  # parts, then the whole
    sizes = [min(chunk, num_states - i) for i in range(0, num_states, chunk)]
    jobs = [(how, size, checks.seed_sequence(seed, i)) for i, size in enumerate(sizes)]
    parts = in_processes(_Trajectory.play, jobs, processes, f"{name} states")
    snapshots = [snapshot for part, _ in parts for snapshot in part]
    return snapshots, Tables.concatenate([tables for _, tables in parts])


@dataclass
class _Trajectory:
    """Plays, queries states on the way, and keeps the rows and pairs of their `Tables`.

    Fields as in `collect`; keep: the snapshots of the states too, which are large.
    """

    game: Game
    spacing: int
    enumerated: bool
    actions: int | None = None
    follow_share: float = 0.0
    keep: bool = False

    def play(self, size: int, seed: np.random.SeedSequence) -> tuple[list[Snapshot], Tables]:
        """Record `size` states; start anew where the game ends."""
        self.size, self.env = size, emulator_of(self.game)
        self.env.np_random, self.choices = map(np.random.default_rng, seed.spawn(2))
        self.snapshots, self.rows = list[Snapshot](), list[dict[str, Any]]()
        self.pairs, ended = list[tuple[int, int]](), True
        while self.room:
            while ended:  # every reset is the same state: random actions make the start
                self.env.reset()
                ended = self.wander(int(self.choices.integers(_START_STEPS)))
            outcomes = self.query()
            chosen = outcomes[self.choices.integers(len(outcomes))].snapshot
            if self.choices.random() < self.follow_share:
                a, b = self.choices.choice(len(outcomes), 2, replace=False)
                self.follow(outcomes[a].snapshot, outcomes[b].snapshot)
            self.env.restore(chosen)
            ended = chosen.over or self.wander(self.spacing - 1)
        columns = {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        pairs = np.array(self.pairs, dtype=np.int64).reshape(-1, 2)
        tables = Tables(self.env.num_actions, **columns, pairs=pairs)
        return self.snapshots if self.keep else [], tables

    @property
    def room(self) -> int:
        """States still to be recorded."""
        return self.size - len(self.snapshots)

    def wander(self, steps: int) -> bool:
        """Uniform random actions; whether the game ended."""
        for _ in range(steps):
            action = self.choices.integers(self.env.num_actions)
            _, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                return True
        return False

    def query(self) -> tuple[Outcome, ...]:
        """Record this state, and return the outcomes of the table drawn for the visit."""
        here, drawn, asked = self.env.snapshot(), self.env.draw, list(range(self.env.num_actions))
        if self.actions is not None:
            asked = sorted(self.choices.choice(asked, self.actions, replace=False).tolist())
        self.snapshots.append(here)
        found = {}
        for draw, weight in self.game.draws if self.enumerated else [(drawn, 1.0)]:
            self.env.redraw(draw)
            found[draw] = outcomes = self.env.query(asked, clones=True)
            self.rows.append(_row(here, outcomes, weight))
        return found[drawn]

    def follow(self, left: Snapshot, right: Snapshot) -> None:
        """Move on with independent actions; query where the branches stand, ever less often."""
        for age in range(1, _AGES[-1] + 1):
            if left.over or right.over or left.identity == right.identity or self.room < 2:
                return
            rows, ends = [], []
            for branch in (left, right):
                self.env.restore(branch)
                if age in _AGES:
                    rows.append(len(self.rows))
                    outcomes = self.query()
                    ends.append(outcomes[self.choices.integers(len(outcomes))].snapshot)
                else:
                    self.wander(1)
                    ends.append(self.env.snapshot())
            if rows:
                self.pairs.append((rows[0], rows[1]))
            left, right = ends


def _row(here: Snapshot, outcomes: tuple[Outcome, ...], weight: float) -> dict[str, Any]:
    """One row of `Tables`; the clones are not kept, they are large."""
    after = [outcome.snapshot for outcome in outcomes]
    return {
        "actions": [outcome.action for outcome in outcomes],
        "observations": here.observation.ravel(),
        "previous": here.previous,
        "rewards": np.clip([outcome.reward for outcome in outcomes], -1.0, 1.0),
        "next_observations": np.array([snapshot.observation.ravel() for snapshot in after]),
        "next_previous": [snapshot.previous for snapshot in after],
        "terminated": [outcome.terminated for outcome in outcomes],
        "next_ids": [snapshot.identity for snapshot in after],
        "state_ids": here.identity,
        "weights": weight,
    }


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
