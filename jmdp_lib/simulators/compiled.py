"""Random maps of a JMDP in compiled code: the returns of all state-actions at once.

`simulate_returns` draws random maps. One time step draws a table for every state and a next action
for every state-action x = (s, a). That is a random map f of state-actions, with rewards R(x), and
the maps of distinct time steps are independent. So

    Z(x) = R_0(x) + gamma Z_1(f_0(x)),

where Z_1 is made of the later maps in the same way. A sample starts at z = 0 and goes back in time,
z <- R + gamma z[f]. State-actions that a map sends to one state-action share all that follows. With
coupling="common" one noise draws the tables of all states; with "independent" every state-action
has a table of its own. Next actions are always drawn for each state-action by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import RNG, Floats, Ints, Policy
from jmdp_lib.fast import fill_rows
from jmdp_lib.machine import cached, require
from jmdp_lib.model import (
    DEFAULT_COUPLING,
    JMDP,
    CouplingName,
    checked_coupling,
    require_tables,
)
from jmdp_lib.montecarlo import discounted, horizon_for
from jmdp_lib.operators.draws import AliasTables, draw, of_actions, of_tables

_SAMPLES = 64  # per random stream of random maps


def simulate_returns(
    jm: JMDP,
    policy: Policy,
    num_samples: int,
    *,
    rng: RNG = None,
    coupling: CouplingName = DEFAULT_COUPLING,
    truncation: float = 1e-7,
) -> Floats:
    """Sample the joint returns of all state-actions.

    Within a sample all returns belong to one world, so any covariance of any two state-actions, and
    the distribution of any function of them, can be estimated. For two actions of one state
    `simulate_pairs` is much faster. The first samples are the same however many are wanted.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        num_samples: how many samples, N.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.
        coupling: which state-actions share a draw, as in `jipe2`.
        truncation: which share of the largest possible return may be cut off.

    Returns:
        (N, S, A), one row $Z$ for every sample.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> z = jl.simulate_returns(jm, jl.goal_policy(3), num_samples=20_000, rng=0)
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
    sharing = checked_coupling(jm, coupling)
    steps = horizon_for(jm, truncation)
    root = checks.seed_of(rng, "simulate_returns")
    what = f"a sample of num_samples = {num_samples:,} times {matrix.size:,} state-actions"
    require(8.0 * num_samples * matrix.size, what, "ask for fewer")
    returns = np.empty((num_samples, matrix.size))
    maps = RandomMaps(
        sharing.at_one_state,
        sharing.across_states,
        jm.gamma,
        jm.without_offset.rewards,
        jm.next_states,
        of_tables(jm),
        of_actions(matrix),
    )

    def fill(stream: np.random.Generator, rows: slice) -> None:
        _fill_samples(stream, returns[rows], np.empty(matrix.size), steps, maps)

    fill_rows(fill, num_samples, _SAMPLES, root)
    returns += jm.reward_offset * discounted(jm.gamma, steps)
    return returns.reshape(num_samples, *matrix.shape)


class RandomMaps(NamedTuple):
    """What all random maps share: rewards and next states (T, A), and what is drawn from."""

    at_one_state: bool
    across_states: bool
    gamma: float
    rewards: Floats
    next_states: Ints
    tables: AliasTables
    actions: AliasTables


@cached(nogil=True)
def _fill_samples(rng: Any, out: Any, scratch: Any, steps: int, maps: Any) -> None:
    """Fill out (n, S * A) with n samples. scratch: room for one."""
    tables = maps.tables
    num_actions = maps.rewards.shape[1]
    for sample in range(out.shape[0]):
        z = out[sample]
        after = scratch
        z[:] = 0.0
        for _ in range(steps):
            z, after = after, z
            k = 0
            if maps.across_states:  # noise k is table k of every state
                k = draw(rng, tables, 0)
            for s in range(tables.starts.size - 1):
                table = tables.starts[s] + k
                if not maps.across_states:
                    table = draw(rng, tables, s)
                for a in range(num_actions):
                    if a > 0 and not maps.at_one_state:
                        table = draw(rng, tables, s)
                    then = after[draw(rng, maps.actions, maps.next_states[table, a])]
                    z[s * num_actions + a] = maps.rewards[table, a] + maps.gamma * then
        if steps % 2 == 1:  # the last step wrote to the scratch
            for n in range(z.size):  # `out[sample] = z` takes 3 seconds longer to compile
                out[sample, n] = z[n]
