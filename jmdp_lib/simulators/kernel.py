"""Many branches of a JMDP, of one policy or of several, in compiled code.

`montecarlo.simulate_pairs` plays the same for two branches of one policy, and faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import hot, inline
from jmdp_lib.montecarlo import COMMON, INDEPENDENT, earned_alone, settled
from jmdp_lib.operators.draws import draw, draw_table, find


class BranchTask(NamedTuple):
    """Where m branches start, and until when they are played.

    actions: (m,) their first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) which policy each of them follows. one_policy: whether it is one. whole: on to the
    horizon, `steps`, even where all branches are one for good.
    """

    state: int
    actions: Ints
    kinds: Ints
    one_policy: bool
    steps: int
    gamma: float
    whole: bool


class BranchRuns(NamedTuple):
    """N runs of m branches.

    returns: (N, m). labels: (N, m), equal where branches have the same future after the horizon.
    queries: (N,) draws of tables: of one or more actions at one state.
    """

    returns: Floats
    labels: Ints
    queries: Ints


class Branches(NamedTuple):
    """Where the branches of a run are, (m,) each.

    states, actions: of every branch. one: the first branch that it is one with for good; itself, if
    it is still played. source: the first branch that comes from the same state-action: both draw
    their next actions by one number. numbers: these. host: the first branch at the same state.
    shared: whether it shares a draw with another one. tables: what was drawn. rewards: of the step.
    """

    states: Ints
    actions: Ints
    one: Ints
    source: Ints
    numbers: Floats
    host: Ints
    shared: NDArray[np.bool_]
    tables: Ints
    rewards: Floats

    @classmethod
    def of(cls, size: int) -> Branches:
        kinds = {"numbers": float, "rewards": float, "shared": bool}
        return cls(*(np.zeros(size, kinds.get(name, np.int64)) for name in cls._fields))


@inline
def _look_around(at: Any, named: bool) -> int:
    """Find out who shares a state; returns how many branches are at the state of an earlier one.

    named: whether all branches need their actions and tables by name.
    """
    meetings = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        at.host[j] = j
        at.shared[j] = named
        for i in range(j):
            if at.one[i] == i and at.states[i] == at.states[j]:
                at.host[j] = i
                at.shared[i] = True
                at.shared[j] = True
                meetings += 1
                break
    return meetings


@inline
def _act(rng: Any, at: Any, model: Any, kinds: Any, given: bool) -> int:
    """Choose actions and find out who is at one state-action; returns how many become one.

    Nobody needs to know the action of a branch that shares no draw. given: actions are known.
    """
    drawn = model.drawn
    num_states = drawn.starts.size - 1
    num_actions = drawn.rewards.shape[1]
    merged = 0
    for j in range(at.one.size):
        if at.one[j] != j or not at.shared[j]:
            continue
        if not given:
            if num_actions > 1:
                at.numbers[j] = rng.random() if at.source[j] == j else at.numbers[at.source[j]]
            low = (kinds[j] * num_states + at.states[j]) * num_actions
            at.actions[j] = find(at.numbers[j], drawn.policy_cdf, low, low + num_actions) - low
        at.source[j] = j
        for i in range(j):
            here = at.one[i] == i and at.host[i] == at.host[j]
            if here and at.actions[i] == at.actions[j]:
                at.source[j] = i
                break
        if at.source[j] < j and kinds[at.source[j]] == kinds[j]:
            at.one[j] = at.source[j]
            merged += 1
    return merged


@inline
def _move(rng: Any, at: Any, model: Any, kinds: Any) -> int:
    """One step of all branches that are played; returns the number of queries."""
    drawn = model.drawn
    noise = 0
    queries = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        x = at.states[j]
        if not at.shared[j]:
            shift = kinds[j] * (drawn.starts.size - 1)
            i = draw(rng, model.outcomes, shift + x)
            at.source[j] = j
            at.rewards[j] = model.rewards[i]
            at.states[j] = model.next_states[i] - shift
            queries += 1
            continue
        leader = at.source[j] if model.mode == INDEPENDENT else at.host[j]
        queries += leader == j
        if model.mode == COMMON and j > 0:
            at.tables[j] = drawn.starts[x] + noise
        elif leader < j:
            at.tables[j] = at.tables[leader]
        else:
            at.tables[j] = draw_table(rng, drawn, x)
            noise = at.tables[j] - drawn.starts[x]
        at.rewards[j] = drawn.rewards[at.tables[j], at.actions[j]]
        at.states[j] = drawn.next_states[at.tables[j], at.actions[j]]
    return queries


@inline
def _begin(at: Any, task: Any) -> None:
    """All branches at the start."""
    for j in range(at.one.size):
        at.states[j] = task.state
        at.one[j] = j
        at.source[j] = 0
        if task.actions.size:
            at.actions[j] = task.actions[j]


@hot
def fill_runs(rng: Any, runs: Any, at: Any, model: Any, task: Any) -> None:
    """Add to the rows of `BranchRuns`. at: scratch."""
    size = task.kinds.size
    shift = task.kinds[0] * (model.drawn.starts.size - 1)
    for run in range(runs.queries.size):
        returns = runs.returns[run]
        _begin(at, task)
        played = size
        weight = 1.0
        step = 0
        while step < task.steps and (played > 1 or step == 0):
            given = step == 0 and task.actions.size > 0
            named = given or model.mode == COMMON
            meetings = _look_around(at, named)
            all_here = task.one_policy and meetings == played - 1
            if all_here and not given and settled(shift + at.states[0], model):
                break
            if named or meetings:
                played -= _act(rng, at, model, task.kinds, given)
            if played == 1 and not task.whole:
                break
            runs.queries[run] += _move(rng, at, model, task.kinds)
            for j in range(size):
                at.one[j] = at.one[at.one[j]]
                returns[j] += weight * at.rewards[at.one[j]]
            weight *= task.gamma
            step += 1
        left = task.steps - step
        if left > 0 and task.whole:  # from here on all branches earn the same
            x = shift + at.states[0]
            earned = earned_alone(rng, x, weight, left, task.gamma, model)
            for j in range(size):
                returns[j] += earned
            runs.queries[run] += left
        for j in range(size):
            runs.labels[run, j] = at.one[j] if left == 0 else 0
