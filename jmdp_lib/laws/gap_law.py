"""Distributions of gaps: brackets that are narrowed to a requested width.

The bounds of both orders are valid after any number of sweeps and on any grid. So coarse grids
come first, and each passes its bounds to the next grid, which has half the spacing. Stochastic
order is exact at zero if rewards lie on a lattice; convex order is narrow elsewhere. So stochastic
order is swept only as long as it narrows a bracket further.

At the read points, the brackets of all gaps are narrowed to `width`. The user passes these points
as `at=`. To add a point that is always read, add it in `_read_points`. `_Search` holds the points
in units as `reads`, both orders have them in their grids, a warning names a point where a bracket
stays too wide, and `GapLaw.at` lists them, zero first. `brackets` bounds a distribution at every
point, whether it is a read point or not.
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
_TRUSTED = 256  # from this many spacings among likely gaps on, widths halve with the spacing
_SETTLED = 12.0  # sweeps end when psi moves by less than spacing^2 / bulk divided by this
_ON_THE_WAY = 2.0  # the divisor for grids that only lead to finer ones
_WORK = 7e10  # largest number of numbers that are read and added
_EXACT = 1e-13  # sweeps of stochastic order end when probabilities move by less
_POINT = 200.0  # approximate bytes of a row for each point of a grid
_EPS = float(np.finfo(float).eps)


@np.errstate(under="ignore")  # a user may have errors raised; numbers that underflow are zero
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
    """Distributions of gaps $G = Z(s, a) - Z(s, b)$, as brackets that contain the truth.

    Bounds are rounded outwards. Rewards, their differences, and read points are rounded to the
    twelfth digit of the largest reward, so that 0.1 + 0.2 - 0.3 is zero; the brackets belong to
    this rounded model. A common offset of all rewards (`JMDP.reward_offset`) is subtracted first.

    If rewards are random, there are many states, and you need a probability, a sample is better:
    use `estimate_gaps`, or `GapLaw.from_sample` with pairs from `simulate_pairs`. For one gap of
    30 random states (benchmarks/gap_law.py), `gap_law` took 5 processor seconds and left
    $P(G <= 0)$ in a bracket 0.008 wide; the 95% interval of ten million pairs is 0.0006 wide. For
    `cvar`, `gap_law` is better: its bracket is 0.0001 standard deviations wide, and certain.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        gaps: (N, 3), rows (state, a, b). Defaults to all pairs a < b of all states.
        states: (N,), for all pairs a < b of these states; instead of `gaps`.
        width: largest width of the brackets of $P(G < x)$ and $P(G <= x)$ at the read points.
            Defaults to 0.001.
        coupling: which branches share a draw, as in `jipe2`. Defaults to "joint".
        at: (P,), read points in the unit of the rewards. Zero is always read, too.
        points: the least number of grid points where gaps are likely to be. Defaults to
            12 / width, and at most 512. More points narrow the brackets everywhere: those of
            probabilities in proportion to the spacing, those of `cvar` to its square.
        max_points: the largest size of the whole grid. Defaults to 4096. If `width` needs a larger
            grid, or more than a fixed amount of work, the search ends: a `ConvergenceWarning`
            reports the width that was reached, and the number of points that `width` would need.

    Returns:
        A `GapLaw` for each of the gaps, in the order of `gaps`. Its `width` is the one reached.

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
    requested = Gaps.of(jm, gaps, states)
    listed = np.stack([requested.states, requested.first, requested.second], axis=1)
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
    pairs = PairSet.of(system, requested)
    assert pairs is not None
    rows = Rows.of(system, pairs, listed)
    search = _Search(
        rows, Stochastic(rows), Convex(rows), rows.rounded(reads), width, points, max_points
    )
    search.run()
    return search.laws(listed, reads)


def _read_points(at: ArrayLike) -> Floats:
    """Zero and the read points, each once, (P,)."""
    given = checks.floats("at", np.append(at, 0.0), "entry")
    return np.append(0.0, np.unique(given[given != 0.0]))


