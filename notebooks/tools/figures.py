"""Plots that chapters share: environments (Figures 1 and 3), their correlations (4 and 5), agreement
(Figure 6), joint returns and gaps. Each function takes an `ax` and returns it, or the image drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, PowerNorm
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats
from jmdp_lib.laws import GapLaw
from jmdp_lib.model import JMDP
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.simulators.decisions import History

__all__ = ["gridworld", "transition"]
__all__ += ["correlation_bar", "correlation_grid"]
__all__ += ["agreement", "bracket", "intervals", "joint_returns", "plot_gap_law"]

_GOAL = "#cdebdd"
_BLUE = "#0072B2"
_ORANGE = "#D55E00"
_COLORS = "RdBu_r"
_MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}
# Clipped: the layout of a figure need not measure hundreds of numbers.
_IN_CELL: dict[str, Any] = {**_MIDDLE, "clip_on": True}
# Fisher's scale, so that .80 and .90 have different colours: artanh of nearly the correlation.
_SCALE = FuncNorm((lambda r: np.arctanh(0.9 * r), lambda z: np.tanh(z) / 0.9), -1.0, 1.0)
_WIN = "#0072B2"
_LOSS = "#D55E00"
_CELLS = 80  # on either axis of a joint law
_BARS = 60  # of the law of a gap: an even number, so that none crosses zero


def check_axes(ax: Any) -> None:
    """Refuse what nobody can draw on."""
    if not hasattr(ax, "add_patch"):
        raise ValueError(f"ax must be axes of Matplotlib, as plt.subplots() makes, got {ax!r}")


def gridworld(ax: Axes, jm: JMDP, policy: Policy, columns: int) -> Axes:
    """Figure 1: cells, goal, gusts and policy, read from the tables of a grid `columns` wide.

    Black arrows show where the policy's actions lead in calm air, the first table, the more likely
    the darker. Orange ones show where a gust, the second, takes the same actions instead, and a
    ring where the agent stays. States count row by row; one that no action ever leaves is a goal.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        jm: the grid, with one or two tables in each state.
        policy: the policy whose actions are shown, in any form that solvers take.
        columns: how many cells a row has.

    Returns:
        The same axes.

    Example:
        >>> import jmdp_lib as jl
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> jm, policy = jl.windy_gridworld(3), jl.goal_policy(3)
        >>> ax = figures.gridworld(Figure().subplots(), jm, policy, columns=3)
        >>> len(ax.patches) > 0
        True
    """
    check_axes(ax)
    matrix = policy_matrix(jm, policy)
    places = np.stack(np.divmod(np.arange(jm.num_states), columns)[::-1], -1)  # (S, 2): x, y
    looks = (("black", 0.0), (_ORANGE, 0.16))[: jm.starts[1]]  # without wind there is one table
    for s, (x, y) in enumerate(places):
        led = jm.next_states[jm.starts[s] : jm.starts[s + 1]]  # (K, A)
        goal = bool((led == s).all())
        face = _GOAL if goal else "white"
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=face, ec="black", lw=0.8))
        if goal:
            ax.text(x, y, "Goal", weight="bold", **_MIDDLE)
            continue
        for a in np.flatnonzero(matrix[s]):
            for after, (color, aside) in zip(led[:, a], looks, strict=True):
                way = 0.62 * (places[after] - places[s])
                _move(ax, x, y + aside, way, color=color, alpha=matrix[s, a])
    bottom = (columns - 1) / 2, jm.num_states // columns - 0.4
    look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 6.5, "linespacing": 1.4}
    ax.text(*bottom, "black: in calm air\n\n", **look)
    if len(looks) > 1:
        note = f"\norange: in a gust, probability {jm.probs[1]:g}\n(ring: the agent stays)"
        ax.text(*bottom, note, color=_ORANGE, **look)
    ax.set(xlim=(-0.52, columns - 0.48), ylim=(bottom[1] + 0.46, -0.52), aspect="equal")
    ax.axis("off")
    return ax


def _move(ax: Axes, x: float, y: float, way: Floats, **look: Any) -> None:
    """An arrow that stops short of the next centre; a ring for staying."""
    if way.any():
        _arrow(ax, x, y, way, 8, lw=1.1, zorder=3, **look)
    else:
        ax.add_patch(Circle((x, y), 0.06, fill=False, lw=1.0, **look))


def _arrow(ax: Axes, x: float, y: float, way: ArrayLike, head: float, **look: Any) -> None:
    """From (x, y) to (x, y) + way."""
    right, down = np.asarray(way)
    look |= {"arrowstyle": "-|>", "mutation_scale": head, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch((x, y), (x + right, y + down), **look))


def transition(ax: Axes, jm: JMDP, state: int) -> Axes:
    """Figure 3: one transition of a chain with two actions that lead to the same next state.

    Each arrow says what its action earns in the first and in the second table.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        jm: the chain.
        state: where the transition starts.

    Returns:
        The same axes.

    Example:
        >>> import jmdp_lib as jl
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> ax = figures.transition(Figure().subplots(), jl.coupled_reward_chain(3), state=0)
        >>> len(ax.texts) > 0
        True
    """
    check_axes(ax)
    rewards = jm.rewards[jm.starts[state] : jm.starts[state + 1]]
    for x, name in zip((0.0, 3.2), ("s_i", "s_{i+1}"), strict=True):
        ax.add_patch(Circle((x, 0.0), 0.42, fc="white", ec="black", lw=0.9, zorder=3))
        ax.text(x, 0.0, f"${name}$", zorder=4, **_MIDDLE)
    for a, (color, side) in enumerate(((_BLUE, 1), (_ORANGE, -1))):
        bend = f"arc3,rad={-0.28 * side}"
        _arrow(ax, 0.3, 0.3 * side, (2.6, 0.0), 10, color=color, lw=1.6, connectionstyle=bend)
        pays = f"$a_{a + 1}$ pays {' or '.join(f'{r:g}' for r in rewards[:, a])}"
        ax.text(1.6, side, pays.replace("-", "\u2212"), color=color, fontsize=8, **_MIDDLE)
    ax.text(1.6, 0.0, "one draw\nfor both", fontsize=6.5, color="0.3", linespacing=1.4, **_MIDDLE)
    ax.set(xlim=(-0.6, 3.8), ylim=(-1.3, 1.3), aspect="equal")
    ax.axis("off")
    return ax


def _entries(ax: Axes, matrix: Floats, corner: tuple[float, float], fontsize: float) -> None:
    """The entries of a matrix and its outline; the caller sets the limits of the axes.

    A return that does not vary has no correlation with anything: nan, hatched and not coloured.
    """
    size = len(matrix)
    x0, y0 = corner
    colors = plt.get_cmap(_COLORS)(_SCALE(matrix))
    # add_patch would measure each of hundreds of rectangles for limits that are set anyway
    for (i, j), value in np.ndenumerate(matrix):
        look: dict[str, Any] = {"fc": "0.93", "ec": "0.7", "hatch": "//////"}
        if not np.isnan(value):
            look = {"fc": colors[i, j]}
            shade = "white" if abs(value) > 0.8 else "black"
            ax.text(x0 + j, y0 + i, short(value), color=shade, fontsize=fontsize, **_IN_CELL)
        ax.add_artist(Rectangle((x0 + j - 0.5, y0 + i - 0.5), 1, 1, lw=0.0, **look))
    outline = (x0 - 0.5, y0 - 0.5)
    ax.add_artist(Rectangle(outline, size, size, fc="none", ec="black", lw=0.6, zorder=3))


def correlation_grid(
    ax: Axes,
    correlation: Floats,
    columns: int,
    labels: Sequence[str],
    *,
    goal: int | None = None,
    fontsize: float = 6.0,
) -> Axes:
    """Figure 4: the correlation matrices (S, A, A) of a gridworld, each where its cell is.

    Figure 5 has one of them, in one column.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        correlation: (S, A, A) as `Moments.correlation` has them.
        columns: how many matrices stand in a row.
        labels: (A,) the names of the actions.
        goal: the state that is marked as the goal; None marks none.
        fontsize: of the numbers, in points.

    Returns:
        The same axes.

    Example:
        >>> import jmdp_lib as jl
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> jm = jl.windy_gridworld(2)
        >>> correlation = jl.jipe2(jm, jl.goal_policy(2)).moments.correlation
        >>> ax = Figure().subplots()
        >>> ax = figures.correlation_grid(ax, correlation, columns=2, labels="NESW")
        >>> len(ax.get_xticks())  # four actions in each of two columns
        8
    """
    check_axes(ax)
    num_states, size = correlation.shape[:2]
    rows = num_states // columns
    pitch = size + 0.8
    for s, matrix in enumerate(correlation):
        x, y = pitch * (s % columns), pitch * (s // columns)
        _entries(ax, matrix, (x, y), fontsize)
        if s == goal:
            box = {"fc": "white", "ec": "none", "pad": 1.5}
            middle = (x + (size - 1) / 2, y + (size - 1) / 2)
            ax.text(*middle, "Goal", weight="bold", bbox=box, **_MIDDLE)
    ticks = np.add.outer(pitch * np.arange(max(rows, columns)), np.arange(size))
    ax.set_xticks(ticks[:columns].ravel(), list(labels) * columns)
    ax.set_yticks(ticks[:rows].ravel(), list(labels) * rows)
    ax.set(xlim=(-0.6, pitch * columns - 1.2), ylim=(pitch * rows - 1.2, -0.6), aspect="equal")
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    return ax


def correlation_bar(fig: Any, axes: Any, **where: Any) -> Any:
    """The colour bar of the correlations.

    Args:
        fig: the figure that gets the bar.
        axes: the axes beside which it stands, one or several.
        **where: further options of `Figure.colorbar`, such as `orientation` and `label`.

    Returns:
        The bar.

    Example:
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> fig = Figure()
        >>> bar = figures.correlation_bar(fig, fig.subplots(), orientation="horizontal")
        >>> print(bar.vmin, bar.vmax)
        -1.0 1.0
    """
    scale = plt.cm.ScalarMappable(_SCALE, _COLORS)
    return fig.colorbar(scale, ax=axes, ticks=[-1, -0.8, -0.5, 0, 0.5, 0.8, 1], **where)


def short(value: float) -> str:
    """Two digits without the leading zero: .53, \u2212.07, 1; smaller ones: 0+, 0\u2212."""
    if 1e-12 < abs(value) < 0.005:
        return "0+" if value > 0 else "0\u2212"
    text = f"{value:.2f}".replace("-0.00", "0.00").replace("-", "\u2212")
    return text.replace("1.00", "1").replace("0.", ".")


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
        >>> from notebooks.tools import figures
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
        >>> from notebooks.tools import figures
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
        >>> from notebooks.tools import figures
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


def bracket(ax: Axes, law: GapLaw, color: str, label: str) -> Axes:
    """The bracket of a distribution function as a band over x, which steps at every cut.

    An atom is a vertical line.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        law: the law in brackets.
        color: of the band.
        label: what the legend calls it.

    Returns:
        The same axes.

    Example:
        >>> import jmdp_lib as jl
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> law = jl.laws.GapLaw.from_sample((0, 0, 1), [-1.0, 0.0, 2.0], limits=(-3.0, 3.0))
        >>> len(figures.bracket(Figure().subplots(), law, "0.8", "a sample").collections)
        1
    """
    check_axes(ax)
    cuts = np.repeat(law.points.ravel(), 2)[1:-1]
    ends = np.repeat(law.low[:-1], 2), np.repeat(law.high[1:], 2)
    ax.fill_between(cuts, *ends, lw=0.8, color=color, label=label)
    return ax


def intervals(ax: Axes, history: History, i: int, j: int, color: str, label: str) -> Axes:
    """Both ends of the intervals of a decision for one mean gap, against the number of queries.

    A dot marks the last look that changed them: then a branch was beaten, or the decision made.

    Args:
        ax: axes of Matplotlib, which are drawn on and returned.
        history: that of the decision.
        i: the branch whose mean gap it is, by its position.
        j: that of the other one.
        color: of both lines.
        label: what the legend calls them.

    Returns:
        The same axes.

    Example:
        >>> import jmdp_lib as jl
        >>> from notebooks.tools import figures
        >>> from matplotlib.figure import Figure
        >>> jm, policy = jl.windy_gridworld(size=3, gamma=0.5), jl.goal_policy(3)
        >>> found = jl.simulators.compare_actions(jm, policy, [0, 2], state=4, rng=0)
        >>> len(figures.intervals(Figure().subplots(), found.history, 0, 1, "C0", "up").lines)
        2
    """
    check_axes(ax)
    ends = history.intervals[:, i, j]
    until = np.flatnonzero(np.diff(np.ptp(ends, axis=1))).max(initial=0) + 2
    look: dict[str, Any] = {"drawstyle": "steps-post", "marker": ".", "markevery": [-1]}
    for end, name in zip(ends[:until].T, (label, None), strict=True):
        ax.plot(history.num_queries[:until], end, color=color, label=name, **look)
    return ax
