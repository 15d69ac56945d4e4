# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Large models: exact where the literal operator cannot start
#
# As defined in Definition 5.1, $T_2$ updates $|\mathcal S|^2|\mathcal A|^2$ numbers, and the paper turns to function approximation because of
# this cost. Gaps need far fewer numbers. Three observations, **collapse**, **centring** and **reachability**, leave one linear
# system over pairs of states: at worst all $|\mathcal S|^2$ of them, and few if two branches stay close to each other under the policy.
#
# **What you will learn.** Which pairs of states an evaluation
# solves for, and why these suffice; what it costs; and how to get a certified answer about one state of a model that is given only by code.
#
# **What it needs.** Sections 1.3 to 1.5, and sparse linear systems. To run it: `pip install -e ".[notebooks,torch]"` in the project's folder, and keep this notebook in `notebooks/`, because section 7.6 reads measured times
# from `benchmarks/`.

# %% tags=["parameters"]
seed = 0
largest = 100  # at least 70
live_sizes = [5, 10, 20, 40]  # at least one
result_files = ["benchmarks/scaling.csv", "benchmarks/gpu.csv"]
out_dir = ""

# %%
import time
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm

import jmdp_lib as jl
from notebooks.tools import chapter

chapter.style()
claims = chapter.Claims()
assert largest >= 70, f"{largest=}: at least 70"
assert len(live_sizes) > 0, f"{live_sizes=}: at least one"
rng = np.random.default_rng(seed)

# %% [markdown]
# ## 7.1 Collapse: what the operator does not see
#
# $T_2$ uses the coordinates of $M_\Sigma$ between two different states $s$ and $t$ only through their average over the policy,
#
# $$W(s, t) = \mathbb E\, M_\Sigma(s, A, t, B), \qquad A \sim \pi(\cdot \mid s),\; B \sim \pi(\cdot \mid t) \text{ independent.}$$
#
# To see this, we change all these coordinates at random, by up to 38, but leave their averages as they are. The operator
# gives the same answer.

# %%
grid = jl.windy_gridworld(6)
n, goal, uniform = grid.num_states, jl.goal_policy(6), jl.uniform_policy(grid)
solved = jl.jipe2(grid, uniform, tol=1e-11).moments
sigma = solved.full_second()
noise = rng.normal(size=sigma.shape)
unseen = noise - noise.mean(axis=(1, 3), keepdims=True)  # for the uniform policy: W = 0
unseen[np.arange(n), :, np.arange(n)] = 0.0

# %%
before = jl.apply_t2(grid, uniform, solved.mean, sigma)[1]
after = jl.apply_t2(grid, uniform, solved.mean, sigma + 10 * unseen)[1]
changed = np.abs(10 * unseen).max()
moved = np.abs(after - before).max()
text = f"{changed:.0f}, {moved:.10f}"
claims.check("Sigma changes by > 10, T_2 Sigma by < 1e-9", text, changed > 10 and moved < 1e-9)

# %% [markdown]
# So it is enough to solve for $W$, which has $|\mathcal S|^2$ numbers. Every coordinate of $\Sigma$ follows from it by one
# local expectation. (Two branches that are at the *same* state and take the same action are one branch. Its
# $\mathbb E Z^2$ follows from the policy's Markov chain alone.)
#
# ## 7.2 Centring: a source on the diagonal alone
#
# The mean $m$ of each state's return is computed first, from a sparse system with $|\mathcal S|$ unknowns. The covariance
# $c = W - m m^\top$ then satisfies
#
# $$c = \bar c_0 + \gamma^2 \bar P_2\, c, \quad \bar c_0(s, t) = 0 \text{ for } s \ne t.$$
#
# Here $c(s, t) = \mathrm{Cov}\big(Z(s, A), Z(t, B)\big)$ with independent actions $A$ and $B$ of the policy, and $\bar P_2$ moves the two branches as long as they have not merged. Pairs that merge leave the system. (The $c_0$ and $P_2$ of section 2.5 keep them, and are about state-actions.) If both branches take one action, they merge, and the source holds their whole variance; otherwise it holds the covariance of their next step:
#
# $$\bar c_0(s, s) = \sum_a \pi(a \mid s)^2\, \mathrm{Var}\, Z(s, a) + \sum_{a \ne b} \pi(a \mid s)\, \pi(b \mid s)\, \mathrm{Cov}\big(Y_a, Y_b\big), \qquad Y_a = R^{(a)} + \gamma\, m(S'^{(a)}) .$$
#
# The variances follow from the policy's Markov chain. Branches at distinct states draw
# independent tables, so they become correlated only by meeting later, and $\bar c_0$ is zero off the diagonal. Once the means
# are known, the rate is $\gamma^2$ rather than $\gamma$, and centring subtracts no squares of large means.

