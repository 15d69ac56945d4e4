"""Estimates of the gaps of one state of any simulator, from recursive branches (`branches`).

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into jobs for this process or an executor. A job returns its runs as
they are; of a `VectorSimulator` only sums leave the device. Another statistic of gaps goes into
`statistics`, twice: `gap_statistics` has it of gaps, and `GapSums` of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import reduce
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy, Seed
from jmdp_lib.machine import in_executor, progress, require
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.players import Branches, PlayedRuns, gaps_of, played_gaps
from jmdp_lib.simulators.results import GapEstimate
from jmdp_lib.simulators.statistics import GapSums
from jmdp_lib.simulators.vector_branches import VectorBranches
from jmdp_lib.simulators.vector_runs import ChunkRuns
from jmdp_lib.simulators.vector_simulator import Arrays, VectorSimulator

# Runs go to an executor in chunks: at most so many, so that sending the simulator with each costs
# little, and of so many runs at least.
_MOST_CHUNKS = 256
_LEAST_RUNS = 16
_ROUNDING = 1e-12  # of the largest return: gaps of this size are none


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
    executor: Executor | None = None,
    keep_returns: bool = False,
) -> GapEstimate:
    """Estimates of the gaps between actions at one state of a simulator, from recursive branches.

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
    seed: an integer, a sequence of integers or a SeedSequence. Equal seeds give equal numbers. None
        draws fresh entropy; the result has it, and as a seed it repeats the runs.
    coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
        "independent", none; "common", all of them, one draw per time step.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    horizon: steps of a run; unless given, it follows from `truncation`. If gamma is 1 and a gap is
        still open there, its truncation error is infinite.
    executor: plays the runs elsewhere: any `concurrent.futures.Executor`, such as a process pool or
        that of a Dask cluster, `client.get_executor()`. The numbers stay the same. For other
        processes, `env` and `policy` must pickle.
    keep_returns: play every run to its end and keep the returns. Otherwise a run ends where all its
        branches are one, and its gaps are final.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all runs before. If a worker of the executor dies, and the executor does not play its runs
    again, the `SimulatorError` holds the result of all runs that came back.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> policy = jl.goal_policy(3)
        >>> found = jl.simulators.estimate_gaps(jm, policy, [0, 2], state=4, num_runs=300)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.52 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.92 to 0.97
    """
    root = checks.purpose_seed(seed, "estimate_gaps")
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )
    num_runs = checks.at_least("num_runs", num_runs, 3)
    asked: Any = (env, policy, actions, state, gamma, coupling, truncation, horizon)
    wanted = (num_runs, root, keep_returns, executor)
    if isinstance(env, VectorSimulator):
        played = _play_batches(VectorBranches.of(*asked), *wanted)
    else:
        played = _play_runs(Branches.of(*asked), *wanted)
    if played.failure is None:
        return replace(played.estimate(), entropy=root.entropy)
    failure = SimulatorError(f"{played.failure} ({played.num_runs:,} runs went well)")
    if played.num_runs >= 3:
        failure.result = replace(played.estimate(), entropy=root.entropy)
    raise failure


class _Played(NamedTuple):
    """What was played. estimate: makes the result. failure: why there are no more runs, if so."""

    num_runs: int
    estimate: Callable[[], GapEstimate]
    failure: str | None


# One run after the other, in any world


def _play_runs(
    branches: Branches,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool,
    executor: Executor | None,
) -> _Played:
    """All runs, or those that went well and why there are no more."""
    if executor is None:
        played = branches.play_runs(root, 0, num_runs, keep_returns, "estimate_gaps")
    else:
        most = min(_MOST_CHUNKS, -(-num_runs // _LEAST_RUNS))
        jobs = [(root, *ends, keep_returns) for ends in _chunks(num_runs, most)]
        parts, error = in_executor(branches.play_chunk, jobs, executor, "estimate_gaps")
        failure = None if error is None else f"the executor failed: {error!r}"
        played = PlayedRuns.joined([*parts, PlayedRuns.of([], len(branches.names), failure)])

    def estimate() -> GapEstimate:
        return gaps_of(branches, played, keep_returns)

    return _Played(len(played.returns), estimate, played.failure)


def _chunks(num_runs: int, most: int) -> list[tuple[int, int]]:
    """(first, last) of runs: so many chunks of about one size, or fewer."""
    ends = np.linspace(0, num_runs, min(most, num_runs) + 1, dtype=int).tolist()
    return list(pairwise(ends))


# Many runs of a `VectorSimulator` at once


def _play_batches(
    branches: VectorBranches,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool,
    executor: Executor | None,
) -> _Played:
    """All chunks of runs, or those that went well and why there are no more."""
    if keep_returns:
        size = 8.0 * num_runs * len(branches.names)
        require(2.0 * size, f"the returns of num_runs = {num_runs:,}", "do without keep_returns")
    chunk = branches.chunk_size
    sizes = [min(chunk, num_runs - start) for start in range(0, num_runs, chunk)]
    step = branches.most_in_flight
    jobs = [
        (branches, root, sizes[k : k + step], k, keep_returns) for k in range(0, len(sizes), step)
    ]
    results, error = _results(jobs, executor)
    parts = [part for batch, _ in results for part in batch]
    failure = next((failure for _, failure in results if failure), None)
    if failure is None and error is not None:
        failure = f"the executor failed: {error!r}"
    done = sum(part.sums.num_gaps for part in parts)
    return _Played(done, lambda: _estimate(branches, parts), failure)


def _results(
    jobs: list[Any], executor: Executor | None
) -> tuple[list[tuple[list[_Part], str | None]], BaseException | None]:
    """What `_play_batch` made of the jobs, here or by an executor, and why the latter failed."""
    if executor is not None:
        return in_executor(_play_batch, jobs, executor, "estimate_gaps")
    results = []
    with progress(len(jobs), "estimate_gaps", unit="chunk") as bar:
        for job in jobs:
            results.append(_play_batch(*job))
            bar.update()
    return results, None


class _Part(NamedTuple):
    """What is kept of a chunk. sums: of the P pairs of actions. apart: (P,) runs that were."""

    sums: GapSums
    apart: Floats
    extremes: tuple[float, float]
    returns: Floats | None


def _play_batch(
    branches: VectorBranches,
    root: np.random.SeedSequence,
    sizes: Sequence[int],
    first: int,
    keep_returns: bool,
) -> tuple[list[_Part], str | None]:
    """What is kept of a batch of chunks, or why the simulator failed in it."""
    try:
        chunks = branches.play(root, sizes, first, whole=keep_returns)
    except SimulatorError as error:
        last = first + len(sizes) - 1
        return [], f"chunk {first}: {error}" if last == first else f"chunks {first}-{last}: {error}"
    return [_summed(branches, chunk, keep_returns) for chunk in chunks], None


def _summed(branches: VectorBranches, runs: ChunkRuns, keep_returns: bool) -> _Part:
    """The sums of a chunk, computed where its runs are."""
    arrays = Arrays.of(runs.returns)
    xp = arrays.xp
    tiny = _ROUNDING * float(xp.max(xp.abs(runs.returns)))
    cut = branches.largest_rest(runs.extremes[1] - runs.extremes[0])
    sums = []
    counts = []
    for (i, j), apart in zip(_pairs(branches), runs.apart, strict=True):
        cuts = xp.where(apart, xp.full_like(runs.returns[i, ...], cut), 0.0)
        sums.append(GapSums.of(runs.returns[i, ...] - runs.returns[j, ...], cuts, tiny, xp))
        counts.append(int(xp.count_nonzero(apart)))
    stacked = GapSums(
        num_gaps=runs.returns.shape[1],
        mean=np.array([part.mean for part in sums]),
        central=np.array([part.central for part in sums]).reshape(-1, 3).T,
        signs=np.array([part.signs for part in sums]).reshape(-1, 4).T,
    )
    kept = _in_order(arrays, runs) if keep_returns else None
    return _Part(stacked, np.array(counts, float), runs.extremes, kept)


def _in_order(arrays: Arrays, runs: ChunkRuns) -> Floats:
    """Returns (N, m) in the order of the runs."""
    return arrays.host(runs.returns).T[np.argsort(arrays.host(runs.numbers))]


def _pairs(branches: VectorBranches) -> list[tuple[int, int]]:
    return list(combinations(range(len(branches.names)), 2))


def _estimate(branches: VectorBranches, parts: list[_Part]) -> GapEstimate:
    sums = reduce(GapSums.plus, (part.sums for part in parts))
    open_share = _symmetric(branches, sum(part.apart for part in parts) / sums.num_gaps)
    low = min(part.extremes[0] for part in parts)
    high = max(part.extremes[1] for part in parts)
    kept = [part.returns for part in parts if part.returns is not None]
    returns = np.concatenate(kept) if kept else None
    found = _table(branches, sums.statistics())
    return played_gaps(branches, found, open_share, (low, high), sums.num_gaps, returns)


def _table(branches: VectorBranches, values: Any) -> Any:
    """(8, m, m) of statistics (8, P) of pairs of actions, as in `gap_statistics`."""
    mean, *errors, below, at, above, left_open = (_symmetric(branches, row) for row in values)
    upper = np.triu(np.ones_like(mean), 1) > 0
    mean = np.where(upper, mean, -mean)
    at += np.eye(len(at))  # an action against itself: always a tie
    worse = np.where(upper, below, above)
    return np.stack([mean, *errors, worse, at, worse.T, left_open])


def _symmetric(branches: VectorBranches, values: Any) -> Floats:
    """(m, m) of values (P,) of pairs of actions: the same for [i, j] and [j, i], 0 for [i, i]."""
    size = len(branches.names)
    first, second = np.triu_indices(size, 1)
    whole = np.zeros((size, size))
    whole[first, second] = values
    whole[second, first] = values
    return whole
