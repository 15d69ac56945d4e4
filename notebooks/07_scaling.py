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
# system over pairs of states. At worst it has all $|\mathcal S|^2$ pairs. For a policy that keeps its branches together it
# has few of them, and a grid of $10^5$ cells fits on an ordinary machine. This chapter shows each observation in a picture, and then
# what the solutions cost. Its last section answers a question about one state of a model that is too large to enumerate.
#
# **What you will learn.** Why $|\mathcal S|^2$ numbers suffice, and often far fewer; which pairs of states an evaluation
# solves for; how every method certifies its answer; and how to get a certified answer about one state of a model that
# exists only as code.
#
# **What it needs.** Sections 1.3 to 1.5, and sparse linear systems for sections 7.2 to 7.5. To run it, install the project
# with `pip install -e ".[notebooks]"` in its folder, and keep this notebook in `notebooks/`, because section 7.9 reads measured times
# from `benchmarks/scaling.csv` and `benchmarks/gpu.csv`.

# %% tags=["parameters"]
seed = 0
largest = 100  # at least 70
num_pairs = 200000  # at least 1000
order_size = 10  # at least 3
live_sizes = [5, 10, 20, 40]  # at least one
result_files = ["benchmarks/scaling.csv", "benchmarks/gpu.csv"]
out_dir = ""

# %%
import re
import textwrap
import time
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from scipy.sparse import csgraph

import jmdp_lib as jl
from jmdp_lib import figures

figures.style()
claims = figures.Claims()
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
claims.check("largest change of Sigma, and of T_2 Sigma", text, changed > 10 and moved < 1e-9)

# %% [markdown]
# So it is enough to solve for $W$, which has $|\mathcal S|^2$ numbers. Every coordinate of $\Sigma$ follows from it by one
# local expectation. (Two branches that are at the *same* state and choose the same action are one branch. Its
# $\mathbb E Z^2$ follows from the policy's Markov chain alone.)
#
# ## 7.2 Centring: a source on the diagonal alone
#
# The mean $m$ of each state's return is found first, from a sparse system with $|\mathcal S|$ unknowns. The covariance
# $c = W - m m^\top$ then satisfies
#
# $$c = c_0 + \gamma^2 P_2\, c, \quad c_0(s, t) = 0 \text{ for } s \ne t.$$
#
# Here $c(s, t) = \mathrm{Cov}\big(Z(s, A), Z(t, B)\big)$ with independent actions $A$ and $B$ of the policy, and $P_2$ moves the two branches as long as they have not merged. Pairs that merge leave the system, so the source holds, on the diagonal, the whole variance of a merged branch and the covariance of one step of two branches:
#
# $$c_0(s, s) = \sum_a \pi(a \mid s)^2\, \mathrm{Var}\, Z(s, a) + \sum_{a \ne b} \pi(a \mid s)\, \pi(b \mid s)\, \mathrm{Cov}\big(Y_a, Y_b\big), \qquad Y_a = R^{(a)} + \gamma\, m(S'^{(a)}) .$$
#
# The variances follow from the policy's Markov chain. Branches at distinct states draw
# independent tables, so they become correlated only by meeting later, and $c_0$ is zero off the diagonal. Centring has two more
# advantages: the rate is $\gamma^2$ rather than $\gamma$, and no large numbers are subtracted from each other.

# %%
W = np.einsum("sa,satb,tb->st", uniform, sigma, uniform)
m = (uniform * solved.mean).sum(1)
c = W - np.outer(m, m)
spread = np.broadcast_to(c[:, None, :, None], sigma.shape)  # c, whatever the actions are
two = [jl.apply_t2(grid, uniform, 0 * uniform, x)[1] for x in (spread, 0 * sigma)]
moved = np.where(np.eye(uniform.size).reshape(sigma.shape), 0.0, two[0] - two[1])
source = c - np.einsum("sa,satb,tb->st", uniform, moved, uniform)  # c - gamma^2 P_2 c
apart = np.abs(source - np.diag(source.diagonal())).max()
claims.check("c_0 between distinct states: largest", f"{apart:.10f}", apart < 1e-9)
y = grid.rewards + 0.95 * m[grid.next_states]
y = y - (grid.averaging @ y)[grid.table_states]
step = (grid.averaging @ (y[:, :, None] * y[:, None, :]).reshape(len(y), -1)).reshape(-1, 4, 4)
step[:, range(4), range(4)] = solved.variance  # merged: the whole variance
assert np.allclose(np.einsum("sa,sab,sb->s", uniform, step, uniform), source.diagonal(), atol=1e-6)

