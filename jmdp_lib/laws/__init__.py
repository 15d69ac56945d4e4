"""Exact answers beyond the paper: distributions of gaps, ranges over couplings, whole policies."""

from jmdp_lib.laws.brackets import GapLaw
from jmdp_lib.laws.coupling_range import coupling_range
from jmdp_lib.laws.gap_law import gap_law
from jmdp_lib.laws.improvement import cautious_improvement
from jmdp_lib.laws.policy_gaps import policy_gaps

__all__ = ["GapLaw", "cautious_improvement", "coupling_range", "gap_law", "policy_gaps"]
