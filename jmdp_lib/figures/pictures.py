"""Figures 1 and 3: environments, drawn from their outcome tables."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP

GOAL, GUST, FIRST, SECOND = "#cdebdd", "#D55E00", "#0072B2", "#D55E00"


def goal_states(jm: JMDP) -> Ints:
    """States that no action ever leaves and that pay whatever happens."""
    stays = (jm.next_states == jm.table_states[:, None]).all(1) & (jm.rewards > 0).all(1)
    return np.flatnonzero([stays[jm.table_states == s].all() for s in range(jm.num_states)])


def gust_of(jm: JMDP, columns: int) -> tuple[float, tuple[int, int]]:
    """Probability of the second table, and how it moves cells against the first: (rows, columns).

    The tables of a windy gridworld are calm and gust; where walls clip, a gust may do nothing, so
    the largest shift is the wind's.
    """
    tables = np.diff(jm.starts)
    if (tables == 1).all():
        return 0.0, (0, 0)
    if not (tables == 2).all():
        raise ValueError(
            f"a gridworld has two tables in each state, calm and gust; got {np.unique(tables)}"
        )
    calm, gust = (np.stack(np.divmod(jm.next_states[k::2], columns), -1) for k in (0, 1))
    shift = (gust - calm).reshape(-1, 2)
    row, column = shift[np.abs(shift).sum(1).argmax()]
    return float(jm.probs[1]), (int(row), int(column))


def gridworld(ax: Axes, jm: JMDP, policy: ArrayLike, columns: int) -> Axes:
    """Figure 1: cells, goal, wind and policy, read from the tables of a grid `columns` wide.

    Black: where the policy's actions lead in calm air, the more likely the darker. Orange: where a
    gust takes the same actions instead; a ring where the agent stays. States count row by row.
    """
    matrix = checks.policy_matrix(jm, policy)
    rows = checks.grid_rows(jm.num_states, columns)
    prob, wind = gust_of(jm, columns)
    prob = prob if any(wind) else 0.0  # one that moves nobody: in a single column
    goals = goal_states(jm)
    for s in range(jm.num_states):
        row, column = divmod(s, columns)
        face = GOAL if s in goals else "white"
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fc=face, ec="black", lw=0.8))
        if s in goals:
            ax.text(column, row, "Goal", ha="center", va="center", weight="bold")
            continue
        for a in np.flatnonzero(matrix[s]):
            _move(ax, s, jm.next_states[jm.starts[s], a], columns, "black", matrix[s, a], 0.0)
            if prob > 0:
                blown = jm.next_states[jm.starts[s] + 1, a]
                _move(ax, s, blown, columns, GUST, matrix[s, a], 0.16)
    if prob > 0:
        _wind(ax, wind, prob, columns)
        ax.text((columns - 1) / 2, rows - 0.4, "black: in calm air\n", ha="center", va="top",
                fontsize=6.5, linespacing=1.4)  # fmt: skip
        ax.text((columns - 1) / 2, rows - 0.4, "\norange: in a gust (ring: stays)", ha="center",
                va="top", fontsize=6.5, color=GUST, linespacing=1.4)  # fmt: skip
    ax.set_xlim(-0.52, columns - 0.48)
    ax.set_ylim(rows - 0.48 + 0.5 * (prob > 0), -0.52 - 0.45 * (prob > 0))
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def _move(
    ax: Axes, start: int, end: int, columns: int, color: str, weight: float, aside: float
) -> None:
    """An arrow from cell to cell that stops short of the next centre; a ring for staying."""
    here, there = (np.array(divmod(int(s), columns)[::-1], dtype=float) for s in (start, end))
    here = here + np.array([0.0, aside])
    if start == end:
        ax.add_patch(Circle(tuple(here), 0.06, fc="none", ec=color, lw=1.0, alpha=weight))
        return
    tip = here + 0.62 * (there + np.array([0.0, aside]) - here)
    arrow = FancyArrowPatch(tuple(here), tuple(tip), arrowstyle="-|>", mutation_scale=8, lw=1.1,
                            color=color, alpha=weight, shrinkA=0, shrinkB=0, zorder=3)  # fmt: skip
    ax.add_patch(arrow)


def _wind(ax: Axes, wind: tuple[int, int], prob: float, columns: int) -> None:
    middle, length = np.array([(columns - 1) / 2, -0.68]), 0.35 * columns
    way = np.array(wind[::-1], dtype=float) * (length if wind[1] else 0.12)
    arrow = FancyArrowPatch(tuple(middle - way), tuple(middle + way), arrowstyle="-|>", color=GUST,
                            mutation_scale=9, lw=1.4, shrinkA=0, shrinkB=0)  # fmt: skip
    ax.add_patch(arrow)
    name = {(0, -1): "leftward", (0, 1): "rightward", (-1, 0): "upward", (1, 0): "downward"}[wind]
    ax.text(middle[0], -0.77, f"{name} gust, probability {prob:g}", ha="center", va="bottom",
            color=GUST, fontsize=7)  # fmt: skip


def transition(ax: Axes, jm: JMDP, state: int, names: tuple[str, str] = ("s_i", "s_{i+1}")) -> Axes:
    """Figure 3: one transition of a chain with two actions that lead to the same next state.

    Each arrow says what its action earns in the first and in the second table.
    """
    here = slice(jm.starts[state], jm.starts[state + 1])
    probs, rewards, after = jm.probs[here], jm.rewards[here], jm.next_states[here]
    if jm.num_actions != 2 or np.unique(after).size != 1 or after[0, 0] == state:
        raise ValueError(
            f"state {state} must have two actions that lead to one other state, "
            f"found {jm.num_actions} that lead to {np.unique(after).tolist()}"
        )
    for x, name in zip((0.0, 3.2), names, strict=True):
        ax.add_patch(Circle((x, 0.0), 0.42, fc="white", ec="black", lw=0.9, zorder=3))
        ax.text(x, 0.0, f"${name}$", ha="center", va="center", zorder=4)
    for a, (color, side) in enumerate(((FIRST, 1), (SECOND, -1))):
        arrow = FancyArrowPatch((0.3, 0.3 * side), (2.9, 0.3 * side), color=color, lw=1.6,
                                connectionstyle=f"arc3,rad={-0.28 * side}", arrowstyle="-|>",
                                mutation_scale=10, shrinkA=0, shrinkB=0)  # fmt: skip
        ax.add_patch(arrow)
        pays = " or ".join(f"{r:g}".replace("-", "\u2212") for r in rewards[:, a])
        ax.text(1.6, 1.0 * side, f"$a_{a + 1}$ pays {pays}", ha="center", va="center", color=color,
                fontsize=8)  # fmt: skip
    odds = ", ".join(f"{p:g}" for p in probs)
    joint = f"{_correlation(probs, rewards):g}".replace("-", "\u2212")
    ax.text(1.6, 0.0, f"one draw for both\n(odds {odds})\ncorrelation {joint}",
            ha="center", va="center", fontsize=6.5, color="0.3", linespacing=1.4)  # fmt: skip
    ax.set_xlim(-0.6, 3.8)
    ax.set_ylim(-1.3, 1.3)
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def _correlation(probs: Floats, rewards: Floats) -> float:
    """Of the two columns of rewards (K, 2) under probs (K,)."""
    off = rewards - probs @ rewards
    covariance = (probs * off.T) @ off
    return float(round(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]), 12))
