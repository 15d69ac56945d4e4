"""The law of a gap: brackets against all paths of small models, atoms, grids, samples."""

import itertools
from dataclasses import replace
from fractions import Fraction

import brute
import numpy as np
import pytest
from strategies import implicit, random_jmdp, random_policy

import jmdp_lib as jl
from jmdp_lib.fast.collapsed import CollapsedT2, Gaps
from jmdp_lib.fast.reachable import PairSet
from jmdp_lib.laws.brackets import StepBracket
from jmdp_lib.laws.convex import Convex
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.stochastic import Stochastic, _shifted, first_cut
from jmdp_lib.laws.sweeps import follow

COUPLINGS = ("joint", "independent", "common")


def law_of(jm, policy, **options):
    """That of the first gap."""
    return jl.laws.gap_law(jm, policy, gaps=[(0, 0, 1)], **options)[0]


def one_state(rewards, gamma=0.5):
    """A state with tables (K, 2) that are equally likely."""
    paid = np.array([rewards])
    return jl.JMDP(np.full((1, len(rewards)), 1 / len(rewards)), paid, 0 * paid.astype(int), gamma)


def two_ends(paid=(0.0, 1.0, -1.0), gamma=0.5):
    """State 0 leads to one of two states that are never left, by the action; paid (3,) at each."""
    rewards = np.repeat(paid, 2).reshape(3, 1, 2)
    return jl.JMDP(np.ones((3, 1)), rewards, [[[1, 2]], [[1, 1]], [[2, 2]]], gamma)


def small_models(rng, gamma, grain=None, count=1, num_states=2, num_actions=2):
    """A JMDP of `count` parts that never meet. Its states share one law of tables; rewards are
    multiples of 1 / grain if given."""
    shape = (count, num_states, 2, num_actions)
    rewards = rng.uniform(-1, 1, shape) if grain is None else rng.integers(-2, 3, shape) / grain
    after = rng.integers(num_states, size=shape)
    after += num_states * np.arange(count)[:, None, None, None]
    rewards, after = (x.reshape(-1, 2, num_actions) for x in (rewards, after))
    probs = np.tile(rng.dirichlet(np.ones(2)), (len(after), 1))
    return jl.JMDP(probs, rewards, after, gamma)


def paths_bounds(paths, points):
    """Bounds (2n,) of the law's cuts at points (n, 2), from paths of `brute.gap_paths`."""
    gaps, probs, off = paths
    bounds = []
    for shift in (off, -off):
        order = np.argsort(gaps + shift)
        ends, total = (gaps + shift)[order], np.append(0.0, np.cumsum(probs[order]))
        sides = [np.searchsorted(ends, points[:, i], s) for i, s in enumerate(("left", "right"))]
        bounds.append(total[np.stack(sides, axis=1)].ravel())
    return bounds


def phi_contains_all_paths(law, paths):
    """E (x - G)^+ at all points, and every CVaR, lie in their brackets."""
    gaps, probs, off = paths
    least, most = (np.maximum(law.phi.x[:, None] - gaps + e, 0.0) @ probs for e in (-off, off))
    assert (law.phi.above >= least - 1e-10).all()
    assert (law.phi.below <= most + 1e-10).all()
    between = np.linspace(law.phi.x[0], law.phi.x[-1], 101)
    upper = np.maximum(between[:, None] - gaps + off, 0.0) @ probs
    assert (law.phi.lower(between) <= upper + 1e-10).all()
    order = np.argsort(gaps)
    for p in (0.05, 0.5, 0.95):
        shares = np.diff(np.minimum(np.cumsum(probs[order]), p), prepend=0.0)
        cvar = gaps[order] @ shares / p
        low, high = law.cvar(p)
        assert low - off.max() - 1e-9 <= cvar <= high + off.max() + 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:gap_law. brackets")  # true all the same
