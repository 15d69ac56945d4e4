"""How often `compare_actions` decides falsely, and how many runs it needs: `python decisions.py`.

All at alpha = 0.05. "Betting" is the confidence sequence for a known range of rewards, "Bernstein"
the empirical Bernstein sequence for the same case (Waudby-Smith and Ramdas 2024, Theorem 2), and
"asymptotic" the one without a range. The first table counts false decisions: whole calls of
`compare_actions` with 2,500 queries, and for Bernstein, which the library does not have, sequences
of as many gaps. *Rare loss, worse*: an action pays 0.01 more, and 100 less once in a thousand.
*Rare loss, equal*: it pays 1 more, and 99 less once in a hundred. *Fair coins*: one coin pays
either action. In the first case a call may also be right; in the others every decision is false.
The second table has the median number of runs until the better action is known, if one looks after
each run. The third has 2,000 calls each on a JMDP, played run by run, and on a `VectorSimulator` of
the same tables, whose runs between two looks are played at once: decisions that are false, and
that are right, and the median of the runs until a decision. *Fair coins* are those of the first
table; of *four actions*, one is better, and beaten ones are dropped.
`python decisions.py --players` makes that table alone.
"""

from __future__ import annotations

import argparse
import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from timing import machine, markdown_table

import jmdp_lib as jl

HERE = Path(__file__).resolve().parent
ALPHA, FIRST = 0.05, 128  # the level, and the runs before an asymptotic sequence says anything
CALLS, BUDGET = 300, 2_500
REPEATS, LONGEST = 200, 20_000
PLAYER_CALLS, PLAYER_BATCH, PLAYER_BUDGET = 2_000, 50, 300
PLAYERS = HERE / "decisions_players.csv"


def draw(prob: float, usual: tuple[float, float], rare: tuple[float, float]) -> jl.JMDP:
    """One state, whose two actions pay `rare` with this probability, and else `usual`."""
    return jl.JMDP([[1.0 - prob, prob]], [[usual, rare]], np.zeros((1, 2, 2), int), 0.0)


# A world, its better action, or None if both are equally good.
FALSE = {
    "rare loss, worse": (draw(0.001, (0.01, 0.0), (-99.99, 0.0)), 1),
    "rare loss, equal": (draw(0.01, (1.0, 0.0), (-99.0, 0.0)), None),
    "fair coins": (draw(0.5, (1.0, 0.0), (0.0, 1.0)), None),
}


