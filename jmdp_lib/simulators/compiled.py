"""The player of a JMDP: compiled code, whoever asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.model import JMDP, checked_coupling
from jmdp_lib.montecarlo import BranchModel
from jmdp_lib.simulators.kernel import BranchTask, play_branches
from jmdp_lib.simulators.plans import Chunk, Player, Runs
from jmdp_lib.simulators.policies import PlayedPolicy


class CompiledPlayer(Player):
    """Plays the branches of a JMDP. Its policies are tables, also those that were functions."""

    chunk_size = 2**16

    def __init__(self, jm: JMDP, state: Any, coupling: str) -> None:
        self.jm = jm
        self.num_actions = jm.num_actions
        self.state = checks.index("state", state, jm.num_states)
        self.coupling = checked_coupling(jm, coupling)
        self.model: tuple[Any, BranchModel | None] = (None, None)

    def checked_policy(self, policy: Policy) -> Any:
        return PlayedPolicy(checks.policy_matrix(self.jm, policy))

    def _model(self, policies: tuple[PlayedPolicy, ...]) -> BranchModel:
        """What compiled code reads; it is made once, and not for every look of a decision."""
        known, model = self.model
        if known is not policies or model is None:
            tables = np.stack([policy.source for policy in policies])
            model = BranchModel.of(self.jm, tables, self.coupling)
            self.model = (policies, model)
        return model

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"model": (None, None)}

    def play(self, chunk: Chunk) -> Runs:
        plan = chunk.plan
        gamma, horizon, _ = plan.settings
        self._check_rewards(chunk.limits)
        model = self._model(plan.policies)
        # Gaps must not depend on it: unless queries are counted, all runs are whole.
        task = BranchTask(
            state=self.state,
            actions=np.array(plan.names if plan.compared == "action" else [], np.int64),
            kinds=np.array(plan.kinds, np.int64),
            one_policy=plan.one_for_good,
            steps=horizon,
            gamma=gamma,
            whole=chunk.whole or not chunk.counted,
        )
        returns, labels, queries = play_branches(model, task, chunk.size, chunk.seed)
        apart = tuple(labels[:, i] != labels[:, j] for i, j in plan.pairs)
        return Runs(returns.T, apart, int(queries.sum()), self.jm.reward_range)

    def _check_rewards(self, limits: tuple[float, float] | None) -> None:
        """Refuse a range that does not hold all rewards of the model."""
        low, high = limits or self.jm.reward_range
        outside = (self.jm.rewards < low) | (self.jm.rewards > high)
        for table, action in np.argwhere(outside)[:1]:
            raise ValueError(
                f"reward {self.jm.rewards[table, action]} of action {action} in state "
                f"{self.jm.table_states[table]} is not in reward_range {limits}"
            )
