"""Bad input: refused before any work, by a message that names the array, the state, the action."""

from __future__ import annotations

import importlib
import random
from itertools import count

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.fast import MultisetOperator

GRID = jl.windy_gridworld(3)
GOAL = jl.goal_policy(3)
CALLS = count()
NEAR_ONE = jl.windy_gridworld(3, gamma=1 - 1e-10)


def tables(probs=None, rewards=None, successors=None, gamma=0.9):
    """A good two-state, two-table, two-action model with one array replaced."""
    return jl.JMDP(
        [[0.5, 0.5], [1.0, 0.0]] if probs is None else probs,
        np.zeros((2, 2, 2)) if rewards is None else rewards,
        np.zeros((2, 2, 2), dtype=int) if successors is None else successors,
        gamma,
    )


def with_entry(value, index, dtype=float):
    array = np.zeros((2, 2, 2), dtype=dtype)
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probs": [[0.5, 0.5], [1.5, -0.5]]}, r"table_probs\[1, 1\] \(state 1, table 1\) = -0.5"),
        ({"probs": [[0.5, 0.5], [0.5, 0.4]]}, r"sum of table_probs\[1\] \(state 1\) = 0.9"),
        ({"probs": [0.5, 0.5]}, r"table_probs must have shape \(state, table\)"),
        ({"probs": [["a", "b"], ["c", "d"]]}, "table_probs must hold real numbers"),
        ({"probs": [[0.5, 0.5], [1.0]]}, "ragged"),
        (
            {"rewards": with_entry(np.inf, (1, 0, 1))},
            r"rewards\[1, 0, 1\] \(state 1, table 0, action 1\)",
        ),
        ({"rewards": np.zeros((2, 3, 2))}, r"rewards must have shape \(state = 2, table = 2, "),
        ({"rewards": np.zeros((2, 2, 0))}, "rewards must have shape .* and not be empty"),
        (
            {"successors": with_entry(2, (0, 1, 1), int)},
            r"next_states\[0, 1, 1\] \(state 0, table 1, action 1\) = 2 is not in range\(2\)",
        ),
        ({"successors": with_entry(-1, (1, 1, 0), int)}, r"next_states\[1, 1, 0\].*= -1"),
        ({"successors": np.zeros((2, 2, 2))}, "next_states must hold integers"),
        ({"successors": np.zeros((2, 2, 3), dtype=int)}, "next_states must have shape"),
        ({"gamma": 1.0}, "gamma must lie in"),
        ({"gamma": float("nan")}, "gamma must lie in"),
        ({"gamma": "0.9"}, "gamma must be a real number"),
    ],
)
def test_model_arrays(change, message):
    with pytest.raises(ValueError, match=message):
        tables(**change)


@pytest.mark.parametrize("room", ["laws", "large", "simulators"])
def test_an_error_says_where_a_name_is(room):
    names = getattr(jl, room).__all__
    for name in names:
        with pytest.raises(AttributeError, match=rf"^jl\.{name} is now jl\.{room}\.{name}$"):
            getattr(jl, name)
    assert {*names} <= {*dir(getattr(jl, room))}
    for other in ("gap_lore", "_gap_law"):
        with pytest.raises(AttributeError, match=f"No jmdp_lib attribute {other}"):
            getattr(jl, other)


