"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3), by linear systems or repeated T_2.

By default `jmdp_lib.fast` solves for the fixed point. Repeating T_2 is slower, but gives the
paper's curve of residuals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.fast import CollapsedT2, Gaps, solve_pairs
from jmdp_lib.machine import require, rounding_of
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.operators.pairs import PairState
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import (
    Solution,
    certify,
    false_variance,
    iterate,
    solution,
)

Route = Literal["auto", "sweeps", "reachable", "dense"]


def jipe2(
    jm: JMDP,
    policy: Policy,
    *,
    tol: float = 1e-8,
    coupling: CouplingName = DEFAULT_COUPLING,
    gaps: ArrayLike | None = None,
    states: ArrayLike | None = None,
    route: Route = "auto",
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None = None,
    max_iterations: int | None = None,
    device: str | None = None,
) -> Solution:
    """First and second moments of the joint returns: JIPE-2, the fast solver for order 2.

    Use `jipe2` for means, covariances, correlations and gap variances, and for models of any
    size; use `jipe(order=n)` for skewness, kurtosis and other moments above the second.

    A common reward offset (`JMDP.reward_offset`) is subtracted first and added back to the means at
    the end, so gaps lose no digits to it.

    Residuals are in the paper's norm, over the unknowns of the route. Sweeps have all coordinates
    as unknowns. The other routes have only the means and the policy averages that $T_2$ needs. On
    these $T_2$ is a contraction with the same modulus, and every other coordinate follows from them
    in one step. `moments.second` and `moments.full_second` work for any two states on every route:
    coordinates outside the requested gaps are computed when they are first read.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state that returns
            probabilities (A,) or an action. Every solver accepts all three forms. A function must
            be pure: a random policy returns probabilities and draws no action. Use of a global
            generator raises an error. Use of a private generator may go undetected if it rarely
            changes the result.
        tol: accuracy in $||.||_lambda$, eq. (20), relative to the largest absolute reward: the
            result has converged once error_bound is at most tol * jm.reward_bound.
        coupling: "joint" uses the outcome tables: branches at one state at one time share a table.
            "independent" evaluates the JMDP with the same marginals in which each action of a state
            draws its own table (these tables are never built). "common" shares one noise per time
            step between all branches, whatever their states; it needs a model with a declared noise
            (`JMDP.noise_probs`).
        gaps: (N, 3), rows (state, a, b): the requested gaps, by default all. Entries of the
            moments' arrays that no requested gap needs are nan.
        states: (N,), to request all gaps of these states; instead of `gaps`.
        route: "reachable" solves one sparse system on the pairs of states that the requested gaps
            reach, "dense" one on all pairs. "auto" chooses the faster of these that fits into
            memory; `route` of the solution names it. "sweeps" repeats $T_2$: it always solves for
            all pairs, is slower, and records the residual of every sweep.
        initial: $M_0$ of sweeps, moments or arrays (S, A) and (S, A, S, A). Defaults to zero or, if
            all rewards have one sign, to the moments of a return whose rewards are all the least.
        max_iterations: largest number of sweeps; by default as many as `tol` can need.
        device: a torch device, such as "cuda", for the dense route, which "auto" then chooses.
            Defaults to NumPy.

    Returns:
        The moments of order 2 and their certificate.

    Raises:
        ValueError: an argument makes no sense, or the route does not accept it: `initial` and
            `max_iterations` need route="sweeps".
        MemoryError: the model fits on no route. As an `ImplicitJMDP`, it may still be solved for a
            few states by `local_jipe2`.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> solution = jl.jipe2(jm, jl.goal_policy(3))
        >>> solution.converged, solution.error_bound < 1e-8
        (True, True)
        >>> joint, gap = solution.moments, (4, 0, 2)  # in the centre, up against down
        >>> print(f"mean {joint.gap_mean[gap]:.3f}, variance {joint.gap_variance[gap]:.3f}")
        mean 1.962, variance 0.678
        >>> other = jl.jipe2(jm, jl.goal_policy(3), coupling="independent").moments
        >>> print(f"with two gusts: {other.gap_mean[gap]:.3f}, {other.gap_variance[gap]:.3f}")
        with two gusts: 1.962, 0.961
    """
    checks.one_of("route", route, [*ROUTES])
    options: dict[str, Any] = {"gaps": gaps, "states": states, "device": device}
    options |= {"initial": initial, "max_iterations": max_iterations}
    for name, value in options.items():
        if value is not None and name not in ROUTES[route]:
            takers = " or ".join(f"route={other!r}" for other in ROUTES if name in ROUTES[other])
            raise ValueError(f"{name}= needs {takers}, got route={route!r}")
    system = CollapsedT2.of("jipe2", jm, policy, coupling)
    tol = checks.positive("tol", tol)
    if route == "sweeps":
        return _sweeps(jm, system, tol, initial, max_iterations)
    return _linear_systems(jm, system, tol, Gaps.of(jm, gaps, states), route, device)


