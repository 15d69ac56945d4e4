# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 9. The whole law of a gap
#
# How likely is it that my choice turns out no better than the other one? Mean and variance answer with a bound,
# and the bound is cautious: for *right* against *left* in section 0.3 it is 0.27 where the truth is 0.10. This chapter computes the
# probability itself, and with it quantiles and means of the worst outcomes. Each comes **as a bracket: a lower and an upper bound, with the truth certainly between them**.
# Then it asks what moments of higher order would have told us, and how much the choice of coupling can matter.
#
# **What you will learn.** Two ways to compute a bracket for a
# distribution function; why ties need care; how fast each bracket narrows as its grid is refined; how much moments say about a law; and how much the coupling can matter at most.
#
# **What it needs.** Chapter 4, distribution functions and quantiles. To run it, install the project
# with `pip install -e ".[notebooks]"` in its folder.

# %% tags=["parameters"]
seed = 0
size = 5  # at least 3, and odd: the text speaks of the middle
points = 1024  # at least 512
num_pairs = 20000  # at least 100
resolutions = [256, 512, 1024, 2048]  # points where gaps are likely, at least 256 each
out_dir = ""

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn

import jmdp_lib as jl
from jmdp_lib import figures

figures.style()
claims = figures.Claims()

# %% [markdown]
# ## 9.1 One scalar law for each pair of states
#
# To find the law of a gap under a fixed policy we do not need the joint law of two returns. Let $D(s, t) = Z(s, A) - Z(t, B)$, with $A$ and $B$ drawn
# independently from the policy. Two branches at one state with the same action are one branch, and then
# $D = 0$. Otherwise they move once more, and $D(s, t)$ has the law of $R - R' + \gamma D(S', T')$. So its distribution function $F_{s,t}$ obeys
#
# $$F_{s,t}(x) = \sum_o p_o\, F_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big).$$
#
# The sum is over the outcomes $o$ of one step of the pair, that is, over actions and draws. Each has its probability $p_o$, its difference of rewards $d_o = R - R'$ and its next pair of states $j(o) = (S', T')$.
# If the branches merge, $d_o = 0$, and the next law is a point mass at zero. The law of the gap of two given actions follows by one more such step.
#
# **What the grid does.** A computer can store $F$ only at finitely many points $x$, the **grid**. The equation asks for $F$ at $(x - d_o)/\gamma$, which usually lies between two of them. $F$ never falls, so its value
# at the next grid point above is an upper bound, and its value at the next one below is a lower bound. Start with the bounds 0 and 1 and apply the equation again and again. Both bounds stay valid, because
# the equation is monotone in $F$, and no sweep widens them. This is a bracket in *stochastic order*. The finer the grid, the narrower it is. It closes at $x$ if the equation, applied any number of times, leads from $x$ only to grid points. In the gridworld, whose rewards are 0 or 1, this is
# the case at zero.
#
# **What an atom does.** A gap can take a single value with positive probability. Such a value is an **atom**, and $F$ jumps there. If an atom lies between two grid points, the bracket cannot tell where between them the jump
# is. Between these points it is at least as wide as the jump is high, however fine the grid. Ties are an atom at zero. That is why zero is always a grid point, and why `gap_law` keeps $P(G < x)$ and $P(G \le x)$ apart at every grid point. It
# refines the grid until the brackets of both are as narrow at zero as you ask, and warns if it cannot.

# %%
grid, policy = jl.windy_gridworld(size), jl.goal_policy(size)
middle, right, left = size * size // 2, 1, 3
(law,) = jl.laws.gap_law(grid, policy, [(middle, right, left)], width=1e-6, points=points)
for name in ("prob_worse", "prob_tie", "prob_better"):
    low, high = getattr(law, name)
    print(f"{name:11}  {low:.6f} to {high:.6f}")

# %% [markdown]
# As a check: the branch that reaches the goal first wins, and chapter 4 computed the probabilities of
# winning and losing from the pair chain. These probabilities must lie in the brackets, for every gap. We allow $10^{-12}$ for rounding.


