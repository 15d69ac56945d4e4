"""The runs of chapter 12: settings, trainings, and their results as files."""

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
from experiments.atari.networks import Config
from experiments.atari.predictions import SIMULATED
from experiments.atari.protocol import Experiment, calibrated_results, experiment_of, settings

ROOT = Path(__file__).resolve().parents[1]
SMALL = Experiment(Config(name="Pong", sigma=1.0))
# Miniatures of two parts.
SETTINGS = """\
[calibrate]
fresh = [0, 1]
experiment = { num_states = 40, num_evaluation = 2, repeats = 3, horizon = 5 }
config = { sigma = 1.0, steps = 4, batch = 16, hidden = 16 }
games = { Pong = {} }
trials = { base = { kinds = ["local", "near spread"], gammas = [0.1, 0.99] } }

[ablation]
like = "calibrate"
fresh = [1]
trials = { wide = { kinds = ["gram known"], hidden = 32, gammas = [0.99] } }
"""
RUNS = ["calibrate:Pong:10:base", "ablation:Pong:10:wide"]


def train_in_miniature(folder, monkeypatch, *runs, changed=SETTINGS):
    """What the documented command does, with processes and all."""
    (folder / "small.toml").write_text(changed)
    monkeypatch.setattr(protocol, "PROTOCOL", {**protocol.PROTOCOL})
    monkeypatch.setattr(device, "PROTOCOL", protocol.PROTOCOL)
    words = [*runs, "--work", str(folder / "work"), "--settings", str(folder / "small.toml")]
    monkeypatch.setattr(sys, "argv", ["device", *words, "--device", "cpu", "--processes", "1"])
    with pytest.raises(SystemExit) as end:
        device.main()
    return end.value.code


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("finals:Pong:10:base", "the protocol has no run finals:Pong:10:base"),
        ("tune:Pong:10:late", "the protocol has no run tune:Pong:10:late"),
        ("calibrate:Pnog:10:base", "did you mean Pong"),
        ("calibrate:Pong:-1:base", "no run calibrate:Pong:-1:base: runs are PART:GAME:SEED:TRIAL"),
        ("calibrate:Pong:base", "runs are PART:GAME:SEED:TRIAL"),
        ("calibrate:Pong:10:base --device toaster", "'toaster' is unknown"),
        ("calibrate:Pong:10:base --processes 0", "--processes must be at least 1, got 0"),
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
        tuple(device._stream(purpose, number).generate_state(2))
        for purpose in (0, 2, 3)
        for number in range(3)
    }
    assert len(draws) == 9


def test_every_network_has_the_same_search_and_seeds_and_states_are_kept_back():
    tune, reported = settings("tune", ""), settings("calibrate", "")
    assert not set(tune["seeds"]) & set(reported["seeds"])
    assert set(reported["fresh"]) - set(tune["fresh"]) == {1}
    for game in tune["games"]:
        for trial in tune["trials"]:
            assert experiment_of("tune", game, trial).config.kinds == ("gram", "local", "near")


@pytest.mark.slow
def test_runs_from_states_to_results(tmp_path, monkeypatch):
    """Two parts, then their files; what is there is not made again, what is lost alone is."""
    work, out = tmp_path / "work", tmp_path / "out"
    assert train_in_miniature(tmp_path, monkeypatch, *RUNS) == 0
    kept = [path for path in work.rglob("*.*") if path.suffix in (".npz", ".pt")]
    assert len(kept) == 2 + 4 + 2 + 2  # states; states and pairs to compare with; networks
    made = {path: path.stat().st_mtime_ns for path in kept}
    gaps = work / "calibrate" / "Pong" / "gaps-10-base.csv"
    told = gaps.read_bytes()
    gaps.unlink()  # as if the command had been stopped here
    with monkeypatch.context() as patch:
        patch.delattr(device, "train")
        assert train_in_miniature(tmp_path, patch, *RUNS) == 0
    assert gaps.read_bytes() == told
    assert {path: path.stat().st_mtime_ns for path in kept} == made

    for part in ("calibrate", "ablation"):
        words = [part, "--work", str(work), "--out", str(out)]
        words += ["--settings", str(tmp_path / "small.toml")]
        monkeypatch.setattr(sys, "argv", ["protocol", *words])
        protocol.main()
    by_state = pd.read_csv(out / "calibrated.csv")
    committed = ROOT / "figures" / "atari"
    for name in ("calibrated", "calibrated_averages", "simulated", "ablation"):
        columns = pd.read_csv(out / f"{name}.csv").columns
        assert list(columns) == list(pd.read_csv(committed / f"{name}.csv").columns), name
    assert set(zip(by_state.network, by_state.trial, strict=True)) == {
        ("local", "base"),
        ("near", "spread"),
    }
    assert len(by_state) == 2 * 2 * 2  # networks, discounts, states
    assert np.isfinite(by_state[["coupled", "table", "gap_mean"]].to_numpy()).all()
    assert len(pd.read_csv(out / "simulated.csv")) == 2 * 2 * 2  # numbers, discounts, states
    assert pd.read_csv(out / "ablation.csv").kind.tolist() == ["gram known"]
    facts = json.loads((out / "calibrate.json").read_text())
    assert (facts["device"], facts["seeds"]) == ("cpu", [10])


