# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 0. Start here: joint MDPs in one sitting
#
# You know Markov decision processes. An MDP says what *each* action does. It does not say what two
# actions would have done **under the same shock**: the same weather, the same customer, the same gust of
# wind. A **joint MDP** says that too.
#
# **What you will learn.** What difference the shared shock makes; which questions the library answers, and how to ask them; how
# futures that meet change a gap; which coupling to choose; and how to use a simulator of your own.
#
# **What it needs.** Markov decision processes, means, variances and some Python.
# [Notation and background](../book/background.md) has a table of symbols, a glossary, and where to learn more.
# To run the notebook, install the project with `pip install -e ".[notebooks]"` in its folder.

# %% tags=["parameters"]
seed = 0
num_pairs = 50000  # at least 1000
num_updates = 30000  # at least 10000, for an error of 10%
out_dir = ""

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import ndtri

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
assert num_updates >= 10000, f"{num_updates=}: at least 10000"

# %% [markdown]
# ## 0.1 Two stalls, one sky
#
# You run a stall at a fair. Every morning you choose: sell **ice cream**, or **something else**. Ice cream
# earns $12 + 3U$. The shock $U$ says how sunny the day gets, and is standard normal. Something else earns 10
# on average, with a standard deviation of 2. What might it be?
#
# - **Lemonade** sells when the sun shines: $10 + 2U$.
# - **Roasted nuts** do not care about the sky: $10 + 2U'$, where their luck $U'$ is standard normal too and independent of $U$.
# - **Umbrellas** sell when it rains: $10 - 2U$.
#
# `from_step` builds a joint MDP out of *one* step function and the probabilities of the shock, here five hundred equally likely skies in
# place of the normal distribution. All actions see the same sky. Nuts are the exception: they use lemonade's step function, but we ask the solver to draw the two outcomes independently.

# %%
sky = ndtri((np.arange(500) + 0.5) / 500)  # normal quantiles, from rainiest to sunniest
odds = np.full(500, 1 / 500)


def fair(likes_sun):
    def step(state, stall, day):  # stall 0 is ice cream; there is one state, 0
        return (12 + 3 * sky[day] if stall == 0 else 10 + 2 * likes_sun * sky[day]), 0

    return jl.JMDP.from_step(num_states=1, num_actions=2, gamma=0.5, noise_probs=odds, step=step)


worlds = {"lemonade": (fair(1), "joint"), "nuts": (fair(1), "independent")}
worlds["umbrellas"] = fair(-1), "joint"

# %% [markdown]
# All three are **the same MDP**: each action, taken alone, earns the same amounts with the same
# probabilities. If you sell one thing a day you can never distinguish the worlds.

# %%
takings = [np.sort(jm.rewards, axis=0) for jm, _ in worlds.values()]
assert all(np.allclose(takings[0], other, rtol=0, atol=1e-10) for other in takings)

# %% [markdown]
# ## 0.2 Equal marginals, different gaps
#
# Today, ice cream or something else? From tomorrow on a coin decides every morning, and
# $\gamma = \tfrac12$. Write $Z(s, a)$ for the discounted return that starts with action $a$, and
#
# $$G = Z(s, a) - Z(s, b)$$
#
# for the **gap**: how much better $a$ was than $b$, under the same skies. The two futures that we compare, one for each action,
# are called **branches**. `jipe2` (joint iterative policy evaluation of order two) computes the first two joint
# moments of the returns, with a certified accuracy (section 1.5), and with them the mean and the variance of every gap; `coupling=` says who shares a draw (section 0.5).
# `simulate_pairs` simulates both branches as a check. Simulated numbers may be off by five Monte Carlo standard errors. The notebook stops if a check fails; the table at its end has the results.

# %%
policy = [[0.5, 0.5]]
solved, simulated = {}, {}
for name, (jm, coupling) in worlds.items():
    solved[name] = jl.jipe2(jm, policy, coupling=coupling).moments
    simulated[name] = jl.simulate_pairs(
        jm, policy, (0, 1), state=0, num_pairs=num_pairs, rng=seed, coupling=coupling
    )


