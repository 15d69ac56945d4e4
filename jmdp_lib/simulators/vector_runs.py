"""Runs of a vectorised simulator as arrays: their plan, their policies, and their branches.

`vector_batch` plays them. `BatchPlan` is what all runs of a comparison have in common. `Lanes` are
the runs that are being played, `Finished` those that were put aside, and `ChunkRuns` all runs of a
chunk in the end. Branches are the first axis of all arrays, runs the second. `vector_batch` says
how to record one more thing of every run.

`VectorPolicy` is any policy as it is played: the actions of many states at once. `of` makes one for
branches that all follow it: tables are drawn from by Walker's method, one comparison for a number.
`by_inversion` makes one for branches that each follow a policy of their own: tables are drawn from
as functions are, by cumulative probabilities. Another form of policy has a line in both of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.operators.draws import alias_tables
from jmdp_lib.simulators.vector_simulator import (
    Arrays,
    VectorSimulator,
    check_alone,
    spot_rows,
)


@dataclass(frozen=True)
class BatchPlan:
    """What all runs of a comparison have in common. state: (...), where all branches start.

    limits: (lo, hi) that holds all rewards, or None.
    """

    simulator: VectorSimulator
    policy: VectorPolicy
    state: Any
    actions: list[int]
    gamma: float
    horizon: int
    coupling: str
    limits: tuple[float, float] | None

    @property
    def num_states(self) -> int | None:
        """How many states there are, if the simulator or a table of the policy says so."""
        return getattr(self.simulator, "num_states", self.policy.num_states)


class Lanes(NamedTuple):
    """The n runs that are being played.

    numbers: (n,) in their chunk, or None if no order is wanted. states: (m, n, ...).
    actions, returns: (m, n).
    same, one: for every pair of branches (n,), whether both are alive in one state; whether they
    also have one action, and so are one branch. Both are as of the last choice of actions: the step
    that follows does not change them, and a pair that was one is not any more once it has ended.
    alive: (m, n), or None as long as no step says that episodes end. queries: (n,), or None.

    Pairs are those of `itertools.combinations(range(m), 2)`, in this order, wherever there is a
    tuple with an entry for every pair.
    """

    numbers: Any
    states: Any
    actions: Any
    returns: Any
    same: tuple[Any, ...]
    one: tuple[Any, ...]
    alive: Any
    queries: Any

    def taken(self, arrays: Arrays, index: Any) -> Lanes:
        """Some of the runs."""
        take = arrays.take
        return Lanes(
            numbers=None if self.numbers is None else take(self.numbers, index),
            states=take(self.states, index, 1),
            actions=take(self.actions, index, 1),
            returns=take(self.returns, index, 1),
            same=tuple(take(met, index) for met in self.same),
            one=tuple(take(one, index) for one in self.one),
            alive=None if self.alive is None else take(self.alive, index, 1),
            queries=None if self.queries is None else take(self.queries, index),
        )

    def meet(self, xp: Any, i: int, j: int) -> Any:
        """(n,) whether two branches are alive in one state."""
        equal = self.states[i, ...] == self.states[j, ...]
        if len(self.states.shape) > 2:
            equal = xp.all(equal, axis=tuple(range(1, len(equal.shape))))
        return equal if self.alive is None else equal & self.alive[i, ...] & self.alive[j, ...]

    def all_alive(self, xp: Any) -> Any:
        """(n,) whether all branches of a run are."""
        if self.alive is None:
            return xp.ones_like(self.returns[0, ...], dtype=xp.bool)
        return xp.all(self.alive, axis=0)


class Finished(NamedTuple):
    """Runs that were put aside at a time. apart: as in `ChunkRuns`, or None before the horizon."""

    lanes: Lanes
    apart: tuple[Any, ...] | None
    time: int

    def apart_at_horizon(self, xp: Any, pair: int) -> Any:
        """(n,) whether two branches were apart at the horizon."""
        if self.apart is not None:
            return self.apart[pair]
        return xp.zeros_like(self.lanes.one[pair])


class ChunkRuns(NamedTuple):
    """The runs of a chunk, N of them, in the order in which they finished.

    returns: (m, N), at least until all branches of a run are one, so that gaps are whole; until the
    horizon if they were played on, so that returns are.
    apart: for every pair of branches (N,), whether they had different futures at the horizon.
    numbers: (N,) which run of its chunk each is. queries: (N,). Both are None unless asked for.
    extremes: the lowest and the highest reward, and 0 if episodes can end.
    branch_steps: steps that were needed, of all branches together.
    """

    returns: Any
    apart: tuple[Any, ...]
    numbers: Any
    queries: Any
    extremes: tuple[float, float]
    branch_steps: int


class Streams:
    """The random streams of a chunk: of its noise, its actions, and what follows a merger."""

    def __init__(self, arrays: Arrays, seed: np.random.SeedSequence) -> None:
        noise, choices, later = seed.spawn(3)
        self.noise = arrays.generator(noise)
        self.choices = arrays.generator(choices)
        self.later = arrays.generator(later)


def beside(xp: Any, mask: Any, values: Any) -> Any:
    """A mask with as many axes as the values that it is for."""
    return xp.reshape(mask, (*mask.shape, *(1,) * (len(values.shape) - len(mask.shape))))


@dataclass(frozen=True)
class VectorPolicy:
    """A policy as it is played.

    function: policy(states) -> (n, A) probabilities or (n,) actions; None if there is a table.
    thresholds, others: (S * A,) of the table. A uniform number x in [0, A) falls into the cell of
    action int(x). Below thresholds[s * A + int(x)] it stands for this action, else for the one in
    `others`.
    """

    num_actions: int
    function: Any = None
    thresholds: Any = None
    others: Any = None

    @classmethod
    def of(cls, policy: Policy, num_actions: int, num_states: int | None) -> VectorPolicy:
        """num_states: None if the policy itself says it."""
        if callable(policy):
            return cls(num_actions, policy)
        return cls(num_actions, None, *_cells(_checked_matrix(policy, num_actions, num_states)))

    @classmethod
    def by_inversion(cls, policy: Policy, num_actions: int, num_states: int | None) -> VectorPolicy:
        """As `of`; one number then picks one action from two policies wherever they agree."""
        if callable(policy):
            return cls(num_actions, policy)
        return cls(num_actions, _TableRule(_checked_matrix(policy, num_actions, num_states)))

    @property
    def num_states(self) -> int | None:
        """How many states the table has."""
        if isinstance(self.function, _TableRule):
            return len(self.function.probs)
        return None if self.thresholds is None else len(self.thresholds) // self.num_actions

    def on(self, arrays: Arrays) -> VectorPolicy:
        """The same policy, its table on a device."""
        if isinstance(self.function, _TableRule):
            return replace(self, function=self.function.on(arrays))
        if self.function is not None:
            return self
        narrow = self.thresholds.astype(np.float32) if arrays.on_gpu else self.thresholds
        thresholds = arrays.put(narrow)
        others = arrays.xp.astype(arrays.put(self.others), arrays.index_type)
        return VectorPolicy(self.num_actions, None, thresholds, others)

    def draw(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        """Actions (n,) of states (n, ...), and whether an answer of the function was bad."""
        if self.function is not None:
            return self._answer(arrays, states, uniforms)
        xp = arrays.xp
        x = uniforms * float(self.num_actions)
        own = xp.astype(x, arrays.index_type)
        cell = xp.astype(states, arrays.index_type, copy=False) * self.num_actions + own
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            cell = xp.clip(cell, 0, self.thresholds.shape[0] - 1)
        thresholds = arrays.take(self.thresholds, cell)
        return xp.where(x < thresholds, own, arrays.take(self.others, cell)), None

    def _answer(self, arrays: Arrays, states: Any, uniforms: Any) -> tuple[Any, Any]:
        """What the function says: actions, or probabilities to draw from."""
        xp = arrays.xp
        answer = self.function(checks.read_only(states))
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
        seen = arrays.host(states).copy()
        said = self.function(checks.read_only(states))
        self._check_form(arrays.xp, said, states.shape[0])
        answer = arrays.host(said)
        if not np.array_equal(seen, arrays.host(states), equal_nan=True):
            raise SimulatorError("policy must not write into the states that it is given")
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
        self._check_pure(arrays, states, answer)

    def _check_pure(self, arrays: Arrays, states: Any, answer: NDArray[Any]) -> None:
        """Refuse a function that draws actions by itself, or whose rows depend on each other."""
        rows = spot_rows(states.shape[0])
        some = arrays.take(states, arrays.put(rows))
        again = arrays.host(self.function(checks.read_only(some)))
        whole = answer[rows]
        check_alone("policy", "policy(states)", whole, again, rows, checks.SAME_POLICY)


@dataclass(frozen=True, eq=False)
class _TableRule:
    """A table of probabilities (S, A) as a function of states, so that it is drawn by inversion.

    One number then picks one action from two tables wherever their cumulative probabilities agree,
    which Walker's method does not promise.
    """

    probs: Any

    def __call__(self, states: Any) -> Any:
        arrays = Arrays.of(states)
        rows = arrays.xp.astype(states, arrays.index_type, copy=False)
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            rows = arrays.xp.clip(rows, 0, self.probs.shape[0] - 1)
        return arrays.take(self.probs, rows)

    def on(self, arrays: Arrays) -> _TableRule:
        """The same table on a device."""
        return _TableRule(arrays.put(self.probs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableRule) and np.array_equal(self.probs, other.probs)


def _checked_matrix(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy):
        policy = Arrays.of(policy).host(policy)
    shown = checks.as_array("policy", policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(checks.Sizes(count, num_actions), policy)


def _tolerance(xp: Any, probs: Any) -> float:
    """How far sums of probabilities may be from one, by their type."""
    return 1e-9 if probs.dtype == xp.float64 else 1e-5


def _cells(matrix: Floats) -> tuple[Any, Any]:
    """`thresholds` and `others` of probabilities (S, A), by Walker's method."""
    num_states, num_actions = matrix.shape
    starts = np.arange(num_states + 1) * num_actions
    threshold, alias = alias_tables(starts, matrix.ravel())
    own = np.tile(np.arange(num_actions), num_states)
    return own + threshold, alias % num_actions
