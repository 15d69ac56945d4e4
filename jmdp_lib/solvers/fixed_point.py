"""The paper's iteration, M_{k+1} = T M_k until the certificate of Theorem 5.3 is small enough.

Sweeps and projections run it; `jmdp_lib.fast` solves the same equations faster.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import ReadOnly, progress, rounding_of, rounding_of_returns
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, MomentSource, enough_sweeps

State = TypeVar("State")
Status = Literal["converged", "max_iterations", "rounding", "no contraction"]
_SUMS = 1e-12  # relative rounding of the sums in a solution, generously


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached the requested accuracy.

    Example:
        >>> import warnings
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     solution = jl.jipe2(jm, [0] * 4, route="sweeps", max_iterations=3)
        ...
        >>> solution.converged, [w.category.__name__ for w in caught]
        (False, ['ConvergenceWarning'])
    """


def warn(text: str) -> None:
    """A ConvergenceWarning at the line of the user's code that led here."""
    frame = inspect.currentframe()
    depth = 1
    while frame and frame.f_globals.get("__name__", "").startswith("jmdp_lib."):
        frame = frame.f_back
        depth += 1
    warnings.warn(text, ConvergenceWarning, stacklevel=depth)


@dataclass(frozen=True, eq=False, repr=False)
class Solution(ReadOnly):
    """Result of every solver: the moments, and a certificate of their accuracy (Theorem 5.3).

    All arrays are read-only. `pickle` keeps all of it.

    Attributes:
        moments: the moment collection.
        residuals: (n,), $||M_k - T M_k||_lambda$ for $k = 0, 1, ...$
        status: "converged": error_bound is at most tol * reward_bound. Otherwise the reason why the
            solver stopped: "max_iterations", its limit; "rounding", double precision allows no
            more; "no contraction" (projections), nothing bounds the error.
        error_bound: a bound on $||M - M^pi||_lambda$, eq. (23): the last residual divided by
            $1 - gamma$, and an allowance for rounding. Means are within it, and moments of order
            $k$ within $lambda_k$ times it.
        iterations: number of applications of $T$, or of the pair operator of the route.
        route: method of solution, None for other solvers. By `jipe2`: "sweeps", $T_2$ repeated, its
            residuals the paper's curve for rewards of both signs (`trace_jipe2` has it for all);
            "reachable", one linear system on the pairs of states that the requested gaps reach;
            "dense", one on all pairs. By `jipe`: "reachable", one linear system on moments of one
            state and the multisets of states that they reach.
        num_unknowns: size of the linear system: unordered state pairs (`jipe2`), or moments and
            multisets (`jipe`); None for other solvers.

    An accelerated solver records the sizes of some of its steps; its last residual is that of the
    moments it returns.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> solution = jl.jipe2(jm, jl.uniform_policy(jm))
        >>> solution.status, solution.error_bound < 1e-8, solution.route
        ('converged', True, 'reachable')
    """

    moments: Moments
    residuals: Floats
    status: Status
    error_bound: float
    iterations: int
    route: str | None = field(default=None, kw_only=True)
    num_unknowns: int | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._verdict}, error_bound={self.error_bound:.3g}, "
            f"{self.moments})"
        )

    @property
    def converged(self) -> bool:
        """True if error_bound is at most tol * reward_bound."""
        return self.status == "converged"

    @property
    def _verdict(self) -> str:
        state = "converged" if self.converged else f"NOT converged ({self.status})"
        return f"{state} after {self.iterations} iterations"


class Operator(Protocol[State]):
    """A Bellman operator, as the loop needs it."""

    def apply(self, state: State) -> State:
        """T M."""

    def distance(self, new: State, old: State) -> float:
        """||new - old||_lambda."""

    def rounding(self, state: State) -> float:
        """Rounding error of T M in the same norm, which no residual shows."""


class Certificate(NamedTuple):
    """Accuracy of a solution; the attributes of `Solution` of these names."""

    residuals: Floats
    status: Status
    error_bound: float
    iterations: int


