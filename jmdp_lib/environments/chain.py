"""The paper's small models: the coupled reward chain and Examples 1 and 2.

The chain (Section 6, Figure 3) has one next state and anti-correlated rewards; the examples have
equal marginals and different joint laws.
"""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model import JMDP


def coupled_reward_chain(num_states: int = 25, gamma: float = 0.95, rewards: str = "unit") -> JMDP:
    """s_0 -> s_1 -> ... -> s_{n-1}; U ~ Bernoulli(1/2) afresh at every state.

    The two actions earn (U, 1 - U) with rewards="unit", or (2U - 1, 1 - 2U) with "signed" (the
    paper's picture: +r_i and -r_i). The last state is absorbing and pays 1 to both. Correlations
    of the returns are the same for both scales.
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
    """One state, two actions, U ~ Bernoulli(1/2), rewards R^(1) = U and R^(2) = 1 - U."""
    return JMDP.from_step(1, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(u == a), 0))


def example_2_1(gamma: float = 0.9) -> JMDP:
    """Two states, U ~ Bernoulli(1/2), both actions move to U: S'^(1) = S'^(2).

    The paper leaves the rewards open; here state 1 pays 1 and state 0 pays nothing, whatever the
    action, so that every dependence of the returns comes from the transitions.
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), u))


def example_2_2(gamma: float = 0.9) -> JMDP:
    """As example_2_1, but the actions move apart: S'^(1) = U and S'^(2) = 1 - U."""
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), 1 - u if a else u))
