"""The pair operator under the couplings that make covariances least or largest.

The marginal laws fix all means and variances of returns. Which outcomes (R, S') of two actions
a != b of a state come together is free, and with it the covariance

    C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b) + gamma^2 c(S'_a, S'_b)],      y = R + gamma m(S').

Its extremes over all joint laws of the two outcomes are transport problems. They are monotone in
c, so that with c = gamma^2 P c P' at distinct states they make a gamma^2-contraction. A plan stays
feasible when c changes: every sweep starts with the plans of the sweep before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import hot
from jmdp_lib.operators.collapsed import Backup, CollapsedT2, Queries

_LOOPS = 100  # that are cancelled per outcome of a problem, at most


@dataclass(frozen=True)
class TransportedPairs:
    """c over all pairs, (S, S) symmetric. `affine.solve` repeats this operator.

    system: with independent actions. backup: of the means and variances.
    sign: 1 for the least covariances, -1 for the largest.
    """

    system: CollapsedT2
    backup: Backup
    sign: float

    @cached_property
    def queries(self) -> Queries:
        """All Q pairs of actions at all states."""
        return Queries.of(self.system.jm, None)

    @cached_property
    def outcomes(self) -> Any:
        """The distinct outcomes of every state-action x = s * A + a.

        starts (S * A + 1,): x owns the rows starts[x] to starts[x + 1] - 1 of the others:
        probabilities, deviations y - mu, rewards and next states, (N,).
        """
        jm = self.system.jm
        owners = jm.table_states[:, None] * jm.num_actions + np.arange(jm.num_actions)
        columns = owners, self.backup.deviations, jm.rewards, jm.next_states
        rows, place = np.unique(
            np.stack([x.ravel() for x in columns], axis=1), axis=0, return_inverse=True
        )
        probs = np.bincount(place.ravel(), np.repeat(jm.probs, jm.num_actions))
        starts = np.searchsorted(rows[:, 0], np.arange(self.backup.mean.size + 1))
        _, deviations, rewards, next_states = (np.ascontiguousarray(x) for x in rows.T)
        return starts, probs, deviations, rewards, next_states.astype(np.int64)

    @cached_property
    def plans(self) -> tuple[Ints, Ints, Ints, Floats]:
        """The two state-actions (Q,) of each query, and its plan: joint probabilities by rows.

        Query q owns the entries cells[q] to cells[q + 1] - 1 of the last array.
        """
        states, first, second = vars(self.queries).values()
        first, second = (states * self.system.jm.num_actions + x for x in (first, second))
        sizes = np.diff(self.outcomes[0])
        cells = np.concatenate([[0], np.cumsum(sizes[first] * sizes[second])])
        return first, second, cells, np.zeros(cells[-1])

    def zeros(self) -> Floats:
        """c = 0."""
        return np.zeros((self.system.jm.num_states,) * 2)

    def covariances(self, c: Floats) -> tuple[Floats, float]:
        """(Q,) the extremes of C(s,a; s,b), and how far off they may be. Improves the plans."""
        starts, probs, deviations, _, next_states = self.outcomes
        values, width = np.zeros(self.queries.states.size), int(np.diff(starts).max())
        laws, rate = (starts, probs, deviations, next_states), self.system.jm.gamma**2
        room = np.empty((width, width)), np.empty(2 * width), np.empty(2 * width, np.int64)
        return values, _transport(laws, c, rate, self.sign, *self.plans, *room, values)

    def apply(self, c: Floats, out: Floats, with_source: bool = True) -> None:
        """out = the operator on c."""
        kernel, policy = self.system.kernel, self.system.policy
        states, first, second = vars(self.queries).values()
        np.multiply(self.system.jm.gamma**2, kernel @ (kernel @ c).T, out=out)
        both = 2.0 * policy[states, first] * policy[states, second] * self.covariances(c)[0]
        np.fill_diagonal(out, self.backup.source + np.bincount(states, both, len(c)))

    def tables(self) -> tuple[Ints, Floats, Floats, Ints]:
        """The coupling of two actions: states, probs (T,), rewards and next_states (T, 2)."""
        first, second, cells, plan = self.plans
        starts, _, _, rewards, next_states = self.outcomes
        used = np.flatnonzero(plan)
        query = np.searchsorted(cells, used, side="right") - 1
        row, column = np.divmod(used - cells[query], np.diff(starts)[second[query]])
        pair = np.stack([starts[first[query]] + row, starts[second[query]] + column], axis=1)
        return self.queries.states[query], plan[used], rewards[pair], next_states[pair]


@hot
def _transport(
    laws: Any, c: Any, rate: Any, sign: Any, first: Any, second: Any, cells: Any, plans: Any,
    cost: Any, reach: Any, via: Any, values: Any,
) -> Any:  # fmt: skip
    """Make all plans optimal and fill in values (Q,); how far off one of them may be.

    cost, reach, via: room for the costs (w, w) and the nodes (2 w,) of a problem, w outcomes wide.
    """
    starts, probs, deviations, next_states = laws
    worst = 0.0
    for q in range(first.size):
        x, y = starts[first[q]], starts[second[q]]
        m, n = starts[first[q] + 1] - x, starts[second[q] + 1] - y
        plan, started = plans[cells[q] : cells[q + 1]].reshape(m, n), False
        for i in range(m):
            for j in range(n):
                later = rate * c[next_states[x + i], next_states[y + j]]
                cost[i, j] = sign * (deviations[x + i] * deviations[y + j] + later)
                started |= plan[i, j] > 0.0
        if not started:
            _pair_quantiles(probs[x : x + m], probs[y : y + n], plan)
        worst = max(worst, _cancel_loops(cost, plan, reach, via))
        values[q] = 0.0
        for i in range(m):
            for j in range(n):
                values[q] += sign * plan[i, j] * cost[i, j]
    return worst


@hot
def _pair_quantiles(p: Any, q: Any, plan: Any) -> None:
    """A first plan: the joint law of the quantiles of p (m,) and q (n,)."""
    i, j, left, right = 0, 0, p[0], q[0]
    while i < p.size:
        plan[i, j] = min(left, right)
        left, right = left - plan[i, j], right - plan[i, j]
        if j == q.size - 1 or (left <= right and i < p.size - 1):
            i += 1
            left = p[min(i, p.size - 1)]
        else:
            j += 1
            right = q[j]


@hot
def _cancel_loops(cost: Any, plan: Any, reach: Any, via: Any) -> Any:
    """Send mass around loops of negative cost, until Bellman and Ford find none (Klein).

    Rows are nodes 0 to m - 1, columns follow. Mass may go from a row to a column, and back where
    there is some. The potentials that are found prove how far from the optimum the plan can be.
    """
    m, n = plan.shape
    small = 0.0
    for i in range(m):
        for j in range(n):
            small = max(small, 1e-14 * abs(cost[i, j]))
    for _ in range(_LOOPS * (m + n)):
        reach[:] = 0.0
        for _ in range(m + n):
            node = -1
            for i in range(m):
                for j in range(n):
                    if reach[i] + cost[i, j] < reach[m + j] - small:
                        reach[m + j], via[m + j], node = reach[i] + cost[i, j], i, m + j
                    if plan[i, j] > 0.0 and reach[m + j] - cost[i, j] < reach[i] - small:
                        reach[i], via[i], node = reach[m + j] - cost[i, j], m + j, i
            if node < 0:
                return 2.0 * small
        for _ in range(m + n):
            node = via[node]  # by now it is on a loop
        amount, at = np.inf, node
        for change in (False, True):
            while True:
                before = via[at]
                if change:
                    plan[min(at, before), max(at, before) - m] += amount if at >= m else -amount
                elif at < m:
                    amount = min(amount, plan[at, before - m])
                at = before
                if at == node:
                    break
    return np.inf
