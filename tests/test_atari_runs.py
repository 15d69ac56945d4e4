"""The runs of chapter 12: their list, the command that makes them, and their results as files."""

import json
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch._inductor  # noqa: F401, a first optimiser imports it, and that sets a variable
from programs import ROOT

from experiments.atari import runs, settings, training
from experiments.atari.settings import PARTS, runs_of, table_of
from experiments.atari.tables import Experiment


def command(folder, *words):
    """The exit status of the documented command, on a processor."""
    with pytest.raises(SystemExit) as end:
        runs.main([*words, "--work", str(folder / "work"), "--device", "cpu", "--processes", "1"])
    return end.value.code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sigma", "--games", "Pnog"], "did you mean Pong"),
        (["sigma", "--seeds", "-1"], "--seeds must be at least 0"),
        (["sigma", "--minutes", "0"], "--minutes must be above 0"),
        (["sigma", "--processes", "0"], "--processes must be at least 1, got 0"),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit):
        runs.main(["--work", str(tmp_path / "work"), "--device", "cpu", *words])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_two_repeats_have_no_standard_error():
    with pytest.raises(ValueError, match="repeats must be at least 3"):
        Experiment("Pong", repeats=2)


def test_streams_share_nothing():
    draws = {
        tuple(runs._stream(purpose, number).generate_state(2))
        for purpose in (0, 2, 3)
        for number in range(3)
    }
    assert len(draws) == 9


def test_reported_runs_are_not_those_of_their_search():
    for part in ("calibrated", "told", "sigma"):
        reported = table_of(part)
        search = table_of(reported["search"])
        assert not set(search["seeds"]) & set(reported["seeds"])
        assert (search["fresh"], max(reported["fresh"])) == ([0], 1)  # states are kept back
        assert search["trials"] == reported["trials"]
        assert set(search["games"]) < set(reported["games"])
    for part in PARTS:
        every = runs_of(part, ROOT)  # all settings make sense
        assert len({run.gaps for run in every}) == len(every)


def test_a_run_has_the_members_that_chose_its_trial():
    chosen = {(0.9, "near", 0.3): "fast", (0.9, "local", 0.3): "base", (0.99, "near", 1.0): "fast"}
    runs = {run.gaps: run.config.members for run in runs_of("sigma", ROOT, chosen)}
    assert {
        path.stem: members for path, members in runs.items() if "Pong/gaps-21" in str(path)
    } == {
        "gaps-21-fast-0-20000-2500": ((0.99, "near", 1.0),),
        "gaps-21-base-1-20000-2500": ((0.9, "local", 0.3),),
        "gaps-21-fast-1-20000-2500": ((0.9, "near", 0.3),),
    }


def test_a_new_game_or_seed_gets_the_settings_of_the_part(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "work_through", lambda *_: None)
    assert command(tmp_path, "calibrated", "--games", "Tennis", "Pong", "--seeds", "10") == 1
    printed = capsys.readouterr().out
    assert "Tennis is new to part calibrated: 30,000 states, all of 18 actions\n" in printed
    assert "Pong is new" not in printed
    new = runs_of("calibrated", ROOT, games=["Tennis"], seeds=[7])
    listed = runs_of("calibrated", ROOT, games=["SpaceInvaders"], seeds=[10])
    assert {run.experiment for run in new} == {Experiment("Tennis", pairs_per_state=3)}
    assert {run.pieces for run in new} == {((7, 0),)}
    assert [run.config for run in new] == [run.config for run in listed]


def test_a_larger_budget_has_the_states_of_a_smaller_one():
    runs = runs_of("budget", ROOT, {(0.99, "near", 0.0): "base"}, games=["Pong"])
    chosen = [run for run in runs if len(run.config.members) == 1]
    assert len(chosen) == 3 * 6 - 1
    for seed in (20, 21, 22):
        pieces = [run.pieces for run in chosen if run.seed == seed]
        assert all(more[: len(less)] == less for less, more in pairwise(pieces))
    thirds = {run.pieces for run in chosen if len(run.pieces) == 3}
    assert sorted(sum(thirds, ())) == [(20, piece) for piece in range(9)]
    every = [run for run in runs if len(run.config.members) > 1]
    largest = {"num_states": 180_000, "steps": 10_000}
    assert {(run.seed, *run.budget.values()) for run in every} == {(20, *largest.values())}
    assert {run.trial for run in every} == set(PARTS["sigma"]["trials"])


