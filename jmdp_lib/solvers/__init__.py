"""Solvers: one fixed-point loop, and the evaluations that run it."""

from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution
from jmdp_lib.solvers.incremental import IncrementalSolution, StepSize, incremental_jipe2
from jmdp_lib.solvers.incremental_n import incremental_jipe
from jmdp_lib.solvers.jipe_n import jipe
from jmdp_lib.solvers.order2 import Plan, jipe2, plan_jipe2
from jmdp_lib.solvers.projected import ProjectedSolution, projected_jipe2
from jmdp_lib.solvers.trace import Trace, covariance_rates, decay_rate, trace_jipe2

__all__ = [
    "ConvergenceWarning",
    "IncrementalSolution",
    "Plan",
    "ProjectedSolution",
    "Solution",
    "StepSize",
    "Trace",
    "covariance_rates",
    "decay_rate",
    "incremental_jipe",
    "incremental_jipe2",
    "jipe",
    "jipe2",
    "plan_jipe2",
    "projected_jipe2",
    "trace_jipe2",
]
