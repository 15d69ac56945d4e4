"""Ways to copy an environment: saved as bytes, set by its own hooks, or made anew and replayed.

Each way has the same five methods: a `new` environment, `save` a state, `load` it again, say how to
come back to a state that was entered (`after`), and tell states apart (`identity`).
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

Env = gymnasium.Env[Any, Any]
Moves = tuple[tuple[int, Any], ...]
"""Draws and actions of consecutive steps."""
_GENERATORS = ("Generator", "RandomState", "Random")  # numpy's and torch's, numpy's, Python's
_CONSTANT = (type, types.FunctionType, types.ModuleType, gymnasium.Space, EnvSpec)
_MANY = 10  # entries from which on a dictionary is shared by all copies, unless it changes
_ONLY_DRAWN = "lastaction"  # of toy-text environments: for pictures, no part of the state


class OtherGenerator(ValueError):
    """A second generator would be copied, but never drawn afresh."""


class _Pickler(pickle.Pickler):
    """Writes environments attribute by attribute, whatever they say of pickling.

    compared: by value alone, so that equal states are equal bytes.
    """

    def __init__(self, file: io.BytesIO, way: Copies, env: Env, compared: bool = False) -> None:
        super().__init__(file, protocol=5)
        self.way, self.known = way, env.unwrapped.np_random
        self.physics: dict[int, Any] = {}
        self.compared = self.fast = compared

    def persistent_id(self, x: Any) -> int | None:
        if type(x).__name__ == "MjData":
            self.physics[id(x)] = x
            return ~[*self.physics].index(id(x))
        if isinstance(x, _CONSTANT):
            self.way.share(x)
        return 0 if x is self.known else self.way.numbers.get(id(x))

    def reducer_override(self, x: Any) -> Any:
        if type(x).__name__ in _GENERATORS and x is not self.known:
            raise OtherGenerator(f"it holds a generator besides np_random, {x!r}")
        if any(x is env.unwrapped for env in self.way.hooked):
            return _set_back, (self.way.hooked, x.get_state())
        plain = (object.__getstate__, EzPickle.__getstate__)
        if not isinstance(x, gymnasium.Env) or type(x).__getstate__ not in plain:
            return NotImplemented
        if self.compared:
            return _fill, (type(x), {n: value for n, value in vars(x).items() if n != _ONLY_DRAWN})
        return object.__new__, (type(x),), vars(x), None, None, _fill


def _fill(env: Env, state: dict[str, Any]) -> None:
    vars(env).update(state)


def _set_back(hooked: list[Any], state: Any) -> Any:
    hooked[0].unwrapped.set_state(state)
    return hooked[0].unwrapped


class Copies:
    """Environments as bytes, MuJoCo's data beside them.

    One with hooks is not copied: `set_state` sets it to states, in copies of its wrappers.

    pristine: the environment as it was handed in. hooked: it, if it has hooks. parts: what all
    copies share, which is spaces, classes, MuJoCo's model, large tables if `sharing`, and the
    generator, which every step sets before it draws; numbers: of the parts, by their ids.
    unchanged: parts that an environment could change, with their bytes. spare: data of a copy that
    is played for one step only.
    """

    def __init__(self, env: Env, sharing: bool = True, hooks: bool = False) -> None:
        self.name, self.in_place = "set_state" if hooks else "saved", hooks
        self.hooked = [env] if hooks else []
        self.parts: list[Any] = [np.random.default_rng(0), self.hooked]
        self.numbers = {id(self.hooked): 1}
        self.spare: list[Any] = []
        copied = env if hooks else self.load(self.save(env))  # the user's own tables are not shared
        held = [] if hooks else vars(copied.unwrapped).values()
        large = [x for x in held if isinstance(x, dict) and len(x) >= _MANY and sharing]
        large += [x for x in held if type(x).__name__ == "MjModel"]
        self.unchanged = [(x, pickle.dumps(x)) for x in large]
        for x in large:
            self.share(x)
        self.pristine = None if hooks else self.save(copied)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.numbers = {id(x): i for i, x in enumerate(self.parts)}  # ids are of this process

    def share(self, x: Any) -> None:
        """Let all copies have this one."""
        if self.numbers.setdefault(id(x), len(self.parts)) == len(self.parts):
            self.parts.append(x)

    def new(self) -> Env:
        """The environment as it was handed in."""
        return self.hooked[0] if self.in_place else self.load(self.pristine)

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        """How to come to the state that was entered: by a copy, once one is needed."""
        if not moves and any(pickle.dumps(x) != known for x, known in self.unchanged):
            raise RuntimeError("it changes a table or a MuJoCo model, which copies share")
        return (self.save(env) if self.in_place else None), ()

    def save(self, env: Env) -> Any:
        """A state to be given to `load`."""
        pickler = _Pickler(file := io.BytesIO(), self, env)
        pickler.dump(env)
        return file.getvalue(), [*map(copy.copy, pickler.physics.values())]

    def load(self, saved: Any, briefly: bool = False) -> Env:
        """An environment in that state; briefly: until the next one that is loaded so."""
        content, physics = saved
        if not (briefly and self.spare):
            physics = [*map(copy.copy, physics)]  # takes as long as several steps
            self.spare = physics if briefly else self.spare
        else:
            for data, known in zip(self.spare, physics, strict=True):
                sys.modules["mujoco"].mj_copyData(data, known.model, known)
            physics = self.spare
        reader: Any = pickle.Unpickler(io.BytesIO(content))
        reader.persistent_load = lambda i: self.parts[i] if i >= 0 else physics[~i]
        return reader.load()

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        """Equal for equal states; None: there is no telling."""
        here = self.load(origin) if self.in_place else env
        pickler = _Pickler(file := io.BytesIO(), self, here, compared=True)
        try:
            pickler.dump(here)
        except RecursionError:  # it holds itself
            return None
        return None if pickler.physics else file.getvalue()


class Replays:
    """New environments, reset as the first one was; its moves are made again."""

    name, in_place = "replayed", False

    def __init__(self, env: Env) -> None:
        self.env = copy.deepcopy(env)

    def new(self) -> Env:
        return copy.deepcopy(self.env)

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        return origin, moves

    def save(self, env: Env) -> Any:
        raise ResetNeeded("snapshot before reset()")

    def load(self, saved: Any, briefly: bool = False) -> Env:
        env = self.new()
        env.reset(seed=saved[0], options=saved[1])
        return env

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        return pickle.dumps((origin, moves))


def name_of(env: Env) -> str:
    """What an error calls an environment."""
    return type(env.unwrapped).__name__
