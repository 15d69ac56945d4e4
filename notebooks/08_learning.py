# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 8. Learning from samples, and with features
#
# If outcome tables are unknown, or too many, two algorithms of the paper help.
# **Incremental JIPE-2** (Section 5.2) needs nothing but queries. **Projected JIPE-2** (Section 5.1, Appendix B) looks for the
# moments in the span of features.
#
# **What you will learn.** How fast sampled updates converge; which coordinates save most of the updates; how to
# learn gaps from a simulator of your own; and what can go wrong with features.
#
# **What it needs.** Sections 1.3 to 1.9, least squares, and stochastic approximation. To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
num_seeds = 10  # at least 5
num_updates = 300000  # at least 200000
simulator_updates = 2000000  # at least 1000000
out_dir = ""

# %%
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from scipy import stats

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert num_seeds >= 5, f"{num_seeds=}: at least 5"
assert num_updates >= 200000, f"{num_updates=}: at least 200000"
assert simulator_updates >= 1000000, f"{simulator_updates=}: at least 1000000"
seeds = [np.random.SeedSequence([seed, k]) for k in range(num_seeds)]

# %% [markdown]
# ## 8.1 One coordinate at a time
#
# One update changes one coordinate $i$, picked at random, at its $n_i$-th visit:
#
# $$M(i) \leftarrow \big(1-\alpha\big) M(i) + \alpha\, \hat T_2(M, i), \qquad \alpha = n_i^{-p}.$$
#
# The paper's coordinates are all $|\mathcal X| + |\mathcal X|^2$ entries of $(\mu, \Sigma)$, where
# $\mathcal X = \mathcal S \times \mathcal A$. Between *different* states, however, the operator uses $\Sigma$ only through its policy average
# $W(s, t)$ (section 7.1), so it is enough to learn that. The **centred** form has such
# $|\mathcal S||\mathcal A| + |\mathcal S||\mathcal A|^2 + |\mathcal S|^2$ coordinates, and it averages over the next action
# instead of drawing it. On the 3x3 grid these are 261 coordinates instead of 1,332, so each is visited 5.1 times as often. With errors of order
# $n^{-0.35}$ (see below), the full form should end with an error at least $5.1^{0.35} \approx 1.8$ times as large.

# %%
grid = jl.windy_gridworld(3, gamma=0.8)
uniform = jl.uniform_policy(grid)
exact = jl.jipe2(grid, uniform, tol=1e-10).moments
learn = partial(jl.incremental_jipe2, grid, uniform, num_updates, reference=exact)
learn = partial(learn, step_size=(1.0, 0.7))
runs = {form: [learn(rng=s, form=form) for s in seeds] for form in ("full", "centred")}

# %%
updates = runs["full"][0].updates
errors = {form: np.array([run.errors for run in each]) for form, each in runs.items()}
ratio = np.median(errors["full"][:, -1]) / np.median(errors["centred"][:, -1])
larger = ratio > (1332 / 261) ** 0.35
claims.check("final error, full / centred form: > 1.77", f"{ratio:.1f}", larger)

# %% [markdown]
# ### The rate
#
# Two things must happen: the initial guess must be forgotten, and the noise must average out. After $n$ visits of a coordinate the noise that is left is of order $n^{-p/2}$. The error of the initial guess shrinks by a factor of about
# $1 - (1-\gamma)\,k^{-p}$ at visit $k$. For $p < 1$ the product of these factors falls faster than any power of $n$. (This sets in late: at $\gamma = 0.99$ and $p = 0.8$ the product is still 0.47 after a million visits.) At $p = 1$ it
# is of order $n^{-(1-\gamma)}$. So for $\gamma \ne 1/2$ the error is at most of the following order, which is attained in noisy worlds with an absorbing state that pays:
#
# $$n^{-p/2} \quad (p < 1), \qquad n^{-\min(1/2,\; 1-\gamma)} \quad (p = 1).$$
#
# [Szepesvári (1997)](../book/background.md#ref-szepesvari) proves the second rate for Q-learning, and [Even-Dar and Mansour (2003)](../book/background.md#ref-evendar) show what it costs: at $p = 1$ the number of visits is exponential in $1/(1-\gamma)$. (At $\gamma = 1/2$ a logarithm is added, $\sqrt{\log n / n}$.) We measure the slope for three powers at $\gamma = 0.3$, and at $p = 1$ also for $\gamma = 0.6$ and
# $0.8$, where theory gives $-0.40$ and $-0.20$ instead of $-0.50$. The error is the largest over all coordinates, and its slope is fitted over a factor of thirty in $n$.
# We allow a deviation of 0.12: if the error at one end is off by a factor of 1.5, the slope between the ends is off by $\log 1.5 / \log 30 = 0.12$.

