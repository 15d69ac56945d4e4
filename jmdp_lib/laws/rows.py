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
from typing import Any

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import hot
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import CollapsedT2, ragged
from jmdp_lib.operators.reachable import PairSet, places

_DIGITS = 12  # decimals of reward differences that count, in units of the largest reward
_ROUNDS = 64  # steps that bound |D|, at least
_WORTH = 4.0  # half-steps must have so many times fewer outcomes
_EPS = float(np.finfo(float).eps)

Part = tuple[Ints, Floats, Ints, Ints, Floats]
"""Some outcomes, as in `Outcomes`, in any order."""


@dataclass(frozen=True)
class Outcomes:
    """What can happen in one step, entry by entry, in order of their rows: arrays (M,).

    row: whose outcome it is. d: the reward difference. after: the row that follows. flipped:
    whether its negative follows. weights: probabilities.
    """

    row: Ints
    d: Floats
    after: Ints
    flipped: Ints
    weights: Floats

    @classmethod
    def merged(cls, parts: list[Part]) -> Outcomes:
        """Outcomes from parts, with equal ones added up."""
        row, d, after, flipped, weights = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((flipped, after, d, row))
        row, d, after, flipped, weights = (x[order] for x in (row, d, after, flipped, weights))
        new = np.append(True, np.diff(row) + np.diff(after) != 0)
        new[1:] |= (np.diff(row) != 0) | (np.diff(d) != 0.0) | (np.diff(flipped) != 0)
        first = np.flatnonzero(new)
        return cls(
            row[first], d[first], after[first], flipped[first], np.add.reduceat(weights, first)
        )


@dataclass(frozen=True)
class Rows:
    """N rows: half-steps, pairs of states, the gaps that are asked for, and zero, the last one.

    All is in `unit`, a power of ten such that the largest reward is 1 to 10 units.

    factors: (N,) gamma, or 1 for a half-step that leads to another at the same time. asked: (Q,)
    rows of the gaps. means: (N,) E D for the rounded rewards, each within mean_error. largest: (N,)
    bounds of |D|, zero where D is nothing but zero. longest: how many draws a row sums at most.
    """

    unit: float
    gamma: float
    outcomes: Outcomes
    factors: Floats
    asked: Ints
    means: Floats
    mean_error: float
    largest: Floats
    longest: int

    @classmethod
    def of(cls, system: CollapsedT2, pairs: PairSet, gaps: Ints) -> Rows:
        """The rows that gaps (s, a, b), (Q, 3), lead to, all of them in a set of pairs."""
        return _Maker(system, pairs, gaps).rows()

    def rounded(self, x: Floats) -> Floats:
        """Numbers in `unit`, rounded as reward differences are."""
        return np.round(x / self.unit, _DIGITS) + 0.0

    @property
    def top(self) -> float:
        """A bound of |D| for all rows."""
        return float(self.largest.max())

    @property
    def rounding(self) -> float:
        """How wrong a sum over a row's outcomes can be, relative to its largest numbers."""
        return _rounding(self.longest)

    @property
    def digits(self) -> float:
        """How far E D of the model as it is given can be from that of the rounded one.

        Each part of a step rounds a number to the nearest multiple of 10^-12 units, half of that
        away at most, and its difference, quotient and rounding lose half an _EPS each, or two.
        """
        each = 0.5 * 10.0**-_DIGITS + 2.0 * _EPS * np.abs(self.outcomes.d).max()
        return float(_draws(self.factors, self.gamma) * each / (1.0 - self.gamma))

    @property
    def halved(self) -> bool:
        """Whether there are half-steps."""
        return bool((self.factors[:-1] != self.factors[-1]).any())


def _rounding(longest: int) -> float:
    """How wrong a sum over so many draws can be, relative to its largest numbers.

    The draws with one outcome are added up first, and then the outcomes, each times a number: of
    every draw two additions and a product lose half an _EPS at most. The rest is for what is done
    once.
    """
    return _EPS * (16.0 + 1.5 * longest)


