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
from jmdp_lib.model.tables import require_table_memory

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
    "require_table_memory",
    "require_tables",
]
