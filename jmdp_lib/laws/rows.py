"""Differences of returns that a gap depends on: each is a row, a function of other rows.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. If two branches at
one state draw the same action, they coalesce and D = 0. Otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. A gap Z(s, a) - Z(s, b) is one more step of this kind.

Branches at different states draw independently, unless noise is common; branches at one state do so
only if all draws are independent. A step of two independent draws has as many outcomes as the
product of their numbers. If there are many, the step is split into two half-steps, in each of which
one branch moves:

    D(s, t) = R + H(S', t),        H(j, t) = -R' + gamma D(j, T').

At one state H also depends on the second action, which must differ from the first.

So every row is a mixture of finitely many outcomes, each of the form
d + factor * (another row or its negative).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import Chain, CollapsedT2, PairSet, entries_of, solve
from jmdp_lib.machine import require

_DIGITS = 12  # decimals to which rewards are rounded, in units of the largest one
_ROUNDS = 64  # least number of steps of value iteration that bound |D|
_OUTCOME = 400.0  # approximate bytes of one outcome while outcomes are made and grouped
_WORTH = 4.5  # half-steps pay off if this factor reduces the outcomes; at 4 they do not
_ATOMS = 128  # largest number of read points of half-steps; among more rewards few are equal
_EPS = float(np.finfo(float).eps)


class Outcomes(NamedTuple):
    """Outcomes of one step, sorted by row: arrays (M,).

    row: the row of the outcome. d: the reward difference. after: the next row. flipped: whether
    the negative of that row is next. weights: probabilities.
    """

    row: Ints
    d: Floats
    after: Ints
    flipped: Ints
    weights: Floats

    @property
    def merged(self) -> Outcomes:
        """Outcomes sorted by row, d, after and flipped, with equal ones merged."""
        order = np.lexsort((self.flipped, self.after, self.d, self.row))
        values: Any = [x[order] for x in self]
        row, d, after, flipped, weights = values
        new = np.any([np.diff(key) != 0 for key in (row, d, after, flipped)], axis=0)
        first = np.flatnonzero(np.append(True, new))
        total = np.add.reduceat(weights, first)
        return Outcomes(row[first], d[first], after[first], flipped[first], total)


@dataclass(frozen=True)
class Rows:
    """N rows: pairs of states, the requested gaps, zero, and half-steps.

    All numbers are in `unit`, a power of ten such that the largest reward is 1 to 10 units.

    factors: (N,) gamma, or 1 for a half-step that leads to a second one at the same time step.
    gaps: (Q,) rows of the gaps. rounding: error bound of a sum over the outcomes of a row, relative
    to the largest numbers in the sum.
    """

    unit: float
    gamma: float
    outcomes: Outcomes
    factors: Floats
    gaps: Ints
    rounding: float

    @classmethod
    def of(cls, system: CollapsedT2, pairs: PairSet, gaps: Ints) -> Rows:
        """Rows that gaps (s, a, b), (Q, 3), lead to within a set of pairs."""
        steps = _Steps(system, pairs, gaps)
        outcomes, halved = steps.outcomes()
        gamma = system.jm.gamma
        # If gamma is 0, every row leads to zero, and any factor below 1 is right.
        factors = np.full(int(outcomes.row.max()) + 1, gamma or 0.5)
        factors[halved] = 1.0
        return cls(
            unit=steps.unit,
            gamma=gamma,
            outcomes=outcomes.merged,
            factors=factors,
            gaps=pairs.size + np.arange(len(gaps)),
            # Draws with the same outcome are summed first, then the outcomes, each times a number.
            # So each draw has two additions and a product, which lose at most half an _EPS each.
            # The other 16 allow for operations that occur once.
            rounding=_EPS * (16.0 + 1.5 * float(np.bincount(outcomes.row).max())),
        )

    @property
    def halved(self) -> bool:
        """True if there are half-steps."""
        return bool(self.factors.max() == 1.0)

    def halfway(self, reads: Floats) -> Floats:
        """Read points (M,) of half-steps, for the read points (P,) of gaps.

        Equal rewards of both branches make an atom of D, which stays whole if H is read there.
        """
        first = self.outcomes.d[self.factors[self.outcomes.row] == 1.0]
        points = np.unique(np.subtract.outer(reads, np.unique(first)))
        return points if points.size <= _ATOMS else points[:0]

    @property
    def steps(self) -> float:
        """Factor by which errors of steps add up; with half-steps, every second factor is one."""
        return (2.0 if self.halved else 1.0) / (1.0 - self.gamma)

    @cached_property
    def _chain(self) -> Chain:
        """Linear system for E D (N,) of all rows."""
        row, d, after, flipped, weights = self.outcomes
        moved = weights * self.factors[row] * (1.0 - 2.0 * flipped)
        kernel = sparse.csr_array((moved, (row, after)), 2 * self.factors.shape)
        return Chain(kernel, 1.0, np.bincount(row, weights * d).astype(float))

    @cached_property
    def means(self) -> Floats:
        """Means E D, (N,), for the rounded rewards, solved to rounding."""
        return np.asarray(solve(self._chain, 0.0, self.gamma).x)

    @cached_property
    def mean_error(self) -> float:
        """A bound on the errors of the means."""
        return self.error_of_means(self.means)

    def error_of_means(self, means: Floats) -> float:
        """A bound on the errors of any means (N,): their residual, summed over all later steps.

        The residual itself has the error `rounding`, relative to the largest summed numbers.
        """
        lost = self.rounding * (np.abs(self.outcomes.d).max() + np.abs(means).max())
        return float(self.steps * (self._chain.residual(means) + lost))

    @cached_property
    def largest(self) -> Floats:
        """Bounds (N,) of |D|, zero where D is always zero.

        They are sums over some steps, plus a bound on all later ones.
        """
        row, d, after, _, _ = self.outcomes
        starts = np.searchsorted(row, np.arange(self.factors.size))
        bound = np.zeros(self.factors.size)
        for rounds in count():
            before = bound
            bound = np.maximum.reduceat(np.abs(d) + self.factors[row] * bound[after], starts)
            added = (bound - before).max()
            settled = ((bound > 0.0) == (before > 0.0)).all()  # no other row becomes nonzero
            if added == 0.0 or (settled and rounds >= _ROUNDS):
                break
        later = added * (self.steps - 1.0)
        return np.where(bound > 0.0, (bound + later) * (1.0 + 1e-9), 0.0)

    def rounded(self, x: Floats) -> Floats:
        """Numbers in `unit`, rounded like rewards."""
        return _rounded(x / self.unit)

    @property
    def top(self) -> float:
        """A bound of |D| for all rows."""
        return float(self.largest.max())

    @property
    def digits(self) -> float:
        """A bound on the change of E D by the rounding of rewards.

        Each of two rewards moves by at most half of 10^-12 units to the nearest multiple. Its
        quotient, its rounding and the difference lose two _EPS at most.
        """
        each = 0.5 * 10.0**-_DIGITS + 2.0 * _EPS * np.abs(self.outcomes.d).max()
        return float(2.0 * each / (1.0 - self.gamma))


def _rounded(x: Floats) -> Floats:
    """Numbers rounded to the decimals of rewards."""
    return np.round(x, _DIGITS) + 0.0


class _Branches(NamedTuple):
    """Pairs of branches that take a step: arrays (M,).

    row: the row that takes the step. first, second: the branches. Branch s * A + a starts with the
    state-action (s, a), and branch S * A + s with an action that the policy draws at s. chance: the
    probability of the pair.
    """

    row: Ints
    first: Ints
    second: Ints
    chance: Floats


@dataclass(frozen=True)
class _Steps:
    """One step of all rows. gaps: (Q, 3)."""

    system: CollapsedT2
    pairs: PairSet
    gaps: Ints

    @cached_property
    def unit(self) -> float:
        """The unit of all numbers, a power of ten."""
        return float(10.0 ** np.floor(np.log10(self.system.jm.reward_bound)))

    @cached_property
    def rewards(self) -> Floats:
        """Rewards (T, A) in units."""
        return _rounded(self.system.jm.rewards / self.unit)

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """The two states of every pair, (P,) each."""
        return self.pairs.members

    @property
    def zero(self) -> int:
        """Index of the zero row, after all pairs and gaps; half-steps follow."""
        return self.pairs.size + len(self.gaps)

    @cached_property
    def starts(self) -> sparse.csr_array:
        """Probabilities (S * A + S, S * A), sparse, of the state-actions where branches start."""
        given = sparse.eye_array(self.system.policy.size)
        return sparse.vstack([given, self.system.average], format="csr")

    @cached_property
    def draws(self) -> sparse.csr_array:
        """Probabilities (S * A + S, T * A), sparse, of the tables and actions of branches."""
        jm = self.system.jm
        starts = self.starts
        s, a = np.divmod(starts.indices, jm.num_actions)
        entry, table = entries_of(jm.starts, s)
        chance = starts.data[entry] * jm.probs[table]
        column = table * jm.num_actions + a[entry]
        return sparse.csr_array((chance, column, np.searchsorted(entry, starts.indptr)))

    @property
    def of_gaps(self) -> _Branches:
        """The first step of every gap."""
        s, a, b = self.gaps.T
        start = s * self.system.jm.num_actions
        return _Branches(self.pairs.size + np.arange(s.size), start + a, start + b, np.ones(s.size))

    @property
    def at_one_state(self) -> tuple[Outcomes, _Branches]:
        """Pairs at one state: their outcomes zero, and the branches that draw distinct actions.

        Branches that draw the same action coalesce, so zero is next. Zero itself is such a pair.
        """
        first, second = self.members
        pairs = np.flatnonzero(first == second)
        policy = self.system.policy[first[pairs]]
        num_actions = policy.shape[1]
        both = policy[:, :, None] * policy[:, None] * ~np.eye(num_actions, dtype=bool)
        pair, a, b = np.nonzero(both)
        start = first[pairs[pair]] * num_actions
        branches = _Branches(pairs[pair], start + a, start + b, both[pair, a, b])
        chance = np.append((policy**2).sum(1), 1.0)
        none = np.zeros(chance.size, np.int64)
        row = np.append(pairs, self.zero)
        return Outcomes(row, none.astype(float), none + self.zero, none, chance), branches

    @property
    def at_two_states(self) -> _Branches:
        """Pairs at two states."""
        pairs = np.flatnonzero(np.not_equal(*self.members))
        first, second = (self.system.policy.size + x[pairs] for x in self.members)
        return _Branches(pairs, first, second, np.ones(pairs.size))

    def outcomes(self) -> tuple[Outcomes, Ints]:
        """Outcomes of all rows, and the rows that lead to half-steps, some more than once."""
        coupling = self.system.coupling
        coalesced, distinct = self.at_one_state
        branches = [
            (self.of_gaps, coupling.at_one_state),
            (distinct, coupling.at_one_state),
            (self.at_two_states, coupling.across_states),
        ]
        parts = [coalesced, *(self.whole(*each) for each in branches if each[1])]
        independent = [each for each in branches if not each[1]]
        if not independent:
            return _stacked(parts), coalesced.row[:0]
        first, second = self.halves(_stacked([x for x, _ in independent]))
        draws = np.diff(self.draws.indptr).astype(float)
        whole = sum(draws[x.first] @ draws[x.second] for x, _ in independent)
        if whole > _WORTH * (first.row.size + second.row.size):
            return _stacked([*parts, first, second]), first.row
        parts += [self.whole(*each) for each in independent]
        return _stacked(parts), coalesced.row[:0]

    def drawn(self, matrix: sparse.csr_array, branches: Ints) -> tuple[Ints, Ints, Ints, Floats]:
        """Entries of `starts` or `draws` for branches (M,).

        Returns the index of the branch, the state or the table, the action and the probability.
        """
        num_outcomes = int(np.diff(matrix.indptr)[branches].sum())
        what = f"the law of gaps that reach {self.pairs.size:,} pairs"
        require(_OUTCOME * num_outcomes, what, "request fewer gaps")
        entries: Any = matrix[branches].tocoo()
        x, a = np.divmod(entries.col, self.system.jm.num_actions)
        return entries.row, x, a, entries.data

    def whole(self, branches: _Branches, shared: bool) -> Outcomes:
        """Whole steps. shared: whether both branches draw the same table."""
        jm = self.system.jm
        entry, here, a, chance = self.drawn(self.draws, branches.first)
        other = self.starts if shared else self.draws
        draw, there, b, then = self.drawn(other, branches.second[entry])
        entry, here, a = entry[draw], here[draw], a[draw]
        if shared:
            there = here + jm.starts[there] - jm.starts[jm.table_states[here]]
        difference = self.rewards[here, a] - self.rewards[there, b]
        ends = jm.next_states[here, a], jm.next_states[there, b]
        chance = branches.chance[entry] * chance[draw] * then
        return self.between(branches.row[entry], difference, ends, chance)

    def halves(self, branches: _Branches) -> tuple[Outcomes, Outcomes]:
        """Half-steps of the first branch, and those of the second branch, row by row."""
        jm = self.system.jm
        shape = jm.num_states, self.starts.shape[0]
        entry, table, a, chance = self.drawn(self.draws, branches.first)
        after = jm.next_states[table, a], branches.second[entry]
        keys, index = np.unique(np.ravel_multi_index(after, shape), return_inverse=True)
        chance *= branches.chance[entry]
        row = self.zero + 1
        paid = self.rewards[table, a]
        first = Outcomes(branches.row[entry], paid, row + index, 0 * entry, chance)
        j, second = np.unravel_index(keys, shape)  # of H(j, second)
        entry, table, b, chance = self.drawn(self.draws, second)
        ends = j[entry], jm.next_states[table, b]
        return first, self.between(row + entry, 0.0 - self.rewards[table, b], ends, chance)

    def between(self, row: Ints, d: Floats, ends: tuple[Ints, Ints], chance: Floats) -> Outcomes:
        """Outcomes of steps that lead to pairs of states, `ends`, or to zero if gamma is 0."""
        x, y = self.pairs.indexing.index_of[np.stack(ends)]
        after = self.pairs.places(*ends)
        if self.system.jm.gamma == 0.0:
            after[:] = self.zero
        return Outcomes(row, _rounded(d), after, (x < y).astype(int), chance)


def _stacked(parts: list[Any]) -> Any:
    """Concatenate named tuples, array by array."""
    return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))
