"""Ways to copy an environment: as bytes, by its own hooks, or made anew and replayed.

`WayToCopy` says what a way has to do, and when. To add one, write a class with these methods, let
`ways_to_copy` offer it, and run it through `check_way` of `tests/copying.py`. `CoupledEnv` tells
users about the ways, and their names, in its docstring. A way for some environments only is offered
to these only: users are told why the way before the one that was taken has failed, and "it is not
meant for this" would hide the reason that helps.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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
_PHYSICS = "physics"  # marks MuJoCo's data in what is saved


class OtherGenerator(ValueError):
    """A second generator would be copied, but never drawn afresh."""


class WayToCopy(Protocol):
    """A way to copy an environment; it is made from the environment that the user handed in.

    All environments that come and go are *wrapped*, as the user's is: TimeLimit and other wrappers
    have a state of their own, which belongs to what is saved. Randomness does not: before each
    step, `CoupledEnv` sets the state of `env.unwrapped.np_random`. Nobody sets a second generator,
    and trying out does not find it: a way that sees one raises `OtherGenerator` when it is made or
    saves. One that cannot look inside, such as `Replays`, comes after one that can, or relies on
    the environment.

    An *origin* is where a state is reached from: what `save` returned, or the (seed, options) of a
    reset for a way that replays. None: nothing is saved yet, since nobody has asked for it.

    Attributes:
        name: what `CoupledEnv.copying` says.
        in_place: whether there is one environment only, which `load` sets to a state. Then
            `CoupledEnv` loads its own state again before it steps.
    """

    name: str
    in_place: bool

    def new(self) -> Env:
        """A new copy of the environment as it was handed in.

        Called twice: to try this way out, and for the environment that is stepped from then on.
        """

    def save(self, env: Env) -> Any:
        """The state of an environment, an origin for `load`. It must not change with `env` later.

        Called at the first snapshot or query of a visit, if `after` gave no origin.
        """

    def load(self, origin: Any, briefly: bool = False) -> Env:
        """An environment in the state of this origin, which the caller may step and change.

        Called for every queried action and for every restored snapshot. briefly: it is used only
        until the next one that is loaded briefly, so that the two may share what is slow to copy.
        """

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        """How to come back to where `env` is now: an origin, and the moves to make from there.

        Called after each reset, whose origin is (seed, options) and whose moves are (), and after
        each step and restored successor, whose moves have just been made from `origin`. Return
        (None, ()) to let `save` be called once it is needed.
        """

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        """Equal for equal states, and only for these; None: there is no telling.

        Called when branches may have met. Where there is no telling they count as apart.
        """


def ways_to_copy(env: Env) -> list[Callable[[Env], WayToCopy]]:
    """The ways that may do for an environment, in the order in which they are tried out."""
    if hasattr(env.unwrapped, "get_state") and hasattr(env.unwrapped, "set_state"):
        return [SetStates]
    return [Copies, partial(Copies, sharing=False), Replays]


class SharedParts:
    """What all copies of an environment have in common: spaces, classes, large tables, and so on.

    In what is saved, a part is its number. Parts are told by their identity, not by their value.
    """

    def __init__(self) -> None:
        # Every step sets the generator before it draws, so that one does for all copies.
        self.parts: list[Any] = [np.random.default_rng(0)]
        self.generator = 0
        self._numbers: dict[int, int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)  # ids are of the process that pickled it
        self._numbers = {id(x): i for i, x in enumerate(self.parts) if i != self.generator}

    def add(self, x: Any) -> None:
        """Let all copies have this one."""
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self.parts)
            self.parts.append(x)

    def number(self, x: Any) -> int | None:
        """Which part this is, if it is one."""
        return self._numbers.get(id(x))


class _Pickler(pickle.Pickler):
    """Writes environments attribute by attribute, whatever they say of pickling.

    physics: MuJoCo's data that was met, which is not written. compared: by value alone, so that
    equal states are equal bytes.
    """

    def __init__(self, file: io.BytesIO, way: Copies, env: Env, compared: bool = False) -> None:
        super().__init__(file, protocol=5)
        self.way = way
        self.known_generator = env.unwrapped.np_random
        self.physics: list[Any] = []
        self.compared = compared
        self.fast = compared  # no memo: whether two attributes are one object is no matter then

    def persistent_id(self, x: Any) -> Any:
        if type(x).__name__ == "MjData":
            return _PHYSICS, self._physics_number(x)
        if x is self.known_generator:
            return self.way.shared.generator
        if isinstance(x, _CONSTANT):
            self.way.shared.add(x)
        return self.way.shared.number(x)

    def _physics_number(self, data: Any) -> int:
        for number, known in enumerate(self.physics):
            if known is data:
                return number
        self.physics.append(data)
        return len(self.physics) - 1

    def reducer_override(self, x: Any) -> Any:
        if type(x).__name__ in _GENERATORS and x is not self.known_generator:
            raise OtherGenerator(f"it holds a generator besides np_random, {x!r}")
        if self.way.is_set(x):
            return _set_back, (self.way.only, x.get_state())
        plain = (object.__getstate__, EzPickle.__getstate__)
        if not isinstance(x, gymnasium.Env) or type(x).__getstate__ not in plain:
            return NotImplemented
        if self.compared:
            return _fill, (type(x), {n: value for n, value in vars(x).items() if n != _ONLY_DRAWN})
        return object.__new__, (type(x),), vars(x), None, None, _fill


def _fill(env: Env, state: dict[str, Any]) -> None:
    vars(env).update(state)


def _set_back(only: list[Any], state: Any) -> Any:
    """The one environment that hooks set, in a state."""
    inner = only[0].unwrapped
    inner.set_state(state)
    return inner


class Copies:
    """Environments as bytes, MuJoCo's data beside them.

    sharing: whether copies share large tables.

    Attributes:
        shared: what all copies have in common.
        only: for `SetStates`, the one environment; empty here.
        known_bytes: shared parts that an environment could change, and what they were.
        spare_physics: the data of copies that are played for one step only.
        pristine: the environment as it was handed in, saved.
    """

    name = "saved"
    in_place = False

    def __init__(self, env: Env, sharing: bool = True) -> None:
        self._begin([])
        copied = self.load(self.save(env))  # the user's own tables are not shared
        held = vars(copied.unwrapped).values()
        large = [x for x in held if isinstance(x, dict) and len(x) >= _MANY and sharing]
        large += [x for x in held if type(x).__name__ == "MjModel"]
        for x in large:
            self.known_bytes.append((x, pickle.dumps(x)))
            self.shared.add(x)
        self.pristine = self.save(copied)

    def _begin(self, only: list[Env]) -> None:
        self.only = only
        self.shared = SharedParts()
        self.shared.add(self.only)  # so that `_set_back` is given this list, not a copy of it
        self.known_bytes: list[tuple[Any, bytes]] = []
        self.spare_physics: list[Any] = []

    def is_set(self, x: Any) -> bool:
        """Whether this is the environment that is set by its hooks, not copied."""
        return any(x is env.unwrapped for env in self.only)

    def new(self) -> Env:
        return self.load(self.pristine)

    def save(self, env: Env) -> Any:
        file = io.BytesIO()
        pickler = _Pickler(file, self, env)
        pickler.dump(env)
        return file.getvalue(), [copy.copy(data) for data in pickler.physics]

    def load(self, origin: Any, briefly: bool = False) -> Env:
        content, saved_physics = origin
        physics = self._physics(saved_physics, briefly)

        def part(mark: Any) -> Any:
            return physics[mark[1]] if isinstance(mark, tuple) else self.shared.parts[mark]

        reader: Any = pickle.Unpickler(io.BytesIO(content))
        reader.persistent_load = part
        return reader.load()

    def _physics(self, saved: list[Any], briefly: bool) -> list[Any]:
        """Copies of MuJoCo's data: new ones, or the spare ones, which is faster by far."""
        if not (briefly and self.spare_physics):
            physics = [copy.copy(data) for data in saved]  # takes as long as several steps
            if briefly:
                self.spare_physics = physics
            return physics
        for data, known in zip(self.spare_physics, saved, strict=True):
            sys.modules["mujoco"].mj_copyData(data, known.model, known)
        return self.spare_physics

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        if not moves and any(pickle.dumps(x) != known for x, known in self.known_bytes):
            raise RuntimeError("it changes a table or a MuJoCo model, which copies share")
        return None, ()

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        file = io.BytesIO()
        pickler = _Pickler(file, self, env, compared=True)
        try:
            pickler.dump(env)
        except RecursionError:  # it holds itself
            return None
        return None if pickler.physics else file.getvalue()


class SetStates(Copies):
    """One environment, set to states by its own `set_state`, in copies of its wrappers."""

    name = "set_state"
    in_place = True

    def __init__(self, env: Env) -> None:
        self._begin([env])

    def new(self) -> Env:
        return self.only[0]

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        return self.save(env), ()  # at once: the next query sets it to another state

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        return super().identity(self.load(origin), origin, moves)


class Replays:
    """New environments, reset as the first one was; its moves are made again."""

    name = "replayed"
    in_place = False

    def __init__(self, env: Env) -> None:
        self.env = copy.deepcopy(env)

    def new(self) -> Env:
        return copy.deepcopy(self.env)

    def save(self, env: Env) -> Any:
        raise ResetNeeded("snapshot before reset()")

    def load(self, origin: Any, briefly: bool = False) -> Env:
        env = self.new()
        seed, options = origin
        env.reset(seed=seed, options=options)
        return env

    def after(self, env: Env, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        return origin, moves

    def identity(self, env: Env, origin: Any, moves: Moves) -> Any:
        return pickle.dumps((origin, moves))


def name_of(env: Env) -> str:
    """What an error calls an environment."""
    return type(env.unwrapped).__name__
