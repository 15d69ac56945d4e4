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
# Two actions, one state. How much better is the first? Its *mean* advantage depends on each
# action alone. How *certain* that advantage is depends on what the two do **together**, under the same
# realised randomness, and this a Markov decision process does not say. A **joint MDP** does.
#
# **What you will learn.** All of the paper's definitions, in words and symbols; the operator $T_2$ and exactly which random draws the
# futures of two actions share; why it is a contraction, with proofs short enough to
# check with a pencil; how its residual certifies an answer; the same for moments of any order, for learning
# from samples and for features. Most statements are followed by a numerical check. The notebook stops if a check fails; the table at its
# end has all the numbers.
#
# **What it needs.** Markov decision processes, expectation, variance and covariance, and the idea of a
# contraction. The page [Notation and background](../book/background.md) says where to learn each of them, and lists
# every symbol. You need neither the paper nor chapter 0, although chapter 0 is the gentler start. To run the notebook, install the
# project with `pip install ".[notebooks]"` in its folder.
#
# **How long it takes.** About 48 minutes to read. Sections 1.1 to 1.9 are the theory; section 1.10 collects the
# thirteen places where the paper is silent or slips, each as a **Decision** with the smallest example
# that shows it, and can be read on its own.

# %% tags=["parameters"]
seed = 0
num_models = 60  # at least 1
num_draws = 2000  # at least 100
num_pairs = 40000  # at least 100
num_seeds = 20  # at least 5
num_updates = 300000  # at least 100000
out_dir = ""

# %%
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jmdp_lib as jl
from jmdp_lib import figures
from jmdp_lib.operators.multisets import MultisetOperator

figures.style()
claims = figures.Claims()
rng = np.random.default_rng(seed)

# %% [markdown]
# ## 1.1 From MDPs to joint MDPs
#
# Definitions, lemmas, theorems and equations have the paper's numbers; a number in parentheses, such as (6), is an equation of the paper.
#
# **Definition 3.1 (MDP).** A Markov decision process is $(\mathcal S, \mathcal A, P_R, P_S, \gamma)$: finitely many states
# $s$ and actions $a$, a law $P_R(\cdot \mid s, a)$ of the reward, a law $P_S(\cdot \mid s, a)$ of the next state, and a
# discount factor $0 < \gamma < 1$. (A *law* is a probability distribution.) The paper takes rewards in $[0, 1]$. A **policy** $\pi(\cdot \mid s)$ is a law of actions in
# each state. The **return** of taking $a$ in $s$ and following $\pi$ afterwards is
#
# $$Z^\pi(s, a) = \sum_{t \ge 0} \gamma^t R_t, \qquad S_0 = s,\ A_0 = a. \tag{1}$$
#
# **Definition 3.2 (sample transition model, STM).** Ordinary experience is a stream of $(S, A, R, S')$ with
#
# $$S \sim \xi, \quad A \sim \pi(\cdot \mid S), \quad R \sim P_R(\cdot \mid S, A), \quad S' \sim P_S(\cdot \mid S, A). \tag{2}$$
#
# Each draw shows the outcome of *one* action. What another action would have done at the same moment is
# not part of the model, and so the law of a difference $Z^\pi(s, a) - Z^\pi(s, b)$ is not defined.
#
# **Definition 4.1 ($m$-joint sample transition model, $m$-JSTM).** Ask for $m$ *distinct* actions at one state, and get the
# $m$ outcomes that they would have had under the same randomness. It is a kernel
#
# $$\mathcal J_m(\cdot \mid s, a_1, \dots, a_m) \quad\text{over}\quad \big((R_1, S'_1), \dots, (R_m, S'_m)\big), \tag{3}$$
#
# whose $i$-th coordinate alone is an ordinary transition of the MDP (4):
# $R_i \sim P_R(\cdot \mid s, a_i)$, $S'_i \sim P_S(\cdot \mid s, a_i)$. What is new is only
# the *dependence* between the coordinates. A joint law with given marginals is called a **coupling** of them.
#
# **Definition 4.2 (coupled-dynamics environment).** An environment is coupled if some $\mathcal J_m$ with $m \ge 2$ is, at some state
# and actions, *not* the product of its marginals. In other words: for some actions it matters that they are queried together.
#
# **Definition 4.3 (joint MDP, JMDP).** A joint MDP is $(\mathcal S, \mathcal A, \gamma, \mathcal J)$, where $\mathcal J(\cdot \mid s)$ is a law over
# **outcome tables** $\big((R^{(a)}, S'^{(a)})\big)_{a \in \mathcal A}$. A table has one row for every action, which says what the action would have earned and where it would
# have led. At time $t$ the environment draws a table at $S_t$. The agent picks $A_t$ and gets that row. The other rows
# are *counterfactual*; they do not influence what happens next.
#
# **Remark 4.4.** A joint MDP contains the others as marginals. Reading one row of the table gives the MDP (5),
# reading $m$ rows gives the $m$-JSTM (6):
#
# $$\mathcal J_m(\cdot \mid s, a_{1:m}) = \mathrm{Law}\big((R^{(a)}, S'^{(a)})_{a \in a_{1:m}}\big), \qquad \big((R^{(b)}, S'^{(b)})\big)_{b \in \mathcal A} \sim \mathcal J(\cdot \mid s). \tag{6}$$
#
# In the library a `JMDP` is a list of tables with probabilities for each state. `marginal_mdp` is (5), and
# `query` is (6): it draws **one** table and shows the rows that were asked for.
#
# **Examples.** *Example 1* has one state and a fair coin $U$, with $R^{(1)} = U$ and $R^{(2)} = 1 - U$. *Example 2* has two
# states; each action jumps to a uniformly random state, and both jump either to the same one (2.1) or to opposite ones (2.2). `coupling_witness` names a state, and actions whose outcomes at it are dependent:

# %%
examples = {
    "Example 1": jl.example_1(),
    "Example 2.1": jl.example_2_1(),
    "Example 2.2": jl.example_2_2(),
}
for name, jm in examples.items():
    state, actions = jm.coupling_witness
    print(f"{name}: coupled at state {state}, actions {actions}")
rewards, next_states = examples["Example 1"].query(state=0, actions=[0, 1], rng=rng)
print("one table of Example 1: rewards", rewards, "next states", next_states)

# %%
assert rewards.sum() == 1.0
num_coupled = sum(jm.is_coupled for jm in examples.values())
claims.check("Examples 1, 2.1, 2.2: coupled (Definition 4.2)", num_coupled, num_coupled == 3)
tables = [(name, jm, k) for name, jm in examples.items() for k in (0, 1)]
rows = [(name, *jm.rewards[k], *jm.next_states[k]) for name, jm, k in tables]
data = pd.DataFrame(rows, columns=["example", "R1", "R2", "next1", "next2"])
drawn = {"Example 1": "R", "Example 2.1": "S'", "Example 2.2": "S'"}

# %%
fig, axes = plt.subplots(1, 3, figsize=(4.4, 1.65))
for ax, (name, letter) in zip(axes, drawn.items(), strict=True):
    pairs = data.loc[data.example == name, ["R2", "R1"] if letter == "R" else ["next2", "next1"]]
    law = np.histogram2d(*pairs.to_numpy().T, bins=2, range=[(0, 1), (0, 1)])[0] / 2
    figures.heatmap(ax, law, "Blues", fontsize=7, vmin=0, vmax=1, origin="lower")
    ax.set(title=name, xticks=[0, 1], yticks=[0, 1])
    ax.set(xlabel=f"${letter}^{{(1)}}$", ylabel=f"${letter}^{{(2)}}$")
