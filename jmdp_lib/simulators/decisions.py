"""Which action, or which policy, is best, decided with as few queries as certainty needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats
from jmdp_lib.machine import progress
from jmdp_lib.model import DEFAULT_COUPLING, CouplingName
from jmdp_lib.policies import Policy
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.batch import Arrays
from jmdp_lib.simulators.estimates import player_of
from jmdp_lib.simulators.gaps import (
    FIRST_ASYMPTOTIC,
    GapEstimate,
    GapStatistics,
    GapSums,
    exceeds,
    gap_interval,
    may_change,
    value_sums,
    variance_reduction,
)
from jmdp_lib.simulators.plans import Chunk, Decision, History, Plan, Runs, Settings
from jmdp_lib.simulators.rows import Environment

_TAIL = 1e-3  # share of the largest return that is cut off
_FIRST_CERTAIN = 8  # runs before the first look at one that always holds
_GROWTH = 1.1  # of the number of runs between two looks
_MOST_LOOKS = 150  # that are looked ahead: a million times as many runs
# Runs that go on after their branches became one: how many at most, and their share of the budget.
_WHOLE_RUNS = 64
_WHOLE_SHARE = 0.2

Method = Literal["betting", "asymptotic"]


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
) -> Decision:
    """Find the best of two or more actions of a state, all followed by one policy.

    An action that another one beats is not played any further.

    Args:
        env: what is played, of any kind that `estimate_gaps` takes.
        policy: probabilities (S, A), actions (S,), or a function, as in `estimate_gaps`.
        actions: two or more distinct actions.
        state: where to start, as in `estimate_gaps`; of an environment by default where it is.
        alpha: probability with which any of the intervals may fail, at any look; if asymptotic, a
            nominal one.
        margin: differences of mean returns up to it do not matter. Without one nothing is ever
            equivalent.
        budget: how many queries may be made.
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy, which the result
            has, too.
        coupling: which branches share a draw, as in `estimate_gaps`.
        reward_range: (lo, hi) that holds all rewards. A JMDP and an `ImplicitJMDP` know theirs, and
            a simulator may declare one; otherwise `method="betting"` asks for it.
        method: which confidence sequence it is. "betting" needs the range, and its intervals hold
            at every sample size, whatever the distribution (Waudby-Smith and Ramdas 2024).
            "asymptotic" is for rewards whose range nobody knows: its intervals hold for large
            samples only (Waudby-Smith et al. 2024). They decide nothing before 128 runs, and
            suppose that no event that the runs did not show would change the mean. An event of
            probability $p$ stays unseen in $n$ runs with probability $(1 - p)^n$: the result says
            how rare it has to be. An action that is worse by a rare loss is then called better more
            often than not (`benchmarks/decisions.md`).
        gamma: discount factor; unless given, that of the simulator, or 0.99. It may be 1 together
            with a `horizon`.
        horizon: steps of a run; unless given, so many that a thousandth of a return can be missing.
            If gamma is 1, the returns of so many steps are compared; intervals are infinite once a
            run shows branches that still go on there. A time limit of an environment cuts branches
            off earlier, as in `estimate_gaps`: intervals allow for what these would have earned.

    Returns:
        The verdict with the intervals of all mean gaps, and how many queries it took.

    Raises:
        SimulatorError: the simulator failed on the way. Its attribute `result`, as that of any
            other error on the way, is the decision as far as it is known.
        ValueError: an argument makes no sense, the budget is not enough for one run, or nobody
            knows the range of the rewards that "betting" needs.

    Example:
        >>> import jmdp_lib as jl
        >>> jm, policy = jl.windy_gridworld(size=3, gamma=0.5), jl.goal_policy(3)
        >>> found = jl.simulators.compare_actions(jm, policy, actions=[0, 2], state=4, rng=0)
        >>> found.verdict, found.best, found.remaining
        ('better', 0, (0,))
        >>> low, high = found.intervals[0, 1]
        >>> print(f"up gains {low:.2f} to {high:.2f}, known after {found.num_queries} queries")
        up gains 0.04 to 0.97, known after 234 queries
    """
    settings = Settings.of(env, gamma, coupling, _TAIL, horizon)
    plan = Plan.of_actions(player_of(env, state, settings.coupling), policy, actions, settings)
    known = _known_range(env, reward_range, method)
    return _Runs("compare_actions", plan, known, alpha, margin, budget, rng).decide()


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
) -> Decision:
    """Find the best of two or more policies from one state, all played in the same world.

    Every branch follows a policy of its own from the start. Branches that come from one state and
    action draw their next actions with one number, each by its own policy. So equal policies have
    gap 0, and policies that differ in a few states differ only after these; `policy_gaps` has the
    mean and the variance of such a gap exactly. Branches are one for good if their policies are
    equal arrays or one function: two functions that do the same, such as two equal closures, are
    two policies, so pass one of them twice.

    Args:
        env, state: as of `compare_actions`.
        policies: two or more, each in any form that `estimate_gaps` accepts; of a
            `VectorSimulator`, also functions of many states. In the result, a policy goes by its
            number.
        alpha, margin, budget, rng: as of `compare_actions`.
        coupling: which branches share a draw: by default "joint", those at one state, as in
            `policy_gaps`. "common" is one draw per time step for all: the same customers, wherever
            the policies have led. "independent": none.
        reward_range, method, gamma, horizon: as of `compare_actions`.

    Returns:
        The verdict with the intervals of all mean gaps; its `estimates` has the estimates of all
        gaps.

    Raises:
        SimulatorError, ValueError: as of `compare_actions`.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> shop = jl.inventory(capacity=8, max_order=8, gamma=0.8)
        >>> rules = [np.maximum(level - np.arange(9), 0) for level in (4, 7)]
        >>> limits = {"state": 0, "budget": 30_000, "rng": 0}
        >>> found = jl.simulators.compare_policies(shop, rules, coupling="common", **limits)
        >>> found.verdict, found.best
        ('better', 0)
        >>> gap = found.estimates
        >>> print(f"filling up to 4 gains {gap.mean[0, 1]:.2f} +- {gap.mean_error[0, 1]:.2f}")
        filling up to 4 gains 3.89 +- 0.19
        >>> print(f"exact {jl.laws.policy_gaps(shop, *rules).mean[0]:.2f}")
        exact 3.72
    """
    settings = Settings.of(env, gamma, coupling, _TAIL, horizon)
    plan = Plan.of_policies(player_of(env, state, settings.coupling), policies, settings)
    known = _known_range(env, reward_range, method)
    return _Runs("compare_policies", plan, known, alpha, margin, budget, rng).decide()


def _known_range(env: Any, reward_range: Any, method: str) -> tuple[float, float] | None:
    """(lo, hi) that holds all rewards, or None for the asymptotic sequence."""
    if checks.one_of("method", method, get_args(Method)) == "asymptotic":
        if reward_range is not None:
            raise ValueError('method="asymptotic" uses no reward_range: pass one of the two')
        return None
    if reward_range is None and not isinstance(env, Environment):
        reward_range = getattr(env, "reward_range", None)
    if reward_range is None:
        raise ValueError(
            f"nothing says between which ends the rewards of {env!r} lie: pass reward_range=(lo, "
            'hi), or method="asymptotic" if intervals for large samples are enough'
        )
    return checks.reward_range("reward_range", reward_range)


@dataclass
class _Runs:
    """The runs of the function `name` so far, and what they say.

    active: the numbers of the branches that no other was found to be better than; only these are
    played on, which is the plan `playing`. returns: for every branch, of the first runs, which
    played it. apart: for every pair, that of `plans.Runs`, of the runs that played both. open: for
    every branch, of its first returns, which are whole. offset: of all returns. num_whole: how many
    runs played all branches, and went on after these became one. rewards: the lowest and the
    highest, as far as is known. intervals: (m, m, 2).
    """

    name: str
    plan: Plan
    reward_range: tuple[float, float] | None
    alpha: float
    margin: float
    budget: int
    rng: RNG
    verdict = "undecided"
    queries = 0
    num_runs = 0
    num_whole = 0
    offset = 0.0

    def __post_init__(self) -> None:
        self.alpha = checks.fraction("alpha", self.alpha)
        self.margin = checks.not_negative("margin", self.margin)
        self.budget = checks.at_least("budget", self.budget, 1)
        self.seed = randomness.seed_of(self.rng)
        self.seeds = np.random.default_rng(randomness.part(self.seed, self.name))
        self.active = [*range(len(self.plan.names))]
        self.playing = self.plan
        none = np.zeros(0)
        self.returns = [none for _ in self.active]
        self.open = [*self.returns]
        self.apart = dict.fromkeys(self.plan.pairs, none)
        self.history: list[tuple[int, Floats]] = []
        self.rewards = self.reward_range or (math.inf, -math.inf)
        self.intervals = np.where(self.plan.alike[..., None], 0.0, [-math.inf, math.inf])

    def decide(self) -> Decision:
        """Play branches until it is known which is best, or another run may cost too much.

        If something fails, the error carries what is known so far.
        """
        size = len(self.plan.names)
        if size < 2 or not self.affordable:
            many = self.name.removeprefix("compare_")
            raise ValueError(
                f"two {many} or more, and a budget of {self.plan.most_queries} queries, which one "
                f"run may take, are needed; got {size} {many} and budget {self.budget}"
            )
        next_look = FIRST_ASYMPTOTIC if self.reward_range is None else _FIRST_CERTAIN
        with progress(self.budget, self.name, "query") as bar:
            try:
                while self.verdict == "undecided" and self.affordable:
                    self.play(next_look)
                    bar.update(self.queries - bar.n)
                    if self.num_runs >= next_look or not self.affordable:
                        self.look()
                        next_look = math.ceil(_GROWTH * next_look)
            except Exception as error:
                error.result = self.decision()  # type: ignore[attr-defined]
                raise
        return self.decision()

    @property
    def affordable(self) -> bool:
        """Whether the budget is enough for one more run, however long it is."""
        return self.queries + self.playing.most_queries <= self.budget

    @property
    def spread(self) -> float:
        """How far rewards can differ, as far as is known."""
        return self.rewards[1] - self.rewards[0]

    def play(self, next_look: int) -> None:
        """Some runs of all active branches, until about the next look.

        The first runs are whole: they go on after their branches have become one.
        """
        playing = self.playing
        most = next_look - self.num_runs
        left = self.budget - self.queries
        share = _WHOLE_SHARE * self.budget
        whole = self.num_runs < _WHOLE_RUNS and self.queries < share
        if whole:
            paid = (share - self.queries) // self.plan.settings.horizon  # each takes this at least
            most = min(most, _WHOLE_RUNS - self.num_runs, max(1, int(paid)))
        most = max(1, min(most, left // playing.most_queries, playing.player.chunk_size))
        seed = np.random.SeedSequence(int(self.seeds.integers(2**63)), spawn_key=(0,))
        chunk = Chunk(playing, seed, most, whole, counted=True, limits=self.reward_range)
        self._add(playing.player.play(chunk), whole)

    def _add(self, runs: Runs, whole: bool) -> None:
        """Keep runs of all active branches."""
        host = Arrays.of(runs.columns[0]).host
        runs = runs._replace(columns=[*map(host, runs.columns)])
        for branch, new, left in zip(self.active, runs.returns, runs.open, strict=True):
            if runs.whole and self.open[branch].size == self.returns[branch].size:
                self.open[branch] = np.append(self.open[branch], left)
            self.returns[branch] = np.append(self.returns[branch], new)
        self.offset = runs.offset
        for pair, new in zip(combinations(self.active, 2), runs.apart, strict=True):
            self.apart[pair] = np.append(self.apart[pair], new)
        size = len(runs.columns[0])
        self.num_runs += size
        self.num_whole += size if whole and len(self.active) == len(self.returns) else 0
        self.queries += runs.queries
        low, high = runs.extremes
        self.rewards = (min(self.rewards[0], low), max(self.rewards[1], high))

    def _gaps(self, a: int, b: int) -> tuple[Floats, Floats]:
        """(N,) gaps of the runs that played both branches, and how much each may still change."""
        apart = self.apart[a, b]
        gaps = self.returns[a][: apart.size] - self.returns[b][: apart.size]
        return gaps, may_change(apart, self.plan.largest_future(self.spread))

    def look(self) -> None:
        """Work out the intervals, drop the branches that are beaten, and give a verdict."""
        self._narrow()
        self.history.append((self.queries, self.intervals.copy()))
        lows = self.intervals[np.ix_(self.active, self.active)][..., 0]
        unbeaten = np.flatnonzero(lows.max(0) <= self.margin)
        if unbeaten.size:
            self.active = [self.active[k] for k in unbeaten]
            self.playing = self.plan.only(self.active)
        close = lows[np.ix_(unbeaten, unbeaten)].min(initial=0.0) >= -self.margin
        if len(self.active) == 1:
            self.verdict = "better"
        elif close and (self.margin or not self.spread or self.playing.alike.all()):
            self.verdict = "equivalent"

    def _narrow(self) -> None:
        """New intervals of all active branches, from the runs that played both."""
        for a, b in combinations(self.active, 2):
            if self.plan.alike[a, b]:
                continue
            low, high = gap_interval(*self._gaps(a, b), self.intervals[a, b], *self._terms)
            self.intervals[a, b] = (low, high)
            self.intervals[b, a] = (-high, -low)

    @property
    def _terms(self) -> tuple[float, float | None]:
        """The alpha of one pair, and what no gap exceeds, if that is known."""
        bound = self.plan.largest_return(self.spread) if self.reward_range else None
        return self.alpha / len(self.plan.pairs), bound

    def _growth(self, a: int, b: int) -> float:
        """How many times as many runs, like those that were played, decide between branches."""
        gap, cut = self._gaps(min(a, b), max(a, b))
        times = _GROWTH ** np.arange(_MOST_LOOKS)

        def above(goal: float) -> Any:
            """(2, L) whether the gap of a branch to the other one is."""
            return np.array([exceeds(x - cut, goal, *self._terms, times) for x in (gap, -gap)])

        decides = above(self.margin).any(0) | above(-self.margin).all(0)
        decides &= np.isfinite(cut).all()
        return float(np.append(times, math.inf)[np.append(decides, True).argmax()])

    def outlook(self, found: GapEstimate | None) -> dict[str, Any]:
        """`Decision.open_pairs` and `Decision.deciding_budget`."""
        if self.verdict != "undecided" or not self.history or found is None:
            return {}
        names = self.plan.names
        ranked = sorted(self.active, key=lambda k: -self.returns[k].mean())
        pairs = tuple(
            (names[i], names[j], float(found.mean[i, j]), float(found.mean_error[i, j]))
            for i, j in combinations(ranked, 2)
        )
        growth = max(self._growth(ranked[0], j) for j in ranked[1:])
        return {"open_pairs": pairs, "deciding_budget": self.queries * growth}

    def decision(self) -> Decision:
        """What is known so far."""
        remaining = tuple(self.plan.names[i] for i in self.active)
        found = self.estimates()
        return Decision(
            actions=tuple(self.plan.names),
            verdict=self.verdict,
            best=remaining[0] if self.verdict == "better" else None,
            remaining=remaining,
            intervals=self.intervals.copy(),
            margin=self.margin,
            num_queries=self.queries,
            num_runs=self.num_runs,
            variance_reduction=variance_reduction(
                np.array([each[: self.num_whole] for each in self.returns])
            ),
            method=self.method(),
            history=History.of(self.history, self.intervals.shape),
            estimates=found,
            entropy=randomness.entropy(self.seed),
            **self.outlook(found),
        )

    def estimates(self) -> GapEstimate | None:
        """What the runs say about all gaps, if there are enough of them."""
        if self.num_runs < 3:
            return None
        rest = self.plan.largest_future(self.spread)
        largest = max(np.abs(each).max() for each in self.returns)
        rounding = self.plan.rounding(largest, self.spread)
        pairs = self.apart.items()
        gaps = [
            GapSums.of(self._gaps(*pair)[0], apart, rest, rounding, np) for pair, apart in pairs
        ]
        whole = zip(self.returns, self.open, strict=True)
        sums = [value_sums(x[: left.size], left, self.offset, np) for x, left in whole if left.size]
        sizes = [each.size for each in self.returns]
        return GapEstimate(
            **GapStatistics.of([gaps], rest).tables(len(sizes)),
            **self.plan.values([sums] * bool(sums), self.rewards),
            num_runs=np.minimum.outer(sizes, sizes),
        )

    def method(self) -> str:
        """Which confidence sequence it is, and when it holds."""
        if self.reward_range is not None:
            return "betting confidence sequence, valid at every sample size"
        unseen = -math.expm1(math.log(self.alpha) / max(self.num_runs, 1))
        return f"asymptotic confidence sequence, blind to events rarer than {unseen:.2g} per run"
