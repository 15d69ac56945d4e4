"""Environments of the paper, some that practitioners know, and policies to begin with.

The paper has the windy gridworld (Figure 1), in which a gust couples the four moves of a cell; the
coupled reward chain (Figure 3), whose two actions share one next state and have anti-correlated
rewards; and Examples 1, 2.1 and 2.2, with equal marginals and different joint distributions.
Practitioners know the shop that orders before it knows demand, and two queues: both are simulators
as well.

To add one, write a function that returns a `JMDP`: `JMDP.from_step` makes it of a step function,
which is short, and `JMDP` itself of arrays, which is fast for many states. Draw the noise before
looking at the action, so that one draw is shared by all actions. If it is also wanted as a
simulator, the simulator has the step function, and the JMDP is made of it, as `inventory` is. The
page `book/layout.md` adds one from start to end, with its tests and what a public name needs.

What a policy may be, everywhere, `checks.policy_matrix` says.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Sized
from jmdp_lib.model import JMDP, room_for_tables
from jmdp_lib.model.simulator import StepSimulator

Direction = Literal["U", "R", "D", "L"]
ACTIONS = get_args(Direction)
Scale = Literal["unit", "signed"]
_MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # (row, column), row 0 on top


def windy_gridworld(
    size: int = 5, gust_prob: float = 0.2, gamma: float = 0.95, *, gust: Direction = "L"
) -> JMDP:
    """The windy gridworld (Figure 1) with actions 0 to 3: up, right, down, left.

    States count row by row from the top left: cell (row, column) is state row * size + column.
    The goal, top right, is absorbing; every transition into or inside it earns 1, all others 0.
    Each table is one gust draw *for all four actions*: with probability gust_prob the agent is
    moved one more cell in direction `gust`, one of "U", "R", "D" and "L" (left in the paper),
    after its own move. Walls clip both moves.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gust_prob=0.2)
        >>> jm
        JMDP(num_states=9, num_actions=4, num_tables=18, gamma=0.95)
        >>> calm, gust = jm.next_states[jm.table_states == 4]
        >>> print("from the centre, U R D L lead to", calm, "and in a gust to", gust)
        from the centre, U R D L lead to [1 5 7 3] and in a gust to [0 4 6 3]
    """
    size = checks.at_least("size", size, 1)
    gust_prob = checks.probability("gust_prob", gust_prob)
    wind = _MOVES[ACTIONS.index(checks.one_of("gust", gust, ACTIONS))]
    room_for_tables("size", size**2, 2, len(ACTIONS))
    goal = size - 1
    cells = np.stack(np.divmod(np.arange(size**2), size), axis=-1)  # (S, 2)
    moved = np.clip(cells[:, None] + _MOVES, 0, goal)  # (S, A, 2)
    blown = np.clip(moved + wind, 0, goal)
    landed = np.stack([moved, blown], axis=1) @ np.array([size, 1])  # (S, K=2, A)
    landed[goal] = goal
    probs = np.tile([1.0 - gust_prob, gust_prob], (size**2, 1))
    return JMDP(probs, (landed == goal).astype(float), landed, gamma)


def goal_policy(size: int = 5) -> Floats:
    """The policy of Figure 1, (S, 4): right until the last column, then up.

    Example:
        >>> import jmdp_lib as jl
        >>> policy = jl.goal_policy(3)
        >>> policy.shape
        (9, 4)
        >>> print(policy.argmax(axis=1).reshape(3, 3))
        [[1 1 0]
         [1 1 0]
         [1 1 0]]
    """
    size = checks.at_least("size", size, 1)
    actions: Ints = np.full(size**2, ACTIONS.index("R"))
    actions[size - 1 :: size] = ACTIONS.index("U")
    return np.eye(len(ACTIONS))[actions]


def coupled_reward_chain(
    num_states: int = 25, gamma: float = 0.95, *, rewards: Scale = "unit"
) -> JMDP:
    """The coupled reward chain $s_0 -> s_1 -> ... -> s_{n-1}$ with two actions (Figure 3).

    Every state draws its own fair coin $U$, 0 or 1. With `rewards="unit"` the two actions earn
    $U$ and $1 - U$; with "signed" they earn $2U - 1$ and $1 - 2U$, as in the paper's picture. Both
    move to the next state. The last state is absorbing and pays 1 to both. The correlations of the
    returns are the same for both scales.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> print(f"{moments.variance[0, 0]:.6f} {moments.correlation[0, 0, 1]:.6f}")
        0.616525 -0.272475
    """
    num_states = checks.at_least("num_states", num_states, 1)
    scale = checks.one_of("rewards", rewards, get_args(Scale))
    room_for_tables("num_states", num_states, 2, 2)
    pays = np.eye(2) if scale == "unit" else 2.0 * np.eye(2) - 1.0
    reward = np.tile(pays, (num_states, 1, 1))  # (S, K=2, A=2): table k favours action k
    reward[-1] = 1.0
    after = np.minimum(np.arange(num_states) + 1, num_states - 1)
    successor = np.tile(after[:, None, None], (1, 2, 2))
    return JMDP(np.full((num_states, 2), 0.5), reward, successor, gamma)


def example_1(gamma: float = 0.9) -> JMDP:
    """Example 1: one state and a fair coin $U$; the rewards are $R^{(1)} = U$, $R^{(2)} = 1 - U$.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> rewards, _ = jl.example_1().query(0, [0, 1], np.random.default_rng(0))
        >>> print(rewards, "add up to one, whatever the coin")
        [0. 1.] add up to one, whatever the coin
    """
    return JMDP.from_step(1, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(u == a), 0))


def example_2_1(gamma: float = 0.9) -> JMDP:
    """Example 2.1: two states and a fair coin $U$; both actions move to state $U$.

    The paper leaves the rewards open; here state 1 pays 1 and state 0 pays nothing, whatever the
    action, so that every dependence of the returns comes from the transitions.

    Example:
        >>> import jmdp_lib as jl
        >>> moments = jl.jipe2(jl.example_2_1(), [0, 0]).moments
        >>> print(f"{moments.gap_mean[0, 0, 1]:.3f} {moments.gap_variance[0, 0, 1]:.3f}")
        0.000 0.000
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), u))


