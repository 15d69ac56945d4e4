"""The model: outcome tables, enumerated or not, couplings, and the query of a simulator."""

from jmdp_lib.model.implicit import ImplicitJMDP
from jmdp_lib.model.jmdp import (
    COUPLINGS,
    JMDP,
    checked_coupling,
    epsilon_mixture,
    require_tables,
    room_for_tables,
    uniform_policy,
)

__all__ = ["COUPLINGS", "JMDP", "ImplicitJMDP", "checked_coupling", "epsilon_mixture"]
__all__ += ["require_tables", "room_for_tables", "uniform_policy"]
