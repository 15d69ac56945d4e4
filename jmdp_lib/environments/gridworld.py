"""The windy gridworld (Section 6, Figure 1): a gust couples the four moves of a cell."""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP

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
    actions: Ints = np.full(rows * columns, ACTIONS.index("R"))
    actions[columns - 1 :: columns] = ACTIONS.index("U")
    return np.eye(len(ACTIONS))[actions]


def _shape(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, tuple) and len(size) != 2:
        raise ValueError(f"size must be a number or (rows, columns), got {size}")
    rows, columns = size if isinstance(size, tuple) else (size, size)
    return checks.at_least("size", rows, 1), checks.at_least("size", columns, 1)
