"""Answers of executors, environments and simulators that cannot be right, and odd options."""

import sys
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
from programs import run

import jmdp_lib as jl
from jmdp_lib.simulators import CoupledEnv, SimulatorError, compare_actions, estimate_gaps

SHOP = jl.inventory(2, 1, gamma=0.5)
GAPS = {"policy": [0, 0, 0], "actions": (0, 1), "state": 0, "num_runs": 9, "rng": 0}


class Answers(Executor):
    """Its futures hold one thing."""

    def __init__(self, answer):
        self.answer = answer

    def submit(self, *_, **__):
        future = Future()
        future.set_result(self.answer)
        return future


@pytest.mark.parametrize("answer", [None, 42])
def test_a_future_holds_what_was_simulated(answer):
    with pytest.raises(
        SimulatorError, match=f"executor returned {answer}, not the result"
    ) as caught:
        estimate_gaps(SHOP, **GAPS, executor=Answers(answer))
    assert caught.value.result is None


class Locked:
    """Cannot be copied, as threads need it."""

    num_states, num_actions, gamma, reward_range = 1, 2, 0.5, (0.0, 0.0)

    def __init__(self):
        self.lock = threading.Lock()

    def query(self, state, actions, rng):
        return [0.0 for _ in actions], [0 for _ in actions]


@pytest.mark.parametrize("call", [estimate_gaps, compare_actions])
def test_a_simulator_that_threads_cannot_copy_is_named(call):
    call(Locked(), [0], [0, 1], state=0, rng=0)
    with (
        ThreadPoolExecutor(2) as threads,
        pytest.raises(SimulatorError, match=r"Locked object .* cannot be copied.*cannot pickle"),
    ):
        call(Locked(), [0], [0, 1], state=0, rng=0, executor=threads)


class Ends(gymnasium.Env):
    """Its steps end as given."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(1)

    def __init__(self, ends):
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, float(action), *self.ends, {}


@pytest.mark.parametrize("bad", [None, "no"])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_environments_end_or_do_not(name, bad):
    ends = {"terminated": False, "truncated": False, name: bad}
    with pytest.raises(Exception, match=f"{name} after action .* must be True or False, got"):
        CoupledEnv(Ends([*ends.values()]), rng=0)


def test_numpy_may_say_that_an_episode_ended():
    env = CoupledEnv(Ends((np.bool_(True), np.bool_(False))), rng=0)
    env.reset(seed=0)
    assert env.query([0])[0].terminated


def test_a_reward_outside_of_the_given_range_is_named():
    env = CoupledEnv(Ends((False, False)), rng=0)
    env.reset(seed=0)
    message = r"time step 1: reward 0.0 of action 0 in state 0 is not in reward_range \(2.0, 3.0\)"
    for simulator, state in ((env, None), (Locked(), 0)):
        options = {"state": state, "reward_range": (2, 3), "gamma": 0.5}
        with pytest.raises(SimulatorError, match=message):
            compare_actions(simulator, [0], [0, 1], **options, rng=0)


def test_an_unknown_name_imports_nothing():
    code = """
        import sys, jmdp_lib as jl
        try:
            jl.gap_law
        except AttributeError as error:
            print(error, "jmdp_lib.laws" in sys.modules)"""
    said = run(sys.executable, "-c", code.replace(8 * " ", "")).strip()
    assert said == "jl.gap_law is in jl.laws: use jl.laws.gap_law False"
