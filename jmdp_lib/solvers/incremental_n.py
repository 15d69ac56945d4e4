"""Incremental JIPE-n, for small problems: every multiset of state-actions is a coordinate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, StateAction
from jmdp_lib.operators.backups import Coordinates
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.simulators import Simulator, check_simulator, checked_query
from jmdp_lib.solvers.fixed_point import Solution
from jmdp_lib.solvers.incremental import IncrementalSolution, StepSize, known_moments, learn

MAX_COORDINATES = 200_000


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
    """All moments of orders 1 to `order` from samples, coordinates picked uniformly.

    Arguments and result as of `incremental_jipe2`, without resuming.
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
    """One coordinate for every multiset of up to `order` state-actions."""

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
