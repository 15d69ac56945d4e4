"""Branches of one state in any simulator: recursive pairs, triples and so on, played out.

Branches start at one state with different actions. Those at the same state share a table, those
at distinct states do not, and those with the same state and action are one branch from then on.
`montecarlo` plays pairs faster where all tables are known.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.simulators import check_policy, checked_query


class World(NamedTuple):
    """Where branches move. A place is a state's number, or a snapshot.

    ask(place, actions): [(reward, next place, whether the episode ended)] under one fresh table.
    choose(place): an action of the policy. key(place): equal for equal states. ends: whether
    episodes can end; rewards are zero from then on.
    """

    start: Any
    gamma: float
    ask: Callable[[Any, list[Any]], list[tuple[float, Any, bool]]]
    choose: Callable[[Any], int]
    key: Callable[[Any], Hashable]
    ends: bool


class Run(NamedTuple):
    """One run of m branches.

    returns: (m,) discounted, up to the horizon. labels: (m,) equal where branches have the same
    future. extremes: the lowest and the highest reward. queries: calls of `ask`.
    """

    returns: Floats
    labels: Ints
    extremes: tuple[float, float]
    queries: int


def simulator_world(
    simulator: Any, state: int, actions: Sequence[int], policy: Any, rng: np.random.Generator
) -> World:
    """A JMDP or a simulator of one's own, with a policy (S, A)."""
    cumulative = np.cumsum(check_policy(simulator, policy), axis=1)
    cumulative[:, -1] = 1.0
    rows = cumulative.tolist()
    checks.distinct_actions(actions, simulator.num_actions)

    def ask(place: int, asked: list[int]) -> list[tuple[float, Any, bool]]:
        return [(r, x, False) for r, x in checked_query(simulator, place, asked, rng)]

    start = checks.index("state", state, simulator.num_states)
    return World(
        start, simulator.gamma, ask, lambda place: bisect(rows[place], rng.random()), int, False
    )


def environment_world(
    env: Any, state: Any, actions: Sequence[int], policy: Any, gamma: float,
    rng: np.random.Generator,
) -> World:  # fmt: skip
    """A `CoupledEnv` or `CoupledAtari` with policy(observation) -> (A,).

    state: a snapshot; None: where the environment stands. Branches of a `CoupledEnv` that parted
    never meet again: nothing says whether two of its snapshots are the same state.
    """
    start, size = env.snapshot() if state is None else state, int(env.action_space.n)
    checks.distinct_actions(actions, size)
    env.reset(seed=int(rng.integers(2**31)))
    clones = {"clones": True} if hasattr(start, "identity") else {}

    def ask(place: Any, asked: list[int]) -> list[tuple[float, Any, bool]]:
        env.restore(place)
        env.redraw()
        return [(x.reward, x.snapshot, x.snapshot.over) for x in env.query(asked, **clones)]

    def choose(place: Any) -> int:
        probs = checks.distributions("policy(observation)", policy(place.observation), action=size)
        return int(rng.choice(size, p=probs))

    def key(place: Any) -> Hashable:
        return place.identity if clones else id(place)

    return World(start, checks.discount(gamma), ask, choose, key, True)


def play_branches(
    world: World, actions: Sequence[int], horizon: int, reward_range: tuple[float, float],
    play_on: bool,
) -> Run:  # fmt: skip
    """Play a branch for each action; `play_on`: even after all have become one.

    A reward outside of the range is an error.
    """
    size, queries, weight = len(actions), 0, 1.0
    returns, labels, seen = [0.0] * size, np.full(size, -1), list[float]()
    live = [(world.start, action, [i]) for i, action in enumerate(actions)]
    for _ in range(horizon):
        if not live or (len(live[0][2]) == size and not play_on):
            break
        tables, moved = defaultdict[Hashable, list[Any]](list), dict[Hashable, Any]()
        for branch in live:
            tables[world.key(branch[0])].append(branch)
        for places, asked, members in (zip(*table, strict=True) for table in tables.values()):
            outcomes = world.ask(places[0], list(asked))
            queries += 1
            if len(outcomes) != len(asked):
                raise ValueError(f"a query of actions {list(asked)} gave {len(outcomes)} outcomes")
            for action, who, (reward, after, over) in zip(asked, members, outcomes, strict=True):
                if not reward_range[0] <= reward <= reward_range[1]:
                    raise ValueError(
                        f"reward {reward} of action {action} in state {world.key(places[0])} is "
                        f"not in reward_range {reward_range}"
                    )
                seen.append(reward)
                for i in who:
                    returns[i] += weight * reward
                if not over:
                    then = world.choose(after)
                    moved.setdefault((world.key(after), then), (after, then, []))[2].extend(who)
        live, weight = list(moved.values()), weight * world.gamma
    for number, (_, _, who) in enumerate(live):
        labels[who] = number
    return Run(np.array(returns), labels, (min(seen), max(seen)), queries)
