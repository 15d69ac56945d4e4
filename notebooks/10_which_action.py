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
# You have a simulator and a choice to make. Nobody wrote down outcome tables, and every query costs time.
# `compare_actions` simulates the candidates side by side, under the same shocks, and stops as soon as it
# knows which one is best. This chapter follows one decision, from the simulator to the number of queries that it costs.
# In the last section, such decisions change the policy itself.
#
# **What you will learn.** How to ask for a decision, and what its intervals promise; what shared shocks save; why the
# usual confidence interval is valid for one look only; and when it is safe to improve a policy.
#
# **What it needs.** Chapter 0 and confidence intervals. The last section uses the law of a gap (chapter 9). To run it, install the project
# with `pip install -e ".[notebooks]"` in its folder.

# %% tags=["parameters"]
seed = 0
num_seeds = 40  # at least 20
longest = 25000  # at least 15000
num_runs = 600  # at least 300; intervals are looked at from 128 runs on
num_repeats = 2000  # at least 100
num_decisions = 30  # at least 20: one of them is a rate of 5%
game_budget = 10000  # at least 2000; a limit, since the call stops when it has decided
queries = [8, 32, 128, 512]  # each at least 2; the first must be 8, of which the text speaks
num_models = 10  # at least 10
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
from jmdp_lib import figures
from jmdp_lib.atari import CoupledAtari

figures.style()
claims = figures.Claims()

# %% [markdown]
# ## 10.1 The simulator
#
# A depot holds up to eight units. Each morning it orders up to three, at 1.5 each, and then sells what
# customers want, at 3 each; every unit left over costs 0.1 a night. Demand is drawn **before** the orders are
# looked at, so all orders of one query face the same customers. The line that draws the demand is the coupling.
#
# No day earns more than 24, since at most eight units are sold, and none loses more than 6. The depot declares
# this as its `reward_range`. Decisions rely on it; section 10.4 shows what happens without it.


# %%
class Depot:
    num_states, num_actions, gamma = 9, 4, 0.8
    reward_range = (-6.0, 24.0)

    def query(self, state, actions, rng):
        demand = rng.poisson(2)
        stock = [min(state + order, 8) for order in actions]
        sold = [min(units, demand) for units in stock]
        left = [have - gone for have, gone in zip(stock, sold, strict=True)]
        earned = zip(sold, actions, left, strict=True)
        return [3.0 * x - 1.5 * order - 0.1 * rest for x, order, rest in earned], left


# %% [markdown]
# From tomorrow on the depot will order up to four units, as it always has. Today it is empty: should it order
# none, one, two or three?
#
# ## 10.2 One call
#
# For every two actions the call keeps an interval for the mean gap $\mathbb E[Z(s, a) - Z(s, b)]$, and looks at all of them again and again until
# they decide. Here the range of the rewards is known. Then, with probability at least
# $1 - \alpha$, all intervals hold at all sample sizes at once, whatever the law of the rewards, and it does no harm to look often. By default $\alpha = 0.05$. **This promise needs the range.** If nobody knows it, you may ask for an *asymptotic* sequence,
# which promises the same only in the limit of large samples; section 10.4 defines both and shows how the second one can fail. An action that is beaten
# by another one is not simulated any further.

# %%
order_up_to_four = np.clip(4 - np.arange(9), 0, 3)
asked = {"state": 0, "actions": [0, 1, 2, 3], "policy": order_up_to_four, "seed": seed}
decision = jl.simulators.compare_actions(Depot(), **asked)
print(f"{decision.verdict}: order {decision.best}, known after {decision.num_queries:,} queries")
print(decision.method)

# %% [markdown]
# We know the law of this depot's demand, so we can write its tables down and check the answer. With a simulator of your own you need not, and usually cannot.


# %%
def step(stock, order, wanted):
    have = min(stock + order, 8)
    sold = min(have, wanted)
    return 3.0 * sold - 1.5 * order - 0.1 * (have - sold), have - sold


demand = stats.poisson.pmf(np.arange(31), 2)
tables = jl.JMDP.from_step(9, 4, 0.8, demand / demand.sum(), step)
exact = jl.jipe2(tables, order_up_to_four).moments

# %%
right = decision.best == exact.mean[0].argmax()
claims.check("best order at an empty depot, found and exact", decision.best, right)
low, high = np.moveaxis(decision.intervals, -1, 0)
inside = ((low <= exact.gap_mean[0]) & (exact.gap_mean[0] <= high))[np.triu_indices(4, 1)]
text = f"{inside.sum()} of {inside.size}"
claims.check("intervals that contain the exact mean gap", text, inside.all())
decided = decision.verdict == "better"
claims.check("queries until it was decided", f"{decision.num_queries:,}", decided)

