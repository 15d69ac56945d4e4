"""Fixed point of the collapsed T_2: three linear systems, one after the other.

The third has an unknown for every pair of states. If the requested gaps reach few pairs, it is
solved on these, otherwise on all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.affine import Chain, solve
from jmdp_lib.fast.collapsed import CollapsedBackup, CollapsedT2, Gaps
from jmdp_lib.fast.dense import PairMap, at_pairs, dense_pairs
from jmdp_lib.fast.reachable import PairSet

# All pairs are solved faster once the reachable pairs exceed S^2 / (successors of a state) by this
# factor: for chains with cycles, and for chains without.
_CYCLIC_READS = 0.8
_ACYCLIC_READS = 2.6
_MATRIX = 1 << 20  # entries: a larger matrix is not built if the set can be solved without it


class SolvedChains(NamedTuple):
    """Solution m and v of `fast.collapsed`, with its residuals.

    backup: T_2 applied to it. value_residual: max |T m - m|. variance_residual: max |T v - v|.
    """

    backup: CollapsedBackup
    value_residual: float
    variance_residual: float


def solve_chains(system: CollapsedT2, error_tol: float) -> SolvedChains:
    """Solve for m and v far more accurately than the certificate needs: their errors enter c."""
    gamma = system.jm.gamma
    small = 0.01 * error_tol * (1.0 - gamma)
    value = Chain(system.kernel, gamma, system.mean_rewards, system.order).solution(small)
    source = system.backup(value, np.zeros_like(value)).value_variance
    variances = Chain(system.kernel, gamma**2, source, system.order)
    variance = variances.solution(small * system.weight)
    backup = system.backup(value, variance)
    return SolvedChains(
        backup=backup,
        value_residual=float(np.abs(backup.value - value).max()),
        variance_residual=float(np.abs(backup.value_variance - variance).max()),
    )


@dataclass(frozen=True)
class SolvedPairs:
    """Fixed point of the collapsed T_2: m and v in their backup, and c at pairs of states.

    It is a source of moments: each follows from c by one local expectation. If c has not been
    solved at the pairs that a moment needs, it is solved there when the moment is read.

    c: (S, S) on all pairs, an array or a tensor; or (size + 1,) on those of `reached`, followed by
    nan for all other pairs. error_tol: error tolerance of moments in ||.||_lambda. residuals: (n,)
    of some iterates, in ||.||_lambda. rounding: error in the same norm that no residual shows.
    """

    system: CollapsedT2
    backup: CollapsedBackup
    reached: PairSet | None
    c: Any
    error_tol: float
    residuals: Floats
    rounding: float
    iterations: int

    @property
    def route(self) -> str:
        """Route of `jipe2`: "dense" or "reachable"."""
        return "dense" if self.reached is None else "reachable"

    @property
    def num_pairs(self) -> int:
        """Number of unordered pairs of states at which c has been solved."""
        return self.system.num_pairs if self.reached is None else self.reached.size

    def pairs(self, first: Ints, second: Ints) -> Floats:
        """Values of c at pairs of states, of any one shape; nan where c has not been solved."""
        if self.reached is None:
            return at_pairs(self.c, first, second)
        return np.asarray(self.c[self.reached.places(first, second)])

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """Second moment Sigma(s, a, t, b)."""
        (s, a), (t, b) = coordinates
        others = None if s == t else np.array([t])
        pair = Gaps(np.array([s]), np.array([a]), np.array([b]), others)
        covariance = self.system.covariances(self.backup, self.pairs, pair)
        if np.isnan(covariance[0]):
            return solve_pairs(self.system, pair, self.error_tol).moment(coordinates)
        return float(covariance[0] + self.backup.mean[s, a] * self.backup.mean[t, b])

    @cached_property
    def _everywhere(self) -> SolvedPairs:
        """Solution at all pairs of states."""
        if self.num_pairs == self.system.num_pairs:
            return self
        return solve_pairs(self.system, Gaps.of(self.system.jm), self.error_tol, "dense")

    def full_second(self) -> Floats:
        """Sigma (S, A, S, A)."""
        solved = self._everywhere
        states = np.arange(self.system.jm.num_states)
        c = solved.pairs(*np.broadcast_arrays(states[:, None], states))
        mean = solved.backup.mean
        return self.system.full_covariance(solved.backup, c) + np.multiply.outer(mean, mean)


def solve_pairs(
    system: CollapsedT2,
    gaps: Gaps,
    error_tol: float,
    route: str = "auto",
    device: str | None = None,
) -> SolvedPairs:
    """Solve on the pairs that the gaps reach, or on all pairs.

    route: "dense" for all pairs, "reachable", or "auto" for the faster one. A device needs all
    pairs.
    """
    if route == "dense" or device is not None:
        if device is None:  # torch reports itself if a device lacks memory
            what = f"JIPE-2 on all {system.num_pairs:,} pairs of {system.jm.num_states:,} states"
            machine.require(dense_bytes(system), what, 'use route="auto", with gaps= or states=')
        return _solved_on(system, None, error_tol, device)
    return _solved_on(system, _choose_pairs(system, gaps, or_all=route == "auto"), error_tol)


def _solved_on(
    system: CollapsedT2, reached: PairSet | None, error_tol: float, device: str | None = None
) -> SolvedPairs:
    """Solve for m, v and c, on the pairs in `reached`, or on all pairs if None."""
    backup, value_residual, variance_residual = solve_chains(system, error_tol)
    # Error of products of two means.
    products = value_residual * float(2.0 * np.abs(backup.value).max() + value_residual)
    gamma = system.jm.gamma
    weight = system.weight
    if reached is not None and system.acyclic and reached.num_successors > _MATRIX:
        solved = reached.solve_in_order(reached.source(backup))
    else:
        pairs: PairMap | Chain
        if reached is None:
            pairs = dense_pairs(system, backup, device)
        else:
            places = np.arange(reached.size, dtype=np.int32)
            pairs = Chain(reached.kernel(), 1.0, reached.source(backup), places)
        residual_tol = error_tol * (1.0 - gamma) * weight - products
        name = f"JIPE-2 on pairs of {system.jm.num_states:,} states"
        # The share is small, since gap variances are differences of solved values.
        solved = solve(pairs, residual_tol, gamma**2, name, share=0.05)
    c, steps, iterations = solved
    pair_residuals = (np.maximum(steps, variance_residual) + products) / weight
    mean = float(np.abs(backup.mean).max())
    largest = max(mean, (float(backup.value_variance.max()) + mean**2) / weight)  # ||M||_lambda
    return SolvedPairs(
        system=system,
        backup=backup,
        reached=reached,
        c=c if reached is None else np.append(c, np.nan),
        error_tol=error_tol,
        residuals=np.maximum(value_residual, pair_residuals),
        rounding=machine.rounding_of(system.longest_sum) * largest,
        iterations=iterations,
    )


def _choose_pairs(system: CollapsedT2, gaps: Gaps, or_all: bool) -> PairSet | None:
    """Choose the pairs that the gaps reach, or None for all pairs if these fit and are faster.

    or_all: True if all pairs may be chosen. Raises a MemoryError if neither fits.
    """
    num_states = system.jm.num_states
    draws = len(system.kernels)
    successors = sum(kernel.nnz for kernel in system.kernels) / (draws * num_states)
    free = 0.9 * machine.available_bytes()
    matrix = 0.0 if system.acyclic else 48.0 + 12.0 * draws * successors**2
    limit = free / (56.0 + matrix)
    dense_fits = or_all and dense_bytes(system) <= free
    if dense_fits:
        reads = _ACYCLIC_READS if system.acyclic else _CYCLIC_READS
        limit = min(limit, reads * num_states**2 / successors)
    reached = PairSet.of(system, gaps, limit)
    if reached is None and not dense_fits:
        raise MemoryError(
            f"JIPE-2 on {num_states:,} states reaches more pairs than fit into the "
            f"{machine.gibibytes(free)} that are available; request fewer gaps (gaps= or "
            "states=), or give the model as an ImplicitJMDP to local_jipe2"
        )
    return reached


def dense_bytes(system: CollapsedT2) -> float:
    """Estimated bytes for a solution on all pairs."""
    return (10.0 + system.coupling.across_states) * 8.0 * system.jm.num_states**2