# %%
def first_to_arrive(jm, policy, goal):
    """h (S, A, A) at [s, a, b]: branch a is at the goal strictly before branch b."""
    chain = np.einsum("sa,sat->st", policy, jm.marginal_mdp()[0])
    ahead = np.zeros(chain.shape)
    ahead[goal] = np.arange(len(chain)) != goal
    s, t = np.nonzero(ahead + ahead.T + np.eye(len(chain)) == 0)  # two branches, on their way
    step = np.einsum("ps,pt->pst", chain[s], chain[t])
    known = np.einsum("pst,st->p", step, ahead)
    ahead[s, t] = np.linalg.solve(np.eye(s.size) - step[:, s, t], known)
    one, other = jm.next_states[:, :, None], jm.next_states[:, None]
    return np.add.reduceat(jm.probs[:, None, None] * ahead[one, other], jm.starts[:-1])


# %%
first = first_to_arrive(grid, policy, size - 1)
laws = jl.laws.gap_law(grid, policy, width=1e-6)
at = tuple(np.transpose([x.query for x in laws]))
worse, better = (
    np.array([getattr(x, name) for x in laws]) for name in ("prob_worse", "prob_better")
)
wins, losses = first[at], first.transpose(0, 2, 1)[at]
outside = max(
    np.maximum(p[:, 0] - exact, exact - p[:, 1]).max()
    for p, exact in ((worse, losses), (better, wins))
)
claim = f"all {len(laws)} gaps: exact P(G < 0), P(G > 0) outside the bracket by at most"
claims.check(claim, f"{max(outside, 0.0):.12f}", outside < 1e-12)
widest = max(x.width for x in laws)
claims.check("widest bracket at zero, below 1e-6", f"{widest:.7f}", widest < 1e-6)

# %% [markdown]
# Simulation agrees within its error. `GapLaw.from_sample` answers the same questions from simulated gaps, here those of `simulate_pairs`. It
# uses the band of [Dvoretzky, Kiefer and Wolfowitz (1956)](../book/background.md#ref-dkw), in the sharp form of [Massart (1990)](../book/background.md#ref-massart). The band is $2\sqrt{\log(2/\alpha)/(2n)}$ wide for $n$ pairs, and
# contains the whole distribution function with probability at least $1 - \alpha$. Use it for a model that is too large for
# `gap_law`, or for gaps from a simulator of your own. Even a million pairs leave a band thousands of times as wide as the bracket at zero.

# %%
pairs = jl.simulate_pairs(grid, policy, middle, (right, left), num_pairs, seed, truncation=1e-10)
gaps = pairs[:, 0] - pairs[:, 1]
sampled = jl.laws.GapLaw.from_sample(law.query, gaps, alpha=1e-4, off=1e-8)
cuts = law.points[:, 1]
bands = law.cdf(cuts), sampled.cdf(cuts)
agree = np.mean((bands[0][1] >= bands[1][0]) & (bands[0][0] <= bands[1][1]))
claim, enough = "share of points at which bracket and simulated band overlap", num_pairs >= 100
claims.check(claim, f"{agree:.3f}", agree == 1, enough=enough)
inner = (bands[1][0] > 0.0) & (bands[1][1] < 1.0)
widest = np.median((bands[1][1] - bands[1][0])[inner])
as_told = np.isclose(widest, 2 * np.sqrt(np.log(2 / 1e-4) / (2 * num_pairs)))
claims.check("width of that band, as in the formula", f"{widest:.4f}", as_told, enough=enough)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.6), width_ratios=[3, 2])
for ax in axes:
    sampled.plot(ax, color="0.85", alpha=1.0)
    law.plot(ax, color="#0072B2")
    ax.set(xlabel="gap $G$, right against left", ylabel=r"$P(G \leq x)$")
