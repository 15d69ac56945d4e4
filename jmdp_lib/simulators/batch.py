"""The one loop that plays branches of a simulator: a batch of runs, stepped together.

Several branches start at one state. While branches are at one state they read one outcome table; at
distinct states their tables are independent. With coupling="independent" distinct actions of a
state have tables of their own; with "common" there is one draw per time step for all branches,
wherever they are. A branch whose episode has ended earns nothing more. One that a time limit cuts
off is played no further either, but nobody knows what it would have earned. `Plan` says when
branches are one.

Branches are the first axis of all arrays, runs the second. At time 0 a batch steps from the start.
At every later time it first chooses actions (`_next`) and says which branches are one by now
(`_act`), then drops finished runs (`_drop`), then steps (`_step`). A run whose branches are all one
is finished, unless whole runs are asked for. It stays until a fifth of the runs are finished, since
to drop them copies all the others; what it earns until then, all its branches earn.

Many batches have few runs. Then a call of NumPy takes about as long as the work in it, so a time
step makes few calls: those that serve ends of episodes are made once an episode has ended.

**One more thing to record of every run** is an attribute of `Batch`: `_act` or `_step` changes it,
`_drop` takes finished runs out of it, and `play` puts it into a field of `Runs`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from operator import and_, or_
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import Coupling
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.plans import Chunk, Player, Runs

_PATIENCE = 5  # finished runs are dropped once they are one in so many


@dataclass(frozen=True)
class Arrays:
    """An array library and a device. xp: the library's functions, by the names of the standard.

    What the standard does not say, such as random numbers, or says too slowly, is a method here.
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
        """Of uniform numbers."""
        return "float32" if self.on_gpu else "float64"

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream: of torch on its device, of NumPy for all other libraries."""
        if not self.is_torch:
            return np.random.Generator(np.random.SFC64(seed))  # twice as fast as the default
        (word,) = seed.generate_state(1, np.uint64).tolist()
        return self.xp.Generator(device=self.device).manual_seed(word >> 1)

    def uniforms(self, shape: tuple[int, ...], rng: Any) -> Any:
        """Uniform numbers in [0, 1): float64, or float32 on a GPU, where it counts."""
        if not self.is_torch:
            return self.put(rng.random(shape))
        kind = getattr(self.xp, self.number_type)
        return self.xp.rand(shape, generator=rng, device=self.device, dtype=kind)

    def take(self, array: Any, index: Any, axis: int = 0) -> Any:
        """Rows of an array, or columns. No index is negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=axis)
        return self.xp.index_select(array, axis, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array as one of this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array as one of NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)


class Played(NamedTuple):
    """What a step returned. rewards: (m, n), float64. next_states: (m, n, ...).

    over: (m, n), or None. cut: (m, n), which of those that are over a time limit cut off, or None.
    """

    rewards: Any
    next_states: Any
    over: Any = None
    cut: Any = None


