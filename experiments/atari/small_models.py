"""Small JMDPs as tables to learn from: training is tested on models whose moments `jipe2` knows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from experiments.atari.tables import QueryTables
from jmdp_lib import checks
from jmdp_lib.checks import Ints
from jmdp_lib.model import JMDP

_PAIR_STEPS = 4  # for which two branches are followed


def with_shock(jm: JMDP, sigma: float) -> JMDP:
    """R(a) + sigma U with U = +-1 fair, one per table: the tables twice, at half the weight."""
    shock = checks.real("sigma", sigma)
    return JMDP.from_tables(
        np.tile(jm.table_states, 2),
        np.tile(jm.probs / 2, 2),
        np.concatenate([jm.rewards + shock, jm.rewards - shock]),
        np.tile(jm.next_states, (2, 1)),
        jm.num_states,
        jm.gamma,
    )


def tables_of(jm: JMDP, observations: ArrayLike, num_pairs: int = 0, seed: int = 0) -> QueryTables:
    """All tables of a JMDP whose states are seen as observations (S, D) uint8.

    So training can be tested on a model with a known answer. About `num_pairs` pairs are followed:
    from a uniform state, two distinct actions of one table, then up to four steps with uniform
    independent actions until the branches meet. No branch ends; absorbing states go on.
    """
    sizes: dict[str, int | None] = {"state": jm.num_states, "byte": None}
    seen = checks.integers("observations", observations, below=256, **sizes).astype(np.uint8)
    count = jm.probs.size
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
        pairs=_followed(jm, num_pairs, checks.generator(seed)),
    )


def _followed(jm: JMDP, num_pairs: int, rng: np.random.Generator) -> Ints:
    """(P, 2) rows of the states where two branches of one query stood before they met."""
    found = [np.empty((0, 2), dtype=np.int64)]
    more = jm.num_actions > 1
    while more and sum(map(len, found)) < num_pairs:
        ends = _two_branches(jm, num_pairs, rng)
        more = bool((ends[:, 0] != ends[:, 1]).any())  # else no two branches ever part
        for _ in range(_PAIR_STEPS):
            ends = ends[ends[:, 0] != ends[:, 1]]
            num_tables = jm.starts[ends + 1] - jm.starts[ends]
            found.append(jm.starts[ends] + (rng.random(ends.shape) * num_tables).astype(int))
            ends = np.stack([_moved(jm, states, rng) for states in ends.T], 1)
    return rng.permutation(np.concatenate(found))[:num_pairs]


def _two_branches(jm: JMDP, count: int, rng: np.random.Generator) -> Ints:
    """(count, 2) where two distinct actions of one table of a uniform state lead."""
    table = _draw(jm, rng.integers(jm.num_states, size=count), rng)
    first = rng.integers(jm.num_actions, size=count)
    other = (first + rng.integers(1, jm.num_actions, size=count)) % jm.num_actions
    return jm.next_states[table[:, None], np.stack([first, other], 1)]


def _moved(jm: JMDP, states: Ints, rng: np.random.Generator) -> Ints:
    """Where a uniform action leads from each state."""
    table = _draw(jm, states, rng)
    return jm.next_states[table, rng.integers(jm.num_actions, size=len(states))]


def _draw(jm: JMDP, states: Ints, rng: np.random.Generator) -> Ints:
    """A table of each state; the probabilities of the states before it add up to its number."""
    table = np.searchsorted(np.cumsum(jm.probs), states + rng.random(len(states)), "right")
    return np.clip(table, jm.starts[states], jm.starts[states + 1] - 1)
