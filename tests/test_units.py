"""Answers do not depend on the unit of the rewards: if these are scaled by c, so are means.

Each solver yields numbers with the power of c that they scale by. Rewards of 1e-12 to 1e12 times
those of a random model must give the same numbers, up to rounding, and the same verdicts.
"""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from strategies import COUPLINGS, ROUTES, Plain, implicit, raised, random_policy

import jmdp_lib as jl
from jmdp_lib.solvers.trace import trace_jipe2

GAP = (1, 0, 1)
PROBS = np.array([0.2, 0.5, 0.3])
POINTS = np.linspace(-3.01, 3.03, 20)


def with_noise(rng, c, gamma=0.8):
    """A random model whose states share one distribution of tables, so that it knows its noise."""
    rewards = rng.uniform(-1.0, 1.0, (3, 3, 2)).round(2)
    return jl.JMDP(np.tile(PROBS, (3, 1)), c * rewards, rng.integers(3, size=(3, 3, 2)), gamma)


def converged(solution, unit, tol):
    assert solution.converged
    assert solution.error_bound <= tol * unit
    return solution


def second_order(jm, policy):
    rough = jl.jipe2(jm, policy, tol=1e-3)
    routes = [{"route": "sweeps"}, {"route": "dense"}, {"route": "sweeps", "initial": rough}]
    routes += [{"route": "reachable", "coupling": x} for x in COUPLINGS]
    for how in routes:
        m = converged(jl.jipe2(jm, policy, **how), jm.reward_bound, 1e-8).moments
        yield 1, m.mean
        yield 2, m.covariance
        yield 2, m.gap_variance
        yield 0, m.correlation
        yield 0, m.inferiority_bound
        yield 2, m.full_second()
    yield 1, jl.jipe2(jm, policy, route="sweeps").residuals[:10]


def order_n(jm, policy):
    solution = converged(jl.jipe(jm, policy, order=4), jm.reward_bound, 1e-8)
    for order in (1, 2, 3, 4):
        yield order, solution.moments.gap_moment([GAP] * order)
    yield 0, solution.moments.correlation


def gap_law(jm, policy):
    for coupling in ("joint", "common"):
        for law in jl.laws.gap_law(
            jm, policy, gaps=[GAP, (0, 1, 0)], width=0.05, coupling=coupling
        ):
            yield 1, law.mean
            yield 0, [law.prob_worse, law.prob_tie, law.prob_better]
            yield 1, [law.quantile(0.3), law.cvar(0.1)]
            yield 0, law.cdf(jm.reward_bound * POINTS)


def improvement(jm, policy):
    result = jl.laws.cautious_improvement(jm, policy, level=0.3)
    yield 0, result.policy
    yield 1, result.advantage
    yield 0, result.prob_better


def all_couplings(jm, policy):
    result = converged(jl.laws.coupling_range(jm, policy), jm.reward_bound, 1e-8)
    yield 2, [result.gap_variance_low, result.gap_variance_high]


def two_rules(jm, policy):
    for coupling in COUPLINGS:
        mean, variance = jl.laws.policy_gaps(jm, policy, [0, 1, 0], coupling=coupling)
        yield 1, mean
        yield 2, variance


def local(jm, policy):
    for coupling in ("joint", "common"):
        solution = jl.large.local_jipe2(
            implicit(jm), policy, states=[1], tol=1e-3, coupling=coupling
        )
        converged(solution, jm.reward_bound, 1e-3)
        yield 0, solution.num_explored
        yield 1, [solution.gap_mean, solution.gap_error]
        yield 2, solution.gap_variance


def features(jm, policy):
    phi = np.random.default_rng(3).normal(size=(jm.num_states, jm.num_actions, 3))
    exact = jl.jipe2(jm, policy).moments
    for cone in ("augmented", "psd"):
        solution = jl.projected_jipe2(jm, policy, phi, cone=cone)
        assert solution.converged
        yield 0, solution.contraction
        yield 1, solution.theta
        yield 2, solution.Theta
        yield 1, [solution.approximation_error(exact), solution.approximation_bound(exact)]


def learned(jm, policy):
    for form in ("full", "centred"):
        solution = jl.incremental_jipe2(jm, policy, 2000, form=form, rng=0)
        yield 1, solution.residuals
        yield 1, solution.moments.mean
        yield 2, solution.moments.covariance


