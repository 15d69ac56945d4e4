"""What is compared: branches from one state, their policies, and how long; and a `Decision`.

A `Player` plays the runs of one kind of simulator, and `estimates.player_of` finds it. `compiled`
plays a JMDP; all others are batches (`batch`), whose rows are stepped at once (`vector`) or one
after the other (`rows`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, frozen
from jmdp_lib.machine import ReadOnly
from jmdp_lib.model import INDEPENDENT, Coupling, CouplingName, declared_coupling
from jmdp_lib.policies import Policy
from jmdp_lib.simulators.gaps import GapEstimate, GapStatistics, GapSums, may_change

_LONGEST = 10**6  # steps of a run, unless a horizon is given
_ROUNDING = 1e-12  # of the largest return


class Runs(NamedTuple):
    """N runs of m branches, in any order.

    columns: (N,) each: the returns of the branches, `open` of them, and `apart` of the pairs, which
    are those of `itertools.combinations(range(m), 2)`, in this order, here and everywhere.
    width: m. whole: whether all returns are whole. steps: of all runs together, if they are not.
    queries: of one or more actions at one state, if they were counted.
    extremes: the lowest and the highest reward, and 0 if episodes can end.
    offset: a part of all returns that they were played without: it is in no gap.
    """

    columns: Sequence[Any]
    width: int
    whole: bool
    queries: int
    extremes: tuple[float, float]
    steps: int = 0
    offset: float = 0.0

    @property
    def returns(self) -> Sequence[Any]:
        """Until all branches of a run are one, so that gaps are whole; until the horizon if they
        were played on, so that returns are."""
        return self.columns[: self.width]

    @property
    def open(self) -> Sequence[Any]:
        """Zero if an episode ended; otherwise the discount from which on its return is cut.

        If gamma is 1, nobody asks for more than the steps of the horizon: zero there, too.
        """
        return self.columns[self.width : 2 * self.width]

    @property
    def apart(self) -> Sequence[Any]:
        """Zero if the gap of a pair is final; otherwise the discount from which on it is open.

        That of the horizon if they had different futures there, or that of the step at which a time
        limit cut one of them off.
        """
        return self.columns[2 * self.width :]


@dataclass(frozen=True, eq=False)
class PlayedPolicy:
    """A checked policy.

    An action is where cumulative probabilities pass a uniform number, so that one number picks one
    action from two policies wherever these agree.

    source: probabilities (S, A), or a function; policies with one source are equal. steps: the
    cumulative probabilities that its player keeps, or None.
    """

    source: Any
    steps: Any = None

    def __eq__(self, other: object) -> bool:
        ours = self.source
        theirs: Any = getattr(other, "source", None)
        if callable(ours) or callable(theirs):
            return callable(ours) and callable(theirs) and bool(ours == theirs)
        return np.array_equal(ours, theirs)


class Player(ABC):
    """Plays the runs of a simulator, in chunks with random streams of their own.

    Attributes:
        num_actions: A, where actions are numbers.
        chunk_size: runs of a chunk: fixed, since numbers depend on it.
        sums_chunks: whether a chunk is summed up by itself; else all runs are kept until the end.
        rounded: whether a constant in all rewards may have cost returns the digits of their gaps.
        limits: (lo, hi) that holds all rewards, or None.
    """

    num_actions: Any
    chunk_size: int
    sums_chunks = True
    rounded = True
    limits: tuple[float, float] | None = None

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        """Actions to compare: at least one, all known, no two alike."""
        return checks.distinct_actions(actions, self.num_actions)

    @abstractmethod
    def checked_policy(self, policy: Policy) -> Any:
        """A policy as it is played; equal ones are `==`."""

    def tried(self, plan: Plan) -> Plan:
        """The plan, unless the simulator or a policy goes wrong at once."""
        return plan

    def own(self) -> Player:
        """One for another thread; this one, if nothing in it ever changes."""
        return self

    @abstractmethod
    def play(self, chunk: Chunk) -> Runs:
        """Play a chunk of runs."""


class Chunk(NamedTuple):
    """What a player is asked for: `size` runs of a plan, with a random stream of their own.

    whole: branches that have become one are played on until the horizon, so that returns are whole.
    counted: count queries. limits: (lo, hi) that holds all rewards, or None.
    """

    plan: Plan
    seed: np.random.SeedSequence
    size: int
    whole: bool = False
    counted: bool = False
    limits: tuple[float, float] | None = None


class Settings(NamedTuple):
    """Discount, number of steps, and which branches share a draw."""

    gamma: float
    horizon: int
    coupling: Coupling

    @classmethod
    def of(
        cls,
        env: Any,
        gamma: float | None,
        coupling: CouplingName,
        truncation: float,
        horizon: int | None,
    ) -> Settings:
        """Arguments as of `estimate_gaps`, checked. A discount of 1 needs a stated horizon.

        A simulator that declares independent draws is played with these.
        """
        sharing = Coupling.named(coupling)
        if not declared_coupling(env).at_one_state:
            if sharing.across_states:
                raise ValueError(
                    'coupling="common" needs draws that actions share, but this simulator declares '
                    'coupling = "independent"'
                )
            sharing = INDEPENDENT
        given = getattr(env, "gamma", 0.99) if gamma is None else gamma
        if horizon is None and given == 1:
            raise ValueError(
                "gamma must lie in [0, 1), or be 1 together with a stated horizon=, by which "
                f"episodes have ended; got gamma = {given} and no horizon"
            )
        gamma = checks.discount(given) if horizon is None else checks.probability("gamma", given)
        if horizon is None:
            other = "pass horizon=, or a smaller gamma="
            horizon = checks.derived_horizon(gamma, truncation, _LONGEST, other)
        return cls(gamma, checks.at_least("horizon", horizon, 1), sharing)


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison have in common; it pickles if its parts do.

    policies: those that are distinct. kinds: (m,) which of them each branch follows. names: what
    tells the branches apart: their first actions, or the numbers of their policies, which they
    follow from the start. compared: "action" or "policy", accordingly.

    Branches at one state with one action are at one *state-action*: they get one reward, go to one
    state, and draw their next actions there with one uniform number, each by its own policy. So
    branches of one policy that have come together are one for good, and branches of several
    policies are one until these choose differently. Branches that come from distinct state-actions
    draw with independent numbers.
    """

    player: Player
    policies: tuple[Any, ...]
    kinds: tuple[int, ...]
    names: list[Any]
    compared: str
    settings: Settings

    @classmethod
    def of_actions(
        cls, player: Player, policy: Policy, actions: Sequence[Any], settings: Settings
    ) -> Plan:
        """Arguments as of `estimate_gaps`, checked; the policy is tried out."""
        names = player.checked_actions(actions)
        policies = (player.checked_policy(policy),)
        return player.tried(cls(player, policies, (0,) * len(names), names, "action", settings))

    @classmethod
    def of_policies(cls, player: Player, policies: Sequence[Policy], settings: Settings) -> Plan:
        """Arguments as of `compare_policies`, checked; every policy is tried out.

        Policies are the same if they are equal arrays, or one function.
        """
        distinct: list[Any] = []
        kinds: list[int] = []
        for number, policy in enumerate(checks.listed("policies", policies, "policy")):
            try:
                checked = player.checked_policy(policy)
            except ValueError as error:
                raise ValueError(f"policies[{number}]: {error}") from None
            if checked not in distinct:
                distinct.append(checked)
            kinds.append(distinct.index(checked))
        names = list(range(len(kinds)))
        return player.tried(cls(player, tuple(distinct), tuple(kinds), names, "policy", settings))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations(range(len(self.names)), 2))

    @property
    def one_for_good(self) -> bool:
        """Whether branches that have come together stay together."""
        return len(set(self.kinds)) == 1

    @property
    def alike(self) -> NDArray[np.bool_]:
        """(m, m) which branches are one from the start, for good."""
        kinds = range(len(self.kinds)) if self.compared == "action" else self.kinds
        return np.equal.outer(kinds, kinds)

    def only(self, chosen: Sequence[int]) -> Plan:
        """Some of the branches."""
        return replace(
            self,
            kinds=tuple(self.kinds[i] for i in chosen),
            names=[self.names[i] for i in chosen],
        )

    @property
    def most_queries(self) -> int:
        """Queries that a run may need: at first all branches are at one state."""
        size = len(self.names)
        first = 1 if self.settings.coupling.at_one_state else size
        return first + (self.settings.horizon - 1) * size

    def largest_return(self, reward: float) -> float:
        """The return of so large a reward at every step; if gamma is 1, up to the horizon."""
        gamma, horizon, _ = self.settings
        return reward * horizon if gamma == 1.0 else reward / (1.0 - gamma)

    def largest_future(self, reward: float) -> float:
        """The same for ever; if gamma is 1, nobody knows."""
        if self.settings.gamma == 1.0:
            return math.inf if reward else 0.0
        return self.largest_return(reward)

    def largest_gap(self, seen: tuple[float, float], ended: Any = False) -> float:
        """No gap is larger: infinite if nobody knows.

        seen: the lowest and the highest reward. ended: whether all gaps did within the horizon.
        """
        if self.player.limits is None:
            return math.inf
        lows, highs = zip(self.player.limits, seen, strict=True)
        spread = max(highs) - min(lows)
        return self.largest_return(spread) if ended else self.largest_future(spread)

    def rounding(self, largest: float, spread: float) -> tuple[float, float]:
        """Up to which sizes gaps count as ties, and as open, since returns are rounded.

        largest: return, by size. spread: of rewards. If it is rounded away, no gap is a tie.
        """
        lost = _ROUNDING * largest
        if not self.player.rounded:
            return lost, lost
        return (-1.0 if 0.0 < spread <= lost else 0.0), lost

    def values(
        self, parts: Sequence[Sequence[GapSums]], seen: tuple[float, float]
    ) -> dict[str, Any]:
        """(m,) the values of `GapEstimate`, from parts of all branches' sums; nan where unknown.

        From a cut on, a branch earns what all rewards have in common, and at most so much more.
        seen: the lowest and the highest reward of all.
        """
        low, high = seen
        common = 0.0 if self.settings.gamma == 1.0 else min(max(low, 0.0), high)
        most = self.largest_future(max(high - common, common - low))
        if sum(part[0].size for part in parts) < 3:
            unknown = np.full(len(self.names), math.nan)
            return {"value": unknown, "value_error": unknown}
        found = GapStatistics.of(parts, 1.0)
        left = found.truncation_error  # the mean discount from which on returns are cut
        return {
            "value": found.mean + left * self.largest_future(common),
            "value_error": found.mean_error + may_change(left, most),
        }


