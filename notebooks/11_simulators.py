# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11. Simulators by the million
#
# Chapter 10 asked a simulator one question at a time. If your simulator works on arrays, it can simulate hundreds of runs in the time
# that one run takes on its own. This chapter shows how, with a depot, two queues and a
# portfolio. It also simulates a call centre, event by event. It asks what a run is worth, how many runs shared noise saves, and which of two *rules* is better. A rule is a policy that is followed every day.
#
# **What you will learn.** How to write a vectorised simulator; how many runs an interval needs under each coupling; how to compare two rules in
# the same world, with the exact answer beside it; and how to use a GPU or a cluster.
#
# **What it needs.** Chapters 0 and 10, the three couplings of section 3.6, and NumPy. To run it, install the project
# with `pip install -e ".[notebooks]"` in its folder, and keep this notebook in `notebooks/`, because section 11.6 reads measured times from `benchmarks/vector_gpu.csv`.

# %% tags=["parameters"]
seed = 0
num_runs = 131072  # at least 32768
num_plain = 200  # at least 100
num_days = 120  # at least 100
num_markets = 40000  # at least 40000
rule_budget = 300000  # at least 150000; a limit, since the call stops when it has decided
gpu_runs = 1000000  # at least 100000; only where there is a GPU
out_dir = ""

# %%
import sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import simpy
import torch
from scipy import stats

import jmdp_lib as jl
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
couplings = ("independent", "joint", "common")

# %% [markdown]
# ## 11.1 A simulator of arrays
#
# Here is the depot of chapter 10 once more: it holds up to eight units, orders up to three at 1.5 each, sells at 3 each, and pays 0.1 a night for every unit
# left over. This time we simulate *n* depots at once. Two functions are all it takes. `customers` draws the noise of *n* days, **before** anybody looks at
# the orders. `step` has no randomness of its own: from stocks, orders and demands it computes rewards and the stocks of the next day, all as arrays.


# %%
def step(stock, order, demand):
    have = np.minimum(stock + order, 8)
    sold = np.minimum(have, demand)
    return 3.0 * sold - 1.5 * order - 0.1 * (have - sold), have - sold


def customers(n, rng):
    return rng.poisson(2, n)


depot = jl.simulators.VectorSimulator(
    step, customers, 4, 0.8, reward_range=(-6.0, 24.0), num_states=9
)

# %% [markdown]
# Every function that accepts a simulator accepts this one. From tomorrow on the depot will order up to four units. Today it is empty: is it better to order three units or two?

# %%
up_to_four = np.clip(4 - np.arange(9), 0, 3)
asked = {"policy": up_to_four, "actions": [3, 2], "state": 0, "seed": seed}
begin = perf_counter()
found = jl.simulators.estimate_gaps(depot, num_runs=num_runs, **asked)
per_run = (perf_counter() - begin) / num_runs
print(f"three units gain {found.mean[0, 1]:.4f}, standard error {found.mean_error[0, 1]:.4f}")

# %% [markdown]
# A plain simulator answers one query at a time. This one uses the same step, so the answer must be the same, up to the errors of both samples.


# %%
class PlainDepot:
    num_states, num_actions, gamma = 9, 4, 0.8

    def query(self, state, actions, rng):
        demand = rng.poisson(2)
        days = [step(state, order, demand) for order in actions]
        return [reward for reward, _ in days], [left for _, left in days]


begin = perf_counter()
plain = jl.simulators.estimate_gaps(PlainDepot(), num_runs=num_plain, **asked)
ratio = (perf_counter() - begin) / num_plain / per_run
print(f"a plain run takes {ratio:,.0f} times as long", file=sys.stderr)

# %% [markdown]
# How much faster the vectorised one is depends on your machine. So the cell prints the ratio when you run it, and we claim nothing. In our benchmark, on a slightly larger depot, a vectorised run is hundreds of times as fast as a plain
# one, and about as fast as a loop that is written by hand for this one depot (`benchmarks/vector.md`). Runs whose branches have merged leave the batch, so there is less and less work to do.
#
# **The exact answer.** The law of the demand is known, so we can write the tables down: `JMDP.from_step` uses the same `step` a third time. `jipe2` gives the mean and variance
# of the gap, and `gap_law` the probability that ordering three turns out better. Both estimates must be within four standard errors of the truth.

# %%
demand = stats.poisson.pmf(np.arange(31), 2)
tables = jl.JMDP.from_step(9, 4, 0.8, demand / demand.sum(), step)
exact = jl.jipe2(tables, up_to_four).moments
(law,) = jl.laws.gap_law(tables, up_to_four, [(0, 3, 2)], width=2e-3)
truth = {"mean": exact.gap_mean[0, 3, 2], "variance": exact.gap_variance[0, 3, 2]}


def errors_off(estimate, truth):
    """How many standard errors mean and variance are off, the larger of the two."""
    pairs = [(name, getattr(estimate, name)[0, 1] - value) for name, value in truth.items()]
    return max(abs(off) / getattr(estimate, f"{name}_error")[0, 1] for name, off in pairs)


