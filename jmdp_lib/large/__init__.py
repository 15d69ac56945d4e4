"""Gaps at a few states of a model that is never enumerated: `ImplicitJMDP` and `local_jipe2`."""

from jmdp_lib.large.implicit import ImplicitJMDP
from jmdp_lib.large.local import LocalSolution, local_jipe2

__all__ = ["ImplicitJMDP", "LocalSolution", "local_jipe2"]
