"""Local evaluation: certificates against whole solutions, and what is refused."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from strategies import implicit, on_all_couplings, random_policy

import jmdp_lib as jl
from jmdp_lib.large import ImplicitJMDP, local_jipe2
from jmdp_lib.large.exploration import view_explored
from jmdp_lib.large.implicit import Region
from jmdp_lib.large.local import _solution, deviation_error, gap_variance_error

MODELS, STATES = 12, 10  # random models in one, which never lead into each other


def many_models(gamma, coupling, low, high):
    """Rings of states whose successors are near, so that a part of each can be ignored. Rewards are
    mostly near the ends of their range; half of the rings have a deterministic policy."""
    rng = np.random.default_rng(int(100 * gamma))
    shape = (MODELS, STATES, 2, 2)
    steps = rng.integers(-2, 3, shape) + np.arange(STATES)[:, None, None]
    successors = steps % STATES + STATES * np.arange(MODELS)[:, None, None, None]
    probs = np.repeat(rng.dirichlet(np.ones(2), MODELS), STATES, 0)
    if coupling == "common":  # one distribution of tables for all states
        probs[:] = 0.5
    sizes = rng.uniform(-1.0, 1.0, (len(probs), 2, 2))
    sizes = np.sign(sizes) * np.abs(sizes) ** 0.2
    rewards = np.clip((low + high) / 2 + (high - low) / 2 * sizes, low, high)
    jm = jl.JMDP(probs, rewards, successors.reshape(rewards.shape), gamma)
    policies = [random_policy(rng, jm, deterministic) for deterministic in (False, True)]
    half = jm.num_states // 2
    return jm, np.concatenate([policies[0][:half], policies[1][half:]])


def check_certificate(local, whole, states):
    """Means, deviations, covariances and gaps of the queried states against the whole solution."""
    moments = local.moments
    gap_error, error = local.gap_error + 1e-9, local.return_error + 1e-9
    deviation = np.sqrt(moments.variance)
    assert np.all(np.abs(local.gap_mean - whole.gap_mean[states]) <= gap_error)
    off = np.abs(np.sqrt(local.gap_variance) - np.sqrt(whole.gap_variance[states]))
    assert np.all(off <= gap_error)
    assert np.all(np.abs(moments.mean - whole.mean[states]) <= error)
    assert np.all(np.abs(deviation - np.sqrt(whole.variance[states])) <= error)
    products = (deviation + error)[:, :, None] * (deviation + error)[:, None]
    products -= deviation[:, :, None] * deviation[:, None]
    assert np.all(np.abs(moments.covariance - whole.covariance[states]) <= products)
    return off.max()


RANGES = [(-1.0, 1.0), (-3.0, 5.0), (2.0, 6.0), (-1.0, 0.0), (-7.0, -4.0)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@pytest.mark.parametrize("reward_range", RANGES)
@pytest.mark.parametrize(
    ("gamma", "coupling"), [(0.9, "joint"), (0.8, "independent"), (0.7, "common")]
)
def test_the_certificate_holds_on_many_models(gamma, coupling, reward_range):
    """A part of the states and all of them, against the enumerated model."""
    jm, policy = many_models(gamma, coupling, *reward_range)
    model = replace(implicit(jm), reward_range=reward_range)
    states = np.arange(0, jm.num_states, STATES)
    whole = jl.jipe2(jm, policy, tol=1e-11, coupling=coupling, states=states).moments
    bounds = []
    for share, tol in ((2, 1e-6), (5, 1e-6), (STATES, 1e-3)):
        limits = {"tol": tol, "max_states": share * MODELS}
        local = local_jipe2(model, policy, states=states.tolist(), coupling=coupling, **limits)
        assert local.num_explored <= share * MODELS
        assert local.error_bound == local.gap_error.max()
        off = check_certificate(local, whole, states)
        bounds.append(local.error_bound)
    assert bounds[0] > bounds[1]
    assert local.converged
    assert off <= local.error_bound <= 1e-3 * model.reward_bound


def test_branches_that_coalesce_need_no_exploration():
    """Common noise, and a policy that returns to one place: the branches meet after two steps."""
    width = 10**6

    def step(state, action, noise):
        return action * (state % 2), (0 if action else 3 * state) + 7 * noise % width

    model = ImplicitJMDP.from_step(2, 0.95, [0.1] * 10, step, (0.0, 1.0))
    local = local_jipe2(model, lambda s: 1, states=[5], tol=1e-6, coupling="common")
    assert local.converged
    assert local.num_explored < 40


def test_everything_explored_is_jipe2():
    """By cells, one of them twice: an array has an entry for each."""
    jm, policy = jl.windy_gridworld(4, gamma=0.8), jl.goal_policy(4)
    numbered, states = implicit(jm), [*range(16), 3]

    def tables(cell):
        probs, rewards, after = numbered.tables(4 * cell[0] + cell[1])
        return probs, rewards, [[divmod(s, 4) for s in row] for row in after]

    cells = ImplicitJMDP(tables, 4, 0.8, (0.0, 1.0))
    rows = policy.reshape(4, 4, 4)
    local = local_jipe2(cells, rows, states=[divmod(s, 4) for s in states], tol=1e-5)
    whole = jl.jipe2(jm, policy, tol=1e-11).moments
    assert_allclose(local.gap_variance, whole.gap_variance[states], atol=1e-8)
    assert_allclose(local.gap_mean, whole.gap_mean[states], atol=1e-8)
    assert_allclose(local.moments.covariance, whole.covariance[states], atol=1e-8)
    assert local.num_explored == 16


def test_degenerate_models():
    alone = ImplicitJMDP(lambda s: ([1.0], [[s % 2]], [[s + 1]]), 1, 0.5, (0, 1))
    assert local_jipe2(alone, lambda s: [1.0], states=[0]).gap_variance.tolist() == [[[0.0]]]
    myopic = ImplicitJMDP(lambda s: ([1.0], [[0.0, 1.0]], [[-s, 2 * s]]), 2, 0.0, (0, 1))
    assert local_jipe2(myopic, lambda s: 0, states=[1]).num_explored == 1


def test_an_endless_exploration_stops_at_its_budget():
    def step(state, action, noise):
        return noise / 3.0, (*state, action, noise)

    model = ImplicitJMDP.from_step(2, 0.999, [0.25] * 4, step, (0.0, 1.0))
    with pytest.warns(
        jl.ConvergenceWarning, match="after 300 states.* above the 0.001 that tol allows"
    ):
        local = local_jipe2(model, lambda s: [0.5, 0.5], states=[()], max_states=300)
    assert not local.converged
    assert local.num_explored == 300
    assert "NOT converged" in repr(local)
    assert local.error_bound > 100.0


def test_a_small_memory_means_a_smaller_model(leave):
    def step(place, action, push):  # a walk on all integers, which pays at zero
        return float(place == 0 and action), place + action - push

    walk = ImplicitJMDP.from_step(2, 0.8, np.full(9, 1 / 9), step, (0.0, 1.0))
    leave(200_000)
    with pytest.warns(jl.ConvergenceWarning, match="out of states or memory"):
        local = local_jipe2(walk, lambda s: [0.5, 0.5], states=[0], tol=1e-5)
    assert 3 <= local.num_explored < 500


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (([0.5, 0.4], [[0.0]] * 2, [[0]] * 2), "sum of probabilities"),
        (([1.0], [[2.0]], [[0]]), r"rewards\[0, 0\] .* = 2.0 is not in \[0, 1\]"),
        (([1.0], [[0.0]], [[[1, 2]]]), "unhashable"),
        (([1.0], [[0.0, 1.0]], [[0, 0]]), "rewards must have shape"),
        (([1.0], [[0.0]], [[0, 0]]), "next states must be 1 lists of 1"),
        (([1.0], [[np.nan]], [[0]]), "is not finite"),
        (None, "cannot unpack"),
    ],
)
def test_bad_tables_are_refused_where_they_show(tables, message):
    good = [1.0], [[1.0]], [["bad"]]
    model = ImplicitJMDP(lambda s: tables if s == "bad" else good, 1, 0.9, (0, 1))
    with pytest.raises(ValueError, match=f"tables of state 'bad': .*{message}"):
        local_jipe2(model, lambda s: [1.0], states=["bad"])


def test_a_step_that_is_impure_at_a_few_states_is_refused():
    rng = np.random.default_rng(0)

    def step(cell, action, gust):  # an endless line, and luck at two cells
        luck = rng.random() if cell in (-3, 5) else 0.0
        return luck, cell + (1 if action == 0 else -1) - gust

    def drawn(cell, action, gust):
        return float(cell > 3 and random.random() > 2.0), cell + 1 - 2 * action  # never pays

    line = partial(ImplicitJMDP.from_step, 2, 0.8, [0.7, 0.3])
    query = {"policy": lambda cell: [0.5, 0.5], "states": [2]}
    with pytest.raises(ValueError, match=r"tables of state (-3|5): they must be pure, but differ"):
        local_jipe2(line(step, (0.0, 1.0)), **query)
    with pytest.raises(ValueError, match="draws from a global generator, but must be pure"):
        local_jipe2(line(drawn, (0.0, 1.0)), **query)


# The constants of the certificate: models on which a bound of `large.exploration` is attained,
# or nearly so. There every constant is needed, and a smaller one fails.


def solved_core(model, policy, core, also=(), coupling="joint"):
    """The solution with the states `core` as queries and core, and `also` explored."""
    region = Region.of(model, policy, coupling, core, 100)
    for state in also:
        region.explore([region.index[state]])
    view = view_explored(region, 1e-12, theta=1e6)
    assert view.core.sum() == len(core)
    return _solution(region, view, 1e-6)[0]


def nearly(bounds, missed, slack=1.03):
    """The bound of the first gap, or return, holds for what was missed, and is attained up to the
    slack."""
    return missed * (1.0 - 1e-9) <= bounds.ravel()[1] <= slack * missed


def two_ways(length, noisy, following, low=-1.0, high=1.0, gamma=0.5):
    """From "start" the actions lead two ways, over `length` cells that pay the middle: one to the
    top of the range for good, one to its bottom. noisy: the first rewards are the ends of the
    range, at random; following: and so are the ways."""

    def tables(state):
        if state == "start":
            ways = [[("up", 0), ("down", 0)], [("down", 0), ("up", 0)]]
            paid = [[high, low], [low, high]]
            middle = [[(low + high) / 2] * 2] * 2
            return [0.5, 0.5], paid if noisy else middle, ways if following else ways[:1] * 2
        way, cell = state
        paid = (low + high) / 2 if cell < length else high if way == "up" else low
        return [0.5, 0.5], [[paid] * 2] * 2, [[(way, min(cell + 1, length))] * 2] * 2

    cells = [(way, cell) for cell in range(length) for way in ("up", "down")]
    return ImplicitJMDP(tables, 2, gamma, (low, high)), cells


@pytest.mark.slow
@on_all_couplings
@pytest.mark.parametrize("reward_range", RANGES)
def test_values_at_opposite_ends_attain_the_bounds(coupling, reward_range):
    """E, e and w: branches that leave to the ends of the range, m - m~ = e and -e, so that a
    squared difference is twice the squares. If nothing varies, the L_2 distance is the bound. What
    was not explored earns the middle of the range."""
    low, high = reward_range
    for length, noisy in ((0, False), (3, False), (7, True)):
        model, cells = two_ways(length, noisy, False, low, high)
        solution = solved_core(model, lambda s: 0, ["start"], cells, coupling)
        missed = (high - low) * 0.5 ** (length + 1) / 0.5
        assert_allclose(solution.gap_mean, 0.0, atol=1e-9)
        assert nearly(solution.gap_error, missed)
        assert nearly(solution.return_error, missed / 2.0)  # of one branch, without the doubling
        assert_allclose(solution.moments.mean[0], (low + high) / 2 / 0.5, atol=1e-9)


@pytest.mark.parametrize("coupling", ["joint", "common"])
def test_values_that_follow_rewards_attain_the_bound(coupling):
    """Minkowski's inequality, |sd G - sd G~| <= E + ...: what is added points the same way."""
    model, cells = two_ways(7, noisy=True, following=True)
    solution = solved_core(model, lambda s: 0, ["start"], cells, coupling)
    assert solution.gap_variance[0, 0, 1] == pytest.approx(4.0)
    assert nearly(solution.gap_error, 2.0 * 0.5**8 / 0.5)


