"""An antithetic partner as a transform of the model: every solver agrees with brute force."""

from __future__ import annotations

from pathlib import Path

import brute
import numpy as np
import pytest

import jmdp_lib as jl

ROOT = Path(__file__).resolve().parents[1]
NOISES = 4
PROBS = [0.15, 0.35, 0.35, 0.15]  # as probable as their opposites
POLICY = np.array([[0.3, 0.7], [0.6, 0.4]])


def step(state, action, noise):
    return 0.5 * noise + action - state, int(noise + action + state > 3)


def recipe():
    """`antithetic`, as the page has it."""
    page = (ROOT / "book" / "own_simulator.md").read_text(encoding="utf-8")
    [block] = [part for part in page.split("```python\n") if "def antithetic" in part]
    scope = {"jl": jl, "np": np}
    exec(block.split("```")[0], scope)
    return scope["antithetic"]


ANTITHETIC = recipe()(step, NOISES, opposed=[1])
USUAL, JM = (jl.JMDP.from_step(2, 2, 0.6, PROBS, world) for world in (step, ANTITHETIC))
EXACT = {
    word: brute.moments(JM, POLICY, 3, common=word == "common") for word in ("joint", "common")
}


def gap_moments(state, coupling):
    """Mean and variance of the gap of both actions, by brute force."""
    m, a, b = EXACT[coupling], (state, 0), (state, 1)
    mean = m[a,] - m[b,]
    return mean, m[a, a] - 2.0 * m[a, b] + m[b, b] - mean**2


def test_one_action_meets_the_opposite_noise_and_keeps_its_distribution():
    for usual, opposite in zip(USUAL.marginal_mdp(), JM.marginal_mdp(), strict=True):
        np.testing.assert_allclose(opposite, usual, atol=1e-12)
    for state in range(2):
        rows = slice(JM.starts[state], JM.starts[state + 1])
        product = JM.probs[rows] @ np.prod(JM.rewards[rows], axis=1)
        pays = [step(state, 0, u)[0] * step(state, 1, 3 - u)[0] for u in range(NOISES)]
        assert product == pytest.approx(np.dot(PROBS, pays))
    assert (
        jl.jipe2(JM, POLICY).moments.gap_variance[0, 0, 1]
        > (jl.jipe2(USUAL, POLICY).moments.gap_variance[0, 0, 1])
    )


@pytest.mark.parametrize("coupling", ["joint", "common"])
@pytest.mark.parametrize("route", ["sweeps", "reachable", "dense"])
def test_jipe2(route, coupling):
    moments = jl.jipe2(JM, POLICY, tol=1e-11, coupling=coupling, route=route).moments
    for state in range(2):
        found = moments.gap_mean[state, 0, 1], moments.gap_variance[state, 0, 1]
        assert found == pytest.approx(gap_moments(state, coupling), abs=1e-8)


@pytest.mark.parametrize("coupling", ["joint", "common"])
def test_all_orders_and_the_operator(coupling):
    higher = jl.jipe(JM, POLICY, order=3, tol=1e-11, coupling=coupling).moments
    for x, moment in EXACT[coupling].items():
        if x:
            assert higher.moment(x) == pytest.approx(moment, abs=1e-7)
    everything = [(s, a) for s in range(2) for a in range(2)]
    mean = np.reshape([EXACT[coupling][x,] for x in everything], (2, 2))
    pairs = [EXACT[coupling][tuple(sorted((x, y)))] for x in everything for y in everything]
    second = np.reshape(pairs, (2, 2, 2, 2))
    images = jl.apply_t2(JM, POLICY, mean, second, coupling=coupling)
    np.testing.assert_allclose(images[0], mean, atol=1e-9)
    np.testing.assert_allclose(images[1], second, atol=1e-9)


@pytest.mark.parametrize("coupling", ["joint", "common"])
def test_simulations_and_the_gap_law(coupling):
    mean, variance = gap_moments(0, coupling)
    pairs = jl.simulate_pairs(
        JM, POLICY, (0, 1), state=0, num_pairs=20_000, coupling=coupling, rng=0
    )
    gaps = pairs[:, 0] - pairs[:, 1]
    plain = jl.simulators.StepSimulator(2, 2, 0.6, PROBS, ANTITHETIC)
    assert abs(gaps.mean() - mean) < 4.5 * gaps.std() / np.sqrt(gaps.size)
    for env, runs in ((JM, 20_000), (plain, 1000)):
        found = jl.simulators.estimate_gaps(
            env, POLICY, [0, 1], state=0, num_runs=runs, truncation=1e-6, coupling=coupling, rng=0
        )
        assert abs(found.mean[0, 1] - mean) < 4.5 * found.mean_error[0, 1]
        assert abs(found.variance[0, 1] - variance) < 4.5 * found.variance_error[0, 1]
    [law] = jl.laws.gap_law(JM, POLICY, gaps=[(0, 0, 1)], width=0.02, coupling=coupling)
    low, high = law.prob_worse
    share = np.mean(gaps < 0.0)
    error = 4.5 * np.sqrt(share * (1.0 - share) / gaps.size)
    assert low - error <= share <= high + error
