"""Outcome tables counted in the answers of a simulator (`JMDP.from_simulator`)."""

import numpy as np

from jmdp_lib import randomness
from jmdp_lib.machine import progress
from jmdp_lib.model.simulator import Simulator, checked_query
from jmdp_lib.model.tables import Stacked, stacked
from jmdp_lib.randomness import RNG


def counted_tables(simulator: Simulator, count: int, rng: RNG) -> Stacked:
    """Tables of all states, from `count` queries of each for all actions; equal answers are one.

    Every state has a random stream of its own.
    """
    root = randomness.seed_of(rng, "from_simulator")
    num_states = simulator.num_states
    actions = list(range(simulator.num_actions))
    counted = []
    for s in progress(num_states, "from_simulator", "state", range(num_states)):
        stream = np.random.default_rng(randomness.part(root, s))
        drawn = [checked_query(simulator, s, actions, stream) for _ in range(count)]
        tables, times = np.unique(drawn, axis=0, return_counts=True)  # (K, A, 2), (K,)
        counted.append((times / count, tables))
    return stacked(counted)
