"""What every way to copy an environment has to keep: run a new one through `check_way`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import TimeLimit

from jmdp_lib.simulators import CoupledEnv, env_copies
from jmdp_lib.simulators.env_copies import Copies, Env

LIMIT = 6  # steps of an episode: fewer than `CoupledEnv` tries out by itself
_NOT_COMPARED = ("env", "_np_random", "_np_random_seed")


def check_way(way: type[Copies], make: Callable[[], Env], monkeypatch: Any) -> None:
    """Assert that copies of `make()`, which ends no episode within six steps, are complete.

    What is checked: the user's environment is left alone; the copy has the same wrappers; states
    go on as the original does, whether they are stepped, queried or restored, and whatever was done
    in between; TimeLimit counts on; states are told apart.
    """
    monkeypatch.setattr(env_copies, "WAYS", (way,))
    given = TimeLimit(make(), LIMIT)
    wrappers = _wrappers(given)
    before = _contents(given), given.unwrapped.np_random.bit_generator.state
    env = CoupledEnv(given, rng=0)
    assert _wrappers(env.env) == wrappers, "a copy has lost or gained a wrapper"
    _check_time_limit(env)
    _check_restored_states_go_on(env)
    _check_states_are_told_apart(env)
    after = _contents(given), given.unwrapped.np_random.bit_generator.state
    assert after == before, "the environment that was handed in has changed"


def _wrappers(env: Any) -> list[type]:
    return [type(env)] + (_wrappers(env.env) if isinstance(env, gymnasium.Wrapper) else [])


def _contents(env: Any) -> list[str]:
    """What the wrappers and the environment hold, except for other environments and generators."""
    inner = _contents(env.env) if isinstance(env, gymnasium.Wrapper) else []
    held = {name: x for name, x in vars(env).items() if name not in _NOT_COMPARED}
    return [repr(sorted(held.items(), key=lambda item: item[0])), *inner]


def _actions(env: Any, count: int, seed: int) -> list[Any]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(count)]


def _same(one: Any, other: Any) -> None:
    assert data_equivalence(one[:4], other[:4], exact=True), (one, other)


def _check_time_limit(env: Any) -> None:
    """Episodes are cut at the limit: by steps, by queries, and after a restored snapshot."""
    env.reset(seed=2)
    actions = _actions(env, LIMIT, 2)
    half = None
    for number, action in enumerate(actions, 1):
        (found,) = env.query([action])
        assert found.truncated is (number == LIMIT), "a query has lost the count of TimeLimit"
        truncated = env.step(action)[3]
        assert truncated is (number == LIMIT), "a step has lost the count of TimeLimit"
        half = env.snapshot() if number == LIMIT // 2 else half
    env.restore(half)
    for number, action in enumerate(actions[LIMIT // 2 :], LIMIT // 2 + 1):
        assert env.step(action)[3] is (number == LIMIT), "restore has lost the count of TimeLimit"


def _check_restored_states_go_on(env: Any) -> None:
    """From a snapshot the same steps lead on, twice, and from a queried successor too."""
    env.reset(seed=3)
    first, *actions = _actions(env, LIMIT, 3)
    (found,) = env.query([first])
    env.step(first)
    here = env.snapshot()
    once = _played(env, actions)
    env.restore(here)
    again = _played(env, actions)
    env.restore(found.snapshot._replace(draw=here.draw))
    from_successor = _played(env, actions)
    for one, two, three in zip(once, again, from_successor, strict=True):
        _same(one, two)
        _same(one, three)


def _played(env: Any, actions: list[Any]) -> list[Any]:
    """Steps under the same draws, whatever was drawn before."""
    env.np_random = np.random.default_rng(5)
    return [env.step(action) for action in actions]


def _check_states_are_told_apart(env: Any) -> None:
    """A twin is at the same state, or there is no telling; one that has moved on is not."""
    env.reset(seed=4)
    env.step(_actions(env, 1, 4)[0])
    twin = env.twin()
    known = env._identity()
    assert known is None or env.same_state(twin)
    for action in _actions(env, 2, 6):
        twin.step(action)
    assert not env.same_state(twin)
