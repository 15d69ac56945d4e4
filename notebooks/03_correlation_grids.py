# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3. Correlation grids: what an MDP cannot see
#
# The returns of all actions of a state form a vector, whose correlation matrix
#
# $$\rho^\pi_s(a, b) = \frac{\Sigma^\pi(s,a,s,b) - \mu^\pi(s,a)\,\mu^\pi(s,b)}{\sqrt{\mathrm{Var}\,Z^\pi(s,a)\;\mathrm{Var}\,Z^\pi(s,b)}}$$
#
# is `moments.correlation[s]`. The paper shows these matrices for all cells of a 3x3 gridworld (Figure 4) and for the first state of a chain
# (Figure 5). It prints no numbers, and reads the matrices as "a structured, state-dependent joint law across actions which is invisible to
# an MDP marginal description". We check this sentence phrase by phrase. Next to each matrix stands the
# one that the *same marginals* give if every action draws its outcome independently.
#
# **What you will learn.** How to read a correlation matrix of actions; why opposite rewards can give positively correlated returns; why assuming independence can make a
# comparison look too uncertain, or too certain; and what changes if a shock is shared for more than one step.
#
# **What it needs.** The gridworld of section 2.1, the chain of section 2.2, and how branches coalesce (section 0.4). To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
num_pairs = 40000  # at least 1000
num_gammas = 15  # at least 2, the ends of a curve
out_dir = ""

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
assert num_gammas >= 2, f"{num_gammas=}: at least 2"
U, R, D, L = range(4)
COUPLINGS = ("joint", "independent")

# %% [markdown]
# ## 3.1 Figure 4: nine matrices, laid out as the grid
#
# The policy goes right, then up. Cells are numbered row by row from the top left, beginning with 0, so the goal is cell 2 and the cell below it is cell 5. `coupling="joint"`, the paper's coupling, has one gust for all actions of a cell.
# `coupling="independent"` keeps the marginals, but gives every action a gust of its own.

# %%
grid, goal = jl.windy_gridworld(3, gust_prob=0.2), jl.goal_policy(3)
joint, alone = (jl.jipe2(grid, goal, coupling=coupling).moments for coupling in COUPLINGS)


# %%
def both_couplings(gust_prob):
    fig, axes = plt.subplots(1, 2, figsize=(6.75, 3.3))
    jm = jl.windy_gridworld(3, gust_prob=gust_prob)
    for ax, coupling in zip(axes, COUPLINGS, strict=True):
        correlation = jl.jipe2(jm, goal, coupling=coupling).moments.correlation
        figures.correlation_grid(ax, correlation, 3, "URDL", goal=2)
        ax.set_title(f"{coupling}, gust probability {gust_prob:g}")
    axes[1].set_yticks([])
    fig.get_layout_engine().set(wspace=0.12)
    figures.correlation_bar(fig, axes, label="correlation (scale not linear)", shrink=0.85)
    return fig


