"""Vectorised simulators: against exact moments and laws, plain simulators, and bad input."""

from __future__ import annotations

from functools import partial

import array_api_strict as strict
import numpy as np
import pytest
import torch
from brute import mean_and_error, normal_p_values, variance_and_error
from test_executors import Pickles

import jmdp_lib as jl
from jmdp_lib.simulators import (
    SimulatorError,
    VectorSimulator,
    compare_actions,
    estimate_gaps,
    vector,
)

COUPLINGS = ("joint", "independent", "common")
MODELS = 20


def sell(stock, order, demand):
    """The depot of the guide to one's own simulator."""
    full = np.minimum(stock + order, 11)
    sold = np.minimum(full, demand)
    return 3.0 * sold - 1.5 * order, full - sold


def demands(size, rng):
    return rng.poisson(3, size)


DEPOT = VectorSimulator(sell, demands, 5, 0.9, reward_range=(-6.0, 33.0), num_states=12)
UNIFORM = np.full((12, 5), 0.2)


class Tables:
    """A random model whose last state ends the episode; one law of tables for all states.

    As a step, it never sees that last state: what it would return there is not a number.
    """

    def __init__(self, seed, num_states=4, num_actions=4, num_tables=4):
        rng = np.random.default_rng(seed)
        shape = (num_states, num_tables, num_actions)
        self.cumulative = np.cumsum(rng.dirichlet(np.full(num_tables, 2.0)))
        self.rewards = rng.normal(size=shape)
        self.next_states = rng.integers(num_states, size=shape)
        self.rewards[-1] = 0.0
        self.next_states[-1] = num_states - 1
        self.last = num_states - 1
        probs = np.diff(self.cumulative, prepend=0.0)
        self.model = jl.JMDP(np.tile(probs, (num_states, 1)), self.rewards, self.next_states, 0.6)
        self.policy = rng.dirichlet(np.ones(num_actions), size=num_states)
        self.rewards[-1] = np.nan

    def draw(self, size, rng):
        return rng.random(size)

    def step(self, states, actions, uniforms):
        tables = np.minimum(np.searchsorted(self.cumulative, uniforms, side="right"), 3)
        where = states, tables, actions
        return self.rewards[where], self.next_states[where], self.next_states[where] == self.last

    @property
    def simulator(self):
        return VectorSimulator(self.step, self.draw, 4, 0.6, num_states=self.last + 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coupling", "actions"), [*((c, [3, 0, 1, 2]) for c in COUPLINGS), ("joint", [2, 0])]
)
def test_gaps_of_random_models_are_those_of_jipe2_and_their_laws(coupling, actions):
    """With ends of episodes; all scores together must look like draws of N(0, 1)."""
    scores = []
    for seed in range(MODELS):
        made = Tables(seed)
        found = estimate_gaps(
            made.simulator,
            made.policy,
            actions,
            state=1,
            num_runs=4000,
            coupling=coupling,
            truncation=1e-6,
            rng=seed,
        )
        exact = jl.jipe2(made.model, made.policy, coupling=coupling).moments
        for name in ("mean", "variance"):
            truth = getattr(exact, f"gap_{name}")[1, actions[0], actions[-1]]
            off = getattr(found, name)[0, -1] - truth
            scores.append(off / getattr(found, f"{name}_error")[0, -1])
        if seed % 3 == len(actions) - 2:  # laws take their time: of every third model
            queries = [(1, actions[0], actions[-1])]
            (law,) = jl.laws.gap_law(
                made.model, made.policy, gaps=queries, width=0.05, coupling=coupling
            )
            low, high = found.interval("prob_worse", level=0.99999)
            assert low[0, -1] <= law.prob_worse[1]
            assert high[0, -1] >= law.prob_worse[0]
    assert min(normal_p_values(np.array(scores))) > 1e-3


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(vector, "_CHUNK", 300)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_sums_give_the_statistics_of_all_returns(coupling, small_chunks):
    asked = {"num_runs": 2000, "coupling": coupling, "horizon": 20, "keep_returns": True}
    kept = estimate_gaps(DEPOT, UNIFORM, [2, 1, 4], state=5, **asked, rng=0)
    assert kept.returns.shape == (2000, 3)
    gaps = kept.returns[:, :, None] - kept.returns[:, None]
    errors = [of(gaps)[1] for of in (mean_and_error, variance_and_error)]
    expected = [gaps.mean(0), errors[0], gaps.var(0, ddof=1), errors[1]]
    names = ("mean", "mean_error", "variance", "variance_error")
    for name, values in zip(names, expected, strict=True):
        assert np.allclose(getattr(kept, name), values, rtol=1e-9, atol=1e-9), name
    assert np.allclose(kept.prob_worse + kept.prob_tie + kept.prob_better, 1.0)
    assert (kept.prob_worse == kept.prob_better.T).all()


