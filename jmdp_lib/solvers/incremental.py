"""Incremental JIPE-2 (Theorem 5.4): learning the moments one sampled coordinate at a time.

    M(i) <- (1 - alpha) M(i) + alpha hat T_2(M, i)        for the coordinate i = I_k, eq. (28)

The coordinates live in one vector, in one of three layouts:

    full        mu(x), Sigma(x, y) for all state-actions x, y: the paper's, X + X^2 coordinates
    collapsed   mu(s, a), Sigma(s, a, s, b) and, between states, only the policy average W(s, t);
                the next action is averaged over instead of drawn
    centred     the same with covariances in the place of second moments: the form for gaps, since
                nothing large is subtracted at the end
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Seed
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments
from jmdp_lib.simulators import Simulator
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution
from jmdp_lib.solvers.learner import Learner, known_moments
from jmdp_lib.solvers.schedules import StepSize, selection_weights


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

    def continued(self, learner: Learner, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """Coordinates and visits to go on from, with the random stream put where it stood."""
        if self.form != learner.form or self.values.size != learner.blocks.size:
            raise ValueError(
                f"initial was learned in the form {self.form!r} with {self.values.size} "
                f"coordinates; this run is {learner.form!r} with {learner.blocks.size}"
            )
        rng.bit_generator.state = self.rng_state
        return self.values.copy(), self.visits.copy()


def incremental_jipe2(
    simulator: Simulator,
    policy: ArrayLike,
    num_updates: int,
    step_size: StepSize | tuple[float, float] | float = StepSize(),  # noqa: B008 (immutable)
    seed: Seed = 0,
    initial: IncrementalSolution | Moments | tuple[ArrayLike, ArrayLike] | None = None,
    selection: str | Mapping[str, float] | ArrayLike = "uniform",
    form: str = "full",
    checkpoints: int | Sequence[int] = 20,
    reference: Solution | Moments | None = None,
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
    checkpoints: how many, spread evenly on a log scale, or the update counts of this run.
    reference: the exact moments, if known, to record errors against.
    tol: stop at a checkpoint whose error bound is at most tol * reward_bound.
    on_interrupt: "return" gives back what was learned up to Ctrl-C instead of raising.
    """
    learner = Learner.of(simulator, policy, form)
    num_updates = checks.at_least("num_updates", num_updates, 1)
    step = StepSize.of(step_size)
    checks.one_of("on_interrupt", on_interrupt, ("raise", "return"))
    weights = selection_weights(selection, learner.blocks)
    if not checks.real("tol", tol) >= 0.0 or (tol > 0.0 and not isinstance(simulator, JMDP)):
        raise ValueError(f"tol must be >= 0, and 0 for a simulator without tables, got {tol}")
    allowed = tol * getattr(simulator, "reward_bound", 1.0)
    stops = spread_stops(checkpoints, num_updates)
    rng = checks.generator(seed, 0)
    if isinstance(initial, IncrementalSolution):
        values, visits = initial.continued(learner, rng)
    else:
        values, visits = learner.start(initial), np.zeros(learner.blocks.size, dtype=np.int64)
    before, truth = int(visits.sum()), None
    known = known_moments(reference, learner.policy.shape, 2)
    if known is not None:
        truth = learner.raw(learner.pack(known.mean, known.full_second()))
    update = learner.updater(values, visits, step, weights, rng)
    history: list[tuple[int, float, float, float]] = []

    def record() -> float:
        """Write a line of the history; the error bound."""
        made = int(visits.sum())
        residual, bound = learner.residual(values, checks.generator(seed, 1 + made))
        error = np.nan if truth is None else learner.norm(learner.raw(values) - truth)
        history.append((made, residual, bound, error))
        return bound

    with progress(num_updates, "incremental JIPE-2") as bar:
        try:
            for stop in stops:
                while (left := before + stop - int(visits.sum())) > 0:
                    update(min(left, learner.chunk))
                    bar.update(min(left, learner.chunk))
                if record() <= allowed:
                    break
        except KeyboardInterrupt:
            if on_interrupt == "raise":
                raise
            record()
    updates, residuals, bounds, errors = (np.array(column) for column in zip(*history, strict=True))
    if tol > 0.0 and not bounds[-1] <= allowed:
        warnings.warn(
            f"incremental JIPE-2 stopped after {updates[-1]} updates with error bound "
            f"{bounds[-1]:.3g} > tol * reward_bound = {allowed:.3g}",
            ConvergenceWarning,
            stacklevel=2,
        )
    return IncrementalSolution(
        learner.moments(values, bounds[-1]), residuals, bool(bounds[-1] <= allowed),
        float(bounds[-1]), int(updates[-1]), updates, errors, values, visits, form,
        rng.bit_generator.state,
    )  # fmt: skip


def spread_stops(checkpoints: int | Sequence[int], num_updates: int) -> list[int]:
    """Update counts to stop at: so many, evenly on a log scale, or as given; always the last."""
    if isinstance(checkpoints, int | np.integer):
        count = checks.at_least("checkpoints", int(checkpoints), 1)
        first = num_updates if count == 1 else min(100, num_updates)
        chosen = np.geomspace(first, num_updates, count).round().astype(int)
    else:
        chosen = checks.integers("checkpoints", checkpoints, "checkpoint")
        if chosen.min() < 1 or chosen.max() > num_updates:
            raise ValueError(f"checkpoints must lie in 1..{num_updates}, got {list(chosen)}")
    return sorted({int(stop) for stop in chosen} | {num_updates})