# %% tags=["hide-input"]
def counts(samples, names, limits, bins):
    """Samples (N, d), counted in cells: the middle of each that is not empty, and its share."""
    numbers, edges = np.histogramdd(samples, bins, [limits] * len(names))
    cell = np.nonzero(numbers)
    middle = {n: (e[:-1] + e[1:])[i] / 2 for n, e, i in zip(names, edges, cell, strict=True)}
    return pd.DataFrame({**middle, "share": numbers[cell] / len(samples)})


joint = {n: counts(z, ["Z(a)", "Z(b)"], (10, 36), 80) for n, z in simulated.items()}
gaps = {n: counts(z @ [[1], [-1]], ["G"], (-16, 16), 60) for n, z in simulated.items()}
data = pd.concat([pd.concat(part, names=["world"]) for part in (joint, gaps)]).reset_index(0)

# %%
fig, axes = plt.subplots(2, 3, figsize=(6.75, 4.1), height_ratios=[2.6, 1])
for (above, below), (name, z) in zip(axes.T, simulated.items(), strict=True):
    figures.joint_returns(above, z, (10, 36))
    figures.plot_gap_law(below, z[:, 0] - z[:, 1], 16)
    above.set_title(f"ice cream or {name}")
    above.set_xlabel("return, ice cream first")
    above.set_ylabel(f"return, {name} first")
    below.set_xlabel("gap $G$")
