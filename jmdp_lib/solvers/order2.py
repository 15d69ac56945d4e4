"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3): T_2 repeated, or its fixed point solved.

For few state-actions T_2 is repeated. Otherwise `pair_systems` solves for the fixed point, or
`local` does so in a part of the model where that is enough for the queries.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, machine
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held, Moments
from jmdp_lib.operators.collapsed import CollapsedT2, Queries
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.affine import VECTORS
from jmdp_lib.solvers.fixed_point import Plan, Solution
from jmdp_lib.solvers.local import local_jipe2
from jmdp_lib.solvers.pair_systems import LOG, choose, solve_pairs

ROUTES = ("auto", "sweeps", "reachable", "dense")
FEW = 512  # state-actions up to which T_2 is repeated, for the curve of its residuals
_MANY = 4000  # states from which on a part of the model may be enough for a few queries


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
    """First and second moments of the joint returns: JIPE-2, the fast solver for order 2.

    Take `jipe2` for means, covariances, correlations and gap variances, and for models of any
    size; take `jipe(order=n)` for skewness, kurtosis and other moments above the second.

    policy: (S, A) probabilities, or (S,) the action of a deterministic policy in each state.
    tol: accuracy in $||.||_lambda$, eq. (20), relative to the largest reward: the result has
        converged once error_bound is at most tol * jm.reward_bound, where reward_bound is one for
        rewards in [-1, 1].
    coupling: "joint" uses the outcome tables: branches at one state at one time share a table.
        "independent" evaluates the JMDP with the same marginals in which the actions of a state
        draw from independent tables (never built). "common" shares one noise per time step between
        all branches, wherever they are: for a model that knows its noise (`JMDP.noise_probs`).
    initial: $M_0$, a collection or arrays (S, A) and (S, A, S, A); zero unless given.
    max_iterations: sweeps after which to stop; as many as `tol` can need unless given.
    queries: which covariances are wanted: those of all actions at states (N,), or of rows
        (state, a, b), (N, 3); all unless given. Others are nan in the moments' arrays.
    route: "sweeps" repeats $T_2$ from `initial` and has the residuals of every sweep; "reachable"
        solves one sparse system on the pairs of states that the queries reach, "dense" one on all
        pairs. "auto" takes sweeps for few state-actions, and otherwise the faster route that fits
        into memory. If all pairs of thousands of states would have to be solved for a few queries,
        it first explores up to a quarter of the states (`local_jipe2`) and takes that answer if it
        is certified to the same `tol`; means of the other states are then nan. A larger `tol` makes
        this more likely. The solution's `plan` says which route was taken.
    device: a torch device, such as "cuda", for the dense route.

    Residuals are the paper's norm on what is solved. Sweeps solve all coordinates. The other routes
    solve all means and the policy averages that $T_2$ needs, on which it is the same contraction,
    and every other coordinate follows from those in one step. `moments.second` and
    `moments.full_second` know any two states after sweeps or the dense route; after the reachable
    route they know only the pairs that were reached, and refuse others.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> solution = jl.jipe2(jm, jl.goal_policy(3))
        >>> solution.converged, solution.error_bound < 1e-8
        (True, True)
        >>> joint, gap = solution.moments, (4, 0, 2)  # in the centre, up against down
        >>> print(f"mean {joint.gap_mean[gap]:.3f}, variance {joint.gap_variance[gap]:.3f}")
        mean 1.962, variance 0.678
        >>> apart = jl.jipe2(jm, jl.goal_policy(3), coupling="independent").moments
        >>> print(f"with two gusts: {apart.gap_mean[gap]:.3f}, {apart.gap_variance[gap]:.3f}")
        with two gusts: 1.962, 0.961
    """
    system = CollapsedT2.of("jipe2", jm, policy, coupling)
    allowed = checks.positive("tol", tol) * jm.reward_bound
    if _takes_sweeps(system, tol, initial, max_iterations, queries, route, device):
        return _sweeps(system, allowed, initial, max_iterations)
    asked = Queries.of(jm, queries)
    few = route == "auto" and device is None and asked.states.size < jm.num_states >= _MANY
    try:
        plan, reached = choose(system, asked, route, device)
    except MemoryError:
        if not few or (local := _local(system, asked, allowed)) is None:
            raise
        return local
    if few and reached is None and (local := _local(system, asked, allowed)) is not None:
        return local
    return solve_pairs(system, asked, allowed, plan, reached, device)


