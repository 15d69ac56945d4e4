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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP, JOINT, Coupling
from jmdp_lib.operators.pairs import Backup, PairOperator
from jmdp_lib.policies import Policy

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
class CollapsedBackup(Backup):
    """A backup averaged over the policy, and what T_2 adds to c."""

    system: CollapsedT2

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
        return np.asarray(
            jm.averaging @ together**2 + self._averaged(policy * self.continuation_variance)
        )

    @cached_property
    def noise_source(self) -> Floats:
        """(S, K), between states s != t c_0 is noise_source[s] @ noise_source[t]; K may be 0."""
        return np.asarray(self.system.average @ self.system.noise_source(self.deviations))


class CollapsedT2(PairOperator):
    """T_2 with what its linear systems need: the policy's chain, and steps of chosen pairs."""

    @classmethod
    def of(cls, solver: str, jm: JMDP, policy: Policy, coupling: str | Coupling = JOINT) -> Self:
        """The operator for what a user hands to a solver, checked, without the rewards' offset."""
        return super().of(solver, jm, policy, coupling).without_offset

    @property
    def num_pairs(self) -> int:
        """How many unordered pairs of states there are."""
        return self.jm.num_states * (self.jm.num_states + 1) // 2

    @cached_property
    def kernels(self) -> list[sparse.csr_array]:
        """(S, S) sparse: between distinct states P_2 c is the sum of K c K' over these."""
        if len(self.branch_kernels) == 1:
            return [self.kernel]
        return [
            sparse.csr_array(self.average @ move).sorted_indices() for move in self.branch_kernels
        ]

    def backup(self, value: Floats, value_variance: Floats) -> CollapsedBackup:
        """T_2 on m and v; their fixed points give every mean and every variance."""
        return CollapsedBackup(**vars(super().backup(value, value_variance)), system=self)

    @cached_property
    def few_successors(self) -> bool:
        """Whether sums over the kernels' rows are faster than matrix products."""
        few = self.kernel.nnz <= _SPARSE * self.jm.num_states**2
        return bool(few or len(self.kernels) > 1)  # a noise leads to few

    @cached_property
    def mean_rewards(self) -> Floats:
        """(S,) r."""
        return np.einsum("sa,sa->s", self.policy, self.jm.averaging @ self.jm.rewards)

    def step(self, gaps: Gaps, by_table: bool = False) -> PairStep:
        """One step of the pairs, under the coupling.

        by_table: branches that draw independently have an outcome for every two tables, too.
        """
        jm = self.jm
        states, a, b = gaps.states, gaps.first, gaps.second
        others = states if gaps.others is None else gaps.others
        coupling = self.coupling
        shared = coupling.at_one_state if gaps.others is None else coupling.across_states
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
        gaps = Gaps.of(self.jm)
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

    def blocks(self, backup: CollapsedBackup, pairs: PairValues, gaps: Gaps) -> Floats:
        """(S, A, A), C(s,a; s,b) one step before c; nan for two actions that were not gaps."""
        blocks = np.full((*self.policy.shape, self.policy.shape[1]), np.nan)
        np.einsum("saa->sa", blocks)[...] = backup.variance
        for part in gaps.parts(self.entries):
            between = self.covariances(backup, pairs, part)
            blocks[part.states, part.first, part.second] = between
            blocks[part.states, part.second, part.first] = between
        return blocks

    def covariances(self, backup: CollapsedBackup, pairs: PairValues, gaps: Gaps) -> Floats:
        """(Q,), C(s,a; t,b) one step before c."""
        step = self.step(gaps)
        values = self.jm.gamma**2 * pairs(step.first, step.second)
        if step.tables is not None:
            drawn = backup.deviations[step.tables[0], gaps.first[step.row]]
            values += drawn * backup.deviations[step.tables[1], gaps.second[step.row]]
        return np.bincount(step.row, step.weights * values, gaps.states.size).astype(float)


PairValues = Callable[[Ints, Ints], Floats]
"""c as a function of two arrays of states, of one shape; nan where c was not solved."""


@dataclass(frozen=True)
class Gaps:
    """Wanted gaps, of actions a < b at a state s: three arrays (Q,).

    Or pairs of state-actions at two states: the second action is played at `others`, (Q,).
    """

    states: Ints
    first: Ints
    second: Ints
    others: Ints | None = None

    @classmethod
    def of(cls, jm: JMDP, gaps: ArrayLike | None = None, states: ArrayLike | None = None) -> Gaps:
        """From the keywords of a solver: all pairs of actions at all states if both are None.

        gaps: rows (state, a, b), (N, 3). states: (N,), for all pairs of their actions.
        """
        if gaps is None:
            wanted = np.arange(jm.num_states) if states is None else states
            every = np.unique(checks.integers("states", wanted, "entry", below=jm.num_states))
            a, b = np.triu_indices(jm.num_actions, 1)
            return cls(np.repeat(every, a.size), np.tile(a, every.size), np.tile(b, every.size))
        rows = checked_gaps(jm, gaps)
        if states is not None:
            raise ValueError("gaps= and states= are two ways to say the same: pass one of them")
        rows[:, 1:].sort()
        return cls(*np.ascontiguousarray(np.unique(rows, axis=0).T))

    def part(self, which: Any) -> Gaps:
        """Some of them, by an index or a slice."""
        others = None if self.others is None else self.others[which]
        return Gaps(self.states[which], self.first[which], self.second[which], others)

    def parts(self, entries: Ints) -> Iterator[Gaps]:
        """Parts that fit into memory; entries (S,): how many outcomes a pair at each state has."""
        size = max(1, _CHUNK // int(entries.max()))
        for start in range(0, self.states.size, size):
            yield self.part(slice(start, start + size))


def checked_gaps(jm: JMDP, gaps: ArrayLike) -> Ints:
    """(N, 3), rows (state, a, b) of a JMDP, with two actions in each."""
    rows = checks.integers("gaps", gaps, "row", "(state, a, b)", shape=(None, 3))
    checks.integers("gaps[:, 0]", rows[:, 0], "row", below=jm.num_states)
    checks.integers("gaps[:, 1:]", rows[:, 1:], "row", "action", below=jm.num_actions)
    alike = rows[:, 1] == rows[:, 2]
    checks.refuse("gaps[:, 2]", rows[:, 2], alike, "is the other action", ["row"])
    return rows


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
