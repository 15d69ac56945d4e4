"""Sample statistics, and gaps played out."""

from dataclasses import asdict, astuple, fields, replace

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.simulators import estimate_gaps
from jmdp_lib.simulators.gaps import GapEstimate, GapStatistics, GapSums

GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)
UNIFORM = jl.uniform_policy(GRID)


def test_statistics_of_parts_are_those_of_the_whole():
    """The error of the variance is the jackknife's, from samples that leave one value out."""
    x = 1e3 + np.random.default_rng(0).exponential(size=40)
    none = np.zeros(40, bool)
    parts = [
        [GapSums.of(x[k], none[k], 0.0, (0.0, 0.0), np)] for k in np.split(np.arange(40), [3, 15])
    ]
    left_out = np.array([np.var(np.delete(x, i), ddof=1) for i in range(40)])
    error = np.sqrt(39 / 40 * np.sum((left_out - left_out.mean()) ** 2))
    variance = np.var(x, ddof=1)
    found = GapStatistics.of(parts, 7.0)
    assert (found.mean, found.mean_error) == pytest.approx((x.mean(), np.sqrt(variance / 40)))
    assert (found.variance, found.variance_error) == pytest.approx((variance, error))
    assert (found.prob_worse, found.prob_tie, found.prob_better) == (0.0, 0.0, 1.0)
    assert (found.truncation_error, found.prob_open) == (0.0, 0.0)


def test_a_gap_the_other_way_round_is_that_of_the_negative_sample():
    """All statistics at once, also those that somebody adds."""
    x = np.random.default_rng(1).normal(0.3, size=50)
    apart = np.full(50, 0.1)
    there, back, zero = (
        GapStatistics.of([[GapSums.of(sign * x, abs(sign) * apart, 2.0, (0.0, 0.0), np)]], 2.0)
        for sign in (1.0, -1.0, 0.0)
    )
    assert there.prob_worse != there.prob_better
    assert np.ravel(astuple(there.flipped())) == pytest.approx(np.ravel(astuple(back)))
    tables = there.tables(2)
    for name, table in tables.items():
        expected = [getattr(each, name)[0] for each in (zero, there, back, zero)]
        assert table.ravel() == pytest.approx(expected), name


def test_rows_are_those_of_simulated_pairs():
    """Each row by itself, whichever others are asked for; and the values of both actions."""
    gaps = [(6, 1, 0), (4, 1, 3)]
    asked = {"num_runs": 5000, "truncation": 1e-7, "rng": 3}
    sample = estimate_gaps(GRID, GOAL, gaps=gaps, **asked)
    z = jl.simulate_pairs(GRID, GOAL, (1, 3), state=4, num_pairs=5000, rng=3)
    gap = z[:, 0] - z[:, 1]
    error = np.hypot(sample.mean_error[1], gap.std() / np.sqrt(5000))
    assert abs(sample.mean[1] - gap.mean()) < 4.5 * error
    assert sample.variance[1] == pytest.approx(gap.var(ddof=1), rel=0.1)
    shares = [sample.prob_worse, sample.prob_tie, sample.prob_better]
    known = [np.mean(gap < 0), np.mean(gap == 0), np.mean(gap > 0)]
    assert np.array(shares)[:, 1] == pytest.approx(known, abs=0.03)
    assert (abs(sample.value[1] - z.mean(0)) <= 4.5 * np.sqrt(2.0) * sample.value_error[1]).all()
    alone = estimate_gaps(GRID, GOAL, gaps=gaps[1:], **asked)
    assert alone.mean[0] == sample.mean[1]


def test_gaps_below_the_truncation_have_no_sign():
    """Twins that pay 1 and 1 + 1e-9 for ever: the gap is real, but not beyond what was cut off."""
    rewards = [[[0.0, 0.0]], [[1.0, 1.0]], [[1.0 + 1e-9, 1.0 + 1e-9]]]
    jm = jl.JMDP([[1.0]] * 3, rewards, [[[1, 2]], [[1, 1]], [[2, 2]]], 0.5)
    asked = {"gaps": [(0, 1, 0)], "num_runs": 50, "rng": 0}
    sample = estimate_gaps(jm, [0] * 3, **asked, truncation=1e-7)
    assert (sample.prob_tie[0], sample.prob_better[0]) == (1.0, 0.0)
    assert sample.interval("prob_tie")[0][0] < 1e-9  # the truth is in both intervals
    assert sample.interval("prob_better")[1][0] > 1.0 - 1e-9
    assert estimate_gaps(jm, [0] * 3, **asked, truncation=1e-11).prob_better[0] == 1.0


def test_a_gap_that_is_final_has_its_sign_however_small():
    """Twins that pay 1 and 1 + 1e-9 once: both branches are one after a step."""
    jm = jl.JMDP([[1.0]], [[[1.0, 1.0 + 1e-9]]], [[[0, 0]]], 0.5)
    sample = estimate_gaps(jm, [0], gaps=[(0, 1, 0)], num_runs=3, rng=0)
    assert (sample.prob_better[0], sample.prob_open[0]) == (1.0, 0.0)


def test_intervals_that_rest_on_too_few_runs_say_so():
    """A loss once in fifty: 30 runs meet it once, or not at all, and see no variation."""
    jm = jl.JMDP([[0.98, 0.02]], [[[1.0, 0.0], [0.0, 0.0]]], np.zeros((1, 2, 2), int), 0.0)
    for seed in range(10):
        few = estimate_gaps(jm, [0], [0, 1], num_runs=30, rng=seed, state=0)
        with pytest.warns(UserWarning, match="2 gaps rest on too few runs: fewer than 5 of 30"):
            few.interval("mean")
    enough = estimate_gaps(jm, [0], [0, 1], num_runs=3000, state=0, rng=0)
    low, high = enough.interval("mean")
    assert low[0, 1] < 0.98 < high[0, 1]


@pytest.mark.filterwarnings("ignore:the intervals of")
def test_levels():
    """Normal intervals of a mean, and Wilson's of a probability."""
    none = GapStatistics(*np.zeros((len(fields(GapStatistics)), 1)))
    one = replace(none, mean=np.ones(1), mean_error=np.array([0.5]), prob_worse=np.array([0.5]))
    gaps = GapEstimate(**asdict(one), num_runs=100)
    assert np.allclose(gaps.interval("mean"), [[1 - 0.5 * 1.959964], [1 + 0.5 * 1.959964]])
    low, high = gaps.interval("mean", level=0.5)
    assert np.allclose([low, high], [[1 - 0.5 * 0.6744898], [1 + 0.5 * 0.6744898]])
    assert np.allclose(gaps.interval("prob_worse"), [[0.4038315], [0.5961685]])
    for name, level, message in (
        ("mean", 1, r"level must lie in \(0, 1\), got 1"),
        ("median", 0.9, "'mean', 'prob_worse', 'prob_tie', 'prob_better', got"),
    ):
        with pytest.raises(ValueError, match=message):
            gaps.interval(name, level=level)


def test_a_law_at_nan_is_refused():
    law = jl.laws.GapLaw.from_sample((0, 0, 1), [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="x = nan is not a number"):
        law.cdf(np.nan)
    with pytest.raises(ValueError, match=r"x\[1\].* = nan is not a number"):
        law.cdf([0.0, np.nan])
    assert law.cdf(np.inf) == (1.0, 1.0)
