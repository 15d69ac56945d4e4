"""Whole rules, one for each branch: against exact gaps, error rates, and what is equal."""

import pickle

import gymnasium
import numpy as np
import pytest
from brute import normal_p_values
from strategies import Plain, arrays_of, frozen_lake, random_policy, shared_noise_model
from test_policy_gaps import COUPLINGS, RULES, two_rules
from test_vector import DEPOT

import jmdp_lib as jl
from jmdp_lib.simulators import CoupledEnv, compare_policies
from jmdp_lib.simulators.estimates import estimated, world_of
from jmdp_lib.simulators.plans import coupling_of, discount_and_horizon, plan_of


def planned(env, policies, state, coupling="joint", truncation=1e-4, gamma=None, horizon=None):
    sharing = coupling_of(env, coupling)
    within = discount_and_horizon(env, gamma, horizon, truncation)
    return plan_of(world_of(env, state, sharing), policies, None, within, sharing, None)


def played(env, rules, state, coupling, num_runs, seed=0, keep_returns=False, **settings):
    """Estimates from a number of runs that is known beforehand."""
    plan = planned(env, rules, state, coupling, **settings)
    return estimated(plan, num_runs, np.random.SeedSequence(seed), keep_returns)


def up_to(level):
    """Order up to a level, at the depot."""
    return np.clip(level - np.arange(12), 0, 4)


def scores(found, exact):
    """[2] distances from exact mean and variance of the first gap, in standard errors."""
    mean, variance = exact
    return [
        (found.mean[0, 1] - mean) / (found.mean_error[0, 1] + 1e-9),
        (found.variance[0, 1] - variance) / (found.variance_error[0, 1] + 1e-9),
    ]


@pytest.mark.parametrize("kinds", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_what_is_played_has_the_moments_of_policy_gaps(coupling, kinds):
    """Four random models; with a third rule beside the two, which changes nothing."""
    found = []
    for seed in range(4):
        jm = shared_noise_model(seed, gamma=0.5)
        rules = two_rules(jm, kinds, seed)
        third = random_policy(np.random.default_rng(seed + 50), jm, False)
        exact = [x[1] for x in jl.laws.policy_gaps(jm, *rules, coupling=coupling)]
        env = Plain(jm) if seed == 3 else jm  # whose rows are stepped in turn
        found.append(scores(played(env, [*rules, third], 1, coupling, 300, seed), exact))
    assert np.abs(found).max() <= 4.5
    assert abs(np.mean(found, 0)[0]) <= 4.5 / 2


@pytest.mark.slow
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_rows_that_are_stepped_at_once_find_the_same(coupling):
    """With ends of episodes; all scores together must look like draws of N(0, 1)."""
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
        estimates = played(arrays_of(jm, 3), rules, 1, coupling, 4000, seed, truncation=1e-6)
        found += scores(estimates, exact)
        assert estimates.mean[0, 2] == estimates.truncation_error[0, 2] == 0.0  # equal rules
    assert min(normal_p_values(np.array(found))) > 1e-3


@pytest.mark.parametrize("coupling", COUPLINGS)
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
    unknown = [lambda s: rule[s], lambda s: rule[s]]  # that they are equal, nobody knows
    for env, rules in (
        (Plain(jm), unknown),
        (DEPOT, [up_to(4), lambda stock: up_to(4)[stock]]),
    ):
        estimates = played(env, rules, 0, coupling, 20, keep_returns=True)
        assert (estimates.returns[:, 0] == estimates.returns[:, 1]).all()
        known = played(env, rules[:1] * 2, 0, coupling, 20, keep_returns=True)
        assert (estimates.returns == known.returns).all()  # which were played as one
        assert estimates.returns.var() > 0.0
        assert estimates.truncation_error[0, 1] > 0.0
    assert played(jm, [rule, rule.copy(), other], 0, coupling, 20).truncation_error[0, 1] == 0.0


def test_an_environment_whose_episodes_end():
    lake = CoupledEnv(gymnasium.make("FrozenLake-v1"), rng=1)
    lake.reset()
    lake.unwrapped.s = 9
    jm = frozen_lake(gamma=0.7)
    rules = [random_policy(np.random.default_rng(k), jm, False) for k in range(2)]
    found = played(lake, rules, None, "joint", 60, gamma=0.7, horizon=25)
    exact = [x[9] for x in jl.laws.policy_gaps(jm, *rules)]
    assert np.abs(scores(found, exact)).max() <= 4.5


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


def test_those_that_remain_are_played_on_by_their_own_rule():
    def returns(rules, chosen):
        plan = planned(DEPOT, rules, 5).only(chosen)
        plan = pickle.loads(pickle.dumps(plan))
        return estimated(plan, 50, np.random.SeedSequence(0), keep_returns=True).returns

    alone = returns([up_to(3), up_to(5)], [0, 1])
    among_others = returns([up_to(9), up_to(3), up_to(5)], [1, 2])
    assert np.array_equal(alone, among_others)


CHAIN = jl.coupled_reward_chain(2)


@pytest.mark.parametrize(
    ("env", "policies", "message"),
    [
        (CHAIN, [[0, 0]], "needs two policies or more, got 1"),
        (CHAIN, [[0, 0], [0, 5]], r"policies\[1\]: policy\[1\]"),
        (CHAIN, [[0, 0], None], r"policies\[1\]: policy must have shape"),
        (CHAIN, [lambda s: 7, [0, 0]], r"policies\[0\]: policy\(0\) must be"),
        (DEPOT, [up_to(4), lambda s: 1 // 0], r"policy\(states\) failed: ZeroDivisionError"),
    ],
)
def test_bad_input(env, policies, message):
    with pytest.raises(ValueError, match=message):
        compare_policies(env, policies, state=0, rng=0)
