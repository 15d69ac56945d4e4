"""Sampled backups (Section 5.2): draws of hat T_2(M, i), twins of `literal.apply_t2`.

A `Layout` lists the coordinates i of M = (mu, Sigma) that are kept. They stand one after another in
a vector `values`. There are two forms:

    full      mu(x), Sigma(x, y) for all state-actions x, y: the paper's, X + X^2 coordinates
    centred   mu(s, a), the covariances C(s, a, s, b) of one state and, of any two states, their
              policy average c(s, t), with independent actions; the next action is averaged over
              instead of drawn. Use this form for gaps: no large numbers cancel at the end

A backup is written once, around the steps of two branches (`_start`, `_finish`). For a JMDP
`compiled_backup` draws these steps from its tables; for any other simulator `backup` queries them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks, randomness
from jmdp_lib.checks import Floats
from jmdp_lib.machine import both, inline
from jmdp_lib.model import JMDP
from jmdp_lib.model.simulator import Simulator, checked_query
from jmdp_lib.moments import StoredMoments
from jmdp_lib.operators.draws import AliasTables, draw, of_actions
from jmdp_lib.operators.pairs import PairOperator
from jmdp_lib.policies import Policy, policy_matrix
from jmdp_lib.randomness import RNG

Coordinate = Sequence[tuple[int, int]]
Form = Literal["full", "centred"]


def sample_t2(
    simulator: Simulator,
    policy: Policy,
    mean: ArrayLike,
    second: ArrayLike,
    coordinate: Coordinate,
    *,
    rng: RNG = None,
) -> float:
    """A sampled backup $hat T_2(M, i)$ of one coordinate $i$; its expectation is $(T_2 M)(i)$.

    Args:
        simulator: a JMDP, or any object with num_states, num_actions, gamma and query.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        mean: (S, A), $mu$ of the collection $M = (mu, Sigma)$.
        second: (S, A, S, A), $Sigma$.
        coordinate: [(s, a)] for a mean, which takes one draw from $J_1$, eq. (25); or
            [(s, a), (t, b)] for a second moment. If both are equal, one branch with one next
            action is drawn, eq. (26). Two actions of one state take one draw from $J_2$; two states
            take two independent draws from $J_1$, eq. (27).
        rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.

    Returns:
        The draw.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm, rng = jl.example_1(gamma=0.9), np.random.default_rng(0)
        >>> mean, second = np.full((1, 2), 5.0), np.full((1, 2, 1, 2), 25.0)
        >>> drawn = [jl.sample_t2(jm, [0], mean, second, [(0, 0), (0, 0)], rng=rng)
        ...          for _ in range(100)]
        >>> exact = jl.apply_t2(jm, [0], mean, second)[1][0, 0, 0, 0]
        >>> print(f"{np.mean(drawn):.1f} +- {np.std(drawn) / 10:.1f}, exactly {exact:.2f}")
        24.6 +- 0.5, exactly 25.25
    """
    layout = Layout.of(policy_matrix(simulator, policy), simulator.gamma, "full")
    values = layout.pack(*checks.collection("M", mean, second, simulator))
    if checks.as_array("coordinate", coordinate).shape not in ((1, 2), (2, 2)):
        raise ValueError(f"coordinate must be [(s, a)] or [(s, a), (t, b)], got {coordinate!r}")
    num_states, num_actions = layout.policy.shape
    x, *other = (
        checks.index("state", s, num_states) * num_actions + checks.index("action", a, num_actions)
        for s, a in coordinate
    )
    i = layout.cross + x * layout.side + other[0] if other else x
    return backup(randomness.generator(rng), values, i, simulator, layout)


class Layout(NamedTuple):
    """The order of coordinates in `values`: three blocks, with x = s A + a and X = S A.

        form "full":     mu(x) (X,); nothing; Sigma(x, y) (X, X)
        form "centred":  mu(x) (X,); C of one state (S, A, A); c of two states (S, S)

    policy: (S, A). actions: alias tables of it, for `draw`. full: True for form "full". cross:
    index of the first coordinate of the last block. side: number of rows of that block.
    """

    policy: Floats
    actions: AliasTables
    gamma: float
    full: bool
    cross: int
    side: int

    @classmethod
    def of(cls, policy: Floats, gamma: float, form: Form) -> Layout:
        """The layout of a policy (S, A) in this form."""
        num_states, num_actions = policy.shape
        full = form == "full"
        cross = policy.size * (1 if full else 1 + num_actions)
        side = policy.size if full else num_states
        return cls(policy, of_actions(policy), gamma, full, cross, side)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return self.cross + self.side**2

    def pack(self, mean: Floats, second: Floats) -> Floats:
        """The coordinates of M = (mean (S, A), second (S, A, S, A))."""
        parts = [mean, second]
        if not self.full:
            covariance = second - np.multiply.outer(mean, mean)
            cross = np.einsum("sa,satb,tb->st", self.policy, covariance, self.policy)
            parts = [mean, np.einsum("sasb->sab", covariance), cross]
        return np.concatenate([part.ravel() for part in parts])

    def split(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Views: mean (S, A), entries of one state (S, A, A), and the last block."""
        shape = self.policy.shape
        mean, same, cross = np.split(values, [self.policy.size, self.cross])
        mean = mean.reshape(shape)
        if self.full:
            second = cross.reshape(shape * 2)
            return mean, np.einsum("sasb->sab", second), second
        return mean, same.reshape(*shape, -1), cross.reshape(self.side, -1)

    def raw(self, values: Floats) -> Floats:
        """The coordinates as raw moments."""
        values = values.copy()
        if not self.full:
            mean, same, cross = self.split(values)
            value = (self.policy * mean).sum(1)
            same += mean[:, :, None] * mean[:, None, :]
            cross += np.outer(value, value)
        return values

    def applied(self, jm: JMDP, values: Floats) -> Floats:
        """T_2 M, exactly, as raw moments."""
        mean, same, cross = self.split(values)
        system = PairOperator(jm, self.policy)
        if self.full:
            new = system.apply(system.centre(mean, cross))
        else:
            new = system.collapsed_apply(mean, np.einsum("saa->sa", same), cross)
        return self.raw(self.pack(new.mean, new.second))

    def read(self, values: Floats) -> tuple[Floats, Floats, StoredMoments]:
        """Means (S, A), covariances (S, A, A) of one state, and a source with Sigma if "full"."""
        mean, same, second = self.split(values.copy())
        if self.full:
            same = same - mean[:, :, None] * mean[:, None, :]
        return mean, same, StoredMoments(second if self.full else None)


