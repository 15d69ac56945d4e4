"""Weighted least squares for moments that are linear in features, over a cone (Appendix B).

Symmetric matrices Theta (d, d) are represented by vectors (p,), p = d (d + 1) / 2, with the same
inner products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Sized, frozen
from jmdp_lib.machine import ReadOnly, progress, require
from jmdp_lib.solvers.fixed_point import warn

_EXTREME = 1e50  # features above this, or below its inverse, are scaled
_TURNS = 20_000  # largest number of iterations of ADMM
Cone = Literal["augmented", "psd", "none"]


@dataclass(frozen=True, eq=False, repr=False)
class Projection(ReadOnly):
    """Projection Pi of eqs. (69) and (70).

    Features are whitened: psi = phi whiten^-1 satisfies psi' diag(nu) psi = I. This does not change
    the cones, and the normal matrix becomes well scaled.

    Attributes:
        phi: (X, d) features of the state-actions x = s * A + a.
        pairs: (X, X) weights of pairs of state-actions, called d in the paper.
        cone: "augmented", "psd" or "none".
    """

    phi: Floats
    pairs: Floats
    cone: str

    @cached_property
    def nu(self) -> Floats:
        """Weights (X,) of state-actions: the marginals of `pairs`, which is symmetric."""
        return frozen(self.pairs.sum(1))

    @cached_property
    def whiten(self) -> Floats:
        """Upper triangular matrix (d, d): whitened parameters are whiten @ theta."""
        return np.asarray(np.linalg.qr(np.sqrt(self.nu)[:, None] * self.phi, mode="r"))

    def unwhiten(self, theta: Floats, matrix: Floats) -> tuple[Floats, Floats]:
        """Parameters theta (d,) and Theta (d, d) from whitened ones."""
        half = np.linalg.solve(self.whiten, matrix)
        return linalg.solve(self.whiten, theta), np.linalg.solve(self.whiten, half.T).T

    @cached_property
    def psi(self) -> Floats:
        """Whitened features (X, d)."""
        return linalg.solve_triangular(self.whiten, self.phi.T, trans="T").T

    @cached_property
    def normal(self) -> Floats:
        """Normal matrix N (p, p): the symmetric map Theta -> psi' (pairs o psi Theta psi') psi."""
        return symmetric_matrix(products_of(self.psi, self.psi, self.pairs))

    def mean_side(self, target: Floats) -> Floats:
        """Whitened projection psi' diag(nu) target, (d,), of a target (S, A)."""
        return self.psi.T @ (self.nu * target.ravel())

    def second_side(self, target: Floats) -> Floats:
        """Right-hand side psi' (pairs o target) psi, (p,), for a target (S, A, S, A) or (X, X)."""
        return to_vector(self.psi.T @ (self.pairs * target.reshape(self.pairs.shape)) @ self.psi)

    def floor(self, theta: Floats) -> Floats:
        """Lower bound on Theta: theta theta' for the augmented cone, zero for the others."""
        return np.outer(theta, theta) * (self.cone == "augmented")

    def project(self, right: Floats, theta: Floats) -> Floats:
        """Minimise <Theta, N Theta> / 2 - <right, Theta> over the cone at whitened theta.

        If the constraint does not bind, or if N is the identity, as for product weights, the
        solution has a closed form and the search starts there.
        """
        free = to_matrix(least_squares(self.normal, right))
        if self.cone == "none":
            return free
        floor = self.floor(theta)
        inside = floor + psd_part(free - floor)
        if np.abs(inside - free).max() <= 1e-12 * np.abs(free).max():
            return inside
        return solve_in_cone(self.normal, right, floor, inside)


def tabular_features(model: Sized) -> Floats:
    """Features with one column per state-action, which make the projection exact.

    Args:
        model: a JMDP, or any object with num_states and num_actions.

    Returns:
        (S, A, S * A), an identity matrix.

    Example:
        >>> import jmdp_lib as jl
        >>> jl.tabular_features(jl.coupled_reward_chain(3)).shape
        (3, 2, 6)
    """
    shape = checks.sizes_of(model)
    size = shape[0] * shape[1]
    require(8.0 * size**2, f"a feature for each of {size:,} state-actions")
    return np.eye(size).reshape(*shape, -1)


def rbf_features(rows: int, columns: int, centres: int) -> Floats:
    """State features of a grid of cells: Gaussian bumps around centres on a grid, and a constant.

    The standard deviation of a bump is the distance between two centres. `action_features` turns
    them into features of state-actions.

    Args:
        rows: number of rows of cells.
        columns: number of columns of cells.
        centres: number of centres along each side.

    Returns:
        (rows * columns, centres**2 + 1), the cells row by row.

    Example:
        >>> import jmdp_lib as jl
        >>> features = jl.rbf_features(rows=3, columns=3, centres=2)
        >>> features.shape, jl.action_features(features, num_actions=4).shape
        ((9, 5), (9, 4, 20))
    """
    for name, value in (("rows", rows), ("columns", columns), ("centres", centres)):
        checks.at_least(name, value, 1)
    spacing = max(1.0, (max(rows, columns) - 1) / max(1, centres - 1))
    bumps = []
    for size in (rows, columns):
        distance = np.arange(size)[:, None] - np.linspace(0, size - 1, centres)
        bumps.append(np.exp(-(distance**2) / (2.0 * spacing**2)))
    return np.hstack([np.kron(*bumps), np.ones((rows * columns, 1))])


