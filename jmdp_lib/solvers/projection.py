"""The projection of projected JIPE-2: features, weights, cone, and one step Pi T_2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.operators.pairs import PairOperator, pair_step, policy_average
from jmdp_lib.solvers.conic import psd_part, solve_in_cone, symmetric_matrix, to_matrix, to_vector
from jmdp_lib.solvers.pair_weights import occupancy, stationary_pairs

WEIGHTS = ("occupancy", "stationary", "product")
CONES = ("augmented", "psd", "none")
Parameters = tuple[Floats, Floats]


@dataclass(frozen=True)
class ProjectedProblem:
    """Features phi (X, d), weights nu (X,) and d (X, X), cone; x = s * A + a."""

    jm: JMDP
    policy: Floats
    phi: Floats
    nu: Floats
    d: Floats
    cone: str
    product: bool

    @classmethod
    def of(
        cls, jm: JMDP, policy: Floats, features: ArrayLike, weights: str | ArrayLike, cone: str,
        eta: float | None,
    ) -> ProjectedProblem:  # fmt: skip
        """Checked, with the weights worked out."""
        checks.one_of("cone", cone, CONES)
        phi = checks.floats("features", features, "state", "action", "feature")
        checks.same_shape("features", phi.shape[:2], policy.shape, "(S, A, d), the first two")
        phi = phi.reshape(policy.size, -1)
        _check_rank(phi)
        eta = jm.gamma if eta is None else checks.real("eta", eta)
        if not (jm.gamma**2 < eta < 1.0 or (jm.gamma == eta == 0.0)):
            raise ValueError(f"eta must lie in (gamma^2, 1) = ({jm.gamma**2:.6g}, 1), got {eta}")
        if isinstance(weights, str):
            checks.one_of("weights", weights, WEIGHTS)
            law = (
                stationary_pairs(jm, policy)
                if weights == "stationary"
                else occupancy(jm, policy, eta)
            )
        else:
            axes = ("state", "action", "other state", "other action")
            law = checks.floats("weights", weights, *axes)
            checks.same_shape("weights", law.shape, policy.shape * 2, "(S, A, S, A)")
            checks.refuse("weights", law, law < 0, "is negative", axes)
            if not law.any():
                raise ValueError("weights must not all be zero")
            law = law / law.sum()
        pairs = law.reshape(policy.size, policy.size)
        pairs = (pairs + pairs.T) / 2.0
        nu = pairs.sum(1)
        checks.refuse(
            "state-action weights", nu.reshape(policy.shape), nu.reshape(policy.shape) <= 0,
            "is not positive", ["state", "action"],
        )  # fmt: skip
        product = isinstance(weights, str) and weights == "product"
        return cls(jm, policy, phi, nu, np.outer(nu, nu) if product else pairs, cone, product)

    @cached_property
    def modulus(self) -> tuple[float, float]:
        """kappa and the beta that makes it least; kappa >= 1 says that nothing is known."""
        gamma, rho = self.jm.gamma, self.jm.reward_bound
        shape = self.policy.shape
        pushed = pair_step(self.jm, self.policy, self.d.reshape(shape + shape))
        pushed = pushed.reshape(self.d.shape)
        seen, natural = self.d > 0, (1.0 - gamma) / (2.0 * rho)
        if np.any(pushed[~seen] > 1e-15):
            return np.inf, natural
        c_2 = np.sqrt((pushed[seen] / self.d[seen]).max())
        alone = self.jm.transitions.T @ self.nu  # law of the next state
        c_1 = np.sqrt(((self.policy * alone[:, None]).ravel() / self.nu).max())
        c_3 = np.sqrt((pushed.sum(0) / self.nu).max())
        if gamma == 0.0:
            return 0.0, 1.0
        if gamma * c_1 >= 1.0:
            return float(gamma * c_1), natural
        if c_1 > gamma * c_2:
            return float(gamma * c_1), float((c_1 - gamma * c_2) / (2.0 * rho * c_3))
        if gamma**2 * c_2 >= 1.0:
            return float(gamma**2 * c_2), natural
        kappa = (1.0 + gamma**2 * c_2) / 2.0
        return float(kappa), float((kappa - gamma**2 * c_2) / (2.0 * gamma * rho * c_3))

    @cached_property
    def whiten(self) -> Floats:
        """(d, d) upper triangular: whitened parameters are whiten @ theta."""
        return np.asarray(np.linalg.qr(np.sqrt(self.nu)[:, None] * self.phi, mode="r"))

    def unwhiten(self, matrix: Floats) -> Floats:
        """Theta of a whitened one."""
        half = np.linalg.solve(self.whiten, matrix)
        return np.linalg.solve(self.whiten, half.T).T

    @cached_property
    def psi(self) -> Floats:
        """(X, d) whitened features: psi' diag(nu) psi = 1."""
        return linalg.solve_triangular(self.whiten, self.phi.T, trans="T").T

    @cached_property
    def normal(self) -> Floats:
        """(p, p) the map Theta -> psi' (d o psi Theta psi') psi on symmetric matrices."""
        psi = self.psi
        size = psi.shape[1]
        square = (psi[:, :, None] * psi[:, None, :]).reshape(len(psi), -1)  # (X, d*d)
        four = (square.T @ (self.d @ square)).reshape([size] * 4)  # [i, k, j, l]
        return symmetric_matrix(four.transpose(0, 2, 1, 3))

    def fit_mean(self, target: Floats) -> Floats:
        """theta of the nu-projection of target (X,)."""
        return np.asarray(linalg.solve(self.whiten, self.psi.T @ (self.nu * target)))

    def right_side(self, target: Floats) -> Floats:
        """(p,) psi' (d o target) psi for a target (X, X)."""
        return to_vector(self.psi.T @ (self.d * target) @ self.psi)

    def fit_second(self, target: Floats, theta: Floats) -> Floats:
        """Whitened Theta of the d-projection of target (X, X) onto the cone at whitened theta."""
        return self.project(self.right_side(target), theta)

    @cached_property
    def inverse(self) -> Floats:
        """(p, p) pseudo-inverse of the normal matrix: weights may leave directions unseen."""
        return np.asarray(linalg.pinvh(self.normal, rtol=1e-12))

    def base(self, theta: Floats) -> Floats:
        """What Theta must not fall below: theta theta' in the augmented cone, else zero."""
        return np.outer(theta, theta) * (self.cone == "augmented")

    def project(self, right: Floats, theta: Floats) -> Floats:
        """argmin <Theta, N Theta> / 2 - <right, Theta> over the cone at whitened theta.

        Closed form where the constraint does not bind or N is the identity (product weights).
        """
        free = to_matrix(self.inverse @ right)
        if self.cone == "none":
            return free
        base = self.base(theta)
        inside = base + psd_part(free - base)
        if self.product or np.abs(inside - free).max() <= 1e-12 * (1.0 + np.abs(free).max()):
            return inside
        return solve_in_cone(self.normal, right, base, inside)

    def norm(self, mean: Floats, second: Floats, beta: float) -> float:
        """max{||mean||_nu, beta ||second||_d} of (X,) and (X, X)."""
        first = np.sqrt(np.sum(self.nu * mean**2))
        return float(max(first, beta * np.sqrt(np.sum(self.d * second**2))))


