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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import progress
from jmdp_lib.model import COUPLINGS
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.worlds import Chooser, World, world_of

_LONGEST = 10**6  # steps of a run, unless a horizon is given


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


class _Visit(NamedTuple):
    """The groups of branches at one place. actions: those they play; members: who plays each."""

    place: Any
    seen: Any
    previous: Any
    actions: list[Any]
    members: list[tuple[int, ...]]


Choice = Callable[[int, int, Any], Any]
"""choose(t, i, seen): the action at time t of branch i, which sees this."""


def play_branches(
    world: World, actions: Sequence[Any], choose: Choice, horizon: int,
    coupling: str = "joint", until_one: bool = False,
) -> Iterator[list[list[Move]]]:  # fmt: skip
    """Branches from a world's start, one for each of `actions`: the moves of every time step.

    Moves at one state are in one list. choose: asked from time 1 on.
    until_one: stop before a step that all branches would make as one.
    """
    here: list[tuple[Any, list[tuple[int, ...]]]]
    here = [(world.start(), [(i,) for i in range(len(actions))])]
    for t in range(horizon):

        def chosen(branch: int, seen: Any, t: int = t) -> Any:
            return choose(t, branch, seen) if t else actions[branch]

        visits = [_choose(world, place, groups, chosen) for place, groups in here]
        if until_one and t and len(visits[0].members[0]) == len(actions):
            return
        moves, here = _step(world, visits, coupling)
        yield moves
        if not here:
            return


def _choose(
    world: World, place: Any, groups: list[tuple[int, ...]], chosen: Callable[[int, Any], Any]
) -> _Visit:
    """Let each group at a place choose: those that choose the same action are one from now on."""
    seen = world.seen(place)
    merged: dict[Any, tuple[Any, tuple[int, ...]]] = {}
    for members in groups:
        action = chosen(members[0], seen)
        key = world.key(action)
        first, before = merged.get(key, (action, ()))
        merged[key] = (first, before + members)
    played = [action for action, _ in merged.values()]
    who = [members for _, members in merged.values()]
    return _Visit(place, seen, getattr(place, "previous", None), played, who)


