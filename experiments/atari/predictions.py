"""Gaps as networks predict them, and the table that compares them with played ones (Table 1).

A network predicts the gaps of a state from what it sees of it. With the emulator's help it does
better: from the state's own table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.atari.networks import Network, Params
from experiments.atari.replay import Replay
from experiments.atari.td_errors import (
    look_ahead,
    state_targets,
)
from jmdp_lib import checks
from jmdp_lib.machine import extra

with extra("figures", "torch"):
    import pandas as pd
    import torch
    from torch import Tensor

_SIMULATED = ["mc_mean", "mc", "mc_independent"]
_ERRORS = [f"{name}_error" for name in _SIMULATED]


class PredictedGaps(NamedTuple):
    """Predicted gaps Z(s, a) - Z(s, b) for S states and E members, each (E, S, A, A).

    gap_mean: their means. coupled: their variances if both actions share one table. independent:
    their variances if the two returns were independent, Var Z(s, a) + Var Z(s, b).
    """

    gap_mean: Tensor
    coupled: Tensor
    independent: Tensor


def gaps_of(network: Network, mean: Tensor, covariance: Tensor) -> PredictedGaps:
    """The gaps of means (E, S, A) and covariances (E, S, A, A), in the scale of the rewards."""
    unit = network.earned[:, None, None]
    mean = mean / unit
    covariance = covariance / unit[..., None] ** 2
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    independent = variance[..., :, None] + variance[..., None, :]
    gap_mean = mean[..., :, None] - mean[..., None, :]
    return PredictedGaps(gap_mean, independent - 2 * covariance, independent)


@torch.no_grad()
def predict_gaps(network: Network, params: Params, observations: Tensor) -> PredictedGaps:
    """The gaps at states seen as observations (S, D) uint8."""
    here = network(params, observations.to(network.scale.device))
    return gaps_of(network, here.mean, here.covariance)


@torch.no_grad()
def backed_up_gaps(network: Network, params: Params, data: Replay, size: int = 64) -> PredictedGaps:
    """The gaps at the G entries of complete tables with all actions, by one exact backup.

    This is T_2 of the network's moments: the first step is read from the state's own tables, and
    only what comes later is predicted.
    """
    parts = []
    for entries in torch.arange(len(data.rows), device=data.rows.device).split(size):
        batch = data.gather(entries)
        parts.append(state_targets(network, batch, look_ahead(network, params, batch)))
    return gaps_of(network, *(torch.cat(part, 1) for part in zip(*parts, strict=True)))


def by_state(gaps: pd.DataFrame) -> pd.DataFrame:
    """Gaps averaged over the action pairs of a state, a row each: all that a table needs.

    All pairs have the same weight, and their simulations are independent.
    """
    keys = ["game", "seed", "gamma", "kind", "state"]
    squared = gaps.assign(**gaps[_ERRORS] ** 2).groupby(keys, sort=False)
    size = squared.size()
    means = squared[[*_SIMULATED, *PredictedGaps._fields]].mean()
    means[_ERRORS] = np.sqrt(squared[_ERRORS].sum()).div(size, axis=0)
    means["mc_covariance"] = squared["mc_covariance"].sum() / size**2
    return means.reset_index()


@np.errstate(divide="ignore", invalid="ignore")  # where no simulated gap varied, a ratio is not one
def gap_table(
    gaps: pd.DataFrame, baseline: str = "constant", within: float = 2.0, exact: float = 0.01
) -> pd.DataFrame:
    """Table 1: a row per game, gamma and kind, from the gaps of all seeds.

    gaps: the rows of `by_state`: every state has the same weight.

    coupled: average prediction / average Monte Carlo gap variance, the mean over seeds;
    coupled_interval: half a 95% interval for the given states (other states would have another
    average), from the simulation (normal) and the seeds (Student's t; zero if there is only one
    seed). mc_ratio: Monte Carlo's own independent / coupled, with an interval by the delta method.
    constant: the `baseline` over the average Monte Carlo gap variance: "constant", which needs no
    learning, is 2 gamma^2 / (1 - gamma^2), the gap variance under a shock of size one if branches
    never meet and rewards do not vary; "mean" is the average itself. skill:
    1 - MSE / (MSE of the baseline), mean squared errors over states with the simulation's noise
    subtracted from both, the mean over seeds. It is missing where the baseline is right: if what
    remains of its MSE is within `within` standard errors of the simulation's noise, or is that of
    an error of less than the share `exact` of the average.
    error: root mean squared error over states / the average, noise included.
    """
    checks.one_of("baseline", baseline, ("constant", "mean"))
    keys = ["game", "gamma", "kind"]
    groups = gaps.groupby(keys, sort=False)
    one_seed = gaps[gaps.seed == groups.seed.transform("first")]  # all have the same simulation
    averages = by_state(one_seed.assign(state=0))
    rows = []
    for place, (key, part) in enumerate(groups):
        named = dict(zip(keys, key, strict=True))
        mc = averages.iloc[place]
        gamma = named["gamma"]
        constant = 2 * gamma**2 / (1 - gamma**2) if baseline == "constant" else mc.mc
        row = named | _ratio(part, mc) | _monte_carlo_ratio(mc) | _over_states(part, mc, constant)
        if _is_right(part, mc, constant, within, exact):
            row["skill"] = np.nan
        rows.append({**row, "mc": mc.mc, "mc_error": mc.mc_error})
    return pd.DataFrame(rows)


def _ratio(part: pd.DataFrame, mc: pd.Series) -> dict[str, float]:
    """Predicted / Monte Carlo gap variance, with its interval; mc: the average over states."""
    by_seed = part.groupby("seed").coupled.mean() / mc.mc
    ratio = by_seed.mean()
    of_seeds = np.nan_to_num(special.stdtrit(len(by_seed) - 1, 0.975) * by_seed.sem())
    of_simulation = 1.96 * ratio * mc.mc_error / mc.mc
    return {"coupled": ratio, "coupled_interval": np.hypot(of_seeds, of_simulation)}


def _monte_carlo_ratio(mc: pd.Series) -> dict[str, float]:
    """Simulated independent / coupled gap variance, with an interval by the delta method."""
    ratio = mc.mc_independent / mc.mc
    spread = mc.mc_independent_error**2 + (ratio * mc.mc_error) ** 2
    spread -= 2.0 * ratio * mc.mc_covariance
    return {"mc_ratio": ratio, "mc_ratio_interval": 1.96 * np.sqrt(max(spread, 0.0)) / mc.mc}


def _is_right(
    part: pd.DataFrame, mc: pd.Series, constant: float, within: float, exact: float
) -> bool:
    """Whether a constant is right at all states, within the simulation's noise or nearly exactly.

    If it is right, its squared errors have the mean of the squared standard errors e^2 of the
    simulation, and about the variance 2 e^4.
    """
    one_seed = part[part.seed == part.seed.iloc[0]]
    left = ((constant - one_seed.mc) ** 2 - one_seed.mc_error**2).mean()
    spread = np.sqrt(2 * (one_seed.mc_error**4).sum()) / len(one_seed)
    return bool(left <= max(within * spread, (exact * mc.mc) ** 2))


def _over_states(part: pd.DataFrame, mc: pd.Series, constant: float) -> dict[str, float]:
    """How well the differences between states are predicted."""
    one_seed = part[part.seed == part.seed.iloc[0]]
    simulation_noise = (one_seed.mc_error**2).mean()
    constant_error = ((constant - one_seed.mc) ** 2).mean() - simulation_noise
    squares = ((part.coupled - part.mc) ** 2).mean()
    skill = 1.0 - (squares - simulation_noise) / constant_error if constant_error > 0 else np.nan
    return {"constant": constant / mc.mc, "skill": skill, "error": np.sqrt(squares) / mc.mc}