# %%
W = np.einsum("sa,satb,tb->st", uniform, sigma, uniform)
m = (uniform * solved.mean).sum(1)
c = W - np.outer(m, m)
spread = np.broadcast_to(c[:, None, :, None], sigma.shape)  # c, whatever the actions are
two = [jl.apply_t2(grid, uniform, 0 * uniform, x)[1] for x in (spread, 0 * sigma)]
moved = np.where(np.eye(uniform.size).reshape(sigma.shape), 0.0, two[0] - two[1])
source = c - np.einsum("sa,satb,tb->st", uniform, moved, uniform)  # c - gamma^2 P_2 c
apart = np.abs(source - np.diag(source.diagonal())).max()
assert apart < 1e-9  # zero between distinct states
y = grid.rewards + 0.95 * m[grid.next_states]
y = y - (grid.averaging @ y)[grid.table_states]
step = (grid.averaging @ (y[:, :, None] * y[:, None, :]).reshape(len(y), -1)).reshape(-1, 4, 4)
step[:, range(4), range(4)] = solved.variance  # merged: the whole variance
assert np.allclose(np.einsum("sa,sab,sb->s", uniform, step, uniform), source.diagonal(), atol=1e-6)

# %%
grey = {"facecolor": "0.93"}
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.2), subplot_kw=grey)
titles = "$W$: second moments", "$c = W - m m^\\top$: covariances", "$\\bar c_0$: the source of $c$"
for ax, title, values in zip(axes, titles, np.abs([W, c, source]), strict=True):
    seen = np.ma.masked_less(values, 1e-4 * values.max())
    image = ax.imshow(seen, "viridis_r", norm=LogNorm(1e-4 * values.max(), values.max()))
    ax.grid(visible=False)
    bar = fig.colorbar(image, ax=ax, shrink=0.75)
    ax.set(title=title, xlabel="state")
