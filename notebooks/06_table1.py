# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Table 1: reproduced, and what it shows
#
# Appendix C of the paper asks a network for the variance of a gap, $Z(s,a) - Z(s,b)$, in four Atari games, and compares the answer with
# simulation (*MC*). The learned gap variances are 1.03 to 3.97 times the simulated ones. The variances that
# the network predicts for independent marginals are about 100 times too large. The paper reads this as calibration by coupling.
#
# **Table 1 is reproduced.** Under the settings of the authors' launcher, with three seeds, all eight numbers agree with the paper's within a factor of
# 1.5 at 50,000 steps.
#
# **It does not show calibration by coupling.** The shock is four times larger in training than in evaluation. With the same shock in both, the
# *simulated* variance of independent branches is 0.86 to 0.99 times that of the gap: here independent marginals overestimate nothing. The
# second column grows with the number of copies of the target network, as a recursion of two lines says that uses no network. And in the first
# column a calibrated network would have 16, not 1.
#
# **What you will learn.** Why a table of ratios needs its curve over training, what a network can know after 22
# copies of its target, and how to find out what a number measures.
#
# **What it needs.** Chapter 5, whose Section 5.2 has the settings. To run the notebook, install the project with
# `pip install -e ".[notebooks]"` in its folder, and keep it there. The trainings
# are not repeated here: the chapter reads their results from `figures/atari/`, where `runs.csv` says how each was made.

# %% tags=["parameters"]
prediction_files = ["figures/atari/predictions.csv"]
pair_files = ["figures/atari/pairs.csv"]
out_dir = ""

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.atari.recursive_pairs import shock_ratio
from experiments.release import plots, results
from experiments.release.limits import copies_recursion
from experiments.release.settings import PROTOCOL, settings_of
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
rule = PROTOCOL["table1"]
columns = ["coupled_ratio", "independent_ratio"]

# %% [markdown]
# ## 6.1 The paper's table, and ours
#
# The caption of the paper's table says what is printed: the *network's* gap variance and the *network's*
# $\operatorname{Var} Z_a + \operatorname{Var} Z_b$, both divided by the same simulated gap variance. The launcher trains the Gram network with $b = 1$ and then evaluates it
# with $b = 1/4$: at each of the first 40 states of a play it asks for one pair of actions and simulates 32 pairs of branches over
# 150 more steps. While both branches stand in one state of the memory, one query serves both. Variances divide by 32.
#
# **Our rule**, written down before the runs but after an outside trial of these settings: a number agrees if the mean of our seeds is within a factor of 1.5 of the paper's.

# %%
predicted = figures.results(prediction_files)
pairs = figures.results(pair_files)
curves = results.ratios(predicted, pairs, "launcher", settings_of("launcher").eval_b)
curves = curves[curves.step > curves.step.min()]  # from the first copy on
step = min(rule["step"], curves.step.max())
cells = results.table1(curves)
seeds = curves.groupby("game").seed.nunique()
whole = len(seeds) == 4 and seeds.min() >= 3 and step == rule["step"]
cells.round(2)

# %%
lost = {"enough": whole, "otherwise": "not reproduced"}
text = f"{int(cells.within.sum())} of {len(cells)}"
claims.check("Table 1: numbers within a factor of 1.5", text, cells.within.all(), **lost)

# %% tags=["hide-input"]
words = [["game", "coupled / MC", "paper", "independent / MC", "paper"]]
for game, mine in cells.groupby("game", sort=False):
    row = [game]
    for c, digits in zip(mine.itertuples(), (2, 1), strict=True):
        ours = [f"{value:.{digits}f}" for value in (c.mean, c.least, c.largest)]
        row += [f"{ours[0]} ({ours[1]} to {ours[2]})", f"{c.paper:.{digits}f}"]
    words.append(row)
