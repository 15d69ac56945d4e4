"""Moment collections: their norm, correlations and the gap statistics of Section 5.4.

The paper's norm on a collection M = (M^(1), ..., M^(n)) is, with |R| <= r_max (there: 1),

    ||M||_lambda = max_k ||M^(k)||_inf / lambda_k,     lambda_k = (2 r_max / (1 - gamma))^(k-1)

(eqs. (20) and (34)). T_n is a gamma-contraction in it, so

    ||M - M^pi||_lambda <= ||M - T_n M||_lambda / (1 - gamma)                     (eq. (23))

certifies the accuracy of any candidate M.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, product
from math import comb, prod
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, frozen
from jmdp_lib.machine import ReadOnly, extra, require

if TYPE_CHECKING:
    import pandas as pd

StateAction = tuple[int, int]


def norm_weight(order: int, gamma: float, reward_bound: float = 1.0) -> float:
    """Weight $lambda_k = (2 r_{max} / (1 - gamma))^{k-1}$ of the norm, eq. (34).

    The paper's $lambda$ of eq. (20) is $lambda_2$; there $r_{max} = 1$.

    Args:
        order: $k$, 1 or more.
        gamma: discount factor in [0, 1).
        reward_bound: $r_{max}$, the largest absolute reward.

    Example:
        >>> import jmdp_lib as jl
        >>> print([round(jl.norm_weight(order, gamma=0.9)) for order in (1, 2, 3)])
        [1, 20, 400]
    """
    order = checks.at_least("order", order, 1)
    reward_bound = checks.positive("reward_bound", reward_bound)
    return float((2.0 * reward_bound / (1.0 - checks.discount(gamma))) ** (order - 1))


def contraction_modulus(order: int, gamma: float) -> float:
    """Contraction modulus of the moments of order $k$, at most $gamma$.

    It is the smallest that holds for all models:
    $sum_{l=1}^k {k choose l} gamma^l r_{max}^{k-l} lambda_l / lambda_k$. By the binomial theorem
    this equals $((1 + gamma) / 2)^k - ((1 - gamma) / 2)^k$. It does not depend on $r_{max}$, and
    equals $gamma$ for $k = 1$ and $k = 2$.

    Args:
        order: $k$, 1 or more.
        gamma: discount factor in [0, 1).

    Example:
        >>> import jmdp_lib as jl
        >>> print([round(jl.contraction_modulus(order, gamma=0.9), 3) for order in (1, 2, 3, 4)])
        [0.9, 0.9, 0.857, 0.814]
    """
    order = checks.at_least("order", order, 1)
    gamma = checks.discount(gamma)
    return float(((1.0 + gamma) / 2.0) ** order - ((1.0 - gamma) / 2.0) ** order)


def enough_sweeps(first: float, target: float, gamma: float) -> int:
    """Iterations in which a gamma-contraction meets the target, plus some for rounding."""
    if first <= target or gamma == 0.0:
        return 3
    return 50 + math.ceil(1.05 * math.log(target / first) / math.log(gamma))


def cantelli_bound(mean: ArrayLike, variance: ArrayLike) -> Floats:
    """Cantelli's bound on $P(G <= 0)$ from mean and variance of the gap (Section 5.4).

    It is $Var G / (Var G + (E G)^2)$ where $E G > 0$, and 1 elsewhere.

    Args:
        mean: $E G$, an array of any shape.
        variance: $Var G$, not negative; its shape must broadcast with that of `mean`.

    Returns:
        The bounds, of the broadcast shape.

    Example:
        >>> import jmdp_lib as jl
        >>> print(jl.cantelli_bound([1.0, 2.0, -1.0], [1.0, 1.0, 1.0]))
        [0.5 0.2 1. ]
    """
    for name, values in (("mean", mean), ("variance", variance)):
        checks.floats(name, np.ravel(checks.as_array(name, values)), "entry")
    if np.min(variance) < 0:
        raise ValueError(f"variance must not be negative, got {np.min(variance)}")
    return _cantelli(mean, variance)


def _cantelli(mean: ArrayLike, variance: ArrayLike) -> Floats:
    """`cantelli_bound` without checks; nan where the mean or the variance is nan."""
    total = np.add(variance, np.maximum(mean, 0.0) ** 2)
    return np.divide(variance, total, out=np.ones_like(total), where=total != 0.0)


class MomentSource(Protocol):
    """Source of moments across states, computed lazily.

    These are moments of the returns without the `offset` of the collection.
    """

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """Expectation of the product of the returns."""

    def full_second(self) -> Floats:
        """All of $Sigma$, (S, A, S, A)."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredMoments(ReadOnly):
    """Source that holds all of Sigma, or only the moments of one state.

    Attributes:
        second: (S, A, S, A), all of Sigma, or None.
    """

    second: Floats | None

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """Expectation of the product of the returns."""
        x, y = coordinates
        return float(self.full_second()[x + y])

    def full_second(self) -> Floats:
        """All of $Sigma$, (S, A, S, A)."""
        if self.second is None:
            raise ValueError("this collection has no moments between states")
        return self.second


