"""Collected tables and recorded pairs on the emulator."""

import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from experiments.atari.recursive_pairs import PairRecords
from experiments.atari.tables import Experiment, QueryTables, collect, evaluation_states
from jmdp_lib.atari import CoupledAtari, Draw

PONG = Experiment("Pong", num_states=21, num_evaluation=3, follow_share=1.0)
ATLANTIS = Experiment(
    "Atlantis", num_states=60, follow_share=0.5, num_evaluation=3, pairs_per_state=4, repeats=3
)
MODULE = sys.modules[collect.__module__]


@pytest.fixture(autouse=True)
def early_states(monkeypatch):
    """Fewer random actions than usual before a trajectory, and between evaluation states."""
    monkeypatch.setattr(MODULE, "_START_STEPS", 100)
    monkeypatch.setattr(MODULE, "_EVALUATION_SPACING", 25)


def equal(left, right):
    names = [f.name for f in fields(left)]
    return all(np.array_equal(getattr(left, n), getattr(right, n)) for n in names)


def test_equal_successors_look_the_same():
    tables = collect(ATLANTIS, 1, 1)
    assert tables.observations.shape == (60, 131)
    for ids, seen in zip(tables.next_ids, tables.next_observations, strict=True):
        for action, other in np.argwhere(ids[:, None] == ids):
            assert (seen[action] == seen[other]).all()
    i, j = tables.pairs.T
    assert len(i) > 5
    assert (tables.state_ids[i] != tables.state_ids[j]).all()
    both = QueryTables.concatenate([tables, tables])
    assert (both.pairs[len(i) :] == tables.pairs + 60).all()


def test_all_tables_of_a_sticky_state_are_collected(monkeypatch):
    game = replace(PONG, sticky=0.5)
    states, tables = evaluation_states(game, 1, 1)
    assert tables.weights.tolist() == [0.5, 0.25, 0.125, 0.0625, 0.0625] * 3
    assert (tables.state_ids[::5] == [state.identity for state in states]).all()
    env = CoupledAtari("Pong", sticky_prob=0.5, obs="ram+paddles")
    for row, ids in enumerate(tables.next_ids):
        env.restore(states[row // 5])
        env.redraw(Draw(row % 5))
        answers = env.query(range(6), clones=True)
        assert ids.tolist() == [answer.snapshot.identity for answer in answers]
    assert (tables.observations[:, -1] == np.repeat([s.previous for s in states], 5)).all()
    assert tables.next_observations[0, :, -1].tolist() == list(range(6))  # all are obeyed
    assert (tables.next_observations[4, :, -1] == states[0].previous).all()  # none is
    # the rollout goes on in the table that was drawn, and pairs name the first table of a state
    drawn = []
    pick = MODULE._Trajectory.pick

    def spied(trajectory, outcomes):
        drawn.append([outcome.snapshot.identity for outcome in outcomes])
        return pick(trajectory, outcomes)

    monkeypatch.setattr(MODULE._Trajectory, "pick", spied)
    followed = collect(game, 5, 1)
    tables_of_states = followed.next_ids.reshape(21, 5, 6).tolist()
    assert len({tables.index(ids) for tables, ids in zip(tables_of_states, drawn, strict=True)}) > 2
    assert followed.pairs.tolist() == [[5 * i, 5 * i + 5] for i in range(1, 21, 2)]


def test_followed_pairs_have_every_age():
    """One query, and its branches at ten ages: in 32 steps of Pong they hardly ever meet."""
    tables = collect(PONG, 5, 1)
    assert tables.pairs.tolist() == [[i, i + 1] for i in range(1, 21, 2)]
    assert {*tables.state_ids[1:3]} <= {*tables.next_ids[0]}  # the first stand at two successors
    # Their first two ages are one step apart: each stands at a successor of itself before.
    for before, after in ((1, 3), (2, 4)):
        assert tables.state_ids[after] in tables.next_ids[before]
    assert tables.state_ids[9] not in tables.next_ids[7]  # from age 4 to 6


def test_a_part_of_the_actions_is_a_part_of_the_table():
    boxing = Experiment("Boxing", num_states=30, actions=4, follow_share=0.3)
    part = collect(boxing, 3, 1)
    assert part.next_ids.shape == part.actions.shape == (len(part.weights), 4)
    assert (np.diff(part.actions, axis=1) > 0).all()
    assert len(np.unique(part.actions)) == part.num_actions == 18
    assert len(part.pairs) > 0
    # A query changes neither the state nor its draw, so the start of a trajectory is the same.
    whole = collect(Experiment("Boxing", num_states=1), 3, 1)
    [queried] = part.actions[:1]
    assert part.state_ids[0] == whole.state_ids[0]
    assert (part.next_ids[0] == whole.next_ids[0, queried]).all()
    assert (part.next_observations[0] == whole.next_observations[0, queried]).all()


@pytest.mark.slow
def test_number_of_processes_changes_nothing(monkeypatch):
    monkeypatch.undo()  # other processes start their rollouts as usual
    monkeypatch.setattr(MODULE, "_CHUNK", 30)
    assert equal(collect(ATLANTIS, 6, 2), collect(ATLANTIS, 6, 1))


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "tables.npz"
    _, tables = evaluation_states(PONG, 17, 1)
    tables.save(path)
    assert equal(QueryTables.load(path), tables)
    assert [p.name for p in tmp_path.iterdir()] == ["tables.npz"]
    with pytest.raises(ValueError, match=r"tables.npz holds no PairRecords: .* unexpected"):
        PairRecords.load(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"tables\.npz holds no QueryTables: "):
        QueryTables.load(path)