def _step(
    world: World, visits: list[_Visit], coupling: str
) -> tuple[list[list[Move]], list[tuple[Any, list[tuple[int, ...]]]]]:
    """One time step: the moves at every place, and the groups at every place that is reached."""
    moves: list[list[Move]] = []
    reached: list[tuple[Any, list[tuple[int, ...]]]] = []
    asked = [(visit.place, visit.actions) for visit in visits]
    for visit, steps in zip(visits, world.play(asked, coupling), strict=True):
        moves.append([])
        for action, members, step in zip(visit.actions, visit.members, steps, strict=True):
            before = (visit.seen, visit.previous)
            moves[-1].append(Move(members, action, step.reward, step.over, *before))
            if step.over:
                continue
            met = [groups for place, groups in reached if world.same(place, step.place)]
            if met:
                met[0].append(members)
            else:
                reached.append((step.place, [members]))
    return moves, reached


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
    """What all runs of a comparison of actions have in common; it pickles if its parts do."""

    world: World
    chooser: Chooser
    actions: list[Any]
    gamma: float
    horizon: int
    coupling: str

    @classmethod
    def of(
        cls, env: Any, policy: Any, actions: Sequence[Any], state: Any, gamma: float | None,
        coupling: str, truncation: float, horizon: int | None,
    ) -> Branches:  # fmt: skip
        """Arguments as of `estimate_gaps`, checked; the policy is tried out once."""
        checks.one_of("coupling", coupling, COUPLINGS)
        gamma = checks.discount(getattr(env, "gamma", 0.99) if gamma is None else gamma)
        if horizon is None:
            other = "pass horizon=, or a smaller gamma="
            horizon = checks.derived_horizon(gamma, truncation, _LONGEST, other)
        horizon = checks.at_least("horizon", horizon, 1)
        _check_order(policy)
        world = world_of(env, actions, state, coupling)
        made = cls(world, world.chooser(policy), world.actions, gamma, horizon, coupling)
        made.chooser.draw(world.first_seen, np.random.default_rng(0))
        return made

    @property
    def most_queries(self) -> int:
        """Queries that a run may need: at first all branches are at one state."""
        size = len(self.actions)
        first = size if self.coupling == "independent" else 1
        return first + (self.horizon - 1) * size

    def play(
        self, rng: np.random.Generator, until_one: bool = False,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Run:  # fmt: skip
        """One run; a reward outside of the limits is refused."""
        returns = [0.0] * len(self.actions)
        labels = np.arange(len(self.actions))
        rewards: list[float] = []
        weight = 1.0
        queries = 0
        steps = 0
        for places in self._moves(rng, until_one):
            for members, action, reward, over, seen, _ in (m for place in places for m in place):
                _check_reward(reward, action, seen, limits)
                for i in members:
                    returns[i] += weight * reward
                    labels[i] = -1 if over else members[0]
                rewards += [reward, 0.0] if over else [reward]
            alone = self.coupling == "independent"  # then every action is a query of its own
            queries += sum(len(place) for place in places) if alone else len(places)
            weight *= self.gamma
            steps += 1
        if steps < self.horizon:  # all have ended, or are one
            labels[:] = labels.max()
        return Run(np.array(returns), labels, (min(rewards), max(rewards)), queries)

    def _moves(self, rng: np.random.Generator, until_one: bool) -> Iterator[list[list[Move]]]:
        """The moves of every time step; if the simulator fails, the error says in which."""

        def choose(t: int, branch: int, seen: Any) -> Any:
            return self.chooser.draw(seen, rng)

        steps = 0
        try:
            for moves in play_branches(
                self.world, self.actions, choose, self.horizon, self.coupling, until_one
            ):
                yield moves
                steps += 1
        except SimulatorError as error:
            raise SimulatorError(f"step {steps + 1}: {error}") from error

    def check_pickles(self) -> None:
        """Refuse what cannot be sent to other processes, by name."""
        for name, part in (("env", self.world), ("policy", self.chooser)):
            try:
                pickle.dumps(part)
            except Exception as error:
                raise ValueError(
                    f"{name} does not pickle, as processes > 1 needs: {error}. A function must be "
                    "defined by `def` at the top of a module; or use processes=1"
                ) from None

    def play_runs(
        self, root: np.random.SeedSequence, first: int, last: int, with_progress: bool
    ) -> tuple[list[Run], str | None]:
        """Runs first to last - 1, or those before the simulator failed and why it did."""
        played: list[Run] = []
        with progress(last - first if with_progress else 0, "estimate_gaps", unit="run") as bar:
            for number in range(first, last):
                seed = checks.seed_sequence(root, number)
                rng = np.random.default_rng(seed.spawn(1)[0])
                self.world.seed(seed)
                try:
                    played.append(self.play(rng))
                except SimulatorError as error:
                    return played, f"run {number}: {error}"
                bar.update()
        return played, None


def _check_order(policy: Any) -> None:
    """Refuse what can only be a state: the policy comes before the actions, the state after."""
    snapshot = hasattr(policy, "observation")
    if policy is None or snapshot or (not callable(policy) and np.ndim(policy) == 0):
        raise ValueError(
            "policy must be probabilities (S, A), actions (S,), or a function of what is seen that "
            f"returns either for it, got {'a snapshot' if snapshot else repr(policy)}. The order "
            "of arguments is (env, policy, actions, state=...)"
        )


def _check_reward(reward: float, action: Any, seen: Any, limits: tuple[float, float]) -> None:
    if not limits[0] <= reward <= limits[1]:
        raise SimulatorError(
            f"reward {reward} of action {action} in state {seen} is not in reward_range {limits}"
        )
