"""Players of simulators that answer one query at a time: batches of one run.

A kind of simulator that can be wrapped in an object that has `query(state, actions, rng)` goes to
`QueriedPlayer`; otherwise write a class with the methods of `RowPlayer`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations, compress, islice
from operator import eq
from typing import Any

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.model.simulator import (
    ANY_REWARD,
    SimulatorError,
    check_simulator,
    checked_query,
)
from jmdp_lib.policies import policy_row, policy_rows
from jmdp_lib.simulators.batch import BatchPlayer, Columns, Played, policy_table
from jmdp_lib.simulators.plans import Chunk, PlayedPolicy

_AT_ONCE = 64  # uniform numbers
_MOST_KEPT = 100_000  # states for which it is kept what a policy says of them


class Environment(ABC):
    """A simulator with a state of its own; what else it has is said by `coupled_env.Coupled`.

    That file needs Gymnasium, which this one must do without.
    """

    @abstractmethod
    def twin(self) -> Any:
        """Another one, here and with the same table; both draw later tables from one generator."""


Draw = tuple[Any, list[Any], list[list[int]]]
"""The state, the actions that are played under one draw, and the branches that play each."""


class OneRun:
    """Columns of one run: plain numbers, and states of any kind."""

    def generator(self, seed: np.random.SeedSequence) -> np.random.Generator:
        """A random stream."""
        return np.random.default_rng(seed)

    def numbers(self, seed: np.random.SeedSequence) -> Iterator[float]:
        """A stream of uniform numbers in [0, 1), drawn many at once since that is faster."""
        rng = np.random.default_rng(seed)
        while True:
            yield from rng.random(_AT_ONCE).tolist()

    def zeros(self, size: int) -> Any:
        """A column."""
        return 0.0

    def uniforms(self, width: int, size: int, numbers: Any) -> list[Any]:
        """As many columns of a stream."""
        return [*islice(numbers, width)]

    def where(self, mask: Any, one: Any, other: Any) -> Any:
        """The values of a column where the mask is, of another one elsewhere."""
        return one if mask else other

    equal = staticmethod(eq)  # whether states are

    def count(self, mask: Any) -> int:
        """How often a mask is."""
        return int(mask)

    def follow(self, together: Columns, values: Columns) -> Columns:
        """Columns of values: a branch takes over those of the first it is together with."""
        if True not in together:  # the usual case, kept fast
            return values
        taken = [*values]
        for i, j in compress(combinations(range(len(taken)), 2), together):
            taken[j] = taken[i]
        return taken

    def joined(self, parts: Sequence[Columns]) -> Columns:
        """The columns of all runs, from those of parts."""
        return [*np.array(parts, float).T]


class RowPlayer(BatchPlayer):
    """Plays one run at a time.

    here: what a policy sees at the start. num_states: S where what it sees are numbers.
    can_keep: whether what it sees is hashable.
    """

    columns = OneRun()
    chunk_size = 128  # few, since a simulator that fails takes all of them with it
    sums_chunks = False
    here: Any
    num_states: int | None
    can_keep = True

    @abstractmethod
    def seen(self, states: Columns) -> Columns:
        """What policies see at states."""

    def number_of(self, action: Any) -> Any:
        """What stands for an action that was checked: it is equal for equal actions."""
        return int(action)

    def checked_policy(self, policy: Any) -> PlayedPolicy:
        """A table is known by its rows; anything else is asked twice for the start."""
        if not callable(policy) and self.num_states is not None:
            table = policy_table(policy, self.num_actions, self.num_states)
            steps = table[:, :-1].cumsum(1).tolist()
            return PlayedPolicy(table, dict(enumerate(steps)))
        if self.num_actions is None:
            with randomness.no_global_draws("policy", "but must be a function of the observation"):
                self.number_of(policy(checks.read_only(self.here)))
        else:
            policy_rows(policy, [self.here], self.num_actions)
        return PlayedPolicy(policy, {} if self.can_keep else None)

    def own(self) -> RowPlayer:
        return copy.deepcopy(self)

    def first(self, actions: Sequence[Any], size: int) -> Columns:
        return [*map(self.number_of, actions)]

    def choose(self, uniforms: Columns) -> Columns:
        return [
            bisect_right(policy.steps[seen], number)
            if policy.steps and seen in policy.steps
            else lives and self._action(policy, seen, number)
            for policy, seen, number, lives in zip(
                self.policies, self.seen(self.states), uniforms, self.alive, strict=False
            )
        ]

    def _action(self, policy: PlayedPolicy, seen: Any, number: float) -> Any:
        """The action of a policy; of those that it chooses at random, the one of a number."""
        if self.num_actions is None:
            return self.number_of(policy.source(checks.read_only(seen)))
        probs = policy_row(policy.source, seen, self.num_actions)
        steps = probs[:-1].cumsum().tolist()
        if policy.steps is not None and len(policy.steps) < _MOST_KEPT:
            policy.steps[seen] = steps
        return bisect_right(steps, number)

    def widen(self, rewards: Columns, actions: Columns, seen: Columns) -> None:
        """Take note of rewards; one outside of the range that was declared is refused."""
        least, most = self.extremes
        low, high = self.limits or ANY_REWARD
        for reward, action, state in zip(rewards, actions, seen, strict=True):
            if not low <= reward <= high:
                raise SimulatorError(
                    f"reward {reward} of action {action} in state {state} is not in reward_range "
                    f"{self.limits}"
                )
        self.extremes = (min(least, *rewards), max(most, *rewards))

    def draws(self) -> list[Draw]:
        """All draws of a step: one for a state, or for an action there that is played alone."""
        shared = self.coupling.at_one_state
        draws: dict[Any, Draw] = {}
        branches = zip(self.states, self.actions, self.alive, strict=True)
        for branch, (state, action, lives) in enumerate(branches):
            if not lives:
                continue
            key = state if shared else (state, action)
            if key not in draws:
                draws[key] = (state, [action], [[branch]])
                continue
            _, played, groups = draws[key]
            if action in played:
                groups[played.index(action)].append(branch)
            else:
                played.append(action)
                groups.append([branch])
        return [*draws.values()]


class QueriedPlayer(RowPlayer):
    """Plays a simulator with `query(state, actions, rng)`.

    A simulator without `num_states` has states of any hashable kind. It must be pure, as
    `model.simulator.Simulator` says: with one draw for all branches all queries of a time step
    meet equal generators.
    """

    def __init__(self, simulator: Any, state: Any) -> None:
        self.here = state
        self.num_states = getattr(simulator, "num_states", None)
        if self.num_states is None:
            try:
                hash(state)
            except TypeError:
                raise ValueError(
                    f"state must be hashable, such as a tuple, got {state!r}"
                ) from None
            check_simulator(simulator, states=[state], undiscounted=True)
        else:
            check_simulator(simulator, undiscounted=True)
            self.here = checks.index("state", state, self.num_states)
        self.limits = getattr(simulator, "reward_range", None)
        self.num_actions = simulator.num_actions
        self.simulator = simulator
        self.shared = np.random.default_rng(0)
        self.moment = self.shared.bit_generator.state

    def starts(self, width: int, size: int) -> Columns:
        return [self.here] * width

    def seen(self, states: Columns) -> Columns:
        return states

    def _in_common(self, simulator: Any, state: Any, actions: Any, rng: Any) -> Any:
        """Every query of a time step meets one generator in one state."""
        rng.bit_generator.state = self.moment
        return checked_query(simulator, state, actions, rng)

    def step(self, sharing: Columns) -> Played:
        states = self.states
        actions = self.actions
        ask: Any = checked_query
        rng = self.noise
        if self.coupling.across_states:
            draw = rng.bit_generator.random_raw
            self.moment["state"]["state"] = draw() << 64 | draw()
            ask = self._in_common
            rng = self.shared
        sim = self.simulator
        if True in sharing:
            rewards = [0.0] * len(states)
            after = [*states]
            draws = self.draws()
            for state, played, branches in draws:
                answers = ask(sim, state, played, rng)
                for each, (reward, then) in zip(branches, answers, strict=True):
                    for branch in each:
                        rewards[branch] = reward
                        after[branch] = then
            queries = len(draws)
        else:  # the usual case
            rewards = []
            after = []
            for state, action in zip(states, actions, strict=True):
                [(reward, then)] = ask(sim, state, [action], rng)
                rewards.append(reward)
                after.append(then)
            queries = len(after)
        least, most = self.extremes
        if min(rewards) < least or max(rewards) > most:
            self.widen(rewards, actions, states)
        return rewards, after, None, None, queries


class EnvironmentPlayer(RowPlayer):
    """Plays environments that are alike, one for each branch; a state is the number of one there.

    Branches that meet go on in that of the first.

    start: a snapshot of theirs. envs: one or more.
    """

    chunk_size = 32

    def __init__(self, start: Any, envs: list[Any]) -> None:
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.here = start.observation
        self.envs = envs
        self.space = envs[0].action_space
        self.num_actions = _listed(self.space)
        self.num_states = _listed(envs[0].observation_space)
        self.can_keep = self.num_states is not None
        self.by_key: dict[str, Any] = {}  # actions that have no numbers

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        return list(distinct_in(self.space, actions).values())

    def number_of(self, action: Any) -> Any:
        if self.num_actions is not None:
            return int(action)
        key = action_key(self.space, action)
        self.by_key[key] = action
        return key

    def checked_policy(self, policy: Any) -> PlayedPolicy:
        if not callable(policy) and None in (self.num_actions, self.num_states):
            raise ValueError(
                "the policy must be a function where observations or actions have no numbers, "
                f"policy(observation) -> (A,) probabilities or an action, not {type(policy)}"
            )
        return super().checked_policy(policy)

    def begin(self, chunk: Chunk) -> None:
        self.by_key = {}
        width = len(chunk.plan.names)
        self.envs += [self.envs[0].twin() for _ in range(width - len(self.envs))]
        for env in self.envs:
            env.np_random = self.noise

    def starts(self, width: int, size: int) -> Columns:
        self.envs[0].restore(self.snapshot)
        return [0] * width

    def seen(self, states: Columns) -> Columns:
        return [self.envs[state].observed for state in states]

    def step(self, sharing: Columns) -> Played:
        seen = self.seen(self.states)
        rewards = [0.0] * len(seen)
        after = [*self.states]
        over = [False] * len(seen)
        cut = [*over]
        here: list[int] = []  # where branches are after the step
        draws = self.draws()
        for number, action, branches in self._placed(draws):
            env = self.envs[number]
            reward, terminated, truncated = self._step_one(env, action)
            ended = terminated or truncated
            met = [k for k in here if not ended and self.envs[k].same_state(env)]
            here += [] if ended or met else [number]
            for branch in branches:
                rewards[branch] = reward
                after[branch] = met[0] if met else number
                over[branch] = ended
                cut[branch] = truncated and not terminated
        self.widen(rewards, self.actions, seen)
        return rewards, after, over, cut, len(draws)

    def _placed(self, draws: list[Draw]) -> list[tuple[int, Any, list[int]]]:
        """An environment for every action that is played, in its state and with its draw.

        It is that of the first branch that plays it. So a state has the number of the environment
        of the first branch there, and those of the other branches are free.
        """
        placed = []
        draw = None
        for number, played, groups in draws:
            home = self.envs[number]
            if self.coupling.across_states and draw is not None:
                home.redraw(draw)
            draw = home.draw
            for action, branches in zip(played, groups, strict=True):
                own = branches[0]
                if own != number:
                    given = draw if self.coupling.at_one_state else None
                    self.envs[own].restore(home.snapshot()._replace(draw=given))
                placed.append((own, action, branches))
        return placed

    def _step_one(self, env: Any, action: Any) -> tuple[float, bool, bool]:
        played = action if self.num_actions else self.by_key[action]
        try:
            _, reward, terminated, truncated, _ = env.step(played)
        except Exception as error:
            where = f"state {env.observed}, action {played}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        return reward, terminated, truncated


def _listed(space: Any) -> int | None:
    """How many elements a Gymnasium space has, where these are numbers from 0 on."""
    return int(space.n) if type(space).__name__ == "Discrete" and space.start == 0 else None


def inside_episode(env: Any, state: Any) -> Any:
    """The snapshot of an environment, or of where it is, inside an episode."""
    start = env.snapshot() if state is None else state
    if getattr(start, "over", True):
        raise ValueError(
            "state must be a snapshot inside an episode, such as env.snapshot() after env.reset(), "
            f"not {start!r}"
        )
    return start


def distinct_in(space: Any, actions: Any) -> dict[str, Any]:
    """Actions of a Gymnasium space in their order, by keys that tell different ones apart."""
    chosen = list(actions) if isinstance(actions, Iterable) else []
    for action in chosen:
        if not space.contains(action):
            raise IndexError(f"action {action!r} is not in {space}")
    keys = {repr(space.to_jsonable([action])): action for action in chosen}
    if not keys or len(keys) < len(chosen):
        raise ValueError(f"ask for at least one action, all distinct, got {actions!r}")
    return keys


def action_key(space: Any, action: Any) -> str:
    """Equal for equal actions of a Gymnasium space, whatever their parts."""
    with suppress(TypeError, ValueError):
        if type(space).__name__ != "Discrete" or space.contains(action):
            return repr(space.to_jsonable([action]))
    raise ValueError(
        f"{action!r} is no action of {space}; where actions are not counted from 0, a policy "
        "returns one of them, and no probabilities"
    )
