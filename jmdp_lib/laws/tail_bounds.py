"""What moments say about the law of a gap $G = Z(s, a) - Z(s, b)$.

Moments of order 0 to n give sharp bounds on P(G <= t) (Chebyshev, Markov, Stieltjes). Among the
laws with few atoms that have these moments, one has an atom at t. The mass of its atoms up to t is
the largest P(G <= t) that any law with these moments has; the mass of those before t is the least.

On the whole line n is even and the law has n/2 + 1 atoms. On a known support [a, b] some atoms may
stand at its ends. Let E be the set of those. The others are the atoms of the measure
prod_{e in E} |x - e| dF(x), whose moments are known up to order n - |E|:

    n even: E = {} or {a, b};        n odd: E = {a} or {b}.

The right one of the two laws has all its atoms in [a, b] (Krein and Nudelman 1977, chapter 4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats

_ROUNDING = 1e-14  # relative error of moments
_SURE = 1e6  # higher orders are used while a polynomial's norm is this many times its error
_FAR = 1e8  # standard deviations; an atom farther away has no mass that rounding would not hide


def tail_bounds(
    raw_moments: ArrayLike, t: ArrayLike, support: tuple[float, float] | None = None
) -> tuple[Floats, Floats]:
    """The least and the largest $P(G <= t)$ among all distributions with the given moments.

    raw_moments: (n + 1,), $1, E G, E G^2, ...$, which `Moments.gap_moment` gives for a gap.
    t: a number or an array; the bounds have its shape.
    support: (a, b) if $G$ is known to lie in [a, b].

    Orders are used up to the first that rounding does not resolve: there the moments determine the
    distribution to within their errors. On the whole line an odd order never narrows the bounds.

    Example:
        >>> import jmdp_lib as jl
        >>> low, high = jl.laws.tail_bounds([1.0, 1.0, 2.0], -1.0)
        >>> print(f"mean and variance: {low:.3f} to {high:.3f}, Cantelli's bound")
        mean and variance: 0.000 to 0.200, Cantelli's bound
        >>> low, high = jl.laws.tail_bounds([1.0, 1.0, 2.0, 4.0, 10.0], -1.0)
        >>> print(f"four moments of a normal distribution: {low:.3f} to {high:.3f}")
        four moments of a normal distribution: 0.000 to 0.105
    """
    raw = checks.floats("raw_moments", raw_moments, "order")
    shape = checks.as_array("t", t).shape
    points = checks.floats("t", np.ravel(t), "entry")
    ends = np.zeros(0) if support is None else checks.floats("support", support, "end", shape=(2,))
    if abs(raw[0] - 1.0) > 1e-9:
        raise ValueError(f"raw_moments[0] must be 1, got {raw[0]}")
    if not (ends[:1] < ends[1:]).all():
        raise ValueError(f"support must be (a, b) with a < b, got {support}")
    mean = raw[1:2].sum()
    orders = np.arange(raw.size)
    known = np.stack([raw, np.abs(raw) * _ROUNDING])
    for k in orders[1:]:
        known[:, k:] = _times_distance(known[:, k - 1 :], mean)
    scale = np.sqrt(known[:, 2:3].max(initial=0.0)) or 1.0
    ends = (ends - mean) / scale
    at = (points - mean) / scale
    odd = orders[-1] % 2
    taken = [x for x in (ends[:odd], ends[odd:]) if x.size < raw.size]
    tails = np.array([_tails(known / scale**orders, x, ends, at) for x in taken])  # (E, 3, N)
    least, largest = tails[tails[:, 0].argmin(0), 1:, np.arange(at.size)].T
    return least.reshape(shape)[()], largest.reshape(shape)[()]  # numbers, if t is one


def _tails(known: Floats, taken: Floats, ends: Floats, points: Floats) -> Floats:
    """(3, N) how wrong the law with atoms at `taken` is, and its P(G < x) and P(G <= x).

    known: (2, n + 1) moments, and their errors. taken: E, some of the ends of the support.
    """
    low, high = ends if ends.size else (-np.inf, np.inf)
    for end in taken:
        known = _times_distance(known, end)
        known[0] *= 1.0 if end == low else -1.0
    inside = np.clip(points, low, high)
    nodes, masses = _atoms(known, inside)
    for end in taken:
        masses /= np.where(nodes == end, np.inf, np.abs(nodes - end))
    missing = np.stack([1.0 - masses.sum(1), -(masses * nodes).sum(1)])[: taken.size]
    at_ends = np.linalg.solve(np.vander(taken, increasing=True).T, missing)
    masses = np.hstack([masses, at_ends.T])
    wrong = np.max([low - nodes.min(1), nodes.max(1) - high, -masses.min(1)], axis=0)
    wrong[(inside[:, None] == taken).any(1)] = 1e300  # an atom of the other law
    nodes = np.hstack([np.clip(nodes, low, high), np.full((points.size, taken.size), taken)])
    x = points[:, None]
    tails = [(np.maximum(masses, 0.0) * up_to).sum(1) for up_to in (nodes < x, nodes <= x)]
    return np.stack([wrong, *np.where(points >= high, 1.0, np.minimum(tails, 1.0))])


def _times_distance(known: Floats, point: float) -> Floats:
    """Moments of (x - point) dF(x), and their errors, (2, n), from those of F, (2, n + 1)."""
    return known[:, 1:] + np.array([[-point], [abs(point)]]) * known[:, :-1]


def _atoms(known: Floats, points: Floats) -> tuple[Floats, Floats]:
    """(N, k) atoms, one of them at the point (N,), and masses, with the same moments.

    They are eigenvalues of the Jacobi matrix whose last entry makes the point one of them. The
    orthogonal polynomials end with the first whose norm is not above its error. The norm there is
    taken as large as it may be, and so the bounds are as wide.
    """
    moments, errors = known
    basis = np.eye((moments.size + 1) // 2)  # monic polynomials, lowest coefficients first
    norms = []
    for k in range(len(basis)):
        order = np.add.outer(np.arange(k + 1), np.arange(k + 1))
        products = moments[order]
        basis[k, :k] = -np.linalg.solve(products[:k, :k], products[:k, k])
        here = basis[k, : k + 1]
        norm = float(here @ products @ here)
        error = float(np.abs(here) @ errors[order] @ np.abs(here))
        if norm < -error:
            raise ValueError(
                f"raw_moments are those of no law on the support: a polynomial of degree {k} would "
                f"have the squared norm {norm:.3g}"
            )
        norms.append(max(norm, 0.0) + error)
        if norm <= _SURE * error:
            break
    centres = -np.diff([0.0, *np.diagonal(basis, -1)])[:k]
    ratios = np.divide(norms[1:], norms[:-1])
    values = np.vander(points, len(basis), increasing=True) @ basis.T
    moved = (
        np.append(0.0, ratios)[k] * values[:, k - 1] / np.where(values[:, k], values[:, k], 1e-100)
    )
    jacobi = np.diag([*centres, 0.0]) + np.diag(np.sqrt(ratios), -1)  # eigh reads only this half
    matrix = np.tile(jacobi, (points.size, 1, 1))
    matrix[:, k, k] = points - np.clip(moved, -_FAR, _FAR)
    nodes, vectors = np.linalg.eigh(matrix)
    nodes[np.arange(points.size), np.abs(nodes - points[:, None]).argmin(1)] = points
    return nodes, norms[0] * vectors[:, 0] ** 2
