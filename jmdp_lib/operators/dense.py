"""The collapsed pair operator on the whole (S, S) matrix: c -> c_0 + gamma^2 P_2 c.

Off the diagonal that is gamma^2 P c P', c being symmetric, or with common noise a sum of such terms
and a source. Where the chain has few successors, both products are sums of few rows, compiled and
threaded; where it has many, they are BLAS's.
`TorchPairs` does the same on any torch device.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import prange

from jmdp_lib import machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import threaded
from jmdp_lib.operators.collapsed import Backup, CollapsedT2

_BLOCK = 16  # rows of a tile
_WIDTH = 2048  # columns of a tile


@dataclass(frozen=True)
class DensePairs:
    """c over all pairs, (S, S) symmetric. backup: has c_0."""

    system: CollapsedT2
    backup: Backup

    @cached_property
    def _kernels(self) -> list[Any]:
        """gamma times each kernel of the system: its sparse rows, or a matrix."""
        gamma = self.system.jm.gamma
        few = self.system.few_successors
        return [
            (k.indptr, k.indices, gamma * k.data) if few else gamma * k.toarray()
            for k in self.system.kernels
        ]

    @cached_property
    def _diagonal(self) -> Any:
        """Of every entry of the law: the state, both successors, and gamma^2 times its weight."""
        law = self.system.diagonal
        states = np.repeat(np.arange(self.backup.value.size), np.diff(law.starts))
        return states, law.first, law.second, self.system.jm.gamma**2 * law.weights

    @cached_property
    def _scratch(self) -> Any:
        return self.zeros()

    def zeros(self) -> Any:
        """c = 0."""
        return np.zeros(self.system.kernel.shape)

    def apply(self, c: Any, out: Any, with_source: bool = True) -> None:
        """out = c_0 + gamma^2 P_2 c, or without c_0."""
        source = self.backup.noise_source
        add = with_source and source.size > 0
        if add:
            np.matmul(source, source.T, out=out)
        for kernel in self._kernels:
            if self.system.few_successors:
                move(*kernel, c, self._scratch, False)
                move(*kernel, self._scratch, out, add)  # (P (P c)')' = P c P'
            else:
                np.matmul(kernel, c, out=self._scratch)
                np.matmul(self._scratch, kernel.T, out=out)  # the only kernel, and no source
            add = True
        states, first, second, weights = self._diagonal
        later = np.bincount(states, weights * c[first, second], len(c))
        np.fill_diagonal(out, self.backup.diagonal_source * with_source + later)

    def residual(self, c: Any) -> float:
        """max |c_0 + gamma^2 P_2 c - c|."""
        out = self.zeros()
        self.apply(c, out)
        out -= c
        return float(max(out.max(), -out.min()))

    def values(self, c: Any, first: Ints, second: Ints) -> Floats:
        """c at pairs of states, first and second of any one shape."""
        return np.asarray(c[first, second])


@dataclass(frozen=True)
class TorchPairs(DensePairs):
    """DensePairs on a torch device; c is a tensor there."""

    device: str

    @cached_property
    def _kernels(self) -> list[Any]:
        if not self.system.few_successors:
            return [self._tensor(kernel) for kernel in super()._kernels]
        parts = [(*map(self._tensor, rows), self.system.kernel.shape) for rows in super()._kernels]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            return [_torch().sparse_csr_tensor(*rows, check_invariants=True) for rows in parts]

    @cached_property
    def _diagonal(self) -> Any:
        return [self._tensor(x) for x in super()._diagonal]

    def _tensor(self, array: Any) -> Any:
        return _torch().tensor(array, device=self.device)

    def zeros(self) -> Any:
        """c = 0."""
        return self._tensor(np.zeros(1)).new_zeros(self.system.kernel.shape)

    def apply(self, c: Any, out: Any, with_source: bool = True) -> None:
        """out = c_0 + gamma^2 P_2 c, or without c_0."""
        source = self._tensor(self.backup.noise_source * with_source)
        _torch().matmul(source, source.T, out=out)
        for kernel in self._kernels:
            out += kernel @ (kernel @ c).T.contiguous()
        states, first, second, weights = self._diagonal
        diagonal = self._tensor(self.backup.diagonal_source * with_source)
        diagonal.index_add_(0, states, weights * c[first, second])
        out.diagonal().copy_(diagonal)

    def values(self, c: Any, first: Ints, second: Ints) -> Floats:
        """c at pairs of states, first and second of any one shape."""
        return np.asarray(c[self._tensor(first), self._tensor(second)].cpu())


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
