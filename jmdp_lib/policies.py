"""Policies in any form (probabilities, actions, a function), converted to probabilities."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats, Sized

Policy = ArrayLike | Callable[[Any], Any]
"""Probabilities (S, A), actions (S,), or a function of the state: see `policy_matrix`."""
SAME_POLICY = 1e-5  # smaller differences of probabilities are rounding, perhaps to float32


def policy_matrix(model: Sized, policy: Policy) -> Floats:
    """Convert any policy to probabilities (S, A); a function is called twice for every state.

    policy: probabilities (S, A); integers (S,), the actions of a deterministic policy; or a
    function of the state that returns probabilities (A,) or an action.
    """
    num_states, num_actions = checks.sizes_of(model)
    if callable(policy):
        return policy_rows(policy, range(num_states), num_actions)
    array = policy_array(policy)
    if array.ndim == 1 and array.dtype.kind in "iu":
        chosen = checks.integers("policy", policy, "state", shape=(num_states,), below=num_actions)
        return np.eye(num_actions)[chosen]
    if array.ndim < 2:
        raise ValueError(
            f"policy must have shape (state = {num_states}, action = {num_actions}), or be "
            f"actions, integers of shape (state = {num_states}), got dtype {array.dtype} of shape "
            f"{array.shape}"
        )
    return checks.distributions(
        "policy", policy, "state", "action", shape=(num_states, num_actions)
    )


def policy_rows(policy: Policy, states: Sequence[Any], num_actions: int) -> Floats:
    """Probabilities (N, A) of the actions of a policy in each of N states: see `policy_row`.

    A function is called for all states, and then again in reverse order. An error is raised if it
    draws actions or has a memory. Use of a global generator of NumPy, Python or torch is always
    detected; use of a private one is detected only if the results differ.
    """

    def rows_at(states: Sequence[Any]) -> Floats:
        rows = [policy_row(policy, state, num_actions) for state in states]
        return np.reshape(rows, (-1, num_actions))

    if not callable(policy):
        return rows_at(states)

    def tried() -> Floats:
        rows = rows_at(states)
        again = rows_at(states[::-1])[::-1]
        differ = np.abs(rows - again).max(1) > SAME_POLICY
        if differ.any():
            i = int(differ.argmax())
            raise ValueError(
                f"policy({states[i]!r}) must be pure, but gave {rows[i]} and then {again[i]}; a "
                "random policy returns probabilities"
            )
        return rows

    return randomness.without_global_draws("policy", "but must return probabilities", tried)


def policy_row(policy: Policy, state: Any, num_actions: int) -> Floats:
    """Probabilities (A,) of the actions of a policy in a state, or after an observation.

    policy: a function, or an array whose entry `policy[state]` is a row, which is probabilities
    (A,) or an action. Its shape is (S, A) for states 0 to |S| - 1, and (rows, columns, A) for
    states (row, column).
    """
    if callable(policy):
        try:
            row = policy(checks.read_only(state))
        except Exception as error:
            raise ValueError(f"policy({state!r}) failed: {error!r}") from error
    else:
        row = _entry(policy_array(policy), state)
    try:
        return _row("policy", row, num_actions)
    except ValueError:  # the state is named only here, since printing an observation is slow
        return _row(f"policy({state!r})", row, num_actions)


def policy_array(policy: Any) -> NDArray[Any]:
    """Convert a policy that is not a function to an array."""
    if isinstance(policy, Mapping):
        raise ValueError(
            "policy must be an array, or a function of the state such as policy.__getitem__, got "
            f"a {type(policy).__name__}"
        )
    return checks.as_array("policy", policy)


def _entry(policy: NDArray[Any], state: Any) -> Any:
    """Row of an array for a state, which is one index, or an index for each of the first axes."""
    place = checks.as_array("state", state)
    rows = policy.shape[: place.size]
    needed = place.size + (policy.dtype.kind not in "iu")  # an axis of probabilities
    counts = place.dtype.kind in "iu" and place.ndim < 2 and policy.ndim >= needed
    if not counts or np.any((place < 0) | (place >= rows)):
        raise ValueError(
            f"policy has no entry for state {state!r}: it is an array of shape {policy.shape} and "
            f"dtype {policy.dtype}, and needs an axis for each number of a state; or pass a "
            "function of the state"
        )
    return policy[tuple(place.ravel())]


def _row(name: str, row: Any, num_actions: int) -> Floats:
    """Probabilities (A,) of a row, which holds probabilities or is an action."""
    if checks.as_array(name, row).ndim > 0:
        return checks.distributions(name, row, "action", shape=(num_actions,))
    what = f"probabilities ({num_actions},) or an action from 0 to {num_actions - 1}"
    action = checks.number(name, row, numbers.Integral, what, below=num_actions)
    return np.eye(num_actions)[int(action)]
