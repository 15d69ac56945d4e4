"""A batch of runs of a `VectorSimulator`, stepped together, by the rules that `branches` states.

A batch is one or more chunks of runs. A chunk has random streams of its own and decides by itself
when its finished runs are dropped, so how many chunks are in flight changes no number. Branches are
the first axis of all arrays, runs the second; runs of a chunk stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.arrays import Arrays, each, each_of
from jmdp_lib.simulators.vector_policies import VectorPolicy
from jmdp_lib.simulators.vector_simulator import (
    Played,
    VectorSimulator,
    check_pure,
    check_values,
    drawn,
    played,
    widened,
)

_DONE = 5  # finished runs of a chunk are dropped once they are a fifth of it


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


class _Lanes(NamedTuple):
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


class _Streams:
    """The random streams of a chunk: of its noise, its actions, and what follows a merger."""

    def __init__(self, arrays: Arrays, seed: np.random.SeedSequence) -> None:
        noise, choices, later = seed.spawn(3)
        self.noise = arrays.generator(noise)
        self.choices = arrays.generator(choices)
        self.later = arrays.generator(later)


class Batch:
    """Plays chunks together. sizes: runs of each chunk that are still in flight.

    whole: branches that have become one are played on until the horizon. counted: queries are.
    careful: all values of every step are looked at, and the first bad row is named.
    """

    def __init__(
        self, plan: BatchPlan, seeds: list[np.random.SeedSequence], sizes: list[int],
        whole: bool, counted: bool, careful: bool,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.arrays = Arrays.of(plan.state)
        self.xp = self.arrays.xp
        self.policy = plan.policy.on(self.arrays)
        self.streams = [_Streams(self.arrays, seed) for seed in seeds]
        self.sizes = sizes
        self.whole = whole
        self.counted = counted
        self.careful = careful
        self.width = len(plan.actions)
        self.pairs = list(combinations(range(self.width), 2))
        self.finished: list[list[tuple[Any, ...]]] = [[] for _ in sizes]
        self.seen: list[list[Any]] = [[] for _ in sizes]  # extremes of rewards
        self.suspects: list[Any] = []
        self.branch_steps = [self.width * size for size in sizes]  # the first step is known
        self.time = 0
        # Small states have small actions: then less is moved.
        whole_states = self.xp.isdtype(plan.state.dtype, "integral")
        self.action_type = plan.state.dtype if whole_states else self.xp.int64

    def play(self) -> list[ChunkRuns]:
        """All runs of all chunks, from the start to the horizon."""
        lanes = self._start()
        for time in range(self.plan.horizon):
            self.time = time
            if time:
                lanes = self._drop(self._choose(lanes))
            if not any(self.sizes):
                break
            lanes = self._step(lanes)
        self.time = self.plan.horizon
        for chunk, rows in self._chunks():
            self._finish(lanes, chunk, self._range(rows))
        return [self._collected(chunk) for chunk in range(len(self.sizes))]

    def is_suspect(self, found: list[ChunkRuns]) -> bool:
        """Whether a number that was played cannot be."""
        low, high = widened(self.plan.limits)
        inside = all(low <= part.extremes[0] <= part.extremes[1] <= high for part in found)
        return not inside or bool(self.suspects and self.xp.any(self.xp.stack(self.suspects)))

    def _start(self) -> _Lanes:
        xp = self.xp
        total = sum(self.sizes)
        shape = (self.width, total)
        state = self.plan.state
        chosen = self.arrays.put(np.array(self.plan.actions))
        chosen = xp.expand_dims(xp.astype(chosen, self.action_type), axis=1)
        here = {"device": self.arrays.device}
        yes = xp.ones((total,), dtype=xp.bool, **here)
        no = xp.zeros((total,), dtype=xp.bool, **here)
        ordered = self.whole or self.counted
        numbers = [xp.arange(size, dtype=xp.int64, **here) for size in self.sizes]
        return _Lanes(
            numbers=xp.concat(numbers) if ordered else None,
            states=xp.broadcast_to(state, (*shape, *state.shape)),
            actions=xp.broadcast_to(chosen, shape),
            returns=xp.zeros(shape, dtype=xp.float64, **here),
            same=tuple(yes for _ in self.pairs),
            one=tuple(no for _ in self.pairs),
            alive=None,
            queries=xp.zeros((total,), dtype=xp.int64, **here) if self.counted else None,
        )

    # One time step

    def _step(self, lanes: _Lanes) -> _Lanes:
        """Draw, step, and add the rewards up."""
        found = self._played(lanes.states, lanes.actions, self._noise(lanes))
        alive = lanes.alive
        rewards = self._floating(found.rewards)
        states = found.states
        queries = self._asked(lanes) if self.counted else None
        if found.over is not None:
            before = ~found.over | found.over if alive is None else alive
            rewards = self.xp.where(before, rewards, self.xp.zeros_like(rewards))
            alive = before & ~found.over
            # A branch that has ended stays where it was: its step must still be a proper one.
            states = self.xp.where(_beside(self.xp, alive, states), states, lanes.states)
        self._watch(found, rewards)
        returns = lanes.returns + rewards * self.plan.gamma**self.time
        return lanes._replace(states=states, returns=returns, alive=alive, queries=queries)

    def _played(self, states: Any, actions: Any, noise: Any) -> Played:
        """What a step makes of states (m, n, ...), as arrays (m, n, ...)."""
        shape = tuple(actions.shape)
        rows = shape[0] * shape[1]
        flat_states = self.xp.reshape(states, (rows, *states.shape[2:]))
        flat_actions = self.xp.reshape(actions, (rows,))
        try:
            found = played(self.plan.simulator, flat_states, flat_actions, noise)
            if self.careful:
                self._look(flat_states, flat_actions, noise, found)
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        over = None if found.over is None else self.xp.reshape(found.over, shape)
        following = self.xp.reshape(found.states, (*shape, *states.shape[2:]))
        return Played(self.xp.reshape(found.rewards, shape), following, over)

    def _look(self, states: Any, actions: Any, noise: Any, found: Played) -> None:
        """Refuse a step that is wrong in a row."""
        limits = self.plan.limits
        check_values(self.arrays, states, actions, found, limits, self.plan.num_states)
        check_pure(self.plan.simulator, self.arrays, states, actions, noise)

    def _noise(self, lanes: _Lanes) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.xp
        shared = self.plan.coupling == "common"
        branches = 1 if shared else self.width
        parts = []
        for chunk, rows in self._chunks():
            size = rows.stop - rows.start
            noise = drawn(self.plan.simulator, branches * size, self.streams[chunk].noise)
            parts.append(self._by_branch(noise, branches, size))
        noise = each_of(lambda x: x[0] if len(x) == 1 else xp.concat(x, axis=1), parts)
        if shared:
            return each(lambda x: xp.concat([x[0, ...]] * self.width), noise)
        meet = lanes.one if self.plan.coupling == "independent" else lanes.same
        return each(lambda x: xp.concat(self._follow(meet, x)), noise)

    def _follow(self, meet: tuple[Any, ...], values: Any) -> list[Any]:
        """m rows of values (m, n, ...): a branch takes over those of the first that it meets."""
        rows = [values[j, ...] for j in range(self.width)]
        for (i, j), met in reversed([*zip(self.pairs, meet, strict=True)]):
            rows[j] = self.xp.where(_beside(self.xp, met, rows[j]), rows[i], rows[j])
        return rows

    def _floating(self, rewards: Any) -> Any:
        """Rewards as they are, or float64 if they are whole numbers."""
        floating = self.xp.isdtype(rewards.dtype, "real floating")
        return rewards if floating else self.xp.astype(rewards, self.xp.float64)

    def _by_branch(self, noise: Any, branches: int, size: int) -> Any:
        return each(lambda x: self.xp.reshape(x, (branches, size, *x.shape[1:])), noise)

    def _watch(self, found: Played, rewards: Any) -> None:
        """Collect the extremes of rewards by chunks, and signs that something is wrong."""
        xp = self.xp
        low = high = rewards
        if found.over is not None:
            nothing = xp.zeros_like(rewards)
            low = xp.where(found.over, xp.minimum(rewards, nothing), rewards)
            high = xp.where(found.over, xp.maximum(rewards, nothing), rewards)
        for chunk, rows in self._chunks():
            self.seen[chunk] += [xp.min(low[:, rows]), xp.max(high[:, rows])]
        count = self.plan.num_states
        if count is not None:
            self.suspects.append((xp.min(found.states) < 0) | (xp.max(found.states) >= count))
        elif xp.isdtype(found.states.dtype, "real floating"):
            self.suspects.append(xp.any(xp.isnan(found.states)))

    def _asked(self, lanes: _Lanes) -> Any:
        """(n,) queries so far: one for every place, or for every action that is played alone."""
        xp = self.xp
        meet = lanes.one if self.plan.coupling == "independent" else lanes.same
        queries = lanes.queries
        going = ~self._done(lanes)
        for j in range(self.width):
            first = going if lanes.alive is None else going & lanes.alive[j, ...]
            for (_, other), met in zip(self.pairs, meet, strict=True):
                first = first & ~met if other == j else first
            queries = queries + xp.astype(first, xp.int64)
        return queries

    def _choose(self, lanes: _Lanes) -> _Lanes:
        """The next actions; which branches share a state by now, and which are one."""
        xp = self.xp
        states = lanes.states
        parts = [
            xp.reshape(self._uniforms(chunk, rows), (self.width, rows.stop - rows.start))
            for chunk, rows in self._chunks()
        ]
        uniforms = xp.reshape(parts[0] if len(parts) == 1 else xp.concat(parts, axis=1), (-1,))
        flat = xp.reshape(states, (uniforms.shape[0], *states.shape[2:]))
        own = xp.reshape(self._chosen(flat, uniforms), (self.width, -1))
        actions = xp.stack(self._follow(lanes.one, own))
        same = tuple(self._meet(states, lanes.alive, i, j) for i, j in self.pairs)
        one = tuple(
            met & (actions[i, ...] == actions[j, ...])
            for (i, j), met in zip(self.pairs, same, strict=True)
        )
        return lanes._replace(actions=actions, same=same, one=one)

    def _uniforms(self, chunk: int, rows: slice) -> Any:
        size = self.width * (rows.stop - rows.start)
        return self.arrays.uniforms(size, self.streams[chunk].choices)

    def _chosen(self, states: Any, uniforms: Any) -> Any:
        """(n,) actions of the policy in states (n, ...)."""
        try:
            if self.careful:
                self.policy.check(self.arrays, states)
            actions, suspect = self.policy.draw(self.arrays, states, uniforms)
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        if suspect is not None:
            self.suspects.append(suspect)
        return self.xp.astype(actions, self.action_type, copy=False)

    def _meet(self, states: Any, alive: Any, i: int, j: int) -> Any:
        """(n,) whether two branches are alive in one state."""
        xp = self.xp
        equal = states[i, ...] == states[j, ...]
        if len(states.shape) > 2:
            equal = xp.all(equal, axis=tuple(range(1, len(equal.shape))))
        return equal if alive is None else equal & alive[i, ...] & alive[j, ...]

    # Runs that are finished

    def _done(self, lanes: _Lanes) -> Any:
        """(n,) whether all branches of a run are one, or all have ended."""
        xp = self.xp
        with_first = [one for (i, _), one in zip(self.pairs, lanes.one, strict=True) if i == 0]
        merged = reduce(lambda x, y: x & y, with_first) if with_first else None
        if lanes.alive is None:
            nothing = xp.zeros_like(lanes.returns[0, ...], dtype=xp.bool)
            return nothing if merged is None else merged
        ended = ~xp.any(lanes.alive, axis=0)
        return ended if merged is None else merged | ended

    def _drop(self, lanes: _Lanes) -> _Lanes:
        """Take the finished runs out of every chunk in which they are a fifth or more."""
        xp = self.xp
        done = self._done(lanes)
        chunks = list(self._chunks())
        counts = [xp.count_nonzero(done[rows]) for _, rows in chunks]
        counts = self.arrays.host(xp.stack(counts)).tolist() if counts else []
        kept = []
        due = False
        for (chunk, rows), count in zip(chunks, counts, strict=True):
            self.branch_steps[chunk] += self.width * (rows.stop - rows.start - count)
            if _DONE * count < rows.stop - rows.start:
                kept.append(self._range(rows))
                continue
            due = True
            self._finish(lanes, chunk, xp.nonzero(done[rows])[0] + rows.start)
            kept.append(xp.nonzero(~done[rows])[0] + rows.start)
            self.sizes[chunk] -= count
        return self._taken(lanes, xp.concat(kept)) if due else lanes

    def _taken(self, lanes: _Lanes, index: Any) -> _Lanes:
        """Some of the runs."""
        take = self.arrays.take
        return _Lanes(
            numbers=None if lanes.numbers is None else take(lanes.numbers, index),
            states=take(lanes.states, index, 1),
            actions=take(lanes.actions, index, 1),
            returns=take(lanes.returns, index, 1),
            same=tuple(take(met, index) for met in lanes.same),
            one=tuple(take(one, index) for one in lanes.one),
            alive=None if lanes.alive is None else take(lanes.alive, index, 1),
            queries=None if lanes.queries is None else take(lanes.queries, index),
        )

    def _finish(self, lanes: _Lanes, chunk: int, index: Any) -> None:
        """Put runs of a chunk aside; if wanted, play those on whose branches are one."""
        ended = self._taken(lanes, index)
        returns = ended.returns
        queries = ended.queries
        if self.whole and self.time < self.plan.horizon:
            later, asked = self._rest(ended, chunk)
            returns = returns + self.xp.expand_dims(later, axis=0)
            queries = None if queries is None else queries + asked
        apart = self._apart(ended) if self.time == self.plan.horizon else None
        self.finished[chunk].append((ended.numbers, returns, apart, queries))

    def _apart(self, lanes: _Lanes) -> tuple[Any, ...]:
        """For every pair (n,): whether two branches can still differ after the horizon."""
        alive = lanes.alive
        if alive is None:
            return tuple(~one for one in lanes.one)
        return tuple(
            ~one & (alive[i, ...] | alive[j, ...])
            for (i, j), one in zip(self.pairs, lanes.one, strict=True)
        )

    def _rest(self, lanes: _Lanes, chunk: int) -> tuple[Any, Any]:
        """(n,) what runs whose branches are one earn from now on; and steps until they end."""
        xp = self.xp
        rng = self.streams[chunk].later
        states = lanes.states[:1, ...]
        actions = lanes.actions[:1, ...]
        size = actions.shape[1]
        alive = None if lanes.alive is None else xp.all(lanes.alive, axis=0)
        total = xp.zeros_like(lanes.returns[0, ...])
        steps = xp.zeros_like(total, dtype=xp.int64)
        for time in range(self.time, self.plan.horizon):
            found = self._played(states, actions, drawn(self.plan.simulator, size, rng))
            rewards = self._floating(found.rewards)[0, ...]
            if alive is not None:
                rewards = xp.where(alive, rewards, xp.zeros_like(rewards))
            total = total + rewards * self.plan.gamma**time
            steps = steps + (1 if alive is None else xp.astype(alive, xp.int64))
            if found.over is None:
                states = found.states
            else:
                alive = ~found.over[0, ...] if alive is None else alive & ~found.over[0, ...]
                going = xp.expand_dims(alive, axis=0)
                states = xp.where(_beside(xp, going, found.states), found.states, states)
            uniforms = self.arrays.uniforms(size, rng)
            actions = xp.expand_dims(self._chosen(states[0, ...], uniforms), axis=0)
        return total, steps

    def _collected(self, chunk: int) -> ChunkRuns:
        """All runs of a chunk."""
        xp = self.xp
        parts = self.finished[chunk]
        ordered = parts[0][0] is not None
        numbers = xp.concat([part[0] for part in parts]) if ordered else None
        apart = []
        for pair in range(len(self.pairs)):
            columns = [
                xp.zeros_like(part[1][0, ...], dtype=xp.bool) if part[2] is None else part[2][pair]
                for part in parts
            ]
            apart.append(xp.concat(columns))
        queries = xp.concat([part[3] for part in parts]) if self.counted else None
        returns = xp.concat([part[1] for part in parts], axis=1)
        seen = self.arrays.host(xp.stack(self.seen[chunk]))
        extremes = (float(seen.min()), float(seen.max()))
        steps = self.branch_steps[chunk]
        return ChunkRuns(returns, tuple(apart), numbers, queries, extremes, steps)

    # Rows

    def _chunks(self) -> Iterator[tuple[int, slice]]:
        """The chunks that are in flight, and where their runs are."""
        start = 0
        for chunk, size in enumerate(self.sizes):
            if size:
                yield chunk, slice(start, start + size)
            start += size

    def _range(self, rows: slice) -> Any:
        return self.xp.arange(rows.start, rows.stop, dtype=self.xp.int64, device=self.arrays.device)


def _beside(xp: Any, mask: Any, values: Any) -> Any:
    """A mask with as many axes as the values that it is for."""
    return xp.reshape(mask, (*mask.shape, *(1,) * (len(values.shape) - len(mask.shape))))
