# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Table 1: what it shows, and why
#
# Appendix C of the paper asks a network for the variance of a gap, $Z(s,a) - Z(s,b)$, in four Atari games, and compares the answer with
# simulation (*MC*). The learned gap variances are 1.03 to 3.97 times the simulated ones. The variances that
# the network predicts for independent marginals are about 100 times too large. The paper reads this as calibration by coupling.
#
# We ran the experiment under the settings of the authors' release, with three seeds. Seven of the eight numbers agree with the paper's within a factor of 1.5.
# Coupled / MC of Atlantis does not: 1.66, with seeds from 1.07 to 2.37, instead of 1.03.
#
# The numbers do not mean what they seem to mean. The second column grows with the number of target-network
# updates: a recursion of two lines, which uses no network, predicts the mean of three seeds within 20% from 30,000 steps on. In the first column a calibrated network would have 16 and not 1, because the shock is four times larger in training than in
# evaluation.
#
# **What you will learn.** Why a table of ratios needs its curve over training, what a network can know after 22
# updates of its target, and how to find out what a number measures.
#
# **What it needs.** Chapter 5. To run the notebook, install the project with `pip install -e ".[notebooks]"` in its
# folder and keep the notebook in `notebooks/`. The trainings are not repeated here: the chapter reads their results from
# `figures/atari/release.csv`.

# %% tags=["parameters"]
release_files = ["figures/atari/release.csv"]
out_dir = ""

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from experiments.atari.copies import copies_recursion
from experiments.atari.release_settings import PROTOCOL
from experiments.atari.release_verdict import paper_layout, verdict

from experiments.atari import plots
from experiments.atari.recursive_pairs import shock_ratio
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
differs = "differs from the paper"

# %% [markdown]
# ## 6.1 The paper's table, and ours
#
# The paper does not state the discount, the shock, the horizon or the length of the training. The authors'
# public release ([github.com/egecky/jmdp](https://github.com/egecky/jmdp)) does. We wrote our own code from the settings that it states, chose what these leave open, such as channels and minimal action sets (`experiments/atari/release.toml`), used three
# seeds, and trained on to 70,000 steps.
#
# | setting | release |
# |---|---|
# | policy, discount | uniform, $\gamma = 0.99$ |
# | input | one grey frame of $84 \times 84$, frame skip 1 |
# | network | three convolutions; one encoder for the mean and for Gram vectors of length 128 |
# | training | 50,000 steps, one update with 32 queries in each step after the first 5,000 |
# | target network | updated every 2,000 steps, 22 times by the end |
# | reward | $\operatorname{clip}(r + bU, 0, 1)$ for the first queried action, $\operatorname{clip}(r - bU, 0, 1)$ for the second; $U = \pm 1$ |
# | shock | $b = 1$ in training, $b = 0.25$ in evaluation |
# | scale | returns multiplied by $1-\gamma$ |
# | evaluation | first 40 frames of a game, 32 simulated pairs at each, horizon 150 |
#
# The caption of the paper's table says what is printed: the *network's* gap variance and the *network's*
# $\operatorname{Var} Z_a + \operatorname{Var} Z_b$, both divided by the same simulated gap variance.
#
# **Tolerance.** A number agrees if the mean of our seeds is within a factor of 1.5 of the paper's. We wrote this down
# before our runs, but chose the factor after an outside trial of these settings.

# %%
release = figures.results(release_files)
cells = verdict(release, PROTOCOL)
shown = paper_layout(cells)
shown.columns = ["coupled / MC", "verdict", "independent / MC", "verdict"]
shown

# %%
fig, ax = plt.subplots(figsize=(6.75, 1.9), layout="constrained")
head = ["game", "source", "coupled / MC", "verdict", "independent / MC", "verdict"]
games = ["" if place % 2 else game for place, (game, _) in enumerate(shown.index)]
rows = zip(games, shown.index.get_level_values(1), shown.to_numpy(), strict=True)
plots.text_table(ax, [head, *([game, source, *row] for game, source, row in rows)])
plt.close(fig)  # for the gallery; the notebook has the table itself
figures.save(fig, "table1", cells, out_dir)

