"""Recursive branches on any simulator.

Several branches start at one state, each with an action of its own, and follow one policy from then
on; or each follows a policy of its own from the start. While branches are at one state they read
one outcome table; at distinct states their tables are independent. With coupling="independent"
distinct actions of a state have tables of their own; with "common" there is one draw per time step
for all branches, wherever they are.

Branches at one state with one action are at one *state-action*: they get one reward, go to one
state, and draw their next actions there with one uniform number, each by its own policy. Branches
that come from distinct state-actions draw with independent numbers. So branches of one policy that
have come together are one for good, and branches of several policies are one until these choose
differently. A branch whose episode has ended earns nothing more.
"""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import progress
from jmdp_lib.model import COUPLINGS
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.worlds import ENDED, Chooser, Step, Visit, World, copy_of, world_of

_LONGEST = 10**6  # steps of a run, unless a horizon is given
_AT_ONCE = 32  # uniform numbers


Members = tuple[int, ...]
"""Numbers of branches, which are one for a step, or for good."""

Here = list[tuple[Any, list[Members]]]
"""Distinct places, each with the groups of branches there; a group comes from one state-action."""

Moves = tuple[list[Visit], list[list[Step]]]
"""What is done at every place in a time step, and what it led to."""


class Choices(Protocol):
    """How branches choose their actions."""

    @property
    def as_one(self) -> bool:
        """Whether branches that come from one state-action always choose alike."""

    def alone(self, t: int, branch: int, seen: Any) -> Any:
        """The action at time t > 0 of a branch, and of those that are one with it."""

    def together(self, t: int, members: Members, seen: Any) -> list[tuple[Any, Members]]:
        """The actions at time t of branches that come from one state-action, with who takes each.

        At time 0 these are all branches.
        """


def play_branches(
    world: World, num_branches: int, choices: Choices, horizon: int,
    coupling: str = "joint", until_one: bool = False,
) -> Iterator[Moves]:  # fmt: skip
    """Branches from a world's start: the moves of every time step.

    until_one: stop before a step that all branches would make as one.
    """
    see = world.seen
    same = world.same
    as_one = choices.as_one
    alone = choices.alone
    here: Here = [(world.start(), [tuple(range(num_branches))])]
    for t in range(horizon):
        visits: list[Visit] = []
        for place, groups in here:
            seen = see(place)
            if t and len(groups) == 1 and (as_one or len(groups[0]) == 1):  # the usual case
                visits.append((place, [alone(t, groups[0][0], seen)], groups, seen))
            else:
                visits.append(_meeting(world, place, groups, seen, t, choices))
        if until_one and t and len(visits[0][2][0]) == num_branches:
            return
        outcomes = world.play(visits, coupling)
        yield visits, outcomes
        here = []
        for visit, steps in zip(visits, outcomes, strict=True):
            for members, (_, place) in zip(visit[2], steps, strict=True):
                if place is ENDED:
                    continue
                for other, groups in here:
                    if same(other, place):
                        groups.append(members)
                        break
                else:
                    here.append((place, [members]))
        if not here:
            return


def _meeting(
    world: World, place: Any, groups: list[Members], seen: Any, t: int, choices: Choices
) -> Visit:
    """Let the groups at a place choose: those that choose one action are at one state-action."""
    actions: dict[Any, Any] = {}
    who: dict[Any, Members] = {}
    for group in groups:
        for action, members in choices.together(t, group, seen):
            key = world.key(action)
            actions.setdefault(key, action)
            who[key] = who.get(key, ()) + members
    return place, [*actions.values()], [*who.values()], seen


def uniforms_of(rng: np.random.Generator) -> Iterator[float]:
    """The numbers of `rng.random()` one by one, drawn many at a time since that is faster."""
    while True:
        yield from rng.random(_AT_ONCE).tolist()


class Run(NamedTuple):
    """One run of m branches.

    returns: (m,) up to the horizon, or until all branches were one. labels: (m,) equal where
    branches have the same future: where they are one for good, or have ended (-1). extremes: the
    lowest and the highest reward, and 0 once an episode ended. queries: of several actions at one
    state, or of one.
    """

    returns: list[float]
    labels: list[int]
    extremes: tuple[float, float]
    queries: int


