"""Projected JIPE-2 with linear features (Section 5.1, Appendix B): M_{k+1} = Pi T_2 M_k.

    mu(x) = phi(x)' theta,   Sigma(x, y) = phi(x)' Theta phi(y)

theta is a least-squares step in the weights nu, Theta a least-squares step in the pair weights d
over a cone: Theta >= 0 (the paper's), or [[1, theta'], [theta, Theta]] >= 0, which is equivalent to
Theta - theta theta' >= 0 and keeps variances from being negative.

For any weights, with c_1^2 = max (nu P) / nu, c_2^2 = max (d P_2) / d, c_3^2 = max (d P_2)_2 / nu,

    kappa = max{gamma c_1, 2 beta gamma r_max c_3 + gamma^2 c_2}

is a modulus of Pi T_2 in max{||mu||_nu, beta ||Sigma||_d} for a fixed cone. (The augmented cone
depends on theta. As theta converges, at rate gamma c_1, so does the cone.)

The paper's weights are a stationary distribution of the pair chain P_2, for which c_1, c_2 and c_3
are one. The diagonal is absorbing for that chain: if two branches ever meet, these weights are zero
off the diagonal and say nothing about gaps. The discounted occupancy
d = (1 - eta) sum_t eta^t xi_0 P_2^t, with eta = gamma, has positive weights where xi_0 has, and
d P_2 <= d / eta bounds all three constants by eta^(-1/2). If kappa >= 1, there is no guarantee:
error_bound is infinite and `converged` is false, even if the equation is solved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, StoredMoments
from jmdp_lib.operators.pair_chain import RESTART, occupancy, pair_step, stationary_pairs
from jmdp_lib.operators.pairs import PairOperator, PairState
from jmdp_lib.policies import Policy
from jmdp_lib.solvers import projection
from jmdp_lib.solvers.fixed_point import Certificate, Solution, certify, iterate, warn
from jmdp_lib.solvers.projection import Cone, Projection

Weights = Literal["occupancy", "stationary", "product"]
Parameters = tuple[Floats, Floats]


@dataclass(frozen=True, repr=False, eq=False)
class ProjectedSolution(Solution):
    """Solution in a feature space; its residuals are in the weighted norm.

    Attributes:
        theta, Theta: (d,) and (d, d): $mu(x) = phi(x)' theta$,
            $Sigma(x, y) = phi(x)' Theta phi(y)$.
        features: (S, A, d), $phi$; columns above 1e50, or below 1e-50, are scaled to at most one.
        pair_weights: (S, A, S, A), the weights $nu_2$ of pairs of state-actions.
        cone: "augmented", "psd" or "none".
        contraction, beta: $kappa$, and the $beta$ of the norm
            $max(||mu||_nu, beta ||Sigma||_{nu_2})$.
        error_bound: the last residual divided by $1 - kappa$: the distance to the projected fixed
            point. The distance to the true moments has the bound `approximation_bound`.
    """

    theta: Floats
    Theta: Floats
    features: Floats
    pair_weights: Floats
    cone: str
    contraction: float
    beta: float

    @cached_property
    def projection(self) -> Projection:
        """Projection $Pi$ onto the span of the features and onto the cone."""
        num = self.moments.mean.size
        pairs = self.pair_weights.reshape(num, num)
        return Projection(self.features.reshape(num, -1), pairs, self.cone)

    def approximation_error(self, exact: Moments) -> float:
        """Distance to the true moments in the weighted norm, $||hat M - M^pi||$.

        Args:
            exact: $M^pi$, for example from `jipe2`.
        """
        return self._distance(exact, self.theta, self.Theta)

    def approximation_bound(self, exact: Moments) -> float:
        """Bound on that distance: $||Pi M^pi - M^pi|| / (1 - kappa)$ (Theorem B.4, eq. (78)).

        It includes error_bound, the remaining distance to the projected fixed point.

        Args:
            exact: $M^pi$, for example from `jipe2`.
        """
        if self.contraction >= 1.0:
            return np.inf
        pi = self.projection
        right = pi.second_side(exact.full_second())
        best = pi.project(right, pi.whiten @ self.theta)  # in the cone at the fixed point
        distance = self._distance(exact, *pi.unwhiten(pi.mean_side(exact.mean), best))
        return distance / (1.0 - self.contraction) + self.error_bound

    def _distance(self, exact: Moments, theta: Floats, matrix: Floats) -> float:
        """Distance of (phi theta, phi Theta phi') to `exact` in the weighted norm."""
        pi = self.projection
        phi = pi.phi
        mean = phi @ theta - exact.mean.ravel()
        second = phi @ matrix @ phi.T - exact.full_second().reshape(pi.pairs.shape)
        squares = np.sum(pi.nu * mean**2), self.beta**2 * np.sum(pi.pairs * second**2)
        return float(np.sqrt(max(squares)))


def projected_jipe2(
    jm: JMDP,
    policy: Policy,
    features: ArrayLike,
    *,
    weights: Weights = "occupancy",
    cone: Cone = "augmented",
    tol: float = 1e-6,
) -> ProjectedSolution:
    """Compute moments that are linear in features: the fixed point of $Pi T_2$ (Appendix B).

    One linear and one conic solve compute it; the iteration $M_{k+1} = Pi T_2 M_k$ certifies it.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        features: (S, A, d), $phi(s, a)$, of full column rank.
        weights: weights of the pairs in the norm of the projection: "occupancy" (discounted pair
            occupancy), "stationary" (the paper's; the chain must be ergodic), or "product" (the
            occupancy's state-action weights with independent pairs, whose projection has a closed
            form).
        cone: "augmented" keeps $Theta - theta theta'$ positive semidefinite, so that no variance is
            negative; "psd" keeps $Theta$ positive semidefinite, as the paper does; "none".
        tol: accuracy in the weighted norm, relative to the largest absolute reward: the result has
            converged once error_bound is at most tol * jm.reward_bound.

    Returns:
        The projected moments, their parameters, and bounds on their errors.

    Raises:
        ValueError: the features do not have full rank, or the weights are not defined.
        MemoryError: the pairs of state-actions, or the products of features, do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.coupled_reward_chain(6, gamma=0.9)
        >>> policy = jl.uniform_policy(jm)
        >>> groups = np.repeat(np.eye(3), 2, axis=0)  # two neighbouring states share a feature
        >>> features = jl.action_features(groups, jm.num_actions)
        >>> solution = jl.projected_jipe2(jm, policy, features)
        >>> solution.converged, solution.theta.shape, solution.Theta.shape
        (True, (6,), (6, 6))
        >>> exact = jl.jipe2(jm, policy).moments
        >>> error, bound = solution.approximation_error(exact), solution.approximation_bound(exact)
        >>> print(f"error {error:.3f}, at most {bound:.3f} by the theorem")
        error 0.364, at most 2.357 by the theorem
    """
    operator = PairOperator.of("projected_jipe2", jm, policy)
    policy = operator.policy
    error_tol = checks.positive("tol", tol) * jm.reward_bound
    checks.one_of("weights", weights, get_args(Weights))
    checks.one_of("cone", cone, get_args(Cone))
    phi = projection.checked_features(features, policy.shape)
    _require_room(jm, *phi.shape)
    pairs = _pair_weights(jm, policy, weights)
    pi = Projection(phi, pairs, cone)
    kappa, beta = modulus(jm, policy, pi)
    step = ProjectionStep(operator, pi, beta)
    state, end = _certified(step, kappa, error_tol)
    theta, big_theta = pi.unwhiten(*state)
    fit = step.fitted(phi, theta, big_theta)
    resolution = 1e-7 * float(np.abs(fit.mean).max())  # second moments are differences of squares
    return ProjectedSolution(
        Moments(2, fit.mean, fit.blocks, StoredMoments(fit.second), 0.0, resolution),
        *end,
        theta=theta,
        Theta=big_theta,
        features=phi.reshape(*policy.shape, -1),
        pair_weights=pairs.reshape(policy.shape * 2),
        cone=cone,
        contraction=kappa,
        beta=beta,
    )


def _certified(
    step: ProjectionStep, kappa: float, error_tol: float
) -> tuple[Parameters, Certificate]:
    """Iterate from the direct solution until the certificate is small enough."""
    name = "projected JIPE-2"
    # Without a contraction, stop at a small residual, as for a rate of zero, and certify nothing.
    rate, limit = (kappa, None) if kappa < 1.0 else (0.0, 10_000)
    residual_tol = error_tol * (1.0 - rate)
    state, residuals, rounding = iterate(step, step.solve(), rate, residual_tol, limit, name)
    if kappa < 1.0:
        return state, certify(residuals, rounding, kappa, error_tol, residuals.size, name)
    warn(f"these weights give no contraction (kappa = {kappa:.3g}): nothing bounds the error")
    return state, Certificate(residuals, "no contraction", np.inf, residuals.size)


def _pair_weights(jm: JMDP, policy: Floats, weights: str) -> Floats:
    """Symmetric weights (X, X) of pairs of state-actions."""
    chosen = (stationary_pairs if weights == "stationary" else occupancy)(jm, policy)
    pairs = chosen.reshape(policy.size, policy.size)
    pairs = (pairs + pairs.T) / 2.0
    return np.outer(pairs.sum(1), pairs.sum(1)) if weights == "product" else pairs


def _require_room(jm: JMDP, num: int, d: int) -> None:
    """Raise a MemoryError if vectors over pairs, or products of features, do not fit."""
    size = 8.0 * (RESTART * jm.num_states**2 + 16 * num**2 + 6 * d**4)
    what = f"projected_jipe2 with {d:,} features on {num:,} state-actions"
    require(size, what, "jipe2 is exact and holds far less")


def modulus(jm: JMDP, policy: Floats, pi: Projection) -> tuple[float, float]:
    """Modulus kappa, and the beta that minimises it; if kappa >= 1, nothing is guaranteed."""
    gamma = jm.gamma
    if gamma == 0.0:
        return 0.0, 1.0
    pushed = pair_step(jm, policy, pi.pairs.reshape(policy.shape * 2)).reshape(pi.pairs.shape)
    arrivals = jm.transitions.T @ pi.nu  # weights of the next state
    c_1 = _growth((policy * arrivals[:, None]).ravel(), pi.nu)
    c_2 = _growth(pushed, pi.pairs)
    c_3 = _growth(pushed.sum(0), pi.nu)
    least = max(gamma * c_1, gamma**2 * c_2)
    if least >= 1.0:
        return least, (1.0 - gamma) / (2.0 * jm.reward_bound)
    kappa = gamma * c_1 if c_1 > gamma * c_2 else (1.0 + gamma**2 * c_2) / 2.0
    return kappa, (kappa / gamma - gamma * c_2) / (2.0 * jm.reward_bound * c_3)


def _growth(after: Floats, before: Floats) -> float:
    """Square root of the largest after / before, of one shape; infinite if `before` is zero."""
    some = after > 1e-15
    with np.errstate(divide="ignore"):
        return float(np.sqrt((after[some] / before[some]).max()))


@dataclass(frozen=True)
class ProjectionStep:
    """Operator Pi T_2 on whitened (theta, Theta), for `fixed_point.iterate`."""

    operator: PairOperator
    pi: Projection
    beta: float

    def zero(self) -> Parameters:
        """Parameters of M = 0."""
        size = self.pi.phi.shape[1]
        return np.zeros(size), np.zeros((size, size))

    def fitted(self, features: Floats, theta: Floats, big: Floats) -> PairState:
        """Moments (phi theta, phi Theta phi') for features phi (X, d)."""
        shape = self.operator.policy.shape
        second = features @ big @ features.T
        return self.operator.centre((features @ theta).reshape(shape), second.reshape(shape * 2))

    def applied(self, state: Parameters) -> PairState:
        """Apply T_2 to the moments of whitened parameters."""
        return self.operator.apply(self.fitted(self.pi.psi, *state))

    def apply(self, state: Parameters) -> Parameters:
        """Apply Pi T_2."""
        new = self.applied(state)
        theta = self.pi.mean_side(new.mean)
        return theta, self.pi.project(self.pi.second_side(new.second), theta)

    def distance(self, new: Parameters, old: Parameters) -> float:
        """Weighted norm of a difference of parameters."""
        change = projection.to_vector(new[1] - old[1])
        second = np.sqrt(max(float(change @ self.pi.normal @ change), 0.0))
        return float(max(np.linalg.norm(new[0] - old[0]), self.beta * second))

    @property
    def longest_sum(self) -> int:
        """Number of terms that a parameter of Pi T_2 M sums."""
        return self.operator.policy.size

    def solve(self) -> Parameters:
        """Solve for the projected fixed point: a linear solve for theta, then a conic one."""
        pi = self.pi
        zero, nothing = self.zero()
        source = pi.mean_side(self.applied((zero, nothing)).mean)
        moved = pi.nu[:, None] * (self.operator.jm.transitions @ self._value)  # diag(nu) P psi
        slope = self.operator.jm.gamma * pi.psi.T @ moved
        theta: Floats = linalg.solve(np.eye(zero.size) - slope, source)
        right = pi.second_side(self.applied((theta, nothing)).second)
        linear = pi.normal - self.second_slope()
        free = projection.to_matrix(projection.least_squares(linear, right))
        floor = pi.floor(theta)
        if pi.cone == "none" or linalg.eigvalsh(free - floor)[0] >= 0.0:
            return theta, free
        return theta, projection.solve_in_cone(linear, right, floor, free)

    @cached_property
    def _value(self) -> Floats:
        """Policy averages E psi(s, A), (S, d)."""
        return np.asarray(self.operator.average @ self.pi.psi)

    def second_slope(self) -> Floats:
        """Matrix (p, p) of Theta -> psi' (pairs o gamma^2 P_2 (psi Theta psi')) psi.

        It is computed by matrix products; applying T_2 to every unit matrix takes p times as long.
        """
        jm = self.operator.jm
        psi = self.pi.psi
        shaped = psi.reshape(*self.operator.policy.shape, -1)
        between = self.pi.pairs.copy()
        same = np.einsum("sasb->sab", between.reshape(self.operator.policy.shape * 2))
        weight = jm.probs[:, None, None] * same[jm.table_states]  # (T, A, A)
        same[...] = 0.0
        four = projection.products_of(psi, np.asarray(jm.transitions @ self._value), between)
        square = np.einsum("sa,sai,saj->sij", self.operator.policy, shaped, shaped, optimize=True)
        table, a, b = np.nonzero(weight)
        here = jm.table_states[table]
        left = shaped[here, a][:, :, None] * shaped[here, b][:, None, :]
        left *= weight[table, a, b][:, None, None]
        after = jm.next_states[table, a], jm.next_states[table, b]
        right = self._value[after[0]][:, :, None] * self._value[after[1]][:, None, :]
        right[a == b] = square[after[0][a == b]]  # coalesced
        four += np.tensordot(left, right, (0, 0))
        return jm.gamma**2 * projection.symmetric_matrix(four)
