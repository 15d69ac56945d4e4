"""What a batch of runs of a `VectorSimulator` consists of; `vector_batch` plays it.

Branches are the first axis of all arrays, runs the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.simulators.arrays import Arrays
from jmdp_lib.simulators.vector_policies import VectorPolicy
from jmdp_lib.simulators.vector_simulator import VectorSimulator


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


class ChunkRuns(NamedTuple):
    """The runs of a chunk, N of them, in the order in which they finished.

    returns: (m, N) until all branches of a run are one; until the horizon if they were played on.
    apart: for every pair of branches (N,), whether they had different futures at the horizon.
    numbers: (N,) which run of its chunk each is. queries: (N,). Both are None unless asked for.
    extremes: the lowest and the highest reward, and 0 once an episode ended.
    branch_steps: steps that were needed, of all branches together.
    """

    returns: Any
    apart: tuple[Any, ...]
    numbers: Any
    queries: Any
    extremes: tuple[float, float]
    branch_steps: int


class Lanes(NamedTuple):
    """The n runs that are being played.

    numbers: (n,) in their chunk, or None if no order is wanted. states: (m, n, ...).
    actions, returns: (m, n).
    same, one: for every pair of branches (n,), whether both are alive in one state; whether they
    also have one action, and so are one branch. alive: (m, n), or None as long as no step says
    that episodes end. queries: (n,), or None.
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
