"""Gaps at a few states of a model that nobody enumerates, with a certificate.

`solvers.exploration` says which states matter, and how far off an answer is that follows single
branches through the explored states and pairs of them through a core. Here the core is solved.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.implicit import ImplicitJMDP, Policy
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held, Moments, ReadOnly, norm_weight
from jmdp_lib.operators.collapsed import CollapsedT2, Queries
from jmdp_lib.solvers.exploration import Region, View, grown, look, with_outside
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution, warn
from jmdp_lib.solvers.pair_systems import choose, solve_pairs

_TRIALS = 10  # cores and explored sets that are solved, at most


@dataclass(frozen=True, eq=False, repr=False)
class LocalSolution(ReadOnly):
    """What `local_jipe2` found: gaps at N queried states. All arrays are read-only.

    Attributes:
        moments: of the N queried states, in their order, with A actions each.
        gap_error: (N, A, A), how far the mean and the standard deviation of each gap may be off.
        return_error: (N, A), the same of each return $Z(s, a)$ itself. It may be much larger: the
            errors of two branches cancel once these have merged.
        error_bound: the largest gap_error.
        converged: whether error_bound is at most `tol` times the largest reward.
        explored: the states whose tables were asked for, in this order.
        visits: (num_explored,) expected visits of branches that have not merged, all queries
            together, discounted by $gamma^2$ per step.
    """

    moments: Moments
    gap_error: Floats
    return_error: Floats
    error_bound: float
    converged: bool
    explored: tuple[Hashable, ...]
    visits: Floats

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return (
            f"LocalSolution({state}, {len(self.gap_error)} states queried, "
            f"{self.num_explored:,} explored, error_bound={self.error_bound:.3g})"
        )

    @property
    def num_explored(self) -> int:
        """How many states were explored."""
        return len(self.explored)

    @property
    def gap_mean(self) -> Floats:
        """(N, A, A), $E[Z(s, a) - Z(s, b)]$ at [n, a, b], where s is the n-th queried state."""
        return self.moments.gap_mean

    @property
    def gap_variance(self) -> Floats:
        """(N, A, A), $Var[Z(s, a) - Z(s, b)]$."""
        return self.moments.gap_variance


def local_jipe2(
    model: ImplicitJMDP | JMDP,
    policy: Policy,
    states: Sequence[Hashable],
    tol: float = 1e-3,
    coupling: str = "joint",
    max_states: int = 50_000,
) -> LocalSolution:
    """Gap means and variances at a few states, exploring only what matters to them.

    policy: a function of a state that returns probabilities (A,) or an action, or an array with
        such a row for every state (see `jmdp_lib.implicit.policy_row`).
    states: those whose gaps are wanted.
    tol: the certified error of the mean and the standard deviation of every gap, relative to the
        largest absolute reward (of an `ImplicitJMDP`, to the larger end of its range). Exploration
        goes on until it is met.
    coupling: "joint", "independent" or "common", as in `jipe2`.
    max_states: how many states are explored at most. If that, or the memory, does not suffice, a
        `ConvergenceWarning` says what was reached.

    Example:
        >>> import jmdp_lib as jl
        >>> def step(cell, action, gust):  # an endless line: a gust adds one cell to the left
        ...     return float(cell > 3), cell + (1 if action == 0 else -1) - gust
        ...
        >>> line = jl.ImplicitJMDP.from_step(2, 0.8, [0.7, 0.3], step, reward_range=(0.0, 1.0))
        >>> found = jl.local_jipe2(line, lambda cell: [0.5, 0.5], states=[2], tol=1e-3)
        >>> print(f"{found.gap_mean[0, 0, 1]:.3f} and variance {found.gap_variance[0, 0, 1]:.3f}")
        0.522 and variance 0.759
        >>> found.converged, found.num_explored < 100
        (True, True)
    """
    region = Region.of(model, policy, coupling, states, max_states)
    h = region.unit / (1.0 - region.model.gamma)
    allowed = checks.positive("tol", tol) * region.model.reward_bound
    goal = (0.5 * allowed / h) ** 2  # of (E_1 / h)^2
    best, tried, theta, view, least = None, 0, allowed / region.unit, None, region.asked.max() + 1
    for _ in range(_TRIALS):
        view, more = grown(region, view, goal, theta)
        try:
            found, rest = _solved(region, view, allowed)
        except MemoryError:
            if best is not None or view.core.sum() == least:
                break
            theta *= 1e3
        else:
            best = found if best is None or found.error_bound < best.error_bound else best
            enough = view.core.sum() == tried or rest < 0.3 * found.error_bound
            tried = view.core.sum()
            if best.converged or (enough and not more):
                break
            closer = min(0.1, max(1e-4, (0.5 * allowed / found.error_bound) ** 2))
            goal, theta = (0.1 * goal, theta) if enough else (goal, closer * theta)
        view = look(region, goal, view, theta)
    if best is None:
        raise MemoryError(f"local_jipe2 cannot solve for the pairs of {least} states")
    _warn_if_stopped(best, allowed)
    return best


def _warn_if_stopped(found: LocalSolution, allowed: float) -> None:
    """Say that the exploration ended before its goal."""
    if not found.converged:
        warn(
            f"local_jipe2 stopped after {found.num_explored:,} states with error bound "
            f"{found.error_bound:.3g} > tol * reward_bound = {allowed:.3g}: out of states or memory"
        )


def deviation_error(deviation: Floats, moved: Floats, lost: Floats) -> Floats:
    """How far off a standard deviation may be: by `moved` itself, and its square by `lost` as well.

    These are E_1 and D of `solvers.exploration`. The worst case subtracts both.
    """
    least = np.maximum(deviation - moved, 1e-300)
    return moved + lost / (least + np.sqrt(np.maximum(least**2 - lost, 0.0)))


def gap_variance_error(weight: float, error_bound: float) -> float:
    """How far off a gap variance may be for moments within `error_bound` in ||.||_lambda.

    Second moments are within lambda_2 = `weight` times that. Four of them enter, and the square of
    a difference of two means, which is at most lambda_2 itself.
    """
    return 8.0 * weight * error_bound + 4.0 * error_bound**2


def _solved(region: Region, view: View, allowed: float) -> tuple[LocalSolution, float]:
    """The core's answer with its error, and how much of that a larger core could mend.

    The rewards of the core's model are temporal-difference errors of m~: its returns are smaller by
    m~(s), and its gaps are the same.
    """
    whole, core, unit, asked = view.system.jm, view.core, region.unit, region.asked
    size, gamma, actions = int(core.sum()), whole.gamma, range(whole.num_actions)
    number, rows = np.where(core, np.cumsum(core) - 1, size), core[whole.table_states]
    owners, to = whole.table_states[rows], whole.next_states[rows]
    errors = whole.rewards[rows] + gamma * view.value[to] - view.value[owners, None]
    jm = with_outside(number[owners], whole.probs[rows], errors, number[to], size, gamma)
    policy = np.append(view.system.policy[core], view.system.policy[-1:], 0)

    both = np.zeros((3, len(core), len(actions), len(actions)))
    s, a, b = view.queries.states, view.queries.first, view.queries.second
    both[:, s, a, b] = both[:, s, b, a] = view.bounds
    values, total, after = both[:, asked]
    values, total = np.sqrt(values) / (1.0 - gamma), np.sqrt(total)
    alone = np.sqrt(gamma**2 * (whole.averaging @ view.alone[1][whole.next_states])[asked])

    weight, found = norm_weight(2, gamma, jm.reward_bound), number[asked]
    system, wanted = CollapsedT2(jm, policy, region.coupling), Queries.of(jm, found)
    chosen = choose(system, wanted, 1e-8)
    rough = 0.005 * allowed / (unit * weight * jm.reward_bound)
    for accuracy in (rough, 0.03 * rough, 1e-11):  # the last for very small variances
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what was reached is counted
            sol = solve_pairs(system, wanted, accuracy * jm.reward_bound, *chosen)
        off = gap_variance_error(weight, sol.error_bound)

        def solver(variance: Floats, off: float = off, sol: Solution = sol) -> Floats:
            deviation = off / np.sqrt(np.maximum(variance, off) + 1e-300)
            return np.maximum(deviation, 2.0 * sol.error_bound)

        variance = sol.moments.gap_variance[found]
        cut = np.minimum(total, deviation_error(np.sqrt(variance), values, after))
        gap_error = unit * (cut + solver(variance))
        gap_error[:, actions, actions] = 0.0
        bound = float(gap_error.max())
        if bound <= allowed or unit * float(cut.max()) > 0.95 * allowed:
            break
    covariance = sol.moments.covariance[found]
    alone += solver(sol.moments.variance[found])
    middle = 0.5 * sum(region.model.reward_range) / (1.0 - gamma)
    mean = unit * (sol.moments.mean[found] + view.value[asked, None]) + middle
    worst = unit * float(alone.max())
    moments = Moments(2, mean, unit**2 * covariance, Held(None), worst, worst)
    names = tuple(np.fromiter(region.numbers, object)[region.explored])
    errors_of = (gap_error, unit * alone, bound, bound <= allowed)
    done = LocalSolution(moments, *errors_of, names, view.visits)
    return done, unit * float((cut - values).max())