def bernstein(x: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the empirical Bernstein sequence for values x (T, N) in [-reach, reach], (T, N)."""
    z, t = (x / reach + 1.0) / 2.0, np.arange(1.0, len(x) + 1.0)[:, None]
    mean = (0.5 + np.cumsum(z, 0)) / (t + 1.0)
    spread = (1e-3 + np.cumsum((z - mean) ** 2, 0)) / (t + 1.0)
    mean = np.concatenate([np.full_like(z[:1], 0.5), mean[:-1]])  # of the values before
    spread = np.concatenate([np.full_like(z[:1], 1e-3), spread[:-1]])
    sure = np.log(2.0 / ALPHA)
    bets = np.minimum(np.sqrt(2.0 * sure / (spread * t * np.log1p(t))), 0.5)
    total = np.cumsum(bets, 0)
    centre = np.cumsum(bets * z, 0) / total
    radius = (sure + np.cumsum((z - mean) ** 2 * (-np.log1p(-bets) - bets), 0)) / total
    return reach * (2.0 * (centre - radius) - 1.0), reach * (2.0 * (centre + radius) - 1.0)


def log_capital(x: np.ndarray) -> np.ndarray:
    """(T, ...) what a gambler owns who bets on a positive mean of x in [-1, 1], as logarithm."""
    total = np.full(x.shape, -np.inf)
    for j in range(1, 17):
        with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
            growth = np.log1p(2.0 ** (1 - j) * x).cumsum(0)
        total = np.logaddexp(total, growth - np.log(j * (j + 1)))
    return total


def asymptotic(x: np.ndarray) -> np.ndarray:
    """Lower ends of the asymptotic confidence sequence for the mean of values x (T, N), (T, N)."""
    t = np.arange(1.0, len(x) + 1.0)[:, None]
    mean = np.cumsum(x, 0) / t
    variance = np.maximum(np.cumsum(x**2, 0) / t - mean**2, 0.0)
    level = -2.0 * np.log(ALPHA)
    rate = (level + np.log(level) + 1.0) / 1000.0 * t
    radius = np.sqrt(variance * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    radius += 0.2 * (np.maximum.accumulate(x) - np.minimum.accumulate(x)) * level / t
    return np.where(t < FIRST, -np.inf, mean - radius)


def reach_of(jm: jl.JMDP) -> float:
    """The largest gap that there can be."""
    low, high = jm.reward_range
    return (high - low) / (1.0 - jm.gamma)


def first(known: np.ndarray) -> np.ndarray:
    """(N,) the run at which each repeat knows, of (T, N); T + 1 if it never does."""
    return np.where(known.any(0), known.argmax(0) + 1, len(known) + 1)


def false_calls(jm: jl.JMDP, better: int | None, method: str) -> int:
    """Calls of `compare_actions`, one for every seed, that decide falsely."""
    calls = (
        jl.simulators.compare_actions(jm, [0], [0, 1], 0, budget=BUDGET, seed=k, method=method)
        for k in range(CALLS)
    )
    return sum(call.verdict == "better" and call.best != better for call in calls)


def false_bernstein(jm: jl.JMDP, better: int | None) -> int:
    """The same for the empirical Bernstein sequence."""
    played = jl.simulate_pairs(jm, [0], 0, (0, 1), BUDGET * CALLS, seed=1)
    low, high = bernstein((played[:, 0] - played[:, 1]).reshape(BUDGET, CALLS), reach_of(jm))
    never = np.full(CALLS, BUDGET + 1)
    wrong = {0: first(high < 0.0), 1: first(low > 0.0), None: first((low > 0.0) | (high < 0.0))}
    right = {0: first(low > 0.0), 1: first(high < 0.0), None: never}
    return int(np.sum((wrong[better] <= BUDGET) & (wrong[better] < right[better])))


def coin(size: float) -> jl.JMDP:
    """A coin that pays one action or the other: a mean gap of `size` standard deviations."""
    return draw(0.5 - 0.5 * size / np.hypot(1.0, size), (1.0, 0.0), (0.0, 1.0))


def worlds() -> dict[str, tuple[jl.JMDP, np.ndarray, int, tuple[int, int]]]:
    """A model, a policy, a state, and two actions, the better one first."""
    inventory, up_to_six = jl.inventory(), np.clip(6 - np.arange(11), 0, 5)
    coins = {f"coin, {x} standard deviations": coin(x) for x in (0.1, 0.3, 0.5)}
    return {
        **{name: (jm, np.zeros(1, int), 0, (0, 1)) for name, jm in coins.items()},
        "5x5 gridworld, middle, up or down": (
            jl.windy_gridworld(5),
            jl.goal_policy(5),
            12,
            (0, 2),
        ),
        "inventory of 5, order 0 or 4": (inventory, up_to_six, 5, (0, 4)),
        "inventory of 5, order 3 or 4": (inventory, up_to_six, 5, (3, 4)),
    }


def runs_needed(jm: jl.JMDP, policy: np.ndarray, state: int, pair: tuple[int, int]) -> list[int]:
    """Median runs until the first action is known to be better, by each of the sequences."""
    played = jl.simulate_pairs(jm, policy, state, pair, LONGEST * REPEATS, seed=0)
    gap, reach = (played[:, 0] - played[:, 1]).reshape(LONGEST, REPEATS), reach_of(jm)
    known = (
        bernstein(gap, reach)[0] > 0.0,
        log_capital(gap / reach) >= np.log(2.0 / ALPHA),
        asymptotic(gap) > 0.0,
    )
    return [int(np.median(first(x))) for x in known]


def four_actions() -> jl.JMDP:
    """One state; two equal coins pay four actions, and the first pays 0.35 more on average."""
    coins = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # (K, 2)
    rewards = coins[:, [0, 0, 1, 1]] * [1.0, -1.0, 1.0, -1.0] + [0.0, 1.0, 0.0, 1.0]
    rewards[:, 0] += 0.35
    return jl.JMDP(np.full((1, 4), 0.25), rewards[None], np.zeros((1, 4, 4), int), 0.0)


def vectorised(jm: jl.JMDP) -> jl.simulators.VectorSimulator:
    """A model of one state as a vectorised simulator."""
    cumulative = np.cumsum(jm.probs)[:-1]

    def step(states, actions, uniforms):
        return jm.rewards[np.searchsorted(cumulative, uniforms, side="right"), actions], states

    def draw(size, rng):
        return rng.random(size)

    return jl.simulators.VectorSimulator(
        step, draw, jm.num_actions, jm.gamma, jm.reward_range, num_states=1
    )


def player_case(case: str) -> tuple[jl.JMDP, int | None]:
    """A model, and its best action."""
    return FALSE[case] if case in FALSE else (four_actions(), 0)


def player_calls(case: str, player: str, method: str, first: int) -> list[tuple]:
    """Best action, or None if undecided, and number of runs, for a batch of seeds."""
    jm, _ = player_case(case)
    env = jm if player == "run by run" else vectorised(jm)
    actions = list(range(jm.num_actions))
    calls = (
        jl.simulators.compare_actions(
            env, [0], actions, 0, budget=PLAYER_BUDGET, seed=k, method=method
        )
        for k in range(first, first + PLAYER_BATCH)
    )
    return [(call.best, call.num_runs) for call in calls]


def player_row(case: str, player: str, method: str) -> dict:
    """False and right decisions of PLAYER_CALLS calls, and the median number of runs."""
    jobs = [(case, player, method, k) for k in range(0, PLAYER_CALLS, PLAYER_BATCH)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(player_calls, *zip(*jobs, strict=True)))
    found = [call for part in parts for call in part]
    right = player_case(case)[1]
    bests = [best for best, _ in found if best is not None]
    return {
        "case": case,
        "sequence": method,
        "player": player,
        "calls": len(found),
        "false": sum(best != right for best in bests),
        "right": sum(best == right for best in bests),
        "median runs": int(np.median([runs for _, runs in found])),
    }


def compare_players() -> None:
    """The third table, row by row, into its file."""
    rows = []
    for case in ("fair coins", "four actions"):
        for method in ("betting", "asymptotic"):
            for player in ("run by run", "vectorised"):
                rows.append(player_row(case, player, method))
                print(rows[-1], flush=True)
    with PLAYERS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--players", action="store_true", help="the third table alone")
    if parser.parse_args().players:
        compare_players()
        return
    lines = [
        "# Decisions",
        "",
        (__doc__ or "").split("\n\n", 1)[1].strip(),
        machine("numpy"),
        "",
        f"| false decisions of {CALLS} | Bernstein | betting | asymptotic |",
        "|---|---|---|---|",
    ]
    for name, (jm, better) in FALSE.items():
        counts = [false_calls(jm, better, which) for which in ("betting", "asymptotic")]
        counts = [false_bernstein(jm, better), *counts]
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| runs needed | Bernstein | betting | asymptotic |", "|---|---|---|---|"]
    for name, asked in worlds().items():
        cells = (f"{n:,}" if n <= LONGEST else f"> {LONGEST:,}" for n in runs_needed(*asked))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if PLAYERS.exists():
        lines += ["", *markdown_table(PLAYERS)]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    (HERE / "decisions.md").write_text(text)


if __name__ == "__main__":
    main()
