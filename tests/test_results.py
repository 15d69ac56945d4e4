"""Results of every kind: one line each, read-only, and the same in copies."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from numpy.testing import assert_equal

import jmdp_lib as jl

JM = jl.windy_gridworld(3, gamma=0.6)
GOAL = jl.goal_policy(3)
CHAIN = jl.coupled_reward_chain(3, gamma=0.5)
PLANE = jl.large.ImplicitJMDP.from_step(
    2, 0.3, [0.7, 0.3], lambda place, a, u: (float(a == u), (place[0] + a, place[1] + u)), (0, 1)
)
SOLVERS = {
    "sweeps": lambda: jl.jipe2(JM, GOAL, route="sweeps"),
    "reachable": lambda: jl.jipe2(JM, GOAL, route="reachable"),
    "dense": lambda: jl.jipe2(JM, GOAL, route="dense"),
    "order 1": lambda: jl.jipe(JM, GOAL, order=1),
    "order 3": lambda: jl.jipe(JM, GOAL, order=3),
    "incremental, full": lambda: jl.incremental_jipe2(JM, GOAL, 500, rng=0),
    "incremental, centred": lambda: jl.incremental_jipe2(JM, GOAL, 500, form="centred", rng=0),
    "projected": lambda: jl.projected_jipe2(CHAIN, [0] * 3, jl.tabular_features(CHAIN)),
}
RESULTS = SOLVERS | {
    "trace_jipe2": lambda: jl.trace_jipe2(CHAIN, [0] * 3, 4),
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
    result = RESULTS[name]()
    shown = repr(result)
    assert "\n" not in shown
    assert len(shown) < 140
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == shown
    assert type(again) is type(result)
    assert_equal(fields(again), fields(result))


def fields(result):
    """Fields as nested dicts; sources of moments are compared below."""
    return dataclasses.asdict(
        result, dict_factory=lambda items: {k: value for k, value in items if k != "source"}
    )


def arrays_of(result):
    """Public arrays of a solution and its moments, by name."""
    m = result.moments
    names = ["mean", "gap_mean"] if m.order < 2 else dir(m)
    arrays = {name: getattr(m, name) for name in names if not name.startswith("_")}
    arrays |= {name: getattr(result, name) for name in dir(result) if not name.startswith("_")}
    arrays |= {f"same_state {k}": m.same_state(k) for k in range(1, m.order + 1)}
    return {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("solver", SOLVERS)
def test_copies_are_equal_bit_by_bit_and_read_only(solver):
    sol = SOLVERS[solver]()
    arrays = arrays_of(sol)
    assert {"mean", "gap_mean", "residuals"} <= {*arrays}
    assert sol.moments.order < 2 or {"covariance", "variance", "gap_variance"} <= {*arrays}
    assert len({sol, sol}) == 1  # results can be kept in sets and as keys
    for again in (sol, copy.deepcopy(sol), pickle.loads(pickle.dumps(sol))):
        for name, array in arrays_of(again).items():
            assert_equal(array, arrays[name], name)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        if solver == "incremental, centred":
            with pytest.raises(ValueError, match="moments between states"):
                again.moments.full_second()
        elif sol.moments.order > 1:
            assert_equal(again.moments.full_second(), sol.moments.full_second())
    if solver == "order 3":
        other = [(0, 0), (1, 1), (2, 2)]
        assert again.moments.moment(other) == sol.moments.moment(other)
    if solver == "projected":
        exact = jl.jipe2(CHAIN, [0] * 3).moments
        assert again.approximation_bound(exact) == sol.approximation_bound(exact)
