"""Simulators: objects that can be queried for several actions under one shared draw.

The learning solvers and `JMDP.from_simulator` need no more of a model than the protocol
`Simulator`, which a JMDP follows, too. Every answer is checked here.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Sized
from jmdp_lib.model.coupling import declared_coupling

_NUMBERS = {float, int}
ANY_REWARD = (-sys.float_info.max, sys.float_info.max)
_STATES = 8  # most states at which a simulator is tried out before it is used
_TRIALS = 16  # draws with which this is done, in all


class SimulatorError(ValueError):
    """A simulator failed, or gave a wrong answer; `result` is the partial result, if any.

    Example:
        >>> import jmdp_lib as jl
        >>> class Astray:
        ...     num_states, num_actions, gamma = 1, 2, 0.9
        ...     def query(self, state, actions, rng):
        ...         return [1.0 for _ in actions], [7 for _ in actions]
        ...
        >>> try:
        ...     jl.incremental_jipe2(Astray(), [0], num_updates=100)
        ... except jl.simulators.SimulatorError as error:
        ...     print(error.__cause__)
        next state of action 0 = 7 is not in range(1)
    """

    result: Any = None


@runtime_checkable
class Simulator(Sized, Protocol):
    """The protocol of simulators: num_states, num_actions, gamma and `query`.

    A JMDP follows it, and so does any object of yours with these names, which need not inherit from
    this class. `query` must be pure: the same state, actions and generator give the same answer.
    The answer of an action must not depend on the other actions of the query, nor on their order:
    draw first, then look at the actions. If the actions of a query draw independently instead,
    declare `coupling = "independent"`: its branches are then simulated without shared draws. A
    simulator may declare a `reward_range`, (lo, hi), that contains all rewards. Accuracies are
    relative to it, decisions rely on it, and a reward outside of it is refused. `estimate_gaps` and
    `compare_actions` do not need `num_states`: their states may be anything hashable.

    Example:
        >>> import jmdp_lib as jl
        >>> class Coins:
        ...     num_states, num_actions, gamma = 1, 2, 0.9
        ...     def query(self, state, actions, rng):
        ...         coin = rng.random() < 0.5  # one draw, before any action is looked at
        ...         return [float(coin == action) for action in actions], [0 for _ in actions]
        ...
        >>> isinstance(Coins(), jl.simulators.Simulator)
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

        Args:
            state: the state in which the actions are tried.
            actions: (m,) distinct actions.
            rng: the generator from which all randomness comes.

        Returns:
            Rewards and next states, (m,) each, as lists or arrays.
        """


def declared_range(
    ends: tuple[float, float] | None, name: str = "reward_range"
) -> tuple[float, float]:
    """The declared range (lo, hi) of rewards; by default all finite numbers."""
    return ANY_REWARD if ends is None else checks.reward_range(name, ends)


def draw_index(cumulative: Sequence[float] | Floats, rng: np.random.Generator) -> int:
    """An index by its cumulative probability, from one uniform number."""
    return bisect_right(cumulative, rng.random(), 0, len(cumulative) - 1)


def check_simulator(
    simulator: object, *, states: Sequence[Any] | None = None, undiscounted: bool = False
) -> Simulator:
    """The simulator, if it passes all checks.

    A few queries are made twice, in another order, and for one action alone. A simulator is refused
    if it answers the same query in two ways, or draws from a global generator. Unless it declares
    `coupling = "independent"`, it is also refused if the answer of an action depends on the others.

    states: those at which it is tried out, by default some of its `num_states`. undiscounted: gamma
    may be one.
    """
    sim: Any = simulator
    if isinstance(sim, type):
        raise ValueError(
            f"simulator must be an object, got the class {sim.__name__}: make one of it"
        )
    needed = ("num_states", "num_actions", "gamma", "query")[states is not None :]
    missing = ", ".join(part for part in needed if not hasattr(sim, part))
    if missing:
        why = ", so its states cannot be listed" if "num_states" in missing else ""
        other = (
            "; `jl.simulators.estimate_gaps` simulates other kinds" if "query" in missing else ""
        )
        raise ValueError(f"{simulator!r} is not a simulator: it has no {missing}{why}{other}")
    checks.at_least("simulator.num_actions", sim.num_actions, 1)
    if undiscounted:
        checks.probability("gamma", sim.gamma)
    else:
        checks.discount(sim.gamma)
    declared_range(getattr(sim, "reward_range", None), "simulator.reward_range")
    if states is None:
        last = checks.at_least("simulator.num_states", sim.num_states, 1) - 1
        states = np.unique(np.linspace(0, last, _STATES, dtype=int)).tolist()
    actions = list(range(sim.num_actions))
    shared = declared_coupling(sim).at_one_state
    for state in states:
        what = f"simulator.query(state {state!r}, actions {actions}, rng)"
        randomness.pure(what, _trial, sim, state, actions, 0)
        for seed in range(-(-_TRIALS // len(states)) if shared else 0):
            _check_order(sim, state, actions, seed)
    return sim


def _trial(
    simulator: Simulator, state: Any, actions: Sequence[int], seed: int
) -> list[tuple[float, Any]]:
    """The checked answer of a query to a generator with this seed."""
    return checked_query(simulator, state, actions, np.random.default_rng(seed))


def _check_order(simulator: Simulator, state: Any, actions: list[int], seed: int) -> None:
    """Refuse a simulator if an action's answer changes with the other actions of the query."""
    usual = _trial(simulator, state, actions, seed)
    for order in (actions[::-1], actions[-1:]):
        for action, answer in zip(order, _trial(simulator, state, order, seed), strict=True):
            if not _identical(answer, usual[action]):
                raise ValueError(
                    f"simulator.query(state {state!r}, actions, rng) gave {usual[action]} for "
                    f"action {action} of {actions}, but {answer} in a query of {order}, with the "
                    "same state of the generator. Either it answers by position and not by action, "
                    "or it draws inside its loop over the actions: draw first, then look at the "
                    "actions. If each action is to have draws of its own, declare "
                    'coupling = "independent" in the simulator'
                )


