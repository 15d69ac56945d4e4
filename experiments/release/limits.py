"""Limits of all networks of the release: few copies of the target, and the noise of the shock.

In the release's training a reward, shock included, is 0 or 1 with equal chances at almost every
step, and returns are divided by 1 / (1 - gamma). The target network stands still between two
copies, so each copy is one backup of the mean and of the variance,

    m_(k+1) = (1 - gamma) / 2 + gamma m_k,
    C_(k+1) = Var r + m_(k+1)^2 - m_k^2 + gamma^2 C_k,      Var r = (1 - gamma)^2 / 4.

The target of the variance is E (r + gamma m')^2 - m^2 + gamma^2 C with the *old* mean m: while the
mean still rises, each copy adds m_(k+1)^2 - m_k^2, which no return has.

A target that is drawn has a variance, and no mean squared error falls below it: its floor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib.checks import Floats


def copies_recursion(
    num_copies: int, gamma: float, mean: float = 0.0, variance: float = 0.0
) -> tuple[Floats, Floats]:
    """(num_copies + 1,) means m_K and variances C_K for K = 0, ..., num_copies.

    mean, variance: where they start.

    Example:
        >>> from experiments.release.limits import copies_recursion
        >>> means, variances = copies_recursion(23, gamma=0.99)
        >>> print(round(means[22], 3), round(2.0 * variances[23] / 1.5e-4))
        0.099 129
    """
    reward_variance = (1.0 - gamma) ** 2 / 4.0
    means: Floats = np.full(num_copies + 1, mean)
    variances: Floats = np.full(num_copies + 1, variance)
    for k in range(num_copies):
        means[k + 1] = (1.0 - gamma) / 2.0 + gamma * means[k]
        drift = means[k + 1] ** 2 - means[k] ** 2
        variances[k + 1] = reward_variance + drift + gamma**2 * variances[k]
    return means, variances


def shock_floors(b: ArrayLike, mean: Floats, gamma: float) -> dict[str, Floats]:
    """The variances (N,) that the shock alone gives the targets of four blocks.

    b: the size of the shock, or (N,). mean: (N,) the target network's mean at a next state. Where
    the game pays nothing, a reward is 0 or (1 - gamma) b with equal chances. The two actions of one
    query are never paid both.

    Example:
        >>> import numpy as np
        >>> from experiments.release.limits import shock_floors
        >>> floors = shock_floors(1.0, np.array([0.1]), gamma=0.99)
        >>> print(*(f"{floor[0]:.1e}" for floor in floors.values()))
        2.5e-05 1.1e-06 0.0e+00 5.4e-07
    """
    size = (1.0 - gamma) * np.reshape(b, (-1, 1))
    x, y = size * [0, 0, 1, 1], size * [0, 1, 0, 1]  # four equal chances
    m = mean[:, None]

    def variance(one: Floats, other: Floats) -> Floats:
        return (one * other + gamma * m * (one + other)).var(1)

    return {
        "mu": np.full(len(mean), x.var(1)),
        "sigma_diag": variance(x, x),
        "sigma_same": variance(x, x[:, ::-1]),
        "sigma_cross": variance(x, y),
    }
