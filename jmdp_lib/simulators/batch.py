"""The one loop that plays branches of a simulator: a batch of runs, stepped together.

Several branches start at one state. While branches are at one state they read one outcome table; at
distinct states their tables are independent. With coupling="independent" distinct actions of a
state have tables of their own; with "common" there is one draw per time step for all branches,
wherever they are. A branch whose episode has ended earns nothing more. One that a time limit cuts
off is played no further either, but nobody knows what it would have earned. `Plan` says when
branches are one.

What a batch knows of a branch, or of a pair of branches, is a *column*: a number for each of its
runs. Columns are arrays (`Arrays`), for simulators that step many states at once; all others are
played one run at a time, and their columns are plain Python numbers and states (`rows.OneRun`): a
call of NumPy for a single number takes as long as the whole step of a small simulator.

At every time but the first a batch chooses actions (`choose`) and says which branches are one by
now (`_act`); then it drops finished runs (`_finished`), and steps (`_step`). A run whose branches
are all one is finished. It stays until a fifth of the runs are, since to drop them copies all the
others; what it earns until then, all its branches earn. Where whole runs are asked for it goes on.

**One more thing to record of every run** is a list of columns of `BatchPlayer`: `_act` or `_step`
changes them, `_recorded` and `_set_aside` name them, and `Runs` gives them to others.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from operator import and_, or_
from types import SimpleNamespace
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import randomness
from jmdp_lib.checks import Floats
from jmdp_lib.model import JOINT
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.policies import policy_array, policy_matrix
from jmdp_lib.simulators.plans import Chunk, Player, Runs

Columns = Sequence[Any]
"""Of all branches, or of all pairs."""
_PATIENCE = 5  # finished runs are dropped once they are one in so many


@dataclass(frozen=True)
class Arrays:
    """Columns (n,) or (n, d) of n runs, of an array library and on a device.

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
        """Of uniform numbers: float64, or float32 on a GPU, where it counts."""
        return "float32" if self.on_gpu else "float64"

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream: of torch on its device, of NumPy for all other libraries."""
        if not self.is_torch:
            return np.random.Generator(np.random.SFC64(seed))  # twice as fast as the default
        (word,) = seed.generate_state(1, np.uint64).tolist()
        return self.xp.Generator(device=self.device).manual_seed(word >> 1)

    numbers = generator

    def zeros(self, size: int) -> Any:
        return self.xp.zeros(size, dtype=self.xp.float64, device=self.device)

    def uniforms(self, width: int, size: int, numbers: Any) -> list[Any]:
        shape = (width, size)
        if not self.is_torch:
            return self.rows(self.put(numbers.random(shape)))
        kind = getattr(self.xp, self.number_type)
        return self.rows(self.xp.rand(shape, generator=numbers, device=self.device, dtype=kind))

    def where(self, mask: Any, one: Any, other: Any) -> Any:
        missing = len(other.shape) - 1
        beside = self.xp.reshape(mask, (-1, *(1,) * missing)) if missing else mask
        return self.xp.where(beside, one, other)

    def equal(self, one: Any, other: Any) -> Any:
        alike = one == other
        return self.xp.all(alike, axis=1) if len(alike.shape) > 1 else alike

    def count(self, mask: Any) -> int:
        return int(self.xp.count_nonzero(mask))

    def joined(self, parts: Sequence[Columns]) -> Columns:
        if len(parts) == 1:
            return parts[0]
        return [self.xp.concat(column) for column in zip(*parts, strict=True)]

    def follow(self, together: Columns, values: Columns) -> Columns:
        taken = [*values]
        pairs = combinations(range(len(taken)), 2)
        for (i, j), both in zip(pairs, together, strict=True):
            taken[j] = self.where(both, taken[i], taken[j])
        return taken

    def rows(self, table: Any) -> list[Any]:
        """(m, n, ...) as m columns."""
        return [table[j, ...] for j in range(table.shape[0])]

    def take(self, array: Any, index: Any) -> Any:
        """Entries of an array. No index is negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=0)
        return self.xp.index_select(array, 0, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array as one of this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array as one of NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)


Played = tuple[Any, Any, Any, Any, Any]
"""What a step returned, by branches: rewards, next states, whether episodes ended, or None, and
which of these a time limit cut off, or None; and how many queries were made, if that is known."""


