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
# If your simulator works on arrays, it can simulate a hundred runs and more in the time
# that one run takes on its own (`benchmarks/vector.md`).
#
# **What you will learn.** How to write a vectorised simulator; how many runs you need under each coupling; how to compare two whole policies in
# the same world; how to simulate a call centre event by event; and how to use a GPU.
#
# **What it needs.** Chapters 0 and 10, the three couplings of section 3.6, and NumPy. To run it: `pip install -e ".[notebooks,torch]"` in the project's folder, and keep this notebook there: section 11.5 reads a file of `benchmarks/`.

# %% tags=["parameters"]
seed = 0
num_runs = 131072  # at least 32768
num_seeds = 5  # at least 5; intervals are narrow with 60
num_days = 120  # at least 100
gpu_runs = 1000000  # at least 100000; only where there is a GPU
out_dir = ""

# %%
import sys
from functools import partial
from itertools import product
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import simpy
from scipy import stats

import jmdp_lib as jl
from jmdp_lib.machine import extra
from notebooks.tools import chapter

with extra("torch"):
    import torch

chapter.style()
claims = chapter.Claims()
assert num_runs >= 32768, f"{num_runs=}: at least 32768"
assert num_seeds >= 5, f"{num_seeds=}: at least 5"
assert num_days >= 100, f"{num_days=}: at least 100"
assert gpu_runs >= 100000, f"{gpu_runs=}: at least 100000"
couplings = ("independent", "joint", "common")

# %% [markdown]
# ## 11.1 A simulator of arrays
#
# Here is the depot of chapter 10 once more, but *n* depots at once. Two functions are all it takes. `customers` draws the noise of *n* days, **before** anybody looks at
# the orders. `step` has no randomness of its own: from stocks, orders and demands it computes rewards and the stocks of the next day, all as arrays.


# %%
def step(stock, order, demand):
    have = np.minimum(stock + order, 11)
    sold = np.minimum(have, demand)
    return 3.0 * sold - 1.5 * order, have - sold


def customers(n, rng):
    return rng.poisson(3, n)


depot = jl.simulators.VectorSimulator(
    step, customers, 5, 0.9, reward_range=(-6.0, 33.0), num_states=12
)

# %% [markdown]
# Every function that accepts a simulator accepts this one. From tomorrow on the depot will order up to six units. Today it is empty: is it better to order four units or three?

# %%
up_to_six = np.clip(6 - np.arange(12), 0, 4)
today = {"policy": up_to_six, "actions": [4, 3], "state": 0, "rng": seed}
played = jl.simulators.estimate_gaps(depot, num_runs=num_runs, **today)
print(
    f"the fourth unit gains {played.mean[0, 1]:.3f}, standard error {played.mean_error[0, 1]:.3f}"
)

# %% [markdown]
# We compare it with the exact answer: `JMDP.from_step` makes tables of the same `step`.

# %%
demand = stats.poisson.pmf(np.arange(31), 3)
tables = jl.JMDP.from_step(12, 5, 0.9, demand / demand.sum(), step)
exact = jl.jipe2(tables, up_to_six).moments
(law,) = jl.laws.gap_law(tables, up_to_six, gaps=[(0, 4, 3)], width=3e-3)
truth = {"mean": exact.gap_mean[0, 4, 3], "variance": exact.gap_variance[0, 4, 3]}


def largest_error(estimate, truth):
    """Of mean and variance, in standard errors."""
    pairs = [(name, getattr(estimate, name)[0, 1] - value) for name, value in truth.items()]
    return max(abs(error) / getattr(estimate, f"{name}_error")[0, 1] for name, error in pairs)


# %%
both = {**truth, "s": played.mean[0, 1], "v": played.variance[0, 1]}
text = "{mean:.3f}, {variance:.2f}; {s:.3f}, {v:.2f}".format(**both)
claim = "four units against three, E G, Var G, exact; simulated: within 4 s.e."
claims.check(claim, text, largest_error(played, truth) < 4)
low, high = played.interval("prob_better", level=0.9999)
inside = low[0, 1] <= law.prob_better[1] and high[0, 1] >= law.prob_better[0]
ends = [low[0, 1], high[0, 1], *law.prob_better]
text = "[{:.3f}, {:.3f}] and [{:.3f}, {:.3f}]".format(*ends)
claims.check("P(four is better): interval of the runs meets exact bracket", text, inside)

