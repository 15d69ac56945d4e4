"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3): T_2 repeated, or its fixed point solved.

For few state-actions T_2 is repeated. Otherwise `pair_systems` solves for the fixed point, or
`local` does so in a part of the model where that is enough for the queries. `trace_jipe2` shows how
fast each part of it settles, sweep by sweep.

`resample_gaps` says how far off the gaps of a model are that was counted from queries, by the
Bayesian bootstrap. The probabilities of such a model are shares of N queries per state, and gap
statistics are smooth functions of them. So their sampling error is the spread that they show when
the shares are drawn anew: for every state from the Dirichlet law whose weights are the counts. Its
mean is what was counted, and its covariance that of counted shares, up to a factor N / (N + 1).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP, require_tables
from jmdp_lib.moments import Held, Moments
from jmdp_lib.operators.collapsed import CollapsedT2, Queries
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.affine import VECTORS
from jmdp_lib.solvers.fixed_point import Plan, Solution
from jmdp_lib.solvers.local import local_jipe2
from jmdp_lib.solvers.pair_systems import LOG, choose, solve_pairs
from jmdp_lib.statistics import GapErrors

ROUTES = ("auto", "sweeps", "reachable", "dense")
FEW = 512  # state-actions up to which T_2 is repeated, for the curve of its residuals
# More sweeps than this are not worth the curve of their residuals: gamma above some 0.995.
_MANY_SWEEPS = 5000
_MANY = 4000  # states from which on a part of the model may be enough for a few queries
_STATES = 10_000  # of the resampled models that are solved side by side


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
    given, asked = initial is not None or max_iterations is not None, Queries.of(jm, queries)
    few = route == "auto" and device is None and asked.states.size < jm.num_states >= _MANY
    try:
        plan, reached = _choose(system, tol, given, queries, route, device)
    except MemoryError:
        if not few or (local := _local(system, asked, allowed)) is None:
            raise
        return local
    if plan.route == "sweeps":
        return _sweeps(system, allowed, plan, initial, max_iterations)
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
    return _choose(system, checks.positive("tol", tol), False, queries, route, device)[0]


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


