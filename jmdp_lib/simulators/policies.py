"""Policies as they are played.

An action is where cumulative probabilities pass a uniform number, so that one number picks one
action from two policies wherever these agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.simulators.vector_simulator import Arrays


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


def policy_table(policy: Any, num_actions: int, num_states: int | None) -> Floats:
    """Probabilities (S, A) of a table; num_states: None if the table itself says it."""
    if array_api_compat.is_array_api_obj(policy) and not isinstance(policy, np.ndarray):
        policy = Arrays.of(policy).host(policy)
    shown = checks.policy_array(policy)
    count = num_states or (len(shown) if shown.ndim else 1)
    return checks.policy_matrix(checks.Sizes(count, num_actions), policy)
