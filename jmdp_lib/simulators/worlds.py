"""Worlds: one adapter for each kind of simulator, so that branches are played alike in all of them.

A *place* is where a branch is, in whatever form its world knows it: a state, or an environment that
stands there. `world_of` finds the adapter for a simulator; another kind is another class with the
methods of `World`, and a line there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model import JMDP, ImplicitJMDP, checked_coupling
from jmdp_lib.model.queries import (
    SimulatorError,
    check_hashable,
    check_simulator,
    check_unnumbered,
    checked_query,
    draw_index,
)

_MOST_KEPT = 100_000  # states whose tables are kept


class Step(NamedTuple):
    """What one action did at a place. over: whether the episode ended, so that no place is left."""

    reward: float
    over: bool
    place: Any


Visits = list[tuple[Any, list[Any]]]
"""Distinct places, each with the distinct actions that are played there in one time step."""


class World(Protocol):
    """What playing branches takes.

    Attributes:
        actions: the actions that are compared, checked.
        reward_range: (lo, hi) that holds all rewards, as far as the simulator declares it.
        first_seen: what the policy sees where all branches start.
    """

    actions: list[Any]
    reward_range: tuple[float, float] | None
    first_seen: Any

    def chooser(self, policy: Policy) -> Chooser:
        """The policy, checked, as it is played here."""

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Begin a run with random streams of its own."""

    def start(self) -> Any:
        """The place where all branches of a run start."""

    def seen(self, place: Any) -> Any:
        """What the policy sees at a place."""

    def same(self, place: Any, other: Any) -> bool:
        """Whether two places are one state; in doubt they are not."""

    def key(self, action: Any) -> Hashable:
        """Equal for equal actions."""

    def play(self, visits: Visits, coupling: str) -> Iterator[list[Step]]:
        """One time step: for every visit a list with a step for each of its actions."""


@dataclass(frozen=True)
class Chooser:
    """Draws actions from a policy: one uniform number an action, whatever form the policy has.

    policy: a function, or an array by states that have no numbers.
    rows: cumulative probabilities of every state, where these are known beforehand.
    num_actions: A, or None where the policy returns actions that have no numbers.
    first_action, first_state: the numbers from which actions and observed states are counted.
    """

    policy: Any
    num_actions: int | None
    rows: list[list[float]] | None = None
    first_action: int = 0
    first_state: int = 0

    def draw(self, seen: Any, rng: np.random.Generator) -> Any:
        """An action of the policy for what is seen."""
        if self.num_actions is None:
            return self.policy(seen)
        if self.rows is None:
            probs = checks.policy_row(self.policy, seen, self.num_actions, self.first_action)
            return self.first_action + draw_index(probs.cumsum().tolist(), rng)
        return self.first_action + draw_index(self.rows[seen - self.first_state], rng)


def _rows(matrix: Floats) -> list[list[float]]:
    """Cumulative probabilities of a policy (S, A)."""
    return np.cumsum(matrix, axis=1).tolist()


class QueriedWorld:
    """The world of a JMDP, or of a simulator with `query(state, actions, rng)`; places are states.

    A simulator without `num_states` has states of any hashable kind.
    """

    def __init__(self, simulator: Any, actions: Sequence[int], state: Any, coupling: str) -> None:
        if hasattr(simulator, "num_states"):
            self.state = checks.index("state", state, check_simulator(simulator).num_states)
        else:
            self.state = state
            self.check_unnumbered(simulator, state, coupling)
        if isinstance(simulator, JMDP):
            checked_coupling(simulator, coupling)
        self.simulator = simulator
        self.actions = checks.distinct_actions(actions, simulator.num_actions)
        self.reward_range = getattr(simulator, "reward_range", None)
        self.first_seen = self.state

    def check_unnumbered(self, simulator: Any, state: Any, coupling: str) -> None:
        """Refuse a simulator whose states have no numbers, or its first state."""
        check_unnumbered(simulator, state)

    def chooser(self, policy: Policy) -> Chooser:
        count = self.simulator.num_actions
        if callable(policy) or not hasattr(self.simulator, "num_states"):
            return Chooser(policy, count)
        return Chooser(None, count, _rows(checks.policy_matrix(self.simulator, policy)))

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.rng = np.random.default_rng(seed)

    def start(self) -> Any:
        return self.state

    def seen(self, place: Any) -> Any:
        return place

    def same(self, place: Any, other: Any) -> bool:
        return bool(place == other)

    def key(self, action: int) -> int:
        return action

    def play(self, visits: Visits, coupling: str) -> Iterator[list[Step]]:
        shared_seed = int(self.rng.integers(2**63)) if coupling == "common" else None
        for state, actions in visits:
            found = []
            for asked in [[a] for a in actions] if coupling == "independent" else [actions]:
                rng = self.rng if shared_seed is None else np.random.default_rng(shared_seed)
                found += self.query(state, asked, rng)
            yield [Step(reward, False, successor) for reward, successor in found]

    def query(
        self, state: Any, actions: Sequence[int], rng: np.random.Generator
    ) -> list[tuple[float, Any]]:
        """[(reward, next state)] of the actions, checked."""
        return checked_query(self.simulator, state, actions, rng)


