"""A user's typed program, read by `mypy --strict` as the examples are: what these do not show."""

from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
from matplotlib.figure import Figure

import jmdp_lib as jl
from jmdp_lib.atari import CoupledAtari
from jmdp_lib.simulators import CoupledEnv, Decision, GapEstimate, Simulator
from notebooks.tools import figures

odds, rng = [0.7, 0.3], np.random.SeedSequence(0)
simulator: Simulator = jl.inventory(10, 5)
jm: jl.JMDP = jl.windy_gridworld(5, gust="L")
jm = jl.inventory(demand_probs=odds, price=3.0, order_cost=1.5, lead_time=1)
jm = jl.coupled_reward_chain(25, rewards="signed")
policy = jl.uniform_policy(jm)

solution: jl.Solution = jl.jipe2(jm, policy, device="cpu")
solution = jl.jipe2(jm, lambda s: 0, coupling="common", initial=solution.moments)
learned: jl.IncrementalSolution = jl.incremental_jipe2(
    simulator,
    [0],
    1000,
    step_size=jl.StepSize(1.0, power=0.6),
    rng=rng,
    initial=solution,
    form="centred",
    checkpoints=5,
    reference=solution.moments,
)
features = jl.action_features(jl.rbf_features(5, 5, 3), 4)
jl.projected_jipe2(jm, policy, features, weights="stationary", cone="psd")
pairs = jl.simulate_pairs(jm, [0], (0, 1), state=3, num_pairs=5, horizon=9, truncation=0.1)
pairs += jl.simulate_returns(jm, policy, 5, rng=None, coupling="joint", truncation=0.1)

law: jl.laws.GapLaw = jl.laws.gap_law(jm, policy, states=[1], points=9, max_points=9)[0]
law = jl.laws.GapLaw.from_sample(
    (0, 1, 2), odds, alpha=0.1, truncation_error=0.1, limits=(0.0, 9.0)
)
print(law.cdf(0.0, strict=True), law.phi and law.phi.cvar(0.1))
endless = jl.large.ImplicitJMDP(
    lambda place: (odds, [[0.0, 1.0]] * 2, [[place, place + 1]] * 2),
    *(2, 0.9, (0.0, 1.0)),
    knows_noise=False,
)
local: jl.large.LocalSolution = jl.large.local_jipe2(
    endless, lambda place: [0.5, 0.5], states=[0], tol=0.1, max_states=9
)

found: GapEstimate = jl.simulators.estimate_gaps(
    simulator, [0], [0], horizon=9, truncation=0.1, executor=ThreadPoolExecutor()
)
print(found.law(0, 1, alpha=0.1))
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
CoupledEnv(gymnasium.make("CartPole-v1")).reset(seed=0, options=None)
CoupledAtari("Pong", obs="pixels", frame_skip=2, shock=0.5)
figures.correlation_grid(Figure().subplots(), np.zeros(1), 5, "URDL", goal=4, fontsize=6.0)
