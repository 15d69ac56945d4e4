"""The model: outcome tables, couplings, and what a simulator is."""

from jmdp_lib.model.jmdp import COUPLINGS as COUPLINGS
from jmdp_lib.model.jmdp import JMDP as JMDP
from jmdp_lib.model.jmdp import checked_coupling as checked_coupling
from jmdp_lib.model.jmdp import require_noise as require_noise
from jmdp_lib.model.jmdp import require_tables as require_tables
from jmdp_lib.model.tables import room_for_tables as room_for_tables