def _choose(
    system: CollapsedT2, tol: float, given: bool, queries: ArrayLike | None, route: str,
    device: str | None,
) -> tuple[Plan, PairSet | None]:  # fmt: skip
    """The plan, and for the route "reachable" its pairs; refuses what does not go together.

    given: whether there is something that belongs to sweeps, `initial` or `max_iterations`.
    """
    checks.one_of("route", route, ROUTES)
    if device is not None and route not in ("auto", "dense"):
        raise ValueError(f"device={device!r} belongs to route='dense', not to {route!r}")
    solved = route in ("reachable", "dense") or device is not None or queries is not None
    swept, states, gamma = given or route == "sweeps", system.jm.num_states, system.jm.gamma
    if swept and solved:
        raise ValueError(
            "initial, max_iterations and route='sweeps' belong to sweeps, which always solve all "
            "pairs: they do not go together with a device, queries or another route"
        )
    sweeps = fixed_point.enough_sweeps(1.0, tol * (1.0 - gamma), gamma)
    if swept or (not solved and system.policy.size <= FEW and sweeps <= _MANY_SWEEPS):
        memory = PairOperator(system.jm, system.policy, system.coupling).memory
        return Plan("sweeps", states, states * (states + 1) // 2, memory), None
    return choose(system, Queries.of(system.jm, queries), route, device)


def _sweeps(
    system: CollapsedT2, allowed: float, plan: Plan,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None, max_iterations: int | None,
) -> Solution:  # fmt: skip
    jm = system.jm
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


@dataclass(frozen=True, eq=False)
class Trace:
    """Largest change of any coordinate from M_k to T_2 M_k, for k = 0, 1, ...: arrays (sweeps,).

    Attributes:
        mean: of mu(s, a).
        second: of Sigma(s, a, t, b), all of it.
        covariance: of C = Sigma - mu mu', all of it.
        weight: lambda, so that max(mean, second / weight) is the residual of eq. (23).
    """

    mean: Floats
    second: Floats
    covariance: Floats
    weight: float

    @property
    def residuals(self) -> Floats:
        """||M_k - T_2 M_k||_lambda."""
        return np.maximum(self.mean, self.second / self.weight)


def trace_jipe2(jm: JMDP, policy: ArrayLike, sweeps: int, coupling: str = "joint") -> Trace:
    """The changes of the first `sweeps` applications of T_2 from M_0 = 0.

    Compares all of Sigma, (S, A, S, A), after every sweep: for small models.
    """
    operator = PairOperator.of("trace_jipe2", jm, policy, coupling)
    state, rows, parts = operator.zero(), [], ("mean", "second", "covariance")
    for _ in range(checks.at_least("sweeps", sweeps, 1)):
        old, state = state, operator.apply(state)
        rows.append([np.abs(getattr(state, x) - getattr(old, x)).max() for x in parts])
    mean, second, covariance = np.transpose(rows)
    return Trace(mean, second, covariance, operator.weight)


def covariance_rates(jm: JMDP, policy: ArrayLike) -> tuple[float, float]:
    """The two factors per sweep that covariances settle by: gamma zeta_mu and gamma^2 zeta_C.

    C_{k+1} = c_0(mu_k) + gamma^2 P_2 C_k. The source c_0 sees *differences* of the means, which
    settle by gamma zeta_mu: zeta_mu is the second largest eigenvalue of the policy's chain P, in
    modulus (the largest belongs to constants). What is in C already fades by gamma^2 zeta_C: zeta_C
    is the spectral radius of P among the states whose return varies. The larger one bounds the rate
    in the end; where both are zero, covariances are exact after finitely many sweeps.
    """
    matrix = checks.policy_matrix(jm, policy)
    chain = CollapsedT2(jm, matrix).kernel.toarray()
    sizes = np.sort(np.abs(np.linalg.eigvals(chain)))
    moments = jipe2(jm, matrix).moments
    value = (matrix * moments.mean).sum(1, keepdims=True)
    varies = (matrix * (moments.variance + (moments.mean - value) ** 2)).sum(1) > 1e-9
    among = np.abs(np.linalg.eigvals(chain[np.ix_(varies, varies)]))
    second = sizes[-2] if sizes.size > 1 else 0.0
    return jm.gamma * float(second), jm.gamma**2 * float(among.max(initial=0.0))


def decay_rate(values: ArrayLike, first: int = 0, floor: float = 1e-10) -> float:
    """The factor per step of a geometric decay: least squares on the logarithm.

    Steps before `first` are left out, and values below `floor` times the largest, where rounding
    takes over.
    """
    sizes = checks.floats("values", values, "step")
    steps = np.arange(sizes.size)
    used = (steps >= first) & (sizes > floor * sizes.max())
    if used.sum() < 2:
        raise ValueError(
            f"a rate needs two values above {floor:g} of the largest from step {first} on, "
            f"found {used.sum()} of {sizes.size}"
        )
    return float(np.exp(np.polyfit(steps[used], np.log(sizes[used]), 1)[0]))


def resample_gaps(
    jm: JMDP, policy: ArrayLike, num_resamples: int = 200, seed: checks.Seed = 0
) -> GapErrors:
    """Gap means and variances (S, A, A) of a model from queries, with their standard errors.

    The estimates are those of `jipe2` for a model of `JMDP.from_simulator`; the errors come from
    the Bayesian bootstrap. With 200 resamples an error is nearly always within 10% of what more
    resamples would give. Outcomes that no query showed are not in the model, and no error accounts
    for them.

    Example:
        >>> import jmdp_lib as jl
        >>> shop = jl.inventory_simulator(capacity=2, max_order=1, gamma=0.9)
        >>> counted = jl.JMDP.from_simulator(shop, queries_per_state=500, seed=0)
        >>> found = jl.resample_gaps(counted, [1, 0, 0], num_resamples=50)
        >>> low, high = found.interval("mean")
        >>> print(f"{found.mean[0, 1, 0]:.2f} +- {found.mean_error[0, 1, 0]:.2f}")
        1.87 +- 0.02
        >>> print(f"{low[0, 1, 0]:.2f} to {high[0, 1, 0]:.2f}; the exact model has 1.88")
        1.83 to 1.90; the exact model has 1.88
    """
    require_tables("resample_gaps", jm)
    if jm.queries_per_state is None:
        raise ValueError(
            f"resample_gaps: the tables of {jm!r} are known and were not counted from queries, so "
            "that its gaps have no sampling error; JMDP.from_simulator counts tables"
        )
    matrix, rng = checks.policy_matrix(jm, policy), checks.generator(seed)
    size = 1 + checks.at_least("num_resamples", num_resamples, 2)
    weights = np.tile(jm.probs * jm.queries_per_state, (size, 1))
    weights[1:] = rng.standard_gamma(weights[1:])  # the first row is the model itself
    step = max(1, _STATES // jm.num_states)
    parts = []
    with machine.progress(size, "resample_gaps", unit="resample") as bar:
        for start in range(0, size, step):
            parts.append(_gaps(jm, matrix, weights[start : start + step]))
            bar.update(len(parts[-1]))
    gaps = np.concatenate(parts)
    (mean, variance), (mean_error, variance_error) = gaps[0], gaps[1:].std(0, ddof=1)
    return GapErrors(mean, mean_error, variance, variance_error)


def _gaps(jm: JMDP, policy: Floats, weights: Floats) -> Floats:
    """(N, 2, S, A, A) gap means and variances for table weights (N, T): N models in one solve.

    The models stand side by side, as states of one model that do not reach each other.
    """
    copies = len(weights)
    first = np.arange(copies)[:, None] * jm.num_states  # the first state of each copy
    states = (first + jm.table_states).ravel()
    probs = weights.ravel() / np.bincount(states, weights.ravel())[states]
    rewards, successors = np.tile(jm.rewards, (copies, 1)), first[..., None] + jm.next_states
    size = copies * jm.num_states
    tables = (states, probs, rewards, successors.reshape(rewards.shape), size, jm.gamma)
    side_by_side = JMDP.from_tables(*tables)
    solved = jipe2(side_by_side, np.tile(policy, (copies, 1)), route="reachable").moments
    shape = (copies, jm.num_states, *2 * (jm.num_actions,))
    return np.stack([x.reshape(shape) for x in (solved.gap_mean, solved.gap_variance)], axis=1)
