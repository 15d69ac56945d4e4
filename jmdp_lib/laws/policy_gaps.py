"""The gap of two policies in one world: its mean and variance from every state.

The world is that of the random maps: at every time step it has the tables of the coupling, and a
uniform number U for every state-action (s, a). A branch that leaves (s, a) and arrives at x takes
the first action whose cumulative probability, under its own policy at x, exceeds U. One more number
draws both first actions. So two branches, of the policies pi and rho, are

    coupled at s, if they come from one state-action, or start: their actions have the joint
        distribution w_s(a, b), the overlap of a's interval under pi and b's under rho;
    separate at s and t, if they come from two state-actions: their actions are independent, even
        if s = t.

Branches that take one action at one state get one reward, go to one state, and are coupled there.
All other branches are separate after the step. Coupled branches whose policies agree on every state
that they can still reach have coalesced, since they always draw the same action. For equal policies
the gap is zero; each single branch has the distribution of `jipe2`.

With values v and v~ of the two policies, y_a = R + gamma v(S'), q(s, a) = E y_a, and q~ likewise,
the mean g = v - v~ of the gap solves

    g = sum_a (pi - rho)(., a) q~(., a) + gamma P_pi g.

The variance, u(s, t) for separate branches and tau(s) for coupled ones, is that of one step plus
that of all later steps. With A ~ pi(s) and B ~ rho(t),

    u(s, t) = Var(y_A - y~_B) + gamma^2 (P_pi u P_rho')(s, t)                          for s != t,
    u(s, s) = sum_ab pi(a) rho(b) h(s, a, b),
    tau(s)  = sum_ab w_s(a, b) h(s, a, b),
    h(s, a, b) = E[(y_a - y~_b - g(s))^2] + gamma^2 E u(S'_a, S'_b)                    for a != b,
    h(s, a, a) = E[(gamma g(S'_a) - g(s))^2] + gamma^2 E tau(S'_a).

The coupling decides whether y_a and y~_b share a table. With common noise, distinct states share
the noise, and P_pi u P_rho' is the mean over the noise, as in `operators.pairs`. The unknowns are
variances and not second moments, so that no large numbers cancel. At states from which the policies
agree on every state that can still be reached, g and tau are exactly zero.

Errors. The gap is g plus uncorrelated steps gamma^t M_t, M = y_A - y~_B - g. Errors e and e~ of the
values move g by at most e + e~, every M by (1 + gamma) (e + e~), and so the standard deviation by
(1 + gamma) (e + e~) / sqrt(1 - gamma^2). A residual of the system of u and tau moves the variance
itself, by the residual over 1 - gamma^2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats
from jmdp_lib.fast import (
    Chain,
    CollapsedBackup,
    CollapsedT2,
    Gaps,
    PairMap,
    PairStep,
    largest_of,
    scaled_kernels,
    solve,
)
from jmdp_lib.machine import ReadOnly, require, rounding_of
from jmdp_lib.model import DEFAULT_COUPLING, JMDP, CouplingName
from jmdp_lib.moments import norm_weight
from jmdp_lib.operators.pairs import policy_average
from jmdp_lib.policies import Policy
from jmdp_lib.solvers.fixed_point import warn

_PRECISE = 1e-12  # tolerance of residuals, relative to the source of each system
_TOL = 1e-8  # the default of `jipe2`


@dataclass(frozen=True, eq=False)
class PolicyGap(ReadOnly):
    """Mean and variance of the return of one policy minus that of another, from every state.

    It unpacks into mean and variance, which are also its items 0 and 1.

    Attributes:
        mean: (S,), mean of the difference of returns.
        variance: (S,), variance of this difference.
        error_bound: a bound on the errors of all means and one for all variances, which include
            rounding.
        converged: whether both bounds are within the default tolerance of `jipe2`: $10^{-8}$ in the
            norm of eq. (20), relative to the largest absolute reward.
    """

    mean: Floats
    variance: Floats
    error_bound: tuple[float, float]
    converged: bool

    def __iter__(self) -> Iterator[Floats]:
        yield from (self.mean, self.variance)

    def __getitem__(self, index: int) -> Floats:
        return [*self][index]


def policy_gaps(
    jm: JMDP, policy: Policy, other: Policy, *, coupling: CouplingName = DEFAULT_COUPLING
) -> PolicyGap:
    """Mean (S,) and variance (S,) of the return of one policy minus that of another in one world.

    For every initial state, both policies start there and draw their actions with the same random
    numbers. So equal policies have gap 0, and policies that differ at a few states differ only
    after a visit of these.

    The computation takes about 70 bytes for every pair of states.

    Args:
        jm: the model.
        policy: the first policy, in any form that `jipe2` accepts.
        other: the policy whose return is subtracted, in any of these forms.
        coupling: which branches share a draw, as in `jipe2`: those at one state ("joint", the
            default), only those that have coalesced ("independent"), or all of them ("common").

    Returns:
        The mean (S,) and the variance (S,) of the gap for every initial state, with bounds on
        their errors.

    Raises:
        ValueError: an argument makes no sense.
        MemoryError: the pairs of states do not fit.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.inventory(capacity=8, max_order=8, gamma=0.9)
        >>> stock = np.arange(9)
        >>> high, low = np.maximum(6 - stock, 0), np.maximum(4 - stock, 0)
        >>> mean, variance = jl.laws.policy_gaps(jm, high, low)
        >>> print(f"from an empty shop: {mean[0]:.2f}, standard deviation {variance[0] ** 0.5:.2f}")
        from an empty shop: -0.69, standard deviation 7.26
        >>> _, shared = jl.laws.policy_gaps(jm, high, low, coupling="common")
        >>> print(f"with the same customers: {shared[0] ** 0.5:.2f}")
        with the same customers: 3.25
        >>> jl.laws.policy_gaps(jm, high, low).converged
        True
    """
    first = CollapsedT2.of("policy_gaps", jm, policy, coupling)
    try:
        second = CollapsedT2.of("policy_gaps", jm, other, coupling)
    except ValueError as error:
        raise ValueError(f"other: {error}") from None
    states = jm.num_states
    needed = 80.0 * (states + 1) * states + first.table_bytes + second.table_bytes
    require(needed, f"policy_gaps on the {states**2:,} pairs of {states:,} states")
    pairs = _GapPairs(first, second, *_solve_means(first, second))
    affine = pairs.affine
    target = _PRECISE * float(max(affine.source.max(), affine.shared_source.max()))
    x = solve(affine, target, jm.gamma**2, "policy_gaps", 1.0).x
    mean_error, variance_error = pairs.error_bound(x, jm.reward_bound)
    allowed = _TOL * jm.reward_bound
    of_variance = allowed * norm_weight(2, jm.gamma, jm.reward_bound)
    converged = mean_error <= allowed and variance_error <= of_variance
    if not converged:
        warn(
            f"policy_gaps: means may be off by {mean_error:.3g}, variances by {variance_error:.3g}"
        )
    variance = np.maximum(x[states], 0.0)
    return PolicyGap(pairs.mean, variance, (mean_error, variance_error), converged)


def _solve_means(first: CollapsedT2, second: CollapsedT2) -> tuple[Floats, Floats]:
    """Solve for g (S,) and v~ (S,)."""
    gamma = first.jm.gamma
    small = _PRECISE * first.jm.reward_bound
    base = Chain(second.kernel, gamma, second.mean_rewards).solution(small)
    after = second.backup(base, np.zeros_like(base))
    source = np.einsum("sa,sa->s", first.policy - second.policy, after.mean)
    small = _PRECISE * float(np.abs(source).max())
    return Chain(first.kernel, gamma, source).solution(small), base


@dataclass(frozen=True)
class _GapPairs:
    """System of u and tau, x (S + 1, S): row s < S is u(s, .), and the last row is tau.

    first, second: T_2 of the two policies. mean: (S,) g. base: (S,) v~.
    """

    first: CollapsedT2
    second: CollapsedT2
    mean: Floats
    base: Floats

    @cached_property
    def backups(self) -> tuple[CollapsedBackup, CollapsedBackup]:
        """Backups of the values of both policies, one step each."""
        zero = np.zeros_like(self.base)
        return self.first.backup(self.base + self.mean, zero), self.second.backup(self.base, zero)

    def error_bound(self, x: Floats, largest_reward: float) -> tuple[float, float]:
        """Bounds on the errors of means and variances, for a solution x.

        largest_reward: largest absolute reward, before the reward offset was subtracted.
        """
        gamma = self.first.jm.gamma
        steps = 1.0 / (1.0 - gamma**2)
        values = self.base + self.mean, self.base
        widest = int(np.diff(self.affine.shared.indptr).max())
        rounding = rounding_of(max(self.first.longest_sum, self.second.longest_sum, widest))
        lost = rounding * (2.0 * largest_reward + sum(largest_of(value) for value in values))
        pairs = zip(self.backups, values, strict=True)
        residual = sum(largest_of(backup.value - value) for backup, value in pairs)
        mean_error = (residual + lost) / (1.0 - gamma)
        spread = sum(float(backup.value_variance.max()) for backup in self.backups)
        solved = steps * (self.affine.residual(x) + rounding * (largest_of(x) + spread))
        moved = np.sqrt(steps) * ((1.0 + gamma) * mean_error + lost)
        deviation = np.sqrt(largest_of(x) + solved)
        return mean_error, float(solved + moved * (2.0 * deviation + moved))

    @cached_property
    def affine(self) -> PairMap:
        """Map of x; at one state, separate branches come before coupled ones."""
        first = self.first
        second = self.second
        left, right = self.backups
        separate = first.policy[:, :, None] * second.policy[:, None, :]
        leads, added = zip(*map(self._from_one_state, (separate, self._coupled)), strict=True)
        few = first.few_successors and second.few_successors
        kernels = (scaled_kernels(system, few) for system in (first, second))
        source = left.value_variance[:, None] + right.value_variance
        if left.noise_source.size:
            source -= 2.0 * left.noise_source @ right.noise_source.T
        return PairMap(
            num_states=self.mean.size,
            kernels=list(zip(*kernels, strict=True)),
            source=source,  # Var(y_A - y~_B)
            shared=first.jm.gamma**2 * sparse.vstack(leads, format="csr"),
            shared_source=np.concatenate(added),
        )

    @property
    def _coupled(self) -> Floats:
        """Probability w_s(a, b), (S, A, A), that one number draws a and b.

        A number below both cumulative sums draws a first action up to a and a second one up to b.
        """
        first, second = (np.cumsum(system.policy, axis=1) for system in (self.first, self.second))
        both = np.minimum(first[:, :, None], second[:, None])
        return np.diff(np.diff(both, axis=1, prepend=0.0), axis=2, prepend=0.0)

    def _from_one_state(self, drawn: Floats) -> tuple[sparse.csr_array, Floats]:
        """Sparse moves (S, (S + 1) * S) and source (S,) of two branches at one state.

        drawn: (S, A, A) the probabilities of their actions.
        """
        jm = self.first.jm
        size = jm.num_states
        same = np.einsum("saa->sa", drawn)
        gaps = Gaps(*np.nonzero(drawn * ~np.eye(jm.num_actions, dtype=bool)))
        weights = drawn[gaps.states, gaps.first, gaps.second]
        step = self.first.step(gaps)
        at = gaps.states[step.row], step.first * size + step.second
        separate = sparse.csr_array((weights[step.row] * step.weights, at), (size, size * size))
        leads = sparse.hstack([separate, policy_average(same) @ jm.transitions], format="csr")
        moved = jm.gamma * self.mean[jm.next_states] - self.mean[jm.table_states][:, None]
        added = np.einsum("sa,sa->s", same, jm.averaging @ moved**2)
        return leads, added + np.bincount(gaps.states, weights * self._spread(gaps, step), size)

    def _spread(self, gaps: Gaps, step: PairStep) -> Floats:
        """Expectations E[(y_a - y~_b - g(s))^2], (Q,), for two actions."""
        left, right = self.backups
        s, a, b = gaps.states, gaps.first, gaps.second
        shift = left.mean[s, a] - right.mean[s, b] - self.mean[s]
        if step.tables is None:
            return np.asarray(shift**2 + left.variance[s, a] + right.variance[s, b])
        table = step.tables[0]
        between = left.deviations[table, a[step.row]] - right.deviations[table, b[step.row]]
        return np.asarray(shift**2 + np.bincount(step.row, step.weights * between**2, s.size))
