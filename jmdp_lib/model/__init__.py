"""The model: outcome tables, couplings, and the protocol of simulators."""

from jmdp_lib.model.coupling import (
    COMMON,
    DEFAULT_COUPLING,
    INDEPENDENT,
    JOINT,
    Coupling,
    CouplingName,
    declared_coupling,
)
from jmdp_lib.model.jmdp import JMDP, checked_coupling, require_noise, require_tables
from jmdp_lib.model.tables import room_for_tables

__all__ = [
    "COMMON",
    "DEFAULT_COUPLING",
    "INDEPENDENT",
    "JMDP",
    "JOINT",
    "Coupling",
    "CouplingName",
    "checked_coupling",
    "declared_coupling",
    "require_noise",
    "require_tables",
    "room_for_tables",
]
