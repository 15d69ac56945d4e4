"""Moments and gap statistics: signs, bounds, shapes, refusals."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from strategies import problems

import jmdp_lib as jl
from jmdp_lib.moments import Moments


@given(problems(max_states=2, max_actions=3, max_tables=2))
@settings(max_examples=20)
def test_gap_moments(problem):
    """By all products of returns."""
    jm, policy, _ = problem
    m = jl.jipe(jm, policy, order=3, tol=1e-11).moments
    last = jm.num_actions - 1
    gap, other = (0, 0, last), (jm.num_states - 1, last, 0)
    for gaps in ([gap], [gap, gap], [gap, other], [gap, other, other]):
        expected = sum(
            (-1) ** sum(picks)
            * m.moment([(s, pair[k]) for (s, *pair), k in zip(gaps, picks, strict=True)])
            for picks in product((0, 1), repeat=len(gaps))
        )
        assert m.gap_moment(gaps) == pytest.approx(expected, abs=1e-6)


GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)


def test_frames():
    m = jl.jipe2(GRID, GOAL).moments
    frame = m.to_frame()
    pairs = ["covariance", "correlation", "gap_mean", "gap_variance", "inferiority_bound"]
    assert [*frame.columns] == ["state", "action", "other", "mean", "variance", *pairs]
    for name in frame.columns[3:]:
        place = (frame.state, frame.action, frame.other)[: getattr(m, name).ndim]
        assert_array_equal(frame[name], getattr(m, name)[place])


def test_solvers_agree_on_small_variances():
    """A correlation is nan where the variance is zero, not where it is small."""
    jm, policy = jl.windy_gridworld(3, gust_prob=1e-7), jl.goal_policy(3)
    one, two = jl.jipe2(jm, policy).moments, jl.jipe(jm, policy, order=2).moments
    assert one.variance[6, 1] == pytest.approx(2.94e-7, rel=1e-2)
    assert_allclose(one.correlation[6], two.correlation[6], atol=1e-4)
    assert_array_equal(np.isnan(one.correlation), np.isnan(two.correlation))


def test_variances_below_zero_are_nan():
    """An estimate that must be wrong does not look certain."""
    learned = Moments(2, np.zeros((1, 2)), np.array([[[1.0, 2.0], [2.0, 1.0]]]), None, 0.0, 0.0)
    assert np.isnan(learned.gap_variance[0, 0, 1])
    assert np.isnan(learned.inferiority_bound[0, 0, 1])
