"""The differences of returns that a gap leads to, one row each, and how each follows from others.

Let D(s, t) = Z(s, A) - Z(t, B), with A and B drawn separately from the policy. Two branches at one
state that draw the same action are one branch, so that D = 0; otherwise D(s, t) is
R - R' + gamma D(S', T') under the coupling. A gap Z(s, a) - Z(s, b) is one more step of this kind.

Branches at different states draw independently, unless noise is common. Where many outcomes would
come of it, such a step is taken in two halves, in which one branch moves at a time:

    D(s, t) = R + H(S', t),        H(j, t) = -R' + gamma D(j, T').

So every row is d + factor * (another row, or its negative), for outcomes of a finite law. With the
values v of the policy, E D(s, t) = v(s) - v(t), and E H(j, t) = gamma v(j) - v(t).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.model import JMDP
from jmdp_lib.operators.collapsed import CollapsedT2, ragged
from jmdp_lib.operators.reachable import PairSet, places
from jmdp_lib.solvers.affine import Chain

_DIGITS = 12  # decimals of rewards that count, in units of the largest one
_ROUNDS = 64  # steps that bound |D|, at least
_WORTH = 4.0  # half-steps must have so many times fewer outcomes
_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class Outcomes:
    """What can happen in one step, entry by entry, in order of their rows: arrays (M,).

    row: whose outcome it is. d: the reward difference. after: the row that follows. flipped:
    whether its negative follows. weights: probabilities. beyond: what follows is read at
    (x - d) / factor plus this, see `together`.
    """

    row: Ints
    d: Floats
    after: Ints
    flipped: Ints
    weights: Floats
    beyond: Floats

    @property
    def merged(self) -> Outcomes:
        """Sorted by row, d, after and flipped, with equal outcomes added up."""
        order = np.lexsort((self.flipped, self.after, self.d, self.row))
        keys: Any = [x[order] for x in (self.row, self.d, self.after, self.flipped)]
        new = np.any([np.diff(key) != 0 for key in keys], axis=0)
        first = np.flatnonzero(np.append(True, new))
        weights = np.add.reduceat(self.weights[order], first)
        beyond = np.add.reduceat((self.weights * self.beyond)[order], first) / weights
        row, d, after, flipped = (key[first] for key in keys)
        return Outcomes(row, d, after, flipped, weights, beyond)

    def together(self, d: Floats, factors: Floats) -> Outcomes:
        """The same outcomes, read at other differences d (M,), no less than theirs."""
        beyond = np.maximum((d - self.d) / factors[self.row], 0.0)
        return Outcomes(self.row, d, self.after, self.flipped, self.weights, beyond).merged

    @classmethod
    def joined(cls, parts: list[Outcomes]) -> Outcomes:
        """All of the parts."""
        return cls(*map(np.concatenate, zip(*(vars(x).values() for x in parts), strict=True)))


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
        maker = _Maker(system, pairs, gaps)
        parts = [maker.at_once(), *maker.in_halves()]
        longest = int(np.bincount(np.concatenate([part.row for part in parts])).max())
        gamma = system.jm.gamma
        outcomes = Outcomes.joined(parts).merged
        factors = np.full(maker.zero + 1, gamma or 1.0)
        if maker.half_keys.size:
            factors[maker.half_keys.size + np.flatnonzero(maker.apart)] = 1.0
        means = maker.means(outcomes, factors)
        error = mean_error(outcomes, factors, gamma, means, _rounding(longest))
        return cls(
            unit=maker.unit,
            gamma=gamma,
            outcomes=outcomes,
            factors=factors,
            asked=maker.asked,
            means=means,
            mean_error=error,
            largest=_largest(outcomes, factors, gamma),
            longest=longest,
        )

    def rounded(self, x: Floats) -> Floats:
        """Numbers in `unit`, rounded as rewards are."""
        return _rounded(x / self.unit)

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

        Each of two rewards is rounded to the nearest multiple of 10^-12 units, half of that away at
        most, and its quotient and rounding lose half an _EPS each, or two with the difference.
        """
        each = 0.5 * 10.0**-_DIGITS + 2.0 * _EPS * np.abs(self.outcomes.d).max()
        return float(2.0 * each / (1.0 - self.gamma))

    @property
    def halved(self) -> bool:
        """Whether there are half-steps."""
        return _parts_of_a_step(self.factors, self.gamma) == 2


