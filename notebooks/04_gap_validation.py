# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. Gaps: predicted, simulated, and bounded
#
# How much better is the policy's action than another one, *under the same gust*? JIPE-2 predicts the mean
# and the variance of that gap without any simulation. This chapter simulates pairs of branches and checks
# whether prediction and simulation agree (the paper's Figure 6): **every difference is within Monte Carlo error.**
# Then it asks what mean and variance say about the *sign* of a gap. They say less than they seem to,
# because gaps are often exactly zero.
#
# **What you will learn.** How to test a predicted variance against simulation, with error bars that the theory supplies, too; which of the two curves in the paper's Figure 6 can fail and which cannot; what
# the bound on $P(G \le 0)$ really bounds; and how many more pairs independent sampling would need.
#
# **What it needs.** Gaps and their bound (section 1.7), standard errors and p-values. To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
size = 5  # at least 4
gust_prob = 0.2  # 0.2 to 0.3, for what the text says of sizes
gamma = 0.95  # at least 0.8
num_pairs = 20000  # at least 1000; for Monte Carlo's own bars 10000
few_pairs = 5  # 3 to 10
out_dir = ""

# %%
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.container import ErrorbarContainer
from matplotlib.legend_handler import HandlerErrorbar
from scipy import stats

import jmdp_lib as jl
from jmdp_lib.environments import ACTIONS
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert size >= 4, f"{size=}: at least 4"
assert 0.2 <= gust_prob <= 0.3, f"{gust_prob=}: 0.2 to 0.3"
assert gamma >= 0.8, f"{gamma=}: at least 0.8"
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
assert 3 <= few_pairs <= 10, f"{few_pairs=}: 3 to 10"

# %% [markdown]
# ## 4.1 The gaps
#
# We take the windy gridworld, the policy "right, then up" of the paper's Figure 1, and at every cell the gap
#
# $$G = Z^\pi(s, \pi(s)) - Z^\pi(s, b), \qquad b \ne \pi(s)$$
#
# between the policy's action and each alternative. The goal is left out: nothing differs there. (The
# paper does not say which grid its Figure 6 is about; we take the 5x5 grid of its Figure 2.)

# %%
grid, policy = jl.windy_gridworld(size, gust_prob, gamma), jl.goal_policy(size)
goal, chosen = size - 1, policy.argmax(1)
gaps = [
    (s, int(chosen[s]), b)
    for s in range(grid.num_states)
    for b in range(grid.num_actions)
    if s != goal and b != chosen[s]
]
at = tuple(np.transpose(gaps))  # m.gap_mean[at] is (K,), one number per gap

# %% [markdown]
# **Predicted**: Section 5.4 of the paper, with the sign corrected ([decision 1](../book/paper.md#decision-1)),
#
# $$\mathrm{var}\,G = \Sigma(a,a) + \Sigma(b,b) - 2\,\Sigma(a,b) - (\mu_a - \mu_b)^2 .$$

# %%
m = jl.jipe2(grid, policy, tol=1e-10).moments
mean, variance = m.gap_mean[at], m.gap_variance[at]
print(f"{len(gaps)} gaps; means {mean.min():.2f} to {mean.max():.2f}, ", end="")
print(f"variances {variance.min():.2f} to {variance.max():.2f}")

# %% [markdown]
# **Simulated**: `estimate_gaps` simulates pairs of branches. The two branches of a pair leave one cell with two actions under one
# gust, go separate ways, and merge as soon as they meet and take the same action. Every gap has its
# own pairs, so the errors of distinct gaps are independent.


# %%
def simulated(num_runs):
    """Estimates (K,) of all gaps, each from pairs of its own."""
    limits = {"num_runs": num_runs, "truncation": 1e-7}
    streams = (np.random.SeedSequence([seed, row]) for row in range(len(gaps)))
    found = [
        jl.simulators.estimate_gaps(grid, policy, [a, b], state=s, rng=stream, **limits)
        for (s, a, b), stream in zip(gaps, streams, strict=True)
    ]
    names = ["mean", "variance", "mean_error", "variance_error"]
    names += ["prob_worse", "prob_tie", "prob_better"]
    return SimpleNamespace(**{n: np.array([getattr(x, n)[0, 1] for x in found]) for n in names})


