"""Which action is best: right decisions, honest intervals, few false ones, clear errors."""

from functools import partial

import numpy as np
import pytest
from brute import log_capital
from gymnasium.wrappers import TimeLimit
from strategies import Counting, Plain, arrays_of, on_all_couplings, raised
from test_branches import Paying, begun

import jmdp_lib as jl
from jmdp_lib.simulators import SimulatorError, compare_actions, compare_policies, gaps

# Two actions of one state; `bounded` is for simulators that do not say what range rewards have.
decide = partial(compare_actions, policy=[0], actions=[0, 1], state=0, rng=0)
bounded = partial(decide, reward_range=(0.0, 1.0))


def bandit(means, gamma=0.0):
    """One state; every action pays 1 with its probability, under one shared uniform draw."""
    cuts = np.sort(np.unique([0.0, 1.0, *means]))
    middle = (cuts[1:] + cuts[:-1]) / 2
    rewards = (middle[:, None] < np.array(means)).astype(float)
    return jl.JMDP([np.diff(cuts)], [rewards], np.zeros((1, *rewards.shape), int), gamma)


# The actions win under opposite draws.
COINS = jl.JMDP([[0.5, 0.5]], [[[1.0, 0.0], [0.0, 1.0]]], np.zeros((1, 2, 2), int), 0.0)
GRID = (jl.windy_gridworld(5), jl.goal_policy(5), [1, 3])


@pytest.mark.parametrize("method", ["betting", "asymptotic"])
def test_the_better_action_is_found_and_the_interval_holds(method):
    jm, policy = jl.windy_gridworld(3, gamma=0.8), jl.goal_policy(3)
    exact = jl.jipe2(jm, policy).moments
    decision = compare_actions(jm, policy, [1, 2], state=3, budget=40_000, method=method, rng=0)
    assert (decision.verdict, decision.best, decision.remaining) == ("better", 1, (1,))
    low, high = decision.intervals[0, 1]
    assert 0.0 < low <= exact.gap_mean[3, 1, 2] <= high
    np.testing.assert_allclose(decision.intervals[1, 0], [-high, -low])
    assert decision.num_queries <= 40_000
    unseen = 1.0 - 0.05 ** (1.0 / decision.num_runs)  # events this rare are unseen in 5% of cases
    blind = f"asymptotic confidence sequence, blind to events rarer than {unseen:.2g} per run"
    assert decision.method == {"asymptotic": blind}.get(method, decision.method)
    assert decision.method.startswith(method)


def test_several_actions_are_eliminated():
    jm = bandit([0.2, 0.8, 0.5, 0.75])
    decision = decide(jm, actions=[0, 1, 2, 3], budget=20_000)
    assert (decision.verdict, decision.best, decision.open_pairs) == ("better", 1, ())
    assert np.isnan(decision.deciding_budget)
    assert "decides" not in repr(decision)
    exact = np.subtract.outer([0.2, 0.8, 0.5, 0.75], [0.2, 0.8, 0.5, 0.75])
    assert np.all((decision.intervals[..., 0] <= exact) & (exact <= decision.intervals[..., 1]))
    widths = np.diff(decision.intervals)[..., 0]
    assert widths[0, 2] > 2.0 * widths[1, 3]  # those that were beaten were not played on


def test_equivalent_within_a_margin_and_undecided_without():
    near = decide(bandit([0.5, 0.51]), budget=4_000, margin=0.15)
    assert (near.verdict, near.best, near.remaining) == ("equivalent", None, (0, 1))
    assert near.num_queries < 4_000
    never = decide(bandit([0.5, 0.5]), budget=4_000)
    assert (never.verdict, never.best) == ("undecided", None)
    assert 3_600 <= never.num_queries <= 4_000  # the runs up to the next look would take more


