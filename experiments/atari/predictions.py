"""Gaps as networks predict them, from an observation or from the state's own tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.atari.networks import Network, Params
from experiments.atari.replay import Replay
from experiments.atari.tables import QueryTables
from experiments.atari.td_errors import look_ahead, state_targets
from jmdp_lib.checks import Ints
from jmdp_lib.machine import extra

with extra("pandas", "torch"):
    import pandas as pd
    import torch
    from torch import Tensor


def gaps_of(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (E, S, A, A) of the gaps Z(s, a) - Z(s, b).

    mean, covariance: (E, S, A) and (E, S, A, A), of actions that share one table.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    apart = variance[..., :, None] + variance[..., None, :]
    return mean[..., :, None] - mean[..., None, :], apart - 2 * covariance


@torch.no_grad()
def evaluate(
    network: Network, params: Params, tables: QueryTables, actions: Sequence[Ints]
) -> pd.DataFrame:
    """Predicted gaps at S states: a row for each member and state.

    tables: of the states, one after the other, as many of each, with all actions. actions: (P, 2)
    for each state, the pairs whose gaps are averaged, each once. gap_mean and coupled are of the
    network alone. table is coupled after one exact backup, that is T_2 of the network's moments:
    the first step is read from the state's own tables, and only what comes later is predicted.
    """
    data = Replay.of(tables, network.scale.device)
    batch = data.gather(torch.arange(len(data.rows), device=data.rows.device))
    here = network(params, batch.observations)
    backed_up = state_targets(network, batch, look_ahead(network, params, batch))
    gap_mean, coupled = gaps_of(here.mean, here.covariance)
    gaps = {"gap_mean": gap_mean, "coupled": coupled, "table": gaps_of(*backed_up)[1]}
    entries = np.unique(tables.state_ids, return_inverse=True)[1]
    entries = entries[:: len(entries) // len(actions)]
    frames = []
    for state, (entry, pairs) in enumerate(zip(entries, actions, strict=True)):
        a, b = np.unique(pairs, axis=0).T
        columns = {n: x[:, entry, a, b].double().mean(1).cpu() for n, x in gaps.items()}
        members = pd.DataFrame(network.config.members, columns=["gamma", "kind", "sigma"])
        frames.append(members.assign(state=state, **columns))
    return pd.concat(frames, ignore_index=True)