axes[0].set_ylabel("state")
bar.set_label("squares of rewards")
chapter.save(fig, "fig_centring", {"W": W.ravel(), "c": c.ravel(), "c0": source.ravel()}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.1.** The 6x6 gridworld under the uniform policy, absolute values for all pairs of states, in squares of the unit of rewards, on a logarithmic scale: second moments,
# covariances $c$, and the source $\bar c_0$ of their equation. Grey means zero, or less than a ten-thousandth of the largest value. The grey row and column are the goal, whose return is constant. Note that the source is on the diagonal alone.
#
# <!-- alt: Three square heat maps over pairs of states. Second moments fill the whole square. Covariances fill it except for the row and column of the goal, and are largest on the diagonal. Their source is on the diagonal alone. -->

# %% [markdown]
# ## 7.3 Reachability: pairs that no gap ever visits
#
# The two branches of a gap start at *one* state. After one step they are at most two moves apart. When they meet and take the same action, they stay together for good. So only those pairs of states matter
# that $\bar P_2$ can reach from two branches at one state.


# %%
def steps_to_reach(jm, policy, queries):
    """(S, S) after how many steps two branches of a gap can be at each pair; 0 for never."""
    steps = np.zeros((jm.num_states, jm.num_states), int)
    law = np.zeros((jm.num_states, jm.num_actions) * 2)
    law[queries, :, queries] = 1.0
    new = np.array([True])
    while new.any():
        np.einsum("sasa->sa", law)[...] = 0.0  # one branch
        law = jl.pair_step(jm, policy, law)
        new = (law.sum((1, 3)) > 0) & (steps == 0)
        steps[new] = steps.max() + 1
    return steps


# %%
questions = {  # a policy, and the states whose gaps are requested
    "goal policy": (goal, np.arange(n)),
    "uniform policy": (uniform, np.arange(n)),
    "goal, one state": (goal, [11]),  # the cell below the goal
}
steps = {name: steps_to_reach(grid, *of_gaps) for name, of_gaps in questions.items()}

# %%
count = {name: int((np.triu(reached) > 0).sum()) for name, reached in steps.items()}
solve = partial(jl.jipe2, grid, route="reachable")
solved_for = [solve(policy, states=states).num_unknowns for policy, states in questions.values()]
claim = "6x6: of 666 pairs, as many are reached as solved for"
claims.check(claim, solved_for, solved_for == list(count.values()))

# %%
longest = max(s.max() for s in steps.values())
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.5), sharey=True, subplot_kw=grey)
for ax, (name, reached) in zip(axes, steps.items(), strict=True):
    image = ax.imshow(np.ma.masked_equal(reached, 0), "viridis_r", vmin=1, vmax=longest)
    ax.grid(visible=False)
    ax.set(title=f"{name}: {count[name]} pairs", xticks=range(0, 36, 6), yticks=range(0, 36, 6))
    ax.set(xlabel="state of one branch", ylabel="state of the other")
    ax.label_outer()
