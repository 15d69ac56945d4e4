"""One convention for policies: every call takes arrays and functions, with equal results."""

import itertools
import random
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from strategies import implicit
from test_branches import Paying, begun

import jmdp_lib as jl
from jmdp_lib.policies import policy_rows

JM = jl.two_queues(capacity=1, gamma=0.6)
ACTIONS = np.array([0, 1, 1, 0])
MIXED = np.random.default_rng(3).dirichlet([1.0, 1.0], size=4)
FEATURES = jl.tabular_features(JM)

CALLS = {
    "jipe2": lambda jm, policy: jl.jipe2(jm, policy).moments.gap_variance,
    "jipe": lambda jm, policy: jl.jipe(jm, policy, order=3).moments.gap_variance,
    "apply_t2": lambda jm, policy: jl.apply_t2(jm, policy, np.ones((4, 2)), np.ones((4, 2, 4, 2)))[
        1
    ],
    "gap_law": lambda jm, policy: [
        jl.laws.gap_law(jm, policy, gaps=[(0, 0, 1)], width=0.05)[0].prob_worse
    ],
    "incremental": lambda jm, policy: jl.incremental_jipe2(jm, policy, 500, rng=0).moments.mean,
    "projected": lambda jm, policy: jl.projected_jipe2(jm, policy, FEATURES).moments.mean,
    "coupling_range": lambda jm, policy: jl.laws.coupling_range(jm, policy).gap_variance_low,
    "cautious_improvement": lambda jm, policy: jl.laws.cautious_improvement(jm, policy).policy,
    "policy_gaps": lambda jm, policy: [*jl.laws.policy_gaps(jm, policy, [1] * jm.num_states)],
    "simulate_pairs": lambda jm, policy: jl.simulate_pairs(
        jm, policy, (0, 1), state=0, num_pairs=50, rng=0
    ),
    "simulate_returns": lambda jm, policy: jl.simulate_returns(jm, policy, 50, rng=0),
    "estimate_gaps": lambda jm, policy: (
        jl.simulators.estimate_gaps(
            jm, policy, [0, 1], state=1, num_runs=5, keep_returns=True, rng=0
        ).returns
    ),
    "local_jipe2": lambda jm, policy: (
        jl.large.local_jipe2(implicit(jm), policy, states=[0]).gap_variance
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_arrays_and_functions_give_the_same_numbers(call):
    forms = {
        "probabilities": np.eye(2)[ACTIONS],
        "actions": ACTIONS,
        "list": ACTIONS.tolist(),
        "function to an action": lambda s: int(ACTIONS[s]),
        "function to numpy's integer": lambda s: ACTIONS[s],
        "function to probabilities": lambda s: np.eye(2)[ACTIONS[s]],
    }
    first, *others = (np.asarray(call(JM, policy)) for policy in forms.values())
    for found in others:
        np.testing.assert_array_equal(found, first)
    mixed, by_function = (np.asarray(call(JM, x)) for x in (MIXED, MIXED.__getitem__))
    np.testing.assert_array_equal(mixed, by_function)


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_an_error_names_the_state_where_a_function_is_bad(call):
    """Rare draws from a global generator are noticed, too."""
    calls = itertools.count()
    for policy, message in (
        (lambda s: 2, r"policy\([01]\) must be .* an action from 0 to 1, got 2"),
        (lost, r"policy\([01]\) failed: KeyError\('no such cell'\)"),
        (lambda s: next(calls) % 2, r"policy\([01]\) must be pure, but gave .* and then"),
        (lambda s: int(np.random.random() > 2.0), "policy draws from a global"),  # noqa: NPY002
        (lambda s: int(torch.rand(()) > 2.0), "policy draws from a global generator"),
    ):
        with pytest.raises(ValueError, match=message):
            call(JM, policy)


def test_a_policy_may_be_what_loads_torch(monkeypatch):
    """Its generator is only watched where it was there before."""
    monkeypatch.delitem(sys.modules, "torch")

    def late(state):
        monkeypatch.setitem(sys.modules, "torch", torch)
        return 0

    jl.jipe2(JM, late)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            np.full((3, 2), 0.5),
            r"policy has no entry for state \(0, 0\): .* shape \(3, 2\) and dtype float",
        ),
        (np.zeros((2, 2), int), r"no entry for state \(-1, 0\)"),
    ],
)
def test_states_that_are_rows_need_an_array_with_as_many_axes(policy, message):
    def tables(cell):
        return [1.0], [[0.0, 1.0]], [[(cell[0] - 1, 0), (0, 1)]]

    grid = jl.large.ImplicitJMDP(tables, 2, 0.5, (0.0, 1.0), knows_noise=False)
    options = {"actions": [0, 1], "state": (0, 0), "num_runs": 3, "rng": 0}
    with pytest.raises(ValueError, match=message):
        jl.simulators.estimate_gaps(grid, policy, **options)
    with pytest.raises(ValueError, match=message):
        jl.large.local_jipe2(grid, policy, states=[(0, 0)])
    for right in (np.full((9, 2, 2), 0.5), np.ones((9, 2), int)):
        jl.simulators.estimate_gaps(grid, right, **options, horizon=1)


