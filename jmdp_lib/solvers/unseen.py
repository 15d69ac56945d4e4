"""What the queries of a counted model did not show, or showed too seldom.

If a state is queried N times, an event of probability p at it is missed by all queries with
probability (1 - p)^N <= exp(-N p), and events of several states with exp(-N sum p). So with
confidence `level`, the probabilities of what was missed sum up to -log(1 - level) / N at most. If
all rewards lie in a known range, one missed table can move a mean gap only so far: through the
outcomes of the first step, and through the visits to its state that one branch makes and the other
does not. `unseen_means` is this distance over N, to first order.

Without a range nothing bounds what was missed. `seldom_seen` at least finds where the error of a
mean gap rests on few queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP

_ENOUGH = 8.0  # queries that carry an error, for a normal interval to hold
_MOST = 0.5  # of the squared error of a gap: what has to come from a state for it to matter


def unseen_means(jm: JMDP, policy: Floats, ends: tuple[float, float]) -> Floats:
    """(S, A, A) how far missed tables can move mean gaps, for one unit of -log(1 - level).

    ends: the range of rewards.
    """
    moves, system = _chain(jm, policy)
    value = system.solve((policy * _mean_rewards(jm)).sum(1))
    best, worst = ends[1] + jm.gamma * value.max(), ends[0] + jm.gamma * value.min()
    farthest = np.maximum(best - value, value - worst)  # from the mean of a state, by one table
    size = jm.num_actions
    found = np.zeros((jm.num_states, size, size))
    for s in range(jm.num_states):
        first = moves[s * size : (s + 1) * size].toarray()
        visits = system.solve(jm.gamma * first.T, "T").T  # (A, S) discounted, after the first step
        effect = np.abs(visits[:, None] - visits[None]) * farthest  # (A, A, S)
        mean = _mean_rewards(jm)[s] + jm.gamma * first @ value
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
    _, system = _chain(jm, policy)
    value = system.solve((policy * _mean_rewards(jm)).sum(1))
    worth = jm.rewards + jm.gamma * value[jm.next_states]
    gaps = worth[:, :, None] - worth[:, None]  # (T, A, A)
    mean = _averages(jm, gaps)[jm.table_states]
    squares = np.where(np.abs(gaps - mean) > 1e-9 * np.abs(worth).max(), (gaps - mean) ** 2, 0.0)
    second, fourth = _averages(jm, squares), _averages(jm, squares**2)
    matters = (second > 0.0) & (second >= _MOST * queries * mean_error**2)
    carry = np.full(second.shape, np.inf)
    carry[matters] = queries * second[matters] ** 2 / fourth[matters]
    few = carry.min((1, 2))
    return np.flatnonzero(few < _ENOUGH), float(np.ceil(queries * _ENOUGH / few.min()))


def _chain(jm: JMDP, policy: Floats) -> tuple[Any, Any]:
    """Transitions (S * A, S), and I - gamma P of the policy's chain P, factorised."""
    shape = (jm.num_states, jm.num_actions)
    number = np.arange(policy.size).reshape(shape)  # of every state and action
    cells = number[jm.table_states].ravel(), jm.next_states.ravel()
    each = np.repeat(jm.probs, jm.num_actions)
    moves = sparse.csr_array((each, cells), shape=(policy.size, jm.num_states))
    owner = np.repeat(np.arange(jm.num_states), jm.num_actions)
    average = sparse.csr_array((policy.ravel(), (owner, number.ravel())))
    chain = average @ moves
    return moves, splu((sparse.eye_array(jm.num_states) - jm.gamma * chain).tocsc())


def _mean_rewards(jm: JMDP) -> Floats:
    """(S, A)."""
    return _averages(jm, jm.rewards)


def _averages(jm: JMDP, values: Floats) -> Floats:
    """(S, ...) means over the tables of each state of values (T, ...)."""
    weights = jm.probs.reshape(-1, *(1,) * (values.ndim - 1))
    return np.add.reduceat(weights * values, jm.starts[:-1], axis=0)
