# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Table 1: is the learned gap variance the true one?
#
# Appendix C of the paper asks the networks for the variance of a gap, $Z(s,a) - Z(s,b)$, and compares the answer with
# simulation. The paper reports learned variances of 1.03 to 3.97 times the simulated ones, and
# independent-marginals predictions that are about 100 times too large. It reads this as calibration by coupling.
#
# **Under the settings of the authors' release, seven of the eight numbers come out within a factor of 1.5; coupled / MC of
# Atlantis does not (1.66 instead of 1.03). But the table is a snapshot. Its second column counts how often the target
# network was copied, and a recursion of two lines gives it without any network. In its first column a calibrated
# value would be 16, not 1: the shock is four times larger in training than in evaluation.** Figure 6.1 shows all of this.
#
# What does calibrate? **With one term for equal states and one for near states, the learned gap variance is within 5% of the
# simulated one in 33 of 36 cases: nine games at four discounts. The paper's Gram network, with the same search, is 8 to 110 times too small at
# $\gamma = 0.99$.** In the other three cases our network is 5 to 19% too high; one simulated step repairs two of them, and longer training the
# third (Section 6.6). The term for equal states matters most: it helps in every comparison of a fair ablation, while it makes hardly a difference whether
# the shock is given to the network or must be learned (Section 6.7). More copies of the target network do not repair the paper's
# network: with 500 instead of 25, its gap variances are 5 to 55 times too small (Section 6.6).
#
# A ratio near one is not enough, though: in three of the nine games a constant is within 10% as well. We therefore also measure skill
# state by state. The network alone reaches our goal in 30 of the 35 cases that have a skill. If the first 64 steps are played in the emulator,
# 34 of the 35 do. **The *mean* of a gap at new states is hardly learned:** at $\gamma = 0.9$, its correlation with the simulated mean is near
# zero in five of the eight games with gap means, and above one half only in Pong.
#
# **Four words.** A *game* is one of the Atari games. A *run* is one training: one game, one seed. A *pair* is two actions of one state,
# and a *play* simulates the two branches of a pair once.
#
# **What you will learn.** Why a table of ratios needs its curve over training; what a target network can know after 22
# copies; why such a table needs a baseline without learning; which structure a network of covariances needs; and how a few
# simulated steps help a network that cannot predict rewards.
#
# **What it needs.** Chapter 5, and standard errors. To run it, install the project with `pip install -e ".[notebooks]"` in its
# folder, and keep this notebook somewhere in it. Long trainings are not repeated here: the chapter reads their results
# from the files `atari_release.csv`, `atari_trials.csv`, `atari_fresh_table.csv`, `atari_fresh_gaps.csv`, `atari_search.csv`, `atari_ablation_table.csv`,
# `atari_converged_table.csv`, `atari_converged_curves.csv`, `atari_plays_table.csv`, `atari_plays_seeds.csv`, `atari_plays_gaps.csv`, `atari_rivals_table.csv`,
# `atari_followed_table.csv`, `atari_more_table.csv`, `atari_longer_table.csv`, `atari_sizes_table.csv`, `atari_sticky_table.csv`
# and `atari_sticky_curves.csv` in `figures/`.
#
# **How long it takes.** About 47 minutes to read.

# %% tags=["parameters"]
seed = 0
live_games = ["Pong"]  # at least one
num_states = 200  # at least 200
num_steps = 150  # at least 100
num_evaluation = 6  # at least 4
horizon = 30  # at least 30
shown_gamma = 0.99  # one of those in result_files for all networks: 0.99
release_files = ["figures/atari_release.csv"]
result_files = ["figures/atari_fresh_table.csv"]
gap_files = ["figures/atari_fresh_gaps.csv"]
trial_files = ["figures/atari_trials.csv"]
search_files = ["figures/atari_search.csv"]
ablation_files = ["figures/atari_ablation_table.csv"]
converged_files = ["figures/atari_converged_table.csv"]
converged_curve_files = ["figures/atari_converged_curves.csv"]
play_files = ["figures/atari_plays_table.csv"]
play_seed_files = ["figures/atari_plays_seeds.csv"]
play_gap_files = ["figures/atari_plays_gaps.csv"]
rival_files = ["figures/atari_rivals_table.csv"]
followed_files = ["figures/atari_followed_table.csv"]
more_files = ["figures/atari_more_table.csv"]
longer_files = ["figures/atari_longer_table.csv"]
size_files = ["figures/atari_sizes_table.csv"]
sticky_table_files = ["figures/atari_sticky_table.csv"]
sticky_curve_files = ["figures/atari_sticky_curves.csv"]
out_dir = ""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.atari import plots
from experiments.atari.copies import copies_recursion
from experiments.atari.credit import credits
from experiments.atari.experiment import Experiment, run
from experiments.atari.networks import Config
from experiments.atari.predictions import gap_table
from experiments.atari.protocol import TOLERANCE
from experiments.atari.recursive_pairs import shock_ratio
from experiments.atari.release_settings import PROTOCOL
from experiments.atari.release_verdict import paper_layout, verdict
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
work = tempfile.TemporaryDirectory()
paper = pd.DataFrame(PROTOCOL["paper"], index=["coupled", "independent"]).T

# %% [markdown]
# ## 6.1 The paper's table, and ours
#
# The paper (arXiv 2603.06946) does not state the discount, the shock, the horizon or the length of the training. The authors'
# public release ([github.com/egecky/jmdp](https://github.com/egecky/jmdp)) does. We ran its experiment with three
# seeds, and trained on to 70,000 steps (`experiments/atari/release.toml`). The code is ours, written from the settings that the release states. From Section 6.5 on,
# this chapter has settings of its own:
#
# | | release, and Sections 6.1 to 6.4 | this book, from Section 6.5 on |
# |---|---|---|
# | input | one grey frame, $84 \times 84$ | the memory, as bytes and bits, and Pong's knob |
# | network | three convolutions, one encoder for mean and Gram vectors | two layers of 256, one trunk each |
# | frame skip | 1 | 4 |
# | batch | 32 queries of two actions | 1,024 states, three actions each |
# | steps | 50,000; one update a step after the first 5,000 | 5,000 updates |
# | copies of the target | every 2,000 steps, 22 by the end | a moving average, a fifth of the way each step |
# | shock | $+bU$ for the first queried action, $-bU$ for the second, clipped to $[0, 1]$ | $+\sigma U$ for all actions, after clipping to $[-1, 1]$ |
# | its size | $b = 1$ in training, $b = 0.25$ in evaluation | $\sigma = 1$ in both |
# | scale | returns multiplied by $1-\gamma$ | the network's own unit |
# | discount | $\gamma = 0.99$ | 0.1, 0.5, 0.9 and 0.99 |
# | evaluated at | the first 40 frames, 32 plays each, horizon 150 | 64 new states, 36 plays each, horizon 300 |
#
# The caption of the paper's table says what is printed: the *network's* gap variance and the *network's*
# $\operatorname{Var} Z_a + \operatorname{Var} Z_b$, both divided by the same simulated gap variance.
#
# **The tolerance.** A number agrees if the mean of our seeds is within a factor of 1.5 of the paper's, and the
# table is the paper's if all eight numbers agree. We stated this in `release.toml` before our runs, but we chose the
# factor after an outside trial of these settings.

# %%
release = figures.results(release_files)
cells = verdict(release, PROTOCOL)
shown = paper_layout(cells)
shown.columns = ["coupled / MC", "verdict", "independent / MC", "verdict"]
shown

# %%
fig, ax = plt.subplots(figsize=(6.75, 1.9), layout="constrained")
head = ["game", "", "coupled / MC", "", "independent / MC", ""]
games = ["" if place % 2 else game for place, (game, _) in enumerate(shown.index)]
rows = zip(games, shown.index.get_level_values(1), shown.to_numpy(), strict=True)
plots.text_table(ax, [head, *([game, whose, *row] for game, whose, row in rows)])
plt.close(fig)  # for the gallery; the notebook has the table itself
figures.save(fig, "table1", cells, out_dir)

# %% [markdown]
# **Table 1** in the paper's layout. In the rows "release settings", each number is the mean of three seeds at 50,000 steps, with
# the least and the largest seed in brackets.

# %%
verdicts = {True: "holds", False: "differs from the paper"}
allowed = PROTOCOL["tolerance"]["factor"]
factors = np.exp(np.log(cells["mean"] / cells.paper).abs())
for cell, factor in zip(cells.itertuples(), factors, strict=True):
    name = f"Table 1, {cell.game}, {cell.column.split('_')[0]} / MC: factor to the paper"
    claims.check(name, f"{factor:.2f}", (factor <= allowed) == cell.within, verdicts[cell.within])
missed = cells[~cells.within]
claims.check("Table 1: numbers within a factor of 1.5, of eight", int(cells.within.sum()), len(missed) == 1, verdicts[False])  # fmt: skip
differs = [*zip(missed.game, missed.column, missed["mean"].round(2), strict=True)]
text = "; ".join(f"{game} {column.split('_')[0]} / MC, {value}" for game, column, value in differs)
claims.check("Table 1: what differs", text, differs == [("Atlantis", "coupled_ratio", 1.66)], verdicts[False])  # fmt: skip

# %% [markdown]
# Seven of the eight numbers agree. Coupled / MC of Atlantis **differs**: 1.66 instead of 1.03, a factor of 1.61. So by the
# rule that we had set, the table as a whole is not reproduced. One seed decides this: seed 10 is at 2.37 after 50,000 steps, and
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
# **Figure 6.1.** Table 1 is a cut through a training. Blue, *coupled / MC*: the network's gap variance. Orange, *independent / MC*: the network's $\operatorname{Var} Z_a + \operatorname{Var} Z_b$. Both are divided by the simulated gap variance and drawn against training steps, under the
# settings of the release; circles are the paper's values, at its 50,000 steps. Orange follows the dashed line, which counts copies of the target network and uses no network (Section 6.3), and it is still rising. Blue would be at the dotted line, 16, if
# the network were right: its shock is four times larger in training than in evaluation. Thin lines are seeds, thick lines their mean.
#
# <!-- alt: Four panels on a logarithmic axis. Orange curves of independent over Monte Carlo rise through all of training, from about 6 at 7,500 steps to about 200 at 70,000, along a dashed line, and pass the paper's circles at 50,000 steps. Blue curves of coupled over Monte Carlo start between 2 and 6, below the dotted line at 16, and drift down, with jumps, to between 1 and 3; the paper's circles lie close to them. -->