# %%
powers = (0.6, 0.8, 1.0)
quick = jl.windy_gridworld(2, gamma=0.3)
truth = jl.jipe2(quick, jl.uniform_policy(quick), tol=1e-12).moments
study = partial(jl.incremental_jipe2, quick, jl.uniform_policy(quick), num_updates, reference=truth)
studies = {p: [study(step_size=(1.0, p), rng=s) for s in seeds] for p in powers}
curves = {p: np.array([run.errors for run in each]) for p, each in studies.items()}
visits = studies[0.8][0].updates / studies[0.8][0].values.size

# %%
slow = {}  # gamma: visits, and the errors of five seeds at p = 1
for gamma in (0.6, 0.8):
    jm = jl.windy_gridworld(2, gamma=gamma)
    answer = jl.jipe2(jm, jl.uniform_policy(jm), tol=1e-12).moments
    most = min(num_updates, 1_000_000)  # the slope shows by then
    learn = partial(jl.incremental_jipe2, jm, jl.uniform_policy(jm), most, step_size=(1.0, 1.0))
    each = [learn(reference=answer, rng=s) for s in seeds[:5]]
    slow[gamma] = each[0].updates / each[0].values.size, np.array([run.errors for run in each])


# %%
def slope_of(visits, errors):
    """Slope of the median error on logarithmic axes, over the last factor of thirty in visits."""
    late = visits > visits[-1] / 30
    middle = np.median(errors, axis=0)[late]
    return np.polyfit(np.log(visits[late]), np.log(middle), 1)[0]


slopes = {(0.3, p): (slope_of(visits, each), -p / 2) for p, each in curves.items()}
slopes |= {(g, 1.0): (slope_of(*each), g - 1.0) for g, each in slow.items()}
for theory, kinds in (("p/2", [(0.3, p) for p in powers]), ("1 - gamma", [(0.6, 1), (0.8, 1)])):
    text = ", ".join(f"{slopes[kind][0]:.2f}" for kind in kinds)
    right = all(abs(np.subtract(*slopes[kind])) < 0.12 for kind in kinds)
    claim = f"slopes at (gamma, p) = {', '.join(map(str, kinds))}: -({theory}) +- 0.12"
    claims.check(claim, text, right)

# %%
both = {"updates": updates, "visits": visits}
both |= {f"{k}, seed {i}": e for k, each in errors.items() for i, e in enumerate(each)}
both |= {f"p {w}, seed {i}": e for w, each in curves.items() for i, e in enumerate(each)}
for gamma, (at, each) in slow.items():
    both[f"visits, gamma {gamma}"] = at
    both |= {f"p 1.0, gamma {gamma}, seed {i}": e for i, e in enumerate(each)}


# %%
def band(ax, x, runs, label, line):
    """Median and range from the 10% to the 90% quantile of runs (num_runs, len(x))."""
    low, middle, high = np.quantile(runs, [0.1, 0.5, 0.9], axis=0)
    (drawn,) = ax.loglog(x, middle, ls=line, label=label)
    ax.fill_between(x, low, high, color=drawn.get_color(), alpha=0.2, lw=0)


# %%
fig, (left, right) = plt.subplots(1, 2)
for (form, each), line in zip(errors.items(), ("-", "--"), strict=True):
    band(left, updates, each, form, line)
left.set(
    title="3x3 gridworld, $\\gamma = 0.8$", xlabel="updates", ylabel=r"$\|M_k - M^\pi\|_\lambda$"
)
for (power, each), line in zip(curves.items(), ("-", "--", "-."), strict=True):
    band(right, visits, each, f"$p = {power}$, $\\gamma = 0.3$", line)
for (gamma, each), line in zip(slow.items(), (":", (0, (5, 1, 1, 1, 1, 1))), strict=True):
    band(right, *each, f"$p = 1.0$, $\\gamma = {gamma}$", line)
