"""Fixed points x = F(x) of affine contractions, faster than by repeating F.

Let F(x) = G x + g. BiCGSTAB on (I - G) x = g needs about sqrt(1 / (1 - rate)) applications of F,
plain iteration 1 / (1 - rate). BiCGSTAB may fail if G is not symmetric, so it runs in cycles, each
judged by the true residual F(x) - x. Once a cycle does worse than plain iteration would have, plain
iteration takes over, which always converges. Both work on NumPy arrays and on torch tensors.
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

_CYCLE = 100  # largest number of steps in a cycle


class Affine(Protocol):
    """Affine map F, applied in place: its argument and its result are arrays of one shape.

    `apply` may be a Gauss-Seidel sweep, another map with the fixed point of F.
    """

    def zeros(self) -> Any:
        """Return x = 0."""

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """Write F(x) to `out`, or G x without the source."""

    def residual(self, x: Any) -> float:
        """Largest |F(x) - x|."""


class Solved(NamedTuple):
    """Solution x, residuals (n,) of some iterates, and number of applications of F."""

    x: Any
    residuals: Floats
    iterations: int


def solve(
    operator: Affine, residual_tol: float, rate: float, name: str = "", share: float = 0.5
) -> Solved:
    """Find x with a residual of at most residual_tol, or as small as rounding allows.

    rate: contraction modulus of F in the maximum norm. name: title of the progress bar. A small
    step of Gauss-Seidel does not imply a small residual: steps first become as small as `share`
    times residual_tol, and then smaller until the residual is small enough.
    """
    x = operator.zeros()
    operator.apply(operator.zeros(), x)
    residuals = [operator.residual(x)]  # of a chain without cycles, one sweep is exact
    iterations = 2
    needed = share * residual_tol
    with progress(None, name, "sweep") as bar:
        for step_tol in (share * residual_tol * 0.1**k for k in range(4)):
            if residuals[-1] <= needed:
                break
            steps, applied = _iterate(operator, x, step_tol, rate, bar)
            residuals += [*steps, operator.residual(x)]
            iterations += applied + 1
            needed = residual_tol
    return Solved(x, np.array(residuals), iterations)


def _iterate(
    operator: Affine, x: Any, step_tol: float, rate: float, bar: Any
) -> tuple[list[float], int]:
    """Move x until a step is at most step_tol, or of the size of rounding.

    Returns the sizes of some of the steps, and the number of applications of F.
    """
    r = operator.zeros()
    steps: list[float] = []
    applied = 0
    used = 0  # applications of G in the last cycle
    limit = math.inf  # of applications, once plain iteration has taken over
    while True:
        _change(operator, x, r)
        size = largest_of(r)
        if used and not math.isfinite(size):
            x[...] = 0.0
            _change(operator, x, r)
            size = largest_of(r)
        if not math.isfinite(size):
            raise FloatingPointError(
                "the iteration overflows: values of this size overflow when squared"
            )
        applied += used + 1
        steps.append(size)
        needed = max(step_tol, 8.0 * float(np.finfo(float).eps) * largest_of(x))
        bar.set_postfix_str(f"residual {size:.1e}, target {needed:.1e}", refresh=False)
        bar.update(applied - bar.n)
        slow = used and not size <= steps[-2] * max(rate**used, 1e-3)
        if slow and limit == math.inf:
            limit = applied + enough_sweeps(size, needed, rate)
        done = size <= needed or applied >= limit
        if done or limit < math.inf:
            add_scaled(1.0, r, 1.0, x)
            used = 0
        else:
            used = _cycle(operator, x, r, 0.5 * needed, bar)
        if done:
            return steps, applied


def _change(operator: Affine, x: Any, out: Any, with_source: bool = True) -> None:
    """Write F(x) - x to `out`, or G x - x without the source."""
    operator.apply(x, out, with_source)
    add_scaled(-1.0, x, 1.0, out)


def _cycle(operator: Affine, x: Any, r: Any, step_tol: float, bar: Any) -> int:
    """Run BiCGSTAB on x in place, overwriting r = F(x) - x; returns the number of products G x."""
    shadow, p, v, t = (operator.zeros() for _ in range(4))
    shadow += r
    p += r
    rho = inner_product(shadow, r)
    worst = 1e4 * largest_of(r)
    for used in range(2, 2 * _CYCLE + 1, 2):
        _change(operator, p, v, with_source=False)
        dot = inner_product(shadow, v)
        if dot == 0.0:
            return used - 1
        alpha = rho / dot
        add_scaled(-alpha, v, 1.0, r)
        add_scaled(-alpha, p, 1.0, x)
        _change(operator, r, t, with_source=False)
        square = inner_product(t, t)
        bar.update(2)
        omega = inner_product(t, r) / square if square else 0.0
        add_scaled(-omega, r, 1.0, x)
        add_scaled(-omega, t, 1.0, r)
        size = largest_of(r)
        before = rho
        rho = inner_product(shadow, r)
        if not step_tol < size < worst or omega == 0.0 or before == 0.0:
            break
        add_scaled(-omega, v, 1.0, p)
        add_scaled(1.0, r, rho / before * (alpha / omega), p)
    return used


@dataclass(frozen=True)
class Chain:
    """Linear system x = source + discount * P x, x (S,), P (S, S) sparse, for Gauss-Seidel sweeps.

    order: (S,), in which x is swept; by default that of `successors_first`.
    """

    kernel: sparse.csr_array
    discount: float
    source: Floats
    order: Any = None

    @cached_property
    def _order(self) -> Any:
        return successors_first(self.kernel) if self.order is None else self.order

    def zeros(self) -> Floats:
        """Return x = 0."""
        return np.zeros(self.source.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """Write x after a forward and a backward Gauss-Seidel sweep to `out`."""
        out[...] = x
        kernel = self.kernel.indptr, self.kernel.indices, self.kernel.data
        source = self.source if with_source else self.zeros()
        for backward in (False, True):
            _sweep(self._order, kernel, self.discount, source, out, backward)

    def residual(self, x: Floats) -> float:
        """Largest |source + discount * P x - x|."""
        return largest_of(self.source + self.discount * (self.kernel @ x) - x)

    def solution(self, residual_tol: float) -> Floats:
        """Solution (S,) with a residual of at most residual_tol, or as small as rounding allows."""
        return np.asarray(solve(self, residual_tol, self.discount).x)


@hot
def _sweep(order, kernel, discount, source, x, backward):
    """Sweep once by Gauss-Seidel: x = source + discount * P x, in place."""
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
