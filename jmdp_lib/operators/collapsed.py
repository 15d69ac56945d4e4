"""T_2 collapsed over the policy and centred: three linear systems instead of |S|^2 |A|^2 numbers.

With m(s) = E Z(s, A), v(s) = Var Z(s, A), c(s, t) = Cov(Z(s, A), Z(t, B)) for independent A, B, and
y = R + gamma m(S') with its mean mu(s, a) = E y,

    m = r + gamma P m,
    v = E[(y_A - m)^2] + gamma^2 P v,
    c = c_0 + gamma^2 P_2 c,        c_0(s, t) = 0 for s != t,

where P is the policy's chain. P_2 is that of Appendix B, averaged over the policy: it moves two
branches, independently from distinct states, by one table from the same state. Two branches at one
state that draw the same action are one branch. Such pairs leave P_2, and c_0 has their variance:

    c_0(s, s) = sum_a pi_a^2 Var Z(s, a) + sum_{a != b} pi_a pi_b E[(y_a - mu_a)(y_b - mu_b)].

Every coordinate of T_2's fixed point is one local expectation away,
C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E c(S'_a, S'_b).

With common noise k, of probability p_k, distinct states share it, and only the third line changes:

    c(s, t) = sum_k p_k d_k(s) d_k(t) + gamma^2 sum_k p_k (P_k c P_k')(s, t)      for s != t,

where P_k is the policy's chain given k, and d_k(s) = E[y_A | k] - m(s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP, JOINT, Coupling, checked_coupling, require_tables

_CHUNK = 1 << 20  # entries of laws that are worked on at once
_SPARSE = 0.1  # a term of a sum of rows costs some ten times what one of a matrix product does


@dataclass(frozen=True)
class PairStep:
    """Where two branches go in one step, for Q pairs of state-actions: N outcomes, arrays (N,).

    row: whose outcome it is, ascending. first, second: the next states. weights: probabilities.
    tables: the table of each branch, one and the same at one state; None for branches that draw
    independently.
    """

    row: Ints
    first: Ints
    second: Ints
    weights: Floats
    tables: tuple[Ints, Ints] | None = None


@dataclass(frozen=True, eq=False)
class Backup:
    """What one application of T_2 makes of m (S,) and v (S,).

    mean: (S, A). deviations: (T, A), y - mu. variance: (S, A), Var Z(s, a). later: (S, A), the part
    of it that comes after one step.
    """

    system: CollapsedT2
    mean: Floats
    deviations: Floats
    variance: Floats
    later: Floats

    def _averaged(self, x: Floats) -> Floats:
        return np.einsum("sa,sa->s", self.system.policy, x)

    @cached_property
    def value(self) -> Floats:
        """(S,), the new m."""
        return self._averaged(self.mean)

    @cached_property
    def value_variance(self) -> Floats:
        """(S,), the new v."""
        return self._averaged(self.variance + (self.mean - self.value[:, None]) ** 2)

    @cached_property
    def diagonal_source(self) -> Floats:
        """(S,), c_0 on the diagonal, as above."""
        policy = self.system.policy
        if not self.system.coupling.at_one_state:
            return self._averaged(policy * self.variance)
        jm = self.system.jm
        together = np.einsum("ta,ta->t", policy[jm.table_states], self.deviations)
        return np.asarray(jm.averaging @ together**2 + self._averaged(policy * self.later))

    @cached_property
    def noise_source(self) -> Floats:
        """(S, K), between states s != t c_0 is noise_source[s] @ noise_source[t]; K may be 0."""
        return np.asarray(self.system.average @ self.system.noise_source(self.deviations))


@dataclass(frozen=True)
class CollapsedT2:
    """The collapsed operator of one JMDP, one policy (S, A) and one coupling."""

    jm: JMDP
    policy: Floats
    coupling: Coupling = JOINT

    @classmethod
    def of(cls, solver: str, jm: JMDP, policy: Policy, coupling: str | Coupling = JOINT) -> Self:
        """The operator for what a user hands to a solver, checked, without the rewards' offset."""
        require_tables(solver, jm)
        matrix = checks.policy_matrix(jm, policy)
        return cls(jm, matrix, checked_coupling(jm, coupling)).without_offset

    @cached_property
    def without_offset(self) -> Self:
        """The operator of `JMDP.without_offset`: its moments are those of smaller returns."""
        return replace(self, jm=self.jm.without_offset)

    @cached_property
    def average(self) -> sparse.csr_array:
        """(S, S*A) sparse: times a function of state-actions, its average over the policy."""
        return policy_average(self.policy)

    @cached_property
    def kernel(self) -> sparse.csr_array:
        """(S, S) sparse: P, the chain of states under the policy."""
        return self._averaged(self.jm.transitions)

    @cached_property
    def kernels(self) -> list[sparse.csr_array]:
        """(S, S) sparse: from distinct states P_2 c is the sum of K c K' over these."""
        if len(self.moves) == 1:
            return [self.kernel]
        return [self._averaged(move) for move in self.moves]

    @cached_property
    def few_successors(self) -> bool:
        """Whether sums over the kernels' rows are faster than matrix products."""
        few = self.kernel.nnz <= _SPARSE * self.jm.num_states**2
        return bool(few or len(self.kernels) > 1)  # a noise leads to few

    def _averaged(self, move: sparse.csr_array) -> sparse.csr_array:
        """(S, S) sparse: what the policy makes of the moves of state-actions (S*A, S)."""
        kernel = (self.average @ move).tocsr()
        kernel.sort_indices()
        return kernel

    @cached_property
    def moves(self) -> list[sparse.csr_array]:
        """Matrices M_d (S*A, S): two branches at distinct states move by c -> sum_d M_d c M_d'.

        That is the one matrix of transitions where the branches draw independently. With common
        noise there is one for each noise d, sqrt(p_d) at the state that d leads to.
        """
        if not self.coupling.across_states:
            return [self.jm.transitions]
        by_noise = zip(self.jm.noise_probs, self.jm.given_noise, strict=True)
        return [np.sqrt(prob) * certain.transitions for prob, certain in by_noise]

    def noise_source(self, deviations: Floats) -> Floats:
        """F (S*A, K): F F' is the source of T_2 between distinct states; K = 0 where it has none.

        deviations: (T, A), y - mu.
        """
        if not self.coupling.across_states:
            return np.zeros((self.policy.size, 0))
        probs = self.jm.noise_probs
        by_noise = deviations.reshape(-1, probs.size, self.jm.num_actions).swapaxes(1, 2)
        return (by_noise * np.sqrt(probs)).reshape(-1, probs.size)

    @cached_property
    def mean_rewards(self) -> Floats:
        """(S,) r."""
        return np.einsum("sa,sa->s", self.policy, self.jm.averaging @ self.jm.rewards)

    @cached_property
    def weight(self) -> float:
        """lambda_2 of eq. (20), the width of an interval that holds all returns."""
        return 2.0 * self.jm.reward_bound / (1.0 - self.jm.gamma)

    @cached_property
    def longest_sum(self) -> int:
        """How many terms one coordinate of T_2 M sums at most."""
        widest = int(np.diff(self.kernel.indptr).max())
        return int(np.diff(self.jm.starts).max()) + 4 * widest + len(self.kernels)  # a sum of sums

    def backup(self, value: Floats, value_variance: Floats) -> Backup:
        """T_2 on m and v; their fixed points give every mean and every variance."""
        jm = self.jm
        averaging = jm.averaging
        targets = jm.rewards + jm.gamma * value[jm.next_states]
        mean = averaging @ targets
        targets -= mean[jm.table_states]
        later = jm.gamma**2 * (averaging @ value_variance[jm.next_states])
        return Backup(self, mean, targets, averaging @ targets**2 + later, later)

    def step(self, asked: AskedGaps, by_table: bool = False) -> PairStep:
        """One step of the pairs that are asked for, under the coupling.

        by_table: branches that draw independently have an outcome for every two tables, too.
        """
        jm = self.jm
        states, a, b = asked.states, asked.first, asked.second
        others = states if asked.others is None else asked.others
        coupling = self.coupling
        shared = coupling.at_one_state if asked.others is None else coupling.across_states
        if not (shared or by_table):
            rows = jm.transitions
            both = states * jm.num_actions + a, others * jm.num_actions + b
            row, i, j = products(rows.indptr, *both)
            first, second = rows.indices[i].astype(np.int64), rows.indices[j].astype(np.int64)
            return PairStep(row, first, second, rows.data[i] * rows.data[j])
        if shared:
            _, row, within = ragged(np.diff(jm.starts)[states])
            here, there = (jm.starts[s][row] + within for s in (states, others))
        else:
            row, here, there = products(jm.starts, states, others)
        weights = jm.probs[here] * (1.0 if shared else jm.probs[there])
        first, second = jm.next_states[here, a[row]], jm.next_states[there, b[row]]
        return PairStep(row, first, second, weights, (here, there))

    @cached_property
    def diagonal(self) -> sparse.csr_array:
        """(S, S * S) sparse: two branches at one state that drew distinct actions, by pi_a pi_b.

        Column x * S + y has the probability that they go to x and y.
        """
        # The pair (a, b) stands for (b, a) too: the covariance is symmetric.
        size = self.jm.num_states
        require(self.table_bytes, f"the pair law of {size:,} states")
        gaps = AskedGaps.of(self.jm, None)
        both = self.policy[gaps.states, gaps.first] * self.policy[gaps.states, gaps.second]
        gaps = gaps.part(np.flatnonzero(both))
        step = self.step(gaps)
        weights = 2.0 * both[both > 0.0][step.row] * step.weights
        at = gaps.states[step.row], step.first * size + step.second
        return sparse.csr_array((weights, at), (size, size * size))

    @cached_property
    def order(self) -> Ints:
        """(S,) the states, successors first."""
        return successors_first(self.kernel)

    @cached_property
    def acyclic(self) -> bool:
        """Whether the policy never returns to a state it left."""
        place = np.argsort(self.order)
        here = np.repeat(place, np.diff(self.kernel.indptr))
        return bool((place[self.kernel.indices] <= here).all())

    @cached_property
    def entries(self) -> Ints:
        """(S,) how many successors two branches at a state may have together, at most."""
        if self.coupling.at_one_state:
            return np.diff(self.jm.starts)
        widths = np.diff(self.jm.transitions.indptr).reshape(self.policy.shape).max(1)
        return np.asarray(widths.astype(np.int64) ** 2)

    @property
    def table_bytes(self) -> float:
        """Bytes of arrays over the tables, and over pairs of actions at one state, roughly."""
        played = (self.policy > 0).sum(1)
        entries = float((played * (played - 1) // 2 * self.entries).sum())
        actions = 16.0 * self.policy.size * self.policy.shape[1]
        return 150.0 * self.jm.rewards.size + actions + 100.0 * entries

    def blocks(self, backup: Backup, pairs: PairValues, asked: AskedGaps) -> Floats:
        """(S, A, A), C(s,a; s,b) one step before c; nan for two actions that were not asked."""
        blocks = np.full((*self.policy.shape, self.policy.shape[1]), np.nan)
        np.einsum("saa->sa", blocks)[...] = backup.variance
        for part in asked.parts(self.entries):
            between = self.covariances(backup, pairs, part)
            blocks[part.states, part.first, part.second] = between
            blocks[part.states, part.second, part.first] = between
        return blocks

    def full_covariance(self, backup: Backup, c: Floats) -> Floats:
        """(S, A, S, A), C(s,a; t,b) one step before c (S, S)."""
        source = self.noise_source(backup.deviations)
        moved = reduce(np.add, ((move @ (move @ c).T).T for move in self.moves))
        full = self.jm.gamma**2 * moved + (source @ source.T if source.size else 0.0)
        full = full.reshape(self.policy.shape * 2)
        if self.coupling.at_one_state:  # all actions of a state share their table
            x = self.jm.next_states
            joint = backup.deviations[:, :, None] * backup.deviations[:, None, :]
            joint += self.jm.gamma**2 * c[x[:, :, None], x[:, None, :]]
            same = np.einsum("sasb->sab", full)
            same[...] = (self.jm.averaging @ joint.reshape(len(x), -1)).reshape(same.shape)
        np.einsum("sasa->sa", full)[...] = backup.variance
        return full

    def covariances(self, backup: Backup, pairs: PairValues, asked: AskedGaps) -> Floats:
        """(Q,), C(s,a; t,b) one step before c."""
        step = self.step(asked)
        values = self.jm.gamma**2 * pairs(step.first, step.second)
        if step.tables is not None:
            drawn = backup.deviations[step.tables[0], asked.first[step.row]]
            values += drawn * backup.deviations[step.tables[1], asked.second[step.row]]
        return np.bincount(step.row, step.weights * values, asked.states.size).astype(float)


PairValues = Callable[[Ints, Ints], Floats]
"""c as a function of two arrays of states, of one shape; nan where c was not solved."""


@dataclass(frozen=True)
class AskedGaps:
    """The gaps that are asked for, of actions a < b at a state s: three arrays (Q,).

    Or pairs of state-actions at two states: the second action is played at `others`, (Q,).
    """

    states: Ints
    first: Ints
    second: Ints
    others: Ints | None = None

    @classmethod
    def of(cls, jm: JMDP, queries: ArrayLike | None) -> AskedGaps:
        """From the keyword `queries` of a solver.

        Rows (state, a, b), (N, 3); or states (N,), for all pairs of their actions; or None, for all
        pairs of actions at all states.
        """
        asked = np.arange(jm.num_states) if queries is None else checks.as_array("queries", queries)
        if asked.ndim == 2:
            rows = checks.integers("queries", asked, "query", column=3)
            checks.integers("queries[:, 0]", rows[:, 0], "query", below=jm.num_states)
            checks.integers("queries[:, 1:]", rows[:, 1:], "query", "action", below=jm.num_actions)
            rows[:, 1:].sort()
            alike = rows[:, 1] == rows[:, 2]
            checks.refuse("queries[:, 2]", rows[:, 2], alike, "is the other action", ["query"])
            return cls(*np.ascontiguousarray(np.unique(rows, axis=0).T))
        states = np.unique(checks.integers("queries", asked, "query", below=jm.num_states))
        a, b = np.triu_indices(jm.num_actions, 1)
        return cls(np.repeat(states, a.size), np.tile(a, states.size), np.tile(b, states.size))

    def part(self, which: Any) -> AskedGaps:
        """Some of them, by an index or a slice."""
        others = None if self.others is None else self.others[which]
        return AskedGaps(self.states[which], self.first[which], self.second[which], others)

    def parts(self, entries: Ints) -> Iterator[AskedGaps]:
        """Parts that fit into memory; entries (S,): how many outcomes a pair at each state has."""
        size = max(1, _CHUNK // int(entries.max()))
        for start in range(0, self.states.size, size):
            yield self.part(slice(start, start + size))


def policy_average(policy: Floats) -> sparse.csr_array:
    """(S, S*A) sparse: row s has the probabilities of its actions, policy (S, A)."""
    states, actions = np.nonzero(policy)
    entries = policy[states, actions], (states, states * policy.shape[1] + actions)
    return sparse.csr_array(entries, shape=(len(policy), policy.size))


def successors_first(graph: sparse.csr_array) -> Ints:
    """(S,) the states of a graph (S, S): strong components, successors first, by number within."""
    # SciPy labels a component when all that it leads to have their labels.
    labels = csgraph.connected_components(graph, connection="strong")[1]
    return np.argsort(labels, kind="stable")


def products(starts: Any, left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """All pairs of an entry of row left[q] and one of right[q], of rows that start there: q, and
    both entries."""
    widths = np.diff(starts)[right]
    _, row, within = ragged(np.diff(starts)[left] * widths)
    return row, starts[left][row] + within // widths[row], starts[right][row] + within % widths[row]


def ragged(counts: Ints) -> tuple[Ints, Ints, Ints]:
    """For rows of the given lengths (Q,): where they start, (Q + 1,), and for every entry its row
    and its number in its row."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(counts.size), counts)
    return starts, row, np.arange(row.size) - starts[row]
