"""The law of a gap, $G = Z(s, a) - Z(s, b)$, known up to a bracket of the distribution function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats

Bracket = tuple[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class GapLaw:
    """The law of one gap in brackets: every answer is a pair (low, high) that contains the truth.

    The distribution function is bracketed at 2n *cuts*, in ascending order: for the interval
    $[x, y]$ in row k of `points`, cut 2k is $P(G < x)$ and cut 2k + 1 is $P(G <= y)$. Zero is one
    of the points.

    Attributes:
        query: (s, a, b).
        mean: $E G$.
        points: (n, 2) intervals in ascending order, most of them single points.
        low, high: (2n,) bounds at the cuts.
        confidence: the probability that all brackets hold at once: one, unless they were sampled.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.8)
        >>> law, = jl.gap_law(jm, jl.goal_policy(3), queries=[(4, 0, 2)])
        >>> print([round(float(end), 3) for end in (*law.mean, *law.prob_better, *law.cdf(1.0))])
        [1.522, 1.522, 0.971, 0.971, 0.153, 0.154]
        >>> print([round(float(end), 2) for end in (*law.quantile(0.1), *law.cvar(0.1))])
        [0.63, 0.65, 0.36, 0.37]
        >>> law.width < 1e-3
        True
    """

    query: tuple[int, int, int]
    mean: Bracket
    points: Floats
    low: Floats
    high: Floats
    confidence: float = 1.0

    def __repr__(self) -> str:
        s, a, b = self.query
        names = ("worse", "tie", "better")
        found = (f"{n} {x:.4g} to {y:.4g}" for n in names for x, y in [getattr(self, f"prob_{n}")])
        return f"GapLaw(state {s}, action {a} against {b}: {', '.join(found)})"

    @classmethod
    def from_sample(
        cls, query: tuple[int, int, int], gaps: ArrayLike, alpha: float = 0.05, off: float = 0.0,
        limit: float = np.inf,
    ) -> GapLaw:  # fmt: skip
        """The band of Dvoretzky, Kiefer, Wolfowitz and Massart around independent gaps (N,).

        It holds everywhere at once with probability $1 - alpha$.

        off: how far each gap can be from the truth; a gap as small as that counts as a tie.
        limit: a bound of $|G|$.

        Example:
            >>> import jmdp_lib as jl
            >>> import numpy as np
            >>> gaps = np.random.default_rng(0).normal(1.0, 1.0, size=2000)
            >>> law = jl.GapLaw.from_sample((0, 0, 1), gaps)
            >>> print("{:.2f} to {:.2f}; the truth is 0.16".format(*law.prob_worse))
            0.14 to 0.20; the truth is 0.16
        """
        found = np.sort(checks.floats("gaps", gaps, "gap"))
        found[np.abs(found) <= off] = 0.0
        band = np.sqrt(np.log(2.0 / checks.real("alpha", alpha, "(0, 1)")) / (2.0 * found.size))
        nearby = found + 2.0 * off * np.array([[-1.0], [0.0], [1.0]])  # where the band steps
        x = np.unique(np.append([-limit, 0.0, limit], nearby))
        ends = (x - off * (x != 0.0), x + off * (x != 0.0))
        counts = [[np.searchsorted(found, y), np.searchsorted(found, y, "right")] for y in ends]
        low, high = np.swapaxes(counts, 1, 2).reshape(2, -1) / found.size
        low, high = np.maximum(low - band, 0.0), np.minimum(high + band, 1.0)
        low[-1], high[0] = 1.0, 0.0
        mean = _worst_mean(np.repeat(x, 2), low, high, 1.0)
        return cls(query, mean, np.stack([x, x], axis=1), low, high, 1.0 - alpha)

    @property
    def prob_worse(self) -> Bracket:
        """$P(G < 0)$."""
        return self._at_zero[0]

    @property
    def prob_better(self) -> Bracket:
        """$P(G > 0)$."""
        low, high = self._at_zero[1]
        return 1.0 - high, 1.0 - low

    @property
    def prob_tie(self) -> Bracket:
        """$P(G = 0)$."""
        (low, high), (low_too, high_too) = self._at_zero
        return max(0.0, low_too - high), high_too - low

    @property
    def width(self) -> float:
        """How wide the wider one of the brackets of $P(G < 0)$ and $P(G <= 0)$ is."""
        return max(high - low for low, high in self._at_zero)

    @cached_property
    def _at_zero(self) -> list[Bracket]:
        k = 2 * int(np.searchsorted(self.points[:, 0], 0.0))
        return [(float(self.low[i]), float(self.high[i])) for i in (k, k + 1)]

    def cdf(self, x: ArrayLike) -> Bracket:
        """$P(G <= x)$, for a number or an array."""
        at = np.asarray(x, dtype=float)
        checks.refuse("x", at, np.isnan(at), "is not a number", ["entry"] * at.ndim)
        below = np.searchsorted(self._cuts, at, "right")  # cuts at x itself do not exceed (x, <=)
        first = np.searchsorted(self.points[:, 1], at)
        inside = np.append(self.points[:, 0], np.inf)[first] <= at
        low, high = np.append(0.0, self.low)[below], np.append(self.high, 1.0)[2 * first + inside]
        return (float(low), float(high)) if at.ndim == 0 else (low, high)

    def quantile(self, p: float) -> Bracket:
        """The least $x$ with $P(G <= x) >= p$, for $0 < p < 1$."""
        p = checks.real("p", p, "(0, 1)")
        low = np.append(-np.inf, self._cuts)[np.searchsorted(self.high, p)]
        return float(low), float(np.append(self._cuts, np.inf)[np.searchsorted(self.low, p)])

    def cvar(self, p: float) -> Bracket:
        """The mean of the worst share p of outcomes, $0 < p < 1$: the average quantile below p."""
        return _worst_mean(self._cuts, self.low, self.high, checks.real("p", p, "(0, 1)"))

    @property
    def _cuts(self) -> Floats:
        """(2n,) where the cuts are."""
        return self.points.ravel()

    def plot(self, ax: Any, **style: Any) -> Any:
        """The bracket as a band over x, and atoms of more than a percent as steps with a dot.

        Example:
            >>> import jmdp_lib as jl
            >>> from matplotlib.figure import Figure
            >>> law, = jl.gap_law(jl.example_1(gamma=0.5), [0], queries=[(0, 0, 1)])
            >>> ax = law.plot(Figure().subplots(), color="C0")
            >>> len(ax.lines) > 0
            True
        """
        cuts = np.repeat(self._cuts, 2)[1:-1]
        low, high = np.repeat(self.low[:-1], 2), np.repeat(self.high[1:], 2)
        band = ax.fill_between(cuts, low, high, **{"lw": 0.8, "alpha": 0.6, **style})
        color = band.get_facecolor()[0, :3]
        for k in np.flatnonzero(self.low[1::2] - self.high[::2] > 0.01):
            ends = self.high[2 * k], self.low[2 * k + 1]
            ax.plot(self.points[k], ends, color=color, lw=1.6, marker="o", ms=3)
        return ax


def _worst_mean(cuts: Floats, low: Floats, high: Floats, p: float) -> Bracket:
    """The average of the quantiles below p, 0 < p <= 1, of a law with these bounds at its cuts."""
    answers = []
    for x, steps in ((np.append(-np.inf, cuts), high), (np.append(cuts, np.inf), low)):
        shares = np.diff(np.minimum(np.append(steps, 1.0), p), prepend=0.0)
        answers.append(float(x[shares > 0.0] @ shares[shares > 0.0]) / p)
    return answers[0], answers[1]


def normal_quantile(level: float) -> float:
    """z with P(|N(0, 1)| <= z) = level."""
    from scipy import special  # slow to import, and needed for intervals alone

    return float(special.ndtri((1.0 + checks.real("level", level, "(0, 1)")) / 2.0))
