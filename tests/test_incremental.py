"""Incremental JIPE: the right law, the right rate, any simulator, resumable, refusals."""

from __future__ import annotations

import signal
import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.operators.backups import FORMS, Layout


class Wrapped:
    """A user's own simulator: a JMDP that shows nothing but the four names that are asked for."""

    def __init__(self, jm):
        self.num_states, self.num_actions, self.gamma = jm.num_states, jm.num_actions, jm.gamma
        self._jm = jm

    def query(self, state, actions, rng):
        return self._jm.query(state, actions, rng)


def small_problem(seed=0, gamma=0.5):
    rng = np.random.default_rng(seed)
    jm = random_jmdp(rng, num_states=2, num_actions=2, num_tables=3, gamma=gamma)
    assert np.diff(jm.starts).min() > 1  # both states are random: shared noise would show
    return jm, random_policy(rng, jm)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["full", "collapsed", "centred"])
def test_converges_at_the_rate_of_theory(form):
    """alpha = n^-0.8: the error falls like n^-0.4, over 20 seeds."""
    jm, policy = small_problem()
    exact = jl.jipe2(jm, policy, tol=1e-12).moments
    runs = [
        jl.incremental_jipe2(
            jm, policy, 500_000, (1.0, 0.8), seed=k, form=form, reference=exact, checkpoints=12
        )
        for k in range(20)
    ]
    late = runs[0].updates > 500_000 / 100
    middle = np.median([run.errors for run in runs], axis=0)[late]
    slope = np.polyfit(np.log(runs[0].updates[late]), np.log(middle), 1)[0]
    assert -0.55 < slope < -0.3
    assert middle[-1] < 0.02
    for run in runs:  # the certificate covers the error at every checkpoint
        assert np.all(run.errors <= run.residuals / (1 - jm.gamma) + 1e-12)


@pytest.mark.parametrize("form", ["full", "collapsed", "centred"])
@given(problem=problems())
@settings(max_examples=60)
def test_exact_operator_of_a_layout_is_literal(problem, form):
    """What residuals are taken from: T_2 M in the coordinates that the layout keeps."""
    jm, policy, rng = problem
    shape = (jm.num_states, jm.num_actions)
    mean, second = rng.normal(size=shape), rng.normal(size=shape + shape)
    layout = Layout(policy, form)
    found = layout.applied(jm, layout.pack(mean, second))
    expected = layout.raw(layout.pack(*jl.apply_t2(jm, policy, mean, second)))
    np.testing.assert_allclose(found, expected, atol=1e-9)


class Scripted(Wrapped):
    """A simulator and random stream in one that plays given tables and uniform numbers."""

    def __init__(self, jm, tables, uniforms):
        super().__init__(jm)
        self.tables, self.uniforms = list(tables), list(uniforms)

    def query(self, state, actions, rng):
        i = self.tables.pop(0)
        assert self._jm.starts[state] <= i < self._jm.starts[state + 1]
        return self._jm.rewards[i, actions], self._jm.next_states[i, actions]

    def random(self):
        return self.uniforms.pop(0)


@pytest.mark.parametrize("form", FORMS[1:])
@given(problem=problems(max_states=3, max_actions=3))
@settings(max_examples=40)
def test_collapsed_backup_is_unbiased(problem, form):
    """Exactly, by enumeration: tables (and for W the actions) are all that is drawn.

    The centred target is unbiased at the true means.
    """
    jm, policy, rng = problem
    layout = Layout(policy, form)
    shape = (jm.num_states, jm.num_actions)
    mean, second = rng.normal(size=shape), rng.normal(size=shape + shape)
    second = second + second.transpose(2, 3, 0, 1)
    if form == "centred":
        mean = jl.jipe2(jm, policy, tol=1e-11).moments.mean
    values = layout.pack(mean, second)
    exact = layout.pack(*jl.apply_t2(jm, policy, mean, second))
    middle = np.cumsum(policy, axis=1) - policy / 2
    num, size = policy.size, jm.num_states
    for i in range(layout.size):
        cross = i - num - num * jm.num_actions
        here = i // jm.num_actions if i < num else (i - num) // jm.num_actions**2
        states = [here] if cross < 0 else list(divmod(cross, size))
        tables_of = states[:1] if states[0] == states[-1] else states
        drawn = [[]] if cross < 0 else list(product(range(jm.num_actions), repeat=2))
        rows = [range(jm.starts[s], jm.starts[s + 1]) for s in tables_of]
        total = 0.0
        for tables, actions in product(product(*rows), drawn):
            chosen = tuple(zip(states, actions, strict=False))
            weight = np.prod(jm.probs[list(tables)]) * np.prod([policy[x] for x in chosen])
            if weight > 0:
                script = Scripted(jm, tables, [middle[x] for x in chosen])
                total += weight * layout.backup(script, values, i, script)
                assert (script.tables, script.uniforms) == ([], [])
        assert total == pytest.approx(exact[i], abs=1e-9)


