"""Actions of one state compared in any simulator, from recursive branches (`branches`).

Branches that start at one state with different actions share a table while they share a state, and
become one once they share state and action. So the differences of their returns vary little, and
are known as soon as the branches are one.

`estimate_gaps` plays a number of runs, and gives means, variances and probabilities. Which action
is best, `compare_actions` decides with as few queries as certainty needs: a confidence sequence
around a mean holds at all sample sizes at once, so that one may look after every run and stop when
it says enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import Saved, extra, in_processes, progress
from jmdp_lib.model.queries import SimulatorError
from jmdp_lib.moments import ReadOnly
from jmdp_lib.simulators.branches import Branches, Run
from jmdp_lib.simulators.estimates import PlayedGaps, action_labels
from jmdp_lib.simulators.statistics import (
    asymptotic_sequence,
    betting_bound,
    gap_statistics,
    unseen_variance,
)

if TYPE_CHECKING:
    import pandas as pd

_TAIL = 1e-3  # share of the largest return that is cut off
_FIRST = 128  # runs before an asymptotic confidence sequence says anything
_EARLY = 8  # runs before the first look at one that always holds
_GROWTH = 1.1  # of the number of runs between two looks
# Runs that go on after their branches became one, to estimate the saving: how many at most, and
# which share of the budget they may take.
_PLAYED_ON, _SHARE = 64, 0.2


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
) -> PlayedGaps:
    """Gaps of actions at one state of a simulator, from recursive branches.

    env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, an `ImplicitJMDP`, or a simulator with `query`.
        It is left alone.
    policy: probabilities (S, A), actions (S,), or a function of the state or observation that
        returns probabilities (A,) or an action. Where actions have no numbers, it returns an
        action.
    actions: m actions to compare. Each run has a branch for each of them, so that all gaps share
        the runs.
    state: where to start: the state of a simulator, which is a number or, if the simulator has no
        `num_states`, anything hashable; or a snapshot of an environment, by default of where it is.
    gamma: unless given, that of the simulator, or 0.99.
    num_runs: how many runs are played.
    coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
        "independent", none; "common", all of them, one draw per time step.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    processes: with more than one, `env` and `policy` must pickle. The numbers stay the same.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all runs before.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> found = jl.estimate_gaps(jm, jl.goal_policy(3), actions=[0, 2], state=4, num_runs=300)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.52 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.92 to 0.97
    """
    root = checks.purpose_seed(seed, "estimate_gaps")
    branches = Branches.of(env, policy, actions, state, gamma, coupling, truncation, horizon)
    num_runs = checks.at_least("num_runs", num_runs, 3)
    one = checks.at_least("processes", processes, 1) == 1
    if not one:
        branches.check_pickles()
    ends = np.linspace(0, num_runs, 2 if one else 4 * processes + 1, dtype=int).tolist()
    jobs = [(root, first, last, one) for first, last in pairwise(ends)]
    parts = in_processes(branches.play_runs, jobs, processes, "estimate_gaps")
    played = [run for part, _ in parts for run in part]
    failed = next((error for _, error in parts if error), None)
    if failed is None:
        return _estimate(branches, played)
    failure = SimulatorError(f"{failed} ({len(played)} runs went well)")
    failure.result = _estimate(branches, played) if len(played) >= 3 else None
    raise failure


def _estimate(branches: Branches, played: list[Run]) -> PlayedGaps:
    """From three runs or more."""
    returns, labels, extremes, _ = map(np.array, zip(*played, strict=True))
    cut = branches.gamma**branches.horizon * np.ptp(extremes) / (1.0 - branches.gamma)
    gaps = returns[:, :, None] - returns[:, None]  # (num_runs, m, m)
    apart = labels[:, :, None] != labels[:, None]
    unsure = np.where(apart, cut, 0.0) + 1e-12 * np.abs(returns).max()
    rest: Any = cut * apart.mean(0), len(played), returns
    found = gap_statistics(gaps, unsure)
    ends = branches.world.reward_range
    unseen = unseen_variance(found[0], len(played), ends, branches.gamma)
    np.fill_diagonal(unseen, 0.0)
    names = action_labels(branches.actions)
    index = {"action": names[:, None], "other": names[None]}
    return PlayedGaps(*found, *rest, unseen_variance=unseen, index=index)


@dataclass(frozen=True, eq=False, repr=False)
class Decision(ReadOnly, Saved):
    """What `compare_actions` found.

    Attributes:
        actions: the m actions that were asked for.
        verdict: "better", one action is best by more than the margin; "equivalent", those that
            remain differ by at most the margin; or "undecided" when the budget ended.
        best: the best action if the verdict is "better", else None.
        remaining: the actions that no other was found to be better than.
        intervals: (m, m, 2), lower and upper end for $E[Z(s, a_i) - Z(s, a_j)]$ at [i, j], where
            $a_i$ is actions[i]. What returns lose by being cut off is included. All intervals hold
            at once with probability $1 - alpha$.
        margin: as it was given.
        num_queries: queries that were made: calls at one state, for one or more actions.
        num_runs: runs of all branches.
        saving: how many times as many independent runs would be needed for the same certainty,
            estimated: the sum of $Var Z_a + Var Z_b$ over the pairs of actions, divided by that of
            $Var(Z_a - Z_b)$.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: (L, 1 + 2 m**2), the number of queries and the intervals at each of L looks.
    """

    actions: tuple[Any, ...]
    verdict: str
    best: Any
    remaining: tuple[Any, ...]
    intervals: Floats
    margin: float
    num_queries: int
    num_runs: int
    saving: float
    method: str
    history: Floats

    def __repr__(self) -> str:
        best = "" if self.best is None else f"best={self.best}, "
        return (
            f"Decision({self.verdict!r}, {best}num_queries={self.num_queries:,}, "
            f"saving={self.saving:.3g}, {self.method})"
        )

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for every two actions: the ends of the interval of their gap.

        Example:
            >>> import jmdp_lib as jl
            >>> found = jl.compare_actions(jl.example_1(0.5), [0], [0, 1], state=0, budget=500)
            >>> list(found.to_frame().columns)
            ['action', 'other', 'low', 'high']
        """
        with extra("figures"):
            import pandas as pd
        names = action_labels(self.actions)
        first, second = np.nonzero(~np.eye(names.size, dtype=bool))
        low, high = self.intervals[first, second].T
        return pd.DataFrame(
            {"action": names[first], "other": names[second], "low": low, "high": high}
        )

    def plot(self, ax: Any) -> Any:
        """The intervals of the first action that remains against the others, by queries.

        Example:
            >>> import jmdp_lib as jl
            >>> from matplotlib.figure import Figure
            >>> jm = jl.example_1(gamma=0.5)
            >>> found = jl.compare_actions(jm, [0], [0, 1], state=0, budget=500)
            >>> found.plot(Figure().subplots()).get_ylabel()
            'mean gap'
        """
        size = len(self.actions)
        first = self.actions.index(self.remaining[0])
        queries, bands = self.history[:, 0], self.history[:, 1:].reshape(-1, size, size, 2)
        for other in (i for i in range(size) if i != first):
            low, high = bands[:, first, other].T
            shown = slice(np.flatnonzero(np.diff(high - low)).max(initial=0) + 2)  # until beaten
            label = f"action {self.actions[first]} minus {self.actions[other]}"
            ends = queries[shown], low[shown], high[shown]
            ax.fill_between(*ends, alpha=0.4, step="post", label=label)
        for edge in {self.margin, -self.margin}:
            ax.axhline(edge, color="0.3", lw=0.8, ls=":")
        ax.set(xlabel="queries", ylabel="mean gap")
        ax.legend()
        return ax


