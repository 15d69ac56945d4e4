"""One state of a model that nobody enumerates: `python benchmarks/local.py` writes local.md.

Each row is measured in a process of its own, after a run on a tiny grid that compiles: CPU seconds
(of all threads) and wall seconds, and the memory that the run adds. `local_jipe2` certifies the
error of the gap's mean and standard deviation; "whole" is `jipe2` on all states, with the same
queries. Monte Carlo is a *projection*: the pairs that make two standard errors of the sample's
standard deviation as small as the certificate, (kurtosis - 1) / 4 * (2 sd / error)^2, times the CPU
time of a pair, both from 300 pairs that are played in Python.

The 20 cells all over the grid are the hard case. Their branches drift along a corridor to the goal,
and the core has to contain all of it. Most pairs in that core are far apart and hardly ever
visited, but are solved for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from scaling import duration, markdown
from scaling_rows import forget, highest
from timing import machine

import jmdp_lib as jl

HERE = Path(__file__).parent
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


def play(model, policy, state, actions, rng, common):
    """Two returns of one pair of branches; states are independent unless the noise is common."""
    branches, total, weight = [(state, a) for a in actions], [0.0, 0.0], 1.0
    while weight > 1e-4 and branches[0] != branches[1]:
        draws = rng.random(2)
        shared = common or branches[0][0] == branches[1][0]
        for i, (s, a) in enumerate(branches):
            probs, rewards, successors = model.tables(s)
            k = int(np.searchsorted(np.cumsum(probs[:-1]), draws[0 if shared else i], "right"))
            to, row = successors[k][a], policy(successors[k][a])
            total[i] += weight * float(rewards[k][a])
            branches[i] = to, int(row) if np.ndim(row) == 0 else int(rng.choice(len(row), p=row))
        weight *= model.gamma
    return total


def problem(name, size, gamma):
    """The model, the policy, the queried states, two actions and the coupling."""
    if name == "grid":
        return grid(size, gamma), lambda cell: [0.25] * 4, [(2, size - 3)], (0, 1), "joint"
    if name in ("near", "goal", "whole"):
        rows, columns = (5, 30, 55, 80), (10, 30, 50, 70, 90)
        if name == "near":
            rows, columns = (1, 3, 6, 10), (86, 89, 92, 95, 98)
        states = [(r, c) for r in rows for c in columns]
        goal = jl.epsilon_mixture(jl.goal_policy(size), 0.1)
        return grid(size, gamma), goal.reshape(size, size, 4), states, (0, 1), "joint"
    if name == "inventory":
        model = inventory(size, gamma)
        return model, lambda s: int(min(s) <= 5), [(8, 9, 7, 8, 9, 8)], (0, 1), "common"
    model = network(size, gamma)
    return model, lambda s: int(np.argmin(s)), [(2, 1, 0, 1, 0, 1)], (0, 1), "common"


def row(name, size, gamma, tol):
    """One measurement, in this process."""
    model, policy, states, actions, coupling = problem(name, size, gamma)
    jl.large.local_jipe2(grid(5, 0.5), lambda s: [0.25] * 4, [(0, 0)], 1e-2, coupling)
    if name == "whole":
        jm, numbers = jl.windy_gridworld(size, gamma=gamma), [size * r + c for r, c in states]
        work = partial(jl.jipe2, jm, policy.reshape(-1, 4), queries=numbers, route="dense")
    else:
        groups = [[state] for state in states] if name == "goal" else [states]

        def work():
            share = tol / model.reward_bound
            return [jl.large.local_jipe2(model, policy, group, share, coupling) for group in groups]

    forget()
    before, start, wall = psutil.Process().memory_info().rss, time.process_time(), time.time()
    found = work()
    taken = {"cpu": time.process_time() - start, "wall": time.time() - wall}
    taken |= {"bytes": highest() - before, "name": name, "size": size, "gamma": gamma, "tol": tol}
    if name == "whole":
        return taken | {"explored": size**2}
    taken["explored"] = max(local.num_explored for local in found)
    taken["bound"] = max(local.error_bound for local in found)
    widest = max(found, key=lambda local: local.gap_variance.max())
    taken["sd"] = float(np.sqrt(widest.gap_variance[0][actions]))
    rng, start = np.random.default_rng(0), time.process_time()
    as_function = policy if callable(policy) else policy.__getitem__
    common, state = coupling == "common", states[found.index(widest)]
    gaps = [play(model, as_function, state, actions, rng, common) for _ in range(300)]
    each = (time.process_time() - start) / len(gaps)
    gap = np.subtract(*np.transpose(gaps))
    kurtosis = np.mean((gap - gap.mean()) ** 4) / gap.var() ** 2
    pairs = (kurtosis - 1.0) / 4.0 * (2.0 * gap.std() / taken["bound"]) ** 2
    return taken | {"sampled": float(gap.std()), "monte_carlo": float(pairs * each * len(states))}


def main():
    lines = []
    for arguments in ROWS:
        command = [sys.executable, __file__, json.dumps(arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        r = json.loads(done.stdout.splitlines()[-1])
        print(r, file=sys.stderr, flush=True)
        states = r["size"] ** (6 if r["name"] in ("inventory", "network") else 2)
        lines.append(
            [
                TITLES[r["name"]],
                f"{states:.3g}",
                str(r["gamma"]),
                f"{r['explored']:,}",
                f"{r['bound']:.2g}" if "bound" in r else "",
                f"{r['sd']:.4g}" if "sd" in r else "",
                f"{duration(r['cpu'])}, {duration(r['wall'])}",
                f"{r['bytes'] / 1e6:,.0f} MB",
                duration(r["monte_carlo"]) if "monte_carlo" in r else "",
            ]
        )
        write(lines)


def write(lines):
    """The table so far."""
    heads = ["query", "states", "gamma", "explored", "certified error", "gap's sd", "CPU, wall"]
    table = markdown([*heads, "memory", "Monte Carlo, CPU"], lines)
    about = (__doc__ or "").split("\n\n", 1)[1].strip()
    text = ["# One state of a trillion", "", about, machine("numpy", "scipy", "numba"), "", *table]
    (HERE / "local.md").write_text("\n".join(text).rstrip() + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="?", help="one of ROWS as JSON, for this process alone")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", jl.ConvergenceWarning)
    if chosen.row:
        print(json.dumps(row(*json.loads(chosen.row))))
    else:
        main()
