"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3) and JIPE-n (Section 5.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, Source
from jmdp_lib.norms import norm_weight
from jmdp_lib.operators.literal import COUPLINGS
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.solvers.fixed_point import FixedPoint, Solution, State, iterate

_SIGMA = ("state", "action", "other state", "other action")


def jipe2(
    jm: JMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Moments | tuple[ArrayLike, ArrayLike] | None = None,
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
    start = operator.zero() if initial is None else _pair_start(operator, initial)
    end = iterate(operator, start, jm.gamma, tol, max_iterations, "JIPE-2")
    source = PairSource(operator, end.state)
    # Means wrong by up to the error bound e give a constant return one-step deviations up to 2 e.
    resolution = 2.0 * end.error_bound / np.sqrt(1.0 - jm.gamma**2)
    return _solution(jm, end, 2, end.state.mean, end.state.blocks, source, resolution)


def jipe(
    jm: JMDP,
    policy: ArrayLike,
    order: int = 2,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Moments | None = None,
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
    # A variance is a difference here, of a second moment and a square.
    weight = norm_weight(2, jm.gamma, jm.reward_bound)
    resolution = np.sqrt(2.0 * weight * end.error_bound + 1e-14 * float((mean**2).max()))
    return _solution(jm, end, order, mean, blocks, source, resolution)


def _independent(coupling: str) -> bool:
    return checks.one_of("coupling", coupling, COUPLINGS) == "independent"


def _pair_start(
    operator: PairOperator, initial: Moments | tuple[ArrayLike, ArrayLike]
) -> PairState:
    if isinstance(initial, Moments):
        mean, second = initial.mean, initial.full_second()
    else:
        mean = checks.floats("initial mean", initial[0], *_SIGMA[:2])
        second = checks.floats("initial second", initial[1], *_SIGMA)
    shape = operator.policy.shape
    checks.same_shape("initial mean", mean.shape, shape, "(S, A)")
    checks.same_shape("initial second", second.shape, shape + shape, "(S, A, S, A)")
    return operator.centre(mean, second)


def _multiset_start(operator: MultisetOperator, initial: Moments) -> Floats:
    if initial.order < operator.order:
        raise ValueError(f"initial holds orders up to {initial.order}, needed are {operator.order}")
    checks.same_shape("initial mean", initial.mean.shape, operator.policy.shape, "(S, A)")
    return operator.average(initial.moment)


def _solution(
    jm: JMDP, end: FixedPoint[State], order: int, mean: Floats, blocks: Floats | None,
    source: Source, resolution: float,
) -> Solution:  # fmt: skip
    """Freeze what was solved."""
    for array in (mean, blocks):
        if array is not None:
            array.setflags(write=False)
    rounding = 1e-12 * (jm.reward_bound + float(np.abs(mean).max()))
    moments = Moments(
        order, mean, blocks, source, end.error_bound + rounding, resolution + rounding
    )
    return Solution(moments, end.residuals, end.converged, end.error_bound, len(end.residuals))
