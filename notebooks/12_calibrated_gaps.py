# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12. What calibrates: gap variances in nine games
#
# Chapter 6 ends with a network whose gap variances are 4 to 10 times too small. What does a network need in order to be
# right? We compare three networks in nine Atari games at four discounts: 36 cases. A case counts as right if the 95% interval of
# learned over simulated gap variance lies inside $1 \pm 5\%$.
#
# We have two networks that know which states are *equal*; one of them also learns which are *near*. With the better one of the two, chosen for each case
# at other states, 24 cases are right, none is shown to be wrong, and in 12 one cannot tell: in half of these the ratio itself is off by more than 5%. The paper's Gram
# network, with the best of its settings at every discount, is right in none and wrong in 35.
#
# **What you will learn.** Why the covariance of a joint MDP is local, how to compare networks fairly, and what a right variance
# does not tell you.
#
# **What it needs.** Chapters 5 and 6. To run the notebook, install the project with `pip install -e ".[notebooks,torch]"` in its
# folder and keep the notebook in `notebooks/`. The trainings are not repeated here. The chapter computes all its numbers from
# their predictions and from simulated gaps, state by state, in `figures/atari/calibrated.csv` and `figures/atari/simulated.csv`.

# %% tags=["parameters"]
calibrated_files = ["figures/atari/calibrated.csv"]
average_files = ["figures/atari/calibrated_averages.csv"]
simulated_files = ["figures/atari/simulated.csv"]
trial_files = ["figures/atari/tune.csv"]
ablation_files = ["figures/atari/ablation.csv"]
play_files = ["figures/atari/plays.csv"]
out_dir = ""

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.atari import plots
from experiments.atari.predictions import gap_table
from experiments.atari.protocol import TOLERANCE
from experiments.atari.recursive_pairs import shock_ratio
from jmdp_lib import figures
from jmdp_lib.atari import CoupledAtari
from notebooks import chapter

chapter.style()
claims = chapter.Claims()
tuned = ["Pong", "BattleZone", "Boxing", "Atlantis"]
games = [*tuned, "SpaceInvaders", "Asterix", "Qbert", "MsPacman", "Freeway"]
case = ["game", "gamma"]

# %% [markdown]
# ## 12.1 A diagnostic: one shock for all actions
#
# In the release, a shock belongs to the *position* of an action in the query, which no joint MDP with three actions allows (section 6.5). Our shock
# belongs to the outcome table. The emulator runs without sticky actions, rewards are clipped, and one shock is added:
#
# $$R(a) = \operatorname{clip}(r(s,a), -1, 1) + \sigma U, \qquad U = \pm 1, \quad \sigma = 1 .$$
#
# $U$ is drawn once per table, so all actions of a state get the same shock:

# %%
pong = CoupledAtari("Pong", shock=1.0, rng=0)
pong.reset()
rewards = {float(outcome.reward) for outcome in pong.query(range(pong.num_actions))}
assert rewards in ({1.0}, {-1.0})  # at a state that pays nothing

# %% [markdown]
# It cancels in a gap between two branches of one table, but not in the difference of
# two independent returns. If shocks are the only randomness and branches never meet again, then
#
# $$\frac{\operatorname{Var} Z_a + \operatorname{Var} Z_b}{\operatorname{Var}(Z_a - Z_b)}
#   = \frac{2\sigma^2/(1-\gamma^2)}{2\sigma^2\gamma^2/(1-\gamma^2)} = \frac{1}{\gamma^2} .$$
#
# **The reference** is simulation. Two branches start at one state with two actions and go on with uniform random actions. While they
# stand at the same state they share a table; if they also take the same action, they are one from then on. Discounts
# and shocks are added in closed form. There are 64 states for each game, three pairs of actions at each state, twelve plays of each pair (four at
# tuning states), and 300 steps for each play.
#
# **A check before all others.** Networks and simulation must see the same states. At $\gamma = 0.1$ a gap varies only if its two actions have distinct
# futures, which the state's own outcome table says; the run of the networks queried it anew. Where table and simulation disagree on one of the three pairs,
# they differ by a third of the *constant* $2\sigma^2\gamma^2/(1-\gamma^2)$, the gap variance if branches never meet and rewards do not vary.
# The largest difference at any state is 0.18 of it.
#
# (At first it was one, in Qbert. There the first game after loading the emulator goes another way than all later ones, so 8 of the 64 states
# were not those that had been simulated. We repaired this and simulated Qbert again, after all trainings.)

