"""Operators: the fast T_2 is the literal T_2, T_n is the brute-force T_n, and both contract."""

from __future__ import annotations

from itertools import product

import brute
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems, random_policy, shared_noise_model

import jmdp_lib as jl
from jmdp_lib.fast import MultisetOperator
from jmdp_lib.fast.collapsed import AskedGaps, CollapsedT2
from jmdp_lib.model import Coupling
from jmdp_lib.operators.pairs import PairOperator


def lambda_norm(jm, mean, second):
    weight = 2.0 * np.abs(jm.rewards).max() / (1.0 - jm.gamma)
    return max(np.abs(mean).max(), np.abs(second).max() / weight)


def random_collection(rng, jm):
    """Any M: neither symmetric nor a moment sequence."""
    shape = (jm.num_states, jm.num_actions)
    return rng.normal(size=shape), 5.0 * rng.normal(size=shape + shape)


@pytest.mark.parametrize("coupling", ["joint", "independent"])
@given(problem=problems())
@settings(max_examples=60)
def test_fast_is_literal(problem, coupling):
    jm, policy, rng = problem
    mean, second = random_collection(rng, jm)
    operator = PairOperator(jm, policy, Coupling.named(coupling))
    state = operator.centre(mean, second)
    for _ in range(3):
        mean, second = jl.apply_t2(jm, policy, mean, second, coupling)
        state = operator.apply(state)
        np.testing.assert_allclose(state.mean, mean, atol=1e-10)
        np.testing.assert_allclose(state.second, second, atol=1e-10)


@pytest.mark.parametrize("coupling", ["joint", "independent", "common"])
@pytest.mark.parametrize("seed", range(3))
def test_the_step_of_a_pair_is_brute_force(seed, coupling):
    """Every pair of state-actions that are two branches, and the pair chain that follows them."""
    jm = shared_noise_model(seed, 2, 3, 2)
    policy = random_policy(np.random.default_rng(seed), jm)
    system = CollapsedT2(jm, policy, Coupling.named(coupling))
    drawn = brute.product_jmdp(jm) if coupling == "independent" else jm
    every = list(product(range(jm.num_states), range(jm.num_actions)))
    for (s, a), (t, b) in product(every, repeat=2):
        if (s, a) == (t, b):
            continue
        pair = AskedGaps(*(np.array([x]) for x in ((s, a, b) if s == t else (s, a, b, t))))
        law = system.step(pair)
        found = np.zeros((jm.num_states,) * 2)
        np.add.at(found, (law.first, law.second), law.weights)
        exact = np.zeros(policy.shape * 2)
        for prob, after in brute.one_step(drawn, policy, [(s, a), (t, b)], coupling == "common"):
            exact[*after[0][1], *after[1][1]] += prob
        np.testing.assert_allclose(found, exact.sum((1, 3)), atol=1e-12)
        if coupling == "joint":
            start = np.zeros(exact.shape)
            start[s, a, t, b] = 1.0
            np.testing.assert_allclose(jl.pair_step(jm, policy, start), exact, atol=1e-12)


def by_the_release(jm, policy, mean, second):
    """T_2 (S, A, S, A) if next actions are drawn apart, even those of equal state-actions."""
    later, image = jm.gamma * (policy * mean).sum(1), np.zeros_like(second)
    pairs = np.einsum("sa,satb,tb->st", policy, second, policy)
    for s, t in product(range(jm.num_states), repeat=2):
        for p, r, after in brute.tables_of(jm, s):
            for q, u, then in [(1.0, r, after)] if s == t else brute.tables_of(jm, t):
                earned = np.outer(r, u + later[then]) + np.outer(later[after], u)
                image[s, :, t] += p * q * (earned + jm.gamma**2 * pairs[np.ix_(after, then)])
    return image


@pytest.mark.parametrize("jm", [jl.windy_gridworld(3, gamma=0.9), jl.coupled_reward_chain(5)])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_release_differs_on_the_diagonal_alone(jm, deterministic):
    """And there where a policy draws: it leaves out how much the returns of next actions differ."""
    policy = np.full((jm.num_states, jm.num_actions), 1.0 / jm.num_actions)
    policy = np.eye(jm.num_actions)[np.arange(jm.num_states) % 2] if deterministic else policy
    moments = jl.jipe2(jm, policy, tol=1e-12).moments
    second = moments.full_second()
    off = second - by_the_release(jm, policy, moments.mean, second)
    same = np.eye(policy.size, dtype=bool).reshape(off.shape)
    assert np.abs(off[~same]).max() < 1e-9
    assert off[same].min() > -1e-9
    assert (off[same].max() < 1e-9) == deterministic


def test_the_releases_correlation_on_the_chain():
    """It is -1 for every discount factor; the return's own is positive, see chapter 3."""
    jm = jl.coupled_reward_chain(9, gamma=0.99)
    policy = jl.uniform_policy(jm)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    second = exact.full_second()
    for _ in range(jm.num_states):
        second = by_the_release(jm, policy, exact.mean, second)
    found = second[0, :, 0] - np.outer(exact.mean[0], exact.mean[0])
    np.testing.assert_allclose(found, [[0.25, -0.25], [-0.25, 0.25]], atol=1e-9)
    assert exact.correlation[0, 0, 1] > 0.3


@given(problems(max_gamma=0.95))
def test_t2_contracts_in_the_papers_norm(problem):
    """Lemma 5.2, with rho >= |R| in place of 1."""
    jm, policy, rng = problem
    one, two = random_collection(rng, jm), random_collection(rng, jm)
    before = lambda_norm(jm, one[0] - two[0], one[1] - two[1])
    one, two = jl.apply_t2(jm, policy, *one), jl.apply_t2(jm, policy, *two)
    after = lambda_norm(jm, one[0] - two[0], one[1] - two[1])
    assert after <= jm.gamma * before + 1e-12


@given(problems(max_states=3, max_actions=2, max_gamma=0.95), st.integers(1, 4))
@settings(max_examples=60)
def test_t_n_contracts_order_by_order(problem, order):
    jm, policy, rng = problem
    operator = MultisetOperator(jm, policy, order).system
    lambdas = np.array([jl.norm_weight(k, jm.gamma, jm.reward_bound) for k in range(1, order + 1)])
    one, two = (rng.uniform(-1, 1, operator.orders.size) for _ in range(2))
    one, two = one * lambdas[operator.orders - 1], two * lambdas[operator.orders - 1]
    before = (np.abs(one - two) / lambdas[operator.orders - 1]).max()
    change = np.abs(operator.apply(one) - operator.apply(two)) / lambdas[operator.orders - 1]
    for k in range(1, order + 1):
        measured = change[operator.orders == k].max() / before
        assert measured <= jl.contraction_modulus(k, jm.gamma) + 1e-12 <= jm.gamma + 2e-12


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("reward", [1.0, -3.0])
def test_modulus_is_attained(order, gamma, reward):
    """One state that always pays rho (or -rho): no smaller modulus is right."""
    jm = jl.JMDP([[1.0]], [[[reward]]], [[[0]]], gamma)
    operator = MultisetOperator(jm, np.ones((1, 1)), order).system
    worst = np.array(
        [jl.norm_weight(k, gamma, abs(reward)) * np.sign(reward) ** k for k in operator.orders]
    )
    change = np.abs(operator.apply(worst) - operator.apply(0.0 * worst))
    measured = change[operator.orders == order].max() / jl.norm_weight(order, gamma, abs(reward))
    assert measured == pytest.approx(jl.contraction_modulus(order, gamma))
