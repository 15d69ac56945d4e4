"""Learned gap variances beside simulated ones."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

#: The networks of chapter 12: label, colour, marker, place in a group.
KIND_STYLES = {
    "gram": ("Gram, not told", "#CC79A7", "s", -0.25),
    "gram told": ("Gram, told", "#009E73", "D", -0.12),
    "local": ("local", "#E69F00", "^", 0.0),
    "near": ("near", "#0072B2", "o", 0.25),
    "near, earlier run": ("near, earlier run", "#0072B2", "x", 0.4),
}
#: Verdicts, and the colour of each.
VERDICT_STYLES = {"inside": "#0072B2", "cannot tell": "0.8", "outside": "#D55E00"}


def gap_ratios(ax: Axes, table: pd.DataFrame, by: str = "gamma", ticks: str = "constant") -> Axes:
    """Learned / simulated gap variance with 95% intervals: a group per game, a column within.

    table: rows of `results.ratios`. by: the column that tells the places of a group apart, gamma or
    sigma. ticks: rows of this kind are ticks.

    Example:
        >>> from experiments.atari import results
        >>> from notebooks.tools import chapter, plots
        >>> from matplotlib.figure import Figure
        >>> runs = chapter.results(["figures/atari/calibrated.csv"]).query("states == 1")
        >>> table = results.ratios(runs[(runs.game == "Pong") & (runs.kind == "near")])
        >>> ax = plots.gap_ratios(Figure().subplots(), table)
        >>> ax.get_legend_handles_labels()[1]
        ['near']
    """
    games = list(table["game"].unique())
    values = sorted(table[by].unique())
    left = (len(values) + 1.5) * np.arange(len(games))  # where a group begins
    x = left[table["game"].map(games.index)] + table[by].map(values.index)
    ax.axhspan(0.95, 1.05, color="0.88", lw=0, zorder=0)
    ax.axhline(1.0, color="0.6", lw=0.8, zorder=0)
    tick = table["kind"] == ticks
    ax.plot(
        x[tick], table["ratio"][tick], "_", color="black", ms=8, label=ticks if tick.any() else None
    )
    for kind, (label, color, marker, shift) in KIND_STYLES.items():
        mine = table["kind"] == kind
        if mine.any():
            ax.errorbar(
                x[mine] + shift,
                table["ratio"][mine],
                table["half"][mine],
                fmt=marker,
                color=color,
                ms=3.5,
                mfc="none",
                elinewidth=0.8,
                label=label,
            )
    labels = [f"{value:g}".replace("0.", ".") for value in values]
    ax.set_xticks(np.add.outer(left, np.arange(len(values))).ravel(), labels * len(games))
    ax.tick_params(axis="x", labelsize="small", rotation=90)
    for middle, game in zip(left + (len(values) - 1) / 2, games, strict=True):
        name = re.sub("(?<=[a-z])(?=[A-Z])", "\n", game)
        ax.text(middle, 1.02, name, ha="center", transform=ax.get_xaxis_transform())
    ax.set(yscale="log", xlabel=rf"$\{by}$")
    ax.grid(visible=False, axis="x")
    return ax


def verdict_bars(ax: Axes, counts: pd.DataFrame) -> Axes:
    """A horizontal bar for each row of `counts`, the first on top, divided by verdicts.

    Example:
        >>> import pandas as pd
        >>> from notebooks.tools import plots
        >>> from matplotlib.figure import Figure
        >>> counts = pd.DataFrame({"inside": [3], "outside": [1]}, index=["near"])
        >>> len(plots.verdict_bars(Figure().subplots(), counts).patches)
        3
    """
    counts = counts.reindex(columns=list(VERDICT_STYLES), fill_value=0)[::-1]
    left = counts.cumsum(axis=1).shift(1, axis=1, fill_value=0)
    for verdict, color in VERDICT_STYLES.items():
        ax.barh(counts.index, counts[verdict], left=left[verdict], color=color, label=verdict)
    ax.grid(visible=False, axis="y")
    return ax
