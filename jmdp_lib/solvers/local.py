"""Gaps at a few states of a model that nobody enumerates, with a certificate.

Two nested sets of states grow from the queries outwards. In the *explored* ones single branches are
followed, by sparse systems of that size. What leaves them, at time tau, earns the middle of all
possible returns from there on. With h half the width of the range of returns, for every state

    |m - m~| <= h f,    sd Z <= d := sd Z~ + h u^(1/2),    f = E gamma^tau,  u = E gamma^(2 tau),

where m and Z are the true value and return, m~ and Z~ those of the explored model. In a *core* of
these states `jipe2` solves for pairs: there a branch that leaves, at time sigma, gets m~ at once.
If delta are the temporal-difference errors of a branch, then until the branches merge

    Var G = E sum_t gamma^(2t) (delta_a - delta_b)^2.

The core's answer G~ has its own errors delta~ in place of delta, and none after a branch has left.
By Minkowski's inequality the former costs E_1 = h (2 E[gamma^(2 sigma) f^2])^(1/2). The latter
costs D = 3 E[gamma^(2 sigma) d^2]: once for the squares, and twice for the products, since states
that draw independently are correlated only by meeting later, so that their covariance is at most
the variance of any of the two. (With common noise it is at most d(x) d(y).) All of these sum over
both branches, which leave to states with these f and d, and have not merged before. So

    |E G - E G~| <= E_1,    |sd G - sd G~| <= E_1 + D / (sd G~ - E_1).

Both are also at most (2 E[gamma^(2 sigma) (h^2 f^2 + d^2)])^(1/2), the L_2 distance of G and G~; at
a state that was not explored, (m - m~)^2 and the variance add up to h^2 at most.

Pairs of branches are followed step by step, with those that merge dropped, as long as they are few;
after that each branch is followed on its own, as if it never merged. The same numbers say which
state contributes how much: the largest are explored next, and the least are left out of the core.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.implicit import ImplicitJMDP, Policy, policy_row
from jmdp_lib.laws import GapLaw
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held, Moments, ReadOnly, norm_weight
from jmdp_lib.operators.collapsed import CollapsedT2, Queries, ragged
from jmdp_lib.operators.literal import COUPLINGS
from jmdp_lib.solvers.affine import Chain
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution
from jmdp_lib.solvers.gap_law import laws_of
from jmdp_lib.solvers.order2 import jipe2, solve_chains

_PAIRS = 30  # pairs of branches, for each explored state, that are followed for one step
_TRIALS = 10  # cores and explored sets that are solved, at most
_BYTES = 2000  # of free memory for each next state of an explored one


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
    region, asked = _Region.of(model, policy, coupling, states)
    limit = checks.at_least("max_states", max_states, len(region.tables))
    goal = (0.5 * checks.positive("tol", tol) / region.half_width) ** 2  # of (E_1 / h)^2
    best, tried, theta = None, 0, tol / region.unit
    view = _look(region, limit, asked, goal)
    for _ in range(_TRIALS):
        view, grown = _grown(region, view, goal, limit, asked, theta)
        try:
            found, rest = _solved(region, view, asked, tol)
        except MemoryError:
            if best is not None or view.core.sum() == asked.max() + 1:
                break
            theta *= 1e3
        else:
            best = found if best is None or found.error_bound < best.error_bound else best
            enough = view.core.sum() == tried or rest < 0.3 * found.error_bound
            tried = view.core.sum()
            if best.converged or (enough and not grown):
                break
            closer = min(0.1, max(1e-4, (0.5 * tol / found.error_bound) ** 2))
            goal, theta = (0.1 * goal, theta) if enough else (goal, closer * theta)
        view = _look(region, limit, asked, goal, view, theta)
    if best is None:
        raise MemoryError(f"local_jipe2 cannot solve for the pairs of {asked.max() + 1} states")
    if not best.converged:
        warnings.warn(
            f"local_jipe2 stopped after {best.num_explored:,} states with error bound "
            f"{best.error_bound:.3g} > tol = {tol:.3g}: out of states or memory",
            ConvergenceWarning,
            stacklevel=2,
        )
    return best


def local_gap_law(
    model: ImplicitJMDP | JMDP,
    policy: Policy,
    queries: Sequence[tuple[Hashable, int, int]],
    width: float = 1e-2,
    coupling: str = "joint",
    max_states: int = 1000,
) -> list[GapLaw]:
    """Brackets of the law of gaps, as `gap_law`, exploring only what matters to them.

    queries: rows (state, a, b), a law for each.
    width: of the brackets of P(G < 0) and P(G <= 0), at most. Away from zero the grid is coarse.
    policy, coupling, max_states: as in `local_jipe2`.

    What leaves the explored states may earn any rewards in the model's range from then on, and
    every bracket holds for all of these.
    """
    region, asked = _Region.of(model, policy, coupling, [state for state, _, _ in queries])
    limit = checks.at_least("max_states", max_states, len(region.tables))
    width, goal, known, laws = checks.positive("width", width), 0.01, 0, list[GapLaw]()
    view, (low, high) = _look(region, limit, asked, goal), region.model.reward_range
    for _ in range(_TRIALS):
        view, grown = _grown(region, view, goal, limit, asked, 0.0)
        if view.system.jm.num_states == known:
            break
        jm, goal, known = view.system.jm, 0.1 * goal, view.system.jm.num_states
        rewards = region.unit * jm.rewards + 0.5 * (low + high)
        parts = jm.table_states, jm.probs, rewards, jm.next_states, jm.num_states, jm.gamma
        system = CollapsedT2(JMDP.from_tables(*parts), view.system.policy, coupling)
        rows = np.array([(s, a, b) for s, (_, a, b) in zip(asked, queries, strict=True)])
        try:
            laws = laws_of(system, Queries.of(jm, rows), rows, width, 64, 4096, high - low)
        except MemoryError:
            if not laws:
                raise
            break
        if not grown or max(law.width for law in laws) <= width:
            break
    if (worst := max(law.width for law in laws)) > width:
        warnings.warn(
            f"local_gap_law: brackets at zero are up to {worst:.2g} wide, not {width:g}, with "
            f"{len(region.tables):,} states explored",
            ConvergenceWarning,
            stacklevel=2,
        )
    named: Any = zip(laws, queries, strict=True)
    return [replace(law, query=tuple(query)) for law, query in named]


def _grown(
    region: _Region, view: _View, goal: float, limit: int, asked: Ints, theta: float
) -> tuple[_View, bool]:
    """Explore until (E_1 / h)^2 <= goal; False if states or memory end before."""
    with machine.progress(None, "exploring", "state") as bar:
        while view.bounds[0].max(initial=0.0) > goal:
            if not region.grow(view, goal, limit):
                return view, False
            bar.update(len(region.explored) - bar.n)
            view = _look(region, limit, asked, goal, view, theta)
    return view, True


@dataclass(frozen=True)
class _View:
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
class _Region:
    """The states met so far, numbered as they were met, and the tables of those explored."""

    model: ImplicitJMDP
    policy: Policy
    coupling: str
    numbers: dict[Hashable, int]
    explored: list[int] = field(default_factory=list)  # numbers, the first explored first
    tables: list[tuple[Floats, Floats, Ints, Floats]] = field(default_factory=list)  # of these

    @classmethod
    def of(
        cls, model: ImplicitJMDP | JMDP, policy: Policy, coupling: str, states: Sequence[Hashable]
    ) -> tuple[_Region, Ints]:
        """The queried states, explored, and the number of each of them."""
        implicit = ImplicitJMDP.from_jmdp(model) if isinstance(model, JMDP) else model
        if not states:
            raise ValueError("states must hold at least one state")
        try:
            numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
            asked = np.array([numbers[state] for state in states])
        except TypeError:
            raise ValueError(f"states must be hashable, such as tuples, got {states!r}") from None
        for state in numbers:
            checks.pure(f"tables of state {state!r}", implicit.at, state)
        region = cls(implicit, policy, checks.one_of("coupling", coupling, COUPLINGS), numbers)
        region.explore(range(len(numbers)))
        return region, asked

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
        allowed = 0.5 * goal * view.bounds[0].sum() / view.bounds[0].max()
        least = ranked[min(np.searchsorted(np.cumsum(ranked), allowed), ranked.size - 1)]
        widest = max(targets.size for _, _, targets, _ in self.tables)
        limit = min(limit, 2 * before + 16, machine.available_bytes() // (_BYTES * widest))
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


def _look(
    region: _Region, limit: int, asked: Ints, goal: float, before: _View | None = None,
    theta: float = 0.0,
) -> _View:  # fmt: skip
    """Follow the pairs of branches that start at the queried states until they leave or merge.

    `limit` of the explored states are inside, at most. States stay out of the core as long as what
    they add to D, by the visits seen `before`, sums up to `theta` standard deviations.
    """
    probs, rewards, targets, rows = zip(*region.tables[:limit], strict=True)
    n, gamma, actions = len(rows), region.model.gamma, region.model.num_actions
    place, to, rate = np.full(len(region.numbers), n), np.concatenate(targets), gamma**2
    place[region.explored[:n]] = np.arange(n)
    owners, prob = np.repeat(np.arange(n), [p.size for p in probs]), np.concatenate(probs)
    jm = _with_outside(owners, prob, np.concatenate(rewards), place[to], n, gamma)
    policy = np.array([*rows, np.eye(actions)[0]])
    system, queries = CollapsedT2(jm, policy, region.coupling), Queries.of(jm, asked)

    accuracy, kernel = 0.01 * goal, system.kernel
    backup, moved, off, _ = solve_chains(system, 1e-3 * np.sqrt(goal))
    explored, one = np.arange(n + 1) < n, np.ones(n + 1)
    f = _leaving(kernel, explored, gamma, one, 0.01 * np.sqrt(goal) * (1.0 - gamma)) + moved
    deviation = np.sqrt(backup.single + (off + 4.0 * moved) / (1.0 - rate))
    deviation += np.sqrt(_leaving(kernel, explored, rate, one, accuracy)) / (1.0 - gamma)
    start = 2.0 * np.bincount(queries.states, minlength=n).astype(float)
    inside = kernel[:n, :n].T.tocsr()
    visited = Chain(inside, rate, start).solution(accuracy)
    if before is not None:
        visited[: before.visits.size] = before.visits[:n]
    square = deviation**2

    def later(top: float) -> Floats:
        """In D; top: the largest d of the core."""
        return 2.0 * (square + deviation * top) if region.coupling == "common" else 3.0 * square

    weights = visited * later(deviation[asked].max())[:n]
    weights[asked] = np.inf
    least, core = np.argsort(weights), explored.copy()
    shares = queries.states.size or 1
    allowed = theta * shares * max(theta, np.sqrt(backup.single[asked].max()))
    core[least[np.cumsum(weights[least]) <= allowed]] = False
    both = np.append((f[:n] / (1.0 - gamma)) ** 2 + square[:n], square[n])
    phis = f**2, both, later(deviation[core].max())
    alone = np.array([_leaving(kernel, core, rate, phi, accuracy) for phi in phis])

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
        left = mass[ended] * np.where(branches[0] == branches[1], unlike[branches[0]], 1.0)
        for branch in branches:
            for bound, phi in zip(bounds, alone, strict=True):
                bound += np.bincount(query, left * phi[branch], bound.size)
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
    return _View(system, queries, backup.value, core, alone, bounds, visited, scores)


def _with_outside(
    owners: Ints, probs: Floats, rewards: Floats, next_states: Ints, size: int, gamma: float
) -> JMDP:
    """Stacked tables of states 0 to size - 1, and an outside, state `size`, that pays nothing."""
    first = probs[owners == 0]  # with common noise, all states have one law of tables
    stay = np.full((first.size, rewards.shape[1]), size)
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
    found = Chain(within, rate, source).solution(accuracy)
    off = np.abs(source + rate * (within @ found) - found).max() / (1.0 - rate)
    return np.asarray(np.minimum(found + off, phi.max()))


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


def _solved(region: _Region, view: _View, asked: Ints, tol: float) -> tuple[LocalSolution, float]:
    """The core's answer with its error, and how much of that a larger core could mend.

    The rewards of the core's model are temporal-difference errors of m~: its returns are smaller by
    m~(s), and its gaps are the same.
    """
    whole, core, unit = view.system.jm, view.core, region.unit
    size, gamma, actions = int(core.sum()), whole.gamma, range(whole.num_actions)
    number, rows = np.where(core, np.cumsum(core) - 1, size), core[whole.table_states]
    owners, to = whole.table_states[rows], whole.next_states[rows]
    errors = whole.rewards[rows] + gamma * view.value[to] - view.value[owners, None]
    jm = _with_outside(number[owners], whole.probs[rows], errors, number[to], size, gamma)
    policy = np.append(view.system.policy[core], view.system.policy[-1:], 0)

    both = np.zeros((3, len(core), len(actions), len(actions)))
    s, a, b = view.queries.states, view.queries.first, view.queries.second
    both[:, s, a, b] = both[:, s, b, a] = view.bounds
    values, total, after = both[:, asked]
    values, total = np.sqrt(values) / (1.0 - gamma), np.sqrt(total)
    alone = np.sqrt(gamma**2 * (whole.averaging @ view.alone[1][whole.next_states])[asked])

    weight, found = norm_weight(2, gamma, jm.reward_bound), number[asked]
    rough = 0.005 * tol / (unit * weight * jm.reward_bound)
    for accuracy in (rough, 0.03 * rough, 1e-11):  # the last for very small variances
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what was reached is counted
            sol = jipe2(jm, policy, accuracy, region.coupling, queries=found)
        off = 8.0 * weight * sol.error_bound + 4.0 * sol.error_bound**2  # of a variance

        def solver(variance: Floats, off: float = off, sol: Solution = sol) -> Floats:
            deviation = off / np.sqrt(np.maximum(variance, off) + 1e-300)
            return np.maximum(deviation, 2.0 * sol.error_bound)

        variance = sol.moments.gap_variance[found]
        apart = np.maximum(np.sqrt(variance) - values, 1e-300)
        cut = np.minimum(total, values + after / apart)
        gap_error = unit * (cut + solver(variance))
        gap_error[:, actions, actions] = 0.0
        bound = float(gap_error.max())
        if bound <= tol or unit * float(cut.max()) > 0.95 * tol:
            break
    covariance = sol.moments.covariance[found]
    alone += solver(sol.moments.variance[found])
    middle = 0.5 * sum(region.model.reward_range) / (1.0 - gamma)
    mean = unit * (sol.moments.mean[found] + view.value[asked, None]) + middle
    worst = unit * float(alone.max())
    moments = Moments(2, mean, unit**2 * covariance, Held(None), worst, worst)
    names = tuple(np.fromiter(region.numbers, object)[region.explored[: len(core) - 1]])
    done = LocalSolution(moments, gap_error, unit * alone, bound, bound <= tol, names, view.visits)
    return done, unit * float((cut - values).max())
