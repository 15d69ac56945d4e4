"""Two actions together: the joint law of their returns, the law of the gap, and maps of gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats

_WIN, _LOSS = "#0072B2", "#D55E00"


def counts(
    samples: ArrayLike, names: Sequence[str], limits: tuple[float, float], bins: int
) -> pd.DataFrame:
    """What the two histograms below are drawn from: samples (N, d) as a frame of d-cells.

    A row per cell that is not empty: its middle, a column for each of the d names, and its share.
    """
    table = np.asarray(samples, dtype=float).reshape(-1, len(names))
    found, edges = np.histogramdd(table, bins, [limits] * len(names))
    cell = np.nonzero(found)
    middle = {n: (e[:-1] + e[1:])[i] / 2 for n, e, i in zip(names, edges, cell, strict=True)}
    return pd.DataFrame({**middle, "share": found[cell] / len(table)})


def joint_returns(ax: Axes, pairs: Floats, limits: tuple[float, float], bins: int = 80) -> Axes:
    """The joint law of two returns, pairs (N, 2), with the law of each along its side.

    Blue where the first is larger, orange where it is not, the darker the likelier (by its root).
    Both axes show `limits`; what lies outside counts towards the sides but is not drawn.
    """
    edges = np.linspace(*limits, bins + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    law = np.sqrt(np.histogram2d(pairs[:, 0], pairs[:, 1], [edges, edges])[0])
    wins = middle[:, None] > middle[None, :]
    for part, color in ((wins, _WIN), (~wins, _LOSS)):
        shown = np.ma.masked_where(~part | (law == 0), law)
        ax.pcolormesh(edges, edges, shown.T, cmap=_fading(color), vmin=0.0, vmax=law.max(),
                      rasterized=True)  # fmt: skip
    ax.plot(limits, limits, color="0.45", lw=0.8)
    ax.set_xlim(limits)
    ax.set_ylim(limits)
    ax.set_aspect("equal")
    ax.grid(visible=False)
    for column, place in enumerate(((0.0, 1.0, 1.0, 0.17), (1.0, 0.0, 0.17, 1.0))):
        side = ax.inset_axes(place)
        share, _ = np.histogram(pairs[:, column], edges)
        fill: Any = side.fill_between if column == 0 else side.fill_betweenx
        fill(middle, share, color="0.78", lw=0)
        side.set_xlim(limits if column == 0 else (0.0, 1.15 * share.max()))
        side.set_ylim(limits if column == 1 else (0.0, 1.15 * share.max()))
        side.axis("off")
    return ax


def gap_law(ax: Axes, gaps: Floats, limits: tuple[float, float], bins: int = 60) -> Axes:
    """The law of a gap, samples (N,): orange below zero with its probability, blue above.

    A dot marks the mean, its bar one standard deviation to either side.
    """
    edges = np.linspace(*limits, 2 * (bins // 2) + 1)
    if limits[0] != -limits[1]:
        raise ValueError(
            f"limits must be symmetric, so that zero is between two bins; got {limits}"
        )
    density, _ = np.histogram(gaps, edges, weights=np.full(gaps.size, 1.0 / gaps.size))
    density /= np.diff(edges)
    middle = (edges[:-1] + edges[1:]) / 2
    colors = np.where(middle < 0, _LOSS, _WIN)
    ax.bar(middle, density, width=np.diff(edges), color=colors, lw=0)
    top = float(density.max())
    ax.errorbar(gaps.mean(), 1.12 * top, xerr=gaps.std(), fmt="o", color="black", ms=3, lw=1.0,
                capsize=2)  # fmt: skip
    ax.text(0.02, 0.62, f"$P(G<0)$\n= {np.mean(gaps < 0):.2f}", transform=ax.transAxes, color=_LOSS,
            ha="left", va="center")  # fmt: skip
    ax.axvline(0.0, color="0.45", lw=0.8)
    ax.set_xlim(limits)
    ax.set_ylim(0.0, 1.25 * top)
    ax.set_yticks([])
    ax.grid(visible=False)
    return ax


def cells(ax: Axes, values: ArrayLike, columns: int, title: str, color: str = _WIN) -> Axes:
    """One number (S,) in every cell of a grid, and the larger the darker; nan stays empty."""
    table = np.asarray(values, dtype=float)
    table = table.reshape(checks.grid_rows(table.size, columns), columns)
    high = float(np.nanmax(table))
    ax.imshow(np.ma.masked_invalid(table), cmap=_fading(color), vmin=0.0, vmax=high)
    for (i, j), value in np.ndenumerate(table):
        if not np.isnan(value):
            shade = "white" if value > 0.7 * high else "black"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=6.5)
    ax.set_xticks(np.arange(columns + 1) - 0.5, labels=[])
    ax.set_yticks(np.arange(len(table) + 1) - 0.5, labels=[])
    ax.tick_params(length=0)
    ax.grid(color="0.6", lw=0.5)
    ax.set_axisbelow(False)
    ax.spines[:].set(visible=True, color="0.6")
    ax.set_title(title)
    return ax


def _fading(color: str) -> Colormap:
    """From white to `color`."""
    return LinearSegmentedColormap.from_list(color, ["white", color])
