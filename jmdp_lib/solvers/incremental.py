"""Incremental JIPE-2 (Theorem 5.4): learning the moments one sampled coordinate at a time.

    M(i) <- (1 - alpha) M(i) + alpha hat T_2(M, i)        for the coordinate i = I_k, eq. (28)

The coordinates live in one vector, in one of two layouts:

    full        mu(x), Sigma(x, y) for all state-actions x, y: the paper's, X + X^2 coordinates
    collapsed   mu(s, a), Sigma(s, a, s, b) and, between states, only the policy average W(s, t);
                the next action is averaged over instead of drawn
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.memory import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments
from jmdp_lib.norms import norm_weight
from jmdp_lib.operators import sampled_kernels as kernels
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.operators.sampled import Simulator, choose, sample_collapsed, sample_t2
from jmdp_lib.sampling import alias_tables, cells, cumulative, stream
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution, progress
from jmdp_lib.solvers.schedules import StepSize, selection_weights

FORMS = ("full", "collapsed")
_BETWEEN_BARS = 1_000_000  # compiled updates between looks at the progress bar and at Ctrl-C
_PROBED, _BACKUPS = 64, 32  # coordinates, and backups of each, that estimate a residual by sampling


@dataclass(frozen=True, repr=False, eq=False)
class IncrementalSolution(Solution):
    """A Solution by sampling. `residuals` and `errors` belong to `updates`.

    residuals: ||M - T_2 M||_lambda at each checkpoint: exact where the tables are known. For a
        simulator, an estimate: the largest mean TD error over 64 random coordinates, 32 backups
        each; it is noisy, and error_bound is then nan.
    iterations: updates made in all, resumed runs included.

    Attributes:
        updates: (checkpoints,) updates made before each.
        errors: (checkpoints,) ||M - reference||_lambda, nan without a reference.
        values, visits: the coordinates and how often each was updated; `form` says their layout.
        rng_state: where the random stream stands.
    """

    updates: Ints
    errors: Floats
    values: Floats
    visits: Ints
    form: str
    rng_state: Mapping[str, Any]


def incremental_jipe2(
    simulator: Simulator,
    policy: ArrayLike,
    num_updates: int,
    step_size: StepSize | tuple[float, float] | float = StepSize(),  # noqa: B008 (immutable)
    seed: int | np.random.SeedSequence = 0,
    initial: IncrementalSolution | Moments | tuple[ArrayLike, ArrayLike] | None = None,
    selection: str | Mapping[str, float] | ArrayLike = "uniform",
    form: str = "full",
    checkpoints: int | Sequence[int] = 20,
    reference: Moments | None = None,
    tol: float = 0.0,
    on_interrupt: str = "raise",
) -> IncrementalSolution:
    """First and second moments from samples alone.

    simulator: a JMDP (compiled), or any object with num_states, num_actions, gamma and
        query(state, actions, rng) -> (rewards, next_states); norms take |R| <= 1 unless it also
        has a reward_bound.
    step_size: per visit of a coordinate; (scale, power) for scale / visits^power.
    initial: M_0; zero unless given. An earlier result is continued, random stream and all.
    selection: see `schedules.selection_weights`.
    checkpoints: how many, spread evenly on a log scale, or the update counts themselves.
    reference: the exact moments, if known, to record errors against.
    tol: stop at a checkpoint whose error bound is this small.
    on_interrupt: "return" gives back what was learned up to Ctrl-C instead of raising.
    """
    learner = _Learner.of(simulator, policy, checks.one_of("form", form, FORMS))
    num_updates = checks.at_least("num_updates", num_updates, 1)
    step = StepSize.of(step_size)
    checks.one_of("on_interrupt", on_interrupt, ("raise", "return"))
    weights = selection_weights(selection, learner.blocks)
    values, visits, before, rng = learner.start(initial, seed)
    stops = spread_stops(checkpoints, num_updates)
    update = learner.updater(values, visits, step, weights, rng)
    truth = None if reference is None else learner.pack(reference.mean, reference.full_second())
    history: list[tuple[int, float, float]] = []
    done, bound = 0, np.nan
    with progress(num_updates, "incremental JIPE-2") as bar:
        try:
            for stop in stops:
                while done < stop:
                    chunk = min(stop - done, learner.chunk)
                    update(chunk)
                    done += chunk
                    bar.update(chunk)
                residual, bound = learner.residual(values, stream(seed, 1 + before + done))
                error = np.nan if truth is None else learner.norm(values - truth)
                history.append((before + done, residual, error))
                if bound <= tol:
                    break
        except KeyboardInterrupt:
            if on_interrupt == "raise":
                raise
            residual, bound = learner.residual(values, stream(seed, 1 + before + done))
            error = np.nan if truth is None else learner.norm(values - truth)
            history.append((int(visits.sum()), residual, error))
    if tol > 0.0 and not bound <= tol:
        warnings.warn(
            f"incremental JIPE-2 stopped after {history[-1][0]} updates with error bound "
            f"{bound:.3g} > tol = {tol:.3g}", ConvergenceWarning, stacklevel=2,
        )  # fmt: skip
    updates, residuals, errors = (np.array(column) for column in zip(*history, strict=True))
    return IncrementalSolution(
        learner.moments(values, bound), residuals, bool(bound <= tol), float(bound),
        int(updates[-1]), updates.astype(np.int64), errors, values, visits, form,
        rng.bit_generator.state,
    )  # fmt: skip


@dataclass(frozen=True)
class _Learner:
    """A simulator, a policy and a layout of the coordinates."""

    simulator: Simulator
    policy: Floats
    form: str
    blocks: Ints

    @classmethod
    def of(cls, simulator: Simulator, policy: ArrayLike, form: str) -> _Learner:
        matrix = check_simulator(simulator, policy)
        size = (
            matrix.size**2
            if form == "full"
            else matrix.shape[0] * (matrix.shape[1] ** 2 + len(matrix))
        )
        require(8 * 8 * size, f"incremental JIPE-2 in the form {form!r} with {size:,} coordinates")
        blocks = (kernels.full_blocks if form == "full" else kernels.collapsed_blocks)(
            *matrix.shape
        )
        return cls(simulator, matrix, form, blocks)

    @property
    def chunk(self) -> int:
        return _BETWEEN_BARS if isinstance(self.simulator, JMDP) else 1000

    def start(
        self, initial: Any, seed: int | np.random.SeedSequence
    ) -> tuple[Floats, Ints, int, np.random.Generator]:
        """Coordinates, visits, updates made before, and the random stream."""
        rng = stream(seed, 0)
        if isinstance(initial, IncrementalSolution):
            if initial.form != self.form or initial.values.size != self.blocks.size:
                raise ValueError(
                    f"initial was learned in the form {initial.form!r} with {initial.values.size} "
                    f"coordinates; this run is {self.form!r} with {self.blocks.size}"
                )
            rng.bit_generator.state = initial.rng_state
            return initial.values.copy(), initial.visits.copy(), initial.iterations, rng
        visits = np.zeros(self.blocks.size, dtype=np.int64)
        if initial is None:
            return np.zeros(self.blocks.size), visits, 0, rng
        if isinstance(initial, Solution):
            initial = initial.moments
        if isinstance(initial, Moments):
            initial = (initial.mean, initial.full_second())
        mean, second = initial
        start = checks.collection("initial", mean, second, self.simulator)
        return self.pack(*start), visits, 0, rng

    def pack(self, mean: Floats, second: Floats) -> Floats:
        """The vector of coordinates of M = (mean, second)."""
        if self.form == "full":
            return np.concatenate([mean.ravel(), second.ravel()])
        cross = np.einsum("sa,satb,tb->st", self.policy, second, self.policy)
        np.fill_diagonal(cross, 0.0)
        same = np.einsum("sasb->sab", second)
        return np.concatenate([mean.ravel(), same.ravel(), cross.ravel()])

    def unpack(self, values: Floats) -> tuple[Floats, ...]:
        """Views: (mean, second) of the full layout, (mean, blocks, cross) of the collapsed one."""
        num_states, num_actions = shape = self.policy.shape
        mean, rest = values[: self.policy.size].reshape(shape), values[self.policy.size :]
        if self.form == "full":
            return mean, rest.reshape(shape + shape)
        split = num_states * num_actions**2
        blocks = rest[:split].reshape(num_states, num_actions, num_actions)
        return mean, blocks, rest[split:].reshape(num_states, num_states)

    def updater(
        self, values: Floats, visits: Ints, step: StepSize, weights: Floats,
        rng: np.random.Generator,
    ) -> Any:  # fmt: skip
        """A function that makes `count` updates in place."""
        threshold, alias = alias_tables(np.array([0, weights.size]), weights)
        cell, jm = cells(alias), self.simulator
        if isinstance(jm, JMDP):
            cdf = np.cumsum(self.policy, axis=1).ravel()
            tables = (jm.starts, cumulative(jm.starts, jm.probs), jm.rewards, jm.next_states, cdf)
            run = kernels.full_updates if self.form == "full" else kernels.collapsed_updates
            form = jm.num_actions if self.form == "full" else self.policy
            fixed: Any = (step.scale, step.power, threshold, cell, jm.gamma, form, *tables)
            return lambda count: run(rng, count, values, visits, *fixed)

        def update(count: int) -> None:
            for _ in range(count):
                u = rng.random() * weights.size
                i = int(u)
                i = cell[2 * i + int(u - i >= threshold[i])]
                target = self.backup(values, int(i), rng)
                visits[i] += 1
                values[i] += step.scale * float(visits[i]) ** -step.power * (target - values[i])

        return update

    def backup(self, values: Floats, i: int, rng: np.random.Generator) -> float:
        """A draw of hat T_2(M, i) through the simulator."""
        num_states, num_actions = self.policy.shape
        num = self.policy.size
        if i < num:
            coordinate = [divmod(i, num_actions)]
        elif self.form == "full":
            coordinate = [divmod(x, num_actions) for x in divmod(i - num, num)]
        elif i < num + num * num_actions:
            x, b = divmod(i - num, num_actions)
            s, a = divmod(x, num_actions)
            coordinate = [(s, a), (s, b)]
        else:
            s, t = divmod(i - num - num * num_actions, num_states)
            coordinate = [(s, choose(self.policy, s, rng)), (t, choose(self.policy, t, rng))]
        if self.form == "full":
            mean, second = self.unpack(values)
            return sample_t2(self.simulator, self.policy, mean, second, coordinate, rng)
        mean, blocks, cross = self.unpack(values)
        return sample_collapsed(self.simulator, self.policy, mean, blocks, cross, coordinate, rng)

    def norm(self, difference: Floats) -> float:
        """||.||_lambda of a difference of coordinates."""
        bound = getattr(self.simulator, "reward_bound", 1.0)
        weight = norm_weight(2, self.simulator.gamma, bound)
        size = np.abs(difference)
        return float(max(size[: self.policy.size].max(), size[self.policy.size :].max() / weight))

    def residual(self, values: Floats, rng: np.random.Generator) -> tuple[float, float]:
        """||M - T_2 M||_lambda and the error bound, or an estimate and nan."""
        if isinstance(self.simulator, JMDP):
            operator, state = self.pair_state(values)
            residual = operator.distance(operator.apply(state), state)
            return residual, residual / (1.0 - self.simulator.gamma)
        errors = np.zeros(values.size)
        used = np.flatnonzero(self.blocks >= 0)
        for i in rng.choice(used, min(_PROBED, used.size), replace=False):
            targets = [self.backup(values, int(i), rng) for _ in range(_BACKUPS)]
            errors[i] = np.mean(targets) - values[i]
        return self.norm(errors), np.nan

    def pair_state(self, values: Floats) -> tuple[PairOperator, PairState]:
        """The same collection in centred coordinates, and the exact operator on it."""
        assert isinstance(self.simulator, JMDP)
        operator = PairOperator(self.simulator, self.policy, keep_actions=self.form == "full")
        if self.form == "full":
            return operator, operator.centre(*self.unpack(values))
        mean, blocks, cross = self.unpack(values)
        value = (self.policy * mean).sum(1)
        centred = np.where(operator.same_state, 0.0, cross - np.outer(value, value))
        return operator, PairState(
            mean.copy(), blocks - mean[:, :, None] * mean[:, None, :], centred
        )

    def moments(self, values: Floats, bound: float) -> Moments:
        """What was learned. Where an error bound is known, what it leaves open counts as zero;
        from a plain simulator the statistics are plug-in estimates."""
        if isinstance(self.simulator, JMDP):
            operator, state = self.pair_state(values)
            source: Any = PairSource(operator, state)
            mean, blocks = state.mean.copy(), state.blocks
        else:
            parts = self.unpack(values)
            mean = parts[0].copy()
            same = np.einsum("sasb->sab", parts[1]) if self.form == "full" else parts[1]
            blocks = same - mean[:, :, None] * mean[:, None, :]
            source = LearnedSource(
                mean, same.copy(), parts[1].copy() if self.form == "full" else None
            )
        known = float(np.nan_to_num(bound))
        resolution = 2.0 * known / np.sqrt(1.0 - self.simulator.gamma**2)
        return Moments(2, mean, blocks, source, known, float(resolution))


@dataclass(frozen=True)
class LearnedSource:
    """Second moments as they were learned: mean (S, A), same-state (S, A, A), all or none."""

    mean: Floats
    same: Floats
    second: Floats | None

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """mu(s, a) or Sigma(s, a, t, b)."""
        (s, a), (t, b) = coordinates[0], coordinates[-1]
        if len(coordinates) == 1:
            return float(self.mean[s, a])
        return float(self.same[s, a, b] if s == t else self.full_second()[s, a, t, b])

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        if self.second is None:
            raise ValueError(
                'form="collapsed" on a simulator learns only policy averages between states; '
                'use form="full"'
            )
        return self.second


def check_simulator(simulator: Simulator, policy: ArrayLike) -> Floats:
    """The policy as a matrix, once the simulator has all that is asked of it."""
    for name in ("num_states", "num_actions", "gamma", "query"):
        if not hasattr(simulator, name):
            raise ValueError(f"simulator {simulator!r} has no `{name}`")
    checks.at_least("simulator.num_states", simulator.num_states, 1)
    checks.at_least("simulator.num_actions", simulator.num_actions, 1)
    checks.discount(simulator.gamma)
    return checks.policy_matrix(simulator, policy)


def spread_stops(checkpoints: int | Sequence[int], num_updates: int) -> list[int]:
    """Update counts to stop at: so many, evenly on a log scale, or as given; always the last."""
    if isinstance(checkpoints, int | np.integer):
        count = checks.at_least("checkpoints", int(checkpoints), 1)
        chosen = np.geomspace(min(100, num_updates), num_updates, count).round().astype(int)
    else:
        chosen = checks.integers("checkpoints", checkpoints, "checkpoint")
        if chosen.min() < 1 or chosen.max() > num_updates:
            raise ValueError(f"checkpoints must lie in 1..{num_updates}, got {list(chosen)}")
    return sorted({int(stop) for stop in chosen} | {num_updates})