# %%
for name, estimate in {"vectorised": found, "plain": plain}.items():
    off = errors_off(estimate, truth)
    text = f"{estimate.mean[0, 1]:.3f}, {estimate.variance[0, 1]:.2f}"
    claims.check(f"three against two units, {name}: E G, Var G", text, off < 4)
text = f"{truth['mean']:.3f}, {truth['variance']:.2f}"
claims.check("three against two units, exact: E G, Var G", text, truth["mean"] > 0)
low, high = found.interval("prob_better", level=0.9999)
inside = low[0, 1] <= law.prob_better[1] and high[0, 1] >= law.prob_better[0]
text = f"[{low[0, 1]:.3f}, {high[0, 1]:.3f}] and {np.mean(law.prob_better):.3f}"
claims.check("P(three is better): interval of the runs, and exact", text, inside)

# %% [markdown]
# **States with more than one number.** A state may also be a row of numbers. Here are the two queues of section 3.6: a job arrives with probability 0.6 and joins one of two
# queues that hold five jobs each; in one step, the servers finish a job with probabilities 0.5 and 0.3. A step costs 1 for every job that is then in a queue, and 5 for a job that
# finds its queue full and is lost. The state is the row (jobs in the first queue, jobs in the second), and the policy is a function that takes many rows at once.


# %%
def queue_step(jobs, queue, coins):
    arrival = coins[:, :1] < 0.6
    joins = arrival & (np.stack([queue, queue], 1) == [0, 1])
    lost = joins & (jobs == 5)
    held = jobs + joins - lost
    left = held - ((held > 0) & (coins[:, 1:] < [0.5, 0.3]))
    return -left.sum(1) - 5.0 * lost.sum(1), left


def coins(n, rng):
    return rng.random((n, 3))


def join_shorter(jobs):
    return (jobs[:, 1] < jobs[:, 0]).astype(int)


queues = jl.simulators.VectorSimulator(queue_step, coins, num_actions=2, gamma=0.95)

# %% [markdown]
# ## 11.2 What a run is worth
#
# The mean of $n$ independent gaps has the standard error $\sqrt{\mathrm{Var}\,G / n}$. There are two ways to make it smaller. One is more runs: a hundred times as many give
# one more digit. The other is a smaller variance, which is what sharing is for. The expected gap is the same under all couplings; its variance is not:
#
# - *independent*: no two branches share a draw until they merge. If they never merged, $\mathrm{Var}\,G$ would be $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$;
# - *joint*: branches share a draw while they are at one state, the paper's regime;
# - *common*: all branches share the draw of a time step, wherever they are: the same customers on the same day.
#
# **Which one is right?** If you ask how one and the same day would have gone under another action, the coupling is a statement about the world. Here customers come whatever is in stock, so it is *common*. If you
# want the expected gap and nothing else, any coupling gives it, so take the one with the smallest variance.
#
# We cut the runs into blocks of $n$ and measure how far the block means are from the exact gap.

# %%
blocks = 64 * 4 ** np.arange(5)
sizes = num_runs // blocks
rows = []
for coupling in couplings:
    kept = jl.simulators.estimate_gaps(
        depot, num_runs=num_runs, coupling=coupling, keep_returns=True, **asked
    )
    gaps = kept.returns[:, 0] - kept.returns[:, 1]
    for count, n in zip(blocks, sizes, strict=True):
        off = gaps[: count * n].reshape(count, n).mean(1) - truth["mean"]
        rows.append((coupling, n, np.sqrt((off**2).mean())))
errors = pd.DataFrame(rows, columns=["coupling", "runs", "error"])

# %% [markdown]
# On logarithmic axes the errors must fall with slope $-1/2$. The root mean square over 64 blocks has an error of about 9%, so a slope over two and a half decades has an error of about 0.02. We allow 0.08.

# %%
slopes = {}
for coupling, part in errors.groupby("coupling", sort=False):
    slopes[coupling] = np.polyfit(np.log(part.runs), np.log(part.error), 1)[0]
text = ", ".join(f"{slope:.2f}" for slope in slopes.values())
near = all(abs(slope + 0.5) < 0.08 for slope in slopes.values())
claims.check("slope of the error against runs: independent, joint, common", text, near)

# %% [markdown]
# **How many runs for one interval?** A 95% interval of half-width $w$ needs $n = (1.96 / w)^2\, \mathrm{Var}\,G$ runs. So the numbers of runs that the
# couplings need are in the ratio of their variances. We take $w = 0.05$ at the depot and $w = 0.25$ at the queues. The table has the runs needed according to measured variances, and according to exact ones.

# %%
i, j = np.divmod(np.arange(36), 6)
worlds = {
    "depot": (depot, asked, 0.05, (tables, up_to_four, (0, 3, 2))),
    "two queues": (
        queues,
        {"policy": join_shorter, "actions": [0, 1], "state": [3, 3], "seed": seed},
        0.25,
        (jl.two_queues(), (j < i).astype(int), (21, 0, 1)),
    ),
}

