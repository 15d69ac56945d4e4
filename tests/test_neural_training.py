"""Training neural JIPE-2: what it learns, refuses and leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import jmdp_lib as jl
from experiments.atari import training
from experiments.atari.networks import TD_BLOCKS, Config, Network
from experiments.atari.predictions import predict_gaps
from experiments.atari.replay import Replay
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.training import Trained, learning_rate, train
from experiments.processes import require_device

SMALL = Config(
    name="grid",
    gammas=(0.5, 0.9),
    kinds=("gram", "local", "near"),
    sigma=1.0,
    hidden=8,
    shared_dim=4,
    near_dim=2,
    local_dim=2,
    place_dim=3,
    steps=24,
    batch=8,
    actions=3,
)


def cells(size):
    return np.stack(np.divmod(np.arange(size * size), size), 1).astype(np.uint8)


def fit(config=SMALL):
    tables = tables_of(jl.windy_gridworld(3), cells(3))
    return train(Network.of(tables, config), Replay.of(tables))


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


def test_weights_decay_towards_zero(done):
    decayed = fit(replace(SMALL, weight_decay=100.0))
    both = done.params, decayed.params
    sizes = [sum(float(w.detach().square().sum()) for w in p.values()) for p in both]
    assert sizes[1] < 0.5 * sizes[0]


def test_errors_of_every_step_are_kept(done):
    assert done.errors.shape == (SMALL.steps, len(TD_BLOCKS), len(SMALL.members))
    assert bool((done.errors[:, :-1] > 0).all())  # no member learns the spread


def test_a_member_learns_the_same_alone(done):
    alone = fit(replace(SMALL, gammas=(0.9,), kinds=("near",)))
    place = SMALL.members.index((0.9, "near"))
    for name, weight in alone.params.items():
        torch.testing.assert_close(weight[0], done.params[name][place], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_grid_is_learned():
    config = Config(gammas=(0.5,), sigma=1.0, hidden=32, steps=300, batch=16)
    grid = jl.windy_gridworld(3, gamma=0.5)
    tables = tables_of(grid, cells(3))
    trained = train(Network.of(tables, config), Replay.of(tables))
    told = predict_gaps(trained.network, trained.params, torch.as_tensor(cells(3))).coupled
    exact = jl.jipe2(with_shock(grid, 1.0), jl.uniform_policy(grid)).moments.gap_variance
    assert float(told.mean()) == pytest.approx(float(exact.mean()), rel=0.1)


def test_what_diverges_is_refused():
    with pytest.raises(FloatingPointError, match=r"no longer finite at step \d"):
        fit(replace(SMALL, learning_rate=1e30))


def test_a_file_is_enough_to_predict(tmp_path, done):
    path = tmp_path / "run.pt"
    done.save(path)
    again = Trained.load(path)
    assert again.network.config == SMALL
    seen = torch.as_tensor(cells(3))
    told, once = (predict_gaps(run.network, run.params, seen) for run in (again, done))
    torch.testing.assert_close(told.coupled, once.coupled, rtol=0, atol=0)
    torch.testing.assert_close(again.errors, done.errors, rtol=0, atol=0)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"run\.pt is damaged: remove it"):
        Trained.load(path)


def test_weights_and_batches_have_streams_of_their_own():
    cpu = torch.device("cpu")
    drawn = {float(torch.rand(1, generator=training._generator(cpu, 0, key))) for key in (0, 1)}
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gammas": (1.0,)}, r"gamma must lie in \[0, 1\)"),
        ({"gammas": ()}, "gammas and kinds must name members"),
        ({"gammas": (0.5, 0.5)}, "each once"),
        ({"kinds": ("kernel",)}, "kinds must be one of 'gram', 'local'"),
        ({"sigma": -1.0}, r"sigma must lie in \[0, inf\)"),
        ({"sigma": np.inf}, r"sigma must lie in \[0, inf\)"),
        ({"weight_decay": np.inf}, r"weight_decay must lie in \[0, inf\)"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"batch": 2}, "batch must be at least 4"),
        ({"polyak": 0.0}, r"polyak must lie in \(0, 1\]"),
        ({"polyak": 1.5}, r"polyak must lie in \(0, 1\]"),
        ({"pair_share": 1.5}, r"pair_share must lie in \[0, 1\]"),
        ({"learning_rate": -1.0}, r"learning_rate must lie in \(0, inf\)"),
        ({"block_weights": (1.0,)}, "block_weights must have shape"),
        ({"block_weights": (-1.0,) * 6}, r"block_weights\[0\] .* is negative"),
        ({"block_weights": (np.nan,) * 6}, r"block_weights\[0\] \(block 0\) = nan"),
    ],
)
def test_bad_configurations_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="'cuda' was asked for, but there is no GPU"):
        require_device("cuda")
    for unknown in ("toaster", "mps", "cuda:first", None):
        with pytest.raises(ValueError, match=f"device {unknown!r} is unknown"):
            require_device(unknown)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="'cuda:3' was asked for, but there is 1 GPU"):
        require_device("cuda:3")


def test_the_learning_rate_falls_along_a_cosine():
    config = Config(steps=10, learning_rate=2.0, final_rate=0.1)
    rates = [learning_rate(config, step) for step in range(11)]
    assert rates[0] == 2.0
    assert rates[5] == pytest.approx(1.1)
    assert rates[10] == pytest.approx(0.2)


def test_the_target_follows_the_weights(done):
    """At the rate 1 there is no target: other weights are learned than from one that lags."""
    copied = fit(replace(SMALL, polyak=1.0))
    assert not torch.equal(copied.params["mean_2"], done.params["mean_2"])
    torch.testing.assert_close(
        copied.errors[0], done.errors[0]
    )  # before the first step they are one
