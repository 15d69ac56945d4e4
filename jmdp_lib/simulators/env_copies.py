"""Ways to copy an environment: deep copies of what it holds, or replay.

The methods of `Copies` say what a way has to do, and when. To add one, write a class with these
methods, put it into `WAYS`, and give it a line in `test_every_way_to_copy_keeps_what_it_must`.

All environments that come and go are *wrapped*, as the user's is: TimeLimit and other wrappers
have a state of their own, which belongs to what is saved. Randomness does not: before each step,
`CoupledEnv` sets the state of `env.unwrapped.np_random`. Nobody sets a second generator, and trying
out does not find it: a way that sees one raises `OtherGenerator` when it is made or saves. One that
cannot look inside, such as `Replays`, comes after one that can, or relies on the environment.

An *origin* is where a state is reached from: what `save` returned, or the (seed, options) of a
reset for a way that replays. None: nothing is saved yet, since nobody has needed it. A way is
made from the environment that the user handed in. Its `name` is what `CoupledEnv.copying` says.

`CoupledEnv` tells users about the ways, and their names, in its docstring, and why the way before
the one that was taken has failed.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded

Env = gymnasium.Env[Any, Any]
Moves = tuple[tuple[int, Any], ...]
"""Draws and actions of consecutive steps."""
# What belongs to libraries that may be absent, and takes seconds to import, goes by its name.
_GENERATORS = ("Generator", "RandomState", "Random")  # numpy's and torch's, numpy's, Python's
_PHYSICS = "MjData"  # of MuJoCo: copies by itself, in microseconds
_MODEL = "MjModel"  # of MuJoCo: large, and the same for all copies
# There is no general rule for what is no part of a state: an attribute that no step reads looks
# like any other. Without these two, branches that meet on the frozen lake would count as separate:
# `render` alone reads the one, and Gymnasium's check of the first two steps the other.
_NO_STATE = ("lastaction", "_previous_data")
_CONSTANT = (type, types.FunctionType, types.ModuleType, gymnasium.Space, EnvSpec)
_PLAIN = {int, float, bool, str, type(None)}  # sooner seen here than by `deepcopy`
_MANY = 10  # entries from which on a dictionary is shared by all copies


class EnvSnapshot(NamedTuple):
    """A state of a `CoupledEnv`: a state that was saved, and the way from there.

    Attributes:
        kind: the type of the innermost environment.
        saved: what was saved, or None while nobody needs it.
        moves: (draw, action) of the steps from there: a queried successor is kept as the way to it,
            which costs nothing until someone wants to go there.
        observation: what is seen here.
        over: whether the episode has ended here.
        draw: seed of the table drawn for this visit; None: `restore` draws one.
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
    """A second generator would be copied, but never drawn afresh."""


class _Mark:
    """Stands for the environment, or one of its wrappers, in what was saved."""


class Copies:
    """Deep copies of all that an environment and its wrappers hold, whatever they say of copying.

    A state is put into an environment that is there already. That of MuJoCo is its own `MjData`:
    putting it back takes microseconds, a new one takes longer than a step.

    Attributes:
        generator: of all copies; every step sets it before it draws.
        shared: what else all copies have in common, large tables and MuJoCo's model, and the bytes
            of each, since an environment could change them.
        marks: for the environment and its wrappers.
        spare: an environment for queries.
        pristine: the environment as it was handed in, saved.
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
        """A new copy of the environment as it was handed in.

        Called to try this way out, for the environment that is stepped from then on, and for every
        twin.
        """
        shared = self._by_id(_contents(self.spare))
        return self.load(self.pristine, copy.deepcopy(self.spare, shared))

    def save(self, env: Env) -> Any:
        """The state of an environment, an origin for `load`. It must not change with `env` later.

        Called at the first snapshot or query of a visit, if `after` gave no origin.
        """
        contents = _contents(env)
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

        Called for every queried action and for every restored snapshot. env: `spare`, or one from
        `new`, which is overwritten and returned, or replaced.
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

    def _by_id(self, contents: list[dict[str, Any]]) -> dict[int, Any]:
        """Parts that all copies share, by id: `copy.deepcopy` does not copy them then."""
        values = [x for held in contents for x in held.values() if isinstance(x, _CONSTANT)]
        return {id(x): x for x in (self.generator, *(x for x, _ in self.shared), *values)}

    def after(self, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        """Way back to where the environment is: an origin, and the moves from there.

        Called after each reset, whose origin is (seed, options) and whose moves are (), and after
        each step and restored successor, whose moves have just been made from `origin`. Return
        (None, ()) to let `save` be called once it is needed.
        """
        if not moves and any(pickle.dumps(x) != before for x, before in self.shared):
            raise RuntimeError("it changes a table or a MuJoCo model, which copies share")
        return None, ()

    def identity(self, origin: Any, moves: Moves) -> Any:
        """Equal for equal states, and only for these; None if nobody can say.

        Called when branches may have met. In doubt they count as separate.
        """
        shared = self._by_id(origin)
        compared = [
            {name: x for name, x in held.items() if name not in _NO_STATE and id(x) not in shared}
            for held in origin
        ]
        file = io.BytesIO()
        pickler = pickle.Pickler(file)
        pickler.fast = True  # by value: two attributes may be one object, or equal ones
        try:
            pickler.dump(compared)
        except Exception:  # it holds itself, or what does not pickle
            return None
        return file.getvalue()


class Replays(Copies):
    """New environments, reset as the first one was; its moves are made again."""

    name = "replayed"

    def __init__(self, env: Env) -> None:
        self.spare = copy.deepcopy(env)

    def new(self) -> Env:
        return copy.deepcopy(self.spare)

    def save(self, env: Env) -> Any:
        raise ResetNeeded("snapshot before reset()")

    def load(self, origin: Any, env: Env) -> Env:
        seed, options = origin
        fresh = self.new()
        fresh.reset(seed=seed, options=options)
        return fresh

    def after(self, origin: Any, moves: Moves) -> tuple[Any, Moves]:
        return origin, moves

    def identity(self, origin: Any, moves: Moves) -> Any:
        return pickle.dumps((origin, moves))


WAYS: tuple[type[Copies], ...] = (Copies, Replays)
"""In the order in which they are tried out."""


def _contents(env: Env) -> list[dict[str, Any]]:
    """Attributes of the wrappers and, last, of the environment."""
    return [layer.__dict__ for layer in _layers(env)]


def _layers(env: Env) -> list[Any]:
    """The environment, last, in its wrappers."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def name_of(env: Env) -> str:
    """Name of an environment in errors."""
    return type(env.unwrapped).__name__