# %%
rows = []
for name, (world, question, half, (jm, policy, at)) in worlds.items():
    for coupling in couplings:
        gap = jl.simulators.estimate_gaps(
            world, num_runs=num_runs // 2, coupling=coupling, **question
        )
        moments = jl.jipe2(jm, policy, coupling=coupling).moments
        known = {"mean": moments.gap_mean[at], "variance": moments.gap_variance[at]}
        off = errors_off(gap, known)
        needed = [(1.96 / half) ** 2 * x for x in (gap.variance[0, 1], known["variance"])]
        rows.append((name, coupling, half, off, *needed))
need = pd.DataFrame(rows, columns=["world", "coupling", "half", "off", "measured", "exact"])
table = need.set_index(["world", "coupling"])[["measured", "exact"]].map("{:,.0f}".format)
table.rename_axis([None, None])

# %%
off = need.off.max()
claims.check("both worlds, all couplings: largest error in standard errors", f"{off:.1f}", off < 4)
for name, part in need.groupby("world", sort=False):
    own, joint, common = part.measured
    text = f"{own / common:,.0f} and {joint / common:,.0f}"
    in_order = own > joint > common
    claim = f"{name}: runs of independent, joint that one of common replaces"
    claims.check(claim, text, in_order)

# %% [markdown]
# As a check, we simulate the depot with exactly the measured numbers of runs. All three intervals must have the half-width that was asked for. The smallest sample has more than
# a thousand runs, which determine a standard deviation to within a few percent; we allow 10%.

# %%
counts = need[need.world == "depot"].set_index("coupling").measured.astype(int)
widths = {}
for coupling in couplings:
    played = jl.simulators.estimate_gaps(
        depot, num_runs=counts[coupling], coupling=coupling, **{**asked, "seed": seed + 1}
    )
    widths[coupling] = 1.96 * played.mean_error[0, 1]
text = ", ".join(f"{widths[c]:.4f} from {counts[c]:,}" for c in couplings)
as_asked = all(abs(width / 0.05 - 1.0) < 0.1 for width in widths.values())
claims.check("depot, half-width 0.05 asked for: independent, joint, common", text, as_asked)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8), width_ratios=[3, 2])
markers = dict(zip(couplings, "osD", strict=True))
for k, (coupling, part) in enumerate(errors.groupby("coupling", sort=False)):
    variance = jl.jipe2(tables, up_to_four, coupling=coupling).moments.gap_variance[0, 3, 2]
    left.plot(part.runs, np.sqrt(variance / part.runs), color=f"C{k}", lw=0.9)
    left.plot(part.runs, part.error, markers[coupling], color=f"C{k}", ms=4, label=coupling)
    shown = need[need.coupling == coupling]
    right.bar(np.arange(2) + 0.26 * (k - 1), shown.measured, 0.24, color=f"C{k}", label=coupling)
    right.plot(np.arange(2) + 0.26 * (k - 1), shown.exact, "_", color="k", ms=9)
