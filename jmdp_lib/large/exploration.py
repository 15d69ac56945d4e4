"""What is known of a few states' gaps when only a part of the model has been explored.

Notation is that of chapter 7. Returns lie in an interval of width 2w. Single branches are followed
through all *explored* states; one that leaves them, at time tau, earns the middle of the interval
from there on. So values m~ and returns Z~ of the explored model differ from the true ones by

    |m - m~| <= e = w E gamma^tau,       sd Z <= sigma-bar = sd Z~ + w (E gamma^(2 tau))^(1/2).

Pairs of branches are solved for in a *core* of these states only (`large.local`). A branch that
leaves it, at time tau_core, gets m~ of the state x that it enters. What that changes, in a gap G
against the G~ of the core, sums over both branches while these have not merged:

    E^2 = 2 E[sum gamma^(2 tau_core) e(x)^2],       D = E[sum gamma^(2 tau_core) sigma-bar(x)^2],
    |E G - E G~| <= E,       |sd G - sd G~| <= E + D / (s + (s^2 - D)^(1/2)),     s = sd G~ - E,

with the root zero if D > s^2. The L_2 distance of G and G~ bounds both as well: its square is at
most 2 E[sum gamma^(2 tau_core) sigma-bar(x)^2]. `Losses` holds the three expectations.

**Why.** With delta the temporal-difference errors of a branch, the variance of G is the sum over t
of gamma^(2t) E (delta_a - delta_b)^2 until the branches merge. The core has errors of its own in
place of delta, and none after a branch has left. By Minkowski's inequality the former costs E,
since a squared difference is at most twice the squares. The latter changes the variance by v(x) of
each branch, where it leaves to x, and by -2 c(x, y) once, where y is the other branch when the
first one leaves. States that draw independently are correlated only by meeting later. When both are
at z, c(z, z) is the variance of sum_a pi(a) Z(z, a), which is not negative and at most v(z). So
c(x, y) is between 0 and v(x), which gives D. With common noise |c(x, y)| is at most sigma-bar(x)
sigma-bar(y), and in D sigma-bar^2 is replaced by sigma-bar^2 + max(sigma-bar^2, 2 sigma-bar t),
where t is the largest sigma-bar of the core: the other branch is still there, or leaves at the same
time. The distance of Z and m~ is at most sigma-bar as well.

**How.** `view_explored` makes a model of the explored states (`_explored_model`), follows single
branches in it (`_single_branches`), leaves states out of the core that hardly matter
(`_choose_core`), follows pairs of branches step by step while these are few, and each branch on its
own after that (`_follow_pairs`). The same numbers say which state outside matters how much
(`_scores`).

**Another bound.** A smaller e or sigma-bar is a minimum in `_single_branches`, and all bounds
follow from it. There `off` is e / w, and `deviation` is sigma-bar itself. A smaller sigma-bar must
bound the L_2 distance of Z and m~ as well, not only sd Z: w bounds the latter alone, and
(w^2 + e^2)^(1/2) both. A bound of another kind has a name in `Losses` and its phi in
`_losses_of_one_branch`; its sums come by themselves. Say in `_follow_pairs` if it counts
twice, and see whether `_losses_of_two_at_one_state` holds for it. `Cut` of `large.local` makes
errors of the bounds: of gaps from `View.bounds`, and of returns from `View.alone`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.large.implicit import Region, with_outside
from jmdp_lib.operators.collapsed import AskedGaps, CollapsedT2, ragged
from jmdp_lib.solvers.affine import Chain, solve_chains

_PAIRS = 30  # pairs of branches, for each explored state, that are followed for one step


class Losses(NamedTuple):
    """E[gamma^(2 tau_core) phi(x)] for functions phi of the state x that a branch enters.

    All arrays have one shape: (n + 1,) of one branch from each state, (Q,) of both branches of each
    gap. Rewards are in [-1, 1], so that w = 1 / (1 - gamma).

    value: phi = (e / w)^2, which gives (E / w)^2. distance: phi = sigma-bar^2, which gives the L_2
    distance, squared. later: the variance that comes after a branch has left, which gives D; its
    phi is `_phi_of_later`.
    """

    value: Floats
    distance: Floats
    later: Floats


@dataclass(frozen=True)
class View:
    """A model of n explored states and of the outside, state n, and what could change its answer.

    system: rewards are in [-1, 1]. asked: Q gaps. value: (n + 1,) m~. core: (n + 1,)
    whether a state is in the core. alone: of one branch, (n + 1,). bounds: of both branches of the
    gaps, (Q,), doubled where that is due. visits: (n,) discounted visits of branches that have
    not merged, all gaps together. scores: what each state outside adds to bounds.value.sum().
    """

    system: CollapsedT2
    asked: AskedGaps
    value: Floats
    core: Any
    alone: Losses
    bounds: Losses
    visits: Floats
    scores: Floats


def view_explored(
    region: Region, goal: float, before: View | None = None, theta: float = 0.0
) -> View:
    """What is known of the asked gaps, with the states that are explored by now.

    goal: what (E / w)^2 is to fall below; it sets the accuracy. States stay out of the core as long
    as what they add to D, by the visits seen `before`, sums up to `theta` standard deviations.
    """
    model = _explored_model(region)
    accuracy = 0.01 * goal
    branch = _single_branches(model.system, goal)
    start = 2.0 * np.bincount(model.asked.states, minlength=model.size).astype(float)
    visits = Chain(model.inside, model.rate, start).solution(accuracy)  # if none ever merged
    if before is not None:
        visits[: before.visits.size] = before.visits[: visits.size]
    core = _choose_core(model, branch, region.asked, visits, theta)
    alone = _losses_of_one_branch(model, branch, core, accuracy)
    followed = _follow_pairs(model, core, alone, goal)
    visits, scores = _scores(model, branch, core, followed, accuracy)
    return View(
        model.system, model.asked, branch.value, core, alone, followed.bounds, visits, scores
    )


@dataclass(frozen=True)
class ExploredModel:
    """The explored states, 0 to n - 1 as they were explored, and the outside, n.

    asked: Q gaps. targets: (T, A), of the tables of explored states, the next states by their
    numbers in the region. num_met: how many states the region has numbered.
    """

    system: CollapsedT2
    asked: AskedGaps
    targets: Ints
    num_met: int

    @property
    def size(self) -> int:
        """n."""
        return self.system.jm.num_states - 1

    @property
    def rate(self) -> float:
        """gamma^2."""
        return self.system.jm.gamma**2

    @property
    def inside(self) -> sparse.csr_array:
        """(n, n) the chain of explored states, backwards: from a state to where it comes from."""
        n = self.size
        return self.system.kernel[:n, :n].T.tocsr()


def _explored_model(region: Region) -> ExploredModel:
    probs, rewards, targets, rows = zip(*region.tables, strict=True)
    n = len(rows)
    place = np.full(len(region.numbers), n)
    place[region.explored] = np.arange(n)
    owners = np.repeat(np.arange(n), [p.size for p in probs])
    to = np.concatenate(targets)
    tables = owners, np.concatenate(probs), np.concatenate(rewards), place[to]
    jm = with_outside(*tables, n, region.model.gamma)
    policy = np.array([*rows, np.eye(region.model.num_actions)[0]])
    system = CollapsedT2(jm, policy, region.coupling)
    return ExploredModel(system, AskedGaps.of(jm, region.asked), to, place.size)


class SingleBranches(NamedTuple):
    """Of a branch from each state, (n + 1,).

    value: m~. off: e / w. deviation: sigma-bar. variance: Var Z~, as solved. The bounds are
    larger by what the solver of m~ and Var Z~ left over.
    """

    value: Floats
    off: Floats
    deviation: Floats
    variance: Floats


def _single_branches(system: CollapsedT2, goal: float) -> SingleBranches:
    """Follow single branches until they leave the explored states."""
    gamma = system.jm.gamma
    rate = gamma**2
    explored = np.arange(system.jm.num_states) < system.jm.num_states - 1
    one = np.ones(system.jm.num_states)
    chains = solve_chains(system, 1e-3 * np.sqrt(goal))
    residual = chains.value_residual
    accuracy = 0.01 * np.sqrt(goal) * (1.0 - gamma)
    off = _leaving(system.kernel, explored, gamma, one, accuracy) + residual
    variance = chains.backup.value_variance
    deviation = np.sqrt(variance + (chains.variance_residual + 4.0 * residual) / (1.0 - rate))
    left = np.sqrt(_leaving(system.kernel, explored, rate, one, 0.01 * goal))
    deviation += (left + residual) / (1.0 - gamma)
    return SingleBranches(chains.backup.value, off, deviation, variance)


def _phi_of_later(model: ExploredModel, deviation: Floats, top: float) -> Floats:
    """(n + 1,) phi of D; top: the largest sigma-bar of the core."""
    square = deviation**2
    if model.system.coupling != "common":
        return square
    return square + np.maximum(square, 2.0 * deviation * top)


def _choose_core(
    model: ExploredModel, branch: SingleBranches, asked: Ints, visits: Floats, theta: float
) -> Any:
    """(n + 1,) the explored states without those that add least to D."""
    n = model.size
    top = branch.deviation[asked].max()  # a guess, as the core is not known yet
    weights = visits * _phi_of_later(model, branch.deviation, top)[:n]
    weights[asked] = np.inf
    least_first = np.argsort(weights)
    shares = model.asked.states.size or 1
    allowed = theta * shares * max(theta, np.sqrt(branch.variance[asked].max()))
    core = np.arange(n + 1) < n
    core[least_first[np.cumsum(weights[least_first]) <= allowed]] = False
    return core


def _losses_of_one_branch(
    model: ExploredModel, branch: SingleBranches, core: Any, accuracy: float
) -> Losses:
    """(n + 1,) of a branch that never merges, from each state."""
    top = branch.deviation[core].max()
    phi = Losses(
        value=branch.off**2,
        distance=branch.deviation**2,
        later=_phi_of_later(model, branch.deviation, top),
    )
    kernel = model.system.kernel
    return Losses(*(_leaving(kernel, core, model.rate, x, accuracy) for x in phi))


def _losses_of_two_at_one_state(system: CollapsedT2, core: Any, alone: Losses) -> Losses:
    """(n + 1,) what each of two branches at one state adds, in place of `alone`.

    They merge if they draw the same action, and those that play rarely chosen actions stay apart
    most often: what a branch adds is averaged with the weights pi(a) (1 - pi(a)). Outside of the
    core E[(Z_A - Z_B)^2] <= 2 v whatever the policy does, and it is zero if there is one action to
    draw. There `value` is zero, since values are off by the same for both. Of the last state, which
    stands for all that were not explored, nothing is known.
    """
    jm = system.jm
    policy = system.policy

    def apart(loss: Floats) -> Floats:
        after = jm.gamma**2 * (jm.averaging @ loss[jm.next_states])
        inside = (policy * (1.0 - policy) * after).sum(1)
        found = np.where(core, inside, loss * (policy.max(1) < 1.0))
        found[-1] = loss[-1]
        return found

    met = Losses(*map(apart, alone))
    met.value[:-1] *= core[:-1]
    return met


class Followed(NamedTuple):
    """Pairs of branches of the gaps, followed until they left the core or became too many.

    bounds: (Q,). visits: (n + 1, A) in the core, of branches while they were followed in pairs.
    pending: (n + 1,) where branches are followed no further as pairs, discounted.
    """

    bounds: Losses
    visits: Floats
    pending: Floats


def _follow_pairs(model: ExploredModel, core: Any, alone: Losses, goal: float) -> Followed:
    """Follow both branches of every gap, with those that merge dropped."""
    system = model.system
    asked = model.asked
    policy = system.policy
    n = model.size
    met = _losses_of_two_at_one_state(system, core, alone)
    unlike = np.append(1.0 - (policy[:n] ** 2).sum(1), 1.0)  # two branches at a state do not merge
    both = Losses(*np.zeros((3, asked.states.size)))
    pending = np.zeros(n + 1)
    visits = np.zeros(policy.shape)
    for action in (asked.first, asked.second):
        np.add.at(visits, (asked.states, action), 1.0)
    step = system.step(asked)
    pairs = np.array([step.row, step.first, step.second])
    mass = model.rate * step.weights
    room = _PAIRS * (n + 100)
    while mass.size:
        room -= mass.size
        ended = ~core[pairs[1:]].all(0) | (room < 0) | (4.0 * mass.sum() <= 0.01 * goal)
        gap, *branches = pairs[:, ended]
        same = branches[0] == branches[1]
        left = mass[ended] * np.where(same, unlike[branches[0]], 1.0)
        for branch in branches:
            for bound, together, apart in zip(both, met, alone, strict=True):
                loss = np.where(same, together[branch], apart[branch])
                bound += np.bincount(gap, mass[ended] * loss, bound.size)
            pending += np.bincount(branch, left, n + 1)
        pairs = pairs[:, ~ended]
        mass = mass[~ended]
        _add_visits(visits, pairs, mass, policy)
        pairs, mass = _step_pairs(system, pairs, mass)
        pairs[1:].sort(0)  # both branches count alike
        mass *= model.rate
    # A squared difference is at most twice the squares; D is none, and counts once.
    bounds = Losses(2.0 * both.value, 2.0 * both.distance, both.later)
    return Followed(bounds, visits, pending)


def _step_pairs(system: CollapsedT2, pairs: Ints, mass: Floats) -> tuple[Ints, Floats]:
    """P_2: pairs of branches one step later, (3, N), and their masses (N,).

    pairs: (3, N), rows of gaps, first and second states. Pairs of one gap add up where they meet;
    two branches that merge are dropped. Of two that were at one state either may come first.
    """
    gap, first, second = pairs
    size = system.jm.num_states
    shape = (int(gap.max(initial=0) + 1) * size, size)

    def matrix(mass: Floats, gap: Ints, first: Ints, second: Ints) -> sparse.csr_array:
        return sparse.coo_array((mass, (gap * size + first, second)), shape).tocsr()

    met = system.diagonal
    _, pair, within = ragged(np.diff(met.indptr)[first] * (first == second))
    entry = met.indptr[first][pair] + within
    ends = np.divmod(met.indices[entry], size)
    total = matrix(mass[pair] * met.data[entry], gap[pair], *ends)
    start = matrix(mass * (first != second), gap, first, second)
    for kernel in system.kernels:
        half = (start @ kernel).tocoo()  # one branch has moved; now the other
        total += matrix(half.data, half.row // size, half.col, half.row % size) @ kernel
    found = total.tocoo()
    return np.array([found.row // size, found.col, found.row % size], np.int64), found.data


def _add_visits(visits: Floats, pairs: Ints, mass: Floats, policy: Floats) -> None:
    """Add what both branches play, (n + 1, A); at one state, those that draw the same merge."""
    size = len(policy)
    for branch in pairs[1:]:
        together = np.bincount(branch, mass * (pairs[1] == pairs[2]), size)
        visits += np.bincount(branch, mass, size)[:, None] * policy
        visits -= together[:, None] * policy**2


def _scores(
    model: ExploredModel, branch: SingleBranches, core: Any, followed: Followed, accuracy: float
) -> tuple[Floats, Floats]:
    """(n,) visits of the explored states, and what each state of the region outside them adds.

    From the visits in the core follow those of the explored states around it, and from both which
    states outside branches enter, discounted by gamma^2 in the core and by gamma around it.
    """
    jm = model.system.jm
    policy = model.system.policy
    n = model.size
    within = _restricted(model.system.kernel, core).T.tocsr()
    alone = Chain(within, model.rate, followed.pending * core).solution(accuracy)
    visits = followed.visits + alone[:, None] * policy
    flows = model.rate * jm.probs[:, None] * visits[jm.table_states]  # of branches in the core
    exits = np.bincount(jm.next_states.ravel(), flows.ravel(), n + 1)[:n] * ~core[:n]
    further = Chain(model.inside, jm.gamma, exits * branch.off[:n]).solution(accuracy)
    around = np.append(further, 0.0)[:, None] * policy
    flows += jm.gamma * jm.probs[:, None] * around[jm.table_states]
    leaving = np.where(jm.next_states == n, flows, 0.0)[: len(model.targets)]
    scores = np.bincount(model.targets.ravel(), leaving.ravel(), model.num_met).astype(float)
    onwards = Chain(model.inside, model.rate, followed.pending[:n]).solution(accuracy)
    return np.where(core[:n], visits[:n].sum(1), onwards), scores


def _restricted(kernel: sparse.csr_array, core: Any) -> sparse.csr_array:
    """(S, S) the moves from a state of the core to another."""
    keep = sparse.diags_array(core.astype(float))
    return (keep @ kernel @ keep).tocsr()


def _leaving(
    kernel: sparse.csr_array, core: Any, rate: float, phi: Floats, accuracy: float
) -> Floats:
    """(S,) no less than E[rate^tau phi(x)]: a branch leaves `core` at time tau, and enters x.

    From a state that is not in it tau is zero.
    """
    within = _restricted(kernel, core)
    source = np.where(core, rate * (kernel @ (phi * ~core)), phi)
    chain = Chain(within, rate, source)
    found = chain.solution(accuracy)
    return np.asarray(np.minimum(found + chain.residual(found) / (1.0 - rate), phi.max()))
