"""The paper's worlds: windy gridworld, coupled reward chain, and Examples 1, 2.1 and 2.2.

In the gridworld (Figure 1), a gust couples the four moves of a cell. In the chain (Figure 3), two
actions share one next state and have anti-correlated rewards; the examples have equal marginals and
different joint laws.
"""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP, room_for_tables

ACTIONS = ("U", "R", "D", "L")
_MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # (row, column), row 0 on top


def windy_gridworld(
    size: int | tuple[int, int] = 5,
    gust_prob: float = 0.2,
    gamma: float = 0.95,
    gust: str = "L",
) -> JMDP:
    """The windy gridworld (Figure 1) with actions 0 to 3: up, right, down, left.

    `size` is the side of a square grid, or (rows, columns).
    States count row by row from the top left: cell (row, column) is state row * columns + column.
    The goal, top right, is absorbing; every transition into or inside it earns 1, all others 0.
    Each table is one gust draw *for all four actions*: with probability gust_prob the agent is
    moved one more cell in direction `gust` (left in the paper) after its own move. Walls clip
    both moves.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gust_prob=0.2)
        >>> jm
        JMDP(num_states=9, num_actions=4, num_tables=18, gamma=0.95)
        >>> calm, gust = jm.next_states[jm.table_states == 4]
        >>> print("from the centre, U R D L lead to", calm, "and in a gust to", gust)
        from the centre, U R D L lead to [1 5 7 3] and in a gust to [0 4 6 3]
    """
    rows, columns = _shape(size)
    gust_prob = checks.probability("gust_prob", gust_prob)
    wind = _MOVES[ACTIONS.index(checks.one_of("gust", gust, ACTIONS))]
    room_for_tables("size", rows * columns, 2, len(ACTIONS))
    limit = np.array([rows - 1, columns - 1])
    cells = np.stack(np.divmod(np.arange(rows * columns), columns), axis=-1)  # (S, 2)
    moved = np.clip(cells[:, None] + _MOVES, 0, limit)  # (S, A, 2)
    blown = np.clip(moved + wind, 0, limit)
    landed = np.stack([moved, blown], axis=1) @ np.array([columns, 1])  # (S, K=2, A)
    goal = columns - 1
    landed[goal] = goal
    probs = np.tile([1.0 - gust_prob, gust_prob], (rows * columns, 1))
    return JMDP(probs, (landed == goal).astype(float), landed, gamma)


def goal_policy(size: int | tuple[int, int] = 5) -> Floats:
    """The policy of Figure 1, (S, 4): right until the last column, then up.

    Example:
        >>> import jmdp_lib as jl
        >>> policy = jl.goal_policy(3)
        >>> policy.shape
        (9, 4)
        >>> print(policy.argmax(axis=1).reshape(3, 3))
        [[1 1 0]
         [1 1 0]
         [1 1 0]]
    """
    rows, columns = _shape(size)
    instead = "use a function of the state, which local_jipe2 takes"
    require(48.0 * rows * columns, f"size: goal_policy of {rows * columns:,} states", instead)
    actions: Ints = np.full(rows * columns, ACTIONS.index("R"))
    actions[columns - 1 :: columns] = ACTIONS.index("U")
    return np.eye(len(ACTIONS))[actions]


def _shape(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, tuple) and len(size) != 2:
        raise ValueError(f"size must be a number or (rows, columns), got {size}")
    rows, columns = size if isinstance(size, tuple) else (size, size)
    return checks.at_least("size", rows, 1), checks.at_least("size", columns, 1)


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
    room_for_tables("num_states", num_states, 2, 2)
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