def test_an_undecided_comparison_says_what_would_decide():
    """The budget that it names decides in most cases: in half of them the estimate is too low."""
    jm = bandit([0.5, 0.6])
    decided = []
    for seed in range(12):
        short = decide(jm, rng=seed, budget=60)
        if short.verdict != "undecided" or not np.isfinite(short.deciding_budget):
            continue
        ((first, second, mean, error),) = short.open_pairs
        assert mean == short.estimates.mean[first, second] >= 0.0
        assert error == short.estimates.mean_error[first, second]
        shown = f"; {first} against {second}: {mean:.3g} +- {error:.2g}; a budget of about "
        assert f"{shown}{short.deciding_budget:,.0f} decides if that is right)" in repr(short)
        assert 60 < short.deciding_budget < 10_000
        longer = decide(jm, rng=seed, budget=int(short.deciding_budget))
        decided.append(longer.verdict == "better")
    assert len(decided) >= 6
    assert np.mean(decided) >= 0.5
    three = decide(bandit([0.1, 0.8, 0.81]), actions=[0, 1, 2], budget=200)
    assert three.remaining == (1, 2)
    assert [{*pair[:2]} for pair in three.open_pairs] == [{1, 2}]


def test_what_is_cut_off_is_in_the_interval():
    """Action 1 earns nothing at once and 1 for ever after: one step shows the wrong sign."""
    jm = jl.JMDP(np.ones((2, 1)), [[[0.5, 0.0]], [[1.0, 1.0]]], [[[0, 1]], [[1, 1]]], 0.9)
    short = decide(jm, policy=[0, 0], horizon=1, budget=2_000)
    gap = jl.jipe2(jm, [0, 0]).moments.gap_mean[0, 0, 1]
    assert short.verdict == "undecided"
    assert short.intervals[0, 1, 0] <= gap <= short.intervals[0, 1, 1]


@on_all_couplings
@pytest.mark.parametrize("make", [lambda jm: jm, Plain, arrays_of])
def test_branches_that_became_one_cost_no_more_queries(make, coupling):
    """Both return to the only state, and play alike from there; a budget allows for more."""
    env = make(bandit([0.5, 0.5], gamma=0.5))
    run = partial(bounded, env, coupling=coupling, horizon=3)
    first = 2 if coupling == "independent" else 1
    decision = run(budget=1_000)
    assert decision.num_queries == first * decision.num_runs > 0
    with pytest.raises(ValueError, match=f"budget must be at least {first + 4}"):
        run(budget=first + 3)


@pytest.mark.parametrize("actions", [[0, 1], [0, 1, 2, 3]])
def test_all_bets_of_a_call_share_its_level(actions, monkeypatch):
    """That a bet holds its level is shown below, by thousands of samples."""
    bets = []
    betting_bound = gaps.betting_bound

    def bet(x, low, high, alpha, *rest):
        bets.append((low, high, alpha))
        return betting_bound(x, low, high, alpha, *rest)

    monkeypatch.setattr(gaps, "betting_bound", bet)
    jm = bandit([0.5, 0.52, 0.54, 0.56])
    decision = decide(jm, actions=actions, alpha=0.06, budget=200)
    assert "valid at every sample size" in decision.method
    sides = len(actions) * (len(actions) - 1)  # of all pairs, at one look
    assert sum(alpha for *_, alpha in bets[:sides]) == pytest.approx(0.06)
    assert {(low, high) for low, high, _ in bets} == {(-1.0, 1.0)}


def test_a_declared_range_is_used_and_a_missing_one_asked_for():
    """A simulator may declare a range; without one, an environment or a simulator is refused."""
    declares = Plain(COINS)
    declares.reward_range = (0.0, 1.0)
    decision = decide(declares, budget=100)
    assert decision.method == decide(COINS, budget=100).method
    assert np.isfinite(decision.intervals).all()
    asking = r"pass reward_range=\(lo, hi\), or .*asymptotic"
    with pytest.raises(ValueError, match=asking):
        decide(Plain(COINS))
    with pytest.raises(ValueError, match=asking):
        decided_in(SHORT)
    assert decided_in(SHORT, reward_range=(0.0, 1.02), margin=0.8).verdict == "equivalent"


@pytest.mark.parametrize(
    "how", [{}, {"reward_range": (3.0, 3.0)}, {"method": "asymptotic"}], ids=str
)
def test_equal_rewards_divide_by_nothing(how):
    """All rewards are the same: the gap is zero for certain, and no margin is needed to say so."""
    jm = jl.JMDP([[1.0]], [[[3.0, 3.0]]], [[[0, 0]]], 0.0)
    decision = decide(jm, **how)
    runs = 128 if "method" in how else 8
    assert (decision.verdict, decision.num_runs) == ("equivalent", runs)
    assert not decision.intervals.any()


