"""The one loop: M_{k+1} = T M_k until the certificate of Theorem 5.3 says it is accurate enough."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, ReadOnly, Source, norm_weight

State = TypeVar("State")

# More sweeps than this are not worth the curve of their residuals: gamma above some 0.995.
_MANY_SWEEPS = 5000


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached the accuracy that was asked for."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(ReadOnly):
    """What every solver returns. Its arrays are read-only.

    Attributes:
        moments: the moment collection.
        residuals: ||M_k - T M_k||_lambda for k = 0, 1, ...
        converged: whether error_bound <= tol * reward_bound.
        error_bound: residuals[-1] / (1 - gamma), and an allowance for rounding: a bound on
            ||moments - M^pi||_lambda. Means are within it, moments of order k within lambda_k
            times it.
        iterations: how often T was applied.
        plan: of `jipe2`, which route it took and what that needed; None of other solvers.

    Of an accelerated solver the residuals are the sizes of its steps where it looked, and the last
    one is the residual of what it returns.
    """

    moments: Moments
    residuals: Floats
    converged: bool
    error_bound: float
    iterations: int
    plan: Any = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return (
            f"{type(self).__name__}({state} after {self.iterations} iterations, "
            f"error_bound={self.error_bound:.3g}, {self.moments})"
        )


class Operator(Protocol[State]):
    """What the loop needs of a Bellman operator."""

    @property
    def longest_sum(self) -> int:
        """How many terms a coordinate of T M sums at most: what its rounding grows with."""

    def zero(self) -> State:
        """M = 0."""

    def apply(self, state: State) -> State:
        """T M."""

    def distance(self, new: State, old: State) -> float:
        """||new - old||_lambda."""


@dataclass(frozen=True)
class FixedPoint(Generic[State]):
    """The last iterate of the loop and its certificate."""

    state: State
    residuals: Floats
    converged: bool
    error_bound: float
    iterations: int


def iterate(
    operator: Operator[State],
    start: State,
    gamma: float,
    allowed: float,
    max_iterations: int | None = None,
    name: str = "JIPE",
    depth: int = 4,
) -> FixedPoint[State]:
    """Apply the operator until ||M_k - T M_k||_lambda / (1 - gamma) <= allowed; return T M_k.

    Without max_iterations the contraction itself says how many can be needed. Running out of
    iterations is a ConvergenceWarning and converged=False. The bound holds for M_k, and a
    fortiori for the T M_k that is returned. It counts the rounding of one application of T, which
    no residual can show: an accuracy beyond that is never claimed.
    """
    limit = None if max_iterations is None else checks.at_least("max_iterations", max_iterations, 1)
    target = allowed * (1.0 - gamma)
    residuals: list[float] = []
    ulps = rounding_of(operator.longest_sum)
    with progress(None, name, "sweep") as bar:
        while True:
            new = operator.apply(start)
            residuals.append(operator.distance(new, start))
            start = new
            if limit is None:
                limit = enough_sweeps(residuals[0], target, gamma)
            bar.total = limit
            bar.update()
            if residuals[-1] <= target or len(residuals) >= limit or len(residuals) % 100 == 0:
                rounding = ulps * operator.distance(start, operator.zero())
                hopeless = residuals[-1] <= rounding >= target  # no residual could certify it
                if residuals[-1] + rounding <= target or hopeless or len(residuals) >= limit:
                    break
    applied = len(residuals)
    error_bound, converged = certify(residuals[-1], rounding, gamma, allowed, applied, name, depth)
    return FixedPoint(start, np.array(residuals), converged, error_bound, applied)


def certify(
    residual: float, rounding: float, gamma: float, allowed: float, iterations: int, name: str,
    depth: int = 4,
) -> tuple[float, bool]:  # fmt: skip
    """The error bound of eq. (23), and whether it is allowed: a ConvergenceWarning if not.

    allowed: tol * reward_bound, since ||.||_lambda grows with the rewards.
    depth: how many calls up the user is, whom the warning is for.
    """
    error_bound = (residual + rounding) / (1.0 - gamma)
    converged = error_bound <= allowed
    if not converged:
        beyond = rounding >= allowed * (1.0 - gamma)
        advice = "; tol is below double precision here" if beyond else ""
        warnings.warn(
            f"{name} stopped after {iterations} iterations with error bound "
            f"{error_bound:.3g} > tol * reward_bound = {allowed:.3g}{advice}",
            ConvergenceWarning,
            stacklevel=depth,
        )
    return error_bound, bool(converged)


def rounding_of(longest_sum: int) -> float:
    """What rounding leaves of a sum of so many terms, relative to their size."""
    return (2.0 + math.sqrt(longest_sum)) * float(np.finfo(float).eps)


def enough_sweeps(first: float, target: float, gamma: float) -> int:
    """Iterations after which a gamma-contraction has met the target, and some for rounding."""
    if first <= target or gamma == 0.0:
        return 3
    return 50 + math.ceil(1.05 * math.log(target / first) / math.log(gamma))


def is_short(gamma: float, tol: float) -> bool:
    """Whether repeating T to `tol` takes few enough sweeps to be worth its curve of residuals."""
    return enough_sweeps(1.0, tol * (1.0 - gamma), gamma) <= _MANY_SWEEPS


def left_over(jm: JMDP, error_bound: float) -> float:
    """How far a variance may be off that no sweeps from zero have made."""
    return 2.0 * norm_weight(2, jm.gamma, jm.reward_bound) * error_bound


def collect_moments(
    jm: JMDP, order: int, mean: Floats, blocks: Floats | None, source: Source, error_bound: float,
    variance_error: float,
) -> Moments:  # fmt: skip
    """What was solved, with what can be told from zero.

    Means wrong by up to the error bound e give a constant return one-step deviations of up to 2 e,
    and so a standard deviation of up to 2 e / sqrt(1 - gamma^2). Sweeps from zero keep every gap
    variance that of a shorter process; otherwise one may be off by `variance_error`.
    """
    largest = jm.reward_bound + float(np.abs(mean).max())
    variance = (2.0 * error_bound) ** 2 / (1.0 - jm.gamma**2) + (1e-12 * largest) ** 2
    resolution = float(np.sqrt(variance + variance_error))
    return Moments(order, mean, blocks, source, error_bound + 1e-12 * largest, resolution)
