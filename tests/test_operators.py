"""Operators: the fast T_2 is the literal T_2, and a step of two branches is brute force."""

from itertools import product

import brute
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose
from strategies import coupled, on_all_couplings, problems, random_policy, shared_noise_model

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2, Gaps
from jmdp_lib.model import Coupling
from jmdp_lib.operators.pairs import PairOperator


def random_collection(rng, jm):
    """Any M: neither symmetric nor a moment sequence."""
    shape = (jm.num_states, jm.num_actions)
    return rng.normal(size=shape), 5.0 * rng.normal(size=shape + shape)


@on_all_couplings
@given(problem=problems())
@settings(max_examples=60)
def test_fast_is_literal(problem, coupling):
    jm, policy, rng = coupled(problem, coupling)
    mean, second = random_collection(rng, jm)
    operator = PairOperator(jm, policy, Coupling.named(coupling))
    state = operator.centre(mean, second)
    for _ in range(3):
        mean, second = jl.apply_t2(jm, policy, mean, second, coupling=coupling)
        state = operator.apply(state)
        assert_allclose(state.mean, mean, atol=1e-10)
        assert_allclose(state.second, second, atol=1e-10)


@on_all_couplings
@pytest.mark.parametrize("seed", range(3))
def test_the_step_of_a_pair_is_brute_force(seed, coupling):
    """For every pair of separate branches; the pair chain takes the same step."""
    jm = shared_noise_model(seed, 2, 3, 2)
    policy = random_policy(np.random.default_rng(seed), jm)
    system = CollapsedT2(jm, policy, Coupling.named(coupling))
    drawn = brute.product_jmdp(jm) if coupling == "independent" else jm
    every = list(product(range(jm.num_states), range(jm.num_actions)))
    for (s, a), (t, b) in product(every, repeat=2):
        if (s, a) == (t, b):
            continue
        pair = Gaps(*(np.array([x]) for x in ((s, a, b) if s == t else (s, a, b, t))))
        law = system.step(pair)
        moved = np.zeros((jm.num_states,) * 2)
        np.add.at(moved, (law.first, law.second), law.weights)
        exact = np.zeros(policy.shape * 2)
        for prob, after in brute.one_step(drawn, policy, [(s, a), (t, b)], coupling == "common"):
            exact[*after[0][1], *after[1][1]] += prob
        assert_allclose(moved, exact.sum((1, 3)), atol=1e-12)
        if coupling == "joint":
            start = np.zeros(exact.shape)
            start[s, a, t, b] = 1.0
            assert_allclose(jl.pair_step(jm, policy, start), exact, atol=1e-12)
