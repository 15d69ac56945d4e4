"""Brackets of the distribution of one gap: of its distribution function, quantiles and CVaR.

A distribution can be bounded in two orders. In stochastic order its distribution function lies
between two step functions. In convex order phi(x) = E (x - G)^+ lies between two convex functions,
and since the slopes of phi are probabilities,

    P(G <= x) <= (phi(y) - phi(x)) / (y - x)  for y > x,     P(G < x) >= (phi(x) - phi(y)) / (x - y)
    for y < x,     CVaR_p = max over x of x - phi(x) / p.

Every result is the intersection of the brackets of both orders. To add a quantity, write its
bracket in each order, as a method of `StepBracket` and one of `PhiBracket`, and intersect the two
in `GapLaw`, as `cvar` does. A quantity that follows from probabilities alone is computed from
`GapLaw.cdf`, as `prob_better` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import ReadOnly

Bracket = tuple[Any, Any]
_EPS = float(np.finfo(float).eps)
_MANY = 1 << 22  # largest number of entries of a matrix in memory at once


@dataclass(frozen=True, eq=False)
class StepBracket:
    """Bounds of a distribution function at 2n cuts, in ascending order.

    For the interval [x, y] in row k of points (n, 2), cut 2k is $P(G < x)$, and cut 2k + 1 is
    $P(G <= y)$. The outermost points may be infinite. Bounds are rounded there, too: the last entry
    of low may be just below one.

    Attributes:
        points: (n, 2) intervals.
        low, high: (2n,) ascending bounds at the cuts.
    """

    points: Floats
    low: Floats
    high: Floats

    def cdf(self, x: Floats, strict: bool) -> tuple[Floats, Floats]:
        """Bounds of $P(G <= x)$, or of $P(G < x)$.

        Args:
            x: (m,) points.
            strict: whether x itself is excluded.

        Returns:
            Lower and upper bounds, (m,) each.
        """
        starts, ends = self.points.T
        side: Any = "left" if strict else "right"
        # The number of cuts at or below the requested one, and the number below it.
        not_above = np.searchsorted(starts, x, "right") + np.searchsorted(ends, x, side)
        below = np.searchsorted(starts, x, side) + np.searchsorted(ends, x, "left")
        return np.append(0.0, self.low)[not_above], np.append(self.high, 1.0)[below]

    def worst_mean(self, p: float) -> Bracket:
        """Average of the quantiles below p.

        Args:
            p: a probability, $0 < p <= 1$.

        Returns:
            The lower and the upper bound.

        Example:
            >>> import jmdp_lib as jl
            >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
            >>> law, = jl.laws.gap_law(jm, jl.goal_policy(3), gaps=[(4, 0, 2)])
            >>> low, high = law.steps.worst_mean(0.1)
            >>> print(low < law.cvar(0.1)[0] < law.cvar(0.1)[1] < high)  # both orders say more
            True
        """
        cuts = self.points.ravel()
        answers = []
        for x, steps, side in (
            (np.append(-np.inf, cuts), self.high, -1.0),
            (np.append(cuts, np.inf), self.low, 1.0),
        ):
            shares = np.diff(np.minimum(np.append(steps, 1.0), p), prepend=0.0)
            x = x[shares > 0.0]
            rounding = 2.0 * x.size * _EPS * np.abs(x).max()  # of products, differences and a sum
            answers.append(float(x @ shares[shares > 0.0]) / p + side * rounding)
        return answers[0], answers[1]


@dataclass(frozen=True, eq=False)
class PhiBracket:
    """Bounds of $phi(x) = E (x - G)^+$: values above it at n points, and lines below it.

    Attributes:
        x: (n,) the points, ascending.
        above: (n,) upper bounds of phi there.
        below, slopes: (n,), values at the points, and slopes, of the line below phi that belongs to
            each point.
    """

    x: Floats
    above: Floats
    below: Floats
    slopes: Floats

    def lower(self, x: Floats) -> Floats:
        """Lower bounds of phi: the higher one of the lines of the two points around x.

        Args:
            x: (m,) points.

        Returns:
            (m,) lower bounds of phi.

        Example:
            >>> import jmdp_lib as jl
            >>> import numpy as np
            >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
            >>> law, = jl.laws.gap_law(jm, jl.goal_policy(3), gaps=[(4, 0, 2)])
            >>> law.phi.lower(np.array([0.0, 1.0])).round(3)  # of E (0 - G)^+ and E (1 - G)^+
            array([0.003, 0.077])
        """
        lines = np.stack([self.below, self.slopes])
        return np.maximum(highest_lines(self.x, lines, x)[0], 0.0)

    def cdf(self, x: Floats) -> tuple[Floats, Floats]:
        """Bounds of probabilities: the slopes of phi lie between $P(G < x)$ and $P(G <= x)$.

        Args:
            x: (m,) points.

        Returns:
            Lower bounds of $P(G < x)$, and upper bounds of $P(G <= x)$, (m,) each.
        """
        parts = np.array_split(x, 1 + x.size * self.x.size // _MANY)
        low, high = np.hstack([self._chords(part) for part in parts])
        return low, high

    def _chords(self, x: Floats) -> Floats:
        distance = self.x - x[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (self.above - self.lower(x)[:, None]) / distance
        low = np.where(distance < 0.0, slopes, -np.inf).max(1)
        high = np.where(distance > 0.0, slopes, np.inf).min(1)
        return np.clip([low, high], 0.0, 1.0)

    def cvar(self, p: float) -> Bracket:
        """Mean of the worst share p of outcomes.

        Args:
            p: the share, $0 < p < 1$.

        Returns:
            The lower and the upper bound.
        """
        low = (self.x - self.above / p).max()
        width = np.diff(self.x)
        # The lines of two neighbouring points meet at x + meet.
        rise = self.below[1:] - self.slopes[1:] * width - self.below[:-1]
        turn = self.slopes[:-1] - self.slopes[1:]
        meet = np.divide(rise, turn, out=np.zeros(rise.size), where=turn != 0.0)
        x = np.append(self.x, self.x[:-1] + np.clip(meet, 0.0, width))
        return float(low), float((x - self.lower(x) / p).max())


@dataclass(frozen=True, eq=False, repr=False)
class GapLaw(ReadOnly):
    """Distribution of one gap in brackets: every result is a pair (low, high) around the truth.

    Attributes:
        gap: (s, a, b); or (i, j), the entry of a `GapEstimate`.
        mean: $E G$.
        steps: bounds of the distribution function, from stochastic order.
        phi: bounds of $E (x - G)^+$, from convex order; None for samples.
        at: the read points, where the brackets were narrowed; the first one is zero.
        confidence: the probability that all brackets hold at once; below one for a sample.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> law, = jl.laws.gap_law(jm, jl.goal_policy(3), gaps=[(4, 0, 2)], at=[1.0])
        >>> print([round(float(end), 3) for end in (*law.mean, *law.prob_better, *law.cdf(1.0))])
        [1.522, 1.522, 0.971, 0.971, 0.153, 0.154]
        >>> print([round(float(end), 2) for end in (*law.quantile(0.1), *law.cvar(0.1))])
        [0.63, 0.65, 0.37, 0.37]
        >>> law.width < 1e-3
        True
    """

    gap: tuple[int, ...]
    mean: Bracket
    steps: StepBracket
    phi: PhiBracket | None = None
    at: tuple[float, ...] = (0.0,)
    confidence: float = 1.0

    def __repr__(self) -> str:
        low, high = self.prob_worse
        return f"GapLaw(gap {self.gap}, worse with probability {low:.4g} to {high:.4g})"

    @classmethod
    def from_sample(
        cls,
        gap: tuple[int, ...],
        gaps: ArrayLike,
        *,
        alpha: float = 0.05,
        truncation_error: float = 0.0,
        limits: tuple[float, float] = (-np.inf, np.inf),
    ) -> GapLaw:
        """Brackets from N independent gaps: the band of Dvoretzky, Kiefer, Wolfowitz and Massart.

        It holds everywhere at once with probability $1 - alpha$.

        Args:
            gap: the name of the gap, (s, a, b) or (i, j), stored as `GapLaw.gap`.
            gaps: (N,) independent samples, in the unit of the rewards.
            alpha: one minus the confidence. Defaults to 0.05.
            truncation_error: a bound on the error of each gap. Defaults to zero. Gaps of at most
                this size are ties.
            limits: (lo, hi), an interval that contains all possible gaps. If it is finite, so are
                all brackets.

        Returns:
            Brackets of the distribution that hold with this confidence.

        Raises:
            ValueError: an argument makes no sense, or a gap is not within the limits.

        Example:
            >>> import jmdp_lib as jl
            >>> import numpy as np
            >>> gaps = np.random.default_rng(0).normal(1.0, 1.0, size=2000)
            >>> law = jl.laws.GapLaw.from_sample((0, 0, 1), gaps)
            >>> print("{:.2f} to {:.2f}; the truth is 0.16".format(*law.prob_worse))
            0.14 to 0.20; the truth is 0.16
        """
        values = checks.floats("gaps", gaps, "gap")
        limits = checks.limits("limits", limits)
        off = checks.not_negative("truncation_error", truncation_error)
        values[np.abs(values) <= off] = 0.0
        error = off * (values != 0.0)
        outside = (values < limits[0] - off) | (values > limits[1] + off)
        checks.refuse("gaps", values, outside, f"is not in limits {limits}", ["gap"])
        ends = np.stack([values - error, values + error], axis=1)
        return sampled_law(gap, ends, alpha, limits)

    @cached_property
    def _both(self) -> StepBracket:
        """Intersection of both orders' bounds at the points of `steps`, which contain phi's."""
        points = self.steps.points
        sides = [self._brackets(points[:, side], side == 0) for side in (0, 1)]
        low, high = np.stack(sides, axis=2).reshape(2, -1)
        high = np.minimum.accumulate(high[::-1])[::-1]
        return StepBracket(points, np.maximum.accumulate(low), high)

    @property
    def points(self) -> Floats:
        """Intervals (n, 2) in ascending order, most of them single points."""
        return self._both.points

    @property
    def low(self) -> Floats:
        """Lower bounds (2n,) of $P(G < x)$ and $P(G <= y)$ for each of the intervals $[x, y]$."""
        return self._both.low

    @property
    def high(self) -> Floats:
        """Upper bounds (2n,) of these probabilities."""
        return self._both.high

    @property
    def prob_worse(self) -> Bracket:
        """Probability of a negative gap, $P(G < 0)$."""
        return self.cdf(0.0, strict=True)

    @property
    def prob_better(self) -> Bracket:
        """Probability of a positive gap, $P(G > 0)$."""
        low, high = self.cdf(0.0)
        return 1.0 - high, 1.0 - low

    @property
    def prob_tie(self) -> Bracket:
        """Probability of a tie, $P(G = 0)$."""
        below = self.prob_worse
        up_to = self.cdf(0.0)
        return max(0.0, up_to[0] - below[1]), up_to[1] - below[0]

    @property
    def width(self) -> float:
        """Width of the widest bracket of $P(G < x)$ or $P(G <= x)$ at a read point."""
        ends = [self.cdf(self.at, strict=strict) for strict in (True, False)]
        return float(np.ptp(ends, axis=1).max())

    def cdf(self, x: ArrayLike, *, strict: bool = False) -> Bracket:
        """Distribution function $P(G <= x)$, or $P(G < x)$ if strict.

        Args:
            x: a number or an array, in the unit of the rewards.
            strict: whether x itself is excluded. Defaults to False.

        Returns:
            The lower and the upper bound, of the shape of x.
        """
        at = checks.as_array("x", x).astype(float)
        checks.refuse("x", at, np.isnan(at), "is not a number", ["entry"] * at.ndim)
        low, high = (end.reshape(at.shape) for end in self._brackets(at.ravel(), strict))
        return (float(low), float(high)) if at.ndim == 0 else (low, high)

    def _brackets(self, x: Floats, strict: bool) -> tuple[Floats, Floats]:
        """Bounds (m,) at x (m,), intersected over both orders; all probabilities come from here."""
        low, high = self.steps.cdf(x, strict)
        if self.phi is None:
            return low, high
        least, most = self.phi.cdf(x)
        return np.fmax(low, least), np.fmin(high, most)  # phi has no bound at infinite x

    def quantile(self, p: float) -> Bracket:
        """Quantile: the least $x$ with $P(G <= x) >= p$.

        Args:
            p: a probability, $0 < p < 1$.

        Returns:
            The lower and the upper bound, in the unit of the rewards; infinite if unbounded.
        """
        p = checks.fraction("p", p)
        cuts = self.points.ravel()
        low = np.append(-np.inf, cuts)[np.searchsorted(self.high, p)]
        return float(low), float(np.append(cuts, np.inf)[np.searchsorted(self.low, p)])

    def cvar(self, p: float) -> Bracket:
        """Mean of the worst share p of outcomes: the average quantile below p.

        Args:
            p: the share, $0 < p < 1$.

        Returns:
            The lower and the upper bound, in the unit of the rewards.
        """
        p = checks.fraction("p", p)
        low, high = self._both.worst_mean(p)
        if self.phi is None:
            return low, high
        least, most = self.phi.cvar(p)
        return max(low, least), min(high, most)


def sampled_law(
    gap: tuple[int, ...], ends: Floats, alpha: float, limits: tuple[float, float]
) -> GapLaw:
    """`GapLaw.from_sample` for N gaps that are intervals, ends (N, 2)."""
    size = len(ends)
    band = np.sqrt(np.log(2.0 / checks.fraction("alpha", alpha)) / (2.0 * size))
    first, last = np.sort(np.clip(ends, *limits), axis=0).T
    points = np.unique([*limits, *first, *last])

    def shares(ends: Floats) -> Floats:
        sides = [np.searchsorted(ends, points, side) for side in ("left", "right")]
        return np.stack(sides, axis=1).ravel() / size

    low = np.maximum(shares(last) - band, 0.0)
    high = np.minimum(shares(first) + band, 1.0)
    low[-1] = 1.0
    high[0] = 0.0
    steps = StepBracket(np.stack([points, points], axis=1), low, high)
    return GapLaw(gap, steps.worst_mean(1.0), steps, confidence=1.0 - alpha)


def highest_lines(x: Floats, lines: Floats, points: Floats) -> Floats:
    """Values and slopes (..., 2, m) at points (m,) of the higher line of two neighbours.

    lines: (..., 2, n) value and slope of the line of each point of x (n,).
    """
    cell = np.clip(np.searchsorted(x, points, "right") - 1, 0, x.size - 2)
    left, right = lines.take(cell, -1), lines.take(cell + 1, -1)
    left[..., 0, :] += left[..., 1, :] * (points - x[cell])
    right[..., 0, :] += right[..., 1, :] * (points - x[cell + 1])
    np.copyto(left, right, where=right[..., :1, :] > left[..., :1, :])
    return left
