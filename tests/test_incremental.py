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
from jmdp_lib.solvers.incremental import Learned, updater


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


def test_centred_form_is_for_gaps():
    """Large means, small gaps: covariances learned as such are far more accurate."""
    jm = jl.inventory(capacity=4, max_order=2, gamma=0.6)
    policy = jl.uniform_policy(jm)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    off = {}
    for form in ("collapsed", "centred"):
        runs = [jl.incremental_jipe2(jm, policy, 300_000, seed=k, form=form) for k in range(5)]
        blocks = [run.moments.covariance for run in runs]
        off[form] = np.mean([np.abs(b - exact.covariance).mean() for b in blocks])
    assert off["centred"] < 0.5 * off["collapsed"]


def test_collapsed_needs_fewer_updates():
    jm = jl.windy_gridworld(3, gamma=0.8)
    policy = jl.uniform_policy(jm)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    errors = {
        form: np.mean(
            [
                jl.incremental_jipe2(
                    jm, policy, 300_000, seed=k, form=form, reference=exact
                ).errors[-1]
                for k in range(10)
            ]
        )
        for form in ("full", "collapsed")
    }
    assert errors["collapsed"] < 0.7 * errors["full"]  # 0.48 on average


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
    if layout.centred:
        mean = jl.jipe2(jm, policy, tol=1e-11).moments.mean
    values = layout.pack(mean, second)
    exact = layout.pack(*jl.apply_t2(jm, policy, mean, second))
    middle = np.cumsum(policy, axis=1) - policy / 2
    num, size = policy.size, jm.num_states
    for i in np.flatnonzero(layout.used).tolist():
        cross = i - num - num * jm.num_actions
        here = i // jm.num_actions if i < num else (i - num) // jm.num_actions**2
        states = [here] if cross < 0 else list(divmod(cross, size))
        drawn = [[]] if cross < 0 else list(product(range(jm.num_actions), repeat=2))
        rows = [range(jm.starts[s], jm.starts[s + 1]) for s in states]
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
@pytest.mark.parametrize("form", ["full", "collapsed", "centred"])
def test_any_simulator_follows_the_same_law(form):
    """One update per coordinate from the same M: compiled and wrapped backups agree in law."""
    jm, policy = small_problem(3)
    rng = np.random.default_rng(1)
    shape = (2, 2)
    start = rng.normal(size=shape), rng.normal(size=shape + shape)
    layout = Layout(policy, form)
    values = layout.pack(*start)
    used = np.flatnonzero(layout.used)
    for i in used:
        only = np.zeros(values.size)
        only[i] = 1.0
        draws = []
        for one in (jm, Wrapped(jm)):
            sample, moved, visits = [], values.copy(), np.zeros(values.size, dtype=np.int64)
            step, stream = jl.StepSize(1.0, 1.0), np.random.default_rng(5)
            update = updater(one, layout, Learned(moved, visits), step, only, stream)
            for _ in range(1500):
                moved[i], visits[i] = values[i], 0
                update(1)
                sample.append(moved[i])  # the first step is 1: the coordinate becomes its target
            draws.append(np.array(sample))
        error = np.sqrt(draws[0].var() / 1500 + draws[1].var() / 1500)
        assert abs(draws[0].mean() - draws[1].mean()) <= 5 * error + 1e-9
        # common targets come up equally often
        for target in np.unique(np.round(np.concatenate(draws), 9)):
            first, second = (np.isclose(d, target, atol=1e-8).mean() for d in draws)
            assert abs(first - second) <= 5 * np.sqrt(0.5 / 1500)


