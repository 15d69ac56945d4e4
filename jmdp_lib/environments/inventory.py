"""Single-item inventory: order quantities compared under the same demand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.model import JMDP
from jmdp_lib.simulators import StepSimulator


def inventory(capacity: int = 10, max_order: int = 5, gamma: float = 0.95, **options: Any) -> JMDP:
    """The outcome tables of `inventory_simulator`, with the same arguments.

    Each table is one demand, the same for every order quantity: the scenario in which a planner
    compares orders.
    """
    simulator = inventory_simulator(capacity, max_order, gamma, **options)
    return JMDP.from_step(*vars(simulator).values())


def inventory_simulator(
    capacity: int = 10,
    max_order: int = 5,
    gamma: float = 0.95,
    demand_probs: ArrayLike | None = None,
    price: float = 3.0,
    order_cost: float = 1.5,
    holding_cost: float = 0.2,
    lost_sale_cost: float = 0.5,
    lead_time: int = 0,
) -> StepSimulator:
    """Action: units ordered, 0..max_order, which arrive after `lead_time` periods.

    State: stock on hand, 0..capacity. With a lead time, it is
    stock * (max_order + 1)**lead_time + the units on order, of which the oldest order is the last
    digit in base max_order + 1; so with a lead time of one, stock * (max_order + 1) + on order.

    One demand D ~ demand_probs (Poisson with mean 3, cut at `capacity`, unless given) meets every
    order. A delivery beyond the capacity is refused and not paid for; demand beyond the stock is
    lost. The reward is
    price * sold - order_cost * delivered - holding_cost * left over - lost_sale_cost * lost.
    """
    capacity = checks.at_least("capacity", capacity, 1)
    base = checks.at_least("max_order", max_order, 0) + 1
    on_road = base ** checks.at_least("lead_time", lead_time, 0)
    if demand_probs is None:
        ratios = 3.0 / np.arange(1, capacity + 100)
        poisson = np.exp(-3.0) * np.cumprod(np.append(1.0, ratios))
        demand_probs = np.append(poisson[:capacity], poisson[capacity:].sum())

    def step(state: int, order: int, demand: int) -> tuple[float, int]:
        stock, orders = divmod(state, on_road)
        orders, arriving = divmod(orders + order * on_road, base)
        delivered = min(arriving, capacity - stock)
        sold = min(stock + delivered, demand)
        left, lost = stock + delivered - sold, demand - sold
        income = price * sold - order_cost * delivered
        return income - holding_cost * left - lost_sale_cost * lost, left * on_road + orders

    return StepSimulator((capacity + 1) * on_road, base, gamma, demand_probs, step)
