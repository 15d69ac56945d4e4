"""Joint iterative policy evaluation, JIPE-2 (Theorem 5.3): T_2 repeated, or its fixed point solved.

`affine` solves for the fixed point, on the pairs of states that the asked gaps reach or on all. T_2
is repeated where that is asked for: it is slower, and has the paper's curve of residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, fast, machine
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.fast import AskedGaps, CollapsedT2, PairSet, SolvedPairs
from jmdp_lib.machine import rounding_of
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.fixed_point import Solution

ROUTES = ("auto", "sweeps", "reachable", "dense")


def jipe2(
    jm: JMDP,
    policy: Policy,
    tol: float = 1e-8,
    coupling: CouplingName = DEFAULT_COUPLING,
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
        probabilities (A,) or an action. All calls take all of these. A function must be pure: one
        that draws its actions returns probabilities. Draws from a global generator are noticed and
        refused; rare ones from a generator of its own are not.
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
    route: "reachable" solves one sparse system on the pairs of states that `queries` reach, "dense"
        one on all pairs. "auto" takes the faster of these that fits into memory; the solution's
        `route` says which one it was. A model that fits in no way is refused: `local_jipe2` can
        still answer for a few of its states. "sweeps" repeats $T_2$ from `initial`, as it does
        if that or `max_iterations` is given. It is slower, and has the residuals of every sweep.
    device: a torch device, such as "cuda", for the dense route.

    What all rewards have in common (`JMDP.reward_offset`) is subtracted before anything is solved,
    and put back into the means, so that it costs gaps no digits.

    Residuals are the paper's norm on what is solved. Sweeps solve all coordinates. The other routes
    solve all means and the policy averages that $T_2$ needs, on which it is the same contraction,
    and every other coordinate follows from those in one step. `moments.second` and
    `moments.full_second` answer for any two states, whatever the route was: what no gap that was
    asked for reaches is solved when it is read.

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
    tol = checks.positive("tol", tol)
    swept = initial is not None or max_iterations is not None or route == "sweeps"
    solved = route in ("reachable", "dense") or device is not None or queries is not None
    _check_route(route, device, swept, solved)
    if swept:
        return _sweeps(jm, system, tol, initial, max_iterations)
    asked = AskedGaps.of(jm, queries)
    reached = None
    if route == "dense" or device is not None:
        _require_dense(system, device)
    else:
        reached = fast.choose_pairs(system, asked, or_all=route == "auto")
    return _solved(jm, system, asked, tol, reached, device)


def _check_route(route: str, device: str | None, swept: bool, solved: bool) -> None:
    """Refuse what does not go together.

    swept, solved: whether some argument belongs to sweeps alone, or to linear systems alone.
    """
    checks.one_of("route", route, ROUTES)
    if device is not None and route not in ("auto", "dense"):
        raise ValueError(f"device={device!r} belongs to route='dense', not to {route!r}")
    if swept and solved:
        raise ValueError(
            "initial, max_iterations and route='sweeps' belong to sweeps, which always solve all "
            "pairs: they do not go together with a device, queries or another route"
        )


def _require_dense(system: CollapsedT2, device: str | None) -> None:
    """Refuse all pairs if they do not fit into memory, or into that of a device."""
    needed = fast.dense_bytes(system)
    what = f"JIPE-2 on all {_all_pairs(system.jm):,} pairs of {system.jm.num_states:,} states"
    instead = "use local_jipe2 for a few states"
    if device is None:
        machine.require(needed, what, instead)
    elif needed > fast.device_bytes(device):
        raise MemoryError(f"{what} needs {machine.gibibytes(needed)} on {device}: {instead}")


def _sweeps(
    jm: JMDP,
    system: CollapsedT2,
    tol: float,
    initial: Solution | Moments | tuple[ArrayLike, ArrayLike] | None,
    max_iterations: int | None,
) -> Solution:
    """T_2 repeated: that of jm from zero, or from `initial` that of jm without its offset."""
    model = jm if initial is None else system.jm
    operator = PairOperator(model, system.policy, system.coupling)
    # Three states, each as C and Sigma, their differences, and arrays over tables and actions.
    tables = jm.rewards.size * (150.0 + 24.0 * jm.num_actions)
    machine.require(
        72.0 * system.policy.size**2 + tables, f"JIPE-2 by sweeps on {jm.num_states:,} states"
    )
    start = operator.zero() if initial is None else _start(operator, initial, jm.return_offset)
    allowed = tol * model.reward_bound
    state, end = fixed_point.iterate(operator, start, jm.gamma, allowed, max_iterations, "JIPE-2")
    if initial is None:
        offset = state.offset
        off = _unplayed(jm.gamma**end.iterations, state)
    else:
        offset = jm.return_offset
        off = 2.0 * operator.weight * end.error_bound
        off += fixed_point.false_variance(jm.gamma, end.error_bound)
        error_bound = end.error_bound + machine.rounding_of_returns(jm.gamma, jm.reward_bound)
        end = end._replace(error_bound=error_bound)
    excess = replace(state, offset=0.0) if state.offset else state
    found = 2, excess.mean, state.blocks, StoredMoments(excess.second)
    moments = fixed_point.collect_moments(jm, found, offset, end.error_bound, off)
    return Solution(moments, *end, route="sweeps", pairs=_all_pairs(jm))


def _all_pairs(jm: JMDP) -> int:
    """How many unordered pairs of states there are."""
    return jm.num_states * (jm.num_states + 1) // 2


def _unplayed(left: float, state: PairState) -> float:
    """E[(Z - Z_k)^2] at most, where k sweeps from zero have found the moments of k steps, Z_k.

    left: gamma^k. Then Z - Z_k is `left` times the return after k steps, so that its L_2 norm is at
    most `left` times the largest ||Z||, which is at most the largest ||Z_k|| / (1 - left). An
    offset of all returns is in no variance, and does not count.
    """
    largest = np.max(state.excess**2 + np.einsum("saa->sa", state.blocks))
    return float(largest * (left / (1.0 - left)) ** 2)


def _start(
    operator: PairOperator, initial: Solution | Moments | tuple[ArrayLike, ArrayLike], offset: float
) -> PairState:
    """M_0 of the returns minus `offset`."""
    found: Any = initial.moments if isinstance(initial, Solution) else initial
    if isinstance(found, Moments):
        offset -= found.offset
        found = found.mean - found.offset, replace(found, offset=0.0).full_second()
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
    start = operator.centre(*checks.collection("initial", *found, operator.jm))
    return replace(start, excess=start.excess - offset)


def _solved(
    jm: JMDP,
    system: CollapsedT2,
    asked: AskedGaps,
    tol: float,
    reached: PairSet | None,
    device: str | None,
) -> Solution:
    """The moments by a linear system on the pairs of states reached, or on all.

    system: of jm without the offset of its rewards.
    """
    gamma = jm.gamma
    route = "dense" if reached is None else "reachable"
    pairs = _all_pairs(jm) if reached is None else reached.size
    name = f"JIPE-2, {route}, {pairs:,} pairs of {jm.num_states:,} states"
    accuracy = tol * system.jm.reward_bound
    found = fast.solve_pairs(system, reached, accuracy, name, device)
    rounding = found.rounding + rounding_of(0) * jm.reward_bound
    certified = found.residuals, rounding, gamma, tol * jm.reward_bound, found.iterations
    end = fixed_point.certify(*certified, "JIPE-2")
    source = MomentsFromPairs(system, found, accuracy, pairs == _all_pairs(jm))
    # c contracts by gamma^2
    off = 4.0 * found.residuals[-1] * system.weight / (1.0 - gamma**2)
    solver_error = float(found.residuals[-1] + found.rounding) / (1.0 - gamma)
    off += fixed_point.false_variance(gamma, solver_error)
    known = 2, found.backup.mean, system.blocks(found.backup, found.pairs, asked), source
    moments = fixed_point.collect_moments(jm, known, jm.return_offset, end.error_bound, off)
    return Solution(moments, *end, route=route, pairs=pairs)


@dataclass(frozen=True)
class MomentsFromPairs:
    """Second moments, each one local expectation away from c; where c is not known, it is solved.

    accuracy: to which it is. complete: whether `solved` knows c at all pairs of states.
    """

    system: CollapsedT2
    solved: SolvedPairs
    accuracy: float
    complete: bool

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """Sigma(s, a, t, b)."""
        (s, a), (t, b) = coordinates
        mean = self.solved.backup.mean
        here, one, two, there = (np.array([x]) for x in (s, a, b, t))
        asked = AskedGaps(here, one, two, None if s == t else there)
        found = self.system.covariances(self.solved.backup, self.solved.pairs, asked)
        if np.isnan(found[0]):
            other = self._solve(fast.choose_pairs(self.system, asked))
            found = self.system.covariances(other.backup, other.pairs, asked)
        return float(found[0] + mean[s, a] * mean[t, b])

    def _solve(self, reached: PairSet | None) -> SolvedPairs:
        return fast.solve_pairs(self.system, reached, self.accuracy, "JIPE-2 of other pairs")

    @cached_property
    def _everywhere(self) -> SolvedPairs:
        """With c at all pairs of states."""
        if self.complete:
            return self.solved
        _require_dense(self.system, None)
        return self._solve(None)

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        backup = self._everywhere.backup
        states = np.arange(self.system.jm.num_states)
        c = self._everywhere.pairs(*np.broadcast_arrays(states[:, None], states))
        mean = backup.mean
        return self.system.full_covariance(backup, c) + np.multiply.outer(mean, mean)
