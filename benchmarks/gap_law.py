"""The law of gaps: brackets, time, and simulation beside them: `python benchmarks/gap_law.py`.

    python benchmarks/gap_law.py [--before FOLDER]

FOLDER is a checkout of an older version of this project (28ab781 has brackets in stochastic order
alone): each of its calls runs in a process of its own, in the same run. Takes some fifteen minutes
on two cores, most of them for the older version and for the simulations. Writes
benchmarks/gap_law.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from timing import machine

import jmdp_lib as jl

PAIRS = 10**7  # that a law is compared with
PARTS = 20  # of them, simulated side by side
PATIENCE = 45  # seconds that a call of the older version may take
THREADS = 2  # of a timed call


def random_model(size: int, gamma: float = 0.9, tables: int = 5) -> tuple[jl.JMDP, np.ndarray]:
    """States, three actions, rewards on no lattice; and the uniform policy."""
    rng = np.random.default_rng(0)
    shape = (size, tables, 3)
    probs = rng.dirichlet(np.ones(tables), size)
    jm = jl.JMDP(probs, rng.uniform(-1.0, 1.0, shape), rng.integers(size, size=shape), gamma)
    return jm, jl.uniform_policy(jm)


class Depot:
    """The simulator of book/own_simulator.md."""

    num_states, num_actions, gamma = 12, 5, 0.9

    def query(self, state, actions, rng):
        demand = int(rng.poisson(3))
        full = [min(state + order, 11) for order in actions]
        sold = [min(stock, demand) for stock in full]
        rewards = [3.0 * x - 1.5 * order for x, order in zip(sold, actions, strict=True)]
        return rewards, [stock - x for stock, x in zip(full, sold, strict=True)]


def depot() -> tuple[jl.JMDP, np.ndarray]:
    """Its model, counted, and the uniform policy."""
    jm = jl.JMDP.from_simulator(Depot(), queries_per_state=2_000, seed=0)
    return jm, jl.uniform_policy(jm)


def grid(size: int, goal: bool) -> tuple[jl.JMDP, np.ndarray]:
    """A windy gridworld: all rewards are 0 or 1."""
    jm = jl.windy_gridworld(size)
    return jm, jl.goal_policy(size) if goal else jl.uniform_policy(jm)


# Name, model, queries (None: all), width. The first part is compared with simulations.
CASES = {
    "the guide's depot": (depot, [(5, 2, 1)], 0.02),
    "random, 5 states": (lambda: random_model(5), [(0, 0, 1)], 0.02),
    "random, 15 states": (lambda: random_model(15), [(0, 0, 1)], 0.02),
    "random, 30 states": (lambda: random_model(30), [(0, 0, 1)], 0.02),
    "random, 60 states": (lambda: random_model(60), [(0, 0, 1)], 0.02),
    "random, 5 states, gamma 0.5": (lambda: random_model(5, 0.5), [(0, 0, 1)], 0.02),
    "random, 5 states, gamma 0.99": (lambda: random_model(5, 0.99), [(0, 0, 1)], 0.02),
    "random, 11 states, 642 tables": (lambda: random_model(11, 0.9, 642), [(0, 0, 1)], 0.02),
}
LATTICES = {
    "6x6 grid, goal policy, all gaps": (lambda: grid(6, True), None, 1e-3),
    "5x5 grid, uniform policy, all gaps": (lambda: grid(5, False), None, 3e-3),
    "10x10 grid, goal policy, all gaps": (lambda: grid(10, True), None, 1e-3),
    "20x20 grid, goal policy, one gap": (lambda: grid(20, True), [(210, 1, 3)], 1e-3),
}


def measured(name: str) -> dict:
    """Wall and processor seconds of one call, compiled before, and what it found."""
    make, queries, width = (CASES | LATTICES)[name]
    warnings.simplefilter("ignore")
    small = random_model(3, 0.5)
    for first in (small, grid(3, True)):
        jl.laws.gap_law(*first, [(0, 0, 1)], width=0.1)
    jm, policy = make()
    wall, cpu = time.perf_counter(), time.process_time()
    laws = jl.laws.gap_law(jm, policy, queries, width)
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    cvars = [law.cvar(0.1) for law in laws]
    return took | {
        "width": max(law.width for law in laws),
        "cvar": [float(x) for x in cvars[0]],
        "cvar width": float(np.mean([high - low for low, high in cvars])),
        "up to zero": [float(x) for x in laws[0].cdf(0.0)],
    }


def in_process(name: str, folder: Path | None, patience: float = PATIENCE) -> dict | None:
    """`measured` by this version or another, in a process; None if that takes too long."""
    if folder is None:
        return None
    places = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    settings = {"PYTHONPATH": os.pathsep.join(places), "NUMBA_NUM_THREADS": str(THREADS)}
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(
            command,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            text=True,
            timeout=patience,
            check=True,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1])


def simulated_gaps(name: str, part: int) -> np.ndarray:
    """(PAIRS / PARTS,) gaps, from a stream of their own."""
    jm, policy = CASES[name][0]()
    ((state, *actions),) = CASES[name][1]
    pairs = jl.simulate_pairs(jm, policy, state, actions, PAIRS // PARTS, seed=1 + part)
    return pairs[:, 0] - pairs[:, 1]


def simulated(name: str) -> tuple[float, float, float, float, float]:
    """P(G <= 0) and CVaR of the worst tenth with their standard errors, and the deviation of G."""
    with ProcessPoolExecutor() as pool:
        gaps = np.concatenate([*pool.map(simulated_gaps, [name] * PARTS, range(PARTS))])
    share = float(np.mean(gaps <= 1e-9))
    gaps.partition(PAIRS // 10)
    worst = gaps[: PAIRS // 10]
    variance = worst.var() + 0.9 * (worst.max() - worst.mean()) ** 2
    error = np.sqrt([share * (1.0 - share) / PAIRS, variance / worst.size])
    return share, float(error[0]), float(worst.mean()), float(error[1]), float(gaps.std())


def row(name: str, new: dict, old: dict | None) -> str:
    """One line of the first table, held to a simulation."""
    share, share_error, cvar, cvar_error, deviation = simulated(name)
    for (low, high), value, error in (
        (new["up to zero"], share, share_error),
        (new["cvar"], cvar, cvar_error),
    ):
        assert low - 5.0 * error <= value <= high + 5.0 * error, (name, low, high, value, error)
    was = f"more than {PATIENCE} s | | |"
    if old is not None:
        was = (
            f"{old['wall']:.1f} s | {old['width']:.3f} | {old['cvar width'] / deviation:.4f} | "
            f"{old['wall'] / new['wall']:.1f}"
        )
    p, c = new["up to zero"], new["cvar"]
    return (
        f"| {name} | {new['wall']:.1f} s, {new['cpu']:.1f} s | {new['width']:.4f} | "
        f"{new['cvar width'] / deviation:.5f} | {p[0]:.4f} to {p[1]:.4f} | {share:.4f} ± "
        f"{share_error:.4f} | {c[0]:.4f} to {c[1]:.4f} | {cvar:.4f} ± {cvar_error:.4f} | {was} |"
    )


def lattice_row(name: str, new: dict, old: dict | None) -> str:
    """One line of the second table."""
    was = "| | |"
    if old is not None:
        was = (
            f"{old['wall']:.2f} s | {old['width']:.0e} | {old['cvar width']:.4f} | "
            f"{old['wall'] / new['wall']:.1f}"
        )
    return (
        f"| {name} | {new['wall']:.2f} s | {new['width']:.0e} | {new['cvar width']:.5f} | {was} |"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    before = options.before and options.before.resolve()
    lines = [
        machine("numpy", "numba"),
        "",
        "Rewards on no lattice, one gap each. Widths of brackets: of P(G <= 0), and of CVaR(0.1) "
        f"in standard deviations of the gap. Beside them the brackets, and {PAIRS:.0e} simulated "
        "pairs; an assertion holds each bracket to its simulation, within five standard errors. "
        f"Wall seconds on {THREADS} threads, and processor seconds of both; *before*: stochastic "
        "order alone, which knew one thread.",
        "",
        "| | time | P | CVaR | P(G <= 0) | simulated | CVaR(0.1) | simulated | before | P | CVaR | "
        "ratio of times |",
        "|---" * 12 + "|",
    ]
    timed = {}
    for name in CASES | LATTICES:
        new = in_process(name, Path(__file__).resolve().parents[1], 600)
        assert new is not None, f"{name} took more than 600 s"
        timed[name] = (new, in_process(name, before))
        print(name, *timed[name], flush=True)
    for name in CASES:
        lines.append(row(name, *timed[name]))
        print(lines[-1], flush=True)
    lines += [
        "",
        "Lattices: exact at zero. Wall seconds; mean width of CVaR in units of the rewards.",
        "",
        "| windy gridworld | time | at zero | CVaR | before | at zero | CVaR | ratio of times |",
        "|---" * 8 + "|",
    ]
    for name in LATTICES:
        lines.append(lattice_row(name, *timed[name]))
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    (Path(__file__).parent / "gap_law.md").write_text(f"# The law of gaps\n\n{text}")


if __name__ == "__main__":
    main()