# %%
simulated = chapter.results(simulated_files).query("states == 1").drop(columns="states")
runs = chapter.results(calibrated_files).rename(columns={"network": "kind"})
gaps = runs.merge(simulated, on=[*case, "state"], validate="many_to_one")
gaps = gaps.assign(independent=np.nan)
nine = gaps[gaps.game.isin(games)]
first_step = gaps[(gaps.gamma == 0.1) & (gaps.kind == "near")]
first_step = first_step.groupby(["game", "state"])[["table", "mc"]].mean()
off = (first_step.table - first_step.mc).abs().max() / (2 * 0.1**2 / (1 - 0.1**2))
claims.check("table and simulation, 576 states, gamma 0.1: off by", f"{off:.2f}", off < 1 / 3)
played = gap_table(nine[(nine.kind == "near") & (nine.seed == 10)]).set_index(case).loc[games]

# %%
looks = [*zip("os^Dvp*", (f"C{i}" for i in range(7)), strict=True), ("<", "0.5"), (">", "#8C510A")]
fig, ax = plt.subplots(figsize=(5.0, 3.0), layout="constrained")
fine = np.geomspace(0.09, 0.995, 100)
ax.loglog(fine, shock_ratio(fine), color="0.6", lw=3, label=r"$1/\gamma^2$")
for game, (marker, color) in zip(games, looks, strict=True):
    each = played.loc[game].mc_ratio
    ax.loglog(each.index, each, marker=marker, lw=0.6, ms=4, mfc="none", color=color, label=game)
