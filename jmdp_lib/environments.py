"""Environments of the paper, two that are standard in operations research, and simple policies.

The windy gridworld (Figure 1), in which a gust couples the four moves of a cell; the coupled reward
chain (Figure 3), whose two actions share one next state and have anti-correlated rewards; and
Examples 1, 2.1 and 2.2, with equal marginals and different joint distributions. A shop orders
before it knows demand (`inventory`), and a job joins one of two queues (`two_queues`).

To add one, write a function that returns a `JMDP`: from a step function by `JMDP.from_step`, which
is short, or from arrays by `JMDP` itself, which is fast for many states. Draw the noise before
looking at the action, so that one draw is shared by all actions. The page `book/layout.md` adds one
from start to end, with its tests. A JMDP is also a simulator, by its method `query`: every function
that takes a simulator takes it.

`policies.policy_matrix` lists the forms of a policy that every function takes.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Sized
from jmdp_lib.model import JMDP, require_table_memory
from jmdp_lib.policies import Policy, policy_matrix

Direction = Literal["U", "R", "D", "L"]
ACTIONS = get_args(Direction)
Scale = Literal["unit", "signed"]
_MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # (row, column), row 0 on top


def windy_gridworld(
    size: int = 5, gust_prob: float = 0.2, gamma: float = 0.95, *, gust: Direction = "L"
) -> JMDP:
    """The windy gridworld (Figure 1) with actions 0 to 3: up, right, down, left.

    States are numbered row by row from the top left: cell (row, column) is row * size + column. The
    goal, top right, is absorbing; every transition into or inside it earns 1, all others 0. Each
    table is one gust draw *for all four actions*. Walls clip both moves.

    Args:
        size: cells along a side.
        gust_prob: probability that a gust moves the agent one more cell after its own move.
        gamma: discount factor in [0, 1).
        gust: direction of gusts, "U", "R", "D" or "L"; left in the paper.

    Returns:
        A JMDP of size**2 states and 4 actions.

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
    require_table_memory("size", size**2, 2, len(ACTIONS))
    goal = size - 1
    cells = np.stack(np.divmod(np.arange(size**2), size), axis=-1)  # (S, 2)
    moved = np.clip(cells[:, None] + _MOVES, 0, goal)  # (S, A, 2)
    blown = np.clip(moved + wind, 0, goal)
    landed = np.stack([moved, blown], axis=1) @ np.array([size, 1])  # (S, K=2, A)
    landed[goal] = goal
    probs = np.tile([1.0 - gust_prob, gust_prob], (size**2, 1))
    return JMDP(probs, (landed == goal).astype(float), landed, gamma)


def goal_policy(size: int = 5) -> Floats:
    """The policy of Figure 1: right until the last column, then up.

    Args:
        size: cells along a side of the windy gridworld.

    Returns:
        Probabilities (S, 4).

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

    Every state draws its own fair coin $U$, 0 or 1. Both actions move to the next state. The last
    state is absorbing and pays 1 to both. The correlations of the returns are the same for both
    scales of rewards.

    Args:
        num_states: $n$, with the absorbing one.
        gamma: discount factor in [0, 1).
        rewards: with "unit" the two actions earn $U$ and $1 - U$; with "signed" they earn $2U - 1$
            and $1 - 2U$, as in the paper's picture.

    Returns:
        A JMDP of num_states states and 2 actions.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> print(f"{moments.variance[0, 0]:.6f} {moments.correlation[0, 0, 1]:.6f}")
        0.616525 -0.272475
    """
    last = checks.at_least("num_states", num_states, 1) - 1
    worst = 0.0 if checks.one_of("rewards", rewards, get_args(Scale)) == "unit" else -1.0

    def step(state: int, action: int, coin: int) -> tuple[float, int]:
        return (1.0 if state == last or action == coin else worst), min(state + 1, last)

    return JMDP.from_step(num_states, 2, gamma, [0.5, 0.5], step)


