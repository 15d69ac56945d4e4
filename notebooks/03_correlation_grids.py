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
# This chapter evaluates the two worlds of chapter 2. The returns of all actions of a state form a vector, whose correlation matrix
#
# $$\rho^\pi_s(a, b) = \frac{\Sigma^\pi(s,a,s,b) - \mu^\pi(s,a)\,\mu^\pi(s,b)}{\sqrt{\mathrm{Var}\,Z^\pi(s,a)\;\mathrm{Var}\,Z^\pi(s,b)}}$$
#
# is `moments.correlation[s]`. The paper shows these matrices for all cells of a 3x3 gridworld (Figure 4) and for the first state of a chain
# (Figure 5). It prints no numbers, and interprets the matrices as "a structured, state-dependent joint law across actions which is invisible to
# an MDP marginal description". We check this sentence word by word. For comparison, we put next to each matrix the
# one that the *same marginals* give if every action draws its outcome independently.
#
# **What you will learn.** How to read a correlation matrix of actions; why opposite rewards can give positively correlated returns; why assuming independence can make a
# comparison look too uncertain, or too certain; and how to choose among three couplings for a world of your own.
#
# **What it needs.** The gridworld of section 2.1, the chain of section 2.2, and merging (section 0.4). To run it, install the project
# with `pip install -e ".[notebooks]"` in its folder.
#
# **How long it takes.** About 20 minutes to read.

# %% tags=["parameters"]
seed = 0
num_pairs = 40000  # at least 100
num_gusts = 19  # at least 2, the ends of a curve
num_gammas = 15  # at least 2, the ends of a curve
out_dir = ""

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
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
        found = jl.jipe2(jm, goal, coupling=coupling).moments.correlation
        figures.correlation_grid(ax, found, 3, "URDL", goal=2)
        ax.set_title(f"{coupling}, gust probability {gust_prob:g}")
    axes[1].set_yticks([])
    fig.get_layout_engine().set(wspace=0.12)
    figures.correlation_bar(fig, axes, label="correlation", shrink=0.85)
    return fig


