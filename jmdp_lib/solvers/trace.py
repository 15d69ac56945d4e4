"""Residuals of JIPE-2, sweep by sweep: the paper's curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.policies import Policy


@dataclass(frozen=True, eq=False, repr=False)
class Trace(machine.ReadOnly):
    """Result of `trace_jipe2`: the largest changes from $M_k$ to $T_2 M_k$, $k = 0, 1, ...$

    Attributes:
        mean: (sweeps,), the largest change of any $mu(s, a)$.
        second: (sweeps,), the largest change of any $Sigma(s, a, t, b)$.
        covariance: (sweeps,), the largest change of any entry of $C = Sigma - mu mu'$.
        weight: $lambda$. The residual of eq. (23) is max(mean, second / weight).
    """

    mean: Floats
    second: Floats
    covariance: Floats
    weight: float

    def __repr__(self) -> str:
        return f"Trace({self.mean.size:,} sweeps, last residual {self.residuals[-1]:.3g})"

    @property
    def residuals(self) -> Floats:
        """Residuals $||M_k - T_2 M_k||_lambda$."""
        return np.maximum(self.mean, self.second / self.weight)


def trace_jipe2(
    jm: JMDP,
    policy: Policy,
    sweeps: int,
    *,
    coupling: CouplingName = DEFAULT_COUPLING,
) -> Trace:
    """Record the changes in the first applications of $T_2$, from $M_0 = 0$.

    All of $Sigma$, (S, A, S, A), is compared after every sweep, so models must be small.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        sweeps: number of applications of $T_2$.
        coupling: which branches share a draw, as in `jipe2`.

    Returns:
        The largest changes of means, second moments and covariances, sweep by sweep.

    Example:
        >>> import jmdp_lib as jl
        >>> trace = jl.trace_jipe2(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, sweeps=20)
        >>> print(trace.residuals[:3].round(3))
        [1.   0.9  0.81]
    """
    operator = PairOperator.of("trace_jipe2", jm, policy, coupling)
    state = operator.zero()
    rows = []
    parts = ("mean", "second", "covariance")
    for _ in range(checks.at_least("sweeps", sweeps, 1)):
        old = state
        state = operator.apply(state)
        rows.append([np.abs(getattr(state, x) - getattr(old, x)).max() for x in parts])
    mean, second, covariance = np.transpose(rows)
    return Trace(mean, second, covariance, operator.weight)
