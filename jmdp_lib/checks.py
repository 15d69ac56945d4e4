"""Checks of arrays and numbers that a user passes; a message names the array, state and action."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Sized(Protocol):
    """Object with numbers of states and of actions."""

    @property
    def num_states(self) -> int:
        """Number of states, |S|."""

    @property
    def num_actions(self) -> int:
        """Number of actions, |A|."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shape = Sequence[int | None]
LARGEST_REWARD = 1e100  # so that powers of rewards, and of their inverses, do not overflow


def floats(name: str, values: ArrayLike, *axes: str, shape: Shape = ()) -> Floats:
    """A finite float64 copy of `values`, whose axes have these names; errors name the bad entry.

    shape: sizes of the axes, None for an axis of any size; by default all axes may have any size.
    """
    array = _array(name, values, "fiub", axes, shape).astype(np.float64)
    refuse(name, array, ~np.isfinite(array), "is not finite", axes)
    return array


def integers(
    name: str, values: ArrayLike, *axes: str, shape: Shape = (), below: int | None = None
) -> Ints:
    """An int64 copy of `values`, in range(below) if given; raises for floats, even whole ones."""
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
    """Raise if totals of probabilities are not one, to the precision of their type."""
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
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array


def read_only(values: Any) -> Any:
    """A read-only view of a NumPy array; any other object unchanged."""
    return frozen(values.view()) if isinstance(values, np.ndarray) else values


def refuse(name: str, array: NDArray[Any], bad: Any, why: str, axes: Sequence[str]) -> None:
    """Name the first bad entry: `rewards[3, 0, 1] (state 3, table 0, action 1) = nan ...`."""
    if bad.any():
        first = np.argwhere(bad)[0].tolist()
        meaning = ", ".join(f"{axis} {i}" for axis, i in zip(axes, first, strict=True))
        label = f"{first} ({meaning})" if first else ""
        raise ValueError(f"{name}{label} = {array[tuple(first)]} {why}")


def same_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], meaning: str) -> None:
    """Raise if the shape of an array is not the expected one."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {meaning} = {expected}, got {shape}")


def number(
    name: str,
    value: Any,
    kind: type,
    what: str,
    below: float | None = None,
    error: type[Exception] = ValueError,
) -> Any:
    """A number of this kind, not a bool, passed as such or as a scalar array of NumPy or torch.

    what: name of the kind, for the message. below: the number must be in [0, below).
    """
    item = value.item() if getattr(value, "shape", None) == () else value
    fits = isinstance(item, kind) and not isinstance(item, bool)
    if not fits or (below is not None and not 0 <= item < below):
        raise error(f"{name} must be {what}, got {value!r}")
    return item


def _within(interval: str, inside: Callable[[float], bool]) -> Callable[[str, Any], float]:
    """A check that a real number is in the interval, which its message shows."""

    def check(name: str, value: Any) -> float:
        checked = float(number(name, value, numbers.Real, "a real number"))
        if not inside(checked):
            raise ValueError(f"{name} must lie in {interval}, got {value}")
        return checked

    return check


finite = _within("(-inf, inf)", math.isfinite)
positive = _within("(0, inf)", lambda x: 0.0 < x < math.inf)
not_negative = _within("[0, inf)", lambda x: 0.0 <= x < math.inf)
probability = _within("[0, 1]", lambda x: 0.0 <= x <= 1.0)
fraction = _within("(0, 1)", lambda x: 0.0 < x < 1.0)
_below_one = _within("[0, 1)", lambda x: 0.0 <= x < 1.0)


def discount(gamma: Any) -> float:
    """The discount factor gamma as a float in [0, 1)."""
    return _below_one("gamma", gamma)


def reward_range(name: str, ends: Any) -> tuple[float, float]:
    """Least and largest possible reward, (lo, hi)."""
    low, high = limits(name, ends)
    floats(name, [low, high], "(lo, hi)")
    return low, high


def limits(name: str, ends: Any) -> tuple[float, float]:
    """Limits (lo, hi), either of which may be infinite."""
    meaning = f"{name} must be (lo, hi), two numbers with lo <= hi, got {ends!r}"
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError):
        raise ValueError(meaning) from None
    if isinstance(ends, str) or not low <= high:
        raise ValueError(meaning)
    return low, high


def flag(name: str, value: Any) -> bool:
    """A value that is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def reward_unit(name: str, largest: float) -> None:
    """Raise if squares of rewards overflow or underflow, unless all rewards are zero."""
    least = 1.0 / LARGEST_REWARD
    if largest > LARGEST_REWARD or 0.0 < largest < least:
        raise ValueError(
            f"{name}: the largest absolute reward, {largest:g}, is out of range for second "
            f"moments; choose a unit in which it is between {least:g} and {LARGEST_REWARD:g}"
        )


