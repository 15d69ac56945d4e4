"""The same query for other simulators: common random numbers by copies of the environment.

Every queried action is played by a copy of the environment whose generator is in one and the same
state. That is right if copies are complete and all randomness comes from `np_random`; both are
tried out before any use, and again whenever a queried branch is executed.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from jmdp_lib import checks
from jmdp_lib.checks import Seed
from jmdp_lib.simulators import Outcome

_TRIAL_STEPS = 10
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True, eq=False)
class EnvSnapshot:
    """A state of a `CoupledEnv`: a copy of the environment that is never played.

    draw: seed of the table drawn for this visit; None: `restore` draws one.
    """

    env: gymnasium.Env[Any, Any]
    over: bool
    draw: int | None


class CoupledEnv(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Any Gymnasium environment that can be copied, with `query` as in `CoupledAtari`.

    A table is drawn when a state is entered: a seed for the environment's `np_random`, taken from
    a generator that belongs to this wrapper. So the tables of distinct states are independent,
    however they were reached. A copy is taken of `env`, which itself is left alone.

    seed: of the draws: an integer, SeedSequence or Generator; `reset(seed=...)` starts them anew.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], seed: Seed | np.random.Generator | None = None
    ) -> None:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"env must be a gymnasium.Env, got {env!r}")
        self._rng = checks.generator(seed)
        _try_out(_copied(env))
        gymnasium.utils.RecordConstructorArgs.__init__(self, seed=seed)
        gymnasium.Wrapper.__init__(self, _copied(env))
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; its start is drawn like everything else."""
        if seed is not None:
            self._rng = checks.generator(seed)
        start = self.env.reset(seed=self._seed(), options=options)
        self._started = True
        self._enter(False, None)
        return start

    def query(self, actions: Sequence[Any]) -> tuple[Outcome, ...]:
        """The outcomes of distinct actions, in their order, all under this state's one draw."""
        self._ready("query")
        asked = self._distinct(actions)
        for key, action in asked.items():
            if key not in self._table:
                self._table[key] = _branch(self.env, self.draw, action)
        return tuple(self._table[key] for key in asked)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute one branch of this state's table and draw the table of the next state."""
        self._ready("step")
        (key,) = self._distinct([action])
        result = _play(self.env, self.draw, action)
        if key in self._table and not _same(self._table[key], result):
            raise RuntimeError(
                f"{_name(self.env)} did not repeat the queried outcome of action {action}: "
                "not all of its randomness or state is in what was copied"
            )
        self._enter(bool(result[2] or result[3]), None)
        return result

    def snapshot(self) -> EnvSnapshot:
        """This state with its drawn table: restoring it gives the same outcomes again."""
        self._ready("snapshot", over=True)
        return EnvSnapshot(_copied(self.env), self._over, self.draw)

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Go to a state; a table is drawn if the snapshot has none."""
        if not isinstance(snapshot, EnvSnapshot):
            raise TypeError(f"snapshot must be an EnvSnapshot, got {snapshot!r}")
        if type(snapshot.env.unwrapped) is not type(self.unwrapped):
            raise ValueError(
                f"a snapshot of {_name(snapshot.env)} cannot be restored in {_name(self.env)}"
            )
        self.env = _copied(snapshot.env)
        self._started = True
        self._enter(snapshot.over, snapshot.draw)

    def redraw(self) -> None:
        """Replace this state's table by a fresh one."""
        self._ready("redraw")
        self._enter(False, None)

    def _enter(self, over: bool, draw: int | None) -> None:
        self._over = over
        self.draw = self._seed() if draw is None else draw
        self._table: dict[Any, Outcome] = {}

    def _seed(self) -> int:
        return int(self._rng.integers(2**63))

    def _distinct(self, actions: Sequence[Any]) -> dict[Any, Any]:
        """The actions by their keys, in their order."""
        if not isinstance(actions, Iterable) or not (chosen := list(actions)):
            raise ValueError(f"actions must hold at least one action, got {actions!r}")
        for action in chosen:
            if not self.action_space.contains(action):
                raise IndexError(f"action {action!r} is not in {self.action_space}")
        keys = {_key(action): action for action in chosen}
        if len(keys) < len(chosen):
            raise ValueError(f"actions must be distinct, got {chosen}")
        return keys

    def _ready(self, what: str, over: bool = False) -> None:
        if not self._started:
            raise ResetNeeded(f"{what} before reset(): {_name(self.env)} has not started")
        if self._over and not over:
            raise ResetNeeded(f"{what} after the end of the episode: call reset() or restore()")


