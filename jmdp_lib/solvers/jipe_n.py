"""Joint iterative policy evaluation of any order, JIPE-n (Section 5.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.affine import Chain, solve_surely
from jmdp_lib.solvers.fixed_point import FixedPoint, Solution

_MANY_MULTISETS = 50_000


def jipe(
    jm: JMDP, policy: ArrayLike, order: int = 2, tol: float = 1e-8, coupling: str = "joint"
) -> Solution:
    """All moments of orders 1 to `order`, in the norm of eq. (34).

    For means and covariances alone take `jipe2`: it is much faster, needs far less memory and
    loses no digits to cancellation. `jipe(order=2)` gives the same numbers, and is there to
    check one by the other.

    tol, coupling: as of `jipe2`; the accuracy is in ||.||_lambda, relative to the largest reward.

    State-actions that occur more than once in a coordinate are one random variable. Residuals are
    the paper's norm over the multisets of Section 5.3 averaged over the policy, from which every
    coordinate follows by one step.

    Up to 250,000 multisets, all of them are solved; beyond that, only those that same-state queries
    reach. If there are many, or if gamma is so large that many sweeps are needed, T_n's sparse
    system is solved by accelerated Gauss-Seidel, and the residuals are those of its steps.
    """
    require_tables("jipe", jm)
    order = checks.at_least("order", order, 1)
    allowed = checks.positive("tol", tol) * jm.reward_bound
    matrix = checks.policy_matrix(jm, policy)
    operator = MultisetOperator(jm, matrix, order, checked_coupling(jm, coupling))
    few, start = fixed_point.takes_few_sweeps(jm.gamma, tol), operator.zero()
    if few and start.size <= _MANY_MULTISETS:
        end = fixed_point.iterate(operator, start, jm.gamma, allowed, name=f"JIPE-{order}")
        off = 0.0
    else:
        end = _solve_multisets(operator, jm.gamma, allowed)
        off = fixed_point.variance_error(jm, end.error_bound)
    source = MultisetSource(operator, end.state)
    mean, blocks = source.same_state()
    # Multisets give a variance as a difference of large numbers.
    off += 1e-14 * (jm.reward_bound + float(np.abs(mean).max())) ** 2 / (1.0 - jm.gamma)
    return fixed_point.solution(jm, order, mean, blocks, source, end, off)


def _solve_multisets(
    operator: MultisetOperator, gamma: float, allowed: float
) -> FixedPoint[Floats]:
    """T_n x = x as one sparse system, in units of lambda, where T_n contracts by gamma."""
    constant, matrix, _ = operator.system
    scale = sparse.diags_array(operator.weights)
    scaled = sparse.csr_array(sparse.diags_array(1.0 / operator.weights) @ matrix @ scale)
    chain = Chain(scaled, 1.0, constant / operator.weights)
    name = f"JIPE-{operator.order}"

    def residual(x: Floats) -> float:
        state = x * operator.weights
        return operator.distance(operator.apply(state), state)

    goal = allowed * (1.0 - gamma)
    x, residuals, iterations = solve_surely(chain, residual, 0.5, goal, gamma, True, name)
    rounding = fixed_point.rounding_of(operator.longest_sum) * float(np.abs(x).max())
    state = x * operator.weights
    return fixed_point.certify(state, residuals, rounding, gamma, allowed, iterations, name)