def example_2_2(gamma: float = 0.9) -> JMDP:
    """Example 2.2: as `example_2_1`, but the actions move apart, to $U$ and to $1 - U$.

    Example:
        >>> import jmdp_lib as jl
        >>> moments = jl.jipe2(jl.example_2_2(), [0, 0]).moments
        >>> print(f"{moments.gap_mean[0, 0, 1]:.3f} {moments.gap_variance[0, 0, 1]:.3f}")
        0.000 1.361
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), 1 - u if a else u))


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
        demand_probs = -np.diff(special.pdtrc(np.arange(capacity), 3.0), prepend=1.0, append=0.0)
    most = checks.distributions("demand_probs", demand_probs, "demand").size - 1
    _check_amounts(price, order_cost, holding_cost, lost_sale_cost)

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

    # A day's pay is linear in what is delivered, and in the demand below and above what is there.
    pays = [
        earned(full - delivered, delivered, demand)
        for full in range(capacity + 1)
        for delivered in (0, min(base - 1, full))
        for demand in (0, min(full, most), most)
    ]
    ends = (min(pays), max(pays))
    return StepSimulator(
        (capacity + 1) * on_road, base, gamma, demand_probs, step, reward_range=ends
    )


def _check_amounts(*amounts: Any) -> None:
    names = ("price", "order_cost", "holding_cost", "lost_sale_cost")
    for name, amount in zip(names, amounts, strict=True):
        checks.real(name, amount, "(-inf, inf)")


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
    return _tables_of(two_queues_simulator(capacity, arrival_prob, gamma))


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


def uniform_policy(jm: Sized) -> Floats:
    """The policy (S, A) of a JMDP or a simulator that plays every action equally often.

    Example:
        >>> import jmdp_lib as jl
        >>> jl.uniform_policy(jl.two_queues(capacity=1)).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    shape = checks.sizes_of(jm)
    return np.full(shape, 1.0 / shape[1])


def epsilon_mixture(jm: Sized, policy: Policy, epsilon: float) -> Floats:
    """The policy (S, A) that plays a uniformly random action with probability epsilon.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(2)
        >>> jl.epsilon_mixture(jm, jl.goal_policy(2), epsilon=0.2).round(2).tolist()[0]
        [0.05, 0.85, 0.05, 0.05]
    """
    base = checks.policy_matrix(jm, policy)
    epsilon = checks.probability("epsilon", epsilon)
    return (1.0 - epsilon) * base + epsilon / base.shape[1]