def _sweeps(
    jm: JMDP, operator: CollapsedT2, tol: float, initial: Any, max_iterations: int | None
) -> Solution:
    """Repeat T_2 for returns without the reward offset, from zero or from given moments."""
    # Three iterates, each as C and Sigma, their differences, and arrays over tables and actions.
    needed = 72.0 * operator.policy.size**2 + jm.rewards.size * (150.0 + 24.0 * jm.num_actions)
    require(needed, f"JIPE-2 by sweeps on {jm.num_states:,} states")
    start = operator.zero() if initial is None else _start(operator, initial, jm.return_offset)
    name = "JIPE-2"
    target = tol * operator.jm.reward_bound * (1.0 - jm.gamma)
    state, residuals, rounding = iterate(operator, start, jm.gamma, target, max_iterations, name)
    rounding += rounding_of(0) * abs(jm.reward_offset)
    error_tol = tol * jm.reward_bound
    sweeps = residuals.size
    end = certify(residuals, rounding, jm.gamma, error_tol, sweeps, name, max_iterations)
    variance_error = 2.0 * operator.weight * end.error_bound
    variance_error += false_variance(jm.gamma, end.error_bound)
    return solution(
        jm,
        end,
        order=2,
        centred_mean=state.mean,
        covariance=state.blocks,
        source=StoredMoments(state.second),
        variance_error=min(variance_error, _tail_error(jm.gamma**sweeps, start, state)),
        route="sweeps",
        num_unknowns=operator.num_pairs,
    )


def _tail_error(discount: float, *states: PairState) -> float:
    """Upper bound on E[(Z - Z_k)^2], where k sweeps turn the moments of Z_0 into those of Z_k.

    discount: gamma^k. states: moments of Z_0 and of Z_k. Z - Z_k is `discount` times the difference
    of Z and Z_0 after k steps. So its L_2 norm is at most discount / (1 - discount) times the
    largest ||Z_k|| + ||Z_0||.
    """
    seconds = [x.mean**2 + np.abs(np.einsum("sasa->sa", x.covariance)) for x in states]
    largest = sum(np.sqrt(second.max()) for second in seconds)
    return float(largest * discount / (1.0 - discount)) ** 2


def _start(
    operator: CollapsedT2, initial: Solution | Moments | tuple[ArrayLike, ArrayLike], offset: float
) -> PairState:
    """Initial moments M_0, for returns minus `offset`."""
    given: Any = initial.moments if isinstance(initial, Solution) else initial
    if isinstance(given, Moments):
        offset -= given.offset
        given = given.mean - given.offset, replace(given, offset=0.0).full_second()
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    start = operator.centre(*checks.collection("initial", *given, operator.jm))
    return replace(start, mean=start.mean - offset)


def _linear_systems(
    jm: JMDP, system: CollapsedT2, tol: float, gaps: Gaps, route: str, device: str | None
) -> Solution:
    """Solve for the fixed point, for returns without the reward offset."""
    solved = solve_pairs(system, gaps, tol * system.jm.reward_bound, route, device)
    rounding = solved.rounding + rounding_of(0) * jm.reward_bound
    error_tol = tol * jm.reward_bound
    end = certify(solved.residuals, rounding, jm.gamma, error_tol, solved.iterations, "JIPE-2")
    last = float(solved.residuals[-1])
    solver_error = (last + solved.rounding) / (1.0 - jm.gamma)
    # A gap variance sums four entries of C, on which T_2 contracts by gamma^2.
    variance_error = 4.0 * last * system.weight / (1.0 - jm.gamma**2)
    return solution(
        jm,
        end,
        order=2,
        centred_mean=solved.backup.mean,
        covariance=system.blocks(solved.backup, solved.pairs, gaps),
        source=solved,
        variance_error=variance_error + false_variance(jm.gamma, solver_error),
        route=solved.route,
        num_unknowns=solved.num_pairs,
    )


# Options that each route accepts.
ROUTES: dict[Route, tuple[str, ...]] = {
    "auto": ("gaps", "states", "device"),
    "sweeps": ("initial", "max_iterations"),
    "reachable": ("gaps", "states"),
    "dense": ("gaps", "states", "device"),
}