# %% [markdown]
# **States with more than one number.** A state may also be a row of numbers. Here are the two queues of section 3.6: a job arrives with probability 0.6 and joins one of two
# queues that hold five jobs each; in one step, the servers finish a job with probabilities 0.5 and 0.3. A step costs 1 for every job that is then in a queue, and 5 for a job that
# finds its queue full and is lost. The policy is a function of many rows at once.


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
# A 95% interval of half-width $w$ for the mean gap needs about $n = (1.96 / w)^2\, \mathrm{Var}\,G$ runs. The mean gap is the same under all couplings (section 3.6); its variance is not. The common coupling is what simulation calls *common random numbers*.
#
# **Which one is right?** If you ask how the same day would have gone under another action, the coupling is a statement about the world. Here customers come whatever is in stock, so it is *common*. If you
# want the mean gap and nothing else, take the one with the smallest variance.
#
# Here are the runs needed for $w = 0.05$ at the depot and $w = 0.25$ at the queues, from measured and from exact variances.

# %%
i, j = np.divmod(np.arange(36), 6)
worlds = {
    "depot": (depot, today, 0.05, (tables, up_to_six, (0, 4, 3))),
    "two queues": (
        queues,
        {"policy": join_shorter, "actions": [0, 1], "state": [3, 3], "rng": seed},
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
        exact = {"mean": moments.gap_mean[at], "variance": moments.gap_variance[at]}
        assert largest_error(gap, exact) < 4  # standard errors
        needed = [(1.96 / half) ** 2 * x for x in (gap.variance[0, 1], exact["variance"])]
        rows.append((name, coupling, half, *needed))
need = pd.DataFrame(rows, columns=["world", "coupling", "half", "measured", "exact"])
table = need.set_index(["world", "coupling"])[["measured", "exact"]].map("{:,.0f}".format)
table.rename_axis([None, None])

# %%
for name, part in need.groupby("world", sort=False):
    own, joint, common = part.measured
    text = f"{own / common:,.0f} and {joint / common:,.0f}"
    claim = f"{name}, runs for one of common: independent > joint > 1"
    claims.check(claim, text, own > joint > common)

# %% [markdown]
# At the queues, branches with the same arrivals and services differ by one job for a short time only. With separate arrivals, each branch fluctuates for a long time, and all of this is noise in the gap.
#
# **Decisions.** These factors hold for intervals that follow the variance. The default of `compare_actions` must allow for gaps up to $\pm 390$ at the depot (section 10.4): even if every gap were exactly 0.47, the mean, it would need about 3,600 runs. Asymptotic intervals may be looked at from 128 runs on, and with common noise these are enough. We count the runs until order 4 is known to be better than order 3, and show medians over seeds, with 94% (five seeds) or 95% (sixty) intervals for the median.

# %%
wager = 2.0 ** -np.arange(16) * truth["mean"] / 390
weights = 1 / (np.arange(1, 17) * np.arange(2, 18))
assert weights @ (1 + wager) ** 3500 < 2 / 0.05 < weights @ (1 + wager) ** 3600
rank = int(stats.binom.ppf(0.025, num_seeds, 0.5))  # so many runs may lie beyond either end
rows = []
for coupling, method in product(couplings, ("asymptotic", "betting")):
    ask = partial(jl.simulators.compare_actions, depot, **today | {"coupling": coupling})
    runs = np.sort(
        [
            ask(rng=np.random.SeedSequence([seed, k]), method=method).num_runs
            for k in range(num_seeds)
        ]
    )
    rows.append((coupling, method, runs[rank], np.median(runs), runs[-1 - rank]))
until = pd.DataFrame(rows, columns=["coupling", "method", "low", "median", "high"])
until.pivot(index="coupling", columns="method").astype(int)

# %%
medians = until.pivot(index="coupling", columns="method", values="median")
saved = medians.loc["independent"] / medians.loc["common"]
text = f"{saved.asymptotic:.1f} > {saved.betting:.1f}"
as_said = saved.asymptotic > saved.betting
claims.check("depot, runs, independent / common: asymptotic > default", text, as_said)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.9), sharey=True)
for k, coupling in enumerate(couplings):
    at = np.arange(2) + 0.26 * (k - 1)
    shown, timed = need[need.coupling == coupling], until[until.coupling == coupling]
    left.plot(at, shown.measured, "o", color=f"C{k}", ms=4, label=coupling)
    left.plot(at, shown.exact, "_", color="k", ms=9)
    reach = [timed["median"] - timed.low, timed.high - timed["median"]]
    right.errorbar(at, timed["median"], reach, fmt="o", color=f"C{k}", ms=4, capsize=3)
