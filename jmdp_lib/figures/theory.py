"""Pictures of the theory: laws, convergence, moduli, learning, and the shape of the pair chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP
from jmdp_lib.moments import contraction_modulus


def joint_law(ax: Axes, jm: JMDP, state: int, actions: tuple[int, int], of: str) -> Axes:
    """The joint law of the rewards or next states of two actions (of: "reward", "next state")."""
    checks.one_of("of", of, ("reward", "next state"))
    rows = slice(jm.starts[state], jm.starts[state + 1])
    values = jm.rewards if of == "reward" else jm.next_states
    first, second = (values[rows, a] for a in actions)
    support = np.unique(values[rows])
    law = np.zeros((support.size, support.size))
    np.add.at(law, (np.searchsorted(support, second), np.searchsorted(support, first)),
              jm.probs[rows])  # fmt: skip
    ax.imshow(law, cmap="Blues", vmin=0.0, vmax=1.0, origin="lower")
    for i, j in np.ndindex(law.shape):
        shade = "white" if law[i, j] > 0.5 else "black"
        ax.text(j, i, f"{law[i, j]:.2f}", ha="center", va="center", color=shade, fontsize=8)
    letter = "R" if of == "reward" else "S'"
    ticks = np.arange(support.size)
    ax.set_xticks(ticks, [f"{v:g}" for v in support])
    ax.set_yticks(ticks, [f"{v:g}" for v in support])
    ax.set_xlabel(f"${letter}^{{({actions[0] + 1})}}$")
    ax.set_ylabel(f"${letter}^{{({actions[1] + 1})}}$")
    ax.grid(visible=False)
    return ax


def convergence(ax: Axes, residuals: Floats, gamma: float, errors: Floats | None = None) -> Axes:
    """Bellman residual on a log scale with the gamma^k line; the certificate where errors are."""
    steps = np.arange(residuals.size)
    ax.semilogy(steps, residuals[0] * gamma**steps, color="0.6", lw=3.0, label=r"$\gamma^k$")
    ax.semilogy(steps, residuals, label=r"residual $\|M_k - T M_k\|_\lambda$")
    if errors is not None:
        certificate = residuals / (1.0 - gamma)
        ax.semilogy(steps, certificate, "--", label=r"certificate, residual$/(1-\gamma)$")
        ax.semilogy(
            steps, errors, ":", color="black", label=r"true error $\|M_k - M^\pi\|_\lambda$"
        )
    ax.set_xlabel("iteration $k$")
    return ax


def moduli(ax: Axes, orders: Sequence[int], measured: Mapping[int, tuple[Floats, Floats]]) -> Axes:
    """Exact contraction modulus of each order against gamma, with measured ones as dots."""
    gamma = np.linspace(0.0, 0.999, 200)
    for order in orders:
        curve = [contraction_modulus(order, g) for g in gamma]
        width = 3.0 if order == 1 else 1.2  # order 2 has the same modulus and lies on top
        style = ("-", "-", "--", "-.")[min(order, 4) - 1]
        (line,) = ax.plot(gamma, curve, style, lw=width, zorder=3, label=f"order {order}")
        if order in measured:
            ax.plot(*measured[order], ".", ms=3, color=line.get_color(), alpha=0.4)
    ax.plot(gamma, gamma, color="0.6", lw=0.8, ls=":", zorder=0)
    ax.set_xlabel(r"$\gamma$")
    ax.set_ylabel("contraction modulus")
    return ax


def band(ax: Axes, x: ArrayLike, runs: ArrayLike, label: str, line: str = "-") -> Axes:
    """Median and 10-90% band of runs (num_runs, len(x)), on log-log axes."""
    low, middle, high = np.quantile(np.asarray(runs), [0.1, 0.5, 0.9], axis=0)
    (drawn,) = ax.loglog(np.asarray(x), middle, line, label=label)
    ax.fill_between(np.asarray(x), low, high, color=drawn.get_color(), alpha=0.2, lw=0)
    return ax


def against_exact(ax: Axes, exact: ArrayLike, found: ArrayLike, label: str) -> Axes:
    """Found against exact values, with the line where they agree; another marker each time."""
    x, y = np.ravel(np.asarray(exact)), np.ravel(np.asarray(found))
    ax.plot(x, y, "os^D"[len(ax.lines) // 2 % 4], ms=3, mfc="none", mew=0.7, label=label)
    low, high = float(min(x.min(), np.nanmin(y))), float(max(x.max(), np.nanmax(y)))
    ax.plot([low, high], [low, high], color="0.6", lw=0.8, zorder=1)
    ax.set_xlabel("exact")
    return ax


def pair_weights(ax: Axes, weights: ArrayLike, low: float = -6.0, high: float = -1.0) -> Axes:
    """Weights over pairs of state-actions (S, A, S, A), log10 between `low` and `high`."""
    law = np.asarray(weights, dtype=float)
    side = law.shape[0] * law.shape[1]
    shown = np.log10(np.maximum(law.reshape(side, side), 10.0**low))
    image = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high)
    ax.figure.colorbar(image, ax=ax, label=r"$\log_{10}$ weight", shrink=0.8)
    ax.set_xlabel("$(s, a)$")
    ax.set_ylabel(r"$(\tilde s, \tilde a)$")
    ax.grid(visible=False)
    return ax


def pair_closure(ax: Axes, steps: Ints, longest: int | None = None) -> Any:
    """Which pairs of states are reached, and when: steps (S, S), 0 for never. Gives the image."""
    shown = np.ma.masked_equal(steps, 0)
    ax.set_facecolor("0.93")
    image = ax.imshow(shown, cmap="viridis_r", vmin=1, vmax=longest or steps.max())
    ax.set_xlabel("state of one branch")
    ax.set_ylabel("state of the other")
    ax.grid(visible=False)
    return image


def partners(ax: Axes, steps: Ints, state: int, columns: int, longest: int | None = None) -> Any:
    """Where on a grid the other branch can stand while one is in `state` (dot): steps as above."""
    image = pair_closure(ax, steps[state].reshape(-1, columns), longest or int(steps.max()))
    dot = state % columns, state // columns
    ax.plot(*dot, "o", color="#D55E00", mec="white", mew=0.8, ms=6)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("")
    ax.set_ylabel("")
    return image


def matrix(ax: Axes, values: Floats, title: str) -> Axes:
    """A matrix of sizes on a log scale over four decades; grey is less, or zero."""
    high = float(np.abs(values).max())
    colors = plt.get_cmap("viridis_r").with_extremes(bad="0.93", under="0.93")
    image = ax.imshow(np.abs(values), cmap=colors, norm=LogNorm(1e-4 * high, high))
    ax.figure.colorbar(image, ax=ax, shrink=0.75, extend="min")
    ax.set_title(title)
    ax.set_xlabel("state")
    ax.grid(visible=False)
    return ax


def pattern(ax: Axes, kernel: Floats, title: str) -> Axes:
    """The entries of a matrix that are not zero: below, on and above the diagonal."""
    row, column = np.nonzero(kernel)
    for side, color, marker in ((-1, "#0072B2", "<"), (0, "0.6", "s"), (1, "#D55E00", ">")):
        these = np.sign(column - row) == side
        ax.scatter(column[these], row[these], s=6, color=color, marker=marker, lw=0)
    ax.set_xlim(-1, len(kernel))
    ax.set_ylim(len(kernel), -1)
    ax.set_aspect("equal")
    ax.set_title(title)
    ax.set_xlabel("to state number")
    return ax