def test_gamma_is_checked_before_any_work():
    calls = []
    with pytest.raises(ValueError, match="gamma"):
        jl.JMDP.from_step(2, 2, 2.0, [1.0], lambda s, a, u: calls.append(s))
    assert calls == []


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s, a, u: (0.0, 5), r"step\(state 0, action 0, noise 0\).*5 is out of range"),
        (lambda s, a, u: 0.0, r"step\(state 0, action 0, noise 0\)"),
        (lambda s, a, u: ("1.5", 0), "reward must be a real number, got '1.5'"),
        (
            lambda s, a, u: (np.nan if a else 0.0, 0),
            r"action 1, noise 0.*in \(-inf, inf\), got nan",
        ),
        (lambda s, a, u: (s, 0.5), r"\(reward, next_state\), in this order.*got 0.5"),
        (lambda s, a, u: {}[u - 1], r"step\(state 0, action 0, noise 0\).*KeyError"),
        (lambda s, a, u: (np.random.rand(), 0), "noise 0\\) draws from a global generator"),  # noqa: NPY002
        (lambda s, a, u: (random.random(), 0), "noise 0\\) draws from a global generator"),
        (lambda s, a, u: (next(CALLS), 0), r"gave \(0.0, 0\) and then \(1.0, 0\)"),
    ],
)
def test_step_functions(step, message):
    with pytest.raises(ValueError, match=message) as caught:
        jl.JMDP.from_step(2, 2, 0.9, [0.5, 0.5], step)
    assert isinstance(caught.value.__cause__, KeyError) == ("KeyError" in message)


HALVES = np.full((2, 2, 2), 0.5)
PAYS = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("state", "actions", "error", "message"),
    [
        (9, [0], IndexError, "state 9 is out of range: there are 9"),
        (0, [4], IndexError, "action 4 is out of range: there are 4"),
        (True, [0], IndexError, "state must be an integer, got True"),
        (0, [1, 2, 1], ValueError, r"distinct, got \[1, 2, 1\]"),
        (0, [], ValueError, "at least one action"),
        (0, None, ValueError, "actions must be a sequence of actions, got None"),
    ],
)
def test_queries(state, actions, error, message):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    with pytest.raises(error, match=message):
        GRID.query(state, actions, rng)
    assert rng.bit_generator.state == before  # nothing was drawn


def bad_policies():
    row = GOAL.copy()
    row[4] = [0.5, 0.4, 0.0, 0.0]
    yield row, r"sum of policy\[4\] \(state 4\) = 0.9 is not one"
    row = GOAL.copy()
    row[3] = [1.5, -0.5, 0.0, 0.0]
    yield row, r"policy\[3, 1\] \(state 3, action 1\) = -0.5 is negative"
    row = GOAL.copy()
    row[8, 2] = np.nan
    yield row, r"policy\[8, 2\] \(state 8, action 2\) = nan is not finite"
    yield GOAL[:, :3], r"policy must have shape \(state = 9, action = 4\)"
    yield [[1.0, 0.0, 0.0, 0.0], [1.0]], "policy must be an array, got a ragged list"
    either = r"policy must have shape \(state = 9, action = 4\), or be actions, integers of shape"
    for values, kind in (([0.5] * 9, "float64"), (["a"] * 9, "<U1"), ([True] * 9, "bool")):
        yield values, rf"{either} \(state = 9\), got dtype {kind} of shape \(9,\)"
    yield None, rf"{either} .* got dtype object of shape \(\)"
    yield {0: 1}, r"a function of the state as policy\.__getitem__ is one, got a dict"
    yield lambda s: s, r"policy\(4\) must be probabilities \(4,\) or an action from 0 to 3, got 4"
    yield lambda s: GOAL[s][:3], r"policy\(0\) must have shape \(action = 4\)"
    yield lambda s: GOAL[s + 1], r"policy\(8\) failed: IndexError"
    yield [0, 4, 0, 0, 0, 0, 0, 0, 0], r"policy\[1\] \(state 1\) = 4 is not in range\(4\)"


