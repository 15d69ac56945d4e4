"""Feature maps phi(s, a) for function approximation, as (S, A, d) arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Sized


def tabular_features(model: Sized) -> Floats:
    """One feature per state-action, d = S * A: exact."""
    shape = (model.num_states, model.num_actions)
    return np.eye(shape[0] * shape[1]).reshape(*shape, -1)


def aggregation_features(model: Sized, groups: ArrayLike) -> Floats:
    """One feature per (group, action): the states of a group, groups[s] (S,), look alike."""
    group = checks.integers("groups", groups, state=model.num_states)
    _, compact = np.unique(group, return_inverse=True)
    return per_action(np.eye(compact.max() + 1)[compact], model.num_actions)


def rbf_features(rows: int, columns: int, centres: int, width: float = 1.0) -> Floats:
    """(rows * columns, centres^2 + 1): Gaussian bumps on a grid of centres, and a constant."""
    for name, value in (("rows", rows), ("columns", columns), ("centres", centres)):
        checks.at_least(name, value, 1)
    checks.positive("width", width)
    cells = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    marks = [np.linspace(0, size - 1, centres) for size in (rows, columns)]
    middles = np.stack(np.meshgrid(*marks, indexing="ij"), axis=-1).reshape(-1, 2)
    spacing = max(1.0, (max(rows, columns) - 1) / max(1, centres - 1))
    squares = ((cells[:, None] - middles) ** 2).sum(-1)
    bumps = np.exp(-squares / (2.0 * (width * spacing) ** 2))
    return np.hstack([bumps, np.ones((rows * columns, 1))])


def random_features(model: Sized, dimension: int, seed: int | np.random.SeedSequence = 0) -> Floats:
    """Independent standard normal features, (S, A, dimension)."""
    dimension = checks.at_least("dimension", dimension, 1)
    rng = checks.generator(seed)
    return rng.normal(size=(model.num_states, model.num_actions, dimension))


def per_action(state_features: ArrayLike, num_actions: int) -> Floats:
    """State features (S, c), a copy for every action: (S, A, c * A)."""
    phi = checks.floats("state_features", state_features, "state", "feature")
    checks.at_least("num_actions", num_actions, 1)
    both = np.einsum("sc,ab->sabc", phi, np.eye(num_actions))
    return both.reshape(len(phi), num_actions, -1)
