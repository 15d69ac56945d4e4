"""Outcome tables, as `JMDP` keeps them: made of a step function, of queries, or of marginal laws.

A marginal MDP says what each action does, not what they do *together* (Section 4). Common random
numbers fill that in (`quantile_tables`): one uniform number goes through the outcomes of every
action, in an order that means something: from the worst to the best (`JMDP.from_mdp`), or as an
environment lists them (`JMDP.from_gymnasium`). Conversely, `dependent_actions` says which actions
the tables of a state couple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import extra, progress, require
from jmdp_lib.model.simulator import Simulator, checked_query

if TYPE_CHECKING:
    import gymnasium

Tables = tuple[Ints, Floats, Floats, Ints, int]
"""States (T,), probabilities (T,), rewards and next states (T, A) of stacked tables, and |S|."""

_TRIALS = 8  # calls of a step function that are made twice
# Breakpoints of two cumulative laws that differ by rounding alone are one breakpoint.
_SLIVER = 1e-14


def room_for_tables(argument: str, num_states: int, num_tables: int, num_actions: int) -> None:
    """Refuse a model whose outcome tables would not fit into memory while they are made.

    argument: what makes it so large.
    """
    require(
        100.0 * num_states * num_tables * num_actions,
        f"{argument}: a JMDP of {num_states:,} states, each with {num_tables:,} tables of "
        f"{num_actions:,} actions,",
        "make it smaller, or use ImplicitJMDP and local_jipe2, which enumerate no states",
    )


def stacked(parts: Sequence[tuple[Floats, Floats]]) -> Tables:
    """From the probabilities (K,) and tables (K, A, 2), (reward, next state), of every state."""
    probs, tables = map(np.concatenate, zip(*parts, strict=True))
    states = np.repeat(np.arange(len(parts)), [own.size for own, _ in parts])
    return states, probs, tables[..., 0], tables[..., 1].astype(np.int64), len(parts)


def tables_of_step(
    num_states: int,
    num_actions: int,
    noise_probs: ArrayLike,
    step: Callable[[int, int, int], tuple[float, int]],
) -> tuple[Floats, Floats, Ints]:
    """Table k of a state is what noise k does there: arrays (S, K), (S, K, A) and (S, K, A).

    The arguments are those of `JMDP.from_step`.
    """
    num_states = checks.at_least("num_states", num_states, 1)
    num_actions = checks.at_least("num_actions", num_actions, 1)
    probs = checks.distributions("noise_probs", noise_probs, "noise")
    shape = (num_states, probs.size, num_actions)
    room_for_tables("num_states", *shape)

    def called(s: int, u: int, a: int) -> tuple[float, int]:
        try:
            reward, successor = step(s, a, u)
            paid = checks.real("reward", reward, "(-inf, inf)")
            return paid, checks.index("state", successor, num_states)
        except Exception as error:
            raise ValueError(
                f"step(state {s}, action {a}, noise {u}) must return (reward, next_state), in "
                f"this order: {error!r}"
            ) from error

    rewards = np.empty(shape)
    successors = np.empty(shape, dtype=np.int64)
    for entry in range(0, rewards.size, max(1, rewards.size // _TRIALS)):
        s, u, a = (int(i) for i in np.unravel_index(entry, shape))
        checks.pure(f"step(state {s}, action {a}, noise {u})", called, s, u, a)
    with progress(num_states, "from_step", unit="state") as bar:
        for s in range(num_states):
            for u, a in np.ndindex(shape[1:]):
                rewards[s, u, a], successors[s, u, a] = called(s, u, a)
            bar.update()
    return np.tile(probs, (num_states, 1)), rewards, successors


def counted_tables(simulator: Simulator, count: int, seed: checks.Seed) -> Tables:
    """Every state queried `count` times for all its actions; equal answers are one table.

    Every state has a random stream of its own.
    """
    num_states = simulator.num_states
    actions = list(range(simulator.num_actions))
    parts = []
    with progress(num_states * count, "from_simulator", unit="query") as bar:
        for s in range(num_states):
            rng = checks.stream(seed, "from_simulator", s)
            drawn = [checked_query(simulator, s, actions, rng) for _ in range(count)]
            tables, times = np.unique(drawn, axis=0, return_counts=True)  # (K, A, 2), (K,)
            parts.append((times / count, tables))
            bar.update(count)
    return stacked(parts)


def quantile(laws: Sequence[Floats]) -> tuple[Floats, Ints]:
    """Common random numbers: one uniform number through every action's inverse cdf."""
    cdfs = [np.cumsum(law)[:-1] for law in laws]  # the inner breakpoints; the last one is 1
    cuts = np.sort(np.concatenate([[0.0, 1.0], *cdfs]))
    widths = np.diff(cuts)
    keep = widths > _SLIVER
    middle = (cuts[:-1] + cuts[1:])[keep] / 2
    outcomes = [np.searchsorted(cdf, middle, side="right") for cdf in cdfs]
    return widths[keep] / widths[keep].sum(), np.stack(outcomes, axis=1)


