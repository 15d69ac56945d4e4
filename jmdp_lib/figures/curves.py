"""Scatters and laws: agreement (Figure 6), joint returns, gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats
from jmdp_lib.figures.diagrams import check_axes

_WIN = "#0072B2"
_LOSS = "#D55E00"
_CELLS = 80  # on either axis of a joint law
_BARS = 60  # of the law of a gap: an even number, so that none crosses zero


def agreement(
    ax: Axes,
    expected: ArrayLike,
    found: ArrayLike,
    *,
    label: str = "",
    bars: ArrayLike | None = None,
) -> Axes:
    """Found against expected values, with the line where they agree; another marker each time.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        expected: (...) where they are on the x axis; any shape, as `found`.
        found: (...) where they are on the y axis.
        label: what the legend calls them.
        bars: half the length of the error bars, one or (...); None draws none.

    Returns:
        The same axes.

    Example:
        >>> from jmdp_lib import figures
        >>> from matplotlib.figure import Figure
        >>> expected, found = [1.0, 2.0], [1.1, 1.9]
        >>> ax = figures.agreement(Figure().subplots(), expected, found, label="two runs", bars=0.2)
        >>> ax.get_legend_handles_labels()[1]
        ['two runs']
    """
    check_axes(ax)
    x, y = np.ravel(np.asarray(expected)), np.ravel(np.asarray(found))
    marker = "os^D"[len(ax.lines) // 2 % 4]
    look: dict[str, Any] = {"marker": marker, "ms": 3, "mfc": "none", "mew": 0.7}
    ax.errorbar(x, y, bars, ls="", elinewidth=0.8, label=label, **look)
    ends = [np.nanmin([x, y]), np.nanmax([x, y])]
    ax.plot(ends, ends, color="0.6", lw=0.8, zorder=1)
    return ax


def joint_returns(ax: Axes, pairs: Floats, limits: tuple[float, float]) -> Axes:
    """The joint law of two returns, pairs (N, 2), with the law of each along its side.

    Blue where the first is larger, orange where it is not; darker is likelier (square-root scale).
    Both axes show `limits`; what lies outside counts towards the sides but is not drawn.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        pairs: (N, 2) the two returns of each pair.
        limits: the least and the largest return that is shown.

    Returns:
        The same axes.

    Example:
        >>> import numpy as np
        >>> from jmdp_lib import figures
        >>> from matplotlib.figure import Figure
        >>> shared = np.random.default_rng(0).normal(size=(500, 1))
        >>> pairs = shared + [[0.5, 0.0]]  # the first is always larger: all is blue
        >>> ax = figures.joint_returns(Figure().subplots(), pairs, limits=(-3.0, 3.0))
        >>> ax.get_xlim() == ax.get_ylim()
        True
    """
    check_axes(ax)
    edges: Any = np.linspace(*limits, _CELLS + 1)
    wins = pairs[:, 0] > pairs[:, 1]
    scale = PowerNorm(0.5, vmin=0.0, vmax=np.histogram2d(pairs[:, 0], pairs[:, 1], edges)[0].max())
    for part, colors in ((pairs[wins], "Blues"), (pairs[~wins], "Oranges")):
        ax.hist2d(part[:, 0], part[:, 1], edges, norm=scale, cmap=colors, cmin=1, rasterized=True)
    ax.plot(limits, limits, color="0.45", lw=0.8)
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    ax.grid(visible=False)
    above = ax.inset_axes((0.0, 1.0, 1.0, 0.17), sharex=ax)
    above.hist(pairs[:, 0], edges, color="0.78")
    beside = ax.inset_axes((1.0, 0.0, 0.17, 1.0), sharey=ax)
    beside.hist(pairs[:, 1], edges, color="0.78", orientation="horizontal")
    for side in (above, beside):
        side.axis("off")
    return ax


def plot_gap_law(ax: Axes, gaps: Floats, limit: float) -> Axes:
    """The law of a gap, samples (N,), from -limit to limit: orange below zero, blue above.

    A dot marks the mean, its bar one standard deviation to either side.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        gaps: (N,) samples of the gap.
        limit: the largest gap that is shown, to either side.

    Returns:
        The same axes.

    Example:
        >>> import numpy as np
        >>> from jmdp_lib import figures
        >>> from matplotlib.figure import Figure
        >>> gaps = np.random.default_rng(0).normal(0.5, 1.0, size=1000)
        >>> len(figures.plot_gap_law(Figure().subplots(), gaps, limit=3.0).patches) > 0
        True
    """
    check_axes(ax)
    parts = [gaps[gaps < 0], gaps[gaps >= 0]]
    look: dict[str, Any] = {"color": [_LOSS, _WIN], "stacked": True}
    top = np.max(ax.hist(parts, _BARS, range=(-limit, limit), **look)[0])
    bar: dict[str, Any] = {"fmt": "o", "color": "black", "ms": 3, "lw": 1.0, "capsize": 2}
    ax.errorbar(gaps.mean(), 1.12 * top, xerr=gaps.std(), **bar)
    note = f"$P(G<0)$\n= {np.mean(gaps < 0):.2f}"
    ax.text(0.02, 0.62, note, transform=ax.transAxes, color=_LOSS, ha="left", va="center")
    ax.axvline(0.0, color="0.45", lw=0.8)
    ax.set(xlim=(-limit, limit), ylim=(0.0, 1.25 * top), yticks=[])
    ax.grid(visible=False)
    return ax
