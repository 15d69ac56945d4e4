# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 0. Start here: joint MDPs in five minutes
#
# You know Markov decision processes. An MDP says what *each* action does. It does not say what two
# actions would have done **under the same shock**: the same weather, the same customer, the same gust of
# wind. A **joint MDP** says that too. This page shows what difference it makes, what the library answers,
# how to ask it about a simulator of your own, and where everything is.

# %% tags=["parameters"]
seed = 0
num_pairs = 50000
num_updates = 30000
out_dir = ""

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

import jmdp_lib as jl
from jmdp_lib import figures

figures.style()
claims = figures.Claims()

# %% [markdown]
# ## 0.1 Two stalls, one sky
#
# You run a stall at a fair. Every morning you choose: sell **ice cream**, or the **other thing**. Ice cream
# takes $12 + 3U$, where $U$ is how sunny the day gets, a standard normal shock. The other thing takes 10
# on average, with a standard deviation of 2. What is it?
#
# - **Lemonade** sells when the sun shines: $10 + 2U$.
# - **Roasted nuts** do not care about the sky: $10 + 2V$, with a luck $V$ of their own.
# - **Umbrellas** sell when it rains: $10 - 2U$.
#
# `from_step` builds a joint MDP out of *one* step function and the probabilities of the shock, here a
# thousand equally likely skies. All actions of a table see the same one. For nuts we ask the solver to draw
# the actions' outcomes independently.

# %%
sky = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)  # from the rainiest to the sunniest
odds = np.full(1000, 1 / 1000)


def fair(likes_sun):
    def step(state, stall, day):  # stall 0 is ice cream; there is one state, 0
        return (12 + 3 * sky[day] if stall == 0 else 10 + 2 * likes_sun * sky[day]), 0

    return jl.JMDP.from_step(1, 2, 0.5, odds, step)


worlds = {"lemonade": (fair(1), "joint"), "nuts": (fair(1), "independent")}
worlds["umbrellas"] = fair(-1), "joint"

# %% [markdown]
# All three are **the same MDP**: each action, taken alone, earns the same amounts with the same
# probabilities. Nobody who sells one thing a day can tell the worlds apart, however long they keep books.

# %%
takings = [np.sort(jm.rewards, axis=0) for jm, _ in worlds.values()]
one_mdp = all(np.allclose(takings[0], other) for other in takings)
claims.check("three worlds, one MDP: each action's rewards have one law", one_mdp, one_mdp)

# %% [markdown]
# ## 0.2 Equal marginals, different gaps
#
# Today, ice cream or the other thing? From tomorrow on the policy tosses a coin every morning, and
# $\gamma = \tfrac12$. Write $Z(s, a)$ for the discounted return that starts with action $a$, and
#
# $$G = Z(s, a) - Z(s, b)$$
#
# for the **gap**: how much better $a$ was than $b$, under the same skies. `jipe2` computes the first two
# joint moments of the returns exactly, and with them the mean and the variance of every gap.
# `simulate_pairs` plays both branches, so that we can see that it is true.

# %%
policy = [[0.5, 0.5]]
solved, played = {}, {}
for name, (jm, coupling) in worlds.items():
    solved[name] = jl.jipe2(jm, policy, coupling=coupling).moments
    played[name] = jl.simulate_pairs(jm, policy, 0, (0, 1), num_pairs, seed, coupling=coupling)
joint = {n: figures.counts(z, ["Z(a)", "Z(b)"], (10, 36), 80) for n, z in played.items()}
gaps = {n: figures.counts(z @ [1, -1], ["G"], (-16, 16), 60) for n, z in played.items()}
data = pd.concat([pd.concat(part, names=["world"]) for part in (joint, gaps)]).reset_index(0)

# %%
fig, axes = plt.subplots(2, 3, figsize=(6.75, 4.1), height_ratios=[2.6, 1])
for (above, below), (name, z) in zip(axes.T, played.items(), strict=True):
    figures.joint_returns(above, z, (10, 36))
    figures.gap_law(below, z[:, 0] - z[:, 1], 16)
    above.set_title(f"ice cream or {name}")
    above.set_xlabel("return, ice cream first")
    above.set_ylabel(f"return, {name} first")
    below.set_xlabel("gap $G$")
figures.save(fig, "fig_three_worlds", data, out_dir)
plt.show()

# %% [markdown]
# The grey hills along the sides, the laws of the two returns, are the same in all three columns. What lies
# between them is not. Orange is regret: skies under which the other stall would have earned more. Against
# lemonade, ice cream is a safe choice. Against umbrellas the *same* choice, with the *same* mean
# advantage, goes wrong more than one time in three.

