"""Gaps of the actions of one state of any simulator, from recursive branches (`branches`).

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy, Seed
from jmdp_lib.machine import in_processes
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.branches import Branches, Run
from jmdp_lib.simulators.estimates import PlayedGaps, action_labels
from jmdp_lib.simulators.statistics import gap_statistics, unseen_variance
from jmdp_lib.simulators.vector_branches import VectorBranches
from jmdp_lib.simulators.vector_estimates import estimate_vector_gaps
from jmdp_lib.simulators.vector_simulator import VectorSimulator


def estimate_gaps(
    env: Any,
    policy: Policy,
    actions: Sequence[Any],
    state: Any = None,
    gamma: float | None = None,
    num_runs: int = 1000,
    seed: Seed = 0,
    coupling: str = "joint",
    *,
    truncation: float = 1e-3,
    horizon: int | None = None,
    processes: int = 1,
    keep_returns: bool = False,
) -> PlayedGaps:
    """Gaps of actions at one state of a simulator, from recursive branches.

    env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, an `ImplicitJMDP`, or a simulator with `query`.
        It is left alone.
    policy: probabilities (S, A), actions (S,), or a function of the state or observation that
        returns probabilities (A,) or an action. Where actions have no numbers, it returns an
        action.
    actions: m actions to compare. Each run has a branch for each of them, so that all gaps share
        the runs.
    state: where to start: the state of a simulator, which is a number or, if the simulator has no
        `num_states`, anything hashable; or a snapshot of an environment, by default of where it is.
    gamma: unless given, that of the simulator, or 0.99.
    num_runs: how many runs are played.
    coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
        "independent", none; "common", all of them, one draw per time step.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    keep_returns: keep the returns of a `VectorSimulator`, too. Its branches are then played on to
        the horizon after they have become one, which takes longer; gaps stay the same. Those of
        other simulators are always kept.
    processes: with more than one, `env` and `policy` must pickle. The numbers stay the same.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all runs before.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> found = jl.estimate_gaps(jm, jl.goal_policy(3), actions=[0, 2], state=4, num_runs=300)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.52 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.92 to 0.97
    """
    root = checks.purpose_seed(seed, "estimate_gaps")
    asked: Any = (env, policy, actions, state, gamma, coupling, truncation, horizon)
    if isinstance(env, VectorSimulator):
        vectorised = VectorBranches.of(*asked)
        return estimate_vector_gaps(vectorised, num_runs, root, processes, keep_returns)
    branches = Branches.of(*asked)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    one = checks.at_least("processes", processes, 1) == 1
    if not one:
        branches.check_pickles()
    ends = np.linspace(0, num_runs, 2 if one else 4 * processes + 1, dtype=int).tolist()
    jobs = [(root, first, last, one) for first, last in pairwise(ends)]
    parts = in_processes(branches.play_runs, jobs, processes, "estimate_gaps")
    played = [run for part, _ in parts for run in part]
    failed = next((error for _, error in parts if error), None)
    if failed is None:
        return _estimate(branches, played)
    failure = SimulatorError(f"{failed} ({len(played)} runs went well)")
    failure.result = _estimate(branches, played) if len(played) >= 3 else None
    raise failure


def _estimate(branches: Branches, played: list[Run]) -> PlayedGaps:
    """From three runs or more."""
    returns, labels, extremes, _ = map(np.array, zip(*played, strict=True))
    cut = branches.gamma**branches.horizon * np.ptp(extremes) / (1.0 - branches.gamma)
    gaps = returns[:, :, None] - returns[:, None]  # (num_runs, m, m)
    apart = labels[:, :, None] != labels[:, None]
    unsure = np.where(apart, cut, 0.0) + 1e-12 * np.abs(returns).max()
    rest: Any = cut * apart.mean(0), len(played), returns
    found = gap_statistics(gaps, unsure)
    ends = branches.world.reward_range
    unseen = unseen_variance(found[0], len(played), ends, branches.gamma)
    np.fill_diagonal(unseen, 0.0)
    names = action_labels(branches.actions)
    index = {"action": names[:, None], "other": names[None]}
    return PlayedGaps(*found, *rest, unseen_variance=unseen, index=index)