@pytest.mark.parametrize(
    ("coupling", "worth"), [*((x, 1e300) for x in COUPLINGS), ("joint", 0.0), ("independent", 0.0)]
)
def test_brackets_contain_the_law_of_all_paths(coupling, worth, monkeypatch):
    """By whole steps, and by half-steps."""
    monkeypatch.setattr("jmdp_lib.laws.rows._WORTH", worth)
    rng = np.random.default_rng(1)
    for (gamma, depth), grain, deterministic in itertools.product(
        {0.0: 1, 0.3: 4, 0.5: 6}.items(), (None, 1, 10), (False, True)
    ):
        jm = small_models(rng, gamma, grain, count=6)
        policy = random_policy(rng, jm, deterministic)
        queries = [(s, a, 1 - a) for s in range(1, 12, 2) for a in (0, 1)]
        laws = jl.laws.gap_law(
            jm, policy, gaps=queries, width=0.02, coupling=coupling, points=32, max_points=128
        )
        for law, mirrored in zip(laws[::2], laws[1::2], strict=True):
            paths = brute.gap_paths(jm, policy, law.gap, coupling, depth)
            low, high = paths_bounds(paths, law.points)
            assert (law.low <= high + 1e-10).all()
            assert (law.high >= low - 1e-10).all()
            # As claimed, a bound is that of a point nearby.
            near = np.diff(law.points[:, 0]).max(initial=0.0) / (1 - gamma)
            assert (law.high <= paths_bounds(paths, law.points + near)[1] + 0.01).all()
            assert (law.low >= paths_bounds(paths, law.points - near)[0] - 0.01).all()
            # Half-steps at one state begin with the first action.
            off = 5e-3 if coupling == "independent" and worth == 0.0 else 1e-4
            assert mirrored.prob_worse == pytest.approx(law.prob_better, abs=off)
            phi_contains_all_paths(law, paths)
            mean = paths[0] @ paths[1]
            assert law.mean[0] - paths[2].max() <= mean <= law.mean[1] + paths[2].max()


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_atoms_are_whole_at_every_point_of_the_grid(coupling):
    # Eighths are floats, and so are points of the grid; the last state pays nothing and stays.
    rng = np.random.default_rng(2)
    for _ in range(10):
        rewards = rng.integers(-1, 2, (4, 2, 2)).astype(float)
        rewards[3] = 0.0
        after = np.minimum(rng.integers(1, 3, (4, 2, 2)) + np.arange(4)[:, None, None], 3)
        jm = jl.JMDP(np.tile([0.25, 0.75], (4, 1)), rewards, after, 0.5)
        policy = random_policy(rng, jm)
        law = law_of(jm, policy, coupling=coupling, points=64)
        paths = brute.gap_paths(jm, policy, (0, 0, 1), coupling, 4, digits=12)
        gaps, probs = paths[0], paths[1]
        cuts = law.points[:, 0, None]
        exact = np.stack([(gaps < cuts) @ probs, (gaps <= cuts) @ probs], axis=1).ravel()
        assert law.low == pytest.approx(exact, abs=1e-12)
        assert law.high == pytest.approx(exact, abs=1e-12)
        assert law.width < 1e-12
        assert law.prob_tie == pytest.approx([probs[gaps == 0].sum()] * 2, abs=1e-12)


def test_a_law_that_needs_no_computer():
    # Rain with probability 0.3; leaving the umbrella at home gains 0.25 and loses 1 in the rain.
    def step(state, action, rain):
        return (-0.25 if action == 0 else -float(rain)), 0

    jm = jl.JMDP.from_step(1, 2, 0.9, [0.7, 0.3], step)
    (law,) = jl.laws.gap_law(jm, [[1.0, 0.0]], gaps=[(0, 1, 0)])
    assert law.prob_worse == pytest.approx((0.3, 0.3))
    assert law.prob_better == pytest.approx((0.7, 0.7))
    assert law.mean == pytest.approx((0.25 - 0.3, 0.25 - 0.3))
    assert law.quantile(0.2) == (-0.75, -0.75)
    assert law.quantile(0.4) == (0.25, 0.25)
    assert law.cvar(0.2) == pytest.approx((-0.75, -0.75))
    assert law.cvar(0.6) == pytest.approx((0.0 - 0.25, -0.25))  # half of it rain, half sun
    assert law.cdf(-0.75) == pytest.approx((0.3, 0.3))
    for bounds in law.cdf([-np.inf, -2.0, 0.0, 2.0, np.inf]):
        assert bounds == pytest.approx([0.0, 0.0, 0.3, 1.0, 1.0])
    assert "worse with probability 0.3 to 0.3" in repr(law)


