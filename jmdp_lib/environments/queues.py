"""Two queues: which one does the next job join? Arrivals and services are the same either way."""

from __future__ import annotations

import numpy as np

from jmdp_lib import checks
from jmdp_lib.model import JMDP
from jmdp_lib.simulators import StepSimulator


def two_queues(capacity: int = 5, arrival_prob: float = 0.6, gamma: float = 0.95) -> JMDP:
    """The outcome tables of `queue_simulator`, one for each of the eight events of a step.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.two_queues(capacity=2)
        >>> jm
        JMDP(num_states=9, num_actions=2, num_tables=72, gamma=0.95)
        >>> policy = jl.uniform_policy(jm)
        >>> print(f"{jl.jipe2(jm, policy).moments.gap_mean[0, 0, 1]:.2f} for the fast server")
        1.13 for the fast server
    """
    simulator = queue_simulator(capacity, arrival_prob, gamma)
    return JMDP.from_step(*vars(simulator).values())


def queue_simulator(
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
        >>> queues = jl.queue_simulator(capacity=2)
        >>> queues.query(4, [0, 1], np.random.default_rng(0))
        ([-2.0, -2.0], [6, 4])
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