@dataclass(frozen=True)
class FirstActions:
    """Branches that begin with an action each, and follow one policy from then on.

    names: the actions.
    """

    chooser: Chooser
    names: list[Any]
    one_for_good = True  # once all branches are at one state-action

    def choices(self, uniforms: Iterator[float]) -> Choices:
        return _OnePolicy(self.names, self.chooser.drawing(uniforms))

    def futures(self, labels: list[int]) -> list[int]:
        """Labels of branches with the same future, from those of the state-actions they are at."""
        return labels

    def only(self, chosen: Sequence[int]) -> FirstActions:
        """Some of the branches."""
        return FirstActions(self.chooser, [self.names[i] for i in chosen])


class _OnePolicy:
    """Choices of branches that all follow one policy. draw: an action of it, by a new number."""

    as_one = True

    def __init__(self, first: Sequence[Any], draw: Callable[[int, int, Any], Any]) -> None:
        self.first = first
        self.alone = draw

    def together(self, t: int, members: Members, seen: Any) -> list[tuple[Any, Members]]:
        if t == 0:
            return [(action, (i,)) for i, action in enumerate(self.first)]
        return [(self.alone(t, members[0], seen), members)]


@dataclass(frozen=True)
class OwnRules:
    """Branches that follow a rule each from the start.

    Branches at one state-action choose by one number: equal rules choose alike, and others where
    their probabilities overlap. Two branches are one for good if their rules are the same
    everywhere: equal arrays, or one and the same function. Rules that agree only where the branches
    still go are played on.

    choosers: the distinct rules. rules: (m,) which of them each branch follows. names: numbers.
    """

    choosers: list[Chooser]
    rules: list[int]
    names: list[int]

    @classmethod
    def of(cls, choosers: Sequence[Chooser]) -> OwnRules:
        """One chooser for each branch."""
        distinct: list[Chooser] = []
        rules = []
        for chooser in choosers:
            same = [k for k, other in enumerate(distinct) if chooser.same_rule(other)]
            rules.append(same[0] if same else len(distinct))
            if not same:
                distinct.append(chooser)
        return cls(distinct, rules, list(range(len(rules))))

    @property
    def one_for_good(self) -> bool:
        return len(set(self.rules)) == 1

    def choices(self, uniforms: Iterator[float]) -> Choices:
        return _SeveralPolicies(self.choosers, self.rules, uniforms)

    def futures(self, labels: list[int]) -> list[int]:
        """As in `FirstActions`: branches at one state-action have one future if their rules do."""
        rules = len(self.choosers)
        both = zip(labels, self.rules, strict=True)
        return [label if label < 0 else label * rules + rule for label, rule in both]

    def only(self, chosen: Sequence[int]) -> OwnRules:
        """Some of the branches."""
        rules = [self.rules[i] for i in chosen]
        return OwnRules(self.choosers, rules, [self.names[i] for i in chosen])


class _SeveralPolicies:
    """Choices of branches with rules of their own; those of one state-action share a number."""

    as_one = False

    def __init__(
        self, choosers: Sequence[Chooser], rules: Sequence[int], uniforms: Iterator[float]
    ) -> None:
        self.choosers = choosers
        self.rules = rules
        self.uniforms = uniforms

    def alone(self, t: int, branch: int, seen: Any) -> Any:
        return self.choosers[self.rules[branch]].action(seen, next(self.uniforms))

    def together(self, t: int, members: Members, seen: Any) -> list[tuple[Any, Members]]:
        uniform = next(self.uniforms)
        who: dict[int, Members] = {}
        for i in members:
            rule = self.rules[i]
            who[rule] = (*who.get(rule, ()), i)
        return [(self.choosers[rule].action(seen, uniform), i) for rule, i in who.items()]