@pytest.mark.slow
@pytest.mark.parametrize("law", ["skewed", "rare", "wide", "coins"])
def test_confidence_sequences_hold_at_all_sample_sizes(law):
    rng = np.random.default_rng(1)
    shape = (400, 2_000)
    x, mean = {
        "skewed": (rng.exponential(size=shape).clip(max=8.0), 1.0 - np.exp(-8.0)),
        "rare": ((rng.random(shape) < 0.1) * 8.0, 0.8),
        "wide": (rng.choice([0.0, 8.0], size=shape), 4.0),
        "coins": (rng.choice([-1.0, 1.0], size=shape), 0.0),
    }[law]
    ends = (-1.0, 1.0) if law == "coins" else (0.0, 8.0)
    for side in (1.0, -1.0):
        capital = log_capital(side * x, side * mean, *sorted(side * np.array(ends)))
        assert np.any(capital >= np.log(40.0), axis=0).mean() <= 0.025
    wrong = np.zeros(shape[1], bool)
    for size in range(gaps.FIRST_ASYMPTOTIC, len(x) + 1, 4):
        low, high = (gaps.asymptotic_bound(side * x[:size], 0.05) * side for side in (1, -1))
        wrong |= (low > mean) | (high < mean)
    assert wrong.mean() <= 0.05
    assert np.mean(high - low) < 1.8
    assert np.isinf(gaps.asymptotic_bound(x[: gaps.FIRST_ASYMPTOTIC - 1], 0.05)).all()


def test_a_betting_bound_is_where_the_capital_is_enough():
    """The bound is a root of the capital's path, from below; earlier bounds are kept."""
    x = np.random.default_rng(2).choice([0.0, 1.0, 8.0], size=500)
    low = gaps.betting_bound(x, 0.0, 8.0, 0.025)
    assert log_capital(x, low, 0.0, 8.0)[-1] >= np.log(40.0)
    closer = low + 2e-3 * (x.mean() - low)
    assert log_capital(x, closer, 0.0, 8.0)[-1] < np.log(40.0)
    assert 0.7 * x.mean() < low < x.mean()
    assert gaps.betting_bound(x, 0.0, 8.0, 0.025, earlier=2.9) == 2.9
    assert gaps.betting_bound(x, 0.0, 8.0, 0.025, earlier=1.0) == pytest.approx(low, rel=1e-3)
    assert gaps.betting_bound(np.zeros(9), 0.0, 8.0, 0.025) == 0.0


def test_a_failure_keeps_the_results_so_far():
    with pytest.raises(SimulatorError, match="licence server is gone") as caught:
        bounded(Counting(bandit([0.5, 0.5]), 600))
    result = caught.value.result
    assert result.verdict == "undecided"
    assert 500 < result.num_runs < 600
    assert np.isfinite(result.intervals).all()


def test_queries_never_exceed_the_budget():
    """Also not those of a chunk that the rest of the budget does not pay."""
    env = Counting(jl.windy_gridworld(3, gamma=0.8))
    ask = partial(compare_actions, env, jl.goal_policy(3), [0, 1], state=4, reward_range=(0, 1))
    with pytest.raises(ValueError, match="budget must be at least"):
        ask(budget=1)
    checked = env.queries
    for budget in (150, 400, 1_000):
        env.queries = 0
        assert ask(budget=budget, rng=0).num_queries <= env.queries - checked <= budget


class Rising(Counting):
    """Pays more than it declares after 300 queries."""

    reward_range = (0.0, 1.0)

    def query(self, state, actions, rng):
        rewards, after = super().query(state, actions, rng)
        return rewards + (self.queries > 300), after


def test_a_declared_range_holds_beside_a_wider_one():
    with pytest.raises(SimulatorError, match=r"reward 2.0 .* not in reward_range \(0.0, 1.0\)"):
        compare_actions(
            Rising(bandit([0.5, 0.5])), [0], [0, 1], state=0, reward_range=(0, 5), rng=0
        )


