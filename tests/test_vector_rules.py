"""`compare_policies` on a `VectorSimulator`: against exact gaps, and the plain player."""

from __future__ import annotations

import pickle

import array_api_strict as strict
import numpy as np
import pytest
from brute import normal_p_values
from test_vector import COUPLINGS, DEPOT, MODELS, PlainDepot, Tables, demand_law, depot_of, sell

import jmdp_lib as jl
from jmdp_lib.simulators import SimulatorError, VectorSimulator, compare_policies
from jmdp_lib.simulators.estimates import estimated
from jmdp_lib.simulators.plans import Plan, Settings
from jmdp_lib.simulators.players import player_of


def up_to(level):
    """Order up to a level, at the depot."""
    return np.clip(level - np.arange(12), 0, 4)


def plan_of(env, policies, state, coupling="joint", truncation=1e-3):
    settings = Settings.of(env, None, coupling, truncation, None)
    return Plan.of_policies(player_of(env, state, coupling), policies, settings)


def played(plan, num_runs, seed=0, keep_returns=False):
    """Estimates from a number of runs that is known beforehand."""
    return estimated(plan, num_runs, np.random.SeedSequence(seed), keep_returns)


def second_rule(made, seed):
    """A rule that equals the first one in one state, and overlaps with it in the others."""
    other = np.random.default_rng([seed, 1]).dirichlet(np.ones(4), size=len(made.policy))
    other[2] = made.policy[2]
    return other


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_gaps_of_rules_in_random_models_are_those_of_policy_gaps(coupling):
    """With ends of episodes; all scores together must look like draws of N(0, 1)."""
    scores = []
    for seed in range(MODELS):
        made = Tables(seed)
        rules = [made.policy, second_rule(made, seed)]
        found = played(plan_of(made.simulator, rules, 1, coupling, 1e-6), 4000, seed)
        exact = jl.laws.policy_gaps(made.model, *rules, coupling=coupling)
        for name, truth in zip(("mean", "variance"), exact, strict=True):
            off = getattr(found, name)[0, 1] - truth[1]
            scores.append(off / getattr(found, f"{name}_error")[0, 1])
    assert min(normal_p_values(np.array(scores))) > 1e-3


def test_three_rules_two_of_which_are_equal():
    made = Tables(3)
    other = second_rule(made, 3)
    rules = [made.policy, other, made.policy.copy()]
    branches = plan_of(made.simulator, rules, 1, "joint", 1e-6)
    assert branches.kinds == (0, 1, 0)
    found = played(branches, 20_000)
    mean, variance = jl.laws.policy_gaps(made.model, made.policy, other)
    assert abs(found.mean[2, 1] - mean[1]) <= 4.5 * found.mean_error[2, 1]
    assert abs(found.variance[2, 1] - variance[1]) <= 4.5 * found.variance_error[2, 1]
    assert found.mean[0, 2] == found.variance[0, 2] == 0.0
    assert (found.truncation_error[0, 2], found.prob_tie[0, 2]) == (0.0, 1.0)
    assert list(found.index) == ["policy", "other"]


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_it_decides_as_the_plain_player(coupling):
    rules = [up_to(3), up_to(8)]
    asked = {"state": 0, "coupling": coupling, "reward_range": (-6.0, 33.0), "margin": 1.0}
    found = compare_policies(DEPOT, rules, budget=10**6, **asked)
    plain = compare_policies(PlainDepot(), rules, budget=10**6, **asked)
    assert (found.verdict, found.best) == (plain.verdict, plain.best) == ("better", 1)
    assert found.compared == "policy"
    steps = [each.num_queries / each.num_runs for each in (found, plain)]
    assert steps[0] == pytest.approx(steps[1], rel=0.05)
    off = found.estimates.mean[1, 0] - plain.estimates.mean[1, 0]
    errors = [each.estimates.mean_error[1, 0] for each in (found, plain)]
    assert abs(off) <= 4.0 * np.hypot(*errors)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_equal_rules_have_gap_zero(coupling):
    rules = [np.full((12, 5), 0.2), np.full((12, 5), 0.2)]
    found = compare_policies(DEPOT, rules, state=3, coupling=coupling)
    assert found.verdict == "equivalent"
    assert (found.intervals == 0.0).all()

    def alike(stock):
        return np.full((len(stock), 5), 0.2)

    branches = plan_of(DEPOT, [rules[0], alike], 3, coupling, 1e-3)
    assert branches.kinds == (0, 1)  # nobody knows that a function and a table agree
    found = played(branches, 500, keep_returns=True)
    assert (found.returns[:, 0] == found.returns[:, 1]).all()
    assert found.truncation_error[0, 1] > 0.0


