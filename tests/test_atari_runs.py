"""The runs of chapters 5 and 12: settings, trainings side by side, and their results as files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.atari import device, protocol
from experiments.atari.experiment import Experiment
from experiments.atari.networks import Config
from experiments.atari.protocol import calibrated_results, experiment_of, paper_results, settings

ROOT = Path(__file__).resolve().parents[1]
SMALL = Experiment(Config(name="Pong", sigma=1.0))
# Miniatures of two parts that share their states.
SETTINGS = """\
[calibrate]
fresh = [0, 1]
experiment = { num_states = 40, num_held_out = 10, num_evaluation = 2, repeats = 3, horizon = 5 }
config = { sigma = 1.0, steps = 4, log_every = 2, eval_every = 4, batch = 16, hidden = 16 }
games = { Pong = {} }
trials = { base = { kinds = ["local", "near spread"], gammas = [0.1, 0.99] } }

[paper]
like = "calibrate"
trials = { divided = { scale = "divided" } }
config = { gammas = [0.99], kinds = ["gram"], descend = "sampled", polyak = 1.0, copy_every = 2 }
"""


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("finals:Pong:10:base", "the protocol has no run finals:Pong:10:base"),
        ("paper:Pong:10:fast", "the protocol has no run paper:Pong:10:fast"),
        ("calibrate:Pnog:10:base", "did you mean Pong"),
        ("calibrate:Pong:-1:base", "SEED must be at least 0, got -1"),
        ("calibrate:Pong:10:base --device toaster", "'toaster' is unknown"),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, monkeypatch, capsys, run, message):
    words = [*run.split(), "--device", "cpu"] if "--device" not in run else run.split()
    monkeypatch.setattr(sys, "argv", ["device", *words, "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit):
        device.main()
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": replace(SMALL.config, name="Pnog")}, "did you mean Pong"),
        ({"obs": "smell"}, "obs must be one of"),
        ({"num_states": -5}, "num_states must be at least 1"),
        ({"repeats": 2}, "repeats must be at least 3"),
    ],
)
def test_what_cannot_finish_is_not_begun(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_streams_share_nothing():
    draws = {
        tuple(SMALL.stream(purpose, seed).generate_state(2))
        for purpose in range(4)
        for seed in range(3)
    }
    assert len(draws) == 12


def test_every_network_has_the_same_search_and_seeds_and_states_are_kept_back():
    tune, reported = settings("tune", ""), settings("calibrate", "")
    assert not set(tune["seeds"]) & set(reported["seeds"])
    assert set(reported["fresh"]) - set(tune["fresh"]) == {1}
    for game in tune["games"]:
        for trial in tune["trials"]:
            assert experiment_of("tune", game, trial).config.kinds == ("gram", "local", "near")
    for scale in ("natural", "divided"):
        paper = experiment_of("paper", "Pong", scale)
        assert (paper.config.descend, paper.config.scale) == ("sampled", scale)
        assert replace(paper, config=SMALL.config) == replace(
            experiment_of("calibrate", "Pong"), config=SMALL.config
        )  # they share their states


@pytest.mark.slow
def test_runs_from_states_to_results(tmp_path, monkeypatch):
    """Two parts in processes, then their files; and what is there is not made again."""
    changed, work, out = tmp_path / "small.toml", tmp_path / "work", tmp_path / "out"
    changed.write_text(SETTINGS)
    runs = ["calibrate:Pong:10:base", "paper:Pong:10:divided"]
    options = ["--work", str(work), "--settings", str(changed)]
    command = [sys.executable, "-m", "experiments.atari.device", *runs, *options]
    command += ["--device", "cpu", "--processes", "1"]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    made = {path: path.stat().st_mtime_ns for path in work.rglob("*.*") if path.suffix != ".json"}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "trained" not in again.stdout
    assert all(path.stat().st_mtime_ns == then for path, then in made.items())
    out.mkdir()
    monkeypatch.setattr(protocol, "PROTOCOL", {**protocol.PROTOCOL})
    for part in ("calibrate", "paper"):
        monkeypatch.setattr(sys, "argv", ["protocol", part, *options, "--out", str(out)])
        protocol.main()
    by_state = pd.read_csv(out / "calibrated.csv")
    assert set(zip(by_state.network, by_state.trial, strict=True)) == {
        ("local", "base"),
        ("near", "spread"),
    }
    assert len(by_state) == 2 * 2 * 2  # networks, discounts, states
    assert np.isfinite(by_state[["coupled", "table", "gap_mean"]].to_numpy()).all()
    assert len(pd.read_csv(out / "simulated.csv")) == 2 * 2 * 2  # numbers, discounts, states
    floors = pd.read_csv(out / "paper_floors.csv")
    assert set(floors["curve"]) == {"sampled", "floor"}
    assert sorted(set(floors.step)) == [0, 2, 4]
    assert len(pd.read_csv(out / "paper_gaps.csv")) == 1
    facts = json.loads((out / "paper.json").read_text())
    assert (facts["device"], facts["seeds"]) == ("cpu", [10])


def test_results_of_known_gaps():
    """Pong's tuning states choose the trial; its other states are reported, Krull's as well."""
    rows = []
    for game, states, state in (("Pong", 0, 0), ("Pong", 1, 0), ("Pong", 1, 1), ("Krull", 1, 0)):
        for kind, trial, factor in (
            ("near", "decay", 0.5),
            ("near spread", "base", 1.1),
            ("near+table", "decay", 0.6),
            ("near spread+table", "base", 1.2),
        ):
            row = {"game": game, "states": states, "state": state, "kind": kind, "trial": trial}
            row |= {"seed": 10, "gamma": 0.99, "coupled": factor * (state + 1), "gap_mean": 0.3}
            row |= dict.fromkeys(protocol.SIMULATED, 0.1) | {"mc": state + 1.0}
            rows.append(row)
    found = calibrated_results(pd.DataFrame(rows))
    by_state = found["calibrated"].set_index(["game", "state"])
    assert set(by_state.trial) == {"spread"}  # of error 0.1; decay has 0.5
    assert by_state.table.to_dict() == {("Pong", 0): 1.2, ("Pong", 1): 2.4, ("Krull", 0): 1.2}
    averages = found["calibrated_averages"].set_index(["game", "states", "trial"])
    assert averages.coupled["Pong", 1, "decay"] == pytest.approx(0.75)
    assert averages.mc_error["Pong", 1, "decay"] == pytest.approx(0.1 / 2**0.5)
    assert averages.error["Pong", 1, "decay"] == pytest.approx((0.5**2 + 1) ** 0.5 / 2**0.5 / 1.5)
    assert len(found["simulated"]) == 4


def test_curves_are_those_of_finished_runs():
    gaps = pd.DataFrame({"game": ["Pong"], "seed": 10, "gamma": 0.9, "kind": "gram", "state": 0})
    gaps = gaps.assign(states=1, trial="divided", coupled=3.0, gap_mean=0.0, independent=1.0)
    gaps = gaps.assign(**dict.fromkeys(protocol.SIMULATED, 1.0))
    metrics = pd.DataFrame(
        [
            {"game": "Pong", "trial": "divided", "seed": seed, "step": step, "curve": curve}
            for seed, last in ((10, 4), (11, 2))
            for step in range(0, last + 1, 2)
            for curve in ("td", "sampled", "floor", "expected")
        ]
    ).assign(**dict.fromkeys(protocol.BLOCKS, 1.0))
    found = paper_results(gaps, metrics)
    assert set(found["paper_curves"].seed) == {10}
    assert found["paper_floors"].groupby("curve").step.max().to_dict() == {"floor": 4, "sampled": 4}
    assert found["paper_gaps"].ratio.tolist() == [3.0]


@pytest.mark.slow
def test_a_machine_that_only_trains_needs_no_notebook_software():
    code = "import sys, experiments.atari.device; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert not {"nbformat", "jupytext", "papermill", "snakemake", "matplotlib"} & imported
