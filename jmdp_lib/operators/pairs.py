"""T_2 made fast: collapsed over the policy and centred.

**Collapse.** T_2 sees M only through m(s) = E mu(s, A), W(s, t) = E Sigma(s, A, t, B) with A and B
independent, and D(s) = E Sigma(s, A, s, A).

**Centre.** In C = Sigma - mu mu' the same operator reads, for y = R + gamma m(S') and its mean mu,

    C(s,a; s,b)  <-  E[(y_a - mu_a)(y_b - mu_b)] + gamma^2 E[c(S'_a, S'_b)]     same state, a != b
    C(s,a; s,a)  <-  E[(y_a - mu_a)^2]           + gamma^2 E[v(S'_a)]           one branch
    C(s,a; t,b)  <-                                gamma^2 E[c(S'_a) (x) S'_b]   s != t, independent

with c = W - m m' and v = D - m^2 = Var Z(s, A). Nothing large is subtracted from anything large,
and off the same-state blocks there is no source at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.moments import norm_weight

# Up to this many state-actions the cross-state covariances are kept for every pair of actions, and
# residuals are the paper's norm over all of Sigma; beyond it they are kept collapsed.
FULL_LIMIT = 512


@dataclass(frozen=True)
class PairState:
    """A second-order moment collection in centred coordinates.

    mean: (S, A). blocks: (S, A, A), C(s, a; s, b). cross: C between distinct states, either every
    action, (S*A, S*A), or averaged over the policy, (S, S); its same-state entries are not used.
    """

    mean: Floats
    blocks: Floats
    cross: Floats


@dataclass(frozen=True)
class PairOperator:
    """T_2 for one JMDP and one policy (S, A), acting on PairState.

    independent: distinct actions of a state draw from tables of their own.
    keep_actions: whether `cross` keeps the actions; by default where they are few.
    """

    jm: JMDP
    policy: Floats
    independent: bool = False
    keep_actions: bool | None = None

    @cached_property
    def full(self) -> bool:
        """Whether `cross` keeps the actions."""
        return self.policy.size <= FULL_LIMIT if self.keep_actions is None else self.keep_actions

    @cached_property
    def averaging(self) -> sparse.csr_array:
        """(S, S*A) sparse: the policy as an average over actions."""
        num_states, num_actions = self.policy.shape
        starts = np.arange(num_states + 1) * num_actions
        columns = np.arange(self.policy.size)
        shape = (num_states, self.policy.size)
        return sparse.csr_array((self.policy.ravel(), columns, starts), shape=shape)

    @cached_property
    def step(self) -> Floats | sparse.csr_array:
        """One marginal step that `cross` moves by: (S*A, S), or (S, S) when collapsed."""
        kernel = self.jm.transitions if self.full else self.averaging @ self.jm.transitions
        return kernel.toarray() if kernel.nnz > 0.1 * np.prod(kernel.shape) else kernel.tocsr()

    @cached_property
    def same_state(self) -> Floats:
        """(S*A, S*A) or (S, S) mask of the entries of `cross` that belong to the blocks."""
        size = self.jm.num_actions if self.full else 1
        return np.kron(np.eye(self.jm.num_states), np.ones((size, size))).astype(bool)

    @cached_property
    def longest_sum(self) -> int:
        """How many terms one coordinate of T_2 M sums at most."""
        tables = int(np.diff(self.jm.starts).max())
        kernel = sparse.csr_array(self.step)
        return tables + int(np.diff(kernel.indptr).max())

    def zero(self) -> PairState:
        """M_0 = 0."""
        num_states, num_actions = self.policy.shape
        side = self.policy.size if self.full else num_states
        blocks = np.zeros((num_states, num_actions, num_actions))
        return PairState(np.zeros(self.policy.shape), blocks, np.zeros((side, side)))

    def centre(self, mean: Floats, second: Floats) -> PairState:
        """Any M_0 given as (S, A) and (S, A, S, A)."""
        covariance = second - np.multiply.outer(mean, mean)
        blocks = np.einsum("satb,st->sab", covariance, np.eye(self.jm.num_states))
        if self.full:
            cross = covariance.reshape(mean.size, mean.size)
        else:
            cross = np.einsum("sa,satb,tb->st", self.policy, covariance, self.policy)
        return PairState(mean, blocks, np.where(self.same_state, 0.0, cross))

    def collapse(self, state: PairState) -> tuple[Floats, Floats, Floats]:
        """m (S,), c = W - m m' (S, S) and v = D - m^2 (S,)."""
        mean = (self.policy * state.mean).sum(1)
        spread = np.einsum("sa,sa->s", self.policy, (state.mean - mean[:, None]) ** 2)
        single = np.einsum("sa,saa->s", self.policy, state.blocks) + spread
        pair = state.cross.copy()
        if self.full:
            pair = (self.averaging @ (self.averaging @ pair).T).T
        same = np.einsum("sa,sab,sb->s", self.policy, state.blocks, self.policy)
        np.fill_diagonal(pair, same)
        return mean, pair, single

    def apply(self, state: PairState) -> PairState:
        """T_2."""
        jm, gamma = self.jm, self.jm.gamma
        value, pair, single = self.collapse(state)
        targets = jm.rewards + gamma * value[jm.next_states]  # (T, A)
        mean = jm.averaging @ targets
        deviation = targets - mean[jm.table_states]
        moved = self.step @ (self.step @ pair).T
        cross = np.where(self.same_state, 0.0, gamma**2 * moved.T)

        if self.independent:
            blocks = gamma**2 * self._independent_blocks(pair)
        else:
            x = jm.next_states
            joint = deviation[:, :, None] * deviation[:, None, :]
            joint += gamma**2 * pair[x[:, :, None], x[:, None, :]]
            blocks = (jm.averaging @ joint.reshape(len(x), -1)).reshape(state.blocks.shape)
        variance = jm.averaging @ (deviation**2 + gamma**2 * single[jm.next_states])
        np.einsum("saa->sa", blocks)[...] = variance
        return PairState(mean, blocks, cross)

    def _independent_blocks(self, pair: Floats) -> Floats:
        """E[c(S'_a, S'_b)] (S, A, A) when the actions of a state draw from tables of their own."""
        jm, shape = self.jm, self.policy.shape
        first = (jm.transitions @ pair).reshape(*shape, jm.num_states)  # E c(S'_a, t)
        here, actions = jm.table_states[:, None, None], np.arange(shape[1])[:, None]
        both = first[here, actions, jm.next_states[:, None, :]]  # (T, A, A)
        return (jm.averaging @ both.reshape(len(both), -1)).reshape(*shape, shape[1])

    def distance(self, new: PairState, old: PairState) -> float:
        """||new - old||_lambda over the coordinates that are kept (all of them when `full`)."""
        mean = np.abs(new.mean - old.mean).max()
        blocks = np.abs(self._raw_blocks(new) - self._raw_blocks(old)).max()
        cross = np.abs(np.where(self.same_state, 0.0, self._raw_cross(new) - self._raw_cross(old)))
        weight = norm_weight(2, self.jm.gamma, self.jm.reward_bound)
        return float(max(mean, max(blocks, cross.max()) / weight))

    def second(self, state: PairState) -> Floats:
        """Sigma (S, A, S, A); between states one step on where only averages are kept."""
        mean, law = state.mean, self.jm.transitions
        cross = state.cross
        if not self.full:
            moved = law @ (law @ self.collapse(state)[1]).T
            cross = self.jm.gamma**2 * moved.T
        full = cross.reshape(mean.shape + mean.shape).copy()
        states = np.arange(self.jm.num_states)
        full[states, :, states] = state.blocks
        full += np.multiply.outer(mean, mean)
        return full

    def _raw_blocks(self, state: PairState) -> Floats:
        return state.blocks + state.mean[:, :, None] * state.mean[:, None, :]

    def _raw_cross(self, state: PairState) -> Floats:
        mean = state.mean.ravel() if self.full else (self.policy * state.mean).sum(1)
        return state.cross + np.multiply.outer(mean, mean)


@dataclass(frozen=True)
class PairSource:
    """Coordinates of Sigma that a PairState does not hold, one local expectation away."""

    operator: PairOperator
    state: PairState

    @cached_property
    def _pair(self) -> Floats:
        return self.operator.collapse(self.state)[1]

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """mu(s, a), or Sigma(s, a, t, b)."""
        mean = self.state.mean
        if len(coordinates) == 1:
            return float(mean[coordinates[0]])
        x, y = coordinates
        return self._covariance(x, y) + float(mean[x] * mean[y])

    def _covariance(self, x: tuple[int, int], y: tuple[int, int]) -> float:
        (s, a), (t, b), jm = x, y, self.operator.jm
        if s == t:
            return float(self.state.blocks[s, a, b])
        i, j = s * jm.num_actions + a, t * jm.num_actions + b
        if self.operator.full:
            return float(self.state.cross[i, j])
        left, right = jm.transitions[[i]].tocoo(), jm.transitions[[j]].tocoo()
        corner = self._pair[np.ix_(left.coords[1], right.coords[1])]
        return float(jm.gamma**2 * left.data @ corner @ right.data)

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        return self.operator.second(self.state)