left.set(xscale="log", yscale="log", xlabel="runs", ylabel="error of the mean gap")
left.xaxis.set_major_formatter("{x:,.0f}")
left.yaxis.set_major_formatter("{x:g}")
left.legend()
right.set(yscale="log", ylabel="runs for one interval", ylim=(10, 4e5))
right.yaxis.set_major_formatter("{x:,.0f}")
right.set_xticks([0, 1], [f"{name},\n$\\pm${part[2]}" for name, part in worlds.items()])
figures.save(fig, "fig_worth_of_a_run", errors, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.1.** Left: how far the mean of $n$ runs at the depot is from the exact gap, as a root mean square over blocks of $n$ runs (points), and $\sqrt{\mathrm{Var}\,G/n}$ from the
# exact variances (lines). Right, in the same colours: how many runs a 95% interval of the given half-width needs, from measured variances (bars) and exact ones (ticks).
#
# <!-- alt: Left, three parallel falling lines on logarithmic axes, with points on them; independent is highest, joint a little below, common far below. Right, bars for the depot and for two queues: the common coupling needs less than a tenth of the runs of the others at the depot, and hundreds of times fewer at the queues. -->

# %% [markdown]
# At the queues the difference is larger than at the depot. If both branches see the same arrivals and services, they differ by one job for a short time only, and the gap is the cost of that job. If each branch has arrivals of its own, the queues
# of the two fluctuate separately for a long time, and all of this is noise in the gap.
#
# These factors are for intervals that follow the variance. The default of `compare_actions` also allows for rewards that were never seen, and then sharing saves less than half of the runs. Here are the runs until order 3 against 2 is decided, medians of five seeds:

# %%
until = {
    coupling: np.median(
        [
            jl.simulators.compare_actions(
                depot, up_to_four, [3, 2], 0, seed=[seed, k], coupling=coupling
            ).num_runs
            for k in range(5)
        ]
    )
    for coupling in couplings
}
print(pd.Series(until).astype(int).to_string())
ratios = [until["independent"] / until[coupling] for coupling in ("joint", "common")]
text = ", ".join(f"{ratio:.1f}" for ratio in ratios)
little = max(ratios) < 2
claims.check("depot, default method: runs saved, joint and common", text, little)

# %% [markdown]
# ## 11.3 Whole rules
#
# In practice the question is rarely what to order today. It is which of two **rules** to follow every day: fill up to three units, or up to four? `compare_policies` gives every branch a rule of its own from the
# start. If branches have taken the same action in the same state, they draw their next actions with one random number, each by its own rule. So the gap of two equal rules is zero, and two rules that differ in a few states part only there. With
# `coupling="common"` both meet the same customers.
#
# At present the depot fills up to four. A switch is worth the trouble only if the new rule earns at least 0.15 more, so this is our `margin`. Runs are about twice as long as by default, so that what is cut off at the horizon is small compared with the margin. We ask for an asymptotic confidence sequence, whose width follows the variance (section 10.4). With the
# declared range of rewards, an interval must also allow for rewards that were never seen; with a few hundred runs this dominates, and sharing saves little. `policy_gaps` gives the exact answer: the mean and variance of the gap of two rules, from every state.

# %%
rules = [np.clip(level - np.arange(9), 0, 3) for level in (3, 4)]
limits = {"state": 0, "margin": 0.15, "budget": 40 * rule_budget, "horizon": 60}
limits |= {"method": "asymptotic", "seed": seed}
decided = {c: jl.simulators.compare_policies(depot, rules, coupling=c, **limits) for c in couplings}
quickest = decided["common"]
print(f"{quickest.verdict}: rule {quickest.best}, known after {quickest.num_queries:,} queries")
print(quickest.method)

# %%
for coupling in couplings:
    gap = decided[coupling].estimates
    mean, variance = (x[0] for x in jl.laws.policy_gaps(tables, *rules, coupling=coupling))
    off = errors_off(gap, {"mean": mean, "variance": variance})
    text = f"{gap.variance[0, 1]:.2f}, {variance:.2f}"
    claims.check(f"rules, {coupling}: Var G, simulated and exact", text, off < 4)
claims.check("exact mean gap, up to three minus up to four", f"{mean:.2f}", mean > 0.15)

# %% [markdown]
# All couplings must lead to the right decision: rule 0, up to three, is better by more than 0.15. The numbers of runs should be in the ratio of the variances. When exactly a decision is reached also depends
# on chance, so we ask only that sharing all customers saves at least half of what this ratio promises.

# %%
found_best = [decided[coupling].best for coupling in couplings]
claims.check("better by more than 0.15: rule number", found_best, found_best == [0, 0, 0])
runs = [decided[coupling].num_runs for coupling in couplings]
text = ", ".join(f"{n:,}" for n in runs)
variances = [jl.laws.policy_gaps(tables, *rules, coupling=c)[1][0] for c in couplings]
times = variances[0] / variances[2]
as_promised = runs[0] / runs[2] > times / 2
claims.check("runs until that is known: independent, joint, common", text, as_promised)
claims.check("variance of independent / common, exact", f"{times:.0f}", times > 1)

# %% [markdown]
# ## 11.4 A call centre in SimPy
#
# Not every simulator is a few lines of NumPy. A day at a call centre is a sequence of events: people call, wait, are answered or hang up, and agents start and end their shifts.
# [SimPy](https://simpy.readthedocs.io) simulates such events in order. One **query is a whole day**, and the next day is a new one, so $\gamma = 0$: the return is what the day earns. An action is a
# roster: how many agents work in the morning, at noon and in the afternoon, two hours each.
#
# All that is random about the day is drawn before anybody looks at the roster: when people call, how long they will talk and how long they are willing to wait. Then two rosters
# face the same customers, even though the two days soon go different ways.


# %%
def agent(env, line, start, end, waits):
    yield env.timeout(start)
    while env.now < end:
        ring = line.get()
        yield ring | env.timeout(end - env.now)
        if not ring.triggered:
            ring.cancel()
            return
        came, talk, patience = ring.value
        if env.now - came <= patience:  # else the caller has hung up
            waits.append(env.now - came)
            yield env.timeout(talk)


# %%
def callers(env, line, calls):
    for call in calls:
        yield env.timeout(call[0] - env.now)
        line.put(call)


def play_day(roster, calls):
    env = simpy.Environment()
    line, waits = simpy.Store(env), []
    env.process(callers(env, line, calls))
    for start, agents in zip((0.0, 120.0, 240.0), roster, strict=True):
        for _ in range(agents):
            env.process(agent(env, line, start, start + 120.0, waits))
    env.run(until=360.0)
    # An answered call pays 4, less 0.2 for every minute that the caller has waited.
    return 4.0 * len(waits) - 0.2 * sum(waits)


# %%
class CallCentre:
    num_states, num_actions, gamma = 1, 2, 0.0
    rosters = ((4, 4, 4), (3, 6, 3))  # the same wages

    def query(self, state, actions, rng):
        counts = rng.poisson([30, 55, 30])
        came = np.sort(np.repeat([0.0, 120.0, 240.0], counts) + rng.uniform(0, 120, counts.sum()))
        talk, patience = rng.exponential([[10.0], [8.0]], (2, came.size)).tolist()
        calls = list(zip(came.tolist(), talk, patience, strict=True))
        return [play_day(self.rosters[a], calls) for a in actions], [0] * len(actions)


# %% [markdown]
# Both rosters cost the same wages. The second one moves one agent from the morning and one from the afternoon to noon, when most people call. (The policy decides what happens from tomorrow on; with $\gamma = 0$ that
# does not matter.)

# %%
day = {"policy": [0], "actions": [1, 0], "state": 0, "num_runs": num_days, "keep_returns": True}
own = jl.simulators.estimate_gaps(CallCentre(), coupling="independent", seed=seed, **day)
shared = jl.simulators.estimate_gaps(CallCentre(), coupling="joint", seed=seed, **day)
gap, error = shared.mean[0, 1], shared.mean_error[0, 1]
text = f"{gap:.1f}, {error:.1f}"
claims.check("call centre, gain of the second roster: mean, standard error", text, gap > 4 * error)
saved = own.variance[0, 1] / shared.variance[0, 1]
claims.check(
    "call centre: days with own customers that one shared day replaces", f"{saved:.1f}", saved > 2
)
agree = abs(own.mean[0, 1] - gap) < 4 * np.hypot(error, own.mean_error[0, 1])
claims.check(
    "call centre, own customers: the same mean gap, within 4 s.e.", f"{own.mean[0, 1]:.1f}", agree
)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8), width_ratios=[3, 2])
for k, coupling in enumerate(couplings):
    looks = decided[coupling].history
    low, high = looks[:, 1:].reshape(-1, 2, 2, 2)[:, 0, 1].T
    left.fill_between(looks[:, 0], low, high, alpha=0.2, color=f"C{k}", lw=0)
    left.plot(looks[:, 0], low, color=f"C{k}", label=coupling)
    left.plot(looks[:, 0], high, color=f"C{k}")
