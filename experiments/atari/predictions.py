"""Gaps as networks predict them, and the table that compares them with played ones (Table 1).

A network predicts the gaps of a state from what it sees of it. With the emulator's help it does
better: from the state's own table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.atari.networks import Network, Params
from experiments.atari.recursive_pairs import PairRecords, pair_gaps
from experiments.atari.replay import Replay
from experiments.atari.tables import QueryTables
from experiments.atari.td_errors import look_ahead, state_targets
from experiments.atari.training import Trained
from jmdp_lib import checks
from jmdp_lib.machine import extra

with extra("figures", "torch"):
    import pandas as pd
    import torch
    from torch import Tensor

#: Columns of what was simulated, and the fields of `PairGaps` that they are.
SIMULATED = {
    "mc_mean": "mean",
    "mc": "variance",
    "mc_independent": "independent",
    "mc_error": "variance_error",
}


class PredictedGaps(NamedTuple):
    """Predicted gaps Z(s, a) - Z(s, b) for S states and E members, each (E, S, A, A).

    gap_mean: their means. coupled: their variances if both actions share one table.
    """

    gap_mean: Tensor
    coupled: Tensor


def gaps_of(mean: Tensor, covariance: Tensor) -> PredictedGaps:
    """The gaps of means (E, S, A) and covariances (E, S, A, A)."""
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    apart = variance[..., :, None] + variance[..., None, :]
    return PredictedGaps(mean[..., :, None] - mean[..., None, :], apart - 2 * covariance)


@torch.no_grad()
def predict_gaps(network: Network, params: Params, observations: Tensor) -> PredictedGaps:
    """The gaps at states seen as observations (S, D) uint8."""
    here = network(params, observations.to(network.scale.device))
    return gaps_of(here.mean, here.covariance)


@torch.no_grad()
def backed_up_gaps(network: Network, params: Params, data: Replay) -> PredictedGaps:
    """The gaps at the G entries of complete tables with all actions, by one exact backup.

    This is T_2 of the network's moments: the first step is read from the state's own tables, and
    only what comes later is predicted.
    """
    batch = data.gather(torch.arange(len(data.rows), device=data.rows.device))
    return gaps_of(*state_targets(network, batch, look_ahead(network, params, batch)))


def evaluate(trained: Trained, evaluation: QueryTables, records: PairRecords) -> pd.DataFrame:
    """Predictions beside Monte Carlo, a row for each member and state.

    gap_mean and coupled are of the network alone; table is coupled after one exact backup of the
    network from the state's own tables. The columns of SIMULATED are what pairs show.
    """
    network = trained.network
    config = network.config
    simulated = pair_gaps(records, [gamma for gamma, _ in config.members], config.sigma)
    data = Replay.of(evaluation, network.scale.device)
    seen = data.columns["observations"][data.rows[:, 0]]
    told = predict_gaps(network, trained.params, seen)._asdict()
    told["table"] = backed_up_gaps(network, trained.params, data).coupled
    entry = np.unique(evaluation.state_ids, return_inverse=True)[1][simulated.state_rows]
    a, b = simulated.actions.T
    columns = {name: part.double().cpu().numpy()[:, entry, a, b] for name, part in told.items()}
    columns |= {name: getattr(simulated, of) for name, of in SIMULATED.items()}
    frames = []
    for member, (gamma, kind) in enumerate(config.members):
        keys = {"gamma": gamma, "kind": kind, "state": simulated.state_rows}
        frames.append(pd.DataFrame(keys | {name: x[member] for name, x in columns.items()}))
    every = pd.concat(frames).assign(game=config.name, seed=config.seed)
    return averages(every, ["game", "seed", "gamma", "kind", "state"])


def averages(gaps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means of all columns over the rows with the same keys; mc_error is that of the mean.

    All rows have the same weight, and their simulations are independent.
    """
    groups = gaps.assign(mc_error=gaps.mc_error**2).groupby(keys, sort=False, observed=True)
    means = groups.mean(numeric_only=True)
    means["mc_error"] = (means.mc_error / groups.size()) ** 0.5
    return means.reset_index()


@np.errstate(divide="ignore", invalid="ignore")  # where no simulated gap varied, a ratio is not one
def gap_table(
    gaps: pd.DataFrame, baseline: str = "constant", within: float = 2.0, exact: float = 0.01
) -> pd.DataFrame:
    """Table 1: a row per game, gamma and kind, from the gaps of all seeds.

    gaps: a row for each state, as of `evaluate`: every state has the same weight.

    coupled: average prediction / average Monte Carlo gap variance, the mean over seeds;
    coupled_interval: half a 95% interval for the given states (other states would have another
    average), from the simulation (normal) and the seeds (Student's t; zero if there is only one
    seed). mc_ratio: Monte Carlo's own independent / coupled.
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
    rows = []
    for (_, mc), (key, part) in zip(averages(one_seed, keys).iterrows(), groups, strict=True):
        constant = 2 * mc.gamma**2 / (1 - mc.gamma**2) if baseline == "constant" else mc.mc
        row = dict(zip(keys, key, strict=True)) | _ratio(part, mc)
        row |= _over_states(part, mc, constant, within, exact)
        row |= {"mc": mc.mc, "mc_error": mc.mc_error, "mc_ratio": mc.mc_independent / mc.mc}
        rows.append(row)
    return pd.DataFrame(rows)


def _ratio(part: pd.DataFrame, mc: pd.Series) -> dict[str, float]:
    """Predicted / Monte Carlo gap variance, with its interval; mc: the average over states."""
    by_seed = part.groupby("seed").coupled.mean() / mc.mc
    ratio = by_seed.mean()
    of_seeds = np.nan_to_num(special.stdtrit(len(by_seed) - 1, 0.975) * by_seed.sem())
    of_simulation = 1.96 * ratio * mc.mc_error / mc.mc
    return {"coupled": ratio, "coupled_interval": np.hypot(of_seeds, of_simulation)}


def _over_states(
    part: pd.DataFrame, mc: pd.Series, constant: float, within: float, exact: float
) -> dict[str, float]:
    """How well the differences between states are predicted.

    If the constant is right, its squared errors have the mean of the squared standard errors e^2 of
    the simulation, and about the variance 2 e^4.
    """
    one_seed = part[part.seed == part.seed.iloc[0]]
    noise = one_seed.mc_error**2
    of_constant = ((constant - one_seed.mc) ** 2 - noise).mean()
    squares = ((part.coupled - part.mc) ** 2).mean()
    spread = np.sqrt(2 * (noise**2).sum()) / len(one_seed)
    is_right = of_constant <= max(within * spread, (exact * mc.mc) ** 2)
    skill = np.nan if is_right else 1.0 - (squares - noise.mean()) / of_constant
    return {"constant": constant / mc.mc, "skill": skill, "error": np.sqrt(squares) / mc.mc}
