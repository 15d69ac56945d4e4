"""Gaps against recursive-pair Monte Carlo (Figure 6), and the law of their signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import seaborn
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy import stats

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints

# One colour and marker for each group of gaps.
_GROUPS = (("#0072B2", "o"), ("#D55E00", "^"), ("#009E73", "s"), ("#CC79A7", "D"))


def prediction(
    ax: Axes, below: Axes, predicted: Floats, found: Floats, errors: Floats, group: Ints,
    names: Sequence[str],
) -> Axes:  # fmt: skip
    """Found against predicted values (K,), bars of two standard errors, the line where they agree.

    The axes `below` share the abscissa and show found - predicted in standard errors, which the
    bars above are usually too short to show. group: (K,) indices into `names`, four at most.
    """
    ends = [float(predicted.min()), float(predicted.max())]
    ax.plot(ends, ends, color="0.6", lw=0.8, zorder=0)
    below.axhspan(-2.0, 2.0, color="0.9", lw=0, zorder=0)
    below.axhline(0.0, color="0.6", lw=0.8, zorder=0)
    for g in np.unique(group):
        rows, (color, marker) = group == g, _GROUPS[g]
        x, y, bar = predicted[rows], found[rows], errors[rows]
        look: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "ms": 3.0,
            "mfc": "none",
            "mew": 0.7,
            "ls": "",
        }
        ax.errorbar(x, y, 2.0 * bar, elinewidth=0.8, label=names[g], **look)
        below.plot(x, (y - x) / bar, **look)
    limit = max(3.4, 1.1 * float(np.abs((found - predicted) / errors).max()))
    below.set_ylim(-limit, limit)
    below.set_yticks([-2, 0, 2])
    ax.tick_params(labelbottom=False)
    return ax


def distribution(
    ax: Axes, values: Mapping[str, ArrayLike], styles: Sequence[str] = ("-", "--")
) -> Axes:
    """Empirical distribution functions, the first one thick so that the next show on top of it."""
    for number, (name, sample) in enumerate(values.items()):
        look = {"ls": styles[number % len(styles)], "lw": 2.6 if number == 0 else 1.2}
        seaborn.ecdfplot(x=checks.floats(name, sample, "value"), ax=ax, label=name, **look)
    ax.set_ylim(0.0, 1.02)
    return ax


def normal_quantiles(ax: Axes, scores: Mapping[str, Floats], level: float = 0.95) -> Axes:
    """Sorted scores against the quantiles of N(0, 1); grey is where each lies with prob. `level`.

    The grey band is that of one order statistic at a time, of the longest of the samples.
    """
    size = max(len(z) for z in scores.values())
    rank = np.arange(1, size + 1)
    normal = stats.norm.ppf(rank / (size + 1))
    low, high = (stats.norm.ppf(stats.beta.ppf(p, rank, size + 1 - rank))
                 for p in (0.5 - level / 2, 0.5 + level / 2))  # fmt: skip
    ax.fill_between(normal, low, high, color="0.9", lw=0)
    ax.plot(normal, normal, color="0.6", lw=0.8)
    for (name, z), (color, marker) in zip(scores.items(), cycle(_GROUPS), strict=False):
        at = stats.norm.ppf(np.arange(1, len(z) + 1) / (len(z) + 1))
        ax.plot(at, np.sort(z), marker, color=color, ms=3.0, mfc="none", mew=0.7, label=name)
    ax.set_xlabel("quantile of $N(0, 1)$")
    return ax


def signs(ax: Axes, below: Floats, zero: Floats, bound: Floats) -> Axes:
    """P(G < 0), P(G = 0) and P(G > 0) of every gap (K,) as stacked bars, by size of the bound.

    bound: (K,) on P(G <= 0), a line that may not enter the lower two.
    """
    order = np.lexsort((below + zero, bound))
    at, losses, ties = np.arange(order.size), below[order], zero[order]
    bar: dict[str, Any] = {"width": 1.0, "lw": 0}
    ax.bar(at, losses, color="#D55E00", label="$P(G<0)$", **bar)
    ax.bar(at, ties, bottom=losses, color="#F0C75E", label="$P(G=0)$", **bar)
    ax.bar(at, 1.0 - losses - ties, bottom=losses + ties, color="#D6E6F2", label="$P(G>0)$", **bar)
    ax.step(at, bound[order], where="mid", color="black", label=r"bound on $P(G \leq 0)$")
    ax.set_xlim(-0.5, order.size - 0.5)
    ax.set_ylim(0.0, 1.02)
    ax.grid(visible=False)
    return ax


def sorted_ratios(ax: Axes, ratios: Mapping[str, Floats], errors: Floats | None = None) -> Axes:
    """Ratios (K,) of predictions to Monte Carlo by gap, in the order of the last of them.

    errors: (K,) two standard errors of the first ratio, as a grey band around one.
    """
    order = np.argsort(list(ratios.values())[-1])
    at = np.arange(order.size)
    if errors is not None:
        ax.fill_between(at, 1.0 - errors[order], 1.0 + errors[order], color="0.85", lw=0)
    for (name, ratio), (color, marker) in zip(ratios.items(), cycle(_GROUPS), strict=False):
        ax.plot(at, ratio[order], marker, color=color, ms=2.5, mfc="none", mew=0.7, label=name)
    return ax
