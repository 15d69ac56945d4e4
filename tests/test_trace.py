"""What settles how fast in JIPE-2."""

from __future__ import annotations

import numpy as np
from strategies import random_jmdp, random_policy

import jmdp_lib as jl


def test_trace_agrees_with_the_literal_operator() -> None:
    rng = np.random.default_rng(0)
    jm = random_jmdp(rng)
    policy = random_policy(rng, jm)
    trace = jl.trace_jipe2(jm, policy, 4)
    mean, second = np.zeros((3, 2)), np.zeros((3, 2, 3, 2))
    for recorded in zip(trace.mean, trace.second, trace.covariance, strict=True):
        after = jl.apply_t2(jm, policy, mean, second)
        centred = [s - np.multiply.outer(m, m) for m, s in ((mean, second), after)]
        changes = after[0] - mean, after[1] - second, centred[1] - centred[0]
        np.testing.assert_allclose(recorded, [np.abs(change).max() for change in changes])
        mean, second = after