@pytest.mark.slow
def test_wrapped_simulator_learns():
    jm, policy = small_problem(4)
    exact = jl.jipe2(jm, policy, tol=1e-10).moments
    learned = jl.incremental_jipe2(Wrapped(jm), policy, 45_000, (1.0, 0.8), form="collapsed")
    assert np.abs(learned.moments.mean - exact.mean).max() < 0.1
    assert np.abs(learned.moments.covariance - exact.covariance).max() < 0.2
    estimated = learned.updates[~np.isnan(learned.residuals)]  # each pays: ten updates a backup
    assert np.diff(estimated, prepend=0)[:-1].min() >= 10 * 64 * 32
    assert estimated[-1] == learned.updates[-1]
    assert learned.residuals[-1] < 1.0
    assert np.isnan(learned.error_bound)
    assert not learned.converged
    with pytest.raises(ValueError, match="the others learn their averages"):
        learned.moments.second((0, 0), (1, 0))
    full = jl.incremental_jipe2(Wrapped(jm), policy, 500, checkpoints=1).moments
    assert full.full_second().shape == (2, 2, 2, 2)


@pytest.mark.parametrize("simulator", [lambda jm: jm, Wrapped], ids=["compiled", "wrapped"])
@pytest.mark.parametrize("form", ["full", "collapsed", "centred"])
def test_resuming_is_not_stopping(simulator, form):
    jm, policy = small_problem(5)
    model = simulator(jm)
    whole = jl.incremental_jipe2(model, policy, 3000, seed=7, form=form)
    part = jl.incremental_jipe2(model, policy, 1200, seed=7, form=form)
    rest = jl.incremental_jipe2(model, policy, 1800, seed=7, form=form, initial=part)
    np.testing.assert_array_equal(whole.values, rest.values)
    np.testing.assert_array_equal(whole.visits, rest.visits)
    assert rest.iterations == 3000 == whole.iterations
    assert part.iterations == 1200  # and the first result is untouched
    assert part.visits.sum() == 1200


@pytest.mark.parametrize("simulator", [lambda jm: jm, Wrapped], ids=["compiled", "wrapped"])
def test_steps_are_those_of_the_schedule(simulator):
    """A coordinate of constant rewards: its value follows from the steps alone."""
    jm = jl.JMDP([[1.0]], [[[2.0]]], [[[0]]], gamma=0.0)
    run = jl.incremental_jipe2(simulator(jm), [0], 40, (0.5, 0.8), seed=0)
    left = np.prod([1.0 - 0.5 * n**-0.8 for n in range(1, run.visits[0] + 1)])
    assert run.values[0] == pytest.approx(2.0 * (1.0 - left), rel=1e-12)


def test_same_seed_same_numbers():
    jm, policy = small_problem()
    runs = [jl.incremental_jipe2(jm, policy, 1000, seed=s).values for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_starts():
    jm, policy = small_problem()
    exact = jl.jipe2(jm, policy, tol=1e-12).moments
    near = jl.incremental_jipe2(
        jm, policy, 200, (0.01, 1.0), initial=exact, reference=exact, checkpoints=1
    )
    assert near.errors[0] < 0.05


def test_every_coordinate_comes_up_equally_often():
    jm, policy = small_problem()
    run = jl.incremental_jipe2(jm, policy, 100_000)
    np.testing.assert_allclose(run.visits / 100_000, 1.0 / run.visits.size, atol=0.01)
    collapsed = jl.incremental_jipe2(jm, policy, 10_000, form="collapsed")
    assert collapsed.visits[~Layout(policy, "collapsed").used].sum() == 0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((1.0, 0.5), "sum of its squares diverges"),
        ((1.0, 1.1), "its sum converges"),
        ((0.0, 0.8), "first step"),
        ((1.5, 0.8), "first step"),
        (0.1, "sum of its squares diverges"),
        ((1.0, float("nan")), "Robbins-Monro"),
    ],
)
def test_schedules_that_break_robbins_monro(step, message):
    jm, policy = small_problem()
    with pytest.raises(ValueError, match=message):
        jl.incremental_jipe2(jm, policy, 10, step_size=step)


