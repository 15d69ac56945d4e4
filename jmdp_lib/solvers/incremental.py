"""Incremental JIPE-2 (Theorem 5.4): learning the moments one sampled coordinate at a time.

    M(i) <- (1 - alpha) M(i) + alpha hat T_2(M, i)        for the coordinate i = I_k, eq. (28)

`jmdp_lib.operators.backups` has the coordinates, in three layouts, and their sampled backups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP, checked_coupling
from jmdp_lib.model.queries import Simulator, check_simulator
from jmdp_lib.moments import Moments, norm_weight
from jmdp_lib.operators import draws
from jmdp_lib.operators.backups import KINDS, LAYOUTS, Collapsed, Full, compiled_updates
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.solvers.fixed_point import Solution

# A residual is estimated from so many coordinates with so many backups each. Between two estimates
# there are so many times as many updates, so that estimating stays cheap; the last is always made.
_PROBED, _BACKUPS, _PROBES_PAY = 64, 32, 10


@dataclass(frozen=True)
class StepSize:
    """A schedule of step sizes: $alpha_n = c / n^p$ at the $n$-th visit of *each coordinate*.

    scale: $c$, in (0, 1], so that every step is, too.
    power: $p$, above 1/2 and at most 1: only then $sum alpha_n = infty$ and
        $sum alpha_n^2 < infty$, as Robbins and Monro ask. Anything else is refused.

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
            why = "the sum of its squares diverges (power <= 1/2), so the noise never dies out"
            if self.power > 1.0:
                why = "its sum converges (power > 1), so a wrong start is never forgotten"
            raise ValueError(f"{name} breaks Robbins-Monro: {why}")

    @classmethod
    def of(cls, value: StepSize | tuple[float, float] | float) -> StepSize:
        """A schedule from itself, from (scale, power), or from a constant (which is refused)."""
        if isinstance(value, StepSize):
            return value
        parts: Any = value if np.shape(value) == (2,) else (value, 0.0)
        return cls(*(checks.real("step size", part) for part in parts))


@dataclass(frozen=True, repr=False, eq=False)
class IncrementalSolution(Solution):
    """A `Solution` that was learned from samples, with what was recorded at n checkpoints.

    Attributes:
        residuals: (n,), $||M - T_2 M||_lambda$ at each checkpoint, exact if the tables are known.
            For a simulator, and for orders above 2, it is an estimate: the largest mean TD error
            over 64 random coordinates with 32 backups each. It is nan at checkpoints that are too
            close to the last estimate to be worth that many queries. error_bound is then nan, too.
        iterations: updates made in all, resumed runs included.
        updates: (n,) updates made before each checkpoint.
        errors: (n,), $||M - M_{ref}||_lambda$, nan without a reference.
        values, visits: the coordinates and how often each was updated; `form` says their layout.
        policy, coupling: (S, A), and which branches share a draw: what was learned about.
        reward_range: (lo, hi) of the simulator, whose larger end is the unit of all norms; None if
            it declares none: norms then take $|R| <= 1$, whatever the unit of the rewards is.
        rng_state: where the random stream stands.
    """

    updates: Ints
    errors: Floats
    values: Floats
    visits: Ints
    form: str
    policy: Floats
    coupling: str
    reward_range: tuple[float, float] | None
    rng_state: Mapping[str, Any]

    def __repr__(self) -> str:
        unit = "" if self.reward_range else ", norms for |R| <= 1: no reward_range is declared"
        return f"{super().__repr__()[:-1]}{unit})"


