"""Atari: a state and its counterfactual successors, TD errors (Figure 7), gap ratios (Table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

#: The four blocks of Figure 7: label, colour, line, marker.
BLOCK_STYLES = {
    "mu": (r"$\mu$", "#000000", "-", "o"),
    "sigma_diag": (r"$\sigma_{\mathrm{diag}}$", "#0072B2", "--", "s"),
    "sigma_same": (r"$\sigma_{\mathrm{same}}$", "#D55E00", "-.", "^"),
    "sigma_cross": (r"$\sigma_{\mathrm{cross}}$", "#009E73", ":", "D"),
}
#: The covariance networks of Table 1, and the last of them backed up from the state's own tables:
#: label, colour, marker, place in a group.
KIND_STYLES = {
    "gram": ("Gram (the paper's)", "#CC79A7", "s", -0.3),
    "local": ("local Gram", "#E69F00", "^", -0.1),
    "near": ("local and near Gram", "#0072B2", "o", 0.1),
    "near+table": ("and the state's own tables", "#009E73", "D", 0.3),
}


def screen(
    ax: Axes, picture: NDArray[np.uint8], title: str, other: NDArray[np.uint8] | None = None
) -> Axes:
    """A screen (H, W, 3); boxes around what differs from the screen `other`."""
    ax.imshow(picture, interpolation="nearest", aspect="auto")
    ax.set_title(title)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    if other is not None:
        different = (picture != other).any(-1)
        columns = np.flatnonzero(different.any(0))
        for part in np.split(columns, np.flatnonzero(np.diff(columns) > 8) + 1):
            if part.size:  # things that are more than eight columns apart are two
                rows = np.flatnonzero(different[:, part].any(1))
                box = Rectangle(
                    (part[0] - 3, rows[0] - 3), int(np.ptp(part)) + 6, int(np.ptp(rows)) + 6,
                    fill=False, color="#E69F00", lw=1.2,
                )  # fmt: skip
                ax.add_patch(box)
    return ax


def td_errors(ax: Axes, curves: pd.DataFrame, window: int = 1, markers: bool = False) -> Axes:
    """Mean squared errors of the BLOCK_STYLES against SGD steps: bold mean, faint seeds.

    curves: columns step, seed and the blocks. window: logged steps of the moving average, centred,
    shorter at the ends. markers: instead of lines, for what is measured rarely.
    """
    for block, (_, color, line, marker) in BLOCK_STYLES.items():
        each = curves.pivot_table(index="step", columns="seed", values=block)
        each = each.rolling(window, center=True, min_periods=1).mean()
        drawn = {"ls": "", "marker": marker, "mfc": "none"} if markers else {"ls": line}
        faint = {"ls": "" if markers else "-", "alpha": 0.3, "lw": 0.6, "ms": 2, "mew": 0.4}
        ax.semilogy(each.index, each, color=color, **drawn | faint)
        ax.semilogy(each.index, each.mean(axis=1), color=color, lw=1.4, ms=3.5, **drawn)
    return ax


def block_legend(fig: Figure) -> None:
    """The legend of `td_errors`, below the figure."""
    handles = [
        Line2D([], [], color=color, ls=line, marker=marker, mfc="none", lw=1.4, ms=3.5)
        for _, color, line, marker in BLOCK_STYLES.values()
    ]
    labels = [label for label, *_ in BLOCK_STYLES.values()]
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def gap_ratios(ax: Axes, table: pd.DataFrame, paper: Mapping[str, float] | None = None) -> Axes:
    """Predicted / Monte Carlo gap variance with 95% intervals: a group per game, gammas within.

    table: rows of `gap_table`. paper: the paper's ratio of each game, a cross at its group.
    """
    games, gammas = table["game"].unique(), np.sort(table["gamma"].unique())
    width = len(gammas) + 1.5
    ax.axhspan(0.95, 1.05, color="0.88", lw=0, zorder=0)
    ax.axhline(1.0, color="0.6", lw=0.8, zorder=0)
    for kind, (label, color, marker, shift) in KIND_STYLES.items():
        rows = table[table["kind"] == kind]
        if rows.empty:
            continue
        x = [list(games).index(r.game) * width + np.searchsorted(gammas, r.gamma) + shift
             for r in rows.itertuples()]  # fmt: skip
        ax.errorbar(x, rows["coupled"], rows["coupled_interval"], fmt=marker, color=color, ms=3.5,
                    mfc="none", elinewidth=0.8, label=label)  # fmt: skip
    if paper is not None:
        middle = [i * width + (len(gammas) - 1) / 2 for i in range(len(games))]
        ax.plot(middle, [paper[g] for g in games], "x", color="black", ms=6, label="the paper")
    ticks = [i * width + k for i in range(len(games)) for k in range(len(gammas))]
    ax.set_xticks(ticks, [f"{gamma:g}" for _ in games for gamma in gammas], fontsize="small")
    for i, game in enumerate(games):
        ax.text(i * width + (len(gammas) - 1) / 2, 1.02, game, ha="center", va="bottom",
                transform=ax.get_xaxis_transform())  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel(r"$\gamma$")
    ax.grid(visible=False, axis="x")
    return ax


def gap_scatter(ax: Axes, gaps: pd.DataFrame) -> Axes:
    """Predicted against Monte Carlo gap variance: a point per state (`by_state` rows, one seed)."""
    low = 0.97 * min(gaps["mc"].min(), gaps["coupled"].min())
    high = 1.03 * max(gaps["mc"].max(), gaps["coupled"].max())
    ax.plot([low, high], [low, high], color="0.6", lw=0.8, zorder=0)
    ax.errorbar(gaps["coupled"], gaps["mc"], 1.96 * gaps["mc_error"], fmt="o", ms=2.5, mfc="none",
                mew=0.6, elinewidth=0.5, color=KIND_STYLES["near"][1])  # fmt: skip
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    return ax


def text_table(ax: Axes, cells: Sequence[Sequence[str]], rules: Sequence[int] = ()) -> Axes:
    """A typeset table, the first row its head; a thin rule above each of the rows `rules`."""
    ax.axis("off")
    count, columns = len(cells), len(cells[0])
    widths = np.array([max(len(row[c]) for row in cells) + 2.0 for c in range(columns)])
    left = np.concatenate([[0.0], np.cumsum(widths)]) / widths.sum()
    for i, row in enumerate(cells):
        y = 1.0 - (i + 0.5) / count
        for c, text in enumerate(row):
            at, side = (left[c] + 0.005, "left") if c == 0 else (left[c + 1] - 0.01, "right")
            ax.text(at, y, text, ha=side, va="center", transform=ax.transAxes)
    for i, width in ((0, 1.0), (1, 0.6), (count, 1.0), *((r, 0.3) for r in rules)):
        ax.axhline(1.0 - i / count, color="black", lw=width, clip_on=False)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    return ax
