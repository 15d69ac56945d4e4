"""Moments of any order, JIPE-n (Section 5.3): the fixed point of T_n on multisets of states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.fast import CollapsedT2, MomentsFromMultisets, MultisetOperator
from jmdp_lib.machine import rounding_of
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import Solution, certify, false_variance, solution


def jipe(
    jm: JMDP,
    policy: Policy,
    *,
    order: int = 2,
    tol: float = 1e-8,
    coupling: CouplingName = DEFAULT_COUPLING,
) -> Solution:
    """Compute all moments of orders 1 to `order`: the fixed point of $T_n$, eqs. (31) to (33).

    For means and covariances alone use `jipe2`: it is much faster, needs far less memory and
    loses no digits to cancellation. `jipe(order=2)` returns the same numbers and can check it.

    State-actions that occur more than once in a coordinate are one random variable. The unknowns
    are policy averages over multisets of states (Section 5.3), from which every coordinate follows
    in one step. Residuals are in the paper's norm of these unknowns.

    Moments of one state, and the multisets that they reach, are solved at once. Their number,
    `num_unknowns` of the solution, grows fast with the order. Other moments are solved when they
    are read, to an accuracy of `error_bound`.

    The sparse system of $T_n$ is solved by accelerated Gauss-Seidel. The residuals are those of the
    solver's steps, and the last one is the residual of the moments.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        order: the highest order, 1 or more.
        tol: accuracy in $||.||_lambda$, eq. (34), relative to the largest absolute reward: the
            result has converged once error_bound is at most tol * jm.reward_bound.
        coupling: which branches share a draw, as in `jipe2`.

    Returns:
        The moments up to the order and their certificate.

    Raises:
        MemoryError: the sparse system does not fit.

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
    operator = CollapsedT2.of("jipe", jm, policy, coupling)
    order = checks.at_least("order", order, 1)
    multisets = MultisetOperator(operator.jm, operator.policy, order, operator.coupling)
    error_tol = checks.positive("tol", tol) * operator.jm.reward_bound
    source = MomentsFromMultisets(multisets, error_tol * (1.0 - jm.gamma))
    solved = source.solve(multisets.system)
    longest_sum = int(np.diff(multisets.system.kernel.indptr).max(initial=0)) + 1
    largest = float(np.abs(solved.x).max(initial=0.0))
    rounding = order * rounding_of(longest_sum) * largest  # one state steps at a time
    error_tol = tol * jm.reward_bound  # of returns with their offset
    claimed = rounding + rounding_of(0) * jm.reward_bound
    end = certify(solved.residuals, claimed, jm.gamma, error_tol, solved.iterations, source.name)
    # Moments that are solved when they are read have the same error bound, with their rounding.
    source = replace(source, residual_tol=0.25 * end.error_bound * (1.0 - jm.gamma))
    mean, covariance = source.same_state()
    solver_error = float(solved.residuals[-1] + rounding) / (1.0 - jm.gamma)
    return solution(
        jm,
        end,
        order=order,
        centred_mean=mean,
        covariance=covariance,
        source=source,
        variance_error=_variance_error(operator, mean, solver_error),
        route="reachable",
        num_unknowns=solved.x.size,
    )


def _variance_error(operator: CollapsedT2, mean: Floats, solver_error: float) -> float:
    """Bound on the error of a variance, which multisets give as a difference of large numbers."""
    gamma = operator.jm.gamma
    largest = operator.jm.reward_bound + float(np.abs(mean).max())
    from_solver = 2.0 * operator.weight * solver_error + false_variance(gamma, solver_error)
    return from_solver + 1e-14 * largest**2 / (1.0 - gamma)
