"""Couplings: the branches that share a draw in a time step, as a word and as a value for solvers.

The words stand in this file alone. A coupling that only changes the tables needs no word: make
another model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from jmdp_lib import checks

CouplingName = Literal["joint", "independent", "common"]
DEFAULT_COUPLING: Final = "joint"


@dataclass(frozen=True)
class Coupling:
    """The branches that share a draw in one time step.

    Whatever the coupling, branches at one state-action coalesce, and separate branches draw their
    next actions independently.

    at_one_state: True if branches with distinct actions at one state share a table. across_states:
    True if branches at distinct states share the noise of their tables; branches at one state then
    share a table, too.
    """

    at_one_state: bool
    across_states: bool

    @classmethod
    def named(cls, name: str | Coupling) -> Coupling:
        """The coupling that a user names."""
        if isinstance(name, Coupling):
            return name
        return _COUPLINGS[checks.one_of("coupling", name, [*_COUPLINGS])]


JOINT: Final = Coupling(at_one_state=True, across_states=False)
INDEPENDENT: Final = Coupling(at_one_state=False, across_states=False)
COMMON: Final = Coupling(at_one_state=True, across_states=True)
_COUPLINGS = {"joint": JOINT, "independent": INDEPENDENT, "common": COMMON}


def declared_coupling(simulator: object) -> Coupling:
    """The coupling of a query's actions, which a simulator declares in its attribute `coupling`."""
    name = getattr(simulator, "coupling", DEFAULT_COUPLING)
    of_one_state = [word for word, value in _COUPLINGS.items() if not value.across_states]
    return Coupling.named(checks.one_of("simulator.coupling", name, of_one_state))