class BatchPlayer(Player):
    """Plays the runs of a chunk, as a copy of itself, which has these attributes:

    states, actions, alive: of every branch that is played; alive: whether its episode goes on.
    same, one: for every pair of them, whether both are alive in one state, and whether they also
    have one action, as of the last choice of actions. returns, open: of every branch, and apart: of
    every pair, as in `Runs`. done: which runs are finished, but not dropped. size: of the others.
    copies: for how many branches each of those that are played stands.

    parts: what is recorded of runs that were dropped. whole: whether none of them was finished
    because its branches were one. steps, queries: of all runs. extremes: the lowest and the highest
    reward.

    Attributes:
        columns: what they are made of.
        at_once: whether all runs of a chunk are played together, or one by one.
    """

    columns: Any
    at_once = False
    coupling = JOINT
    states: Any
    actions: Any
    alive: Any
    whole = True
    steps = 0
    queries = 0
    episodes_end = False
    extremes = (math.inf, -math.inf)

    def play(self, chunk: Chunk) -> Runs:
        return copy.copy(self)._play(chunk)

    def _play(self, chunk: Chunk) -> Runs:
        plan = self.plan = chunk.plan
        self.coupling = plan.settings.coupling
        self.counted = chunk.counted
        self.limits = chunk.limits or self.limits
        self.noise = self.columns.generator(randomness.part(chunk.seed, 0))
        self.choices = self.columns.numbers(randomness.part(chunk.seed, 1))
        self.width = len(plan.names)
        self.goes_on = chunk.whole
        self.parts: list[Columns] = []
        self.begin(chunk)
        for size in [chunk.size] if self.at_once else [1] * chunk.size:
            self._play_runs(size)
            self.parts.append(self._recorded())
        low, high = self.extremes
        if self.episodes_end:
            low, high = min(low, 0.0), max(high, 0.0)
        return Runs(
            columns=self.columns.joined(self.parts),
            width=self.width,
            whole=self.whole,
            steps=self.steps,
            queries=self.queries,
            extremes=(low, high),
        )

    def begin(self, chunk: Chunk) -> None:
        """Get ready for a chunk."""

    @abstractmethod
    def starts(self, width: int, size: int) -> Columns:
        """The states of so many branches of new runs."""

    @abstractmethod
    def first(self, actions: Sequence[Any], size: int) -> Columns:
        """The first actions of branches that are told them."""

    @abstractmethod
    def choose(self, uniforms: Columns) -> Columns:
        """The actions of all branches by their policies and uniform numbers.

        Where a branch is not alive, any action will do.
        """

    @abstractmethod
    def step(self, sharing: Columns) -> Played:
        """One step of all branches: from their states, by their actions.

        Of branches that are not alive, anything may be returned that others might be.
        sharing: for every pair, whether two branches are at one state and, if branches at one
        state share no draw, have one action: they share a draw.
        """

    def _play_runs(self, size: int) -> None:
        """New runs, from the start to the horizon."""
        plan = self.plan
        self.size = size
        self.time = 0
        self.pairs = plan.pairs
        self.policies = [plan.policies[kind] for kind in plan.kinds]
        self.meetings_end = plan.one_for_good and bool(self.pairs)
        self.meetings_end &= not (self.goes_on and self.at_once)
        self.copies = 1
        self.states = self.starts(self.width, size)
        nothing = self.columns.zeros(size)
        self.returns = self.open = [nothing] * self.width
        self.apart = [nothing] * len(self.pairs)
        self.alive = [nothing == 0.0] * self.width
        self.done: Any = False
        try:
            self._act(self._first())
            for time in range(plan.settings.horizon):
                self.time = time
                if time:
                    uniforms = self.columns.uniforms(self.width, self.size, self.choices)
                    self._act(self.choose(self.columns.follow(self.one, uniforms)))
                    if self._finished():
                        return
                self._step()
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        self._leave_open(self.alive)

    def _recorded(self) -> list[Any]:
        """The columns of `Runs`."""
        return [*self.returns, *self.open, *self.apart]

    def _first(self) -> Columns:
        """The first actions; branches that follow policies draw them by one number."""
        if self.plan.compared == "policy":
            return self.choose(self.columns.uniforms(1, self.size, self.choices) * self.width)
        return self.first(self.plan.names, self.size)

    def _act(self, actions: Columns) -> None:
        """Take actions: which branches share a state by now, and which are one.

        Branches from one state-action chose by the number of the first.
        """
        self.actions = actions
        states = self.states
        equal = self.columns.equal
        same: list[Any] = []
        one: list[Any] = []
        for i, j in self.pairs:
            met = equal(states[i], states[j])
            if self.episodes_end:
                met = met & self.alive[i] & self.alive[j]
            same.append(met)
            one.append(met & (actions[i] == actions[j]))
        self.same = same
        self.one = one

    def _finished(self) -> bool:
        """Whether all runs are; those that are finished are dropped if they are many enough.

        Finished are those whose branches have all ended, or are one for good.
        """
        done: Any = False
        if self.meetings_end:
            done = reduce(and_, self.one[: self.width - 1])
            if self.goes_on and done:
                self._merge()
                return False
            if done is not False:
                self.whole = self.whole and not self.columns.count(done)
        if self.episodes_end:
            done = done | (reduce(or_, self.alive) ^ True)
        self.done = done
        if done is False:  # the usual case of one run, kept fast
            return False
        count = self.columns.count(done)
        if count < self.size <= _PATIENCE * count:
            self._set_aside()
            return False
        return count == self.size

    def _merge(self) -> None:
        """Play on the first branch of a run alone: it stands for all others."""
        self.states = self.states[:1]
        self.actions = self.actions[:1]
        self.alive = self.alive[:1]
        self.policies = self.policies[:1]
        self.pairs = self.same = self.one = []
        self.meetings_end = False
        self.copies = self.width

    def _set_aside(self) -> None:
        """Keep what is known of finished runs, and go on with the others."""
        take = self.columns.take
        (finished,) = self.columns.xp.nonzero(self.done)
        (kept,) = self.columns.xp.nonzero(self.done ^ True)
        self.parts.append([take(column, finished) for column in self._recorded()])
        known = (self.states, self.actions, self.alive, self.returns, self.open, self.apart)
        columns = [[take(column, kept) for column in each] for each in known]
        self.states, actions, self.alive, self.returns, self.open, self.apart = columns
        self.size = kept.shape[0]
        self.done = False
        self._act(actions)

    def _step(self) -> None:
        """Draw, step, and add the rewards up."""
        self.steps += self.size
        sharing = self.same if self.coupling.at_one_state else self.one
        rewards, states, over, cut, queries = self.step(sharing)
        if self.counted:
            self.queries += self._counted(sharing) if queries is None else queries
        if over is not None:
            self.episodes_end = True
            alive = self.alive
            where = self.columns.where
            paid = zip(alive, rewards, strict=True)
            rewards = [where(lives ^ True, 0.0, reward) for lives, reward in paid]
            if cut is not None:
                self._leave_open([*map(and_, alive, cut)])
            self.alive = [lives & (ends ^ True) for lives, ends in zip(alive, over, strict=True)]
            # A branch that has ended stays where it was: its step must still be a proper one.
            moves = zip(self.alive, states, self.states, strict=True)
            states = [where(*move) for move in moves]
        self.states = states
        weight = self.plan.settings.gamma**self.time
        earned = zip(self.returns, rewards * self.copies, strict=True)
        self.returns = [before + weight * reward for before, reward in earned]

    def _counted(self, sharing: Columns) -> int:
        """The number of queries: one for every state, or for every action that is played alone."""
        first = [lives & (self.done ^ True) for lives in self.alive]
        for (_, j), shared in zip(self.pairs, sharing, strict=True):
            first[j] = first[j] & (shared ^ True)
        return sum(map(self.columns.count, first))

    def _leave_open(self, stopped: list[Any]) -> None:
        """After this step branches are cut off: gaps stay open, unless they are one."""
        where = self.columns.where
        gamma, horizon, _ = self.plan.settings
        weight = gamma ** (self.time + 1)
        if gamma < 1.0 or self.time + 1 < horizon:
            left = zip(stopped * self.copies, self.open, strict=True)
            self.open = [where(each, weight, before) for each, before in left]
        if not self.pairs:  # or all branches are one for good
            return
        kinds = self.plan.kinds
        apart = []
        for (i, j), one, before in zip(self.pairs, self.one, self.apart, strict=True):
            cut = (stopped[i] | stopped[j]) & (before == 0.0)
            if kinds[i] == kinds[j]:
                cut = cut & (one ^ True)
            apart.append(where(cut, weight, before))
        self.apart = apart


def policy_table(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy) and not isinstance(policy, np.ndarray):
        policy = Arrays.of(policy).host(policy)
    shown = policy_array(policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    sizes: Any = SimpleNamespace(num_states=count, num_actions=num_actions)
    return policy_matrix(sizes, policy)
