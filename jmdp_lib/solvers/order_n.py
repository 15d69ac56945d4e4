"""Moments of any order (Section 5.3): JIPE-n, and its incremental form for small problems."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import available_bytes, fits, gibibytes, rounding_of
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.model.simulator import Simulator, check_simulator, checked_query
from jmdp_lib.moments import Moments, StateAction, norm_weight
from jmdp_lib.operators.backups import Coordinates
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.operators.multisets import (
    ALL_LIMIT,
    MultisetOperator,
    MultisetSource,
    num_multisets,
    num_of_kind,
    partitions,
)
from jmdp_lib.solvers.affine import Chain, solve_to_residual
from jmdp_lib.solvers.fixed_point import Plan, Solution, certify, collect_moments, false_variance
from jmdp_lib.solvers.incremental import (
    IncrementalSolution,
    Steps,
    StepSize,
    checked_moments,
    learn,
)

MAX_COORDINATES = 200_000  # of the incremental form
_FEW = 2_000  # multisets up to which the plan makes the system itself
_SAMPLED = 16  # multisets of every kind from which the plan estimates the others
_SURE = 1.15  # how many times more entries are planned for than the sample has
_CHEAP = 1e6  # terms of laws that the plan may multiply out
# Nanoseconds for a term of a law, a product of two numbers in the steps of multisets, a multiset,
# an entry of the system in a sweep, and a moment that is read off at the end.
_LAW_NS = 7e3
_PRODUCT_NS = 10.0
_MULTISET_NS = 2.5e3
_SWEEP_NS = 4.0
_MOMENT_NS = 1e5
LOG = logging.getLogger("jmdp_lib")


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
    state reach. `plan_jipe` says beforehand how many there are, and what they cost: that grows fast
    with the order. A system that does not fit into memory is refused before any work. If it may not
    fit, and nobody knows before how much is reached, a warning says so.

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
    operator = _operator(jm, policy, order, coupling)
    allowed = checks.positive("tol", tol) * jm.reward_bound
    centred = operator.jm
    plan = _planned(operator, tol)
    LOG.info("JIPE-%d, %s", order, plan)
    _refuse_or_warn(plan, order)
    # T_n x = x is one sparse system, in units of lambda, where T_n contracts by gamma.
    constant, steps, _ = operator.system
    weights = operator.weights
    name = f"JIPE-{order}"
    scaled = sparse.diags_array(1.0 / weights) @ steps @ sparse.diags_array(weights)
    chain = Chain(sparse.csr_array(scaled), 1.0, constant / weights)
    goal = tol * centred.reward_bound * (1.0 - jm.gamma)
    x, residuals, iterations = solve_to_residual(chain, chain.residual, 0.5, goal, jm.gamma, name)
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
    return Solution(moments, *end, plan=plan)


def plan_jipe(
    jm: JMDP, policy: Policy, order: int = 2, tol: float = 1e-8, coupling: str = "joint"
) -> Plan:
    """What `jipe` would do with the same arguments, and the memory and time it would take.

    If all multisets are solved, their number is exact. The outcomes, and with them memory and time,
    are estimated from the steps of some of them. If only those are solved that moments of one state
    reach, the plan gives the most that there can be.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=10)
        >>> for order in (2, 3, 4):
        ...     plan = jl.plan_jipe(jm, jl.goal_policy(10), order)
        ...     print(plan.route, plan.pairs)
        all 5250
        all 187050
        reached 5128475
    """
    return _planned(_operator(jm, policy, order, coupling), checks.positive("tol", tol))


def _operator(jm: JMDP, policy: Policy, order: int, coupling: str) -> MultisetOperator:
    """T_n for what a user hands in, checked, without the offset of its rewards."""
    require_tables("jipe", jm)
    order = checks.at_least("order", order, 1)
    matrix = checks.policy_matrix(jm, policy)
    return MultisetOperator(jm.centred, matrix, order, checked_coupling(jm, coupling))


def _planned(operator: MultisetOperator, tol: float) -> Plan:
    """The number of multisets, and what their steps cost, from a sample of them."""
    jm = operator.jm
    size = num_multisets(jm.num_states, operator.order)
    law_terms = _law_terms(operator)
    if size <= _FEW and law_terms.sum() <= _CHEAP:  # a few: the system itself
        constant, matrix, _ = operator.system
        entries = float(matrix.nnz + np.count_nonzero(constant))
        products = entries
    else:
        entries, products = _sampled_work(operator, law_terms)
        entries *= _SURE
    sweeps = 2.0 + 2.0 * math.log10(10.0 / min(tol, 1.0)) / math.sqrt(1.0 - jm.gamma**2)
    time = _LAW_NS * law_terms.sum() + _PRODUCT_NS * products + _MULTISET_NS * size
    time += _SWEEP_NS * entries * sweeps + _MOMENT_NS * operator.policy.size * jm.num_actions
    route = "all" if size <= ALL_LIMIT else "reached"
    memory = operator.memory(int(entries), size + 1)
    return Plan(route, jm.num_states, size, memory, None, int(entries), 1e-9 * float(time))


def _law_terms(operator: MultisetOperator) -> Floats:
    """(S,) how many terms are multiplied out for the laws of each state."""
    played = (operator.policy > 0.0).sum(1)
    tables = np.diff(operator.jm.starts)
    kinds = [powers for total in range(1, operator.order + 1) for powers in partitions(total)]
    return np.array([
        k * sum(comb(a + len(powers) - 1, len(powers)) * 2.0 ** sum(powers) for powers in kinds)
        for k, a in zip(tables.tolist(), played.tolist(), strict=True)
    ])  # fmt: skip


def _sampled_work(operator: MultisetOperator, law_terms: Floats) -> tuple[float, float]:
    """Entries of the matrix of T_n, and products of numbers that make it: from some of its rows.

    law_terms: (S,). Only a part of the states is looked at where laws take long; where even that
    takes too long, rows have as many entries as the policy's chain allows.
    """
    num_states = operator.jm.num_states
    rng = checks.stream(0, "plan_jipe")
    affordable = int(_CHEAP / law_terms.max())
    if affordable < min(operator.order, num_states):
        return _most_work(operator)
    count = min(num_states, affordable, 4 * _SAMPLED)
    states = np.sort(rng.choice(num_states, count, replace=False))
    if count < num_states:
        operator = replace(operator, only=tuple(states.tolist()))
    entries = products = 0.0
    for total in range(1, operator.order + 1):
        for powers in partitions(total):
            rows = operator.drawn(powers, _SAMPLED, states, rng)
            matrix, _, made = operator.step(rows)
            share = num_of_kind(num_states, powers) / _SAMPLED
            entries += share * matrix.nnz
            products += share * made
    return entries, products


def _most_work(operator: MultisetOperator) -> tuple[float, float]:
    """Entries and products at most: a branch leads to each of its successors, or ends."""
    num_states = operator.jm.num_states
    chain = CollapsedT2(operator.jm, operator.policy).kernel
    successors = chain.nnz / num_states
    size = num_multisets(num_states, operator.order)
    entries = products = 0.0
    for total in range(1, operator.order + 1):
        for powers in partitions(total):
            ways = math.prod(1.0 + m * successors for m in powers)
            count = num_of_kind(num_states, powers)
            entries += count * min(ways, size)
            products += count * ways
    return entries, products


def _refuse_or_warn(plan: Plan, order: int) -> None:
    """Refuse a system that does not fit into memory; warn of one that may not."""
    if fits(plan.memory):
        return
    what = f"JIPE-{order} needs {plan}; available are {gibibytes(available_bytes())}"
    if plan.route == "all":
        raise MemoryError(f"{what}; use a lower order, or jipe2 for means and covariances")
    warnings.warn(
        f"{what}: it ends with a MemoryError if moments of one state reach as much as that",
        stacklevel=3,
    )


def incremental_jipe(
    simulator: Simulator,
    policy: Policy,
    order: int,
    num_updates: int,
    step_size: Steps = StepSize(),  # noqa: B008 (immutable)
    seed: Seed = 0,
    checkpoints: int | Sequence[int] = 20,
    reference: Solution | Moments | None = None,
) -> IncrementalSolution:
    """All moments of orders 1 to `order` from samples; coordinates are picked uniformly.

    Arguments and result are those of `incremental_jipe2`, but a run cannot be continued, and all
    residuals are estimates.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.example_1(gamma=0.2)
        >>> learned = jl.incremental_jipe(jm, [0], order=3, num_updates=5000, step_size=(1.0, 1.0))
        >>> exact = jl.jipe(jm, [0], order=3).moments
        >>> third = [(0, 0)] * 3
        >>> print(f"{learned.moments.moment(third):.2f}, exact {exact.moment(third):.2f}")
        0.77, exact 0.73
    """
    matrix = checks.policy_matrix(check_simulator(simulator), policy)
    order = checks.at_least("order", order, 1)
    count = sum(comb(matrix.size + k - 1, k) for k in range(1, order + 1))
    if count > MAX_COORDINATES:
        raise ValueError(
            f"order {order} on {matrix.size} state-actions has {count:,} coordinates, more than "
            f"{MAX_COORDINATES:,}; use jipe, or incremental_jipe2"
        )
    layout = Multisets(matrix, order)
    exact = checked_moments("reference", reference, matrix.shape, order)
    truth = None if exact is None else np.array([exact.moment(x) for x in layout.every])
    return learn(simulator, layout, num_updates, step_size, seed, checkpoints, truth)


@dataclass(frozen=True, eq=False)
class Multisets(Coordinates):
    """A layout of samples: one coordinate for every multiset of up to `order` state-actions."""

    order: int
    coupling = "joint"

    @property
    def name(self) -> str:
        return f"order {self.order}"

    @cached_property
    def every(self) -> list[tuple[StateAction, ...]]:
        """The sorted multisets, by order."""
        num_states, num_actions = self.policy.shape
        single = list(product(range(num_states), range(num_actions)))
        orders = range(1, self.order + 1)
        return [x for k in orders for x in combinations_with_replacement(single, k)]

    @cached_property
    def _place(self) -> dict[tuple[StateAction, ...], int]:
        return {x: i for i, x in enumerate(self.every)}

    @property
    def used(self) -> Any:
        """(size,) which coordinates are learned: all."""
        return np.ones(len(self.every), dtype=bool)

    @cached_property
    def orders(self) -> Ints:
        """(size,) how many state-actions each multiset has."""
        return np.array([len(x) for x in self.every])

    def moment(self, values: Floats, coordinates: Sequence[StateAction]) -> float:
        """E of the product of the returns; M^(0) = 1."""
        return float(values[self._place[tuple(sorted(coordinates))]]) if coordinates else 1.0

    def read(self, values: Floats) -> tuple[Floats, Floats | None, MultisetSource]:
        """Mean (S, A), covariance blocks (S, A, A) from order 2 on, and all coordinates."""
        source = MultisetSource(self, values.copy())
        return *source.same_state(), source

    def backup(
        self, simulator: Simulator, values: Floats, i: int, rng: np.random.Generator
    ) -> float:
        """A draw of hat T_n(M, x_1 ... x_k).

        Equal state-actions are one branch; the branches of a state share one query; every branch
        draws one next action; (R + gamma Z')^m is expanded branch by branch, eq. (33).
        """
        powers = Counter(self.every[i])
        terms: list[tuple[float, tuple[StateAction, ...]]] = [(1.0, ())]
        for state in sorted({s for s, _ in powers}):
            actions = sorted(a for s, a in powers if s == state)
            outcomes = checked_query(simulator, state, actions, rng)
            for a, (r, u) in zip(actions, outcomes, strict=True):
                x = (u, self.choose(u, rng))
                m = powers[state, a]
                terms = [
                    (c * comb(m, k) * r ** (m - k) * simulator.gamma**k, rest + (x,) * k)
                    for c, rest in terms
                    for k in range(m + 1)
                ]
        return sum(c * self.moment(values, rest) for c, rest in terms if c != 0.0)
