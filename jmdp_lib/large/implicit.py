"""Joint MDPs that are never enumerated: the outcome tables of a state come from a function.

States are any hashable objects: tuples, strings, integers. `local_jipe2` calls the function only
for a `Region` of states, those that matter to the requested gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import CollapsedT2
from jmdp_lib.model import JMDP, Coupling, CouplingName, checked_coupling
from jmdp_lib.model.simulator import draw_index
from jmdp_lib.model.tables import outcome_of
from jmdp_lib.policies import Policy, policy_rows

_MOST_KEPT = 100_000  # states whose tables `query` keeps

TableFunction = Callable[[Any], tuple[ArrayLike, ArrayLike, Sequence[Sequence[Hashable]]]]


@dataclass(frozen=True)
class ImplicitJMDP:
    """A joint MDP whose outcome tables come from a function of the state, without enumeration.

    Args:
        tables: tables(s) -> probabilities (K,), rewards (K, A), and next states, K lists of A
            hashable states. Table k has probability probs[k]; action a then earns rewards[k, a]
            and moves to next_states[k][a]. The function must be pure: all randomness is in the
            tables. To test this, it is called twice for every state.
        num_actions: $|A|$.
        gamma: discount factor in [0, 1).
        reward_range: (lo, hi), which contains all rewards. A narrower range needs fewer states for
            the same certificate.
        knows_noise: True if table k of every state is the outcome of noise k, as
            `coupling="common"` requires. Defaults to True.

    The model pickles if its function does. It is also a simulator: `query` draws a table. Tables
    are checked when they are made, and every message shows the state.

    Example:
        >>> import jmdp_lib as jl
        >>> def tables(cell):  # an endless line: a gust adds one cell to the left
        ...     calm, gust = [cell + 1, cell - 1], [cell, cell - 2]
        ...     return [0.7, 0.3], [[float(cell > 3)] * 2] * 2, [calm, gust]
        ...
        >>> line = jl.large.ImplicitJMDP(tables, num_actions=2, gamma=0.8, reward_range=(0.0, 1.0))
        >>> probs, rewards, next_states = line.at(10)
        >>> probs.tolist(), next_states
        ([0.7, 0.3], [11, 9, 10, 8])
        >>> local = jl.large.local_jipe2(line, lambda cell: [0.5, 0.5], states=[2], tol=0.01)
        >>> print(f"right against left: {local.gap_mean[0, 0, 1]:.2f}")
        right against left: 0.52
    """

    tables: TableFunction
    num_actions: int
    gamma: float
    reward_range: tuple[float, float]
    knows_noise: bool = field(default=True, kw_only=True)
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ends = checks.reward_range("reward_range", self.reward_range)
        checks.reward_unit("reward_range", max(map(abs, ends)))
        checks.at_least("num_actions", self.num_actions, 1)
        checks.discount(self.gamma)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": {}}  # cached tables can be made again

    @property
    def reward_bound(self) -> float:
        """$r_{max}$, the larger absolute end of the range of rewards; one if both are zero."""
        return float(np.abs(self.reward_range).max()) or 1.0

    @classmethod
    def from_step(
        cls,
        num_actions: int,
        gamma: float,
        noise_probs: ArrayLike,
        step: Callable[[Any, int, int], tuple[float, Hashable]],
        reward_range: tuple[float, float],
    ) -> ImplicitJMDP:
        """A model from a step function and its noise, as in `JMDP.from_step`.

        Args:
            num_actions: $|A|$.
            gamma: discount factor in [0, 1).
            noise_probs: (K,) probabilities of the noise u.
            step: step(s, a, u) -> (reward, next_state). It must be pure.
            reward_range: (lo, hi), which contains all rewards.

        Returns:
            The model, with `knows_noise` True.

        Example:
            >>> import jmdp_lib as jl
            >>> def step(cell, action, gust):
            ...     return float(cell > 3), cell + (1 if action == 0 else -1) - gust
            ...
            >>> line = jl.large.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], step, (0.0, 1.0))
            >>> line.at(10)[2]
            [11, 9, 10, 8]
        """
        probs = checks.distributions("noise_probs", noise_probs, "noise")
        tables = partial(_tables_of_step, probs, num_actions, step)
        return cls(tables, num_actions, gamma, reward_range)

    def at(self, state: Hashable) -> tuple[Floats, Floats, list[Hashable]]:
        """The checked tables of a state.

        Args:
            state: any state.

        Returns:
            Probabilities (K,), rewards (K, A), and a list of K * A next states.

        Raises:
            ValueError: the tables are not valid; the message shows the state.
        """
        try:
            probs, rewards, successors = self._made(state)
            prob = checks.distributions("probabilities", probs, "table")
            axes = ("table", "action")
            reward = checks.floats("rewards", rewards, *axes, shape=(prob.size, self.num_actions))
            low, high = self.reward_range
            outside = (reward < low) | (reward > high)
            checks.refuse("rewards", reward, outside, f"is not in [{low}, {high}]", axes)
            if [len(row) for row in successors] != [self.num_actions] * prob.size:
                raise ValueError(f"next states must be {prob.size} lists of {self.num_actions}")
            flat = [successor for row in successors for successor in row]
            sum(map(hash, flat))  # an unhashable state raises
            other_probs, other_rewards, others = self._made(state)
            same = np.array_equal(probs, other_probs) and np.array_equal(rewards, other_rewards)
            if not same or flat != [successor for row in others for successor in row]:
                raise ValueError("they must be pure, but differ in a second call")
        except Exception as error:
            raise ValueError(f"tables of state {state!r}: {error}") from error
        return prob, reward, flat

    def _made(self, state: Hashable) -> tuple[ArrayLike, ArrayLike, Any]:
        """The tables of a state, as the user's function returns them."""
        probs, rewards, rows = self.tables(state)
        return probs, rewards, getattr(rows, "tolist", lambda: rows)()  # arrays have it

    def query(
        self, state: Hashable, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[float], list[Hashable]]:
        """Rewards and next states of distinct actions, from one draw of a table.

        Tables are cached, since making them takes longer than drawing one.

        Args:
            state: any state.
            actions: m distinct actions.
            rng: generator that draws the table.

        Returns:
            Rewards (m,) and next states (m,).

        Example:
            >>> import jmdp_lib as jl
            >>> import numpy as np
            >>> def step(cell, action, gust):
            ...     return float(cell > 3), cell + (1 if action == 0 else -1) - gust
            ...
            >>> line = jl.large.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], step, (0.0, 1.0))
            >>> line.query(10, [0, 1], np.random.default_rng(0))
            ([1.0, 1.0], [11, 9])
        """
        columns = checks.distinct_actions(actions, self.num_actions)
        if state not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            probs, paid, reached = self.at(state)
            self._kept[state] = (probs.cumsum().tolist(), paid.tolist(), reached)
        cumulative, rewards, successors = self._kept[state]
        table = draw_index(cumulative, rng)
        first = table * self.num_actions
        return [rewards[table][a] for a in columns], [successors[first + a] for a in columns]


