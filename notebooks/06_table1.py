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
# Appendix C asks the networks for the variance of a gap, $Z(s,a) - Z(s,b)$, and compares it with games
# that were really played. The paper reports a learned variance 1.03 to 3.97 times the simulated one, and
# an independent-marginals prediction about 100 times too large. This chapter repeats the diagnostic with
# an equal search for every network, on states, seeds and two games that no choice was made on. **With a term
# for one state and a term for near states the learned gap variance is within 5% of the simulated one in six games at
# four discounts. The paper's Gram network, with the same search, is 13 to 130 times too small at $\gamma = 0.99$;
# trained as the paper trains it, it is 4.7 to 40 times too large or 8 to 22 times too small, depending on the scale
# of the returns.** A ratio near one is not enough, though: in three games a constant has one too. State by state, 19
# of the 24 cases reach our goal for skill, and five do not.
#
# **What you will learn.** How to compare networks fairly; why a baseline that needs no learning belongs in every such table; which structure a network of covariances
# needs; where the factor 100 may come from; and how a few steps of the emulator help a network that does not foresee rewards.
#
# **What it needs.** Chapter 5, and standard errors.
#
# **How long it takes.** About 18 minutes to read.

# %% tags=["parameters"]
seed = 0
live_games = ["Pong"]
num_states = 400
num_steps = 200
num_evaluation = 6
horizon = 60
shown_gamma = 0.99
result_files = ["figures/atari_fresh_table.csv"]
gap_files = ["figures/atari_fresh_gaps.csv"]
trial_files = ["figures/atari_trials.csv"]
sticky_table_files = ["figures/atari_sticky_table.csv"]
sticky_curve_files = ["figures/atari_sticky_curves.csv"]
out_dir = ""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jmdp_lib import figures
from jmdp_lib.atari import shock_ratio
from jmdp_lib.atari.experiment import Experiment, gap_table, run
from jmdp_lib.atari.networks import Config

figures.style()
claims = figures.Claims()
work = tempfile.TemporaryDirectory()
paper = pd.DataFrame(
    {"coupled": [1.30, 3.87, 3.97, 1.03], "independent": [135.4, 115.7, 111.1, 83.3]},
    index=["Pong", "BattleZone", "Boxing", "Atlantis"],
)

# %% [markdown]
# ## 6.1 The diagnostic
#
# The emulator plays without sticky actions. Rewards are clipped and a common shock is added,
#
# $$R(a) = \operatorname{clip}(r(s,a), -1, 1) + \sigma\, U, \qquad U = \pm 1 \text{ fair, one draw per table},$$
#
# so every action of a state gets the same shock. A same-scenario gap cancels it; two independent returns
# do not. The paper leaves $\gamma$, the shock and the horizon open. It matters. If shocks are all there
# is and the branches never meet again, then
#
# $$\frac{\operatorname{Var} Z_a + \operatorname{Var} Z_b}{\operatorname{Var}(Z_a - Z_b)}
#   = \frac{2\sigma^2/(1-\gamma^2)}{2\sigma^2\gamma^2/(1-\gamma^2)} = \frac{1}{\gamma^2} .$$

# %%
gammas = np.array([0.1, 0.5, 0.9, 0.99])
line = shock_ratio(gammas)
print(pd.Series(line.round(2), index=gammas).to_string())
claims.check(
    "shocks alone: independent / coupled is 1/gamma^2", True, np.allclose(line, gammas**-2)
)

# %% [markdown]
# The reference is recursive-pair Monte Carlo: two branches from one state, uniform random actions,
# one table while they stand in the same state, one branch once they also choose alike. Emulator work is
# recorded once; discounts and shocks are added in closed form (`gap_estimates`), so that no simulated
# shock adds noise.
#
# ## 6.2 Live, in miniature
#
# Everything at once on the real emulator: query states, train, play pairs, compare. (*+table* is a backup from
# the state's own tables; Section 6.7 has use for it.)

# %%
config = Config(
    gammas=(0.5, 0.9), kinds=("gram", "near"), sigma=1.0, hidden=128, batch=64, actions=3,
    steps=num_steps,
)  # fmt: skip
live = []
for game in live_games:
    experiment = Experiment(
        Config(**{**vars(config), "name": game}), num_states=num_states, num_held_out=64,
        num_evaluation=num_evaluation, pairs_per_state=3, repeats=6, horizon=horizon,
    )  # fmt: skip
    live.append(run(experiment, seed, Path(work.name) / game, processes=1))
