"""Sample statistics, and simulated gaps."""

from functools import partial

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.simulators import VectorSimulator, estimate_gaps, vector


def pays_once(states, actions, draws):
    """Action 1 earns a draw in state 0; all that follows is open."""
    return np.where(states == 0, actions * draws, 0.0), np.where(states == 0, 1 + actions, states)


def estimate(draw, gamma, actions=(1, 0), **options):
    """Estimates of one gap, which is a draw and may change by what one step leaves open."""
    sim = VectorSimulator(pays_once, draw, 2, gamma)
    return estimate_gaps(sim, [0, 0, 0], actions, state=0, horizon=1, rng=0, **options)


def test_statistics_of_parts_are_those_of_the_whole(monkeypatch):
    """The error of the variance is the jackknife's, from samples that leave one value out."""
    run = partial(estimate, lambda n, rng: 1e3 + rng.exponential(size=n), 0.0, num_runs=40)
    monkeypatch.setattr(vector.VectorWorld, "chunk", 15)
    x = np.subtract(*run(keep_returns=True).returns.T)
    left_out = np.array([np.var(np.delete(x, i), ddof=1) for i in range(40)])
    error = np.sqrt(39 / 40 * np.sum((left_out - left_out.mean()) ** 2))
    variance = np.var(x, ddof=1)
    expected = {"mean": x.mean(), "mean_error": np.sqrt(variance / 40), "variance": variance}
    expected |= {"variance_error": error, "prob_worse": 0.0, "prob_tie": 0.0, "prob_better": 1.0}
    parts = run()
    for name, value in (expected | {"truncation_error": 0.0}).items():
        assert getattr(parts, name)[0, 1] == pytest.approx(value), name


def test_a_reversed_gap_is_that_of_the_negative_sample():
    """All statistics at once, also those that somebody adds; nan on the diagonal is allowed."""
    run = partial(estimate, lambda n, rng: rng.normal(0.3, size=n), 0.1, num_runs=50)
    there, back = run(), run(actions=(0, 1))
    assert there.prob_worse[0, 1] != there.prob_better[0, 1]
    assert there.truncation_error[0, 1] > 0.2
    for name, value in vars(there).items():
        if isinstance(value, np.ndarray) and value.ndim == 2:
            assert value == pytest.approx(getattr(back, name).T, nan_ok=True), name
            assert not np.isnan(value[0, 1]), name


def test_only_signs_that_are_certain_count():
    """A gap that may change by 0.14 has a sign beyond that; a final one always, or is a tie."""
    x = np.array([-1.0, -0.1, 1e-14, 1e-9, 0.3])
    for gamma, expected in ((0.1, (0.2, 0.0, 0.2)), (0.0, (0.4, 0.2, 0.4))):
        estimates = estimate(lambda n, rng: np.resize(x, n), gamma, num_runs=5)
        names = ("prob_worse", "prob_tie", "prob_better")
        assert tuple(getattr(estimates, name)[0, 1] for name in names) == pytest.approx(expected)
        low, high = estimates.interval("prob_tie", level=1e-9)
        assert (low[0, 1], high[0, 1]) == pytest.approx(
            (expected[1], 1 - expected[0] - expected[2])
        )


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


def test_levels():
    """Normal intervals of a mean, and Wilson's of a probability."""
    gaps = estimate(lambda n, rng: np.resize([-1.0, 1.0], n), 0.0, num_runs=100)
    for level, reach in ((0.95, 1.959964), (0.5, 0.6744898)):
        low, high = gaps.interval("mean", level=level)
        assert [-low[0, 1], high[0, 1]] == pytest.approx([reach * gaps.mean_error[0, 1]] * 2)
    ends = [x[0, 1] for x in gaps.interval("prob_worse")]
    assert ends == pytest.approx([0.4038315, 0.5961685])
    for name, level, message in (
        ("mean", 1, r"level must lie in \(0, 1\), got 1"),
        ("median", 0.9, "'mean', 'prob_worse', 'prob_tie', 'prob_better', got"),
    ):
        with pytest.raises(ValueError, match=message):
            gaps.interval(name, level=level)