def counted(jm, policy):
    simulator = Plain(jm)
    simulator.reward_range = jm.reward_range
    exact = jl.jipe2(jl.JMDP.from_simulator(simulator, 50, rng=0), policy).moments
    yield 1, exact.gap_mean
    yield 2, exact.gap_variance
    yield 1, jl.incremental_jipe2(simulator, policy, 200, rng=0).moments.mean


def simulated(jm, policy):
    pairs = jl.simulate_pairs(jm, policy, (0, 1), state=1, num_pairs=100, rng=0)
    yield 1, pairs
    yield 1, jl.simulate_returns(jm, policy, 100, rng=0)
    law = jl.laws.GapLaw.from_sample(
        GAP, np.subtract(*pairs.T), truncation_error=1e-7 * jm.reward_bound
    )  # a gap may lie at a point where the law is read
    yield 0, law.cdf(jm.reward_bound * POINTS)
    estimate = jl.simulators.estimate_gaps(
        jm, policy, [0, 1], state=1, num_runs=20, keep_returns=True, rng=0
    )
    yield 1, estimate.returns
    yield 1, [estimate.mean, estimate.mean_error]
    yield 2, [estimate.variance, estimate.variance_error]
    yield 0, [estimate.prob_worse, estimate.prob_tie]


def decided(jm, policy):
    decision = jl.simulators.compare_actions(
        jm,
        policy,
        [0, 1],
        state=1,
        margin=0.3 * jm.reward_bound,
        budget=5000,
        reward_range=jm.reward_range,
        rng=0,
    )
    yield 0, [decision.num_queries, decision.num_runs]
    yield 1, np.nan_to_num(decision.intervals, posinf=0.0, neginf=0.0)


def rates(jm, policy):
    yield 1, trace_jipe2(jm, policy, 5).residuals


def coupled(jm, policy):
    probs, rewards = jm.marginal_mdp()
    yield 2, jl.jipe2(jl.JMDP.from_mdp(probs, rewards, jm.gamma), policy).moments.gap_variance


SOLVERS = [
    second_order,
    order_n,
    gap_law,
    improvement,
    all_couplings,
    two_rules,
    local,
    features,
    learned,
    counted,
    simulated,
    decided,
    rates,
    coupled,
]


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.__name__)
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-12, 12))
def test_the_unit_of_the_rewards_does_not_matter(solver, seed, power):
    answers = []
    for c in (1.0, 10.0**power):
        rng = np.random.default_rng(seed)
        jm = with_noise(rng, c)
        policy = random_policy(rng, jm)
        answers.append([np.asarray(x, float) / c**k for k, x in solver(jm, policy)])
    for here, there in zip(*answers, strict=True):
        largest = np.nanmax(np.abs(here), initial=0.0)
        assert_allclose(there, here, rtol=1e-6, atol=1e-9 + 1e-6 * largest)


# Where all rewards are equal there is nothing to decide.
WITHOUT_REWARDS = [solver for solver in SOLVERS if solver is not decided]


@pytest.mark.parametrize("solver", WITHOUT_REWARDS, ids=lambda solver: solver.__name__)
def test_without_rewards_every_answer_is_zero(solver):
    """And it is certain: solvers converge, and every gap is a tie."""
    rng = np.random.default_rng(1)
    jm = with_noise(rng, 0.0)
    for power, answer in solver(jm, random_policy(rng, jm)):
        if power:
            assert_allclose(answer, 0.0, atol=1e-9)
    (law,) = jl.laws.gap_law(jm, jl.uniform_policy(jm), gaps=[GAP])
    assert law.prob_tie == pytest.approx((1.0, 1.0))


