# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 9. The whole distribution of a gap
#
# How likely is it that my choice turns out no better than the other one? Mean and variance answer with a bound,
# and the bound is cautious: for *right* against *left* in section 0.3 it is 0.27 where the truth is 0.10. This chapter computes the
# probability itself, and with it quantiles and means of the worst outcomes. Each comes **as a bracket: a lower and an upper bound, with the truth certainly between them**.
#
# **What you will learn.** Two ways to bracket the distribution of a gap, its *law*, and when a
# simulation is the better choice; how much moments say; and how much the coupling can matter.
#
# **What it needs.** Chapter 4, distribution functions and quantiles. To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
size = 5  # at least 3, and odd: the text speaks of the middle
points = 1024  # at least 512
num_pairs = 20000  # at least 1000
resolutions = [256, 512, 1024, 2048]  # points where gaps are likely, at least 256 each
out_dir = ""

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from notebooks.tools import chapter

chapter.style()
claims = chapter.Claims()
assert size >= 3, f"{size=}: at least 3"
assert size % 2, f"{size=}: odd"
assert points >= 512, f"{points=}: at least 512"
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
assert min(resolutions) >= 256, f"{resolutions=}: at least 256 each"

# %% [markdown]
# ## 9.1 One distribution for each pair of states
#
# Let $D(s, t) = Z(s, A) - Z(t, B)$, with $A$ and $B$ drawn independently from the policy. Two branches at one state with the same action are one branch, and then
# $D = 0$. Otherwise they move once more, and $D(s, t)$ is distributed as $R - R' + \gamma D(S', T')$. So its distribution function $F_{s,t}$ obeys
#
# $$F_{s,t}(x) = \sum_o p_o\, F_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big).$$
#
# The sum is over the outcomes $o$ of one step of the pair (actions and draws), with probabilities $p_o$, differences of rewards $d_o = R - R'$ and next pairs of states $j(o) = (S', T')$; where the branches are one, $j(o)$ stands for $D = 0$.
# The law of the gap of two given actions follows by one more such step.
#
# **What the grid does.** We store $F$ only at finitely many points $x$, the **grid**. The equation asks for $F$ at $(x - d_o)/\gamma$, which usually lies between two of them. $F$ never falls, so its value
# at the next grid point above is an upper bound, and its value at the next one below is a lower bound. Start with the bounds 0 and 1 and apply the equation again and again. Both bounds stay valid, because
# the equation is monotone in $F$, and no sweep widens them. Of two laws, one is the smaller in *stochastic order* if its distribution function is nowhere below the other's; so this is a bracket in stochastic order.
#
# **What an atom does.** A gap can take a single value, an **atom**, with positive probability, and $F$ jumps there. If it lies between two grid points, the bracket cannot tell where the jump
# is: between these points it is at least as wide as the jump is high, however fine the grid. Ties are an atom at zero. So zero is always a grid point, and `gap_law` keeps $P(G < x)$ and $P(G \le x)$ apart. It
# refines the grid until both brackets are as narrow at zero as you ask, and warns if it cannot.

# %%
grid, policy = jl.windy_gridworld(size), jl.goal_policy(size)
middle, right, left = size * size // 2, 1, 3
(law,) = jl.laws.gap_law(grid, policy, gaps=[(middle, right, left)], width=1e-6, points=points)
for name in ("prob_worse", "prob_tie", "prob_better"):
    low, high = getattr(law, name)
    print(f"{name:11}  {low:.6f} to {high:.6f}")
print("5% quantile  {:.2f} to {:.2f}".format(*law.quantile(0.05)))

# %% [markdown]
# As a check: the branch that reaches the goal first wins, so these probabilities are hitting probabilities of the pair chain.


