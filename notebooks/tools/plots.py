"""Plots of learned returns: screens, errors and ratios of chapters 5 and 6, networks of chapter 12."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

#: The four blocks of Figure 7: label, colour, line.
BLOCK_STYLES: dict[str, tuple[str, str, Any]] = {
    "mu": (r"$\mu$", "#000000", "-"),
    "sigma_diag": (r"$\sigma_{\mathrm{diag}}$", "#0072B2", "--"),
    "sigma_same": (r"$\sigma_{\mathrm{same}}$", "#D55E00", "-."),
    "sigma_cross": (r"$\sigma_{\mathrm{cross}}$", "#009E73", (0, (4, 1, 1, 1, 1, 1))),
}
#: The two columns of the paper's Table 1: label, colour.
RATIO_STYLES = {
    "coupled_ratio": ("coupled / MC", "#0072B2"),
    "independent_ratio": ("independent / MC", "#D55E00"),
}
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


# ---- chapters 5 and 6 ---------------------------------------------------------------------------


def screen(
    ax: Axes, picture: NDArray[np.uint8], title: str, other: NDArray[np.uint8] | None = None
) -> Axes:
    """A screen (H, W, 3); boxes around what differs from the screen `other`.

    Example:
        >>> import numpy as np
        >>> from notebooks.tools import plots
        >>> from matplotlib.figure import Figure
        >>> before = np.zeros((210, 160, 3), dtype=np.uint8)
        >>> after = before.copy()
        >>> after[100:104, 80:82] = 255  # a ball
        >>> len(plots.screen(Figure().subplots(), after, "after", before).patches)
        1
    """
    ax.imshow(picture, interpolation="nearest", aspect="auto")
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(visible=False)
    different = (picture != (picture if other is None else other)).any(-1)
    columns = np.flatnonzero(different.any(0))
    # things that are more than eight columns apart are two
    for part in np.split(columns, np.flatnonzero(np.diff(columns) > 8) + 1) if columns.size else ():
        rows = np.flatnonzero(different[:, part].any(1))
        width = int(np.ptp(part)) + 6
        height = int(np.ptp(rows)) + 6
        corner = part[0] - 3, rows[0] - 3
        ax.add_patch(Rectangle(corner, width, height, fill=False, color="#E69F00", lw=1.2))
    return ax


def td_errors(ax: Axes, curves: pd.DataFrame, floors: pd.DataFrame | None = None) -> Axes:
    """Mean squared errors of the BLOCK_STYLES against training steps: bold mean, faint seeds.

    curves: columns step, seed and the blocks. floors: the same rows' `results.floors`, dotted.

    Example:
        >>> import pandas as pd
        >>> from notebooks.tools import plots
        >>> from matplotlib.figure import Figure
        >>> curves = pd.DataFrame({"step": [0, 100, 0, 100], "seed": [0, 0, 1, 1]})
        >>> curves = curves.assign(**dict.fromkeys(plots.BLOCK_STYLES, [1.0, 0.1, 2.0, 0.2]))
        >>> ax = plots.td_errors(Figure().subplots(), curves)
        >>> len(ax.lines)  # two seeds and their mean, for each of four blocks
        12
    """
    for block, (label, color, line) in BLOCK_STYLES.items():
        seed_curves(ax, curves, block, color, label=label, ls=line)
        if floors is not None and floors[block].max() > 0.0:
            floor = floors[block].groupby(curves.step).mean()
            ax.plot(floor.index, floor, color=color, lw=1.0, ls=":")
    ax.set_yscale("log")
    return ax


def seed_curves(ax: Axes, rows: pd.DataFrame, column: str, color: str, **bold: Any) -> None:
    """A column against training steps: a thin line for each seed, and a bold one for their mean."""
    each = rows.pivot_table(index="step", columns="seed", values=column)
    ax.plot(each.index, each, color=color, lw=0.6, alpha=0.4)
    ax.plot(each.index, each.mean(axis=1), color=color, **{"lw": 1.5} | bold)
    ax.xaxis.set_major_formatter(thousands)


def thousands(steps: float, _: float = 0.0) -> str:
    """20k for 20,000, on an axis of steps."""
    return f"{steps / 1000:g}k" if steps else "0"


def first_and_last(ax: Axes, ends: pd.DataFrame) -> Axes:
    """Falls of an error under a few settings, a line for each game.

    ends: rows of settings and game, columns first, last and floor. Rings are first errors, discs
    last ones, dashes floors.

    Example:
        >>> import pandas as pd
        >>> from notebooks.tools import plots
        >>> from matplotlib.figure import Figure
        >>> rows = {("defaults", "Pong"): (1e-3, 1e-6, 1e-7), ("launcher", "Pong"): (1e-5, 1e-6, 0)}
        >>> ends = pd.DataFrame(rows, index=["first", "last", "floor"]).T
        >>> len(plots.first_and_last(Figure().subplots(), ends).lines)  # three for each setting
        6
    """
    names = list(ends.index.unique(0))
    for k, name in enumerate(names):
        games = ends.loc[name]
        x = k + 0.15 * (np.arange(len(games)) - (len(games) - 1) / 2)
        ax.vlines(x, games["last"], games["first"], color="#0072B2", lw=1.0)
        ax.plot(x, games["first"], "o", color="#0072B2", mfc="white", ms=4)
        ax.plot(x, games["last"], "o", color="#0072B2", ms=4)
        ax.plot(x, games["floor"].where(games["floor"] > 0.0), "_", color="#D55E00", ms=7, mew=1.4)
    ax.set_yscale("log")
    ax.set_xticks(range(len(names)), names)
    ax.grid(visible=False, axis="x")
    return ax


def release_ratios(
    ax: Axes, rows: pd.DataFrame, paper: Sequence[float], step: int, calibrated: float
) -> Axes:
    """Both columns of Table 1 of one game during training, and the paper's values at `step`.

    rows: of `results.ratios`, one game, and `recursion_ratio`. paper: its coupled and its
    independent ratio. calibrated: where a right coupled ratio would be, a dotted line. The dashed
    line is what copies of the target network alone give.

    Example:
        >>> from experiments.release import results
        >>> from notebooks.tools import chapter, plots
        >>> from matplotlib.figure import Figure
        >>> tables = [chapter.results([f"figures/atari/{x}.csv"]) for x in ("predictions", "pairs")]
        >>> rows = results.ratios(*tables, "launcher", b=0.25)
        >>> rows["recursion_ratio"] = results.recursion(rows, gamma=0.99)
        >>> pong = rows[rows.game == "Pong"]
        >>> plots.release_ratios(Figure().subplots(), pong, [1.30, 135.4], 50_000, 16.0).get_yscale()
        'log'
    """
    ax.axvline(step, color="0.6", lw=0.8, zorder=0)
    for (column, (label, color)), printed in zip(RATIO_STYLES.items(), paper, strict=True):
        seed_curves(ax, rows, column, color, label=label)
        ax.plot(step, printed, "o", color=color, mec="black", ms=5, zorder=3)
    recursion = rows.groupby("step")["recursion_ratio"].mean()
    dashed: Any = {"color": "black", "ls": (0, (3, 1.5)), "lw": 1.2}
    ax.plot(recursion.index, recursion, label="copies alone after 6,000 steps", **dashed)
    ax.axhline(calibrated, color="0.6", lw=0.8, ls=":", zorder=0, label="coupled, if calibrated")
    ax.plot([], [], "o", mfc="0.7", mec="black", label="the paper")
    ax.set(yscale="log")
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    return ax


# ---- chapter 12 ----------------------------------------------------------------------------------


def gap_ratios(ax: Axes, table: pd.DataFrame, by: str = "gamma", ticks: str = "constant") -> Axes:
    """Learned / simulated gap variance with 95% intervals: a group per game, a column within.

    table: rows of `results.ratios`. by: the column that distinguishes the places of a group, gamma or
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
