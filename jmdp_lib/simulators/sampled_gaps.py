"""Gaps of a JMDP from recursive pairs: many gaps at once, each from a sample of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy, Seed
from jmdp_lib.model import JMDP
from jmdp_lib.montecarlo import simulate_pairs
from jmdp_lib.simulators.results import GapEstimate
from jmdp_lib.simulators.statistics import gap_statistics


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
    found = np.transpose([gap_statistics(gap, off) for _, gap in sample])
    index = dict(zip(("state", "action", "other"), np.transpose(gaps), strict=True))
    columns: Any = (*found, off, num_pairs)
    return GapEstimate(*columns, index=index, entropy=root.entropy)


def _played(
    jm: JMDP,
    policy: Policy,
    gaps: ArrayLike,
    num_pairs: int,
    seed: Seed,
    truncation: float,
    coupling: str,
) -> Iterator[tuple[tuple[int, int, int], Floats]]:
    """Each gap (state, action, other action), all of them checked first, and its sample (N,)."""
    asked = checks.integers("gaps", gaps, "gap", **{"(state, action, other action)": 3}).tolist()
    for s, *pair in asked:
        checks.index("state", s, jm.num_states)
        for action in pair:
            checks.index("action", action, jm.num_actions)
    for s, a, b in asked:
        own = checks.seed_sequence(seed, s, a, b)
        x, y = simulate_pairs(jm, policy, s, (a, b), num_pairs, own, None, truncation, coupling).T
        yield (s, a, b), x - y


def _gap_error(jm: JMDP, truncation: float) -> float:
    """How far the cut may have moved a gap: both returns may have lost their share."""
    return 2.0 * truncation * float(np.abs(jm.reward_range).max()) / (1.0 - jm.gamma)
