"""Checks on what a user hands in: every message names the array, the state and the action."""

from __future__ import annotations

import math
import numbers
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Sized(Protocol):
    """What has states and actions."""

    @property
    def num_states(self) -> int:
        """|S|."""

    @property
    def num_actions(self) -> int:
        """|A|."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
RNG = int | np.random.SeedSequence | np.random.Generator | None
Policy = ArrayLike | Callable[[Any], Any]
"""Probabilities (S, A), actions (S,), or a function of the state: see `policy_matrix`."""
Shape = Sequence[int | None]
SAME_POLICY = 1e-5  # probabilities that differ by less are rounded, perhaps to float32
LARGEST_REWARD = 1e100  # so that powers of rewards, and of their inverses, are numbers


def floats(name: str, values: ArrayLike, *axes: str, shape: Shape = ()) -> Floats:
    """A finite float64 copy of `values`, whose axes have these names; a bad entry is named.

    shape: the sizes of the axes, None for one of any size; all of them unless given.
    """
    array = _array(name, values, "fiub", axes, shape).astype(np.float64)
    refuse(name, array, ~np.isfinite(array), "is not finite", axes)
    return array


def integers(
    name: str, values: ArrayLike, *axes: str, shape: Shape = (), below: int | None = None
) -> Ints:
    """An int64 copy of `values`, in range(below) if given; floats are refused even where whole."""
    array = _array(name, values, "iu", axes, shape).astype(np.int64)
    if below is not None:
        refuse(name, array, (array < 0) | (array >= below), f"is not in range({below})", axes)
    return array


def distributions(name: str, values: ArrayLike, *axes: str, shape: Shape = ()) -> Floats:
    """A copy of `values` whose last axis holds probability vectors."""
    array = floats(name, values, *axes, shape=shape)
    refuse(name, array, array < 0, "is negative", axes)
    totals: Floats = array.sum(-1)
    sums_to_one(name, values, totals, axes[:-1])
    return array / totals[..., None]


def sums_to_one(name: str, probs: ArrayLike, totals: Floats, axes: Sequence[str]) -> None:
    """Refuse totals of probabilities that are not one, to the precision of their type."""
    tolerance = 1e-5 if np.asarray(probs).dtype in (np.float16, np.float32) else 1e-9
    refuse(f"sum of {name}", totals, np.abs(totals - 1.0) > tolerance, "is not one", axes)


def collection(
    name: str, mean: ArrayLike, second: ArrayLike, model: Sized
) -> tuple[Floats, Floats]:
    """A second-order moment collection as arrays (S, A) and (S, A, S, A)."""
    shape = sizes_of(model)
    one = floats(f"{name} mean", mean, "state", "action", shape=shape)
    axes = ("state", "action", "other state", "other action")
    return one, floats(f"{name} second", second, *axes, shape=shape * 2)


def frozen(array: NDArray[Any]) -> Any:
    """The array, read-only from now on."""
    array.setflags(write=False)
    return array


def read_only(values: Any) -> Any:
    """An array of NumPy as a view that nobody can write to; anything else as it is."""
    return frozen(values.view()) if isinstance(values, np.ndarray) else values


def refuse(name: str, array: NDArray[Any], bad: Any, why: str, axes: Sequence[str]) -> None:
    """Name the first bad entry: `rewards[3, 0, 1] (state 3, table 0, action 1) = nan ...`."""
    if bad.any():
        first = np.argwhere(bad)[0].tolist()
        meaning = ", ".join(f"{axis} {i}" for axis, i in zip(axes, first, strict=True))
        label = f"{first} ({meaning})" if first else ""
        raise ValueError(f"{name}{label} = {array[tuple(first)]} {why}")


def same_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], meaning: str) -> None:
    """Refuse an array whose shape is not the expected one."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {meaning} = {expected}, got {shape}")


def discount(gamma: float) -> float:
    """gamma as a float in [0, 1)."""
    return real("gamma", gamma, "[0, 1)")


def probability(name: str, value: float) -> float:
    """A float in [0, 1]."""
    return real(name, value, "[0, 1]")


def real(name: str, value: Any, within: str = "") -> float:
    """A real number as a float; within: an interval, as "[0, 1)" or "(-inf, inf)"."""
    number = float(_number(name, value, numbers.Real, "a real number"))
    if within:
        low, high = map(float, within[1:-1].split(","))
        is_end = (number == low and within[0] == "[") or (number == high and within[-1] == "]")
        if not (low < number < high or is_end):
            raise ValueError(f"{name} must lie in {within}, got {value}")
    return number