axes[0].set(xlim=(-4, 9), ylim=(-0.02, 1.02))
axes[1].set(xlim=(-1.5, 1.2), ylim=(0, 0.2))
figures.save(fig, "fig_gap_law", {"x": cuts, "low": bands[0][0], "high": bands[0][1]}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.1.** The distribution function of the gap, right against left, in the middle of the grid; the right panel
# magnifies the neighbourhood of zero. Blue: the bracket; dots mark the ends of the jump at zero. Grey: the band of the simulated pairs.
#
# <!-- alt: A rising staircase in blue, so narrow that it looks like a line, inside a wider grey band. The right panel shows a vertical step of the blue line at zero. -->

# %% [markdown]
# The jump at zero is an atom: branches that tie have exactly the same return. It is resolved because zero is a grid point. Other
# atoms lie between grid points, and near them the blue line widens into a band.

# %%
ties = max(0.0, law.prob_tie[0])
claims.check("right against left: P(G < 0)", f"{law.prob_worse[0]:.4f}", law.width < 1e-6)
claims.check("the atom at zero, P(G = 0)", f"{ties:.4f}", np.ptp(law.prob_tie) < 2e-6)

# %% [markdown]
# ## 9.2 A second bracket, for rewards of any kind
#
# If rewards can take any values, the points that the equation asks for multiply with every step, and most of them fall between
# grid points. Each step then shifts mass by up to one spacing $h$ of the grid, and all
# steps together by up to $h / (1 - \gamma)$. A second bracket is far narrower. Take $\varphi(x) = \mathbb E\,(x - D)^+$ instead of $F$. It obeys the same recursion with one more factor $\gamma$,
#
# $$\varphi_{s,t}(x) = \sum_o p_o\, \gamma\, \varphi_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big),$$
#
# and it is *convex*. So chords between grid points lie above it, and tangents below. Both are the $\varphi$ of some law: chords move the mass between two grid points to these two
# points, tangents collect it at its mean. Both keep $\mathbb E D$, which is known exactly. Of two laws with the same mean, the one that is more
# spread out is larger in *convex order*, so we call this a bracket in convex order. Where the distribution has a bounded density, the error of chords and tangents is of second order
# in $h$; at an atom between two grid points $\varphi$ has a kink, and the error is of first order.
#
# Now let $\varphi(x) = \mathbb E\,(x - G)^+$ for a gap $G$. The mean of the worst share $p$ of outcomes, called CVaR (conditional value at risk), is
#
# $$\mathrm{CVaR}_p(G) = \max_x \Big(x - \frac{\varphi(x)}{p}\Big),$$
#
# and the slopes of $\varphi$ bound probabilities: for $y < x < z$,
#
# $$\frac{\varphi(x) - \varphi(y)}{x - y} \le P(G < x) \le P(G \le x) \le \frac{\varphi(z) - \varphi(x)}{z - x}.$$
#
# `gap_law` keeps both brackets, and every answer is their intersection. Stochastic order resolves atoms at grid points; convex order
# is narrow everywhere else. Our example is a shop with a stock of up to ten units, which orders 0 to 5 units a day. With its prices and $\gamma = 0.9$, sums of
# discounted rewards do not fall on any regular grid.

# %%
stock, up_to_six = jl.inventory(gamma=0.9), np.clip(6 - np.arange(11), 0, 5)
widths = []
for resolution in resolutions:
    with warnings.catch_warnings(action="ignore", category=jl.ConvergenceWarning):
        (found,) = jl.laws.gap_law(stock, up_to_six, [(5, 1, 0)], width=1e-9, points=resolution)
    alone = jl.laws.GapLaw(found.query, found.mean, found.steps)  # stochastic order, its last grid
    widths.append([len(found.phi.x), found.width, np.ptp(found.cvar(0.1))])
sizes, probability, tail = np.transpose(widths)
slopes = [np.polyfit(np.log(sizes), np.log(y), 1)[0] for y in (probability, tail)]
claims.check(
    "width of P(G <= 0) and of CVaR against points: slopes",
    f"{slopes[0]:.1f}, {slopes[1]:.1f}",
    -1.5 < slopes[0] < -0.7 and -2.6 < slopes[1] < -1.6,
    enough=len(resolutions) > 2,
)
low, high = found.cvar(0.1)
claims.check(
    "mean of the worst tenth, one unit against none", f"{low:.3f} to {high:.3f}", high - low < 0.01
)

# %% [markdown]
# We check the mean of the worst tenth by simulation. Its standard error has two parts, because the threshold of the worst tenth is estimated, too.

# %%
pairs = jl.simulate_pairs(stock, up_to_six, 5, (1, 0), 10 * num_pairs, seed)
gaps = np.sort(pairs[:, 0] - pairs[:, 1])
worst = gaps[:num_pairs]
variance = worst.var() + 0.9 * (worst[-1] - worst.mean()) ** 2
error = np.sqrt(variance / worst.size)
agree = low - 4 * error <= worst.mean() <= high + 4 * error
claims.check("simulated mean of the worst tenth, within 4 s.e.", f"{worst.mean():.3f}", agree)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.6))
alone.plot(axes[0], color="0.75", alpha=1.0, label="stochastic order")
found.plot(axes[0], color="#0072B2", label="both orders")
axes[0].set(xlim=(-12, 8), ylim=(-0.02, 1.02), xlabel="gap $G$, one unit against none")
axes[0].set(xticks=[-10, -5, 0, 5], ylabel=r"$P(G \leq x)$")
axes[0].legend(loc="upper left")
names = {r"$P(G \leq 0)$": probability, "CVaR, worst tenth": tail}
for (name, y), slope, color in zip(names.items(), (1, 2), ("#0072B2", "#D55E00"), strict=True):
    axes[1].loglog(sizes, y, "o-", color=color, label=name)
    axes[1].loglog(sizes, y[0] * (sizes / sizes[0]) ** -slope, ":", color="0.5")
