"""Vectorised simulators: a step of many states at once, and the array library that it lives on.

`VectorSimulator` is what a user makes. Every call of the user's functions goes through `drawn` and
`stepped`, which check the number of results and their shapes. `outside` names the first row whose
numbers are not proper. `Arrays` is an array library and a device: what the array API standard does
not say, such as random numbers, or says too slowly, is a method there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.model.simulator import SimulatorError, declared_range

_SPOT = 16  # rows that are asked for twice
ALIKE = checks.SAME_POLICY  # of the largest number: answers that differ by less are rounded


@dataclass(frozen=True, eq=False)
class VectorSimulator:
    """A simulator that steps many states at once, as arrays of NumPy, torch, or another library.

    step: step(states, actions, noise) -> rewards, next_states, or rewards, next_states, over, all
        with first axis n. States are integers (n,) or rows (n, d) of numbers; two states are equal
        if all their numbers are. over: (n,) bools, whether the episode ended. It must be pure, and
        no row may depend on another one.
    draw: draw(n, rng) -> the noise of n steps, an array, first axis n. rng is a NumPy generator, or
        one of torch if the states are tensors, on their device.
    num_actions: A; actions are integers from 0 to A - 1.
    gamma: discount factor; 1 needs a `horizon` where it is played.
    reward_range: (lo, hi) that holds all rewards, if it is known. Decisions rely on it.
    num_states: S, if states are the integers from 0 to S - 1: any other one is refused.

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
    """

    step: Callable[[Any, Any, Any], tuple[Any, ...]]
    draw: Callable[[int, Any], Any]
    num_actions: int
    gamma: float
    reward_range: tuple[float, float] | None = None
    num_states: int | None = None

    def __post_init__(self) -> None:
        for name in ("step", "draw"):
            if not callable(getattr(self, name)):
                raise ValueError(f"{name} must be a function, got {getattr(self, name)!r}")
        checks.at_least("num_actions", self.num_actions, 1)
        checks.real("gamma", self.gamma, "[0, 1]")
        declared_range(self.reward_range)
        if self.num_states is not None:
            checks.at_least("num_states", self.num_states, 1)


def called(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the user's returns."""
    try:
        return function(*given)
    except Exception as error:
        raise SimulatorError(f"{what} failed: {error!r}") from error


def drawn(simulator: VectorSimulator, size: int, rng: Any) -> Any:
    """The noise of `size` steps."""
    what = f"draw({size}, rng)"
    noise = called(what, simulator.draw, size, rng)
    _check_shape(what, noise, (size, *getattr(noise, "shape", ())[1:]))
    return noise


def stepped(simulator: VectorSimulator, states: Any, actions: Any, noise: Any) -> dict[str, Any]:
    """What a step makes of states (n, ...) and actions (n,), by names."""
    answer = called("step(states, actions, noise)", simulator.step, states, actions, noise)
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        raise SimulatorError(
            "step(states, actions, noise) must return rewards and next states, or rewards, next "
            f"states and over, got {type(answer).__name__}"
        )
    found = dict(zip(("rewards", "next_states", "over"), answer, strict=False))
    for name, part in found.items():
        wanted = states if name == "next_states" else actions
        _check_shape(f"{name} of a step", part, tuple(wanted.shape))
        check_library(f"{name} of a step", part, states)
    return found


def check_library(what: str, part: Any, states: Any) -> None:
    """Refuse an array that is torch's where states are not, or the other way round."""
    if array_api_compat.is_torch_array(part) != array_api_compat.is_torch_array(states):
        raise SimulatorError(
            f"{what} must be an array of the same library as state=, which gave {type(states)}, "
            f"got {type(part)}"
        )


def _check_shape(what: str, part: Any, expected: tuple[int, ...]) -> None:
    checks.unmasked(what, part)
    shape = getattr(part, "shape", None)
    if shape is None or tuple(shape) != expected:
        got = repr(part) if shape is None else f"shape {tuple(shape)}"
        raise SimulatorError(f"{what} must be an array of shape {expected}, got {got}")


def outside(values: NDArray[Any], ends: tuple[float, float], given: Sequence[Any]) -> str:
    """The first row of values (n, ...) that are not between two ends, and where it came from.

    given: states (n, ...) and, of a step, actions (n,).
    """
    low, high = ends
    inside = (low <= values) & (values <= high)
    row = np.flatnonzero(~inside.reshape(len(values), -1).all(1))[0]
    where = ", action ".join(str(x[row]) for x in given)
    return f"[{row}] = {values[row]}, which is not from {low:.4g} to {high:.4g} (state {where})"


def check_alone(
    arrays: Any, what: str, function: Callable[..., dict[str, Any]], given: Sequence[Any]
) -> None:
    """Refuse a function of rows if one comes out differently among others, or when asked again."""
    rows = np.random.default_rng(0).permutation(given[0].shape[0])[:_SPOT]
    index = arrays.put(rows)

    def some(part: Any) -> Any:
        return arrays.take(part, index)

    alone = function(*map(some, given)) | {"states": some(given[0])}
    whole = function(*given) | {"states": given[0]}
    for name, part in alone.items():
        first, second = (arrays.host(x).astype(np.float64) for x in (part, some(whole[name])))
        size = np.abs(first).max(initial=0.0, where=np.isfinite(first))
        close = np.isclose(first, second, rtol=0.0, atol=ALIKE * size, equal_nan=True)
        for k in np.flatnonzero(~close.reshape(len(rows), -1).all(1))[:1]:
            raise SimulatorError(
                f"{what} must be pure, not write into states, and no row may depend on another "
                f"one, but {name}[{rows[k]}] was {first[k]} and then {second[k]}"
            )
