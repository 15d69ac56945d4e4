"""The one-sample backup of T_2 (Section 5.2), twin of `literal.apply_t2`, for any simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.simulators import Simulator, checked_query

Coordinate = Sequence[tuple[int, int]]


def choose(policy: Floats, state: int, rng: np.random.Generator) -> int:
    """An action from pi(. | state)."""
    action = np.searchsorted(np.cumsum(policy[state]), rng.random(), "right")
    return min(int(action), policy.shape[1] - 1)


def sample_t2(
    simulator: Simulator,
    policy: ArrayLike,
    mean: ArrayLike,
    second: ArrayLike,
    coordinate: Coordinate,
    rng: np.random.Generator,
) -> float:
    """`draw_t2` of arguments that are checked first."""
    matrix = checks.policy_matrix(simulator, policy)
    first, both = checks.collection("M", mean, second, simulator)
    if len(coordinate) not in (1, 2):
        raise ValueError(f"coordinate must be [(s, a)] or [(s, a), (t, b)], got {coordinate!r}")
    asked = [
        (checks.index("state", s, matrix.shape[0]), checks.index("action", a, matrix.shape[1]))
        for s, a in coordinate
    ]
    return draw_t2(simulator, matrix, first, both, asked, rng)


def draw_t2(
    simulator: Simulator,
    policy: Floats,
    mean: Floats,
    second: Floats,
    coordinate: Coordinate,
    rng: np.random.Generator,
) -> float:
    """A draw of hat T_2(M, i), whose expectation is (T_2 M)(i), for M = (mean, second).

    `coordinate` is [(s, a)] for the mean, [(s, a), (t, b)] for the second moment:
    (i) one draw from J_1, eq. (25); (ii) the same with itself: one branch, one next action,
    eq. (26); (iii) J_2 at one state, or two independent J_1 at two, eq. (27).
    """
    gamma = simulator.gamma
    (s, a), (t, b) = coordinate[0], coordinate[-1]
    if (s, a) == (t, b):
        ((r, u),) = checked_query(simulator, s, [a], rng)
        x = (u, choose(policy, u, rng))
        if len(coordinate) == 1:
            return float(r + gamma * mean[x])
        return float(r**2 + 2 * gamma * r * mean[x] + gamma**2 * second[x + x])
    if s == t:
        (r, u), (q, v) = checked_query(simulator, s, [a, b], rng)
    else:
        (r, u), (q, v) = checked_query(simulator, s, [a], rng) + checked_query(
            simulator, t, [b], rng
        )
    x, y = (u, choose(policy, u, rng)), (v, choose(policy, v, rng))
    crossed = r * q + gamma * (r * mean[y] + q * mean[x])
    return float(crossed + gamma**2 * second[x + y])


def sample_collapsed(
    simulator: Simulator,
    policy: Floats,
    mean: Floats,
    blocks: Floats,
    cross: Floats,
    coordinate: Coordinate,
    rng: np.random.Generator,
    centred: bool = False,
) -> float:
    """The same backup with the next action averaged over, on mean (S, A), blocks (S, A, A) and
    cross (S, S), the policy averages W(s, t) for s != t.

    A cross coordinate [(s, a), (t, b)] stands for W(s, t): draw a and b from the policy first.

    centred: blocks and cross hold covariances. With y = R + gamma m(S') the target of a block is
    (y_a - mu_a)(y_b - mu_b) + gamma^2 c(S'_a, S'_b), and of a cross coordinate its second term
    alone. Its bias is a product of two mean errors and so vanishes first; its noise is that of a
    covariance, however large the means are.
    """
    gamma = simulator.gamma
    (s, a), (t, b) = coordinate[0], coordinate[-1]
    if (s, a) == (t, b):
        ((r, u),) = checked_query(simulator, s, [a], rng)
        q, v = r, u
    elif s == t:
        (r, u), (q, v) = checked_query(simulator, s, [a, b], rng)
    else:
        (r, u), (q, v) = checked_query(simulator, s, [a], rng) + checked_query(
            simulator, t, [b], rng
        )
    here, there = float(policy[u] @ mean[u]), float(policy[v] @ mean[v])
    if len(coordinate) == 1:
        return r + gamma * here
    if (s, a) == (t, b):
        later = float(policy[u] @ np.diagonal(blocks[u]))
        if centred:
            later += float(policy[u] @ (mean[u] - here) ** 2)
    else:
        later = float(policy[u] @ blocks[u] @ policy[u] if u == v else cross[u, v])
    if not centred:
        return r * q + gamma * (r * there + q * here) + gamma**2 * later
    own = (r + gamma * here - mean[s, a]) * (q + gamma * there - mean[t, b]) if s == t else 0.0
    return float(own + gamma**2 * later)


def sample_tn(
    simulator: Simulator,
    policy: Floats,
    moment: Callable[[Sequence[tuple[int, int]]], float],
    coordinate: Coordinate,
    rng: np.random.Generator,
) -> float:
    """A draw of hat T_n(M, x_1 ... x_k), for M given as a function of sorted coordinates.

    Equal state-actions are one branch; the branches of a state share one query; every branch draws
    one next action; (R + gamma Z')^m is expanded branch by branch, eq. (33), with M^(0) = 1.
    """
    powers = Counter(coordinate)
    terms: list[tuple[float, tuple[tuple[int, int], ...]]] = [(1.0, ())]
    for state in sorted({s for s, _ in powers}):
        actions = sorted(a for s, a in powers if s == state)
        for a, (r, u) in zip(actions, checked_query(simulator, state, actions, rng), strict=True):
            x, m = (u, choose(policy, u, rng)), powers[state, a]
            terms = [
                (c * comb(m, k) * r ** (m - k) * simulator.gamma**k, rest + (x,) * k)
                for c, rest in terms
                for k in range(m + 1)
            ]
    return sum(c * (moment(sorted(rest)) if rest else 1.0) for c, rest in terms if c != 0.0)
