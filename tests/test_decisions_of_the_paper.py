"""The decisions of "Reading the paper": each number is computed, and the page prints it."""

import re

import numpy as np
import pytest
from programs import ROOT

import jmdp_lib as jl
from jmdp_lib.solvers.incremental import alpha

PAGE = ROOT / "book" / "paper.md"
GRID, GOAL = jl.windy_gridworld(3), jl.goal_policy(3)


def assert_printed(decision, *numbers):
    """The page prints each of these under "In numbers" of the decision."""
    section = PAGE.read_text().split(f"\n### {decision}. ")[1].split("\n### ")[0]
    printed = re.findall(r"-?\d+(?:[./]\d+)?", section.split(":In numbers:")[1])
    assert [number for number in numbers if number not in printed] == []


def test_decision_1_a_sign():
    m = jl.jipe2(GRID, GOAL).moments
    right, up = (6, 1), (6, 0)
    common = m.second(right, right) - 2 * m.second(right, up) - m.gap_mean[6, 1, 0] ** 2
    variance = common + m.second(up, up)
    printed = common - m.second(up, up)
    assert m.gap_variance[6, 1, 0] == pytest.approx(variance)
    assert_printed(1, f"{variance:.3f}", f"{printed:.0f}")


def test_decision_2_a_condition():
    """Cantelli's bound for the reversed gap bounds this probability from below."""
    m = jl.jipe2(jl.windy_gridworld(3, gust_prob=0.01), GOAL).moments
    left_right = 1, 3, 1
    variance = m.gap_variance[left_right]
    formula = variance / (variance + m.gap_mean[left_right] ** 2)
    assert m.inferiority_bound[left_right] == 1.0
    assert m.inferiority_bound[1, 1, 3] == pytest.approx(formula)
    assert_printed(2, f"{formula:.3f}", f"{1 - formula:.3f}")


def test_decision_3_one_random_variable():
    payer = jl.JMDP([[1.0]], [[[1.0, 0.0]]], [[[0, 0]]], 0.5)
    assert jl.jipe2(payer, [[0.5, 0.5]]).moments.variance[0, 0] == pytest.approx(1 / 12)
    chain = jl.coupled_reward_chain(25, 0.99)
    correlation = jl.jipe2(chain, jl.uniform_policy(chain)).moments.correlation[0, 0, 1]
    coin = chain.rewards[
        : chain.starts[1]
    ]  # of the first state; without coalescence the others cancel
    assert np.corrcoef(coin.T)[0, 1] == pytest.approx(-1)
    assert np.ptp(coin.mean(1)) == 0
    assert_printed(3, "1/12", f"{correlation:.2f}")


def test_decision_4_distinct_states():
    flat = jl.coupled_reward_chain(3, gamma=0.0)
    m = jl.jipe2(flat, jl.uniform_policy(flat)).moments
    assert_printed(4, f"{m.second((0, 0), (1, 0)):.2f}", f"{m.second((0, 0), (0, 0)):.1f}")


def test_decision_5_noise_of_a_state():
    two = ~np.eye(4, dtype=bool)  # the gap of an action and itself is zero
    for coupling in ("joint", "common"):
        variance = jl.jipe2(GRID, GOAL, coupling=coupling).moments.gap_variance[:, two].mean()
        assert_printed(5, f"{variance:.2f}")


