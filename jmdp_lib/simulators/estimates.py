"""Estimates of gaps: of the actions of one state of any simulator, or of many rows of a JMDP.

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` cuts the runs into chunks for this process or an executor. Chunks are summed up
where they are played, or, where they are small, kept until the end. `player_of` finds what plays a
simulator. Another statistic of gaps is one of `gaps.GapStatistics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats
from jmdp_lib.fast import checked_gaps
from jmdp_lib.large.implicit import ImplicitJMDP, with_law
from jmdp_lib.machine import progress, require
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, Coupling, CouplingName, require_noise
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.policies import Policy
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.batch import Arrays
from jmdp_lib.simulators.compiled import CompiledPlayer
from jmdp_lib.simulators.gaps import (
    GapEstimate,
    GapStatistics,
    GapSums,
    may_change,
    value_sums,
)
from jmdp_lib.simulators.plans import Chunk, Plan, Player, Runs, Settings
from jmdp_lib.simulators.rows import Environment, EnvironmentPlayer, QueriedPlayer, inside_episode
from jmdp_lib.simulators.vector import VectorPlayer, VectorSimulator

# Whole runs that are played for the values alone: how many are wanted at least, how many steps they
# may take in any case, and which share of the steps of all other runs.
_WHOLE_RUNS = 16
_WHOLE_STEPS = 2000
_WHOLE_SHARE = 0.1


def estimate_gaps(
    env: Any,
    policy: Policy,
    actions: Sequence[Any] | None = None,
    *,
    state: Any = None,
    gaps: ArrayLike | None = None,
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
            or a `VectorSimulator`, whose runs are played many at once. It is left alone.
        policy: probabilities (S, A), actions (S,), or a function of the state or observation that
            returns probabilities (A,) or an action. Where actions have no numbers, it returns an
            action. A function must be pure, as in `jipe2`.
        actions: m actions to compare. Each run has a branch for each of them, so that all gaps
            share the runs.
        state: where to start: the state of a simulator, which is a number or, if the simulator has
            no `num_states`, anything hashable; or a snapshot of an environment, by default of where
            it is.
        gaps: of a JMDP, (K, 3), rows (state, a, b), instead of `actions` and `state`: every row has
            runs and a random stream of its own, whichever others are asked for with it.
        gamma: unless given, that of the simulator, or 0.99. It may be 1 together with a `horizon`.
        num_runs: how many runs are played, at least 3.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy. Equal integers
            give equal numbers. The result has the `entropy`, which repeats the runs when it is
            passed here.
        coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
            "independent", none; "common", all of them, one draw per time step. A simulator that
            declares `coupling = "independent"` is played so.
        truncation: which share of the largest possible return may be cut off; it sets the horizon.
        horizon: steps of a run; unless given, it follows from `truncation`. If gamma is 1 and a gap
            is still open there, its truncation error is infinite. A branch that an environment
            reports as truncated, as Gymnasium's time limits do, is cut off at that step instead.
            What it would have earned counts in the truncation error. If the limit belongs to your
            problem, let the environment report it as terminated.
        executor: plays the runs elsewhere: any `concurrent.futures.Executor`, such as a process
            pool or that of a Dask cluster, `client.get_executor()`. The numbers stay the same. For
            other processes, `env` and `policy` must pickle.
        keep_returns: play every run to its end and keep the returns; then `GapEstimate.law` has
            quantiles and CVaR of gaps. Otherwise a run ends where all its branches are one, and its
            gaps are final; a few runs more are played to their end, for the values.

    Returns:
        Means, variances and probabilities of all gaps with their standard errors, (m, m), or (K,)
        for `gaps`, and the value of every action.

    Raises:
        SimulatorError: the simulator failed; the error names state and action, and its `result`
            holds the estimates of all runs before. Or a worker of the executor died, and the
            executor did not play its runs again: `result` is of all runs that came back.
        ValueError: an argument makes no sense, or a policy is none.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> policy = jl.goal_policy(3)
        >>> found = jl.simulators.estimate_gaps(jm, policy, [0, 2], state=4, num_runs=300, rng=0)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.56 +- 0.03
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.95 to 0.99
        >>> rows = jl.simulators.estimate_gaps(
        ...     jm, policy, gaps=[(4, 0, 2), (4, 1, 2)], num_runs=20_000, rng=0
        ... )
        >>> print(rows.mean.round(2), rows.mean_error.round(3))
        [1.52 1.53] [0.004 0.004]
    """
    if not isinstance(executor, Executor | None):
        raise ValueError(
            "executor must be a concurrent.futures.Executor, such as client.get_executor() of a "
            f"Dask client, got {executor!r}"
        )
    num_runs = checks.at_least("num_runs", num_runs, 3)
    keep_returns = checks.flag("keep_returns", keep_returns)
    settings = Settings.of(env, gamma, coupling, truncation, horizon)
    if gaps is not None:
        if not isinstance(env, JMDP):
            raise ValueError(f"gaps= are for a JMDP: pass actions and state= of {env!r}")
        if not all(other is None for other in (actions, state, executor)) or keep_returns:
            raise ValueError("gaps= takes no actions, state=, executor= and keep_returns=")
        return _estimate_rows(env, policy, gaps, num_runs, rng, settings)
    if actions is None:
        raise ValueError("actions must be given, or gaps= of a JMDP")
    root = randomness.seed_of(rng, "estimate_gaps")
    plan = Plan.of_actions(player_of(env, state, settings.coupling), policy, actions, settings)
    return estimated(plan, num_runs, root, keep_returns, executor)