# %%
def first_to_arrive(jm, policy, goal):
    """h (S, A, A) at [s, a, b]: branch a is at the goal strictly before branch b."""
    chain = np.einsum("sa,sat->st", policy, jm.marginal_mdp()[0])
    ahead = np.zeros(chain.shape)
    ahead[goal] = np.arange(len(chain)) != goal
    s, t = np.nonzero(ahead + ahead.T + np.eye(len(chain)) == 0)  # two branches, on their way
    step = np.einsum("ps,pt->pst", chain[s], chain[t])
    at_once = np.einsum("pst,st->p", step, ahead)
    ahead[s, t] = np.linalg.solve(np.eye(s.size) - step[:, s, t], at_once)
    one, other = jm.next_states[:, :, None], jm.next_states[:, None]
    return np.add.reduceat(jm.probs[:, None, None] * ahead[one, other], jm.starts[:-1])


# %%
first = first_to_arrive(grid, policy, size - 1)
laws = jl.laws.gap_law(grid, policy, width=1e-6)
at = tuple(np.transpose([x.gap for x in laws]))
worse, better = (
    np.array([getattr(x, name) for x in laws]) for name in ("prob_worse", "prob_better")
)
wins, losses = first[at], first.transpose(0, 2, 1)[at]
outside = max(
    np.maximum(p[:, 0] - exact, exact - p[:, 1]).max()
    for p, exact in ((worse, losses), (better, wins))
)
claim = f"all {len(laws)} gaps: exact P(G < 0), P(G > 0) outside the bracket by at most 1e-12"
claims.check(claim, f"{max(outside, 0.0):.12f}", outside < 1e-12)
assert max(x.width for x in laws) < 1e-6

# %% [markdown]
# `GapLaw.from_sample` answers the same questions from simulated gaps. It
# uses the band of [Dvoretzky, Kiefer and Wolfowitz (1956)](../book/background.md#ref-dkw) and [Massart (1990)](../book/background.md#ref-massart), which is $2\sqrt{\log(2/\alpha)/(2n)}$ wide for $n$ independent pairs and
# contains the whole distribution function with probability at least $1 - \alpha$.

# %%
pairs = jl.simulate_pairs(
    grid, policy, (right, left), state=middle, num_pairs=2000, rng=seed, truncation=1e-10
)
gaps = pairs[:, 0] - pairs[:, 1]
sampled = jl.laws.GapLaw.from_sample(law.gap, gaps, alpha=1e-4, truncation_error=1e-8)
cuts = law.points[:, 1]
bands = law.cdf(cuts), sampled.cdf(cuts)
assert np.all((bands[0][1] >= bands[1][0]) & (bands[0][0] <= bands[1][1]))
text = f"{law.prob_worse[0]:.4f} < {law.prob_tie[0]:.4f}"
below = law.prob_worse[1] < law.prob_tie[0]
claims.check("right against left: P(G < 0) < P(G = 0)", text, below)


# %%
def draw(ax, law, **style):
    """The bracket as a band over x; it steps at every cut, and an atom is a vertical line."""
    cuts = np.repeat(law.points.ravel(), 2)[1:-1]
    ends = np.repeat(law.low[:-1], 2), np.repeat(law.high[1:], 2)
    ax.fill_between(cuts, *ends, lw=0.8, **style)


# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.6), width_ratios=[3, 2])
for ax in axes:
    draw(ax, sampled, color="0.8", label="2,000 simulated pairs")
    draw(ax, law, color="#0072B2", label="bracket")
    ax.set(xlabel="gap $G$, right against left", ylabel=r"$P(G \leq x)$")
