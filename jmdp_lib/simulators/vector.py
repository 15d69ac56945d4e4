"""Simulators that step many states at once, as arrays, and their world.

A user makes a `VectorSimulator`. The user's step and policies are functions of rows.
`VectorWorld._checked` calls them and checks their results; `_Trial` calls them twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.model.simulator import ANY_REWARD, SimulatorError, declared_range
from jmdp_lib.policies import SAME_POLICY, Policy, policy_array, policy_matrix
from jmdp_lib.simulators.batches import Arrays, Batch, runs_of
from jmdp_lib.simulators.plans import Plan, Runs, SimulatedPolicy, World

_TRIED = 32  # rows that a trial steps; then it steps half of them in reverse order
_SAME = SAME_POLICY  # answers that differ by less than this share of the largest one are equal
_REAL = ("bool", "integral", "real floating")
_ROUNDED = 1e-6  # of the largest reward, since rewards may be float32
_GPU_CHUNK = 2**25  # numbers in the states of a chunk on a GPU: keeps it busy, within three GiB
_LEAST = 256  # runs before the first look of a decision: fewer runs take as long


@dataclass(frozen=True, eq=False)
class VectorSimulator:
    """A simulator that steps many states at once, as arrays of NumPy, torch, or another library.

    `estimate_gaps`, `compare_actions` and `compare_policies` simulate many runs at once. The state
    that they start from determines the library and the device: a plain number or a list means
    NumPy. Policies are probabilities (S, A), actions (S,), or a function of the states,
    policy(states) -> (n, A) probabilities or (n,) actions.

    Args:
        step: step(states, actions, noise) -> rewards, next_states, or rewards, next_states, over,
            all with first axis n. States are integers (n,) or rows (n, d) of numbers; two states
            are equal if all their numbers are. over: (n,) bools, whether the episode ended. The
            function must be pure, and no row may depend on another one.
        draw: draw(n, rng) -> the noise of n steps, an array with first axis n. rng is a NumPy
            generator or, if the states are tensors, a torch generator on their device.
        num_actions: A; actions are integers from 0 to A - 1.
        gamma: discount factor in [0, 1]; with gamma=1, simulations need a `horizon`.
        reward_range: (lo, hi) that contains all rewards. Decisions rely on it.
        num_states: S, if states are the integers from 0 to S - 1; any other state raises an error.

    Raises:
        ValueError: an argument makes no sense. The results of the functions are checked later, in
            every call.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> def sell(stock, order, demand):  # a depot that holds 11 units
        ...     full = np.minimum(stock + order, 11)
        ...     sold = np.minimum(full, demand)
        ...     return 3.0 * sold - 1.5 * order, full - sold
        ...
        >>> def demands(n, rng):
        ...     return rng.poisson(3, n)
        ...
        >>> depot = jl.simulators.VectorSimulator(sell, demands, 5, gamma=0.9, num_states=12)
        >>> often = {"state": 5, "num_runs": 50_000, "rng": 0}
        >>> found = jl.simulators.estimate_gaps(depot, np.full((12, 5), 0.2), [2, 1], **often)
        >>> print(f"{found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        0.41 +- 0.02
    """

    step: Callable[[Any, Any, Any], tuple[Any, ...]]
    draw: Callable[[int, Any], Any]
    num_actions: int
    gamma: float
    reward_range: tuple[float, float] | None = field(default=None, kw_only=True)
    num_states: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("step", "draw"):
            if not callable(getattr(self, name)):
                raise ValueError(f"{name} must be a function, got {getattr(self, name)!r}")
        checks.at_least("num_actions", self.num_actions, 1)
        checks.probability("gamma", self.gamma)
        declared_range(self.reward_range)
        if self.num_states is not None:
            checks.at_least("num_states", self.num_states, 1)


def _called(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Result of a call of a user's function."""
    try:
        return function(*given)
    except Exception as error:
        raise SimulatorError(f"{what} failed: {error!r}") from error


Allowed = tuple[float, float, Any]
"""Admissible numbers: the lowest, the highest, and the kind of their type."""
Ends = tuple[float, float]


class VectorWorld(World):
    """Simulates a `VectorSimulator`.

    The smallest and the largest values of every step are checked; errors name a bad one.
    """

    least = _LEAST

    def __init__(self, simulator: VectorSimulator, state: Any) -> None:
        self.here = state if array_api_compat.is_array_api_obj(state) else np.asarray(state)
        self.simulator = simulator
        self.num_actions = simulator.num_actions
        self.limits = simulator.reward_range
        self.arrays = Arrays.of(self.here)
        xp = self.arrays.xp
        if len(self.here.shape) > 1 or not xp.isdtype(self.here.dtype, _REAL):
            raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
        if self.arrays.on_gpu:
            self.chunk = _GPU_CHUNK // max(1, math.prod(self.here.shape))
        # Small states get actions of a small type, which saves memory traffic.
        small = xp.isdtype(self.here.dtype, "integral")
        small = small and self.num_actions <= xp.iinfo(self.here.dtype).max
        self.action_type = self.here.dtype if small else xp.int64

    def batch(self, num_runs: int) -> int:
        return min(self.chunk, max(_LEAST // 4, num_runs))

    def checked_policy(self, policy: Policy) -> SimulatedPolicy:
        if callable(policy):
            return SimulatedPolicy(policy)
        if array_api_compat.is_array_api_obj(policy):
            policy = Arrays.of(policy).host(policy)
        shown = np.atleast_1d(policy_array(policy))
        count = self.simulator.num_states or len(shown)
        sizes: Any = SimpleNamespace(num_states=count, num_actions=self.num_actions)
        table = policy_matrix(sizes, policy)
        steps = np.ascontiguousarray(table.cumsum(1).T[:-1], self.arrays.number_type)
        return SimulatedPolicy(table, self.arrays.put(steps))

    def prepared(self, plan: Plan) -> dict[str, Allowed]:
        """Admissible results of the user's functions, by name.

        A trial first makes two equal draws and a few steps of a few runs.
        """
        tables = [x.source for x in plan.policies if not callable(x.source)]
        count = self.simulator.num_states or max(map(len, tables), default=None)
        if count is not None:
            here: Any = self.arrays.host(self.here)
            checks.index(f"state (of {count}, by num_states or the policy)", here, count)
        low, high = plan.limits or ANY_REWARD
        slack = _ROUNDED * max(-low, high) if plan.limits else 0.0
        anything = (-math.inf, math.inf)
        allowed: dict[str, Allowed] = {
            "rewards": (low - slack, high + slack, _REAL),
            "next_states": (0, count - 1, "integral") if count else (*anything, _REAL),
            "over": (*anything, "bool"),
            "actions": (0, self.num_actions - 1, "integral"),
            "probabilities": (0.0, math.inf, _REAL),
            "sums": (1.0 - _SAME, 1.0 + _SAME, _REAL),
        }
        few = replace(plan, horizon=min(plan.horizon, 3), prepared=allowed)
        seed = np.random.SeedSequence(0)
        randomness.pure(
            "draw(n, rng)",
            lambda: self.arrays.host(self._noise(1, _TRIED // 2, self.arrays.generator(seed))),
        )
        trial = partial(_Trial(self.simulator, self.here).simulate, few, _TRIED, seed, False)
        randomness.without_global_draws("step or policy", "whose draws are not shared", trial)
        return allowed

    def simulate(
        self, plan: Plan, size: int, seed: np.random.SeedSequence, to_the_end: bool
    ) -> Runs:
        arrays = self.arrays
        noise, choices = (arrays.generator(randomness.part(seed, k)) for k in (0, 1))
        shape = (len(plan.kinds), size)
        states = arrays.xp.broadcast_to(self.here, (*shape, *self.here.shape))
        batch = Batch(states, None, arrays.zeros(shape), None, [], [])
        dropped: list[Batch] = []
        queries: Any = 0
        low, high = math.inf, -math.inf
        for time in range(plan.horizon):
            try:
                batch = self._acted(plan, batch, choices, time)
                if time:
                    *finished, batch = batch.split(plan, to_the_end, arrays)
                    dropped += finished
                if not batch.totals.shape[1]:
                    break
                queries = queries + batch.queries(plan, arrays)
                batch, ends = self._stepped(plan, batch, noise, plan.gamma**time)
            except SimulatorError as error:
                raise SimulatorError(f"time step {time + 1}: {error}") from error
            low, high = min(low, ends[0]), max(high, ends[1])
        return runs_of(arrays, plan, [*dropped, batch], (low, high), int(queries))

    def _acted(self, plan: Plan, batch: Batch, choices: Any, time: int) -> Batch:
        """Choose actions; branches from one state-action choose by one uniform number."""
        arrays, xp = self.arrays, self.arrays.xp
        width, size = batch.totals.shape
        if time or plan.first is None:
            uniforms = arrays.uniforms((width if time else 1, size), choices)
            if time:
                arrays.follow(uniforms, batch.together, plan)
            uniforms = xp.broadcast_to(uniforms, (width, size))
            actions = self._actions(plan, batch.states, uniforms)
        else:
            first = xp.astype(arrays.put(np.array(plan.first)), self.action_type)
            actions = xp.broadcast_to(first[:, None], (width, size))
        met: list[Any] = []
        for i, j in plan.pairs:
            here = batch.states[i, ...] == batch.states[j, ...]
            if len(here.shape) > 1:
                here = xp.all(here, axis=1)
            if batch.alive is not None:
                here = here & batch.alive[i, :] & batch.alive[j, :]
            met.append(here)
        pairs = zip(plan.pairs, met, strict=True)
        together = [here & (actions[i, :] == actions[j, :]) for (i, j), here in pairs]
        shared = met if plan.coupling.at_one_state else together
        return batch._replace(actions=actions, together=together, shared=shared)

    def _stepped(
        self, plan: Plan, batch: Batch, rng: Any, weight: float
    ) -> tuple[Batch, tuple[float, float]]:
        """Draw, step, and add up rewards; also returns the extreme rewards."""
        xp = self.arrays.xp
        width, size = batch.totals.shape
        if plan.coupling.across_states:
            noise = self._noise(1, size, rng)
            noise = xp.broadcast_to(noise, (width, *noise.shape[1:]))
        else:
            noise = self._noise(width, size, rng)
            self.arrays.follow(noise, batch.shared, plan)
        rewards, states, over, ends = self._step(plan, batch.states, batch.actions, noise)
        alive = batch.alive
        if alive is not None:
            rewards = xp.where(alive, rewards, 0.0)
        rewards[1:, :] -= rewards[:1, :]
        if over is not None:
            alive = ~over if alive is None else alive & ~over
        if alive is not None:  # branches that have ended are stepped, too
            mask = xp.reshape(alive, (width, size, *(1,) * (len(states.shape) - 2)))
            states = xp.where(mask, states, batch.states)
        totals = batch.totals + weight * rewards
        return batch._replace(states=states, totals=totals, alive=alive), ends

    def _noise(self, width: int, size: int, rng: Any) -> Any:
        """Draws (m, n, ...), in an array that may be overwritten."""
        xp = self.arrays.xp
        what = f"draw({width * size}, rng)"
        drawn = _called(what, self.simulator.draw, width * size, rng)
        self._shaped(what, drawn, (width * size, *getattr(drawn, "shape", ())[1:]))
        drawn = xp.astype(drawn, drawn.dtype, copy=width > 1)  # the array may be the user's
        return xp.reshape(drawn, (width, size, *drawn.shape[1:]))

    def _step(self, plan: Plan, states: Any, actions: Any, noise: Any) -> tuple[Any, ...]:
        """Rewards (m, n), next states, ends of episodes or None, and the extreme rewards."""
        xp = self.arrays.xp
        shape = tuple(actions.shape)
        rows = (xp.reshape(x, (-1, *x.shape[2:])) for x in (states, actions, noise))
        parts, ends = self._checked(plan, "step", self._outcomes, *rows)
        rewards = xp.astype(parts["rewards"], xp.float64, copy=True)
        after = xp.reshape(parts["next_states"], tuple(states.shape))
        over = xp.reshape(parts["over"], shape) if "over" in parts else None
        return xp.reshape(rewards, shape), after, over, ends

    def _actions(self, plan: Plan, states: Any, uniforms: Any) -> Any:
        """Actions (m, n) of the policies, drawn by uniform numbers (m, n)."""
        xp = self.arrays.xp
        if len(plan.policies) > 1 or not self.arrays.on_gpu:  # caches of a CPU are small
            branches = enumerate(plan.policies[kind] for kind in plan.kinds)
            rows = ((policy, states[b, ...], uniforms[b, :]) for b, policy in branches)
            return xp.stack([self._chosen(plan, *each) for each in rows])
        flat = xp.reshape(states, (-1, *states.shape[2:]))
        chosen = self._chosen(plan, plan.policies[0], flat, xp.reshape(uniforms, (-1,)))
        return xp.reshape(chosen, tuple(uniforms.shape))

    def _chosen(self, plan: Plan, policy: SimulatedPolicy, states: Any, uniforms: Any) -> Any:
        """Actions (n,) of a policy in states (n, ...), drawn by uniform numbers (n,)."""
        xp = self.arrays.xp
        if policy.steps is not None:
            wide = xp.int32 if self.arrays.on_gpu else xp.int64  # the faster type of indices
            rows = xp.astype(states, wide, copy=False)
            narrow = xp.int8 if policy.steps.shape[0] < 128 else xp.int16  # less to move
            chosen = xp.zeros_like(rows, dtype=narrow)
            for action in range(policy.steps.shape[0]):
                passed = self.arrays.take(policy.steps[action, ...], rows) <= uniforms
                chosen = chosen + xp.astype(passed, narrow)
            return xp.astype(chosen, self.action_type, copy=False)
        parts, _ = self._checked(plan, "policy", partial(self._answered, policy.source), states)
        if "probabilities" in parts:
            probs = xp.astype(parts["probabilities"], xp.float64, copy=False)
            steps = xp.cumulative_sum(probs.T, axis=0)
            passed = steps[:-1, :] <= uniforms * steps[-1, :]
            parts["actions"] = xp.count_nonzero(passed, axis=0)
        return xp.astype(parts["actions"], self.action_type, copy=False)

    def _checked(
        self, plan: Plan, what: str, function: Callable[..., dict[str, Any]], *given: Any
    ) -> tuple[dict[str, Any], Ends]:
        """Results of a function of rows, by name; raises if one is not admissible.

        Also returns the smallest and the largest value of the first result.
        """
        xp = self.arrays.xp
        parts = function(*given)
        seen: list[Ends] = []
        for name, part in parts.items():
            low, high, kind = plan.prepared[name]
            if not xp.isdtype(part.dtype, kind):
                raise SimulatorError(f"{what} returned {name} of dtype {part.dtype}, not {kind}")
            if math.isinf(high) and not xp.isdtype(part.dtype, "real floating"):
                continue  # any number is admissible
            seen.append((float(xp.min(part)), float(xp.max(part))))
            if low <= seen[-1][0] <= seen[-1][1] <= high:  # false for nan
                continue
            values = self.arrays.host(part)
            row, where = _first_bad(self.arrays, (low <= values) & (values <= high), given)
            raise SimulatorError(
                f"{what} returned {name} {values[row]}, which is not between {low:.4g} and "
                f"{high:.4g} ({where})"
            )
        return parts, seen[0]

    def _shaped(self, what: str, part: Any, shape: tuple[int, ...]) -> None:
        """Raise unless this is an array of this shape, of the library of the states."""
        checks.unmasked(what, part)
        got = getattr(part, "shape", None)
        alike = array_api_compat.is_torch_array(part) == self.arrays.is_torch
        if got is None or tuple(got) != shape or not alike:
            raise SimulatorError(
                f"{what} must be an array {shape} of the same library as state=, "
                f"{type(self.here)}, got {type(part)} {part if got is None else tuple(got)}"
            )

    def _outcomes(self, states: Any, actions: Any, noise: Any) -> dict[str, Any]:
        """Result of a step from states (n, ...), actions (n,) and noise (n, ...), by name."""
        what = "step(states, actions, noise)"
        answer = _called(what, self.simulator.step, states, actions, noise)
        if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
            raise SimulatorError(
                f"{what} must return rewards and next states, or rewards, next states and over, "
                f"got {type(answer).__name__}"
            )
        parts = dict(zip(("rewards", "next_states", "over"), answer, strict=False))
        for name, part in parts.items():
            like = states if name == "next_states" else actions
            self._shaped(f"{name} of a step", part, tuple(like.shape))
        return parts

    def _answered(self, function: Callable[[Any], Any], states: Any) -> dict[str, Any]:
        """Actions (n,), or probabilities (n, A), that a policy returns for states (n, ...)."""
        answer = _called("policy(states)", function, checks.read_only(states))
        size = states.shape[0]
        if getattr(answer, "shape", None) == (size,):
            self._shaped("actions of policy(states)", answer, (size,))
            return {"actions": answer}
        what = f"policy(states), unless it returns actions ({size},),"
        self._shaped(what, answer, (size, self.num_actions))
        return {"probabilities": answer, "sums": self.arrays.xp.sum(answer, axis=1)}


class _Trial(VectorWorld):
    """Calls functions of rows twice: first for half of the rows, in reverse order."""

    def _checked(
        self, plan: Plan, what: str, function: Callable[..., dict[str, Any]], *given: Any
    ) -> tuple[dict[str, Any], Ends]:
        """Raise if a row depends on other rows, or if the function writes to a row."""
        arrays = self.arrays
        order = arrays.put(np.arange(given[0].shape[0] // 2)[::-1].copy())
        some = [arrays.take(part, order) for part in given]
        second = function(*some) | {"states": arrays.take(given[0], order)}
        answer = super()._checked(plan, what, function, *given)
        first = answer[0] | {"states": given[0]}
        for name, part in second.items():
            same = arrays.take(first[name], order)
            one, two = (arrays.host(x).astype(float) for x in (part, same))
            largest = np.abs(one).max(initial=0.0, where=np.isfinite(one))
            close = np.isclose(one, two, rtol=0.0, atol=_SAME * largest, equal_nan=True)
            if not close.all():
                row, where = _first_bad(arrays, close, some)
                raise SimulatorError(
                    f"{what} must be pure, not write into states, and no row may depend on another "
                    f"one, but {name} were {one[row]} and then {two[row]} ({where})"
                )
        return answer


def _first_bad(arrays: Arrays, good: Any, given: Sequence[Any]) -> tuple[int, str]:
    """Index of the first bad row, and a text with its state, action and draw."""
    row = int(good.reshape(len(good), -1).all(1).argmin())
    named = zip(("state", "action", "draw"), given, strict=False)
    return row, ", ".join(f"{name} {arrays.host(part)[row]}" for name, part in named)
