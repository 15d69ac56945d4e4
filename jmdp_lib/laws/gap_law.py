"""The law of gaps: brackets of their distribution functions, narrowed as far as is asked for.

Every bound that an order gives is valid, after any number of sweeps and on any grid. So coarse
grids come first, and each hands its bounds to the next one, of half the spacing. Stochastic
order is exact at zero where rewards lie on a lattice, convex order is narrow elsewhere: stochastic
order is swept only as long as it says something that convex order does not.

Read points are where brackets are narrowed to `width`, of all gaps alike. The user names them by
`at=`; another one that is always read is added in `_read_points`, and all else follows: `_Search`
has them in units as `reads`, both orders get them as points of their grid, a bracket that stays
too wide there is warned of, and `GapLaw.at` lists them, zero first. What a law says at any point,
read or not, is in `brackets`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import CollapsedT2, Gaps, PairSet
from jmdp_lib.laws.brackets import GapLaw, PhiBracket, StepBracket
from jmdp_lib.laws.convex import Convex
from jmdp_lib.laws.rows import Rows
from jmdp_lib.laws.stochastic import Stochastic, line, with_reads
from jmdp_lib.machine import progress, require
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import warn

_COARSE = 16  # spacings on either side of zero in the first grid
_TRUSTED = 256  # spacings among likely gaps from which on widths halve with the spacing
_SETTLED = 12.0  # sweeps end when psi moves by less than spacing^2 / bulk over this
_ON_THE_WAY = 2.0  # the same for grids that only lead to finer ones
_WORK = 7e10  # numbers that are read and added, at most
_EXACT = 1e-13  # sweeps of stochastic order end when probabilities move by less
_POINT = 200.0  # bytes that a row takes for each point of a grid, roughly
_EPS = float(np.finfo(float).eps)


@np.errstate(under="ignore")  # where a user has errors raised: what underflows is zero
def gap_law(
    jm: JMDP,
    policy: Policy,
    *,
    gaps: ArrayLike | None = None,
    states: ArrayLike | None = None,
    width: float = 1e-3,
    coupling: CouplingName = DEFAULT_COUPLING,
    at: ArrayLike = (),
    points: int | None = None,
    max_points: int = 4096,
) -> list[GapLaw]:
    """The laws of gaps $G = Z(s, a) - Z(s, b)$, one for each, as brackets that contain the truth.

    Bounds are rounded outwards. Rewards, their differences, and read points are rounded to the
    twelfth digit of the largest reward, so that 0.1 + 0.2 - 0.3 is zero: the brackets are for the
    model rounded so. What all rewards have in common (`JMDP.reward_offset`) is subtracted first.

    If rewards are random, states are many, and you need a probability, a sample is the better
    choice: `estimate_gaps`, or `GapLaw.from_sample` with pairs of `simulate_pairs`. For one gap of
    30 random states (benchmarks/gap_law.py), `gap_law` took 8 processor seconds and left
    $P(G <= 0)$ in a bracket 0.008 wide; the 95% interval of ten million pairs is 0.0006 wide. For
    `cvar` it is the other way round: the bracket is 0.0001 standard deviations wide, and certain.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        gaps: (N, 3), rows (state, a, b); unless given, all pairs a < b of all states.
        states: (N,), for all pairs a < b of these states; instead of `gaps`.
        width: how wide the brackets of $P(G < x)$ and $P(G <= x)$ may be at the read points; 0.001
            unless given.
        coupling: which branches share a draw, as in `jipe2`: "joint" unless given.
        at: (P,) the read points, in the unit of the rewards, beside zero, which is always one.
        points: the least number of grid points where gaps are likely to be; by default 12 / width,
            and at most 512. More of them narrow the brackets everywhere: those of probabilities in
            proportion to their distance, those of `cvar` with its square.
        max_points: the largest size of the whole grid, 4096 unless given. If it, or a fixed amount
            of work, cannot be enough for `width`, no time is spent on it: a `ConvergenceWarning`
            says what was reached, and what `width` would take.

    Returns:
        A `GapLaw` for each of the gaps, in the order of `gaps`. Its `width` says what was reached.

    Raises:
        ValueError: an argument makes no sense.
        MemoryError: the pairs of states that the gaps reach, or the grid, do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> law, = jl.laws.gap_law(jm, jl.goal_policy(3), gaps=[(4, 0, 2)], at=[1.0])
        >>> print("P(up is worse than down) from {:.4f} to {:.4f}".format(*law.prob_worse))
        P(up is worse than down) from 0.0062 to 0.0062
        >>> print("P(both are the same) from {:.4f} to {:.4f}".format(*law.prob_tie))
        P(both are the same) from 0.0231 to 0.0231
        >>> print("P(up gains 1 at most) from {:.4f} to {:.4f}".format(*law.cdf(1.0)))
        P(up gains 1 at most) from 0.1531 to 0.1541
        >>> print("the worst tenth averages {:.3f} to {:.3f}".format(*law.cvar(0.1)))
        the worst tenth averages 0.365 to 0.366
    """
    # source: benchmarks/gap_law.md: random, 30 states: time; P; CVaR
    system = CollapsedT2.of("gap_law", jm, policy, coupling)
    asked = Gaps.of(jm, gaps, states)
    listed = np.stack([asked.states, asked.first, asked.second], axis=1)
    if gaps is not None:  # in the order and with the signs given
        listed = np.array(gaps, np.int64)
    width = checks.positive("width", width)
    if points is None:
        points = math.ceil(min(512.0, 12.0 / width))
    points = checks.at_least("points", points, 1)
    max_points = checks.at_least("max_points", max_points, max(points, 16))
    reads = _read_points(at)
    if not len(listed):  # one action has no gaps
        return []
    pairs = PairSet.of(system, asked)
    assert pairs is not None
    rows = Rows.of(system, pairs, listed)
    search = _Search(
        rows, Stochastic(rows), Convex(rows), rows.rounded(reads), width, points, max_points
    )
    missed = search.run()
    if missed:
        warn(f"gap_law: {missed}")
    return search.laws(listed, reads)


def _read_points(at: ArrayLike) -> Floats:
    """(P,) zero and the read points, each once."""
    given = checks.floats("at", np.append(at, 0.0), "entry")
    return np.append(0.0, np.unique(given[given != 0.0]))


@dataclass
class _Search:
    """The loop over grids, each of half the spacing of the one before, in units of `Rows.unit`.

    cuts, psi: bounds in stochastic and in convex order; the former stay on their grid while they
    are not swept. reads: (P,) the read points, in units and rounded as rewards are.
    """

    rows: Rows
    cuts: Stochastic
    psi: Convex
    reads: Floats
    width: float
    points: int
    max_points: int

    def run(self) -> str:
        """Narrow the bounds of both orders; returns a sentence about what was missed, if any."""
        top = self.rows.top or 1.0
        spacing = 2.0 ** np.floor(np.log2(top / min(_COARSE, self.max_points // 8)))
        bulk = top  # gaps are likely to be within it of zero
        base = line(spacing, bulk, top)
        refine_cuts = True
        work = 0.0
        with progress(None, "gap law", "grid") as bar:
            while True:
                self.refine(base)
                share = _SETTLED if 2.0 * bulk >= self.points * spacing else _ON_THE_WAY
                added = self.psi.settle(spacing**2 / (share * bulk))
                if refine_cuts:
                    self.cuts.refine(self.psi.x)
                    added += self.cuts.settle(_EXACT if self.cuts.exact else 0.1 * self.width)
                work += added
                bar.update()
                bulk = min(bulk, self.psi.likely())
                spacings = 2.0 * bulk / spacing  # where gaps are likely
                widths, telling = self.widths()
                excess = widths.max() / self.width  # above one: too wide
                size = self.psi.x.size
                needed = size * max(excess, 1.0)
                trusted = spacings >= _TRUSTED
                done = excess <= 1.0 or (trusted and needed > self.max_points)
                # A quarter, as long as nobody needs the grid in between.
                spacing /= 4.0 if 2.0 * spacings < min(_TRUSTED, self.points) else 2.0
                base = line(spacing, bulk, top)
                over = base.size > self.max_points or work + added * base.size / size > _WORK
                if over or (done and spacings >= self.points) or self.rows.top == 0.0:
                    return self.verdict(widths, needed) if excess > 1.0 else ""
                refine_cuts = trusted and telling

    def refine(self, base: Floats) -> None:
        """Convex order on a new line of points."""
        x = with_reads(base, np.append(self.reads, self.rows.halfway(self.reads)))
        size = max(x.size, self.points)  # of the last grid, at least
        needed = size * (_POINT * self.rows.factors.size + 20.0 * self.psi.num_reads)
        smaller = f"max_points={size // 2:,}, or fewer points or gaps, take less"
        require(needed, f"the law of gaps on a grid of {size:,} points", smaller)
        self.psi.refine(x)

    def widths(self) -> tuple[Floats, bool]:
        """(P,) of the widest bracket at each read point; and whether one that is still too wide
        would be wider without stochastic order."""
        at = 2 * np.searchsorted(self.psi.x, self.reads) + [[0], [1]]
        low, high = self.cuts.bracket(self.psi.x)[:, :, at]  # (Q, 2, P) each
        convex = [self.psi.bracket(n).cdf(self.reads) for n in range(self.rows.asked.size)]
        least, most = np.swapaxes(convex, 0, 1)[:, :, None]  # (Q, 1, P) each
        both = np.minimum(high, most) - np.maximum(low, least)
        telling = (both > self.width) & (both < 0.9 * (most - least))
        return both.max((0, 1)), bool(telling.any())

    def verdict(self, widths: Floats, needed: float) -> str:
        """What was reached where, and what would be needed."""
        size = self.psi.x.size
        where = self.reads[widths.argmax()] * self.rows.unit
        return (
            f"brackets at {where:g} are up to {widths.max():.2g} wide, not {self.width:g}, on a "
            f"grid of {size:,} points; that would take about {needed:,.0f} points and "
            f"{needed / size:,.0f} times as long (max_points={self.max_points:,}, and work is "
            "bounded). For a probability a sample may be the better choice: estimate_gaps, or "
            "GapLaw.from_sample of a million simulate_pairs"
        )

    def laws(self, gaps: Ints, at: Floats) -> list[GapLaw]:
        """What both orders say, in the unit of the rewards. at: (P,) the read points in it.

        A point that this rounds becomes an interval. Bounds of phi are widened by as much as its
        points may move: a rounding, or the twelfth digit of the largest reward at read points.
        """
        unit = self.rows.unit
        x = unit * self.psi.x
        ends = np.stack([x, x], axis=1)
        if unit != 1.0:
            ends = np.nextafter(ends, [-np.inf, np.inf])
        given = np.searchsorted(self.psi.x, self.reads)
        x[given] = at
        ends[given] = at[:, None]
        ends = np.maximum.accumulate(ends.ravel()).reshape(-1, 2)
        moved = (1e-12 * unit + 4.0 * _EPS * np.abs(x))[1:-1]  # no slope of phi exceeds one
        laws = []
        steps = self.cuts.bracket(self.psi.x)
        for n, (gap, low, high) in enumerate(zip(gaps.tolist(), *steps, strict=True)):
            mean = float(unit * self.rows.means[self.rows.asked[n]])
            error = unit * (self.rows.mean_error + self.rows.digits) + 4.0 * _EPS * abs(mean)
            phi = self.psi.bracket(n)
            law = GapLaw(
                gap=tuple(gap),
                mean=(mean - error, mean + error),
                steps=StepBracket(ends, low, high),
                phi=PhiBracket(
                    x[1:-1], unit * phi.above + moved, unit * phi.below - moved, phi.slopes
                ),
                at=tuple(at.tolist()),
            )
            laws.append(law)
        return laws
