"""Recursive branches on any simulator, against exact moments, and failures."""

import importlib
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from strategies import Counting, Plain, arrays_of, frozen_lake, on_all_couplings, raised
from test_executors import Pickles

import jmdp_lib as jl
from jmdp_lib.simulators import (
    CoupledEnv,
    SimulatorError,
    compare_actions,
    estimate_gaps,
)

RNG = np.random.default_rng(0)
PROBS = np.tile(RNG.dirichlet(np.full(3, 3.0)), (3, 1))  # one distribution of tables for all states
SMALL = jl.JMDP(PROBS, RNG.normal(size=(3, 3, 3)), RNG.integers(3, size=(3, 3, 3)), gamma=0.5)
MIXED = RNG.dirichlet(np.ones(3), size=3)
CONSTANT = raised(SMALL, 1e6)
TABLES = SMALL.rewards.reshape(3, 3, 3), SMALL.next_states.reshape(3, 3, 3)
DAILY = jl.JMDP(PROBS, TABLES[0] + 3.0 * np.arange(3)[:, None], TABLES[1], 0.5)  # the noise pays
SIMULATORS = {
    kind: (make(SMALL), make(CONSTANT), make(DAILY))
    for kind, make in {"JMDP": lambda jm: jm, "simulator": Plain, "arrays": arrays_of}.items()
}


def close(found, exact, state, actions):
    chosen = np.ix_(actions, actions)
    for name in ("mean", "variance"):
        truth = getattr(exact, f"gap_{name}")[state][chosen]
        error = getattr(found, f"{name}_error") + 1e-9
        assert (abs(getattr(found, name) - truth) <= 4.5 * error).all(), name
    assert (abs(found.value - exact.mean[state, actions]) <= 4.5 * found.value_error).all()


@pytest.mark.parametrize("kind", SIMULATORS)
def test_gaps_and_values_are_those_of_jipe2(kind):
    """Also beside a large constant; gaps end earlier than the returns of values.

    What a noise pays all branches cancels from gaps if it is common, and only then.
    """
    options = {"actions": [2, 0, 1], "state": 1, "num_runs": 1000}
    small, constant, daily = SIMULATORS[kind]
    for simulator, jm, more in (
        (small, SMALL, {"keep_returns": True}),
        (small, SMALL, {"coupling": "independent"}),
        (daily, DAILY, {"coupling": "common", "truncation": 1e-8}),
        (constant, CONSTANT, {}),
    ):
        exact = jl.jipe2(jm, MIXED, coupling=more.get("coupling", "joint")).moments
        found = estimate_gaps(simulator, MIXED, **options, **more, rng=0)
        close(found, exact, 1, [2, 0, 1])
        certain = found.prob_worse + found.prob_tie + found.prob_better
        assert ((certain > 0.95) & (certain <= 1.0 + 1e-12)).all()
        assert (found.value_error < 1.0).all()
    rest = 0.5**3 / 0.5 * abs(SMALL.rewards).max()  # of three steps
    short = estimate_gaps(small, MIXED, **options, horizon=3, keep_returns=True, rng=0)
    assert (short.num_runs, short.returns.shape) == (1000, (1000, 3))
    spread = short.returns.std(0, ddof=1) / np.sqrt(1000)
    assert short.value == pytest.approx(short.returns.mean(0))
    assert (short.value_error > spread + 0.5 * rest).all()
    assert short.value_error == pytest.approx(spread + rest, rel=0.2)  # rewards that were seen


def begun(env):
    """An environment at the start of an episode."""
    coupled = CoupledEnv(env, rng=1)
    coupled.reset()
    return coupled


def still(seen):
    return np.zeros(1, np.float32)


@pytest.mark.slow
def test_executors_start_where_the_environment_is():
    """Threads get deep copies of it and processes get pickles, which may forget the state."""
    importlib.import_module("mujoco")
    env = begun(gymnasium.make("InvertedPendulum-v5"))
    for _ in range(3):
        env.step(env.action_space.sample())
    options = {"num_runs": 40, "horizon": 5, "keep_returns": True, "rng": 0}
    run = partial(estimate_gaps, env, still, [np.ones(1, np.float32), still(None)], **options)
    alone = run().returns
    with ThreadPoolExecutor(2) as threads:
        for executor in (Pickles(), threads):
            assert (run(executor=executor).returns == alone).all()