# %%
played = simulated(num_pairs)
print(f"{len(gaps) * num_pairs:,} pairs")

# %% [markdown]
# ## 4.2 Are the differences within Monte Carlo error?
#
# A sample mean has standard error $\sqrt{\mathrm{var}\,G / n}$. A sample *variance* has one too. The textbook formula
# $\mathrm{var}\,G\,\sqrt{2/(n-1)}$ is for normal gaps only. In general
#
# $$\mathrm{se}^2 = \frac{1}{n}\Big(\mathbb E[(G - \mathbb E G)^4] - \frac{n-3}{n-1}\,(\mathrm{var}\,G)^2\Big).$$
#
# This takes a fourth moment, which `jipe(order=4)` gives exactly. (A sample's own estimates of these errors must agree with them to 20%.)

# %%
fourth_order = jl.jipe(grid, policy, order=4, tol=1e-10).moments
fourth = np.array([fourth_order.gap_central_moment(gap, 4) for gap in gaps])
mean_se = np.sqrt(variance / num_pairs)
spread = (num_pairs - 3) / (num_pairs - 1) * variance**2
variance_se = np.sqrt((fourth - spread) / num_pairs)
own = np.concatenate([played.mean_error / mean_se, played.variance_error / variance_se])
assert np.abs(own - 1.0).max() < 0.2 or num_pairs < 10_000
enough = num_pairs >= 1000

# %% [markdown]
# Differences in units of their standard errors, $z = (\text{Monte Carlo} - \text{predicted}) / \text{se}$, should look
# like draws from $N(0, 1)$. We ask
# two questions. Is the *largest* $|z|$ of a size that as many independent normal draws would have? Is
# $\sum z^2$ what $\chi^2$ allows, neither too large nor too small? For means and for variances, these are four p-values, each of which must
# exceed 0.0025: by the normal approximation, a correct prediction fails for at most one seed in a hundred.


# %%
def normal_p_values(z):
    """P-values of the largest |z| and, two-sided, of the sum of squares, if z is normal."""
    beyond = 2 * stats.norm.sf(np.abs(z).max())
    below = stats.chi2.cdf(np.sum(z**2), z.size)
    return -np.expm1(z.size * np.log1p(-beyond)), 2 * min(below, 1 - below)


# %%
scores = {
    "mean": (played.mean - mean) / mean_se,
    "variance": (played.variance - variance) / variance_se,
}
for name, z in scores.items():
    largest, total = normal_p_values(z)
    text = f"{np.abs(z).max():.2f}, {np.mean(z**2):.2f} (p = {largest:.2f}, {total:.2f})"
    passed = min(largest, total) > 0.0025
    claim = f"gap {name}, predicted = simulated, p > 0.0025: largest |z|, average z^2"
    claims.check(claim, text, passed, enough=enough)

# %% [markdown]
# Would the test notice a wrong prediction? Suppose that every action had a gust of
# its own. This predicts the same means but other variances. Here $\sum z^2$ is at least hundreds of times its expected value, and the test rejects it:

# %%
independent = jl.jipe2(grid, policy, tol=1e-10, coupling="independent").moments.gap_variance[at]
wrong = (played.variance - independent) / variance_se
unlike = normal_p_values(wrong)[1] < 0.0025
claim = "variances without the coupling are rejected, p < 0.0025: average z^2"
claims.check(claim, f"{np.mean(wrong**2):.0f}", unlike, enough=enough)

