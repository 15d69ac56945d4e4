"""Estimates of the gaps of one state of any simulator, from recursive branches (`branches`).

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into jobs for this process, other processes or an executor. A job
returns its runs as they are; of a `VectorSimulator` only sums leave the device. Another statistic
of gaps goes into `statistics`, twice: `gap_statistics` has it of gaps, and `GapSums` of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import reduce
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy, Seed
from jmdp_lib.machine import in_executor, in_processes, require
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.players import Branches, PlayedRuns, gaps_of, played_gaps
from jmdp_lib.simulators.results import PlayedGaps
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
    processes: int = 1,
    executor: Executor | None = None,
    keep_returns: bool = False,
) -> PlayedGaps:
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
    seed: an integer, a sequence of integers or a SeedSequence. Equal seeds give equal numbers.
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
    _check_players(processes, executor)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    asked: Any = (env, policy, actions, state, gamma, coupling, truncation, horizon)
    wanted = (num_runs, root, keep_returns, processes, executor)
    if isinstance(env, VectorSimulator):
        return estimate_vector_gaps(VectorBranches.of(*asked), *wanted)
    branches = Branches.of(*asked)
    played = _play_runs(branches, *wanted)
    if played.failure is None:
        return gaps_of(branches, played, keep_returns)
    done = len(played.returns)
    raise _failure(played.failure, done, lambda: gaps_of(branches, played, keep_returns))


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


def _failure(why: str, done: int, estimate: Callable[[], PlayedGaps]) -> SimulatorError:
    """An error that holds what the runs that went well say, if there are enough of them."""
    failure = SimulatorError(f"{why} ({done:,} runs went well)")
    failure.result = estimate() if done >= 3 else None
    return failure


# One run after the other, in any world


def _play_runs(
    branches: Branches, num_runs: int, root: np.random.SeedSequence, whole: bool, processes: int,
    executor: Executor | None,
) -> PlayedRuns:  # fmt: skip
    """All runs, or those that went well and why there are no more."""
    if executor is not None:
        return _play_in_executor(branches, num_runs, root, whole, executor)
    if processes == 1:
        return branches.play_runs(root, 0, num_runs, whole, "estimate_gaps")
    branches.check_pickles()
    jobs = [(root, *ends, whole) for ends in _chunks(num_runs, 4 * processes)]
    return PlayedRuns.joined(in_processes(branches.play_chunk, jobs, processes, "estimate_gaps"))


def _play_in_executor(
    branches: Branches, num_runs: int, root: np.random.SeedSequence, whole: bool,
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


def _chunks(num_runs: int, most: int) -> list[tuple[int, int]]:
    """(first, last) of runs: so many chunks of about one size, or fewer."""
    ends = np.linspace(0, num_runs, min(most, num_runs) + 1, dtype=int).tolist()
    return list(pairwise(ends))


# Many runs of a `VectorSimulator` at once


def estimate_vector_gaps(
    branches: VectorBranches, num_runs: int, root: np.random.SeedSequence, keep_returns: bool,
    processes: int, executor: Executor | None,
) -> PlayedGaps:  # fmt: skip
    """As `estimate_gaps`, from all chunks of runs."""
    if keep_returns:
        size = 8.0 * num_runs * len(branches.names)
        require(2.0 * size, f"the returns of num_runs = {num_runs:,}", "do without keep_returns")
    chunk = branches.chunk_size
    sizes = [min(chunk, num_runs - start) for start in range(0, num_runs, chunk)]
    step = branches.most_in_flight
    jobs = [
        (branches, root, sizes[k : k + step], k, keep_returns) for k in range(0, len(sizes), step)
    ]
    error: BaseException | None = None
    if executor is not None:
        results, error = in_executor(_play_batch, jobs, executor, "estimate_gaps")
    else:
        if processes > 1:
            branches.check_pickles()
        results = in_processes(_play_batch, jobs, processes, "estimate_gaps")
    parts = [part for found, _ in results for part in found]
    failed = next((failure for _, failure in results if failure), None)
    if failed is None and error is None:
        return _estimate(branches, parts)
    why = failed or f"the executor failed: {error!r}"
    done = sum(part.sums.num_gaps for part in parts)
    raise _failure(why, done, lambda: _estimate(branches, parts))


class _Part(NamedTuple):
    """What is kept of a chunk. sums: of the P pairs of actions. apart: (P,) runs that were."""

    sums: GapSums
    apart: Floats
    extremes: tuple[float, float]
    returns: Floats | None


def _play_batch(
    branches: VectorBranches, root: np.random.SeedSequence, sizes: Sequence[int], first: int,
    keep_returns: bool,
) -> tuple[list[_Part], str | None]:  # fmt: skip
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


def _estimate(branches: VectorBranches, parts: list[_Part]) -> PlayedGaps:
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