small = gap_table(pd.concat(live))
small[["game", "gamma", "kind", "coupled", "independent", "mc_ratio"]].round(2)

# %%
near = small[small.kind == "near"]
off = (near.coupled - 1).abs().max()
claims.check("live: gap variance, learned / Monte Carlo, within 20%", True, off < 0.2)
independent = (near.independent / near.mc_ratio - 1).abs().max()
claims.check("live: independent / MC within 10% of Monte Carlo's own", True, independent < 0.1)

# %% [markdown]
# ## 6.3 Table 1
#
# **The protocol** stands in `workflow/atari_protocol.toml` and was written down before its runs were made. Three
# networks, the paper's Gram network, the local one and the local + near one, get the same six trials: a base, and one
# changed knob each. They are judged on the same tuning states of four games (seed 0, half of the states and steps), by
# the root mean squared error over states. Each network's best trial is then trained in full with other seeds, and
# reported at states that were not looked at before, also in Space Invaders and Asterix, where nothing was tuned.
#
# Three reservations. The base is near the settings of our own earlier runs, which may favour our networks. The two new games were
# picked among six after a look at their rates of rewards and of merging branches (1,536 states each). And
# the time on the device ran out: the four tuned games have seeds 10, 11 and 12, the two new ones seed 10 only, so that their intervals
# do not cover the spread between seeds.

# %%
trials = figures.results(trial_files)
errors = trials.groupby(["kind", "trial"], sort=False).error.mean().unstack()
errors.round(3)

# %%
best = errors.idxmin(axis=1).to_dict()
claims.check("trial chosen for each network", best, len(errors.columns) == 6)
even = trials.groupby(["kind", "trial"]).size().nunique() == 1
claims.check("every network has every trial in the same games and discounts", even, even)
span = errors.max(axis=1) / errors.min(axis=1)
claims.check(
    "worst / best trial: Gram, local, near", span.round(2).to_list(), span.gram > span.near
)

# %% [markdown]
# The table shows the mean error over games and discounts, one row for each network and one column for each trial. The search helps the Gram
# network most: ten times the weight on the gap (trial *gap*) divides its error by more than three against the worst.
# Ours hardly depend on the trial.
#
# **The paper's own training** was not tuned. It is the plain Gram network with sampled TD errors, sampled shocks, a
# copied target network and the gap's residual at a tenth (chapter 5), once with returns in their natural scale and once
# divided by $1/(1-\gamma)$, as in the authors' release.
#
# **The constant** needs no learning: $2\sigma^2\gamma^2/(1-\gamma^2)$ is the gap variance where branches never meet and
# rewards have no variance. Where it is near one, a ratio near one shows nothing.

# %%
games = [*paper.index, "SpaceInvaders", "Asterix"]
table = figures.results(result_files)
table["game"] = pd.Categorical(table.game, games)  # in this order
table = table.sort_values(["game", "gamma"]).astype({"game": str})
wide = table.set_index(["kind", "gamma", "game"]).sort_index()
names = {"near": "local + near", "gram": "Gram", "paper, natural": "as the paper", "paper, divided": "and divided"}  # fmt: skip


def ratio(kind, column):
    """Ratio and interval of the paper's four games, as the table shows them."""
    rows = wide.loc[kind, shown_gamma].loc[paper.index]
    pairs = zip(rows[column], rows[column + "_interval"], strict=True)
    return [f"{v:.1f} ± {e:.1f}" if v > 2 else f"{v:.3f} ± {e:.3f}" for v, e in pairs]


# %%
shown = {("coupled / MC", label): ratio(kind, "coupled") for kind, label in names.items()}
shown["coupled / MC", "constant"] = [f"{v:.2f}" for v in wide.constant["near", shown_gamma][paper.index]]  # fmt: skip
shown["coupled / MC", "the paper has"] = [f"{v:.2f}" for v in paper.coupled]
shown["independent / MC", "local + near"] = ratio("near", "independent")
shown["independent / MC", "simulated"] = ratio("near", "mc_ratio")
shown["independent / MC", "the paper has"] = [f"{v:.1f}" for v in paper.independent]
shown = pd.DataFrame(shown, index=paper.index)
shown

