"""Incremental JIPE-2 (Theorem 5.4): learning the moments one sampled coordinate at a time.

    M(i) <- (1 - alpha) M(i) + alpha hat T_2(M, i)        for the coordinate i = I_k, eq. (28)

`jmdp_lib.operators.backups` defines the coordinates, in two forms, and their sampled backups.
`incremental_jipe2` checks its arguments, and records residual and error at each checkpoint.
`updater` makes the updates in between: compiled for a JMDP, in Python for any other simulator.

To add a step size, add a field to `StepSize` for each parameter, with a default that keeps the
present steps; reject values that violate the Robbins-Monro conditions; and write the formula into
`alpha`. Both loops call `alpha` with the fields of `StepSize`, in their order. Update the docstring
and messages of `StepSize`, too. `Steps` lists the types that users may pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import both, hot, progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.model.simulator import Simulator, check_simulator
from jmdp_lib.moments import Moments, norm_weight
from jmdp_lib.operators.backups import Form, Layout, backup, compiled_backup
from jmdp_lib.operators.draws import of_tables
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.randomness import RNG
from jmdp_lib.solvers.fixed_point import Solution

_AT_ONCE = 50_000  # updates between two checks for Ctrl-C


@dataclass(frozen=True)
class StepSize:
    """Schedule of step sizes: $alpha_n = c / n^p$ at the $n$-th visit of *each coordinate*.

    Args:
        scale: $c$, in (0, 1], so that every step is in (0, 1].
        power: $p$, above 1/2 and at most 1: only then $sum alpha_n = infty$ and
            $sum alpha_n^2 < infty$, as Robbins and Monro require.

    Raises:
        ValueError: the schedule violates the Robbins-Monro conditions.
    Example:
        >>> import jmdp_lib as jl
        >>> jl.StepSize(scale=1.0, power=0.7)
        StepSize(scale=1.0, power=0.7)
        >>> jl.StepSize.of((0.5, 1.0))
        StepSize(scale=0.5, power=1.0)
        >>> try:
        ...     jl.StepSize(power=0.4)
        ... except ValueError as error:
        ...     print(str(error).partition(":")[0])
        step size 1.0 / visits^0.4 breaks Robbins-Monro
    """

    scale: float = 1.0
    power: float = 0.6

    def __post_init__(self) -> None:
        name = f"step size {self.scale} / visits^{self.power}"
        if not 0.0 < self.scale <= 1.0:
            raise ValueError(f"{name}: the first step must lie in (0, 1]")
        if not 0.5 < self.power <= 1.0:
            raise ValueError(
                f"{name} breaks Robbins-Monro: up to 1/2 the sum of its squares diverges, and "
                "noise never dies out; above 1 its sum converges, and a wrong start remains"
            )

    @classmethod
    def of(cls, value: Steps) -> StepSize:
        """Convert to a schedule.

        Args:
            value: a schedule, which is returned unchanged, or (scale, power).
        """
        if isinstance(value, StepSize):
            return value
        return cls(*checks.floats("step_size", value, "(scale, power)", shape=(2,)).tolist())


Steps = StepSize | tuple[float, float]
"""Types that a user may pass for a step size: those that `StepSize.of` accepts."""


@both()
def alpha(step: Any, visits: int) -> float:
    """Step size of eq. (28) at the n-th visit of a coordinate: the only formula of step sizes."""
    scale, power = step
    return scale * float(visits) ** -power


@dataclass(frozen=True, repr=False, eq=False)
class IncrementalSolution(Solution):
    """Solution that was learned from samples, with records at n checkpoints.

    Attributes:
        residuals: (n,), $||M - T_2 M||_lambda$ at each checkpoint. For a simulator, whose tables
            are unknown, residuals and error_bound are nan.
        iterations: total number of updates.
        updates: (n,) number of updates before each checkpoint.
        errors: (n,), $||M - M_{ref}||_lambda$, nan without a reference.
        values, visits: the coordinates and the number of updates of each, laid out by `form`.
        form: "full" or "centred", as requested.
        entropy: integer that reproduces the run when it is passed as `rng`.
    """

    updates: Ints
    errors: Floats
    values: Floats
    visits: Ints
    form: str
    entropy: int

    @property
    def _verdict(self) -> str:
        return f"learned by {self.iterations:,} updates"


def incremental_jipe2(
    simulator: Simulator,
    policy: Policy,
    num_updates: int,
    *,
    step_size: Steps = StepSize(),
    rng: RNG = None,
    initial: Solution | Moments | None = None,
    form: Form = "full",
    checkpoints: int = 20,
    reference: Solution | Moments | None = None,
) -> IncrementalSolution:
    """Learn first and second moments from samples alone: incremental JIPE-2, eqs. (25) to (28).

    The next coordinate is drawn uniformly from all coordinates, so each is updated infinitely often
    (Theorem 5.4).

    Args:
        simulator: a JMDP (compiled), or any object with num_states, num_actions, gamma and
            query(state, actions, rng) -> (rewards, next_states). Norms assume $|R| <= 1$ unless it
            also declares a reward_range.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        num_updates: total number of updates, of one coordinate each.
        step_size: a `StepSize`, or (scale, power).
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.
        initial: $M_0$; defaults to zero.
        form: the coordinates that are learned. "full": $mu$ and all of $Sigma$, as in the paper.
            "centred": $mu$, the covariances of one state, and policy averages of those between
            states, which is best for gaps.
        checkpoints: number of records of residual and error, evenly spaced on a log scale.
        reference: exact moments, to record errors against.

    Returns:
        The moments, the records at the checkpoints, and `entropy`, which reproduces the run.

    Raises:
        ValueError: an argument makes no sense, or the simulator is not pure.
        MemoryError: the coordinates do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> policy = jl.uniform_policy(jm)
        >>> exact = jl.jipe2(jm, policy)
        >>> options = {"form": "centred", "reference": exact, "rng": 0}
        >>> learned = jl.incremental_jipe2(jm, policy, 100_000, **options)
        >>> print(f"error {learned.errors[0]:.2f} before, {learned.errors[-1]:.2f} after")
        error 10.00 before, 0.07 after
        >>> print([round(float(x.moments.gap_variance[0, 0, 1]), 2) for x in (learned, exact)])
        [1.56, 1.57]
    """
    matrix = policy_matrix(check_simulator(simulator), policy)
    checks.one_of("form", form, get_args(Form))
    layout = Layout.of(matrix, simulator.gamma, form)
    stops = spread_checkpoints(checkpoints, num_updates)
    # Memory for values, visits, and T_2 of the values.
    require(128.0 * layout.size, f"incremental JIPE-2 with {layout.size:,} coordinates")
    values = np.zeros(layout.size) if initial is None else _packed("initial", initial, layout)
    truth = None if reference is None else _packed("reference", reference, layout)
    visits = np.zeros(values.size, dtype=np.int64)
    root = randomness.seed_of(rng)
    stream = np.random.default_rng(randomness.part(root, f"learn {form}"))
    update = updater(simulator, layout, values, visits, StepSize.of(step_size), stream)
    record = partial(_residual_and_error, simulator, layout, values, truth)
    residuals, errors = np.transpose([record() for _ in _at_checkpoints(stops, update)])
    error_bound = float(residuals[-1] / (1.0 - simulator.gamma))
    return IncrementalSolution(
        moments=_learned_moments(layout, values, simulator.gamma, error_bound),
        residuals=residuals,
        status="max_iterations",
        error_bound=error_bound,
        iterations=stops[-1],
        updates=np.array(stops),
        errors=errors,
        values=values,
        visits=visits,
        form=form,
        entropy=randomness.entropy(root),
    )


def _at_checkpoints(stops: Sequence[int], update: Callable[[int], None]) -> Iterator[None]:
    """Make updates in portions, with a pause at each checkpoint."""
    with progress(stops[-1], "incremental JIPE-2") as bar:
        for last, stop in pairwise([0, *stops]):
            for start in range(last, stop, _AT_ONCE):
                count = min(stop - start, _AT_ONCE)
                update(count)
                bar.update(count)
            yield


def _packed(name: str, given: Solution | Moments, layout: Layout) -> Floats:
    """Coordinates of moments that a user passed, after a check that they fit the model."""
    moments = given.moments if isinstance(given, Solution) else given
    if not isinstance(moments, Moments):
        raise ValueError(f"{name} must be a Solution or Moments, got {given!r}")
    checks.same_shape(name, moments.mean.shape, layout.policy.shape, "(S, A)")
    return layout.pack(moments.mean, moments.full_second())


def _residual_and_error(
    simulator: Simulator, layout: Layout, values: Floats, truth: Floats | None
) -> tuple[float, float]:
    """Residual ||M - T_2 M|| of a JMDP and error ||M - truth||, nan if unknown.

    The unit of the norm is the largest |R| that the simulator declares, or one.
    """
    ends = getattr(simulator, "reward_range", None)
    bound = float(np.abs(1.0 if ends is None else ends).max()) or 1.0
    weight = norm_weight(2, simulator.gamma, bound)
    raw = layout.raw(values)

    def distance(other: Floats) -> float:
        mean, second = np.split(np.abs(raw - other), [layout.policy.size])
        return float(max(mean.max(), second.max() / weight))

    residual = np.nan
    if isinstance(simulator, JMDP):
        residual = distance(layout.applied(simulator, values))
    return residual, np.nan if truth is None else distance(layout.raw(truth))


def _learned_moments(layout: Layout, values: Floats, gamma: float, error_bound: float) -> Moments:
    """Build moments of learned values; errors of means limit the resolution of deviations."""
    mean_error = float(np.nan_to_num(error_bound))
    resolution = float(2.0 * mean_error / np.sqrt(1.0 - gamma**2))
    return Moments(2, *layout.read(values), mean_error, resolution)


@hot
def _compiled_updates(
    rng: Any, count: int, values: Any, visits: Any, step: Any, world: Any
) -> None:
    """Make `count` updates of eq. (28) in place, for the tables of a JMDP."""
    model, layout = world
    for _ in range(count):
        i = int(rng.random() * values.size)
        target = compiled_backup(rng, values, i, model, layout)
        visits[i] += 1
        values[i] += alpha(step, visits[i]) * (target - values[i])


def updater(
    simulator: Simulator,
    layout: Layout,
    values: Floats,
    visits: Ints,
    step: StepSize,
    rng: np.random.Generator,
) -> Callable[[int], None]:
    """Return a function that makes `count` updates in place, of coordinates drawn uniformly.

    values, visits: (size,) coordinates, and the number of updates of each; both are modified.
    """
    fields = astuple(step)
    if isinstance(simulator, JMDP):
        model = of_tables(simulator), simulator.rewards, simulator.next_states
        world = model, layout
        return lambda count: _compiled_updates(rng, count, values, visits, fields, world)

    def update(count: int) -> None:
        for _ in range(count):
            i = int(rng.random() * values.size)
            target = backup(rng, values, i, simulator, layout)
            visits[i] += 1
            values[i] += alpha(fields, visits[i]) * (target - values[i])

    return update


def spread_checkpoints(checkpoints: int, num_updates: int) -> list[int]:
    """Numbers of updates before each checkpoint, evenly spaced on a log scale up to all updates."""
    num_updates = checks.at_least("num_updates", num_updates, 1)
    count = checks.at_least("checkpoints", checkpoints, 1)
    chosen = np.geomspace(num_updates, min(100, num_updates), count).round()
    return sorted({int(stop) for stop in chosen})
