"""Gap statistics of recorded pairs, against exact answers, and the rules of chapter 12 for them."""

import numpy as np
import pandas as pd
import pytest

import jmdp_lib as jl
from experiments.atari import results
from experiments.atari.recursive_pairs import PairRecords, pair_gaps
from experiments.atari.results import averages, best_trials, chosen_runs, constants, ratios, skills
from experiments.atari.small_models import with_shock

GRID = jl.windy_gridworld(3)


def tabular_records(rows, states, actions, horizon, rng):
    """`record_pairs` on the grid without shocks, uniform policy; rows label the groups."""
    size = len(states)
    record = PairRecords(
        rows,
        actions,
        np.zeros((size, 2, horizon), np.float32),
        np.ones((size, 2, horizon), bool),
        np.zeros((size, horizon), bool),
    )
    at, act, one = np.column_stack([states, states]), actions.copy(), np.zeros(size, bool)
    cdf = np.cumsum(GRID.probs.reshape(GRID.num_states, -1), 1)  # all states have as many tables
    for t in range(horizon):
        together = at[:, 0] == at[:, 1]
        one |= together & (act[:, 0] == act[:, 1])
        uniform = rng.random((size, 2))
        uniform[together, 1] = uniform[together, 0]
        table = GRID.starts[at] + (uniform[..., None] > cdf[at]).sum(-1)
        record.rewards[..., t] = GRID.rewards[table, act]
        record.same_state[:, t] = together
        at = GRID.next_states[table, act]
        act = rng.integers(GRID.num_actions, size=(size, 2))
        act[one, 1] = act[one, 0]
    return record


def test_inside_error_bars_of_the_exact_solution():
    groups = [(6, 0, 1), (4, 1, 3), (3, 2, 0), (0, 3, 1)]
    state, *pair = np.repeat(groups, 4000, axis=0).T
    records = tabular_records(state, state, np.column_stack(pair), 100, np.random.default_rng(0))
    cases = [(0.0, 0.7), (0.5, 0.7), (0.9, 0.7), (0.9, 0.0)]
    found = pair_gaps(records, cases).groupby(["gamma", "sigma"])
    for gamma, sigma in cases:
        jm = with_shock(jl.windy_gridworld(3, gamma=gamma), sigma)
        m = jl.jipe2(jm, jl.uniform_policy(jm), tol=1e-10).moments
        each = found.get_group((gamma, sigma))
        assert each.state.tolist() == sorted(s for s, _, _ in groups)
        for row, (s, a, b) in zip(each.itertuples(), sorted(groups), strict=True):
            variances = np.diagonal(m.covariance[s])
            mean, variance = m.gap_mean[s, a, b], m.gap_variance[s, a, b]
            assert abs(row.mc_mean - mean) < 4.5 * (variance / 4000) ** 0.5 + 1e-4
            assert abs(row.mc - variance) < 4.5 * row.mc_error + 1e-4
            assert row.mc_independent == pytest.approx(variances[a] + variances[b], rel=0.1)
        assert gamma == 0.0 or sigma == 0.0 or (each.mc_error < 0.05 * each.mc).all()