def test_returns_do_not_depend_on_the_other_rules_but_by_their_draws():
    """A branch alone has the mean of its policy."""
    rules = [up_to(6), up_to(9)]
    branches = plan_of(DEPOT, rules, 5, "common", 1e-4)
    found = played(branches, 20_000, keep_returns=True)
    model = jl.JMDP.from_step(12, 5, 0.9, demand_law(), sell)
    for rule, returns in zip(rules, found.returns.T, strict=True):
        truth = jl.jipe2(model, rule).moments.mean[5, rule[5]]
        assert abs(returns.mean() - truth) <= 4.5 * returns.std() / np.sqrt(len(returns)) + 0.01


def test_rules_of_other_array_libraries():
    def strict_sell(stock, order, demand):
        full = strict.minimum(stock + order, strict.asarray(11))
        sold = strict.minimum(full, demand)
        return strict.astype(6 * sold - 3 * order, strict.float64) / 2.0, full - sold

    def strict_demands(size, rng):
        return strict.asarray(rng.poisson(3, size))

    made = VectorSimulator(strict_sell, strict_demands, 5, 0.9, (-6.0, 33.0), num_states=12)
    rules = [up_to(3), np.full((12, 5), 0.2)]
    asked = {"budget": 50_000, "method": "asymptotic"}
    found = compare_policies(made, rules, state=strict.asarray(5), **asked)
    numpy = compare_policies(DEPOT, rules, state=5, **asked)
    assert np.array_equal(found.intervals, numpy.intervals)


def test_those_that_remain_are_played_on_by_their_own_rule():
    def played_by(rules, chosen):
        branches = plan_of(DEPOT, rules, 5, "joint", 1e-3)
        return played(branches.only(chosen), 50, keep_returns=True).returns

    alone = played_by([up_to(3), up_to(3)], [0, 1])
    among_others = played_by([up_to(9), up_to(3), up_to(3)], [1, 2])
    assert np.array_equal(alone, among_others)


def test_bad_rules_are_named():
    good = up_to(4)
    with pytest.raises(ValueError, match=r"policies\[1\]: .*sum"):
        compare_policies(DEPOT, [good, np.full((12, 5), 0.3)], state=0)
    with pytest.raises(ValueError, match="two policies or more"):
        compare_policies(DEPOT, [good], state=0)
    with pytest.raises(SimulatorError, match=r"time step 1: policy\(states\)\[0\] = 7"):
        compare_policies(DEPOT, [good, lambda stock: np.full(len(stock), 7)], state=0)
    with pytest.raises(SimulatorError, match=r"policy\(states\) failed: ZeroDivisionError"):
        compare_policies(DEPOT, [good, lambda stock: 1 // 0], state=0)


def test_it_pickles_and_plays_some_of_the_rules():
    rules = [up_to(3), up_to(5), up_to(7)]
    branches = plan_of(DEPOT, rules, 0, "common", 1e-3)
    again = pickle.loads(pickle.dumps(branches))
    assert again.policies == branches.policies
    few = branches.only([2, 0])
    assert (few.names, few.kinds, few.alike.tolist()) == ([2, 0], (2, 0), np.eye(2).tolist())
    assert few.only([0]).kinds == (2,)


def test_rules_on_tensors_of_torch():
    depot, state = depot_of("torch")
    rules = [up_to(3), np.full((12, 5), 0.2)]
    found = played(plan_of(depot, rules, state, truncation=1e-4), 20_000)
    model = jl.JMDP.from_step(12, 5, 0.9, demand_law(), sell)
    mean, variance = jl.laws.policy_gaps(model, *rules)
    assert abs(found.mean[0, 1] - mean[5]) <= 4.5 * found.mean_error[0, 1] + 0.01
    assert abs(found.variance[0, 1] - variance[5]) <= 4.5 * found.variance_error[0, 1] + 0.05
