"""Figure 2 and its relatives: how fast the Bellman residual and its parts fall."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from jmdp_lib.checks import Floats
from jmdp_lib.solvers.trace import Trace, decay_rate

# gamma^k is a broad band that curves lie on; gamma^2k a dashed line.
_BAND = {"color": "0.8", "lw": 5.0, "solid_capstyle": "butt", "zorder": 1}
_DASHED = {"color": "0.4", "lw": 0.9, "ls": "--", "zorder": 1}


def residual_decay(ax: Axes, residuals: Floats, gamma: float, marks: int = 15) -> Axes:
    """Residuals (iterations,) as dots, the gamma^k line below, and the measured slope on top."""
    steps = np.arange(residuals.size)
    rate = decay_rate(residuals)
    # the least-squares line goes through the mean of the logarithms
    middle = np.exp(np.log(residuals).mean() - np.log(rate) * steps.mean())
    ax.semilogy(
        steps, residuals[0] * gamma**steps, label=rf"$\gamma^k$, $\gamma = {gamma:g}$", **_BAND
    )
    ax.semilogy(steps, middle * rate**steps, color="black", lw=0.8,
                label=f"fit: factor {rate:.4f} per iteration")  # fmt: skip
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
    ax.semilogy(steps, gamma ** (2.0 * steps), label=r"$\gamma^{2k}$", **_DASHED)
    parts = {
        r"means $\mu$": (trace.mean / unit, "#0072B2", "-"),
        r"second moments $\Sigma / \lambda$": (trace.second / trace.weight / unit, "#009E73", "-."),
        r"covariances $C$": (trace.covariance / trace.covariance.max(), "#D55E00", "-"),
    }
    for label, (values, color, line) in parts.items():
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


def sweeps_by_gamma(ax: Axes, sweeps: Mapping[float, int], tol: float) -> Axes:
    """How many sweeps a certificate of tol took for each gamma, and log(tol (1-gamma)) / log gamma.

    The axis is the horizon 1 / (1 - gamma).
    """
    gammas = np.array(list(sweeps))
    fine = 1.0 - np.geomspace(1.0 - gammas.min(), 1.0 - gammas.max(), 200)
    needed = np.log(tol * (1.0 - fine)) / np.log(fine)
    label = r"$\log(\mathrm{tol}\,(1-\gamma)) / \log\gamma$"
    ax.loglog(1.0 / (1.0 - fine), needed, color="0.6", lw=1.0, zorder=1, label=label)
    ax.loglog(1.0 / (1.0 - gammas), list(sweeps.values()), "o", ms=4, label="measured")
    ax.set_xticks(1.0 / (1.0 - gammas), [f"{1.0 / (1.0 - g):.3g}" for g in gammas], minor=False)
    ax.set_xticks([], minor=True)
    ax.set_xlabel(r"horizon $1/(1-\gamma)$")
    return ax
