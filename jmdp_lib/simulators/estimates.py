"""Estimates of gaps of the actions of one state of any simulator.

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into chunks for this process or an executor. Chunks are summed up
where they are simulated, or, where they are small, kept until the end. `world_of` finds what
simulates a simulator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
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
from jmdp_lib.simulators.batches import Arrays
from jmdp_lib.simulators.env_world import Environment, EnvironmentWorld, inside_episode
from jmdp_lib.simulators.gaps import (
    GapEstimate,
    Sums,
    gap_sums,
    may_change,
    open_gaps,
    value_sums,
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

_VALUE_RUNS = 16  # to the end for values, at least
_VALUE_SHARE = 0.1  # of the steps of all other runs

Job = tuple[Plan, int, np.random.SeedSequence]
"""So many runs of a plan, and their seed."""


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
    and action are one branch for good: see `coupling`.

    Args:
        env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, an `ImplicitJMDP`, a simulator with `query`,
            or a `VectorSimulator`, whose runs are simulated many at once. It is left alone.
        policy: probabilities (S, A), actions (S,), or a function of the state or observation that
            returns probabilities (A,) or an action. Where actions have no numbers, it returns an
            action. A function must be pure, as in `jipe2`.
        actions: m actions to compare. Each run has a branch for each of them, so that all gaps
            share the runs.
        state: where to start: the state of a simulator, which is a number or, if the simulator has
            no `num_states`, anything hashable; or a snapshot of an environment, by default of where
            it is.
        gamma: discount factor; by default that of the simulator, or 0.99. It may be 1 together with
            a `horizon`.
        num_runs: how many runs are simulated, at least 3.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy. Equal integers
            give equal numbers. The result has the `entropy`, which repeats the runs when it is
            passed here.
        coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
            "independent", none; "common", all of them, one draw per time step. A simulator that
            declares `coupling = "independent"` is simulated so.
        truncation: which share of the largest possible return may be cut off; it sets the horizon.
        horizon: steps of a run; by default it follows from `truncation`. If gamma is 1 and a gap
            is still open there, its truncation error is infinite. A branch that an environment
            reports as truncated, as Gymnasium's time limits do, is cut off at that step instead.
            What it would have earned counts in the truncation error. If the limit belongs to your
            problem, let the environment report it as terminated.
        executor: simulates the runs elsewhere: any `concurrent.futures.Executor`, such as a process
            pool or that of a Dask cluster, `client.get_executor()`. The numbers stay the same. For
            other processes, `env` and `policy` must pickle.
        keep_returns: simulate every run to its end and keep the returns; then `GapEstimate.law` has
            quantiles and CVaR of gaps. Otherwise a run ends where all its branches are one, and its
            gaps are final; a few runs more go to their end, for the values: a tenth of the work,
            and at least 16 runs.

    Returns:
        Means, variances and probabilities of all gaps with their standard errors, (m, m), and the
        value of every action.

    Raises:
        SimulatorError: the simulator failed; the error names state and action, and its `result`
            holds the estimates of all runs before. Or a worker of the executor died, and the
            executor did not repeat its work: `result` is of all runs before.
        ValueError: an argument makes no sense.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> policy = jl.goal_policy(3)
        >>> found = jl.simulators.estimate_gaps(jm, policy, [0, 2], state=4, num_runs=300, rng=0)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.60 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.96 to 0.99
    """
    check_executor(executor)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    keep_returns = checks.flag("keep_returns", keep_returns)
    within = discount_and_horizon(env, gamma, horizon, truncation)
    sharing = coupling_of(env, coupling)
    plan = plan_of(world_of(env, state, sharing), [policy], actions, within, sharing, None)
    root = randomness.seed_of(rng, "estimate_gaps")
    return estimated(plan, num_runs, root, keep_returns, executor)


def check_executor(executor: Any) -> None:
    """Refuse what is not an executor."""
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )


def world_of(env: Any, state: Any, coupling: Coupling) -> World:
    """What simulates a simulator; arguments as of `estimate_gaps`. Another kind has a line here."""
    if isinstance(env, Environment):
        return EnvironmentWorld(inside_episode(env, state), [env.twin()])
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