@dataclass
class _Search:
    """Loop over grids, from coarse to fine, in units of `Rows.unit`.

    cuts, psi: bounds in stochastic and in convex order; `cuts` stays on its grid if it is not
    swept. reads: (P,) the read points, in units and rounded like rewards.
    """

    rows: Rows
    cuts: Stochastic
    psi: Convex
    reads: Floats
    width: float
    points: int
    max_points: int

    def run(self) -> None:
        """Narrow the bounds of both orders, and warn if the width was not reached."""
        top = self.rows.top or 1.0
        spacing = 2.0 ** np.floor(np.log2(top / min(_COARSE, self.max_points // 8)))
        bulk = top
        base = line(spacing, bulk, top)
        cuts_help = True
        work = 0.0
        with progress(None, "gap law", "grid") as bar:
            while True:
                cost = self.sweep(base, spacing, bulk, cuts_help)
                work += cost
                bar.update()
                bulk = min(bulk, self.psi.likely())
                widths, cuts_help = self.widths()
                spacings = 2.0 * bulk / spacing  # where gaps are likely
                trusted = spacings >= _TRUSTED
                cuts_help &= trusted
                reached = widths.max() <= self.width
                hopeless = trusted and self.psi.x.size * widths.max() / self.width > self.max_points
                enough = spacings >= self.points and (reached or hopeless)
                # The spacing is quartered as long as the grid in between can be skipped.
                spacing /= 4.0 if 2.0 * spacings < min(_TRUSTED, self.points) else 2.0
                base = line(spacing, bulk, top)
                growth = base.size / self.psi.x.size
                too_much = base.size > self.max_points or work + cost * growth > _WORK
                if enough or too_much or self.rows.top == 0.0:
                    break
        if not reached:
            self.report(widths)

    def sweep(self, base: Floats, spacing: float, bulk: float, use_cuts: bool) -> float:
        """Sweep on a new line of points, with the read points; returns the work.

        use_cuts: whether stochastic order is swept, too.
        """
        x = with_reads(base, np.append(self.reads, self.rows.halfway(self.reads)))
        size = max(x.size, self.points)  # at least that of the last grid
        needed = size * (_POINT * self.rows.factors.size + 20.0 * self.psi.num_reads)
        smaller = f"max_points={size // 2:,}, or fewer points or gaps, take less"
        require(needed, f"gap_law on a grid of {size:,} points", smaller)
        self.psi.refine(x)
        share = _SETTLED if 2.0 * bulk >= self.points * spacing else _ON_THE_WAY
        work = self.psi.settle(spacing**2 / (share * bulk))
        if use_cuts:
            self.cuts.refine(x)
            work += self.cuts.settle(_EXACT if self.cuts.exact else 0.1 * self.width)
        return work

    def widths(self) -> tuple[Floats, bool]:
        """Widest bracket at each read point (P,), and whether stochastic order still helps.

        It helps if it narrows a bracket that is still too wide.
        """
        at = 2 * np.searchsorted(self.psi.x, self.reads) + [[0], [1]]
        low, high = self.cuts.bracket(self.psi.x)[:, :, at]  # (Q, 2, P) each
        convex = [self.psi.bracket(n).cdf(self.reads) for n in range(self.rows.gaps.size)]
        least, most = np.swapaxes(convex, 0, 1)[:, :, None]  # (Q, 1, P) each
        both = np.minimum(high, most) - np.maximum(low, least)
        helps = (both > self.width) & (both < 0.9 * (most - least))
        return both.max((0, 1)), bool(helps.any())

    def report(self, widths: Floats) -> None:
        """Warn of the width that was reached, with the points that the requested width needs.

        widths: (P,) the widest bracket at each read point.
        """
        size = self.psi.x.size
        excess = widths.max() / self.width
        where = self.reads[widths.argmax()] * self.rows.unit
        warn(
            f"gap_law: brackets at {where:g} are up to {widths.max():.2g} wide, not "
            f"{self.width:g}, on a grid of {size:,} points; that would take about "
            f"{size * excess:,.0f} points and {excess:,.0f} times as long (max_points="
            f"{self.max_points:,}, and work is bounded). For a probability a sample may be the "
            "better choice: estimate_gaps, or GapLaw.from_sample of a million simulate_pairs"
        )

    def laws(self, gaps: Ints, at: Floats) -> list[GapLaw]:
        """Brackets of both orders, converted to the unit of the rewards, as are the points at (P,).

        A point that the unit rounds becomes an interval. Bounds of phi are widened by the largest
        move of its points: a rounding, or at read points the twelfth digit of the largest reward.
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
            mean = float(unit * self.rows.means[self.rows.gaps[n]])
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
