"""T_n for any order n (Section 5.3), on multisets of (state, multiplicity).

An order-k coordinate E[Z(x_1) ... Z(x_k)] is a set of *branches*: state-actions that are the same
are one random variable, so they are one branch with a multiplicity. Averaged over the policy, a
coordinate is a multiset {(s_1, m_1), ..., (s_j, m_j)} with m_1 + ... + m_j = k,

    F = E[ prod_i Z(s_i, A_i)^(m_i) ],        A_i ~ pi(. | s_i) independent.

One step: branches at the same state that draw the same action become one; branches at the same
state share the table; each then turns into a sum over how many of its factors pick the reward,

    (R + gamma Z')^m = sum_l C(m, l) R^(m-l) gamma^l Z'^l          (eq. (33), M^(0) = 1).

States are independent of each other, so a multiset steps one state at a time. Multisets of which
some states have stepped are unknowns, too: a row of T_n has a product of n numbers of successors,
but a row of the larger system has one of them. With common noise all that holds given the noise.
On all multisets that can be reached the larger system is one affine map x -> b + A x.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement as combinations
from itertools import product
from math import comb
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.affine import Chain, Solved, solve
from jmdp_lib.fast.collapsed import ragged
from jmdp_lib.fast.dense import largest_of
from jmdp_lib.machine import hot, progress, require
from jmdp_lib.model import JMDP, JOINT, Coupling
from jmdp_lib.moments import StateAction, norm_weight

Branches = tuple[tuple[int, int], ...]  # (number, multiplicity), see `MultisetOperator`

_ROWS = 50_000  # multisets that step at a time
_OUTCOMES = 1 << 20  # outcomes of states that are worked out at a time


@dataclass(frozen=True, kw_only=True)
class System(Chain):
    """T_n on N multisets that lead to no others, and on what they are while their states step.

    These are E unknowns, moments over lambda_k: one state of each steps by source + kernel @ x.
    numbers: (E,). orders: (E,) k. weights: (E,) lambda_k of eq. (34). waiting: (E,) how many states
    have yet to step; none in the N multisets themselves.
    """

    numbers: Ints
    orders: Ints
    weights: Floats
    waiting: Ints

    def all_step(self, x: Any) -> Floats:
        """(E,) T_n of the multisets in x, (E,) or one number; all others are exact."""
        moved = x
        for _ in range(self.waiting.max(initial=0) + 1):
            moved = self.source + self.kernel @ np.where(self.waiting == 0, x, moved)
        return moved

    def residual(self, x: Floats) -> float:
        """max |T_n x - x| over the multisets."""
        return largest_of((self.all_step(x) - x)[self.waiting == 0])


class Laws(NamedTuple):
    """One step of L sets of branches, each at one state.

    numbers: (L,) of the sets, ascending. begins, sizes: (L,) the outcomes of each, of all l.
    coefficients: (l,). rows: (l, n) what the branches are then.
    """

    numbers: Ints
    begins: Ints
    sizes: Ints
    coefficients: Floats
    rows: Ints

    def joined(self, other: Laws) -> Laws:
        """Both."""
        numbers = np.append(self.numbers, other.numbers)
        order = np.argsort(numbers)
        begins = np.append(self.begins, other.begins + self.coefficients.size)
        return Laws(
            numbers=numbers[order],
            begins=begins[order],
            sizes=np.append(self.sizes, other.sizes)[order],
            coefficients=np.append(self.coefficients, other.coefficients),
            rows=np.concatenate([self.rows, other.rows]),
        )


@dataclass(frozen=True)
class MultisetOperator:
    """T_n for one JMDP, policy (S, A) and coupling, acting on moments (N,) of multisets.

    A branch is of a kind: s, whose action the policy draws, or S + s A + a, a state-action. That is
    its number. While its multiset steps and it has yet to, the number is kind + (k + 1) (S + S A)
    for noise k, if states share one, else k = 0. With multiplicity m it has the code
    number * n + m - 1. A multiset is a row (n,) of sorted codes, with -1 in front where it has
    fewer than n branches.
    """

    jm: JMDP
    policy: Floats
    order: int
    coupling: Coupling = JOINT

    def __post_init__(self) -> None:
        codes = 2 * self._base  # a branch, and whether it ends
        if codes**self.order >= 2**63:
            raise ValueError(
                f"order {self.order} on {self.jm.num_states} states has too many coordinates to "
                "number"
            )

    @property
    def _kinds(self) -> int:
        return self.jm.num_states + self.policy.size

    @property
    def _base(self) -> int:
        """Numbers of branches, and one for none."""
        return self._kinds * (self._noise.size + 1) + 1

    @cached_property
    def _noise(self) -> Floats:
        """(K,) probabilities of the noise that states share; one that is certain if they do not."""
        return self.jm.noise_probs if self.coupling.across_states else np.ones(1)

    @cached_property
    def _states(self) -> Ints:
        """(S + S A,) the state of each kind of branch."""
        states = np.arange(self.jm.num_states)
        return np.concatenate([states, states.repeat(self.jm.num_actions)])

    @cached_property
    def _actions(self) -> sparse.csr_array:
        """(S + S A + 1, A) the actions of each kind, drawn or given; last, one for no branch."""
        given = np.tile(np.eye(self.jm.num_actions), (self.jm.num_states, 1))
        return sparse.csr_array(np.concatenate([self.policy, given, given[:1]]))

    def coordinate(self, state_actions: Iterable[StateAction]) -> Branches:
        """The branches of prod_i Z(s_i, a_i)."""
        num_states, num_actions = self.policy.shape
        powers = Counter(state_actions).items()
        return tuple((num_states + s * num_actions + a, m) for (s, a), m in powers)

    @cached_property
    def same_state(self) -> Ints:
        """(q, n) all moments of one state, up to the order."""
        actions = range(self.jm.num_actions)
        chosen = [x for k in range(1, self.order + 1) for x in combinations(actions, k)]
        return self.at_all_states(chosen).reshape(-1, self.order)

    def at_all_states(self, chosen: Iterable[tuple[int, ...]]) -> Ints:
        """(S, q, n) rows of the products of returns of the chosen actions at each state."""
        first = self.rows_of(self.coordinate((0, a) for a in x) for x in chosen)
        shift = np.arange(self.jm.num_states)[:, None, None] * self.jm.num_actions * self.order
        return np.where(first < 0, -1, first + shift)

    def rows_of(self, multisets: Iterable[Branches]) -> Ints:
        """(q, n), one row for each multiset."""
        rows = []
        for branches in multisets:
            codes = sorted(number * self.order + m - 1 for number, m in branches)
            rows.append([-1] * (self.order - len(codes)) + codes)
        return np.reshape(np.array(rows, np.int64), (-1, self.order))

    def numbers(self, rows: Ints) -> Ints:
        """(q,) one number for each row (q, n); zero for the empty multiset.

        The codes are its digits if they fit, which is faster. Otherwise the branches are, and the
        last n bits say where each branch ends if its factors stand in line.
        """
        places = np.arange(self.order)[::-1]
        if (self._base * self.order) ** self.order < 2**63:
            return np.asarray((rows + 1) @ (self._base * self.order) ** places)
        branches = rows // self.order  # which NumPy does faster than divmod
        there = rows >= 0
        ends = np.cumsum((rows - self.order * branches + 1) * there, axis=1) - 1
        which = (branches + 1) @ self._base**places
        return np.asarray((which << self.order) + (there << np.maximum(ends, 0)).sum(1))

    def _started(self, rows: Ints) -> tuple[Ints, Floats, Ints]:
        """Rows (q, n), those whose states begin to step once for each noise.

        For each result the row that it is of, its probability, and itself.
        """
        begins = rows[:, -1] < self._kinds * self.order
        _, row, noise = ragged(np.where(begins, self._noise.size, 1))
        begins = begins[row]
        shift = np.where(begins, (noise + 1) * self._kinds * self.order, 0)
        rows = rows[row]
        return row, np.where(begins, self._noise[noise], 1.0), rows + shift[:, None] * (rows >= 0)

    def _waiting(self, rows: Ints) -> Ints:
        """(q, n) states of the branches of rows (q, n) that have yet to step; -1 for others."""
        numbers = rows // self.order
        return np.where(numbers < self._kinds, -1, self._states[numbers % self._kinds])

    def _split(self, rows: Ints) -> tuple[Ints, Ints]:
        """Rows (q, n): the branches at the last state that has yet to step, and all others."""
        states = self._waiting(rows)
        last = states == states[:, -1:]
        return np.where(last, rows, -1), np.where(last, -1, rows)

    def _moved(self, rows: Ints, laws: Laws) -> tuple[Ints, Floats, Ints]:
        """One state of every row (q, n) steps.

        For each outcome the row that it is of, its coefficient, and its row.
        """
        row, probs, rows = self._started(rows)
        own, others = self._split(rows)
        law = np.searchsorted(laws.numbers, self.numbers(own))
        source, outcome = entries_of(laws.begins, laws.sizes, law)
        moved = np.concatenate([others[source], laws.rows[outcome]], axis=1)
        moved.sort(axis=1)
        return row[source], probs[source] * laws.coefficients[outcome], moved[:, self.order :]

    @cached_property
    def _averaged_laws(self) -> Laws:
        """Of all branches of one state whose actions the policy draws."""
        powers = [[0] * (self.order - len(x)) + x for x in partitions(self.order) if x]
        states = np.arange(self.jm.num_states)[:, None, None] * self.order
        rows = np.where(np.array(powers) > 0, states + powers - 1, -1)
        return self._laws(rows.reshape(-1, self.order))

    def _laws(self, rows: Ints) -> Laws:
        """Steps of the branches that the multisets in rows (q, n) have at any of their states."""
        rows = self._started(rows)[2]
        parts = []
        while rows.size:
            part, rows = self._split(rows)
            parts.append(part)
            rows.sort(axis=1)
            rows = rows[rows[:, -1] >= self._kinds * self.order]
        every = np.concatenate(parts)
        numbers, first = np.unique(self.numbers(every), return_index=True)
        tables = 1 if self.coupling.across_states else int(np.diff(self.jm.starts).max())
        most = 2**self.order * tables * comb(self.jm.num_actions + self.order - 1, self.order)
        size = max(1, _OUTCOMES // most)
        steps = [self._outcomes(every[first[i : i + size]]) for i in range(0, first.size, size)]
        sizes, coefficients, after = map(np.concatenate, zip(*steps, strict=True))
        return Laws(numbers, np.cumsum(sizes) - sizes, sizes, coefficients, after)

    def _outcomes(self, rows: Ints) -> tuple[Ints, Floats, Ints]:
        """One step of rows (q, n), each with all its branches at one state that has yet to step.

        How many outcomes each has, (q,); and of all outcomes the coefficients, and rows.
        """
        last = rows[:, -1] // self.order
        state = self._states[last % self._kinds]
        noise = last // self._kinds - 1
        which, weights, codes = self._drawn(rows)
        shared = self.coupling.at_one_state
        for i in reversed(range(self.order)):
            if i == self.order - 1 or not shared:
                there = codes[:, i] > 0
                row, table, probs = self._tables(state[which], noise[which], there)
                which, weights, codes = which[row], weights[row] * probs, codes[row]
            row, factors, after = self._powers(table, codes[:, i])
            which, codes, table = which[row], codes[row], table[row]
            weights = weights[row] * factors
            codes[:, i] = after
            if not shared:
                which, weights, codes = merged(which, weights, codes)
        codes.sort(axis=1)
        which, weights, codes = merged(which, weights, codes)
        return np.bincount(which, minlength=len(rows)), weights, codes

    def _drawn(self, rows: Ints) -> tuple[Ints, Floats, Ints]:
        """Actions of the branches in rows (q, n); those of equal actions coalesce.

        For each outcome the row that it is of, its probability, and (n,) sorted
        (action + 1) (n + 1) + multiplicity, zero for no branch.
        """
        digits = self.order + 1
        which = np.arange(len(rows))
        weights = np.ones(len(rows))
        codes = np.zeros_like(rows)
        for column in rows.T:
            own = column[which]
            kinds = np.where(own < 0, self._kinds, own // self.order % self._kinds)
            starts = self._actions.indptr
            row, entry = entries_of(starts, np.diff(starts), kinds)
            which, weights, codes = which[row], weights[row] * self._actions.data[entry], codes[row]
            own = own[row]
            action = np.where(own < 0, 0, (self._actions.indices[entry] + 1) * digits)
            alike = codes - codes % digits == action[:, None]
            new = ~alike.any(axis=1)
            codes[new, 0] = action[new]  # free: there are n places
            alike[new, 0] = True
            codes += alike * np.where(own < 0, 0, own % self.order + 1)[:, None]
            codes.sort(axis=1)
            which, weights, codes = merged(which, weights, codes)
        return which, weights, codes

    def _tables(self, state: Ints, noise: Ints, there: Any) -> tuple[Ints, Ints, Floats]:
        """Tables of states (q,), one given the noise (q,); of any where no branch is there (q,)."""
        starts = self.jm.starts
        if self.coupling.across_states:
            return np.arange(state.size), starts[state] + noise, np.ones(state.size)
        _, row, within = ragged(np.where(there, np.diff(starts)[state], 1))
        table = starts[state][row] + within
        return row, table, np.where(there[row], self.jm.probs[table], 1.0)

    def _powers(self, table: Ints, codes: Ints) -> tuple[Ints, Floats, Ints]:
        """(R + gamma Z')^m of an action in a table, both (q,), by codes as of `_drawn`.

        For each term the q that it is of, its coefficient, and the code of Z'^l, -1 for l = 0.
        """
        power = codes % (self.order + 1)
        _, row, left = ragged(power + 1)
        power = power[row]
        which = table[row], (codes // (self.order + 1) - 1)[row]
        choices = np.array(
            [[comb(m, k) for k in range(self.order + 1)] for m in range(self.order + 1)]
        )
        factors = (
            choices[power, left] * self.jm.rewards[which] ** (power - left) * self.jm.gamma**left
        )
        after = np.where(left > 0, self.jm.next_states[which] * self.order + left - 1, -1)
        some = factors != 0.0
        return row[some], factors[some], after[some]

    def closure(self, seeds: Ints) -> System:
        """T_n on the multisets that the seeds, rows (q, n), lead to, and on these themselves."""
        laws = self._averaged_laws.joined(self._laws(seeds))
        known = Places()
        known.of(np.zeros(1, np.int64))  # the empty multiset
        queue = deque(self._unknown(known, seeds)[1])
        steps = []
        about = []
        checked = 0.0
        with progress(None, f"multisets of order {self.order}", "multiset") as bar:
            while queue:
                rows = queue.popleft()
                row, coefficients, moved = self._moved(rows, laws)
                places, new = self._unknown(known, moved)
                queue += new
                constant = np.bincount(row, coefficients * (places == 0), len(rows))
                some = places > 0
                sizes = np.bincount(row[some], minlength=len(rows))
                steps.append((constant, sizes, coefficients[some], places[some] - 1))
                states = self._waiting(rows)
                others = (states[:, 1:] >= 0) & (states[:, 1:] != states[:, :-1])
                degrees = np.where(rows >= 0, rows % self.order + 1, 0).sum(1)
                about.append((degrees, others.sum(1) + (states[:, 0] >= 0)))
                bar.update(len(rows))
                if known.size > checked:  # which takes a millisecond
                    checked = 1.2 * known.size
                    self._require_room(known.size, steps)
        return self._assembled(known.numbers[1 : known.size], steps, about)

    def _assembled(self, numbers: Ints, steps: list[Any], about: list[Any]) -> System:
        """The system of unknowns with these numbers, (E,), from what `closure` noted of them."""
        source, sizes, coefficients, columns = map(np.concatenate, zip(*steps, strict=True))
        orders, waiting = map(np.concatenate, zip(*about, strict=True))
        weights = norm_weight(2, self.jm.gamma, self.jm.reward_bound) ** (orders - 1.0)
        coefficients *= weights[columns] / np.repeat(weights, sizes)
        starts = np.append(0, np.cumsum(sizes))
        kernel = sparse.csr_array((coefficients, columns, starts), (source.size,) * 2)
        kernel.sum_duplicates()  # of two noises: SciPy's search for components would never end
        # Successors first, among those that lead to each other what waits least, multisets last.
        blocks = csgraph.connected_components(kernel, connection="strong")[1]
        order = np.lexsort((np.where(waiting > 0, waiting, self.order), blocks))
        place = np.argsort(order).astype(np.int32)
        kernel = kernel[order]
        kernel = sparse.csr_array((kernel.data, place[kernel.indices], kernel.indptr), kernel.shape)
        return System(
            *(kernel, 1.0, (source / weights)[order], np.arange(order.size)),
            numbers=numbers[order],
            orders=orders[order],
            weights=weights[order],
            waiting=waiting[order],
        )

    def _unknown(self, known: Places, rows: Ints) -> tuple[Ints, list[Ints]]:
        """Places of rows (q, n), and those rows that were not known, in this order, in parts."""
        before = known.size
        places = known.of(self.numbers(rows))
        unknown = places >= before
        new = np.empty((known.size - before, self.order), np.int64)
        new[places[unknown] - before] = rows[unknown]
        return places, [new[i : i + _ROWS] for i in range(0, len(new), _ROWS)]

    def _require_room(self, count: int, steps: list[tuple[Any, ...]]) -> None:
        """Refuse `count` unknowns that do not fit, if those that have stepped are like them."""
        stepped, entries = (sum(x[i].size for x in steps) for i in (0, 2))
        needed = count * (44.0 * entries / stepped + 16.0 * self.order + 200.0)
        what = f"order {self.order} on {self.jm.num_states:,} states with {count:,} multisets"
        require(needed, what, "use a lower order, or jipe2 for means and covariances")

    @cached_property
    def system(self) -> System:
        """Moments of one state, and all that they lead to."""
        return self.closure(self.same_state)


class Places:
    """Numbers, none of them negative, by the order in which they came: a table of hashes."""

    def __init__(self) -> None:
        self.size = 0
        self.numbers = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int32)

    def of(self, numbers: Ints) -> Ints:
        """(q,) places of numbers (q,); those that are new come last."""
        most = self.size + numbers.size
        if most > self.numbers.size:
            self.numbers = np.append(
                self.numbers[: self.size], np.empty(2 * numbers.size + self.size, np.int64)
            )
        if 2 * most > self._slots.size:
            self._slots = np.full(1 << (4 * most).bit_length(), -1, np.int32)
            known = self.numbers[: self.size].copy()
            _find(self._slots, self.numbers, 0, known, np.empty(self.size, np.int32))
        places: Any = np.empty(numbers.size, np.int32)
        self.size = _find(self._slots, self.numbers, self.size, numbers, places)
        return places


@hot
def _find(slots: Any, known: Any, size: Any, numbers: Any, places: Any) -> Any:
    """Fill in the places of numbers among the first `size` known ones; how many are known then."""
    last = slots.size - 1
    for i in range(numbers.size):
        mixed = numbers[i] * 0x9E3779B97F4A7C1
        slot = (mixed ^ (mixed >> 32)) & last
        while slots[slot] >= 0 and known[slots[slot]] != numbers[i]:
            slot = (slot + 1) & last
        if slots[slot] < 0:
            slots[slot] = size
            known[size] = numbers[i]
            size += 1
        places[i] = slots[slot]
    return size


def partitions(total: int, least: int = 1) -> Iterator[list[int]]:
    """All ascending lists of numbers from `least` on whose sum is at most the total."""
    yield []
    for first in range(least, total + 1):
        for rest in partitions(total - first, first):
            yield [first, *rest]


def entries_of(begins: Any, sizes: Any, rows: Ints) -> tuple[Ints, Ints]:
    """All entries of rows (q,): which of the q it is of, and the entry."""
    _, row, within = ragged(sizes[rows])
    return row, begins[rows][row] + within


def merged(which: Ints, weights: Floats, codes: Ints) -> tuple[Ints, Floats, Ints]:
    """Sorted by which (q,) and codes (q, n), with the weights of equal ones added up."""
    order = np.lexsort((*codes.T, which))
    which, codes = which[order], codes[order]
    new = np.ones(which.size, bool)
    new[1:] = (which[1:] != which[:-1]) | (codes[1:] != codes[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    return which[first], np.add.reduceat(weights[order], first), codes[first]


@dataclass(frozen=True)
class MomentsFromMultisets:
    """Moments of multisets, solved when they are read.

    goal: for residuals, in the paper's norm. solved: the moment of each multiset, by its number.
    """

    operator: MultisetOperator
    goal: float
    solved: dict[int, float] = field(default_factory=lambda: {0: 1.0})  # M^(0) = 1

    @property
    def name(self) -> str:
        """Of the solver, for people."""
        return f"JIPE-{self.operator.order}"

    def solve(self, system: System) -> Solved:
        """The moments of a system, in units of lambda, where T_n contracts by gamma."""
        solution = solve(system, self.goal, self.operator.jm.gamma, self.name)
        some = system.waiting == 0
        moments = (system.weights * solution.x)[some].tolist()
        self.solved.update(zip(system.numbers[some].tolist(), moments, strict=True))
        return solution._replace(x=solution.x[some])

    def same_state(self) -> tuple[Floats, Floats | None]:
        """Means (S, A) and covariances (S, A, A), or None at order 1."""
        actions = range(self.operator.jm.num_actions)
        mean = self._at_all_states([(a,) for a in actions])
        if self.operator.order == 1:
            return mean, None
        second = self._at_all_states([*product(actions, actions)]).reshape(*mean.shape, -1)
        return mean, second - mean[:, :, None] * mean[:, None, :]

    def _at_all_states(self, chosen: list[tuple[int, ...]]) -> Floats:
        """(S, q) moments of the chosen actions at each state."""
        rows = self.operator.at_all_states(chosen)
        numbers = self.operator.numbers(rows.reshape(-1, self.operator.order)).tolist()
        return np.reshape([self.solved[number] for number in numbers], rows.shape[:2])

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """E of the product of the returns."""
        row = self.operator.rows_of([self.operator.coordinate(coordinates)])
        (number,) = self.operator.numbers(row).tolist()
        if number not in self.solved:
            self.solve(self.operator.closure(row))
        return self.solved[number]

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        shape = self.operator.policy.shape
        pairs = combinations(np.ndindex(shape), 2)
        rows = self.operator.rows_of(map(self.operator.coordinate, pairs))
        self.solve(self.operator.closure(rows))
        every = [self.moment(pair) for pair in product(np.ndindex(shape), repeat=2)]
        return np.reshape(every, shape * 2)
