"""Gaps of the actions of one state of any simulator, from recursive branches (`branches`).

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import pairwise
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Policy, Seed
from jmdp_lib.machine import in_executor, in_processes
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.players import Branches, PlayedRuns, gaps_of
from jmdp_lib.simulators.results import PlayedGaps
from jmdp_lib.simulators.vector_branches import VectorBranches
from jmdp_lib.simulators.vector_estimates import estimate_vector_gaps
from jmdp_lib.simulators.vector_simulator import VectorSimulator

# Runs go to an executor in chunks: at most so many, so that sending the simulator with each costs
# little, and of so many runs at least.
_MOST_CHUNKS = 256
_LEAST_RUNS = 16


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
    executor: Executor | None = None,
    keep_returns: bool = False,
) -> PlayedGaps:
    """Gaps of actions at one state of a simulator, from recursive branches.

    env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, an `ImplicitJMDP`, a simulator with `query`, or a
        `VectorSimulator`, whose runs are played many at once. It is left alone.
    policy: probabilities (S, A), actions (S,), or a function of the state or observation that
        returns probabilities (A,) or an action. Where actions have no numbers, it returns an
        action.
    actions: m actions to compare. Each run has a branch for each of them, so that all gaps share
        the runs.
    state: where to start: the state of a simulator, which is a number or, if the simulator has no
        `num_states`, anything hashable; or a snapshot of an environment, by default of where it is.
    gamma: unless given, that of the simulator, or 0.99. It may be 1 together with a `horizon`.
    num_runs: how many runs are played.
    coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
        "independent", none; "common", all of them, one draw per time step.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    horizon: steps of a run; unless given, it follows from `truncation`. If gamma is 1 and a gap is
        still open there, its truncation error is infinite.
    processes: with more than one, `env` and `policy` must pickle. The numbers stay the same.
    executor: plays the runs elsewhere: any `concurrent.futures.Executor`, such as that of a Dask
        cluster, `client.get_executor()`. The numbers stay the same.
    keep_returns: play every run to its end and keep the returns. Otherwise a run ends where all its
        branches are one, and its gaps are final.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all runs before. If a worker of the executor dies, and the executor does not play its runs
    again, the `SimulatorError` holds the result of all runs that came back.

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
    _check_players(processes, executor)
    asked: Any = (env, policy, actions, state, gamma, coupling, truncation, horizon)
    if isinstance(env, VectorSimulator):
        runs = checks.at_least("num_runs", num_runs, 3)
        vectorised = VectorBranches.of(*asked)
        return estimate_vector_gaps(vectorised, runs, root, keep_returns, processes, executor)
    branches = Branches.of(*asked)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    if executor is not None:
        played = _play_in_executor(branches, root, num_runs, keep_returns, executor)
    elif processes > 1:
        branches.check_pickles()
        jobs = [(root, *ends, keep_returns) for ends in _chunks(num_runs, 4 * processes)]
        parts = in_processes(branches.play_chunk, jobs, processes, "estimate_gaps")
        played = PlayedRuns.joined(parts)
    else:
        played = branches.play_runs(root, 0, num_runs, keep_returns, "estimate_gaps")
    if played.failure is None:
        return gaps_of(branches, played, keep_returns)
    done = len(played.returns)
    failure = SimulatorError(f"{played.failure} ({done} runs went well)")
    failure.result = gaps_of(branches, played, keep_returns) if done >= 3 else None
    raise failure


def _check_players(processes: int, executor: Executor | None) -> None:
    """Refuse what cannot play."""
    many = checks.at_least("processes", processes, 1) > 1
    if executor is None:
        return
    if not isinstance(executor, Executor):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )
    if many:
        raise ValueError("pass processes= or executor=, not both")


def _chunks(num_runs: int, most: int) -> list[tuple[int, int]]:
    """(first, last) of runs: so many chunks of about one size, or fewer."""
    ends = np.linspace(0, num_runs, min(most, num_runs) + 1, dtype=int).tolist()
    return list(pairwise(ends))


def _play_in_executor(
    branches: Branches, root: np.random.SeedSequence, num_runs: int, whole: bool,
    executor: Executor,
) -> PlayedRuns:  # fmt: skip
    """All runs, or those that came back and why the others did not."""
    most = min(_MOST_CHUNKS, -(-num_runs // _LEAST_RUNS))
    jobs = [(root, *ends, whole) for ends in _chunks(num_runs, most)]
    parts, error = in_executor(branches.play_chunk, jobs, executor, "estimate_gaps")
    played = PlayedRuns.joined([PlayedRuns.of([], len(branches.names), None), *parts])
    if error is None or played.failure is not None:
        return played
    return played._replace(failure=f"the executor failed: {error!r}")
