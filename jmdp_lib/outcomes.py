"""What a query of a simulator returns."""

from __future__ import annotations

from typing import Any, NamedTuple


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
