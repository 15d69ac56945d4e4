"""Fast solution of the paper's fixed points, as linear systems. Import from here alone.

    collapsed   T_2 averaged over the policy: three linear systems, and steps of chosen pairs
    affine      solution of such systems: BiCGSTAB with a safeguard, Gauss-Seidel for sparse chains
    dense       the third system on all pairs of states, in NumPy or on a torch device
    threads     compiled functions on all threads, and rows filled in threads
    reachable   the third system on the pairs of states that the requested gaps reach
    systems     all three systems, by the route that `jipe2` takes: the source of its moments
    multisets   T_n on multisets of states: the source of the moments of `jipe`

Solvers use this subpackage; models and operators do not, and nothing here imports a solver.
Readers who want to understand the paper can skip it.
"""

from jmdp_lib.fast.affine import Chain, solve
from jmdp_lib.fast.collapsed import (
    CollapsedBackup,
    CollapsedT2,
    Gaps,
    PairStep,
    entries_of,
)
from jmdp_lib.fast.dense import PairMap, dense_pairs, largest_of, scaled_kernels
from jmdp_lib.fast.multisets import MomentsFromMultisets, MultisetOperator
from jmdp_lib.fast.reachable import PairSet
from jmdp_lib.fast.systems import solve_chains, solve_pairs
from jmdp_lib.fast.threads import fill_rows, threaded

__all__ = [
    "Chain",
    "CollapsedBackup",
    "CollapsedT2",
    "Gaps",
    "MomentsFromMultisets",
    "MultisetOperator",
    "PairMap",
    "PairSet",
    "PairStep",
    "dense_pairs",
    "entries_of",
    "fill_rows",
    "largest_of",
    "scaled_kernels",
    "solve",
    "solve_chains",
    "solve_pairs",
    "threaded",
]
