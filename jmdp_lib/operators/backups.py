"""Sampled backups (Section 5.2): draws of hat T_2(M, i), twins of `literal.apply_t2`.

A layout says which coordinates i of M = (mu, Sigma) are kept, one after another in a vector
`values`, and how to draw the backup of one:

    Full        mu(x), Sigma(x, y) for all state-actions x, y: the paper's, X + X^2 coordinates
    Collapsed   mu(s, a), Sigma(s, a, s, b) and, between states, only the policy average W(s, t);
                the next action is averaged over instead of drawn
    Centred     the same with covariances in the place of second moments: the form for gaps, since
                nothing large is subtracted at the end

Each backup is written once, as a compiled target. Where the tables of a JMDP are known, `updates`
runs whole stretches of eq. (28) compiled; any other simulator is queried by `backup`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP
from jmdp_lib.moments import Held
from jmdp_lib.simulators import Simulator, checked_query

Coordinate = Sequence[tuple[int, int]]
KINDS = ("mu", "diag", "same", "cross")


def sample_t2(
    simulator: Simulator,
    policy: ArrayLike,
    mean: ArrayLike,
    second: ArrayLike,
    coordinate: Coordinate,
    rng: np.random.Generator,
) -> float:
    """A draw of hat T_2(M, i), whose expectation is (T_2 M)(i), for M = (mean, second).

    `coordinate` is [(s, a)] for the mean, [(s, a), (t, b)] for the second moment:
    (i) one draw from J_1, eq. (25); (ii) the same with itself: one branch, one next action,
    eq. (26); (iii) J_2 at one state, or two independent J_1 at two, eq. (27).
    """
    layout = Full(checks.policy_matrix(simulator, policy))
    values = layout.pack(*checks.collection("M", mean, second, simulator))
    if len(coordinate) not in (1, 2):
        raise ValueError(f"coordinate must be [(s, a)] or [(s, a), (t, b)], got {coordinate!r}")
    num_states, num_actions = layout.policy.shape
    i = 0
    for s, a in coordinate:
        state = checks.index("state", s, num_states)
        i = i * layout.policy.size + state * num_actions + checks.index("action", a, num_actions)
    return layout.backup(simulator, values, i + (len(coordinate) - 1) * layout.policy.size, rng)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates of the moments under a policy (S, A)."""

    policy: Floats

    @cached_property
    def _policy_cdf(self) -> list[list[float]]:
        return np.cumsum(self.policy, axis=1)[:, :-1].tolist()

    def choose(self, state: int, rng: np.random.Generator) -> int:
        """An action from pi(. | state)."""
        return bisect_right(self._policy_cdf[state], rng.random())


