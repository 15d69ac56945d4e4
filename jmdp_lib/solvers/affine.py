"""Fixed points x = F(x) of affine contractions, faster than by repeating F.

BiCGSTAB on (I - G) x = g, where F(x) = G x + g, needs some sqrt(1 / (1 - rate)) applications of F
where plain iteration needs 1 / (1 - rate). It promises nothing for a G that is not symmetric, so
it runs in cycles, each judged by the true residual F(x) - x: once a cycle does worse than plain
iteration would have, plain iteration takes over, and that always converges. Works on NumPy arrays
and on torch tensors alike.

The fixed point of the collapsed T_2 is three such systems, one after the other (`solve_chains`,
`solve_pairs`). The third has a coordinate for every pair of states. It is solved on the pairs that
the asked gaps reach where these are few, and on all pairs otherwise (`choose_pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, frozen
from jmdp_lib.machine import (
    add_scaled,
    available_bytes,
    gibibytes,
    hot,
    inner_product,
    largest_of,
    progress,
    rounding_of,
)
from jmdp_lib.operators.collapsed import (
    AskedGaps,
    Backup,
    CollapsedT2,
    PairValues,
    successors_first,
)
from jmdp_lib.operators.dense import DensePairs, TorchPairs
from jmdp_lib.operators.reachable import Numbering, PairSet, ReachablePairs

VECTORS = 6  # of the size of x, that BiCGSTAB holds
_CYCLE = 100  # steps of a cycle, at most
_CYCLES = 100  # cycles, at most
# Typical numbers of sweeps: on reachable pairs of a chain without cycles, of one with cycles, and
# on all pairs; and how many times longer it takes to find a reachable pair than to read the next.
_ACYCLIC_SWEEPS = 3
_CYCLIC_SWEEPS = 20
_DENSE_SWEEPS = 40
_FIND = 10


class Affine(Protocol):
    """F, in place: its argument and result are arrays of one shape."""

    def zeros(self) -> Any:
        """x = 0."""

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """out = F(x), or G x without the source."""


def solve(
    operator: Affine,
    target: float,
    rate: float,
    start: Any = None,
    bar: Any = None,
) -> tuple[Any, list[float], int]:
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
    accelerate = True
    while True:
        goal = max(target, 8.0 * float(np.finfo(float).eps) * largest_of(x))
        _show(bar, history[-1], goal, applied)
        if history[-1] <= goal or applied >= limit:
            add_scaled(1.0, r, 1.0, x)
            return x, history, applied
        # Two plain steps first: for a chain without cycles one Gauss-Seidel sweep is exact.
        if accelerate and len(history) > 2:
            used = _cycle(operator, x, r, 0.5 * goal, bar)
            history.append(_residual(operator, x, r))
            accelerate = history[-1] <= history[-2] * max(rate**used, 1e-3)
            if not math.isfinite(history[-1]):
                x = operator.zeros()
                accelerate = False
                history[-1] = _residual(operator, x, r)
        else:
            used = 0
            add_scaled(1.0, r, 1.0, x)
            history.append(_residual(operator, x, r))
        applied += used + 1
        if not math.isfinite(history[-1]):
            raise FloatingPointError(
                "the iteration overflows: numbers of this size have no squares"
            )
        accelerate = accelerate and len(history) < _CYCLES
        if not accelerate and limit == math.inf:
            limit = applied + _enough_plain_steps(history[-1] / goal, rate)


def _show(bar: Any, residual: float, goal: float, applied: int) -> None:
    """How far the iteration is, on a progress bar if there is one."""
    if bar is not None:
        bar.set_postfix_str(f"residual {residual:.1e}, target {goal:.1e}", refresh=False)
        bar.update(applied - bar.n)


def _enough_plain_steps(ratio: float, rate: float) -> int:
    """Steps after which plain iteration has divided its residual by `ratio`, and some more."""
    return 10 + math.ceil(1.1 * math.log(max(ratio, 1.0)) / -math.log(max(rate, 1e-3)))


def solve_to_residual(
    operator: Affine,
    residual: Callable[[Any], float],
    share: float,
    goal: float,
    rate: float,
    name: str,
) -> tuple[Any, Floats, int]:
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
    add_scaled(-1.0, x, 1.0, r)
    return largest_of(r)


def _cycle(operator: Affine, x: Any, residual: Any, target: float, bar: Any) -> int:
    """BiCGSTAB on x in place, from its residual r = F(x) - x; how often G was applied.

    `residual` is used up. bar: shows progress, if not None.
    """
    r = residual
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
        omega = inner_product(t, r) / square if square else 0.0
        add_scaled(omega, r, 1.0, x)
        add_scaled(-omega, t, 1.0, r)
        size = largest_of(r)
        if bar is not None:
            bar.update(2)
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
        return largest_of(self.source + self.discount * (self.kernel @ x) - x)

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


class SolvedChains(NamedTuple):
    """m and v of `operators.collapsed`, and how far they are from being fixed points.

    backup: what T_2 makes of them. value_residual: max |T m - m|. variance_residual: max |T v - v|.
    product_residual: what an error of m makes of a product of two means.
    """

    backup: Backup
    value_residual: float
    variance_residual: float
    product_residual: float


def solve_chains(system: CollapsedT2, allowed: float) -> SolvedChains:
    """m and v, far more accurate than the certificate needs, since their errors enter c."""
    gamma = system.jm.gamma
    small = 0.01 * allowed * (1.0 - gamma)
    value = Chain(system.kernel, gamma, system.mean_rewards).solution(small)
    alone = system.backup(value, np.zeros_like(value)).value_variance
    variance = Chain(system.kernel, gamma**2, alone).solution(small * system.weight)
    backup = system.backup(value, variance)
    moved = float(np.abs(backup.value - value).max())
    scale = float(np.abs(value).max() + np.abs(backup.value).max())
    varied = float(np.abs(backup.value_variance - variance).max())
    return SolvedChains(backup, moved, varied, moved * scale)


class SolvedPairs(NamedTuple):
    """The fixed point of the collapsed T_2: m and v in their backup, and c at pairs of states.

    residuals: (n,), ||.||_lambda on the way. rounding: what no residual shows, in the same norm.
    """

    backup: Backup
    pairs: PairValues
    residuals: Floats
    rounding: float
    iterations: int


def solve_pairs(
    system: CollapsedT2,
    reached: PairSet | None,
    allowed: float,
    name: str,
    device: str | None = None,
) -> SolvedPairs:
    """m, v and c, on the pairs reached or on all, until the error is `allowed` in ||.||_lambda."""
    backup, moved, alone, products = solve_chains(system, allowed)
    pairs: Any
    if reached is not None:
        pairs = ReachablePairs(reached, backup)
    elif device is not None:
        pairs = TorchPairs(system, backup, device)
    else:
        pairs = DensePairs(system, backup)
    gamma = system.jm.gamma
    weight = system.weight
    c, history, iterations = solve_to_residual(
        pairs,
        lambda c: max(moved * weight, max(pairs.residual(c), alone) + products),
        0.05,  # gaps are differences of what is solved
        allowed * (1.0 - gamma) * weight,
        gamma**2,
        name,
    )
    if isinstance(c, np.ndarray):
        frozen(c)
    mean = float(np.abs(backup.mean).max())
    largest = max(mean, (float(backup.value_variance.max()) + mean**2) / weight)  # ||M||_lambda
    values = partial(replace(pairs).values, c)  # without what only the solver needs
    rounding = rounding_of(system.longest_sum) * largest
    return SolvedPairs(backup, values, history / weight, rounding, iterations)


def choose_pairs(system: CollapsedT2, asked: AskedGaps, or_all: bool = True) -> PairSet | None:
    """The pairs that the asked gaps reach; None for all pairs, if these fit and are faster.

    or_all: whether all pairs may be taken. A MemoryError says that neither fits.
    """
    states = system.jm.num_states
    free = 0.9 * available_bytes()
    or_all = or_all and dense_bytes(system) <= free
    successors = sum(kernel.nnz for kernel in system.kernels) / len(system.kernels) / states

    def most(numbering: Numbering, size: float) -> float:
        """As many pairs as fit, or as take no longer than all pairs would."""
        sweeps = _ACYCLIC_SWEEPS if numbering.acyclic else _CYCLIC_SWEEPS
        vectors = 2 if numbering.acyclic else VECTORS
        fit = (free - system.table_bytes - size) / (8.0 * vectors)
        quick = 2.0 * states**2 * _DENSE_SWEEPS / (successors * sweeps * _FIND)
        return min(fit, quick) if or_all else fit

    reached = PairSet.of(system, asked, most)
    if reached is None and not or_all:
        raise MemoryError(
            f"JIPE-2 on {states:,} states reaches more pairs than fit into the {gibibytes(free)} "
            "that are available; ask for fewer gaps (queries=), or use local_jipe2 for a few states"
        )
    return reached


def dense_bytes(system: CollapsedT2) -> float:
    """Bytes that solving on all pairs takes, roughly."""
    matrices = 10 + (system.coupling == "common")
    return matrices * 8.0 * system.jm.num_states**2 + system.table_bytes