axes[1].set(xlabel="points of the grid", ylabel="width of the bracket")
axes[1].set_xticks(sizes, [f"{size:.0f}" for size in sizes])
axes[1].minorticks_off()
axes[1].yaxis.set_major_formatter("{x:g}")
axes[1].legend(loc="lower left")
data = {"points": sizes, "P(G <= 0)": probability, "CVaR": tail}
figures.save(fig, "fig_two_orders", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.2.** Left: the distribution function of a gap in the shop, ordering one unit against none with five in stock. Grey: the bracket in
# stochastic order, on the coarse grid at which `gap_law` stopped refining it; blue: both orders. Right: widths of two brackets against the points of the grid. The
# dotted lines have slopes $-1$ and $-2$.
#
# <!-- alt: Left, a narrow blue distribution function inside a wide grey band of steps. Right, two falling lines on logarithmic axes, the width of a probability along a dotted line of slope minus one, the width of a tail mean along a dotted line of slope minus two. -->

# %% [markdown]
# Here doubling the number of points roughly halves the bracket of a probability, and divides that of a CVaR by about four. If there are atoms off the grid, that of a CVaR narrows only to first order. The smallest example has one state and two irrational rewards:

# %%
coin = jl.JMDP([[0.5, 0.5]], [[[2**0.5, 0], [0, 3**0.5 - 0.3]]], [[[0, 0], [0, 0]]], gamma=0.3)
points_tried = [128, 512, 2048]
atoms = [
    jl.laws.gap_law(coin, [[0.5, 0.5]], [(0, 0, 1)], points=n, max_points=8 * n)[0].cvar(0.3)
    for n in points_tried
]
slope = np.polyfit(np.log(points_tried), np.log(np.ptp(atoms, axis=1)), 1)[0]
claims.check("width of CVaR against points, with atoms: slope", f"{slope:.1f}", slope > -1.5)

# %% [markdown]
# For probabilities, name the thresholds that matter, as in `gap_law(..., at=[2.5])`: each becomes a grid point.
#
# ## 9.3 How much do moments tell?
#
# Section 5.4 of the paper bounds $P(G \le 0)$ in terms of the mean and the variance. Sharp bounds exist for any even number of moments
# (Chebyshev, Markov, Stieltjes; [Krein and Nudelman (1977)](../book/background.md#ref-krein)), and `tail_bounds` computes them from the moments of `jipe(order=n)`. How close do
# they come? As in the right panel of the paper's Figure 6 we look at the ratio of probability to bound. There the probability is estimated; here it is
# the *true* one. We take all gaps of a 3x3 grid whose mean is positive.

# %%
small, orders = jl.windy_gridworld(3), (2, 4, 6, 8)
moments = jl.jipe(small, jl.goal_policy(3), order=8, tol=1e-10).moments
everything = jl.laws.gap_law(
    small,
    jl.goal_policy(3),
    [(s, a, b) for s in range(9) for a in range(4) for b in range(4) if a != b],
)
asked = [x for x in everything if x.mean[0] > 1e-6]
truth = np.array([1.0 - x.prob_better[0] for x in asked])
raw = [[1.0, *(moments.gap_moment([x.query] * k) for k in range(1, 9))] for x in asked]
bounds = {n: np.array([jl.laws.tail_bounds(r[: n + 1], 0.0)[1] for r in raw]) for n in orders}

# %%
ratios = {f"order {n}": truth / bound for n, bound in bounds.items()}
largest = [r.max() for r in ratios.values()]
text = ", ".join(f"{x:.2f}" for x in largest)
claims.check("largest truth / bound: orders 2, 4, 6, 8", text, max(largest) <= 1 + 1e-6)
cantelli = moments.inferiority_bound[tuple(np.transpose([x.query for x in asked]))]
off = np.abs(bounds[2] - cantelli).max()
claims.check("order 2 minus the bound of Section 5.4, largest", f"{off:.7f}", off < 1e-6)
ladder = [float(np.median(r)) for r in ratios.values()]
text = ", ".join(f"{x:.2f}" for x in ladder)
rises = ladder == sorted(ladder)
claims.check("median of truth / bound: orders 2, 4, 6, 8", text, rises and ladder[-1] < 2 / 3)

# %%
fig, ax = plt.subplots(figsize=(3.6, 2.6))
for name, ratio in ratios.items():
    seaborn.ecdfplot(x=ratio, ax=ax, label=name)
ax.axvline(1.0, color="0.6", lw=0.8)
ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel=r"$P(G \leq 0)$ / bound", ylabel="share of gaps")
ax.legend(loc="upper left")
figures.save(
    fig,
    "fig_moment_bounds",
    {"truth": truth} | {f"order {n}": b for n, b in bounds.items()},
    out_dir,
)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.3.** The share of gaps of the 3x3 grid for which the true $P(G \le 0)$, divided by its bound, is at most the value on the horizontal axis, for
# bounds from 2, 4, 6 and 8 moments. If a bound were exact for all gaps, its curve would be the grey line at one.
#
# <!-- alt: Four rising curves over truth divided by bound, from 0 to 1. Curves of higher order lie further to the right, nearer to the grey line at one; the one of order 8 reaches it for a few gaps. -->

