"""Bad input: refused before any work, by a message that names the array, the state, the action."""

import importlib
import random
import sys
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
from programs import run
from strategies import Plain, arrays_of, implicit

import jmdp_lib as jl
from jmdp_lib import simulators
from jmdp_lib.fast import MultisetOperator
from jmdp_lib.moments import StoredMoments

GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)
NEAR_ONE = jl.windy_gridworld(3, gamma=1 - 1e-10)
COIN = cycle([0.0, 1.0])
RNG = np.random.default_rng(0)
MANY = 10**12


def never(*arguments):
    pytest.fail("called")


def moments(mean, *blocks):
    """Moments of order 1, or 2 if given covariance blocks and second moments; nothing is solved."""
    covariance, second = blocks or (None, None)
    return jl.Moments(2 if blocks else 1, mean, covariance, StoredMoments(second), 0.0, 0.0)


def answers(answer, reward_range=(0.0, 4.0)):
    """A user's simulator with this answer, or with a function that returns it."""
    query = answer if callable(answer) else lambda *arguments: answer
    return SimpleNamespace(
        num_states=6, num_actions=3, gamma=0.9, reward_range=reward_range, query=query
    )


def frozen_lake(seed):
    gymnasium = importlib.import_module("gymnasium")
    return simulators.CoupledEnv(gymnasium.make("FrozenLake-v1"), rng=seed)


def gaps_of_a_lake(state=None, reset=True):
    env = frozen_lake(seed=0)
    if reset:
        env.reset()
    simulators.estimate_gaps(env, lambda observation: [0.25] * 4, [0, 1], state=state, rng=0)


def with_entry(shape, index, value):
    array = np.zeros(shape, type(value))
    array[index] = value
    return array


def masked(values):
    """The same numbers, the first of them masked."""
    return np.ma.masked_array(values, with_entry(np.shape(values), (0,) * np.ndim(values), True))


BOTH = {"jm": GRID, "policy": GOAL}
BRANCHES = {"policy": GOAL, "actions": [0, 1], "state": 4}
ROWS = partial(simulators.estimate_gaps, arrays_of(GRID))
TWO = (2, 2, 2)
CHAIN = jl.coupled_reward_chain(2)
FIRST = moments(GOAL)
SECOND = moments(GOAL, np.zeros((9, 4, 4)), np.zeros((9, 4, 9, 4)))
SAMPLED = jl.laws.GapLaw.from_sample
LAW = SAMPLED((0, 0, 1), [1.0, 2.0, -1.0])
LEARNED = partial(jl.incremental_jipe2, GRID, GOAL)
STATIONARY = {"weights": "stationary"}
LAWS, EYE = {0: [0.5, 0.5], 1: [0.4, 0.6]}, np.eye(2)
UNLIKE = jl.large.ImplicitJMDP(lambda s: (LAWS[s], EYE, [[0, 1]] * 2), 2, 0.9, (0, 1))
NOISELESS = jl.large.ImplicitJMDP(never, 4, 0.9, (0, 1), knows_noise=False)
LOST = jl.large.ImplicitJMDP.from_step(2, 0.6, [0.7, 0.3], lambda s, a, u: None, (0, 1))
SWINGS = jl.JMDP([[1.0], [1.0]], np.ones((2, 1, 1)), [[[1]], [[0]]], 0.9)
WIDE = np.random.default_rng(0).normal(size=(9, 4, 37))
GOOD = {
    jl.JMDP: {
        "table_probs": [[0.5, 0.5], [1.0, 0.0]],
        "rewards": np.zeros(TWO),
        "next_states": np.zeros(TWO, int),
        "gamma": 0.9,
    },
    jl.JMDP.from_step: {
        "num_states": 2,
        "num_actions": 2,
        "gamma": 0.9,
        "noise_probs": [0.5, 0.5],
        "step": never,
    },
    GRID.query: {"state": 0, "actions": [0], "rng": RNG},
    jl.jipe: BOTH,
    jl.jipe2: BOTH,
    jl.pair_step: BOTH,
    jl.simulate_pairs: BOTH | {"state": 0, "actions": (0, 1), "num_pairs": 1},
    jl.simulate_returns: BOTH | {"num_samples": 1},
    jl.incremental_jipe2: {"policy": np.full((6, 3), 1 / 3), "num_updates": 10},
    jl.JMDP.from_simulator: {"simulator": GRID, "queries_per_state": 10},
    simulators.estimate_gaps: BRANCHES | {"env": GRID},
    ROWS: BRANCHES,
    simulators.compare_actions: BRANCHES | {"env": GRID},
    simulators.compare_policies: {"env": GRID, "policies": [GOAL, GOAL], "state": 4},
    simulators.VectorSimulator: {"step": never, "draw": never, "num_actions": 5, "gamma": 0.9},
    jl.large.local_jipe2: {"model": implicit(GRID), "policy": GOAL, "states": [0]},
    jl.laws.gap_law: BOTH,
    jl.laws.coupling_range: BOTH,
    jl.laws.cautious_improvement: BOTH,
    jl.laws.policy_gaps: {"jm": CHAIN, "policy": [0, 0], "other": [0, 0]},
    jl.projected_jipe2: BOTH | {"features": np.eye(36).reshape(9, 4, 36)},
    jl.sample_t2: {"simulator": GRID, "policy": GOAL, "mean": GOAL, "second": SECOND.full_second()},
    LEARNED: {"num_updates": 9},
    SAMPLED: {"gap": (0, 0, 1), "gaps": [1.0, 3.0]},
}
MASKED = r"masked entries: put numbers there, as by .filled"


