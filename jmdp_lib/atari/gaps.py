"""Records of recursive pairs, and what they say about gaps for any discount and reward shock.

Given a record (both branches' rewards, actions and meetings) the return gap is

    G = sum_t gamma^t (r_t - r~_t) + S,    E[S | record] = 0,

where S collects the shocks sigma * w_a * U, one U per table: shared while the branches stand at
the same state, independent elsewhere. Its variance given the record is a finite sum, so
Var G = Var(first part) + E[Var(S | record)] needs no simulated shock (Rao-Blackwell).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks
from jmdp_lib.atari.archive import Archive
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.statistics import group_covariance, group_means, variance_values

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PairRecords(Archive):
    """M pairs of branches over H steps. Two branches, b = 0 and 1, start at one state.

    Attributes:
        state_rows: (M,) which evaluation state a pair starts at.
        actions: (M, 2) first actions.
        rewards: (M, 2, H) float32 raw emulator rewards, 0 after an end.
        alive: (M, 2, H) bool: the branch made a transition at time t.
        same_state: (M, H) bool: both branches stand at the same JMDP state, and share a table.
        merged: (M, H) bool: and play the same action: one and the same transition from here on.
        played: (M, 2, H) int8 the action of each branch, 0 after an end.
    """

    state_rows: Ints
    actions: Ints
    rewards: NDArray[np.float32]
    alive: Flags
    same_state: Flags
    merged: Flags
    played: NDArray[np.int8]

    def __post_init__(self) -> None:
        m, _, h = np.shape(self.rewards)
        for name, shape, meaning in (
            ("state_rows", (m,), "(M,)"),
            ("actions", (m, 2), "(M, 2)"),
            ("rewards", (m, 2, h), "(M, 2, H)"),
            ("alive", (m, 2, h), "(M, 2, H)"),
            ("same_state", (m, h), "(M, H)"),
            ("merged", (m, h), "(M, H)"),
            ("played", (m, 2, h), "(M, 2, H)"),
        ):
            checks.same_shape(name, getattr(self, name).shape, shape, meaning)


@dataclass(frozen=True, eq=False)
class GapEstimates:
    """Unbiased estimates for C discounts and K groups of pairs, with their standard errors.

    A group is a state and two actions, or an average of such. Errors are those of the simulation
    at the given states and actions; they say nothing about other states.

    Attributes:
        gammas: (C,).
        state_rows, actions: (K,) and (K, 2), of single groups; None for averages.
        mean: (C, K) E G.
        variance: (C, K) Var G = Var(Z(s, a) - Z(s, b)).
        independent: (C, K) Var Z(s, a) + Var Z(s, b), what independent marginals would have.
        mean_error, variance_error, independent_error: (C, K) standard errors.
        covariance: (C, K) of the estimates `variance` and `independent`: same simulations.
    """

    gammas: Floats
    state_rows: Ints | None
    actions: Ints | None
    mean: Floats
    variance: Floats
    independent: Floats
    mean_error: Floats
    variance_error: Floats
    independent_error: Floats
    covariance: Floats

    @property
    def ratio(self) -> Floats:
        """(C, K) independent / variance; inf or nan where the gap is constant."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.independent / self.variance

    @property
    def ratio_error(self) -> Floats:
        """(C, K) standard error of the ratio, by the delta method."""
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = (
                self.independent_error**2
                + (self.ratio * self.variance_error) ** 2
                - 2.0 * self.ratio * self.covariance
            )
            return np.sqrt(np.maximum(spread, 0.0)) / self.variance

    def average(self, labels: ArrayLike | None = None) -> GapEstimates:
        """Equal-weight averages of the groups with the same label (K,), sorted by label.

        `average(estimates.state_rows)` is per state; without labels all groups are one.
        """
        size = self.mean.shape[1]
        names = np.zeros(size, dtype=np.int64) if labels is None else np.asarray(labels)
        checks.same_shape("labels", names.shape, (size,), "(K,)")
        _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
        estimates = (self.mean, self.variance, self.independent)
        errors = (self.mean_error, self.variance_error, self.independent_error)
        means = [group_means(x, inverse) for x in estimates]
        pooled = [np.sqrt(group_means(x**2, inverse) / counts) for x in errors]
        covariance = group_means(self.covariance, inverse) / counts
        return GapEstimates(
            self.gammas, None, None, means[0], means[1], means[2], pooled[0], pooled[1], pooled[2],
            covariance,
        )  # fmt: skip


