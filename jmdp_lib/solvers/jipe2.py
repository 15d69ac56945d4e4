"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3)."""

from __future__ import annotations

from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments
from jmdp_lib.operators.collapsed import Collapsed, Queries
from jmdp_lib.operators.literal import is_independent
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.solvers.fixed_point import (
    FixedPoint,
    Solution,
    State,
    certify,
    collect_moments,
    is_short,
    iterate,
    left_over,
    rounding_of,
)
from jmdp_lib.solvers.routes import Plan, Request, evaluate

ROUTES = ("auto", "sweeps", "reachable", "dense")


def jipe2(
    jm: JMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None = None,
    max_iterations: int | None = None,
    queries: ArrayLike | None = None,
    route: str = "auto",
    device: str | None = None,
) -> Solution:
    """First and second moments of the joint returns: the fast solver for order 2.

    Take `jipe2` for means, covariances, correlations and gap variances, and for models of any
    size; take `jipe(order=n)` for skewness, kurtosis and other moments above the second.

    tol: accuracy in ||.||_lambda, relative to the largest reward: the result has converged once
        error_bound <= tol * jm.reward_bound. (reward_bound is one for rewards in [-1, 1].)
    coupling: "joint" uses the outcome tables; "independent" evaluates the JMDP with the same
        marginals in which the actions of a state draw from independent tables (never built).
    initial: M_0, a collection or arrays (S, A) and (S, A, S, A); zero unless given.
    queries: whose covariances are wanted: states (N,), or rows (state, a, b), (N, 3); all unless
        given. Those of other actions are nan in the moments' arrays.
    route: "sweeps" repeats T_2 from `initial` and has the residuals of every sweep; "reachable"
        solves one sparse system on the pairs of states that the queries reach, "dense" one on all
        pairs. "auto" takes sweeps for few state-actions, and else what is faster and fits. What was
        taken is in the solution's `plan`; it is logged before the work starts.
    device: a torch device, such as "cuda", for the dense route.

    Residuals are the paper's norm on what is solved: with sweeps over all coordinates up to 512
    state-actions, and else over all means and the policy averages that T_2 needs, on which it is
    the same contraction. Every other coordinate follows from those in one step.
    """
    matrix = checks.policy_matrix(jm, policy)
    system = Collapsed(jm, matrix, is_independent(coupling))
    allowed = checks.positive("tol", tol) * jm.reward_bound
    if _takes_sweeps(system, tol, initial, max_iterations, queries, route, device):
        return _sweeps(system, allowed, initial, max_iterations)
    request = Request(system, Queries.of(jm, queries), allowed, route, device)
    found = evaluate(request)
    rounding = rounding_of(found.longest_sum) * found.largest
    error_bound, converged = certify(
        float(found.residuals[-1]), rounding, jm.gamma, allowed, found.iterations, "JIPE-2", depth=3
    )
    mean, blocks = found.singles.backup.mean, found.blocks
    moments = collect_moments(jm, 2, mean, blocks, found, error_bound, 4.0 * found.covariance_error)
    return Solution(
        moments, found.residuals, converged, error_bound, found.iterations, plan=found.plan
    )


def plan_jipe2(
    jm: JMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    coupling: str = "joint",
    queries: ArrayLike | None = None,
    route: str = "auto",
    device: str | None = None,
) -> Plan:
    """What `jipe2` would do with the same arguments, without doing it."""
    allowed = checks.positive("tol", tol) * jm.reward_bound
    system = Collapsed(jm, checks.policy_matrix(jm, policy), is_independent(coupling))
    if _takes_sweeps(system, tol, None, None, queries, route, device):
        return _sweeps_plan(system)
    return Request(system, Queries.of(jm, queries), allowed, route, device).plan()[0]


def _takes_sweeps(
    system: Collapsed, tol: float, initial: object, max_iterations: int | None,
    queries: object, route: str, device: str | None,
) -> bool:  # fmt: skip
    """Whether T_2 is repeated; arguments that do not go together are refused."""
    checks.one_of("route", route, ROUTES)
    if device is not None and route not in ("auto", "dense"):
        raise ValueError(f"device={device!r} belongs to route='dense', not to {route!r}")
    iterate_only = {"initial": initial, "max_iterations": max_iterations}
    for name, value in iterate_only.items():
        if value is not None and (route not in ("auto", "sweeps") or device is not None):
            raise ValueError(f"{name} belongs to route='sweeps', not to {route!r}")
        if value is not None and queries is not None:
            raise ValueError(f"{name} and queries do not go together: sweeps answer every query")
    if queries is not None and route == "sweeps":
        raise ValueError("queries and route='sweeps' do not go together: sweeps answer every query")
    if route != "auto" or device is not None or queries is not None:
        return route == "sweeps"
    few = PairOperator(system.jm, system.policy).full
    asked = any(value is not None for value in iterate_only.values())
    return (few and is_short(system.jm.gamma, tol)) or asked


def _sweeps_plan(system: Collapsed) -> Plan:
    states = system.jm.num_states
    side = system.policy.size if PairOperator(system.jm, system.policy).full else states
    return Plan("sweeps", states, states * (states + 1) // 2, 6.0 * 8.0 * side**2)


def _sweeps(
    system: Collapsed, allowed: float,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None, max_iterations: int | None,
) -> Solution:  # fmt: skip
    jm, plan = system.jm, _sweeps_plan(system)
    operator = PairOperator(jm, system.policy, system.independent)
    require(plan.memory, f"JIPE-2 by sweeps on {jm.num_states:,} states")
    start = operator.zero() if initial is None else _pair_start(operator, initial)
    end = iterate(operator, start, jm.gamma, allowed, max_iterations, "JIPE-2", depth=5)
    source = PairSource(operator, end.state)
    moments = collect_moments(
        jm,
        2,
        end.state.mean,
        end.state.blocks,
        source,
        end.error_bound,
        0.0 if initial is None else left_over(jm, end.error_bound),
    )
    return _solution(moments, end, plan)


def _pair_start(
    operator: PairOperator, initial: Solution | Moments | tuple[ArrayLike, ArrayLike]
) -> PairState:
    if isinstance(initial, Solution):
        initial = initial.moments
    mean: ArrayLike
    second: ArrayLike
    if isinstance(initial, Moments):
        mean, second = initial.mean, initial.full_second()
    elif not isinstance(initial, tuple) or len(initial) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    else:
        mean, second = initial
    return operator.centre(*checks.collection("initial", mean, second, operator.jm))


def _solution(moments: Moments, end: FixedPoint[State], plan: Plan | None = None) -> Solution:
    how_often = end.iterations
    return Solution(moments, end.residuals, end.converged, end.error_bound, how_often, plan=plan)
