"""Queried outcome tables for the learner, collected along uniform random rollouts.

A chunk of states is one trajectory with a random stream of its own, so results do not depend on
how many processes share the chunks. With sticky actions a state has a table for each draw of the
lottery: all of them are queried, and one of them is executed. With probability `follow_share` two
branches of a query are followed with independent actions. The states that they reach stay
correlated as long as the branches may meet again, which states drawn at random from a buffer never
show.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.files import Arrays, Flags
from experiments.processes import in_processes
from jmdp_lib import checks, randomness
from jmdp_lib.atari.env import CoupledAtari, Draw, Snapshot
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.coupled_env import Outcome

Bytes = NDArray[np.uint8]
# States per trajectory: enough to pay for the way to its start; few for evaluation, where states
# should be independent.
_CHUNK = 256
_EVALUATION_CHUNK = 4
_EVALUATION_SPACING = 100
_START_STEPS = 500  # a trajectory starts after fewer random actions than this
# Steps after a query at which its two branches are queried again: few, but early and late ones.
_AGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, eq=False)
class QueryTables(Arrays):
    """N outcome tables of queried JMDP states, m of the game's A actions in each.

    Attributes:
        num_actions: A.
        actions: (N, m) the queried actions, in increasing order.
        observations: (N, D) uint8 raw observation of the queried state: the RAM, the two paddle
            knobs and the previous action (D = 131).
        rewards: (N, m) reward of each action, without a shock.
        next_observations: (N, m, D) uint8.
        terminated: (N, m) bool: this branch ended, its continuation is worth 0.
        next_ids: (N, m) equal iff the successors are the same JMDP state, in one row or in two:
            that is where branches merge. Terminated branches are worth 0 whatever it says.
        state_ids: (N,) equal iff the queried JMDP states are; numbered as `next_ids` are.
        weights: (N,) probability of this table among the rows of its state.
        pairs: (P, 2) rows (i, j) of distinct states: where the two branches of one query stood
            some steps later (`collect` says which), with independent actions, before they met or
            one ended. Of a state with several rows, the first.
    """

    num_actions: int
    actions: Ints
    observations: Bytes
    rewards: Floats
    next_observations: Bytes
    terminated: Flags
    next_ids: Ints
    state_ids: Ints
    weights: Floats
    pairs: Ints

    @staticmethod
    def concatenate(parts: Sequence[QueryTables]) -> QueryTables:
        """One collection after the other; pairs keep pointing at their rows."""
        starts = np.cumsum([0, *(len(part.weights) for part in parts[:-1])])
        pairs = [part.pairs + start for part, start in zip(parts, starts, strict=True)]
        actions = parts[0].num_actions
        return QueryTables.joined(parts, num_actions=actions, pairs=np.concatenate(pairs))


@dataclass(frozen=True)
class Experiment:
    """A game, of which memory and paddles are seen, and the sizes of all parts.

    game, sticky: as `game` and `sticky_prob` of `CoupledAtari`.
    num_states, num_evaluation: queried states to learn from, and to compare networks at.
    actions: how many of each of the num_states are queried, drawn afresh; None: all. A few actions
        of many states cost as much as all actions of few states.
    follow_share: share of the queries of which two branches are followed. They are queried again 1,
        2, 3, 4, 6, 8, 12, ..., 64 steps later.
    spacing: steps from one queried state of a trajectory to the next.
    pairs_per_state, repeats, horizon: of the recursive pairs: action pairs of each state, how
        often each is simulated, and for how many steps.
    """

    game: str
    sticky: float = 0.0
    num_states: int = 30_000
    num_evaluation: int = 64
    actions: int | None = None
    follow_share: float = 0.05
    spacing: int = 4
    pairs_per_state: int = 4
    repeats: int = 12
    horizon: int = 300

    def __post_init__(self) -> None:
        checks.at_least("repeats", self.repeats, 3)  # a variance with its error

    def emulator(self, number: int = 0) -> CoupledAtari:
        """Emulator `number` of this process."""
        return _emulator(self.game, self.sticky, number)


@lru_cache(maxsize=4)
def _emulator(game: str, sticky: float, number: int) -> CoupledAtari:
    """They are kept: loading a ROM takes half a second."""
    return CoupledAtari(game, sticky_prob=sticky, obs="ram+paddles")


atexit.register(_emulator.cache_clear)  # else threads keep them, and ale-py complains


def draws_of(env: CoupledAtari) -> dict[int, float]:
    """Numbers of frames that the lottery of a table may repeat, with probabilities."""
    sticky, frames = env.sticky_prob, env.frame_skip
    repeats = {k: sticky**k * (1.0 - sticky) for k in range(frames)} | {frames: sticky**frames}
    return {k: prob for k, prob in repeats.items() if prob > 0.0}


def collect(experiment: Experiment, rng: RNG, processes: int) -> QueryTables:
    """Query actions at `num_states` states of random rollouts, those of followed branches included.

    Rewards are clipped to [-1, 1], as Atari's usually are.

    rng: of the rollouts. They do not depend on what is queried, so states that are held out or
        evaluated need another one.

    Example:
        >>> from experiments.atari.tables import Experiment, collect
        >>> tables = collect(Experiment("Breakout", num_states=4), rng=0, processes=1)
        >>> tables.actions.shape, tables.next_observations.shape
        ((4, 4), (4, 4, 131))
        >>> sticky = Experiment("Breakout", sticky=0.25, num_states=1)
        >>> collect(sticky, rng=0, processes=1).weights.round(3)
        array([0.75 , 0.188, 0.047, 0.012, 0.004])
    """
    return _roll_out(experiment, _CHUNK, rng, processes)[1]


def evaluation_states(
    experiment: Experiment, rng: RNG, processes: int
) -> tuple[list[Snapshot], QueryTables]:
    """`num_evaluation` nearly independent states, and the tables of each, with all actions.

    Example:
        >>> from experiments.atari.tables import Experiment, evaluation_states
        >>> breakout = Experiment("Breakout", num_evaluation=2)
        >>> starts, tables = evaluation_states(breakout, rng=0, processes=1)
        >>> len(starts), tables.rewards.shape
        (2, (2, 4))
    """
    states = replace(
        experiment,
        num_states=experiment.num_evaluation,
        actions=None,
        follow_share=0.0,
        spacing=_EVALUATION_SPACING,
    )
    return _roll_out(states, _EVALUATION_CHUNK, rng, processes, keep_snapshots=True)


def _roll_out(
    experiment: Experiment,
    chunk: int,
    rng: RNG,
    processes: int,
    keep_snapshots: bool = False,
) -> tuple[list[Snapshot], QueryTables]:
    """Trajectories of `chunk` states; the snapshots of these, if they are kept, and the tables."""
    jobs = [
        (
            experiment,
            min(chunk, experiment.num_states - first),
            randomness.seed_of(rng, first // chunk),
            keep_snapshots,
        )
        for first in range(0, experiment.num_states, chunk)
    ]
    parts = in_processes(_roll_out_trajectory, jobs, processes, f"{experiment.game} states")
    snapshots = [snapshot for part, _ in parts for snapshot in part]
    return snapshots, QueryTables.concatenate([tables for _, tables in parts])


def _roll_out_trajectory(
    experiment: Experiment, size: int, seed: np.random.SeedSequence, keep_snapshots: bool
) -> tuple[list[Snapshot], QueryTables]:
    """The snapshots, which are large, if they are kept, and the tables of `size` states."""
    trajectory = _Trajectory(experiment, size, seed)
    trajectory.roll_out()
    return trajectory.snapshots if keep_snapshots else [], trajectory.tables()


class _Trajectory:
    """Takes random actions, queries states on the way, and records them.

    missing: number of states still to be recorded. snapshots: of the queried states. rows: of their
    tables, as columns by name. pairs: rows of the two branches of a query that were followed.
    """

    def __init__(self, experiment: Experiment, size: int, seed: np.random.SeedSequence) -> None:
        self.experiment = experiment
        self.missing = size
        self.env = experiment.emulator()
        self.draws = draws_of(self.env)
        table_seed, choice_seed = seed.spawn(2)
        self.env.np_random = np.random.default_rng(table_seed)
        self.choices = np.random.default_rng(choice_seed)
        self.snapshots: list[Snapshot] = []
        self.rows: list[dict[str, Any]] = []
        self.pairs: list[list[int]] = []

    def roll_out(self) -> None:
        """Record states until there are enough; start anew where the game ends."""
        ended = True
        while self.missing:
            while ended:  # every reset is the same state: random actions make the start
                self.env.reset()
                ended = self.wander(int(self.choices.integers(_START_STEPS)))
            outcomes = self.query_and_record()
            chosen = self.pick(outcomes)
            if self.choices.random() < self.experiment.follow_share:
                a, b = self.choices.choice(len(outcomes), 2, replace=False)
                self.follow([outcomes[a].snapshot, outcomes[b].snapshot])
            self.env.restore(chosen)
            ended = chosen.over or self.wander(self.experiment.spacing - 1)

    def tables(self) -> QueryTables:
        """All that was recorded."""
        columns = {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        pairs = np.array(self.pairs, dtype=np.int64).reshape(-1, 2)
        return QueryTables(self.env.num_actions, **columns, pairs=pairs)

    def pick(self, outcomes: tuple[Outcome, ...]) -> Snapshot:
        """The state after one of the queried actions, all equally likely."""
        return outcomes[self.choices.integers(len(outcomes))].snapshot

    def wander(self, steps: int) -> bool:
        """Take uniform random actions; True if the game ended."""
        for _ in range(steps):
            action = self.choices.integers(self.env.num_actions)
            _, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                return True
        return False

    def query_and_record(self) -> tuple[Outcome, ...]:
        """Record all tables of this state, and return the outcomes of the one that was drawn."""
        here = self.env.snapshot()
        queried = list(range(self.env.num_actions))
        if (size := self.experiment.actions) is not None:
            queried = sorted(self.choices.choice(queried, size, replace=False).tolist())
        self.snapshots.append(here)
        outcomes = {}
        for repeats, prob in self.draws.items():
            self.env.redraw(Draw(repeats))
            if repeats < self.env.frame_skip:
                outcomes[repeats] = self.env.query(queried, clones=True)
            else:  # no action is obeyed: all have one outcome
                [same] = self.env.query(queried[:1], clones=True)
                outcomes[repeats] = tuple(same._replace(action=action) for action in queried)
            self.rows.append(_row(here, outcomes[repeats], prob))
        self.missing -= 1
        return outcomes[here.draw.repeats]

    def follow(self, branches: list[Snapshot]) -> None:
        """Move two branches with independent actions; query their states ever less often."""
        for age in range(1, _AGES[-1] + 1):
            left, right = branches
            if left.over or right.over or left.identity == right.identity or self.missing < 2:
                return
            rows = []
            branches = []
            for branch in (left, right):
                rows.append(len(self.rows))
                self.env.restore(branch)
                if age in _AGES:
                    branches.append(self.pick(self.query_and_record()))
                else:
                    self.wander(1)
                    branches.append(self.env.snapshot())
            if age in _AGES:
                self.pairs.append(rows)


def _row(here: Snapshot, outcomes: tuple[Outcome, ...], prob: float) -> dict[str, Any]:
    """One row of `QueryTables`; the clones are not kept, they are large."""
    after = [outcome.snapshot for outcome in outcomes]
    return {
        "actions": [outcome.action for outcome in outcomes],
        "observations": _seen(here),
        "rewards": np.clip([outcome.reward for outcome in outcomes], -1.0, 1.0),
        "next_observations": np.array([_seen(snapshot) for snapshot in after]),
        "terminated": [outcome.terminated for outcome in outcomes],
        "next_ids": [snapshot.identity for snapshot in after],
        "state_ids": here.identity,
        "weights": prob,
    }


def _seen(snapshot: Snapshot) -> Bytes:
    """Observation of a state, with its previous action, which the lottery may repeat."""
    return np.append(snapshot.observation.ravel(), np.uint8(snapshot.previous))
