"""The player of a `VectorSimulator`: all rows of a batch are stepped at once."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.batch import Batch, BatchPlayer, follow
from jmdp_lib.simulators.plans import Asked, Plan, Runs
from jmdp_lib.simulators.policies import BatchFunction, TablePolicy, policy_table
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
    played,
    widened,
)

_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor
_GPU_CHUNK = 2**25  # numbers in the states of these: enough to keep a GPU busy, with three GiB


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
        self.num_actions = simulator.num_actions
        self.num_states = getattr(simulator, "num_states", None)
        self.arrays = Arrays.of(self.where)
        on_gpu = _GPU_CHUNK // max(1, math.prod(self.where.shape))
        self.chunk_size = on_gpu if self.arrays.on_gpu else _CHUNK
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

    def checked_policy(self, policy: Policy) -> Any:
        if callable(policy):
            return BatchFunction(self.num_actions, policy)
        table = policy_table(policy, self.num_actions, self.num_states)
        self._check_numbered(len(table))
        self.num_states = min(self.num_states or len(table), len(table))
        return TablePolicy(table)

    def try_out(self, plan: Plan) -> None:
        """A careful batch of few runs and few steps."""
        check_draw(self.simulator, self.arrays)
        few = plan.settings._replace(horizon=min(plan.settings.horizon, 3))
        seed = np.random.SeedSequence(0, spawn_key=(0,))
        self._carefully(replace(plan, settings=few), seed, 32, Asked())

    def play(self, plan: Plan, seed: np.random.SeedSequence, size: int, asked: Asked) -> Runs:
        batch = Batch(plan, self, seed, size, asked)
        try:
            runs = batch.play()
        except SimulatorError:
            self._carefully(plan, seed, size, asked)
            raise
        low, high = widened(asked.limits or self.limits)
        seen = batch.host(batch.extremes)
        if not ((low <= seen) & (seen <= high)).all() or batch.host(batch.suspects).any():
            self._carefully(plan, seed, size, asked)
            raise SimulatorError("step must be pure, but went wrong once and not a second time")
        return runs

    def _carefully(self, plan: Plan, seed: np.random.SeedSequence, size: int, asked: Asked) -> None:
        """As `play`: it names the first row that is bad."""
        careful = copy.copy(self)
        careful.careful = True
        careful.limits = asked.limits or self.limits
        Batch(plan, careful, seed, size, asked).play()

    def start(self, width: int, size: int) -> Any:
        return self.arrays.xp.broadcast_to(self.where, (width, size, *self.where.shape))

    def step(self, states: Any, actions: Any, going: Any, together: Any, rng: Any) -> Played:
        xp = self.arrays.xp
        shape = tuple(actions.shape)
        rows = shape[0] * shape[1]
        given = (xp.reshape(states, (rows, *states.shape[2:])), xp.reshape(actions, (rows,)))
        noise = self._noise(shape, together, rng)
        try:
            found = played(self.simulator, *given, noise)
            if self.careful:
                check_values(self.arrays, *given, found, self.limits, self.num_states)
                check_pure(self.simulator, self.arrays, *given, noise)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(f"step(states, actions, noise) failed: {error!r}") from error
        return Played(
            rewards=xp.reshape(found.rewards, shape),
            states=xp.reshape(found.states, tuple(states.shape)),
            over=None if found.over is None else xp.reshape(found.over, shape),
            suspect=self._suspect(found.states),
        )

    def _suspect(self, states: Any) -> Any:
        """Whether a state cannot be, or None if all can."""
        xp = self.arrays.xp
        if self.num_states is not None:
            return (xp.min(states) < 0) | (xp.max(states) >= self.num_states)
        return xp.any(xp.isnan(states)) if xp.isdtype(states.dtype, "real floating") else None

    def _noise(self, shape: tuple[int, ...], together: Any, rng: Any) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.arrays.xp
        width, size = shape
        if together is None:
            return each(lambda x: xp.concat([x] * width), drawn(self.simulator, size, rng))

        def shared(x: Any) -> Any:
            pairs = list(combinations(range(width), 2))
            return xp.concat(follow(xp, pairs, together, xp.reshape(x, (*shape, *x.shape[1:]))))

        return each(shared, drawn(self.simulator, width * size, rng))

    def choose(self, policy: Any, states: Any, going: Any, uniforms: Any) -> tuple[Any, Any]:
        try:
            if self.careful and isinstance(policy, BatchFunction):
                policy.check(self.arrays, states)
            return super().choose(policy, states, going, uniforms)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(f"policy(states) failed: {error!r}") from error