class BatchPlayer(Player):
    """What a batch asks of a simulator.

    arrays: the library that states are arrays of. extremes: of the batch that is played, the
    smallest and the largest rewards of every step.
    """

    arrays: Arrays
    extremes: list[float]
    action_type: Any = np.int64
    coupling: Coupling

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream of the noise."""
        return self.arrays.generator(seed)

    def number_of(self, action: Any) -> int:
        """Of an action that was checked."""
        return int(action)

    def play(self, chunk: Chunk) -> Runs:
        player = copy.copy(self)
        player.limits = chunk.limits or self.limits
        player.extremes = []
        return Batch(player, chunk).play()

    @abstractmethod
    def begin(self, chunk: Chunk) -> Any:
        """States (m, n, ...) of a new batch of n runs: all branches are at the start."""

    @abstractmethod
    def choose(self, policies: Sequence[Any], states: Any, alive: Any, uniforms: Any) -> Any:
        """Actions (m, n) by the policy of every branch, in states (m, n, ...).

        alive: (m, n); where one is not, any action will do. uniforms: m rows of numbers (n,).
        """

    @abstractmethod
    def step(self, states: Any, actions: Any, going: Any, sharing: Any, rng: Any) -> Played:
        """One step: rewards, states and ends (m, n, ...).

        going: (m, n); of branches that are not, anything may be returned that others might be.
        sharing: for every pair (n,), whether two branches are at one state and, if branches at one
        state share no draw, have one action: they share a draw.
        """


class Batch:
    """Plays runs together.

    states: (m, n, ...) of the n runs that are being played. actions, returns, alive, going: (m, n);
    alive: whether its episode goes on; going: whether it does and its run is not finished. same,
    one: for every pair of branches (n,), whether both are alive in one state, and whether they also
    have one action, as of the last choice of actions. apart: (n,) for every pair, as in `Runs`.

    open: (m, n), as in `Runs`. aside: returns (m, ...), apart and open of runs that are finished.
    whole: whether none of them was finished because its branches were one. steps: of all runs.
    """

    def __init__(self, player: BatchPlayer, chunk: Chunk) -> None:
        self.player = player
        self.chunk = chunk
        self.plan = chunk.plan
        self.size = chunk.size
        self.arrays = player.arrays
        self.xp = self.arrays.xp
        self.noise = player.generator(checks.part(chunk.seed, 0))
        self.choices = self.arrays.generator(checks.part(chunk.seed, 1))
        self.width = len(self.plan.names)
        self.pairs = self.plan.pairs
        self.policies = [self.plan.policies[kind] for kind in self.plan.kinds]
        self.meetings_end = self.plan.one_for_good and bool(self.pairs) and not chunk.whole
        self.states = player.begin(chunk)
        shape = (self.width, self.size)
        device = self.arrays.device
        self.returns = self.xp.zeros(shape, dtype=self.xp.float64, device=device)
        self.alive = self.xp.ones(shape, dtype=self.xp.bool, device=device)
        self.going = self.alive
        self.apart = tuple(self.xp.zeros_like(self.returns[0, ...]) for _ in self.pairs)
        self.open = self.xp.zeros_like(self.returns)
        self.aside: list[Any] = []
        self.whole = True
        self.steps = 0
        self.queries: Any = 0
        self.episodes_end = False
        self.time = 0

    def play(self) -> Runs:
        """All runs, from the start to the horizon."""
        try:
            self._act(self._start())
            horizon = self.plan.settings.horizon
            for self.time in range(horizon):
                if self.time:
                    self._act(self._next())
                    self._drop()
                if not self.size:
                    break
                self._step()
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        self._leave_open(self.alive)
        last = (self.returns, self.apart, self.open)
        returns, apart, left = zip(*self.aside, last, strict=True)
        rewards = [*self.player.extremes, *[0.0] * self.episodes_end]
        return Runs(
            returns=self.xp.concat(returns, axis=1),
            apart=tuple(map(self.xp.concat, zip(*apart, strict=True))),
            open=self.xp.concat(left, axis=1),
            whole=self.whole,
            steps=self.steps,
            queries=int(self.queries),
            extremes=(min(rewards), max(rewards)),
        )

    # One time step

    def _start(self) -> Any:
        """(m, n) the first actions; branches that follow policies draw them by one number."""
        if self.plan.compared == "policy":
            return self._chosen([self.arrays.uniforms((self.size,), self.choices)] * self.width)
        first = np.array([[self.player.number_of(action)] for action in self.plan.names])
        first = self.xp.astype(self.arrays.put(first), self.player.action_type)
        return self.xp.broadcast_to(first, (self.width, self.size))

    def _next(self) -> Any:
        """(m, n) actions: branches from one state-action choose by the number of the first."""
        uniforms = self.arrays.uniforms((self.width, self.size), self.choices)
        return self._chosen(follow(self.xp, self.one, uniforms))

    def _chosen(self, uniforms: list[Any]) -> Any:
        return self.player.choose(self.policies, self.states, self.alive, uniforms)

    def _act(self, actions: Any) -> None:
        """Take actions (m, n): which branches share a state by now, and which are one."""
        self.actions = actions
        self.same = tuple(self._meet(i, j) for i, j in self.pairs)
        self.one = tuple(
            met & (actions[i, ...] == actions[j, ...])
            for (i, j), met in zip(self.pairs, self.same, strict=True)
        )

    def _meet(self, i: int, j: int) -> Any:
        """(n,) whether two branches are alive in one state."""
        equal = self.states[i, ...] == self.states[j, ...]
        if len(equal.shape) > 1:
            equal = self.xp.all(equal, axis=1)
        if self.episodes_end:
            equal = equal & self.alive[i, ...] & self.alive[j, ...]
        return equal

    def _drop(self) -> None:
        """Take the finished runs out if they are many enough, and say which branches go on.

        Finished are those whose branches have all ended, or are one for good.
        """
        xp = self.xp
        finished = []
        if self.meetings_end:
            met = reduce(and_, self.one[: self.width - 1])
            self.whole = self.whole and not int(xp.count_nonzero(met))
            finished.append(met)
        if self.episodes_end:
            finished.append(~xp.any(self.alive, axis=0))
        self.going = self.alive
        if not finished:
            return
        done = reduce(or_, finished)
        count = int(xp.count_nonzero(done))
        if _PATIENCE * count >= self.size:
            self._set_aside(done, count)
        elif count:
            self.going = self.alive & ~done

    def _set_aside(self, done: Any, count: int) -> None:
        """Keep what is known of finished runs (n,), and go on with the others."""
        xp = self.xp
        take = self.arrays.take
        kept, finished = xp.nonzero(~done)[0], xp.nonzero(done)[0]
        apart = tuple(take(each, finished) for each in self.apart)
        self.aside.append((take(self.returns, finished, 1), apart, take(self.open, finished, 1)))
        self.apart = tuple(take(each, kept) for each in self.apart)
        self.size -= count
        self.states = take(self.states, kept, 1)
        self.returns = take(self.returns, kept, 1)
        self.open = take(self.open, kept, 1)
        self.going = self.alive = take(self.alive, kept, 1)
        self._act(take(self.actions, kept, 1))

    def _step(self) -> None:
        """Draw, step, and add the rewards up."""
        xp = self.xp
        gamma, _, coupling = self.plan.settings
        self.steps += self.size
        sharing = self.same if coupling.at_one_state else self.one
        played = self.player.step(self.states, self.actions, self.going, sharing, self.noise)
        if self.chunk.counted:
            self._count(sharing)
        rewards = played.rewards
        states = played.next_states
        if played.over is not None:
            self.episodes_end = True
            rewards = xp.where(self.alive, rewards, xp.zeros_like(rewards))
            if played.cut is not None:
                self._leave_open(self.alive & played.cut)
            self.alive = self.alive & ~played.over
            # A branch that has ended stays where it was: its step must still be a proper one.
            states = xp.where(beside(xp, self.alive, states), states, self.states)
        self.states = states
        self.returns = self.returns + rewards * gamma**self.time

    def _count(self, sharing: tuple[Any, ...]) -> None:
        """Count queries: one for every state, or for every action that is played alone."""
        first = list(self.going)
        for (_, j), shared in zip(self.pairs, sharing, strict=True):
            first[j] = first[j] & ~shared
        self.queries = self.queries + sum(map(self.xp.count_nonzero, first))

    def _leave_open(self, stopped: Any) -> None:
        """After this step branches (m, n) are cut off: gaps stay open, unless they are one."""
        gamma, horizon, _ = self.plan.settings
        weight = gamma ** (self.time + 1)
        if gamma < 1.0 or self.time + 1 < horizon:
            self.open = self.open + weight * self.xp.astype(stopped, self.open.dtype)
        left = []
        for (i, j), one, before in zip(self.pairs, self.one, self.apart, strict=True):
            still = stopped[i, ...] | stopped[j, ...]
            if self.plan.kinds[i] == self.plan.kinds[j]:
                still = still & ~one
            left.append(self.xp.maximum(before, weight * self.xp.astype(still, before.dtype)))
        self.apart = tuple(left)


def policy_table(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy) and not isinstance(policy, np.ndarray):
        policy = Arrays.of(policy).host(policy)
    shown = checks.policy_array(policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(checks.Sizes(count, num_actions), policy)


def beside(xp: Any, mask: Any, values: Any) -> Any:
    """A mask with as many axes as the values that it is for."""
    missing = len(values.shape) - len(mask.shape)
    return xp.reshape(mask, (*mask.shape, *(1,) * missing)) if missing else mask


def follow(xp: Any, together: tuple[Any, ...], values: Any) -> list[Any]:
    """m rows of values (m, n, ...): a branch takes over those of the first it is together with.

    together: for every pair (n,).
    """
    rows = [values[j, ...] for j in range(values.shape[0])]
    pairs = combinations(range(len(rows)), 2)
    for (i, j), both in reversed([*zip(pairs, together, strict=True)]):
        rows[j] = xp.where(beside(xp, both, rows[j]), rows[i], rows[j])
    return rows
