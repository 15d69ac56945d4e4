"""Recursive branches on any simulator.

Several branches start at one state, each with an action of its own, and follow the policy from
then on. While branches are at one state they read one outcome table; at distinct states their
tables are independent; branches at one state with one action are one branch for good. With
coupling="independent" distinct actions of a state have tables of their own; with "common" there is
one draw per time step for all branches, wherever they are. Next actions are always drawn
independently. A branch whose episode has ended earns nothing more.
"""

from __future__ import annotations

import math
import pickle
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import progress
from jmdp_lib.model import COUPLINGS, JMDP, checked_coupling
from jmdp_lib.model.queries import Simulator, SimulatorError, check_simulator, checked_query

_LONGEST = 10**6  # steps of a run, unless a horizon is given


class Queried:
    """The world of a JMDP, or of a simulator with `query(state, actions, rng)`; states are numbers.

    A world is an adapter for a kind of simulator. `seed` sets its generators. `start` gives the
    state where all branches start. `key` is equal for equal actions. `play` plays distinct actions
    at distinct states, which are pairs [(state, actions)], for one time step: (reward, over, next
    state) for each action.
    """

    def __init__(self, simulator: Simulator, state: int) -> None:
        self.simulator, self.state = simulator, state

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.rng = np.random.default_rng(seed)

    def start(self) -> int:
        return self.state

    def key(self, action: int) -> int:
        return action

    def play(self, places: list[Any], coupling: str) -> Iterator[list[Any]]:
        draw = int(self.rng.integers(2**63)) if coupling == "common" else None
        for x, actions in places:
            found = []
            for asked in [[a] for a in actions] if coupling == "independent" else [actions]:
                rng = self.rng if draw is None else np.random.default_rng(draw)
                found += checked_query(self.simulator, x, asked, rng)
            yield [(reward, False, y) for reward, y in found]


class Played:
    """The world of environments that are alike: a branch is where an environment of its own is."""

    def __init__(self, envs: Sequence[Any], start: Any) -> None:
        self.envs, self.state = envs, start._replace(draw=None)  # each play has its own tables

    def seed(self, seed: np.random.SeedSequence) -> None:
        for env, own in zip(self.envs, seed.spawn(len(self.envs)), strict=True):
            env.np_random = np.random.default_rng(own)

    def start(self) -> Any:
        self.envs[0].restore(self.state)
        return self.envs[0]

    def key(self, action: Any) -> str:
        return checks.action_key(self.envs[0].action_space, action)

    def play(self, places: list[Any], coupling: str) -> Iterator[list[Any]]:
        idle = [env for env in self.envs if not any(env is x for x, _ in places)]
        players = [[x, *(idle.pop() for _ in actions[1:])] for x, actions in places]
        for x, *others in players:
            for env in others:
                here = x.snapshot()  # the drawn table included
                env.restore(here._replace(draw=None) if coupling == "independent" else here)
        if coupling == "common":
            for env in [env for envs in players for env in envs][1:]:
                env.redraw(players[0][0].draw)
        for envs, (_, actions) in zip(players, places, strict=True):
            yield [self._step(env, action) for env, action in zip(envs, actions, strict=True)]

    def _step(self, env: Any, action: Any) -> tuple[float, bool, Any]:
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            where = f"state {env.observed}, action {action}"
            raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
        return reward, bool(terminated or truncated), env


class Move(NamedTuple):
    """What branches that are one did in a time step. members: their numbers.

    seen, previous: before it; previous is the last action where an environment says which.
    """

    members: tuple[int, ...]
    action: Any
    reward: float
    over: bool
    seen: Any
    previous: Any