# %% [markdown]
# **A margin.** A difference of half a coin may not be worth more queries. With `margin=0.5`, actions whose means
# differ by at most that much are *equivalent*, and to establish this is a decision, too.

# %%
relaxed = jl.simulators.compare_actions(Depot(), **asked, margin=0.5)
gap = abs(exact.gap_mean[0][relaxed.remaining])
claims.check(
    "within half a coin of each other",
    relaxed.remaining,
    relaxed.verdict == "equivalent" and gap <= 0.5,
)
fewer = relaxed.num_queries < decision.num_queries
claims.check("queries for that", f"{relaxed.num_queries:,}", fewer)

# %% [markdown]
# ## 10.3 What the shared demand is worth
#
# Here "shared" means the paper's coupling: branches share the demand of a day while their stocks are equal, as on the first day. (Chapter 11 shares the demand of every day, and saves more.)
# The gap has variance $\mathrm{Var}\,G$ under shared demand, and $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$ from
# two simulations that share nothing. The second divided by the first says how many times as many runs independent
# simulation needs. `decision.variance_reduction` estimates it over all pairs of actions, from the first 64 runs only. So the estimate is rough, and we allow an error of 40%.

# %%
pairs = np.triu_indices(4, 1)
apart = np.add.outer(exact.variance[0], exact.variance[0])[pairs]
ratio = apart.sum() / exact.gap_variance[0][pairs].sum()
estimated = decision.variance_reduction
close = abs(estimated / ratio - 1.0) < 0.4
claims.check("variance reduction, exact and estimated", f"{ratio:.1f}, {estimated:.1f}", close)

# %% [markdown]
# To see this happen, we simulate orders 3 and 2 many times. In one case both returns come from the same run, with shared
# demand. In the other, each comes from a run of its own. In the second case it should take more runs until the better order is known, by the ratio of the variances. That
# holds for intervals whose width comes from the spread of the gaps alone, such as the asymptotic ones of section 10.4; those
# that use a range must also allow for rewards that have not been seen. The width
# of an interval also contains a logarithm of the number of runs, and we know the medians only from a sample, so we allow 30%.


# %%
def asymptotic_ends(gaps, alpha=0.05, first=128):  # the formula stands in section 10.4
    n = np.arange(1, len(gaps) + 1)[:, None]
    mean = gaps.cumsum(0) / n
    spread = np.sqrt(np.maximum((gaps**2).cumsum(0) / n - mean**2, 0.0))
    level = -2.0 * np.log(alpha)
    n_rho2 = n * (level + np.log(level) + 1.0) / 1000
    radius = spread * np.sqrt((n_rho2 + 1) / (n * n_rho2) * (np.log(n_rho2 + 1) + level))
    seen = np.maximum.accumulate(gaps) - np.minimum.accumulate(gaps)
    radius = np.where(n < first, np.inf, radius + 0.2 * seen * level / n)
    return mean - radius, mean + radius


# %%
shape = (longest, num_seeds)
returns = jl.simulate_pairs(tables, order_up_to_four, 0, (3, 2), longest * num_seeds, seed)
gaps = {
    "shared demand": returns[:, 0] - returns[:, 1],
    "own demand": returns[:, 0] - np.roll(returns[:, 1], 1),
}
ends = {name: asymptotic_ends(x.reshape(shape)) for name, x in gaps.items()}
known = {name: low > 0 for name, (low, high) in ends.items()}
runs = {name: np.where(x.any(0), x.argmax(0) + 1, longest) for name, x in known.items()}
ratio = (exact.variance[0, 3] + exact.variance[0, 2]) / exact.gap_variance[0, 3, 2]
median = {name: np.median(each) for name, each in runs.items()}
times = median["own demand"] / median["shared demand"]
as_said = abs(times / ratio - 1.0) < 0.3
claim, value = "runs, own demand / shared; ratio of variances", f"{times:.1f}; {ratio:.1f}"
enough = num_seeds >= 20 and max(median.values()) < longest  # half of them are decided
claims.check(claim, value, as_said, enough=enough)