@pytest.mark.slow
def test_wrapped_simulator_learns():
    jm, policy = small_problem(4)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    learned = jl.incremental_jipe2(Wrapped(jm), policy, 45_000, (1.0, 0.8), form="collapsed")
    assert np.abs(learned.moments.mean - exact.mean).max() < 0.1
    assert np.abs(learned.moments.covariance - exact.covariance).max() < 0.2
    assert np.isnan(learned.residuals).all()  # its tables are unknown
    assert np.isnan(learned.error_bound)
    assert not learned.converged
    with pytest.raises(ValueError, match="the others learn their averages"):
        learned.moments.second((0, 0), (1, 0))
    full = jl.incremental_jipe2(Wrapped(jm), policy, 500, checkpoints=1).moments
    assert full.full_second().shape == (2, 2, 2, 2)


@pytest.mark.parametrize("simulator", [lambda jm: jm, Wrapped], ids=["compiled", "wrapped"])
def test_steps_are_those_of_the_schedule(simulator):
    """A coordinate of constant rewards: its value follows from the steps alone."""
    jm = jl.JMDP([[1.0]], [[[2.0]]], [[[0]]], gamma=0.0)
    run = jl.incremental_jipe2(simulator(jm), [0], 40, (0.5, 0.8), seed=0)
    left = np.prod([1.0 - 0.5 * n**-0.8 for n in range(1, run.visits[0] + 1)])
    assert run.values[0] == pytest.approx(2.0 * (1.0 - left), rel=1e-12)


def test_every_coordinate_comes_up_equally_often():
    jm, policy = small_problem()
    run = jl.incremental_jipe2(jm, policy, 100_000)
    np.testing.assert_allclose(run.visits / 100_000, 1.0 / run.visits.size, atol=0.01)


@pytest.fixture
def ctrl_c():
    """Interrupts reach Python even where the shell that started it ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupt():
    """A real Ctrl-C in the middle of a long run."""
    jm, policy = small_problem()
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    simulator = Wrapped(jm)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        jl.incremental_jipe2(simulator, policy, 10**9)
    timer.join()


@pytest.mark.parametrize(
    ("coordinate", "message"),
    [
        ([], "coordinate must be"),
        ([(0, 0)] * 3, "coordinate must be"),
        ([(0, 5)], "action 5 is out of range"),
        ([(0, 0), (7, 0)], "state 7 is out of range"),
    ],
)
def test_bad_coordinates(coordinate, message):
    jm, policy = small_problem()
    mean, second = np.zeros((2, 2)), np.zeros((2, 2, 2, 2))
    with pytest.raises((ValueError, IndexError), match=message):
        jl.sample_t2(jm, policy, mean, second, coordinate, np.random.default_rng(0))
    with pytest.raises(ValueError, match="policy"):
        jl.sample_t2(jm, 5 * policy, mean, second, [(0, 0)], np.random.default_rng(0))


SHOP = jl.inventory(2, 1, gamma=0.5)
UNIFORM = jl.uniform_policy(SHOP)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": 0}, "num_updates must be at least 1"),
        ({"form": "half"}, "form must be one of"),
        ({"step_size": None}, "step size must be a real number"),
        ({"step_size": (1.0, 0.5)}, "sum of its squares diverges"),
        ({"step_size": 0.1}, "sum of its squares diverges"),
        ({"step_size": (1.0, 1.1)}, "its sum converges"),
        ({"step_size": (1.0, np.nan)}, "Robbins-Monro"),
        ({"step_size": (0.0, 0.8)}, "first step"),
        ({"step_size": (1.5, 0.8)}, "first step"),
        ({"checkpoints": [0, 5]}, "checkpoints must lie in"),
        ({"checkpoints": 0}, "checkpoints must be at least 1"),
        ({"initial": UNIFORM}, "initial must be a Solution or Moments"),
        ({"reference": 3}, "reference must be a Solution or Moments, got 3"),
        ({"reference": jl.jipe(SHOP, UNIFORM, 1)}, "reference holds orders up to 1, needed are 2"),
        ({"reference": jl.jipe2(jl.example_1(), [0])}, r"must have shape \(S, A\) = \(3, 2\)"),
    ],
)
def test_what_a_run_refuses(options, message):
    arguments = {"simulator": SHOP, "policy": UNIFORM, "num_updates": 10} | options
    with pytest.raises(ValueError, match=message):
        jl.incremental_jipe2(**arguments)


def test_a_run_may_start_from_moments():
    exact = jl.jipe2(SHOP, UNIFORM, tol=1e-12)
    options = {"initial": exact, "reference": exact, "checkpoints": 1}
    near = jl.incremental_jipe2(SHOP, UNIFORM, 200, (0.01, 1.0), **options)
    assert near.errors[0] < 0.05


def test_equal_seeds_give_equal_numbers():
    for simulator in (SHOP, Wrapped(SHOP)):
        runs = [jl.incremental_jipe2(simulator, UNIFORM, 500, seed=s).values for s in (1, 1, 2)]
        np.testing.assert_array_equal(runs[0], runs[1])
        assert not np.array_equal(runs[0], runs[2])
