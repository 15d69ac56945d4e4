"""Distributions of gaps: brackets against all paths of small models, atoms, grids, samples."""

from dataclasses import replace
from fractions import Fraction

import brute
import numpy as np
import pytest
from strategies import COUPLINGS, implicit, on_all_couplings, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.fast import CollapsedT2, Gaps, PairSet
from jmdp_lib.laws.brackets import StepBracket
from jmdp_lib.laws.convex import Convex
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.stochastic import Stochastic, _shifted, first_cut
from jmdp_lib.laws.sweeps import follow

EPS = 2.0**-52
GAP = [(0, 0, 1)]


def law_of(jm, policy, **options):
    """That of the first gap."""
    return jl.laws.gap_law(jm, policy, gaps=GAP, **options)[0]


def rows_of(jm, policy, coupling="joint"):
    """The rows that the first gap leads to."""
    system = CollapsedT2.of("gap_law", jm, policy, coupling)
    return Rows.of(system, PairSet.of(system, Gaps.of(jm, GAP)), np.array(GAP))


def one_state(rewards, gamma=0.5):
    """A state with equally likely tables of these rewards (K, 2)."""
    size = len(rewards)
    return jl.JMDP(np.full((1, size), 1 / size), [rewards], np.zeros((1, size, 2), int), gamma)


def two_ends(paid=(0.0, 1.0, -1.0), gamma=0.5):
    """State 0 leads to one of two states that are never left, by the action; paid (3,) at each."""
    rewards = np.repeat(paid, 2).reshape(3, 1, 2)
    return jl.JMDP(np.ones((3, 1)), rewards, [[[1, 2]], [[1, 1]], [[2, 2]]], gamma)


def separate_models(rng, gamma, grain, count=6):
    """A JMDP of parts with two states each that never meet.

    All states have one distribution of tables; rewards are multiples of 1 / grain if given.
    """
    shape = (count, 2, 2, 2)
    rewards = rng.uniform(-1, 1, shape) if grain is None else rng.integers(-2, 3, shape) / grain
    after = rng.integers(2, size=shape) + 2 * np.arange(count)[:, None, None, None]
    rewards, after = (x.reshape(-1, 2, 2) for x in (rewards, after))
    probs = np.tile(rng.dirichlet(np.ones(2)), (len(after), 1))
    return jl.JMDP(probs, rewards, after, gamma)


def exact_cuts(gaps, probs, points):
    """P(G < x) and P(G <= y) of discrete gaps (N,) for all intervals [x, y], points (n, 2)."""
    order = np.argsort(gaps)
    total = np.append(0.0, np.cumsum(probs[order]))
    ends = zip(points.T, ("left", "right"), strict=True)
    places = [np.searchsorted(gaps[order], x, side) for x, side in ends]
    return total[np.stack(places, axis=1)].ravel()


def phi_contains_all_paths(law, gaps, probs, off):
    """E (x - G)^+ at all points, and every CVaR, lie in their brackets."""
    least, most = (np.maximum(law.phi.x[:, None] - gaps + e, 0.0) @ probs for e in (-off, off))
    assert (law.phi.above >= least - 1e-10).all()
    assert (law.phi.below <= most + 1e-10).all()
    between = np.linspace(law.phi.x[0], law.phi.x[-1], 101)
    upper = np.maximum(between[:, None] - gaps + off, 0.0) @ probs
    assert (law.phi.lower(between) <= upper + 1e-10).all()
    order = np.argsort(gaps)
    for p in (0.05, 0.5, 0.95):
        shares = np.diff(np.minimum(np.cumsum(probs[order]), p), prepend=0.0)
        low, high = law.cvar(p)
        assert low - off.max() - 1e-9 <= gaps[order] @ shares / p <= high + off.max() + 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:gap_law. brackets")  # true all the same