# %% [markdown]
# **Table 1** in the paper's layout, at $\gamma = 0.99$. *Coupled / MC* is the learned gap variance over the simulated
# one, for the local + near network, the Gram network with its best trial, and the Gram network trained as the paper
# describes, with returns in their own scale and divided by $1/(1-\gamma)$. *Independent / MC* is the variance that
# a gap of independent returns would have, over the simulated variance of the gap. Each is the mean of three seeds over 64 states, 36 pairs of
# games per state, horizon 300; ± is half a 95% interval, of the simulation and of the seeds, for these states. The
# horizon cuts off $\gamma^{600}$ of the shocks' variance, 0.24%. The paper does not name its $\gamma$.

# %%
head = [
    "", "local + near", "Gram", "as paper", "divided", "constant", "paper", "indep.", "simulated", "paper",
]  # fmt: skip
cells = [[game, row[0], *(c.split(" ±")[0] for c in row[1:])] for game, *row in shown.itertuples()]
fig, ax = plt.subplots(figsize=(6.75, 1.3), layout="constrained")
figures.text_table(ax, [head, *cells])
title = rf"coupled / MC (6 columns) and independent / MC (3) at $\gamma$ = {shown_gamma:g}"
ax.set_title(title, fontsize="medium")
figures.save(fig, "table1", table[~table.kind.str.contains("+", regex=False)], out_dir)
plt.close(fig)  # for the gallery; the notebook has the table itself

# %% [markdown]
# And the whole grid for the local + near network. *skill* is $1 - \mathrm{MSE}/\mathrm{MSE}$ of the constant
# over states, with the simulation's noise subtracted from both: one is perfect, zero is as good as the constant. *rank* is Spearman's
# correlation over states, and its *ceiling* is what a perfect prediction would reach against this simulation, the square root of the
# reliability.

# %%
ours = table[table.kind == "near"]
grid = ours.assign(ceiling=np.sqrt(ours.reliability)).set_index(["game", "gamma"])
grid[["coupled", "coupled_interval", "constant", "skill", "rank", "ceiling"]].round(3)

# %%
low, high = ours.coupled.min().round(3), ours.coupled.max().round(3)
claims.check("local + near: coupled / MC, least of 24 within 5%", low, low >= 0.95)
claims.check("local + near: coupled / MC, largest of 24 within 5%", high, high <= 1.05)
new = ours[ours.game.isin(["SpaceInvaders", "Asterix"])]
off = (new.coupled - 1).abs().max().round(3)
claims.check("new games alone: largest relative error within 5%", off, off <= 0.05)
worst = (ours.independent / ours.mc_ratio - 1).abs().max().round(3)
claims.check("independent / MC: largest difference to the simulated within 5%", worst, worst < 0.05)
near_one = [g for g, c in ours.groupby("game", sort=False).constant if (c - 1).abs().max() < 0.1]
claims.check("games where a constant is within 10%, too", ", ".join(near_one), len(near_one) > 0)

# %%
at = {kind: wide.loc[kind, 0.99].coupled for kind in ("gram", "paper, natural", "paper, divided")}
text = {kind: f"{v.min():.2g} to {v.max():.2g}" for kind, v in at.items()}
other = "differs from the paper"  # which has 1.03 to 3.97
claims.check("Gram, tuned, gamma 0.99: coupled / MC", text["gram"], at["gram"].max() < 0.5, other)
small, large = at["paper, natural"], at["paper, divided"]
claims.check(
    "Gram, trained as in the paper, gamma 0.99", text["paper, natural"], small.max() < 0.5, other
)
claims.check("the same with divided returns", text["paper, divided"], large.min() > 2, other)

# %% [markdown]
# Our goal for the skill was 0.9 in every case where states differ by more than the simulation's noise. That is
# **not reached** in five of 24: in Boxing at every discount, and in BattleZone at $\gamma = 0.99$. In both the
# states differ by a few percent only, and what differs is the variance of rewards, which the network would have to foresee: who gets hit.
# Section 6.6 shows what helps. Ranks stay far below their ceilings in more cases. Where most states have almost the same gap variance, as in Pong at
# $\gamma = 0.1$, a rank weighs their tiny differences as much as large ones; the skill does not.