EITHER = r"policy must have shape \(state = 9, action = 4\), or be actions, integers of shape"
POLICIES = {
    r"sum of policy\[0\] \(state 0\) = 0.9 is not one": 0.9 * GOAL,
    rf"{EITHER} \(state = 9\), got dtype float64 of shape \(9,\)": [0.5] * 9,
    rf"{EITHER} .* got dtype bool": [True] * 9,
    r"a function of the state such as policy\.__getitem__, got a dict": {0: 1},
    r"policy\(4\) must be probabilities \(4,\) or an action from 0 to 3, got 4": lambda s: s,
    r"policy\(0\) must have shape \(action = 4\)": lambda s: GOAL[s][:3],
    r"policy\(8\) failed: IndexError": lambda s: GOAL[s + 1],
    r"policy\[1\] \(state 1\) = 4 is not in range\(4\)": [0, 4, 0, 0, 0, 0, 0, 0, 0],
}
# Messages by call, each with the options that it is about; the others are those of GOOD.
REFUSED = {
    jl.JMDP: {
        r"table_probs\[1, 1\] \(state 1, table 1\) = -0.5": {
            "table_probs": [[0.5, 0.5], [1.5, -0.5]]
        },
        r"sum of table_probs\[1\] \(state 1\) = 0.9": {"table_probs": [[0.5, 0.5], [0.5, 0.4]]},
        "table_probs must hold real numbers": {"table_probs": [["a", "b"]]},
        "ragged": {"table_probs": [[0.5, 0.5], [1.0]]},
        r"rewards\[1, 0, 1\] \(state 1, table 0, action 1\)": {
            "rewards": with_entry(TWO, (1, 0, 1), np.inf)
        },
        r"rewards must have shape \(state = 2, table = 2, ": {"rewards": np.zeros((2, 3, 2))},
        "shape .* and not be empty": {"rewards": np.zeros((2, 2, 0))},
        "the largest absolute reward, 1e-180, is out of range for second": {
            "rewards": np.full(TWO, 1e-180)
        },
        f"rewards has {MASKED}": {"rewards": masked(np.ones(TWO))},
        f"table_probs has {MASKED}": {"table_probs": [[0.5, 0.5], masked([0.5, 0.5])]},
        r"next_states\[0, 1, 1\] \(state 0, table 1, action 1\) = 2 is not in range\(2\)": {
            "next_states": with_entry(TWO, (0, 1, 1), 2)
        },
        r"next_states\[1, 1, 0\].*= -1": {"next_states": with_entry(TWO, (1, 1, 0), -1)},
        "next_states must hold integers": {"next_states": np.zeros(TWO)},
        "gamma must lie in": {"gamma": 1.0},
        "gamma must be a real number": {"gamma": "0.9"},
    },
    jl.JMDP.from_step: {
        "action 0, noise 0.*5 is out": {"step": lambda s, a, u: (0.0, 5)},
        r"action 1, noise 0.*in \(-inf, inf\), got nan": {
            "step": lambda s, a, u: (np.nan if a else 0.0, 0)
        },
        "in this order.*got 0.5": {"step": lambda s, a, u: (s, 0.5)},
        "noise 0.*KeyError": {"step": lambda s, a, u: {}[u - 1]},
        r"noise 0\) draws from a global": {"step": lambda s, a, u: (np.random.rand(), 0)},  # noqa: NPY002
        r"gave \(0.0, 0\) and then \(1.0, 0\)": {"step": lambda s, a, u: (next(COIN), 0)},
        "num_states: a JMDP of 10,000,000,000 states": {"num_states": 10**10},
    },
    partial(jl.JMDP.from_tables, [0, 1], [1, 1], [[0]] * 2, [[1]] * 2, 3, 0.9): {
        "sum of probs": {}
    },
    partial(jl.JMDP.from_mdp, np.full((2, 2, 4), 0.25), np.zeros((2, 2)), 0.9): {
        "transition_probs must have shape": {}
    },
    GRID.query: {
        "state 9 is out of range: there are 9": {"state": 9},
        "state must be an integer, got True": {"state": True},
        r"distinct, got \[1, 2, 1\]": {"actions": [1, 2, 1]},
        "at least one action": {"actions": []},
        "actions must be a sequence of actions, got None": {"actions": None},
    },
    jl.jipe2: {
        "tol must lie in": {"tol": 0.0},
        "max_iterations must be at least 1": {"max_iterations": 0, "route": "sweeps"},
        "initial second must have shape": {"initial": (GOAL, GOAL), "route": "sweeps"},
        "initial must be moments": {"initial": 3, "route": "sweeps"},
        "coupling must be one of 'joint'.*, got 'shared'": {"coupling": "shared"},
        **{message: {"policy": policy} for message, policy in POLICIES.items()},
        "route must be one of": {"route": "fast"},
        "device= needs route='auto' or route='dense'": {"route": "reachable", "device": 0},
        "device string: abacus": {"device": "abacus"},
        "max_iterations= needs route='sweeps', got route='auto'": {"max_iterations": 3},
        "initial= needs route='sweeps'": {"route": "dense", "initial": SECOND},
        "states= needs route='auto' or .*, got": {"states": [0], "route": "sweeps"},
        r"entry 0.* = 9 is not in range\(9\)": {"states": [9]},
        r"\(row 0\) = 9 is not in range\(9\)": {"gaps": [(9, 0, 1)]},
        r"row 0, action 1.*is not in range\(4\)": {"gaps": [[0, 1, 4]]},
        "is the other action": {"gaps": [[0, 1, 1]]},
    },
    jl.jipe: {
        "order must be at least 1, got 0": {"order": 0},
        "order 50 on 9 states has too many coordinates to number": {"order": 50},
    },
    jl.pair_step: {
        r"law\[0, 1, 2, 3\] \(state 0, action 1, other state 2, .* = -0.5 is negative": {
            "law": with_entry((9, 4, 9, 4), (0, 1, 2, 3), -0.5)
        }
    },
    jl.simulate_pairs: {
        "state 9": {"state": 9},
        "action 7": {"actions": (0, 7)},
        "pair of actions": {"actions": (0, 1, 2)},
        r"gamma = 0.99.* horizon= to": {"jm": NEAR_ONE},
    },
    jl.simulate_returns: {
        "truncation must lie in": {"truncation": 1.0},
        r"gamma = 0.99.* larger truncation=": {"jm": NEAR_ONE},
        "times 36 state-actions needs": {"num_samples": MANY},
        "simulate_returns needs a JMDP": {"jm": Plain(GRID)},
    },
    jl.windy_gridworld: {
        "size: a JMDP of 1,000,000,000,000 states": {"size": 10**6},
        "gust must be one of 'U'": {"gust": "up"},
    },
    jl.inventory: {"sum of demand_probs = 1.1 is not one": {"demand_probs": [0.5, 0.6]}},
    jl.uniform_policy: {"a JMDP or a simulator .* is needed, got None": {"jm": None}},
    jl.cantelli_bound: {"variance must not be negative": {"mean": 1.0, "variance": -2.0}},
    partial(jl.epsilon_mixture, GRID, GOAL, 2.0): {"epsilon must lie in": {}},
    partial(jl.rbf_features, 3, 0, 2): {"columns must be at least 1": {}},
    jl.incremental_jipe2: {
        "has no num_states, num_actions, gamma, query": {"simulator": object()},
        r"simulator\.reward_range must be \(lo, hi\)": {"simulator": answers(never, (1.0, -1.0))},
        r"query\(state 0, actions \[0, 1, 2\]\).*ZeroDivisionError": {
            "simulator": answers(lambda *arguments: 1 / 0)
        },
        "a global generator": {
            "simulator": answers(lambda *arguments: ([random.random()] * 3, [0] * 3))
        },
        r"next state of action 0 = 6 is not in range\(6\)": {
            "simulator": answers(([0.0] * 3, [6] * 3))
        },
        "4 rewards and 3 next states": {"simulator": answers(([0.0] * 4, [0] * 3))},
        "reward of action 0 must hold real numbers": {"simulator": answers((["x"] * 3, [0] * 3))},
        r"gave \[.* and then \[": {
            "simulator": answers(lambda *arguments: ([next(COIN)] * 3, [0] * 3))
        },
        "reward 5.0 of action 0 in state 0 is not in reward_range": {
            "simulator": answers(([5.0] * 3, [0] * 3))
        },
        "in this order.*next state of action 0 must": {
            "simulator": answers(([0, 1, 2], [0.5] * 3))
        },
    },
    simulators.estimate_gaps: {
        r"gamma = 0.999999 .* 6,907,752 steps, more than 1,000,000: pass horizon=": {
            "gamma": 0.999999
        },
        MASKED: {
            "env": simulators.VectorSimulator(
                lambda states, actions, noise: (masked(noise), states),
                lambda n, rng: rng.random(n),
                2,
                0.5,
            ),
            "policy": [0],
            "state": 0,
        },
        "it must be a CoupledEnv": {"env": frozen_lake},
        "all distinct": {"actions": [1, 1]},
        "actions must be a sequence of actions, got None": {"actions": None},
        "executor must be a concurrent.futures.* got 'dask'": {"executor": "dask"},
        "keep_returns must be True or False": {"keep_returns": 1},
        r"state must be hashable, .* got \[3\]": {"env": UNLIKE, "state": [3]},
        "needs a declared noise": {"env": NOISELESS, "coupling": "common"},
        r"state 1: .* one distribution of tables in all": {
            **{"env": UNLIKE, "policy": [1, 1], "state": 0},
            **{"coupling": "common", "keep_returns": True},
        },
        r"gamma must lie in \[0, 1\)": {"gamma": 1.0},
        "num_runs must be at least 3": {"num_runs": 2},
    },
    ROWS: {
        "state= must be given: the state": {"state": None},
        r"state \(of 9, .*\) 12 is out of range": {"state": 12},
        r"state \(of 9, .*\) must be an integer": {"state": 2.5},
        r"state must be a number.* \[\[1, 2\]\]": {"state": [[1, 2]]},
        "state must be a number.* '5'": {"state": "5"},
        "sum of policy.*is not one": {"policy": 0.9 * GOAL},
    },
    simulators.compare_actions: {
        "budget must be at least 3, the queries that one run may": {"budget": 2, "horizon": 2},
        "two actions or more": {"actions": [0]},
        "actions must be a sequence of actions, got None": {"actions": None},
        "executor must be a concurrent.futures": {"executor": "dask"},
        "lo <= hi": {"reward_range": (1, 0)},
        "method must be one of 'betting', 'asymptotic', got 'unknown'": {"method": "unknown"},
        "uses no reward_range: pass one": {"method": "asymptotic", "reward_range": (0, 1)},
        "is not in reward_range": {"reward_range": (2, 3)},
        "time step 1: reward 0.0 of action 0 in state 4 is not in reward_range": {
            "env": Plain(GRID),
            "reward_range": (2, 3),
        },
    },
    simulators.compare_policies: {
        r"at least one policy, got \[\]": {"policies": []},
        "needs two policies or more, got 1": {"policies": [GOAL]},
        r"policies\[1\]: policy\[1\]": {"policies": [GOAL, [0, 5] + [0] * 7]},
    },
    simulators.VectorSimulator: {
        "step must be a function": {"step": 3},
        "lo <= hi": {"reward_range": (1, 0)},
    },
    jl.JMDP.from_simulator: {
        "must be an object, got the class Plain": {"simulator": Plain},
        "queries_per_state must be at least 2": {"queries_per_state": 1},
        "queries_per_state must be an integer": {"queries_per_state": 2.5},
    },
    gaps_of_a_lake: {
        "state must be a snapshot inside an episode, such": {"reset": False},
        "state must be a snapshot .* 3": {"state": 3},
    },
    jl.laws.gap_law: {
        r"gaps must have shape \(row, .* = 3\)": {"gaps": (4, 0, 2)},
        "pass either gaps= or states=": {"gaps": [(4, 0, 2)], "states": [4]},
        "gaps must have shape .* and not be empty": {"gaps": []},
        "width must lie in": {"width": 0.0},
        "max_points must be at least 512": {"max_points": 0},
        "points must be at least 1": {"points": 0},
        r"at.*\(entry 0\) = nan is not finite": {"at": [np.nan]},
    },
    jl.large.local_jipe2: {
        r"must be a list .* mean \[0\]\?": {"states": 0},
        r"did you mean \['a'\]\?": {"states": "a"},
        "states must hold at least one": {"states": []},
        "states must be hashable": {"states": [[0]]},
        "tol": {"tol": 0.0},
        "max_states must be": {"max_states": 0},
        "policy has no entry for state 8": {"policy": GOAL[:8], "states": [8]},
        r"got JMDP\(.*\): `jipe2\(jm, policy, states=...\)`": {"model": GRID},
        r"needs an ImplicitJMDP, got .*Vector.*: .*estimate_gaps": {"model": arrays_of(GRID)},
        r"step\(state 'bad', action 0, noise 0\) must return": {
            **{"model": LOST, "policy": lambda state: 0, "states": ["bad"]}
        },
        "one distribution of tables.* state 1 has": {
            "model": UNLIKE,
            "policy": [0, 0],
            "coupling": "common",
        },
    },
    SAMPLED: {
        r"truncation_error must lie in \[0, inf\), got": {"truncation_error": np.inf},
        "alpha must lie in": {"alpha": 1.0},
        r"gap 1\) = 3.0 is not in": {"limits": (-2, 2)},
        r"limits must be \(lo, hi\), two numbers.*None": {"limits": None},
        "limits must be .*nan": {"limits": (np.nan, 1.0)},
        "limits must be .*2.0": {"limits": (0.0, 1.0, 2.0)},
        "limits must be .*'01'": {"limits": "01"},
    },
    jl.projected_jipe2: {
        "rank 1 < d = 2.*column": {"features": np.ones((9, 4, 2))},
        "column of zeros": {"features": np.zeros((9, 4, 1))},
        r"must have shape .*got \(9, 3, 1\)": {"features": np.ones((9, 3, 1))},
        "rank 36 < d = 37": {"features": WIDE},
        r"policy\[0, 0\] \(state 0, action 0\).*without stationary weight .Assum": STATIONARY,
        "not ergodic: it has 2 cycles or ends": {
            **{"jm": SWINGS, "policy": [0, 0], "features": np.ones((2, 1, 1))},
            **STATIONARY,
        },
        "weights must be one of": {"weights": "even"},
        "cone must be one of": {"cone": "round"},
    },
    jl.sample_t2: {
        "coordinate must be": {"coordinate": [(0, 0)] * 3},
        "action 5 is out of range": {"coordinate": [(0, 5)]},
        "state 9 is out of range": {"coordinate": [(0, 0), (9, 0)]},
    },
    LEARNED: {
        "num_updates must be at least 1": {"num_updates": 0},
        "form must be one of": {"form": "half"},
        "step_size must have shape": {"step_size": 0.1},
        r"step_size.* \(.* 1\) = nan is not finite": {"step_size": (1.0, np.nan)},
        "sum of its squares diverges": {"step_size": (1.0, 0.5)},
        "its sum converges": {"step_size": (1.0, 1.1)},
        "0.0 / .* first step": {"step_size": (0.0, 0.8)},
        "1.5 / .* first step": {"step_size": (1.5, 0.8)},
        "checkpoints must be at least 1": {"checkpoints": 0},
        "initial must be a Solution or Moments": {"initial": GOAL},
        "reference must be a Solution or Moments, got 3": {"reference": 3},
        "full_second needs moments of order 2": {"reference": FIRST},
        r"must have shape \(S, A\) = \(9, 4\)": {"reference": moments(GOAL[:2])},
    },
    SECOND.moment: {
        "state 9 is out of range": {"coordinates": [(0, 0), (9, 0)]},
        "action 4 is out of range": {"coordinates": [(0, 4)]},
        "pair": {"coordinates": [0, 1]},
        "needs moments of order 3": {"coordinates": [(0, 0)] * 3},
    },
    SECOND.gap_moment: {
        "moments of order 3": {"gaps": [(0, 0, 1)] * 3},
        r"gaps must have shape \(row, .* = 3\) and not be empty, got \(1, 2\)": {"gaps": [(0, 1)]},
    },
    partial(SECOND.gap_central_moment, (6, 0, 1)): {
        "at least 0, got -1": {"order": -1},
        "an integer, got": {"order": 1.5},
    },
    FIRST.second: {"orders 1 to 1": {"x": (0, 0), "y": (0, 1)}},
    FIRST.full_second: {"full_second needs moments of order 2": {}},
    FIRST.to_frame: {"to_frame needs moments of order 2": {}},
    partial(getattr, FIRST, "gap_variance"): {"covariance needs moments of order 2": {}},
    LAW.cdf: {
        "x = nan is not a number": {"x": np.nan},
        r"x\[1\].* = nan is not a number": {"x": [0.0, np.nan]},
    },
    LAW.quantile: {"p must lie in": {"p": 0.0}},
    LAW.cvar: {"p must lie in": {"p": np.nan}},
    jl.laws.cautious_improvement: {
        r"level must lie in \[0, 1\]": {"level": 1.5},
        r"width must lie in \(0, inf\)": {"width": 0.0},
    },
    jl.laws.coupling_range: {"tol": {"tol": 0.0}},
    jl.laws.policy_gaps: {
        "^policy must": {"policy": [0]},
        r"^other: policy\[1\]": {"other": [0, 5]},
        "^other: sum of": {"other": [[1, 1], [1, 0]]},
    },
    partial(jl.large.ImplicitJMDP, never, 1, 0.9): {
        "reward_range: the largest absolute reward, 1e-200, is out of range": {
            "reward_range": (0, 1e-200)
        },
        "reward_range must be": {"reward_range": (1, 0)},
    },
}
# Options that no number below zero is good for.
NOT_NEGATIVE = {
    jl.JMDP.from_step: "gamma",
    jl.simulate_pairs: "num_pairs horizon truncation",
    jl.simulate_returns: "num_samples",
    jl.windy_gridworld: "size gust_prob",
    jl.coupled_reward_chain: "num_states",
    jl.inventory: "lead_time",
    jl.two_queues: "arrival_prob",
    simulators.compare_actions: "alpha margin budget",
    simulators.VectorSimulator: "num_actions gamma num_states",
}
for call, names in NOT_NEGATIVE.items():
    for name in names.split():
        message = f"^{name} must (be at least [01]|lie in)"
        REFUSED.setdefault(call, {})[message] = {name: -1}


