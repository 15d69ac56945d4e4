"""Gaps of any simulator, estimated from recursive branches (`branches`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.branches import Branches, Run
from jmdp_lib.checks import Floats, Seed
from jmdp_lib.machine import in_processes
from jmdp_lib.simulators import SimulatorError
from jmdp_lib.statistics import GapErrors, gap_statistics, normal_quantile


@dataclass(frozen=True, eq=False)
class GapEstimate(GapErrors):
    """What `estimate_gaps` found about the gaps $G = Z(s, a) - Z(s, b)$ of m actions of a state.

    Arrays are (m, m); entry [i, j] is about actions[i] against actions[j].

    Attributes:
        mean, mean_error, variance, variance_error: as in `GapErrors`.
        prob_worse, prob_tie, prob_better: shares of pairs with $G < 0$, $G = 0$ and $G > 0$. A gap
            whose sign the cut at the horizon may have changed counts as 0.
        truncation_error: how far that cut may have moved $E G$, if later rewards are like those
            that were seen.
        actions: the m actions.
        horizon: steps after which returns were cut.
        returns: (num_pairs, m) of the branches.
    """

    prob_worse: Floats
    prob_tie: Floats
    prob_better: Floats
    truncation_error: Floats
    actions: list[Any]
    horizon: int
    returns: Floats

    @classmethod
    def of(cls, branches: Branches, played: list[Run]) -> GapEstimate:
        """From three plays or more."""
        returns, labels, ends, _ = map(np.array, zip(*played, strict=True))
        gamma, horizon = branches.gamma, branches.horizon
        cut = gamma**horizon * np.ptp(ends) / (1.0 - gamma)
        gaps = returns[:, :, None] - returns[:, None]  # (num_pairs, m, m)
        apart = labels[:, :, None] != labels[:, None]
        unsure = np.where(apart, cut, 0.0) + 1e-12 * np.abs(returns).max()
        rest: Any = cut * apart.mean(0), branches.actions, horizon, returns
        return cls(*gap_statistics(gaps, unsure), *rest)

    def interval(self, name: str, level: float = 0.95) -> tuple[Floats, Floats]:
        """Ends of confidence intervals, entry by entry.

        Those of "mean" and "variance" are as in `GapErrors`, the truncation error of means added;
        those of "prob_worse", "prob_tie" and "prob_better" are Wilson's.
        """
        if name in ("mean", "variance"):
            low, high = super().interval(name, level)
            slack = self.truncation_error if name == "mean" else 0.0
            return low - slack, high + slack
        names = ("prob_worse", "prob_tie", "prob_better")
        share = getattr(self, checks.one_of("name", name, names))
        z, n = normal_quantile(level), len(self.returns)
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        reach = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
        return centre - reach, centre + reach


def estimate_gaps(
    env: Any,
    policy: Callable[[Any], ArrayLike] | ArrayLike,
    actions: Sequence[Any],
    gamma: float | None = None,
    num_pairs: int = 1000,
    seed: Seed = 0,
    *,
    state: Any = None,
    coupling: str = "joint",
    truncation: float = 1e-3,
    horizon: int | None = None,
    processes: int = 1,
) -> GapEstimate:
    """Gaps of actions at one state of a simulator, from recursive branches.

    env: a `CoupledEnv`, a `CoupledAtari`, a JMDP, or a simulator with `query`. It is left alone.
    policy: policy(observation) -> (A,) probabilities. For a JMDP or a simulator the observation is
        the state, and an array (S, A) will do. In a space that is not Discrete the policy returns
        an action.
    actions: m actions to compare. Each play has a branch for each of them, so that all gaps share
        the plays.
    gamma: unless given, that of the simulator, or 0.99.
    num_pairs: how many plays are made.
    state: where to start: a snapshot, or the number of a state; unless given, the state that the
        environment is in.
    coupling: which branches share a draw, as in `jipe2`: "joint", those at one state;
        "independent", none; "common", all of them, one draw per time step.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    processes: with more than one, `env` and `policy` must pickle. The numbers stay the same.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all plays before.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> found = jl.estimate_gaps(jm, jl.goal_policy(3), actions=[0, 2], state=4, num_pairs=300)
        >>> print(f"up gains {found.mean[0, 1]:.2f} +- {found.mean_error[0, 1]:.2f}")
        up gains 1.51 +- 0.04
        >>> low, high = found.interval("prob_better")
        >>> exact = jl.jipe2(jm, jl.goal_policy(3)).moments.gap_mean[4, 0, 2]
        >>> print(f"exact mean {exact:.2f}; P(better) from {low[0, 1]:.2f} to {high[0, 1]:.2f}")
        exact mean 1.52; P(better) from 0.94 to 0.98
    """
    given = (gamma, seed, state, coupling, truncation, horizon)
    branches = Branches.of(env, policy, actions, *given)
    num_pairs = checks.at_least("num_pairs", num_pairs, 3)
    one = checks.at_least("processes", processes, 1) == 1
    ends = np.linspace(0, num_pairs, 2 if one else 4 * processes + 1, dtype=int).tolist()
    jobs = [(first, last, one) for first, last in pairwise(ends)]
    parts = in_processes(branches.several, jobs, processes, "estimate_gaps")
    played = [play for part, _ in parts for play in part]
    failed = next((error for _, error in parts if error), None)
    if failed is None:
        return GapEstimate.of(branches, played)
    failure = SimulatorError(f"{failed} ({len(played)} plays went well)")
    failure.result = GapEstimate.of(branches, played) if len(played) >= 3 else None
    raise failure
