"""Incremental JIPE: unbiased backups, step sizes, any simulator, seeds, interrupts."""

import signal
import threading
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from strategies import Plain, problems, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.machine import cached
from jmdp_lib.operators.backups import Form, Layout, compiled_backup
from jmdp_lib.operators.draws import draw, of_tables

FORMS = get_args(Form)


class Wrapped(Plain):
    """User's simulator that draws its tables as compiled code does."""

    def query(self, state, actions, rng):
        table = draw(rng, of_tables(self.jm), state)
        return self.jm.rewards[table, actions], self.jm.next_states[table, actions]


def small_problem(seed=0, gamma=0.5):
    rng = np.random.default_rng(seed)
    jm = random_jmdp(rng, num_states=2, num_actions=2, num_tables=3, gamma=gamma)
    assert np.diff(jm.starts).min() > 1  # both states are random: shared noise would show
    return jm, random_policy(rng, jm)


@pytest.mark.parametrize("form", FORMS)
def test_the_certificate_covers_the_error_at_every_checkpoint(form):
    """Chapter 8 measures the rates."""
    jm, policy = small_problem()
    exact = jl.jipe2(jm, policy, tol=1e-12).moments
    run = jl.incremental_jipe2(
        jm, policy, 500_000, step_size=(1.0, 0.8), form=form, reference=exact, rng=0
    )
    assert run.errors[-1] < 0.04
    assert np.all(run.errors <= run.residuals / (1 - jm.gamma) + 1e-12)


@pytest.mark.parametrize("form", FORMS)
@given(problem=problems())
@settings(max_examples=60)
def test_exact_operator_of_a_layout_is_literal(problem, form):
    """Residuals use T_2 M in the coordinates of the layout."""
    jm, policy, rng = problem
    shape = (jm.num_states, jm.num_actions)
    mean, second = rng.normal(size=shape), rng.normal(size=shape + shape)
    layout = Layout.of(policy, jm.gamma, form)
    result = layout.applied(jm, layout.pack(mean, second))
    expected = layout.raw(layout.pack(*jl.apply_t2(jm, policy, mean, second)))
    assert_allclose(result, expected, atol=1e-9)


@cached()
def fill(rng, values, i, model, layout, out):
    for n in range(out.size):
        out[n] = compiled_backup(rng, values, i, model, layout)


def drawn(jm, layout, values, i):
    """40,000 draws of hat T_2(M, i)."""
    model, out = (of_tables(jm), jm.rewards, jm.next_states), np.empty(40_000)
    fill(np.random.default_rng(i), values, i, model, layout, out)
    return out


def collection(seed):
    rng = np.random.default_rng(seed)
    jm = random_jmdp(rng, num_states=3, num_actions=2, num_tables=3, gamma=0.8)
    mean, second = rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 3, 2))
    return jm, random_policy(rng, jm), mean, second + second.transpose(2, 3, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
def test_sampled_backup_is_unbiased(seed, form):
    """Means are within five standard errors at every coordinate; "centred" at the true means."""
    jm, policy, mean, second = collection(seed)
    if form == "centred":
        mean = jl.jipe2(jm, policy, tol=1e-11).moments.mean
    layout = Layout.of(policy, jm.gamma, form)
    values = layout.pack(mean, second)
    exact = layout.pack(*jl.apply_t2(jm, policy, mean, second))
    for i in range(layout.size):
        sample = drawn(jm, layout, values, i)
        assert abs(sample.mean() - exact[i]) <= sample.std() / 40 + 1e-9


def test_a_simulator_has_no_residuals():
    """Its tables are unknown."""
    jm, policy = small_problem(4)
    learned = jl.incremental_jipe2(Wrapped(jm), policy, 500, form="centred", rng=0)
    assert np.isnan(learned.residuals).all()
    assert np.isnan(learned.error_bound)
    assert not learned.converged
    with pytest.raises(ValueError, match="no moments between states"):
        learned.moments.second((0, 0), (1, 0))
    full = jl.incremental_jipe2(Wrapped(jm), policy, 500, checkpoints=1, rng=0).moments
    assert full.full_second().shape == (2, 2, 2, 2)


@pytest.mark.parametrize("simulator", [lambda jm: jm, Wrapped], ids=["compiled", "wrapped"])
def test_steps_are_those_of_the_schedule(simulator):
    """Values of a coordinate of constant rewards follow from the steps alone."""
    jm = jl.JMDP([[1.0]], [[[2.0]]], [[[0]]], gamma=0.0)
    run = jl.incremental_jipe2(simulator(jm), [0], 40, step_size=(0.5, 0.8), rng=0)
    remaining = np.prod([1.0 - 0.5 * n**-0.8 for n in range(1, run.visits[0] + 1)])
    assert run.values[0] == pytest.approx(2.0 * (1.0 - remaining), rel=1e-12)


def test_coordinates_are_drawn_uniformly():
    jm, policy = small_problem()
    run = jl.incremental_jipe2(jm, policy, 100_000, rng=0)
    assert_allclose(run.visits / 100_000, 1.0 / run.visits.size, atol=0.01)


@pytest.fixture
def ctrl_c():
    """Interrupts reach Python even if the shell that started it ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupt():
    """Guards a real Ctrl-C in the middle of a long run."""
    jm, policy = small_problem()
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    simulator = Wrapped(jm)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        jl.incremental_jipe2(simulator, policy, 10**9, rng=0)
    timer.join()


SHOP = jl.inventory(2, 1, gamma=0.5)
UNIFORM = jl.uniform_policy(SHOP)


def test_a_run_may_start_from_moments():
    exact = jl.jipe2(SHOP, UNIFORM, tol=1e-12)
    options = {"initial": exact, "reference": exact, "checkpoints": 1}
    near = jl.incremental_jipe2(SHOP, UNIFORM, 200, step_size=(0.01, 1.0), **options)
    assert near.errors[0] < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_equal_seeds_give_equal_numbers(form):
    """Holds for compiled updates, for queries, and between the two."""
    calls = [(SHOP, 1), (SHOP, 1), (Wrapped(SHOP), 1), (SHOP, 2)]
    runs = [jl.incremental_jipe2(x, UNIFORM, 500, rng=s, form=form).values for x, s in calls]
    assert_array_equal(runs[0], runs[1])
    assert_allclose(runs[0], runs[2], rtol=1e-12)
    assert not np.array_equal(runs[0], runs[3])
