"""Many branches of a JMDP, of one policy or of several, in compiled code.

`montecarlo.simulate_pairs` plays the same for two branches of one policy, and faster. Several
policies are one policy of a model that holds the JMDP once for each: policy number k is played at
the states k S to k S + S - 1, and outcome tables are read at the first S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.machine import hot, inline, require
from jmdp_lib.model import JMDP
from jmdp_lib.montecarlo import (
    COMMON,
    INDEPENDENT,
    RUNS_PER_STREAM,
    BranchModel,
    earned_alone,
    fill_chunks,
    settled,
)
from jmdp_lib.operators.draws import find, pick, pick_cell


def model_of(jm: JMDP, policies: Sequence[Floats], coupling: str) -> BranchModel:
    """A JMDP and policies, (S, A) each, as the kernel reads them; the coupling has been checked."""
    shifts = jm.num_states * np.arange(len(policies))
    copies = JMDP.from_tables(
        states=np.add.outer(shifts, jm.table_states).ravel(),
        probs=np.tile(jm.probs, len(policies)),
        rewards=np.tile(jm.rewards, (len(policies), 1)),
        next_states=np.concatenate([shift + jm.next_states for shift in shifts]),
        num_states=jm.num_states * len(policies),
        gamma=jm.gamma,
    )
    return BranchModel.of(copies, np.concatenate(policies), coupling)


class Start(NamedTuple):
    """Where m branches start.

    num_states: of the JMDP.
    actions: (m,) their first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) which policy each of them follows. one: (m,) the first branch that each is one with.
    num_played: how many are not one with an earlier one. one_policy: whether all follow the same.
    """

    state: int
    num_states: int
    actions: Ints
    kinds: Ints
    one: Ints
    num_played: int
    one_policy: bool

    @classmethod
    def of(cls, jm: JMDP, state: int, actions: Sequence[int], kinds: Sequence[int]) -> Start:
        """Without actions, branches of one policy are one from the start."""
        one = [*range(len(kinds))] if actions else [*map(kinds.index, kinds)]
        return cls(
            state=state,
            num_states=jm.num_states,
            actions=np.array(actions, np.int64),
            kinds=np.array(kinds, np.int64),
            one=np.array(one, np.int64),
            num_played=len(set(one)),
            one_policy=len(set(kinds)) == 1,
        )


class Limits(NamedTuple):
    """Until when runs are played. whole: on to the horizon where all branches are one for good."""

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


def play_branches(
    model: BranchModel, start: Start, limits: Limits, num_runs: int, seed: Seed
) -> BranchRuns:
    """Play branches of a JMDP. The first runs are the same however many are asked for."""
    size = start.kinds.size
    require(
        8.0 * num_runs * (2 * size + 1), f"a sample of num_runs = {num_runs:,}", "ask for fewer"
    )
    runs = BranchRuns(
        returns=np.empty((num_runs, size)),
        labels=np.empty((num_runs, size), np.int64),
        queries=np.empty(num_runs, np.int64),
    )
    root = checks.seed_sequence(seed)

    def fill(chunk: int) -> None:
        rows = slice(chunk * RUNS_PER_STREAM, (chunk + 1) * RUNS_PER_STREAM)
        part = BranchRuns(*(array[rows] for array in runs))
        rng = checks.stream(root, "simulate_pairs", chunk)
        _fill_runs(rng, part, _Branches.of(size), model, start, limits)

    fill_chunks(fill, -(-num_runs // RUNS_PER_STREAM), "branches")
    return runs


class _Branches(NamedTuple):
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
    def of(cls, size: int) -> _Branches:
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
def _choose(rng: Any, at: Any, model: Any, start: Any) -> None:
    """Actions of the branches that share a draw: of the others nobody needs to know them."""
    num_actions = model.rewards.shape[1]
    for j in range(at.one.size):
        if at.one[j] != j or not at.shared[j]:
            continue
        if num_actions > 1:
            at.numbers[j] = rng.random() if at.source[j] == j else at.numbers[at.source[j]]
        low = (start.kinds[j] * start.num_states + at.states[j]) * num_actions
        at.actions[j] = find(at.numbers[j], model.policy_cdf, low, low + num_actions) - low


@inline
def _merge(at: Any, kinds: Any) -> int:
    """Find out who is at one state-action; returns how many branches are still to be played."""
    played = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        at.source[j] = j
        for i in range(j):
            here = at.one[i] == i and at.host[i] == at.host[j]
            if here and at.shared[j] and at.actions[i] == at.actions[j]:
                at.source[j] = i
                break
        if at.source[j] < j and kinds[at.source[j]] == kinds[j]:
            for k in range(j, at.one.size):
                if at.one[k] == j:
                    at.one[k] = at.source[j]
        else:
            played += 1
    return played


@inline
def _move(rng: Any, at: Any, model: Any, start: Any) -> int:
    """One step of all branches that are played; returns the number of queries."""
    law = model.law
    noise = 0
    queries = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        x = at.states[j]
        if not at.shared[j]:
            shift = start.kinds[j] * start.num_states
            low = law.starts[x + shift]
            cell = pick_cell(rng, low, law.starts[x + shift + 1], law.threshold)
            at.rewards[j] = law.rewards[cell]
            at.states[j] = law.next_states[cell] - shift
            queries += 1
            continue
        leader = at.source[j] if model.mode == INDEPENDENT else at.host[j]
        queries += leader == j
        if model.mode == COMMON and j > 0:
            at.tables[j] = model.starts[x] + noise
        elif leader < j:
            at.tables[j] = at.tables[leader]
        else:
            at.tables[j] = pick(rng, model.table_cdf, model.starts[x], model.starts[x + 1])
            noise = at.tables[j] - model.starts[x]
        at.rewards[j] = model.rewards[at.tables[j], at.actions[j]]
        at.states[j] = model.next_states[at.tables[j], at.actions[j]]
    return queries


@inline
def _begin(at: Any, returns: Any, start: Any) -> None:
    """All branches at the start, with nothing earned."""
    for j in range(at.one.size):
        returns[j] = 0.0
        at.states[j] = start.state
        at.one[j] = start.one[j]
        at.source[j] = j if start.actions.size else 0
        if start.actions.size:
            at.actions[j] = start.actions[j]


@hot
def _fill_runs(rng: Any, runs: Any, at: Any, model: Any, start: Any, limits: Any) -> None:
    """Fill the rows of `BranchRuns`. at: scratch."""
    size = start.kinds.size
    for run in range(runs.queries.size):
        returns = runs.returns[run]
        _begin(at, returns, start)
        played = start.num_played
        weight = 1.0
        step = 0
        queries = 0
        while step < limits.steps and (played > 1 or (step == 0 and start.actions.size > 0)):
            given = step == 0 and start.actions.size > 0
            meetings = _look_around(at, given or model.mode == COMMON)
            if not given:
                if start.one_policy and meetings == played - 1 and settled(at.states[0], model.law):
                    break
                _choose(rng, at, model, start)
            played = _merge(at, start.kinds)
            if played == 1 and not limits.whole:
                break
            queries += _move(rng, at, model, start)
            for j in range(size):
                returns[j] += weight * at.rewards[at.one[j]]
            weight *= limits.gamma
            step += 1
        left = limits.steps - step
        if left > 0 and limits.whole:  # from here on all branches earn the same
            x = start.kinds[0] * start.num_states + at.states[0]
            earned = earned_alone(rng, x, weight, left, limits.gamma, model.law)
            for j in range(size):
                returns[j] += earned
            queries += left
        for j in range(size):
            runs.labels[run, j] = at.one[j] if left == 0 else 0
        runs.queries[run] = queries
