"""Policies as they are played: the actions of many states at once, from uniform numbers.

`draw(arrays, states, uniforms)` gives actions (n,) for states (n, ...), and whether an answer of
the user's was bad, or None where that cannot be. It looks where cumulative probabilities pass the
number, so that one number picks one action from two policies wherever these agree. Another form of
policy is a class with `draw` and `==`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.vector_simulator import ALONE, Arrays, check_repeated, spot_rows


def policy_table(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy):
        policy = Arrays.of(policy).host(policy)
    shown = checks.as_array("policy", policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(checks.Sizes(count, num_actions), policy)


@dataclass(frozen=True, eq=False)
class TablePolicy:
    """A table of probabilities (S, A). steps: (A - 1, S) cumulative ones, once it is `on`."""

    probs: Any
    steps: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TablePolicy) and np.array_equal(self.probs, other.probs)

    def on(self, arrays: Arrays) -> TablePolicy:
        """The same table on a device."""
        steps = np.cumsum(self.probs, axis=1).T[:-1]
        return TablePolicy(self.probs, arrays.put(np.ascontiguousarray(steps, arrays.number_type)))

    def draw(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        xp = arrays.xp
        rows = xp.astype(states, arrays.index_type, copy=False)
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            rows = xp.clip(rows, 0, len(self.probs) - 1)
        narrow = xp.int8 if self.steps.shape[0] < 128 else xp.int64  # less is moved
        chosen = xp.zeros_like(rows, dtype=narrow)
        for action in range(self.steps.shape[0]):
            passed = arrays.take(self.steps[action, ...], rows) <= uniforms
            chosen = chosen + xp.astype(passed, narrow)
        return chosen, None


@dataclass(frozen=True)
class BatchFunction:
    """A function of many states: policy(states) -> (n, A) probabilities or (n,) actions."""

    num_actions: int
    function: Any

    def on(self, arrays: Arrays) -> BatchFunction:
        return self

    def draw(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        xp = arrays.xp
        answer = self.function(checks.read_only(states))
        bad = xp.any(self._bad(xp, answer, uniforms.shape[0]))
        if len(answer.shape) == 1:
            return xp.astype(answer, xp.int64, copy=False), bad
        steps = xp.cumulative_sum(xp.astype(answer, xp.float64, copy=False), axis=1)
        scaled = xp.astype(uniforms, xp.float64, copy=False) * steps[:, -1]
        return xp.count_nonzero(steps[:, :-1] <= scaled[:, None], axis=1), bad

    def _bad(self, xp: Any, answer: Any, size: int) -> Any:
        """(n,) which rows of an answer are neither probabilities nor an action."""
        shape = tuple(getattr(answer, "shape", ()))
        if shape == (size,) and xp.isdtype(answer.dtype, "integral"):
            return (answer < 0) | (answer >= self.num_actions)
        if shape == (size, self.num_actions):
            tolerance = 1e-9 if answer.dtype == xp.float64 else 1e-5
            off = xp.abs(xp.sum(answer, axis=1) - 1.0)
            return ~(xp.all(answer >= 0.0, axis=1) & (off <= tolerance))
        what = f"shape {shape} of {answer.dtype}" if shape else repr(answer)
        raise SimulatorError(
            f"policy(states) must return probabilities ({size}, {self.num_actions}) or integer "
            f"actions ({size},) for {size} states, got {what}"
        )

    def check(self, arrays: Arrays, states: Any) -> None:
        """Refuse what the function says of states; the first bad row is named."""
        seen = arrays.host(states).copy()
        said = self.function(checks.read_only(states))
        bad = arrays.host(self._bad(arrays.xp, said, states.shape[0]))
        answer = arrays.host(said)
        if not np.array_equal(seen, arrays.host(states), equal_nan=True):
            raise SimulatorError("policy must not write into the states that it is given")
        for row in np.flatnonzero(bad)[:1]:
            proper = f"an action below {self.num_actions}, or probabilities that sum to one"
            raise SimulatorError(
                f"policy(states)[{row}] = {answer[row]} in state {seen[row]}: not {proper}"
            )
        rows = spot_rows(states.shape[0])
        some = arrays.take(states, arrays.put(rows))
        again = arrays.host(self.function(checks.read_only(some)))
        promise = f"policy {ALONE}"
        off = checks.SAME_POLICY
        check_repeated(promise, "policy(states)", answer[rows], again, rows, off)
