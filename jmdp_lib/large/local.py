"""Gaps at a few states of a model that is never enumerated, with a certificate.

Two nested sets of states grow outwards from the requested ones: the *explored* states, through
which single branches are followed, and within them a *core*, in which pairs of branches are solved
for. `large.exploration` bounds the effect of their edges: E, and D of the core. The search
(`_search`) explores until E is small (`_explored`, `_grow`), solves the pairs of the core as
`jipe2` does (`_solution`), and compares the two parts of the error. If D dominates, the core grows;
if E does, more states are explored. The search ends when the certified error is within the
tolerance, or when no more states fit: `_capacity` has every limit on their number.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import CollapsedT2, solve_pairs
from jmdp_lib.large.exploration import View, view_explored
from jmdp_lib.large.implicit import ImplicitJMDP, Region, closed
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import warn

_TRIALS = 10  # largest number of cores and explored sets that are solved
_BYTES = 2000  # free memory in bytes for each next state of an explored state
_E_SHARE = 0.5  # share of the error tolerance to which E is reduced
_CORE_SHARE = 0.3  # a core that adds less than this share of the error is large enough
_SMALLER_CORE = 1e3  # factor of theta if the pairs of a core do not fit
_LARGER_CORE = (1e-4, 0.1)  # least and largest factor of theta for a larger core
_FARTHER = 0.1  # factor of the goal for more explored states
_SOLVER_SHARE = 0.0025  # share of the error tolerance for the solver of pairs
_SOLVED = 1e-11  # accuracy of the solver if variances are tiny, in units of the rewards
_CUT_SHARE = 0.95  # if cuts take this share of the tolerance, a more accurate solver is no help
_GROWTH = 32  # a batch of states is at least one in this many of those explored


@dataclass(frozen=True, eq=False, repr=False)
class LocalSolution(machine.ReadOnly):
    """Solution of `local_jipe2`: gaps at N states. All arrays are read-only.

    Attributes:
        moments: moments of the N states, in their order, with A actions each.
        gap_error: (N, A, A), a bound on the errors of the mean and of the standard deviation of
            each gap.
        return_error: (N, A), such a bound for each return $Z(s, a)$. It may be much larger: the
            errors of two branches cancel once these have coalesced.
        error_bound: the largest gap_error.
        converged: True if error_bound is within the tolerance that `tol` sets.
        explored: the explored states, in the order of exploration.
        visits: (num_explored,) expected visits of branches that have not coalesced, summed over
            gaps, discounted by $gamma^2$ per step.
    """

    moments: Moments
    gap_error: Floats
    return_error: Floats
    error_bound: float
    converged: bool
    explored: tuple[Hashable, ...]
    visits: Floats

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        size = len(self.gap_error)
        return (
            f"LocalSolution({state}, {size:,} state{'s' * (size != 1)} requested, "
            f"{self.num_explored:,} explored, error_bound={self.error_bound:.3g})"
        )

    @property
    def num_explored(self) -> int:
        """Number of explored states."""
        return len(self.explored)

    @property
    def gap_mean(self) -> Floats:
        """Means (N, A, A), $E[Z(s, a) - Z(s, b)]$ at [n, a, b], for the n-th requested state s."""
        return self.moments.gap_mean

    @property
    def gap_variance(self) -> Floats:
        """Variances (N, A, A), $Var[Z(s, a) - Z(s, b)]$."""
        return self.moments.gap_variance


@np.errstate(under="ignore")  # a user may have errors raised; numbers that underflow are zero
def local_jipe2(
    model: ImplicitJMDP,
    policy: Policy,
    *,
    states: Sequence[Hashable],
    tol: float = 1e-3,
    coupling: CouplingName = DEFAULT_COUPLING,
    max_states: int = 50_000,
) -> LocalSolution:
    """Gap means and variances at a few states, exploring only what matters to them.

    Args:
        model: the model. A JMDP is enumerated already: use `jipe2(jm, policy, states=...)`.
        policy: a function of a state that returns probabilities (A,) or an action, or an array
            whose entry policy[state] is one of these: (S, A) if states are 0 to $|S| - 1$, or
            (rows, columns, A) if they are (row, column).
        states: the N states whose gaps are requested.
        tol: accuracy of the mean and the standard deviation of every gap. Defaults to 0.001. It is
            relative to the larger absolute end of the range of rewards, or to the width of that
            range if it is smaller, since a constant added to all rewards changes no gap. The result
            has converged once error_bound is within this tolerance.
        coupling: "joint", "independent" or "common", as in `jipe2`. Defaults to "joint".
        max_states: the largest number of explored states. Defaults to 50,000. If that number, or
            the memory, does not suffice, a `ConvergenceWarning` reports the error bound that was
            reached.

    Returns:
        The gaps of the N states, a bound on the error of each, and the explored states.

    Raises:
        ValueError: an argument makes no sense, or the tables of a state are not valid; the message
            shows the state.
        MemoryError: not even the pairs of the requested states fit.

    Example:
        >>> import jmdp_lib as jl
        >>> def step(cell, action, gust):  # an endless line: a gust adds one cell to the left
        ...     return float(cell > 3), cell + (1 if action == 0 else -1) - gust
        ...
        >>> line = jl.large.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], step, (0.0, 1.0))
        >>> local = jl.large.local_jipe2(line, lambda cell: [0.5, 0.5], states=[2], tol=1e-3)
        >>> print(f"{local.gap_mean[0, 0, 1]:.3f} and variance {local.gap_variance[0, 0, 1]:.3f}")
        0.522 and variance 0.759
        >>> local.converged, local.num_explored < 100
        (True, True)
    """
    _require_implicit(model)
    region = Region.of(model, policy, coupling, states, max_states)
    by_width = checks.positive("tol", tol) * 2.0 * region.unit + _rounding(region)
    error_tol = min(tol * region.model.reward_bound, by_width)
    with machine.progress(None, "local_jipe2", "state") as bar:
        solution = _search(region, error_tol, bar)
    if not solution.converged:
        warn(
            f"local_jipe2 stopped after {solution.num_explored:,} states with error bound "
            f"{solution.error_bound:.3g}, above the {error_tol:.3g} that tol allows: out of states "
            "or memory"
        )
    return solution


def _require_implicit(model: object) -> None:
    """Raise for any other model; the message names the function to use instead."""
    if isinstance(model, ImplicitJMDP):
        return
    instead = (
        "`jipe2(jm, policy, states=...)` solves for a few states of a JMDP"
        if isinstance(model, JMDP)
        else "`ImplicitJMDP.from_step` makes one from a step function and its noise, and "
        "`jl.simulators.estimate_gaps` estimates the gaps of any simulator"
    )
    raise TypeError(f"local_jipe2 needs an ImplicitJMDP, got {model!r}: {instead}")


def _rounding(region: Region) -> float:
    """A bound on the error of any result from the rounding of returns."""
    return machine.rounding_of_returns(region.model.gamma, region.model.reward_bound)


def _search(region: Region, error_tol: float, bar: Any) -> LocalSolution:
    """Explore and solve the core; then explore more or enlarge the core, whichever helps more.

    error_tol: tolerance in the unit of the rewards. bar: progress bar. The variables goal and theta
    are those of `view_explored`.
    """
    w = region.unit / (1.0 - region.model.gamma)
    goal = (_E_SHARE * error_tol / w) ** 2
    theta = error_tol / region.unit
    best: LocalSolution | None = None
    for _ in range(_TRIALS):
        view, reached = _explored(region, goal, theta, bar)
        core_size = int(view.core.sum())
        try:
            solution, by_core = _solution(region, view, error_tol)
        except MemoryError:
            if best is not None or core_size == region.num_requested:
                break
            theta *= _SMALLER_CORE
            continue
        if best is None or solution.error_bound < best.error_bound:
            best = solution
        bar.set_postfix_str(f"error {best.error_bound:.1e}, tolerance {error_tol:.1e}")
        error = solution.error_bound
        core_suffices = core_size == solution.num_explored or by_core < _CORE_SHARE * error
        if best.converged or (core_suffices and not reached):
            break
        if core_suffices:
            goal *= _FARTHER
        else:
            theta *= np.clip((_E_SHARE * error_tol / error) ** 2, *_LARGER_CORE)
    if best is None:
        raise MemoryError(
            f"local_jipe2 cannot solve for the pairs of {region.num_requested} states"
        )
    return best


def _explored(region: Region, goal: float, theta: float, bar: Any) -> tuple[View, bool]:
    """Explore until (E / w)^2 <= goal; False if all states are explored, or no more fit."""
    while True:
        view = view_explored(region, goal, theta)
        reached = bool(view.bounds.value.max(initial=0.0) <= goal)
        if reached or not _grow(region, view, goal, bar):
            return view, reached


def _capacity(region: Region) -> int:
    """Largest number of explored states at the next view, by all limits."""
    doubled = 2 * len(region.explored) + 16
    widest = max(state.targets.size for state in region.tables.values())
    return min(region.limit, doubled, machine.available_bytes() // (_BYTES * widest))


def _grow(region: Region, view: View, goal: float, bar: Any) -> bool:
    """Explore the states that matter most, up to the capacity; False if there are none.

    States with the least scores stay unexplored if their scores add up to at most half of the goal.
    Each newly explored state passes its score on to the states behind it, one ring at a time.
    """
    before = len(region.explored)
    capacity = _capacity(region)
    scores = view.scores
    ranked = np.sort(scores)
    outside = 0.5 * goal * view.bounds.value.sum() / view.bounds.value.max()
    least = ranked[min(np.searchsorted(np.cumsum(ranked), outside), ranked.size - 1)]
    while True:
        new = len(region.explored) - before
        size = max(int(np.sum(scores >= least)), before // _GROWTH - new)
        size = max(min(size, capacity - new - before), 0)
        batch = np.argsort(-scores)[:size]
        batch = batch[scores[batch] > 0.0]
        if not batch.size:
            return new > 0
        region.explore(batch.tolist())
        bar.update(batch.size)
        scores = _scores_behind(region, scores, batch)


def _scores_behind(region: Region, scores: Floats, batch: Ints) -> Floats:
    """Scores after a batch of states was explored and has passed its scores on."""
    behind = np.append(scores, np.zeros(len(region.index) - scores.size))
    for i in batch.tolist():
        probs, _, targets, policy = region.tables[i]
        # Doubled, since about half of the branches step back inside and leave again.
        np.add.at(behind, targets, 2.0 * scores[i] * np.outer(probs, policy))
    behind[region.explored] = 0.0
    return behind


def deviation_error(deviation: Floats, moved: Floats, lost: Floats) -> Floats:
    """A bound on the error of a standard deviation, given errors of it and of its square.

    These are `moved` and `lost`, or E and D of `large.exploration`. The worst case subtracts both.
    """
    least = np.maximum(deviation - moved, 1e-300)
    return moved + lost / (least + np.sqrt(np.maximum(least**2 - lost, 0.0)))


def gap_variance_error(weight: float, error_bound: float) -> float:
    """A bound on the error of a gap variance for moments within `error_bound` in ||.||_lambda.

    The errors of second moments are at most lambda_2 = `weight` times error_bound. A gap variance
    has four of these, and the square of a difference of two means; that difference is at most
    lambda_2.
    """
    return 8.0 * weight * error_bound + 4.0 * error_bound**2


@dataclass(frozen=True)
class SolvedCore:
    """The solution in the core, for the requested states, in units of `Region.unit`.

    moments: moments of returns minus m~, with negative variances set to zero. error: error of the
    solver, in ||.||_lambda. weight: lambda_2.
    """

    moments: Moments
    error: float
    weight: float

    def solver_error(self, variance: Floats) -> Floats:
        """Bounds on the errors of means and standard deviations that the solver makes.

        variance: variances of the gaps or returns.
        """
        of_variance = gap_variance_error(self.weight, self.error)
        deviation = of_variance / np.sqrt(np.maximum(variance, of_variance) + 1e-300)
        return np.maximum(deviation, 2.0 * self.error)


def _cut_errors(view: View, variance: Floats) -> tuple[Floats, Floats]:
    """Bounds on the errors from the cut at the core, as derived in `large.exploration`.

    variance: (N, A, A), of the gaps at N requested states. Returns bounds for both means and
    standard deviations, and the parts of these bounds beyond E.
    """
    gaps = view.gaps
    bounds = np.zeros((3, *variance.shape))
    bounds[:, gaps.states, gaps.first, gaps.second] = view.bounds
    value, distance, lost = bounds + bounds.swapaxes(2, 3)
    moved = np.sqrt(value) / (1.0 - view.system.jm.gamma)
    by_parts = deviation_error(np.sqrt(variance), moved, lost)
    error = np.minimum(np.sqrt(distance), by_parts)
    return error, error - moved


def _solution(region: Region, view: View, error_tol: float) -> tuple[LocalSolution, float]:
    """The solution in the core, and the part of its error that a larger core would reduce."""
    unit = region.unit
    rounding = _rounding(region)
    system = _core_model(region, view)
    rough = _SOLVER_SHARE * error_tol / unit / system.weight
    for accuracy in (rough, _SOLVED * system.jm.reward_bound):
        core = _solve_core(region, view, system, accuracy)
        by_cut, by_core = _cut_errors(view, core.moments.gap_variance)
        gap_error = unit * (by_cut + core.solver_error(core.moments.gap_variance)) + rounding
        gap_error *= ~np.eye(region.model.num_actions, dtype=bool)
        bound = max(rounding, float(gap_error.max()))
        if bound <= error_tol or unit * by_cut.max() > _CUT_SHARE * error_tol:
            break
    return_error = (
        unit * (_distances(region, view) + core.solver_error(core.moments.variance)) + rounding
    )
    requested = region.requested
    solution = LocalSolution(
        moments=_moments(region, view, core, float(return_error.max())),
        gap_error=gap_error[requested],
        return_error=return_error[requested],
        error_bound=bound,
        converged=bound <= error_tol,
        explored=tuple(np.fromiter(region.index, object)[region.explored]),
        visits=view.visits[region.explored],
    )
    return solution, unit * float(by_core.max())


def _solve_core(region: Region, view: View, system: CollapsedT2, accuracy: float) -> SolvedCore:
    """Solve the pairs of the core as `jipe2` does."""
    solved = solve_pairs(system, view.gaps, accuracy)
    states = slice(region.num_requested)
    blocks = system.blocks(solved.backup, solved.pairs, view.gaps)[states]
    mean = solved.backup.mean[states]
    return SolvedCore(
        moments=Moments(2, mean, blocks, StoredMoments(None), mean_error=0.0, resolution=np.inf),
        error=float(solved.residuals[-1] + solved.rounding) / (1.0 - region.model.gamma),
        weight=system.weight,
    )


def _distances(region: Region, view: View) -> Floats:
    """Bounds (N, A) on the L_2 distance of the core's returns from the true ones."""
    whole = view.system.jm
    after = whole.averaging @ view.alone.distance[whole.next_states]
    return whole.gamma * np.sqrt(after[: region.num_requested])


