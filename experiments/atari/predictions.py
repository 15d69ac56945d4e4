"""Gaps as networks predict them, and the table that compares them with played ones (Table 1).

A network predicts the gaps of a state from what it sees of it. With the emulator's help it does
better: from the state's own tables, or after a few steps that are really played.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from experiments.atari.networks import Network, Params
from experiments.atari.replay import Replay
from experiments.atari.td_errors import look_ahead, policy_moments, state_targets
from jmdp_lib.atari.recursive_pairs import PairRecords, Tail
from jmdp_lib.machine import extra

with extra("figures", "torch"):
    import pandas as pd
    import torch
    from torch import Tensor

_SIMULATED = ["mc_mean", "mc", "mc_independent"]
_ERRORS = [f"{name}_error" for name in _SIMULATED]


class Gaps(NamedTuple):
    """Predicted gaps Z(s, a) - Z(s, b) for S states and E members, each (E, S, A, A).

    gap_mean: their means. coupled: their variances if both actions share one table. independent:
    their variances if the two returns were independent, Var Z(s, a) + Var Z(s, b).
    """

    gap_mean: Tensor
    coupled: Tensor
    independent: Tensor


def gaps_of(network: Network, mean: Tensor, covariance: Tensor) -> Gaps:
    """The gaps of means (E, S, A) and covariances (E, S, A, A), in the scale of the rewards."""
    unit = network.earned[:, None, None]
    mean, covariance = mean / unit, covariance / unit[..., None] ** 2
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    independent = variance[..., :, None] + variance[..., None, :]
    gap_mean = mean[..., :, None] - mean[..., None, :]
    return Gaps(gap_mean, independent - 2 * covariance, independent)


@torch.no_grad()
def predict_gaps(network: Network, params: Params, observations: Tensor, previous: Tensor) -> Gaps:
    """The gaps at states seen as observations (S, D) uint8 with previous actions (S,)."""
    device = network.scale.device
    here = network(params, observations.to(device), previous.to(device))
    return gaps_of(network, here.mean, here.covariance)


@torch.no_grad()
def backed_up_gaps(network: Network, params: Params, data: Replay, size: int = 64) -> Gaps:
    """The gaps at the G entries of complete tables with all actions, by one exact backup.

    This is T_2 of the network's moments: the first step is read from the state's own tables, and
    only what comes later is predicted.
    """
    parts = []
    for entries in torch.arange(len(data.rows), device=data.rows.device).split(size):
        batch = data.gather(entries)
        parts.append(state_targets(network, batch, look_ahead(network, params, batch)))
    return gaps_of(network, *(torch.cat(part, 1) for part in zip(*parts, strict=True)))


@torch.no_grad()
def tail(network: Network, params: Params, records: PairRecords, place: int) -> Tail:
    """What the E members predict for recorded pairs from time `records.depths[place]` on."""
    depth, device = int(records.depths[place]), network.scale.device

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=device)

    seen, last = tensor(records.seen[:, :, place]), tensor(records.previous[:, :, place])
    ahead = policy_moments(network(params, seen, last), network.policy)  # (E, M, 2, .)
    met = records.same_state & (records.played[:, 0] == records.played[:, 1])
    one, same = tensor(met[:, :depth].any(1)), tensor(records.same_state[:, depth])
    alive = tensor(records.alive[:, :, depth])
    gamma = (network.gammas**depth / network.earned)[:, None, None]
    apart = [(part[:, :, 0] * part[:, :, 1]).sum(-1) for part in (ahead.shared, ahead.near)]
    close = (ahead.place[:, :, 0] - ahead.place[:, :, 1]).square().sum(-1).neg().exp()
    pair = apart[0] + close * apart[1] + same * ahead.merged[..., 0]
    pair = alive.all(1) * torch.where(one, ahead.single[..., 0], pair)  # (E, M)
    value, single = alive * gamma * ahead.value, alive * gamma**2 * ahead.single
    gap = single.sum(-1) - 2 * gamma[..., 0] ** 2 * pair
    return Tail(*(part.double().cpu().numpy() for part in (value, single, gap)))


def by_state(gaps: pd.DataFrame) -> pd.DataFrame:
    """Gaps averaged over the action pairs of a state, a row each: all that a table needs.

    All pairs have the same weight, and their simulations are independent.
    """
    keys = ["game", "noise", "seed", "gamma", "kind", "state"]
    squared = gaps.assign(**gaps[_ERRORS] ** 2).groupby(keys, sort=False)
    size, means = squared.size(), squared[[*_SIMULATED, *Gaps._fields]].mean()
    means[_ERRORS] = np.sqrt(squared[_ERRORS].sum()).div(size, axis=0)
    means["mc_covariance"] = squared["mc_covariance"].sum() / size**2
    return means.reset_index()


@np.errstate(divide="ignore", invalid="ignore")  # where no simulated gap varied, a ratio is not one
def gap_table(gaps: pd.DataFrame) -> pd.DataFrame:
    """Table 1: a row per game, noise, gamma and kind, from the gaps of all seeds.

    gaps: the rows of `by_state`: every state has the same weight. Its column noise says what the
    actions share (`Experiment.noise`).

    coupled, independent: average prediction / average Monte Carlo gap variance, the mean over
    seeds; *_interval: half a 95% interval for the given states (other states would have another
    average), from the simulation (normal) and the seeds (Student's t; zero if there is only one
    seed). mc_ratio: Monte Carlo's own independent / coupled, with an interval by
    the delta method.
    rank: Spearman correlation over states of predicted and simulated gap variance, the mean over
    seeds. reliability: share of the variance between the simulated gap variances of states that is
    not simulation noise; a perfect prediction's correlation would be about its square root.
    constant: a prediction that needs no learning, over the average Monte Carlo gap variance. Under
    a shock of size one, as in all our runs, it is 2 gamma^2 / (1 - gamma^2), the gap variance
    if branches never meet and rewards do not vary; otherwise the average itself. skill:
    1 - MSE / (MSE of the constant), mean squared errors over states with the simulation's noise
    subtracted from both, the mean over seeds.
    error: root mean squared error over states / the average, noise included.
    """
    rows = []
    keys = ["game", "noise", "gamma", "kind"]
    groups = gaps.groupby(keys, sort=False)
    ones = gaps[gaps.seed == groups.seed.transform("first")]  # all seeds have the same simulation
    averages = by_state(ones.assign(state=0))
    for place, (key, part) in enumerate(groups):
        one, mc = part[part.seed == part.seed.iloc[0]], averages.iloc[place]
        ratio = mc.mc_independent / mc.mc
        spread = mc.mc_independent_error**2 + (ratio * mc.mc_error) ** 2
        spread -= 2.0 * ratio * mc.mc_covariance
        row = dict(zip(keys, key, strict=True))
        by_seed = part.groupby("seed")
        for name in ("coupled", "independent"):
            each = by_seed[name].mean() / mc.mc
            of_seeds = np.nan_to_num(special.stdtrit(len(each) - 1, 0.975) * each.sem())
            row[name] = each.mean()
            row[f"{name}_interval"] = np.hypot(of_seeds, 1.96 * each.mean() * mc.mc_error / mc.mc)
        row |= {"mc_ratio": ratio, "mc_ratio_interval": 1.96 * np.sqrt(max(spread, 0.0)) / mc.mc}
        ranks = [s[["coupled", "mc"]].rank().corr().iloc[0, 1] for _, s in by_seed]
        noise, gamma = (one.mc_error**2).mean(), row["gamma"]
        constant = 2 * gamma**2 / (1 - gamma**2) if row["noise"] == "reward" else mc.mc
        left = ((constant - one.mc) ** 2).mean() - noise
        squares = ((part.coupled - part.mc) ** 2).mean()
        row |= {
            "rank": np.mean(ranks),
            "reliability": max(0.0, 1.0 - noise / max(one.mc.var(), 1e-300)),
            "constant": constant / mc.mc,
            "skill": 1.0 - (squares - noise) / left if left > 0 else np.nan,
            "error": np.sqrt(squares) / mc.mc,
        }
        rows.append({**row, "mc": mc.mc, "mc_error": mc.mc_error})
    return pd.DataFrame(rows)