# %%
mean = curves.groupby(["step", "game"], sort=False)[["coupled_ratio", "independent_ratio"]].mean()
mean = mean.unstack()
growth = (mean.independent_ratio / mean.independent_ratio.shift()).min(axis=None)
claims.check("release: independent / MC over that of the record before, least", f"{growth:.2f}", growth > 1)  # fmt: skip
last = mean.independent_ratio.iloc[-1]
text = f"{last.min():.0f} to {last.max():.0f}"
claims.check("release, 70,000 steps: independent / MC", text, last.min() > paper.independent.max())
each = curves.pivot_table(index=["game", "seed"], columns="step", values="coupled_ratio")
jump = np.exp(np.log(each).diff(axis=1).abs().max(axis=None))
before, after = each.loc[("Atlantis", 10), [47_500, 50_000]]
text = f"{before:.2f}, {after:.2f}"
claims.check("release, Atlantis, seed 10: coupled / MC at 47,500 and 50,000", text, after > allowed * before)  # fmt: skip
claims.check(
    "release: coupled / MC, largest factor between two records", f"{jump:.1f}", jump > allowed
)

# %% [markdown]
# The second column grows at every record in all games. It passes the paper's values, and at 70,000 steps it is 180 to 220. With
# another length of training, the table would have other numbers. The first column falls slowly and is noisy: between two
# records of one seed it can change by a factor of 2.6, more than our tolerance allows.
#
# The first 40 frames of an episode are nearly alike. At 40 states spaced over all collected steps, both columns at 50,000 steps are 0.87 to
# 1.16 times those at the first frames.

# %%
at = release[(release.step == step) & (release.b == 0.25)]
by_place = at.groupby(["game", "where"], sort=False)[["coupled_ratio", "independent_ratio"]].mean()
spaced = by_place.xs("spaced", level="where") / by_place.xs("first", level="where")
text = f"{spaced.min(axis=None):.2f} to {spaced.max(axis=None):.2f}"
claims.check("release: ratios at spaced states / at first frames", text, np.log(spaced).abs().max(axis=None) < np.log(1.5))  # fmt: skip

# %% [markdown]
# ## 6.3 Why: the second column counts copies
#
# **The mean.** Treat all states and actions alike. In training, almost every reward is zero before the shock, and 0 or 1 with equal chances after it. Returns are
# multiplied by $1-\gamma$, so a reward $r$ has mean $(1-\gamma)/2$ and variance $(1-\gamma)^2/4$. The target network
# stands still between two copies. So each copy is one backup of the mean $m$,
#
# $$m_{k+1} = \tfrac{1-\gamma}{2} + \gamma\, m_k, \;\; m_K = \tfrac12(1 - \gamma^K).$$
#
# **The variance.** The target of a variance is a sampled second moment *minus the square of the old mean* (the target network's):
# $\mathbb E (r + \gamma m_k)^2 - m_k^2 + \gamma^2 C_k$. Since $\mathbb E (r + \gamma m_k)^2 = \operatorname{Var} r + m_{k+1}^2$,
#
# $$C_{k+1} = \operatorname{Var} r + \bigl(m_{k+1}^2 - m_k^2\bigr) + \gamma^2 C_k .$$
#
# When the mean stands still, the bracket vanishes and $C = \operatorname{Var} r/(1-\gamma^2)$, as it should be. While the mean
# rises, each copy adds a variance that no return has. After 50,000 steps 22 copies have been made, and the 23rd stage is being
# learned. Then $m = 0.103$, far from the final 0.5. The dashed lines of Figure 6.1 are $2\,C_{K+1}$ after $K$ copies, divided by the
# simulated gap variance. They use no network.
#
# **Does it agree?** We allow a quarter, for the mean over seeds at every record from 30,000 steps on. (Unlike the factor of
# Section 6.1, we set this after the runs.) Earlier, the random start of the networks is not yet forgotten.

# %%
columns = ["mean", "recursion_mean", "independent_ratio", "recursion_ratio"]
learned = curves.groupby(["game", "step"], sort=False)[columns].mean()
learned.xs(step, level="step").round(3)

# %%
late = learned[learned.index.get_level_values("step") >= 30_000]
for name, ratio in {
    "mean": late["mean"] / late.recursion_mean,
    "independent / MC": late.independent_ratio / late.recursion_ratio,
}.items():
    text = f"{ratio.min():.2f} to {ratio.max():.2f}"
    name = f"release, from 30,000 steps: {name}, learned / recursion"
    claims.check(name, text, ratio.between(1 / 1.25, 1.25).all())
at = curves[curves.step == step]
high = at["mean"] / at.recursion_mean
together = np.corrcoef(high, at.independent_ratio / at.recursion_ratio)[0, 1]
claims.check("release, 12 runs: correlation of both ratios, learned / recursion", f"{together:.2f}", together > 0.9)  # fmt: skip

# %% [markdown]
# It agrees, and it also explains why seeds differ. A network that starts with a higher mean forgets it only by a factor of $\gamma$ per
# copy, and a higher mean makes the second column larger. Over the twelve runs, the two deviations from the recursion have a correlation of 1.00.
#
# **How far would it rise?** The recursion peaks at 590 to 720, after 125 copies or 255,000 steps. It comes back to its true
# value, 14 to 17, only after about a thousand copies.

# %%
_, variance = copies_recursion(1_000, 0.99)
simulated = at.groupby("game", sort=False).simulated_gap_variance.mean()
peak, end = (2 * value / simulated for value in (variance.max(), variance[-1]))
text = f"{peak.min():.0f} to {peak.max():.0f}"
claims.check("recursion, peak after 125 copies: independent / MC", text, variance.argmax() == 125)
text = f"{end.min():.0f} to {end.max():.0f}"
fixed = 0.01**2 / 4 / (1 - 0.99**2)
claims.check("recursion, 1,000 copies: independent / MC, within 2% of its end", text, abs(variance[-1] / fixed - 1) < 0.02)  # fmt: skip

# %% [markdown]
# **The gap does not feel the drift.** The bracket $m_{k+1}^2 - m_k^2$ is the same for all states and actions. So it enters
# $C_{aa}$, $C_{bb}$ and $C_{ab}$ alike, and cancels in $C_{aa} + C_{bb} - 2\,C_{ab}$. This is why the first column does not
# grow with the second.
#
# **A calibrated value would be 16.** With $b = 1$ a reward is 0 or 1; with $b = 0.25$ it is 0 or 1/4, and all variances are
# $(1/0.25)^2 = 16$ times smaller. The network learns the first and is compared with the second. The rewards of the games
# change this factor a little. With the right gap variance, the first column would therefore be about 16. A
# value near 1 means a gap variance that is 16 times too small.

# %%
sizes_of_b = release[(release["where"] == "first") & (release.step == step)]
by_b = sizes_of_b.groupby(["game", "b"], sort=False).simulated_gap_variance.mean().unstack()
right = by_b[1.0] / by_b[0.25]
text = f"{right.min():.1f} to {right.max():.1f}"
claims.check("release: simulated gap variance, b = 1 / b = 0.25, 16 within 10%", text, (right / 16 - 1).abs().max() < 0.1)  # fmt: skip
largest = curves.coupled_ratio.max().round(1)
claims.check("release: coupled / MC, largest at any record", largest, largest < 16)

# %% [markdown]
# **Why is the first column too small?** Returns from two distinct states share no shock, so the difference $Z(s,a) - Z(t,a)$ has the
# sum of two variances. In the network its variance is almost zero: at 50,000 steps, it is at most 2.5% of the gap variance between *actions* of one
# state. The vectors $v(s,a)$ hardly depend on the state. But after one step a gap is mostly a difference between
# two distinct states, and the network misses this part. Section 6.7 says why a Gram network ends up there.

# %%
at = release[release.step == step]
apart = (at.states_apart / at.coupled).max()
text = f"{apart:.3f}"
claims.check("release: variance between states / between actions, largest", text, apart < 0.05)

# %% [markdown]
# *A hypothesis* about the level of the first column. Its premise is that the vectors depend on the action alone, and that
# the covariance of two actions is fitted to pairs of distinct states, whose rewards are independent. With $A$ actions, the next actions of two
# branches differ with probability $1 - 1/A$, so the gap variance of such a network solves
#
# $$G = 2\operatorname{Var} r + \gamma^2 \bigl(1 - \tfrac1A\bigr)\, G .$$
#
# It depends on nothing but $A$, which is 6, 18, 18 and 4. Divided by the simulated gap variance, it is 1.86, 3.98, 4.30 and 1.06 (the
# paper prints 1.30, 3.87, 3.97 and 1.03). We compare it with the learned gap variances between 20,000 and 50,000 steps.

# %%
actions = pd.Series({"Pong": 6, "BattleZone": 18, "Boxing": 18, "Atlantis": 4})
level = 2 * 0.01**2 / 4 / (1 - 0.99**2 * (1 - 1 / actions))
found = curves.groupby(["step", "game"], sort=False).coupled.mean().unstack() / level
middle = found.loc[20_000:50_000]
compared = {"formula / MC": level / simulated, "least": middle.min(), "largest": middle.max()}
pd.DataFrame({**compared, "at 70,000": found.iloc[-1]}).round(2)

# %%
off = middle.stack()[lambda ratio: ~ratio.between(1 / 1.5, 1.5)]
text = ", ".join(f"{game} {when:,}" for when, game in off.index)
claims.check("hypothesis, 20,000 to 50,000 steps: not within a factor of 1.5", text, len(off) == 1)
ends = found.iloc[-1][lambda ratio: ratio < 1 / 1.5]
text = ", ".join(f"{game} {ratio:.2f}" for game, ratio in ends.items())
claims.check("hypothesis, 70,000 steps: learned / formula, below 1/1.5", text, len(ends) > 0, "goal missed")  # fmt: skip

# %% [markdown]
# The formula has no free parameter, but we found it after the runs. It is within a factor of 1.5 of all of these records but one (Atlantis at 50,000 steps),
# and it says why games with 18 actions have the largest ratios and Atlantis, with four, the one nearest to 1. It does not say why
# BattleZone and Boxing go on falling, to 0.46 and 0.64 of it at 70,000 steps. It remains a hypothesis.
#
# ## 6.4 The same with one shock
#
# What would the table show if the evaluation had the shock of the training? The networks are the same, and $b = 1$ in both.

# %%
at = first[(first.step == step) & (first.b == 1.0)]
at = at.assign(simulated=at.simulated_independent / at.simulated_gap_variance)
one_b = at.groupby("game", sort=False)[["coupled_ratio", "independent_ratio", "simulated"]].mean()
one_b.columns = ["coupled / MC", "independent / MC", "independent / MC, simulated"]
one_b.round(2)

