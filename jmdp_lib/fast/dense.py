"""Affine maps on all pairs of states, such as the collapsed operator c -> c_0 + gamma^2 P_2 c.

From distinct states two branches move by a product of matrices, K x L'; from one state they move by
one sparse matrix. For a chain with few successors the product is a sum of few rows, compiled and
threaded; otherwise it is computed by BLAS, and on a torch device always by torch.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import prange
from scipy import sparse

from jmdp_lib import machine
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.collapsed import CollapsedBackup, CollapsedT2
from jmdp_lib.fast.threads import threaded
from jmdp_lib.machine import hot

_BLOCK = 32  # rows of a tile
_WIDTH = 256  # columns of a tile


@dataclass(frozen=True)
class PairMap:
    """Map x -> F(x) on all pairs of states, for `fast.affine.solve`.

    Row s < S of x (R, S) holds the pairs (s, .); other rows are free to use.

    num_states: S. kernels: pairs (K, L) of matrices (S, S), sparse or dense; from distinct states,
    x moves by the sum of K x L'. source: (S, S), added there, or None. shared: (N, R * S) sparse,
    the step of branches at one state; its first S rows give the diagonal, the others the rows of x
    beyond S. shared_source: (N,), added there.
    """

    num_states: int
    kernels: list[tuple[Any, Any]]
    source: Any
    shared: Any
    shared_source: Any

    def zeros(self) -> Any:
        """Return x = 0."""
        shape = (self.shared.shape[1] // self.num_states, self.num_states)
        like = self.shared_source
        return np.zeros(shape) if isinstance(like, np.ndarray) else like.new_zeros(shape)

    @cached_property
    def _scratch(self) -> Any:
        return self.zeros()[: self.num_states]

    def apply(self, x: Any, out: Any, with_source: bool = True) -> None:
        """Write F(x) to `out`, or G x without the source."""
        size = self.num_states
        distinct = out[:size]
        add = with_source and self.source is not None
        if add:
            distinct[...] = self.source
        for kernel, other in self.kernels:
            _move_both(kernel, other, x[:size], self._scratch, distinct, add)
            add = True
        shared = self.shared @ x.reshape(-1)
        if with_source:
            shared += self.shared_source
        distinct.reshape(-1)[:: size + 1] = shared[:size]
        out[size:] = shared[size:].reshape(-1, size)

    def residual(self, x: Any) -> float:
        """Largest |F(x) - x|."""
        out = self.zeros()
        self.apply(x, out)
        out -= x
        return largest_of(out)


def dense_pairs(system: CollapsedT2, backup: CollapsedBackup, device: str | None = None) -> PairMap:
    """Collapsed T_2 on c (S, S), symmetric, over all pairs of states.

    backup: the source of c_0. device: torch device of c; by default c is a NumPy array.
    """
    noise = backup.noise_source
    kernels = [on_device(x, device) for x in scaled_kernels(system, system.few_successors)]
    return PairMap(
        num_states=system.jm.num_states,
        kernels=list(zip(kernels, kernels, strict=True)),
        source=on_device(noise @ noise.T, device) if noise.size else None,
        shared=on_device(system.jm.gamma**2 * system.diagonal, device),
        shared_source=on_device(backup.diagonal_source, device),
    )


def on_device(array: Any, device: str | None) -> Any:
    """Copy an array or a sparse matrix to a torch device, if one is given."""
    if device is None:
        return array
    with machine.extra("torch"):
        import torch
    if not isinstance(array, sparse.csr_array):
        return torch.tensor(array, device=device)
    rows = [torch.tensor(x, device=device) for x in (array.indptr, array.indices, array.data)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
        return torch.sparse_csr_tensor(*rows, array.shape, check_invariants=False)


def at_pairs(c: Any, first: Ints, second: Ints) -> Floats:
    """Entries of c (S, S), an array or a tensor, at pairs of states, of any one shape."""
    if isinstance(c, np.ndarray):
        return np.asarray(c[first, second])
    return np.asarray(c[on_device(first, c.device), on_device(second, c.device)].cpu())


def scaled_kernels(system: CollapsedT2, few: bool) -> list[Any]:
    """Kernels of a system times gamma, sparse if there are few successors."""
    scaled = [system.jm.gamma * kernel for kernel in system.kernels]
    return scaled if few else [kernel.toarray() for kernel in scaled]


def _move_both(kernel: Any, other: Any, x: Any, scratch: Any, out: Any, add: bool) -> None:
    """Write K x L' to `out`, or add it, for matrices of SciPy, NumPy or torch."""
    if isinstance(kernel, sparse.csr_array):
        move(kernel.indptr, kernel.indices, kernel.data, x, scratch, False)
        move(other.indptr, other.indices, other.data, scratch, out, add)  # (L (K x)')' = K x L'
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


def _moved(indptr, indices, probs, c, out, add):
    """Write (P c)' to `out`, or add it, tile by tile: a tile is summed and transposed in cache."""
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
                    for t in range(width):  # vectorised, unlike c[indices[k], left + t]
                        row[t] += prob * part[t]
            for t in range(width):
                column = out[left + t, low:high]
                if not add:
                    column[:] = 0.0
                for s in range(high - low):
                    column[s] += tile[s, t]


move = threaded(_moved, lambda *arguments: len(arguments[-2]), 400)


# Sums over long arrays run on one thread: they do not depend on the number of threads, and do not
# wait for threads that spin, as those of BLAS do.


def add_scaled(a: float, x: Any, b: float, y: Any) -> None:
    """Compute y = a x + b y in place."""
    if isinstance(y, np.ndarray):
        _scaled_sum(a, x.ravel(), b, y.ravel())
    else:
        y.mul_(b).add_(x, alpha=a)


def inner_product(x: Any, y: Any) -> float:
    """Inner product, sum x y."""
    if isinstance(y, np.ndarray):
        return float(np.einsum("i,i->", x.ravel(), y.ravel()))
    return float(x.ravel().dot(y.ravel()))


def largest_of(x: Any) -> float:
    """Largest |x|; nan if any entry is."""
    return float(max(x.max(), -x.min())) if len(x) else 0.0


@hot
def _scaled_sum(a, x, b, y):
    for i in range(y.size):  # needs no memory for an array of sums
        y[i] = a * x[i] + b * y[i]
