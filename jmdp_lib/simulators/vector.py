"""Vectorised simulators: a step of many states at once, and their player.

`VectorSimulator` is what a user makes. Every call of the user's functions goes through `_drawn`,
`_stepped` and `_answers`, which check the number of results and their shapes. `outside` names the
first row whose numbers are not proper.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from jmdp_lib import checks, randomness
from jmdp_lib.model.simulator import ANY_REWARD, SimulatorError, declared_range
from jmdp_lib.policies import SAME_POLICY, Policy
from jmdp_lib.simulators.batch import Arrays, BatchPlayer, Columns, Played, policy_table
from jmdp_lib.simulators.plans import Chunk, Plan, PlayedPolicy

_SPOT = 16  # rows that are asked for twice
_ALIKE = SAME_POLICY  # of the largest number: answers that differ by less are rounded
_REAL = ("bool", "integral", "real floating")
_ROUNDED = 1e-6  # of the largest reward, since rewards may be float32
_CHUNK = 2**16  # runs per random stream: few enough for the caches of a processor
_GPU_CHUNK = 2**25  # numbers in the states of these: enough to keep a GPU busy, with three GiB


@dataclass(frozen=True, eq=False)
class VectorSimulator:
    """A simulator that steps many states at once, as arrays of NumPy, torch, or another library.

    `estimate_gaps`, `compare_actions` and `compare_policies` play many runs at once. The state that
    they start from says which library is used, and on which device: a plain number, or a list,
    means NumPy. Policies are probabilities (S, A), actions (S,), or a function of the states,
    policy(states) -> (n, A) probabilities or (n,) actions.

    Args:
        step: step(states, actions, noise) -> rewards, next_states, or rewards, next_states, over,
            all with first axis n. States are integers (n,) or rows (n, d) of numbers; two states
            are equal if all their numbers are. over: (n,) bools, whether the episode ended. It must
            be pure, and no row may depend on another one.
        draw: draw(n, rng) -> the noise of n steps, an array, first axis n. rng is a NumPy
            generator, or one of torch if the states are tensors, on their device.
        num_actions: A; actions are integers from 0 to A - 1.
        gamma: discount factor in [0, 1]; 1 needs a `horizon` where it is played.
        reward_range: (lo, hi) that holds all rewards, if it is known. Decisions rely on it.
        num_states: S, if states are the integers from 0 to S - 1: any other one is refused.

    Raises:
        ValueError: an argument makes no sense. What the functions return is checked as it is used.

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


