"""The pair chain P_2 of Appendix B, which gives projections their weights.

It moves two branches, which are coupled while they share a state. Its diagonal is absorbing: two
branches at the same state-action have coalesced.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, gmres

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.policies import Policy, policy_matrix

RESTART = 60  # steps after which GMRES restarts, and the number of vectors that it holds


def pair_step(jm: JMDP, policy: Policy, law: ArrayLike) -> Floats:
    """One step of the pair chain $P_2$: the distribution of two branches a time step later.

    Branches at one state share a table; branches at one state-action have coalesced.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        law: (S, A, S, A), weights of pairs of state-actions, not negative.

    Returns:
        (S, A, S, A), the weights one step later.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.coupled_reward_chain(3)
        >>> law = np.zeros((3, 2, 3, 2))
        >>> law[0, 0, 0, 1] = 1.0  # two branches at the first state, with different actions
        >>> law = jl.pair_step(jm, jl.uniform_policy(jm), law)
        >>> float(law[1, :, 1, :].sum()), float(law[1, 0, 1, 1] + law[1, 1, 1, 0])
        (1.0, 0.5)
    """
    policy = policy_matrix(jm, policy)
    axes = ("state", "action", "other state", "other action")
    weights = checks.floats("law", law, *axes, shape=policy.shape * 2)
    checks.refuse("law", weights, weights < 0.0, "is negative", axes)
    return _acting(policy, _arrived(jm, weights))


def _arrived(jm: JMDP, weights: Floats) -> Floats:
    """Distribution of next states (S + 1, S): of pairs (S, S), then of coalesced branches (S,)."""
    num_states = jm.num_states
    states = np.arange(num_states)
    same = weights[states, :, states]  # (S, A, A)
    coalesced = np.einsum("saa->sa", same).copy()
    np.einsum("saa->sa", same)[...] = 0.0

    distinct = weights.copy()
    distinct[states, :, states] = 0.0
    side = num_states * jm.num_actions
    moved = jm.transitions.T @ (jm.transitions.T @ distinct.reshape(side, side)).T
    pairs = np.asarray(moved.T)  # (S, S)
    after = jm.next_states
    shared = jm.probs[:, None, None] * same[jm.table_states]
    np.add.at(pairs, (after[:, :, None], after[:, None, :]), shared)
    return np.vstack([pairs, jm.transitions.T @ coalesced.ravel()])


def _acting(policy: Floats, arrived: Floats) -> Floats:
    """Distribution (S, A, S, A) of pairs after branches in the states `arrived` draw actions."""
    after = np.einsum("sa,st,tb->satb", policy, arrived[:-1], policy)
    np.einsum("sasa->sa", after)[...] += policy * arrived[-1][:, None]
    return after


def start_law(jm: JMDP) -> Floats:
    """xi_0 (S, A, S, A): half uniform over all pairs, half over the pairs of one state."""
    num_states = jm.num_states
    num_actions = jm.num_actions
    law = np.full((num_states, num_actions) * 2, 0.5 / (num_states * num_actions) ** 2)
    states = np.arange(num_states)
    law[states, :, states] += 0.5 / (num_states * num_actions**2)
    return law


def occupancy(jm: JMDP, policy: Floats) -> Floats:
    """The discounted pair occupancy (S, A, S, A): d = (1 - eta) xi_0 + eta d P_2, eta = gamma.

    The unknown u is over the states at which branches arrive: it has A^2 times fewer entries.
    """
    eta = jm.gamma
    law = (1.0 - eta) * start_law(jm)

    def acted(u: Floats) -> Floats:
        return _acting(policy, u.reshape(-1, jm.num_states))

    def moved(u: Floats) -> Floats:
        return _arrived(jm, acted(u)).ravel()

    start = _arrived(jm, law).ravel()
    operator = LinearOperator((start.size,) * 2, matvec=lambda u: u - eta * moved(u), dtype=float)
    rounding = max(1e-13, 1e-14 / (1.0 - eta))
    with progress(None, "pair occupancy", "step") as bar:
        arrivals, failed = gmres(
            operator,
            start,
            rtol=rounding,
            restart=RESTART,
            callback=lambda _: bar.update(),
            callback_type="pr_norm",
        )
    if failed:
        raise ValueError(f"the pair occupancy at discount {eta}: GMRES did not converge")
    last = start + eta * moved(np.maximum(arrivals, 0.0))
    total = law + eta * acted(last)  # at least `law`, also after rounding
    return total / total.sum()


def stationary_pairs(jm: JMDP, policy: Floats) -> Floats:
    """The paper's weights: the stationary distribution of the pair chain, (S, A, S, A).

    It is on the diagonal, with the stationary distribution of one branch: two branches of an
    ergodic chain meet, draw the same action sooner or later, and coalesce (decision 10). A chain
    over state-actions that is not ergodic with full support (Assumption B.2) is refused.
    """
    why = '(Assumption B.2); use weights="occupancy"'
    sizes, vectors = np.linalg.eig(PairOperator(jm, policy).kernel.toarray().T)
    lasting = np.abs(sizes) > 1.0 - 1e-9
    if lasting.sum() > 1:
        raise ValueError(f"the chain is not ergodic: it has {lasting.sum()} cycles or ends {why}")
    alone = np.abs(vectors[:, lasting])
    weights = policy * (alone / alone.sum())
    idle = f"leaves the state-action without stationary weight {why}"
    checks.refuse("policy", policy, weights < 1e-15, idle, ["state", "action"])
    law = np.zeros(policy.shape * 2)
    np.einsum("sasa->sa", law)[...] = weights
    return law
