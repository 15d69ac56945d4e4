"""Which action is best, decided with as few queries as certainty needs.

A confidence sequence around a mean holds at all sample sizes at once, so that one may look after
every run and stop when it says enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import ReadOnly, Saved, progress, table
from jmdp_lib.simulators.branches import Branches
from jmdp_lib.simulators.estimates import action_labels
from jmdp_lib.simulators.statistics import asymptotic_sequence, betting_bound
from jmdp_lib.simulators.vector_branches import VectorBranches
from jmdp_lib.simulators.vector_simulator import VectorSimulator

if TYPE_CHECKING:
    import pandas as pd

_TAIL = 1e-3  # share of the largest return that is cut off
_FIRST_ASYMPTOTIC = 128  # runs before an asymptotic confidence sequence says anything
_FIRST_CERTAIN = 8  # runs before the first look at one that always holds
_GROWTH = 1.1  # of the number of runs between two looks
# Runs that go on after their branches became one, to estimate the saving: how many at most, and
# which share of the budget they may take.
_WHOLE_RUNS = 64
_WHOLE_SHARE = 0.2


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
            $a_i$ is actions[i]. What returns lose by being cut off is included. If the range of the
            rewards is known, all intervals hold at all looks at once with probability $1 - alpha$;
            for an asymptotic sequence this is so only in the limit of large samples.
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
        names = action_labels(self.actions)
        first, second = np.nonzero(~np.eye(names.size, dtype=bool))
        low, high = self.intervals[first, second].T
        return table({"action": names[first], "other": names[second], "low": low, "high": high})

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
        queries = self.history[:, 0]
        bands = self.history[:, 1:].reshape(-1, size, size, 2)
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
    alpha: probability with which any of the intervals may fail, at any look; with
        reward_range="asymptotic" a nominal one.
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
    alpha = checks.real("alpha", alpha, "(0, 1)")
    margin = checks.real("margin", margin, "[0, inf)")
    budget = checks.at_least("budget", budget, 1)
    rng = checks.stream(seed, "compare_actions")
    asked: Any = (env, policy, actions, state, gamma, coupling, _TAIL, horizon)
    ends = _known_range(env, reward_range)
    runs: _Runs
    if isinstance(env, VectorSimulator):
        runs = _VectorRuns(VectorBranches.of(*asked), rng, ends, alpha, margin)
    else:
        runs = _Runs(Branches.of(*asked), rng, ends, alpha, margin)
    if hasattr(env, "restore") or getattr(runs.branches, "episodes_end", False):
        runs.rewards.append(0.0)  # episodes may end, and rewards are zero from then on
    if len(actions) < 2 or budget < runs.longest:
        raise ValueError(
            f"two actions or more, and a budget of {runs.longest} queries, which one run may take, "
            f"are needed; got actions {list(actions)} and budget {budget}"
        )
    _play_until_decided(runs, budget)
    return runs.decision()


def _play_until_decided(runs: _Runs, budget: int) -> None:
    """Play, and look from time to time, until a verdict is known or another run may cost too much.

    If something fails, the error carries what is known so far.
    """
    next_look = _FIRST_ASYMPTOTIC if runs.reward_range is None else _FIRST_CERTAIN
    with progress(budget, "compare_actions", "query") as bar:
        try:
            while runs.verdict == "undecided" and runs.queries + runs.longest <= budget:
                cheap = runs.queries < _WHOLE_SHARE * budget
                runs.play(len(runs.returns) < _WHOLE_RUNS and cheap, next_look, budget)
                bar.update(runs.queries - bar.n)
                if len(runs.returns) >= next_look or runs.queries + runs.longest > budget:
                    runs.look()
                    next_look = math.ceil(_GROWTH * next_look)
        except Exception as error:
            error.result = runs.decision()  # type: ignore[attr-defined]
            raise


def _known_range(env: Any, reward_range: Any) -> tuple[float, float] | None:
    """(lo, hi) that holds all rewards; None if the asymptotic sequence was asked for by name."""
    if isinstance(reward_range, str):
        if reward_range != "asymptotic":
            raise ValueError(f'reward_range must be (lo, hi) or "asymptotic", got {reward_range!r}')
        return None
    if reward_range is None and not hasattr(env, "restore"):
        reward_range = getattr(env, "reward_range", None)
    if reward_range is None:
        raise ValueError(
            f"nothing says between which ends the rewards of {env!r} lie: pass reward_range=(lo, "
            'hi), or reward_range="asymptotic" if intervals for large samples are enough'
        )
    return checks.reward_range("reward_range", reward_range)


class _Runs:
    """The runs so far, and what they say.

    active: the numbers of the actions that no other was found to be better than. returns, labels:
    of their branches, by runs. whole: returns of all actions in runs that went on after their
    branches became one.
    """

    def __init__(
        self, branches: Branches, rng: np.random.Generator,
        reward_range: tuple[float, float] | None, alpha: float, margin: float,
    ) -> None:  # fmt: skip
        self.branches = branches
        self.rng = rng
        self.begin()
        self.actions = tuple(branches.actions)
        self.reward_range = reward_range
        self.alpha = alpha
        self.margin = margin
        self.verdict = "undecided"
        self.queries = 0
        self.active = list(range(len(self.actions)))
        self.returns: list[Floats] = []
        self.labels: list[Ints] = []
        self.whole: list[Floats] = []
        self.history: list[Floats] = []
        self.rewards = [*(reward_range or ())]
        size = len(self.actions)
        self.intervals = np.full((size, size, 2), [-math.inf, math.inf])
        self.intervals[self.active, self.active] = 0.0

    def begin(self) -> None:
        """Give the simulator a random stream of its own."""
        self.branches.world.seed(np.random.SeedSequence(int(self.rng.integers(2**63))))

    @property
    def longest(self) -> int:
        """Queries that a run may need."""
        return replace(self.branches, actions=self.active).most_queries

    def play(self, whole: bool, next_look: int, budget: int) -> None:
        """One run of all active actions; whole: also after they have become one branch."""
        limits = self.reward_range or (-math.inf, math.inf)
        chosen = [self.actions[i] for i in self.active]
        run = replace(self.branches, actions=chosen).play(self.rng, not whole, limits)
        self.queries += run.queries
        self.returns.append(run.returns)
        self.labels.append(run.labels)
        if whole and len(chosen) == len(self.actions):
            self.whole.append(run.returns)
        self.rewards = [min(*self.rewards, *run.extremes), max(*self.rewards, *run.extremes)]

    def look(self) -> None:
        """Work out the intervals, drop the actions that are beaten, and give a verdict."""
        returns = np.array(self.returns)
        labels = np.array(self.labels)
        largest_gap = (self.rewards[1] - self.rewards[0]) / (1.0 - self.branches.gamma)
        self.narrow(returns, labels, largest_gap)
        self.history.append(np.append(self.queries, self.intervals))
        lows = self.intervals[np.ix_(self.active, self.active)][..., 0]
        unbeaten = np.flatnonzero(lows.max(0) <= self.margin)
        if 0 < unbeaten.size < len(self.active):
            self.active = [self.active[k] for k in unbeaten]
            self.returns = list(returns[:, unbeaten])
            self.labels = list(labels[:, unbeaten])
        close = lows[np.ix_(unbeaten, unbeaten)].min(initial=0.0) >= -self.margin
        if len(self.active) == 1:
            self.verdict = "better"
        elif close and (self.margin or not largest_gap):
            self.verdict = "equivalent"

    def narrow(self, returns: Floats, labels: Ints, largest_gap: float) -> None:
        """New intervals for the mean gaps of the active actions."""
        rest = largest_gap * self.branches.gamma**self.branches.horizon
        alpha = self.alpha / math.comb(len(self.actions), 2)
        for i, j in combinations(range(len(self.active)), 2):
            gap = returns[:, i] - returns[:, j]
            cut = rest * (labels[:, i] != labels[:, j])
            a = self.active[i]
            b = self.active[j]
            known = self.intervals[a, b]
            low, high = self.ends(gap - cut, gap + cut, largest_gap, alpha, known)
            self.intervals[a, b] = (low, high)
            self.intervals[b, a] = (-high, -low)

    def ends(
        self, least: Floats, most: Floats, largest_gap: float, alpha: float, known: Floats
    ) -> tuple[float, float]:
        """Of an interval for the mean of gaps (T,) that lie between `least` and `most`.

        largest_gap: no gap is larger, if a range of rewards is known. known: the interval so far.
        """
        if self.reward_range is None:
            below, _ = asymptotic_sequence(least, alpha, _FIRST_ASYMPTOTIC)
            _, above = asymptotic_sequence(most, alpha, _FIRST_ASYMPTOTIC)
            return float(below.max()), float(above.min())
        support = (-largest_gap, largest_gap)
        low = betting_bound(least, *support, alpha / 2.0, known[0])
        return low, -betting_bound(-most, *support, alpha / 2.0, -known[1])

    def decision(self) -> Decision:
        """What is known so far."""
        remaining = tuple(self.actions[i] for i in self.active)
        looks = np.array(self.history).reshape(-1, 1 + self.intervals.size)
        return Decision(
            actions=self.actions,
            verdict=self.verdict,
            best=remaining[0] if self.verdict == "better" else None,
            remaining=remaining,
            intervals=self.intervals.copy(),
            margin=self.margin,
            num_queries=self.queries,
            num_runs=len(self.returns),
            saving=self.saving(),
            method=self.method(),
            history=looks,
        )

    def saving(self) -> float:
        """The attribute of `Decision` of this name; nan if no run was played to its end."""
        size = len(self.actions)
        returns = np.array(self.whole or [np.full(size, np.nan)])
        alone = returns.var(0).sum()
        gaps = max(size * alone - returns.sum(1).var(), 0.0)  # Var(Z_a - Z_b) over all pairs
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.divide((size - 1) * alone, gaps))

    def method(self) -> str:
        """Which confidence sequence it is, and when it holds."""
        if self.reward_range is not None:
            return "betting confidence sequence, valid at every sample size"
        unseen = -math.expm1(math.log(self.alpha) / max(len(self.returns), 1))
        return f"asymptotic confidence sequence, blind to events rarer than {unseen:.2g} per run"


class _VectorRuns(_Runs):
    """Runs of a `VectorSimulator`: all those before the next look are played at once.

    Looks come after as many runs as for any simulator, so decisions are the same as if these runs
    were played one by one.
    """

    branches: Any  # VectorBranches

    def begin(self) -> None:
        """Every batch has a random stream of its own."""

    def play(self, whole: bool, next_look: int, budget: int) -> None:
        """The runs before the next look, as far as the budget surely allows them."""
        left = budget - self.queries
        count = max(1, next_look - len(self.returns))
        if whole:
            left = int(_WHOLE_SHARE * budget) - self.queries
            count = min(count, _WHOLE_RUNS - len(self.returns))
        count = max(1, min(count, left // self.longest))
        seed = np.random.SeedSequence(int(self.rng.integers(2**63)))
        playing = replace(self.branches.only(self.active), limits=self.reward_range)
        returns, labels, extremes, queries = playing.play_in_order(seed, count, whole)
        self.queries += queries
        self.returns += list(returns)
        self.labels += list(labels)
        if whole and len(self.active) == len(self.actions):
            self.whole += list(returns)
        self.rewards = [min(*self.rewards, *extremes), max(*self.rewards, *extremes)]
