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

from dataclasses import dataclass
from math import comb

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

    Higher orders that determine the distribution to within the errors of the moments are not used.
    On the whole line an odd order never narrows the bounds.

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
    low, high = (-np.inf, np.inf) if support is None else checks.floats("support", support, end=2)
    if abs(raw[0] - 1.0) > 1e-9:
        raise ValueError(f"raw_moments[0] must be 1, got {raw[0]}")
    if not low < high:
        raise ValueError(f"support must be (a, b) with a < b, got {support}")
    orders = np.arange(raw.size)
    mean = raw[1] if raw.size > 1 else np.clip(0.0, low, high)
    shift = np.array([[comb(k, j) * (-mean) ** max(k - j, 0) for j in orders] for k in orders])
    moments = shift @ raw
    off = np.abs(shift) @ np.abs(raw) * _ROUNDING
    if raw.size > 2 and moments[2] < -off[2]:
        raise ValueError(f"raw_moments give a negative variance, {moments[2]:.3g}")
    scale = np.sqrt(max(moments[2], off[2])) if raw.size > 2 else high - low
    scale = scale if 0.0 < scale < np.inf else 1.0
    within = (low - mean) / scale, (high - mean) / scale
    where = "" if support is None else f" on [{low:g}, {high:g}]"
    parts = _parts(moments / scale**orders, off / scale**orders, within, where)
    least, largest = _tails(parts, within, (points - mean) / scale)
    return least.reshape(shape)[()], largest.reshape(shape)[()]  # numbers, if t is one


@dataclass(frozen=True)
class _Measure:
    """A measure by its mass and its monic orthogonal polynomials pi_0, ..., pi_k.

    centres, squares: (k,), pi_{j+1} = (x - centres[j]) pi_j - squares[j - 1] pi_{j-1}; the last of
    the squares is |pi_k|^2 / |pi_{k-1}|^2.
    """

    mass: float
    centres: Floats
    squares: Floats

    @classmethod
    def of(cls, moments: Floats, errors: Floats, where: str) -> _Measure:
        """From moments up to an even order, or up to the first that is not above its error.

        The norm there is taken as large as it may be, and so the bounds are as wide.
        """
        before, here = np.zeros(1), np.ones(1)
        norms = []
        centres = []
        for order in range(0, moments.size, 2):
            square = np.convolve(here, here)
            norm = float(square @ moments[: order + 1])
            error = float(np.convolve(np.abs(here), np.abs(here)) @ errors[: order + 1])
            if norm < -error:
                raise ValueError(
                    f"raw_moments are those of no law{where}: a polynomial of degree {order // 2} "
                    f"would have the squared norm {norm:.3g}"
                )
            sure = norm > _SURE * error
            norms.append(norm if sure else max(norm, 0.0) + error)
            if not sure or order + 2 >= moments.size:
                break
            centres.append(float(square @ moments[1 : order + 2]) / norm)
            longer = np.append(0.0, here) - centres[-1] * np.append(here, 0.0)
            longer[: before.size] -= norm / norms[-2] * before if order else 0.0
            before, here = here, longer
        ratios = np.divide(norms[1:], norms[:-1])
        return cls(norms[0], np.array(centres), ratios)

    def atoms(self, points: Floats) -> tuple[Floats, Floats]:
        """(N, k + 1) atoms, one of them at the point (N,), and masses, with the same moments.

        They are eigenvalues of the Jacobi matrix whose last entry makes the point one of them.
        """
        size = self.centres.size
        everyone = np.arange(size)
        before, here = np.zeros_like(points), np.ones_like(points)
        for centre, square in zip(self.centres, np.append(0.0, self.squares), strict=False):
            before, here = here, (points - centre) * here - square * before
        matrix = np.zeros((points.size, size + 1, size + 1))
        matrix[:, everyone, everyone] = self.centres
        matrix[:, everyone + 1, everyone] = np.sqrt(self.squares)  # eigh reads only this half
        with np.errstate(divide="ignore", invalid="ignore"):
            last = np.nan_to_num(self.squares[-1:].sum() * before / here, nan=_FAR)
        matrix[:, size, size] = points - np.clip(last, -_FAR, _FAR)
        nodes, vectors = np.linalg.eigh(matrix)
        nodes[np.arange(points.size), np.abs(nodes - points[:, None]).argmin(1)] = points
        return nodes, self.mass * vectors[:, 0] ** 2


_Part = tuple[tuple[float, ...], _Measure]  # a candidate E, and the measure of the other atoms


def _parts(moments: Floats, errors: Floats, ends: tuple[float, float], where: str) -> list[_Part]:
    """All candidates, from as many moments as all of them can use."""
    for order in range(moments.size - 1, -1, -1):
        candidates = [(), ends] if order % 2 == 0 else [ends[:1], ends[1:]]
        parts = list[_Part]()
        for taken in candidates:
            if len(taken) > order or (taken and not where):
                continue
            known, error = moments[: order + 1], errors[: order + 1]
            for end in taken:
                known = (known[1:] - end * known[:-1]) * (1.0 if end == ends[0] else -1.0)
                error = error[1:] + abs(end) * error[:-1]
            parts.append((taken, _Measure.of(known, error, where)))
        if parts and all(2 * x.centres.size + len(taken) == order for taken, x in parts):
            break
    return parts


def _tails(
    parts: list[_Part], support: tuple[float, float], points: Floats
) -> tuple[Floats, Floats]:
    """The least and the largest P(G <= x) at each point x (N,), of the law of the right part."""
    inside = np.clip(points, *support)
    wanted = points[:, None]
    best = np.full(points.size, np.inf)
    least, largest = np.zeros((2, points.size))
    for ends, measure in parts:
        nodes, masses = measure.atoms(inside)
        for end in ends:
            masses = masses / np.where(nodes == end, np.inf, np.abs(nodes - end))
        missing = np.stack([1.0 - masses.sum(1), -(masses * nodes).sum(1)])[: len(ends)]
        at_ends = np.linalg.solve(np.vander(ends, increasing=True).T, missing).T
        out_of_range = np.maximum(support[0] - nodes.min(1), nodes.max(1) - support[1])
        nodes = np.clip(np.hstack([nodes, np.tile(ends, (points.size, 1))]), *support)
        masses = np.hstack([masses, at_ends])
        wrong = np.maximum(out_of_range, -masses.min(1))
        wrong[np.isin(inside, ends)] = 1e300  # an atom of the other law
        masses = np.maximum(masses, 0.0)
        below, up_to = ((masses * x).sum(1) for x in (nodes < wanted, nodes <= wanted))
        better = wrong < best
        best = np.minimum(best, wrong)
        least = np.where(better, below, least)
        largest = np.where(better, up_to, largest)
    least, largest = np.where(points >= support[1], 1.0, np.minimum([least, largest], 1.0))
    return least, largest
