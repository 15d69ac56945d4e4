"""How fast each part of JIPE-2 settles, sweep by sweep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.solvers.order2 import jipe2


@dataclass(frozen=True, eq=False)
class Trace:
    """Largest change of any coordinate from M_k to T_2 M_k, for k = 0, 1, ...: arrays (sweeps,).

    Attributes:
        mean: of mu(s, a).
        second: of Sigma(s, a, t, b), all of it.
        covariance: of C = Sigma - mu mu', all of it.
        weight: lambda, so that max(mean, second / weight) is the residual of eq. (23).
    """

    mean: Floats
    second: Floats
    covariance: Floats
    weight: float

    @property
    def residuals(self) -> Floats:
        """||M_k - T_2 M_k||_lambda."""
        return np.maximum(self.mean, self.second / self.weight)


def trace_jipe2(jm: JMDP, policy: ArrayLike, sweeps: int, coupling: str = "joint") -> Trace:
    """The changes of the first `sweeps` applications of T_2 from M_0 = 0.

    Compares all of Sigma, (S, A, S, A), after every sweep: for small models.
    """
    operator = PairOperator.of("trace_jipe2", jm, policy, coupling)
    state, rows, parts = operator.zero(), [], ("mean", "second", "covariance")
    for _ in range(checks.at_least("sweeps", sweeps, 1)):
        old, state = state, operator.apply(state)
        rows.append([np.abs(getattr(state, x) - getattr(old, x)).max() for x in parts])
    mean, second, covariance = np.transpose(rows)
    return Trace(mean, second, covariance, operator.weight)


def covariance_rates(jm: JMDP, policy: ArrayLike) -> tuple[float, float]:
    """The two factors per sweep that covariances settle by: gamma zeta_mu and gamma^2 zeta_C.

    C_{k+1} = c_0(mu_k) + gamma^2 P_2 C_k. The source c_0 sees *differences* of the means, which
    settle by gamma zeta_mu: zeta_mu is the second largest eigenvalue of the policy's chain P, in
    modulus (the largest belongs to constants). What is in C already fades by gamma^2 zeta_C: zeta_C
    is the spectral radius of P among the states whose return varies. The larger one bounds the rate
    in the end; where both are zero, covariances are exact after finitely many sweeps.
    """
    matrix = checks.policy_matrix(jm, policy)
    chain = CollapsedT2(jm, matrix).kernel.toarray()
    sizes = np.sort(np.abs(np.linalg.eigvals(chain)))
    moments = jipe2(jm, matrix).moments
    value = (matrix * moments.mean).sum(1, keepdims=True)
    varies = (matrix * (moments.variance + (moments.mean - value) ** 2)).sum(1) > 1e-9
    among = np.abs(np.linalg.eigvals(chain[np.ix_(varies, varies)]))
    second = sizes[-2] if sizes.size > 1 else 0.0
    return jm.gamma * float(second), jm.gamma**2 * float(among.max(initial=0.0))


def decay_rate(values: ArrayLike, first: int = 0, floor: float = 1e-10) -> float:
    """The factor per step of a geometric decay: least squares on the logarithm.

    Steps before `first` are left out, and values below `floor` times the largest, where rounding
    takes over.
    """
    sizes = checks.floats("values", values, "step")
    steps = np.arange(sizes.size)
    used = (steps >= first) & (sizes > floor * sizes.max())
    if used.sum() < 2:
        raise ValueError(
            f"a rate needs two values above {floor:g} of the largest from step {first} on, "
            f"found {used.sum()} of {sizes.size}"
        )
    return float(np.exp(np.polyfit(steps[used], np.log(sizes[used]), 1)[0]))
