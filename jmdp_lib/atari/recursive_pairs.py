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
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.atari.env import Game, Snapshot
from jmdp_lib.atari.tables import Arrays, Flags, emulator_of
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.machine import in_processes
from jmdp_lib.simulators.branches import play_branches
from jmdp_lib.simulators.estimates import EstimatedGaps
from jmdp_lib.simulators.statistics import mean_and_error, variance_values
from jmdp_lib.simulators.worlds import EnvironmentWorld


@dataclass(frozen=True, eq=False)
class PairRecords(Arrays):
    """M pairs of branches over H steps. Two branches, b = 0 and 1, start at one state.

    Attributes:
        state_rows: (M,) which evaluation state a pair starts at.
        actions: (M, 2) first actions.
        rewards: (M, 2, H) float32 rewards, clipped to [-1, 1], without shock; 0 after an end.
        alive: (M, 2, H) bool: the branch made a transition at time t.
        same_state: (M, H) bool: both branches stand at the same JMDP state, and share a table.
        played: (M, 2, H) int8 the action of each branch, 0 after an end.
        depths: (L,) times at which observations were kept, for a network to continue from.
        seen, previous: (M, 2, L, D) and (M, 2, L) observation and previous action at those times.

    Example:
        >>> from jmdp_lib.atari import CoupledAtari, Game, record_pairs
        >>> env = CoupledAtari("Breakout", seed=0)
        >>> _ = env.reset()
        >>> here = [env.snapshot()]
        >>> records = record_pairs(Game("Breakout"), here, 5, 0, pairs_per_state=2, processes=1)
        >>> records.rewards.shape, records.until(2).rewards.shape
        ((32, 2, 5), (32, 2, 2))
    """

    state_rows: Ints
    actions: Ints
    rewards: NDArray[np.float32]
    alive: Flags
    same_state: Flags
    played: NDArray[np.int8]
    depths: Ints
    seen: NDArray[np.uint8]
    previous: Ints

    def until(self, horizon: int) -> Self:
        """The first steps alone."""
        names = ("rewards", "alive", "same_state", "played")
        return replace(self, **{name: getattr(self, name)[..., :horizon] for name in names})


def record_pairs(
    game: Game,
    starts: Sequence[Snapshot],
    horizon: int,
    seed: Seed,
    *,
    pairs_per_state: int = 8,
    repeats: int = 16,
    depths: Sequence[int] = (),
    again: int = 0,
    processes: int | None = None,
) -> PairRecords:
    """Play `repeats` pairs for each of `pairs_per_state` random action pairs of every start.

    starts: snapshots from `evaluation_states` of the same game; `state_rows` counts them.
    horizon: steps of every pair.
    depths: times, before the horizon, at which observations are kept.
    again: another number plays the same action pairs again, independently.

    Example:
        >>> from jmdp_lib.atari import Game, evaluation_states, record_pairs
        >>> game = Game("Breakout")
        >>> starts, _ = evaluation_states(game, num_states=1, seed=0, processes=1)
        >>> records = record_pairs(game, starts, 20, 1, pairs_per_state=1, repeats=4, processes=1)
        >>> records.rewards.shape, records.until(5).rewards.shape
        ((4, 2, 20), (4, 2, 5))
    """
    if not starts:
        raise ValueError("starts must hold at least one snapshot, got none")
    checks.at_least("horizon", horizon, 1)
    kept = [checks.index("depths", depth, horizon) for depth in depths]
    play = partial(_play_state, game, horizon, pairs_per_state, repeats, kept, again)
    jobs = [(checks.seed_sequence(seed, row), row, start) for row, start in enumerate(starts)]
    parts = in_processes(play, jobs, processes, f"{game.name} pairs")
    return PairRecords.joined(parts, depths=np.array(kept, dtype=np.int64))


def _play_state(
    game: Game, steps: int, pairs_per_state: int, repeats: int, depths: list[int], again: int,
    seed: np.random.SeedSequence, row: int, start: Snapshot,
) -> PairRecords:  # fmt: skip
    """All pairs of one state."""
    left, right = emulator_of(game, 0), emulator_of(game, 1)
    left.np_random, right.np_random, choices = map(np.random.default_rng, seed.spawn(3))
    chosen = [choices.choice(left.num_actions, 2, replace=False) for _ in range(pairs_per_state)]
    for _ in range(again):
        left.np_random, right.np_random, choices = map(np.random.default_rng, seed.spawn(3))
    actions = np.repeat(chosen, repeats, axis=0)
    each, kept = (*actions.shape, steps), (*actions.shape, len(depths))
    records = PairRecords(
        np.full(len(actions), row), actions, np.zeros(each, np.float32), np.zeros(each, bool),
        np.zeros((len(actions), steps), bool), np.zeros(each, np.int8), np.array(depths),
        np.zeros((*kept, start.observation.size), np.uint8), np.zeros(kept, np.int64),
    )  # fmt: skip
    world = EnvironmentWorld([left, right], start)

    def choose(t: int, branch: int, _: object) -> int:
        return int(plays[t, branch])

    for pair, asked in enumerate(actions.tolist()):
        plays = choices.integers(left.num_actions, size=(steps, 2))
        moves = play_branches(world, asked, choose, steps)
        for t, places in enumerate(moves):
            for at_one_state in places:
                both = sum(len(members) for members, *_ in at_one_state) == 2
                records.same_state[pair, t] |= both
                for members, action, reward, _, seen, previous in at_one_state:
                    records.alive[pair, members, t] = True
                    records.rewards[pair, members, t] = min(max(reward, -1.0), 1.0)
                    records.played[pair, members, t] = action
                    if t in depths:
                        records.seen[pair, members, depths.index(t)] = seen.ravel()
                        records.previous[pair, members, depths.index(t)] = previous
    return records


