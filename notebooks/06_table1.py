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
# standard errors, at four discounts and with three networks: **a Gram network alone is off by up to 2.5
# times either way at $\gamma = 0.1$ and 7 to 12 times too small at $\gamma = 0.99$; with a term for one state and a
# term for near states it stays within 5% in every game at every discount. And a factor of 100 is what
# $1/\gamma^2$ gives at $\gamma = 0.1$.**

# %% tags=["parameters"]
seed = 0
live_games = ["Pong"]
num_states = 400
num_steps = 200
num_evaluation = 6
horizon = 60
result_files = ["figures/atari_reward_gaps.csv"]
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
# ## 6.3 The full table
#
# Four games, three seeds, 64 states each, 36 pairs of games per state, horizon 300 (`workflow/atari_runs.py`;
# versions, hardware and time in `figures/atari_reward.json`). `±` is half a 95% interval, of the simulation
# and of the seeds, for these 64 states. The horizon cuts off $\gamma^{600}$ of the shocks' variance, 0.24% at
# $\gamma = 0.99$ and nothing elsewhere; the networks have no horizon.
#
# **How these numbers were chosen.** This is the third full run. The near term and the settings were chosen for the
# last of the three networks, while looking at these same 64 states and at the held-out states of chapter 5; none
# were kept back for the end. In the two earlier runs (`figures/` at commits 1aea31e and 4ce1685: 4,000 steps, ten
# times the weight decay, other numbers of states) that network had 0.965 to 1.019 and 0.967 to 1.021. The plain
# Gram network, for which nothing was tuned, had 5.1 to 8.8 at $\gamma = 0.1$ and 0.007 to 0.065 at $\gamma = 0.99$:
# how wrong it is depends much on the settings.

# %%
gaps = figures.results(result_files)
table = gap_table(gaps[gaps.coupling == "reward"])
wide = table.set_index(["game", "gamma", "kind"])


def cell(game, gamma, kind):
    """Ratio and interval, as the table shows them."""
    row = wide.loc[(game, gamma, kind)]
    return f"{row.coupled:.3f} ± {row.coupled_interval:.3f}"


# %%
head = ["", "γ", "Gram", "local", "local + near", "indep. / MC", "simulated", "1/γ²", "paper"]
cells = [head]
for game in paper.index:
    for gamma in gammas:
        row = wide.loc[(game, gamma, "near")]
        first = gamma == gammas[0]
        cells.append([
            game if first else "", f"{gamma:g}", *(cell(game, gamma, k) for k in ("gram", "local", "near")),
            f"{row.independent:#.4g}", f"{row.mc_ratio:#.4g}", f"{gamma**-2:.3g}",
            f"{paper.coupled[game]:.2f}; {paper.independent[game]:.0f}" if first else "",
        ])  # fmt: skip
fig, ax = plt.subplots(figsize=(6.75, 3.6), layout="constrained")
figures.text_table(ax, cells, rules=(5, 9, 13))
figures.save(fig, "table1", table, out_dir)
plt.show()

# %% [markdown]
# Columns 3 to 5 are coupled / MC, the learned gap variance over the simulated one, for three networks.
# Then independent / MC, as the last of them has it and as simulated: the variance that a gap of independent
# returns would have, over the simulated variance of the gap. The paper's pair is its coupled / MC and independent / MC, at a discount it does not name.

# %%
ours = table[table.kind == "near"]
low, high = ours.coupled.min().round(3), ours.coupled.max().round(3)
claims.check("local + near: coupled / MC, least", low, low >= 0.95)
claims.check("local + near: coupled / MC, largest", high, high <= 1.05)
worst = (ours.independent / ours.mc_ratio - 1).abs().max().round(3)
claims.check(
    "independent / MC: largest relative difference to Monte Carlo's own", worst, worst < 0.05
)
plain = table[table.kind == "gram"].set_index("gamma").coupled.round(2)
name = "plain Gram: coupled / MC"
claims.check(f"{name}, gamma 0.1, least", plain[0.1].min(), plain[0.1].min() < 0.5)
claims.check(f"{name}, gamma 0.1, largest", plain[0.1].max(), plain[0.1].max() > 2)
claims.check(f"{name}, gamma 0.99, largest", plain[0.99].max(), plain[0.99].max() < 0.2)

# %% [markdown]
# Within 5% is not exact: many intervals exclude one. The largest errors are at $\gamma = 0.99$. In Atlantis the
# learned covariance of branches that may meet is a little too large. In Boxing rewards add to the variance, for the
# random actions decide who gets hit. The network has the shocks' variance and a tenth of the rewards': its mean does
# not foresee the hits (chapter 5).