# %% [markdown]
# Each further pair of moments helps. But even with eight moments, the bound is more than one and a half times the truth for half of the gaps.

# %% [markdown]
# ## 9.4 Quantiles, CVaR, and three couplings
#
# The paper's introduction asks for quantiles and for the mean of the worst
# outcomes (CVaR). The law of a gap gives both. It depends on the coupling, although the law of each action's return does not. We compare *up* with *right* in the
# middle, where both lead towards the goal and the mean gap is zero. A single number in the table stands for a bracket whose ends agree to three decimals.


# %%
def shown(low, high):
    """A bracket to three digits."""
    ends = [f"{round(x, 3) + 0.0:.3f}" for x in (low, high)]  # no minus before a zero
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


couplings, rows = ("joint", "independent", "common"), {}
asked = [(middle, 0, right), law.query]
found = {c: jl.laws.gap_law(grid, policy, asked, coupling=c, points=points) for c in couplings}
for coupling, (one, _) in found.items():
    answers = {"P(G < 0)": one.prob_worse, "P(G = 0)": one.prob_tie}
    answers |= {"5% quantile": one.quantile(0.05), "CVaR, 10%": one.cvar(0.1)}
    rows[coupling] = {name: shown(*ends) for name, ends in answers.items()}
pd.DataFrame(rows).T

# %%
x = np.linspace(-5, 5, 401)
data = {"x": x}
for coupling, (one, _) in found.items():
    data |= dict(zip((f"{coupling}, low", f"{coupling}, high"), one.cdf(x), strict=True))

# %%
fig, ax = plt.subplots(figsize=(3.6, 2.6))
colors = "#0072B2", "#D55E00", "#009E73"
for coupling, color in zip(couplings, colors, strict=True):
    found[coupling][0].plot(ax, color=color, label=coupling)
