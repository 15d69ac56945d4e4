"""Policies of a vectorised simulator: the actions of many states at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.operators.draws import alias_tables
from jmdp_lib.simulators.arrays import Arrays


@dataclass(frozen=True)
class VectorPolicy:
    """A policy as it is played.

    function: policy(states) -> (n, A) probabilities or (n,) actions; None if it is a table.
    limits, others: (S * A,) of a table. A uniform number x in [0, A) falls into the cell of action
    int(x); below limits[s * A + int(x)] it stands for this action, else for the one in `others`.
    """

    num_actions: int
    function: Any = None
    limits: Any = None
    others: Any = None

    @classmethod
    def of(cls, policy: Policy, num_actions: int, num_states: int | None) -> VectorPolicy:
        """num_states: None if the policy itself says it."""
        if callable(policy):
            return cls(num_actions, policy)
        return cls(num_actions, None, *_cells(checked_matrix(policy, num_actions, num_states)))

    @property
    def num_states(self) -> int | None:
        """How many states the table has."""
        return None if self.limits is None else len(self.limits) // self.num_actions

    def on(self, arrays: Arrays) -> VectorPolicy:
        """The same policy, its table on a device."""
        if self.function is not None:
            return self
        limits = arrays.put(self.limits.astype(np.float32) if arrays.on_gpu else self.limits)
        others = arrays.xp.astype(arrays.put(self.others), arrays.index_type)
        return VectorPolicy(self.num_actions, None, limits, others)

    def draw(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        """Actions (n,) of states (n, ...), and whether an answer of the function was bad."""
        if self.function is not None:
            return self._answer(arrays, states, uniforms)
        xp = arrays.xp
        x = uniforms * float(self.num_actions)
        own = xp.astype(x, arrays.index_type)
        cell = xp.astype(states, arrays.index_type, copy=False) * self.num_actions + own
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            cell = xp.clip(cell, 0, self.limits.shape[0] - 1)
        limits = arrays.take(self.limits, cell)
        return xp.where(x < limits, own, arrays.take(self.others, cell)), None

    def _answer(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        """What the function says: actions, or probabilities to draw from."""
        xp = arrays.xp
        answer = self.function(states)
        size = uniforms.shape[0]
        self._check_form(xp, answer, size)
        if len(answer.shape) == 1:
            bad = xp.any((answer < 0) | (answer >= self.num_actions))
            return xp.astype(answer, xp.int64, copy=False), bad
        probs = xp.astype(answer, xp.float64, copy=False)
        steps = xp.cumulative_sum(probs, axis=1)
        off = xp.abs(steps[:, -1] - 1.0) > _tolerance(xp, answer)
        bad = xp.any(off) | ~xp.all(probs >= 0.0)
        scaled = xp.expand_dims(xp.astype(uniforms, xp.float64) * steps[:, -1], axis=1)
        passed = xp.astype(steps[:, :-1] <= scaled, xp.int64)
        return xp.sum(passed, axis=1), bad

    def _check_form(self, xp: Any, answer: Any, size: int) -> None:
        shape = tuple(getattr(answer, "shape", ()))
        if shape == (size, self.num_actions):
            return
        if shape == (size,) and xp.isdtype(answer.dtype, "integral"):
            return
        what = f"shape {shape} of {answer.dtype}" if shape else repr(answer)
        raise SimulatorError(
            f"policy(states) must return probabilities ({size}, {self.num_actions}) or integer "
            f"actions ({size},) for {size} states, got {what}"
        )

    def check(self, arrays: Arrays, states: Any) -> None:
        """Refuse what the function says of states; the first bad row is named."""
        if self.function is None:
            return
        said = self.function(states)
        self._check_form(arrays.xp, said, states.shape[0])
        answer = arrays.host(said)
        seen = arrays.host(states)
        if answer.ndim == 1:
            bad = (answer < 0) | (answer >= self.num_actions)
            why = f"not an action below {self.num_actions}"
        else:
            tolerance = 1e-5 if answer.dtype.itemsize < 8 else 1e-9
            bad = ~((answer >= 0.0).all(1) & (np.abs(answer.sum(1) - 1.0) <= tolerance))
            why = "not probabilities that sum to one"
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise SimulatorError(
                f"policy(states)[{row}] = {answer[row]} in state {seen[row]}: {why}"
            )


def checked_matrix(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy):
        policy = Arrays.of(policy).host(policy)
    shown = checks.as_array("policy", policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(_Sizes(count, num_actions), policy)


@dataclass(frozen=True)
class _Sizes:
    num_states: int
    num_actions: int


def _tolerance(xp: Any, probs: Any) -> float:
    """How far sums of probabilities may be from one, by their type."""
    return 1e-9 if probs.dtype == xp.float64 else 1e-5


def _cells(matrix: Floats) -> tuple[Any, Any]:
    """`limits` and `others` of probabilities (S, A), by Walker's method."""
    num_states, num_actions = matrix.shape
    starts = np.arange(num_states + 1) * num_actions
    threshold, alias = alias_tables(starts, matrix.ravel())
    own = np.tile(np.arange(num_actions), num_states)
    return own + threshold, alias % num_actions
