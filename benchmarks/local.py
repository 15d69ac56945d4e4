"""One state of a model that nobody enumerates: `python benchmarks/local.py`.

Writes local.md in some fifteen minutes on two idle cores, ten of them for its last row; `--only
NAME` measures the rows of this name, and writes nothing.

Each row is measured in a process of its own, after a run on a tiny grid that compiles: CPU seconds
(of all threads) and wall seconds, and the memory that the run adds. `local_jipe2` certifies the
error of the gap's mean and standard deviation; "whole" is `jipe2` on all states, with the same
queries. Monte Carlo is a *projection*: the pairs that make two standard errors of the sample's
standard deviation as small as the certificate, times the CPU time of a pair, both from 2,000 pairs
that `estimate_gaps` simulates.

The 20 cells all over the grid are the hard case. Their branches drift along a corridor to the goal,
and the core has to contain all of it. Most pairs in that core are far apart and hardly ever
visited, but are solved for.
"""

import time
import warnings
from functools import partial
from typing import Any

import numpy as np
import psutil
from timing import (
    about,
    command_line,
    duration,
    forget,
    highest,
    in_a_process,
    lines,
    table,
    write_page,
)

import jmdp_lib as jl

RUNS = 2_000  # pairs of the projection
MOVES = (-1, 0), (0, 1), (1, 0), (0, -1)
ROWS = [
    *(("grid", 10**n, 0.95, 1e-3) for n in (2, 3, 6)),
    ("grid", 10**6, 0.99, 1e-3),
    ("near", 100, 0.95, 1e-3),
    ("goal", 100, 0.95, 1e-2),
    ("inventory", 32, 0.95, 0.04),
    ("network", 10, 0.9, 0.015),
    ("whole", 100, 0.95, 1e-3),
]
TITLES = {
    "grid": "windy gridworld, uniform policy, one cell 4 from the goal",
    "near": "windy gridworld, goal policy with epsilon 0.1, 20 cells near the goal",
    "goal": "windy gridworld, goal policy with epsilon 0.1, 20 cells all over, one at a time",
    "whole": "the same 20 cells, `jipe2` on all pairs of states",
    "inventory": "inventory, six products, shared demand: order now or not",
    "network": "six queues, join the shortest: first queue or second",
}


def grid(size, gamma):
    """`windy_gridworld` with states (row, column), whatever its size."""
    goal = (0, size - 1)

    def clip(*cell):
        return tuple(min(max(x, 0), size - 1) for x in cell)

    def tables(cell):
        moved = [clip(cell[0] + r, cell[1] + c) for r, c in MOVES]
        rows = [[clip(r, c - gust) for r, c in moved] for gust in (0, 1)]
        rows = [[goal] * 4] * 2 if cell == goal else rows
        return [0.8, 0.2], [[float(to == goal) for to in row] for row in rows], rows

    return jl.large.ImplicitJMDP(tables, 4, gamma, (0.0, 1.0))


def inventory(levels, gamma):
    """Six products, stock 0 to levels - 1 each; orders fill up to 12; one draw for all demands."""
    demands = [(0,) * 6, (1,) * 6, *np.random.default_rng(0).integers(0, 3, (6, 6)).tolist()]

    def step(stock, order, mood):
        filled = [max(x, 12) if order else x for x in stock]
        ordered, sold = sum(filled) - sum(stock), list(map(min, filled, demands[mood]))
        left = tuple(x - y for x, y in zip(filled, sold, strict=True))
        fixed = 4.0 if ordered else 0.0
        return 3.0 * sum(sold) - 1.5 * ordered - fixed - 0.05 * sum(left), left

    return jl.large.ImplicitJMDP.from_step(2, gamma, [0.125] * 8, step, (-150.0, 36.0))


def network(levels, gamma):
    """Six queues of 0 to levels - 1 customers; an action says where an arrival goes."""

    def step(queues, to, event):
        left = list(queues)
        if event == 0:
            left[to] = min(left[to] + 1, levels - 1)
        else:
            left[event - 1] = max(left[event - 1] - 1, 0)
        return -float(sum(left)), tuple(left)

    return jl.large.ImplicitJMDP.from_step(
        6, gamma, [0.4] + [0.1] * 6, step, (-6.0 * (levels - 1), 0.0)
    )


