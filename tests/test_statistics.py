"""Sample statistics, and simulated gaps."""

from dataclasses import replace

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.simulators import estimate_gaps
from jmdp_lib.simulators.estimates import world_of
from jmdp_lib.simulators.gaps import GapEstimate, Sums
from jmdp_lib.simulators.plans import coupling_of, plan_of

GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)
SHARING = coupling_of(GRID, "joint")
PLAN = plan_of(world_of(GRID, 4, SHARING), [GOAL], [0, 2], (0.5, 9), SHARING, None)


def estimate(*samples, tails=0.0, rest=0.0):
    """Estimates of one gap from parts of a sample."""
    parts = [[Sums.of(x, np.full(len(x), tails), rest, 1e-9, np)] for x in samples]
    return GapEstimate.of(PLAN, parts, [], (0.0, 0.5 * rest))


def test_statistics_of_parts_are_those_of_the_whole():
    """The error of the variance is the jackknife's, from samples that leave one value out."""
    x = 1e3 + np.random.default_rng(0).exponential(size=40)
    estimates = estimate(*np.split(x, [3, 15]))
    left_out = np.array([np.var(np.delete(x, i), ddof=1) for i in range(40)])
    error = np.sqrt(39 / 40 * np.sum((left_out - left_out.mean()) ** 2))
    variance = np.var(x, ddof=1)
    expected = {"mean": x.mean(), "mean_error": np.sqrt(variance / 40), "variance": variance}
    expected |= {"variance_error": error, "prob_worse": 0.0, "prob_tie": 0.0, "prob_better": 1.0}
    for name, value in (expected | {"truncation_error": 0.0, "num_runs": 40}).items():
        assert getattr(estimates, name)[0, 1] == pytest.approx(value), name


def test_a_reversed_gap_is_that_of_the_negative_sample():
    """All statistics at once, also those that somebody adds; nan on the diagonal is allowed."""
    x = np.random.default_rng(1).normal(0.3, size=50)
    there, back = (estimate(sign * x, tails=0.1, rest=2.0) for sign in (1.0, -1.0))
    assert there.prob_worse[0, 1] != there.prob_better[0, 1]
    assert there.truncation_error[0, 1] == pytest.approx(0.2)
    for name, value in vars(there).items():
        if isinstance(value, np.ndarray) and value.ndim == 2:
            assert value == pytest.approx(getattr(back, name).T, nan_ok=True), name
            assert not np.isnan(value[0, 1]), name


def test_only_signs_that_are_certain_count():
    """A gap that may change by 0.2 has a sign beyond that; a final one always, or is a tie."""
    x = np.array([-1.0, -0.1, 0.0, 0.1, 0.3])
    for tails, expected in ((0.1, (0.2, 0.0, 0.2)), (0.0, (0.4, 0.2, 0.4))):
        estimates = estimate(x, tails=tails, rest=2.0)
        names = ("prob_worse", "prob_tie", "prob_better")
        assert tuple(getattr(estimates, name)[0, 1] for name in names) == pytest.approx(expected)
        low, high = estimates.interval("prob_tie", level=1e-9)
        assert (low[0, 1], high[0, 1]) == pytest.approx(
            (expected[1], 1 - expected[0] - expected[2])
        )


def test_gaps_below_the_truncation_have_no_sign():
    """Twins that pay 1 and 1 + 1e-9 for ever: the gap is real, but not beyond what was cut off."""
    rewards = [[[0.0, 0.0]], [[1.0, 1.0]], [[1.0 + 1e-9, 1.0 + 1e-9]]]
    jm = jl.JMDP([[1.0]] * 3, rewards, [[[1, 2]], [[1, 1]], [[2, 2]]], 0.5)
    options = {"actions": [1, 0], "state": 0, "num_runs": 50, "rng": 0}
    estimates = estimate_gaps(jm, [0] * 3, **options, truncation=1e-7)
    assert (estimates.prob_tie[0, 1], estimates.prob_better[0, 1]) == (0.0, 0.0)
    assert estimates.interval("prob_tie")[0][0, 1] < 1e-9  # the truth is in both intervals
    assert estimates.interval("prob_better")[1][0, 1] > 1.0 - 1e-9
    assert estimate_gaps(jm, [0] * 3, **options, truncation=1e-11).prob_better[0, 1] == 1.0


def test_values_without_discount_are_those_of_the_horizon():
    """What later steps earn is no part of them, and does not make them unsure."""
    jm = jl.JMDP([[1.0]] * 2, [[[1.0, 2.0]], [[3.0, 3.0]]], [[[1, 1]], [[1, 1]]], 0.5)
    options = {"state": 0, "gamma": 1.0, "horizon": 4, "num_runs": 5, "rng": 0}
    estimates = estimate_gaps(jm, [0, 0], [0, 1], **options)
    assert estimates.value.tolist() == [10.0, 11.0]
    assert not estimates.value_error.any()


def test_a_gap_that_is_final_has_its_sign_however_small():
    """Twins that pay 1 and 1 + 1e-9 once: both branches are one after a step."""
    jm = jl.JMDP([[1.0]], [[[1.0, 1.0 + 1e-9]]], [[[0, 0]]], 0.5)
    estimates = estimate_gaps(jm, [0], [1, 0], state=0, num_runs=3, rng=0)
    assert estimates.prob_better[0, 1] == 1.0


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
    one = {"mean": np.eye(2)[::-1], "mean_error": np.full((2, 2), 0.5), "num_runs": 100}
    half = {"prob_worse": np.full((2, 2), 0.5), "prob_tie": np.full((2, 2), 0.5)}
    gaps = replace(estimate(np.ones(9)), **one, **half, prob_better=np.zeros((2, 2)))
    ends = [x[0, 1] for x in gaps.interval("mean")]
    assert np.allclose(ends, [1 - 0.5 * 1.959964, 1 + 0.5 * 1.959964])
    ends = [x[0, 1] for x in gaps.interval("mean", level=0.5)]
    assert np.allclose(ends, [1 - 0.5 * 0.6744898, 1 + 0.5 * 0.6744898])
    ends = [x[0, 1] for x in gaps.interval("prob_worse")]
    assert np.allclose(ends, [0.4038315, 0.5961685])
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
