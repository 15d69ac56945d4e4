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
# **What you will learn.** Why sampled updates converge, and how fast; which coordinates save most of the updates; how to
# learn gaps from a simulator of your own; and, in a second sitting, what projection onto features guarantees and what can go wrong.
#
# **What it needs.** Sections 1.3 to 1.7, least squares, and stochastic approximation. To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
seed = 0
num_seeds = 10  # at least 5
num_draws = 2000  # at least 1000
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
assert num_draws >= 1000, f"{num_draws=}: at least 1000"
assert num_updates >= 200000, f"{num_updates=}: at least 200000"
assert simulator_updates >= 1000000, f"{simulator_updates=}: at least 1000000"
seeds = [np.random.SeedSequence([seed, k]) for k in range(num_seeds)]

# %% [markdown]
# ## 8.1 Sampled backups
#
# What if we can only query $\mathcal J$? One way is to count: `JMDP.from_simulator` queries every state many times and returns the empirical model, which `jipe2` evaluates. Here is *up* against *down* below the goal of the 3x3 gridworld, with $\gamma = 0.8$:

# %%
grid = jl.windy_gridworld(3, gamma=0.8)
uniform = jl.uniform_policy(grid)
exact = jl.jipe2(grid, uniform, tol=1e-10).moments
counted = jl.JMDP.from_simulator(grid, num_draws, rng=seed)
estimate = jl.jipe2(counted, uniform).moments.gap_variance[5, 0, 2]
print(f"Var G: exact {exact.gap_variance[5, 0, 2]:.2f}, counted {estimate:.2f}")
assert counted.is_coupled
assert abs(estimate / exact.gap_variance[5, 0, 2] - 1) < 0.1

# %% [markdown]
# The other way needs no model. The coordinates of a collection are $\mathcal I_2 = \mathcal X \times \{\mu\} \,\cup\, \mathcal X^2 \times \{\Sigma\}$ (24). A **sampled backup** $\hat T_2(M, i)$ makes the draws of Figure 1.3 once and returns what stands inside the expectation: (25) for a mean, (26) for the diagonal, (27) for two branches. **Incremental JIPE-2** updates one coordinate at a time,
#
# $$M_{k+1}(i) = \begin{cases} (1 - \alpha_k(i))\, M_k(i) + \alpha_k(i)\, \hat T_2(M_k, i), & i = I_k, \\ M_k(i), & \text{otherwise.} \end{cases}$$
#
# This is eq. (28); $I_k$ is the coordinate picked at step $k$.
#
# **Lemma A.3.** Let rewards be in $[0, 1]$, and let $M$ and $i$ not depend on the draws of the backup. Then the noise $\omega = \hat T_2(M, i) - (T_2 M)(i)$ has mean zero, and $\mathbb E[\omega^2] \le C_0 + C_1\|M\|_\lambda^2$ with $C_0 = 8$ and $C_1 = 8\max\{\gamma^2, (2\gamma + \gamma^2\lambda)^2\}$.
#
# <details><summary>Proof</summary>
#
# The mean is zero because $T_2$ is *defined* as the expectation of what $\hat T_2$ returns. A variance is at most a second moment, and as in Lemma 5.2,
#
# $$|\hat T_2(M, i)| \le 1 + 2\gamma\|M_\mu\|_\infty + \gamma^2\|M_\Sigma\|_\infty \le 1 + (2\gamma + \gamma^2\lambda)\|M\|_\lambda$$
#
# (or $1 + \gamma\|M\|_\lambda$ for a mean). With $(1 + z)^2 \le 2 + 2z^2$ this gives the lemma, even with 2 in place of 8.
#
# </details>

# %%
rng = np.random.default_rng(seed)
guess = rng.normal(size=(9, 4)), rng.normal(size=(9, 4, 9, 4))
backed_up = jl.apply_t2(grid, uniform, *guess)
up, right, down, left = ((5, a) for a in range(4))  # below the goal
blocks = [[up], [up, up], [up, down], [up, left], [up, (1, 1)]]  # mean, diagonal, same, cross
off = []
for x in blocks:
    draws = [jl.sample_t2(grid, uniform, *guess, x, rng=rng) for _ in range(num_draws)]
    error = np.mean(draws) - backed_up[len(x) - 1][tuple(np.ravel(x))]
    off.append(abs(error) * np.sqrt(num_draws) / np.std(draws))
text = ", ".join(f"{error:.1f}" for error in off)
claim = "means of sampled backups of all kinds = T_2: errors < 5 s.e."
claims.check(claim, text, max(off) < 5)

