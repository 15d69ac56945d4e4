"""T_2 on whole collections, for sweeps, residuals and projections; the pair chain P_2 beneath it.

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

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, gmres

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Policy
from jmdp_lib.machine import progress
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import AskedGaps, CollapsedT2, policy_average

RESTART = 60  # steps after which GMRES starts again: so many vectors it holds


@dataclass(frozen=True)
class PairState:
    """All first and second moments.

    excess: (S, A), what means are above `offset`, a part of all of them that would cost them their
    digits. covariance: C = Sigma - mu mu', (S, A, S, A).
    """

    excess: Floats
    covariance: Floats
    offset: float = 0.0

    @property
    def mean(self) -> Floats:
        """(S, A)."""
        return self.excess + self.offset

    @property
    def blocks(self) -> Floats:
        """(S, A, A), C(s, a; s, b)."""
        return np.einsum("sasb->sab", self.covariance)

    @cached_property
    def second(self) -> Floats:
        """(S, A, S, A), Sigma."""
        return self.covariance + np.multiply.outer(self.mean, self.mean)


class PairOperator(CollapsedT2):
    """T_2 for one JMDP, one policy (S, A) and one coupling, acting on PairState.

    What all rewards have in common, `JMDP.reward_offset`, acts on the offset of a state alone.
    """

    @property
    def sweep_bytes(self) -> float:
        """Bytes that sweeps take, roughly: three states, each as C and Sigma, their differences,
        and arrays over the tables and all pairs of their actions."""
        tables = self.jm.rewards.size * (150.0 + 24.0 * self.jm.num_actions)
        return 9 * 8.0 * self.policy.size**2 + tables

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
        value = (self.policy * state.excess).sum(1)  # m
        own = np.einsum("sasa->sa", state.covariance) + (state.excess - value[:, None]) ** 2
        system = self.without_offset
        backup = system.backup(value, np.einsum("sa,sa->s", self.policy, own))
        covariance = system.full_covariance(backup, pair)
        offset = self.jm.reward_offset + self.jm.gamma * state.offset
        return PairState(backup.mean, covariance, offset)

    def distance(self, new: PairState, old: PairState) -> float:
        """||new - old||_lambda over all coordinates."""
        mean = np.abs(new.mean - old.mean).max()
        second = np.abs(new.second - old.second).max()
        return float(max(mean, second / self.weight))


def pair_step(jm: JMDP, policy: Policy, law: ArrayLike) -> Floats:
    """The law (S, A, S, A) of two branches, after one step of the pair chain $P_2$.

    Branches at one state share a table; at one state-action they are one branch, and stay so.

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
    return _acting(policy, *_arrived(jm, policy, weights))


def _arrived(jm: JMDP, policy: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Where branches of a law (S, A, S, A) go: two (S, S), and those that are one (S,)."""
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
    at, a, b = np.nonzero(same)
    step = CollapsedT2(jm, policy).step(AskedGaps(at, a, b))
    shared = same[at, a, b][step.row] * step.weights
    np.add.at(pairs, (step.first, step.second), shared)
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
    system = CollapsedT2(jm, policy)
    one = policy_average(policy**2) @ jm.transitions  # two branches that draw one action
    size = jm.num_states

    def split(u: Floats) -> tuple[Floats, Floats]:
        return u[: size**2].reshape(size, size), u[size**2 :]

    def moved(u: Floats) -> Floats:
        pairs, singles = split(u)
        here = np.diag(pairs)
        apart = system.kernel.T @ (system.kernel.T @ (pairs - np.diag(here))).T
        shared = (system.diagonal.T @ here).reshape(size, size)
        apart = apart.T + 0.5 * (shared + shared.T)
        return np.append(apart, system.kernel.T @ singles + one.T @ here)

    start = np.append(*_arrived(jm, policy, law))
    operator = LinearOperator((start.size,) * 2, matvec=lambda u: u - eta * moved(u), dtype=float)
    rounding = max(1e-13, 1e-14 / (1.0 - eta))
    with progress(None, "pair occupancy", "step") as bar:
        found, failed = gmres(
            operator,
            start,
            rtol=rounding,
            restart=RESTART,
            callback=lambda _: bar.update(),
            callback_type="pr_norm",
        )
    if failed:
        raise ValueError(f"the pair occupancy at discount {eta} could not be solved for")
    last = start + eta * moved(np.maximum(found, 0.0))
    total = law + eta * _acting(policy, *split(last))  # at least `law`, whatever was rounded
    return total / total.sum()


def stationary_pairs(jm: JMDP, policy: Floats) -> Floats:
    """The paper's weights: the stationary law of the pair chain, (S, A, S, A).

    It is on the diagonal, with the stationary law of one branch: two branches of an ergodic chain
    meet, draw the same action sooner or later, and are one from then on (decision 10). Refused
    where the chain over state-actions is not ergodic with full support (Assumption B.2).
    """
    why = '(Assumption B.2); use weights="occupancy"'
    sizes, vectors = np.linalg.eig(CollapsedT2(jm, policy).kernel.toarray().T)
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