# %% [markdown]
# **Table 1** in the paper's layout. In the rows "release settings", each number is the mean of three seeds at 50,000 steps, with
# the least and the largest seed in brackets.

# %%
num_within = int(cells.within.sum())
claims.check("Table 1: numbers within a factor of 1.5, of 8", num_within, num_within == 7, differs)
(missed,) = cells[~cells.within].itertuples()
assert (missed.game, missed.column) == ("Atlantis", "coupled_ratio")
text = f"{missed.mean:.2f} ({missed.least:.2f} to {missed.largest:.2f}), paper {missed.paper}"
claims.check("Table 1, Atlantis, coupled / MC", text, missed.mean > 1.5 * missed.paper, differs)

# %% [markdown]
# Seven of the eight numbers agree, so by our rule the table as a whole is not reproduced. One seed decides this: in Atlantis, seed 10 is at 2.37 after 50,000 steps and
# was at 1.15 only 2,500 steps before.
#
# ## 6.2 The table is a snapshot
#
# Here are both columns during training, recorded every 2,500 steps.

# %%
first = release[(release["where"] == "first") & (release.step > 5_000)]
curves = first[first.b == 0.25]
drawn = ["game", "seed", "step", "copies", *plots.RATIO_STYLES, "recursion_ratio"]
step = PROTOCOL["tolerance"]["step"]
fig, axes = plt.subplots(2, 2, figsize=(6.75, 4.8), sharex=True, sharey=True, layout="constrained")
for ax, (game, printed) in zip(axes.flat, PROTOCOL["paper"].items(), strict=True):
    plots.release_ratios(ax, curves[curves.game == game], printed, step, 16.0)
    ax.set_title(game)
noted = {"fontsize": "small", "va": "center"}
axes[0, 0].text(9_000, 85, "independent / MC", color="#D55E00", **noted)
axes[0, 0].text(24_000, 4.2, "coupled / MC", color="#0072B2", **noted)
axes[0, 0].text(step + 1_500, 43, "Table 1 is\nthis cut", **noted)
axes[0, 0].text(67_000, 11.5, "coupled / MC, if right: 16", color="0.4", ha="right", **noted)
for ax in axes[1]:
    ax.set_xlabel("training steps")
