"""Tables as colours: any table, and the correlations of Figures 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from jmdp_lib import checks
from jmdp_lib.checks import Floats

_COLORS = "RdBu_r"


def heatmap(
    ax: Axes, values: Any, cmap: str = "viridis_r", fontsize: float = 0.0, **options: Any
) -> AxesImage:
    """Values (rows, columns) as colours, what is masked or nan in grey. Returns the image.

    cmap: the name of a colormap, or a colour "#RRGGBB" that the largest value has and the smallest
    has not. fontsize: above zero, of the numbers in the cells. options: of `imshow`.
    """
    colors = LinearSegmentedColormap.from_list("", ["white", cmap]) if "#" in cmap else cmap
    image: Any = ax.imshow(values, cmap=colors, **options)
    ax.set_facecolor("0.93")
    ax.grid(visible=False)
    if fontsize:
        ax.spines[:].set_visible(False)
    for (i, j), value in np.ndenumerate(values) if fontsize else ():
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, ec="0.6", lw=0.5))
        if not np.isnan(value):
            shade = "white" if image.norm(value) > 0.7 else "black"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=fontsize)
    return image


def correlation_matrix(
    ax: Axes, matrix: Floats, labels: Sequence[str], corner: tuple[float, float] = (0.0, 0.0),
    fontsize: float = 7.0,
) -> Axes:  # fmt: skip
    """One correlation matrix (A, A) with its numbers, its first entry centred at `corner`.

    A return that does not vary has no correlation with anything: nan, hatched and not coloured.
    """
    size, (x0, y0), colors = len(matrix), corner, plt.get_cmap(_COLORS)
    for (i, j), value in np.ndenumerate(matrix):
        look: dict[str, Any] = {"fc": "0.93", "ec": "0.7", "hatch": "//////"}
        if not np.isnan(value):
            look = {"fc": colors((value + 1) / 2)}
            shade = "white" if abs(value) > 0.6 else "black"
            ax.text(x0 + j, y0 + i, short(value), ha="center", va="center", color=shade,
                    fontsize=fontsize)  # fmt: skip
        ax.add_patch(Rectangle((x0 + j - 0.5, y0 + i - 0.5), 1, 1, lw=0.0, **look))
    outline = (x0 - 0.5, y0 - 0.5)
    ax.add_patch(Rectangle(outline, size, size, fc="none", ec="black", lw=0.6, zorder=3))
    ax.set(xlim=(x0 - 0.55, x0 + size - 0.45), ylim=(y0 + size - 0.45, y0 - 0.55), aspect="equal")
    ax.set_xticks(x0 + np.arange(size), labels)
    ax.set_yticks(y0 + np.arange(size), labels)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return ax


def correlation_grid(
    ax: Axes, correlation: Floats, columns: int, labels: Sequence[str], goal: int | None = None,
    fontsize: float = 5.0,
) -> Axes:  # fmt: skip
    """Figure 4: the correlation matrices (S, A, A) of a gridworld, each where its cell is."""
    num_states, size = correlation.shape[:2]
    rows, pitch = checks.grid_rows(num_states, columns), size + 0.8
    for s, matrix in enumerate(correlation):
        x, y = pitch * (s % columns), pitch * (s // columns)
        correlation_matrix(ax, matrix, labels, (x, y), fontsize)
        if s == goal:
            ax.text(x + (size - 1) / 2, y + (size - 1) / 2, "Goal", ha="center", va="center",
                    weight="bold", bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    ticks = np.add.outer(pitch * np.arange(max(rows, columns)), np.arange(size))
    ax.set_xticks(ticks[:columns].ravel(), list(labels) * columns)
    ax.set_yticks(ticks[:rows].ravel(), list(labels) * rows)
    ax.set(xlim=(-0.6, pitch * columns - 1.2), ylim=(pitch * rows - 1.2, -0.6))
    return ax


def correlation_bar(fig: Any, axes: Any, **where: Any) -> Any:
    """The colour bar of the correlations."""
    scale = plt.cm.ScalarMappable(Normalize(-1.0, 1.0), _COLORS)
    return fig.colorbar(scale, ax=axes, ticks=[-1, -0.5, 0, 0.5, 1], **where)


def short(value: float) -> str:
    """Two digits without the leading zero: .53, \u2212.07, 1."""
    text = f"{value:.2f}".replace("-0.00", "0.00").replace("-", "\u2212")
    return text.replace("1.00", "1").replace("0.", ".")
