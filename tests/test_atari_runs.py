"""The script of the full Atari runs: sizes, options, going on after a kill, no orphans."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.atari import device, protocol, tables
from experiments.atari.protocol import experiment_of, settings

ROOT = Path(__file__).resolve().parents[1]

GAMES = protocol.PROTOCOL["final"]["games"]


@pytest.fixture
def do(tmp_path, monkeypatch):
    """The script in miniature, with these words and options."""
    sizes = {"num_states": 20, "num_held_out": 5, "num_evaluation": 3, "horizon": 5}
    sizes |= {"repeats": 3, "deep_repeats": 3, "actions": 3, "pairs_per_state": 2}
    config = {"steps": 10, "batch": 16, "hidden": 32, "log_every": 2, "eval_every": 5}
    monkeypatch.setattr(tables, "_START_STEPS", 10)
    monkeypatch.setattr(tables, "_EVALUATION_SPACING", 5)
    for name in protocol.PARTS:
        part = copy.deepcopy(protocol.PROTOCOL[name])
        deep = {"depths": [1]} if "depths" in part.get("experiment", {}) else {}
        part["experiment"] = part.get("experiment", {}) | sizes | deep
        part["config"] = part.get("config", {}) | config
        if name in protocol.SIZED:
            part |= {"games": {"Pong": {}}, "trials": {"10x10": {}, "6x10": {}}}
        else:
            part["games"] = {game: {} for game in settings(name, "")["games"]}
        monkeypatch.setitem(protocol.PROTOCOL, name, part)

    def run(*what):
        where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
        options = ["--processes", "1", *where]
        monkeypatch.setattr(sys, "argv", ["protocol", *options, *what])
        protocol.main()

    return run


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("finals Pong", "PART: invalid choice: 'finals' .choose from '?reward'?, .*final"),
        ("reward Pnog", "did you mean Pong"),
        ("curves Asterix 10", "part curves has the games Pong, not 'Asterix'"),
        ("tune Asterix 0", "part tune has the games Pong, .*, not 'Asterix'"),
        ("paper Pong 10 halved", "has the trials natural, divided, not 'halved'"),
        ("reward Pong one", "SEED: invalid int value: 'one'"),
        ("reward Pong -1", "SEED must be at least 0, got -1"),
        ("reward Pong 0 --device toaster", "'toaster' is unknown"),
    ],
)
def test_bad_words_are_refused_before_any_work(tmp_path, do, capsys, what, message):
    with pytest.raises(SystemExit):
        do(*what.split())
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_job_ends_with_whoever_started_it(do, monkeypatch):
    asked = []
    monkeypatch.setattr(protocol, "end_with_parent", lambda: asked.append(True))
    with pytest.raises(SystemExit):
        do("reward", "Pnog", "--with-parent")
    assert asked


@pytest.mark.slow
def test_a_part_goes_on_where_it_was_killed(tmp_path, monkeypatch, do):
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
    monkeypatch.setattr(protocol.torch.cuda, "is_available", lambda: False)
    do("reward", "--games", "Pong", "--seeds", "1", "--device", "cuda")  # results need no GPU
    facts = json.loads((tmp_path / "out" / "atari_reward.json").read_text())
    assert (facts["device"], facts["seeds"]) == ("cuda", [1])
    assert "ale_py" in facts["versions"]
    assert set(pd.read_csv(tmp_path / "out" / "atari_reward_curves.csv").seed) == {1}


def test_the_protocol_gives_every_network_the_same_search_and_keeps_games_and_seeds_back():
    parts = protocol.PROTOCOL
    tune = parts["tune"]
    reported = parts["final"]
    assert not set(parts["new_games"]) & {*tune["games"], *parts["reward"]["games"]}
    assert not set(tune["seeds"]) & set(reported["seeds"])
    assert tune["fresh"] != reported["fresh"]
    for game in GAMES:
        final = experiment_of("final", game)
        for trial in settings("tune", game)["trials"] if game in tune["games"] else ():
            tuned, whole = experiment_of("tune", game, trial), experiment_of("final", game, trial)
            assert tuned.config.kinds == ("gram", "local", "near")
            assert (tuned.num_evaluation, tuned.obs) == (final.num_evaluation, final.obs)
            assert (2 * tuned.num_states, 2 * tuned.config.steps) == (
                whole.num_states,
                whole.config.steps,
            )
        for scale in ("natural", "divided"):
            paper = experiment_of("paper", game, scale)
            assert (paper.config.descend, paper.config.scale) == ("sampled", scale)
    assert experiment_of("sticky", "Pong").noise == "sticky"


def test_a_run_is_named_by_part_game_seed_and_trial():
    found = device.Training.of("paper:Pong:10:divided")
    assert (found.states, found.label, found.experiment.config.seed) == (
        "calibrate",
        "paper_divided",
        10,
    )
    with pytest.raises(ValueError, match=r"the protocol has no run paper:Pong:10:fast"):
        device.Training.of("paper:Pong:10:fast")


@pytest.mark.slow
def test_the_protocol_from_states_to_a_kept_network(tmp_path, capsys, do):
    do("tune", "Pong", "0", "base")
    do("tune")
    do("final", "Pong", "10")
    do("final")
    table = pd.read_csv(tmp_path / "out" / "atari_fresh_table.csv")
    assert {"gram", "near", "near+table", "near+1"} <= set(table.kind)
    for part in ("curves", "sticky"):
        do(part, "Pong")
        do(part, "Pong", "10")
    do("curves")
    table = pd.read_csv(tmp_path / "out" / "atari_sizes_table.csv")
    assert {"near", "near+1"} <= set(table.kind)
    assert set(zip(table.noise, table.states, strict=True)) == {
        (noise, states) for noise in ("reward", "sticky") for states in (6, 10)
    }
    capsys.readouterr()
    do("evaluate", "Pong", "--states", "3")
    assert "0.99" in capsys.readouterr().out


def test_a_committed_network_is_there_for_every_game() -> None:
    kept = {path.name: path for path in (ROOT / "figures" / "networks").iterdir()}
    assert set(kept) == set(GAMES)
    for game, folder in kept.items():
        network = protocol.Trained.load(folder).network
        assert network.config.name == game
        assert network.config.members == ((0.99, "near"),)
