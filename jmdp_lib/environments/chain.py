"""The coupled reward chain (Section 6, Figure 3): same next state, anti-correlated rewards."""

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