def test_it_pickles(small_chunks):
    asked = partial(estimate_gaps, actions=[2, 1], state=5, num_runs=1000, rng=0)
    found = asked(DEPOT, UNIFORM, executor=Pickles())
    assert (found.variance == asked(DEPOT, UNIFORM).variance).all()
    unpicklable = VectorSimulator(
        lambda s, a, n: sell(s, a, n), demands, 5, 0.9, reward_range=None, num_states=12
    )
    with pytest.raises(SimulatorError, match=r"executor failed: .*pickle.*\(0 runs"):
        asked(unpicklable, UNIFORM, executor=Pickles())


def depot_of(library):
    """The depot in another array library: the simulator, and a state of 5."""
    if library == "numpy":
        return DEPOT, 5
    if library == "strict":

        def strict_sell(stock, order, demand):
            full = strict.minimum(stock + order, strict.asarray(11))
            sold = strict.minimum(full, demand)
            paid = 3.0 * strict.astype(sold, strict.float64)
            return paid - 1.5 * strict.astype(order, strict.float64), full - sold

        def strict_demands(size, rng):
            return strict.asarray(rng.poisson(3, size))

        return VectorSimulator(strict_sell, strict_demands, 5, 0.9), strict.asarray(5)
    torch = pytest.importorskip("torch")

    def torch_sell(stock, order, demand):
        full = torch.clamp(stock + order, max=11)
        sold = torch.minimum(full, demand)
        return 3.0 * sold - 1.5 * order, full - sold

    def torch_demands(size, rng):
        return torch.poisson(torch.full((size,), 3.0), generator=rng).to(torch.int32)

    state = torch.tensor(5, dtype=torch.int32)
    return VectorSimulator(torch_sell, torch_demands, 5, 0.9), state


@pytest.mark.slow
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("library", ["numpy", "torch", "strict"])
def test_array_libraries_agree(library, coupling):
    sim, state = depot_of(library)
    asked = partial(estimate_gaps, sim, UNIFORM, [2, 1], num_runs=8000, rng=0)
    how = {"state": state, "coupling": coupling}
    found = asked(**how)
    assert (found.mean == asked(**how).mean).all()
    known = {"joint": 28.123, "independent": 34.990, "common": 15.581}[coupling]  # by `jipe2`
    assert abs(found.variance[0, 1] - known) <= 4.0 * found.variance_error[0, 1]
    assert abs(found.mean[0, 1] - 0.378) <= 4.0 * found.mean_error[0, 1]


def test_a_gpu_computes_with_narrow_types(monkeypatch):
    """Its types and its chunks, tried on a processor."""
    torch = pytest.importorskip("torch")
    from jmdp_lib.simulators.batch import Arrays

    monkeypatch.setattr(Arrays, "on_gpu", True)
    monkeypatch.setattr(vector, "_GPU_CHUNK", 3000)
    sim, state = depot_of("torch")
    found = estimate_gaps(sim, torch.tensor(UNIFORM), [2, 1], state=state, num_runs=20_000, rng=0)
    assert abs(found.variance[0, 1] - 28.123) <= 4.0 * found.variance_error[0, 1]


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_other_forms_of_one_simulator_give_the_same_numbers(coupling):
    """Rows as states and as noise, a function that returns probabilities or actions."""

    def step(rows, order, noise):
        paid, left = sell(rows[:, 1], order, noise[:, 1])
        return paid, np.stack([left, left], axis=1)

    def draw(size, rng):
        demand = demands(size, rng)
        return np.stack([0 * demand, demand], axis=1)

    asked = {"actions": [2, 1], "num_runs": 2000, "coupling": coupling}
    orders = np.clip(6 - np.arange(12), 0, 4)
    for table in (orders, UNIFORM):
        known = estimate_gaps(DEPOT, table, state=5, **asked, rng=0)
        rows = VectorSimulator(step, draw, 5, 0.9)
        found = [
            estimate_gaps(
                rows, lambda x, table=table: table[x[:, 0]], state=[5, 5], **asked, rng=0
            ),
            estimate_gaps(DEPOT, table.__getitem__, state=5, **asked, rng=0),
        ]
        for other in found:
            assert np.allclose([other.mean, other.variance], [known.mean, known.variance])


