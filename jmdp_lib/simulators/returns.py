"""The whole joint return vector, by random maps.

One time step draws a table for every state and a next action for every state-action x = (s, a).
That is a random map f of state-actions, with rewards R(x), and the maps of distinct time steps are
independent. The returns of all state-actions are, at once,

    Z(x) = R_0(x) + gamma Z_1(f_0(x)),

where Z_1 is made of the later maps in the same way. So a sample starts at z = 0 and goes back in
time, z <- R + gamma z[f]. State-actions that a map sends to one state-action share all that
follows.

With coupling="common" one noise draws the tables of all states; with "independent" every
state-action has a table of its own. Next actions are always drawn for each state-action by itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import cached, progress, require
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.operators.draws import alias_tables, cells, pick_cell

# Samples per random stream: streams belong to chunks, so threads do not change the numbers.
_CHUNK = 64
_LONGEST = 10**7  # time steps of a sample
_INDEPENDENT = 1
_COMMON = 2
_MODES = {"joint": 0, "independent": _INDEPENDENT, "common": _COMMON}


def simulate_returns(
    jm: JMDP,
    policy: Policy,
    num_samples: int,
    seed: Seed = 0,
    coupling: str = "joint",
    truncation: float = 1e-7,
) -> Floats:
    """Sample the joint returns of all state-actions: (N, S, A), one row $Z$ for every sample.

    Within a sample all returns belong to one world, so any covariance of any two state-actions, and
    the law of any function of them, can be estimated. For two actions of one state
    `simulate_pairs` is much faster.

    coupling: which state-actions share a draw, as in `jipe2`.
    truncation: which share of the largest possible return may be cut off.

    The first samples are the same however many are asked for.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> z = jl.simulate_returns(jm, jl.goal_policy(3), num_samples=20_000, seed=0)
        >>> z.shape
        (20000, 9, 4)
        >>> gap = z[:, 4, 0] - z[:, 4, 2]
        >>> print(f"mean {gap.mean():.2f}, variance {gap.var():.2f}; exact are 1.96 and 0.68")
        mean 1.97, variance 0.67; exact are 1.96 and 0.68
        >>> print(f"of two states: {np.cov(z[:, 3, 1], z[:, 6, 0])[0, 1]:.2f}; exact is 0.12")
        of two states: 0.12; exact is 0.12
    """
    require_tables("simulate_returns", jm)
    matrix = checks.policy_matrix(jm, policy)
    num_samples = checks.at_least("num_samples", num_samples, 1)
    mode = _MODES[checked_coupling(jm, coupling)]
    other = "pass simulate_returns a larger truncation=, or a model with a smaller gamma"
    steps = checks.derived_horizon(jm.gamma, truncation, _LONGEST, other)
    root = checks.purpose_seed(seed, "simulate_returns")
    threads = get_num_threads()
    words = (num_samples + threads + 8) * matrix.size + 8 * jm.probs.size
    what = f"a sample of num_samples = {num_samples:,} times {matrix.size:,} state-actions"
    require(8.0 * words, what, "ask for fewer")
    returns = np.empty((num_samples, matrix.size))
    laws = (*_table_law(jm), *_action_law(matrix))
    known: Any = (steps, mode, jm.gamma, jm.rewards, jm.next_states, *laws)

    def fill(chunk: int) -> None:
        out = returns[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        _simulate(checks.generator(root, chunk), out, np.empty(matrix.size), *known)

    chunks = range(-(-num_samples // _CHUNK))
    with (
        ThreadPoolExecutor(threads) as pool,  # the kernel releases the GIL
        progress(len(chunks), "simulate_returns", unit="chunk") as bar,
    ):
        for _ in pool.map(fill, chunks):
            bar.update()
    return returns.reshape(num_samples, *matrix.shape)


class _Law(NamedTuple):
    """One law for every state, to draw from by `pick_cell`.

    starts: (S + 1,). threshold: (L,). meaning: (2 L,), what each cell stands for.
    """

    starts: Ints
    threshold: Floats
    meaning: Ints


def _table_law(jm: JMDP) -> _Law:
    """The law of every state's table, whose cells mean tables."""
    threshold, alias = alias_tables(jm.starts, jm.probs)
    return _Law(jm.starts, threshold, cells(alias))


def _action_law(policy: Floats) -> _Law:
    """The law of every state's action, whose cells mean state-actions s * A + a.

    Actions of probability zero are left out: a deterministic policy draws nothing.
    """
    played = np.flatnonzero(policy)
    starts = np.concatenate([[0], np.cumsum((policy > 0).sum(1))])
    threshold, alias = alias_tables(starts, policy.ravel()[played])
    return _Law(starts, threshold, played[cells(alias)])


@cached(nogil=True)
def _simulate(
    rng: Any, out: Any, scratch: Any, steps: int, mode: int, gamma: float, rewards: Any,
    next_states: Any, starts: Any, table_threshold: Any, tables: Any, action_starts: Any,
    action_threshold: Any, state_actions: Any,
) -> None:  # fmt: skip
    """Fill out (n, S * A) with n samples. scratch: room for one of them."""
    num_states = starts.size - 1
    num_actions = rewards.shape[1]
    for sample in range(out.shape[0]):
        z = out[sample]
        after = scratch
        z[:] = 0.0
        for _ in range(steps):
            z, after = after, z
            k = 0
            if mode == _COMMON:  # noise k is table k of every state
                k = tables[pick_cell(rng, starts[0], starts[1], table_threshold)]
            for s in range(num_states):
                low = starts[s]
                high = starts[s + 1]
                table = low + k
                if mode != _COMMON:
                    table = tables[pick_cell(rng, low, high, table_threshold)]
                for a in range(num_actions):
                    if mode == _INDEPENDENT and a > 0:
                        table = tables[pick_cell(rng, low, high, table_threshold)]
                    x = next_states[table, a]
                    cell = pick_cell(rng, action_starts[x], action_starts[x + 1], action_threshold)
                    then = after[state_actions[cell]]
                    z[s * num_actions + a] = rewards[table, a] + gamma * then
        if steps % 2 == 1:  # the last step wrote to the scratch
            out[sample] = z