def play_branches(
    world: Any, actions: Sequence[Any], choose: Callable[[int, int, Any], Any], horizon: int,
    coupling: str = "joint", until_one: bool = False,
) -> Iterator[list[list[Move]]]:  # fmt: skip
    """Branches from a world's start, one for each of `actions`: the moves of every time step.

    Moves at one state are in one list. choose(t, i, seen): the action at time t > 0 of branch i.
    until_one: stop before a step that all branches would make as one.
    """
    here: list[Any] = [(world.start(), [(i,) for i in range(len(actions))])]
    for t in range(horizon):
        plays, told = [], list[list[Move]]()
        for x, groups in here:
            merged: dict[Any, Any] = {}  # who chooses the same action is one branch from now on
            seen = getattr(x, "observed", x)
            for members in groups:
                action = choose(t, members[0], seen) if t else actions[members[0]]
                merged.setdefault(world.key(action), [action, ()])[1] += members
            before = (seen, getattr(x, "previous", None))
            plays.append((x, before, [*merged.values()]))
        if until_one and t and len(plays[0][2][0][1]) == len(actions):
            return
        asked = [(x, [action for action, _ in moves]) for x, _, moves in plays]
        here = []
        for (_, before, moves), place in zip(plays, world.play(asked, coupling), strict=True):
            told.append([])
            for (action, members), (reward, over, y) in zip(moves, place, strict=True):
                told[-1].append(Move(members, action, reward, over, *before))
                met = [groups for z, groups in here if not over and _same(z, y)]
                if met:
                    met[0].append(members)
                elif not over:
                    here.append((y, [members]))
        yield told
        if not here:
            return


def _same(x: Any, y: Any) -> bool:
    return bool(x.same_state(y) if hasattr(x, "same_state") else x == y)


def _start(env: Any, state: Any) -> Any:
    """The snapshot of an environment, or of where it is, inside an episode."""
    start = env.snapshot() if state is None else state
    if not hasattr(start, "observation"):
        raise ValueError(f"state must be a snapshot inside an episode, env.snapshot(), not {start}")
    if start.over and state is None:
        raise ValueError("env is outside of an episode: call env.reset() first")
    if start.over:
        raise ValueError("state must be a snapshot inside an episode, and this one is outside")
    return start


def _check_function(policy: Any, space: Any) -> None:
    """Refuse an array as the policy of an environment, and say what is needed instead."""
    if not callable(policy):
        discrete = type(space).__name__ == "Discrete"
        raise ValueError(
            "the policy of an environment must be a function, policy(observation) -> "
            f"{f'({space.n},) probabilities' if discrete else 'an action'}, "
            f"not {type(policy).__name__}"
        )


class Run(NamedTuple):
    """One run of m branches.

    returns: (m,) up to the horizon. labels: (m,) equal where branches have the same future: where
    they are one, or have ended (-1). extremes: the lowest and the highest reward, and 0 once an
    episode ended. queries: of several actions at one state, or of one.
    """

    returns: Floats
    labels: Ints
    extremes: tuple[float, float]
    queries: int


