"""Stationary policies pi(a | s) as (S, A) matrices.

Wherever a policy is asked for, integers (S,) will do too: actions[s] is what a deterministic
policy plays in state s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Sized


def uniform_policy(jm: Sized) -> Floats:
    """Every action equally likely, (S, A), in a JMDP or a simulator."""
    shape = checks.sizes_of(jm)
    return np.full(shape, 1.0 / shape[1])


def epsilon_mixture(policy: ArrayLike, epsilon: float) -> Floats:
    """With probability epsilon a uniformly random action, else the policy's own, (S, A)."""
    base = checks.distributions("policy", policy, "state", "action")
    epsilon = checks.probability("epsilon", epsilon)
    return (1.0 - epsilon) * base + epsilon / base.shape[1]
