"""Speed as ratios, each taken within one run: `python benchmarks/run.py` (about three minutes).

Prints a table and writes it, with where it was measured, to benchmarks/results.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy_pairs import simulate_pairs_numpy, simulate_returns_numpy
from timing import machine, seconds

import jmdp_lib as jl
from jmdp_lib import montecarlo
from jmdp_lib.operators.backups import Layout
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.solvers.incremental import Learned, updater


def simulation():
    """Pair-steps per second, compiled against vectorised NumPy."""
    grid, chain = jl.windy_gridworld(5), jl.coupled_reward_chain(25, 0.95)
    cases = {
        "5x5 gridworld, uniform policy": (grid, jl.uniform_policy(grid), 20),
        "5x5 gridworld, goal policy": (grid, jl.goal_policy(5), 20),
        "25-state chain, uniform policy": (chain, jl.uniform_policy(chain), 0),
        "inventory, uniform policy": (jl.inventory(), jl.uniform_policy(jl.inventory()), 3),
    }
    for name, (jm, policy, state) in cases.items():
        pairs, steps = 50_000, 200
        fast = seconds(lambda: jl.simulate_pairs(jm, policy, state, (0, 1), pairs, 1, steps))
        rng = np.random.default_rng(0)
        slow = seconds(
            lambda: simulate_pairs_numpy(jm, policy, state, (0, 1), pairs, steps, rng), 2
        )
        yield (
            f"simulate_pairs, {name}",
            f"{pairs * steps / fast / 1e6:.0f} M pair-steps/s",
            f"{pairs * steps / slow / 1e6:.1f} M (NumPy)",
            slow / fast,
        )


def gaps_of_a_jmdp():
    """Estimates and decisions of a JMDP beside the pairs alone, per pair: three times at most."""
    jm = jl.windy_gridworld(5)
    policy, pairs = jl.uniform_policy(jm), 100_000
    alone = seconds(lambda: jl.simulate_pairs(jm, policy, 20, (0, 1), pairs, truncation=1e-3))
    estimated = seconds(lambda: jl.simulators.estimate_gaps(jm, policy, [0, 1], 20, num_runs=pairs))
    budget = {"budget": 10**7, "method": "asymptotic"}
    runs = jl.simulators.compare_actions(jm, policy, [0, 1], 20, **budget).num_runs
    decided = seconds(lambda: jl.simulators.compare_actions(jm, policy, [0, 1], 20, **budget), 2)
    for name, each in (("estimate_gaps", estimated / pairs), ("compare_actions", decided / runs)):
        yield (
            f"{name}, 5x5 gridworld, uniform policy",
            f"{1e6 * each:.2f} µs a pair",
            f"{1e6 * alone / pairs:.2f} µs (simulate_pairs)",
            each * pairs / alone,
        )


def joint_returns():
    """State-actions per second that random maps step, compiled against vectorised NumPy."""
    for size in (5, 30):
        jm = jl.windy_gridworld(size)
        policy = jl.uniform_policy(jm)
        steps = montecarlo.horizon_for(jm, 0.01)
        samples = 8_000_000 // (steps * policy.size)
        fast = seconds(lambda: jl.simulate_returns(jm, policy, samples, truncation=0.01))
        rng = np.random.default_rng(0)
        slow = seconds(lambda: simulate_returns_numpy(jm, policy, samples, steps, rng), 1)
        stepped = samples * steps * policy.size
        yield (
            f"simulate_returns, {size}x{size} gridworld, uniform policy",
            f"{stepped / fast / 1e6:.0f} M state-actions/s",
            f"{stepped / slow / 1e6:.1f} M (NumPy)",
            slow / fast,
        )


def evaluation():
    """One application of T_2, fast against literal, and whole evaluations."""
    for size in (5, 10):
        jm = jl.windy_gridworld(size)
        policy = jl.uniform_policy(jm)
        operator = PairOperator(jm, policy)
        shape = (jm.num_states, jm.num_actions)
        zero = np.zeros(shape), np.zeros(shape + shape)
        state = operator.zero()
        fast = seconds(lambda: [operator.apply(state) for _ in range(20)]) / 20
        slow = seconds(lambda: jl.apply_t2(jm, policy, *zero), 2)
        yield (
            f"T_2 once, {size}x{size} gridworld",
            f"{fast * 1e3:.2f} ms",
            f"{slow * 1e3:.0f} ms (literal)",
            slow / fast,
        )
    for name, policy in (
        ("goal", jl.goal_policy(5)),
        ("uniform", jl.uniform_policy(jl.windy_gridworld(5))),
    ):
        jm = jl.windy_gridworld(5)
        second = seconds(lambda: jl.jipe2(jm, policy), 2)
        fourth = seconds(lambda: jl.jipe(jm, policy, order=4).moments.same_state(4), 1)
        yield (
            f"order 4, 5x5 gridworld, {name} policy",
            f"{fourth:.1f} s",
            f"{second * 1e3:.0f} ms (order 2)",
            fourth / second,
        )


def routes():
    """The default of jipe2 against the best of its routes, on ever larger gridworlds."""
    for size in (3, 5, 10, 11, 12, 30, 100):
        jm = jl.windy_gridworld(size)
        policy = jl.goal_policy(size)
        tried = ["reachable", *["dense"] * (size <= 30), *["sweeps"] * (size <= 5)]
        repeats = 2 if size >= 30 else 10
        default = seconds(lambda: jl.jipe2(jm, policy), repeats)
        took = {r: seconds(lambda: jl.jipe2(jm, policy, route=r), repeats) for r in tried}
        best = min(took, key=took.get)
        yield (
            f"jipe2 by default, {size}x{size} gridworld, goal policy",
            f"{default * 1e3:.0f} ms",
            f"{took[best] * 1e3:.0f} ms ({best}, the best route)",
            default / took[best],
        )


class Plain:
    """The same model behind the four names of a simulator: the plain Python loop."""

    def __init__(self, jm):
        self.num_states, self.num_actions, self.gamma = jm.num_states, jm.num_actions, jm.gamma
        self.query = jm.query


def learning():
    """Coordinate updates per second on one core, compiled against a plain Python loop."""
    jm = jl.windy_gridworld(5)
    for name, policy in (("goal", jl.goal_policy(5)), ("uniform", jl.uniform_policy(jm))):
        for form in ("full", "centred"):
            updates, few = 4_000_000, 3_000
            fast = seconds(
                lambda: jl.incremental_jipe2(jm, policy, updates, form=form, checkpoints=1)
            )
            layout = Layout(policy, form)
            learned = Learned(np.zeros(layout.size), np.zeros(layout.size, dtype=np.int64))
            rng = np.random.default_rng(0)
            update = updater(Plain(jm), layout, learned, jl.StepSize(), rng)
            slow = seconds(lambda: update(few), 2)
            yield (
                f"incremental JIPE-2, {form}, 5x5 gridworld, {name} policy",
                f"{updates / fast / 1e6:.1f} M updates/s",
                f"{few / slow / 1e3:.1f} k (Python)",
                (updates / fast) / (few / slow),
            )


def collapse():
    """Updates until the error has fallen to a tenth of its start, full against centred."""
    jm = jl.windy_gridworld(5, gamma=0.8)
    policy = jl.uniform_policy(jm)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    needed = {}
    for form in ("full", "centred"):
        run = jl.incremental_jipe2(
            jm, policy, 20_000_000, form=form, reference=exact, checkpoints=120
        )
        reached = run.errors <= 0.1 * np.abs(exact.mean).max()
        needed[form] = run.updates[reached.argmax()] if reached.any() else np.nan
    yield (
        "updates to a tenth of the error, 5x5 gridworld, gamma 0.8",
        f"{needed['centred'] / 1e6:.2f} M (centred)",
        f"{needed['full'] / 1e6:.2f} M (full)",
        needed["full"] / needed["centred"],
    )


def projection():
    """Projected JIPE-2, set-up included, against the exact solve of the same problem."""
    jm = jl.windy_gridworld(5)
    for name, policy in (("goal", jl.goal_policy(5)), ("uniform", jl.uniform_policy(jm))):
        exact = seconds(lambda: jl.jipe2(jm, policy), 2)
        for centres in (2, 3):
            features = jl.action_features(jl.rbf_features(5, 5, centres), 4)
            took = seconds(lambda: jl.projected_jipe2(jm, policy, features), 2)
            yield (
                f"projected JIPE-2, d = {features.shape[-1]}, {name} policy",
                f"{took:.2f} s",
                f"{exact * 1e3:.0f} ms (exact)",
                took / exact,
            )


def couplings():
    """The range over all couplings against the evaluation of one of them."""
    for gamma in (0.95, 0.99):
        jm = jl.windy_gridworld(25, gamma=gamma)
        policy = jl.uniform_policy(jm)
        took = seconds(lambda: jl.laws.coupling_range(jm, policy), 1)
        one = seconds(lambda: jl.jipe2(jm, policy), 1)
        yield (
            f"coupling_range, 25x25 gridworld, 4 actions, gamma {gamma}",
            f"{took:.1f} s",
            f"{one:.1f} s (jipe2, one coupling)",
            took / one,
        )


def rules():
    """The gaps of two rules on all pairs of states, against the evaluation of one rule on them."""
    jm = jl.windy_gridworld(30)
    policy = jl.uniform_policy(jm)
    for coupling in ("joint", "common"):
        took = seconds(lambda: jl.laws.policy_gaps(jm, jl.goal_policy(30), policy, coupling), 1)
        one = seconds(lambda: jl.jipe2(jm, policy, coupling=coupling, route="dense"), 1)
        yield (
            f"policy_gaps, 30x30 gridworld, goal against uniform policy, {coupling}",
            f"{took:.1f} s",
            f"{one:.1f} s (jipe2, one policy)",
            took / one,
        )


def decisions():
    """Queries until it is known which action is better, and what independent runs would need."""
    for name, jm, policy, state, pair in (
        ("5x5 gridworld, goal policy", jl.windy_gridworld(5), jl.goal_policy(5), 12, (0, 2)),
        ("inventory, order up to 6", jl.inventory(), np.clip(6 - np.arange(11), 0, 5), 5, (0, 4)),
    ):
        found = jl.simulators.compare_actions(jm, policy, pair, state, budget=1_000_000)
        yield (
            f"compare_actions, {name}: {found.verdict}",
            f"{found.num_runs} runs",
            f"{found.variance_reduction * found.num_runs:.0f} runs (independent, estimated)",
            found.variance_reduction,
        )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    exact = [
        *evaluation(),
        *routes(),
        *projection(),
        *couplings(),
        *rules(),
        *decisions(),
    ]
    rows = [*simulation(), *gaps_of_a_jmdp(), *joint_returns(), *exact, *learning(), *collapse()]
    lines = [
        machine("numpy", "numba"),
        "",
        "| what | here | beside it | ratio |",
        "|---|---|---|---|",
        *(f"| {what} | {here} | {other} | {ratio:.1f} |" for what, here, other, ratio in rows),
    ]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    (Path(__file__).parent / "results.md").write_text(f"# Benchmarks\n\n{text}")


if __name__ == "__main__":
    main()
