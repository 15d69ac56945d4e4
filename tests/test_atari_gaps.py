"""Gap statistics of recorded pairs, against the exact answers of a tabular JMDP with shocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import jmdp_lib as jl
from experiments.atari.predictions import averages, gap_table
from experiments.atari.recursive_pairs import PairRecords, pair_gaps, shock_ratio
from experiments.atari.small_models import with_shock

GRID = jl.windy_gridworld(3)
SIGMA = 0.7


def tabular_records(jm, rows, states, actions, horizon, rng):
    """`record_pairs` on a tabular JMDP without shocks, uniform policy; rows label the groups."""
    size = len(states)
    record = PairRecords(
        rows,
        actions,
        np.zeros((size, 2, horizon), np.float32),
        np.ones((size, 2, horizon), bool),
        np.zeros((size, horizon), bool),
    )
    at, act, one = np.column_stack([states, states]), actions.copy(), np.zeros(size, bool)
    cdf = np.cumsum(jm.probs.reshape(jm.num_states, -1), 1)  # all states have as many tables
    for t in range(horizon):
        together = at[:, 0] == at[:, 1]
        one |= together & (act[:, 0] == act[:, 1])
        uniform = rng.random((size, 2))
        uniform[together, 1] = uniform[together, 0]
        table = jm.starts[at] + (uniform[..., None] > cdf[at]).sum(-1)
        record.rewards[..., t] = jm.rewards[table, act]
        record.same_state[:, t] = together
        at = jm.next_states[table, act]
        act = rng.integers(jm.num_actions, size=(size, 2))
        act[one, 1] = act[one, 0]
    return record


def test_inside_error_bars_of_the_exact_solution():
    groups = [(6, 0, 1), (4, 1, 3), (3, 2, 0), (0, 3, 1)]
    state, *pair = np.repeat(groups, 4000, axis=0).T
    records = tabular_records(
        GRID, state, state, np.column_stack(pair), 100, np.random.default_rng(0)
    )
    gammas = [0.0, 0.5, 0.9]
    found = pair_gaps(records, gammas, SIGMA)
    for c, gamma in enumerate(gammas):
        jm = with_shock(jl.windy_gridworld(3, gamma=gamma), SIGMA)
        m = jl.jipe2(jm, jl.uniform_policy(jm), tol=1e-10).moments
        for k, (row, (a, b)) in enumerate(zip(found.state_rows, found.actions, strict=True)):
            variances = np.diagonal(m.covariance[row])
            mean, variance = m.gap_mean[row, a, b], m.gap_variance[row, a, b]
            assert abs(found.mean[c, k] - mean) < 4.5 * (variance / 4000) ** 0.5 + 1e-4
            error = found.variance_error[c, k]
            assert abs(found.variance[c, k] - variance) < 4.5 * error + 1e-4
            assert found.independent[c, k] == pytest.approx(variances[a] + variances[b], rel=0.1)
    assert (found.variance_error[1:] < 0.05 * found.variance[1:]).all()


def test_skill_is_against_the_constant_and_without_the_noise():
    rng = np.random.default_rng(0)
    constant, spread, noise = 2 * 0.9**2 / (1 - 0.9**2), 0.3, 0.1
    truth = constant + spread * rng.normal(size=4000)
    data = {"game": "Pong", "seed": 0, "gamma": 0.9, "state": range(4000)}
    data |= {"mc_independent": 1.0}
    data |= {"mc": truth + noise * rng.normal(size=4000), "mc_error": noise}
    told = {"known": truth, "constant": constant, "half": (truth + constant) / 2}
    frames = [pd.DataFrame(data | {"kind": kind, "coupled": said}) for kind, said in told.items()]
    table = gap_table(pd.concat(frames)).set_index("kind")
    assert table.skill.to_numpy() == pytest.approx([1.0, 0.0, 0.75], abs=0.02)
    assert table.error["known"] == pytest.approx(noise / constant, rel=0.1)
    assert table.constant["half"] == pytest.approx(1.0, rel=0.01)
    against_mean = gap_table(pd.concat(frames), "mean").set_index("kind")
    assert (against_mean.constant == 1).all()  # where the constant is right, the mean is, too
    assert against_mean.skill.to_numpy() == pytest.approx(table.skill.to_numpy(), abs=0.02)
    with pytest.raises(ValueError, match="baseline must be one of"):
        gap_table(pd.concat(frames), "zero")


def test_errors_are_the_spread_of_repeated_experiments():
    repeats, size = 400, 12
    rows = np.repeat(np.arange(repeats), size)
    actions = np.tile([0, 1], (repeats * size, 1))
    states = np.full(repeats * size, 6)
    records = tabular_records(GRID, rows, states, actions, 30, np.random.default_rng(1))
    found = pair_gaps(records, [0.8], 0.1)
    single = pd.DataFrame({"mc": found.variance[0], "mc_error": found.variance_error[0]})
    eight = averages(single.assign(group=np.arange(repeats) // 8), ["group"])
    assert len(eight) == repeats / 8
    for data in (single, eight):
        error = np.sqrt((data.mc_error**2).mean())
        assert error == pytest.approx(data.mc.std(), rel=0.3)


def test_plain_variance_without_shocks():
    state = np.full(50, 6)
    actions = np.tile([0, 1], (50, 1))
    records = tabular_records(GRID, state, state, actions, 20, np.random.default_rng(2))
    found = pair_gaps(records, [0.9])
    gaps = (records.rewards[:, 0] - records.rewards[:, 1]) @ 0.9 ** np.arange(20)
    assert found.variance[0, 0] == pytest.approx(gaps.var(ddof=1), rel=1e-5)
    assert found.variance.shape == (1, 1)


def test_ended_branches_earn_and_shock_nothing():
    base = tabular_records(
        GRID, np.zeros(3, int), np.full(3, 6), np.tile([0, 1], (3, 1)), 2, np.random.default_rng(3)
    )
    base.alive[:] = base.same_state[:] = False
    base.rewards[:] = 0.0
    base.alive[:, 0, 0] = base.same_state[:, 0] = True
    found = pair_gaps(base, [0.5], 2.0)
    assert found.variance[0, 0] == found.independent[0, 0] == pytest.approx(4.0)


def test_shock_ratio():
    gammas = np.array([0.1, 0.5, 0.99])
    assert shock_ratio(gammas) == pytest.approx(1 / gammas**2)
    assert shock_ratio([0.5], [1.0, -1.0]) == pytest.approx((2 + 2 / 3) / (4 + 2 / 3))
    assert shock_ratio([0.0])[0] == np.inf


def test_bad_input():
    state = np.full(4, 6)
    actions = np.array([[0, 1], [0, 1], [0, 1], [3, 1]])
    records = tabular_records(GRID, state, state, actions, 5, np.random.default_rng(4))
    with pytest.raises(ValueError, match=r"state row 6, actions \(3, 1\) has 1"):
        pair_gaps(records, [0.5])
    records = tabular_records(GRID, state, state, actions[[0] * 4], 5, np.random.default_rng(4))
    with pytest.raises(ValueError, match="gamma must lie in"):
        pair_gaps(records, [0.5, 1.0])
    with pytest.raises(ValueError, match="gamma must lie in"):
        shock_ratio([0.5, -0.5])
    with pytest.raises(ValueError, match=r"sigma must lie in \(-inf, inf\), got nan"):
        pair_gaps(records, [0.5], np.nan)


def gaps(**columns):
    """Rows of gaps in which nothing varies."""
    same = {"game": "G", "seed": 0, "gamma": 0.5, "kind": "near", "mc_independent": 4.0}
    return pd.DataFrame(columns).assign(**{n: x for n, x in same.items() if n not in columns})


def test_states_count_alike_however_many_action_pairs_they_have():
    pairs = gaps(state=[7, 7, 3], mc=[1.0, 3.0, 4.0], mc_error=[0.3, 0.4, 0.1], coupled=1.0)
    states = averages(pairs, ["game", "seed", "gamma", "kind", "state"])
    by_state = states.set_index("state")
    assert by_state.mc.to_dict() == {7: 2.0, 3: 4.0}
    assert by_state.mc_error.to_dict() == pytest.approx({7: 0.25, 3: 0.1})
    (row,) = gap_table(states).to_dict("records")
    assert row["mc"] == pytest.approx(3.0)
    assert row["mc_error"] == pytest.approx(np.hypot(0.25, 0.1) / 2)


def test_the_table_of_known_numbers():
    mc = np.array([1.0, 3.0, 1.0, 3.0])
    told = mc * [0.9, 0.9, 1.1, 1.1]
    rows = gaps(seed=[0, 0, 1, 1], state=[0, 1, 0, 1], mc=mc, mc_independent=4 * mc, coupled=told)
    (row,) = gap_table(rows.assign(mc_error=0.1)).to_dict("records")
    assert row["coupled"] == pytest.approx(1.0)
    assert row["mc_ratio"] == pytest.approx(4.0)
    error = 0.1 * 2**0.5 / 2 / 2  # of the average Monte Carlo variance, relative
    of_seeds = 12.7062 * 0.1  # Student's t of one degree of freedom, error of the mean of two seeds
    assert row["coupled_interval"] == pytest.approx(np.hypot(of_seeds, 1.96 * error))


@pytest.mark.parametrize(
    ("spread", "error", "shown"),
    [(0.0, 0.3, False), (0.005, 1e-6, False), (0.3, 0.3, False), (0.5, 0.05, True)],
)
def test_a_skill_is_missing_where_the_constant_is_right(spread, error, shown):
    """Within the noise of the simulation, or within 1% of the average."""
    constant = 2 * 0.25 / 0.75
    drawn = np.random.default_rng(0).permutation(np.linspace(-1.7, 1.7, 64))  # of variance one
    mc = constant * (1 + spread * drawn)
    rows = gaps(state=range(64), mc=mc, coupled=mc, mc_error=[error * constant] * 64)
    (skill,) = gap_table(rows).skill
    assert np.isfinite(skill) == shown
