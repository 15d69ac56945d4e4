"""Policies as they are played.

An action is where cumulative probabilities pass a uniform number, so that one number picks one
action from two policies wherever these agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np



@dataclass(frozen=True, eq=False)
class PlayedPolicy:
    """A checked policy.

    source: probabilities (S, A), or a function; policies with one source are equal. steps: the
    cumulative probabilities that its player keeps, or None.
    """

    source: Any
    steps: Any = None

    def __eq__(self, other: object) -> bool:
        ours = self.source
        theirs: Any = getattr(other, "source", None)
        if callable(ours) or callable(theirs):
            return callable(ours) and callable(theirs) and bool(ours == theirs)
        return np.array_equal(ours, theirs)
