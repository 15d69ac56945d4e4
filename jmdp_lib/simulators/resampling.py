"""How far off the gaps of a model are that was counted from queries.

The probabilities of such a model are shares of N queries per state, and gap statistics are smooth
functions of them. So their sampling error is the spread that they show when the shares are drawn
anew: for every state from the Dirichlet law whose weights are the counts (the Bayesian bootstrap).
Its mean is what was counted, and its covariance that of counted shares, up to a factor N / (N + 1).

Nothing that is drawn anew shows what the queries missed. An event of probability p at a state is
missed by all of its queries with probability (1 - p)^N <= exp(-N p), and events of several states
with exp(-N sum p). So with confidence `level`, the probabilities of what was missed sum up to
-log(1 - level) / N at most. If all rewards lie in a known range, one missed table can move a mean
gap only so far: through the outcomes of the first step, and through the visits to its state that
one branch makes and the other does not. `unseen_means` is this distance over N, to first order.
Without a range nothing bounds what was missed. `seldom_seen` at least finds where the error of a
mean gap rests on few queries.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Ints, Policy
from jmdp_lib.model import JMDP, require_tables
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.simulators.results import EstimatedGaps
from jmdp_lib.solvers.order2 import jipe2

_STATES = 10_000  # of the resampled models that are solved side by side
_ENOUGH = 8.0  # queries that carry an error, for a normal interval to hold
_MOST = 0.5  # of the squared error of a gap: what has to come from a state for it to matter


def resample_gaps(
    jm: JMDP, policy: Policy, num_resamples: int = 200, seed: checks.Seed = 0
) -> EstimatedGaps:
    """Gap means and variances (S, A, A) of a model from queries, with their standard errors.

    The estimates are those of `jipe2` for a model of `JMDP.from_simulator`; the errors come from
    the Bayesian bootstrap. With 200 resamples an error is nearly always within 10% of what more
    resamples would give. Equal seeds give equal resamples.

    Outcomes that no query showed are not in the model, and no error accounts for them. If the
    simulator declares a `reward_range`, the *intervals* of means do: they are wider by what an
    outcome can do that all queries missed (`EstimatedGaps.unseen_mean`), and hold with the
    probability that they are asked for, or more, also where a rare outcome matters. Intervals of
    variances account for it only where no variation was seen. Without a range, they suppose that
    all outcomes that matter were seen often; those rarer than 3 / queries_per_state may be missing.
    A warning names the states where fewer than 8 queries carry most of the error of a mean.

    Example:
        >>> import jmdp_lib as jl
        >>> shop = jl.inventory_simulator(capacity=2, max_order=1, gamma=0.9)
        >>> counted = jl.JMDP.from_simulator(shop, queries_per_state=500, seed=0)
        >>> found = jl.resample_gaps(counted, [1, 0, 0], num_resamples=50)
        >>> low, high = found.interval("mean")
        >>> print(f"{found.mean[0, 1, 0]:.2f} +- {found.mean_error[0, 1, 0]:.2f}")
        1.89 +- 0.02
        >>> print(f"{low[0, 1, 0]:.2f} to {high[0, 1, 0]:.2f}; the exact model has 1.88")
        1.76 to 2.01; the exact model has 1.88
    """
    require_tables("resample_gaps", jm)
    if jm.queries_per_state is None:
        raise ValueError(
            f"resample_gaps: the tables of {jm!r} are known and were not counted from queries, so "
            "that its gaps have no sampling error; JMDP.from_simulator counts tables"
        )
    matrix = checks.policy_matrix(jm, policy)
    rng = checks.stream(seed, "resample_gaps")
    size = 1 + checks.at_least("num_resamples", num_resamples, 2)
    weights = np.tile(jm.probs * jm.queries_per_state, (size, 1))
    weights[1:] = rng.standard_gamma(weights[1:])  # the first row is the model itself
    step = max(1, _STATES // jm.num_states)
    parts = []
    with machine.progress(size, "resample_gaps", unit="resample") as bar:
        for start in range(0, size, step):
            parts.append(_gaps(jm, matrix, weights[start : start + step]))
            bar.update(len(parts[-1]))
    gaps = np.concatenate(parts)
    mean, variance = gaps[0]
    mean_error, variance_error = gaps[1:].std(0, ddof=1)
    states, actions, others = np.ogrid[tuple(map(slice, mean.shape))]
    index = {"state": states, "action": actions, "other": others}
    unseen = _unseen(jm, matrix, gaps)
    return EstimatedGaps(mean, mean_error, variance, variance_error, index=index, **unseen)


def _unseen(jm: JMDP, policy: Floats, gaps: Floats) -> dict[str, Any]:
    """What `EstimatedGaps` says of outcomes that no query showed; a warning if nothing bounds them.

    gaps: as `_gaps` returns them, of the model itself and of the resampled ones.
    """
    ends: Any = jm.declared_range
    reach = np.inf if ends is None else (ends[1] - ends[0]) / (1.0 - jm.gamma)
    both = 2.0 / (1.0 - jm.gamma**2)  # branches that may meet a missed outcome, at every step
    same = np.eye(jm.num_actions, dtype=bool)
    unseen = np.where(same, 0.0, both * (2.0 * reach) ** 2 / (jm.queries_per_state or 1))
    if ends is not None:
        return {"unseen_mean": unseen_means(jm, policy, ends), "unseen_variance": unseen}
    states, needed = seldom_seen(jm, policy, gaps[1:, 0].std(0, ddof=1))
    if states.size:
        warnings.warn(
            f"resample_gaps: too few queries carry the errors of gaps at states {_some(states)}, "
            f"so that intervals may be too narrow; about {needed:,.0f} queries per state would do, "
            "or a simulator that declares its reward_range",
            stacklevel=3,
        )
    return {"unseen_variance": unseen}


def _some(states: Ints) -> str:
    """The first ten of them."""
    return ", ".join(map(str, states[:10].tolist())) + (", ..." if states.size > 10 else "")


def _gaps(jm: JMDP, policy: Floats, weights: Floats) -> Floats:
    """(N, 2, S, A, A) gap means and variances for table weights (N, T): N models in one solve.

    The models stand side by side, as states of one model that do not reach each other.
    """
    copies = len(weights)
    first = np.arange(copies)[:, None] * jm.num_states  # the first state of each copy
    states = (first + jm.table_states).ravel()
    probs = weights.ravel() / np.bincount(states, weights.ravel())[states]
    rewards = np.tile(jm.rewards, (copies, 1))
    successors = first[..., None] + jm.next_states
    size = copies * jm.num_states
    tables = (states, probs, rewards, successors.reshape(rewards.shape), size, jm.gamma)
    side_by_side = JMDP.from_tables(*tables)
    solved = jipe2(side_by_side, np.tile(policy, (copies, 1)), route="reachable").moments
    shape = (copies, jm.num_states, *2 * (jm.num_actions,))
    return np.stack([x.reshape(shape) for x in (solved.gap_mean, solved.gap_variance)], axis=1)


def unseen_means(jm: JMDP, policy: Floats, ends: tuple[float, float]) -> Floats:
    """(S, A, A) how far missed tables can move mean gaps, for one unit of -log(1 - level).

    ends: the range of rewards.
    """
    rewards = jm.averaging @ jm.rewards  # (S, A)
    value, chain = _values(jm, policy)
    best = ends[1] + jm.gamma * value.max()
    worst = ends[0] + jm.gamma * value.min()
    farthest = np.maximum(best - value, value - worst)  # from the mean of a state, by one table
    size = jm.num_actions
    found = np.zeros((jm.num_states, size, size))
    for s in range(jm.num_states):
        first = jm.transitions[s * size : (s + 1) * size].toarray()
        visits = chain.solve(jm.gamma * first.T, "T").T  # (A, S) discounted, after the first step
        effect = np.abs(visits[:, None] - visits[None]) * farthest  # (A, A, S)
        mean = rewards[s] + jm.gamma * first @ value
        effect[..., s] += (best - worst) + np.abs(mean[:, None] - mean[None])
        found[s] = effect.max(-1)
    found[:, np.arange(size), np.arange(size)] = 0.0
    return found / (jm.queries_per_state or 1)


def seldom_seen(jm: JMDP, policy: Floats, mean_error: Floats) -> tuple[Ints, float]:
    """States where few queries carry the error of a mean gap, and how many queries would do.

    mean_error: (S, A, A). With d the deviations that the queries of a state show from their mean,
    (sum d^2)^2 / sum d^4 queries carry its error: all of them where |d| is always the same, and c
    if one table that was seen c times stands out.
    """
    queries: Any = jm.queries_per_state
    value, _ = _values(jm, policy)
    worth = jm.rewards + jm.gamma * value[jm.next_states]
    gaps = worth[:, :, None] - worth[:, None]  # (T, A, A)
    mean = _averages(jm, gaps)[jm.table_states]
    squares = np.where(np.abs(gaps - mean) > 1e-9 * np.abs(worth).max(), (gaps - mean) ** 2, 0.0)
    second = _averages(jm, squares)
    fourth = _averages(jm, squares**2)
    matters = (second > 0.0) & (second >= _MOST * queries * mean_error**2)
    carry = np.full(second.shape, np.inf)
    carry[matters] = queries * second[matters] ** 2 / fourth[matters]
    few = carry.min((1, 2))
    return np.flatnonzero(few < _ENOUGH), float(np.ceil(queries * _ENOUGH / few.min()))


def _values(jm: JMDP, policy: Floats) -> tuple[Floats, Any]:
    """The values (S,) of the policy, and I - gamma P of its chain P, factorised."""
    system = CollapsedT2(jm, policy)
    chain = splu((sparse.eye_array(jm.num_states) - jm.gamma * system.kernel).tocsc())
    return chain.solve(system.mean_rewards), chain


def _averages(jm: JMDP, values: Floats) -> Floats:
    """(S, ...) means over the tables of each state of values (T, ...)."""
    flat = jm.averaging @ values.reshape(len(values), -1)
    return np.asarray(flat.reshape(jm.num_states, *values.shape[1:]))
