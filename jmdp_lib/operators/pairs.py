"""T_2 on whole collections, collapsed and centred, and the pair chain P_2 beneath it.

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

**The pair chain** P_2 of Appendix B moves two branches, coupled while they share a state. Its
diagonal is absorbing: two branches at the same state-action are one branch and stay so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, gmres

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.machine import progress, rounding_of
from jmdp_lib.model import JMDP, JOINT, Coupling, checked_coupling, require_tables

RESTART = 60  # steps after which GMRES starts again: so many vectors it holds


@dataclass(frozen=True, eq=False)
class Backup:
    """What one application of T_2 makes of m (S,) and v (S,).

    mean: (S, A). deviations: (T, A), y - mu. variance: (S, A), Var Z(s, a). later: (S, A), the part
    of it that comes after one step.
    """

    mean: Floats
    deviations: Floats
    variance: Floats
    later: Floats


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

    A reward offset costs means their digits: solvers use `without_offset`.
    """

    jm: JMDP
    policy: Floats
    coupling: Coupling = JOINT

    @classmethod
    def of(cls, solver: str, jm: JMDP, policy: Policy, coupling: str | Coupling = JOINT) -> Self:
        """The operator for what a user hands to a solver, checked."""
        require_tables(solver, jm)
        matrix = checks.policy_matrix(jm, policy)
        return cls(jm, matrix, checked_coupling(jm, coupling))

    @cached_property
    def without_offset(self) -> Self:
        """The operator of `JMDP.without_offset`: its moments are those of smaller returns."""
        return replace(self, jm=self.jm.without_offset)

    @cached_property
    def average(self) -> sparse.csr_array:
        """(S, S*A) sparse: times a function of state-actions, its average over the policy."""
        return policy_average(self.policy)

    @cached_property
    def kernel(self) -> sparse.csr_array:
        """(S, S) sparse: P, the chain of states under the policy."""
        kernel = (self.average @ self.jm.transitions).tocsr()
        kernel.sort_indices()
        return kernel

    @cached_property
    def moves(self) -> list[sparse.csr_array]:
        """Matrices M_k (S*A, S): two branches at distinct states move by c -> sum_k M_k c M_k'.

        That is the one matrix of transitions where the branches draw independently. With common
        noise there is one for each noise k, sqrt(p_k) at the state that k leads to.
        """
        if not self.coupling.across_states:
            return [self.jm.transitions]
        by_noise = zip(self.jm.noise_probs, self.jm.given_noise, strict=True)
        return [np.sqrt(prob) * certain.transitions for prob, certain in by_noise]

    def noise_source(self, deviations: Floats) -> Floats:
        """F (S*A, K): F F' is the source of T_2 between distinct states; K = 0 where it has none.

        deviations: (T, A), y - mu.
        """
        if not self.coupling.across_states:
            return np.zeros((self.policy.size, 0))
        probs = self.jm.noise_probs
        by_noise = deviations.reshape(-1, probs.size, self.jm.num_actions).swapaxes(1, 2)
        return (by_noise * np.sqrt(probs)).reshape(-1, probs.size)

    @cached_property
    def weight(self) -> float:
        """lambda_2 of eq. (20), the width of an interval that holds all returns."""
        return 2.0 * self.jm.reward_bound / (1.0 - self.jm.gamma)

    @cached_property
    def longest_sum(self) -> int:
        """Number of terms that one coordinate of T_2 M sums, at most."""
        widest = int(np.diff(self.kernel.indptr).max())
        # Tables of a state; P once in r (P m)' and in (P m) r', twice in P W P'; noises.
        return int(np.diff(self.jm.starts).max()) + 4 * widest + len(self.moves)

    def backup(self, value: Floats, value_variance: Floats) -> Backup:
        """T_2 on m and v; their fixed points give every mean and every variance."""
        jm = self.jm
        averaging = jm.averaging
        targets = jm.rewards + jm.gamma * value[jm.next_states]
        mean = averaging @ targets
        targets -= mean[jm.table_states]
        later = jm.gamma**2 * (averaging @ value_variance[jm.next_states])
        return Backup(mean, targets, averaging @ targets**2 + later, later)

    def full_covariance(self, backup: Backup, c: Floats) -> Floats:
        """(S, A, S, A), C(s,a; t,b) one step before c (S, S)."""
        source = self.noise_source(backup.deviations)
        moved = reduce(np.add, ((move @ (move @ c).T).T for move in self.moves))
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
        """M_0 = 0."""
        return PairState(np.zeros(self.policy.shape), np.zeros(self.policy.shape * 2))

    def centre(self, mean: Floats, second: Floats) -> PairState:
        """Any M_0 given as (S, A) and (S, A, S, A)."""
        return PairState(mean, second - np.multiply.outer(mean, mean))

    def apply(self, state: PairState) -> PairState:
        """T_2."""
        side = self.policy.size
        average = self.average
        pair = (average @ (average @ state.covariance.reshape(side, side)).T).T  # c
        value = (self.policy * state.mean).sum(1)  # m
        variance = np.einsum("sasa->sa", state.covariance)  # of Z(s, a)
        spread = variance + (state.mean - value[:, None]) ** 2  # E (Z(s, a) - m(s))^2
        backup = self.backup(value, (self.policy * spread).sum(1))
        return PairState(backup.mean, self.full_covariance(backup, pair))

    def rounding(self, state: PairState) -> float:
        """Rounding error of one application of T_2, in ||.||_lambda."""
        return rounding_of(self.longest_sum) * self.distance(state, self.zero())

    def distance(self, new: PairState, old: PairState) -> float:
        """||new - old||_lambda over all coordinates."""
        mean = np.abs(new.mean - old.mean).max()
        second = np.abs(new.second - old.second).max()
        return float(max(mean, second / self.weight))


