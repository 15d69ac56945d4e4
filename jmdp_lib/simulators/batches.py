"""The loop over arrays: all runs of a chunk are stepped together.

Arrays (m, n, ...) have an entry for every branch of every run. A run whose branches have all ended,
or have coalesced, is finished. It stays until a fifth of the runs are finished, since to drop them
copies all the others; what it earns until then, all its branches earn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import randomness
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.plans import Plan, Runs, World

_PATIENCE = 5  # finished runs are dropped once they are one in so many


@dataclass(frozen=True)
class Arrays:
    """An array library and a device.

    A method does what the standard lacks, such as random numbers, or does too slowly.

    xp: the library's functions, by the names of the standard.
    """

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Any) -> Arrays:
        """Library and device of an array."""
        return cls(array_api_compat.array_namespace(array), array_api_compat.device(array))

    def __reduce__(self) -> Any:  # a module does not pickle, an array of it does
        return Arrays.of, (self.zeros((1,)),)

    @cached_property
    def is_torch(self) -> bool:
        return bool(array_api_compat.is_torch_namespace(self.xp))

    @property
    def on_gpu(self) -> bool:
        return getattr(self.device, "type", "cpu") == "cuda"

    @property
    def number_type(self) -> str:
        """Type of uniform numbers: float64, or float32 on a GPU, where it is faster."""
        return "float32" if self.on_gpu else "float64"

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream: of torch on its device, of NumPy for all other libraries."""
        if not self.is_torch:
            return np.random.Generator(np.random.SFC64(seed))  # twice as fast as the default
        (word,) = seed.generate_state(1, np.uint64).tolist()
        return self.xp.Generator(device=self.device).manual_seed(word >> 1)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self.device)

    def uniforms(self, shape: tuple[int, ...], rng: Any) -> Any:
        if not self.is_torch:
            return self.put(rng.random(shape))
        kind = getattr(self.xp, self.number_type)
        return self.xp.rand(shape, generator=rng, device=self.device, dtype=kind)

    def take(self, array: Any, index: Any, axis: int = 0) -> Any:
        """Entries of an array. No index is negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=axis)
        return self.xp.index_select(array, axis, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array as one of this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array as one of NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)

    def follow(self, values: Any, together: Sequence[Any], plan: Plan) -> None:
        """Values (m, n, ...), in place: a branch takes those of the first it is together with."""
        missing = (1,) * (len(values.shape) - 2)
        for (i, j), both in zip(plan.pairs, together, strict=True):
            mask = self.xp.reshape(both, (-1, *missing)) if missing else both
            values[j, ...] = self.xp.where(mask, values[i, ...], values[j, ...])


class Batch(NamedTuple):
    """Runs that are not dropped: (m, n, ...) states, (m, n) actions, totals and alive.

    alive: whether an episode goes on; None as long as none has ended. together, shared: (n,) for
    every pair, whether two branches that go on are at one state-action, and whether they share a
    draw without one for all.
    """

    states: Any
    actions: Any
    totals: Any
    alive: Any
    together: list[Any]
    shared: list[Any]

    def taken(self, index: Any, arrays: Arrays) -> Batch:
        """Batch of some of the runs."""
        taken: list[Any] = [None if x is None else arrays.take(x, index, 1) for x in self[:4]]
        taken += [[arrays.take(mask, index) for mask in masks] for masks in self[4:]]
        return Batch(*taken)


class ArrayWorld(World):
    """Simulates all runs of a chunk together.

    arrays, here: the state where all branches start, an array () or (d,), and its library.
    action_type: type of actions.
    """

    arrays: Arrays
    here: Any
    action_type: Any

    @abstractmethod
    def chosen(self, plan: Plan, states: Any, uniforms: Any) -> Any:
        """Actions (m, n) by the policies and uniform numbers (m, n)."""

    @abstractmethod
    def noise(self, width: int, size: int, rng: Any) -> Any:
        """Draws (m, n, ...), which are written to."""

    @abstractmethod
    def step(self, plan: Plan, states: Any, actions: Any, noise: Any) -> tuple[Any, ...]:
        """Rewards (m, n), next states, ends of episodes or None, and the extreme rewards."""

    def simulate(
        self, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
    ) -> Runs:
        arrays = self.arrays
        noise, choices = (arrays.generator(randomness.part(seed, k)) for k in (0, 1))
        shape = (len(plan.kinds), size)
        states = arrays.xp.broadcast_to(self.here, (*shape, *self.here.shape))
        batch = Batch(states, None, arrays.zeros(shape), None, [], [])
        dropped: list[Batch] = []
        queries: Any = 0
        low, high = math.inf, -math.inf
        for time in range(plan.horizon):
            try:
                batch = self._acted(plan, batch, choices, time)
                if time:
                    *finished, batch = _split(arrays, plan, batch, to_the_end)
                    dropped += finished
                if not batch.totals.shape[1]:
                    break
                queries = queries + _count(arrays, plan, batch)
                batch, ends = self._stepped(plan, batch, noise, plan.gamma**time)
            except SimulatorError as error:
                raise SimulatorError(f"time step {time + 1}: {error}") from error
            low, high = min(low, ends[0]), max(high, ends[1])
        return _runs(arrays, plan, [*dropped, batch], (low, high), int(queries))

    def _acted(self, plan: Plan, batch: Batch, choices: Any, time: int) -> Batch:
        """Choose actions; branches from one state-action choose by the number of the first."""
        arrays, xp = self.arrays, self.arrays.xp
        width, size = batch.totals.shape
        if time or plan.first is None:
            uniforms = arrays.uniforms((width if time else 1, size), choices)
            if time:
                arrays.follow(uniforms, batch.together, plan)
            uniforms = xp.broadcast_to(uniforms, (width, size))
            actions = self.chosen(plan, batch.states, uniforms)
        else:
            first = xp.astype(arrays.put(np.array(plan.first)), self.action_type)
            actions = xp.broadcast_to(first[:, None], (width, size))
        met: list[Any] = []
        for i, j in plan.pairs:
            here = batch.states[i, ...] == batch.states[j, ...]
            if len(here.shape) > 1:
                here = xp.all(here, axis=1)
            if batch.alive is not None:
                here = here & batch.alive[i, :] & batch.alive[j, :]
            met.append(here)
        pairs = zip(plan.pairs, met, strict=True)
        together = [here & (actions[i, :] == actions[j, :]) for (i, j), here in pairs]
        shared = met if plan.coupling.at_one_state else together
        return batch._replace(actions=actions, together=together, shared=shared)

    def _stepped(
        self, plan: Plan, batch: Batch, rng: Any, weight: float
    ) -> tuple[Batch, tuple[float, float]]:
        """Draw, step, and add rewards up; also the extreme rewards."""
        xp = self.arrays.xp
        width, size = batch.totals.shape
        if plan.coupling.across_states:
            noise = self.noise(1, size, rng)
            noise = xp.broadcast_to(noise, (width, *noise.shape[1:]))
        else:
            noise = self.noise(width, size, rng)
            self.arrays.follow(noise, batch.shared, plan)
        rewards, states, over, ends = self.step(plan, batch.states, batch.actions, noise)
        alive = batch.alive
        if alive is not None:
            rewards = xp.where(alive, rewards, 0.0)
        rewards[1:, :] -= rewards[:1, :]
        if over is not None:
            alive = ~over if alive is None else alive & ~over
        if alive is not None:  # a branch that has ended steps properly, too
            mask = xp.reshape(alive, (width, size, *(1,) * (len(states.shape) - 2)))
            states = xp.where(mask, states, batch.states)
        totals = batch.totals + weight * rewards
        return batch._replace(states=states, totals=totals, alive=alive), ends


def _split(arrays: Arrays, plan: Plan, batch: Batch, to_the_end: bool) -> list[Batch]:
    """Finished runs, if they are enough, and last the others."""
    xp = arrays.xp
    finished = []
    if plan.coalesces and not to_the_end:
        finished.append(reduce(and_, batch.together[: len(plan.kinds) - 1]))
    if batch.alive is not None:
        finished.append(~xp.any(batch.alive, axis=0))
    if not finished:
        return [batch]
    done = reduce(or_, finished)
    if _PATIENCE * int(xp.count_nonzero(done)) < batch.totals.shape[1]:
        return [batch]
    return [batch.taken(xp.nonzero(some)[0], arrays) for some in (done, ~done)]


def _count(arrays: Arrays, plan: Plan, batch: Batch) -> Any:
    """Number of queries: one for every state, or for every action that draws for itself."""
    width, size = batch.totals.shape
    own: list[Any] = [True] * width
    if batch.alive is not None:
        own = [batch.alive[b, :] for b in range(width)]
    for (_, j), both in zip(plan.pairs, batch.shared, strict=True):
        own[j] = ~both & own[j]
    return sum(size if each is True else arrays.xp.count_nonzero(each) for each in own)


def _runs(
    arrays: Arrays, plan: Plan, parts: list[Batch], extremes: tuple[float, float], queries: int
) -> Runs:
    """All runs, finished or cut off at the horizon."""
    xp = arrays.xp
    totals = xp.concat([part.totals for part in parts], axis=1)
    tails = xp.broadcast_to(arrays.zeros((1, 1)) + plan.gamma**plan.horizon, totals.shape)
    if parts[-1].alive is not None:
        extremes = (min(extremes[0], 0.0), max(extremes[1], 0.0))
        alive = [x.totals == x.totals if x.alive is None else x.alive for x in parts]
        tails = xp.where(xp.concat(alive, axis=1), tails, 0.0)
    pairs = zip(plan.pairs, *(part.together for part in parts), strict=True)
    coalesced = [xp.concat(masks) & bool(plan.same[pair]) for pair, *masks in pairs]
    return Runs(totals, tails, coalesced, extremes, queries)


def on_host(runs: Runs) -> Runs:
    """Runs as arrays of NumPy."""
    host = Arrays.of(runs.totals).host
    coalesced = np.reshape([*map(host, runs.coalesced)], (-1, runs.totals.shape[1]))
    return runs._replace(totals=host(runs.totals), tails=host(runs.tails), coalesced=coalesced)
