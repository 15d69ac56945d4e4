"""The script of the full Atari runs: sizes, options, going on after a kill, no orphans."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "workflow" / "atari_protocol.py"
sys.path.insert(0, str(SCRIPT.parent))

import atari_protocol  # noqa: E402
from atari_protocol import experiment_of  # noqa: E402


@pytest.fixture
def do(tmp_path, monkeypatch):
    """The script in miniature, with these words and options."""

    def run(*what):
        where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
        options = ["--scale", "0.0001", "--processes", "1", *where]
        monkeypatch.setattr(sys, "argv", ["atari_protocol.py", *options, *what])
        atari_protocol.main()

    return run


@pytest.mark.parametrize(("part", "noise"), [("reward", "reward"), ("lottery", "sticky")])
@pytest.mark.parametrize("game", ["Pong", "Atlantis"])
def test_a_scale_shrinks_every_size_and_nothing_else(game, part, noise):
    full, small = experiment_of(part, game), experiment_of(part, game, scale=0.01)
    for name in ("num_states", "num_held_out", "num_evaluation", "repeats", "horizon"):
        assert getattr(small, name) < getattr(full, name), name
    for name in ("steps", "batch", "hidden"):
        assert getattr(small.config, name) < getattr(full.config, name), name
    assert small.config.members == full.config.members
    assert (small.game, small.noise, small.follow_share) == (full.game, noise, full.follow_share)
    assert full.game.name == game
    assert experiment_of(part, game, scale=1.0) == full


def test_results_are_collected_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(atari_protocol.torch.cuda, "is_available", lambda: False)
    options = argparse.Namespace(device="cuda", note="", out=tmp_path)
    atari_protocol.write("reward", {}, [experiment_of("reward", "Pong")], [0], options)
    told = json.loads((tmp_path / "atari_reward.json").read_text())
    assert told["device"] == "cuda"
    assert "ale_py" in told


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("play finals Pong", "PART must be one of tune, final, .*, got 'finals'"),
        ("play reward Pnog", "did you mean Pong"),
        ("train curves Pong 10", "part curves has the games BattleZone, Boxing, not 'Pong'"),
        ("train paper Pong 10 halved", "has the trials natural, divided, not 'halved'"),
        ("seed reward Pong one", "SEED must be a whole number and not negative, got 'one'"),
        ("seed reward Pong -1", "SEED must be a whole number and not negative, got '-1'"),
        ("seed reward Pong 0 --device toaster", "'toaster' is unknown"),
        ("play reward Pong --scale 0", "--scale must lie in"),
        ("play reward Pong --scale 1.5", "--scale must lie in"),
        ("play reward Pong --scale nan", "--scale must lie in"),
        ("play reward", "unknown: play reward"),
        ("dance", "unknown: dance"),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, do, capsys, what, message):
    with pytest.raises(SystemExit):
        do(*what.split())
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.slow
def test_a_job_ends_with_whoever_started_it(tmp_path, ends_when_killed):
    job = [sys.executable, str(SCRIPT), "play", "reward", "Pong", "--with-parent"]
    job += ["--processes", "2", "--work", str(tmp_path), "--out", str(tmp_path)]
    code = f"import subprocess; subprocess.run({job!r}, stderr=subprocess.DEVNULL)"
    ends_when_killed(code)


def test_no_notebook_software_is_needed():
    """A machine that only trains has none."""
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import atari_protocol; "
        "print(*{'nbformat', 'jupytext', 'papermill', 'snakemake'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_a_part_goes_on_where_it_was_killed(tmp_path, do):
    def results():
        do("play", "reward", "Pong")
        do("seed", "reward", "Pong", "0")
        do("seed", "reward", "Pong", "1")
        do("results", "reward", "--games", "Pong", "--seeds", "0", "1")
        names = [f"atari_reward_{name}.csv" for name in ("gaps", "table", "curves")]
        return [(tmp_path / "out" / name).read_bytes() for name in names]

    whole = results()
    home = tmp_path / "work" / "reward" / "Pong"
    shutil.rmtree(home / "run-1-base")
    for name in ("tables-1.npz", "gaps-1-base.csv", "records.npz"):
        (home / name).unlink()
    assert results() == whole
    minutes = json.loads((tmp_path / "out" / "atari_reward.json").read_text())["minutes"]
    assert len(minutes) == 6
    table = pd.read_csv(tmp_path / "out" / "atari_reward_table.csv")
    assert set(table.kind) == {k + how for k in ("gram", "local", "near") for how in ("", "+table")}
    do("results", "reward", "--games", "Pong", "--seeds", "1")
    assert set(pd.read_csv(tmp_path / "out" / "atari_reward_curves.csv").seed) == {1}


def test_the_protocol_gives_every_network_the_same_search_and_keeps_games_and_seeds_back():
    protocol = atari_protocol.PROTOCOL
    assert not set(protocol["new_games"]) & {
        *protocol["tuning_games"],
        *protocol["reward"]["games"],
    }
    assert protocol["tuning_seed"] not in protocol["seeds"]
    assert protocol["tuning_fresh"] != protocol["fresh"]
    for game in atari_protocol.GAMES:
        final = experiment_of("final", game)
        for trial in protocol["trials"]:
            tuned = experiment_of("tune", game, trial)
            assert tuned.config.kinds == ("gram", "local", "near")
            assert (tuned.num_evaluation, tuned.obs) == (final.num_evaluation, final.obs)
        for scale in ("natural", "divided"):
            paper = experiment_of("paper", game, scale)
            assert (paper.config.descend, paper.config.scale) == ("sampled", scale)
            assert replace(paper, config=final.config) == final  # the same states
    assert experiment_of("sticky", "Pong").noise == "sticky"


@pytest.mark.slow
def test_the_protocol_from_states_to_a_kept_network(tmp_path, monkeypatch, capsys, do):
    short = {"tuning_games": ["Pong"], "new_games": [], "trials": {"base": {}}, "depths": [2]}
    one = {"Pong": ["10x10", "6x10"]}
    short |= {part: atari_protocol.PROTOCOL[part] | {"games": one} for part in ("curves", "sticky")}
    monkeypatch.setattr(atari_protocol, "PROTOCOL", atari_protocol.PROTOCOL | short)
    monkeypatch.setattr(atari_protocol, "GAMES", ["Pong"])
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