fig, ax = plt.subplots(figsize=(6.75, 1.3), layout="constrained")
plots.text_table(ax, words)
figures.save(fig, "table1", cells, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Table 1** under the launcher's settings: means of three seeds at 50,000 steps, with the least and the largest seed, beside the paper's numbers.
#
# <!-- alt: A table of four games. Coupled over Monte Carlo: Pong 1.62 for the paper's 1.30, BattleZone 4.87 for 3.87, Boxing 4.85 for 3.97, Atlantis 1.14 for 1.03. Independent over Monte Carlo: 138 for 135, 124 for 116, 106 for 111, 90 for 83. -->

# %%
at = curves[curves.step == step]
each = at.set_index(["game", "seed"])[columns].div(
    pd.DataFrame(rule["paper"], index=columns).T, level="game"
)
alone = int(each.stack().between(1 / rule["factor"], rule["factor"]).sum())
by_step = curves.groupby(["step", "game"])[columns].mean()
by_step = by_step.div(pd.DataFrame(rule["paper"], index=columns).T, level="game").stack()
agree = by_step.between(1 / rule["factor"], rule["factor"]).groupby("step").sum()
text = f"{alone} of {each.size}"
claims.check("the same of single seeds", text, alone > 0.75 * each.size, enough=whole)
agree[agree == 8].index.min(), agree[agree == 8].index.max()

# %% [markdown]
# Of 24 numbers of single seeds 21 agree. Means of three seeds agree at every record from 41,000 steps on, so a tolerance of 1.5 cannot tell at
# which of these steps the paper's table was made.
#
# ## 6.2 The same with one shock
#
# What would the table show if evaluation had the shock of the training? The networks are the same, and $b = 1$ in both.

# %%
one_b = results.ratios(predicted, pairs, "launcher", settings_of("launcher").b)
one_b = one_b[one_b.step == step]
one_b = one_b.assign(simulated=one_b.independent_variance / one_b.gap_variance)
one_b = one_b.groupby("game", sort=False)[[*columns, "simulated"]].mean()
one_b.columns = ["coupled / MC", "independent / MC", "independent / MC, simulated"]
one_b.round(2)

# %%
for column, found in {
    "coupled / MC": one_b["coupled / MC"].max() < 1 / 1.5,
    "independent / MC": one_b["independent / MC"].min() > 1.5,
    "independent / MC, simulated": one_b["independent / MC, simulated"].max() < 1.1,
}.items():
    text = f"{one_b[column].min():.2f} to {one_b[column].max():.2f}"
    claims.check(f"b = 1 throughout: {column}", text, found, enough=whole)

# %% [markdown]
# Under one shock the network's gap variances are 3 to 14 times too small, and its "independent" variance is 5.9 to 8.6 times the gap's. But the simulated one is
# 0.86 to 0.99 times the gap variance. (It is the sum of the two branches' own variances.) The two
# positions of a query get opposite signs, so sharing makes a gap *larger*: by one step alone 0.98 (Exercise 1), and more where branches stay in one state.
# Coupling cannot be what makes the paper's two columns differ a hundredfold.
#
# **The release's query is no joint MDP.** For one action, $\operatorname{clip}(r + bU, 0, 1)$ and $\operatorname{clip}(r - bU, 0, 1)$ have the same distribution, so for two actions a joint
# MDP with this query exists. It does not exist for three. All pairs of actions would have opposite signs in one outcome table, which is impossible: if $e_a = -e_b$ and $e_b = -e_c$, then $e_a = e_c$. Nor is the reward a function of $(s, a, U)$, as (8) asks: two
# branches at one state that take the *same* action get opposite shocks. Chapter 12 gives the shock to the table instead.

# %%
signs = list(product((-1, 1), repeat=3))
assert not any(a == -b and b == -c and a == -c for a, b, c in signs)

# %% [markdown]
# ## 6.3 The table is a snapshot
#
# Here are both columns during training, recorded every 1,000 steps.

# %%
fig, axes = plt.subplots(2, 2, figsize=(6.75, 4.8), sharex=True, sharey=True, layout="constrained")
for ax, (game, rows) in zip(axes.flat, curves.groupby("game", sort=False), strict=False):
    plots.ratios(ax, rows, rule["paper"][game], step, 16.0)
    ax.set_title(game)
noted = {"fontsize": "small", "va": "center"}
axes[0, 0].text(8_000, 130, "independent / MC", color="#D55E00", **noted)
axes[0, 0].text(9_000, 1.7, "coupled / MC", color="#0072B2", **noted)
axes[0, 0].text(step - 1_000, 11, "coupled, if right: 16", color="0.4", ha="right", **noted)
for ax in axes[1]:
    ax.set_xlabel("training steps")
fig.supylabel("network's prediction / simulated gap variance", fontsize="medium")
plots.ratio_legend(fig)
drawn = ["game", "seed", "step", "copies", *columns, "recursion_ratio"]
figures.save(fig, "fig_release_ratios", curves[drawn], out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.1.** The two columns of Table 1 during training. Blue: the network's gap variance. Orange: the network's $\operatorname{Var} Z_a + \operatorname{Var} Z_b$. Both are divided by the
# simulated gap variance. Thin lines are seeds, thick lines their mean, circles the paper's values. The dashed line is the recursion of Section 6.4, which uses no network. A calibrated blue curve would lie on the dotted line. Table 1 cuts the orange curves while they rise.
#
# <!-- alt: Four panels on a logarithmic axis. Orange curves of independent over Monte Carlo fall at first and then rise, from about 10 at 10,000 steps to about 100 at 50,000, where the paper's circles are, close to a dashed line. Blue curves of coupled over Monte Carlo fall from the dotted line at 16 to between 1 and 5, and end at the paper's circles. -->

# %%
mean = curves.groupby(["step", "game"], sort=False)[columns].mean().unstack()
half = mean.index[len(mean) // 2]
grown = mean.independent_ratio.iloc[-1] / mean.independent_ratio.loc[half]
low = mean.coupled_ratio.iloc[-1] / mean.coupled_ratio.iloc[0]
text = f"{grown.min():.1f} to {grown.max():.1f}"
claims.check("independent / MC, at the end / half way", text, grown.min() > 2, enough=whole)
text = f"{low.min():.2f} to {low.max():.2f}"
claims.check("coupled / MC, at the end / at first", text, low.max() < 1, enough=whole)

# %% [markdown]
# In the second half of the training the second column grows by factors of 2.2 to 2.9. The first one starts at 6 to 13, not far from the right value, and falls. With
# another length of training, the table would have other numbers.
#
# ## 6.4 The second column: too few copies of the target
#
# **The mean.** Treat all states and actions alike. In training almost every reward is zero before the shock, and 0 or 1 with equal probability after it. Returns are
# multiplied by $1-\gamma$, so a reward $r$ has mean $(1-\gamma)/2$ and variance $(1-\gamma)^2/4$. The target network
# does not change between two copies. So each copy is one backup of the mean $m$:
#
# $$m_{k+1} = \tfrac{1-\gamma}{2} + \gamma\, m_k, \qquad m_K = \tfrac12(1 - \gamma^K).$$
#
# **The variance.** The target of a variance is a sampled second moment *minus the square of the target network's mean*,
# $\mathbb E (r + \gamma m_k)^2 - m_k^2 + \gamma^2 C_k$. Since $\mathbb E (r + \gamma m_k)^2 = \operatorname{Var} r + m_{k+1}^2$,
#
# $$C_{k+1} = \operatorname{Var} r + \bigl(m_{k+1}^2 - m_k^2\bigr) + \gamma^2 C_k .$$
#
# Once the mean has converged, the bracket vanishes and $C = \operatorname{Var} r/(1-\gamma^2)$, as it should be. While the mean
# rises, each copy adds a variance that no return has. After 50,000 steps 22 copies have been used and the network is learning the 23rd backup, $m = 0.103$, far from the limit 0.5. The dashed lines of Figure 6.1 are $2\,C_{K+1}$ after $K$ copies, divided by the
# simulated gap variance.
#
# **Does it agree?** We compare means over seeds with the recursion. Our tolerance is a quarter; for earlier runs of another
# reconstruction it held at every record from 30,000 steps on.

# %%
means, variances = copies_recursion(1_000, settings_of("launcher").gamma)
learned = curves.assign(recursion_mean=means[curves.copies + 1])
names = ["mean", "recursion_mean", "independent_ratio", "recursion_ratio"]
learned = learned.groupby(["game", "step"], sort=False)[names].mean()
learned.xs(step, level="step").round(3)

# %%
ratio = learned.independent_ratio / learned.recursion_ratio
end = ratio.xs(step, level="step")
text = f"{end.min():.2f} to {end.max():.2f}"
missed = {"enough": whole, "otherwise": "goal missed"}
claim = "independent / MC, network / recursion, at 50,000 steps"
claims.check(claim, text, end.between(1 / 1.25, 1.25).all(), **missed)
late = ratio[ratio.index.get_level_values("step") >= 30_000]
inside = late.between(1 / 1.25, 1.25)
text = f"{inside.sum()} of {len(late)}"
claims.check("the same at each record from 30,000 steps on", text, inside.all(), **missed)
head_start = np.corrcoef(at["mean"], at.independent_ratio)[0, 1]
claims.check(
    "seeds: correlation with the mean", f"{head_start:.2f}", head_start > 0.9, enough=whole
)

# %% [markdown]
# At 50,000 steps the second column is 0.81 to 1.07 times the recursion, at 30,000 it is 0.71 to 1.23 times: with these networks the random first answers last longer than we had expected. They also explain why seeds differ, from 52 to 147 in Atlantis. A mean that starts too high or too low
# loses this only by a factor of $\gamma$ with each copy, and a higher mean makes the second column larger.
#
# **How far would it rise?** The recursion peaks at 600 to 700, at the 125th backup, after 253,000 steps. It comes back to its true
# value, 15 to 17, only after about a thousand copies. (No network was trained beyond 50,000 steps.)

# %%
simulated = at.groupby("game", sort=False).gap_variance.mean()
peak, last = (2 * value / simulated for value in (variances.max(), variances[-1]))
assert variances.argmax() == 125
assert abs(variances[-1] / (0.01**2 / 4 / (1 - 0.99**2)) - 1) < 0.02
text = f"{peak.min():.0f} to {peak.max():.0f}; {last.min():.0f} to {last.max():.0f}"
claims.check("recursion: peak; after 1,000 copies", text, peak.min() > 30 * last.max())

# %% [markdown]
# The gap does not feel this drift. The bracket $m_{k+1}^2 - m_k^2$ is the same for all states and actions. So it enters
# $C_{aa}$, $C_{bb}$ and $C_{ab}$ alike and cancels in $C_{aa} + C_{bb} - 2\,C_{ab}$. This is why the first column does not
# grow with the second.
#
# ## 6.5 The first column: a calibrated value would be 16
#
# With $b = 1$ a reward is 0 or 1; with $b = 1/4$ it is 0 or 1/4, and all variances are
# $4^2 = 16$ times smaller. The network learns the first and is compared with the second. With the right gap variance, the first column would therefore be about 16. (The rewards of the games
# change this factor a little.) A value near 1 means a gap variance that is 16 times too small.

# %%
shocks = pairs[pairs.coupling == "reward"]
by_b = shocks.groupby(["game", "b"], sort=False).gap_variance.mean().unstack()
right = by_b[1.0] / by_b[0.25]
text = f"{right.min():.1f} to {right.max():.1f}"
claims.check(
    "simulated gap variance, b = 1 / b = 1/4",
    text,
    (right / 16 - 1).abs().max() < 0.1,
    enough=whole,
)

# %% [markdown]
# **Why is it too small?** Returns from two distinct states share no shock, so the difference $Z(s,a) - Z(t,a)$ has the
# sum of two variances. In the network its variance is at most 4.1% of the gap variance between *actions* of one
# state: the Gram vectors hardly depend on the state. But after one step a gap is mostly a difference between
# two distinct states, and the network misses this part. Chapter 12 shows a representation that does not.

# %%
apart = (at.states_apart / at.coupled).max()
claims.check("variance between states / actions", f"{apart:.3f}", apart < 0.1, enough=whole)

# %% [markdown]
# *A hypothesis* about the level of the first column. Suppose that the vectors depend on the action alone, and that
# the covariance of two actions is fitted to pairs of distinct states, whose rewards are independent. With $A$ actions, the next actions of two
# branches differ with probability $1 - 1/A$, so the gap variance of such a network solves
#
# $$G = 2\operatorname{Var} r + \gamma^2 \bigl(1 - \tfrac1A\bigr)\, G .$$

# %%
actions = pd.Series({"Pong": 6, "BattleZone": 18, "Boxing": 18, "Atlantis": 4})
level = 2 * 0.01**2 / 4 / (1 - 0.99**2 * (1 - 1 / actions))
compared = curves.groupby(["step", "game"], sort=False).coupled.mean().unstack() / level
end = compared.iloc[-1].dropna()
text = f"{end.min():.2f} to {end.max():.2f}"
inside = end.between(1 / rule["factor"], rule["factor"]).all()
claims.check("hypothesis: network / formula at the end", text, inside, enough=whole)
pd.DataFrame({"formula / MC": level / simulated, "network / formula": end}).round(2)

# %% [markdown]
# The formula has no free parameter and depends on $A$ alone, which is 6, 18, 18 and 4. We found it with earlier runs. In these, the networks are at 0.89 to 1.18 times the formula after 50,000 steps; at 20,000 steps they were at 1.1 to 2.0 times, and nothing says that they stop here. It tells why
# games with 18 actions have the largest ratios and Atlantis, with four, the smallest. It remains a hypothesis.

# %% [markdown]
# ## What to take away
#
# - A ratio says little without its curve over training and without the value that a calibrated network would have. Table 1 is a snapshot near 50,000 steps.
# - A target that was copied $K$ times holds rewards of about $K$ steps. At $\gamma = 0.99$, 22 copies are too few, and the second column shows it.
# - Evaluate with the noise that you trained with, and simulate the baseline, too.
# - A shock that belongs to a position in the query, and not to the outcome table, leaves the theory of the paper.
#
# ## Exercises
#
# **Exercise 1.** Give the shock opposite loadings, 1 and $-1$, for two actions. What is independent / coupled
# if shocks are the only randomness and the branches never meet again?
#
# <details><summary>Solution</summary>
#
# The shared shock adds up in the gap: the first step contributes a variance of $4\sigma^2$ instead of $2\sigma^2$. So the factor is
# $\frac{2}{1-\gamma^2} \big/ \big(4 + \frac{2\gamma^2}{1-\gamma^2}\big) = 1/(2 - \gamma^2)$, which is 0.98 at $\gamma = 0.99$.
#
# </details>

# %% tags=["hide-cell"]
assert np.isclose(shock_ratio([0.99], [1.0, -1.0])[0], 1 / (2 - 0.99**2))

# %% [markdown]
# **Exercise 2.** How many copies of the target network does the mean need until it is within 1% of its limit? How many training steps are that, and how far is the second column then from its limit?
#
# <details><summary>Solution</summary>
#
# $1 - \gamma^K \ge 0.99$ needs $K = 459$ copies, more than 900,000 steps. The second column is then still 4.7 times its limit: each copy adds about $(1-\gamma)\,\gamma^K/2$, twice $\operatorname{Var} r = (1-\gamma)^2/4$.
#
# </details>

# %% tags=["hide-cell"]
mean, variance = copies_recursion(1_000, 0.99)
enough = int(np.argmax(mean >= 0.99 * 0.5))
assert enough == 459
assert round(variance[enough] / variance[-1], 1) == 4.7

# %% [markdown]
# **What to read next.** [Chapter 12](12_calibrated_gaps.ipynb) asks what a network needs in order to be calibrated, and [chapter 7](07_scaling.ipynb) how far exact solutions reach
# before networks are needed.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
