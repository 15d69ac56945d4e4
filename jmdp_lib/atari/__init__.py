"""Atari games as joint MDPs. Importing this, and nothing else in `jmdp_lib`, imports ale_py.

`CoupledAtari` queries all actions under one shared draw; `collect` and `evaluation_states` gather
outcome tables of a `Game`; `record_pairs` and `pair_gaps` are the Monte Carlo answer for the
gap. Networks that learn moments are an experiment beside the library, `experiments.atari`.
"""

from jmdp_lib.machine import extra

with extra("atari"):
    from jmdp_lib.atari.emulator import games
    from jmdp_lib.atari.env import CoupledAtari, Draw, Game, Shock, Snapshot
    from jmdp_lib.atari.recursive_pairs import (
        PairGaps,
        PairRecords,
        Tail,
        pair_gaps,
        record_pairs,
        shock_ratio,
    )
    from jmdp_lib.atari.tables import QueryTables, collect, evaluation_states

__all__ = [
    "CoupledAtari",
    "Draw",
    "Game",
    "PairGaps",
    "PairRecords",
    "QueryTables",
    "Shock",
    "Snapshot",
    "Tail",
    "collect",
    "evaluation_states",
    "games",
    "pair_gaps",
    "record_pairs",
    "shock_ratio",
]