# %%
fig, (left, right) = plt.subplots(1, 2, width_ratios=[3, 2])
decision.plot(left)
left.set(xscale="log", xlim=(2000, None), ylim=(-2, 5), title="four orders, one decision")
left.set_xticks(
    [2000, 5000, 10_000, 20_000, 50_000], ["2,000", "5,000", "10,000", "20,000", "50,000"]
)
left.minorticks_off()
for (name, each), line in zip(runs.items(), ("-", "--"), strict=True):
    right.plot(np.sort(each), np.linspace(0, 1, each.size), line, label=name)
right.set(xscale="log", xlabel="runs until it is known", ylabel="share decided")
right.set_title("order 3 against order 2")
right.xaxis.set_major_formatter("{x:,.0f}")
right.legend()
figures.save(fig, "fig_decision", runs, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.1.** Left: intervals for the mean gap between the best order and each of the others, against the number
# of queries, on a logarithmic scale. A band ends when its order is beaten by any other. Right: the share of repetitions in
# which order 3 is known to be better than order 2, against the number of runs, on a logarithmic scale, too.
#
# <!-- alt: Left, three bands that narrow as queries are added and leave zero one after the other, after about six, thirteen and fifty thousand queries. Right, two rising curves of the same shape: with shared demand decisions come after less than half the runs that separate demands need. -->

# %% [markdown]
# ## 10.4 Confidence sequences: intervals for many looks
#
# The usual 95% interval is valid for one look. If you look after every run and stop as soon as it excludes zero, you will
# sooner or later stop, even if the mean gap is zero. What you need is a **confidence sequence** for the mean $\mu$ ([Howard et al. (2021)](../book/background.md#ref-howard)): intervals $C_1, C_2, \dots$, one for each sample size, with
#
# $$P\big(\mu \in C_n \text{ for all } n\big) \ge 1 - \alpha .$$
#
# There are two kinds. The first one **bets**, and needs a range: let all gaps $x_t$ lie in $[l, u]$, and put them on the scale of $[0, 1]$, $z_t = (x_t - l)/(u - l)$. A gambler
# wagers that the mean of the $z_t$ exceeds $m$, at odds that would be fair if it were $m$. Whoever stakes a share $b$ of a capital on $z_t$ sees that capital multiplied by $1 + b\,(z_t/m - 1)$. The gambler starts with 1 and divides it into parts with weights $w_j = \tfrac{1}{j(j+1)}$, $j = 1, \dots, 16$. Part $j$ stakes the
# share $b_j = 2^{1-j}$ every time. After $n$ gaps the gambler owns
#
# $$K_n(m) = \sum_j w_j \prod_{t \le n} \Big(1 + b_j\Big(\frac{z_t}{m} - 1\Big)\Big).$$
#
# If the mean is at most $m$, this capital does not grow on average, and [Ville's inequality](../book/background.md#ref-ville) says that it hardly ever becomes large:
#
# $$P\Big(\sup_n K_n(m) \ge \frac1\alpha\Big) \le \alpha .$$
#
# So the largest $m$ with $K_n(m) \ge 1/\alpha$ is a lower end that holds at all
# $n$ at once, whatever the law ([Waudby-Smith and Ramdas (2024)](../book/background.md#ref-betting)). A second gambler wagers that the mean is below $m$, and each of the two has $\alpha/2$. With $\alpha = 0.05$, a capital of 40 decides.
#
# The second kind is **asymptotic**, a wider interval of the usual kind ([Waudby-Smith et al. (2024)](../book/background.md#ref-asymptotic)):
#
# $$\bar x_n \pm \hat\sigma_n \sqrt{\frac{n\rho^2 + 1}{n^2\rho^2}\, \log\frac{n\rho^2 + 1}{\alpha^2}} ,$$
#
# with a constant $\rho$ that makes it tightest near $n = 1000$. We add a term of order $1/n$ for skewed laws. This sequence needs no range, and it promises less: if the first look is at $n_0$, then in the limit $n_0 \to \infty$ the intervals hold at all $n \ge n_0$ with probability at least $1 - \alpha$.
# At any given $n_0$, here 128, nothing is promised. With several pairs of actions, `compare_actions` divides $\alpha$ by their number.
#
# In the 5x5 gridworld two actions of the middle cell have exactly the same mean. We simulate them in pairs
# and count in how many repetitions an interval has ever excluded the true mean gap, zero. Rewards are in $[0, 1]$ and $\gamma = 0.95$, so gaps are in $[-20, 20]$.

# %%
grid = jl.windy_gridworld(5)
equal = jl.jipe2(grid, jl.goal_policy(5)).moments.gap_mean[12, 0, 1]
played = jl.simulate_pairs(grid, jl.goal_policy(5), 12, (0, 1), num_runs * num_repeats, seed)
gap = (played[:, 0] - played[:, 1]).reshape(num_runs, num_repeats)
count = np.arange(1, num_runs + 1)[:, None]
mean = gap.cumsum(0) / count
error = np.sqrt(np.maximum((gap**2).cumsum(0) / count - mean**2, 0.0) / count)
usual = np.where(count >= 128, np.abs(mean) > stats.norm.ppf(0.975) * error, False)


# %%
def log_capital(gap):
    """log K_n(m) after each gap in [-20, 20] and m = 1/2, a mean gap of zero."""
    total = -np.inf
    for j in range(1, 17):
        stakes = np.log1p(2.0 ** (1 - j) * gap / 20)  # z / m - 1 is gap / 20
        total = np.logaddexp(total, stakes.cumsum(0) - np.log(j * (j + 1)))
    return total


# %%
low, high = asymptotic_ends(gap)
won = [log_capital(side * gap) for side in (1.0, -1.0)]
known = np.maximum(*won) >= np.log(2.0 / 0.05)
wrong = {"asymptotic": (low > 0.0) | (high < 0.0), "reward range known": known}
ever = {name: np.logical_or.accumulate(x).mean(1) for name, x in (wrong | {"usual": usual}).items()}
assert abs(equal) < 1e-6
enough, rate = num_runs >= 300 and num_repeats >= 100, {k: x[-1] for k, x in ever.items()}
for name in wrong:
    claim = f"false decisions, {name}"
    claims.check(claim, f"{rate[name]:.3f}", rate[name] <= 0.05, enough=enough)
claim, usual_rate = "false decisions, usual interval", rate["usual"]
claims.check(claim, f"{usual_rate:.3f}", usual_rate > 0.05, enough=enough)

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
for (name, share), line in zip(ever.items(), ("-", "--", "-."), strict=True):
    ax.plot(share, line, label=name)
ax.axhline(0.05, color="0.5", lw=0.8)
ax.set(xlabel="runs", ylabel="share that was ever wrong", title="looking after every run")
ax.legend()
figures.save(fig, "fig_always_valid", ever, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.2.** The share of repetitions in which an interval has ever excluded the true mean gap of zero, against
# the number of runs. The grey line is the level of 5%. We look at the usual and the asymptotic interval from 128 runs on, and at the one with a known reward range from the first.
#
# <!-- alt: Three curves over the number of runs. The usual interval rises steeply from 128 runs on, far above the grey line at 0.05; both confidence sequences stay close to zero. -->

# %% [markdown]
# So far we have tested confidence sequences on their own. Does `compare_actions` as a whole keep its promise, with its repeated looks
# and its stopping rule? We call it many times on two models whose actions have equal means, so that every "better" is
# a false decision. In the first, a fair coin pays either one action or the other. In the second, one
# action always pays 1, and the other pays 100 once in a hundred draws. A JMDP knows the range of its rewards; the
# asymptotic sequence is used only if you ask for it by name.

# %%
coin = jl.example_1(gamma=0.0)
rare = jl.JMDP([[0.99, 0.01]], [[[1.0, 0.0], [1.0, 100.0]]], np.zeros((1, 2, 2), int), 0.0)
cases = {"coin": (coin, "betting"), "coin, asymptotic": (coin, "asymptotic")}
cases |= {"rare": (rare, "betting"), "rare, asymptotic": (rare, "asymptotic")}
false = {}
for name, (jm, method) in cases.items():
    limits = {"budget": 200, "method": method}
    calls = (
        jl.simulators.compare_actions(jm, [0], [0, 1], 0, seed=k, **limits)
        for k in range(num_decisions)
    )
    false[name] = sum(call.verdict == "better" for call in calls)

# %%
enough = num_decisions >= 20
for name in ("coin", "rare", "coin, asymptotic"):
    claim, text = f"{name}: false decisions, at most 5%", f"{false[name]} of {num_decisions}"
    claims.check(claim, text, false[name] <= 0.05 * num_decisions, enough=enough)
text = f"{false['rare, asymptotic']} of {num_decisions}"
broken = false["rare, asymptotic"] > 0.05 * num_decisions
claims.check("rare, asymptotic: false decisions, above 5%", text, broken, enough=enough)
method = jl.simulators.compare_actions(rare, [0], [0, 1], 0, budget=200, method="asymptotic").method
claims.check("and the result says why", method, "rarer than" in method)

# %% [markdown]
# The asymptotic sequence makes too many false decisions in the second model. A sample says nothing about events that it does not contain. An event of
# probability $p$ stays unseen in $n$ runs with probability $(1 - p)^n$. For $p = 0.01$ and the first look at
# $n = 128$ this is 28%, and then the asymptotic interval excludes the truth. The result names the probability below
# which events may have escaped it. It can be worse: when an action lost 100 once in a thousand draws and gained a
# cent in all others, the asymptotic sequence called it *better* in 249 of 300 calls (`benchmarks/decisions.md`).
#
# So the range is the default. An environment, or a simulator that declares no range, is rejected unless you
# pass `reward_range=(lo, hi)` or ask for `method="asymptotic"`. The guarantee has a price: intervals must allow for rewards that were never seen, so it takes more runs to decide.

# %%
pair = {"state": 0, "actions": [2, 1], "policy": order_up_to_four, "seed": seed}
sure = jl.simulators.compare_actions(Depot(), **pair)
price = sure.num_runs / jl.simulators.compare_actions(Depot(), **pair, method="asymptotic").num_runs
claims.check("order 2 against 1, rewards in [-6, 24]: best", sure.best, sure.best == 2)
claims.check("runs, times those of the asymptotic sequence", f"{price:.1f}", price > 1)

# %% [markdown]
# ## 10.5 A game, and a pole
#
# The same call takes a `CoupledEnv` or an Atari game; then `state` is a snapshot and the policy is a function of
# the observation. In Boxing, we go back to three steps before a punch lands. Does it matter there whether we punch or wait, if all later actions are random? We look six steps ahead, with $\gamma = 0.5$, and a quarter of a point is our margin. While both branches
# share a state, they share the draw that decides whether the emulator repeats the last action (*sticky* actions). We do not know how much one step of Boxing can pay, so we ask for the asymptotic sequence. The budget is
# only a limit: the call stops as soon as it has decided.

# %%
env = CoupledAtari("Boxing", seed=seed)
env.reset(seed=seed)
rng = np.random.default_rng(seed)
trail, reward = [], 0.0
while reward <= 0.0:
    trail.append(env.snapshot())
    _, reward, *_ = env.step(rng.integers(env.num_actions))


def at_random(seen):
    return np.full(env.num_actions, 1.0 / env.num_actions)


# %%
punch, wait = env.action_names.index("FIRE"), env.action_names.index("NOOP")
limits = {"margin": 0.25, "budget": game_budget, "method": "asymptotic"}
boxing = jl.simulators.compare_actions(
    env, at_random, [punch, wait], trail[-3], gamma=0.5, horizon=6, **limits
)
low, high = boxing.intervals[0, 1]
claims.check("Boxing, punch or wait: mean gap", f"[{low:.2f}, {high:.2f}]", low < 0.0 < high)
text = f"{boxing.verdict}, {boxing.num_queries:,} queries"
claim, enough = "Boxing, verdict within a quarter of a point", game_budget >= 2000
claims.check(claim, text, boxing.verdict == "equivalent", enough=enough)

# %% [markdown]
# By the asymptotic sequence the interval contains zero and lies within the margin, so the verdict is *equivalent*.
#
# `CoupledEnv` wraps other Gymnasium environments. Six pushes to the left have made the pole of CartPole lean to the right. Is it
# better to push right now, if a simple and somewhat shaky rule goes on from there? Every step pays one as long as the pole stays up, so the range of the rewards is known.

# %%
pole = jl.simulators.CoupledEnv(gymnasium.make("CartPole-v1"), seed=seed)
pole.reset(seed=seed)
for _ in range(6):
    pole.step(0)


def balance(seen):
    return [0.1, 0.9] if seen[2] + seen[3] > 0 else [0.9, 0.1]


# %%
push = jl.simulators.compare_actions(
    pole, balance, [1, 0], gamma=0.9, reward_range=(0.0, 1.0), budget=game_budget
)
text = f"{push.verdict}, {push.num_queries:,} queries"
claims.check("CartPole leans to the right, push right", text, push.best == 1)

# %% [markdown]
# ## 10.6 A first step into control
#
# So far the policy was given. Now decisions change it. Let $V$ be the policy's value, and $Q(s, a)$ that of
# taking $a$ once and following the policy from then on. The **policy improvement theorem** says: choose any
# states, and at each of them an action with $Q(s, a) \ge V(s)$. The policy that takes these actions there, and the
# old ones elsewhere, has a value that is nowhere below $V$. *Greedy* improvement switches all states that it can.
# `cautious_improvement` also asks that $P(Z(s, a) > Z(s, \pi(s)))$ is at least `level`, with both returns under the same
# shocks, as certified by `gap_law`. The theorem covers both.
#
# Our first world is a depot with a **lead time**: what it orders today arrives tomorrow, so its state is the stock
# and what is on order. `inventory` has its tables, and `inventory_simulator` simulates the same world without
# tables. (`two_queues` and `two_queues_simulator` are such a pair, too.) With the same seed, tables and simulator give the
# same draws. The old policy of the depot keeps too little stock. Our second world is the gridworld; its old policy goes down first
# and takes the long way round.

# %%
demand = [0.15, 0.25, 0.25, 0.2, 0.1, 0.05]
world = {"capacity": 6, "max_order": 3, "gamma": 0.9, "lead_time": 1, "demand_probs": demand}
depot, plain = jl.inventory(**world), jl.inventory_simulator(**world)
for tables, simulated in ((depot, plain), (jl.two_queues(), jl.two_queues_simulator())):
    one, two = (jl.JMDP.from_simulator(env, 5, seed) for env in (tables, simulated))
    assert np.array_equal(one.rewards, two.rewards)
    assert np.array_equal(one.probs, two.probs)

# %%
stock, on_order = np.divmod(np.arange(depot.num_states), 4)
short = np.eye(4)[np.clip(2 - stock - on_order, 0, 3)]
down_first = np.where(np.arange(25) < 20, 2, 1)
down_first[4::5] = 0
worlds = {"depot": (depot, short), "gridworld": (grid, np.eye(4)[down_first])}

# %% [markdown]
# We improve until no state switches any more. Level 0 is greedy improvement. For each world and level, the table has the number of states that the first round switches, and what this
# gains in value (the mean over all states); then the number of rounds, and the gain of all of them.

# %%
rounds, levels = {}, (0.0, 0.6, 0.7, 0.8)
for name, level in product(worlds, levels):
    jm, policy = worlds[name]
    steps = rounds[name, level] = [jl.laws.cautious_improvement(jm, policy, level, width=0.05)]
    while steps[-1].switched.any():
        steps.append(jl.laws.cautious_improvement(jm, steps[-1].policy, level, width=0.05))

# %%
rows, least = [], 0.0
for steps in rounds.values():
    values = np.array([step.value for step in steps])
    gains = (values - values[0]).mean(1)
    rows.append((steps[0].switched.sum(), gains[1], len(steps) - 1, gains[-1]))
    least = min(least, np.diff(values, axis=0).min())
index = pd.MultiIndex.from_tuples(rounds)
table = pd.DataFrame(rows, index, ["switched", "first gain", "rounds", "total gain"])
text = f"{round(least, 6) + 0.0:.6f}"  # no minus before a zero
claims.check("both worlds, all levels, every round: largest fall of a value", text, least > -1e-8)
table.round(2)

# %%
for name in worlds:
    first = table.loc[name, "switched"].tolist()
    claims.check(f"{name}: states switched at first", first, first == sorted(first, reverse=True))
total = table["total gain"]
for name in worlds:
    best, rest = total[name, 0.0], total[name, 0.8]
    claim = f"{name}, gain of all rounds: greedy, level 0.8"
    claims.check(claim, f"{best:.2f}, {rest:.2f}", rest < best)
greedy, cautious = table["first gain"]["depot", 0.0], table["first gain"]["depot", 0.7]
claim = "depot, gain of the first round: greedy, level 0.7"
claims.check(claim, f"{greedy:.2f}, {cautious:.2f}", cautious > greedy)

# %% [markdown]
# **Proved**: no value falls, and a higher level never switches more states in the first round. Greedy improvement ends at the best
# policy; cautious improvement may stop before it. **Only observed**: at the depot, the first round gains *more* at level 0.7
# than at level 0. Each $Q(s, a)$ assumes that the old policy continues, which is no longer true if many
# states switch at once. Nothing guarantees that this happens elsewhere.
#
# How does a whole new policy do against the old one under the same demand? We simulate both, from an empty
# depot, with one stream of demands. Taking a new action once, and following the old policy afterwards, is better with probability at least `level` by construction. A policy
# of many switches has no such guarantee, so what we see here is only observed, too.
# The table has the mean and the standard deviation of the returns. Both new policies keep more stock than the old one: they earn more, and what they
# earn varies more.

# %%
noise = np.random.default_rng(seed).choice(6, size=(80, 4000), p=demand)


def simulate(policy):
    state, total = np.zeros(4000, int), 0.0
    for t, customers in enumerate(noise):
        row, action = depot.starts[state] + customers, policy.argmax(1)[state]
        total = total + 0.9**t * depot.rewards[row, action]
        state = depot.next_states[row, action]
    return total


old = simulate(short)
new = {level: simulate(rounds["depot", level][0].policy) for level in (0.0, 0.7)}
against = {level: x - old for level, x in new.items()}
worse = [float((x < 0).mean().round(3)) for x in against.values()]
claims.check("new loses to old under one demand: greedy, 0.7", worse, max(worse) < 0.5)
returns = {"old": old, "greedy": new[0.0], "level 0.7": new[0.7]}
pd.DataFrame({n: {"mean": x.mean(), "s.d.": x.std()} for n, x in returns.items()}).T.round(2)

# %% [markdown]
# **With estimated gaps.** Now the tables are unknown. The depot orders up to five, which is nearly right, and we query
# the simulator a few times at each state. Greedy improvement takes the counts at face value. Cautious improvement switches
# only where the confidence interval of $Q(s, a) - V(s)$ lies above zero. The intervals hold for all states and actions at once, so
# with probability $1 - \alpha$ no value falls, if there are enough queries for normal intervals. Greedy improvement guarantees nothing; we expect
# that with 8 queries it makes some value fall more often than not. A method that never switches anything keeps every promise, so we count only runs in which
# cautious improvement switched a state, and ask for 20 of them: one of 20 is a rate of 5%. The few models of this page do not give as many; those of the paper profile do.

# %%
usual = np.eye(4)[np.clip(5 - stock - on_order, 0, 3)]
before, rows = jl.laws.cautious_improvement(depot, usual, 0.0).value, []
for size, k in product(queries, range(num_models)):
    counted = jl.JMDP.from_simulator(plain, size, seed=[seed, k])
    found = jl.laws.cautious_improvement(counted, usual, level=0.0)
    choices = {"greedy": np.eye(4)[found.advantage.argmax(1)], "cautious": found.policy}
    for name, policy in choices.items():
        gain = jl.laws.cautious_improvement(depot, policy, 0.0).value - before
        rows.append((name, size, gain.mean(), gain.min() < -1e-8, (policy != usual).any()))
data = pd.DataFrame(rows, columns=["improvement", "queries", "gain", "falls", "switches"])

# %%
falls = data.groupby(["improvement", "queries"]).falls.mean()
few = falls["greedy"][queries[0]]
enough = num_models >= 10
claim, value = "greedy, 8 queries a state: a value falls", f"{few:.2f} of runs"
claims.check(claim, value, few > 0.5, enough=enough)
acted = data[(data.improvement == "cautious") & data.switches]
claim, value = (
    "cautious: a value falls, of runs that switch",
    f"{acted.falls.sum()} of {len(acted)}",
)
kept = acted.falls.sum() <= 0.05 * len(acted)
claims.check(claim, value, kept, enough=len(acted) >= 20)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.6))
for name, gap in zip(("greedy", "cautious, 0.7"), against.values(), strict=True):
    left.plot(np.sort(gap), np.linspace(0, 1, gap.size), label=name)
