"""Projected JIPE-2: weights, the modulus, the bound, the cones, and the iteration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from strategies import problems, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.operators.pair_chain import occupancy
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.solvers.fixed_point import iterate
from jmdp_lib.solvers.projected import ProjectionStep, modulus
from jmdp_lib.solvers.projection import Projection


def random_features(jm, dimension, seed=0):
    """Independent standard normal features, (S, A, dimension)."""
    rng = np.random.default_rng([seed, dimension])
    return rng.normal(size=(jm.num_states, jm.num_actions, dimension))


def projection_of(jm, policy, features, cone="none"):
    """Projection in the weights of the occupancy."""
    pairs = occupancy(jm, policy).reshape(policy.size, policy.size)
    return Projection(features.reshape(policy.size, -1), pairs, cone)


def ergodic_problem(seed, num_states=3, gamma=0.7):
    """Random model whose tables lead to every state: ergodic under a stochastic policy."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(num_states), size=(num_states, 2))
    jm = jl.JMDP.from_mdp(probs, rng.uniform(-1, 1, (num_states, 2, num_states)), gamma)
    return jm, random_policy(rng, jm), rng


def test_stationary_weights():
    """Decision 10: all weight is on the diagonal; chapter 8 shows what gaps lose by it."""
    jm, policy, _ = ergodic_problem(0)
    sol = jl.projected_jipe2(jm, policy, jl.tabular_features(jm), weights="stationary")
    assert_allclose(jl.pair_step(jm, policy, sol.pair_weights), sol.pair_weights, atol=1e-13)
    exact = jl.jipe2(jm, policy, tol=1e-11).moments
    assert sol.contraction == pytest.approx(jm.gamma, rel=1e-6)
    assert_allclose(sol.moments.variance, exact.variance, atol=1e-4)


