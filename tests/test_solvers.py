"""Solvers: fixed points against independent solutions, certificates, starts, edge cases."""

import os
from functools import partial
from itertools import product

import brute
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from strategies import COUPLINGS, ROUTES, coupled, problems, raised, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2
from jmdp_lib.solvers.fixed_point import false_variance

A_COUPLING = st.sampled_from(COUPLINGS)
A_CONSTANT = st.sampled_from([0.0, 0.0, 10.0])
SEEDS = range(6 if os.environ.get("RANDOM_TESTS") else 2)
SOLVERS = [*(partial(jl.jipe2, **how) for how in ROUTES), jl.jipe]


def exact_moments(jm, policy, order, coupling="joint"):
    """Moments by brute force; for independent actions the product of their tables is built."""
    drawn = brute.product_jmdp(jm) if coupling == "independent" else jm
    return brute.moments(drawn, policy, order, common=coupling == "common")


def full_brute(jm, policy, coupling="joint"):
    """Mean (S, A) and second moments (S, A, S, A) by brute force."""
    truth = exact_moments(jm, policy, 2, coupling)
    shape = (jm.num_states, jm.num_actions)
    every = product(np.ndindex(shape), repeat=2)
    second = [truth[tuple(sorted(pair))] for pair in every]
    mean = [truth[(x,)] for x in np.ndindex(shape)]
    return np.reshape(mean, shape), np.reshape(second, shape * 2)


@given(problems(max_states=3), A_COUPLING, A_CONSTANT)
@settings(max_examples=40)
def test_jipe2_is_the_linear_solution_on_every_route(problem, coupling, constant):
    """Holds for all policies, one state, one action, and a constant in all rewards."""
    jm, policy, _ = coupled(problem, coupling)
    jm = raised(jm, constant)
    mean, second = full_brute(jm, policy, coupling)
    scale = max(1.0, np.abs(second).max())
    for how in ROUTES:
        sol = jl.jipe2(jm, policy, tol=1e-11, coupling=coupling, **how)
        assert sol.converged
        assert_allclose(sol.moments.mean, mean, atol=1e-9 * scale)
        assert_allclose(sol.moments.full_second(), second, atol=1e-9 * scale)


@given(
    problems(max_states=2, max_actions=2, max_tables=2),
    st.sampled_from([1, 2, 3, 4]),
    A_COUPLING,
    A_CONSTANT,
)
@settings(max_examples=60)
def test_jipe_is_brute_force(problem, order, coupling, constant):
    jm, policy, _ = coupled(problem, coupling)
    jm = raised(jm, constant)
    sol = jl.jipe(jm, policy, order=order, tol=1e-11, coupling=coupling)
    truth = exact_moments(jm, policy, order, coupling)
    scale = max(1.0, *map(abs, truth.values()))
    assert sol.converged
    for coordinate, value in truth.items():
        if coordinate:
            assert sol.moments.moment(coordinate) == pytest.approx(value, abs=1e-8 * scale)


def test_moments_of_several_states_are_solved_when_they_are_read():
    jm, policy = jl.windy_gridworld(5, gamma=0.8), jl.goal_policy(5)
    result = jl.jipe(jm, policy, order=3, tol=1e-11)
    assert result.num_unknowns == len(result.moments.source.solved)
    result.moments.full_second()
    assert result.num_unknowns < len(result.moments.source.solved)


def test_order_n_needs_one_sweep_if_the_policy_never_returns():
    """Multisets that lead back to themselves alone are solved for; certificates notice neither."""
    jm = jl.windy_gridworld(4)
    for coupling in COUPLINGS:
        result = jl.jipe(jm, jl.goal_policy(4), order=3, coupling=coupling)
        assert result.iterations == 2
        exact = jl.jipe2(jm, jl.goal_policy(4), coupling=coupling).moments
        assert_allclose(result.moments.covariance, exact.covariance, atol=1e-7)


@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@given(problems(), st.integers(1, 30), st.sampled_from([0.0, 100.0]))
@settings(max_examples=40)
def test_trace_is_the_literal_iteration(problem, iterations, constant):
    """Residuals are ||M_k - T M_k||_lambda, for M_{k+1} = T M_k from zero and any constant."""
    jm, policy, _ = problem
    jm = raised(jm, constant)
    trace = jl.trace_jipe2(jm, policy, iterations)
    weight = 2.0 * jm.reward_bound / (1.0 - jm.gamma)
    mean = np.zeros((jm.num_states, jm.num_actions))
    second = np.zeros(mean.shape * 2)
    for residual, *traced in zip(
        trace.residuals, trace.mean, trace.second, trace.covariance, strict=True
    ):
        after = jl.apply_t2(jm, policy, mean, second)
        centred = [s - np.multiply.outer(m, m) for m, s in ((mean, second), after)]
        changes = after[0] - mean, after[1] - second, centred[1] - centred[0]
        largest = [np.abs(change).max() for change in changes]
        rounding = 1e-13 * weight
        assert residual == pytest.approx(max(largest[0], largest[1] / weight), abs=rounding)
        assert traced == pytest.approx(largest, rel=1e-9, abs=weight * rounding)
        mean, second = after