def test_a_policy_cannot_write_into_what_it_sees():
    def clip(seen):
        seen[0] = 0.0
        return 1

    env = begun(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"policy\(array.* failed: .*read-only"):
        jl.simulators.estimate_gaps(env, clip, [0, 1], num_runs=3, gamma=0.5, rng=0)


def lost(state):
    raise KeyError("no such cell")


def test_environments_take_arrays_if_observations_are_numbers():
    lake = begun(gymnasium.make("FrozenLake-v1"))
    policy = np.random.default_rng(0).dirichlet(np.ones(4), size=16)
    options = {"actions": [1, 2], "gamma": 0.8, "num_runs": 5, "horizon": 20, "keep_returns": True}
    by_array, by_function = (
        jl.simulators.estimate_gaps(lake, x, **options, rng=0).returns
        for x in (policy, policy.__getitem__)
    )
    np.testing.assert_array_equal(by_array, by_function)
    cart = begun(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"no entry for state array.* or pass a function"):
        jl.simulators.estimate_gaps(cart, policy, [0, 1], rng=0)


def test_actions_not_counted_from_zero_are_chosen_themselves():
    late = Paying(lambda env: env.action, 3)
    late.action_space = gymnasium.spaces.Discrete(2, start=3)
    env = begun(late)
    settings = {"actions": [3, 4], "gamma": 0.5, "num_runs": 3, "keep_returns": True}
    returns = jl.simulators.estimate_gaps(env, lambda seen: 4, **settings, rng=0).returns
    np.testing.assert_allclose(returns, [[3 + 2 + 1, 4 + 2 + 1]] * 3)
    with pytest.raises(ValueError, match=r"must be a function .* returns an action, but.*callable"):
        jl.simulators.estimate_gaps(env, [[0.0, 1.0]] * 2, **settings, rng=0)
    for wrong in ([0.5, 0.5], 0):
        with pytest.raises(ValueError, match=r"is not an action of Discrete\(2, start=3\)"):
            jl.simulators.estimate_gaps(env, lambda seen, wrong=wrong: wrong, **settings, rng=0)


def test_a_thread_that_draws_is_not_taken_for_the_policy():
    """A generator that changes during the first call alone, and one that each call changes."""
    calls = []

    def policy(state, num_draws):
        calls.append(state)
        if len(calls) <= num_draws:
            random.random()
        return [0.5, 0.5]

    assert policy_rows(partial(policy, num_draws=1), [0], 2).tolist() == [[0.5, 0.5]]
    with pytest.raises(ValueError, match="policy draws from a global generator"):
        policy_rows(partial(policy, num_draws=100), [0], 2)