# %% [markdown]
# ## 4.3 The bound, with two denominators
#
# Mean and variance give Cantelli's bound:
#
# $$P(G \le 0) \le \frac{\sigma_G^2}{\sigma_G^2 + \mu_G^2} \quad\text{if } \mu_G > 0, \qquad \text{else } P(G \le 0) \le 1.$$
#
# The paper shows the distribution of $\hat P(G \le 0)$ / bound over all gaps, with two denominators: moments from JIPE-2
# (blue) and from Monte Carlo (orange), "separating intrinsic bound looseness from moment-estimation error". It does not say whether numerator and denominator come from one sample; here they do.

# %%
inferior = played.prob_worse + played.prob_tie
bounds = {
    "JIPE-2": m.inferiority_bound[at],
    "Monte Carlo": jl.cantelli_bound(played.mean, played.variance),
}
ratios = {name: inferior / bound for name, bound in bounds.items()}
largest = ratios["JIPE-2"].max()
claim = "moments from JIPE-2: largest ratio <= 1"
claims.check(claim, f"{largest:.2f}", largest <= 1, enough=enough)

# %%
table = pd.DataFrame(gaps, columns=["state", "action", "alternative"]).assign(
    predicted_mean=mean,
    mc_mean=played.mean,
    mc_mean_se=played.mean_error,
    predicted_variance=variance,
    mc_variance=played.variance,
    mc_variance_se=played.variance_error,
    mc_inferior=inferior,
    bound_jipe2=bounds["JIPE-2"],
    bound_mc=bounds["Monte Carlo"],
)

# %% tags=["hide-input"]
layout = [["mean", "variance", "ratio"], ["mean z", "variance z", "ratio"]]
of_means = mean, played.mean, played.mean_error
of_variances = variance, played.variance, played.variance_error


def draw_errors(ax, below, predicted, simulated, errors):
    """Simulated against predicted values; below, their differences in standard errors."""
    below.axhspan(-2.0, 2.0, color="0.9", lw=0, zorder=0)
    below.axhline(0.0, color="0.6", lw=0.8, zorder=0)
    z = (simulated - predicted) / errors
    for marker, action in zip("os^D", np.unique(at[2]), strict=False):
        rows = at[2] == action
        bars = 2.0 * errors[rows]
        figures.agreement(ax, predicted[rows], simulated[rows], label=ACTIONS[action], bars=bars)
        below.plot(predicted[rows], z[rows], marker, ms=3.0, mfc="none", mew=0.7)
    limit = max(3.4, 1.1 * np.abs(z).max())
    below.set(ylim=(-limit, limit), yticks=[-2, 0, 2], xlabel="predicted (JIPE-2)")
    ax.tick_params(labelbottom=False)


def draw_moments(axes):
    """Means and variances, and the errors below them."""
    for name, values in zip(scores, (of_means, of_variances), strict=True):
        draw_errors(axes[name], axes[f"{name} z"], *values)
        axes[name].set_title(f"gap {name}")
    axes["mean"].set_ylabel("Monte Carlo")
    axes["mean z"].set_ylabel("error / s.e.")
    axes["mean"].legend(
        title="alternative",
        loc="upper left",
        handletextpad=0.1,
        handler_map={ErrorbarContainer: HandlerErrorbar(yerr_size=0.0)},
    )


def draw_ratios(ax, shares, **legend):
    """How many of the gaps have a share of at most x; one thick and one thin curve."""
    for (name, share), line, width in zip(shares.items(), ("-", "--"), (2.6, 1.2), strict=True):
        seaborn.ecdfplot(x=share, ax=ax, label=name, ls=line, lw=width)
    ax.axvline(1.0, color="0.6", lw=0.8)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), ylabel="share of gaps")
    ax.legend(**legend)


