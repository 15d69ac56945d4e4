"""Models from queries: counted tables, and the sampling error of their gaps."""

from __future__ import annotations

import pickle
from bisect import bisect
from itertools import product

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib import checks

RNG = np.random.default_rng(0)
SMALL = jl.JMDP(
    RNG.dirichlet(np.full(3, 3.0), size=2),
    RNG.normal(size=(2, 3, 2)).round(2),
    RNG.integers(2, size=(2, 3, 2)),
    gamma=0.6,
)
MIXED = [[0.3, 0.7], [0.5, 0.5]]
PAIRS = list(product(range(2), repeat=2))  # next states of both actions


def test_tables_are_counted_and_equal_ones_are_merged() -> None:
    jm = jl.JMDP.from_simulator(SMALL, 5_000, seed=1)
    assert jm.queries_per_state == 5_000
    assert jm.gamma == SMALL.gamma
    known = {
        (s, *r, *n): p
        for s, p, r, n in zip(
            SMALL.table_states, SMALL.probs, SMALL.rewards, SMALL.next_states, strict=True
        )
    }
    assert jm.probs.size == len(known)
    counted = zip(jm.table_states, jm.probs, jm.rewards, jm.next_states, strict=True)
    for s, p, r, n in counted:
        exact = known[s, *r, *n]
        assert abs(p - exact) < 4.5 * np.sqrt(exact * (1 - exact) / 5_000)
        assert np.isclose(p * 5_000, round(p * 5_000))


def test_every_state_has_its_own_stream() -> None:
    """The first state's tables do not depend on how many numbers the others draw."""

    class Other:
        num_states, num_actions, gamma = 2, 2, 0.6

        def query(self, state, actions, rng):
            rng.random(3 * state)
            return SMALL.query(state, actions, rng)

    ours, others = (jl.JMDP.from_simulator(sim, 50, seed=2) for sim in (SMALL, Other()))
    first = slice(0, ours.starts[1])
    assert (ours.probs[first] == others.probs[first]).all()
    assert jl.JMDP.from_simulator(SMALL, 50, seed=3).probs.tolist() != ours.probs.tolist()


def test_a_copy_knows_how_often_was_asked() -> None:
    jm = jl.JMDP.from_simulator(SMALL, 50)
    assert pickle.loads(pickle.dumps(jm)).queries_per_state == 50
    assert SMALL.queries_per_state is None


def test_estimates_are_those_of_jipe2() -> None:
    jm = jl.JMDP.from_simulator(SMALL, 100)
    gaps, exact = jl.resample_gaps(jm, MIXED, num_resamples=2), jl.jipe2(jm, MIXED).moments
    assert np.allclose(gaps.mean, exact.gap_mean, atol=1e-7)
    assert np.allclose(gaps.variance, exact.gap_variance, atol=1e-7)
    again = jl.resample_gaps(jm, MIXED, num_resamples=2)
    assert (gaps.variance_error == again.variance_error).all()
    other = jl.resample_gaps(jm, MIXED, num_resamples=2, seed=1)
    assert (gaps.variance_error != other.variance_error).any()


def test_models_are_solved_side_by_side_or_one_by_one(monkeypatch) -> None:
    jm = jl.JMDP.from_simulator(SMALL, 100)
    together = jl.resample_gaps(jm, MIXED, num_resamples=5)
    monkeypatch.setattr("jmdp_lib.simulators.resampling._STATES", 4)
    apart = jl.resample_gaps(jm, MIXED, num_resamples=5)
    for name in ("mean", "mean_error", "variance", "variance_error"):
        assert np.allclose(getattr(together, name), getattr(apart, name), atol=1e-7)


class Quick:
    """SMALL in plain lists: its queries take a tenth of the time."""

    num_states, num_actions, gamma = 2, 2, 0.6

    def __init__(self):
        self.ends = np.cumsum(SMALL.probs.reshape(2, 3), axis=1).tolist()
        self.rewards = SMALL.rewards.reshape(2, 3, 2).tolist()
        self.next_states = SMALL.next_states.reshape(2, 3, 2).tolist()

    def query(self, state, actions, rng):
        table = bisect(self.ends[state][:2], rng.random())
        rewards, states = self.rewards[state][table], self.next_states[state][table]
        return [rewards[a] for a in actions], [states[a] for a in actions]