@pytest.mark.parametrize(("policy", "message"), list(bad_policies()))
@pytest.mark.parametrize(
    "evaluate",
    [
        jl.jipe2,
        jl.jipe,
        lambda jm, policy: jl.simulate_pairs(jm, policy, 0, (0, 1), 10),
        lambda jm, policy: jl.simulate_returns(jm, policy, 10),
        lambda jm, policy: jl.apply_t2(jm, policy, np.zeros((9, 4)), np.zeros((9, 4, 9, 4))),
    ],
    ids=["jipe2", "jipe", "simulate_pairs", "simulate_returns", "apply_t2"],
)
def test_policies(policy, message, evaluate):
    with pytest.raises(ValueError, match=message):
        evaluate(GRID, policy)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jl.jipe(GRID, GOAL, order=0), "order must be at least 1, got 0"),
        (
            lambda: jl.projected_jipe2(GRID, GOAL, jl.tabular_features(GRID), tol=-1.0),
            "tol must lie in",
        ),
        (lambda: jl.rbf_features(3, 0, 2), "columns must be at least 1"),
        (lambda: jl.action_features(np.ones((3, 2)), 0), "num_actions must be at least 1"),
        (lambda: jl.jipe2(GRID, GOAL, tol=0.0), "tol must lie in"),
        (lambda: jl.jipe2(GRID, GOAL, max_iterations=0), "max_iterations must be at least 1"),
        (lambda: jl.jipe2(GRID, GOAL, coupling="both"), "coupling must be one of 'joint'"),
        (lambda: jl.jipe2(GRID, GOAL, initial=(GOAL, GOAL)), "initial second must have shape"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 0, (0, 1), 0), "num_pairs must be at least 1"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 0, (0, 1, 2), 1), "pair of actions"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 0, 1, 1), "actions must be a sequence .* got 1"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 0, (0, 1), 1, horizon=0), "horizon must be"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 0, (0, 1), 1, truncation=0), "truncation must"),
        (lambda: jl.simulate_returns(GRID, GOAL, 0), "num_samples must be at least 1"),
        (lambda: jl.simulate_returns(GRID, GOAL, 1, truncation=1.0), "truncation must lie in"),
        (
            lambda: jl.simulators.estimate_gaps(GRID, GOAL, [(0, 0, 1)], truncation=2.0),
            r"truncation must lie in \(0, 1\)",
        ),
        (lambda: jl.simulate_returns(GRID, GOAL, 1, coupling="both"), "coupling must be one of"),
        (lambda: jl.windy_gridworld(0), "size must be at least 1"),
        (lambda: jl.windy_gridworld(3, gust_prob=1.2), "gust_prob must lie in"),
        (lambda: jl.windy_gridworld(3, gust="up"), "gust must be one of 'U'"),
        (lambda: jl.coupled_reward_chain(3, rewards="big"), "rewards must be one of 'unit'"),
        (lambda: jl.coupled_reward_chain(0), "num_states must be at least 1"),
        (lambda: jl.epsilon_mixture(GOAL, 2.0), "epsilon must lie in"),
        (lambda: jl.inventory(lead_time=-1), "lead_time must be at least 0"),
        (lambda: jl.inventory(price=np.nan), r"price must lie in \(-inf, inf\), got nan"),
        (lambda: jl.inventory(lost_sale_cost="2"), "lost_sale_cost must be a real number"),
        (
            lambda: jl.simulators.StepSimulator(1, 2, 0.9, [0.5, 0.6], never),
            "sum of noise_probs = 1.1 is not one",
        ),
        (lambda: jl.uniform_policy(None), "a JMDP or a simulator .* is needed, got None"),
        (lambda: jl.inventory(demand_probs=[0.5, 0.6]), "sum of demand_probs = 1.1 is not one"),
        (lambda: jl.apply_t2(GRID, GOAL, GOAL, np.zeros((9, 4, 9, 3))), "second must have shape"),
        (lambda: jl.contraction_modulus(0, 0.9), "order must be at least 1"),
        (lambda: jl.norm_weight(2, 0.9, -1.0), "reward_bound must lie in"),
        (lambda: jl.cantelli_bound(1.0, -2.0), "variance must not be negative"),
        (lambda: jl.jipe2(GRID, GOAL, tol="small"), "tol must be a real number"),
        (lambda: jl.jipe2(GRID, GOAL, initial=3), "initial must be moments"),
        (
            lambda: jl.JMDP.from_tables([0, 1], [1, 1], [[0], [1]], [[1], [0]], 3, 0.9),
            "sum of probs",
        ),
        (
            lambda: jl.JMDP.from_tables([0, 1], [1, 1], [[0], [1]], [[0], [0]], 1, 0.9),
            r"states\[1\] \(table 1\) = 1 is not in range\(1\)",
        ),
        (
            lambda: jl.JMDP.from_mdp(HALVES - [[[0], [0]], [[0.1], [0]]], PAYS, 0.9),
            r"sum of transition_probs\[1, 0\] \(state 1, action 0\)",
        ),
        (
            lambda: jl.JMDP.from_mdp(HALVES, np.zeros((2, 3)), 0.9),
            r"rewards must have shape \(state = 2, action = 2\)",
        ),
        (
            lambda: jl.JMDP.from_mdp(np.full((2, 2, 4), 0.25), PAYS, 0.9),
            r"transition_probs must have shape .* = \(2, 2, 2\)",
        ),
        (
            lambda: jl.JMDP.from_mdp(HALVES, PAYS, 0.9, joint="independent"),
            "joint must be .quantile., got 'independent'; .* pass coupling",
        ),
        (
            lambda: jl.incremental_jipe2(object(), GOAL, 10),
            "<object .* is no simulator: it has no num_states, num_actions, gamma, query",
        ),
        (
            lambda: jl.incremental_jipe2(Depot(never, reward_range=(1.0, -1.0)), [0] * 6, 10),
            r"simulator\.reward_range must be \(lo, hi\)",
        ),
        (lambda: jl.simulate_pairs(NEAR_ONE, GOAL, 4, (0, 1), 1), r"gamma = 0.99.* horizon= to"),
        (lambda: jl.simulate_returns(NEAR_ONE, GOAL, 1), r"gamma = 0.99.* larger truncation="),
        (
            lambda: jl.simulators.estimate_gaps(GRID, GOAL, [0, 1], state=4, gamma=0.999999),
            r"gamma = 0.999999 .* 6,907,752 steps, more than 1,000,000: pass horizon=",
        ),
        (
            lambda: jl.simulators.compare_actions(NEAR_ONE, GOAL, [0, 1], 4),
            r"gamma = 0.99.*: pass horizon=",
        ),
        (
            lambda: jl.laws.gap_law(GRID, GOAL, (4, 0, 2)),
            r"rows \(state, a, b\), \(N, 3\): did you mean \[\(4, 0, 2\)\]\?",
        ),
        (lambda: jl.laws.gap_law(GRID, GOAL, []), r"at least one row \(state, a, b\), got \[\]"),
        (lambda: jl.simulators.compare_policies(GRID, [], 4), r"at least one policy, got \[\]"),
        (
            lambda: jl.simulators.compare_policies(GRID, None, 4),
            "policies must be a sequence of policies, got None",
        ),
        (
            lambda: jl.simulators.estimate_gaps(Depot(), [0] * 6, [(5, 2, 1)]),
            r"state= must be given: .* estimate_gaps of a JMDP alone",
        ),
        (lambda: jl.cantelli_bound(np.nan, 1), r"mean\[0\] \(entry 0\) = nan is not finite"),
        (lambda: jl.cantelli_bound(1, np.inf), r"variance\[0\] \(entry 0\) = inf is not finite"),
        (
            lambda: jl.JMDP([[1.0]], [[[1e-200, -1e-180]]], [[[0, 0]]], 0.9),
            "rewards: the largest absolute reward, 1e-180, leaves no room .* between 1e-100 and",
        ),
        (
            lambda: jl.large.ImplicitJMDP(lambda s: s, 1, 0.9, (0.0, 1e-200)),
            "reward_range: the largest absolute reward, 1e-200, leaves no room",
        ),
        (lambda: jl.large.local_jipe2(GRID, GOAL, states=0), r"must be a list .* mean \[0\]\?"),
        (lambda: jl.large.local_jipe2(GRID, GOAL, states="a"), r"did you mean \['a'\]\?"),
        (
            lambda: jl.simulators.estimate_gaps(lake(reset=False), half, [0, 1]),
            r"^state must be a snapshot inside an episode, such as .* after env.reset\(\)",
        ),
        (
            lambda: jl.simulators.estimate_gaps(lake(), half, [0, 1], state=3),
            "state must be a snapshot .* 3",
        ),
        (
            lambda: jl.simulators.estimate_gaps(lake(), np.full((15, 4), 0.25), [0, 1]),
            r"policy must have shape \(state = 16, action = 4\)",
        ),
    ],
)
def test_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def masked(values):
    """The same numbers, the first of them masked."""
    mask = np.zeros(np.shape(values), bool)
    mask.flat[0] = True
    return np.ma.masked_array(values, mask)