# %%
fig, axes = plt.subplot_mosaic(layout, figsize=(6.75, 2.6), height_ratios=[5, 2])
draw_moments(axes)
draw_ratios(axes["ratio"], ratios, title="moments from", loc="upper left")
axes["ratio"].set(xlabel=r"$\hat P(G \leq 0)$ / bound", title="tightness of the bound")
chapter.save(fig, "fig6_gap_validation", table, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 4.1.** Our version of the paper's Figure 6. Left and middle: predicted gap means and variances against Monte Carlo, one mark for each gap, shaped by the alternative action; below, the errors in units of their standard errors, with a grey band of two. Right: the share of gaps whose
# ratio of $\hat P(G \le 0)$ to the bound is at most $x$, with moments from JIPE-2 (blue) and from the sample itself (orange, dashed). Note that predictions lie on the diagonal, and all ratios below one.
#
# <!-- alt: Three panels. In the first two, marks lie on the diagonal and their errors below scatter within three standard errors. In the third, two nearly identical distribution functions of the ratio rise between 0.05 and 0.87 and stay left of the line at one. -->

# %% [markdown]
# The two curves nearly coincide. So looseness of the bound is intrinsic: this is what the paper draws both for.
#
# All ratios are below one; if numerator and denominator come from one sample, none can exceed one. A sample is a distribution too, with
# its own mean, variance and share of $G \le 0$, and Cantelli's inequality holds for every distribution. Only the blue curve can fail. With a handful of pairs it does, by
# chance alone:

# %%
few = simulated(few_pairs)
share = few.prob_worse + few.prob_tie
blue = (share > bounds["JIPE-2"]).sum()
assert np.all(share <= jl.cantelli_bound(few.mean, few.variance))  # orange, as for every sample
claims.check(f"{few_pairs} pairs per gap: ratios above 1, blue > 0", blue, blue > 0)

# %% [markdown]
# The condition $\mu_G > 0$ is part of the bound ([decision 2](../book/paper.md#decision-2)). On this grid it is needed. At some cells the policy's action is *not* better on average: up and right
# commute away from the walls, and at the left wall, where a gust can undo a move to the right but cannot push an agent that goes up, up is better. What would the formula say without its condition? Reverse every gap,
# $Z(s, b) - Z(s, \pi(s))$, and look where the mean is now negative:

# %%
no_better = mean <= 1e-8
formula = variance / (variance + mean**2)
violated = played.prob_better + played.prob_tie > formula
text = f"{violated[~no_better].sum()} of {(~no_better).sum()}"
wrong = no_better.any() and np.all(violated[~no_better])
claim = "reversed gaps with mean < 0: P(G <= 0) > formula, in all"
claims.check(claim, text, wrong, enough=enough)

# %% [markdown]
# ## 4.4 Wins, ties, losses
#
# $P(G \le 0)$ is not the probability of doing worse. Nothing is paid before the goal, so branches that merge, or reach the goal at the same
# time, have gap *exactly* zero. `gap_law` gives the probabilities of wins, ties and losses without sampling error, here to twelve digits (chapter 9).

# %%
signs = jl.laws.gap_law(grid, policy, gaps=gaps, width=1e-6)
brackets = np.array([(law.prob_better, law.prob_worse) for law in signs])  # (K, 2, 2)
assert np.ptp(brackets, axis=2).max() < 1e-12
wins, losses = brackets.mean(2).T
ties = 1.0 - wins - losses
certain = (losses < 1e-12) & (played.prob_worse == 0.0)
error = np.sqrt(losses * (1 - losses) / num_pairs)[~certain]
z = (played.prob_worse - losses)[~certain] / error
p = normal_p_values(z)[0]
claim, value = "P(G < 0), simulated = exact, p > 0.0025: largest |z|", f"{np.abs(z).max():.2f}"
claims.check(claim, value, p > 0.0025, enough=enough)
average = [f"{x.mean():.3f}" for x in (losses, ties)]
claims.check("on average P(G<0) < P(G=0)", ", ".join(average), losses.mean() < ties.mean())

# %%
exact_bound = bounds["JIPE-2"]
slack = exact_bound - losses - ties
assert slack.min() > 0  # the bound holds for the exact probabilities
never = losses < 1e-12
most = np.argmax(exact_bound * never)
text, tied = f"{exact_bound[most]:.2f}, {ties[most]:.2f}", ties[most] > exact_bound[most] / 2
claims.check(f"{never.sum()} gaps with P(G<0) = 0: largest bound, ties > half of it", text, tied)

# %% [markdown]
# Some gaps are *never* negative, and yet their "inferiority bound" can be as large as 0.60. It bounds ties as well as losses, and
# of these 0.60 the ties take up 0.49. The inequality is really about wins. If $\mathbb E G > 0$,
#
# $$(\mathbb E G)^2 \le \big(\mathbb E[G\,1\{G > 0\}]\big)^2 \le P(G > 0)\;\mathbb E[G^2] \quad\Longrightarrow\quad P(G > 0) \ge \frac{\mu_G^2}{\mu_G^2 + \sigma_G^2},$$
#
# and the bound cannot say how the remainder is divided between ties and losses. If you know how often branches
# tie, you may subtract: $P(G < 0) \le \text{bound} - P(G = 0)$.

# %%
strict = exact_bound - ties
assert np.all(losses <= strict + 1e-12)
print(f"bound on average {exact_bound.mean():.2f}, less ties {strict.mean():.2f}")

# %% tags=["hide-input"]
data = table[["state", "action", "alternative"]].assign(
    losses=losses,
    ties=ties,
    wins=wins,
    bound=exact_bound,
    mc_losses=played.prob_worse,
    mc_ties=played.prob_tie,
    mc_wins=played.prob_better,
)
ordered = data.iloc[np.lexsort((losses + ties, exact_bound))]
tight = (losses + ties) / exact_bound
shares = {r"$P(G \leq 0)$ / bound": tight, "$P(G < 0)$ / bound": losses / exact_bound}


def draw_signs(ax, colors):
    """Losses, ties and wins of every gap as stacked bars, and the bound as a line over them."""
    ordered[list(colors)].plot.bar(stacked=True, color=colors, width=1, lw=0, ax=ax)
    ax.step(range(len(gaps)), ordered.bound, where="mid", color="black")
    ax.set(xlabel="gaps, by size of the bound", ylabel="probability", ylim=(0, 1.02))
    ax.set_xticks(range(0, len(gaps), 10), range(0, len(gaps), 10), rotation=0)
    labels = [r"bound on $P(G \leq 0)$", "$P(G<0)$", "$P(G=0)$", "$P(G>0)$"]
    ax.legend(labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6.75, 2.5), width_ratios=[2, 1])
