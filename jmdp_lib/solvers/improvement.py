"""Policy improvement that changes a policy only where the change is likely to pay off.

Let V be the value of a policy, and Q(s, a) that of playing a once and following the policy from
then on. The policy improvement theorem lets every state be decided on its own: a policy that plays
actions with Q(s, a) >= V(s) at some states, whichever they are, and what it played before at
all others, has a value that is nowhere below V. Greedy improvement changes all states that it can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.moments import ReadOnly
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.solvers.affine import Chain
from jmdp_lib.solvers.gap_law import gap_law
from jmdp_lib.statistics import normal_quantile

_ROUNDING = 1e-10  # advantages that are smaller, relative to the largest return, are none


@dataclass(frozen=True, eq=False)
class Improvement(ReadOnly):
    """What `cautious_improvement` found.

    Attributes:
        value: (S,), $V$, the value of the old policy.
        policy: (S, A), the new policy.
        switched: (S,), where it differs from the old one.
        advantage: (S, A), $Q(s, a) - V(s)$ under the old policy.
        advantage_low: (S, A), lower ends of its confidence intervals; the same if tables are known.
        prob_better: (S, A), lower bounds of $P(Z(s, a) > Z(s, A))$, with $A$ drawn from the old
            policy; nan where they were not needed.
    """

    value: Floats
    policy: Floats
    switched: Floats
    advantage: Floats
    advantage_low: Floats
    prob_better: Floats


def cautious_improvement(
    jm: JMDP, policy: ArrayLike, level: float = 0.5, alpha: float = 0.05, width: float = 0.02
) -> Improvement:
    """One step of policy improvement, only where an action is better with probability `level`.

    A state switches to an action $a$ if $Q(s, a) > V(s)$, and if $Z(s, a) > Z(s, A)$ in the same
    scenario with probability `level` or more, where $A$ is drawn from the policy. Of several such
    actions, the one with the largest $Q$ is taken. With level=0 this is greedy improvement.

    The value of the new policy is nowhere below the old one. If `jm` was counted from queries
    (`JMDP.from_simulator`), the lower end of a confidence interval of $Q(s, a) - V(s)$ must be
    above zero. All these intervals hold at once with probability $1 - alpha$, and so does the
    statement about values. This takes many queries: the intervals are normal, and they know nothing
    of outcomes that no query showed.

    policy: (S, A) probabilities, or (S,) actions.
    width: of the brackets of probabilities, as in `gap_law`. Wider brackets take less time, but
        fewer states switch.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.inventory(capacity=3, max_order=2, gamma=0.8)
        >>> found = jl.cautious_improvement(jm, jl.uniform_policy(jm), level=0.4)
        >>> found.policy.argmax(axis=1).tolist(), found.switched.tolist()
        ([2, 2, 0, 0], [True, True, False, False])
        >>> print(found.advantage[0].round(2), found.prob_better[0].round(2))
        [-1.88  0.07  1.81] [ nan 0.34 0.57]
    """
    system = CollapsedT2.of("cautious_improvement", jm, policy)
    level, alpha = checks.probability("level", level), checks.real("alpha", alpha, "(0, 1)")
    old = system.policy
    value = Chain(system.kernel, jm.gamma, system.mean_rewards).solution(1e-12 * jm.reward_bound)
    backed = jm.rewards + jm.gamma * value[jm.next_states]  # (T, A)
    usual = (backed * old[jm.table_states]).sum(1, keepdims=True)  # (T, 1)
    advantage = low = jm.averaging @ (backed - usual)
    if jm.queries_per_state is not None:
        sure = normal_quantile(1.0 - 2.0 * alpha / max(2, low.size))
        variance = _variance(jm, system, backed, usual) / (jm.queries_per_state - 1)
        low = advantage - sure * np.sqrt(variance)
    allowed = low > _ROUNDING * jm.reward_bound / (1.0 - jm.gamma)
    chances = np.where(allowed & (level > 0.0), 0.0, np.nan)
    s, a, b = np.nonzero((chances == 0.0)[:, :, None] & (old > 0.0)[:, None])
    s, a, b = (x[a != b] for x in (s, a, b))
    if s.size:
        laws = gap_law(jm, old, np.stack([s, a, b], axis=1), width, points=1)
        np.add.at(chances, (s, a), [old[law.query[::2]] * law.prob_better[0] for law in laws])
        allowed &= chances >= level
    best, switched = np.where(allowed, advantage, -np.inf).argmax(1), allowed.any(1)
    new = np.where(switched[:, None], np.eye(jm.num_actions)[best], old)
    return Improvement(value, new, switched, advantage, low, chances)


def _variance(jm: JMDP, system: CollapsedT2, backed: Floats, usual: Floats) -> Floats:
    """(S, A) N times the variance of advantages in a model counted from N queries, to first order.

    An error at state x counts as often as x is visited, discounted: `ahead` (S, A, S), the visits
    after (s, a) minus those under the policy. At s itself one table serves the action as well.
    """
    size, here = jm.num_states, np.arange(jm.num_states)
    kernel = system.kernel.toarray()
    moves = jm.transitions.toarray().reshape(size, -1, size) - kernel[:, None]
    ahead = jm.gamma * moves @ np.linalg.inv(np.eye(size) - jm.gamma * kernel)
    own = backed - usual + ahead[here, :, here][jm.table_states] * usual
    ahead[here, :, here] = 0.0
    spread, own_spread = (jm.averaging @ x**2 - (jm.averaging @ x) ** 2 for x in (usual, own))
    return np.maximum((ahead**2 @ spread)[..., 0] + own_spread, 0.0)