def example_1(gamma: float = 0.9) -> JMDP:
    """Example 1: one state and a fair coin $U$; the rewards are $R^{(1)} = U$, $R^{(2)} = 1 - U$.

    Args:
        gamma: discount factor in [0, 1).

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

    Args:
        gamma: discount factor in [0, 1).

    Example:
        >>> import jmdp_lib as jl
        >>> moments = jl.jipe2(jl.example_2_1(), [0, 0]).moments
        >>> print(f"{moments.gap_mean[0, 0, 1]:.3f} {moments.gap_variance[0, 0, 1]:.3f}")
        0.000 0.000
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), u))


def example_2_2(gamma: float = 0.9) -> JMDP:
    """Example 2.2: as `example_2_1`, but the actions lead to different states, $U$ and $1 - U$.

    Args:
        gamma: discount factor in [0, 1).

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
    """A shop that orders units of one product; the demand does not depend on the order.

    An action is the number of units ordered, 0 to max_order; they arrive after `lead_time` periods.
    A state is the stock on hand, 0 to capacity. With a lead time of one it is
    stock * (max_order + 1) + units on order. With a longer one, the orders on the way are the
    digits of a number in base max_order + 1, the oldest order last: the state is
    stock * (max_order + 1)**lead_time + that number.

    Each table is one demand, so a planner compares all order quantities under the same demand. A
    delivery beyond the capacity is refused and not paid for; demand beyond the stock is lost. The
    reward is
    price * sold - order_cost * delivered - holding_cost * left over - lost_sale_cost * lost.

    Args:
        capacity: most units on the shelf.
        max_order: most units in an order.
        gamma: discount factor in [0, 1).
        demand_probs: (K,) probabilities of demands 0 to K - 1; by default the Poisson distribution
            with mean 3, cut at `capacity`.
        price: earned for a unit sold.
        order_cost: paid for a unit delivered.
        holding_cost: paid for a unit left over.
        lost_sale_cost: paid for a unit of demand that was not met.
        lead_time: periods until an order arrives.

    Returns:
        A JMDP of (capacity + 1) * (max_order + 1)**lead_time states and max_order + 1 actions.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.inventory(capacity=4, max_order=2)
        >>> rewards, stock = jm.query(1, [0, 1, 2], np.random.default_rng(1))
        >>> print("orders 0, 1, 2 under one demand earn", rewards, "and leave", stock)
        orders 0, 1, 2 under one demand earn [2. 4. 6.] and leave [0 0 0]
        >>> moments = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> gap = (0, 2, 0)
        >>> print(f"empty shelf, order 2 instead of 0: {moments.gap_mean[gap]:.2f} better,"
        ...       f" +- {moments.gap_variance[gap] ** 0.5:.2f}")
        empty shelf, order 2 instead of 0: 3.87 better, +- 3.67
    """
    capacity = checks.at_least("capacity", capacity, 1)
    base = checks.at_least("max_order", max_order, 0) + 1
    on_road = base ** checks.at_least("lead_time", lead_time, 0)
    if demand_probs is None:
        from scipy import special  # slow to import, and solvers do without it

        demand_probs = -np.diff(special.pdtrc(np.arange(capacity), 3.0), prepend=1.0, append=0.0)
    checks.distributions("demand_probs", demand_probs, "demand")
    checks.finite("price", price)
    checks.finite("order_cost", order_cost)
    checks.finite("holding_cost", holding_cost)
    checks.finite("lost_sale_cost", lost_sale_cost)

    def step(state: int, order: int, demand: int) -> tuple[float, int]:
        stock, orders = divmod(state, on_road)
        orders, arriving = divmod(orders + order * on_road, base)
        delivered = min(arriving, capacity - stock)
        sold = min(stock + delivered, demand)
        left = stock + delivered - sold
        income = price * sold - order_cost * delivered
        paid = holding_cost * left + lost_sale_cost * (demand - sold)
        return income - paid, left * on_road + orders

    return JMDP.from_step((capacity + 1) * on_road, base, gamma, demand_probs, step)


def two_queues(capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95) -> JMDP:
    """Two queues: the next job joins one of them, 0 or 1, under the same arrivals and services.

    With i jobs in the first queue and j in the second, the state is i * (capacity + 1) + j.
    Three coins are the same for both actions: a job arrives, the first server finishes a job (with
    probability 1/2), and so does the second (3/10). A job that finds its queue full is lost. The
    reward is minus the number of jobs at the end of the step, less 5 more if a job is lost.
    Each table is one of the eight events of a step.

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
    return JMDP.from_step(side**2, 2, gamma, probs, step)


def uniform_policy(jm: Sized) -> Floats:
    """The policy that takes every action with the same probability.

    Args:
        jm: a JMDP, or a simulator with num_states and num_actions.

    Returns:
        Probabilities (S, A).

    Example:
        >>> import jmdp_lib as jl
        >>> jl.uniform_policy(jl.two_queues(capacity=1)).tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    shape = checks.sizes_of(jm)
    return np.full(shape, 1.0 / shape[1])


def epsilon_mixture(jm: Sized, policy: Policy, epsilon: float) -> Floats:
    """The policy (S, A) that takes a uniformly random action with probability epsilon.

    Args:
        jm: the model, or another object with num_states and num_actions.
        policy: the policy that is mixed with random actions, in any form that solvers take.
        epsilon: the probability of a random action, in [0, 1].

    Returns:
        (S, A) probabilities of the actions in each state.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(2)
        >>> jl.epsilon_mixture(jm, jl.goal_policy(2), epsilon=0.2).round(2).tolist()[0]
        [0.05, 0.85, 0.05, 0.05]
    """
    base = policy_matrix(jm, policy)
    epsilon = checks.probability("epsilon", epsilon)
    return (1.0 - epsilon) * base + epsilon / base.shape[1]
