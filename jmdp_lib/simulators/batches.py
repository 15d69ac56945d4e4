"""The loop over arrays: all runs of a chunk are stepped together.

Arrays (m, n, ...) have an entry for every branch of every run. A run whose branches have all ended,
or are one for good, is finished. It stays until a fifth of the runs are, since to drop them copies
all the others; what it earns until then, all its branches earn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Any, NamedTuple, Protocol

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import randomness
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.plans import Plan, Runs

_PATIENCE = 5  # finished runs are dropped once they are one in so many


@dataclass(frozen=True)
class Arrays:
    """An array library and a device.

    What the standard does not say, such as random numbers, or says too slowly, is a method here.

    xp: the library's functions, by the names of the standard.
    """

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Any) -> Arrays:
        """Those of an array."""
        return cls(array_api_compat.array_namespace(array), array_api_compat.device(array))

    def __reduce__(self) -> Any:  # a module does not pickle, an array of it does
        return Arrays.of, (self.xp.zeros(1, device=self.device),)

    @cached_property
    def is_torch(self) -> bool:
        return bool(array_api_compat.is_torch_namespace(self.xp))

    @property
    def on_gpu(self) -> bool:
        return getattr(self.device, "type", "cpu") == "cuda"

    @property
    def number_type(self) -> str:
        """Type of uniform numbers: float64, or float32 on a GPU, where it counts."""
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

    def follow(self, values: Any, together: Sequence[Any], plan: Plan) -> Any:
        """Values (m, n, ...), in place: a branch takes those of the first it is together with."""
        missing = (1,) * (len(values.shape) - 2)
        for (i, j), both in zip(plan.pairs, together, strict=True):
            mask = self.xp.reshape(both, (-1, *missing)) if missing else both
            values[j, ...] = self.xp.where(mask, values[i, ...], values[j, ...])
        return values


class ArrayWorld(Protocol):
    """What the loop needs of a world."""

    arrays: Arrays

    def start(self, width: int, size: int) -> Any:
        """States (m, n, ...) of new runs."""

    def first(self, actions: Sequence[Any], size: int) -> Any:
        """(m, n) given first actions."""

    def chosen(self, plan: Plan, states: Any, uniforms: Any) -> Any:
        """(m, n) actions by the policies and uniform numbers (m, n)."""

    def noise(self, width: int, size: int, rng: Any) -> Any:
        """(m, n, ...) draws."""

    def step(self, plan: Plan, states: Any, actions: Any, noise: Any) -> tuple[Any, ...]:
        """Rewards (m, n), next states, whether episodes ended or None, and extreme rewards."""


class Batch(NamedTuple):
    """Runs that are not dropped: (m, n, ...) states, (m, n) actions, totals and alive.

    alive: whether an episode goes on; None as long as none has ended. met, together: (n,) for every
    pair, whether two branches that go on are at one state, and whether they also have one action.
    """

    states: Any
    actions: Any
    totals: Any
    alive: Any
    met: list[Any]
    together: list[Any]

    def taken(self, index: Any, arrays: Arrays) -> Batch:
        """Some of the runs."""
        columns = (self.states, self.actions, self.totals, self.alive)
        taken: list[Any] = [None if x is None else arrays.take(x, index, 1) for x in columns]
        taken += [[arrays.take(mask, index) for mask in masks] for masks in self[4:]]
        return Batch(*taken)


def simulate_batch(
    world: ArrayWorld, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
) -> Runs:
    """Runs of a plan, as `World.simulate` says."""
    arrays = world.arrays
    noise, choices = (arrays.generator(randomness.part(seed, k)) for k in (0, 1))
    width = len(plan.kinds)
    states, totals = world.start(width, size), arrays.zeros((width, size))
    batch = Batch(states, None, totals, None, [], [])
    stops = plan.coalesces and not to_the_end
    parts: list[Batch] = []
    queries: Any = 0
    low, high = math.inf, -math.inf
    for time in range(plan.horizon):
        try:
            batch = _acted(world, plan, batch, choices, time)
            done = _finished(arrays, plan, batch, stops) if time else None
            if done is not None:
                parts += _dropped(arrays, batch, done)
                batch = parts.pop()
                if not batch.totals.shape[1]:
                    break
            queries = queries + _count(arrays, plan, batch)
            batch, ends = _stepped(world, plan, batch, noise, plan.gamma**time)
        except SimulatorError as error:
            raise SimulatorError(f"time step {time + 1}: {error}") from error
        low, high = min(low, ends[0]), max(high, ends[1])
    if any(part.alive is not None for part in (*parts, batch)):
        low, high = min(low, 0.0), max(high, 0.0)
    return _runs(arrays, plan, [*parts, batch], (low, high), int(queries))


def _acted(world: ArrayWorld, plan: Plan, batch: Batch, choices: Any, time: int) -> Batch:
    """Choose actions; branches from one state-action choose by the number of the first."""
    arrays = world.arrays
    width, size = batch.totals.shape
    if time:
        uniforms = arrays.uniforms((width, size), choices)
        uniforms = arrays.follow(uniforms, batch.together, plan)
        actions = world.chosen(plan, batch.states, uniforms)
    elif plan.first is None:
        uniforms = arrays.xp.broadcast_to(arrays.uniforms((1, size), choices), (width, size))
        actions = world.chosen(plan, batch.states, uniforms)
    else:
        actions = world.first(plan.first, size)
    met = [_met(arrays, batch, i, j) for i, j in plan.pairs]
    pairs = zip(plan.pairs, met, strict=True)
    together = [here & (actions[i, ...] == actions[j, ...]) for (i, j), here in pairs]
    return batch._replace(actions=actions, met=met, together=together)


def _met(arrays: Arrays, batch: Batch, i: int, j: int) -> Any:
    """(n,) whether two branches that go on are at one state."""
    here = batch.states[i, ...] == batch.states[j, ...]
    if len(here.shape) > 1:
        here = arrays.xp.all(here, axis=1)
    return here if batch.alive is None else here & batch.alive[i, :] & batch.alive[j, :]


def _finished(arrays: Arrays, plan: Plan, batch: Batch, stops: bool) -> Any:
    """(n,) which runs are, or None if none can be. stops: those whose branches are one for good."""
    done = reduce(and_, batch.together[: len(plan.kinds) - 1]) if stops else None
    if batch.alive is None:
        return done
    over = ~arrays.xp.any(batch.alive, axis=0)
    return over if done is None else done | over


def _dropped(arrays: Arrays, batch: Batch, done: Any) -> Iterator[Batch]:
    """Finished runs, if they are enough, and last the others."""
    count = int(arrays.xp.count_nonzero(done))
    if _PATIENCE * count >= batch.totals.shape[1]:
        yield batch.taken(arrays.xp.nonzero(done)[0], arrays)
        batch = batch.taken(arrays.xp.nonzero(~done)[0], arrays)
    yield batch


def _count(arrays: Arrays, plan: Plan, batch: Batch) -> Any:
    """Queries: one for every state, or for every action that draws for itself."""
    xp = arrays.xp
    width, size = batch.totals.shape
    shared = batch.met if plan.coupling.at_one_state else batch.together
    alive = batch.alive
    own: list[Any] = [None if alive is None else alive[b, :] for b in range(width)]
    for (_, j), both in zip(plan.pairs, shared, strict=True):
        own[j] = ~both if own[j] is None else own[j] & ~both
    return sum(size if each is None else xp.count_nonzero(each) for each in own)


def _stepped(
    world: ArrayWorld, plan: Plan, batch: Batch, rng: Any, weight: float
) -> tuple[Batch, tuple[float, float]]:
    """Draw, step, and add rewards up; also the extreme rewards."""
    arrays, xp = world.arrays, world.arrays.xp
    width, size = batch.totals.shape
    if plan.coupling.across_states:
        noise = world.noise(1, size, rng)
        noise = xp.broadcast_to(noise, (width, *noise.shape[1:]))
    else:
        shared = batch.met if plan.coupling.at_one_state else batch.together
        noise = arrays.follow(world.noise(width, size, rng), shared, plan)
    rewards, states, over, ends = world.step(plan, batch.states, batch.actions, noise)
    if batch.alive is not None:
        rewards = xp.where(batch.alive, rewards, 0.0)
    rewards[1:, :] -= rewards[:1, :]
    totals = batch.totals + weight * rewards
    if over is None and batch.alive is None:
        return batch._replace(states=states, totals=totals), ends
    alive = ~over if batch.alive is None else batch.alive & ~over
    mask = xp.reshape(alive, (*alive.shape, *(1,) * (len(states.shape) - 2)))
    states = xp.where(mask, states, batch.states)  # a branch that has ended steps properly, too
    return batch._replace(states=states, totals=totals, alive=alive), ends


def _runs(
    arrays: Arrays, plan: Plan, parts: list[Batch], extremes: tuple[float, float], queries: int
) -> Runs:
    """All runs, finished or cut off at the horizon."""
    xp = arrays.xp
    totals = xp.concat([part.totals for part in parts], axis=1)
    last = plan.gamma**plan.horizon
    tails = xp.broadcast_to(arrays.zeros((1, 1)) + last, totals.shape)
    if parts[-1].alive is not None:
        alive = [x.totals == x.totals if x.alive is None else x.alive for x in parts]
        tails = xp.where(xp.concat(alive, axis=1), tails, 0.0)
    pairs = [xp.concat([part.together[p] for part in parts]) for p in range(len(plan.pairs))]
    kinds = zip(plan.pairs, pairs, strict=True)
    coalesced = [both if plan.same[pair] else xp.zeros_like(both) for pair, both in kinds]
    return Runs(totals, tails, coalesced, extremes, queries)


def on_host(runs: Runs) -> Runs:
    """As arrays of NumPy."""
    host = Arrays.of(runs.totals).host
    coalesced = np.reshape([*map(host, runs.coalesced)], (-1, runs.totals.shape[1]))
    return runs._replace(totals=host(runs.totals), tails=host(runs.tails), coalesced=coalesced)