def vectors(step):
    return jl.simulators.VectorSimulator(step, lambda n, rng: rng.random(n), 2, 0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: jl.JMDP([[1.0]], masked([[[1.0]]]), [[[0]]], 0.5),
        lambda: jl.JMDP([[1.0]], [masked([[1.0, 2.0]])], [[[0, 0]]], 0.5),
        lambda: jl.jipe2(GRID, masked(GOAL)),
        lambda: jl.jipe2(GRID, GOAL, queries=masked([[4, 0, 2]])),
        lambda: jl.simulators.estimate_gaps(Depot(), masked(np.eye(6, 3)), [0, 1], 0),
        lambda: jl.laws.GapLaw.from_sample((0, 0, 1), masked([1.0, 2.0])),
        lambda: jl.pair_step(GRID, GOAL, masked(np.ones((9, 4, 9, 4)))),
        lambda: jl.simulators.estimate_gaps(
            vectors(lambda states, actions, noise: (masked(noise), states)), [0], [0, 1], 0
        ),
        lambda: jl.simulators.estimate_gaps(
            vectors(lambda states, actions, noise: (noise, states)),
            lambda states: masked(np.zeros(states.shape, int)),
            [0, 1],
            0,
        ),
        lambda: jl.incremental_jipe2(
            Depot(lambda sim, s, actions: (masked([1.0] * 3), [0] * 3)), np.full((6, 3), 1 / 3), 9
        ),
    ],
)
def test_masked_entries_are_refused(call):
    with pytest.raises(ValueError, match=r"masked entries: put numbers there, as by .filled"):
        call()


