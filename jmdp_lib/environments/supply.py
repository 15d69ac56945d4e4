"""Supply and service: a shop that orders before it knows demand, and two queues."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP, room_for_tables
from jmdp_lib.model.queries import StepSimulator


def inventory(capacity: int = 10, max_order: int = 5, gamma: float = 0.95, **options: Any) -> JMDP:
    """The outcome tables of `inventory_simulator`, with the same arguments.

    Each table is one demand, the same for every order quantity: the scenario in which a planner
    compares orders.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.inventory(capacity=4, max_order=2)
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> gap = (0, 2, 0)
        >>> print(f"empty shelf, order 2 instead of 0: {moments.gap_mean[gap]:.2f} better,"
        ...       f" +- {moments.gap_variance[gap] ** 0.5:.2f}")
        empty shelf, order 2 instead of 0: 3.87 better, +- 3.67
    """
    known = list(signature(inventory_simulator).parameters)
    for name in options:
        if name not in known:
            raise TypeError(f"inventory has no option {name!r}; it has {', '.join(known)}")
    simulator = inventory_simulator(capacity, max_order, gamma, **options)
    shape = (simulator.num_states, np.size(simulator.noise_probs), simulator.num_actions)
    room_for_tables("capacity, max_order and lead_time", *shape)
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
    """A shop with one product: how many units to order, under the same demand for every order.

    An action is the number of units ordered, 0 to max_order; they arrive after `lead_time` periods.
    A state is the stock on hand, 0 to capacity. With a lead time of one it is
    stock * (max_order + 1) + units on order. With a longer one, the units on order are a number in
    base max_order + 1 whose last digit is the oldest order: the state is
    stock * (max_order + 1)**lead_time + that number.

    One demand meets every order. It is drawn from `demand_probs` (K,), unless given the Poisson law
    with mean 3, cut at `capacity`. A delivery beyond the capacity is refused and not paid for;
    demand beyond the stock is lost. The reward is
    price * sold - order_cost * delivered - holding_cost * left over - lost_sale_cost * lost.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> shop = jl.inventory_simulator(capacity=4, max_order=2)
        >>> rewards, stock = shop.query(1, [0, 1, 2], np.random.default_rng(1))
        >>> print("orders 0, 1, 2 under one demand earn", rewards, "and leave", stock)
        orders 0, 1, 2 under one demand earn [2.0, 4.0, 6.0] and leave [0, 0, 0]
    """
    capacity = checks.at_least("capacity", capacity, 1)
    base = checks.at_least("max_order", max_order, 0) + 1
    on_road = base ** checks.at_least("lead_time", lead_time, 0)
    if demand_probs is None:
        demand_probs = _poisson(capacity)
    most = checks.distributions("demand_probs", demand_probs, "demand").size - 1

    def earned(stock: int, delivered: int, demand: int) -> float:
        sold = min(stock + delivered, demand)
        left = stock + delivered - sold
        lost = demand - sold
        income = price * sold - order_cost * delivered
        return income - holding_cost * left - lost_sale_cost * lost

    def step(state: int, order: int, demand: int) -> tuple[float, int]:
        stock, orders = divmod(state, on_road)
        orders, arriving = divmod(orders + order * on_road, base)
        delivered = min(arriving, capacity - stock)
        left = max(stock + delivered - demand, 0)
        return earned(stock, delivered, demand), left * on_road + orders

    pays = [earned(*day) for day in _extreme_days(capacity, base - 1, most)]
    ends = (min(pays), max(pays))
    return StepSimulator((capacity + 1) * on_road, base, gamma, demand_probs, step, ends)


def _poisson(capacity: int) -> Floats:
    """(capacity + 1,) the Poisson law with mean 3, cut at the capacity."""
    ratios = 3.0 / np.arange(1, capacity + 100)
    probs = np.exp(-3.0) * np.cumprod(np.append(1.0, ratios))
    return np.append(probs[:capacity], probs[capacity:].sum())


def _extreme_days(capacity: int, max_order: int, most: int) -> list[tuple[int, int, int]]:
    """Days (stock, delivered, demand), the best and the worst among them; most: of the demands.

    What a day earns is linear where demand exceeds the stock, and where it does not: it is least
    and largest at corners of these two parts.
    """
    return [
        (full - delivered, delivered, demand)
        for delivered in (0, min(max_order, capacity))
        for full in (delivered, capacity, min(max(most, delivered), capacity))
        for demand in (0, min(full, most), most)
    ]


def two_queues(capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95) -> JMDP:
    """The outcome tables of `two_queues_simulator`, one for each of the eight events of a step.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.two_queues(capacity=2)
        >>> jm
        JMDP(num_states=9, num_actions=2, num_tables=72, gamma=0.95)
        >>> policy = jl.uniform_policy(jm)
        >>> print(f"{jl.jipe2(jm, policy).moments.gap_mean[0, 0, 1]:.2f} for the fast server")
        1.13 for the fast server
    """
    simulator = two_queues_simulator(capacity, arrival_prob, gamma)
    probs = np.asarray(simulator.noise_probs)
    shape = (simulator.num_states, probs.size, simulator.num_actions)
    room_for_tables("capacity", *shape)
    states, noise, actions = np.ogrid[tuple(map(slice, shape))]
    step: Any = simulator.step
    rewards, next_states = step(states, actions, noise)  # (S, K, A)
    return JMDP(np.tile(probs, (shape[0], 1)), rewards, next_states, gamma)


def two_queues_simulator(
    capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95
) -> StepSimulator:
    """Two queues: which one does the next job join, 0 or 1, under the same arrivals and services?

    With i jobs in the first queue and j in the second, the state is i * (capacity + 1) + j.
    Three coins are the same for both actions: whether a job arrives (with `arrival_prob`), whether
    the first server finishes one (1/2), and whether the second does (3/10). A job that finds its
    queue full is lost. The reward is minus the number of jobs at the end of the step, and minus 5
    for a job that was lost.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> queues = jl.two_queues_simulator(capacity=2)
        >>> queues.query(4, [0, 1], np.random.default_rng(0))
        ([-2.0, -2.0], [6, 4])
    """
    side = checks.at_least("capacity", capacity, 1) + 1
    chances = np.array([checks.probability("arrival_prob", arrival_prob), 0.5, 0.3])
    events = np.indices((2, 2, 2)).reshape(3, 8).T  # arrival, first service, second service

    def step(state: int, action: int, noise: int) -> tuple[float, int]:
        """By arithmetic that numbers and arrays have in common."""
        arrival = noise >> 2  # these three are events[noise]
        served = (noise >> 1 & 1, noise & 1)
        jobs = [*divmod(state, side)]
        lost = 0
        for queue, done in enumerate(served):
            joins = arrival * (action == queue)
            refused = joins * (jobs[queue] == capacity)
            held = jobs[queue] + joins - refused
            jobs[queue] = held - done * (held > 0)
            lost = lost + refused
        return -jobs[0] - jobs[1] - 5.0 * lost, jobs[0] * side + jobs[1]

    probs = np.where(events, chances, 1.0 - chances).prod(1)
    return StepSimulator(side**2, 2, gamma, probs, step, (-2.0 * capacity - 5.0, 0.0))
