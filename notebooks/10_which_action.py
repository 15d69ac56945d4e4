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
# `compare_actions` simulates the candidates side by side, under the same shocks, and stops as soon as it
# knows which one is best.
#
# **What you will learn.** What the intervals of a decision promise; what shared shocks save, with intervals of either kind; and when it is safe to improve a policy.
#
# **What it needs.** Chapter 0 and confidence intervals; section 10.6 also mentions the law of a gap (chapter 9). To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
num_seeds = 40  # at least 20
longest = 12000  # at least 10000
num_runs = 600  # at least 300; intervals are looked at from 128 runs on
num_repeats = 2000  # at least 100
lake_runs = 1000  # at least 1000
num_decisions = 30  # at least 20: one of them is a rate of 5%
queries = [8, 32, 128, 512]  # all but 32 are needed, since the text speaks of them
num_models = 20  # at least 20
out_dir = ""

# %%
from itertools import product

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from scipy import stats

import jmdp_lib as jl
from notebooks.tools import chapter

chapter.style()
claims = chapter.Claims()
assert num_seeds >= 20, f"{num_seeds=}: at least 20"
assert longest >= 10000, f"{longest=}: at least 10000"
assert num_runs >= 300, f"{num_runs=}: at least 300"
assert num_repeats >= 100, f"{num_repeats=}: at least 100"
assert lake_runs >= 1000, f"{lake_runs=}: at least 1000"
assert num_decisions >= 20, f"{num_decisions=}: at least 20"
assert set(queries) >= {8, 128, 512}, f"{queries=}: must contain 8, 128 and 512"
assert num_models >= 20, f"{num_models=}: at least 20"

# %% [markdown]
# ## 10.1 The simulator
#
# The depot of [Use it on your own simulator](../book/own_simulator.md) holds up to eleven units, which it buys at 1.5, four a day at most, and sells at 3. Demand is drawn **before** the orders are
# looked at, so all orders of one query face the same customers. No day earns more than 33, since at most eleven units are sold, and none loses more than 6. The depot declares
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
# For every two actions the call keeps an interval for the mean gap $\mathbb E[Z(s, a) - Z(s, b)]$, and looks at all of them again and again until
# they decide. With a known range of the rewards, all intervals hold at all sample sizes at once with probability at least
# $1 - \alpha$ (0.95 by default), whatever the distribution of the rewards. An action that is beaten
# by another one is not simulated any further.

# %%
up_to_six = np.clip(6 - np.arange(12), 0, 4)
question = {"state": 0, "actions": [0, 1, 2, 3, 4], "policy": up_to_six, "rng": seed}
decision = jl.simulators.compare_actions(Depot(), **question)
print(f"{decision.verdict}: order {decision.best}, known after {decision.num_queries:,} queries")
print(decision.method)

# %% [markdown]
# The distribution of the demand is known, so `inventory` can write its tables down, and we can check the answer. (It refuses what has no room, and does not charge it. The empty depot has room for every order.)

# %%
depot = {"capacity": 11, "max_order": 4, "gamma": 0.9, "holding_cost": 0.0, "lost_sale_cost": 0.0}
tables = jl.inventory(**depot)
exact = jl.jipe2(tables, up_to_six).moments

# %%
right = decision.best == exact.mean[0].argmax()
text = f"{decision.best}, after {decision.num_queries:,} queries"
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
gap = exact.gap_mean[0, 4, 3]
text = f"{gap:.2f}, {relaxed.verdict} after {relaxed.num_queries:,} queries"
alike = relaxed.verdict == "equivalent" and abs(gap) <= 1.0
claims.check("orders 4 and 3: mean gap <= 1, and so decided", text, alike)

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
# At any given $n_0$, here 128, nothing is promised. With several pairs of actions, `compare_actions` divides $\alpha$ by their number (the Bonferroni correction).


# %%
def asymptotic_ends(gaps, alpha=0.05, first=128):
    n = np.arange(1, len(gaps) + 1)[:, None]
    mean = gaps.cumsum(0) / n
    spread = np.sqrt(np.maximum((gaps**2).cumsum(0) / n - mean**2, 0.0))
    level = -2.0 * np.log(alpha)
    n_rho2 = n * (level + np.log(level) + 1.0) / 1000
    radius = spread * np.sqrt((n_rho2 + 1) / (n * n_rho2) * (np.log(n_rho2 + 1) + level))
    seen = np.maximum.accumulate(gaps) - np.minimum.accumulate(gaps)
    radius = np.where(n < first, np.inf, radius + 0.2 * seen * level / n)
    return mean - radius, mean + radius


