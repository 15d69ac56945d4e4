"""The law of gaps: brackets of their distribution functions, narrowed as far as is asked for.

Stochastic order is exact where rewards lie on a lattice; one grid is enough for it. Convex order is
narrow everywhere else. Every bound that it gives is valid, after any number of sweeps and on any
grid. So coarse grids come first, and each hands its bounds to the next one, of half the spacing.

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
from jmdp_lib.laws.brackets import GapLaw, PhiBracket, StepBracket
from jmdp_lib.laws.convex import Convex, line, with_reads
from jmdp_lib.laws.rows import Rows, RowSizes, law_bytes, rounded
from jmdp_lib.laws.stochastic import Stochastic
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import AskedGaps, CollapsedT2
from jmdp_lib.operators.reachable import PairSet
from jmdp_lib.solvers.fixed_point import warn

_COARSE = 16  # spacings on either side of zero in the first grid
_TRUSTED = 256  # spacings among likely gaps from which on widths halve with the spacing
_SETTLED = 6.0  # sweeps end when psi moves by less than spacing^2 / bulk over this
_ON_THE_WAY = 1.5  # the same for grids that only lead to finer ones
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
    max_points: the largest size of the whole grid. If it cannot be enough for `width`, no time is
        spent on it: a `ConvergenceWarning` says what was reached, and what `width` would take. Each
        law's `width` says what was reached, too.

    Bounds are rounded outwards. Rewards, their differences, and points at which a law is asked are
    rounded to the twelfth digit of the largest reward, so that 0.1 + 0.2 - 0.3 is zero: the
    brackets are for the model rounded so.

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
        P(up gains 1 at most) from 0.1531 to 0.1541
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
    search = _Search(rows, rounded(reads / rows.unit), width, points, max_points)
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
    """Bounds of all rows in convex order, in units of `Rows.unit`, as all of the search.

    x: (n,), and above, below, the bounds there. bulk: gaps are likely to be within it of zero.
    """

    spacing: float
    bulk: float
    x: Floats
    above: Floats
    below: Floats

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
    def steps(self) -> StepBracket:
        """What stochastic order says of all gaps, in units."""
        return Stochastic(self.rows).bracket(self.reads, 0.1 * self.width)

    @cached_property
    def convex(self) -> Convex:
        return Convex(self.rows)

    def run(self) -> tuple[_Grid, str]:
        """The last grid, and a sentence about what was missed; none if nothing was."""
        top = self.rows.top or 1.0
        spacing = 2.0 ** np.floor(np.log2(top / min(_COARSE, self.max_points // 8)))
        x = self.finer(spacing, top)
        grid = self.settled(_Grid(spacing, top, x, self.convex.above(x), self.convex.below(x)))
        with progress(None, "gap law", "grid") as bar:
            while True:
                bar.update()
                widths = self.widths(grid)
                excess = widths.max() / self.width  # above one: too wide
                needed = grid.x.size * max(excess, 1.0)
                hopeless = grid.spacings >= _TRUSTED and needed > self.max_points
                done = (excess <= 1.0 or hopeless) and grid.spacings >= self.points
                x = self.finer(grid.spacing / 2.0, grid.bulk)
                if done or x.size > self.max_points + 2 or self.rows.top == 0.0:
                    return grid, self.verdict(grid, widths, needed) if excess > 1.0 else ""
                bounds = self.convex.refined(grid.x, grid.above, grid.below, x)
                grid = self.settled(_Grid(grid.spacing / 2.0, grid.bulk, x, *bounds))

    def finer(self, spacing: float, bulk: float) -> Floats:
        """(n,) the points of a grid."""
        x = with_reads(line(spacing, bulk, self.rows.top), self.reads, self.rows.top)
        needed = law_bytes(self.rows.factors.size, self.rows.outcomes.row.size, x.size)
        smaller = f"max_points={x.size // 2:,} or fewer queries take less"
        if x.size <= self.max_points:
            require(needed, f"the law of gaps on a grid of {x.size:,} points", smaller)
        return x

    def settled(self, grid: _Grid) -> _Grid:
        """The same grid after sweeps, until little changes; and where gaps are likely, by now."""
        step = self.convex.step(grid.x)
        share = _SETTLED if grid.spacings >= self.points else _ON_THE_WAY
        tol = grid.spacing**2 / (share * grid.bulk)
        self.convex.settle(step, grid.above, tol)
        self.convex.settle(step._replace(lower=True), grid.below, tol)
        return replace(grid, bulk=min(grid.bulk, self.convex.likely(grid.x, grid.above)))

    def widths(self, grid: _Grid) -> Floats:
        """(P,) of the widest bracket at each read point."""
        convex = [self.phi(grid, n).cdf(self.reads) for n in range(self.rows.asked.size)]
        least, most = np.swapaxes(convex, 0, 1)  # (Q, P) each
        ends = [self.steps.cdf(self.reads, strict) for strict in (True, False)]
        both = [np.minimum(high, most) - np.maximum(low, least) for low, high in ends]
        return np.max(both, axis=(0, 1))

    def phi(self, grid: _Grid, n: int) -> PhiBracket:
        """What convex order says of gap n: phi(x) is half of psi(x) + x - E G."""
        row = self.rows.asked[n]
        x = grid.x[1:-1]
        past = x - self.rows.means[row]
        # What follows from phi is computed, and brought to the unit of the rewards, by a few sums.
        off = 0.5 * self.rows.mean_error + 8.0 * _EPS * x[-1]
        value, slope = grid.below[row, :, 1:-1]
        above = 0.5 * (grid.above[row, 0, 1:-1] + past) + off
        lines = np.stack([0.5 * (value + past) - off, 0.5 * (1.0 + slope)])
        return PhiBracket(x, above, *np.where(lines[0] > 0.0, lines, 0.0))  # phi is not negative

    def verdict(self, grid: _Grid, widths: Floats, needed: float) -> str:
        """What was reached where, and what would be needed."""
        where = self.reads[widths.argmax()] * self.rows.unit
        more = needed / grid.x.size
        return (
            f"brackets at {where:g} are up to {widths.max():.2g} wide, not {self.width:g}, on a "
            f"grid of {grid.x.size:,} points; that would take about {needed:,.0f} points and "
            f"{more:,.0f} times as long (max_points={self.max_points:,}). "
            "For a probability a sample may be the better choice: estimate_gaps, or "
            "GapLaw.from_sample of a million simulate_pairs"
        )

    def laws(self, grid: _Grid, gaps: Ints, at: Floats) -> list[GapLaw]:
        """What both orders say; at: (P,) the read points in the unit of the rewards."""
        unit = self.rows.unit
        laws = []
        for n, gap in enumerate(gaps.tolist()):
            mean = unit * self.rows.means[self.rows.asked[n]]
            off = unit * (self.rows.mean_error + self.rows.digits) + 4.0 * _EPS * abs(mean)
            law = GapLaw(
                query=tuple(gap),
                mean=(float(mean - off), float(mean + off)),
                steps=StepBracket(self.steps.x, self.steps.low[n], self.steps.high[n]),
                phi=self.phi(grid, n),
                at=tuple(at.tolist()),
                unit=unit,
            )
            laws.append(law)
        return laws