@dataclass(frozen=True)
class ProjectionStep:
    """Pi T_2 on whitened (theta, Theta), for the one fixed-point loop."""

    problem: ProjectedProblem
    beta: float

    @cached_property
    def operator(self) -> PairOperator:
        return PairOperator(self.problem.jm, self.problem.policy)

    @property
    def longest_sum(self) -> int:
        return self.problem.nu.size

    def zero(self) -> Parameters:
        size = self.problem.phi.shape[1]
        return np.zeros(size), np.zeros((size, size))

    def targets(self, state: Parameters) -> Parameters:
        """T_2 M of M = (psi theta, psi Theta psi'), (X,) and (X, X)."""
        psi, shape = self.problem.psi, self.problem.policy.shape
        mean = (psi @ state[0]).reshape(shape)
        second = (psi @ state[1] @ psi.T).reshape(shape + shape)
        new = self.operator.apply(self.operator.centre(mean, second))
        return new.mean.ravel(), new.second.reshape(self.problem.d.shape)

    def apply(self, state: Parameters) -> Parameters:
        """Pi T_2 M."""
        mean, second = self.targets(state)
        theta = self.problem.psi.T @ (self.problem.nu * mean)
        return theta, self.problem.fit_second(second, theta)

    def distance(self, new: Parameters, old: Parameters) -> float:
        """The weighted norm of a difference of parameters."""
        change = to_vector(new[1] - old[1])
        second = np.sqrt(max(float(change @ self.problem.normal @ change), 0.0))
        return float(max(np.linalg.norm(new[0] - old[0]), self.beta * second))

    def solve(self) -> Parameters:
        """The projected fixed point: theta by a linear solve, then Theta by one conic solve."""
        problem, (zero, nothing) = self.problem, self.zero()
        constant, _ = self.targets((zero, nothing))
        slope = np.eye(zero.size) - self.mean_slope()
        theta: Floats = linalg.solve(slope, problem.psi.T @ (problem.nu * constant))
        _, source = self.targets((theta, nothing))
        right = problem.right_side(source)
        linear = problem.normal - self.second_slope()
        free = to_matrix(linalg.lstsq(linear, right, cond=1e-12)[0])
        base = problem.base(theta)
        if problem.cone == "none" or linalg.eigvalsh(free - base)[0] >= 0.0:
            return theta, free
        return theta, solve_in_cone(linear, right, base, free)

    def mean_slope(self) -> Floats:
        """(d, d) psi' diag(nu) gamma P psi."""
        problem = self.problem
        after = problem.jm.transitions @ (policy_average(problem.policy) @ problem.psi)
        return problem.jm.gamma * problem.psi.T @ (problem.nu[:, None] * after)

    def second_slope(self) -> Floats:
        """(p, p) Theta -> psi' (d o gamma^2 P_2 (psi Theta psi')) psi, by matrix products."""
        problem, jm = self.problem, self.problem.jm
        psi, policy = problem.psi, problem.policy
        num_states, num_actions = policy.shape
        size = psi.shape[1]
        shaped = psi.reshape(num_states, num_actions, size)
        value = np.einsum("sa,sai->si", policy, shaped)  # E psi(s, A)
        square = np.einsum("sa,sai,saj->sij", policy, shaped, shaped, optimize=True)
        after = jm.transitions @ value  # (X, d)
        mixed = (psi[:, :, None] * after[:, None, :]).reshape(len(psi), -1)
        apart = problem.d.copy()
        np.einsum("sasb->sab", apart.reshape(policy.shape * 2))[...] = 0.0
        four = (mixed.T @ (apart @ mixed)).reshape([size] * 4).transpose(0, 2, 1, 3)

        states, x = np.arange(num_states), jm.next_states
        same = problem.d.reshape(policy.shape * 2)[states, :, states]  # (S, A, A)
        weight = jm.probs[:, None, None] * same[jm.table_states]  # (T, A, A)
        alone = np.einsum("taa->ta", weight).copy()
        np.einsum("taa->ta", weight)[...] = 0.0
        table, a, b = np.nonzero(weight)
        here = jm.table_states[table]
        left = shaped[here, a][:, :, None] * shaped[here, b][:, None, :]
        right = value[x[table, a]][:, :, None] * value[x[table, b]][:, None, :]
        left = left.reshape(len(table), size**2) * weight[table, a, b][:, None]
        four += (left.T @ right.reshape(len(table), size**2)).reshape([size] * 4)
        table, a = np.nonzero(alone)
        phi = shaped[jm.table_states[table], a]
        left = (phi[:, :, None] * phi[:, None, :]).reshape(len(table), size**2)
        left *= alone[table, a][:, None]
        four += (left.T @ square[x[table, a]].reshape(len(table), size**2)).reshape([size] * 4)
        return jm.gamma**2 * symmetric_matrix(four)


def _check_rank(phi: Floats) -> None:
    """Assumption B.1, naming the column that adds nothing."""
    lengths = np.linalg.norm(phi, axis=0)
    if not lengths.all():
        raise ValueError(f"features have a column of zeros, {lengths.argmin()} (Assumption B.1)")
    _, triangle, order = linalg.qr(phi / lengths, mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(triangle)) > 1e-10).sum())
    if rank < phi.shape[1]:
        raise ValueError(
            f"features have rank {rank} < d = {phi.shape[1]} (Assumption B.1): column "
            f"{order[rank]} is a combination of the others"
        )