right.set(title="2x2 gridworld", xlabel="visits per coordinate")
left.legend(), right.legend()
chapter.save(fig, "fig_incremental", both, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 8.1.** Errors of incremental JIPE-2, median and range over seeds. Left: the paper's coordinates against those of the centred form, steps $n^{-0.7}$.
# Right: three powers $p$ of the step size at $\gamma = 0.3$, where theory gives lines of slope $-p/2$, and $p = 1$ at two larger $\gamma$, where it gives $-(1 - \gamma)$. Note that at $\gamma = 0.3$ the largest $p$ falls fastest, and that at $p = 1$ the error falls more slowly the larger $\gamma$ is.
#
# <!-- alt: Two panels of falling curves on logarithmic axes. Left, the centred form's error falls several times earlier than the full form's and ends below it. Right, three curves for gamma 0.3 fall as straight lines, the steeper the larger p is; at p equal to 1 the curve for gamma 0.6 falls less steeply and the one for 0.8 is the flattest. -->

# %% [markdown]
# ## 8.2 A simulator of your own
#
# Here is the depot of [Use it on your own simulator](../book/own_simulator.md). A query compares orders under one
# demand.


# %%
def day(stock, order, demand):
    have = min(stock + order, 11)
    sold = min(have, demand)
    return 3.0 * sold - 1.5 * order, have - sold


class Depot:
    num_states, num_actions, gamma = 12, 5, 0.9

    def query(self, state, actions, rng):
        demand = rng.poisson(3)
        days = [day(state, order, demand) for order in actions]
        return [reward for reward, _ in days], [left for _, left in days]


# %% [markdown]
# A gap variance is a small difference of large second moments, so it is easily lost in their noise. The **centred** form learns
# covariances directly. Let $m$ be the learned mean of each state's return, $c$ the learned covariance between two states, $C$ that between two actions of one state, and
# $y = R + \gamma\, m(S')$. The target of $C(s, a, b)$ is then, for $a \ne b$, $(y_a - \mu_a)(y_b - \mu_b) + \gamma^2 c(S'_a, S'_b)$. For $a = b$ there is one branch only. Its next action is one, too, so $c$ gives way to a variance, and the target is $(y_a - \mu_a)^2 + \gamma^2\, \mathrm{Var}\, Z(S'_a, A')$ with
#
# $$\mathrm{Var}\, Z(s', A') = \sum_{a'} \pi(a' \mid s') \Big( C(s', a', a') + \big(\mu(s', a') - m(s')\big)^2 \Big) .$$
#
# Theorem 5.4 does not cover this form as a whole, because its targets contain products of learned means. But the means do not depend on covariances, so they converge as in the theorem, under its conditions on picks and steps. Covariances then follow a contraction with factor $\gamma^2$, whose bias vanishes as the means converge.

# %%
policy = np.full((12, 5), 0.2)
settings = {"step_size": (1.0, 0.75), "checkpoints": 2}
jl.incremental_jipe2(Depot(), policy, 5000, **settings, form="centred", rng=seed)

# %% [markdown]
# We know the distribution of the demand, so we can also write down tables and solve them
# exactly. They answer the same queries in compiled code. (A learned gap variance can be negative. The library then returns `nan`, which
# counts as zero here.)

# %%
demand = stats.poisson.pmf(np.arange(31), 3)
depot = jl.JMDP.from_step(12, 5, 0.9, demand / demand.sum(), day)
right = jl.jipe2(depot, policy).moments

# %%
pairs = np.triu_indices(5, 1)
target = right.gap_variance[:, *pairs]
repeat = partial(jl.incremental_jipe2, depot, policy, simulator_updates, **settings)
many = {}  # (seeds, states, pairs of orders)
for form in ("full", "centred"):
    learned = [repeat(form=form, rng=s).moments.gap_variance[:, *pairs] for s in seeds]
    many[form] = np.nan_to_num(learned)
squared = {f: ((g - target) ** 2).mean((1, 2)) for f, g in many.items()}
share = np.mean(squared["centred"] < squared["full"])
claim = "depot, share of seeds where the centred form is closer: >= 0.9"
claims.check(claim, f"{share:.2f}", share >= 0.9)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.2, 2.7), sharex=True, sharey=True)
data = {"exact": target.ravel()}
for ax, (form, learned) in zip(axes, many.items(), strict=True):
    low, middle, high = np.quantile(learned.reshape(len(learned), -1), [0.1, 0.5, 0.9], axis=0)
    figures.agreement(ax, target, middle, label=form, bars=[middle - low, high - middle])
    ax.set(title=f"{form} form", xlabel="exact")
    data |= {f"{form}, 10%": low, f"{form}, median": middle, f"{form}, 90%": high}