def positive(name: str, value: float) -> float:
    """A finite float above zero."""
    return real(name, value, "(0, inf)")


def reward_range(name: str, ends: Any) -> tuple[float, float]:
    """(lo, hi), the least and the largest reward that there can be."""
    low, high = limits(name, ends)
    floats(name, [low, high], "(lo, hi)")
    return low, high


def limits(name: str, ends: Any) -> tuple[float, float]:
    """(lo, hi), either of which may be infinite."""
    meaning = f"{name} must be (lo, hi), two numbers with lo <= hi, got {ends!r}"
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError):
        raise ValueError(meaning) from None
    if isinstance(ends, str) or not low <= high:
        raise ValueError(meaning)
    return low, high


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def reward_unit(name: str, largest: float) -> None:
    """Refuse rewards whose squares overflow, or all vanish: the largest |R| is 0 or not tiny."""
    least = 1.0 / LARGEST_REWARD
    if largest > LARGEST_REWARD or 0.0 < largest < least:
        raise ValueError(
            f"{name}: the largest absolute reward, {largest:g}, leaves no room for moments; choose "
            f"a unit in which it is between {least:g} and {LARGEST_REWARD:g}"
        )


def derived_horizon(gamma: float, truncation: float, most: int, other: str) -> int:
    """The steps after which gamma^H is at most `truncation`; too many are refused: see `other`."""
    share = real("truncation", truncation, "(0, 1)")
    steps = math.log(share) / math.log(gamma) if gamma > 0.0 else 1.0
    if steps > most:
        raise ValueError(
            f"gamma = {gamma} and truncation = {share:g} ask for runs of {steps:,.0f} steps, more "
            f"than {most:,}: {other}"
        )
    return max(1, math.ceil(steps))


def at_least(name: str, value: int, least: int) -> int:
    """An integer (numpy's too, but no bool and no float) that is not below `least`."""
    number = int(_number(name, value, numbers.Integral, "an integer"))
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def index(name: str, value: int, size: int) -> int:
    """An integer in range(size), or an IndexError; negative indices and bools are refused."""
    if type(value) is int and 0 <= value < size:  # the usual case, kept fast
        return value
    number = int(_number(name, value, numbers.Integral, "an integer", error=IndexError))
    if not 0 <= number < size:
        raise IndexError(f"{name} {number} is out of range: there are {size}")
    return number


def _number(
    name: str,
    value: Any,
    kind: type,
    what: str,
    below: float | None = None,
    error: type[Exception] = ValueError,
) -> Any:
    """A number of this kind, no bool; an array without axes (numpy's, torch's) will do.

    what: says so in the message. below: the number must not be negative, and less than this.
    """
    number = value.item() if getattr(value, "shape", None) == () else value
    fits = isinstance(number, kind) and not isinstance(number, bool)
    if not fits or (below is not None and not 0 <= number < below):
        raise error(f"{name} must be {what}, got {value!r}")
    return number


def seed_of(rng: RNG, *key: int | str) -> np.random.SeedSequence:
    """What a user's `rng` stands for, once a call: the seed of part `key` of the task.

    Its entropy is one integer, which repeats the call when it is passed as `rng`. An integer, or a
    SeedSequence of one, is that entropy; any other SeedSequence gives some and stays as it was; a
    Generator gives some anew at each call; None is fresh entropy.
    """
    entropy: int | None = None
    if isinstance(rng, np.random.Generator):
        entropy = int.from_bytes(rng.bytes(16), "little")
    elif isinstance(rng, np.random.SeedSequence):
        entropy = _as_integer(rng)
    elif rng is not None:
        what = "an integer that is not negative, a SeedSequence or a Generator of NumPy"
        entropy = int(_number("rng", rng, numbers.Integral, what, below=math.inf))
    return part(np.random.SeedSequence(entropy), *key)


def _as_integer(seed: np.random.SeedSequence) -> int:
    """One integer for a SeedSequence: that of its entropy, unless it was spawned by another."""
    if seed.spawn_key:
        words = seed.generate_state(4).tolist()
    else:  # each integer in 32 bits at a time, as NumPy reads them
        words = []
        for number in np.atleast_1d(np.asarray(seed.entropy, dtype=object)):
            count = max(1, math.ceil(int(number).bit_length() / 32))
            words += [int(number) >> 32 * i & 0xFFFFFFFF for i in range(count)]
    return sum(word << 32 * i for i, word in enumerate(words))