# %%
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.2))
titles = "$W$: second moments", "$c = W - m m^\\top$: covariances", "$c_0$: the source of $c$"
for ax, title, values in zip(axes, titles, np.abs([W, c, source]), strict=True):
    seen = np.ma.masked_less(values, 1e-4 * values.max())
    image = figures.heatmap(ax, seen, norm=LogNorm(1e-4 * values.max(), values.max()))
    fig.colorbar(image, ax=ax, shrink=0.75, extend="min")
    ax.set(title=title, xlabel="state")
axes[0].set_ylabel("state")
figures.save(fig, "fig_centring", {"W": W.ravel(), "c": c.ravel(), "c0": source.ravel()}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.1.** The 6x6 gridworld under the uniform policy, absolute values for all pairs of states, on a logarithmic scale: second moments,
# covariances $c$, and the source $c_0$ of their equation. See that the source is on the diagonal alone. Grey means zero, or less than a ten-thousandth of the largest value. The grey row and column are the goal, whose return is constant.
#
# <!-- alt: Three square heat maps over pairs of states. Second moments fill the whole square. Covariances fill it except for the row and column of the goal, and are largest on the diagonal. Their source is on the diagonal alone. -->

# %% [markdown]
# ## 7.3 Reachability: pairs that no gap ever visits
#
# The two branches of a gap start at *one* state. After one step they are at most two moves apart, and after two steps perhaps a
# little further. When they meet and choose the same action, they stay together for good. The pairs of states that can occur
# are those that $P_2$ can reach from two branches at one state. Below are the 36 by 36 pairs of the 6x6 gridworld.


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
asked = {
    "goal policy": (goal, np.arange(n)),
    "uniform policy": (uniform, np.arange(n)),
    "goal, one state": (goal, [11]),  # the cell below the goal
}
steps = {name: steps_to_reach(grid, *of_gaps) for name, of_gaps in asked.items()}

# %%
count = {name: int((np.triu(reached) > 0).sum()) for name, reached in steps.items()}
solve = partial(jl.jipe2, grid, route="reachable")
solved_for = [solve(policy, queries=queries).pairs for policy, queries in asked.values()]
claims.check("6x6: pairs reached of 666", list(count.values()), solved_for == list(count.values()))

# %%
longest = max(s.max() for s in steps.values())
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.5), sharey=True)
for ax, (name, reached) in zip(axes, steps.items(), strict=True):
    image = figures.heatmap(ax, np.ma.masked_equal(reached, 0), vmin=1, vmax=longest)
    ax.set(title=f"{name}: {count[name]} pairs", xticks=range(0, 36, 6), yticks=range(0, 36, 6))
    ax.set(xlabel="state of one branch", ylabel="state of the other")
    ax.label_outer()