def incremental_jipe2(
    simulator: Simulator,
    policy: Policy,
    num_updates: int,
    step_size: StepSize | tuple[float, float] | float = StepSize(),  # noqa: B008 (immutable)
    seed: Seed = 0,
    initial: Solution | Moments | None = None,
    selection: str | Mapping[str, float] | ArrayLike = "uniform",
    form: str = "full",
    checkpoints: int | Sequence[int] = 20,
    reference: Solution | Moments | None = None,
    on_interrupt: str = "raise",
    coupling: str = "joint",
) -> IncrementalSolution:
    """First and second moments from samples alone: incremental JIPE-2, eqs. (25) to (28).

    simulator: a JMDP (compiled), or any object with num_states, num_actions, gamma and
        query(state, actions, rng) -> (rewards, next_states); norms take $|R| <= 1$ unless it also
        declares a reward_range.
    policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
    step_size: a `StepSize`, or (scale, power).
    initial: $M_0$; zero unless given. An earlier result of the same policy, coupling and form is
        continued, random stream and all.
    selection: which coordinate is updated next: "uniform"; the probability of each kind of
        coordinate, a mapping of "mu", "diag", "same" and "cross"; or one probability per
        coordinate. None may be zero: every coordinate must keep coming up (Theorem 5.4).
    form: which coordinates are kept. "full": $mu$ and all of $Sigma$, as in the paper. "collapsed":
        between states only policy averages, with the next action averaged over. "centred": the
        same for covariances, which is best for gaps.
    checkpoints: how many, spread evenly on a log scale, or the update counts of this run.
    reference: the exact moments, if known, to record errors against.
    on_interrupt: "return" gives back what was learned up to Ctrl-C instead of raising.
    coupling: "joint", or "common" for a JMDP that knows its noise, as in `jipe2`.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> policy = jl.uniform_policy(jm)
        >>> exact = jl.jipe2(jm, policy)
        >>> learned = jl.incremental_jipe2(jm, policy, 100_000, form="centred", reference=exact)
        >>> print(f"error {learned.errors[0]:.2f} before, {learned.errors[-1]:.2f} after")
        error 8.21 before, 0.05 after
        >>> print([round(float(x.moments.gap_variance[0, 0, 1]), 2) for x in (learned, exact)])
        [1.57, 1.57]
    """
    matrix = checks.policy_matrix(check_simulator(simulator), policy)
    checked_coupling(simulator, checks.one_of("coupling", coupling, ("joint", "common")))
    num_states, num_actions = matrix.shape
    kind = LAYOUTS[checks.one_of("form", form, tuple(LAYOUTS))]
    size = matrix.size**2 if form == "full" else num_states * (num_actions**2 + num_states)
    size += matrix.size
    taken = 16 * 8.0 * size  # values, visits, how they are drawn, T_2 of them
    if isinstance(simulator, JMDP):
        system = CollapsedT2(simulator, matrix, coupling)
        taken += system.table_bytes + system.product_bytes
    require(taken, f"incremental JIPE-2 in the form {form!r} with {size:,} coordinates")
    layout: Full | Collapsed = kind(matrix, coupling)
    weights = selection_weights(selection, layout.kinds)

    def packed(name: str, given: Solution | Moments | None) -> Floats | None:
        known = known_moments(name, given, matrix.shape, 2)
        return None if known is None else layout.pack(known.mean, known.full_second())

    resumed = initial if isinstance(initial, IncrementalSolution) else None
    start = resumed or packed("initial", initial)
    return learn(
        simulator, layout, weights, num_updates, step_size, seed, checkpoints,
        packed("reference", reference), start, on_interrupt,
    )  # fmt: skip


def learn(
    simulator: Simulator, layout: Any, weights: Floats, num_updates: int,
    step_size: StepSize | tuple[float, float] | float, seed: Seed,
    checkpoints: int | Sequence[int], truth: Floats | None = None,
    start: IncrementalSolution | Floats | None = None, on_interrupt: str = "raise",
) -> IncrementalSolution:  # fmt: skip
    """The recursion of eq. (28) in any layout, with its history.

    weights: (size,) how likely each coordinate is picked. truth: the right `values`. start: where
    to begin, or a run to go on with.
    """
    num_updates = checks.at_least("num_updates", num_updates, 1)
    step = StepSize.of(step_size)
    checks.one_of("on_interrupt", on_interrupt, ("raise", "return"))
    stops = spread_stops(checkpoints, num_updates)
    rng = checks.stream(seed, f"learn {layout.name}")
    values, visits = np.zeros(weights.size), np.zeros(weights.size, dtype=np.int64)
    if isinstance(start, IncrementalSolution):
        refuse_other_run(start, layout, values.size)
        values, visits = start.values.copy(), start.visits.copy()
        rng.bit_generator.state = start.rng_state
    elif start is not None:
        values = start
    declared = getattr(simulator, "reward_range", None)
    ends = None if declared is None else checks.reward_range("reward_range", declared)
    bound = float(np.abs(ends or (1.0, 1.0)).max()) or 1.0
    scale = norm_weight(2, simulator.gamma, bound) ** (layout.orders - 1.0)
    update = updater(simulator, layout, values, visits, step, weights, rng)
    exact = isinstance(simulator, JMDP) and layout.name in LAYOUTS
    chunk = 1_000_000 if exact else 1_000  # between looks at Ctrl-C
    before, history, probed = int(visits.sum()), [], 0

    def norm(difference: Floats) -> float:
        return float((np.abs(difference) / scale).max())

    def probe(rng: np.random.Generator) -> float:
        errors = np.zeros(values.size)
        used = np.flatnonzero(weights)
        for i in rng.choice(used, min(_PROBED, used.size), replace=False).tolist():
            targets = [layout.backup(simulator, values, i, rng) for _ in range(_BACKUPS)]
            errors[i] = np.mean(targets) - values[i]
        return norm(errors)

    def record(last: bool) -> None:
        """Write a line of the history."""
        nonlocal probed
        made, size = int(visits.sum()), np.nan
        if exact:
            size = norm(layout.applied(simulator, values) - layout.raw(values))
        elif last or made - probed >= _PROBES_PAY * _PROBED * _BACKUPS:
            size, probed = probe(checks.stream(seed, f"probe {layout.name}", made)), made
        error = np.nan if truth is None else norm(layout.raw(values) - layout.raw(truth))
        history.append((made, size, error))

    with progress(num_updates, "incremental JIPE") as bar:
        try:
            for stop in stops:
                while (left := before + stop - int(visits.sum())) > 0:
                    update(min(left, chunk))
                    bar.update(min(left, chunk))
                record(stop == stops[-1])
        except KeyboardInterrupt:
            if on_interrupt == "raise":
                raise
            record(True)
    updates, residuals, errors = (np.array(column) for column in zip(*history, strict=True))
    error_bound = float(residuals[-1] / (1.0 - simulator.gamma)) if exact else np.nan
    # Means within the error bound may give a constant return this standard deviation.
    known = np.nan_to_num(error_bound)
    resolution = float(2.0 * known / np.sqrt(1.0 - simulator.gamma**2))
    found = (int(layout.orders.max()), *layout.read(values), known, resolution)
    moments = Moments(*found)
    return IncrementalSolution(
        moments, residuals, False,
        error_bound, int(updates[-1]), updates, errors, values, visits, layout.name,
        layout.policy, layout.coupling, ends,
        rng.bit_generator.state,
    )  # fmt: skip