def test_a_folder_of_other_settings_or_with_a_damaged_file_is_refused(
    tmp_path, monkeypatch, capsys
):
    def refused(changed):
        monkeypatch.setattr(device, "work_through", lambda *_: True)
        code = train_in_miniature(tmp_path, monkeypatch, RUNS[0], changed=changed)
        return code and capsys.readouterr().err

    assert not refused(SETTINGS)
    assert not refused(SETTINGS + "[ablation.games]\nPong = { repeats = 4 }\n")  # of another part
    assert "work/calibrate/Pong has files of other settings: experiment\n" in refused(
        SETTINGS.replace("horizon = 5", "horizon = 6")
    )
    assert "other settings: base\n" in refused(SETTINGS.replace("steps = 4", "steps = 5"))
    assert "unexpected keyword argument 'stops'" in refused(SETTINGS.replace("steps", "stops"))
    home = tmp_path / "work" / "calibrate" / "Pong"
    (home / "run-10-base.pt").write_text("half of")
    assert "run-10-base.pt is damaged" in refused(SETTINGS)
    (home / "settings.json").write_text("{")
    assert "settings.json is damaged" in refused(SETTINGS)


def test_a_training_that_diverges_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    def train(network, data):
        raise FloatingPointError("TD errors are no longer finite")

    monkeypatch.setattr(device, "train", train)
    monkeypatch.setattr(device, "play", lambda *_: None)
    monkeypatch.setattr(device.Training, "tables", lambda _: None)
    monkeypatch.setattr(device.Network, "of", lambda *_: None)
    monkeypatch.setattr(device.Replay, "of", lambda *_: None)
    assert train_in_miniature(tmp_path, monkeypatch, *RUNS) == 1
    said = capsys.readouterr().out
    assert re.findall(r"FAILED .*/(\w+)/Pong/run-10-\w+.pt", said) == ["calibrate", "ablation"]


def test_results_of_nothing_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["protocol", "tune", "--work", str(tmp_path)])
    with pytest.raises(SystemExit):
        protocol.main()
    assert "tune has no gaps: train the part first" in capsys.readouterr().err


def test_results_of_known_gaps():
    """Pong's tuning states choose the trial; its other states are reported, Krull's as well."""
    rows = []
    for game, states, state in (("Pong", 0, 0), ("Pong", 1, 0), ("Pong", 1, 1), ("Krull", 1, 0)):
        for kind, trial, factor in (("near", "decay", 0.5), ("near spread", "base", 1.1)):
            row = {"game": game, "states": states, "state": state, "kind": kind, "trial": trial}
            row |= {"coupled": factor * (state + 1), "table": (factor + 0.1) * (state + 1)}
            row |= {"seed": 10, "gamma": 0.99, "gap_mean": 0.3}
            rows.append(row | dict.fromkeys(SIMULATED, 0.1) | {"mc": state + 1.0})
    found = calibrated_results(pd.DataFrame(rows))
    by_state = found["calibrated"].set_index(["game", "state"])
    assert set(by_state.trial) == {"spread"}  # of error 0.1; decay has 0.5
    assert by_state.table.to_dict() == pytest.approx(
        {("Pong", 0): 1.2, ("Pong", 1): 2.4, ("Krull", 0): 1.2}
    )
    averages = found["calibrated_averages"].set_index(["game", "states", "trial"])
    assert averages.coupled["Pong", 1, "decay"] == pytest.approx(0.75)
    assert averages.mc_error["Pong", 1, "decay"] == pytest.approx(0.1 / 2**0.5)
    assert averages.error["Pong", 1, "decay"] == pytest.approx((0.5**2 + 1) ** 0.5 / 2**0.5 / 1.5)
    assert len(found["simulated"]) == 4


@pytest.mark.slow
def test_a_machine_that_only_trains_needs_no_notebook_software():
    code = "import sys, experiments.atari.device; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert not {"nbformat", "jupytext", "papermill", "snakemake", "matplotlib"} & imported
