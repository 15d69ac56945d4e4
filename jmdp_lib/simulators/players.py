"""Players: what plays the runs of a comparison, and what the runs say about gaps.

`Comparison` is what the players of all simulators have in common. `Branches` plays one run after
the other, in any world; `vector_branches` has the player of many runs at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import printed_names, progress
from jmdp_lib.model import COUPLINGS
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.branches import (
    FirstActions,
    OwnRules,
    Run,
    Settings,
    play_run,
    uniforms_of,
)
from jmdp_lib.simulators.results import GapEstimate
from jmdp_lib.simulators.statistics import gap_statistics
from jmdp_lib.simulators.worlds import Chooser, World, copy_of, world_of

_LONGEST = 10**6  # steps of a run, unless a horizon is given


class Comparison(ABC):
    """What the player of any simulator has, also one that plays many runs at once.

    names: what tells the branches apart.
    """

    gamma: float
    horizon: int
    coupling: str

    @property
    @abstractmethod
    def names(self) -> list[Any]: ...

    @abstractmethod
    def only(self, chosen: Sequence[int]) -> Comparison:
        """Some of the branches."""

    @abstractmethod
    def begin(self, rng: np.random.Generator) -> Any:
        """Where runs take their random numbers from."""

    @abstractmethod
    def play_some(
        self, source: Any, most: int, until_one: bool, limits: tuple[float, float]
    ) -> list[Run]:
        """The next runs: as many as suit the player, and `most` at most.

        source: from `begin`. until_one: stop where all branches are one for good. limits: a reward
        outside of them is refused.
        """

    @property
    def compared(self) -> str:
        """What is compared, in a word."""
        return "action"

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(m, m) which branches are one from the start, for good."""
        return np.eye(len(self.names), dtype=bool)

    @property
    def most_queries(self) -> int:
        """Queries that a run may need: at first all branches are at one state."""
        size = len(self.names)
        first = size if self.coupling == "independent" else 1
        return first + (self.horizon - 1) * size

    @property
    def discount_of_returns(self) -> float:
        """gamma; if it is 1, that with which rewards weigh as much as those of all steps here."""
        return 1.0 - 1.0 / self.horizon if self.gamma == 1.0 else self.gamma

    def largest_return(self, reward: float) -> float:
        """The return of so large a reward at every step; if gamma is 1, up to the horizon."""
        return reward / (1.0 - self.discount_of_returns)

    def largest_rest(self, reward: float) -> float:
        """What of it comes after the horizon, discounted; if gamma is 1, nobody knows."""
        if self.gamma == 1.0:
            return math.inf if reward else 0.0
        return self.gamma**self.horizon * self.largest_return(reward)


def checked_settings(
    env: Any, gamma: float | None, coupling: str, truncation: float, horizon: int | None
) -> Settings:
    """Discount, horizon and coupling, checked. A discount of 1 needs a stated horizon."""
    checks.one_of("coupling", coupling, COUPLINGS)
    given = getattr(env, "gamma", 0.99) if gamma is None else gamma
    if horizon is None and given == 1:
        raise ValueError(
            "gamma must lie in [0, 1), or be 1 together with a stated horizon=, by which episodes "
            f"have ended; got gamma = {given} and no horizon"
        )
    gamma = checks.discount(given) if horizon is None else checks.real("gamma", given, "[0, 1]")
    if horizon is None:
        other = "pass horizon=, or a smaller gamma="
        horizon = checks.derived_horizon(gamma, truncation, _LONGEST, other)
    return Settings(gamma, checks.at_least("horizon", horizon, 1), coupling)


