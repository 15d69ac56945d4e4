"""Differences of returns that a gap leads to, one row each, as functions of other rows.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. Two branches at one
state that draw the same action coalesce, so that D = 0; otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. A gap Z(s, a) - Z(s, b) is one more step of this kind.

Branches at different states draw independently, unless noise is common; branches at one state do if
all draws are independent. A step of two independent draws has the outcomes of one times those of
the other. Where that is many, the step is taken in two halves, in which one branch moves at a time:

    D(s, t) = R + H(S', t),        H(j, t) = -R' + gamma D(j, T').

At one state H also depends on the second action, which must differ from the first.

So every row is distributed as d + factor * (another row, or its negative), for finitely many
outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import Chain, CollapsedT2, PairSet, ragged, solve
from jmdp_lib.machine import require

_DIGITS = 12  # decimals to which rewards are rounded, in units of the largest one
_ROUNDS = 64  # steps of value iteration that bound |D|, at least
_OUTCOME = 400.0  # bytes of one outcome while it is made and grouped, roughly
_WORTH = 4.5  # half-steps pay off if they have so many times fewer outcomes: at 4 they do not
_ATOMS = 128  # read points of half-steps, at most; among more rewards few are equal
_EPS = float(np.finfo(float).eps)


class Outcomes(NamedTuple):
    """Outcomes of one step, entry by entry, in order of their rows: arrays (M,).

    row: the row of the outcome. d: the reward difference. after: the next row. flipped: whether
    its negative is next. weights: probabilities.
    """

    row: Ints
    d: Floats
    after: Ints
    flipped: Ints
    weights: Floats

    @property
    def merged(self) -> Outcomes:
        """These outcomes, sorted by row, d, after and flipped; equal ones are added up."""
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

    factors: (N,) gamma, or 1 for a half-step that leads to another at the same time. gaps: (Q,)
    rows of the gaps. rounding: error bound of a sum over the outcomes of a row, relative to the
    largest numbers in it.
    """

    unit: float
    gamma: float
    outcomes: Outcomes
    factors: Floats
    gaps: Ints
    rounding: float

    @classmethod
    def of(cls, system: CollapsedT2, pairs: PairSet, gaps: Ints) -> Rows:
        """The rows that gaps (s, a, b), (Q, 3), lead to within a set of pairs."""
        steps = _Steps(system, pairs, gaps)
        outcomes, halved = steps.outcomes()
        gamma = system.jm.gamma
        # At gamma 0 every row leads to zero, and any factor below 1 will do.
        factors = np.full(int(outcomes.row.max()) + 1, gamma or 0.5)
        factors[halved] = 1.0
        return cls(
            unit=steps.unit,
            gamma=gamma,
            outcomes=outcomes.merged,
            factors=factors,
            gaps=pairs.size + np.arange(len(gaps)),
            # Draws with the same outcome are added up first, and then the outcomes, each times a
            # number: each draw has two additions and a product, which lose half an _EPS at most.
            # The other 16 are for operations that are done once.
            rounding=_EPS * (16.0 + 1.5 * float(np.bincount(outcomes.row).max())),
        )

    @property
    def halved(self) -> bool:
        """True if there are half-steps."""
        return bool(self.factors.max() == 1.0)

    def halfway(self, reads: Floats) -> Floats:
        """Read points (M,) of half-steps, for the read points (P,) of gaps.

        Equal rewards of both branches make an atom of D. It stays whole if H is read at points.
        """
        first = self.outcomes.d[self.factors[self.outcomes.row] == 1.0]
        points = np.unique(np.subtract.outer(reads, np.unique(first)))
        return points if points.size <= _ATOMS else points[:0]

    @property
    def steps(self) -> float:
        """Factor by which errors of steps add up; of half-steps, every second factor is one."""
        return (2.0 if self.halved else 1.0) / (1.0 - self.gamma)

    @cached_property
    def _chain(self) -> Chain:
        """E D (N,) of all rows, as a linear system."""
        row, d, after, flipped, weights = self.outcomes
        moved = weights * self.factors[row] * (1.0 - 2.0 * flipped)
        kernel = sparse.csr_array((moved, (row, after)), 2 * self.factors.shape)
        return Chain(kernel, 1.0, np.bincount(row, weights * d).astype(float))

    @cached_property
    def means(self) -> Floats:
        """E D, (N,), for the rounded rewards, solved to rounding."""
        return np.asarray(solve(self._chain, 0.0, self.gamma).x)

    @cached_property
    def mean_error(self) -> float:
        """A bound on the errors of the means."""
        return self.error_of_means(self.means)

    def error_of_means(self, means: Floats) -> float:
        """A bound on the errors of any means (N,): their residual adds up over all later steps.

        Computing it loses `rounding`, relative to the largest numbers that are summed.
        """
        lost = self.rounding * (np.abs(self.outcomes.d).max() + np.abs(means).max())
        return float(self.steps * (self._chain.residual(means) + lost))

    @cached_property
    def largest(self) -> Floats:
        """Bounds (N,) of |D|, zero where D is always zero: a number of steps, and a bound on all
        later ones."""
        row, d, after, _, _ = self.outcomes
        starts = np.searchsorted(row, np.arange(self.factors.size))
        bound = np.zeros(self.factors.size)
        for rounds in count():
            before = bound
            bound = np.maximum.reduceat(np.abs(d) + self.factors[row] * bound[after], starts)
            added = (bound - before).max()
            settled = ((bound > 0.0) == (before > 0.0)).all()  # no more rows turn out to move
            if added == 0.0 or (settled and rounds >= _ROUNDS):
                break
        later = added * (self.steps - 1.0)
        return np.where(bound > 0.0, (bound + later) * (1.0 + 1e-9), 0.0)

    def rounded(self, x: Floats) -> Floats:
        """Numbers in `unit`, rounded as rewards are."""
        return _rounded(x / self.unit)

    @property
    def top(self) -> float:
        """A bound of |D| for all rows."""
        return float(self.largest.max())

    @property
    def digits(self) -> float:
        """A bound on the change of E D by the rounding of rewards.

        Each of two rewards moves by at most half of 10^-12 units to the nearest multiple, and its
        quotient and rounding lose half an _EPS each, or two with the difference.
        """
        each = 0.5 * 10.0**-_DIGITS + 2.0 * _EPS * np.abs(self.outcomes.d).max()
        return float(2.0 * each / (1.0 - self.gamma))