def test_a_failure_after_the_verdict_leaves_values_unknown():
    """Also where some of the runs for values went well."""
    env = Counting(bandit([0.4, 0.6]))
    whole = bounded(env)
    assert np.isfinite(whole.estimates.value).all()
    with pytest.warns(UserWarning, match=r"values are nan, .* failed: .*licence server"):
        decision = bounded(Counting(env.jm, env.queries - 1))
    assert (decision.verdict, decision.best) == (whole.verdict, whole.best) == ("better", 1)
    assert decision.num_queries == whole.history.num_queries[-1]
    assert whole.num_queries == decision.num_queries + decision.num_queries // 5
    assert np.isnan(decision.estimates.value).all()
    np.testing.assert_array_equal(decision.intervals, whole.intervals)


@pytest.mark.parametrize("env", [GRID[0], Plain(GRID[0])], ids=["tables", "queried"])
def test_a_smaller_budget_gives_a_prefix_of_a_larger_one(env):
    """Values cost no more than a fifth, and the budget that is merely allowed costs nothing."""
    options = {"state": 12, "reward_range": (0.0, 1.0), "rng": 0}
    calls = [
        compare_actions(env, *GRID[1:], budget=budget, **options)
        for budget in (300, 450, 1_000, 100_000)
    ]
    longest = calls[-1].history
    for call in calls:
        count = len(call.history.num_queries)
        assert (call.history.num_queries == longest.num_queries[:count]).all()
        assert (call.history.intervals == longest.intervals[:count]).all()
    assert calls[-1].num_queries == calls[-2].num_queries <= 800
    assert [call.verdict for call in calls] == ["undecided", "undecided", "better", "better"]


@pytest.mark.parametrize(
    ("env", "budget"),
    [(COINS, 7), (Plain(COINS), 3), (arrays_of(COINS), 63)],
    ids=["tables", "queried", "arrays"],
)
def test_a_budget_below_the_first_chunk_is_spent(env, budget):
    """On as many runs as it pays for certain; nobody looks at them."""
    for runs in (1, budget):
        decision = bounded(env, budget=runs)
        assert decision.num_runs == decision.num_queries == runs
        assert (decision.verdict, len(decision.history.num_queries)) == ("undecided", 0)
    assert decision.deciding_budget > budget
    gap = decision.estimates.mean[0, 1]
    if env is not COINS:
        return
    more = bounded(env, budget=budget + 1).estimates
    assert abs(8 * more.mean[0, 1] - 7 * gap) == 1.0  # one run more


def test_values_come_after_the_verdict_and_take_a_fifth_of_it():
    shop, policy = jl.inventory(), np.clip(6 - np.arange(11), 0, 5)
    decision = compare_actions(shop, policy, [0, 4], state=5, rng=0)
    verdict = decision.history.num_queries[-1]
    assert verdict < decision.num_queries <= 1.2 * verdict
    exact = jl.jipe2(shop, policy).moments.mean[5, [0, 4]]
    assert decision.estimates.value.shape == (2,)
    assert (abs(decision.estimates.value - exact) <= 4.5 * decision.estimates.value_error).all()
    short = compare_actions(shop, policy, [0, 4], state=5, rng=0, budget=int(verdict) + 2)
    assert short.num_queries == verdict
    assert np.isnan(short.estimates.value).all()
    assert "estimate_gaps(...).value" in repr(short)
    assert "estimate_gaps(...).value" not in repr(decision)


def patient(gap):
    """Two actions swap a small coin, and lead to states that pay coins for ever, one `gap` more."""
    rewards = [[[0.0, 0.01], [0.01, 0.0]], [[0.0] * 2, [1.0] * 2], [[gap] * 2, [1.0 + gap] * 2]]
    after = [[[1, 2]] * 2, [[1, 1]] * 2, [[2, 2]] * 2]
    return jl.JMDP(np.full((3, 2), 0.5), rewards, after, 0.8)


def compared(gap, **options):
    """Both actions of the patient model, with common coins."""
    options |= {"method": "asymptotic", "coupling": "common"}
    return decide(patient(gap), policy=[0] * 3, actions=[1, 0], **options)


