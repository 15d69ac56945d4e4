"""Monte Carlo on a JMDP, in compiled code: recursive pairs of branches.

It knows nothing of moments, which is why it can check them. The couplings are those of `jipe2`.

`simulate_pairs` plays out the process whose moments $T_2$ computes. Two branches start at one state
with two actions. While they are at the same state they read the same outcome table; at distinct
states their tables are independent, or with coupling="common" those of the same noise; and once
they stand at the same state with the same action they are one branch for good (same reward, next
state and next action ever after).

A further sampler is a kernel that fills rows of an array; `fill_rows` calls it in threads, as
`simulators/tables.py` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import RNG, Floats, Ints, Policy
from jmdp_lib.fast import fill_rows
from jmdp_lib.machine import both, hot, inline
from jmdp_lib.model import (
    DEFAULT_COUPLING,
    JMDP,
    Coupling,
    CouplingName,
    checked_coupling,
)
from jmdp_lib.operators.draws import AliasTables, draw

RUNS_PER_STREAM = 4096
_LONGEST = 10**7  # steps of a run, unless a horizon is given: about a second for a pair


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
    """Play recursive pairs: the returns of two actions of one state.

    The two actions may be the same: then so are the returns.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        actions: the first actions (a, b) of the two branches.
        state: where both start.
        num_pairs: how many pairs are played.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.
        horizon: steps after which returns are cut; unless given, it follows from `truncation`.
        truncation: which share of the largest possible return may be cut off.
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
    matrix = checks.policy_matrix(jm, policy)
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

    fill_rows(fill, num_pairs, RUNS_PER_STREAM, checks.seed_of(rng, "simulate_pairs"))
    returns += model.offset
    return returns


def horizon_for(jm: JMDP, truncation: float) -> int:
    """Steps after which at most this share of the largest return, r_max / (1 - g), is left."""
    other = "pass horizon= to simulate_pairs, a larger truncation=, or a model with a smaller gamma"
    return checks.derived_horizon(jm.gamma, truncation, _LONGEST, other)


class BranchModel(NamedTuple):
    """What kernels know of a JMDP, a policy and a coupling.

    A *step* of a branch, t A + a, names its table t and its action a.

    steps: what `draw` takes for the step of a branch at a state. starts: (S + 1,) of the tables.
    rewards, next_states: (T A,) of steps. forever: (S,) what a branch earns in every step if it can
    only stay where it is and earn the same, else nan: what is left is then a geometric sum. offset:
    what `JMDP.reward_offset`, which no step pays, is worth in every return up to the horizon.
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
        """policy: (S, A). The coupling has been checked."""
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
    """Step j of a branch at y, given step i of one at x with which it shares a draw.

    At one state with one action both are the same. Otherwise the tables are independent, or those
    of one noise, which at one state is one table.
    """
    action = j % model.num_actions
    if x == y and i % model.num_actions == action:
        return i
    if not model.at_one_state:
        return j
    return (i // model.num_actions - model.starts[x] + model.starts[y]) * model.num_actions + action


@both()
def discounted(gamma: float, steps: int) -> float:
    """What a reward of one in each of so many steps is worth."""
    return (1.0 - gamma**steps) / (1.0 - gamma) if gamma < 1.0 else float(steps)


@inline
def earned_alone(rng: Any, x: int, weight: float, steps: int, model: Any) -> float:
    """What one branch earns from state x on in so many steps, times the weight of the first."""
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
def _fill_pairs(rng: Any, returns: Any, start: Any, model: Any) -> None:
    """Fill returns (n, 2). start: the state and two actions."""
    state, a, b = start
    for run in range(len(returns)):
        x = y = state
        left = 0.0
        right = 0.0
        weight = 1.0
        step = 0
        one = False
        while step < model.horizon and not one:
            i = draw(rng, model.steps, x)
            j = draw(rng, model.steps, y)
            if step == 0:
                i = with_action(i, a, model)
                j = with_action(j, b, model)
            if x == y or model.across_states:
                j = coupled(i, j, x, y, model)
            one = i == j
            left += weight * model.rewards[i]
            right += weight * model.rewards[j]
            x = model.next_states[i]
            y = model.next_states[j]
            weight *= model.gamma
            step += 1
        rest = earned_alone(rng, x, weight, model.horizon - step, model)
        returns[run, 0] = left + rest
        returns[run, 1] = right + rest
