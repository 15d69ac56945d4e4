"""The collapsed pair operator on the whole (S, S) matrix: c -> c_0 + gamma^2 P_2 c.

Off the diagonal that is gamma^2 P c P', c being symmetric. Where the chain has few successors, both
products are sums of few rows, compiled and threaded; where it has many, they are BLAS's.
`TorchPairs` does the same on any torch device.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit, prange

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.operators.collapsed import Collapsed
from jmdp_lib.operators.vectors import threaded

_BLOCK, _WIDTH = 16, 2048
# A term of a sum of rows costs some ten times what one of a matrix product does.
_SPARSE = 0.1


@dataclass(frozen=True)
class DensePairs:
    """c over all pairs, (S, S) symmetric. source: (S,) c_0."""

    system: Collapsed
    source: Floats

    @cached_property
    def sparse(self) -> bool:
        """Whether the chain has few successors."""
        return self.system.kernel.nnz <= _SPARSE * self.source.size**2

    @cached_property
    def _rows(self) -> Any:
        kernel = self.system.kernel
        return kernel.indptr, kernel.indices, self.system.jm.gamma * kernel.data

    @cached_property
    def _matrix(self) -> Floats:
        return self.system.jm.gamma * self.system.kernel.toarray()

    @cached_property
    def _diagonal(self) -> Any:
        law = self.system.diagonal
        return law.starts, law.first, law.second, self.system.jm.gamma**2 * law.weights

    @cached_property
    def _scratch(self) -> Floats:
        return self.zeros()

    def zeros(self) -> Floats:
        """c = 0."""
        return np.zeros((self.source.size, self.source.size))

    def apply(self, c: Floats, out: Floats, with_source: bool = True) -> None:
        """out = c_0 + gamma^2 P_2 c, or without c_0."""
        if self.sparse:
            _move(*self._rows, c, self._scratch)
            _move(*self._rows, self._scratch, out)  # (P (P c)')' = P c P'
        else:
            np.matmul(self._matrix, c, out=self._scratch)
            np.matmul(self._scratch, self._matrix.T, out=out)
        _set_diagonal(c, out, self._diagonal, self.source * with_source)

    def residual(self, c: Floats) -> float:
        """max |c_0 + gamma^2 P_2 c - c|."""
        out = np.empty_like(c)
        self.apply(c, out)
        out -= c
        return float(max(out.max(), -out.min()))

    def values(self, c: Floats, first: Ints, second: Ints) -> Floats:
        """(N,) c at the given pairs."""
        return c[first, second]


@dataclass(frozen=True)
class TorchPairs:
    """DensePairs on a torch device; c is a tensor there."""

    system: Collapsed
    source: Floats
    device: str

    @cached_property
    def _kernel(self) -> Any:
        import torch

        kernel, shape = self.system.kernel, (self.source.size, self.source.size)
        if kernel.nnz > _SPARSE * self.source.size**2:
            return self._tensor(self.system.jm.gamma * kernel.toarray())
        parts = [self._tensor(x) for x in (kernel.indptr, kernel.indices)]
        data = self._tensor(self.system.jm.gamma * kernel.data)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            return torch.sparse_csr_tensor(*parts, data, shape, check_invariants=True)

    @cached_property
    def _diagonal(self) -> Any:
        law = self.system.diagonal
        states = np.repeat(np.arange(self.source.size), np.diff(law.starts))
        weights = self.system.jm.gamma**2 * law.weights
        return [self._tensor(x) for x in (states, law.first, law.second, weights)]

    def _tensor(self, array: Any) -> Any:
        import torch

        return torch.tensor(array, device=self.device)

    def zeros(self) -> Any:
        """c = 0."""
        return self._tensor(np.zeros(1)).new_zeros((self.source.size, self.source.size))

    def apply(self, c: Any, out: Any, with_source: bool = True) -> None:
        """out = c_0 + gamma^2 P_2 c, or without c_0."""
        out.copy_(self._kernel @ (self._kernel @ c).T.contiguous())
        states, first, second, weights = self._diagonal
        diagonal = self._tensor(self.source * with_source)
        diagonal.index_add_(0, states, weights * c[first, second])
        out.diagonal().copy_(diagonal)

    def residual(self, c: Any) -> float:
        """max |c_0 + gamma^2 P_2 c - c|."""
        out = self.zeros()
        self.apply(c, out)
        out -= c
        return float(max(out.max(), -out.min()))

    def values(self, c: Any, first: Ints, second: Ints) -> Floats:
        """(N,) c at the given pairs."""
        return np.asarray(c[self._tensor(first), self._tensor(second)].cpu().numpy())


def _moved(indptr: Any, indices: Any, probs: Any, c: Any, out: Any) -> None:
    """out = (P c)', in tiles that stay in the cache while they are summed and turned."""
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
                    prob, part = probs[k], c[indices[k], left : left + width]
                    for t in range(width):  # part[t], not c[..., left + t]: this one is vectorised
                        row[t] += prob * part[t]
            for t in range(width):
                column = out[left + t, low:high]
                for s in range(high - low):
                    column[s] = tile[s, t]


_move = threaded(_moved, lambda *arguments: len(arguments[-1]), 400)


@njit(cache=True, error_model="numpy")
def _set_diagonal(c: Any, out: Any, law: Any, source: Any) -> None:
    starts, first, second, weights = law
    for s in range(len(c)):
        total = source[s]
        for e in range(starts[s], starts[s + 1]):
            total += weights[e] * c[first[e], second[e]]
        out[s, s] = total
