"""How fast JIPE-2 settles, sweep by sweep, and which rates explain it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import CollapsedT2
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.solvers.order2 import jipe2

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Trace(machine.ReadOnly):
    """What `trace_jipe2` recorded: the largest changes from $M_k$ to $T_2 M_k$, $k = 0, 1, ...$

    Attributes:
        mean: (sweeps,), the largest change of any $mu(s, a)$.
        second: (sweeps,), that of any $Sigma(s, a, t, b)$.
        covariance: (sweeps,), that of any entry of $C = Sigma - mu mu'$.
        weight: $lambda$, so that max(mean, second / weight) is the residual of eq. (23).
    """

    mean: Floats
    second: Floats
    covariance: Floats
    weight: float

    def __repr__(self) -> str:
        return f"Trace({self.mean.size:,} sweeps, last residual {self.residuals[-1]:.3g})"

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for every sweep.

        Example:
            >>> import jmdp_lib as jl
            >>> trace = jl.trace_jipe2(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, sweeps=2)
            >>> print(trace.to_frame().round(3))
               sweep  mean  second  covariance  residual
            0      0   1.0    1.00       0.250       1.0
            1      1   0.9    2.61       0.203       0.9
        """
        columns = {"sweep": np.arange(self.mean.size), "mean": self.mean, "second": self.second}
        return machine.table({**columns, "covariance": self.covariance, "residual": self.residuals})

    @property
    def residuals(self) -> Floats:
        """$||M_k - T_2 M_k||_lambda$."""
        return np.maximum(self.mean, self.second / self.weight)


def trace_jipe2(jm: JMDP, policy: Policy, sweeps: int, coupling: str = "joint") -> Trace:
    """The changes of the first `sweeps` applications of $T_2$ from $M_0 = 0$.

    Compares all of $Sigma$, (S, A, S, A), after every sweep: for small models.

    Example:
        >>> import jmdp_lib as jl
        >>> trace = jl.trace_jipe2(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, sweeps=20)
        >>> print(trace.residuals[:3].round(3), round(jl.decay_rate(trace.mean), 3))
        [1.   0.9  0.81] 0.9
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


def covariance_rates(jm: JMDP, policy: Policy) -> tuple[float, float]:
    """The two factors per sweep that covariances settle by: $gamma zeta_mu$ and $gamma^2 zeta_C$.

    $C_{k+1} = c_0(mu_k) + gamma^2 P_2 C_k$. The source $c_0$ sees *differences* of the means, which
    settle by $gamma zeta_mu$: $zeta_mu$ is the second largest eigenvalue of the policy's chain $P$,
    in modulus (the largest belongs to constants). What is in $C$ already fades by $gamma^2 zeta_C$:
    $zeta_C$ is the spectral radius of $P$ among the states whose return varies. The larger one
    bounds the rate in the end; where both are zero, covariances are exact after finitely many
    sweeps.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(3, gamma=0.8)
        >>> by_means, by_itself = jl.covariance_rates(jm, jl.uniform_policy(jm))
        >>> print(f"{by_means:.3f} and {by_itself:.3f}")
        0.780 and 0.624
    """
    matrix = checks.policy_matrix(jm, policy)
    chain = CollapsedT2(jm, matrix).kernel.toarray()
    sizes = np.sort(np.abs(np.linalg.eigvals(chain)))
    moments = jipe2(jm, matrix).moments
    value = (matrix * moments.mean).sum(1, keepdims=True)
    spread = (matrix * (moments.variance + (moments.mean - value) ** 2)).sum(1)
    varies = spread > 1e-9 * jm.reward_bound**2
    among = np.abs(np.linalg.eigvals(chain[np.ix_(varies, varies)]))
    second = sizes[-2] if sizes.size > 1 else 0.0
    return jm.gamma * float(second), jm.gamma**2 * float(among.max(initial=0.0))


def decay_rate(values: ArrayLike, first: int = 0, floor: float = 1e-10) -> float:
    """The factor per step of a geometric decay: least squares on the logarithm.

    Steps before `first` are left out, and values below `floor` times the largest, where rounding
    takes over.

    Example:
        >>> import jmdp_lib as jl
        >>> print(round(jl.decay_rate([4.0, 2.0, 1.0, 0.5]), 6))
        0.5
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