def action_features(state_features: ArrayLike, num_actions: int) -> Floats:
    """Features of state-actions from state features: each action has its own copy of them.

    Args:
        state_features: (S, c).
        num_actions: number of actions, A.

    Returns:
        (S, A, c * A).

    Example:
        >>> import jmdp_lib as jl
        >>> jl.action_features([[1.0, 0.5]], num_actions=2).tolist()
        [[[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5]]]
    """
    phi = checks.floats("state_features", state_features, "state", "feature")
    num_actions = checks.at_least("num_actions", num_actions, 1)
    both = np.einsum("sc,ab->sabc", phi, np.eye(num_actions))
    return both.reshape(len(phi), num_actions, -1)


def checked_features(features: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Check features (S, A, d) for full column rank (Assumption B.1), and return them as (X, d).

    A column is divided by its largest entry if squares of its parameters would overflow.
    """
    axes = ("state", "action", "feature")
    phi = checks.floats("features", features, *axes, shape=(*shape, None))
    phi = phi.reshape(-1, phi.shape[2])
    largest = np.abs(phi).max(0)
    if not largest.all():
        raise ValueError(f"features have a column of zeros, {largest.argmin()} (Assumption B.1)")
    phi /= np.where((largest > _EXTREME) | (largest < 1.0 / _EXTREME), largest, 1.0)
    lengths = np.linalg.norm(phi, axis=0)
    _, triangle, order = linalg.qr(phi / lengths, mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(triangle)) > 1e-10).sum())
    if rank < phi.shape[1]:
        raise ValueError(
            f"features have rank {rank} < d = {phi.shape[1]} (Assumption B.1): column "
            f"{order[rank]} is a combination of the others"
        )
    return phi


def least_squares(matrix: Floats, right: Floats) -> Floats:
    """Smallest least-squares solution of matrix @ x = right, since weights may leave N singular."""
    return np.asarray(linalg.lstsq(matrix, right, cond=1e-12, lapack_driver="gelsy")[0])


def solve_in_cone(
    matrix: Floats, right: Floats, floor: Floats, start: Floats, tol: float = 1e-11
) -> Floats:
    """Find X >= floor with <matrix X - right, Y - X> >= 0 for all Y >= floor, by ADMM.

    `matrix` (p, p) acts on `to_vector(X)`. If it is symmetric and positive semidefinite, X solves
    the constrained least-squares problem. If only its symmetric part is positive definite, X is the
    fixed point of a projected contraction. An iteration is a factored linear solve and an
    eigenvalue decomposition.
    """
    size = max(float(np.abs(x).max()) for x in (start, floor)) or 1.0  # the unit below
    shift = (right - matrix @ to_vector(floor)) / size
    rho = float(np.diag(matrix).mean()) or 1.0
    inside = to_vector(psd_part(start - floor)) / size
    dual = (shift - matrix @ inside) / rho
    factors = linalg.lu_factor(matrix + rho * np.eye(len(right)))
    turns = range(1, _TURNS + 1)
    for turn in progress(_TURNS, "projection onto the cone", "iteration", turns):
        free = linalg.lu_solve(factors, shift + rho * (inside - dual))
        relaxed = 1.6 * free - 0.6 * inside
        new = to_vector(psd_part(to_matrix(relaxed + dual)))
        dual += relaxed - new
        primal = np.linalg.norm(free - new) / (1.0 + np.linalg.norm(new))
        change = rho * np.linalg.norm(new - inside) / (1.0 + np.linalg.norm(shift))
        inside = new
        if max(primal, change) <= tol:
            break
        ratio = primal / (change + 1e-300)
        if turn % 20 == 0 and turn <= 500 and not 0.2 <= ratio <= 5.0:
            factor = float(np.clip(np.sqrt(ratio), 0.1, 10.0))
            rho *= factor
            dual /= factor
            factors = linalg.lu_factor(matrix + rho * np.eye(len(right)))
    else:
        warn(f"the projection onto the cone stopped at a distance of {primal:.1e} from it")
    return floor + size * to_matrix(inside)


def psd_part(matrix: Floats) -> Floats:
    """Nearest positive semidefinite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    return half @ half.T


def products_of(left: Floats, right: Floats, pairs: Floats) -> Floats:
    """Sum over x, y of pairs[x,y] left[x,k] left[y,l] right[x,i] right[y,j], at [k,l,i,j].

    left, right: (X, d). pairs: (X, X). Returns (d, d, d, d).
    """
    both = (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
    size = left.shape[1]
    return (both.T @ (pairs @ both)).reshape([size] * 4).transpose(0, 2, 1, 3)


def symmetric_matrix(four: Floats) -> Floats:
    """Matrix (p, p) of the map Theta -> sum four[k,l,i,j] Theta[i,j] on `to_vector(Theta)`."""
    rows, columns, scale = _triangle(len(four))
    one = four[rows, columns] + four[columns, rows]  # (p, d, d)
    both = one[:, rows, columns] + one[:, columns, rows]
    return scale[:, None] * both * scale / 4.0


@lru_cache(maxsize=8)
def _triangle(size: int) -> tuple[Ints, Ints, Floats]:
    """Rows, columns and scales of the entries of `to_vector`, (p,) each."""
    rows, columns = np.triu_indices(size)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


def to_vector(matrix: Floats) -> Floats:
    """Upper triangle (p,) of the symmetric part, scaled so that inner products stay the same."""
    rows, columns, scale = _triangle(len(matrix))
    return scale * (matrix[rows, columns] + matrix[columns, rows]) / 2.0


def to_matrix(vector: Floats) -> Floats:
    """Symmetric matrix (d, d) of a vector (p,): the inverse of `to_vector`."""
    size = int((np.sqrt(8 * len(vector) + 1) - 1) / 2)
    rows, columns, scale = _triangle(size)
    matrix = np.empty((size, size))
    matrix[rows, columns] = matrix[columns, rows] = vector / scale
    return matrix
