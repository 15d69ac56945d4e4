"""How far the gaps of a model that was counted from queries may be off: the Bayesian bootstrap.

The probabilities of a model of `JMDP.from_simulator` are shares of N queries per state, and gap
statistics are smooth functions of them. So their sampling error is the spread that they show when
the shares are drawn anew: for every state from the Dirichlet law whose weights are the counts. Its
mean is what was counted, and its covariance that of counted shares, up to a factor N / (N + 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP, require_tables
from jmdp_lib.solvers.order2 import jipe2
from jmdp_lib.statistics import GapErrors

_STATES = 10_000  # of the models that are solved side by side


def resample_gaps(
    jm: JMDP, policy: ArrayLike, num_resamples: int = 200, seed: checks.Seed = 0
) -> GapErrors:
    """Gap means and variances (S, A, A) of a model from queries, with their standard errors.

    The estimates are those of `jipe2` for a model of `JMDP.from_simulator`; the errors come from
    the Bayesian bootstrap. With 200 resamples an error is nearly always within 10% of what more
    resamples would give. Outcomes that no query showed are not in the model, and no error accounts
    for them.

    Example:
        >>> import jmdp_lib as jl
        >>> shop = jl.inventory_simulator(capacity=2, max_order=1, gamma=0.9)
        >>> counted = jl.JMDP.from_simulator(shop, queries_per_state=500, seed=0)
        >>> found = jl.resample_gaps(counted, [1, 0, 0], num_resamples=50)
        >>> low, high = found.interval("mean")
        >>> print(f"{found.mean[0, 1, 0]:.2f} +- {found.mean_error[0, 1, 0]:.2f}")
        1.87 +- 0.02
        >>> print(f"{low[0, 1, 0]:.2f} to {high[0, 1, 0]:.2f}; the exact model has 1.88")
        1.83 to 1.90; the exact model has 1.88
    """
    require_tables("resample_gaps", jm)
    if jm.queries_per_state is None:
        raise ValueError(
            f"resample_gaps: the tables of {jm!r} are known and were not counted from queries, so "
            "that its gaps have no sampling error; JMDP.from_simulator counts tables"
        )
    matrix, rng = checks.policy_matrix(jm, policy), checks.generator(seed)
    size = 1 + checks.at_least("num_resamples", num_resamples, 2)
    weights = np.tile(jm.probs * jm.queries_per_state, (size, 1))
    weights[1:] = rng.standard_gamma(weights[1:])  # the first row is the model itself
    step = max(1, _STATES // jm.num_states)
    parts = []
    with progress(size, "resample_gaps", unit="resample") as bar:
        for start in range(0, size, step):
            parts.append(_gaps(jm, matrix, weights[start : start + step]))
            bar.update(len(parts[-1]))
    gaps = np.concatenate(parts)
    (mean, variance), (mean_error, variance_error) = gaps[0], gaps[1:].std(0, ddof=1)
    return GapErrors(mean, mean_error, variance, variance_error)


def _gaps(jm: JMDP, policy: Floats, weights: Floats) -> Floats:
    """(N, 2, S, A, A) gap means and variances for table weights (N, T): N models in one solve.

    The models stand side by side, as states of one model that do not reach each other.
    """
    copies = len(weights)
    first = np.arange(copies)[:, None] * jm.num_states  # the first state of each copy
    states = (first + jm.table_states).ravel()
    probs = weights.ravel() / np.bincount(states, weights.ravel())[states]
    rewards, successors = np.tile(jm.rewards, (copies, 1)), first[..., None] + jm.next_states
    size = copies * jm.num_states
    tables = (states, probs, rewards, successors.reshape(rewards.shape), size, jm.gamma)
    side_by_side = JMDP.from_tables(*tables)
    solved = jipe2(side_by_side, np.tile(policy, (copies, 1)), route="reachable").moments
    shape = (copies, jm.num_states, *2 * (jm.num_actions,))
    return np.stack([x.reshape(shape) for x in (solved.gap_mean, solved.gap_variance)], axis=1)
