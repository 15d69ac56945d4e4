"""The pair chain P_2 of Appendix B: two branches, coupled while they share a state.

Its diagonal is absorbing: two branches at the same state-action are one branch and stay so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP


def pair_step(jm: JMDP, policy: ArrayLike, law: ArrayLike) -> Floats:
    """One step of the pair chain: law (S, A, S, A) of (X, Y) -> law of (X', Y'), rho P_2."""
    matrix, weights = checks.policy_matrix(jm, policy), np.asarray(law, dtype=float)
    checks.same_shape("law", weights.shape, matrix.shape * 2, "(S, A, S, A)")
    return push(jm, matrix, weights)


def push(jm: JMDP, policy: Floats, weights: Floats) -> Floats:
    """`pair_step` on arrays that were checked."""
    num_states, num_actions = policy.shape
    states = np.arange(num_states)
    same = weights[states, :, states].copy()  # (S, A, A)
    alone = np.einsum("saa->sa", same).copy()  # one branch
    np.einsum("saa->sa", same)[...] = 0.0

    apart = weights.copy()
    apart[states, :, states] = 0.0
    side = num_states * num_actions
    moved = jm.transitions.T @ (jm.transitions.T @ apart.reshape(side, side)).T
    pairs = np.asarray(moved.T)  # (S, S), law of (S', T') of two branches
    x = jm.next_states
    shared = jm.probs[:, None, None] * same[jm.table_states]
    np.add.at(pairs, (x[:, :, None], x[:, None, :]), shared)
    singles = np.zeros(num_states)
    np.add.at(singles, x, jm.probs[:, None] * alone[jm.table_states])

    after = np.einsum("sa,st,tb->satb", policy, pairs, policy)
    actions = np.arange(num_actions)
    after[states[:, None], actions, states[:, None], actions] += policy * singles[:, None]
    return after


def mass_apart(law: Floats) -> float:
    """The mass of a pair law (S, A, S, A) off the diagonal: pairs that are still two branches."""
    return float(law.sum() - np.einsum("sasa->", law))
