"""How often `compare_actions` decides falsely, and how many runs it needs.

`python benchmarks/decisions.py` writes decisions.md in some five minutes on two idle cores; `--only
CASE` measures one row of it, and writes nothing.

All at alpha = 0.05. "Betting" is the confidence sequence for a known range of rewards, "Bernstein"
the empirical Bernstein sequence for the same case (Waudby-Smith and Ramdas 2024, Theorem 2), and
"asymptotic" the one without a range. The first table counts false decisions: whole calls of
`compare_actions` with 2,500 queries, and for Bernstein, which the library does not have, sequences
of as many gaps of two actions. *Rare loss, worse*: an action pays 0.01 more, and 100 less once in a
thousand. *Rare loss, equal*: it pays 1 more, and 99 less once in a hundred. *Fair coins*: one coin
pays either action. *Four actions*: one is better, and beaten ones are dropped. In the first and
last case a call may also be right; in the others every decision is false. The second table has the
median number of runs until the better action is known: for Bernstein if one looks after each run,
and otherwise of calls, which look at their own times.
"""

import numpy as np
from timing import about, asked, lines, table, write_page

import jmdp_lib as jl

ALPHA = 0.05
CALLS, BUDGET = 300, 2_500
REPEATS, LONGEST = 200, 20_000


def draw(prob, usual, rare):
    """One state, whose two actions pay `rare` with this probability, and else `usual`."""
    return jl.JMDP([[1.0 - prob, prob]], [[usual, rare]], np.zeros((1, 2, 2), int), 0.0)


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
    actions = list(range(jm.num_actions))
    calls = (
        jl.simulators.compare_actions(
            jm, [0], actions, state=0, budget=BUDGET, rng=k, method=method
        )
        for k in range(CALLS)
    )
    return sum(call.verdict == "better" and call.best != better for call in calls)


def false_bernstein(jm, better):
    """The same for the empirical Bernstein sequence."""
    played = jl.simulate_pairs(jm, [0], (0, 1), state=0, num_pairs=BUDGET * CALLS, rng=1)
    low, high = bernstein((played[:, 0] - played[:, 1]).reshape(BUDGET, CALLS), reach_of(jm))
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


def runs_needed(jm, policy, state, pair):
    """Median runs until the first action is known to be better, by each of the sequences."""
    played = jl.simulate_pairs(jm, policy, pair, state=state, num_pairs=LONGEST * REPEATS, rng=0)
    gaps = np.subtract(*played.T).reshape(LONGEST, REPEATS)
    yield np.median(first(bernstein(gaps, reach_of(jm))[0] > 0.0))
    for method in ("betting", "asymptotic"):
        calls = [
            jl.simulators.compare_actions(
                jm, policy, pair, state=state, budget=10**7, rng=k, method=method
            )
            for k in range(REPEATS)
        ]
        yield np.median([call.num_runs for call in calls])


def false_row(name):
    """One line of the first table."""
    jm, better = FALSE[name]
    by_bernstein = false_bernstein(jm, better) if jm.num_actions == 2 else ""
    counts = [false_calls(jm, better, method) for method in ("betting", "asymptotic")]
    return [name, *map(str, [by_bernstein, *counts])]


def runs_row(name):
    """One line of the second table."""
    runs = runs_needed(*worlds()[name])
    return [name, *(f"{n:,.0f}" if n <= LONGEST else f"> {LONGEST:,}" for n in runs)]


def main():
    only = asked(__doc__, FALSE | worlds()).only
    false, runs = lines(false_row, FALSE, only), lines(runs_row, worlds(), only)
    if not only:
        methods = ["Bernstein", "betting", "asymptotic"]
        tables = [
            table([f"false decisions of {CALLS}", *methods], false),
            table(["runs needed", *methods], runs),
        ]
        write_page("decisions.md", "Decisions", about(__doc__), *tables)


if __name__ == "__main__":
    main()
