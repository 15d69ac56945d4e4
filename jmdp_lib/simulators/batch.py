"""The one loop that plays branches of a simulator: a batch of runs, stepped together.

Several branches start at one state. While branches are at one state they read one outcome table; at
distinct states their tables are independent. With coupling="independent" distinct actions of a
state have tables of their own; with "common" there is one draw per time step for all branches,
wherever they are. A branch whose episode has ended earns nothing more. `Plan` says when branches
are one.

Branches are the first axis of all arrays, runs the second. At time 0 a batch steps from the start.
At every later time it first chooses actions and says which branches are one by now (`_choose`),
then drops finished runs (`_drop`), then steps (`_step`). A run whose branches are all one is
finished, unless whole runs are asked for. It stays until a fifth of the runs are finished, since to
drop them copies all the others; what it earns until then, all its branches earn.

**One more thing to record of every run** is a field of `Lanes`: `_start` gives it its first value,
`_choose` or `_step` changes it, and `play` puts it into a field of `Runs`.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.plans import Asked, Plan, Player, Runs
from jmdp_lib.simulators.vector_simulator import Arrays, Played

_PATIENCE = 5  # finished runs are dropped once they are one in so many


class Lanes(NamedTuple):
    """The n runs that are being played.

    states: (m, n, ...). actions, returns, alive: (m, n); alive: whether its episode goes on.
    same, one: for every pair of branches (n,), whether both are alive in one state, and whether
    they also have one action, as of the last choice of actions.
    """

    states: Any
    actions: Any
    returns: Any
    alive: Any
    same: tuple[Any, ...] = ()
    one: tuple[Any, ...] = ()

    def taken(self, arrays: Arrays, index: Any) -> Lanes:
        """Some of the runs."""
        runs = [arrays.take(part, index, 1) for part in self[:4]]
        pairs = [tuple(arrays.take(pair, index) for pair in part) for part in self[4:]]
        return Lanes(*runs, *pairs)

    def meet(self, xp: Any, i: int, j: int) -> Any:
        """(n,) whether two branches are alive in one state."""
        equal = self.states[i, ...] == self.states[j, ...]
        if len(equal.shape) > 1:
            equal = xp.all(equal, axis=tuple(range(1, len(equal.shape))))
        return equal & self.alive[i, ...] & self.alive[j, ...]


class BatchPlayer(Player):
    """What a batch needs to know of a simulator. arrays: the library that states are arrays of."""

    arrays: Arrays
    action_type: Any = np.int64

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream of the noise."""
        return self.arrays.generator(seed)

    def begin(self, plan: Plan, size: int, seed: np.random.SeedSequence) -> None:
        """Prepare for a batch of so many runs."""

    @abstractmethod
    def start(self, width: int, size: int) -> Any:
        """States (m, n, ...) where all branches are at the start."""

    @abstractmethod
    def step(self, states: Any, actions: Any, going: Any, together: Any, rng: Any) -> Played:
        """One step: rewards, states and ends (m, n, ...).

        going: (m, n); of branches that are not, anything may be returned that others might be.
        together: for every pair (n,), whether two branches share a draw; None if all of them do.
        """

    def choose(self, policy: Any, states: Any, going: Any, uniforms: Any) -> tuple[Any, Any]:
        """Actions (k,) of a policy in states (k, ...), and whether an answer was bad, or None."""
        return policy.draw(self.arrays, states, uniforms)

    def play(self, plan: Plan, seed: np.random.SeedSequence, size: int, asked: Asked) -> Runs:
        return Batch(plan, self, seed, size, asked).play()


