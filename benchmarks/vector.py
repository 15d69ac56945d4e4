"""Simulators by the million: a vectorised depot beside a hand-written loop, and on a GPU.

`python benchmarks/vector.py` writes vector.md in a minute on two idle cores; `--only joint` or
`common` measures one row of it and writes nothing. With `--device cuda` the rows are those of a GPU
and go into vector_gpu.csv, which chapter 11 shows.

The depot of book/own_simulator.md: ordering 2 against ordering 1 with 5 in stock, uniform policy,
gamma 0.9, horizon 66. *Loop* is what twenty lines of NumPy do: they simulate all pairs to the end.
*Dropping loop* also drops pairs whose branches have become one, once they are a fifth. *Plain* is
the same depot as a simulator that answers one query at a time. Times are the best of five in one
run. A branch-step is a step of a branch of a pair that is not finished; a pair takes 37 of them
until its branches are one (joint), or 31 (common). A GPU is idle half of the time with 10^7 pairs:
Python takes longer to launch the last steps, of few pairs, than these take. With 10^8 pairs and
more the kernels of a step limit it, each of which reads and writes its arrays once. Memory stays
that of a chunk of 2^25 pairs, however many pairs there are. By `jipe2` the variances are
28.1227 and 15.5805. JAX 0.10.2, tried once by hand on a processor with 64-bit numbers
switched on, simulated 20,000 pairs to the same digits as NumPy, whose generator `draw` gets there.
It took minutes: it compiles every operation anew for each shape, and shapes change whenever
finished pairs are dropped.
"""

import sys
import time
from functools import partial

import numpy as np
import pandas as pd
from gap_law import Depot
from timing import HERE, about, command_line, duration, lines, seconds, table, write_page

import jmdp_lib as jl
from jmdp_lib.model.coupling import CouplingName

GPU_ROWS = HERE / "vector_gpu.csv"
POLICY = np.full((12, 5), 0.2)
PAIRS, FEW, STEPS = 100_000, 300, 66
LEAST = 10**7  # pairs on a GPU
# Branch-steps until the branches of a pair are one.
COUPLINGS: dict[CouplingName, float] = {"joint": 36.78, "common": 30.85}


def sell(stock, order, demand):
    """A day of the depot, for any number of depots."""
    full = np.minimum(stock + order, 11)
    sold = np.minimum(full, demand)
    return 3.0 * sold - 1.5 * order, full - sold


def demands(size, rng):
    return rng.poisson(3, size)


def depot() -> jl.simulators.VectorSimulator:
    return jl.simulators.VectorSimulator(sell, demands, num_actions=5, gamma=0.9, num_states=12)


def loop(coupling: str, dropping: bool, rng: np.random.Generator) -> np.ndarray:
    """The gaps of PAIRS pairs, written by hand for this depot."""
    x, y = np.full(PAIRS, 5), np.full(PAIRS, 5)
    a, b = np.full(PAIRS, 2), np.full(PAIRS, 1)
    gap, weight, finished = np.zeros(PAIRS), 1.0, []
    for _ in range(STEPS):
        one = (x == y) & (a == b)
        if dropping and 5 * np.count_nonzero(one) >= one.size:
            finished.append(gap[one])
            x, y, a, b, gap, one = (part[~one] for part in (x, y, a, b, gap, one))
        demand = rng.poisson(3, x.size)
        other = demand
        if coupling == "joint":
            other = np.where(x == y, demand, rng.poisson(3, x.size))
        (earned, x), (lost, y) = sell(x, a, demand), sell(y, b, other)
        gap += weight * (earned - lost)
        a = rng.integers(5, size=x.size)
        b = np.where(one, a, rng.integers(5, size=x.size))
        weight *= 0.9
    return np.concatenate([*finished, gap])


