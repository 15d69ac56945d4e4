"""What makes it fast: the paper's fixed points as linear systems. This file is the only door.

    collapsed   T_2 averaged over the policy: three linear systems, and steps of chosen pairs
    affine      solves such systems: BiCGSTAB with a safeguard, Gauss-Seidel for sparse chains
    dense       the third system on all pairs of states, on a processor or a torch device
    threads     compiled functions on all threads, and rows filled in threads
    reachable   the same on the pairs that the wanted gaps reach
    systems     all three, by the route that `jipe2` takes: the source of its moments
    multisets   T_n on multisets of states, and the source of the moments of `jipe`

Solvers enter here. Nothing below them does, and nothing here knows of a solver: whoever wants to
understand the paper can leave this folder closed.
"""

from jmdp_lib.fast.affine import Chain, solve
from jmdp_lib.fast.collapsed import (
    CollapsedBackup,
    CollapsedT2,
    Gaps,
    PairStep,
    checked_gaps,
    ragged,
)
from jmdp_lib.fast.dense import DensePairs, PairArrays, PairMap, largest_of, scaled_kernels
from jmdp_lib.fast.multisets import MomentsFromMultisets, MultisetOperator
from jmdp_lib.fast.reachable import PairSet
from jmdp_lib.fast.systems import solve_chains, solve_pairs
from jmdp_lib.fast.threads import fill_rows, threaded

__all__ = [
    "Chain",
    "CollapsedBackup",
    "CollapsedT2",
    "DensePairs",
    "Gaps",
    "MomentsFromMultisets",
    "MultisetOperator",
    "PairArrays",
    "PairMap",
    "PairSet",
    "PairStep",
    "checked_gaps",
    "fill_rows",
    "largest_of",
    "ragged",
    "scaled_kernels",
    "solve",
    "solve_chains",
    "solve_pairs",
    "threaded",
]
