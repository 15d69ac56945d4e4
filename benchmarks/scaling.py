"""States against time and memory, what exact gap statistics cost: `python benchmarks/scaling.py`.

Under three minutes on two idle cores; `--large` adds grids of up to 316x316 cells, and takes twenty
minutes. Writes scaling.csv, which chapter 7 draws, and scaling.md; `--only NAME` measures the
smallest size of each method, and writes nothing. With `--device cuda` the rows are those of a GPU,
and go into gpu.csv.

Every evaluation solves all gaps of all states to a certified 1e-8 in the paper's norm. Each number
is taken in a process of its own (one for all sizes of a method that needs little memory: literal,
means, Monte Carlo), after runs on two small models that compile. The time is the best of a few
runs, or the only one where that takes a second; building the model is not part of it. The memory is
what the first run adds: the highest resident memory of the process less that before the run, and
nothing where the run set no new height or added less than 0.2 MB. On a GPU it is the most that
torch had allocated there. A cell is empty where nothing was measured, or memory was short.

Beside the evaluations stands what a user would otherwise do. *SciPy, the pair system* is forty
lines (`pair_system.py`) that solve for all ordered pairs of states by BiCGSTAB, to a residual of
1e-10, without a certificate. QuantEcon finds the mean alone. Monte Carlo needs no linear system;
its time is a *projection*: the pairs that 1% relative standard error of each gap variance takes,
(kurtosis - 1) / 0.01^2, over the pairs per second, both measured at one state, times all states. On
a grid that state is next to the goal, the cheapest place: elsewhere pairs live longer and have
heavier tails. The last columns say how many times as long these take as our best route.
"""

import gc
import sys
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import psutil
from pair_system import gap_variances
from scipy import sparse
from timing import (
    HERE,
    about,
    command_line,
    duration,
    forget,
    grid,
    highest,
    in_a_process,
    once,
    random_model,
    table,
    write_page,
)

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2

GAMMA, TOL, STANDARD_ERROR = 0.95, 1e-8, 0.01
GOAL, UNIFORM, RANDOM = "gridworld, goal policy", "gridworld, uniform policy", "random successors"
QUANTECON, SCIPY = "QuantEcon, mean only", "SciPy, the pair system"
PROJECTED = "Monte Carlo, projected"
# Their sizes, ascending, share a process: they need little memory.
TOGETHER = ("literal", QUANTECON, PROJECTED)
_LEAST = 2e5  # bytes; less is lost in the noise
GPU = "an NVIDIA H200, at commit f3b7642"  # what measured gpu.csv

# Sides of the model (states are their squares): by default, and those that --large adds.
_MEANS = {QUANTECON: ([10, 100], [200, 316])}
_ALL_PAIRS = {
    "literal": ([2, 3], [4]),
    "dense": ([10, 20, 40], [70, 100]),
    "reachable": ([10, 20], [40]),
    SCIPY: ([10, 20, 40], []),
    PROJECTED: ([10, 20, 40], [70, 100]),
}
SIDES = {
    GOAL: {
        "literal": ([2, 3], [4]),
        "dense": ([10, 20, 30], [50]),
        "reachable": ([10, 20, 50, 100], [200, 316]),
        SCIPY: ([10, 20, 30], []),
        **_MEANS,
        PROJECTED: ([10, 20, 50, 100], [200, 316]),
    },
    UNIFORM: _ALL_PAIRS | _MEANS,
    RANDOM: _ALL_PAIRS | {QUANTECON: ([10, 40], [70])},
}
GPU_SIDES = {UNIFORM: [22, 32, 50, 71, 100, 141, 173, 200], RANDOM: [50, 100]}
ORDERS = {3: ([6, 10], [20, 30]), 4: ([6], [8, 10])}


def model(problem, side):
    """A problem with side^2 states and four actions, and its policy."""
    if problem == RANDOM:
        return random_model(side**2, 2, 4, 0.0, GAMMA)
    return grid(side, problem == GOAL, GAMMA)


def literal(jm, policy):
    """The paper's operator repeated to the same certificate."""
    shape = (jm.num_states, jm.num_actions)
    mean, second = np.zeros(shape), np.zeros(shape + shape)
    weight, residual = jl.norm_weight(2, jm.gamma, jm.reward_bound), np.inf
    while residual > TOL * (1.0 - jm.gamma):
        old_mean, old_second = mean, second
        mean, second = jl.apply_t2(jm, policy, mean, second)
        moved = np.abs(mean - old_mean).max(), np.abs(second - old_second).max() / weight
        residual = max(moved)