class Broken(Wrapped):
    """A simulator whose answers are replaced by one that is wrong."""

    def __init__(self, jm, answer):
        super().__init__(jm)
        self.answer = answer

    def query(self, state, actions, rng):
        return self.answer(len(actions))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda m: ([0.0] * m, [2] * m),
            r"query\(state \d, actions .*next states \[2.*not in range\(2\)",
        ),
        (lambda m: ([np.nan] * m, [0] * m), "rewards.*finite"),
        (lambda m: ([0.0] * (m + 1), [0] * m), "rewards must have shape"),
        (lambda m: ([0.0] * m, [0.5] * m), "next states must hold integers"),
        (lambda m: (["x"] * m, [0] * m), "rewards must hold real numbers"),
        (lambda m: None, r"query\(state .*must return rewards and next states.*NoneType"),
        (lambda m: [(0.0, 0)] * 3, "must return"),
    ],
)
def test_simulators_that_answer_nonsense(answer, message):
    jm, policy = small_problem()
    with pytest.raises(ValueError, match=message):
        jl.incremental_jipe2(Broken(jm, answer), policy, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": 0}, "num_updates must be at least 1"),
        ({"form": "half"}, "form must be one of"),
        ({"step_size": None}, "step size must be a real number"),
        ({"initial": np.zeros((2, 2))}, "initial must be a Solution or Moments"),
        ({"checkpoints": [0, 5]}, "checkpoints must lie in"),
        ({"checkpoints": 0}, "checkpoints must be at least 1"),
    ],
)
def test_arguments(options, message):
    jm, policy = small_problem()
    arguments = {"num_updates": 10} | options
    with pytest.raises(ValueError, match=message):
        jl.incremental_jipe2(jm, policy, **arguments)


def test_wrong_resume_and_wrong_simulator():
    jm, policy = small_problem()
    run = jl.incremental_jipe2(jm, policy, 10)
    with pytest.raises(ValueError, match="learned in the form 'full'"):
        jl.incremental_jipe2(jm, policy, 10, initial=run, form="collapsed")
    with pytest.raises(
        ValueError,
        match=r"<object .* is no simulator: it has no num_states, num_actions, gamma, query",
    ):
        jl.incremental_jipe2(object(), policy, 10)


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


def test_a_reference_of_another_model_or_order_is_refused():
    jm, policy = small_problem()
    other = jl.jipe2(jl.windy_gridworld(2), jl.goal_policy(2))
    with pytest.raises(ValueError, match=r"reference must have shape \(S, A\) = \(2, 2\)"):
        jl.incremental_jipe2(jm, policy, 10, reference=other)
    with pytest.raises(ValueError, match="reference must be a Solution or Moments, got 3"):
        jl.incremental_jipe2(jm, policy, 10, reference=3)
    with pytest.raises(ValueError, match="reference holds orders up to 1, needed are 2"):
        jl.incremental_jipe2(jm, policy, 10, reference=jl.jipe(jm, policy, order=1))
    known = jl.jipe2(jm, policy)
    assert np.isfinite(jl.incremental_jipe2(jm, policy, 10, reference=known).errors).all()


def test_a_wrong_reward_range_is_refused_before_any_query():
    jm, policy = small_problem()
    simulator = Broken(jm, lambda m: pytest.fail("queried"))
    simulator.reward_range = (1.0, -1.0)
    with pytest.raises(ValueError, match=r"simulator\.reward_range must be \(lo, hi\)"):
        jl.incremental_jipe2(simulator, policy, 10)


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


def test_a_run_goes_on_only_under_its_own_policy_and_coupling():
    jm = jl.inventory(2, 1, gamma=0.5)
    policy = jl.uniform_policy(jm)
    run = jl.incremental_jipe2(jm, policy, 200, seed=1)
    other = policy.copy()
    other[2] = [0.9, 0.1]
    with pytest.raises(ValueError, match=r"under another policy, which differs in state 2"):
        jl.incremental_jipe2(jm, other, 200, initial=run)
    with pytest.raises(ValueError, match=r"with coupling='joint', this run has 'common'"):
        jl.incremental_jipe2(jm, policy, 200, initial=run, coupling="common")
    assert jl.incremental_jipe2(jm, other, 200, initial=run.moments).iterations == 200
    assert jl.incremental_jipe2(jm, policy, 200, initial=run).iterations == 400
