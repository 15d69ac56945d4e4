"""Local evaluation: certificates against whole solutions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import random_policy

import jmdp_lib as jl

MODELS, STATES = 50, 10  # random models in one, which never lead into each other


def many_models(seed, gamma, coupling, num_actions=2, num_tables=2):
    """Rings of states whose successors are near, so that a part of each can be left out."""
    rng = np.random.default_rng(seed)
    shape = (MODELS, STATES, num_tables, num_actions)
    steps = rng.integers(-2, 3, shape) + np.arange(STATES)[:, None, None]
    successors = steps % STATES + STATES * np.arange(MODELS)[:, None, None, None]
    probs = rng.dirichlet(np.ones(num_tables), shape[0])[:, None] + np.zeros(shape[:3])
    if coupling == "common":  # one law of tables for all states
        probs[:] = 1.0 / num_tables
    flat = (-1, num_tables, num_actions)
    rewards = rng.uniform(-1.0, 1.0, shape).reshape(flat)
    jm = jl.JMDP(probs.reshape(flat[:2]), rewards, successors.reshape(flat), gamma)
    policy = random_policy(rng, jm)
    pure = random_policy(rng, jm, deterministic=True)
    half = jm.num_states // 2
    return jm, np.concatenate([policy[:half], pure[half:]])


def check_certificate(local, whole, states):
    """Means, deviations, covariances and gaps of the queried states against the whole solution."""
    found, slack = local.moments, 1e-9
    gap, ret = local.gap_error + slack, local.return_error + slack
    deviation = np.sqrt(whole.variance[states])
    known = np.sqrt(found.variance)
    assert np.all(np.abs(local.gap_mean - whole.gap_mean[states]) <= gap)
    off = np.abs(np.sqrt(local.gap_variance) - np.sqrt(whole.gap_variance[states]))
    assert np.all(off <= gap)
    assert np.all(np.abs(found.mean - whole.mean[states]) <= ret)
    assert np.all(np.abs(known - deviation) <= ret)
    cross = ret[:, :, None] * (known + ret)[:, None, :] + known[:, :, None] * ret[:, None, :]
    assert np.all(np.abs(found.covariance - whole.covariance[states]) <= cross)
    return off.max()


@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@pytest.mark.parametrize(
    ("gamma", "coupling"), [(0.5, "joint"), (0.9, "joint"), (0.8, "independent"), (0.7, "common")]
)
def test_the_certificate_holds_on_many_models(gamma, coupling):
    jm, policy = many_models(int(100 * gamma), gamma, coupling)
    states = np.arange(0, jm.num_states, STATES)
    whole = jl.jipe2(jm, policy, tol=1e-11, coupling=coupling, queries=states).moments
    bounds = []
    for share in (2, 5):
        budget = share * MODELS
        local = jl.local_jipe2(jm, policy, states.tolist(), 1e-6, coupling, max_states=budget)
        assert local.num_explored <= budget
        assert local.error_bound == local.gap_error.max()
        off = check_certificate(local, whole, states)
        assert off > 1e-6
        bounds.append(local.error_bound)
    assert bounds[0] > bounds[1]
    local = jl.local_jipe2(jm, policy, states.tolist(), 1e-3, coupling)
    assert local.converged
    assert check_certificate(local, whole, states) <= local.error_bound <= 1e-3


def walk(reward=1.0, noise=2):
    """A walk on all integers, with states ("at", x): stay or go right, and the noise pushes left.

    Going right earns `reward` at 0 and nothing elsewhere.
    """

    def step(state, action, push):
        return (reward if state[1] == 0 and action else 0.0), ("at", state[1] + action - push)

    return jl.ImplicitJMDP.from_step(2, 0.8, np.full(noise, 1.0 / noise), step, (0.0, reward))


def window(half=60):
    """The same walk cut at -half and half, states 0 to 2 half: the cut is too far to matter."""

    def step(s, action, push):
        return float(s == half and action), min(max(s + action - push, 0), 2 * half)

    return jl.JMDP.from_step(2 * half + 1, 2, 0.8, [0.5, 0.5], step)


@pytest.mark.parametrize("coupling", ["joint", "independent", "common"])
def test_infinitely_many_states(coupling):
    states = [("at", 0), ("at", 2), ("at", 0)]
    local = jl.local_jipe2(walk(), lambda s: [0.5, 0.5], states, 1e-4, coupling)
    whole = jl.jipe2(window(), np.full((121, 2), 0.5), coupling=coupling).moments
    check_certificate(local, whole, [60, 62, 60])
    assert local.converged
    assert local.error_bound <= 1e-4
    assert local.gap_variance.shape == (3, 2, 2)
    assert local.num_explored == local.visits.size < 60
    assert local.explored[:2] == (("at", 0), ("at", 2))
    assert local.visits[0] == pytest.approx(local.visits.max())
    assert "converged" in repr(local)


def test_branches_that_merge_need_no_exploration():
    """Common noise, and a policy that returns to one place: the branches meet after two steps."""
    width = 10**6

    def step(state, action, noise):
        return action * (state % 2), (0 if action else 3 * state) + 7 * noise % width

    model = jl.ImplicitJMDP.from_step(2, 0.95, [0.1] * 10, step, (0.0, 1.0))
    local = jl.local_jipe2(model, lambda s: 1, [5], 1e-6, "common")
    assert local.converged
    assert local.num_explored < 40
    model = jl.ImplicitJMDP.from_step(2, 0.95, [0.1] * 10, step, (-50.0, 50.0))
    wide = jl.local_jipe2(model, lambda s: 1, [5], 1e-6, "common")
    np.testing.assert_allclose(wide.gap_variance, local.gap_variance, atol=1e-6)


def test_everything_explored_is_jipe2():
    jm = jl.windy_gridworld(4, gamma=0.8)
    policy = jl.goal_policy(4)
    local = jl.local_jipe2(jm, policy.argmax(1), range(16), tol=1e-5)
    whole = jl.jipe2(jm, policy, tol=1e-11).moments
    np.testing.assert_allclose(local.gap_variance, whole.gap_variance, atol=1e-8)
    np.testing.assert_allclose(local.gap_mean, whole.gap_mean, atol=1e-8)
    np.testing.assert_allclose(local.moments.covariance, whole.covariance, atol=1e-8)
    assert local.num_explored == 16


def test_policies_as_arrays_and_states_as_tuples():
    grid, policy = jl.windy_gridworld(5, gamma=0.7), jl.goal_policy(5)

    def tables(cell):
        rows = slice(*grid.starts[5 * cell[0] + cell[1] :][:2])
        successors = [[divmod(s, 5) for s in row] for row in grid.next_states[rows].tolist()]
        return grid.probs[rows], grid.rewards[rows], successors

    model = jl.ImplicitJMDP(tables, 4, 0.7, (0, 1))
    by_cell = jl.local_jipe2(model, policy.reshape(5, 5, 4), [(1, 3)], 1e-5)
    by_function = jl.local_jipe2(model, lambda cell: policy[5 * cell[0] + cell[1]], [(1, 3)], 1e-5)
    np.testing.assert_array_equal(by_cell.gap_variance, by_function.gap_variance)
    by_number = jl.local_jipe2(grid, policy, [8], 1e-5)
    np.testing.assert_allclose(by_cell.gap_variance, by_number.gap_variance, atol=1e-12)


def test_degenerate_models():
    alone = jl.ImplicitJMDP(lambda s: ([1.0], [[s % 2]], [[s + 1]]), 1, 0.5, (0, 1))
    assert jl.local_jipe2(alone, lambda s: [1.0], [0]).gap_variance.tolist() == [[[0.0]]]
    constant = jl.ImplicitJMDP(lambda s: ([1.0], [[3.0, 3.0]], [[s, 2 * s]]), 2, 0.5, (3, 3))
    local = jl.local_jipe2(constant, lambda s: 0, [1])
    np.testing.assert_allclose(local.moments.mean, 6.0, atol=local.return_error.max())
    np.testing.assert_allclose(local.gap_mean, 0.0, atol=1e-3)
    myopic = jl.ImplicitJMDP(lambda s: ([1.0], [[0.0, 1.0]], [[-s, 2 * s]]), 2, 0.0, (0, 1))
    assert jl.local_jipe2(myopic, lambda s: 0, [1]).num_explored == 1


def test_an_exploration_without_end_stops_at_its_budget():
    def step(state, action, noise):
        return noise / 3.0, (*state, action, noise)

    model = jl.ImplicitJMDP.from_step(2, 0.999, [0.25] * 4, step, (0.0, 1.0))
    with pytest.warns(
        jl.ConvergenceWarning, match=r"after 300 states.*> tol \* reward_bound = 0.001"
    ):
        local = jl.local_jipe2(model, lambda s: [0.5, 0.5], [()], max_states=300)
    assert not local.converged
    assert local.num_explored == 300
    assert "NOT converged" in repr(local)
    assert local.error_bound > 100.0


def test_a_small_memory_means_a_smaller_model(monkeypatch):
    monkeypatch.setattr("jmdp_lib.machine.available_bytes", lambda: 200_000)
    with pytest.warns(jl.ConvergenceWarning, match="out of states or memory"):
        local = jl.local_jipe2(walk(noise=9), lambda s: [0.5, 0.5], [("at", 0)], 1e-5)
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
    model = jl.ImplicitJMDP(lambda s: tables if s == "bad" else good, 1, 0.9, (0, 1))
    with pytest.raises(ValueError, match=f"tables of state 'bad': .*{message}"):
        jl.local_jipe2(model, lambda s: [1.0], ["bad"])
    three = [1.0], [[0.0, 1.0, 0.0]], [["bad", "start", "start"]]
    model = jl.ImplicitJMDP(lambda s: tables if s == "bad" else three, 3, 0.9, (0, 1))
    with pytest.raises(ValueError, match="tables of state 'bad'"):
        jl.local_jipe2(model, lambda s: [0.5, 0.5, 0.0], ["start"])


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.0], 2, "up", [1.5, -0.5]])
def test_a_bad_policy_row_shows_its_state(row):
    with pytest.raises(ValueError, match=r"policy of state \('at', -1\)"):
        jl.local_jipe2(walk(), lambda s: [0.5, 0.5] if s[1] >= 0 else row, [("at", 0)])


def test_jipe2_never_answers_for_a_part_of_the_model_unasked(monkeypatch):
    """The plan foretells what is done; a model that does not fit is refused, and told of this."""
    jm = jl.windy_gridworld(70, gamma=0.5)  # 4,900 states: such models once turned local
    cell = 70 * 2 + 67
    whole = jl.jipe2(jm, jl.goal_policy(70), 1e-3, queries=[cell])
    assert whole.plan == jl.plan_jipe2(jm, jl.goal_policy(70), 1e-3, queries=[cell])
    assert np.isfinite(whole.moments.mean).all()
    monkeypatch.setattr("jmdp_lib.machine.available_bytes", lambda: 3_000_000)
    for solver in (jl.jipe2, jl.plan_jipe2):
        with pytest.raises(MemoryError, match="use local_jipe2 for a few states"):
            solver(jm, jl.uniform_policy(jm), 1e-3, queries=[cell])


def test_a_plan_is_refused_where_its_solver_is(monkeypatch):
    jm = jl.windy_gridworld(11)
    monkeypatch.setattr("jmdp_lib.machine.available_bytes", lambda: 1_000_000)
    for solver in (jl.jipe2, jl.plan_jipe2):
        with pytest.raises(MemoryError, match="JIPE-2 by sweeps on 121 states needs"):
            solver(jm, jl.uniform_policy(jm))


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match="policy of state 3"):
        jl.local_jipe2(jl.windy_gridworld(3), np.full((2, 4), 0.25), [0])
    with pytest.raises(ValueError, match="reward_range must be"):
        jl.ImplicitJMDP(lambda s: s, 2, 0.9, (1, 0))
    with pytest.raises(ValueError, match="states must hold at least one"):
        jl.local_jipe2(walk(), lambda s: 0, [])
    with pytest.raises(ValueError, match="states must be hashable"):
        jl.local_jipe2(walk(), lambda s: 0, [[0]])
    for name, value in (("tol", 0.0), ("coupling", "both"), ("max_states", 0)):
        with pytest.raises(ValueError, match=name):
            jl.local_jipe2(walk(), lambda s: 0, [("at", 0)], **{name: value})
    rng = np.random.default_rng(0)
    impure = jl.ImplicitJMDP(lambda s: ([1.0], [[rng.random()]], [[s]]), 1, 0.9, (0, 1))
    with pytest.raises(ValueError, match="must be pure"):
        jl.local_jipe2(impure, lambda s: 0, [0])
    laws = {0: [0.5, 0.5], 1: [0.4, 0.6]}
    mixed = jl.ImplicitJMDP(lambda s: (laws[s], np.eye(2), [[0, 1]] * 2), 2, 0.9, (0, 1))
    with pytest.raises(ValueError, match=r"one law of tables.* state 1 has"):
        jl.local_jipe2(mixed, lambda s: 0, [0], coupling="common")


@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@pytest.mark.parametrize("coupling", ["joint", "independent", "common"])
def test_brackets_of_a_local_law_hold_the_whole_law(coupling, monkeypatch):
    monkeypatch.setattr("test_local.MODELS", 4)
    jm, policy = many_models(7, 0.5, coupling)
    rows = [(state, 0, 1) for state in range(0, jm.num_states, STATES)]
    whole = jl.gap_law(jm, policy, rows, 0.2, coupling, points=16, max_points=128)
    x, widest = np.linspace(-3.0, 3.0, 61), []
    for budget in (8, 20, jm.num_states):
        local = jl.local_gap_law(jm, policy, rows, 0.2, coupling, max_states=budget)
        widest.append(max(law.width for law in local))
        assert [law.query for law in local] == rows
        for ours, theirs in zip(local, whole, strict=True):
            for name in ("mean", "prob_worse", "prob_tie", "prob_better"):
                (low, high), (least, most) = getattr(ours, name), getattr(theirs, name)
                assert max(low, least) <= min(high, most) + 1e-12
            (low, high), (least, most) = ours.cdf(x), theirs.cdf(x)
            assert np.all(np.maximum(low, least) <= np.minimum(high, most) + 1e-12)
    assert widest[0] > widest[1] > widest[2]
    assert widest[2] <= max(0.2, 1.1 * max(law.width for law in whole))


def test_a_local_law_of_infinitely_many_states():
    local = jl.local_gap_law(walk(), lambda s: [0.5, 0.5], [(("at", 0), 1, 0)], 0.2)[0]
    whole = jl.gap_law(window(12), np.full((25, 2), 0.5), [(12, 1, 0)], 0.2, points=32)[0]
    assert local.query == (("at", 0), 1, 0)
    assert local.width <= 0.2
    for name in ("prob_worse", "prob_tie", "mean"):
        (low, high), (least, most) = getattr(local, name), getattr(whole, name)
        assert max(low, least) <= min(high, most) + 1e-9
    with pytest.warns(jl.ConvergenceWarning, match="local_gap_law: .* with 5 states"):
        jl.local_gap_law(walk(), lambda s: 0, [(("at", 0), 1, 0)], 0.05, max_states=5)


@pytest.mark.filterwarnings("ignore::jmdp_lib.ConvergenceWarning")
@pytest.mark.parametrize("num_actions", [2, 3])
def test_local_ranges_hold_those_over_all_couplings(num_actions, monkeypatch):
    monkeypatch.setattr("test_local.MODELS", 10)
    jm, policy = many_models(num_actions, 0.8, "joint", num_actions, 3)
    states = np.arange(0, jm.num_states, STATES)
    whole = jl.coupling_range(jm, policy)
    low, high = (np.sqrt(x[states]) for x in (whole.gap_variance_low, whole.gap_variance_high))
    slack, bounds = 2.0 * np.sqrt(whole.error_bound), []
    for budget in (4 * 10, 7 * 10, jm.num_states):
        local = jl.local_coupling_range(jm, policy, states.tolist(), 0.05, max_states=budget)
        assert local.num_explored <= budget
        for outwards in (low - local.gap_deviation_low, local.gap_deviation_high - high):
            assert np.all(outwards >= -slack)
            assert np.all(outwards <= local.error_bound + slack)
        bounds.append(local.error_bound)
    assert bounds[0] > bounds[1] > bounds[2]
    assert local.converged
    # relative to the largest reward: the same for rewards ten times as large
    scaled = jl.JMDP.from_tables(
        jm.table_states, jm.probs, 10.0 * jm.rewards, jm.next_states, jm.num_states, jm.gamma
    )
    again = jl.local_coupling_range(scaled, policy, states.tolist(), 0.05)
    np.testing.assert_allclose(again.gap_deviation_high, 10 * local.gap_deviation_high, rtol=1e-9)


def test_a_local_range_of_infinitely_many_states():
    found = jl.local_coupling_range(walk(), lambda s: [0.5, 0.5], [("at", 0)], 0.05)
    joint = jl.local_jipe2(walk(), lambda s: [0.5, 0.5], [("at", 0)], 1e-3)
    assert found.converged
    deviation = np.sqrt(joint.gap_variance)
    assert np.all(found.gap_deviation_low <= deviation + 1e-3)
    assert np.all(deviation <= found.gap_deviation_high + 1e-3)
    with pytest.warns(jl.ConvergenceWarning, match="local_coupling_range stopped after 5 states"):
        jl.local_coupling_range(walk(), lambda s: 0, [("at", 0)], 0.05, max_states=5)
