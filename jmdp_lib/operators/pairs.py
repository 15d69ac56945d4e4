"""T_2 made fast on all pairs of state-actions, and the pair chain P_2 beneath it.

**Collapse.** T_2 sees M only through m(s) = E mu(s, A), W(s, t) = E Sigma(s, A, t, B) with A and B
independent, and D(s) = E Sigma(s, A, s, A).

**Centre.** In C = Sigma - mu mu' the same operator reads, for y = R + gamma m(S') and its mean mu,

    C(s,a; s,b)  <-  E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E[c(S'_a, S'_b)]     same state, a != b
    C(s,a; s,a)  <-  E[(y_a - mu_a)^2]           + gamma^2 E[v(S'_a)]           one branch
    C(s,a; t,b)  <-                                gamma^2 E[c(S'_a, S'_b)]     s != t, independent

with c = W - m m' and v = D - m^2 = Var Z(s, A). Nothing large is subtracted from anything large,
and off the same-state blocks there is no source at all. With common noise the first line holds for
distinct states too: as a mixture over the noise, T_2 is the same contraction as before.

**The pair chain** P_2 of Appendix B moves two branches, coupled while they share a state. Its
diagonal is absorbing: two branches at the same state-action are one branch and stay so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.moments import norm_weight


@dataclass(frozen=True)
class PairState:
    """All first and second moments. mean: (S, A). covariance: C = Sigma - mu mu', (S, A, S, A)."""

    mean: Floats
    covariance: Floats

    @property
    def blocks(self) -> Floats:
        """(S, A, A), C(s, a; s, b)."""
        return np.einsum("sasb->sab", self.covariance)

    @property
    def second(self) -> Floats:
        """(S, A, S, A), Sigma."""
        return self.covariance + np.multiply.outer(self.mean, self.mean)