def test_errors_are_the_spread_of_repeated_experiments():
    repeats, size = 400, 12
    rows = np.repeat(np.arange(repeats), size)
    actions = np.tile([0, 1], (repeats * size, 1))
    states = np.full(repeats * size, 6)
    records = tabular_records(rows, states, actions, 30, np.random.default_rng(1))
    single = pair_gaps(records, [(0.8, 0.1)])
    eight = averages(single.assign(group=np.arange(repeats) // 8), ["group"])
    assert len(eight) == repeats / 8
    for data in (single, eight):
        error = np.sqrt((data.mc_error**2).mean())
        assert error == pytest.approx(data.mc.std(), rel=0.3)


def test_ended_branches_earn_and_shock_nothing():
    nobody = np.zeros((3, 2, 2), bool)
    rows, actions = np.zeros(3, int), np.tile([0, 1], (3, 1))
    base = PairRecords(rows, actions, np.zeros((3, 2, 2)), nobody, nobody[:, 0].copy())
    base.alive[:, 0, 0] = base.same_state[:, 0] = True
    [found] = pair_gaps(base, [(0.5, 2.0)]).itertuples()
    assert found.mc == found.mc_independent == pytest.approx(4.0)


# ---- the rules -----------------------------------------------------------------------------------

PONG = {"game": "Pong", "sigma": 1.0, "gamma": 0.5}


def simulated(mc, mc_error, states=1):
    return pd.DataFrame({"mc": mc, "mc_error": mc_error}).assign(states=states, **PONG)


def run_of(told, truth, kind="near", seed=0, trial="base"):
    """A row of PART.csv, from what a network says at each state."""
    row = {"kind": kind, "seed": seed, "trial": trial, "states": 1, "coupled": told.mean()}
    error = np.sqrt(((told - truth.mc) ** 2).mean()) / truth.mc.mean()
    mc_error = np.sqrt((truth.mc_error**2).sum()) / len(truth)
    return PONG | row | {"mc": truth.mc.mean(), "mc_error": mc_error, "error": error}


def test_ratios_of_known_numbers():
    truth = simulated(np.array([1.0, 3.0]), 0.1)
    runs = [run_of(truth.mc * factor, truth, seed=s) for s, factor in enumerate([0.9, 1.1])]
    (row,) = ratios(pd.DataFrame(runs)).to_dict("records")
    assert row["ratio"] == pytest.approx(1.0)
    error = 0.1 * 2**0.5 / 2 / 2  # of the average Monte Carlo variance, relative
    of_seeds = 12.7062 * 0.1  # Student's t of one degree of freedom, error of the mean of two seeds
    assert row["half"] == pytest.approx(np.hypot(of_seeds, 1.96 * error))
    assert row["verdict"] == "cannot tell"
    (alone,) = ratios(pd.DataFrame(runs[:1])).to_dict("records")
    assert alone["half"] == pytest.approx(1.96 * 0.9 * error)


def test_budgets_are_judged_one_by_one_by_the_rule_of_a_part():
    truth = simulated(np.array([1.0, 3.0]), 0.01)
    runs = pd.DataFrame([run_of(truth.mc * factor, truth) for factor in (0.5, 1.08)])
    runs = runs.assign(num_states=20_000, steps=[2_500, 10_000])
    assert ratios(runs, tolerance=0.1).verdict.tolist() == ["outside", "inside"]
    assert ratios(runs).verdict.tolist() == ["outside", "outside"]
    few, many = skills(runs, truth, "mean")
    assert few < many


@pytest.mark.parametrize(
    ("ratio", "half", "error", "verdict"),
    [
        (1.02, 0.02, 0.0, "inside"),
        (1.02, 0.04, 0.0, "cannot tell"),
        (1.09, 0.03, 0.0, "outside"),
        (0.90, 0.06, 0.0, "cannot tell"),
        (0.90, 0.04, 0.0, "outside"),
        (1.00, 0.01, 0.6, "-"),  # the simulated one may be zero
    ],
)
def test_verdicts(ratio, half, error, verdict):
    row = {"ratio": ratio, "half": half, "mc": 1.0, "mc_error": error}
    assert results.verdicts(pd.DataFrame([row])).tolist() == [verdict]


def test_what_needs_no_network():
    mc = 2 * 0.25 / 0.75 * np.array([1.1, 1.3])  # the constant is 1.2 times too small
    found = constants(pd.concat([simulated(mc, 0.01), simulated(1.2 * mc, 0.0, states=0)]))
    rows = found.set_index("kind")
    assert rows.ratio.to_dict() == pytest.approx({"constant": 1 / 1.2, "tuning mean": 1.2})
    error = 0.01 / 2**0.5 / mc.mean()
    assert rows.half["constant"] == pytest.approx(1.96 / 1.2 * error)
    assert set(rows.verdict) == {"outside"}
    none = constants(pd.concat([simulated(mc, 0.01).assign(sigma=0.0, states=k) for k in (0, 1)]))
    assert none.set_index("kind")[["ratio", "verdict"]].loc["constant"].tolist() == [0, "outside"]


def test_the_best_trial_of_a_search_is_reported():
    rows = [
        {"gamma": gamma, "kind": "near", "sigma": 1.0, "trial": trial, "game": game, "error": error}
        for gamma, trial, errors in (
            (0.5, "base", (0.1, 0.5)),
            (0.5, "fast", (0.2, 0.3)),
            (0.9, "base", (0.1, 0.1)),
            (0.9, "fast", (0.2, 0.1)),
        )
        for game, error in zip(("Pong", "Boxing"), errors, strict=True)
    ]
    search = pd.DataFrame(rows)
    assert best_trials(search) == {(0.5, "near", 1.0): "fast", (0.9, "near", 1.0): "base"}
    kept = chosen_runs(search, search)
    assert sorted(set(zip(kept.gamma, kept.trial, strict=True))) == [(0.5, "fast"), (0.9, "base")]


def test_skill_is_against_a_baseline_and_without_the_noise():
    rng = np.random.default_rng(0)
    constant, noise = 2 * 0.25 / 0.75, 0.03
    value = constant * (1 + 0.3 * rng.normal(size=4000))
    truth = simulated(value + noise * rng.normal(size=4000), noise)
    told = {"known": value, "constant": 0 * value + constant, "half": (value + constant) / 2}
    runs = pd.DataFrame([run_of(said, truth, kind) for kind, said in told.items()])
    for baseline in ("constant", "mean"):  # here they are one
        found = skills(runs, truth, baseline).droplevel([0, 1, 2])
        assert found.to_dict() == pytest.approx({"known": 1, "constant": 0, "half": 0.75}, abs=0.02)


@pytest.mark.parametrize(
    ("spread", "error", "shown"),
    [(0.0, 0.3, False), (0.005, 1e-6, False), (0.3, 0.3, False), (0.5, 0.05, True)],
)
def test_a_skill_is_missing_where_the_baseline_is_right(spread, error, shown):
    """Within the noise of the simulation, or within 1% of the average."""
    constant = 2 * 0.25 / 0.75
    drawn = np.random.default_rng(0).permutation(np.linspace(-1.7, 1.7, 64))  # of variance one
    truth = simulated(constant * (1 + spread * drawn), error * constant)
    (skill,) = skills(pd.DataFrame([run_of(truth.mc, truth)]), truth, "constant")
    assert np.isfinite(skill) == shown
