"""How many files a reader has to open to follow a call that plays: traced, and printed by -s."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import jmdp_lib as jl
from jmdp_lib.atari import CoupledAtari

HOME = Path(jl.__file__).parent
EVERYWHERE = {"checks.py", "machine.py", "limits.py"}  # not counted
MOST = 8
JM = jl.windy_gridworld(3, gamma=0.7)
IMPLICIT = jl.ImplicitJMDP.from_jmdp(JM)
SHOP = jl.inventory_simulator(2, 1, gamma=0.7)
GOAL = jl.goal_policy(3)
FEW = {"num_runs": 3, "horizon": 5}


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files of the library in which a function is called."""
    met: set[str] = set()

    def see(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            met.add(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    inside = [Path(file) for file in met if Path(file).is_relative_to(HOME)]
    return sorted({file.relative_to(HOME).as_posix() for file in inside} - EVERYWHERE)


def lake() -> jl.CoupledEnv:
    env = jl.CoupledEnv(gymnasium.make("FrozenLake-v1"), seed=0)
    env.reset()
    return env


def pong() -> CoupledAtari:
    env = CoupledAtari("Pong", seed=0)
    env.reset()
    return env


CALLS = {
    "estimate_gaps": lambda: jl.estimate_gaps(JM, GOAL, [0, 1], state=4, **FEW),
    "estimate_gaps, implicit": lambda: jl.estimate_gaps(IMPLICIT, GOAL, [0, 1], state=4, **FEW),
    "estimate_gaps, own simulator": lambda: jl.estimate_gaps(SHOP, [0] * 3, [0, 1], 1, **FEW),
    "compare_actions": lambda: jl.compare_actions(JM, GOAL, [0, 1], state=4, budget=200),
    "compare_actions, implicit": lambda: jl.compare_actions(
        IMPLICIT, GOAL, [0, 1], state=4, budget=200
    ),
    "simulate_pairs": lambda: jl.simulate_pairs(JM, GOAL, 4, (0, 1), 5),
    "sample_gaps": lambda: jl.sample_gaps(JM, GOAL, [(4, 0, 1)], 5),
    "simulate_returns": lambda: jl.simulate_returns(JM, GOAL, 5),
    "from_simulator": lambda: jl.JMDP.from_simulator(SHOP, 5),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_files_are_behind_a_call(name):
    files = files_of(CALLS[name])
    print(f"{name}: {len(files)}: {', '.join(files)}")
    assert 0 < len(files) <= MOST


def test_few_files_are_behind_environments():
    for env, actions in ((lake(), [0, 1]), (pong(), [0, 2])):
        name = type(env).__name__
        policy = [1.0] + [0.0] * (env.action_space.n - 1)
        found = {
            "query": files_of(lambda env=env, actions=actions: env.query(actions)),
            "estimate_gaps": files_of(
                lambda env=env, actions=actions, policy=policy: jl.estimate_gaps(
                    env, lambda seen: policy, actions, **FEW
                )
            ),
        }
        for call, files in found.items():
            print(f"{name}, {call}: {len(files)}: {', '.join(files)}")
            assert 0 < len(files) <= MOST