@dataclass(frozen=True)
class Branches:
    """What all plays of a comparison of actions have in common; it pickles if its parts do.

    policy: a function of what is seen, or the cumulative probabilities of every state. num_actions:
    A, or None where the policy returns the action itself; first: number of the first action.
    """

    world: Queried | Played
    policy: Callable[[Any], Any] | list[list[float]]
    num_actions: int | None
    first: int
    actions: list[Any]
    gamma: float
    horizon: int
    coupling: str

    @classmethod
    def of(
        cls, env: Any, policy: Any, actions: Sequence[Any], gamma: float | None, state: Any,
        coupling: str, truncation: float, horizon: int | None,
    ) -> Branches:  # fmt: skip
        """Arguments as of `estimate_gaps`, checked; the policy is tried out once."""
        checks.one_of("coupling", coupling, COUPLINGS)
        gamma = checks.discount(getattr(env, "gamma", 0.99) if gamma is None else gamma)
        if horizon is None:
            other = "pass horizon=, or a smaller gamma="
            horizon = checks.derived_horizon(gamma, truncation, _LONGEST, other)
        horizon, count, first = checks.at_least("horizon", horizon, 1), None, 0
        if isinstance(env, Simulator):
            seen = checks.index("state", state, check_simulator(env).num_states)
            count, chosen = env.num_actions, checks.distinct_actions(actions, env.num_actions)
            if not callable(policy):
                policy = np.cumsum(checks.policy_matrix(env, policy), axis=1).tolist()
            if isinstance(env, JMDP):
                checked_coupling(env, coupling)
            world: Queried | Played = Queried(env, seen)
        elif hasattr(env, "twin"):
            start = _start(env, state)
            _check_function(policy, env.action_space)
            space, seen = env.action_space, start.observation
            chosen = list(checks.distinct_in(space, actions).values())
            if type(space).__name__ == "Discrete":
                count, first = int(space.n), int(space.start)
            world = Played([env.twin() for _ in chosen], start)
        else:
            raise ValueError(
                f"{env!r} is no simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, or "
                "have num_states, num_actions, gamma and query"
            )
        made = cls(world, policy, count, first, chosen, gamma, horizon, coupling)
        made.act(np.random.default_rng(0), seen)
        return made

    def act(self, rng: np.random.Generator, seen: Any) -> Any:
        """An action of the policy."""
        if isinstance(self.policy, list):
            return min(bisect(self.policy[seen], rng.random()), len(self.policy[seen]) - 1)
        answer = self.policy(seen)
        if self.num_actions is None:
            return answer
        try:
            probs = checks.distributions("policy", answer, action=self.num_actions)
        except (TypeError, ValueError):  # only a message names what was seen: printing it is slow
            probs = checks.distributions(f"policy({seen!r})", answer, action=self.num_actions)
        return self.first + int(np.searchsorted(np.cumsum(probs)[:-1], rng.random(), "right"))

    def play(
        self, rng: np.random.Generator, until_one: bool = False,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Run:  # fmt: skip
        """One run; a reward outside of the limits is refused."""
        returns, labels = [0.0] * len(self.actions), np.arange(len(self.actions))
        weight, rewards, queries, steps = 1.0, list[float](), 0, 0
        for moves in self._moves(rng, until_one):
            for members, action, reward, over, seen, _ in (m for place in moves for m in place):
                if not limits[0] <= reward <= limits[1]:
                    raise SimulatorError(
                        f"reward {reward} of action {action} in state {seen} is not in "
                        f"reward_range {limits}"
                    )
                for i in members:
                    returns[i] += weight * reward
                    labels[i] = -1 if over else members[0]
                rewards += [reward, 0.0] if over else [reward]
            weight, queries, steps = weight * self.gamma, queries + len(moves), steps + 1
        if steps < self.horizon:  # all have ended, or are one
            labels[:] = labels.max()
        return Run(np.array(returns), labels, (min(rewards), max(rewards)), queries)

    def _moves(self, rng: np.random.Generator, until_one: bool) -> Iterator[list[list[Move]]]:
        """The moves of every time step; if the simulator fails, the error says in which."""
        steps = 0
        try:
            for moves in play_branches(
                self.world, self.actions, lambda t, i, seen: self.act(rng, seen), self.horizon,
                self.coupling, until_one,
            ):  # fmt: skip
                yield moves
                steps += 1
        except SimulatorError as error:
            raise SimulatorError(f"step {steps + 1}: {error}") from error

    def check_pickles(self) -> None:
        """Refuse what cannot be sent to other processes, by name."""
        for name, part in (("env", self.world), ("policy", self.policy)):
            try:
                pickle.dumps(part)
            except Exception as error:
                raise ValueError(
                    f"{name} does not pickle, as processes > 1 needs: {error}. A function must be "
                    "defined by `def` at the top of a module; or use processes=1"
                ) from None

    def several(
        self, root: np.random.SeedSequence, first: int, last: int, watched: bool
    ) -> tuple[list[Run], str | None]:
        """Plays first to last - 1, or those before the simulator failed and why it did."""
        played: list[Run] = []
        with progress(last - first if watched else 0, "estimate_gaps", unit="pair") as bar:
            for number in range(first, last):
                seed = checks.seed_sequence(root, number)
                rng = np.random.default_rng(seed.spawn(1)[0])
                self.world.seed(seed)
                try:
                    played.append(self.play(rng))
                except SimulatorError as error:
                    return played, f"play {number}: {error}"
                bar.update()
        return played, None
