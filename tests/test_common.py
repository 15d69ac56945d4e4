"""Coupling "common": one noise per time step for all branches, in whatever state they are."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from strategies import implicit

import jmdp_lib as jl

UNKNOWN = {
    # All of its states have the probabilities (1/2, 1/2), so its tables look like a noise.
    "from_mdp": lambda: jl.JMDP.from_mdp(np.full((2, 2, 2), 0.5), np.eye(2), 0.9),
    "from_simulator": lambda: jl.JMDP.from_simulator(jl.coupled_reward_chain(2), 2, rng=3),
}


@pytest.mark.parametrize("made", UNKNOWN.values(), ids=UNKNOWN)
def test_models_without_a_declared_noise_refuse_it(made):
    jm = made()
    policy = jl.uniform_policy(jm)
    for model in (jm, copy.deepcopy(jm), pickle.loads(pickle.dumps(jm))):
        with pytest.raises(ValueError, match=r'coupling="common" needs a declared noise, '):
            jl.jipe2(model, policy, coupling="common")
    with pytest.raises(ValueError, match=r'coupling="common" needs a declared noise, '):
        jl.large.local_jipe2(implicit(jm), policy, states=[0], coupling="common")


ROW = [0.25, 0.75]
ONE_ACTION = [[1.0]] * 3
CALLS = [
    jl.jipe2,
    partial(jl.jipe, order=3),
    partial(jl.apply_t2, mean=np.zeros((3, 1)), second=np.zeros((3, 1, 3, 1))),
    partial(jl.simulate_pairs, actions=(0, 0), state=0, num_pairs=9),
    partial(jl.simulate_returns, num_samples=9),
    partial(jl.laws.policy_gaps, other=ONE_ACTION),
    partial(jl.simulators.estimate_gaps, actions=[0], state=0),
]


@pytest.mark.parametrize(
    ("rows", "state"), [([ROW, ROW, ROW[::-1]], 2), ([ROW, [1.0, 0.0], ROW[::-1]], 1)]
)
@pytest.mark.parametrize("call", CALLS)
def test_a_state_with_other_probabilities_is_named(call, rows, state):
    other = jl.JMDP(rows, np.zeros((3, 2, 1)), np.zeros((3, 2, 1), int), 0.5)
    with pytest.raises(ValueError, match=f"one distribution of tables.* state {state} has"):
        call(other, ONE_ACTION, coupling="common")