@pytest.mark.parametrize(
    ("coupling", "worth"), [*((x, 1e300) for x in COUPLINGS), ("joint", 0.0), ("independent", 0.0)]
)
def test_brackets_contain_all_paths(coupling, worth, monkeypatch):
    """By whole steps, and by half-steps."""
    monkeypatch.setattr("jmdp_lib.laws.rows._WORTH", worth)
    rng = np.random.default_rng(1)
    for gamma, depth, grain, deterministic in (
        (0.0, 1, 10, False),
        (0.3, 4, 1, True),
        (0.3, 4, None, False),
        (0.5, 6, None, True),
        (0.5, 6, 1, False),
        (0.5, 6, 10, False),
    ):
        jm = separate_models(rng, gamma, grain)
        policy = random_policy(rng, jm, deterministic)
        queries = [(s, a, 1 - a) for s in range(1, 12, 2) for a in (0, 1)]
        laws = jl.laws.gap_law(
            jm, policy, gaps=queries, width=0.02, coupling=coupling, points=32, max_points=128
        )
        for law, mirrored in zip(laws[::2], laws[1::2], strict=True):
            gaps, probs, off = brute.gap_paths(jm, policy, law.gap, coupling, depth)
            assert (law.low <= exact_cuts(gaps - off, probs, law.points) + 1e-10).all()
            assert (law.high >= exact_cuts(gaps + off, probs, law.points) - 1e-10).all()
            # A bound is the exact value at a point nearby.
            near = np.diff(law.points[:, 0]).max(initial=0.0) / (1 - gamma)
            assert (law.high <= exact_cuts(gaps - off, probs, law.points + near) + 0.01).all()
            assert (law.low >= exact_cuts(gaps + off, probs, law.points - near) - 0.01).all()
            # Half-steps at one state begin with the first action: then only widths bound it.
            rough = 0.02 if coupling == "independent" and worth == 0.0 else 1e-4
            assert mirrored.prob_worse == pytest.approx(law.prob_better, abs=rough)
            phi_contains_all_paths(law, gaps, probs, off)
            assert law.mean[0] - off.max() <= gaps @ probs <= law.mean[1] + off.max()


@on_all_couplings
def test_atoms_are_whole_at_every_point_of_the_grid(coupling):
    """Eighths are floats, and so are points of the grid; the last state pays nothing and stays."""
    rng = np.random.default_rng(2)
    for _ in range(6):
        rewards = rng.integers(-1, 2, (4, 2, 2)).astype(float)
        rewards[3] = 0.0
        after = np.minimum(rng.integers(1, 3, (4, 2, 2)) + np.arange(4)[:, None, None], 3)
        jm = jl.JMDP(np.tile([0.25, 0.75], (4, 1)), rewards, after, 0.5)
        policy = random_policy(rng, jm)
        law = law_of(jm, policy, coupling=coupling, points=64)
        gaps, probs, _ = brute.gap_paths(jm, policy, *GAP, coupling, 4, digits=12)
        exact = exact_cuts(gaps, probs, law.points)
        assert law.low == pytest.approx(exact, abs=1e-12)
        assert law.high == pytest.approx(exact, abs=1e-12)
        assert law.width < 1e-12
        assert law.prob_tie == pytest.approx([probs[gaps == 0].sum()] * 2, abs=1e-12)


def test_a_distribution_by_hand():
    """Rain has probability 0.3; without the umbrella one gains 0.25, and loses 1 in the rain."""
    (law,) = jl.laws.gap_law(
        jl.JMDP([[0.7, 0.3]], [[[-0.25, 0.0], [-0.25, -1.0]]], np.zeros((1, 2, 2), int), 0.9),
        [[1.0, 0.0]],
        gaps=[(0, 1, 0)],
    )
    assert law.quantile(0.2) == (-0.75, -0.75)
    assert law.quantile(0.4) == (0.25, 0.25)
    assert law.cvar(0.6) == pytest.approx((-0.25, -0.25))  # half of it rain, half sun
    for bounds in law.cdf([-np.inf, -2.0, -0.75, 0.0, 2.0, np.inf]):
        assert bounds == pytest.approx([0.0, 0.0, 0.3, 0.3, 1.0, 1.0])
    assert "worse with probability 0.3 to 0.3" in repr(law)


@pytest.mark.parametrize("unit", [1.0, 0.1, 3e5])
def test_read_points_are_exact_at_atoms(unit):
    """One reward difference is certain: at it, P(G <= x) is one and P(G < x) is zero."""
    jm = one_state([[4.0 * unit, 3.0 * unit]], 0.9)
    gap = jm.rewards[0, 0] - jm.rewards[0, 1]
    law = law_of(jm, [0], at=[gap, 2.5 * unit])
    assert law.at == (0.0, gap, 2.5 * unit)
    assert law.cdf(gap) == pytest.approx((1.0, 1.0), abs=1e-12)
    assert law.cdf(gap, strict=True) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert law.width < 1e-12


@pytest.mark.parametrize("half", [True, False])
def test_outcomes_are_counted_before_they_are_made(half, leave):
    rng = np.random.default_rng(15)
    jm = random_jmdp(rng, 6, 3, 5, gamma=0.9) if half else jl.windy_gridworld(4)
    policy = jl.uniform_policy(jm)
    rows = rows_of(jm, policy)
    assert rows.halved == half
    assert rows.outcomes.weights.sum() == pytest.approx(rows.factors.size)
    leave(100 * rows.outcomes.row.size)  # 400 bytes of each; there are three kinds of steps
    with pytest.raises(MemoryError, match="law of gaps that reach"):
        law_of(jm, policy)


