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
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari, Draw, Game, Snapshot
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
    play = partial(_play_chunk, game, actions=actions, follow=follow, follow_share=follow_share,
                   spacing=spacing, start_steps=start_steps, enumerated=enumerated)  # fmt: skip
    return _in_chunks(play, _CHUNK, num_states, seed, processes)[1]


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
    play = partial(_play_chunk, game, spacing=spacing, start_steps=start_steps, keep=True)
    return _in_chunks(play, _EVALUATION_CHUNK, num_states, seed, processes)


def _in_chunks(
    play: partial[tuple[list[Snapshot], Tables]], chunk: int, num_states: int, seed: Seed,
    processes: int | None,
) -> tuple[list[Snapshot], Tables]:  # fmt: skip
    """Check what both kinds of collection share, then play the chunks."""
    (game,), how = play.args, play.keywords
    num_states = checks.at_least("num_states", num_states, 1)
    for name in ("spacing", "start_steps"):
        checks.at_least(name, how[name], 1)
    env = emulator_of(game)
    width = env.reset()[0].size * ((how.get("actions") or env.num_actions) + 1)
    rows = num_states * (len(game.draws) if how.get("enumerated", True) else 1)
    require(2.0 * width * rows, f"{rows:,} tables of {game.name}")  # parts, then the whole
    sizes = [min(chunk, num_states - i) for i in range(0, num_states, chunk)]
    jobs = [(checks.seed_sequence(seed, i), size) for i, size in enumerate(sizes)]
    parts = in_processes(play, jobs, processes, f"{game.name} states")
    snapshots = [snapshot for part, _ in parts for snapshot in part]
    return snapshots, Tables.concatenate([tables for _, tables in parts])


@dataclass
class _Recorder:
    """Queries states, `actions` of each, and keeps the rows, up to `size` states."""

    env: CoupledAtari
    choices: np.random.Generator
    size: int
    actions: int | None
    draws: list[tuple[Draw, float]] | None  # to be enumerated; None: the visit's own
    snapshots: list[Snapshot] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """States still to be recorded."""
        return self.size - len(self.snapshots)

    def query(self) -> tuple[Outcome, ...]:
        """Record this state, and return the outcomes of the table drawn for the visit."""
        here, drawn, asked = self.env.snapshot(), self.env.draw, list(range(self.env.num_actions))
        if self.actions is not None:
            asked = sorted(self.choices.choice(asked, self.actions, replace=False).tolist())
        self.snapshots.append(here)
        found = {}
        for draw, weight in self.draws or [(drawn, 1.0)]:
            self.env.redraw(draw)
            outcomes = self.env.query(asked, clones=True)
            self.rows.append(_row(here, outcomes, weight))
            found[draw.repeats] = outcomes
        return found[drawn.repeats]

    def tables(self) -> Tables:
        """Everything recorded."""
        columns = {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        pairs = np.array(self.pairs, dtype=np.int64).reshape(-1, 2)
        return Tables(self.env.num_actions, **columns, pairs=pairs)


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


def _play_chunk(
    game: Game,
    seed: np.random.SeedSequence,
    size: int,
    *,
    spacing: int,
    start_steps: int,
    actions: int | None = None,
    follow: int = 0,
    follow_share: float = 0.0,
    enumerated: bool = True,
    keep: bool = False,
) -> tuple[list[Snapshot], Tables]:
    """One trajectory of `size` states, started anew where the game ends.

    keep: return the snapshots too, which are large. The rest are the arguments of `collect`.
    """
    env = emulator_of(game)
    env.np_random, choices = (np.random.default_rng(stream) for stream in seed.spawn(2))
    draws = game.draws if enumerated else None
    record = _Recorder(env, choices, size, actions, draws)
    ended = True
    while record.room:
        if ended:
            _random_start(env, choices, start_steps)
        outcomes = record.query()
        chosen = outcomes[choices.integers(len(outcomes))].snapshot
        if choices.random() < follow_share:
            a, b = choices.choice(len(outcomes), 2, replace=False)
            _follow(record, outcomes[a].snapshot, outcomes[b].snapshot, follow, choices)
        env.restore(chosen)
        ended = chosen.over or _wander(env, choices, spacing - 1)
    return record.snapshots if keep else [], record.tables()


def _follow(
    record: _Recorder, left: Snapshot, right: Snapshot, steps: int, choices: np.random.Generator
) -> None:
    """Move on with independent actions; query where the branches stand, ever less often."""
    for age in range(1, steps + 1):
        if left.over or right.over or left.identity == right.identity or record.room < 2:
            return
        queried = _queried(age)
        first, ends = len(record.rows), []
        for branch in (left, right):
            record.env.restore(branch)
            if queried:
                second = len(record.rows)
                outcomes = record.query()
                ends.append(outcomes[choices.integers(len(outcomes))].snapshot)
            else:
                record.env.step(choices.integers(record.env.num_actions))
                ends.append(record.env.snapshot())
        if queried:
            record.pairs.append((first, second))
        left, right = ends


def _queried(age: int) -> bool:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: pairs of every age, at the price of its logarithm."""
    while age % 2 == 0:
        age //= 2
    return age in (1, 3)


def _random_start(env: CoupledAtari, choices: np.random.Generator, start_steps: int) -> None:
    """Every reset is the same state: a random number of random actions makes the start."""
    env.reset()
    while _wander(env, choices, int(choices.integers(start_steps))):
        env.reset()


def _wander(env: CoupledAtari, choices: np.random.Generator, steps: int) -> bool:
    """Uniform random actions; whether the game ended."""
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(choices.integers(env.num_actions))
        if terminated or truncated:
            return True
    return False