def compare_actions(
    env: Any,
    policy: Policy,
    actions: Sequence[Any],
    state: Any = None,
    alpha: float = 0.05,
    margin: float = 0.0,
    budget: int = 100_000,
    seed: Seed = 0,
    coupling: str = "joint",
    reward_range: tuple[float, float] | str | None = None,
    gamma: float | None = None,
    horizon: int | None = None,
) -> Decision:
    """Find the best of two or more actions of a state, all followed by one policy.

    env, policy, actions, state, coupling: as of `estimate_gaps`.
    alpha: probability with which any of the intervals may fail.
    margin: differences up to it do not matter. Without one no actions are ever equivalent.
    budget: how many queries may be made.
    reward_range: (lo, hi) that holds all rewards, so that the intervals hold at every sample size,
        whatever the law (a betting confidence sequence, Waudby-Smith and Ramdas 2024). A JMDP and
        an `ImplicitJMDP` know theirs, and a simulator may declare one; otherwise it has to be
        given. If nobody knows it, reward_range="asymptotic" asks for intervals that hold for large
        samples only (Waudby-Smith et al. 2024). They decide nothing before 128 runs, and suppose
        that no event that the runs did not show would change the mean. An event of probability
        $p$ stays unseen in $n$ runs with probability $(1 - p)^n$: `method` says how rare it has
        to be. An action that is worse by a rare loss is then called better more often than not
        (`benchmarks/decisions.md`).
    gamma: unless given, that of the simulator, or 0.99.
    horizon: steps of a run; unless given, so many that a thousandth of a return can be missing.

    An action that another one beats is not played any further. If the simulator fails on the way,
    the error carries what is known so far as its attribute `result`.

    Example:
        >>> import jmdp_lib as jl
        >>> jm, policy = jl.windy_gridworld(size=3, gamma=0.5), jl.goal_policy(3)
        >>> found = jl.compare_actions(jm, policy, actions=[0, 2], state=4)
        >>> found.verdict, found.best, found.remaining
        ('better', 0, (0,))
        >>> low, high = found.intervals[0, 1]
        >>> print(f"up gains {low:.2f} to {high:.2f}, known after {found.num_queries} queries")
        up gains 0.04 to 0.97, known after 236 queries
    """
    alpha, margin = checks.real("alpha", alpha, "(0, 1)"), checks.real("margin", margin, "[0, inf)")
    budget, rng = checks.at_least("budget", budget, 1), checks.stream(seed, "compare_actions")
    branches = Branches.of(env, policy, actions, state, gamma, coupling, _TAIL, horizon)
    known = _known_range(env, reward_range)
    runs = _Runs(branches, rng, known, alpha, margin)
    if hasattr(env, "restore"):
        runs.rewards.append(0.0)  # episodes may end, and rewards are zero from then on
    if len(actions) < 2 or budget < runs.longest:
        raise ValueError(
            f"two actions or more, and a budget of {runs.longest} queries, which one run may take, "
            f"are needed; got actions {list(actions)} and budget {budget}"
        )
    look = _FIRST if known is None else _EARLY
    with progress(budget, "compare_actions", "query") as bar:
        try:
            while runs.verdict == "undecided" and runs.queries + runs.longest <= budget:
                runs.play(len(runs.returns) < _PLAYED_ON and runs.queries < _SHARE * budget)
                bar.update(runs.queries - bar.n)
                if len(runs.returns) >= look or runs.queries + runs.longest > budget:
                    runs.look()
                    look = math.ceil(_GROWTH * look)
        except Exception as error:
            error.result = runs.decision()  # type: ignore[attr-defined]
            raise
    return runs.decision()


