"""Outcome tables: made from a step function, stacked, and tested for independent actions.

Tables of a marginal MDP are made in `model/quantiles.py`, and tables counted in queries in
`model/counts.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import progress, require

StateTables = tuple[Floats, Floats]
"""The probabilities (K,) of a state's tables, and these (K, A, 2): reward and next state."""
Stacked = tuple[Ints, Floats, Floats, Ints, int]
"""Arguments of `JMDP.from_tables`: states, probs (T,), rewards, next states (T, A), |S|."""

_TRIALS = 8  # calls of a step function that are made twice


def require_table_memory(argument: str, num_states: int, num_tables: int, num_actions: int) -> None:
    """Refuse a model whose outcome tables would not fit into memory while they are made.

    argument: name of the argument that makes it so large.
    """
    require(
        100.0 * num_states * num_tables * num_actions,
        f"{argument}: a JMDP of {num_states:,} states, each with {num_tables:,} tables of "
        f"{num_actions:,} actions,",
        "make it smaller, or use ImplicitJMDP and local_jipe2, which enumerate no states",
    )


def outcome_of(
    step: Callable[[Any, int, int], tuple[float, Any]],
    state: Any,
    action: int,
    noise: int,
    num_states: int | None = None,
) -> tuple[float, Any]:
    """Reward and next state of one call of a step function; a failure names its arguments.

    num_states: both are checked if states are 0 to num_states - 1.
    """
    try:
        reward, successor = step(state, action, noise)
        if num_states is None:
            return reward, successor
        paid = checks.finite("reward", reward)
        return paid, checks.index("state", successor, num_states)
    except Exception as error:
        raise ValueError(
            f"step(state {state!r}, action {action}, noise {noise}) must return (reward, "
            f"next_state), in this order: {error!r}"
        ) from error


def tables_of_step(
    num_states: int,
    num_actions: int,
    noise_probs: ArrayLike,
    step: Callable[[int, int, int], tuple[float, int]],
) -> tuple[Floats, Floats, Ints]:
    """Tables of a step function: probabilities (S, K), rewards and next states (S, K, A).

    Table k of a state is the outcome of noise k. The arguments are those of `JMDP.from_step`.
    """
    num_states = checks.at_least("num_states", num_states, 1)
    num_actions = checks.at_least("num_actions", num_actions, 1)
    probs = checks.distributions("noise_probs", noise_probs, "noise")
    shape = (num_states, probs.size, num_actions)
    require_table_memory("num_states", *shape)

    def called(s: int, u: int, a: int) -> tuple[float, int]:
        return outcome_of(step, s, a, u, num_states)

    size = int(np.prod(shape))
    for entry in range(0, size, max(1, size // _TRIALS)):
        s, u, a = (int(i) for i in np.unravel_index(entry, shape))
        randomness.pure(f"step(state {s}, action {a}, noise {u})", called, s, u, a)
    calls = progress(size, "from_step", "call", np.ndindex(shape))
    outcomes = np.fromiter((called(*call) for call in calls), (float, 2), size)
    rewards, successors = np.moveaxis(outcomes.reshape(*shape, 2), -1, 0)
    return np.tile(probs, (num_states, 1)), rewards, successors.astype(np.int64)


def stacked(tables: Sequence[StateTables]) -> Stacked:
    """Tables of states 0, 1, ..., one state after another."""
    probs, outcomes = map(np.concatenate, zip(*tables, strict=True))
    states = np.repeat(np.arange(len(tables)), [own.size for own, _ in tables])
    return states, probs, outcomes[..., 0], outcomes[..., 1].astype(np.int64), len(tables)


def is_product(probs: Floats, outcomes: Floats) -> bool:
    """True if the joint distribution of the actions' outcomes is the product of its marginals.

    probs (K,) of the tables, outcomes (K, A, ...). Both distributions are compared only at the
    tables. If they agree there, the tables also carry all mass of the product.
    """
    each = (outcomes, *outcomes.swapaxes(0, 1))
    labels = [np.unique(rows, axis=0, return_inverse=True)[1].ravel() for rows in each]
    joint, *marginals = (np.bincount(x, probs)[x] for x in labels)  # of rows that are equal
    return bool(np.allclose(joint, np.prod(marginals, axis=0), rtol=0.0, atol=1e-12))
