"""T_2 on whole collections, collapsed and centred.

**Collapse.** T_2 sees M only through m(s) = E mu(s, A), W(s, t) = E Sigma(s, A, t, B) with A and B
independent, and D(s) = E Sigma(s, A, s, A).

**Centre.** In C = Sigma - mu mu' the same operator reads, for y = R + gamma m(S') and its mean mu,

    C(s,a; s,b)  <-  E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E[c(S'_a, S'_b)]     same state, a != b
    C(s,a; s,a)  <-  E[(y_a - mu_a)^2]           + gamma^2 E[v(S'_a)]           one branch
    C(s,a; t,b)  <-                                gamma^2 E[c(S'_a, S'_b)]     s != t, independent

with c = W - m m' and v = D - m^2 = Var Z(s, A). Nothing large is subtracted from anything large,
and off the same-state blocks there is no source at all. With common noise the first line holds for
distinct states too: as a mixture over the noise, T_2 is the same contraction as before.

Sweeps repeat this (`PairOperator.apply`). `jmdp_lib.fast` solves for its fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Self

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP, JOINT, Coupling, checked_coupling, require_tables
from jmdp_lib.policies import Policy, policy_matrix


@dataclass(frozen=True, eq=False)
class Backup:
    """Result of one application of T_2 to m (S,) and v (S,).

    mean: (S, A). deviations: (T, A), y - mu. variance: (S, A), Var Z(s, a). continuation_variance:
    (S, A), the part of it that arises after the first step.
    """

    mean: Floats
    deviations: Floats
    variance: Floats
    continuation_variance: Floats


@dataclass(frozen=True)
class PairState:
    """All first and second moments: mean (S, A), and covariance C = Sigma - mu mu' (S, A, S, A)."""

    mean: Floats
    covariance: Floats

    @property
    def blocks(self) -> Floats:
        """(S, A, A), C(s, a; s, b)."""
        return np.einsum("sasb->sab", self.covariance)

    @cached_property
    def second(self) -> Floats:
        """(S, A, S, A), Sigma."""
        return self.covariance + np.multiply.outer(self.mean, self.mean)


