"""Compiled Monte Carlo simulation of a JMDP: recursive pairs of branches, and random maps.

It uses no moments, so it can check them. The couplings are those of `jipe2`.

`simulate_pairs` simulates the process whose moments $T_2$ computes. Two branches start at one state
with two actions. While they are at the same state, they read the same outcome table. At distinct
states, their tables are independent or, with coupling="common", tables of the same noise. Once they
take the same action at the same state, they have coalesced: from then on they have the same
rewards, states and actions.

`simulate_returns` draws random maps. One time step draws a table for every state and a next action
for every state-action x = (s, a). That is a random map f of state-actions, with rewards R(x), and
the maps of distinct time steps are independent. So

    Z(x) = R_0(x) + gamma Z_1(f_0(x)),

where Z_1 is the same function of the later maps. A sample starts at z = 0 and goes back in time,
z <- R + gamma z[f]. If a map sends several state-actions to one state-action, they share the whole
future from there. With coupling="common" one noise draws the tables of all states; with
"independent" every state-action has its own table. Next actions are always drawn separately for
each state-action.

To add a sampler, write a kernel that fills rows of an array, and let `fill_rows` call it in
threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import fill_rows
from jmdp_lib.machine import both, cached, hot, inline, require
from jmdp_lib.model import (
    DEFAULT_COUPLING,
    JMDP,
    Coupling,
    CouplingName,
    checked_coupling,
    require_tables,
)
from jmdp_lib.operators.draws import AliasTables, draw, of_actions, of_tables
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.randomness import RNG

RUNS_PER_STREAM = 4096
_SAMPLES = 64  # samples of random maps per random stream
_LONGEST = 10**7  # largest number of steps without a given horizon: about a second for a pair


def simulate_pairs(
    jm: JMDP,
    policy: Policy,
    actions: tuple[int, int],
    *,
    state: int,
    num_pairs: int,
    rng: RNG = None,
    horizon: int | None = None,
    truncation: float = 1e-7,
    coupling: CouplingName = DEFAULT_COUPLING,
) -> Floats:
    """Simulate recursive pairs: the returns of two actions of one state.

    If the two actions are equal, so are the returns.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        actions: the first actions (a, b) of the two branches.
        state: the state in which both start.
        num_pairs: number of pairs that are simulated.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.
        horizon: number of steps after which returns are cut; by default it follows from
            `truncation`.
        truncation: share of the largest possible return that may be cut off.
        coupling: which branches share a draw, as in `jipe2`.

    Returns:
        (num_pairs, 2), rows $Z(s, a), Z(s, b)$. They do not depend on the number of threads.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> returns = jl.simulate_pairs(
        ...     jm, jl.goal_policy(3), (0, 2), state=4, num_pairs=20_000, rng=0
        ... )
        >>> gap = returns[:, 0] - returns[:, 1]
        >>> print(f"mean {gap.mean():.2f}, variance {gap.var():.2f}; exact are 1.96 and 0.68")
        mean 1.97, variance 0.68; exact are 1.96 and 0.68
    """
    steps = horizon_for(jm, truncation) if horizon is None else horizon
    matrix = policy_matrix(jm, policy)
    state = checks.index("state", state, jm.num_states)
    if len(checks.listed("actions", actions, "action")) != 2:
        raise ValueError(f"actions must be a pair of actions, got {actions!r}")
    chosen = [checks.index("action", action, jm.num_actions) for action in actions]
    num_pairs = checks.at_least("num_pairs", num_pairs, 1)
    steps = checks.at_least("horizon", steps, 1)
    model = BranchModel.of(jm, matrix, checked_coupling(jm, coupling), jm.gamma, steps)
    returns = np.empty((num_pairs, 2))

    def fill(stream: np.random.Generator, rows: slice) -> None:
        _fill_pairs(stream, returns[rows], (state, *chosen), model)

    fill_rows(fill, num_pairs, RUNS_PER_STREAM, randomness.seed_of(rng, "simulate_pairs"))
    returns += model.offset
    return returns


def horizon_for(jm: JMDP, truncation: float) -> int:
    """Steps after which at most this share of the largest return, r_max / (1 - gamma), remains."""
    other = "pass horizon= to simulate_pairs, a larger truncation=, or a model with a smaller gamma"
    return checks.derived_horizon(jm.gamma, truncation, _LONGEST, other)


class BranchModel(NamedTuple):
    """JMDP, policy and coupling in the form that compiled kernels read.

    A *step* of a branch, t A + a, names its table t and its action a.

    steps: alias tables from which `draw` takes the step of a branch at a state. starts: (S + 1,)
    first table of each state. rewards, next_states: (T A,), by step. forever: (S,) if a branch can
    never leave a state and always earns the same reward there, that reward, else nan. offset: the
    discounted value, up to the horizon, of `JMDP.reward_offset`, which no step pays.
    """

    at_one_state: bool
    across_states: bool
    gamma: float
    horizon: int
    num_actions: int
    starts: Ints
    rewards: Floats
    next_states: Ints
    steps: AliasTables
    forever: Floats
    offset: float

    @classmethod
    def of(
        cls, jm: JMDP, policy: Floats, coupling: Coupling, gamma: float, horizon: int
    ) -> BranchModel:
        """The model for a policy (S, A) and a coupling, both of which have been checked."""
        offset = jm.reward_offset * discounted(gamma, horizon)
        jm = jm.without_offset
        weights = jm.probs[:, None] * policy[jm.table_states]  # (T, A)
        firsts = jm.starts * jm.num_actions
        steps = AliasTables.of(firsts, weights.ravel(), np.arange(weights.size))
        rewards = jm.rewards.ravel()
        next_states = jm.next_states.ravel()
        taken = steps.meaning[::2]  # the steps of all states, one after another
        first = steps.starts[:-1]
        earned = np.repeat(rewards[taken[first]], np.diff(steps.starts))
        stays = next_states[taken] == jm.table_states[taken // jm.num_actions]
        settled = np.logical_and.reduceat(stays & (rewards[taken] == earned), first)
        return cls(
            at_one_state=coupling.at_one_state,
            across_states=coupling.across_states,
            gamma=gamma,
            horizon=horizon,
            num_actions=jm.num_actions,
            starts=jm.starts,
            rewards=rewards,
            next_states=next_states,
            steps=steps,
            forever=np.where(settled, earned[first], np.nan),
            offset=offset,
        )


@inline
def with_action(i: int, action: int, model: Any) -> int:
    """A step with the same table and another action."""
    return i - i % model.num_actions + action


@inline
def coupled(i: int, j: int, x: int, y: int, model: Any) -> int:
    """Step of a branch at y that shares a draw with a branch at x; j and i are their own steps.

    At one state-action both take step i. Otherwise their tables are independent or, with a common
    noise, those of one noise, which at one state is one table.
    """
    action = j % model.num_actions
    if x == y and i % model.num_actions == action:
        return i
    if not model.at_one_state:
        return j
    return (i // model.num_actions - model.starts[x] + model.starts[y]) * model.num_actions + action


@both()
def discounted(gamma: float, steps: int) -> float:
    """Discounted value of a unit reward over `steps` steps."""
    return (1.0 - gamma**steps) / (1.0 - gamma) if gamma < 1.0 else float(steps)


@inline
def earned_alone(rng: Any, x: int, weight: float, steps: int, model: Any) -> float:
    """Return of one branch from state x over `steps` steps, times `weight`."""
    earned = 0.0
    gamma = model.gamma
    while steps > 0 and np.isnan(model.forever[x]):
        i = draw(rng, model.steps, x)
        earned += weight * model.rewards[i]
        x = model.next_states[i]
        weight *= gamma
        steps -= 1
    if steps > 0:
        earned += weight * discounted(gamma, steps) * model.forever[x]
    return earned


@hot
def _fill_pairs(rng, returns, start, model):
    """Fill returns (n, 2). start: the state and two actions."""
    state, a, b = start
    for run in range(len(returns)):
        x = y = state
        left = 0.0
        right = 0.0
        weight = 1.0
        step = 0
        coalesced = False
        while step < model.horizon and not coalesced:
            i = draw(rng, model.steps, x)
            j = draw(rng, model.steps, y)
            if step == 0:
                i = with_action(i, a, model)
                j = with_action(j, b, model)
            if x == y or model.across_states:
                j = coupled(i, j, x, y, model)
            coalesced = i == j
            left += weight * model.rewards[i]
            right += weight * model.rewards[j]
            x = model.next_states[i]
            y = model.next_states[j]
            weight *= model.gamma
            step += 1
        remaining = earned_alone(rng, x, weight, model.horizon - step, model)
        returns[run, 0] = left + remaining
        returns[run, 1] = right + remaining


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

    The returns of a sample are one draw of their joint distribution, from which the covariance of
    any two state-actions, and the distribution of any function of them, can be estimated. For two
    actions of one state `simulate_pairs` is much faster. The first samples do not depend on
    num_samples.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        num_samples: number of samples, N.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.
        coupling: which state-actions share a draw, as in `jipe2`.
        truncation: share of the largest possible return that may be cut off.

    Returns:
        (N, S, A), $Z$ of every sample.

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
    matrix = policy_matrix(jm, policy)
    num_samples = checks.at_least("num_samples", num_samples, 1)
    steps = horizon_for(jm, truncation)
    model = BranchModel.of(jm, matrix, checked_coupling(jm, coupling), jm.gamma, steps)
    root = randomness.seed_of(rng, "simulate_returns")
    what = f"a sample of num_samples = {num_samples:,} times {matrix.size:,} state-actions"
    require(8.0 * num_samples * matrix.size, what, "draw fewer")
    returns = np.empty((num_samples, matrix.size))
    draws = of_tables(jm), of_actions(matrix)

    def fill(stream: np.random.Generator, rows: slice) -> None:
        _fill_samples(stream, returns[rows], draws, model)

    fill_rows(fill, num_samples, _SAMPLES, root)
    returns += model.offset
    return returns.reshape(num_samples, *matrix.shape)


@cached(nogil=True)
def _fill_samples(rng, out, draws, model):
    """Fill out (n, S * A) with n samples. draws: alias tables of all tables and of all actions."""
    tables, actions = draws
    num_actions = model.num_actions
    scratch = np.empty(out.shape[1])
    for sample in range(out.shape[0]):
        z = out[sample]
        after = scratch
        if model.horizon % 2 == 1:  # so that the last step writes to `out`
            z, after = after, z
        z[:] = 0.0
        for _ in range(model.horizon):
            z, after = after, z
            k = 0
            if model.across_states:  # noise k is table k of every state
                k = draw(rng, tables, 0)
            for s in range(tables.starts.size - 1):
                table = tables.starts[s] + k
                if not model.across_states:
                    table = draw(rng, tables, s)
                for a in range(num_actions):
                    if a > 0 and not model.at_one_state:
                        table = draw(rng, tables, s)
                    i = table * num_actions + a
                    then = after[draw(rng, actions, model.next_states[i])]
                    z[s * num_actions + a] = model.rewards[i] + model.gamma * then
