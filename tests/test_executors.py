"""Runs that an executor of the user's plays: the same numbers, and what remains of a failure."""

import os
import pickle
import signal
import threading
from concurrent.futures import (
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from functools import partial
from multiprocessing import get_context
from unittest import mock

import numpy as np
import pytest
from strategies import Counting
from test_hashable_states import LINE, mostly_right

import jmdp_lib as jl
from jmdp_lib.simulators import SimulatorError, compare_actions, estimate_gaps
from jmdp_lib.simulators.rows import RowWorld

POLICY = [[0.5, 0.5]] * 3


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(RowWorld, "chunk", 16)


class Walk:
    """Three cells in a ring, with one gust for both actions."""

    num_states, num_actions, gamma = 3, 2, 0.8

    def query(self, state, actions, rng):
        gust = int(rng.integers(3))
        return [float(state == gust) - a for a in actions], [
            (state + gust * a) % 3 for a in actions
        ]


class Fragile(Walk):
    """Whichever process but this one plays it is killed."""

    def __init__(self):
        self.home = os.getpid()

    def query(self, state, actions, rng):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().query(state, actions, rng)


def assert_same(estimates, expected):
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(estimates, name), value)


class Backwards(Executor):
    """Plays the chunks one by one, the last one first, when the first result is asked for."""

    def __init__(self, fails=None):
        self.waiting = []
        self.fails = fails

    def submit(self, work, *job):
        future = Future()
        self.waiting.append((future, work, job))
        if len(self.waiting) == self.chunks:
            for number, (each, its_work, its_job) in reversed([*enumerate(self.waiting)]):
                each.set_running_or_notify_cancel()
                if number == self.fails:
                    each.set_exception(OSError("the machine is gone"))
                else:
                    each.set_result(its_work(*its_job))
        return future


class Pickles(Executor):
    """Plays the chunks here, from pickles, as other processes would."""

    def submit(self, work, *job):
        future = Future()
        its_work, its_job = pickle.loads(pickle.dumps((work, job)))
        future.set_result(its_work(*its_job))
        return future


WALK = partial(estimate_gaps, Walk(), POLICY, [0, 1], state=1, rng=0)


@pytest.mark.parametrize("coupling", ["joint", "common"])
@pytest.mark.parametrize("problem", [(Walk(), POLICY, 1), (LINE, mostly_right, ("cell", 2))])
def test_the_numbers_are_those_of_one_process(problem, coupling):
    """Threads do not share the tables that a line keeps."""
    options = {"num_runs": 70, "coupling": coupling, "keep_returns": True, "rng": 0}
    env, policy, state = problem
    run = partial(estimate_gaps, env, policy, [0, 1], state=state, **options)
    backwards = Backwards()
    backwards.chunks = 5  # of 70 runs
    with ThreadPoolExecutor(4) as threads:
        for executor in (backwards, threads):
            assert_same(run(executor=executor), run())


def assert_decided_alike(one, other):
    assert repr(one) == repr(other)
    for name in ("num_queries", "intervals"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name))
    np.testing.assert_array_equal(one.estimates.value, other.estimates.value)


WORLD = jl.windy_gridworld(4, gamma=0.8)
DECIDE = {
    "queried": partial(compare_actions, Walk(), POLICY, [0, 1], state=1, reward_range=(-1, 1)),
    "tables": partial(compare_actions, WORLD, jl.goal_policy(4), [1, 3, 2], state=9),
}


@pytest.mark.parametrize("kind", DECIDE)
@pytest.mark.parametrize("budget", [900, 40_000])
def test_decisions_are_those_of_one_process(kind, budget):
    """Also where the budget ends before the verdict, and where a branch is dropped on the way."""
    alone = DECIDE[kind](budget=budget, rng=0)
    with ThreadPoolExecutor(3) as threads:
        for executor in (threads, Pickles()):
            assert_decided_alike(DECIDE[kind](budget=budget, rng=0, executor=executor), alone)


def assert_all_alike(executor):
    assert_same(WALK(num_runs=300, executor=executor), WALK(num_runs=300))
    assert_decided_alike(DECIDE["queried"](rng=0, executor=executor), DECIDE["queried"](rng=0))


@pytest.mark.slow
def test_processes_and_a_cluster_give_the_same_numbers():
    distributed = pytest.importorskip("distributed")
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        assert_all_alike(processes)
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        mock.patch.dict(os.environ),  # which Dask changes
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_all_alike(client.get_executor())


def test_what_came_back_before_a_failure_is_kept():
    broken = Backwards(fails=1)
    broken.chunks = 5
    options = {"num_runs": 80, "keep_returns": True}
    with pytest.raises(SimulatorError, match=r"machine is gone.*\(16 runs went well\)") as caught:
        WALK(**options, executor=broken)
    whole = WALK(**options).returns
    np.testing.assert_array_equal(caught.value.result.returns, whole[:16])


def test_a_worker_that_dies_leaves_the_results_so_far():
    """A decision that has none yet is undecided."""
    call = {"env": Fragile(), "policy": POLICY, "actions": [0, 1], "state": 1}
    with ProcessPoolExecutor(1, get_context("spawn")) as one:
        with pytest.raises(SimulatorError, match="the executor failed: BrokenP") as caught:
            compare_actions(**call, reward_range=(-1, 1), executor=one)
        with pytest.raises(SimulatorError, match="the executor failed: BrokenProcessPool"):
            estimate_gaps(**call, executor=one)
    assert caught.value.result.verdict == "undecided"


@pytest.mark.parametrize("call", [estimate_gaps, partial(compare_actions, reward_range=(0, 1))])
def test_an_interrupt_keeps_the_runs_before_it(call):
    grid = jl.windy_gridworld(3, gamma=0.8)
    env = Counting(grid, 150)
    env.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        call(env, jl.goal_policy(3), [0, 2], state=4, rng=0)
    result = caught.value.result
    assert 5 < result.num_runs < 150
    gaps = getattr(result, "estimates", result)
    exact = jl.jipe2(grid, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
    assert abs(gaps.mean[0, 1] - exact) < 5.0 * gaps.mean_error[0, 1]


class Answers(Executor):
    """Its futures hold one thing."""

    def submit(self, *_, **__):
        future = Future()
        future.set_result(42)
        return future


def test_a_future_holds_what_was_simulated():
    message = "executor returned 42, not the result"
    with pytest.raises(SimulatorError, match=message) as caught:
        WALK(executor=Answers())
    assert caught.value.result is None


@pytest.mark.parametrize("call", [estimate_gaps, partial(compare_actions, reward_range=(-1, 1))])
def test_a_simulator_that_threads_cannot_copy_is_named(call):
    walk = Walk()
    walk.lock = threading.Lock()
    run = partial(call, walk, POLICY, [0, 1], state=1, rng=0)
    run()
    with (
        ThreadPoolExecutor(2) as threads,
        pytest.raises(SimulatorError, match=r"Walk object .* cannot be copied.*cannot pickle"),
    ):
        run(executor=threads)


def test_a_policy_that_does_not_pickle_is_named():
    options = {"num_runs": 5, "executor": Pickles(), "state": 1}
    with pytest.raises(SimulatorError, match=r"the executor failed: .*<lambda>"):
        estimate_gaps(Walk(), lambda seen: POLICY[seen], [0, 1], **options)