@dataclass(frozen=True)
class PairOperator:
    """T_2 for one JMDP, one policy (S, A) and one coupling, acting on PairState.

    A reward offset would cost the means digits, so solvers use `JMDP.without_offset`.
    """

    jm: JMDP
    policy: Floats
    coupling: Coupling = JOINT

    @classmethod
    def of(cls, solver: str, jm: JMDP, policy: Policy, coupling: str | Coupling = JOINT) -> Self:
        """The operator from the arguments of a solver, which are checked here."""
        require_tables(solver, jm)
        matrix = policy_matrix(jm, policy)
        return cls(jm, matrix, checked_coupling(jm, coupling))

    @cached_property
    def average(self) -> sparse.csr_array:
        """(S, S*A) sparse: averages a function of state-actions over the policy."""
        return policy_average(self.policy)

    @cached_property
    def kernel(self) -> sparse.csr_array:
        """(S, S) sparse: P, the chain of states under the policy."""
        kernel = (self.average @ self.jm.transitions).tocsr()
        kernel.sort_indices()
        return kernel

    @cached_property
    def branch_kernels(self) -> list[sparse.csr_array]:
        """Matrices M_k (S*A, S): two branches at distinct states move by c -> sum_k M_k c M_k'.

        Independent branches have one, the transitions. With common noise there is one for each
        noise k, with sqrt(p_k) at the state that k leads to.
        """
        jm = self.jm
        if not self.coupling.across_states:
            return [jm.transitions]
        kernels = []
        for k, prob in enumerate(jm.noise_probs):
            successors = jm.next_states[k :: jm.noise_probs.size].ravel()  # (S*A,)
            weights = np.full(successors.size, np.sqrt(prob))
            rows = np.arange(successors.size + 1)
            kernels.append(sparse.csr_array((weights, successors, rows), jm.transitions.shape))
        return kernels

    def noise_source(self, deviations: Floats) -> Floats:
        """F (S*A, K): F F' is the source of T_2 between distinct states; K = 0 without a source.

        deviations: (T, A), y - mu.
        """
        if not self.coupling.across_states:
            return np.zeros((self.policy.size, 0))
        probs = self.jm.noise_probs
        by_noise = deviations.reshape(-1, probs.size, self.jm.num_actions).swapaxes(1, 2)
        return (by_noise * np.sqrt(probs)).reshape(-1, probs.size)

    @cached_property
    def weight(self) -> float:
        """lambda_2 of eq. (20), the width of an interval that contains all returns."""
        return 2.0 * self.jm.reward_bound / (1.0 - self.jm.gamma)

    @cached_property
    def longest_sum(self) -> int:
        """Number of terms that one coordinate of T_2 M sums, at most."""
        widest = int(np.diff(self.kernel.indptr).max())
        # Tables of a state; P once in r (P m)' and in (P m) r', twice in P W P'; noises.
        return int(np.diff(self.jm.starts).max()) + 4 * widest + len(self.branch_kernels)

    def backup(self, value: Floats, value_variance: Floats) -> Backup:
        """T_2 on m and v; their fixed points give every mean and every variance."""
        jm = self.jm
        averaging = jm.averaging
        targets = jm.rewards + jm.gamma * value[jm.next_states]
        mean = averaging @ targets
        targets -= mean[jm.table_states]
        continuation = jm.gamma**2 * (averaging @ value_variance[jm.next_states])
        return Backup(mean, targets, averaging @ targets**2 + continuation, continuation)

    def full_covariance(self, backup: Backup, c: Floats) -> Floats:
        """(S, A, S, A), C(s,a; t,b) by one backup from c (S, S)."""
        source = self.noise_source(backup.deviations)
        moved = reduce(np.add, ((move @ (move @ c).T).T for move in self.branch_kernels))
        full = self.jm.gamma**2 * moved + (source @ source.T if source.size else 0.0)
        full = full.reshape(self.policy.shape * 2)
        if self.coupling.at_one_state:  # all actions of a state share their table
            x = self.jm.next_states
            joint = backup.deviations[:, :, None] * backup.deviations[:, None, :]
            joint += self.jm.gamma**2 * c[x[:, :, None], x[:, None, :]]
            same = np.einsum("sasb->sab", full)
            same[...] = (self.jm.averaging @ joint.reshape(len(x), -1)).reshape(same.shape)
        np.einsum("sasa->sa", full)[...] = backup.variance
        return full

    def zero(self) -> PairState:
        """The collection M_0 = 0."""
        return PairState(np.zeros(self.policy.shape), np.zeros(self.policy.shape * 2))

    def centre(self, mean: Floats, second: Floats) -> PairState:
        """The collection M_0 = (mean (S, A), second (S, A, S, A))."""
        return PairState(mean, second - np.multiply.outer(mean, mean))

    def apply(self, state: PairState) -> PairState:
        """T_2."""
        side = self.policy.size
        average = self.average
        pair = (average @ (average @ state.covariance.reshape(side, side)).T).T
        return self.collapsed_apply(state.mean, np.einsum("sasa->sa", state.covariance), pair)

    def collapsed_apply(self, mean: Floats, variance: Floats, c: Floats) -> PairState:
        """T_2 from the moments that it depends on: mean (S, A), Var Z(s, a) (S, A) and c (S, S)."""
        value = (self.policy * mean).sum(1)  # m
        spread = variance + (mean - value[:, None]) ** 2  # E (Z(s, a) - m(s))^2
        backup = self.backup(value, (self.policy * spread).sum(1))
        return PairState(backup.mean, self.full_covariance(backup, c))

    def distance(self, new: PairState, old: PairState) -> float:
        """Distance ||new - old||_lambda over all coordinates."""
        mean = np.abs(new.mean - old.mean).max()
        second = np.abs(new.second - old.second).max()
        return float(max(mean, second / self.weight))


def policy_average(policy: Floats) -> sparse.csr_array:
    """(S, S*A) sparse: row s has the probabilities of its actions, policy (S, A)."""
    states, actions = np.nonzero(policy)
    entries = policy[states, actions], (states, states * policy.shape[1] + actions)
    return sparse.csr_array(entries, shape=(len(policy), policy.size))