def jobs_of(plan: Plan, size: int, seed: np.random.SeedSequence) -> list[Job]:
    """Chunks of so many runs, each with a seed of its own."""
    most = plan.world.chunk
    starts = range(0, size, most)
    return [
        (plan, min(most, size - start), randomness.part(seed, start // most)) for start in starts
    ]


def in_order(
    work: Callable[[Job], Any], jobs: Iterable[Job], executor: Executor | None, ahead: int
) -> Generator[Any]:
    """What jobs return, in their order; so many are under way in an executor.

    Those that nobody asks for any more are cancelled.
    """
    if executor is None:
        yield from map(work, jobs)
        return
    waiting = deque[Any]()
    try:
        for job in jobs:
            waiting.append(executor.submit(work, job))
            if len(waiting) >= ahead:
                yield _simulated_there(waiting.popleft())
        while waiting:
            yield _simulated_there(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()


def _simulated_there(future: Any) -> Any:
    """Runs, or their sums, that a future of an executor holds."""
    result = future.result()
    if not isinstance(result, Runs | Summed):
        raise TypeError(f"a future of the executor returned {result!r}, not what it simulated")
    return result


def estimated(
    plan: Plan,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool = False,
    executor: Executor | None = None,
) -> GapEstimate:
    """Estimates of all gaps of a plan; what went well before a failure is in the error."""
    if keep_returns:
        bytes_kept = 8.0 * num_runs * (len(plan.names) + 2 * len(plan.pairs))
        require(
            2.0 * bytes_kept, f"the returns of num_runs = {num_runs:,}", "do without keep_returns"
        )
    jobs = jobs_of(plan, num_runs, root)
    parts, failure = _summed(plan, jobs, keep_returns, keep_returns, executor)
    ends = [part for part in parts if part.values]
    if failure is None and not ends:
        steps = _VALUE_SHARE * sum(part.queries for part in parts)
        size = max(_VALUE_RUNS, int(steps / plan.horizon))
        jobs = jobs_of(plan, size, randomness.part(root, "values"))
        ends, failure = _summed(plan, jobs, True, False, executor)
    found = None
    done = sum(part.num_runs for part in parts)
    if done >= 3:
        seen = joined_extremes(part.extremes for part in [*parts, *ends])
        found = GapEstimate.of(
            plan,
            [part.gaps for part in parts],
            [part.values for part in ends],
            seen,
            num_runs=done,
            entropy=randomness.entropy(root),
            **_kept(plan, parts, seen) if keep_returns else {},
        )
    if found is not None and failure is None:
        return found
    ours = isinstance(failure, SimulatorError)
    why = f"{failure}" if ours else f"the executor failed: {failure!r}"
    error = SimulatorError(f"{why} ({done:,} runs went well)")
    error.result = found
    raise error from failure


class Summed(NamedTuple):
    """What is kept of runs.

    gaps: sums of all pairs. values: of all branches, if their runs went to the end. kept: if
    returns are, these (N, m), and the ends of all gaps (N, pairs, 2).
    """

    num_runs: int
    gaps: list[Sums]
    values: list[Sums]
    queries: int
    extremes: tuple[float, float]
    kept: tuple[Floats, ...]


def _summed(
    plan: Plan, jobs: list[Job], to_the_end: bool, keep: bool, executor: Executor | None
) -> tuple[list[Summed], Exception | None]:
    """Sums of the runs of jobs, or of those that went well, and why there are no more."""
    elsewhere = executor is not None
    work = partial(_simulated, to_the_end=to_the_end, keep=keep, elsewhere=elsewhere)
    done: list[Any] = []
    failure: Exception | None = None
    try:
        steps = in_order(work, jobs, executor, len(jobs))
        done.extend(progress(len(jobs), "estimate_gaps", "chunk", steps))
    except Exception as error:
        if executor is None and not isinstance(error, SimulatorError):
            raise
        failure = error
        complete = getattr(error, "result", None)
        done.extend([complete] if isinstance(complete, Runs) else [])
    if done and not plan.world.sums_chunks:
        done = [_sums(plan, joined(done), to_the_end, keep)]
    return done, failure


def simulated(job: Job, to_the_end: bool, elsewhere: bool) -> Runs:
    """The runs of a job. elsewhere: threads may share the world of its plan."""
    plan, size, seed = job
    world = plan.world.own() if elsewhere else plan.world
    return world.simulate(plan, size, seed, to_the_end)


def _simulated(job: Job, *, to_the_end: bool, keep: bool, elsewhere: bool) -> Any:
    """The runs of a job, or their sums."""
    plan = job[0]
    runs = simulated(job, to_the_end, elsewhere)
    return _sums(plan, runs, to_the_end, keep) if plan.world.sums_chunks else runs


def joined(parts: Sequence[Runs]) -> Runs:
    """Runs of one plan, of NumPy, put together."""
    totals, tails, coalesced, extremes, queries = zip(*parts, strict=True)
    return Runs(
        totals=np.concatenate(totals, axis=1),
        tails=np.concatenate(tails, axis=1),
        coalesced=np.concatenate(coalesced, axis=1),
        extremes=joined_extremes(extremes),
        queries=sum(queries),
    )


def _sums(plan: Plan, runs: Runs, to_the_end: bool, keep: bool) -> Summed:
    """Sums of runs, worked out where they are."""
    arrays = Arrays.of(runs.totals)
    gaps = open_gaps(plan, runs, arrays.xp)
    returns = []
    if to_the_end or not plan.coalesces:
        returns = [(runs.total(b), runs.tails[b, :]) for b in range(len(plan.names))]
    kept: tuple[Floats, ...] = ()
    if keep:
        columns = [[x for x, _ in returns], [x for x, _ in gaps], [tail for _, tail in gaps]]
        sizes = (-1, runs.totals.shape[1])
        kept = tuple(np.reshape([*map(arrays.host, each)], sizes).T for each in columns)
    return Summed(
        num_runs=runs.totals.shape[1],
        gaps=gap_sums(plan, gaps, runs.extremes, arrays.xp),
        values=value_sums(plan, returns, arrays.xp),
        queries=runs.queries,
        extremes=runs.extremes,
        kept=kept,
    )


def _kept(plan: Plan, parts: Sequence[Summed], seen: tuple[float, float]) -> dict[str, Any]:
    """Returns, and the ends of all gaps, by what is known of rewards and not only was seen."""
    returns, gaps, tails = map(np.concatenate, zip(*(part.kept for part in parts), strict=True))
    low, high = joined_extremes([plan.limits or seen, seen])
    rest = plan.future(high - low)
    largest = math.inf
    if plan.limits is not None:
        largest = rest if tails.any() else plan.up_to_horizon(high - low)
    cut = may_change(tails, rest)
    return {
        "returns": returns,
        "gaps": np.stack([gaps - cut, gaps + cut], axis=2),
        "largest_gap": largest,
    }
