"""Fixed points x = F(x) of affine contractions, faster than by repeating F.

BiCGSTAB on (I - G) x = g, where F(x) = G x + g, needs some sqrt(1 / (1 - rate)) applications of F
where plain iteration needs 1 / (1 - rate). It promises nothing for a G that is not symmetric, so
it runs in cycles, each judged by the true residual F(x) - x: once a cycle does worse than plain
iteration would have, plain iteration takes over, and that always converges. Works on NumPy arrays
and on torch tensors alike.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats
from jmdp_lib.fast.collapsed import successors_first
from jmdp_lib.fast.dense import add_scaled, inner_product, largest_of
from jmdp_lib.machine import hot, progress
from jmdp_lib.moments import enough_sweeps

_CYCLE = 100  # steps of a cycle, at most
_CYCLES = 100  # cycles, at most


class Affine(Protocol):
    """F, in place: its argument and result are arrays of one shape.

    `apply` may be a sweep of Gauss-Seidel: another map than F with the same fixed point.
    """

    def zeros(self) -> Any:
        """x = 0."""

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """out = F(x), or G x without the source."""

    def residual(self, x: Any) -> float:
        """max |F(x) - x|."""


class Solved(NamedTuple):
    """A solution x, the residuals on the way, (n,), and how often F was applied."""

    x: Any
    residuals: Floats
    iterations: int


def solve(operator: Affine, goal: float, rate: float, name: str = "", share: float = 0.5) -> Solved:
    """x with a residual of at most `goal`, or as small as rounding lets it be.

    rate: the contraction modulus of F in the maximum norm. name: that of the progress bar. A step
    of Gauss-Seidel may hide a larger residual: steps become as small as a `share` of the goal, and
    smaller until the residual fits.
    """
    x = operator.zeros()
    operator.apply(operator.zeros(), x)
    residuals = [operator.residual(x)]  # of a chain without cycles, one sweep is exact
    iterations = 2
    enough = share * goal
    with progress(None, name, "sweep") as bar:
        for target in (share * goal * 0.1**k for k in range(4)):
            if residuals[-1] <= enough:
                break
            steps, applied = _iterate(operator, x, target, rate, bar)
            residuals += [*steps, operator.residual(x)]
            iterations += applied + 1
            enough = goal
    return Solved(x, np.array(residuals), iterations)


def _iterate(
    operator: Affine, x: Any, target: float, rate: float, bar: Any
) -> tuple[list[float], int]:
    """Move x until a step of it is at most the target, or of the size of rounding.

    The sizes of some of the steps, and how often F was applied.
    """
    r = operator.zeros()
    steps: list[float] = []
    applied = 0
    used = 0  # applications of G in the last cycle
    limit = math.inf  # of applications, once plain iteration has taken over
    while True:
        size = _step(operator, x, r)
        if used and not math.isfinite(size):
            x[...] = 0.0
            size = _step(operator, x, r)
        if not math.isfinite(size):
            raise FloatingPointError(
                "the iteration overflows: numbers of this size have no squares"
            )
        applied += used + 1
        steps.append(size)
        goal = max(target, 8.0 * float(np.finfo(float).eps) * largest_of(x))
        bar.set_postfix_str(f"residual {size:.1e}, target {goal:.1e}", refresh=False)
        bar.update(applied - bar.n)
        slow = used and not size <= steps[-2] * max(rate**used, 1e-3)
        if (slow or len(steps) >= _CYCLES) and limit == math.inf:
            limit = applied + enough_sweeps(size, goal, rate)
        done = size <= goal or applied >= limit
        if done or limit < math.inf:
            add_scaled(1.0, r, 1.0, x)
            used = 0
        else:
            used = _cycle(operator, x, r, 0.5 * goal, bar)
        if done:
            return steps, applied


def _step(operator: Affine, x: Any, r: Any) -> float:
    """r = F(x) - x, and its size."""
    operator.apply(x, r)
    add_scaled(-1.0, x, 1.0, r)
    return largest_of(r)


def _cycle(operator: Affine, x: Any, r: Any, target: float, bar: Any) -> int:
    """BiCGSTAB on x in place, from r = F(x) - x, which is used up; how often G was applied."""
    shadow, p, v, t = (operator.zeros() for _ in range(4))
    shadow += r
    p += r
    rho = inner_product(shadow, r)
    worst = 1e4 * largest_of(r)
    for used in range(2, 2 * _CYCLE + 1, 2):
        _minus_moved(operator, p, v)
        dot = inner_product(shadow, v)
        if dot == 0.0:
            return used - 1
        alpha = rho / dot
        add_scaled(-alpha, v, 1.0, r)
        add_scaled(alpha, p, 1.0, x)
        _minus_moved(operator, r, t)
        square = inner_product(t, t)
        bar.update(2)
        omega = inner_product(t, r) / square if square else 0.0
        add_scaled(omega, r, 1.0, x)
        add_scaled(-omega, t, 1.0, r)
        size = largest_of(r)
        before = rho
        rho = inner_product(shadow, r)
        if not target < size < worst or omega == 0.0 or before == 0.0:
            break
        add_scaled(-omega, v, 1.0, p)
        add_scaled(1.0, r, rho / before * (alpha / omega), p)
    return used


def _minus_moved(operator: Affine, x: Any, out: Any) -> None:
    """out = x - G x."""
    operator.apply(x, out, with_source=False)
    add_scaled(1.0, x, -1.0, out)


@dataclass(frozen=True)
class Chain:
    """x = source + discount * P x, x (S,), P (S, S) sparse: by Gauss-Seidel, successors first.

    order: (S,), in which x is swept; that of `successors_first` if None.
    """

    kernel: sparse.csr_array
    discount: float
    source: Floats
    order: Any = None

    @cached_property
    def _order(self) -> Any:
        return successors_first(self.kernel) if self.order is None else self.order

    def zeros(self) -> Floats:
        """x = 0."""
        return np.zeros(self.source.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """A Gauss-Seidel sweep there and back."""
        out[...] = x
        kernel = self.kernel.indptr, self.kernel.indices, self.kernel.data
        source = self.source if with_source else self.zeros()
        for backward in (False, True):
            _sweep(self._order, kernel, self.discount, source, out, backward)

    def residual(self, x: Floats) -> float:
        """max |source + discount * P x - x|."""
        return largest_of(self.source + self.discount * (self.kernel @ x) - x)

    def solution(self, goal: float) -> Floats:
        """x with max |source + discount * P x - x| <= goal, or as near as rounding lets it be."""
        return np.asarray(solve(self, goal, self.discount).x)


@hot
def _sweep(order: Any, kernel: Any, discount: Any, source: Any, x: Any, backward: Any) -> None:
    """One Gauss-Seidel sweep of x = source + discount * P x in place."""
    indptr, indices, probs = kernel
    for n in range(order.size):
        s = order[order.size - 1 - n if backward else n]
        after = 0.0
        loop = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            if indices[k] == s:
                loop += probs[k]
            else:
                after += probs[k] * x[indices[k]]
        x[s] = (source[s] + discount * after) / (1.0 - discount * loop)