def refuse_other_run(start: IncrementalSolution, layout: Any, size: int) -> None:
    """Refuse to go on with a run about something else: its visits would count for nothing."""
    if start.form != layout.name or start.values.size != size:
        raise ValueError(
            f"initial was learned in the form {start.form!r} with {start.values.size} "
            f"coordinates; this run is {layout.name!r} with {size}"
        )
    if start.coupling != layout.coupling:
        raise ValueError(
            f"initial was learned with coupling={start.coupling!r}, this run has "
            f"{layout.coupling!r}: start anew, or pass initial.moments to start from its values"
        )
    differs = np.flatnonzero((start.policy != layout.policy).any(1))
    if differs.size:
        raise ValueError(
            f"initial was learned under another policy, which differs in state {differs[0]}: start "
            "anew, or pass initial.moments to start from its values"
        )


def updater(
    simulator: Simulator, layout: Any, values: Floats, visits: Ints, step: StepSize,
    weights: Floats, rng: np.random.Generator,
) -> Callable[[int], None]:  # fmt: skip
    """A function that makes `count` updates in place."""
    threshold, alias = draws.alias_tables(np.array([0, weights.size]), weights)
    cell = draws.cells(alias)
    if isinstance(simulator, JMDP) and layout.name in LAYOUTS:
        jm, cdf = simulator, np.cumsum(layout.policy, axis=1).ravel()
        steps = (layout.full, layout.centred, layout.coupling == "common", step.scale, step.power)
        tables = (jm.starts, draws.cumulative(jm.starts, jm.probs), jm.rewards, jm.next_states)
        known: Any = (*steps, threshold, cell, jm.gamma, layout.policy, cdf, *tables)
        return lambda count: compiled_updates(rng, count, values, visits, *known)

    def update(count: int) -> None:
        for _ in range(count):
            i = int(cell[draws.pick_cell.py_func(rng, 0, weights.size, threshold)])
            target = layout.backup(simulator, values, i, rng)
            visits[i] += 1
            values[i] += step.scale * float(visits[i]) ** -step.power * (target - values[i])

    return update


def selection_weights(selection: str | Mapping[str, float] | ArrayLike, kinds: Ints) -> Floats:
    """The probability of every coordinate, given the kind (index into KINDS, or -1) of each.

    selection: "uniform"; a mapping of kinds to probabilities, uniform within each kind; or one
    probability per coordinate. Every coordinate must keep coming up (Theorem 5.4), so none may have
    probability zero.
    """
    used = kinds >= 0
    if isinstance(selection, str):
        checks.one_of("selection", selection, ["uniform"])
        return used / used.sum()
    if isinstance(selection, Mapping):
        for name in selection:
            checks.one_of("selection kind", name, KINDS)
        each = np.bincount(kinds[used], minlength=len(KINDS)).astype(float)
        for kind in np.flatnonzero(each):
            share = selection.get(KINDS[kind], 0.0)
            each[kind] = checks.positive(f"selection[{KINDS[kind]!r}]", share) / each[kind]
        weights = np.where(used, each[kinds], 0.0)
        return weights / weights.sum()
    weights = checks.distributions("selection", selection, coordinate=kinds.size)
    wrong = used != (weights > 0.0)
    why = "must be above zero for all coordinates of this form, and zero for others"
    checks.refuse("selection", weights, wrong, why, ["coordinate"])
    return weights


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


def known_moments(
    name: str, given: Solution | Moments | None, shape: tuple[int, ...], order: int
) -> Moments | None:
    """The moments to start from or to record errors against, if of this model and order."""
    found = given.moments if isinstance(given, Solution) else given
    if found is None:
        return None
    if not isinstance(found, Moments):
        raise ValueError(f"{name} must be a Solution or Moments, got {given!r}")
    checks.same_shape(name, found.mean.shape, shape, "(S, A)")
    if found.order < order:
        raise ValueError(f"{name} holds orders up to {found.order}, needed are {order}")
    return found
