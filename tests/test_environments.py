"""Environments, cell by cell, against the same rules written down a second time."""

from itertools import product

import numpy as np
import pytest

import jmdp_lib as jl

MOVES = {"U": (-1, 0), "R": (0, 1), "D": (1, 0), "L": (0, -1)}


@pytest.mark.parametrize("gust", MOVES)
def test_windy_gridworld(gust):
    """After its move an agent may be blown on; walls stop it."""
    jm = jl.windy_gridworld(3, 0.2, gust=gust)
    assert (jm.num_states, jm.gamma) == (9, 0.95)
    for state, blown, (action, move) in product(range(9), (0, 1), enumerate(MOVES.values())):
        cell = np.clip(np.add(divmod(state, 3), move), 0, 2)
        cell = np.clip(cell + blown * np.array(MOVES[gust]), 0, 2)
        after = 2 if state == 2 else cell @ [3, 1]  # the goal, top right
        assert jm.next_states[2 * state + blown, action] == after
        assert jm.rewards[2 * state + blown, action] == (after == 2)
        assert jm.probs[2 * state + blown] == pytest.approx((0.8, 0.2)[blown])


def test_inventory_with_a_lead_time():
    """Yesterday's order arrives, then customers come."""
    jm = jl.inventory(capacity=4, max_order=2, demand_probs=[0.2, 0.3, 0.5], lead_time=1)
    assert (jm.num_states, jm.num_actions) == (15, 3)
    for stock, on_order, order in product(range(5), range(3), range(3)):
        arrived = min(on_order, 4 - stock)
        for demand in range(3):
            sold = min(stock + arrived, demand)
            left = stock + arrived - sold
            pay = 3.0 * sold - 1.5 * arrived - 0.2 * left - 0.5 * (demand - sold)
            table = 3 * (3 * stock + on_order) + demand
            assert jm.rewards[table, order] == pytest.approx(pay)
            assert jm.next_states[table, order] == 3 * left + order
    long = jl.inventory(capacity=2, max_order=1, demand_probs=[1.0], lead_time=2)  # no demand
    assert long.next_states[:, 1].tolist() == [2, 6, 3, 7, 6, 10, 7, 11, 10, 10, 11, 11]


def test_two_queues_share_arrivals_and_services():
    """Event by event."""
    jm = jl.two_queues(capacity=2)
    for state, action, (arrives, *served) in product(range(9), range(2), np.ndindex(2, 2, 2)):
        jobs = [state // 3, state % 3]
        full = arrives and jobs[action] == 2
        jobs[action] += arrives - full
        jobs = [max(n - done, 0) for n, done in zip(jobs, served, strict=True)]
        table = 8 * state + 4 * arrives + 2 * served[0] + served[1]
        assert jm.next_states[table, action] == 3 * jobs[0] + jobs[1]
        assert jm.rewards[table, action] == -sum(jobs) - 5.0 * full
        chances = [(0.4, 0.6)[arrives], 0.5, (0.7, 0.3)[served[1]]]
        assert jm.probs[table] == pytest.approx(np.prod(chances))