def test_intervals_cover_as_often_as_they_say() -> None:
    """200 models of 200 queries: 95% intervals, and errors that are the spread of the estimates."""
    truth = jl.jipe2(SMALL, MIXED).moments
    exact = {"mean": truth.gap_mean[:, 0, 1], "variance": truth.gap_variance[:, 0, 1]}
    found = [
        jl.resample_gaps(jl.JMDP.from_simulator(Quick(), 200, seed), MIXED, 40, seed)
        for seed in range(200)
    ]
    for name, value in exact.items():
        ends = np.array([gaps.interval(name) for gaps in found])[..., 0, 1]  # (200, 2, S)
        covered = ((ends[:, 0] <= value) & (value <= ends[:, 1])).sum(0)
        assert (abs(covered - 190) <= 4 * np.sqrt(200 * 0.95 * 0.05)).all()
        estimates = np.array([getattr(gaps, name) for gaps in found])[..., 0, 1]
        errors = np.array([getattr(gaps, f"{name}_error") for gaps in found])[..., 0, 1]
        # The standard deviation of 200 values is known to 5%, four of which make 20%.
        assert np.allclose(errors.mean(0), estimates.std(0, ddof=1), rtol=0.2)


def test_levels() -> None:
    gaps = jl.simulators.results.EstimatedGaps(*map(np.array, ([1.0], [0.5], [0.1], [0.2])))
    assert np.allclose(gaps.interval("mean"), [[1 - 0.5 * 1.959964], [1 + 0.5 * 1.959964]])
    low, high = gaps.interval("variance", level=0.5)
    assert np.allclose([low, high], 0.1 * np.exp([[-2 * 0.6744898], [2 * 0.6744898]]))
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\), got 1"):
        gaps.interval("mean", level=1)
    with pytest.raises(ValueError, match="name must be one of 'mean', 'variance', got 'median'"):
        gaps.interval("median")


class Rare:
    """One state: action 0 pays 1 more than action 1, and 50 once in fifty queries."""

    num_states, num_actions, gamma = 1, 2, 0.5

    def query(self, state, actions, rng):
        rewards = [50.0 if rng.random() < 0.02 else 1.0 + rng.integers(2), rng.integers(2)]
        return [float(rewards[a]) for a in actions], [0 for _ in actions]


class RareInRange(Rare):
    reward_range = (0.0, 50.0)


@pytest.mark.parametrize("queries", [50, 200])
def test_intervals_of_means_cover_also_where_a_rare_table_matters(queries) -> None:
    """With a declared range: coverage of 0.95; it was 0.6 at 50 queries a state."""
    truth = 0.02 * 50.0 + 0.98 * 1.5 - 0.5
    models = (jl.JMDP.from_simulator(RareInRange(), queries, seed) for seed in range(100))
    ends = np.array([jl.resample_gaps(jm, [0], 40).interval("mean") for jm in models])
    low, high = ends[:, :, 0, 0, 1].T
    assert ((low <= truth) & (truth <= high)).sum() >= 95 - 4 * np.sqrt(100 * 0.95 * 0.05)
    # What was missed has probability 3 / N at most, and moves the gap by 50 - 1.97 or less, a
    # little more than twice because of later visits; the error of the mean itself is 7 / sqrt(N).
    assert np.median(high - low) < 2 * (3.0 / queries * 120.0 + 2.0 * 7.0 / np.sqrt(queries))


def test_a_warning_names_the_states_where_few_queries_carry_an_error() -> None:
    """Without a range nothing can be added: at least what was seen seldom is named."""
    jm = next(
        jm
        for jm in (jl.JMDP.from_simulator(Rare(), 200, seed) for seed in range(20))
        if np.isclose(jm.probs[jm.rewards[:, 0] == 50.0].sum(), 3 / 200)
    )
    with pytest.warns(UserWarning, match=r"at states 0, .* about 5\d\d queries per state") as seen:
        plain = jl.resample_gaps(jm, [0], 40)
    assert "reward_range" in str(seen[0].message)
    assert not np.any(plain.unseen_mean)
    jl.resample_gaps(jl.JMDP.from_simulator(Rare(), 2_000, 0), [0], 40)  # and no warning here


def test_a_counted_model_and_its_copy_know_the_declared_range() -> None:
    jm = jl.JMDP.from_simulator(RareInRange(), 10)
    assert pickle.loads(pickle.dumps(jm)).declared_range == (0.0, 50.0)
    assert jl.JMDP.from_simulator(Rare(), 10).declared_range is None
    assert RareInRange.reward_range != jm.reward_range  # that of the tables that were seen