def _identical(first: tuple[float, Any], second: tuple[float, Any]) -> bool:
    """True if two answers (reward, next state) are equal up to rounding in single precision."""
    if first == second:  # the usual case, kept fast
        return True
    try:
        return np.allclose(np.hstack(first), np.hstack(second), rtol=1e-6, atol=0.0)
    except (TypeError, ValueError):  # not numbers, or of another length
        return False


def checked_query(
    simulator: Any,
    state: Any,
    actions: Sequence[int],
    rng: np.random.Generator,
    limits: tuple[float, float] | None = None,
) -> list[tuple[float, Any]]:
    """The answer [(reward, next_state)] for the actions; anything else is refused.

    limits: (lo, hi) that contains all rewards, by default the declared range. Plain numbers stay as
    they are: a query should cost little more than the simulator.
    """
    try:
        answer = simulator.query(state, actions, rng)
    except Exception as error:
        raise SimulatorError(f"{_call(state, actions)} failed: {error!r}") from error
    try:
        rewards, states = answer
        if type(rewards) is np.ndarray:
            rewards = rewards.tolist()
        if type(states) is np.ndarray:
            states = states.tolist()
        if not len(actions) == len(rewards) == len(states):
            raise ValueError(f"{len(rewards)} rewards and {len(states)} next states")
        low, high = limits or getattr(simulator, "reward_range", None) or ANY_REWARD
        count = getattr(simulator, "num_states", None)
        outcomes = []
        for action, reward, after in zip(actions, rewards, states):  # noqa: B905, lengths are equal
            if type(reward) not in _NUMBERS:
                reward = checks.floats(f"reward of action {action}", reward).item()
            if not low <= reward <= high:
                raise outside((low, high), reward, action, state)
            if count is None:
                hash(after)  # refuses what is unhashable
            elif type(after) is not int or not 0 <= after < count:
                name = f"next state of action {action}"
                after = checks.integers(name, after, below=count).item()
            outcomes.append((reward, after))
        return outcomes
    except SimulatorError:
        raise
    except Exception as error:
        wanted = "must return rewards and next states, in this order"
        raise SimulatorError(f"{_call(state, actions)} {wanted}: {error!r}") from error


def _call(state: Any, actions: Sequence[int]) -> str:
    """Call of a query, for messages."""
    return f"simulator.query(state {state!r}, actions {list(actions)})"


def outside(limits: tuple[float, float], reward: float, action: Any, state: Any) -> SimulatorError:
    """Error of a reward outside its limits."""
    why = "is not finite" if limits == ANY_REWARD else f"is not in reward_range {limits}"
    return SimulatorError(f"reward {reward} of action {action} in state {state} {why}")