def _moments(region: Region, view: View, core: SolvedCore, error: float) -> Moments:
    """Moments in the order of the requested states and in the unit of the rewards."""
    requested = region.requested
    middle = 0.5 * sum(region.model.reward_range) / (1.0 - region.model.gamma)
    mean = region.unit * (core.moments.mean[requested] + view.value[requested, None]) + middle
    blocks = region.unit**2 * core.moments.covariance[requested]
    return Moments(2, mean, blocks, StoredMoments(None), mean_error=error, resolution=error)


def _core_model(region: Region, view: View) -> CollapsedT2:
    """The core as a model of its own, in which the requested states keep their index.

    Requested states were explored first, and all of them are in the core. Rewards of the core are
    temporal-difference errors of m~: they lower returns by m~(s) and leave gaps unchanged.
    """
    whole = view.system.jm
    core = view.core
    size = int(core.sum())
    index = np.where(core, np.cumsum(core) - 1, size)
    rows = core[whole.table_states]
    owners = whole.table_states[rows]
    to = whole.next_states[rows]
    errors = whole.rewards[rows] + whole.gamma * view.value[to] - view.value[owners, None]
    tables = index[owners], whole.probs[rows], errors, index[to]
    jm = closed(*tables, size + 1, whole.gamma)
    policy = np.append(view.system.policy[core], view.system.policy[:1], 0)
    return CollapsedT2(jm, policy, region.coupling)
