# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10. Which action? From a simulator to a decision
#
# `compare_actions` simulates the candidates under the same shocks, and stops as soon as it
# knows which one is best.
#
# **What you will learn.** What intervals of a decision promise; what shared shocks save; and when it is safe to improve a policy.
#
# **What it needs.** Chapter 0 and confidence intervals; section 10.6 also mentions the law of a gap (chapter 9). To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
num_seeds = 20  # at least 20
num_runs = 600  # at least 300; intervals are looked at from 128 runs on
num_repeats = 2000  # at least 100
lake_runs = 1000  # at least 1000
num_decisions = 30  # at least 20: one of them is a rate of 5%
queries = [8, 128, 512, 1024]  # at least 8, 128, 512 and 1024, of which the text speaks
num_models = 20  # at least 20
out_dir = ""

# %%
from functools import partial
from itertools import product

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from scipy import stats

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert num_seeds >= 20, f"{num_seeds=}: at least 20"
assert num_runs >= 300, f"{num_runs=}: at least 300"
assert num_repeats >= 100, f"{num_repeats=}: at least 100"
assert lake_runs >= 1000, f"{lake_runs=}: at least 1000"
assert num_decisions >= 20, f"{num_decisions=}: at least 20"
assert set(queries) >= {8, 128, 512, 1024}, f"{queries=}: must contain 8, 128, 512 and 1024"
assert num_models >= 20, f"{num_models=}: at least 20"

# %% [markdown]
# ## 10.1 The simulator
#
# The depot of [Use it on your own simulator](../book/own_simulator.md) holds up to eleven units, which it buys at 1.5, four a day at most, and sells at 3. Demand is drawn **before** anybody looks at the
# orders, so all orders of one query face the same customers. No day earns more than 33, since at most eleven units are sold, and none loses more than 6. The depot declares
# this as its `reward_range`.


# %%
class Depot:
    num_states, num_actions, gamma = 12, 5, 0.9
    reward_range = (-6.0, 33.0)

    def query(self, state, actions, rng):
        demand = rng.poisson(3)
        stock = [min(state + order, 11) for order in actions]
        sold = [min(units, demand) for units in stock]
        rewards = [3.0 * x - 1.5 * order for x, order in zip(sold, actions, strict=True)]
        return rewards, [have - gone for have, gone in zip(stock, sold, strict=True)]


# %% [markdown]
# From tomorrow on the depot will order up to six units. Today it is empty: should it order
# none, one, two, three or four?
#
# ## 10.2 One call
#
# For every two actions the call keeps an interval for the mean gap $\mathbb E[Z(s, a) - Z(s, b)]$, and checks them repeatedly until
# they settle the question. With a known range of the rewards, all intervals hold at all sample sizes at once with probability at least
# $1 - \alpha$ (0.95 by default), whatever the distribution of the rewards. An action that is beaten
# by another one is not simulated any further.

# %%
up_to_six = np.clip(6 - np.arange(12), 0, 4)
question = {"state": 0, "actions": [0, 1, 2, 3, 4], "policy": up_to_six, "rng": seed}
decision = jl.simulators.compare_actions(Depot(), **question)
print(f"{decision.verdict}: order {decision.best}, known after {decision.num_queries:,} queries")
print(decision.method)

# %% [markdown]
# The distribution of the demand is known, so `inventory` can write its tables down, and we can check the answer. (It refuses units for which there is no room, and does not charge for them. The empty depot has room for every order.)

# %%
depot = {"capacity": 11, "max_order": 4, "gamma": 0.9, "holding_cost": 0.0, "lost_sale_cost": 0.0}
tables = jl.inventory(**depot)
exact = jl.jipe2(tables, up_to_six).moments

# %% tags=["hide-input"]
text = f"{decision.best}, after {decision.num_queries:,} queries"
right = decision.best == exact.mean[0].argmax()
claims.check("empty depot: the order found is the best one", text, right)
low, high = np.moveaxis(decision.intervals, -1, 0)
inside = ((low <= exact.gap_mean[0]) & (exact.gap_mean[0] <= high))[np.triu_indices(5, 1)]
text = f"{inside.sum()} of {inside.size}"
claims.check("exact mean gaps inside their intervals: all", text, inside.all())

# %% [markdown]
# **A margin.** With `margin=1`, actions whose means
# differ by at most one coin are *equivalent*, and to establish this is a decision, too.

