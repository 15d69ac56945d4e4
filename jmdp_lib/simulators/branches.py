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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.worlds import ENDED, Chooser, Step, Visit, World

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
    world: World,
    num_branches: int,
    choices: Choices,
    horizon: int,
    coupling: str = "joint",
    until_one: bool = False,
) -> Iterator[Moves]:
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


class Run(NamedTuple):
    """One run of m branches.

    returns: (m,) up to the horizon, or until all branches were one. labels: (m,) equal where
    branches have the same future: where they are one for good, or have ended (-1). extremes: the
    lowest and the highest reward, and 0 if episodes can end. queries: of several actions at one
    state, or of one.
    """

    returns: list[float]
    labels: list[int]
    extremes: tuple[float, float]
    queries: int


class Settings(NamedTuple):
    """How runs are played: discount, number of steps, and which branches share a draw."""

    gamma: float
    horizon: int
    coupling: str


def play_run(
    world: World,
    rules: FirstActions | OwnRules,
    settings: Settings,
    uniforms: Iterator[float],
    until_one: bool,
    limits: tuple[float, float],
) -> Run:
    """One run; a reward outside of the limits is refused. If it fails, the error says when.

    until_one: stop where all branches are one for good.
    """
    size = len(rules.names)
    returns = [0.0] * size
    rewards = [0.0] if world.episodes_end else []
    low, high = limits
    weight = 1.0
    queries = 0
    steps = 0
    alone = settings.coupling == "independent"  # then every action is a query of its own
    stop = until_one and rules.one_for_good
    played = (world, size, rules.choices(uniforms), settings.horizon, settings.coupling, stop)
    try:
        for moves in play_branches(*played):
            for visit, outcomes in zip(*moves, strict=True):
                queries += len(outcomes) if alone else 1
                for members, (reward, _) in zip(visit[2], outcomes, strict=True):
                    if not low <= reward <= high:
                        _refuse(reward, members, visit, limits)
                    rewards.append(reward)
                    for i in members:
                        returns[i] += weight * reward
            weight *= settings.gamma
            steps += 1
    except SimulatorError as error:
        raise SimulatorError(f"step {steps + 1}: {error}") from error
    labels = [-1] * size
    if steps == settings.horizon:  # else all have ended, or are one
        labels = rules.futures(_labels(moves, size))
    extremes = (min(rewards), max(rewards))
    return Run(returns, labels, extremes, queries)


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
