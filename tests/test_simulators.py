"""Models from queries: counted tables, and the seeds of all that draws."""

import pickle
from functools import partial

import numpy as np
import pytest
from strategies import Counting

import jmdp_lib as jl
from jmdp_lib import randomness
from jmdp_lib.simulators import compare_actions, compare_policies, estimate_gaps

RNG = np.random.default_rng(0)
SMALL = jl.JMDP(
    RNG.dirichlet(np.full(3, 3.0), size=2),
    RNG.normal(size=(2, 3, 2)).round(2),
    RNG.integers(2, size=(2, 3, 2)),
    gamma=0.6,
)
MIXED = [[0.3, 0.7], [0.5, 0.5]]


def test_tables_are_counted_and_equal_ones_are_merged():
    jm = jl.JMDP.from_simulator(SMALL, 5_000, rng=1)
    assert pickle.loads(pickle.dumps(jm)).queries_per_state == 5_000
    assert SMALL.queries_per_state is None
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


def test_every_state_has_its_own_stream():
    """The first state's tables do not depend on how many numbers the others draw."""

    class Other:
        num_states, num_actions, gamma = 2, 2, 0.6

        def query(self, state, actions, rng):
            rng.random(3 * state)
            return SMALL.query(state, actions, rng)

    ours, others = (jl.JMDP.from_simulator(sim, 50, rng=2) for sim in (SMALL, Other()))
    first = slice(0, ours.starts[1])
    assert (ours.probs[first] == others.probs[first]).all()
    assert jl.JMDP.from_simulator(SMALL, 50, rng=3).probs.tolist() != ours.probs.tolist()


def test_a_query_that_fails_later_is_named():
    failed = r"query\(state \d, actions \[0, 1\]\) failed: .*licence server is gone"
    with pytest.raises(ValueError, match=failed):
        jl.JMDP.from_simulator(Counting(SMALL, 200), 100, rng=0)


class Shop:
    """Three actions in one state; `how` says where its noise comes from."""

    num_states, num_actions, gamma, reward_range = 1, 3, 0.5, (0.0, 9.0)

    def __init__(self, how, **declared):
        self.how = how
        vars(self).update(declared)

    def query(self, state, actions, rng):
        rewards = self.how(actions, rng)
        return rewards, [0] * len(actions)


def by_position(actions, rng):
    return [[3.0, 2.0, 1.0][position] for position, _ in enumerate(actions)]


def rarely_in_the_loop(actions, rng):
    rain = rng.random() < 0.5
    return [action + float(rng.random() < 0.05) + rain for action in actions]


def more_for_one_action(actions, rng):
    rain = rng.random()
    return [rain + (1.0 + rng.random() if action == 2 else 0.0) for action in actions]


def more_for_all_actions(actions, rng):
    luck = rng.random(3)
    return [luck[action] for action in actions]


def rounded_by_shape(actions, rng):
    rain = rng.random()
    return [rain + 1e-15 * position + action for position, action in enumerate(actions)]


USES = {
    "from_simulator": lambda shop: jl.JMDP.from_simulator(shop, 10, rng=0),
    "incremental_jipe2": lambda shop: jl.incremental_jipe2(shop, [0], 10, rng=0),
    "estimate_gaps": lambda shop: estimate_gaps(shop, [0], [0, 1], state=0, num_runs=3, rng=0),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
@pytest.mark.parametrize("how", [by_position, rarely_in_the_loop])
def test_answers_that_change_with_the_other_actions_are_refused(how, use):
    both = "by position and not by action, or it draws inside its loop .* draw first, then look"
    with pytest.raises(ValueError, match=both):
        use(Shop(how))


@pytest.mark.parametrize("how", [more_for_one_action, more_for_all_actions, rounded_by_shape])
def test_draws_after_the_shared_one_are_accepted(how):
    for use in USES.values():
        use(Shop(how))


def test_states_without_an_index_are_tried_in_another_order():
    class Grid:
        num_actions, gamma = 2, 0.5

        def query(self, state, actions, rng):
            return [0.0] * len(actions), [(state[0] + int(rng.integers(9)), "x") for _ in actions]

    with pytest.raises(ValueError, match="draw first"):
        estimate_gaps(Grid(), lambda state: 0, [0, 1], state=(0, "x"), num_runs=3, rng=0)


def test_declared_independent_draws_are_simulated_as_such():
    jm = jl.JMDP([[0.5, 0.5]], [[[0.0, 0.0], [1.0, 1.0]]], [[[0, 0], [0, 0]]], gamma=0.0)

    def coins(actions, rng):
        return [float(rng.random() < 0.5) for _ in actions]

    shop = Shop(coins, coupling="independent", num_actions=2, gamma=0.0)
    options = {"policy": [0], "actions": [0, 1], "state": 0}
    for coupling in ("joint", "independent"):
        found = estimate_gaps(shop, **options, coupling=coupling, num_runs=400, rng=0)
        exact = jl.jipe2(jm, [0], coupling="independent").moments.gap_variance[0, 0, 1]
        assert abs(found.variance[0, 1] - exact) < 4.5 * found.variance_error[0, 1]
    decision = compare_actions(shop, **options, budget=1000, rng=0)
    assert decision.num_queries == 2 * decision.num_runs  # every action draws for itself
    with pytest.raises(ValueError, match='declares coupling = "independent"'):
        estimate_gaps(shop, **options, coupling="common")
    with pytest.raises(ValueError, match=r"simulator.coupling must be one of 'joint', 'ind"):
        estimate_gaps(Shop(coins, coupling="none"), **options)


def test_one_seed_gives_every_purpose_streams_of_its_own():
    """State s of `from_simulator`, chunk s of `simulate_pairs` and of `estimate_gaps`."""
    purposes = ["from_simulator", "simulate_pairs", "estimate_gaps", "sample_gaps"]
    first = [randomness.generator(7, purpose, 0).random() for purpose in purposes]
    first += [np.random.default_rng(7).random(), randomness.generator(7, 0).random()]
    assert len(set(first)) == len(first)
    assert randomness.generator(7, "from_simulator", 0).random() == first[0]
    given = np.random.default_rng(0)
    assert randomness.generator(given) is given
    with pytest.raises(TypeError, match="rng must be a numpy"):
        SMALL.query(0, [0], 7)


def test_the_entropy_of_a_result_repeats_it():
    for call in (
        partial(estimate_gaps, SMALL, MIXED, [0, 1], state=0, num_runs=20),
        partial(compare_actions, SMALL, MIXED, [0, 1], state=0, budget=300),
        partial(compare_policies, SMALL, [MIXED, [0, 1]], state=0, budget=300),
        partial(jl.incremental_jipe2, SMALL, MIXED, 500),
    ):
        found = call(rng=None)
        assert repr(call(rng=found.entropy)) == repr(found)
        assert repr(call(rng=None)) != repr(found)
        assert call(rng=7).entropy == 7