@dataclass(frozen=True, eq=False, repr=False)
class Moments(ReadOnly):
    """Moments of the joint returns $Z^pi$ up to `order`, as every solver returns them.

    All arrays are read-only.

    Attributes:
        order: highest order held.
        mean: (S, A), $E Z(s, a)$.
        _covariance: (S, A, A), $Cov(Z(s, a), Z(s, b))$, or None at order 1; nan where not
            requested.
        source: source of all other coordinates.
        mean_error: error bound of the means; 0 if no bound is known.
        resolution: smallest standard deviation distinguishable from zero.
        offset: a constant in all returns. Moments in `source` are without it, so it costs no
            digits.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
        >>> m = jl.jipe2(jm, jl.uniform_policy(jm)).moments
        >>> m
        Moments(4 states, 2 actions, order 2)
        >>> print(m.mean[0].round(3), m.variance[0].round(4), m.correlation[0, 0].round(4))
        [8.645 8.645] [0.6165 0.6165] [ 1.     -0.2725]
        >>> print(m.gap_variance[0].round(4).tolist())
        [[0.0, 1.569], [1.569, 0.0]]
        >>> print(m.inferiority_bound[0].tolist(), "since no mean gap is above zero")
        [[1.0, 1.0], [1.0, 1.0]] since no mean gap is above zero
    """

    order: int
    mean: Floats
    _covariance: Floats | None
    source: MomentSource
    mean_error: float
    resolution: float
    offset: float = 0.0

    def __repr__(self) -> str:
        states, actions = self.mean.shape
        return f"Moments({states} states, {actions} actions, order {self.order})"

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """Moment $E[Z(s_1, a_1) ... Z(s_k, a_k)]$.

        Args:
            coordinates: [(s_1, a_1), ...], k of them, up to `order`; repeat one for its powers.

        Example:
            >>> import jmdp_lib as jl
            >>> m = jl.jipe(jl.example_1(gamma=0.0), [0], order=3).moments
            >>> print([round(m.moment([(0, 0)] * k + [(0, 1)]), 3) for k in (0, 1, 2)])
            [0.5, 0.0, 0.0]
        """
        self._need(len(coordinates), "moment")
        branches = [self._state_action(x) for x in coordinates]
        order = len(branches)
        if self.offset == 0.0:
            return self._without_offset(*branches)
        # Each factor is the offset plus the return without it: expand the product.
        return sum(
            self.offset ** (order - k) * self._without_offset(*chosen)
            for k in range(order + 1)
            for chosen in combinations(branches, k)
        )

    def _without_offset(self, *branches: StateAction) -> float:
        """Expectation of the product of the returns without the offset; 1 if there are none."""
        means = [float(self.mean[x]) - self.offset for x in branches]
        if len(branches) < 2:
            return prod(means)
        (s, a), (t, b) = branches[0], branches[-1]
        if len(branches) == 2 and s == t and not np.isnan(self.covariance[s, a, b]):
            return float(self.covariance[s, a, b]) + prod(means)
        return self.source.moment(branches)

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each state and ordered pair of different actions.

        The columns state, action and other name the row; mean and variance are those of
        Z(state, action). The columns covariance, correlation, gap_mean, gap_variance and
        inferiority_bound hold the entries of the arrays of these names; the gap is
        Z(state, action) - Z(state, other).

        Example:
            >>> import jmdp_lib as jl
            >>> frame = jl.jipe2(jl.coupled_reward_chain(2), [0, 0]).moments.to_frame()
            >>> print(frame[["state", "action", "other", "covariance", "gap_variance"]].round(3))
               state  action  other  covariance  gap_variance
            0      0       0      1       -0.25           1.0
            1      0       1      0       -0.25           1.0
            2      1       0      1        0.00           0.0
            3      1       1      0        0.00           0.0
        """
        self._need(2, "to_frame")
        names = ("mean", "variance", "covariance", "correlation", "gap_mean", "gap_variance")
        different = np.broadcast_to(~np.eye(self.mean.shape[1], dtype=bool), self.covariance.shape)
        rows = np.nonzero(different)
        shown = dict(zip(("state", "action", "other"), rows, strict=True))
        for name in (*names, "inferiority_bound"):
            values = getattr(self, name)
            shown[name] = values[rows[: values.ndim]]
        with extra("pandas"):  # imported here, since a plain install lacks it
            import pandas as pd
        return pd.DataFrame(shown)

    def second(self, x: StateAction, y: StateAction) -> float:
        """Second moment $Sigma(s, a, t, b) = E[Z(s, a) Z(t, b)]$.

        Args:
            x: (s, a).
            y: (t, b).

        Example:
            >>> import jmdp_lib as jl
            >>> jm = jl.coupled_reward_chain(4, gamma=0.9)
            >>> m = jl.jipe2(jm, jl.uniform_policy(jm)).moments
            >>> print(round(m.second((0, 0), (1, 1)), 3), round(m.full_second()[0, 0, 1, 1], 3))
            78.237 78.237
        """
        return self.moment([x, y])

    def full_second(self) -> Floats:
        """All of $Sigma$, (S, A, S, A); a MemoryError reports its size if it does not fit."""
        self._need(2, "full_second")
        require(32.0 * self.mean.size**2, f"the full Sigma of shape {self.mean.shape * 2}")
        second = self.source.full_second()
        if self.offset != 0.0:
            second = second + self.offset * (np.add.outer(self.mean, self.mean) - self.offset)
        return frozen(second)

    def same_state(self, order: int) -> Floats:
        """All same-state mixed moments of one order.

        Args:
            order: k, up to `order` of the collection.

        Returns:
            (S, A, ..., A) with k action axes.

        Example:
            >>> import jmdp_lib as jl
            >>> jl.jipe(jl.example_1(), [0], order=3).moments.same_state(3).shape
            (1, 2, 2, 2)
        """
        self._need(checks.at_least("order", order, 1), "same_state")
        num_states, num_actions = self.mean.shape
        axes = (num_states,) + (num_actions,) * order
        moment = cache(lambda s, *actions: self.moment([(s, a) for a in actions]))
        moments = [moment(s, *sorted(actions)) for s, *actions in np.ndindex(axes)]
        return frozen(np.reshape(moments, axes))

    def gap_moment(self, gaps: Sequence[tuple[int, int, int]]) -> float:
        """Moment $E[G_1 ... G_k]$ of gaps $G_i = Z(s_i, a_i) - Z(s_i, b_i)$.

        Repeat a gap for its powers: [(s, a, b)] * 3 is the third moment of one gap.

        Args:
            gaps: rows (state, a, b), k of them, up to `order`.

        Example:
            >>> import jmdp_lib as jl
            >>> m = jl.jipe(jl.coupled_reward_chain(4, gamma=0.9), [0] * 4, order=4).moments
            >>> gap = (0, 0, 1)
            >>> print([round(m.gap_moment([gap] * k), 6) for k in (2, 4)])
            [1.0, 1.0]
            >>> print(round(m.gap_central_moment(gap, 2), 6), m.gap_variance[gap].round(6))
            1.0 1.0
        """
        axes = ("row", "(state, action, other action)")
        rows = checks.integers("gaps", gaps, *axes, shape=(None, 3)).tolist()
        self._need(len(rows), "gap_moment")
        signed = [
            [(1.0, self._state_action((s, a))), (-1.0, self._state_action((s, b)))]
            for s, a, b in rows
        ]
        # No gap depends on the offset. Many products differ only in their order.
        expected = cache(self._without_offset)
        total = 0.0
        for factors in product(*signed):
            signs, branches = zip(*factors, strict=True)
            total += prod(signs) * expected(*sorted(branches))
        return total

    def gap_central_moment(self, gap: tuple[int, int, int], order: int) -> float:
        """Central moment $E[(G - E G)^k]$ of one gap.

        Args:
            gap: (state, a, b).
            order: k, from 0 up to `order` of the collection.
        """
        order = checks.at_least("order", order, 0)
        shift = -self.gap_moment([gap])
        raw = [1.0] + [self.gap_moment([gap] * j) for j in range(1, order + 1)]
        return sum(comb(order, j) * shift ** (order - j) * x for j, x in enumerate(raw))

    @property
    def covariance(self) -> Floats:
        """Covariances (S, A, A), $Cov(Z(s, a), Z(s, b))$."""
        self._need(2, "covariance")
        assert self._covariance is not None
        return self._covariance

    @property
    def variance(self) -> Floats:
        """Variances (S, A), $Var Z(s, a)$; a negative estimate is nan, as in `gap_variance`."""
        return frozen(self._not_negative(np.einsum("saa->sa", self.covariance)))

    @cached_property
    def correlation(self) -> Floats:
        """Correlations (S, A, A), $Corr(Z(s, a), Z(s, b))$; nan where a variance is zero."""
        deviation = np.sqrt(self.variance)
        deviation = np.where(deviation > self.resolution, deviation, np.nan)
        ratio = self.covariance / (deviation[:, :, None] * deviation[:, None, :])
        return frozen(np.clip(ratio, -1.0, 1.0))

    @property
    def gap_mean(self) -> Floats:
        """Means (S, A, A) of gaps, $E[Z(s, a) - Z(s, b)]$ at [s, a, b]."""
        return frozen(self.mean[:, :, None] - self.mean[:, None, :])

    @cached_property
    def gap_variance(self) -> Floats:
        """Variances (S, A, A) of gaps, $Var[Z(s, a) - Z(s, b)]$: eq. (35) with its sign corrected.

        A negative estimate, which a learned solution may have, is zero if rounding or `resolution`
        explains it, and nan otherwise.
        """
        variance = np.einsum("saa->sa", self.covariance)
        cross = self.covariance + self.covariance.transpose(0, 2, 1)
        gap = variance[:, :, None] + variance[:, None, :] - cross
        return frozen(self._not_negative(gap))

    @property
    def inferiority_bound(self) -> Floats:
        """Cantelli's bound (S, A, A) on $P(Z(s, a) <= Z(s, b))$.

        It is 1 unless the mean gap is positive by more than its error bound.
        """
        mean = np.where(self.gap_mean > 2.0 * self.mean_error, self.gap_mean, 0.0)
        return frozen(_cantelli(mean, self.gap_variance))

    def _not_negative(self, variance: Floats) -> Floats:
        """Variances; negative ones become zero if rounding explains them, else nan."""
        rounding = 1e-12 * np.nanmax(np.abs(self.covariance)) + 1e-14 * np.nanmax(self.mean**2)
        tolerance = 4.0 * self.resolution**2 + rounding
        return np.where(variance >= 0.0, variance, np.where(variance >= -tolerance, 0.0, np.nan))

    def _need(self, order: int, what: str) -> None:
        if not 1 <= order <= self.order:
            raise ValueError(
                f"{what} needs moments of order {order}; this collection holds orders 1 to "
                f"{self.order}"
            )

    def _state_action(self, x: StateAction) -> StateAction:
        try:
            s, a = x
        except (TypeError, ValueError):
            raise ValueError(f"a coordinate must be a pair (state, action), got {x!r}") from None
        num_states, num_actions = self.mean.shape
        return checks.index("state", s, num_states), checks.index("action", a, num_actions)
