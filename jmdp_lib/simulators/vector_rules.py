"""Branches of a `VectorSimulator` that follow a rule each, as `branches.OwnRules` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from jmdp_lib.checks import Policy
from jmdp_lib.simulators.arrays import Arrays
from jmdp_lib.simulators.players import checked_settings
from jmdp_lib.simulators.vector_batch import Batch
from jmdp_lib.simulators.vector_branches import VectorBranches, check_numbered, start_of
from jmdp_lib.simulators.vector_lanes import BatchPlan, Lanes
from jmdp_lib.simulators.vector_policies import VectorPolicy, checked_matrix
from jmdp_lib.simulators.vector_simulator import VectorSimulator


@dataclass(frozen=True, eq=False)
class TableRule:
    """A table of probabilities (S, A) as a function of states, so that it is drawn by inversion.

    One number then picks one action from two tables wherever their cumulative probabilities agree,
    which Walker's method does not promise.
    """

    probs: Any

    def __call__(self, states: Any) -> Any:
        arrays = Arrays.of(states)
        rows = arrays.xp.astype(states, arrays.index_type, copy=False)
        if arrays.on_gpu:  # where a state out of range would end the process, before it is refused
            rows = arrays.xp.clip(rows, 0, self.probs.shape[0] - 1)
        return arrays.take(self.probs, rows)

    def on(self, arrays: Arrays) -> TableRule:
        """The same table on a device."""
        return TableRule(arrays.put(self.probs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableRule) and np.array_equal(self.probs, other.probs)


class RuleBatch(Batch):
    """Plays chunks of runs in which every branch has a rule of its own.

    Branches at one state-action choose by one number, each by its own rule. They are one for good
    only if all rules are the same.
    """

    def __init__(self, plan: BatchPlan, *rest: Any) -> None:
        super().__init__(plan, *rest)
        assert isinstance(plan, VectorRules)
        self.kinds = plan.kinds
        self.rules = [_on(self.arrays, plan.rules[kind]) for kind in plan.kinds]

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
        drawn = [
            self._chosen(rule, states[j, ...], uniforms[j]) for j, rule in enumerate(self.rules)
        ]
        return self.xp.stack(drawn)

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
    player: ClassVar[type[Batch]] = RuleBatch

    @classmethod
    def of_policies(
        cls, env: VectorSimulator, policies: Sequence[Policy], state: Any, gamma: float | None,
        coupling: str, truncation: float, horizon: int | None,
    ) -> VectorRules:  # fmt: skip
        """Arguments as of `compare_policies`, checked; step, draw and policies are tried out."""
        settings = checked_settings(env, gamma, coupling, truncation, horizon)
        start = start_of(env, state)
        rules: list[VectorPolicy] = []
        kinds: list[int] = []
        for number, policy in enumerate(policies):
            try:
                rule = _rule(env, policy, start)
            except ValueError as error:
                raise ValueError(f"policies[{number}]: {error}") from None
            if rule not in rules:
                rules.append(rule)
            kinds.append(rules.index(rule))
        names = list(range(len(kinds)))
        parts = (tuple(rules), tuple(kinds))
        made = cls(env, rules[0], start, names, *settings, env.reward_range, *parts)
        made._try_out()
        return made

    @property
    def num_states(self) -> int | None:
        """How many states there are, if the simulator or a table says so."""
        sizes = [len(x.function.probs) for x in self.rules if isinstance(x.function, TableRule)]
        return getattr(self.simulator, "num_states", min(sizes, default=None))

    @property
    def parts(self) -> dict[str, Any]:
        return {"env": self.simulator, "policies": self.rules, "state": self.state}

    @property
    def compared(self) -> str:
        return "policy"

    @property
    def alike(self) -> NDArray[np.bool_]:
        return np.equal.outer(self.kinds, self.kinds)

    def only(self, chosen: Sequence[int]) -> VectorRules:
        names = [self.actions[i] for i in chosen]
        return replace(self, actions=names, kinds=tuple(self.kinds[i] for i in chosen))


def _rule(env: VectorSimulator, policy: Policy, start: Any) -> VectorPolicy:
    """A policy in any form, as one that is drawn by inversion."""
    if callable(policy):
        return VectorPolicy(env.num_actions, policy)
    matrix = checked_matrix(policy, env.num_actions, getattr(env, "num_states", None))
    check_numbered(start, len(matrix))
    return VectorPolicy(env.num_actions, TableRule(matrix))


def _on(arrays: Arrays, rule: VectorPolicy) -> VectorPolicy:
    """A rule, its table on a device."""
    if isinstance(rule.function, TableRule):
        return replace(rule, function=rule.function.on(arrays))
    return rule
