"""Branches of a `VectorSimulator`: what `Branches` of `players` is for runs played one by one.

`VectorBranches` compares actions, `VectorRules` compares policies, as `branches.OwnRules` says.
Both cut their runs into chunks, and let a `Batch` play these. What else is to be compared is a
subclass of `VectorBranches` with a constructor of its own, and a `player`, a subclass of `Batch`,
if its branches choose their actions in another way. How to record one more thing of every run is
said in `vector_batch`; `play_some` makes single runs of what a batch recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Ints, Policy
from jmdp_lib.machine import available_bytes
from jmdp_lib.model.simulator import SimulatorError
from jmdp_lib.operators.dense import device_bytes
from jmdp_lib.simulators.branches import Run
from jmdp_lib.simulators.players import Comparison, checked_settings
from jmdp_lib.simulators.vector_batch import Batch
from jmdp_lib.simulators.vector_runs import BatchPlan, ChunkRuns, Lanes, VectorPolicy
from jmdp_lib.simulators.vector_simulator import (
    Arrays,
    VectorSimulator,
    as_array,
    check_draw,
)

_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor,
_GPU_CHUNK = 2**23  # and many enough to keep a GPU busy
_MOST_IN_FLIGHT = 4  # chunks on a GPU: with more, launching their draws would take long
_WORDS = 24  # of eight bytes, for every branch of a run that is in flight


@dataclass(frozen=True)
class VectorBranches(BatchPlan, Comparison):
    """What all runs of a comparison of actions have in common; it pickles if its parts do."""

    player: ClassVar[type[Batch]] = Batch

    @classmethod
    def of(
        cls,
        env: VectorSimulator,
        policy: Policy,
        actions: Sequence[int],
        state: Any,
        gamma: float | None,
        coupling: str,
        truncation: float,
        horizon: int | None,
    ) -> VectorBranches:
        """Arguments as of `estimate_gaps`, checked; step, draw and policy are tried out."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        start = _start_of(env, state)
        chosen = checks.distinct_actions(actions, env.num_actions)
        rule = VectorPolicy.of(policy, env.num_actions, getattr(env, "num_states", None))
        _check_numbered(start, rule.num_states)
        made = cls(
            simulator=env,
            policy=rule,
            state=start,
            actions=chosen,
            gamma=settings.gamma,
            horizon=settings.horizon,
            coupling=settings.coupling,
            limits=env.reward_range,
        )
        made._try_out()
        return made

    def _try_out(self) -> None:
        """A careful batch of few runs and few steps."""
        check_draw(self.simulator, Arrays.of(self.state))
        few = replace(self, horizon=min(self.horizon, 3))
        few.play(np.random.SeedSequence(0), [32], careful=True)

    @property
    def names(self) -> list[int]:
        return self.actions

    def only(self, chosen: Sequence[int]) -> VectorBranches:
        return replace(self, actions=[self.actions[i] for i in chosen])

    @property
    def chunk_size(self) -> int:
        """Runs of a chunk: fixed for a kind of device, since numbers depend on it."""
        return _GPU_CHUNK if Arrays.of(self.state).on_gpu else _CHUNK

    @property
    def most_in_flight(self) -> int:
        """Chunks that are played at once: one on a processor, on a GPU as many as fit."""
        arrays = Arrays.of(self.state)
        if not arrays.on_gpu:
            return 1
        width = math.prod(self.state.shape)
        size = 8 * self.chunk_size * len(self.actions) * (_WORDS + 4 * width)
        free = device_bytes(str(arrays.device)) if arrays.is_torch else available_bytes()
        return max(1, min(_MOST_IN_FLIGHT, free // size))

    def play(
        self,
        root: np.random.SeedSequence,
        sizes: Sequence[int],
        first: int = 0,
        whole: bool = False,
        counted: bool = False,
        careful: bool = False,
    ) -> list[ChunkRuns]:
        """The chunks of a batch, numbered from `first` on; sizes: how many runs each has.

        whole: branches that have become one are played on until the horizon, so that returns are
        whole; gaps stay the same. counted: count queries. careful: look at all values.

        Otherwise only smallest and largest values are looked at. If something is wrong with them,
        or a function of the user's fails, the batch is played again carefully, which names the row.
        """
        seeds = [checks.seed_sequence(root, first + k) for k in range(len(sizes))]
        batch = self.player(self, seeds, list(sizes), whole, counted, careful)
        try:
            found = batch.play()
        except SimulatorError:
            if not careful:
                self.play(root, sizes, first, whole, careful=True)
            raise
        if not careful and batch.is_suspect():
            self.play(root, sizes, first, whole, careful=True)
            raise SimulatorError("step must be pure, but went wrong once and not a second time")
        return found

    def begin(self, rng: np.random.Generator) -> np.random.Generator:
        """Seeds of batches come from it."""
        return rng

    def play_some(
        self, source: np.random.Generator, most: int, until_one: bool, limits: tuple[float, float]
    ) -> list[Run]:
        """All runs that may be played, or a chunk of them, in the order of the chunk."""
        root = np.random.SeedSequence(int(source.integers(2**63)))
        known = limits if np.isfinite(limits).all() else self.limits
        sizes = [min(most, self.chunk_size)]
        playing = replace(self, limits=known)
        (runs,) = playing.play(root, sizes, whole=not until_one, counted=True)
        arrays = Arrays.of(runs.returns)
        order = np.argsort(arrays.host(runs.numbers))
        returns = arrays.host(runs.returns).T[order].tolist()
        apart = [arrays.host(differ)[order] for differ in runs.apart]
        labels = _labels(len(self.actions), apart).tolist()
        queries = arrays.host(runs.queries)[order].tolist()
        columns = zip(returns, labels, queries, strict=True)
        return [Run(own, futures, runs.extremes, count) for own, futures, count in columns]


class _RuleBatch(Batch):
    """Plays chunks of runs in which every branch has a rule of its own.

    Branches at one state-action choose by one number, each by its own rule. They are one for good
    only if all rules are the same.
    """

    def __init__(self, plan: BatchPlan, *rest: Any) -> None:
        super().__init__(plan, *rest)
        assert isinstance(plan, VectorRules)
        self.kinds = plan.kinds
        self.rules = [plan.rules[kind].on(self.arrays) for kind in plan.kinds]
        self.policy = self.rules[0]  # what branches follow that are one for good

    @property
    def one_for_good(self) -> bool:
        """Whether branches that have come together stay together."""
        return len(set(self.kinds)) == 1

    def _start(self) -> Lanes:
        """All branches come from one place: their first actions are drawn by one number."""
        lanes = super()._start()
        streams = zip(self.sizes, self.streams, strict=True)
        numbers = [self.arrays.uniforms(size, stream.choices) for size, stream in streams]
        uniforms = self.xp.concat(numbers)
        actions = self._by_rules(lanes.states, [uniforms] * self.width)
        one = tuple(actions[i, ...] == actions[j, ...] for i, j in self.pairs)
        return lanes._replace(actions=actions, one=one)

    def _next_actions(self, lanes: Lanes, uniforms: Any) -> Any:
        return self._by_rules(lanes.states, self._follow(lanes.one, uniforms))

    def _by_rules(self, states: Any, uniforms: list[Any]) -> Any:
        """(m, n) what every rule chooses in its own states, by its own numbers (n,)."""
        chosen = [
            self._chosen(rule, states[j, ...], uniforms[j]) for j, rule in enumerate(self.rules)
        ]
        return self.xp.stack(chosen)

    def _done(self, lanes: Lanes) -> Any:
        if self.one_for_good:
            return super()._done(lanes)
        if lanes.alive is None:
            return self.xp.zeros_like(lanes.returns[0, ...], dtype=self.xp.bool)
        return ~self.xp.any(lanes.alive, axis=0)

    def _apart(self, lanes: Lanes) -> tuple[Any, ...]:
        never = self.xp.zeros_like(lanes.returns[0, ...], dtype=self.xp.bool)
        for_good = tuple(
            one if self.kinds[i] == self.kinds[j] else never
            for (i, j), one in zip(self.pairs, lanes.one, strict=True)
        )
        return super()._apart(lanes._replace(one=for_good))

    def _rest(self, parts: Any, chunk: int) -> tuple[Any, Any]:
        if self.one_for_good:
            return super()._rest(parts, chunk)
        size = sum(part.lanes.returns.shape[1] for part in parts)  # all have ended
        total = self.xp.zeros((size,), dtype=self.xp.float64, device=self.arrays.device)
        return total, self.xp.zeros_like(total, dtype=self.xp.int64)


@dataclass(frozen=True)
class VectorRules(VectorBranches):
    """What all runs of a comparison of policies have in common; it pickles if its parts do.

    policy: the first rule. actions: the numbers of the policies. rules: those that are distinct.
    kinds: (m,) which of them each branch follows.
    """

    rules: tuple[VectorPolicy, ...]
    kinds: tuple[int, ...]
    player: ClassVar[type[Batch]] = _RuleBatch

    @classmethod
    def of_policies(
        cls,
        env: VectorSimulator,
        policies: Sequence[Policy],
        state: Any,
        gamma: float | None,
        coupling: str,
        truncation: float,
        horizon: int | None,
    ) -> VectorRules:
        """Arguments as of `compare_policies`, checked; step, draw and policies are tried out."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        start = _start_of(env, state)
        count = getattr(env, "num_states", None)
        rules: list[VectorPolicy] = []
        kinds: list[int] = []
        for number, policy in enumerate(policies):
            try:
                rule = VectorPolicy.by_inversion(policy, env.num_actions, count)
                _check_numbered(start, rule.num_states)
            except ValueError as error:
                raise ValueError(f"policies[{number}]: {error}") from None
            if rule not in rules:
                rules.append(rule)
            kinds.append(rules.index(rule))
        made = cls(
            simulator=env,
            policy=rules[0],
            state=start,
            actions=list(range(len(kinds))),
            gamma=settings.gamma,
            horizon=settings.horizon,
            coupling=settings.coupling,
            limits=env.reward_range,
            rules=tuple(rules),
            kinds=tuple(kinds),
        )
        made._try_out()
        return made

    @property
    def num_states(self) -> int | None:
        """How many states there are, if the simulator or a table says so."""
        sizes = [rule.num_states for rule in self.rules if rule.num_states is not None]
        return getattr(self.simulator, "num_states", min(sizes, default=None))

    @property
    def compared(self) -> str:
        return "policy"

    @property
    def alike(self) -> NDArray[np.bool_]:
        return np.equal.outer(self.kinds, self.kinds)

    def only(self, chosen: Sequence[int]) -> VectorRules:
        names = [self.actions[i] for i in chosen]
        return replace(self, actions=names, kinds=tuple(self.kinds[i] for i in chosen))


def _labels(width: int, apart: Sequence[Any]) -> Ints:
    """(N, m) equal where branches have the same future, from (N,) of every pair."""
    labels = np.tile(np.arange(width), (len(apart[0]), 1))
    pairs = combinations(range(width), 2)
    for (i, j), differ in reversed([*zip(pairs, apart, strict=True)]):
        labels[:, j] = np.where(differ, labels[:, j], i)
    return labels


def _start_of(env: VectorSimulator, state: Any) -> Any:
    """The state where all branches start, as an array () or (d,)."""
    if state is None:
        raise ValueError("state= must be given: the state at which the actions are compared")
    start = as_array(state)
    if len(start.shape) > 1 or (hasattr(start, "dtype") and str(start.dtype) == "object"):
        raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
    _check_numbered(start, getattr(env, "num_states", None))
    return start


def _check_numbered(start: Any, num_states: int | None) -> None:
    """Refuse a start that is no number of a state, where states have numbers."""
    if num_states is None:
        return
    arrays = Arrays.of(start)
    if start.shape or not arrays.xp.isdtype(start.dtype, "integral"):
        raise ValueError(
            f"states must be integers from 0 to {num_states - 1}, since the simulator or the "
            f"policy has so many of them; got state {start!r}"
        )
    checks.index("state", int(start), num_states)
