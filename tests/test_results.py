"""Results alike: one line each, a table each; models and solutions survive their files."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.machine import save_parts

JM = jl.windy_gridworld(3, gamma=0.6)
GOAL = jl.goal_policy(3)
SHOP = jl.inventory_simulator(2, 1, gamma=0.5)
CHAIN = jl.coupled_reward_chain(3, gamma=0.5)
PLANE = jl.large.ImplicitJMDP.from_step(
    2, 0.3, [0.7, 0.3], lambda place, a, u: (float(a == u), (place[0] + a, place[1] + u)), (0, 1)
)
SOLUTIONS = {
    "jipe2": lambda: jl.jipe2(JM, GOAL),
    "incremental_jipe2": lambda: jl.incremental_jipe2(JM, GOAL, 500),
    "projected_jipe2": lambda: jl.projected_jipe2(CHAIN, [0] * 3, jl.tabular_features(CHAIN)),
}
RESULTS = {
    **SOLUTIONS,
    "trace_jipe2": lambda: jl.trace_jipe2(CHAIN, [0] * 3, 4),
    "rows": lambda: jl.simulators.estimate_gaps(JM, GOAL, [(4, 0, 2), (5, 1, 1)], num_runs=50),
    "estimate_gaps": lambda: jl.simulators.estimate_gaps(
        JM, GOAL, [0, 2, 3], state=4, num_runs=200
    ),
    "compare_actions": lambda: jl.simulators.compare_actions(JM, GOAL, [0, 2], state=4, budget=300),
    "local_jipe2": lambda: jl.large.local_jipe2(PLANE, lambda place: [0.5, 0.5], [(0, 0)], 0.1),
    "coupling_range": lambda: jl.laws.coupling_range(CHAIN, [0] * 3),
    "coupling_range, three actions": lambda: jl.laws.coupling_range(JM, GOAL),
    "cautious_improvement": lambda: jl.laws.cautious_improvement(CHAIN, [0] * 3),
    "gap_law": lambda: jl.laws.gap_law(JM, GOAL, [(4, 0, 2)], width=0.05)[0],
    "a sampled law": lambda: jl.laws.GapLaw.from_sample((0, 1, 2), [0.5, -1.0, 2.0]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_in_a_line_and_a_table(name):
    found = RESULTS[name]()
    shown = repr(found)
    assert "\n" not in shown
    assert len(shown) < 140
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == shown
    same(again, found)
    assert not found.to_frame().empty
    assert again.to_frame().equals(found.to_frame())


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_survives_its_file(name, tmp_path):
    found = SOLUTIONS[name]()
    found.save(tmp_path / "found.npz")
    again = type(found).load(tmp_path / "found.npz")
    assert repr(again) == repr(found)
    same(again, found)
    assert again.to_frame().equals(found.to_frame())


def same(found: object, wanted: object) -> None:
    """Field by field. Of moments, what a file holds; the index of estimates says what they are."""
    assert type(found) is type(wanted)
    for field in dataclasses.fields(wanted):
        value = getattr(wanted, field.name)
        if isinstance(value, jl.moments.Moments):
            value = value.without_model()
        if dataclasses.is_dataclass(value):
            same(getattr(found, field.name), value)
        elif isinstance(value, dict):
            assert value.keys() == getattr(found, field.name).keys()
        else:
            np.testing.assert_array_equal(getattr(found, field.name), value, field.name)


def test_a_law_s_table_is_its_distribution_function():
    law = RESULTS["gap_law"]()
    frame = law.to_frame()
    low, high = law.cdf(frame.x.to_numpy())
    assert frame.x.is_monotonic_increasing
    assert frame.low.tolist() == low.tolist()
    assert frame.high.tolist() == high.tolist()


def test_frames_have_a_row_for_every_gap():
    frame = RESULTS["coupling_range"]().to_frame()
    assert frame[["state", "action", "other"]].to_numpy().tolist() == [
        [s, a, 1 - a] for s in range(3) for a in range(2)
    ]
    found = RESULTS["rows"]()
    frame = found.to_frame()
    assert frame.state.tolist() == [4, 5]
    assert frame["mean"].tolist() == found.mean.tolist()
    found = RESULTS["estimate_gaps"]()
    frame = found.to_frame().set_index(["action", "other"])
    assert frame.loc[(3, 0), "prob_worse"] == found.prob_worse[2, 0]
    assert len(frame) == 6
    found = RESULTS["compare_actions"]()
    frame = found.to_frame().set_index(["action", "other"])
    assert frame.loc[(2, 0), ["low", "high"]].tolist() == found.intervals[1, 0].tolist()


def test_repr_does_not_dump_returns():
    many = jl.simulators.estimate_gaps(JM, GOAL, [0, 2], state=4, num_runs=2000)
    assert repr(many).startswith("GapEstimate(2 gaps from 2,000 runs: means -")
    one = jl.simulators.estimate_gaps(JM, GOAL, [(4, 0, 2)], num_runs=50)
    assert repr(one).startswith("GapEstimate(1 gap from 50 runs: mean ")


def same_model(one: jl.JMDP, other: jl.JMDP) -> None:
    for name in ("gamma", "starts", "probs", "rewards", "next_states"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("queries_per_state", "knows_noise"):
        assert getattr(one, name) == getattr(other, name)


def test_a_model_survives_its_file_with_all_that_is_known_of_it(tmp_path):
    """Noise that states share stays shared; tables that nobody knows a noise of stay so."""
    path = tmp_path / "model.npz"
    step = jl.JMDP.from_step(3, 2, 0.5, [0.3, 0.45, 0.25], lambda s, a, u: (s + a * u, (s + u) % 3))
    step.save(path)
    same_model(jl.JMDP.load(path), step)
    by_file = jl.jipe2(jl.JMDP.load(path), [0, 1, 0], coupling="common").moments
    known = jl.jipe2(step, [0, 1, 0], coupling="common").moments
    np.testing.assert_array_equal(by_file.gap_variance, known.gap_variance)

    counted = jl.JMDP.from_simulator(SHOP, 30)
    assert counted.queries_per_state == 30
    counted.save(path)
    same_model(jl.JMDP.load(path), counted)
    with pytest.raises(ValueError, match="needs a known noise, and the tables"):
        jl.jipe2(jl.JMDP.load(path), [1, 0, 0], coupling="common")
    assert not jl.JMDP.load(path).probs.flags.writeable


def test_files_of_another_kind_or_format_are_refused_by_name(tmp_path):
    path = tmp_path / "file.npz"
    JM.save(path)
    with pytest.raises(ValueError, match=r"file\.npz is no file that Solution\.save has written"):
        jl.Solution.load(path)
    SOLUTIONS["jipe2"]().save(path)
    with pytest.raises(ValueError, match=r"is no file that JMDP\.save has written"):
        jl.JMDP.load(path)
    JM.save(path)
    parts = dict(np.load(path))
    parts["header"] = np.array(str(parts["header"]).replace("format 2", "format 9"))
    np.savez(path, **parts)
    with pytest.raises(ValueError, match=r"a JMDP in format 9; .* reads format 2 alone: make the"):
        jl.JMDP.load(path)


def changed_file(path, **fields):
    """The file of a model in which some fields are others."""
    parts = {field.name: getattr(JM, field.name) for field in dataclasses.fields(JM)}
    save_parts(path, "a JMDP", "2", parts | fields)
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"probs": 2.0 * JM.probs}, "sum of probs"),
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"queries_per_state": -5}, "queries_per_state must be at least 2, got -5"),
        ({"knows_noise": "perhaps"}, "knows_noise must be true or false"),
        ({"starts": np.array([0, 10**12])}, "probs must have shape"),
        ({"starts": np.append([0, 18, 17], JM.starts[3:])}, "repeats may not"),
        ({"rewards": np.zeros((3, 4))}, "rewards must have shape"),
        ({"rewards": "many"}, "rewards must have shape"),
        ({"more": 1}, "unexpected keyword"),
    ],
)
def test_a_model_whose_file_was_changed_is_refused(fields, message, tmp_path):
    path = changed_file(tmp_path / "file.npz", **fields)
    with pytest.raises(ValueError, match=rf"no file that JMDP\.save has written: .*{message}"):
        jl.JMDP.load(path)


def test_damaged_files_are_refused_whatever_goes_wrong(tmp_path):
    path = tmp_path / "file.npz"
    rng = np.random.default_rng(0)
    for thing in (JM, RESULTS["jipe2"]()):
        thing.save(path)
        whole = path.read_bytes()
        for _ in range(300):
            damaged = bytearray(whole[: rng.integers(len(whole))] if rng.random() < 0.2 else whole)
            for place in rng.integers(len(damaged) or 1, size=min(4, len(damaged))):
                damaged[place] = rng.integers(256)
            path.write_bytes(damaged)
            with contextlib.suppress(ValueError):  # bytes that nobody reads may change
                type(thing).load(path)
