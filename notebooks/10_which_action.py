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
# `compare_actions` plays the candidates side by side, under the same shocks, and stops as soon as it
# knows which one is best. This chapter follows one decision from the simulator to its price in queries.

# %% tags=["parameters"]
seed = 0
num_seeds = 100
longest = 25000
num_runs = 600
num_repeats = 2000
game_budget = 1450
out_dir = ""

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import jmdp_lib as jl
from jmdp_lib import figures
from jmdp_lib.atari import CoupledAtari
from jmdp_lib.statistics import asymptotic_sequence, bernstein_sequence

figures.style()
claims = figures.Claims()

# %% [markdown]
# ## 10.1 The simulator
#
# A depot holds up to eight units. Each morning it orders up to three, at 1.5 apiece, and then sells what
# customers want, at 3 apiece; what is left over costs 0.1 a night. Demand is drawn **before** the orders are
# looked at, so all orders of one query face the same customers. That line is the whole coupling.


# %%
class Depot:
    num_states, num_actions, gamma = 9, 4, 0.8

    def query(self, state, actions, rng):
        demand = rng.poisson(2)
        stock = [min(state + order, 8) for order in actions]
        sold = [min(units, demand) for units in stock]
        left = [have - gone for have, gone in zip(stock, sold, strict=True)]
        earned = zip(sold, actions, left, strict=True)
        return [3.0 * x - 1.5 * order - 0.1 * rest for x, order, rest in earned], left


# %% [markdown]
# From tomorrow on the depot will order up to four units, as it always did. Today it is empty: should it order
# none, one, two or three?
#
# ## 10.2 One call
#
# For every two actions the call keeps an interval for the mean gap $E[Z(s, a) - Z(s, b)]$. All intervals hold
# at all times with probability $1 - \alpha$, so it may look after every run. An action that another
# one beats is not played any further.

# %%
order_up_to_four = np.clip(4 - np.arange(9), 0, 3)
asked = {"state": 0, "actions": [0, 1, 2, 3], "policy": order_up_to_four, "seed": seed}
decision = jl.compare_actions(Depot(), **asked)
decision

# %% [markdown]
# We know this depot's demand, so we can write its tables down and check the answer. You could not, and
# need not.


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
inside = np.all((low <= exact.gap_mean[0]) & (exact.gap_mean[0] <= high))
claims.check("all six intervals contain the exact mean gap", inside, inside)
within = decision.num_queries < 100_000
claims.check("queries that it took", f"{decision.num_queries:,}", within)

# %% [markdown]
# **A margin.** Half a coin in the long run may not be worth more queries. With `margin=0.5`, actions that
# differ by less are *equivalent*, and saying so is a decision as well.

# %%
relaxed = jl.compare_actions(Depot(), **asked, margin=0.5)
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
# The gap has variance $\mathrm{Var}\,G$ under shared demand, and $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$ from
# two simulations that know nothing of each other. Their ratio says how many times as many runs independent
# simulation needs; `saving` estimates it on the way, over all pairs of actions.

# %%
pairs = np.triu_indices(4, 1)
apart = np.add.outer(exact.variance[0], exact.variance[0])[pairs]
ratio = apart.sum() / exact.gap_variance[0][pairs].sum()
close = abs(decision.saving / ratio - 1.0) < 0.4
claims.check("saving, exact and estimated", f"{ratio:.1f}, {decision.saving:.1f}", close)

# %% [markdown]
# To see it happen, play orders 3 and 2 many times over. In one case the two returns of a run belong
# together. In the other, each comes from a run of its own.

# %%
shape = (longest, num_seeds)
returns = jl.simulate_pairs(tables, order_up_to_four, 0, (3, 2), longest * num_seeds, seed)
gaps = {
    "shared demand": returns[:, 0] - returns[:, 1],
    "own demand": returns[:, 0] - np.roll(returns[:, 1], 1),
}
known = {name: asymptotic_sequence(x.reshape(shape), 0.05, 128)[0] > 0 for name, x in gaps.items()}
runs = {name: np.where(x.any(0), x.argmax(0) + 1, longest) for name, x in known.items()}
ratio = (exact.variance[0, 3] + exact.variance[0, 2]) / exact.gap_variance[0, 3, 2]
median = {name: np.median(each) for name, each in runs.items()}
times = median["own demand"] / median["shared demand"]
as_said = abs(times / ratio - 1.0) < 0.3
claims.check("runs, own demand / shared; ratio of variances", f"{times:.1f}; {ratio:.1f}", as_said)