@dataclass(frozen=True)
class RowSizes:
    """What `Rows.of` makes, known before: how many rows, how many outcomes at most, and whether
    steps of branches at different states are halved."""

    rows: int
    outcomes: int
    halved: bool

    @classmethod
    def of(cls, system: CollapsedT2, pairs: PairSet, gaps: Ints) -> RowSizes:
        """Count them. gaps: (Q, 3)."""
        first, second = pairs.members
        same = first == second
        tables = np.diff(system.jm.starts)
        played = (system.policy > 0.0).sum(1)
        alone = tables if system.coupling == "independent" else np.ones_like(tables)
        state = first[same]
        outcomes = (tables * alone)[gaps[:, 0]].sum() + state.size
        outcomes += (tables * alone * played * (played - 1))[state].sum()
        s = first[~same]
        t = second[~same]
        whole = played[s] * played[t] * tables[s]
        whole = (whole if system.coupling == "common" else whole * tables[t]).sum()
        half_rows = _half_rows(system, pairs, s, t)
        half = (played * tables)[s].sum() + half_rows @ (played * tables)
        halved = bool(system.coupling != "common" and system.jm.gamma and whole > _WORTH * half)
        size = (half_rows.sum() if halved else 0) + pairs.size + len(gaps) + 1
        return cls(int(size), int(outcomes + (half if halved else whole)), halved)


def law_bytes(rows: int, outcomes: int, points: int) -> float:
    """Bytes of outcomes while they are made and grouped, and of bounds at so many points, roughly.

    Reads of a point are held for a few thousand reward differences, at most.
    """
    return 400.0 * outcomes + points * (200.0 * rows + 20.0 * min(outcomes, 2048))


def _half_rows(system: CollapsedT2, pairs: PairSet, s: Ints, t: Ints) -> Ints:
    """(S,) how many half-steps H(j, t) pairs of different states s, t (M,) lead to, for each t."""
    successors = np.diff(system.kernel.indptr)
    found = np.bincount(t, successors[s], system.jm.num_states)
    return np.minimum(found, pairs.numbering.order.size).astype(np.int64)


