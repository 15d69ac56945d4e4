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
    """What recursive branches say about the gaps G = Z(x, a) - Z(x, b) of m actions at a state x.

    Arrays are (m, m), entry [i, j] about actions[i] against actions[j].

    Attributes:
        prob_worse, prob_tie, prob_better: shares of pairs with G < 0, G = 0 and G > 0; a G that
            the cut at the horizon may have turned counts as 0.
        truncation_error: how far that cut may have moved E G, if later rewards are like those seen.
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

        Of "mean", with the truncation error, and "variance" as of `GapErrors`; of "prob_worse",
        "prob_tie" and "prob_better" Wilson's.
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
    actions: m of them. Each play has a branch for each of them, so that all gaps share the plays.
    gamma: unless given, that of the simulator, or 0.99.
    state: where to start: a snapshot, or the number of a state. None: where the environment is.
    coupling: which branches share a draw: "joint", "independent" or "common": one
        draw per time step for all branches, wherever they are.
    truncation: which share of the largest possible return may be cut off; it sets the horizon.
    processes: with more than one, `env` and `policy` must pickle. The numbers stay the same.

    If the simulator fails, the `SimulatorError` names state and action, and holds the result of
    all plays before.
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
