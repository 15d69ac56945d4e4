"""Projected JIPE-2 with linear features (Section 5.1, Appendix B): M_{k+1} = Pi T_2 M_k.

    mu(x) = phi(x)' theta,   Sigma(x, y) = phi(x)' Theta phi(y)

theta is a least-squares step in the weights nu, Theta a least-squares step in the pair weights d
over a cone: Theta >= 0 (the paper's), or [[1, theta'], [theta, Theta]] >= 0, which is the same as
Theta - theta theta' >= 0 and keeps variances from being negative. Features are whitened in nu
first: cones do not change under that, and the normal matrix becomes well scaled.

For any weights, with c_1^2 = max (nu P) / nu, c_2^2 = max (d P_2) / d, c_3^2 = max (d P_2)_2 / nu,

    kappa = max{gamma c_1, 2 beta gamma rho c_3 + gamma^2 c_2}

is a modulus of Pi T_2 in max{||mu||_nu, beta ||Sigma||_d} for a fixed cone. (The augmented cone
moves with theta, which converges by itself, at rate gamma c_1; once it stands, so does the cone.)
The occupancy with parameter eta has c_1, c_2, c_3 <= eta^(-1/2); the paper's stationary weights
have all three equal to one. For weights with kappa >= 1 nothing is promised: the equation may be
solved, but error_bound is infinite and `converged` false.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Moments, norm_weight
from jmdp_lib.solvers.fixed_point import ConvergenceWarning, Solution, iterate
from jmdp_lib.solvers.order2 import jipe2
from jmdp_lib.solvers.projection import ProjectedProblem, ProjectionStep


@dataclass(frozen=True, repr=False, eq=False)
class ProjectedSolution(Solution):
    """A Solution in a feature space; residuals and error_bound are in the weighted norm.

    error_bound: residuals[-1] / (1 - contraction), the distance to the projected fixed point, not
        to the true moments: that is `approximation_bound`.

    Attributes:
        theta, Theta: (d,) and (d, d).
        mean_weights, pair_weights: nu (S, A) and d (S, A, S, A).
        contraction, beta: kappa and the beta of the norm max{||mu||_nu, beta ||Sigma||_d}.
        problem: features, weights and cone, for the two properties below.
    """

    theta: Floats
    Theta: Floats
    mean_weights: Floats
    pair_weights: Floats
    contraction: float
    beta: float
    problem: ProjectedProblem

    @cached_property
    def _exact(self) -> tuple[Floats, Floats]:
        exact = jipe2(self.problem.jm, self.problem.policy, tol=self._exact_tol).moments
        return exact.mean.ravel(), exact.full_second().reshape([exact.mean.size] * 2)

    @property
    def _exact_tol(self) -> float:
        return max(1e-10, 1e-12 / (1.0 - self.problem.jm.gamma) ** 2)

    @cached_property
    def approximation_error(self) -> float:
        """||M_hat - M^pi|| in the weighted norm; solves the problem exactly to know."""
        phi = self.problem.phi
        mean, second = self._exact
        return self.problem.norm(
            phi @ self.theta - mean, phi @ self.Theta @ phi.T - second, self.beta
        )

    @cached_property
    def approximation_bound(self) -> float:
        """||Pi M^pi - M^pi|| / (1 - kappa): what the theorem allows the error to be.

        The distance to the fixed point that was reached, and the accuracy of M^pi, are counted in.
        """
        problem, phi = self.problem, self.problem.phi
        mean, second = self._exact
        theta = problem.fit_mean(mean)
        whitened = problem.whiten @ self.theta  # the cone is the one at the fixed point
        best = problem.unwhiten(problem.fit_second(second, whitened))
        distance = problem.norm(phi @ theta - mean, phi @ best @ phi.T - second, self.beta)
        if self.contraction >= 1.0:
            return np.inf
        weight = norm_weight(2, problem.jm.gamma, problem.jm.reward_bound)
        accuracy = self._exact_tol * problem.jm.reward_bound * max(1.0, self.beta * weight)
        return (distance + 2.0 * accuracy) / (1.0 - self.contraction) + self.error_bound


def projected_jipe2(
    jm: JMDP,
    policy: ArrayLike,
    features: ArrayLike,
    weights: str | ArrayLike = "occupancy",
    cone: str = "augmented",
    eta: float | None = None,
    tol: float = 1e-6,
    initial: str | tuple[ArrayLike, ArrayLike] = "solve",
    max_iterations: int | None = None,
) -> ProjectedSolution:
    """The projected fixed point in span(features), features (S, A, d) of full column rank.

    weights: "occupancy" (discounted pair occupancy, gamma^2 < eta < 1, default eta = gamma),
        "stationary" (the paper's; the chain must be ergodic), "product" (the occupancy's
        state-action weights, pairs independent: closed-form projection), or an array (S, A, S, A).
    cone: "augmented", "psd" (Theta >= 0) or "none".
    tol: accuracy in the weighted norm, relative to jm.reward_bound, as of `jipe2`.
    initial: "solve" works the fixed point out by one linear and one conic solve and leaves it to
        the iteration to certify it; "zero", or (theta, Theta), start the iteration there.
    """
    if not isinstance(jm, JMDP):
        raise ValueError(f"projected_jipe2 needs a JMDP, whose tables are known, got {jm!r}")
    checked, allowed = (
        checks.policy_matrix(jm, policy),
        checks.positive("tol", tol) * jm.reward_bound,
    )
    if max_iterations is not None:
        checks.at_least("max_iterations", max_iterations, 1)
    problem = ProjectedProblem.of(jm, checked, features, weights, cone, eta)
    kappa, beta = problem.modulus
    step = ProjectionStep(problem, beta)
    if isinstance(initial, str):
        checks.one_of("initial", initial, ("solve", "zero"))
        start = step.zero() if initial == "zero" else step.solve()
    elif not isinstance(initial, tuple) or len(initial) != 2:
        raise ValueError(f"initial must be 'solve', 'zero' or (theta, Theta), got {initial!r}")
    else:
        d = problem.phi.shape[1]
        theta = checks.floats("initial theta", initial[0], "feature")
        matrix = checks.floats("initial Theta", initial[1], "feature", "feature")
        checks.same_shape("initial theta", theta.shape, (d,), "(d,)")
        checks.same_shape("initial Theta", matrix.shape, (d, d), "(d, d)")
        start = problem.whiten @ theta, problem.whiten @ matrix @ problem.whiten.T
    if kappa < 1.0:
        end = iterate(step, start, kappa, allowed, max_iterations, "projected JIPE-2")
    else:  # no contraction is known: stop on the residual, claim nothing
        limit = 10_000 if max_iterations is None else max_iterations
        end = iterate(step, start, 0.0, allowed, limit, "projected JIPE-2")
        end = replace(end, converged=False, error_bound=np.inf)
        warnings.warn(
            f"these weights give no contraction (kappa = {kappa:.3g}): nothing bounds the error",
            ConvergenceWarning, stacklevel=2,
        )  # fmt: skip
    theta, big = np.linalg.solve(problem.whiten, end.state[0]), problem.unwhiten(end.state[1])
    shape = checked.shape
    mean = (problem.phi @ theta).reshape(shape)
    source = FeatureSource(problem.phi.reshape(*shape, -1), theta, big)
    blocks = source.same_state() - mean[:, :, None] * mean[:, None, :]
    moments = Moments(2, mean, blocks, source, 0.0, 1e-9 * (1.0 + float(np.abs(mean).max())))
    return ProjectedSolution(
        moments, end.residuals, end.converged, end.error_bound, len(end.residuals),
        theta, big, problem.nu.reshape(shape), problem.d.reshape(shape + shape), kappa, beta,
        problem,
    )  # fmt: skip


@dataclass(frozen=True)
class FeatureSource:
    """Moments that are linear in features (S, A, d)."""

    features: Floats
    theta: Floats
    Theta: Floats

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """phi' theta, or phi' Theta phi."""
        phi = [self.features[x] for x in coordinates]
        value = phi[0] @ self.theta if len(phi) == 1 else phi[0] @ self.Theta @ phi[1]
        return float(value)

    def same_state(self) -> Floats:
        """(S, A, A)."""
        return np.einsum("sai,ij,sbj->sab", self.features, self.Theta, self.features, optimize=True)

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        shape = self.features.shape[:2]
        phi = self.features.reshape(-1, self.features.shape[2])
        return (phi @ self.Theta @ phi.T).reshape(shape + shape)