axes[0].set_ylabel("learned gap variance")
chapter.save(fig, "fig_depot", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 8.2.** Gap variances of the depot, learned from queries, against the exact ones; one mark for each state and pair of
# orders. Marks are medians over seeds, bars reach from the 10% to the 90% quantile. Note that only the centred form has learned the gaps.
#
# <!-- alt: Two scatters of learned against exact gap variances, each with the diagonal. Left, for the full form, bars are so long that they reach over a large part of the panel. Right, for the centred form, marks lie along the diagonal with short bars. -->

# %% [markdown]
# ## 8.3 With features
#
# Projected JIPE-2 (section 1.9) alternates $T_2$ with weighted least squares in the features $\phi(x)$. If the modulus $\kappa$ of $\Pi\, T_2$ is below 1, it converges, and (78) bounds
# the error by $1/(1 - \kappa)$ times that of the best answer $\Pi M^\pi$ that the features can express.
#
# So if they can express the truth, the method finds it where weights are positive. With fewer features, here radial bumps on the 5x5 grid with a copy for each action, the
# error falls as the number of bumps grows and stays below the bound. **This is no promise about gaps.** With 8, 20 and 40 such features, the average gap variance is 40, 6 and 3.5 times as
# large as it should be.
#
# These features say little about what two actions have in common. Take instead the average of the same bumps over **where the action leads**, $\phi(s, a) = \mathbb E\,\psi(S'^{(a)})$ with bumps
# $\psi$ of a cell; with one bump for each cell it is the distribution of the next cell. Why should they
# help? A return is $R + \gamma Z(S', A')$, and on this grid the reward is decided by the next cell. So means are linear in the distribution of the next cell, and second moments between
# *different* states are linear in each of the two: 25 features express them all. What they cannot express is pairs at *one* state, an action with itself or with another, whose next cells are drawn together.

# %%
exact_features = jl.projected_jipe2(grid, uniform, jl.tabular_features(grid))
worst = np.abs(exact_features.moments.gap_variance - exact.gap_variance).max()
assert worst < 1e-5  # tabular features give the exact gaps

# %%
wide, goal = jl.windy_gridworld(5), jl.goal_policy(5)
reference = jl.jipe2(wide, goal, tol=1e-10).moments
bumps = {c: jl.action_features(jl.rbf_features(5, 5, c), 4) for c in (1, 2, 3)}
fits = {phi.shape[-1]: jl.projected_jipe2(wide, goal, phi) for phi in bumps.values()}
sizes = list(fits)
reached = [fits[d].approximation_error(reference) for d in sizes]
allowed = [fits[d].approximation_bound(reference) for d in sizes]
print("errors", np.round(reached, 3), "bounds", np.round(allowed, 1))
assert np.all(np.array(reached) <= allowed)  # the theorem
assert np.all(np.diff(reached) < 0)

# %%
next_cell, _ = wide.marginal_mdp()  # (25, 4, 25)
ahead = [next_cell @ jl.rbf_features(5, 5, c) for c in (2, 3, 4)] + [next_cell]
best = {phi.shape[-1]: jl.projected_jipe2(wide, goal, phi) for phi in ahead}
paid, value = np.eye(25)[4], (goal * reference.mean).sum(1)  # only the goal pays
later = np.einsum("sa,satb,tb->st", goal, reference.full_second(), goal)
leak = 0.95 * (np.outer(paid, value) + np.outer(value, paid))
Theta = np.outer(paid, paid) + leak + 0.95**2 * later
told = np.einsum("sai,ij,tbj->satb", next_cell, Theta, next_cell, optimize=True)
errors = np.abs(told - reference.full_second()).transpose(0, 2, 1, 3)
assert (
    errors[~np.eye(25, dtype=bool)].max() < 1e-6
)  # all second moments of different states are expressed

# %% [markdown]
# The column *norm* is the error that the theorem bounds. *Gap error* is the average error of a gap variance divided by the average gap variance, and
# *gap ratio* the average fitted gap variance divided by the average true one. Who says that all gap variances are zero has a gap error of one.

# %%
true_gaps = reference.gap_variance[:, *np.triu_indices(4, 1)]
rows = []
for name, each in {"bumps": fits, "where it leads": best}.items():
    for d, fit in each.items():
        told = fit.moments.gap_variance[:, *np.triu_indices(4, 1)]
        apart = np.abs(np.nan_to_num(told) - true_gaps).mean() / true_gaps.mean()
        error = fit.approximation_error(reference)
        rows.append((name, d, error, apart, np.nanmean(told) / true_gaps.mean()))
columns = ["features", "d", "norm", "gap error", "gap ratio"]
by_map = pd.DataFrame(rows, columns=columns).set_index(["features", "d"])
by_map.round(4)

# %%
gap_errors = by_map["gap error"]
forty, last = gap_errors["bumps", 40], gap_errors["where it leads", 25]
claim = "gap error: bumps, d = 40 > 1 > where it leads, d = 25"
claims.check(claim, f"{forty:.2f}; {last:.2f}", forty > 1 > last)
ahead = gap_errors["where it leads"]
assert ahead[5] < ahead[10]  # more features are not always better

# %% [markdown]
# With 25 features that look one step ahead, the gap variances are off by less than a third on average. With 40 bumps they are off by more than twice their size. The error in the theorem's norm falls to 0.002, because
# means and all pairs at different states can now be expressed. The gap error that remains comes from pairs at one state.
#
# **The weights decide what is learned** ([decision 10](../book/paper.md#decision-10)). The paper's weights are a stationary distribution of the pair chain. Without common noise, all its mass is on the diagonal $x = y$
# if the chain of one branch is irreducible and aperiodic. This determines variances, but not covariances and therefore not gaps. The
# discounted pair occupancy $\nu_2 = (1-\eta)\sum_t \eta^t \xi_0 P_2^t$ starts from a distribution $\xi_0$ of pairs, more than half of it on pairs at one state. With $\gamma^2 < \eta < 1$ (here $\eta = \gamma$) it keeps weight on pairs off the
# diagonal. Below, both are used on a random ergodic model with exact features, so that nothing but the weights can go wrong.

# %%
rng = np.random.default_rng(seed)
probs = rng.dirichlet(np.ones(6), size=(6, 3))
ergodic = jl.JMDP.from_mdp(probs, rng.uniform(-1, 1, (6, 3, 6)), gamma=0.8)
mixed = jl.uniform_policy(ergodic)
answer = jl.jipe2(ergodic, mixed, tol=1e-10).moments
solve = partial(jl.projected_jipe2, ergodic, mixed, jl.tabular_features(ergodic))
by_weights = {w: solve(weights=w) for w in ("occupancy", "stationary")}

# %%
laws = {w: sol.pair_weights for w, sol in by_weights.items()}
mass = {w: law.sum() - np.einsum("sasa->", law) for w, law in laws.items()}
wrong = {
    w: np.abs(np.nan_to_num(s.moments.gap_variance) - answer.gap_variance).max()
    for w, s in by_weights.items()
}
one, other = mass["occupancy"], mass["stationary"]
assert other < 1e-10 < one  # stationary weights are on the diagonal alone
one, other = wrong["occupancy"], wrong["stationary"]
lost = one < 1e-4 < other
claim = "gap variance error: occupancy < 1e-4 < stationary"
claims.check(claim, f"{one:.6f}, {other:.2f}", lost)

# %%
data = {"exact": answer.gap_variance} | {w: s.moments.gap_variance for w, s in by_weights.items()}
data |= {f"{w} weights": s.pair_weights for w, s in by_weights.items()}
columns = {name: pd.Series(np.ravel(values)) for name, values in data.items()}
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.4))
upper = np.triu_indices(3, 1)
for ax, (name, sol) in zip(axes, by_weights.items(), strict=False):
    seen = np.ma.masked_less(sol.pair_weights.reshape(18, 18), 1e-4)
    image = ax.imshow(seen, "viridis_r", norm=LogNorm(1e-4, 1e-1))
    ax.grid(visible=False)
    fig.colorbar(image, ax=ax, shrink=0.75)
    ax.set(facecolor="0.93", title=f"{name} weights", xlabel="$(s, a)$", xticks=[], yticks=[])
    ax.set_ylabel(r"$(\tilde s, \tilde a)$")
    both = [m.gap_variance[:, *upper] for m in (answer, sol.moments)]
    figures.agreement(axes[2], *both, label=name)
