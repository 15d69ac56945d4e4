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
from functools import cached_property
from typing import Any

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
    if not isinstance(model, ImplicitJMDP):
        raise ValueError(f"an ImplicitJMDP or a JMDP is needed, got {model!r}")
    if not states:
        raise ValueError("states must hold at least one state")
    region = _Region(model, policy, checks.one_of("coupling", coupling, COUPLINGS))
    try:
        asked = np.array([region.number(state) for state in states])
    except TypeError:
        raise ValueError(f"states must be hashable, such as tuples, got {states!r}") from None
    for state in region.states:
        checks.pure(f"tables of state {state!r}", model.at, state)
    region.explore(range(len(region.states)))
    limit = checks.at_least("max_states", max_states, len(region.explored))
    goal = (0.9 * checks.positive("tol", tol) / region.half_width) ** 2  # the solver has the rest
    with machine.progress(None, "local_jipe2, exploring", "state") as bar:
        while True:
            view = _look(region.small(limit), asked, goal, len(region.states))
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
            view = _look(region.small(limit), asked, goal, len(region.states))


@dataclass(frozen=True)
class _Small:
    """The model of n explored states and of the outside, state n, with rewards in [-1, 1].

    owners (T,), probs (T,), targets (T, A): the tables of the n states, their next states as
    numbers of the region. outside (T, A): which of these are not among the n states.
    """

    system: CollapsedT2
    owners: Ints
    probs: Floats
    targets: Ints
    outside: Any


@dataclass(frozen=True)
class _View:
    """What can still change the answer.

    queries: Q pairs of actions. bounds: (Q,) of u. alone: (n + 1,) E gamma^(2 tau) of one branch.
    visits: (n, A) discounted visits of branches that have not merged, all queries together.
    scores: what each state that was met adds to the sum of all bounds.
    """

    small: _Small
    queries: Queries
    bounds: Floats
    alone: Floats
    visits: Floats
    scores: Floats


