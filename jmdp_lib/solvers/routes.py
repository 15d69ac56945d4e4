"""The three linear systems of JIPE-2, solved on as few state pairs as the queries need."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from jmdp_lib import machine
from jmdp_lib.checks import Floats
from jmdp_lib.machine import gibibytes, progress
from jmdp_lib.operators.collapsed import Backup, Collapsed, PairLaw, Queries
from jmdp_lib.operators.dense import DensePairs, TorchPairs
from jmdp_lib.operators.pair_sets import PairSet
from jmdp_lib.operators.reachable import ReachablePairs, closure
from jmdp_lib.solvers.affine import VECTORS, Chain, solve

# Sweeps that a route takes: with the chain, Gauss-Seidel otherwise, over all pairs; and how
# much longer it takes to find a pair than to stream over one.
_ACYCLIC, _CYCLIC, _DENSE, _FIND = 3, 20, 40, 10
_LOG = logging.getLogger("jmdp_lib")


@dataclass(frozen=True)
class Plan:
    """How an evaluation goes about it, known before it starts.

    Attributes:
        route: "sweeps", T_2 repeated from zero, its residuals the paper's curve; "reachable", one
            linear system on the pairs of states that the queries reach; "dense", on all pairs.
        states: |S|.
        pairs: unordered pairs of states that are solved for.
        memory: bytes it takes at most.
        accelerated: whether there is room for BiCGSTAB.
        device: the torch device of the dense route, or None.
    """

    route: str
    states: int
    pairs: int
    memory: float
    accelerated: bool = False
    device: str | None = None

    def __str__(self) -> str:
        share = self.pairs / (self.states * (self.states + 1) / 2)
        where = f" on {self.device}" if self.device else ""
        return (
            f"{self.route}{where}: {self.pairs:,} pairs of {self.states:,} states "
            f"({share:.2%} of all), {gibibytes(self.memory)}"
        )


@dataclass(frozen=True)
class Request:
    """One evaluation: what is asked, and how it is to be gone about."""

    system: Collapsed
    queries: Queries
    tol: float
    route: str = "auto"
    device: str | None = None

    def plan(self, law: PairLaw | None = None) -> tuple[Plan, PairSet | None]:
        """Choose a route; with the pairs, where only those are solved that are reached.

        law: reach from its pairs instead of from the queries.
        """
        states, device = self.system.jm.num_states, self.device
        whole = 8.0 * states**2
        free = 0.9 * (machine.available_bytes() if device is None else device_bytes(device))
        products = 1 if device is None else 4  # matrices that an application holds meanwhile
        accelerated = (VECTORS + products) * whole <= free
        needed = (VECTORS + products if accelerated else 2 + products) * whole
        needed += 48.0 * self.system.diagonal_entries
        dense = Plan("dense", states, states * (states + 1) // 2, needed, accelerated, device)
        if self.route == "dense" or device is not None:
            if needed > free:
                raise MemoryError(f"JIPE-2 needs {dense}; available are {gibibytes(free)}")
            return dense, None
        enough = self._worthwhile() if self.route == "auto" and needed <= free else np.inf
        laws = (
            [law]
            if law
            else (self.system.law(*part) for part in self.queries.parts(self.system.entries))
        )
        pairs = self._closure(laws, enough, free)
        if pairs is None:
            return dense, None
        size = self._pair_bytes(pairs)
        return Plan("reachable", states, int(pairs.counts[1]), size, True), pairs

    def _worthwhile(self) -> float:
        """How many reached pairs cost as much as the whole matrix does."""
        states = self.system.jm.num_states
        successors = self.system.kernel.nnz / states
        sweeps = _ACYCLIC if self.system.numbering.acyclic else _CYCLIC
        return 2.0 * successors * states**2 * _DENSE / (successors**2 * sweeps * _FIND)

    def _pair_bytes(self, pairs: PairSet) -> float:
        vectors = 2 if self.system.numbering.acyclic else VECTORS
        held = pairs.words.nbytes + pairs.slots.nbytes + pairs.keys.nbytes + pairs.stack.nbytes
        return float(held + 8 * vectors * pairs.counts[1] + 48 * self.system.diagonal_entries)

    def _closure(self, laws: Iterable[PairLaw], enough: float, free: float) -> PairSet | None:
        """The pairs that the laws lead to; None as soon as they are more than enough."""
        states = self.system.jm.num_states
        with progress(None, "JIPE-2, pairs reached", "pair") as bar:

            def watch(pairs: PairSet) -> bool:
                bar.update(int(pairs.counts[1]) - bar.n)
                if (size := self._pair_bytes(pairs)) > free:
                    raise MemoryError(
                        f"JIPE-2 on {states:,} states reached {pairs.counts[1]:,} pairs with "
                        f"{pairs.counts[2]:,} still to follow; these need {gibibytes(size)}, "
                        f"available are {gibibytes(free)}; ask for fewer queries"
                    )
                return bool(pairs.counts[1] <= enough)

            seeds = ((law.first, law.second) for law in laws)
            return closure(self.system.numbering, seeds, states**2 / 8 <= free / 4, watch)


def device_bytes(device: str) -> int:
    """Free memory of a torch device; a device that is not there is refused."""
    import torch

    try:
        kind = torch.device(device)
        torch.empty(1, device=kind)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used: {error}") from None
    if kind.type == "cuda":
        return int(torch.cuda.mem_get_info(kind)[0])
    return machine.available_bytes()


@dataclass(frozen=True)
class Singles:
    """m and v, solved, and how far they are from their own backup.

    moved: max |T m - m|. changed: max |T Sigma - Sigma| over the variances. scale: what an error of
    m is multiplied by in a product of two means.
    """

    backup: Backup
    moved: float
    changed: float
    scale: float


def solve_singles(system: Collapsed, tol: float) -> Singles:
    """The two chains, well below what the certificate allows: their errors enter c."""
    gamma, small = system.jm.gamma, 0.01 * tol * (1.0 - system.jm.gamma)
    value = Chain(system.kernel, gamma, system.mean_rewards).solution(small)
    alone = system.backup(value, np.zeros_like(value)).single
    single = Chain(system.kernel, gamma**2, alone).solution(small * system.weight())
    backup = system.backup(value, single)
    moved = float(np.abs(backup.value - value).max())
    scale = float(np.abs(value).max() + np.abs(backup.value).max())
    changed = float(np.abs(backup.single - single).max()) + moved * scale
    return Singles(backup, moved, changed, scale)


@dataclass(frozen=True)
class Evaluation:
    """The fixed point of the collapsed T_2: any coordinate of Sigma follows from it in one step.

    pairs, c: the pair operator and its fixed point. residuals: of c on the way, in the paper's
    norm; the last one is that of m, v and c together. iterations: how often T_2 was applied.
    """

    request: Request
    plan: Plan
    singles: Singles
    pairs: Any
    c: Any
    residuals: Floats
    iterations: int

    @cached_property
    def blocks(self) -> Floats:
        """(S, A, A), Cov(Z(s, a), Z(s, b)); nan for two actions that were not asked about."""
        backup = self.singles.backup
        blocks = np.full((*backup.mean.shape, backup.mean.shape[1]), np.nan)
        np.einsum("saa->sa", blocks)[...] = backup.variance
        for s, a, b in self.request.queries.parts(self.request.system.entries):
            law = self.request.system.law(s, a, b, backup.deviations)
            blocks[s, a, b] = blocks[s, b, a] = self._expect(law)
        return blocks

    def _expect(self, law: PairLaw) -> Floats:
        """(Q,) covariances that a law leads to in one step; nan where to pairs not solved."""
        later = self.request.system.jm.gamma**2 * self.pairs.values(self.c, law.first, law.second)
        return law.expect(later if law.noise is None else later + law.noise)

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """mu(s, a), or Sigma(s, a, t, b): that of pairs not reached so far is solved now."""
        mean = self.singles.backup.mean
        if len(coordinates) == 1:
            return float(mean[coordinates[0]])
        (s, a), (t, b) = coordinates
        covariance = self.blocks[s, a, b] if s == t else np.nan
        if np.isnan(covariance):
            covariance = self._covariance(s, a, t, b)
        return float(covariance + mean[s, a] * mean[t, b])

    def _covariance(self, s: int, a: int, t: int, b: int) -> float:
        system, actions = self.request.system, self.request.system.jm.num_actions
        here = replace(self._as_accurate(), route="auto", device=None)
        if s == t:
            at, i, j = np.array([s]), np.array([a]), np.array([b])
            law = system.law(at, i, j, self.singles.backup.deviations)
        else:
            law = system.product_law(np.array([s * actions + a]), np.array([t * actions + b]))
        found = self._expect(law)
        if np.isnan(found[0]):
            found = solve_pairs(here, *here.plan(law), self.singles)._expect(law)
        return float(found[0])

    def _as_accurate(self) -> Request:
        """The same request, to what was reached: the error bound holds for what is solved later."""
        reached = float(self.residuals[-1]) / (1.0 - self.request.system.jm.gamma)
        return replace(self.request, tol=min(self.request.tol, max(reached, 1e-15)))

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        jm, mean = self.request.system.jm, self.singles.backup.mean
        every = Queries.of(jm, None)
        here = replace(self._as_accurate(), queries=every, route="dense", device=None)
        whole = solve_pairs(here, *here.plan(), self.singles)
        moved = jm.transitions @ (jm.transitions @ whole.c).T
        full = jm.gamma**2 * np.asarray(moved).reshape(mean.shape + mean.shape)
        states = np.arange(jm.num_states)
        full[states, :, states] = whole.blocks
        full += np.multiply.outer(mean, mean)
        return full

    @property
    def longest_sum(self) -> int:
        """How many terms one coordinate of T_2 M sums at most."""
        kernel, starts = self.request.system.kernel, self.request.system.jm.starts
        return int(np.diff(starts).max()) + 4 * int(np.diff(kernel.indptr).max())  # a sum of sums

    @property
    def covariance_error(self) -> float:
        """How far a covariance may be off: c contracts by gamma^2."""
        system = self.request.system
        return float(self.residuals[-1]) * system.weight() / (1.0 - system.jm.gamma**2)

    @property
    def largest(self) -> float:
        """||M||_lambda of what was solved."""
        mean = float(np.abs(self.singles.backup.mean).max())
        spread = float(self.singles.backup.single.max())
        return max(mean, (spread + mean**2) / self.request.system.weight())


def evaluate(request: Request) -> Evaluation:
    """Choose a route, say so, and solve m, then v, then c."""
    plan, closed = request.plan()
    _LOG.info("JIPE-2, %s", plan)
    return solve_pairs(request, plan, closed, solve_singles(request.system, request.tol))


def solve_pairs(
    request: Request, plan: Plan, closed: PairSet | None, singles: Singles
) -> Evaluation:
    """c, to the certificate that was asked for."""
    system, gamma, source = request.system, request.system.jm.gamma, singles.backup.source
    pairs: Any
    if closed is not None:
        pairs = ReachablePairs.of(request.system.numbering, closed, source)
    elif plan.device is not None:
        pairs = TorchPairs(system, source, plan.device)
    else:
        pairs = DensePairs(system, source)
    allowed = request.tol * (1.0 - gamma)
    target = 0.05 * allowed * system.weight()  # gaps are differences of what is solved
    residuals: list[float] = []
    iterations, c = 0, None
    with progress(None, f"JIPE-2, {plan}", "sweep") as bar:
        # A small Gauss-Seidel step may hide a larger residual: then the target is lowered.
        for _ in range(4):
            c, history, applied = solve(pairs, target, gamma**2, plan.accelerated, c, bar)
            left = max(pairs.residual(c) + singles.moved * singles.scale, singles.changed)
            residuals += [r / system.weight() for r in history]
            residuals.append(max(singles.moved, left / system.weight()))
            iterations += applied + 1
            if residuals[-1] <= allowed:
                break
            target *= 0.1
    return Evaluation(request, plan, singles, pairs, c, np.array(residuals), iterations)
