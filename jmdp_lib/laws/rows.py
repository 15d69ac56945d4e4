"""The differences of returns that a gap leads to, one row each, and how each follows from others.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. Two branches at one
state that draw the same action are one branch, so that D = 0; otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. A gap Z(s, a) - Z(s, b) is one more step of this kind.

Branches at different states draw independently, unless noise is common, and those at one state do
if all draws are independent. Where many outcomes would come of it, such a step is taken in two
halves, in which one branch moves at a time:

    D(s, t) = R + H(S', t),        H(j, t) = -R' + gamma D(j, T').

At one state H also depends on the second action, which must differ from the first.

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
_ATOMS = 128  # points at which half-steps are read, at most; of more rewards few are equal
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
            for plays in steps.independent:
                factors[plays.row] = 1.0
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

    def halfway(self, reads: Floats) -> Floats:
        """(M,) where half-steps are read for the read points (P,) of gaps.

        Equal rewards of both branches make an atom of D. It stays whole if H is read at points.
        """
        first = self.outcomes.d[self.factors[self.outcomes.row] == 1.0]
        points = np.unique(np.subtract.outer(reads, np.unique(first)))
        return points if points.size <= _ATOMS else points[:0]

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


class _Plays(NamedTuple):
    """Two branches that play, entry by entry: arrays (M,).

    row: whose step it is. states, first: state and action of one branch; others, second: of the
    other one. The number of actions stands for an action that the policy draws. chance: of these
    actions.
    """

    row: Ints
    states: Ints
    first: Ints
    others: Ints
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
        """The row after all pairs and gaps; half-steps follow."""
        return self.pairs.size + len(self.gaps)

    @cached_property
    def laws(self) -> Floats:
        """(S, A + 1, A) of the action that a branch takes: a given one, or the policy's."""
        policy = self.system.policy
        given = np.broadcast_to(np.eye(policy.shape[1]), (*policy.shape, policy.shape[1]))
        return np.concatenate([given, policy[:, None]], axis=1)

    @cached_property
    def at_one_state(self) -> _Plays:
        """Of gaps, and of pairs at one state whose branches draw distinct actions."""
        first, second = self.members
        pairs = np.flatnonzero(first == second)
        policy = self.system.policy[first[pairs]]
        both = policy[:, :, None] * policy[:, None] * ~np.eye(policy.shape[1], dtype=bool)
        pair, a, b = np.nonzero(both)
        s = first[pairs[pair]]
        t, c, d = self.gaps.T
        asked = self.pairs.size + np.arange(t.size)
        parts = [(pairs[pair], s, a, s, b, both[pair, a, b]), (asked, t, c, t, d, np.ones(t.size))]
        return _Plays(*map(np.concatenate, zip(*parts, strict=True)))

    @cached_property
    def at_two_states(self) -> _Plays:
        """Of all other pairs."""
        pairs = np.flatnonzero(np.not_equal(*self.members))
        first, second = (x[pairs] for x in self.members)
        drawn = np.full(pairs.size, self.system.jm.num_actions)
        return _Plays(pairs, first, drawn, second, drawn, np.ones(pairs.size))

    @property
    def independent(self) -> list[_Plays]:
        """Those whose branches draw a table each."""
        return [plays for plays, shared in self.plays if not shared]

    @property
    def plays(self) -> list[tuple[_Plays, bool]]:
        """All of them, and whether their branches share a table."""
        coupling = self.system.coupling
        return [
            (self.at_one_state, coupling.at_one_state),
            (self.at_two_states, coupling.across_states),
        ]

    def count(self) -> tuple[float, bool]:
        """How many outcomes there are, at most, and whether steps of branches that draw
        independently are better halved."""
        jm = self.system.jm
        tables = np.diff(jm.starts)
        draws = 1.0 * tables[:, None] * (self.laws > 0.0).sum(2)  # (S, A + 1), of one branch
        states = self.pairs.indexing.states
        near = self.at_one_state
        after = np.diff(jm.transitions.indptr).reshape(self.system.policy.shape).sum(1)
        seconds = np.unique(np.stack([near.others, near.second]), axis=1)
        # Outcomes of all H(j, s, b) with j after s, and of all H(j, t).
        halves = [
            (after[seconds[0]] * draws[*seconds]).sum(),
            states.size * draws[states, -1].sum(),
        ]
        fixed, whole, half = 1.0 + jm.num_states, 0.0, 0.0
        for (plays, shared), later in zip(self.plays, halves, strict=True):
            first, second = draws[plays.states, plays.first], draws[plays.others, plays.second]
            if shared:
                fixed += (first * second / tables[plays.states]).sum()
            else:
                whole += (first * second).sum()
                half += first.sum() + later
        halved = whole > _WORTH * half
        return fixed + (half if halved else whole), bool(halved)

    def outcomes(self, halved: bool) -> Outcomes:
        """Of all rows."""
        first, second = self.members
        one_state = np.flatnonzero(first == second)
        # Branches that draw one action are one, and lead to zero; so does zero.
        alike = np.append((self.system.policy[first[one_state]] ** 2).sum(1), 1.0)
        none = np.zeros(alike.size, np.int64)
        merged = np.append(one_state, self.zero)
        parts = [Outcomes(merged, none.astype(float), none + self.zero, none, alike)]
        parts += [self.whole(plays) for plays, shared in self.plays if shared or not halved]
        if halved:
            apart = map(np.concatenate, zip(*self.independent, strict=True))
            parts += self.halves(_Plays(*apart))
        return Outcomes(*map(np.concatenate, zip(*parts, strict=True)))

    def actions(self, states: Ints, actions: Ints) -> tuple[Ints, Ints, Floats]:
        """All actions that branches (M,) may take: whose they are, actions, probabilities."""
        laws = self.laws[states, actions]
        entry, action = np.nonzero(laws)
        return entry, action, laws[entry, action]

    def draws(self, states: Ints, actions: Ints) -> tuple[Ints, Floats, Ints, Floats]:
        """All draws of branches (M,): whose they are, rewards, successors, probabilities."""
        jm = self.system.jm
        entry, a, chance = self.actions(states, actions)
        _, at, within = ragged(np.diff(jm.starts)[states[entry]])
        table = jm.starts[states[entry[at]]] + within
        a = a[at]
        chance = chance[at] * jm.probs[table]
        return entry[at], self.rewards[table, a], jm.next_states[table, a], chance

    def whole(self, plays: _Plays) -> Outcomes:
        """Steps in which both branches move."""
        entry, a, chance = self.actions(plays.states, plays.first)
        more, b, other = self.actions(plays.others[entry], plays.second[entry])
        entry, a = entry[more], a[more]
        chance = plays.chance[entry] * chance[more] * other
        s, t = plays.states[entry], plays.others[entry]
        step = self.system.step(Gaps(s, a, b, None if (s == t).all() else t), by_table=True)
        assert step.tables is not None
        paid, lost = self.rewards[step.tables, (a[step.row], b[step.row])]
        row = plays.row[entry[step.row]]
        ends = step.first, step.second
        return self.between(row, paid - lost, ends, chance[step.row] * step.weights)

    def halves(self, plays: _Plays) -> list[Outcomes]:
        """Steps in which one branch moves, and those in which the other one does."""
        jm = self.system.jm
        shape = jm.num_states, jm.num_states, jm.num_actions + 1
        entry, reward, j, chance = self.draws(plays.states, plays.first)
        keys = np.ravel_multi_index((j, plays.others[entry], plays.second[entry]), shape)
        keys, number = np.unique(keys, return_inverse=True)
        chance *= plays.chance[entry]
        row = self.zero + 1
        moved = Outcomes(plays.row[entry], reward, row + number, 0 * entry, chance)
        j, t, b = np.unravel_index(keys, shape)  # of H(j, t, b)
        entry, reward, end, chance = self.draws(t, b)
        return [moved, self.between(row + entry, 0.0 - reward, (j[entry], end), chance)]

    def between(self, row: Ints, d: Floats, ends: tuple[Ints, Ints], chance: Floats) -> Outcomes:
        """Of steps that lead to two states, (M,) each; at gamma 0 they lead to zero."""
        x, y = self.pairs.indexing.index_of[np.stack(ends)]
        after = self.pairs.places(*ends)
        if self.system.jm.gamma == 0.0:
            after[:] = self.zero
        return Outcomes(row, _rounded(d), after, (x < y).astype(int), chance)
