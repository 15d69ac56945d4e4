"""The one loop that plays branches of a simulator: a batch of runs, stepped together.

Several branches start at one state. While branches are at one state they read one outcome table; at
distinct states their tables are independent. With coupling="independent" distinct actions of a
state have tables of their own; with "common" there is one draw per time step for all branches,
wherever they are. A branch whose episode has ended earns nothing more. `Plan` says when branches
are one.

A batch is one or more chunks of runs. A chunk has random streams of its own and decides by itself
when its finished runs are dropped, so how many chunks are in flight changes no number. Branches are
the first axis of all arrays, runs the second; runs of a chunk stand side by side.

At time 0 a batch steps from the start. At every later time it first chooses actions and says which
branches are one by now (`_choose`), then drops finished runs (`_drop`), then steps (`_step`). A run
whose branches are all one is finished, but may be stepped on until its chunk drops it: its returns
go on growing, by the same in all branches.

**One more thing to record of every run** is a field of `Lanes`. `_start` gives it its first value,
`_choose` or `_step` changes it, and `_collected` puts it into a field of `Runs`. If it goes on
after all branches are one, `_rest` counts that part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.plans import Asked, Plan, Player, Runs
from jmdp_lib.simulators.vector_simulator import Arrays, Played, floating


class Lanes(NamedTuple):
    """The n runs that are being played.

    numbers: (n,) in their chunk, or None if no order is wanted. states: (m, n, ...).
    actions, returns: (m, n).
    same, one: for every pair of branches (n,), whether both are alive in one state; whether they
    also have one action. Both are as of the last choice of actions: the step that follows does not
    change them, and a pair that was one is not any more once it has ended.
    alive: (m, n), or None as long as no step says that episodes end. queries: (n,), or None.
    """

    numbers: Any
    states: Any
    actions: Any
    returns: Any
    same: tuple[Any, ...]
    one: tuple[Any, ...]
    alive: Any
    queries: Any

    def taken(self, arrays: Arrays, index: Any) -> Lanes:
        """Some of the runs."""

        def take(part: Any) -> Any:
            if part is None or isinstance(part, tuple):
                return part and tuple(map(take, part))
            return arrays.take(part, index, min(len(part.shape), 2) - 1)

        return Lanes(*map(take, self))

    def first(self, xp: Any) -> tuple[Any, Any, Any]:
        """States, actions and whether it is alive, (1, n, ...), of every run's first branch."""
        alive = xp.ones_like(self.returns, dtype=xp.bool) if self.alive is None else self.alive
        return self.states[:1, ...], self.actions[:1, ...], alive[:1, ...]

    def meet(self, xp: Any, i: int, j: int) -> Any:
        """(n,) whether two branches are alive in one state."""
        equal = self.states[i, ...] == self.states[j, ...]
        if len(self.states.shape) > 2:
            equal = xp.all(equal, axis=tuple(range(1, len(equal.shape))))
        return equal if self.alive is None else equal & self.alive[i, ...] & self.alive[j, ...]


class _Aside(NamedTuple):
    """Runs that were put aside at a time. apart: as in `Runs`."""

    lanes: Lanes
    apart: tuple[Any, ...]
    time: int


class Streams:
    """The random streams of a chunk: of its noise, its actions, and what follows a merger."""

    def __init__(self, player: BatchPlayer, seed: np.random.SeedSequence) -> None:
        self.noise = player.generator(checks.seed_sequence(seed, 0))
        self.choices = player.arrays.generator(checks.seed_sequence(seed, 1))
        self.later = player.generator(checks.seed_sequence(seed, 2))


def beside(xp: Any, mask: Any, values: Any) -> Any:
    """A mask with as many axes as the values that it is for."""
    missing = len(values.shape) - len(mask.shape)
    return xp.reshape(mask, (*mask.shape, *(1,) * missing)) if missing else mask


