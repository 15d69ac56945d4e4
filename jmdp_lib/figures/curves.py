"""Lines and points: falling residuals (Figure 2), learning, agreement, what evaluation costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from jmdp_lib.checks import Floats
from jmdp_lib.solvers.trace import Trace, decay_rate

# gamma^k is a broad band that curves lie on.
_BAND: dict[str, Any] = {"color": "0.8", "lw": 5.0, "solid_capstyle": "butt", "zorder": 1}
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


def residual_decay(ax: Axes, residuals: Floats, gamma: float, marks: int = 15) -> Axes:
    """Figure 2: residuals (iterations,) as dots, gamma^k below, and the measured slope on top."""
    steps, rate = np.arange(residuals.size), decay_rate(residuals)
    # the least-squares line goes through the mean of the logarithms
    middle = np.exp(np.log(residuals).mean() - np.log(rate) * steps.mean())
    powers = rf"$\gamma^k$, $\gamma = {gamma:g}$"
    ax.semilogy(steps, residuals[0] * gamma**steps, label=powers, **_BAND)
    fit = f"fit: factor {rate:.4f} per iteration"
    ax.semilogy(steps, middle * rate**steps, color="black", lw=0.8, label=fit)
    shown = np.linspace(0, residuals.size - 1, marks).round().astype(int)
    ax.semilogy(shown, residuals[shown], "o", ms=3.5, mfc="white", color="#0072B2", zorder=3,
                label=r"$\|M_k - T_2 M_k\|_\lambda$")  # fmt: skip
    ax.set_xlabel("iteration $k$")
    return ax


def block_decay(ax: Axes, trace: Trace, gamma: float) -> Axes:
    """What each part of the collection changes in sweep k.

    Means and Sigma / lambda in units of the first change of a mean, covariances of their largest.
    """
    steps, unit = np.arange(trace.mean.size), trace.mean[0]
    ax.semilogy(steps, gamma**steps, label=r"$\gamma^k$", **_BAND)
    square = r"$\gamma^{2k}$"
    ax.semilogy(steps, gamma ** (2.0 * steps), "--", color="0.4", lw=0.9, zorder=1, label=square)
    parts = (
        (r"means $\mu$", trace.mean / unit, "#0072B2", "-"),
        (r"second moments $\Sigma / \lambda$", trace.second / trace.weight / unit, "#009E73", "-."),
        (r"covariances $C$", trace.covariance / trace.covariance.max(), "#D55E00", "-"),
    )
    for label, values, color, line in parts:
        seen = np.where(values > 1e-13 * values.max(), values, np.nan)  # below it is rounding
        ax.semilogy(steps, seen, line, color=color, label=label, zorder=2)
        last = int(np.flatnonzero(np.isfinite(seen))[-1])
        if last + 1 < values.size and values[last] > 1e-6 * values.max():  # at once, not gradually
            ax.plot(last, values[last], "o", ms=3.5, color=color, zorder=3)
            note, place = f"exact after\n{last + 1} sweeps", (last, values[last])
            ax.annotate(note, place, (0, -14), textcoords="offset points", color=color, va="top",
                        ha="center", fontsize=7)  # fmt: skip
    ax.set_xlabel("iteration $k$")
    return ax


def band(ax: Axes, x: ArrayLike, runs: ArrayLike, label: str, line: str = "-") -> Axes:
    """Median and 10-90% band of runs (num_runs, len(x)), on log-log axes."""
    low, middle, high = np.quantile(np.asarray(runs), [0.1, 0.5, 0.9], axis=0)
    (drawn,) = ax.loglog(np.asarray(x), middle, line, label=label)
    ax.fill_between(np.asarray(x), low, high, color=drawn.get_color(), alpha=0.2, lw=0)
    return ax


def agreement(
    ax: Axes, expected: ArrayLike, found: ArrayLike, label: str = "", bars: ArrayLike | None = None
) -> Axes:
    """Found against expected values, with the line where they agree; another marker each time.

    bars: half the length of each error bar.
    """
    x, y = np.ravel(np.asarray(expected)), np.ravel(np.asarray(found))
    marker = "os^D"[len(ax.lines) // 2 % 4]
    ax.errorbar(x, y, bars, ls="", marker=marker, ms=3, mfc="none", mew=0.7, elinewidth=0.8,
                label=label)  # fmt: skip
    ends = [np.nanmin([x, y]), np.nanmax([x, y])]
    ax.plot(ends, ends, color="0.6", lw=0.8, zorder=1)
    return ax


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
                    face = "none" if marker in "ov" else color
                    (shown[label],) = ax.loglog(rows["states"], rows[value] / unit, line, ms=4,
                                                color=color, marker=marker, mfc=face)  # fmt: skip
        column[0].set_title(problem)
        column[1].set_xlabel("states")
    axes[0, 0].set_ylabel("time [s]")
    axes[1, 0].set_ylabel("memory [MB]")
    axes[0, 0].figure.legend(shown.values(), shown, loc="outside lower center", ncols=4)
    return axes
