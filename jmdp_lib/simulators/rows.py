"""Worlds that simulate one run after another, such as those of simulators with `query`.

A NumPy call for a single number takes as long as a whole step of a small simulator, so the loop
uses plain Python numbers. Branches at one state and action form a group: they share the reward, the
successor and the next uniform number.

To add a kind of simulator, wrap it in an object with `query(state, actions, rng)` and use
`QueriedWorld`; if that is impossible, write a `RowWorld`.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.model import Coupling
from jmdp_lib.model.simulator import (
    ANY_REWARD,
    SimulatorError,
    check_simulator,
    checked_query,
)
from jmdp_lib.policies import Policy, policy_matrix, policy_row, policy_rows
from jmdp_lib.simulators.plans import Plan, Runs, SimulatedPolicy, World

_AT_ONCE = 64  # uniform numbers that are drawn at a time
_MOST_KEPT = 100_000  # largest number of states whose action probabilities are cached


class End(Enum):
    """States of branches whose episode ended or was cut off by a time limit."""

    OVER = "over"
    LIMIT = "limit"


Draws = dict[Any, tuple[list[Any], list[list[int]]]]
"""Actions and their groups of branches, by draw. The key of a draw is the state or, if each action
of a state has its own draw, (state, action).
"""
Range = tuple[float, float]
Outcome = tuple[list[int], tuple[float, Any]]
"""Branches of one group; their reward, and their next state or an `End`."""


class Run(NamedTuple):
    """State of a run of m branches, (m,) each.

    sources: index of the first branch that comes from the same state-action. totals, tails: as in
    `Runs`. alive: indices of the branches whose episodes go on. paid: all rewards; once the run has
    ended, only the lowest and the highest one.
    """

    states: list[Any]
    sources: list[int]
    totals: list[float]
    tails: list[float]
    alive: list[int]
    paid: list[float]

    def arrive(self, outcomes: list[Outcome], plan: Plan, time: int) -> None:
        """Apply the rewards and next states of a step."""
        states, sources, totals, _, _, paid = self
        rewards = [0.0] * len(totals)
        for branches, (reward, after) in outcomes:
            paid.append(reward)
            for b in branches:
                rewards[b] = reward
                states[b] = after
                sources[b] = branches[0]
            if isinstance(after, End):
                self._end(branches, after, plan, time + 1)
        weight = plan.gamma**time
        first = rewards[0]
        totals[0] += weight * first
        for b in range(1, len(rewards)):
            totals[b] += weight * (rewards[b] - first)

    def _end(self, branches: list[int], end: End, plan: Plan, steps: int) -> None:
        """End the episode of some branches after this many steps."""
        if plan.limits and not plan.limits[0] <= 0.0 <= plan.limits[1]:
            raise SimulatorError(
                "an episode ended, and reward 0.0, which is paid from then on, "
                f"is not in reward_range {plan.limits}"
            )
        self.paid.append(0.0)
        for b in branches:
            self.alive.remove(b)
            self.tails[b] = plan.tail(steps) if end is End.LIMIT else 0.0


def _uniforms(seed: np.random.SeedSequence) -> Iterator[float]:
    """Stream of numbers in [0, 1), drawn many at a time for speed."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(_AT_ONCE).tolist()


