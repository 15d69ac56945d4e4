"""What moments say about the law of a gap G = Z(s, a) - Z(s, b)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats


def one_sided_bound(mean: ArrayLike, variance: ArrayLike) -> Floats:
    """Cantelli's bound on P(G <= 0): var / (var + mean^2) where mean > 0, else 1 (Section 5.4)."""
    mean, variance = np.broadcast_arrays(np.asarray(mean, float), np.asarray(variance, float))
    bound = np.ones(mean.shape)
    helps = mean > 0
    bound[helps] = variance[helps] / (variance[helps] + mean[helps] ** 2)
    return bound
