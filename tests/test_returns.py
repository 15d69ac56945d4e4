"""The joint return vector by random maps: its moments and laws are those that solvers compute."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import random_jmdp, random_policy, shared_noise_model

import jmdp_lib as jl

COUPLINGS = ("joint", "independent", "common")
NUM_SAMPLES = 20_000


MODELS = {
    "random": shared_noise_model(0, num_actions=2),
    "many tables": shared_noise_model(1, 2, 3, 12),
    "one step": shared_noise_model(2, num_actions=2, gamma=0.0),
    "chain": jl.coupled_reward_chain(4, gamma=0.9),
    "queues": jl.two_queues(capacity=1, gamma=0.8),
}


def standard_errors_off(sample, exact):
    """How far means (N, ...) are from what they should be; the cut at the horizon aside."""
    error = sample.std(0) / np.sqrt(len(sample))
    return np.abs(sample.mean(0) - exact) / (error + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True], ids=["mixed", "deterministic"])
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("model", MODELS)
def test_means_and_covariances_of_all_pairs_within_five_standard_errors(
    model, coupling, deterministic
):
    """20,000 samples, every pair of state-actions."""
    jm = MODELS[model]
    policy = random_policy(np.random.default_rng(3), jm, deterministic)
    exact = jl.jipe2(jm, policy, tol=1e-10, coupling=coupling).moments
    z = jl.simulate_returns(jm, policy, NUM_SAMPLES, seed=4, coupling=coupling)
    assert z.shape == (NUM_SAMPLES, jm.num_states, jm.num_actions)
    assert standard_errors_off(z, exact.mean).max() < 5.0
    flat = z.reshape(NUM_SAMPLES, -1)
    centred = flat - exact.mean.ravel()
    products = centred[:, :, None] * centred[:, None]
    second = exact.full_second().reshape(flat.shape[1], -1)
    covariance = second - np.outer(exact.mean, exact.mean)
    assert standard_errors_off(products, covariance).max() < 5.0


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_ragged_tables_and_signs(coupling):
    """States with different numbers of tables, some of probability zero."""
    jm = random_jmdp(np.random.default_rng(5), num_states=4, num_actions=3)
    policy = random_policy(np.random.default_rng(6), jm)
    if coupling == "common":
        with pytest.raises(ValueError, match="one law of tables"):
            jl.simulate_returns(jm, policy, 1, coupling=coupling)
        return
    exact = jl.jipe2(jm, policy, coupling=coupling).moments
    z = jl.simulate_returns(jm, policy, NUM_SAMPLES, seed=1, coupling=coupling)
    gaps = z[:, :, :, None] - z[:, :, None]
    assert standard_errors_off(gaps, exact.gap_mean).max() < 5.0
    second = exact.gap_variance + exact.gap_mean**2
    assert standard_errors_off(gaps**2, second).max() < 5.0


@pytest.mark.slow
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_gaps_have_the_law_of_gap_law(coupling):
    """The share of samples at or below a point is in the law's bracket, to 5 standard errors."""
    jm = jl.windy_gridworld(3, gamma=0.8)
    policy = jl.uniform_policy(jm)
    (law,) = jl.laws.gap_law(jm, policy, [(4, 0, 2)], width=0.01, coupling=coupling)
    z = jl.simulate_returns(jm, policy, NUM_SAMPLES, seed=7, coupling=coupling, truncation=1e-10)
    gap = z[:, 4, 0] - z[:, 4, 2]
    allowed = 5.0 * 0.5 / np.sqrt(NUM_SAMPLES)
    for x in (-0.503, -0.101, 0.0503, 0.497, 1.003):
        low, high = law.cdf(x)
        assert low - allowed <= np.mean(gap <= x) <= high + allowed


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_branches_that_meet_stay_together(coupling):
    """All state-actions of the first step lead to one state with one action: one return follows."""
    after = np.zeros((3, 2, 2), int)
    after[0] = [[1, 2], [2, 1]]
    rewards = np.random.default_rng(8).uniform(-1.0, 1.0, (3, 2, 2))
    rewards[1:, 1] = rewards[1:, 0]  # after states 1 and 2, nothing but state 0 is random
    jm = jl.JMDP([[0.4, 0.6]] * 3, rewards, after, 0.9)
    z = jl.simulate_returns(jm, [1, 0, 1], 500, seed=1, coupling=coupling)
    for s in (1, 2):
        for a in (0, 1):
            difference = z[:, s, a] - z[:, 1, 0]
            np.testing.assert_allclose(difference, rewards[s, 0, a] - rewards[1, 0, 0], atol=1e-12)
    assert z[:, 1, 0].std() > 0.1


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_equal_columns_where_two_actions_do_the_same(coupling):
    """One table for all draws: actions that agree there differ in nothing, to the last bit."""
    jm = jl.JMDP([[1.0]] * 2, [[[1, 1]], [[0, 2]]], [[[1, 1]], [[0, 0]]], 0.9)
    z = jl.simulate_returns(jm, [0, 1], 50, coupling=coupling)
    np.testing.assert_array_equal(z[:, 0, 0], z[:, 0, 1])
    mixed = jl.simulate_returns(jm, jl.uniform_policy(jm), 50, coupling=coupling)
    assert 0 < np.sum(mixed[:, 0, 0] == mixed[:, 0, 1]) < 50  # next actions are drawn for each


def test_the_horizon_follows_from_the_truncation():
    always = jl.JMDP([[1.0]], [[[1.0]]], [[[0]]], 0.9)
    for truncation in (1e-1, 3e-2, 1e-2, 1e-3):  # of odd and of even numbers of steps
        z = jl.simulate_returns(always, [0], 3, truncation=truncation)
        steps = int(np.ceil(np.log(truncation) / np.log(0.9)))
        np.testing.assert_allclose(z, (1.0 - 0.9**steps) / 0.1)
        assert (10.0 - z <= truncation * 10.0).all()


def test_a_simulator_is_refused():
    with pytest.raises(TypeError, match="simulate_returns needs a JMDP"):
        jl.simulate_returns(jl.inventory_simulator(), [0], 1)
