"""Vectorised simulators: against exact moments and laws, plain simulators, and bad input."""

from functools import partial

import array_api_strict as strict
import numpy as np
import pytest
import torch
from array_api_compat import torch as array_torch
from strategies import on_all_couplings
from test_executors import Pickles

from jmdp_lib.simulators import (
    SimulatorError,
    VectorSimulator,
    compare_actions,
    estimate_gaps,
    vector,
)


def sell(stock, order, demand):
    """The depot of the guide to one's own simulator."""
    full = np.minimum(stock + order, 11)
    sold = np.minimum(full, demand)
    return 3.0 * sold - 1.5 * order, full - sold


def demands(size, rng):
    return rng.poisson(3, size)


DEPOT = VectorSimulator(sell, demands, 5, 0.9, reward_range=(-6.0, 33.0), num_states=12)
UNIFORM = np.full((12, 5), 0.2)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(vector.VectorWorld, "chunk", 300)


def test_it_pickles(small_chunks):
    run = partial(estimate_gaps, actions=[2, 1], state=5, num_runs=1000, rng=0)
    found = run(DEPOT, UNIFORM, executor=Pickles())
    assert (found.variance == run(DEPOT, UNIFORM).variance).all()


def depot_of(xp):
    """The depot in another array library: the simulator, and a state of 5."""

    def sell(stock, order, demand):
        full = xp.minimum(stock + order, xp.asarray(11, dtype=xp.int32))
        sold = xp.minimum(full, demand)
        paid = 3.0 * xp.astype(sold, xp.float64)
        return paid - 1.5 * xp.astype(order, xp.float64), full - sold

    def draw(size, rng):
        if xp is array_torch:
            return torch.poisson(torch.full((size,), 3.0), generator=rng).to(torch.int32)
        return xp.asarray(rng.poisson(3, size), dtype=xp.int32)

    return VectorSimulator(sell, draw, 5, 0.9), xp.asarray(5, dtype=xp.int32)


@pytest.mark.slow
@on_all_couplings
@pytest.mark.parametrize("library", [array_torch, strict], ids=["torch", "strict"])
def test_array_libraries_agree(library, coupling):
    sim, state = depot_of(library)
    run = partial(estimate_gaps, sim, UNIFORM, [2, 1], num_runs=8000, rng=0)
    how = {"state": state, "coupling": coupling}
    found = run(**how)
    assert (found.mean == run(**how).mean).all()
    known = {"joint": 28.123, "independent": 34.990, "common": 15.581}[coupling]  # by `jipe2`
    assert abs(found.variance[0, 1] - known) <= 4.0 * found.variance_error[0, 1]
    assert abs(found.mean[0, 1] - 0.378) <= 4.0 * found.mean_error[0, 1]


def test_a_gpu_computes_with_narrow_types(monkeypatch):
    """Its types and its chunks, tried on a processor."""
    from jmdp_lib.simulators.batches import Arrays

    monkeypatch.setattr(Arrays, "on_gpu", True)
    monkeypatch.setattr(vector, "_GPU_CHUNK", 3000)
    sim, state = depot_of(array_torch)
    found = estimate_gaps(sim, torch.tensor(UNIFORM), [2, 1], state=state, num_runs=20_000, rng=0)
    assert abs(found.variance[0, 1] - 28.123) <= 4.0 * found.variance_error[0, 1]


def test_an_array_that_a_draw_returns_stays_as_it_is():
    drawn = np.arange(100_000) % 7
    sim = VectorSimulator(sell, lambda n, rng: drawn[:n], 5, 0.9)
    estimate_gaps(sim, UNIFORM, [2, 1], state=5, num_runs=500, rng=0)
    assert (drawn == np.arange(100_000) % 7).all()


@on_all_couplings
def test_other_forms_of_one_simulator_give_the_same_numbers(coupling):
    """Rows as states and as noise, a function that returns probabilities or actions."""

    def step(rows, order, noise):
        paid, left = sell(rows[:, 1], order, noise[:, 1])
        return paid, np.stack([left, left], axis=1)

    def draw(size, rng):
        demand = demands(size, rng)
        return np.stack([0 * demand, demand], axis=1)

    options = {"actions": [2, 1], "num_runs": 2000, "coupling": coupling}
    orders = np.clip(6 - np.arange(12), 0, 4)
    for table in (orders, UNIFORM):
        known = estimate_gaps(DEPOT, table, state=5, **options, rng=0)
        rows = VectorSimulator(step, draw, 5, 0.9)
        found = [
            estimate_gaps(
                rows, lambda x, table=table: table[x[:, 0]], state=[5, 5], **options, rng=0
            ),
            estimate_gaps(DEPOT, table.__getitem__, state=5, **options, rng=0),
        ]
        for other in found:
            assert np.allclose([other.mean, other.variance], [known.mean, known.variance])


def draws_globally(states, actions, noise):
    return sell(states, actions, noise)[0] + (float(torch.rand(())) > 2.0), states


def mixing_rows(states, actions, noise):
    rewards, following = sell(states, actions, noise)
    return rewards + 0.01 * rewards.mean(), following


def after(change):
    """A step whose results are changed; by `put`, in states that a run reaches later alone."""

    def step(states, actions, noise):
        rewards, following = sell(states, actions, noise)
        return change(rewards.copy(), following.copy(), states)

    return step


def put(array, where, value):
    array[where] = value
    return array


def fails_in_nine(rewards, following, states):
    return 1 / 0 if (states == 9).any() else (rewards, following)


def rarely(bad):
    """A policy that is wrong in state 9 alone."""

    def policy(states):
        probs = np.full((len(states), 5), 0.2)
        probs[states == 9] = bad
        return probs

    return policy