def _known_range(env: Any, given: Any) -> tuple[float, float] | None:
    """(lo, hi) that holds all rewards; None if the asymptotic sequence was asked for by name."""
    if isinstance(given, str):
        if given != "asymptotic":
            raise ValueError(f'reward_range must be (lo, hi) or "asymptotic", got {given!r}')
        return None
    if given is None and not hasattr(env, "restore"):
        given = getattr(env, "reward_range", None)
    if given is None:
        raise ValueError(
            f"nothing says between which ends the rewards of {env!r} lie: pass reward_range=(lo, "
            'hi), or reward_range="asymptotic" if intervals for large samples are enough'
        )
    return checks.reward_range("reward_range", given)


class _Runs:
    """The runs so far, and what they say."""

    def __init__(
        self, branches: Branches, rng: np.random.Generator,
        reward_range: tuple[float, float] | None, alpha: float, margin: float,
    ) -> None:  # fmt: skip
        self.branches, self.rng = branches, rng
        branches.world.seed(np.random.SeedSequence(int(rng.integers(2**63))))
        self.actions = actions = tuple(branches.actions)
        self.reward_range, self.alpha, self.margin = reward_range, alpha, margin
        self.active, self.verdict, self.queries = list(range(len(actions))), "undecided", 0
        self.returns, self.labels = list[Floats](), list[Ints]()  # of the active actions
        self.complete, self.history = list[Floats](), list[Floats]()
        self.rewards = [*(reward_range or ())]
        self.intervals = np.full((len(actions), len(actions), 2), [-math.inf, math.inf])
        self.intervals[self.active, self.active] = 0.0

    @property
    def longest(self) -> int:
        """Queries that a run may need."""
        return replace(self.branches, actions=self.active).most_queries

    def play(self, play_on: bool) -> None:
        """One run of all active actions."""
        limits = self.reward_range or (-math.inf, math.inf)
        chosen = [self.actions[i] for i in self.active]
        run = replace(self.branches, actions=chosen).play(self.rng, not play_on, limits)
        self.queries += run.queries
        self.returns.append(run.returns)
        self.labels.append(run.labels)
        if play_on and len(chosen) == len(self.actions):
            self.complete.append(run.returns)
        self.rewards = [min(*self.rewards, *run.extremes), max(*self.rewards, *run.extremes)]

    def look(self) -> None:
        """Work out the intervals, drop the actions that are beaten, and give a verdict."""
        returns, labels = np.array(self.returns), np.array(self.labels)
        reach = (self.rewards[1] - self.rewards[0]) / (1.0 - self.branches.gamma)
        rest = reach * self.branches.gamma**self.branches.horizon
        alpha = self.alpha / math.comb(len(self.actions), 2)
        for i, j in combinations(range(len(self.active)), 2):
            gap, cut = returns[:, i] - returns[:, j], rest * (labels[:, i] != labels[:, j])
            a, b = self.active[i], self.active[j]
            low, high = self.ends(gap - cut, gap + cut, reach, alpha, self.intervals[a, b])
            self.intervals[a, b], self.intervals[b, a] = (low, high), (-high, -low)
        self.history.append(np.append(self.queries, self.intervals))
        lows = self.intervals[np.ix_(self.active, self.active)][..., 0]
        kept = np.flatnonzero(lows.max(0) <= self.margin)
        if 0 < kept.size < len(self.active):
            self.active = [self.active[k] for k in kept]
            self.returns, self.labels = list(returns[:, kept]), list(labels[:, kept])
        if len(self.active) == 1:
            self.verdict = "better"
        elif lows[np.ix_(kept, kept)].min(initial=0.0) >= -self.margin and (
            self.margin or not reach
        ):
            self.verdict = "equivalent"

    def ends(
        self, least: Floats, most: Floats, reach: float, alpha: float, known: Floats
    ) -> tuple[float, float]:
        """Of an interval for the mean of gaps (T,) that lie between `least` and `most`.

        reach: no gap is larger, if a range of rewards was given. known: the interval so far.
        """
        if self.reward_range is None:
            below, _ = asymptotic_sequence(least, alpha, _FIRST)
            _, above = asymptotic_sequence(most, alpha, _FIRST)
            return float(below.max()), float(above.min())
        low = betting_bound(least, -reach, reach, alpha / 2.0, known[0])
        return low, -betting_bound(-most, -reach, reach, alpha / 2.0, -known[1])

    def decision(self) -> Decision:
        """What is known so far."""
        remaining, size = tuple(self.actions[i] for i in self.active), len(self.actions)
        best = remaining[0] if self.verdict == "better" else None
        known = np.array(self.complete or [np.full(size, np.nan)])
        alone = known.var(0).sum()
        gaps = max(size * alone - known.sum(1).var(), 0.0)  # Var(Z_a - Z_b) over all pairs
        with np.errstate(divide="ignore", invalid="ignore"):
            saving = float(np.divide((size - 1) * alone, gaps))
        bounded = "betting confidence sequence, valid at every sample size"
        unseen = -math.expm1(math.log(self.alpha) / max(len(self.returns), 1))
        large = "asymptotic confidence sequence, blind to events rarer than"
        method = bounded if self.reward_range is not None else f"{large} {unseen:.2g} per run"
        looks = np.array(self.history).reshape(-1, 1 + 2 * size**2)
        return Decision(
            self.actions, self.verdict, best, remaining, self.intervals, self.margin, self.queries,
            len(self.returns), saving, method, looks,
        )  # fmt: skip