def test_read_points_are_exact_where_the_law_has_atoms():
    """One reward difference for certain: at it, P(G <= x) is one and P(G < x) is zero."""
    for unit in (1.0, 0.1, 3e5):
        jm = one_state([[4.0 * unit, 3.0 * unit]], 0.9)
        gap = jm.rewards[0, 0] - jm.rewards[0, 1]
        law = law_of(jm, [[1.0, 0.0]], at=[gap, 2.5 * unit])
        assert law.at == (0.0, gap, 2.5 * unit)
        assert law.cdf(gap) == pytest.approx((1.0, 1.0), abs=1e-12)
        assert law.cdf(gap, strict=True) == pytest.approx((0.0, 0.0), abs=1e-12)
        assert law.cdf(2.5 * unit, strict=True) == pytest.approx((1.0, 1.0), abs=1e-12)
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
    are taken to bound it. Guards the rest that is added to them."""
    jm = two_ends(gamma=0.99)
    rows = rows_of(jm, [0, 0, 0])
    assert 200.0 <= rows.top <= 200.0 * (1.0 + 1e-8)
    law = law_of(jm, [0, 0, 0])
    exact = 2 * Fraction(jm.gamma) / (1 - Fraction(jm.gamma))  # a little less than 198
    low, high = law.cvar(0.5)
    assert 190.0 <= low <= exact <= high <= 198.0 + 1e-6
    assert law.cdf(180.0) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_more_rewards_than_are_told_apart():
    # The policy's branches merge after one step, so that the gap is one reward's difference.
    rewards = np.random.default_rng(5).normal(size=(3000, 2))
    law = law_of(one_state(rewards), [0], width=0.01)
    gaps, cuts = np.sort(rewards[:, 0] - rewards[:, 1]), law.points
    exact = [np.searchsorted(gaps, cuts[:, i], s) for i, s in enumerate(("left", "right"))]
    exact = np.stack(exact, axis=1).ravel() / 3000
    assert (law.low <= exact + 1e-12).all()
    assert (law.high >= exact - 1e-12).all()
    assert np.abs(law.high - law.low).max() < 0.02


@pytest.mark.parametrize("rewards", [np.ones((3, 1, 2)), np.tile([0.1 + 0.2, 0.3], (3, 1, 1))])
def test_actions_that_are_alike_but_for_rounding_tie(rewards):
    jm = jl.JMDP(np.ones((3, 1)), rewards, [[[1, 2]], [[1, 1]], [[2, 2]]], 0.9)
    law = law_of(jm, jl.uniform_policy(jm))  # two ends that never meet
    assert law.prob_tie == pytest.approx((1.0, 1.0))
    assert law.quantile(0.5) == (0.0, 0.0)


def test_a_width_that_is_not_reached_is_said():
    rng = np.random.default_rng(4)
    jm = small_models(rng, 0.9, num_states=3)
    said = r"not 1e-06, on a grid of \d+ points.* a sample may be the better choice"
    with pytest.warns(jl.ConvergenceWarning, match=said):
        law = law_of(jm, jl.uniform_policy(jm), width=1e-6, points=16, max_points=64)
    assert law.width > 1e-6
    assert len(law.phi.x) <= 64


def test_a_grid_that_cannot_fit_is_refused_before_the_first():
    jm = jl.windy_gridworld(3, gamma=0.8)
    points = 10**10
    with pytest.raises(MemoryError, match="a grid of 10,000,000,000 points needs"):
        jl.laws.gap_law(
            jm, jl.goal_policy(3), gaps=[(4, 0, 2)], points=points, max_points=2 * points
        )


def test_a_sample_with_limits_has_finite_bounds_and_keeps_close_gaps_apart():
    gaps = np.linspace(-1.0, 1.0, 2001)
    law = jl.laws.GapLaw.from_sample((0, 0, 1), gaps, truncation_error=0.01, limits=(-2.0, 3.0))
    band = np.sqrt(np.log(40.0) / 4002)
    low, high = law.cvar(0.5)
    assert low < -0.5 - 0.01 - 3.0 * band  # the band's share of the worst half is at the limit
    assert -0.5 < high < -0.5 + 0.03 + 2.0 * band
    assert low > -0.5 - 0.03 - 5.0 * band
    assert (law.quantile(1e-9)[0], law.quantile(1.0 - 1e-9)[1]) == (-2.0, 3.0)
    low, high = law.cdf(0.5)
    assert 0.75 - band - 0.01 < low < 0.75 < high < 0.75 + band + 0.01
    # Gaps that are no larger than how far they may be off are ties.
    assert law.prob_worse[1] == pytest.approx(990 / 2001 + band, abs=1e-3)


def test_rounding_at_its_worst_is_allowed_for():
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


def test_a_wide_bracket_takes_fewer_points():
    """Unless they are given."""
    rng = np.random.default_rng(3)
    jm = small_models(rng, 0.8, num_states=3)
    wide, narrow = ({"width": 0.1}, {"width": 0.02})
    laws = [law_of(jm, [[0.5, 0.5]] * 3, **how) for how in (wide, narrow, wide | {"points": 512})]
    sizes = [len(law.phi.x) for law in laws]
    assert 2 * sizes[0] < sizes[1] == sizes[2]
    assert laws[0].width <= 0.1
    assert laws[1].width == laws[2].width <= 0.02


def test_independent_draws_at_one_state_are_halved():
    """K tables make some 4 K outcomes, not K^2; equal rewards are a tie all the same."""
    rng = np.random.default_rng(7)
    paid = rng.integers(0, 5, size=(60, 2)) * 0.3
    jm = one_state(paid, 0.9)
    system = CollapsedT2.of("gap_law", jm, [[0.5, 0.5]], "independent")
    query = Gaps.of(jm, [(0, 0, 1)])
    rows = Rows.of(system, PairSet.of(system, query), np.array([(0, 0, 1)]))
    assert rows.halved
    assert rows.outcomes.row.size <= 6 * 60
    law = law_of(jm, [[0.5, 0.5]], coupling="independent", width=0.01)
    first = np.mean(paid[:, :1] == paid[:, 1])
    assert law.width <= 0.01
    assert law.prob_tie[0] >= 0.5 * first  # with equal rewards, and the same action from then on


def test_all_gaps_are_asked_and_one_action_has_none():
    """NumPy's reduction error once stood here."""
    jm = jl.JMDP(np.ones((2, 1)), [[[1.0]], [[0.0]]], [[[1]], [[0]]], gamma=0.9)
    assert jl.laws.gap_law(jm, [0, 0]) == []
    three = random_jmdp(np.random.default_rng(0), 2, 3, 2, gamma=0.5)
    every = [law.gap for law in jl.laws.gap_law(three, [0, 0], width=0.5, points=1)]
    assert every == [(s, a, b) for s in range(2) for a, b in ((0, 1), (0, 2), (1, 2))]


