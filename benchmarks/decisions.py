"""How often `compare_actions` decides falsely, and how many runs it needs.

`python benchmarks/decisions.py` writes decisions.md in some six minutes on two idle cores; `--only
CASE` measures one row of the first two tables, and writes nothing.

All at alpha = 0.05. "Betting" is the confidence sequence for a known range of rewards, "Bernstein"
the empirical Bernstein sequence for the same case (Waudby-Smith and Ramdas 2024, Theorem 2), and
"asymptotic" the one without a range. The first table counts false decisions: whole calls of
`compare_actions` with 2,500 queries, and for Bernstein, which the library does not have, sequences
of as many gaps of two actions. *Rare loss, worse*: an action pays 0.01 more, and 100 less once in a
thousand. *Rare loss, equal*: it pays 1 more, and 99 less once in a hundred. *Fair coins*: one coin
pays either action. *Four actions*: one is better, and beaten ones are dropped. *Growing horizon*:
two equal actions whose gaps vary less than the default horizon cuts off, so that it grows, with
30,000 queries. In the first case and with four actions a call may also be right; in the others
every decision is false. The second table has the median number of runs until a sequence says which
action is better: for Bernstein if one looks after each run, and otherwise of calls, which look at
their own times; and, of these, the median number of queries, values included. The third table has a
decision by a simulator of 10 ms a query, in one process and in eight.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
from timing import about, command_line, lines, table, write_page

import jmdp_lib as jl

ALPHA = 0.05
CALLS, BUDGET = 300, 2_500
REPEATS, LONGEST = 200, 20_000


def draw(prob, usual, rare):
    """One state, whose two actions pay `rare` with this probability, and else `usual`."""
    return jl.JMDP([[1.0 - prob, prob]], [[usual, rare]], np.zeros((1, 2, 2), int), 0.0)


def patient():
    """Two actions swap a small coin, and lead to two equal states that pay coins for ever."""
    rewards = [[[0.0, 0.01], [0.01, 0.0]], *[[[0.0, 0.0], [1.0, 1.0]]] * 2]
    after = [[[1, 2]] * 2, [[1, 1]] * 2, [[2, 2]] * 2]
    return jl.JMDP(np.full((3, 2), 0.5), rewards, after, 0.8)


def four_actions():
    """One state; two equal coins pay four actions, and the first pays 0.35 more on average."""
    coins = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])  # (K, 2)
    rewards = coins[:, [0, 0, 1, 1]] * [1.0, -1.0, 1.0, -1.0] + [0.0, 1.0, 0.0, 1.0]
    rewards[:, 0] += 0.35
    return jl.JMDP(np.full((1, 4), 0.25), rewards[None], np.zeros((1, 4, 4), int), 0.0)


# A world, its better action, or None if both are equally good.
FALSE = {
    "rare loss, worse": (draw(0.001, (0.01, 0.0), (-99.99, 0.0)), 1),
    "rare loss, equal": (draw(0.01, (1.0, 0.0), (-99.0, 0.0)), None),
    "fair coins": (draw(0.5, (1.0, 0.0), (0.0, 1.0)), None),
    "four actions": (four_actions(), 0),
    "growing horizon": (patient(), None),
}


def bernstein(x, reach):
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


def reach_of(jm):
    """The largest gap that there can be."""
    low, high = jm.reward_range
    return (high - low) / (1.0 - jm.gamma)


def first(known):
    """(N,) the run at which each repeat knows, of (T, N); T + 1 if it never does."""
    return np.where(known.any(0), known.argmax(0) + 1, len(known) + 1)


def false_calls(jm, better, method):
    """Calls of `compare_actions`, one for every seed, that decide falsely."""
    options = {"state": 0, "budget": BUDGET, "method": method}
    if jm.num_states > 1:
        options |= {"budget": 30_000, "coupling": "common"}
    policy, actions = [0] * jm.num_states, list(range(jm.num_actions))
    decide = partial(jl.simulators.compare_actions, jm, policy, actions, **options)
    decisions = (decide(rng=k) for k in range(CALLS))
    return sum(each.verdict == "better" and each.best != better for each in decisions)


def false_bernstein(jm, better):
    """The same for the empirical Bernstein sequence."""
    returns = jl.simulate_pairs(jm, [0], (0, 1), state=0, num_pairs=BUDGET * CALLS, rng=1)
    low, high = bernstein((returns[:, 0] - returns[:, 1]).reshape(BUDGET, CALLS), reach_of(jm))
    never = np.full(CALLS, BUDGET + 1)
    wrong = {0: first(high < 0.0), 1: first(low > 0.0), None: first((low > 0.0) | (high < 0.0))}
    right = {0: first(low > 0.0), 1: first(high < 0.0), None: never}
    return int(np.sum((wrong[better] <= BUDGET) & (wrong[better] < right[better])))


def coin(size):
    """A coin that pays one action or the other: a mean gap of `size` standard deviations."""
    return draw(0.5 - 0.5 * size / np.hypot(1.0, size), (1.0, 0.0), (0.0, 1.0))


def worlds():
    """A model, a policy, a state, and two actions, the better one first."""
    inventory, up_to_six = jl.inventory(), np.clip(6 - np.arange(11), 0, 5)
    depot = jl.inventory(11, 4, gamma=0.9, holding_cost=0.0, lost_sale_cost=0.0)
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
        "empty depot, order 4 or 3": (depot, np.clip(6 - np.arange(12), 0, 4), 0, (4, 3)),
    }


def runs_needed(jm, policy, state, pair):
    """Median runs until each of the sequences says that the first action is better.

    Of calls also the median queries.
    """
    returns = jl.simulate_pairs(jm, policy, pair, state=state, num_pairs=LONGEST * REPEATS, rng=0)
    gaps = np.subtract(*returns.T).reshape(LONGEST, REPEATS)
    yield np.median(first(bernstein(gaps, reach_of(jm))[0] > 0.0))
    decide = partial(jl.simulators.compare_actions, jm, policy, pair, state=state, budget=10**7)
    for method in ("betting", "asymptotic"):
        decisions = [decide(method=method, rng=k) for k in range(REPEATS)]
        yield np.median([decision.num_runs for decision in decisions])
        yield np.median([decision.num_queries for decision in decisions])


def false_row(name):
    """One line of the first table."""
    jm, better = FALSE[name]
    by_bernstein = false_bernstein(jm, better) if jm.probs.size < 4 else ""
    counts = [false_calls(jm, better, method) for method in ("betting", "asymptotic")]
    return [name, *map(str, [by_bernstein, *counts])]


def runs_row(name):
    """One line of the second table."""
    first, *calls = runs_needed(*worlds()[name])
    bernstein = f"{first:,.0f}" if first <= LONGEST else f"> {LONGEST:,}"
    return [name, bernstein, *(f"{n:,.0f}" for n in calls)]


class Slow:
    """A simulator of 10 ms a query: a walk on a ring, under one gust for both actions."""

    num_states, num_actions, gamma, reward_range = 5, 2, 0.8, (-0.2, 1.0)

    def query(self, state, actions, rng):
        time.sleep(0.01)
        gust = int(rng.integers(5))
        rewards = [float(state == gust) - 0.12 * action for action in actions]
        return rewards, [(state + gust * action) % 5 for action in actions]


def parallel():
    """The rows of the third table."""
    policy = np.full((5, 2), 0.5)
    decide = partial(jl.simulators.compare_actions, Slow(), policy, [0, 1], state=1, rng=0)
    with ProcessPoolExecutor(8, get_context("spawn")) as pool:
        decide(executor=pool, budget=100)  # they have started
        for name, executor in (("one process", None), ("eight processes", pool)):
            start = time.perf_counter()
            decision = decide(executor=executor)
            took = f"{time.perf_counter() - start:.1f} s"
            counts = [f"{n:,}" for n in (decision.num_runs, decision.num_queries)]
            yield [name, decision.verdict, *counts, took]


def main():
    only = command_line(__doc__, FALSE | worlds()).only
    false = lines(false_row, FALSE, only)
    needed = lines(runs_row, worlds(), only)
    if only:
        return
    heads = [
        [f"false decisions of {CALLS}", "Bernstein", "betting", "asymptotic"],
        ["needed", "runs, Bernstein", "runs, betting", "queries", "runs, asymptotic", "queries"],
        ["decided by", "verdict", "runs", "queries", "time"],
    ]
    rows = [false, needed, [*parallel()]]
    tables = [table(head, each) for head, each in zip(heads, rows, strict=True)]
    write_page("decisions.md", "Decisions", about(__doc__), *tables)


if __name__ == "__main__":
    main()
