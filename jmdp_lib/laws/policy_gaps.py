"""The gap of two rules in one world: its mean and variance from every state, by linear systems.

The world is that of the random maps: at every time step there are the tables of the coupling, and
for every state-action (s, a) a uniform number U. A branch that leaves (s, a) and arrives at x takes
the action at which the cumulative probabilities of its own rule at x pass U. One more number draws
both first actions. So two branches, of the rules pi and rho, are

    together at s, if they come from one state-action, or start: their actions have the joint law
        w_s(a, b), the length of the overlap of a's interval under pi and of b's under rho;
    apart at s and t, if they come from two: their actions are independent, also if s = t.

Branches that take one action at one state are at one state-action: they get one reward, go to one
state, and are together there. All others are apart after the step. Branches that are together and
whose rules agree on all that can still come are one for good, since they never draw two actions.
For equal rules the gap is zero; each branch by itself has the law of `jipe2`.

With values v and v~ of the two rules, q(s, a) = E y_a with y_a = R + gamma v(S'), and q~ likewise,
the mean g = v - v~ of the gap solves

    g = sum_a (pi - rho)(., a) q~(., a) + gamma P_pi g.

The variance u(s, t) of the gap of branches that are apart, and tau(s) of those together, is that of
what one step shows plus that of what is left. With A ~ pi(s) and B ~ rho(t),

    u(s, t) = Var(y_A - y~_B) + gamma^2 (P_pi u P_rho')(s, t)                          for s != t,
    u(s, s) = sum_ab pi(a) rho(b) h(s, a, b),
    tau(s)  = sum_ab w_s(a, b) h(s, a, b),
    h(s, a, b) = E[(y_a - y~_b - g(s))^2] + gamma^2 E u(S'_a, S'_b)                    for a != b,
    h(s, a, a) = E[(gamma g(S'_a) - g(s))^2] + gamma^2 E tau(S'_a).

The coupling decides whether y_a and y~_b share a table. With common noise, distinct states share
it, and P_pi u P_rho' is the mean over the noise, as in `operators.pairs`. Variances are solved
for, not second moments, so that nothing large cancels; where the rules agree on all that can still
come, g and tau are exactly zero.

Errors. The gap is g plus steps gamma^t M_t, M = y_A - y~_B - g, that are uncorrelated. Values that
are wrong by e and e~ move g by e + e~ at most, and every M by (1 + gamma) (e + e~), so that they
move the standard deviation by (1 + gamma) (e + e~) / sqrt(1 - gamma^2). What the system of u and
tau leaves as a residual moves the variance itself, by that over 1 - gamma^2.
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
    PairArrays,
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

_PRECISE = 1e-12  # residuals, relative to what each system adds in one step
_TOL = 1e-8  # as that of `jipe2` by default


@dataclass(frozen=True, eq=False)
class PolicyGap(ReadOnly):
    """Mean and variance of the return of one policy minus that of another, from every state.

    It can be unpacked into these two.

    Attributes:
        mean: (S,), its mean.
        variance: (S,), its variance.
        error_bound: how far off any mean and any variance may be, rounding included.
        converged: whether both are at most what `jipe2` allows by default: $10^{-8}$ in the norm
            of eq. (20), relative to the largest absolute reward.
    """

    mean: Floats
    variance: Floats
    error_bound: tuple[float, float]
    converged: bool

    def __iter__(self) -> Iterator[Floats]:
        yield self.mean
        yield self.variance


def policy_gaps(
    jm: JMDP, policy: Policy, other: Policy, *, coupling: CouplingName = DEFAULT_COUPLING
) -> PolicyGap:
    """Mean (S,) and variance (S,) of the return of one rule minus that of another in one world.

    Both rules start in the same state, for every state, and draw their actions with the same
    numbers: equal rules have gap 0, and rules that differ in a few states differ only after these.

    Takes about 70 bytes for every pair of states.

    Args:
        jm: the model.
        policy: the first rule, in any form that `jipe2` accepts.
        other: the rule whose return is subtracted, in any of these forms.
        coupling: which branches share a draw, as in `jipe2`: by default "joint", those at one
            state; "independent", those that are one; "common", all of them.

    Returns:
        The mean (S,) and the variance (S,) of the gap, for every state to start in, and how far
        off they may be.

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
    target = _PRECISE * float(max(pairs.arrays.source.max(), pairs.arrays.shared_source.max()))
    x = solve(pairs, target, jm.gamma**2, "policy_gaps", 1.0).x
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
    """g (S,) and v~ (S,)."""
    gamma = first.jm.gamma
    small = _PRECISE * first.jm.reward_bound
    base = Chain(second.kernel, gamma, second.mean_rewards).solution(small)
    after = second.backup(base, np.zeros_like(base))
    source = np.einsum("sa,sa->s", first.policy - second.policy, after.mean)
    small = _PRECISE * float(np.abs(source).max())
    return Chain(first.kernel, gamma, source).solution(small), base


