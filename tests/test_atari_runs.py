"""The runs of chapter 12: their list, the command that makes them, and their results as files."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch._inductor  # noqa: F401, a first optimiser imports it, and that sets a variable
from programs import ROOT, run

from experiments.atari import runs, settings
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
        (["finals"], "runs.toml has no part 'finals'; it has calibrated"),
        (["calibrated:Pong:4"], "part calibrated of runs.toml has no run 'calibrated:Pong:4'"),
        (["tune:Qbert"], "part tune of runs.toml has no run"),
        (["sigma:Pnog"], "did you mean Pong"),
        (["sigma", "--device", "toaster"], "'toaster' is unknown"),
        (["sigma", "--processes", "0"], "--processes must be at least 1, got 0"),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit):
        runs.main(["--work", str(tmp_path / "work"), "--device", "cpu", *words])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_has_no_standard_error_is_not_begun():
    with pytest.raises(ValueError, match="repeats must be at least 3"):
        Experiment("Pong", repeats=2)


def test_streams_share_nothing():
    draws = {
        tuple(runs._stream(purpose, number).generate_state(2))
        for purpose in (0, 2, 3)
        for number in range(3)
    }
    assert len(draws) == 9


def test_the_list_of_runs_keeps_its_rules():
    for part in set(PARTS) - {"grid"}:
        every = runs_of(part, ROOT)  # all settings make sense
        assert len({run.gaps for run in every}) == len(every)
    for part in ("calibrated", "told", "sigma"):
        reported = table_of(part, "")
        search = table_of(reported["search"], "")
        assert not set(search["seeds"]) & set(reported["seeds"])
        assert (search["fresh"], max(reported["fresh"])) == ([0], 1)  # states are kept back
        assert search["trials"] == reported["trials"]
        assert set(search["games"]) < set(reported["games"])
    seen = set(table_of("calibrated", "")["games"]) | {"Breakout", "Seaquest", "Alien", "Enduro"}
    assert len(set(table_of("sigma", "")["games"]) - seen) == 2
    trials = [kind for trial in PARTS["sigma"]["trials"].values() for kind in trial["kinds"]]
    assert {trials.count(kind) for kind in trials} == {3}  # an equal budget
    first = runs_of("sigma", ROOT)[: 2 * 6 * 6]  # seeds, games, trials
    assert {gamma for run in first for gamma, *_ in run.config.members} == {0.99}


def test_a_run_has_the_members_that_chose_its_trial():
    chosen = {(0.9, "near", 0.3): "fast", (0.9, "local", 0.3): "base", (0.99, "near", 1.0): "fast"}
    runs = {run.gaps: run.config.members for run in runs_of("sigma", ROOT, chosen)}
    assert {
        path.stem: members for path, members in runs.items() if "Pong/gaps-21" in str(path)
    } == {
        "gaps-21-fast-0": ((0.99, "near", 1.0),),
        "gaps-21-base-1": ((0.9, "local", 0.3),),
        "gaps-21-fast-1": ((0.9, "near", 0.3),),
    }


@pytest.mark.slow
def test_a_part_and_its_search_in_miniature(tmp_path, monkeypatch, capsys):
    """As documented; what is there is not made again, what is lost alone is."""
    words = ["sigma:pong:20", "--miniature"]
    trials = {name: PARTS["sigma"]["trials"][name] for name in ("base", "dim256")}
    monkeypatch.setitem(PARTS["sigma"], "trials", trials)
    monkeypatch.setattr(runs, "COMMITTED", tmp_path)  # without a search
    work, out = tmp_path / "work", tmp_path / "work" / "results"
    assert command(tmp_path, *words) == 2
    assert "has no sigma_search.csv: make part sigma_search first" in capsys.readouterr().err
    assert command(tmp_path, "sigma_search:Pong", "--miniature", "--minutes", "0") == 1
    said = "4 runs of sigma_search:Pong are left: to go on, give the same command again"
    assert said in capsys.readouterr().out
    assert command(tmp_path, "sigma_search:Pong", "--miniature") == 0
    assert command(tmp_path, *words) == 0
    gaps = work / "sigma" / "Pong" / "gaps-20-base-0.csv"
    gaps.unlink()  # as if the command had been stopped here
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*/*/[tegr]*-*.*")}
    assert len(kept) == 2 * 3 + 4 + 3  # tables, states and pairs; gaps of both parts
    tables = {path: path.read_bytes() for path in out.glob("*.csv")}
    assert command(tmp_path, *words) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {path: path.read_bytes() for path in out.glob("*.csv")} == tables

    found = pd.read_csv(out / "sigma.csv")
    assert len(found) == 2 * 3 * 5  # discounts, kinds, shocks
    assert np.isfinite(found[["coupled", "table", "mc"]].to_numpy()).all()
    committed = ROOT / "figures" / "atari"
    for ending in ("", "_states", "_simulated"):
        columns = list(pd.read_csv(out / f"sigma{ending}.csv").columns)
        assert columns == list(pd.read_csv(committed / f"calibrated{ending}.csv").columns), ending
    assert json.loads((out / "sigma.json").read_text())["device"] == "cpu"


@pytest.mark.slow
def test_a_part_that_takes_a_committed_simulation(tmp_path, monkeypatch):
    """Of its states and action pairs: after a backup, a gap varies where the simulated one does."""
    members = {"kinds": ["gram told"], "gammas": [[0.1]], "sigmas": [1.0]}
    part = table_of("told", "") | {"search": "", "trials": {"base": {}}, "seeds": [10]}
    config = table_of("told", "")["config"] | members
    games = {"Atlantis": {}}
    monkeypatch.setitem(PARTS, "told", part | {"config": config, "games": games, "like": "tune"})
    small = settings.MINIATURE["experiment"] | {"num_evaluation": 8, "pairs_per_state": 3}
    monkeypatch.setitem(settings.MINIATURE, "experiment", small)
    assert command(tmp_path, "told", "--miniature") == 0
    found = pd.read_csv(tmp_path / "work" / "results" / "told_states.csv")
    path = ROOT / "figures" / "atari" / "calibrated_simulated.csv"
    simulated = pd.read_csv(path).query("game == 'Atlantis' and states == 1 and gamma == 0.1")
    both = found.merge(simulated, on="state")
    assert len(both) == 8
    constant = 2 * 0.1**2 / (1 - 0.1**2)
    assert np.ptp(both.mc) > 0.6 * constant  # some actions have one future
    assert (both.table - both.mc).abs().max() < 0.3 * constant
    assert not list(tmp_path.rglob("records*"))


def test_a_folder_of_other_settings_or_with_a_damaged_file_is_refused(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(runs, "work_through", lambda *_: None)

    def refused():
        command(tmp_path, "tune:Pong", "--miniature")
        return capsys.readouterr().err

    assert not refused()
    with monkeypatch.context() as patch:
        patch.setitem(settings.MINIATURE["experiment"], "horizon", 6)
        assert "work/tune/Pong has files of other settings: sizes\n" in refused()
    with monkeypatch.context() as patch:
        patch.setitem(settings.MINIATURE["config"], "steps", 5)
        assert "other settings: base-0\n" in refused()
    (tmp_path / "work" / "tune" / "Pong" / "settings.json").write_text("{")
    assert "settings.json is damaged" in refused()


def test_a_training_that_diverges_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    def train(*_):
        raise FloatingPointError("weights are no longer finite")

    monkeypatch.setattr(runs, "train", train)
    others = (runs, "play"), (runs.QueryTables, "load"), (runs, "Network"), (runs.Replay, "of")
    for place, name in others:
        monkeypatch.setattr(place, name, lambda *_: None)
    assert command(tmp_path, "tune:Pong", "--miniature") == 1
    said = capsys.readouterr().out
    assert re.findall(r"FAILED .*/gaps-0-(\w+)-0.csv", said) == list(PARTS["calibrated"]["trials"])
    assert "6 runs of tune:Pong are left" in said


@pytest.mark.slow
def test_a_machine_that_only_trains_needs_no_notebook_software():
    code = "import sys, experiments.atari.runs; print(*sys.modules)"
    imported = set(run(sys.executable, "-c", code).split())
    assert not {"nbformat", "jupytext", "papermill", "snakemake", "matplotlib"} & imported
