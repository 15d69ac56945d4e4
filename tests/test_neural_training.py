"""Training neural JIPE-2: what it logs, refuses and leaves. Chapter 5 has a known answer."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import jmdp_lib as jl
from experiments.atari import training
from experiments.atari.networks import TD_BLOCKS, Config
from experiments.atari.predictions import predict_gaps
from experiments.atari.small_models import tables_of
from experiments.atari.training import (
    COLUMNS,
    Trained,
    learning_rate,
    require_device,
    train,
)

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
    log_every=3,
    eval_every=6,
)


def cells(size):
    return np.stack(np.divmod(np.arange(size * size), size), 1).astype(np.uint8)


def grid_tables(size=3, seed=0):
    return tables_of(jl.windy_gridworld(size), cells(size), 40, seed=seed)


def fit(folder, config=SMALL, device="cpu", held_out=None):
    return train(grid_tables(), config, folder, held_out or grid_tables(seed=1), device)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run, to look at."""
    return fit(tmp_path_factory.mktemp("done"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_weights_decay_towards_zero(tmp_path, done):
    decayed = fit(tmp_path, replace(SMALL, weight_decay=100.0))
    both = done.params, decayed.params
    sizes = [sum(float(w.detach().square().sum()) for w in p.values()) for p in both]
    assert sizes[1] < 0.5 * sizes[0]


def test_metrics_have_a_row_per_member_curve_and_step(done):
    with done.metrics.open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == set(COLUMNS)
    td = [row for row in rows if row["curve"] == "td"]
    assert len(td) == len(SMALL.members) * SMALL.steps // SMALL.log_every
    expected = [row for row in rows if row["curve"] == "expected"]
    assert sorted({int(row["step"]) for row in expected}) == [0, 6, 12, 18, 24]
    assert all(float(row[block]) > 0 for row in rows for block in TD_BLOCKS[:-1])


def test_a_member_learns_the_same_alone(tmp_path, done):
    alone = fit(tmp_path, replace(SMALL, gammas=(0.9,), kinds=("near",)))
    place = SMALL.members.index((0.9, "near"))
    for name, weight in alone.params.items():
        torch.testing.assert_close(weight[0], done.params[name][place], rtol=1e-3, atol=1e-4)


def test_checkpoints_of_another_run_are_refused(tmp_path, done):
    shutil.copytree(done.metrics.parent, tmp_path, dirs_exist_ok=True)
    for change, message in (
        ({"name": "Pong"}, "is of another run: name: 'grid' there, 'Pong' here"),
        ({"hidden": 9, "seed": 2}, "hidden: 8 there, 9 here; seed: 0 there, 2 here"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(tmp_path, replace(SMALL, **change))
    chain = tables_of(jl.coupled_reward_chain(5), cells(3)[:5])
    for tables in (chain, grid_tables(seed=5)):
        with pytest.raises(ValueError, match=r"checksum of the tables: \d+ there, \d+ here"):
            train(tables, SMALL, tmp_path, tables)
    with pytest.raises(ValueError, match=r"checksum of the held-out tables: \d+ there"):
        fit(tmp_path, held_out=grid_tables(seed=5))
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        fit(tmp_path)


def test_a_checkpoint_is_enough_to_predict(done):
    again = Trained.load(done.metrics.parent)
    assert again.network.config == SMALL
    seen = torch.as_tensor(cells(3))
    told, once = (predict_gaps(run.network, run.params, seen) for run in (again, done))
    torch.testing.assert_close(told.coupled, once.coupled, rtol=0, atol=0)


def test_weights_batches_and_held_out_batches_have_streams_of_their_own():
    cpu = torch.device("cpu")
    keys = [(0,), (1,), (2, 0), (2, 1), (2, 100)]
    drawn = [float(torch.rand(1, generator=training._generator(cpu, 0, *key))) for key in keys]
    assert len(set(drawn)) == len(keys)


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
        ({"log_every": 0}, "log_every must be at least 1"),
    ],
)
def test_bad_configurations_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


def test_no_gpu_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="'cuda' was asked for, but there is no GPU"):
        fit(tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()
    for unknown in ("toaster", "mps", "cuda:first", None):
        with pytest.raises(ValueError, match=f"device {unknown!r} is unknown"):
            require_device(unknown)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="'cuda:3' was asked for, but there is 1 GPU"):
        require_device("cuda:3")


def test_tables_of_another_size_are_no_held_out_set(tmp_path):
    chain = tables_of(jl.coupled_reward_chain(5), cells(3)[:5])
    with pytest.raises(ValueError, match="held_out must have shape"):
        fit(tmp_path, held_out=chain)


def test_the_learning_rate_falls_along_a_cosine():
    config = Config(steps=10, learning_rate=2.0, final_rate=0.1)
    rates = [learning_rate(config, step) for step in range(11)]
    assert rates[0] == 2.0
    assert rates[5] == pytest.approx(1.1)
    assert rates[10] == pytest.approx(0.2)


def test_sampled_errors_are_descended_towards_a_copied_target(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(training.Run, "save", lambda run: runs.append(run))
    for copy_every in (12, 5):
        paper = replace(SMALL, kinds=("gram",), descend="sampled", scale="divided", polyak=1.0)
        fit(tmp_path, replace(paper, steps=12, copy_every=copy_every))
    copied, behind = (
        [torch.equal(run.online[name], run.target[name]) for name in run.online] for run in runs
    )
    assert all(copied)
    assert not any(behind[:2])
    assert {row[4] for row in runs[0].rows} == {"td", "sampled", "floor", "expected"}
