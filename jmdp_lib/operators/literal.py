"""T_2 as Definition 5.1 writes it: slow, short, and the reference for everything faster."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName, checked_coupling
from jmdp_lib.policies import Policy, policy_matrix


def apply_t2(
    jm: JMDP,
    policy: Policy,
    mean: ArrayLike,
    second: ArrayLike,
    *,
    coupling: CouplingName = DEFAULT_COUPLING,
) -> tuple[Floats, Floats]:
    """The joint Bellman operator $T_2$ (Definition 5.1), literally: one backup of every coordinate.

    Equal state-actions are one branch, with one reward, one successor *and* one next action,
    eq. (16), under every coupling.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        mean: (S, A), $mu$ of the collection $M = (mu, Sigma)$.
        second: (S, A, S, A), $Sigma$.
        coupling: tables that two state-actions draw. At one state, distinct actions share one
            table, eq. (18), or draw two independent ones with "independent". Distinct states draw
            independent tables, eq. (17), or those of one shared noise with "common".

    Returns:
        Mean (S, A) and second moments (S, A, S, A) of $T_2 M$.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.example_1(gamma=0.9)
        >>> mean, second = np.zeros((1, 2)), np.zeros((1, 2, 1, 2))
        >>> for _ in range(200):
        ...     mean, second = jl.apply_t2(jm, jl.uniform_policy(jm), mean, second)
        ...
        >>> print(mean[0].round(3), second[0, :, 0].round(3))
        [5. 5.] [[26.316 25.475]
         [25.475 26.316]]
    """
    policy = policy_matrix(jm, policy)
    sharing = checked_coupling(jm, coupling)
    mean, second = checks.collection("M", mean, second, jm)

    gamma = jm.gamma
    v = np.einsum("sa,sa->s", policy, mean)  # E M_mu(s, A')
    w = np.einsum("sa,satb,tb->st", policy, second, policy)  # E M_Sigma(s, A', t, B')
    d = np.einsum("sa,sasa->s", policy, second)  # E M_Sigma(s, A', s, A')

    new_mean = np.zeros_like(mean)
    new_second = np.zeros_like(second)
    tables = [range(jm.starts[s], jm.starts[s + 1]) for s in range(jm.num_states)]
    for s in range(jm.num_states):
        for i in tables[s]:
            new_mean[s] += jm.probs[i] * (jm.rewards[i] + gamma * v[jm.next_states[i]])
        for t in range(jm.num_states):
            shared = sharing.at_one_state if s == t else sharing.across_states
            draws = zip if shared else product  # one noise draws table i of both states
            for i, j in draws(tables[s], tables[t]):
                prob = jm.probs[i] if shared else jm.probs[i] * jm.probs[j]
                r, r_ = jm.rewards[i][:, None], jm.rewards[j][None, :]
                x, y = jm.next_states[i][:, None], jm.next_states[j][None, :]
                new_second[s, :, t] += prob * (
                    r * r_ + gamma * r * v[y] + gamma * r_ * v[x] + gamma**2 * w[x, y]
                )
        square = np.zeros(jm.num_actions)
        for i in tables[s]:
            r = jm.rewards[i]
            x = jm.next_states[i]
            square += jm.probs[i] * (r**2 + 2 * gamma * r * v[x] + gamma**2 * d[x])
        np.fill_diagonal(new_second[s, :, s], square)
    return new_mean, new_second
