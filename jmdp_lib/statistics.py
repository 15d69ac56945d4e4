"""Gap statistics: estimates with their errors, laws in brackets, and what samples say.

A gap is $G = Z(s, a) - Z(s, b)$. `GapErrors` and `GapEstimate` are estimates of its mean and
variance; `GapLaw` is its law, known up to a bracket of the distribution function. Below them are
the sample statistics, intervals, tests and confidence sequences that they and others use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats

Bracket = tuple[Any, Any]

# A gambler's stakes, and the shares of the capital that are staked so; large ones count for more,
# since the range of returns is often wide.
_BETS = 2.0 ** -np.arange(16.0)
_LOG_SHARES = -np.log(np.arange(1.0, 17.0) * np.arange(2.0, 18.0))
_CLOSE = 1e-3  # of the distance of a bound from the mean: how exactly it is worked out
_NO_VARIATION = 1e-12  # of a squared mean: less variance than this is rounding
_TIGHT = 1000.0  # the sample size at which an asymptotic confidence sequence is tightest
_SKEW = 0.2  # weight of its allowance for skewed laws


@dataclass(frozen=True, eq=False)
class GapErrors:
    """Estimates of gaps, $G = Z(s, a) - Z(s, b)$, with their standard errors, all of one shape.

    Attributes:
        mean, mean_error: the estimate of $E G$, and its standard error.
        variance, variance_error: the estimate of $Var G$, and its standard error.
        unseen_mean, unseen_variance: how far what no draw showed can move $E G$; and how large it
            can make $Var G$ if all draws were alike. Both are for one unit of $-log(1 - level)$:
            in N draws an event stays unseen with probability $1 - level$ if its own is
            $-log(1 - level) / N$. Unless a range of rewards is known, nothing is added to means,
            and nothing bounds such a variance.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> found = jl.GapErrors(*np.array([[1.0], [0.1], [2.0], [0.2]]))
        >>> low, high = found.interval("variance", level=0.95)
        >>> print(low.round(2), high.round(2))
        [1.64] [2.43]
    """

    mean: Floats
    mean_error: Floats
    variance: Floats
    variance_error: Floats
    unseen_mean: Floats | float = field(default=0.0, kw_only=True)
    unseen_variance: Floats | float = field(default=np.inf, kw_only=True)

    def interval(self, name: str, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper ends of confidence intervals of "mean" or "variance", entry by entry.

        They are normal. For a variance, whose estimates are positive and skewed, they are normal on
        the scale of its logarithm. If no variation was seen at all, the upper end is that of an
        event that all draws missed.
        """
        value = getattr(self, checks.one_of("name", name, ("mean", "variance")))
        reach = normal_quantile(level) * getattr(self, f"{name}_error")
        missed = -np.log1p(-level)
        if name == "mean":
            reach = reach + missed * self.unseen_mean
            return value - reach, value + reach
        none = value <= _NO_VARIATION * self.mean**2
        factor = np.exp(np.divide(reach, value, out=np.zeros_like(value), where=~none))
        return np.where(none, 0.0, value / factor), np.where(
            none, missed * self.unseen_variance, value * factor
        )


@dataclass(frozen=True, eq=False)
class GapEstimate(GapErrors):
    """What pairs of branches that were played say about gaps, $G = Z(s, a) - Z(s, b)$.

    `sample_gaps` has arrays (K,) for K gaps, each from its own pairs; `estimate_gaps` has arrays
    (m, m), entry [i, j] about actions[i] against actions[j] of the m actions that were asked for.

    Attributes:
        mean, mean_error, variance, variance_error: as in `GapErrors`, unbiased.
        prob_worse, prob_tie, prob_better: shares of pairs with $G < 0$, $G = 0$ and $G > 0$. A gap
            whose sign the cut at the horizon may have changed counts as 0.
        truncation_error: how far that cut may have moved $E G$; of a simulator, if later rewards
            are like those that were seen.
        num_pairs: pairs per gap.
        returns: (num_pairs, m) of the branches of `estimate_gaps`, else None.
    """

    prob_worse: Floats
    prob_tie: Floats
    prob_better: Floats
    truncation_error: Floats | float
    num_pairs: int
    returns: Any = None

    def interval(self, name: str, level: float = 0.95) -> tuple[Floats, Floats]:
        """Ends of confidence intervals, entry by entry.

        Those of "mean" and "variance" are as in `GapErrors`, the truncation error of means added;
        those of "prob_worse", "prob_tie" and "prob_better" are Wilson's.
        """
        names = ("mean", "variance", "prob_worse", "prob_tie", "prob_better")
        if checks.one_of("name", name, names) in names[:2]:
            low, high = super().interval(name, level)
            slack = self.truncation_error if name == "mean" else 0.0
            return low - slack, high + slack
        share = getattr(self, name)
        z, n = normal_quantile(level), self.num_pairs
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        reach = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
        return centre - reach, centre + reach


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


def normal_p_values(scores: ArrayLike) -> tuple[float, float]:
    """Are K scores independent draws of N(0, 1)? p-values of their largest size and their spread.

    The first is P(max |z| is as large), which counts how many were looked at; the second is
    two-sided, of sum z^2 against chi^2 with K degrees of freedom: errors too large *or* too small.
    """
    from scipy import special  # slow to import, and needed for this alone

    z = checks.floats("scores", scores, "score")
    one = 2.0 * special.ndtr(-np.abs(z).max())
    tail = special.chdtr(z.size, np.sum(z**2))
    return float(-np.expm1(z.size * np.log1p(-one))), float(2.0 * min(tail, 1.0 - tail))