figures.save(fig, "fig_examples", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.1.** The joint law of the two actions' outcomes in the paper's examples: rewards in Example 1, next states in
# Example 2. Every row and every column of each square sums to one half, so each action alone is a fair coin in all three.
#
# <!-- alt: Three squares of two by two probabilities. In Examples 1 and 2.2 the mass one half lies on the two corners where the outcomes differ; in Example 2.1 it lies on the two corners where they are equal. -->

# %% [markdown]
# Examples 2.1 and 2.2 are the *same MDP*: no amount of ordinary experience tells them apart. Yet the
# variance of the gap $G = Z(s, a) - Z(s, b)$ differs. The paper gives Example 2 no rewards, and without rewards there is no
# return. To compare the two we add some: state 1 pays 1, state 0 pays nothing, whatever the action. The policy tosses a fair coin.

# %%
same, opposite = examples["Example 2.1"], examples["Example 2.2"]
marginals = zip(same.marginal_mdp(), opposite.marginal_mdp(), strict=True)
apart = max(np.abs(one - other).max() for one, other in marginals)
solved = [jl.jipe2(jm, jl.uniform_policy(jm)).moments for jm in (same, opposite)]
gaps = [m.gap_variance[0, 0, 1] for m in solved]
claims.check("Examples 2.1 and 2.2: marginals differ by", f"{apart:.1f}", apart == 0)
by_hand = [0.0, 0.9**2 / (1 - 0.9**2 / 2 - 0.9**4 / 4)]
near = np.allclose(gaps, by_hand, rtol=0, atol=1e-6)
claims.check("their gap variances, as by hand", f"{gaps[0]:.3f}, {gaps[1]:.3f}", near)

# %% [markdown]
# In Example 2.1 both actions earn the same and lead to the same state, step after step, so nothing ever differs and the gap is zero.
# In Example 2.2 the two futures begin at opposite states, one of which pays: $G = \pm\gamma D$, where $D$ is the difference of two returns from different states. By the rules of section 1.2, the first step of $D$ pays a
# difference of 1. After it the two futures are at different states again with probability $\tfrac12$, at one state with different actions with probability $\tfrac14$, and otherwise they are identical from then on. Whichever future is ahead now, both are equally likely to be ahead next, so mixed terms vanish:
#
# $$\begin{aligned} \mathbb E D^2 &= 1 + \gamma^2 \big(\tfrac12\, \mathbb E D^2 + \tfrac14\, \mathbb E G^2\big), \\
# \mathbb E G^2 &= \gamma^2\, \mathbb E D^2 = \frac{\gamma^2}{1 - \tfrac12\gamma^2 - \tfrac14\gamma^4} . \end{aligned}$$
#
# At $\gamma = 0.9$ this is 1.879, the number `by_hand` above.
#
# ## 1.2 Shared noise for one step
#
# The definition says how one table is drawn. A return adds up rewards for ever, so one more thing must be specified. Call the futures of two actions **branches**: what
# do two branches share *later*?
#
# **Assumption 4.5 (exogenous noise).** There are independent, identically distributed shocks $U_t$ and maps
# $g: \mathcal S \times \mathcal A \times \mathcal U \to [0, 1]$ and $h: \mathcal S \times \mathcal A \times \mathcal U \to \mathcal S$ (7) with
#
# $$R_t^{(a)} = g(s, a, U_t), \qquad S_{t+1}^{(a)} = h(s, a, U_t) \qquad\text{for all actions } a, \tag{8}$$
#
# so that the table is $\big((g(S_t, a, U_t), h(S_t, a, U_t))\big)_a$ (9). The shock plays the role of the weather, the demand or the gust; $g$ says what
# an action earns in it and $h$ where it leads. Tables that are drawn later use fresh shocks.
#
# **The one-step coupling regime.** Two branches that stand at the *same* state read the *same* table. Two branches
# that stand at *different* states draw independently. (Read literally, (8) has one $U_t$ for all states; the paper's text and
# its operator say otherwise. That is decision 5 of section 1.10; the literal reading is available as `coupling="common"`.)
#
# `JMDP.from_step` builds tables from exactly this: a function `step(s, a, u)` that returns $g$ and $h$, and the
# probabilities of $U$. Here is Example 1 again:

# %%
coin = jl.JMDP.from_step(1, 2, 0.9, [0.5, 0.5], lambda s, a, u: (u if a == 0 else 1 - u, 0))
tables = [sorted(jm.rewards.tolist()) for jm in (coin, examples["Example 1"])]
claims.check("Example 1 from g, h and U: its tables", tables[0], tables[0] == tables[1])

# %% [markdown]
# **Definition 4.6 (joint return vector).** $Z^\pi(s) = (Z^\pi(s, a))_{a \in \mathcal A}$: the returns of all actions of one state, as random
# variables on one probability space. They share the first table, and after that whatever the one-step regime lets
# them share: a table whenever two branches are at one state, and *everything* once they are at one state **and** choose the
# same action. From then on they are the same branch. We say that the branches have **merged**. Figure 1.2 shows two
# branches until they merge, under the paper's coupling and under the two others that the library offers.

# %%
couplings = ("independent", "joint", "common")
stands = [("same", "different"), ("different", "-"), ("different", "-"), ("same", "different")]
fig, axes = plt.subplots(1, 3, figsize=(6.75, 1.9), sharey=True)
for ax, coupling in zip(axes, couplings, strict=True):
    figures.shared_draws(ax, coupling)
    ax.set_title(f'"{coupling}"')
data = pd.DataFrame([*stands, ("same", "same")], columns=["state", "action"])
figures.save(fig, "fig_who_shares", data.assign(time=range(5)), out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.2.** Who shares a draw? Two branches (blue, orange) leave state 2 by two actions, go apart, come back to one state at time 3 with different actions, and at time 4 also choose
# alike: they have merged (black). A pale orange box is one draw for both branches, a pale blue box a draw for one branch alone. In the paper's regime, "joint", branches share a draw while they are at one state; with "common" noise always; with "independent" tables never, until they merge.
#
# <!-- alt: Three panels with the same two paths over five time steps, which start at one state, separate, meet again and become one black path. Independent: every dot has a blue box of its own. Joint: an orange box holds both dots at times 0 and 3, blue boxes hold the separate dots at times 1 and 2. Common: an orange box holds both dots at times 0 to 3. -->

# %% [markdown]
# **Such a vector exists.** Here is a construction, for all state-actions $x = (s, a)$ of $\mathcal X = \mathcal S \times \mathcal A$ at once. At each time $t$, draw one table for
# *every* state and one next action for *every* state-action. Together the draws are a **random map** $f_t$ of $\mathcal X$ into itself, $f_t(x) = (S', A')$, with
# rewards $R_t(x)$. The draws of different times are independent. Then let
#
# $$Z^\pi(x) = \sum_{t \ge 0} \gamma^t\, R_t\big(f_{t-1} \circ \dots \circ f_0\,(x)\big), \qquad x \in \mathcal X .$$
#
# (At $t = 0$ no map has been applied yet, and the term is $R_0(x)$.) Rewards are bounded, so the sum converges, and all returns are functions of the same draws. Four things follow.
#
# - **It is the one-step regime.** A branch reads, at each time, the table of the state where it stands, and draws its next action afresh, so each branch alone has the law of the return (1). Two branches at one state read
#   one table; at two states they read two independent tables.
# - **Branches merge**, because maps *coalesce*: if $f_t$ sends two state-actions to the same place, all later maps move them together.
# - **One step splits off**: $Z(x) = R_0(x) + \gamma\, Z_1(f_0(x))$, where $Z_1$ is made of $f_1, f_2, \dots$ in the same way. So $Z_1$ is independent of the first map and has the law of
#   $Z$. Multiply two such equations and take expectations: this gives the fixed-point equation (19) of section 1.3. Multiplying $k$ of them gives the moments of order $k$ of section 1.6.
# - **The other couplings** differ only in how tables are drawn. One noise for all states gives `"common"`; a separate table for every state-action gives `"independent"`.
#
# The construction also shows how to sample all returns of a model at once: start far in the future with $z = 0$ and go back in time, $z \leftarrow R + \gamma\, z[f]$.


# %%
def random_map(jm, policy, rng):
    """One draw for all state-actions: their rewards, (S A,), and where they lead, (S A,)."""
    rows = zip(jm.starts[:-1], jm.starts[1:], strict=True)  # the tables of each state
    tables = [rng.choice(np.arange(i, j), p=jm.probs[i:j]) for i, j in rows]
    after = jm.next_states[tables]  # (S, A)
    chosen = (rng.random(after.shape)[..., None] > policy.cumsum(1)[after]).sum(-1)
    return jm.rewards[tables].ravel(), (jm.num_actions * after + chosen).ravel()


def sample_returns(jm, policy, rng, steps=200):
    z = np.zeros(jm.num_states * jm.num_actions)
    for _ in range(steps):
        rewards, f = random_map(jm, policy, rng)
        z = rewards + jm.gamma * z[f]
    return z.reshape(jm.num_states, jm.num_actions)


# %% [markdown]
# Here is one such sample of all returns, for a small shop: the stock is 0 to 3, the order 0 to 2, and the policy orders at random.

# %%
shop = jl.inventory(3, 2, demand_probs=[0.25, 0.5, 0.25])
orders = jl.uniform_policy(shop)
z = sample_returns(shop, orders, np.random.default_rng(seed))
pd.DataFrame(z, [f"stock {s}" for s in range(4)], [f"order {a}" for a in range(3)]).round(2)

# %% [markdown]
# Figure 1.3 shows nine maps of this shop. (We chose a seed with which two actions of one state meet in the middle of the picture.)

# %%
draws = np.random.default_rng([425, 1])
maps = [random_map(shop, orders, draws)[1] for _ in range(9)]
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
figures.save(fig, "fig_random_maps", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.3.** Nine random maps of the twelve state-actions of a shop, three orders for each stock. A line leads from each state-action at time $t$ to where $f_t$ sends it. Dark lines are branches that started at time 0; their number, at the
# top, falls from twelve to one. Blue and orange: order 1 and order 2 with two in stock, until they meet; black after that.
#
# <!-- alt: Twelve rows, in groups of three for the four stocks, over ten time steps. Pale lines connect each row with a row one step later. Dark lines run together into fewer and fewer paths; the numbers at the top are 12, 7, 7, 5, 3, 3, 3, 2, 1, 1. A blue and an orange path start side by side, separate, meet at time 4 and continue as one thick black path. -->

# %% [markdown]
# `simulate_returns` does the same in compiled code. It does not use moments, so it can serve as a check on them. We compare the covariances of *all* state-actions of the paper's *windy gridworld*, here with 3x3
# cells. An agent moves up, right, down or left. Once reached, the goal (top right) is never left, and it pays 1 in every step. A gust with probability 0.2 pushes the agent one more cell to the left; it
# is one draw for all four actions. The policy goes right and then up. (Section 2.1 has a picture.) Returns from the goal are constant; the others have 528 variances and covariances. We allow six Monte Carlo standard
# errors, which a right answer exceeds for about one seed in a million.

# %%
grid, goal = jl.windy_gridworld(3), jl.goal_policy(3)
num_samples = min(num_pairs, 10_000)
z = jl.simulate_returns(grid, goal, num_samples, seed).reshape(num_samples, -1)
m = jl.jipe2(grid, goal, tol=1e-10).moments
exact = m.full_second().reshape(36, 36) - np.outer(m.mean, m.mean)
z = z - z.mean(0)
found = z.T @ z / num_samples
error = np.sqrt(np.maximum((z**2).T @ z**2 / num_samples - found**2, 1e-20) / num_samples)
seen = np.triu(np.outer(m.variance.ravel() > 1e-9, m.variance.ravel() > 1e-9))
worst = (np.abs(found - exact) / error)[seen].max()
claim = f"random maps against jipe2, {seen.sum()} covariances: largest error in standard errors"
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
# where $x = (s, a)$ earns $R$ and goes on to $X' = (S', A')$, and $y = (\tilde s, \tilde a)$ earns $\tilde R$ and goes on to $Y' = (\tilde S', \tilde A')$.
# The four terms are the product $\big(R + \gamma Z(X')\big)\big(\tilde R + \gamma Z(Y')\big)$, multiplied out. The coupling enters only through the *joint law* under
# which the expectation is taken. There are three cases.

# %% tags=["hide-input"]
shared, own = "#F6C9A8", "#BFDCEF"  # one draw for both factors; a draw of its own
ahead, other = "$(S', A')$", r"$(\tilde S', \tilde A')$"
each = [(r"$A' \sim \pi$", own), (r"$\tilde A' \sim \pi$", own)]
outcomes, merge = (
    ["$(R, S')$", r"$(\tilde R, \tilde S')$"],
    "if these are equal: one branch from here on",
)
laws = {  # asked, tables drawn, outcomes, actions drawn, next state-actions, what follows
    "one branch\neqs. (15), (16)": (["$(s, a)$"], [("table of $s$", shared)], outcomes[:1],
        [(r"$A' \sim \pi$", shared)], [ahead], "still one branch"),
    "two actions, one state\neq. (18)": (["$(s, a)$", r"$(s, \tilde a)$"],
        [("one table of $s$, both rows read", shared)], outcomes, each, [ahead, other], merge),
    "two states\neq. (17)": (["$(s, a)$", r"$(\tilde s, \tilde a)$"],
        [("table of $s$", own), (r"table of $\tilde s$", own)],
        outcomes, each, [ahead, other], merge),
}  # fmt: skip


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
drawn = [(t.split("\n")[0], i[0], i[1] == shared) for t, law in laws.items()
         for row in law[1:4:2] for i in row]  # fmt: skip
data = pd.DataFrame(drawn, columns=["case", "draw", "shared"])
figures.save(fig, "fig_shared_draws", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.4.** What is drawn together in $(T_2 M)_\Sigma$. Read each column from top to bottom; boxes are random draws. Orange draws are shared
# by both factors of the product, blue ones belong to one branch. Next actions are drawn independently unless the two factors are one branch.
#
# <!-- alt: Three flow diagrams. One branch: a single table and a single next action serve both factors. Two actions at one state: one shared table, of which both rows are read, then two separate next actions. Two states: two separate tables and two separate next actions. If both branches end at the same state and action they are one branch from there on. -->

# %% [markdown]
# In symbols, with $\mathcal J_1$ and $\mathcal J_2$ the sample transition models induced by (6):
#
# - **One branch**, as in (13), and in (14) with $(s, a) = (\tilde s, \tilde a)$:
#   $(R, S') \sim \mathcal J_1(\cdot \mid s, a)$ and $A' \sim \pi(\cdot \mid S')$ (15), used for *both* factors. So (14) becomes (16),
#
#   $$\mathbb E\big[R^2 + 2\gamma R M_\mu(X') + \gamma^2 M_\Sigma(X', X')\big] .$$
#
# - **Two states**, $s \ne \tilde s$: $(R, S') \sim \mathcal J_1(\cdot \mid s, a)$ and $(\tilde R, \tilde S') \sim \mathcal J_1(\cdot \mid \tilde s, \tilde a)$,
#   $A' \sim \pi(\cdot \mid S')$, $\tilde A' \sim \pi(\cdot \mid \tilde S')$, all independent between the branches (17).
# - **Two actions, one state**, $s = \tilde s$, $a \ne \tilde a$: $(R, S', \tilde R, \tilde S') \sim \mathcal J_2(\cdot \mid s, (a, \tilde a))$, one table,
#   and then $A' \sim \pi(\cdot \mid S')$, $\tilde A' \sim \pi(\cdot \mid \tilde S')$ independently (18).
#
# **The true moments are a fixed point** (19). By the construction of section 1.2, $Z(s, a) = R + \gamma Z_1(S', A')$, where $Z_1$ is independent of the first step and has the law of $Z$. Multiply two such returns and
# take the expectation, first conditionally on the draws of Figure 1.4. On the right every $Z$ then becomes a $\mu$, and every product of two $Z$s a $\Sigma$. What is
# left is (14) with $M = (\mu^\pi, \Sigma^\pi)$ on both sides. Section 1.5 shows that it is the only fixed point.
#
# `apply_t2` is the definition, line by line. `jipe2` iterates the same map in a form that is hundreds of times faster
# (`benchmarks/results.md`; chapter 7 explains how). The two must give the same numbers from any starting guess. We test this on the gridworld of section 1.2.


# %%
def random_collection(jm):
    shape = (jm.num_states, jm.num_actions)
    return rng.normal(size=shape), rng.normal(size=shape + shape)


start = random_collection(grid)
literal = start
for _ in range(5):
    literal = jl.apply_t2(grid, goal, *literal)

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", jl.ConvergenceWarning)  # stopped on purpose
    fast = jl.jipe2(grid, goal, initial=start, max_iterations=5).moments
apart = np.abs(fast.full_second() - literal[1]).max()
claim = "fast and literal operator, 5 sweeps: largest difference"
claims.check(claim, f"{apart:.9f}", apart < 1e-10)

# %% [markdown]
# ## 1.4 Contraction
#
# **Lemma 5.2.** Let $\lambda = 2/(1-\gamma)$ and
#
# $$\|M\|_\lambda = \max\big\{\|M_\mu\|_\infty,\ \tfrac1\lambda\|M_\Sigma\|_\infty\big\}. \tag{20}$$
#
# Then $\|T_2 M - T_2 M'\|_\lambda \le \gamma\,\|M - M'\|_\lambda$ for all collections $M$ and $M'$.
#
# *Proof.* Write $\Delta = M - M'$. Terms without $M$ cancel in $T_2 M - T_2 M'$, so
#
# $$|(T_2 M - T_2 M')_\mu| = \gamma\,\big|\mathbb E\,\Delta_\mu(X')\big| \le \gamma\,\|\Delta_\mu\|_\infty,$$
# $$\begin{aligned} |(T_2 M - T_2 M')_\Sigma| &\le \gamma\,\mathbb E|R\,\Delta_\mu(Y')| + \gamma\,\mathbb E|\tilde R\,\Delta_\mu(X')|
#   + \gamma^2\,\mathbb E|\Delta_\Sigma(X', Y')| \\
# &\le 2\gamma\,\|\Delta_\mu\|_\infty + \gamma^2\,\|\Delta_\Sigma\|_\infty, \end{aligned}$$
#
# because $|R| \le 1$. By definition of the norm $\|\Delta_\mu\|_\infty \le \|\Delta\|_\lambda$ and $\|\Delta_\Sigma\|_\infty \le \lambda\|\Delta\|_\lambda$. So the change of
# the means is at most $\gamma\|\Delta\|_\lambda$. That of the second moments, divided by $\lambda$, is at most
#
# $$\Big(\frac{2\gamma}{\lambda} + \gamma^2\Big)\|\Delta\|_\lambda = \big(\gamma(1 - \gamma) + \gamma^2\big)\|\Delta\|_\lambda = \gamma\,\|\Delta\|_\lambda. \qquad\blacksquare$$
#
# **Why $\lambda = 2/(1-\gamma)$?** Second moments inherit errors of the means: this is the term with $2\gamma$. The weight $\lambda$ makes second moments count less, so that
# this leak fits into the slack, $\gamma - \gamma^2$. We need $2\gamma/\lambda + \gamma^2 \le \gamma$, that is, $\lambda \ge 2/(1 - \gamma)$, and the
# paper takes the smallest $\lambda$ that will do. With a larger one $T_2$ would also contract by $\gamma$ (the means do not contract faster), but
# the norm would say less about second moments. If rewards are bounded by $r_{\max}$ instead of 1, the leak is $2\gamma r_{\max}$, and
# $\lambda = 2 r_{\max}/(1-\gamma)$ (decision 7).
#
# The inequalities are tight in a world of one state that always pays $r_{\max}$. There the **modulus**, the smallest factor with which the lemma
# holds, is *equal* to $\gamma$, and with too small a weight it is larger. For $r_{\max} = 3$ and $\gamma = 0.9$ it is 0.90 with the right
# weight. With the weight for rewards up to 1 it is 1.08, and $T_2$ is no contraction:

# %%
always = jl.JMDP([[1.0]], [[[3.0]]], [[[0]]], gamma=0.9)


def modulus_at(weight):
    """How much T_2 stretches M = (1, weight), whose norm with that weight is one."""
    zero = jl.apply_t2(always, [[1.0]], [[0.0]], [[[[0.0]]]])[1].item()
    moved = jl.apply_t2(always, [[1.0]], [[1.0]], [[[[weight]]]])[1].item()
    return (moved - zero) / weight


moduli = [modulus_at(jl.norm_weight(2, 0.9, bound)) for bound in (3.0, 1.0)]

# %%
found = np.isclose(moduli[0], 0.9) and moduli[1] > 0.9
claims.check(
    "decision 7: modulus, weight for |R| <= 3, <= 1", f"{moduli[0]:.2f}, {moduli[1]:.2f}", found
)

# %% [markdown]
# ## 1.5 Convergence and a certificate
#
# **JIPE-2** (joint iterative policy evaluation) is the iteration $M_{k+1} = T_2 M_k$ (21).
#
# **Theorem 5.3.** $T_2$ has exactly one fixed point, the true moments $M^\pi$. From any $M_0$,
#
# $$\|M_k - M^\pi\|_\lambda \le \gamma^k\,\|M_0 - M^\pi\|_\lambda, \tag{22}$$
#
# and for any collection $M$ whatever,
#
# $$\|M - M^\pi\|_\lambda \le \frac{1}{1-\gamma}\,\|M - T_2 M\|_\lambda. \tag{23}$$
#
# *Proof.* Collections form a finite-dimensional space, which is complete, so Banach's theorem applies to the contraction $T_2$: there is
# one fixed point, by (19) it is $M^\pi$, and each application brings $M$ closer to it by the factor $\gamma$. That is (22). For (23), insert $T_2 M$ and use the
# contraction once:
#
# $$\begin{aligned} \|M - M^\pi\|_\lambda &\le \|M - T_2 M\|_\lambda + \|T_2 M - T_2 M^\pi\|_\lambda \\
# &\le \|M - T_2 M\|_\lambda + \gamma\,\|M - M^\pi\|_\lambda. \end{aligned}$$
#
# Subtract the last term and divide by $1 - \gamma$. $\blacksquare$
#
# The norm of $M - T_2 M$ is the **residual**. The right-hand side of (23), the **certificate**, can be computed without
# knowing $M^\pi$. It is `sol.error_bound`, and `sol.converged` says whether it is at most `tol` times $r_{\max}$, the largest absolute reward (`jm.reward_bound`).
#
# We compare residual, certificate and true error on the gridworld and on the paper's *coupled reward chain*: states in a row, two actions that both lead to the next state, and at each
# state a fair coin that pays 1 to one of the two actions. The last state pays 1 for ever. From $M_0 = 0$ the residual falls exactly along $\gamma^k$ in both worlds, and (23) holds with
# equality: the true error *is* the certificate. Chapter 2 draws the residuals and explains why.


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
cases = {"3x3 gridworld": (grid, goal), "5-state chain": (chain, jl.uniform_policy(chain))}
runs = {}
for name, (jm, policy) in cases.items():
    exact = jl.jipe2(jm, policy, tol=1e-12).moments
    residuals = jl.jipe2(jm, policy, tol=1e-2).residuals
    truth = exact.mean, exact.full_second()
    runs[name] = residuals, np.array(list(errors_along(jm, policy, residuals.size, truth)))

# %%
for name, (residuals, errors) in runs.items():
    line = residuals[0] * 0.95 ** np.arange(residuals.size)
    for claim, ratio in {"residual / gamma^k": residuals / line,
                         "error / certificate": errors * 0.05 / residuals}.items():  # fmt: skip
        ends = f"{ratio.min():.4f} to {ratio.max():.4f}"
        claims.check(f"{name}: {claim}", ends, np.allclose(ratio, 1, rtol=0, atol=1e-6))

# %% [markdown]
# ## 1.6 Moments of any order
#
# Two moments say how widely a gap is spread. They do not say on which side its long tail lies, or how heavy that tail is. The $k$-th order collection is
#
# $$M^{(k)}(x_1, \dots, x_k) = \mathbb E\Big[\prod_{i=1}^k Z^\pi(x_i)\Big], \qquad x_i \in \mathcal X, \tag{31}$$
#
# and $M = (M^{(1)}, \dots, M^{(n)})$ holds all orders up to $n$. For the operator, put the $k$ factors into groups $B_1, \dots, B_L$ that stand at the
# same state (the paper writes $G_l$, which is our letter for gaps). Each group reads **one** table, and the groups are independent:
#
# $$\big((R_i, S'_i)\big)_{i \in B_l} \sim \mathcal J_{|B_l|}(\cdot \mid s^{(l)}, a_{B_l}), \qquad l = 1, \dots, L. \tag{32}$$
#
# Next actions $A'_i \sim \pi(\cdot \mid S'_i)$ are drawn independently for *distinct* state-actions $x_i$. Factors with the same $x_i$ are one
# random variable and share $R$, $S'$ and $A'$ (decision 3). With $X'_i = (S'_i, A'_i)$,
#
# $$(T_n M)_k(x_{1:k}) = \mathbb E\Big[\sum_{I \subseteq \{1, \dots, k\}} \gamma^{|I|} \Big(\prod_{i \notin I} R_i\Big)\, M^{(|I|)}(X'_I)\Big], \qquad M^{(0)} = 1. \tag{33}$$
#
# This is $\prod_i (R_i + \gamma Z(X'_i))$ multiplied out: $I$ is the set of factors that contribute their future; the others contribute their reward.
# At $k = 1$ it is Bellman's equation (13) and at $k = 2$ it is (14). The norm is
#
# $$\|M\|_\lambda = \max_{k \le n} \frac{1}{\lambda_k}\|M^{(k)}\|_\infty, \qquad \lambda_k = \Big(\frac{2}{1-\gamma}\Big)^{k-1}. \tag{34}$$
#
# **The modulus of order $k$, in the worst case over all models** with $|R| \le r_{\max}$, is $\big(\tfrac{1+\gamma}{2}\big)^k - \big(\tfrac{1-\gamma}{2}\big)^k \le \gamma$. A given
# model may contract faster.
#
# *Proof.* Let $|R| \le r_{\max}$, $\lambda = 2 r_{\max}/(1-\gamma)$ and $\lambda_k = \lambda^{k-1}$, and let $\Delta = M - M'$ be the difference of two collections, with $\|\Delta\|_\lambda \le 1$, so that
# $|\Delta^{(l)}| \le \lambda^{l-1}$. The term $I = \emptyset$ cancels. There are $\binom kl$ sets of size $l$, so by the binomial theorem, with $r_{\max}/\lambda = (1-\gamma)/2$,
#
# $$\begin{aligned} \frac{|(T_n M - T_n M')_k|}{\lambda_k} &\le \sum_{l=1}^{k} \binom kl \gamma^l\, r_{\max}^{k-l}\, \frac{\lambda^{l-1}}{\lambda^{k-1}} = \sum_{l=1}^{k} \binom kl \gamma^l \Big(\frac{1-\gamma}{2}\Big)^{k-l} \\
# &= \Big(\frac{1+\gamma}{2}\Big)^k - \Big(\frac{1-\gamma}{2}\Big)^k . \end{aligned}$$
#
# The state that always pays $r_{\max}$ attains this. Call the two bases $u$ and $w$. Then $u + w = 1$ and $u - w = \gamma$, so
#
# $$u^k - w^k = (u - w)\sum_{j<k} u^j w^{k-1-j} \le \gamma\,(u + w)^{k-1} = \gamma ,$$
#
# with equality for $k = 1$ and $k = 2$. $\blacksquare$
#
# So $T_n$ is a $\gamma$-contraction for every $n$, and Theorem 5.3 holds word for word. We measure the modulus twice. On the state that always pays 3 it must be equal to the formula. On random worlds, with
# rewards of both signs and random collections as large as the norm allows, it may be smaller; the cell prints how close it comes:


# %%
def modulus(jm, policy, order, rng):
    """How far apart T takes collections that differ by lambda_k everywhere, with random signs."""
    operator = MultisetOperator(jm, policy, order)
    signs = rng.choice([-1.0, 1.0], operator.weights.size)
    change = operator.apply(signs * operator.weights) - operator.apply(operator.zero())
    return np.abs(change / operator.weights)[operator.orders == order].max()


def random_modulus(order, gamma):
    """The same on a random world."""
    tables = rng.uniform(-3, 3, (2, 2, 2)), rng.integers(2, size=(2, 2, 2))
    jm = jl.JMDP(rng.dirichlet([1, 1], 2), *tables, gamma)
    return modulus(jm, rng.dirichlet([1, 1], 2), order, rng)


# %%
largest = {}
for order in (1, 2, 3, 4):
    gammas = rng.uniform(0.05, 0.99, num_models)
    values = np.array([random_modulus(order, g) for g in gammas])
    largest[order] = (values / [jl.contraction_modulus(order, g) for g in gammas]).max()
    assert largest[order] <= 1 + 1e-12
print("measured / worst case, at most:", ", ".join(f"{share:.2f}" for share in largest.values()))
signs = np.random.default_rng(seed)  # in at least one draw of eight all signs are alike
one = np.ones((1, 1))
found = [max(modulus(always, one, order, signs) for _ in range(128)) for order in largest]
formula = [jl.contraction_modulus(order, always.gamma) for order in largest]
text = ", ".join(f"{factor:.4f}" for factor in found)
claims.check("orders 1 to 4: largest modulus, as in the formula", text, np.allclose(found, formula))

# %%
fine = np.linspace(0.001, 0.999, 200)
curves = {order: [jl.contraction_modulus(order, g) for g in fine] for order in (2, 3, 4, 8)}

# %%
fig, ax = plt.subplots(figsize=(3.6, 2.4))
for (order, curve), line in zip(curves.items(), ("-", "--", "-.", ":"), strict=True):
    ax.plot(fine, curve / fine, line, label="1 and 2" if order == 2 else order)
ax.set(xlabel=r"$\gamma$", ylabel=r"worst-case modulus / $\gamma$", ylim=(0, 1.05))
ax.legend(title="order")
data = {"gamma": fine} | {f"order {order}": curve for order, curve in curves.items()}
figures.save(fig, "fig_moduli", data, out_dir)
plt.show()

# %% [markdown] tags=["caption"]
# **Figure 1.5.** The modulus of order $k$ in the worst case over all models, divided by $\gamma$. Orders 1 and 2 contract by $\gamma$, higher orders *faster*.
#
# <!-- alt: Curves of the modulus divided by gamma, over gamma: constant one for orders 1 and 2, lower for 3, 4 and 8, all rising to one as gamma goes to one. -->

# %% [markdown]
# `jipe(order=n)` evaluates all these moments. A gap that is usually a little above its mean and now and then far below it has the same mean and
# variance as its mirror image about that mean. The third moment tells them apart. Where the rest of this chapter simulates, we allow five Monte Carlo standard errors: a correct answer
# fails such a comparison for fewer than one seed in a million.

# %%
m = jl.jipe(grid, goal, order=4).moments
state, a, b = 6, 1, 0  # bottom left: right against up
mean, variance = m.gap_mean[state, a, b], m.gap_variance[state, a, b]
third = m.gap_moment([(state, a, b)] * 3)
skew = m.gap_central_moment((state, a, b), 3) / variance**1.5
z = jl.simulate_pairs(grid, goal, state, (a, b), num_pairs, seed=seed)

# %%
cubes = (z[:, 0] - z[:, 1]) ** 3
inside = abs(cubes.mean() - third) < 5 * cubes.std() / np.sqrt(num_pairs)
enough = num_pairs >= 100
claim = "gap skewness; third moment within 5 s.e. of Monte Carlo"
claims.check(claim, f"{skew:.2f}", inside, enough=enough)

# %% [markdown]
# ## 1.7 The gap
#
# The mean of $G = Z(s, a) - Z(s, b)$ is $\mu_a - \mu_b$, whatever the coupling. Its variance depends on the coupling:
#
# $$\mathrm{Var}\,G = \Sigma(a, a) + \Sigma(b, b) - 2\,\Sigma(a, b) - (\mu_a - \mu_b)^2, \tag{35}$$
#
# all at the state $s$ (the paper prints a minus before $\Sigma(b, b)$: decision 1). `gap_mean` and `gap_variance` hold both, at `[s, a, b]`.
#
# **The bound.** Let $\mu_G = \mathbb E\,G > 0$ and $\sigma_G^2 = \mathrm{Var}\,G$. Then
#
# $$P(G \le 0) \le \frac{\sigma_G^2}{\sigma_G^2 + \mu_G^2} .$$
#
# *Proof* (Cantelli). Take any $c \ge 0$. If $G \le 0$ then $\mu_G - G + c \ge \mu_G + c > 0$, so by Markov's inequality for the square
#
# $$P(G \le 0) \le \frac{\mathbb E\,(\mu_G - G + c)^2}{(\mu_G + c)^2} = \frac{\sigma_G^2 + c^2}{(\mu_G + c)^2} ,$$
#
# and $c = \sigma_G^2/\mu_G$ makes the right-hand side as small as possible, which gives the bound. $\blacksquare$ Where $\mu_G \le 0$ the argument fails, and
# `inferiority_bound` is 1. It is an upper bound on the probability that $a$ is *no better* than $b$, not that probability itself. Chapter 4 estimates the probability by
# simulation, and chapter 9 encloses it between two computed bounds.

# %%
m, query = jl.jipe2(grid, goal).moments, (4, 1, 3)  # in the middle, right against left
print(f"mean {m.gap_mean[query]:.3f}, variance {m.gap_variance[query]:.3f}")
gap = jl.simulate_pairs(grid, goal, 4, (1, 3), num_pairs, seed=seed) @ [1, -1]

# %%
spread = (gap - gap.mean()) ** 2
near = abs(spread.mean() - m.gap_variance[query]) < 5 * spread.std() / np.sqrt(num_pairs)
value = f"{m.gap_variance[query]:.4f}"
claims.check("Var G within 5 s.e. of Monte Carlo", value, near, enough=enough)
share, bound = np.mean(gap <= 0), m.inferiority_bound[query]
claim, value = "P(G <= 0), simulated, and its bound", f"{share:.3f}, {bound:.3f}"
claims.check(claim, value, share <= bound, enough=enough)

# %% [markdown]
# ## 1.8 From samples
#
# What if we can only query $\mathcal J$? Number the coordinates of a collection,
# $\mathcal I_2 = \mathcal X \times \{\mu\} \,\cup\, \mathcal X^2 \times \{\Sigma\}$ (24). A **sampled backup** $\hat T_2(M, i)$ makes the draws of Figure 1.4 once and
# returns what stands inside the expectation: (25) for a mean, (26) for the diagonal, (27) for two branches. **Incremental JIPE-2** updates one coordinate at
# a time,
#
# $$M_{k+1}(i) = \begin{cases} (1 - \alpha_k(i))\, M_k(i) + \alpha_k(i)\, \hat T_2(M_k, i), & i = I_k, \\ M_k(i), & \text{otherwise.} \end{cases}$$
#
# That is eq. (28); $I_k$ is the coordinate that is picked at step $k$.
#
# **Lemma A.3.** The noise $\omega = \hat T_2(M, i) - (T_2 M)(i)$ has mean zero, and
# $\mathbb E[\omega^2] \le C_0 + C_1\|M\|_\lambda^2$ with $C_0 = 8$ and $C_1 = 8\max\{\gamma^2, (2\gamma + \gamma^2\lambda)^2\}$.
#
# *Proof.* The mean is zero because $T_2$ is *defined* as the expectation of what $\hat T_2$ returns. A variance is at most a second
# moment, and as in Lemma 5.2,
#
# $$|\hat T_2(M, i)| \le 1 + 2\gamma\|M_\mu\|_\infty + \gamma^2\|M_\Sigma\|_\infty \le 1 + (2\gamma + \gamma^2\lambda)\|M\|_\lambda$$
#
# (or $1 + \gamma\|M\|_\lambda$ for a mean). With $(p + q)^2 \le 2p^2 + 2q^2$ this gives the claim, even with 2 in place of 8. $\blacksquare$

# %%
mean, second = random_collection(grid)
expected = jl.apply_t2(grid, goal, mean, second)
blocks = [[(4, 1)], [(4, 1), (4, 1)], [(4, 1), (4, 0)], [(4, 1), (7, 1)]]  # mu diag same cross
worst = 0.0
for x in blocks:
    draws = [jl.sample_t2(grid, goal, mean, second, x, rng) for _ in range(num_draws)]
    off = abs(np.mean(draws) - expected[len(x) - 1][tuple(np.ravel(x))])
    worst = max(worst, off * np.sqrt(num_draws) / (np.std(draws) + 1e-12))
claim = "all four sampled backups unbiased, in standard errors"
claims.check(claim, f"{worst:.1f}", worst < 5, enough=num_draws >= 100)

# %% [markdown]
# The constants are generous. To stress them we take rewards that are 0 or 1 by a coin flip, and a collection
# $M$ whose entries are as large as its norm allows, with signs that follow the coin:

# %%
share = 0.0
for gamma in (0.0, 0.5, 0.9, 0.99):
    coin = jl.JMDP.from_step(2, 1, gamma, [0.5, 0.5], lambda s, a, u: (float(u), u))
    weight, signs = jl.norm_weight(2, gamma), np.array([-1.0, 1.0])
    bound = 8 + 8 * max(gamma**2, (2 * gamma + gamma**2 * weight) ** 2)
    largest = weight * np.minimum.outer(signs, signs)[:, None, :, None]
    sampled = partial(jl.sample_t2, coin, np.ones((2, 1)), signs[:, None], largest)
    draws = [sampled([(0, 0)] * 2, rng) for _ in range(num_draws)]
    share = max(share, np.var(draws) / bound)
claim = "noise lemma: E[w^2] / (C_0 + C_1 ||M||^2) at most"
claims.check(claim, f"{share:.2f}", share <= 1 / 4, enough=num_draws >= 100)

# %% [markdown]
# The threshold is 1/4 because the proof above gives the lemma with constants four times smaller.
#
# **Theorem 5.4.** If every coordinate is picked infinitely often and its step sizes satisfy $\sum\alpha = \infty$ and
# $\sum\alpha^2 < \infty$ (29), then $\|M_k - M^\pi\|_\lambda \to 0$ almost surely (30).
#
# *Idea of the proof.* Write the update as
#
# $$M(i) \leftarrow M(i) + \alpha\,\big[(T_2 M)(i) - M(i) + \omega\big] .$$
#
# Three things work together.
# (a) Without noise each update pulls $M(i)$ towards $(T_2 M)(i)$. By Lemma 5.2 the
# (weighted) error of this target is at most $\gamma$ times that of the worst coordinate. (b) The noise has mean zero and by Lemma A.3 a bounded variance as long as $M$ is bounded; $\sum\alpha^2 < \infty$ makes the sum of all noise converge,
# so that in the end it no longer moves $M$. (c) $\sum\alpha = \infty$ means that the pull does not die out before $M$ has arrived. Since $\|\cdot\|_\lambda$ is a
# weighted maximum, coordinates may be updated one at a time and in any order. The theorems of [Tsitsiklis (1994)](../book/background.md#ref-tsitsiklis) and of
# [Jaakkola et al. (1993)](../book/background.md#ref-jaakkola) turn this idea into a proof.
#
# **The rate.** Let $\alpha = n^{-p}$ at the $n$-th visit. For $p < 1$ the noise that is left has standard deviation of order $n^{-p/2}$, whatever $\gamma$ is. At $p = 1$ the error of the initial guess fades
# only as fast as $n^{-(1-\gamma)}$, so the total error is of order $n^{-\min(1/2,\, 1-\gamma)}$ ([Szepesvári (1997)](../book/background.md#ref-szepesvari)); section 8.1 shows both cases. Here $p = 0.8$. We take the largest error over all coordinates, and fit the slope of its logarithm against $\log n$ where $n$ is
# within a factor of thirty of its last value. As in chapter 8, we allow a deviation of 0.12 from the theory's $-0.40$.

# %%
small = jl.windy_gridworld(2, gamma=0.3)
uniform = jl.uniform_policy(small)
exact = jl.jipe2(small, uniform, tol=1e-12).moments
learn = partial(jl.incremental_jipe2, small, uniform, num_updates, (1.0, 0.8), reference=exact)
curves = [learn(seed=np.random.SeedSequence([seed, k])) for k in range(num_seeds)]

# %%
visits = curves[0].updates / curves[0].values.size
late = visits > visits[-1] / 30
middle = np.median([curve.errors for curve in curves], axis=0)[late]
slope = np.polyfit(np.log(visits[late]), np.log(middle), 1)[0]
agrees = abs(slope + 0.4) < 0.12
enough = num_seeds >= 5 and num_updates >= 100_000
claim = "Theorem 5.4: slope of log error, theory -0.40"
claims.check(claim, f"{slope:.2f}", agrees, enough=enough)

# %% [markdown]
# ## 1.9 With features
#
# If there are too many states for a table, look for the moments in a family with few parameters (62). With features
# $\phi(x) \in \mathbb R^{d}$,
#
# $$\hat M_\mu(x) = \phi(x)^\top \theta, \qquad \hat M_\Sigma(x, y) = \phi(x)^\top \Theta\, \phi(y), \quad \Theta \succeq 0. \tag{63, 64}$$
#
# **Assumption B.1.** The matrix $\Phi$ of all features, one row for each $x$, has full column rank: no feature is a combination of the others.
#
# **Assumption B.2.** The chain of $x = (s, a)$ under $\pi$, with transition matrix $P^\pi$, is ergodic: its stationary law $\nu$ is unique and positive everywhere.
#
# Means are measured in $\|f\|_\nu^2 = \sum_x \nu(x) f(x)^2$ (65). For second moments, let $P_2$ be the transition matrix of the **pair chain**: two branches that move as in
# Figure 1.4. Let $\nu_2$ be one of its stationary laws, $\nu_2 P_2 = \nu_2$ (66, where the paper writes $\mu_2$), and $\|f\|_{\nu_2}^2 = \sum_{x, y} \nu_2(x, y)\, f(x, y)^2$ (68). Each branch by itself moves by $P^\pi$, so
# both marginals of $\nu_2$ are $\nu$. $\Pi$ projects $M_\mu$ onto the span of the features in $\|\cdot\|_\nu$ (69) and $M_\Sigma$ onto the cone of all $\phi^\top \Theta\, \phi$ in $\|\cdot\|_{\nu_2}$ (70).
# **Projected JIPE-2** is $M_{k+1} = \Pi T_2 M_k$ (72), and its fixed point $\hat M^* = \Pi T_2 \hat M^*$ (71) is the answer.
#
# **Lemma B.3.** $\|P^\pi f\|_\nu \le \|f\|_\nu$ for functions $f$ on $\mathcal X$, and $\|P_2 f\|_{\nu_2} \le \|f\|_{\nu_2}$ for functions $f$ on $\mathcal X^2$.
#
# *Proof.* The square of an average is at most the average of the squares, and one more step does not change a stationary law:
#
# $$\begin{aligned} \|P^\pi f\|_\nu^2 &= \sum_x \nu(x)\Big(\sum_{x'} P^\pi(x' \mid x) f(x')\Big)^2 \\
# &\le \sum_x \nu(x) \sum_{x'} P^\pi(x' \mid x) f(x')^2 = \sum_{x'} \nu(x') f(x')^2 = \|f\|_\nu^2 . \end{aligned}$$
#
# The same two steps with $P_2$ and $\nu_2$ give the other inequality. $\blacksquare$
#
# **Theorem B.4.** Under Assumptions B.1 and B.2, for every $\beta$ with
#
# $$0 < \beta < \frac{1 - \gamma^2}{2\gamma\, r_{\max}} \tag{86}$$
#
# (the paper has $r_{\max} = 1$), $\Pi T_2$ contracts in $\|M\|_\beta = \max\{\|M_\mu\|_\nu,\ \beta\,\|M_\Sigma\|_{\nu_2}\}$ (77) by the factor
# $\kappa = \max\{\gamma,\ 2\beta\gamma\, r_{\max} + \gamma^2\} < 1$. So the projected iteration converges to one fixed point $\hat M^*$, and
#
# $$\|\hat M^* - M^\pi\|_\beta \le \frac{1}{1 - \kappa}\,\|\Pi M^\pi - M^\pi\|_\beta . \tag{78}$$
#
# *Proof.* Projections onto a subspace or a convex cone do not increase distances, so $\Pi$ can be dropped. Let $\Delta = M - M'$ and $D = T_2 M - T_2 M'$. Lemma B.3 gives
# $\|D_\mu\|_\nu \le \gamma\|\Delta_\mu\|_\nu$. In the second moments, the terms with $\Delta_\mu$ involve only one branch of the pair, whose law is $\nu$, and are at most
# $\gamma r_{\max}\|\Delta_\mu\|_\nu$ each; the last one is at most $\gamma^2\|\Delta_\Sigma\|_{\nu_2}$. Multiply by $\beta$:
#
# $$\beta\,\|D_\Sigma\|_{\nu_2} \le 2\beta\gamma r_{\max}\|\Delta_\mu\|_\nu + \gamma^2 \beta\|\Delta_\Sigma\|_{\nu_2} \le (2\beta\gamma r_{\max} + \gamma^2)\|\Delta\|_\beta ,$$
#
# and the factor in parentheses is below 1 exactly for the $\beta$ of (86). Bound (78) is the argument of Theorem 5.3 once more, with $\Pi M^\pi$ in between. $\blacksquare$
#
# $\beta$ takes the place of $1/\lambda$. For $r_{\max} = 1$, $\beta = (1 - \gamma)/2 = 1/\lambda$ is admissible and gives $\kappa = \gamma$. At a pair $(x, y)$ to which $\nu_2$ gives weight, (78) also bounds the error of one number:
#
# $$|\hat M^*_\Sigma(x, y) - M^\pi_\Sigma(x, y)| \le \frac{\|\hat M^* - M^\pi\|_\beta}{\beta \sqrt{\nu_2(x, y)}} . \tag{79}$$
#
# Decision 10 (section 1.10) is about the pairs without weight.
#
# We check the lemma, and the contraction with $\beta = 1/\lambda$. In most worlds the stationary pair law sits on merged pairs $x = y$ (decision 10), where $P_2$ is just
# $P^\pi$, and a check would say nothing about two branches. So we take a random world of two sides with two states each, in which every step changes sides. Branches that start
# on opposite sides never meet. If we start from the uniform law over all pairs, half of the mass of the stationary law $\nu_2$ stays on pairs that are apart:


# %%
def random_world(next_states):
    """Four states, two actions; rewards in [0, 1], policy and odds of the tables are random."""
    size, num_tables, actions = next_states.shape
    odds = rng.dirichlet(np.ones(num_tables), size)
    jm = jl.JMDP(odds, rng.uniform(size=next_states.shape), next_states, 0.9)
    return jm, rng.dirichlet(np.ones(actions), size)


def pair_matrix(jm, policy):
    """P_2, (64, 64) for four states and two actions; one row for each pair to start from."""
    pairs = np.eye(64).reshape(64, 4, 2, 4, 2)
    return np.array([jl.pair_step(jm, policy, pair).ravel() for pair in pairs])


def norm_of(matrix, weights):
    """The norm of a matrix on functions of pairs, which are measured with these weights."""
    seen = weights > 1e-12
    roots = np.sqrt(weights[seen])
    return np.linalg.norm(roots[:, None] * matrix[np.ix_(seen, seen)] / roots, 2)


# %%
other_side = np.array([2, 2, 0, 0])[:, None, None]
world, policy = random_world(other_side + rng.integers(2, size=(4, 3, 2)))
two_sides = pair_matrix(world, policy)
late = np.full(64, 1 / 64) @ np.linalg.matrix_power(two_sides, 4096)
nu_2 = (late + late @ two_sides) / 2  # both phases of the period
assert np.allclose(nu_2 @ two_sides, nu_2)
weight = nu_2.reshape(4, 2, 4, 2)
apart = weight.sum() - np.einsum("sasa->", weight)
norm = norm_of(two_sides, nu_2)
right = np.isclose(apart, 0.5) and np.isclose(norm, 1)  # a constant attains the norm
claims.check("Lemma B.3: mass apart, norm of P_2", f"{apart:.3f}, {norm:.6f}", right)

# %%
nu = nu_2.reshape(4, 2, -1).sum(2)
beta = 1 / jl.norm_weight(2, world.gamma)


def norm_beta(mean, second):
    return max(np.sqrt((nu * mean**2).sum()), beta * np.sqrt((weight * second**2).sum()))


zero = jl.apply_t2(world, policy, 0 * nu, 0 * weight)
ratios = []
for _ in range(num_models):
    start = random_collection(world)
    after = jl.apply_t2(world, policy, *start)
    moved = after[0] - zero[0], after[1] - zero[1]
    ratios.append(norm_beta(*moved) / norm_beta(*start))
kappa = max(ratios)
claim = "Theorem B.4, half of the mass apart: measured kappa, at most gamma = 0.9"
claims.check(claim, f"{kappa:.2f}", kappa <= 0.9)

# %% [markdown]
# ## 1.10 The thirteen decisions
#
# In thirteen places the paper is silent or slips, and an implementation must choose. Two sentences settle those about the model itself (3, 4, 5 and 10): *equal state-actions are one random variable*,
# and *distinct states are independent*. [Reading the paper](../book/paper.md) has all thirteen in short form.
#
# **Decision 1: a sign in the variance of the gap.** The paper prints
#
# $$\Sigma(a,a) - \Sigma(b,b) - 2\,\Sigma(a,b) - (\mu_a-\mu_b)^2 .$$
#
# The first minus must be a plus, as in (35). For the gap of section 1.6, whose variance is 1.2351, the printed formula gives $-545.85$:

# %%
m = jl.jipe2(grid, goal).moments
aa, bb, ab = (m.second((state, x), (state, y)) for x, y in ((a, a), (b, b), (a, b)))
drift = m.gap_mean[state, a, b] ** 2
printed, right = aa - bb - 2 * ab - drift, aa + bb - 2 * ab - drift
text = f"{printed:.2f}, {right:.4f}"
claims.check("decision 1: printed sign, right sign", text, printed < 0, "differs from the paper")
assert np.isclose(right, m.gap_variance[state, a, b])

# %% [markdown]
# **Decision 2: a misplaced bracket, and the name of an inequality.** The paper prints $\mu_G := \mathbb E[G > 0]$ and names Chebyshev. The bracket is misplaced: what is meant is
# $\mu_G := \mathbb E[G] > 0$, a definition and a condition in one, and the code of the authors' release returns 1 for a mean that is not positive. The one-sided bound of section 1.7 is
# Cantelli's. An implementation must not lose the condition. Reverse a favourable gap, so that its mean is negative, and
# the formula alone gives 0.007 for a probability that is almost 1:

# %%
calm = jl.windy_gridworld(3, gust_prob=0.01)
m = jl.jipe2(calm, goal).moments
worse = (1, 3, 1)  # one step from the goal, walking away against walking in
formula = m.gap_variance[worse] / (m.gap_variance[worse] + m.gap_mean[worse] ** 2)
z = jl.simulate_pairs(calm, goal, 1, (3, 1), num_pairs, seed=seed)
inferior = np.mean(z[:, 0] <= z[:, 1])
needed = formula < inferior and m.inferiority_bound[worse] == 1.0
text, enough = f"{formula:.3f}, {inferior:.2f}", num_pairs >= 100
claim = "decision 2: the formula without its condition, P(G <= 0)"
claims.check(claim, text, needed, enough=enough)

# %% [markdown]
# **Decision 3: equal state-actions are one random variable.** The paper's text on higher orders draws a next
# action $A'_i$ for *every* factor. Then $\mathbb E[Z(s,a)^2]$ would be computed as if the two factors
# were different returns, and $T_n$ would contradict the diagonal (16) of $T_2$. The smallest example: one state, two actions that always pay 1 and 0, a
# coin-flip policy. The return is random through the policy alone, with variance
# $\gamma^2 / (4 (1 - \gamma^2)) = 1/12$ at $\gamma = 1/2$. What would two independent next actions give? To see it with the right operator, give every action many *twins*: other
# actions that do exactly the same. Two branches then hardly ever pick the same twin, and so hardly ever merge. So the
# covariance of an action with one of its twins is nearly what independent next actions would give for the variance.

# %%
payer = jl.JMDP([[1.0]], [[[1.0, 0.0]]], [[[0, 0]]], 0.5)
variance = jl.jipe2(payer, [[0.5, 0.5]]).moments.variance[0, 0]
claims.check("decision 3: Var Z = 1/12, not 0", f"{variance:.4f}", np.isclose(variance, 1 / 12))
sample = jl.simulate_pairs(payer, [[0.5, 0.5]], 0, (0, 0), num_pairs, seed=seed)[:, 0]
spread = (sample - sample.mean()) ** 2
assert not enough or abs(spread.mean() - 1 / 12) < 5 * spread.std() / np.sqrt(num_pairs)


# %%
def with_twins(jm, copies):
    """Every action `copies` times over: the twins of action a are a * copies, a * copies + 1, ..."""
    tables = (np.repeat(x, copies, axis=1) for x in (jm.rewards, jm.next_states))
    return jl.JMDP.from_tables(jm.table_states, jm.probs, *tables, jm.num_states, jm.gamma)


many = with_twins(payer, 100)
naive = jl.jipe2(many, jl.uniform_policy(many)).moments.covariance[0, 0, 1]

# %% [markdown]
# Two branches pick the same one of 200 actions with probability 1/200, and so this covariance is less than 1/200 of the true variance.
#
# On chains the slip shows in the correlations: both actions lead to the same state, branches that meet
# and choose alike merge, and so the two returns share much of their future. On the 25-state chain at
# $\gamma = 0.99$ the correlation is $+0.80$. Without merging it would be $-1$. A short chain of 4 states with twins shows this: the first of its three coins contributes
# $-\tfrac14$ to the covariance of the two actions, and $+\tfrac14$ to that of an action and its twin. At the two later coins branches merge with a probability of at most 2/200, and share a variance below $\tfrac12$
# from then on. This adds at most 0.005 to both covariances, so their ratio is at most $-0.245/0.255 = -0.96$; it is $-0.993$.

# %%
few = naive < variance / 200
claims.check("decision 3: what independent next actions would give", f"{naive:.4f}", few)
chain = jl.coupled_reward_chain(25, 0.99)
correlation = jl.jipe2(chain, jl.uniform_policy(chain)).moments.correlation[0, 0, 1]
known = np.isclose(correlation, 0.796068, atol=1e-6)
claims.check("decision 3: 25-state chain, correlation at s_0", f"{correlation:.6f}", known)
many = with_twins(jl.coupled_reward_chain(4, 0.9), 100)
twins = jl.jipe2(many, jl.uniform_policy(many), tol=1e-6).moments.covariance[0]
naive = twins[0, 100] / twins[0, 1]  # the two actions, over an action and its twin
claims.check("decision 3: 4-state chain without merging", f"{naive:.3f}", naive < -0.245 / 0.255)

# %% [markdown]
# **Decision 4: distinct states, equal actions.** The paper's text on the operator skips the case $s \ne \tilde s$, $a = \tilde a$.
# Rule (iii) of the incremental method settles it: the draws are independent.

# %%
flat = jl.coupled_reward_chain(3, gamma=0.0)
second = jl.jipe2(flat, jl.uniform_policy(flat)).moments.second((0, 0), (1, 0))
free = np.isclose(second, 0.5 * 0.5)  # one shared coin would give 0.5
claims.check("decision 4: E[R R~] of two states, same action", f"{second:.2f}", free)

# %% [markdown]
# **Decision 5: noise is per state.** Assumption 4.5 reads as if one $U_t$ served every state. The
# one-step regime means something else: *distinct states are independent*, and two branches are
# coupled only while they stand at the same state. The other reading is `coupling="common"`, for noise
# that is one process for the whole world; section 3.6 says which to use when. It can also be built by
# hand, as a JMDP whose states are pairs of cells in which the same gust blows. The model built by hand must agree with `coupling="common"` to
# a relative accuracy of $10^{-4}$. The mean gap variance of the 3x3 grid is 0.603 with noise per state, and 0.196 with one gust for all cells:

# %%
n, cells = grid.num_states, np.arange(grid.num_states)
reward, after = grid.rewards.reshape(n, 2, 4), grid.next_states.reshape(n, 2, 4)  # calm, gust


def two_cells_one_gust(pair, actions, gust):
    (s, t), (a, b) = divmod(pair, n), divmod(actions, 4)
    return reward[s, gust, a] - reward[t, gust, b], n * after[s, gust, a] + after[t, gust, b]


# %%
shared = jl.JMDP.from_step(n * n, 16, grid.gamma, [0.8, 0.2], two_cells_one_gust)
both_follow = np.einsum("sa,tb->stab", goal, goal).reshape(n * n, 16)
by_hand = jl.jipe2(shared, both_follow, tol=1e-6).moments.variance[cells * n + cells].mean()
per_state = jl.jipe2(grid, goal).moments.gap_variance.mean()
common = jl.jipe2(grid, goal, coupling="common").moments.gap_variance.mean()

# %%
text = f"{per_state:.3f}; {common:.3f}, {by_hand:.3f}"
found = np.isclose(common, by_hand, rtol=1e-4) and not np.isclose(per_state, by_hand, rtol=1e-4)
claims.check("decision 5: mean gap variance, noise per state; one U, by hand", text, found)

# %% [markdown]
# **Decision 6: reward and next state belong together.** The paper gives $P_R$ and $P_S$ separately,
# which leaves open how $R$ and $S'$ depend on each other *for one action*. Below, one coin decides both the reward and
# whether the next state pays for ever; in the second model there is a coin for each. The marginal
# kernels agree, but the variance of the return is 1 in the first model and $\tfrac12$ in the second. So our tables store the pair $(R, S')$.


# %%
def coins(s, a, u):
    """u = 0..3 is two coins; state 2 pays for ever, state 1 never."""
    return (u % 2, 1 + u // 2) if s == 0 else (s - 1.0, s)


two_coins = jl.JMDP.from_step(3, 1, 0.5, [0.25, 0.25, 0.25, 0.25], coins)
one_coin = jl.JMDP.from_step(3, 1, 0.5, [0.5, 0.0, 0.0, 0.5], coins)
variances = [jl.jipe2(jm, np.ones((3, 1))).moments.variance[0, 0] for jm in (one_coin, two_coins)]

# %%
found = np.allclose(variances, [1.0, 0.5])
values = f"{variances[0]:.2f}, {variances[1]:.2f}"
claims.check("decision 6: Var Z with one coin, with two", values, found)

# %% [markdown]
# **Decision 7: any bounded reward.** Rewards in $[0, 1]$ are not needed (the chain of the paper's Figure 3 pays
# $-r_i$). With $|R| \le r_{\max}$ take $\lambda_k = (2 r_{\max}/(1-\gamma))^{k-1}$; the modulus of order $k$ does not depend on $r_{\max}$. Sections 1.4 and 1.6
# have the proofs, and section 1.4 the example: at $r_{\max} = 3$ the weight for $r_{\max} = 1$ would give a modulus above 1.
#
# **Decision 8: the moment of order zero.** The sum over subsets in (33) contains $M^{(0)}$, which the paper leaves undefined; it
# is identically 1 (the empty product). With it, $T_n$ at order 1 is the ordinary Bellman operator.

# %%
first = jl.jipe(grid, goal, order=1).moments.mean
transition_probs, mean_rewards = grid.marginal_mdp()
bellman = mean_rewards + grid.gamma * transition_probs @ (goal * first).sum(1)
off = np.abs(bellman - first).max()
claims.check("decision 8: residual of order 1 in Bellman's equation", f"{off:.7f}", off < 1e-8)

# %% [markdown]
# **Decision 9: the sums in (29) run over the visits of each coordinate**, not over the global clock $k$. A
# coordinate that is visited at $k = 2, 4, 8, \dots$ with $\alpha_k = 1/k$ keeps $\prod_j (1 - 2^{-j}) = 0.2888$ of its
# initial error for ever. If the visits are counted instead, with $\alpha = 1/n$ for $n = 2, 3, \dots$, then $1/60$ is left after 59 visits, and nothing in the end:

# %%
left = np.prod(1 - 1.0 / 2.0 ** np.arange(1, 60))
by_visit = np.prod(1 - 1.0 / np.arange(2.0, 61.0))
stuck = np.isclose(left, 0.288788, atol=1e-6) and np.isclose(by_visit, 1 / 60)
claims.check("decision 9: error left, 1/clock, 1/visits", f"{left:.3f}, {by_visit:.3f}", stuck)

# %% [markdown]
# The library refuses step sizes that break the conditions, and says why:

# %%
for power in (0.5, 1.1):
    try:
        jl.incremental_jipe2(grid, goal, 10, step_size=(1.0, power))
    except ValueError as error:
        print(f"power {power}:", str(error).partition(": ")[2])
    else:
        raise AssertionError(f"power {power} was accepted")

# %% [markdown]
# **Decision 10: no stationary pair law gives weight to a gap.** If the chain of $x = (s, a)$ is irreducible and aperiodic, *every* stationary law $\nu_2$ of pairs sits on merged pairs. So
# $\|\cdot\|_{\nu_2}$ does not notice $\Sigma(s, a, s, b)$ with $a \ne b$, and Theorem B.4 never covers a gap.
#
# *Proof.* (a) Merged pairs stay merged. So a pair that is apart and can merge is a transient state of the pair chain, and a stationary law of a finite chain gives transient states no mass. It is enough to show that every pair can merge.
# (b) Branches at two states move independently until they first stand at one state. After enough steps each of them can be at any $x$, so with positive
# probability they have met by then. (c) Whenever two branches that have not merged come to one state $s'$, their next actions are independent draws from the same $\pi(\cdot \mid s')$ and agree with probability
# $\sum_a \pi(a \mid s')^2 > 0$: the branches have merged. A pair of distinct actions at one state is, one step later, either in case (b) or in case (c). $\blacksquare$
#
# In numbers: the spectral radius of $P_2$ among pairs that are apart is below one, so their mass dies out. We check this on a random world in which every state can follow every other. In the
# world of two sides of section 1.9, which has period two, the radius is one. But there the mass that stays apart is on pairs at opposite sides. Two actions at *one* state lead to the
# same side, so such pairs have no mass in this world either: for them the proof applies to every second step.

# %%
ends = rng.integers(4, size=(4, 5, 2))
ends[:, :4, 0] = np.arange(4)  # the first action can lead everywhere
mixing = pair_matrix(*random_world(ends))
merged = np.eye(8, dtype=bool).ravel()
radius = [np.abs(np.linalg.eigvals(p[~merged][:, ~merged])).max() for p in (mixing, two_sides)]
at_one_state = np.einsum("sasb->sab", weight)[:, ~np.eye(2, dtype=bool)].sum()
text = f"{radius[0]:.2f}, {radius[1]:.2f}; {at_one_state:.6f}"
dies = radius[0] < 1 - 1e-6 and np.isclose(radius[1], 1) and at_one_state < 1e-9
claim = "decision 10: spectral radius apart, mixing and two-sided world; weight of gaps"
claims.check(claim, text, dies, "differs from the paper")

# %% [markdown]
# `projected_jipe2` therefore weighs each pair by how often two branches visit it, discounted over time. This is the discounted pair occupancy $\nu_2 = (1 - \eta)\sum_t \eta^t \xi_0 P_2^t$, where
# $\gamma^2 < \eta < 1$ and the law $\xi_0$ of the first pair sits on pairs with distinct actions. Then $\nu_2 \ge \eta\, \nu_2 P_2$, and the two steps of Lemma B.3 give
# $\|P_2\| \le \eta^{-1/2}$ instead of $\|P_2\| \le 1$. The factors become $\gamma\,\eta^{-1/2}$ and $\gamma^2 \eta^{-1/2}$, still below 1. Chapter 8 compares the two weights. We check the bound on the random world,
# with $\eta = 0.9$ and $\xi_0$ uniform over pairs of two actions at one state:

# %%
eta = 0.9
gaps_only = np.einsum("st,ab->satb", np.eye(4), 1 - np.eye(2)).ravel() / 8
occupancy = (1 - eta) * np.linalg.solve((np.eye(64) - eta * mixing).T, gaps_only)
apart = occupancy.sum() - np.einsum("sasa->", occupancy.reshape(4, 2, 4, 2))
norm = norm_of(mixing, occupancy)
text = f"{apart:.2f}, {norm:.4f}, {eta**-0.5:.4f}"
held = norm <= eta**-0.5 and apart > 1 - eta
claims.check("decision 10: occupancy, mass apart; norm of P_2 and its bound", text, held)

# %% [markdown]
# **Decision 11: $\Theta \succeq 0$ is not enough.** A positive semidefinite $\Theta$ allows second moments below the
# squared mean. With one constant feature, $\theta = 1$ and $\Theta = 1/2$ satisfy $\Theta \succeq 0$, but imply
# $\mathrm{Var} = \Theta - \theta^2 = -1/2$. The matrix that must be positive semidefinite is
# $\begin{pmatrix}1 & \theta^\top\\ \theta & \Theta\end{pmatrix}$.

# %%
theta, big_theta = 1.0, 0.5
smallest = np.linalg.eigvalsh([[1.0, theta], [theta, big_theta]])[0]
variance = big_theta - theta**2
caught = variance < 0 and smallest < 0
text, verdict = f"{variance}, {smallest:.2f}", "differs from the paper"
claims.check("decision 11: variance, augmented eigenvalue", text, caught, verdict)

# %% [markdown]
# **Decision 12: two squares in the noise lemma.** The paper's proof of Lemma A.3 drops a square twice, in
# eq. (49) and in the sentence after it. The constants stand, as the proof and the numbers of section 1.8 show.
#
# **Decision 13: settings.** The paper leaves the gridworld's and the chain's settings open. Ours: the goal is
# the top right cell, absorbing, and pays 1 on every transition into or inside it; a gust (probability
# 0.2, one draw for all four actions) pushes the agent one more cell to the left; a move or a gust against a wall has no effect. In the chain a fair coin decides
# which action gets the reward; the last state pays 1 for ever. To check another implementation: at the first state of the chain of 4 states, with $\gamma = 0.9$ and the uniform policy, the variance of either return is 0.616525 and the correlation of the two is $-0.272475$. Rewards $\pm r$ instead of 1 and 0 give the same correlation.

# %%
short = jl.coupled_reward_chain(4, 0.9)
m = jl.jipe2(short, jl.uniform_policy(short), tol=1e-10).moments
other = jl.coupled_reward_chain(4, 0.9, "signed")
signed = jl.jipe2(other, jl.uniform_policy(other), tol=1e-10).moments

# %%
variance, correlation = m.variance[0, 0], m.correlation[0, 0, 1]
assert np.isclose(signed.correlation[0, 0, 1], correlation)
claims.check("decision 13: chain variance", f"{variance:.6f}", abs(variance - 0.616525) < 1e-6)
near = abs(correlation + 0.272475) < 1e-6
claims.check("decision 13: chain correlation", f"{correlation:.6f}", near)

# %% [markdown]
# ## What to take away
#
# - The coupling is part of the environment: the same MDP is compatible with very different gaps.
# - $T_2$ is a contraction whose residual *certifies* accuracy, for any bounded rewards; so is $T_n$ for every order $n$.
# - Equal state-actions are one random variable, and distinct states are independent. The decisions
#   about the model itself, 3, 4, 5 and 10, follow from these two sentences.
#
# ## Exercises
#
# **Exercise 1.** In section 1.6 we looked at the gap of *right* against *up*, bottom left in the 3x3 grid, at a gust probability of 0.2. Which `gust_prob`
# makes the variance of this gap largest?
#
# <details><summary>Solution</summary>
#
# Try many values. Without wind nothing is random and the variance is zero; with a gust at every step nothing is random either. The variance is largest not in the middle but
# at a gust probability of about 0.86: there, rare calm moments decide when each branch gets through, and waiting times vary most.
#
# </details>

# %% tags=["hide-cell"]
gusts = np.linspace(0, 1, 51)
worlds = [jl.windy_gridworld(3, gust_prob=p) for p in gusts]
variances = [jl.jipe2(jm, goal, queries=[6]).moments.gap_variance[6, 1, 0] for jm in worlds]
assert max(variances[0], variances[-1]) < 1e-9
widest = gusts[np.argmax(variances)]
claims.check("exercise 1: the widest gap is at gust_prob", f"{widest:.2f}", widest > 0.5)

# %% [markdown]
# **Exercise 2.** Give Example 1 a third action that is paid by a coin of its own. What does `coupling_witness` return, and why not the triple?
#
# <details><summary>Solution</summary>
#
# The pair `(0, (0, 1))`. The law of all three rows is not a product either, but the witness is the *smallest* query that shows a dependence, and the
# first two actions suffice. The third is independent of both.
#
# </details>

# %% tags=["hide-cell"]
paid = [lambda u: u % 2, lambda u: 1 - u % 2, lambda u: u // 2]  # u = 0..3 is two coins
three = jl.JMDP.from_step(1, 3, 0.5, [0.25] * 4, lambda s, a, u: (paid[a](u), 0))
witness = three.coupling_witness
claims.check("exercise 2: the witness of coupling", witness, witness == (0, (0, 1)))

# %% [markdown]
# **Exercise 3.** Replace $\lambda = 2/(1-\gamma)$ by $\lambda = c/(1-\gamma)$. For which $c$ is $T_2$ still a contraction, and with which modulus? Check your formula on the state that
# always pays 3, which attains it.
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
claims.check("exercise 3: modulus at the smallest weight", f"{edge:.2f}", np.isclose(edge, 1))

# %% [markdown]
# **What to read next.** Chapter 2 runs JIPE-2 on the paper's two worlds and asks what its residual tells us. If you came for the theory of learning,
# go on with chapter 8.

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
claims.print()