@dataclass(frozen=True)
class _GapPairs(PairMap):
    """The system of u and tau, x (S + 1, S): row s < S is u(s, .), and the last row is tau.

    first, second: of the two rules. mean: (S,) g. base: (S,) v~.
    """

    first: CollapsedT2
    second: CollapsedT2
    mean: Floats
    base: Floats

    @cached_property
    def backups(self) -> tuple[CollapsedBackup, CollapsedBackup]:
        """One step of the values of both rules."""
        zero = np.zeros_like(self.base)
        return self.first.backup(self.base + self.mean, zero), self.second.backup(self.base, zero)

    def error_bound(self, x: Floats, largest_reward: float) -> tuple[float, float]:
        """How far off means and variances may be, if x is the solution found.

        largest_reward: of all rewards, before anything was subtracted from them.
        """
        gamma = self.first.jm.gamma
        steps = 1.0 / (1.0 - gamma**2)
        values = self.base + self.mean, self.base
        widest = int(np.diff(self.arrays.shared.indptr).max())
        rounding = rounding_of(max(self.first.longest_sum, self.second.longest_sum, widest))
        lost = rounding * (2.0 * largest_reward + sum(largest_of(value) for value in values))
        pairs = zip(self.backups, values, strict=True)
        residual = sum(largest_of(backup.value - value) for backup, value in pairs)
        mean_error = (residual + lost) / (1.0 - gamma)
        spread = sum(float(backup.value_variance.max()) for backup in self.backups)
        solved = steps * (self.residual(x) + rounding * (largest_of(x) + spread))
        moved = np.sqrt(steps) * ((1.0 + gamma) * mean_error + lost)
        deviation = np.sqrt(largest_of(x) + solved)
        return mean_error, float(solved + moved * (2.0 * deviation + moved))

    @cached_property
    def arrays(self) -> PairArrays:
        """Of branches at one state, the S states where they are apart come first."""
        first = self.first
        second = self.second
        left, right = self.backups
        apart = first.policy[:, :, None] * second.policy[:, None, :]
        leads, added = zip(*map(self._from_one_state, (apart, self._together)), strict=True)
        few = first.few_successors and second.few_successors
        kernels = (scaled_kernels(system, few) for system in (first, second))
        source = left.value_variance[:, None] + right.value_variance
        if left.noise_source.size:
            source -= 2.0 * left.noise_source @ right.noise_source.T
        return PairArrays(
            num_states=self.mean.size,
            kernels=list(zip(*kernels, strict=True)),
            source=source,  # Var(y_A - y~_B)
            shared=first.jm.gamma**2 * sparse.vstack(leads, format="csr"),
            shared_source=np.concatenate(added),
        )

    @property
    def _together(self) -> Floats:
        """(S, A, A) w_s(a, b): how often one number draws a from one rule and b from the other.

        It draws an action up to a, and one up to b, where it is below both cumulative sums.
        """
        first, second = (np.cumsum(system.policy, axis=1) for system in (self.first, self.second))
        both = np.minimum(first[:, :, None], second[:, None])
        return np.diff(np.diff(both, axis=1, prepend=0.0), axis=2, prepend=0.0)

    def _from_one_state(self, drawn: Floats) -> tuple[sparse.csr_array, Floats]:
        """Where branches at one state go, (S, (S + 1) * S) sparse, and what they add, (S,).

        drawn: (S, A, A) the probabilities of their actions.
        """
        jm = self.first.jm
        size = jm.num_states
        alike = np.einsum("saa->sa", drawn)
        gaps = Gaps(*np.nonzero(drawn * ~np.eye(jm.num_actions, dtype=bool)))
        weights = drawn[gaps.states, gaps.first, gaps.second]
        step = self.first.step(gaps)
        at = gaps.states[step.row], step.first * size + step.second
        apart = sparse.csr_array((weights[step.row] * step.weights, at), (size, size * size))
        leads = sparse.hstack([apart, policy_average(alike) @ jm.transitions], format="csr")
        moved = jm.gamma * self.mean[jm.next_states] - self.mean[jm.table_states][:, None]
        added = np.einsum("sa,sa->s", alike, jm.averaging @ moved**2)
        return leads, added + np.bincount(gaps.states, weights * self._spread(gaps, step), size)

    def _spread(self, gaps: Gaps, step: PairStep) -> Floats:
        """(Q,) E[(y_a - y~_b - g(s))^2] of two actions."""
        left, right = self.backups
        s, a, b = gaps.states, gaps.first, gaps.second
        shift = left.mean[s, a] - right.mean[s, b] - self.mean[s]
        if step.tables is None:
            return np.asarray(shift**2 + left.variance[s, a] + right.variance[s, b])
        table = step.tables[0]
        between = left.deviations[table, a[step.row]] - right.deviations[table, b[step.row]]
        return np.asarray(shift**2 + np.bincount(step.row, step.weights * between**2, s.size))
