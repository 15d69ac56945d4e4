"""Arrays of any library of the array API standard, on the device where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Arrays:
    """An array library and a device. xp: the library's functions, by the names of the standard."""

    xp: Any
    device: Any

    @classmethod
    def of(cls, array: Any) -> Arrays:
        """Those of an array."""
        return cls(array_api_compat.array_namespace(array), array_api_compat.device(array))

    @property
    def is_torch(self) -> bool:
        return bool(array_api_compat.is_torch_namespace(self.xp))

    @property
    def on_gpu(self) -> bool:
        return getattr(self.device, "type", "cpu") == "cuda"

    @property
    def index_type(self) -> Any:
        """Of indices: narrow on a GPU, where moving them takes the time."""
        return self.xp.int32 if self.on_gpu else self.xp.int64

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """A random stream: of torch on its device, of NumPy for all other libraries."""
        if not self.is_torch:
            return np.random.Generator(np.random.SFC64(seed))  # twice as fast as the default
        import torch

        (word,) = seed.generate_state(1, np.uint64).tolist()
        return torch.Generator(device=self.device).manual_seed(word >> 1)

    def uniforms(self, size: int, rng: Any) -> Any:
        """(size,) uniform numbers in [0, 1): float64, or float32 on a GPU, where it counts."""
        if not self.is_torch:
            return self.put(rng.random(size))
        import torch

        kind = torch.float32 if self.on_gpu else torch.float64
        return torch.rand(size, generator=rng, device=self.device, dtype=kind)

    def take(self, array: Any, index: Any, axis: int = 0) -> Any:
        """Rows of an array, or columns. No index is negative."""
        if not self.is_torch:
            return self.xp.take(array, index, axis=axis)
        import torch

        return torch.index_select(array, axis, index)  # `xp.take` would look for negative ones

    def put(self, values: NDArray[Any]) -> Any:
        """A NumPy array as one of this library, on this device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """An array as one of NumPy."""
        return np.asarray(array.cpu() if self.is_torch else array)


def as_array(value: Any) -> Any:
    """An array as it is; anything else as one of NumPy."""
    return value if array_api_compat.is_array_api_obj(value) else np.asarray(value)


def floating(xp: Any, numbers: Any) -> Any:
    """Numbers as they are, or float64 if they are whole."""
    if xp.isdtype(numbers.dtype, "real floating"):
        return numbers
    return xp.astype(numbers, xp.float64)


def each(change: Callable[[Any], Any], noise: Any) -> Any:
    """The noise with every array of it changed: it is an array, or a tuple of arrays."""
    return tuple(map(change, noise)) if isinstance(noise, tuple) else change(noise)


def each_of(change: Callable[[list[Any]], Any], noises: list[Any]) -> Any:
    """As `each`, of several noises of one form: `change` gets the arrays that belong together."""
    if isinstance(noises[0], tuple):
        return tuple(change(list(parts)) for parts in zip(*noises, strict=True))
    return change(noises)