fig.colorbar(image, ax=axes, label="first reached after steps", shrink=0.8)
data = {name: reached.ravel() for name, reached in steps.items()}
chapter.save(fig, "fig_pair_closure", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.2.** The pairs of states that two branches of a gap can visit on the 6x6 gridworld, and after how many steps they first can. Grey pairs are never reached. The titles count $(s, t)$ and $(t, s)$ once. Note that the goal policy leaves out many pairs, and a question about one state nearly all.
#
# <!-- alt: Three square maps of 36 by 36 pairs. Under the goal policy most pairs near the diagonal are reached and many others are grey; under the uniform policy the whole square is filled; for one queried state only a few pairs in a corner are. -->

# %% [markdown]
# ## 7.4 What is left
#
# `num_unknowns` of a solution says for how many pairs it was solved. On a grid of $N \times N$ cells the literal operator has
# $16 N^4$ coordinates, and collapse leaves $N^4$. Under the goal policy, two branches are at most two rows apart until one of them is in the last two columns,
# which leaves a multiple of $N^3 = |\mathcal S|^{3/2}$ pairs. ("Reachable" counts each pair once.) We estimate the power from the two largest grids and allow an error of 0.02 for terms of
# lower order.

# %%
rows = []
for size in [size for size in (5, 10, 20, 30, 50, 70, 100, 150, 200) if size <= largest]:
    pairs = jl.jipe2(jl.windy_gridworld(size), jl.goal_policy(size), route="reachable").num_unknowns
    rows.append((size**2, 16 * size**4, size**4, pairs))
table = pd.DataFrame(rows, columns=["states", "literal", "collapsed", "reachable"])
print(table.to_string(index=False, formatters=dict.fromkeys(table, "{:,}".format)))

# %%
before, last = table.iloc[-2], table.iloc[-1]
power = np.log(last.reachable / before.reachable) / np.log(last.states / before.states)
near = abs(power - 1.5) < 0.02
claims.check("goal policy, power of |S|: pairs grow with 1.5 +- 0.02", f"{power:.2f}", near)
assert last.literal / last.reachable > 16  # more than collapse alone

# %% [markdown]
# ## 7.5 The same answer, certified
#
# The library has several methods, called *routes*: `reachable` solves for the
# reachable pairs, `dense` for all pairs, in NumPy or in torch. By default, the library chooses. A *Gauss-Seidel sweep* updates one pair after the other, each from the latest values. If the policy's chain never returns to a state that it has left, as under the goal policy, one sweep in the right order solves the system; otherwise a Krylov method (BiCGSTAB) accelerates the sweeps. Whatever the method, the stopping rule is the paper's: the residual $\|M - T_2 M\|_\lambda$ of what was solved, divided by $1 - \gamma$, bounds
# the error (eq. (23)).
#
# We verify the routes with the literal operator. It must change no coordinate of the dense
# route's result by more than $10^{-9}$, and every route must give the same moments
# within a state, from which gaps are made. The distance to a far more accurate solution must stay below `error_bound`.

# %%
scattered = jl.JMDP(
    rng.dirichlet(np.ones(3), 20),
    rng.uniform(-1, 1, (20, 3, 3)),
    rng.integers(20, size=(20, 3, 3)),
    gamma=0.9,
)
small = jl.windy_gridworld(5)
cases = {
    "grid, goal policy": (small, jl.goal_policy(5)),
    "grid, uniform policy": (small, jl.uniform_policy(small)),
    "random successors": (scattered, jl.uniform_policy(scattered)),
}
routes = {
    "reachable": {"route": "reachable"},
    "dense": {"route": "dense"},
    "torch": {"device": "cpu"},
}

# %%
far = {}
for name, (jm, policy) in cases.items():
    whole = jl.jipe2(jm, policy, tol=1e-11, route="dense").moments
    mean, second = jl.apply_t2(jm, policy, whole.mean, whole.full_second())
    errors = [np.abs(second - whole.full_second()).max()]
    for how in routes.values():
        moments = jl.jipe2(jm, policy, tol=1e-11, **how).moments
        apart = moments.same_state(2) - np.einsum("sasb->sab", second)
        errors.append(max(np.abs(mean - moments.mean).max(), np.abs(apart).max()))
    far[name] = max(errors)
worst = max(far.values())
claim = "three models: one literal T_2 of the dense answer off any route by < 1e-9"
claims.check(claim, f"{worst:.10f}", worst < 1e-9)

# %%
hard = cases["random successors"]
weight = jl.norm_weight(2, scattered.gamma, scattered.reward_bound)
exact = jl.jipe2(*hard, tol=1e-12).moments.same_state(2)
solutions = [
    jl.jipe2(*hard, tol=tol, **how) for tol in (1e-2, 1e-5, 1e-8) for how in routes.values()
]
errors = [np.abs(sol.moments.same_state(2) - exact).max() / weight for sol in solutions]
share = max(e / sol.error_bound for e, sol in zip(errors, solutions, strict=True))
claims.check("three routes and tols: true error / bound <= 1", f"{share:.1f}", share <= 1)

# %% [markdown]
# **Gaps of a few states.** If you need gaps at only a few states, pass them as `gaps=`, or the states as `states=`; only pairs reachable from them are solved. Three cells near the goal reach as many pairs on a large grid as on a small one.

# %%
large, large_goal = jl.windy_gridworld(largest), jl.goal_policy(largest)
near = largest - 1 + largest * np.arange(1, 4)
whole = jl.jipe2(large, large_goal)
few = jl.jipe2(large, large_goal, states=near)
print(f"everything: {whole.num_unknowns:,} pairs; three states: {few.num_unknowns:,} pairs")
little = jl.jipe2(jl.windy_gridworld(20), jl.goal_policy(20), states=20 * np.arange(2, 5) - 1)
same = few.num_unknowns == little.num_unknowns
claims.check("pairs for three states: as many as on a 20x20 grid", f"{few.num_unknowns:,}", same)

# %%
apart = few.moments.gap_variance[near] - whole.moments.gap_variance[near]
assert np.abs(apart).max() < 1e-7
assert np.isnan(few.moments.gap_variance[0, 0, 1])  # this gap was not requested

# %% [markdown]
# ## 7.6 What it costs
#
# The lines below were measured by `python benchmarks/scaling.py`; `benchmarks/scaling.md` names
# the machine and the method. The GPU belongs to another machine, and the literal operator is the uncompiled reference. SciPy stands for forty lines without a certificate (`benchmarks/pair_system.py`). Monte Carlo is a *projection*: the time to estimate all gap variances with a standard error of 1%, at the speed
# measured next to the goal.

# %%
measured = chapter.results(result_files).query("table == 'scaling'")
measured = measured[~measured.method.str.contains("mean only")]  # these find no gaps
live = []
for size in live_sizes:
    jm = jl.windy_gridworld(size)
    evaluate = partial(jl.jipe2, jm, jl.goal_policy(size), route="reachable")
    evaluate()
    start = time.process_time()
    evaluate()
    live.append((jm.num_states, time.process_time() - start))


# %%
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.9), sharex=True, sharey=True)
marks = ["sk-", "oC0-", "^C1-", "vC4-", "C3:", "DC2-"]
looks = dict(zip(measured.method.unique(), marks, strict=True))
for ax, (problem, rows) in zip(axes, measured.groupby("problem", sort=False), strict=True):
    for method, look in looks.items():
        line = rows[rows.method == method].sort_values("states")
        ax.loglog(line.states, line.seconds, look, ms=4, label=method)
    ax.set(title=problem, xlabel="states")