def iterate(
    operator: Operator[State],
    state: State,
    rate: float,
    goal: float,
    max_iterations: int | None = None,
    name: str = "JIPE",
) -> tuple[State, Floats, float]:
    """Apply the operator until ||M_k - T M_k||_lambda, and rounding, are at most `goal`.

    rate: its contraction modulus, which bounds the sweeps that can be needed by default. Returns
    T M_k, all residuals, and the rounding error of T M_k; `certify` says what they prove of M_k,
    and a fortiori of T M_k.
    """
    limit = None if max_iterations is None else checks.at_least("max_iterations", max_iterations, 1)
    residuals: list[float] = []
    with progress(None, name, "sweep") as bar:
        while True:
            new = operator.apply(state)
            residuals.append(operator.distance(new, state))
            state = new
            if limit is None:
                limit = enough_sweeps(residuals[0], goal, rate)
            bar.total = limit
            bar.update()
            # Rounding takes as long as a residual to compute: only when it may matter.
            if residuals[-1] <= goal or len(residuals) >= limit or len(residuals) % 100 == 0:
                rounding = operator.rounding(state)
                certified = residuals[-1] + rounding <= goal
                hopeless = residuals[-1] <= rounding and rounding >= goal  # nothing certifies it
                if certified or hopeless or len(residuals) >= limit:
                    return state, np.array(residuals), rounding


def certify(
    residuals: Floats,
    rounding: float,
    gamma: float,
    allowed: float,
    iterations: int,
    name: str,
    max_iterations: int | None = None,
) -> Certificate:
    """The error bound of eq. (23); a ConvergenceWarning if it is above `allowed`.

    allowed: tol * reward_bound, since ||.||_lambda grows with the rewards. A solver without
    max_iterations stops for rounding alone.
    """
    error_bound = float(residuals[-1] + rounding) / (1.0 - gamma)
    status: Status = "converged"
    if not error_bound <= allowed:
        beyond = iterations != max_iterations or rounding >= allowed * (1.0 - gamma)
        status = "rounding" if beyond else "max_iterations"
        advice = "; tol is below double precision here" if beyond else ""
        warn(
            f"{name} stopped after {iterations} iterations with error bound "
            f"{error_bound:.3g} > tol * reward_bound = {allowed:.3g}{advice}"
        )
    return Certificate(residuals, status, error_bound, iterations)


def false_variance(gamma: float, error: float) -> float:
    """The variance that a constant return may seem to have at the fixed point of C.

    Means of next states that are wrong by up to e = `error` give it one-step deviations of up to
    gamma e, and so a standard deviation of up to gamma e / sqrt(1 - gamma^2).
    """
    return (gamma * error) ** 2 / (1.0 - gamma**2)


def _rounding_of_gaps(jm: JMDP, covariance: Floats) -> float:
    """Rounding of a gap variance: it sums four covariances, rounded anew for every later step."""
    longest_sum = 4 * int(np.diff(jm.starts).max()) * jm.num_actions
    largest = float(np.nanmax(covariance))
    return 4.0 * rounding_of(longest_sum) * largest / (1.0 - jm.gamma**2)


def solution(
    jm: JMDP,
    end: Certificate,
    *,
    order: int,
    centred_mean: Floats,
    covariance: Floats | None,
    source: MomentSource,
    offset: float,
    variance_error: float,
    route: str,
    num_unknowns: int,
) -> Solution:
    """The solution, with the offset of all returns put back into the means.

    centred_mean, covariance, source: means (S, A), covariances (S, A, A) and the source of the
    returns minus `offset`. variance_error: the largest error of a variance or a gap variance that
    is zero.
    """
    mean = centred_mean + offset
    if covariance is not None:
        variance_error += _rounding_of_gaps(jm, covariance)
    # Smallest deviations distinguishable from zero, for the solver and for the returns.
    # Where nothing but the offset is paid, the bound of what is left is one, whatever the unit.
    bound = min(jm.without_offset.reward_bound, jm.reward_bound)
    largest = bound + float(np.abs(centred_mean).max())
    of_solver = float(np.sqrt(variance_error + (_SUMS * largest) ** 2))
    of_returns = rounding_of_returns(jm.gamma, jm.reward_bound)
    moments = Moments(
        order=order,
        mean=mean,
        _covariance=covariance,
        source=source,
        mean_error=end.error_bound + _SUMS * (jm.reward_bound + float(np.abs(mean).max())),
        resolution=float(np.hypot(of_solver, of_returns)),
        offset=offset,
    )
    if of_returns > of_solver and covariance is not None:
        # Gaps that vary by less than returns are rounded by, but by more than nothing.
        deviation = np.sqrt(moments.gap_variance)
        if ((deviation > of_solver) & (deviation < of_returns)).any():
            warn(
                f"some gaps have standard deviations below {of_returns:.1g}, the rounding of "
                "returns of this size: subtract a constant from all rewards before they are rounded"
            )
    return Solution(moments, *end, route=route, num_unknowns=num_unknowns)
