"""Atari games as joint MDPs. No other part of `jmdp_lib` imports ale_py.

`CoupledAtari` queries all actions under one shared draw. Outcome tables gathered from games, and
networks that learn moments, are an experiment outside the library, `experiments.atari`.
"""

from jmdp_lib.machine import extra

with extra("atari"):
    from jmdp_lib.atari.env import CoupledAtari, Draw, Snapshot

__all__ = ["CoupledAtari", "Draw", "Snapshot"]
