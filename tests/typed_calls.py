"""A user's program with every public call and option, read by `mypy --strict`; nobody runs it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure

import jmdp_lib as jl
from jmdp_lib.atari import CoupledAtari, Draw, Snapshot
from jmdp_lib.simulators import Decision, GapEstimate, Outcome, Simulator, estimate_gaps


def rain(state: int, action: int, noise: int) -> tuple[float, int]:
    return float(action == noise), state


def walk(place: tuple[int, int], action: int, noise: int) -> tuple[float, tuple[int, int]]:
    return 0.0, (place[0] + action, place[1] + noise)


def tables(place: int) -> tuple[list[float], list[list[float]], list[list[int]]]:
    return odds, [[0.0, 1.0]] * 2, [[place, place + 1]] * 2


def many(states: Any, actions: Any, noise: Any) -> tuple[Any, Any]:
    return states * actions, states + noise


class Coin:
    """A simulator of the user's own."""

    num_states, num_actions, gamma = 1, 2, 0.9

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[list[float], list[int]]:
        return [float(rng.random() < 0.5)] * len(actions), [state] * len(actions)


odds, rng = [0.7, 0.3], np.random.default_rng(0)
jm: jl.JMDP = jl.windy_gridworld(5, 0.2, 0.95, gust="L").with_gamma(0.9)
for world in (
    jl.JMDP([odds], np.ones((1, 2, 2)), np.zeros((1, 2, 2), int), 0.9),
    jl.JMDP.from_tables([0], [1.0], [[0.0, 1.0]], [[0, 0]], 1, 0.9),
    jl.JMDP.from_step(1, 2, 0.9, odds, rain),
    jl.JMDP.from_simulator(Coin(), 100, rng=rng),
    jl.JMDP.from_mdp([[[1.0], [1.0]]], [[0.0, 1.0]], 0.9),
    jl.coupled_reward_chain(25, 0.95, rewards="signed"),
    jl.inventory(
        10, 5, 0.95, demand_probs=odds, price=3.0, order_cost=1.5, holding_cost=0.2, lead_time=1
    ),
    jl.two_queues(5, 0.6, 0.95),
    jl.example_1(0.9),
    jl.example_2_1(0.9),
    jl.example_2_2(gamma=0.9),
):
    print(world.query(0, [0, 1], rng), world.marginal_mdp())
policy = jl.epsilon_mixture(jm, jl.goal_policy(5), 0.1) + jl.uniform_policy(jm)
mean, second = jl.apply_t2(jm, policy, [0.0], np.zeros((1, 2)), coupling="independent")
print(
    jl.sample_t2(Coin(), [0], mean, second, ((0, 0), (0, 1)), rng=0) + jl.pair_step(jm, [0], odds)
)
print(jl.norm_weight(2, 0.9, 1.0) + jl.contraction_modulus(2, 0.9) + jl.cantelli_bound(1.0, 2.0))

solution: jl.Solution = jl.jipe2(
    jm, policy, gaps=[(12, 1, 3)], tol=1e-6, route="auto", max_iterations=9, device="cpu"
)
solution = jl.jipe2(jm, lambda s: 0, states=[1], coupling="common", initial=(mean, second))
print(solution.num_unknowns, jl.jipe(jm, policy, order=3, tol=1e-6, coupling="joint").residuals)
learned: jl.IncrementalSolution = jl.incremental_jipe2(
    Coin(),
    [0],
    1000,
    step_size=jl.StepSize(1.0, power=0.6),
    rng=np.random.SeedSequence(0),
    initial=solution,
    form="centred",
    checkpoints=5,
    reference=solution.moments,
)
print(jl.StepSize.of((1.0, 0.6)), learned.entropy, learned.errors)
features = jl.action_features(jl.rbf_features(5, 5, 3), 4) + jl.tabular_features(jm)
projected: jl.ProjectedSolution = jl.projected_jipe2(
    jm, policy, features, weights="stationary", cone="psd", tol=1e-6
)
moments: jl.Moments = solution.moments
print(projected.approximation_error(moments), projected.approximation_bound(moments))
print(moments.moment([(0, 0), (0, 1)]), moments.second((0, 0), (0, 1)), moments.to_frame())
print(moments.gap_moment([(0, 1, 2)]), moments.gap_central_moment((0, 1, 2), 3))
print(moments.same_state(2), moments.full_second(), moments.covariance)
trace: jl.Trace = jl.trace_jipe2(jm, policy, 4, coupling="joint")
pairs = jl.simulate_pairs(
    jm, policy, (0, 1), state=3, num_pairs=5, rng=0, horizon=9, truncation=0.1, coupling="common"
)
print(jl.simulate_returns(jm, policy, 5, rng=None, coupling="joint", truncation=0.1) + pairs)

