"""Queries of other simulators, by copies that share the generator's state."""

import copy
import importlib
import re
import threading
import warnings
from contextlib import nullcontext

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import TimeLimit
from test_branches import Paying, begun

from jmdp_lib.simulators import CoupledEnv


class Walk(gymnasium.Env):
    """A walk on the line with action-dependent numbers of draws; what it holds can be added."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(3)
    shown = 1.0

    def __init__(self, **held):
        self.__dict__.update(held)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.alias = self.np_random
        self.x = np.zeros(1, np.float32)
        return self.shown * self.x, {}

    def noise(self):
        return self.alias.normal()

    def step(self, action):
        for _ in range(int(action) + 1):
            self.x = (self.x + self.noise()).astype(np.float32)
        return self.shown * self.x, float(self.x[0]), bool(abs(self.x[0]) > 8), False, {}


class GlobalNoise(Walk):
    def noise(self):
        return np.random.normal()  # noqa: NPY002, the fault that is to be found


class Forgetful(gymnasium.utils.EzPickle, Walk):
    """Like MuJoCo's environments: what it says of pickling makes a new one, in no state at all."""

    def __init__(self, **held):
        gymnasium.utils.EzPickle.__init__(self)
        Walk.__init__(self, **held)


class Locked(Forgetful):
    """Like the Box2D environments: what is in it cannot be copied."""

    def __init__(self):
        super().__init__(lock=threading.Lock())


class Handle:
    """Cannot be copied as it is, and says how it can."""

    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return Handle()


class Changed(Walk):
    """One of the answers of a step is another one."""

    def step(self, action):
        answers = [*super().step(action)]
        answers[self.place] = self.answer
        return tuple(answers)


class Counting(Walk):
    """Writes to a large table at every step."""

    def __init__(self):
        super().__init__(visits=dict.fromkeys(range(1000), 0))

    def step(self, action):
        self.visits[int(action)] += 1
        return super().step(action)


class Reading(Walk):
    """Only reads its large table."""

    def __init__(self):
        super().__init__(moves={i: [(0.5, i)] for i in range(1000)})

    def noise(self):
        [(share, _)] = self.moves[3]
        return share * super().noise()


def facts(outcome):
    return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated


def step_and_compare(env, steps, every=1):
    """Steps whose outcomes were queried before, in either order, and again after a restore."""
    env.reset(seed=2)
    env.action_space.seed(3)
    space = env.action_space
    for t in range(steps):
        few = isinstance(space, spaces.Discrete)
        actions = list(range(min(space.n, 3))) if few else [space.sample(), space.sample()]
        if t % every == 0:
            here = env.snapshot()
            outcomes = env.query(actions)
            assert env.query(actions[:1])[0] is outcomes[0]
            env.restore(here)
            for action, outcome in zip(actions[::-1], outcomes[::-1], strict=True):
                (alone,) = env.query([action])
                assert data_equivalence(facts(alone), facts(outcome), exact=True)
        *result, _ = env.step(actions[0])
        if t % every == 0:
            assert data_equivalence(tuple(result), facts(outcomes[0]), exact=True)
        if result[2] or result[3]:
            env.reset()


def futures(env, start, steps):
    """What the same moves under the same draws lead to."""
    env.restore(start)
    env.action_space.seed(4)
    found = []
    for draw in range(steps):
        env.redraw(draw)
        found.append(env.step(env.action_space.sample())[:4])
        if found[-1][2]:
            break
    return found


NAMES = ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Blackjack-v1", "Taxi-v4"]


@pytest.mark.parametrize("name", NAMES)
def test_queried_branches_are_executed(name):
    """A deep copy, too, goes on from where it is."""
    env = CoupledEnv(gymnasium.make(name), rng=1)
    step_and_compare(env, 15)
    env.reset()
    first = env.action_space.sample()
    assert data_equivalence(copy.deepcopy(env).step(first), env.step(first), exact=True)


