"""Atari games as joint MDPs. Importing this, and nothing else in `jmdp_lib`, imports ale_py.

`CoupledAtari` queries all actions under one shared draw; `collect` and `evaluation_states` gather
outcome tables; `record_pairs` and `gap_estimates` are the Monte Carlo answer for the gap.
"""

from jmdp_lib.atari.collect import collect, evaluation_states
from jmdp_lib.atari.emulator import games
from jmdp_lib.atari.env import CoupledAtari
from jmdp_lib.atari.gaps import GapEstimates, PairRecords, gap_estimates, shock_ratio
from jmdp_lib.atari.montecarlo import record_pairs
from jmdp_lib.atari.state import Draw, Shock, Snapshot
from jmdp_lib.atari.tables import Tables

__all__ = [
    "CoupledAtari",
    "Draw",
    "GapEstimates",
    "PairRecords",
    "Shock",
    "Snapshot",
    "Tables",
    "collect",
    "evaluation_states",
    "games",
    "gap_estimates",
    "record_pairs",
    "shock_ratio",
]
