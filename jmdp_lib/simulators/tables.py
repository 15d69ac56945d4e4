"""Compiled loop over the branches of a JMDP.

For two branches of one policy, `montecarlo.simulate_pairs` does the same faster. A *step* is a
table and an action in one integer, as in `montecarlo.BranchModel`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import fill_rows
from jmdp_lib.machine import hot, inline
from jmdp_lib.model import JMDP, checked_coupling
from jmdp_lib.montecarlo import (
    RUNS_PER_STREAM,
    BranchModel,
    coupled,
    discounted,
    earned_alone,
    with_action,
)
from jmdp_lib.operators.draws import draw
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.simulators.plans import Plan, Runs, SimulatedPolicy, World

_FIRST = 8  # runs in each of the first chunks of a decision
_FEW = 256  # runs per random stream if few runs are made, so that all threads take part


class TableWorld(World):
    """Simulates the branches of a JMDP, whose policies are converted to tables."""

    def __init__(self, jm: JMDP, state: int) -> None:
        self.jm = jm
        self.num_actions = jm.num_actions
        self.limits = jm.reward_range
        self.state = checks.index("state", state, jm.num_states)

    def checked_policy(self, policy: Policy) -> SimulatedPolicy:
        return SimulatedPolicy(policy_matrix(self.jm, policy))

    def batch(self, num_runs: int) -> int:
        return min(RUNS_PER_STREAM, max(_FIRST, num_runs))

    def prepared(self, plan: Plan) -> tuple[BranchModel, Floats]:
        """Tables for compiled code, and cumulative policies (Q, S, A) if there are several."""
        low, high = plan.limits or self.jm.reward_range
        outside = (self.jm.rewards < low) | (self.jm.rewards > high)
        for table, action in np.argwhere(outside)[:1]:
            raise ValueError(
                f"reward {self.jm.rewards[table, action]} of action {action} in state "
                f"{self.jm.table_states[table]} is not in reward_range {plan.limits}"
            )
        tables = np.stack([policy.source for policy in plan.policies])
        coupling = checked_coupling(self.jm, plan.coupling)
        model = BranchModel.of(self.jm, tables[0], coupling, plan.gamma, plan.horizon)
        cdf = tables.cumsum(-1) if len(tables) > 1 else tables[:0]
        cdf[..., -1] = np.inf  # no uniform number exceeds it, even after rounding
        return model, cdf

    def simulate(
        self, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
    ) -> Runs:
        model, policy_cdf = plan.prepared
        model = model._replace(horizon=plan.horizon)
        width = len(plan.kinds)
        task = Task(
            state=self.state,
            actions=np.array(plan.first or [], np.int64),
            kinds=np.array(plan.kinds, np.int64),
            to_the_end=to_the_end,
            policy_cdf=policy_cdf,
        )
        totals = np.zeros((size, width))
        labels = np.empty((size, width), np.int64)
        queries = np.zeros(size, np.int64)

        def fill(rng: np.random.Generator, rows: slice) -> None:
            scratch: Any = (*np.zeros((3, width), np.int64), np.zeros(width))
            out = totals[rows], labels[rows], queries[rows]
            fill_runs(rng, out, Branches(*scratch), model, task)

        per_stream = _FEW if size <= RUNS_PER_STREAM else RUNS_PER_STREAM
        fill_rows(fill, size, per_stream, randomness.part(seed, "simulate_pairs"))
        totals[:, 0] += self.jm.reward_offset * discounted(plan.gamma, plan.horizon)
        tails = np.broadcast_to(plan.gamma**plan.horizon, (width, size))
        coalesced = plan.coalesced(labels.T)
        return Runs(totals.T, tails, coalesced, self.jm.reward_range, int(queries.sum()))


class Task(NamedTuple):
    """Start of m branches, and the step until which they are simulated.

    actions: (m,) the first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) index of the policy of each branch. to_the_end: simulate up to the horizon, even if
    all branches have coalesced. policy_cdf: (Q, S, A) cumulative probabilities if there are several
    policies; else (0, S, A).
    """

    state: int
    actions: Ints
    kinds: Ints
    to_the_end: bool
    policy_cdf: Floats


class Branches(NamedTuple):
    """State of the branches of a run, (m,) each.

    states, steps: state and step of every branch. source: index of the first branch that comes from
    the same state-action; two branches of one policy have coalesced there. numbers: uniform numbers
    by which next actions are drawn if there are several policies, one for each source.
    """

    states: Ints
    steps: Ints
    source: Ints
    numbers: Floats


@inline
def _couple(at: Any, j: int, model: Any) -> bool:
    """Couple branch j to the branches before it; returns whether one of them is at its state."""
    met = False
    at.source[j] = j
    for i in range(j):
        here = at.states[i] == at.states[j]
        if at.source[i] != i or not (here or (model.across_states and i == 0)):
            continue
        met |= here
        at.steps[j] = coupled(at.steps[i], at.steps[j], at.states[i], at.states[j], model)
        if at.steps[i] == at.steps[j]:
            at.source[j] = i
            break
    return met


@inline
def _draw_steps(rng: Any, at: Any, model: Any, task: Any, given: bool) -> tuple[int, int]:
    """Draw a step of every branch; returns the number of separate ones, and that of queries.

    given: whether the actions are the first ones of the task.
    """
    separate = 0
    queries = 0
    for j in range(task.kinds.size):
        i = at.source[j]
        if i != j and task.kinds[i] == task.kinds[j] and not given:  # they have coalesced
            at.steps[j] = at.steps[i]
            at.source[j] = at.source[i]
            continue
        at.steps[j] = draw(rng, model.steps, at.states[j])
        if given:
            at.steps[j] = with_action(at.steps[j], task.actions[j], model)
        elif task.policy_cdf.size:
            at.numbers[j] = rng.random() if i == j else at.numbers[i]
            cdf = task.policy_cdf[task.kinds[j], at.states[j]]
            action = 0
            while cdf[action] <= at.numbers[j]:
                action += 1
            at.steps[j] = with_action(at.steps[j], action, model)
        met = _couple(at, j, model)
        separate += at.source[j] == j
        queries += not met if model.at_one_state else at.source[j] == j
    return separate, queries


@hot
def fill_runs(rng, out, at, model, task):
    """Simulate N runs and fill in their totals (N, m), labels (N, m) and queries (N,).

    Totals are those of `Runs`. Branches of one policy with the same future after the horizon have
    equal labels. at: scratch.
    """
    totals, labels, queries = out
    size = task.kinds.size
    for run in range(queries.size):
        at.states[:] = task.state
        at.source[:] = 0
        separate = size
        weight = 1.0
        left = model.horizon
        while left > 0 and (separate > 1 or task.policy_cdf.size or left == model.horizon):
            given = left == model.horizon and task.actions.size > 0
            separate, made = _draw_steps(rng, at, model, task, given)
            if separate == 1 < size and not (task.to_the_end or task.policy_cdf.size):
                break
            queries[run] += made
            first = model.rewards[at.steps[0]]
            totals[run, 0] += weight * first
            for j in range(size):
                i = at.steps[j]
                if j > 0:
                    totals[run, j] += weight * (model.rewards[i] - first)
                at.states[j] = model.next_states[i]
            weight *= model.gamma
            left -= 1
        if left > 0 and (task.to_the_end or size == 1):  # all rewards are equal from here
            totals[run, 0] += earned_alone(rng, at.states[0], weight, left, model)
            queries[run] += left
        for j in range(size):
            labels[run, j] = at.source[j] if left == 0 else 0
