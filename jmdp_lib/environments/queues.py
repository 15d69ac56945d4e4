"""Two queues: which one does the next job join? Arrivals and services are the same either way."""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model import JMDP
from jmdp_lib.simulators import StepSimulator


def two_queues(capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95) -> JMDP:
    """The outcome tables of `queue_simulator`: one event of eight each."""
    simulator = queue_simulator(capacity, arrival_prob, gamma)
    return JMDP.from_step(*vars(simulator).values())


def queue_simulator(
    capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95
) -> StepSimulator:
    """State: jobs in both queues, first * (capacity + 1) + second. Action: the queue a job joins.

    Three coins are the same for both actions: does a job arrive (`arrival_prob`), does the first
    server finish one (1/2), does the second (3/10)? A job that finds its queue full is lost. The
    reward is minus the jobs that are left at the end of the step, and minus 5 for one that was
    lost.
    """
    side = checks.at_least("capacity", capacity, 1) + 1
    chances = np.array([checks.probability("arrival_prob", arrival_prob), 0.5, 0.3])
    events = np.indices((2, 2, 2)).reshape(3, 8).T  # arrival, first service, second service

    def step(state: int, action: int, noise: int) -> tuple[float, int]:
        arrival, *served = events[noise].tolist()
        jobs = [*divmod(state, side)]
        lost = arrival * (jobs[action] == capacity)
        jobs[action] += arrival - lost
        first, second = (max(n - done, 0) for n, done in zip(jobs, served, strict=True))
        return -first - second - 5.0 * lost, first * side + second

    probs = np.where(events, chances, 1.0 - chances).prod(1)
    return StepSimulator(side**2, 2, gamma, probs, step)