axes[0].plot(*np.transpose(live), "*k", ms=5, zorder=3, label="reachable, in this notebook")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
axes[0].set_ylabel("time [s]")
chapter.save(fig, "fig_scaling", measured, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.3.** The time that all gaps take, against the number of states, for two policies on the gridworld and for a model with random successors. Stars: processor time in this notebook. GPU: not for the goal policy, and random successors at two sizes. Note that reachable pairs are the fastest way to gaps under the goal policy, and all pairs on a GPU elsewhere.
#
# <!-- alt: Three panels on logarithmic axes. The time of the exact routes grows with the number of states, that of the reachable route least under the goal policy; the literal operator stops early, and projected Monte Carlo lies orders of magnitude above. -->

# %% [markdown]
# Under the goal policy all gaps of 10,000 states took 0.4 seconds and 106 MB, <!-- benchmarks/scaling.csv: goal policy; reachable; states=10000: states; seconds; bytes -->
# and those of 100,000 states 14 seconds and 4.0 GB. <!-- benchmarks/scaling.csv: goal policy; reachable; states=99856: states; seconds; bytes -->
# Under the uniform policy, which reaches all pairs, 10,000 states took 60 seconds and 5.6 GB, <!-- benchmarks/scaling.csv: uniform policy; dense; states=10000: states; seconds; bytes -->
# and 0.4 seconds on the GPU. <!-- benchmarks/gpu.csv: uniform policy; torch, cuda; states=10000: seconds -->
# For these states Monte Carlo would take 4 minutes <!-- benchmarks/scaling.csv: goal policy; Monte Carlo; states=10000: seconds -->
# under the goal policy and 1.7 hours <!-- benchmarks/scaling.csv: uniform policy; Monte Carlo; states=10000: seconds -->
# under the uniform one.

# %% [markdown]
# ## 7.7 One state of a trillion
#
# If the policy can take every action, as a rule every pair is reached, and a large model cannot be solved as a whole. But a question
# about one state does not need the whole model, because what happens after $t$ steps counts only $\gamma^t$. `local_jipe2`
# works with two nested sets of states that grow outwards from the query. For the large set, the *explored* states, it solves for values. What lies outside is unknown: a branch that reaches it after $\tau$ steps adds an error of at most $w\, \mathbb E \gamma^\tau$, where $2w$ is the width of the range of returns. For the small set, the *core*, it solves for pairs of branches. When a branch leaves the core, its value is still known, but its later variance is dropped. Both errors are bounded, and `error_bound` certifies the mean and the standard deviation of the gap; the module
# `jmdp_lib.large.exploration` has the derivation.
#
# Here a function gives the outcome tables of a gridworld of a million times a million cells, which are never enumerated.

# %%
side, moves = 10**6, ((-1, 0), (0, 1), (1, 0), (0, -1))
goal_cell = (0, side - 1)


def clip(*cell):
    return tuple(min(max(x, 0), side - 1) for x in cell)


def tables(cell):
    moved = [clip(cell[0] + r, cell[1] + c) for r, c in moves]
    rows = [[clip(r, c - gust) for r, c in moved] for gust in (0, 1)]
    rows = [[goal_cell] * 4] * 2 if cell == goal_cell else rows
    return [0.8, 0.2], [[float(to == goal_cell) for to in row] for row in rows], rows


# %%
trillion = jl.large.ImplicitJMDP(tables, num_actions=4, gamma=0.9, reward_range=(0.0, 1.0))
ask = partial(jl.large.local_jipe2, trillion, lambda cell: [0.25] * 4, states=[(2, side - 3)])
local_answer = ask(tol=1e-2)
mean_gap = local_answer.gap_mean[0, 1, 3]  # right against left
print(f"mean gap {mean_gap:.3f}, error at most {local_answer.error_bound:.3f}")
print(f"{local_answer.num_explored} states explored")
assert local_answer.converged

# %% [markdown]
# How good is the certificate? A grid of 40 by 40 cells can be solved as a whole, and at this discount its far edges do not
# matter. We stop the exploration at several budgets.

# %%
window = jl.windy_gridworld(40, gamma=0.9)
cell = 40 * 2 + 37
truth = jl.jipe2(window, jl.uniform_policy(window), states=[cell]).moments.gap_variance[cell]
rows = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)
    for budget in (5, 10, 20, 40, 80, 160, local_answer.num_explored):
        loc = ask(tol=1e-2, max_states=budget)
        error = np.abs(np.sqrt(loc.gap_variance[0]) - np.sqrt(truth)).max()
        rows.append((loc.num_explored, loc.error_bound, error))
