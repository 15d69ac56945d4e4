"""Estimates of gaps: of the actions of one state of any simulator, or of many rows of a JMDP.

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into jobs for this process or an executor. Chunks are summed up where
they are played, or, where they are small, kept until the end. Another statistic of gaps is one of
`statistics.GapSums`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.compiled import CompiledPlayer
from jmdp_lib.simulators.executors import in_executor
from jmdp_lib.simulators.plans import Asked, Plan, Runs, Settings, check_order
from jmdp_lib.simulators.players import player_of
from jmdp_lib.simulators.results import GapEstimate, printed_names
from jmdp_lib.simulators.statistics import GapSums
from jmdp_lib.simulators.vector_simulator import Arrays

_MOST_JOBS = 256  # of an executor: so that sending the simulator with each costs little
ROUNDING = 1e-12  # of the largest return: gaps of this size are none


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
        the runs. Of a JMDP, also K rows (state, action, other action), without `state`: every row
        has runs and a random stream of its own, whichever others are asked for with it.
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
        up gains 1.47 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.94 to 0.98
        >>> rows = jl.simulators.estimate_gaps(jm, policy, [(4, 0, 2), (4, 1, 2)], num_runs=20_000)
        >>> print(rows.mean.round(2), rows.mean_error.round(3))
        [1.52 1.52] [0.004 0.004]
    """
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )
    check_order(policy)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    settings = Settings.of(env, gamma, coupling, truncation, horizon)
    if isinstance(env, JMDP) and state is None and np.ndim(actions) == 2:
        if executor is not None or keep_returns:
            raise ValueError("rows (state, action, other) take no executor= and no keep_returns=")
        return _estimate_rows(env, policy, actions, num_runs, seed, settings)
    root = checks.purpose_seed(seed, "estimate_gaps")
    plan = Plan.of_actions(player_of(env, state, coupling), policy, actions, settings)
    chunks, failure = _play(plan, num_runs, root, keep_returns, executor)
    parts = _joined(plan, chunks, keep_returns)
    done = sum(part.sums.num_gaps for part in parts)
    if failure is None:
        return replace(_estimate(plan, parts), entropy=root.entropy)
    error = SimulatorError(f"{failure} ({done:,} runs went well)")
    if done >= 3:
        error.result = replace(_estimate(plan, parts), entropy=root.entropy)
    raise error


def _estimate_rows(
    jm: JMDP, policy: Policy, rows: ArrayLike, num_runs: int, seed: Seed, settings: Settings
) -> GapEstimate:
    """Estimates (K,) of rows (state, action, other action)."""
    asked = checks.integers("actions", rows, "row", **{"(state, action, other action)": 3}).tolist()
    root = checks.purpose_seed(seed, "sample_gaps")
    player = CompiledPlayer(jm, asked[0][0], settings.coupling)
    policies = (player.checked_policy(policy, alone=True),)
    for s, *pair in asked:
        checks.index("state", s, jm.num_states)
        for action in pair:
            checks.index("action", action, jm.num_actions)
    found = []
    for s, *pair in asked:
        player = copy.copy(player)
        player.state = s
        plan = Plan(player, policies, (0, 0), pair, tuple(pair), settings)
        seeds = [checks.seed_sequence(root, s, *pair)]
        (runs,) = player.play(plan, seeds, [num_runs], Asked())
        found.append(_summed(plan, runs, False))
    sums = np.concatenate([part.sums.statistics() for part in found], axis=1)
    shares = np.concatenate([part.apart for part in found]) / num_runs
    index = dict(zip(("state", "action", "other"), np.transpose(asked), strict=True))
    missed = _missed(plan, shares, jm.reward_range)
    columns: Any = (*sums[:7], missed, num_runs, None, sums[7])
    return GapEstimate(*columns, index=index, entropy=root.entropy)