# These are functions of the module, not local ones, since only the former pickle.


def _tables_of_step(probs: Floats, num_actions: int, step: Any, state: Any) -> Any:
    """The tables of a state, one for each noise, from a step function."""
    noises = range(probs.size)
    rows = [[outcome_of(step, state, a, u) for a in range(num_actions)] for u in noises]
    rewards, states = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    return probs, rewards, states


def with_law(law: Floats, tables: TableFunction, state: Any) -> Any:
    """The tables of a state, whose probabilities must be those of the common noise, `law`."""
    made = tables(state)
    probs = np.asarray(made[0])
    if probs.shape != law.shape or np.abs(probs - law).max() > 1e-12:
        raise ValueError(
            "coupling 'common' needs one distribution of tables in all states: the probabilities "
            f"are {probs.round(6)} here, {law.round(6)} at the first one"
        )
    return made


class ExploredState(NamedTuple):
    """Tables of one state: probs (K,), rewards in [-1, 1] and next states (K, A), policy (A,).

    States are given by their index in the region.
    """

    probs: Floats
    rewards: Floats
    targets: Ints
    policy: Floats


@dataclass(frozen=True)
class Region:
    """The states reached so far, in this order, and the tables of those explored.

    index: the index of each state. requested: (N,) the index of each requested state. limit: the
    largest number of explored states. tables: tables by the index of their state, in the order of
    exploration.
    """

    model: ImplicitJMDP
    policy: Policy
    coupling: Coupling
    index: dict[Hashable, int]
    requested: Ints
    limit: int
    tables: dict[int, ExploredState] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: ImplicitJMDP,
        policy: Policy,
        coupling: CouplingName,
        states: Sequence[Hashable],
        max_states: int,
    ) -> Region:
        """A region in which the requested states are explored."""
        if isinstance(states, str) or not hasattr(states, "__len__"):
            raise ValueError(f"states must be a list of states: did you mean [{states!r}]?")
        if not len(states):
            raise ValueError("states must hold at least one state")
        try:
            index = {state: i for i, state in enumerate(dict.fromkeys(states))}
            requested = np.array([index[state] for state in states])
        except TypeError:
            raise ValueError(f"states must be hashable, such as tuples, got {states!r}") from None
        sharing = checked_coupling(model, coupling)
        limit = checks.at_least("max_states", max_states, len(index))
        region = cls(model, policy, sharing, index, requested, limit)
        region.explore(range(len(index)))
        return region

    @property
    def unit(self) -> float:
        """Half the width of the range of rewards."""
        low, high = self.model.reward_range
        return 0.5 * (high - low) or 1.0

    @property
    def num_requested(self) -> int:
        """The number of distinct requested states."""
        return int(self.requested.max()) + 1

    @property
    def explored(self) -> list[int]:
        """The index of each explored state, in the order of exploration."""
        return list(self.tables)

    def explore(self, batch: Iterable[int]) -> None:
        """Add the tables of states, given by their index."""
        reached = list(self.index)
        middle = 0.5 * sum(self.model.reward_range)
        indices = list(batch)
        states = [reached[i] for i in indices]
        tables = randomness.without_global_draws(
            "the function of the tables",
            "but must be pure",
            lambda: [self.model.at(state) for state in states],
        )
        rows = policy_rows(self.policy, states, self.model.num_actions)
        for i, (probs, rewards, successors), row in zip(indices, tables, rows, strict=True):
            targets = [self.index.setdefault(x, len(self.index)) for x in successors]
            to = np.reshape(targets, rewards.shape)
            drawn = probs > 0.0
            scaled = (rewards[drawn] - middle) / self.unit
            self.tables[i] = ExploredState(probs[drawn], scaled, to[drawn], row)

    def system(self) -> CollapsedT2:
        """T_2 of all states reached; unexplored ones are absorbing and pay nothing."""
        probs, rewards, targets, rows = zip(*self.tables.values(), strict=True)
        owners = np.repeat(self.explored, [own.size for own in probs])
        policy = np.zeros((len(self.index), self.model.num_actions))
        policy[:, 0] = 1.0
        policy[self.explored] = rows
        jm = closed(
            owners,
            np.concatenate(probs),
            np.concatenate(rewards),
            np.concatenate(targets),
            len(policy),
            self.model.gamma,
        )
        return CollapsedT2(jm, policy, self.coupling)


def closed(
    owners: Ints, probs: Floats, rewards: Floats, next_states: Ints, num_states: int, gamma: float
) -> JMDP:
    """A model of stacked tables: states without a table are absorbing and pay nothing."""
    law = probs[owners == owners[0]]  # with common noise, the same for all states
    others = np.repeat(np.setdiff1d(np.arange(num_states), owners), law.size)
    stay = np.repeat(others[:, None], rewards.shape[1], 1)
    rewards = np.where(np.abs(rewards) < 1e-100, 0.0, rewards)  # a JMDP rejects such a unit
    return JMDP.from_tables(
        np.append(owners, others),
        np.append(probs, np.resize(law, others.size)),
        np.append(rewards, 0.0 * stay, 0),
        np.append(next_states, stay, 0),
        num_states,
        gamma,
    )