def called(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the user's returns."""
    try:
        return function(*given)
    except Exception as error:
        raise SimulatorError(f"{what} failed: {error!r}") from error


def outside(values: NDArray[Any], ends: tuple[float, float], given: Sequence[Any]) -> str:
    """The first row of values (n, ...) that are not between two ends, and where it came from.

    given: states (n, ...) and, of a step, actions (n,).
    """
    low, high = ends
    inside = (low <= values) & (values <= high)
    row = np.flatnonzero(~inside.reshape(len(values), -1).all(1))[0]
    where = ", action ".join(str(x[row]) for x in given)
    return f"[{row}] = {values[row]}, which is not from {low:.4g} to {high:.4g} (state {where})"


def check_alone(
    arrays: Arrays, what: str, function: Callable[..., dict[str, Any]], given: Sequence[Any]
) -> None:
    """Refuse a function of rows if one comes out differently among others, or when asked again."""
    rows = np.random.default_rng(0).permutation(given[0].shape[0])[:_SPOT]
    index = arrays.put(rows)

    def some(part: Any) -> Any:
        return arrays.take(part, index)

    alone = function(*map(some, given)) | {"states": some(given[0])}
    whole = function(*given) | {"states": given[0]}
    for name, part in alone.items():
        first, second = (arrays.host(x).astype(np.float64) for x in (part, some(whole[name])))
        size = np.abs(first).max(initial=0.0, where=np.isfinite(first))
        close = np.isclose(first, second, rtol=0.0, atol=_ALIKE * size, equal_nan=True)
        for k in np.flatnonzero(~close.reshape(len(rows), -1).all(1))[:1]:
            raise SimulatorError(
                f"{what} must be pure, not write into states, and no row may depend on another "
                f"one, but {name}[{rows[k]}] was {first[k]} and then {second[k]}"
            )


class VectorPlayer(BatchPlayer):
    """Plays a `VectorSimulator`.

    The smallest and the largest values of every step are looked at, and the first bad row is named.

    where: the state where all branches start, as an array () or (d,). known: of what functions
    of the user's return, by names, between which ends numbers lie, and of which kind they are.
    trial: whether rows are asked for twice.
    """

    known: dict[str, tuple[float, float, Any]]
    trial = False
    at_once = True

    def __init__(self, simulator: VectorSimulator, state: Any) -> None:
        self.where = state if array_api_compat.is_array_api_obj(state) else np.asarray(state)
        if len(self.where.shape) > 1 or str(self.where.dtype) == "object":
            raise ValueError(f"state must be a number, or a row (d,) of numbers, got {state!r}")
        self.simulator = simulator
        self.num_actions = simulator.num_actions
        self.num_states = simulator.num_states
        self.limits = simulator.reward_range
        self.columns = Arrays.of(self.where)
        on_gpu = _GPU_CHUNK // max(1, math.prod(self.where.shape))
        self.chunk_size = on_gpu if self.columns.on_gpu else _CHUNK
        # Small states have small actions: then less is moved.
        whole = self.columns.xp.isdtype(self.where.dtype, "integral")
        self.action_type = self.where.dtype if whole else self.columns.xp.int64

    def checked_policy(self, policy: Policy) -> Any:
        if callable(policy):
            return PlayedPolicy(policy)
        table = policy_table(policy, self.num_actions, self.num_states)
        self.num_states = len(table)
        steps = np.ascontiguousarray(table.cumsum(1).T[:-1], self.columns.number_type)
        return PlayedPolicy(table, self.columns.put(steps))

    def tried(self, plan: Plan) -> Plan:
        """If the start is a state, and after two equal draws and a few steps of a few runs."""
        count = self.num_states
        if count is not None:
            if self.where.shape or not self.columns.xp.isdtype(self.where.dtype, "integral"):
                raise ValueError(
                    f"states must be integers from 0 to {count - 1}, since the simulator or the "
                    f"policy has so many of them; got state {self.where!r}"
                )
            checks.index("state", int(self.where), count)

        few = plan.settings._replace(horizon=min(plan.settings.horizon, 3))
        trial = copy.copy(self)
        trial.trial = True

        def noise() -> Any:
            trial.noise = self.columns.generator(np.random.SeedSequence(0))
            return self.columns.host(trial._drawn(16))

        randomness.pure("draw(n, rng)", noise)
        seed = np.random.SeedSequence(0, spawn_key=(0,))
        with randomness.no_global_draws("step or policy", "whose draws are not shared"):
            trial.play(Chunk(replace(plan, settings=few), seed, 32))
        return plan

    def _check(self, what: str, part: Any, shape: tuple[int, ...]) -> None:
        """Refuse what is no array of this shape, of the library of the states."""
        checks.unmasked(what, part)
        got = getattr(part, "shape", None)
        if got is None or tuple(got) != shape:
            shown = repr(part) if got is None else f"shape {tuple(got)}"
            raise SimulatorError(f"{what} must be an array of shape {shape}, got {shown}")
        if array_api_compat.is_torch_array(part) != self.columns.is_torch:
            raise SimulatorError(
                f"{what} must be an array of the same library as state=, which gave "
                f"{type(self.where)}, got {type(part)}"
            )

    def _drawn(self, size: int) -> Any:
        """The noise of so many steps."""
        what = f"draw({size}, rng)"
        noise = called(what, self.simulator.draw, size, self.noise)
        self._check(what, noise, (size, *getattr(noise, "shape", ())[1:]))
        return noise

    def _stepped(self, states: Any, actions: Any, noise: Any) -> dict[str, Any]:
        """What a step makes of states (n, ...) and actions (n,), by names."""
        answer = called("step(states, actions, noise)", self.simulator.step, states, actions, noise)
        if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
            raise SimulatorError(
                "step(states, actions, noise) must return rewards and next states, or rewards, "
                f"next states and over, got {type(answer).__name__}"
            )
        found = dict(zip(("rewards", "next_states", "over"), answer, strict=False))
        for name, part in found.items():
            like = states if name == "next_states" else actions
            self._check(f"{name} of a step", part, tuple(like.shape))
        return found

    def _ask(self, what: str, function: Callable[..., dict[str, Any]], *given: Any) -> Any:
        """What a function of rows returns, by names; refused if it is not allowed."""
        xp = self.columns.xp
        if self.trial:
            check_alone(self.columns, what, function, given)
        found = function(*given)
        for name, part in found.items():
            low, high, kind = self.known[name]
            if not xp.isdtype(part.dtype, kind):
                raise SimulatorError(f"{what} returned {name} of dtype {part.dtype}, not {kind}")
            if math.isinf(high) and not xp.isdtype(part.dtype, "real floating"):
                continue  # whatever it is, it is a number
            ends = (float(xp.min(part)), float(xp.max(part)))
            if name == "rewards":
                self.extremes = (min(self.extremes[0], ends[0]), max(self.extremes[1], ends[1]))
            if not low <= ends[0] <= ends[1] <= high:  # one that is no number is not, either
                values, *sources = map(self.columns.host, (part, *given[:2]))
                row = outside(values, (low, high), sources)
                raise SimulatorError(f"{what} returned {name}{row}")
        return found

    def begin(self, chunk: Chunk) -> None:
        low, high = self.limits or ANY_REWARD
        slack = _ROUNDED * max(-low, high) if self.limits else 0.0
        count = self.num_states
        anything = (-math.inf, math.inf, _REAL)
        self.known = {
            "rewards": (low - slack, high + slack, _REAL),
            "next_states": (0, count - 1, "integral") if count else anything,
            "over": (-math.inf, math.inf, "bool"),
            "actions": (0, self.num_actions - 1, "integral"),
            "probabilities": (0.0, math.inf, _REAL),
            "sums": (1.0 - _ALIKE, 1.0 + _ALIKE, _REAL),
        }

    def starts(self, width: int, size: int) -> Columns:
        return [self.columns.xp.broadcast_to(self.where, (size, *self.where.shape))] * width

    def first(self, actions: Sequence[Any], size: int) -> Columns:
        first = self.columns.xp.astype(self.columns.put(np.array(actions)), self.action_type)
        return [self.columns.xp.broadcast_to(first[j], (size,)) for j in range(len(actions))]

    def step(self, sharing: Columns) -> Played:
        xp = self.columns.xp
        rows = (xp.concat(self.states), xp.concat(self.actions), self._noise(sharing))
        found = self._ask("step", self._stepped, *rows)
        found["rewards"] = xp.astype(found["rewards"], xp.float64, copy=False)
        names = ("rewards", "next_states", "over")
        rewards, states, over = (name in found and self._by_branch(found[name]) for name in names)
        return rewards, states, over or None, None, None

    def _by_branch(self, rows: Any) -> list[Any]:
        """Rows (m * n, ...) as m columns."""
        return self.columns.rows(self.columns.xp.reshape(rows, (self.width, -1, *rows.shape[1:])))

    def _noise(self, sharing: Columns) -> Any:
        """(m * n, ...) noise: which branches share a draw is said by the coupling."""
        xp = self.columns.xp
        if self.coupling.across_states:
            return xp.concat([self._drawn(self.size)] * self.width)
        noise = self._by_branch(self._drawn(self.width * self.size))
        return xp.concat(self.columns.follow(sharing, noise))

    def choose(self, uniforms: Columns) -> Columns:
        chosen = map(self._choose, self.policies, self.states, uniforms)
        return [self.columns.xp.astype(x, self.action_type, copy=False) for x in chosen]

    def _choose(self, policy: Any, states: Any, uniforms: Any) -> Any:
        """(n,) actions of a policy in states (n, ...), by as many uniform numbers."""
        xp = self.columns.xp
        if policy.steps is not None:
            wide = xp.int32 if self.columns.on_gpu else xp.int64  # as each takes rows fastest
            rows = xp.astype(states, wide, copy=False)
            narrow = xp.int8 if policy.steps.shape[0] < 128 else xp.int16  # little is moved
            chosen = xp.zeros_like(rows, dtype=narrow)
            for action in range(policy.steps.shape[0]):
                passed = self.columns.take(policy.steps[action, ...], rows) <= uniforms
                chosen = chosen + xp.astype(passed, narrow)
            return chosen
        found = self._ask("policy", partial(self._answers, policy.source), states)
        if "actions" in found:
            return found["actions"]
        probs = xp.astype(found["probabilities"], xp.float64, copy=False)
        steps = xp.cumulative_sum(probs.T, axis=0)
        return xp.count_nonzero(steps[:-1, :] <= uniforms * steps[-1, :], axis=0)

    def _answers(self, function: Callable[[Any], Any], states: Any) -> dict[str, Any]:
        """What a policy says of states (n, ...): actions (n,), or probabilities (n, A)."""
        xp = self.columns.xp
        answer = called("policy(states)", function, checks.read_only(states))
        size = states.shape[0]
        shape = tuple(getattr(answer, "shape", ()))
        if shape:
            self._check("policy(states)", answer, shape)
        if shape == (size,) and xp.isdtype(answer.dtype, "integral"):
            return {"actions": answer}
        if shape == (size, self.num_actions):
            return {"probabilities": answer, "sums": xp.sum(answer, axis=1)}
        what = f"shape {shape} of {answer.dtype}" if shape else repr(answer)
        raise SimulatorError(
            f"policy(states) must return probabilities ({size}, {self.num_actions}) or integer "
            f"actions ({size},) for {size} states, got {what}"
        )
