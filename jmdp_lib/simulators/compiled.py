"""Simulation of many branches of a JMDP in compiled code.

`CompiledPlayer` plays branches of one policy or of several; `montecarlo.simulate_pairs` plays the
same for two branches of one policy, and faster. A *step* is that of `montecarlo.BranchModel`: a
table and an action in one number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import fill_rows
from jmdp_lib.machine import cached, hot, inline
from jmdp_lib.model import JMDP, checked_coupling
from jmdp_lib.montecarlo import (
    RUNS_PER_STREAM,
    BranchModel,
    coupled,
    earned_alone,
    with_action,
)
from jmdp_lib.operators.draws import draw
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.simulators.plans import Chunk, Plan, PlayedPolicy, Player, Runs

_FEW = 256  # runs per random stream of a decision


@dataclass
class CompiledPlayer(Player):
    """Plays the branches of a JMDP. Its policies are tables, also those that were functions.

    model, policy_cdf: what compiled code reads, of one plan: made once, and not for every look of a
    decision.
    """

    jm: JMDP
    state: Any
    model: Any = None
    policy_cdf: Any = None
    chunk_size = 2**16
    rounded = False

    def __post_init__(self) -> None:
        self.num_actions = self.jm.num_actions
        self.limits = self.jm.reward_range
        self.state = checks.index("state", self.state, self.jm.num_states)

    def checked_policy(self, policy: Policy) -> Any:
        return PlayedPolicy(policy_matrix(self.jm, policy))

    def tried(self, plan: Plan) -> Plan:
        tables = np.stack([policy.source for policy in plan.policies])
        gamma, horizon, coupling = plan.settings
        coupling = checked_coupling(self.jm, coupling)
        model = BranchModel.of(self.jm, tables[0], coupling, gamma, horizon)
        cdf = tables.cumsum(-1).ravel() if len(tables) > 1 else np.zeros(0)
        return replace(plan, player=replace(self, model=model, policy_cdf=cdf))

    def play(self, chunk: Chunk) -> Runs:
        plan = chunk.plan
        size = chunk.size
        width = len(plan.kinds)
        self._check_rewards(chunk.limits)
        # Gaps must not depend on it: unless queries are counted, all runs are whole.
        task = BranchTask(
            state=self.state,
            actions=np.array(plan.names if plan.compared == "action" else [], np.int64),
            kinds=np.array(plan.kinds, np.int64),
            one=plan.alike.argmax(axis=1),
            whole=chunk.whole or not chunk.counted,
            policy_cdf=self.policy_cdf,
        )
        labels = np.empty((size, width), np.int64)
        runs = BranchRuns(np.zeros((size, width)), labels, np.zeros(size, np.int64))

        def fill(rng: np.random.Generator, rows: slice) -> None:
            own = BranchRuns(runs.returns[rows], labels[rows], runs.queries[rows])
            scratch: Any = (*np.zeros((4, width), np.int64), np.zeros(width))
            fill_runs(rng, own, Branches(*scratch), self.model, task)

        # Decisions look after few runs: all threads take part in these.
        per_stream = _FEW if chunk.counted else RUNS_PER_STREAM
        fill_rows(fill, size, per_stream, randomness.part(chunk.seed, "simulate_pairs"))
        last = plan.settings.gamma**plan.settings.horizon
        apart = [last * (labels[:, i] != labels[:, j]) for i, j in plan.pairs]
        left = np.full(size, last * (last < 1.0))
        return Runs(
            columns=[*runs.returns.T, *[left] * width, *apart],
            width=width,
            whole=task.whole or not plan.one_for_good,
            queries=int(runs.queries.sum()),
            extremes=self.jm.reward_range,
            offset=self.model.offset,
        )

    def _check_rewards(self, limits: tuple[float, float] | None) -> None:
        """Refuse a range that does not hold all rewards of the model."""
        low, high = limits or self.jm.reward_range
        outside = (self.jm.rewards < low) | (self.jm.rewards > high)
        for table, action in np.argwhere(outside)[:1]:
            raise ValueError(
                f"reward {self.jm.rewards[table, action]} of action {action} in state "
                f"{self.jm.table_states[table]} is not in reward_range {limits}"
            )


class BranchTask(NamedTuple):
    """Where m branches start, and until when they are played.

    actions: (m,) their first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) which policy each of them follows. one: (m,) the first branch that it is one with
    from the start, for good. whole: on to the horizon, even where all branches are one for good.
    policy_cdf: (Q S A,), cumulative within each state, if there are several policies; else (0,).
    """

    state: int
    actions: Ints
    kinds: Ints
    one: Ints
    whole: bool
    policy_cdf: Floats


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


@cached(nogil=True)
def find(u: float, cdf: Any, low: int, high: int) -> int:
    """Index in low..high-1 at which the cumulative probability passes a number."""
    while high - low > 8:
        middle = (low + high) // 2
        if cdf[middle - 1] <= u:
            low = middle
        else:
            high = middle
    while low < high - 1 and cdf[low] <= u:
        low += 1
    return low


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
        at.steps[j] = draw(rng, model.steps, at.states[j])
        if given:
            at.steps[j] = with_action(at.steps[j], task.actions[j], model)
        elif task.policy_cdf.size:
            at.numbers[j] = rng.random() if at.source[j] == j else at.numbers[at.source[j]]
            low = (task.kinds[j] * (model.starts.size - 1) + at.states[j]) * model.num_actions
            high = low + model.num_actions
            action = find(at.numbers[j], task.policy_cdf, low, high) - low
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
        while left > 0 and (played > 1 or task.policy_cdf.size or left == model.horizon):
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