class Batch:
    """Plays runs together.

    extremes: the lowest and the highest reward of every step. suspects: signs that something is
    wrong, to be looked at in the end, since that waits for the device.
    """

    def __init__(
        self, plan: Plan, player: BatchPlayer, seed: np.random.SeedSequence, size: int, asked: Asked
    ) -> None:
        self.plan = plan
        self.player = player
        self.asked = asked
        self.arrays = player.arrays
        self.xp = self.arrays.xp
        self.policies = [policy.on(self.arrays) for policy in plan.policies]
        self.noise = player.generator(checks.seed_sequence(seed, 0))
        self.choices = self.arrays.generator(checks.seed_sequence(seed, 1))
        player.begin(plan, size, seed)
        self.size = size
        self.width = len(plan.names)
        self.pairs = plan.pairs
        self.aside: list[tuple[Lanes, tuple[Any, ...]]] = []
        self.extremes: list[Any] = []
        self.suspects: list[Any] = []
        self.queries: Any = 0
        self.episodes_end = False
        self.time = 0

    def play(self) -> Runs:
        """All runs, from the start to the horizon."""
        horizon = self.plan.settings.horizon
        try:
            lanes = self._start()
            going = lanes.alive
            for self.time in range(horizon):
                if self.time:
                    lanes, going = self._drop(self._choose(lanes))
                if not self.size:
                    break
                lanes = self._step(lanes, going)
        except SimulatorError as error:
            raise SimulatorError(f"time step {self.time + 1}: {error}") from error
        apart = tuple(self._apart(lanes, *pair) for pair in enumerate(self.pairs))
        self.aside.append((lanes, apart))
        concat = self.xp.concat
        returns, differ = zip(*((each.returns, apart) for each, apart in self.aside), strict=True)
        seen = self.host(self.extremes)
        if self.episodes_end:
            seen = np.append(seen, 0.0)
        return Runs(
            returns=concat(returns, axis=1),
            apart=tuple(map(concat, zip(*differ, strict=True))),
            queries=int(self.queries),
            extremes=(float(seen.min()), float(seen.max())),
        )

    def _start(self) -> Lanes:
        """Branches that follow policies draw their first actions by one number."""
        xp = self.xp
        shape = (self.width, self.size)
        here = {"device": self.arrays.device}
        lanes = Lanes(
            states=self.player.start(*shape),
            actions=None,
            returns=xp.zeros(shape, dtype=xp.float64, **here),
            alive=xp.ones(shape, dtype=xp.bool, **here),
        )
        if not self.plan.first:
            uniforms = xp.broadcast_to(self.arrays.uniforms(self.size, self.choices), shape)
            return self._with_actions(lanes, self._actions(lanes, uniforms))
        first = xp.astype(self.arrays.put(np.array([self.plan.first])), self.player.action_type)
        return self._with_actions(lanes, xp.broadcast_to(first.T, shape))

    # One time step

    def _choose(self, lanes: Lanes) -> Lanes:
        """The next actions: branches from one state-action choose by the number of the first."""
        shape = (self.width, self.size)
        numbers = self.arrays.uniforms(self.width * self.size, self.choices)
        rows = follow(self.xp, self.pairs, lanes.one, self.xp.reshape(numbers, shape))
        return self._with_actions(lanes, self._actions(lanes, self.xp.stack(rows)))

    def _actions(self, lanes: Lanes, uniforms: Any) -> Any:
        """(m, n) what every policy chooses in its own states, by numbers (m, n).

        Branches of one policy are asked for at once.
        """
        xp = self.xp
        kinds = self.plan.kinds
        step = self.width if self.plan.one_for_good else 1
        chosen = []
        for j in range(0, self.width, step):
            block = [part[j : j + step, ...] for part in (lanes.states, lanes.alive, uniforms)]
            flat = [xp.reshape(part, (-1, *part.shape[2:])) for part in block]
            actions, suspect = self.player.choose(self.policies[kinds[j]], *flat)
            chosen.append(actions)
            self.suspects += [] if suspect is None else [suspect]
        actions = xp.astype(xp.concat(chosen), self.player.action_type, copy=False)
        return xp.reshape(actions, (self.width, self.size))

    def _with_actions(self, lanes: Lanes, actions: Any) -> Lanes:
        """Which branches share a state by now, and which are one."""
        same = tuple(lanes.meet(self.xp, i, j) for i, j in self.pairs)
        one = tuple(
            met & (actions[i, ...] == actions[j, ...])
            for (i, j), met in zip(self.pairs, same, strict=True)
        )
        return lanes._replace(actions=actions, same=same, one=one)

    def _done(self, lanes: Lanes) -> Any:
        """(n,) whether all branches of a run have ended, or are one for good."""
        ended = ~self.xp.any(lanes.alive, axis=0)
        if self.asked.whole or not self.plan.one_for_good or not lanes.one:
            return ended
        return reduce(lambda x, y: x & y, lanes.one[: self.width - 1]) | ended

    def _drop(self, lanes: Lanes) -> tuple[Lanes, Any]:
        """Take the finished runs out if they are many enough; (m, n) which branches go on."""
        xp = self.xp
        done = self._done(lanes)
        count = int(xp.count_nonzero(done))
        if _PATIENCE * count < self.size:
            return lanes, lanes.alive & ~done
        finished = lanes.taken(self.arrays, xp.nonzero(done)[0])
        self.aside.append((finished, tuple(xp.zeros_like(one) for one in finished.one)))
        self.size -= count
        kept = lanes.taken(self.arrays, xp.nonzero(~done)[0])
        return kept, kept.alive

    def _step(self, lanes: Lanes, going: Any) -> Lanes:
        """Draw, step, and add the rewards up."""
        xp = self.xp
        gamma, _, coupling = self.plan.settings
        sharing = lanes.one if coupling == "independent" else lanes.same
        together = None if coupling == "common" else sharing
        found = self.player.step(lanes.states, lanes.actions, going, together, self.noise)
        self.extremes += [xp.min(found.rewards), xp.max(found.rewards)]
        self.suspects += [] if found.suspect is None else [found.suspect]
        if self.asked.counted:
            self._count(going, sharing)
        rewards = xp.astype(found.rewards, xp.float64, copy=False)
        states = found.states
        alive = lanes.alive
        if found.over is not None:
            self.episodes_end = True
            rewards = xp.where(alive, rewards, xp.zeros_like(rewards))
            alive = alive & ~found.over
            # A branch that has ended stays where it was: its step must still be a proper one.
            states = xp.where(beside(xp, alive, states), states, lanes.states)
        returns = lanes.returns + rewards * gamma**self.time
        return lanes._replace(states=states, returns=returns, alive=alive)

    def _count(self, going: Any, sharing: tuple[Any, ...]) -> None:
        """Count queries: one for every state, or for every action that is played alone."""
        for j in range(self.width):
            first = going[j, ...]
            for (_, other), shared in zip(self.pairs, sharing, strict=True):
                first = first & ~shared if other == j else first
            self.queries = self.queries + self.xp.count_nonzero(first)

    def _apart(self, lanes: Lanes, number: int, pair: tuple[int, int]) -> Any:
        """(n,) whether two branches can still differ after the horizon."""
        i, j = pair
        open_still = lanes.alive[i, ...] | lanes.alive[j, ...]
        if self.plan.kinds[i] != self.plan.kinds[j]:
            return open_still
        return open_still & ~lanes.one[number]

    def host(self, numbers: list[Any]) -> Any:
        """Numbers that were left on the device, as an array of NumPy."""
        found = self.arrays.host(self.xp.stack(numbers)) if numbers else np.zeros(0)
        return found.astype(np.float64)


def beside(xp: Any, mask: Any, values: Any) -> Any:
    """A mask with as many axes as the values that it is for."""
    missing = len(values.shape) - len(mask.shape)
    return xp.reshape(mask, (*mask.shape, *(1,) * missing)) if missing else mask


def follow(
    xp: Any, pairs: list[tuple[int, int]], together: tuple[Any, ...], values: Any
) -> list[Any]:
    """m rows of values (m, n, ...): a branch takes over those of the first it is together with.

    together: for every pair (n,).
    """
    rows = [values[j, ...] for j in range(values.shape[0])]
    for (i, j), both in reversed([*zip(pairs, together, strict=True)]):
        rows[j] = xp.where(beside(xp, both, rows[j]), rows[i], rows[j])
    return rows