def test_no_gap_exceeds_the_bound_of_its_size():
    """Branches that end in +1 and in -1 for good: |D| is 2 / (1 - gamma), far beyond the steps that
    are taken to bound it. Guards the remainder that is added to them."""
    jm = two_ends(gamma=0.99)
    assert 200.0 <= rows_of(jm, [0, 0, 0]).top <= 200.0 * (1.0 + 1e-8)
    law = law_of(jm, [0, 0, 0])
    exact = 2 * Fraction(jm.gamma) / (1 - Fraction(jm.gamma))  # a little less than 198
    low, high = law.cvar(0.5)
    assert 190.0 <= low <= exact <= high <= 198.0 + 1e-6
    assert law.cdf(180.0) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_more_rewards_than_are_distinguished():
    """The policy's branches coalesce after one step: the gap is one reward difference."""
    rewards = np.random.default_rng(5).normal(size=(3000, 2))
    law = law_of(one_state(rewards), [0], width=0.01)
    exact = exact_cuts(rewards[:, 0] - rewards[:, 1], np.full(3000, 1 / 3000), law.points)
    assert (law.low <= exact + 1e-12).all()
    assert (law.high >= exact - 1e-12).all()
    assert (law.high - law.low).max() < 0.02


@pytest.mark.parametrize("paid", [(0.3, 0.1 + 0.2, 0.3), (0.0, 0.1 + 0.2, 0.3)])
def test_rewards_that_differ_by_rounding_tie(paid):
    """At two ends that never meet: with an offset that all rewards share, and without one."""
    law = law_of(two_ends(paid, 0.9), [0, 0, 0])
    assert law.prob_tie == pytest.approx((1.0, 1.0))
    assert law.quantile(0.5) == (0.0, 0.0)


def test_a_width_that_is_not_reached_is_reported():
    jm = random_jmdp(np.random.default_rng(4), gamma=0.9)
    message = r"not 1e-06, on a grid of \d+ points.* a sample may be the better choice"
    with pytest.warns(jl.ConvergenceWarning, match=message):
        law = law_of(jm, jl.uniform_policy(jm), width=1e-6, points=16, max_points=64)
    assert law.width > 1e-6
    assert len(law.phi.x) <= 64


def test_a_grid_that_does_not_fit_is_refused_before_the_first():
    size = {"points": 10**10, "max_points": 2 * 10**10}
    with pytest.raises(MemoryError, match="a grid of 10,000,000,000 points needs"):
        law_of(two_ends(), [0, 0, 0], **size)


def test_a_sample_with_limits_has_finite_bounds():
    gaps = np.linspace(-1.0, 1.0, 2001)
    law = jl.laws.GapLaw.from_sample((0, 0, 1), gaps, truncation_error=0.01, limits=(-2.0, 3.0))
    band = np.sqrt(np.log(40.0) / 4002)
    low, high = law.cvar(0.5)
    assert -0.5 - 0.03 - 5.0 * band < low < -0.5 - 0.01 - 3.0 * band  # the band is at the limit
    assert -0.5 < high < -0.5 + 0.03 + 2.0 * band
    assert (law.quantile(1e-9)[0], law.quantile(1.0 - 1e-9)[1]) == (-2.0, 3.0)
    low, high = law.cdf(0.5)
    assert 0.75 - band - 0.01 < low < 0.75 < high < 0.75 + band + 0.01
    # Gaps that are no larger than their possible error are ties.
    assert law.prob_worse[1] == pytest.approx(990 / 2001 + band, abs=1e-3)


def test_the_default_number_of_points_follows_the_width():
    jm = random_jmdp(np.random.default_rng(3))
    wide, narrow = ({"width": 0.1}, {"width": 0.02})
    laws = [law_of(jm, [[0.5, 0.5]] * 3, **how) for how in (wide, narrow, wide | {"points": 512})]
    sizes = [len(law.phi.x) for law in laws]
    assert 2 * sizes[0] < sizes[1] == sizes[2]
    assert laws[0].width <= 0.1
    assert laws[1].width == laws[2].width <= 0.02


