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
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.large.implicit import ImplicitJMDP
from jmdp_lib.model import require_noise
from jmdp_lib.model.simulator import (
    ANY_REWARD,
    CheckedQueries,
    SimulatorError,
    check_simulator,
    check_unnumbered,
    draw_index,
)
from jmdp_lib.simulators.batch import BatchPlayer
from jmdp_lib.simulators.plans import Asked, Plan, Runs
from jmdp_lib.simulators.policies import policy_table
from jmdp_lib.simulators.vector_simulator import Arrays, Played

_MOST_KEPT = 100_000  # states whose tables are kept
_DISCOUNTS = "[0, 1]"  # what a simulator may have here: 1 for runs of a stated horizon

Groups = list[tuple[int, dict[int, list[int]]]]
"""Of one run, for every draw: the state, the actions that are played, and by which branches."""


@dataclass(frozen=True, eq=False)
class RowPolicy:
    """A policy that is asked for one state at a time.

    policy: a function, or an array by states. num_actions: A, or None where the policy returns
    actions that have no numbers. first_action, first_state: the numbers from which these count.
    rows: what `steps` says of every state, if it is known.
    """

    policy: Any
    num_actions: int | None
    first_action: int = 0
    first_state: int = 0
    rows: list[list[float]] | None = None

    @classmethod
    def of_table(cls, table: Floats, first_action: int = 0, first_state: int = 0) -> RowPolicy:
        """Probabilities (S, A)."""
        rows = table[:, :-1].cumsum(1).tolist()
        return cls(table, table.shape[1], first_action, first_state, rows)

    def on(self, arrays: Arrays) -> RowPolicy:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowPolicy):
            return False
        if not callable(self.policy):
            return not callable(other.policy) and np.array_equal(self.policy, other.policy)
        return callable(other.policy) and bool(self.policy == other.policy)

    def steps(self, seen: Any) -> list[float]:
        """Cumulative probabilities, for what is seen, of all actions but the last."""
        assert self.num_actions is not None
        if self.rows is not None:
            return self.rows[seen - self.first_state]
        probs = checks.policy_row(self.policy, seen, self.num_actions, self.first_action)
        steps: list[float] = probs[:-1].cumsum().tolist()
        return steps

    def try_out(self, seen: Any) -> None:
        """Ask twice, where there is a right answer."""
        if self.num_actions is None:
            self.policy(checks.read_only(seen))
        elif self.rows is None:
            checks.policy_rows(self.policy, [seen], self.num_actions, self.first_action)


class RowPlayer(BatchPlayer):
    """Plays rows one after the other."""

    arrays = Arrays(np, "cpu")
    chunk_size = 128  # few, since a simulator that fails takes all of them with it
    least_runs = 16
    sums_chunks = False
    limits = ANY_REWARD
    coupling = "joint"
    episodes_end = False

    @abstractmethod
    def seen(self, state: int) -> Any:
        """What a policy sees at a state."""

    @abstractmethod
    def outcomes(self, groups: Groups, rng: Any) -> Iterator[tuple[list[int], float, int, bool]]:
        """What a step of a run does to branches: their reward, next state, and whether it ends."""

    def answers(self, policy: RowPolicy) -> dict[int, Any]:
        """What a policy is known to say of states."""
        return {}

    def generator(self, seed: np.random.SeedSequence) -> np.random.Generator:
        return np.random.default_rng(seed)

    def try_out(self, plan: Plan) -> None:
        """Ask every policy twice for the state where all branches start."""
        self.begin(plan, 1, np.random.SeedSequence(0))
        seen = self.seen(int(self.start(1, 1)[0, 0]))
        for number, policy in enumerate(plan.policies):
            try:
                policy.try_out(seen)
            except ValueError as error:
                which = "" if plan.first else f"policies[{plan.kinds.index(number)}]: "
                raise ValueError(f"{which}{error}") from None

    def own(self) -> RowPlayer:
        return copy.deepcopy(self)

    def play(self, plan: Plan, seed: np.random.SeedSequence, size: int, asked: Asked) -> Runs:
        self.limits = asked.limits or ANY_REWARD
        self.coupling = plan.settings.coupling
        return super().play(plan, seed, size, asked)

    def choose(self, policy: Any, states: Any, going: Any, uniforms: Any) -> tuple[Any, Any]:
        known = self.answers(policy)
        actions = []
        for state, goes, number in zip(
            states.tolist(), going.tolist(), uniforms.tolist(), strict=True
        ):
            if goes and state not in known:
                seen = self.seen(state)
                if policy.num_actions is None:
                    known[state] = self.number_of(policy.policy(checks.read_only(seen)))
                else:
                    known[state] = policy.steps(seen)
            answer = known[state] if goes else 0
            actions.append(bisect_right(answer, number) if isinstance(answer, list) else answer)
        return np.array(actions), None

    def step(self, states: Any, actions: Any, going: Any, together: Any, rng: Any) -> Played:
        rewards = []
        following = []
        over = []
        columns = (part.T.tolist() for part in (states, actions, going))
        for reached, chosen, goes in zip(*columns, strict=True):
            earned = [0.0] * len(goes)
            ended = [False] * len(goes)
            groups = self._groups(reached, chosen, goes)
            for branches, reward, after, end in self.outcomes(groups, rng) if groups else ():
                for branch in branches:
                    earned[branch] = reward
                    reached[branch] = after
                    ended[branch] = end
            rewards.append(earned)
            following.append(reached)
            over.append(ended)
        found = np.array(rewards).T
        if not going.all():  # these are not looked at, but must not be the extremes
            found[~going] = found[going][0]
        return Played(found, np.array(following).T, np.array(over).T if self.episodes_end else None)

    def _groups(self, states: list[int], actions: list[int], going: list[bool]) -> Groups:
        """What is asked of the simulator in a step of a run, which the coupling says."""
        alone = self.coupling == "independent"
        found: dict[Any, dict[int, list[int]]] = {}
        for branch, action in enumerate(actions):
            if going[branch]:
                key = (states[branch], alone and action)
                found.setdefault(key, {}).setdefault(action, []).append(branch)
        return [(state, asked) for (state, _), asked in found.items()]

    def check_reward(self, reward: float, action: Any, state: Any) -> None:
        low, high = self.limits
        if not low <= reward <= high:
            raise SimulatorError(
                f"reward {reward} of action {action} in state {state} is not in reward_range "
                f"{self.limits}"
            )


