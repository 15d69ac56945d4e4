"""The differences of returns that a gap leads to, one row each, and how each follows from others.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. Two branches at one
state that draw the same action are one branch, so that D = 0; otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. A gap Z(s, a) - Z(s, b) is one more step of this kind.

Branches at different states draw independently, unless noise is common. Where many outcomes would
come of it, such a step is taken in two halves, in which one branch moves at a time:

    D(s, t) = R + H(S', t),        H(j, t) = -R' + gamma D(j, T').

So every row is d + factor * (another row, or its negative), for outcomes of a finite law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast import Chain, CollapsedT2, Gaps, PairSet, ragged, solve
from jmdp_lib.machine import require

_DIGITS = 12  # decimals of rewards that count, in units of the largest one
_ROUNDS = 64  # steps that bound |D|, at least
_OUTCOME = 400.0  # bytes that one takes while it is made and grouped, roughly
_WORTH = 3.6  # half-steps must have so many times fewer outcomes
_EPS = float(np.finfo(float).eps)


class Outcomes(NamedTuple):
    """What can happen in one step, entry by entry, in order of their rows: arrays (M,).

    row: whose outcome it is. d: the reward difference. after: the row that follows. flipped:
    whether its negative follows. weights: probabilities.
    """

    row: Ints
    d: Floats
    after: Ints
    flipped: Ints
    weights: Floats

    @property
    def merged(self) -> Outcomes:
        """Sorted by row, d, after and flipped, with equal outcomes added up."""
        order = np.lexsort((self.flipped, self.after, self.d, self.row))
        values: Any = [x[order] for x in self]
        row, d, after, flipped, weights = values
        new = np.any([np.diff(key) != 0 for key in (row, d, after, flipped)], axis=0)
        first = np.flatnonzero(np.append(True, new))
        total = np.add.reduceat(weights, first)
        return Outcomes(row[first], d[first], after[first], flipped[first], total)


@dataclass(frozen=True)
class Rows:
    """N rows: pairs of states, the gaps that are asked for, zero, and half-steps.

    All is in `unit`, a power of ten such that the largest reward is 1 to 10 units.

    factors: (N,) gamma, or 1 for a half-step that leads to another at the same time. asked: (Q,)
    rows of the gaps. rounding: how wrong a sum over a row's outcomes can be, relative to its
    largest numbers.
    """

    unit: float
    gamma: float
    outcomes: Outcomes
    factors: Floats
    asked: Ints
    rounding: float

    @classmethod
    def of(cls, system: CollapsedT2, pairs: PairSet, gaps: Ints) -> Rows:
        """The rows that gaps (s, a, b), (Q, 3), lead to, all of them in a set of pairs."""
        steps = _Steps(system, pairs, gaps)
        num_outcomes, halved = steps.count()
        what = f"the law of gaps that reach {pairs.size:,} pairs"
        require(_OUTCOME * num_outcomes, what, "ask for fewer gaps")
        outcomes = steps.outcomes(halved)
        gamma = system.jm.gamma
        # At gamma 0 every row leads to zero, and any factor below 1 will do.
        factors = np.full(int(outcomes.row.max()) + 1, gamma or 0.5)
        if halved:
            factors[: pairs.size][steps.apart] = 1.0
        return cls(
            unit=steps.unit,
            gamma=gamma,
            outcomes=outcomes.merged,
            factors=factors,
            asked=pairs.size + np.arange(len(gaps)),
            # The draws with one outcome are added up first, and then the outcomes, each times a
            # number: of every draw two additions and a product lose half an _EPS at most. The rest
            # is for what is done once.
            rounding=_EPS * (16.0 + 1.5 * float(np.bincount(outcomes.row).max())),
        )

    @property
    def halved(self) -> bool:
        """Whether there are half-steps."""
        return bool(self.factors.max() == 1.0)

    @property
    def steps(self) -> float:
        """By how much errors of single steps add up, at most; of half-steps, every second factor is
        one."""
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
        """(N,) E D for the rounded rewards, as far as rounding lets it be found."""
        return np.asarray(solve(self._chain, 0.0, self.gamma).x)

    @cached_property
    def mean_error(self) -> float:
        """How far each of the means is from the truth, at most."""
        return self.error_of_means(self.means)

    def error_of_means(self, means: Floats) -> float:
        """The same of any means (N,): their residual adds up over all later steps. Computing it
        loses `rounding`, relative to the largest numbers that are summed."""
        lost = self.rounding * (np.abs(self.outcomes.d).max() + np.abs(means).max())
        return float(self.steps * (self._chain.residual(means) + lost))

    @cached_property
    def largest(self) -> Floats:
        """(N,) bounds of |D|, zero where D is nothing but zero: those of so many steps, and what
        all later ones can add."""
        row, d, after, _, _ = self.outcomes
        starts = np.searchsorted(row, np.arange(self.factors.size))
        bound = np.zeros(self.factors.size)
        for rounds in count():
            before = bound
            bound = np.maximum.reduceat(np.abs(d) + self.factors[row] * bound[after], starts)
            added = (bound - before).max()
            settled = ((bound > 0.0) == (before > 0.0)).all()  # no more rows are known to move
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
        """How far E D of the model as it is given can be from that of the rounded one.

        Each of two rewards is rounded to the nearest multiple of 10^-12 units, half of that away at
        most, and its quotient and rounding lose half an _EPS each, or two with the difference.
        """
        each = 0.5 * 10.0**-_DIGITS + 2.0 * _EPS * np.abs(self.outcomes.d).max()
        return float(2.0 * each / (1.0 - self.gamma))


def _rounded(x: Floats) -> Floats:
    """Numbers without the digits that rounding may have changed."""
    return np.round(x, _DIGITS) + 0.0


@dataclass(frozen=True)
class _Steps:
    """One step of all rows. gaps: (Q, 3)."""

    system: CollapsedT2
    pairs: PairSet
    gaps: Ints

    @cached_property
    def unit(self) -> float:
        return float(10.0 ** np.floor(np.log10(self.system.jm.reward_bound)))

    @cached_property
    def rewards(self) -> Floats:
        """(T, A) in units."""
        return _rounded(self.system.jm.rewards / self.unit)

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """The two states of every pair, (P,) each."""
        return self.pairs.members

    @cached_property
    def apart(self) -> Any:
        """(P,) whether they are two."""
        return np.not_equal(*self.members)

    @property
    def zero(self) -> int:
        """The row after all pairs and gaps; half-steps follow."""
        return self.pairs.size + len(self.gaps)

    def count(self) -> tuple[float, bool]:
        """How many outcomes there are, at most, and whether steps of branches at different states
        are better halved."""
        coupling = self.system.coupling
        first, second = self.members
        tables = np.diff(self.system.jm.starts)
        draws = 1.0 * tables * (self.system.policy > 0.0).sum(1)  # of one branch
        shared = np.where(self.apart, coupling.across_states, coupling.at_one_state)
        whole = draws[first] * draws[second] / np.where(shared, tables[second], 1)
        states = self.pairs.numbering.order
        half = draws[first[self.apart]].sum() + states.size * draws[states].sum()  # H(j, t)
        both = whole[self.apart].sum()
        halved = not coupling.across_states and self.system.jm.gamma > 0.0 and both > _WORTH * half
        at_one_state = whole[~self.apart].sum() + (tables[self.gaps[:, 0]] ** 2).sum() + 1
        return at_one_state + (half if halved else both), bool(halved)

    def outcomes(self, halved: bool) -> Outcomes:
        """Of all rows."""
        one_state = np.flatnonzero(~self.apart)
        # Branches that draw one action are one, and lead to zero; so does zero.
        alike = np.append((self.system.policy[self.members[0][one_state]] ** 2).sum(1), 1.0)
        none = np.zeros(alike.size, np.int64)
        merged = np.append(one_state, self.zero)
        each = np.arange(len(self.gaps))
        parts = [
            Outcomes(merged, none.astype(float), none + self.zero, none, alike),
            self.moves(self.pairs.size + each, Gaps(*self.gaps.T), np.ones(each.size)),
            self.both_move(one_state),
        ]
        apart = np.flatnonzero(self.apart)
        parts += self.halves(apart) if halved else [self.both_move(apart)]
        return Outcomes(*map(np.concatenate, zip(*parts, strict=True)))

    def both_move(self, pairs: Ints) -> Outcomes:
        """Steps of some pairs, all of them at one state or none, by all distinct branches."""
        policy = self.system.policy
        s, t = (x[pairs] for x in self.members)
        chance = policy[s][:, :, None] * policy[t][:, None]
        chance[(s == t)[:, None, None] & np.eye(policy.shape[1], dtype=bool)] = 0.0
        pair, a, b = np.nonzero(chance)
        others = None if (s == t).all() else t[pair]
        return self.moves(pairs[pair], Gaps(s[pair], a, b, others), chance[pair, a, b])

    def moves(self, row: Ints, asked: Gaps, chance: Floats) -> Outcomes:
        """What follows when two branches play actions, for each row (M,)."""
        step = self.system.step(asked, by_table=True)
        assert step.tables is not None
        actions = asked.first[step.row], asked.second[step.row]
        paid, other = self.rewards[step.tables, actions]
        ends = step.first, step.second
        return self.between(row[step.row], paid - other, ends, chance[step.row] * step.weights)

    def between(self, row: Ints, d: Floats, ends: tuple[Ints, Ints], chance: Floats) -> Outcomes:
        """Of steps that lead to two states, (M,) each; at gamma 0 they lead to zero."""
        x, y = self.pairs.numbering.number[np.stack(ends)]
        after = self.pairs.places(*ends)
        if self.system.jm.gamma == 0.0:
            after[:] = self.zero
        return Outcomes(row, _rounded(d), after, (x < y).astype(int), chance)

    def draws(self, states: Ints) -> tuple[Ints, Floats, Ints, Floats]:
        """All draws of one branch at states (M,): which of them, reward, successor, probability."""
        jm = self.system.jm
        table, a = np.nonzero(self.system.policy[jm.table_states])
        starts = np.searchsorted(jm.table_states[table], np.arange(jm.num_states + 1))
        _, at, within = ragged(np.diff(starts)[states])
        draw = starts[states[at]] + within
        table, a = table[draw], a[draw]
        chance = jm.probs[table] * self.system.policy[states[at], a]
        return at, self.rewards[table, a], jm.next_states[table, a], chance

    def halves(self, apart: Ints) -> list[Outcomes]:
        """Steps of branches at different states, in two halves."""
        first, second = (x[apart] for x in self.members)
        at, reward, j, chance = self.draws(first)
        size = self.system.jm.num_states
        keys, number = np.unique(j * size + second[at], return_inverse=True)
        moved = Outcomes(apart[at], reward, self.zero + 1 + number, 0 * at, chance)
        j, t = np.divmod(keys, size)  # of H(j, t)
        at, reward, end, chance = self.draws(t)
        return [moved, self.between(self.zero + 1 + at, 0.0 - reward, (j[at], end), chance)]
