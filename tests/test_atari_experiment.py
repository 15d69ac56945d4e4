"""The Atari experiments end to end, in miniature: files, resuming, the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.atari import experiment, tables
from experiments.atari.experiment import Experiment, run
from experiments.atari.networks import TD_BLOCKS, Config
from experiments.atari.predictions import by_state, gap_table
from jmdp_lib.atari import Game

TINY = Config(
    name="Pong",
    gammas=(0.1, 0.9),
    kinds=("gram", "local"),
    sigma=1.0,
    hidden=16,
    shared_dim=4,
    local_dim=4,
    steps=20,
    batch=16,
    actions=3,
    log_every=5,
    eval_every=10,
    save_every=10,
)
SMALL = Experiment(
    TINY, num_states=60, num_held_out=12, num_evaluation=4, pairs_per_state=2, repeats=4, horizon=8
)


def test_the_noise_follows_from_the_shock():
    sticky = Experiment(Config(name="Pong", sigma=0.0), obs="ram+paddles")
    assert (SMALL.noise, sticky.noise) == ("reward", "sticky")
    assert SMALL.game == Game("Pong", 0.0)
    assert sticky.game == Game("Pong", 0.25, obs="ram+paddles")
    assert SMALL.config.complete
    assert not sticky.config.complete


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": replace(TINY, name="Pnog")}, "did you mean Pong"),
        ({"obs": "smell"}, "obs must be one of"),
        ({"num_states": -5}, "num_states must be at least 1"),
        ({"num_held_out": 0}, "num_held_out must be at least 1"),
        ({"pairs_per_state": 0}, "pairs_per_state must be at least 1"),
        ({"repeats": 2}, "repeats must be at least 3"),
    ],
)
def test_what_cannot_finish_is_not_begun(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_without_the_device_nothing_is_played(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="there is no GPU"):
        run(SMALL, 0, tmp_path / "home", "cuda", processes=1)
    assert not (tmp_path / "home").exists()


def test_streams_share_nothing():
    draws = {
        tuple(Experiment(TINY).stream(purpose, seed).generate_state(2))
        for purpose in range(4)
        for seed in range(3)
    }
    assert len(draws) == 12


@pytest.mark.slow
def test_an_experiment_and_its_resumption(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_START_STEPS", 100)  # less random play than usual
    monkeypatch.setattr(tables, "_EVALUATION_SPACING", 25)
    frames = [run(SMALL, seed, tmp_path, processes=1) for seed in (0, 1)]
    assert (frames[0].mc == frames[1].mc).all()  # one simulation for all seeds
    assert (frames[0].coupled != frames[1].coupled).any()
    assert len(frames[0]) == 2 * 4 * 4  # told and backed up, members, states
    assert set(frames[0].kind) == {"gram", "local", "gram+table", "local+table"}
    stored = pd.read_csv(tmp_path / "gaps-0.csv")
    np.testing.assert_allclose(stored.coupled, frames[0].coupled, rtol=1e-6)

    def never(*_, **__):
        raise AssertionError("made twice")

    for name in ("collect", "evaluation_states", "record_pairs"):
        monkeypatch.setattr(experiment, name, never)
    with pytest.raises(ValueError, match="is of another run: num_states: 60 there, 70 here"):
        run(replace(SMALL, num_states=70), 0, tmp_path, processes=1)
    again = run(SMALL, 0, tmp_path, processes=1)
    pd.testing.assert_frame_equal(again, frames[0])
    files = sorted(tmp_path.glob("run-*/metrics.csv"))
    curve = pd.concat([pd.read_csv(file) for file in files]).assign(game="Pong")
    assert set(curve.seed) == {0, 1}
    assert set(curve.curve) == {"td", "sampled", "expected", "floor"}
    assert np.isfinite(curve[list(TD_BLOCKS)].to_numpy()).all()

    both = pd.concat(frames)
    table = gap_table(both).set_index(["gamma", "kind"])
    assert table.mc_ratio[0.1, "gram"] == table.mc_ratio[0.1, "local"]
    # Shocks are all there is in eight steps of Pong: 1 / gamma^2, whatever was learned.
    assert table.mc_ratio[0.1, "local"] == pytest.approx(100, rel=0.1)
    assert (table.coupled_interval >= 0).all()


def test_states_count_alike_however_many_action_pairs_they_have():
    keys = {"game": "G", "noise": "reward", "seed": 0, "gamma": 0.5, "kind": "near", "b": 1}
    gaps = pd.DataFrame(
        [
            {
                **keys,
                "state": state,
                "a": a,
                "mc_mean": 0.0,
                "mc": mc,
                "mc_independent": 2.0,
                "gap_mean": 0.0,
                "coupled": 1.0,
                "independent": 2.0,
                "mc_mean_error": 0.0,
                "mc_error": error,
                "mc_independent_error": 0.0,
                "mc_covariance": error**2,
            }
            for state, a, mc, error in ((7, 0, 1.0, 0.3), (7, 2, 3.0, 0.4), (3, 0, 4.0, 0.1))
        ]
    )
    states = by_state(gaps).set_index("state")
    assert states.mc.to_dict() == {7: 2.0, 3: 4.0}
    assert states.mc_error.to_dict() == pytest.approx({7: 0.25, 3: 0.1})
    assert states.mc_covariance.to_dict() == pytest.approx({7: 0.0625, 3: 0.01})
    (row,) = gap_table(by_state(gaps)).to_dict("records")
    assert row["mc"] == pytest.approx(3.0)
    assert row["mc_error"] == pytest.approx(np.hypot(0.25, 0.1) / 2)
    assert row["reliability"] == pytest.approx(1 - (0.0625 + 0.01) / 2 / 2.0)


def test_the_table_of_known_numbers():
    rows = []
    for seed, factor in ((0, 0.9), (1, 1.1)):
        for state, mc in ((0, 1.0), (1, 3.0)):
            rows.append(
                {
                    "game": "G",
                    "noise": "reward",
                    "seed": seed,
                    "gamma": 0.5,
                    "kind": "local",
                    "state": state,
                    "mc": mc,
                    "mc_error": 0.1,
                    "mc_independent": 4 * mc,
                    "mc_independent_error": 0.0,
                    "mc_covariance": 0.0,
                    "coupled": factor * mc,
                    "independent": 4 * mc,
                    "mc_mean": 0.0,
                    "mc_mean_error": 0.0,
                    "gap_mean": 0.0,
                }
            )
    (row,) = gap_table(pd.DataFrame(rows)).to_dict("records")
    assert row["coupled"] == pytest.approx(1.0)
    assert row["independent"] == row["mc_ratio"] == pytest.approx(4.0)
    error = 0.1 * 2**0.5 / 2 / 2  # of the average Monte Carlo variance, relative
    of_seeds = 12.7062 * 0.1  # Student's t of one degree of freedom, error of the mean of two seeds
    assert row["coupled_interval"] == pytest.approx(np.hypot(of_seeds, 1.96 * error))
    assert row["mc_ratio_interval"] == pytest.approx(1.96 * 4 * error)
    assert row["rank"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("spread", "error", "shown"),
    [(0.0, 0.3, False), (0.005, 1e-6, False), (0.3, 0.3, False), (0.5, 0.05, True)],
)
def test_a_skill_is_missing_where_the_constant_is_right(spread, error, shown):
    """Within the noise of the simulation, or within 1% of the average."""
    constant = 2 * 0.81 / 0.19
    rng = np.random.default_rng(0)
    drawn = rng.permutation(np.linspace(-1.7, 1.7, 64))  # of variance one
    simulated = constant * (1 + spread * drawn)
    columns = {"mc": simulated, "coupled": simulated, "mc_error": error * constant}
    columns |= dict.fromkeys(("mc_mean", "mc_mean_error", "gap_mean", "mc_covariance"), 0.0)
    columns |= {"mc_independent": constant, "mc_independent_error": 0.1, "independent": constant}
    names = {"game": "Pong", "noise": "reward", "seed": 0, "gamma": 0.9, "kind": "near"}
    gaps = pd.DataFrame({"state": np.arange(64), **columns}).assign(**names)
    (skill,) = gap_table(gaps).skill
    assert np.isfinite(skill) == shown