law: jl.laws.GapLaw = jl.laws.gap_law(
    jm, policy, gaps=[(1, 0, 2)], width=0.1, coupling="joint", at=[1.0], points=9, max_points=9
)[0]
law = jl.laws.gap_law(jm, policy, states=[1])[0]
sampled = jl.laws.GapLaw.from_sample(
    (0, 1, 2), odds, alpha=0.1, truncation_error=0.1, limits=(0.0, 1.0)
)
print(law.cdf(0.0, strict=True), law.quantile(0.1), sampled.cvar(0.1), law.prob_worse)
steps: jl.laws.StepBracket = law.steps
print(steps.cdf(mean, True), steps.worst_mean(0.1))
phi: jl.laws.PhiBracket | None = law.phi
print(phi and (phi.lower(mean), phi.cdf(mean), phi.cvar(0.1)))
between: jl.laws.CouplingRange = jl.laws.coupling_range(jm, policy, tol=1e-6)
better: jl.laws.Improvement = jl.laws.cautious_improvement(jm, policy, level=0.5, width=0.1)
gap: jl.laws.PolicyGap = jl.laws.policy_gaps(jm, policy, [0], coupling="joint")

plane = jl.large.ImplicitJMDP.from_step(2, 0.9, odds, walk, (0.0, 1.0))
endless = jl.large.ImplicitJMDP(tables, 2, 0.9, (0.0, 1.0), knows_noise=False)
print(plane.query((0, 0), [0, 1], rng), plane.at((0, 0)), jl.large.ImplicitJMDP.from_jmdp(jm))
local: jl.large.LocalSolution = jl.large.local_jipe2(
    endless, lambda place: [0.5, 0.5], states=[0], tol=0.1, coupling="joint", max_states=9
)

simulator: Simulator = jl.inventory_simulator(10, 5, 0.95, lost_sale_cost=0.5)
simulator = jl.two_queues_simulator(5, 0.6, 0.95)
simulator = jl.simulators.StepSimulator(1, 2, 0.9, odds, rain, reward_range=(0.0, 1.0))
vector = jl.simulators.VectorSimulator(
    many, lambda n, rng: rng.random(n), 2, 0.9, reward_range=(0.0, 1.0), num_states=3
)
found: GapEstimate = estimate_gaps(
    simulator, [0], [0, 1], state=0, gamma=0.9, num_runs=9, rng=rng, coupling="joint"
)
found = estimate_gaps(jm, policy, gaps=[(1, 0, 2)], truncation=0.1, executor=ThreadPoolExecutor())
found = estimate_gaps(vector, lambda s: s, [0, 1], state=0, horizon=9, keep_returns=True)
print(found.interval("prob_worse", level=0.9), found.law(0, 1, alpha=0.1), found.variance)
decision: Decision = jl.simulators.compare_actions(
    simulator,
    [0],
    [0, 1],
    state=0,
    alpha=0.1,
    margin=0.1,
    budget=99,
    rng=0,
    coupling="joint",
    reward_range=(0.0, 1.0),
    method="asymptotic",
    gamma=0.9,
    horizon=9,
)
decision = jl.simulators.compare_policies(simulator, [[0], [1]], state=0, method="betting")
print(decision.history.intervals[:, 0, 1], decision.history.num_queries, decision.best)
env = jl.simulators.CoupledEnv(gymnasium.make("CartPole-v1"), rng=0)
observation, info = env.reset(seed=0, options=None)
outcomes: tuple[Outcome, ...] = env.query([0, 1])
print(env.twin().same_state(env), env.restore(env.snapshot()), env.step(0))
env.redraw()
pong = CoupledAtari("Pong", sticky_prob=0.25, frame_skip=4, shock=0.5, obs="pixels", rng=0)
snapshot: Snapshot = pong.snapshot()
draw: Draw | None = snapshot.draw
print(pong.reset(seed=0), pong.query([0, 1], clones=True)[0].reward, pong.twin().same_state(pong))

fig = Figure()
ax = fig.subplots()
jl.figures.gridworld(ax, jm, policy, columns=5)
jl.figures.transition(ax, jm, state=0)
jl.figures.correlation_grid(ax, moments.correlation, 5, "URDL", goal=4, fontsize=6.0)
jl.figures.correlation_bar(fig, ax, shrink=0.8)
jl.figures.agreement(ax, [1.0], [1.0], label="two", bars=[0.1])
jl.figures.joint_returns(ax, pairs, (0.0, 1.0))
jl.figures.plot_gap_law(ax, pairs[:, 0], limit=1.0)
