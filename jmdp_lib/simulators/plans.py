"""Plans, worlds and runs: the branches to simulate, their simulator, and the results.

A `World` simulates one kind of simulator; `estimates.world_of` chooses it. Three modules have a
loop over the time steps of branches: `vector` (all runs at once, as arrays), `rows` (one run after
another) and `tables` (compiled, for a JMDP). A new kind of simulator is one file with a subclass of
`World`, or of `rows.RowWorld`, which needs no loop of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.model import INDEPENDENT, Coupling, CouplingName, declared_coupling
from jmdp_lib.policies import Policy

LONGEST = 10**6  # largest default horizon, in steps


class Runs(NamedTuple):
    """N runs of m branches, in any order.

    Differences of rewards are added up, so a reward offset cancels before anything is rounded. Runs
    of different horizons can be joined, since each has its own tails.

    totals: (m, N), the return of the first branch, and the difference to it of every other branch.
    tails: (m, N), the discount from which a branch is cut off, 0 if its episode ended. The tail of
    a time limit is larger than that of the horizon: see `Plan.tail`.
    coalesced: (P, N), whether the two branches of a pair have coalesced. Pairs are those of
    `itertools.combinations(range(m), 2)`, in this order, here and everywhere.
    extremes: the lowest and the highest reward, and 0 if episodes can end.
    queries: number of queries, each of one or more actions at one state. If it exceeds
    `Plan.budget`, the runs are not complete.
    """

    totals: Any
    tails: Any
    coalesced: Any
    extremes: tuple[float, float]
    queries: int

    @property
    def size(self) -> int:
        """Number of runs, N."""
        return int(self.totals.shape[1])

    def gap(self, i: int, j: int) -> Any:
        """Gaps (N,): how much more branch i earned than branch j, i < j."""
        return self.totals[i, :] - self.totals[j, :] if i else -self.totals[j, :]

    def total(self, branch: int) -> Any:
        """Returns (N,) of a branch."""
        return self.totals[0, :] + self.totals[branch, :] if branch else self.totals[0, :]


def joined_extremes(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The lowest and the highest reward of all parts."""
    lows, highs = zip(*parts, strict=True)
    return min(lows), max(highs)


@dataclass(frozen=True, eq=False)
class SimulatedPolicy:
    """A checked policy.

    The action is the first whose cumulative probability exceeds a uniform number. So two policies
    that agree in a state pick the same action with one number.

    source: probabilities (S, A), or a function; policies with one source are equal. steps: the
    cumulative probabilities that its world keeps, or None.
    """

    source: Any
    steps: Any = None

    def __eq__(self, other: Any) -> bool:
        sources = (self.source, other.source)
        if any(map(callable, sources)):
            return all(map(callable, sources)) and bool(self.source == other.source)
        return np.array_equal(*sources)


class World(ABC):
    """A simulator, and the state at which all branches start.

    Attributes:
        num_actions: A, if actions are integers.
        limits: (lo, hi) that contains all rewards, or None.
        chunk: number of runs of a chunk. A chunk has its own random stream, so numbers depend on
            this.
        least: least number of runs before the first look of a decision.
        sums_chunks: whether each chunk is summed up at once; otherwise all runs are kept.
    """

    num_actions: Any
    limits: tuple[float, float] | None = None
    chunk = 2**16
    least = 1
    sums_chunks = True

    def checked_actions(self, actions: Sequence[Any]) -> list[Any]:
        """Actions to compare: at least one, all in range, all distinct."""
        return checks.distinct_actions(actions, self.num_actions)

    @abstractmethod
    def checked_policy(self, policy: Policy) -> SimulatedPolicy:
        """A policy checked for simulation; equal policies compare equal."""

    def prepared(self, plan: Plan) -> Any:
        """Data that all chunks of a plan need; raises at once if something is wrong."""
        return None

    def batch(self, num_runs: int) -> int:
        """Largest size of the next chunk of a decision, after `num_runs` runs."""
        return self.chunk

    def own(self) -> World:
        """A copy for another thread; this world itself, if nothing in it ever changes."""
        return self

    @abstractmethod
    def simulate(
        self, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
    ) -> Runs:
        """Simulate `size` runs of a plan.

        to_the_end: simulate up to the horizon, even if all branches have coalesced. Otherwise a run
        ends when they have, since the gaps are final; its totals end there, too.
        """