# %%
off = ours.set_index(["game", "gamma"]).coupled.sub(1).abs().nlargest(2).index.to_list()
two = [("Atlantis", 0.99), ("Boxing", 0.99)]
claims.check("local + near: largest errors in", ", ".join(f"{g} {y}" for g, y in off), off == two)
boxing = gaps[(gaps.game == "Boxing") & (gaps.gamma == 0.99) & (gaps.kind == "near")]
alone = 2 / (1 - 0.99**2)  # two returns that are shocks and nothing else
played, learned = boxing.mc_independent.mean() / alone, boxing.independent.mean() / alone
name = "Boxing, gamma 0.99: variance / that of shocks alone"
claims.check(f"{name}, simulated", played.round(3), played > 1.02)
claims.check(f"{name}, learned", learned.round(3), 0 < learned - 1 < 0.2 * (played - 1))

# %% [markdown]
# The same as a picture; grey is one, give or take 5%. The paper's crosses stand amid their group: it names no
# $\gamma$.

# %%
fig, ax = plt.subplots(figsize=(6.75, 2.9), layout="constrained")
figures.gap_ratios(ax, table, paper.coupled)
ax.set_ylabel("gap variance, learned / Monte Carlo")
fig.legend(loc="outside lower center", ncols=4)
figures.save(fig, "fig_gap_ratios", table, out_dir)
plt.show()

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
#   not told. With both, three games are right.
# - In **Atlantis** half of all sibling states are the same again after one step, and many others meet later.
#   Covariances between *distinct* states matter there, and beside the local term inner products alone miss
#   them. The **near** term, $k(s,t)\langle q(x), q(y)\rangle$ with $k = e^{-|f(s)-f(t)|^2}$ and a learned linear $f$, says what is true
#   of them: near states are likely to meet.

# %%
atlantis = table[(table.game == "Atlantis") & (table.gamma == 0.99)].set_index("kind")
local, near = atlantis.coupled.local, atlantis.coupled.near
claims.check("Atlantis, gamma 0.99: local Gram alone, coupled / MC", round(local, 2), local < 0.95)
claims.check("Atlantis, gamma 0.99: with the near term", round(near, 2), abs(near - 1) < 0.05)

# %% [markdown]
# ## 6.5 The factor 100
#
# What independent marginals overestimate, against $\gamma$: simulated (points) and learned (lines), with
# $1/\gamma^2$. Three games lie near the line at small $\gamma$. In Atlantis branches merge, so the coupled
# variance is half as large and the factor twice as big; at $\gamma$ near one the factor tends to what merging
# alone explains. The paper's 83 to 135 are of the size that $\gamma = 0.1$ gives. That is no proof of its
# setting: for Atlantis it has the smallest factor, 83, and here Atlantis has the largest.

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6), layout="constrained")
fine = np.geomspace(0.09, 0.995, 100)
ax.loglog(fine, fine**-2, color="0.6", lw=3, label=r"$1/\gamma^2$")
for (game, each), marker in zip(ours.groupby("game", sort=False), "os^D", strict=True):
    (drawn,) = ax.loglog(each.gamma, each.mc_ratio, marker, ms=4, mfc="none", label=game)
    ax.loglog(each.gamma, each.independent, lw=0.8, color=drawn.get_color())
ax.set(xlabel=r"$\gamma$", ylabel="independent / coupled")
ax.legend()
figures.save(fig, "fig_independent_ratio", ours, out_dir)
plt.show()

# %%
tenth = ours[ours.gamma == 0.1].set_index("game").mc_ratio.round(1)
for game in ("Pong", "BattleZone", "Boxing"):
    claims.check(f"{game}, gamma 0.1: independent / coupled", tenth[game], 100 <= tenth[game] < 110)
claims.check("Atlantis, gamma 0.1: independent / coupled", tenth.Atlantis, tenth.Atlantis > 200)

# %% [markdown]
# ## 6.6 State by state
#
# An average can be right for the wrong reasons. Each point is a state at $\gamma = 0.9$, one seed; bars are 95%
# of the simulation. *Rank* is Spearman's correlation over the 64 states, mean of the seeds. Where almost no
# branches meet, all states have almost the same gap variance and there is little to rank.

# %%
fig, axes = plt.subplots(1, 4, figsize=(6.75, 2.1), layout="constrained")
chosen = gaps[(gaps.gamma == 0.9) & (gaps.kind == "near") & (gaps.seed == 0)]
for ax, game in zip(axes, paper.index, strict=True):
    each = chosen[chosen.game == game]
    figures.agreement(ax, each.coupled, each.mc, bars=1.96 * each.mc_error)
    rank = wide.loc[(game, 0.9, "near")]["rank"]
    ax.set(ylim=ax.get_xlim(), title=f"{game}\nrank {rank:.2f}")
axes[0].set_ylabel("Monte Carlo")
fig.supxlabel("predicted gap variance", fontsize="medium")
figures.save(fig, "fig_gap_scatter", chosen, out_dir)
plt.show()

