"""Fixed points x = F(x) of affine contractions, faster than by repeating F.

BiCGSTAB on (I - G) x = g, where F(x) = G x + g, needs some sqrt(1 / (1 - rate)) applications of F
where plain iteration needs 1 / (1 - rate). It promises nothing for a G that is not symmetric, so
it runs in cycles, each judged by the true residual F(x) - x: once a cycle does worse than plain
iteration would have, plain iteration takes over, and that always converges. Works on NumPy arrays
and on torch tensors alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numba import prange
from scipy import sparse

from jmdp_lib.checks import Floats
from jmdp_lib.machine import hot, progress, threaded
from jmdp_lib.operators.collapsed import successors_first

VECTORS = 6  # of the size of x, that BiCGSTAB holds
_CYCLE = 100  # steps of a cycle, at most
_CYCLES = 100  # cycles, at most
_CHUNK = 1 << 14  # terms that one thread sums


class Affine(Protocol):
    """F, in place: its argument and result are arrays of one shape."""

    def zeros(self) -> Any:
        """x = 0."""

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """out = F(x), or G x without the source."""


def solve(
    operator: Affine, target: float, rate: float, accelerate: bool = True, start: Any = None,
    bar: Any = None,
) -> tuple[Any, list[float], int]:  # fmt: skip
    """x with max |F(x) - x| <= target, the residuals on the way, and how often F was applied.

    rate: the contraction modulus of F in the maximum norm. Where rounding does not allow the
    target, the iteration stops at the size of rounding. start: where to begin, changed in place;
    zero unless given.
    """
    x = operator.zeros() if start is None else start
    r = operator.zeros()
    history = [_residual(operator, x, r)]
    applied = 1
    limit = math.inf
    while True:
        goal = max(target, 8.0 * float(np.finfo(float).eps) * _size(x))
        if bar is not None:
            bar.set_postfix_str(f"residual {history[-1]:.1e}, target {goal:.1e}", refresh=False)
            bar.update(applied - bar.n)
        if history[-1] <= goal or applied >= limit:
            _combine(1.0, r, 1.0, x)
            return x, history, applied
        # Two plain steps first: for a chain without cycles one Gauss-Seidel sweep is exact.
        if accelerate and len(history) > 2:
            used = _cycle(operator, x, r, 0.5 * goal)
            history.append(_residual(operator, x, r))
            accelerate = history[-1] <= history[-2] * max(rate**used, 1e-3)
            if not math.isfinite(history[-1]):
                x = operator.zeros()
                accelerate = False
                history[-1] = _residual(operator, x, r)
        else:
            used = 0
            _combine(1.0, r, 1.0, x)
            history.append(_residual(operator, x, r))
        applied += used + 1
        if not math.isfinite(history[-1]):
            raise FloatingPointError(
                "the iteration overflows: numbers of this size have no squares"
            )
        accelerate = accelerate and len(history) < _CYCLES
        if not accelerate and limit == math.inf:
            sweeps = math.log(max(history[-1] / goal, 1.0)) / -math.log(max(rate, 1e-3))
            limit = applied + 10 + math.ceil(1.1 * sweeps)


def solve_to_residual(
    operator: Affine, residual: Callable[[Any], float], share: float, goal: float, rate: float,
    name: str,
) -> tuple[Any, Floats, int]:  # fmt: skip
    """x with residual(x) <= goal, the residuals on the way, and how often F was applied.

    `solve` ends on the size of a Gauss-Seidel step, which may hide a larger `residual`. It starts
    with a `share` of the goal as its target, and the target is lowered until the residual fits.
    """
    x = None
    residuals = list[float]()
    iterations = 0
    target = share * goal
    with progress(None, name, "sweep") as bar:
        for _ in range(4):
            x, history, applied = solve(operator, target, rate, start=x, bar=bar)
            residuals += [*history, residual(x)]
            iterations += applied + 1
            if residuals[-1] <= goal:
                break
            target *= 0.1
    return x, np.array(residuals), iterations


def _residual(operator: Affine, x: Any, r: Any) -> float:
    """r = F(x) - x, and its size."""
    operator.apply(x, r)
    _combine(-1.0, x, 1.0, r)
    return _size(r)


def _cycle(operator: Affine, x: Any, residual: Any, target: float) -> int:
    """BiCGSTAB on x in place, from its residual r = F(x) - x; how often G was applied.

    `residual` is used up.
    """
    r = residual
    shadow, p, v, t = (operator.zeros() for _ in range(4))
    shadow += r
    p += r
    rho = _dot(shadow, r)
    worst = 1e4 * _size(r)
    for used in range(2, 2 * _CYCLE + 1, 2):
        _minus_moved(operator, p, v)
        dot = _dot(shadow, v)
        if dot == 0.0:
            return used - 1
        alpha = rho / dot
        _combine(-alpha, v, 1.0, r)
        _combine(alpha, p, 1.0, x)
        _minus_moved(operator, r, t)
        square = _dot(t, t)
        omega = _dot(t, r) / square if square else 0.0
        _combine(omega, r, 1.0, x)
        _combine(-omega, t, 1.0, r)
        size = _size(r)
        before = rho
        rho = _dot(shadow, r)
        if not target < size < worst or omega == 0.0 or before == 0.0:
            break
        _combine(-omega, v, 1.0, p)
        _combine(1.0, r, rho / before * (alpha / omega), p)
    return used


def _minus_moved(operator: Affine, x: Any, out: Any) -> None:
    """out = x - G x."""
    operator.apply(x, out, with_source=False)
    _combine(1.0, x, -1.0, out)


def _combine(a: float, x: Any, b: float, y: Any) -> None:
    """y = a x + b y, in place."""
    if isinstance(y, np.ndarray):
        _add_scaled(a, x.ravel(), b, y.ravel())
    else:
        y.mul_(b).add_(x, alpha=a)


def _dot(x: Any, y: Any) -> float:
    """sum x y."""
    x, y = x.ravel(), y.ravel()
    return float(_inner_product(x, y) if isinstance(y, np.ndarray) else x @ y)


def _size(x: Any) -> float:
    """max |x|; nan where there is one."""
    return float(max(x.max(), -x.min())) if len(x) else 0.0


# BLAS is as fast on an idle machine, but its threads wait for each other by spinning.
def _scaled_sum(a: Any, x: Any, b: Any, y: Any) -> None:
    for i in prange(y.size):  # one by one: an array of sums would be one more in memory
        y[i] = a * x[i] + b * y[i]


def _product_sum(x: Any, y: Any) -> Any:
    parts = np.zeros((x.size + _CHUNK - 1) // _CHUNK)  # the same ones on any number of threads
    for k in prange(parts.size):
        total = 0.0
        for i in range(k * _CHUNK, min(x.size, (k + 1) * _CHUNK)):
            total += x[i] * y[i]
        parts[k] = total
    whole = 0.0  # and in the same order: parts.sum() would be shared among the threads
    for k in range(parts.size):
        whole += parts[k]
    return whole


_LONG = 1 << 19  # shorter vectors are done before a second thread has started
_add_scaled = threaded(_scaled_sum, lambda a, x, b, y: x.size, _LONG)
_inner_product = threaded(_product_sum, lambda x, y: x.size, _LONG)


@dataclass(frozen=True)
class Chain:
    """x = source + discount * P x, x (S,), P (S, S) sparse: by Gauss-Seidel, successors first.

    A chain that never returns to a state it left is solved by one sweep.
    """

    kernel: sparse.csr_array
    discount: float
    source: Floats

    @cached_property
    def _rows(self) -> Any:
        """The states, successors first, and the rows of discount * P."""
        order = successors_first(self.kernel)
        return order, self.kernel.indptr, self.kernel.indices, self.discount * self.kernel.data

    def zeros(self) -> Floats:
        """x = 0."""
        return np.zeros(self.source.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """A Gauss-Seidel sweep there and back."""
        out[...] = x
        for backward in (False, True):
            _sweep(*self._rows, self.source * with_source, out, backward)

    def residual(self, x: Floats) -> float:
        """max |source + discount * P x - x|."""
        return _size(self.source + self.discount * (self.kernel @ x) - x)

    def solution(self, target: float) -> Floats:
        """x with max |source + discount * P x - x| <= target, or as near as rounding lets it be."""
        # A sweep's step bounds the residual only up to this factor.
        return solve(self, target * (1.0 - self.discount), self.discount)[0]


@hot
def _sweep(
    order: Any, indptr: Any, indices: Any, weights: Any, source: Any, x: Any, backward: Any
) -> None:
    """One Gauss-Seidel sweep of x = source + W x in place, W (S, S) sparse rows, x (S,)."""
    for n in range(order.size):
        s = order[order.size - 1 - n if backward else n]
        total = source[s]
        loop = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            if indices[k] == s:
                loop += weights[k]
            else:
                total += weights[k] * x[indices[k]]
        x[s] = total / (1.0 - loop)
