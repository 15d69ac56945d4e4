"""Gaps at a few states of a model that nobody enumerates, with a certificate.

States are explored from the queries outwards. Whatever leaves the n explored states goes to one
absorbing "outside", whose return is the middle of all possible returns, and `jipe2` solves this
small model. Let tau be the time at which a branch leaves, and h half the width of the range of
returns: then |Z - Z~| <= gamma^tau h for the return Z~ of the small model, on every path. Two
branches that have merged before they leave are one, and their errors cancel in a gap. Hence

    |E G - E G~| and |sd G - sd G~|  <=  ||G - G~||_2  <=  h sqrt(u),

    u = E[(gamma^tau_a + gamma^tau_b)^2; not merged] <= 2 E[gamma^(2 tau_a) + gamma^(2 tau_b); ...].

Pairs of branches are followed step by step, with those that merge dropped, as long as they are few;
after that each branch is followed on its own, as if it never merged. The same numbers say which
unexplored state contributes how much to u: the largest are explored next.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.implicit import ImplicitJMDP, Policy, policy_row
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held, Moments, ReadOnly, norm_weight
from jmdp_lib.operators.collapsed import CollapsedT2, Queries, ragged
from jmdp_lib.operators.literal import COUPLINGS
from jmdp_lib.solvers.affine import Chain
from jmdp_lib.solvers.fixed_point import ConvergenceWarning
from jmdp_lib.solvers.order2 import jipe2

_PAIRS = 30  # pairs of branches, for each explored state, that are followed for one step
_BYTES = 2000  # of free memory that must be left for each next state of a batch


@dataclass(frozen=True, eq=False, repr=False)
class LocalSolution(ReadOnly):
    """Gaps at N queried states. Its arrays are read-only.

    Attributes:
        moments: of the N queried states, in their order, with A actions each.
        gap_error: (N, A, A), how far the mean and the standard deviation of each gap may be off.
        return_error: (N, A), the same of each return Z(s, a) itself. It may be much larger: the
            errors of two branches cancel once these have merged.
        error_bound: the largest gap_error.
        converged: whether error_bound <= tol.
        explored: the states whose tables were asked for, in this order.
        visits: (num_explored,) expected visits of branches that have not merged, all queries
            together, discounted by gamma^2 per step.
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
        return (
            f"LocalSolution({state}, {len(self.gap_error)} states queried, "
            f"{self.num_explored:,} explored, error_bound={self.error_bound:.3g})"
        )

    @property
    def num_explored(self) -> int:
        """How many states were explored."""
        return len(self.explored)

    @property
    def gap_mean(self) -> Floats:
        """(N, A, A), E[Z(s, a) - Z(s, b)] at [n, a, b], s the n-th queried state."""
        return self.moments.gap_mean

    @property
    def gap_variance(self) -> Floats:
        """(N, A, A), Var[Z(s, a) - Z(s, b)]."""
        return self.moments.gap_variance


def local_jipe2(
    model: ImplicitJMDP | JMDP,
    policy: Policy,
    states: Sequence[Hashable],
    tol: float = 1e-3,
    coupling: str = "joint",
    max_states: int = 50_000,
) -> LocalSolution:
    """Gap means and variances at a few states, exploring only what matters to them.

    policy: a function of a state that returns probabilities (A,) or an action, or an array with
        such a row for every state (see `jmdp_lib.implicit.policy_row`).
    states: those whose gaps are wanted.
    tol: the certified error, in units of the reward, of the mean and the standard deviation of
        every gap. Exploration goes on until it is met.
    coupling: "joint", "independent" or "common", as in `jipe2`.
    max_states: how many states are explored at most. If that, or the memory, does not suffice, a
        ConvergenceWarning says what was reached.

        local_jipe2(model, policy, states=[s]).gap_variance[0]    # (A, A)
    """
    if isinstance(model, JMDP):
        model = ImplicitJMDP.from_jmdp(model)
    if not states:
        raise ValueError("states must hold at least one state")
    try:
        numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
        asked = np.array([numbers[state] for state in states])
    except TypeError:
        raise ValueError(f"states must be hashable, such as tuples, got {states!r}") from None
    limit = checks.at_least("max_states", max_states, len(numbers))
    for state in numbers:
        checks.pure(f"tables of state {state!r}", model.at, state)
    region = _Region(model, policy, checks.one_of("coupling", coupling, COUPLINGS), numbers)
    region.explore(range(len(numbers)))
    goal = (0.9 * checks.positive("tol", tol) / region.half_width) ** 2  # the solver has the rest
    with machine.progress(None, "local_jipe2, exploring", "state") as bar:
        while True:
            view = _look(region, limit, asked, goal)
            bar.update(len(region.explored) - bar.n)
            if view.bounds.max(initial=0.0) <= goal or not region.grow(view, goal, limit):
                break
    while True:
        try:
            return _solved(region, view, asked, tol)
        except MemoryError:
            limit = len(view.visits) // 2
            if limit <= asked.max():
                raise
            view = _look(region, limit, asked, goal)