# %%
fig = both_couplings(0.2)
axes = {"coupling": COUPLINGS, "state": range(9), "action": list("URDL"), "other": list("URDL")}
entries = pd.MultiIndex.from_product(axes.values(), names=axes.keys())
both = np.ravel([joint.correlation, alone.correlation])
data = pd.Series(both, entries, name="correlation").reset_index()
figures.save(fig, "fig4_wgw_correlations", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.1.** Correlations of the returns of the four moves, in every cell of the 3x3 windy gridworld (the paper's Figure 4); rows and columns of each small matrix are up, right, down, left. Left: one gust for
# all actions of a cell. Right: a gust for each. $\gamma = 0.95$, gust probability 0.2, goal policy. The goal is hatched, because its return is constant.
# Colours follow Fisher's transformation, $\mathrm{artanh}$ of the slightly shrunken correlation, so that large correlations can be told apart.
#
# <!-- alt: The three by three grid twice, with a four by four correlation matrix in each cell. All entries are between zero and one, red where large. In the second and third columns of the grid the joint matrices are clearly redder than the independent ones; in the first column they look alike. -->

# %% [markdown]
# Read it cell by cell.
#
# **The goal is hatched.** Its return is $1/(1-\gamma)$ whatever happens. A constant has no correlation with anything, so
# the library returns `nan` rather than 0 or 1. The goal is the only such cell.

# %%
constant = np.flatnonzero((joint.variance < 1e-12).all(1)).tolist()
undefined = np.flatnonzero(np.isnan(joint.correlation).any((1, 2))).tolist()
claims.check("cells without a correlation: the goal", undefined, undefined == constant == [2])

# %% [markdown]
# **"Invisible to an MDP marginal description."** The marginals determine the means and the variances, so these are the same under both couplings. The correlations are not:

# %%
moved = max(np.ptp([m.mean for m in (joint, alone)], 0).max(),
            np.ptp([m.variance for m in (joint, alone)], 0).max())  # fmt: skip
claims.check("both couplings: means and variances differ by", f"{moved:.5f}", moved < 1e-6)
difference = joint.correlation - alone.correlation
print(f"correlations differ by up to {np.nanmax(np.abs(difference)):.3f}")

# %% [markdown]
# **"State-dependent."** Below is the correlation of one pair of actions, up and right, in the eight other cells. `jipe2` computes it. `jipe`, a separate implementation of the operator, must agree.

# %%
pair = np.delete(joint.correlation[:, U, R], 2)
print("U against R:", np.round(pair, 3))
ends = f"{pair.min():.3f}, {pair.max():.3f}"
again = np.delete(jl.jipe(grid, goal, order=2).moments.correlation[:, U, R], 2)
same = np.allclose(pair, again, rtol=0, atol=1e-6)
claims.check("U against R: smallest, largest, by both solvers", ends, same)

# %% [markdown]
# **"Structured."** The first column of the grid looks the same in both panels. Why? The wall stops the gust. In the first column a gust cannot move an agent that went up, down or left; it only undoes *right*. If only one action has
# a random outcome, there is nothing to couple. In the second column a gust undoes or shifts every move but *left*. A coupling can matter only where a gust moves
# at least two actions, and there it does:

# %%
calm, gust = grid.next_states[0::2], grid.next_states[1::2]  # (S, A) each
moved = (calm != gust).sum(1)
differ = (np.nan_to_num(np.abs(difference)) > 1e-6).any((1, 2))
print("actions moved by a gust, by cell:", moved.tolist())
matches = (differ == (moved >= 2)).all()
claims.check("couplings differ in cells", np.flatnonzero(differ).tolist(), matches)

# %% [markdown]
# **Twins.** Bottom right, *right* and *down* both run into a wall. Under one gust they do the same, and their correlation is 1. With separate gusts
# it is smaller. Top left, *up* and *left* stay put, gust or not: they are twins under either coupling.

# %%
corner = joint.correlation[8, R, D], alone.correlation[8, R, D]
found = np.isclose(corner[0], 1) and corner[1] < 1 - 1e-6
claims.check(
    "bottom right, R and D: joint, independent", f"{corner[0]:.3f}, {corner[1]:.3f}", found
)
both = [joint.correlation[0, U, L], alone.correlation[0, U, L]]
text = f"{both[0]:.3f}, {both[1]:.3f}"
claims.check("top left, U and L: joint, independent", text, np.allclose(both, 1))

# %% [markdown]
# **None is negative.** A gust is bad luck for everyone. All off-diagonal correlations are positive under both couplings, although some are so small that the figure prints them as .00. Independent gusts
# do *not* make them zero: two branches that leave a cell under separate gusts can still meet later, choose alike, and share everything from there on.

# %%
off = ~np.eye(4, dtype=bool) & ~np.isnan(joint.correlation)
positive = bool((joint.correlation[off] > 0).all() and (alone.correlation[off] > 0).all())
least = min(joint.correlation[off].min(), alone.correlation[off].min())
claims.check("smallest correlation, both couplings: above 0", f"{least:.1e}", positive)
least = round(difference[off].min(), 6) + 0.0  # no minus before a zero
claims.check("joint minus independent, gust 0.2: smallest", f"{least:.6f}", least >= 0)

# %% [markdown]
# ## 3.2 A check by simulation
#
# `simulate_pairs` does not use moments. It draws one table for both branches while they share a cell, and separate tables while they do not. We compare its covariances
# with those above, in the cell below the goal, for all six pairs of actions. Here and wherever this chapter simulates, we allow 4.5 Monte Carlo standard errors. If the theory is right, the largest of the six errors
# exceeds this for about one seed in 25,000.

# %%
worst = 0.0
for a, b in [(U, R), (U, D), (U, L), (R, D), (R, L), (D, L)]:
    stream = np.random.SeedSequence([seed, a, b])
    x, y = jl.simulate_pairs(grid, goal, 5, (a, b), num_pairs, stream).T
    products = (x - x.mean()) * (y - y.mean())
    off = products.mean() - joint.covariance[5, a, b]
    worst = max(worst, abs(off) / (products.std() / np.sqrt(num_pairs)))
enough = num_pairs >= 100
claim = "six covariances against Monte Carlo: largest error in standard errors"
claims.check(claim, f"{worst:.1f}", worst < 4.5, enough=enough)

# %% [markdown]
# ## 3.3 What correlation does to a gap
#
# Luck that both actions share cancels in their gap:
#
# $$\mathrm{Var}(Z_a - Z_b) = \mathrm{Var}\, Z_a + \mathrm{Var}\, Z_b - 2\,\mathrm{Cov}(Z_a, Z_b).$$
#
# If you only have the marginals and assume independence, the comparison looks more uncertain here than it is. In the cell below the goal, independent gusts
# multiply the gap variance by these factors:

# %%
ratio = alone.gap_variance[5] / np.where(np.eye(4), np.nan, joint.gap_variance[5])
ratios = pd.DataFrame(ratio, index=list("URDL"), columns=list("URDL"))
print(ratios.to_string(na_rep="", float_format="%.2f"))
top = np.nanmax(ratio)
claims.check("below the goal: independent / joint gap variance up to", f"{top:.2f}", top > 1)
twins = joint.gap_variance[8, R, D], alone.gap_variance[8, R, D]
sure = twins[0] < 1e-9 < twins[1]
values = f"{abs(twins[0]):.2f}, {twins[1]:.2f}"
claims.check("R and D bottom right, Var G: joint, independent", values, sure)

# %% [markdown]
# ## 3.4 Turn the wind up and down
#
# Move the slider above the figure from rare gusts to nearly constant ones and watch three things. In the right panel, correlations grow on the whole. In the left panel, they
# fade in the cell below the goal. And when gusts are nearly constant, the two panels look alike. The table below the figure has the numbers.

# %%
steps = [0.05, 0.2, 0.5, 0.8, 0.99]
figures.explore(both_couplings, steps, "gust probability")

# %% [markdown] tags=["caption"]
# **Figure 3.2.** As Figure 3.1, for the gust probability of the slider. At its leftmost position a gust comes once in twenty steps.
#
# <!-- alt: The grid of correlation matrices twice, for a gust probability of 0.05. Joint draws on the left keep large correlations below and beside the goal; with independent draws on the right most of them are near zero. -->

# %%
panels = []
for gust_prob in steps:
    world = jl.windy_gridworld(3, gust_prob=gust_prob)
    both = [jl.jipe2(world, goal, coupling=coupling).moments.correlation for coupling in COUPLINGS]
    panels.append(np.array(both)[:, :, ~np.eye(4, dtype=bool)])  # (coupling, cell, pair of actions)
left, right = np.swapaxes(panels, 0, 1)
by_gust = pd.DataFrame(index=pd.Index(steps, name="gusts"))
by_gust["right, average"] = np.nanmean(right, axis=(1, 2))
by_gust["left, below the goal"] = left[:, 5].mean(1)
by_gust["largest difference"] = np.nanmax(np.abs(left - right), axis=(1, 2))
by_gust.round(2)

# %%
grown, faded, apart = by_gust.to_numpy().T
range_of = {name: f"{each.iloc[0]:.2f}, {each.iloc[-1]:.2f}" for name, each in by_gust.items()}
claim = "independent, average correlation: rarest, most frequent gusts"
claims.check(claim, range_of["right, average"], grown[-1] > grown[0])
claim = "joint, below the goal: the same, falls throughout"
claims.check(claim, range_of["left, below the goal"], bool((np.diff(faded) < 0).all()))
claim = "largest difference of the panels: the same, falls throughout"
claims.check(claim, range_of["largest difference"], bool((np.diff(apart) < 0).all()))

# %% [markdown]
# Figure 3.3 follows two pairs of actions through all gust probabilities. At gust probabilities 0 and 1 nothing is random, and correlations are not defined.

# %%
gusts = np.linspace(0, 1, num_gusts + 2)[1:-1]
pairs = {"below the goal, U against R": (5, U, R), "bottom right, R against D": (8, R, D)}
curves = {}
for coupling in COUPLINGS:
    worlds = [jl.windy_gridworld(3, gust_prob=p) for p in gusts]
    solved = [jl.jipe2(w, goal, coupling=coupling, queries=[5, 8]).moments for w in worlds]
    found = np.array([m.correlation for m in solved])
    curves |= {(name, coupling): found[:, s, a, b] for name, (s, a, b) in pairs.items()}

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.3), sharey=True)
for ax, name in zip(axes, pairs, strict=True):
    for coupling, look in zip(COUPLINGS, ("-o", "--s"), strict=True):
        ax.plot(gusts, curves[name, coupling], look, ms=3, markevery=4, label=coupling)
    ax.set(title=name, xlabel="gust probability", xlim=(0, 1), ylim=(-0.05, 1.05))