# %%
fig, (left, right) = plt.subplots(1, 2, width_ratios=[3, 2])
decision.plot(left)
left.set(ylim=(-2, 5), title="four orders, one decision")
for (name, each), line in zip(runs.items(), ("-", "--"), strict=True):
    right.plot(np.sort(each), np.linspace(0, 1, each.size), line, label=name)
right.set(xlabel="runs until it is known", ylabel="share decided", title="order 3 against order 2")
right.legend()
figures.save(fig, "fig_decision", runs, out_dir)
plt.show()

# %% [markdown]
# Left: intervals for the mean gap between the best order and each of the others, against the number of
# queries. A band stops shrinking when its order is beaten, by whichever other. Right: how many runs it takes to
# decide between two orders, over many repetitions.
#
# ## 10.4 Looking all the time, and still honest
#
# The usual 95% interval is for one look. Those who look after every run, and stop when it excludes zero, will
# sooner or later be wrong. In the 5x5 gridworld two actions of the middle cell have exactly the same mean; we
# play pairs of them many times over and count how often an interval has excluded the truth by then.

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
ends = {
    "asymptotic": asymptotic_sequence(gap, 0.05, 128),
    "reward range known": bernstein_sequence(gap, -20.0, 20.0, 0.05),
}
wrong = {name: (low > 0.0) | (high < 0.0) for name, (low, high) in ends.items()}
ever = {name: np.logical_or.accumulate(x).mean(1) for name, x in (wrong | {"usual": usual}).items()}
assert abs(equal) < 1e-6
for name in wrong:
    claims.check(f"false decisions, {name}", f"{ever[name][-1]:.3f}", ever[name][-1] <= 0.05)
claims.check(
    "false decisions, usual interval", f"{ever['usual'][-1]:.3f}", ever["usual"][-1] > 0.05
)

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
for (name, share), line in zip(ever.items(), ("-", "--", "-."), strict=True):
    ax.plot(share, line, label=name)
ax.axhline(0.05, color="0.5", lw=0.8)
ax.set(xlabel="runs", ylabel="share that was ever wrong", title="looking after every run")
ax.legend()
figures.save(fig, "fig_always_valid", ever, out_dir)
plt.show()

# %% [markdown]
# With `reward_range=(lo, hi)` the guarantee needs no large samples and no assumption about the law. It has a
# price: intervals must provide for rewards that never came.

# %%
pair = {"state": 0, "actions": [2, 1], "policy": order_up_to_four, "seed": seed}
sure = jl.compare_actions(Depot(), **pair, reward_range=(-6.0, 24.0))
price = sure.num_runs / jl.compare_actions(Depot(), **pair).num_runs
claims.check("order 2 against 1, rewards in [-6, 24]: best", sure.best, sure.best == 2)
claims.check("runs, times those of the asymptotic sequence", f"{price:.0f}", price > 1)

# %% [markdown]
# ## 10.5 A game
#
# The same call takes a `CoupledEnv` or an Atari game; then `state` is a snapshot and the policy a function of
# what is seen. In Boxing, three steps before a punch lands: does it matter whether we punch now? Both branches
# face the same sticky draws while they share a state.

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
boxing = jl.compare_actions(
    env, trail[-3], [punch, wait], at_random, gamma=0.5, horizon=6, margin=0.25, budget=game_budget
)
low, high = boxing.intervals[0, 1]
claims.check("Boxing, punch or wait: mean gap", f"[{low:.2f}, {high:.2f}]", low < 0.0 < high)
claims.check(
    "Boxing, verdict within a quarter of a point", boxing.verdict, boxing.verdict == "equivalent"
)

# %% [markdown]
# ## What to take away
#
# - A simulator with one `query` is enough for a decision, and the answer comes with its interval.
# - Shared shocks save queries: independent simulation needs more than twice the runs here.
# - Look as often as you like, with an interval made for it. The usual one is not.
#
# **Exercises.** (1) Let the depot's customers pay 2 instead of 3. Which order is best now, and how many queries
# does it take? (2) Give `compare_actions` a budget of 2,000 queries. What does it say, and is it wrong?

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