# %%
missed = ours[(ours.reliability > 0.5) & (ours.skill < 0.9)]
where = ", ".join(f"{g} {y:g}" for g, y in zip(missed.game, missed.gamma, strict=True))
claims.check("goal: skill of at least 0.9; missed in", where, len(missed) > 0, "not reproduced")
claims.check("cases that reach it, of 24", 24 - len(missed), len(missed) < 12)
boxing = grid.loc[("Boxing", 0.99)]
played = boxing.mc * boxing.mc_ratio * (1 - 0.99**2) / 2  # / that of shocks and nothing else
learned = boxing.mc * boxing.independent * (1 - 0.99**2) / 2
name = "Boxing, gamma 0.99: variance of returns / that of shocks alone"
claims.check(f"{name}, simulated, learned", f"{played:.3f}, {learned:.3f}", learned < played)

# %%
fig, ax = plt.subplots(figsize=(6.75, 2.9), layout="constrained")
searched = table[table.kind.isin(["gram", "local", "near"])]
figures.gap_ratios(ax, searched, paper.coupled.reindex(games))
ax.set_ylabel("gap variance, learned / simulated")
fig.legend(loc="outside lower center", ncols=4)
figures.save(fig, "fig_gap_ratios", searched, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.1.** Learned over simulated gap variance of the three networks that got the same search, for six games and four discounts, with 95% intervals. Grey: one, give or take 5%. The paper's crosses
# stand in the middle of their groups, because it names no $\gamma$.
#
# <!-- alt: Six groups of four discounts. Circles of the local and near network lie on one everywhere, triangles of the local network close to it; squares of the plain Gram network start between 1.2 and 1.9 at gamma 0.1 and fall to between 0.008 and 0.07 at gamma 0.99. -->

# %% [markdown]
# ## 6.4 Why three terms
#
# One-step coupling is *local*: returns from two distinct states share no table, so their covariance is
# zero unless the branches meet later. A Gram network has $\langle v(x), v(y)\rangle$ for everything. To
# give one state a large variance and all other pairs none, $v$ would have to be orthogonal across
# thousands of states. It cannot. At small $\gamma$ it mistakes the shock itself, at large $\gamma$ it makes
# everything correlated and the gap variance collapses.
#
# - The **local** term, $1\{s=t\}\langle u(x), u(y)\rangle$, is a block-diagonal Gram kernel, still positive
#   semidefinite. One coordinate of $u$ is the shock, which is known and not learned; the plain Gram network is
#   not told. With both, most games are right.
# - In **Atlantis** half of all sibling states are the same again after one step, and many others meet later.
#   Covariances between *distinct* states matter there, and beside the local term inner products alone miss
#   them. The **near** term, $k(s,t)\langle q(x), q(y)\rangle$ with $k = e^{-|f(s)-f(t)|^2}$ and a learned linear $f$, says what is true
#   of them: near states are likely to meet.

# %%
atlantis = table[(table.game == "Atlantis") & (table.gamma == 0.99)].set_index("kind")
local, near = atlantis.coupled.local, atlantis.coupled.near
off = abs(near - 1) < abs(local - 1)
claims.check("Atlantis, gamma 0.99: coupled / MC, local alone, with the near term", f"{local:.2f}, {near:.2f}", off)  # fmt: skip

# %% [markdown]
# ## 6.5 The factor 100
#
# By how much do independent marginals overestimate the gap variance? With one shock per state the factor is about
# $1/\gamma^2$ where branches rarely meet. In Atlantis and Space Invaders they merge often, so that the coupled variance is half as large
# and the factor twice as big.

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.8), layout="constrained")
fine = np.geomspace(0.09, 0.995, 100)
ax.loglog(fine, fine**-2, color="0.6", lw=3, label=r"$1/\gamma^2$")
for (game, each), marker in zip(ours.groupby("game", sort=False), "os^Dvp", strict=True):
    (drawn,) = ax.loglog(each.gamma, each.mc_ratio, marker, ms=4, mfc="none", label=game)
    ax.loglog(each.gamma, each.independent, lw=0.8, color=drawn.get_color())
