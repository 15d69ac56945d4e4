"""The experiment of the authors' release: shock by position, targets, recursion, going on."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch._inductor  # a first optimiser imports it, and that sets a variable

from experiments.atari import release, release_training
from experiments.atari import release_play as play
from experiments.atari.copies import copies_recursion
from experiments.atari.release_network import (
    Answers,
    Covariances,
    answers,
    covariances,
    losses,
    predictions,
    targets,
)
from experiments.atari.release_settings import PROTOCOL, Settings, settings_of
from experiments.atari.release_training import Learner, block_draws, train
from experiments.atari.release_verdict import verdict

FIGURES = Path(__file__).parents[1] / "figures"


@pytest.fixture
def tiny():
    """Settings of a few steps."""
    return replace(
        settings_of(smoke=True),
        steps=12,
        learn_from=4,
        record_every=2,
        save_every=4,
        copy_every=3,
        batch=2,
        states=2,
    )


@pytest.fixture
def collected():
    """A play of random screens; every fifth step ends a game."""
    rng = np.random.default_rng(0)
    steps = 12
    screens = rng.integers(256, size=(2 * steps + 1, play.SIDE, play.SIDE), dtype=np.uint8)
    ended = np.zeros((steps, 2), bool)
    ended[::5] = True
    return play.Collected(
        screens[: steps + 1],
        screens[steps + 1 :],
        play.action_pairs(rng, steps, 3),
        rng.integers(-1, 2, (steps, 2)).astype(np.float32),
        ended,
        rng.choice(np.array([-1, 1], np.int8), steps),
        3,
    )


def pairs_of(same, alive=None, count=1, horizon=4):
    """Pairs of one state whose games pay nothing."""
    alive = np.ones((1, count, 2, horizon), bool) if alive is None else alive
    return play.Pairs(np.zeros(alive.shape, np.float32), alive, np.full((1, count, horizon), same))


def test_recursion_gives_the_second_column_without_a_network():
    mean, variance = copies_recursion(1500, 0.99)
    np.testing.assert_allclose(mean, (1.0 - 0.99 ** np.arange(1501)) / 2.0)
    simulated = np.array([1.50, 1.65, 1.67, 1.87]) * 1e-4
    assert np.round(2.0 * variance[23] / simulated).tolist() == [129, 117, 116, 103]
    assert variance.argmax() == 125
    assert 2.0 * variance[125] / simulated[0] == pytest.approx(700, abs=5)
    fixed_point = 0.01**2 / 4.0 / (1.0 - 0.99**2)  # the variance of such a return
    assert variance[-1] == pytest.approx(fixed_point, rel=1e-3)
    with pytest.raises(ValueError, match="num_copies must be at least 0"):
        copies_recursion(-1, 0.99)


def test_shock_by_position_is_clipped():
    rewards = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 1000.0], [0.0, 0.0]])
    signs = np.array([1, 1, -1, -1])[:, None]
    at_one = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert play.shocked(rewards, signs, 1.0).tolist() == at_one
    at_quarter = [[0.25, 0.0], [1.0, 0.75], [0.0, 1.0], [0.0, 0.25]]
    assert play.shocked(rewards, signs, 0.25).tolist() == at_quarter


def test_branches_in_one_state_share_the_sign_by_position():
    most = 0.01 * np.sum(0.99 ** np.arange(4))
    rng = np.random.default_rng(0)
    together = play.pair_returns(pairs_of(True, count=50), 1.0, 0.99, rng)
    np.testing.assert_allclose(together.sum(-1), most)
    apart = play.pair_returns(pairs_of(False, count=50), 1.0, 0.99, rng)
    assert np.ptp(apart.sum(-1)) > 0.1 * most


def test_simulated_gap_variance_is_that_of_independent_coins():
    pairs = pairs_of(False, count=4000, horizon=30)
    found = play.simulated(play.pair_returns(pairs, 0.25, 0.9, np.random.default_rng(1)))
    exact = 2.0 / 64.0 * 0.1**2 * np.sum(0.9 ** (2 * np.arange(30)))
    assert found.gap_variance == pytest.approx(exact, rel=0.1)
    assert found.independent_variance == pytest.approx(exact, rel=0.1)


def test_simulated_variances_divide_by_the_number_of_pairs():
    found = play.simulated(np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.0]]]))
    assert found.gap_variance == 1.0  # gaps 1 and -1, gaps 2 and 0
    assert found.independent_variance == 0.75


def test_collected_play_can_be_played_again(tmp_path):
    play.collect("Pong", 3, 30, 4, tmp_path)
    found = play.Collected.load(tmp_path / "steps.npz")
    states = pickle.loads((tmp_path / "states.pkl").read_bytes())
    assert sorted(states) == [0, 1, 2, 3, 11, 18, 26]
    player = play.Emulator("Pong")
    for step, state in states.items():
        for position, seen in enumerate([found.screens[step + 1], found.others[step]]):
            player.ale.restoreState(state)
            told = player.act(found.actions[step, position])
            assert told == (found.rewards[step, position], found.ended[step, position])
            np.testing.assert_array_equal(player.screen(), seen)
    play.simulate("Pong", 3, "spaced", 30, 4, 3, 6, tmp_path)
    pairs = play.Pairs.load(tmp_path / "pairs_spaced.npz")
    assert pairs.rewards.shape == pairs.alive.shape == (4, 3, 2, 6)
    assert pairs.same[:, :, 0].all()
    assert not pairs.same.all()


def test_targets_of_a_batch_by_hand():
    now = Answers(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.zeros(2, 2, 1))
    later = Answers(
        torch.tensor([[0.5, 0.6], [0.7, 0.8]]), torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    )
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    alive = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    mean, found = targets(rewards, alive, now, later, 0.5)
    expected = [[0.75, 0.3], [0.35, 0.5]]
    torch.testing.assert_close(mean, torch.tensor(expected))
    diag = [[0.5625 + 0.25 - 0.01, 0.09 + 1.0 - 0.04], [0.1225 + 2.25 - 0.09, 0.25 + 0.0 - 0.16]]
    torch.testing.assert_close(found.diag, torch.tensor(diag))
    same = [0.75 * 0.3 + 0.5 - 0.02, 0.35 * 0.5 + 0.0 - 0.12]
    torch.testing.assert_close(found.same, torch.tensor(same))
    cross = [0.75 * 0.5 + 0.0 - 0.04, 0.35 * 0.3 + 1.5 * 1.0 - 0.06]
    torch.testing.assert_close(found.cross, torch.tensor(cross))
    assert found.gap[0].item() == pytest.approx(sum(diag[0]) - 2.0 * same[0])


def test_losses_of_a_batch_by_hand():
    predicted = Answers(torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]))
    wanted = Covariances(torch.tensor([[1.0, 1.0]]), torch.tensor([0.0]), torch.tensor([1.0]))
    found = losses(predicted, torch.tensor([[1.0, 0.0]]), wanted)
    assert found.tolist() == [2.0, 0.5, 1.0, 0.0, 1.0]  # the gap's variance: 1 instead of 2


def test_predictions_are_those_of_the_asked_actions():
    mean = torch.tensor([[1.0, 2.0, 3.0]])
    vectors = torch.tensor([[[3.0, 0.0], [9.0, 9.0], [0.0, 4.0]]])
    asked = torch.eye(3)[torch.tensor([[0, 2]])]
    found = predictions((mean, vectors), asked)
    expected = {"mean": 2.0, "coupled": 25.0, "independent": 25.0, "states_apart": 0.0}
    assert found == expected
    aligned = torch.tensor([[[3.0, 0.0], [9.0, 9.0], [1.0, 0.0]]])
    found = predictions((mean, aligned), asked)
    assert found == {"mean": 2.0, "coupled": 4.0, "independent": 10.0, "states_apart": 0.0}
    assert covariances(answers((mean, aligned), asked).vectors).same.tolist() == [3.0]
    apart = torch.tensor([[[0.0], [5.0]], [[2.0], [5.0]], [[4.0], [5.0]]])  # (S, A, D) = (3, 2, 1)
    found = predictions((torch.zeros(3, 2), apart), torch.eye(2).expand(3, 2, 2))
    assert found["states_apart"] == pytest.approx((4.0 + 4.0 + 16.0) / 3.0 / 2.0)


def test_copies_are_counted_from_the_first_update_on():
    settings = settings_of(smoke=False)
    steps = [5000, 6000, 6001, 7500, 50000, 50001, 70000]
    assert list(map(settings.copies, steps)) == [0, 0, 1, 1, 22, 23, 32]


def test_draws_reach_up_to_the_present(tiny):
    settings = replace(tiny, batch=500, learn_from=500, steps=504)
    rows, next_actions = block_draws(settings, "Pong", 0, 4, 3)
    assert rows.max(1).tolist() == [4, 5]
    assert rows.min() == 0
    assert set(next_actions.ravel().tolist()) == {0, 1, 2}
    again, _ = block_draws(settings, "Pong", 0, 4, 3)
    np.testing.assert_array_equal(rows, again)
    assert not np.array_equal(rows, block_draws(settings, "Boxing", 0, 4, 3)[0])


def test_targets_look_at_the_successor_of_each_action(tiny, collected):
    learner = Learner(tiny, "Pong", 0, collected, "cpu")
    values = torch.tensor([1.0, 2.0, 3.0])
    learner.target = lambda screens: (
        screens.float().mean((1, 2))[:, None] * values,
        torch.zeros(len(screens), 3, 1),
    )
    rows = torch.tensor([5, 6])
    chosen = learner.data.chosen[rows]
    next_actions = torch.tensor([[0, 1], [2, 0]])
    mean, found = learner._targets(
        rows, learner.data.screens[rows], chosen, learner.identity[next_actions]
    )
    screens = collected.screens.mean((1, 2))
    others = collected.others.mean((1, 2))
    paid = play.shocked(collected.rewards[6], np.repeat(collected.signs[6], 2), 1.0)
    beyond = np.array([screens[7] * 3.0, others[6] * 1.0])
    np.testing.assert_allclose(mean[1], 0.01 * paid + 0.99 * beyond, rtol=1e-5)
    first = play.shocked(collected.rewards[5], np.repeat(collected.signs[5], 2), 1.0)
    np.testing.assert_allclose(mean[0], 0.01 * first, rtol=1e-5)  # the game is over
    old = screens[6] * (collected.actions[6] + 1.0)
    same = mean[1, 0] * mean[1, 1] - old.prod()
    np.testing.assert_allclose(found.same[1], same, rtol=1e-5)


def test_target_is_copied_after_its_step(tiny, collected):
    learner = Learner(tiny, "Pong", 0, collected, "cpu")
    weights = learner.target.mean.weight
    learner.begin_block()
    assert torch.equal(weights, learner.network.mean.weight)
    learner.advance()
    learner.advance()
    fresh = weights.clone()
    assert learner.step == 6  # a multiple of 3; the copy is due before the next update
    learned = learner.network.mean.weight.clone()
    assert not torch.equal(fresh, learned)
    learner.begin_block()
    learner.advance()
    assert torch.equal(weights, learned)


def test_killed_training_goes_on_as_if_nothing_had_happened(
    tiny, collected, tmp_path, monkeypatch, capsys
):
    whole = Learner(tiny, "Pong", 0, collected, "cpu")
    (tmp_path / "whole").mkdir()
    train([whole], [tmp_path / "whole"])
    assert [record["step"] for record in whole.records] == [4, 6, 8, 10, 12]

    def killed(learners):
        if learners[0].step == 10:  # after the save of step 8
            raise KeyboardInterrupt
        return train_block(learners)

    train_block = release_training.train_block
    monkeypatch.setattr(release_training, "train_block", killed)
    with pytest.raises(KeyboardInterrupt):
        train([Learner(tiny, "Pong", 0, collected, "cpu")], [tmp_path])
    monkeypatch.undo()
    resumed = Learner(tiny, "Pong", 0, collected, "cpu")
    resumed.restore(tmp_path)
    assert resumed.step == 8
    train([resumed], [tmp_path])
    assert repr(resumed.records) == repr(whole.records)
    assert all(map(torch.equal, resumed.network.parameters(), whole.network.parameters()))
    assert "step 12: 1 networks" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_experiment_in_miniature(tmp_path, capsys):
    words = ["--work", str(tmp_path / "work"), "--games", "pong", "--seeds", "10"]
    words += ["--processes", "1"]
    small = {"steps": 120, "record_every": 20, "save_every": 40, "horizon": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROTOCOL, "smoke", PROTOCOL["smoke"] | small)
        patch.setitem(PROTOCOL, "tolerance", PROTOCOL["tolerance"] | {"step": 120})
        release.main([*words, "--smoke"])
        first = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("Pong_10/*")}
        release.main([*words, "--smoke"])
        release.main(["table", *words, "--out", str(tmp_path)])
    assert all(path.stat().st_mtime_ns == made for path, made in first.items())
    rows = pd.read_csv(tmp_path / "release.csv")
    assert len(rows) == 3 * 2 * 2  # steps 80, 100 and 120, b, where
    np.testing.assert_allclose(
        rows.coupled_ratio * rows.simulated_gap_variance, rows.coupled, rtol=1e-4
    )
    told = json.loads((tmp_path / "release.json").read_text())
    assert [call["device"] for call in told["calls"]][:1] == ["cpu"]
    assert {"commit", "versions", "hardware", "seconds"} <= told["calls"][0].keys()
    assert told["recorded"] == [{"game": "Pong", "seed": 10, "last_step": 120}]
    assert len(told["verdict"]) == 2
    assert "independent_ratio" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        release.main(words)
    assert "other settings" in capsys.readouterr().err


def test_verdict_follows_from_the_tolerance():
    keys = {"game": "Pong", "step": 50000, "b": 0.25, "where": "first"}
    rows = [
        {**keys, "seed": 0, "coupled_ratio": 1.5, "independent_ratio": 80.0},
        {**keys, "seed": 1, "coupled_ratio": 2.3, "independent_ratio": 110.0},
        {**keys, "seed": 1, "coupled_ratio": 99.0, "independent_ratio": 99.0, "b": 1.0},
    ]
    found = verdict(pd.DataFrame(rows), PROTOCOL)
    assert found["mean"].tolist() == [1.9, 95.0]
    assert found.within.tolist() == [1.9 / 1.3 <= 1.5, True]
    rows[0]["coupled_ratio"] = 2.2
    assert not verdict(pd.DataFrame(rows), PROTOCOL).within[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--games", "Pang"], "did you mean Pong"),
        (["--seeds", "-1"], "--seeds must be at least 0"),
        (["--games", "Pong", "pong"], "named twice"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["table"], "there is no run"),
    ],
)
def test_bad_input_is_refused_before_work(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        release.main([*words, "--work", str(tmp_path / "work")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 1.0}, "gamma"),
        ({"batch": 1}, "batch must be at least 2"),
        ({"save_every": 7}, "save_every must be a multiple of record_every"),
        ({"steps": 40}, "steps must be at least"),
        ({"eval_b": [0.0]}, "eval_b"),
        ({"epochs": 3}, "no 'epochs'"),
    ],
)
def test_bad_settings_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        Settings.of(PROTOCOL["settings"] | PROTOCOL["smoke"] | changed)