def log_capital(z):
    """log K_n(1/2) after each z / m - 1 (n, ...): a wager that the mean gap is above zero."""
    total = -np.inf
    for j in range(1, 17):
        owned = np.log1p(2.0 ** (1 - j) * z).cumsum(0) - np.log(j * (j + 1))
        total = np.logaddexp(total, owned)
    return total


# %% [markdown]
# In the 5x5 gridworld two actions of the middle cell have exactly the same mean. We simulate them in pairs
# and count how often an interval has ever excluded the true mean gap, zero. Gaps are in $[-20, 20]$.

# %%
grid = jl.windy_gridworld(5)
assert abs(jl.jipe2(grid, jl.goal_policy(5)).moments.gap_mean[12, 0, 1]) < 1e-6
returns = jl.simulate_pairs(
    grid, jl.goal_policy(5), (0, 1), state=12, num_pairs=num_runs * num_repeats, rng=seed
)
gap = (returns[:, 0] - returns[:, 1]).reshape(num_runs, num_repeats)
count = np.arange(1, num_runs + 1)[:, None]
mean = gap.cumsum(0) / count
error = np.sqrt(np.maximum((gap**2).cumsum(0) / count - mean**2, 0.0) / count)

# %%
low, high = asymptotic_ends(gap)
won = np.maximum(log_capital(gap / 20), log_capital(-gap / 20))
wrong = {"asymptotic": (low > 0.0) | (high < 0.0), "betting": won >= np.log(2.0 / 0.05)}
wrong["usual"] = (count >= 128) & (np.abs(mean) > stats.norm.ppf(0.975) * error)
ever = {name: np.logical_or.accumulate(x).mean(1) for name, x in wrong.items()}
rate = {k: x[-1] for k, x in ever.items()}
text = f"{rate['betting']:.3f}, {rate['asymptotic']:.3f}"
kept = max(rate["betting"], rate["asymptotic"]) <= 0.05
claims.check("false decisions, betting and asymptotic: <= 0.05", text, kept)
usual = rate["usual"]
claims.check("false decisions, usual interval: > 0.05", f"{usual:.3f}", usual > 0.05)

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
for (name, share), line in zip(ever.items(), ("-", "--", "-."), strict=True):
    ax.plot(share, line, label=name)
ax.axhline(0.05, color="0.5", lw=0.8)
ax.set(xlabel="runs", ylabel="share that was ever wrong", title="looking after every run")
ax.legend()
chapter.save(fig, "fig_always_valid", ever, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.1.** The share of repetitions in which an interval has ever excluded the true mean gap of zero; grey, the level of 5%. We look at the betting interval from the first run on, and at the others from 128 on. Note that the usual interval is wrong far too often.
#
# <!-- alt: Three curves over the number of runs. The usual interval rises steeply from 128 runs on, far above the grey line at 0.05; both confidence sequences stay close to zero. -->

# %% [markdown]
# **Rare events.** One
# action always pays 1, the other pays 100 once in a hundred draws. Both have the same mean, so every "better" is
# a false decision.

# %%
rare = jl.JMDP([[0.99, 0.01]], [[[1.0, 0.0], [1.0, 100.0]]], np.zeros((1, 2, 2), int), 0.0)
false = {}
for method in ("betting", "asymptotic"):
    calls = [
        jl.simulators.compare_actions(rare, [0], [0, 1], state=0, rng=k, budget=200, method=method)
        for k in range(num_decisions)
    ]
    false[method] = sum(call.verdict == "better" for call in calls)
print(calls[0].method)

# %%
most = 0.05 * num_decisions
text = f"{false['betting']}, {false['asymptotic']} of {num_decisions}"
as_said = false["betting"] <= most < false["asymptotic"]
claim = "rare events, false decisions: betting <= 5% < asymptotic"
claims.check(claim, text, as_said)

# %% [markdown]
# An event of
# probability 0.01 stays unseen in 128 runs with probability $0.99^{128} = 28\%$, and then the asymptotic interval excludes the truth. The result says how rare events must be to have escaped its runs. So a simulator that declares no range is rejected unless you
# pass `reward_range=(lo, hi)` or ask for `method="asymptotic"`.
#
# ## 10.4 What the shared demand is worth
#
# Under the paper's coupling, branches share the demand of a day while their stocks are equal, as on the first day. The gap then has variance $\mathrm{Var}\,G$; two simulations that share nothing have $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$. An asymptotic interval follows the variance, so its number of runs should be about in this ratio; medians of forty repetitions are rough, and we ask for half of what it promises. The default must also allow for gaps that it has never seen,
# up to $\pm 390$, and saves less. We simulate orders 4 and 3 many times, with shared demand and from separate runs.

# %%
shape = (longest, num_seeds)
returns = jl.simulate_pairs(
    tables, up_to_six, (4, 3), state=0, num_pairs=longest * num_seeds, rng=seed
)
gaps = {
    "shared": returns[:, 0] - returns[:, 1],
    "own": returns[:, 0] - np.roll(returns[:, 1], 1),
}
runs = {}
for (name, x), method in product(gaps.items(), ("betting", "asymptotic")):
    x = x.reshape(shape)
    betting = method == "betting"
    decided = log_capital(x / 390) >= np.log(40) if betting else asymptotic_ends(x)[0] > 0
    runs[name, method] = np.where(decided.any(0), decided.argmax(0) + 1, longest)
median = {key: np.median(each) for key, each in runs.items()}
pd.Series(median).unstack().astype(int)

# %%
ratio = (exact.variance[0, 4] + exact.variance[0, 3]) / exact.gap_variance[0, 4, 3]
saved = {m: median["own", m] / median["shared", m] for m in ("betting", "asymptotic")}
enough = max(median.values()) < longest  # half of them are decided
text = f"{saved['asymptotic']:.1f}; {ratio:.1f}"
as_said = saved["asymptotic"] > ratio / 2
claim = "runs, own / shared demand, asymptotic: > half of the variances' ratio"
claims.check(claim, text, as_said, enough=enough)
text = f"{saved['betting']:.1f}; {saved['asymptotic']:.1f}"
less = saved["betting"] < saved["asymptotic"]
claims.check("runs, own / shared demand: default < asymptotic", text, less, enough=enough)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8))
best = decision.actions.index(decision.best)
looks, bands = decision.history
for order, (low, high) in enumerate(bands[:, best].transpose(1, 2, 0)):
    until = np.flatnonzero(np.diff(high - low)).max(initial=0) + 2  # its last look: then beaten
    if order != best:
        look = {"color": f"C{order}", "where": "post"}
        left.step(looks[:until], low[:until], label=f"order {order}", **look)
        left.step(looks[:until], high[:until], **look)
