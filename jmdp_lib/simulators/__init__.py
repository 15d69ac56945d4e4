"""Gaps from a simulator: your own, a Gymnasium environment, a vectorised one, or a JMDP."""

from typing import TYPE_CHECKING

import lazy_loader

from jmdp_lib.model.simulator import Simulator, SimulatorError
from jmdp_lib.simulators.decisions import compare_actions, compare_policies
from jmdp_lib.simulators.estimates import estimate_gaps
from jmdp_lib.simulators.gaps import GapEstimate
from jmdp_lib.simulators.plans import Decision
from jmdp_lib.simulators.vector import VectorSimulator

if TYPE_CHECKING:
    from jmdp_lib.simulators.coupled_env import CoupledEnv, Outcome

__all__ = ["CoupledEnv", "Decision", "GapEstimate", "Outcome", "Simulator", "SimulatorError"]
__all__ += ["VectorSimulator", "compare_actions", "compare_policies", "estimate_gaps"]

# They alone need Gymnasium, and are loaded when they are first used.
__getattr__, *_ = lazy_loader.attach(
    __name__, submod_attrs={"coupled_env": ["CoupledEnv", "Outcome"]}
)


def __dir__() -> list[str]:
    return __all__