def noises(first, *, stay, to=("x", "y")):
    """The state "start" pays (u, -u) * first, u = -1 or 1, and leads to `to`; its third action ends
    for nothing. x pays 0.1 u, y pays -0.1 u and "big" pays u: once, or for good if `stay`."""
    sizes = {"x": 0.1, "y": -0.1, "big": 1.0, "end": 0.0}

    def tables(state):
        if state == "start":
            return [0.5, 0.5], [[u * first, -u * first, 0.0] for u in (-1, 1)], [[*to, "end"]] * 2
        after = state if stay else "end"
        return [0.5, 0.5], [[u * sizes[state]] * 3 for u in (-1, 1)], [[after] * 3] * 2

    return ImplicitJMDP(tables, 3, 0.9, (-1.0, 1.0))


@on_all_couplings
def test_variances_of_branches_that_leave_attain_the_bound(coupling):
    """D: v of each branch, and with common noise -2 c(x, y) = v(x) + v(y). Its share of the sd."""
    model = noises(1.0, stay=False)
    solution = solved_core(model, lambda s: 2, ["start"], ["x", "y", "end"], coupling)
    first = 2.0 if coupling == "independent" else 4.0  # two draws of the first rewards, or one
    later = 0.81 * 0.01 * (4.0 if coupling == "common" else 2.0)
    assert solution.gap_variance[0, 0, 1] == pytest.approx(first)
    assert nearly(solution.gap_error, np.sqrt(first + later) - np.sqrt(first))


