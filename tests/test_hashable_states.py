"""`estimate_gaps` and `compare_actions` where states have no index: tuples and words."""

import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from strategies import on_all_couplings

import jmdp_lib as jl
from jmdp_lib.large import implicit
from jmdp_lib.simulators import compare_actions, estimate_gaps, rows


def step(cell, action, gust):
    """A line of cells that never ends: pays right of three, and the wind blows to the left."""
    place = cell[1] + (1 if action == 0 else -1) - gust
    return float(place > 3), ("cell", place)


LINE = jl.large.ImplicitJMDP.from_step(2, 0.6, [0.7, 0.3], step, reward_range=(0.0, 1.0))


def mostly_right(cell):
    return [0.8, 0.2] if cell[1] % 2 else 0


@pytest.mark.slow
@on_all_couplings
def test_simulated_gaps_are_those_that_local_jipe2_certifies(coupling):
    exact = jl.large.local_jipe2(
        LINE, mostly_right, states=[("cell", 2)], tol=1e-4, coupling=coupling
    )
    options = {"state": ("cell", 2), "coupling": coupling, "rng": 5}
    found = estimate_gaps(LINE, mostly_right, [0, 1], num_runs=2000, truncation=1e-5, **options)
    for name in ("mean", "variance"):
        off = abs(getattr(found, name) - getattr(exact, f"gap_{name}")[0])[0, 1]
        assert off <= 4.5 * getattr(found, f"{name}_error")[0, 1] + exact.error_bound
    decided = compare_actions(LINE, mostly_right, [0, 1], budget=20_000, **options)
    assert (decided.verdict, decided.best) == ("better", 0)
    low, high = decided.intervals[0, 1]
    assert low - exact.error_bound <= exact.gap_mean[0, 0, 1] <= high + exact.error_bound


class Words:
    """A simulator without numbers of states: it says how long the word has become."""

    num_actions, gamma, reward_range = 2, 0.5, (0.0, 10.0)

    def query(self, state, actions, rng):
        letter = "ab"[rng.integers(2)]
        words = [state + letter if action == 0 else "" for action in actions]
        return [float(len(word)) for word in words], words


def test_a_simulator_of_ones_own_may_have_any_hashable_states():
    found = estimate_gaps(Words(), lambda word: 1, [0, 1], state="c", num_runs=10, rng=0)
    assert (found.mean[0, 1], found.variance[0, 1]) == (2.0, 0.0)
    assert (
        compare_actions(Words(), lambda word: 1, [0, 1], state="c", budget=5_000, rng=0).best == 0
    )

    class Lists(Words):
        def query(self, state, actions, rng):
            return [0.0 for _ in actions], [[1] for _ in actions]

    with pytest.raises(jl.simulators.SimulatorError, match="unhashable"):
        estimate_gaps(Lists(), lambda word: 1, [0, 1], state="c", rng=0)


def test_few_tables_are_kept_and_the_numbers_stay_the_same(monkeypatch):
    options = {"actions": [0, 1], "state": ("cell", 0), "num_runs": 5, "keep_returns": True}
    before = estimate_gaps(LINE, mostly_right, **options, rng=0).returns
    monkeypatch.setattr(rows, "_MOST_KEPT", 2)
    monkeypatch.setattr(implicit, "_MOST_KEPT", 2)
    line = replace(LINE)  # which has kept nothing yet
    size = len(pickle.dumps(line))
    np.testing.assert_array_equal(
        estimate_gaps(line, mostly_right, **options, rng=0).returns, before
    )
    assert len(pickle.dumps(line)) == size  # tables that `query` kept are not sent along


def test_a_step_gives_the_same_draws_lazily_and_as_tables():
    def ring(state, action, gust):
        return float(state == 2), (state + 1 - 2 * action - gust) % 5

    lazy = jl.large.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], ring, (0.0, 1.0))
    tables = jl.JMDP.from_step(5, 2, 0.8, [0.7, 0.3], ring)
    for state, seed in product(range(5), range(20)):
        rngs = [np.random.default_rng(seed) for _ in range(2)]
        np.testing.assert_array_equal(
            lazy.query(state, [1, 0], rngs[0]), tables.query(state, [1, 0], rngs[1])
        )