def deviations(jm, policy):
    """Standard deviations, or other numbers in the unit of the rewards, of gaps by every solver."""
    gap = (1, 1, 3)
    first = jl.jipe2(jm, policy, route="dense")
    for solution in (
        first,
        jl.jipe2(jm, policy, route="reachable"),
        jl.jipe2(jm, policy),
        jl.jipe2(jm, policy, route="sweeps", initial=jl.jipe2(jm, 0 * policy)),
        jl.jipe(jm, policy, order=2),
    ):
        assert solution.converged
        yield solution.moments.gap_variance[gap] ** 0.5
        yield solution.moments.correlation[gap]
    moments = jl.jipe(jm, policy, order=3).moments
    for same in (moments, pickle.loads(pickle.dumps(moments))):
        yield same.gap_moment([gap] * 2) ** 0.5
        yield np.cbrt(same.gap_central_moment(gap, 3))
    yield jl.laws.policy_gaps(jm, policy, np.zeros_like(policy)).variance[1] ** 0.5
    ends = jl.laws.coupling_range(jm, policy)
    yield [ends.gap_variance_low[gap] ** 0.5, ends.gap_variance_high[gap] ** 0.5]
    local = jl.large.local_jipe2(implicit(jm), policy, states=[1], tol=1e-6)
    yield local.gap_variance[0, 1, 3] ** 0.5
    yield np.subtract(*jl.simulate_pairs(jm, policy, (3, 1), state=1, num_pairs=200, rng=0).T)
    runs = {"state": 1, "num_runs": 200, "rng": 0}
    yield jl.simulators.estimate_gaps(jm, policy, [3, 1], **runs).mean
    yield jl.laws.cautious_improvement(jm, policy, level=0.0).policy[0]


@pytest.mark.slow
@pytest.mark.parametrize("constant", [-1e3, 1e3, 1e6, 1e9])
def test_a_constant_in_all_rewards_is_in_no_gap(constant):
    """Gaps agree to the digits that rewards still have after the constant was added to them."""
    jm = jl.inventory(6, 4, gamma=0.9)
    policy = np.clip(4 - np.arange(7), 0, 4)
    digits = np.spacing(abs(constant)) / (1.0 - jm.gamma)
    pairs = zip(deviations(jm, policy), deviations(raised(jm, constant), policy), strict=True)
    for before, after in pairs:
        assert_allclose(after, before, rtol=1e-6, atol=4.0 * digits)


def test_a_constant_is_in_no_law_and_in_no_decision():
    jm = jl.inventory(3, 2, gamma=0.8)
    policy = jl.uniform_policy(jm)
    high = raised(jm, 2.0**23)  # no digit of the rewards is lost
    laws = [jl.laws.gap_law(each, policy, gaps=[(1, 2, 0)], width=0.05)[0] for each in (jm, high)]
    (low, up), (least, most) = (law.prob_worse for law in laws)
    assert max(law.width for law in laws) <= 0.05
    assert max(low, least) <= min(up, most)  # both contain the truth
    changes = [jl.laws.cautious_improvement(each, policy, level=0.4) for each in (jm, high)]
    assert changes[0].switched.any()
    assert changes[1].policy.tolist() == changes[0].policy.tolist()
    assert changes[1].value == pytest.approx(changes[0].value + 5 * 2.0**23)


def test_gaps_lost_to_rounding_are_warned_of():
    """Rewards of 1e13 are rounded to multiples of 0.002, and so are their differences."""
    unit = jl.inventory(6, 4, gamma=0.9)
    tables = unit.table_states, unit.probs, 1e-3 * unit.rewards, unit.next_states
    small = jl.JMDP.from_tables(*tables, unit.num_states, unit.gamma)
    with pytest.warns(jl.ConvergenceWarning, match=r"below 0\.04, the rounding of returns"):
        moments = jl.jipe2(raised(small, 1e13), np.zeros(7, int)).moments
    assert moments.resolution > 0.04


@pytest.mark.parametrize("tables", [2, 2000])
@pytest.mark.parametrize("reward", [0.1, 1e6 + 0.1, -1e12 / 3.0])
def test_no_solver_certifies_less_than_rounding(reward, tables):
    """Every return is one number, whose only error is rounding: more in long sums."""
    probs = np.random.default_rng(0).dirichlet(np.ones(tables))
    paid = np.full((1, tables, 2), reward)
    jm = jl.JMDP([probs], paid, np.zeros(paid.shape, int), 0.99)
    exact = Fraction(reward) / (1 - Fraction(0.99))
    solutions = [jl.jipe2(jm, [0], tol=1e-6, **how) for how in ROUTES]
    solutions += [jl.jipe(jm, [0], order=order, tol=1e-6) for order in (1, 2)]
    local = jl.large.local_jipe2(implicit(jm), [0], states=[0])
    for solution in (*solutions, local):
        bound = local.return_error[0, 1] if solution is local else solution.error_bound
        assert solution.error_bound > 0.0
        assert abs(Fraction(solution.moments.mean[0, 1]) - exact) <= bound