@pytest.mark.parametrize(
    ("call", "message", "options"),
    [(call, *row) for call, rows in REFUSED.items() for row in rows.items()],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_arguments(call, message, options, monkeypatch):
    monkeypatch.setattr(MultisetOperator, "rows_of", never)
    with pytest.raises(
        (ValueError, LookupError, MemoryError, RuntimeError, TypeError), match=message
    ) as caught:
        call(**GOOD.get(call, {}) | options)
    if "Error" in message:
        assert type(caught.value.__cause__).__name__ in message
    assert RNG.bit_generator.state == np.random.default_rng(0).bit_generator.state  # nothing drawn


TOO_LARGE = {
    r"full Sigma of shape \(9, 4, 9, 4\) needs .*GiB": SECOND.full_second,
    "JIPE-2 by sweeps on 9 states": partial(jl.jipe2, GRID, GOAL, route="sweeps"),
    "1,332 coordinates": partial(LEARNED, 9),
    "order 3 on 9 states with .* multisets.*lower": partial(jl.jipe, GRID, GOAL, order=3),
    "order 4 on 9 .*lower": partial(jl.jipe, GRID, GOAL, order=4, coupling="common"),
    "a feature for each of 36 state-actions": partial(jl.tabular_features, GRID),
    "36 features .*: jipe2 is exact": partial(jl.projected_jipe2, **GOOD[jl.projected_jipe2]),
    "coupling_range on 9 states": partial(jl.laws.coupling_range, GRID, GOAL),
    "policy_gaps on the 81 pairs of 9 states": partial(jl.laws.policy_gaps, GRID, GOAL, GOAL),
    "the pair chain of 9 states": partial(jl.laws.gap_law, GRID, GOAL),
}


@pytest.mark.parametrize("message", TOO_LARGE)
def test_memory(message, leave):
    leave(1000)
    with pytest.raises(MemoryError, match=message):
        TOO_LARGE[message]()


def test_memory_of_moments_computed_later(leave):
    few = jl.jipe2(GRID, GOAL, gaps=[(3, 0, 1)]).moments
    leave(1000)
    with pytest.raises(MemoryError, match="JIPE-2 on 9 states reaches more pairs"):
        few.second((6, 0), (8, 1))


def test_an_error_says_where_a_name_is():
    for package in (jl.laws, jl.large, jl.simulators):
        assert {*package.__all__} <= {*dir(package)}
        for name in package.__all__:
            place = package.__name__.replace("jmdp_lib", "jl")
            with pytest.raises(
                AttributeError, match=rf"^jl\.{name} is in {place}: use {place}\.{name}$"
            ):
                getattr(jl, name)
    with pytest.raises(AttributeError, match="No jmdp_lib attribute gap_lore"):
        jl.gap_lore  # noqa: B018


def test_odd_input_that_is_accepted():
    """A mask that hides nothing, one-hot rows, single precision, a given horizon."""
    unmasked = np.ma.masked_array(GOAL, np.zeros(GOAL.shape, bool))
    for policy in (unmasked, GOAL.astype(bool), GOAL.tolist()):
        assert jl.jipe2(GRID, policy).converged
    probs = np.array([[0.1, 0.2, 0.7]], dtype=np.float32)
    jm = jl.JMDP(probs, np.zeros((1, 3, 2)), np.zeros((1, 3, 2), dtype=int), 0.9)
    assert jm.probs.sum() == pytest.approx(1.0, abs=1e-15)
    jl.simulate_pairs(NEAR_ONE, GOAL, (0, 1), state=4, num_pairs=1, horizon=5)


def pairs(seed):
    return jl.simulate_pairs(GRID, GOAL, (0, 1), state=0, num_pairs=10, rng=seed)


def torchs_own():
    return importlib.import_module("torch").Generator()


@pytest.mark.parametrize(
    "seed",
    ["7", 1.5, -1, True, [1, -2], ["a"], np.nan, {}, torchs_own],
    ids=lambda seed: repr(seed).partition(" at ")[0],
)
@pytest.mark.parametrize("call", [pairs, frozen_lake])
def test_seeds(call, seed):
    seed = seed() if callable(seed) else seed
    with pytest.raises(
        ValueError, match="rng must be an integer that is not negative, a SeedSequence or a Gen"
    ):
        call(seed)


@pytest.mark.parametrize(
    "seed",
    [3, np.int64(3), np.array(3), np.random.SeedSequence(4), np.random.SeedSequence([1, 2])],
    ids=repr,
)
def test_seeds_of_every_good_kind(seed):
    np.testing.assert_array_equal(pairs(seed), pairs(seed))


def test_rewards_may_be_zero_or_tiny_beside_others():
    """One of the noises, or one state, has rewards that would be refused on their own."""
    pays = np.array([1e-150, 1.0])
    jm = jl.JMDP.from_step(2, 2, 0.5, [0.5, 0.5], lambda s, a, u: (pays[u] * a, s))
    assert jl.jipe2(jm, [0, 1], coupling="common").converged
    loops = jl.JMDP(np.ones((2, 1)), [[[0.0, 1e-150]], [[-1.0, 1.0]]], [[[0, 0]], [[1, 1]]], 0.5)
    local = jl.large.local_jipe2(implicit(loops), [0, 0], states=[0])
    assert local.gap_mean[0, 1, 0] == pytest.approx(0.0)


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


def test_an_unknown_name_imports_nothing():
    code = """
        import sys, jmdp_lib as jl
        try:
            jl.gap_law
        except AttributeError as error:
            print(error, "jmdp_lib.laws" in sys.modules)"""
    said = run(sys.executable, "-c", code.replace(8 * " ", "")).strip()
    assert said == "jl.gap_law is in jl.laws: use jl.laws.gap_law False"
