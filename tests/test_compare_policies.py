"""Whole rules, one for each branch: against exact gaps, error rates, and what is equal."""

import gymnasium
import numpy as np
import pytest
from brute import normal_p_values
from strategies import (
    Plain,
    arrays_of,
    frozen_lake,
    on_all_couplings,
    random_policy,
    shared_noise_model,
)
from test_branches import begun
from test_policy_gaps import RULES, two_rules

import jmdp_lib as jl
from jmdp_lib.simulators import compare_policies, comparison


def played(env, rules, budget, **options):
    """Estimates from all runs that a budget pays, since such a level leaves all undecided."""
    options = {"alpha": 1e-300, "method": "asymptotic", "rng": 0} | options
    return compare_policies(env, rules, budget=budget, **options).estimates


def scores(found, exact):
    """[2] distances from exact mean and variance of the first gap, in standard errors."""
    mean, variance = exact
    return [
        (found.mean[0, 1] - mean) / (found.mean_error[0, 1] + 1e-9),
        (found.variance[0, 1] - variance) / (found.variance_error[0, 1] + 1e-9),
    ]


@pytest.mark.parametrize("kinds", RULES.values(), ids=list(RULES))
@on_all_couplings
def test_what_is_played_has_the_moments_of_policy_gaps(coupling, kinds):
    """Four random models; with a third rule beside the two, which changes nothing."""
    found = []
    for seed, make in enumerate((lambda jm: jm, lambda jm: jm, Plain, arrays_of)):
        jm = shared_noise_model(seed, gamma=0.5)
        rules = two_rules(jm, kinds, seed)
        third = random_policy(np.random.default_rng(seed + 50), jm, False)
        exact = [x[1] for x in jl.laws.policy_gaps(jm, *rules, coupling=coupling)]
        estimates = played(make(jm), [*rules, third], 9_000, state=1, coupling=coupling, rng=seed)
        found.append(scores(estimates, exact))
        value = jl.jipe2(jm, rules[0]).moments.mean[1] @ rules[0][1]
        assert abs(estimates.value[0] - value) <= 4.5 * estimates.value_error[0] < 0.6
    assert np.abs(found).max() <= 4.5
    assert abs(np.mean(found, 0)[0]) <= 4.5 / 2


@pytest.mark.slow
@on_all_couplings
def test_rows_that_are_stepped_at_once_find_the_same(coupling, monkeypatch):
    """With ends of episodes; all scores together must look like draws of N(0, 1)."""
    monkeypatch.setattr(comparison, "_GROWTH", 100.0)  # few looks, and large arrays
    found = []
    for seed in range(100, 120):
        jm = shared_noise_model(seed, num_states=4, num_tables=4, gamma=0.6)
        rewards, after = (x.reshape(4, 4, 3).copy() for x in (jm.rewards, jm.next_states))
        rewards[3], after[3] = 0.0, 3
        jm = jl.JMDP(jm.probs.reshape(4, 4), rewards, after, jm.gamma)
        rule, other = (random_policy(np.random.default_rng([seed, k]), jm, False) for k in (0, 1))
        other[2] = rule[2]
        exact = [x[1] for x in jl.laws.policy_gaps(jm, rule, other, coupling=coupling)]
        rules = [rule, other, rule.copy()]
        options = {"state": 1, "coupling": coupling, "horizon": 27, "rng": seed}
        estimates = played(arrays_of(jm, 3), rules, 100_000, **options)
        found += scores(estimates, exact)
        assert estimates.mean[0, 2] == estimates.truncation_error[0, 2] == 0.0  # equal rules
    assert min(normal_p_values(np.array(found))) > 1e-3


@on_all_couplings
def test_equal_rules_have_no_gap_and_need_one_step(coupling):
    jm = shared_noise_model(4, gamma=0.9)
    rule, other = two_rules(jm, (False, False))
    for env in (jm, Plain(jm)):  # one after another, not even one
        how = {"coupling": coupling, "reward_range": (-1e3, 1e3), "rng": 0}
        decision = compare_policies(env, [rule, rule.copy()], state=0, **how)
        assert (decision.verdict, decision.best) == ("equivalent", None)
        assert decision.remaining == (0, 1)
        assert not decision.intervals.any()
        assert decision.num_queries <= 8 * 66
        assert decision.estimates.prob_tie[0, 1] == 1.0
        assert decision.estimates.prob_worse[0, 1] == decision.estimates.prob_better[0, 1] == 0.0
    for env in (Plain(jm), arrays_of(jm)):  # that two functions are equal, nobody knows
        functions = [lambda s: rule[s], lambda s: rule[s]]
        estimates = played(env, functions, 2_000, state=0, coupling=coupling)
        assert not np.any([estimates.mean, estimates.variance])
        assert estimates.truncation_error[0, 1] > 0.0
        twice = played(env, functions[:1] * 2, 2_000, state=0, coupling=coupling)
        assert twice.truncation_error[0, 1] == 0.0
    three = played(jm, [rule, rule.copy(), other], 2_000, state=0, coupling=coupling)
    assert three.truncation_error[0, 1] == 0.0


def test_an_environment_whose_episodes_end():
    lake = begun(gymnasium.make("FrozenLake-v1"))
    lake.unwrapped.s = 9
    jm = frozen_lake(gamma=0.7)
    rules = [random_policy(np.random.default_rng(k), jm, False) for k in range(2)]
    exact = [x[9] for x in jl.laws.policy_gaps(jm, *rules)]
    assert np.abs(scores(played(lake, rules, 1_500, gamma=0.7), exact)).max() <= 4.5


def orders(*levels, capacity=8):
    return [np.maximum(level - np.arange(capacity + 1), 0) for level in levels]


def test_the_best_of_several_rules_with_estimates_beside_it():
    shop = jl.inventory(capacity=8, max_order=8, gamma=0.6)
    rules = orders(8, 4, 7, 4)
    asked = {"state": 0, "budget": 60_000, "coupling": "common"}
    found = compare_policies(shop, rules, **asked, rng=0)
    assert (found.verdict, found.remaining) == ("equivalent", (1, 3))
    better = compare_policies(shop, rules[:3], **asked, rng=0)
    assert (better.verdict, better.best) == ("better", 1)
    for i, j in ((0, 1), (1, 2), (0, 2)):
        exact = jl.laws.policy_gaps(shop, rules[i], rules[j], coupling="common").mean[0]
        low, high = better.intervals[i, j]
        assert low <= exact <= high
        assert abs(better.estimates.mean[i, j] - exact) <= 4.5 * better.estimates.mean_error[i, j]
    assert better.estimates.num_runs[1, 2] == better.num_runs > better.estimates.num_runs[0, 1]
