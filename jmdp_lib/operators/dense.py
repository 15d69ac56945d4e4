"""Affine maps of all pairs of states, such as the collapsed pair operator c -> c_0 + gamma^2 P_2 c.

From two distinct states both branches move by products of matrices, K x L'; from one state they
move together. Where the chain has few successors, the products are sums of few rows, compiled and
threaded; where it has many, they are BLAS's. On a torch device both are torch's.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from scipy import sparse

from jmdp_lib import machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import largest_of, threaded
from jmdp_lib.operators.collapsed import Backup, CollapsedT2

_BLOCK = 16  # rows of a tile
_WIDTH = 2048  # columns of a tile


class PairArrays(NamedTuple):
    """What a map of x (R, S) consists of: row s < S is about pairs (s, .), others as one likes.

    kernels: from distinct states, x moves by the sum of K x L' over these (K, L), matrices (S, S)
    or the sparse rows of such. source: (S, S) what is added there, or None. shared: (N, R * S)
    sparse, where branches at one state go: its first S rows are the diagonal, and the others those
    rows of x that are no pairs. shared_source: (N,) what is added there.
    """

    kernels: list[tuple[Any, Any]]
    source: Any
    shared: Any
    shared_source: Any


class PairMap(ABC):
    """x -> F(x) on all pairs of states, for `solvers.affine.solve`."""

    @property
    @abstractmethod
    def arrays(self) -> PairArrays:
        """What the map consists of."""

    @property
    @abstractmethod
    def num_states(self) -> int:
        """S."""

    def zeros(self) -> Any:
        """x = 0."""
        return np.zeros((self.arrays.shared.shape[1] // self.num_states, self.num_states))

    @cached_property
    def _scratch(self) -> Any:
        return self.zeros()[: self.num_states]

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """out = F(x), or without the source."""
        size = self.num_states
        kernels, source, shared, shared_source = self.arrays
        apart = out[:size]
        add = with_source and source is not None
        if add:
            apart[...] = source
        for kernel, other in kernels:
            _move_both(kernel, other, x[:size], self._scratch, apart, add)
            add = True
        together = shared @ x.reshape(-1)
        if with_source:
            together += shared_source
        apart.reshape(-1)[:: size + 1] = together[:size]
        out[size:] = together[size:].reshape(-1, size)

    def residual(self, x: Any) -> float:
        """max |F(x) - x|."""
        out = self.zeros()
        self.apply(x, out)
        out -= x
        return largest_of(out)


@dataclass(frozen=True)
class DensePairs(PairMap):
    """c over all pairs, (S, S) symmetric. backup: has c_0."""

    system: CollapsedT2
    backup: Backup

    @property
    def num_states(self) -> int:
        """S."""
        return self.system.jm.num_states

    @cached_property
    def arrays(self) -> PairArrays:
        """The collapsed T_2."""
        law = self.system.diagonal
        size = self.num_states
        kernels = scaled_kernels(self.system, self.system.few_successors)
        noise = self.backup.noise_source
        entries = self.system.jm.gamma**2 * law.weights, law.first * size + law.second, law.starts
        shared = sparse.csr_array(entries, (size, size * size), copy=True)
        shared.sum_duplicates()
        return PairArrays(
            kernels=list(zip(kernels, kernels, strict=True)),
            source=noise @ noise.T if noise.size else None,
            shared=shared,
            shared_source=self.backup.diagonal_source,
        )

    def values(self, c: Any, first: Ints, second: Ints) -> Floats:
        """c at pairs of states, first and second of any one shape."""
        return np.asarray(c[first, second])


@dataclass(frozen=True)
class TorchPairs(DensePairs):
    """DensePairs on a torch device; c is a tensor there."""

    device: str

    @cached_property
    def arrays(self) -> PairArrays:
        """The same, as tensors."""
        kernels, source, shared, shared_source = super().arrays
        moves = [self._tensor(kernel) for kernel, _ in kernels]
        return PairArrays(
            kernels=list(zip(moves, moves, strict=True)),
            source=None if source is None else self._tensor(source),
            shared=self._tensor((shared.indptr, shared.indices, shared.data), shared.shape),
            shared_source=self._tensor(shared_source),
        )

    def _tensor(self, array: Any, shape: Any = None) -> Any:
        """An array, or a sparse matrix from its rows."""
        torch = _torch()
        if not isinstance(array, tuple):
            return torch.tensor(array, device=self.device)
        rows = [torch.tensor(x, device=self.device) for x in array]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            shape = shape or (self.num_states, self.num_states)
            return torch.sparse_csr_tensor(*rows, shape, check_invariants=False)

    def zeros(self) -> Any:
        """c = 0."""
        return self._tensor(np.zeros(1)).new_zeros(self.num_states, self.num_states)

    def values(self, c: Any, first: Ints, second: Ints) -> Floats:
        """c at pairs of states, first and second of any one shape."""
        return np.asarray(c[self._tensor(first), self._tensor(second)].cpu())


def scaled_kernels(system: CollapsedT2, few: bool) -> list[Any]:
    """gamma times each kernel of a system: its sparse rows if there are few, or a matrix."""
    gamma = system.jm.gamma
    return [
        (kernel.indptr, kernel.indices, gamma * kernel.data) if few else gamma * kernel.toarray()
        for kernel in system.kernels
    ]


def _move_both(kernel: Any, other: Any, x: Any, scratch: Any, out: Any, add: bool) -> None:
    """out = K x L', or out += K x L', for sparse rows, or matrices of NumPy or torch."""
    if isinstance(kernel, tuple):
        move(*kernel, x, scratch, False)
        move(*other, scratch, out, add)  # (L (K x)')' = K x L'
        return
    if isinstance(out, np.ndarray):
        np.matmul(kernel, x, out=scratch)
        moved = scratch @ other.T
    else:
        moved = (other @ (kernel @ x).T.contiguous()).T
    if add:
        out += moved
    else:
        out[...] = moved


def device_bytes(device: str) -> int:
    """Bytes that can be had on a torch device; a device that is not there is refused.

    Memory that torch keeps from arrays that were freed counts as available, though the device
    reports it as taken.
    """
    torch = _torch()
    try:
        kind = torch.device(device)
        torch.empty(1, device=kind)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used: {error}") from None
    if kind.type != "cuda":
        return machine.available_bytes()
    unused = torch.cuda.memory_reserved(kind) - torch.cuda.memory_allocated(kind)
    return int(torch.cuda.mem_get_info(kind)[0] + unused)


def _torch() -> Any:
    with machine.extra("torch"):
        import torch
    return torch


def _moved(indptr: Any, indices: Any, probs: Any, c: Any, out: Any, add: Any) -> None:
    """out = (P c)', or out += (P c)', in tiles that stay in the cache while summed and turned."""
    size = len(c)
    for block in prange((size + _BLOCK - 1) // _BLOCK):
        low, high = block * _BLOCK, min(size, (block + 1) * _BLOCK)
        tile = np.empty((_BLOCK, _WIDTH))
        for left in range(0, size, _WIDTH):
            width = min(_WIDTH, size - left)
            for s in range(low, high):
                row = tile[s - low]
                row[:] = 0.0
                for k in range(indptr[s], indptr[s + 1]):
                    prob = probs[k]
                    part = c[indices[k], left : left + width]
                    for t in range(width):  # part[t], not c[..., left + t]: this one is vectorised
                        row[t] += prob * part[t]
            for t in range(width):
                column = out[left + t, low:high]
                if not add:
                    column[:] = 0.0
                for s in range(high - low):
                    column[s] += tile[s, t]


move = threaded(_moved, lambda *arguments: len(arguments[-2]), 400)