@pytest.mark.parametrize(
    ("to", "core", "also", "missed", "slack"),
    [
        # D with common noise: 2 sigma-bar(y) t, where the other branch has the core's largest sd.
        # D is a fifth of the variance, and the root is convex.
        (("y", "big"), ["start", "big"], ["y", "end"], 0.1, 1.2),
        # The L_2 distance where nothing else is a bound: for two returns Z and -Z it is attained.
        (("x", "y"), ["start"], ["x", "y", "end"], 0.2, 1.03),
    ],
    ids=["stays", "opposite"],
)
def test_bounds_with_common_noise_are_attained(to, core, also, missed, slack):
    solution = solved_core(noises(0.0, stay=True, to=to), lambda s: 2, core, also, "common")
    assert nearly(solution.gap_error, missed * 0.9 / np.sqrt(0.19), slack)


def test_a_return_is_farther_than_w_from_a_wrong_value():
    """A smaller sigma-bar must bound the L_2 distance of Z and m~. Their largest sd, w, does not.

    From x and y returns are w or -w, at random, and half of them stay inside: m~ is off by e. The
    first reward makes up for m~, so that the core sees a constant, and all of Z - m~ is missed.
    """
    gamma = 0.5
    w = 2.0
    off = 0.5  # -m~ of x, whose return of w is not explored after its first reward; m~ of y

    def tables(state):
        if state == "start":
            paid = gamma * off
            return [0.5, 0.5], [[paid, 0.0], [-paid, 0.0]], [["x", "end"], ["y", "end"]]
        ends = {"x": ["top", "bottom"], "y": ["top of y", "bottom of y"]}.get(state, [state] * 2)
        pays = {"end": 0.0, "top": 1.0, "top of y": 1.0, "bottom": -1.0, "bottom of y": -1.0}
        rewards = [[1.0] * 2, [-1.0] * 2] if state in ("x", "y") else [[pays[state]] * 2] * 2
        return [0.5, 0.5], rewards, [[to] * 2 for to in ends]

    model = ImplicitJMDP(tables, 2, gamma, (-1.0, 1.0))
    explored = ["x", "y", "end", "bottom", "top of y"]
    solution = solved_core(model, lambda s: 0, ["start"], explored)
    assert solution.moments.variance[0, 0] == pytest.approx(0.0, abs=1e-9)
    deviation = gamma * np.sqrt(w**2 + off**2)  # of the true return
    assert deviation > gamma * w
    assert deviation * (1.0 - 1e-9) <= solution.return_error[0, 0] <= 1.1 * deviation


