"""Policies as they are played: actions from uniform numbers.

An action is where cumulative probabilities pass the number, so that one number picks one action
from two policies wherever these agree. `TablePolicy` is asked for many states at once, `RowPolicy`
for one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.simulators.vector_simulator import Arrays

_MOST_KEPT = 100_000  # answers of a function


def policy_table(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy):
        policy = Arrays.of(policy).host(policy)
    shown = checks.as_array("policy", policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(checks.Sizes(count, num_actions), policy)


@dataclass(frozen=True, eq=False)
class PlayedPolicy:
    """source: probabilities (S, A), or a function; policies with one source are equal."""

    source: Any

    def __eq__(self, other: object) -> bool:
        ours = self.source
        theirs: Any = getattr(other, "source", None)
        if callable(ours) and callable(theirs):
            return bool(ours == theirs)
        return not (callable(ours) or callable(theirs)) and np.array_equal(ours, theirs)


@dataclass(frozen=True, eq=False)
class RowPolicy(PlayedPolicy):
    """A policy that is asked for one state at a time.

    num_actions: A, or None where the policy returns actions that have no numbers. first_action: the
    number from which these count. kept: what `steps` said of states, or None where what is seen
    cannot be looked up.
    """

    num_actions: int | None
    first_action: int
    kept: dict[Any, list[float]] | None

    def steps(self, seen: Any) -> list[float]:
        """Cumulative probabilities, for what is seen, of all actions but the last."""
        if self.kept is not None and seen in self.kept:
            return self.kept[seen]
        assert self.num_actions is not None
        probs = checks.policy_row(self.source, seen, self.num_actions, self.first_action)
        steps: list[float] = probs[:-1].cumsum().tolist()
        if self.kept is not None and len(self.kept) < _MOST_KEPT:
            self.kept[seen] = steps
        return steps


@dataclass(frozen=True, eq=False)
class TablePolicy(PlayedPolicy):
    """Probabilities (S, A). steps: (A - 1, S) cumulative ones, where states are."""

    steps: Any

    @classmethod
    def of(cls, table: Floats, arrays: Arrays) -> TablePolicy:
        steps = np.ascontiguousarray(table.cumsum(1).T[:-1], arrays.number_type)
        return cls(table, arrays.put(steps))

    def draw(self, arrays: Arrays, states: Any, uniforms: Any) -> Any:
        """Actions (n,) in states (n,), by numbers (n,)."""
        xp = arrays.xp
        rows = xp.astype(states, xp.int32 if arrays.on_gpu else xp.int64, copy=False)
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            rows = xp.clip(rows, 0, len(self.source) - 1)
        passed = arrays.take(self.steps, rows, 1) <= uniforms
        return xp.sum(xp.astype(passed, xp.int8), axis=0, dtype=xp.int16)  # little is moved
