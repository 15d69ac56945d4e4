"""Players of simulators that answer one query at a time: batches whose rows are stepped in turn.

States and actions are numbers in the arrays of a batch, whatever they are to the simulator: what a
policy sees at a state is `seen`. A kind of simulator that can be wrapped in an object that has
`query(state, actions, rng)`, as `StepSimulator` wraps a step function, goes to `QueriedPlayer`;
otherwise write a class with the methods of `RowPlayer`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations, repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model import JOINT, Coupling
from jmdp_lib.model.simulator import (
    ANY_REWARD,
    SimulatorError,
    check_simulator,
    checked_query,
)
from jmdp_lib.simulators.batch import Arrays, BatchPlayer, Played, policy_table
from jmdp_lib.simulators.plans import Chunk, PlayedPolicy

_MOST_KEPT = 100_000  # states for which it is kept what a policy says of them
_DISCOUNTS = "[0, 1]"  # what a simulator may have here: 1 for runs of a stated horizon


@runtime_checkable
class Environment(Protocol):
    """A simulator with a state of its own, such as `CoupledEnv` and `CoupledAtari`.

    It also has the attributes `draw`, `observed`, `np_random`, `action_space` and
    `observation_space`; `simulators.coupled_env.Coupled` says what all of them are.
    """

    def twin(self) -> Any:
        """Another one, here and with the same table; both draw later tables from one generator."""

    def snapshot(self) -> Any:
        """This state, with its table."""

    def restore(self, snapshot: Any) -> Any:
        """Go to a state; a table is drawn if the snapshot has none."""

    def redraw(self, draw: Any = None) -> None:
        """Replace the table by a fresh one, or by the one of a given draw."""

    def same_state(self, other: Any) -> bool:
        """Whether both stand at one state; in doubt they do not."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute one branch of the table."""


Groups = list[tuple[int, dict[int, list[int]]]]
"""Of one run, for every draw: the state, the actions that are played, and by which branches."""

Result = tuple[list[int], float, int, bool, bool]
"""Of branches: reward, next state, whether they end, and whether by a time limit.

A plain tuple, since there is one for every query.
"""