left.set(xlabel="new minus old return, same demand", ylabel="share of scenarios", xlim=(-12, 32))
sns.lineplot(
    data, x="queries", y="gain", hue="improvement", errorbar=("pi", 90), marker="o", ax=right
)
right.set(xscale="log", xticks=queries, xticklabels=queries, ylabel="gain, mean over states")
counts = data.groupby(["improvement", "queries"])[["falls", "switches"]].sum()
for (name, size), row in counts.iterrows():
    height, color = (1.1, "C0") if name == "greedy" else (1.02, "C1")
    look = {"transform": right.get_xaxis_transform(), "ha": "center", "fontsize": 7}
    right.text(size, height, f"{row.falls}/{row.switches}", color=color, **look)
right.set_title("runs in which a value falls / that switch a state", pad=23, fontsize=8)
right.margins(x=0.1)
left.axvline(0.0, color="0.5", lw=0.8)
right.axhline(0.0, color="0.5", lw=0.8)
left.legend()
figures.save(fig, "fig_cautious", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 10.3.** Left: the distribution of the new return minus the old one at the depot, under the same demand, after one
# round of improvement on known tables. Right: what one round gains in true value, against the number of queries of
# each state that it is based on; bands hold 90% of the runs. Counts above: in how many runs the value of some state fell, out of those in which a state was switched.
#
# <!-- alt: Left, two distribution functions that are almost entirely above zero; the cautious one lies to the right of the greedy one below its upper end. Right, the gain of greedy improvement starts well below zero and rises with the number of queries; that of cautious improvement never falls below zero. Counts above the panel show that greedy improvement makes a value fall in almost all runs with few queries, and that cautious improvement switches a state in few runs until there are hundreds of queries. -->

# %% [markdown]
# Greedy improvement on few queries makes a good policy worse. Cautious improvement changes nothing until it is sure: with few queries it hardly ever switches a state.
# That has its price: once there are hundreds of queries, greedy improvement is seldom wrong and gains more.
#
# ## What to take away
#
# - A simulator with a `query` method is enough for a decision, and the answer comes with its intervals.
# - Shared shocks save queries. With asymptotic intervals, independent simulation needs more than twice as many runs here. The default, which holds at every sample size, saves less (section 11.2).
# - With a confidence sequence you may look as often as you like. The usual interval is for one look.
# - An asymptotic sequence knows nothing about events that it has never seen, and promises nothing at any given sample size. Declare the range of your rewards.
# - Switch an action only where its gain is certain. Elsewhere a switch may make the policy worse.
#
# ## Exercises
#
# **Exercise 1.** Let the depot's customers pay 2 instead of 3. Which order is best now?
#
# <details><summary>Solution</summary>
#
# `inventory_simulator` is the same depot with a price that can be chosen. At the lower price, a third unit, which may stay unsold
# for some days, no longer pays, and the best order falls to two.
#
# </details>

# %% tags=["hide-cell"]
cheap = {"price": 2.0, "holding_cost": 0.1, "lost_sale_cost": 0.0}
cheap |= {"demand_probs": stats.poisson.pmf(np.arange(31), 2) / stats.poisson.cdf(30, 2)}
found = jl.simulators.compare_actions(jl.inventory_simulator(8, 3, 0.8, **cheap), **asked).best
truth = jl.jipe2(jl.inventory(8, 3, 0.8, **cheap), order_up_to_four).moments.mean[0].argmax()
claims.check("exercise 1: best order at a price of 2", found, found == truth)

# %% [markdown]
# **Exercise 2.** Give `compare_actions` a budget of 2,000 queries. What does it say, and is it wrong?
#
# <details><summary>Solution</summary>
#
# It says "undecided", and names the orders that remain. The best one is among them, and the intervals contain
# the exact mean gaps. With too small a budget the answer says less, but it is not wrong.
#
# </details>

# %% tags=["hide-cell"]
hasty = jl.simulators.compare_actions(Depot(), **asked, budget=2_000)
low, high = np.moveaxis(hasty.intervals, -1, 0)
kept = exact.mean[0].argmax() in hasty.remaining
inside = bool(np.all((low <= exact.gap_mean[0]) & (exact.gap_mean[0] <= high)))
text = f"{hasty.verdict}, {hasty.remaining}"
claims.check("exercise 2: verdict, remaining", text, kept and inside)

# %% [markdown]
# **Exercise 3.** In `two_queues`, the first queue has the faster server. Start from the policy that always joins it, and improve until no state switches. Where
# does the best policy send a job to a full queue although the other one has room, and why?
#
# <details><summary>Solution</summary>
#
# Where the second queue is full and the first one holds one to four jobs. The job is lost, which costs 5 once. Had it
# been admitted, it would have cost 1 in every step until it was served, and would have kept others waiting.
#
# </details>

# %% tags=["hide-cell"]
queues = jl.two_queues()
found = jl.laws.cautious_improvement(queues, np.zeros(36, int), level=0.0)
while found.switched.any():
    found = jl.laws.cautious_improvement(queues, found.policy, level=0.0)
joins = found.policy.argmax(1).reshape(6, 6)  # [jobs in the first, jobs in the second]
lost = np.flatnonzero(joins[:5, 5] == 1).tolist()
claims.check("exercise 3: first queue when a job is lost", lost, lost == [1, 2, 3, 4])

# %% [markdown]
# **What to read next.** Chapter 8 learns gaps of all states at once from a simulator. The
# [reference](../book/reference.md) lists all options of `compare_actions` and `cautious_improvement`.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