def rare(inside):
    """Both actions of "start" lead to "met", whose policy nearly always ends the game. Its rare
    action pays -1 or 1: at once, or a step later if "met" is inside the core."""

    def tables(state):
        if state == "start":
            return [0.5, 0.5], [[1.0, -1.0], [-1.0, 1.0]], [["met", "met"]] * 2
        pays = {"met": not inside, "dice": inside, "end": False}[state]
        to = "dice" if inside and state == "met" else "end"
        return [0.5, 0.5], [[0.0, float(u * pays)] for u in (-1, 1)], [["end", to]] * 2

    def policy(state):
        return {"met": [0.99, 0.01], "dice": [0.0, 1.0]}.get(state, [1.0, 0.0])

    return ImplicitJMDP(tables, 2, 0.9, (-1.0, 1.0)), policy


@pytest.mark.parametrize("coupling", ["joint", "independent"])
def test_branches_that_meet_and_take_a_rare_action(coupling):
    """Branches that stay separate at a state take other actions there than the policy does: more
    often those that are rare. They meet outside of the core, or are followed alone in it."""
    for inside, factor in ((False, 0.81), (True, 0.81**2)):
        model, policy = rare(inside)
        core = ["start", "met"] if inside else ["start"]
        also = ["end", "dice"] if inside else ["met", "end"]
        solution = solved_core(model, policy, core, also, coupling)
        first = 4.0 if coupling == "joint" else 2.0
        added = 2.0 * 0.01 * 0.99 * factor
        assert solution.gap_variance[0, 0, 1] == pytest.approx(first)
        assert nearly(solution.gap_error, np.sqrt(first + added) - np.sqrt(first))


