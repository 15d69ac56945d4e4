"""The paper's iteration: M_{k+1} = T M_k, until the certificate of Theorem 5.3 is small.

Sweeps and projections use it; `jmdp_lib.fast` solves the same equations faster.
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
_SUMS = 1e-12  # generous bound on the relative rounding of sums in a solution


class ConvergenceWarning(UserWarning):
    """Warning that a solver stopped before it reached the requested accuracy.

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
    """Issue a ConvergenceWarning that points at the user's line of code."""
    frame = inspect.currentframe()
    depth = 1
    while frame and frame.f_globals.get("__name__", "").startswith("jmdp_lib."):
        frame = frame.f_back
        depth += 1
    warnings.warn(text, ConvergenceWarning, stacklevel=depth)


@dataclass(frozen=True, eq=False, repr=False)
class Solution(ReadOnly):
    """Result of every solver: the moments, and a certificate of their accuracy (Theorem 5.3).

    All arrays are read-only. `pickle` keeps all attributes.

    Attributes:
        moments: the moment collection.
        residuals: (n,), $||M_k - T M_k||_lambda$ for $k = 0, 1, ...$
        status: "converged" if error_bound is at most tol * reward_bound. Otherwise the reason why
            the solver stopped: "max_iterations", at its limit; "rounding", if double precision
            allows no smaller error; "no contraction" (projections), if nothing bounds the error.
        error_bound: a bound on $||M - M^pi||_lambda$, eq. (23): the last residual divided by
            $1 - gamma$, plus an allowance for rounding. Errors of means are at most error_bound,
            and errors of moments of order $k$ at most $lambda_k$ times it.
        iterations: number of applications of $T$, or of the pair operator of the route.
        route: method of `jipe2` or `jipe`; None for other solvers. "sweeps": repeated $T_2$, whose
            residuals are the paper's curve if rewards have both signs (`trace_jipe2` records the
            curve for all rewards). "reachable": one linear system, on the pairs of states that the
            requested gaps reach (`jipe2`), or on moments of one state and the multisets of states
            that they reach (`jipe`). "dense": one linear system on all pairs.
        num_unknowns: size of the linear system: unordered state pairs (`jipe2`), or moments and
            multisets (`jipe`); None for other solvers.

    The residuals of "reachable" and "dense" are the sizes of some of the solver's steps; the last
    one is the residual of the returned moments.

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
    """Bellman operator with the methods that `iterate` needs."""

    @property
    def longest_sum(self) -> int:
        """Number of terms that one coordinate of T M sums, at most."""

    def zero(self) -> State:
        """Return M = 0."""

    def apply(self, state: State) -> State:
        """Return T M."""

    def distance(self, new: State, old: State) -> float:
        """Distance ||new - old||_lambda."""


class Certificate(NamedTuple):
    """Accuracy of a solution: the attributes of `Solution` with these names."""

    residuals: Floats
    status: Status
    error_bound: float
    iterations: int


def iterate(
    operator: Operator[State],
    state: State,
    rate: float,
    residual_tol: float,
    max_iterations: int | None = None,
    name: str = "JIPE",
) -> tuple[State, Floats, float]:
    """Apply the operator until ||M_k - T M_k||_lambda plus rounding is at most residual_tol.

    rate: contraction modulus of the operator, which bounds the number of sweeps by default. Returns
    T M_k, all residuals, and the rounding error of T M_k, which no residual shows; from these
    `certify` bounds the error of M_k, and thus of T M_k.
    """
    limit = None if max_iterations is None else checks.at_least("max_iterations", max_iterations, 1)
    residuals: list[float] = []
    with progress(None, name, "sweep") as bar:
        while True:
            new = operator.apply(state)
            residuals.append(operator.distance(new, state))
            state = new
            if limit is None:
                limit = enough_sweeps(residuals[0], residual_tol, rate)
            bar.total = limit
            bar.update()
            last = len(residuals) >= limit
            # Rounding takes as long to compute as a residual: compute it only if it may matter.
            if last or residuals[-1] <= residual_tol or len(residuals) % 100 == 0:
                size = operator.distance(state, operator.zero())
                rounding = rounding_of(operator.longest_sum) * size
                certified = residuals[-1] + rounding <= residual_tol
                hopeless = residuals[-1] <= rounding and rounding >= residual_tol
                if certified or hopeless or last:
                    return state, np.array(residuals), rounding


def certify(
    residuals: Floats,
    rounding: float,
    gamma: float,
    error_tol: float,
    iterations: int,
    name: str,
    max_iterations: int | None = None,
) -> Certificate:
    """Compute the error bound of eq. (23); issue a ConvergenceWarning if it exceeds error_tol.

    error_tol: tol * reward_bound, since ||.||_lambda grows with the rewards. A solver without
    max_iterations can only be stopped by rounding.
    """
    error_bound = float(residuals[-1] + rounding) / (1.0 - gamma)
    status: Status = "converged"
    if not error_bound <= error_tol:
        beyond = iterations != max_iterations or rounding >= error_tol * (1.0 - gamma)
        status = "rounding" if beyond else "max_iterations"
        advice = "; tol is below double precision here" if beyond else ""
        warn(
            f"{name} stopped after {iterations} iterations with error bound "
            f"{error_bound:.3g} > tol * reward_bound = {error_tol:.3g}{advice}"
        )
    return Certificate(residuals, status, error_bound, iterations)


def false_variance(gamma: float, error: float) -> float:
    """Largest variance that the fixed point of C may assign to a constant return.

    If means of next states have errors up to e = `error`, one-step deviations of this return are up
    to gamma e, and its standard deviation is up to gamma e / sqrt(1 - gamma^2).
    """
    return (gamma * error) ** 2 / (1.0 - gamma**2)


def _rounding_of_gaps(jm: JMDP, covariance: Floats) -> float:
    """Rounding error of a gap variance: a sum of four covariances, rounded at every time step."""
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
    variance_error: float,
    route: str,
    num_unknowns: int,
) -> Solution:
    """Build a solution, with the common offset of all returns added back to the means.

    centred_mean, covariance, source: means (S, A), covariances (S, A, A) and the source of moments,
    all for the returns without this offset. variance_error: error bound of variances and gap
    variances whose true value is zero.
    """
    mean = centred_mean + jm.return_offset
    if covariance is not None:
        variance_error += _rounding_of_gaps(jm, covariance)
    # Smallest deviations distinguishable from zero, for the solver and for the returns.
    # If every reward equals the offset, `without_offset` has a reward bound of one in any unit.
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
        offset=jm.return_offset,
    )
    if of_returns > of_solver and covariance is not None:
        # Some gaps may vary, but by less than the rounding of returns.
        deviation = np.sqrt(moments.gap_variance)
        if ((deviation > of_solver) & (deviation < of_returns)).any():
            warn(
                f"some gaps have standard deviations below {of_returns:.1g}, the rounding of "
                "returns of this size: subtract a constant from all rewards before they are rounded"
            )
    return Solution(moments, *end, route=route, num_unknowns=num_unknowns)