# %%
spread = chosen.groupby("game").mc.agg(lambda v: v.std() / v.mean()).round(2)
ranks = ours[ours.gamma == 0.9].set_index("game")[["rank", "reliability"]].round(2)
print(ranks.assign(spread=spread).to_string())
claims.check(
    "Atlantis, gamma 0.9: rank correlation per state",
    ranks["rank"].Atlantis,
    ranks["rank"].Atlantis > 0.9,
)

# %% [markdown]
# *spread* is the coefficient of variation between states, *reliability* the share of their variance that is
# not simulation noise. Atlantis, where states differ, is ranked almost perfectly. In Boxing states differ by
# a few percent, and most of that is reward variance again: gap variance goes with the variance of the
# returns themselves, which the network does not foresee.
#
# Last, what Table 1 does not test: the *mean* of a gap. Most of the variance of the simulated means is not noise
# here. In Pong, whose mean the networks learn (chapter 5), what they say about new states goes with it; in the other
# games it hardly does. A variance within 5% does not say which action is better.

# %%
apart = chosen[chosen.game == "Boxing"][["mc", "mc_independent"]].corr("spearman").iloc[0, 1]
claims.check("Boxing: rank correlation of gap and return variance", apart.round(2), apart > 0.5)
by_game = chosen.groupby("game", sort=False)
noise = (chosen.mc_mean_error**2).groupby(chosen.game).mean() / by_game.mc_mean.var()
together = by_game[["gap_mean", "mc_mean"]].corr().gap_mean.xs("mc_mean", level=1)
means = pd.DataFrame({"correlation": together, "reliability": 1 - noise}).round(2)
print(means.to_string())
learned, largest = means.correlation.Pong, means.correlation.drop("Pong").max()
claims.check("gap means, gamma 0.9, Pong: correlation over states", learned, learned > 0.6)
claims.check("gap means, gamma 0.9, other games: largest", largest, largest < 0.5)

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
fig, (left, right) = plt.subplots(
    1, 2, figsize=(6.75, 2.8), width_ratios=(2, 3), layout="constrained"
)
left.axhline(1, color="0.6", lw=0.8)
for place, (game, marker) in enumerate(zip(paper.index, "os^D", strict=True)):
    each = simulated.loc[game].drop(0.1)
    at = np.arange(len(each)) + 0.15 * (place - 1.5)
    left.errorbar(
        at, each.mc_ratio, each.mc_ratio_interval, fmt=marker, ms=4, mfc="none", label=game
    )
left.set_xticks(np.arange(len(each)), [f"{gamma:g}" for gamma in each.index])
left.set(xlabel=r"$\gamma$", ylabel="independent / coupled")
left.legend()
figures.gap_ratios(right, natural[natural.gamma >= 0.9])
right.set(ylabel="learned / Monte Carlo", ylim=(4e-3, 6))
fig.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
figures.save(fig, "fig_sticky_ratio", natural, out_dir)
plt.show()

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
# **The learned variances are of the right size at large $\gamma$, and not calibrated.** There is no shock in
# closed form any more, and two errors pull apart. Where the mean does not foresee a reward, its error enters as
# a square and counts as variance: too much, and all there is where the true variance is almost zero. And what
# the mean has memorised of the states it learned from looks like foresight there: too little, at
# $\gamma = 0.99$. A state's own tables help against the first. The plain Gram network collapses as before.

# %%
at = learned.xs(0.99, level="gamma").round(2)
claims.check("sticky, gamma 0.99: learned / MC, least", at.near.min(), at.near.min() > 0.5)
claims.check("sticky, gamma 0.99: learned / MC, largest", at.near.max(), at.near.max() < 1)
claims.check("sticky, gamma 0.99: plain Gram, largest", at.gram.max(), at.gram.max() < 0.1)
at = learned.xs(0.9, level="gamma").round(2)
claims.check("sticky, gamma 0.9: learned / MC, least", at.near.min(), at.near.min() > 1)
claims.check("sticky, gamma 0.9: learned / MC, largest", at.near.max(), at.near.max() < 2.5)
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
# - The covariance of a joint MDP is local. A representation that knows this, and the shock, is right within 5%
#   here; one that knows neither, on the same batches, is wrong by up to an order of magnitude.
# - How much coupling matters under a common shock is set by $\gamma$ and by how often branches meet. The
#   lottery of sticky actions alone couples little.
# - Compare with games that were played, with their standard errors, state by state.
#
# **Exercises.** (1) Give the shock opposite loadings for two actions (`Shock(1.0, loadings=...)`,
# `Config(loadings=...)`). What happens to the ratio at $\gamma = 0.1$? (2) Run 6.2 with `live_games = ["Atlantis"]`
# and kinds `("local", "near")`, and look at $\gamma = 0.99$.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
work.cleanup()
claims.print()
