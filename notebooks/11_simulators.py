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
# that one run takes on its own (`benchmarks/vector.md`). <!-- benchmarks/vector.md: joint: times as fast as plain -->
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
from itertools import product
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import simpy
from scipy import stats

import jmdp_lib as jl
from jmdp_lib.machine import extra
from notebooks.tools import chapter, figures

with extra("torch"):
    import torch

chapter.style()
claims = chapter.Claims()
assert num_runs >= 32768, f"{num_runs=}: at least 32768"
assert num_seeds >= 5, f"{num_seeds=}: at least 5"
assert num_days >= 100, f"{num_days=}: at least 100"
assert gpu_runs >= 100000, f"{gpu_runs=}: at least 100000"

# %% [markdown]
# ## 11.1 A simulator of arrays
#
# Here are *n* depots of chapter 10 at once. `customers` draws the noise of *n* days, **before** anybody looks at
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
gap = jl.simulators.estimate_gaps(depot, num_runs=num_runs, **today)
print(f"the fourth unit gains {gap.mean[0, 1]:.3f}, standard error {gap.mean_error[0, 1]:.3f}")

# %% [markdown]
# We compare it with the exact answer: `JMDP.from_step` makes tables of the same `step`.

# %%
demand = stats.poisson.pmf(np.arange(31), 3)
tables = jl.JMDP.from_step(12, 5, 0.9, demand / demand.sum(), step)
exact = jl.jipe2(tables, up_to_six).moments
(law,) = jl.laws.gap_law(tables, up_to_six, gaps=[(0, 4, 3)], width=3e-3)


# %% tags=["hide-input"]
def largest_error(estimate, mean, variance):
    """Of the mean and the variance of the first gap, in standard errors."""
    pairs = ("mean", mean), ("variance", variance)
    off = [(getattr(estimate, name) - x, getattr(estimate, f"{name}_error")) for name, x in pairs]
    return max(abs(x[0, 1] / error[0, 1]) for x, error in off)