grown = pd.DataFrame(rows, columns=["explored", "certified", "true"])
share = (grown.true / grown.certified).max()
claims.check("one state of a trillion: true / certified error <= 1", f"{share:.2f}", share <= 1)

# %% [markdown]
# The certificate must follow *both* branches. Let one walk away and earn 1 where unexplored states are taken to earn 1/2, the middle of the range. Without chance the true error is $w \gamma^\tau$, and the bound is $\sqrt 2$ times that, since it takes the square of a difference to be at most twice the squares.


# %%
def fork(place):  # state -1 pays 1/2 for ever; a walk through 0, 1, 2, ... pays 1
    ahead = place + 1 if place >= 0 else -1
    return [1.0], [[1.0 if place >= 0 else 0.5] * 3], [[ahead, -1, ahead]]


walk = jl.large.ImplicitJMDP(fork, num_actions=3, gamma=0.9, reward_range=(0.0, 1.0))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)
    loc = jl.large.local_jipe2(walk, lambda place: 0, states=[0], max_states=10)
sides = (0, 0, 1), (0, 1, 2)  # in state 0: the first branch walks away, or the second one
off = [0.9 * 0.5 / (1.0 - 0.9) - abs(loc.gap_mean[side]) for side in sides]
tight = np.sqrt(2.0) * np.array(off) / [loc.gap_error[side] for side in sides]

# %% tags=["hide-input"]
claim = "a branch that leaves, first or second: sqrt(2) true / certified error is 1 to 2%"
text = ", ".join(f"{x:.3f}" for x in tight)  # the bound is solved to a hundredth
claims.check(claim, text, np.abs(tight - 1.0).max() < 0.02)

