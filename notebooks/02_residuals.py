# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Residuals: two worlds, one straight line
#
# For its Figure 2 the paper runs JIPE-2 on a windy gridworld and on a chain of coupled rewards, and plots the Bellman residual
# on a log scale.
#
# **What you will learn.** What the two worlds are; why the two lines are the *same* line, for a reason that has
# nothing to do with wind or coins; what a residual certifies and what it cannot; and how fast **covariances**, of which gap variances are made, converge.
#
# **What it needs.** Sections 1.3 to 1.5; eigenvalues for section 2.5. To run it: `pip install -e ".[notebooks]"` in the project's folder.

# %% tags=["parameters"]
tol = 1e-8  # at most 0.1
sweeps = 400  # at least 200
out_dir = ""

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from notebooks.tools import chapter, figures

chapter.style()
claims = chapter.Claims()
assert tol <= 0.1, f"{tol=}: at most 0.1"
assert sweeps >= 200, f"{sweeps=}: at least 200"

# %% [markdown]
# ## 2.1 The windy gridworld
#
# There are four moves: up, right, down and left. After the move a gust may push the agent one more cell to the left. One draw serves
# *all four actions*, so their outcomes are tied together. The goal, top right, is absorbing and pays 1 on arrival and in every
# later step (section 2.3 asks why). The evaluated policy goes right until the last column and then up. The picture is read off the model's outcome tables: the first table of a cell is calm air, the second a gust.

# %%
small, small_goal = jl.windy_gridworld(3), jl.goal_policy(3)
calm, gust = small.next_states[small.table_states == 4]
print("from the centre, U R D L lead to", calm, "and in a gust to", gust)
assert (small.next_states[small.table_states == 2] == 2).all()  # nothing leaves the goal
assert (calm - gust).tolist() == [1, 1, 1, 0]  # one to the left, if there is room