class QueriedPlayer(RowPlayer):
    """Plays a simulator with `query(state, actions, rng)`; its states get numbers here.

    A simulator without `num_states` has states of any hashable kind. It must be pure, as
    `model.simulator.Simulator` says: with one draw for all branches all queries of a time step
    meet equal generators.
    """

    def __init__(self, simulator: Any, state: Any) -> None:
        self.simulator = simulator
        self.first = state
        self.num_states = getattr(simulator, "num_states", None)
        if self.num_states is None:
            check_unnumbered(simulator, state, _DISCOUNTS)
        else:
            known = check_simulator(simulator, _DISCOUNTS)
            self.first = checks.index("state", state, known.num_states)
        self.num_actions = simulator.num_actions
        self.ask = CheckedQueries(simulator).ask
        self.shared = np.random.default_rng(0)
        self.moment = self.shared.bit_generator.state
        self.states: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.said: dict[int, dict[int, Any]] = {}

    def checked_policy(self, policy: Policy) -> RowPolicy:
        if callable(policy) or self.num_states is None:
            return RowPolicy(policy, self.num_actions)
        return RowPolicy.of_table(policy_table(policy, self.num_actions, self.num_states))

    def begin(self, plan: Plan, size: int, seed: np.random.SeedSequence) -> None:
        self.states = []
        self.numbers = {}
        self.said = {}

    def answers(self, policy: RowPolicy) -> dict[int, Any]:
        return self.said.setdefault(id(policy), {})

    def number(self, state: Any) -> int:
        """Of a state."""
        number = self.numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    def seen(self, state: int) -> Any:
        return self.states[state]

    def start(self, width: int, size: int) -> Any:
        return np.full((width, size), self.number(self.first))

    def outcomes(self, groups: Groups, rng: Any) -> Iterator[tuple[list[int], float, int, bool]]:
        common = self.coupling == "common"
        if common:  # one generator in one state, which is drawn for the time step
            draw = rng.bit_generator.random_raw
            self.moment["state"]["state"] = draw() << 64 | draw()
        for number, asked in groups:
            if common:
                self.shared.bit_generator.state = self.moment
            state = self.states[number]
            answer = self.ask(state, [*asked], self.shared if common else rng)
            for (reward, after), (action, branches) in zip(answer, asked.items(), strict=True):
                self.check_reward(reward, action, state)
                yield branches, reward, self.number(after), False


class KeptTables:
    """An `ImplicitJMDP` as a simulator that keeps tables, since asking takes longer than drawing.

    With coupling="common" all states must have one law of tables; those that are met are checked.
    """

    def __init__(self, model: ImplicitJMDP, coupling: str) -> None:
        self.common = coupling == "common"
        if self.common:
            require_noise(model)
        self.model = model
        self.num_actions = model.num_actions
        self.gamma = model.gamma
        self.law: Floats | None = None
        self.kept: dict[Hashable, tuple[list[float], list[list[float]], list[Hashable]]] = {}

    def query(
        self, state: Any, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[float], list[Any]]:
        """The outcomes of the actions, from one of the tables of the state."""
        if state not in self.kept:
            if len(self.kept) >= _MOST_KEPT:
                self.kept.clear()
            probs, table_rewards, reached = self.model.at(state)
            self._check_law(state, probs)
            self.kept[state] = (probs.cumsum().tolist(), table_rewards.tolist(), reached)
        cumulative, rewards, successors = self.kept[state]
        table = draw_index(cumulative, rng)
        first = table * self.num_actions
        return [rewards[table][a] for a in actions], [successors[first + a] for a in actions]

    def _check_law(self, state: Any, probs: Floats) -> None:
        """Refuse a state whose tables are not those of the one noise that all states share."""
        law = probs if self.law is None else self.law
        self.law = law
        if self.common and (law.size != probs.size or np.abs(law - probs).max() > 1e-12):
            raise ValueError(
                "coupling 'common' needs one law of tables for all states: state "
                f"{state!r} has the probabilities {probs.round(6)}, the first one {law.round(6)}"
            )


