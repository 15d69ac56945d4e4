"""Simulators: what can be asked for the outcomes of several actions under one shared draw.

`Simulator` is what the learning solvers ask for, a JMDP without its tables. `Outcome` is what an
environment with its own state, `CoupledEnv` or `jmdp_lib.atari.CoupledAtari`, returns instead.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP

_NUMBERS = (float, int)
_TRIALS = 8  # queries of a simulator that is tried out before it is used


@runtime_checkable
class Simulator(Protocol):
    """All that is asked of a generative model: a JMDP is one, and so may be your own simulator.

    It must be pure: the same state, actions and generator give the same answer. A simulator may
    declare a `reward_bound`; answers above it are then refused.
    """

    @property
    def num_states(self) -> int:
        """|S|."""

    @property
    def num_actions(self) -> int:
        """|A|."""

    @property
    def gamma(self) -> float:
        """Discount factor."""

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[ArrayLike, ArrayLike]:
        """Rewards (m,) and next states (m,) of distinct actions under one shared draw.

        Lists and arrays are both welcome; all randomness comes from `rng`.
        """


def check_simulator(simulator: Simulator, policy: ArrayLike) -> Floats:
    """The policy (S, A), once the simulator has all that is asked of it.

    A few queries are made twice: a simulator that answers the same query in two ways, or draws
    from a global generator, is refused.
    """
    for name in ("num_states", "num_actions", "gamma", "query"):
        if not hasattr(simulator, name) or (name == "query" and not callable(simulator.query)):
            raise ValueError(f"simulator {simulator!r} has no `{name}`")
    num_states = checks.at_least("simulator.num_states", simulator.num_states, 1)
    num_actions = checks.at_least("simulator.num_actions", simulator.num_actions, 1)
    checks.discount(simulator.gamma)
    checks.positive("simulator.reward_bound", getattr(simulator, "reward_bound", 1.0))
    matrix = checks.policy_matrix(simulator, policy)
    if not isinstance(simulator, JMDP):
        _try_out(simulator, num_states, list(range(num_actions)))
    return matrix


def _try_out(simulator: Simulator, num_states: int, actions: list[int]) -> None:
    before = _global_state()
    for state in np.linspace(0, num_states - 1, min(_TRIALS, num_states), dtype=int).tolist():
        first, again = (
            checked_query(simulator, state, actions, np.random.default_rng(0)) for _ in range(2)
        )
        what = f"simulator.query(state {state}, actions {actions})"
        if _global_state() != before:
            raise ValueError(f"{what} draws from a global generator; draw from `rng` instead")
        if first != again:
            raise ValueError(
                f"{what} gave {first} and then {again} from generators with the same seed: "
                "all randomness must come from `rng`, and a query must not change the simulator"
            )


def _global_state() -> tuple[Any, ...]:
    """The states of the global generators of numpy and Python, to see whether they move."""
    name, keys, *position = cast(Any, np.random.get_state())  # noqa: NPY002
    return name, keys.tobytes(), position, random.getstate()


def checked_query(
    simulator: Simulator, state: int, actions: Sequence[int], rng: np.random.Generator
) -> list[tuple[float, int]]:
    """[(reward, next_state)] of the actions, refused if the simulator returns anything else."""
    try:
        answer: Any = simulator.query(state, actions, rng)
    except Exception as error:
        raise ValueError(
            f"simulator.query(state {state}, actions {list(actions)}) raised {error!r}"
        ) from error
    bound = getattr(simulator, "reward_bound", sys.float_info.max)
    try:  # plain numbers, as nearly all are, need no arrays
        rewards, states = (x.tolist() if isinstance(x, np.ndarray) else x for x in answer)
        pairs = [
            (float(r), x)
            for r, x in zip(rewards, states, strict=True)
            if type(r) in _NUMBERS and type(x) is int
            if -bound <= r <= bound and 0 <= x < simulator.num_states
        ]
        if len(pairs) == len(actions) == len(rewards):
            return pairs
    except (TypeError, ValueError):
        pass
    try:
        return _converted(simulator, answer, len(actions), bound)
    except ValueError as error:
        raise ValueError(
            f"simulator.query(state {state}, actions {list(actions)}): {error}"
        ) from error


def _converted(
    simulator: Simulator, answer: Any, size: int, bound: float
) -> list[tuple[float, int]]:
    """An answer of other types than plain numbers as pairs, or what is wrong with it."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise ValueError(f"must return (rewards, next states), got {answer!r}")
    rewards = checks.floats("rewards", answer[0], "action")
    if np.asarray(answer[0]).dtype.kind in "iu" and np.asarray(answer[1]).dtype.kind == "f":
        raise ValueError(
            f"must return (rewards, next states), got {answer!r}: are rewards and next states "
            "swapped?"
        )
    states = checks.integers("next states", answer[1], "action")
    checks.same_shape("rewards", rewards.shape, (size,), "(num_queried,)")
    checks.same_shape("next states", states.shape, (size,), "(num_queried,)")
    checks.states("next states", states, simulator.num_states, "action")
    above = np.abs(rewards) > bound
    checks.refuse("rewards", rewards, above, f"is above reward_bound = {bound}", ["action"])
    return list(zip(rewards.tolist(), states.tolist(), strict=True))


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

    @property
    def lives(self) -> int | None:
        """Lives left, where the simulator counts them."""
        return self.info.get("lives")
