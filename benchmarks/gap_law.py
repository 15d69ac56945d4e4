"""The law of gaps: brackets, time, and simulation beside them: `python benchmarks/gap_law.py`.

Writes gap_law.md in some three minutes on two idle cores; `--only NAME` measures one row of it, and
writes nothing.

Widths of brackets are those of P(G <= 0), and of CVaR(0.1) in standard deviations of the gap. An
assertion holds each bracket to 10^7 simulated pairs, within five standard errors. Times are wall
seconds and processor seconds of a call in a process of its own, after one that compiles. The first
table has rewards on no lattice, and one gap each. The rewards of the second lie on a lattice: there
a bracket at zero is exact, and the last column is the mean width of CVaR, in units of the rewards.
"""

import time
import warnings

import numpy as np
from timing import (
    about,
    command_line,
    duration,
    grid,
    in_a_process,
    lines,
    random_model,
    table,
    write_page,
)

import jmdp_lib as jl

PAIRS = 10**7  # that a law is compared with


def on_no_lattice(size, gamma=0.9, num_tables=5):
    """A random model of three actions."""
    return random_model(size, num_tables, 3, -1.0, gamma)


class Depot:
    """The simulator of book/own_simulator.md."""

    num_states, num_actions, gamma = 12, 5, 0.9

    def query(self, state, actions, rng):
        demand = int(rng.poisson(3))
        full = [min(state + order, 11) for order in actions]
        sold = [min(stock, demand) for stock in full]
        rewards = [3.0 * x - 1.5 * order for x, order in zip(sold, actions, strict=True)]
        return rewards, [stock - x for stock, x in zip(full, sold, strict=True)]


def depot():
    """Its model, counted, and the uniform policy."""
    jm = jl.JMDP.from_simulator(Depot(), queries_per_state=2_000, rng=0)
    return jm, jl.uniform_policy(jm)


# Name, model, queries (None: all), width. The first part is compared with simulations.
CASES = {
    "the guide's depot": (depot, [(5, 2, 1)], 0.02),
    "random, 5 states": (lambda: on_no_lattice(5), [(0, 0, 1)], 0.02),
    "random, 15 states": (lambda: on_no_lattice(15), [(0, 0, 1)], 0.02),
    "random, 30 states": (lambda: on_no_lattice(30), [(0, 0, 1)], 0.02),
    "random, 60 states": (lambda: on_no_lattice(60), [(0, 0, 1)], 0.02),
    "random, 5 states, gamma 0.5": (lambda: on_no_lattice(5, 0.5), [(0, 0, 1)], 0.02),
    "random, 5 states, gamma 0.99": (lambda: on_no_lattice(5, 0.99), [(0, 0, 1)], 0.02),
    "random, 11 states, 642 tables": (lambda: on_no_lattice(11, 0.9, 642), [(0, 0, 1)], 0.02),
}
LATTICES = {
    "6x6 grid, goal policy, all gaps": (lambda: grid(6, True), None, 1e-3),
    "5x5 grid, uniform policy, all gaps": (lambda: grid(5, False), None, 3e-3),
    "10x10 grid, goal policy, all gaps": (lambda: grid(10, True), None, 1e-3),
    "20x20 grid, goal policy, one gap": (lambda: grid(20, True), [(210, 1, 3)], 1e-3),
}


def bracket(name):
    """Wall and processor seconds of one call, compiled before, and its brackets."""
    make, queries, width = (CASES | LATTICES)[name]
    warnings.simplefilter("ignore")
    for first in (on_no_lattice(3, 0.5), grid(3, True)):
        jl.laws.gap_law(*first, gaps=[(0, 0, 1)], width=0.1)
    jm, policy = make()
    wall, cpu = time.perf_counter(), time.process_time()
    laws = jl.laws.gap_law(jm, policy, gaps=queries, width=width)
    took = [time.perf_counter() - wall, time.process_time() - cpu]
    ends = np.array([law.cvar(0.1) for law in laws])  # (Q, 2)
    return {
        "took": ", ".join(map(duration, took)),
        "width": max(law.width for law in laws),
        "cvar width": float(np.mean(ends[:, 1] - ends[:, 0])),
        "ends": [[float(x) for x in law] for law in (laws[0].cdf(0.0), laws[0].cvar(0.1))],
    }


def simulated(name):
    """P(G <= 0) and CVaR of the worst tenth with their standard errors, and the deviation of G."""
    make, ((state, a, b),), _ = CASES[name]
    jm, policy = make()
    returns = jl.simulate_pairs(jm, policy, (a, b), state=state, num_pairs=PAIRS, rng=1)
    gaps = np.subtract(*returns.T)
    share = float(np.mean(gaps <= 1e-9))
    gaps.partition(PAIRS // 10)
    worst = gaps[: PAIRS // 10]
    variance = worst.var() + 0.9 * (worst.max() - worst.mean()) ** 2
    errors = np.sqrt([share * (1.0 - share) / PAIRS, variance / worst.size])
    return (share, errors[0]), (worst.mean(), errors[1]), gaps.std()


def row(name):
    """One line of the first table, held to a simulation."""
    law = in_a_process(name)
    *values, deviation = simulated(name)
    cells = []
    for (low, high), (value, error) in zip(law["ends"], values, strict=True):
        assert low - 5.0 * error <= value <= high + 5.0 * error, (name, low, high, value, error)
        cells += [f"{low:.4f} to {high:.4f}", f"{value:.4f} ± {error:.4f}"]
    widths = [f"{law['width']:.4f}", f"{law['cvar width'] / deviation:.5f}"]
    return [name, law["took"], *widths, *cells]


def lattice_row(name):
    """One line of the second table."""
    law = in_a_process(name)
    return [name, law["took"], f"{law['width']:.0e}", f"{law['cvar width']:.5f}"]


def main():
    only = command_line(__doc__, CASES | LATTICES, bracket).only
    cases, lattices = lines(row, CASES, only), lines(lattice_row, LATTICES, only)
    if not only:
        heads = ["", "time", "P", "CVaR", "P(G <= 0)", "simulated", "CVaR(0.1)", "simulated"]
        tables = [table(heads, cases), table(["grid", "time", "at zero", "CVaR"], lattices)]
        write_page("gap_law.md", "The law of gaps", about(__doc__), *tables)


if __name__ == "__main__":
    main()
