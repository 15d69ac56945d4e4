"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3) and JIPE-n (Section 5.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.memory import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, Source
from jmdp_lib.norms import norm_weight
from jmdp_lib.operators.collapsed import Collapsed, Queries
from jmdp_lib.operators.literal import COUPLINGS
from jmdp_lib.operators.multisets import MultisetOperator, MultisetSource
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.solvers.affine import Chain, solve
from jmdp_lib.solvers.fixed_point import (
    FixedPoint,
    Solution,
    State,
    certify,
    enough_sweeps,
    iterate,
    progress,
    rounding_of,
)
from jmdp_lib.solvers.routes import Plan, Request, evaluate

ROUTES = ("auto", "sweeps", "reachable", "dense")
# More sweeps than this are not worth the curve of their residuals: gamma above some 0.995.
_MANY_SWEEPS = 5000
_MANY_MULTISETS = 50_000


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
    """First and second moments of the joint returns, to accuracy `tol` in ||.||_lambda.

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
    system = Collapsed(jm, matrix, _independent(coupling))
    tol = checks.positive("tol", tol)
    if _takes_sweeps(system, tol, initial, max_iterations, queries, route, device):
        return _sweeps(system, tol, initial, max_iterations)
    request = Request(system, Queries.of(jm, queries), tol, route, device)
    found = evaluate(request)
    rounding = rounding_of(found.longest_sum) * found.largest
    error_bound, converged = certify(
        float(found.residuals[-1]), rounding, jm.gamma, tol, found.iterations, "JIPE-2", depth=3
    )
    mean, blocks = found.singles.backup.mean, found.blocks
    moments = _moments(jm, 2, mean, blocks, found, error_bound, 4.0 * found.covariance_error)
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
    tol = checks.positive("tol", tol)
    system = Collapsed(jm, checks.policy_matrix(jm, policy), _independent(coupling))
    if _takes_sweeps(system, tol, None, None, queries, route, device):
        return _sweeps_plan(system)
    return Request(system, Queries.of(jm, queries), tol, route, device).plan()[0]


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
    return (few and _short(system.jm, tol)) or asked


def _sweeps_plan(system: Collapsed) -> Plan:
    states = system.jm.num_states
    side = system.policy.size if PairOperator(system.jm, system.policy).full else states
    return Plan("sweeps", states, states * (states + 1) // 2, 6.0 * 8.0 * side**2)


def _sweeps(
    system: Collapsed, tol: float,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None, max_iterations: int | None,
) -> Solution:  # fmt: skip
    jm, plan = system.jm, _sweeps_plan(system)
    operator = PairOperator(jm, system.policy, system.independent)
    require(plan.memory, f"JIPE-2 by sweeps on {jm.num_states:,} states")
    start = operator.zero() if initial is None else _pair_start(operator, initial)
    end = iterate(operator, start, jm.gamma, tol, max_iterations, "JIPE-2", depth=5)
    source = PairSource(operator, end.state)
    moments = _moments(
        jm,
        2,
        end.state.mean,
        end.state.blocks,
        source,
        end.error_bound,
        0.0 if initial is None else _left_over(jm, end),
    )
    return _solution(moments, end, plan)


def jipe(
    jm: JMDP,
    policy: ArrayLike,
    order: int = 2,
    tol: float = 1e-8,
    coupling: str = "joint",
    initial: Solution | Moments | None = None,
    max_iterations: int | None = None,
) -> Solution:
    """All moments of orders 1 to `order`, to accuracy `tol` in ||.||_lambda (eq. (34)).

    State-actions that occur more than once in a coordinate are one random variable. Residuals are
    the paper's norm over the multisets of Section 5.3 averaged over the policy, from which every
    coordinate follows by one step. `initial`: M_0, any collection of at least this order.

    Up to 250,000 multisets all of them are solved; of more, those that same-state queries reach.
    Where there are many, or gamma asks for many sweeps, T_n's sparse system is solved by
    accelerated Gauss-Seidel, and the residuals are those on its way.
    """
    order, tol = checks.at_least("order", order, 1), checks.positive("tol", tol)
    if max_iterations is not None:
        checks.at_least("max_iterations", max_iterations, 1)
    operator = MultisetOperator(jm, checks.policy_matrix(jm, policy), order, _independent(coupling))
    solved = initial is None and max_iterations is None and not _few_sweeps(jm, tol, operator)
    if solved:
        end = _solve_multisets(operator, jm.gamma, tol)
    else:
        start = operator.zero() if initial is None else _multiset_start(operator, initial)
        end = iterate(operator, start, jm.gamma, tol, max_iterations, f"JIPE-{order}")
    source = MultisetSource(operator, end.state)
    shape = (jm.num_states, jm.num_actions)
    mean = np.array([source.moment([x]) for x in np.ndindex(shape)]).reshape(shape)
    blocks = source.covariance(mean) if order >= 2 else None
    left_over = _left_over(jm, end) if solved or initial is not None else 0.0
    moments = _moments(jm, order, mean, blocks, source, end.error_bound, left_over)
    return _solution(moments, end)


def _few_sweeps(jm: JMDP, tol: float, operator: MultisetOperator) -> bool:
    """Whether repeating T is cheap enough to have its curve of residuals."""
    return _short(jm, tol) and len(operator.zero()) <= _MANY_MULTISETS


def _short(jm: JMDP, tol: float) -> bool:
    return enough_sweeps(1.0, tol * (1.0 - jm.gamma), jm.gamma) <= _MANY_SWEEPS


def _solve_multisets(operator: MultisetOperator, gamma: float, tol: float) -> FixedPoint[Floats]:
    """T_n x = x as one sparse system, in units of lambda, where T_n contracts by gamma."""
    constant, matrix, _ = operator.system
    scale = sparse.diags_array(operator.weights)
    scaled = sparse.csr_array(sparse.diags_array(1.0 / operator.weights) @ matrix @ scale)
    chain = Chain(scaled, 1.0, constant / operator.weights)
    target, residuals, x = 0.5 * tol * (1.0 - gamma), list[float](), None
    rounding, iterations = 0.0, 0
    with progress(None, f"JIPE-{operator.order}", "sweep") as bar:
        for _ in range(4):
            x, history, applied = solve(chain, target, gamma, True, x, bar)
            iterations += applied + 1
            state = x * operator.weights
            residuals += [*history, operator.distance(operator.apply(state), state)]
            rounding = rounding_of(operator.longest_sum) * float(np.abs(x).max())
            if residuals[-1] + rounding <= tol * (1.0 - gamma):
                break
            target *= 0.1
    name = f"JIPE-{operator.order}"
    bound, converged = certify(residuals[-1], rounding, gamma, tol, iterations, name)
    return FixedPoint(state, np.array(residuals), converged, bound, iterations)


def _independent(coupling: str) -> bool:
    return checks.one_of("coupling", coupling, COUPLINGS) == "independent"


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


def _multiset_start(operator: MultisetOperator, initial: Solution | Moments) -> Floats:
    if isinstance(initial, Solution):
        initial = initial.moments
    if not isinstance(initial, Moments):
        raise ValueError(f"initial must be moments, got {initial!r}")
    if initial.order < operator.order:
        raise ValueError(f"initial holds orders up to {initial.order}, needed are {operator.order}")
    checks.same_shape("initial mean", initial.mean.shape, operator.policy.shape, "(S, A)")
    return operator.average(initial.moment)


def _solution(moments: Moments, end: FixedPoint[State], plan: Plan | None = None) -> Solution:
    how_often = end.iterations
    return Solution(moments, end.residuals, end.converged, end.error_bound, how_often, plan=plan)


def _left_over(jm: JMDP, end: FixedPoint[State]) -> float:
    """How far a variance may be off that no sweeps from zero have made."""
    return 2.0 * norm_weight(2, jm.gamma, jm.reward_bound) * end.error_bound


def _moments(
    jm: JMDP, order: int, mean: Floats, blocks: Floats | None, source: Source, error_bound: float,
    variance_error: float,
) -> Moments:  # fmt: skip
    """Freeze what was solved, with what can be told from zero.

    Means wrong by up to the error bound e give a constant return one-step deviations of up to 2 e,
    and so a standard deviation of up to 2 e / sqrt(1 - gamma^2). Sweeps from zero keep every gap
    variance that of a shorter process; otherwise one may be off by `variance_error`. Multisets give
    a variance as a difference of large numbers.
    """
    largest = jm.reward_bound + float(np.abs(mean).max())
    variance = (2.0 * error_bound) ** 2 / (1.0 - jm.gamma**2) + (1e-12 * largest) ** 2
    variance += variance_error
    if isinstance(source, MultisetSource):
        variance += 1e-14 * largest**2 / (1.0 - jm.gamma)
    return Moments(
        order, checks.frozen(mean), None if blocks is None else checks.frozen(blocks), source,
        error_bound + 1e-12 * largest, float(np.sqrt(variance)),
    )  # fmt: skip
