"""The law of gaps: brackets of their distribution functions, narrowed as far as is asked for.

Every bound that `operators.gap_laws` gives is valid, after any number of sweeps and on any grid. So
coarse grids come first, and each hands its bounds to the next one, whose spacing is half of it.

Policy improvement can ask for these laws, and change a policy only where that is likely to pay off.
Let V be the value of a policy, and Q(s, a) that of playing a once and following the policy from
then on. The policy improvement theorem lets every state be decided on its own: a policy that plays
actions with Q(s, a) >= V(s) at some states, whichever they are, and what it played before at
all others, has a value that is nowhere below V. Greedy improvement changes all states that it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import fits, progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import ReadOnly
from jmdp_lib.operators.collapsed import CollapsedT2, Queries
from jmdp_lib.operators.gap_laws import Steps, first_cut, sweep
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers.affine import Chain
from jmdp_lib.solvers.fixed_point import rounding_of, warn
from jmdp_lib.solvers.pair_systems import solve_chains
from jmdp_lib.statistics import GapLaw, normal_quantile

_COARSE = 64  # spacings on either side of zero in the first grid
_NEARBY = 512  # points that are read for the queries at zero, at most
_TAIL = 0.02  # probability beyond which the grid gets coarser
_EPS = float(np.finfo(float).eps)
_ROUNDING = 1e-10  # advantages that are smaller, relative to the largest return, are none


def gap_law(
    jm: JMDP,
    policy: ArrayLike,
    queries: ArrayLike | None = None,
    width: float = 1e-3,
    coupling: str = "joint",
    points: int = 512,
    max_points: int = 4096,
) -> list[GapLaw]:
    """The laws of gaps $G = Z(s, a) - Z(s, b)$, one per query, as brackets that contain the truth.

    policy: (S, A) probabilities, or (S,) actions.
    queries: (N, 3), rows (state, a, b); unless given, all pairs a < b of all states.
    width: how wide the brackets of $P(G < 0)$ and $P(G <= 0)$ may be.
    coupling: as in `jipe2`.
    points: the least number of grid points where gaps are likely to be. More of them narrow the
        brackets away from zero, and those of `quantile` and `cvar`. Along $x$ a bound is at most
        the distance between two points, divided by $1 - gamma$, away from the truth.
    max_points: the largest size of the whole grid. If it, or the available memory, is not enough
        for `width`, a `ConvergenceWarning` says so; each law's `width` says what was reached.

    Bounds are rounded outwards. Differences of rewards are rounded to the twelfth digit of the
    largest reward, so that 0.1 + 0.2 - 0.3 is zero: the brackets are for the model rounded so.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> law, = jl.gap_law(jm, jl.goal_policy(3), queries=[(4, 0, 2)])
        >>> print("P(up is worse than down) from {:.4f} to {:.4f}".format(*law.prob_worse))
        P(up is worse than down) from 0.0062 to 0.0062
        >>> print("P(both are the same) from {:.4f} to {:.4f}".format(*law.prob_tie))
        P(both are the same) from 0.0231 to 0.0231
        >>> print("the worst tenth averages {:.2f} to {:.2f}".format(*law.cvar(0.1)))
        the worst tenth averages 0.36 to 0.37
    """
    system = CollapsedT2.of("gap_law", jm, policy, coupling)
    width = checks.positive("width", width)
    points = checks.at_least("points", points, 1)
    max_points = checks.at_least("max_points", max_points, max(points, 16))
    shape = (0, 3) if queries is None else checks.as_array("queries", queries).shape
    if len(shape) == 1:
        meant = f": did you mean [{queries!r}]?" if shape == (3,) else ""
        raise ValueError(f"queries must be rows (state, a, b), (N, 3), got shape {shape}{meant}")
    asked = Queries.of(jm, queries)
    if not asked.states.size:  # one action has no gaps
        return []
    rows = np.stack([asked.states, asked.first, asked.second], axis=1)
    if queries is not None:
        rows = np.array(queries)  # in the order and with the signs that were asked for
    laws = laws_of(system, asked, rows, width, points, max_points)
    finest = f"the finest that max_points={max_points:,} and memory allow"
    warn_if_wide("gap_law", laws, width, f"on a grid of {len(laws[0].points):,} points, {finest}")
    return laws


def warn_if_wide(name: str, laws: list[GapLaw], width: float, why: str) -> None:
    """Say that `width` was not reached."""
    if (worst := max(law.width for law in laws)) > width:
        warn(f"{name}: brackets at zero are up to {worst:.2g} wide, not {width:g}, {why}")


def laws_of(
    system: CollapsedT2, asked: Queries, rows: Ints, width: float, points: int, max_points: int
) -> list[GapLaw]:
    """The laws of rows (state, a, b), (N, 3), that are `asked` for."""
    jm = system.jm
    pairs: Any = PairSet.of(system, asked, lambda *_: np.inf)
    size = Steps.memory(system, pairs, rows)
    require(size, f"the law of gaps that reach {pairs.size:,} pairs")
    unit = float(10.0 ** np.floor(np.log10(jm.reward_bound)))
    steps = Steps.of(jm, system.policy, system.coupling, pairs, rows, unit)
    grid, high, low = _narrowed(steps, width, points, max_points)
    grid = _scaled(grid, unit)

    backup, moved, *_ = solve_chains(system, 1e-10 * jm.reward_bound)
    off = moved + rounding_of(system.longest_sum) * np.abs(backup.value).max()
    s, a, b = rows.T
    gap, off = backup.mean[s, a] - backup.mean[s, b], 2.0 * off / (1.0 - jm.gamma)
    found = zip(rows.tolist(), gap - off, gap + off, low, high, strict=True)
    return [GapLaw(tuple(query), (float(m), float(n)), grid, *cdf) for query, m, n, *cdf in found]


def _scaled(grid: Floats, unit: float) -> Floats:
    """Points (n, 2) in the unit of the rewards; one that this rounds becomes an interval."""
    if unit == 1.0:
        return grid
    ends = np.nextafter(grid * unit, [-np.inf, np.inf])
    cuts = np.where(grid == 0.0, 0.0, ends).ravel()
    return np.maximum.accumulate(cuts).reshape(grid.shape)


def _narrowed(
    steps: Steps, width: float, points: int, max_points: int
) -> tuple[Floats, Floats, Floats]:
    """A grid (n, 2), and for the queries upper and lower bounds (Q, 2n) at its cuts."""
    others, top = steps.nearby(min(_NEARBY, max_points // 8)), float(steps.largest.max())
    spacing = 2.0 ** np.floor(np.log2((top or 1.0) / min(_COARSE, max_points // 8)))
    pairs = np.arange(steps.asked.min()).reshape(2, -1)
    order = np.append(pairs.T, steps.asked)  # successors first
    grid = steps.grid(spacing, top, others)
    require(steps.memory_on(grid), f"the law of gaps on a first grid of {len(grid):,} points")
    bounds, sweeps, bulk = steps.trivial(grid), 0, top
    with progress(None, "gap law", "sweep") as bar:
        while True:
            moved, fallen = np.full(steps.largest.size, sweeps), np.zeros(steps.largest.size)
            room = np.empty((2, grid.size + 1))
            rest = (steps.reads(grid), moved, fallen, width / 100.0, steps.rounding, *room)
            while sweep(bounds, order, sweeps := sweeps + 1, *steps.outcomes, *rest):
                order = order[::-1].copy()
                bar.update()
            high, other = np.minimum.accumulate(bounds[steps.asked, -2::-1], axis=2)
            high, low = high[:, ::-1], np.maximum(0.0, 1.0 - other - _EPS)
            zero = 2 * np.searchsorted(grid[:, 0], 0.0)
            reached = (high - low)[:, zero : zero + 2].max() <= width
            likely = (bounds[:, :zero:2] > _TAIL).any(0)
            bulk = min(bulk, -grid[: zero // 2, 0][likely].min(initial=-spacing))
            enough = reached and (spacing * points <= 2.0 * bulk or top == 0.0)
            finer = steps.grid(spacing := spacing / 2.0, bulk, others)
            if enough or len(finer) > max_points or not fits(steps.memory_on(finer)):
                return grid, high, low
            start, same = steps.trivial(finer), first_cut(grid, finer.ravel())
            for new, old in zip(start, bounds, strict=True):
                np.minimum(new[:-1], old[same], out=new[:-1])
            grid, bounds = finer, start


@dataclass(frozen=True, eq=False)
class Improvement(ReadOnly):
    """What `cautious_improvement` found.

    Attributes:
        value: (S,), $V$, the value of the old policy.
        policy: (S, A), the new policy.
        switched: (S,), where it differs from the old one.
        advantage: (S, A), $Q(s, a) - V(s)$ under the old policy.
        advantage_low: (S, A), lower ends of its confidence intervals; the same if tables are known.
        prob_better: (S, A), lower bounds of $P(Z(s, a) > Z(s, A))$, with $A$ drawn from the old
            policy; nan where they were not needed.
    """

    value: Floats
    policy: Floats
    switched: Floats
    advantage: Floats
    advantage_low: Floats
    prob_better: Floats


def cautious_improvement(
    jm: JMDP, policy: ArrayLike, level: float = 0.5, alpha: float = 0.05, width: float = 0.02
) -> Improvement:
    """One step of policy improvement, only where an action is better with probability `level`.

    A state switches to an action $a$ if $Q(s, a) > V(s)$, and if $Z(s, a) > Z(s, A)$ in the same
    scenario with probability `level` or more, where $A$ is drawn from the policy. Of several such
    actions, the one with the largest $Q$ is taken. With level=0 this is greedy improvement.

    The value of the new policy is nowhere below the old one. If `jm` was counted from queries
    (`JMDP.from_simulator`), the lower end of a confidence interval of $Q(s, a) - V(s)$ must be
    above zero. All these intervals hold at once with probability $1 - alpha$, and so does the
    statement about values. This takes many queries: the intervals are normal, and they know nothing
    of outcomes that no query showed.

    policy: (S, A) probabilities, or (S,) actions.
    width: of the brackets of probabilities, as in `gap_law`. Wider brackets take less time, but
        fewer states switch.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.inventory(capacity=3, max_order=2, gamma=0.8)
        >>> found = jl.cautious_improvement(jm, jl.uniform_policy(jm), level=0.4)
        >>> found.policy.argmax(axis=1).tolist(), found.switched.tolist()
        ([2, 2, 0, 0], [True, True, False, False])
        >>> print(found.advantage[0].round(2), found.prob_better[0].round(2))
        [-1.88  0.07  1.81] [ nan 0.34 0.57]
    """
    system = CollapsedT2.of("cautious_improvement", jm, policy)
    level, alpha = checks.probability("level", level), checks.real("alpha", alpha, "(0, 1)")
    old = system.policy
    value = Chain(system.kernel, jm.gamma, system.mean_rewards).solution(1e-12 * jm.reward_bound)
    backed = jm.rewards + jm.gamma * value[jm.next_states]  # (T, A)
    usual = (backed * old[jm.table_states]).sum(1, keepdims=True)  # (T, 1)
    advantage = low = jm.averaging @ (backed - usual)
    if jm.queries_per_state is not None:
        sure = normal_quantile(1.0 - 2.0 * alpha / max(2, low.size))
        variance = _variance(jm, system, backed, usual) / (jm.queries_per_state - 1)
        low = advantage - sure * np.sqrt(variance)
    allowed = low > _ROUNDING * jm.reward_bound / (1.0 - jm.gamma)
    chances = np.where(allowed & (level > 0.0), 0.0, np.nan)
    s, a, b = np.nonzero((chances == 0.0)[:, :, None] & (old > 0.0)[:, None])
    s, a, b = (x[a != b] for x in (s, a, b))
    if s.size:
        laws = gap_law(jm, old, np.stack([s, a, b], axis=1), width, points=1)
        np.add.at(chances, (s, a), [old[law.query[::2]] * law.prob_better[0] for law in laws])
        allowed &= chances >= level
    best, switched = np.where(allowed, advantage, -np.inf).argmax(1), allowed.any(1)
    new = np.where(switched[:, None], np.eye(jm.num_actions)[best], old)
    return Improvement(value, new, switched, advantage, low, chances)


def _variance(jm: JMDP, system: CollapsedT2, backed: Floats, usual: Floats) -> Floats:
    """(S, A) N times the variance of advantages in a model counted from N queries, to first order.

    An error at state x counts as often as x is visited, discounted: `ahead` (S, A, S), the visits
    after (s, a) minus those under the policy. At s itself one table serves the action as well.
    """
    size, here = jm.num_states, np.arange(jm.num_states)
    kernel = system.kernel.toarray()
    moves = jm.transitions.toarray().reshape(size, -1, size) - kernel[:, None]
    ahead = jm.gamma * moves @ np.linalg.inv(np.eye(size) - jm.gamma * kernel)
    own = backed - usual + ahead[here, :, here][jm.table_states] * usual
    ahead[here, :, here] = 0.0
    spread, own_spread = (jm.averaging @ x**2 - (jm.averaging @ x) ** 2 for x in (usual, own))
    return np.maximum((ahead**2 @ spread)[..., 0] + own_spread, 0.0)