def test_errors_of_deviations_and_of_variances_add_up():
    """E + D / (s + (s^2 - D)^(1/2)), s = sd G~ - E: attained downwards, never exceeded."""
    moved, lost = 0.2, 0.3
    for deviation in (0.1, 0.25, 0.7, 1.0, 3.0):
        bound = deviation_error(np.array(deviation), np.array(moved), np.array(lost))
        between = np.maximum(np.linspace(deviation - moved, deviation + moved, 101), 0.0)
        ends = [np.sqrt(np.maximum(between**2 + x, 0.0)) for x in (-lost, lost)]
        farthest = np.abs(np.array(ends) - deviation).max()
        assert farthest <= bound * (1.0 + 1e-12)
        if (deviation - moved) ** 2 > lost:
            assert farthest == pytest.approx(bound)


def test_errors_of_the_solver_in_a_gap_variance():
    """8 lambda e + 4 e^2 is attained by means at the ends of the range, moved apart."""
    weight, e = 7.0, 0.3
    mean = np.array([weight / 2, -weight / 2])
    second = np.full((2, 2), 20.0)
    opposite = np.array([1.0, -1.0])

    def variance(mean, second):
        covariance = second - np.outer(mean, mean)
        return covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]

    moved = variance(mean + e * opposite, second - weight * e * np.outer(opposite, opposite))
    change = variance(mean, second) - moved
    assert gap_variance_error(weight, e) == pytest.approx(change)