def quantecon_mean(jm, policy):
    """`DiscreteDP.evaluate_policy`; it takes pure policies, so ours becomes the only action."""
    from quantecon.markov import DiscreteDP

    system, states = CollapsedT2(jm, policy), np.arange(jm.num_states)
    only = np.zeros_like(states)
    ddp = DiscreteDP(system.mean_rewards, sparse.csr_matrix(system.kernel), jm.gamma, states, only)
    return partial(ddp.evaluate_policy, only)


def monte_carlo(jm, policy, side):
    """Projected seconds for all gaps, from those of one state: see the head of this file."""
    total, pairs, returns = 0.0, 50_000, np.empty((0, 2))

    def simulate(gap, num_pairs):
        nonlocal returns
        returns = jl.simulate_pairs(jm, policy, gap, state=2 * side - 2, num_pairs=num_pairs, rng=0)

    simulate((0, 1), pairs)
    # Needed once, not for every gap.
    set_up = min(once(partial(simulate, (0, 1), 1)) for _ in range(2))
    while once(partial(simulate, (0, 1), pairs)) < 0.1 + 5.0 * set_up:
        pairs *= 4
    for gap in combinations(range(jm.num_actions), 2):
        took = once(partial(simulate, gap, pairs)) - set_up
        gaps = returns[:, 0] - returns[:, 1]
        kurtosis = np.mean((gaps - gaps.mean()) ** 4) / gaps.var() ** 2
        total += (kurtosis - 1.0) / STANDARD_ERROR**2 * took / pairs
    return total * jm.num_states


def work_of(method, jm, policy):
    """What is timed, as a function of nothing."""
    if method == "literal":
        return partial(literal, jm, policy)
    if method == QUANTECON:
        return quantecon_mean(jm, policy)
    if method == SCIPY:
        return partial(gap_variances, jm, policy)
    return partial(jl.jipe2, jm, policy, tol=TOL, route=method)


def timed(work):
    """Seconds, bytes added (nan where they cannot be measured) and the result of the first run."""
    gc.collect()
    forget()
    before, height, kept = psutil.Process().memory_info().rss, highest(), []
    times = [once(lambda: kept.append(work()))]
    added = float(highest() - before)
    peak = added if highest() > height and added >= _LEAST else np.nan
    while sum(times) < 1.0 and len(times) < 5:
        times.append(once(work))
    return min(times), peak, kept[0]


def rows_of_a_method(problem, method, sides):
    """One row for each size."""
    rows = []
    if method not in ("literal", PROJECTED):
        for small in (3, 20):  # the larger one compiles what runs on several threads
            work_of(method, *model(problem, small))()
    for side in sides:
        jm, policy = model(problem, side)
        row = {"problem": problem, "method": method, "states": jm.num_states, "gamma": GAMMA}
        if method == PROJECTED:
            rows.append(row | {"seconds": monte_carlo(jm, policy, side)})
            continue
        took, peak, _ = timed(work_of(method, jm, policy))
        row |= {"seconds": took, "bytes": peak}
        rows.append(row)
    return rows


def rows_of_a_device(device, problem, sides):
    """One row for each size, of the dense route by torch on a device."""
    import torch

    jl.jipe2(*model(problem, 12), tol=TOL, device=device)
    rows = []
    for side in sides:
        jm, policy = model(problem, side)
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        took, peak, _ = timed(partial(jl.jipe2, jm, policy, tol=TOL, device=device))
        if device == "cuda":
            peak = torch.cuda.max_memory_allocated()
        row = {"problem": problem, "method": f"torch, {device}", "states": jm.num_states}
        rows.append(row | {"gamma": GAMMA, "seconds": took, "bytes": peak})
    return rows


def rows_of_an_order(order, sides):
    """Coordinates and time of higher orders, goal policy."""
    rows = []
    jl.jipe(*model(GOAL, 3), order=order)
    for side in sides:
        jm, policy = model(GOAL, side)
        took, peak, sol = timed(partial(jl.jipe, jm, policy, order=order, tol=TOL))
        row = {"problem": GOAL, "method": f"order {order}", "states": jm.num_states, "gamma": GAMMA}
        rows.append(row | {"seconds": took, "bytes": peak, "coordinates": sol.num_unknowns})
    return rows


