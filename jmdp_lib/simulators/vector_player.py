"""The player of a `VectorSimulator`: all rows of a batch are stepped at once."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.batch import Batch, BatchPlayer, Played, follow
from jmdp_lib.simulators.plans import Chunk, Plan, Runs
from jmdp_lib.simulators.policies import PlayedPolicy, policy_table
from jmdp_lib.simulators.vector_simulator import (
    Allowed,
    Arrays,
    VectorSimulator,
    allowed,
    called,
    check_alone,
    check_values,
    drawn,
    each,
    stepped,
)

_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor
_GPU_CHUNK = 2**25  # numbers in the states of these: enough to keep a GPU busy, with three GiB


class VectorPlayer(BatchPlayer):
    """Plays a `VectorSimulator`.

    Only smallest and largest values are looked at, in the end, since that waits for the device. If
    something is wrong with them, or a function of the user's fails, the batch is played again
    carefully: all values of every step are looked at, and the first bad row is named.

    where: the state where all branches start, as an array () or (d,). known: which values may be.
    """

    known: Allowed
    careful: bool

    def __init__(self, simulator: VectorSimulator, state: Any, coupling: str) -> None:
        if state is None:
            raise ValueError("state= must be given: the state at which the actions are compared")
        self.where = state if array_api_compat.is_array_api_obj(state) else np.asarray(state)
        if len(self.where.shape) > 1 or str(self.where.dtype) == "object":
            raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
        self.simulator = simulator
        self.coupling = coupling
        self.num_actions = simulator.num_actions
        self.num_states = getattr(simulator, "num_states", None)
        self.arrays = Arrays.of(self.where)
        on_gpu = _GPU_CHUNK // max(1, math.prod(self.where.shape))
        self.chunk_size = on_gpu if self.arrays.on_gpu else _CHUNK
        self._check_numbered()
        # Small states have small actions: then less is moved.
        whole = self.arrays.xp.isdtype(self.where.dtype, "integral")
        self.action_type = self.where.dtype if whole else self.arrays.xp.int64

    def _check_numbered(self) -> None:
        """Refuse a start that is no number of a state, where states have numbers."""
        count = self.num_states
        if count is None:
            return
        if self.where.shape or not self.arrays.xp.isdtype(self.where.dtype, "integral"):
            raise ValueError(
                f"states must be integers from 0 to {count - 1}, since the simulator or the policy "
                f"has so many of them; got state {self.where!r}"
            )
        checks.index("state", int(self.where), count)

    def checked_policy(self, policy: Policy) -> Any:
        if callable(policy):
            return PlayedPolicy(policy)
        table = policy_table(policy, self.num_actions, self.num_states)
        self.num_states = len(table)
        self._check_numbered()
        steps = np.ascontiguousarray(table.cumsum(1).T[:-1], self.arrays.number_type)
        return PlayedPolicy(table, self.arrays.put(steps))

    def tried(self, plan: Plan) -> Plan:
        """After two equal draws, and a careful batch of few runs and few steps."""

        def noise() -> Any:
            rng = self.arrays.generator(np.random.SeedSequence(0))
            return each(self.arrays.host, drawn(self.simulator, 16, rng))

        checks.pure("draw(n, rng)", noise)
        few = plan.settings._replace(horizon=min(plan.settings.horizon, 3))
        seed = np.random.SeedSequence(0, spawn_key=(0,))
        self._attempt(Chunk(replace(plan, settings=few), seed, 32), careful=True)
        return plan

    def play(self, chunk: Chunk) -> Runs:
        try:
            return self._attempt(chunk)
        except (SimulatorError, IndexError):  # of a table that has no such state
            self._attempt(chunk, careful=True)
            raise

    def _attempt(self, chunk: Chunk, careful: bool = False) -> Runs:
        """Play with a player of its own."""
        player = copy.copy(self)
        player.careful = careful
        player.ranges = defaultdict(list)
        limits = chunk.limits or self.simulator.reward_range
        player.known = allowed(limits, self.num_states, self.num_actions)
        runs = Batch(player, chunk).play()
        for name, numbers in player.ranges.items():
            low, high, _ = player.known[name]
            if not all(low <= number <= high for number in self.arrays.numbers(numbers)):
                raise SimulatorError("step must be pure, but went wrong once and then not")
        return runs

    def _ask(self, what: str, function: Callable[..., dict[str, Any]], *given: Any) -> Any:
        """What a function of rows returns, by names. Its extremes are kept."""
        xp = self.arrays.xp
        if self.careful:
            check_alone(self.arrays, what, function, given)
        found = function(*given)
        if self.careful:
            check_values(self.arrays, what, found, given[:2], self.known)
        for name, part in found.items():
            bounded = math.isfinite(self.known[name][1])
            if bounded or xp.isdtype(part.dtype, "real floating"):  # others are what they must be
                self.ranges[name] += [xp.min(part), xp.max(part)]
        return found

    def begin(self, chunk: Chunk) -> Any:
        shape = (len(chunk.plan.names), chunk.size, *self.where.shape)
        return self.arrays.xp.broadcast_to(self.where, shape)

    def step(self, states: Any, actions: Any, going: Any, sharing: Any, rng: Any) -> Played:
        reshape = self.arrays.xp.reshape
        shape = tuple(actions.shape)
        rows = (reshape(states, (-1, *states.shape[2:])), reshape(actions, (-1,)))
        noise = self._noise(shape, sharing, rng)
        found = self._ask("step", partial(stepped, self.simulator), *rows, noise)
        return Played(**{name: reshape(x, (*shape, *x.shape[1:])) for name, x in found.items()})

    def _noise(self, shape: tuple[int, ...], sharing: Any, rng: Any) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.arrays.xp
        width, size = shape
        if self.coupling == "common":
            return each(lambda x: xp.concat([x] * width), drawn(self.simulator, size, rng))

        def shared(x: Any) -> Any:
            return xp.concat(follow(xp, sharing, xp.reshape(x, (*shape, *x.shape[1:]))))

        return each(shared, drawn(self.simulator, width * size, rng))

    def choose(self, policy: Any, states: Any, alive: Any, uniforms: Any) -> Any:
        xp = self.arrays.xp
        if policy.steps is not None:
            rows = self._rows(policy, states)
            narrow = xp.int8 if policy.steps.shape[0] < 128 else xp.int16  # little is moved
            chosen = xp.zeros_like(rows, dtype=narrow)
            for action in range(policy.steps.shape[0]):
                passed = self.arrays.take(policy.steps[action, ...], rows) <= uniforms
                chosen = chosen + xp.astype(passed, narrow)
            return chosen
        found = self._ask("policy", partial(self._answers, policy.source), states)
        if "actions" in found:
            return found["actions"]
        probs = xp.astype(found["probabilities"], xp.float64, copy=False)
        steps = xp.cumulative_sum(probs.T, axis=0)
        return xp.count_nonzero(steps[:-1, :] <= uniforms * steps[-1, :], axis=0)

    def _rows(self, policy: PlayedPolicy, states: Any) -> Any:
        """Where the states (n,) are in a table."""
        xp = self.arrays.xp
        if not self.arrays.on_gpu:
            return xp.astype(states, xp.int64, copy=False)
        # A state out of range would end the process, before it is refused.
        return xp.clip(xp.astype(states, xp.int32, copy=False), 0, len(policy.source) - 1)

    def _answers(self, function: Callable[[Any], Any], states: Any) -> dict[str, Any]:
        """What a policy says of states (n, ...): actions (n,), or probabilities (n, A)."""
        xp = self.arrays.xp
        answer = called("policy(states)", function, checks.read_only(states))
        size = states.shape[0]
        shape = tuple(getattr(answer, "shape", ()))
        if shape == (size,) and xp.isdtype(answer.dtype, "integral"):
            return {"actions": answer}
        if shape == (size, self.num_actions):
            return {"probabilities": answer, "sums": xp.sum(answer, axis=1)}
        what = f"shape {shape} of {answer.dtype}" if shape else repr(answer)
        raise SimulatorError(
            f"policy(states) must return probabilities ({size}, {self.num_actions}) or integer "
            f"actions ({size},) for {size} states, got {what}"
        )