def test_a_horizon_grows_where_its_cut_stands_in_the_way():
    """With a horizon of its own it is undecided, and says what blocks it."""
    exact = jl.jipe2(patient(0.004), [0] * 3).moments.gap_mean[0, 1, 0]
    decision = compared(0.004, budget=200_000)
    assert (decision.verdict, decision.best, decision.blocked_by) == ("better", 1, None)
    assert decision.intervals[0, 1, 0] <= exact <= decision.intervals[0, 1, 1]
    short = compared(0.001, budget=6_000)
    assert (short.verdict, short.blocked_by) == ("undecided", None)
    assert short.estimates.truncation_error[0, 1] > exact / 4  # of the horizon so far
    assert np.isfinite(short.deciding_budget)
    blocked = compared(0.004, budget=60_000, horizon=20)
    assert (blocked.verdict, blocked.blocked_by) == ("undecided", "horizon")
    assert np.isinf(blocked.deciding_budget)
    left = blocked.estimates.truncation_error[0, 1]
    assert f"no budget decides, since the horizon leaves {left:.3g} open" in repr(blocked)
    assert left > exact


def test_horizons_grow_whatever_the_budget_is():
    """So the runs of a smaller budget are the first of a larger one; the last look is its own."""
    small, large = (compared(0.0, budget=budget).history for budget in (15_000, 60_000))
    shared = len(small.num_queries) - 1
    assert shared > 2
    np.testing.assert_array_equal(small.num_queries[:shared], large.num_queries[:shared])
    np.testing.assert_array_equal(small.intervals[:shared], large.intervals[:shared])


def test_null_decisions_whose_horizon_grows_are_rarely_wrong():
    """Twenty here, hundreds in `benchmarks/decisions.py`; the cut is what two twins differ by."""
    wrong, grown = 0, 0
    for seed in range(20):
        decision = compared(0.0, budget=30_000, rng=seed)
        wrong += decision.verdict != "undecided"
        cut = decision.estimates.truncation_error[0, 1]
        grown += cut < 0.9 * 0.8**31 / 0.2  # of the default horizon alone
    assert wrong <= 2
    assert grown == 20


def tossing(env):
    """Pays the first action and a coin."""
    return 0.02 * env.first + (env.np_random.random() < 0.5)


SHORT = TimeLimit(Paying(tossing), 2)


def decided_in(env, **options):
    options |= {"gamma": 0.5, "budget": 3_000, "coupling": "common", "rng": 0}
    return compare_actions(begun(env), lambda seen: 0, [0, 1], **options)


def test_a_time_limit_that_stands_in_the_way_is_named():
    decision = decided_in(SHORT, reward_range=(0.0, 1.02))
    assert (decision.verdict, decision.blocked_by) == ("undecided", "time limit")
    assert "no budget decides, since the time limit leaves" in repr(decision)


def test_a_range_without_zero_is_refused_when_an_episode_ends():
    """Later rewards are zero, so intervals of the declared range would be wrong."""
    high = Paying(lambda env: 9.0 + tossing(env), 2)
    with pytest.raises(SimulatorError, match=r"reward 0.0, .* not in reward_range"):
        decided_in(high, reward_range=(9.0, 10.02))
    with pytest.raises(
        SimulatorError, match=r"step 1: reward 9\.0* of action 0 in state \[0.\] is not"
    ):
        decided_in(high, reward_range=(2, 3))
    assert decided_in(Paying(tossing, 2), reward_range=(0.0, 1.02)).blocked_by is None


def test_arrays_are_looked_at_from_256_runs_on():
    env = arrays_of(bandit([0.2, 0.8]))
    decision = bounded(env)
    looks = len(decision.history.num_queries)
    assert (decision.best, decision.num_runs, looks) == (1, 256, 1)
    small = bounded(env, budget=100)
    assert (small.verdict, small.num_runs) == ("better", 64)  # looked at when the budget ended


def test_values_have_the_offset_of_the_horizon_that_has_grown():
    jm = raised(patient(0.0), 1000.0)
    options = {"state": 0, "rng": 0, "method": "asymptotic", "coupling": "common"}
    estimates = compare_policies(jm, [[0] * 3, [1] * 3], **options).estimates
    exact = jl.jipe2(jm, [0] * 3).moments.mean[0, 0]
    assert abs(estimates.value[0] - exact) <= 5.0 * estimates.value_error[0]