ax.set(xlabel=r"$\gamma$", ylabel="independent / coupled")
ax.legend()
figures.save(fig, "fig_independent_ratio", ours, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.2.** Independent over coupled gap variance against $\gamma$: simulated (marks) and learned by the local + near network (lines). Grey: $1/\gamma^2$.
#
# <!-- alt: Marks and thin lines of six games fall together along the grey line from 100 at gamma 0.1 to one at gamma 0.99; Atlantis and Space Invaders lie at about twice its height. -->

# %% [markdown]
# The paper has 135, 116, 111 and 83 and names neither $\gamma$ nor the shock. Three things give numbers of this size. None
# is stated there; they are **hypotheses**.
#
# - *Small discount*: one shock per state, as here, and $\gamma$ near 0.1.
# - *Shocks shared through time*: $\gamma = 0.99$, both branches see the same shocks at all times, and only the first two actions have
#   different loadings, 1 and 0. Then the gap has variance $\sigma^2$, and the returns together have
#   $\sigma^2(1 + 2\gamma^2/(1-\gamma^2)) = 99.5\,\sigma^2$. To both we add the rewards' own variances, as they were simulated in
#   Section 6.7.
# - *An uncalibrated network*: the paper's training with divided returns at $\gamma = 0.99$ learns variances that are far too
#   large, coupled or not.

# %%
sticky = figures.results(sticky_table_files).query("kind == 'near' and gamma == 0.99")
rewards = sticky.set_index("game").loc[paper.index]  # the variances of rewards alone
through_time = 1 + 2 * 0.99**2 / (1 - 0.99**2)
readings = pd.DataFrame({
    "the paper": paper.independent, "gamma 0.1, simulated": wide.mc_ratio["near", 0.1],
    "shared through time, formula": through_time,
    "with the games' rewards": (through_time + rewards.mc * rewards.mc_ratio) / (1 + rewards.mc),
    "the paper's training, divided": wide.independent["paper, divided", 0.99],
}).loc[paper.index]  # fmt: skip
readings.round(1)

# %%
of = readings.div(readings["the paper"], axis=0).drop(columns="the paper")
factor = np.exp(np.log(of).abs().max()).round(1)
text = ", ".join(f"{v:g}" for v in factor)
claims.check("readings: largest factor from the paper's numbers", text, factor.min() < 3)
least = readings["gamma 0.1, simulated"].drop("Atlantis")
text = f"{least.min():.1f} to {least.max():.1f}"
claims.check("gamma 0.1, without Atlantis", text, (least - 100).abs().max() < 10)
ranked = readings.drop(columns="shared through time, formula").corr("spearman")
order = ranked["the paper"].drop("the paper").round(1).to_list()
claims.check(
    "rank correlation of the readings with the paper's four",
    order,
    max(order) < 1,
    "not reproduced",
)

# %% [markdown]
# No reading fits all four. With one shock per state and $\gamma = 0.1$ the factor cannot fall below 100, and Atlantis has the largest
# one here and the smallest in the paper. Shocks that are shared through time cannot give more than 99.5, and rewards pull
# it down.
#
# ## 6.6 State by state
#
# An average can be right for the wrong reasons. So here is every state.

# %%
gaps = figures.results(gap_files)
chosen = gaps[(gaps.gamma == 0.9) & (gaps.kind == "near") & (gaps.seed == 10)]

# %%
fig, axes = plt.subplots(2, 3, figsize=(6.75, 4.4), layout="constrained")
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
# **Figure 6.3.** Gap variance at $\gamma = 0.9$, predicted by the local + near network (seed 10) against simulated, one dot for each of 64 states that were never looked at before; bars are 95% intervals of the simulation, the line is where both agree, and the dotted
# line marks the constant. Titles give skill and rank of all seeds, the rank beside its ceiling. Axes differ: Boxing spans a few percent.
#
# <!-- alt: Six scatter plots. In Atlantis, Space Invaders, Asterix and Pong the dots follow the diagonal over a wide range; in BattleZone nearly all dots sit at one place with some on the diagonal below; in Boxing they form a cloud near the constant with a few far below. -->

# %% [markdown]
# **Ask the emulator.** It is at hand, so that a user can play the first $h$ steps from the asked state and trust the network only
# beyond. This costs $72h$ emulator steps per state here, 36 pairs of two branches; the simulation itself costs 21,600.

# %%
table["h"] = pd.to_numeric(table.kind.str.extract(r"^near\+(\d+)$")[0])
deep = pd.concat([ours.assign(h=0.5), table[table.h.notna()]])
skill = deep[deep.gamma >= 0.9].pivot_table(index="h", columns=["gamma", "game"], values="skill")

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.9), sharey=True, layout="constrained")
for ax, gamma in zip(axes, (0.9, 0.99), strict=True):
    for game, marker in zip(games, "os^Dvp", strict=True):
        ax.semilogx(skill.index, skill[gamma, game], marker=marker, ms=4, mfc="none", label=game)
    ax.axhline(0.9, color="0.6", ls="--", lw=0.8)
    ax.set_xticks(skill.index, ["0\n0", *(f"{h:g}\n{72 * h:g}" for h in skill.index[1:])])
    ax.set(title=rf"$\gamma = {gamma:g}$", xlabel="$h$ and emulator steps per state")
    ax.minorticks_off()
