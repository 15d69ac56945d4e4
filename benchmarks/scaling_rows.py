"""One measurement of scaling.py, in the process that this file is run in.

`python scaling_rows.py '["scaling", "gridworld, goal policy", "reachable", [50]]'` prints rows of a
table as JSON. How time and memory are taken is told at the head of scaling.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import psutil
from scipy import sparse
from scipy.sparse.linalg import spsolve
from timing import once

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2

GAMMA, TOL, STANDARD_ERROR = 0.95, 1e-8, 0.01
GOAL, UNIFORM, RANDOM = "gridworld, goal policy", "gridworld, uniform policy", "random successors"
QUANTECON, SCIPY = "QuantEcon, mean only", "SciPy, mean only"
PROJECTED = "Monte Carlo, projected"
# Their sizes, ascending, share a process: they need little memory.
TOGETHER = ("literal", QUANTECON, SCIPY, PROJECTED)
DISCOUNTS, DISCOUNT_SIDES = (0.9, 0.99, 0.999), {"dense": 30, "reachable": 15}
_LEAST = 2e5  # bytes; less is lost in the noise
_STATUS = Path("/proc/self/status")


def model(problem: str, side: int, gamma: float = GAMMA) -> tuple[jl.JMDP, np.ndarray]:
    """A problem with side^2 states and four actions, and its policy."""
    if problem == RANDOM:
        rng, states = np.random.default_rng(0), side**2
        tables = (states, 2, 4)
        probs, rewards = rng.dirichlet(np.ones(2), size=states), rng.uniform(0, 1, tables)
        jm = jl.JMDP(probs, rewards, rng.integers(states, size=tables), gamma)
        return jm, jl.uniform_policy(jm)
    jm = jl.windy_gridworld(side, gamma=gamma)
    return jm, jl.goal_policy(side) if problem == GOAL else jl.uniform_policy(jm)


def literal(jm: jl.JMDP, policy: np.ndarray) -> int:
    """The paper's operator repeated to the same certificate; how often."""
    shape = (jm.num_states, jm.num_actions)
    mean, second = np.zeros(shape), np.zeros(shape + shape)
    weight, sweeps, residual = jl.norm_weight(2, jm.gamma, jm.reward_bound), 0, np.inf
    while residual > TOL * (1.0 - jm.gamma):
        old_mean, old_second = mean, second
        mean, second = jl.apply_t2(jm, policy, mean, second)
        moved = np.abs(mean - old_mean).max(), np.abs(second - old_second).max() / weight
        residual, sweeps = max(moved), sweeps + 1
    return sweeps


def quantecon_mean(jm: jl.JMDP, policy: np.ndarray) -> Callable[[], object]:
    """`DiscreteDP.evaluate_policy`; it takes pure policies, so ours becomes the only action."""
    from quantecon.markov import DiscreteDP

    system, states = CollapsedT2(jm, policy), np.arange(jm.num_states)
    only = np.zeros_like(states)
    ddp = DiscreteDP(system.mean_rewards, sparse.csr_matrix(system.kernel), jm.gamma, states, only)
    return partial(ddp.evaluate_policy, only)


def scipy_mean(jm: jl.JMDP, policy: np.ndarray) -> Callable[[], object]:
    """The sparse solve of (I - gamma P) m = r."""
    system = CollapsedT2(jm, policy)
    matrix = sparse.eye_array(jm.num_states, format="csc") - jm.gamma * system.kernel.tocsc()
    return partial(spsolve, matrix, system.mean_rewards)


def monte_carlo(jm: jl.JMDP, policy: np.ndarray, side: int) -> float:
    """Projected seconds for all gaps, from those of one state: see the head of scaling.py."""
    total, pairs, returns = 0.0, 50_000, np.empty((0, 2))

    def play(gap: tuple[int, int], num_pairs: int) -> None:
        nonlocal returns
        returns = jl.simulate_pairs(jm, policy, 2 * side - 2, gap, num_pairs)

    play((0, 1), pairs)
    set_up = min(once(partial(play, (0, 1), 1)) for _ in range(2))  # needed once, not for every gap
    while once(partial(play, (0, 1), pairs)) < 0.1 + 5.0 * set_up:
        pairs *= 4
    for gap in combinations(range(jm.num_actions), 2):
        took = once(partial(play, gap, pairs)) - set_up
        gaps = returns[:, 0] - returns[:, 1]
        kurtosis = np.mean((gaps - gaps.mean()) ** 4) / gaps.var() ** 2
        total += (kurtosis - 1.0) / STANDARD_ERROR**2 * took / pairs
    return total * jm.num_states


