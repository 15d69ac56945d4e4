"""Single-item inventory: order quantities compared under the same demand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.model import JMDP


def inventory(
    capacity: int = 10,
    max_order: int = 5,
    gamma: float = 0.95,
    demand_probs: ArrayLike | None = None,
    price: float = 3.0,
    order_cost: float = 1.5,
    holding_cost: float = 0.2,
    lost_sale_cost: float = 0.5,
) -> JMDP:
    """State: stock on hand, 0..capacity. Action: units ordered, 0..max_order, delivered at once.

    Each table is one demand D ~ demand_probs (Poisson with mean 3, cut at `capacity`, unless
    given), the same for every order quantity: the scenario in which a planner compares orders.
    What exceeds the capacity is not ordered; demand beyond the stock is lost. The reward is
    price * sold - order_cost * ordered - holding_cost * left over - lost_sale_cost * lost.
    """
    capacity = checks.at_least("capacity", capacity, 1)
    max_order = checks.at_least("max_order", max_order, 0)
    if demand_probs is None:
        ratios = 3.0 / np.arange(1, capacity + 100)
        poisson = np.exp(-3.0) * np.cumprod(np.append(1.0, ratios))
        demand_probs = np.append(poisson[:capacity], poisson[capacity:].sum())

    def step(stock: int, order: int, demand: int) -> tuple[float, int]:
        ordered = min(order, capacity - stock)
        sold = min(stock + ordered, demand)
        left, lost = stock + ordered - sold, demand - sold
        income = price * sold - order_cost * ordered
        return income - holding_cost * left - lost_sale_cost * lost, left

    return JMDP.from_step(capacity + 1, max_order + 1, gamma, demand_probs, step)