def _rounded(x: Floats) -> Floats:
    """Numbers without the digits that rounding may have changed."""
    return np.round(x, _DIGITS) + 0.0


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
        apart = first != second
        tables = np.diff(system.jm.starts)
        draws = tables * (system.policy > 0.0).sum(1)  # of one branch
        shared = np.where(apart, system.coupling == "common", system.coupling != "independent")
        at_once = draws[first] * draws[second] // np.where(shared, tables[second], 1)
        whole = at_once[apart].sum()
        successors = np.diff(system.kernel.indptr)
        keys = np.bincount(second[apart], successors[first[apart]], tables.size)
        keys = np.minimum(keys, pairs.numbering.order.size)  # half-steps H(j, t), for each t
        half = draws[first[apart]].sum() + keys @ draws
        halved = bool(system.coupling != "common" and system.jm.gamma and whole > _WORTH * half)
        rows = (keys.sum() if halved else 0) + pairs.size + len(gaps) + 1
        of_a_gap = tables ** (2 if system.coupling == "independent" else 1)
        others = at_once[~apart].sum() + of_a_gap[gaps[:, 0]].sum()
        return cls(int(rows), int(others + (half if halved else whole)), halved)


def law_bytes(rows: int, outcomes: int, points: int) -> float:
    """Bytes of outcomes while they are made and grouped, and of bounds at so many points, roughly.

    Reads of a point are held for a few thousand reward differences, at most.
    """
    return 400.0 * outcomes + points * (200.0 * rows + 20.0 * min(outcomes, 2048))


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
    def rewards(self) -> Floats:
        """(T, A) in units."""
        return _rounded(self.jm.rewards / self.unit)

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """The two states of every pair, (P,) each."""
        return self.pairs.members

    @cached_property
    def apart(self) -> Ints:
        """(P,) whether they differ."""
        first, second = self.members
        return np.not_equal(first, second)

    @property
    def asked(self) -> Ints:
        """(Q,) the rows of the gaps."""
        return self.half_keys.size + self.pairs.size + np.arange(len(self.gaps))

    @property
    def zero(self) -> int:
        """The last row."""
        return self.half_keys.size + self.pairs.size + len(self.gaps)

    @cached_property
    def half_keys(self) -> Ints:
        """(h,) j * S + t of the half-steps H(j, t) that pairs of different states lead to."""
        if not RowSizes.of(self.system, self.pairs, self.gaps).halved:
            return np.zeros(0, np.int64)
        return np.unique(self.first_halves.after)

    def outcomes(self, row: Ints, d: Floats, first: Ints, second: Ints, chance: Floats) -> Outcomes:
        """Of steps that lead to two states, (M,) each; at gamma 0 they lead to zero."""
        x = self.pairs.numbering.number[first]
        y = self.pairs.numbering.number[second]
        after = np.full(x.size, self.zero)
        flipped = np.zeros(x.size, np.int64)
        if self.jm.gamma > 0.0:
            after = self.half_keys.size + places(self.pairs.rows, self.pairs.words, x, y)
            flipped += x < y
        return Outcomes(row, d, after, flipped, chance, np.zeros(x.size))

    def at_once(self) -> Outcomes:
        """Steps in which both branches move: of gaps, and of pairs that are not halved."""
        row = np.flatnonzero(~self.apart | (self.half_keys.size == 0))
        s, t = (x[row] for x in self.members)
        policy = self.system.policy
        pair, a, b = np.nonzero(policy[s][:, :, None] * policy[t][:, None])
        chance = policy[s[pair], a] * policy[t[pair], b]
        state, *actions = self.gaps.T
        s, t = (np.append(x[pair], state) for x in (s, t))
        a, b = (np.append(x, y) for x, y in zip((a, b), actions, strict=True))
        row = np.append(self.half_keys.size + row[pair], self.asked)
        return self.moves(row, (s, a), (t, b), np.append(chance, np.ones(state.size)))

    def moves(
        self, row: Ints, one: tuple[Ints, Ints], other: tuple[Ints, Ints], chance: Floats
    ) -> Outcomes:
        """What follows when branches play an action at a state, (M,) each; equal ones are one."""
        jm = self.jm
        (s, a), (t, b) = one, other
        alike = (s == t) & (a == b)
        shared = (s == t) if self.system.coupling == "joint" else self.system.coupling == "common"
        shared = shared | alike
        tables = np.diff(jm.starts)
        width = np.where(shared, 1, tables[t])
        _, step, within = ragged(np.where(alike, 1, tables[s] * width))
        left, right = np.divmod(within, width[step])
        right = np.where(shared[step], left, right)
        left += jm.starts[s][step]
        right += jm.starts[t][step]
        probs = jm.probs[left] * np.where(shared[step], 1.0, jm.probs[right])
        d = _rounded(self.rewards[left, a[step]] - self.rewards[right, b[step]])
        ends = jm.next_states[left, a[step]], jm.next_states[right, b[step]]
        merged = alike[step]
        # Branches that are one lead to zero, whatever the table is.
        found = self.outcomes(row[step], d, *ends, chance[step] * np.where(merged, 1.0, probs))
        found.after[merged] = self.zero
        found.flipped[merged] = 0
        return found

    def single(self, states: Ints) -> tuple[Ints, Floats, Ints, Floats]:
        """All draws of one branch at states (M,): which of them, reward, successor, probability."""
        jm = self.jm
        at, action = np.nonzero(self.system.policy[states])
        here = states[at]
        _, played, within = ragged(np.diff(jm.starts)[here])
        table = jm.starts[here][played] + within
        chance = self.system.policy[here, action][played] * jm.probs[table]
        drawn = table, action[played]
        return at[played], self.rewards[drawn], jm.next_states[drawn], chance

    @cached_property
    def first_halves(self) -> Outcomes:
        """The first branch of two at different states moves; `after` has keys of half-steps."""
        row = np.flatnonzero(self.apart)
        s, t = (x[row] for x in self.members)
        pair, reward, after, chance = self.single(s)
        keys = after * self.jm.num_states + t[pair]
        return Outcomes(row[pair], reward, keys, 0 * pair, chance, np.zeros(pair.size))

    def in_halves(self) -> list[Outcomes]:
        """Steps of branches at different states, in two halves, if they are."""
        halves = self.half_keys.size
        if not halves:
            return []
        made = self.first_halves
        after = np.searchsorted(self.half_keys, made.after)
        first = replace(made, row=halves + made.row, after=after)
        j, t = np.divmod(self.half_keys, self.jm.num_states)
        row, reward, end, chance = self.single(t)
        return [first, self.outcomes(row, 0.0 - reward, j[row], end, chance)]

    def means(self, outcomes: Outcomes, factors: Floats) -> Floats:
        """(N,) E D, as far as rounding lets it be found."""
        jm = self.jm
        rewards = np.einsum("sa,sa->s", self.system.policy, jm.averaging @ self.rewards)
        value = Chain(self.system.kernel, jm.gamma, rewards).solution(0.0)
        first, second = self.members
        j, t = np.divmod(self.half_keys, jm.num_states)
        means = np.zeros(self.zero + 1)
        means[: self.asked[0]] = np.append(
            jm.gamma * value[j] - value[t], value[first] - value[second]
        )
        means[self.asked] = _step_of_means(outcomes, factors, means)[self.asked]
        return means