class Paying(gymnasium.Env):
    """Pays by a function of itself at every step; it knows this action and the first one."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(3)

    def __init__(self, pay=lambda env: env.first, last=np.inf):
        self.pay, self.last = pay, last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.first = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.action = int(action)
        self.first = self.first if self.t else self.action
        self.t += 1
        seen = np.full(1, self.first, np.float32)
        return seen, float(self.pay(self)), self.t == self.last, False, {}


def limited(steps):
    return begun(gymnasium.wrappers.TimeLimit(Paying(), steps))


def first_action(seen):
    return [1.0, 0.0, 0.0]


def test_a_time_limit_is_no_end():
    """The gap is 1 / (1 - gamma); the tail that the limit cuts off is in the error."""
    options = {"policy": first_action, "actions": [1, 0], "gamma": 0.5}
    for steps in (1, 3, 50):
        found = estimate_gaps(limited(steps), **options, num_runs=40, horizon=20, rng=0)
        rest = 2.0 * 0.5 ** min(steps, 20)
        assert found.mean[0, 1] == pytest.approx(2.0 - rest)
        assert found.truncation_error[0, 1] == pytest.approx(rest)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of runs that do not vary
            low, high = found.interval("mean")
        assert low[0, 1] <= 2.0 <= high[0, 1] + 1e-12
        assert found.value == pytest.approx([2.0 - rest, 0.0])
        assert found.value_error == pytest.approx([rest] * 2)
    one = estimate_gaps(limited(1), **options, num_runs=3, rng=0)
    assert not np.any([one.prob_worse, one.prob_tie, one.prob_better], axis=0)[0, 1]  # it is open
    endless = estimate_gaps(limited(3), **{**options, "gamma": 1.0}, num_runs=3, horizon=5, rng=0)
    assert np.isinf([endless.truncation_error[0, 1], *endless.value_error]).all()


def test_coalesced_branches_are_final_at_a_time_limit():
    """Two actions stay in the lake's corner for good; the third ends in the goal beside it."""
    lake = gymnasium.make(
        "FrozenLake-v1", desc=["SG", "FF"], is_slippery=False, max_episode_steps=4
    )
    found = estimate_gaps(begun(lake), lambda seen: 0, [0, 3, 2], gamma=0.9, num_runs=3, rng=0)
    assert (found.truncation_error[0, 1], found.prob_tie[0, 1]) == (0.0, 1.0)
    assert found.truncation_error[0, 2] > 0.0


def once(env):
    """The first action is paid at once, then 1 a step; actions 0 and 1 are worth the same."""
    return max(env.first, 1) if env.t == 1 else 1.0


def ending():
    return begun(Paying(once, 3))


def test_an_episode_that_ends_keeps_its_return():
    env = ending()
    options = {"gamma": 0.5, "num_runs": 3, "keep_returns": True}
    found = estimate_gaps(env, first_action, [0, 1, 2], **options, rng=0)
    assert (found.returns == [1.75, 1.75, 2.75]).all()
    assert (found.mean == [[0, 0, -1], [0, 0, -1], [1, 1, 0]]).all()
    assert not found.variance.any()
    assert not found.truncation_error.any()
    env.step(2)
    later = estimate_gaps(env, first_action, [0, 1], **options, rng=0)
    assert (later.returns == 1.5).all()


class Dials:
    """Pays noise alone; an action is the next state, and some states take more numbers."""

    num_states, num_actions, gamma = 3, 3, 0.9

    def query(self, state, actions, rng):
        draw = rng.random()
        rng.random(state)
        return [draw for _ in actions], list(actions)


@pytest.mark.parametrize(("coupling", "shared"), [("independent", 0), ("joint", 1), ("common", 3)])
def test_draws_are_shared_as_long_as_the_coupling_says(coupling, shared):
    """Gaps are zero up to the last step that is shared; all draws come from `rng`."""
    for env, policy, state in (
        (begun(Paying(lambda env: env.np_random.random())), first_action, None),
        (Dials(), [0, 1, 2], 0),
    ):
        options = {"num_runs": 9, "coupling": coupling, "state": state, "keep_returns": True}
        run = partial(estimate_gaps, env, policy, [1, 2], gamma=1.0, **options, rng=0)
        found = [run(horizon=horizon) for horizon in (1, 2, 3)]
        assert [x.variance[0, 1] == 0.0 for x in found] == [h <= shared for h in (1, 2, 3)]
        first, second = (x.returns[0, 0] for x in found[:2])
        assert second != 2.0 * first
        assert found[0].value == pytest.approx(found[0].returns.mean(0))
        np.testing.assert_array_equal(run(horizon=3).returns, found[2].returns)


