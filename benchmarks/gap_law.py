"""The law of gaps against play of the same certainty: `python benchmarks/gap_law.py` (minutes).

Prints a table and writes it, with where it was measured, to benchmarks/gap_law.md.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from timing import machine

import jmdp_lib as jl

TRIED = 5  # gaps that are played; the time is scaled to all of them


def pairs_for(width: float) -> int:
    """Recursive pairs after which a 95 % binomial interval is as wide, at the most."""
    return math.ceil((1.96 / width) ** 2)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of processor time: other programs do not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def cases():
    """Name, model, policy, queries (None: all), width at zero, and the limit in seconds."""
    grid = jl.windy_gridworld(5)
    yield "5x5, uniform policy, all gaps", grid, jl.uniform_policy(grid), None, 0.003, 15
    grid = jl.windy_gridworld(10)
    yield "10x10, goal policy, all gaps", grid, jl.goal_policy(10), None, 0.001, 10
    states = np.linspace(0, 898, 20).astype(int).tolist()
    asked = [(s, a, b) for s in states for a in range(4) for b in range(a)]
    grid = jl.windy_gridworld(30)
    yield "30x30, goal policy, 20 states", grid, jl.goal_policy(30), asked, 0.001, 60


def main() -> None:
    """Measure, print, write."""
    small = jl.windy_gridworld(3)
    jl.gap_law(small, jl.goal_policy(3))  # compiles
    jl.simulate_pairs(small, jl.goal_policy(3), 0, (0, 1), 10)
    lines = [
        machine("numpy", "numba"),
        "",
        "Processor seconds; `gap_law` runs on one core. Brackets are certain, play is right "
        f"in 95 % of all cases. The time of play is that of {TRIED} gaps, scaled to all.",
        "",
        "| windy gridworld | gaps | width asked | widest at zero | time | limit | play | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, jm, policy, queries, width, limit in cases():
        laws = []
        took = cpu(lambda: laws.extend(jl.gap_law(jm, policy, queries, width)))
        some = laws[:: max(1, len(laws) // TRIED)][:TRIED]
        count = pairs_for(width)
        played = cpu(
            lambda: [
                jl.simulate_pairs(jm, policy, law.query[0], law.query[1:], count) for law in some
            ]
        ) * (len(laws) / len(some))
        widest = max(law.width for law in laws)
        lines.append(
            f"| {name} | {len(laws)} | {width} | {widest:.1e} | {took:.1f} s | {limit} s | "
            f"{played:.0f} s ({count:,} pairs a gap) | {played / took:.0f} |"
        )
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    (Path(__file__).parent / "gap_law.md").write_text(f"# The law of gaps\n\n{text}")


if __name__ == "__main__":
    main()