def part(seed: np.random.SeedSequence, *key: int | str) -> np.random.SeedSequence:
    """The seed of one part of a task; unlike `spawn`, asking twice gives the same one.

    key: a word says what for, so that one seed serves many purposes independently.
    """
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in key]
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *words))


def entropy(seed: np.random.SeedSequence) -> int:
    """What repeats a call when it is passed as `rng`."""
    return cast(int, seed.entropy)


def generator(rng: RNG, *key: int | str) -> np.random.Generator:
    """The random stream of part `key` of a task; a Generator of NumPy is used as it is."""
    if isinstance(rng, np.random.Generator) and not key:
        return rng
    return np.random.default_rng(seed_of(rng, *key))


def pure(what: str, function: Callable[..., Any], *args: Any) -> None:
    """Refuse a user's function that answers one call in two ways, or draws from elsewhere."""
    with no_global_draws(what, "whose draws are not shared"):
        first = function(*args)
        second = function(*args)
    with suppress(ValueError):  # arrays in a list have no one answer
        if type(first) is list and first == second:  # the usual case, kept fast
            return
    try:
        np.testing.assert_equal(second, first)  # arrays, lists and tuples by their parts
    except AssertionError:
        raise ValueError(f"{what} must be pure, but gave {first!r} and then {second!r}") from None


@contextmanager
def no_global_draws(what: str, why: str) -> Iterator[None]:
    """Refuse what draws from a global generator; nobody sees draws from one of its own."""
    before = _global_generators()
    yield
    after = _global_generators()
    if any(after[library] != state for library, state in before.items()):
        raise ValueError(f"{what} draws from a global generator, {why}")


def _global_generators() -> dict[str, Any]:
    """The states of the global generators of numpy, Python and, if it is loaded, torch."""
    name, keys, *position = cast(Any, np.random.get_state())  # noqa: NPY002
    states = {"numpy": (name, keys.tobytes(), position), "Python": random.getstate()}
    of_torch = getattr(sys.modules.get("torch"), "get_rng_state", None)
    return states | ({"torch": of_torch().numpy().tobytes()} if of_torch else {})


def listed(name: str, values: Any, what: str) -> list[Any]:
    """What a user lists, at least one of it."""
    try:
        items = [*values]
    except TypeError:
        raise ValueError(f"{name} must be a sequence of {name}, got {values!r}") from None
    if not items:
        raise ValueError(f"{name} must hold at least one {what}, got {values!r}")
    return items


def distinct_actions(actions: Sequence[int], num_actions: int) -> list[int]:
    """The actions of a query (Definition 4.1): at least one, all known, no two alike."""
    checked = [index("action", a, num_actions) for a in listed("actions", actions, "action")]
    if len(set(checked)) < len(checked):
        raise ValueError(f"actions must hold at least one action, all distinct, got {checked}")
    return checked


def policy_matrix(model: Sized, policy: Policy) -> Floats:
    """Any policy as probabilities (S, A); a function is called twice for every state.

    policy: probabilities (S, A); integers (S,), the actions of a deterministic policy; or a
    function of the state that returns probabilities (A,) or an action.
    """
    num_states, num_actions = sizes_of(model)
    if callable(policy):
        return policy_rows(policy, range(num_states), num_actions)
    array = policy_array(policy)
    if array.ndim == 1 and array.dtype.kind in "iu":
        chosen = integers("policy", policy, "state", shape=(num_states,), below=num_actions)
        return np.eye(num_actions)[chosen]
    if array.ndim < 2:
        raise ValueError(
            f"policy must have shape (state = {num_states}, action = {num_actions}), or be "
            f"actions, integers of shape (state = {num_states}), got dtype {array.dtype} of shape "
            f"{array.shape}"
        )
    return distributions("policy", policy, "state", "action", shape=(num_states, num_actions))


def policy_rows(policy: Policy, states: Sequence[Any], num_actions: int) -> Floats:
    """(N, A) what a policy does in each of N states, as `policy_row`.

    A function is asked for all of them, and then again backwards: one that draws an action by
    itself, or has a memory, is refused. Draws from a global generator of NumPy, Python or torch are
    always noticed; those from one of its own only where the answers differ.
    """

    def rows_at(states: Sequence[Any]) -> Floats:
        rows = [policy_row(policy, state, num_actions) for state in states]
        return np.reshape(rows, (-1, num_actions))

    if not callable(policy):
        return rows_at(states)
    with no_global_draws("policy", "but must return probabilities"):
        rows = rows_at(states)
        again = rows_at(states[::-1])[::-1]
        differ = np.abs(rows - again).max(1) > SAME_POLICY
        if differ.any():
            i = int(differ.argmax())
            raise ValueError(
                f"policy({states[i]!r}) must be pure, but gave {rows[i]} and then {again[i]}; a "
                "random policy returns probabilities"
            )
    return rows