def player_of(env: Any, state: Any, coupling: Coupling) -> Player:
    """The player of a simulator; arguments as of `estimate_gaps`. Another kind has a line here."""
    if isinstance(env, Environment):
        return EnvironmentPlayer(inside_episode(env, state), [env.twin()])
    queried = hasattr(env, "query") and hasattr(env, "num_actions")
    if not isinstance(env, VectorSimulator) and not queried:
        raise ValueError(
            f"{env!r} is no simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, an "
            "ImplicitJMDP, a VectorSimulator, or have num_actions, gamma and query"
        )
    if state is None:
        raise ValueError(
            "state= must be given: the state at which the branches start (or gaps=, rows (state, "
            "a, b), to estimate_gaps of a JMDP)"
        )
    if isinstance(env, JMDP):
        return CompiledPlayer(env, state)
    if isinstance(env, ImplicitJMDP) and coupling.across_states:
        require_noise(env)
        law = env.at(state)[0]
        env = replace(env, tables=partial(with_law, law, env.tables))
    if isinstance(env, VectorSimulator):
        return VectorPlayer(env, state)
    return QueriedPlayer(env, state)


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
    most = plan.player.chunk_size
    chunks = [
        Chunk(plan, randomness.part(root, start // most), min(most, num_runs - start), keep_returns)
        for start in range(0, num_runs, most)
    ]
    parts, failure = _play(plan, chunks, keep_returns, executor)
    whole = parts if all(part.values for part in parts) else []
    if failure is None and not whole:
        whole, failure = _play(plan, [_whole_runs(plan, parts, root)], False, executor)
    done = sum(part.num_runs for part in parts)
    found = None
    if done >= 3:
        low, high = extremes = _extremes(parts)
        gaps = GapStatistics.of([part.sums for part in parts], plan.largest_future(high - low))
        rest = plan.values([part.values for part in whole], _extremes([*parts, *whole]))
        if keep_returns:
            kept = zip(*(part.kept for part in parts), strict=True)
            rest["returns"], rest["gaps"] = map(np.concatenate, kept)
            rest["largest_gap"] = plan.largest_gap(extremes, np.isfinite(rest["gaps"]).all())
        tables = gaps.tables(len(plan.names))
        found = GapEstimate(**tables, **rest, num_runs=done, entropy=randomness.entropy(root))
    if found is not None and failure is None:
        return found
    ours = isinstance(failure, SimulatorError)
    why = f"{failure}" if ours else f"the executor failed: {failure!r}"
    error = SimulatorError(f"{why} ({done:,} runs went well)")
    error.result = found
    raise error


def _estimate_rows(
    jm: JMDP, policy: Policy, gaps: ArrayLike, num_runs: int, rng: RNG, settings: Settings
) -> GapEstimate:
    """Estimates (K,) of rows (state, action, other action), each played by itself."""
    rows = checked_gaps(jm, gaps).tolist()
    root = randomness.seed_of(rng, "sample_gaps")
    plan = Plan.of_actions(CompiledPlayer(jm, rows[0][0]), policy, rows[0][1:], settings)
    ready: Any = plan.player
    found = []
    for s, *pair in rows:
        own = replace(plan, player=replace(ready, state=s), names=pair)
        found.append(estimated(own, num_runs, randomness.part(root, s, *pair)))
    columns: Any = {
        field.name: np.stack([getattr(each, field.name)[0, 1] for each in found])
        for field in fields(GapStatistics)
    }
    return GapEstimate(
        **columns,
        value=np.stack([each.value for each in found]),
        value_error=np.stack([each.value_error for each in found]),
        num_runs=num_runs,
        entropy=randomness.entropy(root),
    )


def _whole_runs(plan: Plan, parts: list[_Summed], root: np.random.SeedSequence) -> Chunk:
    """Whole runs for the values, beside those that ended where their branches were one.

    They are few enough not to be noticed: a share of those runs, and one chunk at most.
    """
    steps = max(_WHOLE_STEPS, _WHOLE_SHARE * sum(part.steps for part in parts))
    wanted = max(_WHOLE_RUNS, int(steps / plan.settings.horizon))
    most = max(3, sum(part.num_runs for part in parts) // 4)
    size = min(wanted, most, plan.player.chunk_size)
    return Chunk(plan, randomness.part(root, "values"), size, whole=True)


def _play(
    plan: Plan, chunks: list[Chunk], keep: bool, executor: Executor | None
) -> tuple[list[_Summed], BaseException | None]:
    """The sums of the runs of chunks, or of those that went well and why there are no more.

    If a chunk fails, because of its own error or since its worker died, those that wait are
    cancelled.
    """
    work = partial(_play_chunk, keep=keep, elsewhere=executor is not None)
    futures: list[Future[Any]] = []
    failure: BaseException | None = None
    try:
        with progress(len(chunks), "estimate_gaps", unit="chunk") as bar:
            for chunk in chunks:
                future = (executor or _Here()).submit(work, chunk)
                if not isinstance(future, Future):
                    raise TypeError(f"executor.submit must return a Future, got {future!r}")
                future.add_done_callback(lambda _: bar.update())
                futures.append(future)
            for future in futures:
                if not _is_played(future.result()):
                    got = future.result()
                    raise TypeError(
                        f"a future of the executor returned {got!r}, not what it played"
                    )
    except Exception as error:
        if executor is None and not isinstance(error, SimulatorError):
            raise
        failure = error
    finally:
        for future in futures:
            future.cancel()
    done = [x for x in futures if x.done() and not x.cancelled() and x.exception() is None]
    played = [x.result() for x in done if _is_played(x.result())]
    if played and not plan.player.sums_chunks:
        played = [_summed(plan, played, keep)]
    return played, failure


def _is_played(result: Any) -> bool:
    """Whether a future returned what chunks of runs are played to."""
    return isinstance(result, Runs | _Summed)


class _Here(Executor):
    """Plays at once."""

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args, **options))
        return future


def _play_chunk(chunk: Chunk, keep: bool, elsewhere: bool) -> Any:
    """The runs of a chunk, or what is kept of them.

    elsewhere: with a player of its own, since threads may share this one.
    """
    plan = replace(chunk.plan, player=chunk.plan.player.own()) if elsewhere else chunk.plan
    runs = plan.player.play(chunk._replace(plan=plan))
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
    arrays = Arrays.of(chunks[0].columns[0])
    columns = arrays.joined([runs.columns for runs in chunks])
    runs = chunks[0]._replace(columns=columns)
    extremes = _extremes(chunks)
    spread = extremes[1] - extremes[0]
    xp = arrays.xp
    rounding = plan.rounding(max(float(xp.max(xp.abs(x))) for x in runs.returns), spread)
    rest = plan.largest_future(spread)
    largest = plan.largest_gap(extremes)
    most = rest if math.isinf(largest) else largest  # what is known, and not only what was seen
    sums = []
    ends = []
    for (i, j), apart in zip(plan.pairs, runs.apart, strict=True):
        gap = runs.returns[i] - runs.returns[j]
        sums.append(GapSums.of(gap, apart, rest, rounding, xp))
        if keep_returns:
            ends.append(_gap_ends(arrays.host(gap), arrays.host(apart), most, rounding))
    size = columns[0].shape[0]
    kept: tuple[Any, ...] = ()
    if keep_returns:
        returns = np.stack([*map(arrays.host, runs.returns)], axis=1) + runs.offset
        kept = returns, np.stack(ends, axis=1) if ends else np.zeros((size, 0, 2))
    whole = all(each.whole for each in chunks)
    values = zip(runs.returns, runs.open, strict=True)
    return _Summed(
        num_runs=size,
        sums=sums,
        values=[value_sums(*each, runs.offset, xp) for each in values] * whole,
        steps=sum(each.steps for each in chunks),
        extremes=extremes,
        kept=kept,
    )


def _gap_ends(gaps: Floats, apart: Floats, rest: float, rounding: tuple[float, float]) -> Floats:
    """(N, 2) ends between which every gap lies; arguments as of `GapSums.of`."""
    tie, lost = rounding
    final = (np.abs(gaps) <= tie) & (apart == 0.0)
    reach = np.where(final, 0.0, may_change(apart, rest) + lost)
    gaps = np.where(final, 0.0, gaps)
    return np.stack([gaps - reach, gaps + reach], axis=1)


def _extremes(parts: Sequence[Runs | _Summed]) -> tuple[float, float]:
    """The lowest and the highest reward of all."""
    lows, highs = zip(*(part.extremes for part in parts), strict=True)
    return min(lows), max(highs)
