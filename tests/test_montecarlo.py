"""Simulated pairs and random maps have the moments that solvers compute."""

from functools import partial

import numpy as np
import pytest
from strategies import COUPLINGS, random_jmdp, random_policy, shared_noise_model

import jmdp_lib as jl
from jmdp_lib.fast import threads

NUM_SAMPLES = 20_000
ALWAYS = jl.JMDP([[1.0]], [[[1.0, 0.0]]], [[[0, 0]]], 0.9)  # without a common reward offset
MODELS = {
    "random": shared_noise_model(0, num_actions=2),
    "many tables": shared_noise_model(1, 2, 3, 12),
    "one step": shared_noise_model(2, num_actions=2, gamma=0.0),
    "chain": jl.coupled_reward_chain(4, gamma=0.9),
    "queues": jl.two_queues(capacity=1, gamma=0.8),
    "grid": jl.windy_gridworld(2, gamma=0.8),
    "ragged": random_jmdp(np.random.default_rng(5), num_states=4, num_actions=3),
}
TWICE = ("random", "ragged", "grid")  # with a deterministic policy, too
CASES = [
    (model, coupling, deterministic)
    for model in MODELS
    for coupling in COUPLINGS
    for deterministic in (False, True)
    if (model, coupling) != ("ragged", "common") and (not deterministic or model in TWICE)
]


def standard_errors_off(sample, exact):
    """Largest error of the means of a sample (N, ...), without that of the cut at the horizon."""
    error = sample.std(0) / np.sqrt(len(sample))
    return np.max(np.abs(sample.mean(0) - exact) / (error + 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "coupling", "deterministic"), CASES)
def test_moments_are_within_five_standard_errors(model, coupling, deterministic):
    """Maps give every pair of state-actions, recursive pairs two actions of one state."""
    jm = MODELS[model]
    policy = random_policy(np.random.default_rng(3), jm, deterministic)
    exact = jl.jipe2(jm, policy, tol=1e-10, coupling=coupling).moments
    second = exact.full_second().reshape(policy.size, policy.size)
    mean = exact.mean.ravel()
    state, last = jm.num_states - 1, jm.num_actions - 1
    options = {"rng": 4, "coupling": coupling}
    maps = jl.simulate_returns(jm, policy, NUM_SAMPLES, **options)
    assert maps.shape == (NUM_SAMPLES, *policy.shape)
    pairs = jl.simulate_pairs(jm, policy, (0, last), state=state, num_pairs=NUM_SAMPLES, **options)
    everything = np.arange(policy.size)
    ends = everything[[state * jm.num_actions, -1]]
    for returns, x in ((maps.reshape(NUM_SAMPLES, -1), everything), (pairs, ends)):
        assert standard_errors_off(returns, mean[x]) < 5.0
        centred = returns - mean[x]
        covariance = second[np.ix_(x, x)] - np.outer(mean[x], mean[x])
        assert standard_errors_off(centred[:, :, None] * centred[:, None], covariance) < 5.0


def pairs(jm, count, seed):
    return jl.simulate_pairs(jm, jl.uniform_policy(jm), (0, 1), state=0, num_pairs=count, rng=seed)


def returns(jm, count, seed):
    return jl.simulate_returns(jm, jl.uniform_policy(jm), count, rng=seed)


@pytest.mark.parametrize(("sample", "chunk"), [(pairs, 4096), (returns, 64)])
def test_a_sample_depends_on_its_seed_alone(sample, chunk, monkeypatch):
    """Neither the number of threads nor that of samples changes it."""
    jm = random_jmdp(np.random.default_rng(0))
    count = 4 * chunk + 9
    runs = []
    for number in (1, 2):
        monkeypatch.setattr(threads, "get_num_threads", lambda n=number: n)
        runs.append(sample(jm, count, 5))
    np.testing.assert_array_equal(*runs)
    for num in (1, chunk - 1, chunk, chunk + 1):
        np.testing.assert_array_equal(sample(jm, num, 5), runs[0][:num])
    assert not (sample(jm, count, 6) == runs[0]).any()
    assert np.unique(runs[0].reshape(count, -1)[:, 0]).size == count  # no two chunks are the same


@pytest.mark.parametrize("truncation", [1e-1, 3e-2, 1e-2, 1e-3])  # odd and even numbers of steps
def test_the_horizon_follows_from_the_truncation(truncation):
    steps = int(np.ceil(np.log(truncation) / np.log(0.9)))
    pair = partial(jl.simulate_pairs, ALWAYS, [0], (0, 0), state=0, num_pairs=1, rng=0)
    maps = jl.simulate_returns(ALWAYS, [0], 3, truncation=truncation, rng=0)
    for returns in (maps[..., 0], pair(truncation=truncation), pair(horizon=steps)):
        np.testing.assert_allclose(returns, (1.0 - 0.9**steps) / 0.1)