def test_one_action_has_no_gaps_but_returns():
    found = estimate_gaps(DEPOT, UNIFORM, [2], state=5, num_runs=500, keep_returns=True, rng=0)
    assert found.mean.tolist() == [[0.0]]
    assert found.prob_tie.tolist() == [[1.0]]
    assert found.returns.shape == (500, 1)


COUNT = {"calls": 0}


@pytest.mark.parametrize("part", ["step", "policy"])
def test_rare_draws_from_a_global_generator_are_noticed(part):
    torch = pytest.importorskip("torch")

    def step(states, actions, noise):
        lucky = part == "step" and float(torch.rand(())) > 2.0
        return sell(states, actions, noise)[0] + lucky, states

    def policy(states):
        lucky = part == "policy" and np.random.random() > 2.0  # noqa: NPY002
        return np.full(states.shape, int(lucky))

    sim = VectorSimulator(step, DEPOT.draw, 5, 0.9)
    with pytest.raises(ValueError, match="step or policy draws from a global generator"):
        estimate_gaps(sim, policy, [0, 1], state=5, num_runs=3, rng=0)


def impure(states, actions, noise):
    COUNT["calls"] += 1
    return sell(states, actions, noise)[0] + COUNT["calls"], states


def mixing_rows(states, actions, noise):
    rewards, following = sell(states, actions, noise)
    return rewards + 0.01 * rewards.mean(), following


LUCK = np.random.default_rng(0).random(10_000)


def with_luck(states, actions, noise):
    rewards, following = sell(states, actions, noise)
    return rewards - LUCK[: len(rewards)], following  # a row keeps its luck


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