axes[0].set(xlim=(-4, 9), ylim=(-0.02, 1.02))
axes[0].legend(loc="lower right")
axes[1].set(xlim=(-1.5, 1.2), ylim=(0, 0.2))
chapter.save(fig, "fig_gap_law", {"x": cuts, "low": bands[0][0], "high": bands[0][1]}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.1.** The distribution function of the gap, right against left, in the middle of the grid; the right panel
# magnifies the neighbourhood of zero. Note that the bracket is a line at zero, jump included, inside the band.
#
# <!-- alt: A rising staircase in blue, so narrow that it looks like a line, inside a wider grey band. The right panel shows a vertical step of the blue line at zero. -->

# %% [markdown]
# ## 9.2 A second bracket, for rewards of any kind
#
# In the gridworld the first bracket closes at zero: to know $F(0)$, the equation needs $F$ only at zero and at points around which $F$ is constant. If rewards can take any values, most of the points fall between
# grid points. Each step then shifts mass by up to one spacing $h$ of the grid, and all
# steps together by up to $h / (1 - \gamma)$. So take $\varphi(x) = \mathbb E\,(x - D)^+$ instead of $F$. It obeys
#
# $$\varphi_{s,t}(x) = \sum_o p_o\, \gamma\, \varphi_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big),$$
#
# and it is *convex*. So chords between grid points lie above it, and tangents below. A chord replaces the mass between two grid points by mass at these two
# points, two tangents replace it by mass at its mean; both keep $\mathbb E D$, which is known exactly. Of two laws with the same mean, one is the smaller in *convex order* if its $\varphi$ is nowhere above the other's; so this is a bracket in convex order. **Between two grid points, chord and tangent are off by at most $h/4$ times the mass between them: by second order in $h$ where that mass is at most a multiple of $h$,
# as for a bounded density; by first order where a single atom is left.**
#
# Now let $\varphi(x) = \mathbb E\,(x - G)^+$ for a gap $G$. The mean of the worst share $p$ of outcomes, called CVaR (conditional value at risk), is
#
# $$\mathrm{CVaR}_p(G) = \max_x \Big(x - \frac{\varphi(x)}{p}\Big),$$
#
# and the slopes of $\varphi$ bound probabilities. `gap_law` keeps both brackets, and every answer is their intersection. Our example is the depot of [Use it on your own simulator](../book/own_simulator.md), whose stock of up to eleven units is filled up to six. It is empty: are four units better than three? With $\gamma = 0.9$, sums of
# discounted rewards do not fall on any regular grid. (Over so few grids, we allow a slope to be off by 0.5.)

# %%
depot = jl.inventory(11, 4, gamma=0.9, holding_cost=0.0, lost_sale_cost=0.0)
up_to_six = np.clip(6 - np.arange(12), 0, 4)
widths = []
for resolution in resolutions:
    with warnings.catch_warnings(action="ignore", category=jl.ConvergenceWarning):
        (found,) = jl.laws.gap_law(
            depot, up_to_six, gaps=[(0, 4, 3)], width=1e-9, points=resolution
        )
    alone = jl.laws.GapLaw(found.gap, found.mean, found.steps)  # stochastic order, its last grid
    widths.append([len(found.phi.x), found.width, np.ptp(found.cvar(0.1))])
sizes, probability, tail = np.transpose(widths)
slopes = [np.polyfit(np.log(sizes), np.log(y), 1)[0] for y in (probability, tail)]
claims.check(
    "width against points, slopes of P at zero, CVaR: -1, -2, +- 0.5",
    f"{slopes[0]:.1f}, {slopes[1]:.1f}",
    np.allclose(slopes, [-1, -2], rtol=0, atol=0.5),
    enough=len(resolutions) > 2,
)

# %% [markdown]
# Beside it, the smallest example with atoms off the grid: one state and two irrational rewards.

# %%
coin = jl.JMDP([[0.5, 0.5]], [[[2**0.5, 0], [0, 3**0.5 - 0.3]]], [[[0, 0], [0, 0]]], gamma=0.3)
points_tried = [128, 512, 2048]
atoms = [
    jl.laws.gap_law(coin, [[0.5, 0.5]], gaps=[(0, 0, 1)], points=n, max_points=8 * n)[0].cvar(0.3)
    for n in points_tried
]
slope = np.polyfit(np.log(points_tried), np.log(np.ptp(atoms, axis=1)), 1)[0]
claims.check("width of CVaR against points, with atoms: slope > -1.5", f"{slope:.1f}", slope > -1.5)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.6))
draw(axes[0], alone, color="0.75", label="stochastic order")
draw(axes[0], found, color="#0072B2", label="both orders")
axes[0].set(xlim=(-12, 8), ylim=(-0.02, 1.02), xlabel="gap $G$, four units against three")
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
chapter.save(fig, "fig_two_orders", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.2.** Left: the distribution function of a gap at the empty depot, four units against three. Grey: the bracket in
# stochastic order, on a coarse grid; blue: both orders. Right: widths of two brackets, and dotted lines of
# slopes $-1$ and $-2$. Note that the bracket of the CVaR narrows by second order, that of the probability by about first order.
#
# <!-- alt: Left, a narrow blue distribution function inside a wide grey band of steps. Right, two falling lines on logarithmic axes, the width of a probability roughly along a dotted line of slope minus one, the width of a tail mean along a dotted line of slope minus two. -->

# %% [markdown]
# Name the thresholds that matter, as in `gap_law(..., at=[2.5])`: each becomes a grid point.
#
# ## 9.3 A bracket or a sample?
#
# A simulation gives the same answers with a sampling error. The table has the brackets of the depot, and 95% intervals from simulated pairs.

# %%
pairs = jl.simulate_pairs(depot, up_to_six, (4, 3), state=0, num_pairs=10 * num_pairs, rng=seed)
gaps = np.sort(pairs[:, 0] - pairs[:, 1])
worst = gaps[:num_pairs]
share = (gaps <= 0).mean()
# The threshold of the worst tenth is estimated, too: a second part of the variance.
variance = worst.var() + 0.9 * (worst[-1] - worst.mean()) ** 2
centre = np.array([share, worst.mean()])
error = np.sqrt([share * (1 - share) / gaps.size, variance / worst.size])
low, high = np.transpose([found.cdf(0.0), found.cvar(0.1)])
outside = np.maximum(low - centre, centre - high) / error
columns = [low, high, centre - 1.96 * error, centre + 1.96 * error]
names = [("bracket", "low"), ("bracket", "high"), ("sample", "low"), ("sample", "high")]
rows = ["P(G <= 0)", "CVaR, worst tenth"]
pd.DataFrame(np.transpose(columns), rows, pd.MultiIndex.from_tuples(names)).round(4)

# %%
text = f"{low[1]:.3f} to {high[1]:.3f}, {centre[1]:.3f}"
claim = "CVaR, bracket and sample; P(G <= 0), CVaR simulated: within 4 s.e. of the bracket"
claims.check(claim, text, outside.max() < 4)

# %% [markdown]
# **Simulate** if all three hold: you want a probability, *discounted* sums of rewards miss the grid, and there are many states. With 30 states and random rewards (`benchmarks/gap_law.md`), one gap took `gap_law` 8 processor seconds. Its bracket of $P(G \le 0)$ was 0.008 wide; the 95% interval of ten million pairs is 0.0006 wide.
# **Take `gap_law`** for a precise CVaR, if the answer must be certain, or if the bracket closes at zero, as in the gridworld.
#
# ## 9.4 How much do moments tell?
#
# Section 5.4 of the paper bounds $P(G \le 0)$ in terms of the mean and the variance. Sharp bounds exist for any even number of moments
# (Chebyshev, Markov, Stieltjes; [Krein and Nudelman (1977)](../book/background.md#ref-krein)). Let $H$ be the Hankel matrix of the moments of order 0 to $n$, and $K(x, y) = (1, x, x^2, \dots)\, H^{-1} (1, y, y^2, \dots)^\top$. If $H$ is invertible and $K(\cdot, t)$ has $n/2$ zeros, the law that attains the bound has atoms at $t$ and at the zeros of $K(\cdot, t)$, and an atom at $x$ has the mass $1/K(x, x)$. The moments are those of `jipe(order=n)`. We divide the true probability by its bound, for all gaps of a 3x3 grid whose mean is positive.


# %%
def largest_up_to(t, raw):
    """The largest P(G <= t) of all laws with the moments 1, E G, ..., E G^n, for even n."""
    size = len(raw) // 2 + 1
    ahead = np.polynomial.Polynomial([-raw[1], 1.0]) / np.sqrt(raw[2] - raw[1] ** 2)
    t = ahead(t)  # standardised, or large powers drown small ones
    moments = [(ahead**k).coef @ raw[: k + 1] for k in range(len(raw))]
    inverse = np.linalg.inv([moments[k : k + size] for k in range(size)])
    others = np.roots((inverse @ t ** np.arange(size))[::-1])  # where K(x, t) is zero
    atoms = np.append(t, others.real)
    powers = np.vander(atoms, size, increasing=True)
    masses = 1.0 / ((powers @ inverse) * powers).sum(1)
    return masses[atoms <= t].sum()


# %%
small, orders = jl.windy_gridworld(3), (2, 4, 6, 8)
moments = jl.jipe(small, jl.goal_policy(3), order=8, tol=1e-10).moments
everything = jl.laws.gap_law(
    small,
    jl.goal_policy(3),
    gaps=[(s, a, b) for s in range(9) for a in range(4) for b in range(4) if a != b],
)
favourable = [x for x in everything if x.mean[0] > 1e-6]
truth = np.array([1.0 - x.prob_better[0] for x in favourable])
raw = [[1.0, *(moments.gap_moment([x.gap] * k) for k in range(1, 9))] for x in favourable]
bounds = {n: np.array([largest_up_to(0.0, r[: n + 1]) for r in raw]) for n in orders}

# %%
ratios = np.array([truth / bound for bound in bounds.values()])
assert ratios.max() <= 1 + 1e-6
cantelli = moments.inferiority_bound[tuple(np.transpose([x.gap for x in favourable]))]
assert np.allclose(bounds[2], cantelli, atol=1e-6)  # order 2 is the bound of Section 5.4
ladder = np.median(ratios, 1)
assert np.all(np.diff(ladder) >= 0)
text = ", ".join(f"{x:.2f}" for x in ladder)
claim = "median of truth / bound, orders 2, 4, 6, 8: < 2/3"
claims.check(claim, text, ladder[-1] < 2 / 3)

# %% [markdown]
# Even with eight moments, the bound is more than one and a half times the truth for half of these gaps.

# %% [markdown]
# ## 9.5 How much can a coupling matter?
#
# If you have an ordinary MDP and know nothing about the coupling, you can still ask for the range of gap variances over all *one-step* couplings, those that share a draw only among branches at one state. The coupling changes only the covariance of two returns. Covariances obey a
# monotone recursion, so `coupling_range` finds their smallest and largest values by value iteration on pairs of states, with an optimal transport problem where both
# branches are at one state. For two
# actions the range is exact; for more it is an outer range, which may be too wide. Where do the paper's two worlds lie?

# %%
couplings = ("joint", "independent", "common")
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
place = {c: (data[c] - data.low) / (data.high - data.low) for c in ("joint", "independent")}
top = place["joint"][data.world == "reward chain"].min()
least = place["joint"][data.world == "gridworld"].max()
claim = "paper's coupling in the range: chain at 1, the top; gridworld at 0"
at_ends = top > 1 - 1e-5 and least < 1e-5  # of the width of the range
claims.check(claim, f"{top:.4f}, {least:.4f}", at_ends)
alone = place["independent"]
text = f"{alone.min():.2f} to {alone.max():.2f}"
claims.check(
    "independent actions in the range: > 0, < 1", text, alone.min() > 0 and alone.max() < 1
)
means = data[data.world == "gridworld"][["common", "low"]].mean()
text = ", ".join(f"{x:.2f}" for x in means)
claim = "gridworld, mean variance: one gust for all < 0.4 x least of one-step"
claims.check(claim, text, means["common"] < 0.4 * means["low"])

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.7), width_ratios=[1, 4])
for ax, (name, part) in zip(axes, data.groupby("world", sort=False), strict=True):
    part = part.sort_values("high").reset_index()
    ax.vlines(part.index, part.low, part.high, color="0.75", lw=4)
    ax.plot(part.index, part.joint, "o", ms=3.5, label="the paper's coupling")
    ax.plot(part.index, part.independent, "_", ms=7, mew=1.4, label="independent")
    look = {"ms": 4, "mew": 1.2, "clip_on": False}  # some are at zero
    ax.plot(part.index, part.common, "x", label="common, not one-step", **look)
    ax.set(title=name, xlabel="gaps", xticks=[], ylabel="gap variance", ylim=(0, None))
    ax.set_xlim(-0.7, len(part) - 0.3)
fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
chapter.save(fig, "fig_coupling_range", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.3.** The range of gap variances over all one-step couplings (grey), the paper's coupling (dots), independent
# actions (dashes), and one noise for all states (crosses), which is not a one-step coupling. There is one bar for every gap whose range is not a single point. Note that the dots are at the upper ends in the chain, and at the lower ends in the gridworld.
#
# <!-- alt: Grey vertical bars, one for each gap. In the reward chain the dots are at the upper ends of the bars, in the gridworld at the lower ends; the dashes of independent actions lie in between. The crosses of common noise lie on the dots in the chain, and in the gridworld mostly far below the bars. -->

# %% [markdown]
# Noise that is
# shared between states can go further: one gust for the whole grid gives a third of the smallest average variance of a one-step coupling.
#
# ## What to take away
#
# - `gap_law` brackets the probability that a choice turns out worse, and the truth is certainly inside. Stochastic order resolves atoms if all points that the equation needs are on the grid; convex order suits all other rewards, and is of second order where densities are bounded.
# - For a probability in a model with many states and random rewards, simulate.
# - $P(G < 0)$ and $P(G = 0)$ are different things. The mean and the variance do not tell them apart; the law does.
# - If you do not know the coupling, `coupling_range` says how much the gap variances depend on it, among one-step couplings.
#
# ## Exercises
#
# **Exercise 1.** Ask for `width=1e-9` at the empty depot, all orders against none, with `max_points=512`. What does
# the warning say, and why is this model harder than the gridworld?
#
# <details><summary>Solution</summary>
#
# It says how wide the brackets are, and how many points the requested width would need: billions. In the gridworld the few points on which $F(0)$ depends are all on the grid. At the depot rewards
# take 27 values, and most points that the equation asks for fall between the points of any grid.
#
# </details>

# %% tags=["hide-cell"]
orders = [(0, order, 0) for order in range(1, 5)]
with warnings.catch_warnings(record=True) as said:
    jl.laws.gap_law(depot, up_to_six, gaps=orders, width=1e-9, max_points=512)
message = str(said[0].message)
needed = int(message.partition("about ")[2].partition(" points")[0].replace(",", ""))
warned = "not 1e-09" in message and needed > 1e9 and np.unique(depot.rewards).size == 27
assert warned

# %% [markdown]
# **Exercise 2.** Which order at the empty depot has the best mean gap against ordering nothing, and which the best CVaR?
#
# <details><summary>Solution</summary>
#
# The largest one, four units, has the best mean, and the smallest one, a single unit, the best CVaR: every further unit is one more that may stay on the shelf when demand is low.
#
# </details>

# %% tags=["hide-cell"]
finer = jl.laws.gap_law(depot, up_to_six, gaps=orders, width=0.05)
tails = [x.cvar(0.1) for x in finer]
assert tails[0][0] > max(high for _, high in tails[1:])
assert np.all(np.diff([x.mean[0] for x in finer]) > 0.1)

# %% [markdown]
# **What to read next.** Chapter 8 learns gaps from samples, without known tables.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