@dataclass(frozen=True)
class _Maker:
    """Makes `Rows`: numbers them, and lists the outcomes of each kind."""

    system: CollapsedT2
    pairs: PairSet
    gaps: Ints

    @property
    def jm(self) -> JMDP:
        return self.system.jm

    @cached_property
    def unit(self) -> float:
        return float(10.0 ** np.floor(np.log10(self.jm.reward_bound)))

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """The two states of every pair, (P,) each."""
        return self.pairs.members

    @cached_property
    def same(self) -> Any:
        """(P,) whether both are one state."""
        first, second = self.members
        return first == second

    def rows(self) -> Rows:
        asked = self.halves + self.pairs.size + np.arange(len(self.gaps))
        zero = asked[-1] + 1
        parts = [self.merging(zero), self.together(zero), self.first_steps(asked, zero)]
        parts += (
            [self.first_halves(), self.second_halves(zero)] if self.halves else [self.apart(zero)]
        )
        longest = int(np.bincount(np.concatenate([part[0] for part in parts])).max())
        outcomes = Outcomes.merged(parts)
        factors = np.full(zero + 1, self.jm.gamma or 1.0)
        if self.halves:
            factors[self.halves + np.flatnonzero(~self.same)] = 1.0
        equations = _Means(outcomes, factors, self.jm.gamma)
        means = equations.solution()
        error = equations.error(means, _rounding(longest))
        largest = _largest(outcomes, factors, self.jm.gamma)
        return Rows(
            self.unit, self.jm.gamma, outcomes, factors, asked, means, error, largest, longest
        )

    def rounded(self, d: Floats) -> Floats:
        """Reward differences in `unit`, without the digits that rounding may have changed."""
        return np.round(d / self.unit, _DIGITS) + 0.0

    def successors(self, first: Ints, second: Ints, zero: int) -> tuple[Ints, Ints]:
        """The rows of pairs of states (M,), and whether they are flipped; zero at gamma 0."""
        x = self.pairs.numbering.number[first]
        y = self.pairs.numbering.number[second]
        if self.jm.gamma == 0.0:
            return np.full(x.size, zero), np.zeros(x.size, np.int64)
        place = places(self.pairs.rows, self.pairs.words, x, y)
        return self.halves + place, (x < y).astype(np.int64)

    def merging(self, zero: int) -> Part:
        """Branches at one state that draw the same action are one from there on."""
        row = np.flatnonzero(self.same)
        chance = (self.system.policy[self.members[0][row]] ** 2).sum(1)
        none = np.zeros(row.size, np.int64)
        return self.halves + row, np.zeros(row.size), none + zero, none, chance

    def together(self, zero: int) -> Part:
        """Branches at one state that draw distinct actions."""
        row = np.flatnonzero(self.same)
        state = self.members[0][row]
        policy = self.system.policy[state]
        pair, a, b = np.nonzero(
            policy[:, :, None] * policy[:, None, :] * (1.0 - np.eye(policy.shape[1]))
        )
        chance = policy[pair, a] * policy[pair, b]
        shared = self.system.coupling != "independent"
        rows = self.halves + row[pair]
        return self.moves(rows, state[pair], a, state[pair], b, chance, shared, zero)

    def first_steps(self, asked: Ints, zero: int) -> Part:
        """The first step of the gaps that are asked for."""
        s, a, b = self.gaps.T
        shared = self.system.coupling != "independent"
        return self.moves(asked, s, a, s, b, np.ones(s.size), shared, zero)

    def apart(self, zero: int) -> Part:
        """Branches at different states, in whole steps."""
        row = np.flatnonzero(~self.same)
        s, t = (x[row] for x in self.members)
        policy = self.system.policy
        pair, a, b = np.nonzero(policy[s][:, :, None] * policy[t][:, None, :])
        chance = policy[s[pair], a] * policy[t[pair], b]
        shared = self.system.coupling == "common"
        return self.moves(row[pair], s[pair], a, t[pair], b, chance, shared, zero)

    def moves(
        self, row: Ints, s: Ints, a: Ints, t: Ints, b: Ints, chance: Floats, shared: bool, zero: int
    ) -> Part:
        """What follows when branches at s and t play a and b, (M,) each, with one table or two."""
        jm = self.jm
        counts = np.diff(jm.starts)
        width = np.ones_like(t) if shared else counts[t]
        _, branch, within = ragged(counts[s] * width)
        own, other = np.divmod(within, width[branch])
        own = jm.starts[s][branch] + own
        other = jm.starts[t][branch] + (within if shared else other)
        probs = jm.probs[own] if shared else jm.probs[own] * jm.probs[other]
        d = jm.rewards[own, a[branch]] - jm.rewards[other, b[branch]]
        ends = jm.next_states[own, a[branch]], jm.next_states[other, b[branch]]
        return row[branch], self.rounded(d), *self.successors(*ends, zero), chance[branch] * probs

    @cached_property
    def half_keys(self) -> Ints:
        """(h,) j * S + t of the half-steps H(j, t) that pairs of different states lead to."""
        if not RowSizes.of(self.system, self.pairs, self.gaps).halved:
            return np.zeros(0, np.int64)
        return np.unique(self.first_moves[2])

    @property
    def halves(self) -> int:
        """How many half-steps there are."""
        return self.half_keys.size

    @cached_property
    def first_moves(self) -> tuple[Ints, Floats, Ints, Floats]:
        """Row, reward, key of H and probability, when the first branch of a pair moves."""
        row = np.flatnonzero(~self.same)
        s, t = (x[row] for x in self.members)
        pair, table, action, chance = self.single(s)
        key = self.jm.next_states[table, action] * self.jm.num_states + t[pair]
        return row[pair], self.rounded(self.jm.rewards[table, action]), key, chance

    def single(self, states: Ints) -> tuple[Ints, Ints, Ints, Floats]:
        """All draws of one branch at states (M,): which of them, table, action and probability."""
        jm = self.jm
        at, action = np.nonzero(self.system.policy[states])
        here = states[at]
        _, played, within = ragged(np.diff(jm.starts)[here])
        table = jm.starts[here][played] + within
        chance = self.system.policy[here, action][played] * jm.probs[table]
        return at[played], table, action[played], chance

    def first_halves(self) -> Part:
        """The first branch of two at different states moves."""
        row, reward, key, chance = self.first_moves
        after = np.searchsorted(self.half_keys, key)
        return self.halves + row, reward, after, np.zeros(row.size, np.int64), chance

    def second_halves(self, zero: int) -> Part:
        """And then the second one."""
        j, t = np.divmod(self.half_keys, self.jm.num_states)
        row, table, action, chance = self.single(t)
        d = 0.0 - self.rounded(self.jm.rewards[table, action])
        after = self.successors(j[row], self.jm.next_states[table, action], zero)
        return row, d, *after, chance


