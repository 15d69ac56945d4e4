"""Estimates of gaps of the actions of one state of any simulator.

Branches that start at one state with different actions share a table while they share a state, and
coalesce once they share state and action. So the differences of their returns vary little, and are
final as soon as the branches have coalesced.

`estimate_gaps` cuts the runs into chunks for this process or an executor. Large chunks are summed
up where they are simulated; small ones are kept until the end. `world_of` finds the `World` for a
simulator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats
from jmdp_lib.large.implicit import ImplicitJMDP, with_law
from jmdp_lib.machine import progress, require
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, Coupling, CouplingName, require_noise
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.policies import Policy
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.batches import Arrays, on_host
from jmdp_lib.simulators.env_world import Environment, EnvironmentWorld
from jmdp_lib.simulators.gaps import (
    GapEstimate,
    Sums,
    gap_columns,
    may_change,
    return_columns,
    sums_of,
)
from jmdp_lib.simulators.plans import (
    Plan,
    Runs,
    World,
    coupling_of,
    discount_and_horizon,
    joined_extremes,
    plan_of,
)
from jmdp_lib.simulators.rows import QueriedWorld
from jmdp_lib.simulators.tables import TableWorld
from jmdp_lib.simulators.vector import VectorSimulator, VectorWorld

_VALUE_RUNS = 16  # least number of runs to the end, for values
_VALUE_SHARE = 0.1  # steps of the runs for values, as a share of those of all other runs


def estimate_gaps(
    env: Any,
    policy: Policy,
    actions: Sequence[Any],
    *,
    state: Any = None,
    gamma: float | None = None,
    num_runs: int = 1000,
    rng: RNG = None,
    coupling: CouplingName = DEFAULT_COUPLING,
    truncation: float = 1e-3,
    horizon: int | None = None,
    executor: Executor | None = None,
    keep_returns: bool = False,
) -> GapEstimate:
    """Estimates of the gaps between actions at one state of a simulator, from recursive branches.

    A run has a branch for each action. Branches at one state share a draw, and two that share state
    and action coalesce for good: see `coupling`.

    Args:
        env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, an `ImplicitJMDP`, a simulator with `query`,
            or a `VectorSimulator`, which simulates many runs at once. `env` is not changed.
        policy: probabilities (S, A), actions (S,), or a function of the state or observation that
            returns probabilities (A,) or an action. If actions are not integers, it must return an
            action. A function must be pure, as in `jipe2`.
        actions: m actions to compare. Each run has a branch for each of them, so all gaps are
            estimated from the same runs.
        state: the state to start from. For a simulator it is an integer or, if the simulator has no
            `num_states`, any hashable state. For an environment it is a snapshot, by default of its
            present state.
        gamma: discount factor; by default that of the simulator, or 0.99. It may be 1 together with
            a `horizon`.
        num_runs: number of runs, at least 3.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy. Equal integers
            give equal numbers. The `entropy` of the result reproduces the runs when it is passed
            here.
        coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
            "independent", none; "common", all of them, one draw per time step. A simulator that
            declares `coupling = "independent"` is simulated so.
        truncation: share of the largest possible return that may be cut off; it sets the horizon.
        horizon: steps of a run; by default it follows from `truncation`. If gamma is 1 and a gap
            is still open there, its truncation error is infinite. A branch that an environment
            reports as truncated, as Gymnasium's time limits do, is cut off at that step instead.
            The truncation error then covers the rewards that it would have earned. If the limit
            belongs to your problem, let the environment report it as terminated.
        executor: simulates the runs elsewhere: any `concurrent.futures.Executor`, such as a process
            pool or that of a Dask cluster, `client.get_executor()`. The numbers stay the same. For
            other processes, `env` and `policy` must pickle.
        keep_returns: simulate every run to its end and keep the returns; then `GapEstimate.law` has
            quantiles and CVaR of gaps. By default a run ends when all its branches have coalesced,
            since its gaps are final then, and a few extra runs go to their end, for the values:
            a tenth of the work, and at least 16 runs.

    Returns:
        Means, variances and probabilities of all gaps with their standard errors, (m, m), and the
        value of every action.

    Raises:
        SimulatorError: the simulator failed, and the error names state and action; or a worker of
            the executor died, and the executor did not repeat its work. The attribute `result` of
            this and every other error during the runs, also of a KeyboardInterrupt, holds the
            estimates from all earlier runs.
        ValueError: an argument makes no sense.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> policy = jl.goal_policy(3)
        >>> estimate = jl.simulators.estimate_gaps(jm, policy, [0, 2], state=4, num_runs=300, rng=0)
        >>> print(f"up gains {estimate.mean[0, 1]:.2f} +- {estimate.mean_error[0, 1]:.2f}")
        up gains 1.60 +- 0.04
        >>> low, high = estimate.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.96 to 0.99
    """
    check_executor(executor)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    keep_returns = checks.flag("keep_returns", keep_returns)
    within = discount_and_horizon(env, gamma, horizon, truncation)
    sharing = coupling_of(env, coupling)
    world = world_of(env, state, sharing)
    actions = checks.listed("actions", actions, "action")
    plan = plan_of(world, [policy], actions, within, sharing, None)
    root = randomness.seed_of(rng, "estimate_gaps")
    return estimated(plan, num_runs, root, keep_returns, executor)


def check_executor(executor: Any) -> None:
    """Raise unless this is an executor or None."""
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )


def world_of(env: Any, state: Any, coupling: Coupling) -> World:
    """The world of a simulator, with arguments as in `estimate_gaps`; a new kind adds a line."""
    if isinstance(env, Environment):
        return EnvironmentWorld(env.twin(), state)
    queried = hasattr(env, "query") and hasattr(env, "num_actions")
    if not isinstance(env, VectorSimulator) and not queried:
        raise ValueError(
            f"{env!r} is not a simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, an "
            "ImplicitJMDP, a VectorSimulator, or have num_actions, gamma and query"
        )
    if state is None:
        raise ValueError("state= must be given: the state at which the branches start")
    if isinstance(env, JMDP):
        return TableWorld(env, state)
    if isinstance(env, ImplicitJMDP) and coupling.across_states:
        require_noise(env)
        law = env.at(state)[0]
        env = replace(env, tables=partial(with_law, law, env.tables))
    if isinstance(env, VectorSimulator):
        return VectorWorld(env, state)
    return QueriedWorld(env, state)


class Job(NamedTuple):
    """Runs of a plan to simulate: number, seed, whether to go to the end, whether to sum up."""

    plan: Plan
    size: int
    seed: np.random.SeedSequence
    to_the_end: bool = False
    summed: bool = False

    def done(self, elsewhere: bool) -> Runs | Summed:
        """Runs on the host, or their sums. elsewhere: other threads may use the plan's world."""
        world = self.plan.world.own() if elsewhere else self.plan.world
        runs = world.simulate(self.plan, self.size, self.seed, self.to_the_end)
        return Summed.of(self.plan, runs, self.to_the_end) if self.summed else on_host(runs)


