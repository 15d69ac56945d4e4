"""Queried states along uniform random play, for training and for evaluation.

A chunk of states is one trajectory with a random stream of its own, so results do not depend on
how many processes share the chunks. With probability `follow_share` the two branches of a query
are followed with independent actions: states that one query tore apart stay correlated as long as
they may meet again, and states drawn at random from a buffer never show it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari, Game, Snapshot
from jmdp_lib.atari.tables import Tables
from jmdp_lib.checks import Seed
from jmdp_lib.machine import progress, require
from jmdp_lib.simulators import Outcome

Result = TypeVar("Result")
# States per trajectory: enough to make up for the way to its start; few where they should be
# independent.
_CHUNK, _EVALUATION_CHUNK = 256, 4


def in_processes(
    work: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    processes: int | None,
    label: str,
) -> list[Result]:
    """[work(*job) for job in jobs] in `processes` processes, one per core unless given.

    The emulator holds the GIL, so threads would give nothing. Jobs carry their own seeds, so how
    many processes share them changes nothing. New processes are spawned, not forked, since the
    parent may run threads (numba, torch): a script must start its work under
    `if __name__ == "__main__"`. They end with this process, however it ends.
    """
    workers = os.cpu_count() or 1 if processes is None else processes
    workers = min(checks.at_least("processes", workers, 1), len(jobs))
    context, columns, results = multiprocessing.get_context("spawn"), zip(*jobs, strict=True), []
    pool = ProcessPoolExecutor(workers, context, _end_with_parent)  # starts none by itself
    with pool, progress(len(jobs), label, unit="chunk") as bar:
        for result in map(work, *columns) if workers == 1 else pool.map(work, *columns):
            results.append(result)
            bar.update()
    return results


def _end_with_parent() -> None:
    """Let a worker end when its parent has: after a `kill -9` nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    atexit.register(emulator_of.cache_clear)  # else the thread keeps them: ale-py complains


@lru_cache(maxsize=4)
def emulator_of(game: Game, number: int = 0) -> CoupledAtari:
    """Emulator `number` of this process for a game: loading a ROM takes half a second."""
    return CoupledAtari(game.name, game.sticky_prob, game.frame_skip, obs=game.obs)


def collect(
    game: Game,
    num_states: int,
    seed: Seed,
    *,
    actions: int | None = None,
    follow: int = 64,
    follow_share: float = 0.05,
    spacing: int = 4,
    start_steps: int = 500,
    enumerated: bool = False,
    processes: int | None = None,
) -> Tables:
    """Actions queried at `num_states` states, the followed ones among them.

    seed: of the play. The same seed plays alike whatever is asked of the states on the way: states
        to be held out, or to be evaluated, need another one.
    actions: so many of each state, drawn afresh; None: all. Few actions of many states cost what
        all actions of few do.
    follow, follow_share: up to so many steps, after this share of the queries. A pair is queried
        1, 2, 3, 4, 6, 8, 12, ... steps after the query that tore it apart.
    spacing: steps from one queried state of a trajectory to the next.
    start_steps: a trajectory starts after 0 to start_steps - 1 random actions.
    enumerated: instead of one drawn table per state, all sticky patterns that differ, each with
        its probability as weight: expectations over the table are then exact.
    """
    checks.at_least("follow", follow, 0)
    checks.probability("follow_share", follow_share)
    known = emulator_of(game).num_actions
    if actions is not None and not 2 <= checks.at_least("actions", actions, 0) <= known:
        raise ValueError(f"actions must lie in 2..{known}, got {actions}")
    how = _Plan(game, spacing, start_steps, actions, follow, follow_share, enumerated)
    return _in_chunks(how, _CHUNK, num_states, seed, processes)[1]


def evaluation_states(
    game: Game,
    num_states: int,
    seed: Seed,
    *,
    spacing: int = 100,
    start_steps: int = 500,
    processes: int | None = None,
) -> tuple[list[Snapshot], Tables]:
    """Nearly independent states, and all tables of the first, all of the second, and so on."""
    how = _Plan(game, spacing, start_steps, keep=True)
    return _in_chunks(how, _EVALUATION_CHUNK, num_states, seed, processes)


@dataclass(frozen=True)
class _Plan:
    """How states are collected, as in `collect`; keep: their snapshots too, which are large."""

    game: Game
    spacing: int
    start_steps: int
    actions: int | None = None
    follow: int = 0
    follow_share: float = 0.0
    enumerated: bool = True
    keep: bool = False


def _in_chunks(
    how: _Plan, chunk: int, num_states: int, seed: Seed, processes: int | None
) -> tuple[list[Snapshot], Tables]:
    """Check what both kinds of collection share, then play the chunks."""
    checks.at_least("num_states", num_states, 1)
    checks.at_least("spacing", how.spacing, 1)
    checks.at_least("start_steps", how.start_steps, 1)
    env, name = emulator_of(how.game), how.game.name
    width = env.reset()[0].size * ((how.actions or env.num_actions) + 1)
    rows = num_states * (len(how.game.draws) if how.enumerated else 1)
    require(2.0 * width * rows, f"{rows:,} tables of {name}")  # parts, then the whole
    sizes = [min(chunk, num_states - i) for i in range(0, num_states, chunk)]
    jobs = [(how, size, checks.seed_sequence(seed, i)) for i, size in enumerate(sizes)]
    parts = in_processes(_play_chunk, jobs, processes, f"{name} states")
    snapshots = [snapshot for part, _ in parts for snapshot in part]
    return snapshots, Tables.concatenate([tables for _, tables in parts])


