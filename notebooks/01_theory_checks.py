# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Theory checks: joint MDPs from the definitions up
#
# Two actions, one state. How much better is the first? Its *mean* advantage depends on each action alone. The *certainty* of that advantage depends on what the two do **together**, under the same realised randomness, and a Markov decision process does not say this. A **joint MDP** does.
#
# **What you will learn.** The paper's definitions; the operator $T_2$ and exactly which random draws the futures of two actions share; why it is a contraction, and how its residual certifies an answer; moments of any order; and the variance of a gap.
#
# **What it needs.** Markov decision processes, expectation, variance and covariance, and the idea of a contraction. [Notation and background](../book/background.md) lists every symbol. To run it: `pip install -e ".[notebooks]"` in the project's folder.
#
# [Reading the paper](../book/paper.md) lists what we decided where the paper is silent or slips.

# %% tags=["parameters"]
seed = 0
num_pairs = 40000  # at least 1000
out_dir = ""

# %%
from itertools import product
from math import comb

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import FancyBboxPatch

import jmdp_lib as jl
from notebooks.tools import chapter

chapter.style()
claims = chapter.Claims()
assert num_pairs >= 1000, f"{num_pairs=}: at least 1000"
rng = np.random.default_rng(seed)

# %% [markdown]
# ## 1.1 From MDPs to joint MDPs
#
# Definitions, lemmas, theorems and equations, such as (6), have the paper's numbers.
#
# **Definition 3.1 (MDP).** A Markov decision process is $(\mathcal S, \mathcal A, P_R, P_S, \gamma)$: finitely many states $s$ and actions $a$, a distribution $P_R(\cdot \mid s, a)$ of the reward, a distribution $P_S(\cdot \mid s, a)$ of the next state, and a discount factor $0 < \gamma < 1$. The paper takes rewards in $[0, 1]$. A **policy** $\pi(\cdot \mid s)$ is a distribution of actions in each state. The **return** of taking $a$ in $s$ and following $\pi$ afterwards is
#
# $$Z^\pi(s, a) = \sum_{t \ge 0} \gamma^t R_t, \qquad S_0 = s,\ A_0 = a. \tag{1}$$
#
# **Definition 3.2 (sample transition model, STM).** Ordinary experience is a stream of $(S, A, R, S')$ with
#
# $$S \sim \xi, \quad A \sim \pi(\cdot \mid S), \quad R \sim P_R(\cdot \mid S, A), \quad S' \sim P_S(\cdot \mid S, A). \tag{2}$$
#
# Each draw shows the outcome of *one* action. What another action would have done at the same moment is not part of the model. So the distribution of a difference $Z^\pi(s, a) - Z^\pi(s, b)$ is not defined.
#
# **Definition 4.1 ($m$-joint sample transition model, $m$-JSTM).** Ask for $m$ *distinct* actions at one state, and get the $m$ outcomes that they would have had under the same randomness. Such a query is a kernel
#
# $$\mathcal J_m(\cdot \mid s, a_1, \dots, a_m) \quad\text{over}\quad \big((R_1, S'_1), \dots, (R_m, S'_m)\big), \tag{3}$$
#
# whose $i$-th coordinate alone is an ordinary transition of the MDP (4): $R_i \sim P_R(\cdot \mid s, a_i)$, $S'_i \sim P_S(\cdot \mid s, a_i)$. What is new is only the *dependence* between the coordinates. A joint distribution with given marginals is called a **coupling** of them.
#
# **Definition 4.2 (coupled-dynamics environment).** An environment is coupled if its $\mathcal J_m$, for some $m \ge 2$, is at some state and actions *not* the product of its marginals ([decision 14](../book/paper.md#decision-14)).
#
# **Definition 4.3 (joint MDP, JMDP).** A joint MDP is $(\mathcal S, \mathcal A, \gamma, \mathcal J)$, where $\mathcal J(\cdot \mid s)$ is a distribution over **outcome tables** $\big((R^{(a)}, S'^{(a)})\big)_{a \in \mathcal A}$. A table has one row for every action: what it would have earned, and where it would have led. At time $t$ the environment draws a table at $S_t$, and the agent picks $A_t$ and receives the outcome in its row. The other rows are *counterfactual*.
#
# **Remark 4.4.** A joint MDP contains the others as marginals. One row of the table gives the MDP (5), $m$ rows give the $m$-JSTM (6):
#
# $$\mathcal J_m(\cdot \mid s, a_{1:m}) = \mathrm{Law}\big((R^{(a)}, S'^{(a)})_{a \in a_{1:m}}\big), \qquad \big((R^{(b)}, S'^{(b)})\big)_{b \in \mathcal A} \sim \mathcal J(\cdot \mid s). \tag{6}$$
#
# In the library a `JMDP` is a list of tables with probabilities for each state. `marginal_mdp` is (5), and `query` is (6): it draws **one** table and shows the rows of the queried actions.
#
# **Examples.** *Example 1* has one state and a fair coin $U$, with $R^{(0)} = U$ and $R^{(1)} = 1 - U$ (we count actions from 0, the paper from 1). *Example 2* has two states; each action jumps to a uniformly random state, and both jump either to the same one (2.1) or to opposite ones (2.2). `is_coupled` says whether at some state the outcomes of the actions are dependent:

# %%
examples = {
    "Example 1": jl.example_1(),
    "Example 2.1": jl.example_2_1(),
    "Example 2.2": jl.example_2_2(),
}
for name, jm in examples.items():
    print(f"{name}: coupled dynamics, {jm.is_coupled}")
rewards, next_states = examples["Example 1"].query(state=0, actions=[0, 1], rng=rng)
print("one table of Example 1: rewards", rewards, "next states", next_states)
assert rewards.sum() == 1  # one coin for both

# %% [markdown]
# Examples 2.1 and 2.2 are the *same MDP*: no amount of ordinary experience distinguishes them. Yet the variance of the gap $G = Z(s, a) - Z(s, b)$ differs. The paper gives Example 2 no rewards; we let state 1 pay 1 and state 0 nothing, whatever the action, and the policy tosses a fair coin. In Example 2.1 both actions earn the same and lead to the same state, so the gap is zero. (`JMDP.from_mdp` builds Example 2.1 from this MDP.)

