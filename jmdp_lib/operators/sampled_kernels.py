"""The recursion of Theorem 5.4 compiled, for JMDPs whose tables are known.

Coordinates are numbered: first the X = S * A means, then second moments. Each update picks one,
draws its sampled backup (the rules of `sampled.sample_t2`), and moves it by scale / visits^power.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from jmdp_lib.sampling import pick, pick_cell


@njit(nogil=True, cache=True)
def full_updates(
    rng: Any, count: int, values: Any, visits: Any, scale: float, power: float,
    threshold: Any, cell: Any, gamma: float, num_actions: int, starts: Any, table_cdf: Any,
    rewards: Any, next_states: Any, policy_cdf: Any,
) -> None:  # fmt: skip
    """values (X + X * X,): mu(x) at x, Sigma(x, y) at X + x * X + y."""
    size = starts.size - 1
    num = size * num_actions
    for _ in range(count):
        i = cell[pick_cell(rng, 0, threshold.size, threshold)]
        second = i >= num
        x = (i - num) // num if second else i
        y = (i - num) % num if second else x
        s, a = x // num_actions, x % num_actions
        t, b = y // num_actions, y % num_actions
        k = pick(rng, table_cdf, starts[s], starts[s + 1])
        r, u = rewards[k, a], next_states[k, a]
        one = pick(rng, policy_cdf, u * num_actions, (u + 1) * num_actions)
        if not second:
            target = r + gamma * values[one]
        elif x == y:
            same = values[num + one * num + one]
            target = r * r + 2.0 * gamma * r * values[one] + gamma * gamma * same
        else:
            if s != t:
                k = pick(rng, table_cdf, starts[t], starts[t + 1])
            q, v = rewards[k, b], next_states[k, b]
            two = pick(rng, policy_cdf, v * num_actions, (v + 1) * num_actions)
            target = r * q + gamma * (r * values[two] + q * values[one])
            target += gamma * gamma * values[num + one * num + two]
        visits[i] += 1
        values[i] += scale * float(visits[i]) ** -power * (target - values[i])


@njit(nogil=True, cache=True)
def _mean_at(values: Any, policy: Any, u: int) -> float:
    total, num_actions = 0.0, policy.shape[1]
    for a in range(num_actions):
        total += policy[u, a] * values[u * num_actions + a]
    return total


@njit(nogil=True, cache=True)
def _pair_at(values: Any, policy: Any, first_block: int, first_cross: int, u: int, v: int) -> float:
    """W(u, v): kept between states, an average of the block at one."""
    size, num_actions = policy.shape
    if u != v:
        return values[first_cross + u * size + v]
    total = 0.0
    for a in range(num_actions):
        if policy[u, a] > 0.0:
            row = first_block + (u * num_actions + a) * num_actions
            for b in range(num_actions):
                total += policy[u, a] * policy[u, b] * values[row + b]
    return total


@njit(nogil=True, cache=True)
def _single_at(values: Any, policy: Any, first_block: int, u: int) -> float:
    """D(u): the average of the diagonal of the block."""
    total, num_actions = 0.0, policy.shape[1]
    for a in range(num_actions):
        total += policy[u, a] * values[first_block + (u * num_actions + a) * num_actions + a]
    return total


@njit(nogil=True, cache=True)
def _spread_at(values: Any, policy: Any, u: int) -> float:
    """The variance of mu(u, A) over the policy."""
    mean, total, num_actions = _mean_at(values, policy, u), 0.0, policy.shape[1]
    for a in range(num_actions):
        total += policy[u, a] * (values[u * num_actions + a] - mean) ** 2
    return total


@njit(nogil=True, cache=True)
def collapsed_updates(
    rng: Any, count: int, values: Any, visits: Any, scale: float, power: float,
    threshold: Any, cell: Any, gamma: float, policy: Any, centred: bool, starts: Any,
    table_cdf: Any, rewards: Any, next_states: Any, policy_cdf: Any,
) -> None:  # fmt: skip
    """values: mu (S, A), same-state Sigma (S, A, A), W (S, S) between states, one after another.

    The next action is not drawn but averaged over, and between states neither is kept. `centred`:
    covariances in the place of second moments (see `sampled.sample_collapsed`).
    """
    size, num_actions = policy.shape
    first_block = size * num_actions
    first_cross = first_block + size * num_actions * num_actions
    for _ in range(count):
        i = cell[pick_cell(rng, 0, threshold.size, threshold)]
        if i < first_block:
            s, a = i // num_actions, i % num_actions
            k = pick(rng, table_cdf, starts[s], starts[s + 1])
            target = rewards[k, a] + gamma * _mean_at(values, policy, next_states[k, a])
        else:
            if i < first_cross:
                pair = i - first_block
                s = t = pair // (num_actions * num_actions)
                a, b = pair // num_actions % num_actions, pair % num_actions
                k = j = pick(rng, table_cdf, starts[s], starts[s + 1])
            else:
                s, t = (i - first_cross) // size, (i - first_cross) % size
                a = pick(rng, policy_cdf, s * num_actions, (s + 1) * num_actions) - s * num_actions
                b = pick(rng, policy_cdf, t * num_actions, (t + 1) * num_actions) - t * num_actions
                k = pick(rng, table_cdf, starts[s], starts[s + 1])
                j = pick(rng, table_cdf, starts[t], starts[t + 1])
            r, u = rewards[k, a], next_states[k, a]
            q, v = rewards[j, b], next_states[j, b]
            here, there = _mean_at(values, policy, u), _mean_at(values, policy, v)
            if s == t and a == b:
                later = _single_at(values, policy, first_block, u)
                if centred:
                    later += _spread_at(values, policy, u)
            else:
                later = _pair_at(values, policy, first_block, first_cross, u, v)
            if not centred:
                target = r * q + gamma * (r * there + q * here)
            elif s == t:
                target = r + gamma * here - values[s * num_actions + a]
                target *= q + gamma * there - values[t * num_actions + b]
            else:
                target = 0.0
            target += gamma * gamma * later
        visits[i] += 1
        values[i] += scale * float(visits[i]) ** -power * (target - values[i])


def full_blocks(num_states: int, num_actions: int) -> Any:
    """(X + X * X,) the block of every coordinate: 0 mu, 1 diagonal, 2 same state, 3 cross."""
    num = num_states * num_actions
    state = np.arange(num) // num_actions
    second = np.where(state[:, None] == state[None, :], 2, 3)
    np.fill_diagonal(second, 1)
    return np.concatenate([np.zeros(num, dtype=np.int64), second.ravel()])


def collapsed_blocks(num_states: int, num_actions: int) -> Any:
    """The block of every collapsed coordinate; -1 for W(s, s), which follows from the others."""
    same = np.full((num_states, num_actions, num_actions), 2)
    same[:, np.arange(num_actions), np.arange(num_actions)] = 1
    cross = np.where(np.eye(num_states, dtype=bool), -1, 3)
    means = np.zeros(num_states * num_actions, dtype=np.int64)
    return np.concatenate([means, same.ravel(), cross.ravel()])