axes[0].set_ylabel("correlation")
axes[0].legend()
data = {"gust_prob": gusts} | {", ".join(key): value for key, value in curves.items()}
figures.save(fig, "fig_gust_correlation", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.3.** The correlation of two actions against the gust probability, for one shared gust (joint) and for separate gusts (independent). Left: up and right, in the cell below the goal. Right: right and down
# in the bottom right cell, where they are the same move.
#
# <!-- alt: Two panels with a solid curve for joint and a dashed one for independent draws. On the left the joint curve falls from about 0.7 to about 0.3 as gusts become frequent, and the independent one rises from 0 to about 0.25. On the right the joint curve is constant at one and the independent one falls from above 0.6 to 0.43 and then rises to almost 0.9. -->

# %% [markdown]
# **Rare gusts: the coupling is everything.** Suppose that a gust comes once in twenty steps. Then returns vary only because of rare gusts, and a gust that comes *now* hits up and
# right alike. With separate gusts it hits one or the other, and their correlation vanishes. (The twins of the right panel land in the same cell and
# mostly merge there, so they keep some correlation.)
#
# **Nearly constant gusts: the coupling matters little.** Calm moments are rare, and waits are long. Branches share this waiting after they *meet*, under both couplings alike. As calm moments get rarer, the difference
# between the two correlations even vanishes. Let a calm moment have the small probability
# $\varepsilon$. One calm moment takes *up* to the goal, while *right* has to wait for a second one, so the two returns have variances of order $\varepsilon$ and
# $\varepsilon^2$. A first draw that both share adds a term of order $\varepsilon^2$ to their covariance: calm comes with probability $\varepsilon$, takes *up* to the goal, and leaves *right* one calm moment away from it, which is
# worth a multiple of $\varepsilon$. So the correlations differ by a multiple of $\varepsilon^2 / \sqrt{\varepsilon \cdot \varepsilon^2} = \sqrt\varepsilon$. If $\varepsilon$ is a hundred times smaller,
# the difference must be ten times smaller. We allow 1%, since $\varepsilon$ is small but not zero.

# %%
below = [curves["below the goal, U against R", coupling] for coupling in COUPLINGS]
rare, constant = (f"{below[0][k]:.3f}, {below[1][k]:.3f}" for k in (0, -1))
apart = below[0] - below[1]
claims.check("U, R below the goal, rarest gust: joint, independent", rare, apart[0] > 0)
closing = bool((apart > 0).all() and (np.diff(apart) < 0).all())
claims.check("the same, most frequent gust; the difference shrinks throughout", constant, closing)
assert np.isnan(jl.jipe2(jl.windy_gridworld(3, gust_prob=1.0), goal).moments.correlation).all()

# %%
limit = []
for calm_prob in (1e-4, 1e-6):
    world = jl.windy_gridworld(3, gust_prob=1 - calm_prob)
    found = [jl.jipe2(world, goal, tol=1e-11, coupling=coupling).moments for coupling in COUPLINGS]
    limit.append(np.subtract(*(m.correlation[5, U, R] for m in found)))
tenfold = limit[0] / limit[1]
near = abs(tenfold / 10 - 1) < 0.01
claims.check(
    "calm a hundred times rarer: the difference falls by a factor of", f"{tenfold:.1f}", near
)

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
    figures.correlation_matrix(ax, m.correlation[0], ["$a_1$", "$a_2$"], fontsize=9)
    ax.set_title(f"{name}\n{coupling}")
figures.correlation_bar(fig, axes, label="correlation")
rows = [(*key, m.correlation[0, 0, 1]) for key, m in first.items()]
data = pd.DataFrame(rows, columns=["chain", "coupling", "correlation"])
figures.save(fig, "fig5_crc_correlation", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.4.** Correlations of the two actions' returns at the first state $s_0$ of a chain; the third matrix is our version of the paper's Figure 5. The rewards of the two actions have correlation $-1$ at every state. Colours
# are those of Figure 3.1.
#
# <!-- alt: Four two by two correlation matrices. Off the diagonal: pale blue minus .27 and pale red plus .36 for the chain of 4 states with joint and independent coins, medium red plus .80 and dark red plus .90 for the chain of 25 states. -->

# %%
short, _, long, _ = (m.correlation[0, 0, 1] for m in first.values())
known = np.isclose([short, long], [-0.272475, 0.796068], atol=1e-6)
claims.check("4 states: correlation at s_0", f"{short:.6f}", known[0])
claims.check("25 states: correlation at s_0", f"{long:.6f}", known[1])
variance = next(iter(first.values())).variance[0, 0]
known = np.isclose(variance, 0.616525, atol=1e-6)
claims.check("4 states: variance at s_0", f"{variance:.6f}", known)

# %% [markdown]
# Opposite rewards, and yet $+0.80$. The first coin pays one action and not the other. But both lead to the *same* next state, and there the two branches choose afresh: with
# probability one half they choose alike, are one branch from then on, and share the rest of their luck. With $n$ coins to come, let $V_n$ be the variance of a return and
# $D_n = V_n - \mathrm{Cov}$ half the gap variance. Then
#
# $$V_n = \tfrac14 + \gamma^2 V_{n-1}, \qquad D_n = \tfrac12 + \tfrac{\gamma^2}{2}\, D_{n-1}, \qquad \rho_n = 1 - D_n / V_n .$$
#
# What a later coin adds to $D$ shrinks by the factor $\gamma^2/2$ per step; what it adds to $V$, only by $\gamma^2$. With independent coins the first $\tfrac12$ becomes $\tfrac14$, and $D$ is halved. So on every chain the
# **assumption of independence understates the gap variance by a factor of exactly two**, while on the grid it overstates it. Independence is not a cautious assumption.


# %%
def chain_correlation(coins, gamma, start=0.5):
    """1 - D_n / V_n; start is 1/2 for one coin, 1/4 for a coin each."""
    q = gamma**2
    return 1 - start * (1 - (q / 2) ** coins) / (1 - q / 2) * 4 * (1 - q) / (1 - q**coins)


def at_start(num_states, gamma, coupling, rewards="unit"):
    jm = jl.coupled_reward_chain(num_states, gamma, rewards)
    return jl.jipe2(jm, jl.uniform_policy(jm), coupling=coupling, route="reachable").moments


# %%
gammas = np.linspace(0.1, 0.99, num_gammas)
coin = dict(zip(COUPLINGS, (0.5, 0.25), strict=True))
solved, theory = {}, {}
for kind in [(n, coupling) for n in (4, 25) for coupling in COUPLINGS]:
    found = [at_start(kind[0], gamma, kind[1]).correlation[0, 0, 1] for gamma in gammas]
    solved[kind] = np.array(found)
    theory[kind] = chain_correlation(kind[0] - 1, gammas, coin[kind[1]])
off = max(np.abs(solved[kind] - theory[kind]).max() for kind in solved)
claims.check("chains of 4 and 25: JIPE-2 minus recursion, largest", f"{off:.5f}", off < 1e-6)

# %%
gaps = [at_start(25, 0.99, coupling).gap_variance[:-1, 0, 1] for coupling in COUPLINGS]
ratio = gaps[0] / gaps[1]
text = f"{ratio.min():.4f} to {ratio.max():.4f}"
claims.check("CRC: gap variance, joint / independent, all states", text, np.allclose(ratio, 2))
signed = at_start(25, 0.99, "joint", "signed").correlation[0, 0, 1]
claims.check("rewards +r, -r: the same correlation", f"{signed:.6f}", np.isclose(signed, long))

# %%
fine = np.linspace(0.02, 0.995, 300)
colors = ("#56B4E9", "#E69F00", "#0072B2", "#D55E00")
data = {"gamma": gammas} | {f"{n} states, {r}": v for (n, r), v in solved.items()}

# %%
fig, ax = plt.subplots(figsize=(3.4, 2.6))
for (n, coupling), color in zip(solved, colors, strict=True):
    line, mark = "-" if coupling == "joint" else "--", "o" if n == 4 else "s"
    ax.plot(fine, chain_correlation(n - 1, fine, coin[coupling]), line, color=color)
    ax.plot(gammas, solved[n, coupling], mark, ms=3, color=color)
    ax.plot([], [], line + mark, ms=3, color=color, label=f"{n}, {coupling}")
ax.axhline(0, color="0.6", lw=0.8, zorder=0)
ax.set(xlabel=r"$\gamma$", ylabel="correlation at the first state", ylim=(-1.05, 1.05))
ax.legend(title="states, coupling", loc="upper left")
figures.save(fig, "fig_crc_gamma", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.5.** The correlation of the two actions at the first state of the chain, against $\gamma$, for 4 states (circles) and 25 (squares), with joint (solid) and independent draws (dashed). Lines are the recursion above, marks are JIPE-2.
#
# <!-- alt: Four rising curves of correlation against gamma. The two solid ones, for joint draws, start at minus one, the two dashed ones, for independent draws, at zero; those of the longer chain, with squares, rise further, to plus 0.8 and plus 0.9 near gamma 0.99. -->

# %% [markdown]
# At $\gamma = 0$ only the first coin counts, and the correlation is $-1$. On a long chain it crosses zero at $\gamma = \sqrt{2/3} \approx 0.816$, where
# $\rho_\infty = (3\gamma^2 - 2)/(2 - \gamma^2)$ vanishes. We read the crossing off the curve of Figure 3.5, and allow an error of one step of its grid, 0.0033:

# %%
crossing = np.interp(0, chain_correlation(24, fine), fine)
near = abs(crossing - np.sqrt(2 / 3)) < fine[1] - fine[0]
claims.check("25 states: correlation changes sign at gamma", f"{crossing:.3f}", near)

# %% [markdown]
# **Our Figure 5 differs from the paper's.** The authors' public release ([github.com/egecky/jmdp](https://github.com/egecky/jmdp)) draws the two next actions of *equal* state-actions
# independently, which is one way to read the paper's text on higher orders. Then the two factors of $\mathbb E\, Z^2$ count as different returns. The variance $V$ of an action and the covariance $C$ of the two actions obey
#
# $$V_n = \tfrac14 + \tfrac{\gamma^2}{2}(V_{n-1} + C_{n-1}), \qquad C_n = -\tfrac14 + \tfrac{\gamma^2}{2}(V_{n-1} + C_{n-1}),$$
#
# and $V_n + C_n$ stays zero. So the release gives $-1$ for every $\gamma$ and every length of the chain, which looks convincing in a world of opposite rewards. But $V$ is then not the variance of a
# return: it is 1/4 however long the chain is, as if only the first coin counted. Equal state-actions are one random variable (decision 3, chapter 1), and the correlation is $+0.80$.


# %%
def drawn_twice(coins, gamma):
    """The correlation if the next actions of equal state-actions are drawn independently."""
    variance = covariance = 0.0
    for _ in range(coins):
        later = gamma**2 * (variance + covariance) / 2
        variance = 0.25 + later
        covariance = -0.25 + later
    return covariance / variance


release = drawn_twice(24, 0.99)
claims.check(
    "Figure 5, 25 states: correlation at s_0, ours and as in the release",
    f"{long:+.2f}, {release:+.2f}",
    np.isclose(release, -1) and long > 0,
    "differs from the paper",
)

# %% [markdown]
# ## 3.6 How long is a shock shared? Three couplings
#
# In the paper's regime two branches share a shock *while they stand at the same state*. One step later they are usually apart, and from then on each draws its own.
# That fits a shock that belongs to a state. It does not fit demand, weather or traffic: these go on whatever we do, and strike both branches on the same day. So the library has a third coupling,
# `"common"` (Figure 1.2 shows all three):
#
# | `coupling=` | who shares a draw | use it if |
# |---|---|---|
# | `"independent"` | nobody | you know what each action does, and nothing about what they do together |
# | `"joint"` | branches at one state, for one step: the paper's | the shock belongs to the state: cards dealt at this table, an emulator that may repeat the last action |
# | `"common"` | all branches, at every step, wherever they are | the shock is an exogenous process: demand, weather, arrivals |
#
# In all three, branches that meet and choose alike are one branch, and until then they draw their actions
# independently. `"common"` needs a model with one law of the noise for all states, such as `JMDP.from_step` builds.
#
# What changes in the equations? Let $v(s) = \mathbb E\, Z(s, A)$ be the value of a state, and $c(s, t) = \mathrm{Cov}\big(Z(s, A), Z(t, B)\big)$ the covariance of two branches at $s$ and $t$, with $A$ and $B$ drawn independently
# from the policy. Noise $k$ comes with probability $p_k$; $r_k(s)$ and $P_k(s, \cdot)$ are the reward and the move from $s$ under it, averaged over the policy. So noise $k$ makes the branch at $s$ better than
# expected by $\delta_k(s) = r_k(s) + \gamma (P_k v)(s) - v(s)$. For two different states, one step adds the covariance of these surprises, and then the *same* noise moves both branches:
#
# $$c(s, t) = \sum_k p_k\, \delta_k(s)\, \delta_k(t) + \gamma^2 \sum_k p_k\, (P_k\, c\, P_k^\top)(s, t), \qquad s \ne t .$$
#
# In the paper's regime the first sum is missing, and the second moves the two branches by two independent draws. For two branches at the same state the equation is that of the paper.
#
# With common noise $T_2$ is an average, over the noise, of operators that all contract by the same modulus. So the norm and the modulus are those of Lemma 5.2, and the certificate is that of Theorem 5.3.
#
# We look at three worlds, with one decision in each. In the middle of the windy grid: right or left? In a depot with five units in stock, which afterwards fills its stock
# up to six (with at most four units a day): order one unit or two? With two jobs in each of two queues: send the next job to the fast queue or to the slow one?

# %%
ALL_THREE = ("independent", "joint", "common")
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
    x, y = jl.simulate_pairs(jm, policy, s, pair, pairs, seed, coupling=coupling).T
    simulated[name, coupling] = np.sort(np.where(np.abs(x - y) < 1e-5, 0.0, x - y))
index = pd.MultiIndex.from_tuples(solved, names=["world", "coupling"])
three = pd.DataFrame(index=index)
three["E G"] = [m.gap_mean[worlds[name][2]] for (name, _), m in solved.items()]
three["Var G"] = [m.gap_variance[worlds[name][2]] for (name, _), m in solved.items()]
three["P(G < 0)"] = [np.mean(gap < 0) for gap in simulated.values()]
three["P(G = 0)"] = [np.mean(gap == 0) for gap in simulated.values()]
three["P(G > 0)"] = [np.mean(gap > 0) for gap in simulated.values()]
three.round({"E G": 2, "Var G": 2}).round(3)

# %% [markdown]
# The law of each action alone is the same under all three couplings. The law of the gap is not, although its mean is.
#
# **The depot.** The two orders differ by one unit today. If both branches face the same demand through time (`"common"`),
# this unit is nearly all that ever differs, and ordering one is the better choice 94 times in 100. If branches that have parted face demands of their own (`"joint"`), what they sell later differs by far more than
# one unit, and ordering one is better only about 54 times in 100.
#
# **The queues.** With common noise the fast queue is better in only 5 of 100 cases, and yet its mean advantage is $+0.25$. There is no contradiction: 94 of 100 pairs are **ties**. If no job arrives,
# the two actions do the same. If one arrives, it joins one queue or the other, and the number of jobs, which determines the cost, stays equal until a server is idle in one branch and busy in the other. Later jobs
# join the shorter queue, so in most cases the branches meet before that happens. In the 6 of 100 cases that are left, the fast queue wins five times as often as it loses, and an average win is larger than an average loss. "No better" and "worse" are
# different things wherever ties are likely.

# %%
moved = max(
    np.abs(getattr(m, part) - getattr(solved[name, "joint"], part)).max()
    for (name, _), m in solved.items()
    for part in ("mean", "variance")
)
claims.check("three couplings: means and variances differ by", f"{moved:.4f}", moved < 1e-5)
squares = [(gap - gap.mean()) ** 2 for gap in simulated.values()]
errors = [
    (x.mean() - exact) / (x.std() / np.sqrt(x.size))
    for x, exact in zip(squares, three["Var G"], strict=True)
]
worst = np.abs(errors).max()
claim = "nine gap variances against Monte Carlo: largest error in standard errors"
claims.check(claim, f"{worst:.1f}", worst < 4.5, enough=enough)

# %%
for name in worlds:
    values = three.loc[name, "Var G"]
    order = bool(values["common"] < values["joint"] <= values["independent"])
    claims.check(f"{name}: Var G {', '.join(ALL_THREE)}", values.round(2).tolist(), order)
chance = 1 - three.loc["depot: order 1, order 2", "P(G > 0)"]
depot_laws = [
    jl.laws.gap_law(
        depot, worlds["depot: order 1, order 2"][1], [(5, 1, 2)], width=0.01, coupling=c
    )[0]
    for c in ("joint", "common")
]
error = 4.5 * 0.5 / np.sqrt(min(num_pairs, 100_000))  # 4.5 standard errors at most
for coupling, law in zip(("joint", "common"), depot_laws, strict=True):
    low, high = law.cdf(1e-5)
    inside = low - error <= chance[coupling] <= high + error
    text = f"{chance[coupling]:.3f}, [{low:.3f}, {high:.3f}]"
    claim = f"depot, {coupling}: P(G <= 0), simulated, within 4.5 s.e. of its bracket"
    claims.check(claim, text, inside, enough=enough)
jm, policy, query = worlds["queues: fast, slow"]
(law,) = jl.laws.gap_law(jm, policy, [query], width=0.01, coupling="common")
signs = [law.prob_worse, law.prob_tie, law.prob_better]
found = three.loc[("queues: fast, slow", "common"), ["P(G < 0)", "P(G = 0)", "P(G > 0)"]]
off = max(max(low - x, x - high) for x, (low, high) in zip(found, signs, strict=True))
text = ", ".join(f"{np.mean(ends):.3f}" for ends in signs)
claim = "queues, common: P(G < 0), P(G = 0), P(G > 0), as simulated within 4.5 s.e."
claims.check(claim, text, off < error, enough=enough)
gap = simulated["queues: fast, slow", "common"]
won, lost = (gap[side].sum() / max(side.sum(), 1) for side in (gap > 0, gap < 0))
claim = "queues, common: average win and average loss"
claims.check(claim, f"{won:.1f}, {-lost:.1f}", won > -lost, enough=enough)

# %%
share = np.linspace(0, 1, 400)
panels = np.repeat(np.arange(3), 3)
wide = 2.5 * np.sqrt(three["Var G"].to_numpy()[3 * panels])  # of the widest in each panel
middle = three["E G"].to_numpy()

# %%
fig, axes = plt.subplots(1, 3, figsize=(6.75, 2.4), sharey=True)
for i, ((name, coupling), gap) in enumerate(simulated.items()):
    ax = axes[panels[i]]
    (line,) = ax.plot(np.quantile(gap, share), share, label=coupling)
    ax.axvline(0, color="0.6", lw=0.8, zorder=0)
    below, tied, _ = three.iloc[i, 2:]
    aside = 0.02 * wide[i] * (i % 3 - 1)  # so that the three do not hide each other
    if tied > 0:
        ax.plot([aside] * 2, [below, below + tied], "o-", ms=3, lw=2, color=line.get_color())
    note = {"transform": ax.transAxes, "ha": "right", "color": line.get_color(), "fontsize": 6.5}
    ax.text(0.98, 0.24 - 0.08 * (i % 3), f"{tied:.0%} ties", **note)
    ax.set(title=name, xlabel="gap $G$", xlim=(middle[i] - wide[i], middle[i] + wide[i]))
axes[0].set(ylabel="share of pairs up to $x$", ylim=(0, 1))
axes[0].legend(loc="upper left")
figures.save(fig, "fig_three_couplings", three.reset_index(), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 3.6.** The law of one gap in each of three worlds, under three couplings, as simulated: the share of pairs with a gap of at most $x$. Thick bars with dots, beside the grey line at zero, are ties, $P(G = 0)$: they begin at the probability that the first choice is worse and end at the probability that it is no better.
# All three laws of a panel have the same mean.
#
# <!-- alt: Three panels of distribution functions, for gridworld, depot and queues. In each the curve for common noise is the steepest and the one for independent noise the flattest; for the depot the common curve is almost a single step. Thick bars at zero mark ties: few in the gridworld, almost none for the depot, and 15, 50 and 94 percent for the queues. -->

# %% [markdown]
# In these worlds, shared noise makes the gap narrower. This need not be so. If a day that is good at one state is bad at another, sharing the day widens the gap: for the two places below, whose rewards are opposite, it doubles the gap variance. And if branches are never at different states,
# there is nothing more to share: on the chain, `"common"` is the same as `"joint"`.

# %%
places = jl.JMDP.from_step(2, 2, 0.9, [0.5, 0.5], lambda s, a, u: ((2 * u - 1) * (1 - 2 * s), a))
wider = [jl.jipe2(places, [0, 1], coupling=c).moments.gap_variance[0, 0, 1] for c in ALL_THREE]
doubled = np.isclose(wider[2] / wider[1], 2)
text = f"{wider[2] / wider[1]:.4f}"
claims.check("opposite places: gap variance, common / joint", text, doubled)
everywhere = at_start(25, 0.99, "common").covariance, at_start(25, 0.99, "joint").covariance
off = np.abs(np.subtract(*everywhere)).max()
claim = "CRC, branches always at one state: covariances, common minus joint, largest"
claims.check(claim, f"{off:.5f}", off < 1e-6)

# %% [markdown]
# ## What to take away
#
# - The paper's sentence holds, word by word: structured (walls, twins), state-dependent (0.02 to 0.60 for one pair), invisible to marginals (same means and variances).
# - Correlation of *returns* is not correlation of *outcomes*: rewards with correlation $-1$ gave returns with correlation $+0.80$, and independent tables gave correlated returns. The reason is that branches meet.
# - Assuming independence overstates the variance of a gap on the grid and understates it on the chain. It does most harm where shared shocks are rare.
# - "The same shock" has a duration. The paper shares the shock of one state for one step; an exogenous process is shared through time, and `coupling="common"` models that.
#
# ## Exercises
#
# **Exercise 1.** Let the wind blow down (`gust="D"`). Which cells will look the same under both couplings? Count the actions that a gust moves, predict, then draw
# `figures.correlation_grid`.
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
claims.check("exercise 1: cells that look alike", np.flatnonzero(~differ).tolist(), predicted)

# %% [markdown]
# **Exercise 2.** On the chain, replace the uniform policy by one that always takes $a_1$. Show that $D_n = \tfrac12$ for every $n$. Then find $\rho_{s_0}$ for
# 25 states at $\gamma = 0.99$, first by hand and then with `jipe2`.
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
found = first_action.correlation[0, 0, 1]
claims.check("exercise 2: correlation at s_0", f"{found:.3f}", np.isclose(found, by_hand))

# %% [markdown]
# **What to read next.** Chapter 4 checks gaps against simulation and asks what their mean and variance say about their sign. For worlds with exogenous noise, see also
# [Use it on your own simulator](../book/own_simulator.md).

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