# %%
cells = np.array(local_answer.explored) - [0, side - 40]
seen = np.full((cells[:, 0].max() + 1, 40 - cells[:, 1].min()), np.nan)
seen[cells[:, 0], cells[:, 1] - cells[:, 1].min()] = local_answer.visits
fig, (ax, right) = plt.subplots(1, 2, figsize=(7.2, 2.5))
image = ax.imshow(np.ma.masked_invalid(seen), "viridis_r", norm=LogNorm())
ax.grid(visible=False)
fig.colorbar(image, ax=ax, label="discounted visits", shrink=0.8)
ax.set(**grey, title="what was explored", xlabel="columns to the left of the goal", ylabel="row")
columns = np.arange(seen.shape[1] - 1, -1, -10)
ax.set(xticks=columns, xticklabels=seen.shape[1] - 1 - columns, yticks=[0, 5, 10, 15])
right.loglog(grown.explored, grown[["certified", "true"]], "o-", ms=3, label=["certified", "true"])
right.set(xlabel="states explored", ylabel="error of a gap's sd")
right.legend()
chapter.save(fig, "fig_trillion", grown, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.4.** Left: the corner of the grid that was explored, with the goal at its top right; the colour, on a logarithmic scale, says how often branches that have not merged visit a
# cell, discounted by $\gamma^2$ per step. Right: the error that is certified, and the true one, as the exploration grows. Note that the certified error is always above the true one, and falls with it.
#
# <!-- alt: Left, a heat map of a corner of the grid, with most visits around the queried cell near the goal and fewer outwards. Right, two falling lines on logarithmic axes; the certified error stays above the true one throughout. -->

# %% [markdown]
# [Large models](../book/large_models.md) gives a model by a step function and its noise, and simulates it.

# %% [markdown]
# ## What to take away
#
# - Between states the operator uses only averages over the policy, covariance arises only where two branches share a state, and gaps often reach few pairs. None of this
#   is an approximation: every route has the same fixed point as the literal operator.
# - If successors scatter or the policy wanders, all pairs are reached. A GPU helps.
# - Ask for the states you care about. If the model is too large to enumerate, `local_jipe2`
#   explores what the question needs and says how far off the answer may be.
#
# ## Exercises
#
# **Exercise 1.** Mix the goal policy with a little noise, `jl.epsilon_mixture(grid, goal, 0.05)`. How many pairs of the 6x6 grid
# does it reach, and does one sweep still solve the system?
#
# <details><summary>Hint</summary>
#
# Reachability does not ask how probable a pair is. And can a branch return to a cell that it has left?
#
# </details>
#
# <details><summary>Solution</summary>
#
# It reaches all 666 unordered pairs: reachability asks what can happen, however small the probability. The chain now returns to cells that it has left, so no order of the states
# puts all successors first, and one sweep is not enough.
#
# </details>

# %% tags=["hide-cell"]
noisy = jl.jipe2(grid, jl.epsilon_mixture(grid, goal, 0.05), route="reachable")
assert noisy.num_unknowns == 666
assert jl.jipe2(grid, goal, route="reachable").iterations == 2 < noisy.iterations

# %% [markdown]
# **Exercise 2.** Let the wind blow down (`gust="D"`). Are fewer or more pairs of the 6x6 grid reached under the goal policy,
# and why?
#
# <details><summary>Hint</summary>
#
# How far ahead can one branch get of the other while a gust to the left, or down, hits only one of them?
#
# </details>
#
# <details><summary>Solution</summary>
#
# Fewer: 325 instead of 522. A gust to the left holds a branch back again and again, so the other branch can get any number
# of columns ahead. After a gust down, both branches still move one column to the right in every step, and stay at most two columns apart.
#
# </details>

# %% tags=["hide-cell"]
down = jl.windy_gridworld(6, gust="D")
reached = np.argwhere(steps_to_reach(down, goal, np.arange(36)) > 0)
columns_apart = np.abs(np.diff(reached % 6, axis=1)).max()
fewer = jl.jipe2(down, goal, route="reachable").num_unknowns
assert (fewer, count["goal policy"], columns_apart) == (325, 522, 2)

# %% [markdown]
# **What to read next.** [Large models](../book/large_models.md) puts this on one page; [Limitations](../book/limitations.md) says where each method ends.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