@dataclass(frozen=True)
class Branches(Comparison):
    """What all runs of a comparison have in common; it pickles if its parts do."""

    world: World
    rules: FirstActions | OwnRules
    gamma: float
    horizon: int
    coupling: str

    @classmethod
    def of(
        cls,
        env: Any,
        policy: Any,
        actions: Sequence[Any],
        state: Any,
        gamma: float | None,
        coupling: str,
        truncation: float,
        horizon: int | None,
    ) -> Branches:
        """Arguments as of `estimate_gaps`, checked; the policy is tried out once."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        _check_order(policy)
        world = world_of(env, state, coupling)
        names = world.checked_actions(actions)
        world.make_room(len(names))
        return cls(world, FirstActions(_tried(world, policy), names), *settings)

    @classmethod
    def of_policies(
        cls,
        env: Any,
        policies: Sequence[Any],
        state: Any,
        gamma: float | None,
        coupling: str,
        truncation: float,
        horizon: int | None,
    ) -> Branches:
        """Arguments as of `compare_policies`, checked; every policy is tried out once."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        world = world_of(env, state, coupling)
        choosers = []
        for number, policy in enumerate(policies):
            try:
                choosers.append(_tried(world, policy))
            except ValueError as error:
                raise ValueError(f"policies[{number}]: {error}") from None
        world.make_room(len(choosers))
        return cls(world, OwnRules.of(choosers), *settings)

    @property
    def names(self) -> list[Any]:
        """What tells the branches apart: their first actions, or the numbers of their policies."""
        return self.rules.names

    @property
    def compared(self) -> str:
        """What is compared, in a word."""
        return "policy" if isinstance(self.rules, OwnRules) else "action"

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(m, m) which branches are one from the start, for good."""
        kinds = self.rules.rules if isinstance(self.rules, OwnRules) else range(len(self.names))
        return np.equal.outer(kinds, kinds)

    def only(self, chosen: Sequence[int]) -> Branches:
        """Some of the branches."""
        return replace(self, rules=self.rules.only(chosen))

    def begin(self, rng: np.random.Generator) -> Iterator[float]:
        """Give the world a random stream of its own; the uniform numbers that actions take."""
        self.world.seed(np.random.SeedSequence(int(rng.integers(2**63))))
        return uniforms_of(rng)

    def play_some(
        self, source: Any, most: int, until_one: bool, limits: tuple[float, float]
    ) -> list[Run]:
        return [self.play(source, until_one, limits)]

    def play(
        self,
        uniforms: Iterator[float],
        until_one: bool = False,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Run:
        """One run, as `play_run` says."""
        settings = Settings(self.gamma, self.horizon, self.coupling)
        return play_run(self.world, self.rules, settings, uniforms, until_one, limits)

    def play_runs(
        self, root: np.random.SeedSequence, first: int, last: int, whole: bool, name: str = ""
    ) -> PlayedRuns:
        """Runs first to last - 1, or those before the simulator failed and why it did.

        whole: play on where all branches are one. name: of a progress bar, if there is one.
        """
        played: list[Run] = []
        failure = None
        with progress(last - first if name else 0, name, unit="run") as bar:
            for number in range(first, last):
                seed = checks.seed_sequence(root, number)
                uniforms = uniforms_of(np.random.default_rng(seed.spawn(1)[0]))
                self.world.seed(seed)
                try:
                    played.append(self.play(uniforms, not whole))
                except SimulatorError as error:
                    failure = f"run {number}: {error}"
                    break
                bar.update()
        return PlayedRuns.of(played, len(self.names), failure)

    def play_chunk(
        self, root: np.random.SeedSequence, first: int, last: int, whole: bool
    ) -> PlayedRuns:
        """As `play_runs`, in a world of its own: threads may share this one."""
        return replace(self, world=copy_of(self.world)).play_runs(root, first, last, whole)


def _tried(world: World, policy: Any) -> Chooser:
    """A policy as it is played, after it was asked twice for the state where all branches start."""
    chooser = world.chooser(policy)
    seen = world.first_seen
    if chooser.rows is None and chooser.num_actions is not None:
        checks.policy_rows(policy, [seen], chooser.num_actions, chooser.first_action)
    else:
        chooser.action(seen, 0.5)
    return chooser


def _check_order(policy: Any) -> None:
    """Refuse what can only be a state: the policy comes before the actions, the state after."""
    snapshot = hasattr(policy, "observation")
    if policy is None or snapshot or (not callable(policy) and np.ndim(policy) == 0):
        raise ValueError(
            "policy must be probabilities (S, A), actions (S,), or a function of what is seen that "
            f"returns either for it, got {'a snapshot' if snapshot else repr(policy)}. The order "
            "of arguments is (env, policy, actions, state=...)"
        )


class PlayedRuns(NamedTuple):
    """N runs of m branches. returns, labels: (N, m), as in `Run`. extremes: (2,) of all rewards.

    failure: why there are no more of them, if that is so.
    """

    returns: Floats
    labels: Ints
    extremes: tuple[float, float]
    failure: str | None

    @classmethod
    def of(cls, runs: Sequence[Run], num_branches: int, failure: str | None) -> PlayedRuns:
        shape = (len(runs), num_branches)
        returns = np.array([run.returns for run in runs], float).reshape(shape)
        labels = np.array([run.labels for run in runs], np.int64).reshape(shape)
        low = min((run.extremes[0] for run in runs), default=math.inf)
        high = max((run.extremes[1] for run in runs), default=-math.inf)
        return cls(returns, labels, (low, high), failure)

    @classmethod
    def joined(cls, parts: Sequence[PlayedRuns]) -> PlayedRuns:
        """One or more parts as one, with the first failure."""
        returns = np.concatenate([part.returns for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        low = min(part.extremes[0] for part in parts)
        high = max(part.extremes[1] for part in parts)
        failure = next((part.failure for part in parts if part.failure), None)
        return cls(returns, labels, (low, high), failure)


def gaps_of(branches: Comparison, played: PlayedRuns, keep_returns: bool = False) -> GapEstimate:
    """Estimates from runs of all branches; nan stands for a branch that a run did not play.

    Three runs or more must have played any two of them.
    """
    returns, labels, extremes, _ = played
    cut = branches.largest_rest(extremes[1] - extremes[0])
    gaps = returns[:, :, None] - returns[:, None]  # (N, m, m)
    apart = labels[:, :, None] != labels[:, None]
    cuts = np.where(apart, cut, 0.0)
    rounding = 1e-12 * np.nanmax(np.abs(returns))
    both = ~np.isnan(gaps)
    counts = both.sum(0)
    if both.all():
        found = gap_statistics(gaps, cuts, rounding)
    else:
        found = np.empty((8, *counts.shape))
        for pair in np.ndindex(counts.shape):
            rows = both[:, *pair]
            found[:, *pair] = gap_statistics(gaps[rows, *pair], cuts[rows, *pair], rounding)
    open_share = (apart & both).sum(0) / counts
    num_runs = len(returns) if both.all() else counts
    kept = returns if keep_returns else None
    return played_gaps(branches, found, open_share, extremes, num_runs, kept)


def played_gaps(
    branches: Comparison,
    found: Any,
    open_share: Floats,
    extremes: tuple[float, float],
    num_runs: Ints | int,
    returns: Any,
) -> GapEstimate:
    """Estimates from statistics (8, m, m) of gaps, which are those of `gap_statistics`.

    open_share: (m, m) of the runs, those whose gap was open at the horizon. extremes: (2,) of all
    rewards. num_runs, returns: as in `GapEstimate`.
    """
    cut = branches.largest_rest(extremes[1] - extremes[0])
    missed = np.multiply(cut, open_share, out=np.zeros_like(open_share), where=open_share > 0)
    names = printed_names(branches.names)
    index = {branches.compared: names[:, None], "other": names[None]}
    rest: Any = (missed, num_runs, returns, found[7])
    return GapEstimate(*found[:7], *rest, index=index)
