"""Gap statistics of recorded pairs, against exact answers, and the rules of chapter 12."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from programs import ROOT

import jmdp_lib as jl
from experiments.atari import results, runs
from experiments.atari.recursive_pairs import PairRecords, _simulate_state, pair_gaps
from experiments.atari.settings import runs_of
from experiments.atari.small_models import with_shock
from experiments.atari.tables import evaluation_states
from notebooks.tools import chapter

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


def test_estimates_lie_within_errors_of_the_exact_solution():
    groups = [(6, 0, 1), (4, 1, 3), (3, 2, 0), (0, 3, 1)]
    state, *pair = np.repeat(groups, 4000, axis=0).T
    records = tabular_records(state, state, np.column_stack(pair), 100, np.random.default_rng(0))
    cases = [(0.0, 0.7), (0.5, 0.7), (0.9, 0.7), (0.9, 0.0)]
    estimates = pair_gaps(records, cases).groupby(["gamma", "sigma"])
    for gamma, sigma in cases:
        jm = with_shock(jl.windy_gridworld(3, gamma=gamma), sigma)
        m = jl.jipe2(jm, jl.uniform_policy(jm), tol=1e-10).moments
        each = estimates.get_group((gamma, sigma))
        assert each.state.tolist() == sorted(s for s, _, _ in groups)
        for row, (s, a, b) in zip(each.itertuples(), sorted(groups), strict=True):
            variances = np.diagonal(m.covariance[s])
            mean, variance = m.gap_mean[s, a, b], m.gap_variance[s, a, b]
            assert abs(row.mc_mean - mean) < 4.5 * (variance / 4000) ** 0.5 + 1e-4
            assert abs(row.mc - variance) < 4.5 * row.mc_error + 1e-4
            assert row.mc_independent == pytest.approx(variances[a] + variances[b], rel=0.1)
        assert gamma == 0.0 or sigma == 0.0 or (each.mc_error < 0.05 * each.mc).all()


@pytest.mark.slow
def test_pairs_of_a_state_are_the_committed_ones():
    """Branches of Asterix that merge, are paid, and end."""
    run = runs_of("calibrated", ROOT, games=["Asterix"])[0]
    game = replace(run.experiment, num_evaluation=2)
    *_, start = evaluation_states(game, runs._stream(2, 1), 1)[0]
    records = _simulate_state(game, runs._stream(3, 1), 1, start, 0)
    committed = read("atari/calibrated_simulated")
    committed = committed.query("game == @game.game and states == 1 and state == 1")
    estimates = pair_gaps(records, [*zip(committed.gamma, committed.sigma, strict=True)])
    found = results.averages(estimates, ["gamma", "sigma", "state"])
    for column in ("mc_mean", "mc", "mc_independent", "mc_error"):
        np.testing.assert_allclose(found[column], committed[column], rtol=1e-6, atol=1e-12)


# ---- the rules -----------------------------------------------------------------------------------


def read(*names):
    return chapter.results([f"figures/{name}.csv" for name in names])


def test_results_are_those_of_the_committed_figures():
    """Ratios, intervals, verdicts and skills, of networks and of the constant."""
    tables = {}
    search = read("atari/tune", "atari/told_search")
    runs = results.chosen_runs(read("atari/calibrated", "atari/told"), search)
    constants = results.constants(read("atari/calibrated_simulated"))
    ratios = results.ratios(runs[runs.states == 1])
    tables["gap_ratios"] = pd.concat([constants, ratios])
    budget = results.chosen_runs(read("atari/budget"), read("atari/sigma_search"))
    budget = budget[budget.states == 1]
    simulated = read("atari/budget_simulated").query("states == 1")
    skills = results.skills(budget, simulated, "mean").reset_index()
    tables["budget"] = results.ratios(budget, tolerance=0.1).merge(skills)
    for name, table in tables.items():
        committed = read(f"book/fig_{name}")
        keys = ["game", "sigma", "gamma", "kind", *committed.columns.intersection(results.BUDGET)]
        both = committed.merge(table, on=keys, suffixes=("", "_now"))
        assert len(both) == len(committed)
        for column in committed.columns.intersection(["ratio", "half", "skill"]):
            np.testing.assert_allclose(both[column], both[f"{column}_now"], rtol=1e-6)
        assert (both.verdict == both.verdict_now).all()


@pytest.mark.parametrize(
    ("ratio", "half", "error", "verdict"),
    [
        (1.02, 0.02, 0.0, "inside"),
        (1.02, 0.04, 0.0, "cannot tell"),
        (1.09, 0.03, 0.0, "outside"),
        (0.90, 0.04, 0.0, "outside"),
        (1.00, 0.01, 0.6, "-"),  # the simulated one may be zero
    ],
)
def test_verdicts(ratio, half, error, verdict):
    row = {"ratio": ratio, "half": half, "mc": 1.0, "mc_error": error}
    assert results.verdicts(pd.DataFrame([row])).tolist() == [verdict]


@pytest.mark.parametrize(
    ("spread", "error", "skill"),
    [(0.0, 0.3, np.nan), (0.005, 1e-6, np.nan), (0.3, 0.3, np.nan), (0.5, 0.05, 0.75)],
)
def test_a_skill_is_missing_where_the_baseline_is_right(spread, error, skill):
    """Within the noise of the simulation, or within 1% of the average."""
    constant = results.never_met(1.0, 0.5)
    values = constant * (1 + spread * np.linspace(-1.7, 1.7, 64))
    case = {"game": "Pong", "sigma": 1.0, "gamma": 0.5}
    truth = pd.DataFrame({"mc": values, "mc_error": error * constant}).assign(**case)
    off = (values - constant).std() / 2  # a network that is half way to the truth
    run = case | {"kind": "near", "error": off / constant, "mc": constant}
    (computed,) = results.skills(pd.DataFrame([run]), truth, "constant")
    assert computed == pytest.approx(skill, abs=0.02, nan_ok=True)