def mean_and_error(x: ArrayLike) -> tuple[Any, Any]:
    """Mean of a sample (M, ...), two values or more, and its standard error, each (...)."""
    values = np.asarray(x)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def variance_and_error(x: ArrayLike) -> tuple[Any, Any]:
    """Unbiased variance of a sample (M, ...), three values or more, and its standard error.

    The error is the jackknife's: no law is assumed, unlike in variance * sqrt(2 / (M - 1)).
    """
    return mean_and_error(variance_values(x))


def variance_values(x: Any) -> Floats:
    """(M, ...) jackknife values of a sample (M, ...): their mean is its unbiased variance."""
    size, squares = len(x), (x - np.mean(x, 0)) ** 2
    return (size * squares - squares.sum(0) / (size - 1)) / (size - 2)


def gap_statistics(gaps: Floats, unsure: Floats | float) -> Any:
    """(7, ...) of gaps (N, ...): mean and variance with their errors, shares below, at, above zero.

    unsure: gaps of this size count as zero.
    """
    signs = gaps < -unsure, np.abs(gaps) <= unsure, gaps > unsure
    shares = [sign.mean(0) for sign in signs]
    return np.stack([*mean_and_error(gaps), *variance_and_error(gaps), *shares])


def unseen_variance(
    mean: Floats, num_draws: int, ends: tuple[float, float] | None, gamma: float
) -> Floats:
    """What `GapErrors.unseen_variance` is for gaps that were drawn, entry by entry.

    With rewards in `ends`, no gap is farther from the mean than that of the two worst returns.
    """
    low, high = (0.0, np.inf) if ends is None else ends
    farthest = (high - low) / (1.0 - gamma) + np.abs(mean)
    return np.asarray(farthest**2 / num_draws)


def betting_bound(
    x: Floats, low: float, high: float, alpha: float, known: float = -np.inf
) -> float:
    """A lower confidence bound for the mean of values x (T,) in [low, high].

    Whatever the law, the bounds for all T at once hold with probability 1 - alpha. The bound is the
    largest mean against which the gambler of `log_capital` has come to own 1 / alpha (Waudby-Smith
    and Ramdas 2024, Section 4), to a thousandth of its distance from the sample mean.

    known: the bound of fewer values, which the new one does not fall below.
    """
    if low == high:
        return low
    z, counts = np.unique(np.clip((x - low) / (high - low), 0.0, 1.0), return_counts=True)
    centre = top = float(counts @ z / counts.sum())  # nothing is ever won against the sample mean
    bottom = max((known - low) / (high - low), 0.0)
    while top - bottom > _CLOSE * (centre - bottom):
        middle = 0.5 * (bottom + top)
        capital = np.logaddexp.reduce(_LOG_SHARES + counts @ _log_growth(z[:, None], middle, _BETS))
        bottom, top = (middle, top) if capital >= -np.log(alpha) else (bottom, middle)
    return low + (high - low) * bottom


def log_capital(x: Floats, mean: float, low: float, high: float) -> Floats:
    """Logarithm of what a gambler owns after each of the values x (T, ...) in [low, high].

    The gambler bets that the mean of x exceeds `mean` > low, at odds that are fair if it is equal.
    The gambler starts with 1 and splits it into shares. Share j stakes 2^-j of what it owns by then
    on every value, so that some share stakes about the best part for any law. If the mean is at
    most `mean`, the capital ever reaches 1 / alpha with probability alpha at most.
    """
    z, m = (x - low) / (high - low), (mean - low) / (high - low)
    total = np.full(x.shape, -np.inf)
    for bet, log_share in zip(_BETS, _LOG_SHARES, strict=True):
        total = np.logaddexp(total, log_share + np.cumsum(_log_growth(z, m, bet), 0))
    return total


def _log_growth(z: Any, mean: float, bet: Any) -> Any:
    """Logarithm of the factor that a stake grows by on values z in [0, 1]."""
    with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
        return np.log1p(bet * (z / mean - 1.0))


def asymptotic_sequence(x: Floats, alpha: float, first: int) -> tuple[Floats, Floats]:
    """Ends of an asymptotic confidence sequence for the mean of values x (T, ...), (T, ...).

    All intervals from the sample size `first` on hold at once with a probability that tends to
    1 - alpha as `first` grows (Waudby-Smith et al. 2024, Theorem 2.2); earlier ones are infinite.
    A term of order 1 / T, as in Bernstein's inequality, makes up for skewed laws in small samples.
    """
    t = np.arange(1.0, len(x) + 1.0).reshape(-1, *(1,) * (x.ndim - 1))
    shifted = x - x[:1]
    mean = np.cumsum(shifted, 0) / t
    variance = np.maximum(np.cumsum(shifted**2, 0) / t - mean**2, 0.0)
    level = -2.0 * np.log(alpha)
    rate = (level + np.log(level) + 1.0) / _TIGHT * t
    radius = np.sqrt(variance * (rate + 1.0) / rate * (np.log(rate + 1.0) + level) / t)
    seen = np.maximum.accumulate(x, 0) - np.minimum.accumulate(x, 0)
    radius += _SKEW * seen * level / t
    radius[: first - 1] = np.inf
    return x[:1] + mean - radius, x[:1] + mean + radius
