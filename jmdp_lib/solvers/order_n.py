"""Moments of any order (Section 5.3), JIPE-n: the fixed point of T_n on multisets of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.fast import Chain, CollapsedT2, MultisetOperator, Solved, System, solve
from jmdp_lib.machine import rounding_of
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.moments import StateAction, norm_weight, same_state_moments, second_moments
from jmdp_lib.solvers.fixed_point import Solution, certify, collect_moments, false_variance


def jipe(
    jm: JMDP,
    policy: Policy,
    order: int = 2,
    tol: float = 1e-8,
    coupling: CouplingName = DEFAULT_COUPLING,
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

    Moments of one state, and the multisets that they reach, are solved at once. Their number grows
    fast with the order; `pairs` of the solution has it. Others are solved when they are read, to
    what `error_bound` says. A system that does not fit into memory is refused.

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
    system = CollapsedT2.of("jipe", jm, policy, coupling)
    order = checks.at_least("order", order, 1)
    matrix = system.policy
    centred = system.jm
    operator = MultisetOperator(centred, matrix, order, system.coupling)
    allowed = checks.positive("tol", tol) * jm.reward_bound
    source = MomentsFromMultisets(operator, tol * centred.reward_bound * (1.0 - jm.gamma))
    x, residuals, iterations = source.solve(operator.system)
    longest = int(np.diff(operator.system.matrix.indptr).max(initial=0))
    rounding = rounding_of(longest) * float(np.abs(x).max(initial=0.0))
    returns = rounding_of(0) * jm.reward_bound
    end = certify(residuals, rounding + returns, jm.gamma, allowed, iterations, source.name)
    # What is solved when it is read is to be as near as this says, and rounding comes on top.
    source = replace(source, goal=0.25 * end.error_bound * (1.0 - jm.gamma))
    mean = same_state_moments(source.moment, matrix.shape, 1)
    blocks = None
    if order > 1:
        blocks = same_state_moments(source.moment, matrix.shape, 2)
        blocks -= mean[:, :, None] * mean[:, None, :]
    # Multisets give a variance as a difference of large numbers.
    off = 1e-14 * (centred.reward_bound + float(np.abs(mean).max())) ** 2 / (1.0 - jm.gamma)
    solver_error = float(residuals[-1] + rounding) / (1.0 - jm.gamma)
    off += 2.0 * norm_weight(2, jm.gamma, centred.reward_bound) * solver_error
    off += false_variance(jm.gamma, solver_error)
    found = order, mean, blocks, source
    moments = collect_moments(jm, found, jm.return_offset, end.error_bound, off)
    return Solution(moments, *end, route="reachable", pairs=x.size)


@dataclass(frozen=True)
class MomentsFromMultisets:
    """Moments of multisets; what is not known is solved.

    goal: for residuals, in the paper's norm. known: the moment of each multiset, by its number.
    """

    operator: MultisetOperator
    goal: float
    known: dict[int, float] = field(default_factory=lambda: {0: 1.0})  # M^(0) = 1

    @property
    def name(self) -> str:
        """Of the solver, for people."""
        return f"JIPE-{self.operator.order}"

    def solve(self, system: System) -> Solved:
        """The moments of a system, in units of lambda, where T_n contracts by gamma."""
        weights = system.weights
        scaled = sparse.diags_array(1.0 / weights) @ system.matrix @ sparse.diags_array(weights)
        chain = Chain(sparse.csr_array(scaled), 1.0, system.constant / weights)
        solved = solve(chain, self.goal, self.operator.jm.gamma, self.name)
        found = zip(system.numbers.tolist(), (solved.x * weights).tolist(), strict=True)
        self.known.update(found)
        return solved

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """E of the product of the returns."""
        row = self.operator.rows_of([self.operator.coordinate(coordinates)])
        (number,) = self.operator.numbers(row).tolist()
        if number not in self.known:
            self.solve(self.operator.closure(row))
        return self.known[number]

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        shape = self.operator.policy.shape
        pairs = combinations_with_replacement(np.ndindex(shape), 2)
        rows = self.operator.rows_of(map(self.operator.coordinate, pairs))
        self.solve(self.operator.closure(rows))
        return second_moments(self.moment, shape)