def _branch(env: gymnasium.Env[Any, Any], draw: int, action: Any) -> Outcome:
    """Play one action on a copy."""
    branch = _copied(env)
    observation, reward, terminated, truncated, info = _play(branch, draw, action)
    after = EnvSnapshot(branch, bool(terminated or truncated), None)
    return Outcome(action, reward, observation, terminated, truncated, info, after)


def _play(
    env: gymnasium.Env[Any, Any], draw: int, action: Any
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Step with the generator in the state that `draw` stands for.

    It is set in place, since an environment may hold its generator under other names too.
    """
    held = env.unwrapped.np_random
    if type(held.bit_generator) is not np.random.PCG64:
        raise ValueError(f"{_name(env)} cannot be coupled: its np_random is {held!r}, not PCG64")
    held.bit_generator.state = np.random.PCG64(draw).state
    observation, reward, *rest = env.step(action)
    if not np.isfinite(float(reward)):
        raise ValueError(f"{_name(env)} paid {reward} for action {action!r}")
    return observation, float(reward), *rest


def _try_out(env: gymnasium.Env[Any, Any]) -> None:
    """Refuse an environment whose copies do not repeat one another, by playing a few steps."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    _refuse_other_generators(env)
    env.action_space.seed(0)
    for _ in range(_TRIAL_STEPS):
        draw = int(rng.integers(2**63))
        first, second = env.action_space.sample(), env.action_space.sample()
        try:
            a, b, again = (_branch(env, draw, action) for action in (first, second, first))
        except Exception as error:  # EzPickle's copies, say, are new environments
            raise ValueError(
                f"{_name(env)} cannot be coupled: its copies do not play on ({error!r})"
            ) from error
        executed = _play(env, draw, second)
        repeated = (again.observation, again.reward, again.terminated, again.truncated)
        if not (_same(a, repeated) and _same(b, executed)):
            raise ValueError(
                f"{_name(env)} cannot be coupled: the same action from the same state and the "
                "same np_random gave two outcomes; it has randomness or state elsewhere"
            )
        if executed[2] or executed[3]:
            env.reset()


def _refuse_other_generators(env: gymnasium.Env[Any, Any]) -> None:
    """A second generator would be copied, but never drawn afresh."""
    memo: dict[int, Any] = {}
    made = copy.deepcopy(env, memo)
    held = list(memo.values())
    spaces = [x for x in held if isinstance(x, gymnasium.Space)]
    known = [made.unwrapped.np_random, *(space._np_random for space in spaces)]
    torch = sys.modules.get("torch")  # an environment that holds a generator of it has imported it
    kinds = _GENERATORS if torch is None else (*_GENERATORS, torch.Generator)
    for other in held:
        if isinstance(other, kinds) and not any(other is x for x in known):
            raise ValueError(
                f"{_name(env)} cannot be coupled: it holds a generator besides np_random, {other!r}"
            )


def _copied(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return copy.deepcopy(env)
    except Exception as error:  # whatever a foreign __deepcopy__ or __reduce__ raises
        raise ValueError(f"{_name(env)} cannot be coupled: no copy of it ({error})") from error


def _same(queried: Outcome, result: Sequence[Any]) -> bool:
    """Bit for bit, as far as the outcome says."""
    facts = (queried.observation, queried.reward, queried.terminated, queried.truncated)
    return bool(data_equivalence(facts, tuple(result[:4]), exact=True))


def _key(action: Any) -> Any:
    """What tells actions apart: composite ones are tuples and dicts of arrays."""
    if isinstance(action, tuple | list):
        return tuple(map(_key, action))
    if isinstance(action, dict):
        return tuple((name, _key(part)) for name, part in sorted(action.items()))
    return action.tobytes() if isinstance(action, np.ndarray) else action


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return type(env.unwrapped).__name__