class EnvironmentPlayer(RowPlayer):
    """Plays environments that are alike; a state is the number of one that stands there.

    Every run has an environment for each of its branches. Branches that meet go on in that of the
    first.

    envs: one or more. start: a snapshot of theirs.
    """

    chunk_size = 32
    least_runs = 8
    episodes_end = True

    def __init__(self, envs: list[Any], start: Any) -> None:
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.envs = envs
        self.width = len(envs)
        self.space = envs[0].action_space
        self.listed = type(self.space).__name__ == "Discrete"
        self.num_actions = int(self.space.n) if self.listed else None
        self.first_action = int(self.space.start) if self.listed else 0
        self.actions: dict[str, int] = {}
        self.played: list[Any] = []

    @classmethod
    def of(cls, env: Any, state: Any) -> EnvironmentPlayer:
        """From a snapshot, or from where the environment is. It is left alone."""
        start = _inside_episode(env, state)
        return cls([env.twin()], start)

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        return list(distinct_in(self.space, actions).values())

    def number_of(self, action: Any) -> int:
        if self.listed:
            return int(action) - self.first_action
        key = action_key(self.space, action)
        if key not in self.actions:
            self.actions[key] = len(self.played)
            self.played.append(action)
        return self.actions[key]

    def checked_policy(self, policy: Policy) -> RowPolicy:
        count = self.num_actions
        if callable(policy):
            return RowPolicy(policy, count, self.first_action)
        sees = self.envs[0].observation_space
        if count is None or type(sees).__name__ != "Discrete":
            answer = "an action" if count is None else f"({count},) probabilities or an action"
            raise ValueError(
                "the policy must be a function where observations or actions have no numbers, "
                f"policy(observation) -> {answer}, not {type(policy).__name__}"
            )
        table = policy_table(policy, count, int(sees.n))
        return RowPolicy.of_table(table, self.first_action, int(sees.start))

    def begin(self, plan: Plan, size: int, seed: np.random.SeedSequence) -> None:
        self.width = len(plan.names)
        known = 1 + max(plan.first, default=-1)
        del self.played[known:]
        self.actions = dict(islice(self.actions.items(), known))
        missing = size * self.width - len(self.envs)
        self.envs += [self.envs[0].twin() for _ in range(missing)]
        for number, env in enumerate(self.envs[: size * self.width]):
            env.np_random = checks.generator(seed, 3, number)

    def start(self, width: int, size: int) -> Any:
        numbers = np.arange(size) * self.width
        for number in numbers:
            self.envs[number].restore(self.snapshot)
        return np.tile(numbers, (width, 1))

    def seen(self, state: int) -> Any:
        return self.envs[state].observed

    def outcomes(self, groups: Groups, rng: Any) -> Iterator[tuple[list[int], float, int, bool]]:
        here: list[int] = []  # where branches are after the step
        for number, action, branches in self._placed(groups):
            reward, ended = self._step_one(self.envs[number], action)
            met = [k for k in here if not ended and self.envs[k].same_state(self.envs[number])]
            here += [] if ended or met else [number]
            yield branches, reward, met[0] if met else number, ended

    def _placed(self, groups: Groups) -> list[tuple[int, int, list[int]]]:
        """An environment for every action that is played, in its state and with its draw.

        It is that of the first branch that plays it. So a state has the number of the environment
        of the first branch there, and those of the other branches are free.
        """
        placed = []
        draw = None
        for number, asked in groups:
            home = self.envs[number]
            if self.coupling == "common" and draw is not None:
                home.redraw(draw)
            draw = home.draw
            for action, branches in asked.items():
                own = number - number % self.width + branches[0]
                if own != number:
                    given = None if self.coupling == "independent" else draw
                    self.envs[own].restore(home.snapshot()._replace(draw=given))
                placed.append((own, action, branches))
        return placed

    def _step_one(self, env: Any, number: int) -> tuple[float, bool]:
        action = number + self.first_action if self.listed else self.played[number]
        seen = env.observed
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            where = f"state {env.observed}, action {action}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        self.check_reward(reward, action, seen)
        return reward, terminated or truncated


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