@dataclass
class _Region:
    """The states met so far, numbered as they were met, and the tables of those explored."""

    model: ImplicitJMDP
    policy: Policy
    coupling: str
    numbers: dict[Hashable, int] = field(default_factory=dict)
    states: list[Hashable] = field(default_factory=list)
    explored: list[int] = field(default_factory=list)  # numbers, the first explored first
    tables: list[tuple[Floats, Floats, Ints, Floats]] = field(default_factory=list)  # of these

    @cached_property
    def unit(self) -> float:
        """Half the width of the range of rewards."""
        low, high = self.model.reward_range
        return 0.5 * (high - low) or 1.0

    @cached_property
    def middle(self) -> float:
        """The middle of the range of rewards."""
        return 0.5 * sum(self.model.reward_range)

    @property
    def half_width(self) -> float:
        """h."""
        return self.unit / (1.0 - self.model.gamma)

    def number(self, state: Hashable) -> int:
        """The number of a state, which is a new one if it is met for the first time."""
        number = self.numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    def explore(self, batch: Iterable[int]) -> None:
        """Ask for the tables of states."""
        for number in batch:
            state = self.states[number]
            probs, rewards, successors = self.model.at(state)
            if self.coupling == "common" and self.tables:
                first = self.tables[0][0]
                if not (probs.shape == first.shape and np.allclose(probs, first, 0.0, 1e-12)):
                    raise ValueError(
                        'coupling="common" needs one law of tables for all states: state '
                        f"{state!r} has {probs}, state {self.states[0]!r} has {first}"
                    )
            targets = np.array([self.number(x) for x in successors]).reshape(rewards.shape)
            row = policy_row(self.policy, state, self.model.num_actions)
            self.tables.append((probs, (rewards - self.middle) / self.unit, targets, row))
            self.explored.append(number)

    def small(self, limit: int) -> _Small:
        """The model of the first explored states, `limit` at most."""
        probs, rewards, targets, rows = zip(*self.tables[:limit], strict=True)
        n, outside = len(rows), probs[0].size  # the outside has tables like the others
        owners = np.repeat(np.arange(n), [p.size for p in probs])
        place = np.full(len(self.states), n)
        place[self.explored[:n]] = np.arange(n)
        stay, known = np.full((outside, self.model.num_actions), n), np.concatenate(targets)
        jm = JMDP.from_tables(
            np.append(owners, stay[:, 0]),
            np.concatenate([*probs, probs[0]]),
            np.concatenate([*rewards, 0.0 * stay]),
            np.concatenate([place[known], stay]),
            n + 1, self.model.gamma,
        )  # fmt: skip
        policy = np.array([*rows, np.eye(self.model.num_actions)[0]])
        system = CollapsedT2(jm, policy, self.coupling)
        return _Small(system, owners, np.concatenate(probs), known, place[known] == n)

    def grow(self, view: _View, goal: float, limit: int) -> bool:
        """Explore the states that matter most, up to twice as many in all; False if there are none.

        States with the least scores stay outside, as long as these add up to half of what is
        allowed. Scores of the states behind those explored follow from these, one ring at a time.
        """
        before, scores = len(self.explored), view.scores
        ranked = np.sort(scores[scores > 0.0])
        allowed = 0.5 * goal * view.bounds.sum() / view.bounds.max()
        rank = int(np.searchsorted(np.cumsum(ranked), allowed))
        least = ranked[min(rank, ranked.size - 1)] if ranked.size else 0.0
        widest = max(targets.size for _, _, targets, _ in self.tables)
        limit = min(limit, 2 * before + 16)
        while True:
            new, room = len(self.explored) - before, machine.available_bytes() / _BYTES / widest
            batch = np.argsort(-scores)
            wanted = max(int(np.sum(scores >= least)), before // 8 - new)
            batch = batch[: max(min(wanted, limit - new - before, int(room)), 0)]
            batch = batch[scores[batch] > 0.0]
            if not batch.size:
                return new > 0
            self.explore(batch.tolist())
            weights, targets = [], []
            for score, (probs, _, to, row) in zip(
                scores[batch], self.tables[-batch.size :], strict=True
            ):
                weights.append((score * probs[:, None] * row).ravel())
                targets.append(to.ravel())
            scores = np.append(scores, np.zeros(len(self.states) - scores.size))
            flows = np.bincount(np.concatenate(targets), np.concatenate(weights), scores.size)
            scores += self.model.gamma**2 * flows
            scores[self.explored] = 0.0


def _look(small: _Small, asked: Ints, goal: float, met: int) -> _View:
    """Follow the pairs of branches that start at the queried states until they leave or merge.

    met: how many states the region has met.
    """
    system, rate = small.system, small.system.jm.gamma**2
    policy, n = system.policy, system.jm.num_states - 1
    inside, leaves = system.kernel[:n, :n], system.kernel[:n, [n]].toarray().ravel()
    alone = Chain(inside, rate, rate * leaves).solution(1e-3 * goal * (1.0 - rate))
    off = np.abs(rate * (inside @ alone + leaves) - alone).max() / (1.0 - rate)
    alone = np.append(np.minimum(alone + off, 1.0), 1.0)

    queries = Queries.of(system.jm, asked)
    law = system.law(queries.states, queries.first, queries.second)
    bounds, pending, visits = np.zeros(queries.states.size), np.zeros(n + 1), np.zeros(policy.shape)
    for actions in (queries.first, queries.second):
        np.add.at(visits, (queries.states, actions), 1.0)
    query = np.repeat(np.arange(bounds.size), np.diff(law.starts))
    pairs, room = (query, law.first, law.second, rate * law.weights), _PAIRS * (n + 100)
    while pairs[0].size:
        query, first, second, mass = pairs
        room -= mass.size
        few = room > 0 and 4.0 * mass.sum() > 0.01 * goal
        kept = (first < n) & (second < n) & few
        ended = query[~kept], first[~kept], second[~kept], mass[~kept]
        for branch in ended[1:3]:
            bounds += 2.0 * np.bincount(ended[0], ended[3] * alone[branch], bounds.size)
            pending += np.bincount(branch, ended[3], n + 1)
        pairs = query[kept], first[kept], second[kept], mass[kept]
        apart = pairs[1] != pairs[2]
        for branch in pairs[1:3]:  # at one state, branches that draw the same action merge
            visits += np.bincount(branch, pairs[3], n + 1)[:, None] * policy
            visits -= np.bincount(branch, pairs[3] * ~apart, n + 1)[:, None] * policy**2
        pairs = _step(system, *pairs)
    onwards = Chain(inside.T.tocsr(), rate, pending[:n]).solution(1e-6 * goal)
    visits = visits[:n] + onwards[:, None] * policy[:n]
    flows = 2.0 * rate * small.probs[:, None] * visits[small.owners]
    flows *= small.outside
    scores = np.bincount(small.targets.ravel(), flows.ravel(), met).astype(float)
    return _View(small, queries, bounds, alone, visits, scores)


def _step(
    system: CollapsedT2, query: Ints, first: Ints, second: Ints, mass: Floats
) -> tuple[Ints, Ints, Ints, Floats]:
    """Pairs of branches one step later, discounted by gamma^2; those that merge are dropped."""
    size, apart, law = system.jm.num_states, first != second, system.diagonal
    shape = (int(query.max(initial=0) + 1) * size, size)

    def matrix(mass: Floats, query: Ints, first: Ints, second: Ints) -> sparse.csr_array:
        return sparse.coo_array((mass, (query * size + first, second)), shape).tocsr()

    query_met, here = query[~apart], first[~apart]
    _, pair, within = ragged(np.diff(law.starts)[here])
    entry = law.starts[here][pair] + within
    mass_met = mass[~apart][pair] * law.weights[entry]
    total = matrix(mass_met, query_met[pair], law.first[entry], law.second[entry])
    start = matrix(mass[apart], query[apart], first[apart], second[apart])
    for kernel in system.kernels:
        half = (start @ kernel).tocoo()  # one branch has moved; now the other
        other, moved = divmod(half.row, size), half.col
        total += matrix(half.data, other[0], moved, other[1]) @ kernel
    found = total.tocoo()
    query, first = divmod(found.row.astype(np.int64), size)
    second = found.col.astype(np.int64)
    return (
        query,
        np.maximum(first, second),
        np.minimum(first, second),
        system.jm.gamma**2 * found.data,
    )


def _solved(region: _Region, view: _View, asked: Ints, tol: float) -> LocalSolution:
    """The small model's answer and how far it may be off."""
    system, unit, half = view.small.system, region.unit, region.half_width
    jm, weight, actions = system.jm, norm_weight(2, system.jm.gamma), system.jm.num_actions
    leaving = np.zeros((asked.max() + 1, actions, actions))  # u
    s, a, b = view.queries.states, view.queries.first, view.queries.second
    leaving[s, a, b] = leaving[s, b, a] = view.bounds
    alone = jm.gamma**2 * (jm.averaging @ view.alone[jm.next_states])[asked]

    def error(u: Floats, variance: Floats) -> Floats:
        """Of the cut, and of the solver: its second moments are within weight * error_bound."""
        off = 8.0 * weight * sol.error_bound + 4.0 * sol.error_bound**2  # of a variance
        deviation = off / np.sqrt(np.maximum(variance, off) + 1e-300)
        return half * np.sqrt(u) + unit * np.maximum(deviation, 2.0 * sol.error_bound)

    for accuracy in (1e-3 * tol / (unit * weight), 1e-11):  # the second for very small variances
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what was reached is counted
            sol = jipe2(jm, system.policy, accuracy, system.coupling, queries=asked)
        gap_error = error(leaving[asked], sol.moments.gap_variance[asked])
        gap_error[:, range(actions), range(actions)] = 0.0
        bound, found = float(gap_error.max()), sol.moments
        cut = half * float(np.sqrt(leaving.max()))
        if bound <= tol or cut > 0.95 * tol:
            break
    return_error = error(alone, found.variance[asked])
    mean = unit * found.mean[asked] + region.middle / (1.0 - jm.gamma)
    blocks, worst = unit**2 * found.covariance[asked], float(return_error.max())
    moments = Moments(2, mean, blocks, Held(None), worst, worst)
    n = jm.num_states - 1
    if bound > tol:
        reason = "out of states or memory" if cut > 0.95 * tol else "tol is too fine for jipe2"
        warnings.warn(
            f"local_jipe2 stopped after {n:,} states with error bound {bound:.3g} > tol = "
            f"{tol:.3g}: {reason}",
            ConvergenceWarning,
            stacklevel=3,
        )
    explored = tuple(region.states[i] for i in region.explored[:n])
    visits = view.visits.sum(1)
    return LocalSolution(moments, gap_error, return_error, bound, bound <= tol, explored, visits)
