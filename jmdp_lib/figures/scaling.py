"""What evaluation costs: states against time and memory."""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy.typing import NDArray

#: How the methods of benchmarks/scaling.py are drawn: label, colour, marker, line.
SCALING_STYLES = {
    "literal": ("literal $T_2$", "#000000", "s", "-"),
    "dense": ("dense pairs", "#0072B2", "o", "-"),
    "reachable": ("reachable pairs", "#D55E00", "^", "-"),
    "torch, cpu": ("dense, torch on CPU", "#56B4E9", "v", "-"),
    "torch, cuda": ("dense, torch on GPU", "#009E73", "D", "-"),
    "QuantEcon, mean only": ("mean only, QuantEcon", "#E69F00", "x", "--"),
    "SciPy, mean only": ("mean only, SciPy", "0.5", "+", "--"),
    "Monte Carlo, projected": ("Monte Carlo, projected", "#CC79A7", "", ":"),
}


def scaling(axes: NDArray[Any], data: pd.DataFrame) -> NDArray[Any]:
    """States against time (first row of axes) and memory (second), one column for each problem.

    data: columns problem, method (see SCALING_STYLES), states, seconds and bytes. The legend goes
    below the figure, which needs room for it.
    """
    shown = {}
    for column, (problem, each) in zip(axes.T, data.groupby("problem", sort=False), strict=True):
        for ax, value, unit in zip(column, ("seconds", "bytes"), (1.0, 1e6), strict=True):
            for method, (label, color, marker, line) in SCALING_STYLES.items():
                rows = each[(each["method"] == method) & each[value].notna()].sort_values("states")
                if len(rows):
                    (shown[label],) = ax.loglog(
                        rows["states"], rows[value] / unit, line, color=color, marker=marker, ms=4,
                        mfc="none" if marker in "ov" else color, label=label,
                    )  # fmt: skip
        column[0].set_title(problem)
        column[-1].set_xlabel("states")
    axes[0, 0].set_ylabel("time [s]")
    axes[1, 0].set_ylabel("memory [MB]")
    axes[0, 0].figure.legend(shown.values(), shown, loc="outside lower center", ncols=4)
    return axes
