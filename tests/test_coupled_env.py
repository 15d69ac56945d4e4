"""Queries of other simulators, by copies that share the generator's state."""

from __future__ import annotations

import re
import threading
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence

import jmdp_lib as jl


class Walk(gymnasium.Env):
    """A walk on the line with action-dependent numbers of draws; what it holds can be added."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(3)

    def __init__(self, **held):
        self.__dict__.update(held)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.alias = self.np_random
        self.x = np.zeros(1, np.float32)
        return self.x.copy(), {}

    def noise(self):
        return self.alias.normal()

    def step(self, action):
        for _ in range(int(action) + 1):
            self.x = (self.x + self.noise()).astype(np.float32)
        return self.x.copy(), float(self.x[0]), bool(abs(self.x[0]) > 8), False, {}


class GlobalNoise(Walk):
    def noise(self):
        return np.random.normal()  # noqa: NPY002, the fault that is to be found


class SharedState(Walk):
    """Copies write to the class: stepping one moves the other."""

    total = 0.0

    def noise(self):
        SharedState.total += 1.0
        return SharedState.total


class Forgetful(gymnasium.utils.EzPickle, Walk):
    """Like the Box2D environments: a copy is a new environment, not one in the same state."""

    def __init__(self):
        gymnasium.utils.EzPickle.__init__(self)


def facts(outcome):
    return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Blackjack-v1"])
def test_queried_branches_are_executed(name):
    env = jl.CoupledEnv(gymnasium.make(name), seed=1)
    env.reset(seed=2)
    env.action_space.seed(3)
    for _ in range(15):
        space = env.action_space
        actions = list(range(space.n)) if isinstance(space, spaces.Discrete) else [space.sample()]
        here = env.snapshot()
        outcomes = env.query(actions)
        assert env.query(actions[:1])[0] is outcomes[0]
        env.restore(here)
        for action, outcome in zip(actions[::-1], outcomes[::-1], strict=True):
            (alone,) = env.query([action])
            assert data_equivalence(facts(alone), facts(outcome), exact=True)
        *result, _ = env.step(actions[0])
        assert data_equivalence(tuple(result), facts(outcomes[0]), exact=True)
        if outcomes[0].terminated or outcomes[0].truncated:
            env.reset()


def test_querying_does_not_disturb_the_trajectory():
    runs = []
    for queries in (False, True):
        env = jl.CoupledEnv(gymnasium.make("FrozenLake-v1"), seed=4)
        env.reset(seed=5)
        run = []
        for action in np.random.default_rng(6).integers(4, size=30):
            if queries:
                env.query(range(4))
            *result, _ = env.step(action)
            run.append(result)
            if result[2] or result[3]:
                env.reset()
        runs.append(run)
    assert runs[0] == runs[1]


def test_gymnasium_approves():
    with warnings.catch_warnings():  # about wrappers and CartPole's own bounds
        warnings.simplefilter("ignore", UserWarning)
        check_env(jl.CoupledEnv(gymnasium.make("CartPole-v1")), skip_render_check=True)


def test_tables_of_distinct_states_are_independent():
    env = jl.CoupledEnv(Walk(), seed=7)
    env.reset()
    left, right = (outcome.snapshot for outcome in env.query([0, 1]))
    moves = []
    for _ in range(400):
        for branch in (left, right):
            env.restore(branch)
            before = branch.env.unwrapped.x[0]
            moves.append(env.query([0])[0].observation[0] - before)
    x, y = np.reshape(moves, (-1, 2)).T
    assert abs(np.corrcoef(x, y)[0, 1]) < 4.5 / np.sqrt(400)
    assert np.isclose([x.std(), y.std()], 1.0, atol=0.2).all()


def test_redraw_and_restore():
    env = jl.CoupledEnv(Walk(), seed=8)
    env.reset()
    here, first = env.snapshot(), env.query([2])[0].reward
    env.redraw()
    assert env.query([2])[0].reward != first
    env.restore(here)
    assert env.query([2])[0].reward == first


def test_frozen_lake_has_the_tables_of_from_gymnasium():
    """One uniform number through each action's list: all four slip alike, with the same law."""
    env = jl.CoupledEnv(gymnasium.make("FrozenLake-v1"), seed=9)
    jm = jl.from_gymnasium("FrozenLake-v1")
    env.reset()
    env.unwrapped.s = 9
    low, high = jm.starts[9], jm.starts[10]
    tables = [tuple(row) for row in jm.next_states[low:high]]
    counts = dict.fromkeys(tables, 0)
    for _ in range(150):
        env.redraw()
        counts[tuple(int(outcome.observation) for outcome in env.query(range(4)))] += 1
    expected = 150 * jm.probs[low:high]
    assert (abs(np.array(list(counts.values())) - expected) < 4.5 * np.sqrt(expected)).all()


