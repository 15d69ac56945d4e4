"""Simulators that are made of a step function, and two that practitioners know.

A shop orders before it knows demand, and a job joins one of two queues. Both are simulators, and
outcome tables as well: the simulator has the step function, and the JMDP is made of it. Write a
world of your own in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from jmdp_lib import checks
from jmdp_lib.model import JMDP
from jmdp_lib.model.simulator import declared_range, draw_index


@dataclass(frozen=True, eq=False)
class StepSimulator:
    """A simulator made of a step function: a query draws one noise, which all its actions share.

    `JMDP.from_step` makes the outcome tables of the same world. From one generator, both draw the
    same.

    Args:
        num_states: |S|.
        num_actions: |A|.
        gamma: discount factor in [0, 1).
        noise_probs: (K,) probability of each noise in 0, ..., K - 1.
        step: step(s, a, u) -> (reward, next_state), pure: all of its randomness is the noise u.
        reward_range: (lo, hi) that holds all rewards; any finite reward will do unless given.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> def step(state, action, rain):
        ...     return (-0.2 if action == 0 else -float(rain)), 0
        ...
        >>> world = jl.simulators.StepSimulator(1, 2, 0.9, [0.7, 0.3], step)
        >>> world.query(0, [0, 1], np.random.default_rng(2))
        ([-0.2, -0.0], [0, 0])
        >>> tables = jl.JMDP.from_step(1, 2, 0.9, [0.7, 0.3], step)
        >>> tables.query(0, [0, 1], np.random.default_rng(2))
        (array([-0.2, -0. ]), array([0, 0]))
    """

    num_states: int
    num_actions: int
    gamma: float
    noise_probs: ArrayLike
    step: Callable[[int, int, int], tuple[float, int]]
    reward_range: tuple[float, float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.distributions("noise_probs", self.noise_probs, "noise")
        declared_range(self.reward_range)

    @cached_property
    def _cumulative(self) -> list[float]:
        return np.cumsum(self.noise_probs).tolist()

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[float], list[int]]:
        """Rewards (m,) and next states (m,) of the actions under one draw of the noise.

        Args:
            state: where the actions are tried.
            actions: (m,) distinct actions.
            rng: the generator from which all randomness comes.
        """
        noise = draw_index(self._cumulative, rng)
        rewards, states = zip(*(self.step(state, a, noise) for a in actions), strict=True)
        return list(rewards), list(states)


def inventory(
    capacity: int = 10,
    max_order: int = 5,
    gamma: float = 0.95,
    *,
    demand_probs: ArrayLike | None = None,
    price: float = 3.0,
    order_cost: float = 1.5,
    holding_cost: float = 0.2,
    lost_sale_cost: float = 0.5,
    lead_time: int = 0,
) -> JMDP:
    """The outcome tables of `inventory_simulator`, with the same arguments.

    Each table is one demand, the same for every order quantity: the scenario in which a planner
    compares orders.

    Args:
        capacity: most units on the shelf.
        max_order: most units in an order.
        gamma: discount factor in [0, 1).
        demand_probs: (K,) probabilities of demands 0 to K - 1; unless given the Poisson law with
            mean 3, cut at `capacity`.
        price: earned for a unit sold.
        order_cost: paid for a unit delivered.
        holding_cost: paid for a unit left over.
        lost_sale_cost: paid for a unit of demand that was not met.
        lead_time: periods until an order arrives.

    Returns:
        A JMDP of the states and actions that `inventory_simulator` describes.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.inventory(capacity=4, max_order=2)
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> gap = (0, 2, 0)
        >>> print(f"empty shelf, order 2 instead of 0: {moments.gap_mean[gap]:.2f} better,"
        ...       f" +- {moments.gap_variance[gap] ** 0.5:.2f}")
        empty shelf, order 2 instead of 0: 3.87 better, +- 3.67
    """
    return _tables_of(
        inventory_simulator(
            capacity,
            max_order,
            gamma,
            demand_probs=demand_probs,
            price=price,
            order_cost=order_cost,
            holding_cost=holding_cost,
            lost_sale_cost=lost_sale_cost,
            lead_time=lead_time,
        )
    )


def _tables_of(world: StepSimulator) -> JMDP:
    sizes = (world.num_states, world.num_actions)
    return JMDP.from_step(*sizes, world.gamma, world.noise_probs, world.step)


def inventory_simulator(
    capacity: int = 10,
    max_order: int = 5,
    gamma: float = 0.95,
    *,
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

    One demand meets every order. A delivery beyond the capacity is refused and not paid for; demand
    beyond the stock is lost. The reward is
    price * sold - order_cost * delivered - holding_cost * left over - lost_sale_cost * lost.

    Args:
        capacity: most units on the shelf.
        max_order: most units in an order.
        gamma: discount factor in [0, 1).
        demand_probs: (K,) probabilities of demands 0 to K - 1; unless given the Poisson law with
            mean 3, cut at `capacity`.
        price: earned for a unit sold.
        order_cost: paid for a unit delivered.
        holding_cost: paid for a unit left over.
        lost_sale_cost: paid for a unit of demand that was not met.
        lead_time: periods until an order arrives.

    Returns:
        A simulator that also has the noise and the step function of its tables.

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
        demand_probs = -np.diff(special.pdtrc(np.arange(capacity), 3.0), prepend=1.0, append=0.0)
    most = checks.distributions("demand_probs", demand_probs, "demand").size - 1
    checks.real("price", price, "(-inf, inf)")
    checks.real("order_cost", order_cost, "(-inf, inf)")
    checks.real("holding_cost", holding_cost, "(-inf, inf)")
    checks.real("lost_sale_cost", lost_sale_cost, "(-inf, inf)")

    def earned(stock: int, delivered: int, demand: int) -> float:
        sold = min(stock + delivered, demand)
        income = price * sold - order_cost * delivered
        return income - holding_cost * (stock + delivered - sold) - lost_sale_cost * (demand - sold)

    def step(state: int, order: int, demand: int) -> tuple[float, int]:
        stock, orders = divmod(state, on_road)
        orders, arriving = divmod(orders + order * on_road, base)
        delivered = min(arriving, capacity - stock)
        left = max(stock + delivered - demand, 0)
        return earned(stock, delivered, demand), left * on_road + orders

    pays = _extremes(earned, capacity, base - 1, most)
    size = (capacity + 1) * on_road
    return StepSimulator(size, base, gamma, demand_probs, step, reward_range=pays)


def _extremes(
    earned: Callable[[int, int, int], float], capacity: int, largest_order: int, most: int
) -> tuple[float, float]:
    """The least and the largest pay of a day with demands up to `most`.

    It is linear in what is delivered, and in the demand below and above what is there.
    """
    corners = [
        earned(full - delivered, delivered, demand)
        for full in range(capacity + 1)
        for delivered in (0, min(largest_order, full))
        for demand in (0, min(full, most), most)
    ]
    return min(corners), max(corners)


def two_queues(capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95) -> JMDP:
    """The outcome tables of `two_queues_simulator`, one for each of the eight events of a step.

    Args:
        capacity: most jobs in a queue.
        arrival_prob: probability that a job arrives in a step.
        gamma: discount factor in [0, 1).

    Returns:
        A JMDP of (capacity + 1)**2 states and 2 actions.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.two_queues(capacity=2)
        >>> jm
        JMDP(num_states=9, num_actions=2, num_tables=72, gamma=0.95)
        >>> policy = jl.uniform_policy(jm)
        >>> print(f"{jl.jipe2(jm, policy).moments.gap_mean[0, 0, 1]:.2f} for the fast server")
        1.13 for the fast server
    """
    return _tables_of(two_queues_simulator(capacity, arrival_prob, gamma))


def two_queues_simulator(
    capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95
) -> StepSimulator:
    """Two queues: which one does the next job join, 0 or 1, under the same arrivals and services?

    With i jobs in the first queue and j in the second, the state is i * (capacity + 1) + j.
    Three coins are the same for both actions: whether a job arrives, whether the first server
    finishes one (1/2), and whether the second does (3/10). A job that finds its queue full is lost.
    The reward is minus the number of jobs at the end of the step, and minus 5 for a job that was
    lost.

    Args:
        capacity: most jobs in a queue.
        arrival_prob: probability that a job arrives in a step.
        gamma: discount factor in [0, 1).

    Returns:
        A simulator of (capacity + 1)**2 states and 2 actions.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> queues = jl.two_queues_simulator(capacity=2)
        >>> queues.query(4, [0, 1], np.random.default_rng(0))
        ([-2.0, -2.0], [6, 4])
    """
    side = checks.at_least("capacity", capacity, 1) + 1
    chances = np.array([checks.probability("arrival_prob", arrival_prob), 0.5, 0.3])
    events = [*product((0, 1), repeat=3)]  # arrival, first service, second service

    def step(state: int, action: int, noise: int) -> tuple[float, int]:
        arrival, *served = events[noise]
        jobs = [*divmod(state, side)]
        lost = arrival and jobs[action] == capacity
        jobs[action] += arrival - lost
        left = [max(held - done, 0) for held, done in zip(jobs, served, strict=True)]
        return -sum(left) - 5.0 * lost, left[0] * side + left[1]

    probs = np.where(events, chances, 1.0 - chances).prod(1)
    return StepSimulator(side**2, 2, gamma, probs, step, reward_range=(-2.0 * capacity - 5.0, 0.0))