def processor_row(coupling: CouplingName) -> list[str]:
    """One line of the first table."""
    estimate = partial(jl.simulators.estimate_gaps, coupling=coupling, horizon=STEPS)
    ours = partial(estimate, depot(), POLICY, [2, 1], state=5, num_runs=PAIRS)
    plain = partial(estimate, Depot(), POLICY, [2, 1], state=5, num_runs=FEW)
    rng = np.random.default_rng(0)
    loops = [partial(loop, coupling, dropping, rng) for dropping in (False, True)]
    each = [seconds(work) / PAIRS for work in (ours, *loops)] + [seconds(plain) / FEW]
    ratios = [f"{each[0] / other:.2f}" for other in each[1:3]] + [f"{each[3] / each[0]:,.0f}"]
    variances = [ours().variance[0, 1], *(work().var() for work in loops)]
    return [coupling, *map(duration, each), *ratios, *(f"{x:.2f}" for x in variances)]


def gpu_depot(device: str):
    """The depot in torch, with states and demands of one byte; and its state of 5."""
    import torch

    chances = np.cumsum(np.exp(-3.0) * np.cumprod(np.append(1.0, 3.0 / np.arange(1, 24))))
    edges = torch.tensor(chances, dtype=torch.float32, device=device)

    def day(stock, order, demand):
        full = torch.clamp(stock + order, max=11)
        sold = torch.minimum(full, demand)
        return 1.5 * (2 * sold - order), full - sold

    def draw(size, rng):
        uniforms = torch.rand(size, generator=rng, device=device)
        return torch.bucketize(uniforms, edges, out_int32=True, right=True).to(torch.int8)

    sim = jl.simulators.VectorSimulator(day, draw, num_actions=5, gamma=0.9, num_states=12)
    return sim, torch.tensor(5, dtype=torch.int8, device=device)


def gpu_row(device: str, coupling: CouplingName, pairs: int) -> dict[str, object]:
    """How long so many pairs take after a warm-up; the best of three."""
    import torch

    sim, state = gpu_depot(device)
    query = {"state": state, "coupling": coupling}
    simulate = partial(jl.simulators.estimate_gaps, sim, POLICY, [2, 1], **query)
    simulate(num_runs=LEAST, horizon=STEPS, rng=0)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for seed in range(3):
        start = time.perf_counter()
        gaps = simulate(num_runs=pairs, horizon=STEPS, rng=seed)
        times.append(time.perf_counter() - start)
    return {
        "device": torch.cuda.get_device_name() if on_gpu else device,
        "coupling": coupling,
        "pairs": pairs,
        "seconds": round(min(times), 4),
        "branch-steps a pair": COUPLINGS[coupling],
        "branch-steps a second": float(f"{COUPLINGS[coupling] * pairs / min(times):.3g}"),
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "variance": round(float(gaps.variance[0, 1]), 5),
        "standard error": float(f"{gaps.variance_error[0, 1]:.2g}"),
    }


def gpu_table(device: str, only: str) -> None:
    """Writes vector_gpu.csv; of one coupling alone it prints the smallest row."""
    sizes = [LEAST] if only else [LEAST, 10 * LEAST, 100 * LEAST]
    rows = []
    for coupling in [each for each in COUPLINGS if only in ("", each)]:
        for pairs in sizes:
            rows.append(gpu_row(device, coupling, pairs))
            print(rows[-1], file=sys.stderr, flush=True)
    if not only:
        pd.DataFrame(rows).to_csv(GPU_ROWS, index=False)


def main() -> None:
    chosen = command_line(
        __doc__, COUPLINGS, device={"help": "a torch device, such as cuda, alone"}
    )
    if chosen.device:
        gpu_table(chosen.device, chosen.only)
        return
    rows = lines(processor_row, COUPLINGS, chosen.only)
    if not chosen.only:
        heads = ["coupling", "`estimate_gaps`, a pair", "loop", "dropping loop", "plain"]
        heads += ["ratio to the loop", "to the dropping loop", "times as fast as plain"]
        heads += ["variance", "of the loop", "of the dropping loop"]
        gpu = pd.read_csv(GPU_ROWS, dtype=str)
        write_page(
            "vector.md",
            "Vectorised simulators",
            about(__doc__),
            table(heads, rows),
            "On a GPU (at commit f3b7642), with torch; states and demands are of one byte:",
            table(gpu, gpu.to_numpy()),
        )


if __name__ == "__main__":
    main()
