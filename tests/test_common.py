"""coupling="common": one noise per time step for all branches, wherever they are."""

from __future__ import annotations

import copy
import pickle

import brute
import numpy as np
import pytest
from strategies import ROUTES, random_policy, shared_noise_model

import jmdp_lib as jl


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_equals_a_linear_solve_from_the_definition(deterministic):
    """40 models for each kind of policy, each by one of the routes, drawn."""
    rng = np.random.default_rng(int(deterministic))
    for n in range(40):
        gamma = (0.0, 0.5, 0.8)[n // 4 % 3]
        jm = shared_noise_model(rng, 1 + n // 3 % 3, 1 + (n % 5 > 0), 1 + n % 3, gamma)
        policy = random_policy(rng, jm, deterministic)
        wanted = brute.moments(jm, policy, order := 3 if n % 7 == 0 else 2, common=True)
        how = ROUTES[rng.integers(len(ROUTES))]
        second = jl.jipe2(jm, policy, tol=1e-11, coupling="common", **how)
        higher = jl.jipe(jm, policy, order=order, tol=1e-11, coupling="common")
        assert second.converged
        assert higher.converged
        higher.moments.full_second()  # solves at once what would be solved one by one
        everywhere = second.num_unknowns == jm.num_states * (jm.num_states + 1) // 2
        for x, moment in wanted.items():
            if x:
                assert higher.moments.moment(x) == pytest.approx(moment, abs=1e-8)
            if len(x) == 1 or (len(x) == 2 and (everywhere or x[0][0] == x[1][0])):
                assert second.moments.moment(x) == pytest.approx(moment, abs=1e-8)


class Fair:
    num_states, num_actions, gamma = 2, 1, 0.9

    def query(self, state, actions, rng):
        return [0.0] * len(actions), [int(rng.random() < 0.5)] * len(actions)


UNKNOWN = {
    # All of its states have the probabilities (1/2, 1/2): its tables look like a noise.
    "from_mdp": lambda: jl.JMDP.from_mdp(np.full((2, 2, 2), 0.5), np.eye(2), 0.9),
    "from_simulator": lambda: jl.JMDP.from_simulator(Fair(), 2, rng=3),
}


@pytest.mark.parametrize("made", UNKNOWN.values(), ids=UNKNOWN)
def test_models_that_do_not_know_their_noise_refuse_it_however_they_look(made):
    jm = made()
    policy = jl.uniform_policy(jm)
    for model in (jm, copy.deepcopy(jm), pickle.loads(pickle.dumps(jm))):
        with pytest.raises(ValueError, match=r'coupling="common" needs a known noise, '):
            jl.jipe2(model, policy, coupling="common")
    for model in (jm, jl.large.ImplicitJMDP.from_jmdp(jm)):
        with pytest.raises(ValueError, match=r'coupling="common" needs a known noise, '):
            jl.large.local_jipe2(model, policy, states=[0], coupling="common")


def test_a_model_knows_its_noise():
    """However its tables were given, in copies, and without tables that are never drawn."""
    rng = np.random.default_rng(9)
    jm = shared_noise_model(rng, 4)
    order = np.lexsort([rng.random(jm.probs.size), np.arange(jm.probs.size) % 3])
    stacked = (jm.table_states[order], jm.probs[order], jm.rewards[order], jm.next_states[order])
    for same in (pickle.loads(pickle.dumps(jm)), jl.JMDP.from_tables(*stacked, 4, jm.gamma)):
        np.testing.assert_array_equal(same.noise_probs, jm.noise_probs)
        np.testing.assert_array_equal(same.rewards, jm.rewards)
    zero = jl.JMDP.from_step(2, 1, 0.5, [0.5, 0.0, 0.5], lambda s, a, u: (float(u), 0))
    np.testing.assert_array_equal(zero.noise_probs, [0.5, 0.5])


ROW = [0.25, 0.75]
ONE_ACTION = [[1.0]] * 3
CALLS = [
    (jl.jipe2, (), {}),
    (jl.jipe, (), {"order": 3}),
    (jl.apply_t2, (np.zeros((3, 1)), np.zeros((3, 1, 3, 1))), {}),
    (jl.simulate_pairs, ((0, 0),), {"state": 0, "num_pairs": 9}),
    (jl.simulate_returns, (9,), {}),
    (jl.laws.policy_gaps, (ONE_ACTION,), {}),
    (jl.simulators.estimate_gaps, ([0],), {"state": 0}),
]


@pytest.mark.parametrize(
    ("rows", "state"), [([ROW, ROW, ROW[::-1]], 2), ([ROW, [1.0, 0.0], ROW[::-1]], 1)]
)
@pytest.mark.parametrize(("function", "arguments", "options"), CALLS)
def test_a_state_with_another_law_is_named(function, arguments, options, rows, state):
    other = jl.JMDP(rows, np.zeros((3, 2, 1)), np.zeros((3, 2, 1), int), 0.5)
    with pytest.raises(ValueError, match=f"one law of tables.* state {state} has"):
        function(other, ONE_ACTION, *arguments, **options, coupling="common")