def test_a_mask_that_hides_nothing_is_no_matter():
    policy = np.ma.masked_array(GOAL, np.zeros(GOAL.shape, bool))
    assert jl.jipe2(GRID, policy).converged


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (-0.5, r"law\[0, 1, 2, 3\] \(state 0, action 1, other state 2, .* = -0.5 is negative"),
        (np.nan, r"law\[0, 1, 2, 3\] .* = nan is not finite"),
    ],
)
def test_a_law_of_pairs_has_no_negative_entries(entry, message):
    law = np.zeros((9, 4, 9, 4))
    law[0, 1, 2, 3] = entry
    with pytest.raises(ValueError, match=message):
        jl.pair_step(GRID, GOAL, law)


@pytest.mark.parametrize("off", [-1.0, np.nan, np.inf])
def test_gaps_are_off_by_a_number(off):
    with pytest.raises(ValueError, match=r"off must lie in \[0, inf\), got"):
        jl.laws.GapLaw.from_sample((0, 0, 1), [0.0, 1.0], off=off)


def test_unknown_states_and_actions():
    with pytest.raises(IndexError, match="state 99 is out of range: there are 9"):
        jl.simulators.estimate_gaps(
            GRID, GOAL, [(0, 0, 1), (99, 0, 1)], num_runs=10**12
        )  # before any is played
    with pytest.raises(IndexError, match="state 9"):
        jl.simulate_pairs(GRID, GOAL, 9, (0, 1), 1)
    with pytest.raises(IndexError, match="action 7"):
        jl.simulate_pairs(GRID, GOAL, 0, (0, 7), 1)


