"""What settles how fast in JIPE-2."""

from __future__ import annotations

import numpy as np

import jmdp_lib as jl
from jmdp_lib.solvers.trace import trace_jipe2


def test_trace_agrees_with_the_literal_operator() -> None:
    rng = np.random.default_rng(0)
    jm = jl.JMDP(
        rng.dirichlet([1, 1], 3),
        rng.uniform(-2, 2, (3, 2, 2)),
        rng.integers(3, size=(3, 2, 2)),
        0.7,
    )
    policy = rng.dirichlet([1, 1], 3)
    trace = trace_jipe2(jm, policy, 4)
    mean, second = np.zeros((3, 2)), np.zeros((3, 2, 3, 2))
    for k in range(4):
        after = jl.apply_t2(jm, policy, mean, second)
        centred = [s - np.multiply.outer(m, m) for m, s in ((mean, second), after)]
        assert np.isclose(trace.mean[k], np.abs(after[0] - mean).max())
        assert np.isclose(trace.second[k], np.abs(after[1] - second).max())
        assert np.isclose(trace.covariance[k], np.abs(centred[1] - centred[0]).max())
        mean, second = after