def policy_average(policy: Floats) -> sparse.csr_array:
    """(S, S*A) sparse: row s has the probabilities of its actions, policy (S, A)."""
    states, actions = np.nonzero(policy)
    entries = policy[states, actions], (states, states * policy.shape[1] + actions)
    return sparse.csr_array(entries, shape=(len(policy), policy.size))


def pair_step(jm: JMDP, policy: Policy, law: ArrayLike) -> Floats:
    """One step of the pair chain $P_2$, from the law of two branches to their next one.

    Branches at one state share a table; at one state-action they are one branch, and stay so.

    Args:
        jm: the model.
        policy: probabilities (S, A), actions (S,), or a function of the state, as in `jipe2`.
        law: (S, A, S, A), weights of pairs of state-actions, not negative.

    Returns:
        (S, A, S, A), the weights one step later.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.coupled_reward_chain(3)
        >>> law = np.zeros((3, 2, 3, 2))
        >>> law[0, 0, 0, 1] = 1.0  # two branches at the first state, with different actions
        >>> law = jl.pair_step(jm, jl.uniform_policy(jm), law)
        >>> float(law[1, :, 1, :].sum()), float(law[1, 0, 1, 1] + law[1, 1, 1, 0])
        (1.0, 0.5)
    """
    policy = checks.policy_matrix(jm, policy)
    axes = ("state", "action", "other state", "other action")
    weights = checks.floats("law", law, *axes, shape=policy.shape * 2)
    checks.refuse("law", weights, weights < 0.0, "is negative", axes)
    return _acting(policy, *_arrived(jm, weights))


