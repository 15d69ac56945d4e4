"""Ways to copy an environment: deep copies of its attributes, or replay.

The methods of `Copies` define what a way has to do, and when. To add a way, write a class with
these methods, put it into `WAYS`, and add it to `test_every_way_to_copy_keeps_what_it_must`.

All arguments and results that are environments are *wrapped*, like the user's: TimeLimit and other
wrappers have a state of their own, which is saved, too. Randomness is not saved: before each step,
`CoupledEnv` sets the state of `env.unwrapped.np_random`. A second generator is never set, and the
test of a way does not notice it. So a way that sees one raises `OtherGenerator` when it is created
or saves. A way that cannot look inside, such as `Replays`, comes after one that can, or has to
trust the environment.

An *origin* is the point from which a state is reached: a result of `save`, or, for a way that
replays, the (seed, options) of a reset. It is None until a saved state is needed. A way is created
from the user's environment. Its `name` is the value of `CoupledEnv.copying`.

The docstring of `CoupledEnv` lists the ways and their names, and its warning says why the way
before the chosen one failed.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

Env = gymnasium.Env[Any, Any]
Moves = tuple[tuple[int, Any], ...]
"""Draws and actions of consecutive steps."""
# Classes of libraries that may be absent, and take seconds to import, are recognised by name.
_GENERATORS = ("Generator", "RandomState", "Random")  # numpy's and torch's, numpy's, Python's
_PHYSICS = "MjData"  # of MuJoCo: copies itself in microseconds
_MODEL = "MjModel"  # of MuJoCo: large, and the same for all copies
# No general rule says which attributes are not part of a state: one that no step reads looks like
# any other. If these two counted, branches that meet on the frozen lake would not coalesce. Only
# `render` reads the first, and only Gymnasium's check of the first two steps reads the second.
_NO_STATE = ("lastaction", "_previous_data")
_CONSTANT = (type, types.FunctionType, types.ModuleType, gymnasium.Space, EnvSpec)
_PLAIN = {int, float, bool, str, type(None)}  # faster to check here than in `deepcopy`
_MANY = 10  # all copies share a dictionary with at least this many entries


class EnvSnapshot(NamedTuple):
    """A state of a `CoupledEnv`: a saved state, and the moves from there.

    Attributes:
        kind: the type of the innermost environment.
        saved: the saved state, or None until it is needed.
        moves: (draw, action) of each step from there. A queried successor is kept as its moves,
            which costs nothing until it is restored.
        observation: the observation at this state.
        over: whether the episode has ended here.
        draw: seed of the table drawn for this visit; if None, `restore` draws one.
    """

    kind: type[Env]
    saved: Any
    moves: Moves
    observation: Any
    over: bool
    draw: int | None = None

    def __repr__(self) -> str:
        return f"EnvSnapshot({self.kind.__name__}, over={self.over}, draw={self.draw})"


class OtherGenerator(ValueError):
    """Error of a second generator, which would be copied but never seeded anew."""


class _Mark:
    """Placeholder of the environment, or of one of its wrappers, in a saved state."""


class Copies:
    """Deep copies of all attributes of an environment and its wrappers.

    Their own methods for copying are not used. A state is loaded into an existing environment. For
    MuJoCo the state is its `MjData`: to load it takes microseconds, while a new environment takes
    longer than a step.

    Attributes:
        generator: the generator of all copies; its state is set before every step.
        shared: the other objects that all copies share, which are large tables and MuJoCo's model,
            with the bytes of each, since an environment could change them.
        marks: placeholders of the environment and its wrappers.
        spare: an environment for queries.
        pristine: the user's environment, saved before any use.
    """

    name = "copied"

    def __init__(self, env: Env) -> None:
        self.generator = np.random.default_rng(0)
        self.shared: list[tuple[Any, bytes]] = []
        self.marks = [_Mark() for _ in _layers(env)]
        self.spare = copy.deepcopy(env)
        self.load(self.save(env), self.spare)  # the user's own tables are not shared
        for x in vars(self.spare.unwrapped).values():
            large = isinstance(x, dict) and len(x) >= _MANY
            if large or type(x).__name__ == _MODEL:
                self.shared.append((x, pickle.dumps(x)))
        self.pristine = self.save(self.spare)

    def new(self) -> Env:
        """A new copy of the environment as the user passed it.

        Called for the test of this way, for the environment that is stepped after the test, and for
        every twin.
        """
        shared = self._by_id(map(vars, _layers(self.spare)))
        return self.load(self.pristine, copy.deepcopy(self.spare, shared))

    def save(self, env: Env) -> Any:
        """The state of an environment, as an origin for `load`.

        It must not change when `env` changes later. Called at the first snapshot or query of a
        visit, unless the state has an origin.
        """
        contents = [*map(vars, _layers(env))]
        memo = self._by_id(contents) | dict(zip(map(id, _layers(env)), self.marks, strict=True))
        memo[id(env.unwrapped.np_random)] = self.generator
        for x in contents[-1].values():
            if type(x).__name__ == _PHYSICS:
                memo[id(x)] = copy.copy(x)
        saved = copy.deepcopy(contents, memo)
        for x in memo.values():
            if type(x).__name__ in _GENERATORS and x is not self.generator:
                raise OtherGenerator(f"it holds a generator besides np_random, {x!r}")
        return saved

    def load(self, origin: Any, env: Env) -> Env:
        """An environment in the state of this origin, which the caller may step and change.

        Called for every queried action and for every restored snapshot. env: `spare`, or a result
        of `new`. It is either overwritten and returned, or replaced by another environment.
        """
        memo = self._by_id(origin) | dict(zip(map(id, self.marks), _layers(env), strict=True))
        for name, x in origin[-1].items():
            if type(x).__name__ == _PHYSICS:
                own = vars(env.unwrapped)[name]
                sys.modules["mujoco"].mj_copyData(own, x.model, x)
                memo[id(x)] = own
        for layer, held in zip(_layers(env), origin, strict=True):
            layer.__dict__ = {
                name: x if type(x) in _PLAIN else copy.deepcopy(x, memo) for name, x in held.items()
            }
        return env

    def _by_id(self, contents: Iterable[Any]) -> dict[int, Any]:
        """Parts that all copies share, by id, as a memo that keeps `copy.deepcopy` from copying."""
        values = [x for held in contents for x in held.values() if isinstance(x, _CONSTANT)]
        return {id(x): x for x in (self.generator, *(x for x, _ in self.shared), *values)}

    def start(self, seed: int, options: Any) -> Any:
        """Origin of the state after a reset; None so that `save` is called when it is needed."""
        if any(pickle.dumps(x) != before for x, before in self.shared):
            raise RuntimeError("it changes a table or a MuJoCo model, which copies share")
        return None

    def identity(self, origin: Any, moves: Moves) -> Any:
        """A key that is equal for equal states, and only for these; None if that is unknown.

        Called when branches may have met. In doubt they count as separate.
        """
        shared = self._by_id(origin)
        compared = [
            {name: x for name, x in held.items() if name not in _NO_STATE and id(x) not in shared}
            for held in origin
        ]
        file = io.BytesIO()
        pickler = pickle.Pickler(file)
        pickler.fast = True  # by value: one object under two names pickles like two equal objects
        try:
            pickler.dump(compared)
        except Exception:  # it contains itself, or an object that does not pickle
            return None
        return file.getvalue()


class Replays(Copies):
    """New environments that repeat the reset and the moves of the first one."""

    name = "replayed"

    def __init__(self, env: Env) -> None:
        self.spare = copy.deepcopy(env)

    def new(self) -> Env:
        return copy.deepcopy(self.spare)

    def load(self, origin: Any, env: Env) -> Env:
        seed, options = origin
        fresh = self.new()
        fresh.reset(seed=seed, options=options)
        return fresh

    def start(self, seed: int, options: Any) -> Any:
        return seed, options

    def identity(self, origin: Any, moves: Moves) -> Any:
        return pickle.dumps((origin, moves))


WAYS: tuple[type[Copies], ...] = (Copies, Replays)
"""Ways to copy, in the order in which they are tested."""


def _layers(env: Env) -> list[Any]:
    """The wrappers and, last, the environment."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def name_of(env: Env) -> str:
    """Name of an environment in messages."""
    return type(env.unwrapped).__name__