truth = exact.gap_mean[0, 4, 3], exact.gap_variance[0, 4, 3]
text = "{:.3f}, {:.2f}; {:.3f}, {:.2f}".format(*truth, gap.mean[0, 1], gap.variance[0, 1])
claim = "four units against three, E G, Var G, exact; simulated: within 4 s.e."
claims.check(claim, text, largest_error(gap, *truth) < 4)
low, high = gap.interval("prob_better", level=0.9999)
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
# A 95% interval of half-width $w$ for the mean gap needs about $n = (1.96 / w)^2\, \mathrm{Var}\,G$ runs. The mean gap is the same under all couplings (section 3.6); its variance is not. Here are the runs for $w = 0.05$ at the depot and $w = 0.25$ at the queues, from measured and from exact variances:
#
# - **separate** runs, without common random numbers: $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$, as in section 10.4;
# - **independent**: separate draws, but branches in one state with one action become one;
# - **joint**: branches in one state share draws;
# - **common**: all branches do. This is what simulation calls *common random numbers*.

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
couplings, simulate = ("independent", "joint", "common"), jl.simulators.estimate_gaps
rows, errors = [], []
for name, (world, question, half, (jm, policy, (s, a, b))) in worlds.items():
    kept = simulate(world, num_runs=num_runs // 8, keep_returns=True, **question)
    for coupling in couplings:
        gap = simulate(world, num_runs=num_runs // 2, coupling=coupling, **question)
        moments = jl.jipe2(jm, policy, coupling=coupling).moments
        errors.append(largest_error(gap, moments.gap_mean[s, a, b], moments.gap_variance[s, a, b]))
        rows.append((name, coupling, half, gap.variance[0, 1], moments.gap_variance[s, a, b]))
    apart = kept.returns.var(0).sum(), moments.variance[s, [a, b]].sum()
    rows.append((name, "separate", half, *apart))
need = pd.DataFrame(rows, columns=["world", "coupling", "half", "measured", "exact"])
need[["measured", "exact"]] *= (1.96 / need[["half"]].to_numpy()) ** 2
need.pivot(index="coupling", columns="world", values=["measured", "exact"]).map("{:,.0f}".format)

# %% tags=["hide-input"]
claim = "3 couplings, 2 worlds: means and variances within 4 s.e. of the exact ones"
claims.check(claim, f"{max(errors):.1f}", max(errors) < 4)
for name, part in need.groupby("world", sort=False):
    own, joint, common, separate = part.exact
    ratios = [f"{x / common:,.0f}" for x in (separate, own, joint)]
    assert ratios[0] == {"depot": "79", "two queues": "1,339"}[name]  # as the text says
    text = ", ".join(ratios)
    claim = f"{name}, runs for one of common: separate > independent > joint > 1"
    claims.check(claim, text, separate > own > joint > common)

# %% [markdown]
# At the queues, branches with the same arrivals and services soon agree. With separate ones, each fluctuates for a long time, and all this is noise in the gap.
#
# **Which one is right?** If you ask how the same day would have gone under another action, the coupling is a statement about the world: customers come whatever is in stock, so it is *common*. If you
# want nothing but the mean gap, take the one with the smallest variance.
#
# **Decisions.** These factors hold for intervals that follow the variance. The default of `compare_actions` must allow for gaps up to $\pm 390$ at the depot (section 10.4): even if every gap were exactly 0.47, the mean, it would need about 3,600 runs. Asymptotic intervals of arrays may be looked at from 256 runs on, and with common noise these are enough. We count the runs until order 4 is known to be better than order 3: medians over seeds, with 94% (five seeds) or 95% (sixty) intervals.

# %%
rank = int(stats.binom.ppf(0.025, num_seeds, 0.5))  # so many runs may lie beyond either end
rows = []
for coupling, method in product(couplings, ("asymptotic", "betting")):
    ask = today | {"coupling": coupling, "method": method}
    seeds = [np.random.SeedSequence([seed, k]) for k in range(num_seeds)]
    calls = [jl.simulators.compare_actions(depot, **ask | {"rng": each}) for each in seeds]
    runs = np.sort([call.num_runs for call in calls])
    rows.append((coupling, method, runs[rank], np.median(runs), runs[-1 - rank]))
until = pd.DataFrame(rows, columns=["coupling", "method", "low", "median", "high"])
until.pivot(index="coupling", columns="method").astype(int)

# %% tags=["hide-input"]
wager = 2.0 ** -np.arange(16) * exact.gap_mean[0, 4, 3] / 390
weights = 1 / (np.arange(1, 17) * np.arange(2, 18))
assert weights @ (1 + wager) ** 3500 < 2 / 0.05 < weights @ (1 + wager) ** 3600
medians = until.pivot(index="coupling", columns="method", values="median")
saved = medians.loc["independent"] / medians.loc["common"]
text = f"{saved.asymptotic:.1f}; {saved.betting:.1f}"
as_said = saved.asymptotic > saved.betting and saved.betting < 1.5
claims.check("depot, runs, independent / common: asymptotic > default, < 1.5", text, as_said)

# %% tags=["hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.9), sharey=True)
for k, coupling in enumerate([*couplings, "separate"]):
    shown, timed = need[need.coupling == coupling], until[until.coupling == coupling]
    at, color = np.arange(2) + 0.14 * (k - 1.5), "0.4" if coupling == "separate" else f"C{k}"
    left.plot(at, shown.measured, "o", color=color, ms=4, label=coupling)
    left.plot(at, shown.exact, "_", color="k", ms=9)
    reach = [timed["median"] - timed.low, timed.high - timed["median"]]
    right.errorbar(at[: len(timed)], timed["median"], reach, fmt="o", color=color, ms=4, capsize=3)
left.set(
    yscale="log",
    ylabel="runs",
    xlim=(-0.5, 1.5),
    ylim=(50, 5e5),
    title="one interval of given width",
)
left.yaxis.set_major_formatter("{x:,.0f}")
left.set_xticks([0, 1], [f"{name},\n$\\pm${part[2]}" for name, part in worlds.items()])
right.set(title="one decision at the depot", xlim=(-0.5, 1.5))
right.set_xticks([0, 1], ["asymptotic\nintervals", "default\n(betting)"])
fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
chapter.save(fig, "fig_worth_of_a_run", pd.concat([need, until]), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.1.** Left: how many runs a 95% interval of the given half-width needs, from measured variances (dots) and exact ones (ticks). Right, in the same colours: runs until it is known that four units are better than three, medians over seeds with their intervals.
#
# <!-- alt: Dots on a logarithmic axis. Left, the common coupling needs less than a twentieth of the runs of the others at the depot, and hundreds of times fewer at the queues; separate runs need most. Right, it is far lower with asymptotic intervals; with the default all three dots are close together. -->

# %% [markdown]
# ## 11.3 Two policies
#
# Which of two policies should the depot follow every day: fill up to six units, or up to eight? `compare_policies` gives every branch a policy of its own from the
# start. At the start, and whenever two branches have just taken the same action in the same state, they draw their next actions with one random number, each from its own policy. So the gap of two equal policies is zero. `policy_gaps` gives the exact mean and variance of the gap, from every state.
#
# A switch is worth the trouble only if it earns at least 1 more, so this is our `margin`. We ask for an asymptotic confidence sequence, and for a *horizon* twice as late as by default: what is cut off there must be small compared with the margin.

# %%
policies = [np.clip(level - np.arange(12), 0, 4) for level in (6, 8)]
limits = {"state": 0, "margin": 1.0, "budget": 10**7, "horizon": 132, "rng": seed}
decided = {
    c: jl.simulators.compare_policies(depot, policies, coupling=c, method="asymptotic", **limits)
    for c in couplings
}
print(decided["common"].method)

# %%
exact_gaps = {
    c: [x[0] for x in jl.laws.policy_gaps(tables, *policies, coupling=c)] for c in couplings
}
mixed = [jl.epsilon_mixture(tables, policies[0], share) for share in (0.2, 0.3)]
ask = {"state": 0, "coupling": "common", "rng": seed}
drawn = jl.simulators.compare_policies(depot, mixed, budget=10**6, **ask).estimates
twice = jl.simulators.compare_policies(depot, [policies[0], policies[0].copy()], **ask)
mixed_gap = [x[0] for x in jl.laws.policy_gaps(tables, *mixed, coupling="common")]


def step_with_income(stock, order, demand):
    rewards, left = step(stock, order, demand)
    return rewards + 1000.0, left


rich = jl.simulators.VectorSimulator(
    step_with_income, customers, 5, 0.9, reward_range=(994.0, 1033.0), num_states=12
)
short = jl.simulators.compare_policies(rich, policies, horizon=20, **ask).estimates
values = [jl.jipe2(tables, p).moments.mean[0, p[0]] + 1000.0 / (1 - 0.9) for p in policies]

# %% tags=["hide-input"]
runs = {c: decided[c].num_runs for c in couplings}
own, joint, common = [variance for _, variance in exact_gaps.values()]
text = f"{own:.2f} > {joint:.2f} > {common:.2f}"
claims.check("two policies, exact Var G: independent > joint > common", text, own > joint > common)
# When a decision is reached also depends on chance: we claim half of what the ratio promises.
claim = "runs until a policy is known: independent / common > half of Var G's ratio"
text = ", ".join(f"{n:,}" for n in runs.values())
claims.check(claim, text, runs["independent"] / runs["common"] > own / common / 2)
errors = [largest_error(decided[c].estimates, *exact_gaps[c]) for c in couplings]
assert max(errors) < 4
assert exact_gaps["joint"][0] > 1
assert {decided[c].best for c in couplings} == {0}
same = twice.verdict == "equivalent" and twice.estimates.variance[0, 1] == 0
assert same  # a policy and its copy have gap zero
claim = "two policies that draw actions, Var G, exact; simulated: within 4 s.e."
text = f"{mixed_gap[1]:.2f}; {drawn.variance[0, 1]:.2f}"
near = abs(drawn.variance[0, 1] - mixed_gap[1]) < 4 * drawn.variance_error[0, 1]
claims.check(claim, text, near)
low, high = short.interval("mean", level=0.9999)
mean, reach = short.mean[0, 1], high[0, 1] - short.mean[0, 1] - short.truncation_error[0, 1]
text = (
    f"{exact_gaps['joint'][0]:.2f}, {mean:.2f} +- {reach:.2f} +- {short.truncation_error[0, 1]:.0f}"
)
covered = low[0, 1] < exact_gaps["joint"][0] < mean - reach
covered &= (np.abs(short.value - values) < short.value_error).all()
claim = "cut off after 20 days: values right; exact mean gap inside the whole interval alone"
claims.check(claim, text, covered)

# %% [markdown]
# Under every coupling, filling up to six is better by more than 1.
#
# Two checks: gaps of `mixed` policies, which draw their actions, have the exact variance only if branches share these draws; and if runs end after 20 days, the mean gap is off, but its interval is right, since it allows for all later rewards. Values include what all later rewards have in common, here an income of 1,000 a day.
#
# ## 11.4 A call centre in SimPy
#
# A day at a call centre is a sequence of events: people call, wait, are answered or hang up.
# [SimPy](https://simpy.readthedocs.io) simulates such events in order. One **query is a whole day**, and the next day is a new one, so $\gamma = 0$. An action is a
# roster: how many agents work in the morning, at noon and in the afternoon.
#
# Everything random about the day is drawn before anybody looks at the roster: when people call, how long they will talk and how long they are willing to wait. If `query` drew the length of a call when an agent answers it, the agents of two rosters would soon talk to different people.


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


def simulate_day(roster, calls):
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
        return [simulate_day(self.rosters[a], calls) for a in actions], [0] * len(actions)


# %% [markdown]
# The second roster moves two agents to noon, when most people call.

# %%
day = {"policy": [0], "actions": [1, 0], "state": 0, "num_runs": num_days, "keep_returns": True}
own, shared = (
    simulate(CallCentre(), coupling=c, rng=seed, **day) for c in ("independent", "joint")
)

# %% tags=["hide-input"]
gap, error = shared.mean[0, 1], shared.mean_error[0, 1]
assert abs(own.mean[0, 1] - gap) < 4 * np.hypot(error, own.mean_error[0, 1])
text = f"{gap:.1f}, {error:.1f}"
claims.check("call centre, gain of the second roster: > 4 s.e.", text, gap > 4 * error)
saved = own.variance[0, 1] / shared.variance[0, 1]
claims.check("call centre, Var G, own / shared: > 2", f"{saved:.1f}", saved > 2)

# %% tags=["hide-input"]
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8), width_ratios=[3, 2])
for k, coupling in enumerate(couplings):
    figures.intervals(left, decided[coupling].history, 0, 1, color=f"C{k}", label=coupling)
left.axhline(exact_gaps["joint"][0], color="k", lw=0.8, ls="--")
left.axhline(1.0, color="0.3", lw=0.8, ls=":")
left.set(xscale="log", xlabel="queries", ylabel="mean gap, up to 6 minus up to 8")
left.xaxis.set_major_formatter("{x:,.0f}")
left.xaxis.set_minor_formatter("")  # no further labels: they would overlap
left.legend(loc="upper right")
gains = {"own": own.returns @ [1, -1], "same": shared.returns @ [1, -1]}
for (name, x), color in zip(gains.items(), ("C0", "C2"), strict=True):
    right.ecdf(x, color=color, label=name)
right.axvline(0.0, color="0.5", lw=0.8)
right.set(xlabel="gain of roster 3, 6, 3 in a day", ylabel="share of days")
right.legend(title="customers", loc="lower right")
chapter.save(fig, "fig_whole_rules", gains, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 11.2.** Left: the interval for the mean gap of two order policies, until (dots) it lies above the margin (dotted). Dashed: the
# exact gap. Right: the distribution function of what the second roster gains in a day. Blue: branches have customers of their own; green: they share them.
#
# <!-- alt: Left, intervals around one dashed line. That of the common coupling lies above the dotted line at the first look, two dots; those of the joint and the independent coupling, two pairs of lines, take dozens of times as many queries. Right, two rising curves: with the same customers a steep one, most of it above zero; with own customers a flat one that reaches far below zero. -->

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
gap = simulate(torch_depot, num_runs=runs, truncation=1e-6, **today | {"state": empty})
print(f"{runs:,} pairs on {empty.device}: {perf_counter() - begin:.2f} s", file=sys.stderr)

# %% tags=["hide-input"]
# A billion runs would see what the usual horizon cuts off.
error = largest_error(gap, *truth)
name = "in torch, mean and variance: within 4 s.e. of the exact ones"
claims.check(name, f"{error:.1f}", error < 4)

# %% [markdown]
# Measured once on a large GPU, with the uniform policy and five units in stock, two more units against one; the last
# column has billions of steps of branches in a second. The time goes into moving numbers, so small data types pay off.

# %%
gpu = chapter.results(["benchmarks/vector_gpu.csv"])
speed = gpu["branch-steps a second"] / 1e9
columns = {"pairs": gpu.pairs.map("{:,}".format), "seconds": gpu.seconds, "speed": speed}
pd.DataFrame(columns).set_axis(gpu.coupling.tolist()).round(2)

# %% tags=["hide-input"]
billion = gpu[gpu.pairs == 10**9].set_index("coupling").seconds
text = ", ".join(f"{billion[c]:.1f} s" for c in ("joint", "common"))
claim = f"a billion pairs on one {gpu.device[0]}, joint, common: five seconds, rounded"
claims.check(claim, text, (billion.round() <= 5).all(), verdict="cited")

# %% [markdown]
# ## What to take away
#
# - A vectorised simulator is two functions: one draws the noise, one steps. Draw first, decide later.
# - Common noise saves runs: against separate ones a factor of 79 at the depot and 1,339 at the queues, with intervals that follow the variance; against independent ones, with the default of `compare_actions`, about 1.1 at the depot.
# - `compare_policies` compares whole policies under the same noise; `policy_gaps` gives the exact answer, if you have the tables.
# - One query may be a whole day in an event simulator, as long as it draws the noise first.
#
# ## Exercises
#
# **Exercise 1.** On one day in ten the supplier delivers nothing, and is not paid. Add this to `customers` and `step`. Is the fourth unit worth more or less now?
#
# <details><summary>Hint</summary>
#
# The noise of a run may be a row of two numbers, both drawn before anybody looks at the order. For `JMDP.from_step`, number the pairs: 31 demands without a delivery, and 31 with one.
#
# </details>
#
# <details><summary>Solution</summary>
#
# A little more, 0.51 instead of 0.47: a unit that is left over helps if the next delivery fails.
#
# </details>


# %% tags=["hide-cell"]
def unsure_step(stock, order, noise):
    return step(stock, order * noise[:, 0], noise[:, 1])


def unsure(n, rng):
    return np.stack([rng.random(n) < 0.9, customers(n, rng)], axis=1)


def numbered_step(stock, order, number):
    return step(stock, order * (number // 31), number % 31)


unsure_depot = jl.simulators.VectorSimulator(unsure_step, unsure, 5, 0.9, num_states=12)
gap = simulate(unsure_depot, num_runs=num_runs // 2, **today)
odds = np.outer([0.1, 0.9], demand / demand.sum()).ravel()
moments = jl.jipe2(jl.JMDP.from_step(12, 5, 0.9, odds, numbered_step), up_to_six).moments
assert moments.gap_mean[0, 4, 3] > exact.gap_mean[0, 4, 3] + 0.03
assert largest_error(gap, moments.gap_mean[0, 4, 3], moments.gap_variance[0, 4, 3]) < 4

# %% [markdown]
# **Exercise 2.** One more agent in the morning and one more in the afternoon cost 60 a day together. Is the roster 4, 6, 4 worth it, compared with 3, 6, 3?
#
# <details><summary>Hint</summary>
#
# Change `rosters` in a subclass, and let its `query` subtract the wages.
#
# </details>
#
# <details><summary>Solution</summary>
#
# No: the interval of the gap lies below zero.
#
# </details>


# %% tags=["hide-cell"]
class LargerCentre(CallCentre):
    rosters = ((4, 6, 4), (3, 6, 3))

    def query(self, state, actions, rng):
        earned, following = super().query(state, actions, rng)
        return [x - 60.0 * (a == 0) for x, a in zip(earned, actions, strict=True)], following


larger = simulate(LargerCentre(), [0], [0, 1], state=0, num_runs=50, rng=seed)
low, high = larger.interval("mean")
text = f"[{low[0, 1]:.0f}, {high[0, 1]:.0f}]"
claims.check("exercise 2, gain of two more agents: < 0", text, high[0, 1] < 0)

# %% [markdown]
# **What to read next.** [Use it on your own simulator](../book/own_simulator.md) covers all kinds of simulators on one page. Chapter 9 computes the whole distribution of a gap.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
