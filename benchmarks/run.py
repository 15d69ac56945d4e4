"""Speed as ratios, each taken within one run: `python benchmarks/run.py` (about a minute).

Prints a table and writes it, with where it was measured, to benchmarks/results.md.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from numpy_pairs import simulate_pairs_numpy

import jmdp_lib as jl
from jmdp_lib.operators import PairOperator


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few runs, after one that compiles and warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def simulation():
    """Pair-steps per second, compiled against vectorised NumPy."""
    grid, chain = jl.windy_gridworld(5), jl.coupled_reward_chain(25, 0.95)
    cases = {
        "5x5 gridworld, uniform policy": (grid, jl.uniform_policy(grid), 20),
        "5x5 gridworld, goal policy": (grid, jl.goal_policy(5), 20),
        "25-state chain, uniform policy": (chain, jl.uniform_policy(chain), 0),
        "inventory, uniform policy": (jl.inventory(), jl.uniform_policy(jl.inventory()), 3),
    }
    for name, (jm, policy, state) in cases.items():
        pairs, steps = 50_000, 200
        fast = seconds(lambda: jl.simulate_pairs(jm, policy, state, (0, 1), pairs, 1, steps))
        rng = np.random.default_rng(0)
        slow = seconds(
            lambda: simulate_pairs_numpy(jm, policy, state, (0, 1), pairs, steps, rng), 2
        )
        yield (
            f"simulate_pairs, {name}",
            f"{pairs * steps / fast / 1e6:.0f} M pair-steps/s",
            f"{pairs * steps / slow / 1e6:.1f} M (NumPy)",
            slow / fast,
        )


def evaluation():
    """One application of T_2, fast against literal, and whole evaluations."""
    for size in (5, 10):
        jm = jl.windy_gridworld(size)
        policy = jl.uniform_policy(jm)
        operator = PairOperator(jm, policy)
        shape = (jm.num_states, jm.num_actions)
        zero = np.zeros(shape), np.zeros(shape + shape)
        state = operator.zero()
        fast = seconds(lambda: [operator.apply(state) for _ in range(20)]) / 20
        slow = seconds(lambda: jl.apply_t2(jm, policy, *zero), 2)
        yield (
            f"T_2 once, {size}x{size} gridworld",
            f"{fast * 1e3:.2f} ms",
            f"{slow * 1e3:.0f} ms (literal)",
            slow / fast,
        )
    for name, policy in (
        ("goal", jl.goal_policy(5)),
        ("uniform", jl.uniform_policy(jl.windy_gridworld(5))),
    ):
        jm = jl.windy_gridworld(5)
        second = seconds(lambda: jl.jipe2(jm, policy), 2)
        fourth = seconds(lambda: jl.jipe(jm, policy, order=4).moments.same_state(4), 1)
        yield (
            f"order 4, 5x5 gridworld, {name} policy",
            f"{fourth:.1f} s",
            f"{second * 1e3:.0f} ms (order 2)",
            fourth / second,
        )


def main() -> None:
    rows = [*simulation(), *evaluation()]
    lines = [
        f"Measured on {platform.machine()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}, {numba.get_num_threads()} threads.",
        "",
        "| what | here | beside it | ratio |",
        "|---|---|---|---|",
        *(f"| {what} | {here} | {other} | {ratio:.1f} |" for what, here, other, ratio in rows),
    ]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    (Path(__file__).parent / "results.md").write_text(f"# Benchmarks\n\n{text}")


if __name__ == "__main__":
    main()
