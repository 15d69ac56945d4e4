"""Recursive-pair Monte Carlo on the emulator: true gaps, for any discount and shock.

Two branches start at one state with two actions and take uniform random actions, independently.
While they stand at the same JMDP state they read the same table; at distinct states their tables
are independent; at the same state with the same action they are one branch for good. Emulator
work is recorded once; discounts and shocks are added afterwards. Given a record (both branches'
rewards, actions and meetings) the return gap is

    G = sum_t gamma^t (r_t - r~_t) + S,    E[S | record] = 0,

where S collects the shocks sigma * U, one U per table: shared while the branches stand at
the same state, independent elsewhere. Its variance given the record is a finite sum, so
Var G = Var(first part) + E[Var(S | record)] needs no simulated shock (Rao-Blackwell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.atari.tables import Experiment
from experiments.files import Arrays, Flags
from experiments.processes import in_processes
from jmdp_lib import randomness
from jmdp_lib.atari.env import Snapshot
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import DEFAULT_COUPLING, Coupling
from jmdp_lib.model.simulator import ANY_REWARD
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.env_world import EnvironmentWorld
from jmdp_lib.simulators.rows import End, draws_of


@dataclass(frozen=True, eq=False)
class PairRecords(Arrays):
    """M pairs of branches over H steps. Two branches, b = 0 and 1, start at one state.

    Attributes:
        state_rows: (M,) which evaluation state a pair starts at.
        actions: (M, 2) first actions.
        rewards: (M, 2, H) float32 rewards, clipped to [-1, 1], without shock; 0 after an end.
        alive: (M, 2, H) bool: the branch made a transition at time t.
        same_state: (M, H) bool: both branches stand at the same JMDP state, and share a table.
    """

    state_rows: Ints
    actions: Ints
    rewards: NDArray[np.float32]
    alive: Flags
    same_state: Flags


def record_pairs(
    experiment: Experiment, starts: Sequence[Snapshot], rng: RNG, processes: int, number: int = 0
) -> PairRecords:
    """Simulate `repeats` pairs for each of `pairs_per_state` random action pairs of every start.

    starts: snapshots from `evaluation_states` of the same game; `state_rows` counts them. number:
        another one simulates the same action pairs again, independently.

    Example:
        >>> from experiments.atari.recursive_pairs import record_pairs
        >>> from experiments.atari.tables import Experiment, evaluation_states
        >>> sizes = {"num_evaluation": 1, "pairs_per_state": 1, "repeats": 4, "horizon": 20}
        >>> breakout = Experiment("Breakout", **sizes)
        >>> starts, _ = evaluation_states(breakout, rng=0, processes=1)
        >>> record_pairs(breakout, starts, rng=1, processes=1).rewards.shape
        (4, 2, 20)
    """
    jobs = [(experiment, rng, row, start, number) for row, start in enumerate(starts)]
    parts = in_processes(_simulate_state, jobs, processes, f"{experiment.game} pairs")
    return PairRecords.joined(parts)


def first_actions(
    rng: RNG, row: int, experiment: Experiment, num_actions: int, number: int = 0
) -> tuple[Ints, list[np.random.Generator]]:
    """(P, 2) the pairs of actions that `record_pairs` simulates from a state.

    Also the generators of the two branches' emulators, and of all later actions.
    """
    seeds = randomness.seed_of(rng, row).spawn(3 * (number + 1))
    streams = [np.random.default_rng(seed) for seed in seeds]
    pairs = [
        streams[2].choice(num_actions, 2, replace=False) for _ in range(experiment.pairs_per_state)
    ]
    return np.array(pairs), streams[-3:]


def _simulate_state(
    experiment: Experiment, rng: RNG, row: int, start: Snapshot, number: int
) -> PairRecords:
    """All pairs of one state."""
    horizon = experiment.horizon
    envs = [experiment.emulator(0), experiment.emulator(1)]
    num_actions = envs[0].num_actions
    chosen, streams = first_actions(rng, row, experiment, num_actions, number)
    envs[0].np_random, envs[1].np_random, choices = streams
    actions = np.repeat(chosen, experiment.repeats, axis=0)
    size = len(actions)
    records = PairRecords(
        state_rows=np.full(size, row),
        actions=actions,
        rewards=np.zeros((size, 2, horizon), np.float32),
        alive=np.zeros((size, 2, horizon), bool),
        same_state=np.zeros((size, horizon), bool),
    )
    world = EnvironmentWorld(envs[0], start)
    world.envs = envs
    for pair, first in enumerate(actions.tolist()):
        later = choices.integers(num_actions, size=(horizon, 2))
        _simulate_pair(world, records, pair, np.vstack([first, later[1:]]))
    return records


def _simulate_pair(world: EnvironmentWorld, records: PairRecords, pair: int, drawn: Ints) -> None:
    """Simulate two branches by actions (H, 2) that were drawn beforehand, and record both.

    Coalesced branches take the action of the first.
    """
    joint = Coupling.named(DEFAULT_COUPLING)
    states = world.start(2)
    alive = [0, 1]
    one = False
    for t, actions in enumerate(drawn.tolist()):
        same = len(alive) == 2 and states[0] == states[1]
        chosen = actions[:1] * 2 if one else actions
        records.same_state[pair, t] = same
        records.alive[pair, alive, t] = True
        one = same and chosen[0] == chosen[1]
        draws = draws_of(alive, states, chosen, joint)
        noise = world.envs[0].np_random
        for branches, (reward, after) in world.step(draws, joint, ANY_REWARD, noise):
            for branch in branches:
                records.rewards[pair, branch, t] = np.clip(reward, -1.0, 1.0)
                states[branch] = after
        alive = [branch for branch in alive if not isinstance(states[branch], End)]
        if not alive:
            return


def pair_gaps(records: PairRecords, cases: Sequence[tuple[float, float]]) -> pd.DataFrame:
    """Unbiased estimates for the gap Z(s, a) - Z(s, b) of each recorded state and pair of actions.

    cases: discounts, with sizes of the reward shock.

    The columns beside gamma, sigma and state: mc_mean and mc, mean and variance; mc_error, the
    standard error of mc, of the simulation at the given states and actions (it says nothing about
    other states); mc_independent, Var Z(s, a) + Var Z(s, b), the gap's variance if the two were
    independent. A part of size gamma^H, of what returns earn after the horizon H, is missing.

    Example:
        >>> from experiments.atari.recursive_pairs import pair_gaps, record_pairs
        >>> from experiments.atari.tables import Experiment, evaluation_states
        >>> sizes = {"num_evaluation": 1, "pairs_per_state": 1, "repeats": 4, "horizon": 20}
        >>> breakout = Experiment("Breakout", **sizes)
        >>> starts, _ = evaluation_states(breakout, rng=0, processes=1)
        >>> records = record_pairs(breakout, starts, rng=1, processes=1)
        >>> len(pair_gaps(records, cases=[(0.9, 0.5), (0.99, 0.5)]))
        2
    """
    gammas, sigmas = np.array(cases).T
    key = np.column_stack([records.state_rows, records.actions])
    groups, group_of_pair = np.unique(key, axis=0, return_inverse=True)
    powers = gammas ** np.arange(records.rewards.shape[2])[:, None]
    returns = np.moveaxis(records.rewards.astype(np.float64) @ powers, 2, 0)  # (C, M, 2)
    gap_rest, own_rest = _shock_variances(records, gammas, sigmas)
    frames = []
    for k, (state, *_) in enumerate(groups):
        mine = group_of_pair.ravel() == k
        estimates = _group_estimates(returns[:, mine], gap_rest[:, mine], own_rest[:, mine])
        frames.append(pd.DataFrame({"gamma": gammas, "sigma": sigmas, "state": state} | estimates))
    return pd.concat(frames, ignore_index=True)


def _group_estimates(returns: Floats, gap_rest: Floats, own_rest: Floats) -> dict[str, Floats]:
    """The estimates of `pair_gaps` for C cases, (C,) each, from the m pairs of one group.

    returns: (C, m, 2) expected given the record. gap_rest, own_rest: (C, m) and (C, m, 2) variance
    given the record, of the gap and of each branch.
    """
    first, second = np.moveaxis(returns, 2, 0).swapaxes(1, 2)  # (m, C) each
    gaps = first - second
    coupled = variance_values(gaps) + gap_rest.T
    independent = variance_values(first) + variance_values(second) + own_rest.sum(-1).T
    return {
        "mc_mean": gaps.mean(0),
        "mc": coupled.mean(0),
        "mc_independent": independent.mean(0),
        "mc_error": coupled.std(0, ddof=1) / np.sqrt(len(coupled)),
    }


def variance_values(x: Floats) -> Floats:
    """(M, ...) jackknife values of a sample (M, ...): their mean is its unbiased variance."""
    size = len(x)
    squares = (x - np.mean(x, 0)) ** 2
    return (size * squares - squares.sum(0) / (size - 1)) / (size - 2)


def _shock_variances(records: PairRecords, gammas: Floats, sigmas: Floats) -> tuple[Floats, Floats]:
    """Variance of the shocks given each record: of the gap (C, M), of each branch (C, M, 2)."""
    own = records.alive.astype(np.float64)  # (M, 2, H)
    gap = np.where(records.same_state, np.ptp(own, 1), own.sum(1))  # (M, H): one shock cancels
    powers = sigmas[:, None] ** 2 * gammas[:, None] ** (2 * np.arange(gap.shape[1]))
    return powers @ gap.T, np.moveaxis(own @ powers.T, 2, 0)