class History(NamedTuple):
    """The number of queries (L,) and the intervals (L, m, m, 2) at each of L looks."""

    num_queries: Ints
    intervals: Floats

    @classmethod
    def of(cls, looks: list[tuple[int, Floats]], shape: tuple[int, ...]) -> History:
        """From the looks that there were, perhaps none."""
        intervals = np.reshape([own for _, own in looks], (-1, *shape))
        return cls(frozen(np.array([n for n, _ in looks], dtype=np.int64)), frozen(intervals))


@dataclass(frozen=True, eq=False, repr=False)
class Decision(ReadOnly):
    """What `compare_actions` or `compare_policies` found.

    Attributes:
        actions: the m actions that were asked for, or the numbers of the m policies.
        verdict: "better", one action is best by more than the margin; "equivalent", those that
            remain differ by at most the margin; or "undecided" when the budget ended.
        best: the best action if the verdict is "better", else None.
        remaining: the actions that no other was found to be better than.
        intervals: (m, m, 2), lower and upper end for $E[Z(s, a_i) - Z(s, a_j)]$ at [i, j], where
            $a_i$ is actions[i]. What returns lose by being cut off, at the horizon or by a time
            limit of the environment, is included. If the range of the rewards is known, all
            intervals hold at all looks at once with probability $1 - alpha$; for an asymptotic
            sequence this is so only in the limit of large samples.
        margin: as it was given.
        num_queries: queries that were made: calls at one state, for one or more actions.
        num_runs: runs of all branches.
        variance_reduction: how many times as many independent runs would be needed for the same
            certainty, estimated: the sum of $Var Z_a + Var Z_b$ over the pairs of actions, divided
            by that of $Var(Z_a - Z_b)$.
        method: which confidence sequence it is, and whether it holds at every sample size.
        history: `num_queries` (L,) and `intervals` (L, m, m, 2) at each of L looks.
        estimates: what the same runs say about all gaps, with standard errors, as from
            `estimate_gaps`; of two actions, from the runs that played both; and the value of every
            action, from the first runs, which are whole. None before three runs. Its intervals do
            not know that a decision ended the runs: `intervals` do.
        entropy: an integer that repeats the call when it is passed as `rng`.
        open_pairs: if undecided, the pairs of `remaining`, (action, other, estimate of the mean
            gap, its standard error), the one with the larger mean first; those of the leader come
            first. Empty before the first look.
        deciding_budget: if undecided, about how many queries would decide between the leader and
            all others if the estimates are right: if all further runs are like those that were
            played. Infinite where no budget would, nan if it is decided.
    """

    actions: tuple[Any, ...]
    verdict: str
    best: Any
    remaining: tuple[Any, ...]
    intervals: Floats
    margin: float
    num_queries: int
    num_runs: int
    variance_reduction: float
    method: str
    history: History
    estimates: GapEstimate | None = None
    entropy: int | None = None
    open_pairs: tuple[tuple[Any, Any, float, float], ...] = ()
    deciding_budget: float = math.nan

    def __repr__(self) -> str:
        best = "" if self.best is None else f"best={self.best}, "
        return (
            f"Decision({self.verdict!r}, {best}num_queries={self.num_queries:,}, "
            f"variance_reduction={self.variance_reduction:.3g}, {self.method}{self._outlook})"
        )

    @property
    def _outlook(self) -> str:
        """What would decide, in words: the leader against the others."""
        if not self.open_pairs:
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
        return f"; {', '.join(shown)}; {budget}"
