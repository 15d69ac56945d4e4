"""Recursive-pair Monte Carlo on the emulator: what gaps really are, for any discount and shock.

Two branches start at one state with two actions and play uniform random actions, independently.
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
from numpy.typing import ArrayLike, NDArray

from experiments.atari.tables import Game, emulator_of
from experiments.files import Arrays, Flags
from experiments.processes import in_processes
from jmdp_lib import checks
from jmdp_lib.atari.env import Snapshot
from jmdp_lib.checks import RNG, Floats, Ints
from jmdp_lib.simulators.rows import EnvironmentPlayer


@dataclass(frozen=True, eq=False)
class PairRecords(Arrays):
    """M pairs of branches over H steps. Two branches, b = 0 and 1, start at one state.

    Attributes:
        state_rows: (M,) which evaluation state a pair starts at.
        actions: (M, 2) first actions.
        rewards: (M, 2, H) float32 rewards, clipped to [-1, 1], without shock; 0 after an end.
        alive: (M, 2, H) bool: the branch made a transition at time t.
        same_state: (M, H) bool: both branches stand at the same JMDP state, and share a table.

    Example:
        >>> from experiments.atari.recursive_pairs import record_pairs
        >>> from experiments.atari.tables import Game
        >>> from jmdp_lib.atari import CoupledAtari
        >>> env = CoupledAtari("Breakout", sticky_prob=0.0)
        >>> _ = env.reset()
        >>> here = [env.snapshot()]
        >>> game = Game("Breakout")
        >>> records = record_pairs(game, here, 5, 0, pairs_per_state=2, processes=1)
        >>> records.rewards.shape
        (32, 2, 5)
    """

    state_rows: Ints
    actions: Ints
    rewards: NDArray[np.float32]
    alive: Flags
    same_state: Flags


def record_pairs(
    game: Game,
    starts: Sequence[Snapshot],
    horizon: int,
    rng: RNG,
    *,
    pairs_per_state: int = 8,
    repeats: int = 16,
    processes: int | None = None,
) -> PairRecords:
    """Play `repeats` pairs for each of `pairs_per_state` random action pairs of every start.

    starts: snapshots from `evaluation_states` of the same game; `state_rows` counts them.
    horizon: steps of every pair.

    Example:
        >>> from experiments.atari.recursive_pairs import record_pairs
        >>> from experiments.atari.tables import Game, evaluation_states
        >>> game = Game("Breakout")
        >>> starts, _ = evaluation_states(game, num_states=1, rng=0, processes=1)
        >>> records = record_pairs(game, starts, 20, 1, pairs_per_state=1, repeats=4, processes=1)
        >>> records.rewards.shape
        (4, 2, 20)
    """
    if not starts:
        raise ValueError("starts must hold at least one snapshot, got none")
    checks.at_least("horizon", horizon, 1)
    sizes = (horizon, pairs_per_state, repeats)
    jobs = [(game, sizes, rng, row, start) for row, start in enumerate(starts)]
    parts = in_processes(_play_state, jobs, processes, f"{game.name} pairs")
    return PairRecords.joined(parts)


def first_actions(
    rng: RNG, row: int, num_actions: int, pairs_per_state: int
) -> tuple[Ints, list[np.random.Generator]]:
    """(P, 2) the pairs of actions that `record_pairs` plays from a state.

    Also the generators of the two branches' emulators, and of all later actions.
    """
    streams = [np.random.default_rng(s) for s in checks.seed_of(rng, row).spawn(3)]
    chosen = [streams[2].choice(num_actions, 2, replace=False) for _ in range(pairs_per_state)]
    return np.array(chosen), streams


def _play_state(
    game: Game, sizes: tuple[int, int, int], rng: RNG, row: int, start: Snapshot
) -> PairRecords:
    """All pairs of one state; sizes: horizon, pairs_per_state and repeats of `record_pairs`."""
    horizon, pairs_per_state, repeats = sizes
    envs = [emulator_of(game, 0), emulator_of(game, 1)]
    num_actions = envs[0].num_actions
    chosen, streams = first_actions(rng, row, num_actions, pairs_per_state)
    envs[0].np_random, envs[1].np_random, choices = streams
    actions = np.repeat(chosen, repeats, axis=0)
    size = len(actions)
    records = PairRecords(
        state_rows=np.full(size, row),
        actions=actions,
        rewards=np.zeros((size, 2, horizon), np.float32),
        alive=np.zeros((size, 2, horizon), bool),
        same_state=np.zeros((size, horizon), bool),
    )
    player = EnvironmentPlayer(start, envs)
    for pair, first in enumerate(actions.tolist()):
        later = choices.integers(num_actions, size=(horizon, 2))
        _play_pair(player, records, pair, np.vstack([first, later[1:]]))
    return records


def _play_pair(player: EnvironmentPlayer, records: PairRecords, pair: int, drawn: Ints) -> None:
    """Play two branches by actions (H, 2) that were drawn beforehand, and record what they do.

    Branches that are one take the action of the first.
    """
    player.extremes = (0.0, 0.0)
    states = player.starts(2, 1)
    alive = [True, True]
    one = False
    for t, actions in enumerate(drawn.tolist()):
        same = all(alive) and states[0] == states[1]
        chosen = actions[:1] * 2 if one else actions
        records.same_state[pair, t] = same
        records.alive[pair, :, t] = alive
        one = same and chosen[0] == chosen[1]
        player.states, player.actions, player.alive = states, chosen, alive
        rewards, after, over, *_ = player.step([same])
        records.rewards[pair, alive, t] = np.clip(rewards, -1.0, 1.0)[alive]
        states = after
        alive = [lives and not ends for lives, ends in zip(alive, over, strict=True)]
        if not any(alive):
            return


@dataclass(frozen=True, eq=False)
class PairGaps:
    """Unbiased estimates for C discounts, with their shocks, and K groups of pairs.

    A group has one state and two actions.

    Attributes:
        mean, variance: (C, K) of G = Z(s, a) - Z(s, b).
        variance_error: (C, K) standard error, of the simulation at the given states and actions; it
            says nothing about other states.
        independent: (C, K) $Var Z(s, a) + Var Z(s, b)$, the gap's variance if the two were
            independent.
        state_rows, actions: (K,) and (K, 2).
    """

    mean: Floats
    variance: Floats
    variance_error: Floats
    independent: Floats
    state_rows: Ints
    actions: Ints


def pair_gaps(records: PairRecords, gammas: ArrayLike, sigma: ArrayLike = 0.0) -> PairGaps:
    """Gap mean and variance of every (state, actions), each with three pairs or more.

    gammas: (C,) discounts.
    sigma: of the reward shock, one or (C,).
    A part of size $gamma^H$, of what returns earn after the horizon $H$, is missing.

    Example:
        >>> from experiments.atari.recursive_pairs import pair_gaps, record_pairs
        >>> from experiments.atari.tables import Game, evaluation_states
        >>> game = Game("Breakout")
        >>> starts, _ = evaluation_states(game, num_states=1, rng=0, processes=1)
        >>> records = record_pairs(game, starts, 20, 1, pairs_per_state=1, repeats=4, processes=1)
        >>> found = pair_gaps(records, gammas=[0.9, 0.99], sigma=0.5)
        >>> found.variance.shape
        (2, 1)
    """
    gammas = np.array(
        [checks.discount(gamma) for gamma in checks.floats("gammas", gammas, "gamma")]
    )
    groups, group_of_pair = _groups(records)
    powers = gammas ** np.arange(records.rewards.shape[2])[:, None]
    returns = np.moveaxis(records.rewards.astype(np.float64) @ powers, 2, 0)  # (C, M, 2)
    gap_rest, own_rest = _shock_variances(records, gammas, sigma)
    estimates = []
    for k in range(len(groups)):
        mine = group_of_pair == k
        estimates.append(_group_estimates(returns[:, mine], gap_rest[:, mine], own_rest[:, mine]))
    mean, variance, error, apart = (np.stack(part, 1) for part in zip(*estimates, strict=True))
    return PairGaps(mean, variance, error, apart, groups[:, 0], groups[:, 1:])


def _groups(records: PairRecords) -> tuple[Ints, Ints]:
    """(K, 3) state row and actions of every group; (M,) the group of every pair."""
    key = np.column_stack([records.state_rows, records.actions])
    groups, group, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    if counts.min() < 3:
        s, a, b = groups[counts.argmin()]
        raise ValueError(
            f"a variance with its error needs three pairs or more: state row {s}, actions "
            f"({a}, {b}) has {counts.min()}"
        )
    return groups, group.ravel()


def _group_estimates(returns: Floats, gap_rest: Floats, own_rest: Floats) -> list[Floats]:
    """The first four estimates of `PairGaps`, (C,) each, from the m pairs of one group.

    returns: (C, m, 2) expected given the record. gap_rest, own_rest: (C, m) and (C, m, 2) variance
    given the record, of the gap and of each branch.
    """
    first, second = np.moveaxis(returns, 2, 0).swapaxes(1, 2)  # (m, C) each
    gaps = first - second
    coupled = variance_values(gaps) + gap_rest.T
    independent = variance_values(first) + variance_values(second) + own_rest.sum(-1).T
    error = coupled.std(0, ddof=1) / np.sqrt(len(coupled))
    return [gaps.mean(0), coupled.mean(0), error, independent.mean(0)]


def variance_values(x: Floats) -> Floats:
    """(M, ...) jackknife values of a sample (M, ...): their mean is its unbiased variance."""
    size = len(x)
    squares = (x - np.mean(x, 0)) ** 2
    return (size * squares - squares.sum(0) / (size - 1)) / (size - 2)


def _shock_variances(
    records: PairRecords, gammas: Floats, sigma: ArrayLike
) -> tuple[Floats, Floats]:
    """Variance of the shocks given each record: of the gap (C, M), of each branch (C, M, 2)."""
    own = records.alive.astype(np.float64)  # (M, 2, H)
    gap = np.where(records.same_state, np.ptp(own, 1), own.sum(1))  # (M, H): one shock cancels
    shock = checks.floats("sigma", np.broadcast_to(sigma, gammas.shape), "gamma")
    powers = shock[:, None] ** 2 * gammas[:, None] ** (2 * np.arange(gap.shape[1]))
    return powers @ gap.T, np.moveaxis(own @ powers.T, 2, 0)
