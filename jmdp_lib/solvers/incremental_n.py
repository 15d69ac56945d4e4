"""Incremental JIPE-n, for small problems: every multiset of state-actions is a coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Seed
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, StateAction, norm_weight
from jmdp_lib.operators.multisets import MultisetOperator
from jmdp_lib.operators.sampled import sample_tn
from jmdp_lib.simulators import Simulator, check_simulator
from jmdp_lib.solvers.fixed_point import Solution
from jmdp_lib.solvers.incremental import IncrementalSolution, spread_stops
from jmdp_lib.solvers.learner import known_moments, plug_in_resolution
from jmdp_lib.solvers.schedules import StepSize

MAX_COORDINATES = 200_000


@dataclass(frozen=True)
class TableSource:
    """Moments in a table of sorted coordinates."""

    place: dict[tuple[StateAction, ...], int]
    values: Floats
    shape: tuple[int, int]

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """E of the product of the returns."""
        return float(self.values[self.place[tuple(sorted(coordinates))]])

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        every = list(np.ndindex(self.shape))
        full = np.array([self.moment([x, y]) for x, y in product(every, every)])
        return full.reshape(self.shape + self.shape)


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

    Arguments and result as of `incremental_jipe2`, without resuming. `residuals` need the tables of
    a JMDP and are nan for a plain simulator.
    """
    matrix = check_simulator(simulator, policy)
    order = checks.at_least("order", order, 1)
    num_updates = checks.at_least("num_updates", num_updates, 1)
    step = StepSize.of(step_size)
    stops = spread_stops(checkpoints, num_updates)
    every = list(product(range(matrix.shape[0]), range(matrix.shape[1])))
    count = sum(comb(matrix.size + k - 1, k) for k in range(1, order + 1))
    if count > MAX_COORDINATES:
        raise ValueError(
            f"order {order} on {len(every)} state-actions has {count:,} coordinates, more than "
            f"{MAX_COORDINATES:,}; use jipe, or incremental_jipe2"
        )
    known = known_moments(reference, matrix.shape, order)
    coordinates = [x for k in range(1, order + 1) for x in combinations_with_replacement(every, k)]
    source = TableSource(
        {x: i for i, x in enumerate(coordinates)}, np.zeros(len(coordinates)), matrix.shape
    )
    values, visits = source.values, np.zeros(len(coordinates), dtype=np.int64)
    orders = np.array([len(x) for x in coordinates])
    bound = getattr(simulator, "reward_bound", 1.0)
    weights = np.array([norm_weight(k, simulator.gamma, bound) for k in range(1, order + 1)])
    exact = None if known is None else np.array([known.moment(x) for x in coordinates])
    operator = MultisetOperator(simulator, matrix, order) if isinstance(simulator, JMDP) else None
    rng = checks.generator(seed, 0)
    history: list[tuple[int, float, float]] = []
    done = 0
    with progress(num_updates, f"incremental JIPE-{order}") as bar:
        for stop in stops:
            for _ in range(stop - done):
                i = int(rng.integers(len(coordinates)))
                target = sample_tn(simulator, matrix, source.moment, coordinates[i], rng)
                visits[i] += 1
                values[i] += step.scale * float(visits[i]) ** -step.power * (target - values[i])
            bar.update(stop - done)
            done = stop
            residual, error = np.nan, np.nan
            if operator is not None:
                average = operator.average(source.moment)
                applied = np.array([operator.moment(average, x) for x in coordinates])  # T_n M
                residual = float((np.abs(values - applied) / weights[orders - 1]).max())
            if exact is not None:
                error = float((np.abs(values - exact) / weights[orders - 1]).max())
            history.append((done, residual, error))
    updates, residuals, errors = (np.array(column) for column in zip(*history, strict=True))
    error_bound = float(residuals[-1] / (1.0 - simulator.gamma))
    mean = values[: len(every)].reshape(matrix.shape).copy()
    blocks = None
    if order >= 2:
        second = np.einsum("sasb->sab", source.full_second())
        blocks = second - mean[:, :, None] * mean[:, None, :]
    resolution = plug_in_resolution(error_bound, simulator.gamma)
    moments = Moments(order, mean, blocks, source, float(np.nan_to_num(error_bound)), resolution)
    return IncrementalSolution(
        moments, residuals, False, error_bound, done, updates.astype(np.int64), errors,
        values, visits, f"order {order}", rng.bit_generator.state,
    )  # fmt: skip