@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@given(problems(), st.integers(1, 30), st.sampled_from([0.0, 100.0]))
@settings(max_examples=40)
def test_sweeps_are_certified_where_they_stop(problem, iterations, constant):
    """Theorem 5.3 holds after any number of sweeps, and its rate from any start."""
    jm, policy, rng = problem
    jm = raised(jm, constant)
    sweep = partial(jl.jipe2, jm, policy, tol=1e-300, route="sweeps", max_iterations=iterations)
    sol = sweep()
    centred = jl.trace_jipe2(jm.without_offset, policy, sol.iterations)
    assert_allclose(sol.residuals, centred.residuals)
    weight = 2.0 * jm.reward_bound / (1.0 - jm.gamma)
    mean, second = full_brute(jm, policy)
    allowed = sol.error_bound * np.array([1.0, weight]) * (1.0 + 1e-9)
    assert np.abs(sol.moments.mean - mean).max() <= allowed[0]
    assert np.abs(sol.moments.full_second() - second).max() <= allowed[1]
    start = rng.normal(size=mean.shape), 10.0 * rng.normal(size=second.shape)
    rates = sweep(initial=start).residuals
    assert (rates[1:] <= jm.gamma * rates[:-1] + 1e-12 * weight).all()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_certificate_of_every_order(order):
    """Holds for moments between states, too, which are solved when they are read."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        jm = random_jmdp(rng, {3: 3, 4: 2}.get(order, 4), 2, 2, gamma=0.9)
        policy = random_policy(rng, jm)
        truth = brute.moments(jm, policy, order)
        for tol in (1.0, 1e-4):  # few iterations and many
            sol = jl.jipe(jm, policy, order=order, tol=tol)
            allowed = sol.error_bound + 1e-13 * jm.reward_bound  # of the reference
            for x, v in truth.items():
                if x:
                    weight = jl.norm_weight(len(x), jm.gamma, jm.reward_bound)
                    assert abs(sol.moments.moment(x) - v) <= weight * allowed


def test_not_converging_is_never_silent():
    jm, policy = jl.windy_gridworld(3), jl.goal_policy(3)
    sweeps = partial(jl.jipe2, route="sweeps")
    with pytest.warns(jl.ConvergenceWarning, match="after 5 iterations"):
        sol = sweeps(jm, policy, max_iterations=5)
    assert sol.iterations == len(sol.residuals) == 5
    assert "NOT converged (max_iterations)" in repr(sol)
    for solver in (jl.jipe2, jl.jipe, sweeps):  # an accuracy that rounding does not allow
        with pytest.warns(jl.ConvergenceWarning, match="below double precision"):
            sol = solver(jm, policy, tol=1e-100)
        assert sol.status == "rounding"
        assert sol.iterations < 2_000  # to contract by 1e-100 sweeps would need 4,500


def test_a_moment_does_not_depend_on_the_highest_order():
    """Moments of order 4 are the same if the highest order is 11."""
    jm = random_jmdp(np.random.default_rng(0), 2, 1, gamma=0.6)
    low, high = (jl.jipe(jm, [0, 0], order=order).moments for order in (4, 11))
    for x in ([(0, 0), (1, 0)], [(0, 0), (1, 0), (1, 0), (0, 0)], [(1, 0)] * 4):
        assert high.moment(x) == pytest.approx(low.moment(x))


def test_sweeps_may_start_from_a_solution():
    """Chapter 2 starts from arrays, and counts the sweeps that it saves."""
    solve = partial(jl.jipe2, jl.windy_gridworld(4), jl.goal_policy(4), route="sweeps")
    assert solve(initial=solve()).iterations == 1


def constant_returns(gamma, scale=1.0):
    """R = V(s) - gamma V(s'), s' = 0 or 1 with equal chances, V = (1, -1): every return is V(s)."""
    value = scale * np.array([1.0, -1.0])
    rewards = value[:, None, None] - gamma * value[None, :, None] + np.zeros(2)
    after = np.broadcast_to(np.arange(2)[None, :, None], rewards.shape)
    return jl.JMDP(np.full((2, 2), 0.5), rewards, after, gamma)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_returns_that_are_constant_have_no_correlation(solve, scale):
    """After k sweeps the variance of V(s) - gamma^k V(S_k) remains. The mean is exact by then, so
    the error bound of means does not show it."""
    jm = constant_returns(0.9, scale)
    result = solve(jm, jl.uniform_policy(jm)).moments
    assert np.isnan(result.correlation).all()
    assert np.sqrt(result.variance).max() <= result.resolution <= 1e-3 * scale


@pytest.mark.parametrize("solve", SOLVERS)
def test_equal_actions_are_within_the_resolution(solve):
    """Their gap is zero, and its variance, a difference of rounded numbers, is never nan."""
    for seed, gamma, tol in product(range(3), [0.0, 0.25, 0.9, 0.99], [1e-8, 1e-2]):
        rng = np.random.default_rng(seed)
        shape = rng.integers((1, 2), (5, 6))  # states and tables
        probs = rng.dirichlet(np.ones(shape[1]), size=shape[0])
        rewards = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4)
        after = rng.integers(shape[0], size=shape)
        jm = jl.JMDP(probs, *(np.stack([x, x], axis=2) for x in (rewards, after)), gamma)
        result = solve(jm, random_policy(rng, jm), tol=tol).moments
        assert np.sqrt(result.gap_variance).max() <= result.resolution


def test_the_smallest_deviation_distinguishable_from_zero():
    """Guards gamma e / sqrt(1 - gamma^2): means wrong by e and -e give it to a constant."""
    jm = constant_returns(0.9)
    system = CollapsedT2(jm, jl.uniform_policy(jm))
    e, value = 1e-3, np.array([1.0, -1.0])
    alone = system.backup(value * (1.0 + e), np.zeros(2)).value_variance
    variance = alone.max() / (1.0 - 0.9**2)
    assert variance == pytest.approx(false_variance(0.9, e), rel=1e-2)
    assert variance <= false_variance(0.9, e)