class Comparison(ABC):
    """What the player of any simulator has, also one that plays many runs at once.

    names: what tells the branches apart. parts: what is the user's, by name. reward_range: (lo, hi)
    that holds all rewards, as far as the simulator declares it.
    """

    gamma: float
    horizon: int
    coupling: str

    @property
    @abstractmethod
    def names(self) -> list[Any]: ...

    @property
    @abstractmethod
    def parts(self) -> dict[str, Any]: ...

    @property
    @abstractmethod
    def reward_range(self) -> tuple[float, float] | None: ...

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

    def check_pickles(self) -> None:
        """Refuse what cannot be sent to other processes, by name."""
        for name, part in self.parts.items():
            try:
                pickle.dumps(part)
            except Exception as error:
                raise ValueError(
                    f"{name} does not pickle, as processes > 1 needs: {error}. A function must be "
                    "defined by `def` at the top of a module; or use processes=1"
                ) from None


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
        cls, env: Any, policy: Any, actions: Sequence[Any], state: Any, gamma: float | None,
        coupling: str, truncation: float, horizon: int | None,
    ) -> Branches:  # fmt: skip
        """Arguments as of `estimate_gaps`, checked; the policy is tried out once."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        _check_order(policy)
        world = world_of(env, state, coupling)
        names = world.checked_actions(actions)
        world.make_room(len(names))
        return cls(world, FirstActions(_tried(world, policy), names), *settings)

    @classmethod
    def of_policies(
        cls, env: Any, policies: Sequence[Any], state: Any, gamma: float | None, coupling: str,
        truncation: float, horizon: int | None,
    ) -> Branches:  # fmt: skip
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

    @property
    def parts(self) -> dict[str, Any]:
        return {"env": self.world, "policy": self.rules}

    @property
    def reward_range(self) -> tuple[float, float] | None:
        return self.world.reward_range

    def begin(self, rng: np.random.Generator) -> Iterator[float]:
        """Give the world a random stream of its own; the uniform numbers that actions take."""
        self.world.seed(np.random.SeedSequence(int(rng.integers(2**63))))
        return uniforms_of(rng)

    def play_some(
        self, source: Any, most: int, until_one: bool, limits: tuple[float, float]
    ) -> list[Run]:
        return [self.play(source, until_one, limits)]

    def play(
        self, uniforms: Iterator[float], until_one: bool = False,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Run:  # fmt: skip
        """One run; a reward outside of the limits is refused. If it fails, the error says when.

        until_one: stop where all branches are one for good.
        """
        size = len(self.names)
        returns = [0.0] * size
        rewards: list[float] = []
        low, high = limits
        weight = 1.0
        queries = 0
        steps = 0
        alone = self.coupling == "independent"  # then every action is a query of its own
        stop = until_one and self.rules.one_for_good
        played = (self.world, size, self.rules.choices(uniforms), self.horizon, self.coupling, stop)
        try:
            for moves in play_branches(*played):
                for visit, outcomes in zip(*moves, strict=True):
                    queries += len(outcomes) if alone else 1
                    for members, (reward, place) in zip(visit[2], outcomes, strict=True):
                        if not low <= reward <= high:
                            _refuse(reward, members, visit, limits)
                        rewards.append(reward)
                        if place is ENDED:
                            rewards.append(0.0)
                        for i in members:
                            returns[i] += weight * reward
                weight *= self.gamma
                steps += 1
        except SimulatorError as error:
            raise SimulatorError(f"step {steps + 1}: {error}") from error
        labels = [-1] * size
        if steps == self.horizon:  # else all have ended, or are one
            labels = self.rules.futures(_labels(moves, size))
        extremes = (min(rewards), max(rewards))
        return Run(returns, labels, extremes, queries)

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


def _labels(moves: Moves, size: int) -> list[int]:
    """(m,) equal for branches that were at one state-action in a time step, -1 after an end."""
    labels = [-1] * size
    for visit, steps in zip(*moves, strict=True):
        for members, (_, place) in zip(visit[2], steps, strict=True):
            for i in members:
                labels[i] = -1 if place is ENDED else members[0]
    return labels


def _refuse(reward: float, members: Members, visit: Visit, limits: tuple[float, float]) -> None:
    _, actions, who, seen = visit
    action = actions[who.index(members)]
    raise SimulatorError(
        f"reward {reward} of action {action} in state {seen} is not in reward_range {limits}"
    )


def checked_settings(
    env: Any, gamma: float | None, coupling: str, truncation: float, horizon: int | None
) -> tuple[float, int, str]:
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
    return gamma, checks.at_least("horizon", horizon, 1), coupling


def _tried(world: World, policy: Any) -> Chooser:
    """A policy as it is played, after it was asked for an action where all branches start."""
    chooser = world.chooser(policy)
    chooser.action(world.first_seen, 0.5)
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