draw_signs(left, {"losses": "#D55E00", "ties": "#F0C75E", "wins": "#D6E6F2"})
draw_ratios(right, shares)
right.set_xlabel("ratio")
chapter.save(fig, "fig_gap_signs", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 4.2.** Left: the exact probabilities of losses, ties and wins for every gap, ordered by the bound on $P(G \le 0)$ (black line). Right: the distribution over all gaps of
# $P(G \le 0)$ and of $P(G < 0)$, each divided by the bound. Note that ties take up much of the bound.
#
# <!-- alt: Left, 72 stacked bars of losses in orange, ties in yellow and wins in pale blue, with a rising black line of the bound that stays above the orange and yellow part; for the last gaps it is one. Right, two distribution functions; the one for losses alone lies far to the left of the one that includes ties. -->

# %% [markdown]
# ## 4.5 What independent sampling would say
#
# There are two ways to leave out the coupling. *Independent tables*: every action draws its own gust, but branches that meet still merge
# (`coupling="independent"`). *Independent returns*, of two separate simulations: branches never meet, and the variance is
# $\mathrm{Var}\,Z(s, a) + \mathrm{Var}\,Z(s, b)$.

# %%
state, action, other = at
apart = m.variance[state, action] + m.variance[state, other]
factors = {"tables": independent / variance, "returns": apart / variance}
text = ", ".join(f"{np.mean(x):.2f} ({x.max():.2f})" for x in factors.values())
more = all(np.mean(x) > 1 for x in factors.values())
means = [round(np.mean(x), 2) for x in factors.values()]
changed = (size, gust_prob, gamma) != (5, 0.2, 0.95)
assert changed or means == [1.25, 1.43]  # exact, as the text says
claims.check("factor of Var G > 1 on average; tables, returns (largest)", text, more)

# %% [markdown]
# A shared first gust and merging are all the coupling there is here. Without the shared gust,
# variances are 25% too large on average; without both, 43%. The second factor, 1.43, is
# what the coupling saves against separate runs: to estimate a mean gap with a given error, these need 1.43 times
# as many pairs. Against runs that merge, it saves a factor of 1.25.
#
# ## What to take away
#
# - Predicted means and variances agree with simulation to within its standard errors.
# - "The ratio never exceeds one" is evidence only if the denominator does not come from the sample.
# - The bound is about *not winning*. Gaps have atoms at zero, whose average is half of the average bound, so report $P(G < 0)$, $P(G = 0)$ and $P(G > 0)$ separately.
#
# ## Exercises
#
# **Exercise 1.** Evaluate the grid without wind, `jl.windy_gridworld(5, gust_prob=0.0)`. What are the gap variances, and
# what does `inferiority_bound` say of up against right where they are equally good?
#
# <details><summary>Hint</summary>
#
# What is the bound if the variance is zero and the mean is positive, and what if the mean is zero?
#
# </details>
#
# <details><summary>Solution</summary>
#
# Nothing is random, so all gap variances are zero. Where the mean is positive the bound is $0/(0 + \mu_G^2) = 0$: certainly better. Where up and right are equally good the gap is
# exactly zero, $P(G \le 0) = 1$, and the bound says 1, as it should.
#
# </details>

# %% tags=["hide-cell"]
calm = jl.jipe2(jl.windy_gridworld(5, gust_prob=0.0), jl.goal_policy(5)).moments
up, right, left = 0, 1, 3
assert calm.gap_variance.max() < 1e-9
bounds_seen = calm.inferiority_bound[12, [up, right], [right, left]].tolist()
assert bounds_seen == [1.0, 0.0]  # up against right, right against left

# %% [markdown]
# **Exercise 2.** Use the third moment (`jipe(order=3)`) to tell gaps with rare large losses from gaps with rare large wins. Does
# it explain for which gaps the slack, the bound minus $P(G \le 0)$, is large?
#
# <details><summary>Hint</summary>
#
# Where is the sign of the third central moment negative? Then ask which distribution attains Cantelli's bound.
#
# </details>
#
# <details><summary>Solution</summary>
#
# The sign of the third central moment distinguishes them: negative for rare large losses, positive for rare large wins. On this grid nearly all gaps are skewed towards wins. It explains the slack in part: among gaps with a positive mean, the slack falls as
# skewness grows (a rank correlation of about $-0.65$). The distribution that attains Cantelli's bound has all its
# mass at 0 and at one larger value: it ties or wins, and never loses. A gap with little below zero and a long tail of wins comes closest to it.
#
# </details>

# %% tags=["hide-cell"]
thirds = jl.jipe(grid, policy, order=3, tol=1e-10).moments
skewness = [thirds.gap_central_moment(gap, 3) for gap in gaps] / variance**1.5
shape = pd.DataFrame({"skewness": skewness, "slack": slack})[~no_better].corr("spearman")
print(f"{(skewness < -1e-6).sum()} of {len(gaps)} skewed to losses; {shape.iloc[0, 1]:.2f}")
assert shape.iloc[0, 1] < 0

# %% [markdown]
# **What to read next.** [Reading the paper](../book/paper.md) has every equation and its function. Chapters 5 and 6 go on to Atari games. Chapter 9 encloses the whole distribution of a gap.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
