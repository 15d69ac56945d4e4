"""Policies to begin with. What a policy may be, everywhere, `checks.policy_matrix` says."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Sized


def uniform_policy(jm: Sized) -> Floats:
    """The policy (S, A) of a JMDP or a simulator that plays every action equally often.

    Wherever a policy is asked for, integers (S,), the actions of a deterministic policy, will do
    too, and so will a function of the state that returns probabilities (A,) or an action.

    Example:
        >>> import jmdp_lib as jl
        >>> jl.uniform_policy(jl.two_queues(capacity=1)).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    shape = checks.sizes_of(jm)
    return np.full(shape, 1.0 / shape[1])


def epsilon_mixture(policy: ArrayLike, epsilon: float) -> Floats:
    """The policy (S, A) that plays a uniformly random action with probability epsilon.

    Example:
        >>> import jmdp_lib as jl
        >>> jl.epsilon_mixture(jl.goal_policy(2), epsilon=0.2).round(2).tolist()[0]
        [0.05, 0.85, 0.05, 0.05]
    """
    base = checks.distributions("policy", policy, "state", "action")
    epsilon = checks.probability("epsilon", epsilon)
    return (1.0 - epsilon) * base + epsilon / base.shape[1]