# %%
rows = {}
for name, m in solved.items():
    gap = played[name][:, 0] - played[name][:, 1]
    jm, coupling = worlds[name]
    (law,) = jl.gap_law(jm, policy, [(0, 0, 1)], width=0.01, coupling=coupling)
    rows[name] = {
        "correlation": m.correlation[0, 0, 1],
        "gap mean": m.gap_mean[0, 0, 1],
        "gap variance": m.gap_variance[0, 0, 1],
        "the same, played": gap.var(),
        "P(G < 0), from": law.prob_worse[0],
        "to": law.prob_worse[1],
        "played": np.mean(gap < 0),
        "bound": m.inferiority_bound[0, 0, 1],
    }
table = pd.DataFrame(rows).T
table.round(3)

# %% [markdown]
# The first three columns are exact. `gap_law` brackets the whole law of a gap: the probability that ice cream
# turns out worse is certainly between `from` and `to` (chapter 9). The last column is the paper's bound on
# $P(G \le 0)$, $\sigma_G^2/(\sigma_G^2 + \mu_G^2)$: mean and variance alone cannot say more.

# %%
for name, row in table.iterrows():
    spread = (played[name] @ [1, -1] - row["gap mean"]) ** 2
    z = (spread.mean() - row["gap variance"]) / (spread.std() / np.sqrt(num_pairs))
    claims.check(f"{name}: Var G, as played", f"{row['gap variance']:.2f}", abs(z) < 5)
    error = 5 * np.sqrt(row["to"] / num_pairs)
    told = row["P(G < 0), from"] - error <= row["played"] <= row["to"] + error <= row["bound"]
    claims.check(f"{name}: P(G < 0), as played, below the bound", f"{row['to']:.2f}", told)
marginals = np.array([(m.mean, m.variance) for m in solved.values()])
same = np.ptp(marginals, axis=0).max() < 1e-6
claims.check("mean and variance of both returns are those of every world", same, same)
often = bool(table["P(G < 0), from"]["umbrellas"] > 1 / 3)
claims.check("umbrellas: ice cream is worse more than one time in three", often, often)
factor = table["gap variance"]["umbrellas"] / table["gap variance"]["lemonade"]
claims.check("Var G, umbrellas / lemonade", f"{factor:.1f}", factor > 10)

# %% [markdown]
# (Why is the correlation of nuts not zero? Tomorrow both branches are in the same state, and if the coin
# makes them choose alike they *are* one branch. Chapter 1 shows why it has to be so.)
#
# ## 0.3 Four lines on the windy gridworld
#
# The paper's gridworld couples four moves by one gust. Actions 0 to 3 are up, right, down, left; results
# are arrays indexed `[state, a, b]`.

# %%
grid, goal = jl.windy_gridworld(size=5, gust_prob=0.2, gamma=0.95), jl.goal_policy(5)
sol = jl.jipe2(grid, goal, tol=1e-8)
m, right, left = sol.moments, 1, 3
for answer in (m.gap_mean, m.gap_variance, m.inferiority_bound):
    print(f"{answer[12, right, left]:.4f}")
jl.gap_law(grid, goal, [(12, right, left)])[0]

# %%
empty = np.where(np.arange(25) == 4, np.nan, 0.0)  # no gaps at the goal
shown = {"mean of the gap": m.gap_mean, "standard deviation": np.sqrt(m.gap_variance)}
shown["bound on $P(G \\leq 0)$"] = m.inferiority_bound
data = {title: values[:, right, left] for title, values in shown.items()}

# %%
fig, axes = plt.subplots(1, 3, figsize=(6.75, 2.4))
for ax, (title, values) in zip(axes, data.items(), strict=True):
    color = "#D55E00" if "bound" in title else "#0072B2"
    figures.heatmap(ax, (values + empty).reshape(5, 5), color, fontsize=6.5, vmin=0)
    ax.text(4, 0, "Goal", ha="center", va="center", weight="bold")
    ax.set(title=title, xticks=[], yticks=[])
figures.save(fig, "fig_right_or_left", data, out_dir)
plt.show()

# %% [markdown]
# Right against left, in every cell: how much better on average, how sure, and how often at most it is no
# better. Next to a side wall one of the two moves leads nowhere, and the mean is small. Further down the
# prize is further away: the mean shrinks, the spread does not, and the bound grows.

# %%
middle = f"{m.gap_mean[12, right, left]:.2f}"
claims.check("in the middle, right against left: mean", middle, sol.converged)
below = (m.inferiority_bound[:, right, left] + empty).reshape(5, 5)
grows = np.nanmin(np.diff(below, axis=0)) > 0
claims.check("down every column, the bound grows", grows, grows)

# %% [markdown]
# Now compare *up* with *right* below the top row and away from the side walls. Both are on the way, and on
# average it does not matter at all which comes first. Yet the two returns are not the same:

# %%
up, inner = 0, np.arange(25).reshape(5, 5)[1:, 1:4]
mean, variance = m.gap_mean[inner, up, right], m.gap_variance[12, up, right]
level = np.abs(mean).max() < 1e-7
claims.check("up against right: mean 0 in all twelve such cells", level, level)
claims.check("and their gap variance, in the middle", f"{variance:.2f}", variance > 1)

