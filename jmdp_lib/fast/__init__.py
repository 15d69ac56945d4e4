"""What makes it fast: the paper's fixed points as linear systems. This file is the only door.

    collapsed   T_2 on the pairs of states that are asked for: three systems instead of one sweep
    affine      these systems, solved: BiCGSTAB with a safeguard, Gauss-Seidel for sparse chains
    dense       the third of them on all pairs of states, on a processor or a torch device
    reachable   the same on the pairs that the asked gaps reach
    multisets   T_n on multisets of states

Solvers enter here. Nothing below them does, and nothing here knows of a solver: whoever wants to
understand the paper can leave this folder closed.
"""

from jmdp_lib.fast.affine import (
    Chain,
    Solved,
    SolvedPairs,
    choose_pairs,
    dense_bytes,
    solve,
    solve_chains,
    solve_pairs,
)
from jmdp_lib.fast.collapsed import AskedGaps, CollapsedT2, PairStep, products, ragged
from jmdp_lib.fast.dense import DensePairs, PairArrays, PairMap, device_bytes, scaled_kernels
from jmdp_lib.fast.multisets import MultisetOperator, System
from jmdp_lib.fast.reachable import PairSet, places

__all__ = [
    "AskedGaps",
    "Chain",
    "CollapsedT2",
    "DensePairs",
    "MultisetOperator",
    "PairArrays",
    "PairMap",
    "PairSet",
    "PairStep",
    "Solved",
    "SolvedPairs",
    "System",
    "choose_pairs",
    "dense_bytes",
    "device_bytes",
    "places",
    "products",
    "ragged",
    "scaled_kernels",
    "solve",
    "solve_chains",
    "solve_pairs",
]
