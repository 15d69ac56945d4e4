"""The player of a `VectorSimulator`: all rows of a batch are stepped at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy
from jmdp_lib.model import Coupling
from jmdp_lib.model.simulator import ANY_REWARD, SimulatorError
from jmdp_lib.simulators.batch import Arrays, BatchPlayer, Played, follow, policy_table
from jmdp_lib.simulators.plans import Chunk, Plan
from jmdp_lib.simulators.policies import PlayedPolicy
from jmdp_lib.simulators.vector_simulator import (
    ALIKE,
    VectorSimulator,
    called,
    check_alone,
    check_library,
    drawn,
    outside,
    stepped,
)

_REAL = ("bool", "integral", "real floating")
_ROUNDED = 1e-6  # of the largest reward, since rewards may be float32
_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor
_GPU_CHUNK = 2**25  # numbers in the states of these: enough to keep a GPU busy, with three GiB


class VectorPlayer(BatchPlayer):
    """Plays a `VectorSimulator`.

    The smallest and the largest values of every step are looked at, and the first bad row is named.

    where: the state where all branches start, as an array () or (d,). known: of what functions
    of the user's return, by names, between which ends numbers lie, and of which kind they are.
    trial: whether rows are asked for twice.
    """

    known: dict[str, tuple[float, float, Any]]
    trial = False

    def __init__(self, simulator: VectorSimulator, state: Any, coupling: Coupling) -> None:
        self.where = state if array_api_compat.is_array_api_obj(state) else np.asarray(state)
        if len(self.where.shape) > 1 or str(self.where.dtype) == "object":
            raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
        self.simulator = simulator
        self.coupling = coupling
        self.num_actions = simulator.num_actions
        self.num_states = simulator.num_states
        self.limits = simulator.reward_range
        self.arrays = Arrays.of(self.where)
        on_gpu = _GPU_CHUNK // max(1, math.prod(self.where.shape))
        self.chunk_size = on_gpu if self.arrays.on_gpu else _CHUNK
        # Small states have small actions: then less is moved.
        whole = self.arrays.xp.isdtype(self.where.dtype, "integral")
        self.action_type = self.where.dtype if whole else self.arrays.xp.int64

    def checked_policy(self, policy: Policy) -> Any:
        if callable(policy):
            return PlayedPolicy(policy)
        table = policy_table(policy, self.num_actions, self.num_states)
        self.num_states = len(table)
        steps = np.ascontiguousarray(table.cumsum(1).T[:-1], self.arrays.number_type)
        return PlayedPolicy(table, self.arrays.put(steps))

    def tried(self, plan: Plan) -> Plan:
        """If the start is a state, and after two equal draws and a few steps of a few runs."""
        count = self.num_states
        if count is not None:
            if self.where.shape or not self.arrays.xp.isdtype(self.where.dtype, "integral"):
                raise ValueError(
                    f"states must be integers from 0 to {count - 1}, since the simulator or the "
                    f"policy has so many of them; got state {self.where!r}"
                )
            checks.index("state", int(self.where), count)

        def noise() -> Any:
            rng = self.arrays.generator(np.random.SeedSequence(0))
            found = drawn(self.simulator, 16, rng)
            check_library("draw(16, rng)", found, self.where)
            return self.arrays.host(found)

        checks.pure("draw(n, rng)", noise)
        few = plan.settings._replace(horizon=min(plan.settings.horizon, 3))
        trial = copy.copy(self)
        trial.trial = True
        seed = np.random.SeedSequence(0, spawn_key=(0,))
        with checks.no_global_draws("step or policy", "whose draws are not shared"):
            trial.play(Chunk(replace(plan, settings=few), seed, 32))
        return plan

    def _ask(self, what: str, function: Callable[..., dict[str, Any]], *given: Any) -> Any:
        """What a function of rows returns, by names; refused if it is not allowed."""
        xp = self.arrays.xp
        if self.trial:
            check_alone(self.arrays, what, function, given)
        found = function(*given)
        for name, part in found.items():
            low, high, kind = self.known[name]
            if not xp.isdtype(part.dtype, kind):
                raise SimulatorError(f"{what} returned {name} of dtype {part.dtype}, not {kind}")
            if math.isinf(high) and not xp.isdtype(part.dtype, "real floating"):
                continue  # whatever it is, it is a number
            ends = (float(xp.min(part)), float(xp.max(part)))
            if name == "rewards":
                self.extremes += ends
            if not low <= ends[0] <= ends[1] <= high:  # one that is no number is not, either
                values, *sources = map(self.arrays.host, (part, *given[:2]))
                row = outside(values, (low, high), sources)
                raise SimulatorError(f"{what} returned {name}{row}")
        return found

    def begin(self, chunk: Chunk) -> Any:
        low, high = self.limits or ANY_REWARD
        slack = _ROUNDED * max(-low, high) if self.limits else 0.0
        count = self.num_states
        anything = (-math.inf, math.inf, _REAL)
        self.known = {
            "rewards": (low - slack, high + slack, _REAL),
            "next_states": (0, count - 1, "integral") if count else anything,
            "over": (-math.inf, math.inf, "bool"),
            "actions": (0, self.num_actions - 1, "integral"),
            "probabilities": (0.0, math.inf, _REAL),
            "sums": (1.0 - ALIKE, 1.0 + ALIKE, _REAL),
        }
        shape = (len(chunk.plan.names), chunk.size, *self.where.shape)
        return self.arrays.xp.broadcast_to(self.where, shape)

    def step(self, states: Any, actions: Any, going: Any, sharing: Any, rng: Any) -> Played:
        reshape = self.arrays.xp.reshape
        shape = tuple(actions.shape)
        rows = (reshape(states, (-1, *states.shape[2:])), reshape(actions, (-1,)))
        noise = self._noise(shape, sharing, rng)
        found = self._ask("step", partial(stepped, self.simulator), *rows, noise)
        xp = self.arrays.xp
        found["rewards"] = xp.astype(found["rewards"], xp.float64, copy=False)
        return Played(**{name: reshape(x, (*shape, *x.shape[1:])) for name, x in found.items()})

    def _noise(self, shape: tuple[int, ...], sharing: Any, rng: Any) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.arrays.xp
        width, size = shape
        if self.coupling.across_states:
            return xp.concat([drawn(self.simulator, size, rng)] * width)
        noise = drawn(self.simulator, width * size, rng)
        return xp.concat(follow(xp, sharing, xp.reshape(noise, (*shape, *noise.shape[1:]))))

    def choose(self, policies: Sequence[Any], states: Any, alive: Any, uniforms: Any) -> Any:
        xp = self.arrays.xp
        chosen = [
            self._choose(policy, states[j, ...], numbers)
            for j, (policy, numbers) in enumerate(zip(policies, uniforms, strict=True))
        ]
        return xp.astype(xp.stack(chosen), self.action_type, copy=False)

    def _choose(self, policy: Any, states: Any, uniforms: Any) -> Any:
        """(n,) actions of a policy in states (n, ...), by as many uniform numbers."""
        xp = self.arrays.xp
        if policy.steps is not None:
            wide = xp.int32 if self.arrays.on_gpu else xp.int64  # as each takes rows fastest
            rows = xp.astype(states, wide, copy=False)
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

    def _answers(self, function: Callable[[Any], Any], states: Any) -> dict[str, Any]:
        """What a policy says of states (n, ...): actions (n,), or probabilities (n, A)."""
        xp = self.arrays.xp
        answer = called("policy(states)", function, checks.read_only(states))
        checks.unmasked("policy(states)", answer)
        size = states.shape[0]
        shape = tuple(getattr(answer, "shape", ()))
        if shape:
            check_library("policy(states)", answer, states)
        if shape == (size,) and xp.isdtype(answer.dtype, "integral"):
            return {"actions": answer}
        if shape == (size, self.num_actions):
            return {"probabilities": answer, "sums": xp.sum(answer, axis=1)}
        what = f"shape {shape} of {answer.dtype}" if shape else repr(answer)
        raise SimulatorError(
            f"policy(states) must return probabilities ({size}, {self.num_actions}) or integer "
            f"actions ({size},) for {size} states, got {what}"
        )
