"""Exact results beyond the paper: gap distributions, ranges over couplings, gaps of policies."""

from jmdp_lib.laws.brackets import GapLaw, PhiBracket, StepBracket
from jmdp_lib.laws.coupling_range import CouplingRange, coupling_range
from jmdp_lib.laws.gap_law import gap_law
from jmdp_lib.laws.improvement import Improvement, cautious_improvement
from jmdp_lib.laws.policy_gaps import PolicyGap, policy_gaps

__all__ = ["CouplingRange", "GapLaw", "Improvement", "PhiBracket", "PolicyGap", "StepBracket"]
__all__ += ["cautious_improvement", "coupling_range", "gap_law", "policy_gaps"]
