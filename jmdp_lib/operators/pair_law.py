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


def first_to_arrive(jm: JMDP, policy: ArrayLike, target: int, tol: float = 1e-12) -> Floats:
    """(S, A, A), the probability at [s, a, b] that branch a is in `target` strictly before b.

    Iterates h = P_2 h from below, with h = 1 where only the first branch has arrived and 0 where
    the second has or both have merged, until no entry moves by more than `tol`.
    """
    matrix = checks.policy_matrix(jm, policy)
    target = checks.index("target", target, jm.num_states)
    tol = checks.positive("tol", tol)
    states, x = np.arange(jm.num_states), jm.next_states
    chain = np.einsum("sa,sat->st", matrix, jm.marginal_mdp()[0])
    ahead, change = np.zeros((jm.num_states, jm.num_states)), np.inf
    while change > tol:
        ahead[target], ahead[:, target] = 1.0, 0.0
        first = np.zeros((jm.num_states, jm.num_actions, jm.num_actions))
        reads_same = jm.probs[:, None, None] * ahead[x[:, :, None], x[:, None, :]]
        np.add.at(first, jm.table_states, reads_same)
        np.einsum("saa->sa", first)[...] = 0.0  # equal actions are one branch
        after = chain @ ahead @ chain.T
        after[states, states] = np.einsum("sa,sab,sb->s", matrix, first, matrix)
        after[target], after[:, target] = 1.0, 0.0
        change = float(np.abs(after - ahead).max())
        ahead = after
    return first
