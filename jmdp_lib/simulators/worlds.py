"""Worlds: one adapter for each kind of simulator, so that branches are played alike in all of them.

A *place* is where a branch is, in whatever form its world knows it: a state, or an environment that
stands there. `world_of` finds the adapter for a simulator. Another kind has a line there. If it can
be wrapped in an object that has `query(state, actions, rng)`, as `StepSimulator` wraps a step
function, that goes to `QueriedWorld`; otherwise write a class with the methods of `World`.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.large.implicit import ImplicitJMDP
from jmdp_lib.model import JMDP, checked_coupling, require_noise
from jmdp_lib.model.simulator import (
    CheckedQueries,
    SimulatorError,
    check_hashable,
    check_simulator,
    check_unnumbered,
    draw_index,
)

_MOST_KEPT = 100_000  # states whose tables are kept
_DISCOUNTS = "[0, 1]"  # what a simulator may have here: 1 for runs of a stated horizon


ENDED = object()
"""The place of a branch whose episode has ended."""

Step = tuple[float, Any]
"""What one action did at a place: its reward, and the place that is reached, or `ENDED`.

Steps and visits are plain tuples, since there is one for every branch and time step.
"""

Visit = tuple[Any, list[Any], list[tuple[int, ...]], Any]
"""A place, the distinct actions that are played there in a time step, the numbers of the branches
that play each of them, and what these see."""


class World(Protocol):
    """What playing branches takes.

    Attributes:
        first_seen: what the policy sees where all branches start.
        episodes_end: whether a branch can end; it earns 0 from then on.
    """

    first_seen: Any
    episodes_end: bool

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        """Actions to compare: at least one, all known, no two alike."""

    def make_room(self, num_branches: int) -> None:
        """Prepare for so many branches."""

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

    def play(self, visits: list[Visit], coupling: str) -> list[list[Step]]:
        """One time step: for every visit a list with a step for each of its actions."""


@dataclass(frozen=True)
class Chooser:
    """A policy that is played: one uniform number gives an action, whatever form the policy has.

    policy: a function, or an array by states that have no numbers.
    rows: for every state, where these are known beforehand, the cumulative probabilities of all
        actions but the last.
    num_actions: A, or None where the policy returns actions that have no numbers.
    first_action, first_state: the numbers from which actions and observed states are counted.
    """

    policy: Any
    num_actions: int | None
    rows: list[list[float]] | None = None
    first_action: int = 0
    first_state: int = 0

    def action(self, seen: Any, uniform: float) -> Any:
        """The action at which the cumulative probabilities, for what is seen, pass the number."""
        if self.rows is not None:
            row = self.rows[seen - self.first_state]
            return self.first_action + bisect_right(row, uniform)
        if self.num_actions is None:
            return self.policy(checks.read_only(seen))
        probs = checks.policy_row(self.policy, seen, self.num_actions, self.first_action)
        return self.first_action + bisect_right(probs[:-1].cumsum().tolist(), uniform)

    def drawing(self, uniforms: Iterator[float]) -> Callable[[int, int, Any], Any]:
        """draw(t, branch, seen): `action` with one number after the other.

        Where all rows are known, it takes no detours: it is called for every branch and time step.
        """
        rows = self.rows
        if rows is None or self.first_action or self.first_state:
            return lambda t, branch, seen: self.action(seen, next(uniforms))
        return lambda t, branch, seen: bisect_right(rows[seen], next(uniforms))

    def same_rule(self, other: Chooser) -> bool:
        """Whether both choose alike for all that can be seen: equal arrays, or one function."""
        if self.rows is not None or other.rows is not None:
            return self.rows == other.rows
        if callable(self.policy) and callable(other.policy):
            return bool(self.policy == other.policy)
        if callable(self.policy) or callable(other.policy):
            return False
        return np.array_equal(self.policy, other.policy)


def _rows(matrix: Floats) -> list[list[float]]:
    """Cumulative probabilities of a policy (S, A), without the last ones, which are 1."""
    return np.cumsum(matrix[:, :-1], axis=1).tolist()


class QueriedWorld:
    """The world of a JMDP, or of a simulator with `query(state, actions, rng)`; places are states.

    A simulator without `num_states` has states of any hashable kind. It must be pure, as
    `model.simulator.Simulator` says: with coupling="common" all queries of a time step meet equal
    generators.
    """

    episodes_end = False

    def __init__(self, simulator: Any, state: Any, coupling: str) -> None:
        if hasattr(simulator, "num_states"):
            known = check_simulator(simulator, _DISCOUNTS)
            self.state = checks.index("state", state, known.num_states)
        else:
            self.state = state
            self.check_unnumbered(simulator, state, coupling)
        if isinstance(simulator, JMDP):
            checked_coupling(simulator, coupling)
        self.simulator = simulator
        self.ask = self.asker()
        self.first_seen = self.state
        self.shared = np.random.default_rng(0)
        self.moment = self.shared.bit_generator.state

    def check_unnumbered(self, simulator: Any, state: Any, coupling: str) -> None:
        """Refuse a simulator whose states have no numbers, or its first state."""
        check_unnumbered(simulator, state, _DISCOUNTS)

    def checked_actions(self, actions: Sequence[int]) -> list[int]:
        return checks.distinct_actions(actions, self.simulator.num_actions)

    def make_room(self, num_branches: int) -> None:
        pass

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

    def asker(self) -> Callable[[Any, Sequence[int], np.random.Generator], list[Step]]:
        """Asks for the steps of distinct actions of a state under one draw of a generator."""
        return CheckedQueries(self.simulator).ask

    def play(self, visits: list[Visit], coupling: str) -> list[list[Step]]:
        ask = self.ask
        rng = self.rng
        if coupling == "joint":
            return [ask(state, actions, rng) for state, actions, _, _ in visits]
        if coupling == "independent":
            return [
                [ask(state, [action], rng)[0] for action in actions]
                for state, actions, _, _ in visits
            ]
        return self._play_common(visits)

    def _play_common(self, visits: list[Visit]) -> list[list[Step]]:
        """Every query meets one generator in one state, which is drawn for the time step."""
        draw = self.rng.bit_generator.random_raw
        self.moment["state"]["state"] = draw() << 64 | draw()
        found = []
        for state, actions, _, _ in visits:
            self.shared.bit_generator.state = self.moment
            found.append(self.ask(state, actions, self.shared))
        return found


class TabledWorld(QueriedWorld):
    """The world of an `ImplicitJMDP`: tables are kept, since asking takes longer than drawing.

    With coupling="common" all states must have one law of tables; those that are met are checked.
    """

    def __init__(self, simulator: ImplicitJMDP, state: Any, coupling: str) -> None:
        super().__init__(simulator, state, coupling)
        self.one_law = simulator.at(state)[0] if coupling == "common" else None
        self.kept: dict[Hashable, tuple[list[float], list[list[float]], list[Hashable]]] = {}

    def check_unnumbered(self, simulator: ImplicitJMDP, state: Any, coupling: str) -> None:
        check_hashable(state)
        checks.pure(f"tables of state {state!r}", simulator.at, state)
        if coupling == "common":
            require_noise(simulator)

    def asker(self) -> Callable[[Any, Sequence[int], np.random.Generator], list[Step]]:
        return self.draw

    def draw(self, state: Any, actions: Sequence[int], rng: np.random.Generator) -> list[Step]:
        """The steps of the actions, from one of the tables of the state."""
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

    episodes_end = True

    def __init__(self, envs: list[Any], start: Any) -> None:
        self.envs = envs
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.first_seen = start.observation

    @classmethod
    def of(cls, env: Any, state: Any) -> EnvironmentWorld:
        """From a snapshot, or from where the environment is. It is left alone."""
        start = _inside_episode(env, state)
        return cls([env.twin()], start)

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        return list(distinct_in(self.envs[0].action_space, actions).values())

    def make_room(self, num_branches: int) -> None:
        self.envs += [self.envs[0].twin() for _ in range(num_branches - len(self.envs))]

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
        matrix = checks.policy_matrix(checks.Sizes(int(sees.n), count), policy)
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
        return action_key(self.envs[0].action_space, action)

    def play(self, visits: list[Visit], coupling: str) -> list[list[Step]]:
        idle = [env for env in self.envs if not any(env is visit[0] for visit in visits)]
        players = [[place, *(idle.pop() for _ in actions[1:])] for place, actions, _, _ in visits]
        for place, *others in players:
            for env in others:
                here = place.snapshot()  # the drawn table included
                env.restore(here._replace(draw=None) if coupling == "independent" else here)
        if coupling == "common":
            for env in [env for envs in players for env in envs][1:]:
                env.redraw(players[0][0].draw)
        return [
            [self._step(env, action) for env, action in zip(envs, visit[1], strict=True)]
            for envs, visit in zip(players, visits, strict=True)
        ]

    def _step(self, env: Any, action: Any) -> Step:
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            where = f"state {env.observed}, action {action}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        return reward, ENDED if terminated or truncated else env


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


def world_of(env: Any, state: Any, coupling: str) -> World:
    """The adapter for a simulator; arguments as of `estimate_gaps`."""
    if isinstance(env, ImplicitJMDP):
        return TabledWorld(env, state, coupling)
    if hasattr(env, "twin"):
        return EnvironmentWorld.of(env, state)
    if hasattr(env, "query") and hasattr(env, "num_actions"):
        return QueriedWorld(env, state, coupling)
    raise ValueError(
        f"{env!r} is no simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, an "
        "ImplicitJMDP, or have num_actions, gamma and query"
    )


def copy_of(world: World) -> World:
    """A world of its own for another thread.

    Models do not change, and are shared; any other simulator is copied deeply.
    """
    model = getattr(world, "simulator", None)
    shared = {id(model): model} if isinstance(model, JMDP | ImplicitJMDP) else {}
    return copy.deepcopy(world, shared)


def distinct_in(space: Any, actions: Any) -> dict[str, Any]:
    """Actions of a Gymnasium space in their order, by keys that tell different ones apart."""
    chosen = list(actions) if isinstance(actions, Iterable) else []
    for action in chosen:
        if not space.contains(action):
            raise IndexError(f"action {action!r} is not in {space}")
    keys = {action_key(space, action): action for action in chosen}
    if not keys or len(keys) < len(chosen):
        raise ValueError(f"ask for at least one action, all distinct, got {actions!r}")
    return keys


def action_key(space: Any, action: Any) -> str:
    """Equal for equal actions of a Gymnasium space, whatever their parts."""
    return repr(space.to_jsonable([action]))
