"""Gaps of two actions: their joint returns, their law, and predictions against play (Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.figures.curves import agreement

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
    root = np.sqrt(np.histogram2d(pairs[:, 0], pairs[:, 1], [edges, edges])[0]).T
    signed = np.ma.masked_equal(np.where(middle > middle[:, None], root, -root), 0.0)
    colors = LinearSegmentedColormap.from_list("", [_LOSS, "white", _WIN], N=512)
    ends = {"vmin": -root.max(), "vmax": root.max()}
    ax.pcolormesh(edges, edges, signed, cmap=colors, rasterized=True, **ends)
    ax.plot(limits, limits, color="0.45", lw=0.8)
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    ax.grid(visible=False)
    for column, place in enumerate(((0.0, 1.0, 1.0, 0.17), (1.0, 0.0, 0.17, 1.0))):
        side = ax.inset_axes(place)
        share, _ = np.histogram(pairs[:, column], edges)
        fill: Any = side.fill_between if column == 0 else side.fill_betweenx
        fill(middle, share, color="0.78", lw=0)
        shown = limits, (0.0, 1.15 * share.max())
        side.set(xlim=shown[column], ylim=shown[1 - column])
        side.axis("off")
    return ax


def gap_law(ax: Axes, gaps: Floats, limit: float, bins: int = 60) -> Axes:
    """The law of a gap, samples (N,), from -limit to limit: orange below zero, blue above.

    bins: an even number. A dot marks the mean, its bar one standard deviation to either side.
    """
    top = 0.0
    for part, color in ((gaps[gaps < 0], _LOSS), (gaps[gaps >= 0], _WIN)):
        weights = np.full(part.size, bins / (2 * limit * gaps.size))
        height, *_ = ax.hist(part, bins, range=(-limit, limit), weights=weights, color=color)
        top = max(top, np.max(height))
    ax.errorbar(gaps.mean(), 1.12 * top, xerr=gaps.std(), fmt="o", color="black", ms=3, lw=1.0,
                capsize=2)  # fmt: skip
    ax.text(0.02, 0.62, f"$P(G<0)$\n= {np.mean(gaps < 0):.2f}", transform=ax.transAxes, color=_LOSS,
            ha="left", va="center")  # fmt: skip
    ax.axvline(0.0, color="0.45", lw=0.8)
    ax.set(xlim=(-limit, limit), ylim=(0.0, 1.25 * top), yticks=[])
    ax.grid(visible=False)
    return ax


def prediction(
    ax: Axes, below: Axes, predicted: Floats, found: Floats, errors: Floats, group: Ints,
    names: Sequence[str],
) -> Axes:  # fmt: skip
    """Found against predicted values (K,), bars of two standard errors, the line where they agree.

    The axes `below` share the abscissa and show found - predicted in standard errors, which the
    bars above are usually too short to show. group: (K,) indices into `names`, four at most.
    """
    scores = (found - predicted) / errors
    limit = max(3.4, 1.1 * float(np.abs(scores).max()))
    below.axhspan(-2.0, 2.0, color="0.9", lw=0, zorder=0)
    below.axhline(0.0, color="0.6", lw=0.8, zorder=0)
    for marker, g in zip("os^D", np.unique(group), strict=False):
        rows = group == g
        agreement(ax, predicted[rows], found[rows], names[g], 2.0 * errors[rows])
        below.plot(predicted[rows], scores[rows], marker, ms=3.0, mfc="none", mew=0.7)
    below.set(ylim=(-limit, limit), yticks=[-2, 0, 2])
    ax.tick_params(labelbottom=False)
    return ax
