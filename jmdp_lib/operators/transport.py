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

from jmdp_lib.checks import Floats
from jmdp_lib.machine import hot
from jmdp_lib.operators.collapsed import Backup, CollapsedT2, Queries, ragged

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
    def cells(self) -> Any:
        """The N pairs of outcomes of all queries, row by row: a plan gives each a probability.

        Query q owns the cells starts[q] to starts[q + 1] - 1, in rows of widths[q]. Returns starts
        (Q + 1,), widths (Q,), states (N,), products of deviations y - mu (N,), rewards and next
        states (N, 2), and a first plan (N,): independent outcomes.
        """
        jm = self.system.jm
        owners = jm.table_states[:, None] * jm.num_actions + np.arange(jm.num_actions)
        columns = owners, self.backup.deviations, jm.rewards, jm.next_states
        rows = np.stack([x.ravel() for x in columns], axis=1)
        rows, place = np.unique(rows, axis=0, return_inverse=True)
        probs = np.bincount(place.ravel(), np.repeat(jm.probs, jm.num_actions))
        first_row = np.searchsorted(rows[:, 0], np.arange(self.backup.mean.size + 1))
        states, *actions = vars(self.queries).values()
        pair = [states * jm.num_actions + action for action in actions]
        heights, widths = (np.diff(first_row)[x] for x in pair)
        starts, query, within = ragged(heights * widths)
        both = np.stack(np.divmod(within, widths[query]), axis=1)
        both += np.stack([first_row[x][query] for x in pair], axis=1)
        deviations, rewards, next_states = rows[both, 1], rows[both, 2], rows[both, 3].astype(int)
        products = deviations.prod(1), rewards, next_states, probs[both].prod(1)
        return starts, widths, states[query], *products

    def zeros(self) -> Floats:
        """c = 0."""
        return np.zeros((self.system.jm.num_states,) * 2)

    def covariances(self, c: Floats) -> tuple[Floats, float]:
        """(Q,) the extremes of C(s,a; s,b), and how far off they may be. Improves the plans."""
        starts, widths, _, products, _, next_states, plan = self.cells
        values = products + self.system.jm.gamma**2 * c[next_states[:, 0], next_states[:, 1]]
        nodes = int((widths + np.diff(starts) // widths).max(initial=0))
        room = np.empty(nodes), np.empty(nodes, np.int64)
        slack = _transport(self.sign * values, plan, starts, widths, *room)
        return np.add.reduceat(plan * values, starts[:-1]), slack

    def apply(self, c: Floats, out: Floats, with_source: bool = True) -> None:
        """out = the operator on c."""
        kernel, policy = self.system.kernel, self.system.policy
        states, first, second = vars(self.queries).values()
        np.multiply(self.system.jm.gamma**2, kernel @ (kernel @ c).T, out=out)
        both = 2.0 * policy[states, first] * policy[states, second] * self.covariances(c)[0]
        np.fill_diagonal(out, self.backup.source + np.bincount(states, both, len(c)))

    def tables(self) -> tuple[Any, Any, Any, Any]:
        """The coupling of two actions: states, probs (T,), rewards and next_states (T, 2)."""
        _, _, states, _, rewards, next_states, plan = self.cells
        return states, plan, rewards, next_states


@hot
def _transport(costs: Any, plans: Any, starts: Any, widths: Any, reach: Any, via: Any) -> Any:
    """Make the plans of all queries optimal; how far off one of them may be.

    reach, via: room for the rows and columns of a problem.
    """
    worst = 0.0
    for q in range(widths.size):
        n = widths[q]
        m = (starts[q + 1] - starts[q]) // n
        cost = costs[starts[q] : starts[q + 1]].reshape(m, n)
        plan = plans[starts[q] : starts[q + 1]].reshape(m, n)
        worst = max(worst, _cancel_loops(cost, plan, reach, via))
    return worst


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