# %%
for column, wrong in {"coupled / MC": "below 1/1.5", "independent / MC": "above 1.5"}.items():
    ratios = one_b[column]
    far = ratios.max() < 1 / 1.5 if wrong.startswith("below") else ratios.min() > 1.5
    text = f"{ratios.min():.2f} to {ratios.max():.2f}"
    claims.check(f"release, b = 1 throughout: {column}, all {wrong}", text, far, verdicts[False])
ratios = one_b["independent / MC, simulated"]
text = f"{ratios.min():.2f} to {ratios.max():.2f}"
claims.check("release, b = 1: independent / MC, both simulated", text, ratios.max() < 1.5, verdicts[False])  # fmt: skip

# %% [markdown]
# A consistent evaluation would print gap variances that are 4 to 10 times too small. The network's "independent" variance would be
# 6.5 to 8.2 times the gap variance. But the simulated one is only 0.83 to 0.99 times the gap variance: under this shock,
# independent marginals overestimate nothing. Both columns show errors of the network. The shock has opposite signs for the two
# actions, so that sharing it makes a gap larger (Exercise 1: $1/(2-\gamma^2) = 0.98$).
#
# ## 6.5 What calibrates: a diagnostic with one shock for all actions
#
# The rest of this chapter is our own estimator. The release's shock depends on the *position* of an action in the query. Then the
# law of a reward depends on the query, which no joint MDP allows. Our shock belongs to the table. The emulator runs
# without sticky actions, rewards are clipped, and a common shock is added:
#
# $$R(a) = \operatorname{clip}(r(s,a), -1, 1) + \sigma\, U,$$
#
# where $U = \pm 1$ is fair and drawn once per table. All actions of a state get the same shock. It cancels in a gap between two branches of one table, but not in the difference of
# two independent returns. If shocks are the only randomness and the branches never meet again, then the *simulated* ratio is
#
# $$\frac{\operatorname{Var} Z_a + \operatorname{Var} Z_b}{\operatorname{Var}(Z_a - Z_b)}
#   = \frac{2\sigma^2/(1-\gamma^2)}{2\sigma^2\gamma^2/(1-\gamma^2)} = \frac{1}{\gamma^2} .$$

# %%
gammas = np.array([0.1, 0.5, 0.9, 0.99])
line = shock_ratio(gammas)
print(pd.Series(line.round(2), index=gammas).to_string())
text = ", ".join(f"{value:.2f}" for value in line)
claims.check(
    "shocks alone: independent / coupled is 1/gamma^2", text, np.allclose(line, gammas**-2)
)

# %% [markdown]
# The reference is recursive-pair Monte Carlo. Two branches start from one state and take uniform random actions. While they
# stand in the same state, they share one table; once they also choose the same action, they are one branch. The emulator's
# part is recorded once. Discounts and shocks are added in closed form (`pair_gaps`), so no simulated shock adds noise.
#
# **Live, in miniature.** Here is everything at once on the real emulator: query states, train networks, play pairs, compare. (Rows with
# *+table* add one backup from the state's own tables, which Section 6.10 explains.) A pair is played for 30 steps or more, so that at most $0.9^{60}$, or
# 0.2%, of the shocks' variance is cut off. With a few hundred states and steps we ask for gap variances within 20%, and for
# the factor between independent and coupled ones within 10%.

# %%
config = Config(
    gammas=(0.5, 0.9), kinds=("gram", "near"), sigma=1.0, hidden=128, batch=64, actions=3,
    steps=num_steps,
)  # fmt: skip
live = []
for game in live_games:
    experiment = Experiment(
        Config(**{**vars(config), "name": game}), num_states=num_states, num_held_out=32,
        num_evaluation=num_evaluation, pairs_per_state=3, repeats=6, horizon=horizon,
    )  # fmt: skip
    live.append(run(experiment, seed, Path(work.name) / game, processes=1))
small = gap_table(pd.concat(live))
small[["game", "gamma", "kind", "coupled", "independent", "mc_ratio"]].round(2)

# %%
near = small[small.kind == "near"]
off = (near.coupled - 1).abs().max()
enough = num_states >= 200 and num_steps >= 100 and num_evaluation >= 4 and horizon >= 30
claim = "live: gap variance, learned / Monte Carlo, within 20%"
claims.check(claim, f"off by {off:.2f}", off < 0.2, enough=enough)
independent = (near.independent / near.mc_ratio - 1).abs().max()
claim = "live: independent / MC within 10% of Monte Carlo's own"
claims.check(claim, f"off by {independent:.2f}", independent < 0.1, enough=enough)

# %% [markdown]
# ## 6.6 Three networks, the same search
#
# **The protocol** is in `experiments/atari/protocol.toml` and was written before its runs were made. It compares three
# networks: the paper's Gram network, the local network, and the local + near network. Each gets the same six trials: a base,
# and five variants that change one setting. The trials are judged on the same tuning states of four games (seed 0, half of
# the states and steps), by the root mean squared error over states. Each network is then trained in full with its best trial
# and with seeds 10, 11 and 12. We report results at states that were not looked at before, and also in five games where
# nothing was tuned: Space Invaders, Asterix, Qbert, Ms. Pacman and Freeway.
#
# Three reservations:
#
# - The base is close to the settings of our earlier runs, which may favour our networks.
# - Space Invaders and Asterix were picked among six games after a look at how often they give rewards and how often branches merge
#   (1,536 states each). The last three games were chosen by others, who had tried them with one seed; no setting was chosen by what they found.
# - The runs were made at several times, with the same settings and versions (`figures/atari_fresh.json`, `atari_plays.json` and `atari_rivals.json`).

# %%
trials = figures.results(trial_files)
errors = trials.groupby(["kind", "trial"], sort=False).error.mean().unstack()
errors.round(3)

# %%
best = errors.idxmin(axis=1).to_dict()
claims.check("trial chosen for each network", best, len(errors.columns) == 6)
tried = trials.groupby(["kind", "trial"]).size()
text = f"{len(tried)} trials, {tried.max()} cases each"
claims.check("three networks, six trials each, in the same games and discounts", text, len(tried) == 18 and tried.nunique() == 1)  # fmt: skip
span = errors.max(axis=1) / errors.min(axis=1)
claims.check(
    "worst / best trial: Gram, local, near", span.round(2).to_list(), span.gram > span.near
)

# %% [markdown]
# The table shows the mean error over games and discounts, with one row per network and one column per trial. The search
# helps the Gram network most: with ten times the weight on the gap (trial *gap*), its error is less than a third of that of
# its worst trial. Our two networks hardly depend on the trial.
#
# **Sampled errors.** Beside these, the plain Gram network descends sampled TD errors with sampled shocks, a target network
# that is copied 25 times and a weight of a tenth on the gap's residual. This training resembles the release's, but it has our
# states, our shock and our input; Section 5.4 compares all settings. It was not tuned. We trained it with returns in their
# natural scale and with returns multiplied by $1-\gamma$, as in the release.
#
# **The constant** needs no learning. It is $2\sigma^2\gamma^2/(1-\gamma^2)$, the gap variance if branches never meet and
# rewards have no variance. Where the ratio of this constant to the simulation is near one, a network's ratio near one is no evidence of learning.
#
# **Trained twice.** For Section 6.9 we trained the local + near network once more, in all nine games with three seeds each. We show
# these 27 runs. For 14 of them there is an earlier run with the same seed; the coupled ratios of both agree within 0.0002.

# %%
gaps = figures.results(gap_files)
by_seed = figures.results(play_seed_files)
play_gaps = figures.results(play_gap_files)
run_of = ["game", "seed", "gamma"]
sums = gaps[gaps.kind == "near"].groupby(run_of)[["coupled", "mc"]].sum()
second_time = by_seed[by_seed.kind == "near"].set_index(run_of).coupled
twice = (second_time - sums.coupled / sums.mc).dropna().abs()
name = f"local + near, {len(twice) // 4} runs trained twice: coupled / MC, largest difference"
claims.check(name, f"{twice.max():.4f}", len(twice) == 4 * 14 and twice.max() < 0.001)
seeds = by_seed.groupby("game").seed.nunique()
text = ", ".join(f"{game} {number}" for game, number in seeds.items())
claims.check("local + near: seeds of each game", text, seeds.eq(3).all() and len(seeds) == 9)

# %%
untuned = ["SpaceInvaders", "Asterix", "Qbert", "MsPacman", "Freeway"]
games = [*paper.index, *untuned]
once = figures.results(result_files)
once = once[(once.kind != "near") & once.game.isin(paper.index)]
plays = figures.results(play_files)  # the local + near network once more, in all games
table = pd.concat([once, figures.results(rival_files), plays[plays.kind == "near"]])
table["game"] = pd.Categorical(table.game, games)  # in this order
table = table.sort_values(["game", "gamma"]).astype({"game": str})
wide = table.set_index(["kind", "gamma", "game"]).sort_index()
names = {"near": "local + near", "gram": "Gram", "paper, natural": "sampled errors", "paper, divided": "same, normalised"}  # fmt: skip


def ratio(kind, column):
    """Ratio and interval of the paper's four games, as the table shows them."""
    rows = wide.loc[kind, shown_gamma].loc[paper.index]
    pairs = zip(rows[column], rows[column + "_interval"], strict=True)
    return [f"{v:.1f} ± {e:.1f}" if v > 2 else f"{v:.3f} ± {e:.3f}" for v, e in pairs]


# %%
shown = {("coupled / MC", label): ratio(kind, "coupled") for kind, label in names.items()}
shown["coupled / MC", "constant"] = [f"{v:.2f}" for v in wide.constant["near", shown_gamma][paper.index]]  # fmt: skip
shown["independent / MC", "local + near"] = ratio("near", "independent")
shown["independent / MC", "simulated"] = ratio("near", "mc_ratio")
shown = pd.DataFrame(shown, index=paper.index)
shown

# %% [markdown]
# The same ratios as in Table 1, at $\gamma = 0.99$, but with one shock for all actions, of one size in training and
# evaluation. *Coupled / MC* is the learned gap variance divided by the simulated
# one. It is shown for the local + near network, for the Gram network with its best trial, and for the Gram network that
# descends sampled errors, with returns in their natural scale and multiplied by $1-\gamma$. *Independent / MC* divides
# $\operatorname{Var} Z_a + \operatorname{Var} Z_b$ by the simulated gap variance, first with the variances of the local + near
# network and then with simulated ones. Each number is the mean of three seeds over 64 states, with 36 plays per
# state (three pairs, twelve times each) and a horizon of 300. The ± is half of a 95% interval for these states; it covers the noise of the simulation and the
# spread between seeds. The horizon cuts off $\gamma^{600}$ of the shocks' variance, 0.24%.

