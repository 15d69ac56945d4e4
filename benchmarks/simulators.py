"""What the guide shows of simulators: the cost of queries of environments, and the depot's gaps.

Writes the table between the marks of book/own_simulator.md, and book/static/depot.png.

    python benchmarks/simulators.py
"""

import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
from timing import command_line, lines, once, table

import jmdp_lib as jl
from notebooks.tools import chapter

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "book" / "own_simulator.md"
NAMES = [
    "CartPole-v1",
    "Pendulum-v1",
    "Blackjack-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "InvertedPendulum-v5",
    "Hopper-v5",
    "Ant-v5",
    "Humanoid-v5",
    "LunarLander-v3",
    "BipedalWalker-v3",
]
_STEPS, _REPEATS = 10, 40


def coupled(name):
    with warnings.catch_warnings():  # that Box2D is replayed is said in the table
        warnings.simplefilter("ignore")
        return jl.simulators.CoupledEnv(gymnasium.make(name), rng=0)


def costs(name):
    """Seconds of a step, and of an action in a query of two, at step 10 or before; best of many."""
    env, plain = coupled(name), gymnasium.make(name)
    space = plain.action_space
    steps: list[float] = []
    queries: list[float] = []
    space.seed(0)
    while len(queries) < _REPEATS:
        plain.reset(seed=len(queries))
        env.reset()
        for _ in range(_STEPS):
            here, action = env.snapshot(), space.sample()
            result: list[Any] = []
            steps.append(once(lambda: result.extend(plain.step(action))))
            if any(result[2:4]):
                plain.reset()
            if any(env.step(action)[2:4]):  # some games are over sooner: then before their end
                env.restore(here)
                break
        listed = isinstance(space, gymnasium.spaces.Discrete)
        actions = [0, 1] if listed else [space.sample(), space.sample()]
        env.twin().query(actions)  # warm
        env.redraw()
        queries.append(once(lambda: env.query(actions)) / 2)
    return min(steps), min(queries)


def row(name):
    """One line of the table."""
    step, query = (1e6 * cost for cost in costs(name))
    return [name, coupled(name).copying, f"{step:.0f}", f"{query:.0f}", f"{query / step:.0f}"]


def picture():
    """Gap means and variances of the page's depot, with intervals and exact values."""
    [block] = re.findall(r"^```python\n([^`]*class Depot.*?)^```$", PAGE.read_text(), re.M | re.S)
    scope: dict = {"jl": jl}
    exec(block, scope)
    gaps, poisson = scope["gaps"], np.exp(-3.0) * np.cumprod(np.append(1.0, 3.0 / np.arange(1, 60)))
    model = jl.JMDP.from_step(12, 5, 0.9, poisson / poisson.sum(), scope["day"])
    exact = jl.jipe2(model, scope["policy"]).moments
    chapter.style()
    fig, axes = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
    orders = np.array([0, 1, 3, 4])
    for ax, name in zip(axes, ("mean", "variance"), strict=True):
        estimate, truth = (getattr(m, f"gap_{name}")[5, orders, 2] for m in (gaps, exact))
        reach = 1.96 * scope[f"{name}_error"][5, orders, 2]
        ax.errorbar(orders, estimate, reach, fmt="o", capsize=4, ms=3)
        ax.plot(orders, truth, "x", color="0.2", ms=7, label="exact")
        ax.set(xlabel="units ordered", ylabel=f"{name} of the gap", xticks=orders)
    axes[0].axhline(0.0, color="0.6", lw=0.8)
    axes[0].legend()
    fig.savefig(ROOT / "book" / "static" / "depot.png", dpi=150, metadata={"Software": None})


def main():
    only = command_line(__doc__, NAMES).only
    rows = lines(row, NAMES, only)
    if not only:
        picture()
        heads = ["environment", "how it is copied", "a step, in µs", "a queried action, in µs"]
        copies = f"\\1\n{table([*heads, 'in steps'], rows)}\n\\2"
        marks = "(<!-- begin copies -->).*(<!-- end copies -->)"
        PAGE.write_text(re.sub(marks, copies, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
