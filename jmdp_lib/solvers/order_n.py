"""Moments of any order (Section 5.3): JIPE-n, and its incremental form for small problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.moments import Moments, StateAction
from jmdp_lib.operators.backups import Coordinates
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.simulators import Simulator, check_simulator, checked_query
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.affine import Chain, solve_surely
from jmdp_lib.solvers.fixed_point import Certificate, Solution
from jmdp_lib.solvers.incremental import IncrementalSolution, StepSize, known_moments, learn

_MANY_MULTISETS = 50_000
MAX_COORDINATES = 200_000  # of the incremental form


def jipe(
    jm: JMDP, policy: ArrayLike, order: int = 2, tol: float = 1e-8, coupling: str = "joint"
) -> Solution:
    """All moments of orders 1 to `order`: the fixed point of $T_n$, eqs. (31) to (33).

    For means and covariances alone take `jipe2`: it is much faster, needs far less memory and
    loses no digits to cancellation. `jipe(order=2)` gives the same numbers, and is there to
    check one by the other.

    policy, tol, coupling: as in `jipe2`; the accuracy is in the norm $||.||_lambda$ of eq. (34).

    State-actions that occur more than once in a coordinate are one random variable. What is solved
    are policy averages over multisets of states (Section 5.3), from which every coordinate follows
    in one step; residuals are the paper's norm of these.

    Up to 250,000 multisets, all of them are solved; beyond that, only those that same-state queries
    reach. If there are many, or if $gamma$ is so large that many sweeps are needed, the sparse
    system of $T_n$ is solved by accelerated Gauss-Seidel, and the residuals are those of its steps.

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
    allowed = checks.positive("tol", tol) * jm.reward_bound
    matrix = checks.policy_matrix(jm, policy)
    operator = MultisetOperator(jm, matrix, order, checked_coupling(jm, coupling))
    few, start = fixed_point.takes_few_sweeps(jm.gamma, tol), operator.zero()
    if few and start.size <= _MANY_MULTISETS:
        state, end = fixed_point.iterate(operator, start, jm.gamma, allowed, name=f"JIPE-{order}")
        off = 0.0
    else:
        state, end = _solve_multisets(operator, jm.gamma, allowed)
        off = fixed_point.variance_error(jm, end.error_bound)
    source = MultisetSource(operator, state)
    mean, blocks = source.same_state()
    # Multisets give a variance as a difference of large numbers.
    off += 1e-14 * (jm.reward_bound + float(np.abs(mean).max())) ** 2 / (1.0 - jm.gamma)
    return fixed_point.solution(jm, order, mean, blocks, source, end, off)


def _solve_multisets(
    operator: MultisetOperator, gamma: float, allowed: float
) -> tuple[Floats, Certificate]:
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
    x, residuals, iterations = solve_surely(chain, residual, 0.5, goal, gamma, name)
    rounding = fixed_point.rounding_of(operator.longest_sum) * float(np.abs(x).max())
    made = residuals, rounding, gamma, allowed, iterations
    return x * operator.weights, fixed_point.certify(*made, name)


def incremental_jipe(
    simulator: Simulator,
    policy: ArrayLike,
    order: int,
    num_updates: int,
    step_size: StepSize | tuple[float, float] | float = StepSize(),  # noqa: B008 (immutable)
    seed: Seed = 0,
    checkpoints: int | Sequence[int] = 20,
    reference: Solution | Moments | None = None,
) -> IncrementalSolution:
    """All moments of orders 1 to `order` from samples; coordinates are picked uniformly.

    Arguments and result are those of `incremental_jipe2`, but a run cannot be continued.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.example_1(gamma=0.2)
        >>> learned = jl.incremental_jipe(jm, [0], order=3, num_updates=5000, step_size=(1.0, 1.0))
        >>> exact = jl.jipe(jm, [0], order=3).moments
        >>> third = [(0, 0)] * 3
        >>> print(f"{learned.moments.moment(third):.2f}, exact {exact.moment(third):.2f}")
        0.69, exact 0.73
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
    known = known_moments("reference", reference, matrix.shape, order)
    truth = None if known is None else np.array([known.moment(x) for x in layout.every])
    weights = np.full(count, 1.0 / count)
    return learn(simulator, layout, weights, num_updates, step_size, seed, checkpoints, truth)


@dataclass(frozen=True, eq=False)
class Multisets(Coordinates):
    """A layout of samples: one coordinate for every multiset of up to `order` state-actions."""

    order: int

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

    @cached_property
    def orders(self) -> Ints:
        """(size,) how many state-actions each multiset has."""
        return np.array([len(x) for x in self.every])

    def moment(self, values: Floats, coordinates: Sequence[StateAction]) -> float:
        """E of the product of the returns; M^(0) = 1."""
        return float(values[self._place[tuple(sorted(coordinates))]]) if coordinates else 1.0

    def applied(self, jm: JMDP, values: Floats) -> Floats:
        """T_n M, exactly."""
        operator = MultisetOperator(jm, self.policy, self.order)
        average = operator.average(MultisetSource(self, values).moment)
        return np.array([operator.moment(average, x) for x in self.every])

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
                x, m = (u, self.choose(u, rng)), powers[state, a]
                terms = [
                    (c * comb(m, k) * r ** (m - k) * simulator.gamma**k, rest + (x,) * k)
                    for c, rest in terms
                    for k in range(m + 1)
                ]
        return sum(c * self.moment(values, rest) for c, rest in terms if c != 0.0)