# --- The constants of bounds: each test fails if its constant is divided by 1.5 ------------------


def reached(jm, policy):
    """What `Rows.of` makes rows of: the operator, the pairs of states, and the gap."""
    system = CollapsedT2.of("gap_law", jm, policy)
    query = [(0, 0, 1)]
    return system, PairSet.of(system, Gaps.of(jm, query)), np.array(query)


def rows_of(jm, policy):
    return Rows.of(*reached(jm, policy))


@pytest.mark.parametrize("worth", [1e300, 0.0])
def test_errors_of_means_are_as_large_as_their_bound_in_the_worst_case(worth, monkeypatch):
    """Means that are wrong by one along a mode that lasts: the bound is that error, and little
    more. Guards 1 / (1 - gamma), and the two parts of a step."""
    monkeypatch.setattr("jmdp_lib.laws.rows._WORTH", worth)
    rows = rows_of(two_ends(), [0, 0, 0])
    assert (rows.factors.max() == 1.0) == (worth == 0.0)
    made = rows.outcomes
    moves = np.zeros((rows.factors.size, rows.factors.size))
    weights = made.weights * rows.factors[made.row] * (1.0 - 2.0 * made.flipped)
    np.add.at(moves, (made.row, made.after), weights)
    left = np.eye(len(moves)) - moves
    exact = np.linalg.solve(left, np.bincount(made.row, made.weights * made.d))
    assert np.abs(rows.means - exact).max() <= rows.mean_error < 1e-8
    wrong = exact + np.linalg.solve(left, np.ones(len(moves)))
    wrong[rows.gaps[-1] + 1] = 0.0
    true = np.abs(wrong - exact).max()
    bound = replace(rows, rounding=0.0).error_of_means(wrong)
    assert true <= bound + 1e-12
    assert true > bound / 1.5


@pytest.mark.parametrize("worth", [1e300, 0.0])
def test_rounding_of_rewards_is_allowed_for(worth, monkeypatch):
    """Rewards of nearly half a unit of the twelfth digit for ever are rounded to zero. Guards
    `Rows.digits`, by which law.mean holds for the model as it is given, too."""
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
    rng = np.random.default_rng(0)
    rows = rows_of(one_state(rng.normal(size=(size, 2))), [[1.0, 0.0]])
    eps = 2.0**-52
    assert rows.rounding == pytest.approx((3 * size * 0.5 + 16) * eps, rel=1e-12, abs=0.0)
    assert Convex(rows).slack(3.0) == pytest.approx(12.0 * rows.rounding, rel=1e-12, abs=0.0)
    lost = replace(rows, rounding=1.0).mean_error
    sizes = np.abs(rows.outcomes.d).max() + np.abs(rows.means).max()
    assert lost == pytest.approx(sizes / 0.5, rel=1e-9)