@given(problems(max_states=3, max_actions=2))
@settings(max_examples=30)
def test_occupancy(problem):
    """P_2 is bounded by eta^(-1/2) in L_2(d). Chapter 8 shows the equation that d solves."""
    jm, policy, _ = problem
    kappa, beta = modulus(jm, policy, projection_of(jm, policy, jl.tabular_features(jm)))
    assert kappa <= max(jm.gamma, 1e-300) ** 0.5 + 1e-9
    assert kappa < 1.0
    assert beta > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("cone", ["augmented", "psd", "none"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=12)
def test_bound_of_the_theorem(cone, seed):
    rng = np.random.default_rng(seed)
    jm = random_jmdp(rng, num_states=4, num_actions=2, gamma=0.8)
    policy = random_policy(rng, jm)
    sol = jl.projected_jipe2(jm, policy, random_features(jm, 3, seed), cone=cone)
    assert sol.converged
    assert sol.contraction < 1
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    bound = sol.approximation_bound(exact)
    assert sol.approximation_error(exact) <= bound * (1 + 1e-6) + 1e-7


@pytest.mark.parametrize("cone", ["augmented", "psd", "none"])
def test_iteration_from_zero_reaches_the_solve(cone):
    """Convergence of the paper's iteration to the direct solution, at the rate kappa."""
    rng = np.random.default_rng(3)
    jm = random_jmdp(rng, num_states=4, num_actions=2, gamma=0.7)
    policy = random_policy(rng, jm)
    features = random_features(jm, 3, 1)
    solved = jl.projected_jipe2(jm, policy, features, cone=cone, tol=1e-7)
    step = ProjectionStep(PairOperator(jm, policy), solved.projection, solved.beta)
    tol = 1e-7 * (1.0 - solved.contraction)
    state, residuals, _ = iterate(step, step.zero(), solved.contraction, tol)
    theta, matrix = solved.projection.unwhiten(*state)
    assert_allclose(theta, solved.theta, atol=1e-5)
    assert_allclose(matrix, solved.Theta, atol=1e-4)
    assert solved.iterations < 5 < residuals.size
    if cone == "none":  # the augmented cone moves with theta
        assert (residuals[1:] <= solved.contraction * residuals[:-1] + 1e-9).all()


def test_product_weights_are_closed_form():
    jm, policy, _ = ergodic_problem(5)
    features = random_features(jm, 4)
    sol = jl.projected_jipe2(jm, policy, features, weights="product")
    assert sol.converged
    nu = occupancy(jm, policy).sum((2, 3))  # then the normal matrix is the identity
    assert_allclose(sol.pair_weights, np.multiply.outer(nu, nu), atol=1e-12)


def test_weights_without_a_contraction_claim_nothing():
    jm, policy, _ = ergodic_problem(4, gamma=0.95)
    with pytest.warns(jl.ConvergenceWarning, match="no contraction"):
        sol = jl.projected_jipe2(jm, policy, random_features(jm, 4), weights="product")
    assert sol.status == "no contraction"
    exact = jl.jipe2(jm, policy).moments
    assert sol.error_bound == sol.approximation_bound(exact) == np.inf


@pytest.mark.parametrize("cone", ["augmented", "psd"])
def test_the_projection_is_optimal(cone):
    """No direction from the projection into the cone decreases the objective."""
    rng = np.random.default_rng(1)
    jm = random_jmdp(rng, num_states=5, num_actions=2, gamma=0.8)
    pi = projection_of(jm, random_policy(rng, jm), random_features(jm, 4, 2), cone)
    target = rng.normal(size=(10, 10))
    target = target + target.T - 2.0 * np.eye(10)
    theta = rng.normal(size=4)
    result = pi.project(pi.second_side(target), theta)
    above = result - np.outer(theta, theta) * (cone == "augmented")
    slope = pi.psi.T @ (pi.pairs * (pi.psi @ result @ pi.psi.T - target)) @ pi.psi
    assert np.linalg.eigvalsh(above)[0] >= -1e-9
    assert np.linalg.eigvalsh(slope)[0] >= -1e-8
    assert np.sum(slope * above) == pytest.approx(0.0, abs=1e-8)
    assert np.abs(slope).max() > 1e-3  # the constraint binds


@pytest.mark.parametrize(
    ("pairs", "gamma"),
    [([[0.1, 0.2], [0.2, 0.5]], 0.8), ([[0.05, 0.35], [0.35, 0.25]], 0.7)],
    ids=["c_1 > gamma c_2", "c_1 < gamma c_2"],
)
def test_the_modulus_is_attained(pairs, gamma):
    """Guards c_1, c_2, c_3 and 2 r_max of kappa. Both states lead to state 1 and pay r_max, and the
    moments differ at state 1 alone: T_2 changes their distance by the factor kappa."""
    jm = jl.JMDP(np.ones((2, 1)), np.full((2, 1, 1), 3.0), np.ones((2, 1, 1), int), gamma)
    policy, d = np.ones((2, 1)), np.array(pairs)
    kappa, beta = modulus(jm, policy, Projection(np.eye(2), d, "none"))
    nu = d.sum(1)
    mean, second = np.zeros((2, 1)), np.zeros((2, 1, 2, 1))
    zero = jl.apply_t2(jm, policy, mean, second)
    mean[1] = 1.0 / np.sqrt(nu[1])
    second[1, :, 1] = 1.0 / (beta * np.sqrt(d[1, 1]))  # both of norm one
    moved = jl.apply_t2(jm, policy, mean, second)
    first = np.sqrt(nu @ (moved[0] - zero[0]).ravel() ** 2)
    other = beta * np.sqrt(np.sum(d * (moved[1] - zero[1]).reshape(2, 2) ** 2))
    assert kappa < 1.0
    assert other == pytest.approx(kappa)
    assert first == pytest.approx(gamma / np.sqrt(nu[1]))
    assert first <= kappa * (1.0 + 1e-12)
    if first >= gamma**2 / np.sqrt(d[1, 1]):  # then beta can make both equal
        assert first == pytest.approx(kappa)