class Numbers:
    """Things get numbers as they are met; `key` tells them apart."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.known: dict[Any, int] = {}

    def of(self, thing: Any, key: Hashable) -> int:
        number = self.known.setdefault(key, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class RowPlayer(BatchPlayer):
    """Plays rows one after the other.

    here: what a policy sees at the start. num_states: S where what it sees are numbers.
    can_keep: whether what it sees is hashable.
    """

    arrays = Arrays(np, "cpu")
    chunk_size = 128  # few, since a simulator that fails takes all of them with it
    least_runs = 16
    sums_chunks = False
    episodes_end = False
    here: Any
    num_states: int | None
    can_keep = True

    @abstractmethod
    def seen(self, state: int) -> Any:
        """What a policy sees at a state."""

    @abstractmethod
    def outcomes(self, groups: Groups, rng: Any) -> list[Result]:
        """What a step of a run does to branches."""

    def generator(self, seed: np.random.SeedSequence) -> np.random.Generator:
        return np.random.default_rng(seed)

    def checked_policy(self, policy: Any) -> PlayedPolicy:
        """A table is known by its rows; anything else is asked twice for the start."""
        if not callable(policy) and self.num_states is not None:
            table = policy_table(policy, self.num_actions, self.num_states)
            steps = table[:, :-1].cumsum(1).tolist()
            return PlayedPolicy(table, dict(enumerate(steps)))
        if self.num_actions is None:
            with checks.no_global_draws("policy", "but must be a function of the observation"):
                self.number_of(policy(checks.read_only(self.here)))
        else:
            checks.policy_rows(policy, [self.here], self.num_actions)
        return PlayedPolicy(policy, {} if self.can_keep else None)

    def own(self) -> RowPlayer:
        return copy.deepcopy(self)

    def choose(self, policies: Sequence[Any], states: Any, alive: Any, uniforms: Any) -> Any:
        rows = zip(policies, states.tolist(), alive.tolist(), uniforms, strict=True)
        return np.array(
            [
                [
                    self._action(policy, self.seen(state), number) if lives else 0
                    for state, lives, number in zip(here, living, numbers.tolist(), strict=True)
                ]
                for policy, here, living, numbers in rows
            ]
        )

    def _action(self, policy: PlayedPolicy, seen: Any, number: float) -> int:
        """The action of a policy; of those that it chooses at random, the one of a number."""
        if self.num_actions is None:
            return self.number_of(policy.source(checks.read_only(seen)))
        kept = policy.steps
        if kept is not None and seen in kept:
            return bisect_right(kept[seen], number)
        probs = checks.policy_row(policy.source, seen, self.num_actions)
        steps = probs[:-1].cumsum().tolist()
        if kept is not None and len(kept) < _MOST_KEPT:
            kept[seen] = steps
        return bisect_right(steps, number)

    def step(self, states: Any, actions: Any, going: Any, sharing: Any, rng: Any) -> Played:
        columns = [part.T.tolist() for part in (states, actions, going)]
        shared = zip(*(each.tolist() for each in sharing), strict=True) if sharing else repeat(())
        pairs = [*combinations(range(len(states)), 2)]
        paid: list[float] = []
        ended: list[tuple[int, int, bool]] = []
        rewards = []
        for run, (here, chosen, goes, together) in enumerate(zip(*columns, shared, strict=False)):
            earned = [0.0] * len(here)
            groups = _groups(here, chosen, goes, pairs, together)
            for branches, reward, after, over, cut in self.outcomes(groups, rng):
                paid.append(reward)
                for branch in branches:
                    earned[branch] = reward
                    here[branch] = after
                    if over:
                        ended.append((branch, run, cut))
            rewards.append(earned)
        self.extremes += [min(paid), max(paid)]
        played = Played(np.array(rewards).T, np.array(columns[0]).T)
        return self._with_ends(played, ended) if self.episodes_end else played

    def _with_ends(self, played: Played, ended: list[tuple[int, int, bool]]) -> Played:
        """ended: branches and runs whose episodes are over, and whether by a time limit."""
        over = np.zeros(played.rewards.shape, bool)
        cut = np.zeros_like(over)
        for branch, run, by_limit in ended:
            over[branch, run] = True
            cut[branch, run] = by_limit
        return played._replace(over=over, cut=cut)

    def refuse(self, reward: float, action: Any, state: Any) -> None:
        raise SimulatorError(
            f"reward {reward} of action {action} in state {state} is not in reward_range "
            f"{self.limits}"
        )


def _groups(
    states: list[int],
    actions: list[int],
    going: list[bool],
    pairs: list[tuple[int, int]],
    together: tuple[bool, ...],
) -> Groups:
    """The draws of a run. together: for every pair of branches, whether they share one."""
    leaders = [*range(len(states))]  # the first branches with which these share a draw
    if True in together:
        for (i, j), both in zip(pairs, together, strict=True):
            if both and leaders[j] == j:
                leaders[j] = i
    draws: dict[int, dict[int, list[int]]] = {}
    for branch, leader in enumerate(leaders):
        if going[branch]:
            draws.setdefault(leader, {}).setdefault(actions[branch], []).append(branch)
    return [(states[leader], played) for leader, played in draws.items()]


class QueriedPlayer(RowPlayer):
    """Plays a simulator with `query(state, actions, rng)`; its states get numbers here.

    A simulator without `num_states` has states of any hashable kind. It must be pure, as
    `model.simulator.Simulator` says: with one draw for all branches all queries of a time step
    meet equal generators.
    """

    def __init__(self, simulator: Any, state: Any, coupling: Coupling) -> None:
        self.here = state
        self.num_states = getattr(simulator, "num_states", None)
        if self.num_states is None:
            _check_hashable(state)
            check_simulator(simulator, _DISCOUNTS, [state])
        else:
            check_simulator(simulator, _DISCOUNTS)
            self.here = checks.index("state", state, self.num_states)
        self.coupling = coupling
        self.limits = getattr(simulator, "reward_range", None)
        self.num_actions = simulator.num_actions
        self.ask = partial(checked_query, simulator)
        self.shared = np.random.default_rng(0)
        self.moment = self.shared.bit_generator.state
        self.numbers = Numbers()

    def begin(self, chunk: Chunk) -> Any:
        self.numbers = Numbers()
        return np.full((len(chunk.plan.names), chunk.size), self._number(self.here))

    def _number(self, state: Any) -> int:
        return self.numbers.of(state, state) if self.num_states is None else state

    def seen(self, state: int) -> Any:
        return self.numbers.things[state] if self.num_states is None else state

    def outcomes(self, groups: Groups, rng: Any) -> list[Result]:
        common = self.coupling.across_states
        if common and groups:  # one generator in one state, which is drawn for the time step
            draw = rng.bit_generator.random_raw
            self.moment["state"]["state"] = draw() << 64 | draw()
            rng = self.shared
        low, high = self.limits or ANY_REWARD
        numbered = self.num_states is not None
        results: list[Result] = []
        for number, played in groups:
            if common:
                rng.bit_generator.state = self.moment
            state = number if numbered else self.seen(number)
            answer = self.ask(state, [*played], rng)
            for (reward, after), (action, branches) in zip(answer, played.items(), strict=True):
                if not low <= reward <= high:
                    self.refuse(reward, action, state)
                place = after if numbered else self._number(after)
                results.append((branches, reward, place, False, False))
        return results


class EnvironmentPlayer(RowPlayer):
    """Plays environments that are alike; a state is the number of one that stands there.

    Every run has an environment for each of its branches. Branches that meet go on in that of the
    first.

    start: a snapshot of theirs. envs: one or more.
    """

    chunk_size = 32
    least_runs = 8
    episodes_end = True

    def __init__(self, start: Any, envs: list[Any], coupling: Coupling = JOINT) -> None:
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.here = start.observation
        self.envs = envs
        self.coupling = coupling
        self.width = len(envs)
        self.space = envs[0].action_space
        self.num_actions = _listed(self.space)
        self.num_states = _listed(envs[0].observation_space)
        self.can_keep = self.num_states is not None
        self.actions = Numbers()

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        return list(distinct_in(self.space, actions).values())

    def number_of(self, action: Any) -> int:
        if self.num_actions is None:
            return self.actions.of(action, action_key(self.space, action))
        return int(action)

    def checked_policy(self, policy: Any) -> PlayedPolicy:
        if not callable(policy) and None in (self.num_actions, self.num_states):
            raise ValueError(
                "the policy must be a function where observations or actions have no numbers, "
                f"policy(observation) -> (A,) probabilities or an action, not {type(policy)}"
            )
        return super().checked_policy(policy)

    def begin(self, chunk: Chunk) -> Any:
        self.width = len(chunk.plan.names)
        self.actions = Numbers()
        count = chunk.size * self.width
        self.envs += [self.envs[0].twin() for _ in range(count - len(self.envs))]
        for number, env in enumerate(self.envs[:count]):
            env.np_random = np.random.default_rng(checks.part(chunk.seed, 3, number))
            if number % self.width == 0:
                env.restore(self.snapshot)
        return np.tile(np.arange(0, count, self.width), (self.width, 1))

    def seen(self, state: int) -> Any:
        return self.envs[state].observed

    def outcomes(self, groups: Groups, rng: Any) -> list[Result]:
        here: list[int] = []  # where branches are after the step
        results: list[Result] = []
        for number, action, branches in self._placed(groups):
            reward, terminated, truncated = self._step_one(self.envs[number], action)
            ended = terminated or truncated
            met = [k for k in here if not ended and self.envs[k].same_state(self.envs[number])]
            here += [] if ended or met else [number]
            cut = truncated and not terminated
            results.append((branches, reward, met[0] if met else number, ended, cut))
        return results

    def _placed(self, groups: Groups) -> list[tuple[int, int, list[int]]]:
        """An environment for every action that is played, in its state and with its draw.

        It is that of the first branch that plays it. So a state has the number of the environment
        of the first branch there, and those of the other branches are free.
        """
        placed = []
        draw = None
        for number, asked in groups:
            home = self.envs[number]
            if self.coupling.across_states and draw is not None:
                home.redraw(draw)
            draw = home.draw
            for action, branches in asked.items():
                own = number - number % self.width + branches[0]
                if own != number:
                    given = draw if self.coupling.at_one_state else None
                    self.envs[own].restore(home.snapshot()._replace(draw=given))
                placed.append((own, action, branches))
        return placed

    def _step_one(self, env: Any, number: int) -> tuple[float, bool, bool]:
        action = number if self.num_actions else self.actions.things[number]
        seen = env.observed
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            where = f"state {env.observed}, action {action}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        low, high = self.limits or ANY_REWARD
        if not low <= reward <= high:
            self.refuse(reward, action, seen)
        return reward, terminated, truncated


def _listed(space: Any) -> int | None:
    """How many elements a Gymnasium space has, where these are numbers from 0 on."""
    return int(space.n) if type(space).__name__ == "Discrete" and space.start == 0 else None


def _check_hashable(state: Any) -> None:
    """Refuse what cannot be a state where states have no numbers."""
    try:
        hash(state)
    except TypeError:
        raise ValueError(f"state must be hashable, such as a tuple, got {state!r}") from None


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
    keys = {action_key(space, action): action for action in chosen}
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
