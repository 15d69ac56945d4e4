"""Policy improvement that changes a policy only where that is likely to pay off.

Let V be the value of a policy, and Q(s, a) that of taking a once and following the policy from
then on. By the policy improvement theorem, every state can be decided separately: if a new policy
takes actions with Q(s, a) >= V(s) at any set of states, and is unchanged at all others, its value
is nowhere below V. Greedy improvement changes every state that it can; here a state changes only if
the new action is better with a given probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.fast import Chain, CollapsedT2
from jmdp_lib.laws.gap_law import gap_law
from jmdp_lib.machine import ReadOnly
from jmdp_lib.model import JMDP
from jmdp_lib.policies import Policy

_ALPHA = 0.05  # all confidence intervals of advantages hold at once with probability 1 - _ALPHA
_ROUNDING = 1e-10  # advantages below this share of the largest return are rounding


@dataclass(frozen=True, eq=False, repr=False)
class Improvement(ReadOnly):
    """Result of `cautious_improvement`.

    Attributes:
        value: (S,), $V$, the value of the old policy.
        policy: (S, A), the new policy.
        switched: (S,), true where the new policy differs from the old one.
        advantage: (S, A), $Q(s, a) - V(s)$ under the old policy.
        advantage_low: (S, A), lower end of the confidence interval of `advantage`; equal to it if
            the tables are given.
        prob_better: (S, A), lower bounds of $P(Z(s, a) > Z(s, A))$, with $A$ drawn from the old
            policy; nan where no bound was needed.
    """

    value: Floats
    policy: Floats
    switched: NDArray[np.bool_]
    advantage: Floats
    advantage_low: Floats
    prob_better: Floats

    def __repr__(self) -> str:
        changed = int(self.switched.sum())
        return f"Improvement({changed:,} of {self.switched.size:,} states switch)"


def cautious_improvement(
    jm: JMDP, policy: Policy, *, level: float = 0.5, width: float = 0.02
) -> Improvement:
    """Improve a policy only in states where an action is better with probability `level`.

    A state switches to an action $a$ if $Q(s, a) > V(s)$, and if $Z(s, a) > Z(s, A)$ in the same
    scenario with probability `level` or more, where $A$ is drawn from the policy. Of several such
    actions, the one with the largest $Q$ is taken. With level=0 this is greedy improvement.

    The value of the new policy is nowhere below that of the old one. If `jm` was counted from
    queries (`JMDP.from_simulator`), the lower end of a confidence interval of $Q(s, a) - V(s)$ must
    be above zero. All these intervals hold at once with a probability of 95%, and so does the
    statement about values. This needs many queries: the intervals are normal approximations, and
    they ignore outcomes that no query showed.

    Args:
        jm: the model, whose tables are given or counted.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        level: the least probability of being better, in [0, 1]. Defaults to 0.5.
        width: width of the brackets of probabilities, as in `gap_law`. Defaults to 0.02. Wider
            brackets take less time, but fewer states switch.

    Returns:
        The new policy, the states where it differs from the old one, and the reasons.

    Raises:
        ValueError: an argument makes no sense.
        MemoryError: the pairs or the grid of `gap_law` do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.inventory(capacity=3, max_order=2, gamma=0.8)
        >>> step = jl.laws.cautious_improvement(jm, jl.uniform_policy(jm), level=0.4)
        >>> step.policy.argmax(axis=1).tolist(), step.switched.tolist()
        ([2, 2, 0, 0], [True, True, False, False])
        >>> print(step.advantage[0].round(2), step.prob_better[0].round(2))
        [-1.88  0.07  1.81] [ nan 0.34 0.57]
    """
    system = CollapsedT2.of("cautious_improvement", jm, policy)
    level = checks.probability("level", level)
    width = checks.positive("width", width)
    old = system.policy
    bound = system.jm.reward_bound
    value = Chain(system.kernel, jm.gamma, system.mean_rewards).solution(1e-12 * bound)
    advantage, low = _advantages(system, value)
    improves = low > _ROUNDING * bound / (1.0 - jm.gamma)
    chances = np.full(old.shape, np.nan)
    if level > 0.0:
        chances[improves] = _chances(jm, old, improves, width)[improves]
        improves &= chances >= level
    best = np.where(improves, advantage, -np.inf).argmax(1)
    switched: Any = improves.any(1)
    new = np.where(switched[:, None], np.eye(jm.num_actions)[best], old)
    return Improvement(value + jm.return_offset, new, switched, advantage, low, chances)


def _advantages(system: CollapsedT2, value: Floats) -> tuple[Floats, Floats]:
    """Advantages Q(s, a) - V(s), (S, A), and lower ends of their confidence intervals."""
    jm = system.jm
    backed = jm.rewards + jm.gamma * value[jm.next_states]  # (T, A)
    usual = (backed * system.policy[jm.table_states]).sum(1, keepdims=True)  # (T, 1)
    advantage = jm.averaging @ (backed - usual)
    if jm.queries_per_state is None:
        return advantage, advantage
    sure = NormalDist().inv_cdf(1.0 - _ALPHA / max(2, advantage.size))
    variance = _variance(jm, system, backed, usual) / (jm.queries_per_state - 1)
    return advantage, advantage - sure * np.sqrt(variance)


def _chances(jm: JMDP, policy: Floats, improves: Any, width: float) -> Floats:
    """Lower bounds of P(Z(s, a) > Z(s, A)), (S, A); zero unless improves, (S, A)."""
    chances = np.zeros(policy.shape)
    s, a, b = np.nonzero(improves[:, :, None] & (policy > 0.0)[:, None])
    gaps = np.stack([s, a, b], axis=1)[a != b]
    if len(gaps):
        laws = gap_law(jm, policy, gaps=gaps, width=width, points=1)
        better = [policy[law.gap[::2]] * law.prob_better[0] for law in laws]
        np.add.at(chances, (gaps[:, 0], gaps[:, 1]), better)
    return chances


def _variance(jm: JMDP, system: CollapsedT2, backed: Floats, usual: Floats) -> Floats:
    """N times the variance (S, A) of advantages counted in N queries, to first order.

    An error at state x is weighted by the discounted visits of x: `ahead` (S, A, S) is the visits
    after (s, a) minus those under the policy. At s itself, both actions read the same table.
    """
    size = jm.num_states
    here = np.arange(size)
    kernel = system.kernel.toarray()
    moves = jm.transitions.toarray().reshape(size, -1, size) - kernel[:, None]
    ahead = jm.gamma * moves @ np.linalg.inv(np.eye(size) - jm.gamma * kernel)
    own = backed - usual + ahead[here, :, here][jm.table_states] * usual
    ahead[here, :, here] = 0.0
    spread, own_spread = (jm.averaging @ x**2 - (jm.averaging @ x) ** 2 for x in (usual, own))
    return np.maximum((ahead**2 @ spread)[..., 0] + own_spread, 0.0)