def problem(name, size, gamma):
    """The model, the policy, the queried states, two actions and the coupling."""
    if name == "grid":
        return grid(size, gamma), lambda cell: [0.25] * 4, [(2, size - 3)], (0, 1), "joint"
    if name in ("near", "goal", "whole"):
        rows, columns = (5, 30, 55, 80), (10, 30, 50, 70, 90)
        if name == "near":
            rows, columns = (1, 3, 6, 10), (86, 89, 92, 95, 98)
        states = [(r, c) for r in rows for c in columns]
        goal = jl.epsilon_mixture(jl.windy_gridworld(size), jl.goal_policy(size), 0.1)
        return grid(size, gamma), goal.reshape(size, size, 4), states, (0, 1), "joint"
    if name == "inventory":
        model = inventory(size, gamma)
        return model, lambda s: int(min(s) <= 5), [(8, 9, 7, 8, 9, 8)], (0, 1), "common"
    model = network(size, gamma)
    return model, lambda s: int(np.argmin(s)), [(2, 1, 0, 1, 0, 1)], (0, 1), "common"


def row(name, size, gamma, tol):
    """One measurement, in this process."""
    model, policy, states, actions, coupling = problem(name, size, gamma)
    jl.large.local_jipe2(
        grid(5, 0.5), lambda s: [0.25] * 4, states=[(0, 0)], tol=1e-2, coupling=coupling
    )
    if name == "whole":
        jm, numbers = jl.windy_gridworld(size, gamma=gamma), [size * r + c for r, c in states]
        works: list[partial[Any]] = [
            partial(jl.jipe2, jm, policy.reshape(-1, 4), states=numbers, route="dense")
        ]
    else:
        groups = [[state] for state in states] if name == "goal" else [states]
        evaluate = partial(jl.large.local_jipe2, model, policy, coupling=coupling)
        share = tol / model.reward_bound
        works = [partial(evaluate, states=group, tol=share) for group in groups]
    forget()
    before, start, wall = psutil.Process().memory_info().rss, time.process_time(), time.time()
    solutions = [work() for work in works]
    times = [time.process_time() - start, time.time() - wall]
    memory = f"{(highest() - before) / 1e6:,.0f} MB"
    explored, certified = f"{size**2:,}", ["", "", ""]
    if name != "whole":
        explored = f"{max(local.num_explored for local in solutions):,}"
        certified = beside(model, policy, states, actions, coupling, solutions)
    num_states = f"{size ** (6 if name in ('inventory', 'network') else 2):.3g}"
    error, deviation, projected = certified
    took = ", ".join(map(duration, times))
    cells = [explored, error, deviation, took, memory, projected]
    return [TITLES[name], num_states, gamma, *cells]


def beside(model, policy, states, actions, coupling, solutions):
    """The certified error, the deviation of the widest gap, and the time of its Monte Carlo."""
    bound = max(local.error_bound for local in solutions)
    widest = max(solutions, key=lambda local: local.gap_variance.max())
    state, start = states[solutions.index(widest)], time.process_time()
    as_function = policy if callable(policy) else policy.__getitem__
    simulated = jl.simulators.estimate_gaps(
        model, as_function, list(actions), state=state, num_runs=RUNS, coupling=coupling, rng=0
    )
    each = (time.process_time() - start) / RUNS
    error = simulated.variance_error[actions] / (2.0 * np.sqrt(simulated.variance[actions]))
    pairs = RUNS * (2.0 * error / bound) ** 2
    deviation = np.sqrt(widest.gap_variance[0][actions])
    return f"{bound:.2g}", f"{deviation:.4g}", duration(float(pairs * each * len(states)))


def main():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)
    only = command_line(__doc__, TITLES, row).only
    chosen = [each for each in ROWS if only in ("", each[0])]
    rows = lines(lambda each: in_a_process(*each), chosen)
    if not only:
        heads = ["query", "states", "gamma", "explored", "certified error", "gap's sd"]
        heads += ["CPU, wall", "memory", "Monte Carlo, CPU"]
        parts = about(__doc__), table(heads, rows)
        write_page("local.md", "One state of a trillion", *parts, packages=["scipy"])


if __name__ == "__main__":
    main()