ax.set(xlim=(-5, 5), ylim=(-0.02, 1.02), xlabel="gap $G$, up against right")
ax.set_ylabel(r"$P(G \leq x)$")
ax.legend(title="coupling", loc="upper left")
figures.save(fig, "fig_law_couplings", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.4.** The distribution function of the gap, up against right, under three couplings that give each action the
# same law of returns. Each line is a bracket, which is too narrow to show as a band. Dots mark the ends of the jump at zero.
#
# <!-- alt: Three distribution functions around zero. The one of independent actions is the flattest, the joint one steeper with a jump at zero, and with one common gust the whole mass is in a single jump at zero. -->

# %% [markdown]
# With a separate gust for every action, the worst tenth is worse than under the paper's coupling. With *one* gust for the whole grid, up and right always
# tie: their branches stay side by side and arrive together. And right never loses to
# left, because every gust hits both branches.

# %%
tail = {c: one.cvar(0.1) for c, (one, _) in found.items()}
apart = tail["independent"][1] < tail["joint"][0]
text = f"{tail['independent'][1]:.2f}, {tail['joint'][0]:.2f}"
claims.check("CVaR, worst 10%: upper end, independent; lower end, joint", text, apart)
one_mean = np.ptp([one.mean for one, _ in found.values()])
claims.check("means under the three couplings differ by", f"{one_mean:.8f}", one_mean < 1e-9)
together, safe = found["common"]
tie = together.prob_tie[0] > 1 - 1e-9 and safe.prob_worse[1] < 1e-9
text = f"{together.prob_tie[0]:.6f}, {safe.prob_worse[1]:.6f}"
claims.check("one gust for all: P(up ties with right), P(right loses to left)", text, tie)

# %% [markdown]
# ## 9.5 How much can a coupling matter?
#
# If you have an ordinary MDP and know nothing about the coupling, you can still ask for the range of gap variances over all *one-step* couplings, those that share a draw only among branches at one state. The coupling does not change the variance of an action's return, only the covariance of two returns. Covariances obey a
# monotone recursion, so their smallest and largest values can be found by value iteration on pairs of states. Where both
# branches are at the same state, each sweep solves an optimal transport problem. `coupling_range` does that. For two
# actions the range is exact; for more it is an outer range, which contains all values but may be too wide. Where in this range do the paper's two worlds lie? All these numbers are computed to finite accuracy. So we say that a variance lies at an end
# of its range if its distance from that end is less than $10^{-5}$ of the width of the range.

# %%
chain = jl.coupled_reward_chain(4, 0.9)
worlds = {"reward chain": (chain, jl.uniform_policy(chain))}
worlds["gridworld"] = jl.windy_gridworld(3, gamma=0.9), jl.goal_policy(3)
parts = []
for name, (jm, pi) in worlds.items():
    ends = jl.laws.coupling_range(jm, pi)
    solved = {c: jl.jipe2(jm, pi, tol=1e-10, coupling=c).moments for c in couplings}
    s, a, b = np.nonzero(ends.gap_variance_high - ends.gap_variance_low > 1e-6)
    at = (s[a < b], a[a < b], b[a < b])
    columns = {"low": ends.gap_variance_low, "high": ends.gap_variance_high}
    columns |= {c: m.gap_variance for c, m in solved.items()}
    parts.append(pd.DataFrame({n: x[at] for n, x in columns.items()}).assign(world=name))
data = pd.concat(parts, ignore_index=True)

# %%
place = (data.joint - data.low) / (data.high - data.low)
ends = {w: place[data.world == w] for w in worlds}
top = ends["reward chain"].min()
claim = "reward chain, joint: place in the range, 1 is its upper end"
claims.check(claim, f"{top:.4f}", top > 1 - 1e-5)
least = ends["gridworld"].max()
claim = "gridworld, joint: place in the range, 0 is its lower end"
claims.check(claim, f"{least:.4f}", least < 1e-5)
alone = (data.independent - data.low) / (data.high - data.low)
text = f"{alone.min():.2f} to {alone.max():.2f}"
between = alone.min() > 0 and alone.max() < 1
claims.check("independent actions, every gap: place in the range", text, between)
means = data[data.world == "gridworld"][["low", "common"]].mean()
text = f"{means['common']:.2f}, {means['low']:.2f}"
claim = "gridworld, averages: one gust for all cells, least of one-step couplings"
claims.check(claim, text, means["common"] < means["low"])

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.7), width_ratios=[1, 4])
for ax, (name, part) in zip(axes, data.groupby("world", sort=False), strict=True):
    part = part.sort_values("high").reset_index()
    ax.vlines(part.index, part.low, part.high, color="0.75", lw=4)
    ax.plot(part.index, part.joint, "o", ms=3.5, label="the paper's coupling")
    ax.plot(part.index, part.independent, "_", ms=7, mew=1.4, label="independent")
    ax.plot(part.index, part.common, "x", ms=4, mew=1.2, label="common, not one-step")
    ax.set(title=name, xlabel="gaps", xticks=[], ylabel="gap variance", ylim=(0, None))
    ax.set_xlim(-0.7, len(part) - 0.3)
fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
figures.save(fig, "fig_coupling_range", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.5.** The range of gap variances over all one-step couplings (grey), the paper's coupling (dots), independent
# actions (dashes), and one noise for all states (crosses), which is not a one-step coupling and can lie outside the range. There is one bar for every gap whose range is not a single point.
#
# <!-- alt: Grey vertical bars, one for each gap. In the reward chain the dots are at the upper ends of the bars, in the gridworld at the lower ends; the dashes of independent actions lie in between. The crosses of common noise lie on the dots in the chain, and in the gridworld mostly far below the bars. -->

# %% [markdown]
# Among one-step couplings, the chain's opposite coins give the largest gap variances, in every state. The gust
# that pushes all moves alike gives the smallest, in every cell. So the paper's two worlds lie at opposite ends of the range. Noise that is
# shared between states is not a one-step coupling, and can go further: with one gust for the whole grid, the average gap variance is a third of the smallest average that a one-step coupling can have.
#
# ## What to take away
#
# - `gap_law` brackets the probability that a choice turns out worse, and the truth is certainly inside. Use it if the model is
#   known, and `GapLaw.from_sample` with simulated gaps if the model is unknown or too large.
# - Two brackets enclose a law: the one in stochastic order resolves atoms, the one in convex order is narrow for rewards of any kind.
# - $P(G < 0)$ and $P(G = 0)$ are different things. The mean and the variance do not tell them apart; the law does.
# - If you do not know the coupling, `coupling_range` says how much the gap variances depend on it, among one-step couplings.
#
# ## Exercises
#
# **Exercise 1.** Ask for `width=1e-9` on `jl.inventory(gamma=0.9)`, under the policy that orders up to six units, with `max_points=512`. What does
# the warning say, and why is this model harder than the gridworld?
#
# <details><summary>Solution</summary>
#
# It says how wide the brackets are, on how many points, and how many points the requested width would need: more than twenty billion. In the gridworld all
# rewards are 0 or 1, and the few points on which $F(0)$ depends are all on the grid. In the inventory rewards
# take 189 values, the points that the equation asks for multiply with every step, and most of them fall between the points of any grid.
#
# </details>

# %% tags=["hide-cell"]
orders = [(5, order, 0) for order in range(1, 6)]
with warnings.catch_warnings(record=True) as said:
    coarse = jl.laws.gap_law(stock, up_to_six, orders, width=1e-9, max_points=512)
widest = max(x.width for x in coarse)
message = str(said[0].message)
needed = int(message.partition("about ")[2].partition(" points")[0].replace(",", ""))
warned = "not 1e-09" in message and needed > 20e9 and np.unique(stock.rewards).size == 189
text = f"{widest:.3f}, {needed / 1e9:.0f} billion"
claims.check("exercise 1: width that was reached, points for 1e-9", text, warned)

# %% [markdown]
# **Exercise 2.** With five units in stock, which order has the best CVaR (mean of the worst tenth) against ordering nothing?
#
# <details><summary>Solution</summary>
#
# The smallest one, a single unit. Every further unit is one more that may stay on the shelf when demand is low. The
# bracket of one unit lies above those of all other orders, so the answer is certain.
#
# </details>

# %% tags=["hide-cell"]
finer = jl.laws.gap_law(stock, up_to_six, orders, width=0.05)
tails = [x.cvar(0.1) for x in finer]
certain = tails[0][0] > max(high for _, high in tails[1:])
claims.check("exercise 2: the order with the best worst tenth", 1, certain)

# %% [markdown]
# **What to read next.** Chapter 10 uses a simulator to decide between actions, and the law of a gap to improve a policy.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
