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
# probability itself, quantiles, and means of the worst outcomes. Each comes **as a bracket: a lower and an upper bound, between which the truth is guaranteed to lie**.
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
resolutions = [512, 1024, 2048]  # points where gaps are likely, at least 512 each
out_dir = ""

# %%
import warnings
from itertools import permutations, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert size >= 3, f"{size=}: at least 3"
assert size % 2, f"{size=}: odd"
assert points >= 512, f"{points=}: at least 512"
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
assert min(resolutions) >= 512, f"{resolutions=}: at least 512 each"

# %% [markdown]
# ## 9.1 One distribution for each pair of states
#
# Let $D(s, t) = Z(s, A) - Z(t, B)$, with $A$ and $B$ drawn independently from the policy. Two branches at one state with the same action are one branch, and then
# $D = 0$. Otherwise both move once more, and $D(s, t)$ is distributed as $R - R' + \gamma D(S', T')$. So its distribution function $F_{s,t}$ obeys
#
# $$F_{s,t}(x) = \sum_o p_o\, F_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big).$$
#
# The sum is over the outcomes $o$ of one step of the pair (actions and draws), with probabilities $p_o$, differences of rewards $d_o = R - R'$ and next pairs of states $j(o) = (S', T')$; where the branches are one, $j(o)$ stands for $D = 0$.
# The law of the gap of two given actions follows by one more such step.
#
# **What the grid does.** We store $F$ at finitely many points, the **grid**. The equation asks for $F$ at $(x - d_o)/\gamma$, usually between two of them. $F$ never falls, so its value at the next grid point above
# is an upper bound, at the next one below a lower bound. Start with the bounds 0 and 1 and apply the equation again and again. It is monotone in $F$, so both bounds stay valid, and no sweep widens them. This is a bracket in *stochastic order*, in which the smaller of two laws is the one whose distribution function is nowhere below.
#
# **What an atom does.** Where a gap takes a single value, an **atom**, with positive probability, $F$ jumps. Between two grid points the bracket around a jump stays as wide as the jump is high, however fine the grid. Ties are an atom at zero. So zero is always a grid point, and `gap_law` keeps $P(G < x)$ and $P(G \le x)$ separate. It
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
# A second check is a law known at *every* point. With $\gamma = 1/2$, a state that always pays 0 or 1, equally likely, has a return that is uniform on $[0, 2]$: its rewards are binary digits. A state that always pays 0.3 has the return 0.6. If one action leads to the first and the other one to the second, the gap is uniform on $[-0.3, 0.7]$.

# %%
digits = jl.JMDP(
    [[0.5, 0.5]] * 3,
    [[[0, 0], [0, 0]], [[0, 0], [1, 1]], [[0.3, 0.3], [0.3, 0.3]]],
    [[[1, 2], [1, 2]], [[1, 1], [1, 1]], [[2, 2], [2, 2]]],
    gamma=0.5,
)
(uniform,) = jl.laws.gap_law(digits, [0, 0, 0], gaps=[(0, 0, 1)])
outside = []
for bracket in (uniform, uniform.steps):  # both orders, and stochastic order alone
    exact = np.clip(bracket.points.ravel() + 0.3, 0.0, 1.0)
    outside += [(bracket.low - exact).max(), (exact - bracket.high).max()]
for share in np.arange(1, 100) / 100:
    for (least, most), exact in (
        (uniform.quantile(share), share - 0.3),
        (uniform.cvar(share), share / 2 - 0.3),
    ):
        outside += [least - exact, exact - most]

# %% tags=["hide-input"]
claim = "a uniform gap: distribution function, quantiles, CVaR outside the bracket by at most 1e-12"
claims.check(claim, f"{max(outside):.12f}", max(outside) < 1e-12)

