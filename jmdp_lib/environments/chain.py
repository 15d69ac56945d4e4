"""The paper's small models: the coupled reward chain and Examples 1 and 2.

The chain (Section 6, Figure 3) has one next state and anti-correlated rewards; the examples have
equal marginals and different joint laws.
"""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model import JMDP


def coupled_reward_chain(num_states: int = 25, gamma: float = 0.95, rewards: str = "unit") -> JMDP:
    """The coupled reward chain $s_0 -> s_1 -> ... -> s_{n-1}$ with two actions (Figure 3).

    Every state draws its own fair coin $U$, 0 or 1. With rewards="unit" the two actions earn $U$
    and $1 - U$; with "signed" they earn $2U - 1$ and $1 - 2U$, as in the paper's picture. Both move
    to the next state. The last state is absorbing and pays 1 to both. The correlations of the
    returns are the same for both scales.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> print(f"{moments.variance[0, 0]:.6f} {moments.correlation[0, 0, 1]:.6f}")
        0.616525 -0.272475
    """
    num_states = checks.at_least("num_states", num_states, 1)
    scale = checks.one_of("rewards", rewards, ("unit", "signed"))
    pays = np.eye(2) if scale == "unit" else 2.0 * np.eye(2) - 1.0
    reward = np.tile(pays, (num_states, 1, 1))  # (S, K=2, A=2): table k favours action k
    reward[-1] = 1.0
    after = np.minimum(np.arange(num_states) + 1, num_states - 1)
    successor = np.tile(after[:, None, None], (1, 2, 2))
    return JMDP(np.full((num_states, 2), 0.5), reward, successor, gamma)


def example_1(gamma: float = 0.9) -> JMDP:
    """Example 1: one state and a fair coin $U$; the rewards are $R^{(1)} = U$, $R^{(2)} = 1 - U$.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> rewards, _ = jl.example_1().query(0, [0, 1], np.random.default_rng(0))
        >>> print(rewards, "add up to one, whatever the coin")
        [0. 1.] add up to one, whatever the coin
    """
    return JMDP.from_step(1, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(u == a), 0))


def example_2_1(gamma: float = 0.9) -> JMDP:
    """Example 2.1: two states and a fair coin $U$; both actions move to state $U$.

    The paper leaves the rewards open; here state 1 pays 1 and state 0 pays nothing, whatever the
    action, so that every dependence of the returns comes from the transitions.

    Example:
        >>> import jmdp_lib as jl
        >>> moments = jl.jipe2(jl.example_2_1(), [0, 0]).moments
        >>> print(f"{moments.gap_mean[0, 0, 1]:.3f} {moments.gap_variance[0, 0, 1]:.3f}")
        0.000 0.000
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), u))


def example_2_2(gamma: float = 0.9) -> JMDP:
    """Example 2.2: as `example_2_1`, but the actions move apart, to $U$ and to $1 - U$.

    Example:
        >>> import jmdp_lib as jl
        >>> moments = jl.jipe2(jl.example_2_2(), [0, 0]).moments
        >>> print(f"{moments.gap_mean[0, 0, 1]:.3f} {moments.gap_variance[0, 0, 1]:.3f}")
        0.000 1.361
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), 1 - u if a else u))
