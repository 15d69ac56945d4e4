"""Training neural JIPE-2: what it learns, refuses and leaves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import jmdp_lib as jl
from experiments.atari.networks import Network
from experiments.atari.predictions import gaps_of
from experiments.atari.replay import Replay
from experiments.atari.settings import Config
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.training import train
from experiments.processes import require_device

SMALL = Config(
    tuple((gamma, kind, 1.0) for gamma in (0.5, 0.9) for kind in ("gram", "local", "near")),
    hidden=8,
    shared_dim=4,
    near_dim=2,
    local_dim=2,
    place_dim=3,
    steps=24,
    batch=8,
    actions=3,
    weight_decay=1.0,
)


def cells(size):
    return np.stack(np.divmod(np.arange(size * size), size), 1).astype(np.uint8)


def fit(config=SMALL):
    tables = tables_of(jl.windy_gridworld(3), cells(3))
    return train(Network(tables, config), Replay.of(tables), 0)


@pytest.fixture(scope="module")
def done():
    """A finished run, to look at."""
    return fit()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_ends_where_it_did(done):
    """With the streams, rates, decay and lagging target of the committed results."""
    ends = [float(done[f"{name}_2_bias"].sum()) for name in ("mean", "sigma")]
    assert ends == pytest.approx([-0.0101423, -0.303186], rel=1e-3)


def test_a_member_learns_the_same_alone(done):
    alone = fit(replace(SMALL, members=SMALL.members[-1:]))
    for name, weight in alone.items():
        torch.testing.assert_close(weight[0], done[name][-1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_gap_variances_of_a_grid_are_learned():
    """With as many dimensions as it has; chapter 12 has too few."""
    grid = jl.windy_gridworld(4, gamma=0.5)
    exact = jl.jipe2(with_shock(grid, 1.0), jl.uniform_policy(grid)).moments.gap_variance
    seen = 255 * np.eye(16, dtype=np.uint8)
    tables = tables_of(grid, seen)
    sizes = {"hidden": 32, "steps": 300, "batch": 32, "learning_rate": 3e-3, "polyak": 1.0}
    network = Network(tables, Config(((0.5, "gram told", 1.0),), **sizes))
    here = network(train(network, Replay.of(tables), 0), torch.from_numpy(seen))
    learned = gaps_of(here.mean, here.covariance)[1]
    assert float(learned.mean() / exact.mean()) == pytest.approx(1.0, abs=0.05)


def test_a_training_that_diverges_is_refused():
    with pytest.raises(FloatingPointError, match="no longer finite"):
        fit(replace(SMALL, learning_rate=1e30))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"members": ((1.0, "near", 1.0),)}, r"gamma must lie in \[0, 1\)"),
        ({"members": ((0.5, "kernel", 1.0),)}, "kind must be one of 'gram'"),
    ],
)
def test_bad_configurations_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **wrong)


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("cuda", 0, "'cuda' was requested, but there is no GPU"),
        ("cuda:3", 1, "'cuda:3' was requested, but there is 1 GPU"),
        ("cuda:first", 1, "'cuda:first' is unknown"),
    ],
)
def test_missing_devices_are_refused(monkeypatch, name, count, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=message):
        require_device(name)
