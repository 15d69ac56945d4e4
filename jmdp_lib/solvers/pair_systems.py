"""JIPE-2 as linear systems: m, v and c of `operators.collapsed`, one after the other.

The third has a coordinate for every pair of states. It is solved on the pairs that the queries
reach where these are few, and on all pairs otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, machine
from jmdp_lib.checks import Floats
from jmdp_lib.machine import gibibytes
from jmdp_lib.operators.collapsed import Backup, CollapsedT2, PairValues, Queries, distinct_states
from jmdp_lib.operators.dense import DensePairs, TorchPairs, device_bytes
from jmdp_lib.operators.reachable import Numbering, PairSet, ReachablePairs
from jmdp_lib.solvers import fixed_point
from jmdp_lib.solvers.affine import VECTORS, Chain, solve_to_residual
from jmdp_lib.solvers.fixed_point import Plan, Solution

# Typical numbers of sweeps: on reachable pairs of a chain without cycles, of one with cycles, and
# on all pairs; and how many times longer it takes to find a reachable pair than to read the next.
_ACYCLIC = 3
_CYCLIC = 20
_DENSE = 40
_FIND = 10
# Nanoseconds for a term of a sum over rows, and for an entry of (S, S) that a kernel moves twice;
# for a term of a matrix product; for a term of a sum over reachable pairs, and for a pair.
_TERM_NS = 1.2
_ENTRY_NS = 16.0
_PRODUCT_NS = 0.15
_REACHED_NS = 20.0
_PAIR_NS = 100.0
LOG = logging.getLogger("jmdp_lib")


def solve_pairs(
    system: CollapsedT2, asked: Queries, allowed: float, plan: Plan, reached: PairSet | None,
    device: str | None = None,
) -> Solution:  # fmt: skip
    """The moments by a linear system on pairs of states, as planned by `choose`."""
    LOG.info("JIPE-2, %s", plan)
    backup, moved, alone, products = solve_chains(system, allowed)
    pairs: Any
    if reached is not None:
        pairs = ReachablePairs(reached, backup)
    elif device is not None:
        pairs = TorchPairs(system, backup, device)
    else:
        pairs = DensePairs(system, backup)

    jm = system.jm
    gamma = system.jm.gamma
    weight = system.weight
    goal = allowed * (1.0 - gamma) * weight
    c, history, iterations = solve_to_residual(
        pairs, lambda c: max(moved * weight, max(pairs.residual(c), alone) + products),
        0.05,  # gaps are differences of what is solved
        goal, gamma**2, f"JIPE-2, {plan}",
    )  # fmt: skip
    residuals = history / weight

    mean = float(np.abs(backup.mean).max())
    largest = max(mean, (float(backup.single.max()) + mean**2) / weight)  # ||M||_lambda
    rounding = fixed_point.rounding_of(system.longest_sum) * largest
    end = fixed_point.certify(residuals, rounding, gamma, allowed, iterations, "JIPE-2")
    if isinstance(c, np.ndarray):
        checks.frozen(c)
    values = partial(replace(pairs).values, c)  # without what only the solver needs
    blocks = system.blocks(backup, values, asked)
    source = MomentsFromPairs(system, backup, blocks, values)
    off = 4.0 * residuals[-1] * weight / (1.0 - gamma**2)  # c contracts by gamma^2
    found = backup.mean, blocks, source
    moments = fixed_point.collect_moments(jm, 2, *found, end.error_bound, off)
    return Solution(moments, *end, plan=plan)


@dataclass(frozen=True)
class MomentsFromPairs:
    """Second moments between states, each one local expectation away from c.

    backup: T_2 on m and v. blocks: (S, A, A). pairs: c.
    """

    system: CollapsedT2
    backup: Backup
    blocks: Floats
    pairs: PairValues

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """Sigma(s, a, t, b), of two states, or of actions of one state that were not asked for."""
        (s, a), (t, b) = coordinates
        if s == t:
            raise ValueError(
                f"the covariance of actions {a} and {b} of state {s} was not asked for: solve with "
                f"queries=[({s}, {a}, {b})], or without queries for all of them"
            )
        asked = (np.array([x]) for x in (s, a, b, t))
        found = self._known(self.system.covariances(self.backup, self.pairs, *asked))
        return float(found[0] + self.backup.mean[s, a] * self.backup.mean[t, b])

    @property
    def second_bytes(self) -> float:
        """Bytes that `full_second` takes, at most: C, Sigma and where C is nan, c and the steps
        from c to C. With common noise there are more steps, and shocks."""
        states = len(self.blocks)
        pairs = self.backup.mean.size
        common = self.system.coupling == "common"
        shocks = 4 * pairs * self.system.jm.noise_probs.size if common else 0
        return 8.0 * ((4.0 if common else 2.25) * pairs**2 + 2 * states * (states + pairs) + shocks)

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        system = self.system
        mean = self.backup.mean
        states = np.arange(len(self.blocks))
        source = system.shocks(self.backup.deviations)
        c = self.pairs(*np.broadcast_arrays(states[:, None], states))
        full = distinct_states(system.jm.gamma, system.moves, c, source)
        full = full.reshape(mean.shape * 2)
        full[states, :, states] = self.blocks
        return self._known(full) + np.multiply.outer(mean, mean)

    def _known(self, covariance: Floats) -> Floats:
        if np.isnan(covariance).any():
            raise ValueError(
                "no gap that was asked for reaches these pairs of states, so that their moments "
                'were not solved: solve with route="dense" for those of all pairs'
            )
        return covariance


def choose(
    system: CollapsedT2, queries: Queries, tol: float, route: str = "auto",
    device: str | None = None,
) -> tuple[Plan, PairSet | None]:  # fmt: skip
    """The plan, and for the route "reachable" its pairs."""
    states = system.jm.num_states
    # The pair law is held twice; making it takes no more than that and the covariances do.
    law = 72.0 * system.diagonal_entries + system.block_bytes(queries) + system.table_bytes
    free = 0.9 * (machine.available_bytes() if device is None else device_bytes(device))
    dense = _dense_plan(system, law, tol, device)
    if route == "dense" or device is not None:
        if dense.memory > free:
            raise MemoryError(
                f"JIPE-2 needs {dense}; available are {gibibytes(free)}; use local_jipe2 for a few "
                "states"
            )
        return dense, None
    either = route == "auto" and dense.memory <= free
    successors = sum(kernel.nnz for kernel in system.kernels) / len(system.kernels) / states

    def most(numbering: Numbering, size: float) -> float:
        """As many pairs as fit, or as take no longer than all pairs would."""
        cost = successors * (_ACYCLIC if numbering.acyclic else _CYCLIC) * _FIND
        fit = (free - law - size) / _pair_bytes(numbering)
        return min(fit, 2.0 * states**2 * _DENSE / cost) if either else fit

    reached = PairSet.of(system, queries, most)
    if reached is not None:
        taken = law + reached.words.nbytes + _pair_bytes(reached.numbering) * reached.size
        work = _reachable_work(system, tol, reached)
        return Plan("reachable", states, reached.size, taken, None, *work), reached
    if not either:
        raise MemoryError(
            f"JIPE-2 on {states:,} states reaches more pairs than fit into the {gibibytes(free)} "
            "that are available; ask for fewer queries, or use local_jipe2 for a few states"
        )
    return dense, None


def _dense_plan(system: CollapsedT2, law: float, tol: float, device: str | None) -> Plan:
    """All pairs, beside a pair law of so many bytes."""
    states = system.jm.num_states
    # The last ones for an application itself: a scratch matrix, and kernels that are not sparse.
    matrices = VECTORS + (1.25 if device is None else 4.0)
    matrices += 0.0 if system.few_successors else 2.0
    needed = matrices * 8.0 * states**2 + law
    pairs = states * (states + 1) // 2
    return Plan("dense", states, pairs, needed, device, *_dense_work(system, tol))


def _accelerated_sweeps(gamma: float, tol: float) -> float:
    """How often BiCGSTAB applies an operator: typical for a gamma^2-contraction."""
    return 1.2 * math.log10(10.0 / min(tol, 1.0)) / math.sqrt(1.0 - gamma**2)


def _dense_work(system: CollapsedT2, tol: float) -> tuple[int, float]:
    """Terms of one application on all pairs, and seconds in all."""
    states = system.jm.num_states
    moved = sum(kernel.nnz for kernel in system.kernels) * states
    common = states**2 * (len(system.kernels) if system.coupling == "common" else 0)
    terms = 2 * moved + common + system.diagonal_entries
    time = _TERM_NS * 2 * moved + _PRODUCT_NS * common
    if not system.few_successors:
        terms = 2 * states**3
        time = _PRODUCT_NS * terms
    time += _ENTRY_NS * len(system.kernels) * states**2
    return terms, 1e-9 * time * _accelerated_sweeps(system.jm.gamma, tol)


def _reachable_work(system: CollapsedT2, tol: float, reached: PairSet) -> tuple[int, float]:
    """Terms of one application on the reachable pairs, and seconds in all."""
    widths = np.array([np.diff(kernel.indptr) for kernel in system.kernels], float)
    each = float((widths.mean(1) ** 2).sum()) + len(system.kernels)
    terms = int(each * reached.size)
    sweeps = float(_ACYCLIC)
    if not reached.numbering.acyclic:
        sweeps = 1.0 + 0.5 * _accelerated_sweeps(system.jm.gamma, tol)
    return terms, 1e-9 * (_REACHED_NS * terms + _PAIR_NS * reached.size) * sweeps


def _pair_bytes(numbering: Numbering) -> float:
    return 8.0 * (2 if numbering.acyclic else VECTORS)


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
    alone = system.backup(value, np.zeros_like(value)).single
    single = Chain(system.kernel, gamma**2, alone).solution(small * system.weight)
    backup = system.backup(value, single)
    moved = float(np.abs(backup.value - value).max())
    scale = float(np.abs(value).max() + np.abs(backup.value).max())
    varied = float(np.abs(backup.single - single).max())
    return SolvedChains(backup, moved, varied, moved * scale)
