"""A world given by its step function, as it is played: no outcome tables are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.model.queries import declared_range, draw_index


@dataclass(frozen=True, eq=False)
class StepSimulator:
    """A world as it is played, without tables: a query draws one noise, and every action meets it.

    Its attributes are the arguments of `JMDP.from_step`, which makes the outcome tables of the same
    world: `JMDP.from_step(*vars(simulator).values())`. From one generator, both draw the same.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> def step(state, action, rain):
        ...     return (-0.2 if action == 0 else -float(rain)), 0
        ...
        >>> world = jl.StepSimulator(1, 2, 0.9, [0.7, 0.3], step)
        >>> world.query(0, [0, 1], np.random.default_rng(2))
        ([-0.2, -0.0], [0, 0])
        >>> jl.JMDP.from_step(*vars(world).values())
        JMDP(num_states=1, num_actions=2, num_tables=2, gamma=0.9)
    """

    num_states: int
    num_actions: int
    gamma: float
    noise_probs: ArrayLike
    step: Callable[[int, int, int], tuple[float, int]]
    reward_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        checks.distributions("noise_probs", self.noise_probs, "noise")
        declared_range(self.reward_range)

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[float], list[int]]:
        """Rewards (m,) and next states (m,) of the actions under one draw of the noise."""
        noise = draw_index(np.cumsum(self.noise_probs), rng)
        rewards, states = zip(*(self.step(state, a, noise) for a in actions), strict=True)
        return list(rewards), list(states)