def _step_of_means(outcomes: Outcomes, factors: Floats, means: Floats) -> Floats:
    """(N,) E[d + factor * mean of what follows]."""
    later = factors[outcomes.row] * means[outcomes.after] * (1.0 - 2.0 * outcomes.flipped)
    both = outcomes.weights * (outcomes.d + later)
    return np.bincount(outcomes.row, both, means.size).astype(float)


def mean_error(
    outcomes: Outcomes, factors: Floats, gamma: float, means: Floats, rounding: float
) -> float:
    """How far each of the means (N,) is from the truth, at most.

    The residual rho bounds it by rho / (1 - gamma), and with half-steps, of which every second one
    has the factor one, by 2 rho / (1 - gamma). Computing rho loses `rounding`, relative to the
    largest numbers that are summed.
    """
    residual = np.abs(_step_of_means(outcomes, factors, means) - means).max()
    lost = rounding * (np.abs(outcomes.d).max() + np.abs(means).max())
    return float(_parts_of_a_step(factors, gamma) * (residual + lost) / (1.0 - gamma))


def _parts_of_a_step(factors: Floats, gamma: float) -> int:
    """Two, if there are half-steps."""
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
    halves = _parts_of_a_step(factors, gamma)
    rest = gamma ** (rounds // halves) * halves * size.max(initial=0.0) / (1.0 - gamma)
    return np.where(bound > 0.0, (bound + rest) * (1.0 + 1e-9), 0.0)
