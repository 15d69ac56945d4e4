"""Models from queries: counted tables, and the seeds of all that draws."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib import checks
from jmdp_lib.simulators import compare_actions, compare_policies, estimate_gaps

RNG = np.random.default_rng(0)
SMALL = jl.JMDP(
    RNG.dirichlet(np.full(3, 3.0), size=2),
    RNG.normal(size=(2, 3, 2)).round(2),
    RNG.integers(2, size=(2, 3, 2)),
    gamma=0.6,
)
MIXED = [[0.3, 0.7], [0.5, 0.5]]


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


def test_one_seed_gives_every_purpose_streams_of_its_own():
    """State s of `from_simulator`, chunk s of `simulate_pairs` and play s of `estimate_gaps`."""
    purposes = ["from_simulator", "simulate_pairs", "estimate_gaps", "sample_gaps"]
    first = [checks.generator(7, purpose, 0).random() for purpose in purposes]
    first += [np.random.default_rng(7).random(), checks.generator(7, 0).random()]
    assert len(set(first)) == len(first)
    assert checks.generator(7, "from_simulator", 0).random() == first[0]
    given = np.random.default_rng(0)
    assert checks.generator(given) is given
    with pytest.raises(TypeError, match="rng must be a numpy"):
        SMALL.query(0, [0], 7)


SEEDED = {
    "from_simulator": lambda seed: jl.JMDP.from_simulator(SMALL, 500, seed).marginal_mdp()[1],
    "simulate_pairs": lambda seed: jl.simulate_pairs(SMALL, MIXED, 0, (0, 1), 20, seed),
    "simulate_returns": lambda seed: jl.simulate_returns(SMALL, MIXED, 20, seed),
}


@pytest.mark.parametrize("call", SEEDED.values(), ids=list(SEEDED))
def test_no_seed_is_fresh_entropy(call) -> None:
    assert (call(None) != call(None)).any()


def test_the_entropy_of_a_result_repeats_it() -> None:
    for call in (
        partial(estimate_gaps, SMALL, MIXED, [0, 1], state=0, num_runs=20),
        partial(estimate_gaps, SMALL, MIXED, [(0, 0, 1)], num_runs=20),
        partial(compare_actions, SMALL, MIXED, [0, 1], state=0, budget=300),
        partial(compare_policies, SMALL, [MIXED, [0, 1]], state=0, budget=300),
        partial(jl.incremental_jipe2, SMALL, MIXED, 500),
    ):
        found = call(seed=None)
        assert repr(call(seed=found.entropy)) == repr(found)
        assert repr(call(seed=None)) != repr(found)
        assert call(seed=7).entropy == 7