@dataclass(frozen=True)
class _View:
    """A model of n explored states and of the outside, state n, and what could change its answer.

    system: rewards are in [-1, 1]. queries: Q pairs of actions. bounds: (Q,) of u. alone: (n + 1,)
    E gamma^(2 tau) of one branch. visits: (n, A) discounted visits of branches that have not
    merged, all queries together. scores: what each state outside adds to the sum of all bounds.
    """

    system: CollapsedT2
    queries: Queries
    bounds: Floats
    alone: Floats
    visits: Floats
    scores: Floats


@dataclass(frozen=True)
class _Region:
    """The states met so far, numbered as they were met, and the tables of those explored."""

    model: ImplicitJMDP
    policy: Policy
    coupling: str
    numbers: dict[Hashable, int]
    explored: list[int] = field(default_factory=list)  # numbers, the first explored first
    tables: list[tuple[Floats, Floats, Ints, Floats]] = field(default_factory=list)  # of these

    @property
    def unit(self) -> float:
        """Half the width of the range of rewards."""
        low, high = self.model.reward_range
        return 0.5 * (high - low) or 1.0

    @property
    def half_width(self) -> float:
        """h."""
        return self.unit / (1.0 - self.model.gamma)

    def explore(self, batch: Iterable[int]) -> None:
        """Ask for the tables of states: probs (K,), rewards, targets (K, A), policy (A,)."""
        met, middle = list(self.numbers), 0.5 * sum(self.model.reward_range)
        for number in batch:
            probs, rewards, successors = self.model.at(met[number])
            row = policy_row(self.policy, met[number], self.model.num_actions)
            targets = [self.numbers.setdefault(x, len(self.numbers)) for x in successors]
            to = np.reshape(targets, rewards.shape)
            self.tables.append((probs, (rewards - middle) / self.unit, to, row))
            self.explored.append(number)

    def grow(self, view: _View, goal: float, limit: int) -> bool:
        """Explore the states that matter most, up to twice as many in all; False if there are none.

        States with the least scores stay outside, as long as these add up to half of what is
        allowed. Scores of the states behind those explored follow from these, one ring at a time.
        """
        before, scores = len(self.explored), view.scores
        ranked = np.sort(scores)
        allowed = 0.5 * goal * view.bounds.sum() / view.bounds.max()
        least = ranked[min(np.searchsorted(np.cumsum(ranked), allowed), ranked.size - 1)]
        widest = max(targets.size for _, _, targets, _ in self.tables)
        limit = min(limit, 2 * before + 16)
        while True:
            new, room = len(self.explored) - before, machine.available_bytes() / _BYTES / widest
            wanted = max(int(np.sum(scores >= least)), before // 32 - new)
            wanted = max(min(wanted, limit - new - before, int(room)), 0)
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
            scores += self.model.gamma**2 * pushed
            scores[self.explored] = 0.0


def _look(region: _Region, limit: int, asked: Ints, goal: float) -> _View:
    """Follow the pairs of branches that start at the queried states until they leave or merge.

    `limit` of the explored states are inside, at most.
    """
    probs, rewards, targets, rows = zip(*region.tables[:limit], strict=True)
    n, gamma, actions = len(rows), region.model.gamma, region.model.num_actions
    place, to = np.full(len(region.numbers), n), np.concatenate(targets)
    place[region.explored[:n]] = np.arange(n)
    owners = np.repeat(np.arange(n), [p.size for p in probs])
    stay = np.full((probs[0].size, actions), n)  # the outside has tables like other states
    jm = JMDP.from_tables(
        np.append(owners, stay[:, 0]), np.concatenate([*probs, probs[0]]),
        np.concatenate([*rewards, 0.0 * stay]), np.append(place[to], stay, 0), n + 1, gamma,
    )  # fmt: skip
    policy, rate = np.array([*rows, np.eye(actions)[0]]), gamma**2
    system, queries = CollapsedT2(jm, policy, region.coupling), Queries.of(jm, asked)

    inside, leaves = system.kernel[:n, :n], system.kernel[:n, [n]].toarray().ravel()
    alone = Chain(inside, rate, rate * leaves).solution(1e-3 * goal * (1.0 - rate))
    off = np.abs(rate * (inside @ alone + leaves) - alone).max() / (1.0 - rate)
    alone = np.append(np.minimum(alone + off, 1.0), 1.0)

    law = system.law(queries.states, queries.first, queries.second)
    bounds, pending, visits = np.zeros(queries.states.size), np.zeros(n + 1), np.zeros(policy.shape)
    for first in (queries.first, queries.second):
        np.add.at(visits, (queries.states, first), 1.0)
    query = np.repeat(np.arange(bounds.size), np.diff(law.starts))
    pairs, room = np.array([query, law.first, law.second]), _PAIRS * (n + 100)
    mass = rate * law.weights
    while mass.size:
        room -= mass.size
        ended = (pairs[1:] == n).any(0) | (room < 0) | (4.0 * mass.sum() <= 0.01 * goal)
        for branch in pairs[1:, ended]:
            bounds += 2.0 * np.bincount(pairs[0, ended], mass[ended] * alone[branch], bounds.size)
            pending += np.bincount(branch, mass[ended], n + 1)
        pairs, mass = pairs[:, ~ended], mass[~ended]
        for branch in pairs[1:]:  # at one state, branches that draw the same action merge
            together = np.bincount(branch, mass * (pairs[1] == pairs[2]), n + 1)
            visits += np.bincount(branch, mass, n + 1)[:, None] * policy
            visits -= together[:, None] * policy**2
        pairs, mass = _step(system, pairs, mass)
    onwards = Chain(inside.T.tocsr(), rate, pending[:n]).solution(1e-6 * goal)
    visits = visits[:n] + onwards[:, None] * policy[:n]
    flows = 2.0 * rate * np.concatenate(probs)[:, None] * visits[owners] * (place[to] == n)
    scores = np.bincount(to.ravel(), flows.ravel(), place.size).astype(float)
    return _View(system, queries, bounds, alone, visits, scores)


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


def _solved(region: _Region, view: _View, asked: Ints, tol: float) -> LocalSolution:
    """The small model's answer and how far it may be off."""
    jm, unit, half = view.system.jm, region.unit, region.half_width
    n, actions, weight = jm.num_states - 1, range(jm.num_actions), norm_weight(2, jm.gamma)
    leaving = np.zeros((n, len(actions), len(actions)))  # u
    s, a, b = view.queries.states, view.queries.first, view.queries.second
    leaving[s, a, b] = leaving[s, b, a] = view.bounds
    cut = half * float(np.sqrt(leaving.max()))

    def error(u: Floats, variance: Floats) -> Floats:
        """Of the cut, and of the solver: its second moments are within weight * error_bound."""
        off = 8.0 * weight * sol.error_bound + 4.0 * sol.error_bound**2  # of a variance
        deviation = off / np.sqrt(np.maximum(variance, off) + 1e-300)
        return half * np.sqrt(u) + unit * np.maximum(deviation, 2.0 * sol.error_bound)

    rough = 0.03 * tol / (unit * weight)
    for accuracy in (rough, 0.03 * rough, 1e-11):  # the last for very small variances
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what was reached is counted
            sol = jipe2(jm, view.system.policy, accuracy, region.coupling, queries=asked)
        gap_error = error(leaving[asked], sol.moments.gap_variance[asked])
        gap_error[:, actions, actions] = 0.0
        bound, found = float(gap_error.max()), sol.moments
        if bound <= tol or cut > 0.95 * tol:
            break
    alone = jm.gamma**2 * (jm.averaging @ view.alone[jm.next_states])
    return_error = error(alone[asked], found.variance[asked])
    mean = unit * found.mean[asked] + 0.5 * sum(region.model.reward_range) / (1.0 - jm.gamma)
    worst = float(return_error.max())
    moments = Moments(2, mean, unit**2 * found.covariance[asked], Held(None), worst, worst)
    if bound > tol:
        reason = "out of states or memory" if cut > 0.95 * tol else "tol is too fine for jipe2"
        said = (
            f"stopped after {n:,} states with error bound {bound:.3g} > tol = {tol:.3g}: {reason}"
        )
        warnings.warn(f"local_jipe2 {said}", ConvergenceWarning, stacklevel=3)
    explored = tuple(np.fromiter(region.numbers, object)[region.explored[:n]])
    visits = view.visits.sum(1)
    return LocalSolution(moments, gap_error, return_error, bound, bound <= tol, explored, visits)
