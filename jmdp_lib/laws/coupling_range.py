"""The range of gap variances over all one-step couplings with the same marginal distributions.

A marginal MDP fixes the outcomes of each action, but not which outcomes of two actions come
together; gap variances depend on that. This module computes the extremes of gap variances over all
one-step couplings, with independent branches at distinct states as in the paper (Section 4).

The marginal distributions fix all means and variances of returns. The joint distribution of the
outcomes (R, S') of two actions a != b of a state is free, and with it the covariance

    C(s,a; s,b) = E[(y_a - mu_a)(y_b - mu_b) + gamma^2 c(S'_a, S'_b)],      y = R + gamma m(S').

Its extremes over all joint distributions of the two outcomes, the *plans*, are transport problems.
They are monotone in c, so that with c = gamma^2 P c P' at distinct states they make a
gamma^2-contraction. Policy iteration finds its fixed point: a linear system gives c for some plans,
a linear program the best plans for this c, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.fast import (
    CollapsedBackup,
    CollapsedT2,
    Gaps,
    PairMap,
    PairStep,
    dense_pairs,
    solve,
    solve_chains,
)
from jmdp_lib.machine import ReadOnly, require
from jmdp_lib.model import INDEPENDENT, JMDP
from jmdp_lib.moments import norm_weight
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import warn

_ROUNDS = 50  # largest number of rounds of policy iteration
_BATCH = 1 << 14  # approximate number of pairs of outcomes in a linear program
_EXACT: Any = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True, eq=False, repr=False)
class CouplingRange(ReadOnly):
    """Result of `coupling_range`: gap variances over all one-step couplings.

    Attributes:
        gap_variance_low, gap_variance_high: (S, A, A), the range of $Var[Z(s, a) - Z(s, b)]$.
        error_bound: a bound in the paper's norm, in the unit of the rewards. The error of a gap
            variance is at most $lambda_2$ times this bound (`norm_weight`).
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
    """Least and largest gap variances over all one-step couplings of the same marginal MDP.

    A one-step coupling fixes which outcomes of the actions of a state come together; branches at
    distinct states stay independent, as with `coupling="joint"`. Noise that all states share,
    `coupling="common"`, is not a one-step coupling: its gap variances can lie outside the range.

    For an MDP, use `JMDP.from_mdp`. The ranges are exact for two actions. For more actions they
    contain the exact ranges and may be wider, since each pair of actions has its own best coupling
    here, but in a model one outcome table serves all pairs.

    Args:
        jm: the model, of which only the marginal MDP matters.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        tol: accuracy in $||.||_lambda$, eq. (20), relative to the largest absolute reward.
            Defaults to 1e-8. The result has converged if error_bound is at most
            tol * jm.reward_bound.

    Returns:
        The ends of the range, (S, A, A) each, and their certificate.

    Raises:
        ValueError: an argument makes no sense.
        MemoryError: the pairs of states, or of tables, do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> span = jl.laws.coupling_range(jm, jl.uniform_policy(jm))
        >>> low, high = span.gap_variance_low[0, 0, 1], span.gap_variance_high[0, 0, 1]
        >>> print(f"between {low:.3f} and {high:.3f}; the chain's own coupling has 1.569")
        between 0.000 and 1.569; the chain's own coupling has 1.569
    """
    system = CollapsedT2.of("coupling_range", jm, policy, INDEPENDENT)
    error_tol = checks.positive("tol", tol) * jm.reward_bound
    gaps = Gaps.of(jm)
    num_cells = float((np.diff(jm.starts)[gaps.states] ** 2).sum())
    require(
        56.0 * jm.num_states**2 + 400.0 * num_cells, f"coupling_range on {jm.num_states:,} states"
    )
    backup = solve_chains(system, 1e-14 * system.jm.reward_bound).backup  # to rounding
    cells = Cells(system, backup, gaps, system.step(gaps, by_table=True))
    # The largest covariances make the least gap variances.
    (low, low_error), (high, high_error) = (_end_of_range(cells, x, tol) for x in (-1.0, 1.0))
    error_bound = max(low_error, high_error) / norm_weight(2, jm.gamma, jm.reward_bound)
    converged = error_bound <= error_tol
    if not converged:
        warn(f"coupling_range stopped with error bound {error_bound:.3g} > {error_tol:.3g}")
    return CouplingRange(low, high, error_bound, converged)