class RowWorld(World):
    """Simulates one run after another. A subclass sets these attributes in `__init__`.

    simulator: the user's object, for messages. num_actions, limits: as in `World`. here: the
    observation of a policy at the start. num_states: S if observations are integers from 0 on, else
    None. can_keep: whether observations are hashable. States always are.
    """

    chunk = 128
    sums_chunks = False
    simulator: Any
    here: Any
    num_states: int | None
    can_keep = True

    def begin(self, width: int, noise: np.random.Generator) -> None:
        """Prepare for runs of `width` branches, whose draws come from this generator."""

    @abstractmethod
    def start(self, width: int) -> list[Any]:
        """The states of all branches of a new run."""

    def seen(self, state: Any) -> Any:
        """Observation of a policy at a state."""
        return state

    @abstractmethod
    def step(
        self, draws: Draws, coupling: Coupling, limits: Range, noise: np.random.Generator
    ) -> list[Outcome]:
        """Take a step of all branches that go on, draw by draw.

        limits: (lo, hi) of rewards; raise `outside` for any other reward. noise: generator of the
        draws. coupling: if `across_states`, all draws of the step are equal. Check what the user's
        object returns: nothing else refuses a reward that is not a number or a state without a
        hash.
        """

    def number(self, action: Any) -> Any:
        """Index or key of a checked action, equal for equal actions."""
        return int(action)

    def batch(self, num_runs: int) -> int:
        return max(1, self.chunk // 32, num_runs // 32)

    def own(self) -> RowWorld:
        """A deep copy, since a simulator may change; override this if yours does not."""
        try:
            return copy.deepcopy(self)
        except Exception as error:
            raise SimulatorError(
                f"{self.simulator!r} cannot be copied, but each thread of an executor needs its "
                f"own copy: {error!r}; give it a __deepcopy__"
            ) from error

    def checked_policy(self, policy: Policy) -> SimulatedPolicy:
        """Check a policy: a table as it is, a function by two calls for the start."""
        if self.num_actions is None:
            why = "but must be a function of the observation"
            call = partial(self._action, policy, self.here)
            randomness.without_global_draws("policy", why, call)
        elif callable(policy) or self.num_states is None:
            policy_rows(policy, [self.here], self.num_actions)
        else:
            sizes: Any = self
            table = policy_matrix(sizes, policy)
            return SimulatedPolicy(table, dict(enumerate(table[:, :-1].cumsum(1).tolist())))
        return SimulatedPolicy(policy, {} if self.can_keep else None)

    def _action(self, policy: Any, seen: Any) -> Any:
        """The action of a policy if actions are not integers."""
        try:
            return self.number(policy(checks.read_only(seen)))
        except Exception as error:
            what = "policy must be a function of the observation that returns an action"
            raise ValueError(f"{what}, but policy({seen!r}) failed: {error!r}") from error

    def chosen(self, policy: SimulatedPolicy, state: Any, uniform: float) -> Any:
        """Action of a policy, drawn by a uniform number if the policy is random."""
        seen = self.seen(state)
        kept = policy.steps
        if kept and seen in kept:
            return bisect_right(kept[seen], uniform)
        if self.num_actions is None:
            return self._action(policy.source, seen)
        steps = policy_row(policy.source, seen, self.num_actions)[:-1].cumsum().tolist()
        if kept is not None and len(kept) < _MOST_KEPT:
            kept[seen] = steps
        return bisect_right(steps, uniform)

    def simulate(
        self, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
    ) -> Runs:
        """Simulate runs of a plan; the `result` of an error holds the complete runs before it."""
        noise = np.random.default_rng(randomness.part(seed, 0))
        uniforms = _uniforms(randomness.part(seed, 1))
        self.begin(len(plan.kinds), noise)
        runs: list[Run] = []
        queries = 0
        try:
            while len(runs) < size and queries <= plan.budget:
                run, made = self._run(plan, noise, uniforms, plan.budget - queries, to_the_end)
                runs.append(run)
                queries += made
        except BaseException as error:
            error.result = _joined(runs, plan, queries) if runs else None  # type: ignore[attr-defined]
            raise
        return _joined(runs, plan, queries)

    def _run(
        self,
        plan: Plan,
        noise: np.random.Generator,
        uniforms: Iterator[float],
        budget: float,
        to_the_end: bool,
    ) -> tuple[Run, int]:
        """Simulate a run from the start to the horizon; also returns its number of queries."""
        width = len(plan.kinds)
        policies = [plan.policies[kind] for kind in plan.kinds]
        actions = [self.number(action) for action in plan.first or []] or [None] * width
        zeros = [0.0] * width
        run = Run(self.start(width), [0] * width, zeros, zeros.copy(), [*range(width)], [])
        states, sources, _, tails, alive, paid = run
        stops = plan.coalesces and not to_the_end
        lows, highs = zip(*(x or ANY_REWARD for x in (plan.limits, self.limits)), strict=True)
        limits = max(lows), min(highs)
        all_coalesced = [[[*range(width)]]]
        queries = 0
        for time in range(plan.horizon):
            try:
                if time or plan.first is None:
                    numbers = [*islice(uniforms, width if time else 1)]
                    for b in alive:
                        actions[b] = self.chosen(policies[b], states[b], numbers[sources[b]])
                draws = draws_of(alive, states, actions, plan.coupling)
                if stops and [groups for _, groups in draws.values()] == all_coalesced:
                    sources[:] = [0] * width
                    break
                queries += len(draws)
                if not draws or queries > budget:
                    break
                run.arrive(self.step(draws, plan.coupling, limits, noise), plan, time)
            except ValueError as error:
                raise SimulatorError(f"time step {time + 1}: {error}") from error
        for b in alive:
            tails[b] = plan.gamma**plan.horizon
        paid[:] = min(paid, default=math.inf), max(paid, default=-math.inf)
        return run, queries


def _joined(runs: list[Run], plan: Plan, queries: int) -> Runs:
    """One or more runs as arrays."""
    totals, tails, sources, paid = (
        np.transpose([getattr(run, name) for run in runs])
        for name in ("totals", "tails", "sources", "paid")
    )
    ends = float(paid[0].min()), float(paid[1].max())
    return Runs(totals, tails, plan.coalesced(sources), ends, queries)


def draws_of(alive: list[int], states: list[Any], actions: list[Any], coupling: Coupling) -> Draws:
    """All draws of a step, in the order of their first branches."""
    draws: Draws = {}
    shared = coupling.at_one_state
    for b in alive:
        action = actions[b]
        key = states[b] if shared else (states[b], action)
        if key not in draws:
            draws[key] = [action], [[b]]
            continue
        taken, groups = draws[key]
        if action in taken:
            groups[taken.index(action)].append(b)
        else:
            taken.append(action)
            groups.append([b])
    return draws


class QueriedWorld(RowWorld):
    """Simulates an object that has `query(state, actions, rng)`.

    The states of a simulator without `num_states` may be of any hashable type. The simulator must
    be pure, as `model.simulator.Simulator` requires: if all branches share one draw, all queries of
    a time step get generators in equal states.
    """

    def __init__(self, simulator: Any, state: Any) -> None:
        self.num_states = getattr(simulator, "num_states", None)
        if self.num_states is None:
            try:
                hash(state)
            except TypeError:
                raise ValueError(
                    f"state must be hashable, such as a tuple, got {state!r}"
                ) from None
            check_simulator(simulator, states=[state], undiscounted=True)
        else:
            check_simulator(simulator, undiscounted=True)
            state = checks.index("state", state, self.num_states)
        self.here = state
        self.limits = getattr(simulator, "reward_range", None)
        self.num_actions = simulator.num_actions
        self.simulator = simulator
        self.shared = np.random.default_rng(0)
        self.moment: Any = self.shared.bit_generator.state

    def start(self, width: int) -> list[Any]:
        return [self.here] * width

    def step(
        self, draws: Draws, coupling: Coupling, limits: Range, noise: np.random.Generator
    ) -> list[Outcome]:
        """Queries of a time step, with one generator in one state if branches share draws."""
        rng = noise
        if coupling.across_states:
            draw = noise.bit_generator.random_raw
            rng = self.shared
            self.moment["state"]["state"] = draw() << 64 | draw()
        outcomes: list[Outcome] = []
        for key, (actions, groups) in draws.items():
            state = key if coupling.at_one_state else key[0]
            if coupling.across_states:
                rng.bit_generator.state = self.moment
            answers = checked_query(self.simulator, state, actions, rng, limits)
            outcomes += zip(groups, answers)  # noqa: B905, an answer for each action
        return outcomes