# %% [markdown]
# ## 0.4 A simulator of your own
#
# No tables? Anything with `num_states`, `num_actions`, `gamma` and `query(state, actions, rng)` will do:
# rewards and next states of the asked actions, under **one** shared draw. Draw the shock before you look
# at the actions. Here is the umbrella world again, with a sky that no table holds.


# %%
class Fair:
    num_states, num_actions, gamma = 1, 2, 0.5

    def query(self, state, actions, rng):
        sun = rng.normal()  # one sky for all asked actions
        rewards = [12 + 3 * sun if stall == 0 else 10 - 2 * sun for stall in actions]
        return rewards, [0] * len(actions)


learned = jl.incremental_jipe2(Fair(), policy, num_updates, (1.0, 0.9), seed, form="centred")

# %% [markdown]
# `incremental_jipe2` (Section 5.2) updates one coordinate per query, with steps $n^{-0.9}$ at the $n$-th
# visit; the centred form learns covariances rather than second moments, which is what gaps need.

# %%
found = learned.moments.gap_variance[0, 0, 1]
off = found / table["gap variance"]["umbrellas"] - 1
claims.check("umbrellas from queries alone: Var G within 10%", abs(off) < 0.1, abs(off) < 0.1)
print(f"learned {found:.1f}, exact {table['gap variance']['umbrellas']:.1f}")

# %% [markdown]
# Chapter 8 does this for a depot with an unknown demand. A Gymnasium environment that can be copied becomes
# such a simulator as it is (`jl.CoupledEnv`), and so does an Atari game (`jmdp_lib.atari.CoupledAtari`).
#
# ## 0.5 Where everything is
#
# | in the paper | notebook | functions |
# |---|---|---|
# | Definitions 4.1 to 4.3, Examples 1 and 2 | `01_theory_checks` | `JMDP`, `JMDP.query`, `JMDP.coupling_witness` |
# | Definition 5.1, Lemma 5.2, Theorem 5.3: $T_2$, contraction, certificate | `01_theory_checks` | `apply_t2`, `jipe2`, `Solution.error_bound` |
# | Section 5.3, moments of any order | `01_theory_checks` | `jipe`, `Moments.gap_moment` |
# | Section 5.4, gaps and the bound | `01_theory_checks` | `Moments.gap_variance`, `one_sided_bound` |
# | Figures 1 to 3, two worlds and their residuals | `02_residuals` | `windy_gridworld`, `coupled_reward_chain` |
# | Figures 4 and 5, correlations of actions | `03_correlation_grids` | `Moments.correlation` |
# | Figure 6, gaps against Monte Carlo | `04_gap_validation` | `sample_gaps`, `Moments.gap_central_moment` |
# | Figure 7, TD curves on four Atari games | `05_ale_td_curves` | `jmdp_lib.atari.CoupledAtari`, `jmdp_lib.atari.experiment` |
# | Table 1, gap variances on Atari | `06_table1` | `jmdp_lib.atari.experiment` |
# | The cost of $T_2$, large models | `07_scaling` | `plan_jipe2`, `jipe2` with `queries`, `route`, `device` |
# | Theorem 5.4, learning from samples; Appendix B, features | `08_learning` | `incremental_jipe2`, `projected_jipe2` |
# | Beyond the bound of Section 5.4: the law of a gap | `09_gap_law` | `gap_law`, `tail_bounds`, `coupling_range` |
# | Beyond the paper: which action, with how many queries? | `10_which_action` | `compare_actions` |
#
# The paper is silent or slips in thirteen places. Chapter 1 marks each as a **Decision**, with the smallest
# example that shows it.
#
# ## 0.6 How to run it
#
#     make figures                 # every notebook, quick profile, into out/quick
#     make figures PROFILE=paper   # the sizes of the committed figures; smoke is the smallest
#     make test                    # everything that is asserted anywhere
#
# One notebook, to play with or as a job of the batch:
#
#     .venv/bin/jupyter lab notebooks/00_start_here.ipynb
#     .venv/bin/python workflow/batch.py --profile paper --only 00_start_here
#
# Every notebook has one cell of parameters, near the top. Change them there and run all cells; the
# profiles in `workflow/profiles/` do just that. Figures are written to `out_dir`, if it is not empty.
#
# ## What to take away
#
# - The same MDP can hold very different gaps. The coupling is a fact about the environment, and ordinary
#   experience, one action at a time, never shows it.
# - `jipe2` gives the mean and variance of every gap, exactly and certified. `gap_law` gives the probability
#   that the better choice turns out worse, which one can act on.
# - A simulator that answers "and what would the others have done?" is all that is needed to learn them.
#
# **Exercises.** (1) Among all other things of mean 10 and standard deviation 2, is there one with a
# smaller gap variance than lemonade? (2) Set the discount of the fair to 0.95. The returns of ice cream and
# umbrellas are now *positively* correlated, and still their gap variance has grown. Why both?

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