def policy_row(policy: Policy, state: Any, num_actions: int) -> Floats:
    """(A,) what a policy does in a state, or after an observation.

    policy: a function, or an array whose entry `policy[state]` is a row: (S, A) for states 0 to
    |S| - 1, (rows, columns, A) for states (row, column). A row is probabilities (A,) or an action.
    """
    if callable(policy):
        try:
            row = policy(read_only(state))
        except Exception as error:
            raise ValueError(f"policy({state!r}) failed: {error!r}") from error
    else:
        row = _entry(policy_array(policy), state)
    try:
        return _row("policy", row, num_actions)
    except ValueError:  # only a message names the state: to print an observation is slow
        return _row(f"policy({state!r})", row, num_actions)


def policy_array(policy: Any) -> NDArray[Any]:
    """A policy that is no function, as an array."""
    if isinstance(policy, Mapping):
        raise ValueError(
            "policy must be an array, or a function of the state as policy.__getitem__ is one, got "
            f"a {type(policy).__name__}"
        )
    return as_array("policy", policy)


def _entry(policy: NDArray[Any], state: Any) -> Any:
    """The entry of an array for a state, whose numbers count along its axes from zero on."""
    place = as_array("state", state)
    rows = policy.shape[: place.size]
    needed = place.size + (policy.dtype.kind not in "iu")  # an axis of probabilities
    counts = place.dtype.kind in "iu" and place.ndim < 2 and policy.ndim >= needed
    if not counts or np.any((place < 0) | (place >= rows)):
        raise ValueError(
            f"policy({state!r}) is not there: the policy is an array of shape {policy.shape} and "
            f"dtype {policy.dtype}, and needs an axis for each number of a state; or pass a "
            "function of the state"
        )
    return policy[tuple(place.ravel())]


def _row(name: str, row: Any, num_actions: int) -> Floats:
    """Probabilities (A,) from what a policy returned: these, or an action."""
    if as_array(name, row).ndim > 0:
        return distributions(name, row, "action", shape=(num_actions,))
    what = f"probabilities ({num_actions},) or an action from 0 to {num_actions - 1}"
    action = _number(name, row, numbers.Integral, what, below=num_actions)
    return np.eye(num_actions)[int(action)]


def sizes_of(model: Sized) -> tuple[int, int]:
    """|S| and |A| of a JMDP or a simulator."""
    try:
        return model.num_states, model.num_actions
    except AttributeError:
        raise ValueError(f"a JMDP or a simulator with states is needed, got {model!r}") from None


def one_of(name: str, value: Any, words: Sequence[str]) -> str:
    """One of these words."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
    return str(value)


def unmasked(name: str, values: Any) -> None:
    """Refuse a masked array of NumPy, or a list of them, whose mask would be lost."""
    if any(map(np.ma.is_masked, values if isinstance(values, list | tuple) else [values])):
        raise ValueError(f"{name} has masked entries: put numbers there, as by .filled(0.0)")


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """`values` as an array, if its rows are of one length."""
    unmasked(name, values)
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be an array, got a ragged list") from None


def _array(
    name: str, values: ArrayLike, kinds: str, axes: Sequence[str], shape: Shape
) -> NDArray[Any]:
    """`values` as an array of these dtype kinds, with these axes, not empty."""
    array = as_array(name, values)
    sizes = shape or [None] * len(axes)
    fits = [n in (None, m) for n, m in zip(sizes, array.shape, strict=False)]
    if array.ndim != len(axes) or not all(fits) or array.size == 0:
        labels = zip(axes, sizes, strict=True)
        meaning = ", ".join(axis if n is None else f"{axis} = {n}" for axis, n in labels)
        raise ValueError(f"{name} must have shape ({meaning}) and not be empty, got {array.shape}")
    if array.dtype.kind not in kinds:
        holding = "real numbers" if "f" in kinds else "integers"
        raise ValueError(f"{name} must hold {holding}, got dtype {array.dtype}")
    return array