left.axhline(mean, color="k", lw=0.8, ls="--")
left.axhline(0.15, color="0.3", lw=0.8, ls=":")
left.set(xscale="log", xlabel="queries", ylabel="mean gap, up to 3 minus up to 4")
left.set_xticks([20_000, 100_000, 500_000], ["20,000", "100,000", "500,000"])
left.xaxis.set_minor_formatter("")  # no further labels: they would overlap
left.legend(loc="upper right")
for k, (name, days) in enumerate({"own customers": own, "the same customers": shared}.items()):
    right.plot(*days.returns.T[::-1], "ox"[k], color=("C0", "C2")[k], ms=3, alpha=0.6, label=name)
ends = np.array([own.returns.min(), own.returns.max()])
right.plot(ends, ends, color="0.5", lw=0.8)
right.set(xlabel="earned with roster 4, 4, 4", ylabel="earned with roster 3, 6, 3")
right.set_aspect("equal")
right.legend()
data = {"own 444": own.returns[:, 1], "own 363": own.returns[:, 0]}
data |= {"shared 444": shared.returns[:, 1], "shared 363": shared.returns[:, 0]}
figures.save(fig, "fig_whole_rules", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.2.** Left: the interval for the mean gap of two order rules, up to three minus up to four, against the number of queries, until it lies above the margin (dotted). The dashed line is the
# exact gap. Right: what the call centre earns with two rosters, a point for every run. Above the diagonal, the roster with more agents at noon earned more.
#
# <!-- alt: Left, three bands around one dashed line. That of the common coupling is narrowest and is the first to lie above the dotted line; that of the independent coupling is widest and takes more than ten times as many queries. Right, most days with the same customers lie above the diagonal and follow it; days with customers of their own are scattered far on both sides. -->

# %% [markdown]
# Vectorised or not, a simulator can be used in this way only if *the noise is drawn first*. If `query` drew the length of a call when an agent answers it, the agents of the two rosters would soon talk to different
# people.
#
# ## 11.5 A portfolio
#
# You hold ten assets in equal parts. Their prices move, and so do their shares of your wealth. Once a month you may **rebalance**, at a cost of 0.5% of what is traded, or **hold**. What you decide
# does not move the market, so both decisions face the same prices: *common* is the only coupling that makes sense. Under *joint*, two portfolios that differ by a cent would be in different markets.
#
# The state is a row of eleven numbers, ten weights and the month. A year ends after twelve months, which `invest` reports as a third result. The reward of a month is the logarithm of the growth of wealth in that month, so
# with $\gamma = 1$ the return is the logarithm of the year's growth.


# %%
def invest(states, rebalance, growth):
    weights, month = states[:, :10], states[:, 10:]
    traded = np.abs(weights - 0.1).sum(1) * rebalance
    held = np.where(rebalance[:, None] == 1, 0.1, weights) * growth
    wealth = held.sum(1)
    after = np.hstack([held / wealth[:, None], month + 1])
    return np.log(wealth) + np.log1p(-0.005 * traded), after, month[:, 0] == 11


def markets(n, rng):
    together, alone = rng.normal(0.004, 0.045, (n, 1)), rng.normal(0.0, 0.11, (n, 10))
    return np.exp(together + alone - 0.11**2 / 2)


portfolio = jl.simulators.VectorSimulator(invest, markets, num_actions=2, gamma=1.0)

# %% [markdown]
# **Two rules.** Rebalance every month; or only if some weight is off by more than three percentage points. We measure gains in *basis points*: one is 0.0001 of the logarithm, about a hundredth of a percent of the wealth.


# %%
def every_month(states):
    return np.ones(len(states), int)


def outside_a_band(states):
    return (np.abs(states[:, :10] - 0.1).max(1) > 0.03).astype(int)


equal = np.append(np.full(10, 0.1), 0.0)
year = {"state": equal, "horizon": 12, "method": "asymptotic", "budget": rule_budget}
pair = [outside_a_band, every_month]
one_market = jl.simulators.compare_policies(portfolio, pair, **year, seed=seed, coupling="common")
own_markets = jl.simulators.compare_policies(
    portfolio, pair, **year, seed=seed, coupling="independent"
)
print(f"{one_market.verdict}: rule {one_market.best}, after {one_market.num_queries:,} queries")
print(one_market.method)

# %%
gap = one_market.estimates
text = f"{1e4 * gap.mean[0, 1]:.0f} +- {1e4 * gap.mean_error[0, 1]:.0f}"
claims.check("the band gains, in basis points a year", text, one_market.best == 0)
saved = own_markets.estimates.variance[0, 1] / gap.variance[0, 1]
claims.check(
    "portfolio: runs in own markets that one shared run replaces", f"{saved:,.0f}", saved > 100
)
text = f"{one_market.num_runs:,}; {own_markets.verdict} after {own_markets.num_runs:,}"
undecided = own_markets.verdict == "undecided"
claim, enough = "portfolio: runs until decided; in own markets", rule_budget <= 1000000
claims.check(claim, text, undecided, enough=enough)

# %% [markdown]
# By the asymptotic sequence, the band (policy 0) is better. Simulating each rule in a market of its own is not wrong, but it needs far too many runs. `own_markets.outlook` says how many queries would decide:

# %%
print(own_markets.outlook)

# %% [markdown]
# **One decision.** When does it pay to rebalance at all? One asset has grown: its weight is $0.1 + d$, and the other nine share the rest equally. Rebalance today, or hold; then hold until the end of the year. The cost of
# trading is in proportion to the drift $d$: it is $0.005 \cdot 2d$. Trading also makes the variance of the portfolio smaller, and the mean logarithm loses half of the variance. So it gains
# $\tfrac12 \cdot 12 \cdot 0.11^2 \cdot \tfrac{10}{9} d^2$, in proportion to the square of the drift. To second order, rebalancing pays if the drift exceeds $0.005 \cdot 2 / (6 \cdot 0.11^2 \cdot \tfrac{10}{9}) = 0.124$.


# %%
def hold(states):
    return np.zeros(len(states), int)


drifts = np.array([0.02, 0.06, 0.1, 0.2, 0.3, 0.4])
means, spreads = [], []
for drift in drifts:
    weights = np.append(0.1 + drift, np.full(9, (0.9 - drift) / 9))
    today = {"state": np.append(weights, 0.0), "num_runs": num_markets, "horizon": 12}
    gap = jl.simulators.estimate_gaps(
        portfolio, hold, [1, 0], coupling="common", seed=[seed, len(means)], **today
    )
    means.append(1e4 * gap.mean[0, 1])
    spreads.append(1e4 * gap.mean_error[0, 1])

# %%
ends = [means[0] + 2 * spreads[0] < 0, means[-1] - 2 * spreads[-1] > 0]
text = f"{means[0]:.1f}, {means[-1]:.0f}"
claims.check("rebalancing at a drift of 0.02, of 0.4: basis points gained", text, all(ends))

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8))
for k, decision in ((0, own_markets), (2, one_market)):
    looks = decision.history
    low, high = 1e4 * looks[:, 1:].reshape(-1, 2, 2, 2)[:, 0, 1].T
    name = "own markets" if k == 0 else "one market"
    left.fill_between(looks[:, 0], low, high, alpha=0.2, color=f"C{k}", lw=0)
    left.plot(looks[:, 0], low, color=f"C{k}", label=name)
    left.plot(looks[:, 0], high, color=f"C{k}")
