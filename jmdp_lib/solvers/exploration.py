"""Which states matter to a few queries: a region that grows, and what is known at every stage.

Two nested sets of states grow from the queries outwards. In the *explored* ones single branches are
followed, by sparse systems of that size. What leaves them, at time tau, earns the middle of all
possible returns from there on. With h half the width of the range of returns, for every state

    |m - m~| <= h f,    sd Z <= d := sd Z~ + h u^(1/2),    f = E gamma^tau,  u = E gamma^(2 tau),

where m and Z are the true value and return, m~ and Z~ those of the explored model. In a *core* of
these states `jipe2` solves for pairs: there a branch that leaves, at time sigma, gets m~ at once.
If delta are the temporal-difference errors of a branch, then until the branches merge

    Var G = E sum_t gamma^(2t) (delta_a - delta_b)^2.

The core's answer G~ has its own errors delta~ in place of delta, and none after a branch has left.
By Minkowski's inequality the former costs E_1 = h (2 E[gamma^(2 sigma) f^2])^(1/2), since a squared
difference is at most twice the squares. The latter changes the variance by D at most: v(x) of each
branch, where it leaves to x, and -2 c(x, y) once, where y is the other branch when the first one
leaves. States that draw independently are correlated only by meeting later. When both are at z,
c(z, z) is the variance of sum_a pi(a) Z(z, a), which is not negative and at most v(z). So c(x, y)
is between 0 and v(x), and D = E[gamma^(2 sigma) d^2]. With common noise |c(x, y)| is at most
d(x) d(y), and D = E[gamma^(2 sigma) (d^2 + max(d^2, 2 d t))], where t is the largest d of the core:
the other branch is still there, or leaves at the same time. All of these sum over both branches,
which leave to states with these f and d, and have not merged before. So, with s = sd G~ - E_1,

    |E G - E G~| <= E_1,    |sd G - sd G~| <= E_1 + D / (s + (s^2 - D)^(1/2)),

where the root is zero if D > s^2. Both are also at most (2 E[gamma^(2 sigma) d^2])^(1/2), the L_2
distance of G and G~: that of Z and m~ is at most d as well. (Chapter 7 writes w for h, e for h f,
sigma with a bar for d, tau_core for sigma, and E for E_1.)

Pairs of branches are followed step by step, with those that merge dropped, as long as they are few;
after that each branch is followed on its own, as if it never merged. Two branches at one state stay
apart with probability sum_a pi(a) (1 - pi(a)), and those that play rarely chosen actions do so most
often: what a branch adds is averaged with these weights. The same numbers say which state
contributes how much: the largest are explored next, and the least are left out of the core.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Ints, Policy
from jmdp_lib.model import COUPLINGS, JMDP
from jmdp_lib.model.implicit import ImplicitJMDP
from jmdp_lib.operators.collapsed import CollapsedT2, Queries, ragged
from jmdp_lib.solvers.affine import Chain
from jmdp_lib.solvers.pair_systems import solve_chains

_PAIRS = 30  # pairs of branches, for each explored state, that are followed for one step
_BYTES = 2000  # of free memory for each next state of an explored one


@dataclass(frozen=True)
class View:
    """A model of n explored states and of the outside, state n, and what could change its answer.

    system: rewards are in [-1, 1]. queries: Q pairs of actions. value: (n + 1,) m~. core: (n + 1,)
    whether a state is in the core. alone: (3, n + 1) of one branch, the expectations in E_1^2, in
    the L_2 distance, and D. bounds: (3, Q) the same of both branches. visits: (n,) discounted
    visits of branches that have not merged, all queries together. scores: what each state outside
    adds to bounds[0].sum().
    """

    system: CollapsedT2
    queries: Queries
    value: Floats
    core: Any
    alone: Floats
    bounds: Floats
    visits: Floats
    scores: Floats


@dataclass(frozen=True)
class Region:
    """The states met so far, numbered as they were met, and the tables of those explored.

    asked: (N,) the numbers of the queried states. limit: how many may be explored.
    """

    model: ImplicitJMDP
    policy: Policy
    coupling: str
    numbers: dict[Hashable, int]
    asked: Ints
    limit: int
    explored: list[int] = field(default_factory=list)  # numbers, the first explored first
    tables: list[tuple[Floats, Floats, Ints, Floats]] = field(default_factory=list)  # of these

    @classmethod
    def of(
        cls, model: ImplicitJMDP | JMDP, policy: Policy, coupling: str, states: Sequence[Hashable],
        max_states: int,
    ) -> Region:  # fmt: skip
        """The queried states, explored."""
        implicit = ImplicitJMDP.from_jmdp(model) if isinstance(model, JMDP) else model
        if isinstance(states, str) or not hasattr(states, "__len__"):
            raise ValueError(f"states must be a list of states: did you mean [{states!r}]?")
        if not len(states):
            raise ValueError("states must hold at least one state")
        try:
            numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
            asked = np.array([numbers[state] for state in states])
        except TypeError:
            raise ValueError(f"states must be hashable, such as tuples, got {states!r}") from None
        for state in numbers:
            checks.pure(f"tables of state {state!r}", implicit.at, state)
        checks.one_of("coupling", coupling, COUPLINGS)
        if coupling == "common" and implicit.unknown_noise is not None:
            raise ValueError(f'coupling="common" needs a known noise: {implicit.unknown_noise}')
        limit = checks.at_least("max_states", max_states, len(numbers))
        region = cls(implicit, policy, coupling, numbers, asked, limit)
        region.explore(range(len(numbers)))
        return region

    @property
    def unit(self) -> float:
        """Half the width of the range of rewards."""
        low, high = self.model.reward_range
        return 0.5 * (high - low) or 1.0

    def explore(self, batch: Iterable[int]) -> None:
        """Ask for the tables of states: probs (K,), rewards, targets (K, A), policy (A,)."""
        met, middle = list(self.numbers), 0.5 * sum(self.model.reward_range)
        for number in batch:
            probs, rewards, successors = self.model.at(met[number])
            row = checks.policy_row(self.policy, met[number], self.model.num_actions)
            targets = [self.numbers.setdefault(x, len(self.numbers)) for x in successors]
            to = np.reshape(targets, rewards.shape)
            self.tables.append((probs, (rewards - middle) / self.unit, to, row))
            self.explored.append(number)

    def grow(self, view: View, goal: float) -> bool:
        """Explore the states that matter most, up to twice as many in all; False if there are none.

        States with the least scores stay outside, as long as these add up to half of what is
        allowed. Scores of the states behind those explored follow from these, one ring at a time.
        """
        before, scores = len(self.explored), view.scores
        ranked = np.sort(scores)
        allowed = 0.5 * goal * view.bounds[0].sum() / view.bounds[0].max()
        least = ranked[min(np.searchsorted(np.cumsum(ranked), allowed), ranked.size - 1)]
        widest = max(targets.size for _, _, targets, _ in self.tables)
        limit = min(self.limit, 2 * before + 16, machine.available_bytes() // (_BYTES * widest))
        while True:
            new = len(self.explored) - before
            wanted = max(int(np.sum(scores >= least)), before // 32 - new)
            wanted = max(min(wanted, limit - new - before), 0)
            batch = np.argsort(-scores)[:wanted]
            batch = batch[scores[batch] > 0.0]
            if not batch.size:
                return new > 0
            self.explore(batch.tolist())
            latest = zip(scores[batch], self.tables[-batch.size :], strict=True)
            flows = [np.outer(score * probs, row).ravel() for score, (probs, _, _, row) in latest]
            targets = np.concatenate([to.ravel() for _, _, to, _ in self.tables[-batch.size :]])
            scores = np.append(scores, np.zeros(len(self.numbers) - scores.size))
            pushed = np.bincount(targets, np.concatenate(flows), scores.size)
            scores += 2.0 * pushed  # a half steps back inside, and comes out again
            scores[self.explored] = 0.0


def look(region: Region, goal: float, before: View | None = None, theta: float = 0.0) -> View:
    """Follow the pairs of branches that start at the queried states until they leave or merge.

    States stay out of the core as long as what they add to D, by the visits seen `before`, sums up
    to `theta` standard deviations.
    """
    probs, rewards, targets, rows = zip(*region.tables, strict=True)
    asked, n, gamma, actions = region.asked, len(rows), region.model.gamma, region.model.num_actions
    place, to, rate = np.full(len(region.numbers), n), np.concatenate(targets), gamma**2
    place[region.explored] = np.arange(n)
    owners, prob = np.repeat(np.arange(n), [p.size for p in probs]), np.concatenate(probs)
    jm = with_outside(owners, prob, np.concatenate(rewards), place[to], n, gamma)
    policy = np.array([*rows, np.eye(actions)[0]])
    system, queries = CollapsedT2(jm, policy, region.coupling), Queries.of(jm, asked)

    accuracy, kernel = 0.01 * goal, system.kernel
    backup, moved, off, _ = solve_chains(system, 1e-3 * np.sqrt(goal))
    explored, one = np.arange(n + 1) < n, np.ones(n + 1)
    f = _leaving(kernel, explored, gamma, one, 0.01 * np.sqrt(goal) * (1.0 - gamma)) + moved
    deviation = np.sqrt(backup.single + (off + 4.0 * moved) / (1.0 - rate))
    left = np.sqrt(_leaving(kernel, explored, rate, one, accuracy))
    deviation += (left + moved) / (1.0 - gamma)
    start = 2.0 * np.bincount(queries.states, minlength=n).astype(float)
    inside = kernel[:n, :n].T.tocsr()
    visited = Chain(inside, rate, start).solution(accuracy)
    if before is not None:
        visited[: before.visits.size] = before.visits[:n]
    square = deviation**2

    def later(top: float) -> Floats:
        """In D; top: the largest d of the core."""
        if region.coupling != "common":
            return square
        return square + np.maximum(square, 2.0 * deviation * top)

    weights = visited * later(deviation[asked].max())[:n]
    weights[asked] = np.inf
    least, core = np.argsort(weights), explored.copy()
    shares = queries.states.size or 1
    allowed = theta * shares * max(theta, np.sqrt(backup.single[asked].max()))
    core[least[np.cumsum(weights[least]) <= allowed]] = False
    phis = f**2, square, later(deviation[core].max())
    alone = np.array([_leaving(kernel, core, rate, phi, accuracy) for phi in phis])
    at_one = _at_one_state(system, core, alone)

    law = system.law(queries.states, queries.first, queries.second)
    pending, visits = np.zeros(n + 1), np.zeros(policy.shape)
    for first in (queries.first, queries.second):
        np.add.at(visits, (queries.states, first), 1.0)
    query = np.repeat(np.arange(queries.states.size), np.diff(law.starts))
    pairs, room = np.array([query, law.first, law.second]), _PAIRS * (n + 100)
    bounds, mass = np.zeros((3, queries.states.size)), rate * law.weights
    unlike = np.append(1.0 - (policy[:n] ** 2).sum(1), 1.0)  # two branches at a state do not merge
    while mass.size:
        room -= mass.size
        ended = ~core[pairs[1:]].all(0) | (room < 0) | (4.0 * mass.sum() <= 0.01 * goal)
        query, *branches = pairs[:, ended]
        same = branches[0] == branches[1]
        left = mass[ended] * np.where(same, unlike[branches[0]], 1.0)
        for branch in branches:
            for bound, phi, met in zip(bounds, alone, at_one, strict=True):
                added = mass[ended] * np.where(same, met[branch], phi[branch])
                bound += np.bincount(query, added, bound.size)
            pending += np.bincount(branch, left, n + 1)
        pairs, mass = pairs[:, ~ended], mass[~ended]
        for branch in pairs[1:]:  # at one state, branches that draw the same action merge
            together = np.bincount(branch, mass * (pairs[1] == pairs[2]), n + 1)
            visits += np.bincount(branch, mass, n + 1)[:, None] * policy
            visits -= together[:, None] * policy**2
        pairs, mass = _step(system, pairs, mass)
    bounds[:2] *= 2.0

    onwards = Chain(inside, rate, pending[:n]).solution(accuracy)
    within = _restricted(kernel, core).T.tocsr()
    visits += Chain(within, rate, pending * core).solution(accuracy)[:, None] * policy
    flows = rate * prob[:, None] * visits[owners]  # of branches in the core
    exits = np.bincount(place[to].ravel(), flows.ravel(), n + 1)[:n] * ~core[:n]
    further = Chain(inside, gamma, exits * f[:n]).solution(accuracy)
    flows += gamma * prob[:, None] * (further[:, None] * policy[:n])[owners]
    scores = np.bincount(to.ravel(), (flows * (place[to] == n)).ravel(), place.size).astype(float)
    visited = np.where(core[:n], visits[:n].sum(1), onwards)
    return View(system, queries, backup.value, core, alone, bounds, visited, scores)


def with_outside(
    owners: Ints, probs: Floats, rewards: Floats, next_states: Ints, size: int, gamma: float
) -> JMDP:
    """Stacked tables of states 0 to size - 1, and an outside, state `size`, that pays nothing."""
    first = probs[owners == 0]  # with common noise, all states have one law of tables
    stay = np.full((first.size, rewards.shape[1]), size)
    rewards = np.where(np.abs(rewards) < 1e-100, 0.0, rewards)  # of the unit 1: such a JMDP is none
    return JMDP.from_tables(
        np.append(owners, stay[:, 0]), np.append(probs, first), np.append(rewards, 0.0 * stay, 0),
        np.append(next_states, stay, 0), size + 1, gamma,
    )  # fmt: skip


def _restricted(kernel: sparse.csr_array, core: Any) -> sparse.csr_array:
    """(S, S) the moves from a state of the core to another."""
    keep = sparse.diags_array(core.astype(float))
    return (keep @ kernel @ keep).tocsr()


def _leaving(
    kernel: sparse.csr_array, core: Any, rate: float, phi: Floats, accuracy: float
) -> Floats:
    """(S,) no less than E[rate^sigma phi(x)], x the state to which a branch leaves the core."""
    within = _restricted(kernel, core)
    source = np.where(core, rate * (kernel @ (phi * ~core)), phi)
    chain = Chain(within, rate, source)
    found = chain.solution(accuracy)
    return np.asarray(np.minimum(found + chain.residual(found) / (1.0 - rate), phi.max()))


def _at_one_state(system: CollapsedT2, core: Any, alone: Floats) -> Floats:
    """(3, S) what each of two branches at one state adds, in place of `alone`, (3, S).

    They merge if they draw the same action. Outside of the core E[(Z_A - Z_B)^2] <= 2 v whatever
    the policy does, and it is zero if there is one action to draw. Values are off by the same for
    both. Of the last state, which stands for all that were not explored, nothing is known.
    """
    jm, policy = system.jm, system.policy
    later = jm.gamma**2 * np.array([jm.averaging @ phi[jm.next_states] for phi in alone])
    apart = (policy * (1.0 - policy) * later).sum(2)
    found = np.where(core, apart, alone * (policy.max(1) < 1.0))
    found[0] *= core
    found[:, -1] = alone[:, -1]
    return found


def _step(system: CollapsedT2, pairs: Ints, mass: Floats) -> tuple[Ints, Floats]:
    """Pairs (query, first, second) (3, N) and their masses one step later, without the merged."""
    query, first, second = pairs
    size, law, apart = system.jm.num_states, system.diagonal, first != second
    shape = (int(query.max(initial=0) + 1) * size, size)

    def matrix(mass: Floats, query: Ints, first: Ints, second: Ints) -> sparse.csr_array:
        return sparse.coo_array((mass, (query * size + first, second)), shape).tocsr()

    _, pair, within = ragged(np.diff(law.starts)[first] * ~apart)
    entry = law.starts[first][pair] + within
    weights = mass[pair] * law.weights[entry]
    total = matrix(weights, query[pair], law.first[entry], law.second[entry])
    start = matrix(mass * apart, query, first, second)
    for kernel in system.kernels:
        half = (start @ kernel).tocoo()  # one branch has moved; now the other
        total += matrix(half.data, half.row // size, half.col, half.row % size) @ kernel
    found = total.tocoo()
    both = np.sort([found.row % size, found.col], 0)
    return np.array([found.row // size, *both], np.int64), system.jm.gamma**2 * found.data


def grown(region: Region, view: View | None, goal: float, theta: float = 0.0) -> tuple[View, bool]:
    """Explore until (E_1 / h)^2 <= goal; False if states or memory end before."""
    view = view or look(region, goal)
    with machine.progress(None, "exploring", "state") as bar:
        while view.bounds[0].max(initial=0.0) > goal:
            if not region.grow(view, goal):
                return view, False
            bar.update(len(region.explored) - bar.n)
            view = look(region, goal, view, theta)
    return view, True