def test_decision_6_reward_and_next_state():
    def coins(s, a, u):
        """u = 0..3 is two coins; state 2 pays 1 in every step, state 1 nothing."""
        return (u % 2, 1 + u // 2) if s == 0 else (s - 1.0, s)

    for odds, exact in (([0.5, 0.0, 0.0, 0.5], 1.0), ([0.25] * 4, 0.5)):
        jm = jl.JMDP.from_step(3, 1, 0.5, odds, coins)
        variance = jl.jipe2(jm, np.ones((3, 1))).moments.variance[0, 0]
        assert variance == pytest.approx(exact)
        assert_printed(6, f"{variance:.1f}")


def test_decision_7_bounded_rewards():
    always = jl.JMDP([[1.0]], [[[3.0]]], [[[0]]], gamma=0.9)
    zero = jl.apply_t2(always, [[1.0]], [[0.0]], [[[[0.0]]]])[1].item()
    for bound in (3.0, 1.0):
        weight = jl.norm_weight(2, 0.9, bound)  # the collection (1, weight) has norm one
        moved = jl.apply_t2(always, [[1.0]], [[1.0]], [[[[weight]]]])[1].item()
        assert_printed(7, f"{(moved - zero) / weight:.2f}")


def test_decision_8_order_zero():
    """With the empty product equal to one, order 1 is Bellman's equation."""
    transitions, rewards = GRID.marginal_mdp()
    after = np.einsum("sat,tb->satb", transitions, GOAL).reshape(GOAL.size, -1)
    means = np.linalg.solve(np.eye(GOAL.size) - GRID.gamma * after, rewards.ravel())
    assert jl.jipe(GRID, GOAL, order=1).moments.mean.ravel() == pytest.approx(means)


def test_decision_9_visits():
    clock, visits = 2.0 ** np.arange(1, 60), np.arange(2, 61)
    of_clock, of_visits = (np.prod([1 - alpha((1.0, 1.0), n) for n in x]) for x in (clock, visits))
    assert_printed(9, f"{of_clock:.3f}", f"1/{1 / of_visits:.0f}")


def pair_matrix(jm):
    """P_2 under the uniform policy, one row for each pair to start from."""
    shape = (jm.num_states, jm.num_actions) * 2
    pairs = np.eye(np.prod(shape)).reshape(-1, *shape)
    return np.array([jl.pair_step(jm, jl.uniform_policy(jm), pair).ravel() for pair in pairs])


def test_decision_10_weights_of_gaps():
    step = pair_matrix(jl.inventory(3, 2, demand_probs=[0.25, 0.5, 0.25]))
    separate = ~np.eye(12, dtype=bool).ravel()
    radius = np.abs(np.linalg.eigvals(step[separate][:, separate])).max()
    start = np.einsum("st,ab->satb", np.eye(4), 1 - np.eye(3)).ravel() / 24
    weights = 0.1 * np.linalg.solve((np.eye(144) - 0.9 * step).T, start)
    reached = weights > 1e-12
    roots = np.sqrt(weights[reached])
    norm = np.linalg.norm(roots[:, None] * step[np.ix_(reached, reached)] / roots, 2)
    assert radius < 1
    assert norm <= 0.9**-0.5
    numbers = [f"{x:.2f}" for x in (radius, weights[separate].sum(), norm)]
    assert_printed(10, *numbers, f"{0.9**-0.5:.3f}")


def test_decision_11_a_cone():
    theta, second = 1.0, 0.5
    smallest = np.linalg.eigvalsh([[1.0, theta], [theta, second]])[0]
    assert_printed(11, f"{second - theta**2:.1f}", f"{smallest:.2f}")


def test_decision_12_noise():
    """Lemma A.3, E[w^2] <= C_0 + C_1 ||M||^2, with a fourth of the constants of eq. (59)."""
    jm = jl.windy_gridworld(2, gamma=0.8)
    rng = np.random.default_rng(3)
    policy = rng.dirichlet(np.ones(4), size=4)
    mean, second = rng.normal(size=(4, 4)), rng.normal(size=(4, 4, 4, 4))
    weight = jl.norm_weight(2, jm.gamma)
    norm = max(np.abs(mean).max(), np.abs(second).max() / weight)
    reach = max(jm.gamma, 2 * jm.gamma + jm.gamma**2 * weight)
    for coordinate in ([(0, 1)], [(0, 1), (0, 1)], [(0, 1), (0, 3)], [(0, 1), (2, 0)]):
        draws = [jl.sample_t2(jm, policy, mean, second, coordinate, rng=rng) for _ in range(500)]
        assert np.var(draws) <= (8 + 8 * reach**2 * norm**2) / 4


@pytest.mark.parametrize(("rewards", "unit"), [("unit", 1.0), ("signed", 4.0)])
def test_decision_13_settings(rewards, unit):
    chain = jl.coupled_reward_chain(4, 0.9, rewards=rewards)
    m = jl.jipe2(chain, jl.uniform_policy(chain)).moments
    assert np.ptp(m.variance[0]) == pytest.approx(0.0)
    assert_printed(13, f"{m.variance[0, 0] / unit:.4f}", f"{m.correlation[0, 0, 1]:.4f}")
