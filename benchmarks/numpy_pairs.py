"""What a careful user would write without a compiler: simulation vectorised over its runs."""

import numpy as np


def cumulative(jm):
    """(S, K) cumulative probabilities of the tables of each state, 1 from its last table on."""
    sizes = np.diff(jm.starts)
    table_cdf = np.ones((jm.num_states, sizes.max()))
    for s, probs in enumerate(np.split(jm.probs, jm.starts[1:-1])):
        table_cdf[s, : sizes[s]] = np.cumsum(probs)
    return table_cdf


def simulate_pairs_numpy(jm, policy, state, actions, num_pairs, steps, rng):
    """Returns (num_pairs, 2), the same process as `jmdp_lib.simulate_pairs`."""
    table_cdf = cumulative(jm)
    action_cdf = np.cumsum(policy, axis=1)

    def pick(cdf, rows):
        return (cdf[rows, :-1] <= rng.random(num_pairs)[:, None]).sum(1)

    x, y = np.full(num_pairs, state), np.full(num_pairs, state)
    a, b = np.full(num_pairs, actions[0]), np.full(num_pairs, actions[1])
    left, right, weight = np.zeros(num_pairs), np.zeros(num_pairs), 1.0
    for _ in range(steps):
        merged = (x == y) & (a == b)
        i = jm.starts[x] + pick(table_cdf, x)
        j = np.where(x == y, i, jm.starts[y] + pick(table_cdf, y))
        left += weight * jm.rewards[i, a]
        right += weight * jm.rewards[j, b]
        x, y = jm.next_states[i, a], jm.next_states[j, b]
        a = pick(action_cdf, x)
        b = np.where(merged, a, pick(action_cdf, y))
        weight *= jm.gamma
    return np.stack([left, right], axis=1)


def simulate_returns_numpy(jm, policy, num_samples, steps, rng):
    """Returns (num_samples, S, A), the same process as `jmdp_lib.simulate_returns`."""
    actions = np.arange(jm.num_actions)
    table_cdf = cumulative(jm)
    action_cdf = np.cumsum(policy, axis=1)
    runs = np.arange(num_samples)[:, None, None]
    z = np.zeros((num_samples, *policy.shape))
    for _ in range(steps):
        u = rng.random((num_samples, jm.num_states, 1))
        table = (jm.starts[:-1] + (table_cdf[:, :-1] <= u).sum(2))[:, :, None]
        x = jm.next_states[table, actions]
        a = (action_cdf[x, :-1] <= rng.random((*x.shape, 1))).sum(3)
        z = jm.rewards[table, actions] + jm.gamma * z[runs, x, a]
    return z
