"""Estimates of gaps: of the actions of one state of any simulator, or of many rows of a JMDP.

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into chunks for this process or an executor. Chunks are summed up
where they are played, or, where they are small, kept until the end. Another statistic of gaps is
one of `statistics.gap_statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy, Seed
from jmdp_lib.machine import progress, require
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.simulators.compiled import CompiledPlayer
from jmdp_lib.simulators.executors import in_executor
from jmdp_lib.simulators.plans import Chunk, Plan, Runs, Settings
from jmdp_lib.simulators.players import player_of
from jmdp_lib.simulators.results import GapEstimate
from jmdp_lib.simulators.statistics import GapSums, gap_ends, gap_statistics, value_sums
from jmdp_lib.simulators.batch import Arrays

# Whole runs that are played for the values alone: how many are wanted at least, how many steps they
# may take in any case, and which share of the steps of all other runs.
_WHOLE_RUNS = 16
_WHOLE_STEPS = 2000
_WHOLE_SHARE = 0.1


def estimate_gaps(
    env: Any,
    policy: Policy,
    actions: Sequence[Any],
    state: Any = None,
    gamma: float | None = None,
    num_runs: int = 1000,
    seed: Seed = 0,
    coupling: CouplingName = DEFAULT_COUPLING,
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
        action. A function must be pure, as in `jipe2`.
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
        "independent", none; "common", all of them, one draw per time step. A simulator that
        declares `coupling = "independent"` is played so.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    horizon: steps of a run; unless given, it follows from `truncation`. If gamma is 1 and a gap is
        still open there, its truncation error is infinite. A branch that an environment reports as
        truncated, as Gymnasium's time limits do, is cut off at that step instead. What it would
        have earned counts in the truncation error. If the limit belongs to your problem, let the
        environment report it as terminated.
    executor: plays the runs elsewhere: any `concurrent.futures.Executor`, such as a process pool or
        that of a Dask cluster, `client.get_executor()`. The numbers stay the same. For other
        processes, `env` and `policy` must pickle.
    keep_returns: play every run to its end and keep the returns; then `GapEstimate.law` has
        quantiles and CVaR of gaps. Otherwise a run ends where all its branches are one, and its
        gaps are final; a few runs more are played to their end, for the values.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all runs before. If a worker of the executor dies, and the executor does not play its runs
    again, the `SimulatorError` holds the result of all runs that came back.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> policy = jl.goal_policy(3)
        >>> found = jl.simulators.estimate_gaps(jm, policy, [0, 2], state=4, num_runs=300)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.56 +- 0.03
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.95 to 0.99
        >>> rows = jl.simulators.estimate_gaps(jm, policy, [(4, 0, 2), (4, 1, 2)], num_runs=20_000)
        >>> print(rows.mean.round(2), rows.mean_error.round(3))
        [1.52 1.53] [0.004 0.004]
    """
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )
    num_runs = checks.at_least("num_runs", num_runs, 3)
    settings = Settings.of(env, gamma, coupling, truncation, horizon)
    if isinstance(env, JMDP) and state is None and np.ndim(actions) == 2:
        if executor is not None or keep_returns:
            raise ValueError("rows (state, action, other) take no executor= and no keep_returns=")
        return _estimate_rows(env, policy, actions, num_runs, seed, settings)
    root = checks.seed_sequence(seed, "estimate_gaps")
    plan = Plan.of_actions(player_of(env, state, settings.coupling), policy, actions, settings)
    return estimated(plan, num_runs, root, keep_returns, executor)


def estimated(
    plan: Plan,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool = False,
    executor: Executor | None = None,
) -> GapEstimate:
    """Estimates of all gaps of a plan; what went well before a failure is in the error."""
    chunks, failure = _play(plan, num_runs, root, keep_returns, executor)
    if chunks and not plan.player.sums_chunks:
        chunks = [_summed(plan, chunks, keep_returns)]
    done = sum(chunk.num_runs for chunk in chunks)
    whole = chunks if all(chunk.values for chunk in chunks) else []
    if failure is None and not whole:
        whole, failure = _play_whole(plan, chunks, root, executor)
    found = None
    if done >= 3:
        sums = [*zip(*(chunk.sums for chunk in chunks), strict=True)]
        seen = _extremes(chunks)
        rest: dict[str, Any] = {"num_runs": done, "entropy": root.entropy}
        if keep_returns:
            kept = zip(*(chunk.kept for chunk in chunks), strict=True)
            rest["returns"], rest["gaps"] = map(np.concatenate, kept)
            rest["largest_gap"] = plan.largest_gap(seen)
        values = [*zip(*(chunk.values for chunk in whole), strict=True)]
        rest |= value_table(plan, values, _extremes(chunks + whole))
        found = gap_table(plan, sums, seen, **rest)
    if found is not None and failure is None:
        return found
    ours = isinstance(failure, SimulatorError)
    why = f"{failure}" if ours else f"the executor failed: {failure!r}"
    error = SimulatorError(f"{why} ({done:,} runs went well)")
    error.result = found
    raise error