# %%
assert all(jm.is_coupled for jm in examples.values())
four = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]  # a coin for each action
assert not jl.JMDP([[0.25] * 4], [four], np.zeros((1, 4, 2), int), gamma=0.9).is_coupled
same, opposite = examples["Example 2.1"], examples["Example 2.2"]
for one, other in zip(same.marginal_mdp(), opposite.marginal_mdp(), strict=True):
    assert np.array_equal(one, other)
lucky = jl.JMDP.from_mdp(*opposite.marginal_mdp(), opposite.gamma)
solved = [jl.jipe2(jm, jl.uniform_policy(jm)).moments for jm in (same, opposite, lucky)]
gaps = [m.gap_variance[0, 0, 1] for m in solved]

# %%
differ = max(gaps[0], gaps[2]) < 1e-6 < 1 < gaps[1]
text = ", ".join(f"{gap:.3f}" for gap in gaps)
claims.check("Var G: Example 2.1 = from_mdp = 0, Example 2.2 > 1", text, differ)

# %% [markdown]
# ## 1.2 Shared noise for one step
#
# The definition says how one table is drawn. A return adds up rewards over infinitely many steps. Call the futures of two actions **branches**: what do two branches share *later*?
#
# **Assumption 4.5 (exogenous noise).** There are independent, identically distributed shocks $U_t$ and maps $g: \mathcal S \times \mathcal A \times \mathcal U \to [0, 1]$ and $h: \mathcal S \times \mathcal A \times \mathcal U \to \mathcal S$ (7) with
#
# $$R_t^{(a)} = g(s, a, U_t), \qquad S_{t+1}^{(a)} = h(s, a, U_t) \qquad\text{for all actions } a, \tag{8}$$
#
# so that the table is $\big((g(S_t, a, U_t), h(S_t, a, U_t))\big)_a$ (9).
#
# **The one-step coupling regime.** Two branches that are at the *same* state read the *same* table. Two branches that are at *different* states draw independently. (Read literally, (8) has one $U_t$ for all states: [decision 5](../book/paper.md#decision-5).)
#
# `JMDP.from_step` builds tables from exactly this: a function `step(s, a, u)` that returns $g$ and $h$, and the probabilities of $U$.
#
# **Definition 4.6 (joint return vector).** $Z^\pi(s) = (Z^\pi(s, a))_{a \in \mathcal A}$: the returns of all actions of one state, as random variables on one probability space. Branches share the first table, and later a table whenever they are at one state. Two branches at one state that also take the same action are the same branch from then on: they have **merged**.

# %% tags=["hide-input"]
# Heights of two branches by time; a difference below one means one state.
paths = np.array([(2.2, 1.8), (3.0, 1.0), (3.0, 1.0), (2.2, 1.8), (2.0, 2.0)])


def draw_box(ax, time, heights, color):
    """One draw, round the branches that share it."""
    corner = (time - 0.12, np.min(heights) - 0.02)
    look = {"boxstyle": "round,pad=0.15", "fc": color, "ec": "0.4", "lw": 0.7}
    ax.add_patch(FancyBboxPatch(corner, 0.24, np.ptp(heights) + 0.04, **look))


def draw_who_shares(ax, coupling):
    """Two branches, and who shares a draw, until they have merged."""
    for path, color in zip(paths.T, ("#0072B2", "#D55E00"), strict=True):
        ax.plot(path, "o-", color=color, ms=5, lw=1.4, zorder=3)
    ax.plot([4, 4.7], [2, 2], "o-", color="black", ms=5, lw=2.8, markevery=[0], zorder=4)
    for time, heights in enumerate(paths[:-1]):
        if coupling == "common" or (coupling == "joint" and np.ptp(heights) < 1):
            draw_box(ax, time, heights, "#F6C9A8")
        else:
            for height in heights:
                draw_box(ax, time, height, "#BFDCEF")
    draw_box(ax, 4, paths[-1], "#BFDCEF")
    ax.set_yticks([1, 2, 3], ["state 1", "state 2", "state 3"])
    ax.set(xticks=range(5), xlabel="time", xlim=(-0.5, 4.8), ylim=(0.5, 3.5))
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


# %%
couplings = ("independent", "joint", "common")
stands = [("same", "different"), ("different", "-"), ("different", "-"), ("same", "different")]
fig, axes = plt.subplots(1, 3, figsize=(6.75, 1.9), sharey=True)
for ax, coupling in zip(axes, couplings, strict=True):
    draw_who_shares(ax, coupling)
    ax.set_title(coupling)