class TabledWorld(QueriedWorld):
    """The world of an `ImplicitJMDP`: tables are kept, since asking takes longer than drawing.

    With coupling="common" all states must have one law of tables; those that are met are checked.
    """

    def check_unnumbered(self, simulator: ImplicitJMDP, state: Any, coupling: str) -> None:
        check_hashable(state)
        checks.pure(f"tables of state {state!r}", simulator.at, state)
        if coupling == "common" and simulator.unknown_noise is not None:
            raise ValueError(f'coupling="common" needs a known noise: {simulator.unknown_noise}')
        self.one_law = simulator.at(state)[0] if coupling == "common" else None
        self.kept: dict[Hashable, tuple[list[float], list[list[float]], list[Hashable]]] = {}

    def query(
        self, state: Any, actions: Sequence[int], rng: np.random.Generator
    ) -> list[tuple[float, Any]]:
        cumulative, rewards, successors = self.tables(state)
        table = draw_index(cumulative, rng)
        first = table * self.simulator.num_actions
        return [(rewards[table][a], successors[first + a]) for a in actions]

    def tables(self, state: Any) -> tuple[list[float], list[list[float]], list[Hashable]]:
        """Cumulative probabilities (K,), rewards (K, A) and K * A next states."""
        if state not in self.kept:
            if len(self.kept) >= _MOST_KEPT:
                self.kept.clear()
            probs, rewards, successors = self.simulator.at(state)
            self.check_law(state, probs)
            self.kept[state] = (probs.cumsum().tolist(), rewards.tolist(), successors)
        return self.kept[state]

    def check_law(self, state: Any, probs: Floats) -> None:
        """Refuse a state whose tables are not those of the one noise that all states share."""
        law = self.one_law
        if law is not None and (law.size != probs.size or np.abs(law - probs).max() > 1e-12):
            raise ValueError(
                'coupling="common" needs one law of tables for all states: state '
                f"{state!r} has the probabilities {probs.round(6)}, the first one {law.round(6)}"
            )


class EnvironmentWorld:
    """The world of environments that are alike; a place is an environment that stands there.

    envs: as many as there are branches. start: a snapshot of theirs.
    """

    reward_range: tuple[float, float] | None = None

    def __init__(self, envs: Sequence[Any], start: Any) -> None:
        self.envs = envs
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.first_seen = start.observation
        self.actions: list[Any] = []

    @classmethod
    def of(cls, env: Any, actions: Sequence[Any], state: Any) -> EnvironmentWorld:
        """For the actions of a snapshot, or of where the environment is. It is left alone."""
        start = _inside_episode(env, state)
        chosen = list(checks.distinct_in(env.action_space, actions).values())
        world = cls([env.twin() for _ in chosen], start)
        world.actions = chosen
        return world

    def chooser(self, policy: Policy) -> Chooser:
        acts = self.envs[0].action_space
        count = int(acts.n) if type(acts).__name__ == "Discrete" else None
        first = int(acts.start) if count is not None else 0
        if callable(policy):
            return Chooser(policy, count, None, first)
        sees = self.envs[0].observation_space
        if count is None or type(sees).__name__ != "Discrete":
            answer = "an action" if count is None else f"({count},) probabilities or an action"
            raise ValueError(
                "the policy must be a function where observations or actions have no numbers, "
                f"policy(observation) -> {answer}, not {type(policy).__name__}"
            )
        matrix = checks.policy_matrix(_Sizes(int(sees.n), count), policy)
        return Chooser(None, count, _rows(matrix), first, int(sees.start))

    def seed(self, seed: np.random.SeedSequence) -> None:
        for env, own in zip(self.envs, seed.spawn(len(self.envs)), strict=True):
            env.np_random = np.random.default_rng(own)

    def start(self) -> Any:
        self.envs[0].restore(self.snapshot)
        return self.envs[0]

    def seen(self, place: Any) -> Any:
        return place.observed

    def same(self, place: Any, other: Any) -> bool:
        return bool(place.same_state(other))

    def key(self, action: Any) -> str:
        return checks.action_key(self.envs[0].action_space, action)

    def play(self, visits: Visits, coupling: str) -> Iterator[list[Step]]:
        idle = [env for env in self.envs if not any(env is place for place, _ in visits)]
        players = [[place, *(idle.pop() for _ in actions[1:])] for place, actions in visits]
        for place, *others in players:
            for env in others:
                here = place.snapshot()  # the drawn table included
                env.restore(here._replace(draw=None) if coupling == "independent" else here)
        if coupling == "common":
            for env in [env for envs in players for env in envs][1:]:
                env.redraw(players[0][0].draw)
        for envs, (_, actions) in zip(players, visits, strict=True):
            yield [self._step(env, action) for env, action in zip(envs, actions, strict=True)]

    def _step(self, env: Any, action: Any) -> Step:
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            where = f"state {env.observed}, action {action}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        return Step(reward, bool(terminated or truncated), env)


class _Sizes(NamedTuple):
    """How many states are observed, and how many actions there are."""

    num_states: int
    num_actions: int


def _inside_episode(env: Any, state: Any) -> Any:
    """The snapshot of an environment, or of where it is, inside an episode."""
    start = env.snapshot() if state is None else state
    if not hasattr(start, "observation"):
        raise ValueError(f"state must be a snapshot inside an episode, env.snapshot(), not {start}")
    if start.over and state is None:
        raise ValueError("env is outside of an episode: call env.reset() first")
    if start.over:
        raise ValueError("state must be a snapshot inside an episode, and this one is outside")
    return start


def world_of(env: Any, actions: Sequence[Any], state: Any, coupling: str) -> World:
    """The adapter for a simulator; arguments as of `estimate_gaps`."""
    if isinstance(env, ImplicitJMDP):
        return TabledWorld(env, actions, state, coupling)
    if hasattr(env, "twin"):
        return EnvironmentWorld.of(env, actions, state)
    if hasattr(env, "query") and hasattr(env, "num_actions"):
        return QueriedWorld(env, actions, state, coupling)
    raise ValueError(
        f"{env!r} is no simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, an "
        "ImplicitJMDP, or have num_actions, gamma and query"
    )
