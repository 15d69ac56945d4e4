"""Moments and gap statistics: signs, bounds, shapes, refusals."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from strategies import problems

import jmdp_lib as jl
from jmdp_lib.moments import Moments


@given(problems())
@settings(max_examples=40)
def test_shapes_and_identities(problem):
    jm, policy, _ = problem
    m = jl.jipe2(jm, policy, tol=1e-11).moments
    full = m.full_second()
    second = np.einsum("sasb->sab", full)
    assert_allclose(m.covariance, second - m.mean[:, :, None] * m.mean[:, None, :], atol=1e-8)
    # eq. (35) with a plus sign
    square = np.einsum("sasa->sa", full)
    gap = square[:, :, None] + square[:, None, :] - 2 * second - m.gap_mean**2
    assert_allclose(m.gap_variance, gap, atol=1e-7)
    assert_allclose(np.einsum("saa->sa", m.gap_variance), 0.0, atol=1e-12)
    assert np.all((m.inferiority_bound >= 0) & (m.inferiority_bound <= 1))


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
    assert m.gap_moment([gap]) == pytest.approx(m.gap_mean[gap], abs=1e-9)
    central = [m.gap_central_moment(gap, k) for k in (0, 1, 2)]
    assert central == pytest.approx([1.0, 0.0, m.gap_variance[gap]], abs=1e-6)


GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)
SOLVERS = {
    "sweeps": lambda: jl.jipe2(GRID, GOAL, route="sweeps"),
    "reachable": lambda: jl.jipe2(GRID, GOAL, route="reachable"),
    "dense": lambda: jl.jipe2(GRID, GOAL, route="dense"),
    "order 1": lambda: jl.jipe(GRID, GOAL, order=1),
    "order 3": lambda: jl.jipe(GRID, GOAL, order=3),
    "incremental, full": lambda: jl.incremental_jipe2(GRID, GOAL, 500, rng=0),
    "incremental, centred": lambda: jl.incremental_jipe2(GRID, GOAL, 500, form="centred", rng=0),
    "projected": lambda: jl.projected_jipe2(LINE, [0, 1], jl.tabular_features(LINE)),
}
LINE = jl.coupled_reward_chain(2, 0.5)


def arrays_of(result):
    """Every array that a solution and its moments hand out, by its name."""
    m = result.moments
    names = ["mean", "gap_mean"] if m.order < 2 else dir(m)
    found = {name: getattr(m, name) for name in names if not name.startswith("_")}
    found |= {name: getattr(result, name) for name in dir(result) if not name.startswith("_")}
    found |= {f"same_state {k}": m.same_state(k) for k in range(1, m.order + 1)}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("solver", SOLVERS)
def test_copies_are_equal_bit_by_bit_and_read_only(solver):
    sol = SOLVERS[solver]()
    known = arrays_of(sol)
    assert {"mean", "gap_mean", "residuals"} <= {*known}
    assert sol.moments.order < 2 or {"covariance", "variance", "gap_variance"} <= {*known}
    assert len({sol, sol}) == 1  # results can be kept in sets and as keys
    for again in (sol, copy.deepcopy(sol), pickle.loads(pickle.dumps(sol))):
        assert repr(again) == repr(sol)
        for name, array in arrays_of(again).items():
            assert_array_equal(array, known[name], name)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        if solver == "incremental, centred":
            with pytest.raises(ValueError, match="moments between states"):
                again.moments.full_second()
        elif sol.moments.order > 1:
            assert_array_equal(again.moments.full_second(), sol.moments.full_second())
    if solver == "order 3":
        other = [(0, 0), (1, 1), (2, 2)]
        assert again.moments.moment(other) == sol.moments.moment(other)
    if solver == "projected":
        exact = jl.jipe2(LINE, [0, 1]).moments
        assert again.approximation_bound(exact) == sol.approximation_bound(exact)


def test_frames():
    m = SOLVERS["sweeps"]().moments
    frame = m.to_frame()
    pairs = ["covariance", "correlation", "gap_mean", "gap_variance", "inferiority_bound"]
    assert [*frame.columns] == ["state", "action", "other", "mean", "variance", *pairs]
    assert len(frame) == 9 * 4 * 3
    assert (frame.action != frame.other).all()
    for name in frame.columns[3:]:
        place = (frame.state, frame.action, frame.other)[: getattr(m, name).ndim]
        assert_array_equal(frame[name], getattr(m, name)[place])


def test_small_but_real_variances_are_resolved_alike():
    """A correlation is nan where the variance is zero, not where it is merely small."""
    jm, policy = jl.windy_gridworld(3, gust_prob=1e-7), jl.goal_policy(3)
    one, two = jl.jipe2(jm, policy).moments, jl.jipe(jm, policy, order=2).moments
    assert one.variance[6, 1] == pytest.approx(2.94e-7, rel=1e-2)
    assert_allclose(one.correlation[6], two.correlation[6], atol=1e-4)
    assert_array_equal(np.isnan(one.correlation), np.isnan(two.correlation))


def test_variances_below_zero_are_nan():
    """An estimate that cannot be right is not passed off as certainty."""
    learned = Moments(2, np.zeros((1, 2)), np.array([[[1.0, 2.0], [2.0, 1.0]]]), None, 0.0, 0.0)
    assert np.isnan(learned.gap_variance[0, 0, 1])
    assert np.isnan(learned.inferiority_bound[0, 0, 1])