def test_independent_draws_at_one_state_are_halved():
    """K tables make some 4 K outcomes, not K^2; equal rewards are a tie all the same."""
    paid = np.random.default_rng(7).integers(0, 5, size=(60, 2)) * 0.3
    problem = one_state(paid, 0.9), [[0.5, 0.5]]
    rows = rows_of(*problem, "independent")
    assert rows.halved
    assert rows.outcomes.row.size <= 6 * 60
    law = law_of(*problem, coupling="independent", width=0.01)
    equal = np.mean(paid[:, :1] == paid[:, 1])
    assert law.width <= 0.01
    assert law.prob_tie[0] >= 0.5 * equal  # with the same action from then on


def test_one_action_has_no_gaps():
    """NumPy's reduction error once stood here."""
    jm = jl.JMDP(np.ones((2, 1)), [[[1.0]], [[0.0]]], [[[1]], [[0]]], gamma=0.9)
    assert jl.laws.gap_law(jm, [0, 0]) == []


def test_a_user_may_have_floating_point_errors_raised():
    """Numbers that underflow are zero, and no error; the brackets are the same."""
    shop = jl.inventory(4, 2, gamma=0.9)
    policy = jl.uniform_policy(shop)
    usual = law_of(shop, policy, width=0.1, points=64)
    with np.errstate(all="raise"):
        law = law_of(shop, policy, width=0.1, points=64)
        assert [law.prob_worse, law.cvar(0.1)] == [usual.prob_worse, usual.cvar(0.1)]
        jl.large.local_jipe2(implicit(jl.windy_gridworld(10)), jl.goal_policy(10), states=[4])


# --- The constants of bounds: each test fails if its constant is divided by 1.5 ------------------


def test_rounding_at_its_worst_is_within_its_bound():
    """Half an ulp down in x - d, in the quotient and in the sum: two _EPS of `_shifted` are enough,
    and less than three halves would not be."""
    d = -(2.0**-53) * (1.0 - 2.0**-50)  # 1 - d is rounded to 1
    short = 0
    for k in range(300):
        gamma = 0.893 + k * 2.0**-53
        true = (1 - Fraction(d)) / Fraction(gamma)
        (y,), (off,) = ends = _shifted(np.ones(1), d, gamma)
        assert (first_cut(ends[0], *ends) == 2).all()  # a point of a grid that is y is too low
        assert Fraction(y + off) >= true
        short += Fraction(y + off / 1.5) < true
    assert short > 0


@pytest.mark.parametrize("worth", [1e300, 0.0])
def test_errors_of_means_attain_their_bound(worth, monkeypatch):
    """Means that are wrong by one along a mode that lasts: the bound is that error, and little
    more. Guards 1 / (1 - gamma), and the two parts of a step."""
    monkeypatch.setattr("jmdp_lib.laws.rows._WORTH", worth)
    rows = rows_of(two_ends(), [0, 0, 0])
    assert rows.halved == (worth == 0.0)
    outcomes = rows.outcomes
    system = np.eye(rows.factors.size)
    weights = outcomes.weights * rows.factors[outcomes.row] * (1.0 - 2.0 * outcomes.flipped)
    np.subtract.at(system, (outcomes.row, outcomes.after), weights)
    exact = np.linalg.solve(system, np.bincount(outcomes.row, outcomes.weights * outcomes.d))
    assert np.abs(rows.means - exact).max() <= rows.mean_error < 1e-8
    wrong = exact + np.linalg.solve(system, np.ones(len(system)))
    wrong[rows.gaps[-1] + 1] = 0.0
    true = np.abs(wrong - exact).max()
    assert true - 1e-12 <= replace(rows, rounding=0.0).error_of_means(wrong) < 1.5 * true


@pytest.mark.parametrize("worth", [1e300, 0.0])
def test_rounding_of_rewards_widens_the_mean(worth, monkeypatch):
    """Rewards of nearly half a unit of the twelfth digit for ever are rounded to zero. Guards
    `Rows.digits`, by which law.mean holds for the given model, too."""
    monkeypatch.setattr("jmdp_lib.laws.rows._WORTH", worth)
    jm = two_ends([1.0, 0.49e-12, -0.49e-12], 0.9)
    law = law_of(jm, [0, 0, 0])
    gamma, (up, down) = Fraction(jm.gamma), map(Fraction, jm.rewards[1:, 0].tolist())
    exact = gamma / (1 - gamma) * (up - down)
    assert Fraction(law.mean[0]) <= exact <= Fraction(law.mean[1])
    assert exact > law.mean[1] / 1.5


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_roundings_are_counted(size):
    """Of each draw two additions and a product lose half an eps, of a step sixteen are done once;
    numbers of a step are at most twice as large as the grid reaches, and lines as long."""
    rows = rows_of(one_state(np.random.default_rng(0).normal(size=(size, 2))), [0])
    assert rows.rounding == pytest.approx((3 * size * 0.5 + 16) * EPS, rel=1e-12, abs=0.0)
    assert Convex(rows).slack(3.0) == pytest.approx(12.0 * rows.rounding, rel=1e-12, abs=0.0)
    lost = replace(rows, rounding=1.0).mean_error
    largest = np.abs(rows.outcomes.d).max() + np.abs(rows.means).max()
    assert lost == pytest.approx(largest / 0.5, rel=1e-9)


