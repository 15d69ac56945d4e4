"""Results alike: one line each, and the same after a pickle."""

import dataclasses
import pickle

import numpy as np
import pytest

import jmdp_lib as jl

JM = jl.windy_gridworld(3, gamma=0.6)
GOAL = jl.goal_policy(3)
CHAIN = jl.coupled_reward_chain(3, gamma=0.5)
PLANE = jl.large.ImplicitJMDP.from_step(
    2, 0.3, [0.7, 0.3], lambda place, a, u: (float(a == u), (place[0] + a, place[1] + u)), (0, 1)
)
RESULTS = {
    "jipe2": lambda: jl.jipe2(JM, GOAL),
    "incremental_jipe2": lambda: jl.incremental_jipe2(JM, GOAL, 500, rng=0),
    "projected_jipe2": lambda: jl.projected_jipe2(CHAIN, [0] * 3, jl.tabular_features(CHAIN)),
    "trace_jipe2": lambda: jl.trace_jipe2(CHAIN, [0] * 3, 4),
    "rows": lambda: jl.simulators.estimate_gaps(
        JM, GOAL, gaps=[(4, 0, 2), (5, 1, 2)], num_runs=50, rng=0
    ),
    "estimate_gaps": lambda: jl.simulators.estimate_gaps(
        JM, GOAL, [0, 2, 3], state=4, num_runs=200, rng=0
    ),
    "compare_actions": lambda: jl.simulators.compare_actions(
        JM, GOAL, [0, 2], state=4, budget=300, rng=0
    ),
    "local_jipe2": lambda: jl.large.local_jipe2(
        PLANE, lambda place: [0.5, 0.5], states=[(0, 0)], tol=0.1
    ),
    "coupling_range": lambda: jl.laws.coupling_range(CHAIN, [0] * 3),
    "cautious_improvement": lambda: jl.laws.cautious_improvement(CHAIN, [0] * 3),
    "gap_law": lambda: jl.laws.gap_law(JM, GOAL, gaps=[(4, 0, 2)], width=0.05)[0],
    "a sampled law": lambda: jl.laws.GapLaw.from_sample((0, 1, 2), [0.5, -1.0, 2.0]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_in_a_line(name):
    found = RESULTS[name]()
    shown = repr(found)
    assert "\n" not in shown
    assert len(shown) < 140
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == shown
    assert type(again) is type(found)
    np.testing.assert_equal(fields(again), fields(found))


def fields(result):
    """As nested dicts; what gives other moments is compared in `test_moments`."""
    return dataclasses.asdict(
        result, dict_factory=lambda items: {k: value for k, value in items if k != "source"}
    )


def test_repr_does_not_dump_returns():
    many = jl.simulators.estimate_gaps(JM, GOAL, [0, 2], state=4, num_runs=2000, rng=0)
    assert repr(many).startswith("GapEstimate(gaps=2, num_runs=2,000, means up to ")
