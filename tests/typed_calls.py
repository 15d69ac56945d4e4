"""A user's typed program, read by `mypy --strict` as the examples are: what these do not show."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure

import jmdp_lib as jl
from jmdp_lib.atari import CoupledAtari, Draw
from jmdp_lib.simulators import CoupledEnv, Decision, GapEstimate, Simulator, estimate_gaps


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


odds, rng, zero = [0.7, 0.3], np.random.default_rng(0), np.zeros(1)
simulator: Simulator = jl.inventory_simulator(10, 5, holding_cost=0.2, lost_sale_cost=0.5)
simulator = jl.simulators.StepSimulator(1, 2, 0.9, odds, rain, reward_range=(0.0, 1.0))
jm: jl.JMDP = jl.windy_gridworld(5, 0.2, 0.95, gust="L")
for world in (
    jl.JMDP.from_step(1, 2, 0.9, odds, rain),
    jl.JMDP.from_simulator(Coin(), 100, rng=rng),
    jl.coupled_reward_chain(25, 0.95, rewards="signed"),
    jl.inventory(10, 5, 0.95, demand_probs=odds, price=3.0, order_cost=1.5, lead_time=1),
):
    print(world.query(0, [0, 1], rng), world.marginal_mdp())
policy = jl.epsilon_mixture(jm, jl.goal_policy(5), 0.1) + jl.uniform_policy(jm)

solution: jl.Solution = jl.jipe2(jm, policy, gaps=[(12, 1, 3)], tol=1e-6, device="cpu")
solution = jl.jipe2(jm, lambda s: 0, states=[1], coupling="common", initial=solution.moments)
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
features = jl.action_features(jl.rbf_features(5, 5, 3), 4)
jl.projected_jipe2(jm, policy, features, weights="stationary", cone="psd", tol=1e-6)
trace: jl.Trace = jl.trace_jipe2(jm, policy, 4, coupling="joint")
pairs = jl.simulate_pairs(jm, [0], (0, 1), state=3, num_pairs=5, horizon=9, truncation=0.1)
pairs += jl.simulate_returns(jm, policy, 5, rng=None, coupling="joint", truncation=0.1)

law: jl.laws.GapLaw = jl.laws.gap_law(jm, policy, states=[1], points=9, max_points=9)[0]
law = jl.laws.GapLaw.from_sample((0, 1, 2), odds, alpha=0.1, truncation_error=0.1)
steps: jl.laws.StepBracket = law.steps
phi: jl.laws.PhiBracket | None = law.phi
print(law.cdf(0.0, strict=True), steps.cdf(zero, True), phi and (phi.cdf(zero), phi.cvar(0.1)))
plane = jl.large.ImplicitJMDP.from_step(2, 0.9, odds, walk, (0.0, 1.0))
endless = jl.large.ImplicitJMDP(tables, 2, 0.9, (0.0, 1.0), knows_noise=False)
local: jl.large.LocalSolution = jl.large.local_jipe2(
    endless, lambda place: [0.5, 0.5], states=[0], tol=0.1, max_states=9
)

vector = jl.simulators.VectorSimulator(
    many, lambda n, rng: rng.random(n), 2, 0.9, reward_range=(0.0, 1.0)
)
found: GapEstimate = estimate_gaps(jm, policy, [0, 1], truncation=0.1, keep_returns=True)
found = estimate_gaps(vector, lambda s: s, gaps=[], horizon=9, executor=ThreadPoolExecutor())
print(found.interval("prob_worse", level=0.9), found.law(0, 1, alpha=0.1))
decision: Decision = jl.simulators.compare_actions(
    simulator,
    [0],
    [0, 1],
    state=0,
    alpha=0.1,
    margin=0.1,
    budget=99,
    method="asymptotic",
    horizon=9,
)
decision = jl.simulators.compare_policies(simulator, [[0], [1]], state=0, method="betting")
print(decision.history.intervals[:, 0, 1], decision.estimates and decision.estimates.mean)
env = CoupledEnv(gymnasium.make("CartPole-v1"), rng=0)
env.reset(seed=0, options=None)
pong = CoupledAtari("Pong", sticky_prob=0.25, frame_skip=4, shock=0.5, obs="pixels", rng=0)
draw: Draw | None = pong.snapshot().draw
pong.reset(seed=0, options=None)
jl.figures.correlation_grid(Figure().subplots(), zero, 5, "URDL", goal=4, fontsize=6.0)