def derived_horizon(gamma: float, truncation: float, most: int, other: str) -> int:
    """Number H of steps after which gamma^H is at most `truncation`.

    Raises if H exceeds `most`; the message ends with `other`.
    """
    share = fraction("truncation", truncation)
    steps = math.log(share) / math.log(gamma) if gamma > 0.0 else 1.0
    if steps > most:
        raise ValueError(
            f"gamma = {gamma} and truncation = {share:g} need runs of {steps:,.0f} steps, more "
            f"than {most:,}: {other}"
        )
    return max(1, math.ceil(steps))


def at_least(name: str, value: int, least: int) -> int:
    """An integer (Python's or NumPy's, not a bool or a float) of at least `least`."""
    checked = int(number(name, value, numbers.Integral, "an integer"))
    if checked < least:
        raise ValueError(f"{name} must be at least {least}, got {checked}")
    return checked


def index(name: str, value: int, size: int) -> int:
    """An integer in range(size); raises an IndexError otherwise, also for negative indices."""
    if type(value) is int and 0 <= value < size:  # the usual case, kept fast
        return value
    checked = int(number(name, value, numbers.Integral, "an integer", error=IndexError))
    if not 0 <= checked < size:
        raise IndexError(f"{name} {checked} is out of range: there are {size}")
    return checked


def listed(name: str, values: Any, what: str) -> list[Any]:
    """List of the items of a sequence, of which there must be at least one."""
    try:
        items = [*values]
    except TypeError:
        raise ValueError(f"{name} must be a sequence of {name}, got {values!r}") from None
    if not items:
        raise ValueError(f"{name} must hold at least one {what}, got {values!r}")
    return items


def distinct_actions(actions: Sequence[int], num_actions: int) -> list[int]:
    """The actions of a query (Definition 4.1): at least one, all in range and distinct."""
    checked = [index("action", a, num_actions) for a in listed("actions", actions, "action")]
    if len(set(checked)) < len(checked):
        raise ValueError(f"actions must hold at least one action, all distinct, got {checked}")
    return checked


def sizes_of(model: Sized) -> tuple[int, int]:
    """Sizes |S| and |A| of a JMDP or a simulator."""
    try:
        return model.num_states, model.num_actions
    except AttributeError:
        raise ValueError(f"a JMDP or a simulator with states is needed, got {model!r}") from None


def one_of(name: str, value: Any, words: Sequence[str]) -> str:
    """A value that is one of these words."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
    return str(value)


def unmasked(name: str, values: Any) -> None:
    """Raise for a masked NumPy array or a list of them, whose masks would be lost."""
    if any(map(np.ma.is_masked, values if isinstance(values, list | tuple) else [values])):
        raise ValueError(f"{name} has masked entries: put numbers there, as by .filled(0.0)")


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Convert `values` to an array; raises if rows have different lengths."""
    unmasked(name, values)
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be an array, got a ragged list") from None


def _array(
    name: str, values: ArrayLike, kinds: str, axes: Sequence[str], shape: Shape
) -> NDArray[Any]:
    """Convert `values` to an array of these dtype kinds, with these axes, not empty."""
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