left.axhline(0.0, color="0.3", lw=0.8, ls=":")
left.legend(loc="upper right")
left.set(xlabel="queries", ylabel=f"mean gap, order {decision.best} minus another")
left.set(title="five orders, one decision", xscale="log", xlim=(6000, None), ylim=(-2, 8))
left.set_xticks([10_000, 20_000, 50_000], ["10,000", "20,000", "50,000"])
left.minorticks_off()
for (name, method), each in runs.items():
    look = {"color": "C0" if method == "betting" else "C1", "ls": "-" if name == "shared" else "--"}
    right.plot(np.sort(each), np.linspace(0, 1, each.size), label=f"{method}, {name}", **look)
right.set(xscale="log", xlim=(30, None), xlabel="runs until it is known", ylabel="share decided")
right.set_title("order 4 or 3, shared or own demand")
right.xaxis.set_major_formatter("{x:,.0f}")
right.xaxis.set_minor_formatter("")
right.legend(loc="upper left")
data = {f"{method}, {name}": each for (name, method), each in runs.items()}
chapter.save(fig, "fig_decision", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.2.** Left: both ends of the intervals for the mean gap between the best order and each of the others. They end when their order is beaten by any other. Right: the share of repetitions in
# which order 4 is known to be better than order 3. Note that shared demand decides much earlier with asymptotic intervals, and a little earlier with betting ones.
#
# <!-- alt: Left, four pairs of lines that approach each other as queries are added, until the lower one is above zero. Right, four rising curves. The two of asymptotic intervals are far apart, shared demand first; the two of betting intervals lie close together. -->

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
text = f"{walk.verdict}, {walk.num_queries:,} queries"
claims.check("FrozenLake, left of the goal: down is better than left", text, walk.best == 1)

# %%
slips = {
    c: jl.simulators.estimate_gaps(
        lake, actions=[1, 0, 2], num_runs=lake_runs, coupling=c, **on_ice
    ).variance[0]
    for c in ("joint", "independent")
}
shared, own = slips["joint"], slips["independent"]
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
# only where the confidence interval of $Q(s, a) - V(s)$ lies above zero. These intervals are normal: in the limit of many queries, all of them hold at once with probability at least 95%, and then no value falls.

# %%
usual = np.eye(5)[np.clip(7 - np.arange(12), 0, 4)]
before = jl.laws.cautious_improvement(tables, usual, level=0.5)
after = jl.laws.cautious_improvement(tables, before.policy, level=0.5)
assert before.switched.any()
assert np.all(after.value >= before.value - 1e-8)  # the theorem

# %%
rows = []
for size, k in product(queries, range(num_models)):
    counted = jl.JMDP.from_simulator(tables, size, rng=np.random.SeedSequence([seed, k]))
    advice = jl.laws.cautious_improvement(counted, usual, level=0.0)
    choices = {"greedy": np.eye(5)[advice.advantage.argmax(1)], "cautious": advice.policy}
    for name, policy in choices.items():
        gained = jl.laws.cautious_improvement(tables, policy, level=0.0).value - before.value
        rows.append((name, size, gained.mean(), gained.min() < -1e-8, (policy != usual).any()))
data = pd.DataFrame(rows, columns=["improvement", "queries", "gain", "falls", "switches"])
shares = data.groupby(["queries", "improvement"]).mean()
shares.unstack().round(3)

# %%
falls, gain = shares.falls, shares.gain
text = f"{falls[8, 'greedy']:.2f}; {falls[512, 'greedy']:.2f}"
as_said = falls[8, "greedy"] > 0.5 and falls[512, "greedy"] <= 0.05
claim = "greedy, share of runs where a value falls: 8 queries > 1/2; 512 <= 1/20"
claims.check(claim, text, as_said)
acted = data[(data.improvement == "cautious") & data.switches]  # others keep any promise
claim = "cautious, runs where a value falls: at most 5% of those that switch"
kept = acted.falls.sum() <= 0.05 * len(acted)
enough = len(acted) >= 20  # one of 20 is a rate of 5%
claims.check(claim, f"{acted.falls.sum()} of {len(acted)}", kept, enough=enough)
share = [gain[size, "cautious"] / gain[size, "greedy"] for size in (128, 512)]
claim = "gain, cautious / greedy: 128 queries < 1/4; 512 > 1/2"
claims.check(claim, f"{share[0]:.2f}; {share[1]:.2f}", share[0] < 1 / 4 and share[1] > 1 / 2)

# %%
fig, ax = plt.subplots(figsize=(4.2, 2.8))
sns.lineplot(data, x="queries", y="gain", hue="improvement", errorbar=("pi", 90), marker="o", ax=ax)
ax.set(xscale="log", xticks=queries, xticklabels=queries, ylabel="gain, mean over states")
ax.set_xlabel("queries of each state")
counts = data.groupby(["improvement", "queries"])[["falls", "switches"]].sum()
for (name, size), row in counts.iterrows():
    height, color = (1.1, "C0") if name == "greedy" else (1.02, "C1")
    look = {"transform": ax.get_xaxis_transform(), "ha": "center", "fontsize": 7}
    ax.text(size, height, f"{row.falls}/{row.switches}", color=color, **look)
ax.set_title("runs in which a value falls / that switch a state", pad=23, fontsize=8)
ax.margins(x=0.1)
ax.axhline(0.0, color="0.5", lw=0.8)
chapter.save(fig, "fig_cautious", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.3.** What one round gains in true value, against the number of queries on which it is based; bands hold 90% of the runs. Counts above: in how many runs the value of some state fell, out of those in which a state was switched. Note that with few queries greedy improvement makes the policy worse, and that with 128 cautious improvement still leaves it alone in most runs.
#
# <!-- alt: The gain of greedy improvement starts well below zero and rises with the number of queries; that of cautious improvement stays at zero for longer, and catches up with hundreds of queries. Counts above: greedy improvement makes a value fall in most runs with few queries and in none with many; cautious improvement switches a state in few runs until there are hundreds of queries. -->

# %% [markdown]
# With 8 queries greedy improvement lowers a value in most runs: leave a good policy alone. With 128 it rarely does, and caution costs about nine tenths of the gain; with 512, less than half of it.
#
# ## What to take away
#
# - Shared shocks often save runs: here a factor of two to three with asymptotic intervals, and 1.1 with the default. On the ice they can cost runs.
# - With a confidence sequence you may look as often as you like. The usual interval is for one look.
# - An asymptotic sequence knows nothing about events that it has never seen. Declare the range of your rewards.
# - With few queries leave a good policy alone. With more, caution has a price: here about nine tenths of the gain with 128 queries, and less than half with 512.
#
# ## Exercises
#
# **Exercise 1.** Let every unit that is left over cost 1.5 a night. Which order is best now?
#
# <details><summary>Solution</summary>
#
# `inventory` has this cost as an argument. A third unit, which may stay unsold
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