fig.colorbar(image, ax=axes, label="first reached after steps", shrink=0.8)
data = {name: reached.ravel() for name, reached in steps.items()}
figures.save(fig, "fig_pair_closure", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.2.** The pairs of states that two branches of a gap can visit on the 6x6 gridworld, and after how many steps they first can. Grey pairs are never reached. The titles count $(s, t)$ and $(t, s)$ once.
#
# <!-- alt: Three square maps of 36 by 36 pairs. Under the goal policy most pairs near the diagonal are reached and many others are grey; under the uniform policy the whole square is filled; for one queried state only a few pairs in a corner are. -->

# %% [markdown]
# Why does the goal policy leave out so many pairs? Its branches stay within two rows of each other until one of them reaches
# the last column and goes up; a gust can push it one column to the left on the way. Figure 7.3 shows this on a 16x16 grid. Seen from one branch (the dot), the *other* branch is within
# two rows or further up in the last two columns. Only if the first branch waits at the goal can the other be anywhere.
# Under the uniform policy the other branch can soon be anywhere.

# %%
wide = jl.windy_gridworld(16)
policies = {"goal policy": jl.goal_policy(16), "uniform policy": jl.uniform_policy(wide)}
around = {k: steps_to_reach(wide, pi, np.arange(256)) for k, pi in policies.items()}
places = {"middle": 130, "last column": 223, "at the goal": 15}
views = [("goal policy", f"goal policy,\n{where}", s) for where, s in places.items()]
views.append(("uniform policy", "uniform policy,\nmiddle", 130))

# %%
fig, axes = plt.subplots(1, 4, figsize=(7.2, 1.9))
for ax, (name, title, state) in zip(axes, views, strict=True):
    reached = around[name][state].reshape(16, 16)
    image = figures.heatmap(ax, np.ma.masked_equal(reached, 0), vmin=1, vmax=20)
    ax.plot(state % 16, state // 16, "o", color="#D55E00", mec="white", mew=0.8, ms=6)
    ax.set(title=title, xticks=[], yticks=[])
fig.colorbar(image, ax=axes, label="first reached\nafter steps", extend="max", shrink=0.9)
figures.save(fig, "fig_partners", {p: s.ravel() for p, s in around.items()}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.3.** Where the other branch can be on a 16x16 grid, seen from a branch at the dot, and after how many steps it can first be there.
#
# <!-- alt: Four maps of a grid. Under the goal policy a band of five rows around the dot and the last two columns above it are coloured, for a dot in the middle as for one in the last column; for a dot at the goal the whole grid is, and under the uniform policy as well. -->

# %% [markdown]
# ## 7.4 What is left
#
# The attribute `pairs` of a solution says for how many pairs it was solved. On a grid of $N \times N$ cells the literal operator has
# $16 N^4$ coordinates, and collapse leaves $N^4$. Under the goal policy a branch at one of $N^2$ cells has its partner in one of five rows or in the last two columns,
# which leaves a multiple of $N^3 = |\mathcal S|^{3/2}$ pairs. (The column "reachable" counts each pair once, since $c$ is symmetric.) We estimate the power from the two largest grids and allow an error of 0.02, since terms of
# lower order are still present.

# %%
rows = []
for size in [size for size in (5, 10, 20, 30, 50, 70, 100, 150, 200) if size <= largest]:
    pairs = jl.jipe2(jl.windy_gridworld(size), jl.goal_policy(size), route="reachable").pairs
    rows.append((size**2, 16 * size**4, size**4, pairs))
table = pd.DataFrame(rows, columns=["states", "literal", "collapsed", "reachable"])
print(table.to_string(index=False, formatters=dict.fromkeys(table, "{:,}".format)))

# %%
before, last = table.iloc[-2], table.iloc[-1]
power = np.log(last.reachable / before.reachable) / np.log(last.states / before.states)
near = abs(power - 1.5) < 0.02
claims.check("goal policy: power of |S| that the pairs grow with", f"{power:.2f}", near)
saved, name = last.literal / last.reachable, f"{last.states:,} states: literal / reachable"
claims.check(f"{name} coordinates, collapse alone gives 16", f"{saved:,.0f}", saved > 16)

# %% [markdown]
# ## 7.5 One sweep
#
# A Gauss-Seidel sweep uses new values as soon as they are computed. Suppose that the policy's chain never returns to a state it has left, and number
# the states so that successors come first (Tarjan's strong components give this order). Then *one* sweep solves for the
# means. One sweep over the pairs, ordered by their larger number and then by the smaller, solves for the covariances in the same way. The goal policy is
# such a case: gusts blow to the left, but right-then-up never goes back to a cell it has left.

# %%
kernel = np.einsum("sa,sat->st", goal, grid.marginal_mdp()[0])  # P
components = csgraph.connected_components(kernel, connection="strong")[1]  # successors first
order = np.argsort(components, kind="stable")
number = np.argsort(order)
here, there = np.nonzero(np.tril(kernel, -1) + np.triu(kernel, 1))  # moves to another cell
places = np.stack(np.divmod(np.arange(n), 6)[::-1], -1)  # column and row of each cell
way = places[there] - places[here]
arrow = {"angles": "xy", "scale": 1, "scale_units": "xy", "width": 0.011}
orders = {"row by row": np.arange(n), "successors first": number}

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.4, 3.3))
for ax, (title, own) in zip(axes, orders.items(), strict=True):
    color = np.where(own[there] > own[here], "C1", "C0")
    ax.quiver(*(places[here] + 0.3 * way).T, *(0.4 * way).T, color=color, **arrow)
    for s, (x, y) in enumerate(places):
        ax.text(x, y, own[s], ha="center", va="center")
    ax.set(title=title, xlim=(-0.5, 5.5), ylim=(5.5, -0.5), aspect="equal")
    ax.axis("off")
figures.save(fig, "fig_order", {"number": number}, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.4.** The 6x6 gridworld with its cells numbered row by row, and with successors first. Arrows are the moves of the goal policy, in calm air and in a gust: orange to a later number, blue to an
# earlier one. (A gust that undoes a move to the right leaves the branch where it is, and has no arrow.) With successors first there is no orange.
#
# <!-- alt: Two grids of six by six numbers with arrows between them, to the right in every row, and up or up and to the left in the last column. Row by row, the goal top right is number 5 and all arrows to the right are orange. With successors first the goal is 0, numbers grow to the left and then downwards, and all arrows are blue. -->

# %%
above = np.triu(kernel[np.ix_(order, order)], 1).sum()
claims.check("successors first: sum above the diagonal", f"{above:.1f}", above == 0.0)
middle = jl.windy_gridworld(30)
swept = jl.jipe2(middle, jl.goal_policy(30), route="reachable").iterations
claims.check("900 states, goal policy: iterations", swept, swept <= 3)
krylov = jl.jipe2(middle, jl.uniform_policy(middle), route="dense").iterations
plain = int(np.log(1e-8 * (1 - middle.gamma)) / np.log(middle.gamma**2))
name = f"900 states, uniform policy: share of the {plain} sweeps at rate gamma^2"
claims.check(name, f"{krylov / plain:.1f}", krylov < plain)

# %% [markdown]
# A solution by one sweep takes three applications of the operator: the sweep itself, a second one that finds nothing to change, and one
# for the certificate. If the chain does return to states it has left, the solver accelerates the sweeps with BiCGSTAB, and goes back to plain sweeps if
# that does not help.
#
# ## 7.6 The same answer, certified
#
# Whatever the method, the stopping rule is the paper's. The residual $\|M - T_2 M\|_\lambda$ of what was solved, divided by $1 - \gamma$, bounds
# the error (eq. (23)), also after acceleration. The library has several methods, called *routes*: `reachable` solves for the
# reachable pairs, `dense` for all pairs, and the `dense` route can run in torch. We verify them with the literal operator. Applied to the result of the dense
# route, it must change none of the $|\mathcal S|^2|\mathcal A|^2$ coordinates by more than $10^{-9}$. And every route must give the same moments
# within a state, from which gaps are made. (The reachable route computes no other moments. If you ask it for `full_second`, an error says so.)

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
for name, (jm, policy) in cases.items():
    whole = jl.jipe2(jm, policy, tol=1e-11, route="dense").moments
    mean, second = jl.apply_t2(jm, policy, whole.mean, whole.full_second())
    off = [np.abs(second - whole.full_second()).max()]
    for how in routes.values():
        found = jl.jipe2(jm, policy, tol=1e-11, **how).moments
        apart = found.same_state(2) - np.einsum("sasb->sab", second)
        off.append(max(np.abs(mean - found.mean).max(), np.abs(apart).max()))
    claim = f"{name}: all routes, off the fixed point of the literal T_2 by at most"
    claims.check(claim, f"{max(off):.10f}", max(off) < 1e-9)

# %% [markdown]
# The bound holds for accelerated solutions, too. We compare each one with a far more accurate solution: the true error of the same-state second moments
# must stay below `error_bound`.

# %%
hard = cases["random successors"]
weight = jl.norm_weight(2, scattered.gamma, scattered.reward_bound)
exact = jl.jipe2(*hard, tol=1e-12).moments.same_state(2)
solutions = [jl.jipe2(*hard, tol, **how) for tol in (1e-2, 1e-5, 1e-8) for how in routes.values()]
errors = [np.abs(sol.moments.same_state(2) - exact).max() / weight for sol in solutions]
share = max(e / sol.error_bound for e, sol in zip(errors, solutions, strict=True))
claims.check("three routes and tols: true error / bound, at most", f"{share:.1f}", share <= 1)

# %% [markdown]
# ## 7.7 Gaps of a few states
#
# If you need gaps at only a few states, pass them as `queries=`; only pairs reachable from them are solved. On a large grid
# under the goal policy, branches that start at three cells near the goal stay near it, so they reach as many pairs as on a small grid. Their gaps are the same as in the
# evaluation of all states.

# %%
large, large_goal = jl.windy_gridworld(largest), jl.goal_policy(largest)
near = largest - 1 + largest * np.arange(1, 4)
whole = jl.jipe2(large, large_goal)
few = jl.jipe2(large, large_goal, queries=near)
print(f"everything: {whole.pairs:,} pairs; three states: {few.pairs:,} pairs")
little = jl.jipe2(jl.windy_gridworld(20), jl.goal_policy(20), queries=20 * np.arange(2, 5) - 1)
same = few.pairs == little.pairs
claims.check("pairs for three states, as on a 20x20 grid", f"{few.pairs:,}", same)

# %%
off = np.abs(few.moments.gap_variance[near] - whole.moments.gap_variance[near]).max()
claims.check("three states: gap variances off those of the whole by", f"{off:.8f}", off < 1e-7)
not_asked = few.moments.gap_variance[0, 0, 1]
claims.check("gaps that were not asked for", not_asked, np.isnan(not_asked))

# %% [markdown]
# An evaluation that cannot fit into memory is refused before any work starts. The message says how much it would need.

# %%
million = jl.windy_gridworld(1000)
try:
    jl.jipe2(million, jl.uniform_policy(million), route="dense")
    refusal = ""
except MemoryError as error:
    refusal = str(error).partition(", available")[0]
print(textwrap.fill(refusal, 80))
needed = re.search(r"[\d,]+(?=\.\d+ GiB)", refusal)
claims.check("a million states, all pairs: refused, GiB", needed and needed[0], needed)

# %% [markdown]
# ## 7.8 Order 3
#
# An order-$k$ coordinate follows $k$ branches. After collapse it is a multiset of states, in which merged branches count together. At order 3 the definition has
# $(|\mathcal S||\mathcal A|)^3$ coordinates. Collapse leaves about $|\mathcal S|^3/6$ multisets, with four actions more than 300 times fewer, and on large grids the goal policy does not reach all of them. The third
# moments give the skewness of every gap. We compare the third moment of one gap with simulation and allow four standard errors: a correct answer fails for one seed in 15,000.

# %%
local, local_goal = jl.windy_gridworld(order_size), jl.goal_policy(order_size)
order_3 = jl.jipe(local, local_goal, order=3)
third, defined = order_3.moments, (4 * local.num_states) ** 3
share, n = defined / order_3.pairs, local.num_states
least = defined / (
    n * (n + 1) * (n + 2) / 6 + n * n + n + n * (n + 1) / 2 + 2 * n
)  # if all are reached
claims.check(f"order 3 on {n} states: defined / solved", f"{share:,.0f}", share >= least)
second = jl.jipe2(local, local_goal).moments
off = np.abs(third.gap_variance - second.gap_variance).max()
claims.check("order 3: gap variances off those of order 2 by", f"{off:.7f}", off < 1e-6)

# %%
state = order_size * (order_size // 2) + order_size - 3  # three cells from the right edge
gap = state, 1, 3  # right against left
cubed = third.gap_moment([gap] * 3)
skewness = third.gap_central_moment(gap, 3) / second.gap_variance[gap] ** 1.5
claims.check("skewness of one gap, right against left", f"{skewness:.2f}", skewness > 0)

# %%
pairs = jl.simulate_pairs(local, local_goal, state, (1, 3), num_pairs, seed)
cubes = (pairs[:, 0] - pairs[:, 1]) ** 3
z = (cubes.mean() - cubed) / (cubes.std() / num_pairs**0.5)
claim = "third moment of that gap: simulated minus exact, in standard errors"
claims.check(claim, f"{z:+.1f}", abs(z) < 4, enough=num_pairs >= 1000)

# %% [markdown]
# ## 7.9 What it costs
#
# The lines below were measured by `python benchmarks/scaling.py`, each point in a process of its own. `benchmarks/scaling.md` names
# the machine, the versions and the method. The GPU belongs to another machine. Stars are processor times that this notebook measures while it
# runs; these do not grow when the machine has other work to do. Monte Carlo is a *projection*: the time to estimate all gap variances with a standard error of 1%, at the speed
# measured next to the goal. "Mean only" is what an ordinary MDP solver gives.

# %%
measured = figures.results(result_files).query("table == 'scaling'")
live = []
for size in live_sizes:
    jm = jl.windy_gridworld(size)
    evaluate = partial(jl.jipe2, jm, jl.goal_policy(size), route="reachable")
    evaluate()
    start = time.process_time()
    evaluate()
    live.append((jm.num_states, time.process_time() - start))


# %%
def draw_costs(quantity, unit):
    """States against seconds or bytes, a panel for each problem; one look for each method."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.9), sharex=True, sharey=True)
    marks = ["sk-", "oC0-", "^C1-", "vC5-", "xC4--", "+k--", "C3:", "DC2-"]
    looks = dict(zip(measured.method.unique(), marks, strict=True))
    for ax, (problem, rows) in zip(axes, measured.groupby("problem", sort=False), strict=True):
        for method, look in looks.items():
            line = rows[rows.method == method].dropna(subset=quantity).sort_values("states")
            ax.loglog(line.states, line[quantity] / unit, look, ms=4, label=method)
        ax.set(title=problem, xlabel="states")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig, axes


# %%
fig, axes = draw_costs("seconds", 1.0)
axes[0].set_ylabel("time [s]")
axes[0].plot(*np.transpose(live), "*", color="black", ms=5, zorder=3)
figures.save(fig, "fig_scaling", measured.drop(columns="bytes"), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.5.** The time that all gaps take, against the number of states, for two policies on the gridworld and for a model with random successors; methods as in the legend. Stars: the processor time of reachable pairs in this notebook.
#
# <!-- alt: Three panels on logarithmic axes. The time of the exact routes grows with the number of states, that of the reachable route least under the goal policy; the literal operator stops early, and projected Monte Carlo lies orders of magnitude above. -->

# %%
fig, axes = draw_costs("bytes", 1e6)
axes[0].set_ylabel("memory [MB]")
held = measured[measured.bytes.notna()]
figures.save(fig, "fig_scaling_memory", held.drop(columns="seconds"), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.6.** The memory that all gaps take, against the number of states, as in Figure 7.5.
#
# <!-- alt: Three panels on logarithmic axes. Memory of the exact routes grows with the number of states, by far the least for reachable pairs under the goal policy; dense pairs on a GPU reach a hundred gigabytes at 40,000 states. -->

# %% [markdown]
# ## 7.10 One state of a trillion
#
# If the policy can take every action, as a rule every pair is reached, and a large model cannot be solved as a whole. But a question
# about one state does not need the whole model, because what happens after $t$ steps counts only $\gamma^t$. `local_jipe2`
# works with two nested sets of states that grow outwards from the query.
#
# - In the *explored* states it follows single branches, which takes sparse systems of that size. Let $\tau$ be the time at
#   which a branch leaves them, and $2w$ the width of the range of returns. Then the computed value of a state is off by at most
#   $e = w\,\mathbb E \gamma^{\tau}$. A bound $\bar\sigma$ on the standard deviation of its return follows in the same way.
# - In a small *core* it solves for pairs of branches. A branch that leaves the core, at time $\tau_{\mathrm{core}}$, gets the value of the
#   state that it enters. Only the variance after that time is lost.
#
# Let $G$ be the true gap, $\tilde G$ the gap in the core, and
#
# $$E^2 = 2\, \mathbb E \sum \gamma^{2\tau_{\mathrm{core}}} e^2, \qquad D = \mathbb E \sum \gamma^{2\tau_{\mathrm{core}}} \bar\sigma^2, \qquad h = \mathrm{sd}\, \tilde G - E .$$
#
# The sums are over the two branches; $e$ and $\bar\sigma$ are those of the states that
# they enter when they leave the core, and only paths on which the branches have not merged count. The mean of the gap is off by at most $E$, and its standard deviation by at most the smaller of two bounds:
#
# $$|\mathrm{sd}\, G - \mathrm{sd}\, \tilde G| \le \min\Big\{E + \frac{D}{h + \sqrt{\max(h^2 - D,\, 0)}},\ \ \sqrt{2D}\Big\} .$$
#
# The first bound says that the standard deviation changes by at most $E$, and the variance by at most another $D$; it needs $h > 0$ and is the smaller one where $D$ is small. The second bounds the root-mean-square distance between $G$ and $\tilde G$, and needs no condition. The module
# `jmdp_lib.large.exploration` has the derivation, and the larger $D$ of common noise.
#
# Here is the gridworld with a million times a million cells. They are never enumerated: a function gives the outcome tables of
# a cell.

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
ask = partial(jl.large.local_jipe2, trillion, lambda cell: [0.25] * 4, [(2, side - 3)])
local_answer = ask(tol=1e-2)
found = local_answer.gap_mean[0, 1, 3]  # right against left
print(f"mean gap {found:.3f}, error at most {local_answer.error_bound:.3f}")
print(f"{local_answer.num_explored} states explored")
name = "10^12 states: explored, for gaps certified to 0.01"
claims.check(name, local_answer.num_explored, local_answer.converged)

# %% [markdown]
# How good is the certificate? A grid of 40 by 40 cells can be solved as a whole, and at this discount its far edges do not
# matter. We stop the exploration at several budgets and compare the certified error with the true one.

# %%
window = jl.windy_gridworld(40, gamma=0.9)
cell = 40 * 2 + 37
truth = jl.jipe2(window, jl.uniform_policy(window), queries=[cell]).moments.gap_variance[cell]
rows = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)
    for budget in (5, 10, 20, 40, 80, 160, local_answer.num_explored):
        loc = ask(tol=1e-2, max_states=budget)
        off = np.abs(np.sqrt(loc.gap_variance[0]) - np.sqrt(truth)).max()
        rows.append((loc.num_explored, loc.error_bound, off))
grown = pd.DataFrame(rows, columns=["explored", "certified", "true"])
share = (grown.true / grown.certified).max()
claims.check("one state of a trillion: true / certified error, at most", f"{share:.2f}", share <= 1)

# %%
cells = np.array(local_answer.explored) - [0, side - 40]
seen = np.full((cells[:, 0].max() + 1, 40 - cells[:, 1].min()), np.nan)
seen[cells[:, 0], cells[:, 1] - cells[:, 1].min()] = local_answer.visits
fig, (ax, right) = plt.subplots(1, 2, figsize=(7.2, 2.5))
image = figures.heatmap(ax, np.ma.masked_invalid(seen), norm=LogNorm())
fig.colorbar(image, ax=ax, label="discounted visits", shrink=0.8)
ax.set(title="what was explored", xlabel="last columns", ylabel="row")
ax.set(xticks=[], yticks=[0, 5, 10, 15])
right.loglog(grown.explored, grown[["certified", "true"]], "o-", label=["certified", "true"])
right.set(xlabel="states explored", ylabel="error of a gap's sd")
right.legend()
figures.save(fig, "fig_trillion", grown, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 7.7.** Left: the corner of the grid that was explored, with the goal at its top right; the colour says how often branches that have not merged visit a
# cell, discounted by $\gamma^2$ per step. Right: the error that is certified, and the true one, as the exploration grows.
#
# <!-- alt: Left, a heat map of a corner of the grid, with most visits around the queried cell near the goal and fewer outwards. Right, two falling lines on logarithmic axes; the certified error stays above the true one throughout. -->

# %% [markdown]
# `local_jipe2` accepts a `JMDP` as well, for models that were enumerated but whose pairs do not fit into memory.
# `benchmarks/local.md` shows what it costs.
#
# **A practitioner's example.** A shop has six products with 32 stock levels each, about a billion states. One market mood per
# day moves all demands, and it is the same whether we ordered or not (`coupling="common"`). The policy fills all stocks up to
# 12 as soon as one of them is down to 5. Should we order today?

# %%
demands = [(0,) * 6, (1,) * 6, (2, 1, 0, 0, 1, 2), (0, 2, 2, 1, 0, 1)]


def day(stock, order, mood):
    filled = [max(x, 12) if order else x for x in stock]
    ordered, sold = sum(filled) - sum(stock), list(map(min, filled, demands[mood]))
    left = tuple(x - y for x, y in zip(filled, sold, strict=True))
    return 3.0 * sum(sold) - 1.5 * ordered - 4.0 * (ordered > 0) - 0.05 * sum(left), left


# %%
shop = jl.large.ImplicitJMDP.from_step(2, 0.95, [0.25] * 4, day, reward_range=(-150.0, 36.0))
stock = (8, 9, 7, 8, 9, 8)
tol = 0.01 / shop.reward_bound  # relative to the largest reward: a gap to 0.01
today = jl.large.local_jipe2(shop, lambda s: int(min(s) <= 5), [stock], tol, coupling="common")
mean, deviation = today.gap_mean[0, 1, 0], today.gap_variance[0, 1, 0] ** 0.5
print(f"ordering today: {mean:+.2f}, standard deviation {deviation:.2f}")
print(f"{today.num_explored} states explored")
assert mean + 0.01 < 0
claims.check("10^9 stocks: explored, for a gap to 0.01", today.num_explored, today.converged)

# %% [markdown]
# No: with eight or so of each product in stock, ordering today loses 5.29 on average.
#
# **The law of such a gap.** Means and standard deviations are certified, but the whole law of a gap at such a state is not. You can
# still *simulate* it. A query is one draw of a state's tables, so `estimate_gaps` and `compare_actions` accept an
# `ImplicitJMDP`, and its states can be anything hashable. Estimates come with their statistical errors: standard
# errors for the mean and the variance, and confidence intervals for the probability that one action is worse or better than the
# other. With `keep_returns=True` the returns of all runs are kept as well. In the grid of $10^{12}$ cells we simulate right against left.

# %%
asked = {"policy": lambda cell: [0.25] * 4, "actions": [1, 3], "state": (2, side - 3)}
simulated = jl.simulators.estimate_gaps(trillion, **asked, num_runs=2000, seed=seed)
for name in ("better", "tie", "worse"):
    low, high = (end[0, 1] for end in simulated.interval(f"prob_{name}"))
    print(f"right against left, {name + ':':7} {low:.3f} to {high:.3f}")
print(f"mean gap {simulated.mean[0, 1]:.2f}, standard error {simulated.mean_error[0, 1]:.2f}")
off = simulated.mean[0, 1] - local_answer.gap_mean[0, 1, 3]
known = np.max(simulated.truncation_error) + local_answer.error_bound  # of both answers
z = max(abs(off) - known, 0.0) / simulated.mean_error[0, 1]
claim = "10^12 states: simulated mean off the certified one, in standard errors"
claims.check(claim, f"{z:.1f}", z < 4)

# %% [markdown]
# In most runs neither branch reaches the goal before the run is cut off. They count as ties, but any sign is still possible, which the intervals allow for; of the others, right wins about four times as often as left. Compare the errors of the mean: 2,000 runs leave a standard error of about 0.04, and a tenth of that takes a hundred times as many runs. The certified mean
# is within 0.01 of the truth. For a decision, `compare_actions` simulates until it knows which action is better; its intervals hold at every
# sample size, since the model declares its range of rewards.

# %%
decision = jl.simulators.compare_actions(trillion, **asked, seed=seed)
print(f"{decision.verdict}: action {decision.best}, after {decision.num_queries:,} queries")
right = decision.verdict == "undecided" or decision.best == 1
claims.check("10^12 states: right or left, decided by simulation", decision.verdict, right)

# %% [markdown]
# ## What to take away
#
# - Between states the operator uses only averages over the policy, covariance arises only where two branches share a state, and gaps often reach few pairs. None of this
#   is an approximation: every route has the same fixed point as the literal operator.
# - If successors scatter or the policy wanders, all $|\mathcal S|^2$ pairs are reached. The dense route solves for all of
#   them, faster with a GPU.
# - Ask for the states you care about. If the model is too large to enumerate, `local_jipe2`
#   explores what the question needs and says how far off the answer may be.
#
# ## Exercises
#
# **Exercise 1.** Mix the goal policy with a little noise, `jl.epsilon_mixture(goal, 0.05)`. How many pairs of the 6x6 grid
# does it reach, and is one sweep still enough?
#
# <details><summary>Solution</summary>
#
# It reaches all 666 unordered pairs: reachability asks what can happen, however small the probability. The chain now returns to cells that it has left, so no numbering
# puts all successors first, and one sweep is not enough. The solver accelerates the sweeps instead.
#
# </details>

# %% tags=["hide-cell"]
noisy = jl.jipe2(grid, jl.epsilon_mixture(goal, 0.05), route="reachable")
text = f"{noisy.pairs}, {noisy.iterations}"
claims.check("exercise 1: pairs, iterations", text, noisy.pairs == 666 and noisy.iterations > 3)

# %% [markdown]
# **Exercise 2.** Let the wind blow down (`gust="D"`). Are fewer or more pairs of the 6x6 grid reached under the goal policy,
# and why?
#
# <details><summary>Solution</summary>
#
# Fewer: 325 instead of 522. A gust to the left holds a branch back again and again, so the other branch can get any number
# of columns ahead. A gust down changes only the row. Both branches then move one column to the right in every step, and the first
# actions have put them at most two columns apart.
#
# </details>

# %% tags=["hide-cell"]
down = jl.windy_gridworld(6, gust="D")
reached = np.argwhere(steps_to_reach(down, goal, np.arange(36)) > 0)
columns_apart = np.abs(np.diff(reached % 6, axis=1)).max()
fewer = jl.jipe2(down, goal, route="reachable").pairs
claims.check(
    "exercise 2: pairs, columns apart", f"{fewer}, {columns_apart}", fewer < count["goal policy"]
)
assert columns_apart == 2

# %% [markdown]
# **What to read next.** Chapter 8 learns from samples, without known tables. Chapter 9 computes the whole law of a gap on
# the same pairs.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
