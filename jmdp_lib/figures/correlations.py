"""Figures 4 and 5: correlations of the returns of a state's actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from jmdp_lib import checks
from jmdp_lib.checks import Floats

COLORS = "RdBu_r"
# A return that does not vary has no correlation with anything: hatched, not coloured.
_NOTHING: dict[str, Any] = {"fc": "0.93", "ec": "0.7", "hatch": "//////", "lw": 0.0}


def correlation_matrix(
    ax: Axes, matrix: Floats, labels: Sequence[str], corner: tuple[float, float] = (0.0, 0.0),
    fontsize: float = 7.0,
) -> Axes:  # fmt: skip
    """One correlation matrix (A, A) with its numbers, its first entry centred at `corner`.

    Entries that are nan, one of the variances being zero, are hatched grey.
    """
    size, (x0, y0) = len(matrix), corner
    if matrix.shape != (size, size) or len(labels) != size:
        raise ValueError(f"a matrix of shape {matrix.shape} has no {len(labels)} actions {labels}")
    colors = plt.get_cmap(COLORS)
    for i, j in np.ndindex(size, size):
        value, cell = float(matrix[i, j]), (x0 + j - 0.5, y0 + i - 0.5)
        look: dict[str, Any] = (
            _NOTHING if np.isnan(value) else {"fc": colors((value + 1) / 2), "lw": 0.0}
        )
        ax.add_patch(Rectangle(cell, 1, 1, **look))
        if not np.isnan(value) and fontsize:
            shade = "white" if abs(value) > 0.6 else "black"
            ax.text(x0 + j, y0 + i, short(value), ha="center", va="center", color=shade,
                    fontsize=fontsize)  # fmt: skip
    outline = (x0 - 0.5, y0 - 0.5)
    ax.add_patch(Rectangle(outline, size, size, fc="none", ec="black", lw=0.6, zorder=3))
    ax.set_xlim(x0 - 0.55, x0 + size - 0.45)
    ax.set_ylim(y0 + size - 0.45, y0 - 0.55)
    ax.set_xticks(x0 + np.arange(size), labels)
    ax.set_yticks(y0 + np.arange(size), labels)
    ax.tick_params(length=0)
    ax.set_aspect("equal")
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def correlation_grid(
    ax: Axes, correlation: Floats, columns: int, labels: Sequence[str], goal: int | None = None,
    fontsize: float = 5.0,
) -> Axes:  # fmt: skip
    """Figure 4: the correlation matrices (S, A, A) of a gridworld, each where its cell is."""
    num_states, size = correlation.shape[:2]
    rows, pitch = checks.grid_rows(num_states, columns), size + 0.8
    for s in range(num_states):
        row, column = divmod(s, columns)
        correlation_matrix(ax, correlation[s], labels, (pitch * column, pitch * row), fontsize)
        if s == goal:
            middle = (pitch * column + (size - 1) / 2, pitch * row + (size - 1) / 2)
            ax.text(*middle, "Goal", ha="center", va="center", weight="bold",
                    bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    ticks = np.add.outer(pitch * np.arange(max(rows, columns)), np.arange(size))
    ax.set_xticks(ticks[:columns].ravel(), list(labels) * columns)
    ax.set_yticks(ticks[:rows].ravel(), list(labels) * rows)
    ax.set_xlim(-0.6, pitch * (columns - 1) + size - 0.4)
    ax.set_ylim(pitch * (rows - 1) + size - 0.4, -0.6)
    return ax


def correlation_bar(fig: Any, axes: Any, **where: Any) -> Any:
    """The colour bar of the correlations."""
    scale = plt.cm.ScalarMappable(Normalize(-1.0, 1.0), COLORS)
    return fig.colorbar(scale, ax=axes, ticks=[-1, -0.5, 0, 0.5, 1], **where)


def correlation_table(reading: str, correlation: Floats, labels: Sequence[str]) -> pd.DataFrame:
    """Correlations (S, A, A) as rows: reading, state, action, other, correlation."""
    s, a, b = (i.ravel() for i in np.indices(correlation.shape))
    names = np.array(list(labels))
    return pd.DataFrame({"reading": reading, "state": s, "action": names[a], "other": names[b],
                         "correlation": correlation.ravel()})  # fmt: skip


def short(value: float) -> str:
    """Two digits without the leading zero: .53, \u2212.07, 1."""
    digits = f"{abs(value):.2f}"
    text = "1" if digits == "1.00" else digits[1:]
    return "\u2212" + text if value < 0 and digits != "0.00" else text
