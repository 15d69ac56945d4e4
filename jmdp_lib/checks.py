"""Checks on what a user hands in: every message names the array, the state and the action."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any, Protocol

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
Seed = int | Sequence[int] | np.random.SeedSequence

# Probabilities are accepted when they sum to one within this, and are then scaled to do so exactly.
SUM_TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-5  # for arrays that come in single precision
_PLAIN, _INT = (list, tuple, range), {int}


def floats(name: str, values: ArrayLike, *axes: str) -> Floats:
    """A finite float64 copy of `values` with the named axes; a bad entry is named."""
    array = with_axes(name, values, axes)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
    array = array.astype(np.float64)
    refuse(name, array, ~np.isfinite(array), "is not finite", axes)
    return array


def integers(name: str, values: ArrayLike, *axes: str) -> Ints:
    """An int64 copy of `values` with the named axes; floats are refused even where whole."""
    array = with_axes(name, values, axes)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got dtype {array.dtype}")
    return array.astype(np.int64)


def distributions(name: str, values: ArrayLike, *axes: str) -> Floats:
    """A copy of `values` whose last axis holds probability vectors."""
    raw = with_axes(name, values, axes)
    array = floats(name, raw, *axes)
    refuse(name, array, array < 0, "is negative", axes)
    totals = array.sum(-1)
    sums_to_one(name, totals, axes[:-1], sum_tolerance(raw))
    return array / totals[..., None]


def sum_tolerance(raw: NDArray[Any]) -> float:
    """How far probabilities of this type may be from summing to one."""
    single = raw.dtype.kind == "f" and raw.dtype.itemsize < 8
    return SINGLE_TOLERANCE if single else SUM_TOLERANCE


def sums_to_one(
    name: str, totals: Floats, axes: Sequence[str], tolerance: float = SUM_TOLERANCE
) -> None:
    """Refuse totals of probabilities that are not one."""
    refuse(f"sum of {name}", totals, np.abs(totals - 1.0) > tolerance, "is not one", axes)


def collection(
    name: str, mean: ArrayLike, second: ArrayLike, model: Sized
) -> tuple[Floats, Floats]:
    """A second-order moment collection as arrays (S, A) and (S, A, S, A)."""
    shape = (model.num_states, model.num_actions)
    first = floats(f"{name} mean", mean, "state", "action")
    both = floats(f"{name} second", second, "state", "action", "other state", "other action")
    same_shape(f"{name} mean", first.shape, shape, "(S, A)")
    same_shape(f"{name} second", both.shape, shape + shape, "(S, A, S, A)")
    return first, both


def frozen(array: NDArray[Any]) -> Any:
    """The array, read-only from now on."""
    array.setflags(write=False)
    return array


def states(name: str, values: Ints, num_states: int, *axes: str) -> None:
    """Refuse entries that are not in range(num_states)."""
    outside = (values < 0) | (values >= num_states)
    refuse(name, values, outside, f"is not one of the {num_states} states", axes)


def refuse(name: str, array: NDArray[Any], bad: Any, why: str, axes: Sequence[str]) -> None:
    """Name the first bad entry: `rewards[3, 0, 1] (state 3, table 0, action 1) = nan ...`."""
    if not np.any(bad):
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0]) if np.ndim(bad) else ()
    label = f"[{', '.join(map(str, index))}]" if index else ""
    meaning = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))
    raise ValueError(f"{name}{label}{f' ({meaning})' if meaning else ''} = {array[index]} {why}")


def same_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], meaning: str) -> None:
    """Refuse an array whose shape is not the expected one."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {meaning} = {expected}, got {shape}")


def discount(gamma: float) -> float:
    """gamma as a float in [0, 1)."""
    if not 0.0 <= real("gamma", gamma) < 1.0:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    return float(gamma)


def real(name: str, value: Any) -> float:
    """A real number, as a float."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a real number, got {value!r}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """A finite real number, as a float."""
    if not np.isfinite(real(name, value)):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def probability(name: str, value: float) -> float:
    """A float in [0, 1]."""
    if not 0.0 <= real(name, value) <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)


def at_least(name: str, value: int, least: int) -> int:
    """An integer (numpy's too, but no bool and no float) that is not below `least`."""
    if isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: float) -> float:
    """A finite float above zero."""
    if not (np.isfinite(real(name, value)) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def index(name: str, value: int, size: int) -> int:
    """An integer in range(size), or an IndexError; negative indices and bools are refused."""
    if isinstance(value, bool | np.bool_):
        raise IndexError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise IndexError(f"{name} must be an integer, got {value!r}") from None
    if not 0 <= number < size:
        raise IndexError(f"{name} {number} is out of range: there are {size}")
    return number


def seed_sequence(seed: Any, *key: int) -> np.random.SeedSequence:
    """The seed of part `key` of a task; unlike `spawn`, asking twice gives the same one.

    seed: integers that are not negative, one or a list, or a SeedSequence; None: a new one.
    """
    if isinstance(seed, np.random.SeedSequence):
        return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *key))
    try:
        for part in seed if isinstance(seed, list | tuple) else [] if seed is None else [seed]:
            at_least("seed", part, 0)
    except ValueError:
        raise ValueError(
            "seed must be an integer that is not negative, a list of such, or a SeedSequence, "
            f"got {seed!r}"
        ) from None
    return np.random.SeedSequence(seed, spawn_key=key)


def generator(seed: Seed | np.random.Generator | None, *key: int) -> np.random.Generator:
    """The random stream of part `key` of a task; a numpy Generator is used as it is."""
    if isinstance(seed, np.random.Generator) and not key:
        return seed
    return np.random.default_rng(seed_sequence(seed, *key))


def distinct_actions(actions: Sequence[int], num_actions: int) -> list[int]:
    """The actions of a query (Definition 4.1): at least one, all known, no two alike."""
    if isinstance(actions, _PLAIN) and set(map(type, actions)) == _INT:  # most are: no array made
        known = set(actions)
        if len(known) == len(actions) and min(known) >= 0 and max(known) < num_actions:
            return list(actions)
    if np.ndim(actions) != 1:
        raise ValueError(f"actions must be a sequence of actions, got {actions!r}")
    checked = [index("action", a, num_actions) for a in actions]
    if not checked:
        raise ValueError("actions must hold at least one action, got none")
    repeated = {a for a in checked if checked.count(a) > 1}
    if repeated:
        raise ValueError(f"actions must be distinct, got {checked}: {sorted(repeated)} repeated")
    return checked


def policy_matrix(model: Sized, policy: ArrayLike) -> Floats:
    """The policy as an (S, A) matrix whose rows are distributions over actions."""
    shape = (model.num_states, model.num_actions)
    array = with_axes("policy", policy, ("state", "action"))
    same_shape("policy", array.shape, shape, "(num_states, num_actions)")
    return distributions("policy", array, "state", "action")


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """One of the known words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return str(value)


def grid_rows(num_states: int, columns: int) -> int:
    """How many rows the states of a grid make that is `columns` wide."""
    rows, rest = divmod(num_states, columns)
    if rest:
        raise ValueError(f"{num_states} states do not make rows of {columns} columns")
    return rows


def with_axes(name: str, values: ArrayLike, axes: Sequence[str]) -> NDArray[Any]:
    """`values` as an array with the named axes, not empty."""
    expected = f"{len(axes)} axes ({', '.join(axes)})"
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be an array with {expected}, got a ragged list") from None
    if array.ndim != len(axes):
        raise ValueError(f"{name} must have {expected}, got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    return array