# %% [markdown]
# **Theorem 5.4.** Let the pick $I_k$ and the step size $\alpha_k \in (0, 1]$ depend only on what was drawn before step $k$: they do not look ahead ([decision 16](../book/paper.md#decision-16)). If every coordinate is picked infinitely often, and the step sizes of its visits satisfy $\sum\alpha = \infty$ and $\sum\alpha^2 < \infty$ (29, read as in [decision 9](../book/paper.md#decision-9)), then $\|M_k - M^\pi\|_\lambda \to 0$ almost surely (30).
#
# <details><summary>Idea of the proof</summary>
#
# Write the update as
#
# $$M(i) \leftarrow M(i) + \alpha\,\big[(T_2 M)(i) - M(i) + \omega\big] .$$
#
# (a) Without noise each update pulls $M(i)$ towards $(T_2 M)(i)$, whose weighted error is by Lemma 5.2 at most $\gamma$ times that of the worst coordinate. (b) Given the past, the noise has mean zero and by Lemma A.3 a bounded variance as long as $M$ is bounded; $\sum\alpha^2 < \infty$ makes its sum converge. (c) $\sum\alpha = \infty$ keeps up the pull until $M$ has arrived. Since $\|\cdot\|_\lambda$ is a weighted maximum, coordinates may be updated one at a time, in any order. [Tsitsiklis (1994)](../book/background.md#ref-tsitsiklis) and [Jaakkola et al. (1993)](../book/background.md#ref-jaakkola) turn this into a proof.
#
# </details>

# %% [markdown]
# ## 8.2 How fast?
#
# We pick coordinates uniformly at random, and take steps $\alpha = n_i^{-p}$ at the $n_i$-th visit of coordinate $i$. The paper's coordinates are all $|\mathcal X| + |\mathcal X|^2$ entries of $(\mu, \Sigma)$, where
# $\mathcal X = \mathcal S \times \mathcal A$. Between *different* states, however, the operator uses $\Sigma$ only through its policy average
# $W(s, t)$ (section 7.1), so it is enough to learn that. The **centred** form has such
# $|\mathcal S||\mathcal A| + |\mathcal S||\mathcal A|^2 + |\mathcal S|^2$ coordinates, and it averages over the next action
# instead of drawing it. On the 3x3 grid these are 261 coordinates instead of 1,332, so each is visited 5.1 times as often. With errors of order
# $n^{-0.35}$, the full form should end with an error at least $5.1^{0.35} \approx 1.8$ times as large.

# %%
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
# $1 - (1-\gamma)\,k^{-p}$ at visit $k$. For $p < 1$ the product of these factors falls faster than any power of $n$. (This regime is reached late: at $\gamma = 0.99$ and $p = 0.8$ the product is still 0.47 after a million visits.) At $p = 1$ it
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


def late_band(ax, kind, x, runs, label, line):
    """The same from the fifth visit on, and in grey the slope that theory gives."""
    late = x >= 5
    x, runs = x[late], runs[:, late]
    band(ax, x, runs, label, line)
    half = x[len(x) // 2 :]
    theory = np.median(runs[:, -1]) * (half / half[-1]) ** slopes[kind][1]
    ax.plot(half, theory, color="0.4", lw=0.9)


# %%
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(6.75, 2.5))
right.sharey(middle)
lines = ("-", "--", "-.")
for (form, each), line in zip(errors.items(), lines, strict=False):
    band(left, updates, each, form, line)
left.set(title="3x3 grid, $\\gamma = 0.8$", xlabel="updates", ylabel=r"$\|M_k - M^\pi\|_\lambda$")
for (power, each), line in zip(curves.items(), lines, strict=True):
    late_band(middle, (0.3, power), visits, each, f"$p = {power}$", line)
for (gamma, study), line in zip({0.3: (visits, curves[1.0]), **slow}.items(), lines, strict=True):
    late_band(right, (gamma, 1.0), *study, f"$\\gamma = {gamma}$", line)
middle.set(title="2x2 grid, $\\gamma = 0.3$", xlabel="visits per coordinate")
right.set(title="2x2 grid, $p = 1$", xlabel="visits per coordinate")
for ax in (left, middle, right):
    ax.legend()