def _arrived(jm: JMDP, weights: Floats) -> tuple[Floats, Floats]:
    """Where branches of a law (S, A, S, A) go: two (S, S), and those that are one (S,)."""
    num_states = jm.num_states
    states = np.arange(num_states)
    same = weights[states, :, states]  # (S, A, A)
    alone = np.einsum("saa->sa", same).copy()  # one branch
    np.einsum("saa->sa", same)[...] = 0.0

    distinct = weights.copy()
    distinct[states, :, states] = 0.0
    side = num_states * jm.num_actions
    moved = jm.transitions.T @ (jm.transitions.T @ distinct.reshape(side, side)).T
    pairs = np.asarray(moved.T)  # (S, S), law of (S', T') of two branches
    after = jm.next_states
    shared = jm.probs[:, None, None] * same[jm.table_states]
    np.add.at(pairs, (after[:, :, None], after[:, None, :]), shared)
    return pairs, jm.transitions.T @ alone.ravel()


def _acting(policy: Floats, pairs: Floats, singles: Floats) -> Floats:
    """The law (S, A, S, A) once branches at these states have drawn their actions."""
    states, actions = map(np.arange, policy.shape)
    after = np.einsum("sa,st,tb->satb", policy, pairs, policy)
    after[states[:, None], actions, states[:, None], actions] += policy * singles[:, None]
    return after


def start_law(jm: JMDP) -> Floats:
    """xi_0 (S, A, S, A): half uniform over all pairs, half over the pairs of one state."""
    num_states = jm.num_states
    num_actions = jm.num_actions
    law = np.full((num_states, num_actions) * 2, 0.5 / (num_states * num_actions) ** 2)
    states = np.arange(num_states)
    law[states, :, states] += 0.5 / (num_states * num_actions**2)
    return law


def occupancy(jm: JMDP, policy: Floats) -> Floats:
    """The discounted pair occupancy (S, A, S, A): d = (1 - eta) xi_0 + eta d P_2, eta = gamma.

    What is solved for is u, where branches arrive: there are A^2 times fewer pairs of states.
    """
    eta = jm.gamma
    law = (1.0 - eta) * start_law(jm)
    size = jm.num_states

    def acted(u: Floats) -> Floats:
        return _acting(policy, u[: size**2].reshape(size, size), u[size**2 :])

    def moved(u: Floats) -> Floats:
        return np.append(*_arrived(jm, acted(u)))

    start = np.append(*_arrived(jm, law))
    operator = LinearOperator((start.size,) * 2, matvec=lambda u: u - eta * moved(u), dtype=float)
    rounding = max(1e-13, 1e-14 / (1.0 - eta))
    with progress(None, "pair occupancy", "step") as bar:
        arrivals, failed = gmres(
            operator,
            start,
            rtol=rounding,
            restart=RESTART,
            callback=lambda _: bar.update(),
            callback_type="pr_norm",
        )
    if failed:
        raise ValueError(f"the pair occupancy at discount {eta} could not be solved for")
    last = start + eta * moved(np.maximum(arrivals, 0.0))
    total = law + eta * acted(last)  # at least `law`, whatever was rounded
    return total / total.sum()


def stationary_pairs(jm: JMDP, policy: Floats) -> Floats:
    """The paper's weights: the stationary law of the pair chain, (S, A, S, A).

    It is on the diagonal, with the stationary law of one branch: two branches of an ergodic chain
    meet, draw the same action sooner or later, and are one from then on (decision 10). Refused
    where the chain over state-actions is not ergodic with full support (Assumption B.2).
    """
    why = '(Assumption B.2); use weights="occupancy"'
    sizes, vectors = np.linalg.eig(PairOperator(jm, policy).kernel.toarray().T)
    lasting = np.abs(sizes) > 1.0 - 1e-9
    if lasting.sum() > 1:
        raise ValueError(f"the chain is not ergodic: it has {lasting.sum()} cycles or ends {why}")
    alone = np.abs(vectors[:, lasting])
    weights = policy * (alone / alone.sum())
    idle = f"leaves the state-action without stationary weight {why}"
    checks.refuse("policy", policy, weights < 1e-15, idle, ["state", "action"])
    law = np.zeros(policy.shape * 2)
    np.einsum("sasa->sa", law)[...] = weights
    return law
