"""Gram networks of many dimensions on a gridworld whose moments are known exactly (part grid)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

import jmdp_lib as jl
from experiments.atari.networks import Network
from experiments.atari.predictions import predict_gaps
from experiments.atari.replay import Replay
from experiments.atari.settings import Config
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.training import train


def learned_gaps(table: dict[str, Any]) -> pd.DataFrame:
    """Learned / exact gap variance, and the root mean square error / average, by trial and seed.

    table: of the part. The networks see each of 16 cells as one byte that is not zero.
    """
    config = dict(table["config"])
    ([gamma],), [kind], [sigma] = (config.pop(name) for name in ("gammas", "kinds", "sigmas"))
    grid = jl.windy_gridworld(4, gamma=gamma)
    moments = jl.jipe2(with_shock(grid, sigma), jl.uniform_policy(grid)).moments
    apart = ~np.eye(grid.num_actions, dtype=bool)
    exact = moments.gap_variance[:, apart]
    cells = 255 * np.eye(grid.num_states, dtype=np.uint8)
    tables = tables_of(grid, cells)
    data = Replay.of(tables)
    rows = []
    for trial in table["trials"].values():
        for seed in table["seeds"]:
            network = Network.of(
                tables, Config(((gamma, kind, sigma),), seed=seed, **config | trial)
            )
            gaps = predict_gaps(network, train(network, data).params, torch.from_numpy(cells))
            learned = gaps.coupled[0].numpy()[:, apart]
            error = np.sqrt(((learned - exact) ** 2).mean())
            row = {"kind": kind, "dim": network.config.shared_dim, "seed": seed}
            rows.append(
                row | {"ratio": learned.mean() / exact.mean(), "error": error / exact.mean()}
            )
    return pd.DataFrame(rows)
