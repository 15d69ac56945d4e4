"""The paper's norm on moment collections and what it makes of the Bellman operators.

    ||M||_lambda = max_k ||M^(k)||_inf / lambda_k,     lambda_k = (2 rho / (1 - gamma))^(k-1)

(eqs. (20) and (34)), with rho >= |R|: the paper has rho = 1. T_n is a gamma-contraction in it, so

    ||M - M^pi||_lambda <= ||M - T_n M||_lambda / (1 - gamma)                     (eq. (23))

certifies the accuracy of any candidate M.
"""

from __future__ import annotations

from jmdp_lib import checks


def norm_weight(order: int, gamma: float, reward_bound: float = 1.0) -> float:
    """lambda_k for k = order; lambda = lambda_2 = 2 rho / (1 - gamma)."""
    order = checks.at_least("order", order, 1)
    reward_bound = checks.positive("reward_bound", reward_bound)
    return float((2.0 * reward_bound / (1.0 - checks.discount(gamma))) ** (order - 1))


def contraction_modulus(order: int, gamma: float) -> float:
    """The exact modulus of the order-k block, ((1+gamma)/2)^k - ((1-gamma)/2)^k <= gamma.

    sum_{l=1..k} C(k,l) gamma^l rho^(k-l) lambda_l / lambda_k, by the binomial theorem; it does not
    depend on rho, and equals gamma for k = 1 and k = 2.
    """
    order = checks.at_least("order", order, 1)
    gamma = checks.discount(gamma)
    return float(((1.0 + gamma) / 2.0) ** order - ((1.0 - gamma) / 2.0) ** order)
