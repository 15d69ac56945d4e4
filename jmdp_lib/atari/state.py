"""The parts of a coupled Atari JMDP: the draw of a table, the reward shock, the state."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.atari.emulator import full

SHOCK_LAWS = ("sign", "normal")


class Draw(NamedTuple):
    """All the randomness of one outcome table.

    repeats: leading frames on which the sticky lottery repeats the previous action, whatever the
        queried action is. A repeat after the first frame that obeys repeats the queried action
        itself, so of the 2^frame_skip patterns only frame_skip + 1 differ.
    shock: U of the reward shock; None where there is none.
    """

    repeats: int
    shock: float | None = None


@dataclass(frozen=True, eq=False, init=False)
class Shock:
    """R(a) = clip(r, -1, 1) + sigma * w_a * U with one U per table (Section 6's diagnostic).

    loadings: (A,) w_a, one per *action*, never per position in a query; None: all ones.
    law: "sign" (U = +1 or -1, fair) or "normal" (standard).
    """

    sigma: float
    loadings: tuple[float, ...] | None
    law: str

    def __init__(self, sigma: float, loadings: ArrayLike | None = None, law: str = "sign") -> None:
        weights = None if loadings is None else checks.floats("loadings", loadings, "action")
        object.__setattr__(self, "sigma", checks.positive("sigma", sigma))
        object.__setattr__(self, "loadings", None if weights is None else tuple(weights.tolist()))
        object.__setattr__(self, "law", checks.one_of("law", law, SHOCK_LAWS))

    def scales(self, num_actions: int) -> tuple[float, ...]:
        """(A,) sigma * w_a."""
        weights = self.loadings or (1.0,) * num_actions
        checks.same_shape("loadings", (len(weights),), (num_actions,), "(num_actions,)")
        return tuple(self.sigma * w for w in weights)

    def draw(self, rng: np.random.Generator) -> float:
        """U."""
        return rng.standard_normal() if self.law == "normal" else 2.0 * rng.integers(2) - 1.0


class Snapshot(NamedTuple):
    """A JMDP state of one game; it pickles.

    To be restored by any `CoupledAtari` of that game; with its draw, by one of the same lottery.

    Attributes:
        game: ROM id.
        saved: ALEState of the emulator, without the numbers of a generator that play never uses.
        moves: emulator actions to be played from there, one per frame: a queried successor is
            kept as the way to it, which costs nothing until someone wants to go there.
        previous: index of the previous action, which the lottery may repeat; A (one past the last
            action) where none is part of the state: sticky_prob = 0.
        observation: what is seen here (the emulator restores its memory, but not its screen).
        over: whether the episode has ended here.
        draw: the table drawn for this visit; None: `restore` draws one.
    """

    game: str
    saved: Any
    moves: tuple[int, ...]
    previous: int
    observation: NDArray[np.uint8]
    over: bool
    draw: Draw | None

    @property
    def state(self) -> Any:
        """ALEState of the emulator as it clones it, before the moves."""
        return full(self.saved, self.game)

    @property
    def identity(self) -> int:
        """64-bit digest of emulator state and previous action: equal iff the states are.

        RAM alone is not the state (Pong), and `hash(ALEState)` is by object.
        """
        if self.moves:
            raise ValueError("this successor was not cloned: query(actions, clones=True)")
        digest = blake2b(self.saved.serialize(), digest_size=8, salt=bytes([self.previous]))
        return int.from_bytes(digest.digest(), "little", signed=True)