def failing_query(after):
    return (
        Counting(SMALL, after),
        MIXED,
        r"simulator.query\(state \d, actions \[.*licence server is gone",
    )


def failing_policy():
    """Of an environment, whose policy is called at every step."""
    calls = iter(range(40))

    def policy(seen):
        return first_action(next(calls))

    return ending(), policy, r"policy\(array.* failed: StopIteration"


def failing_step():
    def fail(env):
        if env.t == 2 and env.np_random.random() > 0.9:
            raise OSError("the cable is out")
        return once(env)

    env = ending()
    env.unwrapped.pay = fail
    return env, first_action, r"failed at state \[\d+\.\], action 0: OSError"


@pytest.mark.parametrize(
    "make",
    [partial(failing_query, 100), partial(failing_query, 2_000), failing_policy, failing_step],
)
def test_a_failure_keeps_all_runs_that_were_complete(make):
    """Also those of a chunk that is not complete."""
    simulator, policy, message = make()
    options = {"actions": [0, 1], "keep_returns": True, "gamma": 0.5, "rng": 0}
    if not isinstance(simulator, CoupledEnv):
        options["state"] = 1
    with pytest.raises(SimulatorError, match=r"time step \d+: .*" + message) as caught:
        estimate_gaps(simulator, policy, **options, num_runs=1000)
    kept = caught.value.result.returns
    assert 3 <= len(kept) < 1000
    whole, policy = (Plain(SMALL), MIXED) if "state" in options else (ending(), first_action)
    again = estimate_gaps(whole, policy, **options, num_runs=len(kept)).returns
    np.testing.assert_array_equal(kept, again)


@on_all_couplings
def test_a_run_ends_where_all_its_branches_have_coalesced(coupling):
    """The gaps are final by then; runs to the end make many more queries."""
    options = {"state": 1, "num_runs": 80, "coupling": coupling, "gamma": 0.95, "horizon": 200}
    short, long = Counting(SMALL), Counting(SMALL)
    assert estimate_gaps(short, MIXED, [0, 1, 2], **options, rng=0).returns is None
    whole = estimate_gaps(long, MIXED, [0, 1, 2], **options, keep_returns=True, rng=0)
    gaps = whole.returns[:, :, None] - whole.returns[:, None]
    np.testing.assert_allclose(gaps.mean(0), whole.mean, atol=1e-12)
    assert short.queries < 0.5 * long.queries
    assert long.queries >= 80 * 200


class Dice:
    """A game that is over by itself: throw again until a six, or stop and take what there is."""

    num_states, num_actions, gamma, reward_range = 8, 2, 1.0, (0.0, 7.0)

    def query(self, state, actions, rng):
        """State 7 is the end. Action 0 throws, for 1 unless it is a six; action 1 stops for 2."""
        six = rng.random() < 1 / 6
        throw = (0.0, 7) if six or state == 7 else (1.0, min(state + 1, 6))
        stop = (2.0 if state < 7 else 0.0, 7)
        rewards, states = zip(*([throw, stop][a] for a in actions), strict=True)
        return list(rewards), list(states)


def test_returns_without_discount_need_a_horizon():
    run, decide = (
        partial(call, Dice(), [0] * 8, [0, 1], state=0, rng=0)  # it keeps throwing
        for call in (estimate_gaps, compare_actions)
    )
    with pytest.raises(ValueError, match=r"or be 1 together with a given horizon="):
        run()
    found = run(num_runs=2000, horizon=300)
    throws = 5.0  # before a six, on average
    assert abs(found.mean[0, 1] - (throws - 2.0)) <= 4.5 * found.mean_error[0, 1]
    assert (found.truncation_error == 0.0).all()
    assert run(num_runs=3, horizon=99, keep_returns=True).law(0, 1).quantile(0.5)[0] == -99 * 7.0
    short = run(num_runs=50, horizon=2, keep_returns=True)
    assert np.isinf([short.truncation_error[0, 1], *short.law(0, 1).quantile(0.01)]).all()
    assert np.isinf(short.interval("mean")[1][0, 1])
    assert short.truncation_error[0, 0] == 0.0
    assert (short.value[1], short.value_error[1]) == (2.0, 0.0)  # of these steps
    assert np.isinf(decide(horizon=2, budget=500).intervals[0, 1]).all()
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\)"):
        jl.JMDP.from_simulator(Dice(), 10, rng=0)


