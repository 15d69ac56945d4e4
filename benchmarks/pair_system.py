"""What a careful user would write with SciPy: one system for pairs of states gives all gaps.

With y = R + gamma m(S') the covariances c(s, t) of Z(s, A) and Z(t, B), for independent actions,
obey c = c_0 + gamma^2 P_2 c: two branches at distinct states move independently, and two at one
state by the same table. Branches that take the same action there are one, with the variance v.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, bicgstab, spsolve


def gap_variances(jm, policy, rtol=1e-10):
    """(S, A, A) under `coupling="joint"`, for a policy (S, A)."""
    size, num_actions = policy.shape
    states, probs, to = jm.table_states, jm.probs, jm.next_states
    weights = probs[:, None] * policy[states]  # (N, A), of a table and an action
    rows = np.repeat(states, num_actions)
    chain = sparse.csr_array((weights.ravel(), (rows, to.ravel())), (size, size))

    def per_state(values):
        return np.bincount(states, probs * values, size)

    def solved(discount, right):
        return spsolve(sparse.eye_array(size, format="csc") - discount * chain.tocsc(), right)

    mean = solved(jm.gamma, np.bincount(rows, (weights * jm.rewards).ravel(), size))
    y = jm.rewards + jm.gamma * mean[to]
    own = np.bincount(rows, (weights * y**2).ravel(), size) - mean**2
    v = solved(jm.gamma**2, own)
    square = policy[states] ** 2
    both = (policy[states] * y).sum(1) ** 2 + jm.gamma**2 * (square * v[to]).sum(1)
    pairs = [(a, b) for a in range(num_actions) for b in range(num_actions) if a != b]
    chances = [probs * policy[states, a] * policy[states, b] for a, b in pairs]

    def moved(flat):
        c = flat.reshape(size, size)
        after = chain @ (chain @ c).T
        met = sum(p * c[to[:, a], to[:, b]] for p, (a, b) in zip(chances, pairs, strict=True))
        np.fill_diagonal(after, np.bincount(states, met, size))
        return flat - jm.gamma**2 * after.ravel()

    start = np.diag(per_state(both) - mean**2).ravel()
    c, failed = bicgstab(LinearOperator((size**2, size**2), moved), start, x0=start, rtol=rtol)
    assert not failed, failed
    solution = c.reshape(size, size)
    gaps = np.zeros((size, num_actions, num_actions))
    for a, b in pairs:
        apart = y[:, a] - y[:, b]
        left = v[to[:, a]] + v[to[:, b]] - 2.0 * solution[to[:, a], to[:, b]]
        gaps[:, a, b] = per_state(apart**2 + jm.gamma**2 * left) - per_state(apart) ** 2
    return gaps
