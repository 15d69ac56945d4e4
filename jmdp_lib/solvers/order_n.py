"""Moments of any order (Section 5.3), JIPE-n: the fixed point of T_n on multisets of states."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.machine import rounding_of
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.moments import norm_weight
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.solvers.affine import Chain, solve
from jmdp_lib.solvers.fixed_point import Solution, certify, collect_moments, false_variance


def jipe(
    jm: JMDP, policy: Policy, order: int = 2, tol: float = 1e-8, coupling: str = "joint"
) -> Solution:
    """All moments of orders 1 to `order`: the fixed point of $T_n$, eqs. (31) to (33).

    For means and covariances alone take `jipe2`: it is much faster, needs far less memory and
    loses no digits to cancellation. `jipe(order=2)` gives the same numbers, and is there to
    check one by the other.

    policy, coupling: as in `jipe2`.
    tol: accuracy in $||.||_lambda$, eq. (34), relative to the largest absolute reward: the result
        has converged once error_bound is at most tol * jm.reward_bound.

    State-actions that occur more than once in a coordinate are one random variable. What is solved
    are policy averages over multisets of states (Section 5.3), from which every coordinate follows
    in one step; residuals are the paper's norm of these.

    Up to 250,000 multisets, all of them are solved; beyond that, only those that moments of one
    state reach. Their number grows fast with the order; `pairs` of the solution has it. A system
    that does not fit into memory is refused.

    The sparse system of $T_n$ is solved by accelerated Gauss-Seidel. The residuals are those of its
    steps, and the last one that of the moments.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> moments = jl.jipe(jm, jl.uniform_policy(jm), order=4).moments
        >>> gap = (0, 0, 1)
        >>> variance = moments.gap_central_moment(gap, 2)
        >>> kurtosis = moments.gap_central_moment(gap, 4) / variance**2
        >>> print(f"variance {variance:.4f}, kurtosis {kurtosis:.4f}")
        variance 1.5690, kurtosis 2.2938
    """
    require_tables("jipe", jm)
    order = checks.at_least("order", order, 1)
    matrix = checks.policy_matrix(jm, policy)
    operator = MultisetOperator(jm.without_offset, matrix, order, checked_coupling(jm, coupling))
    allowed = checks.positive("tol", tol) * jm.reward_bound
    centred = operator.jm
    # T_n x = x is one sparse system, in units of lambda, where T_n contracts by gamma.
    constant, steps, _ = operator.system
    weights = operator.weights
    name = f"JIPE-{order}"
    scaled = sparse.diags_array(1.0 / weights) @ steps @ sparse.diags_array(weights)
    chain = Chain(sparse.csr_array(scaled), 1.0, constant / weights)
    goal = tol * centred.reward_bound * (1.0 - jm.gamma)
    x, residuals, iterations = solve(chain, goal, jm.gamma, name)
    rounding = rounding_of(operator.longest_sum) * float(np.abs(x).max())
    returns = rounding_of(0) * jm.reward_bound
    end = certify(residuals, rounding + returns, jm.gamma, allowed, iterations, name)
    source = MultisetSource(operator, x * weights)
    mean, blocks = source.same_state()
    # Multisets give a variance as a difference of large numbers.
    off = 1e-14 * (centred.reward_bound + float(np.abs(mean).max())) ** 2 / (1.0 - jm.gamma)
    solver_error = float(residuals[-1] + rounding) / (1.0 - jm.gamma)
    off += 2.0 * norm_weight(2, jm.gamma, centred.reward_bound) * solver_error
    off += false_variance(jm.gamma, solver_error)
    found = order, mean, blocks, source
    moments = collect_moments(jm, found, jm.return_offset, end.error_bound, off)
    route = "all" if operator.solves_all else "reached"
    return Solution(moments, *end, route=route, pairs=x.size)