# %%
relaxed = jl.simulators.compare_actions(Depot(), **question | {"actions": [3, 4]}, margin=1.0)
print(f"{relaxed.verdict}, after {relaxed.num_queries:,} queries")

# %% tags=["hide-input"]
gap = exact.gap_mean[0, 4, 3]
equivalent = relaxed.verdict == "equivalent" and abs(gap) <= 1.0
claims.check("orders 4 and 3: mean gap <= 1, and so decided", f"{gap:.2f}", equivalent)

# %% [markdown]
# **Several pairs.** Five actions have ten pairs, whose intervals hold at once: `compare_actions` divides $\alpha$ by the number of pairs (the Bonferroni correction), which widens each of them.

# %% tags=["hide-input"]
look = min(len(x.history.num_queries) for x in (decision, relaxed)) - 1  # as many runs
among_five = np.ptp(decision.history.intervals[look, 3, 4])
alone = np.ptp(relaxed.history.intervals[look, 0, 1])
ratio = among_five / alone
claims.check(
    "orders 4 and 3, width of the interval, among five / alone: > 1.2", f"{ratio:.2f}", ratio > 1.2
)

# %% [markdown]
# ## 10.3 Confidence sequences: intervals for many looks
#
# The usual 95% interval is valid for one look. If you look after every run and stop as soon as it excludes zero, you will
# sooner or later stop, even if a random gap of finite variance has mean zero. You need a **confidence sequence** for the mean $\mu$ ([Howard et al. (2021)](../book/background.md#ref-howard)): intervals $C_1, C_2, \dots$ with
#
# $$P\big(\mu \in C_n \text{ for all } n\big) \ge 1 - \alpha .$$
#
# The first kind, the default, **bets**, and needs a range: let the gaps $x_t$ be independent, of one law on $[l, u]$, and put $z_t = (x_t - l)/(u - l)$. A gambler
# wagers that the mean of the $z_t$ exceeds $m$. In every round she stakes a share $b$ of her capital, which is then multiplied by $1 + b\,(z_t/m - 1)$. On average that is 1 if the mean is $m$, so the wager is fair. Split a capital of less than 1 into sixteen parts $w_j = \tfrac{1}{j(j+1)}$; part $j$ always stakes the
# share $b_j = 2^{1-j}$. After $n$ gaps they have grown to
#
# $$K_n(m) = \sum_{j=1}^{16} w_j \prod_{t \le n} \Big(1 + b_j\Big(\frac{z_t}{m} - 1\Big)\Big).$$
#
# If the mean is at most $m$, this does not grow on average, and [Ville's inequality](../book/background.md#ref-ville) says that it ever reaches $1/\alpha$ with probability at most $\alpha$.
# So the largest $m$ with $K_n(m) \ge 1/\alpha$ is a lower end that holds at all
# $n$ at once ([Waudby-Smith and Ramdas (2024)](../book/background.md#ref-betting)). A second gambler wagers that the mean is below $m$, and each of the two has $\alpha/2$.
#
# The second kind is **asymptotic**, a wider interval of the usual kind ([Waudby-Smith et al. (2024)](../book/background.md#ref-asymptotic)):
#
# $$\bar x_n \pm \hat\sigma_n \sqrt{\frac{n\rho^2 + 1}{n^2\rho^2}\, \log\frac{n\rho^2 + 1}{\alpha^2}} ,$$
#
# with a constant $\rho$ that makes it tightest near $n = 1000$, and a term of order $1/n$ added for skewed distributions. It needs no range, only a finite variance, and promises less: if the first look is at $n_0$, then in the limit $n_0 \to \infty$ the intervals hold at all $n \ge n_0$ with probability at least $1 - \alpha$.
# At any given $n_0$, here 128, nothing is promised.
#
# **Equal means.** In the 5x5 gridworld two actions of the middle cell have exactly the same mean, so every "better" is a false decision. We count those of `compare_actions`, and those of the usual interval.


# %%
def false_decisions(method, model, policy, state, budget):
    """Numbers of runs of the calls that prefer one of the actions 0 and 1, of equal mean."""
    ask = partial(jl.simulators.compare_actions, model, policy, [0, 1], state=state)
    calls = [ask(rng=k, budget=budget, method=method) for k in range(num_decisions)]
    return [call.num_runs for call in calls if call.verdict == "better"]


grid, methods = jl.windy_gridworld(5), ("betting", "asymptotic")
assert abs(jl.jipe2(grid, jl.goal_policy(5)).moments.gap_mean[12, 0, 1]) < 1e-6
equal = {m: false_decisions(m, grid, jl.goal_policy(5), 12, 8 * num_runs) for m in methods}

