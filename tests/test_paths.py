"""How many files are behind a public call: traced at run time, and printed.

Short paths let a stranger follow a call. `checks` and `machine` are not counted: they
say nothing about the method. Each call is made twice and traced the second time, so that what is
compiled or imported on the way does not count either.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import jmdp_lib as jl

MOST = 8
LIBRARY = Path(jl.__file__).parent
EVERYWHERE = {"checks.py", "machine"}


def files_behind(call):
    """The files of the library whose code runs in a call, in the order of their first lines."""
    found = {}

    def look(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and LIBRARY in path.parents:
            inside = path.relative_to(LIBRARY)
            if inside.parts[0] not in EVERYWHERE:
                found.setdefault(inside.as_posix())

    call()
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(found)


def grid(**options):
    jm, policy = jl.windy_gridworld(4, gamma=0.8), jl.goal_policy(4)
    return lambda: jl.jipe2(jm, policy, **options)


def law():
    jm, policy = jl.windy_gridworld(3, gamma=0.8), jl.goal_policy(3)
    return lambda: jl.laws.gap_law(jm, policy, [(4, 0, 2)], width=0.1)


def order_n():
    jm = jl.coupled_reward_chain(4, gamma=0.9)
    policy = jl.uniform_policy(jm)
    return lambda: jl.jipe(jm, policy, 3)


def incremental():
    jm = jl.coupled_reward_chain(4, gamma=0.9)
    policy = jl.uniform_policy(jm)
    return lambda: jl.incremental_jipe2(jm, policy, 1000)


def projected():
    jm = jl.coupled_reward_chain(4, gamma=0.9)
    features = np.random.default_rng(0).normal(size=(4, 2, 3))
    return lambda: jl.projected_jipe2(jm, jl.uniform_policy(jm), features)


def local():
    def step(cell, action, gust):
        return float(cell > 3), cell + (1 if action == 0 else -1) - gust

    line = jl.large.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], step, (0.0, 1.0))
    return lambda: jl.large.local_jipe2(line, lambda cell: [0.5, 0.5], [2], 0.01)


def rules():
    jm = jl.windy_gridworld(3, gamma=0.5)
    policies = jl.goal_policy(3), jl.uniform_policy(jm)
    return lambda: jl.laws.policy_gaps(jm, *policies)


WORLDS = {
    "a JMDP": lambda: jl.windy_gridworld(3, gamma=0.5),
    "an implicit model": lambda: jl.large.ImplicitJMDP.from_jmdp(jl.windy_gridworld(3, gamma=0.5)),
    "a simulator": lambda: jl.simulators.StepSimulator(9, 2, 0.5, [0.5, 0.5], step_of_line, (0, 1)),
    "a VectorSimulator": lambda: jl.simulators.VectorSimulator(
        steps_of_line, gusts, 2, 0.5, (0, 1), 9
    ),
}


def step_of_line(cell, action, gust):
    return float(cell > 3), min(max(cell + (1 if action == 0 else -1) - gust, 0), 8)


def steps_of_line(cells, actions, gusts):
    moved = cells + np.where(actions == 0, 1, -1) - gusts
    return 1.0 * (cells > 3), np.clip(moved, 0, 8)


def gusts(size, rng):
    return rng.integers(2, size=size)


def played(function, world):
    made = WORLDS[world]()
    asked = {"policy": [0] * 9, "actions": [0, 1], "state": 4}
    return lambda: function(made, **asked)


def rivals(world):
    made = WORLDS[world]()
    asked = {"state": 4, "budget": 1000, "coupling": "joint"}
    return lambda: jl.simulators.compare_policies(made, [[0] * 9, [1] * 9], **asked)


def environment(name, call):
    """A call with an environment that was reset, and two of its actions."""
    if name == "Pong":
        env = pytest.importorskip("jmdp_lib.atari").CoupledAtari("Pong")
    else:
        env = jl.simulators.CoupledEnv(pytest.importorskip("gymnasium").make(name), seed=0)
    env.reset(seed=0)
    return lambda: call(env, [0, 1])


def query(env, actions):
    env.query(actions)


def gaps(env, actions):
    jl.simulators.estimate_gaps(env, lambda seen: 0, actions, num_runs=3, horizon=5)


CALLS = {
    "jipe2 by sweeps": lambda: grid(route="sweeps"),
    "jipe2 by reachable pairs": lambda: grid(route="reachable"),
    "jipe2 by dense pairs": lambda: grid(route="dense"),
    "gap_law": law,
    "jipe": order_n,
    "incremental_jipe2": incremental,
    "projected_jipe2": projected,
    "local_jipe2": local,
    "policy_gaps": rules,
    "simulate_returns": lambda: lambda: jl.simulate_returns(jl.example_1(), [0], 5),
    "simulate_pairs": lambda: lambda: jl.simulate_pairs(jl.example_1(), [0], 0, (0, 1), 5),
    "rows": lambda: lambda: jl.simulators.estimate_gaps(jl.example_1(), [0], [(0, 0, 1)]),
    "from_simulator": lambda: lambda: jl.JMDP.from_simulator(WORLDS["a simulator"](), 5),
    "CoupledEnv.query": lambda: environment("FrozenLake-v1", query),
    "estimate_gaps of a CoupledEnv": lambda: environment("FrozenLake-v1", gaps),
    "CoupledAtari.query": lambda: environment("Pong", query),
    "estimate_gaps of a CoupledAtari": lambda: environment("Pong", gaps),
}
for world in WORLDS:
    CALLS[f"estimate_gaps of {world}"] = partial(played, jl.simulators.estimate_gaps, world)
    CALLS[f"compare_actions of {world}"] = partial(played, jl.simulators.compare_actions, world)
    CALLS[f"compare_policies of {world}"] = partial(rivals, world)


@pytest.mark.parametrize("name", CALLS)
def test_few_files_are_behind_a_public_call(name, capsys):
    files = files_behind(CALLS[name]())
    with capsys.disabled():
        print(f"\n{name}: {len(files)} files: {', '.join(files)}")
    assert len(files) <= MOST


def test_the_trace_sees_files_and_leaves_out_what_is_everywhere():
    files = files_behind(lambda: jl.coupled_reward_chain(3))
    assert files == ["environments.py", "model/tables.py", "model/jmdp.py"]
