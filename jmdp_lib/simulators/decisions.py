"""Comparisons that find the best action or policy with as few queries as certainty needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints, frozen
from jmdp_lib.machine import ReadOnly, progress
from jmdp_lib.model import DEFAULT_COUPLING, CouplingName
from jmdp_lib.policies import Policy
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.comparison import Comparison, both_ends
from jmdp_lib.simulators.env_world import Environment
from jmdp_lib.simulators.estimates import check_executor, world_of
from jmdp_lib.simulators.gaps import GapEstimate
from jmdp_lib.simulators.plans import coupling_of, discount_and_horizon, plan_of

_TAIL = 1e-3  # share of the largest return that the first horizon cuts off

Method = Literal["betting", "asymptotic"]


class History(NamedTuple):
    """Numbers of queries (L,) and intervals (L, m, m, 2) at L looks."""

    num_queries: Ints
    intervals: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Decision(ReadOnly):
    """Result of `compare_actions` or `compare_policies`.

    Attributes:
        actions: the m actions that were requested, or the indices of the m policies.
        verdict: "better" if one action is best by more than the margin; "equivalent" if the
            remaining ones differ by at most the margin; "undecided" if the budget ended first.
        best: the best action if the verdict is "better", else None.
        remaining: the actions that no other one has beaten.
        intervals: (m, m, 2), lower and upper end for $E[Z(s, a_i) - Z(s, a_j)]$ at [i, j], where
            $a_i$ is actions[i]. They allow for what the horizon, or a time limit of the
            environment, cuts off the returns. With "betting", all intervals hold at all looks at
            once with probability $1 - alpha$; with "asymptotic", only in the limit of large
            samples.
        margin: as passed.
        num_queries: queries of all runs that the result uses, including those for values. A query
            is a call at one state, for one or more actions. A chunk of runs that the budget could
            not pay in full is not counted.
        num_runs: number of runs before the verdict.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: `num_queries` (L,) and `intervals` (L, m, m, 2) at each of L looks, the last of
            which gave the verdict.
        estimates: a `GapEstimate` from the same runs; None before three runs. The gap of two
            actions is estimated from the runs that simulated both. The values of actions come from
            extra runs to the end after the verdict; the values of policies that differ come from
            all runs. The extra runs take at most a fifth of the queries before the verdict, within
            the budget. If that does not pay for three of them, or they fail, values are nan: call
            `estimate_gaps(...).value` instead. Confidence intervals of `estimates` ignore that a
            decision ended the runs; `intervals` allow for it.
        entropy: an integer that reproduces the call when it is passed as `rng`.
        open_pairs: if undecided, the pairs of `remaining`, each (action, other, estimate of the
            mean gap, its standard error), with the action of the larger mean first. The pairs of
            the leader come first. Empty before three runs.
        deciding_budget: if undecided, a rough number of queries that decide between the leader and
            all others if the estimates are right. Infinite if no budget would decide, nan after a
            verdict.
        blocked_by: the obstacle if no budget decides: the given "horizon", or a "time limit" of
            the environment. Otherwise None.
    """

    actions: tuple[Any, ...]
    verdict: str
    best: Any
    remaining: tuple[Any, ...]
    intervals: Floats
    margin: float
    num_queries: int
    num_runs: int
    method: str
    history: History
    estimates: GapEstimate | None = None
    entropy: int | None = None
    open_pairs: tuple[tuple[Any, Any, float, float], ...] = ()
    deciding_budget: float = math.nan
    blocked_by: str | None = None

    def __repr__(self) -> str:
        best = "" if self.best is None else f"best={self.best}, "
        valued = self.estimates is not None and not np.isnan(self.estimates.value).any()
        values = "" if valued else ", values by estimate_gaps(...).value"
        return (
            f"Decision({self.verdict!r}, {best}num_queries={self.num_queries:,}, "
            f"{self.method}{values}{self._outlook})"
        )

    @property
    def _outlook(self) -> str:
        """Text that compares the leader with the others and names a budget that would decide."""
        if not self.open_pairs or self.estimates is None:
            return ""
        leader = self.open_pairs[0][0]
        shown = [
            f"{a} against {b}: {mean:.3g} +- {error:.2g}"
            for a, b, mean, error in self.open_pairs
            if a == leader
        ]
        budget = f"a budget of about {self.deciding_budget:,.0f} decides if that is right"
        if math.isinf(self.deciding_budget):
            budget = "no budget decides if that is right"
        if self.blocked_by is not None:
            cut = self.estimates.truncation_error[self.actions.index(leader)].max()
            budget = f"no budget decides, since the {self.blocked_by} leaves {cut:.3g} open"
        return f"; {', '.join(shown)}; {budget}"


class Options(NamedTuple):
    """Options of `compare_actions` and `compare_policies`."""

    state: Any
    alpha: float
    margin: float
    budget: int
    rng: RNG
    coupling: CouplingName
    reward_range: tuple[float, float] | None
    method: Method
    gamma: float | None
    horizon: int | None
    executor: Executor | None


def compare_actions(
    env: Any,
    policy: Policy,
    actions: Sequence[Any],
    *,
    state: Any = None,
    alpha: float = 0.05,
    margin: float = 0.0,
    budget: int = 100_000,
    rng: RNG = None,
    coupling: CouplingName = DEFAULT_COUPLING,
    reward_range: tuple[float, float] | None = None,
    method: Method = "betting",
    gamma: float | None = None,
    horizon: int | None = None,
    executor: Executor | None = None,
) -> Decision:
    """Find the best of two or more actions of a state, all followed by one policy.

    An action that another one beats is no longer simulated. The comparison looks at its intervals
    first after 8 runs (128 with "asymptotic", 256 with a `VectorSimulator`), and then whenever
    there are a tenth more runs. Runs depend only on `rng`: a smaller budget makes the first runs
    of a larger one, unless it does not pay for the first chunk of a `VectorSimulator`.

    Args:
        env: any simulator that `estimate_gaps` accepts.
        policy: probabilities (S, A), actions (S,), or a function, as in `estimate_gaps`.
        actions: two or more distinct actions.
        state: the state to start from, as in `estimate_gaps`; by default the present state of an
            environment.
        alpha: probability that any of the intervals fails, at any look; with "asymptotic", a
            nominal one.
        margin: differences of mean returns up to the margin do not matter. If it is 0, the verdict
            is "equivalent" only for equal policies, or if all rewards are equal: the two ends of
            the range or, with "asymptotic", all rewards of the runs.
        budget: largest number of queries, at least as many as one run may take. Runs are made in
            chunks, and a chunk that would exceed the budget is discarded. If that is the first
            chunk, of 4 runs (1 of an environment, 8 of a JMDP, 64 of a `VectorSimulator`), as many
            runs are made as the budget is sure to pay, and intervals are not looked at.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy, which the result
            reports.
        coupling: which branches share a draw, as in `estimate_gaps`.
        reward_range: (lo, hi) that contains all rewards. A JMDP and an `ImplicitJMDP` know theirs,
            and a simulator may declare its own; otherwise `method="betting"` needs this argument.
        method: the confidence sequence. "betting" needs the range of the rewards, and its intervals
            hold at every sample size, whatever the distribution (Waudby-Smith and Ramdas 2024).
            "asymptotic" is for rewards of unknown range: its intervals hold for large samples only
            (Waudby-Smith et al. 2024). They decide nothing before 128 runs, and they assume that
            events that no run showed do not change the mean. An event of probability $p$ stays
            unseen in $n$ runs with probability $(1 - p)^n$; the result says how rare an event must
            be to be missed. If an action is worse only by a rare loss, the verdict calls it better
            more often than not (`benchmarks/decisions.md`).
        gamma: discount factor; by default that of the simulator, or 0.99. It may be 1 together
            with a `horizon`.
        horizon: steps of a run. The default first cuts off at most a thousandth of the largest
            return. If, at a look, the mean cut of a pair exceeds a quarter of the half width
            without cuts, later runs are longer, and a tenth of that cut remains. All runs
            count, each with its own cut, and intervals stay valid. A bet is on the gap minus its
            cut, which is at most the full gap in every run; so the capital is at most that of bets
            on full gaps. The asymptotic sequence only needs a horizon that is fixed before the
            runs it applies to. If gamma is 1, the returns of these steps are compared, and
            intervals are infinite once a run has branches that still go on at the horizon. A time
            limit of an environment cuts branches off earlier, as in `estimate_gaps`; intervals
            allow for the rewards that these would have earned.
        executor: simulates the runs elsewhere, as in `estimate_gaps`, with the same numbers. Up to
            32 chunks are simulated at once; the first have 4 runs for a simulator that answers
            queries and one for an environment. So runs beyond the next look start ahead of time.
            Runs after the verdict, or of a branch that was dropped meanwhile, are discarded and
            not counted.

    Returns:
        The verdict with the intervals of all mean gaps and the number of queries.

    Raises:
        SimulatorError: the simulator or the executor failed before the verdict. The attribute
            `result` of this and every other error during the runs, also of a KeyboardInterrupt, is
            the decision so far. If runs for values fail after
            the verdict, a warning says so.
        ValueError: an argument makes no sense, the budget does not pay for one run, or "betting"
            is not given the range of the rewards that it needs.

    Example:
        >>> import jmdp_lib as jl
        >>> jm, policy = jl.windy_gridworld(size=3, gamma=0.5), jl.goal_policy(3)
        >>> decision = jl.simulators.compare_actions(jm, policy, actions=[0, 2], state=4, rng=0)
        >>> decision.verdict, decision.best, decision.remaining
        ('better', 0, (0,))
        >>> low, high = decision.intervals[0, 1]
        >>> print(f"up gains {low:.2f} to {high:.2f}, by {decision.num_queries} queries")
        up gains 0.02 to 0.96, by 161 queries
    """
    options = Options(
        state, alpha, margin, budget, rng, coupling, reward_range, method, gamma, horizon, executor
    )
    return _compared(env, [policy], checks.listed("actions", actions, "action"), options)


def compare_policies(
    env: Any,
    policies: Sequence[Policy],
    *,
    state: Any = None,
    alpha: float = 0.05,
    margin: float = 0.0,
    budget: int = 100_000,
    rng: RNG = None,
    coupling: CouplingName = DEFAULT_COUPLING,
    reward_range: tuple[float, float] | None = None,
    method: Method = "betting",
    gamma: float | None = None,
    horizon: int | None = None,
    executor: Executor | None = None,
) -> Decision:
    """Find the best of two or more policies from one state, all simulated in the same world.

    Every branch follows its own policy from the start. Branches that come from one state and
    action draw their next actions with one number, each by its own policy. So equal policies have
    gap 0, and policies that differ in a few states differ only after a visit of these.
    `policy_gaps` computes the mean and the variance of such a gap exactly. Branches coalesce only
    if their policies are equal arrays or the same function. Two functions that do the same, such as
    two equal closures, count as two policies: pass one of them twice instead.

    Args:
        env, state: as in `compare_actions`.
        policies: two or more, each in any form that `estimate_gaps` accepts; for a
            `VectorSimulator`, also functions of many states. The result refers to a policy by its
            index.
        alpha, margin, budget, rng: as in `compare_actions`.
        coupling: which branches share a draw. "joint", the default: those at one state, as in
            `policy_gaps`. "common": all of them, one draw per time step, such as the same customers
            for all policies. "independent": none.
        reward_range, method, gamma, horizon, executor: as in `compare_actions`.

    Returns:
        The verdict with the intervals of all mean gaps; its attribute `estimates` holds the
        estimates of all gaps.

    Raises:
        SimulatorError, ValueError: as in `compare_actions`.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> shop = jl.inventory(capacity=8, max_order=8, gamma=0.8)
        >>> rules = [np.maximum(level - np.arange(9), 0) for level in (4, 7)]
        >>> limits = {"state": 0, "budget": 30_000, "rng": 0}
        >>> decision = jl.simulators.compare_policies(shop, rules, coupling="common", **limits)
        >>> decision.verdict, decision.best
        ('better', 0)
        >>> gap = decision.estimates
        >>> print(f"filling up to 4 gains {gap.mean[0, 1]:.2f} +- {gap.mean_error[0, 1]:.2f}")
        filling up to 4 gains 3.86 +- 0.20
        >>> print(f"exact {jl.laws.policy_gaps(shop, *rules).mean[0]:.2f}")
        exact 3.72
    """
    options = Options(
        state, alpha, margin, budget, rng, coupling, reward_range, method, gamma, horizon, executor
    )
    return _compared(env, checks.listed("policies", policies, "policy"), None, options)


def _compared(
    env: Any, policies: Sequence[Policy], actions: Sequence[Any] | None, options: Options
) -> Decision:
    """Compare actions, or policies if there are no actions."""
    check_executor(options.executor)
    within = discount_and_horizon(env, options.gamma, options.horizon, _TAIL)
    sharing = coupling_of(env, options.coupling)
    world = world_of(env, options.state, sharing)
    limits = _range_of(env, options.reward_range, options.method)
    many = "policies" if actions is None else "actions"
    comparison = Comparison(
        plan_of(world, policies, actions, within, sharing, limits),
        limits is not None,
        checks.fraction("alpha", options.alpha),
        checks.not_negative("margin", options.margin),
        checks.at_least("budget", options.budget, 1),
        randomness.seed_of(options.rng, f"compare_{many}"),
        options.horizon is None,
        options.executor,
    )
    size = len(comparison.active)
    most = comparison.plan.most_queries
    if size < 2:
        raise ValueError(f"a comparison needs two {many} or more, got {size}")
    if most > comparison.budget:
        raise ValueError(
            f"budget must be at least {most}, the queries that one run may make, got "
            f"{options.budget}"
        )
    try:
        with progress(comparison.budget, "comparison", "query") as bar:
            comparison.decide(bar)
    except BaseException as error:
        error.result = _decision(comparison)  # type: ignore[attr-defined]
        raise
    comparison.add_values()
    return _decision(comparison)


def _range_of(env: Any, reward_range: Any, method: str) -> tuple[float, float] | None:
    """Range (lo, hi) that contains all rewards, or None for the asymptotic sequence."""
    if checks.one_of("method", method, get_args(Method)) == "asymptotic":
        if reward_range is not None:
            raise ValueError('method="asymptotic" uses no reward_range: pass one of the two')
        return None
    if reward_range is None and not isinstance(env, Environment):
        reward_range = getattr(env, "reward_range", None)
    if reward_range is None:
        raise ValueError(
            f"the range of the rewards of {env!r} is unknown: pass reward_range=(lo, hi), or "
            'method="asymptotic" if intervals that hold for large samples suffice'
        )
    return checks.reward_range("reward_range", reward_range)


def _decision(comparison: Comparison) -> Decision:
    """The decision so far."""
    names = comparison.full_plan.names
    remaining = tuple(names[k] for k in comparison.active)
    estimates = comparison.estimates()
    method = "betting confidence sequence, valid at every sample size"
    if not comparison.certain:
        unseen = -math.expm1(math.log(comparison.alpha) / max(comparison.num_runs, 1))
        method = f"asymptotic confidence sequence, blind to events rarer than {unseen:.2g} per run"
    counts = np.array([count for count, _ in comparison.looks], dtype=np.int64)
    lows = np.reshape([each for _, each in comparison.looks], (-1, *comparison.lows.shape))
    return Decision(
        actions=tuple(names),
        verdict=comparison.verdict,
        best=remaining[0] if comparison.verdict == "better" else None,
        remaining=remaining,
        intervals=both_ends(comparison.lows),
        margin=comparison.margin,
        num_queries=comparison.queries,
        num_runs=comparison.num_runs,
        method=method,
        history=History(frozen(counts), frozen(both_ends(lows))),
        estimates=estimates,
        entropy=randomness.entropy(comparison.seed),
        **comparison.outlook(estimates),
    )
