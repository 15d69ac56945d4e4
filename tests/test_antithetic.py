"""An antithetic partner as a transform of the model, as a page of the book writes it."""

from pathlib import Path

import numpy as np
import pytest

import jmdp_lib as jl

ROOT = Path(__file__).resolve().parents[1]
NOISES = 4
PROBS = [0.15, 0.35, 0.35, 0.15]  # as probable as their opposites


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