def in_order(jobs: Iterable[Job], executor: Executor | None, ahead: int) -> Generator[Any]:
    """Results of jobs in their order, with `ahead` jobs in the executor at a time.

    Jobs that are no longer needed are cancelled.
    """
    if executor is None:
        for job in jobs:
            yield job.done(False)
        return
    waiting = deque[Any]()
    try:
        for job in jobs:
            waiting.append(executor.submit(job.done, True))
            if len(waiting) >= ahead:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    except SimulatorError:
        raise
    except Exception as error:
        raise SimulatorError(f"the executor failed: {error!r}") from error
    finally:
        for future in waiting:
            future.cancel()


def _result(future: Any) -> Any:
    """Result of a job, from an executor."""
    result = future.result()
    if not isinstance(result, Runs | Summed):
        raise TypeError(f"a future of the executor returned {result!r}, not the result of a job")
    return result


class Summed(NamedTuple):
    """Sums over runs.

    size: number of runs. gaps: sums of the gaps of all pairs. returns: sums of the returns of all
    branches; empty if runs end when their gaps are final.
    """

    size: int
    gaps: list[Sums]
    returns: list[Sums]
    extremes: tuple[float, float]
    queries: int

    @classmethod
    def of(cls, plan: Plan, runs: Runs, to_the_end: bool) -> Summed:
        """Sums of runs, computed by the array library of these."""
        xp = Arrays.of(runs.totals).xp
        returns = return_columns(plan, runs, xp) if to_the_end or not plan.coalesces else []
        gaps, values = (
            sums_of(plan, columns, runs.extremes, xp)
            for columns in (gap_columns(plan, runs, xp), returns)
        )
        return cls(runs.size, gaps, values, runs.extremes, runs.queries)


