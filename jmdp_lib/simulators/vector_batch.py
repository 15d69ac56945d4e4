"""A batch of runs of a `VectorSimulator`, stepped together, by the rules that `branches` states.

A batch is one or more chunks of runs. A chunk has random streams of its own and decides by itself
when its finished runs are dropped, so how many chunks are in flight changes no number. Branches are
the first axis of all arrays, runs the second; runs of a chunk stand side by side.

At time 0 a batch steps from the start. At every later time it first chooses actions and says which
branches are one by now (`_choose`), then drops finished runs (`_drop`), then steps (`_step`). A run
whose branches are all one is finished, but is stepped on until its chunk drops it: its returns go
on growing, by the same in all branches. What must not go on asks `_done`, as `_asked` does.

**One more thing to record of every run.** It is a field of `Lanes`, which `Lanes.taken` takes along
when runs are dropped. `_start` gives it its first value, `_choose` or `_step` changes it, and
`_collected` puts it into a field of `ChunkRuns`, for all runs of a chunk. If it goes on after all
branches are one, `_rest` counts that part. `VectorBranches.play_some` hands single runs to
decisions, and `estimates` sums up chunks: let these two read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.vector_runs import (
    BatchPlan,
    ChunkRuns,
    Finished,
    Lanes,
    Streams,
    VectorPolicy,
    beside,
)
from jmdp_lib.simulators.vector_simulator import (
    Arrays,
    Played,
    check_pure,
    check_values,
    drawn,
    each,
    each_of,
    floating,
    played,
    widened,
)

_DONE = 5  # finished runs of a chunk are dropped once they are a fifth of it


class Batch:
    """Plays chunks together. sizes: runs of each chunk that are still in flight.

    whole: branches that have become one are played on until the horizon. counted: queries are.
    careful: all values of every step are looked at, and the first bad row is named.
    """

    def __init__(
        self,
        plan: BatchPlan,
        seeds: list[np.random.SeedSequence],
        sizes: list[int],
        whole: bool,
        counted: bool,
        careful: bool,
    ) -> None:
        self.plan = plan
        self.arrays = Arrays.of(plan.state)
        self.xp = self.arrays.xp
        self.policy = plan.policy.on(self.arrays)
        self.streams = [Streams(self.arrays, seed) for seed in seeds]
        self.sizes = sizes
        self.whole = whole
        self.counted = counted
        self.careful = careful
        self.width = len(plan.actions)
        self.pairs = list(combinations(range(self.width), 2))
        self.finished: list[list[Finished]] = [[] for _ in sizes]
        self.extremes: list[list[Any]] = [[] for _ in sizes]  # of the rewards of every step
        self.episodes_end = False
        self.suspects: list[Any] = []
        self.branch_steps = [self.width * size for size in sizes]  # the first step is known
        self.time = 0
        # Small states have small actions: then less is moved.
        integral_states = self.xp.isdtype(plan.state.dtype, "integral")
        self.action_type = plan.state.dtype if integral_states else self.xp.int64

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

    def is_suspect(self) -> bool:
        """Whether a number that was played cannot be."""
        low, high = widened(self.plan.limits)
        seen = [self._host(extremes) for extremes in self.extremes]
        inside = all((low <= part).all() and (part <= high).all() for part in seen)
        return not inside or bool(self._host(self.suspects).any())

    def _start(self) -> Lanes:
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
        return Lanes(
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

    def _step(self, lanes: Lanes) -> Lanes:
        """Draw, step, and add the rewards up."""
        found = self._played(lanes.states, lanes.actions, self._noise(lanes))
        alive = lanes.alive
        rewards = floating(self.xp, found.rewards)
        states = found.states
        queries = self._asked(lanes) if self.counted else None
        if found.over is not None:
            before = ~found.over | found.over if alive is None else alive
            rewards = self.xp.where(before, rewards, self.xp.zeros_like(rewards))
            alive = before & ~found.over
            # A branch that has ended stays where it was: its step must still be a proper one.
            states = self.xp.where(beside(self.xp, alive, states), states, lanes.states)
        self._watch(found)
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
        except Exception as error:
            why = f"step(states, actions, noise) failed: {error!r}"
            raise SimulatorError(f"time step {self.time + 1}: {why}") from error
        over = None if found.over is None else self.xp.reshape(found.over, shape)
        following = self.xp.reshape(found.states, (*shape, *states.shape[2:]))
        return Played(self.xp.reshape(found.rewards, shape), following, over)

    def _look(self, states: Any, actions: Any, noise: Any, found: Played) -> None:
        """Refuse a step that is wrong in a row."""
        limits = self.plan.limits
        check_values(self.arrays, states, actions, found, limits, self.plan.num_states)
        check_pure(self.plan.simulator, self.arrays, states, actions, noise)

    def _noise(self, lanes: Lanes) -> Any:
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
        sharing = self._sharing(lanes)
        return each(lambda x: xp.concat(self._follow(sharing, x)), noise)

    def _sharing(self, lanes: Lanes) -> tuple[Any, ...]:
        """For every pair (n,): whether two branches share a draw, unless noise is common to all."""
        return lanes.one if self.plan.coupling == "independent" else lanes.same

    def _follow(self, together: tuple[Any, ...], values: Any) -> list[Any]:
        """m rows of values (m, n, ...): a branch takes over those of the first it is together with.

        together: for every pair (n,).
        """
        rows = [values[j, ...] for j in range(self.width)]
        for (i, j), both in reversed([*zip(self.pairs, together, strict=True)]):
            rows[j] = self.xp.where(beside(self.xp, both, rows[j]), rows[i], rows[j])
        return rows

    def _by_branch(self, noise: Any, branches: int, size: int) -> Any:
        return each(lambda x: self.xp.reshape(x, (branches, size, *x.shape[1:])), noise)

    def _watch(self, found: Played) -> None:
        """Collect the extremes of rewards by chunks, and signs that something is wrong."""
        xp = self.xp
        for chunk, rows in self._chunks():
            rewards = found.rewards[:, rows]
            self.extremes[chunk] += [xp.min(rewards), xp.max(rewards)]
        self.episodes_end |= found.over is not None
        count = self.plan.num_states
        if count is not None:
            self.suspects.append((xp.min(found.states) < 0) | (xp.max(found.states) >= count))
        elif xp.isdtype(found.states.dtype, "real floating"):
            self.suspects.append(xp.any(xp.isnan(found.states)))

    def _asked(self, lanes: Lanes) -> Any:
        """(n,) queries so far: one for every place, or for every action that is played alone."""
        xp = self.xp
        sharing = self._sharing(lanes)
        queries = lanes.queries
        going = ~self._done(lanes)
        for j in range(self.width):
            first = going if lanes.alive is None else going & lanes.alive[j, ...]
            for (_, other), shared in zip(self.pairs, sharing, strict=True):
                first = first & ~shared if other == j else first
            queries = queries + xp.astype(first, xp.int64)
        return queries

    def _choose(self, lanes: Lanes) -> Lanes:
        """The next actions; which branches share a state by now, and which are one."""
        xp = self.xp
        parts = [
            xp.reshape(self._uniforms(chunk, rows), (self.width, rows.stop - rows.start))
            for chunk, rows in self._chunks()
        ]
        uniforms = parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)
        actions = self._next_actions(lanes, uniforms)
        same = tuple(lanes.meet(xp, i, j) for i, j in self.pairs)
        one = tuple(
            met & (actions[i, ...] == actions[j, ...])
            for (i, j), met in zip(self.pairs, same, strict=True)
        )
        return lanes._replace(actions=actions, same=same, one=one)

    def _next_actions(self, lanes: Lanes, uniforms: Any) -> Any:
        """(m, n) actions by numbers (m, n): branches that are one choose as the first of them."""
        xp = self.xp
        numbers = xp.reshape(uniforms, (-1,))
        states = xp.reshape(lanes.states, (numbers.shape[0], *lanes.states.shape[2:]))
        own = self._chosen(self.policy, states, numbers)
        return xp.stack(self._follow(lanes.one, xp.reshape(own, (self.width, -1))))

    def _uniforms(self, chunk: int, rows: slice) -> Any:
        size = self.width * (rows.stop - rows.start)
        return self.arrays.uniforms(size, self.streams[chunk].choices)

    def _chosen(self, policy: VectorPolicy, states: Any, uniforms: Any) -> Any:
        """(n,) actions of a policy in states (n, ...)."""
        try:
            if self.careful:
                policy.check(self.arrays, states)
            actions, suspect = policy.draw(self.arrays, states, uniforms)
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        except Exception as error:
            why = f"policy(states) failed: {error!r}"
            raise SimulatorError(f"time step {self.time + 1}: {why}") from error
        if suspect is not None:
            self.suspects.append(suspect)
        return self.xp.astype(actions, self.action_type, copy=False)

    # Runs that are finished

    def _done(self, lanes: Lanes) -> Any:
        """(n,) whether all branches of a run are one, or all have ended."""
        xp = self.xp
        with_first = [one for (i, _), one in zip(self.pairs, lanes.one, strict=True) if i == 0]
        merged = reduce(lambda x, y: x & y, with_first) if with_first else None
        if lanes.alive is None:
            nothing = xp.zeros_like(lanes.returns[0, ...], dtype=xp.bool)
            return nothing if merged is None else merged
        ended = ~xp.any(lanes.alive, axis=0)
        return ended if merged is None else merged | ended

    def _drop(self, lanes: Lanes) -> Lanes:
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
        return lanes.taken(self.arrays, xp.concat(kept)) if due else lanes

    def _finish(self, lanes: Lanes, chunk: int, index: Any) -> None:
        """Put runs of a chunk aside."""
        aside = lanes.taken(self.arrays, index)
        apart = self._apart(aside) if self.time == self.plan.horizon else None
        self.finished[chunk].append(Finished(aside, apart, self.time))

    def _apart(self, lanes: Lanes) -> tuple[Any, ...]:
        """For every pair (n,): whether two branches can still differ after the horizon."""
        alive = lanes.alive
        if alive is None:
            return tuple(~one for one in lanes.one)
        return tuple(
            ~one & (alive[i, ...] | alive[j, ...])
            for (i, j), one in zip(self.pairs, lanes.one, strict=True)
        )

    def _collected(self, chunk: int) -> ChunkRuns:
        """All runs of a chunk."""
        xp = self.xp
        parts = self.finished[chunk]
        aside = [part.lanes for part in parts]
        ordered = aside[0].numbers is not None
        numbers = xp.concat([lanes.numbers for lanes in aside]) if ordered else None
        apart = tuple(
            xp.concat([part.apart_at_horizon(xp, pair) for part in parts])
            for pair in range(len(self.pairs))
        )
        returns = xp.concat([lanes.returns for lanes in aside], axis=1)
        queries = xp.concat([lanes.queries for lanes in aside]) if self.counted else None
        if self.whole:
            later, steps = self._rest(parts, chunk)
            returns = returns + xp.expand_dims(later, axis=0)
            queries = None if queries is None else queries + steps
        seen = self._host(self.extremes[chunk])
        if self.episodes_end:
            seen = np.append(seen, 0.0)
        return ChunkRuns(
            returns=returns,
            apart=apart,
            numbers=numbers,
            queries=queries,
            extremes=(float(seen.min()), float(seen.max())),
            branch_steps=self.branch_steps[chunk],
        )

    def _rest(self, parts: list[Finished], chunk: int) -> tuple[Any, Any]:
        """(N,) what runs earn after their branches have become one, and how many steps that takes.

        Runs that became one earlier than others begin earlier.
        """
        xp = self.xp
        rng = self.streams[chunk].later
        states = xp.concat([part.lanes.states[0, ...] for part in parts])
        actions = xp.concat([part.lanes.actions[0, ...] for part in parts])
        size = actions.shape[0]
        begin = xp.concat(
            [
                xp.full_like(part.lanes.actions[0, ...], 0, dtype=xp.int64) + part.time
                for part in parts
            ]
        )
        alive = xp.concat([part.lanes.all_alive(xp) for part in parts])
        total = xp.zeros((size,), dtype=xp.float64, device=self.arrays.device)
        steps = xp.zeros_like(begin)
        for time in range(min(part.time for part in parts), self.plan.horizon):
            going = alive & (begin <= time)
            found = self._alone(states, actions, drawn(self.plan.simulator, size, rng))
            earned = xp.where(going, found.rewards, xp.zeros_like(found.rewards))
            total = total + earned * self.plan.gamma**time
            steps = steps + xp.astype(going, xp.int64)
            if found.over is not None:
                alive = alive & ~(going & found.over)
                going = going & alive
            states = xp.where(beside(xp, going, states), found.states, states)
            chosen = self._chosen(self.policy, states, self.arrays.uniforms(size, rng))
            actions = xp.where(going, chosen, actions)
        return total, steps

    def _alone(self, states: Any, actions: Any, noise: Any) -> Played:
        """What a step makes of states (n, ...)."""
        expand = self.xp.expand_dims
        found = self._played(expand(states, axis=0), expand(actions, axis=0), noise)
        over = None if found.over is None else found.over[0, ...]
        return Played(floating(self.xp, found.rewards)[0, ...], found.states[0, ...], over)

    # Rows

    def _chunks(self) -> Iterator[tuple[int, slice]]:
        """The chunks that are in flight, and where their runs are."""
        start = 0
        for chunk, size in enumerate(self.sizes):
            if size:
                yield chunk, slice(start, start + size)
            start += size

    def _host(self, numbers: list[Any]) -> Any:
        """Numbers that were left on the device, as an array of NumPy."""
        found = self.arrays.host(self.xp.stack(numbers)) if numbers else np.zeros(0)
        return found.astype(np.float64)

    def _range(self, rows: slice) -> Any:
        return self.xp.arange(rows.start, rows.stop, dtype=self.xp.int64, device=self.arrays.device)