def work_of(
    method: str, jm: jl.JMDP, policy: np.ndarray, device: str | None
) -> Callable[[], object]:
    """What is timed, as a function of nothing."""
    if method == "literal":
        return partial(literal, jm, policy)
    if method == QUANTECON:
        return quantecon_mean(jm, policy)
    if method == SCIPY:
        return scipy_mean(jm, policy)
    route = {"device": device} if method.startswith("torch") else {"route": method}
    return partial(jl.jipe2, jm, policy, TOL, **route)


def highest() -> int:
    """Bytes that this process had resident at most so far, since `forget` where there is /proc."""
    if _STATUS.exists():  # what getrusage says includes the parent before the start
        line = next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def forget() -> None:
    """Let `highest` begin anew, where the system can."""
    with contextlib.suppress(OSError):
        _STATUS.with_name("clear_refs").write_text("5")


def timed(work: Callable[[], object], device: str | None = None) -> tuple[float, float, object]:
    """Seconds, bytes added (nan where it cannot be told) and the result of the first run."""
    on_gpu = device is not None and device.startswith("cuda")
    if on_gpu:
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    gc.collect()
    forget()
    before, height, kept = psutil.Process().memory_info().rss, highest(), []
    times = [once(lambda: kept.append(work()))]
    added = float(highest() - before)
    peak = added if highest() > height and added >= _LEAST else np.nan
    if on_gpu:
        peak = float(torch.cuda.max_memory_allocated(device))
    while sum(times) < 1.0 and len(times) < 5:
        times.append(once(work))
    return min(times), peak, kept[0]


def scaling_rows(problem: str, method: str, sides: list[int], device: str | None = None) -> list:
    """One row for each size."""
    rows = []
    if method not in ("literal", PROJECTED):
        work_of(method, *model(problem, 3), device)()
    for side in sides:
        jm, policy = model(problem, side)
        row = {"problem": problem, "method": method, "states": jm.num_states, "gamma": GAMMA}
        if method == PROJECTED:
            rows.append(row | {"seconds": monte_carlo(jm, policy, side)})
            continue
        took, peak, found = timed(work_of(method, jm, policy, device), device)
        row |= {"seconds": took, "bytes": peak}
        if isinstance(found, jl.Solution):
            count = {"dense": jm.num_states**2, "reachable": found.pairs}
            row |= {"coordinates": count[found.route], "iterations": found.iterations}
        elif method == "literal":
            row |= {"coordinates": policy.size**2, "iterations": found}
        else:
            row |= {"coordinates": jm.num_states}
        rows.append(row)
    return rows


def discount_rows(route: str) -> list:
    """Iterations and time as gamma nears 1."""
    rows, side = [], DISCOUNT_SIDES[route]
    jl.jipe2(*model(UNIFORM, 3), route=route)
    for gamma in DISCOUNTS:
        jm, policy = model(UNIFORM, side, gamma)
        took, _, sol = timed(partial(jl.jipe2, jm, policy, TOL, route=route))
        row = {"problem": UNIFORM, "method": route, "states": jm.num_states, "gamma": gamma}
        rows.append(row | {"seconds": took, "iterations": sol.iterations})
    return rows


def order_rows(order: int, sides: list[int]) -> list:
    """Coordinates and time of higher orders, goal policy."""
    rows = []
    jl.jipe(*model(GOAL, 3), order=order)
    for side in sides:
        jm, policy = model(GOAL, side)
        took, peak, sol = timed(partial(jl.jipe, jm, policy, order, TOL))
        row = {"problem": GOAL, "method": f"order {order}", "states": jm.num_states, "gamma": GAMMA}
        row |= {"coordinates": sol.pairs, "iterations": sol.iterations}
        rows.append(row | {"seconds": took, "bytes": peak})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement", help="a table and the arguments of its rows, as JSON")
    table, *arguments = json.loads(parser.parse_args().measurement)
    make = {"scaling": scaling_rows, "discount": discount_rows, "order": order_rows}[table]
    print(json.dumps([{"table": table, **row} for row in make(*arguments)]))