# %%
head = [
    "", "local + near", "Gram", "sampled", "normalised", "constant", "indep.", "simulated",
]  # fmt: skip
cells = [[game, row[0], *(c.split(" ±")[0] for c in row[1:])] for game, *row in shown.itertuples()]
fig, ax = plt.subplots(figsize=(6.75, 1.3), layout="constrained")
plots.text_table(ax, [head, *cells])
title = rf"coupled / MC (5 columns) and independent / MC (2) at $\gamma$ = {shown_gamma:g}"
ax.set_title(title, fontsize="medium")
plt.close(fig)  # for the gallery; the notebook has the table itself
figures.save(fig, "table_networks", table[~table.kind.str.contains("+", regex=False)], out_dir)

# %% [markdown]
# The next table shows all games and discounts for the local + near network. *Skill* is
# $1 - \mathrm{MSE}_{\text{network}} / \mathrm{MSE}_{\text{constant}}$ over states, with the noise of the simulation
# subtracted from both errors: one is perfect, and zero is as good as the constant. *Rank* is Spearman's correlation over
# states. Its *ceiling*, the square root of the reliability, is what a perfect prediction would reach against this noisy
# simulation. Where the constant is right within the noise of the simulation, or within 1%, a skill would divide by almost zero, and we print a dash
# instead. One case needs it: Freeway at $\gamma = 0.1$.

# %%
ours = table[table.kind == "near"]
grid = ours.assign(ceiling=np.sqrt(ours.reliability)).set_index(["game", "gamma"])
shown = grid[["coupled", "coupled_interval", "constant", "skill", "rank", "ceiling"]]
shown.map(lambda value: "–" if np.isnan(value) else f"{value:.3f}")

# %%
off = (ours.coupled - 1).abs()
six = ours[ours.game.isin(games[:6])]
text = f"{six.coupled.min():.3f} to {six.coupled.max():.3f}"
claims.check(f"local + near, first six games: coupled / MC within 5%, {len(six)} cases", text, off[six.index].max() <= TOLERANCE["ratio"] and len(six) == 24)  # fmt: skip
each = by_seed[(by_seed.kind == "near") & by_seed.game.isin(games[:6])].coupled
text = f"{each.min():.3f} to {each.max():.3f}"
claims.check(f"the same, single seeds: {len(each)} cases", text, (each - 1).abs().max() <= TOLERANCE["ratio"])  # fmt: skip
outside = ours[off > TOLERANCE["ratio"]]
text = ", ".join(f"{g} {y:g} ({v:.2f})" for g, y, v in outside[["game", "gamma", "coupled"]].values)
claims.check(f"goal: coupled / MC within 5% in all {len(ours)} cases; missed in", text, len(outside) == 3 and len(ours) == 36, "goal missed")  # fmt: skip
worst = (ours.independent / ours.mc_ratio - 1).abs().max().round(3)
claims.check("independent / MC: learned and simulated differ by at most 5%", worst, worst < 0.05)
near_one = [g for g, c in ours.groupby("game", sort=False).constant if (c - 1).abs().max() < 0.1]
claims.check("games where the constant is within 10% too", ", ".join(near_one), len(near_one) > 0)

# %%
at = {kind: wide.loc[kind, 0.99].coupled for kind in ("gram", "paper, natural", "paper, divided")}
text = {kind: f"{v.min():.2g} to {v.max():.2g}" for kind, v in at.items()}
other = "differs from the paper"  # which has 1.03 to 3.97
claims.check("Gram, tuned, gamma 0.99: coupled / MC", text["gram"], at["gram"].max() < 1.03, other)
small, large = at["paper, natural"], at["paper, divided"]
claims.check("Gram, sampled errors, gamma 0.99", text["paper, natural"], small.max() < 1.03, other)
claims.check("the same, with normalised returns", text["paper, divided"], large.min() > 3.97, other)

# %% [markdown]
# Our goal was a skill of 0.9 in every case where states differ by more than the noise of the simulation. It is **not
# reached** in five of 35 cases: in Boxing at every discount, and in BattleZone at $\gamma = 0.99$. In these cases the gap variances of
# the states differ by less than 10% (standard deviation), mostly through the variance of rewards. To know it, the network would have to
# predict who gets hit. Section 6.9 shows what helps.
#
# In more cases than these, ranks stay far below their ceilings. Where most states have almost the same gap variance, as in Pong at
# $\gamma = 0.1$, a rank gives tiny differences the same weight as large ones. The skill does not.

# %%
missed = ours[(ours.reliability > 0.5) & (ours.skill < TOLERANCE["skill"])]
where = ", ".join(f"{g} {y:g}" for g, y in zip(missed.game, missed.gamma, strict=True))
claims.check("goal: skill of at least 0.9; missed in", where, len(missed) > 0, "goal missed")
text = f"{ours.skill.count() - len(missed)} of {ours.skill.count()}"
claims.check("network alone: cases that reach it", text, text == "30 of 35")
without = ours[ours.skill.isna()]
text = ", ".join(f"{g} {y:g}" for g, y in zip(without.game, without.gamma, strict=True))
claims.check("cases without a skill, where the constant is right", text, text == "Freeway 0.1")
boxing = grid.loc[("Boxing", 0.99)]
played = boxing.mc * boxing.mc_ratio * (1 - 0.99**2) / 2  # / that of shocks and nothing else
learned = boxing.mc * boxing.independent * (1 - 0.99**2) / 2
name = "Boxing, gamma 0.99: variance of returns / that of shocks alone"
claims.check(f"{name}, simulated, learned", f"{played:.3f}, {learned:.3f}", learned < played)

# %%
fig, (ax, zoom) = plt.subplots(2, 1, figsize=(6.75, 4.8), sharex=True, layout="constrained")
searched = table[table.kind.isin(["gram", "local", "near"])]
plots.gap_ratios(ax, searched, paper.coupled.reindex(games))
fig.legend(loc="outside lower center", ncols=4)
plots.gap_ratios(zoom, searched)
zoom.set(yscale="linear", ylim=(0.85, 1.35))
for name in [*zoom.texts]:  # they stand above the upper panel
    name.remove()