look = {"transform": axes[1, 0].transAxes, "fontsize": 6, "va": "center", "ha": "right"}
axes[1, 0].text(1.0, 0.62, "mean and one\nstandard\ndeviation", **look)
chapter.save(fig, "fig_three_worlds", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 0.1.** Top: the two returns of pairs of branches, under the same skies; a cell is darker the more pairs fall into it, and the grey hills are the distribution of each return alone. Bottom: the gap
# $G$, ice cream minus the alternative; the black dot is its mean, and the bar reaches one standard deviation to either side. Orange marks pairs in which ice cream earned less. Note that the grey hills are the same in all columns, and the orange parts are not.
#
# <!-- alt: Three columns. The clouds of paired returns rise along the diagonal for lemonade, are round for nuts and fall for umbrellas, between the same grey distributions. The distributions of the gap below grow wider from left to right, with the same mean, and their orange part below zero grows with them. -->

# %% [markdown]
# <div data-live="fair"></div>
#
# Orange is regret: skies under which the alternative would have earned more. Against
# lemonade, ice cream is a safe choice. Against umbrellas the *same* choice, with the *same* mean
# advantage, goes wrong more than one time in three.
#
# This world is simple enough for a formula. Let $\sigma_1^2$ be the variance of the *first day's* difference: $(3 - 2)^2$, $3^2 + 2^2$ or $(3 + 2)^2$, times the
# variance of the sky, which is almost 1. The mean of that difference is 2. The next morning both branches are in the same state, and each tosses a coin. With probability one half the coins agree, and nothing differs any more. Otherwise one branch
# sells ice cream and the other does not, as today; each is equally likely to be the one that does. So this adds $\gamma G'$ or $-\gamma G'$ to the gap, where $G'$ is distributed as $G$ and independent of today: its mean is zero and its second moment $\gamma^2\, \mathbb E[G^2]$. Together,
#
# $$\mathbb E[G] = 2, \qquad \mathbb E[G^2] = \sigma_1^2 + 2^2 + \tfrac12 \gamma^2\,\mathbb E[G^2], \qquad \mathrm{Var}\,G = \frac{\sigma_1^2 + 4}{1 - \gamma^2/2} - 4 .$$

# %%
rows = {}
for name, m in solved.items():
    gap = simulated[name][:, 0] - simulated[name][:, 1]
    jm, coupling = worlds[name]
    (law,) = jl.laws.gap_law(jm, policy, gaps=[(0, 0, 1)], width=0.01, points=1, coupling=coupling)
    rows[name] = {
        "correlation": m.correlation[0, 0, 1],
        "gap mean": m.gap_mean[0, 0, 1],
        "gap variance": m.gap_variance[0, 0, 1],
        "the same, simulated": gap.var(),
        "P(G < 0), from": law.prob_worse[0],
        "to": law.prob_worse[1],
        "simulated": np.mean(gap < 0),
        "bound": m.inferiority_bound[0, 0, 1],
    }
table = pd.DataFrame(rows).T
table.T.round(3)

# %% [markdown]
# The first three rows come from `jipe2`. `gap_law` encloses the whole distribution of a gap, its **law**, between two bounds: the rows `P(G < 0), from` and `to` are guaranteed bounds on the probability that ice cream turns out worse (chapter 9). The last row is the paper's bound on
# $P(G \le 0)$, $\sigma_G^2/(\sigma_G^2 + \mu_G^2)$, with the mean $\mu_G > 0$ and the variance $\sigma_G^2$ of the gap. From these two numbers alone, no better bound
# is possible.

# %%
for name, row in table.iterrows():
    spread = (simulated[name] @ [1, -1] - row["gap mean"]) ** 2
    z = (spread.mean() - row["gap variance"]) / (spread.std() / np.sqrt(num_pairs))
    enough = num_pairs >= 1000
    error = 5 * np.sqrt(row["to"] / num_pairs)
    inside = row["P(G < 0), from"] - error <= row["simulated"] <= row["to"] + error <= row["bound"]
    text = f"{row['gap variance']:.2f}; {row['simulated']:.2f}, {row['bound']:.2f}"
    claim = f"{name}: Var G = simulated; P(G < 0), simulated, in its bracket <= bound"
    claims.check(claim, text, abs(z) < 5 and inside, enough=enough)
assert round(table["correlation"]["nuts"], 3) == 0.149  # as the text says
marginals = np.array([(m.mean, m.variance) for m in solved.values()])
assert np.ptp(marginals, axis=0).max() < 1e-6
assert table["P(G < 0), from"]["umbrellas"] > 1 / 3
first_day = np.array([1, 13, 25]) * np.mean(sky**2)
formula = (first_day + 4) / (1 - 0.5**2 / 2) - 4
assert np.allclose(table["gap variance"], formula, rtol=1e-6)
bounds = formula / (formula + 2**2)
assert np.allclose(table["bound"], bounds, rtol=1e-6)

# %% [markdown]
# For nuts the correlation is 0.149, although nothing is shared on the first day: if the coins of the next morning agree, both branches *are* one from then on (section 0.4).
#
# ## 0.3 The windy gridworld, in a few lines
#
# In the paper's gridworld an agent walks from cell to cell. After
# each move a gust may push the agent one more cell to the left: one draw for all four actions. The policy goes right and then
# up. The goal, top right, is absorbing and pays 1 on arrival and in every step after. (The paper leaves rewards, discount and gust probability open: [decision 13](../book/paper.md#decision-13).) Actions 0 to 3 are up, right, down, left. States 0 to 24 are the cells, row by row from the top left. Results are arrays indexed `[state, a, b]`. We ask about *right* against *left* in the middle cell, state 12:
# the mean and variance of the gap, the bound on $P(G \le 0)$, and the probabilities of a loss and of a tie.

# %%
grid, goal = jl.windy_gridworld(size=5, gust_prob=0.2, gamma=0.95), jl.goal_policy(5)
sol = jl.jipe2(grid, goal, tol=1e-8)
m, right, left = sol.moments, 1, 3
answers = {"mean": m.gap_mean, "variance": m.gap_variance, "bound": m.inferiority_bound}
for name, answer in answers.items():
    print(f"{name}: {answer[12, right, left]:.4f}")
(law,) = jl.laws.gap_law(grid, goal, gaps=[(12, right, left)])
for name, (low, high) in {"P(G < 0)": law.prob_worse, "P(G = 0)": law.prob_tie}.items():
    print(f"{name}: {low:.4f} to {high:.4f}")
assert np.allclose([law.prob_worse, law.prob_tie], [[0.0121], [0.0914]], rtol=0, atol=5e-5)

# %% [markdown]
# The bounds agree to four digits. So $P(G \le 0)$ is $0.0121 + 0.0914$, about 0.10; the bound
# on it from mean and variance alone is 0.27.

# %% [markdown]
# Compare *up* with *right*. In the middle cell it does not matter on
# average which comes first: the mean of their gap is zero. Yet its variance is 1.07.

# %%
up = 0
mean, variance = m.gap_mean[12, up, right], m.gap_variance[12, up, right]
print(f"up against right: mean {abs(mean):.4f}, variance {variance:.2f}")
assert abs(mean) < 1e-7
assert variance > 1

# %% [markdown]
# ## 0.4 Branches that meet
#
# Follow both actions side by side. While the two branches are in
# different cells, each has its own gusts. Once they are in the same cell **and** take the same action, they are one branch, with the same gusts and rewards from then on. They have **coalesced**, or **merged**. Here is one such pair, right against up, from the bottom of the grid:


# %%
def follow(jm, actions_of, state, actions, rng, steps=12):
    """The cells that two branches visit, (steps + 1, 2)."""
    cells = [[state, state], jm.query(state, actions, rng)[1].tolist()]  # one gust for both
    for _ in range(steps - 1):  # from now on both do the same in the same cell
        here, there = cells[-1]
        one = jm.query(here, [actions_of[here]], rng)[1][0]
        other = one if here == there else jm.query(there, [actions_of[there]], rng)[1][0]
        cells.append([int(one), int(other)])
    return np.array(cells)


start, actions_of = 22, goal.argmax(1)
paths = follow(grid, actions_of, start, (right, up), np.random.default_rng(31))
met = int(np.argmax((paths[1:] == paths[1:, :1]).all(1))) + 1
print("right first:", paths[:, 0])
print("up first:   ", paths[:, 1])
print("one branch from step", met)

# %% [markdown]
# How often are two branches still separate after $t$ steps? `pair_step` computes the distribution of a pair one step later. What does merging do to the gap? Compare two
# separate runs, whose variances add; branches that merge but draw the first gust separately; and one first gust for both, as in the paper.


# %%
def still_apart(jm, steps=14):
    """Shares of pairs, right and up from the bottom, that have not merged after 0, 1, ... steps."""
    law, apart = np.zeros((25, 4, 25, 4)), [1.0]
    law[start, right, start, up] = 1.0
    for _ in range(steps):
        law = jl.pair_step(jm, goal, law)
        apart.append(1 - np.einsum("sasa->", law))  # the diagonal holds merged pairs
    return apart


def variances_of(jm):
    """Of the gap between right and up from the bottom: separate runs, merging, one first gust."""
    joint = jl.jipe2(jm, goal).moments
    alone = jl.jipe2(jm, goal, coupling="independent").moments
    separate = joint.variance[start, [right, up]].sum()
    return [separate, alone.gap_variance[start, right, up], joint.gap_variance[start, right, up]]


apart, variances = still_apart(grid), variances_of(grid)
draws = np.random.default_rng(seed)
many = [follow(grid, actions_of, start, (right, up), draws, steps=14) for _ in range(500)]
simulated_apart = np.mean([cells[:, 0] != cells[:, 1] for cells in many], axis=0)
simulated_apart[0] = 1.0  # in one cell, but with different actions
columns = {"apart": apart, "simulated": simulated_apart}
columns |= {"right": paths[:, 0], "up": paths[:, 1], "variance": variances}
data = {name: pd.Series(values) for name, values in columns.items()}

# %% tags=["hide-input"]
rows, columns = np.divmod(paths, 5)
looks = {"right first": ("#0072B2", 0), "up first": ("#D55E00", 1)}
aside = {"#0072B2": (0.0, 0.3), "#D55E00": (0.0, -0.28), "black": (0.27, 0.05)}  # of the numbers
arrives = int(np.argmax(paths[met:, 0] == 4)) + 1  # steps after meeting, until the goal


def number_steps(ax, steps, branch, color):
    """At each cell, the times at which a branch is there."""
    cells = [tuple(place) for place in np.stack([columns, rows], -1)[steps, branch].tolist()]
    for x, y in dict.fromkeys(cells):
        times = [str(step) for step, cell in zip(steps, cells, strict=True) if cell == (x, y)]
        right, down = aside[color]
        right = right if x == 4 else -right  # not on the line that leads back
        ax.text(x + right, y + down, ", ".join(times), color=color, ha="center", va="center")


def draw_paths(ax):
    """Both branches in the grid, until they meet and as one thick line after that."""
    ax.hlines(np.arange(6) - 0.5, -0.5, 4.5, color="0.8", lw=0.8)
    ax.vlines(np.arange(6) - 0.5, -0.5, 4.5, color="0.8", lw=0.8)
    for name, (color, k) in looks.items():
        x, y = columns[: met + 1, k], rows[: met + 1, k]
        ax.plot(x, y, "o-", ms=4, lw=1.8, color=color, label=name)
        number_steps(ax, range(met), k, color)
    ax.plot(columns[met:, 0], rows[met:, 0], "o-", ms=4, lw=3.2, color="black", label="merged")
    number_steps(ax, range(met, met + arrives), 0, "black")
    ax.text(4, -0.3, "Goal", ha="center", va="center", weight="bold", fontsize=7)
    ax.set(xlim=(-0.55, 4.55), ylim=(4.55, -0.55), aspect="equal", title="one pair")
    ax.axis("off")


# %%
runs = ["two separate\nruns", "branches\nthat merge", "... and share\nthe first gust"]


def draw_merging(share, bars, apart, variances):
    """The share of pairs that are apart, and the variance of the gap in three kinds of runs."""
    share.plot(apart, "o-", ms=3, color="black", label="exact")
    share.set(xlabel="steps", ylabel="pairs still apart", title="share of pairs")
    share.set(xticks=[0, 5, 10], ylim=(0, 1.03))
    bars.barh(runs, variances, color=["0.75", "#9CC7E4", "#0072B2"])
    bars.bar_label(bars.containers[0], fmt="%.2f", padding=2, fontsize=7)
    bars.set(xlim=(0, 1.4 * max(variances)), title="variance of the gap")
    bars.set(yticks=range(3), ylim=(2.6, -0.6))


# %%
fig, (grid_ax, share, bars) = plt.subplots(1, 3, figsize=(6.75, 2.6), width_ratios=[1.5, 1, 0.8])
draw_paths(grid_ax)
grid_ax.legend(loc="upper left", facecolor="white", framealpha=1, frameon=True, edgecolor="none")
draw_merging(share, bars, apart, variances)
share.plot(simulated_apart, "x", ms=4, color="#D55E00", label="500 simulated")
share.legend()
chapter.save(fig, "fig_merging", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 0.2.** Merging. Left: one pair of branches in the windy gridworld, right first and up first, from the middle of the bottom row; numbers count steps. The first gust holds one back and pushes the other to the left. They meet in step 4 and are one branch from there on (black).
# Middle: the share of pairs that have not yet merged. Right: the variance of the gap in separate runs, if branches merge, and if they also
# share the first gust. Note that merging alone makes the gap less variable.
#
# <!-- alt: Left, a grid with a blue and an orange path, with numbered steps, that start in one cell, separate, meet in the last column and continue as one black path to the goal. Middle, a curve that falls from one to nearly zero after fourteen steps. Right, three bars that get shorter: separate runs, merging, merging and a shared first gust. -->

# %% [markdown]
# After merging, the difference of the two returns no longer changes: whatever luck comes later comes to both. Two separate runs add up all their luck. Merging alone never makes returns negatively correlated, so it never makes $\mathrm{Var}\,G$ larger than $\mathrm{Var}\,Z_a + \mathrm{Var}\,Z_b$. Here it takes about a quarter off, and the shared first gust a quarter of what is left. A coupling can still make the gap *more* variable than that sum, if what is good for one action is bad for the other: for umbrellas $\mathrm{Var}\,G$ is 29.1 and the sum is 18.0.

# %%
assert np.all(np.diff(apart) <= 1e-12)  # merged pairs stay merged
p = np.clip(apart, 0.01, 0.99)
off = (simulated_apart - apart) / np.sqrt(p * (1 - p) / len(many))
text = ", ".join(f"{value:.2f}" for value in variances)
falls = np.all(np.diff(variances) < 0) and np.abs(off).max() < 5
claims.check(
    "Var G: separate runs > merging > one first gust; pairs apart = simulated", text, falls
)
total = solved["umbrellas"].variance[0].sum()
text = f"{table['gap variance']['umbrellas']:.1f}, {total:.1f}"
claims.check(
    "umbrellas: Var G > Var Z_a + Var Z_b", text, table["gap variance"]["umbrellas"] > total
)

# %% [markdown]
# The rarer gusts are, the sooner branches merge, and the more the first gust counts: sharing it lowers the variance by 31% if their probability is 0.05, and by 6% if it is 0.9.

# %%
gust_probs = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9]
windy = {p: jl.windy_gridworld(size=5, gust_prob=p, gamma=0.95) for p in gust_probs}


def merging(gust_prob):
    fig, axes = plt.subplots(1, 2, figsize=(5.2, 2.4), width_ratios=[1.3, 1])
    draw_merging(*axes, still_apart(windy[gust_prob]), variances_of(windy[gust_prob]))
    return fig


chapter.explore(merging, gust_probs, "gust probability")

# %% [markdown] tags=["caption"]
# **Figure 0.3.** As Figure 0.2, for the gust probability of the slider.
#
# <!-- alt: A curve and three bars for a gust probability of 0.05: after six steps nearly all pairs have merged, and the second and the third bar are each about two thirds as long as the one above. -->

# %%
saved = [1 - one / merged for _, merged, one in map(variances_of, windy.values())]
print(f"saved by one first gust: {saved[0]:.0%} to {saved[-1]:.0%}")
assert np.all(np.diff(saved) < 0)
assert np.allclose([saved[0], saved[-1]], [0.31, 0.06], rtol=0, atol=0.005)

# %% [markdown]
# ## 0.5 Who shares a shock? Three couplings
#
# Two branches share the first shock. What do they share later, in *different* states? This is the main modelling choice. The library has three answers:
#
# | `coupling=` | who shares a draw | sensible if |
# |---|---|---|
# | `"joint"`, the paper's | branches in the same state | the shock belongs to the state: cards dealt at this table, an emulator that may repeat the last action |
# | `"common"` | all branches, at every step | the shock is one process for the whole world: demand, weather, arrivals, a market |
# | `"independent"` | nobody, until branches merge | a baseline: separate draws, but what has merged stays merged |
#
# On a large field wind is local, and two cells have separate gusts. In a small yard one gust hits every cell, and `"common"` is the right coupling. The difference is large. Simulation without common random numbers is none of the three: its two runs never merge, and here they vary more than `"independent"`:

# %%
couplings = ("independent", "joint", "common")
by_coupling, errors = [m.variance[12, [right, left]].sum()], []  # two separate runs first
for coupling in couplings:
    variance = jl.jipe2(grid, goal, coupling=coupling).moments.gap_variance[12, right, left]
    options = {"state": 12, "num_pairs": num_pairs, "rng": seed, "coupling": coupling}
    gap = jl.simulate_pairs(grid, goal, (right, left), **options) @ [1, -1]
    spread = (gap - gap.mean()) ** 2
    errors.append((spread.mean() - variance) / spread.std() * np.sqrt(num_pairs))
    by_coupling.append(variance)
text = ", ".join(f"{variance:.2f}" for variance in by_coupling)
order = np.all(np.diff(by_coupling) < 0) and np.abs(errors).max() < 5
claim = f"right against left, Var G = simulated: separate > {' > '.join(couplings)}"
claims.check(claim, text, order)

# %% [markdown]
# **If the coupling is unknown,** `coupling_range` gives the least and the largest gap variance over all ways to couple the actions of one state with the same marginals (with more than two actions, bounds on these). Independence lies inside; it is not a cautious choice. Here is the range for umbrellas, with ten kinds of sky. Then we check by brute force: if all states have two equally likely tables, an extreme coupling keeps or exchanges the outcomes of action 1 in each state.

# %%
kinds = ndtri((np.arange(10) + 0.5) / 10)
few = jl.JMDP.from_step(
    num_states=1,
    num_actions=2,
    gamma=0.5,
    noise_probs=np.full(10, 0.1),
    step=lambda s, a, u: (10 - 2 * kinds[u] if a else 12 + 3 * kinds[u], 0),
)
possible = jl.laws.coupling_range(few, policy)
low, high = (x[0, 0, 1] for x in (possible.gap_variance_low, possible.gap_variance_high))
alone = jl.jipe2(few, policy, coupling="independent").moments.gap_variance[0, 0, 1]
text, inside = f"{low:.1f}, {alone:.1f}, {high:.1f}", low + 1 < alone < high - 1
claims.check("Var G, couplings of one state: least < independent < largest", text, inside)

# %%
draws = np.random.default_rng(6)  # here what couples best today is not best in the long run
rewards = draws.normal(size=(4, 2, 2))  # (S, K, A): of each state, table and action
next_states = draws.integers(4, size=(4, 2, 2))
half, each = np.full((4, 2), 0.5), []  # of each state, probabilities of its tables and its actions
for exchanged in product([False, True], repeat=4):
    r, x = rewards.copy(), next_states.copy()
    for s in np.flatnonzero(exchanged):
        r[s, :, 1], x[s, :, 1] = rewards[s, ::-1, 1], next_states[s, ::-1, 1]
    each.append(jl.jipe2(jl.JMDP(half, r, x, gamma=0.9), half).moments.gap_variance[:, 0, 1])
possible = jl.laws.coupling_range(jl.JMDP(half, rewards, next_states, gamma=0.9), half)

# %%
ends = possible.gap_variance_low[:, 0, 1], possible.gap_variance_high[:, 0, 1]
close = np.allclose(ends, [np.min(each, axis=0), np.max(each, axis=0)], rtol=0, atol=1e-6)
text = f"state 1: {ends[0][1]:.3f} to {ends[1][1]:.3f}"
claims.check("coupling_range = least and largest of all 16 couplings, to 1e-6", text, close)

# %% [markdown]
# **If there is data and no simulator,** ordinary transitions, one action at a time, identify at most the *mean* of every gap. [Which coupling is true of my problem?](../book/which_coupling.md) says what to record instead, how to test it, and what to report if it was not recorded.

# %% [markdown]
# ## 0.6 A simulator of your own
#
# You need not list outcomes and probabilities: any object with `num_states`, `num_actions`, `gamma` and `query(state, actions, rng)` will do.
# `query` returns the rewards and next states of given actions, under **one** shared draw. Draw the shock before you look
# at the actions. Here is the umbrella world again, with a normally distributed sky instead of the five hundred skies above.


# %%
class Fair:
    num_states, num_actions, gamma = 1, 2, 0.5

    def query(self, state, actions, rng):
        sun = rng.normal()  # one sky for all queried actions
        rewards = [12 + 3 * sun if stall == 0 else 10 - 2 * sun for stall in actions]
        return rewards, [0] * len(actions)


learned = jl.incremental_jipe2(
    Fair(), policy, num_updates, step_size=(1.0, 0.9), rng=seed, form="centred"
)

# %% [markdown]
# `incremental_jipe2` (Section 5.2 of the paper) updates one number per query. The centred form, which we use here, learns means and
# covariances, because these are what gaps need (chapter 8). We ask that the gap variance be right within 10%. Lemonade's is a small
# difference of large numbers: it must be right within 15% after three million updates, from tables, whose queries are compiled.

# %%
lemonade = jl.incremental_jipe2(
    worlds["lemonade"][0], policy, 3_000_000, step_size=(1.0, 0.9), rng=seed, form="centred"
)

# %%
ratio = learned.moments.gap_variance[0, 0, 1] / table["gap variance"]["umbrellas"]
small = lemonade.moments.gap_variance[0, 0, 1] / table["gap variance"]["lemonade"]
near, enough = abs(ratio - 1) < 0.1 and abs(small - 1) < 0.15, num_updates >= 10_000
claim = "from queries, learned Var G / exact: umbrellas to 10%, lemonade to 15%"
claims.check(claim, f"{ratio:.3f}, {small:.3f}", near, enough=enough)

# %% [markdown]
# A Gymnasium environment that can be copied becomes
# such a simulator without any change (`jl.simulators.CoupledEnv`), and so does an Atari game (`jl.atari.CoupledAtari`).
#
# ## What to take away
#
# - The same MDP is compatible with very different gaps. The coupling is a fact about the environment, and ordinary
#   experience, one action at a time, never shows it.
# - `jipe2` gives the mean and variance of every gap, with a certified error. `gap_law` encloses the probability
#   that the first action turns out worse between two bounds.
# - Branches that meet and take the same action are one branch. This alone never makes a gap more variable than two separate runs; a coupling can.
# - What branches share in different states is a modelling choice: `"joint"`, `"common"` or `"independent"`.
#
# ## Exercises
#
# **Exercise 1.** Among all things that earn 10 a day on average, with a standard
# deviation of 2, is there one with a smaller gap variance than lemonade?
#
# <details><summary>Hint</summary>
#
# Only the variance $\sigma_1^2$ of the first day's difference can differ. Write it with the correlation of the day's two earnings.
#
# </details>
#
# <details><summary>Solution</summary>
#
# No. By the formula of section 0.2 the gap variance grows with the variance $\sigma_1^2$ of the first day's difference. If $\rho$ is the correlation of what the two stalls earn on one day, then
# $\sigma_1^2 = 3^2 + 2^2 - 12 \rho \ge (3 - 2)^2$, with equality only for $\rho = 1$: earnings that are a rising linear function of the sun.
# With mean 10 and standard deviation 2 that *is* lemonade.
#
# </details>

# %% [markdown]
# **Exercise 2.** Set the discount factor of the fair to 0.95. The returns of ice cream and umbrellas are now *positively* correlated, and yet their gap
# variance has grown. Explain both.
#
# <details><summary>Hint</summary>
#
# What is shared after the coins have agreed? And what if they do not agree tomorrow?
#
# </details>
#
# <details><summary>Solution</summary>
#
# With more weight on the future, more luck is shared *after* merging. It raises the variance of each return and their covariance by the same amount, so the correlation rises
# towards 1. That luck cancels in the gap. But branches that do not merge at once have more at stake, too: in $(\sigma_1^2 + 4)/(1 - \gamma^2/2) - 4$ the denominator falls, and the gap variance grows.
#
# </details>

# %% tags=["hide-cell"]
patient = worlds["umbrellas"][0].with_gamma(0.95)
later = jl.jipe2(patient, policy).moments
assert later.correlation[0, 0, 1] > 0
grown = later.gap_variance[0, 0, 1]
assert np.isclose(grown, (first_day[2] + 4) / (1 - 0.95**2 / 2) - 4, rtol=1e-6)
assert grown > table["gap variance"]["umbrellas"]

# %% [markdown]
# **What to read next.** Alongside the paper: chapter 1, which builds all of this up from the definitions. If you have a simulator: [Using it](../book/guide.md), then chapter 10. To review the results: [Reading the paper](../book/paper.md), then chapter 4.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
