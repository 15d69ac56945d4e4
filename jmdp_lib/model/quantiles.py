"""Outcome tables of a marginal MDP (`JMDP.from_mdp`): common random numbers.

A marginal MDP gives the outcomes of each action, not their joint distribution (Section 4). Here one
uniform number picks the outcomes of all actions, each from a list that goes from worst to best.
"""

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model.tables import Stacked, stacked

# Breakpoints of two cumulative distributions that differ by rounding alone are one breakpoint.
_SLIVER = 1e-14


def quantile(probs: Floats) -> tuple[Floats, Ints]:
    """Common random numbers: one uniform number through every action's inverse cdf.

    probs: (A, N) of the outcomes of each action. Returns the probabilities of tables (K,), and the
    outcomes in these (A, K).
    """
    cdfs = probs.cumsum(1)[:, :-1]  # the inner breakpoints; the last one is 1
    cuts = np.sort(np.append(cdfs, [0.0, 1.0]))
    widths = np.diff(cuts)
    keep = widths > _SLIVER
    middle = (cuts[:-1] + cuts[1:])[keep] / 2
    outcomes = [np.searchsorted(cdf, middle, side="right") for cdf in cdfs]
    return widths[keep] / widths[keep].sum(), np.stack(outcomes)


def quantile_tables(transition_probs: ArrayLike, rewards: ArrayLike, gamma: float) -> Stacked:
    """Tables in which one uniform number picks every action's outcome, from worst to best.

    The arguments are those of `JMDP.from_mdp`.
    """
    axes = ("state", "action", "next state")
    probs = checks.distributions("transition_probs", transition_probs, *axes)
    num_states, num_actions = probs.shape[:2]
    shape = (num_states, num_actions, num_states)
    checks.same_shape("transition_probs", probs.shape, shape, f"({', '.join(axes)})")
    ndim = 3 if checks.as_array("rewards", rewards).ndim == 3 else 2
    reward = checks.floats("rewards", rewards, *axes[:ndim], shape=shape[:ndim])
    reward = np.broadcast_to(reward.reshape(num_states, num_actions, -1), shape)
    order = _worst_to_best(probs, reward, gamma)
    coupled = []
    for best, own, paid in zip(order, np.take_along_axis(probs, order, -1), reward, strict=True):
        widths, picks = quantile(own)  # (K,), (A, K)
        successors = np.take_along_axis(best, picks, 1)
        outcomes = [np.take_along_axis(paid, successors, 1), successors]
        coupled.append((widths, np.stack(outcomes).T))
    return stacked(coupled)


def _worst_to_best(probs: Floats, reward: Floats, gamma: float) -> Ints:
    """Successors (S, A, S) of every state-action, sorted by r + gamma v of the uniform policy."""
    num_states, num_actions = probs.shape[:2]
    mean = (probs * reward).sum((1, 2)) / num_actions
    value = np.linalg.solve(np.eye(num_states) - gamma * probs.mean(1), mean)
    worth = reward + gamma * value
    # Rounded, so that outcomes of equal worth are not ordered by rounding errors.
    worth = np.round(worth / max(np.abs(worth).max(), np.finfo(float).tiny), 12)
    return np.argsort(worth, kind="stable")