left.set(yscale="log", ylabel="runs", xlim=(-0.6, 1.6), ylim=(50, 5e5))
left.set_title("one interval of given width")
left.yaxis.set_major_formatter("{x:,.0f}")
left.set_xticks([0, 1], [f"{name},\n$\\pm${part[2]}" for name, part in worlds.items()])
right.set(title="one decision at the depot", xlim=(-0.6, 1.6))
right.set_xticks([0, 1], ["asymptotic\nintervals", "default\n(betting)"])
left.legend(loc="upper right", ncols=3, fontsize=7)
chapter.save(fig, "fig_worth_of_a_run", pd.concat([need, until]), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.1.** Left: how many runs a 95% interval of the given half-width needs, from measured variances (dots) and exact ones (ticks). Right, in the same colours: runs until it is known that four units are better than three, medians over seeds with their intervals. Note that common noise saves most of the runs, but hardly any with the default.
#
# <!-- alt: Dots on a logarithmic axis. Left, the common coupling needs less than a twentieth of the runs of the others at the depot, and hundreds of times fewer at the queues. Right, it is far lower with asymptotic intervals; with the default all three dots are close together. -->

# %% [markdown]
# ## 11.3 Two policies
#
# Often the question is not what to order today, but which of two policies to follow every day: fill up to six units, or up to eight? `compare_policies` gives every branch a policy of its own from the
# start. Then, and after the same action in the same state, two branches use one random number to draw their actions, each from its own policy. So the gap of two equal policies is zero. `policy_gaps` gives the exact mean and variance of the gap, from every state.
#
# A switch is worth the trouble only if it earns at least 1 more, so this is our `margin`. We ask for an asymptotic confidence sequence, and for a *horizon*, after which runs are cut off, twice as late as by default, so that what is cut off is small compared with the margin.

# %%
policies = [np.clip(level - np.arange(12), 0, 4) for level in (6, 8)]
limits = {"state": 0, "margin": 1.0, "budget": 10**7, "horizon": 132, "rng": seed}
decided = {
    c: jl.simulators.compare_policies(depot, policies, coupling=c, method="asymptotic", **limits)
    for c in couplings
}
print(decided["common"].method)

# %%
variances = {}
for coupling in couplings:
    gap = decided[coupling].estimates
    mean, variances[coupling] = (
        x[0] for x in jl.laws.policy_gaps(tables, *policies, coupling=coupling)
    )
    assert largest_error(gap, {"mean": mean, "variance": variances[coupling]}) < 4
    assert decided[coupling].best == 0
assert mean > 1
own, joint, common = variances.values()
text = f"{own:.2f} > {joint:.2f} > {common:.2f}"
claim = "two policies, exact Var G: independent > joint > common"
claims.check(claim, text, own > joint > common)
runs = [decided[coupling].num_runs for coupling in couplings]
promised = variances["independent"] / variances["common"]
text = ", ".join(f"{n:,}" for n in runs)
# When a decision is reached also depends on chance: we ask for half of what the ratio promises.
claim = "runs until a policy is known: independent / common > half of Var G's ratio"
claims.check(claim, text, runs[0] / runs[2] > promised / 2)

# %% [markdown]
# By the asymptotic sequence, filling up to six is better by more than 1, under every coupling.
#
# ## 11.4 A call centre in SimPy
#
# A day at a call centre is a sequence of events: people call, wait, are answered or hang up.
# [SimPy](https://simpy.readthedocs.io) simulates such events in order. One **query is a whole day**, and the next day is a new one, so $\gamma = 0$. An action is a
# roster: how many agents work in the morning, at noon and in the afternoon.
#
# All that is random about the day is drawn before anybody looks at the roster: when people call, how long they will talk and how long they are willing to wait. If `query` drew the length of a call when an agent answers it, the agents of two rosters would soon talk to different people.


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
# The second roster moves two agents to noon, when most people call.

# %%
day = {"policy": [0], "actions": [1, 0], "state": 0, "num_runs": num_days, "keep_returns": True}
own = jl.simulators.estimate_gaps(CallCentre(), coupling="independent", rng=seed, **day)
shared = jl.simulators.estimate_gaps(CallCentre(), coupling="joint", rng=seed, **day)
gap, error = shared.mean[0, 1], shared.mean_error[0, 1]
assert abs(own.mean[0, 1] - gap) < 4 * np.hypot(error, own.mean_error[0, 1])
text = f"{gap:.1f}, {error:.1f}"
claims.check("call centre, gain of the second roster: > 4 s.e.", text, gap > 4 * error)
saved = own.variance[0, 1] / shared.variance[0, 1]
claims.check("call centre, Var G, own / shared: > 2", f"{saved:.1f}", saved > 2)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8), width_ratios=[3, 2])
for k, coupling in enumerate(couplings):
    looks = decided[coupling].history
    low, high = looks.intervals[:, 0, 1].T
    left.plot(looks.num_queries, low, color=f"C{k}", label=coupling)
    left.plot(looks.num_queries, high, color=f"C{k}")
