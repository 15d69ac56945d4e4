"""Calls of the library beside what else gives the same: `python benchmarks/run.py`, three minutes.

Writes benchmarks/results.md. The best of up to five runs each; the *ratio* says how many times as
long the other takes. To compare two versions, run it in a checkout of each, in turn.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import gymnasium
import numpy as np
from ale_py import ALEInterface, roms
from gap_law import Depot
from numpy_pairs import simulate_pairs_numpy, simulate_returns_numpy
from timing import command_line, duration, lines, seconds, table, write_page

import jmdp_lib as jl
from jmdp_lib.atari import CoupledAtari
from jmdp_lib.operators.pairs import PairOperator

Work = Callable[[], object]
STEPS = 90  # after which a hundredth of a return can be missing on the gridworlds


def pairs(jm, policy, state, num_pairs, **options):
    """A call of `simulate_pairs` for actions 0 and 1."""
    options |= {"state": state, "num_pairs": num_pairs, "rng": 1}
    return partial(jl.simulate_pairs, jm, policy, (0, 1), **options)


class Row(NamedTuple):
    """A call, and others to compare it with, by name, which do a part of what it does."""

    what: str
    call: Work
    others: Mapping[str, Work]
    parts: float = 1.0


def simulation():
    """Pairs, and random maps of all states; compiled, beside NumPy."""
    grid, chain = jl.windy_gridworld(5), jl.coupled_reward_chain(25, 0.95)
    cases = {
        "5x5 gridworld, uniform policy": (grid, jl.uniform_policy(grid), 20),
        "5x5 gridworld, goal policy": (grid, jl.goal_policy(5), 20),
        "25-state chain, uniform policy": (chain, jl.uniform_policy(chain), 0),
        "inventory, uniform policy": (jl.inventory(), jl.uniform_policy(jl.inventory()), 3),
    }
    for name, case in cases.items():
        call = pairs(*case, 50_000, horizon=200)
        rng = np.random.default_rng(0)
        other = partial(simulate_pairs_numpy, *case, (0, 1), 50_000, 200, rng)
        yield Row(f"simulate_pairs, 10 million pair-steps, {name}", call, {"NumPy": other})
    for size, samples in ((5, 888), (30, 24)):
        jm = jl.windy_gridworld(size)
        policy = jl.uniform_policy(jm)
        call = partial(jl.simulate_returns, jm, policy, samples, truncation=0.01)
        rng = np.random.default_rng(0)
        other = partial(simulate_returns_numpy, jm, policy, samples, STEPS, rng)
        name = f"simulate_returns, 8 million state-actions, {size}x{size} gridworld, uniform policy"
        yield Row(name, call, {"NumPy": other})


def evaluation():
    """One application of T_2 beside the literal one, and order 4 beside order 2."""
    for size in (5, 10):
        jm = jl.windy_gridworld(size)
        policy = jl.uniform_policy(jm)
        operator = PairOperator(jm, policy)
        state = operator.zero()

        def twenty(operator=operator, state=state):
            for _ in range(20):
                operator.apply(state)

        mean = np.zeros((jm.num_states, jm.num_actions))
        literal = partial(jl.apply_t2, jm, policy, mean, np.zeros(2 * mean.shape))
        yield Row(f"T_2, 20 times, {size}x{size} gridworld", twenty, {"literal": literal}, 20.0)
    jm = jl.windy_gridworld(5)
    for name, policy in (("goal", jl.goal_policy(5)), ("uniform", jl.uniform_policy(jm))):

        def fourth(policy=policy):
            jl.jipe(jm, policy, order=4).moments.same_state(4)

        second = {"order 2": partial(jl.jipe2, jm, policy)}
        yield Row(f"order 4, 5x5 gridworld, {name} policy", fourth, second)


def routes():
    """The default of jipe2 beside the best of its routes, on ever larger gridworlds."""
    for size in (3, 5, 10, 11, 12, 30, 100):
        call = partial(jl.jipe2, jl.windy_gridworld(size), jl.goal_policy(size))
        names = ["reachable", *["dense"] * (size <= 30), *["sweeps"] * (size <= 5)]
        others = {f"{name}, the best route": partial(call, route=name) for name in names}
        yield Row(f"jipe2 by default, {size}x{size} gridworld, goal policy", call, others)


def learning():
    """On one core, compiled, beside the loop in Python that simulators get."""
    jm = jl.windy_gridworld(5)
    own = {name: getattr(jm, name) for name in ("num_states", "num_actions", "gamma", "query")}
    for form in ("full", "centred"):
        for name, policy in (("goal", jl.goal_policy(5)), ("uniform", jl.uniform_policy(jm))):
            learn = partial(jl.incremental_jipe2, policy=policy, form=form, checkpoints=1)
            call = partial(learn, jm, num_updates=4_000_000)
            other = {"Python": partial(learn, SimpleNamespace(**own), num_updates=4_000)}
            what = f"incremental JIPE-2, {form}, 4 million updates, 5x5 gridworld, {name} policy"
            yield Row(what, call, other, 1000.0)


def projection():
    """Set-up included, beside the exact solve of the same problem."""
    jm = jl.windy_gridworld(5)
    for name, policy in (("goal", jl.goal_policy(5)), ("uniform", jl.uniform_policy(jm))):
        exact = {"exact": partial(jl.jipe2, jm, policy)}
        for centres in (2, 3):
            features = jl.action_features(jl.rbf_features(5, 5, centres), 4)
            call = partial(jl.projected_jipe2, jm, policy, features)
            yield Row(f"projected JIPE-2, d = {features.shape[-1]}, {name} policy", call, exact)


def of_laws():
    """Results for all couplings and for two policies, beside the evaluation of one policy."""
    for gamma in (0.95, 0.99):
        jm = jl.windy_gridworld(25, gamma=gamma)
        ranged = partial(jl.laws.coupling_range, jm, jl.uniform_policy(jm))
        one = partial(jl.jipe2, jm, jl.uniform_policy(jm))
        what = f"coupling_range, 25x25 gridworld, gamma {gamma}"
        yield Row(what, ranged, {"jipe2, one coupling": one})
    jm = jl.windy_gridworld(30)
    goal, uniform = jl.goal_policy(30), jl.uniform_policy(jm)
    for coupling in ("joint", "common"):
        compared = partial(jl.laws.policy_gaps, jm, goal, uniform, coupling=coupling)
        one = partial(jl.jipe2, jm, uniform, coupling=coupling, route="dense")
        what = f"policy_gaps, 30x30 gridworld, goal against uniform policy, {coupling}"
        yield Row(what, compared, {"jipe2, one policy": one})


def decisions():
    """And estimates, beside as many queries at one state, or as many pairs."""
    decide = partial(jl.simulators.compare_actions, alpha=1e-9, rng=0)  # all queries are made
    policy, rng, depot = np.full((12, 5), 0.2), np.random.default_rng(0), Depot()
    stock = {"state": 5, "budget": 10_000, "reward_range": (-6.0, 33.0)}
    plain = partial(decide, depot, policy, [2, 1], **stock)
    query = {"the queries": partial(depot.query, 5, [2, 1], rng)}
    yield Row("compare_actions, plain depot, 10,000 queries", plain, query, 5_000)
    lake = jl.simulators.CoupledEnv(gymnasium.make("FrozenLake-v1"), rng=0)
    lake.reset()
    walk = partial(decide, lake, lambda state: 1, [1, 2], budget=4_000, reward_range=(0.0, 1.0))
    query = {"the queries": partial(lake.query, [1, 2])}
    yield Row("compare_actions, FrozenLake, 4,000 queries", walk, query, 2_000)
    jm = jl.windy_gridworld(5)
    case = jm, jl.uniform_policy(jm)
    gaps = partial(jl.simulators.estimate_gaps, *case, [0, 1], state=20, num_runs=100_000)
    simulated = {"simulate_pairs": pairs(*case, 20, 100_000, truncation=1e-3)}
    yield Row("estimate_gaps, 100,000 pairs of it", gaps, simulated)
    settings = {"state": 20, "budget": 10**6, "method": "asymptotic"}
    on_tables = partial(decide, *case, [0, 1], **settings)
    simulated = {"simulate_pairs": pairs(*case, 20, on_tables().num_runs, truncation=1e-3)}
    yield Row("compare_actions, 5x5 gridworld, uniform policy", on_tables, simulated)


def emulator():
    """Twenty queries of all actions of a game, beside as many raw steps of four frames."""
    for game in ("Pong", "BattleZone", "Boxing", "Atlantis"):
        env, raw = CoupledAtari(game, frame_skip=4), ALEInterface()
        raw.setInt("frame_skip", 4)
        raw.loadROM(str(roms.get_rom_path(env.game)))

        def queries(env=env):
            env.reset()
            for _ in range(20):
                env.query(list(range(env.num_actions)))
                env.step(0)

        def steps(raw=raw, count=20 * env.num_actions):
            raw.reset_game()
            for _ in range(count):
                raw.act(0)

        yield Row(f"CoupledAtari.query, {game}", queries, {"raw steps": steps})


GROUPS = (simulation, evaluation, routes, projection, of_laws, learning, decisions, emulator)


def line(row):
    """Of results.md."""
    call = seconds(row.call)
    others = {name: seconds(work) * row.parts for name, work in row.others.items()}
    best = min(others, key=lambda name: others[name])
    beside = f"{duration(others[best])} ({best})"
    return [row.what, duration(call), beside, f"{others[best] / call:.2g}"]


def main():
    chosen = command_line(__doc__)
    warnings.simplefilter("ignore")
    rows = [row for group in GROUPS for row in group() if chosen.only in row.what]
    text = table(["what", "here", "beside it", "ratio"], lines(line, rows))
    if not chosen.only:
        write_page("results.md", "Benchmarks", text)


if __name__ == "__main__":
    main()
