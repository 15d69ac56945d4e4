"""T_2 averaged over the policy and centred: three linear systems, not |S|^2 |A|^2 unknowns.

With m(s) = E Z(s, A), v(s) = Var Z(s, A), c(s, t) = Cov(Z(s, A), Z(t, B)) for independent A, B, and
y = R + gamma m(S') with its mean mu(s, a) = E y,

    m = r + gamma P m,
    v = E[(y_A - m)^2] + gamma^2 P v,
    c = c_0 + gamma^2 P_2 c,        c_0(s, t) = 0 for s != t,

where P is the policy's chain. P_2 is the pair chain of Appendix B, averaged over the policy: two
branches move independently from distinct states, and by one table from the same state. Branches at
one state that draw the same action coalesce. Such pairs leave P_2, and c_0 has their variance:

    c_0(s, s) = sum_a pi_a^2 Var Z(s, a) + sum_{a != b} pi_a pi_b E[(y_a - mu_a)(y_b - mu_b)].

Every coordinate of T_2's fixed point follows from c by one local expectation,
C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E c(S'_a, S'_b).

If distinct states share a noise k, of probability p_k, only the third line changes:

    c(s, t) = sum_k p_k d_k(s) d_k(t) + gamma^2 sum_k p_k (P_k c P_k')(s, t)      for s != t,

where P_k is the policy's chain given k, and d_k(s) = E[y_A | k] - m(s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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

_CHUNK = 1 << 20  # outcomes that are held at once
_SPARSE = 0.1  # a term of a sum of rows costs about ten times as much as one of a matrix product


@dataclass(frozen=True)
class PairStep:
    """One step of two branches, for Q pairs of state-actions: N outcomes, arrays (N,).

    row: the pair of each outcome, ascending. first, second: next states. weights: probabilities.
    tables: the table of each branch, the same for both at one state; None if the branches draw
    independently.
    """

    row: Ints
    first: Ints
    second: Ints
    weights: Floats
    tables: tuple[Ints, Ints] | None = None


@dataclass(frozen=True, eq=False)
class CollapsedBackup(Backup):
    """Backup averaged over the policy, and the source c_0 of T_2."""

    system: CollapsedT2

    def _averaged(self, x: Floats) -> Floats:
        return np.einsum("sa,sa->s", self.system.policy, x)

    @cached_property
    def value(self) -> Floats:
        """New m, (S,)."""
        return self._averaged(self.mean)

    @cached_property
    def value_variance(self) -> Floats:
        """New v, (S,)."""
        return self._averaged(self.variance + (self.mean - self.value[:, None]) ** 2)

    @cached_property
    def diagonal_source(self) -> Floats:
        """Diagonal (S,) of c_0, as above."""
        policy = self.system.policy
        if not self.system.coupling.at_one_state:
            return self._averaged(policy * self.variance)
        jm = self.system.jm
        joint = np.einsum("ta,ta->t", policy[jm.table_states], self.deviations)
        return np.asarray(
            jm.averaging @ joint**2 + self._averaged(policy * self.continuation_variance)
        )

    @cached_property
    def noise_source(self) -> Floats:
        """Factor F (S, K) of c_0 between distinct states: c_0(s, t) = F[s] @ F[t]; K may be 0."""
        return np.asarray(self.system.average @ self.system.noise_source(self.deviations))


class CollapsedT2(PairOperator):
    """T_2 as linear systems: the policy's chain, and steps of chosen pairs of state-actions."""

    @classmethod
    def of(cls, solver: str, jm: JMDP, policy: Policy, coupling: str | Coupling = JOINT) -> Self:
        """Check a solver's arguments, and return the operator without the reward offset."""
        operator = super().of(solver, jm, policy, coupling)
        return replace(operator, jm=jm.without_offset)

    @property
    def num_pairs(self) -> int:
        """Number of unordered pairs of states."""
        return self.jm.num_states * (self.jm.num_states + 1) // 2

    @cached_property
    def kernels(self) -> list[sparse.csr_array]:
        """Sparse matrices K (S, S): between distinct states P_2 c is the sum of all K c K'."""
        if len(self.branch_kernels) == 1:
            return [self.kernel]
        moves = (self.average @ move for move in self.branch_kernels)
        return [sparse.csr_array(move).sorted_indices() for move in moves]

    def backup(self, value: Floats, value_variance: Floats) -> CollapsedBackup:
        """Apply T_2 to m and v; their fixed points give every mean and every variance."""
        return CollapsedBackup(**vars(super().backup(value, value_variance)), system=self)

    @cached_property
    def few_successors(self) -> bool:
        """True if sums over the kernels' rows are faster than dense matrix products."""
        few = self.kernel.nnz <= _SPARSE * self.jm.num_states**2
        return bool(few or len(self.kernels) > 1)  # few, given the noise

    @cached_property
    def mean_rewards(self) -> Floats:
        """Mean reward r (S,)."""
        return np.einsum("sa,sa->s", self.policy, self.jm.averaging @ self.jm.rewards)

    def step(self, gaps: Gaps, by_table: bool = False) -> PairStep:
        """One step of the pairs, under the coupling.

        by_table: also list the outcomes of branches that draw independently by their two tables.
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
            row, here = entries_of(jm.starts, states)
            there = here if others is states else entries_of(jm.starts, others)[1]
        else:
            row, here, there = products(jm.starts, states, others)
        weights = jm.probs[here] * (1.0 if shared else jm.probs[there])
        first, second = jm.next_states[here, a[row]], jm.next_states[there, b[row]]
        return PairStep(row, first, second, weights, (here, there))

    @cached_property
    def diagonal(self) -> sparse.csr_array:
        """P_2 from equal states, (S, S * S) sparse: two branches that draw distinct actions.

        Column x * S + y has the probability of distinct actions that lead to x and y.
        """
        # The pair (a, b) stands for (b, a) too: the covariance is symmetric.
        size = self.jm.num_states
        require(self.table_bytes, f"the pair chain of {size:,} states")
        gaps = Gaps.of(self.jm)
        both = self.policy[gaps.states, gaps.first] * self.policy[gaps.states, gaps.second]
        gaps = gaps.part(np.flatnonzero(both))
        step = self.step(gaps)
        weights = 2.0 * both[both > 0.0][step.row] * step.weights
        at = gaps.states[step.row], step.first * size + step.second
        return sparse.csr_array((weights, at), (size, size * size))

    @cached_property
    def order(self) -> Ints:
        """States (S,), successors first."""
        return successors_first(self.kernel)

    @cached_property
    def acyclic(self) -> bool:
        """True if the policy never returns to a state it left."""
        num_components, _ = csgraph.connected_components(self.kernel, connection="strong")
        return bool(num_components == self.jm.num_states)

    @cached_property
    def entries(self) -> Ints:
        """Upper bound (S,) on the number of outcomes of two branches at one state."""
        if self.coupling.at_one_state:
            return np.diff(self.jm.starts)
        widths = np.diff(self.jm.transitions.indptr).reshape(self.policy.shape).max(1)
        return np.asarray(widths.astype(np.int64) ** 2)

    @property
    def table_bytes(self) -> float:
        """Estimated bytes of arrays over the tables, and over pairs of actions at one state."""
        likely = (self.policy > 0).sum(1)
        entries = float((likely * (likely - 1) // 2 * self.entries).sum())
        actions = 16.0 * self.policy.size * self.policy.shape[1]
        return 150.0 * self.jm.rewards.size + actions + 100.0 * entries

    def blocks(self, backup: CollapsedBackup, pairs: PairValues, gaps: Gaps) -> Floats:
        """Covariances C(s,a; s,b), (S, A, A), one step before c; nan if not among the gaps."""
        blocks = np.full((*self.policy.shape, self.policy.shape[1]), np.nan)
        np.einsum("saa->sa", blocks)[...] = backup.variance
        for part in gaps.parts(self.entries):
            between = self.covariances(backup, pairs, part)
            blocks[part.states, part.first, part.second] = between
            blocks[part.states, part.second, part.first] = between
        return blocks

    def covariances(self, backup: CollapsedBackup, pairs: PairValues, gaps: Gaps) -> Floats:
        """Covariances C(s,a; t,b), (Q,), one step before c."""
        step = self.step(gaps)
        values = self.jm.gamma**2 * pairs(step.first, step.second)
        if step.tables is not None:
            drawn = backup.deviations[step.tables[0], gaps.first[step.row]]
            values += drawn * backup.deviations[step.tables[1], gaps.second[step.row]]
        return np.bincount(step.row, step.weights * values, gaps.states.size).astype(float)


PairValues = Callable[[Ints, Ints], Floats]
"""Function that returns c at pairs of states, two arrays of one shape; nan if not solved."""


@dataclass(frozen=True)
class Gaps:
    """Requested gaps: states s and actions a < b, three arrays (Q,).

    Also pairs of state-actions at two states; the second action then belongs to `others`, (Q,).
    """

    states: Ints
    first: Ints
    second: Ints
    others: Ints | None = None

    @classmethod
    def of(cls, jm: JMDP, gaps: ArrayLike | None = None, states: ArrayLike | None = None) -> Gaps:
        """Gaps that a solver's keywords request: all gaps of all states if both are None.

        gaps: rows (state, a, b) with two different actions, (N, 3). states: (N,), for all gaps of
        these states.
        """
        if gaps is None:
            requested = np.arange(jm.num_states) if states is None else states
            every = np.unique(checks.integers("states", requested, "entry", below=jm.num_states))
            a, b = np.triu_indices(jm.num_actions, 1)
            return cls(np.repeat(every, a.size), np.tile(a, every.size), np.tile(b, every.size))
        rows = checks.integers("gaps", gaps, "row", "(state, a, b)", shape=(None, 3))
        checks.integers("gaps[:, 0]", rows[:, 0], "row", below=jm.num_states)
        checks.integers("gaps[:, 1:]", rows[:, 1:], "row", "action", below=jm.num_actions)
        equal = rows[:, 1] == rows[:, 2]
        checks.refuse("gaps[:, 2]", rows[:, 2], equal, "is the other action", ["row"])
        if states is not None:
            raise ValueError("pass either gaps= or states=, not both")
        rows[:, 1:].sort()
        return cls(*np.ascontiguousarray(np.unique(rows, axis=0).T))

    def part(self, which: Any) -> Gaps:
        """Select gaps by an index or a slice."""
        others = None if self.others is None else self.others[which]
        return Gaps(self.states[which], self.first[which], self.second[which], others)

    def parts(self, entries: Ints) -> Iterator[Gaps]:
        """Split into parts that fit into memory; entries (S,): outcomes of a pair at each state."""
        size = max(1, _CHUNK // int(entries.max()))
        for start in range(0, self.states.size, size):
            yield self.part(slice(start, start + size))


def successors_first(graph: sparse.csr_array) -> Ints:
    """States (S,) of a graph (S, S), by strong component: successors first, ascending in each."""
    # SciPy labels a component when all that it leads to have their labels.
    labels = csgraph.connected_components(graph, connection="strong")[1]
    return np.argsort(labels, kind="stable")


def entries_of(starts: Any, rows: Ints) -> tuple[Ints, Ints]:
    """Entries of rows (Q,) of a sparse layout: for each its position in Q, and its position."""
    row, within = ragged(np.diff(starts)[rows])
    return row, starts[rows][row] + within


def products(starts: Any, left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs of an entry of row left[q] and an entry of row right[q], for all q.

    starts: first entry of each row. Returns q and both entries of each pair.
    """
    row, here = entries_of(starts, left)
    pair, there = entries_of(starts, right[row])
    return row[pair], here[pair], there


def ragged(counts: Ints) -> tuple[Ints, Ints]:
    """Row of each entry of rows of the given lengths (Q,), and its position there."""
    row = np.repeat(np.arange(counts.size), counts)
    return row, np.arange(row.size) - (np.cumsum(counts) - counts)[row]