def writes(states):
    states[states > 5] = 5
    return np.ones_like(states)


BAD = {
    "step": {
        "short": (
            lambda s, a, n: tuple(x[:-1] for x in sell(s, a, n)),
            r"rewards of a step must be an array \(32,\) of the same .*, got .*ndarray.* \(31,\)",
        ),
        "nothing": (lambda s, a, n: None, r"must return rewards and next states.*NoneType"),
        "nan": (
            after(lambda r, s, x: (put(r, x == 9, np.nan), s)),
            r"step returned rewards nan, .*not between -6 and 33 \(state 9, action \d, draw \d+\)",
        ),
        "range": (
            after(lambda r, s, x: (put(r, x == 9, 50.0), s)),
            r"rewards 50.0, which is not between -6 and 33 \(state 9",
        ),
        "states": (
            after(lambda r, s, x: (r, put(s, x == 9, 12))),
            r"next_states 12, which is not between 0 and 11 \(state 9",
        ),
        "over": (
            lambda s, a, n: (*sell(s, a, n), np.zeros(len(s), int)),
            "step returned over of dtype int64, not bool",
        ),
        "swapped": (after(lambda r, s, x: (s, r)), r"next_states of dtype float64, not integral"),
        "mixing": (
            mixing_rows,
            r"step must be pure.* no row may depend on another one.* rewards were .* and then .* "
            r"\(state 5, action 2, draw",
        ),
        "global": (draws_globally, "step or policy draws from a global generator"),
        "fails": (after(fails_in_nine), r"time step .*step\(.*ZeroDivisionError"),
    },
    "draw": {
        "short": (
            lambda n, rng: rng.poisson(3, n - 1),
            r"draw\(\d+, rng\) must be .*got .*ndarray.* \(\d+,\)",
        ),
        "number": (lambda n, rng: 3, r"draw\(\d+, rng\) must be .*got .*int.* 3"),
        "global": (
            lambda n, rng: np.random.default_rng().poisson(3, n),
            r"draw\(n, rng\) must be pure",
        ),
    },
    "policy": {
        "sum": (
            rarely([0.5, 0.1, 0.1, 0.1, 0.1]),
            r"policy returned sums 0.* between 1 and 1 \(state 9",
        ),
        "negative": (
            rarely([-0.2, 0.6, 0.2, 0.2, 0.2]),
            r"returned probabilities .* between 0 .*\(state 9",
        ),
        "action": (
            lambda s: np.where(s == 3, 5, 1),
            r"actions 5, .* between 0 and 4 \(state 3\)",
        ),
        "shape": (
            lambda s: np.full((3, 5), 0.2),
            r"policy\(states\), unless .* must be an array \(\d+, 5\).* \(3, 5\)",
        ),
        "rows": (lambda s: np.arange(len(s)) % 5, r"depend on another one, but actions were"),
        "torch": (
            lambda s: torch.zeros(len(s), dtype=torch.int64),
            r"actions of policy\(states\) must be .* same library as state=.*numpy.*got .*torch",
        ),
        "writes": (writes, r"policy\(states\) failed: ValueError\('.* is read-only'\)"),
    },
}


@pytest.mark.parametrize(("part", "case"), [(part, case) for part in BAD for case in BAD[part]])
def test_a_bad_part_is_refused(part, case):
    function, message = BAD[part][case]
    parts = {"step": sell, "draw": demands, "policy": UNIFORM} | {part: function}
    policy = parts.pop("policy")
    known = {"num_actions": 5, "gamma": 0.9, "reward_range": (-6.0, 33.0), "num_states": 12}
    with pytest.raises(ValueError, match=message):
        estimate_gaps(
            VectorSimulator(**parts, **known), policy, [2, 1], state=5, num_runs=2000, rng=0
        )


def test_a_policy_may_not_write_into_tensors():
    sim, state = depot_of(array_torch)
    with pytest.raises(SimulatorError, match=r"not write into states.* but states were"):
        estimate_gaps(sim, lambda s: 0 * s.clamp_(max=3), [2, 1], state=state, rng=0)


def test_small_states_may_have_many_actions():
    """Actions have the small type of the states only if all of them fit."""
    paid = VectorSimulator(lambda s, a, u: (a + u, s), coins, 300, gamma=0.5)
    gaps = estimate_gaps(paid, [0] * 5, [200, 1], state=np.int8(3), num_runs=10, rng=0)
    assert gaps.mean[0, 1] == pytest.approx(199.0)


def coins(size, rng):
    return rng.random(size)


def test_episodes_that_end_pay_nothing_afterwards():
    """So returns are lower than the lowest reward suggests: a range of (1, 1) leaves gaps open."""

    def toll(states, actions, uniforms):
        """Every step pays 1; action 1 ends the game, and so do half of the draws."""
        return np.ones(len(states)), states, (uniforms < 0.5) | (actions == 1)

    sim = VectorSimulator(toll, coins, 2, 0.9, reward_range=(1.0, 1.0), num_states=1)
    found = compare_actions(sim, [0], [0, 1], state=0, budget=20_000, rng=0)
    assert (found.verdict, found.best) == ("better", 0)
    exact = 0.9 * 0.5 / (1.0 - 0.9 * 0.5)  # what comes after the first step, if it comes
    low, high = found.intervals[0, 1]
    assert low <= exact <= high
    never = VectorSimulator(lambda *x: (*toll(*x)[:2], x[2] < 0.0), coins, 2, 0.9, num_states=1)
    cut = estimate_gaps(never, [[0.5, 0.5]], [0, 1], state=0, num_runs=10, horizon=2, rng=0)
    assert cut.truncation_error[0, 1] > 0.0