data = pd.DataFrame([*stands, ("same", "same")], columns=["state", "action"])
chapter.save(fig, "fig_who_shares", data.assign(time=range(5)), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.1.** Who shares a draw? Two branches (blue, orange) leave state 2 with different actions, part, meet at time 3 in one state, again with different actions, and at time 4 also take the same action: they have merged (black). A pale orange box is one draw for both branches, a pale blue box a draw for one branch alone. Note that in the paper's regime, the middle panel, branches share a draw exactly while they are at one state.
#
# <!-- alt: Three panels with the same two paths, which start at one state, separate, meet again and become one black path. Independent: every dot has a blue box. Joint: an orange box holds both dots at times 0 and 3, blue boxes hold those at times 1 and 2. Common: an orange box holds both at times 0 to 3. -->

# %% [markdown]
# **Such a vector exists** ([decision 15](../book/paper.md#decision-15)). Here is a construction, for all state-actions $x = (s, a)$ of $\mathcal X = \mathcal S \times \mathcal A$ at once. At each time $t$, draw independently one table for *every* state, which says where each state-action leads, and then, for *every* state-action, a next action from the policy at the state to which it leads. Together the draws are a **random map** $f_t$ of $\mathcal X$ into itself, $f_t(x) = (S', A')$, with rewards $R_t(x)$. The draws of different times are independent. Then let
#
# $$Z^\pi(x) = \sum_{t \ge 0} \gamma^t\, R_t\big(f_{t-1} \circ \dots \circ f_0\,(x)\big), \qquad x \in \mathcal X .$$
#
# Rewards are bounded, so the sum converges. Three things follow.
#
# - **It is the one-step regime.** Each branch alone reads the table of its state and draws a new action at each time, so it has the distribution of the return (1). Two branches at one state read one table; at two states they read two independent tables.
# - **Branches merge**, because maps *coalesce*: if $f_t$ sends two state-actions to the same one, all later maps move them together.
# - **One step splits off**: $Z(x) = R_0(x) + \gamma\, Z_1(f_0(x))$, where $Z_1$ is made of $f_1, f_2, \dots$ in the same way. So $Z_1$ is independent of the first map and has the distribution of $Z$.
#
# Figure 1.2 shows nine such maps of a small shop that orders at random. From here on a model is given as arrays: state $s$ draws table $k$ with probability `probs[s, k]`, and in it action $a$ earns `rewards[s, k, a]` and leads to `next_states[s, k, a]`.


# %%
def as_arrays(jm):
    """Probabilities (S, K), rewards and next states (S, K, A), of K tables in every state."""
    parts = jm.probs, jm.rewards, jm.next_states
    return [part.reshape(jm.num_states, -1, *part.shape[1:]) for part in parts]


def random_map(jm, policy, rng):
    """Where one draw for all state-actions leads each of them, (S A,)."""
    probs, _, next_states = as_arrays(jm)
    tables = [rng.choice(len(p), p=p) for p in probs]  # one for every state
    after = next_states[range(jm.num_states), tables]  # (S, A)
    chosen = (rng.random(after.shape)[..., None] > policy.cumsum(1)[after]).sum(-1)
    return (jm.num_actions * after + chosen).ravel()


# %%
shop = jl.inventory(3, 2, demand_probs=[0.25, 0.5, 0.25])
draws = np.random.default_rng([425, 1])  # with this seed two orders meet in the middle
maps = [random_map(shop, jl.uniform_policy(shop), draws) for _ in range(9)]
where = [np.arange(12)]
for f in maps:
    where.append(f[where[-1]])
where = np.array(where)  # (10, 12): f_{t-1} o ... o f_0
num_left = [len(set(row)) for row in where]
met = int(np.argmax(where[:, 7] == where[:, 8]))  # stock 2: order 1 and order 2
assert (np.diff(num_left) <= 0).all()  # what has merged stays together

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(5.4, 3.0))
for time, f in enumerate(maps):
    ax.plot([time, time + 1], [np.arange(12), f], ".-", color="0.85", lw=0.8, ms=3)
ax.plot(where, ".-", color="0.5", lw=1.1, ms=3)
for x, color in ((7, "#0072B2"), (8, "#D55E00")):
    ax.plot(where[: met + 1, x], "o-", color=color, ms=4)
ax.plot(np.arange(met, 10), where[met:, 7], "o-", color="black", lw=2.6, ms=4)
for time, count in enumerate(num_left):
    ax.text(time, 11.7, count, ha="center", va="bottom")
