"""The law of gaps: brackets of their distribution functions, narrowed as far as is asked for.

Every bound that an order gives is valid, after any number of sweeps and on any grid. So coarse
grids come first, and each hands its bounds to the next one, of half the spacing. Stochastic
order is exact where rewards lie on a lattice, convex order is narrow everywhere else: stochastic
order is refined only as long as it says something that convex order does not.

Read points are where brackets are narrowed to `width`, of all gaps alike. The user names them by
`at=`; another one that is always read is added in `_read_points`, and all else follows: `_Search`
has them in units as `reads`, both orders get them as points of their grids, a bracket that stays
too wide there is warned of, and `GapLaw.at` lists them, zero first. What a law says at any point,
read or not, is in `brackets`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy
from jmdp_lib.laws.brackets import GapLaw, PhiBracket, StepBracket, joined, rescaled
from jmdp_lib.laws.convex import Convex
from jmdp_lib.laws.rows import Rows, RowSizes, law_bytes
from jmdp_lib.laws.stochastic import Stochastic, line, with_reads
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import AskedGaps, CollapsedT2
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers.fixed_point import warn

_COARSE = 16  # spacings on either side of zero in the first grid
_NEARBY = 512  # points that are read for the gaps at the read points, at most
_TRUSTED = 256  # spacings among likely gaps from which on widths halve with the spacing
_SETTLED = 6.0  # sweeps end when psi moves by less than spacing^2 / bulk over this
_ON_THE_WAY = 1.5  # the same for grids that only lead to finer ones
_WORK = 5e10  # numbers that are read, at most
_EXACT = 1e-13  # sweeps of stochastic order end when probabilities move by less
_EPS = float(np.finfo(float).eps)


def gap_law(
    jm: JMDP,
    policy: Policy,
    queries: ArrayLike | None = None,
    width: float = 1e-3,
    coupling: str = "joint",
    at: ArrayLike = (),
    points: int = 512,
    max_points: int = 4096,
) -> list[GapLaw]:
    """The laws of gaps $G = Z(s, a) - Z(s, b)$, one for each, as brackets that contain the truth.

    policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
    queries: (N, 3), rows (state, a, b); unless given, all pairs a < b of all states.
    width: how wide the brackets of $P(G < x)$ and $P(G <= x)$ may be at the read points.
    coupling: as in `jipe2`.
    at: the read points, beside zero, which is always one of them.
    points: the least number of grid points where gaps are likely to be. More of them narrow the
        brackets everywhere: those of probabilities in proportion to their distance, those of
        `cvar` with its square.
    max_points: the largest size of the whole grid. If it, or a fixed amount of work, cannot be
        enough for `width`, no time is spent on it: a `ConvergenceWarning` says what was reached,
        and what `width` would take. Each law's `width` says what was reached, too.

    Bounds are rounded outwards. Rewards, their differences, and read points are rounded to the
    twelfth digit of the largest reward, so that 0.1 + 0.2 - 0.3 is zero: the brackets are for the
    model rounded so.

    If rewards are random, states are many, and you need a probability, a sample is the better
    choice: `estimate_gaps`, or `GapLaw.from_sample` with pairs of `simulate_pairs`. For one gap of
    30 random states (benchmarks/gap_law.py), `gap_law` took 10 processor seconds and left
    $P(G <= 0)$ in a bracket 0.008 wide; a million pairs took 4, and their 95% interval is 0.002
    wide. For `cvar` it is the other way round: the bracket is 70 times narrower, and certain.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> law, = jl.laws.gap_law(jm, jl.goal_policy(3), queries=[(4, 0, 2)], at=[1.0])
        >>> print("P(up is worse than down) from {:.4f} to {:.4f}".format(*law.prob_worse))
        P(up is worse than down) from 0.0062 to 0.0062
        >>> print("P(both are the same) from {:.4f} to {:.4f}".format(*law.prob_tie))
        P(both are the same) from 0.0231 to 0.0231
        >>> print("P(up gains 1 at most) from {:.4f} to {:.4f}".format(*law.cdf(1.0)))
        P(up gains 1 at most) from 0.1541 to 0.1541
        >>> print("the worst tenth averages {:.3f} to {:.3f}".format(*law.cvar(0.1)))
        the worst tenth averages 0.365 to 0.366
    """
    system = CollapsedT2.of("gap_law", jm, policy, coupling)
    asked, gaps = _checked_gaps(jm, queries)
    checks.positive("width", width)
    points = checks.at_least("points", points, 1)
    max_points = checks.at_least("max_points", max_points, max(points, 16))
    reads = _read_points(at)
    if not len(gaps):  # one action has no gaps
        return []
    pairs = PairSet.of(system, asked)
    assert pairs is not None
    sizes = RowSizes.of(system, pairs, gaps)
    needed = law_bytes(sizes.rows, sizes.outcomes, points)
    what = f"the law of gaps that reach {pairs.size:,} pairs, at {points:,} points"
    require(needed, what, "ask for fewer queries or points")
    rows = Rows.of(system, pairs, gaps)
    search = _Search(rows, rows.rounded(reads), width, points, max_points)
    grid, missed = search.run()
    if missed:
        warn(f"gap_law: {missed}")
    return search.laws(grid, gaps, reads)


def _checked_gaps(jm: JMDP, queries: ArrayLike | None) -> tuple[AskedGaps, Ints]:
    """The gaps that are asked for, and (Q, 3) the same in the order and with the signs given."""
    if queries is not None:
        shape = checks.as_array("queries", queries).shape
        if len(shape) != 2 or shape[1] != 3:
            meant = f": did you mean [{queries!r}]?" if shape == (3,) else ""
            raise ValueError(
                f"queries must be rows (state, a, b), (N, 3), got shape {shape}{meant}"
            )
    asked = AskedGaps.of(jm, queries)
    rows = np.stack([asked.states, asked.first, asked.second], axis=1)
    return asked, rows if queries is None else np.array(queries)


def _read_points(at: ArrayLike) -> Floats:
    """(P,) zero and the read points, each once."""
    given = np.asarray(at, dtype=float).ravel()
    checks.refuse("at", given, ~np.isfinite(given), "is not finite", ["entry"])
    return np.append(0.0, np.unique(given[given != 0.0]))


@dataclass(frozen=True)
class _Grid:
    """Bounds of all rows on one grid of each order, in units of `Rows.unit`, as all of the search.

    points: (n, 2), and cuts, the bounds there in stochastic order. x: (m,), and above, below, the
    bounds there in convex order. new_cuts: whether stochastic order is on this grid, too, or still
    on an older one. bulk: gaps are likely to be within it of zero. work: how many numbers its
    sweeps read.
    """

    spacing: float
    bulk: float
    points: Floats
    cuts: Floats
    x: Floats
    above: Floats
    below: Floats
    new_cuts: bool = True
    work: float = 0.0

    @property
    def spacings(self) -> float:
        """How many of them there are where gaps are likely."""
        return 2.0 * self.bulk / self.spacing


@dataclass(frozen=True)
class _Search:
    """The loop over grids. reads: (P,) the read points, in units."""

    rows: Rows
    reads: Floats
    width: float
    points: int
    max_points: int

    @cached_property
    def stochastic(self) -> Stochastic:
        return Stochastic(self.rows)

    @cached_property
    def convex(self) -> Convex:
        return Convex(self.rows)

    @cached_property
    def nearby(self) -> tuple[Floats, bool]:
        """(n, 2) points that stochastic order reads, and whether there it is exact."""
        return self.stochastic.nearby(self.reads, min(_NEARBY, self.max_points // 8))

    def run(self) -> tuple[_Grid, str]:
        """The last grid, and a sentence about what was missed; none if nothing was."""
        grid = self.first()
        work = 0.0
        with progress(None, "gap law", "grid") as bar:
            while True:
                grid = self.settled(grid)
                bar.update()
                work += grid.work
                widths, telling = self.widths(grid)
                excess = widths.max() / self.width  # above one: too wide
                spacing = self.next_spacing(grid)
                finer = line(spacing, grid.bulk, self.rows.top)
                over = len(finer) > self.max_points
                over |= work + grid.work * len(finer) / grid.x.size > _WORK
                needed = grid.x.size * max(excess, 1.0)
                trusted = grid.spacings >= _TRUSTED
                done = excess <= 1.0 or (trusted and needed > self.max_points)
                enough = grid.spacings >= self.points
                if over or (done and enough) or self.rows.top == 0.0:
                    return grid, self.verdict(grid, widths, needed) if excess > 1.0 else ""
                grid = self.refined(grid, spacing, finer, trusted and telling)

    def next_spacing(self, grid: _Grid) -> float:
        """Half of the last one; a quarter as long as nobody needs the grid in between."""
        wanted = min(_TRUSTED, self.points)
        return grid.spacing / (4.0 if 2.0 * grid.spacings < wanted else 2.0)

    def first(self) -> _Grid:
        """The coarsest grid, and bounds from nothing but the means and the largest gaps."""
        top = self.rows.top or 1.0
        spacing = 2.0 ** np.floor(np.log2(top / min(_COARSE, self.max_points // 8)))
        base = line(spacing, top, top)
        points = joined(base, self.nearby[0])
        x = with_reads(base, self.reads)
        self.require(len(points), x.size)
        above = self.convex.above(x)
        below = self.convex.below(x)
        cuts = self.stochastic.start(points)
        return _Grid(spacing, top, points, cuts, x, above, below)

    def refined(self, grid: _Grid, spacing: float, finer: Floats, with_cuts: bool) -> _Grid:
        """The bounds on a finer line, those of stochastic order only if that may tell something."""
        x = with_reads(finer, self.reads)
        points = grid.points
        cuts = grid.cuts
        if with_cuts:
            points = joined(finer, self.nearby[0])
        self.require(len(points), x.size)
        if with_cuts:
            cuts = self.stochastic.refined(grid.points, cuts, points)
        above = self.convex.refined(grid.x, grid.above, x)
        below = self.convex.refined(grid.x, grid.below, x)
        return _Grid(spacing, grid.bulk, points, cuts, x, above, below, with_cuts)

    def require(self, points: int, x: int) -> None:
        """Refuse a grid that does not fit into memory."""
        most = max(points, x)
        needed = law_bytes(self.rows.factors.size, self.rows.outcomes.row.size, most)
        smaller = f"max_points={x // 2:,} or fewer queries take less"
        require(needed, f"the law of gaps on a grid of {most:,} points", smaller)

    def settled(self, grid: _Grid) -> _Grid:
        """The same grid after sweeps, until little changes; and where gaps are likely, by now."""
        step = self.convex.step(grid.x)
        may_be_the_last = grid.spacings >= self.points
        share = _SETTLED if may_be_the_last else _ON_THE_WAY
        tol = grid.spacing**2 / (share * grid.bulk)
        upper = self.convex.settle(step, grid.above, tol)
        lower = self.convex.settle(step.from_below, grid.below, tol)
        work = float(step.groups.numbers_read) * grid.x.size * (upper + 3 * lower)
        if grid.new_cuts:
            enough = 0.1 * self.width if grid.spacings >= _TRUSTED else self.width
            small = _EXACT if self.nearby[1] else max(enough, 1e-4)
            sweeps = self.stochastic.settle(grid.points, grid.cuts, small)
            work += float(self.stochastic.numbers_read) * grid.points.size * sweeps
        bulk = min(grid.bulk, self.convex.likely(grid.x, grid.above))
        return replace(grid, bulk=bulk, work=work)

    def widths(self, grid: _Grid) -> tuple[Floats, bool]:
        """(P,) of the widest bracket at each read point; and whether one that is still too wide
        would be wider without stochastic order."""
        steps = StepBracket(grid.points, *self.stochastic.bracket(grid.cuts))
        convex = [self.phi(grid, n).cdf(self.reads) for n in range(self.rows.asked.size)]
        least, most = np.swapaxes(convex, 0, 1)  # (Q, P) each
        widest = np.zeros(self.reads.size)
        telling = False
        for strict in (True, False):
            low, high = steps.cdf(self.reads, strict)
            both = np.minimum(high, most) - np.maximum(low, least)
            telling |= bool(((both > self.width) & (both < 0.9 * (most - least))).any())
            widest = np.maximum(widest, both.max(0))
        return widest, telling

    def phi(self, grid: _Grid, n: int) -> PhiBracket:
        """What convex order says of gap n, in units: phi(x) is half of psi(x) + x - E G."""
        row = self.rows.asked[n]
        off = self.rows.mean_error
        x = grid.x[1:-1]
        past = x - self.rows.means[row]
        value, left, right = grid.below[row, :, 1:-1]
        above = 0.5 * (grid.above[row, 0, 1:-1] + past + off)
        slopes = 0.5 * (1.0 + left), 0.5 * (1.0 + right)
        return PhiBracket(x, above, 0.5 * (value + past - off), *slopes)

    def verdict(self, grid: _Grid, widths: Floats, needed: float) -> str:
        """What was reached where, and what would be needed."""
        where = self.reads[widths.argmax()] * self.rows.unit
        more = needed / grid.x.size
        return (
            f"brackets at {where:g} are up to {widths.max():.2g} wide, not {self.width:g}, on a "
            f"grid of {grid.x.size:,} points; that would take about {needed:,.0f} points and "
            f"{more:,.0f} times as long (max_points={self.max_points:,}, and work is bounded). "
            "For a probability a sample may be the better choice: estimate_gaps, or "
            "GapLaw.from_sample of a million simulate_pairs"
        )

    def laws(self, grid: _Grid, gaps: Ints, wanted: Floats) -> list[GapLaw]:
        """What both orders say, in the unit of the rewards; wanted: (P,) the read points in it."""
        unit = self.rows.unit
        points = _scaled(grid.points, unit, self.reads, wanted)
        found = zip(gaps.tolist(), *self.stochastic.bracket(grid.cuts), strict=True)
        laws = []
        for n, (gap, low, high) in enumerate(found):
            mean = unit * self.rows.means[self.rows.asked[n]]
            off = unit * (self.rows.mean_error + self.rows.digits) + 4.0 * _EPS * abs(mean)
            phi = self.phi(grid, n).scaled(unit, self.reads, wanted)
            steps = StepBracket(points, low, high)
            ends = (float(mean - off), float(mean + off))
            laws.append(GapLaw(tuple(gap), ends, steps, phi, tuple(wanted.tolist())))
        return laws


def _scaled(points: Floats, unit: float, reads: Floats, wanted: Floats) -> Floats:
    """Points (n, 2) in the unit of the rewards; one that this rounds becomes an interval.

    The read points, `reads` (P,) in units, become `wanted`.
    """
    ends = points if unit == 1.0 else np.nextafter(points * unit, [-np.inf, np.inf])
    known = np.isin(points, np.append(reads, 0.0 - reads))
    ends = np.where(known, rescaled(points, unit, reads, wanted), ends)
    return np.maximum.accumulate(ends.ravel()).reshape(points.shape)
