"""Seeds and random streams of a task, and checks that nothing else is random."""

from __future__ import annotations

import math
import numbers
import random
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numpy as np

from jmdp_lib import checks

Result = TypeVar("Result")
_CALLS = 4
RNG = int | np.random.SeedSequence | np.random.Generator | None


def seed_of(rng: RNG, *key: int | str) -> np.random.SeedSequence:
    """Seed of part `key` of a task, from the `rng` that a user passes; called once per task.

    The entropy of the seed is one integer, which reproduces the call when it is passed as `rng`. It
    is the given integer, or that of a SeedSequence of one integer without a spawn key. It is
    derived from any other SeedSequence without changing that. A Generator draws it, so each call
    has a new one. If `rng` is None, it is fresh entropy.
    """
    entropy: int | None = None
    if isinstance(rng, np.random.Generator):
        entropy = int.from_bytes(rng.bytes(16), "little")
    elif isinstance(rng, np.random.SeedSequence):
        entropy = _as_integer(rng.generate_state(4) if rng.spawn_key else rng.entropy)
    elif rng is not None:
        what = "an integer that is not negative, a SeedSequence or a Generator of NumPy"
        entropy = int(checks.number("rng", rng, numbers.Integral, what, below=math.inf))
    return part(np.random.SeedSequence(entropy), *key)


def _as_integer(integers: Any) -> int:
    """One integer from one or several, split into 32-bit words as NumPy does."""
    each = [int(x) for x in np.atleast_1d(np.asarray(integers, dtype=object))]
    words = [x.to_bytes(4 * max(1, -(-x.bit_length() // 32)), "little") for x in each]
    return int.from_bytes(b"".join(words), "little")


def part(seed: np.random.SeedSequence, *key: int | str) -> np.random.SeedSequence:
    """Seed of one part of a task; unlike `spawn`, a second call returns the same seed.

    key: integers, and words that name a purpose. The parts of one seed are independent.
    """
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in key]
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *words))


def entropy(seed: np.random.SeedSequence) -> int:
    """Entropy that reproduces a call when it is passed as `rng`."""
    return cast(int, seed.entropy)


def generator(rng: RNG, *key: int | str) -> np.random.Generator:
    """Random stream of part `key` of a task; a NumPy Generator is returned unchanged."""
    if isinstance(rng, np.random.Generator) and not key:
        return rng
    return np.random.default_rng(seed_of(rng, *key))


def pure(what: str, function: Callable[..., Any], *args: Any) -> None:
    """Raise if two equal calls of a user's function differ, or if it uses a global generator."""

    def twice() -> tuple[Any, Any]:
        return function(*args), function(*args)

    first, second = without_global_draws(what, "whose draws are not shared", twice)
    with suppress(ValueError):  # a comparison of arrays in a list may have no single result
        if type(first) is list and first == second:  # the usual case, kept fast
            return
    try:
        np.testing.assert_equal(second, first)  # arrays, lists and tuples by their parts
    except AssertionError:
        raise ValueError(f"{what} must be pure, but gave {first!r} and then {second!r}") from None


def without_global_draws(what: str, why: str, function: Callable[[], Result]) -> Result:
    """Result of a function; refused if it draws from a global generator.

    Threads of other libraries may draw while it runs, so it is called again, and refused if the
    generators differ after each of `_CALLS` calls. Draws from a private generator go undetected.
    """
    for _ in range(_CALLS):
        before = _global_generators()
        result = function()
        after = _global_generators()
        if all(after[library] == state for library, state in before.items()):
            return result
    raise ValueError(f"{what} draws from a global generator, {why}")


def _global_generators() -> dict[str, Any]:
    """States of the global generators of NumPy, Python and, if it is loaded, torch."""
    name, keys, *position = cast(Any, np.random.get_state())  # noqa: NPY002
    states = {"numpy": (name, keys.tobytes(), position), "Python": random.getstate()}
    of_torch = getattr(sys.modules.get("torch"), "get_rng_state", None)
    return states | ({"torch": of_torch().numpy().tobytes()} if of_torch else {})