def quantile_tables(laws: Iterable[list[Floats]]) -> Tables:
    """From the laws of every state's actions, each with rows (probability, reward, next state)."""
    parts = []
    for actions in laws:
        probs, picks = quantile([law[:, 0] for law in actions])
        chosen = [law[pick, 1:] for law, pick in zip(actions, picks.T, strict=True)]
        parts.append((probs, np.stack(chosen, axis=1)))
    return stacked(parts)


def laws_of_mdp(
    transition_probs: ArrayLike, rewards: ArrayLike, gamma: float
) -> Iterator[list[Floats]]:
    """The laws of a state's actions, outcomes from worst to best; arguments of `JMDP.from_mdp`."""
    axes = ("state", "action", "next state")
    probs = checks.distributions("transition_probs", transition_probs, *axes)
    num_states, num_actions = probs.shape[:2]
    shape = (num_states, num_actions, num_states)
    checks.same_shape("transition_probs", probs.shape, shape, f"({', '.join(axes)})")
    reward_axes = axes if checks.as_array("rewards", rewards).ndim == 3 else axes[:2]
    reward = checks.floats("rewards", rewards, **dict(zip(reward_axes, shape, strict=False)))
    reward = np.broadcast_to(reward.reshape(num_states, num_actions, -1), shape)
    mean = (probs * reward).sum((1, 2)) / num_actions
    value = np.linalg.solve(np.eye(num_states) - gamma * probs.mean(1), mean)
    worth = reward + gamma * value
    # Rounded, so that outcomes of equal worth are not ordered by rounding errors.
    worth = np.round(worth / max(np.abs(worth).max(), np.finfo(float).tiny), 12)
    for prob, paid, order in zip(probs, reward, np.argsort(worth, kind="stable"), strict=True):
        found = [best[prob[a, best] > 0] for a, best in enumerate(order)]
        yield [np.stack([prob[a, x], paid[a, x], x], axis=1) for a, x in enumerate(found)]


def laws_of_gymnasium(env: str | gymnasium.Env[Any, Any]) -> Iterator[list[Floats]]:
    """The laws of a state's actions, outcomes as a toy-text environment lists them in `P`."""
    if isinstance(env, str):
        with extra("atari"):
            import gymnasium
        env = gymnasium.make(env)
    listed = getattr(getattr(env, "unwrapped", None), "P", None)
    if not isinstance(listed, dict):
        raise ValueError(f"env must be a toy-text environment, {env} has no transition lists P")
    last = len(listed)  # the state where episodes end, if none of their own is absorbing
    absorbing = [
        s
        for s, laws in listed.items()
        if all(t == s and r == 0 for law in laws.values() for _, t, r, _ in law)
    ]
    ends = False
    for s in range(last):
        laws = [np.array(listed[s][a], dtype=float) for a in range(len(listed[s]))]
        for a, law in enumerate(laws):  # rows (probability, next state, reward, is it the end?)
            law[:, 0] = checks.distributions(f"P[{s}][{a}]", law[:, 0], "outcome")
            leaves = (law[:, 3] == 1.0) & ~np.isin(law[:, 1], absorbing)
            law[leaves, 1] = last
            ends |= leaves.any()
        yield [law[:, [0, 2, 1]] for law in laws]
    if ends:
        yield [np.array([[1.0, 0.0, last]])] * len(listed[0])


def dependent_actions(probs: Floats, outcomes: Floats) -> tuple[int, ...] | None:
    """The smallest set of actions whose joint law is not the product of its marginals, if any.

    probs (K,) of the tables, outcomes (K, A, ...). Pairs come first, but any two actions may be
    independent where three are not.
    """
    num_actions = outcomes.shape[1]
    labels = np.stack([_labels(outcomes[:, a]) for a in range(num_actions)], axis=1)
    if _is_product(probs, labels):
        return None
    sizes = range(2, num_actions + 1)
    subsets = (actions for m in sizes for actions in combinations(range(num_actions), m))
    return next(actions for actions in subsets if not _is_product(probs, labels[:, actions]))


def _is_product(probs: Floats, labels: Ints) -> bool:
    """Whether the joint law of the outcome labels (K, m) is the product of its marginals.

    It is enough to compare the two at the tables: the joint law has no mass elsewhere, so that the
    product law, if it is the same there, has none either.
    """
    joint, *marginals = (np.bincount(x, probs)[x] for x in (_labels(labels), *labels.T))
    return bool(np.allclose(joint, np.prod(marginals, axis=0), rtol=0.0, atol=1e-12))


def _labels(rows: NDArray[Any]) -> Ints:
    """(K,) numbers that are equal where rows (K, ...) are."""
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()