def _estimate_rows(
    jm: JMDP, policy: Policy, rows: ArrayLike, num_runs: int, seed: Seed, settings: Settings
) -> GapEstimate:
    """Estimates (K,) of rows (state, action, other action), each played by itself."""
    asked = checks.integers("actions", rows, "row", **{"(state, action, other action)": 3}).tolist()
    root = checks.seed_sequence(seed, "sample_gaps")
    player = CompiledPlayer(jm, asked[0][0], settings.coupling)
    policies = (player.checked_policy(policy),)
    plan = player.tried(Plan(player, policies, (0, 0), [], "action", settings))
    for s, *pair in asked:
        checks.index("state", s, jm.num_states)
        for action in pair:
            checks.index("action", action, jm.num_actions)
    found = []
    for s, *pair in asked:
        player.state = s
        own_seed = checks.seed_sequence(root, s, *pair)
        found.append(vars(estimated(replace(plan, names=pair), num_runs, own_seed)))
    tables = [name for name, value in found[0].items() if np.ndim(value) == 2]
    columns: Any = {name: np.array([each[name][0, 1] for each in found]) for name in tables}
    columns |= {name: np.array([each[name] for each in found]) for name in ("value", "value_error")}
    return GapEstimate(**columns, num_runs=num_runs, entropy=root.entropy)


