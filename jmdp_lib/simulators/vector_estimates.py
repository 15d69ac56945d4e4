"""Estimates of gaps from the runs of a `VectorSimulator`: only sums leave the device."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import reduce
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib.checks import Floats
from jmdp_lib.machine import in_executor, in_processes, require
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.simulators.arrays import Arrays
from jmdp_lib.simulators.results import PlayedGaps, action_labels
from jmdp_lib.simulators.statistics import GapSums, unseen_variance
from jmdp_lib.simulators.vector_branches import VectorBranches
from jmdp_lib.simulators.vector_lanes import ChunkRuns

_ROUNDING = 1e-12  # of the largest return: gaps of this size are none


class _Part(NamedTuple):
    """What is kept of a chunk. sums: of the P pairs of actions. apart: (P,) runs that were."""

    sums: GapSums
    apart: Floats
    extremes: tuple[float, float]
    returns: Floats | None


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
    failed = failed or f"the executor failed: {error!r}"
    done = sum(part.sums.num_gaps for part in parts)
    failure = SimulatorError(f"{failed} ({done:,} runs went well)")
    failure.result = _estimate(branches, parts) if done >= 3 else None
    raise failure


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
        unsure = tiny + xp.where(apart, xp.full_like(runs.returns[i, ...], cut), 0.0)
        sums.append(GapSums.of(runs.returns[i, ...] - runs.returns[j, ...], unsure, xp))
        counts.append(int(xp.count_nonzero(apart)))
    stacked = GapSums(
        num_gaps=runs.returns.shape[1],
        mean=np.array([part.mean for part in sums]),
        central=np.array([part.central for part in sums]).reshape(-1, 3).T,
        signs=np.array([part.signs for part in sums]).reshape(-1, 3).T,
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
    low = min(part.extremes[0] for part in parts)
    high = max(part.extremes[1] for part in parts)
    found = _table(branches, sums.statistics())
    open_share = _symmetric(branches, sum(part.apart for part in parts) / sums.num_gaps)
    cut = branches.largest_rest(high - low)
    missed = np.multiply(cut, open_share, out=np.zeros_like(open_share), where=open_share > 0)
    unseen = unseen_variance(
        found[0], sums.num_gaps, branches.reward_range, branches.discount_of_returns
    )
    unseen[branches.alike] = 0.0
    names = action_labels(branches.names)
    kept = [part.returns for part in parts if part.returns is not None]
    returns = np.concatenate(kept) if kept else None
    index = {branches.compared: names[:, None], "other": names[None]}
    rest: Any = missed, sums.num_gaps, returns
    return PlayedGaps(*found, *rest, unseen_variance=unseen, index=index)


def _table(branches: VectorBranches, values: Any) -> Any:
    """(7, m, m) of statistics (7, P) of pairs of actions, as in `gap_statistics`."""
    mean, *errors, below, at, above = (_symmetric(branches, row) for row in values)
    upper = np.triu(np.ones_like(mean), 1) > 0
    mean = np.where(upper, mean, -mean)
    at += np.eye(len(at))  # an action against itself: always a tie
    worse = np.where(upper, below, above)
    return np.stack([mean, *errors, worse, at, worse.T])


def _symmetric(branches: VectorBranches, values: Any) -> Floats:
    """(m, m) of values (P,) of pairs of actions: the same for [i, j] and [j, i], 0 for [i, i]."""
    size = len(branches.names)
    first, second = np.triu_indices(size, 1)
    whole = np.zeros((size, size))
    whole[first, second] = values
    whole[second, first] = values
    return whole