axes[2].set(title="gap variance", xlabel="exact", ylabel="projected")
axes[2].legend()
chapter.save(fig, "fig_weights", pd.DataFrame(columns), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 8.3.** The weights of pairs of state-actions, on a logarithmic scale (left: discounted occupancy; middle: the paper's stationary distribution; grey: less than $10^{-4}$), and the gap variances
# that exact features give with each (right). Note that stationary weights leave the gaps undetermined.
#
# <!-- alt: Two square heat maps and a scatter. Occupancy weights fill the whole square; stationary weights lie on the diagonal alone. In the scatter the occupancy's gap variances lie on the diagonal, and those of the stationary weights are far from it. -->

# %% [markdown]
# **The cone decides what remains possible** ([decision 11](../book/paper.md#decision-11)). The constraint $\Theta \succeq 0$ keeps second moments positive
# semidefinite, but it allows $\mathrm{Var} = \Sigma - \mu^2$ to be negative. The augmented cone
# $\begin{pmatrix}1&\theta^\top\\\theta&\Theta\end{pmatrix} \succeq 0$ does not, and $T_2$ never leaves it. With 20 features of bumps, the least variance is negative in the first cone only:

# %%
phi = bumps[2]
cones = {c: jl.projected_jipe2(wide, goal, phi, cone=c) for c in ("augmented", "psd", "none")}
variances = {c: np.einsum("saa->sa", s.moments.covariance).ravel() for c, s in cones.items()}
gram = {c: np.linalg.eigvalsh(s.Theta)[0] / np.abs(s.Theta).max() for c, s in cones.items()}
least = {c: v.min() for c, v in variances.items()}
valid = least["psd"] < -1e-6 and least["augmented"] > 0
text = f"{least['psd']:.2f}, {least['augmented']:.2f}"
claims.check("least variance: psd < 0 < augmented", text, valid)
assert min(gram["augmented"], gram["psd"]) > -1e-9
assert gram["none"] < -1e-6

# %% [markdown]
# ## What to take away
#
# - Sampling one coordinate at a time converges at the rate that theory gives; at $\gamma$ near 1 it sets in late. Learning only what the operator uses takes far
#   fewer updates.
# - In a feature space, the *weights* must cover pairs of different actions. The *cone* must include the mean, or variances can be negative.
# - A small error in the theorem's norm does not mean that gaps are right. Look at the gaps, and prefer features that say where an
#   action leads.
#
# ## Exercises
#
# **Exercise 1.** Learn the depot's gap variances with 4 and with 16 million updates. How much smaller should the error be, and how
# much smaller is it?
#
# <details><summary>Solution</summary>
#
# The steps are $n^{-0.75}$, so the error should fall like $n^{-0.375}$: by $4^{0.375} \approx 1.7$. This is a statement
# about the late phase; after 4 million updates the initial guess still counts a little. We allow a factor of two.
#
# </details>


# %% tags=["hide-cell"]
def depot_error(updates, runs=2):
    learn = partial(jl.incremental_jipe2, depot, policy, updates, **settings, form="centred")
    each = [learn(rng=s).moments.gap_variance[:, *pairs] for s in range(runs)]
    return np.sqrt(np.mean((np.nan_to_num(each) - target) ** 2))


falls = depot_error(4_000_000) / depot_error(16_000_000)
expected = 4**0.375
assert max(1.2, expected / 2) < falls < expected * 2

# %% [markdown]
# **Exercise 2.** Give `projected_jipe2` the weights `"product"`, for which the projection has a closed form. What happens to
# the contraction, and to gaps, with exact features and with bumps?
#
# <details><summary>Solution</summary>
#
# Exact features give the exact gaps, as before: as long as all weights are positive, they matter only where the features cannot express the answer. With 20 features of bumps the
# modulus $\kappa$ rises above one: branches merge, and a product gives merged pairs less weight than arrives there.
# Then nothing bounds the error.
#
# </details>

# %% tags=["hide-cell"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)  # the point of the exercise
    product = jl.projected_jipe2(wide, goal, phi, weights="product")
    whole = solve(weights="product").moments.gap_variance
assert np.allclose(whole, answer.gap_variance, rtol=0, atol=1e-8)
assert product.contraction >= 1
assert fits[20].contraction < 1
assert not product.converged

# %% [markdown]
# **What to read next.** Chapter 7 evaluates large models whose tables are known. Chapter 5 learns moments with networks, from an Atari emulator.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
