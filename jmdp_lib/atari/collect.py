"""Queried states along uniform random play, for training and for evaluation.

A chunk of states is one trajectory with a random stream of its own, so results do not depend on
how many processes share the chunks. With probability `follow_share` the two branches of a query
are followed with independent actions: states that one query tore apart stay correlated as long as
they may meet again, and states drawn at random from a buffer never show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari
from jmdp_lib.atari.processes import in_processes, shared_env
from jmdp_lib.atari.state import Draw, Snapshot
from jmdp_lib.atari.tables import Tables
from jmdp_lib.machine import require
from jmdp_lib.simulators import Outcome

# States per trajectory: enough to make up for the way to its start; few where they should be
# independent.
_CHUNK, _EVALUATION_CHUNK = 256, 4


@dataclass(frozen=True)
class _Job:
    """One chunk: `size` states; the rest are the arguments of `collect`."""

    seed: np.random.SeedSequence
    size: int
    game: str
    sticky_prob: float
    frame_skip: int
    obs: str
    actions: int | None
    follow: int
    follow_share: float
    spacing: int
    start_steps: int
    enumerated: bool
    keep: bool  # the snapshots


def collect(
    game: str,
    num_states: int,
    seed: int | np.random.SeedSequence,
    *,
    sticky_prob: float = 0.25,
    frame_skip: int = 4,
    obs: str = "ram",
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
    parts = _run(
        seed, _CHUNK, num_states, processes, game=game, sticky_prob=sticky_prob,
        frame_skip=frame_skip, obs=obs, actions=actions, follow=follow, follow_share=follow_share,
        spacing=spacing, start_steps=start_steps, enumerated=enumerated, keep=False,
    )  # fmt: skip
    return Tables.concatenate([tables for _, tables in parts])


def evaluation_states(
    game: str,
    num_states: int,
    seed: int | np.random.SeedSequence,
    *,
    sticky_prob: float = 0.25,
    frame_skip: int = 4,
    obs: str = "ram",
    spacing: int = 100,
    start_steps: int = 500,
    processes: int | None = None,
) -> tuple[list[Snapshot], Tables]:
    """Nearly independent states, and all tables of the first, all of the second, and so on."""
    parts = _run(
        seed, _EVALUATION_CHUNK, num_states, processes, game=game,
        sticky_prob=sticky_prob, frame_skip=frame_skip, obs=obs, actions=None, follow=0,
        follow_share=0.0, spacing=spacing, start_steps=start_steps, enumerated=True, keep=True,
    )  # fmt: skip
    snapshots = [snapshot for part, _ in parts for snapshot in part]
    return snapshots, Tables.concatenate([tables for _, tables in parts])


def _run(
    seed: int | np.random.SeedSequence, chunk: int, num_states: int, processes: int | None,
    **settings: Any,
) -> list[tuple[list[Snapshot], Tables]]:  # fmt: skip
    """Check everything, then play the chunks."""
    num_states = checks.at_least("num_states", num_states, 1)
    checks.at_least("follow", settings["follow"], 0)
    checks.probability("follow_share", settings["follow_share"])
    checks.at_least("spacing", settings["spacing"], 1)
    checks.at_least("start_steps", settings["start_steps"], 1)
    env = shared_env(*(settings[name] for name in ("game", "sticky_prob", "frame_skip", "obs")), 0)
    actions = settings["actions"]
    if actions is not None and not 2 <= checks.at_least("actions", actions, 0) <= env.num_actions:
        raise ValueError(f"actions must lie in 2..{env.num_actions}, got {actions}")
    row = env.reset()[0].size * ((actions or env.num_actions) + 1)
    rows = num_states * (len(_patterns(env)) if settings["enumerated"] else 1)
    require(2.0 * row * rows, f"{rows:,} tables of {settings['game']}")  # parts, then the whole
    sizes = [min(chunk, num_states - i) for i in range(0, num_states, chunk)]
    jobs = [_Job(checks.seed_sequence(seed, i), size, **settings) for i, size in enumerate(sizes)]
    return in_processes(_play_chunk, jobs, processes, f"{settings['game']} states")


def _patterns(env: CoupledAtari) -> list[tuple[Draw, float]]:
    """The sticky draws that differ, with their probabilities: k repeats, then the action."""
    p, n = env.sticky_prob, env.frame_skip
    law = [(Draw(k), p**k * (1.0 - p if k < n else 1.0)) for k in range(n + 1)]
    return [(draw, weight) for draw, weight in law if weight > 0]


@dataclass
class _Recorder:
    """Queries states, `actions` of each, and keeps the rows, up to `size` states."""

    env: CoupledAtari
    choices: np.random.Generator
    size: int
    actions: int | None
    enumerated: bool
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
        for draw, weight in _patterns(self.env) if self.enumerated else [(drawn, 1.0)]:
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


def _play_chunk(job: _Job) -> tuple[list[Snapshot], Tables]:
    """One trajectory, started anew where the game ends."""
    env = shared_env(job.game, job.sticky_prob, job.frame_skip, job.obs, 0)
    env.np_random, choices = (np.random.default_rng(seed) for seed in job.seed.spawn(2))
    record = _Recorder(env, choices, job.size, job.actions, job.enumerated)
    ended = True
    while record.room:
        if ended:
            _random_start(env, choices, job.start_steps)
        outcomes = record.query()
        chosen = outcomes[choices.integers(len(outcomes))].snapshot
        if choices.random() < job.follow_share:
            a, b = choices.choice(len(outcomes), 2, replace=False)
            _follow(record, outcomes[a].snapshot, outcomes[b].snapshot, job.follow, choices)
        env.restore(chosen)
        ended = chosen.over or _wander(env, choices, job.spacing - 1)
    return record.snapshots if job.keep else [], record.tables()


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
