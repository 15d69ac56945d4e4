"""Small JMDPs as tables to learn from: tests train on models whose moments `jipe2` computes."""

from __future__ import annotations

import numpy as np

from experiments.atari.tables import Bytes, QueryTables
from jmdp_lib.model import JMDP


def with_shock(jm: JMDP, sigma: float) -> JMDP:
    """R(a) + sigma U with U = +-1 fair, one per table: the tables twice, at half the weight."""
    return JMDP.from_tables(
        np.tile(jm.table_states, 2),
        np.tile(jm.probs / 2, 2),
        np.concatenate([jm.rewards + sigma, jm.rewards - sigma]),
        np.tile(jm.next_states, (2, 1)),
        jm.num_states,
        jm.gamma,
    )


def tables_of(jm: JMDP, seen: Bytes) -> QueryTables:
    """All tables of a JMDP whose states are seen as (S, D) uint8.

    So training can be tested on a model with a known answer. The pairs are all those of distinct
    states where two branches of one query stand after a step. No branch ends; absorbing states go
    on.
    """
    count = jm.probs.size
    ends = np.broadcast_arrays(jm.next_states[:, :, None], jm.next_states[:, None, :])
    left, right = (end.ravel() for end in ends)
    return QueryTables(
        num_actions=jm.num_actions,
        actions=np.tile(np.arange(jm.num_actions), (count, 1)),
        observations=seen[jm.table_states],
        rewards=jm.rewards,
        next_observations=seen[jm.next_states],
        terminated=np.zeros(jm.next_states.shape, dtype=bool),
        next_ids=jm.next_states,
        state_ids=jm.table_states,
        weights=jm.probs,
        pairs=jm.starts[np.column_stack([left, right])[left != right]],
    )