def test_a_sweep_allows_for_its_roundings():
    """A law that is a point: what a step adds to its bounds is the slack."""
    rows = replace(rows_of(two_ends(), [0, 0, 0]), rounding=1e-7)
    x = np.arange(-64, 65) / 8.0
    convex = Convex(rows)
    convex.refine(x)
    for sign, bounds in ((1.0, convex.above), (-1.0, convex.below)):
        bounds[:, 0] = np.abs(x - rows.means[:, None])  # exact, and so are the slopes
        out = np.empty((4, x.size))
        follow(out, 0, bounds, *convex.step())
        assert sign * (out[0] - bounds[0, 0]) == pytest.approx(convex.slack(x[-1]), rel=1e-6)


def test_errors_of_means_widen_every_bound(monkeypatch):
    """With means that may be wrong by 0.001, psi starts as far off on either side, and phi, half of
    psi(x) + x - E G, ends half as far off."""
    jm = two_ends()
    starts, phis = [], []
    for error in (0.0, 1e-3):
        monkeypatch.setattr(Rows, "mean_error", error)
        convex = Convex(rows_of(jm, [0, 0, 0]))
        convex.refine(np.arange(-64, 65) / 8.0)
        starts.append([convex.above[:, 0], -convex.below[:, 0]])
        law = law_of(jm, [0, 0, 0])
        phis.append([law.phi.above[[0, -1]], -law.phi.below[[0, -1]]])
    assert np.subtract(*starts[::-1]) == pytest.approx(1e-3, rel=1e-6)
    assert np.subtract(*phis[::-1]) == pytest.approx(0.5e-3, rel=1e-2)  # at both ends


def test_complements_and_means_allow_for_their_roundings(monkeypatch):
    """One minus a probability loses one; the mean of a law four, beside what is known of it."""
    rows = rows_of(two_ends(), [0, 0, 0])
    stochastic = Stochastic(rows)
    stochastic.x = np.arange(-1.0, 2.0)
    stochastic.bounds = np.full((2 * rows.factors.size, 1, 7), 0.5)
    low, high = stochastic.bracket(stochastic.x)
    eps = 2.0**-52
    assert 0.5 - low == pytest.approx(eps, rel=0.1, abs=0.0)
    assert (high == 0.5).all()
    monkeypatch.setattr(Rows, "mean_error", 0.0)
    monkeypatch.setattr(Rows, "digits", 0.0)
    law = law_of(two_ends(), [0, 0, 0])  # whose mean is 2
    assert np.ptp(law.mean) == pytest.approx(2.0 * 4.0 * eps * 2.0, rel=0.2, abs=0.0)


def test_averages_of_quantiles_are_rounded_outwards():
    """A thousand atoms whose distribution function is known exactly."""
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


def test_sweeps_of_stochastic_order_allow_for_their_roundings():
    """A gap that is 1 or -1: its half is summed with the rounding of a billion draws, about."""
    jm = one_state([[1.0, 0.0], [-1.0, 0.0]])
    rows = replace(rows_of(jm, [1]), rounding=1e-7)
    stochastic = Stochastic(rows)
    stochastic.refine(np.arange(-2.0, 3.0))
    stochastic.settle(1e-13)
    found = stochastic.bounds[stochastic.gaps[:, 0], 0, 4]  # P(G < 0), and of -G
    assert found - 0.5 == pytest.approx(rows.rounding, rel=1e-6)


def test_a_user_may_have_floating_point_errors_raised():
    """What underflows is zero, and no error; the brackets are the same."""
    shop = jl.inventory(6, 3, gamma=0.9)
    asked = {"gaps": [(3, 1, 2)], "width": 0.1, "points": 64}
    usual = jl.laws.gap_law(shop, policy := jl.uniform_policy(shop), **asked)[0]
    with np.errstate(all="raise"):
        (law,) = jl.laws.gap_law(shop, policy, **asked)
        assert [law.prob_worse, law.cvar(0.1)] == [usual.prob_worse, usual.cvar(0.1)]
        jl.large.local_jipe2(implicit(jl.windy_gridworld(10)), jl.goal_policy(10), states=[4])
