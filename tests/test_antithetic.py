"""An antithetic partner as a transform of the model, against brute force."""

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
def test_gaps_are_those_of_brute_force(coupling):
    """In tables, and as a simulator; that solvers agree on any tables is tested of all models."""
    moments = jl.jipe2(JM, POLICY, tol=1e-11, coupling=coupling).moments
    exact = brute.moments(JM, POLICY, 2, common=coupling == "common")
    for state in range(2):
        a, b = (state, 0), (state, 1)
        mean = exact[a,] - exact[b,]
        variance = exact[a, a] - 2.0 * exact[a, b] + exact[b, b] - mean**2
        found = moments.gap_mean[state, 0, 1], moments.gap_variance[state, 0, 1]
        assert found == pytest.approx((mean, variance), abs=1e-8)
    plain = jl.simulators.StepSimulator(2, 2, 0.6, PROBS, ANTITHETIC)
    played = jl.simulators.estimate_gaps(
        plain, POLICY, [0, 1], state=1, num_runs=500, coupling=coupling, rng=0
    )
    assert abs(played.mean[0, 1] - mean) < 4.5 * played.mean_error[0, 1]
    assert abs(played.variance[0, 1] - variance) < 4.5 * played.variance_error[0, 1]
