"""The range of gap variances over all one-step couplings that have the same marginal laws.

A marginal MDP says what each action does, and nothing about which outcomes of two actions come
together; gap variances depend on that. Here are their extremes over all couplings of one step, with
independent branches at distinct states as in the paper's regime (Section 4).

The marginal laws fix all means and variances of returns. Which outcomes (R, S') of two actions
a != b of a state come together is free, and with it the covariance

    C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b) + gamma^2 c(S'_a, S'_b)],      y = R + gamma m(S').

Its extremes over all joint laws of the two outcomes are transport problems. They are monotone in
c, so that with c = gamma^2 P c P' at distinct states they make a gamma^2-contraction. A plan stays
feasible when c changes: every sweep is handed the plans of the sweep before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy
from jmdp_lib.fast import (
    AskedGaps,
    CollapsedBackup,
    CollapsedT2,
    DensePairs,
    products,
    solve_chains,
)
from jmdp_lib.machine import ReadOnly, cached, hot, progress, require
from jmdp_lib.model import INDEPENDENT, JMDP
from jmdp_lib.moments import enough_sweeps, norm_weight
from jmdp_lib.solvers.fixed_point import warn

_LOOPS = 100  # that are cancelled per outcome of a transport problem, at most


@dataclass(frozen=True, eq=False, repr=False)
class CouplingRange(ReadOnly):
    """What `coupling_range` found: gap variances over all one-step couplings.

    Attributes:
        gap_variance_low, gap_variance_high: (S, A, A), the range of $Var[Z(s, a) - Z(s, b)]$.
        error_bound: in the paper's norm and the unit of the rewards: a gap variance is within
            $lambda_2$ times it (`norm_weight`).
        converged: whether error_bound is at most tol * reward_bound.
    """

    gap_variance_low: Floats
    gap_variance_high: Floats
    error_bound: float
    converged: bool

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        states, actions = self.gap_variance_low.shape[:2]
        return f"CouplingRange({state}, {states} states, {actions} actions)"


def coupling_range(jm: JMDP, policy: Policy, *, tol: float = 1e-8) -> CouplingRange:
    """Least and largest gap variances over all one-step couplings with jm's marginal laws.

    A one-step coupling says which outcomes of the actions of one state come together; branches at
    distinct states stay independent, as with `coupling="joint"`. Noise that all states share,
    `coupling="common"`, is none of these: its gap variances can lie outside of the range.

    Only the marginal laws of `jm` matter: for an MDP, take `JMDP.from_mdp`. The
    ranges are exact for two actions. For more actions they contain the exact ones, and may be
    wider, since one outcome table has to serve all pairs of actions.

    policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
    tol: accuracy in $||.||_lambda$, eq. (20), relative to the largest absolute reward: the result
        has converged once error_bound is at most tol * jm.reward_bound.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> found = jl.laws.coupling_range(jm, jl.uniform_policy(jm))
        >>> low, high = found.gap_variance_low[0, 0, 1], found.gap_variance_high[0, 0, 1]
        >>> print(f"between {low:.3f} and {high:.3f}; the chain's own coupling has 1.569")
        between 0.000 and 1.569; the chain's own coupling has 1.569
    """
    system = CollapsedT2.of("coupling_range", jm, policy, INDEPENDENT)
    allowed = checks.positive("tol", tol) * jm.reward_bound
    backup = solve_chains(system, 1e-14 * system.jm.reward_bound).backup  # to rounding
    cells = Cells.of(system, backup)
    # The largest covariances make the least gap variances.
    pairs = DensePairs(system, backup)
    (low, low_error), (high, high_error) = (
        _end_of_range(pairs, cells, x, tol) for x in (-1.0, 1.0)
    )
    error_bound = max(low_error, high_error) / norm_weight(2, jm.gamma, jm.reward_bound)
    converged = error_bound <= allowed
    if not converged:
        warn(f"coupling_range stopped with error bound {error_bound:.3g} > {allowed:.3g}")
    return CouplingRange(low, high, error_bound, converged)


def _end_of_range(pairs: DensePairs, cells: Cells, sign: float, tol: float) -> tuple[Floats, float]:
    """Gap variances (S, A, A), and how far off they may be.

    pairs: with independent actions, and with means and variances that are solved. sign: 1 for the
    least covariances, -1 for the largest.
    """
    system = pairs.system
    variance = pairs.backup.variance
    rate = system.jm.gamma**2
    # Gap variances are sought more exactly than tol asks: relative to the largest variance.
    size = min(0.1 * float(variance.max()), 0.2 * system.weight * system.jm.reward_bound)
    target = tol * size * (1.0 - rate)
    c = pairs.zeros()
    plan = cells.independent.copy()
    limit = 0
    with progress(None, "coupling_range", "sweep") as bar:
        for sweeps in count(1):
            new, values, slack = _sweep(pairs, cells, sign, c, plan)
            moved = float(np.abs(new - c).max())
            c = new
            limit = limit or enough_sweeps(moved, target, rate)
            bar.total = limit
            bar.update()
            if moved <= target or sweeps >= limit:
                break
    # c is off by (moved + slack) / (1 - rate) at most, and a covariance is a step away from it.
    error = 2.0 * (rate * moved + slack) / (1.0 - rate)
    s, a, b = cells.gaps.states, cells.gaps.first, cells.gaps.second
    gap_variance = np.zeros((*variance.shape, system.jm.num_actions))
    gap_variance[s, a, b] = np.maximum(variance[s, a] + variance[s, b] - 2.0 * values, 0.0)
    return gap_variance + gap_variance.swapaxes(1, 2), error


def _sweep(
    pairs: DensePairs, cells: Cells, sign: float, c: Floats, plan: Floats
) -> tuple[Floats, Floats, float]:
    """The operator on c (S, S): the new c, the extremes (Q,) of C(s,a; s,b), and how far off these
    may be. plan: (N,) where the search for the best one starts; it becomes that one."""
    policy = pairs.system.policy
    gaps = cells.gaps
    later = c[cells.next_states[:, 0], cells.next_states[:, 1]]
    costs = cells.products + pairs.system.jm.gamma**2 * later
    slack = _transport(sign * costs, plan, cells.starts, cells.widths)
    values = np.add.reduceat(plan * costs, cells.starts[:-1])
    new = pairs.zeros()
    pairs.apply(c, new, with_source=False)  # right off the diagonal
    both = 2.0 * policy[gaps.states, gaps.first] * policy[gaps.states, gaps.second] * values
    diagonal = pairs.backup.diagonal_source + np.bincount(gaps.states, both, len(c))
    np.fill_diagonal(new, diagonal)
    return new, values, slack


class Cells(NamedTuple):
    """The N pairs of distinct outcomes of all Q gaps: a plan (N,) gives each a probability.

    Gap q owns the cells starts[q] to starts[q + 1] - 1, in rows of widths[q]. products: (N,) of
    deviations y - mu. next_states: (N, 2). independent: (N,) a first plan.
    """

    gaps: AskedGaps
    starts: Ints
    widths: Ints
    products: Floats
    next_states: Ints
    independent: Floats

    @classmethod
    def of(cls, system: CollapsedT2, backup: CollapsedBackup) -> Cells:
        """For all pairs of actions at all states."""
        jm = system.jm
        gaps = AskedGaps.of(jm)
        owners = jm.table_states[:, None] * jm.num_actions + np.arange(jm.num_actions)
        rows = np.stack([owners, backup.deviations, jm.next_states], axis=2).reshape(-1, 3)
        rows, place = np.unique(rows, axis=0, return_inverse=True)
        probs = np.bincount(place.ravel(), np.repeat(jm.probs, jm.num_actions))
        first = np.searchsorted(rows[:, 0], np.arange(system.policy.size + 1))
        owner = [gaps.states * jm.num_actions + action for action in (gaps.first, gaps.second)]
        heights, widths = np.diff(first)[owner]
        size = float(heights @ widths)
        needed = 8.0 * (7 * jm.num_states**2 + 25 * size) + system.table_bytes
        require(needed, f"coupling_range on {jm.num_states:,} states")
        gap, *both = products(first, *owner)
        starts = np.searchsorted(gap, np.arange(widths.size + 1))
        deviations, next_states = rows[both, 1:].T
        return cls(
            gaps, starts, widths, deviations.prod(1), next_states.astype(int), probs[both].prod(0)
        )


@cached(nogil=True, error_model="numpy")
def _transport(costs: Any, plans: Any, starts: Any, widths: Any) -> Any:
    """Make the plans of all gaps optimal; how far off one of them may be."""
    worst = 0.0
    for q in range(widths.size):
        n = widths[q]
        m = (starts[q + 1] - starts[q]) // n
        cost = costs[starts[q] : starts[q + 1]].reshape(m, n)
        plan = plans[starts[q] : starts[q + 1]].reshape(m, n)
        room = np.empty(m + n), np.empty(m + n, np.int64)
        worst = max(worst, _cancel_loops(cost, plan, *room))
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
                        reach[m + j] = reach[i] + cost[i, j]
                        via[m + j] = i
                        node = m + j
                    if plan[i, j] > 0.0 and reach[m + j] - cost[i, j] < reach[i] - small:
                        reach[i] = reach[m + j] - cost[i, j]
                        via[i] = m + j
                        node = i
            if node < 0:
                return 2.0 * small
        for _ in range(m + n):
            node = via[node]  # by now it is on a loop
        amount = np.inf
        at = node
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
