"""Vectorised simulators: a step of many states at once, and the array library that it lives on.

`VectorSimulator` is what a user makes. Every call of the user's functions goes through `drawn` and
`played`, which check what is cheap to check: the number of results and their shapes. `check_values`
looks at the numbers themselves, and names the first row that is wrong; another check of what a step
returns goes there. `Arrays` is an array library and a device: what the array API standard does not
say, such as random numbers, or says too slowly, is a method there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Ints
from jmdp_lib.model.simulator import ANY_REWARD, SimulatorError, declared_range

_SPOT = 16  # rows that are stepped twice
ALONE = "must be pure, and no row may depend on another one"
_ROUNDED = 1e-6  # of the largest reward, since rewards may be float32


class VectorSimulator:
    """A simulator that steps many states at once, as arrays of NumPy, torch, or another library.

    step: step(states, actions, noise) -> rewards, next_states, or rewards, next_states, over, all
        with first axis n. States are integers (n,) or rows (n, d) of numbers; two states are equal
        if all their numbers are. over: (n,) bools, whether the episode ended. It must be pure, and
        no row may depend on another one.
    draw: draw(n, rng) -> the noise of n steps, an array or a tuple of arrays, first axis n. rng is
        a NumPy generator, or one of torch if the states are tensors, on their device.
    num_actions: A; actions are integers from 0 to A - 1.
    gamma: discount factor; 1 needs a `horizon` where it is played.
    reward_range: (lo, hi) that holds all rewards, if it is known. Decisions rely on it.
    num_states: S, if states are the integers from 0 to S - 1. Then this is a `Simulator`, and
        `JMDP.from_simulator` counts it state by state.

    `estimate_gaps`, `compare_actions` and `compare_policies` play many runs at once. The state that
    they start from says which library is used, and on which device: a plain number, or a list,
    means NumPy. Policies are probabilities (S, A), actions (S,), or a function of the states,
    policy(states) -> (n, A) probabilities or (n,) actions.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> def sell(stock, order, demand):  # a depot that holds 11 units
        ...     full = np.minimum(stock + order, 11)
        ...     sold = np.minimum(full, demand)
        ...     return 3.0 * sold - 1.5 * order, full - sold
        ...
        >>> def demands(n, rng):
        ...     return rng.poisson(3, n)
        ...
        >>> depot = jl.simulators.VectorSimulator(sell, demands, 5, gamma=0.9, num_states=12)
        >>> often = {"state": 5, "num_runs": 50_000}
        >>> found = jl.simulators.estimate_gaps(depot, np.full((12, 5), 0.2), [2, 1], **often)
        >>> print(f"{found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        0.41 +- 0.02
        >>> isinstance(depot, jl.simulators.Simulator)
        True
    """

    num_states: int  # of an instance that was told so

    def __init__(
        self,
        step: Callable[[Any, Any, Any], tuple[Any, ...]],
        draw: Callable[[int, Any], Any],
        num_actions: int,
        gamma: float,
        reward_range: tuple[float, float] | None = None,
        num_states: int | None = None,
    ) -> None:
        for name, function in (("step", step), ("draw", draw)):
            if not callable(function):
                raise ValueError(f"{name} must be a function, got {function!r}")
        self.step = step
        self.draw = draw
        self.num_actions = checks.at_least("num_actions", num_actions, 1)
        self.gamma = checks.real("gamma", gamma, "[0, 1]")
        self.reward_range = None if reward_range is None else declared_range(reward_range)
        if num_states is not None:  # what has this attribute can be counted state by state
            self.num_states = checks.at_least("num_states", num_states, 1)

    def __repr__(self) -> str:
        count = getattr(self, "num_states", None)
        states = "" if count is None else f"num_states={count}, "
        return f"VectorSimulator({states}num_actions={self.num_actions}, gamma={self.gamma})"

    def query(self, state: Any, actions: Sequence[int], rng: Any) -> tuple[list[float], list[Any]]:
        """Rewards (m,) and next states (m,) of the actions under one draw of the noise.

        A next state that is a row of numbers is a tuple of them. A query cannot say that an episode
        ended, so a step that ends one is refused here.
        """
        start = as_array(state)
        arrays = Arrays.of(start)
        chosen = arrays.put(np.asarray(actions))
        size = chosen.shape[0]
        states = arrays.xp.broadcast_to(start, (size, *start.shape))
        noise = each(lambda x: arrays.xp.concat([x] * size), drawn(self, 1, rng))
        found = played(self, states, chosen, noise)
        count = getattr(self, "num_states", None)
        check_values(arrays, states, chosen, found, self.reward_range, count)
        if found.over is not None and arrays.host(found.over).any():
            raise ValueError("step ended an episode, which a query has no way to say")
        following = arrays.host(found.states).tolist()
        return arrays.host(found.rewards).tolist(), [
            tuple(row) if isinstance(row, list) else row for row in following
        ]


def drawn(simulator: VectorSimulator, size: int, rng: Any) -> Any:
    """The noise of `size` steps."""
    noise = simulator.draw(size, rng)
    for part in noise if isinstance(noise, tuple) else (noise,):
        shape = getattr(part, "shape", None)
        if not shape or shape[0] != size:
            what = f"shape {tuple(shape)}" if shape is not None else repr(part)
            raise SimulatorError(
                f"draw({size}, rng) must return an array, or a tuple of arrays, with first axis "
                f"{size}, got {what}"
            )
    return noise


class Played(NamedTuple):
    """What a step returned. rewards: (n,). states: (n, ...). over: (n,), or None.

    suspect: whether something is wrong with it, as an array (), or None.
    """

    rewards: Any
    states: Any
    over: Any
    suspect: Any = None


def played(simulator: VectorSimulator, states: Any, actions: Any, noise: Any) -> Played:
    """What a step makes of states (n, ...) and actions (n,)."""
    answer = simulator.step(states, actions, noise)
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        raise SimulatorError(
            "step(states, actions, noise) must return rewards and next states, or rewards, next "
            f"states and over, got {type(answer).__name__}"
        )
    rewards, following, over = answer if len(answer) == 3 else (*answer, None)
    size = actions.shape[0]
    _check_shape("rewards", rewards, (size,))
    _check_shape("next states", following, tuple(states.shape))
    if over is not None:
        _check_shape("over", over, (size,))
    return Played(rewards, following, over)


def _check_shape(name: str, part: Any, expected: tuple[int, ...]) -> None:
    shape = getattr(part, "shape", None)
    if shape is None:
        raise SimulatorError(f"step must return arrays, but {name} are {part!r}")
    if tuple(shape) == expected:
        return
    raise SimulatorError(f"step returned {name} of shape {tuple(shape)}, expected are {expected}")


def check_values(
    arrays: Arrays,
    states: Any,
    actions: Any,
    found: Played,
    limits: tuple[float, float] | None,
    num_states: int | None,
) -> None:
    """Refuse a step that returned numbers that cannot be; the first row is named."""
    before = arrays.host(states)
    chosen = arrays.host(actions)

    def refuse(name: str, values: Any, bad: Any, why: str) -> None:
        rows = np.flatnonzero(bad.reshape(len(bad), -1).any(1))
        if rows.size:
            row = rows[0]
            raise SimulatorError(
                f"step returned {name}[{row}] = {values[row]}, which {why} (state {before[row]}, "
                f"action {chosen[row]})"
            )

    rewards = arrays.host(found.rewards)
    if rewards.dtype.kind not in "fiub":
        raise SimulatorError(f"step returned rewards of dtype {rewards.dtype}, not real numbers")
    rewards = rewards.astype(np.float64)
    refuse("rewards", rewards, ~np.isfinite(rewards), "is not finite")
    low, high = widened(limits)
    refuse("rewards", rewards, (rewards < low) | (rewards > high), f"is not in {limits}")
    following = arrays.host(found.states)
    if following.dtype.kind == "f":
        refuse("next_states", following, np.isnan(following), "is not a number")
    if num_states is not None:
        if following.dtype.kind not in "iu":
            raise SimulatorError(
                f"step returned next_states of dtype {following.dtype}, but states are integers "
                f"below {num_states}; it must return rewards first, then next states"
            )
        outside = (following < 0) | (following >= num_states)
        refuse("next_states", following, outside, f"is not in range({num_states})")
    if found.over is not None and arrays.host(found.over).dtype.kind != "b":
        raise SimulatorError(f"step returned over of dtype {found.over.dtype}, not bools")


def widened(limits: tuple[float, float] | None) -> tuple[float, float]:
    """(lo, hi) that holds all rewards, a little wider, since they may have been rounded."""
    if limits is None:
        return ANY_REWARD
    low, high = limits
    slack = _ROUNDED * max(-low, high)
    return low - slack, high + slack


def check_pure(
    simulator: VectorSimulator, arrays: Arrays, states: Any, actions: Any, noise: Any
) -> None:
    """Refuse a step some of whose rows come out differently in other places, or the second time."""
    rows = spot_rows(actions.shape[0])
    index = arrays.put(rows)
    some = [each(lambda x: arrays.take(x, index), part) for part in (states, actions, noise)]
    whole = played(simulator, states, actions, noise)
    alone = played(simulator, *some)
    names = ("rewards", "next_states", "over")
    for name, first, second in zip(names, whole[:3], alone[:3], strict=True):
        if first is not None:
            found = arrays.host(first)[rows]
            check_repeated(f"step {ALONE}", name, found, arrays.host(second), rows)


def check_draw(simulator: VectorSimulator, arrays: Arrays) -> None:
    """Refuse a draw that takes its numbers from elsewhere than the generator that it is given."""
    seed = np.random.SeedSequence(0)
    noises = [drawn(simulator, _SPOT, arrays.generator(seed)) for _ in range(2)]
    for parts in zip(*noises, strict=True) if isinstance(noises[0], tuple) else [noises]:
        one, other = map(arrays.host, parts)
        why = "draw(n, rng) must draw from rng alone"
        check_repeated(why, "noise", one, other, np.arange(_SPOT))


def spot_rows(size: int) -> Ints:
    """Some rows of an array in another order: what is asked again for these must not change."""
    return np.random.default_rng(0).permutation(size)[:_SPOT]


def check_repeated(
    promise: str, name: str, first: Any, second: Any, rows: Ints, off: float = 1e-8
) -> None:
    """Refuse what was said of the same rows once and then again, if it differs."""
    close = np.isclose(first, second, rtol=1e-6, atol=off, equal_nan=True)
    for k in np.flatnonzero(~close.reshape(len(rows), -1).all(1))[:1]:
        raise SimulatorError(
            f"{promise}, but {name}[{rows[k]}] was {first[k]} and then {second[k]}, asked again"
        )


@dataclass(frozen=True)
class Arrays:
    """An array library and a device. xp: the library's functions, by the names of the standard."""

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Any) -> Arrays:
        """Those of an array."""
        return cls(array_api_compat.array_namespace(array), array_api_compat.device(array))

    @property
    def is_torch(self) -> bool:
        return bool(array_api_compat.is_torch_namespace(self.xp))

    @property
    def on_gpu(self) -> bool:
        return getattr(self.device, "type", "cpu") == "cuda"

    @property
    def index_type(self) -> Any:
        """Of indices: narrow on a GPU, where moving them takes the time."""
        return self.xp.int32 if self.on_gpu else self.xp.int64

    @property
    def number_type(self) -> Any:
        """Of uniform numbers, as NumPy calls it."""
        return np.float32 if self.on_gpu else np.float64

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream: of torch on its device, of NumPy for all other libraries."""
        if not self.is_torch:
            return np.random.Generator(np.random.SFC64(seed))  # twice as fast as the default
        import torch

        (word,) = seed.generate_state(1, np.uint64).tolist()
        return torch.Generator(device=self.device).manual_seed(word >> 1)

    def uniforms(self, size: int, rng: Any) -> Any:
        """(size,) uniform numbers in [0, 1): float64, or float32 on a GPU, where it counts."""
        if not self.is_torch:
            return self.put(rng.random(size))
        import torch

        kind = torch.float32 if self.on_gpu else torch.float64
        return torch.rand(size, generator=rng, device=self.device, dtype=kind)

    def take(self, array: Any, index: Any, axis: int = 0) -> Any:
        """Rows of an array, or columns. No index is negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=axis)
        import torch

        return torch.index_select(array, axis, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array as one of this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array as one of NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)


def as_array(value: Any) -> Any:
    """An array as it is; anything else as one of NumPy."""
    return value if array_api_compat.is_array_api_obj(value) else np.asarray(value)


def each(change: Callable[[Any], Any], noise: Any) -> Any:
    """The noise with every array of it changed: it is an array, or a tuple of arrays."""
    return tuple(map(change, noise)) if isinstance(noise, tuple) else change(noise)
