"""States against time and memory, what exact gap statistics cost: `python benchmarks/scaling.py`.

Under three minutes on two cores; `--large` adds grids of up to 316x316 cells, and `--device cuda`
the dense route on a GPU. Writes scaling.csv (data), scaling.md (tables) and scaling.png (the plot).
Without a GPU the plot shows gpu.csv, one run on an NVIDIA H200 to a certified 1e-9.

Every evaluation solves all gaps of all states to a certified 1e-8 in the paper's norm. Each number
is taken in a process of its own (one for all sizes of a method that needs little memory: literal,
means, Monte Carlo), after a run on a tiny model that compiles. The time is the best of a few runs,
or the only one where that takes a second; building the model is not part of it. The memory is what
the first run adds: the highest resident memory of the process less that before the run, and
nothing where the run set no new height or added less than 0.2 MB. On a GPU it is the most that
torch had allocated there.

Beside the evaluations stands what a user would otherwise do. For the mean alone, that is QuantEcon
and SciPy. For the gaps it is Monte Carlo, whose time is a *projection*: the pairs that 1% relative
standard error of each gap variance takes, (kurtosis - 1) / 0.01^2, over the pairs per second, both
measured at one state, times all states. On a grid that state is next to the goal, the cheapest
place: elsewhere pairs live longer and have heavier tails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
from scaling_rows import (
    DISCOUNT_SIDES,
    DISCOUNTS,
    GOAL,
    PROJECTED,
    QUANTECON,
    RANDOM,
    SCIPY,
    TOGETHER,
    UNIFORM,
)
from timing import machine

from jmdp_lib import figures

HERE = Path(__file__).parent
# How the methods are drawn: label, colour, marker, line.
STYLES = {
    "literal": ("literal $T_2$", "#000000", "s", "-"),
    "dense": ("dense pairs", "#0072B2", "o", "-"),
    "reachable": ("reachable pairs", "#D55E00", "^", "-"),
    "torch, cpu": ("dense, torch on CPU", "#56B4E9", "v", "-"),
    "torch, cuda": ("dense, torch on GPU", "#009E73", "D", "-"),
    "QuantEcon, mean only": ("mean only, QuantEcon", "#E69F00", "x", "--"),
    "SciPy, mean only": ("mean only, SciPy", "0.5", "+", "--"),
    "Monte Carlo, projected": ("Monte Carlo, projected", "#CC79A7", "", ":"),
}
# Sides of the model (states are their squares): by default, and those that --large adds.
SIDES = {
    GOAL: {
        "literal": ([2, 3], [4]),
        "dense": ([10, 20, 30], [50]),
        "reachable": ([10, 20, 50, 100], [200, 316]),
        "torch": ([20, 30], [50]),
        QUANTECON: ([10, 100], [200, 316]),
        SCIPY: ([10, 100], [200, 316]),
        PROJECTED: ([10, 20, 50, 100], [200, 316]),
    },
    UNIFORM: {
        "literal": ([2, 3], [4]),
        "dense": ([10, 20, 40], [70, 100]),
        "reachable": ([10, 20], [40]),
        "torch": ([20, 40], [70]),
        QUANTECON: ([10, 100], [200, 316]),
        SCIPY: ([10, 100], [200, 316]),
        PROJECTED: ([10, 20, 40], [70, 100]),
    },
    RANDOM: {
        "literal": ([2, 3], [4]),
        "dense": ([10, 20, 40], [70, 100]),
        "reachable": ([10, 20], [40]),
        "torch": ([20, 40], [70]),
        QUANTECON: ([10, 40], [70]),
        SCIPY: ([10, 40], [70]),
        PROJECTED: ([10, 20, 40], [70, 100]),
    },
}
ORDERS = {3: ([6, 10], [20, 30]), 4: ([6], [8, 10])}


def in_a_process(*arguments: object) -> list[dict]:
    """The rows that scaling_rows.py makes of these arguments, in a process of its own."""
    command = [sys.executable, HERE / "scaling_rows.py", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:  # out of memory, say: it has told why, and its cell stays empty
        return []
    rows = json.loads(done.stdout)
    for row in rows:
        said = f"{row['problem']}, {row['method']}, {row['states']:,} states"
        print(f"{said}, gamma {row['gamma']}: {row['seconds']:.3g} s", file=sys.stderr, flush=True)
    return rows


def measure(large: bool, device: str | None) -> pd.DataFrame:
    """All rows of all tables."""
    rows = []
    for problem, methods in SIDES.items():
        for method, (sides, more) in methods.items():
            sides = sides + more * large
            if method in TOGETHER:
                rows += in_a_process("scaling", problem, method, sides)
                continue
            devices = dict.fromkeys(["cpu", device or "cpu"])
            for on in devices if method == "torch" else ["cpu"]:
                name = f"torch, {on.split(':')[0]}" if method == "torch" else method
                for side in sides:
                    rows += in_a_process("scaling", problem, name, [side], on)
    for route in DISCOUNT_SIDES:
        rows += in_a_process("discount", route)
    for order, (sides, more) in ORDERS.items():
        rows += in_a_process("order", order, sides + more * large)
    return pd.DataFrame(rows).astype({"coordinates": "Int64", "iterations": "Int64"})


def duration(seconds: float) -> str:
    """A time for people."""
    for unit, name, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 1), (1, "s", 2)):
        if seconds >= unit:
            return f"{seconds / unit:,.{digits}f} {name}"
    return f"{1000 * seconds:.3g} ms"


def cell(row: pd.Series) -> str:
    """Time and memory of one measurement."""
    if np.isnan(row["bytes"]):
        return duration(row["seconds"])
    size = row["bytes"] / 1e6
    return f"{duration(row['seconds'])}, {size:,.{0 if size >= 10 else 1}f} MB"


def markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    """A table without its empty columns, and with an empty line after it."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def scaling_table(data: pd.DataFrame) -> list[str]:
    """A line for each model, a column for each method, and what they cost beside each other."""
    methods = [m for m in STYLES if m in set(data.method)]
    lines = []
    for (problem, states), each in data.groupby(["problem", "states"], sort=False):
        found = each.set_index("method")
        exact = found.seconds.reindex(["dense", "reachable", "torch, cpu", "torch, cuda"]).min()
        beside = [found.seconds.get(QUANTECON, np.nan), exact]
        ratios = [exact / beside[0], found.seconds.get(PROJECTED, np.nan) / exact]
        cells = [cell(found.loc[m]) if m in found.index else "" for m in methods]
        ratios = [f"{r:,.2g}" if r < 10 else f"{r:,.0f}" for r in ratios]
        lines.append((problem, states, cells + [r.replace("nan", "") for r in ratios]))
    lines.sort(key=lambda line: (list(SIDES).index(line[0]), line[1]))
    heads = ["model", "states", *methods, "exact gaps / QuantEcon's mean", "Monte Carlo / exact"]
    return markdown(heads, [[problem, f"{states:,}", *rest] for problem, states, rest in lines])