def _end_of_range(cells: Cells, sign: float, tol: float) -> tuple[Floats, float]:
    """Gap variances (S, A, A), and a bound on their error.

    sign: 1 for the least covariances, -1 for the largest.
    """
    system = cells.system
    gaps = cells.gaps
    step = cells.step
    variance = cells.backup.variance
    rate = system.jm.gamma**2
    # More accurate than tol requires: relative to the largest variance.
    size = min(0.1 * float(variance.max()), 0.2 * system.weight * system.jm.reward_bound)
    target = tol * size * (1.0 - rate)
    plan = step.weights
    for _ in range(_ROUNDS):
        c = solve(cells.pairs(plan), target, rate, "coupling_range").x
        costs = cells.products + rate * c[step.first, step.second]
        plan, slack = cells.best_plan(sign * costs)
        moved = cells.pairs(plan).residual(c)
        if moved <= target:
            break
    # The error of c is at most (moved + slack) / (1 - rate); a covariance is one step before c.
    error = 2.0 * (rate * moved + slack) / (1.0 - rate)
    s, a, b = gaps.states, gaps.first, gaps.second
    values = np.bincount(step.row, plan * costs, s.size)
    gap_variance = np.zeros((*variance.shape, system.jm.num_actions))
    gap_variance[s, a, b] = np.maximum(variance[s, a] + variance[s, b] - 2.0 * values, 0.0)
    return gap_variance + gap_variance.swapaxes(1, 2), error


@dataclass(frozen=True)
class Cells:
    """The N pairs of tables of all gaps, gap by gap; a plan (N,) gives each pair a probability.

    system: T_2 with independent actions. backup: one step from the solved means and variances.
    step: the next states of the two tables; its weights are the plan of independent actions.
    """

    system: CollapsedT2
    backup: CollapsedBackup
    gaps: Gaps
    step: PairStep

    @cached_property
    def products(self) -> Floats:
        """Products (N,) of the deviations y - mu of both actions."""
        actions = self.gaps.first[self.step.row], self.gaps.second[self.step.row]
        return self.backup.deviations[self.step.tables, actions].prod(0)

    def pairs(self, plan: Floats) -> PairMap:
        """Map of c over all pairs (S, S), if two branches at one state follow a plan (N,)."""
        system = self.system
        gaps = self.gaps
        step = self.step
        size = system.jm.num_states
        both = (
            2.0 * system.policy[gaps.states, gaps.first] * system.policy[gaps.states, gaps.second]
        )
        both = both[step.row] * plan
        s = gaps.states[step.row]
        at = s, step.first * size + step.second
        return replace(
            dense_pairs(system, self.backup),
            shared=sparse.csr_array((system.jm.gamma**2 * both, at), (size, size * size)),
            shared_source=self.backup.diagonal_source + np.bincount(s, both * self.products, size),
        )

    @cached_property
    def margins(self) -> Any:
        """Sparse matrix (M, N): each row marks the pairs of a gap that share one action's table."""
        num_tables = self.system.jm.probs.size
        assert self.step.tables is not None
        here, there = self.step.tables
        labels = 2 * num_tables * self.step.row + np.stack([here, num_tables + there])
        shared, margin = np.unique(labels, return_inverse=True)
        size = self.step.row.size
        at = margin.ravel(), np.tile(np.arange(size), 2)
        return sparse.csr_array((np.ones(2 * size), at), (shared.size, size))

    def best_plan(self, costs: Floats) -> tuple[Floats, float]:
        """The plan (N,) of least cost for every gap, and a bound on its excess cost."""
        starts = np.flatnonzero(np.diff(self.step.row, prepend=-1))
        unit = np.maximum.reduceat(np.abs(costs), starts) + 1e-300
        costs = costs / unit[self.step.row]
        plan, reduced = np.empty((2, costs.size))
        many = 1 + _BATCH * starts.size // max(1, costs.size)  # gaps at a time
        for part in starmap(slice, pairwise(np.append(starts[::many], costs.size))):
            margins = self.margins[:, part]
            margins = margins[np.diff(margins.indptr) > 0]
            masses = margins @ self.step.weights[part]
            solved = linprog(costs[part], A_eq=margins, b_eq=masses, options=_EXACT)
            plan[part] = solved.x
            reduced[part] = costs[part] - solved.eqlin.marginals @ margins
        # No plan costs less than the least reduced costs, whatever the potentials are.
        above = np.add.reduceat(plan * reduced, starts) - np.minimum.reduceat(reduced, starts)
        return plan, float((unit * above).max(initial=0.0))
