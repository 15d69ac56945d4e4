"""The script of the full Atari runs: sizes, options, going on after a kill, no orphans."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "workflow" / "atari_runs.py"
sys.path.insert(0, str(SCRIPT.parent))

import atari_protocol  # noqa: E402
import atari_runs  # noqa: E402


@pytest.mark.parametrize("noise", ["reward", "sticky"])
@pytest.mark.parametrize("game", ["Pong", "Atlantis"])
def test_a_scale_shrinks_every_size_and_nothing_else(game, noise):
    full = atari_runs.experiment_of(game, noise)
    small = atari_runs.experiment_of(game, noise, 0.01)
    for name in ("num_states", "num_held_out", "num_evaluation", "repeats", "horizon"):
        assert getattr(small, name) < getattr(full, name), name
    for name in ("steps", "batch", "hidden"):
        assert getattr(small.config, name) < getattr(full.config, name), name
    assert small.config.members == full.config.members
    assert (small.game, small.noise, small.follow_share) == (full.game, noise, full.follow_share)
    assert full.game.name == game
    assert atari_runs.experiment_of(game, noise, 1.0) == full


def test_results_are_collected_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(atari_runs.torch.cuda, "is_available", lambda: False)
    experiments = [atari_runs.experiment_of("Pong", "reward")]
    text = atari_runs.provenance(experiments, [0], "cuda", [], "")
    assert '"device": "cuda"' in text
    assert '"ale_py"' in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--games", "Pong", "Foo"], "invalid choice: 'Foo'"),
        (["--games", "Pong", "Pong"], "--games: each once, found ['Pong', 'Pong']"),
        (["--seeds", "0", "-1"], "--seeds must not be negative"),
        (["--seeds", "1", "1"], "--seeds: each once"),
        (["--scale", "0"], "--scale must lie in (0, 1]"),
        (["--scale", "1.5"], "--scale must lie in (0, 1]"),
        (["--scale", "nan"], "--scale must lie in (0, 1]"),
    ],
)
def test_bad_options_are_refused_before_any_work(tmp_path, monkeypatch, capsys, options, message):
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["atari_runs.py", "game", *options, *where])
    with pytest.raises(SystemExit):
        atari_runs.main()
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_job_ends_with_whoever_started_it(tmp_path, ends_when_killed):
    job = [sys.executable, str(SCRIPT), "game", "--with-parent", "--games", "Pong"]
    job += ["--processes", "2", "--work", str(tmp_path), "--out", str(tmp_path)]
    code = f"import subprocess; subprocess.run({job!r}, stderr=subprocess.DEVNULL)"
    ends_when_killed(code)


def test_no_notebook_software_is_needed():
    """A machine that only trains has none."""
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import atari_runs; "
        "print(*{'nbformat', 'jupytext', 'papermill', 'snakemake'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_all_goes_on_where_it_was_killed(tmp_path):
    command = [sys.executable, str(SCRIPT), "all", "--games", "Pong", "--seeds", "0", "1"]
    command += ["--scale", "0.001", "--processes", "1"]
    command += ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]

    def results() -> list[bytes]:
        subprocess.run(command, check=True, capture_output=True)
        names = [f"atari_reward_{name}.csv" for name in ("gaps", "table", "curves")]
        return [(tmp_path / name).read_bytes() for name in names]

    whole = results()
    home = tmp_path / "work" / "Pong-reward"
    shutil.rmtree(home / "run-1")
    for name in ("tables-1.npz", "gaps-1.csv", "records.npz"):
        (home / name).unlink()
    assert results() == whole
    minutes = json.loads((tmp_path / "atari_reward.json").read_text())["minutes"]
    assert len(minutes) == 2


def test_the_protocol_gives_every_network_the_same_search_and_keeps_games_and_seeds_back():
    protocol = atari_protocol.PROTOCOL
    assert not set(protocol["new_games"]) & {*protocol["tuning_games"], *atari_runs.PAPER_GAMES}
    assert protocol["tuning_seed"] not in protocol["seeds"]
    assert protocol["tuning_fresh"] != protocol["fresh"]
    for game in atari_protocol.GAMES:
        final = atari_protocol.experiment_of("final", game)
        for trial in protocol["trials"]:
            tuned = atari_protocol.experiment_of("tune", game, trial)
            assert tuned.config.kinds == ("gram", "local", "near")
            assert (tuned.num_evaluation, tuned.obs) == (final.num_evaluation, final.obs)
        for scale in ("natural", "divided"):
            paper = atari_protocol.experiment_of("paper", game, scale)
            assert (paper.config.descend, paper.config.scale) == ("sampled", scale)
            assert replace(paper, config=final.config) == final  # the same states
    assert atari_protocol.experiment_of("sticky", "Pong").noise == "sticky"


@pytest.mark.slow
def test_the_protocol_from_states_to_a_kept_network(tmp_path, monkeypatch, capsys):
    short = {"tuning_games": ["Pong"], "new_games": [], "trials": {"base": {}}, "depths": [2]}
    one = {"Pong": ["10x10", "6x10"]}
    short |= {part: atari_protocol.PROTOCOL[part] | {"games": one} for part in ("curves", "sticky")}
    monkeypatch.setattr(atari_protocol, "PROTOCOL", atari_protocol.PROTOCOL | short)
    monkeypatch.setattr(atari_protocol, "GAMES", ["Pong"])
    where = ["--work", str(tmp_path), "--out", str(tmp_path / "out"), "--scale", "0.0001"]

    def do(*what):
        monkeypatch.setattr(sys, "argv", ["atari_protocol.py", *what, *where, "--processes", "1"])
        atari_protocol.main()

    do("train", "tune", "Pong", "0")
    do("compare", "tune", "Pong")
    do("choose")
    do("play", "final", "Pong", "10")
    do("train", "final", "Pong", "10")
    do("train", "paper", "Pong", "10", "divided")
    do("compare", "final", "Pong")
    do("results")
    table = pd.read_csv(tmp_path / "out" / "atari_fresh_table.csv")
    assert {"gram", "near", "near+table", "near+2", "paper, divided"} <= set(table.kind)
    curves = pd.read_csv(tmp_path / "out" / "atari_paper_curves.csv")
    assert set(curves.curve) == {"td", "floor"}
    for part in ("curves", "sticky"):
        do("play", part, "Pong")
        do("train", part, "Pong", "10")
        do("compare", part, "Pong")
    do("curves")
    table = pd.read_csv(tmp_path / "out" / "atari_sizes_table.csv")
    assert {"near", "near+1"} <= set(table.kind)
    assert set(zip(table.coupling, table.states, strict=True)) == {
        (noise, states) for noise in ("reward", "sticky") for states in (6, 10)
    }
    capsys.readouterr()
    do("evaluate", "Pong", "--states", "3")
    assert "0.99" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        do("train", "Pong")


def test_a_committed_network_is_there_for_every_game() -> None:
    kept = {path.name: path for path in (ROOT / "figures" / "networks").iterdir()}
    assert set(kept) == set(atari_protocol.GAMES)
    for game, folder in kept.items():
        network = atari_protocol.Trained.load(folder).network
        assert network.config.name == game
        assert network.config.members == ((0.99, "near"),)