def test_sweeps_of_convex_order_include_their_roundings():
    """A distribution that is a point: a step adds the slack to its bounds."""
    rows = replace(rows_of(two_ends(), [0, 0, 0]), rounding=1e-7)
    x = np.arange(-64, 65) / 8.0
    convex = Convex(rows)
    convex.refine(x)
    for sign, bounds in ((1.0, convex.above), (-1.0, convex.below)):
        bounds[:, 0] = np.abs(x - rows.means[:, None])  # exact, and so are the slopes
        out = np.empty((4, x.size))
        follow(out, 0, bounds, *convex.step())
        assert sign * (out[0] - bounds[0, 0]) == pytest.approx(convex.slack(x[-1]), rel=1e-6)


def test_sweeps_of_stochastic_order_include_their_roundings():
    """A gap that is 1 or -1: its half is summed with the rounding of a billion draws, about."""
    rows = replace(rows_of(one_state([[1.0, 0.0], [-1.0, 0.0]]), [1]), rounding=1e-7)
    stochastic = Stochastic(rows)
    stochastic.refine(np.arange(-2.0, 3.0))
    stochastic.settle(1e-13)
    below = stochastic.bounds[stochastic.gaps[:, 0], 0, 4]  # P(G < 0), and of -G
    assert below - 0.5 == pytest.approx(rows.rounding, rel=1e-6)


def test_errors_of_means_widen_every_bound(monkeypatch):
    """With means that may be wrong by 0.001, psi starts as far off on either side, and phi, half of
    psi(x) + x - E G, ends half as far off."""
    starts, phis = [], []
    for error in (0.0, 1e-3):
        monkeypatch.setattr(Rows, "mean_error", error)
        convex = Convex(rows_of(two_ends(), [0, 0, 0]))
        convex.refine(np.arange(-64, 65) / 8.0)
        starts.append([convex.above[:, 0], -convex.below[:, 0]])
        phi = law_of(two_ends(), [0, 0, 0]).phi
        phis.append([phi.above[[0, -1]], -phi.below[[0, -1]]])
    assert np.subtract(*starts[::-1]) == pytest.approx(1e-3, rel=1e-6)
    assert np.subtract(*phis[::-1]) == pytest.approx(0.5e-3, rel=1e-2)  # at both ends


def test_complements_and_means_include_their_roundings(monkeypatch):
    """One minus a probability loses one; the mean of a gap four, beside its error bound."""
    rows = rows_of(two_ends(), [0, 0, 0])
    stochastic = Stochastic(rows)
    stochastic.x = np.arange(-1.0, 2.0)
    stochastic.bounds = np.full((2 * rows.factors.size, 1, 7), 0.5)
    low, high = stochastic.bracket(stochastic.x)
    assert 0.5 - low == pytest.approx(EPS, rel=0.1, abs=0.0)
    assert (high == 0.5).all()
    monkeypatch.setattr(Rows, "mean_error", 0.0)
    monkeypatch.setattr(Rows, "digits", 0.0)
    law = law_of(two_ends(), [0, 0, 0])  # whose mean is 2
    assert np.ptp(law.mean) == pytest.approx(2.0 * 4.0 * EPS * 2.0, rel=0.2, abs=0.0)


def test_averages_of_quantiles_are_rounded_outwards():
    """A thousand atoms whose distribution function is exact."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        x = np.sort(rng.normal(size=1000))
        cdf = np.cumsum(rng.dirichlet(np.ones(x.size)))
        cdf /= cdf[-1]
        cuts = np.stack([np.append(0.0, cdf[:-1]), cdf], axis=1).ravel()
        low, high = StepBracket(np.stack([x, x], axis=1), cuts, cuts).worst_mean(1.0)
        shares = np.diff([Fraction(0), *map(Fraction, cdf.tolist())])
        exact = sum(Fraction(a) * b for a, b in zip(x.tolist(), shares, strict=True))
        assert Fraction(low) <= exact <= Fraction(high)
        assert high - low < 1e-11