# %%
fig, ax = plt.subplots(figsize=(2.2, 2.55))
figures.gridworld(ax, small, small_goal, columns=3)
tables = {"state": small.table_states, "prob": small.probs}
moves = {f"next_{a}": small.next_states[:, i] for i, a in enumerate("URDL")}
chapter.save(fig, "fig1_wgw", tables | moves, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 2.1.** The windy gridworld (the paper's Figure 1). Black: where the policy leads in calm air. Orange: where the same action leads in a gust, which has probability 0.2; a ring means that the
# agent stays. Note that a gust never brings the agent closer to the goal.
#
# <!-- alt: A three by three grid with the goal in the top right cell. Black arrows point right, and up in the last column. Orange rings mark moves to the right that a gust undoes, orange arrows in the last column lead up and to the left. -->

# %% [markdown]
# ## 2.2 The coupled reward chain
#
# The states form a row, and both actions lead to the next state. A coin $U$ is tossed afresh at every state and pays
# $(R^{(1)}, R^{(2)}) = (U, 1 - U)$: one action is paid exactly when the other is not. The paper's picture has rewards $\pm r_i$ instead; that is
# `rewards="signed"`, the same world on another scale. The last state is absorbing and pays 1 in every step.

# %%
fig, ax = plt.subplots(figsize=(3.2, 1.9))
figures.transition(ax, jl.coupled_reward_chain(25, rewards="signed"), state=0)
rows = []
for scale in ("unit", "signed"):
    one = jl.coupled_reward_chain(25, rewards=scale)
    rows += [(scale, one.probs[k], *one.rewards[k], *one.next_states[k]) for k in (0, 1)]
data = pd.DataFrame(rows, columns=["rewards", "prob", "R1", "R2", "next1", "next2"])
chapter.save(fig, "fig3_crc", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 2.2.** One transition of the coupled reward chain with rewards $\pm 1$ (the paper's Figure 3). Both actions lead to the next state; one fair coin decides which of them earns more. Note that the two rewards are always opposite.
#
# <!-- alt: A state s i and the next state. A blue arrow for the first action and an orange one for the second lead from one to the other. Each pays minus 1 or 1, and the correlation of the two rewards is minus 1. -->

# %%
opposite = [np.corrcoef(each.R1, each.R2)[0, 1] for _, each in data.groupby("rewards")]
assert np.allclose(opposite, -1)
assert (data.next1 == data.next2).all()

# %% [markdown]
# ## 2.3 Figure 2: the residual
#
# JIPE-2 iterates $M_{k+1} = T_2 M_k$ from $M_0 = 0$. It stops when the certificate of Theorem 5.3, $\|M_k - T_2 M_k\|_\lambda / (1 - \gamma)$, is at most `tol`.
# `route="sweeps"` is exactly this iteration, and `residuals` holds its residuals, taken over all means and all $|\mathcal S|^2|\mathcal A|^2$ second moments.

# %%
grid, chain = jl.windy_gridworld(5), jl.coupled_reward_chain(25)
cases = {"5x5 WGW": (grid, jl.goal_policy(5)), "CRC, 25 states": (chain, jl.uniform_policy(chain))}
solved = {name: jl.jipe2(*case, tol=tol, route="sweeps") for name, case in cases.items()}
for name, sol in solved.items():
    print(f"{name}: {sol.iterations} sweeps, error bound {sol.error_bound:.2e}")

# %% tags=["hide-input"]
# gamma^k is a broad band that curves lie on
wide = {"color": "0.8", "lw": 5.0, "solid_capstyle": "butt", "zorder": 1}


def draw_residuals(ax, curves, gamma=0.95, apart=30):
    """Residuals of named worlds as marks, every thirtieth, on the line gamma^k."""
    first = max(curve[0] for curve in curves.values())
    steps = np.arange(max(curve.size for curve in curves.values()))
    ax.semilogy(steps, first * gamma**steps, label=rf"$\gamma^k$, $\gamma = {gamma:g}$", **wide)
    for place, (name, curve) in enumerate(curves.items()):
        # marks of the second world lie between those of the first
        shown = np.arange(place * apart // len(curves), curve.size, apart)
        fits = curve > 1e-10 * curve.max()  # below it is rounding
        slope = np.polyfit(np.flatnonzero(fits), np.log(curve[fits]), 1)[0]
        look = {
            "ms": 4.0,
            "mfc": "white",
            "zorder": 3,
            "label": f"{name}: factor {np.exp(slope):.4f}",
        }
        ax.semilogy(shown, curve[shown], "os"[place], **look)
    ax.set_xlabel("iteration $k$")


# %%
fig, ax = plt.subplots(figsize=(4.4, 2.7))
curves = {name: sol.residuals for name, sol in solved.items()}
draw_residuals(ax, curves)
ax.set_ylabel(r"Bellman residual $\|M_k - T_2 M_k\|_\lambda$")
ax.legend()
chapter.save(fig, "fig2_residuals", {n: pd.Series(c) for n, c in curves.items()}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 2.3.** The Bellman residual $\|M_k - T_2 M_k\|_\lambda$ of JIPE-2 from $M_0 = 0$, on a logarithmic scale (the paper's Figure 2, which has a panel for each world). Circles are the 5x5 windy gridworld under the goal policy, squares the chain of 25
# states under the uniform policy, both at $\gamma = 0.95$. The grey line is $\gamma^k$. Only every thirtieth residual is drawn. Note that the two worlds lie on one line.
#
# <!-- alt: One straight grey line that falls from 1 to below one billionth over about four hundred iterations on a logarithmic axis. Circles for the gridworld and squares for the chain lie on it in turn. -->

# %% [markdown]
# The paper speaks of "linear decay of the Bellman residual on a log scale". We find the same: a factor of 0.950000 per iteration in both worlds.


# %%
def decay_rate(values, first=0):
    """The factor per sweep from sweep `first` on, as long as values are above rounding."""
    steps = np.arange(values.size)
    used = (steps >= first) & (values > 1e-10 * values.max())
    return np.exp(np.polyfit(steps[used], np.log(values[used]), 1)[0])


# %%
rates = [decay_rate(sol.residuals) for sol in solved.values()]
for sol in solved.values():
    assert np.abs(sol.residuals - 0.95 ** np.arange(sol.iterations)).max() < 1e-11
text, near = f"{rates[0]:.6f}, {rates[1]:.6f}", np.allclose(rates, 0.95, rtol=0, atol=1e-6)
claims.check("two worlds: factor per iteration = gamma = 0.95", text, near)
taken = [sol.iterations for sol in solved.values()]
needed = 1 + int(np.ceil(np.log(tol * 0.05) / np.log(0.95)))  # until gamma^k / (1 - gamma) <= tol
claims.check(f"sweeps of the two worlds = {needed}, from gamma^k", taken, taken == [needed] * 2)

# %% [markdown]
# The residual *equals* $\gamma^k$, in both worlds. Why? Look at the absorbing state, the goal of the grid
# and the end of the chain. Nothing is random there: after $k$ sweeps its mean is $(1 - \gamma^k)/(1-\gamma)$, and its second moment the square of
# that. So sweep $k$ changes
#
# $$\mu \text{ by } \gamma^k, \qquad \tfrac1\lambda \Sigma \text{ by }\ \tfrac{1-\gamma}{2}\cdot\gamma^k\cdot\tfrac{2 - \gamma^k - \gamma^{k+1}}{1-\gamma}
# = \gamma^k\,\big(1 - \tfrac{1+\gamma}{2}\gamma^k\big),$$
#
# and by Lemma 5.2 no other coordinate can change by more than $\gamma^k$, weighted as in the norm, since the first residual is 1. The residual is largest where nothing is random; wind and coins play no part in Figure 2.

# %%
traces = {name: jl.trace_jipe2(*case, sweeps) for name, case in cases.items()}
powers = 0.95 ** np.arange(sweeps)
formula = powers * (1 - 0.975 * powers)
for name, trace in traces.items():
    both = min(sweeps, solved[name].iterations)
    assert np.allclose(trace.residuals[:both], solved[name].residuals[:both], atol=1e-12)
    assert np.abs(trace.second / trace.weight - formula).max() < 1e-11

# %% [markdown]
# So the change in $\Sigma$ starts far below that in $\mu$ and catches up: in the end it falls by $\gamma$ per sweep, not by $\gamma^2$, because the terms $\gamma R\,M_\mu$ of $T_2$ carry the error
# of the means into it.
#
# The paper does not say what its goal pays ([decision 13](../book/paper.md#decision-13)). If the agent were paid only once, on arrival, nothing would lie on the line $\gamma^k$: the grid would converge much faster, and the chain would be exact after 24 sweeps, one for each coin. So the paper's straight lines fit absorbing states that keep paying.


# %%
def paid_once(jm, last):
    """The same world, whose absorbing state `last` pays nothing."""
    rewards = np.where((jm.table_states == last)[:, None], 0.0, jm.rewards)
    tables = jm.table_states, jm.probs, rewards, jm.next_states
    return jl.JMDP.from_tables(*tables, jm.num_states, jm.gamma)


# %%
grid_once, chain_once = paid_once(grid, 4), paid_once(chain, 24)
short = jl.trace_jipe2(grid_once, cases["5x5 WGW"][1], 60).residuals
done = jl.trace_jipe2(chain_once, cases["CRC, 25 states"][1], 60).residuals
assert decay_rate(short, first=15) < 0.5
exact_after = int(np.flatnonzero(done > 1e-12)[-1]) + 1
assert exact_after == 24

# %% [markdown]
# ## 2.4 What the residual certifies
#
# By Theorem 5.3, $\|M - M^\pi\|_\lambda \le \|M - T_2M\|_\lambda / (1-\gamma)$. The right-hand side is `sol.error_bound`: **means** are within it, **second moments** within $\lambda$ times it.
# Here the bound is tight. JIPE-2 returns $T_2 M_k$, one sweep further than the $M_k$ whose residual it has measured, so the
# true error should be $\gamma$ times the bound. It is: the ratio is 0.9500 in both worlds.

# %%
loose = {name: jl.jipe2(*case, tol=1e-2, route="sweeps") for name, case in cases.items()}
exact = {name: jl.jipe2(*case, tol=1e-11).moments for name, case in cases.items()}
ratios = [
    np.abs(sol.moments.mean - exact[name].mean).max() / sol.error_bound
    for name, sol in loose.items()
]
text, tight = f"{ratios[0]:.4f}, {ratios[1]:.4f}", np.allclose(ratios, 0.95, rtol=0, atol=1e-6)
claims.check("two worlds, tol 0.01: error of the mean = 0.95 bound (ratios)", text, tight)

# %% [markdown]
# But we are after **gaps**, and $\mathrm{Var}\,G$ is a small difference of large second moments. As far as a bound of 0.01 on $M$ can tell, with
# $\lambda = 40$ each $\Sigma$ could be off by 0.4. A gap variance takes four of them and the square of a difference of means, so it could be off by somewhat more than 1.6. In these two worlds the largest is 1.8. How far off are the gap variances really?

# %%
name, case = "5x5 WGW, uniform policy", (grid, jl.uniform_policy(grid))
cases[name], loose[name] = case, jl.jipe2(*case, tol=1e-2, route="sweeps")
exact[name] = jl.jipe2(*case, tol=1e-11).moments
rows = []
for name, sol in loose.items():
    truth = exact[name].gap_variance
    error = np.abs(sol.moments.gap_variance - truth).max()
    rows.append((name, sol.iterations, sol.error_bound, error, truth.max()))

# %%
columns = ["case", "sweeps", "error bound", "gap variance off by", "largest gap variance"]
table = pd.DataFrame(rows, columns=columns).set_index("case").rename_axis(None)
table.round(4)

# %%
errors = table["gap variance off by"].to_numpy()
assert errors[:2].max() < 1e-11
bound = table["error bound"].iloc[2]
claim = "WGW, uniform policy: largest error of Var G > error bound"
claims.check(claim, f"{errors[2]:.3f} > {bound:.4f}", errors[2] > bound)

# %% [markdown]
# In the first two cases the gap variances were exact long before the certificate was small. In the third, the grid under another
# policy, they are off by more than the bound on the means. The bound is the same 0.0096 in all three cases, so it cannot distinguish them. What can?
#
# ## 2.5 Covariances have their own rate
#
# Let $C = \Sigma - \mu\mu^\top$ be the covariances, and let $x$ and $y$ earn $R$ and $\tilde R$ and lead to $X'$ and $Y'$ as in the definition of $T_2$ (Figure 1.3). The pair moves by the
# matrix $P_2$ of the **pair chain**, and one step has a covariance of its own:
#
# $$(P_2\, C)(x, y) = \mathbb E\, C(X', Y'), \qquad c_0(\mu)(x, y) = \mathrm{Cov}\big(R + \gamma\mu(X'),\ \tilde R + \gamma\mu(Y')\big) .$$
#
# Where $x$ and $y$ are at different states they draw independently, and $c_0(\mu)(x, y) = 0$. A covariance is the covariance of the conditional means plus the mean of the conditional
# covariance. Conditioned on one step, this reads
#
# $$C_{k+1} = c_0(\mu_k) + \gamma^2 P_2\, C_k .$$
#
# Two things change from sweep to sweep. (a) The source $c_0$ sees only *differences* of means, since a
# constant error cancels. Differences fall asymptotically at least as fast as $\gamma^k\zeta_\mu^k$, with $\zeta_\mu$ the second largest eigenvalue, in modulus, of the policy's chain $P^\pi$. (b) What $C$ already holds falls at least
# as fast as $\gamma^{2k}$, since $P_2$ is a matrix of probabilities. So the asymptotic factor of the changes of $C$ is at most $\max(\gamma\zeta_\mu, \gamma^2)$. To see it, we add an inventory, in which noise never ends.

# %%
stock = jl.inventory()
cases["inventory, uniform policy"] = stock, jl.uniform_policy(stock)
for name, case in cases.items():
    traces.setdefault(name, jl.trace_jipe2(*case, sweeps))
chains = {n: np.einsum("sa,sat->st", pi, jm.marginal_mdp()[0]) for n, (jm, pi) in cases.items()}
zeta = {name: np.sort(np.abs(np.linalg.eigvals(chain)))[-2] for name, chain in chains.items()}
columns = [(n, p) for n in traces for p in ("mean", "second", "covariance")]
data = {f"{n}, {p}": getattr(traces[n], p) for n, p in columns}


# %% tags=["hide-input"]
def draw_parts(ax, trace, gamma=0.95):
    """What each part of the collection changes in sweep k, scaled."""
    steps = np.arange(trace.mean.size)
    unit = trace.mean[0]
    ax.semilogy(steps, gamma**steps, label=r"$\gamma^k$", **wide)
    twice = {"color": "0.4", "lw": 0.9, "zorder": 1, "label": r"$\gamma^{2k}$"}
    ax.semilogy(steps, gamma ** (2.0 * steps), "--", **twice)
    second = trace.second / trace.weight / unit
    draw_part(ax, trace.mean / unit, "-", "#0072B2", r"means $\mu$")
    draw_part(ax, second, "-.", "#009E73", r"second moments $\Sigma / \lambda$")
    draw_part(ax, trace.covariance / trace.covariance.max(), "-", "#D55E00", r"covariances $C$")
    ax.set_xlabel("iteration $k$")


def draw_part(ax, values, line, color, label):
    """One curve; a dot marks its end if it ends at once and not gradually."""
    seen = np.where(values > 1e-13 * values.max(), values, np.nan)  # below it is rounding
    ax.semilogy(np.arange(values.size), seen, line, color=color, label=label, zorder=2)
    last = int(np.flatnonzero(np.isfinite(seen))[-1])
    if last + 1 < values.size and values[last] > 1e-6 * values.max():
        ax.plot(last, values[last], "o", ms=3.5, color=color, zorder=3)
        look = {"color": color, "va": "top", "ha": "center", "fontsize": 7}
        place = {"xytext": (0, -14), "textcoords": "offset points"}
        ax.annotate(f"exact after\n{last + 1} sweeps", (last, values[last]), **place, **look)


# %%
fig, axes = plt.subplots(2, 2, figsize=(6.75, 4.2), sharex=True, sharey=True)
for ax, (name, trace) in zip(axes.flat, traces.items(), strict=True):
    draw_parts(ax, trace)
    ax.set_title("5x5 WGW, goal policy" if name == "5x5 WGW" else name)
    ax.label_outer()
axes[0, 0].set(xlim=(-4, 204), ylim=(1e-9, 5), ylabel="change in sweep $k$, scaled")
axes[1, 0].set_ylabel("change in sweep $k$, scaled")
fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
chapter.save(fig, "fig_residual_parts", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 2.4.** How much means, second moments and covariances still change in sweep $k$, in four worlds at $\gamma = 0.95$, on a logarithmic scale. Means and second moments are in units of the
# first change of a mean, covariances in units of their largest change. Grey band: $\gamma^k$; dashed: $\gamma^{2k}$. Note that the orange curves have four different slopes.
#
# <!-- alt: Four panels. Means and second moments fall along gamma to the k, or parallel to it for the inventory. Covariances fall almost vertically on the grid under the goal policy, along gamma to the 2k and then to zero on the chain, nearly as slowly as the means under the uniform policy, and parallel to gamma to the 2k for the inventory. -->

# %% [markdown]
# Means and second moments fall by the factor $\gamma$ per sweep. The covariances do not. We measure their
# factors from sweep 60 on, or from an earlier one where they have converged by then. For the grid under the uniform policy and for the inventory we ask for the larger of the first two columns, to three decimals:

# %%
late = {"5x5 WGW": 15, "CRC, 25 states": 0}  # where to begin; the chain has no late part
measured = {n: decay_rate(t.covariance, late.get(n, 60)) for n, t in traces.items()}
speeds = pd.DataFrame({"gamma zeta_mu": 0.95 * pd.Series(zeta), "gamma^2": 0.95**2})
speeds.assign(measured=measured).round(4)

# %%
for name in ("5x5 WGW, uniform policy", "inventory, uniform policy"):
    factor, theory = measured[name], speeds.loc[name].max()
    fits = abs(factor - theory) < 5e-4
    claims.check(f"{name}: factor of covariances = {theory:.4f}", f"{factor:.4f}", fits)

# %%
changes = traces["CRC, 25 states"].covariance
assert np.abs(changes[:24] - 0.25 * powers[:24] ** 2).max() < 1e-10
assert changes[24:].max() < 1e-13  # exact after 24 sweeps
assert 0.19 < measured["5x5 WGW"] < 0.34

# %% [markdown]
# - **Inventory:** differences of means are soon forgotten, and the factor is $\gamma^2$.
# - **Chain:** $\gamma^2$ while there are coins left, and exact after 24 sweeps. Both actions lead to the same state, where they have equal means, so the
#   means cancel out of $c_0$.
# - **Grid, goal policy:** $\zeta_\mu = 0.2$, and nothing is random at the goal. The asymptotic factor is $0.2\,\gamma = 0.19$; measured before rounding sets in it is still 0.29, because $0.19^k$ is multiplied by powers of $k$.
# - **Grid, uniform policy:** $\zeta_\mu = 0.997$, so differences of means fall more slowly than $\gamma^{2k}$, and the covariances with them, by 0.9472.
#
# So "$\gamma$ for means, $\gamma^2$ for covariances" is only half true. This is why
# the other routes of `jipe2` solve for the means first: then (a) is gone, and only $\gamma^2$ is left (chapter 7).
#
# ## What to take away
#
# - Figure 2's straight lines are reproduced, under our choice of rewards: the residual is then exactly $\gamma^k$ in both worlds. The line comes from the absorbing state that pays, and says nothing about the coupling.
# - The certificate always holds and, for means, is tight here. For gap variances it is often pessimistic, but it does not say in which cases.
# - The changes of covariances have an asymptotic factor of at most $\max(\gamma\zeta_\mu, \gamma^2)$. It is attained on the inventory and on the grid under the uniform policy.
#
# ## Exercises
#
# **Exercise 1.** Start JIPE-2 on the 5x5 grid from the solution of a grid with a gust probability of 0.19 instead of 0.2 (`initial=`). Which part of the curve is
# improved, the beginning or the slope?
#
# <details><summary>Hint</summary>
#
# What does the residual $\gamma^k$ come from, and is that part of the start already right?
#
# </details>
#
# <details><summary>Solution</summary>
#
# Both. The first residual is smaller by a factor of about 82, which alone would save some 86 of the 419 sweeps. More important is that the goal has the right value from the beginning,
# $1/(1-\gamma)$ in either grid. Nothing is left on the line $\gamma^k$, and what remains falls like $(0.2\gamma)^k$ times a power of $k$: 26 sweeps instead of 419.
#
# </details>

# %% tags=["hide-cell"]
near_by = jl.jipe2(jl.windy_gridworld(5, gust_prob=0.19), jl.goal_policy(5), tol=1e-12).moments
start = near_by.mean, near_by.full_second()
warm = jl.jipe2(grid, jl.goal_policy(5), tol=1e-8, route="sweeps", initial=start)
cold = jl.jipe2(grid, jl.goal_policy(5), tol=1e-8, route="sweeps")
steeper = decay_rate(warm.residuals, first=15) < 0.5
head_start = cold.residuals[0] / warm.residuals[0]
assert steeper
assert (warm.iterations, cold.iterations) == (26, 419)
assert abs(head_start - 82) < 1

# %% [markdown]
# **Exercise 2.** Mix the goal policy with 5% of noise, `jl.epsilon_mixture`, and predict the factor of the
# covariances from $\zeta_\mu$ before you measure it.
#
# <details><summary>Hint</summary>
#
# Nothing is random at the goal. Which of the two factors of section 2.5 is then left?
#
# </details>
#
# <details><summary>Solution</summary>
#
# As under the goal policy nothing is random at the goal, so what $C$ holds fades by $\gamma^2\zeta_\mu$, and the larger factor is $\gamma\zeta_\mu = 0.484$: a little wandering more than doubles the factor of 0.19, so convergence is slower. The measured factor comes down to it from above.
#
# </details>

# %% tags=["hide-cell"]
mixed = jl.epsilon_mixture(jl.windy_gridworld(5), jl.goal_policy(5), 0.05)
moves = np.einsum("sa,sat->st", mixed, grid.marginal_mdp()[0])
theory = 0.95 * np.sort(np.abs(np.linalg.eigvals(moves)))[-2]
assert round(theory, 3) == 0.484
settling = jl.trace_jipe2(grid, mixed, 60).covariance
rates_seen = [decay_rate(settling, first) for first in (12, 18, 24)]
assert rates_seen[0] > rates_seen[1] > rates_seen[2] > theory
assert rates_seen[2] < 1.05 * theory

# %% [markdown]
# **What to read next.** Chapter 3 looks at the correlations of actions that the second moments contain.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