ax.set_xlabel("")
fig.supylabel("gap variance, learned / simulated", fontsize="medium")
figures.save(fig, "fig_gap_ratios", searched, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.2.** Learned over simulated gap variance of the three networks that got the same search, for nine games and four discounts, three seeds, with 95% intervals; below, the same near one. Nothing was tuned in the five games on the right. Grey: one, give or take 5%. The crosses
# are the paper's numbers, at $\gamma = 0.99$ and with the release's shock: there, a calibrated ratio would be 16 (Section 6.3).
#
# <!-- alt: Two panels with nine groups of four discounts, the lower one enlarged around one. Circles of the local and near network lie within 5% of one, except at gamma 0.1 in Qbert and Ms. Pacman and at gamma 0.99 in Freeway, where they are above; triangles of the local network mostly do. Squares of the plain Gram network start between 0.9 and 17 at gamma 0.1 and fall to between 0.009 and 0.12 at gamma 0.99. -->

# %% [markdown]
# **Where it is off by more than 5%.** All three cases are in the last three games, and all three ratios are too large.
#
# *Qbert and Ms. Pacman at $\gamma = 0.1$.* At 62 and 34 of the 64 states of one seed, the actions of all pairs have one future (while Qbert hops,
# the joystick does nothing), and the gap variance is almost zero. So its average over states is small: the constant is 37 and 4 times as large. Where it
# is almost zero, the network still predicts half a percent of the constant in Qbert, and 4% in Ms. Pacman, and over so many states
# this adds up. A state's own tables tell which actions have one future. With them, that is, after one step in the emulator, both ratios
# are right within 1%.

# %%
still = play_gaps[(play_gaps.gamma == 0.1) & (play_gaps.kind == "near") & (play_gaps.seed == 10)]
constant = 2 * 0.01 / (1 - 0.01)
after_one = plays[(plays.kind == "near+table") & (plays.gamma == 0.1)].set_index("game").coupled
for game in ("Qbert", "MsPacman"):
    each = still[still.game == game]
    merged = each[each.mc < 0.01 * constant]
    text = f"{len(merged)} of {len(each)}, {merged.coupled.mean() / constant:.3f}"
    claims.check(f"{game}, gamma 0.1: states without a gap variance, learned / constant there", text, 2 * len(merged) > len(each))  # fmt: skip
    text = f"{grid.coupled[game, 0.1]:.3f}, {after_one[game]:.3f}"
    right = abs(after_one[game] - 1) < 0.01
    claims.check(f"{game}, gamma 0.1: coupled / MC alone, with the state's tables", text, right)

# %% [markdown]
# *Freeway at $\gamma = 0.99$.* Nobody scores here, and all randomness is the shock. The learned variances of single returns are right, so what is too small is the covariance: the network
# underestimates how often branches meet late. We had two guesses, written down before their runs: that it sees too few pairs of branches on
# their way to each other (`[followed]` in the protocol: half of the states instead of one in twenty), or that it has too few states (`[more]`: twice as many, one seed). Both were also run with
# 20,000 steps of training instead of 5,000. Since only the steps helped, we then ran the longer training on the old states (`[longer]`).

# %%
freeway = {
    ("as above", 5_000): by_seed[(by_seed.kind == "near") & (by_seed.game == "Freeway")],
    ("more pairs followed", 5_000): figures.results(followed_files).query("trial == 'fast'"),
    ("twice the states", 5_000): figures.results(more_files).query("trial == 'fast'"),
    ("as above", 20_000): figures.results(longer_files),
    ("more pairs followed", 20_000): figures.results(followed_files).query("trial == 'long'"),
    ("twice the states", 20_000): figures.results(more_files).query("trial == 'long'"),
}
freeway = {case: rows[rows.gamma == 0.99].coupled for case, rows in freeway.items()}
freeway = pd.DataFrame({case: each.agg(["mean", "min", "max", "size"]) for case, each in freeway.items()}).T  # fmt: skip
freeway.index.names = ["states", "steps"]
freeway.round(3).astype({"size": int}).rename(columns={"size": "seeds"})

# %%
short, long = freeway.xs(5_000, level="steps"), freeway.xs(20_000, level="steps")
text = f"{short['mean'].min():.2f} to {short['mean'].max():.2f}"
claims.check("Freeway, gamma 0.99, 5,000 steps: coupled / MC, whatever the states", text, short["min"].min() > 1.05, "goal missed")  # fmt: skip
text = f"{long['min'].min():.3f} to {long['max'].max():.3f}"
claims.check("the same, 20,000 steps: single seeds, within 5%", text, long["max"].max() <= 1.05)
row = grid.loc[("Freeway", 0.99)]
text = f"{row.independent / row.mc_ratio:.3f}"
claims.check("Freeway, gamma 0.99: variances of single returns, learned / simulated", text, abs(row.independent / row.mc_ratio - 1) < 0.01)  # fmt: skip

# %% [markdown]
# Both guesses were wrong. With 5,000 steps the ratio stays at 1.09 to 1.10, whichever states the network learns from. With 20,000 steps every seed
# is within 5%, on the old states too. So training was too short. Our explanation, which we did not test further: a network learns
# of a late meeting one backup at a time, and 5,000 steps were too few.

# %% [markdown]
# **The sampled training with enough copies.** The two columns *sampled errors* and *same, normalised* come from 25 copies of the
# target network, which leave $\gamma^{50} = 61\%$ of an initial error of a covariance. They still depend on the random start. So we trained the same network
# once more with a copy every 50 steps instead of every 1,000: 500 copies, the same 25,000 steps, three seeds
# (`[converged]` in `experiments/atari/protocol.toml`). We say that a training has *settled* if the mean ratio over the last fifth of the steps
# is within 10% of the mean over the fifth before. This rule was stated before the runs.

# %%
with_copies = figures.results(converged_curve_files)


def copies_panel(ax, rows):
    """Coupled / MC of one game against copies, seeds and mean, in both scales."""
    for scale, color in {"divided": "#D55E00", "natural": "#0072B2"}.items():
        plots.seed_curves(ax, rows[rows.scale == scale], "coupled", color)
    ax.axhline(1, color="0.6", lw=0.8, zorder=0)
    ax.set_xticks([0, 10_000, 20_000], ["0", "200", "400"])
    ax.set(title=rows.game.iloc[0], yscale="log", xlabel="copies")


# %%
fig, axes = plt.subplots(1, 4, figsize=(6.75, 2.6), sharex=True, sharey=True, layout="constrained")
for ax, game in zip(axes, paper.index, strict=True):
    copies_panel(ax, with_copies[with_copies.game == game])
axes[0].set_ylabel("coupled / MC")
lines = [ax.lines[3], ax.lines[7]]  # the mean over seeds of either scale
fig.legend(lines, ["normalised returns", "natural scale"], loc="outside lower center", ncols=2)
figures.save(fig, "fig_copies", with_copies, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.3.** The Gram network that descends sampled errors, with 500 copies of its target network: learned over simulated gap variance during training at $\gamma = 0.99$, in both scales of returns. Thin lines are seeds, thick lines their mean; grey: one.
#
# <!-- alt: Four panels on a logarithmic axis over four decades. Orange curves of normalised returns start between 18 and 70 and fall all the way, through one at about 200 copies, to about 0.1 at 500 copies, where they become flatter. Blue curves in the natural scale stay flat, between 0.02 and 0.2. -->

# %%
every = with_copies.groupby(["scale", "game", "step"], sort=False)[
    ["coupled", "independent"]
].mean()
fifth = np.ceil(every.index.get_level_values("step") / 5_000)
late, before = (every[fifth == part].groupby(level=[0, 1]).mean() for part in (5, 4))
change = (late / before).coupled.unstack("game")
settled = (change - 1).abs().max(axis=1) < TOLERANCE["settled"]
scale_names = {"natural": "natural scale", "divided": "normalised"}
for scale in scale_names:
    text = f"{change.loc[scale].min():.2f} to {change.loc[scale].max():.2f}"
    name = f"500 copies, {scale_names[scale]}: coupled / MC, last fifth / fifth before"
    reached = "holds" if settled[scale] else "goal missed"
    claims.check(f"{name}, within 10%", text, settled[scale] == (scale == "natural"), reached)

# %%
converged = figures.results(converged_files).set_index(["kind", "game"])
for scale, name in scale_names.items():
    ends = converged.loc[scale]
    text = f"{ends.coupled.min():.3f} to {ends.coupled.max():.3f}"
    claims.check(f"500 copies, {name}: coupled / MC", text, ends.coupled.max() < 0.2, other)
    text = f"{ends.independent.min():.2f} to {ends.independent.max():.2f}"
    claims.check(f"500 copies, {name}: independent / MC", text, ends.independent.max() < 2.5, other)
simulated = f"{ends.mc_ratio.min():.2f} to {ends.mc_ratio.max():.2f}"
claims.check("gamma 0.99: independent / MC, both simulated", simulated, ends.mc_ratio.max() < 2.5)

# %% [markdown]
# **With enough copies, the large ratios are gone.** Coupled / MC is 0.02 to 0.20 in the natural scale, where training has settled. With normalised
# returns it passes through one on its way down, and ends at 0.08 to 0.13. It has not settled: in the last fifth of the steps it is 0.57 to 0.77 times what it was in the fifth before. So with normalised returns a ratio near one, or a large one,
# only says when training stopped. In either scale the gap variance is at least 5 times too small. Independent / MC
# falls from about 100 to between 0.8 and 2.1 with normalised returns, and is 0.6 to 1.0 in the natural scale; the simulation has 1.03 to 1.63.

# %% [markdown]
# ## 6.7 Why three terms
#
# One-step coupling is *local*: returns from two distinct states share no table, so their covariance is zero unless the
# branches meet later. A Gram network uses $\langle v(x), v(y)\rangle$ for every pair. To give each state a large variance and
# almost all pairs of states no covariance, its vectors $v$ would have to be orthogonal across thousands of states. In
# 64 dimensions they can be so only approximately. In Figure 6.2 its gap variance is too large at $\gamma = 0.1$, in all games but Freeway. At $\gamma = 0.99$ it makes all returns
# correlated, and the gap variance collapses.
#
# - The **local** term, $1\{s=t\}\langle u(x), u(y)\rangle$, is a block-diagonal Gram kernel and still positive
#   semidefinite. One coordinate of $u$ is the shock, which is known and not learned; the plain Gram network is not told
#   about it. With this term, most games come out right.
# - In **Atlantis**, branches often meet again: the constant, which ignores this, is 1.6 to 2.0 times the simulated gap
#   variance. So covariances between *distinct* states matter there, and inner products alone miss them.
#   The **near** term is $k(s,t)\langle q(x), q(y)\rangle$ with $k = e^{-|f(s)-f(t)|^2}$ and a learned linear map $f$. It
#   expresses that near states are likely to meet.

# %%
atlantis = table[(table.game == "Atlantis") & (table.gamma == 0.99)].set_index("kind")
local, near = atlantis.coupled.local, atlantis.coupled.near
off = abs(near - 1) < abs(local - 1)
claims.check("Atlantis, gamma 0.99: coupled / MC, local alone, with the near term", f"{local:.2f}, {near:.2f}", off)  # fmt: skip

# %% [markdown]
# **Is it the structure, or the knowledge of the shock?** So far our networks were given the shock's covariance, and the Gram network was
# not. A fair comparison has all six: {Gram, local, local + near} $\times$ {shock known, shock learned}. *Known* means one coordinate
# of $u$ that is not learned; "Gram, shock known" has this local coordinate and no other. (The targets contain the shock's variance in closed form for all six.) Each of the six got the same
# search, six trials in Pong and Atlantis at $\gamma = 0.9$ and 0.99, and was then trained with its best trial, in four games with
# three seeds (`[search]` and `[ablation]` of the protocol).
#
# **The rule**, stated before the runs: an ingredient is *credited* in a case if the error over states with it is smaller by a factor of 1.25 or
# more than the error without it, on average over the seeds, and smaller in every seed.

# %%
both = pd.concat([trials[trials.game.isin(["Pong", "Atlantis"]) & (trials.gamma >= 0.9)], figures.results(search_files)])  # fmt: skip
sought = both.groupby(["kind", "trial"], sort=False).error.mean().unstack()
ablation = figures.results(ablation_files)
used = ablation.groupby("kind").trial.agg(set)
right = sum(used[kind] == {trial} for kind, trial in sought.idxmin(axis=1).items())
complete = sought.shape == (6, 6) and sought.notna().all(axis=None)
claims.check("ablation: networks that had six trials and use the best of them", f"{right} of {len(used)}", right == 6 and complete)  # fmt: skip
sought.round(3)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 3.1), sharey=True, layout="constrained")
for ax, (gamma, rows) in zip(axes, ablation.groupby("gamma"), strict=True):
    plots.ablation_errors(ax, rows.sort_values("game", key=lambda game: game.map(games.index)))
    ax.set_title(rf"$\gamma = {gamma:g}$")