class Full(Coordinates):
    """values (X + X * X,): mu(x) at x, Sigma(x, y) at X + x * X + y, for x = s * A + a."""

    name = "full"

    @cached_property
    def kinds(self) -> Ints:
        """(X + X * X,) the kind of every coordinate, an index into KINDS."""
        state = np.arange(self.policy.size) // self.policy.shape[1]
        second = np.where(state[:, None] == state[None, :], 2, 3)
        np.fill_diagonal(second, 1)
        return np.concatenate([np.zeros_like(state), second.ravel()])

    def pack(self, mean: Floats, second: Floats) -> Floats:
        """The coordinates of M = (mean (S, A), second (S, A, S, A))."""
        return np.concatenate([mean.ravel(), second.ravel()])

    def split(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Views: mean (S, A), same-state entries (S, A, A), all entries (X, X)."""
        shape, num = self.policy.shape, self.policy.size
        second = values[num:].reshape(shape + shape)
        return values[:num].reshape(shape), np.einsum("sasb->sab", second), second.reshape(num, num)

    def second_moments(self, values: Floats) -> Floats:
        """The coordinates with second moments: as they are."""
        return values

    def covariances(self, values: Floats) -> Floats:
        """The coordinates with covariances in the place of second moments."""
        mean = self.split(values)[0]
        return values - self.pack(np.zeros(mean.size), np.multiply.outer(mean, mean))

    def backup(
        self, simulator: Simulator, values: Floats, i: int, rng: np.random.Generator
    ) -> float:
        """A draw of hat T_2(M, i) through the simulator."""
        num, num_actions = self.policy.size, self.policy.shape[1]
        x, y = divmod(i - num, num) if i >= num else (i, i)
        r, u, q, v = _draw(simulator, divmod(x, num_actions), divmod(y, num_actions), rng)
        one = u * num_actions + self.choose(u, rng)
        two = one if x == y else v * num_actions + self.choose(v, rng)
        return float(_full_target(values, num, simulator.gamma, i, r, one, q, two))

    def applied(self, jm: JMDP, values: Floats) -> Floats:
        """T_2 M, exactly, in coordinates with second moments."""
        mean, blocks, pairs = self.split(self.covariances(values))
        second = pairs.reshape(mean.shape * 2)
        pair = np.einsum("sa,satb,tb->st", self.policy, second, self.policy, optimize=True)
        new, same = _same_state_t2(jm, self.policy, mean, blocks, pair)
        moved = jm.gamma**2 * (jm.transitions @ (jm.transitions @ pair).T).T.reshape(second.shape)
        np.einsum("sasb->sab", moved)[...] = same
        return self.pack(new, moved + np.multiply.outer(new, new))

    def read(self, values: Floats) -> tuple[Floats, Floats, Held]:
        """Mean (S, A), covariance blocks (S, A, A), and all of Sigma."""
        mean, blocks, _ = self.split(self.covariances(values))
        second = values[mean.size :].reshape(mean.shape * 2)
        return mean.copy(), blocks.copy(), Held(second.copy())

    @property
    def updates(self) -> Callable[..., None]:
        """The compiled recursion, for known tables."""
        return _full_updates


class Collapsed(Coordinates):
    """values: mu (S, A), Sigma of one state (S, A, A), W (S, S) between states."""

    name = "collapsed"
    centred = False

    @cached_property
    def kinds(self) -> Ints:
        """The kind of every coordinate, an index into KINDS; -1 for W(s, s), which is not used."""
        num_states, num_actions = self.policy.shape
        one = 2 - np.eye(num_actions, dtype=np.int64)
        cross = np.where(np.eye(num_states, dtype=bool), -1, 3)
        means = np.zeros(self.policy.size, dtype=np.int64)
        return np.concatenate([means, np.tile(one.ravel(), num_states), cross.ravel()])

    def pack(self, mean: Floats, second: Floats) -> Floats:
        """The coordinates of M = (mean (S, A), second (S, A, S, A))."""
        cross = np.einsum("sa,satb,tb->st", self.policy, second, self.policy)
        np.fill_diagonal(cross, 0.0)
        same = np.einsum("sasb->sab", second)
        flat = np.concatenate([mean.ravel(), same.ravel(), cross.ravel()])
        return flat - self._products(mean) if self.centred else flat

    def split(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Views: mean (S, A), same-state entries (S, A, A), entries between states (S, S)."""
        num_states, num_actions = self.policy.shape
        mean, same, cross = np.split(values, self.policy.size * np.array([1, 1 + num_actions]))
        blocks = same.reshape(num_states, num_actions, num_actions)
        return mean.reshape(self.policy.shape), blocks, cross.reshape(num_states, num_states)

    def second_moments(self, values: Floats) -> Floats:
        """The coordinates with second moments, centred or not."""
        return values + self._products(self.split(values)[0]) if self.centred else values

    def covariances(self, values: Floats) -> Floats:
        """The coordinates with covariances, centred or not."""
        return values if self.centred else values - self._products(self.split(values)[0])

    def _products(self, mean: Floats) -> Floats:
        """What second moments exceed the covariances by."""
        value = (self.policy * mean).sum(1)
        between = np.outer(value, value) * ~np.eye(len(value), dtype=bool)
        same = mean[:, :, None] * mean[:, None, :]
        return np.concatenate([np.zeros(mean.size), same.ravel(), between.ravel()])

    def backup(
        self, simulator: Simulator, values: Floats, i: int, rng: np.random.Generator
    ) -> float:
        """A draw of hat T_2(M, i) through the simulator."""
        s, a, t, b = _collapsed_place(i, *self.policy.shape)
        if a < 0:
            a, b = self.choose(s, rng), self.choose(t, rng)
        r, u, q, v = _draw(simulator, (s, a), (t, b), rng)
        drawn: Any = (i, s, a, t, b, r, u, q, v)
        return float(_collapsed_target(values, self.policy, simulator.gamma, self.centred, *drawn))

    def applied(self, jm: JMDP, values: Floats) -> Floats:
        """T_2 M, exactly, in coordinates with second moments."""
        mean, blocks, cross = self.split(self.covariances(values))
        pair = cross.copy()
        np.fill_diagonal(pair, np.einsum("sa,sab,sb->s", self.policy, blocks, self.policy))
        new, same = _same_state_t2(jm, self.policy, mean, blocks, pair)

        def step(laws: Floats) -> Floats:
            """P laws, for the chain P of the policy."""
            after = (jm.transitions @ laws).reshape(*mean.shape, -1)
            return np.einsum("sa,sat->st", self.policy, after)

        moved = jm.gamma**2 * step(step(pair).T).T
        np.fill_diagonal(moved, 0.0)
        flat = np.concatenate([new.ravel(), same.ravel(), moved.ravel()])
        return flat + self._products(new)

    def read(self, values: Floats) -> tuple[Floats, Floats, Held]:
        """Mean (S, A) and covariance blocks (S, A, A); there is no more."""
        absent = 'only form="full" learns moments between states; the others learn their averages'
        mean, blocks, _ = self.split(self.covariances(values))
        return mean.copy(), blocks.copy(), Held(None, absent=absent)

    @property
    def updates(self) -> Callable[..., None]:
        """The compiled recursion, for known tables."""
        return partial(_collapsed_updates, self.centred)


class Centred(Collapsed):
    """`Collapsed` with covariances."""

    name = "centred"
    centred = True


LAYOUTS: dict[str, Any] = {"full": Full, "collapsed": Collapsed, "centred": Centred}


def _same_state_t2(
    jm: JMDP, policy: Floats, mean: Floats, blocks: Floats, pair: Floats
) -> tuple[Floats, Floats]:
    """T_2 on means (S, A) and on covariances of one state (S, A, A), as `pairs` centres it.

    pair: (S, S), the policy averages of all covariances.
    """
    gamma, x = jm.gamma, jm.next_states
    value = (policy * mean).sum(1)
    own = np.einsum("saa->sa", blocks) + (mean - value[:, None]) ** 2
    single = (policy * own).sum(1)
    targets = jm.rewards + gamma * value[x]
    new = jm.averaging @ targets
    targets -= new[jm.table_states]
    joint = targets[:, :, None] * targets[:, None, :]
    joint += gamma**2 * pair[x[:, :, None], x[:, None, :]]
    same = (jm.averaging @ joint.reshape(len(x), -1)).reshape(blocks.shape)
    np.einsum("saa->sa", same)[...] = jm.averaging @ (targets**2 + gamma**2 * single[x])
    return new, same


def _draw(
    simulator: Simulator, x: tuple[int, int], y: tuple[int, int], rng: np.random.Generator
) -> tuple[float, int, float, int]:
    """Reward and next state of two state-actions: one branch, one shared query, or two queries."""
    if x == y:
        first = second = checked_query(simulator, x[0], [x[1]], rng)[0]
    elif x[0] == y[0]:
        first, second = checked_query(simulator, x[0], [x[1], y[1]], rng)
    else:
        first = checked_query(simulator, x[0], [x[1]], rng)[0]
        second = checked_query(simulator, y[0], [y[1]], rng)[0]
    return float(first[0]), first[1], float(second[0]), second[1]  # the compiled targets' types


@njit(nogil=True, cache=True)
def _full_target(
    values: Any, num: int, gamma: float, i: int, r: float, one: int, q: float, two: int
) -> float:
    """hat T_2(M, i) from rewards r, q and next state-actions one, two; equal in one branch."""
    if i < num:
        return r + gamma * values[one]
    target = r * q + gamma * (r * values[two] + q * values[one])
    return target + gamma * gamma * values[num + one * num + two]


@njit(nogil=True, cache=True)
def _full_updates(
    rng: Any, count: int, values: Any, visits: Any, scale: float, power: float, threshold: Any,
    cell: Any, gamma: float, policy: Any, policy_cdf: Any, starts: Any, table_cdf: Any,
    rewards: Any, next_states: Any,
) -> None:  # fmt: skip
    """`count` updates of eq. (28) in the layout `Full`, in place."""
    num_actions = policy.shape[1]
    num = policy.size
    for _ in range(count):
        i = cell[pick_cell(rng, 0, threshold.size, threshold)]
        x = (i - num) // num if i >= num else i
        y = (i - num) % num if i >= num else i
        s, t = x // num_actions, y // num_actions
        k = pick(rng, table_cdf, starts[s], starts[s + 1])
        r, u = rewards[k, x % num_actions], next_states[k, x % num_actions]
        one = pick(rng, policy_cdf, u * num_actions, (u + 1) * num_actions)
        q, two = r, one
        if x != y:
            if s != t:
                k = pick(rng, table_cdf, starts[t], starts[t + 1])
            q, v = rewards[k, y % num_actions], next_states[k, y % num_actions]
            two = pick(rng, policy_cdf, v * num_actions, (v + 1) * num_actions)
        target = _full_target(values, num, gamma, i, r, one, q, two)
        visits[i] += 1
        values[i] += scale * float(visits[i]) ** -power * (target - values[i])


@njit(nogil=True, cache=True)
def _collapsed_place(i: int, size: int, num_actions: int) -> tuple[int, int, int, int]:
    """(s, a, t, b) of a coordinate; a and b are -1 where the policy draws them, for W(s, t)."""
    pair = i - size * num_actions
    if pair < 0:
        return i // num_actions, i % num_actions, i // num_actions, i % num_actions
    cross = pair - size * num_actions * num_actions
    if cross >= 0:
        return cross // size, -1, cross % size, -1
    s = pair // (num_actions * num_actions)
    return s, pair // num_actions % num_actions, s, pair % num_actions


@njit(nogil=True, cache=True)
def _mean_at(values: Any, policy: Any, u: int) -> float:
    """m(u) = E mu(u, A)."""
    total, num_actions = 0.0, policy.shape[1]
    for a in range(num_actions):
        total += policy[u, a] * values[u * num_actions + a]
    return total


@njit(nogil=True, cache=True)
def _pair_at(values: Any, policy: Any, u: int, v: int) -> float:
    """W(u, v): kept between states, an average of the block at one."""
    size, num_actions = policy.shape
    if u != v:
        return values[policy.size * (1 + num_actions) + u * size + v]
    total = 0.0
    for a in range(num_actions):
        if policy[u, a] > 0.0:
            row = policy.size + (u * num_actions + a) * num_actions
            for b in range(num_actions):
                total += policy[u, a] * policy[u, b] * values[row + b]
    return total


@njit(nogil=True, cache=True)
def _single_at(values: Any, policy: Any, centred: bool, u: int, mean: float) -> float:
    """D(u) = E Sigma(u, A, u, A), or from covariances Var Z(u, A); mean: m(u)."""
    total, spread, num_actions = 0.0, 0.0, policy.shape[1]
    for a in range(num_actions):
        x = u * num_actions + a
        total += policy[u, a] * values[policy.size + x * num_actions + a]
        if centred:
            spread += policy[u, a] * (values[x] - mean) ** 2
    return total + spread


@njit(nogil=True, cache=True)
def _collapsed_target(
    values: Any, policy: Any, gamma: float, centred: bool, i: int, s: int, a: int, t: int, b: int,
    r: float, u: int, q: float, v: int,
) -> float:  # fmt: skip
    """hat T_2(M, i), next actions averaged over; (s, a) earned r and moved to u, (t, b) q and v.

    centred: with y = R + gamma m(S') the target of a block is (y_a - mu_a)(y_b - mu_b) +
    gamma^2 c(S'_a, S'_b), and of a cross coordinate its second term alone. Its bias is a product of
    two mean errors and so vanishes first; its noise is that of a covariance, however large the
    means are.
    """
    here = _mean_at(values, policy, u)
    if i < policy.size:
        return r + gamma * here
    there = _mean_at(values, policy, v)
    if s == t and a == b:
        later = _single_at(values, policy, centred, u, here)
    else:
        later = _pair_at(values, policy, u, v)
    target = 0.0
    if not centred:
        target = r * q + gamma * (r * there + q * here)
    elif s == t:
        target = r + gamma * here - values[s * policy.shape[1] + a]
        target *= q + gamma * there - values[t * policy.shape[1] + b]
    return target + gamma * gamma * later


@njit(nogil=True, cache=True)
def _collapsed_updates(
    centred: bool, rng: Any, count: int, values: Any, visits: Any, scale: float, power: float,
    threshold: Any, cell: Any, gamma: float, policy: Any, policy_cdf: Any, starts: Any,
    table_cdf: Any, rewards: Any, next_states: Any,
) -> None:  # fmt: skip
    """`count` updates of eq. (28) in the layout `Collapsed` or `Centred`, in place."""
    size, num_actions = policy.shape
    for _ in range(count):
        i = cell[pick_cell(rng, 0, threshold.size, threshold)]
        s, a, t, b = _collapsed_place(i, size, num_actions)
        if a < 0:
            a = pick(rng, policy_cdf, s * num_actions, (s + 1) * num_actions) - s * num_actions
            b = pick(rng, policy_cdf, t * num_actions, (t + 1) * num_actions) - t * num_actions
        k = j = pick(rng, table_cdf, starts[s], starts[s + 1])
        if s != t:
            j = pick(rng, table_cdf, starts[t], starts[t + 1])
        r, u = rewards[k, a], next_states[k, a]
        q, v = rewards[j, b], next_states[j, b]
        target = _collapsed_target(values, policy, gamma, centred, i, s, a, t, b, r, u, q, v)
        visits[i] += 1
        values[i] += scale * float(visits[i]) ** -power * (target - values[i])


def cumulative(starts: Ints, probs: Floats) -> Floats:
    """Cumulative probabilities within each group: entries starts[i] .. starts[i+1] - 1 end at 1."""
    total = np.concatenate([[0.0], np.cumsum(probs)])
    return total[1:] - np.repeat(total[starts[:-1]], np.diff(starts))


@njit(nogil=True, cache=True)
def pick(rng: Any, cdf: Any, low: int, high: int) -> int:
    """Index in low..high-1 by its cumulative probability; no draw where there is no choice."""
    if high - low == 1:
        return low
    u = rng.random()
    while high - low > 8:
        middle = (low + high) // 2
        if cdf[middle - 1] <= u:
            low = middle
        else:
            high = middle
    while low < high - 1 and cdf[low] <= u:
        low += 1
    return low


@njit(cache=True)
def alias_tables(starts: Any, probs: Any) -> Any:
    """Walker's method for many laws at once: threshold (L,) and alias (L,) for probs (L,).

    Entry i of a law with n entries is drawn by a uniform number in its cell: itself below
    threshold[i], else alias[i]; one comparison whatever n is.
    """
    threshold, alias = np.ones(probs.size), np.arange(probs.size)
    stack = np.empty(probs.size, np.int64)
    for s in range(starts.size - 1):
        low, size = starts[s], starts[s + 1] - starts[s]
        scaled = probs[low : low + size] * size
        small, large = 0, size  # light entries from the left of the stack, heavy from the right
        for i in range(size):
            if scaled[i] < 1.0:
                stack[small] = i
                small += 1
            else:
                large -= 1
                stack[large] = i
        while small > 0 and large < size:
            light, heavy = stack[small - 1], stack[large]
            threshold[low + light], alias[low + light] = scaled[light], low + heavy
            scaled[heavy] -= 1.0 - scaled[light]
            if scaled[heavy] < 1.0:
                stack[small - 1] = heavy
                large += 1
            else:
                small -= 1
    return threshold, alias


@njit(nogil=True, cache=True)
def pick_cell(rng: Any, low: int, high: int, threshold: Any) -> int:
    """2 * i, or 2 * i + 1 for the alias of i: no branch, since none could be predicted."""
    if high - low == 1:
        return 2 * low
    u = rng.random() * (high - low)
    i = low + int(u)
    return 2 * i + int(u - int(u) >= threshold[i])


def cells(alias: Ints) -> Ints:
    """(2 L,) what each result of `pick_cell` stands for."""
    return np.stack([np.arange(alias.size), alias], axis=1).ravel()
