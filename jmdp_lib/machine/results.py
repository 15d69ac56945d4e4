"""Results: dataclasses that are read-only."""

from dataclasses import fields
from typing import Any, Self

import numpy as np


class ReadOnly:
    """A frozen dataclass whose arrays cannot be written to, in copies and pickles either."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: cached properties can be computed again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()
