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
from atari_protocol import experiment_of, settings  # noqa: E402

GAMES = atari_protocol.PROTOCOL["final"]["games"]


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
    told = atari_protocol.provenance("reward", argparse.Namespace(device="cuda", work=tmp_path))
    assert told["device"] == "cuda"
    assert "ale_py" in told


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("finals Pong", "PART: invalid choice: 'finals' .choose from '?reward'?, .*final"),
        ("reward Pnog", "did you mean Pong"),
        ("curves Pong 10", "part curves has the games BattleZone, Boxing, not 'Pong'"),
        ("tune Asterix 0", "part tune has the games Pong, .*, not 'Asterix'"),
        ("paper Pong 10 halved", "has the trials natural, divided, not 'halved'"),
        ("reward Pong one", "SEED: invalid int value: 'one'"),
        ("reward Pong -1", "SEED must be at least 0, got -1"),
        ("reward Pong 0 --device toaster", "'toaster' is unknown"),
        ("reward Pong --scale 0", "--scale must lie in"),
        ("reward Pong --scale 1.5", "--scale must lie in"),
        ("reward Pong --scale nan", "--scale must "),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, do, capsys, what, message):
    with pytest.raises(SystemExit):
        do(*what.split())
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.slow
def test_a_job_ends_with_whoever_started_it(tmp_path, ends_when_killed):
    job = [sys.executable, str(SCRIPT), "reward", "Pong", "--with-parent"]
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
        do("reward", "Pong")
        do("reward", "Pong", "0")
        do("reward", "Pong", "1")
        do("reward")
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
    do("reward", "--games", "Pong", "--seeds", "1")
    assert set(pd.read_csv(tmp_path / "out" / "atari_reward_curves.csv").seed) == {1}


def test_the_protocol_gives_every_network_the_same_search_and_keeps_games_and_seeds_back():
    protocol = atari_protocol.PROTOCOL
    tune, reported = protocol["tune"], protocol["final"]
    assert not set(protocol["new_games"]) & {*tune["games"], *protocol["reward"]["games"]}
    assert not set(tune["seeds"]) & set(reported["seeds"])
    assert tune["fresh"] != reported["fresh"]
    for game in GAMES:
        final = experiment_of("final", game)
        for trial in settings("tune", game)["trials"] if game in tune["games"] else ():
            tuned, whole = experiment_of("tune", game, trial), experiment_of("final", game, trial)
            assert tuned.config.kinds == ("gram", "local", "near")
            assert (tuned.num_evaluation, tuned.obs) == (final.num_evaluation, final.obs)
            assert (2 * tuned.num_states, 2 * tuned.config.steps) == (
                whole.num_states, whole.config.steps,
            )  # fmt: skip
        for scale in ("natural", "divided"):
            paper = experiment_of("paper", game, scale)
            assert (paper.config.descend, paper.config.scale) == ("sampled", scale)
            assert replace(paper, config=final.config) == final  # the same states
    assert experiment_of("sticky", "Pong").noise == "sticky"


@pytest.mark.slow
def test_the_protocol_from_states_to_a_kept_network(tmp_path, monkeypatch, capsys, do):
    sizes = {"games": {"Pong": {}}, "trials": {"10x10": {}, "6x10": {}}}
    short = {part: atari_protocol.PROTOCOL[part] | sizes for part in ("curves", "sticky")}
    monkeypatch.setattr(atari_protocol, "PROTOCOL", atari_protocol.PROTOCOL | short)
    do("tune", "Pong", "0", "base")
    do("tune")
    do("final", "Pong", "10")
    do("paper", "Pong", "10", "divided")
    do("final")
    do("paper")
    table = pd.read_csv(tmp_path / "out" / "atari_fresh_table.csv")
    assert {"gram", "near", "near+table", "near+1", "paper, divided"} <= set(table.kind)
    curves = pd.read_csv(tmp_path / "out" / "atari_paper_curves.csv")
    assert set(curves.curve) == {"td", "floor"}
    for part in ("curves", "sticky"):
        do(part, "Pong")
        do(part, "Pong", "10")
    do("curves")
    table = pd.read_csv(tmp_path / "out" / "atari_sizes_table.csv")
    assert {"near", "near+1"} <= set(table.kind)
    assert set(zip(table.coupling, table.states, strict=True)) == {
        (noise, states) for noise in ("reward", "sticky") for states in (6, 10)
    }
    capsys.readouterr()
    do("evaluate", "Pong", "--states", "3")
    assert "0.99" in capsys.readouterr().out


def test_a_committed_network_is_there_for_every_game() -> None:
    kept = {path.name: path for path in (ROOT / "figures" / "networks").iterdir()}
    assert set(kept) == set(GAMES)
    for game, folder in kept.items():
        network = atari_protocol.Trained.load(folder).network
        assert network.config.name == game
        assert network.config.members == ((0.99, "near"),)