@dataclass(frozen=True)
class _Means:
    """E D of all rows: the solution of m = b + W m, b = E d, by Gauss-Seidel sweeps.

    Compared with the bounds, whose sweeps read hundreds of points, these take no time.
    """

    outcomes: Outcomes
    factors: Floats
    gamma: float

    @cached_property
    def weights(self) -> Floats:
        """(M,) entries of W: a probability times a factor, negative where a row is flipped."""
        made = self.outcomes
        return made.weights * self.factors[made.row] * (1.0 - 2.0 * made.flipped)

    @cached_property
    def source(self) -> Floats:
        """(N,) b."""
        made = self.outcomes
        return np.bincount(made.row, made.weights * made.d, self.factors.size).astype(float)

    def solution(self) -> Floats:
        """(N,) m, as far as rounding lets it be found."""
        made = self.outcomes
        starts = np.searchsorted(made.row, np.arange(self.factors.size + 1))
        m = np.zeros(self.factors.size)
        least = np.log(_EPS * (1.0 - self.gamma))  # plain sweeps need no more steps than this
        most = 4 + 4 * int(least / np.log(max(self.gamma, 0.1)))
        for sweep in range(most):
            change = _sweep_means(m, starts, made.after, self.weights, self.source, sweep % 2)
            if change <= _EPS * np.abs(m).max():
                break
        return m

    def error(self, m: Floats, rounding: float) -> float:
        """How far each entry of m is from the truth, at most.

        The residual rho bounds it by rho / (1 - gamma), and with half-steps, of which every second
        one has the factor one, by 2 rho / (1 - gamma). Computing rho loses `rounding`, relative to
        the largest numbers that are summed.
        """
        made = self.outcomes
        moved = np.bincount(made.row, self.weights * m[made.after], m.size)
        residual = np.abs(self.source + moved - m).max()
        lost = rounding * (np.abs(made.d).max() + np.abs(m).max())
        return float(_draws(self.factors, self.gamma) * (residual + lost) / (1.0 - self.gamma))


@hot
def _sweep_means(m: Any, starts: Any, after: Any, weights: Any, source: Any, backward: Any) -> Any:
    """One sweep of m = source + W m over the rows, in place; returns the largest change."""
    last = m.size - 2  # then comes zero
    largest = 0.0
    for n in range(m.size - 1):
        r = last - n if backward else n
        total = source[r]
        for e in range(starts[r], starts[r + 1]):
            total += weights[e] * m[after[e]]
        largest = max(largest, abs(total - m[r]))
        m[r] = total
    return largest


def _draws(factors: Floats, gamma: float) -> int:
    """In how many parts a step is taken: two, if there are half-steps."""
    return 2 if gamma and (factors[:-1] != gamma).any() else 1


def _largest(outcomes: Outcomes, factors: Floats, gamma: float) -> Floats:
    """(N,) bounds of |D|: those of so many steps, and what all later ones can add."""
    starts = np.searchsorted(outcomes.row, np.arange(factors.size - 1))
    size = np.abs(outcomes.d)
    bound = np.zeros(factors.size)
    positive = -1
    rounds = 0
    while rounds < _ROUNDS or (bound > 0.0).sum() > positive:
        positive = (bound > 0.0).sum()
        rounds += 1
        later = factors[outcomes.row] * bound[outcomes.after]
        bound[:-1] = np.maximum.reduceat(size + later, starts)
    halves = _draws(factors, gamma)
    rest = gamma ** (rounds // halves) * halves * size.max(initial=0.0) / (1.0 - gamma)
    return np.where(bound > 0.0, (bound + rest) * (1.0 + 1e-9), 0.0)
