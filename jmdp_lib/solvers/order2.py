"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3): T_2 repeated, or its fixed point solved.

For few state-actions T_2 is repeated. Otherwise `affine` solves for the fixed point, on the pairs
of states that the asked gaps reach or on all. `_choose` says which, and forecasts memory and time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.operators.collapsed import AskedGaps, Backup, CollapsedT2, PairValues, distinct_states
from jmdp_lib.operators.dense import device_bytes
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers import affine, fixed_point
from jmdp_lib.solvers.fixed_point import Plan, Solution

ROUTES = ("auto", "sweeps", "reachable", "dense")
FEW = 512  # state-actions up to which T_2 is repeated, for the curve of its residuals
# More sweeps than this are not worth the curve of their residuals: gamma above some 0.995.
_MANY_SWEEPS = 5000
# Nanoseconds that a sweep takes for itself, for each coordinate, and for each term of what moves.
_SWEEP_NS = 2e5
_COORDINATE_NS = 20.0
_MOVED_NS = 5.0
# Nanoseconds for a term of a sum over rows, and for an entry of (S, S) that a kernel moves twice;
# for a term of a matrix product; for a term of a sum over reachable pairs, and for a pair.
_TERM_NS = 1.2
_ENTRY_NS = 16.0
_PRODUCT_NS = 0.15
_REACHED_NS = 20.0
_PAIR_NS = 100.0
LOG = logging.getLogger("jmdp_lib")


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
        solves one sparse system on the pairs of states that `queries` reach, "dense" one on all
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
    return _solved(system, AskedGaps.of(jm, queries), allowed, plan, reached)


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
    return _choose_pairs(system, AskedGaps.of(system.jm, queries), tol, route, device)


def _choose_pairs(
    system: CollapsedT2, asked: AskedGaps, tol: float, route: str, device: str | None
) -> tuple[Plan, PairSet | None]:
    """The plan of a linear system on pairs, and for the route "reachable" its pairs."""
    states = system.jm.num_states
    free = 0.9 * (machine.available_bytes() if device is None else device_bytes(device))
    needed = affine.dense_bytes(system, asked, device)
    work = _dense_work(system, tol)
    dense = Plan("dense", states, states * (states + 1) // 2, needed, device, *work)
    if route == "dense" or device is not None:
        if needed > free:
            raise MemoryError(
                f"JIPE-2 needs {dense}; available are {machine.gibibytes(free)}; use local_jipe2 "
                "for a few states"
            )
        return dense, None
    dense_fits = route == "auto" and needed <= free
    reached = affine.choose_pairs(system, asked, free, dense_fits)
    if reached is None:
        return dense, None
    taken = system.bytes_beside_pairs(asked) + reached.words.nbytes
    taken += affine.pair_bytes(reached.numbering) * reached.size
    work = _reachable_work(system, tol, reached)
    return Plan("reachable", states, reached.size, taken, None, *work), reached


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


def _solved(
    system: CollapsedT2, asked: AskedGaps, allowed: float, plan: Plan, reached: PairSet | None
) -> Solution:
    """The moments by a linear system on pairs of states, as planned."""
    LOG.info("JIPE-2, %s", plan)
    jm = system.jm
    found = affine.solve_pairs(system, reached, allowed, f"JIPE-2, {plan}", plan.device)
    certified = found.residuals, found.rounding, jm.gamma, allowed, found.iterations
    end = fixed_point.certify(*certified, "JIPE-2")
    blocks = system.blocks(found.backup, found.pairs, asked)
    source = MomentsFromPairs(system, found.backup, blocks, found.pairs)
    # c contracts by gamma^2
    off = 4.0 * found.residuals[-1] * system.weight / (1.0 - jm.gamma**2)
    known = found.backup.mean, blocks, source
    moments = fixed_point.collect_moments(jm, 2, *known, end.error_bound, off)
    return Solution(moments, *end, plan=plan)


def _accelerated_sweeps(gamma: float, tol: float) -> float:
    """How often BiCGSTAB applies an operator: typical for a gamma^2-contraction."""
    return 1.2 * math.log10(10.0 / min(tol, 1.0)) / math.sqrt(1.0 - gamma**2)


def _dense_work(system: CollapsedT2, tol: float) -> tuple[int, float]:
    """Terms of one application on all pairs, and seconds in all."""
    states = system.jm.num_states
    moved = sum(kernel.nnz for kernel in system.kernels) * states
    common = states**2 * (len(system.kernels) if system.coupling == "common" else 0)
    terms = 2 * moved + common + system.diagonal_entries
    time = _TERM_NS * 2 * moved + _PRODUCT_NS * common
    if not system.few_successors:
        terms = 2 * states**3
        time = _PRODUCT_NS * terms
    time += _ENTRY_NS * len(system.kernels) * states**2
    return terms, 1e-9 * time * _accelerated_sweeps(system.jm.gamma, tol)


def _reachable_work(system: CollapsedT2, tol: float, reached: PairSet) -> tuple[int, float]:
    """Terms of one application on the reachable pairs, and seconds in all."""
    widths = np.array([np.diff(kernel.indptr) for kernel in system.kernels], float)
    each = float((widths.mean(1) ** 2).sum()) + len(system.kernels)
    terms = int(each * reached.size)
    sweeps = float(affine.ACYCLIC_SWEEPS)
    if not reached.numbering.acyclic:
        sweeps = 1.0 + 0.5 * _accelerated_sweeps(system.jm.gamma, tol)
    return terms, 1e-9 * (_REACHED_NS * terms + _PAIR_NS * reached.size) * sweeps


@dataclass(frozen=True)
class MomentsFromPairs:
    """Second moments between states, each one local expectation away from c.

    backup: T_2 on m and v. blocks: (S, A, A). pairs: c.
    """

    system: CollapsedT2
    backup: Backup
    blocks: Floats
    pairs: PairValues

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """Sigma(s, a, t, b), of two states, or of actions of one state that were not asked for."""
        (s, a), (t, b) = coordinates
        if s == t:
            raise ValueError(
                f"the covariance of actions {a} and {b} of state {s} was not asked for: solve with "
                f"queries=[({s}, {a}, {b})], or without queries for all of them"
            )
        asked = (np.array([x]) for x in (s, a, b, t))
        found = self._known(self.system.covariances(self.backup, self.pairs, *asked))
        return float(found[0] + self.backup.mean[s, a] * self.backup.mean[t, b])

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        system = self.system
        mean = self.backup.mean
        states = np.arange(len(self.blocks))
        source = system.noise_source(self.backup.deviations)
        c = self.pairs(*np.broadcast_arrays(states[:, None], states))
        full = distinct_states(system.jm.gamma, system.moves, c, source)
        full = full.reshape(mean.shape * 2)
        full[states, :, states] = self.blocks
        return self._known(full) + np.multiply.outer(mean, mean)

    def _known(self, covariance: Floats) -> Floats:
        if np.isnan(covariance).any():
            raise ValueError(
                "no gap that was asked for reaches these pairs of states, so that their moments "
                'were not solved: solve with route="dense" for those of all pairs'
            )
        return covariance