def test_env_is_left_alone():
    env = gymnasium.make("CartPole-v1")
    start, _ = env.reset(seed=10)
    state = env.unwrapped.np_random.bit_generator.state
    coupled = jl.CoupledEnv(env)
    coupled.reset()
    coupled.query([0, 1])
    coupled.step(1)
    assert env.unwrapped.np_random.bit_generator.state == state
    assert np.allclose(env.unwrapped.state, start)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Walk(lock=threading.Lock()), r"Walk cannot be coupled: TypeError\(.cannot pickle"),
        (GlobalNoise(), "GlobalNoise cannot be coupled: .* did not repeat the queried outcome"),
        (SharedState(), "SharedState cannot be coupled: .* did not repeat the queried outcome"),
        (Forgetful(), "Forgetful cannot be coupled: AttributeError"),
        (Walk(rng=np.random.default_rng(0)), "it holds a generator besides np_random"),
        (Walk(rng=torch.Generator()), "it holds a generator besides np_random, <torch"),
    ],
    ids=["lock", "global", "shared", "forgetful", "generator", "torch"],
)
def test_refused_by_name_and_reason(env, message):
    with pytest.raises(ValueError, match=message):
        jl.CoupledEnv(env)


def test_what_the_trial_missed_is_found_when_it_matters():
    class Late(Walk):
        """Behaves for as long as it is tried out."""

        def noise(self):
            return super().noise() if self.x[0] < 1000 else np.random.normal()  # noqa: NPY002

    env = jl.CoupledEnv(Late(), seed=11)
    env.reset()
    env.unwrapped.x = np.full(1, 2000, np.float32)
    env.query([0, 1])
    with pytest.raises(RuntimeError, match="Late did not repeat the queried outcome of action 1"):
        env.step(1)


def test_bad_calls():
    with pytest.raises(TypeError, match=r"env must be a gymnasium.Env, got 'CartPole-v1'"):
        jl.CoupledEnv("CartPole-v1")
    env = jl.CoupledEnv(Walk(), seed=12)
    with pytest.raises(ResetNeeded, match=r"query outside of an episode: call reset"):
        env.query([0])
    env.reset()
    with pytest.raises(IndexError, match=r"action 3 is not in Discrete\(3\)"):
        env.query([0, 3])
    with pytest.raises(ValueError, match="all distinct"):
        env.query([1, 1])
    for actions in ([], 0, None):
        with pytest.raises(
            ValueError, match=f"at least one action, .* got {re.escape(repr(actions))}"
        ):
            env.query(actions)
    with pytest.raises(TypeError, match="must be an EnvSnapshot"):
        env.restore(0)
    lake = jl.CoupledEnv(gymnasium.make("FrozenLake-v1"))
    lake.reset()
    with pytest.raises(TypeError, match=r"must be an EnvSnapshot of Walk, got .*FrozenLakeEnv"):
        env.restore(lake.snapshot())
    env.unwrapped.x = np.full(1, 100, np.float32)
    env.step(0)
    with pytest.raises(ResetNeeded, match="query outside of an episode"):
        env.query([0])


class Composite(Walk):
    """Actions of two parts, one of them an array."""

    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])

    def step(self, action):
        return super().step(action[0])


class Unpaid(Walk):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


def test_composite_actions():
    env = jl.CoupledEnv(Composite(), seed=0)
    env.reset()
    one, other = (0, np.zeros(2, np.float32)), (1, np.zeros(2, np.float32))
    first, second = env.query([one, other])
    assert first.reward != second.reward
    with pytest.raises(ValueError, match="distinct"):
        env.query([one, (0, np.zeros(2, np.float32))])
    assert env.step(other)[1] == second.reward


def test_rewards_are_numbers():
    with pytest.raises(ValueError, match=r"Unpaid.* paid nan for action"):
        jl.CoupledEnv(Unpaid(), seed=0)