def _play(
    plan: Plan,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool,
    executor: Executor | None,
) -> tuple[list[Any], str | None]:
    """All chunks of runs, or those that went well and why there are no more."""
    if keep_returns:
        size = 8.0 * num_runs * len(plan.names)
        require(2.0 * size, f"the returns of num_runs = {num_runs:,}", "do without keep_returns")
    chunk = plan.player.chunk_size
    sizes = [min(chunk, num_runs - start) for start in range(0, num_runs, chunk)]
    step = plan.player.most_in_flight(len(plan.names))
    if executor is not None:
        step *= -(-len(sizes) // (step * _MOST_JOBS))
    jobs = [(plan, root, sizes[k : k + step], k, keep_returns) for k in range(0, len(sizes), step)]
    results: list[tuple[list[Any], str | None]] = []
    error = None
    if executor is not None:
        results, error = in_executor(_play_elsewhere, jobs, executor, "estimate_gaps")
    else:
        with progress(len(jobs), "estimate_gaps", unit="chunk") as bar:
            for job in jobs:
                results.append(_play_job(*job))
                bar.update()
                if results[-1][1] is not None:
                    break
    parts = [part for played, _ in results for part in played]
    failure = next((failure for _, failure in results if failure), None)
    if failure is None and error is not None:
        failure = f"the executor failed: {error!r}"
    return parts, failure


def _play_elsewhere(plan: Plan, *rest: Any) -> tuple[list[Any], str | None]:
    """As `_play_job`, with a player of its own: threads may share this one."""
    return _play_job(replace(plan, player=plan.player.own()), *rest)


def _play_job(
    plan: Plan, root: np.random.SeedSequence, sizes: list[int], first: int, keep_returns: bool
) -> tuple[list[Any], str | None]:
    """What is kept of chunks, numbered from `first` on; and why there are no more, if so."""
    kept: list[Any] = []
    step = plan.player.most_in_flight(len(plan.names))
    for k in range(0, len(sizes), step):
        some = sizes[k : k + step]
        try:
            chunks = plan.play(root, some, Asked(whole=keep_returns), first + k)
        except SimulatorError as error:
            last = f"-{first + k + len(some) - 1}" if len(some) > 1 else ""
            return kept, f"chunk{'s' if last else ''} {first + k}{last}: {error}"
        if plan.player.sums_chunks:
            kept += [_summed(plan, chunk, keep_returns) for chunk in chunks]
        else:
            kept += chunks
    return kept, None


class _Part(NamedTuple):
    """What is kept of a chunk. sums: of the P pairs of branches. apart: (P,) runs that were."""

    sums: GapSums
    apart: Floats
    extremes: tuple[float, float]
    returns: Floats | None


def _joined(plan: Plan, parts: list[Any], keep_returns: bool) -> list[_Part]:
    """Chunks that were kept until the end, summed up as one."""
    if plan.player.sums_chunks or not parts:
        return parts
    runs = [part if part.numbers is None else in_order(part) for part in parts]
    lows, highs = zip(*(part.extremes for part in runs), strict=True)
    together = Runs(
        returns=np.concatenate([part.returns for part in runs], axis=1),
        apart=tuple(map(np.concatenate, zip(*(part.apart for part in runs), strict=True))),
        numbers=None,
        queries=None,
        extremes=(min(lows), max(highs)),
    )
    return [_summed(plan, together, keep_returns)]


def _summed(plan: Plan, runs: Runs, keep_returns: bool) -> _Part:
    """The sums of a chunk, computed where its runs are."""
    arrays = Arrays.of(runs.returns)
    xp = arrays.xp
    tiny = ROUNDING * float(xp.max(xp.abs(runs.returns)))
    cut = plan.largest_rest(runs.extremes[1] - runs.extremes[0])
    sums = []
    counts = []
    for (i, j), apart in zip(plan.pairs, runs.apart, strict=True):
        cuts = xp.where(apart, xp.full_like(runs.returns[i, ...], cut), 0.0)
        sums.append(GapSums.of(runs.returns[i, ...] - runs.returns[j, ...], cuts, tiny, xp))
        counts.append(int(xp.count_nonzero(apart)))
    stacked = GapSums(
        num_gaps=runs.returns.shape[1],
        mean=np.array([part.mean for part in sums]),
        central=np.array([part.central for part in sums]).reshape(-1, 3).T,
        signs=np.array([part.signs for part in sums]).reshape(-1, 4).T,
    )
    kept = in_order(runs).returns.T if keep_returns else None
    return _Part(stacked, np.array(counts, float), runs.extremes, kept)


def in_order(runs: Runs) -> Runs:
    """Runs as arrays of NumPy, in the order of their numbers if these are known."""
    host = Arrays.of(runs.returns).host
    order = slice(None) if runs.numbers is None else np.argsort(host(runs.numbers))
    return runs._replace(
        returns=host(runs.returns)[:, order],
        apart=tuple(host(apart)[order] for apart in runs.apart),
        queries=None if runs.queries is None else host(runs.queries)[order],
    )


def _estimate(plan: Plan, parts: list[_Part]) -> GapEstimate:
    sums = reduce(GapSums.plus, (part.sums for part in parts))
    shares = np.sum([part.apart for part in parts], axis=0) / sums.num_gaps
    lows, highs = zip(*(part.extremes for part in parts), strict=True)
    kept = [part.returns for part in parts if part.returns is not None]
    returns = np.concatenate(kept) if kept else None
    extremes = (min(lows), max(highs))
    return gap_table(plan, sums.statistics(), shares, extremes, sums.num_gaps, returns)


def gap_table(
    plan: Plan,
    found: Floats,
    shares: Floats,
    extremes: tuple[float, float],
    num_runs: Ints | int,
    returns: Any = None,
) -> GapEstimate:
    """Estimates (m, m) from statistics (8, P) of pairs, as `GapSums` has them.

    shares: (P,) of the runs, those whose gap was open at the horizon. extremes: (2,) of all
    rewards. num_runs, returns: as in `GapEstimate`.
    """
    size = len(plan.names)
    mean, *errors, below, at, above, left_open = (symmetric(size, row) for row in found)
    upper = np.triu(np.ones_like(mean), 1) > 0
    mean = np.where(upper, mean, -mean)
    at += np.eye(size)  # an action against itself: always a tie
    worse = np.where(upper, below, above)
    missed = _missed(plan, symmetric(size, shares), extremes)
    names = printed_names(plan.names)
    index = {plan.compared: names[:, None], "other": names[None]}
    columns: Any = (mean, *errors, worse, at, worse.T, missed, num_runs, returns, left_open)
    return GapEstimate(*columns, index=index)


def _missed(plan: Plan, shares: Floats, extremes: tuple[float, float]) -> Floats:
    """How far the cut at the horizon may have moved means, by the share of gaps left open."""
    cut = plan.largest_rest(extremes[1] - extremes[0])
    return np.multiply(cut, shares, out=np.zeros_like(shares), where=shares > 0)


def symmetric(size: int, values: Any) -> Floats:
    """(m, m) of values (P,) of pairs: the same for [i, j] and [j, i], 0 for [i, i]."""
    first, second = np.triu_indices(size, 1)
    whole = np.zeros((size, size))
    whole[first, second] = values
    whole[second, first] = values
    return whole