axes[0].set_ylabel("error over states / average")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
figures.save(fig, "fig_ablation", ablation, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.4.** Which ingredient helps? Root mean squared error over states of the learned gap variance, over its average, for six networks, four games and two discounts; one mark for each of three seeds. Open marks: the shock must be learned; filled marks: it is known.
#
# <!-- alt: Two panels with a group of six columns of marks for each game. The pink marks of the Gram networks are at 0.3 to 0.99; the orange and blue marks of the networks with a local term are at 0.01 to 0.2, far lower; open and filled marks of one colour lie almost at the same height, except for Gram at gamma 0.9, where filled ones are a little lower. Blue lies well below orange in Atlantis. -->

# %%
credited = credits(ablation, TOLERANCE["factor"])
by_pair = credited.groupby(["ingredient", "with_it", "without", "gamma"], sort=False)
by_pair.agg(credited=("credited", "sum"), least=("ratio", "min"), most=("ratio", "max")).round(2)

# %%
counts = credited.groupby("ingredient").credited.agg(["sum", "size"])
text = f"{counts['sum']['local term']} of {counts['size']['local term']}"
claims.check("ablation: the local term is credited in", text, counts["sum"]["local term"] == 16)
near_term = credited[(credited.ingredient == "near term") & credited.credited]
text = f"{len(near_term)} of 16, Atlantis {(near_term.game == 'Atlantis').sum()} of 4"
claims.check("ablation: the near term is credited in", text, (near_term.game == "Atlantis").sum() == 4)  # fmt: skip
known = credited[credited.ingredient == "shock known"].set_index("with_it")
told = known.credited.groupby(level=0).sum()
text = f"Gram {told['gram known']}, local {told['local']}, local + near {told['near']}"
claims.check("ablation: a known shock is credited in, of 8 each", text, told["local"] + told["near"] <= 2)  # fmt: skip

# %%
level = ablation.groupby(["kind", "gamma", "game"], sort=False).coupled.mean()
for kind, wanted in {"gram known": False, "local learned": False, "near learned": True}.items():
    at = level[kind]
    text = f"{at.min():.3f} to {at.max():.3f}"
    inside = bool(((at - 1).abs() <= TOLERANCE["ratio"]).all())
    claims.check(f"ablation, {kind}: coupled / MC of eight, all within 5%", text, inside == wanted, "holds" if inside else "goal missed")  # fmt: skip

# %% [markdown]
# **The local term is what counts.** It lowers the error in all 16 comparisons, by factors of 2 to 25. The near term is credited in all four
# comparisons in Atlantis, where branches meet, and in four of the other twelve. Knowing the shock helps the Gram network at $\gamma = 0.9$ only. Even so, its gap variance is a third too small there, and at 0.99 it is
# 6 times too small. With a local term, a known shock is credited in 2 of 16 comparisons. *Local + near with a learned shock* is within 5%
# in all eight cases. So our results do not rest on telling the network the shock.

# %% [markdown]
# ## 6.8 Independent over coupled, simulated
#
# By what factor do independent marginals really overestimate the gap variance? With one shock per state, the factor is about
# $1/\gamma^2$ where branches rarely meet: in Pong, BattleZone and Boxing, within 10%. In Atlantis and Space Invaders they merge often. This about halves the coupled
# variance and doubles the factor. At $\gamma = 0.1$ the factor is four times $1/\gamma^2$ in Ms. Pacman, and 37 times in Qbert. These factors are ratios of two simulated variances. They have nothing to do with the second column
# of Table 1, which is a network's prediction.

# %%
looks = [*zip("os^Dvp*", (f"C{i}" for i in range(7)), strict=True), ("<", "0.5"), (">", "#8C510A")]
fig, ax = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
fine = np.geomspace(0.09, 0.995, 100)
ax.loglog(fine, fine**-2, color="0.6", lw=3, label=r"$1/\gamma^2$")
for (game, each), (marker, color) in zip(ours.groupby("game", sort=False), looks, strict=True):
    ax.loglog(each.gamma, each.mc_ratio, marker, ms=4, mfc="none", color=color, label=game)
    ax.loglog(each.gamma, each.independent, lw=0.8, color=color)
ax.set(xlabel=r"$\gamma$", ylabel="independent / coupled")
fig.legend(loc="outside right upper")
figures.save(fig, "fig_independent_ratio", ours, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.5.** Independent over coupled gap variance against $\gamma$: simulated (marks) and learned by the local + near network (lines). Grey: $1/\gamma^2$.
#
# <!-- alt: Marks and thin lines of five games fall along the grey line from 100 at gamma 0.1 to one at gamma 0.99; Atlantis and Space Invaders lie at about twice its height, Ms. Pacman at four times and Qbert at 37 times at gamma 0.1. Every line goes through its marks. -->

# %%
least = wide.mc_ratio["near", 0.1][paper.index].drop("Atlantis")
text = f"{least.min():.1f} to {least.max():.1f}"
claims.check("gamma 0.1, the paper's games without Atlantis", text, (least - 100).abs().max() < 10)
often = wide.mc_ratio["near", 0.1][["SpaceInvaders", "MsPacman", "Qbert"]] / 100
text = ", ".join(f"{game} {factor:.1f}" for game, factor in often.items())
claims.check("gamma 0.1: independent / coupled over 1 / gamma^2", text, often.min() > 2)

# %% [markdown]
# ## 6.9 State by state
#
# An average can be right for the wrong reasons, so we look at every state.

# %%
all_seeds = play_gaps[(play_gaps.gamma == 0.9) & (play_gaps.kind == "near")]
chosen = all_seeds[all_seeds.seed == 10]

# %%
fig, axes = plt.subplots(3, 3, figsize=(6.75, 6.4), layout="constrained")
for ax, game in zip(axes.flat, games, strict=True):
    each, row = chosen[chosen.game == game], grid.loc[(game, 0.9)]
    figures.agreement(ax, each.coupled, each.mc, bars=1.96 * each.mc_error)
    ax.axvline(2 * 0.81 / 0.19, color="0.6", ls=":")
    ax.set_title(f"{game}\nskill {row.skill:.2f}, rank {row['rank']:.2f} of {row.ceiling:.2f}")
fig.supxlabel("predicted gap variance", fontsize="medium")
fig.supylabel("simulated gap variance", fontsize="medium")
figures.save(fig, "fig_gap_scatter", chosen, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.6.** Gap variance at $\gamma = 0.9$, predicted by the local + near network (seed 10) against simulated, one dot for each of 64 states that were never looked at before; bars are 95% intervals of the simulation, the line is where both agree, and the dotted
# line marks the constant. Titles give skill and rank of all seeds, the rank beside its ceiling. Axes differ.
#
# <!-- alt: Nine scatter plots. In Atlantis, Space Invaders, Asterix, Qbert and Ms. Pacman the dots follow the diagonal over a wide range; in Pong, BattleZone and Freeway many dots sit near the constant, and the others follow the diagonal below it; in Boxing they form a cloud near the constant with a few below. -->

# %% [markdown]
# **Ask the emulator.** The emulator is at hand. A user can play the first $h$ steps from the queried state and use the
# network only for what comes later. We play each pair 24 times, in all games alike (`[plays]` of the protocol; three
# seeds). This costs $144h$ emulator steps per state: three pairs, 24 plays, two branches. The full simulation costs 21,600.

# %%
plays["h"] = pd.to_numeric(plays.kind.str.extract(r"^near\+(\d+)$")[0])
plays.loc[plays.kind == "near", "h"] = 0.5  # the network alone, for a logarithmic axis
deep = plays.dropna(subset="h")
skill = deep[deep.gamma >= 0.9].pivot_table(index="h", columns=["gamma", "game"], values="skill")

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 3.2), sharey=True, layout="constrained")
for ax, gamma in zip(axes, (0.9, 0.99), strict=True):
    for game, (marker, color) in zip(games, looks, strict=True):
        drawn = {"marker": marker, "color": color, "ms": 4, "mfc": "none"}
        ax.semilogx(skill.index, skill[gamma, game], label=game, **drawn)
    ax.axhline(0.9, color="0.6", ls="--", lw=0.8)
    ax.set_xticks(skill.index, ["0\n0", *(f"{h:g}\n{144 * h:g}" for h in skill.index[1:])])
    ax.set(title=rf"$\gamma = {gamma:g}$", xlabel="$h$ and emulator steps per state")
    ax.minorticks_off()
axes[0].set_ylabel("skill against the constant")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=5)
figures.save(fig, "fig_skill_depth", skill.stack([0, 1]).rename("skill").reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.7.** Skill of the local + near network when the first $h$ steps are played in the emulator, 24 times for each pair, and the network predicts only what comes after; $h = 0$ is the network alone. Mean of three seeds. Dashed: our goal, 0.9.
#
# <!-- alt: Two panels over h from 0 to 64. At gamma 0.9 Boxing rises from 0.3 to one, and all other games stay above 0.9. At gamma 0.99 Boxing rises from minus 0.1 to 0.88 and BattleZone from 0.5 to 0.91, most of it after 16 steps; the other seven games stay above 0.9. -->

# %%
deepest = plays[plays.h == 64].set_index(["game", "gamma"]).skill.dropna()
alone = grid.skill
low = alone.index[alone < TOLERANCE["skill"]]
missed = deepest.index[deepest < TOLERANCE["skill"]]
text = ", ".join(f"{game} {gamma:g} ({deepest[game, gamma]:.2f})" for game, gamma in missed)
claims.check("goal: skill of at least 0.9 with h = 64; missed in", text, list(missed) == [("Boxing", 0.99)], "goal missed")  # fmt: skip
text = f"{len(deepest) - len(missed)} of {len(deepest)}"
claims.check("h = 64: cases that reach it", text, text == "34 of 35")
new = deepest[untuned].min()
claims.check("h = 64, games without tuning: least skill", f"{new:.2f}", new >= TOLERANCE["skill"])
ratio = plays[plays.h == 64].coupled
text = f"{ratio.min():.2f} to {ratio.max():.2f}"
claims.check(f"h = 64: coupled / MC within 5%, {len(ratio)} cases", text, (ratio - 1).abs().max() <= TOLERANCE["ratio"])  # fmt: skip

# %%
played = by_seed[by_seed.kind == "near+64"].set_index(["game", "gamma"]).skill
for case in low:
    each = played.loc[case]
    text = f"{each.mean():.2f} ({each.min():.2f} to {each.max():.2f})"
    reached = "holds" if each.mean() >= TOLERANCE["skill"] else "goal missed"
    claims.check(f"{case[0]} {case[1]:g}, h = 64: skill of three seeds, above the network's", text, each.min() > alone[case], reached)  # fmt: skip
fell = (deepest - alone)["Pong"].min()
claims.check("Pong: largest loss of skill from h = 0 to 64", f"{-fell:.2f}", deepest["Pong"].min() >= TOLERANCE["skill"])  # fmt: skip

# %% [markdown]
# Playing the first steps repairs Boxing at three discounts: the rewards of the next $h$ steps need not be predicted if
# they are played. At $\gamma = 0.99$ it brings BattleZone to 0.91 (seeds 0.89 to 0.95), and Boxing to 0.88 (0.86 to 0.92), which is
# below the goal. The five games without tuning reach 0.96 and more, and all 36 ratios are within 5%. In Pong the network is a little better alone, 0.94 against 0.93 at $\gamma = 0.99$: Pong's states differ little, and
# 24 plays are noisier than the trained network. So depth is a
# trade: it replaces the network's error by the noise of a simulation, and it costs emulator steps. A user could play each
# pair more often, or stop where the noise exceeds the gain.
#
# **Is data, training or simulation the bottleneck?** For the two games with a case below the goal we trained further networks, with one seed:
# on 15,000 to 120,000 states and for 1,000 to 20,000 steps. We also played each pair 24 times, up to
# 128 steps deep (`[curves]` in `experiments/atari/protocol.toml`).

# %%
sizes = figures.results(size_files)
sizes["h"] = pd.to_numeric(sizes.kind.str.extract(r"^near\+(\d+)$")[0])
sizes.loc[sizes.kind == "near", "h"] = (
    0.5  # the network alone, where a logarithmic axis can show it
)
below = low
short = sizes[sizes.noise == "reward"].dropna().set_index(["game", "gamma"]).loc[below]


def size_panels(axes, found, value, order):
    """`value` against states, steps and depth, each with the other two as in the protocol."""
    steps = found.steps.mode()[0]
    states = found[found.steps != steps].states.iloc[0]
    one = found[found.h == 0.5]
    drawn = {"states to learn from": ("states", one[one.steps == steps])}
    drawn["steps of training"] = ("steps", one[one.states == states])
    drawn["steps played, $h$"] = ("h", found[(found.steps == steps) & (found.states == states)])
    for ax, (label, (x, part)) in zip(axes, drawn.items(), strict=True):
        for case, each in part.sort_values(x).groupby("case"):
            color = f"C{order.index(case)}"
            ax.semilogx(each[x], each[value], "o-", ms=3, color=color, label=case)
        ticks = np.sort(part[x].unique())
        names = ["0" if t < 1 else f"{t / 1000:g}k" if t > 999 else f"{t:g}" for t in ticks]
        ax.set_xticks(ticks, names)
        ax.minorticks_off()
        ax.set_xlabel(label)


# %%
cases = [f"{game} {gamma:g}" for game, gamma in below]
short["case"] = [f"{game} {gamma:g}" for game, gamma in short.index]
fig, axes = plt.subplots(1, 3, figsize=(6.75, 2.7), sharey=True, layout="constrained")
size_panels(axes, short, "skill", cases)
for ax in axes:
    ax.axhline(0.9, color="0.6", ls="--", lw=0.8)
axes[0].set_ylabel("skill against the constant")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=5)
figures.save(fig, "fig_skill_sizes", short.reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.8.** Skill in the five cases below the goal (dashed), one seed. Left: the network alone, after 5,000 steps on more and more states. Middle: the network alone, 60,000 states and more and more steps. Right: 60,000 states and 5,000 steps, with the first $h$ steps played 24 times for each pair.
#
# <!-- alt: Three panels of five lines. Left and middle, the lines stay between minus 0.3 and 0.7 and do not rise towards 0.9 with more states or more steps. Right, all lines rise to above 0.9 at 64 played steps. -->

# %%
best_alone = short[short.h == 0.5].skill.max()
name = "the five cases, network alone, any number of states and steps: largest skill"
claims.check(name, best_alone.round(2), best_alone < 0.9, "goal missed")
protocol = (short.states == 60_000) & (short.steps == 5_000)
one = short[protocol & (short.h == 64)].skill
text = ", ".join(f"{skill:.2f}" for skill in one)
claims.check("the five cases, h = 64, this one seed: skill", text, one.min() >= 0.9)
played = deepest[below]  # three seeds

# %% [markdown]
# Neither eight times the states nor twenty times the steps brings any of the five near the goal. The bottleneck is
# foresight: the network would have to predict single punches and shots many steps ahead, and even the next reward is hard to
# predict with 25 times the states (`benchmarks/foresight.py`, Section 5.5). Playing 64 steps brings all five
# above the goal in this one seed. On average over three seeds it does so for four of the five (Figure 6.7).
#
# Is the network still needed then? Those plays cost 9,216 emulator steps per state, 43% of the simulation. A simulation cut
# to the same cost has $12 \cdot 0.43$ plays of each pair. Its only error is noise, which we know from its standard errors.

# %%
cost = (
    2 * 3 * 24 * 64 / (2 * 3 * 12 * 300)
)  # branches, pairs, plays and steps, over the simulation's
each = gaps[(gaps.kind == "near") & (gaps.seed == 10)].set_index(["game", "gamma"]).loc[below]
level = np.array([2 * gamma**2 / (1 - gamma**2) for _, gamma in each.index])
noise = (each.mc_error**2).groupby(level=[0, 1]).mean()
left = ((each.mc - level) ** 2).groupby(level=[0, 1]).mean() - noise
equal = pd.DataFrame(
    {"h = 64 and the network": played, "simulation alone": 1 - noise / cost / left}
)
equal.round(2)

# %%
better = equal.index[equal.iloc[:, 0] > equal.iloc[:, 1]]
text = ", ".join(f"{game} {gamma:g}" for game, gamma in better)
claims.check("equal cost: the network helps in", text, ("Boxing", 0.99) in better)

# %% [markdown]
# In Boxing, plays with the network are much better than a simulation of the same cost, most of all at large $\gamma$,
# where long plays are noisy. In BattleZone at $\gamma = 0.99$ the simulation alone is a little better, 0.94 against 0.91. So the network pays off where
# the far future is noisy but nearly the same for all states.
#
# Table 1 does not test the *mean* of a gap. A variance within 5% does not say which action is better. Here is the
# correlation of predicted and simulated gap means over states: its mean over seeds, its least and largest seed, and its ceiling. In
# Freeway nobody scores, and every gap mean is zero.

# %%
by_game = chosen.groupby("game", sort=False)
noise = (chosen.mc_mean_error**2).groupby(chosen.game).mean() / by_game.mc_mean.var()
together = all_seeds.groupby(["game", "seed"])[["gap_mean", "mc_mean"]].corr()
together = together.gap_mean.xs("mc_mean", level=2)
means = together.groupby(level="game").agg(["mean", "min", "max"]).dropna()
scoring = [game for game in games if game in means.index]
means.assign(ceiling=np.sqrt(1 - noise[scoring])).loc[scoring].round(2)

# %%
none = [game for game in games if game not in scoring]
claims.check("gap means: games where all are zero", ", ".join(none), none == ["Freeway"])
good = list(means.index[means["mean"] > 0.5])
claims.check("gap means, gamma 0.9: games with a correlation above 0.5", ", ".join(good), good == ["Pong"])  # fmt: skip
some = means[means["min"] > 0].drop(good).sort_values("mean")
some = some[some["mean"] > 0.1]
text = ", ".join(f"{game} {row['mean']:.2f}" for game, row in some.iterrows())
claims.check("gap means, gamma 0.9: games between", text, list(some.index) == ["Qbert", "MsPacman"], "goal missed")  # fmt: skip
single = together.loc[scoring].drop([*good, *some.index], level="game")
rest = means["mean"].drop([*good, *some.index]).abs().max()
claims.check("gap means, gamma 0.9: largest absolute correlation elsewhere", f"{rest:.2f}", rest < 0.25, "goal missed")  # fmt: skip
outside = single[single.abs() > 0.25]
text = f"{single.min():.2f} to {single.max():.2f}; {len(outside)} of {len(single)} beyond 0.25"
claims.check("gap means, gamma 0.9: single seeds elsewhere", text, (len(outside), len(single)) == (1, 15), "goal missed")  # fmt: skip

# %% [markdown]
# With 64 states, chance alone gives correlations of up to 0.25 in size, 19 times in 20. In five games the means over seeds are at most
# 0.09 in size, and 14 of the 15 runs stay within 0.25; the other, in Atlantis, is just beyond it and has the wrong sign. In Ms. Pacman something is learned, with a
# correlation of 0.40, and a little in Qbert: 0.24, alike in all three seeds. Both are far below their ceilings of 0.82 and 0.63. **The network knows how large gaps are, but seldom which action is better.**

# %% [markdown]
# ## 6.10 The emulator's own coupling
#
# What do the actions of one state share without a reward shock? They share the sticky lottery of chapter 5 and, if their
# branches meet again, their future. We use four games, three seeds, 256 states, and 12 plays from each state. The
# networks learn from 100,000 states with three actions each (`figures/atari_sticky.json`). They see the memory and the
# previous action, but not Pong's knob. All variance now comes from rewards, which are rare. At $\gamma = 0.1$ three
# games have gap variances below $10^{-6}$, and ratios to such numbers say nothing.
#
# *near+table* adds one exact backup. A state at hand can be queried, so its own five tables (for 0 to 4 repeated frames)
# give the first step exactly, and the network is used only for what comes later.

# %%
natural = figures.results(sticky_table_files)
simulated = natural[natural.kind == "near"].set_index(["game", "gamma"])
shown = simulated[["mc", "mc_error", "mc_ratio", "mc_ratio_interval"]]
learned = natural.pivot_table(index=["game", "gamma"], columns="kind", values="coupled", sort=False)
shown.join(learned[["gram", "near", "near+table"]]).map("{:.3g}".format)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 3.0), width_ratios=(2, 3), layout="constrained")  # fmt: skip
for place, (gamma, color) in enumerate({0.5: "0.7", 0.9: "0.4", 0.99: "black"}.items()):
    each = simulated.xs(gamma, level="gamma").loc[paper.index]
    drawn = {"fmt": "o", "ms": 4, "mfc": "none", "color": color, "label": rf"$\gamma = {gamma:g}$"}
    left.errorbar(np.arange(4) + 0.2 * (place - 1), each.mc_ratio, each.mc_ratio_interval, **drawn)