# %% [markdown]
# `GapLaw.from_sample` answers the same questions from $n$ simulated gaps. Its band ([Dvoretzky, Kiefer and Wolfowitz (1956)](../book/background.md#ref-dkw), [Massart (1990)](../book/background.md#ref-massart)) is $2\sqrt{\log(2/\alpha)/(2n)}$ wide and
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
assert np.isclose(np.ptp(sampled.cdf(law.mean[0])), 2 * np.sqrt(np.log(2 / 1e-4) / (2 * 2000)))
assert law.prob_worse[1] < law.prob_tie[0]


# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.6), width_ratios=[3, 2])
for ax in axes:
    figures.bracket(ax, sampled, color="0.8", label="2,000 simulated pairs")
    figures.bracket(ax, law, color="#0072B2", label="bracket")
    ax.set(xlabel="gap $G$, right against left", ylabel=r"$P(G \leq x)$")
axes[0].set(xlim=(-4, 9), ylim=(-0.02, 1.02))
axes[0].legend(loc="lower right")
axes[1].set(xlim=(-1.5, 1.2), ylim=(0, 0.2))
chapter.save(fig, "fig_gap_law", {"x": cuts, "low": bands[0][0], "high": bands[0][1]}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.1.** The distribution function of the gap, right against left, in the middle of the grid; the right panel
# magnifies the neighbourhood of zero. At zero the bracket, jump included, is too narrow to see.
#
# <!-- alt: A rising staircase in blue, so narrow that it looks like a line, inside a wider grey band. The right panel shows a vertical step of the blue line at zero. -->

# %% [markdown]
# ## 9.2 A second bracket, for rewards of any kind
#
# In the gridworld the first bracket closes at zero: to know $F(0)$, the equation needs $F$ only at zero and at points around which $F$ is constant. If rewards can take any values, most of the points fall between
# grid points. Each step then shifts mass by up to one spacing $h$ of the grid, and all
# steps together by up to $h / (1 - \gamma)$; CVaR can be off by as much. So take $\varphi(x) = \mathbb E\,(x - D)^+$ instead of $F$. It obeys
#
# $$\varphi_{s,t}(x) = \sum_o p_o\, \gamma\, \varphi_{j(o)}\!\Big(\frac{x - d_o}{\gamma}\Big),$$
#
# and it is *convex*. So chords between grid points lie above it, and tangents below. A chord replaces the mass between two grid points by mass at these two
# points, two tangents replace it by mass at its mean; both keep $\mathbb E D$, which is known exactly. This is a bracket in *convex order*, in which the smaller of two laws with one mean is the one whose $\varphi$ is nowhere above. **Between two grid points, chord and tangent are off by at most $h/4$ times the mass between them: by second order in $h$ where that mass is at most a multiple of $h$,
# as for a bounded density; by first order where a single atom is left.**
#
# With a gap $G$ in place of $D$, the mean of the worst share $p$ of outcomes, CVaR (conditional value at risk), is
#
# $$\mathrm{CVaR}_p(G) = \max_x \Big(x - \frac{\varphi(x)}{p}\Big),$$
#
# which needs $\varphi$ only near the $p$-quantile: atoms elsewhere do no harm. The slopes of $\varphi$ bound probabilities. `gap_law` keeps both brackets, and every answer is their intersection. Our example is the depot of [Use it on your own simulator](../book/own_simulator.md), which holds up to eleven units and orders up to six. It is empty: are four units better than three? With $\gamma = 0.9$, sums of
# rewards fall on no regular grid.
#
# The gap has an atom at 1.5 (Exercise 1), which only stochastic order resolves. By `at=[1.5]` it becomes a grid point, and both orders share all grids. (Otherwise `gap_law` computes stochastic order on a coarse grid only.) How wide is the bracket of either order alone?

# %%
depot = jl.inventory(11, 4, gamma=0.9, holding_cost=0.0, lost_sale_cost=0.0)
up_to_six = np.clip(6 - np.arange(12), 0, 4)
question = {"gaps": [(0, 4, 3)], "width": 1e-9, "at": [1.5]}
brackets, widths = {}, {}
for resolution in resolutions:
    with warnings.catch_warnings(action="ignore", category=jl.ConvergenceWarning):
        (law,) = jl.laws.gap_law(depot, up_to_six, points=resolution, **question)
    stochastic, convex = jl.laws.GapLaw(law.gap, law.mean, law.steps), law.phi
    size = len(law.points)
    brackets[size] = law, stochastic
    widths[size] = {
        ("P(G <= 0)", "stochastic"): np.ptp(stochastic.cdf(0.0)),
        ("P(G <= 0)", "convex"): np.ptp(convex.cdf(np.zeros(1))),
        ("CVaR, worst tenth", "stochastic"): np.ptp(stochastic.cvar(0.1)),
        ("CVaR, worst tenth", "convex"): np.ptp(convex.cvar(0.1)),
    }
widths = pd.DataFrame(widths).T.rename_axis("points")
widths.round(5)

# %% [markdown]
# Convex order halves the bracket of a probability, and narrows that of CVaR thousands of times.

# %% tags=["hide-input"]
slopes = {name: np.polyfit(np.log(widths.index), np.log(widths[name]), 1)[0] for name in widths}
claims.check(
    "width of CVaR against points, slopes, stochastic, convex order: -1, -2, +- 0.5",
    ", ".join(f"{slopes['CVaR, worst tenth', order]:.1f}" for order in ("stochastic", "convex")),
    np.allclose(list(slopes.values())[2:], [-1, -2], rtol=0, atol=0.5),
    enough=len(resolutions) > 2,
)
gain = [
    widths[name, "stochastic"] / widths[name, "convex"]
    for name in ("P(G <= 0)", "CVaR, worst tenth")
]
claims.check(
    "finest grid, width, stochastic / convex order: P(G <= 0) < 3; CVaR > 1,000",
    f"{gain[0].iloc[-1]:.1f}; {gain[1].iloc[-1]:,.0f}",
    gain[0].iloc[-1] < 3 and gain[1].iloc[-1] > 1000,
    enough=max(resolutions) >= 2048,
)
atoms = law.high[1::2] - law.low[::2]  # P(x <= G <= y) at most, at each of the points
assert atoms[law.points[:, 1] < law.quantile(0.1)[1]].max() < 0.003  # none near the tail

# %% [markdown]
# The smallest example with atoms off the grid has one state and two irrational rewards.

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
coarsest = widths.index[0]
law, stochastic = brackets[coarsest]
x = np.linspace(-1, 1, 2001)
figures.bracket(axes[0], stochastic, color="0.75", label="stochastic order")
axes[0].fill_between(x, *law.phi.cdf(x), color="#0072B2", alpha=0.6, lw=0, label="convex order")
axes[0].set(xlim=(-1, 1), ylim=(0.25, 0.4), xlabel="gap $G$, four units against three")
axes[0].set(ylabel=r"$P(G \leq x)$", title=f"on {coarsest:,} points")
axes[0].legend(loc="upper left")
looks = {"stochastic": ("0.5", "s"), "convex": ("#0072B2", "o")}
for (name, order), y in widths.items():
    color, marker = looks[order]
    line = "-" if name.startswith("CVaR") else "--"
    what = "CVaR" if line == "-" else r"$P(G \leq 0)$"
    axes[1].loglog(y, f"{marker}{line}", color=color, ms=4, label=f"{what}, {order}")
axes[1].set(xlabel="points of the grid", ylabel="width of the bracket")
axes[1].set_xticks(widths.index, [f"{size:,}" for size in widths.index])
axes[1].minorticks_off()
axes[1].yaxis.set_major_formatter("{x:g}")
axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
data = widths.reset_index().set_axis(["points", *(" ".join(name) for name in widths)], axis=1)
chapter.save(fig, "fig_two_orders", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.2.** Both orders on the same grids, at the empty depot, four units against three. Left: the distribution function around zero. Right: widths of brackets.
#
# <!-- alt: Left, a grey rising staircase band with a narrower blue band inside it. Right, four lines on logarithmic axes: the widths of a probability by either order fall close together, about in proportion to the number of points; the width of a tail mean by stochastic order falls as slowly, far above that by convex order, which falls twice as steeply. -->

# %% [markdown]
# ## 9.3 A bracket or a sample?
#
# Brackets of the depot, and 95% intervals from simulated pairs:

# %%
pairs = jl.simulate_pairs(depot, up_to_six, (4, 3), state=0, num_pairs=10 * num_pairs, rng=seed)
gaps = np.sort(pairs[:, 0] - pairs[:, 1])
worst = gaps[:num_pairs]
share = (gaps <= 0).mean()
# The threshold of the worst tenth is estimated, too: a second part of the variance.
variance = worst.var() + 0.9 * (worst[-1] - worst.mean()) ** 2
centre = np.array([share, worst.mean()])
error = np.sqrt([share * (1 - share) / gaps.size, variance / worst.size])
law, _ = brackets[widths.index[-1]]
low, high = np.transpose([law.cdf(0.0), law.cvar(0.1)])
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
# **Simulate** if you want a probability, *discounted* sums of rewards miss the grid, and there are many states. With 30 states and random rewards (`benchmarks/gap_law.md`), one gap took `gap_law` 5 processor seconds. Its bracket of $P(G \le 0)$ was 0.008 wide <!-- benchmarks/gap_law.md: random, 30 states: time; P -->; the 95% interval of ten million pairs is 0.0006 wide.
# **Take `gap_law`** in three cases: you need a precise CVaR, or a guarantee, or the bracket closes at zero, as in the gridworld.
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
# Even with eight moments, half of the bounds are more than 1.5 times the truth.

# %% [markdown]
# ## 9.5 How much can a coupling matter?
#
# If you know nothing about the coupling, you can still ask for the range of gap variances over all *one-step* couplings, those that share a draw only among branches at one state. The coupling changes only covariances, and these obey a
# monotone recursion: `coupling_range` finds the smallest and the largest by value iteration on pairs of states, with an optimal transport problem where both
# branches are at one state. For two
# actions the range is exact; for more it may be too wide.
#
# As a check, take a random model with two actions and three equally likely tables in each of three states. Transport is a linear program, and its vertices are permutations of the outcomes of one action. Each choice makes a JMDP; we solve all $6^3$. Looking only one step ahead would not do.

# %%
rng = np.random.default_rng(seed)
thirds, even = np.full((3, 3), 1 / 3), np.full((3, 2), 0.5)
rewards, nexts = rng.random((3, 3, 2)), rng.integers(0, 3, (3, 3, 2))  # [state, table, action]
ends = jl.laws.coupling_range(jl.JMDP(thirds, rewards, nexts, 0.9), even)
tried = []
for orders in product(permutations(range(3)), repeat=3):
    paired = rewards.copy(), nexts.copy()
    for x in paired:
        x[..., 1] = np.take_along_axis(x[..., 1], np.array(orders), axis=1)
    moments = jl.jipe2(jl.JMDP(thirds, *paired, 0.9), even).moments
    tried.append(moments.gap_variance[:, 0, 1])

# %% tags=["hide-input"]
low, high = ends.gap_variance_low[:, 0, 1], ends.gap_variance_high[:, 0, 1]
off = max(np.abs(np.min(tried, 0) - low).max(), np.abs(np.max(tried, 0) - high).max())
claims.check(
    "range: largest distance from the extremes of 216 couplings < 1e-6", f"{off:.6f}", off < 1e-6
)

# %% [markdown]
# Where do the paper's two worlds lie?

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
assert alone.min() > 0
assert alone.max() < 1
means = data[data.world == "gridworld"][["common", "low"]].mean()
text = ", ".join(f"{x:.2f}" for x in means)
claim = "gridworld, mean variance: one gust for all < 0.4 x least of one-step"
claims.check(claim, text, means["common"] < 0.4 * means["low"])

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.75, 2.7), width_ratios=[1, 4])
for ax, (name, part) in zip(axes, data.groupby("world", sort=False), strict=True):
    part = part.sort_values("high").reset_index()
    ax.vlines(part.index, part.low, part.high, color="0.75", lw=4)
    look = {"ms": 6, "mew": 1.2, "clip_on": False}  # some are at zero, or below dots
    ax.plot(part.index, part.common, "x", color="C2", label="common, not one-step", **look)
    ax.plot(part.index, part.joint, "o", color="C0", ms=3, label="the paper's coupling")
    ax.plot(part.index, part.independent, "_", color="C1", ms=7, mew=1.4, label="independent")
    ax.set(title=name, xlabel="gaps", xticks=[], ylabel="gap variance", ylim=(0, None))
    ax.set_xlim(-0.7, len(part) - 0.3)
fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
chapter.save(fig, "fig_coupling_range", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 9.3.** The range of gap variances over all one-step couplings (grey), the paper's coupling (dots), independent
# actions (dashes), and one noise for all states (crosses). Gaps whose range is a single point are left out. The dots are at the upper ends in the chain, and at the lower ends in the gridworld.
#
# <!-- alt: Grey vertical bars, one for each gap. In the reward chain the dots are at the upper ends of the bars, in the gridworld at the lower ends; the dashes of independent actions lie in between. The crosses of common noise lie on the dots in the chain, and in the gridworld mostly far below the bars. -->

# %% [markdown]
# Noise that is
# shared between states can go further: one gust for the whole grid gives a third of the smallest average variance of a one-step coupling.
#
# ## What to take away
#
# - `gap_law` brackets the probability that a choice turns out worse, and the truth is guaranteed to be inside. Stochastic order resolves atoms if all points that the equation needs are on the grid; convex order suits all other rewards, and CVaR above all.
# - $P(G < 0)$ and $P(G = 0)$ are different things. Only the distribution distinguishes them.
# - If you do not know the coupling, `coupling_range` says how much the gap variances depend on it, among one-step couplings.
#
# ## Exercises
#
# **Exercise 1.** With which probability is the gap of four units against three at the empty depot exactly 1.5? Work it out by hand, and compare with `gap_law`.
#
# <details><summary>Hint</summary>
#
# What do the two branches have in common if at least four customers come on the first day?
#
# </details>
#
# <details><summary>Solution</summary>
#
# Then the fourth unit is sold: it earns 3, less 1.5 for which it was bought. Both branches are empty, order the same and are one branch from then on, so the gap is exactly 1.5. At least four of on average three Poisson customers come with probability 0.353.
# If fewer come, the stocks differ, and the separate draws that follow hardly ever bring the gap back to exactly 1.5.
#
# </details>

# %% tags=["hide-cell"]
up_to, below = law.cdf(1.5), law.cdf(1.5, strict=True)
by_hand = 1.0 - np.exp(-3.0) * (1 + 3 + 9 / 2 + 27 / 6)
assert up_to[0] - below[1] <= by_hand <= up_to[1] - below[0] < by_hand + 0.01

# %% [markdown]
# **Exercise 2.** Which order at the empty depot has the best mean gap against ordering nothing, and which the best CVaR?
#
# <details><summary>Hint</summary>
#
# One call of `gap_law` takes all four gaps; `mean` and `cvar(0.1)` have the answers.
#
# </details>
#
# <details><summary>Solution</summary>
#
# The largest one, four units, has the best mean, and the smallest one, a single unit, the best CVaR: every further unit is one more that may stay on the shelf when demand is low.
#
# </details>

# %% tags=["hide-cell"]
orders = [(0, order, 0) for order in range(1, 5)]
finer = jl.laws.gap_law(depot, up_to_six, gaps=orders, width=0.05)
tails = [x.cvar(0.1) for x in finer]
assert tails[0][0] > max(high for _, high in tails[1:])
assert np.all(np.diff([x.mean[0] for x in finer]) > 0.1)

# %% [markdown]
# **What to read next.** Chapter 8 learns gaps from samples, without known tables.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