def discount_table(data: pd.DataFrame) -> list[str]:
    """gamma against iterations and time."""
    lines = []
    for (route, states), each in data.groupby(["method", "states"], sort=False):
        by = each.set_index("gamma")
        cells = [f"{int(by.iterations[g])}, {duration(by.seconds[g])}" for g in DISCOUNTS]
        ratios = [f"{by[of][0.999] / by[of][0.99]:.1f}" for of in ("iterations", "seconds")]
        lines.append([route, f"{states:,}", *cells, *ratios])
    heads = [f"gamma {g}: iterations, time" for g in DISCOUNTS]
    heads += ["iterations, 0.999 / 0.99", "time, 0.999 / 0.99"]
    return markdown(["route", "states", *heads], lines)


def order_table(data: pd.DataFrame) -> list[str]:
    """Coordinates of higher orders, beside those that the definition has."""
    lines = []
    for _, row in data.iterrows():
        order, solved = int(row.method.split()[1]), int(row.coordinates)
        named = (4.0 * row.states) ** order
        counts = [f"{named:.1e}", f"{solved:,}", f"{named / solved:,.0f}"]
        lines.append([str(order), f"{row.states:,}", *counts, cell(row)])
    heads = ["order", "states", "(S A)^n", "coordinates solved", "ratio", "time, memory"]
    return markdown(heads, lines)