left.set_xticks(range(4), ["Pong", "Battle\nZone", "Boxing", "Atlantis"])
left.axhline(1, color="0.6", lw=0.8, zorder=0)
left.grid(visible=False, axis="x")
left.set(ylabel="independent / coupled, simulated", ylim=(0.5, 1.7))
left.legend(loc="upper left")
plots.gap_ratios(right, natural[natural.gamma >= 0.9])
right.axhspan(0.9, 1.1, color="0.88", lw=0, zorder=-1)
right.set(ylabel="gap variance, learned / simulated", ylim=(4e-3, 6))
right.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
fig.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
figures.save(fig, "fig_sticky_ratio", natural, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.9.** Sticky actions without a shock. Left: by what factor independent marginals overestimate the gap variance, in simulation; only the interval of Atlantis at $\gamma = 0.99$ lies above one. Right: learned over simulated gap variance. Bars are 95% intervals; the grey band is our goal, 0.9 to 1.1.
#
# <!-- alt: Left, three marks for each of four games lie near one, most with bars that cross it; Atlantis is at 1.17 for gamma 0.99, and its bar is above one. Right, circles of the local and near network lie between 1.1 and 2.1 at gamma 0.9 and between 0.6 and 0.9 at gamma 0.99, diamonds with the state's own tables close to them, and squares of the plain Gram network below, at less than 0.1 for gamma 0.99. -->

# %% [markdown]
# **The natural coupling is weak.** In Atlantis at $\gamma = 0.99$, independent marginals overestimate the gap variance by a
# sixth. In no other game is the overestimate certain. At $\gamma = 0.5$, where the first steps count most, Atlantis shows no
# sign of it. So the cause is not the lottery, but branches that meet again.

# %%
tiny = list(simulated.index[simulated.mc < 1e-6].get_level_values("game"))
claims.check("sticky: games with gap variances below 1e-6", ", ".join(tiny), len(tiny) == 3)
far = simulated.xs(0.99, level="gamma")
certain = far.mc_ratio - far.mc_ratio_interval > 1
claims.check(
    "sticky, gamma 0.99: games where independent / coupled is above 1 beyond doubt",
    ", ".join(far.index[certain]),
    list(far.index[certain]) == ["Atlantis"],
)
largest = far.mc_ratio.max().round(2)
claims.check(
    "sticky, gamma 0.99: largest independent / coupled", largest, abs(largest - 7 / 6) < 0.01
)
early = simulated.loc["Atlantis", 0.5]
none = early.mc_ratio - early.mc_ratio_interval < 1
name = "sticky, Atlantis, gamma 0.5: independent / coupled"
claims.check(name, early.mc_ratio.round(2), none)

# %% [markdown]
# **The learned variances have the right order of magnitude at large $\gamma$, but they are not calibrated.** Our goal was 0.9 to 1.1 times
# the simulated variance at $\gamma = 0.9$ and 0.99. It is reached in one case of eight, Boxing at 0.99: the ratios are 1.13 to 2.13 and 0.60 to 0.91.
#
# Without the shock, which was known in closed form, two errors pull in opposite directions.
#
# - If the mean does not predict a reward, its squared error counts as variance. The learned variance is too large, and
#   where the true variance is almost zero, this error is all there is. A state's own tables help against it.
# - At $\gamma = 0.99$ the network has memorised its training states. It treats remembered rewards as predictable and so
#   underestimates the variance on new states.
#
# At $\gamma = 0.99$ the plain Gram network collapses as before, to less than a tenth.

# %%
for gamma in (0.9, 0.99):
    at = learned.xs(gamma, level="gamma")
    text, right = f"{at.near.min():.2f} to {at.near.max():.2f}", at.near.between(0.9, 1.1)
    name = f"goal: sticky, gamma {gamma:g}, learned / simulated within 0.9 and 1.1"
    claims.check(name, text, not right.all(), "goal missed")
claims.check("sticky, gamma 0.99: plain Gram, largest", at.gram.max().round(2), at.gram.max() < 0.1)
off = np.log(learned).abs().drop(index=0.99, level="gamma")
nearer = (off["near+table"] < off.near).sum()
claims.check("sticky, below 0.99: cases that a state's own tables bring nearer to 1", f"{nearer} of {len(off)}", nearer == len(off))  # fmt: skip

# %%
told = figures.results(sticky_curve_files)
told = told[(told.kind == "near") & (told.step == told.step.max())]
errors = told.groupby(["gamma", "game", "curve"]).mu.mean().unstack()
rare = (2 * errors.expected.loc[0.5] / simulated.mc.xs(0.5, level="gamma")).round(1)
claims.check(
    "sticky, gamma 0.5: the mean's squared error / gap variance, least", rare.min(), rare.min() > 1
)
seen = (errors.expected / errors.td).loc[0.99].round(1)
claims.check(
    "sticky, gamma 0.99: the mean's error on new states / in training, least",
    seen.min(),
    seen.min() > 1,
)

# %% [markdown]
# **Data, training or simulation?** The second error suggests that more states help, and the first that plays of a few steps do.
# Here are four games, one seed and 128 states under the protocol (`[sticky]`), with eight plays of each pair for the
# simulation and eight others of up to 128 steps for the network to go on from. We leave out one case, BattleZone at
# $\gamma = 0.9$, whose simulated variance is less than three times its standard error.

# %%
lottery = sizes[sizes.noise == "sticky"].dropna(subset="h").set_index(["game", "gamma"])
lottery = lottery[lottery.mc > 3 * lottery.mc_error]
lottery["case"] = lottery.index.get_level_values("game")
fig, axes = plt.subplots(2, 3, figsize=(6.75, 4.4), sharey=True, layout="constrained")
for row, gamma in zip(axes, (0.9, 0.99), strict=True):
    size_panels(row, lottery.xs(gamma, level="gamma"), "coupled", list(paper.index))
    row[0].set(ylabel=rf"learned / simulated, $\gamma = {gamma:g}$", yscale="log")
    for ax in row:
        ax.axhspan(0.9, 1.1, color="0.85", zorder=0)
        ax.set_yticks([0.4, 0.6, 1, 2], ["0.4", "0.6", "1", "2"])
        ax.minorticks_off()
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4)
figures.save(fig, "fig_sticky_sizes", lottery.reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.10.** Sticky actions: learned over simulated gap variance, one seed. Left: the network alone, after 4,000 steps on more and more states. Middle: the network alone, 100,000 states and more and more steps. Right: 100,000 states and 4,000 steps, with the first $h$ steps played. Grey: our goal, 0.9 to 1.1.
#
# <!-- alt: Two rows of three panels. Left, the ratios of all games rise with the states, at gamma 0.99 from between 0.4 and 0.7 to between 0.6 and 0.8. Middle, they fall from between 0.9 and 2.7 at 1,000 steps to between 0.6 and 1.2 at 4,000; from there on, two rise again at gamma 0.99. Right, most dip and then come to the grey band, between 0.84 and 1.04 at 128 played steps. -->

# %%
ratio = lottery.reset_index().set_index(["states", "steps", "h", "gamma", "game"]).coupled.unstack()
grown = ratio.xs((4_000, 0.5, 0.99), level=["steps", "h", "gamma"])  # by states
rises = (grown / grown.shift()).min(axis=None)
claims.check(
    "sticky, gamma 0.99: ratio with twice the states / before, least", f"{rises:.2f}", rises > 1
)
few, many = (ratio.loc[100_000, steps, 0.5, 0.99] for steps in (1_000, 4_000))
claims.check("sticky, gamma 0.99: ratio after 4,000 steps / after 1,000, largest", (many / few).max().round(2), (many < few).all())  # fmt: skip
deep = lottery[(lottery.states == 100_000) & (lottery.steps == 4_000) & (lottery.h == 128)]
text = f"{deep.coupled.min():.2f} to {deep.coupled.max():.2f}"
near_band = (deep.coupled - 1).abs() < 0.1 + deep.coupled_interval
claims.check("sticky, h = 128: learned / simulated, 0.9 to 1.1 within its 95% interval", text, near_band.all())  # fmt: skip
out = deep.index[(deep.coupled - 1).abs() > 0.1]
text = ", ".join(f"{game} {gamma:g}" for game, gamma in out)
claims.check("goal: sticky, h = 128, the ratio itself within 0.9 and 1.1; missed in", text, len(out) > 0, "goal missed")  # fmt: skip

# %% [markdown]
# At $\gamma = 0.99$ every doubling of the states raises the ratio, and after 1,000 steps it is larger than after 4,000. (From 4,000 to
# 16,000 steps it hardly changes in two games, and rises in the other two.) So the network memorises, and data is the bottleneck. With 128 played steps all seven cases come to 0.84 to 1.04. Two of them lie outside our goal, Boxing at $\gamma = 0.9$ and
# BattleZone at 0.99, by less than the noise of their simulation. At $\gamma = 0.9$ the network no longer contributes after 128
# steps, and we compare two simulations: eight plays of each pair are too few to show 10%.

# %% [markdown]
# ## What to take away
#
# - A ratio says little without its curve over training and without the value that a calibrated network would have. Table 1 is a snapshot at 50,000 steps: its second column counts copies of the target network, and a calibrated first column would be 16.
# - With a target network that is copied $K$ times, a network learns about little more than $K$ steps of the future. At $\gamma = 0.99$, 22 copies are far too few.
# - Evaluate with the noise that you trained with.
# - The covariance of a joint MDP is local. A representation that knows this is right within 5% on average in 33 of 36 cases, also in games it was
#   not tuned for, and need not be told the shock. One that does not know it is wrong by a factor of five or more at $\gamma = 0.99$: after the
#   same search, with the shock given, and with twenty times the copies.
# - A right variance is not a right mean: at new states, gap means are learned well in one game of eight.
# - A guess about what a network lacks is cheap to test and often wrong: write it down before the run.
# - A constant can reach a ratio near one without learning. Show what a constant gives, and show the skill over states.
# - Where rewards cannot be predicted, play a few steps and use the network for the rest.
# - Under a common shock, $\gamma$ and the rate at which branches meet decide how much the coupling matters. The lottery of
#   sticky actions alone couples little.
# - Compare with simulation, state by state, and show standard errors.
#
# ## Exercises
#
# **Exercise 1.** Give the shock opposite loadings, 1 and $-1$, for two actions. What is independent / coupled at
# $\gamma = 0.1$ if shocks are the only randomness?
#
# <details><summary>Solution</summary>
#
# The shared shock now adds up in the gap: the first step contributes a variance of $4\sigma^2$ instead of zero. Independent
# marginals underestimate the variance of the gap by almost half: the factor is
# $\frac{2}{1-\gamma^2} \big/ \big(4 + \frac{2\gamma^2}{1-\gamma^2}\big) = 1/(2 - \gamma^2)$.
#
# </details>

# %% tags=["hide-cell"]
opposite = shock_ratio([0.1], [1.0, -1.0])[0]
claims.check("exercise 1: independent / coupled", opposite.round(3), np.isclose(opposite, 1 / 1.99))

# %% [markdown]
# **Exercise 2.** A better constant is the simulated average of each game. It knows the level and nothing about single
# states. How much skill does it have at $\gamma = 0.9$, and where does the level alone explain most?
#
# <details><summary>Solution</summary>
#
# The better constant leaves only the variance between states, less the noise of the simulation. The level explains most in Qbert,
# a skill of 0.91, and almost nothing in Boxing. Compare the network's skill with these numbers.
#
# </details>

# %% tags=["hide-cell"]
one = chosen.groupby("game")
noise = (chosen.mc_error**2).groupby(chosen.game).mean()
apart = ((chosen.mc - 2 * 0.81 / 0.19) ** 2).groupby(chosen.game).mean() - noise
level = (1 - (one.mc.var(ddof=0) - noise) / apart)[games].round(2)
text = f"{level.idxmax()} {level.max()}, {level.idxmin()} {level.min()}"
claims.check(
    "exercise 2: largest and least skill of the level alone",
    text,
    (level.idxmax(), level.idxmin()) == ("Qbert", "Boxing"),
)

# %% [markdown]
# **What to read next.** Chapter 7 asks how far exact solutions reach before networks are needed, and chapter 8 learns the same
# moments where they can be checked exactly.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
work.cleanup()
claims.print()