def test_branches_of_an_environment_meet():
    """On the frozen lake: with episodes that end, and states that differ in their bytes."""
    lake = begun(gymnasium.make("FrozenLake-v1", max_episode_steps=-1))
    lake.unwrapped.s = 9
    before = lake.snapshot()
    exact = jl.jipe2(frozen_lake(0.7), np.full((16, 4), 0.25)).moments
    options = {"gamma": 0.7, "num_runs": 150, "truncation": 1e-2, "rng": 0}
    found = estimate_gaps(lake, lambda seen: [0.25] * 4, [0, 1, 2], **options, keep_returns=True)
    close(found, exact, 9, [0, 1, 2])
    assert lake.snapshot() == before
    assert found.truncation_error.max() < 0.02


def contains(law, exact):
    """Both are brackets: they overlap, and what was sampled is the wider one."""
    levels = product(("quantile", "cvar"), (0.05, 0.3, 0.5, 0.9, 0.999))
    for name, x in (*levels, *product(["cdf"], (-1.0, 0.0, 0.5))):
        (low, high), (least, most) = (getattr(each, name)(x) for each in (law, exact))
        assert low <= most
        assert least <= high


@pytest.mark.parametrize("horizon", [None, 4])
@pytest.mark.parametrize("kind", SIMULATORS)
def test_the_law_of_simulated_gaps_contains_the_exact_one(kind, horizon):
    """Also where much is cut off. CVaR is finite where the range of rewards is known."""
    options = {"actions": [2, 0, 1], "state": 1, "num_runs": 600, "horizon": horizon}
    for simulator, jm in zip(SIMULATORS[kind][:2], (SMALL, CONSTANT), strict=True):
        queries = [(1, 2, 0), (1, 2, 1), (1, 1, 0)]
        exact = jl.laws.gap_law(jm, MIXED, gaps=queries, width=0.01)
        found = estimate_gaps(simulator, MIXED, **options, keep_returns=True, rng=0)
        for pair, law in zip([(0, 1), (0, 2), (2, 1)], exact, strict=True):
            sampled = found.law(*pair, alpha=1e-4)
            assert (sampled.gap, sampled.confidence) == (pair, 1.0 - 1e-4)
            contains(sampled, law)
            for name in ("prob_worse", "prob_tie", "prob_better"):
                ends, (least, most) = found.interval(name, level=0.9999), getattr(law, name)
                assert ends[0][pair] <= most
                assert least <= ends[1][pair]
            finite = np.isfinite([*sampled.cvar(0.1), *sampled.quantile(0.001)])
            assert finite.tolist() == ([True] * 4 if kind == "JMDP" else [False, True] * 2)
        least, most = found.law(0, 1).quantile(0.25)
        assert found.law(1, 0).quantile(0.75)[0] <= -least
        assert most - least < 2.0 if horizon is None else most - least > 0.0


def test_a_declared_range_makes_the_bounds_of_a_gap_finite():
    low, high = SMALL.reward_range
    known = Plain(SMALL)
    known.reward_range = (low, high)
    run = partial(estimate_gaps, known, MIXED, [0, 1], state=1, rng=0)
    found = run(num_runs=50, keep_returns=True)
    assert found.largest_gap == pytest.approx(2.0 * (high - low))
    assert found.law(0, 1).quantile(1e-3)[0] == -found.largest_gap
    assert np.isfinite(found.law(0, 1).cvar(0.01)).all()
    with pytest.raises(ValueError, match="no gap was kept: pass keep_returns=True"):
        run(num_runs=5).law(0, 1)
    with pytest.raises(ValueError, match="i and j must be two actions, got 1 twice"):
        found.law(1, 1)