def test_a_table_that_was_missed_can_move_means_as_far_as_it_says() -> None:
    """Put a worst table of a small probability into each state in turn, and solve again."""
    counted, ends, small = jl.JMDP.from_simulator(SMALL, 100), SMALL.reward_range, 1e-6
    gaps, policy = jl.resample_gaps(counted, MIXED, 2), np.array(MIXED)
    states, known = counted.table_states, jl.jipe2(counted, MIXED, tol=1e-13).moments.gap_mean
    moved = np.zeros_like(known)
    tables = [(s, r, x) for s in range(2) for r in product(ends, repeat=2) for x in PAIRS]
    for s, rewards, successors in tables:
        probs = np.append(counted.probs * np.where(states == s, 1.0 - small, 1.0), small)
        all_rewards = np.vstack([counted.rewards, rewards])
        all_states = np.vstack([counted.next_states, successors])
        changed = jl.JMDP.from_tables(
            np.append(states, s), probs, all_rewards, all_states, 2, counted.gamma
        )
        found = jl.jipe2(changed, policy, tol=1e-13).moments.gap_mean
        moved = np.maximum(moved, np.abs(found - known) / small)
    allowed = 100 * gaps.unseen_mean
    assert (moved <= allowed * (1.0 + 1e-4) + 1e-9).all()
    assert (moved[:, 0, 1] >= 0.4 * allowed[:, 0, 1]).all()


def test_the_variance_of_a_gap_that_never_varied_is_not_certainly_zero() -> None:
    """An event that all queries missed has an upper end; the diagonal alone is certain."""
    still = jl.JMDP([[1.0], [1.0]], [[[0.0, 1.0]], [[2.0, 2.0]]], [[[1, 1]], [[0, 0]]], 0.5)
    low, high = jl.resample_gaps(jl.JMDP.from_simulator(still, 60), [0, 0], 5).interval("variance")
    assert not low.any()
    reach, both = 2.0 / (1.0 - 0.5), 2.0 / (1.0 - 0.25)
    assert np.allclose(high[:, 0, 1], -np.log(0.05) / 60 * both * (2.0 * reach) ** 2)
    assert not np.einsum("saa->sa", high).any()
    unknown = jl.simulators.results.EstimatedGaps(*np.zeros((4, 1)))
    assert unknown.interval("variance") == ([0.0], [np.inf])


class Broken:
    """Fails at state 1, and only when it is asked for the tenth time."""

    num_states, num_actions, gamma = 3, 2, 0.5
    asked = 0

    def query(self, state, actions, rng):
        if state == 1:
            self.asked += 1
            if self.asked > 20:
                raise OSError("the licence server is gone")
        return [0.0, 1.0][: len(actions)], [state] * len(actions)


def test_bad_calls() -> None:
    for count in (1, 0, -3, 2.5, True, "many"):
        with pytest.raises(ValueError, match="queries_per_state must be"):
            jl.JMDP.from_simulator(SMALL, count)
    with pytest.raises(ValueError, match="is no simulator: it has no num_states"):
        jl.JMDP.from_simulator(object(), 10)
    failed = r"query\(state 1, actions \[0, 1\]\) must return .*licence server is gone"
    with pytest.raises(ValueError, match=failed):
        jl.JMDP.from_simulator(Broken(), 100)
    with pytest.raises(ValueError, match="were not counted from queries"):
        jl.resample_gaps(SMALL, MIXED)
    with pytest.raises(TypeError, match=r"resample_gaps needs a JMDP.*from_simulator"):
        jl.resample_gaps(Broken(), MIXED)
    with pytest.raises(ValueError, match="num_resamples must be at least 2, got 1"):
        jl.resample_gaps(jl.JMDP.from_simulator(SMALL, 10), MIXED, num_resamples=1)


def test_one_seed_gives_every_purpose_streams_of_its_own():
    """State s of `from_simulator`, chunk s of `simulate_pairs` and play s of `estimate_gaps`."""
    purposes = ["from_simulator", "simulate_pairs", "estimate_gaps", "sample_gaps", "resample_gaps"]
    first = [checks.stream(7, purpose, 0).random() for purpose in purposes]
    first += [np.random.default_rng(7).random(), checks.generator(7, 0).random()]
    assert len(set(first)) == len(first)
    assert checks.stream(7, "from_simulator", 0).random() == first[0]


def test_the_functions_of_one_seed_draw_independently():
    """A coin pays 1 or 0, once: what one function draws says nothing about another's draws."""
    jm = jl.JMDP.from_step(1, 2, 0.0, [0.5, 0.5], lambda s, a, u: (float(u) * (1 - a), 0))
    drawn = []

    class Recorded:
        num_states, num_actions, gamma = 1, 2, 0.0

        def query(self, state, actions, rng):
            drawn.append(rng.bit_generator.state["state"]["state"])
            return jm.query(state, actions, rng)

    jl.JMDP.from_simulator(Recorded(), 2, seed=5)
    counted = set(drawn[-2:])
    drawn.clear()
    jl.simulators.estimate_gaps(Recorded(), [0], [0, 1], state=0, num_runs=3, seed=5)
    assert not counted & set(drawn)
