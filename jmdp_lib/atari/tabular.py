"""A tabular JMDP presented as a simulator: training code meets a known answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.atari.tables import Tables
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP


def with_shock(jm: JMDP, sigma: float, loadings: Sequence[float] | None = None) -> JMDP:
    """R(a) + sigma w_a U with U = +-1 fair, one per table: the tables twice, at half the weight."""
    weights = np.ones(jm.num_actions) if loadings is None else np.asarray(loadings, dtype=float)
    checks.same_shape("loadings", weights.shape, (jm.num_actions,), "(num_actions,)")
    shock = checks.real("sigma", sigma) * weights
    return JMDP.from_tables(
        np.tile(jm.table_states, 2), np.tile(jm.probs / 2, 2),
        np.concatenate([jm.rewards + shock, jm.rewards - shock]),
        np.tile(jm.next_states, (2, 1)), jm.num_states, jm.gamma,
    )  # fmt: skip


def tables_of(
    jm: JMDP,
    observations: ArrayLike,
    num_pairs: int = 0,
    pair_steps: int = 4,
    num_samples: int | None = None,
    seed: int = 0,
) -> Tables:
    """`Tables` of a JMDP whose states are seen as observations (S, D) uint8.

    All tables with their probabilities, or `num_samples` drawn ones, states uniform. Pairs: from a
    uniform state, two distinct actions of one table, then up to `pair_steps` further steps with
    uniform independent actions until the branches meet; about `num_pairs` of them. No state ends:
    absorbing ones go on.
    """
    seen: NDArray[np.uint8] = np.asarray(observations)
    if seen.dtype != np.uint8 or seen.ndim != 2 or len(seen) != jm.num_states:
        raise ValueError(
            f"observations must be uint8 of shape ({jm.num_states}, D), got {seen.dtype} "
            f"of shape {seen.shape}"
        )
    rng = checks.generator(seed)
    if num_samples is None:
        chosen, weights = np.arange(jm.probs.size), jm.probs
    else:
        checks.at_least("num_samples", num_samples, jm.num_states)
        drawn = rng.integers(jm.num_states, size=num_samples)
        drawn[: jm.num_states] = np.arange(jm.num_states)  # a pair may need any of them
        chosen, weights = _draw(jm, drawn, rng), np.ones(num_samples)
    states, ahead = jm.table_states[chosen], jm.next_states[chosen]
    return Tables(
        num_actions=jm.num_actions,
        actions=np.tile(np.arange(jm.num_actions), (len(chosen), 1)),
        observations=seen[states],
        previous=np.full(len(chosen), jm.num_actions),
        rewards=jm.rewards[chosen],
        next_observations=seen[ahead],
        next_previous=np.full(ahead.shape, jm.num_actions),
        terminated=np.zeros(ahead.shape, dtype=bool),
        next_ids=ahead,
        state_ids=states,
        weights=np.array(weights),
        pairs=_followed(jm, states, num_pairs, pair_steps, rng),
    )


def _followed(jm: JMDP, states: Ints, num_pairs: int, steps: int, rng: np.random.Generator) -> Ints:
    """(P, 2) rows of the states where two branches of one query stood before they met."""
    order = np.argsort(states, kind="stable")
    starts = np.searchsorted(states[order], np.arange(jm.num_states + 1))
    found, size = [np.empty((0, 2), dtype=np.int64)], 0
    while size < num_pairs and jm.num_actions > 1:
        table = _draw(jm, rng.integers(jm.num_states, size=num_pairs), rng)
        first = rng.integers(jm.num_actions, size=num_pairs)
        other = (first + rng.integers(1, jm.num_actions, size=num_pairs)) % jm.num_actions
        left, right = jm.next_states[table, first], jm.next_states[table, other]
        before = size
        for _ in range(steps):
            apart = left != right
            left, right = left[apart], right[apart]
            ends = np.stack([left, right], 1)
            width = starts[ends + 1] - starts[ends]
            found.append(order[starts[ends] + (rng.random(ends.shape) * width).astype(int)])
            size += len(ends)
            left, right = (
                jm.next_states[_draw(jm, x, rng), rng.integers(jm.num_actions, size=len(x))]
                for x in (left, right)
            )
        if size == before:
            break  # no two branches ever part
    return rng.permutation(np.concatenate(found))[:num_pairs]


def _draw(jm: JMDP, states: Ints, rng: np.random.Generator) -> Ints:
    """A table of each state."""
    cumulative: Floats = np.cumsum(jm.probs)
    before = np.concatenate([[0.0], cumulative])[jm.starts[states]]
    point = before + rng.random(len(states)) * (cumulative[jm.starts[states + 1] - 1] - before)
    table = np.searchsorted(cumulative, point, side="right")
    return np.clip(table, jm.starts[states], jm.starts[states + 1] - 1)
