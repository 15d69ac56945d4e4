"""What an incremental run learns: a simulator, a policy and a layout of the coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, norm_weight
from jmdp_lib.operators import sampled_kernels as kernels
from jmdp_lib.operators.pairs import PairOperator, PairSource, PairState
from jmdp_lib.operators.sampled import choose, draw_t2, sample_collapsed
from jmdp_lib.sampling import alias_tables, cells, cumulative
from jmdp_lib.simulators import Simulator, check_simulator
from jmdp_lib.solvers.fixed_point import Solution
from jmdp_lib.solvers.schedules import StepSize

FORMS = ("full", "collapsed", "centred")
_PROBED, _BACKUPS = 64, 32  # coordinates, and backups of each, that estimate a residual by sampling


@dataclass(frozen=True)
class Learner:
    """A simulator, a policy and a layout of the coordinates."""

    simulator: Simulator
    policy: Floats
    form: str
    blocks: Ints

    @classmethod
    def of(cls, simulator: Simulator, policy: ArrayLike, form: str) -> Learner:
        matrix = check_simulator(simulator, policy)
        num_states, num_actions = matrix.shape
        full, thin = matrix.size**2, num_states * (num_actions**2 + num_states)
        size = full if checks.one_of("form", form, FORMS) == "full" else thin
        require(8 * 8 * size, f"incremental JIPE-2 in the form {form!r} with {size:,} coordinates")
        layout = kernels.full_blocks if form == "full" else kernels.collapsed_blocks
        return cls(simulator, matrix, form, layout(num_states, num_actions))

    @property
    def chunk(self) -> int:
        """Updates between looks at the progress bar, and at Ctrl-C."""
        return 1_000_000 if isinstance(self.simulator, JMDP) else 1_000

    def start(self, initial: Any) -> Floats:
        """The coordinates of M_0: zero, a collection, or arrays (S, A) and (S, A, S, A)."""
        if initial is None:
            return np.zeros(self.blocks.size)
        if isinstance(initial, Solution):
            initial = initial.moments
        if isinstance(initial, Moments):
            initial = (initial.mean, initial.full_second())
        if not isinstance(initial, tuple) or len(initial) != 2:
            raise ValueError(f"initial must be moments or (mean, second), got {initial!r}")
        mean, second = initial
        return self.pack(*checks.collection("initial", mean, second, self.simulator))

    def pack(self, mean: Floats, second: Floats) -> Floats:
        """The vector of coordinates of M = (mean, second)."""
        if self.form == "full":
            return np.concatenate([mean.ravel(), second.ravel()])
        cross = np.einsum("sa,satb,tb->st", self.policy, second, self.policy)
        np.fill_diagonal(cross, 0.0)
        same = np.einsum("sasb->sab", second)
        raw = np.concatenate([mean.ravel(), same.ravel(), cross.ravel()])
        return raw - self.products(mean) if self.form == "centred" else raw

    def products(self, mean: Floats) -> Floats:
        """What the second moments of the collapsed layout exceed the covariances by."""
        value = (self.policy * mean).sum(1)
        between = np.outer(value, value) * ~np.eye(len(value), dtype=bool)
        same = mean[:, :, None] * mean[:, None, :]
        return np.concatenate([np.zeros(mean.size), same.ravel(), between.ravel()])

    def centred(self, values: Floats) -> Floats:
        """The collapsed coordinates with covariances, whatever the form."""
        return values if self.form == "centred" else values - self.products(self.unpack(values)[0])

    def raw(self, values: Floats) -> Floats:
        """The coordinates with second moments, whatever the form."""
        return values + self.products(self.unpack(values)[0]) if self.form == "centred" else values

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
            thin = (self.policy, self.form == "centred")
            form = (jm.num_actions,) if self.form == "full" else thin
            fixed: Any = (step.scale, step.power, threshold, cell, jm.gamma, *form, *tables)
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
            return draw_t2(self.simulator, self.policy, mean, second, coordinate, rng)
        mean, blocks, cross = self.unpack(values)
        parts = (self.simulator, self.policy, mean, blocks, cross, coordinate, rng)
        return sample_collapsed(*parts, centred=self.form == "centred")

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
        mean, blocks, cross = (part.copy() for part in self.unpack(self.centred(values)))
        return operator, PairState(mean, blocks, cross)

    def moments(self, values: Floats, bound: float) -> Moments:
        """What was learned: plug-in estimates; see `plug_in_resolution` for what counts as zero."""
        if isinstance(self.simulator, JMDP):
            operator, state = self.pair_state(values)
            source: Any = PairSource(operator, state)
            mean, blocks = state.mean.copy(), state.blocks
        else:
            parts = self.unpack(self.raw(values))
            mean = parts[0].copy()
            same = np.einsum("sasb->sab", parts[1]) if self.form == "full" else parts[1]
            blocks = same - mean[:, :, None] * mean[:, None, :]
            source = LearnedSource(
                mean, same.copy(), parts[1].copy() if self.form == "full" else None
            )
        resolution = plug_in_resolution(bound, self.simulator.gamma)
        return Moments(2, mean, blocks, source, float(np.nan_to_num(bound)), resolution)


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
                'only form="full" learns moments between states from a simulator; the others '
                "learn their policy averages"
            )
        return self.second


def plug_in_resolution(bound: float, gamma: float) -> float:
    """Standard deviations that means within `bound` (nan: unknown) may give a constant return.

    Smaller ones count as zero. Learned second moments are as they are: they may be off by more.
    """
    return float(2.0 * np.nan_to_num(bound) / np.sqrt(1.0 - gamma**2))


def known_moments(
    reference: Solution | Moments | None, shape: tuple[int, ...], order: int
) -> Moments | None:
    """The moments to record errors against, if they are of this model and order."""
    found = reference.moments if isinstance(reference, Solution) else reference
    if found is None:
        return None
    if not isinstance(found, Moments):
        raise ValueError(f"reference must be a Solution or Moments, got {reference!r}")
    checks.same_shape("reference", found.mean.shape, shape, "(S, A)")
    if found.order < order:
        raise ValueError(f"reference holds orders up to {found.order}, needed are {order}")
    return found
