"""Bounds on the gaps at a few states when only a part of the model has been explored.

Notation is that of chapter 7. Returns lie in an interval of width 2w. Single branches are followed
through all *explored* states. From the time tau at which a branch leaves these states, its return
is the middle of the interval. So values m~ and returns Z~ of the explored model differ from the
true ones by

    |m - m~| <= e = w E gamma^tau,       sd Z <= sigma-bar = sd Z~ + w (E gamma^(2 tau))^(1/2).

Pairs of branches are solved for only in a *core* of these states (`large.local`). A branch that
leaves the core, at time tau_core, gets the value m~(x) of the state x that it enters. The gap G~ of
the core differs from the true gap G by errors of both branches, up to the time they coalesce:

    E^2 = 2 E[sum gamma^(2 tau_core) e(x)^2],       D = E[sum gamma^(2 tau_core) sigma-bar(x)^2],
    |E G - E G~| <= E,       |sd G - sd G~| <= E + D / (s + (s^2 - D)^(1/2)),     s = sd G~ - E,

with the root zero if D > s^2. The L_2 distance of G and G~ also bounds both errors: its square is
at most 2 E[sum gamma^(2 tau_core) sigma-bar(x)^2]. `Losses` holds the three expectations and has
the proof.

`view_explored` builds a model of the states reached so far, in which unexplored states are
absorbing, and follows branches in it. `large.local` converts the bounds to errors: `View.bounds`
to errors of gaps (`_cut_errors`), and `View.alone` to errors of returns (`_distances`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import Chain, CollapsedT2, Gaps, solve_chains
from jmdp_lib.large.implicit import Region

_SOLVED = 0.01  # error of solvers, as a share of the goal


class Losses(NamedTuple):
    """Expectations E[gamma^(2 tau_core) phi(x)], with functions phi of the state x of entry.

    With delta the temporal-difference errors of a branch, the variance of G is the sum over t of
    gamma^(2t) E (delta_a - delta_b)^2 until the branches coalesce. The core replaces delta by its
    own errors, and by zero once a branch has left. By Minkowski's inequality the first change costs
    E, since the square of a difference is at most twice the sum of the squares. The second change
    adds v(x) to the variance for each branch, where it leaves to x, and -2 c(x, y) once, where y is
    the state of the other branch when the first one leaves. Branches at states that draw
    independently are correlated only because they may meet later. When both are at z, c(z, z) is
    the variance of sum_a pi(a) Z(z, a), which is between 0 and v(z). So c(x, y) is between 0 and
    v(x), which gives D. With common noise |c(x, y)| is at most sigma-bar(x) sigma-bar(y): see
    `_phi_of_later`. The distance of Z and m~ is at most sigma-bar, too.

    Later coalescing is ignored. That is safe, and following pairs for longer would save few states.
    To add another bound, add a field here and its phi in `_losses_of_one_branch`; `view_explored`
    sums it, and doubles it if necessary.

    All arrays have one shape: (M,) for one branch from each state, (Q,) for both branches of each
    gap. Rewards are in [-1, 1], so that w = 1 / (1 - gamma).

    value: phi = (e / w)^2, which gives (E / w)^2. distance: phi = sigma-bar^2, which gives the
    squared L_2 distance. later: the variance of a branch after it has left, which gives D; its
    phi is `_phi_of_later`.
    """

    value: Floats
    distance: Floats
    later: Floats


@dataclass(frozen=True)
class View:
    """A model of the M states reached so far, by their index, and bounds on its errors.

    system: T_2 of the model. Rewards are in [-1, 1]; unexplored states are absorbing and pay
    nothing. gaps: the Q requested gaps. value: (M,) m~. core: (M,) true for states of the core.
    alone: losses (M,) of one branch. bounds: losses (Q,) of both branches of each gap, doubled
    if necessary. visits: (M,) discounted visits of branches that have not coalesced, summed over
    gaps. scores: (M,) the share of each unexplored state in bounds.value.sum().
    """

    system: CollapsedT2
    gaps: Gaps
    value: Floats
    core: Any
    alone: Losses
    bounds: Losses
    visits: Floats
    scores: Floats


def view_explored(region: Region, goal: float, theta: float = 0.0) -> View:
    """Bounds on the requested gaps from the states explored so far.

    Branches of a gap are followed together for one step, and separately after that. If both are
    then at one state where the policy has one action, they have coalesced. The same computation
    scores the unexplored states: a score is the part of E^2 from branches that enter the state.

    goal: the upper limit for (E / w)^2, which sets the accuracy of the solvers. theta: states stay
    out of the core as long as their shares of D sum to at most theta standard deviations.
    """
    system = region.system()
    gaps = Gaps.of(system.jm, states=region.requested)
    explored = np.isin(np.arange(system.jm.num_states), region.explored)
    gamma = system.jm.gamma
    accuracy = _SOLVED * goal
    branch = _single_branches(system, explored, goal)
    step = system.step(gaps)
    one_action = explored & (system.policy.max(1) == 1.0)
    coalesced = (step.first == step.second) & one_action[step.first]
    mass = np.tile(gamma**2 * step.weights * ~coalesced, 2)
    where = np.tile(step.row, 2), np.concatenate([step.first, step.second])
    # (Q, M) discounted probabilities of the states of both branches one step later
    ends = sparse.csr_array((mass, where), (gaps.states.size, explored.size))
    later = np.asarray(ends.sum(0), float)
    start = 2.0 * np.bincount(gaps.states, minlength=explored.size).astype(float)
    visits = (start + _visits(system, explored, gamma**2, later, accuracy)) * explored
    by_gap = visits / max(1, gaps.states.size)
    core = explored & _matters(system, branch, region.requested, by_gap, theta)
    alone = _losses_of_one_branch(system, branch, core, accuracy)
    both = Losses(*(ends @ loss for loss in alone))
    # A squared difference is at most twice the sum of the squares. D is not one, so it counts once.
    bounds = Losses(2.0 * both.value, 2.0 * both.distance, both.later)
    entered = _visits(system, core, gamma**2, later, accuracy) * ~core
    scores = _visits(system, explored, gamma, entered * branch.value_error, accuracy) * ~explored
    return View(system, gaps, branch.value, core, alone, bounds, visits, scores)


class SingleBranches(NamedTuple):
    """Value and bounds of a branch from each state, (M,).

    value: m~. value_error: e / w. deviation: sigma-bar. The bounds include the residuals of the
    solver of m~ and Var Z~. To add a smaller bound, take the minimum in `_single_branches`; all
    other bounds follow from it. A smaller sigma-bar must also bound the L_2 distance of Z and m~,
    not only sd Z: w bounds only the latter, and (w^2 + e^2)^(1/2) bounds both.
    """

    value: Floats
    value_error: Floats
    deviation: Floats


def _single_branches(system: CollapsedT2, explored: Any, goal: float) -> SingleBranches:
    """Follow single branches until they leave the explored states."""
    gamma = system.jm.gamma
    rate = gamma**2
    one = np.ones(explored.size)
    chains = solve_chains(system, 1e-3 * np.sqrt(goal))
    residual = chains.value_residual
    accuracy = _SOLVED * np.sqrt(goal) * (1.0 - gamma)
    value_error = _leaving(system, explored, gamma, one, accuracy) + residual
    unsolved = (chains.variance_residual + 4.0 * residual) / (1.0 - rate)
    deviation = np.sqrt(chains.backup.value_variance + unsolved)
    left = np.sqrt(_leaving(system, explored, rate, one, _SOLVED * goal))
    deviation += (left + residual) / (1.0 - gamma)
    return SingleBranches(chains.backup.value, value_error, deviation)


def _phi_of_later(system: CollapsedT2, deviation: Floats, top: float) -> Floats:
    """Function phi (M,) of D. top: the largest sigma-bar of the core.

    It is sigma-bar^2. With common noise the other branch is still in the core, or leaves at the
    same time, so max(sigma-bar^2, 2 sigma-bar top) is added.
    """
    square = deviation**2
    if not system.coupling.across_states:
        return square
    return square + np.maximum(square, 2.0 * deviation * top)


def _matters(
    system: CollapsedT2, branch: SingleBranches, requested: Ints, visits: Floats, theta: float
) -> Any:
    """Mask (M,) of all states except those that add least to D.

    visits: (M,) discounted visits, averaged over gaps.
    """
    top = branch.deviation[requested].max()  # a guess, since the core follows from it
    weights = visits * _phi_of_later(system, branch.deviation, top)
    weights[requested] = np.inf
    least_first = np.argsort(weights)
    tolerance = theta * max(theta, top)
    matters = np.ones(weights.size, dtype=bool)
    matters[least_first[np.cumsum(weights[least_first]) <= tolerance]] = False
    return matters


def _losses_of_one_branch(
    system: CollapsedT2, branch: SingleBranches, core: Any, accuracy: float
) -> Losses:
    """Losses (M,) from each state, for a single branch that never coalesces."""
    top = branch.deviation[core].max()
    phi = Losses(
        value=branch.value_error**2,
        distance=branch.deviation**2,
        later=_phi_of_later(system, branch.deviation, top),
    )
    return Losses(*(_leaving(system, core, system.jm.gamma**2, x, accuracy) for x in phi))


def _visits(
    system: CollapsedT2, inside: Any, rate: float, start: Floats, accuracy: float
) -> Floats:
    """Discounted visits (M,) of branches with initial weights `start` until they leave `inside`."""
    moves = _moves(system, inside).T.tocsr()
    return Chain(moves, rate, start).solution(accuracy)


def _leaving(system: CollapsedT2, inside: Any, rate: float, phi: Floats, accuracy: float) -> Floats:
    """Upper bounds (M,) of E[rate^tau phi(x)] for a branch that leaves `inside` at time tau to x.

    If it starts outside, tau is zero.
    """
    chain = Chain(_moves(system, inside), rate, phi * ~inside)
    expected = chain.solution(accuracy)
    return np.asarray(np.minimum(expected + chain.residual(expected) / (1.0 - rate), phi.max()))


def _moves(system: CollapsedT2, inside: Any) -> sparse.csr_array:
    """Transitions (M, M) of a branch that stops once it leaves `inside`."""
    return (sparse.diags_array(inside.astype(float)) @ system.kernel).tocsr()