def plan_jipe2(
    jm: JMDP,
    policy: ArrayLike,
    tol: float = 1e-8,
    coupling: str = "joint",
    queries: ArrayLike | None = None,
    route: str = "auto",
    device: str | None = None,
) -> Plan:
    """What `jipe2` would do with the same arguments, and the memory it would take.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=30)
        >>> plan = jl.plan_jipe2(jm, jl.goal_policy(30), queries=[0])
        >>> plan.route, plan.pairs, plan.states
        ('reachable', 1365, 900)
    """
    system = CollapsedT2.of("jipe2", jm, policy, coupling)
    if _takes_sweeps(system, checks.positive("tol", tol), None, None, queries, route, device):
        return _sweeps_plan(system)
    return choose(system, Queries.of(jm, queries), route, device)[0]


def _local(system: CollapsedT2, asked: Queries, allowed: float) -> Solution | None:
    """The answer by `local_jipe2`, if a part of the model is enough for it.

    With r the L_2 distance of a return from the truth, its mean is off by r at most, and a second
    moment by lambda_2 r + r^2.
    """
    jm, states = system.jm, np.unique(asked.states)
    tol, bound, limit = allowed, allowed, max(jm.num_states // 4, states.size)
    for _ in range(3):
        tol *= 0.5 * allowed / bound
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fixed_point.ConvergenceWarning)
            found = local_jipe2(jm, system.policy, states.tolist(), tol, system.coupling, limit)
        off = float(found.return_error.max())
        bound = off + off**2 / system.weight
        if bound <= allowed or not found.converged:
            break
    if bound > allowed:
        return None
    size = found.num_explored
    plan = Plan("local", jm.num_states, size * (size + 1) // 2, 8.0 * (VECTORS + 1) * size**2)
    LOG.info("JIPE-2, %s", plan)
    mean = np.full(system.policy.shape, np.nan)
    blocks = np.full((*mean.shape, jm.num_actions), np.nan)
    mean[states], blocks[states] = found.moments.mean, found.moments.covariance
    moments = Moments(2, mean, blocks, Held(None), bound, off)
    residuals = np.array([bound * (1.0 - jm.gamma)])
    return Solution(moments, residuals, True, bound, 1, plan=plan)


def _takes_sweeps(
    system: CollapsedT2, tol: float, initial: object, max_iterations: int | None,
    queries: object, route: str, device: str | None,
) -> bool:  # fmt: skip
    """Whether T_2 is repeated; arguments that do not go together are refused."""
    checks.one_of("route", route, ROUTES)
    if device is not None and route not in ("auto", "dense"):
        raise ValueError(f"device={device!r} belongs to route='dense', not to {route!r}")
    solved = route in ("reachable", "dense") or device is not None or queries is not None
    given = {"initial": initial, "max_iterations": max_iterations}
    swept = [name for name, value in given.items() if value is not None]
    if route == "sweeps":
        swept.append("route='sweeps'")
    if swept and solved:
        raise ValueError(
            f"{swept[0]} belongs to sweeps, which always solve all pairs: it and a device, queries "
            "or another route do not go together"
        )
    few = system.policy.size <= FEW and fixed_point.takes_few_sweeps(system.jm.gamma, tol)
    return bool(swept) or (few and not solved)


def _sweeps_plan(system: CollapsedT2) -> Plan:
    states = system.jm.num_states
    return Plan("sweeps", states, states * (states + 1) // 2, 6.0 * 8.0 * system.policy.size**2)


def _sweeps(
    system: CollapsedT2, allowed: float,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None, max_iterations: int | None,
) -> Solution:  # fmt: skip
    jm, plan = system.jm, _sweeps_plan(system)
    machine.require(plan.memory, f"JIPE-2 by sweeps on {jm.num_states:,} states")
    operator = PairOperator(jm, system.policy, system.coupling)
    start = operator.zero() if initial is None else _start(operator, initial)
    state, end = fixed_point.iterate(operator, start, jm.gamma, allowed, max_iterations, "JIPE-2")
    off = 0.0 if initial is None else 2.0 * system.weight * end.error_bound
    found = state.mean, state.blocks, Held(state.second)
    moments = fixed_point.collect_moments(jm, 2, *found, end.error_bound, off)
    return Solution(moments, *end, plan=plan)


def _start(
    operator: PairOperator, initial: Solution | Moments | tuple[ArrayLike, ArrayLike]
) -> PairState:
    found: Any = initial.moments if isinstance(initial, Solution) else initial
    if isinstance(found, Moments):
        found = found.mean, found.full_second()
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    return operator.centre(*checks.collection("initial", *found, operator.jm))
