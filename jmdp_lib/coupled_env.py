"""The same query for other simulators: common random numbers by copies of the environment.

Every queried action is played by a copy of the environment whose generator is in one and the same
state. That is right if copies are complete and all randomness comes from `np_random`; both are
tried out before any use, and again whenever a queried branch is executed.
"""

from __future__ import annotations

import copy
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

_TRIAL_STEPS = 20
_GENERATORS = ("Generator", "RandomState", "Random")  # numpy's and torch's, numpy's, Python's


@dataclass(frozen=True, eq=False)
class EnvSnapshot:
    """A state of a `CoupledEnv`: a copy of the environment that is never played.

    draw: seed of the table drawn for this visit; None: `restore` draws one.
    """

    env: gymnasium.Env[Any, Any]
    over: bool
    draw: int | None = None


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
        rng = checks.generator(seed)
        gymnasium.utils.RecordConstructorArgs.__init__(self, seed=seed)
        try:
            gymnasium.Wrapper.__init__(self, copy.deepcopy(env))
            self._try_out()
        except Exception as error:  # whatever a foreign __deepcopy__, reset or step raises
            raise ValueError(f"{_name(env)} cannot be coupled: {error!r}") from error
        self.env, self._rng = copy.deepcopy(env), rng
        self._enter(over=True, draw=0)  # there is no episode before the first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; its start is drawn like everything else."""
        if seed is not None:
            self._rng = checks.generator(seed)
        start = self.env.reset(seed=self._seed(), options=options)
        self._enter(over=False)
        return start

    def query(self, actions: Sequence[Any]) -> tuple[Outcome, ...]:
        """The outcomes of distinct actions, in their order, all under this state's one draw."""
        asked = self._asked("query", actions)
        for key, action in asked.items():
            if key not in self._table:
                branch = copy.deepcopy(self.env)
                seen, reward, terminated, truncated, info = _play(branch, self.draw, action)
                after = EnvSnapshot(branch, over=bool(terminated or truncated))
                self._table[key] = Outcome(action, reward, seen, terminated, truncated, info, after)
        return tuple(self._table[key] for key in asked)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute one branch of this state's table and draw the table of the next state."""
        (key,) = self._asked("step", [action])
        result = _play(self.env, self.draw, action)
        queried = self._table.get(key)
        if queried is not None:
            facts = (queried.observation, queried.reward, queried.terminated, queried.truncated)
            if not data_equivalence(facts, result[:4], exact=True):
                raise RuntimeError(
                    f"{_name(self.env)} did not repeat the queried outcome of action {action}: "
                    "not all of its randomness or state is in what was copied"
                )
        self._enter(over=any(result[2:4]))
        return result

    def snapshot(self) -> EnvSnapshot:
        """This state with its drawn table: restoring it gives the same outcomes again."""
        return EnvSnapshot(copy.deepcopy(self.env), self._over, self.draw)

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Go to a state; a table is drawn if the snapshot has none."""
        own = type(self.unwrapped)
        if not isinstance(snapshot, EnvSnapshot) or type(snapshot.env.unwrapped) is not own:
            raise TypeError(f"snapshot must be an EnvSnapshot of {own.__name__}, got {snapshot!r}")
        self.env = copy.deepcopy(snapshot.env)
        self._enter(snapshot.over, snapshot.draw)

    def redraw(self) -> None:
        """Replace this state's table by a fresh one."""
        self._enter(self._over)

    def _enter(self, over: bool, draw: int | None = None) -> None:
        self._over = over
        self.draw = self._seed() if draw is None else draw
        self._table: dict[str, Outcome] = {}

    def _seed(self) -> int:
        return int(self._rng.integers(2**63))

    def _asked(self, what: str, actions: Sequence[Any]) -> dict[str, Any]:
        """The actions of a call in their order, by keys that tell different actions apart."""
        if self._over:
            raise ResetNeeded(f"{what} outside of an episode: call reset() or restore() first")
        chosen = list(actions) if isinstance(actions, Iterable) else []
        for action in chosen:
            if not self.action_space.contains(action):
                raise IndexError(f"action {action!r} is not in {self.action_space}")
        keys = {repr(self.action_space.to_jsonable([action])): action for action in chosen}
        if not keys or len(keys) < len(chosen):
            raise ValueError(f"query at least one action, all distinct, got {actions!r}")
        return keys

    def _try_out(self) -> None:
        """Play a few steps: a queried branch must be repeated when it is executed."""
        self.reset(seed=0)
        _refuse_other_generators(self.env)
        self.action_space.seed(0)
        for _ in range(_TRIAL_STEPS):
            actions = [self.action_space.sample() for _ in range(2)]
            for action in actions:
                self.query([action])
            self.step(actions[1])
            if self._over:
                self.reset()


def _play(
    env: gymnasium.Env[Any, Any], draw: int, action: Any
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Step with the generator in the state that `draw` stands for.

    It is set in place, since an environment may hold its generator under other names too.
    """
    env.unwrapped.np_random.bit_generator.state = np.random.PCG64(draw).state
    observation, reward, *rest = env.step(action)
    if not np.isfinite(float(reward)):
        raise ValueError(f"{_name(env)} paid {reward} for action {action!r}")
    return observation, float(reward), *rest


def _refuse_other_generators(env: gymnasium.Env[Any, Any]) -> None:
    """A second generator would be copied, but never drawn afresh."""
    copies: dict[int, Any] = {}  # deepcopy's memo of all that it copied
    made = copy.deepcopy(env, copies)
    spaces = [x for x in copies.values() if isinstance(x, gymnasium.Space)]
    known = {id(made.unwrapped.np_random), *(id(space._np_random) for space in spaces)}
    for other in copies.values():
        if type(other).__name__ in _GENERATORS and id(other) not in known:
            raise ValueError(f"it holds a generator besides np_random, {other!r}")


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return type(env.unwrapped).__name__