left.axhline(0.0, color="0.5", lw=0.8)
left.set(xscale="log", xlabel="queries", ylabel="gain of the band, basis points")
left.set_ylim(-500, 500)
left.xaxis.set_major_formatter("{x:,.0f}")
left.legend()
fine = np.linspace(0, 0.41)
theory = 1e4 * (6 * 0.11**2 * fine**2 / 0.9 - 0.01 * fine)
right.plot(fine, theory, color="0.4", lw=0.9, label="second order")
right.errorbar(
    drifts, means, 1.96 * np.array(spreads), fmt="D", color="C2", ms=3, label="simulated"
)
right.axhline(0.0, color="0.5", lw=0.8)
right.set(xlabel="drift of one weight", ylabel="gain of rebalancing, basis points")
right.legend()
data = {"drift": drifts, "gain": means, "error": spreads}
figures.save(fig, "fig_portfolio", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.3.** Left: the interval for the mean gap of two rebalancing rules, a band minus every month, against the number of queries, with a market for each rule and with one market for both. Right: what rebalancing today gains
# over holding, against how far one weight has drifted: simulated means with 95% intervals, and the second-order formula.
#
# <!-- alt: Left, a wide blue band for markets of their own that shrinks but does not leave zero, and a far narrower band for one market that ends above zero after a few thousand queries. Right, points on a curve that first dips below zero and then rises; it crosses zero at a drift between 0.1 and 0.2. -->

# %% [markdown]
# ## 11.6 On a GPU
#
# States, noise and rewards can be arrays of any library that follows the array API standard. `state` decides which library is used, and on which device. If it is a torch tensor, the function that draws the noise gets a torch generator on that device,
# and only sums leave the device. The step of the depot is the same three lines in torch. Without a GPU it runs on the processor.


# %%
def torch_step(stock, order, demand):
    have = torch.clamp(stock + order, max=8)
    sold = torch.minimum(have, demand)
    return 3.0 * sold - 1.5 * order - 0.1 * (have - sold), have - sold


def torch_customers(n, rng):
    return torch.poisson(torch.full((n,), 2.0, device=rng.device), generator=rng).to(torch.int32)


on_gpu = torch.cuda.is_available()
empty = torch.tensor(0, dtype=torch.int32, device="cuda" if on_gpu else "cpu")
torch_depot = jl.simulators.VectorSimulator(
    torch_step, torch_customers, 4, 0.8, (-6.0, 24.0), num_states=9
)

# %%
runs = gpu_runs if on_gpu else num_runs
begin = perf_counter()
played = jl.simulators.estimate_gaps(
    torch_depot, num_runs=runs, truncation=1e-6, **{**asked, "state": empty}
)  # a billion runs would see what the usual horizon cuts off
took = perf_counter() - begin
print(f"{runs:,} pairs on {empty.device}: {took:.2f} s", file=sys.stderr)
off = errors_off(played, truth)
claims.check("in torch: mean and variance, s.e. from the exact ones", f"{off:.1f}", off < 4)

# %% [markdown]
# We measured this once on a large GPU, with the depot of [Use it on your own simulator](../book/own_simulator.md) (`benchmarks/vector.py --device cuda`). The table is read from the file of that run. Its last
# column has the steps of all branches in a second, in billions. A pair whose branches have merged takes no more steps.

# %%
gpu = figures.results(["benchmarks/vector_gpu.csv"])
speed = gpu["branch-steps a second"] / 1e9
columns = {"pairs": gpu.pairs.map("{:,}".format), "seconds": gpu.seconds, "speed": speed}
pd.DataFrame(columns).set_axis(gpu.coupling.tolist()).round(2)

# %%
billion = gpu[gpu.pairs == 10**9].set_index("coupling")
text = ", ".join(f"{billion.seconds[c]:.1f} s" for c in ("joint", "common"))
claim = f"a billion pairs on one {gpu.device[0]}: joint, common"
claims.check(claim, text, (billion.seconds < 5).all())
text = ", ".join(f"{billion['branch-steps a second'][c] / 1e9:.1f}" for c in ("joint", "common"))
fast = (billion["branch-steps a second"] > 3e9).all()
claims.check("billions of branch-steps a second", text, fast)
few = gpu[gpu.pairs == 10**7].set_index("coupling")["branch-steps a second"]
part = few / billion["branch-steps a second"]
text = ", ".join(f"{part[c]:.2f}" for c in ("joint", "common"))
claims.check("speed with ten million pairs / with a billion", text, (part < 0.6).all())

# %% [markdown]
# **What limits the speed?** Not the arithmetic: a day of the depot takes a dozen operations. Each of them is a kernel that reads its arrays from the memory of the GPU and writes one back, so the time goes into moving
# numbers. That is why small data types pay off (`int32` here, one byte in the benchmark), and why merged runs are dropped. Ten million pairs reach little more than half the speed of a billion: towards the end few of them are left, and launching the kernels takes longer than
# running them. Memory stays bounded, because runs are simulated in chunks. The results do not depend on how many chunks are processed at the same time.
#
# ## 11.7 More than one machine
#
# Runs are sent out in chunks with seeds of their own, and sums come back. So it does not matter where they are simulated: any `concurrent.futures.Executor` will do, and the numbers stay the same. Threads are enough
# to show this. They save time if the simulator spends most of it outside Python, as NumPy does; for a SimPy model, use a `ProcessPoolExecutor`.

# %%
with ThreadPoolExecutor(2) as pool:
    elsewhere = jl.simulators.estimate_gaps(depot, num_runs=num_runs, **asked, executor=pool)
same = np.array_equal(elsewhere.mean, found.mean)
text = f"{elsewhere.mean[0, 1]:.6f}, {found.mean[0, 1]:.6f}"
claims.check("mean gap, with an executor and without: the same number", text, same)

# %% [markdown]
# For clusters, [Dask](https://distributed.dask.org) has such an executor. Simulator and policy are sent to the workers, so they must be defined in a module that the workers can import:
#
#     from dask.distributed import Client
#
#     client = Client("scheduler:8786")
#     jl.simulators.estimate_gaps(depot, policy, [3, 2], state=0, num_runs=10**9, executor=client.get_executor())
#
# If a worker dies, Dask repeats its chunk, and the result does not change. If an executor does not repeat chunks, an error is raised, and its attribute `result` has the estimate from all chunks that came back.
#
# ## What to take away
#
# - A vectorised simulator is two functions: one draws the noise, one steps. Draw first, decide later.
# - The error falls with the square root of the number of runs. Sharing the noise saves runs: with intervals that follow the variance a factor of 17 at the depot, and hundreds at the queues and in the market; with the default method, which holds at every sample size, less than two at the depot.
# - Noise that does not depend on what you do is *common*: customers, arrivals, markets.
# - `compare_policies` compares whole rules under the same customers; `policy_gaps` gives the exact answer, if you have the tables.
# - One query may be a whole day in an event simulator, as long as it draws the noise first.
#
# ## Exercises
#
# **Exercise 1.** Compare the rule "up to three" with itself, and with a rule that differs from it only if eight units are in stock, which never happens here. What are the gaps?
#
# <details><summary>Solution</summary>
#
# Zero in both cases, in every run. Equal rules are found equivalent at once. In the second case the library cannot know that this stock never occurs, so it simulates every run to the horizon. What lies beyond the horizon is unknown,
# which leaves an interval of some width around zero.
#
# </details>

# %% tags=["hide-cell"]
odd = rules[0].copy()
odd[8] = 3
settings = {"state": 0, "seed": seed, "coupling": "common"}
twice = jl.simulators.compare_policies(depot, [rules[0], rules[0].copy()], **settings)
never = jl.simulators.compare_policies(depot, [rules[0], odd], budget=20000, **settings)
zero = twice.estimates.variance[0, 1] == never.estimates.variance[0, 1] == 0.0
text = f"{twice.verdict}, {never.verdict}"
claims.check("exercise 1: equal rules; rules equal at all stocks that occur", text, zero)

# %% [markdown]
# **Exercise 2.** How much larger is the variance of the gap "rebalance today or hold" at a drift of 0.4, if you use `coupling="joint"` by mistake?
#
# <details><summary>Solution</summary>
#
# About four times as large. The branches share the first month, in which they are at one state. After that each has a market of its own, since their weights never agree again.
#
# </details>

# %% tags=["hide-cell"]
mistake = jl.simulators.estimate_gaps(portfolio, hold, [1, 0], coupling="joint", seed=seed, **today)
right_one = jl.simulators.estimate_gaps(
    portfolio, hold, [1, 0], coupling="common", seed=seed, **today
)
times = mistake.variance[0, 1] / right_one.variance[0, 1]
claims.check("exercise 2: variance, joint / common", f"{times:.1f}", times > 2)

# %% [markdown]
# **Exercise 3.** One more agent in the morning and one more in the afternoon cost 60 a day together. Is the roster 4, 6, 4 worth it, compared with 3, 6, 3?
#
# <details><summary>Solution</summary>
#
# No. Define a subclass with this roster and subtract the wages: the interval of the gap lies below zero.
#
# </details>


# %% tags=["hide-cell"]
class LargerCentre(CallCentre):
    rosters = ((4, 6, 4), (3, 6, 3))

    def query(self, state, actions, rng):
        earned, following = super().query(state, actions, rng)
        return [x - 60.0 * (a == 0) for x, a in zip(earned, actions, strict=True)], following


extra = jl.simulators.estimate_gaps(LargerCentre(), [0], [0, 1], 0, num_runs=50, seed=seed)
low, high = extra.interval("mean")
text = f"[{low[0, 1]:.0f}, {high[0, 1]:.0f}]"
claims.check("exercise 3: gain of two more agents", text, high[0, 1] < 0)

# %% [markdown]
# **What to read next.** [Use it on your own simulator](../book/own_simulator.md) covers all kinds of simulators on one page. Chapter 10 says what the intervals of a decision promise. The
# [reference](../book/reference.md) lists all options of `VectorSimulator`, `estimate_gaps` and `compare_policies`.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
