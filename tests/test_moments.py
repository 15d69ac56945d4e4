"""Moments and gap statistics: signs, bounds, shapes, refusals."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

import jmdp_lib as jl
from jmdp_lib.moments import Moments


@given(problems())
@settings(max_examples=40)
def test_shapes_and_identities(problem):
    jm, policy, _ = problem
    m = jl.jipe2(jm, policy, tol=1e-11).moments
    s, a = jm.num_states, jm.num_actions
    for name in ("covariance", "correlation", "gap_mean", "gap_variance", "inferiority_bound"):
        assert getattr(m, name).shape == (s, a, a)
    full = m.full_second()
    np.testing.assert_allclose(full, full.transpose(2, 3, 0, 1), atol=1e-9)
    second = np.einsum("sasb->sab", full)
    np.testing.assert_allclose(
        m.covariance, second - m.mean[:, :, None] * m.mean[:, None, :], atol=1e-8
    )
    # eq. (35) with a plus sign
    square = np.einsum("sasa->sa", full)
    gap = square[:, :, None] + square[:, None, :] - 2 * second - m.gap_mean**2
    np.testing.assert_allclose(m.gap_variance, gap, atol=1e-7)
    np.testing.assert_allclose(np.einsum("saa->sa", m.gap_variance), 0.0, atol=1e-12)
    assert np.all((m.inferiority_bound >= 0) & (m.inferiority_bound <= 1))
    defined = ~np.isnan(m.correlation)
    assert np.all(np.abs(m.correlation[defined]) <= 1.0)
    eigenvalues = np.linalg.eigvalsh(full.reshape(s * a, s * a))
    assert eigenvalues.min() > -1e-7 * max(1.0, eigenvalues.max())


@given(problems(max_states=2, max_actions=3, max_tables=2))
@settings(max_examples=20)
def test_gap_moments(problem):
    jm, policy, _ = problem
    m = jl.jipe(jm, policy, order=3, tol=1e-11).moments
    last = jm.num_actions - 1
    gap = (0, 0, last)
    assert m.gap_moment([gap]) == pytest.approx(m.gap_mean[0, 0, last], abs=1e-9)
    square = m.gap_variance[0, 0, last] + m.gap_mean[0, 0, last] ** 2
    assert m.gap_moment([gap] * 2) == pytest.approx(square, abs=1e-6)
    other = (jm.num_states - 1, last, 0)
    expected = sum(
        sign * m.second(x, y)
        for sign, x, y in [
            (1, (0, 0), (other[0], last)),
            (-1, (0, 0), (other[0], 0)),
            (-1, (0, last), (other[0], last)),
            (1, (0, last), (other[0], 0)),
        ]
    )
    assert m.gap_moment([gap, other]) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_one_sided_bound_is_never_broken(seed):
    """Cantelli on random finite laws, and equality on the two-point law that attains it."""
    rng = np.random.default_rng(seed)
    values, probs = rng.normal(0.5, 1.0, 6), rng.dirichlet(np.ones(6))
    mean = probs @ values
    variance = probs @ (values - mean) ** 2
    bound = jl.cantelli_bound(mean, variance)
    assert probs[values <= 0].sum() <= bound + 1e-12
    if mean <= 0:
        assert bound == 1.0


def test_one_sided_bound_is_sharp():
    mean, variance = 2.0, 3.0
    low, high = 0.0, mean + variance / mean  # P(low) = var / (var + mean^2)
    p = variance / (variance + mean**2)
    assert p * low + (1 - p) * high == pytest.approx(mean)
    assert p * (low - mean) ** 2 + (1 - p) * (high - mean) ** 2 == pytest.approx(variance)
    assert jl.cantelli_bound(mean, variance) == pytest.approx(p)


def test_order_1_holds_no_second_moments():
    jm = jl.windy_gridworld(3)
    m = jl.jipe(jm, jl.goal_policy(3), order=1).moments
    np.testing.assert_allclose(m.mean, jl.jipe2(jm, jl.goal_policy(3)).moments.mean, atol=1e-7)
    for ask in (lambda: m.covariance, lambda: m.gap_variance, m.full_second):
        with pytest.raises(ValueError, match="order 2"):
            ask()
    with pytest.raises(ValueError, match="orders 1 to 1"):
        m.second((0, 0), (0, 1))


@pytest.mark.parametrize(
    ("ask", "asked", "error", "message"),
    [
        (Moments.moment, [(0, 0), (9, 0)], IndexError, "state 9 is out of range"),
        (Moments.moment, [(0, 4)], IndexError, "action 4 is out of range"),
        (Moments.moment, [0, 1], ValueError, "pair"),
        (Moments.moment, [(0, 0)] * 3, ValueError, "needs moments of order 3"),
        (Moments.gap_moment, [(0, 0, 1)] * 3, ValueError, "needs moments of order 3"),
        (Moments.gap_moment, [(0, 1)], ValueError, "a gap must be"),
        (Moments.gap_moment, [(0, 0, 4)], IndexError, "action 4 is out of range"),
    ],
)
def test_bad_coordinates_are_named(ask, asked, error, message):
    with pytest.raises(error, match=message):
        ask(jl.jipe2(jl.windy_gridworld(3), jl.goal_policy(3)).moments, asked)


def test_what_cannot_fit_is_refused_with_its_size(leave):
    jm = jl.windy_gridworld(3)
    m = jl.jipe2(jm, jl.goal_policy(3), route="dense").moments
    leave(1000)
    with pytest.raises(MemoryError, match=r"\(9, 4, 9, 4\).*GiB"):
        m.full_second()
    with pytest.raises(MemoryError, match="JIPE-2 by sweeps on 9 states needs"):
        jl.jipe2(jm, jl.goal_policy(3), route="sweeps")
    with pytest.raises(MemoryError, match="marginal MDP"):
        jm.marginal_mdp()
    with pytest.raises(MemoryError, match="1,332 coordinates"):
        jl.incremental_jipe2(jm, jl.goal_policy(3), 10)


GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)
SOLVERS = {
    "sweeps": lambda: jl.jipe2(GRID, GOAL, route="sweeps"),
    "reachable": lambda: jl.jipe2(GRID, GOAL, route="reachable"),
    "dense": lambda: jl.jipe2(GRID, GOAL, route="dense"),
    "order 1": lambda: jl.jipe(GRID, GOAL, order=1),
    "order 3": lambda: jl.jipe(GRID, GOAL, order=3),
    "incremental, full": lambda: jl.incremental_jipe2(GRID, GOAL, 500),
    "incremental, centred": lambda: jl.incremental_jipe2(GRID, GOAL, 500, form="centred"),
    "projected": lambda: jl.projected_jipe2(LINE, [0, 1], jl.tabular_features(LINE)),
}
LINE = jl.coupled_reward_chain(2, 0.5)
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def arrays_of(result):
    """Every array that the attributes of a solution and of its moments hand out."""
    for thing in (result, result.moments):
        names = [name for name in dir(thing) if not name.startswith("_")]
        if getattr(thing, "order", 2) < 2:
            names = ["mean", "gap_mean"]
        for name in names:
            if isinstance(value := getattr(thing, name), np.ndarray):
                yield name, value
    yield "same_state", result.moments.same_state(1)


@every_solver
def test_every_array_is_read_only(solver):
    sol = SOLVERS[solver]()
    names = set()
    for result in (sol, copy.deepcopy(sol), pickle.loads(pickle.dumps(sol))):
        for name, array in arrays_of(result):
            names.add(name)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    assert {"mean", "gap_mean", "residuals"} <= names
    if sol.moments.order > 1:
        assert {"covariance", "variance", "gap_variance", "inferiority_bound"} <= names
    assert len({sol, sol}) == 1  # results can be kept in sets and as keys


@every_solver
def test_a_pickle_keeps_all_of_a_solution_bit_by_bit(solver):
    sol = SOLVERS[solver]()
    again = pickle.loads(pickle.dumps(sol))
    assert type(again) is type(sol)
    assert repr(again) == repr(sol)
    here, there = dict(arrays_of(sol)), dict(arrays_of(again))
    assert here.keys() == there.keys()
    for name, array in here.items():
        np.testing.assert_array_equal(there[name], array, name)
    for k in range(1, sol.moments.order + 1):
        np.testing.assert_array_equal(again.moments.same_state(k), sol.moments.same_state(k))
    if solver == "incremental, centred":
        with pytest.raises(ValueError, match="moments between states"):
            again.moments.full_second()
    elif sol.moments.order > 1:
        np.testing.assert_array_equal(again.moments.full_second(), sol.moments.full_second())
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
    for name in pairs:
        expected = getattr(m, name)[frame.state, frame.action, frame.other]
        np.testing.assert_array_equal(frame[name], expected)
    np.testing.assert_array_equal(frame["mean"], m.mean[frame.state, frame.action])
    np.testing.assert_array_equal(frame["variance"], m.variance[frame.state, frame.action])
    with pytest.raises(ValueError, match="to_frame needs moments of order 2"):
        SOLVERS["order 1"]().moments.to_frame()


def test_orders_of_central_moments():
    m = jl.jipe(GRID, GOAL, order=3).moments
    assert m.gap_central_moment((6, 0, 1), 0) == 1.0
    assert m.gap_central_moment((6, 0, 1), 1) == pytest.approx(0.0, abs=1e-12)
    assert m.gap_central_moment((6, 0, 1), 2) == pytest.approx(m.gap_variance[6, 0, 1], abs=1e-6)
    with pytest.raises(ValueError, match="order must be at least 0, got -1"):
        m.gap_central_moment((6, 0, 1), -1)
    with pytest.raises(ValueError, match=r"order must be an integer, got 1\.5"):
        m.gap_central_moment((6, 0, 1), 1.5)
    with pytest.raises(ValueError, match="needs moments of order 4"):
        m.gap_central_moment((6, 0, 1), 4)


def test_small_but_real_variances_are_resolved_alike():
    """A correlation is nan where the variance is zero, not where it is merely small."""
    jm, policy = jl.windy_gridworld(3, gust_prob=1e-7), jl.goal_policy(3)
    one, two = jl.jipe2(jm, policy).moments, jl.jipe(jm, policy, order=2).moments
    assert one.variance[6, 1] == pytest.approx(2.94e-7, rel=1e-2)
    np.testing.assert_allclose(one.correlation[6], two.correlation[6], atol=1e-4)
    np.testing.assert_array_equal(np.isnan(one.correlation), np.isnan(two.correlation))


def test_learned_variances_below_zero_are_nan():
    """An estimate that cannot be right is not passed off as certainty."""
    shop = jl.inventory_simulator(capacity=4, max_order=2)
    learned = jl.incremental_jipe2(shop, jl.uniform_policy(shop), 5000).moments
    blocks = learned.covariance
    variance = np.einsum("saa->sa", blocks)
    gap = variance[:, :, None] + variance[:, None, :] - blocks - blocks.transpose(0, 2, 1)
    below = gap < -1e-6
    assert below.any()
    assert np.isnan(learned.gap_variance[below]).all()
    assert not np.isnan(learned.gap_variance[gap >= 0]).any()
    plain = Moments(2, np.zeros((1, 2)), np.array([[[1.0, 2.0], [2.0, 1.0]]]), None, 0.0, 0.0)
    assert np.isnan(plain.gap_variance[0, 0, 1])
    assert np.isnan(plain.inferiority_bound[0, 0, 1])
