"""The range of gap variances over all one-step couplings that have the same marginal laws.

A marginal MDP says what each action does, and nothing about which outcomes of two actions come
together; gap variances depend on that. Here are their extremes over all couplings of one step, with
independent branches at distinct states as in the paper's regime (Section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held, ReadOnly
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.operators.transport import TransportedPairs
from jmdp_lib.solvers.affine import solve
from jmdp_lib.solvers.fixed_point import collect_moments
from jmdp_lib.solvers.pair_systems import solve_chains


@dataclass(frozen=True, eq=False, repr=False)
class CouplingRange(ReadOnly):
    """Gap variances and correlations over all couplings.

    Attributes:
        gap_variance_low, gap_variance_high: (S, A, A), the range of Var[Z(s, a) - Z(s, b)].
        correlation_low, correlation_high: (S, A, A), the range of Corr(Z(s, a), Z(s, b)); nan where
            one of the variances is zero.
        error_bound: how far off a gap variance may be.
        low, high: for two actions, the JMDPs with these marginals whose gap variances are all least
            and all largest. None for more actions: the ranges then contain the truth, but may be
            wider, since one outcome table has to serve all pairs of actions.
    """

    gap_variance_low: Floats
    gap_variance_high: Floats
    correlation_low: Floats
    correlation_high: Floats
    error_bound: float
    low: JMDP | None
    high: JMDP | None

    def __repr__(self) -> str:
        kind = "an outer range" if self.low is None else "exact"
        states, actions = self.gap_variance_low.shape[:2]
        return f"CouplingRange({states} states, {actions} actions, {kind})"


def coupling_range(jm: JMDP, policy: ArrayLike, tol: float = 1e-8) -> CouplingRange:
    """Least and largest gap variances and correlations over all couplings with jm's marginal laws.

    Only the marginal laws of `jm` matter: for an MDP, take `JMDP.from_mdp` with any coupling. The
    ranges are exact for two actions, and outer ranges for more.

    tol: accuracy of gap variances, relative to the largest variance of a return.

        coupling_range(jm, policy).gap_variance_low    # (S, A, A)
    """
    system = CollapsedT2.of("coupling_range", jm, policy, "independent")
    rate, tol = jm.gamma**2, checks.positive("tol", tol)
    require(6 * 8.0 * jm.num_states**2, f"coupling_range on {jm.num_states:,} states")
    backup = solve_chains(system, 1e-14)[0]  # to rounding, whatever the scale
    ends, models, errors = [], [], []
    for sign in (-1.0, 1.0):  # the largest covariances make the least gap variances
        pairs = TransportedPairs(system, backup, sign)
        goal = 0.1 * tol * (1.0 - rate) * float(backup.variance.max())
        with progress(None, "coupling_range", "sweep") as bar:
            c = solve(pairs, goal, rate, accelerate=False, bar=bar)[0]
        moved = pairs.zeros()
        pairs.apply(c, moved)
        values, slack = pairs.covariances(c)
        errors.append(2.0 * (float(np.abs(moved - c).max()) + slack) / (1.0 - rate))
        states, a, b = vars(pairs.queries).values()
        blocks = np.einsum("sa,ab->sab", backup.variance, np.eye(jm.num_actions))
        blocks[states, a, b] = blocks[states, b, a] = values
        ends.append(collect_moments(jm, 2, backup.mean, blocks, Held(None), 0.0, errors[-1]))
        two = jm.num_actions == 2
        models.append(JMDP.from_tables(*pairs.tables(), jm.num_states, jm.gamma) if two else None)
    (most, least), (low, high) = ends, models
    return CouplingRange(
        most.gap_variance, least.gap_variance, least.correlation, most.correlation,
        max(errors), low, high,
    )  # fmt: skip
