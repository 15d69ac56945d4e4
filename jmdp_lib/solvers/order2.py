"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3): T_2 repeated, or its fixed point solved.

For few state-actions T_2 is repeated. Otherwise `pair_systems` solves for the fixed point.
`trace_jipe2` shows how fast each part of it settles, sweep by sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.operators.collapsed import CollapsedT2, Queries
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.fixed_point import Plan, Solution
from jmdp_lib.solvers.pair_systems import choose, solve_pairs

if TYPE_CHECKING:
    import pandas as pd

ROUTES = ("auto", "sweeps", "reachable", "dense")
FEW = 512  # state-actions up to which T_2 is repeated, for the curve of its residuals
# More sweeps than this are not worth the curve of their residuals: gamma above some 0.995.
_MANY_SWEEPS = 5000
# Nanoseconds that a sweep takes for itself, for each coordinate, and for each term of what moves.
_SWEEP_NS = 2e5
_COORDINATE_NS = 20.0
_MOVED_NS = 5.0


def jipe2(
    jm: JMDP,
    policy: Policy,
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

    policy: probabilities (S, A), actions (S,), or a function of the state that returns
        probabilities (A,) or an action. All calls take all of these.
    tol: accuracy in $||.||_lambda$, eq. (20), relative to the largest absolute reward: the result
        has converged once error_bound is at most tol * jm.reward_bound.
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
        into memory; the solution's `plan` says which one it was. A model that fits in no way is
        refused: `local_jipe2` can still answer for a few of its states.
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
    for_sweeps = initial is not None or max_iterations is not None
    plan, reached = _choose(system, tol, for_sweeps, queries, route, device)
    if plan.route == "sweeps":
        return _sweeps(system, allowed, plan, initial, max_iterations)
    return solve_pairs(system, Queries.of(jm, queries), allowed, plan, reached, device)


def plan_jipe2(
    jm: JMDP,
    policy: Policy,
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


def _choose(
    system: CollapsedT2, tol: float, for_sweeps: bool, queries: ArrayLike | None, route: str,
    device: str | None,
) -> tuple[Plan, PairSet | None]:  # fmt: skip
    """The plan, and for the route "reachable" its pairs; refuses what does not go together.

    for_sweeps: whether there is something that belongs to sweeps, `initial` or `max_iterations`.
    """
    checks.one_of("route", route, ROUTES)
    if device is not None and route not in ("auto", "dense"):
        raise ValueError(f"device={device!r} belongs to route='dense', not to {route!r}")
    solved = route in ("reachable", "dense") or device is not None or queries is not None
    swept = for_sweeps or route == "sweeps"
    states = system.jm.num_states
    gamma = system.jm.gamma
    if swept and solved:
        raise ValueError(
            "initial, max_iterations and route='sweeps' belong to sweeps, which always solve all "
            "pairs: they do not go together with a device, queries or another route"
        )
    sweeps = fixed_point.enough_sweeps(1.0, tol * (1.0 - gamma), gamma)
    if swept or (not solved and system.policy.size <= FEW and sweeps <= _MANY_SWEEPS):
        memory = PairOperator(system.jm, system.policy, system.coupling).memory
        machine.require(memory, f"JIPE-2 by sweeps on {states:,} states")
        work = _sweeps_work(system, sweeps)
        return Plan("sweeps", states, states * (states + 1) // 2, memory, None, *work), None
    return choose(system, Queries.of(system.jm, queries), tol, route, device)


def _sweeps_work(system: CollapsedT2, sweeps: int) -> tuple[int, float]:
    """Terms of one sweep over all coordinates, and seconds in all."""
    size = system.policy.size
    moved = sum(move.nnz for move in system.moves) * (system.jm.num_states + size)
    noises = len(system.moves) if system.coupling == "common" else 0
    time = _SWEEP_NS + _COORDINATE_NS * size**2 * (1 + min(noises, 2)) + _MOVED_NS * moved
    return size**2 + moved, 1e-9 * time * sweeps


def _sweeps(
    system: CollapsedT2, allowed: float, plan: Plan,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None, max_iterations: int | None,
) -> Solution:  # fmt: skip
    jm = system.jm
    operator = PairOperator(jm, system.policy, system.coupling)
    start = operator.zero() if initial is None else _start(operator, initial)
    state, end = fixed_point.iterate(operator, start, jm.gamma, allowed, max_iterations, "JIPE-2")
    off = 2.0 * system.weight * end.error_bound
    if initial is None:
        off = _unplayed(jm.gamma**end.iterations, state)
    found = state.mean, state.blocks, StoredMoments(state.second)
    moments = fixed_point.collect_moments(jm, 2, *found, end.error_bound, off)
    return Solution(moments, *end, plan=plan)


def _unplayed(left: float, state: PairState) -> float:
    """E[(Z - Z_k)^2] at most, where k sweeps from zero have found the moments of k steps, Z_k.

    left: gamma^k. Then Z - Z_k is `left` times the return after k steps, so that its L_2 norm is at
    most `left` times the largest ||Z||, which is at most the largest ||Z_k|| / (1 - left).
    """
    largest = np.max(state.mean**2 + np.einsum("saa->sa", state.blocks))
    return float(largest * (left / (1.0 - left)) ** 2)


def _start(
    operator: PairOperator, initial: Solution | Moments | tuple[ArrayLike, ArrayLike]
) -> PairState:
    found: Any = initial.moments if isinstance(initial, Solution) else initial
    if isinstance(found, Moments):
        found = found.mean, found.full_second()
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    return operator.centre(*checks.collection("initial", *found, operator.jm))


@dataclass(frozen=True, eq=False, repr=False)
class Trace(machine.ReadOnly):
    """Largest change of any coordinate from $M_k$ to $T_2 M_k$, for $k = 0, 1, ...$, (sweeps,).

    Attributes:
        mean: of $mu(s, a)$.
        second: of $Sigma(s, a, t, b)$, all of it.
        covariance: of $C = Sigma - mu mu'$, all of it.
        weight: $lambda$, so that max(mean, second / weight) is the residual of eq. (23).
    """

    mean: Floats
    second: Floats
    covariance: Floats
    weight: float

    def __repr__(self) -> str:
        return f"Trace({self.mean.size:,} sweeps, last residual {self.residuals[-1]:.3g})"

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for every sweep.

        Example:
            >>> import jmdp_lib as jl
            >>> trace = jl.trace_jipe2(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, sweeps=2)
            >>> print(trace.to_frame().round(3))
               sweep  mean  second  covariance  residual
            0      0   1.0    1.00       0.250       1.0
            1      1   0.9    2.61       0.203       0.9
        """
        columns = {"sweep": np.arange(self.mean.size), "mean": self.mean, "second": self.second}
        return machine.table({**columns, "covariance": self.covariance, "residual": self.residuals})

    @property
    def residuals(self) -> Floats:
        """$||M_k - T_2 M_k||_lambda$."""
        return np.maximum(self.mean, self.second / self.weight)


def trace_jipe2(jm: JMDP, policy: Policy, sweeps: int, coupling: str = "joint") -> Trace:
    """The changes of the first `sweeps` applications of $T_2$ from $M_0 = 0$.

    Compares all of $Sigma$, (S, A, S, A), after every sweep: for small models.

    Example:
        >>> import jmdp_lib as jl
        >>> trace = jl.trace_jipe2(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, sweeps=20)
        >>> print(trace.residuals[:3].round(3), round(jl.decay_rate(trace.mean), 3))
        [1.   0.9  0.81] 0.9
    """
    operator = PairOperator.of("trace_jipe2", jm, policy, coupling)
    state = operator.zero()
    rows = []
    parts = ("mean", "second", "covariance")
    for _ in range(checks.at_least("sweeps", sweeps, 1)):
        old = state
        state = operator.apply(state)
        rows.append([np.abs(getattr(state, x) - getattr(old, x)).max() for x in parts])
    mean, second, covariance = np.transpose(rows)
    return Trace(mean, second, covariance, operator.weight)


def covariance_rates(jm: JMDP, policy: Policy) -> tuple[float, float]:
    """The two factors per sweep that covariances settle by: $gamma zeta_mu$ and $gamma^2 zeta_C$.

    $C_{k+1} = c_0(mu_k) + gamma^2 P_2 C_k$. The source $c_0$ sees *differences* of the means, which
    settle by $gamma zeta_mu$: $zeta_mu$ is the second largest eigenvalue of the policy's chain $P$,
    in modulus (the largest belongs to constants). What is in $C$ already fades by $gamma^2 zeta_C$:
    $zeta_C$ is the spectral radius of $P$ among the states whose return varies. The larger one
    bounds the rate in the end; where both are zero, covariances are exact after finitely many
    sweeps.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(3, gamma=0.8)
        >>> by_means, by_itself = jl.covariance_rates(jm, jl.uniform_policy(jm))
        >>> print(f"{by_means:.3f} and {by_itself:.3f}")
        0.780 and 0.624
    """
    matrix = checks.policy_matrix(jm, policy)
    chain = CollapsedT2(jm, matrix).kernel.toarray()
    sizes = np.sort(np.abs(np.linalg.eigvals(chain)))
    moments = jipe2(jm, matrix).moments
    value = (matrix * moments.mean).sum(1, keepdims=True)
    spread = (matrix * (moments.variance + (moments.mean - value) ** 2)).sum(1)
    varies = spread > 1e-9 * jm.reward_bound**2
    among = np.abs(np.linalg.eigvals(chain[np.ix_(varies, varies)]))
    second = sizes[-2] if sizes.size > 1 else 0.0
    return jm.gamma * float(second), jm.gamma**2 * float(among.max(initial=0.0))


def decay_rate(values: ArrayLike, first: int = 0, floor: float = 1e-10) -> float:
    """The factor per step of a geometric decay: least squares on the logarithm.

    Steps before `first` are left out, and values below `floor` times the largest, where rounding
    takes over.

    Example:
        >>> import jmdp_lib as jl
        >>> print(round(jl.decay_rate([4.0, 2.0, 1.0, 0.5]), 6))
        0.5
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