def draw(axes: np.ndarray, data: pd.DataFrame, quantity: str) -> None:
    """States against "seconds" or "bytes", in axes (P,), one for each problem.

    If the figure has no legend yet, one goes below it, which needs room.
    """
    label, unit = {"seconds": ("time [s]", 1.0), "bytes": ("memory [MB]", 1e6)}[quantity]
    shown = {}
    for ax, (problem, each) in zip(axes, data.groupby("problem", sort=False), strict=True):
        for method, (name, color, marker, line) in STYLES.items():
            rows = each[(each["method"] == method) & each[quantity].notna()].sort_values("states")
            if len(rows):
                look = {"ms": 4, "marker": marker, "mfc": "none" if marker in "ov" else color}
                values = rows[quantity] / unit
                (shown[name],) = ax.loglog(rows["states"], values, line, color=color, **look)
        ax.set(title=problem, xlabel="states")
    axes[0].set_ylabel(label)
    if not axes[0].figure.legends:
        axes[0].figure.legend(shown.values(), shown, loc="outside lower center", ncols=4)


def write(data: pd.DataFrame, command: str) -> str:
    """scaling.csv, scaling.png and scaling.md; the text of the last."""
    data.to_csv(HERE / "scaling.csv", index=False, float_format="%.4g")
    tables = dict(list(data.groupby("table", sort=False)))
    figures.style()
    fig, axes = plt.subplots(2, len(SIDES), figsize=(7.2, 4.6), sharex=True, sharey="row")
    gpu = pd.read_csv(HERE / "gpu.csv")
    here = "torch, cuda" in set(data.method)
    shown = (
        tables["scaling"] if here else pd.concat([tables["scaling"], gpu[gpu.table == "scaling"]])
    )
    for row, quantity in zip(axes, ("seconds", "bytes"), strict=True):
        draw(row, shown, quantity)
    fig.savefig(HERE / "scaling.png", metadata={"Software": None})
    about = __doc__.split("\n\n", 2)[2].strip()
    versions = machine("numpy", "numba", "scipy", "torch", "quantecon")
    memory = f"{psutil.virtual_memory().total / 1e9:.0f} GB of memory."
    lines = [
        "# Scaling",
        "",
        f"{versions[:-1]}, {memory} `{command}`",
        "",
        about,
    ]
    lines += ["", "![States against time and memory](scaling.png)", ""]
    lines += scaling_table(tables["scaling"])
    lines += [f"## Discount ({UNIFORM})", "", *discount_table(tables["discount"])]
    lines += [f"## Orders 3 and 4 ({GOAL})", "", *order_table(tables["order"])]
    if not here:
        lines += ["## On a GPU (gpu.csv: an NVIDIA H200, another machine, to 1e-9)", ""]
        lines += scaling_table(gpu[gpu.table == "scaling"])
        lines += discount_table(gpu[gpu.table == "discount"])
    text = "\n".join(lines)
    (HERE / "scaling.md").write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--large", action="store_true", help="grids of up to 316x316 cells too")
    parser.add_argument("--device", help="a torch device to add, such as cuda")
    arguments = parser.parse_args()
    command = " ".join(["python benchmarks/scaling.py", *sys.argv[1:]])
    print(write(measure(arguments.large, arguments.device), command))


if __name__ == "__main__":
    main()
