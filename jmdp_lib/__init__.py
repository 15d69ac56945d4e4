"""Joint MDPs: exact and sampled moments of the joint returns of all actions, and their gaps.

Model: `JMDP`, the environments, the policies. Operators: `apply_t2`, `sample_t2`. Solvers:
`jipe2`, `jipe`, `incremental_jipe2`, `projected_jipe2`. Results: `Solution` and its `Moments`.
The whole law of a gap: `gap_law`. One state of a model too large to enumerate: `ImplicitJMDP` and
`local_jipe2`. To check any of them: `simulate_pairs`, `sample_gaps` and `simulate_returns`.
Simulators: your own `Simulator`, a `StepSimulator`, `CoupledEnv`, and
`jmdp_lib.atari`, which, like `jmdp_lib.figures`, is imported on its own.
"""

from typing import TYPE_CHECKING, Any

from jmdp_lib.environments import (
    coupled_reward_chain,
    epsilon_mixture,
    example_1,
    example_2_1,
    example_2_2,
    goal_policy,
    inventory,
    inventory_simulator,
    two_queues,
    two_queues_simulator,
    uniform_policy,
    windy_gridworld,
)
from jmdp_lib.machine import extra
from jmdp_lib.model import JMDP
from jmdp_lib.model.implicit import ImplicitJMDP
from jmdp_lib.model.simulator import Outcome, Simulator, SimulatorError, StepSimulator
from jmdp_lib.moments import (
    MomentBounds,
    Moments,
    contraction_modulus,
    cvar_bounds,
    norm_weight,
    one_sided_bound,
    quantile_bounds,
    tail_bounds,
)
from jmdp_lib.operators.backups import sample_t2
from jmdp_lib.operators.literal import apply_t2
from jmdp_lib.operators.multisets import measured_modulus
from jmdp_lib.operators.pairs import first_to_arrive, mass_apart, pair_step, steps_to_reach
from jmdp_lib.simulators.decisions import compare_actions, compare_policies
from jmdp_lib.simulators.estimates import estimate_gaps
from jmdp_lib.simulators.montecarlo import sample_gaps, simulate_pairs, simulate_returns
from jmdp_lib.simulators.resampling import resample_gaps
from jmdp_lib.simulators.results import Decision, EstimatedGaps, PlayedGaps
from jmdp_lib.simulators.statistics import asymptotic_sequence, log_capital, normal_p_values
from jmdp_lib.simulators.vector_simulator import VectorSimulator
from jmdp_lib.solvers.coupling_range import CouplingRange, coupling_range
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Plan, Solution
from jmdp_lib.solvers.improvement import Improvement, cautious_improvement
from jmdp_lib.solvers.incremental import IncrementalSolution, StepSize, incremental_jipe2
from jmdp_lib.solvers.laws.brackets import GapLaw
from jmdp_lib.solvers.laws.gap_law import gap_law, plan_gap_law
from jmdp_lib.solvers.local import LocalSolution, local_jipe2
from jmdp_lib.solvers.order2 import jipe2, plan_jipe2
from jmdp_lib.solvers.order_n import incremental_jipe, jipe, plan_jipe
from jmdp_lib.solvers.policy_gaps import policy_gaps
from jmdp_lib.solvers.projected import ProjectedSolution, projected_jipe2
from jmdp_lib.solvers.projection import (
    aggregation_features,
    per_action,
    rbf_features,
    tabular_features,
)
from jmdp_lib.solvers.trace import Trace, covariance_rates, decay_rate, trace_jipe2

if TYPE_CHECKING:
    from jmdp_lib.simulators.coupled_env import CoupledEnv

__version__ = "0.1.0"

__all__ = ["JMDP", "ImplicitJMDP", "epsilon_mixture", "uniform_policy"]
__all__ += ["coupled_reward_chain", "example_1", "example_2_1", "example_2_2"]
__all__ += ["goal_policy", "inventory", "inventory_simulator", "two_queues", "two_queues_simulator"]
__all__ += ["windy_gridworld"]
__all__ += ["apply_t2", "contraction_modulus", "measured_modulus", "norm_weight", "sample_t2"]
__all__ += ["first_to_arrive", "mass_apart", "pair_step", "steps_to_reach"]
__all__ += ["Trace", "covariance_rates", "decay_rate", "trace_jipe2"]
__all__ += ["coupling_range", "gap_law", "jipe", "jipe2"]
__all__ += ["plan_gap_law", "plan_jipe", "plan_jipe2"]
__all__ += ["local_jipe2", "policy_gaps"]
__all__ += ["incremental_jipe", "incremental_jipe2", "projected_jipe2", "resample_gaps"]
__all__ += ["aggregation_features", "per_action"]
__all__ += ["rbf_features", "tabular_features"]
__all__ += ["cvar_bounds", "one_sided_bound", "quantile_bounds", "tail_bounds"]
__all__ += ["cautious_improvement", "compare_actions", "compare_policies", "estimate_gaps"]
__all__ += ["sample_gaps", "simulate_pairs", "simulate_returns"]
__all__ += ["asymptotic_sequence", "log_capital", "normal_p_values"]
__all__ += ["CoupledEnv", "Outcome", "Simulator", "SimulatorError", "StepSimulator"]
__all__ += ["VectorSimulator"]
__all__ += ["ConvergenceWarning", "IncrementalSolution", "ProjectedSolution"]
__all__ += ["CouplingRange", "MomentBounds", "Moments", "Plan", "Solution", "StepSize"]
__all__ += ["LocalSolution"]
__all__ += ["Decision", "EstimatedGaps", "GapLaw", "Improvement", "PlayedGaps"]


def __getattr__(name: str) -> Any:
    """`CoupledEnv`, imported when it is first used: it alone needs Gymnasium."""
    if name != "CoupledEnv":
        raise AttributeError(f"module 'jmdp_lib' has no attribute {name!r}")
    with extra("atari"):
        from jmdp_lib.simulators.coupled_env import CoupledEnv
    return CoupledEnv
