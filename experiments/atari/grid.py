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
    """Learned / exact average gap variance, by dimension and seed.

    table: of the part. A network sees each of 16 cells as one byte that is not zero.
    """
    gamma, _, sigma = member = tuple(table["member"])
    grid = jl.windy_gridworld(4, gamma=gamma)
    exact = jl.jipe2(with_shock(grid, sigma), jl.uniform_policy(grid)).moments.gap_variance
    cells = 255 * np.eye(grid.num_states, dtype=np.uint8)
    tables = tables_of(grid, cells)
    rows = []
    for dim in table["dims"]:
        for seed in table["seeds"]:
            config = Config((member,), shared_dim=dim, seed=seed, **table["config"])
            network = Network(tables, config)
            params = train(network, Replay.of(tables)).params
            learned = predict_gaps(network, params, torch.from_numpy(cells)).coupled
            rows.append({"dim": dim, "seed": seed, "ratio": float(learned.mean() / exact.mean())})
    return pd.DataFrame(rows)
