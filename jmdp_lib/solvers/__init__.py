"""Solvers: one fixed-point loop, and the evaluations that run it."""

from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution
from jmdp_lib.solvers.incremental import IncrementalSolution, incremental_jipe2
from jmdp_lib.solvers.jipe import jipe, jipe2
from jmdp_lib.solvers.schedules import StepSize

__all__ = [
    "ConvergenceWarning",
    "IncrementalSolution",
    "Solution",
    "StepSize",
    "incremental_jipe2",
    "jipe",
    "jipe2",
]