@pytest.mark.slow
def test_a_part_and_its_search_in_pieces_are_the_whole(tmp_path, monkeypatch, capsys):
    """Nothing is made again after a kill, or when the minutes are over."""
    trials = {name: PARTS["sigma"]["trials"][name] for name in ("base", "dim256")}
    monkeypatch.setitem(PARTS["sigma"], "trials", trials)
    monkeypatch.setitem(PARTS["sigma"]["config"], "gammas", [[0.99]])
    monkeypatch.setattr(training, "SILENCE", 0.0)
    whole, pieces = (tmp_path / name / "work" / "results" for name in ("whole", "pieces"))
    monkeypatch.setattr(runs, "COMMITTED", pieces)  # where both look for the search
    words = ["budget", "--games", "pong", "--seeds", "20", "--miniature"]
    assert command(tmp_path / "pieces", *words) == 2
    assert "has no sigma_search.csv: make part sigma_search first" in capsys.readouterr().err
    search = ["sigma_search", *words[1:3], "--miniature"]
    assert command(tmp_path / "pieces", *search, "--minutes", "1e-9") == 1
    left = "2 runs and 1 simulations of sigma_search are left: to go on, give the same command"
    assert left in capsys.readouterr().out
    assert command(tmp_path / "pieces", *search) == 0
    assert command(tmp_path / "whole", *words) == 0
    assert "step 2 of 4\nstep 3 of 4\n" in capsys.readouterr().out

    train, calls = runs.train, []

    def killed(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*args)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            command(tmp_path / "pieces", *words)
    kept = {path: path.stat().st_mtime_ns for path in pieces.parent.glob("*/*/[tegr]*-*.*")}
    assert command(tmp_path / "pieces", *words) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    names = {f"budget{ending}.csv" for ending in ("", "_simulated", "_states")}
    assert names == {path.name for path in whole.glob("*.csv")}
    for name in names:
        assert (whole / name).read_bytes() == (pieces / name).read_bytes()
    for name in ("budget.csv", "budget_simulated.csv"):
        committed = pd.read_csv(ROOT / "figures" / "atari" / name)
        assert list(pd.read_csv(whole / name).columns) == list(committed.columns)
    assert json.loads((whole / "budget.json").read_text())["device"] == "cpu"


@pytest.mark.slow
def test_states_and_pairs_are_the_committed_ones(tmp_path, monkeypatch):
    """After a backup, a gap varies where the committed, simulated one does."""
    members = {"kinds": ["gram told"], "gammas": [[0.1]], "sigmas": [1.0]}
    part = table_of("told", "") | {"search": "", "trials": {"base": {}}, "seeds": [10]}
    config = table_of("told", "")["config"] | members
    games = {"Atlantis": {}}
    monkeypatch.setitem(PARTS, "told", part | {"config": config, "games": games, "like": "tune"})
    small = settings.MINIATURE["experiment"] | {"num_evaluation": 8, "pairs_per_state": 3}
    monkeypatch.setitem(settings.MINIATURE, "experiment", small)
    assert command(tmp_path, "told", "--miniature") == 0
    learned = pd.read_csv(tmp_path / "work" / "results" / "told_states.csv")
    path = ROOT / "figures" / "atari" / "calibrated_simulated.csv"
    simulated = pd.read_csv(path).query("game == 'Atlantis' and states == 1 and gamma == 0.1")
    both = learned.merge(simulated, on="state")
    assert len(both) == 8
    constant = 2 * 0.1**2 / (1 - 0.1**2)
    assert np.ptp(both.mc) > 0.6 * constant  # some actions have one future
    assert (both.table - both.mc).abs().max() < 0.3 * constant


def test_a_folder_of_other_settings_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "work_through", lambda *_: None)

    def refused():
        command(tmp_path, "tune", "--games", "Pong", "--miniature")
        return capsys.readouterr().err

    assert not refused()
    with monkeypatch.context() as patch:
        patch.setitem(settings.MINIATURE["experiment"], "horizon", 6)
        assert "work/tune/Pong has files of other settings: sizes\n" in refused()
    with monkeypatch.context() as patch:
        patch.setitem(settings.MINIATURE["config"], "batch", 8)
        assert "other settings: 0-base-0-40-4\n" in refused()
    (tmp_path / "work" / "tune" / "Pong" / "settings.json").write_text("{")
    assert "settings.json is damaged" in refused()


def test_a_training_that_diverges_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    def train(*_):
        raise FloatingPointError("weights are no longer finite")

    monkeypatch.setattr(runs, "train", train)
    for name in ("save_once", "Network"):
        monkeypatch.setattr(runs, name, lambda *_: None)
    monkeypatch.setattr(runs, "inputs", lambda _: [])
    monkeypatch.setattr(runs, "learned_from", lambda *_: (None, None))
    assert command(tmp_path, "tune", "--games", "Pong", "--miniature") == 1
    printed = capsys.readouterr().out
    assert re.findall(r"FAILED .*/gaps-0-(\w+)-0-", printed) == list(PARTS["calibrated"]["trials"])
    assert "6 runs and 1 simulations of tune are left" in printed
