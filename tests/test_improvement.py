"""Cautious policy improvement: never worse, only with the given probability, honest counts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import random_jmdp, random_policy

import jmdp_lib as jl


def value_of(jm, policy):
    """V (S,) and Q (S, A) by a dense linear system."""
    transitions, rewards = jm.marginal_mdp()
    kernel = np.einsum("sa,sax->sx", policy, transitions)
    value = np.linalg.solve(np.eye(jm.num_states) - jm.gamma * kernel, (policy * rewards).sum(1))
    return value, rewards + jm.gamma * transitions @ value


@pytest.mark.parametrize("seed", range(5))
def test_values_never_fall_and_new_actions_are_better(seed):
    """Better with the requested probability, at least by the upper ends of brackets."""
    rng = np.random.default_rng(seed)
    jm = random_jmdp(rng, 3, 3 - seed % 2, 2, gamma=0.5)
    policy = random_policy(rng, jm, deterministic=seed % 2 == 0)
    value, q = value_of(jm, policy)
    before = (q > value[:, None] + 1e-9).any(1)  # a higher level switches no other states
    for level in (0.0, 0.5, 0.9):
        step = jl.laws.cautious_improvement(jm, policy, level=level, width=0.1)
        assert_allclose(step.advantage, q - value[:, None], atol=1e-9)
        assert np.all(value_of(jm, step.policy)[0] >= value - 1e-9)
        assert_allclose(step.policy[~step.switched], policy[~step.switched])
        assert np.all(before[step.switched])
        if level == 0.0:  # greedy
            assert_array_equal(step.switched, before)
            assert_array_equal(step.policy.argmax(1)[before], q.argmax(1)[before])
            continue
        before = step.switched
        for s in np.flatnonzero(step.switched):
            a = int(step.policy[s].argmax())
            others = [b for b in range(jm.num_actions) if b != a and policy[s, b] > 0.0]
            laws = jl.laws.gap_law(jm, policy, gaps=[(s, a, b) for b in others], width=0.01)
            high = sum(policy[s, b] * x.prob_better[1] for b, x in zip(others, laws, strict=True))
            assert level <= step.prob_better[s, a] <= high


def test_intervals_are_as_wide_as_counted_advantages_scatter():
    """Chapter 10 counts how often their lower ends hold."""
    rng = np.random.default_rng(3)
    probs, shape = rng.dirichlet(np.ones(3), size=3), (3, 3, 2)
    jm = jl.JMDP(probs, rng.uniform(size=shape), rng.integers(3, size=shape), 0.8)
    policy = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    rng = np.random.default_rng(0)
    steps = []
    for counts in rng.multinomial(100, probs, size=(200, 3)):
        tables = jm.table_states, counts.ravel() / 100, jm.rewards, jm.next_states
        counted = jl.JMDP.from_tables(*tables, 3, jm.gamma)._with(queries_per_state=100)
        steps.append(jl.laws.cautious_improvement(counted, policy, level=0.0))
    low = np.array([step.advantage_low for step in steps])
    advantage = np.array([step.advantage for step in steps])
    scatter = advantage.std(0)
    width = (advantage - low).mean(0)
    assert_allclose(width, 2.394 * scatter, rtol=0.15, atol=1e-9)  # 0.05 / 6, one-sided
