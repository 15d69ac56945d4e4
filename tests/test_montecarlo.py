"""Recursive-pair simulation: it plays the process whose moments the operators compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems, random_jmdp

import jmdp_lib as jl
from jmdp_lib import montecarlo


def standard_errors(z, m, s, a, b):
    """Distances of sample moments from the exact ones in standard errors, truncation aside."""
    gap = z[:, 0] - z[:, 1]
    for sample, exact in (
        (z[:, 0], m.mean[s, a]),
        (z[:, 1], m.mean[s, b]),
        (z[:, 0] ** 2, m.second((s, a), (s, a))),
        (z[:, 0] * z[:, 1], m.second((s, a), (s, b))),
        (gap**2, m.gap_variance[s, a, b] + m.gap_mean[s, a, b] ** 2),
    ):
        error = sample.std() / np.sqrt(len(sample))
        yield abs(sample.mean() - exact) / (error + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("coupling", ["joint", "independent"])
@given(problem=problems(max_gamma=0.9))
@settings(max_examples=25, derandomize=True)
def test_inside_its_error_bars(problem, coupling):
    jm, policy, rng = problem
    m = jl.jipe2(jm, policy, tol=1e-10, coupling=coupling).moments
    s, a, b = jm.num_states - 1, 0, jm.num_actions - 1
    z = jl.simulate_pairs(
        jm, policy, s, (a, b), 20_000, seed=int(rng.integers(2**32)), coupling=coupling
    )
    assert z.shape == (20_000, 2)
    assert max(standard_errors(z, m, s, a, b)) < 5.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jm", "state"),
    [
        (jl.windy_gridworld(5), 20),
        (jl.coupled_reward_chain(25, 0.95), 0),
        (jl.inventory(), 3),
        (random_jmdp(np.random.default_rng(1), 2, 2, num_tables=40), 1),
    ],
    ids=["gridworld", "chain", "inventory", "many tables"],
)
def test_environments_inside_error_bars(jm, state):
    policy = jl.uniform_policy(jm)
    m = jl.jipe2(jm, policy).moments
    z = jl.simulate_pairs(jm, policy, state, (0, 1), 100_000, seed=3)
    assert max(standard_errors(z, m, state, 0, 1)) < 5


def pairs(jm, count, seed):
    return jl.simulate_pairs(jm, jl.uniform_policy(jm), 0, (0, 1), count, seed)


def returns(jm, count, seed):
    return jl.simulate_returns(jm, jl.uniform_policy(jm), count, seed)


@pytest.mark.parametrize(("sample", "chunk"), [(pairs, 4096), (returns, 64)])
def test_a_sample_depends_on_its_seed_alone(sample, chunk, monkeypatch):
    """Neither on the number of threads, nor on how many samples are asked for."""
    jm = random_jmdp(np.random.default_rng(0))
    count = 4 * chunk + 9
    runs = []
    for threads in (1, 2):
        monkeypatch.setattr(montecarlo, "get_num_threads", lambda n=threads: n)
        runs.append(sample(jm, count, 5))
    np.testing.assert_array_equal(*runs)
    for num in (1, chunk - 1, chunk, chunk + 1):
        np.testing.assert_array_equal(sample(jm, num, 5), runs[0][:num])
    assert not (sample(jm, count, 6) == runs[0]).any()
    assert np.unique(runs[0].reshape(count, -1)[:, 0]).size == count  # no two chunks are the same


def test_same_action_is_one_branch():
    jm = jl.windy_gridworld(3)
    z = jl.simulate_pairs(jm, jl.uniform_policy(jm), 4, (1, 1), 1000)
    np.testing.assert_array_equal(z[:, 0], z[:, 1])


def test_coalescence():
    """Chain: both branches meet at s_1; where they draw the same action they never part again."""
    jm = jl.coupled_reward_chain(2, 0.9)
    z = jl.simulate_pairs(jm, jl.uniform_policy(jm), 0, (0, 1), 1000)
    np.testing.assert_allclose(np.abs(z[:, 0] - z[:, 1]), 1.0)  # one step apart, then the same
    three = jl.coupled_reward_chain(3, 0.9)
    z = jl.simulate_pairs(three, jl.uniform_policy(three), 0, (0, 1), 4000, seed=1)
    gaps = np.unique(np.abs(z[:, 0] - z[:, 1]).round(12))
    np.testing.assert_allclose(gaps, [0.1, 1.0, 1.9])  # parted again, merged, parted again
    merged = np.isclose(np.abs(z[:, 0] - z[:, 1]), 1.0).mean()
    assert merged == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(4000))


def test_horizon():
    always = jl.JMDP([[1.0]], [[[1.0]]], [[[0]]], 0.9)
    z = jl.simulate_pairs(always, [[1.0]], 0, (0, 0), 1, truncation=1e-3)
    assert 0 < 10.0 - z[0, 0] <= 1e-3 * 10.0
    z = jl.simulate_pairs(always, [[1.0]], 0, (0, 0), 1, horizon=2)
    assert z[0, 0] == pytest.approx(1.9)
    assert montecarlo.horizon_for(jl.example_1(0.0), 1e-9) == 1