BAD = {
    "short": (
        lambda s, a, n: tuple(x[:-1] for x in sell(s, a, n)),
        r"rewards of a step must be an array of shape \(16,\), got shape \(15,\)",
    ),
    "one number": (lambda s, a, n: (1.0, s), r"rewards of a step must be .* got 1.0"),
    "nothing": (lambda s, a, n: None, r"must return rewards and next states.*NoneType"),
    "wide": (
        lambda s, a, n: (1.0 * s, np.stack([s, s], 1)),
        r"next_states of a step must be .*\(16,\), got shape \(16, 2\)",
    ),
    "nan": (
        after(lambda r, s, x: (put(r, x == 9, np.nan), s)),
        r"step returned rewards\[\d+\] = nan, .*not from -6 to 33 \(state 9, action",
    ),
    "range": (
        after(lambda r, s, x: (put(r, x == 9, 50.0), s)),
        r"rewards\[\d+\] = 50.0, which is not from -6 to 33 \(state 9",
    ),
    "states": (
        after(lambda r, s, x: (r, put(s, x == 9, 12))),
        r"next_states\[\d+\] = 12, which is not from 0 to 11 \(state 9",
    ),
    "over": (
        lambda s, a, n: (*sell(s, a, n), np.zeros(3, bool)),
        r"over of a step must .* got shape \(3,\)",
    ),
    "over as numbers": (
        lambda s, a, n: (*sell(s, a, n), np.zeros(len(s), int)),
        "step returned over of dtype int64, not bool",
    ),
    "fractions": (
        after(lambda r, s, x: (r, 0.5 * s)),
        r"next_states of dtype float64, not integral",
    ),
    "swapped": (after(lambda r, s, x: (s, r)), r"next_states of dtype float64, not integral"),
    "impure": (impure, r"step must be pure.*rewards\[\d+\]"),
    "mixing": (mixing_rows, r"no row may depend on another one.*rewards\[\d+\]"),
    "memory": (with_luck, r"no row may depend on another one.*rewards\[\d+\]"),
    "torch": (
        lambda s, a, n: (torch.zeros(len(s)), s),
        r"rewards of a step must be an array of the same library as state=.*numpy.*got .*torch",
    ),
    "fails": (after(fails_in_nine), r"time step .*step\(.*ZeroDivisionError"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_step_is_refused_by_row(case):
    step, message = BAD[case]
    sim = VectorSimulator(step, demands, 5, 0.9, reward_range=(-6.0, 33.0), num_states=12)
    with pytest.raises(SimulatorError, match=message):
        estimate_gaps(sim, UNIFORM, [2, 1], state=5, num_runs=2000, rng=0)


BAD_DRAWS = {
    "short": (lambda n, rng: rng.poisson(3, n - 1), r"draw\(\d+, rng\) must be .*got shape \("),
    "torch": (lambda n, rng: torch.zeros(n), r"draw\(16, rng\) must be an array of the same lib"),
    "number": (lambda n, rng: 3, r"draw\(\d+, rng\) must be .*got 3"),
    "tuple": (lambda n, rng: (rng.poisson(3, n), np.zeros(2)), r"shape \(16,\), got \(array"),
    "global": (
        lambda n, rng: np.random.default_rng().poisson(3, n),
        r"draw\(n, rng\) must be pure",
    ),
}


@pytest.mark.parametrize("case", BAD_DRAWS)
def test_a_bad_draw_is_refused(case):
    draw, message = BAD_DRAWS[case]
    sim = VectorSimulator(sell, draw, 5, 0.9, num_states=12)
    with pytest.raises(ValueError, match=message):
        estimate_gaps(sim, UNIFORM, [2, 1], state=5, rng=0)


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


BAD_POLICIES = {
    "sum": (
        rarely([0.5, 0.1, 0.1, 0.1, 0.1]),
        r"policy returned sums\[\d+\] = 0.* from 1 to 1 \(state 9",
    ),
    "negative": (
        rarely([-0.2, 0.6, 0.2, 0.2, 0.2]),
        r"returned probabilities\[\d+\] = .* from 0 .*\(state 9",
    ),
    "action": (lambda s: np.where(s == 3, 5, 1), r"actions\[\d+\] = 5, .* from 0 to 4 \(state 3\)"),
    "shape": (lambda s: np.full((3, 5), 0.2), r"policy\(states\) must return.*shape \(3, 5\)"),
    "floats": (lambda s: 1.0 * s, r"policy\(states\) must return probabilities.*float64"),
    "draws": (lambda s: np.random.default_rng().integers(5, size=len(s)), "policy must be pure"),
    "rows": (lambda s: np.arange(len(s)) % 5, r"depend on another one, but actions\["),
    "torch": (
        lambda s: torch.zeros(len(s), dtype=torch.int64),
        r"policy\(states\) must be an array of the same library",
    ),
    "writes": (writes, r"policy\(states\) failed: ValueError\('.* is read-only'\)"),
}


@pytest.mark.parametrize("case", BAD_POLICIES)
def test_a_bad_policy_is_refused_by_row(case):
    policy, message = BAD_POLICIES[case]
    with pytest.raises(SimulatorError, match=message):
        estimate_gaps(DEPOT, policy, [2, 1], state=5, num_runs=2000, rng=0)


def test_a_policy_may_not_write_into_tensors():
    sim, state = depot_of("torch")
    with pytest.raises(SimulatorError, match=r"not write into states.* but states\[\d+\] was"):
        estimate_gaps(sim, lambda s: 0 * s.clamp_(max=3), [2, 1], state=state, rng=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step": 3}, "step must be a function"),
        ({"draw": None}, "draw must be a function"),
        ({"num_actions": 0}, "num_actions must be at least 1"),
        ({"gamma": 1.1}, "gamma must lie"),
        ({"reward_range": (1, 0)}, "lo <= hi"),
        ({"num_states": 0}, "num_states must be"),
    ],
)
def test_bad_simulators_are_refused(changed, message):
    good = {"step": sell, "draw": demands, "num_actions": 5, "gamma": 0.9}
    with pytest.raises(ValueError, match=message):
        VectorSimulator(**good | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state": None}, "state= must be given: .* to estimate_gaps of a JMDP"),
        ({"state": 12}, "state 12 is out of range"),
        ({"state": 2.5}, "states must be integers"),
        ({"state": [[1, 2]]}, "state must be a number"),
        ({"actions": [2, 5]}, "action 5 is out of range"),
        ({"policy": UNIFORM[:, :3]}, "policy must have shape"),
        ({"policy": 0.9 * UNIFORM}, "sum of policy.*is not one"),
    ],
)
def test_bad_arguments_are_refused(changed, message):
    with pytest.raises((ValueError, IndexError), match=message):
        estimate_gaps(DEPOT, **{"policy": UNIFORM, "actions": [2, 1], "state": 5} | changed, rng=0)


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
