"""Simulators by the million: a vectorised depot beside a hand-written loop, and on a GPU.

The depot of book/own_simulator.md: ordering 2 against ordering 1 with 5 in stock, uniform policy,
gamma 0.9, horizon 66. *Loop* is what twenty lines of NumPy do: they play all pairs to the end.
*Dropping loop* also drops pairs whose branches have become one, once they are a fifth. *Plain* is
the player of one pair at a time, as it was at commit 28ab781. Times are the best of five in one
run. A branch-step is a step of a branch of a pair that is not finished; a pair takes 37 of them
until its branches are one (joint), or 31 (common). A GPU is idle half of the time with 10^7 pairs:
Python takes longer to launch the last steps, of few pairs, than these take. With 10^8 pairs and
more the kernels of a step limit it, each of which reads and writes its arrays once. Memory stays
that of a chunk of 2^25 pairs, however many pairs there are. By `jipe2` the variances are
28.1227 and 15.5805. JAX 0.10.2, tried once by hand on a processor with 64-bit numbers
switched on, played 20,000 pairs to the same digits as NumPy, whose generator `draw` gets there. It
took minutes: it compiles every operation anew for each shape, and shapes change whenever finished
pairs are dropped.

    python benchmarks/vector.py --old CHECKOUT   # the table of the processor; 28ab781 beside it
    python benchmarks/vector.py --device cuda    # the rows of a GPU, into vector_gpu.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from timing import machine, markdown_table, seconds

import jmdp_lib as jl
from jmdp_lib.simulators.gaps import GapEstimate

HERE = Path(__file__).resolve().parent
GPU_ROWS = HERE / "vector_gpu.csv"
POLICY = np.full((12, 5), 0.2)
PAIRS, STEPS, REPEATS = 100_000, 66, 5
COUPLINGS = {"joint": 36.78, "common": 30.85}  # branch-steps until the branches of a pair are one

PLAIN = """
import sys, time
import numpy as np
import jmdp_lib as jl

class Depot:
    num_states, num_actions, gamma = 12, 5, 0.9

    def query(self, state, actions, rng):
        demand = int(rng.poisson(3))
        full = [min(state + order, 11) for order in actions]
        sold = [min(stock, demand) for stock in full]
        rewards = [3.0 * x - 1.5 * order for x, order in zip(sold, actions, strict=True)]
        return rewards, [stock - x for stock, x in zip(full, sold, strict=True)]

start = time.perf_counter()
asked = dict(num_pairs=300, state=5, coupling=sys.argv[1])
jl.simulators.estimate_gaps(Depot(), np.full((12, 5), 0.2), [2, 1], **asked)
print((time.perf_counter() - start) / 300)
"""


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


def plain_seconds(checkout: str, coupling: str) -> float:
    """Of a pair, with the library of another checkout: the best of three."""
    where = {**os.environ, "PYTHONPATH": checkout}
    command = [sys.executable, "-c", PLAIN, coupling]
    runs = [subprocess.run(command, env=where, capture_output=True, text=True) for _ in range(3)]
    if any(run.returncode for run in runs):
        raise RuntimeError(runs[0].stderr)
    return min(float(run.stdout) for run in runs)


def processor_rows(old: str | None) -> list[str]:
    """Markdown rows of both couplings."""
    sim = depot()
    lines = []
    for coupling in COUPLINGS:
        rng = np.random.default_rng(0)

        def ours() -> GapEstimate:
            return jl.simulators.estimate_gaps(
                sim, POLICY, [2, 1], state=5, num_runs=PAIRS, coupling=coupling, horizon=STEPS
            )

        best = seconds(ours, REPEATS)
        by_hand = seconds(lambda: loop(coupling, False, rng), REPEATS)
        dropping = seconds(lambda: loop(coupling, True, rng), REPEATS)
        cells = [f"{1e6 * x / PAIRS:.2f} µs" for x in (best, by_hand, dropping)]
        cells += [f"{best / by_hand:.2f}", f"{best / dropping:.2f}"]
        if old is not None:
            plain = plain_seconds(old, coupling)
            cells += [f"{1e3 * plain:.2f} ms", f"{plain * PAIRS / best:,.0f}"]
        variances = [found.variance[0, 1] for found in [ours()]]
        variances += [loop(coupling, False, rng).var(), loop(coupling, True, rng).var()]
        print(coupling, *cells, "variances", *(f"{x:.2f}" for x in variances), flush=True)
        lines.append(f"| {coupling} | " + " | ".join(cells) + " |")
    return lines


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


def gpu_rows(device: str, most: int) -> list[dict[str, object]]:
    """How long 10^7 pairs and more take, each after a warm-up; the best of three."""
    import torch

    sim, state = gpu_depot(device)
    rows = []
    for coupling, steps in COUPLINGS.items():
        asked = (sim, POLICY, [2, 1], state)
        jl.simulators.estimate_gaps(*asked, coupling=coupling, num_runs=10**7, horizon=STEPS)
        for pairs in [count for count in (10**7, 10**8, 10**9) if count <= most]:
            torch.cuda.reset_peak_memory_stats()
            times = []
            for seed in range(3):
                start = time.perf_counter()
                found = jl.simulators.estimate_gaps(
                    *asked, coupling=coupling, num_runs=pairs, horizon=STEPS, seed=seed
                )
                times.append(time.perf_counter() - start)
            row = {
                "device": torch.cuda.get_device_name(),
                "coupling": coupling,
                "pairs": pairs,
                "seconds": round(min(times), 4),
                "branch-steps a pair": steps,
                "branch-steps a second": float(f"{steps * pairs / min(times):.3g}"),
                "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
                "variance": round(float(found.variance[0, 1]), 5),
                "standard error": float(f"{found.variance_error[0, 1]:.2g}"),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def profile(device: str) -> None:
    """Which kernels take the time of 10^7 pairs."""
    import torch

    sim, state = gpu_depot(device)

    def play() -> None:
        jl.simulators.estimate_gaps(sim, POLICY, [2, 1], state, num_runs=10**7, horizon=STEPS)

    play()
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as seen:
        play()
        torch.cuda.synchronize()
    table = seen.key_averages()
    print(table.table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60))


def gpu_table() -> list[str]:
    if not GPU_ROWS.exists():
        return []
    head = ["", "On a GPU, with torch; states and demands are of one byte:", ""]
    return head + markdown_table(GPU_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--old", help="a checkout of 28ab781")
    parser.add_argument("--most", type=float, default=1e9, help="the most pairs on a GPU")
    parser.add_argument("--profile", action="store_true", help="kernels of a GPU, and no more")
    chosen = parser.parse_args()
    if chosen.profile:
        profile(chosen.device)
        return
    if chosen.device != "cpu":
        rows = gpu_rows(chosen.device, int(chosen.most))
        with GPU_ROWS.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return
    old = ["28ab781, a pair", "times as fast"] if chosen.old else []
    names = ["coupling", "`estimate_gaps`, a pair", "loop", "dropping loop"]
    names += ["ratio to the loop", "to the dropping loop", *old]
    lines = [
        "# Vectorised simulators",
        "",
        (__doc__ or "").split("\n\n")[1].strip(),
        machine("numpy"),
        "",
        "| " + " | ".join(names) + " |",
        "|---" * len(names) + "|",
        *processor_rows(chosen.old),
        *gpu_table(),
    ]
    (HERE / "vector.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