chapter.save(fig, "fig_incremental", both, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 8.1.** Errors of incremental JIPE-2, median and range over seeds. Left: the paper's coordinates against those of the centred form, steps $n^{-0.7}$.
# Middle: three powers $p$ of the step size. Right: three discount factors. Grey lines have the slopes of theory, $-p/2$ and $-\min(1/2, 1 - \gamma)$. Note that at $p = 1$ the error falls more slowly the larger $\gamma$ is.
#
# <!-- alt: Three panels of falling curves on logarithmic axes. Left, the centred form's error falls several times earlier than the full form's and ends below it. Middle, three curves for gamma 0.3 fall as straight lines along grey ones, the steeper the larger p is. Right, at p equal to 1, the curve for gamma 0.6 falls less steeply than that for 0.3, and the one for 0.8 is the flattest. -->

# %% [markdown]
# ## 8.3 A simulator of your own
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
# covariances directly. Let $m$ and $c$ be the learned mean and covariance of returns whose first actions are drawn independently from the policy, $C$ that between two actions of one state, and
# $y = R + \gamma\, m(S')$. The target of $C(s, a, b)$ is then, for $a \ne b$, $(y_a - \mu_a)(y_b - \mu_b) + \gamma^2 c(S'_a, S'_b)$. For $a = b$ there is one branch with one next action, so a variance takes the place of $c$, and the target is $(y_a - \mu_a)^2 + \gamma^2\, \mathrm{Var}\, Z(S'_a, A')$ with
#
# $$\mathrm{Var}\, Z(s', A') = \sum_{a'} \pi(a' \mid s') \Big( C(s', a', a') + \big(\mu(s', a') - m(s')\big)^2 \Big) .$$
#
# Theorem 5.4 does not cover this form, whose targets contain products of learned means. But means do not depend on covariances, so they converge as in the theorem. Covariances then follow a contraction with factor $\gamma^2$, whose bias vanishes as the means converge.

# %%
policy = np.full((12, 5), 0.2)
settings = {"step_size": (1.0, 0.75), "checkpoints": 2}
jl.incremental_jipe2(Depot(), policy, 5000, **settings, form="centred", rng=seed)

# %% [markdown]
# The distribution of the demand is known, so we can write down tables and solve them
# exactly. They answer the same queries in compiled code. We ask that the centred form be closer to the truth for nine seeds in ten, and that for every gap its median be within 15%.

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
ratio = np.median(many["centred"], axis=0) / target
near = np.all(np.abs(ratio - 1) < 0.15)
text = f"{ratio.min():.2f} to {ratio.max():.2f}, mean {ratio.mean():.2f}"
enough = simulator_updates >= 2_000_000
claim = "depot, centred form, median Var G learned / exact: within 15%"
claims.check(claim, text, near, enough=enough)

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
# orders. Marks are medians over seeds, bars reach from the 10% to the 90% quantile; a negative estimate (`nan` in the library) counts as zero. Note that only the centred form has learned the gaps. It still overestimates them, by 4% on average after two million updates and 1% after five million: the initial guess, zero, is forgotten late (section 8.2).
#
# <!-- alt: Two scatters of learned against exact gap variances, each with the diagonal. Left, for the full form, bars are so long that they reach over a large part of the panel. Right, for the centred form, marks lie along the diagonal with short bars. -->

# %% [markdown]
# ## 8.4 Features: what is guaranteed
#
# If there are too many states for a table, look for the moments in a family with few parameters (62). With features $\phi(x) \in \mathbb R^{d}$,
#
# $$\hat M_\mu(x) = \phi(x)^\top \theta, \qquad \hat M_\Sigma(x, y) = \phi(x)^\top \Theta\, \phi(y), \quad \Theta \succeq 0. \tag{63, 64}$$
#
# **Assumption B.1.** The matrix $\Phi$ of all features, one row for each $x$, has full column rank: no feature is a combination of the others.
#
# **Assumption B.2.** The chain of $x = (s, a)$ under $\pi$, with transition matrix $P^\pi$, is ergodic, that is, irreducible and aperiodic: its stationary distribution $\nu$ is unique and positive everywhere.
#
# Means are measured in $\|f\|_\nu^2 = \sum_x \nu(x) f(x)^2$ (65). For second moments, let $P_2$ be the transition matrix of the **pair chain**: two branches that move as in Figure 1.3. Let $\nu_2$ be one of its stationary distributions, $\nu_2 P_2 = \nu_2$ (66, where the paper writes $\mu_2$), and $\|f\|_{\nu_2}^2 = \sum_{x, y} \nu_2(x, y)\, f(x, y)^2$ (68). Functions that agree on its support (67) count as equal. Each branch by itself moves by $P^\pi$, so both marginals of $\nu_2$ are $\nu$.
#
# $\Pi$ projects $M_\mu$ onto the span of the features in $\|\cdot\|_\nu$ (69), and $M_\Sigma$ onto the cone of all $\phi^\top \Theta\, \phi$ in $\|\cdot\|_{\nu_2}$ (70), which is closed ([decision 17](../book/paper.md#decision-17)). **Projected JIPE-2** is $M_{k+1} = \Pi T_2 M_k$ (72), and its fixed point $\hat M^* = \Pi T_2 \hat M^*$ (71) is the answer. In parameters, one step solves a weighted least-squares problem, with $D_\nu$ the diagonal matrix of $\nu$, and a constrained one:
#
# $$\theta_{k+1} = (\Phi^\top D_\nu \Phi)^{-1} \Phi^\top D_\nu\, (T_2 M_k)_\mu, \tag{73}$$
# $$\Theta_{k+1} \in \arg\min_{\Theta \succeq 0}\ \sum_{x, y} \nu_2(x, y)\, \big(\phi(x)^\top \Theta\, \phi(y) - (T_2 M_k)_\Sigma(x, y)\big)^2 . \tag{74}$$
#
# **Lemma B.3.** $\|P^\pi f\|_\nu \le \|f\|_\nu$ for functions $f$ on $\mathcal X$, and $\|P_2 f\|_{\nu_2} \le \|f\|_{\nu_2}$ for functions $f$ on $\mathcal X^2$.
#
# <details><summary>Proof</summary>
#
# The square of an average is at most the average of the squares, and one more step does not change a stationary distribution:
#
# $$\|P^\pi f\|_\nu^2 \le \sum_x \nu(x) \sum_{x'} P^\pi(x' \mid x) f(x')^2 = \sum_{x'} \nu(x') f(x')^2 = \|f\|_\nu^2 .$$
#
# The other inequality has the same proof.
#
# </details>
#
# **Theorem B.4.** Under Assumptions B.1 and B.2, for every $\beta$ with
#
# $$0 < \beta < \frac{1 - \gamma^2}{2\gamma\, r_{\max}} \tag{86}$$
#
# (the paper has $r_{\max} = 1$), $\Pi T_2$ contracts in $\|M\|_\beta = \max\{\|M_\mu\|_\nu,\ \beta\,\|M_\Sigma\|_{\nu_2}\}$ (77) by the factor $\kappa = \max\{\gamma,\ 2\beta\gamma\, r_{\max} + \gamma^2\} < 1$. So it has a fixed point $\hat M^*$, unique on the support of $\nu_2$, the projected iteration converges to it there, and
#
# $$\|\hat M^* - M^\pi\|_\beta \le \frac{1}{1 - \kappa}\,\|\Pi M^\pi - M^\pi\|_\beta . \tag{78}$$
#
# <details><summary>Proof</summary>
#
# Projections onto a subspace or a closed convex cone do not increase distances, so $\Pi$ can be dropped. Let $\Delta = M - M'$ and $\Delta^+ = T_2 M - T_2 M'$. Lemma B.3 gives $\|\Delta^+_\mu\|_\nu \le \gamma\|\Delta_\mu\|_\nu$. In the second moments, the terms with $\Delta_\mu$ involve only one branch of the pair, whose distribution is $\nu$, and are at most $\gamma r_{\max}\|\Delta_\mu\|_\nu$ each; the last one is at most $\gamma^2\|\Delta_\Sigma\|_{\nu_2}$. Multiply by $\beta$:
#
# $$\beta\,\|\Delta^+_\Sigma\|_{\nu_2} \le 2\beta\gamma r_{\max}\|\Delta_\mu\|_\nu + \gamma^2 \beta\|\Delta_\Sigma\|_{\nu_2} \le (2\beta\gamma r_{\max} + \gamma^2)\|\Delta\|_\beta ,$$
#
# and the factor in parentheses is below 1 exactly for the $\beta$ of (86). Bound (78) is the argument of Theorem 5.3 once more, with $\Pi M^\pi$ in between.
#
# </details>
#
# At a pair $(x, y)$ to which $\nu_2$ gives weight, (78) also bounds the error of one number:
#
# $$|\hat M^*_\Sigma(x, y) - M^\pi_\Sigma(x, y)| \le \frac{\|\hat M^* - M^\pi\|_\beta}{\beta \sqrt{\nu_2(x, y)}} . \tag{79}$$
#
# But no stationary $\nu_2$ gives weight to two actions of one state, so the theorem says nothing about gaps. `projected_jipe2` therefore has other weights. Its cone differs, too: it depends on $\theta$ (section 8.5). But $\theta$ converges by itself; then the cone stands still, and (78) holds for the projection onto it, if these weights make $\kappa < 1$.

# %% [markdown]
# ## 8.5 Features: what happens to gaps
#
# If the features can express the truth, the method finds it where weights are positive. With fewer, here radial bumps on the 5x5 grid with a copy for each action, the
# error falls as the number of bumps grows and stays below the bound. **This is no promise about gaps.** With 8, 20 and 40 such features, the average gap variance is 40, 6 and 3.5 times
# the true one.
#
# These features say little about what two actions have in common. Take instead the same bumps averaged over **where the action leads**, $\phi(s, a) = \mathbb E\,\psi(S'^{(a)})$ with bumps
# $\psi$ of a cell; with one bump for each cell it is the distribution of the next cell. A return is $R + \gamma Z(S', A')$, and on this grid the reward is decided by the next cell. So means are linear in the distribution of the next cell, and second moments at
# *different* states are linear in each of the two: 25 features express them all. They cannot express pairs at *one* state, whose next cells are drawn together.

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
# *gap ratio* the average fitted gap variance divided by the average true one. Predicting zero everywhere has a gap error of one.

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
assert forty > 2  # the numbers of the text
assert last < 1 / 3
assert np.allclose(by_map["gap ratio"]["bumps"], [40, 6, 3.5], rtol=0.02)
assert round(by_map["norm"]["where it leads", 25], 3) == 0.002
ahead = gap_errors["where it leads"]
assert ahead[5] < ahead[10]  # more features are not always better
fit = best[25].moments.full_second() - reference.full_second()
off = np.abs(fit).transpose(0, 2, 1, 3)  # (S, S, A, A)
apart = ~np.eye(25, dtype=bool)
same, distinct = off[~apart].mean(), off[apart].mean()
assert np.allclose([same, distinct], [0.1, 0.05], rtol=0, atol=0.005)
print(f"one state {same:.3f}, two {distinct:.3f}, at most {off[apart].max():.2f}")

# %% [markdown]
# With 25 features that look one step ahead, gap variances are off by less than a third on average, with 40 bumps by more than twice their size. The error in the theorem's norm falls to 0.002. Yet
# second moments are off by 0.10 on average at one state, where the features cannot express them, and by 0.05 at two states, where they can: the fixed point spreads the error.
#
# **The weights decide what is learned** ([decision 10](../book/paper.md#decision-10)). Without common noise, stationary weights lie on the diagonal $x = y$
# if the chain of one branch is irreducible and aperiodic. This determines variances, but not covariances and therefore not gaps. The
# discounted pair occupancy $\nu_2 = (1-\eta)\sum_t \eta^t \xi_0 P_2^t$ starts from $\xi_0$, half of it uniform over all pairs and half over those at one state. With $\gamma^2 < \eta < 1$ (here $\eta = \gamma$), it keeps weight off the
# diagonal, and $\kappa < 1$. We use both on a random ergodic model with exact features, so that nothing but the weights can go wrong.

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
moved = jl.pair_step(ergodic, mixed, laws["stationary"])
assert np.allclose(moved, laws["stationary"], rtol=0, atol=1e-10)  # (66)
one, other = wrong["occupancy"], wrong["stationary"]
lost = one < 1e-4 < other
first = np.full((6, 3, 6, 3), 0.5 / 18**2)  # xi_0
first[range(6), :, range(6)] += 0.5 / (6 * 3**2)
moved = jl.pair_step(ergodic, mixed, laws["occupancy"])
assert np.allclose(laws["occupancy"], 0.2 * first + 0.8 * moved, rtol=0, atol=1e-10)
d, sol = laws["occupancy"], by_weights["occupancy"]  # kappa of (77) for any weights
c_2 = np.sqrt((moved / d).max())
c_3 = np.sqrt((moved.sum((0, 1)) / d.sum((0, 1))).max())
growth = 2 * sol.beta * 0.8 * ergodic.reward_bound * c_3 + 0.8**2 * c_2
assert np.isclose(sol.contraction, growth, rtol=1e-9)
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
# - Sampling one coordinate at a time converges at the rate that theory gives; at $\gamma$ near 1 only after very many visits. Learning only what the operator uses takes far
#   fewer updates.
# - In a feature space, the *weights* must cover pairs of different actions. The *cone* must include the mean, or variances can be negative.
# - A small error in the theorem's norm does not mean that gaps are right. Look at the gaps, and prefer features that say where an
#   action leads.
#
# ## Exercises
#
# **Exercise 1.** Learn the depot's gap variances with 4 and with 16 million updates. How much smaller should the error be, and
# is it?
#
# <details><summary>Hint</summary>
#
# After $n$ visits, which power of $n$ is the noise that is left (section 8.2)?
#
# </details>
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
# <details><summary>Hint</summary>
#
# Read `contraction` and `converged` of the solutions. How much weight does a product give to merged pairs?
#
# </details>
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
