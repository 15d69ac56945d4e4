"""The player of a `VectorSimulator`: all rows of a batch are stepped at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.machine import available_bytes
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.operators.dense import device_bytes
from jmdp_lib.simulators.batch import Batch, BatchPlayer, follow
from jmdp_lib.simulators.plans import Asked, Plan, Runs
from jmdp_lib.simulators.policies import BatchFunction, batch_policy
from jmdp_lib.simulators.vector_simulator import (
    Arrays,
    Played,
    VectorSimulator,
    as_array,
    check_draw,
    check_pure,
    check_values,
    drawn,
    each,
    each_of,
    played,
    widened,
)

_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor,
_GPU_CHUNK = 2**23  # and many enough to keep a GPU busy
_MOST_IN_FLIGHT = 4  # chunks on a GPU: with more, launching their draws would take long
_WORDS = 24  # of eight bytes, for every branch of a run that is in flight


class VectorPlayer(BatchPlayer):
    """Plays a `VectorSimulator`.

    Only smallest and largest values are looked at. If something is wrong with them, or a function
    of the user's fails, the batch is played again carefully: all values of every step are looked
    at, and the first bad row is named.

    where: the state where all branches start, as an array () or (d,).
    """

    def __init__(self, simulator: VectorSimulator, state: Any) -> None:
        if state is None:
            raise ValueError("state= must be given: the state at which the actions are compared")
        self.where = as_array(state)
        if len(self.where.shape) > 1 or str(getattr(self.where, "dtype", "")) == "object":
            raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
        self.simulator = simulator
        self.num_states = getattr(simulator, "num_states", None)
        self.arrays = Arrays.of(self.where)
        self.careful = False
        self.limits = simulator.reward_range
        self._check_numbered(self.num_states)
        # Small states have small actions: then less is moved.
        whole = self.arrays.xp.isdtype(self.where.dtype, "integral")
        self.action_type = self.where.dtype if whole else self.arrays.xp.int64

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name != "arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, arrays=Arrays.of(state["where"]))

    def _check_numbered(self, num_states: int | None) -> None:
        """Refuse a start that is no number of a state, where states have numbers."""
        if num_states is None:
            return
        if self.where.shape or not self.arrays.xp.isdtype(self.where.dtype, "integral"):
            raise ValueError(
                f"states must be integers from 0 to {num_states - 1}, since the simulator or the "
                f"policy has so many of them; got state {self.where!r}"
            )
        checks.index("state", int(self.where), num_states)

    @property
    def chunk_size(self) -> int:  # type: ignore[override]
        return _GPU_CHUNK if self.arrays.on_gpu else _CHUNK

    def most_in_flight(self, width: int) -> int:
        """One on a processor, on a GPU as many as fit."""
        if not self.arrays.on_gpu:
            return 1
        size = 8 * self.chunk_size * width * (_WORDS + 4 * math.prod(self.where.shape))
        is_torch = self.arrays.is_torch
        free = device_bytes(str(self.arrays.device)) if is_torch else available_bytes()
        return max(1, min(_MOST_IN_FLIGHT, free // size))

    def checked_actions(self, actions: Sequence[int]) -> list[int]:
        return checks.distinct_actions(actions, self.simulator.num_actions)

    def checked_policy(self, policy: Policy, alone: bool) -> Any:
        checked = batch_policy(policy, self.simulator.num_actions, self.num_states, alone)
        self._check_numbered(checked.num_states)
        if checked.num_states is not None:
            self.num_states = min(self.num_states or checked.num_states, checked.num_states)
        return checked

    def try_out(self, plan: Plan) -> None:
        """A careful batch of few runs and few steps."""
        check_draw(self.simulator, self.arrays)
        few = plan.settings._replace(horizon=min(plan.settings.horizon, 3))
        seed = np.random.SeedSequence(0, spawn_key=(0,))
        self._carefully(replace(plan, settings=few), [seed], [32], Asked())

    def play(
        self, plan: Plan, seeds: list[np.random.SeedSequence], sizes: Sequence[int], asked: Asked
    ) -> list[Runs]:
        batch = Batch(plan, self, seeds, sizes, asked)
        try:
            found = batch.play()
        except SimulatorError:
            self._carefully(plan, seeds, sizes, asked)
            raise
        low, high = widened(asked.limits or self.limits)
        seen = np.concatenate([batch.host(extremes) for extremes in batch.extremes])
        if not ((low <= seen) & (seen <= high)).all() or batch.host(batch.suspects).any():
            self._carefully(plan, seeds, sizes, asked)
            raise SimulatorError("step must be pure, but went wrong once and not a second time")
        return found

    def _carefully(self, plan: Plan, *rest: Any) -> None:
        """As `play`: it names the first row that is bad."""
        careful = copy.copy(self)
        careful.careful = True
        careful.limits = rest[-1].limits or self.limits
        Batch(plan, careful, *rest).play()

    def start(self, width: int, size: int) -> Any:
        return self.arrays.xp.broadcast_to(self.where, (width, size, *self.where.shape))

    def step(
        self, states: Any, actions: Any, alive: Any, together: Any, sources: list[tuple[Any, int]]
    ) -> Played:
        xp = self.arrays.xp
        shape = tuple(actions.shape)
        rows = shape[0] * shape[1]
        flat_states = xp.reshape(states, (rows, *states.shape[2:]))
        flat_actions = xp.reshape(actions, (rows,))
        noise = self._noise(shape[0], together, sources)
        try:
            found = played(self.simulator, flat_states, flat_actions, noise)
            if self.careful:
                given = (flat_states, flat_actions)
                check_values(self.arrays, *given, found, self.limits, self.num_states)
                check_pure(self.simulator, self.arrays, *given, noise)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(f"step(states, actions, noise) failed: {error!r}") from error
        over = None if found.over is None else xp.reshape(found.over, shape)
        following = xp.reshape(found.states, (*shape, *states.shape[2:]))
        return Played(xp.reshape(found.rewards, shape), following, over)

    def _noise(self, width: int, together: Any, sources: list[tuple[Any, int]]) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.arrays.xp
        branches = 1 if together is None else width
        parts = []
        for rng, size in sources:
            noise = drawn(self.simulator, branches * size, rng)
            parts.append(each(lambda x: xp.reshape(x, (branches, -1, *x.shape[1:])), noise))
        noise = each_of(lambda x: x[0] if len(x) == 1 else xp.concat(x, axis=1), parts)
        if together is None:
            return each(lambda x: xp.concat([x[0, ...]] * width), noise)
        pairs = list(combinations(range(width), 2))
        return each(lambda x: xp.concat(follow(xp, pairs, together, x)), noise)

    def choose(self, policy: Any, states: Any, alive: Any, uniforms: Any) -> tuple[Any, Any]:
        try:
            if self.careful and isinstance(policy, BatchFunction):
                policy.check(self.arrays, states)
            return super().choose(policy, states, alive, uniforms)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(f"policy(states) failed: {error!r}") from error

    def suspects(self, found: Played) -> list[Any]:
        xp = self.arrays.xp
        if self.num_states is not None:
            return [(xp.min(found.states) < 0) | (xp.max(found.states) >= self.num_states)]
        if xp.isdtype(found.states.dtype, "real floating"):
            return [xp.any(xp.isnan(found.states))]
        return []
