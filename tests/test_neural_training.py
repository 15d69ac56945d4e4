"""Training neural JIPE-2: resuming, refusing, and a known answer."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import jmdp_lib as jl
from experiments.atari import training
from experiments.atari.checkpoints import load_checkpoint
from experiments.atari.networks import TD_BLOCKS, Config
from experiments.atari.predictions import predict_gaps
from experiments.atari.replay import Replay
from experiments.atari.small_models import tables_of, with_shock
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
    save_every=6,
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


class Killed(Exception):
    pass


def die():
    raise Killed


def dying(batches, die=die):
    """`Replay.sample`, which dies when it has drawn so many batches."""
    sample, left = Replay.sample, iter(range(batches))

    def sample_or_die(self, config, generator):
        if next(left, None) is None:
            die()
        return sample(self, config, generator)

    return sample_or_die


@pytest.fixture
def kill_after(monkeypatch):
    """Let training die when it has drawn so many batches."""
    return lambda batches: monkeypatch.setattr(Replay, "sample", dying(batches))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("complete", "save_every"), [(True, 6), (False, 6), (True, 5)])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, kill_after, monkeypatch, complete, save_every):
    """Whether or not it was saved where it was logged last (every third step)."""
    config = replace(SMALL, sigma=float(complete), save_every=save_every)
    held_out = grid_tables(seed=1)
    whole = fit(tmp_path / "whole", config, held_out=held_out)
    kill_after(20)
    with pytest.raises(Killed):
        fit(tmp_path / "parts", config, held_out=held_out)
    monkeypatch.undo()
    stored = load_checkpoint(tmp_path / "parts" / "checkpoint.pt")
    assert 0 < stored["step"] < config.steps
    (tmp_path / "parts" / "metrics.csv").unlink()  # the checkpoint has all of it
    parts = fit(tmp_path / "parts", config, held_out=held_out)
    assert parts.metrics.read_bytes() == whole.metrics.read_bytes()
    for name, weight in whole.params.items():
        assert torch.equal(weight, parts.params[name]), name


def test_only_a_finished_run_moves_to_another_device_or_version(tmp_path, kill_after, monkeypatch):
    kill_after(10)
    with pytest.raises(Killed):
        fit(tmp_path)
    monkeypatch.undo()
    path = tmp_path / "checkpoint.pt"
    written = load_checkpoint(path)
    torch.save({name: part for name, part in written.items() if name != "averages"}, path)
    with pytest.raises(ValueError, match="it lacks 'averages'"):
        fit(tmp_path)
    stored = written | {"device": "cuda", "generator": torch.zeros(16).byte()}
    torch.save(stored, path)
    with pytest.raises(ValueError, match="was written on 'cuda': go on with device='cuda'"):
        fit(tmp_path)
    torch.save(stored | {"step": SMALL.steps}, path)
    assert torch.equal(fit(tmp_path).params["mean_0"], stored["params"]["mean_0"])


def test_weights_decay_towards_zero(tmp_path, done):
    decayed = fit(tmp_path, replace(SMALL, weight_decay=100.0))
    both = done.params, decayed.params
    sizes = [sum(float(w.detach().square().sum()) for w in p.values()) for p in both]
    assert sizes[1] < 0.5 * sizes[0]


LONGER = replace(SMALL, steps=60)


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory):
    """The folder of a run in a process of its own, killed outright, and all that it imported."""
    code = (
        "import os, sys, torch; torch.set_num_threads(1); sys.path[:0] = sys.argv[2:]\n"
        "import experiments.atari.protocol; from test_neural_training import *\n"
        "print(*sys.modules, flush=True)\n"
        "Replay.sample = dying(40, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "fit(sys.argv[1], LONGER)"
    )
    folder, here = tmp_path_factory.mktemp("killed"), Path(__file__).parent
    command = [sys.executable, "-c", code, folder, here]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    imported = done.stdout.split()
    return folder, imported


@pytest.mark.slow
def test_a_run_that_was_really_killed_resumes_bit_for_bit(killed_run, tmp_path):
    folder, _ = killed_run
    assert 0 < load_checkpoint(folder / "checkpoint.pt")["step"] < LONGER.steps
    for path in (folder, tmp_path / "whole"):
        fit(path, LONGER)
    metrics = [path / "metrics.csv" for path in (folder, tmp_path / "whole")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    weights = [load_checkpoint(path.with_name("checkpoint.pt"))["params"] for path in metrics]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


@pytest.mark.slow
def test_no_notebook_software_is_needed(killed_run):
    """A machine that only trains has none."""
    _, imported = killed_run
    assert {"torch", "experiments.atari.protocol"} < set(imported)
    assert not {"nbformat", "jupytext", "papermill", "snakemake"} & set(imported)


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
    seen, last = torch.as_tensor(cells(3)), torch.full((9,), 4)
    told, once = (predict_gaps(run.network, run.params, seen, last) for run in (again, done))
    torch.testing.assert_close(told.coupled, once.coupled, rtol=0, atol=0)


@pytest.mark.parametrize("version", [None, "0.0.9"])
def test_a_checkpoint_of_another_version_says_which_fields_it_lacks(tmp_path, done, version):
    """A finished one that lacked a newer field ended in a KeyError."""
    path = tmp_path / "checkpoint.pt"
    state = load_checkpoint(done.metrics.parent / "checkpoint.pt")
    assert state.pop("version") == jl.__version__
    state |= {} if version is None else {"version": version}
    by = f"jmdp_lib {version}" if version else "another version of jmdp_lib"
    of = {name: x for name, x in state["of"].items() if name != "copy_every"}
    shorter = {name: x for name, x in state.items() if name != "params"}
    for changed, field in (
        (state | {"of": of}, "copy_every"),
        (state | {"network": state["network"][:2]}, "varied"),
        (shorter, "params"),
    ):
        torch.save(changed, path)
        said = f"is of {by}, and this is {jl.__version__}: it lacks '{field}'"
        with pytest.raises(ValueError, match=said):
            Trained.load(tmp_path)
        with pytest.raises(ValueError, match=said):
            fit(tmp_path)
    torch.save({name: x for name, x in state.items() if name != "window"}, path)
    assert Trained.load(tmp_path).network.config == SMALL  # this needs no more
    with pytest.raises(ValueError, match="it lacks 'window'"):
        fit(tmp_path)


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
        ({"save_every": 0}, "save_every must be at least 1"),
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


@pytest.mark.slow
def test_a_windy_gridworld_is_learned_as_jipe2_solves_it_from_single_draws(tmp_path, monkeypatch):
    """A reward shock, gusts, merging branches. Chapter 5 claims the same of complete tables."""
    config = Config(
        gammas=(0.9,),
        kinds=("local",),
        sigma=1.0,
        hidden=128,
        shared_dim=32,
        steps=400,
        batch=64,
        learning_rate=3e-3,
        polyak=1.0,
        eval_every=400,
        log_every=400,
    )
    monkeypatch.setattr(Config, "complete", False)
    jm = jl.windy_gridworld(4, gamma=0.9)
    tables = tables_of(jm, cells(4), num_pairs=5_000)
    done = train(tables, config, tmp_path, held_out=tables_of(jm, cells(4), num_pairs=40))
    gaps = predict_gaps(done.network, done.params, torch.as_tensor(cells(4)), torch.full((16,), 4))
    exact = jl.jipe2(with_shock(jm, config.sigma), jl.uniform_policy(jm)).moments
    off = ~np.eye(4, dtype=bool)
    learned, truth = gaps.coupled[0].numpy()[:, off], exact.gap_variance[:, off]
    np.testing.assert_allclose(gaps.gap_mean[0], exact.gap_mean, atol=0.5)
    assert learned.sum() / truth.sum() == pytest.approx(1.0, abs=0.05)
    assert spearmanr(learned.ravel(), truth.ravel()).statistic > 0.9


@pytest.mark.parametrize(("copy_every", "copied"), [(12, True), (5, False)])
def test_sampled_errors_are_descended_towards_a_copied_target(tmp_path, copy_every, copied):
    paper = replace(
        SMALL,
        kinds=("gram",),
        descend="sampled",
        scale="divided",
        polyak=1.0,
        steps=12,
        copy_every=copy_every,
    )
    run = fit(tmp_path, paper)
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    same = [torch.equal(state["params"][name], state["target"][name]) for name in state["params"]]
    assert all(same) if copied else not any(same[:2])
    with run.metrics.open() as file:
        curves = {row["curve"] for row in csv.DictReader(file)}
    assert curves == {"td", "sampled", "floor", "expected"}
