"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3) and JIPE-n (Section 5.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.memory import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, Source
from jmdp_lib.norms import norm_weight
from jmdp_lib.operators.literal import COUPLINGS
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.solvers.fixed_point import FixedPoint, Solution, State, iterate


def jipe2(
    jm: JMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None = None,
    max_iterations: int | None = None,
) -> Solution:
    """First and second moments of the joint returns, to accuracy `tol` in ||.||_lambda.

    coupling: "joint" uses the outcome tables; "independent" evaluates the JMDP with the same
        marginals in which the actions of a state draw from independent tables (never built).
    initial: M_0, a collection or arrays (S, A) and (S, A, S, A); zero unless given.

    Residuals are the paper's norm over all coordinates up to 512 state-actions, and beyond that
    over all means, all same-state blocks and the policy averages of the cross-state moments: T_2
    is the same contraction on those, and every other coordinate follows from them.
    """
    operator = PairOperator(jm, checks.policy_matrix(jm, policy), _independent(coupling))
    side = operator.policy.size if operator.full else jm.num_states
    require(6 * 8 * side**2, f"JIPE-2 on {jm.num_states:,} states")
    start = operator.zero() if initial is None else _pair_start(operator, initial)
    end = iterate(operator, start, jm.gamma, tol, max_iterations, "JIPE-2")
    source = PairSource(operator, end.state)
    return _solution(jm, end, 2, end.state.mean, end.state.blocks, source, initial is None)


def jipe(
    jm: JMDP,
    policy: ArrayLike,
    order: int = 2,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Solution | Moments | None = None,
    max_iterations: int | None = None,
) -> Solution:
    """All moments of orders 1 to `order`, to accuracy `tol` in ||.||_lambda (eq. (34)).

    State-actions that occur more than once in a coordinate are one random variable. Residuals are
    the paper's norm over the multisets of Section 5.3 averaged over the policy, from which every
    coordinate follows by one step. `initial`: M_0, any collection of at least this order.
    """
    order = checks.at_least("order", order, 1)
    operator = MultisetOperator(jm, checks.policy_matrix(jm, policy), order, _independent(coupling))
    start = operator.zero() if initial is None else _multiset_start(operator, initial)
    end = iterate(operator, start, jm.gamma, tol, max_iterations, f"JIPE-{order}")
    source = MultisetSource(operator, end.state)
    shape = (jm.num_states, jm.num_actions)
    mean = np.array([source.moment([x]) for x in np.ndindex(shape)]).reshape(shape)
    blocks = source.covariance(mean) if order >= 2 else None
    return _solution(jm, end, order, mean, blocks, source, initial is None)


def _independent(coupling: str) -> bool:
    return checks.one_of("coupling", coupling, COUPLINGS) == "independent"


def _pair_start(
    operator: PairOperator, initial: Solution | Moments | tuple[ArrayLike, ArrayLike]
) -> PairState:
    if isinstance(initial, Solution):
        initial = initial.moments
    mean: ArrayLike
    second: ArrayLike
    if isinstance(initial, Moments):
        mean, second = initial.mean, initial.full_second()
    elif not isinstance(initial, tuple) or len(initial) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    else:
        mean, second = initial
    return operator.centre(*checks.collection("initial", mean, second, operator.jm))


def _multiset_start(operator: MultisetOperator, initial: Solution | Moments) -> Floats:
    if isinstance(initial, Solution):
        initial = initial.moments
    if not isinstance(initial, Moments):
        raise ValueError(f"initial must be moments, got {initial!r}")
    if initial.order < operator.order:
        raise ValueError(f"initial holds orders up to {initial.order}, needed are {operator.order}")
    checks.same_shape("initial mean", initial.mean.shape, operator.policy.shape, "(S, A)")
    return operator.average(initial.moment)


def _solution(
    jm: JMDP, end: FixedPoint[State], order: int, mean: Floats, blocks: Floats | None,
    source: Source, from_zero: bool,
) -> Solution:  # fmt: skip
    """Freeze what was solved, with what can be told from zero.

    Means wrong by up to the error bound e give a constant return one-step deviations of up to 2 e,
    and so a standard deviation of up to 2 e / sqrt(1 - gamma^2). A start with variances of its own
    leaves up to lambda e of them. Multisets give a variance as a difference of large numbers.
    """
    largest = jm.reward_bound + float(np.abs(mean).max())
    variance = (2.0 * end.error_bound) ** 2 / (1.0 - jm.gamma**2) + (1e-12 * largest) ** 2
    if not from_zero:
        variance += 2.0 * norm_weight(2, jm.gamma, jm.reward_bound) * end.error_bound
    if isinstance(source, MultisetSource):
        variance += 1e-14 * largest**2 / (1.0 - jm.gamma)
    moments = Moments(
        order, checks.frozen(mean), None if blocks is None else checks.frozen(blocks), source,
        end.error_bound + 1e-12 * largest, float(np.sqrt(variance)),
    )  # fmt: skip
    return Solution(moments, end.residuals, end.converged, end.error_bound, len(end.residuals))
