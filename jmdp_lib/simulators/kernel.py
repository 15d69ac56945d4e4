"""Many branches of a JMDP, of one policy or of several, in compiled code.

`montecarlo.simulate_pairs` plays the same for two branches of one policy, and faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import hot, inline
from jmdp_lib.montecarlo import coupled, earned_alone, with_action
from jmdp_lib.operators.draws import draw, find


class BranchTask(NamedTuple):
    """Where m branches start, and until when they are played.

    actions: (m,) their first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) which policy each of them follows. one: (m,) the first branch that it is one with
    from the start, for good. whole: on to the horizon, even where all branches are one for good.
    """

    state: int
    actions: Ints
    kinds: Ints
    one: Ints
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

    states, steps: of every branch. one: the first branch that it is one with for good; itself, if
    it is still played. source: the first branch that comes from the same state-action: both draw
    their next actions by one number, if there are several policies. numbers: these.
    """

    states: Ints
    steps: Ints
    one: Ints
    source: Ints
    numbers: Floats

    @classmethod
    def of(cls, size: int) -> Branches:
        states, steps, one, source = np.zeros((4, size), np.int64)
        return cls(states, steps, one, source, np.zeros(size))


@inline
def _couple(at: Any, j: int, model: Any, kinds: Any) -> bool:
    """Let branch j share what it has to with those before it; whether one is at its state."""
    met = False
    at.source[j] = j
    for i in range(j):
        here = at.states[i] == at.states[j]
        if at.one[i] != i or not (here or (model.across_states and i == 0)):
            continue
        met |= here
        at.steps[j] = coupled(at.steps[i], at.steps[j], at.states[i], at.states[j], model)
        if at.steps[i] == at.steps[j]:
            at.source[j] = min(at.source[j], i)
            if kinds[i] == kinds[j]:
                at.one[j] = i
                break
    return met


@inline
def _draw_steps(rng: Any, at: Any, model: Any, task: Any, given: bool) -> tuple[int, int]:
    """A step of every branch that is played; returns how many go on, and the number of queries.

    given: the actions are those of the task.
    """
    played = 0
    queries = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        at.steps[j] = draw(rng, model.law, at.states[j])
        if given:
            at.steps[j] = with_action(at.steps[j], task.actions[j], model)
        elif model.several:
            at.numbers[j] = rng.random() if at.source[j] == j else at.numbers[at.source[j]]
            low = (task.kinds[j] * (model.starts.size - 1) + at.states[j]) * model.num_actions
            high = low + model.num_actions
            action = find(at.numbers[j], model.policy_cdf, low, high) - low
            at.steps[j] = with_action(at.steps[j], action, model)
        met = _couple(at, j, model, task.kinds)
        played += at.one[j] == j
        queries += not met if model.at_one_state else at.source[j] == j
    return played, queries


@hot
def fill_runs(rng: Any, runs: Any, at: Any, model: Any, task: Any) -> None:
    """Add to the rows of `BranchRuns`. at: scratch."""
    size = task.kinds.size
    for run in range(runs.queries.size):
        returns = runs.returns[run]
        for j in range(size):
            at.states[j] = task.state
            at.one[j] = task.one[j]
            at.source[j] = 0
        played = size
        weight = 1.0
        left = model.horizon
        while left > 0 and (played > 1 or model.several or left == model.horizon):
            given = left == model.horizon and task.actions.size > 0
            played, queries = _draw_steps(rng, at, model, task, given)
            if played == 1 and not task.whole:
                break
            runs.queries[run] += queries
            for j in range(size):
                at.one[j] = at.one[at.one[j]]
                i = at.steps[at.one[j]]
                returns[j] += weight * model.rewards[i]
                at.states[j] = model.next_states[i]
            weight *= model.gamma
            left -= 1
        if left > 0 and task.whole:  # from here on all branches earn the same
            earned = earned_alone(rng, at.states[0], weight, left, model)
            for j in range(size):
                returns[j] += earned
            runs.queries[run] += left
        for j in range(size):
            runs.labels[run, j] = at.one[j] if left == 0 else 0
