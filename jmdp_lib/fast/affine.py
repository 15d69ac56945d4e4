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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, frozen
from jmdp_lib.fast.collapsed import (
    AskedGaps,
    CollapsedT2,
    PairValues,
    successors_first,
)
from jmdp_lib.fast.dense import DensePairs, add_scaled, at_pairs, inner_product, largest_of
from jmdp_lib.fast.reachable import PairSet
from jmdp_lib.machine import (
    available_bytes,
    gibibytes,
    hot,
    progress,
    rounding_of,
)
from jmdp_lib.moments import enough_sweeps
from jmdp_lib.operators.pairs import Backup

_CYCLE = 100  # steps of a cycle, at most
_CYCLES = 100  # cycles, at most
# With more reachable pairs than this times S^2, over the successors of a state, all pairs are
# faster: for chains with cycles, and for chains without.
_READS = (0.8, 2.6)


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
    """x = source + discount * P x, x (S,), P (S, S): by Gauss-Seidel, successors first.

    kernel: P, sparse; or a set of pairs, for gamma^2 P_2. order: (S,), in which x is swept; found
    if None. acyclic: a sweep in this order is exact.
    """

    kernel: sparse.csr_array | PairSet
    discount: float
    source: Floats
    order: Any = None
    acyclic: bool = False

    @cached_property
    def _order(self) -> Any:
        if self.order is None and isinstance(self.kernel, sparse.csr_array):
            return successors_first(self.kernel)
        return self.order

    @property
    def _blocks(self) -> Iterable[tuple[int, sparse.csr_array]]:
        """The rows of P, some at a time, and the number of the first."""
        return self.kernel.blocks() if isinstance(self.kernel, PairSet) else [(0, self.kernel)]

    def zeros(self) -> Floats:
        """x = 0."""
        return np.zeros(self.source.size)

    def apply(self, x: Floats, out: Floats, with_source: bool = True) -> None:
        """A Gauss-Seidel sweep there and back."""
        out[...] = x
        source = self.source if with_source else self.zeros()
        for backward in (False,) if self.acyclic else (False, True):
            for first, kernel in self._blocks:
                rows = first, kernel.indptr, kernel.indices, kernel.data
                order = self._order[first : first + kernel.shape[0]]
                _sweep(order, rows, self.discount, source, out, backward)

    def residual(self, x: Floats) -> float:
        """max |source + discount * P x - x|."""
        largest = 0.0
        for first, kernel in self._blocks:
            part = slice(first, first + kernel.shape[0])
            off = self.source[part] + self.discount * (kernel @ x) - x[part]
            largest = float(np.maximum(largest, largest_of(off)))  # nan stays
        return largest

    def solution(self, goal: float) -> Floats:
        """x with max |source + discount * P x - x| <= goal, or as near as rounding lets it be."""
        return np.asarray(solve(self, goal, self.discount).x)


@hot
def _sweep(order: Any, rows: Any, discount: Any, source: Any, x: Any, backward: Any) -> None:
    """One Gauss-Seidel sweep of x = source + discount * P x in place, for some rows of P."""
    first, indptr, indices, probs = rows
    for n in range(order.size):
        s = order[order.size - 1 - n if backward else n]
        after = 0.0
        loop = 0.0
        for k in range(indptr[s - first], indptr[s - first + 1]):
            if indices[k] == s:
                loop += probs[k]
            else:
                after += probs[k] * x[indices[k]]
        x[s] = (source[s] + discount * after) / (1.0 - discount * loop)


class SolvedChains(NamedTuple):
    """m and v of `operators.collapsed`, and how far they are from being fixed points.

    backup: what T_2 makes of them. value_residual: max |T m - m|. variance_residual: max |T v - v|.
    """

    backup: Backup
    value_residual: float
    variance_residual: float


def solve_chains(system: CollapsedT2, allowed: float) -> SolvedChains:
    """m and v, far more accurate than the certificate needs, since their errors enter c."""
    gamma = system.jm.gamma
    small = 0.01 * allowed * (1.0 - gamma)
    value = Chain(system.kernel, gamma, system.mean_rewards, system.order).solution(small)
    alone = system.backup(value, np.zeros_like(value)).value_variance
    later = Chain(system.kernel, gamma**2, alone, system.order)
    variance = later.solution(small * system.weight)
    backup = system.backup(value, variance)
    moved = float(np.abs(backup.value - value).max())
    varied = float(np.abs(backup.value_variance - variance).max())
    return SolvedChains(backup, moved, varied)


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
    backup, moved, alone = solve_chains(system, allowed)
    products = moved * float(2.0 * np.abs(backup.value).max() + moved)  # in products of two means
    gamma = system.jm.gamma
    weight = system.weight
    pairs: Any
    if reached is None:
        pairs = DensePairs(system, backup, device=device)
    else:
        places = np.arange(reached.size, dtype=np.int32)
        pairs = Chain(reached, 1.0, reached.source(backup), places, reached.acyclic)
    goal = allowed * (1.0 - gamma) * weight
    # Gaps are differences of what is solved: the share is small.
    c, steps, iterations = solve(pairs, goal - products, gamma**2, name, 0.05)
    if isinstance(c, np.ndarray):
        frozen(c)
    residuals = np.maximum(moved, (np.maximum(steps, alone) + products) / weight)
    mean = float(np.abs(backup.mean).max())
    largest = max(mean, (float(backup.value_variance.max()) + mean**2) / weight)  # ||M||_lambda
    # A copy of the set: without its matrix, which only the solver needs.
    values = partial(at_pairs if reached is None else replace(reached).values, c)
    rounding = rounding_of(system.longest_sum) * largest
    return SolvedPairs(backup, values, residuals, rounding, iterations)


def choose_pairs(system: CollapsedT2, asked: AskedGaps, or_all: bool = True) -> PairSet | None:
    """The pairs that the asked gaps reach; None for all pairs, if these fit and are faster.

    or_all: whether all pairs may be taken. A MemoryError says that neither fits.
    """
    states = system.jm.num_states
    free = 0.9 * available_bytes()
    most = np.inf
    if or_all := or_all and dense_bytes(system) <= free:
        successors = sum(kernel.nnz for kernel in system.kernels) / len(system.kernels) / states
        most = _READS[system.acyclic] * states**2 / successors
    reached = PairSet.of(system, asked, most, free - system.table_bytes)
    if reached is None and not or_all:
        raise MemoryError(
            f"JIPE-2 on {states:,} states reaches more pairs than fit into the {gibibytes(free)} "
            "that are available; ask for fewer gaps (queries=), or use local_jipe2 for a few states"
        )
    return reached


def dense_bytes(system: CollapsedT2) -> float:
    """Bytes that solving on all pairs takes, roughly."""
    matrices = 10 + system.coupling.across_states
    return matrices * 8.0 * system.jm.num_states**2 + system.table_bytes