# %%
fig = both_couplings(0.2)
axes = {"coupling": COUPLINGS, "state": range(9), "action": list("URDL"), "other": list("URDL")}
entries = pd.MultiIndex.from_product(axes.values(), names=axes.keys())
both = np.ravel([joint.correlation, alone.correlation])
data = pd.Series(both, entries, name="correlation").reset_index()
chapter.save(fig, "fig4_wgw_correlations", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.1.** Correlations of the returns of the four moves, in every cell of the 3x3 windy gridworld (the paper's Figure 4); rows and columns of each small matrix are up, right, down, left. Left: one gust for
# all actions of a cell. Right: a gust for each. $\gamma = 0.95$, gust probability 0.2, goal policy. The goal is hatched: its return is constant, and has no correlation with anything (`nan`).
# The colour scale is not linear, so that large correlations can be distinguished. Note that the two panels differ except in the first column and at the goal.
#
# <!-- alt: The three by three grid twice, with a four by four correlation matrix in each cell. All entries are between zero and one, red where large. In the second and third columns of the grid the joint matrices are clearly redder than the independent ones; in the first column they look alike. -->

# %%
constant = np.flatnonzero((joint.variance < 1e-12).all(1)).tolist()
undefined = np.flatnonzero(np.isnan(joint.correlation).any((1, 2))).tolist()
assert undefined == constant == [2]

# %% [markdown]
# **"Invisible to an MDP marginal description."** The marginals determine the means and the variances, so these are the same under both couplings. The correlations are not:

# %%
assert np.allclose(joint.mean, alone.mean, rtol=0, atol=1e-6)
assert np.allclose(joint.variance, alone.variance, rtol=0, atol=1e-6)
difference = joint.correlation - alone.correlation
most = np.nanmax(np.abs(difference))
print(f"correlations differ by up to {most:.3f}")
assert most > 1e-3

# %% [markdown]
# **"State-dependent."** The correlation of one pair of actions, up and right, in the eight other cells:

# %%
pair = np.delete(joint.correlation[:, U, R], 2)
print("U against R:", np.round(pair, 3))
assert np.allclose([pair.min(), pair.max()], [0.02, 0.6], rtol=0, atol=0.005)

# %% [markdown]
# ## 3.2 Walls, twins and a common sign
#
# **"Structured."** The first column of the grid looks the same in both panels, because the wall stops the gust: there it only undoes *right*, and if only one action has
# a random outcome, there is nothing to couple. Under this policy, which is deterministic, branches that meet merge, so the coupling can matter only where a gust moves
# at least two actions, and there it does. (Under the uniform policy it matters in the first column too: branches that meet can take different actions.)

# %%
calm, gust = grid.next_states[0::2], grid.next_states[1::2]  # (S, A) each
moved = (calm != gust).sum(1)
differ = (np.nan_to_num(np.abs(difference)) > 1e-6).any((1, 2))
print("actions moved by a gust, by cell:", moved.tolist())
matches = (differ == (moved >= 2)).all()
text = np.flatnonzero(differ).tolist()
claims.check("couplings differ = a gust moves two actions or more, cells", text, matches)

# %% [markdown]
# **Twins.** Bottom right, *right* and *down* both run into a wall. Under one gust they do the same: their correlation is 1.

# %%
corner = joint.correlation[8, R, D], alone.correlation[8, R, D]
twins = np.isclose(corner[0], 1) and corner[1] < 1 - 1e-6
text = f"{corner[0]:.3f}, {corner[1]:.3f}"
claims.check("bottom right, right and down: joint correlation = 1 > independent", text, twins)

# %% [markdown]
# **None is negative.** A gust is good luck for no action, and branches that merge share what comes later. All off-diagonal correlations are positive under both couplings, although some are so small that the figure prints them as 0+. Independent gusts
# do *not* make them zero: branches that leave a cell under separate gusts can still meet later and merge.

# %%
off = ~np.eye(4, dtype=bool) & ~np.isnan(joint.correlation)
positive = bool((joint.correlation[off] > 0).all() and (alone.correlation[off] > 0).all())
least = min(joint.correlation[off].min(), alone.correlation[off].min())
print(f"least correlation: {least:.1e}")
assert positive
assert round(difference[off].min(), 6) >= 0  # at gust probability 0.2

# %% [markdown]
# ## 3.3 What correlation does to a gap
#
# Luck that both actions share cancels in their gap: $\mathrm{Var}(Z_a - Z_b) = \mathrm{Var}\, Z_a + \mathrm{Var}\, Z_b - 2\,\mathrm{Cov}(Z_a, Z_b)$.
# If you only have the marginals and assume independence, the comparison looks more uncertain here than it is. In the cell below the goal, independent gusts
# multiply the gap variance by these factors:

# %%
ratio = alone.gap_variance[5] / np.where(np.eye(4), np.nan, joint.gap_variance[5])
ratios = pd.DataFrame(ratio, index=list("URDL"), columns=list("URDL"))
print(ratios.to_string(na_rep="", float_format="%.2f"))
assert np.nanmax(ratio) > 1
assert joint.gap_variance[8, R, D] < 1e-9 < alone.gap_variance[8, R, D]

# %% [markdown]
# ## 3.4 Turn the wind up and down
#
# Move the slider from rare gusts to nearly constant ones. If gusts are rare, returns vary only because of them, and below the goal a gust that comes *now* hits up and
# right alike: joint correlations are large and independent ones almost zero. If gusts are nearly constant, returns vary because calm moments are rare and waits are long. Branches that have merged share these waits under both couplings, so the two panels look alike.

# %%
gust_probs = [0.05, 0.2, 0.5, 0.8, 0.99]
chapter.explore(both_couplings, gust_probs, "gust probability")

# %% [markdown] tags=["caption"]
# **Figure 3.2.** As Figure 3.1, for the gust probability of the slider. Note that the difference between the panels shrinks as gusts become frequent.
#
# <!-- alt: The grid of correlation matrices twice, for a gust probability of 0.05. Joint draws on the left keep large correlations below and beside the goal; with independent draws on the right most of them are near zero. -->

# %%
largest = []
for gust_prob in gust_probs:
    world = jl.windy_gridworld(3, gust_prob=gust_prob)
    both = [jl.jipe2(world, goal, coupling=coupling).moments.correlation for coupling in COUPLINGS]
    largest.append(np.nanmax(np.abs(both[0] - both[1])))
assert (np.diff(largest) < 0).all()

# %% [markdown]
# ## 3.5 Figure 5: anti-correlated rewards, correlated returns
#
# Now the coupled reward chain (CRC for short). At every state a coin pays one action or the other, so their rewards have correlation $-1$. The paper's Figure 5 shows $\rho^\pi_{s_0}$ for 25 states; it does
# not state $\gamma$ or the policy. We take $\gamma = 0.99$ and the uniform policy, and a short chain of 4 states at $\gamma = 0.9$ beside it.

# %%
chains = {
    "4 states, $\\gamma = 0.9$": jl.coupled_reward_chain(4, 0.9),
    "25 states, $\\gamma = 0.99$": jl.coupled_reward_chain(25, 0.99),
}
first = {
    (name, coupling): jl.jipe2(jm, jl.uniform_policy(jm), coupling=coupling).moments
    for name, jm in chains.items()
    for coupling in COUPLINGS
}

# %%
fig, axes = plt.subplots(1, 4, figsize=(6.75, 1.9))
for ax, ((name, coupling), m) in zip(axes, first.items(), strict=True):
    figures.correlation_grid(ax, m.correlation[:1], 1, ["$a_1$", "$a_2$"], fontsize=9)
    ax.set_title(f"{name}\n{coupling}")
figures.correlation_bar(fig, axes, label="correlation\n(scale not linear)")
rows = [(*key, m.correlation[0, 0, 1]) for key, m in first.items()]
data = pd.DataFrame(rows, columns=["chain", "coupling", "correlation"])
chapter.save(fig, "fig5_crc_correlation", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.3.** Correlations of the two actions' returns at the first state $s_0$ of a chain; the third matrix is our version of the paper's Figure 5. Colours
# are those of Figure 3.1. Note that rewards of correlation $-1$ give returns of correlation $+0.80$ on the long chain.
#
# <!-- alt: Four two by two correlation matrices. Off the diagonal: pale blue minus .27 and pale red plus .36 for the chain of 4 states with joint and independent coins, medium red plus .80 and dark red plus .90 for the chain of 25 states. -->

# %% [markdown]
# Opposite rewards, and yet $+0.80$. The first coin pays one action and not the other. But both lead to the *same* next state, and there each branch draws a new action: with
# probability one half the two are equal, and the branches merge. With $n$ coins to come, let $V_n$ be the variance of a return and
# $D_n = V_n - \mathrm{Cov}$ half the gap variance. Then
#
# $$V_n = \tfrac14 + \gamma^2 V_{n-1}, \qquad D_n = \tfrac12 + \tfrac{\gamma^2}{2}\, D_{n-1}, \qquad \rho_n = 1 - D_n / V_n .$$
#
# What a later coin adds to $D$ shrinks by the factor $\gamma^2/2$ per step; what it adds to $V$, only by $\gamma^2$. With independent coins the first $\tfrac12$ becomes $\tfrac14$, and $D$ is halved. So at every state but the last the
# **assumption of independence understates the gap variance by a factor of exactly two**, while on the grid it overstates it. Independence is not a cautious assumption.


# %%
def chain_correlation(coins, gamma, start=0.5):
    """1 - D_n / V_n; start is 1/2 for one coin, 1/4 for a coin each."""
    q = gamma**2
    return 1 - start * (1 - (q / 2) ** coins) / (1 - q / 2) * 4 * (1 - q) / (1 - q**coins)


def at_start(num_states, gamma, coupling, rewards="unit"):
    jm = jl.coupled_reward_chain(num_states, gamma, rewards=rewards)
    return jl.jipe2(jm, jl.uniform_policy(jm), coupling=coupling, route="reachable").moments


# %%
short, _, long, _ = (m.correlation[0, 0, 1] for m in first.values())
recursion = [chain_correlation(3, 0.9), chain_correlation(24, 0.99)]
text = f"{short:.6f}, {long:.6f}"
as_derived = np.allclose([short, long], recursion, rtol=0, atol=1e-6)
claims.check("chains of 4 and 25 states: correlation at s_0 = recursion", text, as_derived)

# %%
gammas = np.linspace(0.1, 0.99, num_gammas)
coin = dict(zip(COUPLINGS, (0.5, 0.25), strict=True))
solved, theory = {}, {}
for kind in [(n, coupling) for n in (4, 25) for coupling in COUPLINGS]:
    curve = [at_start(kind[0], gamma, kind[1]).correlation[0, 0, 1] for gamma in gammas]
    solved[kind] = np.array(curve)
    theory[kind] = chain_correlation(kind[0] - 1, gammas, coin[kind[1]])
assert max(np.abs(solved[kind] - theory[kind]).max() for kind in solved) < 1e-6

# %%
gaps = [at_start(25, 0.99, coupling).gap_variance[:-1, 0, 1] for coupling in COUPLINGS]
ratio = gaps[0] / gaps[1]
text = f"{ratio.min():.4f} to {ratio.max():.4f}"
claims.check(
    "chain, all states but the last: Var G, joint / independent = 2", text, np.allclose(ratio, 2)
)
signed = at_start(25, 0.99, "joint", "signed").correlation[0, 0, 1]
assert np.isclose(signed, long)  # rewards +r and -r instead of 1 and 0

# %% tags=["hide-input"]
fine = np.linspace(0.02, 0.995, 300)


def draw_chains(ax):
    """Correlations of both chains against gamma: lines by recursion, marks as solved."""
    colors = ("#56B4E9", "#E69F00", "#0072B2", "#D55E00")
    for (n, coupling), color in zip(solved, colors, strict=True):
        line, mark = "-" if coupling == "joint" else "--", "o" if n == 4 else "s"
        ax.plot(fine, chain_correlation(n - 1, fine, coin[coupling]), line, color=color)
        ax.plot(gammas, solved[n, coupling], mark, ms=3, color=color)
        ax.plot([], [], line + mark, ms=3, color=color, label=f"{n}, {coupling}")
    ax.axhline(0, color="0.6", lw=0.8, zorder=0)
    ax.set(xlabel=r"$\gamma$", ylabel="correlation at the first state", ylim=(-1.05, 1.05))
    ax.legend(title="states, coupling", loc="upper left")


# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
draw_chains(ax)
data = {"gamma": gammas} | {f"{n} states, {r}": v for (n, r), v in solved.items()}
chapter.save(fig, "fig_crc_gamma", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.4.** The correlation of the two actions at the first state of the chain, against $\gamma$, for 4 states (circles) and 25 (squares), with joint (solid) and independent draws (dashed). Lines are the recursion above, marks are JIPE-2. Note that the sign depends on $\gamma$: on the long chain it changes near $\sqrt{2/3} = 0.816$, where $\rho_\infty = (3\gamma^2 - 2)/(2 - \gamma^2)$ is zero.
#
# <!-- alt: Four rising curves of correlation against gamma. The two solid ones, for joint draws, start at minus one, the two dashed ones, for independent draws, at zero; those of the longer chain, with squares, rise further, to plus 0.8 and plus 0.9 near gamma 0.99. -->

# %%
crossing = np.interp(0, chain_correlation(24, fine), fine)
assert abs(crossing - np.sqrt(2 / 3)) < fine[1] - fine[0]

# %% [markdown]
# **The authors' release differs.** As we read its source, the public release ([github.com/egecky/jmdp](https://github.com/egecky/jmdp)) draws the two next actions of *equal* state-actions
# independently, which is one way to read the paper's text on higher orders. (We do not run the release; the recursion below is its rule.) Then the two factors of $\mathbb E\, Z^2$ count as different returns. The variance $V$ of an action and the covariance $C$ of the two actions obey
#
# $$V_n = \tfrac14 + \tfrac{\gamma^2}{2}(V_{n-1} + C_{n-1}), \qquad C_n = -\tfrac14 + \tfrac{\gamma^2}{2}(V_{n-1} + C_{n-1}),$$
#
# and $V_n + C_n$ stays zero. So the release gives $-1$ for every $\gamma$ and every length of the chain. But its $V$ is not the variance of a
# return: it is 1/4 however long the chain is, as if only the first coin counted. Equal state-actions are one random variable ([decision 3](../book/paper.md#decision-3)), and the correlation is $+0.80$.


# %%
def drawn_twice(coins, gamma):
    """The correlation if the next actions of equal state-actions are drawn independently."""
    variance = covariance = 0.0
    for _ in range(coins):
        later = gamma**2 * (variance + covariance) / 2
        variance = 0.25 + later
        covariance = -0.25 + later
    return covariance / variance


assert np.isclose(drawn_twice(24, 0.99), -1)  # the release's rule; ours is above zero

# %% [markdown]
# ## 3.6 How long is a shock shared? Three couplings
#
# In the paper's regime (`"joint"`) two branches share a shock *while they are at the same state*; one step later they are usually at different states.
# Demand or weather reach both wherever they are: that is `coupling="common"`, for a model with one distribution of the noise for all states, such as `JMDP.from_step` builds. Then $T_2$ moves branches at different states by the same noise, too. The proof of Lemma 5.2 does not ask how the two draws depend on each other, so the certificate of Theorem 5.3 stays.
#
# We look at three worlds, with one decision in each. In the middle of the windy grid: right or left? In the depot of [Use it on your own simulator](../book/own_simulator.md), with five units in stock and orders up to six afterwards: one unit or two? With two jobs in each of two queues: send the next job to the fast queue or to the slow one?

# %%
ALL_THREE = ("independent", "joint", "common")
SIGNS = ["P(G < 0)", "P(G = 0)", "P(G > 0)"]
depot = jl.inventory(11, 4, gamma=0.9, holding_cost=0.0, lost_sale_cost=0.0)
queues, (fast, slow) = jl.two_queues(), np.divmod(np.arange(36), 6)
worlds = {  # model, policy, gap (state, action, other action)
    "gridworld: right, left": (jl.windy_gridworld(5), jl.goal_policy(5), (12, R, L)),
    "depot: order 1, order 2": (depot, np.clip(6 - np.arange(12), 0, 4), (5, 1, 2)),
    "queues: fast, slow": (queues, (fast > slow).astype(int), (14, 0, 1)),
}

# %%
solved, simulated = {}, {}
for (name, (jm, policy, (s, *pair))), coupling in product(worlds.items(), ALL_THREE):
    solved[name, coupling] = jl.jipe2(jm, policy, coupling=coupling).moments
    pairs = min(num_pairs, 100_000)
    x, y = jl.simulate_pairs(
        jm, policy, pair, state=s, num_pairs=pairs, rng=seed, coupling=coupling
    ).T
    simulated[name, coupling] = np.sort(np.where(np.abs(x - y) < 1e-5, 0.0, x - y))
index = pd.MultiIndex.from_tuples(solved, names=["world", "coupling"])
three = pd.DataFrame(index=index)
three["E G"] = [m.gap_mean[worlds[name][2]] for (name, _), m in solved.items()]
three["Var G"] = [m.gap_variance[worlds[name][2]] for (name, _), m in solved.items()]
signs = np.array([np.sign(gap) for gap in simulated.values()])  # (9, N)
three[SIGNS] = np.transpose([(signs == sign).mean(1) for sign in (-1, 0, 1)])
three.round({"E G": 2, "Var G": 2}).round(3)

# %% [markdown]
# The distribution of each action's return is the same under all three couplings. That of the gap is not, although its mean is. (Where we simulate, we allow 4.5 Monte Carlo standard errors.)
#
# **The depot.** The two orders differ by one unit today. If both branches face the same demand through time (`"common"`),
# this unit is nearly all that ever differs, and ordering one is the better choice 94 times in 100. If branches at different stocks face separate demands (`"joint"`), what they sell later differs by far more than
# one unit, and ordering one is better about 54 to 55 times in 100.
#
# **The queues.** With common noise the fast queue is better in only 5 of 100 cases, and yet its mean advantage is $+0.25$: 94 of 100 pairs are **ties**, since the number of jobs, which determines the cost, stays equal until a server is idle in one branch and busy in the other.
# In the other 6, the fast queue wins about five times as often as it loses.

# %%
for (name, _), m in solved.items():
    assert np.allclose(m.mean, solved[name, "joint"].mean, rtol=0, atol=1e-5)
    assert np.allclose(m.variance, solved[name, "joint"].variance, rtol=0, atol=1e-5)
enough = num_pairs >= 1000
squares = [(gap - gap.mean()) ** 2 for gap in simulated.values()]
errors = [
    (x.mean() - exact) / (x.std() / np.sqrt(x.size))
    for x, exact in zip(squares, three["Var G"], strict=True)
]
worst = np.abs(errors).max()
claim = "nine gap variances, simulated: largest error < 4.5 s.e."
claims.check(claim, f"{worst:.1f}", worst < 4.5, enough=enough)

# %%
for name in worlds:
    values = three.loc[name, "Var G"]
    order = bool(values["common"] < values["joint"] <= values["independent"])
    text = ", ".join(f"{values[coupling]:.2f}" for coupling in ALL_THREE[::-1])
    claims.check(f"{name}; Var G: common < joint <= independent", text, order)

# %%
DEPOT, QUEUES = "depot: order 1, order 2", "queues: fast, slow"
better = {(DEPOT, "joint"): 0.545, (DEPOT, "common"): 0.94, (QUEUES, "common"): 0.05}
for (name, coupling), said in better.items():
    jm, policy, gap = worlds[name]
    (law,) = jl.laws.gap_law(jm, policy, gaps=[gap], width=0.01, coupling=coupling)
    low, high = np.transpose([law.prob_worse, law.prob_tie, law.prob_better])
    assert np.allclose([low[2], high[2]], said, rtol=0, atol=0.006)  # as the text says
    shares = three.loc[(name, coupling), SIGNS].to_numpy()
    error = 4.5 * np.sqrt(high * (1 - low) / simulated[name, coupling].size)
    inside = (low - error <= shares) & (shares <= high + error)
    claim = f"{name}, {coupling}: shares of G <, =, > 0 in their brackets, to 4.5 s.e."
    text = ", ".join(f"{share:.3f}" for share in shares)
    claims.check(claim, text, inside.all(), enough=enough)


# %% tags=["hide-input"]
def draw_distributions(ax, name, rows):
    """The distribution function of a gap under each coupling, as simulated."""
    for coupling, color in zip(ALL_THREE, ("0.65", "black", "#009E73"), strict=True):
        gap = simulated[name, coupling]
        ax.plot(gap, np.linspace(0, 1, gap.size), color=color, label=coupling)
    reach = 2.5 * np.sqrt(rows["Var G"].max())
    centre = rows["E G"].mean()
    ax.set(title=name, xlabel="gap $G$", xlim=(centre - reach, centre + reach), ylim=(0, 1))
    ax.axvline(0, color="0.6", lw=0.8, zorder=0)


def draw_shares(ax, rows):
    """How often the first choice is worse, equal and better, under each coupling."""
    left = np.zeros(3)
    for sign, color, label in zip(SIGNS, ("#D55E00", "0.8", "#0072B2"), "<=>", strict=True):
        ax.barh(ALL_THREE, rows[sign], left=left, color=color, label=f"$G {label} 0$")
        left = left + rows[sign].to_numpy()
    ax.set(xlim=(0, 1), xlabel="share of pairs")
    ax.grid(visible=False)


# %%
fig, axes = plt.subplots(2, 3, figsize=(6.75, 3.4), height_ratios=[2, 1])
for (name, rows), (upper, lower) in zip(three.groupby("world", sort=False), axes.T, strict=True):
    draw_distributions(upper, name, rows)
    draw_shares(lower, rows)
for ax in axes[1, 1:]:
    ax.set_yticks([])
axes[0, 0].set_ylabel("share of pairs up to $x$")
(lines, names), (bars, labels) = (ax.get_legend_handles_labels() for ax in axes[:, 0])
fig.legend(lines + bars, names + labels, loc="outside lower center", ncols=6)
chapter.save(fig, "fig_three_couplings", three.reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.5.** One gap in each of three worlds, under three couplings, as simulated. Above: its distribution function. Below: how often the first choice is worse (orange), equal (grey) and better (blue). The means of a column are equal. Note that the coupling alone decides how often the better choice wins.
#
# <!-- alt: Three panels of distribution functions, for gridworld, depot and queues, with stacked bars below. In each, the curve for common noise is the steepest, for the depot almost a single step, and the one for independent noise the flattest. Ties are few in the gridworld, almost none for the depot, and 15, 50 and 94 percent for the queues. -->

# %% [markdown]
# In these worlds, shared noise makes the gap narrower. This need not be so. If a day that is good at one state is bad at another, sharing the day can widen the gap: for the two states below, whose rewards are opposite, it doubles the gap variance. And where branches are never at different states, as on the chain,
# `"common"` is the same as `"joint"`.

# %%
opposite_states = jl.JMDP.from_step(
    2, 2, 0.9, [0.5, 0.5], lambda s, a, u: ((2 * u - 1) * (1 - 2 * s), a)
)
wider = [
    jl.jipe2(opposite_states, [0, 1], coupling=c).moments.gap_variance[0, 0, 1] for c in ALL_THREE
]
assert np.isclose(wider[2] / wider[1], 2)
everywhere = at_start(25, 0.99, "common").covariance, at_start(25, 0.99, "joint").covariance
assert np.allclose(*everywhere, rtol=0, atol=1e-6)

# %% [markdown]
# ## What to take away
#
# - The paper's sentence holds here: structured (walls, twins), state-dependent (0.02 to 0.60 for one pair), invisible to marginals.
# - Correlation of *returns* is not correlation of *outcomes*: rewards with correlation $-1$ gave returns with correlation $+0.80$, and independent tables gave correlated returns, because branches coalesce.
# - Independence is not a cautious assumption: it overstates the variance of a gap on the grid and understates it on the chain.
# - "The same shock" has a duration: the paper shares the shock of one state for one step, `coupling="common"` an exogenous process through time.
#
# ## Exercises
#
# **Exercise 1.** Let the wind blow down (`gust="D"`), under the same policy. Which cells will look the same under both couplings? Count the actions that a gust moves, predict, then draw
# `figures.correlation_grid`.
#
# <details><summary>Hint</summary>
#
# Which walls stop a gust that blows down, and which moves does it change there?
#
# </details>
#
# <details><summary>Solution</summary>
#
# A gust moves all four actions in the top row (except at the goal), three in the middle row and only *up* in the bottom row, where the others are already at the
# lower wall. The coupling matters where a gust moves at least two actions: in the two upper rows. The three cells of the bottom row look the same under both couplings, and so does the goal, where nothing is random.
#
# </details>

# %% tags=["hide-cell"]
down = jl.windy_gridworld(3, gust="D")
moved = (down.next_states[0::2] != down.next_states[1::2]).sum(1)
blown = [jl.jipe2(down, goal, coupling=coupling).moments.correlation for coupling in COUPLINGS]
differ = (np.nan_to_num(np.abs(blown[0] - blown[1])) > 1e-6).any((1, 2))
predicted = bool((differ == (moved >= 2)).all())
assert predicted
assert np.flatnonzero(~differ).tolist() == [2, 6, 7, 8]

# %% [markdown]
# **Exercise 2.** On the chain, replace the uniform policy by one that always takes $a_1$. Show that $D_n = \tfrac12$ for every $n$. Then find $\rho_{s_0}$ for
# 25 states at $\gamma = 0.99$, first by hand and then with `jipe2`.
#
# <details><summary>Hint</summary>
#
# After the first step, are there still two branches? Then look at what is left of the recursion for $D_n$.
#
# </details>
#
# <details><summary>Solution</summary>
#
# After one step both branches are at the same state and take $a_1$: they have merged. So the second term of the recursion for $D_n$ is gone, and $D_n = \tfrac12$. That is half the variance of the difference of the two rewards, which is $\pm 1$. The variance is
# as before, $V_{24} = \tfrac14 (1 - \gamma^{48})/(1 - \gamma^2)$. So $\rho_{s_0} = 1 - \tfrac12 / V_{24} = 0.896$.
#
# </details>

# %% tags=["hide-cell"]
chain = jl.coupled_reward_chain(25, 0.99)
first_action = jl.jipe2(chain, np.zeros(25, dtype=int)).moments
by_hand = 1 - 0.5 / (0.25 * (1 - 0.99**48) / (1 - 0.99**2))
assert np.allclose(first_action.gap_variance[:-1, 0, 1] / 2, 0.5)
assert np.isclose(first_action.correlation[0, 0, 1], by_hand)

# %% [markdown]
# **What to read next.** Chapter 4 checks gaps against simulation and asks what their mean and variance say about their sign.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