def _rounded(x: Floats) -> Floats:
    """Numbers rounded to the decimals of rewards."""
    return np.round(x, _DIGITS) + 0.0


class _Branches(NamedTuple):
    """Two branches that take a step, entry by entry: arrays (M,).

    row: the row whose step it is. first, second: the branches. Branch s * A + a starts with the
    state-action (s, a), and branch S * A + s with an action that the policy draws at s. chance: the
    probability of the entry.
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
        """(T, A) in units."""
        return _rounded(self.system.jm.rewards / self.unit)

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """The two states of every pair, (P,) each."""
        return self.pairs.members

    @property
    def zero(self) -> int:
        """The row of zero, after all pairs and gaps; half-steps follow."""
        return self.pairs.size + len(self.gaps)

    @cached_property
    def starts(self) -> sparse.csr_array:
        """(S * A + S, S * A) sparse: probabilities of the state-actions where branches start."""
        given = sparse.eye_array(self.system.policy.size)
        return sparse.vstack([given, self.system.average], format="csr")

    @property
    def of_gaps(self) -> _Branches:
        """The first step of every gap."""
        s, a, b = self.gaps.T
        start = s * self.system.jm.num_actions
        return _Branches(self.pairs.size + np.arange(s.size), start + a, start + b, np.ones(s.size))

    @property
    def at_one_state(self) -> tuple[Outcomes, _Branches]:
        """Pairs at one state: the outcome zero, and branches that draw distinct actions.

        Branches that draw one action coalesce, so that zero is next. Zero itself is such a pair.
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
        """All other pairs."""
        pairs = np.flatnonzero(np.not_equal(*self.members))
        first, second = (self.system.policy.size + x[pairs] for x in self.members)
        return _Branches(pairs, first, second, np.ones(pairs.size))

    def outcomes(self) -> tuple[Outcomes, Ints]:
        """Outcomes of all rows; and those rows, once or more, that lead to half-steps."""
        coupling = self.system.coupling
        coalesced, distinct = self.at_one_state
        branches = [
            (self.of_gaps, coupling.at_one_state),
            (distinct, coupling.at_one_state),
            (self.at_two_states, coupling.across_states),
        ]
        parts = [coalesced, *(self.shared(x) for x, shared in branches if shared)]
        independent = [x for x, shared in branches if not shared]
        if not independent:
            return _stacked(parts), np.zeros(0, np.int64)
        first, second = self.halves(_stacked(independent))
        followers = np.bincount(second.row)[first.after]
        if followers.sum() > _WORTH * (first.row.size + second.row.size):
            return _stacked([*parts, first, second]), first.row
        return _stacked([*parts, self.joined(first, second, followers)]), first.row[:0]

    def fit(self, num_outcomes: int) -> None:
        """Refuse so many outcomes if they do not fit into memory."""
        what = f"the law of gaps that reach {self.pairs.size:,} pairs"
        require(_OUTCOME * num_outcomes, what, "ask for fewer gaps")

    def actions(self, branches: Ints) -> tuple[Ints, Ints, Ints, Floats]:
        """All starts of branches (M,): whose they are, states, actions, probabilities."""
        _, entry, within = ragged(np.diff(self.starts.indptr)[branches])
        at = self.starts.indptr[branches][entry] + within
        s, a = np.divmod(self.starts.indices[at], self.system.jm.num_actions)
        return entry, s, a, self.starts.data[at]

    def draws(self, branches: Ints) -> tuple[Ints, Ints, Ints, Floats]:
        """All draws of branches (M,): whose they are, tables, actions, probabilities."""
        jm = self.system.jm
        entry, s, a, chance = self.actions(branches)
        counts = np.diff(jm.starts)[s]
        self.fit(int(counts.sum()))
        _, at, within = ragged(counts)
        table = jm.starts[s[at]] + within
        return entry[at], table, a[at], chance[at] * jm.probs[table]

    def shared(self, branches: _Branches) -> Outcomes:
        """Steps of branches that share a table."""
        jm = self.system.jm
        entry, here, a, chance = self.draws(branches.first)
        draw, t, b, drawn = self.actions(branches.second[entry])
        self.fit(draw.size)
        entry, here, a = entry[draw], here[draw], a[draw]
        there = here + jm.starts[t] - jm.starts[jm.table_states[here]]
        difference = self.rewards[here, a] - self.rewards[there, b]
        ends = jm.next_states[here, a], jm.next_states[there, b]
        chance = branches.chance[entry] * chance[draw] * drawn
        return self.between(branches.row[entry], difference, ends, chance)

    def halves(self, branches: _Branches) -> tuple[Outcomes, Outcomes]:
        """Steps in which one branch moves, and those in which the other one does, row by row."""
        jm = self.system.jm
        shape = jm.num_states, self.starts.shape[0]
        entry, table, a, chance = self.draws(branches.first)
        after = jm.next_states[table, a], branches.second[entry]
        keys, index = np.unique(np.ravel_multi_index(after, shape), return_inverse=True)
        chance *= branches.chance[entry]
        row = self.zero + 1
        paid = self.rewards[table, a]
        first = Outcomes(branches.row[entry], paid, row + index, 0 * entry, chance)
        j, second = np.unravel_index(keys, shape)  # of H(j, second)
        entry, table, b, chance = self.draws(second)
        ends = j[entry], jm.next_states[table, b]
        return first, self.between(row + entry, 0.0 - self.rewards[table, b], ends, chance)

    def joined(self, first: Outcomes, second: Outcomes, followers: Ints) -> Outcomes:
        """Whole steps made of both halves; followers: (M,) second halves after each first one."""
        self.fit(int(followers.sum()))
        _, entry, within = ragged(followers)
        then = np.searchsorted(second.row, first.after)[entry] + within
        return Outcomes(
            row=first.row[entry],
            d=_rounded(first.d[entry] + second.d[then]),
            after=second.after[then],
            flipped=second.flipped[then],
            weights=first.weights[entry] * second.weights[then],
        )

    def between(self, row: Ints, d: Floats, ends: tuple[Ints, Ints], chance: Floats) -> Outcomes:
        """Outcomes of steps that lead to two states, (M,) each; at gamma 0 they lead to zero."""
        x, y = self.pairs.indexing.index_of[np.stack(ends)]
        after = self.pairs.places(*ends)
        if self.system.jm.gamma == 0.0:
            after[:] = self.zero
        return Outcomes(row, _rounded(d), after, (x < y).astype(int), chance)


def _stacked(parts: list[Any]) -> Any:
    """Named tuples of arrays as one, their arrays one after the other."""
    return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))