class Depot:
    """A user's simulator, of lists; `answer` replaces what it returns."""

    num_states, num_actions, gamma = 6, 3, 0.9

    def __init__(self, answer=None, **declared):
        self.answer, self.calls = answer, 0
        self.__dict__.update(declared)

    def query(self, state, actions, rng):
        self.calls += 1
        demand = int(rng.poisson(2))
        if self.answer:
            return self.answer(self, state, actions)
        left = [max(state - demand, 0)] * len(actions)
        return [3.0 * min(state + a, demand) for a in actions], left


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda sim, s, actions: 1 / 0, r"query\(state 0, actions \[0, 1, 2\]\).*ZeroDiv"),
        (lambda sim, s, actions: ([np.random.rand()] * 3, [0] * 3), "a global generator"),  # noqa: NPY002
        (
            lambda sim, s, actions: ([0.0] * 3, [6] * 3),
            r"next states\[0\] .* = 6 is not in range\(6\)",
        ),
        (lambda sim, s, actions: ([np.nan] * 3, [0] * 3), "rewards.*finite"),
        (lambda sim, s, actions: ([0.0] * 4, [0] * 3), "rewards must have shape"),
        (lambda sim, s, actions: (["x"] * 3, [0] * 3), "rewards must hold real numbers"),
        (lambda sim, s, actions: None, "must return rewards and next states.*NoneType"),
        (lambda sim, s, actions: ([sim.calls] * 3, [0] * 3), r"gave \[.* and then \["),
        (
            lambda sim, s, actions: ([5.0] * 3, [0] * 3),
            r"rewards \[5.0.* not in reward_range",
        ),
        (
            lambda sim, s, actions: ([0, 1, 2], [0.5] * 3),
            "in this order.*next states must",
        ),
    ],
)
def test_simulators_are_tried_out_first(answer, message):
    with pytest.raises(ValueError, match=message) as caught:
        jl.incremental_jipe2(Depot(answer, reward_range=(0, 4.0)), np.full((6, 3), 1 / 3), 10)
    if "ZeroDiv" in message:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def frozen_lake(seed):
    gymnasium = importlib.import_module("gymnasium")
    return jl.simulators.CoupledEnv(gymnasium.make("FrozenLake-v1"), seed=seed)


def pong(seed):
    return importlib.import_module("jmdp_lib.atari").CoupledAtari("Pong", seed=seed)


def torchs_own():
    return importlib.import_module("torch").Generator()


def lake(reset: bool = True):
    env = frozen_lake(seed=0)
    if reset:
        env.reset()
    return env


def half(observation):
    return [0.5, 0.5]


def never(*asked):
    pytest.fail("queried")


BAD_SEEDS = ["7", 1.5, -1, True, [1, -2], ["a"], np.nan, {}, torchs_own]


@pytest.mark.parametrize("seed", BAD_SEEDS, ids=lambda seed: repr(seed).partition(" at ")[0])
@pytest.mark.parametrize(
    "call",
    [
        lambda seed: jl.simulate_pairs(GRID, GOAL, 0, (0, 1), 10, seed=seed),
        lambda seed: jl.simulate_returns(GRID, GOAL, 10, seed=seed),
        lambda seed: jl.simulators.estimate_gaps(GRID, GOAL, [(0, 0, 1)], num_runs=10, seed=seed),
        lambda seed: jl.incremental_jipe2(GRID, GOAL, 10, seed=seed),
        frozen_lake,
        pong,
    ],
    ids=["pairs", "returns", "rows", "incremental", "env", "atari"],
)
def test_seeds(call, seed):
    seed = seed() if callable(seed) else seed
    with pytest.raises(ValueError, match=r"seed must be (an integer|at least 0), got"):
        call(seed)