def _parts(job: Job, executor: Executor | None) -> tuple[list[Any], BaseException | None]:
    """Results of the chunks of a job, each with a seed of its own, up to a failure.

    The last result of a chunk that fails are its complete runs.
    """
    most = job.plan.world.chunk
    sizes = [min(most, job.size - start) for start in range(0, job.size, most)]
    jobs = [
        job._replace(size=size, seed=randomness.part(job.seed, k)) for k, size in enumerate(sizes)
    ]
    steps = in_order(jobs, executor, len(jobs))
    parts: list[Any] = []
    try:
        parts.extend(progress(len(jobs), "estimate_gaps", "chunk", steps))
    except BaseException as error:
        complete = getattr(error, "result", None)
        return [*parts, *[complete] * isinstance(complete, Runs)], error
    return parts, None


def estimated(
    plan: Plan,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool = False,
    executor: Executor | None = None,
) -> GapEstimate:
    """Estimates of all gaps of a plan; an error carries those from the runs before it."""
    if keep_returns:
        bytes_kept = 8.0 * num_runs * (len(plan.names) + 2 * len(plan.pairs))
        require(
            3.0 * bytes_kept, f"the returns of num_runs = {num_runs:,}", "do without keep_returns"
        )
    summed = plan.world.sums_chunks and not keep_returns
    parts, failure = _parts(Job(plan, num_runs, root, keep_returns, summed), executor)
    ends: list[Any] = []
    if failure is None and plan.coalesces and not keep_returns:
        steps = _VALUE_SHARE * sum(part.queries for part in parts)
        size = max(_VALUE_RUNS, int(steps / plan.horizon))
        job = Job(plan, size, randomness.part(root, "values"), True, summed)
        ends, failure = _parts(job, executor)
    done = sum(part.size for part in parts)
    others = {"num_runs": done, "entropy": randomness.entropy(root)}
    estimate = _estimate(plan, parts, ends, keep_returns, others) if done >= 3 else None
    if isinstance(failure, SimulatorError):
        stopped = SimulatorError(f"{failure} ({done:,} runs went well)")
        stopped.result = estimate
        raise stopped from failure
    if failure is not None:
        failure.result = estimate  # type: ignore[attr-defined]
        raise failure
    assert estimate is not None
    return estimate


def joined(parts: Sequence[Runs]) -> Runs:
    """Runs of one plan, as NumPy arrays, joined."""
    totals, tails, coalesced, extremes, queries = zip(*parts, strict=True)
    return Runs(
        totals=np.concatenate(totals, axis=1),
        tails=np.concatenate(tails, axis=1),
        coalesced=np.concatenate(coalesced, axis=1),
        extremes=joined_extremes(extremes),
        queries=sum(queries),
    )


def _sums(plan: Plan, parts: list[Any], to_the_end: bool) -> list[Summed]:
    """Sums of parts; parts that are runs are joined first."""
    if parts and isinstance(parts[0], Runs):
        return [Summed.of(plan, joined(parts), to_the_end)]
    return parts


def _estimate(
    plan: Plan, parts: list[Any], ends: list[Any], keep_returns: bool, others: dict[str, Any]
) -> GapEstimate:
    """Estimates from runs or their sums. ends: the same of runs to the end, only for values."""
    sums = _sums(plan, parts, keep_returns)
    more = _sums(plan, ends, True)
    seen = joined_extremes(part.extremes for part in [*sums, *more])
    if keep_returns:
        others |= _kept(plan, joined(parts), seen)
    returns = [part.returns for part in more or sums if part.returns]
    return GapEstimate.of(plan, [part.gaps for part in sums], returns, seen, **others)


def _kept(plan: Plan, runs: Runs, seen: tuple[float, float]) -> dict[str, Any]:
    """Returns, and the ends of all gaps; the declared range of rewards is used if there is one."""
    low, high = joined_extremes([plan.limits or seen, seen])
    future = plan.future(high - low)
    columns: Floats = np.reshape(gap_columns(plan, runs, np), (-1, 2, runs.size))
    gaps, tails = np.moveaxis(columns, 1, 0)
    cut = may_change(tails, future)
    largest = math.inf
    if plan.limits is not None:
        largest = future if tails.any() else plan.up_to_horizon(high - low)
    return {
        "returns": np.stack([runs.total(b) for b in range(len(plan.names))], axis=1),
        "gaps": np.stack([gaps - cut, gaps + cut], axis=2),
        "largest_gap": largest,
    }
