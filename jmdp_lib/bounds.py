"""What moments say about the law of a gap G = Z(s, a) - Z(s, b)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats


def one_sided_bound(mean: ArrayLike, variance: ArrayLike) -> Floats:
    """Cantelli's bound on P(G <= 0): var / (var + mean^2) where mean > 0, else 1 (Section 5.4).

    nan where the mean or the variance is nan.
    """
    mean, variance = np.broadcast_arrays(np.asarray(mean, float), np.asarray(variance, float))
    if np.any(variance < 0):
        raise ValueError(f"variance must not be negative, got {np.nanmin(variance)}")
    bound = np.where(np.isnan(mean + variance), np.nan, 1.0)
    helps = mean > 0
    bound[helps] = variance[helps] / (variance[helps] + mean[helps] ** 2)
    return bound