@pytest.mark.parametrize(
    ("name", "every", "needs"),
    [
        ("InvertedPendulum-v5", 4, "mujoco"),
        ("Ant-v5", 40, "mujoco"),
        ("LunarLander-v3", 10, "Box2D"),
        ("BipedalWalker-v3", 100, "Box2D"),
    ],
)
def test_physics_is_copied_or_replayed(name, every, needs):
    importlib.import_module(needs)
    said = r"cannot be copied .* simulates t \+ 1 steps for every action"
    replayed = pytest.warns(UserWarning, match=said) if needs == "Box2D" else nullcontext()
    with replayed:
        env = CoupledEnv(gymnasium.make(name), rng=1)
    assert env.copying == ("replayed" if needs == "Box2D" else "copied")
    step_and_compare(env, 200, every)
    start = env.snapshot()
    once, again, other = (futures(each, start, 10) for each in (env, env, env.twin()))
    assert data_equivalence(once, again, exact=True)
    assert data_equivalence(once, other, exact=True)
    assert len(once) > 5 or needs == "mujoco"  # the pendulum falls


def test_a_mujoco_model_that_changes_is_replayed():
    importlib.import_module("mujoco")

    class Heavier(gymnasium.Wrapper):
        def reset(self, **how):
            start = self.env.reset(**how)
            self.unwrapped.model.body_mass[1:] = self.unwrapped.np_random.uniform(1.0, 2.0)
            return start

    with pytest.warns(UserWarning, match="it changes a table or a MuJoCo model, which copies"):
        env = CoupledEnv(Heavier(gymnasium.make("InvertedPendulum-v5")), rng=1)
    step_and_compare(env, 4)


def test_large_tables_are_shared_unless_one_is_changed():
    reading = CoupledEnv(Reading(), rng=5)
    with pytest.warns(UserWarning, match="it changes a table or a MuJoCo model, which copies"):
        counting = CoupledEnv(Counting(), rng=5)
    for env, name in ((reading, "moves"), (counting, "visits")):
        step_and_compare(env, 10)
        env.reset()
        tables = [vars(e.unwrapped)[name] for e in (env, env.twin())]
        assert (tables[0] is tables[1]) == (env is reading)
    reading.unwrapped.moves[3] = [(2.0, 0)]  # what the trial did not see is found at the next reset
    with pytest.raises(RuntimeError, match="it changes a table or a MuJoCo model, which copies"):
        reading.reset()


def test_states_are_distinguished():
    lake = begun(gymnasium.make("FrozenLake-v1", is_slippery=False))
    other = lake.twin()
    assert lake.same_state(other)
    lake.step(3)
    other.step(0)
    assert lake.same_state(other)  # two ways into a wall: their last actions are for pictures only
    other.step(0)
    assert not lake.same_state(other)  # at the same place, but later: the time limit is nearer
    lake.step(2)
    assert not lake.same_state(other)
    slippery = begun(gymnasium.make("FrozenLake-v1"))
    slipped, walked = slippery.twin(), slippery.twin()
    for env, action in ((slipped, 0), (walked, 1)):
        while env.observed != 4:  # below the start
            env.restore(slippery.snapshot()._replace(draw=None))
            env.step(action)
    assert slipped.same_state(walked)  # a check of Gymnasium's holds two probabilities of a slip
    for env in (Walk(shown=0.0), Walk()):
        one = begun(env)
        two = one.twin()
        assert one.same_state(two)
        one.redraw(1)
        two.redraw(2)
        assert one.same_state(two)  # draws are no part of a state
        one.step(0)
        two.step(0)
        assert not one.same_state(two)
        assert not two.same_state(one)
        two.restore(one.snapshot())
        one.twin().step(1)
        assert one.same_state(two)


def contents(env):
    return {name: repr(x) for name, x in vars(env).items() if "np_random" not in name}