def rows_of(table, *arguments):
    """Rows of a table, in this process."""
    if table == "order":
        rows = rows_of_an_order(*arguments)
    else:
        rows = (rows_of_a_device if table == "device" else rows_of_a_method)(*arguments)
    return [{"table": "order" if table == "order" else "scaling", **row} for row in rows]


def alone(*arguments):
    """`rows_of` in a process; none if that ran out of memory."""
    try:
        rows = in_a_process(*arguments)
    except MemoryError as error:
        print(*arguments, error, file=sys.stderr, flush=True)
        return []
    for row in rows:
        print(*row.values(), file=sys.stderr, flush=True)
    return rows


def measure(large, only):
    """All rows of all tables, or the first of each method of one problem, or of each order."""
    groups: list[tuple] = []
    for problem, methods in SIDES.items():
        for method, (sides, more) in methods.items():
            together = method in TOGETHER and not only
            chosen = sides[:1] if only else sides + more * large
            each = [chosen] if together else [[side] for side in chosen]
            groups += [("scaling", problem, method, group) for group in each]
    for order, (sides, more) in ORDERS.items():
        groups.append(("order", order, sides[:1] if only else sides + more * large))
    requested = [group for group in groups if only in ("", group[1], group[0])]
    return pd.DataFrame([row for group in requested for row in alone(*group)])


def measure_device(device, only):
    """The rows of a device, or the smallest of one problem."""
    groups = [
        ("device", device, problem, [side])
        for problem, sides in GPU_SIDES.items()
        for side in (sides[:1] if only else sides)
        if only in ("", problem)
    ]
    return pd.DataFrame([row for group in groups for row in alone(*group)])


def cell(row):
    """Time and memory of one measurement."""
    if np.isnan(row["bytes"]):
        return duration(row["seconds"])
    size = row["bytes"] / 1e6
    return f"{duration(row['seconds'])}, {size:,.{0 if size >= 10 else 1}f} MB"


def scaling_table(data):
    """A line for each model, a column for each method, and what others cost beside the best."""
    data = data[data.table == "scaling"]
    methods = list(data.method.unique())
    others = [name for name in (SCIPY, QUANTECON, PROJECTED) if name in methods]
    lines = []
    for (problem, states), each in data.groupby(["problem", "states"]):
        rows = each.set_index("method")
        best = rows.seconds.drop(["literal", *others], errors="ignore").min()
        ratios = [rows.seconds.get(name, np.nan) / best for name in others]
        cells = [cell(rows.loc[m]) if m in rows.index else "" for m in methods]
        cells += ["" if np.isnan(r) else f"{r:,.2g}" if r < 10 else f"{r:,.0f}" for r in ratios]
        lines.append([problem, f"{states:,}", *cells])
    heads = [
        "model",
        "states",
        *methods,
        *(f"{name}: times as long as the best" for name in others),
    ]
    return table(heads, lines)


def order_table(data):
    """Coordinates of higher orders, beside those that the definition has."""
    lines = []
    for _, row in data[data.table == "order"].iterrows():
        order = int(row.method.split()[1])
        named = (4.0 * row.states) ** order
        counts = [f"{named:.1e}", f"{row.coordinates:,.0f}", f"{named / row.coordinates:,.0f}"]
        lines.append([order, f"{row.states:,}", *counts, cell(row)])
    heads = ["order", "states", "(S A)^n", "coordinates solved", "ratio", "time, memory"]
    return table(heads, lines)


def write(data):
    """scaling.md."""
    gpu = pd.read_csv(HERE / "gpu.csv")
    write_page(
        "scaling.md",
        "Scaling",
        about(__doc__),
        scaling_table(data),
        f"## Orders 3 and 4 ({GOAL})",
        order_table(data),
        f"## On a GPU (gpu.csv: {GPU})",
        scaling_table(gpu),
        packages=["scipy", "torch", "quantecon"],
    )


def main():
    large = {"action": "store_true", "help": "grids of up to 316x316 cells too"}
    device = {"help": "a torch device, such as cuda, alone"}
    chosen = command_line(__doc__, [*SIDES, "order"], rows_of, large=large, device=device)
    if chosen.device:
        data = measure_device(chosen.device, chosen.only)
        if not chosen.only:
            data.to_csv(HERE / "gpu.csv", index=False, float_format="%.4g")
        return
    data = measure(chosen.large, chosen.only)
    if not chosen.only:
        data = data.astype({"coordinates": "Int64"})
        data.to_csv(HERE / "scaling.csv", index=False, float_format="%.4g")
        write(data)


if __name__ == "__main__":
    main()
