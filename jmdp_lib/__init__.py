"""Joint MDPs: exact and sampled moments of the joint returns of all actions, and their gaps.

The core is the paper. Model: `JMDP`, the environments, the policies. Operators: `apply_t2`,
`sample_t2`, `pair_step`. Solvers: `jipe2`, `jipe`, `incremental_jipe2`, `projected_jipe2`.
Simulation of a JMDP: `simulate_pairs` and `simulate_returns`.

Beside it stand sub-packages that the core never imports, each loaded when it is first used:
`laws`, the whole distribution of a gap and other exact answers beyond the paper; `large`, one state
of a model that nobody enumerates; `simulators`, your own simulator, Gymnasium and vectorised ones;
and `atari`, the ALE query wrapper.

What is public stands in `__init__.pyi`, which type checkers read, too.
"""

from typing import Any

import lazy_loader

__version__ = "1.0.0"
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_ELSEWHERE = {
    "laws": "CouplingRange GapLaw Improvement PhiBracket PolicyGap StepBracket cautious_improvement"
    " coupling_range gap_law policy_gaps",
    "large": "ImplicitJMDP LocalSolution local_jipe2",
    "simulators": "CoupledEnv Decision GapEstimate Outcome Simulator SimulatorError"
    " VectorSimulator compare_actions compare_policies estimate_gaps",
    "atari": "CoupledAtari Draw Snapshot",
}


def __getattr__(name: str) -> Any:
    """Load a public name; the error for a name of a subpackage says where it is."""
    try:
        return _public(name)
    except AttributeError:
        for place, names in _ELSEWHERE.items():
            if name in names.split():
                use = f"jl.{place}.{name}"
                raise AttributeError(f"jl.{name} is in jl.{place}: use {use}") from None
        raise