left.axhline(mean, color="k", lw=0.8, ls="--")
left.axhline(1.0, color="0.3", lw=0.8, ls=":")
left.set(xscale="log", xlabel="queries", ylabel="mean gap, up to 6 minus up to 8")
left.xaxis.set_major_formatter("{x:,.0f}")
left.xaxis.set_minor_formatter("")  # no further labels: they would overlap
left.legend(loc="upper right")
gains = {
    "own": np.sort(own.returns[:, 0] - own.returns[:, 1]),
    "same": np.sort(shared.returns[:, 0] - shared.returns[:, 1]),
}
for (name, x), color in zip(gains.items(), ("C0", "C2"), strict=True):
    right.step(x, np.arange(1, x.size + 1) / x.size, where="post", color=color, label=name)
right.axvline(0.0, color="0.5", lw=0.8)
right.set(xlabel="gain of roster 3, 6, 3 in a day", ylabel="share of days")
right.legend(title="customers", loc="lower right")
chapter.save(fig, "fig_whole_rules", gains, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.2.** Left: the interval for the mean gap of two order policies, until it lies above the margin (dotted). The dashed line is the
# exact gap. Right: the distribution function of what the second roster gains in a day. Note that shared customers narrow the interval on the left and the spread on the right.
#
# <!-- alt: Left, three pairs of lines around one dashed line. That of the common coupling is narrowest and is the first to lie above the dotted line; that of the independent coupling takes more than ten times as many queries. Right, two rising curves: with the same customers a steep one, most of it above zero; with own customers a flat one that reaches far below zero. -->

# %% [markdown]
# ## 11.5 On a GPU
#
# States, noise and rewards can be arrays of any library that follows the array API standard. You choose the library and the device by what you pass as `state`. If it is a torch tensor, the function that draws the noise gets a torch generator on that device,
# and only sums leave the device.


# %%
def torch_step(stock, order, demand):
    have = torch.clamp(stock + order, max=11)
    sold = torch.minimum(have, demand)
    return 3.0 * sold - 1.5 * order, have - sold


def torch_customers(n, rng):
    return torch.poisson(torch.full((n,), 3.0, device=rng.device), generator=rng).to(torch.int32)


on_gpu = torch.cuda.is_available()
empty = torch.tensor(0, dtype=torch.int32, device="cuda" if on_gpu else "cpu")
torch_depot = jl.simulators.VectorSimulator(
    torch_step, torch_customers, 5, 0.9, reward_range=(-6.0, 33.0), num_states=12
)

# %%
runs = gpu_runs if on_gpu else num_runs
begin = perf_counter()
played = jl.simulators.estimate_gaps(
    torch_depot, num_runs=runs, truncation=1e-6, **today | {"state": empty}
)  # a billion runs would see what the usual horizon cuts off
took = perf_counter() - begin
print(f"{runs:,} pairs on {empty.device}: {took:.2f} s", file=sys.stderr)
error = largest_error(played, truth)
name = "in torch, mean and variance: within 4 s.e. of the exact ones"
claims.check(name, f"{error:.1f}", error < 4)

# %% [markdown]
# We measured this once on a large GPU, with the uniform policy and five units in stock, ordering two units against one. The last
# column has the steps of all branches in a second, in billions. The time goes into moving numbers, so small data types pay off.

# %%
gpu = chapter.results(["benchmarks/vector_gpu.csv"])
speed = gpu["branch-steps a second"] / 1e9
columns = {"pairs": gpu.pairs.map("{:,}".format), "seconds": gpu.seconds, "speed": speed}
pd.DataFrame(columns).set_axis(gpu.coupling.tolist()).round(2)

# %%
billion = gpu[gpu.pairs == 10**9].set_index("coupling").seconds
text = ", ".join(f"{billion[c]:.1f} s" for c in ("joint", "common"))
claim = f"a billion pairs on one {gpu.device[0]}, joint, common: < 5 s"
claims.check(claim, text, (billion < 5).all(), verdict="cited")

# %% [markdown]
# ## What to take away
#
# - A vectorised simulator is two functions: one draws the noise, one steps. Draw first, decide later.
# - Common noise saves runs here: with intervals that follow the variance a factor of 37 at the depot, and hundreds at the queues; with the default of `compare_actions`, hardly any at the depot.
# - Noise that comes whatever you do, such as customers, is *common*.
# - `compare_policies` compares whole policies under the same noise; `policy_gaps` gives the exact answer, if you have the tables.
# - One query may be a whole day in an event simulator, as long as it draws the noise first.
#
# ## Exercises
#
# **Exercise 1.** Compare the policy "up to six" with itself, and with one that differs from it only if eleven units are in stock, which never happens here. What are the gaps?
#
# <details><summary>Solution</summary>
#
# Zero in both cases, in every run. Equal policies are found equivalent at once. In the second case the library cannot know that this stock never occurs. It simulates every run to the horizon, and what lies beyond is unknown.
#
# </details>

# %% tags=["hide-cell"]
odd = policies[0].copy()
odd[11] = 4
settings = {"state": 0, "rng": seed, "coupling": "common"}
twice = jl.simulators.compare_policies(depot, [policies[0], policies[0].copy()], **settings)
never = jl.simulators.compare_policies(depot, [policies[0], odd], budget=20000, **settings)
assert twice.estimates.variance[0, 1] == never.estimates.variance[0, 1] == 0.0
assert (twice.verdict, never.verdict) == ("equivalent", "undecided")

# %% [markdown]
# **Exercise 2.** One more agent in the morning and one more in the afternoon cost 60 a day together. Is the roster 4, 6, 4 worth it, compared with 3, 6, 3?
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


extra = jl.simulators.estimate_gaps(LargerCentre(), [0], [0, 1], state=0, num_runs=50, rng=seed)
low, high = extra.interval("mean")
text = f"[{low[0, 1]:.0f}, {high[0, 1]:.0f}]"
claims.check("exercise 2, gain of two more agents: < 0", text, high[0, 1] < 0)

# %% [markdown]
# **What to read next.** [Use it on your own simulator](../book/own_simulator.md) covers all kinds of simulators on one page. Chapter 9 computes the whole distribution of a gap.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
