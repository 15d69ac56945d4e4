"""Quadratic problems over positive semidefinite matrices, and symmetric matrices as vectors."""

from __future__ import annotations

import warnings

import numpy as np
from scipy import linalg

from jmdp_lib.checks import Floats
from jmdp_lib.solvers.fixed_point import ConvergenceWarning


def solve_in_cone(
    matrix: Floats, right: Floats, base: Floats, start: Floats, tol: float = 1e-11
) -> Floats:
    """X with X - base >= 0 and <matrix X - right, Y - X> >= 0 for all Y with Y - base >= 0.

    `matrix` (p, p) acts on `to_vector(X)`. Symmetric positive semidefinite, this is the constrained
    least-squares problem; with a positive definite symmetric part alone, the fixed point of a
    projected contraction. ADMM: a factored linear solve and an eigenvalue decomposition a turn.
    """
    shift = right - matrix @ to_vector(base)
    identity = np.eye(len(right))
    spread = np.abs(linalg.eigvalsh((matrix + matrix.T) / 2.0))
    rho = float(np.sqrt(max(spread.min(), 1e-4 * spread.max()) * spread.max())) or 1.0
    factors = linalg.lu_factor(matrix + rho * identity)
    inside = to_vector(psd_part(start - base))
    dual = (shift - matrix @ inside) / rho
    for turn in range(1, 20_001):
        free = linalg.lu_solve(factors, shift + rho * (inside - dual))
        relaxed = 1.6 * free - 0.6 * inside
        new = to_vector(psd_part(to_matrix(relaxed + dual)))
        dual += relaxed - new
        apart = np.linalg.norm(free - new) / (1.0 + np.linalg.norm(new))
        moved = rho * np.linalg.norm(new - inside) / (1.0 + np.linalg.norm(shift))
        inside = new
        if max(apart, moved) <= tol:
            return base + to_matrix(inside)
        if turn % 20 == 0 and turn <= 500 and not 0.2 <= apart / (moved + 1e-300) <= 5.0:
            factor = float(np.clip(np.sqrt(apart / (moved + 1e-300)), 0.1, 10.0))
            rho, dual = rho * factor, dual / factor
            factors = linalg.lu_factor(matrix + rho * identity)
    warnings.warn(
        f"the projection onto the cone stopped {apart:.1e} away from it", ConvergenceWarning,
        stacklevel=2,
    )  # fmt: skip
    return base + to_matrix(inside)


def psd_part(matrix: Floats) -> Floats:
    """The nearest positive semidefinite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    if values[0] >= 0.0:
        return (matrix + matrix.T) / 2.0
    keep = values > 0.0
    half = vectors[:, keep] * np.sqrt(values[keep])
    return half @ half.T


def to_vector(matrix: Floats) -> Floats:
    """(p,) upper triangle of the symmetric part, scaled so that inner products stay the same."""
    rows, columns = np.triu_indices(len(matrix))
    both = (matrix + matrix.T)[rows, columns] / 2.0
    return np.where(rows == columns, 1.0, np.sqrt(2.0)) * both


def to_matrix(vector: Floats) -> Floats:
    """The inverse of `to_vector`."""
    size = int((np.sqrt(8 * len(vector) + 1) - 1) / 2)
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def symmetric_matrix(four: Floats) -> Floats:
    """(p, p), in the coordinates of `to_vector`: the map Theta -> sum four[i,j,k,l] Theta[k,l]."""
    rows, columns = np.triu_indices(four.shape[0])
    scale = np.where(rows == columns, 0.5, np.sqrt(0.5))
    one = four[rows, columns] + four[columns, rows]  # (p, d, d)
    both = one[:, rows, columns] + one[:, columns, rows]
    return scale[:, None] * both * scale[None, :]