axes[0].set_ylabel("skill against the constant")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=6)
figures.save(fig, "fig_skill_depth", skill.stack([0, 1]).rename("skill").reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.4.** Skill of the local + near network when the first $h$ steps are played in the emulator and the network speaks only of what comes after; $h = 0$ is the network alone. Dashed: our goal, 0.9.
#
# <!-- alt: Two panels over h from 0 to 64. At gamma 0.9 Boxing rises from 0.3 to one, and Pong falls from 0.97 to 0.84. At gamma 0.99 Boxing rises from minus 0.1 to 0.89 and BattleZone from 0.5 to 0.9, Pong falls to 0.78; the other three games stay near one. -->

# %%
deepest = table[table.h == 64].set_index(["game", "gamma"]).skill
at = ", ".join(f"{deepest['Boxing', gamma]:.2f}" for gamma in gammas)
gain = (deepest - grid.skill)["Boxing"].min()
claims.check("Boxing, h = 64: skill at the four discounts, each larger", at, gain > 0)
zone, goal = deepest["BattleZone", 0.99], "not reproduced"
claims.check("BattleZone, gamma 0.99, h = 64: skill", f"{zone:.3f}", zone > grid.skill["BattleZone", 0.99])  # fmt: skip
fell = deepest["Pong", 0.99] - grid.skill["Pong", 0.99]
claims.check("Pong, gamma 0.99: change of skill from h = 0 to 64", fell.round(2), fell < 0)
missed = ", ".join(f"{g} {y:g}" for g, y in deepest.index[deepest < 0.9])
claims.check("goal: skill of at least 0.9 with h = 64; missed in", missed, missed != "", goal)

# %% [markdown]
# Depth repairs Boxing at three discounts, and brings the two cases at $\gamma = 0.99$ to 0.89 and 0.90, just below the goal: rewards of the next $h$ steps need not be foreseen when they are played. In Pong the network is
# better alone. Its states differ little, and 36 sampled pairs of $h$ steps are noisier than what it has learned. So
# depth is a trade: it replaces the network's error by the noise of a simulation, and pays for it in emulator steps. A user would play more pairs,
# or stop where the noise exceeds the gain.
#
# **Would more data do?** We have two points only: the tuning trial had half of the states and half of the steps. Its evaluation states were other ones,
# so that this is a hint and not a learning curve.

# %%
fast = trials[(trials.kind == "near") & (trials.trial == best["near"])].set_index(["game", "gamma"])
halves = pd.DataFrame({"half": fast.skill, "full": grid.skill}).dropna().loc[["BattleZone", "Boxing"]]  # fmt: skip
halves.round(2)

# %%
gained = (halves.full - halves.half).round(2)
text = f"{gained['BattleZone', 0.99]}, {gained['Boxing', 0.99]}"
more = gained["BattleZone", 0.99] > 0.1 > gained["Boxing", 0.99]
claims.check("gamma 0.99, skill gained from half to full: BattleZone, Boxing", text, more)

# %% [markdown]
# At $\gamma = 0.99$ twice the data and steps bring BattleZone from below zero to one half, so that more may bring more. Boxing does not move: there
# the network would have to foresee single punches many steps ahead, which `benchmarks/foresight.py` (Section 5.5) finds hard with 25 times the states, too.
#
# Last, what Table 1 does not test: the *mean* of a gap. A variance within 5% does not say which action is better.

# %%
by_game = chosen.groupby("game", sort=False)
noise = (chosen.mc_mean_error**2).groupby(chosen.game).mean() / by_game.mc_mean.var()
together = by_game[["gap_mean", "mc_mean"]].corr().gap_mean.xs("mc_mean", level=1)
means = pd.DataFrame({"correlation": together, "ceiling": np.sqrt(1 - noise)}).loc[games].round(2)
means

# %%
good = list(means.index[means.correlation > 0.5])
claims.check("gap means, gamma 0.9: games with a correlation above 0.5", ", ".join(good), len(good) < 6)  # fmt: skip

# %% [markdown]
# ## 6.7 The emulator's own coupling
#
# Without a reward shock, what do actions of one state share? The sticky lottery of chapter 5, and where they
# meet again, their future. Four games, three seeds, 256 states, 12 pairs of games from each; the networks
# learn from 100,000 states, three actions of each (`figures/atari_sticky.json`), and see memory and the previous
# action, not Pong's knob. All variance is now that of
# rewards, which are rare: at $\gamma = 0.1$ three games have gap variances below $10^{-6}$, and ratios to them
# say nothing.
#
# *near+table* is one exact backup: a state at hand can be queried, so what the first step brings is read
# from its own five tables, and only what comes later is the network's word.

# %%
natural = figures.results(sticky_table_files)
simulated = natural[natural.kind == "near"].set_index(["game", "gamma"])
shown = simulated[["mc", "mc_error", "mc_ratio", "mc_ratio_interval"]]
learned = natural.pivot_table(index=["game", "gamma"], columns="kind", values="coupled", sort=False)
shown.join(learned[["gram", "near", "near+table"]]).map("{:.3g}".format)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.8), width_ratios=(2, 3))
for place, (game, marker) in enumerate(zip(paper.index, "os^D", strict=True)):
    each, style = simulated.loc[game].drop(0.1), {"fmt": marker, "ms": 4, "mfc": "none"}
    at = np.arange(3) + 0.15 * (place - 1.5)
    left.errorbar(at, each.mc_ratio, each.mc_ratio_interval, label=game, **style)