@dataclass(frozen=True)
class PairOperator:
    """T_2 for one JMDP, one policy (S, A) and one coupling, acting on PairState."""

    jm: JMDP
    policy: Floats
    coupling: str = "joint"

    @cached_property
    def _policy_average(self) -> sparse.csr_array:
        return policy_average(self.policy)

    @cached_property
    def _moves(self) -> list[Any]:
        """`moves`, dense where that is faster."""
        found = moves(self.jm, self.coupling)
        return [m.toarray() if m.nnz > 0.1 * np.prod(m.shape) else m for m in found]

    @cached_property
    def longest_sum(self) -> int:
        """How many terms one coordinate of T_2 M sums at most."""
        widest = np.diff(self.jm.transitions.indptr).max()
        return int(np.diff(self.jm.starts).max() + widest + len(self._moves))

    def zero(self) -> PairState:
        """M_0 = 0."""
        return PairState(np.zeros(self.policy.shape), np.zeros(self.policy.shape * 2))

    def centre(self, mean: Floats, second: Floats) -> PairState:
        """Any M_0 given as (S, A) and (S, A, S, A)."""
        return PairState(mean, second - np.multiply.outer(mean, mean))

    def apply(self, state: PairState) -> PairState:
        """T_2."""
        average, side = self._policy_average, self.policy.size
        pair = (average @ (average @ state.covariance.reshape(side, side)).T).T  # c
        mean, blocks, deviations = self.same_state(state.mean, state.blocks, pair)
        source = shocks(self.jm, self.coupling, deviations)
        covariance = distinct_states(self.jm.gamma, self._moves, pair, source)
        covariance = covariance.reshape(state.covariance.shape)
        if self.coupling == "independent":
            np.einsum("sasa->sa", covariance)[...] = np.einsum("saa->sa", blocks)
        else:
            np.einsum("sasb->sab", covariance)[...] = blocks
        return PairState(mean, covariance)

    def same_state(
        self, mean: Floats, blocks: Floats, pair: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """T_2 on means (S, A) and on the covariances (S, A, A) of actions that share their table.

        pair: (S, S), c. Returns both, and the deviations y - mu (T, A).
        """
        jm, gamma, x = self.jm, self.jm.gamma, self.jm.next_states
        value = (self.policy * mean).sum(1)  # m
        own = np.einsum("saa->sa", blocks) + (mean - value[:, None]) ** 2
        single = np.einsum("sa,sa->s", self.policy, own)  # v
        targets = jm.rewards + gamma * value[x]  # (T, A), y
        new = jm.averaging @ targets
        deviations = targets - new[jm.table_states]
        joint = deviations[:, :, None] * deviations[:, None, :]
        joint += gamma**2 * pair[x[:, :, None], x[:, None, :]]
        same = (jm.averaging @ joint.reshape(len(x), -1)).reshape(blocks.shape)
        variance = jm.averaging @ (deviations**2 + gamma**2 * single[x])
        np.einsum("saa->sa", same)[...] = variance
        return new, same, deviations

    def distance(self, new: PairState, old: PairState) -> float:
        """||new - old||_lambda over all coordinates."""
        mean = np.abs(new.mean - old.mean).max()
        second = np.abs(new.second - old.second).max()
        return float(max(mean, second / norm_weight(2, self.jm.gamma, self.jm.reward_bound)))


def moves(jm: JMDP, coupling: str) -> list[sparse.csr_array]:
    """Matrices M_d (S*A, S): two branches at distinct states move by c -> sum_d M_d c M_d'.

    That is the one matrix of transitions where the branches draw independently. With common noise
    there is one for each noise d, sqrt(p_d) at the state that d leads to.
    """
    if coupling != "common":
        return [jm.transitions]
    given = zip(jm.noise_probs, jm.given_noise, strict=True)
    return [np.sqrt(prob) * certain.transitions for prob, certain in given]


def shocks(jm: JMDP, coupling: str, deviations: Floats) -> Floats:
    """F (S*A, K): F F' is the source of T_2 between distinct states; K = 0 where it has none.

    deviations: (T, A), y - mu.
    """
    if coupling != "common":
        return np.zeros((jm.num_states * jm.num_actions, 0))
    by_noise = deviations.reshape(-1, jm.noise_probs.size, jm.num_actions).swapaxes(1, 2)
    return (by_noise * np.sqrt(jm.noise_probs)).reshape(-1, jm.noise_probs.size)


def distinct_states(gamma: float, moves: Sequence[Any], pair: Floats, shocks: Floats) -> Floats:
    """(N, N), gamma^2 sum_d M_d c M_d' + F F', for M_d (N, S), c (S, S) and F (N, K)."""
    moved = reduce(np.add, ((move @ (move @ pair).T).T for move in moves))
    return gamma**2 * moved + (shocks @ shocks.T if shocks.size else 0.0)


def policy_average(policy: Floats) -> sparse.csr_array:
    """(S, S*A) sparse: times a function of state-actions, its average over a policy (S, A)."""
    states, actions = np.nonzero(policy)
    entries = policy[states, actions], (states, states * policy.shape[1] + actions)
    return sparse.csr_array(entries, shape=(len(policy), policy.size))


def pair_step(jm: JMDP, policy: ArrayLike, law: ArrayLike) -> Floats:
    """One step of the pair chain: law (S, A, S, A) of (X, Y) -> law of (X', Y'), law P_2."""
    policy = checks.policy_matrix(jm, policy)
    weights = checks.as_array("law", law)
    checks.same_shape("law", weights.shape, policy.shape * 2, "(S, A, S, A)")
    num_states, num_actions = policy.shape
    states = np.arange(num_states)
    same = weights[states, :, states].copy()  # (S, A, A)
    alone = np.einsum("saa->sa", same).copy()  # one branch
    np.einsum("saa->sa", same)[...] = 0.0

    apart = weights.copy()
    apart[states, :, states] = 0.0
    side = num_states * num_actions
    moved = jm.transitions.T @ (jm.transitions.T @ apart.reshape(side, side)).T
    pairs = np.asarray(moved.T)  # (S, S), law of (S', T') of two branches
    x = jm.next_states
    shared = jm.probs[:, None, None] * same[jm.table_states]
    np.add.at(pairs, (x[:, :, None], x[:, None, :]), shared)
    singles = np.zeros(num_states)
    np.add.at(singles, x, jm.probs[:, None] * alone[jm.table_states])

    after = np.einsum("sa,st,tb->satb", policy, pairs, policy)
    actions = np.arange(num_actions)
    after[states[:, None], actions, states[:, None], actions] += policy * singles[:, None]
    return after


def mass_apart(law: Floats) -> float:
    """The mass of a pair law (S, A, S, A) off the diagonal: pairs that are still two branches."""
    return float(law.sum() - np.einsum("sasa->", law))


def first_to_arrive(jm: JMDP, policy: ArrayLike, target: int, tol: float = 1e-12) -> Floats:
    """(S, A, A), the probability at [s, a, b] that branch a is in `target` strictly before b.

    Iterates h = P_2 h from below, with h = 1 where only the first branch has arrived and 0 where
    the second has or both have merged, until no entry moves by more than `tol`.
    """
    matrix = checks.policy_matrix(jm, policy)
    target = checks.index("target", target, jm.num_states)
    tol = checks.positive("tol", tol)
    states, x = np.arange(jm.num_states), jm.next_states
    chain = policy_average(matrix) @ jm.transitions
    ahead, change = np.zeros((jm.num_states, jm.num_states)), np.inf
    while change > tol:
        ahead[target], ahead[:, target] = 1.0, 0.0
        joint = ahead[x[:, :, None], x[:, None, :]].reshape(len(x), -1)
        first = (jm.averaging @ joint).reshape(-1, jm.num_actions, jm.num_actions)
        np.einsum("saa->sa", first)[...] = 0.0  # equal actions are one branch
        after = (chain @ (chain @ ahead).T).T
        after[states, states] = np.einsum("sa,sab,sb->s", matrix, first, matrix)
        after[target], after[:, target] = 1.0, 0.0
        change = float(np.abs(after - ahead).max())
        ahead = after
    return first