# %%
size = num_runs * num_repeats
returns = jl.simulate_pairs(grid, jl.goal_policy(5), (0, 1), state=12, num_pairs=size, rng=seed)
gap = (returns[:, 0] - returns[:, 1]).reshape(num_runs, num_repeats)
count = np.arange(1, num_runs + 1)[:, None]
mean = gap.cumsum(0) / count
error = np.sqrt(np.maximum((gap**2).cumsum(0) / count - mean**2, 0.0) / count)
wrong = (count >= 128) & (np.abs(mean) > stats.norm.ppf(0.975) * error)
usual = np.logical_or.accumulate(wrong).mean(1)

# %% tags=["hide-input"]
text = f"{len(equal['betting'])}, {len(equal['asymptotic'])} of {num_decisions}"
kept = max(map(len, equal.values())) <= 0.05 * num_decisions
claims.check("equal means, false decisions, betting, asymptotic: at most 5%", text, kept)
claims.check("equal means, usual interval: > 5%", f"{usual[-1]:.1%}", usual[-1] > 0.05)

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
ever = {
    m: np.searchsorted(np.sort(x), count[:, 0], "right") / num_decisions for m, x in equal.items()
}
ever["usual"] = usual
for (name, share), line in zip(ever.items(), ("-", "--", "-."), strict=True):
    ax.plot(share, line, label=name)
ax.axhline(0.05, color="0.5", lw=0.8)
ax.set(xlabel="runs", ylabel="share that was ever wrong", title="two actions with equal means")
ax.legend()
chapter.save(fig, "fig_always_valid", ever, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.1.** The share of calls of `compare_actions`, by either method, that took one of the two actions for better, and the share of repetitions in which the usual interval, looked at after every run from 128 on, has excluded zero. Grey: 5%.
#
# <!-- alt: Three curves over the number of runs. The usual interval rises steeply from 128 runs on, far above the grey line at 0.05; both confidence sequences stay close to zero. -->

# %% [markdown]
# **Rare events.** One
# action always pays 1, the other pays 100 once in a hundred draws. Again both have the same mean.

# %%
rare = jl.JMDP([[0.99, 0.01]], [[[1.0, 0.0], [1.0, 100.0]]], np.zeros((1, 2, 2), int), 0.0)
unseen = {m: len(false_decisions(m, rare, [0], 0, 200)) for m in methods}
blind = {"state": 0, "rng": 0, "budget": 200, "method": "asymptotic"}
print(jl.simulators.compare_actions(rare, [0], [0, 1], **blind).method)

# %% tags=["hide-input"]
text = f"{unseen['betting']}, {unseen['asymptotic']} of {num_decisions}"
as_said = unseen["betting"] <= 0.05 * num_decisions < unseen["asymptotic"]
claims.check("rare events, false decisions: betting <= 5% < asymptotic", text, as_said)

# %% [markdown]
# An event of
# probability 0.01 stays unseen in 128 runs with probability $0.99^{128} = 28\%$, and then the asymptotic interval excludes the truth. The attribute `method` of the result says how rare an event must be to have escaped its runs. So without a range, pass `reward_range=(lo, hi)` or ask for `method="asymptotic"`.
#
# ## 10.4 What the shared demand is worth
#
# Under the paper's coupling, branches share the demand of a day while their stocks are equal, as on the first day. The gap then has variance $\mathrm{Var}\,G$. Separate runs never become one branch: their gap has variance $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$. In `apart` every first order leads to a depot with customers of its own. Such runs are cut off at a *horizon*, here twice as late as by default.
#
# An asymptotic interval follows the variance, so the numbers of runs should be in about this ratio; medians are rough, and we claim at least half of it. The default must also allow for gaps that it has never seen,
# up to $\pm 390$, and saves less.


# %%
def apart(state, order, demand):
    """The state is the stock, plus 12 times the number of the depot, 0 before the first order."""
    have = np.minimum(state % 12 + order, 11)
    sold = np.minimum(have, demand)
    home = np.where(state < 12, order + 1, state // 12)
    return 3.0 * sold - 1.5 * order, have - sold + 12 * home


poisson = stats.poisson.pmf(np.arange(31), 3)
separate = jl.JMDP.from_step(72, 5, 0.9, poisson / poisson.sum(), apart)

# %%
worlds = {
    "shared": (tables, up_to_six, "joint"),
    "separate": (separate, np.tile(up_to_six, 6), "independent"),
}
runs = {}
for (name, (model, policy, coupling)), method in product(worlds.items(), methods):
    settings = {"state": 0, "budget": 10**7, "coupling": coupling, "method": method, "horizon": 132}
    ask = partial(jl.simulators.compare_actions, model, policy, [4, 3], **settings)
    seeds = [np.random.SeedSequence([seed, k]) for k in range(num_seeds)]
    runs[name, method] = [ask(rng=each).num_runs for each in seeds]
median = pd.Series({key: np.median(each) for key, each in runs.items()})
median.unstack().astype(int)

# %% tags=["hide-input"]
ratio = (exact.variance[0, 4] + exact.variance[0, 3]) / exact.gap_variance[0, 4, 3]
saved = {m: median["separate", m] / median["shared", m] for m in methods}
text = f"{saved['asymptotic']:.1f}; {ratio:.1f}"
as_said = saved["asymptotic"] > ratio / 2
claim = "runs, separate / shared demand, asymptotic: > half of the variances' ratio"
claims.check(claim, text, as_said)
assert round(ratio, 1) == 2.8  # exact, as the text says
text = f"{saved['betting']:.1f}; {saved['asymptotic']:.1f}"
less = saved["betting"] < saved["asymptotic"]
claims.check("runs, separate / shared demand: default < asymptotic", text, less)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8))
for order in range(4):  # the best order is 4
    figures.intervals(left, decision.history, 4, order, color=f"C{order}", label=f"order {order}")
