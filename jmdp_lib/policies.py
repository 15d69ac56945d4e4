"""Stationary policies pi(a | s) as (S, A) matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP


def uniform_policy(jm: JMDP) -> Floats:
    """Every action equally likely, (S, A)."""
    return np.full((jm.num_states, jm.num_actions), 1.0 / jm.num_actions)


def deterministic_policy(jm: JMDP, actions: ArrayLike) -> Floats:
    """The policy that plays actions[s] (S,) in state s, as (S, A)."""
    chosen = checks.integers("actions", actions, "state")
    checks.same_shape("actions", chosen.shape, (jm.num_states,), "(num_states,)")
    for s, a in enumerate(chosen):
        if not 0 <= a < jm.num_actions:
            raise IndexError(f"actions[{s}] = {a} is not an action: there are {jm.num_actions}")
    return np.eye(jm.num_actions)[chosen]


def epsilon_mixture(policy: ArrayLike, epsilon: float) -> Floats:
    """With probability epsilon a uniformly random action, else the policy's own, (S, A)."""
    base = checks.distributions("policy", policy, "state", "action")
    epsilon = checks.probability("epsilon", epsilon)
    return (1.0 - epsilon) * base + epsilon / base.shape[1]
