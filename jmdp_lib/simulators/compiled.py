"""The player of a JMDP: compiled code, whoever asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.model import JMDP, Coupling, checked_coupling
from jmdp_lib.montecarlo import RUNS_PER_STREAM, BranchModel, fill_rows
from jmdp_lib.simulators.kernel import Branches, BranchRuns, BranchTask, fill_runs
from jmdp_lib.simulators.plans import Chunk, Plan, Player, Runs
from jmdp_lib.simulators.policies import PlayedPolicy

_FEW = 256  # runs per random stream of a decision


class CompiledPlayer(Player):
    """Plays the branches of a JMDP. Its policies are tables, also those that were functions."""

    chunk_size = 2**16
    rounded = False

    def __init__(self, jm: JMDP, state: Any, coupling: Coupling) -> None:
        self.jm = jm
        self.num_actions = jm.num_actions
        self.limits = jm.reward_range
        self.state = checks.index("state", state, jm.num_states)
        self.coupling = checked_coupling(jm, coupling)
        self.model: Any = None

    def checked_policy(self, policy: Policy) -> Any:
        return PlayedPolicy(checks.policy_matrix(self.jm, policy))

    def tried(self, plan: Plan) -> Plan:
        """Make what compiled code reads: once, and not for every look of a decision."""
        tables = np.stack([policy.source for policy in plan.policies])
        gamma, horizon, _ = plan.settings
        self.model = BranchModel.of(self.jm, tables, self.coupling, gamma, horizon)
        return plan

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
        )
        labels = np.empty((size, width), np.int64)
        runs = BranchRuns(np.zeros((size, width)), labels, np.zeros(size, np.int64))

        def fill(rng: np.random.Generator, rows: slice) -> None:
            own = BranchRuns(runs.returns[rows], labels[rows], runs.queries[rows])
            fill_runs(rng, own, Branches.of(width), self.model, task)

        # Decisions look after few runs: all threads take part in these.
        per_stream = _FEW if chunk.counted else RUNS_PER_STREAM
        fill_rows(fill, size, per_stream, checks.seed_sequence(chunk.seed, "simulate_pairs"))
        last = plan.settings.gamma**plan.settings.horizon
        apart = tuple(last * (labels[:, i] != labels[:, j]) for i, j in plan.pairs)
        return Runs(
            returns=runs.returns.T,
            apart=apart,
            open=np.full((width, size), last * (last < 1.0)),
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
