"""The model: outcome tables, couplings, and what a simulator is."""

from jmdp_lib.model.jmdp import COUPLINGS, JMDP, checked_coupling, require_noise, require_tables
from jmdp_lib.model.tables import room_for_tables

__all__ = ["COUPLINGS", "JMDP", "checked_coupling", "require_noise", "require_tables"]
__all__ += ["room_for_tables"]
