"""Recursive-pair Monte Carlo on the emulator: the sampled twin of the gap statistics.

Two branches start at one state with two actions and play uniform random actions, independently.
While they stand at the same JMDP state they read the same table; at distinct states their tables
are independent; at the same state with the same action they are one branch for good. Emulator
work is recorded once; discounts and shocks are added afterwards (`gap_estimates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.atari.env import CoupledAtari
from jmdp_lib.atari.gaps import PairRecords
from jmdp_lib.atari.processes import in_processes, shared_env
from jmdp_lib.atari.state import Snapshot
from jmdp_lib.checks import Ints


@dataclass(frozen=True)
class _Job:
    """All pairs of one state."""

    seed: np.random.SeedSequence
    row: int
    start: Snapshot
    sticky_prob: float
    frame_skip: int
    obs: str
    horizon: int
    actions: Ints | None
    pairs_per_state: int
    repeats: int


def record_pairs(
    starts: Sequence[Snapshot],
    horizon: int,
    seed: int | np.random.SeedSequence,
    *,
    sticky_prob: float = 0.25,
    frame_skip: int = 4,
    obs: str = "ram",
    pairs_per_state: int = 8,
    repeats: int = 16,
    actions: ArrayLike | None = None,
    processes: int | None = None,
) -> PairRecords:
    """Play `repeats` pairs for each of `pairs_per_state` random action pairs of every start.

    starts: of `evaluation_states`, taken with the same sticky_prob, frame_skip and obs;
        `state_rows` counts them.
    actions: (P, 2) action pairs for every state, instead of random ones.
    """
    if not starts:
        raise ValueError("starts must hold at least one snapshot, got none")
    horizon = checks.at_least("horizon", horizon, 1)
    pairs_per_state = checks.at_least("pairs_per_state", pairs_per_state, 1)
    repeats = checks.at_least("repeats", repeats, 1)
    for row, start in enumerate(starts):
        if not isinstance(start, Snapshot):
            raise TypeError(f"starts[{row}] must be a Snapshot, got {start!r}")
    env = shared_env(starts[0].game, sticky_prob, frame_skip, obs, 0)
    for row, start in enumerate(starts):
        if start.over or start.game != env.game:
            what = "has ended" if start.over else f"is of {start.game}, not of {env.game}"
            raise ValueError(f"starts[{row}] {what}")
        if start.observation.shape != env.observation_space.shape:
            raise ValueError(f"starts[{row}] was not taken with obs={obs!r}")
    fixed = None
    if actions is not None:
        fixed = checks.integers("actions", actions, "pair", "branch")
        checks.same_shape("actions", fixed.shape, (len(fixed), 2), "(P, 2)")
        outside = (fixed < 0) | (fixed >= env.num_actions)
        why = f"is not one of the {env.num_actions} actions"
        checks.refuse("actions", fixed, outside, why, ("pair", "branch"))
    settings = (sticky_prob, frame_skip, obs, horizon, fixed, pairs_per_state, repeats)
    jobs = [
        _Job(checks.seed_sequence(seed, row), row, start, *settings)
        for row, start in enumerate(starts)
    ]
    parts = in_processes(_play_state, jobs, processes, f"{env.game} pairs")
    return PairRecords(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(PairRecords))
    )


def _play_state(job: _Job) -> PairRecords:
    settings = (job.start.game, job.sticky_prob, job.frame_skip, job.obs)
    left, right = shared_env(*settings, 0), shared_env(*settings, 1)
    left.np_random, right.np_random, choices = (
        np.random.default_rng(seed) for seed in job.seed.spawn(3)
    )
    chosen = job.actions
    if chosen is None:
        drawn = [
            choices.choice(left.num_actions, 2, replace=False) for _ in range(job.pairs_per_state)
        ]
        chosen = np.array(drawn)
    actions = np.repeat(chosen, job.repeats, axis=0)
    size, steps = len(actions), job.horizon
    records = PairRecords(
        state_rows=np.full(size, job.row),
        actions=actions,
        rewards=np.zeros((size, 2, steps), np.float32),
        alive=np.zeros((size, 2, steps), bool),
        same_state=np.zeros((size, steps), bool),
        merged=np.zeros((size, steps), bool),
        played=np.zeros((size, 2, steps), np.int8),
    )
    start = job.start._replace(draw=None)  # every pair has tables of its own
    for pair in range(size):
        _play_pair(left, right, start, records, pair, choices)
    return records


def _play_pair(
    left: CoupledAtari, right: CoupledAtari, start: Snapshot, records: PairRecords, pair: int,
    choices: np.random.Generator,
) -> None:  # fmt: skip
    """Fill row `pair` of the records; each branch has an emulator, and so no state to restore."""
    steps = records.rewards.shape[2]
    plays = choices.integers(left.num_actions, size=(steps, 2))
    plays[0] = records.actions[pair]
    left.restore(start)
    alive, together, one = [True, True], True, False
    for t in range(steps):
        if together and alive[0]:
            records.same_state[pair, t] = True
            one = one or bool(plays[t, 0] == plays[t, 1])
            records.merged[pair, t] = one
            if not one:
                right.restore(left.snapshot())  # the drawn table included
        for branch, env in enumerate((left, right)):
            if not alive[branch] or (one and branch == 1):
                continue
            action = plays[t, branch]
            _, reward, terminated, truncated, _ = env.step(action)
            columns = slice(None) if one else branch
            records.alive[pair, columns, t] = True
            records.rewards[pair, columns, t] = reward
            records.played[pair, columns, t] = action
            alive[branch] = not (terminated or truncated)
        if not (alive[0] or (alive[1] and not one)):
            return
        together = one or (all(alive) and _same_state(left, right))


def _same_state(left: CoupledAtari, right: CoupledAtari) -> bool:
    """What is seen first: it is no proof of equality, but a cheap one of difference."""
    if left.previous != right.previous or not np.array_equal(left.observed, right.observed):
        return False
    return left.snapshot().identity == right.snapshot().identity
