"""Step sizes and coordinate selection for stochastic approximation (Theorem 5.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints

BLOCKS = ("mu", "diag", "same", "cross")


@dataclass(frozen=True)
class StepSize:
    """alpha = scale / visits^power, counted over the visits of *each coordinate*.

    Robbins and Monro ask for sum alpha = infinity and sum alpha^2 < infinity over those visits:
    1/2 < power <= 1, and a step in (0, 1] for 0 < scale <= 1. Anything else is refused.
    """

    scale: float = 1.0
    power: float = 0.6

    def __post_init__(self) -> None:
        name = f"step size {self.scale} / visits^{self.power}"
        if not 0.0 < self.scale <= 1.0:
            raise ValueError(f"{name}: the first step must lie in (0, 1]")
        if not self.power > 0.5:
            raise ValueError(
                f"{name} breaks Robbins-Monro: the sum of its squares diverges (power <= 1/2), "
                "so the noise never dies out"
            )
        if not self.power <= 1.0:
            raise ValueError(
                f"{name} breaks Robbins-Monro: its sum converges (power > 1), so a wrong start is "
                "never forgotten"
            )

    @classmethod
    def of(cls, value: StepSize | tuple[float, float] | float) -> StepSize:
        """A schedule from itself, from (scale, power), or from a constant (which is refused)."""
        if isinstance(value, StepSize):
            return value
        if np.shape(value) == (2,):
            return cls(*(checks.real("step size", part) for part in np.asarray(value)))
        return cls(checks.real("step size", value), 0.0)


def selection_weights(selection: str | Mapping[str, float] | ArrayLike, blocks: Ints) -> Floats:
    """The probability of every coordinate, given the block (index into BLOCKS, or -1) of each.

    selection: "uniform"; a mapping of block names to probabilities, uniform within each block; or
    one probability per coordinate. Every coordinate must keep coming up (Theorem 5.4), so none may
    have probability zero.
    """
    used = blocks >= 0
    if isinstance(selection, str):
        checks.one_of("selection", selection, ["uniform"])
        return used / used.sum()
    if isinstance(selection, Mapping):
        sizes = {name: int((blocks == i).sum()) for i, name in enumerate(BLOCKS)}
        for name in selection:
            checks.one_of("selection block", name, BLOCKS)
        present = [name for name in BLOCKS if sizes[name]]
        shares = np.array([float(selection.get(name, 0.0)) for name in present])
        for name, share in zip(present, shares, strict=True):
            if not 0.0 < share < np.inf:
                raise ValueError(
                    f"selection gives block {name!r} the share {share}: every block needs a finite "
                    "one above zero, to be updated infinitely often (Theorem 5.4)"
                )
        shares /= shares.sum()
        weights = np.zeros(blocks.size)
        for name, share in zip(present, shares, strict=True):
            weights[blocks == BLOCKS.index(name)] = share / sizes[name]
        return weights
    weights = checks.distributions("selection", selection, "coordinate")
    checks.same_shape("selection", weights.shape, blocks.shape, "(num_coordinates,)")
    never = used & (weights == 0.0)
    checks.refuse("selection", weights, never, "never updates that coordinate", ["coordinate"])
    idle = ~used & (weights > 0.0)
    checks.refuse("selection", weights, idle, "is for no coordinate of this form", ["coordinate"])
    return weights