ax.set(xlabel=r"$\gamma$", ylabel="independent / coupled, simulated")
fig.legend(loc="outside right upper")
drawn = ["mc", "mc_error", "mc_ratio", "constant"]
chapter.save(fig, "fig_independent_ratio", played[drawn].reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 12.1.** Independent over coupled gap variance, both simulated, against $\gamma$. Grey: $1/\gamma^2$. See that it is a lower edge: games lie above it where branches meet again.
#
# <!-- alt: Marks of nine games against gamma on logarithmic axes. Pong, BattleZone, Boxing and, up to 0.5, Freeway lie on the grey line from 100 at gamma 0.1 to one at 0.99. Asterix is a little above it, Atlantis and Space Invaders at twice its height, Ms. Pacman at four times and Qbert at 24 times at gamma 0.1. -->

# %%
at = played.mc_ratio.xs(0.1, level="gamma")
text = f"{at.min():.0f} to {at.drop(['MsPacman', 'Qbert']).max():.0f}"
text += f"; {at.MsPacman:.0f}, {at.Qbert:.0f}"
assert (played.mc_ratio * played.index.get_level_values("gamma") ** 2 > 0.99).all()
claims.check("independent / coupled, gamma 0.1; Ms. Pacman, Qbert", text, at.min() > 99)
assert played.constant[["Pong", "BattleZone", "Boxing"]].between(0.93, 1.07).all()
assert round(played.constant.max()) == round(played.constant["Qbert", 0.1]) == 24

# %% [markdown]
# Where branches merge, the coupled variance shrinks: it is about half of the constant in Atlantis and Space Invaders.
#
# The constant needs no learning. It is within 7% of the average in Pong, BattleZone and Boxing at all discounts, and 24 times too large in Qbert at $\gamma = 0.1$.
#
# ## 12.2 Three networks
#
# Each network has a mean $\mu(s,a)$ and a covariance $C$ between state-action pairs $x = (s,a)$ and $y = (t,b)$. All vectors
# are outputs of a network that sees the memory of the game.
#
# $$\begin{aligned}
# \textbf{Gram:} \quad & C(x,y) = \langle v(x), v(y)\rangle \\
# \textbf{local:} \quad & C(x,y) = \text{Gram} + 1\{s=t\}\,\langle u(x), u(y)\rangle + 1\{x=y\}\, d(x)^2 \\
# \textbf{near:} \quad & C(x,y) = \text{local} + e^{-|f(s)-f(t)|^2}\,\langle q(x), q(y)\rangle
# \end{aligned}$$
#
# **Why a local term.** Returns from two distinct states share no table, so their covariance is zero unless the branches meet later.
# A Gram network uses inner products for every pair. To give each state a large variance and most pairs of states no covariance, its vectors would have to be
# orthogonal across thousands of states, in 64 dimensions. The local term is free to be large where the states are equal. It keeps $C$ positive semidefinite.
#
# **Why a near term.** Branches at distinct states that are close may meet soon. The map $f$ is linear and learned.
#
# The shock is one coordinate of $u$ that is given, not learned; the Gram network is not told it. At $\gamma = 0.99$ this is not what makes the difference; at smaller discounts, where the shock is nearly all of a variance and cancels in the gap, we did not test it. In an earlier
# ablation in four games at 0.99, the Gram network with the shock given has 0.15 to 0.17 of the simulated gap variance; the near
# network that has to learn the shock has 0.96 to 1.01.

# %%
ablation = chapter.results(ablation_files).set_index(["kind", "game"]).coupled
span = ablation.groupby("kind").agg(["min", "max"])
text = "; ".join(
    "{:.2f} to {:.2f}".format(*span.loc[kind]) for kind in ("gram known", "near learned")
)
right = span["max"]["gram known"] < 0.2 and span["min"]["near learned"] > 0.95
claims.check("Gram, shock given; near, shock learned", text, right, "cited")

# %% [markdown]
# ## 12.3 The protocol, stated before the runs
#
# The rules are in `experiments/atari/protocol.toml`, part `calibrate`. We wrote them before these runs, but after an earlier version had shown us all three networks in these nine games, at the same evaluation states: these are no fresh test of the rules.
#
# - **Trials.** Each network has the same six settings to choose from: a base, and five variants that change one thing (learning rate, weight decay, width, weight of the gap). For each discount it
#   gets the one with the least error at tuning states of four games (two games at $\gamma = 0.5$; one seed, 2,500 steps). The error is the root mean squared error over states, divided by the average.
# - **Spread.** At $\gamma = 0.99$ the local and near network have one more trial, *spread*: an own output for $\operatorname{Var}_A \mu(s,A)$ over the next action. Without it,
#   a reward that the mean does not foresee adds nothing to the variance.
# - **Local or near.** For each game and discount, the one whose average gap variance at tuning states is nearer to the simulated one. We call the result *chosen*. It needs
#   simulated pairs in every game.
# - **What is reported** comes from seeds 10, 11 and 12, after 3,500 steps, at other states.

# %%
trials = chapter.results(trial_files).replace({"kind": {"gram": "Gram"}})
errors = trials.groupby(["kind", "gamma", "trial"]).error.mean().unstack()
errors.round(3)

# %%
best = errors.idxmin(axis=1)
averages = chapter.results(average_files)
tuning = averages[averages.states == 0]
far = tuning[(tuning.gamma == 0.99) & (tuning.network != "Gram")]
far = far.groupby(["network", "trial", "game"]).error.mean().unstack()
of_tuned = far[tuned].mean(axis=1).unstack("network")
assert (of_tuned.idxmin() == "spread").all()
best.update(pd.Series("spread", [("local", 0.99), ("near", 0.99)]))
used = nine.groupby(["kind", "gamma"]).trial.unique().str[0]
assert (used == best).all()
of_all = far.mean(axis=1).round(3)
assert (of_all["near", "spread"], of_all["near", "decay"]) == (0.216, 0.182)
assert (of_all["local", "spread"], of_all["local", "base"]) == (0.228, 0.288)
best.unstack()

# %% [markdown]
# In the four tuning games, *spread* makes the error of
# both networks a little smaller, so both get it. In all ten games together it makes that of the near network larger, 0.216 instead of 0.182, but weight decay changes there, too. For the local network, where only the spread changes, it falls from 0.288 to 0.228.
#
# **One trial for all discounts?** In one average over discounts, the errors at $\gamma = 0.1$ decide: the Gram network
# would get the trial *gap*, which is the worst of the six at $\gamma = 0.5$, 0.9 and 0.99. The local and near network would lose at most 15% of
# accuracy at any discount.

# %%
one = errors.groupby("kind").mean().idxmin(axis=1)
gram = errors.loc["Gram"]
worst = gram.idxmax(axis=1)
assert one.Gram == "gap"
for kind in ("local", "near"):
    assert (errors.loc[kind][one[kind]] / errors.loc[kind].min(axis=1)).max() < 1.15
text = f"{gram.gap[0.99]:.3f}, {gram.min(axis=1)[0.99]:.3f}"
claims.check(
    "Gram, gamma 0.99, error: one trial for all, best",
    text,
    set(worst[[0.5, 0.9, 0.99]]) == {"gap"},
)

# %% [markdown]
# Reservations. The base is close to the settings of our earlier runs, which may favour our networks. Time on the device ran out for a part of the Gram network's
# runs: in the four tuning games it has one seed at $\gamma = 0.5$ and two at 0.9 and 0.99 (`figures/atari/calibrate.json`).
#
# ## 12.4 How many cases are right?
#
# An interval covers the noise of the simulation and the spread between seeds (Student's $t$), for these states; where the Gram network has one seed, the simulation alone. It can lie inside 5%, outside, or neither: then one cannot
# tell. *Table* means one exact backup: the first step is read from the state's own outcome table, and the network is used only for what comes later.

# %%
ratio = tuning.rename(columns={"network": "kind"}).merge(used.reset_index())
ratio = ratio.groupby([*case, "kind"])[["coupled", "mc"]].mean()
distance = (ratio.coupled / ratio.mc - 1).abs().unstack()
chosen = distance[["local", "near"]].idxmin(axis=1).rename("kind")
picked = nine.merge(chosen.reset_index(), on=[*case, "kind"]).assign(kind="chosen")
alone = pd.concat([nine, picked])
backed_up = picked.assign(coupled=picked.table, kind="chosen + table")


def told(table):
    """Whether each interval lies inside 5%, outside, or neither."""
    low, high = table.coupled - table.coupled_interval, table.coupled + table.coupled_interval
    least, most = 1 - TOLERANCE["ratio"], 1 + TOLERANCE["ratio"]
    inside, outside = (low >= least) & (high <= most), (high < least) | (low > most)
    return np.select([inside, outside], ["inside", "outside"], "cannot tell")


both = pd.concat([alone, backed_up])
table = gap_table(both)
table["told"] = told(table)
table["skill_mean"] = gap_table(both, "mean").skill
kinds = ["Gram", "local", "near", "chosen", "chosen + table"]
counts = table.groupby("kind").told.value_counts().unstack(fill_value=0)
counts = counts.loc[kinds, ["inside", "cannot tell", "outside"]]
counts

# %%
for kind, expected in {"Gram": (0, 1, 35), "local": (21, 11, 4), "near": (23, 12, 1)}.items():
    assert tuple(counts.loc[kind]) == expected
for kind, expected in {"chosen": (24, 12, 0), "chosen + table": (30, 6, 0)}.items():
    found = tuple(counts.loc[kind])
    text = "{} inside, {} cannot tell, {} outside".format(*found)
    claims.check(f"{kind}, 36 cases", text, found == expected)

# %%
fig, (ax, zoom) = plt.subplots(2, 1, figsize=(6.75, 4.8), sharex=True, layout="constrained")
order = table.assign(game=pd.Categorical(table.game, games)).sort_values(case)
shown = order[order.kind.isin(plots.KIND_STYLES)].astype({"game": str})
plots.gap_ratios(ax, shown)
fig.legend(loc="outside lower center", ncols=4)
plots.gap_ratios(zoom, shown)
zoom.set(yscale="linear", ylim=(0.85, 1.35))
for name in [*zoom.texts]:  # they stand above the upper panel
    name.remove()
ax.set_xlabel("")
fig.supylabel("gap variance, learned / simulated", fontsize="medium")
chapter.save(fig, "fig_gap_ratios", shown, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 12.2.** Learned over simulated gap variance of the three networks, in nine games at four discounts, with 95% intervals; below, the same near one. Grey: $1 \pm 5\%$. See that the Gram network is far too small at $\gamma = 0.99$ in every game, and too large at 0.1 in most.
#
# <!-- alt: Two panels with nine groups of four discounts, the lower one enlarged around one. Squares of the Gram network start between 1 and 14 at gamma 0.1 and fall to between 0.02 and 0.16 at 0.99. Triangles of the local and circles of the near network lie close to one; the farthest are in Qbert at gamma 0.1, with wide bars, and, for the local network, in Atlantis and Space Invaders at 0.99. -->

# %%
fig, ax = plt.subplots(figsize=(6.0, 2.2), layout="constrained")
left = np.zeros(len(kinds))
for column, color in {"inside": "#0072B2", "cannot tell": "0.8", "outside": "#D55E00"}.items():
    ax.barh(kinds, counts[column], left=left, color=color, label=column)
    left += counts[column].to_numpy()
ax.invert_yaxis()
ax.set(xlabel="cases", xlim=(0, 36), xticks=[0, 6, 12, 18, 24, 30, 36])
ax.grid(visible=False, axis="y")
fig.legend(loc="outside lower center", ncols=3)
chapter.save(fig, "fig_calibrated_counts", counts.reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 12.3.** Of 36 cases, how many have their 95% interval inside $1 \pm 5\%$, how many outside, and how many neither. See that the near term moves only a few cases, and the local term, with the shock given, nearly all.
#
# <!-- alt: Five horizontal bars of 36 cases. Gram: one cannot tell, 35 outside. Local: 21 inside, 11 cannot tell, 4 outside. Near: 23, 12 and 1. Chosen: 24 and 12, none outside. Chosen with table: 30 and 6, none outside. -->

# %%
wide = table.pivot(index=case, columns="kind", values="coupled")
gram = wide.Gram.xs(0.99, level="gamma")
text = f"{gram.min():.3f} to {gram.max():.3f}"
claims.check("Gram, gamma 0.99: learned / simulated", text, gram.max() < 0.2)
nearer = int(((wide.near - 1).abs() < (wide.local - 1).abs()).sum())
cell = table.set_index(["kind", *case])
for game in ("Atlantis", "Freeway"):
    rows = [cell.loc[kind, game, 0.99] for kind in ("local", "near")]
    text = ", ".join(f"{row.coupled:.3f} ± {row.coupled_interval:.3f}" for row in rows)
    helps = abs(rows[1].coupled - 1) < abs(rows[0].coupled - 1)
    claims.check(f"{game}, gamma 0.99: local, near", text, helps == (game == "Atlantis"))
open_cases = cell.loc["chosen"].query("told == 'cannot tell'")
where = sorted({game for game, _ in open_cases.index}, key=games.index)
text = f"{open_cases.coupled.min():.2f} to {open_cases.coupled.max():.2f}"
assert where == ["SpaceInvaders", "Asterix", "Qbert", "MsPacman"]
assert (nearer, text) == (21, "0.96 to 1.14")
assert ((open_cases.coupled - 1).abs() > TOLERANCE["ratio"]).sum() == 6
for game in ("Qbert", "MsPacman"):
    assert cell.told["chosen + table", game, 0.1] == "inside"

# %% [markdown]
# **The local term does most of the work at $\gamma = 0.99$.** There the gap variances of the Gram network are 6 to 43 times too small.
#
# **The near term is worth little for averages, and more state by state** (section 12.5). The near network is closer to one than the local network in 21 of 36 cases. It helps in Atlantis
# at $\gamma = 0.99$ from $0.900 \pm 0.038$ to $0.992 \pm 0.024$. It hurts in Freeway at 0.99: from $1.001 \pm 0.030$ to $1.070 \pm 0.028$, after the same steps on the same states.
# The choice by tuning states gets both right.
#
# **"Cannot tell" is not "right".** All 12 such cases are in four of the five games where no trial was tuned, and their ratios run from 0.96 to 1.14. Six of them are off by more than 5%, so more seeds may well show these wrong.
# With one exact backup 6 are left: the state's own table says which actions have one future, and this repairs Qbert and Ms. Pacman at
# $\gamma = 0.1$.
#
# ## 12.5 State by state
#
# An average can be right for the wrong reasons. *Skill* is $1 - \mathrm{MSE}_{\text{network}}/\mathrm{MSE}_{\text{baseline}}$ over states, with the noise
# of the simulation subtracted from both errors: one is perfect, zero as good as the baseline. There are two baselines. The constant needs no
# simulation, and can be wrong by a factor of 24. The mean of the game knows the level, so what is left are differences between states.

# %%
goal = TOLERANCE["skill"]
skills = table[table.kind.isin(kinds)].set_index("kind")
reached = pd.DataFrame(
    {
        "constant": skills.skill >= goal,
        "mean of the game": skills.skill_mean >= goal,
        "both": (skills.skill >= goal) & (skills.skill_mean >= goal),
        "of": skills.skill.notna() & skills.skill_mean.notna(),
    }
)
reached = reached.groupby("kind").sum().loc[kinds]
reached

# %%
fig, axes = plt.subplots(3, 3, figsize=(6.75, 6.4), layout="constrained")
dots = picked[(picked.gamma == 0.9) & (picked.seed == 10)]
for ax, game in zip(axes.flat, games, strict=True):
    each, row = dots[dots.game == game], cell.loc["chosen", game, 0.9]
    figures.agreement(ax, each.coupled, each.mc, bars=1.96 * each.mc_error)
    ax.axvline(2 * 0.81 / 0.19, color="0.6", ls=":")
    ax.set_title(f"{game} ({chosen[game, 0.9]})\nskill {row.skill:.2f}, {row.skill_mean:.2f}")
fig.supxlabel("predicted gap variance", fontsize="medium")
fig.supylabel("simulated gap variance", fontsize="medium")
columns = [*case, "state", "coupled", "mc", "mc_error"]
chapter.save(fig, "fig_gap_scatter", dots[columns], out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 12.4.** Gap variance at $\gamma = 0.9$, predicted by the chosen network (seed 10, name in brackets) against simulated, one dot for each state, with 95% intervals of the simulation. Titles: skill of all seeds against the constant (dotted) and against the mean of the game. Axes differ. See that Boxing is a cloud near the constant.
#
# <!-- alt: Nine scatter plots with a diagonal. In Atlantis, Space Invaders, Asterix, Qbert and Ms. Pacman the dots follow the diagonal over a wide range; in Pong, BattleZone and Freeway most dots sit near the constant and the others follow the diagonal; in Boxing they form a cloud near the constant. -->

# %%
row = reached.loc["chosen"]
found = [*map(int, row)]
text = "{}, {}, {} of {}".format(*found)
claims.check(
    "chosen, skill of 0.9: constant, mean, both", text, found == [29, 22, 22, 35], "goal missed"
)
text = f"{reached.both['chosen + table']} of {row.of}"
claims.check("chosen + table: skill of 0.9, both", text, text == "25 of 35", "goal missed")
assert (cell.loc["chosen", "Boxing"].skill_mean < goal).all()

# %% [markdown]
# Of the 35 cases where states differ at all (not Freeway at $\gamma = 0.1$), the chosen network reaches a skill of 0.9 against the constant in 29, and against
# the mean of the game in 22. The near network alone reaches 22 against the mean, the local one 16. Boxing fails at every discount.
#
# **Play first.** A user with an emulator can play the first 64 steps and use the network only for the rest. In earlier runs of the near
# network (24 plays of each pair; more states and steps of training; Qbert as it was before the repair) 34 of 36 intervals lie inside 5% and none outside. This costs 9,216 emulator steps for each state, beside all queries of the training.

# %%
deep = chapter.results(play_files).query("kind == 'near+64'")
number = pd.Series(told(deep)).value_counts()
text = f"{number['inside']} inside, {number['cannot tell']} cannot tell"
claims.check("near, 64 played steps, 36 cases", text, number.sum() == 36, "cited")

# %% [markdown]
# ## 12.6 What the network does not know
#
# **Which action is better.** A right variance says nothing about the mean of a gap. Here are correlations over states of learned and simulated gap means of the near network at $\gamma = 0.9$,
# and their ranks. The noise of the simulation lowers all of them. In Freeway nobody scores, and all means are zero.

# %%
near = nine[(nine.gamma == 0.9) & (nine.kind == "near") & (nine.game != "Freeway")]
by_run = near.groupby(["game", "seed"])[["gap_mean", "mc_mean"]]
together = pd.DataFrame(
    {
        name: by_run.corr(method).gap_mean.xs("mc_mean", level=2).groupby("game").mean()
        for name, method in (("values", "pearson"), ("ranks", "spearman"))
    }
)
together.loc[[game for game in games if game in together.index]].round(2)

# %%
above = together.index[together["values"] > 0.25]
text = ", ".join(f"{game} {together['values'][game]:.2f}" for game in above)
claims.check("gap means: correlation above 0.25", text, len(above) == 3)
assert together.ranks.max() < 0.25
for game in ("Pong", "Qbert"):
    rows = near[near.game == game]
    rest = rows[rows.state != rows.state[rows.mc_mean.abs().idxmax()]]
    rest = rest.groupby("seed")[["gap_mean", "mc_mean"]].corr().gap_mean.xs("mc_mean", level=1)
    assert abs(rest.mean()) < 0.05

# %% [markdown]
# In Pong and Qbert one state each makes the correlation: without it, it is zero. Ms. Pacman has 0.32, but no rank correlation is above 0.25. **At $\gamma = 0.9$ the network knows how large gaps are, but hardly which action is better.**
#
# **Rewards that it cannot foresee.** An outside trial with one seed found a gap variance in Krull at $\gamma = 0.99$ that was 14% too small. There the constant, which leaves out rewards, is only 0.69 of
# the simulated variance. The trial *spread* was made for this, so Krull is no unseen game. At other states, with one seed, the near network still is 11% too small. The local network, where nothing but the spread changes, goes from 20% to 11%.

# %%
krull = averages[(averages.game == "Krull") & (averages.states == 1)]
of_local = krull[(krull.network == "local") & (krull.gamma == 0.99)].set_index("trial")
krull = krull[krull.network == "near"].set_index(["gamma", "trial"])
size = krull.coupled / krull.mc
interval = 1.96 * size * krull.mc_error / krull.mc
text = ", ".join(
    f"{size[key]:.3f} ± {interval[key]:.3f}"
    for key in [(0.5, "decay"), (0.9, "decay"), (0.99, "spread")]
)
claims.check("Krull, near, gamma 0.5, 0.9, 0.99", text, size[0.99, "spread"] < 0.95, "goal missed")
of_local = (of_local.coupled / of_local.mc).round(2)
assert (of_local.base, of_local.spread) == (0.80, 0.89)
assert round(2 * 0.99**2 / (1 - 0.99**2) / krull.mc[0.99, "spread"], 2) == 0.69

# %% [markdown]
# ## What to take away
#
# - The covariance of a joint MDP is local: states share a shock only if they are equal. A network that knows this has gap variances that are right within 5% in 24 of 36 cases. In the other 12 three seeds cannot tell, and half of those have ratios off by more than 5%.
# - The term for near states helps state by state; for averages it helps in some games and hurts in others. Let simulated pairs at tuning states decide.
# - Choose settings for each rival as for yourself, at every discount. One average can pick the worst.
# - An average is not a state. Show the skill against the mean of the game, not only against a constant.
# - A right variance is not a right mean.
#
# ## Exercises
#
# **Exercise 1.** The mean of a game has skill, too, against the constant. In which game does the level explain most at $\gamma = 0.9$, and in which one least?
#
# <details><summary>Solution</summary>
#
# With skills $k_c$ and $k_m$ of any network against the two baselines, the skill of the mean is $1 - (1-k_c)/(1-k_m)$, because both have the same error
# in the numerator. It is 0.90 in Qbert, where the constant is 6 times too large, and 0.05 in Boxing.
#
# </details>

# %% tags=["hide-cell"]
at = cell.loc["chosen"].xs(0.9, level="gamma")
level = 1 - (1 - at.skill) / (1 - at.skill_mean)
text = f"{level.idxmax()} {level.max():.2f}, {level.idxmin()} {level.min():.2f}"
assert text == "Qbert 0.90, Boxing 0.05"

# %% [markdown]
# **Exercise 2.** Give two actions of one state the loadings 1 and $-1$ on the shock. Does $1/\gamma^2$ get larger or smaller, and does a network without a local term suffer more or less?
#
# <details><summary>Solution</summary>
#
# Now the shock of the first step adds up in the gap, and the ratio is $1/(2-\gamma^2) < 1$: independent marginals underestimate the gap variance. The
# Gram network should suffer as before (we did not try): what it cannot represent is that *distinct* states share nothing, and this has not changed.
#
# </details>

# %% tags=["hide-cell"]
opposite = shock_ratio([0.5], [1.0, -1.0])[0]
assert np.isclose(opposite, 1 / 1.75)

# %% [markdown]
# **What to read next.** [Chapter 8](08_learning.ipynb) learns the same moments where they can be checked exactly.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