def backup(
    rng: np.random.Generator, values: Floats, i: int, simulator: Simulator, layout: Layout
) -> float:
    """A draw of hat T_2(M, i) by one query of the simulator, or by one at each of two states."""
    s, a, t, b = _start(rng, i, layout)
    outcomes = checked_query(simulator, s, [a] if s != t or a == b else [a, b], rng)
    if s != t:
        outcomes += checked_query(simulator, t, [b], rng)
    (r, u), (q, v) = outcomes[0], outcomes[-1]
    branches = Branch(s, a, float(r), u), Branch(t, b, float(q), v)
    return float(_finish(rng, values, i, branches, layout))


@inline
def compiled_backup(rng: Any, values: Any, i: int, model: Any, layout: Any) -> float:
    """A draw of hat T_2(M, i) for a JMDP. model: alias tables, rewards and next states of it."""
    s, a, t, b = _start(rng, i, layout)
    tables, rewards, next_states = model
    k = draw(rng, tables, s)
    j = k
    if s != t:
        j = draw(rng, tables, t)
    first = Branch(s, a, rewards[k, a], next_states[k, a])
    second = Branch(t, b, rewards[j, b], next_states[j, b])
    return _finish(rng, values, i, (first, second), layout)


class Branch(NamedTuple):
    """One step of a branch: `action` at `state` earned `reward` and led to the state `after`."""

    state: int
    action: int
    reward: float
    after: int


@both(inline="always")
def _start(rng: Any, i: int, layout: Any) -> tuple[int, int, int, int]:
    """The state-actions (s, a) and (t, b) of a coordinate; of c(s, t) the policy draws a and b."""
    num_actions = layout.policy.shape[1]
    num = layout.policy.size
    if i >= layout.cross:
        x, y = divmod(i - layout.cross, layout.side)
        if not layout.full:
            x = draw(rng, layout.actions, x)
            y = draw(rng, layout.actions, y)
    elif i >= num:
        x, b = divmod(i - num, num_actions)
        y = x - x % num_actions + b
    else:
        x = y = i
    s, a = divmod(x, num_actions)
    t, b = divmod(y, num_actions)
    return s, a, t, b


@both()
def _mean_at(values: Any, policy: Any, u: int) -> float:
    """m(u) = E mu(u, A)."""
    total = 0.0
    num_actions = policy.shape[1]
    for a in range(num_actions):
        total += policy[u, a] * values[u * num_actions + a]
    return total


@both()
def _variance_at(values: Any, policy: Any, u: int, mean: float) -> float:
    """Var Z(u, A), from covariances; mean: m(u)."""
    total = 0.0
    num_actions = policy.shape[1]
    for a in range(num_actions):
        x = u * num_actions + a
        spread = (values[x] - mean) ** 2
        total += policy[u, a] * (values[policy.size + x * num_actions + a] + spread)
    return total


@both(inline="always")
def _finish(rng: Any, values: Any, i: int, branches: Any, layout: Any) -> float:
    """hat T_2(M, i) from the steps of two branches.

    full: each draws its next action. centred: with y = R + gamma m(S') the target of a block is
    (y_a - mu_a)(y_b - mu_b) + gamma^2 c(S'_a, S'_b), and of a cross coordinate its second term
    alone. Its bias is a product of two mean errors and so vanishes first; its noise is that of a
    covariance, however large the means are.
    """
    first, second = branches
    policy = layout.policy
    gamma = layout.gamma
    num_actions = policy.shape[1]
    coalesced = first.state == second.state and first.action == second.action
    x, y = first.after, second.after
    if layout.full:
        x = draw(rng, layout.actions, x)
        y = x if coalesced else draw(rng, layout.actions, y)
        here, there = values[x], values[y]
        target = first.reward * second.reward
        target += gamma * (first.reward * there + second.reward * here)
    else:
        here = _mean_at(values, policy, x)
        there = _mean_at(values, policy, y)
        target = 0.0
        if first.state == second.state:
            target = first.reward + gamma * here - values[first.state * num_actions + first.action]
            mean = values[second.state * num_actions + second.action]
            target *= second.reward + gamma * there - mean
    if i < policy.size:
        return first.reward + gamma * here
    continuation = values[layout.cross + x * layout.side + y]
    if coalesced and not layout.full:
        continuation = _variance_at(values, policy, x, here)
    return target + gamma * gamma * continuation