left.axhline(0.0, color="0.3", lw=0.8, ls=":")
left.legend(loc="upper right")
left.set(xlabel="queries", ylabel="mean gap, order 4 minus another")
left.set(title="five orders, one decision", ylim=(-2, 8))
left.xaxis.set_major_formatter("{x:,.0f}")
for (name, method), each in runs.items():
    look = {"color": "C0" if method == "betting" else "C1"}
    right.ecdf(each, ls="-" if name == "shared" else "--", label=f"{method}, {name}", **look)
right.set(xscale="log", xlabel="runs until it is known", ylabel="share decided")
right.set(title="order 4 or 3", xlim=(60, None))
right.set_xticks([100, 300, 1000, 3000], ["100", "300", "1,000", "3,000"])
right.minorticks_off()
right.legend(loc="upper left")
data = {f"{method}, {name}": each for (name, method), each in runs.items()}
chapter.save(fig, "fig_decision", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.2.** Left: both ends of the intervals for the mean gap between the best order and each of the others, until any other order beats that one. Right: the share of repetitions in
# which order 4 is known to be better than order 3, with shared demand (solid) and from separate runs (dashed).
#
# <!-- alt: Left, four pairs of lines that approach each other as queries are added, until the lower one is above zero. Right, four rising curves. The two of asymptotic intervals are far apart, shared demand first; the two of betting intervals lie closer together. -->

# %% [markdown]
# ## 10.5 A Gymnasium environment
#
# The same call takes a `CoupledEnv` or an Atari game; then `state` is a snapshot, and the policy a function of
# the observation. On FrozenLake you move where you want with probability 1/3, and otherwise slip to either side. The goal, on our right, pays 1. Is it
# better to go down or left?

# %%
frozen = gymnasium.make("FrozenLake-v1", desc=["FFFF", "FHFH", "FFFH", "HFSG"])  # we are at S
lake = jl.simulators.CoupledEnv(frozen, rng=seed)
lake.reset(seed=seed)
moves = [0, 3, 0, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0]  # left, down, right, up: 0 to 3
on_ice = {"policy": moves.__getitem__, "gamma": 0.9, "rng": seed}
walk = jl.simulators.compare_actions(lake, actions=[1, 0], reward_range=(0.0, 1.0), **on_ice)
print(walk)

# %% [markdown]
# **A time limit is not an end.** Nobody knows what would have come. Gymnasium distinguishes the two, `terminated` and `truncated`, and intervals allow for the truncated rewards. If these could be too large, no budget decides.

# %%
frozen = gymnasium.make(
    "FrozenLake-v1", desc=["FFFF", "FHFH", "FFFH", "HFSG"], max_episode_steps=10
)
limited = jl.simulators.CoupledEnv(frozen, rng=seed)
limited.reset(seed=seed)
short = jl.simulators.compare_actions(
    limited, actions=[1, 0], reward_range=(0.0, 1.0), budget=5000, **on_ice
)

# %% tags=["hide-input"]
blocked = short.verdict == "undecided" and short.blocked_by == "time limit"
text = f"{walk.best}; {short.verdict}, {short.blocked_by}"
claim = "FrozenLake: 1 (down) is better than 0 (left); undecided with a limit of ten steps"
claims.check(claim, text, walk.best == 1 and blocked)

# %%
slips = {
    c: jl.simulators.estimate_gaps(
        lake, actions=[1, 0, 2], num_runs=lake_runs, coupling=c, **on_ice
    ).variance[0]
    for c in ("joint", "independent")
}
shared, own = slips["joint"], slips["independent"]

# %% tags=["hide-input"]
text = f"{shared[1]:.2f} < {own[1]:.2f}; {shared[2]:.2f} > {own[2]:.2f}"
differ = shared[1] < own[1] and shared[2] > own[2]
claim = "FrozenLake, Var G: shared < own, down and left; shared > own, down and right"
claims.check(claim, text, differ)

# %% [markdown]
# A shared slip makes the gap between down and left narrower, and that between down and *right* wider: whichever way you slip, at most one of these two reaches the goal at once. Sharing need not save runs.

# %% [markdown]
# ## 10.6 A first step into control
#
# Let $V$ be a policy's value, and $Q(s, a)$ that of
# taking $a$ once and following the policy from then on. The **policy improvement theorem** says: choose any
# states, and at each of them an action with $Q(s, a) \ge V(s)$. The policy that takes these actions there, and the
# old ones elsewhere, has a value that is nowhere below $V$. *Greedy* improvement switches all states that it can.
# `cautious_improvement` can also ask that $P(Z(s, a) > Z(s, \pi(s)))$ is at least `level`, as certified by `gap_law`.
#
# But what if the tables are estimated? A `JMDP` answers queries as any simulator does, so we forget its tables and
# query the depot some times at each state. It orders up to seven, one more than is best. Cautious improvement switches
# only where the confidence interval of $Q(s, a) - V(s)$ lies above zero. These intervals are normal: in the limit of many queries, all of them, one for each action at each state, hold at once with probability at least 95%, and then no value falls.

# %%
usual = np.eye(5)[np.clip(7 - np.arange(12), 0, 4)]
before = jl.laws.cautious_improvement(tables, usual, level=0.5)
after = jl.laws.cautious_improvement(tables, before.policy, level=0.5)
assert before.switched.any()
assert np.all(after.value >= before.value - 1e-8)  # the theorem

# %%
rows, held = [], []
for size, k in product(queries, range(num_models)):
    counted = jl.JMDP.from_simulator(tables, size, rng=np.random.SeedSequence([seed, k]))
    advice = jl.laws.cautious_improvement(counted, usual, level=0.0)
    choices = {"greedy": np.eye(5)[advice.advantage.argmax(1)], "cautious": advice.policy}
    for name, policy in choices.items():
        gained = jl.laws.cautious_improvement(tables, policy, level=0.0).value - before.value
        rows.append((name, size, gained.mean(), gained.min() < -1e-8, (policy != usual).any()))
    held.append((advice.advantage_low <= before.advantage + 1e-9).all())
data = pd.DataFrame(rows, columns=["improvement", "queries", "gain", "falls", "switches"])
shares = data.groupby(["queries", "improvement"]).mean()
shares.unstack().round(3)

# %% tags=["hide-input"]
falls, gain = shares.falls, shares.gain
text = f"{falls[8, 'greedy']:.2f}; {falls[512, 'greedy']:.2f}"
as_said = falls[8, "greedy"] > 0.5 and falls[512, "greedy"] <= 0.05
claim = "greedy, share of runs where a value falls: 8 queries > 1/2; 512 <= 1/20"
claims.check(claim, text, as_said)
acted = data[(data.improvement == "cautious") & data.switches]  # others keep any promise
claim = "cautious, all 60 lower ends hold: at least 95% of runs; a value falls: at most 5%"
text = f"{np.mean(held):.1%}; {acted.falls.sum()} of {len(acted)}"
kept = np.mean(held) >= 0.95 and acted.falls.sum() <= 0.05 * len(acted)
enough = len(acted) >= 20  # one of 20 is a rate of 5%
claims.check(claim, text, kept, enough=enough)
share = {size: gain[size, "cautious"] / gain[size, "greedy"] for size in (128, 512, 1024)}
claim = "gain, cautious / greedy: 128 queries < 1/4; 512 > 1/2; 1,024 > 0.9"
text = "; ".join(f"{x:.2f}" for x in share.values())
claims.check(claim, text, share[128] < 1 / 4 and share[512] > 1 / 2 and share[1024] > 0.9)

# %%
fig, ax = plt.subplots(figsize=(4.2, 2.8))
sns.lineplot(data, x="queries", y="gain", hue="improvement", errorbar=("pi", 90), marker="o", ax=ax)
ax.set(xscale="log", xlabel="queries of each state", ylabel="gain, mean over states")
ax.set_xticks(queries, [f"{size:,}" for size in queries])
ax.minorticks_off()
counts = data.groupby(["improvement", "queries"])[["falls", "switches"]].sum()
for (name, size), row in counts.iterrows():
    height, color = (1.1, "C0") if name == "greedy" else (1.02, "C1")
    look = {"transform": ax.get_xaxis_transform(), "ha": "center", "fontsize": 7}
    shown = f"{row.falls}/{row.switches}" if row.switches else "\u2013"
    ax.text(size, height, shown, color=color, **look)
ax.set_title("runs in which a value falls / that switch a state", pad=23, fontsize=8)
ax.margins(x=0.1)
ax.axhline(0.0, color="0.5", lw=0.8, zorder=0)
chapter.save(fig, "fig_cautious", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.3.** What one round gains in true value, against the number of queries on which it is based; bands hold 90% of the runs. Counts above: in how many runs the value of some state fell, out of those in which a state was switched.
#
# <!-- alt: The gain of greedy improvement starts well below zero and rises with the number of queries; that of cautious improvement stays at zero for longer, and has caught up with 1,024 queries. Counts above: greedy improvement makes a value fall in most runs with few queries and in none with many; cautious improvement switches a state in few runs until there are hundreds of queries. -->

# %% [markdown]
# With 8 queries greedy improvement lowers a value in most runs: leave a good policy alone. With 128 it rarely does, and caution costs about nine tenths of the gain; with 512, less than half of it; with 1,024, nothing.
#
# ## What to take away
#
# - Shared shocks often save runs. Here the variances promise a factor of 2.8: asymptotic intervals save most of it, the default little. On the ice sharing can cost runs.
# - With a confidence sequence you may look as often as you like. The usual interval is for one look.
# - An asymptotic sequence knows nothing about events that it has never seen. Declare the range of your rewards.
# - With few queries leave a good policy alone. With more, caution has a price, which vanishes in the end.
#
# ## Exercises
#
# **Exercise 1.** Let every unit that is left over cost 1.5 a night. Which order is best now?
#
# <details><summary>Hint</summary>
#
# `inventory` has an argument for this cost. You need no new simulator: a `JMDP` answers queries.
#
# </details>
#
# <details><summary>Solution</summary>
#
# The argument is `holding_cost`. A third unit, which may stay unsold
# for some nights, no longer pays, and the best order falls to two.
#
# </details>

# %% tags=["hide-cell"]
costly = jl.inventory(**depot | {"holding_cost": 1.5})
best = jl.simulators.compare_actions(costly, **question, method="asymptotic").best
assert best == 2 == jl.jipe2(costly, up_to_six).moments.mean[0].argmax()

# %% [markdown]
# **Exercise 2.** In `two_queues`, the first queue has the faster server. Start from the policy that always joins it, and improve until no state switches. Where
# does the best policy send a job to a full queue although the other one has room, and why?
#
# <details><summary>Hint</summary>
#
# Call `cautious_improvement` with `level=0` in a loop, on its own result. State $6i + j$ has $i$ and $j$ jobs.
#
# </details>
#
# <details><summary>Solution</summary>
#
# Where one queue is full and the other one holds one to four jobs, whichever of the two is full. The job is lost, which costs 5 once. Had it
# been admitted, it would have cost 1 in every step until it was served, and would have kept others waiting.
#
# </details>

# %% tags=["hide-cell"]
queues = jl.two_queues()
improved = jl.laws.cautious_improvement(queues, np.zeros(36, int), level=0.0)
while improved.switched.any():
    improved = jl.laws.cautious_improvement(queues, improved.policy, level=0.0)
joins = improved.policy.argmax(1).reshape(6, 6)  # [jobs in the first, jobs in the second]
assert np.flatnonzero(joins[:5, 5] == 1).tolist() == [1, 2, 3, 4]
assert np.flatnonzero(joins[5, :5] == 0).tolist() == [1, 2, 3, 4]

# %% [markdown]
# **What to read next.** Chapter 11 simulates the depot by the million, and compares whole policies.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