class BatchPlayer(Player):
    """What a batch needs to know of a simulator.

    Attributes:
        arrays: the library that states are arrays of.
        action_type: of arrays of actions.
        patience: finished runs of a chunk are dropped once they are one in so many.
    """

    arrays: Arrays
    action_type: Any = np.int64
    patience = 5

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream of the noise."""
        return self.arrays.generator(seed)

    def begin(self, plan: Plan, size: int, seed: np.random.SeedSequence) -> None:
        """Prepare for a chunk of so many runs."""

    @abstractmethod
    def start(self, width: int, size: int) -> Any:
        """States (m, n, ...) where all branches are at the start."""

    @abstractmethod
    def step(
        self, states: Any, actions: Any, alive: Any, together: Any, sources: list[tuple[Any, int]]
    ) -> Played:
        """One step: rewards, states and ends (m, n, ...); of branches that are not alive, any.

        alive: (m, n), or None if all are.
        together: for every pair (n,), whether two branches share a draw; None if all of them do.
        sources: the random stream of every chunk, and how many runs it has.
        """

    def choose(self, policy: Any, states: Any, alive: Any, uniforms: Any) -> tuple[Any, Any]:
        """Actions (k,) of a policy in states (k, ...), and whether an answer was bad, or None."""
        return policy.draw(self.arrays, states, uniforms)

    def suspects(self, found: Played) -> list[Any]:
        """Signs that something is wrong with a step, to be looked at in the end."""
        return []

    def play(
        self, plan: Plan, seeds: list[np.random.SeedSequence], sizes: Sequence[int], asked: Asked
    ) -> list[Runs]:
        return Batch(plan, self, seeds, sizes, asked).play()


class Batch:
    """Plays chunks together. sizes: runs of each chunk that are still in flight."""

    def __init__(
        self,
        plan: Plan,
        player: BatchPlayer,
        seeds: list[np.random.SeedSequence],
        sizes: Sequence[int],
        asked: Asked,
    ) -> None:
        self.plan = plan
        self.player = player
        self.asked = asked
        self.arrays = player.arrays
        self.xp = self.arrays.xp
        self.policies = [policy.on(self.arrays) for policy in plan.policies]
        self.streams = [Streams(player, seed) for seed in seeds]
        self.sizes = list(sizes)
        for size, seed in zip(sizes, seeds, strict=True):
            player.begin(plan, size, seed)
        self.width = len(plan.names)
        self.pairs = plan.pairs
        self.aside: list[list[_Aside]] = [[] for _ in sizes]
        self.extremes: list[list[Any]] = [[] for _ in sizes]  # of the rewards of every step
        self.episodes_end = False
        self.suspects: list[Any] = []
        self.branch_steps = self.width * sum(sizes)  # that were needed; the first one is known
        self.time = 0

    def play(self) -> list[Runs]:
        """All runs of all chunks, from the start to the horizon."""
        try:
            lanes = self._start()
            for time in range(self.plan.settings.horizon):
                self.time = time
                if time:
                    lanes = self._drop(self._choose(lanes))
                if not any(self.sizes):
                    break
                lanes = self._step(lanes)
            self.time = self.plan.settings.horizon
            for chunk, rows in self._chunks():
                self._finish(lanes, chunk, self._range(rows))
            return [self._collected(chunk) for chunk in range(len(self.sizes))]
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error

    def _start(self) -> Lanes:
        """Branches that follow policies draw their first actions by one number."""
        xp = self.xp
        total = sum(self.sizes)
        shape = (self.width, total)
        here = {"device": self.arrays.device}
        yes = xp.ones((total,), dtype=xp.bool, **here)
        no = xp.zeros((total,), dtype=xp.bool, **here)
        ordered = self.asked.whole or self.asked.counted
        numbers = [xp.arange(size, dtype=xp.int64, **here) for size in self.sizes]
        first = xp.astype(self.arrays.put(np.array([self.plan.first])), self.player.action_type)
        lanes = Lanes(
            numbers=xp.concat(numbers) if ordered else None,
            states=self.player.start(*shape),
            actions=xp.broadcast_to(first.T, shape) if self.plan.first else None,
            returns=xp.zeros(shape, dtype=xp.float64, **here),
            same=tuple(yes for _ in self.pairs),
            one=tuple(no for _ in self.pairs),
            alive=None,
            queries=xp.zeros((total,), dtype=xp.int64, **here) if self.asked.counted else None,
        )
        if self.plan.first:
            return lanes
        numbers = [self._uniforms(chunk, 1) for chunk, _ in self._chunks()]
        actions = self._actions(lanes, [xp.concat(numbers, axis=1)[0, ...]] * self.width)
        one = tuple(actions[i, ...] == actions[j, ...] for i, j in self.pairs)
        return lanes._replace(actions=actions, one=one)

    # One time step

    def _step(self, lanes: Lanes) -> Lanes:
        """Draw, step, and add the rewards up."""
        xp = self.xp
        common = self.plan.settings.coupling == "common"
        sources = [(self.streams[chunk].noise, self.sizes[chunk]) for chunk, _ in self._chunks()]
        together = None if common else self._sharing(lanes)
        found = self.player.step(lanes.states, lanes.actions, lanes.alive, together, sources)
        queries = self._asked(lanes) if self.asked.counted else None
        self._watch(found)
        alive = lanes.alive
        rewards = floating(xp, found.rewards)
        states = found.states
        if found.over is not None:
            before = ~found.over | found.over if alive is None else alive
            rewards = xp.where(before, rewards, xp.zeros_like(rewards))
            alive = before & ~found.over
            # A branch that has ended stays where it was: its step must still be a proper one.
            states = xp.where(beside(xp, alive, states), states, lanes.states)
        returns = lanes.returns + rewards * self.plan.settings.gamma**self.time
        return lanes._replace(states=states, returns=returns, alive=alive, queries=queries)

    def _sharing(self, lanes: Lanes) -> tuple[Any, ...]:
        """For every pair (n,): whether two branches share a draw, unless noise is common to all."""
        return lanes.one if self.plan.settings.coupling == "independent" else lanes.same

    def _watch(self, found: Played) -> None:
        """Collect the extremes of rewards by chunks, and signs that something is wrong."""
        for chunk, rows in self._chunks():
            rewards = found.rewards[:, rows]
            self.extremes[chunk] += [self.xp.min(rewards), self.xp.max(rewards)]
        self.episodes_end |= found.over is not None
        self.suspects += self.player.suspects(found)

    def _asked(self, lanes: Lanes) -> Any:
        """(n,) queries so far: one for every state, or for every action that is played alone."""
        queries = lanes.queries
        going = ~self._done(lanes)
        for j in range(self.width):
            first = going if lanes.alive is None else going & lanes.alive[j, ...]
            for (_, other), shared in zip(self.pairs, self._sharing(lanes), strict=True):
                first = first & ~shared if other == j else first
            queries = queries + self.xp.astype(first, self.xp.int64)
        return queries

    def _choose(self, lanes: Lanes) -> Lanes:
        """The next actions; which branches share a state by now, and which are one.

        Branches that come from one state-action choose by the number of the first of them.
        """
        xp = self.xp
        parts = [self._uniforms(chunk, self.width) for chunk, _ in self._chunks()]
        uniforms = parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)
        actions = self._actions(lanes, follow(self.xp, self.pairs, lanes.one, uniforms))
        same = tuple(lanes.meet(xp, i, j) for i, j in self.pairs)
        one = tuple(
            met & (actions[i, ...] == actions[j, ...])
            for (i, j), met in zip(self.pairs, same, strict=True)
        )
        return lanes._replace(actions=actions, same=same, one=one)

    def _uniforms(self, chunk: int, branches: int) -> Any:
        """(branches, n) numbers of a chunk."""
        size = self.sizes[chunk]
        drawn = self.arrays.uniforms(branches * size, self.streams[chunk].choices)
        return self.xp.reshape(drawn, (branches, size))

    def _actions(self, lanes: Lanes, uniforms: list[Any]) -> Any:
        """(m, n) what every policy chooses in its own states, by its own numbers (n,)."""
        xp = self.xp
        kinds = self.plan.kinds
        states, alive = lanes.states, lanes.alive
        if len(set(kinds)) == 1:  # all at once
            rows = self.width * uniforms[0].shape[0]
            flat = xp.reshape(states, (rows, *states.shape[2:]))
            living = alive if alive is None else xp.reshape(alive, (rows,))
            chosen = self._chosen(kinds[0], flat, living, xp.concat(uniforms))
            return xp.reshape(chosen, (self.width, -1))
        living = [None] * self.width if alive is None else alive
        return xp.stack(
            [
                self._chosen(kind, states[j, ...], living[j], uniforms[j])
                for j, kind in enumerate(kinds)
            ]
        )

    def _chosen(self, kind: int, states: Any, alive: Any, uniforms: Any) -> Any:
        """(k,) actions of a policy in states (k, ...)."""
        actions, suspect = self.player.choose(self.policies[kind], states, alive, uniforms)
        if suspect is not None:
            self.suspects.append(suspect)
        return self.xp.astype(actions, self.player.action_type, copy=False)

    # Runs that are finished

    def _done(self, lanes: Lanes) -> Any:
        """(n,) whether all branches of a run are one for good, or all have ended."""
        nothing = self.xp.zeros_like(lanes.returns[0, ...], dtype=self.xp.bool)
        done = nothing if lanes.alive is None else ~self.xp.any(lanes.alive, axis=0)
        if not self.plan.one_for_good or self.width == 1:
            return done
        return reduce(lambda x, y: x & y, lanes.one[: self.width - 1]) | done

    def _drop(self, lanes: Lanes) -> Lanes:
        """Take the finished runs out of every chunk in which they are many enough."""
        xp = self.xp
        done = self._done(lanes)
        chunks = list(self._chunks())
        counts = [xp.count_nonzero(done[rows]) for _, rows in chunks]
        kept = []
        due = False
        for (chunk, rows), count in zip(
            chunks, self.arrays.host(xp.stack(counts)).tolist(), strict=True
        ):
            self.branch_steps += self.width * (self.sizes[chunk] - count)
            if self.player.patience * count < self.sizes[chunk]:
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
        apart = tuple(self.xp.zeros_like(one) for one in aside.one)
        if self.time == self.plan.settings.horizon:
            apart = tuple(self._apart(aside, *pair) for pair in enumerate(self.pairs))
        self.aside[chunk].append(_Aside(aside, apart, self.time))

    def _apart(self, lanes: Lanes, number: int, pair: tuple[int, int]) -> Any:
        """(n,) whether two branches can still differ after the horizon."""
        i, j = pair
        apart = ~lanes.one[number]
        if self.plan.kinds[i] != self.plan.kinds[j]:
            apart = self.xp.ones_like(apart)
        if lanes.alive is None:
            return apart
        return apart & (lanes.alive[i, ...] | lanes.alive[j, ...])

    def _collected(self, chunk: int) -> Runs:
        """All runs of a chunk, in the order in which they finished."""
        xp = self.xp
        parts = self.aside[chunk]
        aside = [part.lanes for part in parts]
        returns = xp.concat([lanes.returns for lanes in aside], axis=1)
        ordered = aside[0].numbers is not None
        queries = xp.concat([lanes.queries for lanes in aside]) if self.asked.counted else None
        if self.asked.whole and self.plan.one_for_good:
            later, steps = self._rest(parts, chunk)
            returns = returns + later
            queries = None if queries is None else queries + steps
        seen = self.host(self.extremes[chunk])
        if self.episodes_end:
            seen = np.append(seen, 0.0)
        return Runs(
            returns=returns,
            apart=tuple(map(xp.concat, zip(*(part.apart for part in parts), strict=True))),
            numbers=xp.concat([lanes.numbers for lanes in aside]) if ordered else None,
            queries=queries,
            extremes=(float(seen.min()), float(seen.max())),
        )

    def _rest(self, parts: list[_Aside], chunk: int) -> tuple[Any, Any]:
        """(1, N) what runs earn after their branches are one, and (N,) how many steps that takes.

        Runs that became one earlier than others begin earlier.
        """
        xp = self.xp
        rng = self.streams[chunk].later
        firsts = zip(*(part.lanes.first(xp) for part in parts), strict=True)
        states, actions, alive = (xp.concat(each, axis=1) for each in firsts)
        times = [xp.full_like(part.lanes.returns[:1, ...], part.time) for part in parts]
        begin = xp.concat(times, axis=1)
        total = xp.zeros_like(begin)
        steps = xp.zeros_like(begin, dtype=xp.int64)
        size = begin.shape[1]
        for time in range(min(part.time for part in parts), self.plan.settings.horizon):
            self.time = time
            going = alive & (begin <= time)
            found = self.player.step(states, actions, going, (), [(rng, size)])
            rewards = floating(xp, found.rewards)
            earned = xp.where(going, rewards, xp.zeros_like(rewards))
            total = total + earned * self.plan.settings.gamma**time
            steps = steps + xp.astype(going, xp.int64)
            if found.over is not None:
                alive = alive & ~(going & found.over)
                going = going & alive
                if not bool(xp.any(alive)):
                    break
            states = xp.where(beside(xp, going, states), found.states, states)
            uniforms = self.arrays.uniforms(size, rng)
            chosen = self._chosen(self.plan.kinds[0], states[0, ...], going[0, ...], uniforms)
            actions = xp.where(going, chosen[None, ...], actions)
        return total, steps[0, ...]

    # Rows

    def _chunks(self) -> Iterator[tuple[int, slice]]:
        """The chunks that are in flight, and where their runs are."""
        start = 0
        for chunk, size in enumerate(self.sizes):
            if size:
                yield chunk, slice(start, start + size)
            start += size

    def host(self, numbers: list[Any]) -> Any:
        """Numbers that were left on the device, as an array of NumPy."""
        found = self.arrays.host(self.xp.stack(numbers)) if numbers else np.zeros(0)
        return found.astype(np.float64)

    def _range(self, rows: slice) -> Any:
        return self.xp.arange(rows.start, rows.stop, dtype=self.xp.int64, device=self.arrays.device)


def follow(xp: Any, pairs: list[tuple[int, int]], together: tuple[Any, ...], values: Any) -> Any:
    """m rows of values (m, n, ...): a branch takes over those of the first it is together with.

    together: for every pair (n,).
    """
    rows = [values[j, ...] for j in range(values.shape[0])]
    for (i, j), both in reversed([*zip(pairs, together, strict=True)]):
        rows[j] = xp.where(beside(xp, both, rows[j]), rows[i], rows[j])
    return rows
