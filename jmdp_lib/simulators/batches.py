"""Arrays of all runs of a chunk, which are stepped together: see `vector.VectorWorld`.

Arrays (m, n, ...) have an entry for every branch of every run. A run whose branches have all ended,
or have coalesced, is finished. It stays until a fifth of the runs are finished, since to drop them
copies all the others. Until then the rewards of all its branches are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib.simulators.plans import Plan, Runs

_PATIENCE = 5  # finished runs are dropped once at least one run in this many is finished


@dataclass(frozen=True)
class Arrays:
    """An array library and a device.

    The methods do what the array API standard lacks, such as random numbers, or does too slowly.

    xp: the library, whose functions have the names of the standard.
    """

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Any) -> Arrays:
        """Library and device of an array."""
        return cls(array_api_compat.array_namespace(array), array_api_compat.device(array))

    def __reduce__(self) -> Any:  # a module does not pickle, but its arrays do
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
        """A random stream: torch's on its device, or NumPy's for every other library."""
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
        """Entries of an array, by indices that are not negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=axis)
        return self.xp.index_select(array, axis, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array converted to this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array converted to NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)

    def follow(self, values: Any, together: Sequence[Any], plan: Plan) -> None:
        """Copy values (m, n, ...) in place, from the first branch of each group to the others.

        together: (n,) for every pair, whether both branches are in one group.
        """
        missing = (1,) * (len(values.shape) - 2)
        for (i, j), both in zip(plan.pairs, together, strict=True):
            mask = self.xp.reshape(both, (-1, *missing)) if missing else both
            values[j, ...] = self.xp.where(mask, values[i, ...], values[j, ...])


class Batch(NamedTuple):
    """Runs that are still stepped: states (m, n, ...), and actions, totals and alive (m, n).

    alive: whether an episode goes on; None as long as none has ended. together: (n,) for every
    pair, whether both branches go on, at one state-action. shared: (n,) for every pair, whether
    both branches share a draw. A draw that is common to all branches does not count.
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

    def split(self, plan: Plan, to_the_end: bool, arrays: Arrays) -> list[Batch]:
        """Split off the finished runs if they are many; the last batch holds the other runs."""
        xp = arrays.xp
        finished = []
        if plan.coalesces and not to_the_end:
            finished.append(reduce(and_, self.together[: len(plan.kinds) - 1]))
        if self.alive is not None:
            finished.append(~xp.any(self.alive, axis=0))
        if not finished:
            return [self]
        done = reduce(or_, finished)
        if _PATIENCE * int(xp.count_nonzero(done)) < self.totals.shape[1]:
            return [self]
        return [self.taken(xp.nonzero(some)[0], arrays) for some in (done, ~done)]

    def queries(self, plan: Plan, arrays: Arrays) -> Any:
        """Number of queries: one for every state, or for every action that has its own draw."""
        width, size = self.totals.shape
        own: list[Any] = [True] * width
        if self.alive is not None:
            own = [self.alive[b, :] for b in range(width)]
        for (_, j), both in zip(plan.pairs, self.shared, strict=True):
            own[j] = ~both & own[j]
        return sum(size if each is True else arrays.xp.count_nonzero(each) for each in own)


def runs_of(
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
    """Runs as NumPy arrays."""
    host = Arrays.of(runs.totals).host
    coalesced = np.reshape([*map(host, runs.coalesced)], (-1, runs.size))
    return runs._replace(totals=host(runs.totals), tails=host(runs.tails), coalesced=coalesced)
