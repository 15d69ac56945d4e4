"""Queries: what can be asked for the outcomes of several actions under one shared draw.

`Simulator` is what the learning solvers and `JMDP.from_simulator` ask for, a JMDP without its
tables. Every answer is checked here. `Outcome` is what an environment with a state of its own,
`CoupledEnv` or `jmdp_lib.atari.CoupledAtari`, returns instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Sized

_NUMBERS, _INT = {float, int}, {int}
_ANY_REWARD = (-sys.float_info.max, sys.float_info.max)
_TRIALS = 8  # queries of a simulator that is tried out before it is used


class SimulatorError(ValueError):
    """A simulator failed, or gave no proper answer; `result` is what was known by then, if set.

    Example:
        >>> import jmdp_lib as jl
        >>> world = jl.StepSimulator(1, 2, 0.9, [1.0], lambda state, action, noise: (1.0, 7))
        >>> try:
        ...     jl.incremental_jipe2(world, [0], num_updates=100)
        ... except jl.SimulatorError as error:
        ...     print(str(error).rpartition(": ")[2])
        one is not in range(1)')
    """

    result: Any = None


@runtime_checkable
class Simulator(Sized, Protocol):
    """What a simulator must have: num_states, num_actions, gamma and `query`.

    A JMDP is one, and any object of yours with these names is one, too; it need not inherit from
    this class. It must be pure: the same state, actions and generator give the same answer. It may
    declare a `reward_range`, (lo, hi), that holds all rewards: accuracies are relative to it, and
    decisions rely on it. A reward outside of it is refused.

    Example:
        >>> import jmdp_lib as jl
        >>> class Coins:
        ...     num_states, num_actions, gamma = 1, 2, 0.9
        ...     def query(self, state, actions, rng):
        ...         coin = rng.random() < 0.5  # one draw, before any action is looked at
        ...         return [float(coin == action) for action in actions], [0 for _ in actions]
        ...
        >>> isinstance(Coins(), jl.Simulator)
        True
        >>> jl.JMDP.from_simulator(Coins(), queries_per_state=100).is_coupled
        True
    """

    @property
    def gamma(self) -> float:
        """Discount factor."""

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[ArrayLike, ArrayLike]:
        """Rewards (m,) and next states (m,) of distinct actions under one shared draw.

        Lists and arrays are both welcome; all randomness comes from `rng`.
        """


def declared_range(
    ends: tuple[float, float] | None, name: str = "reward_range"
) -> tuple[float, float]:
    """(lo, hi) that holds all rewards, checked; all finite numbers if none is declared."""
    return _ANY_REWARD if ends is None else checks.reward_range(name, ends)


def check_simulator(simulator: object) -> Simulator:
    """The simulator, once it has all that is asked of it.

    A few queries are made twice: a simulator that answers the same query in two ways, or draws
    from a global generator, is refused.
    """
    if not isinstance(simulator, Simulator):
        parts = ("num_states", "num_actions", "gamma", "query")
        missing = ", ".join(part for part in parts if not hasattr(simulator, part))
        raise ValueError(f"{simulator!r} is no simulator: it has no {missing}")
    num_states = checks.at_least("simulator.num_states", simulator.num_states, 1)
    num_actions = checks.at_least("simulator.num_actions", simulator.num_actions, 1)
    checks.discount(simulator.gamma)
    declared_range(getattr(simulator, "reward_range", None), "simulator.reward_range")
    actions = list(range(num_actions))

    def ask(state: int) -> list[tuple[float, int]]:
        return checked_query(simulator, state, actions, np.random.default_rng(0))

    for state in np.linspace(0, num_states - 1, _TRIALS, dtype=int).tolist():
        checks.pure(f"simulator.query(state {state}, actions {actions}, rng)", ask, state)
    return simulator


def checked_query(
    simulator: Simulator, state: int, actions: Sequence[int], rng: np.random.Generator
) -> list[tuple[float, int]]:
    """[(reward, next_state)] of the actions, refused if the simulator returns anything else."""
    size, count = len(actions), simulator.num_states
    ends = getattr(simulator, "reward_range", None)
    low, high = _ANY_REWARD if ends is None else ends
    try:
        answer: Any = simulator.query(state, actions, rng)
        rewards, states = (x.tolist() if isinstance(x, np.ndarray) else x for x in answer)
        plain = {*map(type, rewards)} <= _NUMBERS and {*map(type, states)} == _INT
        if not (plain and len(rewards) == len(states) == size):  # the usual case needs no arrays
            rewards = checks.floats("rewards", rewards, action=size).tolist()
            states = checks.integers("next states", states, action=size).tolist()
        if not all(low <= r <= high for r in rewards):
            raise ValueError(f"rewards {rewards}: one is not finite or not in reward_range")
        if not all(0 <= x < count for x in states):
            raise ValueError(f"next states {states}: one is not in range({count})")
        return list(zip(rewards, states, strict=True))
    except Exception as error:
        raise SimulatorError(
            f"simulator.query(state {state}, actions {list(actions)}) must return rewards and next "
            f"states, in this order: {error!r}"
        ) from error


class Outcome(NamedTuple):
    """One coordinate of a drawn outcome table: what this action did under the shared draw.

    A tuple, since making a frozen dataclass for every outcome slows fast emulators down.

    Attributes:
        action: the queried action.
        reward: its reward.
        observation: of the successor state.
        terminated: whether this branch ended; the branches of one query can end differently.
        truncated: whether a time limit cut this branch.
        info: what the simulator says besides.
        snapshot: the successor, to be given to `restore`; its own table is not drawn yet.
    """

    action: Any
    reward: float
    observation: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    snapshot: Any
