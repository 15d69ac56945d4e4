"""Routes of jipe2: each agrees with the literal operator, and reports what it did."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from strategies import ROUTES, problems, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.fast import systems
from jmdp_lib.fast.affine import solve

EVERY = ROUTES[1:]


@given(problems(max_states=6), st.integers(1, 4))
@settings(max_examples=30)
def test_requested_gaps_are_solved_and_nothing_else(problem, count):
    jm, policy, rng = problem
    exact = jl.jipe2(jm, policy, tol=1e-11).moments
    states = rng.integers(jm.num_states, size=count)
    some = jl.jipe2(jm, policy, tol=1e-11, states=states).moments
    assert_allclose(some.covariance[states], exact.covariance[states], atol=1e-8)
    others = np.setdiff1d(np.arange(jm.num_states), states)
    same = np.eye(jm.num_actions, dtype=bool)
    assert np.isnan(some.covariance[others][:, ~same]).all()
    assert_allclose(some.variance, exact.variance, atol=1e-8)  # all of them, at once
    far = (0, 0), (jm.num_states - 1, 0)  # solved when it is read
    assert some.second(*far) == pytest.approx(exact.full_second()[0, 0, -1, 0], abs=1e-8)
    if jm.num_actions > 1:
        one = jl.jipe2(jm, policy, tol=1e-11, gaps=[(states[0], 1, 0)]).moments
        gap = [states[0]] * 2, [0, 1], [1, 0]
        assert_allclose(one.gap_variance[gap], exact.gap_variance[gap], atol=1e-8)


@pytest.mark.parametrize("cycles", [True, False])
def test_many_pairs_are_reached(cycles):
    """Guards a search in more than one pass, over many words of the bitmap."""
    jm = random_jmdp(np.random.default_rng(0), 300, 2, 2, 0.5)
    after = jm.next_states if cycles else np.sort(jm.next_states, axis=0)
    jm = jl.JMDP.from_tables(jm.table_states, jm.probs, jm.rewards, after, 300, 0.5)
    first, *others = (
        jl.jipe2(jm, jl.uniform_policy(jm), states=[0, 7], tol=1e-10, **how).moments.gap_variance
        for how in EVERY
    )
    for result in others:
        assert_allclose(result, first, atol=1e-9)


@pytest.mark.parametrize("how", EVERY, ids=str)
def test_the_error_bound_holds_after_acceleration(how):
    """Holds at every tol, also if a high discount makes residuals small long before errors."""
    rng = np.random.default_rng(3)
    for gamma in (0.9, 0.99, 0.999):
        jm = random_jmdp(rng, 30, 3, 3, gamma)
        policy = random_policy(rng, jm)
        exact = jl.jipe2(jm, policy, tol=1e-9, route="dense").moments
        weight = jl.norm_weight(2, gamma, jm.reward_bound)
        for tol in (1.0, 1e-3, 1e-6):
            sol = jl.jipe2(jm, policy, tol=tol, **how)
            assert sol.converged
            assert sol.error_bound <= tol
            assert sol.residuals[-1] <= sol.error_bound * (1.0 - gamma)
            assert np.abs(sol.moments.mean - exact.mean).max() <= sol.error_bound + 1e-9
            off = np.abs(sol.moments.same_state(2) - exact.same_state(2)).max()
            assert off / weight <= sol.error_bound + 1e-9


@pytest.mark.parametrize("route", ["dense", "reachable"])
def test_a_high_discount_costs_little_more(route):
    """Plain iteration needs ten times as many applications of T_2 for 0.999 as for 0.99."""
    scattered = [random_jmdp(np.random.default_rng(0), 40, 3, 3, gamma) for gamma in (0.99, 0.999)]
    grids = [jl.windy_gridworld(7, gamma=gamma) for gamma in (0.99, 0.999)]
    for models in (scattered, grids):
        low, high = (jl.jipe2(jm, jl.uniform_policy(jm), route=route).iterations for jm in models)
        assert high < 4 * low


def test_pairs_that_are_solved_without_a_matrix(monkeypatch):
    jm, policy = jl.windy_gridworld(5), jl.goal_policy(5)
    exact = jl.jipe2(jm, policy, tol=1e-10, route="dense").moments.covariance
    monkeypatch.setattr(systems, "_MATRIX", 0)
    solved = jl.jipe2(jm, policy, tol=1e-10, route="reachable")
    assert solved.iterations <= 3
    assert_allclose(solved.moments.covariance, exact, atol=1e-9)


class Shift:
    """Map x_i = 1 + rate x_{i+1}: the worst case of Krylov methods, which move one entry a step."""

    def __init__(self, rate, size):
        self.rate, self.size = rate, size

    def zeros(self):
        return np.zeros(self.size)

    def apply(self, x, out, with_source=True):
        out[:-1] = self.rate * x[1:]
        out[-1] = 0.0
        out += with_source

    def residual(self, x):
        out = self.zeros()
        self.apply(x, out)
        return np.abs(out - x).max()


def test_the_safeguard_takes_over():
    """Guards plain iteration, at its own cost, if no acceleration is possible."""
    operator = Shift(0.9, 5000)
    x, residuals, applied = solve(operator, 1e-10, 0.9, share=1.0)
    exact = (1.0 - 0.9 ** (5000 - np.arange(5000))) / 0.1
    assert_allclose(x, exact, rtol=1e-8)
    assert residuals[-1] <= 1e-10
    assert applied < 3 * np.log(1e-10) / np.log(0.9) + 300


def test_the_choice_of_a_route():
    """Chapter 7 counts the pairs of each."""
    grid = jl.windy_gridworld(30)
    assert jl.jipe2(grid, jl.goal_policy(30)).route == "reachable"
    assert jl.jipe2(grid, jl.uniform_policy(grid)).route == "dense"


def test_what_cannot_fit_is_refused_beforehand(leave):
    jm = jl.windy_gridworld(40)
    goal, uniform = jl.goal_policy(40), jl.uniform_policy(jm)
    leave(6 * 10**6)
    with pytest.raises(MemoryError, match=r"all 1,280,800 pairs of 1,600 states.*GiB"):
        jl.jipe2(jm, goal, route="dense")
    with pytest.raises(MemoryError, match=r"1,600 states reaches more pairs than fit into.*GiB"):
        jl.jipe2(jm, uniform)
    assert jl.jipe2(jm, goal, states=[3]).converged  # few gaps still fit


SHOP = jl.simulators.VectorSimulator(lambda *_: None, lambda *_: None, 2, 0.9)
COINS = SimpleNamespace(num_states=1, num_actions=1, query=None)


@pytest.mark.parametrize("thing", [SHOP, COINS, None], ids=type)
def test_other_models_are_referred_to_what_takes_them(thing):
    """Only a simulator that can be counted is referred to `from_simulator`."""
    others = jl.laws.gap_law, jl.laws.coupling_range, jl.laws.cautious_improvement
    projected = partial(jl.projected_jipe2, features=[[[1.0]]])
    against = partial(jl.laws.policy_gaps, other=[[1.0]])
    for call in (jl.jipe2, jl.jipe, projected, against, *others):
        with pytest.raises(TypeError, match=r"estimate_gaps` .* `JMDP.from_step`") as caught:
            call(thing, [[1.0]])
        assert ("from_simulator" in str(caught.value)) == (thing is COINS)
    if thing is SHOP:
        with pytest.raises(ValueError, match=r"has no query.*simulators.estimate_gaps` simulates"):
            jl.JMDP.from_simulator(thing, 10, rng=0)


def test_overflow_is_an_error_and_not_an_endless_loop():
    jm = random_jmdp(np.random.default_rng(0), 6, 2, 3, 0.9, 1e80)
    for route in ("dense", "reachable"):  # inner products overflow
        sol = jl.jipe2(jm, jl.uniform_policy(jm), tol=1e72, route=route)
        assert np.isfinite(sol.moments.covariance).all()
    with pytest.raises(FloatingPointError, match="overflows"):
        solve(Shift(np.nan, 5), 1e-8, 0.9)


def test_a_warning_names_the_line_of_the_call():
    jm = jl.windy_gridworld(5)
    for arguments in ({"route": "dense"}, {"route": "sweeps"}):
        with pytest.warns(jl.ConvergenceWarning) as caught:
            jl.jipe2(jm, jl.goal_policy(5), tol=1e-17, **arguments)
        assert caught[0].filename == __file__
