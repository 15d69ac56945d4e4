"""The model: constructors agree, queries follow the tables, and coupling is detected."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from brute import product_jmdp, tables_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import random_jmdp, shared_noise_model

import jmdp_lib as jl


def test_constructors_agree():
    """Those of arrays, of a step function, and of tables in any order; all know their noise."""
    dense = shared_noise_model(0, 2, 2, 3)
    rewards, after = dense.rewards.reshape(2, 3, 2), dense.next_states.reshape(2, 3, 2)
    step = jl.JMDP.from_step(
        2, 2, 0.7, dense.probs[:3], lambda s, a, u: (rewards[s, u, a], after[s, u, a])
    )
    order = np.array([3, 0, 4, 1, 2, 5])  # mixes the states, and keeps the order within each
    tables = dense.table_states, dense.probs, dense.rewards, dense.next_states
    stacked = jl.JMDP.from_tables(*(array[order] for array in tables), 2, 0.7)
    for other in (step, stacked):
        for name in ("starts", "probs", "rewards", "next_states", "noise_probs"):
            assert_allclose(getattr(dense, name), getattr(other, name), atol=1e-12)
    zero = jl.JMDP.from_step(2, 1, 0.5, [0.5, 0.0, 0.5], lambda s, a, u: (float(u), 0))
    assert zero.noise_probs.tolist() == [0.5, 0.5]  # without the table that is never drawn


def test_copies_are_equal_to_the_last_bit_and_immutable():
    """Probabilities that were normalised once may change when they are normalised again."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        jm = random_jmdp(rng, num_tables=4)
        jm.transitions  # noqa: B018 (cached before the copy is made)
        for other in (jm, copy.copy(jm), copy.deepcopy(jm), pickle.loads(pickle.dumps(jm))):
            for field in dataclasses.fields(jm):
                one, same = (np.asarray(getattr(x, field.name)) for x in (jm, other))
                assert one.tobytes() == same.tobytes()
            for array in (other.rewards, other.transitions.data):
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 0.5
    with pytest.raises(AttributeError):
        jm.gamma = 0.5
    source = np.array([[1.0]])
    one = jl.JMDP(source, [[[0.5]]], [[[0]]], 0.9)
    source[0, 0] = 7.0
    assert one.probs[0] == 1.0


@given(st.integers(0, 2**32 - 1))
def test_from_mdp_keeps_the_marginals(seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(4), size=(4, 2))
    rewards = rng.normal(size=(4, 2, 4))
    jm = jl.JMDP.from_mdp(probs, rewards, 0.9)
    back, mean = jm.marginal_mdp()
    assert_allclose(back, probs, atol=1e-12)
    assert_allclose(mean, (probs * rewards).sum(-1), atol=1e-12)


def test_quantile_orders_outcomes_from_worst_to_best():
    """Two next states, worth 0 and 10: both actions get the better one, whatever its index."""
    for good in (1, 2):
        moves = np.zeros((3, 2, 3))
        moves[[1, 2], :, [1, 2]] = 1.0  # absorbing
        moves[0, :, good], moves[0, :, 3 - good] = [0.4, 0.7], [0.6, 0.3]
        pays = np.zeros((3, 2))
        pays[good] = 1.0
        jm = jl.JMDP.from_mdp(moves, pays, 0.9)
        tables = {tuple(n): p for p, _, n in tables_of(jm, 0)}
        assert tables == pytest.approx(
            {(good, good): 0.4, (3 - good, good): 0.3, (3 - good, 3 - good): 0.3}
        )


def test_query_is_one_table_draw():
    """The same seed gives coordinates of the same table, whichever actions are queried."""
    jm = random_jmdp(np.random.default_rng(1), num_states=3, num_actions=4, num_tables=5)
    for seed in range(50):
        everything = jm.query(1, [0, 1, 2, 3], np.random.default_rng(seed))
        for actions in ([2], [3, 0], [1, 2, 0]):
            answer = jm.query(1, actions, np.random.default_rng(seed))
            assert_array_equal(answer, np.array(everything)[:, actions])


def test_coupled_dynamics():
    jm = random_jmdp(np.random.default_rng(6), num_actions=3)
    paper = jl.example_1(), jl.example_2_1(), jl.example_2_2(), jl.windy_gridworld(3)
    assert all(model.is_coupled for model in (jm, *paper))
    assert not product_jmdp(jm).is_coupled
    assert not jl.windy_gridworld(3, gust_prob=0.0).is_coupled  # nothing is random


@pytest.mark.parametrize(
    ("probs", "rewards", "coupled"),
    [
        ([0.25] * 4, [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]], True),  # in the triple alone
        ([0.25, 0.25, 0.5], [[0, 1], [0, 1], [1, 0]], True),  # one table split in two
        ([0.25, 0.25, 0.5], [[1, 1], [1, 1], [1, 1]], False),  # nothing is random
    ],
)
def test_coupled_rewards(probs, rewards, coupled):
    after = np.zeros((1, *np.shape(rewards)), dtype=int)
    assert jl.JMDP([probs], [rewards], after, 0.9).is_coupled == coupled
