"""Branches of a `VectorSimulator`: what `Branches` of `players` is for runs played one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Ints, Policy
from jmdp_lib.machine import available_bytes
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.operators.dense import device_bytes
from jmdp_lib.simulators.arrays import Arrays, as_array
from jmdp_lib.simulators.branches import Run
from jmdp_lib.simulators.players import Comparison, checked_settings
from jmdp_lib.simulators.vector_batch import Batch
from jmdp_lib.simulators.vector_lanes import BatchPlan, ChunkRuns
from jmdp_lib.simulators.vector_policies import VectorPolicy
from jmdp_lib.simulators.vector_simulator import VectorSimulator, check_draw, drawn, played

_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor,
_GPU_CHUNK = 2**23  # and many enough to keep a GPU busy
_MOST_IN_FLIGHT = 4  # chunks on a GPU: with more, launching their draws would take long
_WORDS = 24  # of eight bytes, for every branch of a run that is in flight


@dataclass(frozen=True)
class VectorBranches(BatchPlan, Comparison):
    """What all runs of a comparison of actions have in common; it pickles if its parts do."""

    player: ClassVar[type[Batch]] = Batch

    @classmethod
    def of(
        cls, env: VectorSimulator, policy: Policy, actions: Sequence[int], state: Any,
        gamma: float | None, coupling: str, truncation: float, horizon: int | None,
    ) -> VectorBranches:  # fmt: skip
        """Arguments as of `estimate_gaps`, checked; step, draw and policy are tried out."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        start = start_of(env, state)
        chosen = checks.distinct_actions(actions, env.num_actions)
        table = VectorPolicy.of(policy, env.num_actions, getattr(env, "num_states", None))
        if table.num_states is not None:
            check_numbered(start, table.num_states)
        made = cls(env, table, start, chosen, *settings, env.reward_range)
        made._try_out()
        return made

    def _try_out(self) -> None:
        """A careful batch of few runs and few steps."""
        check_draw(self.simulator, Arrays.of(self.state))
        few = replace(self, horizon=min(self.horizon, 3))
        few.play(np.random.SeedSequence(0), [32], careful=True)

    @property
    def names(self) -> list[int]:
        return self.actions

    @property
    def parts(self) -> dict[str, Any]:
        return {"env": self.simulator, "policy": self.policy, "state": self.state}

    @property
    def reward_range(self) -> tuple[float, float] | None:
        return self.simulator.reward_range

    def only(self, chosen: Sequence[int]) -> VectorBranches:
        return replace(self, actions=[self.actions[i] for i in chosen])

    @property
    def chunk_size(self) -> int:
        """Runs of a chunk: fixed for a kind of device, since numbers depend on it."""
        return _GPU_CHUNK if Arrays.of(self.state).on_gpu else _CHUNK

    @property
    def most_in_flight(self) -> int:
        """Chunks that are played at once: one on a processor, on a GPU as many as fit."""
        arrays = Arrays.of(self.state)
        if not arrays.on_gpu:
            return 1
        width = math.prod(self.state.shape)
        size = 8 * self.chunk_size * len(self.actions) * (_WORDS + 4 * width)
        free = device_bytes(str(arrays.device)) if arrays.is_torch else available_bytes()
        return max(1, min(_MOST_IN_FLIGHT, free // size))

    def play(
        self, root: np.random.SeedSequence, sizes: Sequence[int], first: int = 0,
        whole: bool = False, counted: bool = False, careful: bool = False,
    ) -> list[ChunkRuns]:  # fmt: skip
        """The chunks of a batch, numbered from `first` on; sizes: how many runs each has.

        whole: branches that have become one are played on until the horizon, so that returns are
        whole; gaps stay the same. counted: count queries. careful: look at all values.

        Otherwise only smallest and largest values are looked at. If something is wrong with them,
        or a function of the user's fails, the batch is played again carefully, which names the row.
        """
        seeds = [checks.seed_sequence(root, first + k) for k in range(len(sizes))]
        batch = self.player(self, seeds, list(sizes), whole, counted, careful)
        try:
            found = batch.play()
        except SimulatorError:
            if not careful:
                self.play(root, sizes, first, whole, careful=True)
            raise
        if not careful and batch.is_suspect():
            self.play(root, sizes, first, whole, careful=True)
            raise SimulatorError("step must be pure, but went wrong once and not a second time")
        return found

    @property
    def episodes_end(self) -> bool:
        """Whether a step says that episodes end; rewards are zero from then on."""
        arrays = Arrays.of(self.state)
        noise = drawn(self.simulator, 1, arrays.generator(np.random.SeedSequence(0)))
        states = arrays.xp.expand_dims(self.state, axis=0)
        chosen = arrays.put(np.array(self.actions[:1]))
        return played(self.simulator, states, chosen, noise).over is not None

    def begin(self, rng: np.random.Generator) -> np.random.Generator:
        """Seeds of batches come from it."""
        return rng

    def play_some(
        self, source: np.random.Generator, most: int, until_one: bool, limits: tuple[float, float]
    ) -> list[Run]:
        """All runs that may be played, or a chunk of them, in the order of the chunk."""
        root = np.random.SeedSequence(int(source.integers(2**63)))
        known = limits if np.isfinite(limits).all() else self.limits
        sizes = [min(most, self.chunk_size)]
        playing = replace(self, limits=known)
        (runs,) = playing.play(root, sizes, whole=not until_one, counted=True)
        arrays = Arrays.of(runs.returns)
        order = np.argsort(arrays.host(runs.numbers))
        returns = arrays.host(runs.returns).T[order].tolist()
        apart = [arrays.host(differ)[order] for differ in runs.apart]
        labels = _labels(len(self.actions), apart).tolist()
        queries = arrays.host(runs.queries)[order].tolist()
        columns = zip(returns, labels, queries, strict=True)
        return [Run(own, futures, runs.extremes, count) for own, futures, count in columns]


def _labels(width: int, apart: Sequence[Any]) -> Ints:
    """(N, m) equal where branches have the same future, from (N,) of every pair."""
    labels = np.tile(np.arange(width), (len(apart[0]), 1))
    pairs = combinations(range(width), 2)
    for (i, j), differ in reversed([*zip(pairs, apart, strict=True)]):
        labels[:, j] = np.where(differ, labels[:, j], i)
    return labels


def start_of(env: VectorSimulator, state: Any) -> Any:
    """The state where all branches start, as an array () or (d,)."""
    if state is None:
        raise ValueError("state= must be given: the state at which the actions are compared")
    start = as_array(state)
    if len(start.shape) > 1 or (hasattr(start, "dtype") and str(start.dtype) == "object"):
        raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
    count = getattr(env, "num_states", None)
    if count is not None:
        check_numbered(start, count)
    return start


def check_numbered(start: Any, num_states: int) -> None:
    """Refuse a start that is no number of a state."""
    arrays = Arrays.of(start)
    if start.shape or not arrays.xp.isdtype(start.dtype, "integral"):
        raise ValueError(
            f"states must be integers from 0 to {num_states - 1}, since the simulator or the "
            f"policy has so many of them; got state {start!r}"
        )
    checks.index("state", int(start), num_states)