left.set_xticks(np.arange(3), [f"{gamma:g}" for gamma in each.index])
left.axhline(1, color="0.6", lw=0.8)
left.set(xlabel=r"$\gamma$", ylabel="independent / coupled")
left.legend()
figures.gap_ratios(right, natural[natural.gamma >= 0.9])
right.set(ylabel="learned / simulated", ylim=(4e-3, 6))
fig.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
figures.save(fig, "fig_sticky_ratio", natural, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 6.5.** Sticky actions and no shock. Left: simulated independent over coupled gap variance of four games. Right: learned over simulated gap variance, with 95% intervals; grey is one, give or take 5%.
#
# <!-- alt: Left, marks of four games near one, Atlantis at 1.17 for gamma 0.99. Right, circles of the local and near network between 1.1 and 2.1 at gamma 0.9 and between 0.6 and 0.9 at gamma 0.99; squares of the plain Gram network far below. -->

# %% [markdown]
# **The natural coupling is weak.** Independent marginals overestimate the gap variance by a sixth in
# Atlantis at $\gamma = 0.99$, and in no other game beyond doubt. There is no sign of it at $\gamma = 0.5$,
# where the first steps count: not the lottery makes it, but branches that meet again.

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
claims.check("sticky, gamma 0.99: largest independent / coupled", largest, largest < 1.25)
early = simulated.mc_ratio["Atlantis", 0.5].round(2)
claims.check("sticky, Atlantis, gamma 0.5: independent / coupled", early, early < 1.05)

# %% [markdown]
# **The learned variances are of the right size at large $\gamma$, and not calibrated.** Our goal was 0.9 to 1.1 of the
# simulated variance at $\gamma = 0.9$ and 0.99. It is **not reached**: the ratios are 1.13 to 2.13 and 0.60 to 0.91. The
# protocol of Section 6.3 has a part for sticky actions, for which the time on the device did not suffice, so that these are
# the earlier runs. There is no shock in
# closed form any more, and two errors pull apart. Where the mean does not foresee a reward, its error enters as
# a square and counts as variance: too much, and all there is where the true variance is almost zero. And what
# the mean has memorised of the states it learned from looks like foresight there: too little, at
# $\gamma = 0.99$. A state's own tables help against the first. The plain Gram network collapses as before.

# %%
for gamma in (0.9, 0.99):
    at = learned.xs(gamma, level="gamma")
    text, right = f"{at.near.min():.2f} to {at.near.max():.2f}", at.near.between(0.9, 1.1)
    name = f"goal: sticky, gamma {gamma:g}, learned / simulated within 0.9 and 1.1"
    claims.check(name, text, not right.all(), "not reproduced")
claims.check("sticky, gamma 0.99: plain Gram, largest", at.gram.max().round(2), at.gram.max() < 0.5)
off = np.log(learned).abs().drop(index=0.99, level="gamma")
nearer = bool((off["near+table"] < off.near).all())
claims.check("sticky, below 0.99: with its own tables a state is nearer", nearer, nearer)

# %%
told = figures.results(sticky_curve_files)
told = told[(told.kind == "near") & (told.step == told.step.max())]
errors = told.groupby(["gamma", "game", "curve"]).mu.mean().unstack()
rare = (2 * errors.expected.loc[0.5] / simulated.mc.xs(0.5, level="gamma")).round(1)
claims.check(
    "sticky, gamma 0.5: the mean's squared error / gap variance, least", rare.min(), rare.min() > 5
)
seen = (errors.expected / errors.td).loc[0.99].round(1)
claims.check(
    "sticky, gamma 0.99: the mean's error on new states / in training, least",
    seen.min(),
    seen.min() > 1.1,
)

# %% [markdown]
# ## What to take away
#
# - The covariance of a joint MDP is local. A representation that knows this, and the shock, is right within 5% on average,
#   also in games it was not tuned for; one that knows neither is wrong by an order of magnitude, after the same search.
# - An average near one can be had without learning. Show what a constant gives, and the skill over states.
# - Where rewards cannot be foreseen, play a few steps and let the network do the rest.
# - How much coupling matters under a common shock is set by $\gamma$ and by how often branches meet. The
#   lottery of sticky actions alone couples little.
# - Compare with games that were played, with their standard errors, state by state.
#
# ## Exercises
#
# **Exercise 1.** Give the shock opposite loadings, 1 and $-1$, for two actions. What is independent / coupled at
# $\gamma = 0.1$ if shocks are all there is?
#
# <details><summary>Solution</summary>
#
# The shared shock now adds up in the gap: its first step has variance $4\sigma^2$ instead of zero. Independent marginals
# underestimate the gap's variance almost by half.
#
# </details>

# %% tags=["hide-cell"]
opposite = shock_ratio([0.1], [1.0, -1.0])[0]
claims.check("exercise 1: independent / coupled", opposite.round(3), 0.5 < opposite < 0.51)

# %% [markdown]
# **Exercise 2.** How much skill does a better constant have, the simulated average of each game? It knows the level and nothing about
# states. Where does the level alone explain most?
#
# <details><summary>Solution</summary>
#
# The better constant leaves the variance between states, less its noise. In Atlantis at $\gamma = 0.9$ the level explains the largest part
# of what separates the constant from the simulation, and in Boxing almost nothing. The network's skill has to be read
# against this.
#
# </details>

# %% tags=["hide-cell"]
one = chosen.groupby("game")
noise = (chosen.mc_error**2).groupby(chosen.game).mean()
apart = ((chosen.mc - 2 * 0.81 / 0.19) ** 2).groupby(chosen.game).mean() - noise
level = (1 - (one.mc.var(ddof=0) - noise) / apart)[games].round(2)
text = f"{level.idxmax()} {level.max()}, {level.idxmin()} {level.min()}"
claims.check(
    "exercise 2: skill of the level, most and least",
    text,
    level.idxmin() == "Boxing" and level.max() < 0.9,
)

# %% [markdown]
# **What to read next.** Chapter 7 asks how far exact solutions reach before networks are needed, and chapter 8 learns the same
# moments where they can be checked exactly.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
work.cleanup()
claims.print()