@dataclass(frozen=True)
class Plan:
    """Data that all runs of a comparison share; it pickles if its parts do.

    policies: the distinct policies. kinds: (m,) index of the policy of each branch. first: the
    first actions, or None if branches follow policies from the start. limits: (lo, hi) that
    contains all rewards, or None. prepared: data from `World.prepared`. budget: largest number of
    queries where runs are simulated one after another.

    Branches at one state with one action are at one *state-action*: they get one reward, go to one
    state, and draw their next actions there with one uniform number, each by its own policy. So
    branches of one policy coalesce there, and branches of several policies stay identical until
    their policies choose differently. Branches that come from distinct state-actions draw with
    independent numbers.
    """

    world: World
    policies: tuple[SimulatedPolicy, ...]
    kinds: tuple[int, ...]
    first: list[Any] | None
    gamma: float
    horizon: int
    coupling: Coupling
    limits: tuple[float, float] | None
    prepared: Any = None
    budget: float = math.inf

    @property
    def names(self) -> list[Any]:
        """Names of the branches: their first actions or, without these, their indices."""
        return self.first or [*range(len(self.kinds))]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations(range(len(self.kinds)), 2))

    @property
    def same(self) -> NDArray[np.bool_]:
        """Mask (m, m) of the pairs of branches that follow one policy."""
        return np.equal.outer(self.kinds, self.kinds)

    @property
    def identical(self) -> NDArray[np.bool_]:
        """Mask (m, m) of the pairs of branches that have coalesced from the start."""
        return np.eye(len(self.kinds), dtype=bool) if self.first else self.same

    @property
    def coalesces(self) -> bool:
        """True if all branches of a run can coalesce."""
        return len(self.kinds) > 1 == len(set(self.kinds))

    def coalesced(self, sources: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask (P, N) of coalesced pairs: those of equal sources (m, N) and of one policy."""
        one = [self.same[i, j] & (sources[i] == sources[j]) for i, j in self.pairs]
        return np.reshape(one, (-1, sources.shape[1]))

    def only(self, chosen: Sequence[int]) -> Plan:
        """A plan of some of the branches."""
        return replace(
            self,
            kinds=tuple(self.kinds[i] for i in chosen),
            first=self.first and [self.first[i] for i in chosen],
        )

    @property
    def most_queries(self) -> int:
        """Largest number of queries of a run, which starts with all branches at one state."""
        size = len(self.kinds)
        first = 1 if self.coupling.at_one_state else size
        return first + (self.horizon - 1) * size

    def tail(self, step: int) -> float:
        """Discount from which a time limit after `step` steps cuts a branch off.

        It exceeds the discount at the horizon, even if gamma is 1.
        """
        return max(self.gamma**step, math.nextafter(self.gamma**self.horizon, 2.0))

    def future(self, spread: float) -> float:
        """Difference of two returns whose rewards differ by `spread` for ever.

        If gamma is 1, it is infinite.
        """
        if self.gamma < 1.0:
            return spread / (1.0 - self.gamma)
        return math.inf if spread else 0.0

    def up_to_horizon(self, spread: float) -> float:
        """Difference of two such returns; if gamma is 1, up to the horizon."""
        return spread * self.horizon if self.gamma == 1.0 else self.future(spread)


def coupling_of(env: Any, name: CouplingName) -> Coupling:
    """Coupling by its name. Declared independent draws are simulated as such."""
    sharing = Coupling.named(name)
    if declared_coupling(env).at_one_state:
        return sharing
    if sharing.across_states:
        raise ValueError(
            'coupling="common" needs draws that actions share, but this simulator declares '
            'coupling = "independent"'
        )
    return INDEPENDENT


def discount_and_horizon(
    env: Any, gamma: float | None, horizon: int | None, truncation: float
) -> tuple[float, int]:
    """Check arguments of `estimate_gaps`. A discount of 1 needs a given horizon."""
    given = getattr(env, "gamma", 0.99) if gamma is None else gamma
    if horizon is not None:
        return checks.probability("gamma", given), checks.at_least("horizon", horizon, 1)
    if given == 1:
        raise ValueError(
            "gamma must lie in [0, 1), or be 1 together with a given horizon=, by which "
            f"episodes have ended; got gamma = {given} and no horizon"
        )
    other = "pass horizon=, or a smaller gamma="
    gamma = checks.discount(given)
    return gamma, checks.derived_horizon(gamma, truncation, LONGEST, other)


def plan_of(
    world: World,
    policies: Sequence[Policy],
    actions: Sequence[Any] | None,
    within: tuple[float, int],
    coupling: Coupling,
    limits: tuple[float, float] | None,
) -> Plan:
    """A plan, after a test of its policies and its world.

    actions: first actions, all followed by one policy; None if branches follow policies of their
    own. within: discount and horizon.
    """
    distinct: list[SimulatedPolicy] = []
    kinds: list[int] = []
    first = None if actions is None else world.checked_actions(actions)
    for number, policy in enumerate(policies):
        try:
            checked = world.checked_policy(policy)
        except ValueError as error:
            if actions is not None:
                raise
            raise ValueError(f"policies[{number}]: {error}") from None
        if checked not in distinct:
            distinct.append(checked)
        kinds.append(distinct.index(checked))
    kinds *= len(first) if first else 1
    plan = Plan(
        world=world,
        policies=tuple(distinct),
        kinds=tuple(kinds),
        first=first,
        gamma=within[0],
        horizon=within[1],
        coupling=coupling,
        limits=limits or world.limits,
    )
    return replace(plan, prepared=world.prepared(plan))