def test_seeds_of_every_good_kind():
    for seed in (3, np.int64(3), np.array(3), [1, 2], np.random.SeedSequence(4)):
        one, two = (jl.simulate_pairs(GRID, GOAL, 0, (0, 1), 10, seed=seed) for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_an_order_that_is_too_high_is_refused_before_any_multiset_is_made(monkeypatch):
    monkeypatch.setattr(MultisetOperator, "rows_of", never)
    with pytest.raises(ValueError, match="order 50 on 9 states has too many coordinates to number"):
        jl.jipe(GRID, GOAL, order=50)


MANY = 10**12


def test_a_horizon_that_is_given_is_not_too_long():
    assert jl.simulate_pairs(NEAR_ONE, GOAL, 4, (0, 1), 1, horizon=5).shape == (1, 2)
    jl.simulators.estimate_gaps(GRID, GOAL, [0, 1], state=4, gamma=0.999999, horizon=5, num_runs=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jl.rbf_features(10**4, 10**4, 100), r"100,000,000 cells .*: use fewer centres"),
        (lambda: jl.two_queues(10**5), "a JMDP of 10,000,200,001 states, each with 8"),
        (
            lambda: jl.JMDP.from_step(10**10, 2, 0.9, [1.0], lambda s, a, u: (0.0, 0)),
            r"num_states: a JMDP of 10,000,000,000 states, .* ImplicitJMDP and local_jipe2",
        ),
        (lambda: jl.inventory(5, 2, lead_time=30), "num_states: a JMDP of 1,235,346,"),
        (lambda: jl.windy_gridworld(10**6), "size: a JMDP of 1,000,000,000,000 states"),
        (lambda: jl.goal_policy(10**6), "size: goal_policy of 1,000,000,000,000 states"),
        (lambda: jl.coupled_reward_chain(MANY), "num_states: a JMDP of 1,000,000,000,000 states"),
        (lambda: jl.simulate_pairs(GRID, GOAL, 4, (0, 1), MANY), "a sample of num_pairs = 1,000"),
        (
            lambda: jl.simulate_returns(GRID, GOAL, MANY),
            "num_samples = 1,000,000,000,000 times 36 state-actions needs .*: ask for fewer",
        ),
        (
            lambda: jl.tabular_features(jl.windy_gridworld(300)),
            r"\(S, A, d\) = \(90000, 4, 360000\) needs .* rbf_features",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_made(call, message):
    with pytest.raises(MemoryError, match=message):
        call()


def test_rewards_may_be_zero_or_tiny_beside_others():
    """One of the noises, or one state, has rewards that would be refused on their own."""
    assert jl.JMDP([[1.0]], [[[0.0]]], [[[0]]], 0.9).reward_range == (0.0, 0.0)
    pays = np.array([1e-150, 1.0])
    jm = jl.JMDP.from_step(2, 2, 0.5, [0.5, 0.5], lambda s, a, u: (pays[u] * a, s))
    assert jl.jipe2(jm, [0, 1], coupling="common").converged
    apart = jl.JMDP(np.ones((2, 1)), [[[0.0, 1e-150]], [[-1.0, 1.0]]], [[[0, 0]], [[1, 1]]], 0.5)
    assert jl.large.local_jipe2(apart, [0, 0], states=[0]).gap_mean[0, 1, 0] == pytest.approx(0.0)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_features_of_any_scale(scale):
    """Squares of such features are no numbers; the moments do not depend on their unit."""
    chain = jl.coupled_reward_chain(6, gamma=0.9)
    features = jl.action_features(np.repeat(np.eye(3), 2, axis=0), chain.num_actions)
    policy = jl.uniform_policy(chain)
    one, other = (jl.projected_jipe2(chain, policy, features * x) for x in (1.0, scale))
    np.testing.assert_allclose(one.moments.gap_variance, other.moments.gap_variance, atol=1e-9)
    assert one.converged
    assert other.converged


def test_single_precision_and_one_hot_probabilities_are_accepted():
    probs = np.array([[0.1, 0.2, 0.7]], dtype=np.float32)
    jm = jl.JMDP(probs, np.zeros((1, 3, 2)), np.zeros((1, 3, 2), dtype=int), 0.9)
    assert jm.probs.sum() == pytest.approx(1.0, abs=1e-15)
    for policy in (GOAL.astype(bool), GOAL.tolist()):
        assert jl.jipe2(GRID, policy).converged