class Tail(NamedTuple):
    """What C estimates predict for M pairs from some time on, discounted to their start.

    value, single: (C, M, 2) mean and variance of each branch's return. gap: (C, M) variance of
    their difference.
    """

    value: Floats
    single: Floats
    gap: Floats


@dataclass(frozen=True, eq=False, repr=False)
class RecordedGaps(EstimatedGaps):
    """Unbiased estimates for C discounts and K groups of pairs, with their standard errors.

    A group is a state and two actions. Errors are those of the simulation at the given states and
    actions; they say nothing about other states. `experiment.gap_table` averages over states.

    Attributes:
        mean, mean_error, variance, variance_error: (C, K) of G = Z(s, a) - Z(s, b).
        independent, independent_error: (C, K) Var Z(s, a) + Var Z(s, b), what independent marginals
            would have.
        covariance: (C, K) of the estimates `variance` and `independent`: same simulations.
        state_rows, actions: (K,) and (K, 2).
    """

    independent: Floats
    independent_error: Floats
    covariance: Floats
    state_rows: Ints
    actions: Ints


def gap_estimates(
    records: PairRecords,
    gammas: ArrayLike,
    sigma: float = 0.0,
    tail: Tail | None = None,
) -> RecordedGaps:
    """Gap mean and variance of every (state, actions), each with three pairs or more.

    gammas: (C,) discounts.
    sigma: of the reward shock.
    tail: what returns earn after the records' horizon $H$, added by
        $Var G = Var E[G | r] + E Var[G | r]$ for a record $r$; without it, a part of size $gamma^H$
        is missing.

    Example:
        >>> from jmdp_lib.atari import Game, evaluation_states, gap_estimates, record_pairs
        >>> game = Game("Breakout")
        >>> starts, _ = evaluation_states(game, num_states=1, seed=0, processes=1)
        >>> records = record_pairs(game, starts, 20, 1, pairs_per_state=1, repeats=4, processes=1)
        >>> found = gap_estimates(records, gammas=[0.9, 0.99], sigma=0.5)
        >>> found.variance.shape
        (2, 1)
    """
    gammas = _discounts(gammas)
    key = np.column_stack([records.state_rows, records.actions])
    groups, inverse, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    if counts.min() < 3:
        s, a, b = groups[counts.argmin()]
        raise ValueError(
            f"a variance with its error needs three pairs or more: state row {s}, actions "
            f"({a}, {b}) has {counts.min()}"
        )
    group = inverse.ravel()  # (M,) in range(K)
    rewards = records.rewards.astype(np.float64)
    powers = gammas[:, None] ** np.arange(rewards.shape[2])
    returns = np.moveaxis(rewards @ powers.T, 2, 0)  # (C, M, 2), cut at the horizon
    gap_shock, own_shock = _shock_variances(records, gammas, sigma)
    if tail is not None:
        returns = returns + tail.value
        gap_shock, own_shock = gap_shock + tail.gap, own_shock + tail.single
    found = []
    for k in range(len(groups)):
        mine = group == k
        first, second = np.moveaxis(returns[:, mine], 2, 0).swapaxes(1, 2)  # (m, C) each
        coupled = variance_values(first - second) + gap_shock[:, mine].T
        independent = variance_values(first) + variance_values(second)
        independent += own_shock[:, mine].sum(-1).T
        both = (coupled - coupled.mean(0)) * (independent - independent.mean(0))
        errors = map(mean_and_error, (first - second, coupled, independent))
        found.append([*chain(*errors), both.sum(0) / (len(both) * (len(both) - 1))])
    columns: Any = *np.moveaxis(np.array(found), 0, 2), groups[:, 0], groups[:, 1:]
    names = ("state_row", "action", "other")
    index = {"gamma": gammas[:, None], **dict(zip(names, groups.T, strict=True))}
    return RecordedGaps(*columns, index=index)


def _shock_variances(records: PairRecords, gammas: Floats, sigma: float) -> tuple[Floats, Floats]:
    """Variance of the shocks given each record: of the gap (C, M), of each branch (C, M, 2)."""
    own = checks.real("sigma", sigma, "(-inf, inf)") ** 2 * records.alive  # (M, 2, H)
    gap = np.where(records.same_state, np.ptp(own, 1), own.sum(1))  # (M, H): one shock cancels
    powers = gammas[:, None] ** (2 * np.arange(gap.shape[1]))
    return powers @ gap.T, np.moveaxis(own @ powers.T, 2, 0)


def shock_ratio(gammas: ArrayLike, loadings: ArrayLike | None = None) -> Floats:
    """(C,) independent / coupled gap variance if only shocks vary and branches never meet again.

    It is averaged over the first actions $a != b$, and equals $1 / gamma^2$ if all loadings (A,)
    are one, as they are unless given.

    Example:
        >>> from jmdp_lib.atari import shock_ratio
        >>> print(shock_ratio([0.9, 0.99]).round(3))
        [1.235 1.02 ]
    """
    gamma = _discounts(gammas)
    w = np.ones(2) if loadings is None else checks.floats("loadings", loadings, "action")
    later = 2.0 * gamma**2 / (1.0 - gamma**2) * np.mean(w**2)
    apart = ~np.eye(w.size, dtype=bool)
    shared = np.mean(np.subtract.outer(w, w)[apart] ** 2)
    with np.errstate(divide="ignore"):  # gamma = 0 with equal loadings: the gap is constant
        return (2.0 * np.mean(w**2) + later) / (shared + later)


def _discounts(gammas: ArrayLike) -> Floats:
    """(C,) in [0, 1)."""
    return np.array([checks.discount(gamma) for gamma in checks.floats("gammas", gammas, "gamma")])
