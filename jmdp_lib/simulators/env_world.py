"""The world of `coupled_env.Coupled` environments: one for each branch of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jmdp_lib.model import Coupling
from jmdp_lib.model.simulator import SimulatorError, outside
from jmdp_lib.simulators.rows import Draws, End, Outcome, Range, RowWorld


class Environment(ABC):
    """Base class of simulators with a state of their own; `coupled_env.Coupled` has the methods.

    That module needs Gymnasium; this one must be importable without it.
    """

    @abstractmethod
    def twin(self) -> Any:
        """A second environment in this state with this table.

        Both draw later tables from one generator.
        """


class EnvironmentWorld(RowWorld):
    """Simulates identical environments, one for each branch; a state is the index of one of them.

    Branches that meet go on in the environment of the first.

    env: the environment of the first branch; the others are its twins, unless `envs` has more.
    state: a snapshot inside an episode, by default of the present state.
    """

    chunk = 32

    def __init__(self, env: Any, state: Any) -> None:
        start = env.snapshot() if state is None else state
        if getattr(start, "over", True):
            raise ValueError(
                "state must be a snapshot inside an episode, such as env.snapshot() after "
                f"env.reset(), not {start!r}"
            )
        self.snapshot = start._replace(draw=None)  # each run has its own tables
        self.here = start.observation
        self.simulator = env
        self.envs = [env]
        self.space = env.action_space
        self.num_actions = _listed(self.space)
        self.num_states = _listed(env.observation_space)
        self.can_keep = self.num_states is not None
        self.by_key: dict[str, Any] = {}  # actions that are not integers

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        return list(distinct_in(self.space, actions).values())

    def number(self, action: Any) -> Any:
        if self.num_actions is not None:
            return int(action)
        key = action_key(self.space, action)
        self.by_key[key] = action
        return key

    def begin(self, width: int, noise: np.random.Generator) -> None:
        self.by_key.clear()
        self.envs.extend(self.envs[0].twin() for _ in range(width - len(self.envs)))
        for env in self.envs:
            env.np_random = noise

    def start(self, width: int) -> list[Any]:
        self.envs[0].restore(self.snapshot)
        return [0] * width

    def seen(self, state: int) -> Any:
        return self.envs[state].observed

    def step(
        self, draws: Draws, coupling: Coupling, limits: Range, noise: np.random.Generator
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        here: set[int] = set()  # where branches are after the step
        for action, branches in self._placed(draws, coupling):
            own = branches[0]
            env = self.envs[own]
            seen = env.observed
            taken = self.by_key.get(action, action)
            try:
                _, reward, terminated, truncated, _ = env.step(taken)
            except Exception as error:
                where = f"state {seen}, action {taken}"
                raise SimulatorError(f"the environment failed at {where}: {error!r}") from error
            if not limits[0] <= reward <= limits[1]:
                raise outside(limits, reward, taken, seen)
            after: Any = End.OVER if terminated else End.LIMIT
            if not (terminated or truncated):
                after = next((k for k in here if self.envs[k].same_state(env)), own)
                here.add(after)
            outcomes.append((branches, (reward, after)))
        return outcomes

    def _placed(self, draws: Draws, coupling: Coupling) -> list[tuple[Any, list[int]]]:
        """The actions of all draws, and the branches that take them.

        The environment of the first of these branches is set to their state and their draw. So a
        state has the index of the environment of the first branch there; the environments of the
        other branches are free.
        """
        draw = None
        for key, (_, groups) in draws.items():
            number = key if coupling.at_one_state else key[0]
            home = self.envs[number]
            if coupling.across_states and draw is not None:
                home.redraw(draw)
            draw = home.draw
            for own, *_ in groups:
                if own != number:
                    given = draw if coupling.at_one_state else None
                    self.envs[own].restore(home.snapshot()._replace(draw=given))
        return [item for pair in draws.values() for item in zip(*pair, strict=True)]


def _listed(space: Any) -> int | None:
    """Number of elements of a Gymnasium space of the integers from 0 on, else None."""
    return int(space.n) if type(space).__name__ == "Discrete" and space.start == 0 else None


def distinct_in(space: Any, actions: Any) -> dict[str, Any]:
    """Actions of a Gymnasium space in their order, by keys that distinguish them."""
    chosen = list(actions) if isinstance(actions, Iterable) else []
    for action in chosen:
        if not space.contains(action):
            raise IndexError(f"action {action!r} is not in {space}")
    keys = {repr(space.to_jsonable([action])): action for action in chosen}
    if not keys or len(keys) < len(chosen):
        raise ValueError(f"request at least one action, all distinct, got {actions!r}")
    return keys


def action_key(space: Any, action: Any) -> str:
    """A key that is equal for equal actions of a Gymnasium space, whatever their parts."""
    with suppress(TypeError, ValueError):
        if type(space).__name__ != "Discrete" or space.contains(action):
            return repr(space.to_jsonable([action]))
    raise ValueError(
        f"{action!r} is not an action of {space}; if actions are not integers from 0 on, a policy "
        "must return an action, not probabilities"
    )