def _play_chunk(
    how: _Plan, size: int, seed: np.random.SeedSequence
) -> tuple[list[Snapshot], Tables]:
    """One trajectory of `size` queried states."""
    record = _Trajectory(how, size, seed)
    record.play()
    columns = {name: np.array([row[name] for row in record.rows]) for name in record.rows[0]}
    pairs = np.array(record.pairs, dtype=np.int64).reshape(-1, 2)
    tables = Tables(record.env.num_actions, **columns, pairs=pairs)
    return record.snapshots if how.keep else [], tables


class _Trajectory:
    """Plays, queries states on the way, and keeps the rows and pairs of their `Tables`."""

    def __init__(self, how: _Plan, size: int, seed: np.random.SeedSequence) -> None:
        self.how, self.size, self.env = how, size, emulator_of(how.game)
        self.env.np_random, self.choices = map(np.random.default_rng, seed.spawn(2))
        self.snapshots: list[Snapshot] = []
        self.rows: list[dict[str, Any]] = []
        self.pairs: list[tuple[int, int]] = []

    @property
    def room(self) -> int:
        """States still to be recorded."""
        return self.size - len(self.snapshots)

    def play(self) -> None:
        """Record states until there is no room; start anew where the game ends."""
        env, choices, ended = self.env, self.choices, True
        while self.room:
            while ended:  # every reset is the same state: random actions make the start
                env.reset()
                ended = self.wander(int(choices.integers(self.how.start_steps)))
            outcomes = self.query()
            chosen = outcomes[choices.integers(len(outcomes))].snapshot
            if choices.random() < self.how.follow_share:
                a, b = choices.choice(len(outcomes), 2, replace=False)
                self.follow(outcomes[a].snapshot, outcomes[b].snapshot)
            env.restore(chosen)
            ended = chosen.over or self.wander(self.how.spacing - 1)

    def wander(self, steps: int) -> bool:
        """Uniform random actions; whether the game ended."""
        for _ in range(steps):
            _, _, terminated, truncated, _ = self.env.step(
                self.choices.integers(self.env.num_actions)
            )
            if terminated or truncated:
                return True
        return False

    def query(self) -> tuple[Outcome, ...]:
        """Record this state, and return the outcomes of the table drawn for the visit."""
        here, drawn, asked = self.env.snapshot(), self.env.draw, list(range(self.env.num_actions))
        if self.how.actions is not None:
            asked = sorted(self.choices.choice(asked, self.how.actions, replace=False).tolist())
        self.snapshots.append(here)
        found = {}
        for draw, weight in self.how.game.draws if self.how.enumerated else [(drawn, 1.0)]:
            self.env.redraw(draw)
            outcomes = self.env.query(asked, clones=True)
            self.rows.append(_row(here, outcomes, weight))
            found[draw.repeats] = outcomes
        return found[drawn.repeats]

    def follow(self, left: Snapshot, right: Snapshot) -> None:
        """Move on with independent actions; query where the branches stand, ever less often."""
        for age in range(1, self.how.follow + 1):
            if left.over or right.over or left.identity == right.identity or self.room < 2:
                return
            first, ends = len(self.rows), []
            for branch in (left, right):
                self.env.restore(branch)
                if _queried(age):
                    second = len(self.rows)
                    outcomes = self.query()
                    ends.append(outcomes[self.choices.integers(len(outcomes))].snapshot)
                else:
                    self.env.step(self.choices.integers(self.env.num_actions))
                    ends.append(self.env.snapshot())
            if _queried(age):
                self.pairs.append((first, second))
            left, right = ends


def _row(here: Snapshot, outcomes: tuple[Outcome, ...], weight: float) -> dict[str, Any]:
    """One row of `Tables`; the clones are not kept, they are large."""
    after = [outcome.snapshot for outcome in outcomes]
    return {
        "actions": [outcome.action for outcome in outcomes],
        "observations": here.observation.ravel(),
        "previous": here.previous,
        "rewards": [outcome.reward for outcome in outcomes],
        "next_observations": np.array([snapshot.observation.ravel() for snapshot in after]),
        "next_previous": [snapshot.previous for snapshot in after],
        "terminated": [outcome.terminated for outcome in outcomes],
        "next_ids": [snapshot.identity for snapshot in after],
        "state_ids": here.identity,
        "weights": weight,
    }


def _queried(age: int) -> bool:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: pairs of every age, at the price of its logarithm."""
    while age % 2 == 0:
        age //= 2
    return age in (1, 3)