def gap_estimates(
    records: PairRecords,
    gammas: ArrayLike,
    sigma: float = 0.0,
    loadings: ArrayLike | None = None,
    reward_clip: float = 1.0,
) -> GapEstimates:
    """Gap mean and variance of every (state, actions), each with three pairs or more.

    Returns are cut at the records' horizon H: what is missing is of size gamma^H.

    gammas: (C,). sigma, loadings (A,): the reward shock; None: all ones. Rewards are clipped to
    [-reward_clip, reward_clip], by default as the diagnostic has them.
    """
    gammas = _discounts(gammas)
    if not checks.real("reward_clip", reward_clip) > 0:
        raise ValueError(f"reward_clip must be positive, got {reward_clip}")
    key = np.column_stack([records.state_rows, records.actions])
    groups, inverse, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    if counts.min() < 3:
        s, a, b = groups[counts.argmin()]
        raise ValueError(
            f"a variance with its error needs three pairs or more: state row {s}, actions "
            f"({a}, {b}) has {counts.min()}"
        )
    group = inverse.ravel()  # (M,) in range(K)
    returns = discounted_returns(records, gammas, reward_clip)  # (C, M, 2)
    gap_shock, own_shock = shock_variances(records, gammas, sigma, loadings)
    gap = returns[..., 0] - returns[..., 1]
    coupled = variance_values(gap, group) + gap_shock
    independent = own_shock.sum(-1)
    for branch in (0, 1):
        independent += variance_values(returns[..., branch], group)
    values = (gap, coupled, independent)
    means = [group_means(x, group) for x in values]
    errors = [np.sqrt(group_covariance(x, x, group)) for x in values]
    covariance = group_covariance(coupled, independent, group)
    return GapEstimates(
        gammas, groups[:, 0], groups[:, 1:], means[0], means[1], means[2], errors[0], errors[1],
        errors[2], covariance,
    )  # fmt: skip


def discounted_returns(records: PairRecords, gammas: Floats, reward_clip: float) -> Floats:
    """(C, M, 2) returns of both branches without shocks, cut at the horizon."""
    rewards = np.clip(records.rewards, -reward_clip, reward_clip)
    powers = np.asarray(gammas)[:, None] ** np.arange(rewards.shape[2])
    return np.moveaxis(rewards.astype(np.float64) @ powers.T, 2, 0)


def shock_variances(
    records: PairRecords, gammas: Floats, sigma: float, loadings: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Variance of the shocks given each record: of the gap (C, M), of each branch (C, M, 2)."""
    weights = records.alive.astype(np.float64)  # (M, 2, H), sigma * w of the action played
    if loadings is not None:
        table = checks.floats("loadings", loadings, "action")
        if records.played.max() >= table.size:
            raise ValueError(f"loadings has {table.size} actions, {records.played.max()} is played")
        weights *= table[records.played]
    weights *= checks.finite("sigma", sigma)
    own = weights**2
    shared = (weights[:, 0] - weights[:, 1]) ** 2
    gap = np.where(records.same_state, shared, own.sum(1))  # (M, H)
    powers = np.asarray(gammas)[:, None] ** (2 * np.arange(gap.shape[1]))
    return powers @ gap.T, np.moveaxis(own @ powers.T, 2, 0)


def shock_ratio(gammas: ArrayLike, loadings: ArrayLike | None = None) -> Floats:
    """(C,) independent / coupled where shocks are all there is and branches never meet again.

    Averaged over the first actions a != b; 1 / gamma^2 where all loadings are one.
    """
    gamma = _discounts(gammas)
    w = np.ones(2) if loadings is None else checks.floats("loadings", loadings, "action")
    later = 2.0 * gamma**2 / (1.0 - gamma**2) * np.mean(w**2)
    apart = ~np.eye(w.size, dtype=bool)
    shared = np.mean(np.subtract.outer(w, w)[apart] ** 2)
    with np.errstate(divide="ignore"):  # gamma = 0 with equal loadings: the gap is constant
        return (2.0 * np.mean(w**2) + later) / (shared + later)


def _discounts(gammas: ArrayLike) -> Floats:
    """(C,) in [0, 1)."""
    return np.array([checks.discount(gamma) for gamma in checks.floats("gammas", gammas, "gamma")])