def _play(
    plan: Plan,
    num_runs: int,
    root: np.random.SeedSequence,
    keep_returns: bool,
    executor: Executor | None,
) -> tuple[list[Any], BaseException | None]:
    """All chunks of runs, or those that went well and why there are no more."""
    if keep_returns:
        size = 8.0 * num_runs * (len(plan.names) + 2 * len(plan.pairs))
        require(2.0 * size, f"the returns of num_runs = {num_runs:,}", "do without keep_returns")
    chunk = plan.player.chunk_size
    starts = range(0, num_runs, chunk)

    def job(start: int) -> tuple[Any, ...]:
        seed = checks.seed_sequence(root, start // chunk)
        return plan, seed, min(chunk, num_runs - start), keep_returns

    if executor is not None:
        return in_executor(_play_elsewhere, [*map(job, starts)], executor)
    chunks = []
    with progress(len(starts), "estimate_gaps", unit="chunk") as bar:
        for start in starts:
            try:
                chunks.append(_play_chunk(*job(start)))
            except SimulatorError as error:
                return chunks, error
            bar.update()
    return chunks, None


def _play_whole(
    plan: Plan, chunks: list[_Summed], root: np.random.SeedSequence, executor: Executor | None
) -> tuple[list[_Summed], BaseException | None]:
    """Whole runs for the values, beside those that ended where their branches were one.

    They are few enough not to be noticed: a share of those runs, and one chunk at most.
    """
    steps = max(_WHOLE_STEPS, _WHOLE_SHARE * sum(chunk.steps for chunk in chunks))
    wanted = max(_WHOLE_RUNS, int(steps / plan.settings.horizon))
    most = max(3, sum(chunk.num_runs for chunk in chunks) // 4)
    size = min(wanted, most, plan.player.chunk_size)
    job = (plan, checks.seed_sequence(root, "values"), size, False, True)
    if executor is not None:
        played, failure = in_executor(_play_elsewhere, [job], executor)
    else:
        try:
            played, failure = [_play_chunk(*job)], None
        except SimulatorError as error:
            return [], error
    if played and not plan.player.sums_chunks:
        played = [_summed(plan, played, False)]
    return played, failure


def _play_elsewhere(plan: Plan, *rest: Any) -> Any:
    """As `_play_chunk`, with a player of its own: threads may share this one."""
    return _play_chunk(replace(plan, player=plan.player.own()), *rest)


def _play_chunk(
    plan: Plan, seed: np.random.SeedSequence, size: int, keep: bool, whole: bool = False
) -> Any:
    """The runs of a chunk, or what is kept of them."""
    runs = plan.player.play(Chunk(plan, seed, size, whole=keep or whole))
    return _summed(plan, [runs], keep) if plan.player.sums_chunks else runs


class _Summed(NamedTuple):
    """What is kept of runs.

    sums: of every pair of branches. values: of every branch, if all runs are whole. kept: if
    returns are, these (N, m), and the ends of all gaps (N, pairs, 2).
    """

    num_runs: int
    sums: list[GapSums]
    values: list[GapSums]
    steps: int
    extremes: tuple[float, float]
    kept: tuple[Floats, ...]


def _summed(plan: Plan, chunks: list[Runs], keep_returns: bool) -> _Summed:
    """The sums of chunks, computed where their runs are."""
    arrays = Arrays.of(chunks[0].returns)
    xp = arrays.xp
    returns = xp.concat([runs.returns for runs in chunks], axis=1)
    extremes = _extremes(chunks)
    spread = extremes[1] - extremes[0]
    rounding = plan.rounding(float(xp.max(xp.abs(returns))), spread)
    rest = plan.largest_future(spread)
    largest = plan.largest_gap(extremes)
    most = rest if math.isinf(largest) else largest  # what is known, and not only what was seen
    sums = []
    ends = np.zeros((returns.shape[1] * keep_returns, len(plan.pairs), 2))
    for number, (i, j) in enumerate(plan.pairs):
        apart = xp.concat([runs.apart[number] for runs in chunks])
        gap = returns[i, ...] - returns[j, ...]
        sums.append(GapSums.of(gap, apart, rest, rounding, xp))
        if keep_returns:
            ends[:, number] = gap_ends(arrays.host(gap), arrays.host(apart), most, rounding)
    kept = (arrays.host(returns).T + chunks[0].offset, ends) if keep_returns else ()
    return _Summed(
        num_runs=returns.shape[1],
        sums=sums,
        values=_values(chunks, returns, xp),
        steps=sum(runs.steps for runs in chunks),
        extremes=extremes,
        kept=kept,
    )


def _values(chunks: list[Runs], returns: Any, xp: Any) -> list[GapSums]:
    """The sums of every branch, if all runs are whole. returns: (m, N) of all chunks."""
    if not all(runs.whole for runs in chunks):
        return []
    left = xp.concat([runs.open for runs in chunks], axis=1)
    offset = chunks[0].offset
    rows = range(returns.shape[0])
    return [value_sums(returns[j, ...], left[j, ...], offset, xp) for j in rows]


def _extremes(parts: Sequence[Runs | _Summed]) -> tuple[float, float]:
    """The lowest and the highest reward of all."""
    lows, highs = zip(*(part.extremes for part in parts), strict=True)
    return min(lows), max(highs)


def value_table(
    plan: Plan, sums: Sequence[Sequence[GapSums]], seen: tuple[float, float]
) -> dict[str, Floats]:
    """(m,) the values of `GapEstimate`, from the parts of every branch's sums; nan where unknown.

    From a cut on, a branch earns what all rewards have in common, and at most so much more.
    seen: the lowest and the highest reward of all.
    """
    low, high = seen
    common = 0.0 if plan.settings.gamma == 1.0 else min(max(low, 0.0), high)
    most = plan.largest_future(max(high - common, common - low))
    table = np.full((2, len(plan.names)), math.nan)
    for j, parts in enumerate(sums):
        if sum(part.num_gaps for part in parts) >= 3:
            mean, error, *_, left = gap_statistics(parts)
            table[0, j] = mean + left * plan.largest_future(common)
            table[1, j] = error + (left * most if left else 0.0)
    return {"value": table[0], "value_error": table[1]}


def gap_table(
    plan: Plan, sums: Sequence[Sequence[GapSums]], extremes: tuple[float, float], **rest: Any
) -> GapEstimate:
    """Estimates (m, m) from the parts of every pair's sums.

    How far cuts may have moved a mean follows from the discounts from which on gaps are open.
    extremes: of all rewards. rest: further fields of `GapEstimate`.
    """
    size = len(plan.names)
    table = np.zeros((9, size, size))
    for (i, j), parts in zip(plan.pairs, sums, strict=True):
        table[:, i, j] = table[:, j, i] = gap_statistics(parts)
        table[0, j, i] *= -1.0
        table[[4, 6], j, i] = table[[6, 4], i, j]  # what is worse for one is better for the other
    table[5] += np.eye(size)  # an action against itself: always a tie
    *columns, rest["prob_open"], apart = table
    most = plan.largest_future(extremes[1] - extremes[0])
    values: Any = (*columns, np.where(apart > 0, most, 0.0) * apart)
    return GapEstimate(*values, **rest)