@pytest.mark.parametrize(
    ("make", "copying"),
    [
        (Walk, "copied"),
        (lambda: Walk(handle=Handle()), "copied"),
        (Forgetful, "copied"),
        (Locked, "replayed"),
        (lambda: gymnasium.make("Taxi-v4"), "copied"),
    ],
)
@pytest.mark.filterwarnings(r"ignore:Locked cannot be copied \(cannot pickle")
def test_every_way_to_copy_keeps_what_it_must(make, copying):
    """Steps go on as they did, with the wrapper's count of them; what was handed in stays alone."""
    given = TimeLimit(make(), 6)
    before = contents(given.unwrapped)
    env = CoupledEnv(given, rng=0)
    assert env.copying == copying
    env.reset(seed=3)
    env.action_space.seed(3)
    first, *actions = [env.action_space.sample() for _ in range(6)]
    (queried,) = env.query([first])
    env.twin().step(first)  # goes its own way
    env.step(first)
    here = env.snapshot()
    runs = []
    for start in (here, here, queried.snapshot._replace(draw=here.draw)):
        env.restore(start)
        env.np_random = np.random.default_rng(5)
        runs.append([env.step(action)[:4] for action in actions])
        assert [truncated for *_, truncated in runs[-1]] == [False] * 4 + [True]
    assert data_equivalence(runs[0], runs[1], exact=True)
    assert data_equivalence(runs[0], runs[2], exact=True)
    assert contents(given.unwrapped) == before


def test_gymnasium_approves():
    with warnings.catch_warnings():  # about wrappers and CartPole's own bounds
        warnings.simplefilter("ignore", UserWarning)
        check_env(CoupledEnv(gymnasium.make("CartPole-v1")), skip_render_check=True)
    CoupledEnv(Changed(place=2, answer=np.True_))  # numpy may say that an episode ended


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (GlobalNoise(), "GlobalNoise cannot be coupled: .* did not repeat the queried outcome"),
        (Walk(lock=threading.Lock()), r"Walk cannot be coupled: TypeError\(.cannot pickle"),
        (Paying(lambda env: 1 / (env.t - 3)), r"Paying cannot .*step 3, action [012]: ZeroDiv"),
        (Changed(place=1, answer=np.nan), r"Changed.* paid nan for action"),
        (Changed(place=2, answer=None), "terminated after action .* must be True or False, got"),
        (Changed(place=3, answer="no"), "truncated after action .* must be True or False, got"),
        (Walk(rng=np.random.default_rng(0)), "it holds a generator besides np_random"),
        (Walk(rng=torch.Generator()), "it holds a generator besides np_random, <torch"),
    ],
    ids=["global", "lock", "fails", "unpaid", "terminated", "truncated", "generator", "torch"],
)
def test_refused_by_name_and_reason(env, message):
    with pytest.raises(ValueError, match=message):
        CoupledEnv(env)


def test_what_the_trial_missed_is_found_when_it_matters():
    class Late(Walk):
        """Behaves for as long as it is tried out."""

        def noise(self):
            return super().noise() if self.x[0] < 1000 else np.random.normal()  # noqa: NPY002

    env = begun(Late())
    env.unwrapped.x = np.full(1, 2000, np.float32)
    env.query([0, 1])
    with pytest.raises(RuntimeError, match="did not repeat the queried outcome of action 1"):
        env.step(1)


def test_bad_calls():
    gymnasium.register_envs(ale_py)
    with pytest.raises(
        ValueError, match=r"Pong.* is an Atari game: use jmdp_lib.atari.CoupledAtari"
    ):
        CoupledEnv(gymnasium.make("ALE/Pong-v5"))
    with pytest.raises(TypeError, match=r"env must be a gymnasium.Env, got 'CartPole-v1'"):
        CoupledEnv("CartPole-v1")
    env = CoupledEnv(Walk(), rng=12)
    with pytest.raises(ResetNeeded, match=r"query before reset\(\) or after the end of"):
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
    lake = begun(gymnasium.make("FrozenLake-v1"))
    with pytest.raises(TypeError, match=r"must be an EnvSnapshot of Walk, got .*FrozenLakeEnv"):
        env.restore(lake.snapshot())
