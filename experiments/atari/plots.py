"""Learned gap variances beside simulated ones."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

#: The three networks of chapter 12: label, colour, marker, place in a group.
KIND_STYLES = {
    "Gram": ("Gram", "#CC79A7", "s", -0.25),
    "local": ("local", "#E69F00", "^", 0.0),
    "near": ("near", "#0072B2", "o", 0.25),
}


def gap_ratios(ax: Axes, table: pd.DataFrame) -> Axes:
    """Predicted / Monte Carlo gap variance with 95% intervals: a group per game, gammas within.

    table: rows of `gap_table` whose kinds are those of KIND_STYLES.

    Example:
        >>> from experiments.atari import plots
        >>> from notebooks import chapter
        >>> from matplotlib.figure import Figure
        >>> table = chapter.results(["figures/atari/ablation.csv"])
        >>> ax = plots.gap_ratios(Figure().subplots(), table[table.game == "Pong"])
        >>> ax.get_legend_handles_labels()[1]
        ['near']
    """
    games = list(table["game"].unique())
    gammas = sorted(table["gamma"].unique())
    left = (len(gammas) + 1.5) * np.arange(len(games))  # where a group begins
    middle = left + (len(gammas) - 1) / 2
    ax.axhspan(0.95, 1.05, color="0.88", lw=0, zorder=0)
    ax.axhline(1.0, color="0.6", lw=0.8, zorder=0)
    for kind, (label, color, marker, shift) in KIND_STYLES.items():
        rows = table[table["kind"] == kind]
        if len(rows):
            x = left[rows["game"].map(games.index)] + rows["gamma"].map(gammas.index) + shift
            ax.errorbar(
                x,
                rows["coupled"],
                rows["coupled_interval"],
                fmt=marker,
                color=color,
                ms=3.5,
                mfc="none",
                elinewidth=0.8,
                label=label,
            )
    ticks = np.add.outer(left, np.arange(len(gammas))).ravel()
    labels = [f"{gamma:g}".replace("0.", ".") for gamma in gammas]  # many groups need the room
    many = len(games) > 6
    ax.set_xticks(ticks, labels * len(games), fontsize="small", rotation=90 * many)
    for x, game in zip(middle, games, strict=True):
        name = re.sub("(?<=[a-z])(?=[A-Z])", "\n", game) if many else game
        ax.text(x, 1.02, name, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    ax.set(yscale="log", xlabel=r"$\gamma$")
    ax.grid(visible=False, axis="x")
    return ax