ax.text(-0.45, 11.7, "branches", ha="right", va="bottom")
ax.set(xlabel="time $t$", yticks=[1, 4, 7, 10], yticklabels=[f"stock {s}" for s in range(4)])
ax.hlines([2.5, 5.5, 8.5], -0.3, 9.3, color="0.7", lw=0.6, ls=":")
ax.grid(visible=False)
data = pd.DataFrame(where, columns=[f"stock {x // 3}, order {x % 3}" for x in range(12)])
chapter.save(fig, "fig_random_maps", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.2.** Nine random maps of the twelve state-actions of a shop, three orders for each stock. A line leads from each state-action at time $t$ to where $f_t$ sends it. Dark lines are branches that started at time 0. Blue and orange: order 1 and order 2 with two in stock, until they meet; black after that. Note that the number of different branches, at the top, falls from twelve to one.
#
# <!-- alt: Twelve rows over ten time steps, with pale lines from each row to a row one step later. Dark lines run together into fewer and fewer paths; the numbers at the top are 12, 7, 7, 5, 3, 3, 3, 2, 1, 1. A blue and an orange path start side by side, meet at time 4 and continue as one black path. -->

# %% [markdown]
# `simulate_returns` samples all returns of a model from such maps. It does not use moments, so it can check them. We compare the covariances of *all* state-actions of the *windy gridworld* (section 0.3), here with 3x3 cells and the uniform policy. (A deterministic policy would not show whether next actions are drawn for each state-action or only for each state.) Returns from the goal are constant; the others have 528 variances and covariances. We allow six Monte Carlo standard errors; by the normal approximation, a correct answer would exceed this for about one seed in a million.

# %%
grid = jl.windy_gridworld(3)
even = jl.uniform_policy(grid)
m = jl.jipe2(grid, even, tol=1e-10).moments
exact = m.full_second().reshape(36, 36) - np.outer(m.mean, m.mean)
num_samples = min(num_pairs, 10_000)
z = jl.simulate_returns(grid, even, num_samples, rng=seed).reshape(num_samples, -1)
z = z - z.mean(0)

# %%
sampled = z.T @ z / num_samples
error = np.sqrt(np.maximum((z**2).T @ z**2 / num_samples - sampled**2, 1e-20) / num_samples)
varies = np.triu(np.outer(m.variance.ravel() > 1e-9, m.variance.ravel() > 1e-9))
worst = (np.abs(sampled - exact) / error)[varies].max()
claim = f"{varies.sum()} covariances of random maps: largest error < 6 s.e."
claims.check(claim, f"{worst:.1f}", worst < 6, enough=num_pairs >= 1000)

# %% [markdown]
# This chapter computes the first two moments of the vector, for all $x = (s, a)$ and $y = (\tilde s, \tilde a)$ of $\mathcal X$:
#
# $$\mu^\pi(s, a) = \mathbb E\, Z^\pi(s, a), \qquad \Sigma^\pi(s, a, \tilde s, \tilde a) = \mathbb E\big[Z^\pi(s, a)\, Z^\pi(\tilde s, \tilde a)\big]. \tag{10, 11}$$
#
# ## 1.3 The operator
#
# A **moment collection** $M = (M_\mu, M_\Sigma)$ is any pair of functions, $M_\mu$ on $\mathcal X$ and $M_\Sigma$ on $\mathcal X^2$ (12): a guess of the moments.
#
# **Definition 5.1 (second-order joint Bellman operator).** $T_2^\pi$ maps a guess to a better one, by looking one step ahead:
#
# $$(T_2 M)_\mu(x) = \mathbb E\big[R + \gamma M_\mu(X')\big], \tag{13}$$
# $$(T_2 M)_\Sigma(x, y) = \mathbb E\big[R \tilde R + \gamma R\, M_\mu(Y') + \gamma \tilde R\, M_\mu(X') + \gamma^2 M_\Sigma(X', Y')\big], \tag{14}$$
#
# where $x = (s, a)$ earns $R$ and leads to $X' = (S', A')$, and $y = (\tilde s, \tilde a)$ earns $\tilde R$ and leads to $Y' = (\tilde S', \tilde A')$. The four terms are the product $\big(R + \gamma Z(X')\big)\big(\tilde R + \gamma Z(Y')\big)$, multiplied out. The coupling enters only through the *joint distribution* under which the expectation is taken. There are three cases.

# %% tags=["hide-input"]
shared, own = "#F6C9A8", "#BFDCEF"  # one draw for both factors; a draw of its own
ahead, other = "$(S', A')$", r"$(\tilde S', \tilde A')$"
each = [(r"$A' \sim \pi$", own), (r"$\tilde A' \sim \pi$", own)]
outcomes, merge = (
    ["$(R, S')$", r"$(\tilde R, \tilde S')$"],
    "if these are equal: one branch from here on",
)
laws = {  # state-actions, tables drawn, outcomes, actions drawn, next state-actions, what follows
    "one branch\neqs. (15), (16)": (
        ["$(s, a)$"],
        [("table of $s$", shared)],
        outcomes[:1],
        [(r"$A' \sim \pi$", shared)],
        [ahead],
        "still one branch",
    ),
    "two actions, one state\neq. (18)": (
        ["$(s, a)$", r"$(s, \tilde a)$"],
        [("one table of $s$, both rows read", shared)],
        outcomes,
        each,
        [ahead, other],
        merge,
    ),
    "two states\neq. (17)": (
        ["$(s, a)$", r"$(\tilde s, \tilde a)$"],
        [("table of $s$", own), (r"table of $\tilde s$", own)],
        outcomes,
        each,
        [ahead, other],
        merge,
    ),
}


def show_law(ax, rows, end):
    """The draws of one case, from top to bottom; boxes are draws."""
    for height, row in enumerate(reversed(rows)):
        for x, item in zip((0.5,) if len(row) == 1 else (0.22, 0.78), row, strict=True):
            text, color = item if isinstance(item, tuple) else (item, None)
            box = {"boxstyle": "round,pad=0.35", "fc": color, "ec": "0.4", "lw": 0.7}
            look = {"ha": "center", "va": "center", "fontsize": 7.5}
            ax.text(x, height, text, bbox=box if color else None, **look)
    for x in (0.5,) if len(rows[0]) == 1 else (0.22, 0.78):
        for height in range(4):
            arrow = {"arrowstyle": "-|>", "color": "0.4", "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x, height + 0.28), (x, height + 0.72), arrowprops=arrow)
    ax.text(0.5, -0.62, end, ha="center", va="center", fontsize=6.5, style="italic")
    ax.set(xlim=(0, 1), ylim=(-0.85, 4.4))
    ax.axis("off")


# %%
fig, axes = plt.subplots(1, 3, figsize=(6.75, 3.3), width_ratios=[0.75, 1.25, 1.25])
for ax, (title, (*rows, end)) in zip(axes, laws.items(), strict=True):
    show_law(ax, rows, end)
    ax.set_title(title)
drawn = [
    (t.split("\n")[0], i[0], i[1] == shared)
    for t, law in laws.items()
    for row in law[1:4:2]
    for i in row
]
data = pd.DataFrame(drawn, columns=["case", "draw", "shared"])
chapter.save(fig, "fig_shared_draws", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.3.** What is drawn together in $(T_2 M)_\Sigma$. Read each column from top to bottom; boxes are random draws. Orange draws are shared by both factors of the product, blue ones belong to one branch. Note that next actions are drawn independently unless the two factors are one branch.
#
# <!-- alt: Three flow diagrams. One branch: a single table and a single next action serve both factors. Two actions at one state: one shared table, of which both rows are read, then two separate next actions. Two states: two separate tables and two separate next actions. If both branches end at the same state and action they are one branch from there on. -->

# %% [markdown]
# In symbols, with $\mathcal J_1$ and $\mathcal J_2$ the sample transition models of (6):
#
# - **One branch**, as in (13), and in (14) with $(s, a) = (\tilde s, \tilde a)$: $(R, S') \sim \mathcal J_1(\cdot \mid s, a)$ and $A' \sim \pi(\cdot \mid S')$ (15), used for *both* factors. So (14) becomes (16), $\mathbb E\big[R^2 + 2\gamma R M_\mu(X') + \gamma^2 M_\Sigma(X', X')\big]$.
# - **Two states**, $s \ne \tilde s$: $(R, S') \sim \mathcal J_1(\cdot \mid s, a)$ and $(\tilde R, \tilde S') \sim \mathcal J_1(\cdot \mid \tilde s, \tilde a)$, and next actions $A' \sim \pi(\cdot \mid S')$, $\tilde A' \sim \pi(\cdot \mid \tilde S')$, all independent between the branches (17).
# - **Two actions, one state**, $s = \tilde s$, $a \ne \tilde a$: $(R, S', \tilde R, \tilde S') \sim \mathcal J_2(\cdot \mid s, (a, \tilde a))$, one table, and then next actions independently, as before (18).
#
# **The true moments are a fixed point**, $M^\pi = T_2 M^\pi$ (19). By section 1.2, $Z(x) = R + \gamma Z_1(X')$, where $Z_1$ is independent of the first step and has the distribution of $Z$. Multiply two such returns and take the expectation, first conditionally on the draws of Figure 1.3. Every $Z_1$ then becomes a $\mu$, and every product of two a $\Sigma$.
#
# **In code.** Average out the next actions first: $v(s) = \mathbb E\, M_\mu(s, A')$; $w(s, t) = \mathbb E\, M_\Sigma(s, A', t, \tilde A')$ for two branches, with independent next actions; $d(s) = \mathbb E\, M_\Sigma(s, A', s, A')$ for one branch. Then average over the tables.
#
# **Two branches that arrive at one state, $s = t$, and draw the same action are one branch from then on.** In $w(s, s)$, the terms with $A' = \tilde A'$ are those on the diagonal of $M_\Sigma$.


# %%
def t2(probs, rewards, next_states, gamma, policy, mean, second):
    """T_2 M: mean (S, A) and second moments (S, A, S, A), from those of M."""
    v = np.einsum("sa,sa->s", policy, mean)
    w = np.einsum("sa,tb,satb->st", policy, policy, second)
    d = np.einsum("sa,sasa->s", policy, second)
    new_mean = np.einsum("sk,ska->sa", probs, rewards + gamma * v[next_states])  # (13)
    new_second = np.empty_like(second)
    for (s, a), (t, b) in product(np.ndindex(mean.shape), repeat=2):
        # how likely x reads table k and y table l, (K, K): one draw (18), or two (17)
        prob = np.diag(probs[s]) if s == t else np.outer(probs[s], probs[t])
        r, x = rewards[s, :, a, None], next_states[s, :, a, None]  # (K, 1)
        q, y = rewards[t, :, b], next_states[t, :, b]  # (K,)
        later = d[x] if (s, a) == (t, b) else w[x, y]  # (16), or two branches
        inside = r * q + gamma * (r * v[y] + q * v[x]) + gamma**2 * later
        new_second[s, a, t, b] = np.sum(prob * inside)  # (14)
    return new_mean, new_second


# %% [markdown]
# **Two sweeps by hand.** Take Example 2.2, with the rewards of section 1.1, $\gamma = 0.9$ and a fair coin as policy. From $M_0 = 0$ two sweeps give, for the state-actions $(0, 0), (0, 1), (1, 0), (1, 1)$ in this order,
#
# $$\mu_1 = (0, 0, 1, 1), \qquad \mu_2 = (0.45, 0.45, 1.45, 1.45),$$
# $$\Sigma_1 = \begin{pmatrix} 0 & 0 & 0 & 0 \\ 0 & 0 & 0 & 0 \\ 0 & 0 & 1 & 1 \\ 0 & 0 & 1 & 1 \end{pmatrix},$$
# $$\Sigma_2 = \begin{pmatrix} 0.405 & 0 & 0.6525 & 0.6525 \\ 0 & 0.405 & 0.6525 & 0.6525 \\ 0.6525 & 0.6525 & 2.305 & 1.9 \\ 0.6525 & 0.6525 & 1.9 & 2.305 \end{pmatrix}.$$
#
# The first row of $\Sigma_2$ has all three cases. *One branch* is in state 1 next with probability $\tfrac12$: $\gamma^2 \cdot \tfrac12 = 0.405$. *Two actions of state 0* lead to opposite states, of which one pays nothing: 0. *Two states:* $(1, 0)$ earns 1, the other branch is in state 1 next with probability $\tfrac12$, and both are with probability $\tfrac14$: $\gamma \cdot \tfrac12 + \gamma^2 \cdot \tfrac14 = 0.6525$. So after two sweeps the gap in state 0, whose mean is zero, has the variance $0.405 + 0.405 - 2 \cdot 0 = 0.81$. In the end it is 1.879 (exercise 1).
#
# `apply_t2` is the library's `t2`, and `jipe2` finds the fixed point. They must agree with ours, from a random guess on the gridworld and after 400 sweeps of Example 2.2:


# %%
def random_collection(jm):
    shape = (jm.num_states, jm.num_actions)
    return rng.normal(size=shape), rng.normal(size=shape + shape)


guess = random_collection(grid)
one_sweep = t2(*as_arrays(grid), grid.gamma, even, *guess)
pairs = list(zip(one_sweep, jl.apply_t2(grid, even, *guess), strict=True))

# %%
half = np.full((2, 2), 0.5)  # of tables (S, K), and of actions (S, A)
pays = np.array([[[0.0, 0.0]] * 2, [[1.0, 1.0]] * 2])  # (S, K, A): state 1 pays 1
leads = np.array([[[0, 1], [1, 0]]] * 2)  # (S, K, A): opposite states
sweeps = [(np.zeros((2, 2)), np.zeros((2, 2, 2, 2)))]
for _ in range(400):
    sweeps.append(t2(half, pays, leads, 0.9, half, *sweeps[-1]))
print(sweeps[2][1].reshape(4, 4))
fixed = jl.jipe2(opposite, half, tol=1e-12).moments
pairs += list(zip(sweeps[-1], (fixed.mean, fixed.full_second()), strict=True))
apart = max(np.abs(ours - theirs).max() for ours, theirs in pairs)
claims.check("T_2 by hand = apply_t2 = jipe2: difference < 1e-12", f"{apart:.6f}", apart < 1e-12)

# %% [markdown]
# ## 1.4 Contraction
#
# **Lemma 5.2.** Let $\lambda = 2/(1-\gamma)$ and
#
# $$\|M\|_\lambda = \max\big\{\|M_\mu\|_\infty,\ \tfrac1\lambda\|M_\Sigma\|_\infty\big\}. \tag{20}$$
#
# Then $\|T_2 M - T_2 M'\|_\lambda \le \gamma\,\|M - M'\|_\lambda$ for all collections $M$ and $M'$, if all $|R| \le 1$.
#
# *Proof.* Write $\Delta = M - M'$. Terms without $M$ cancel in $T_2 M - T_2 M'$, so
#
# $$|(T_2 M - T_2 M')_\mu| = \gamma\,\big|\mathbb E\,\Delta_\mu(X')\big| \le \gamma\,\|\Delta_\mu\|_\infty,$$
# $$\begin{aligned} |(T_2 M - T_2 M')_\Sigma| &\le \gamma\,\mathbb E|R\,\Delta_\mu(Y')| + \gamma\,\mathbb E|\tilde R\,\Delta_\mu(X')|
#   + \gamma^2\,\mathbb E|\Delta_\Sigma(X', Y')| \\
# &\le 2\gamma\,\|\Delta_\mu\|_\infty + \gamma^2\,\|\Delta_\Sigma\|_\infty, \end{aligned}$$
#
# because $|R| \le 1$. By definition of the norm $\|\Delta_\mu\|_\infty \le \|\Delta\|_\lambda$ and $\|\Delta_\Sigma\|_\infty \le \lambda\|\Delta\|_\lambda$. So the change of the means is at most $\gamma\|\Delta\|_\lambda$. That of the second moments, divided by $\lambda$, is at most
#
# $$\Big(\frac{2\gamma}{\lambda} + \gamma^2\Big)\|\Delta\|_\lambda = \big(\gamma(1 - \gamma) + \gamma^2\big)\|\Delta\|_\lambda = \gamma\,\|\Delta\|_\lambda. \qquad\blacksquare$$
#
# **Why $\lambda = 2/(1-\gamma)$?** Second moments inherit errors of the means: this is the term with $2\gamma$. Divided by $\lambda$, it must fit into the slack $\gamma - \gamma^2$, so we need $\lambda \ge 2/(1 - \gamma)$. If rewards are bounded by $r_{\max}$ instead of 1, the term is $2\gamma r_{\max}$, and $\lambda = 2 r_{\max}/(1-\gamma)$ ([decision 7](../book/paper.md#decision-7)).
#
# The inequalities are tight in a world with one state that always pays $r_{\max}$: there the **modulus**, the smallest factor with which the lemma holds, is *equal* to $\gamma$. For $r_{\max} = 3$ and $\gamma = 0.9$ it is 0.90 with the right weight. With the weight for $r_{\max} = 1$ it is 1.08, and in that norm $T_2$ is no contraction:

# %%
always = jl.JMDP([[1.0]], [[[3.0]]], [[[0]]], gamma=0.9)


def modulus_at(weight):
    """How much T_2 stretches M = (1, weight), whose norm with that weight is one."""
    zero = jl.apply_t2(always, [[1.0]], [[0.0]], [[[[0.0]]]])[1].item()
    moved = jl.apply_t2(always, [[1.0]], [[1.0]], [[[[weight]]]])[1].item()
    return (moved - zero) / weight


moduli = [modulus_at(jl.norm_weight(2, 0.9, bound)) for bound in (3.0, 1.0)]

# %%
right = np.allclose(moduli, [0.9, 1.08])
text = f"{moduli[0]:.2f}, {moduli[1]:.2f}"
claims.check("modulus: 0.9 with the weight for |R| <= 3, above 1 for |R| <= 1", text, right)

# %% [markdown]
# ## 1.5 Convergence and a certificate
#
# **JIPE-2** (joint iterative policy evaluation) is the iteration $M_{k+1} = T_2 M_k$ (21).
#
# **Theorem 5.3.** $T_2$ has exactly one fixed point, the true moments $M^\pi$. From any $M_0$,
#
# $$\|M_k - M^\pi\|_\lambda \le \gamma^k\,\|M_0 - M^\pi\|_\lambda, \tag{22}$$
#
# and for any collection $M$,
#
# $$\|M - M^\pi\|_\lambda \le \frac{1}{1-\gamma}\,\|M - T_2 M\|_\lambda. \tag{23}$$
#
# *Proof.* Collections form a finite-dimensional space, which is complete, so Banach's theorem applies to the contraction $T_2$. There is one fixed point, by (19) it is $M^\pi$, and each application of $T_2$ multiplies the distance to it by at most $\gamma$. That is (22). For (23), insert $T_2 M$ and use the contraction once:
#
# $$\begin{aligned} \|M - M^\pi\|_\lambda &\le \|M - T_2 M\|_\lambda + \|T_2 M - T_2 M^\pi\|_\lambda \\
# &\le \|M - T_2 M\|_\lambda + \gamma\,\|M - M^\pi\|_\lambda. \end{aligned}$$
#
# Subtract the last term and divide by $1 - \gamma$. $\blacksquare$
#
# The norm of $M - T_2 M$ is the **residual**. The right-hand side of (23), the **certificate**, can be computed without knowing $M^\pi$. `sol.error_bound` is at least as large: means are within it, and second moments within $\lambda$ times it. `sol.converged` says whether it is at most `tol` times $r_{\max}$, the largest absolute reward (`jm.reward_bound`).
#
# We compare residual, certificate and true error on the gridworld and on the *coupled reward chain*: states in a row, two actions that both lead to the next state, and at each state a fair coin that pays 1 to one of the two. The last state pays 1 in every step after arrival. From $M_0 = 0$ the residual of $M_k$ is $\gamma^k$ in both worlds, and the true error is *equal* to the certificate. Chapter 2 explains why.


# %%
def errors_along(jm, policy, iterations, truth):
    """||M_k - M||_lambda for k = 0, 1, ... of the literal iteration from zero."""
    weight = jl.norm_weight(2, jm.gamma, jm.reward_bound)
    mean, second = np.zeros_like(truth[0]), np.zeros_like(truth[1])
    for _ in range(iterations):
        yield max(np.abs(mean - truth[0]).max(), np.abs(second - truth[1]).max() / weight)
        mean, second = jl.apply_t2(jm, policy, mean, second)


# %%
chain = jl.coupled_reward_chain(5)
cases = {"3x3 gridworld": (grid, even), "5-state chain": (chain, jl.uniform_policy(chain))}
runs = {}
for name, (jm, policy) in cases.items():
    exact = jl.jipe2(jm, policy, tol=1e-12).moments
    sol = jl.jipe2(jm, policy, tol=1e-2, route="sweeps")
    truth = exact.mean, exact.full_second()
    errors = np.array(list(errors_along(jm, policy, sol.residuals.size, truth)))
    runs[name] = sol.residuals, errors
    assert jm.gamma * errors[-1] * (1 - 1e-9) <= sol.error_bound <= 1e-2 * jm.reward_bound

# %%
ratios = []
for residuals, errors in runs.values():
    line = 0.95 ** np.arange(residuals.size)
    ratios += [*(residuals / line), *(errors * 0.05 / residuals)]
text = f"{min(ratios):.4f} to {max(ratios):.4f}"
exactly = np.allclose(ratios, 1, rtol=0, atol=1e-6)
claims.check("two worlds: residual = gamma^k, error = certificate (ratios)", text, exactly)

# %% [markdown]
# ## 1.6 Moments of any order
#
# Two moments do not say on which side of a gap the long tail lies, or how heavy it is. The $k$-th order collection is
#
# $$M^{(k)}(x_1, \dots, x_k) = \mathbb E\Big[\prod_{i=1}^k Z^\pi(x_i)\Big], \qquad x_i \in \mathcal X, \tag{31}$$
#
# and $M = (M^{(1)}, \dots, M^{(n)})$ holds all orders up to $n$. For the operator, put factors at the same state into one group; the groups are $B_1, \dots, B_L$. Each group reads **one** table, independently of the others:
#
# $$\big((R_i, S'_i)\big)_{i \in B_l} \sim \mathcal J_{|B_l|}(\cdot \mid s^{(l)}, a_{B_l}), \qquad l = 1, \dots, L. \tag{32}$$
#
# Next actions $A'_i \sim \pi(\cdot \mid S'_i)$ are drawn independently for *distinct* state-actions $x_i$. Factors with the same $x_i$ are one random variable and share $R$, $S'$ and $A'$ ([decision 3](../book/paper.md#decision-3)): in $\mathbb E[Z(x)^2 Z(y)]$ there are two branches, not three. With $X'_i = (S'_i, A'_i)$,
#
# $$(T_n M)_k(x_{1:k}) = \mathbb E\Big[\sum_{I \subseteq \{1, \dots, k\}} \gamma^{|I|} \Big(\prod_{i \notin I} R_i\Big)\, M^{(|I|)}(X'_I)\Big], \qquad M^{(0)} = 1. \tag{33}$$
#
# This is $\prod_i (R_i + \gamma Z(X'_i))$ multiplied out: $I$ is the set of factors that contribute their future; the others contribute their reward. At $k = 1$ it is Bellman's equation (13) and at $k = 2$ it is (14). The norm is
#
# $$\|M\|_\lambda = \max_{k \le n} \frac{1}{\lambda_k}\|M^{(k)}\|_\infty, \qquad \lambda_k = \Big(\frac{2}{1-\gamma}\Big)^{k-1}. \tag{34}$$
#
# With $|R| \le r_{\max}$, $r_{\max} > 0$, and $\lambda_k = (2 r_{\max}/(1-\gamma))^{k-1}$, **the modulus of $(T_n M)_k$, the block of order $k$, in the worst case over all models,** is $\big(\tfrac{1+\gamma}{2}\big)^k - \big(\tfrac{1-\gamma}{2}\big)^k \le \gamma$.
#
# <details><summary>Proof</summary>
#
# Let $\lambda = 2 r_{\max}/(1-\gamma)$, so that $\lambda_k = \lambda^{k-1}$. Let $\Delta = M - M'$ be the difference of two collections, with $\|\Delta\|_\lambda \le 1$, so that $|\Delta^{(l)}| \le \lambda^{l-1}$. The term $I = \emptyset$ cancels. There are $\binom kl$ sets of size $l$, so by the binomial theorem, with $r_{\max}/\lambda = (1-\gamma)/2$,
#
# $$\begin{aligned} \frac{|(T_n M - T_n M')_k|}{\lambda_k} &\le \sum_{l=1}^{k} \binom kl \gamma^l\, r_{\max}^{k-l}\, \frac{\lambda^{l-1}}{\lambda^{k-1}} = \sum_{l=1}^{k} \binom kl \gamma^l \Big(\frac{1-\gamma}{2}\Big)^{k-l} \\
# &= \Big(\frac{1+\gamma}{2}\Big)^k - \Big(\frac{1-\gamma}{2}\Big)^k . \end{aligned}$$
#
# The state that always pays $r_{\max}$ attains this. Call the two bases $u$ and $w$. Then $u + w = 1$ and $u - w = \gamma$, so
#
# $$u^k - w^k = (u - w)\sum_{j<k} u^j w^{k-1-j} \le \gamma\,(u + w)^{k-1} = \gamma ,$$
#
# with equality for $k = 1$ and $k = 2$.
#
# </details>
#
# So $T_n$ is a $\gamma$-contraction for every $n$, and Theorem 5.3 holds word for word. On the state that always pays 3 we insert the collection with $M^{(l)} = \lambda_l$, whose norm is one, into (33). `contraction_modulus` must say how far each block moves:


# %%
def block_modulus(order, gamma=0.9, bound=3.0):
    """|(T_n M)_k - (T_n 0)_k| / lambda_k for M^(l) = lambda_l, where every reward is the bound."""
    weights = [jl.norm_weight(k, gamma, bound) for k in range(1, order + 1)]
    sets = [comb(order, k) * gamma**k * bound ** (order - k) for k in range(1, order + 1)]
    return np.dot(sets, weights) / weights[-1]


orders = (1, 2, 3, 4)
measured = [block_modulus(order) for order in orders]
formula = [jl.contraction_modulus(order, always.gamma) for order in orders]
alone = jl.jipe(always, [0], order=4).moments  # every return is 3 / (1 - 0.9)
assert np.allclose([alone.moment([(0, 0)] * k) for k in orders], 30.0 ** np.array(orders))

# %%
text = ", ".join(f"{modulus:.4f}" for modulus in measured)
claims.check("orders 1 to 4: modulus = formula", text, np.allclose(measured, formula))

# %% [markdown]
# `jipe(order=n)` evaluates all these moments. Below the goal, *up* against *down* has its long tail on the left. In all simulations from here on we allow five Monte Carlo standard errors.

# %%
m = jl.jipe(grid, even, order=4).moments
query = state, up, down = 5, 0, 2
moments = [m.gap_central_moment(query, k) for k in (2, 3, 4)]
print(f"skewness {moments[1] / moments[0] ** 1.5:.2f}, kurtosis {moments[2] / moments[0] ** 2:.2f}")
z = jl.simulate_pairs(grid, even, (up, down), state=state, num_pairs=num_pairs, rng=seed)
gap = z @ [1, -1]


# %%
def errors_of_moments(gap, mean, moments):
    """How far simulated central moments are off, in standard errors."""
    powers = [(gap - mean) ** k for k in range(2, 2 + len(moments))]
    errors = [x.std() / np.sqrt(len(x)) for x in powers]
    return (np.mean(powers, axis=1) - moments) / errors


apart = np.abs(errors_of_moments(gap, m.gap_mean[query], moments))
text = ", ".join(f"{error:.1f}" for error in apart)
enough = num_pairs >= 1000
claim = "central moments 2 to 4 of a gap, simulated: errors < 5 s.e."
claims.check(claim, text, apart.max() < 5, enough=enough)

# %% [markdown]
# ## 1.7 The gap
#
# The mean of $G = Z(s, a) - Z(s, b)$ is $\mu_a - \mu_b$, whatever the coupling. Its variance depends on the coupling:
#
# $$\mathrm{Var}\,G = \Sigma(a, a) + \Sigma(b, b) - 2\,\Sigma(a, b) - (\mu_a - \mu_b)^2, \tag{35}$$
#
# all at the state $s$ (the paper prints a minus before $\Sigma(b, b)$: [decision 1](../book/paper.md#decision-1)). `gap_mean` and `gap_variance` hold both, at `[s, a, b]`.
#
# **The bound.** Let $\mu_G = \mathbb E\,G > 0$ and $\sigma_G^2 = \mathrm{Var}\,G$. Then
#
# $$P(G \le 0) \le \frac{\sigma_G^2}{\sigma_G^2 + \mu_G^2} .$$
#
# <details><summary>Proof (Cantelli)</summary>
#
# Take any $c \ge 0$. If $G \le 0$ then $\mu_G - G + c \ge \mu_G + c > 0$, so by Markov's inequality for the square
#
# $$P(G \le 0) \le \frac{\mathbb E\,(\mu_G - G + c)^2}{(\mu_G + c)^2} = \frac{\sigma_G^2 + c^2}{(\mu_G + c)^2} ,$$
#
# and $c = \sigma_G^2/\mu_G$ makes the right-hand side as small as possible, which gives the bound.
#
# </details>
#
# Where $\mu_G \le 0$ there is no such bound, and `inferiority_bound` is 1. A gap that is 2 with probability 0.7 and otherwise 0 attains it: the bound is 0.3.

# %%
m = jl.jipe2(grid, even).moments
mean, variance, bound = m.gap_mean[query], m.gap_variance[query], m.inferiority_bound[query]
print(f"up against down, below the goal: mean {mean:.3f}, variance {variance:.3f}")
two_values = jl.JMDP([[0.3, 0.7]], [[[0.0, 0.0], [2.0, 0.0]]], [[[0, 0]] * 2], gamma=0.0)
attained = jl.jipe2(two_values, [0]).moments.inferiority_bound[0, 0, 1]

# %%
near = abs(errors_of_moments(gap, mean, [variance])[0]) < 5
share = np.mean(gap <= 0)
valid = share <= bound and np.isclose(attained, 0.3) and m.inferiority_bound[state, down, up] == 1
text = f"{variance:.2f}; {share:.3f}, {bound:.3f}; {attained:.2f}"
claim = "Var G = simulated, to 5 s.e.; P(G <= 0) <= bound; two values: bound = 0.3"
claims.check(claim, text, near and valid, enough=enough)

# %% [markdown]
# ## What to take away
#
# - $T_2$ is a contraction whose residual *certifies* accuracy, for any bounded rewards; so is $T_n$ for every order $n$.
# - Equal state-actions are one random variable, and draws at distinct states are independent. With one table for all actions of a state and independent next actions, the three cases of $T_2$ follow.
# - The mean and the variance of a gap bound the probability that the better action turns out worse.
#
# ## Exercises
#
# **Exercise 1.** Compute the gap variance of Example 2.2, with the rewards of section 1.1, by hand.
#
# <details><summary>Hint</summary>
#
# Let $H$ be the difference of two returns from *different* states. Write one equation for $\mathbb E H^2$ and one for $\mathbb E G^2$.
#
# </details>
#
# <details><summary>Solution</summary>
#
# Both actions earn the same and then jump to opposite states, one of which pays: $G = \pm\gamma H$, where $H$ is the difference of two returns from different states. The first step of $H$ pays a difference of 1. After it the two futures are at different states again with probability $\tfrac12$, at one state with different actions with probability $\tfrac14$, and otherwise identical from then on. Whichever future is ahead now, both are equally likely to be ahead next, so mixed terms vanish:
#
# $$\begin{aligned} \mathbb E H^2 &= 1 + \gamma^2 \big(\tfrac12\, \mathbb E H^2 + \tfrac14\, \mathbb E G^2\big), \\
# \mathbb E G^2 &= \gamma^2\, \mathbb E H^2 = \frac{\gamma^2}{1 - \tfrac12\gamma^2 - \tfrac14\gamma^4} . \end{aligned}$$
#
# </details>

# %% tags=["hide-cell"]
by_hand = 0.9**2 / (1 - 0.9**2 / 2 - 0.9**4 / 4)
assert np.isclose(gaps[1], by_hand, rtol=0, atol=1e-6)

# %% [markdown]
# **Exercise 2.** Replace $\lambda = 2/(1-\gamma)$ by $\lambda = c/(1-\gamma)$. For which $c$ is $T_2$ still a contraction, and with which modulus? Check your formula on the state that
# always pays 3, which attains it.
#
# <details><summary>Hint</summary>
#
# Where does the proof of Lemma 5.2 use $\lambda$, and what for?
#
# </details>
#
# <details><summary>Solution</summary>
#
# The second line of the proof of Lemma 5.2 gives $2\gamma r_{\max}/\lambda + \gamma^2 = \gamma^2 + \tfrac{2 r_{\max}}{c}\,\gamma(1-\gamma)$, and the first line gives $\gamma$. The
# modulus is the larger of the two: $\gamma$ for $c \ge 2 r_{\max}$; and it stays below 1 as long as
# $2 r_{\max}\gamma(1-\gamma)/c < 1 - \gamma^2$, that is, $c > 2 r_{\max}\gamma/(1 + \gamma)$.
#
# </details>

# %% tags=["hide-cell"]
gamma, bound = 0.9, 3.0
for c in (bound, 2 * bound * gamma / (1 + gamma), 2 * bound):
    formula = gamma**2 + 2 * bound / c * gamma * (1 - gamma)
    assert np.isclose(modulus_at(c / (1 - gamma)), formula)
edge = modulus_at(2 * bound * gamma / (1 + gamma) / (1 - gamma))
assert np.isclose(edge, 1)

# %% [markdown]
# **What to read next.** Chapter 2 runs JIPE-2 on the paper's two worlds and asks what its residual tells us. Chapter 8 learns moments from samples, and with features.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
