"""T_2 collapsed over the policy and centred: three linear systems instead of |S|^2 |A|^2 numbers.

With m(s) = E Z(s, A), v(s) = Var Z(s, A), c(s, t) = Cov(Z(s, A), Z(t, B)) for independent A, B, and
y = R + gamma m(S') with its mean mu(s, a) = E y,

    m = r + gamma P m,
    v = E[(y_A - m)^2] + gamma^2 P v,
    c = c_0 + gamma^2 P_2 c,        c_0(s, t) = 0 for s != t,

where P is the policy's chain and P_2 moves two branches: independently from distinct states, by
one table from the same state. Two branches at one state that draw the same action are one branch,
whose covariance is v: that part of the diagonal is in c_0. Every coordinate of T_2's fixed point is
one local expectation away, C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E c(S'_a, S'_b).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import norm_weight
from jmdp_lib.operators.chains import topological_order

_CHUNK = 1 << 22  # entries of laws that are worked on at once


@dataclass(frozen=True)
class PairLaw:
    """Where two branches go in one step, for Q queries (s, a, b): a sparse (Q, S^2) matrix.

    starts: (Q + 1,) query q owns the entries starts[q] to starts[q + 1] - 1. first, second: (N,)
    successors. weights: (N,) probabilities. noise: (N,) what the query adds there, (y_a - mu_a)
    (y_b - mu_b); None for independent actions, where it averages to zero.
    """

    starts: Ints
    first: Ints
    second: Ints
    weights: Floats
    noise: Floats | None

    def expect(self, values: Floats) -> Floats:
        """(Q,) expectations of values (N,)."""
        shape = (self.starts.size - 1, self.weights.size)
        columns = np.arange(self.weights.size)
        return np.asarray(sparse.csr_array((self.weights, columns, self.starts), shape) @ values)


@dataclass(frozen=True)
class Backup:
    """What one application of T_2 makes of m (S,) and v (S,).

    mean: (S, A). deviations: (T, A), y - mu. variance: (S, A), Var Z(s, a). value, single: (S,),
    the new m and v. source: (S,), c_0 on the diagonal.
    """

    mean: Floats
    deviations: Floats
    variance: Floats
    value: Floats
    single: Floats
    source: Floats


@dataclass(frozen=True)
class Collapsed:
    """The collapsed operator of one JMDP and one policy (S, A)."""

    jm: JMDP
    policy: Floats
    independent: bool = False

    @cached_property
    def kernel(self) -> sparse.csr_array:
        """(S, S) sparse: P, the chain of states under the policy."""
        num_states, num_actions = self.policy.shape
        states, actions = np.nonzero(self.policy)
        entries = self.policy[states, actions], (states, states * num_actions + actions)
        average = sparse.csr_array(entries, shape=(num_states, self.policy.size))
        kernel = (average @ self.jm.transitions).tocsr()
        kernel.sort_indices()
        return kernel

    @cached_property
    def mean_rewards(self) -> Floats:
        """(S,) r."""
        return np.einsum("sa,sa->s", self.policy, self.jm.averaging @ self.jm.rewards)

    def backup(self, value: Floats, single: Floats) -> Backup:
        """T_2 on m and v; their fixed points give every mean and every variance."""
        jm, policy = self.jm, self.policy
        targets = jm.rewards + jm.gamma * value[jm.next_states]
        mean = jm.averaging @ targets
        targets -= mean[jm.table_states]
        later = jm.gamma**2 * (jm.averaging @ single[jm.next_states])
        variance = jm.averaging @ targets**2 + later
        new = np.einsum("sa,sa->s", policy, mean)
        spread = np.einsum("sa,sa->s", policy, (mean - new[:, None]) ** 2)
        if self.independent:
            source = np.einsum("sa,sa->s", policy**2, variance)
        else:
            together = np.einsum("ta,ta->t", policy[jm.table_states], targets)
            source = jm.averaging @ together**2 + np.einsum("sa,sa->s", policy**2, later)
        alone = np.einsum("sa,sa->s", policy, variance) + spread
        return Backup(mean, targets, variance, new, alone, source)

    def law(self, states: Ints, a: Ints, b: Ints, deviations: Floats | None = None) -> PairLaw:
        """The law of the queries (states[q], a[q], b[q]), a != b, all (Q,)."""
        jm = self.jm
        if self.independent:
            return self.product_law(states * jm.num_actions + a, states * jm.num_actions + b)
        counts = np.diff(jm.starts)[states]
        query, within = _ragged(counts)
        table = jm.starts[states][query] + within
        noise = None
        if deviations is not None:
            noise = deviations[table, a[query]] * deviations[table, b[query]]
        first, second = jm.next_states[table, a[query]], jm.next_states[table, b[query]]
        return PairLaw(_starts(counts), first, second, jm.probs[table], noise)

    def product_law(self, left: Ints, right: Ints) -> PairLaw:
        """The law of pairs of state-actions, numbered s * A + a, (Q,), that move independently."""
        rows = self.jm.transitions
        widths = np.diff(rows.indptr)[right]
        counts = np.diff(rows.indptr)[left] * widths
        query, within = _ragged(counts)
        i = rows.indptr[left][query] + within // widths[query]
        j = rows.indptr[right][query] + within % widths[query]
        first, second = rows.indices[i].astype(np.int64), rows.indices[j].astype(np.int64)
        return PairLaw(_starts(counts), first, second, rows.data[i] * rows.data[j], None)

    @cached_property
    def diagonal(self) -> PairLaw:
        """(S, S^2): two branches at one state that drew distinct actions, weighted by pi_a pi_b."""
        # The pair (a, b) stands for (b, a) too: the covariance is symmetric.
        require(48.0 * self.diagonal_entries, f"the pair law of {self.jm.num_states:,} states")
        a, b = np.triu_indices(self.policy.shape[1], 1)
        states, pair = np.nonzero(self.policy[:, a] * self.policy[:, b])
        both = 2.0 * self.policy[states, a[pair]] * self.policy[states, b[pair]]
        law = self.law(states, a[pair], b[pair])
        counts = np.diff(law.starts)
        first_query = np.searchsorted(states, np.arange(self.jm.num_states + 1))
        weights = law.weights * np.repeat(both, counts)
        return PairLaw(law.starts[first_query], law.first, law.second, weights, None)

    @cached_property
    def entries(self) -> Ints:
        """(S,) how many successors two branches at a state may have together, at most."""
        if not self.independent:
            return np.diff(self.jm.starts)
        widths = np.diff(self.jm.transitions.indptr).reshape(self.policy.shape).max(1)
        return np.asarray(widths.astype(np.int64) ** 2)

    @property
    def diagonal_entries(self) -> int:
        """How many entries `diagonal` has, at most."""
        played = (self.policy > 0).sum(1)
        return int((played * (played - 1) // 2 * self.entries).sum())

    @cached_property
    def numbering(self) -> Numbering:
        """The states, successors first."""
        return Numbering.of(self)

    def weight(self) -> float:
        """lambda_2."""
        return norm_weight(2, self.jm.gamma, self.jm.reward_bound)


@dataclass(frozen=True)
class Numbering:
    """The states numbered successors first, and the collapsed operator in those numbers.

    number: (S,) of each state. acyclic: no chain returns to a state it left. chain: (indptr,
    indices, gamma * P). diagonal: (starts, x, y, gamma^2 * weight), see `Collapsed.diagonal`.
    """

    number: Ints
    acyclic: bool
    chain: Any
    diagonal: Any

    @classmethod
    def of(cls, system: Collapsed) -> Numbering:
        """Number the states of a model under a policy."""
        gamma, kernel = system.jm.gamma, system.kernel
        order = topological_order(kernel.indptr, kernel.indices)
        number = np.empty(order.size, np.int64)
        number[order] = np.arange(order.size)
        rows = kernel[order]
        rows = sparse.csr_array((rows.data, number[rows.indices], rows.indptr), rows.shape)
        rows.sort_indices()
        here = np.repeat(np.arange(order.size), np.diff(rows.indptr))
        chain = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), gamma * rows.data)
        law = system.diagonal
        counts = np.diff(law.starts)[order]
        starts = np.concatenate([[0], np.cumsum(counts)])
        entries = np.repeat(law.starts[:-1][order] - starts[:-1], counts) + np.arange(starts[-1])
        left, right = (number[x[entries]].astype(np.int32) for x in (law.first, law.second))
        diagonal = (starts, left, right, gamma**2 * law.weights[entries])
        return cls(number, bool((rows.indices <= here).all()), chain, diagonal)


@dataclass(frozen=True)
class Queries:
    """Same-state queries (s, a, b), a < b: three arrays (Q,)."""

    states: Ints
    first: Ints
    second: Ints

    @classmethod
    def of(cls, jm: JMDP, queries: ArrayLike | None) -> Queries:
        """All pairs of actions, at all states or at states (N,); or rows (state, a, b), (N, 3)."""
        a, b = np.triu_indices(jm.num_actions, 1)
        states = np.arange(jm.num_states)
        try:
            dimensions = np.ndim(queries)  # type: ignore[arg-type]
        except ValueError:
            raise ValueError(
                "queries must be states, or rows (state, a, b) of one length"
            ) from None
        if queries is not None and dimensions == 2:
            rows = checks.integers("queries", queries, "query", "column")
            checks.same_shape("queries", rows.shape, (len(rows), 3), "(num_queries, 3)")
            checks.states("queries[:, 0]", rows[:, 0], jm.num_states, "query")
            actions = rows[:, 1:]
            unknown = (actions < 0) | (actions >= jm.num_actions)
            said = f"is not an action: there are {jm.num_actions}"
            checks.refuse("queries[:, 1:]", actions, unknown, said, ["query", "column"])
            alike = actions[:, 0] == actions[:, 1]
            checks.refuse("queries[:, 2]", actions[:, 1], alike, "is the other action", ["query"])
            rows = np.unique(np.column_stack([rows[:, 0], np.sort(actions)]), axis=0)
            return cls(*np.ascontiguousarray(rows.T))
        if queries is not None:
            states = np.unique(checks.integers("queries", queries, "query"))
            checks.states("queries", states, jm.num_states, "query")
        return cls(np.repeat(states, a.size), np.tile(a, states.size), np.tile(b, states.size))

    def parts(self, entries: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """The same, so many at a time as can be worked on at once; entries: of each state's law."""
        size = max(1, _CHUNK // int(entries.max()))
        for start in range(0, self.states.size, size):
            part = slice(start, start + size)
            yield self.states[part], self.first[part], self.second[part]


def _starts(counts: Ints) -> Ints:
    """Where rows of the given lengths (Q,) start, and the end, (Q + 1,)."""
    return np.concatenate([[0], np.cumsum(counts)])


def _ragged(counts: Ints) -> tuple[Ints, Ints]:
    """For rows of the given lengths (Q,): the row of every entry, and its number in its row."""
    row = np.repeat(np.arange(counts.size), counts)
    return row, np.arange(row.size) - _starts(counts)[row]
