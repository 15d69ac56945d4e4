"""Gaps of a JMDP from recursive pairs: many gaps at once, each from a sample of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy, Seed
from jmdp_lib.model import JMDP
from jmdp_lib.montecarlo import horizon_for, play_pairs
from jmdp_lib.simulators.results import GapEstimate
from jmdp_lib.simulators.statistics import gap_statistics

_ROUNDING = 1e-12  # of the largest return: gaps of this size are none


def sample_gaps(
    jm: JMDP,
    policy: Policy,
    gaps: Sequence[tuple[int, int, int]],
    num_pairs: int,
    seed: Seed = 0,
    truncation: float = 1e-7,
    coupling: str = "joint",
) -> GapEstimate:
    """Estimates of gaps, each from `num_pairs` recursive pairs of its own, three or more.

    Every gap has a random stream of its own, whichever others are asked for with it. A gap whose
    sign the cut at the horizon may have changed counts as 0.

    gaps: K of them, each (state, action, other action).
    truncation: which share of the largest possible return may be cut off.
    coupling: which branches share a draw, as in `jipe2`.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> gaps = [(4, 0, 2), (4, 1, 2)]
        >>> found = jl.simulators.sample_gaps(jm, jl.goal_policy(3), gaps, num_pairs=20_000)
        >>> print(found.mean.round(2), found.mean_error.round(3), found.prob_better.round(2))
        [1.97 1.96] [0.006 0.006] [0.97 0.97]
        >>> low, high = found.interval("variance")
        >>> print(low.round(2), high.round(2))
        [0.67 0.68] [0.7  0.71]
    """
    num_pairs = checks.at_least("num_pairs", num_pairs, 3)
    root = checks.purpose_seed(seed, "sample_gaps")
    sample = _played(jm, policy, gaps, num_pairs, root, truncation, coupling)
    off = _gap_error(jm, truncation)
    rounding = _gap_error(jm, _ROUNDING)
    found = np.transpose([gap_statistics(gap, off * apart, rounding) for gap, apart in sample])
    columns: Any = *found[:7], off, num_pairs, None, found[7]
    index = dict(zip(("state", "action", "other"), np.transpose(gaps), strict=True))
    return GapEstimate(*columns, index=index, entropy=root.entropy)


def _played(
    jm: JMDP,
    policy: Policy,
    gaps: ArrayLike,
    num_pairs: int,
    seed: Seed,
    truncation: float,
    coupling: str,
) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
    """Samples (N,) of each gap (state, action, other action), and whether branches stayed apart."""
    asked = checks.integers("gaps", gaps, "gap", **{"(state, action, other action)": 3}).tolist()
    for s, *pair in asked:
        checks.index("state", s, jm.num_states)
        for action in pair:
            checks.index("action", action, jm.num_actions)
    steps = horizon_for(jm, truncation)
    for s, a, b in asked:
        own = checks.seed_sequence(seed, s, a, b)
        returns, apart = play_pairs(jm, policy, s, (a, b), num_pairs, own, steps, coupling)
        yield returns[:, 0] - returns[:, 1], apart


def _gap_error(jm: JMDP, truncation: float) -> float:
    """How far the cut may have moved a gap: both returns may have lost their share."""
    return 2.0 * truncation * float(np.abs(jm.reward_range).max()) / (1.0 - jm.gamma)