fig.supylabel("network's prediction / simulated gap variance", fontsize="medium")
plots.release_legend(fig)
figures.save(fig, "fig_release_ratios", curves[drawn], out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.1.** The two columns of Table 1 during training, under the settings of the release. Blue: the network's gap variance. Orange: the network's $\operatorname{Var} Z_a + \operatorname{Var} Z_b$. Both are divided by the
# simulated gap variance. Thin lines are seeds, thick lines their mean, circles the paper's values. The dashed line is the recursion of section 6.3, which uses no network. A calibrated blue curve would lie on the dotted line. See that the orange curves are still rising where the table cuts them.
#
# <!-- alt: Four panels on a logarithmic axis. Orange curves of independent over Monte Carlo rise through all of training, from about 6 at 7,500 steps to about 200 at 70,000, along a dashed line, and pass the paper's circles at 50,000 steps. Blue curves of coupled over Monte Carlo start between 2 and 6, below the dotted line at 16, and drift down, with jumps, to between 1 and 3; the paper's circles lie close to them. -->

# %%
columns = ["coupled_ratio", "independent_ratio"]
mean = curves.groupby(["step", "game"], sort=False)[columns].mean().unstack()
assert (mean.independent_ratio.diff().iloc[1:] > 0).all(axis=None)  # grows at every record
last = mean.independent_ratio.iloc[-1]
text = f"{last.min():.0f} to {last.max():.0f}"
claims.check("independent / MC at 70,000 steps, above the paper's", text, last.min() > 135.4)
each = curves.pivot_table(index=["game", "seed"], columns="step", values="coupled_ratio")
jump = np.exp(np.log(each).diff(axis=1).abs().max(axis=None))
assert f"{jump:.1f}" == "2.6"
before, after = each.loc[("Atlantis", 10), [47_500, 50_000]]
assert (round(before, 2), round(after, 2)) == (1.15, 2.37)

# %% [markdown]
# Averaged over seeds, the second column grows at every record in all games. At 70,000 steps it is 180 to 220. With
# another length of training, the table would have other numbers. The first column falls slowly and is noisy: between two
# records of one seed it changes by a factor of up to 2.6, more than our tolerance.
#
# The first 40 frames of a game look nearly alike, but this is not the reason. At 40 states spread over all collected steps, both columns are 0.87 to
# 1.16 times those at the first frames.

# %%
at = release[(release.step == step) & (release.b == 0.25)]
by_place = at.groupby(["game", "where"], sort=False)[columns].mean()
spaced = by_place.xs("spaced", level="where") / by_place.xs("first", level="where")
text = f"{spaced.min(axis=None):.2f} to {spaced.max(axis=None):.2f}"
close = np.log(spaced).abs().max(axis=None) < np.log(1.5)
claims.check("ratios at spread states / at first frames", text, close)

# %% [markdown]
# ## 6.3 The second column: too few updates of the target
#
# **The mean.** Treat all states and actions alike. In training almost every reward is zero before the shock, and 0 or 1 with equal probability after it. Returns are
# multiplied by $1-\gamma$, so a reward $r$ has mean $(1-\gamma)/2$ and variance $(1-\gamma)^2/4$. The target network
# does not change between two updates. So each update is one backup of the mean $m$:
#
# $$m_{k+1} = \tfrac{1-\gamma}{2} + \gamma\, m_k, \qquad m_K = \tfrac12(1 - \gamma^K).$$
#
# **The variance.** The target of a variance is a sampled second moment *minus the square of the target network's mean*,
# $\mathbb E (r + \gamma m_k)^2 - m_k^2 + \gamma^2 C_k$. Since $\mathbb E (r + \gamma m_k)^2 = \operatorname{Var} r + m_{k+1}^2$,
#
# $$C_{k+1} = \operatorname{Var} r + \bigl(m_{k+1}^2 - m_k^2\bigr) + \gamma^2 C_k .$$
#
# Once the mean has converged, the bracket vanishes and $C = \operatorname{Var} r/(1-\gamma^2)$, as it should be. While the mean
# rises, each update adds a variance that no return has. After 50,000 steps there have been 22 updates and the network is learning the 23rd backup. There $m = 0.103$, far from its limit 0.5. The dashed lines of Figure 6.1 are $2\,C_{K+1}$ after $K$ updates, divided by the
# simulated gap variance.
#
# **Does it agree?** We compare means over seeds at every record from 30,000 steps on. Earlier, the random initial weights still matter. Both the prediction and the network are divided by the same simulated variance. The tolerance, a quarter, was set after the runs.

# %%
names = ["mean", "recursion_mean", "independent_ratio", "recursion_ratio"]
learned = curves.groupby(["game", "step"], sort=False)[names].mean()
learned.xs(step, level="step").round(3)

# %%
late = learned[learned.index.get_level_values("step") >= 30_000]
for name, ratio in {
    "mean": late["mean"] / late.recursion_mean,
    "independent / MC": late.independent_ratio / late.recursion_ratio,
}.items():
    text = f"{ratio.min():.2f} to {ratio.max():.2f}"
    claims.check(f"{name}, network / recursion", text, ratio.between(1 / 1.25, 1.25).all())
at = curves[curves.step == step]
excess = np.corrcoef(at["mean"] / at.recursion_mean, at.independent_ratio / at.recursion_ratio)
assert excess[0, 1] > 0.9  # over 12 runs

# %% [markdown]
# The network's second column is 0.88 to 1.19 times the recursion. The recursion also explains why seeds differ: a network whose mean is initially higher loses this excess only by a factor of $\gamma$ with
# each update, and a higher mean makes the second column larger.
#
# **How far would it rise?** The recursion peaks at 590 to 720, at the 125th backup, after 253,000 steps. It comes back to its true
# value, 14 to 17, only after about a thousand updates.

# %%
_, variance = copies_recursion(1_000, 0.99)
simulated = at.groupby("game", sort=False).simulated_gap_variance.mean()
peak, end = (2 * value / simulated for value in (variance.max(), variance[-1]))
assert variance.argmax() == 125
assert abs(variance[-1] / (0.01**2 / 4 / (1 - 0.99**2)) - 1) < 0.02
text = f"{peak.min():.0f} to {peak.max():.0f}; {end.min():.0f} to {end.max():.0f}"
claims.check("recursion: peak; after 1,000 updates", text, peak.min() > 30 * end.max())

# %% [markdown]
# The gap does not feel this drift. The bracket $m_{k+1}^2 - m_k^2$ is the same for all states and actions. So it enters
# $C_{aa}$, $C_{bb}$ and $C_{ab}$ alike and cancels in $C_{aa} + C_{bb} - 2\,C_{ab}$. This is why the first column does not
# grow with the second.
#
# ## 6.4 The first column: a calibrated value would be 16
#
# With $b = 1$ a reward is 0 or 1; with $b = 0.25$ it is 0 or 1/4, and all variances are
# $(1/0.25)^2 = 16$ times smaller. The network learns the first and is compared with the second. With the right gap variance, the first column would therefore be about 16. (The rewards of the games
# change this factor a little.) A value near 1 means a gap variance that is 16 times too small.

# %%
both = release[(release["where"] == "first") & (release.step == step)]
by_b = both.groupby(["game", "b"], sort=False).simulated_gap_variance.mean().unstack()
right = by_b[1.0] / by_b[0.25]
text = f"{right.min():.1f} to {right.max():.1f}"
claims.check("simulated gap variance, b = 1 / b = 0.25", text, (right / 16 - 1).abs().max() < 0.1)
assert curves.coupled_ratio.max() < right.min()  # at every record

# %% [markdown]
# **Why is it too small?** Returns from two distinct states share no shock, so the difference $Z(s,a) - Z(t,a)$ has the
# sum of two variances. In the network its variance is at most 2.5% of the gap variance between *actions* of one
# state: the Gram vectors hardly depend on the state. But after one step a gap is mostly a difference between
# two distinct states, and the network misses this part. Chapter 12 shows a representation that does not.

# %%
at = release[release.step == step]
apart = (at.states_apart / at.coupled).max()
claims.check("variance between states / between actions", f"{apart:.3f}", apart < 0.05)

# %% [markdown]
# *A hypothesis* about the level of the first column. Suppose that the vectors depend on the action alone, and that
# the covariance of two actions is fitted to pairs of distinct states, whose rewards are independent. With $A$ actions, the next actions of two
# branches differ with probability $1 - 1/A$, so the gap variance of such a network solves
#
# $$G = 2\operatorname{Var} r + \gamma^2 \bigl(1 - \tfrac1A\bigr)\, G .$$
#
# It depends on $A$ alone, which is 6, 18, 18 and 4. Divided by the simulated gap variance it is 1.86, 3.98, 4.30 and 1.06; the
# paper prints 1.30, 3.87, 3.97 and 1.03.

# %%
actions = pd.Series({"Pong": 6, "BattleZone": 18, "Boxing": 18, "Atlantis": 4})
level = 2 * 0.01**2 / 4 / (1 - 0.99**2 * (1 - 1 / actions))
compared = curves.groupby(["step", "game"], sort=False).coupled.mean().unstack() / level
middle = compared.loc[20_000:50_000]
ranges = {"formula / MC": level / simulated, "least": middle.min(), "largest": middle.max()}
pd.DataFrame({**ranges, "at 70,000": compared.iloc[-1]}).round(2)

# %%
outside = (~middle.stack().between(1 / 1.5, 1.5)).sum()
text = f"{outside} of {middle.size}"
claims.check("hypothesis: records off by more than 1.5", text, outside == 1)
assert (compared.iloc[-1][["BattleZone", "Boxing"]] < 1 / 1.5).all()

# %% [markdown]
# The formula has no free parameter, but we found it after the runs. Between 20,000 and 50,000 steps it is within a factor of 1.5 of all records of the mean but one (Atlantis at 50,000 steps). It says why games with 18 actions have the largest ratios and why Atlantis, with four, has the smallest one in the paper (among ours, Pong's is smaller at 50,000 steps). It does not say why
# BattleZone and Boxing go on falling, to 0.46 and 0.64 of it at 70,000 steps. So it remains a hypothesis.
#
# ## 6.5 The same with one shock
#
# What would the table show if evaluation had the shock of the training? The networks are the same, and $b = 1$ in both.

# %%
at = first[(first.step == step) & (first.b == 1.0)]
at = at.assign(simulated=at.simulated_independent / at.simulated_gap_variance)
one_b = at.groupby("game", sort=False)[[*columns, "simulated"]].mean()
one_b.columns = ["coupled / MC", "independent / MC", "independent / MC, simulated"]
one_b.round(2)

# %%
for column, wrong in {
    "coupled / MC": one_b["coupled / MC"].max() < 1 / 1.5,
    "independent / MC": one_b["independent / MC"].min() > 1.5,
    "independent / MC, simulated": one_b["independent / MC, simulated"].max() < 1.5,
}.items():
    text = f"{one_b[column].min():.2f} to {one_b[column].max():.2f}"
    claims.check(f"extra, b = 1 throughout: {column}", text, wrong)

# %% [markdown]
# A consistent evaluation would print gap variances that are 4 to 10 times too small. The network's "independent" variance would be
# 6.5 to 8.2 times the gap variance. But the simulated one is only 0.83 to 0.99 times the gap variance: under this shock,
# independent marginals overestimate nothing. The two
# positions get opposite signs, so sharing makes a gap larger: by one step alone 0.98 (Exercise 1), and more where branches stay in one state.
#
# **The release's query is no joint MDP.** For one action, $\operatorname{clip}(r + bU, 0, 1)$ and $\operatorname{clip}(r - bU, 0, 1)$ have the same distribution, so the marginals are consistent, and for two actions a joint
# MDP with this query exists. It does not exist for three. All pairs of actions would have opposite signs in one outcome table, which is impossible: if $e_a = -e_b$ and $e_b = -e_c$, then $e_a = e_c$. Nor is the reward a function of $(s, a, U)$, as (8) asks: two
# branches at one state that take the *same* action get opposite shocks. Chapter 12 gives the shock to the table instead.

# %%
signs = list(product((-1, 1), repeat=3))
assert not any(a == -b and b == -c and a == -c for a, b, c in signs)

# %% [markdown]
# ## What to take away
#
# - A ratio says little without its curve over training and without the value that a calibrated network would have. Table 1 is a snapshot at 50,000 steps.
# - A network whose target was updated $K$ times has learned about little more than $K$ steps of the future. At $\gamma = 0.99$, 22 updates are too few, and the second column shows it.
# - Evaluate with the noise that you trained with. Otherwise the calibrated value is not 1.
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
# **Exercise 2.** How many updates of the target network does the mean need until it is within 1% of its limit? How many training steps are that, and how far is the second column then from its limit?
#
# <details><summary>Solution</summary>
#
# $1 - \gamma^K \ge 0.99$ needs $K = 459$ updates, more than 900,000 steps. The second column is then still 4.7 times its limit: each update adds about $(1-\gamma)\,\gamma^K/2$, twice $\operatorname{Var} r = (1-\gamma)^2/4$.
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
