"""T_n for any order n (Section 5.3), on multisets of (state, multiplicity).

An order-k coordinate E[Z(x_1) ... Z(x_k)] is a set of *branches*: state-actions that are the same
are one random variable, so they are one branch with a multiplicity. Averaged over the policy, a
coordinate is a multiset {(s_1, m_1), ..., (s_j, m_j)} with m_1 + ... + m_j = k,

    F = E[ prod_i Z(s_i, A_i)^(m_i) ],        A_i ~ pi(. | s_i) independent.

One step: branches at the same state that draw the same action become one; branches at the same
state share the table; each then turns into a sum over how many of its factors pick the reward,

    (R + gamma Z')^m = sum_l C(m, l) R^(m-l) gamma^l Z'^l          (eq. (33), M^(0) = 1).

States are independent of each other, so a multiset steps one state at a time: the law of what the
branches at a state turn into is worked out once per state and multiplicities, and the steps of all
multisets at one of their states form a sparse matrix. The product of n such matrices lets every
state step. With common noise that holds given the noise, and T_n is the mixture over it. On all
multisets that can be reached, T_n is then one affine map x -> b + A x.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement as combinations
from itertools import product
from math import comb
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import require
from jmdp_lib.model import JMDP
from jmdp_lib.moments import StateAction, norm_weight

Branches = tuple[tuple[int, int], ...]  # sorted (state, multiplicity)
Law = dict[Branches, float]  # a polynomial: coefficient of each product of successor branches

_ROWS = 50_000  # multisets that step at a time
_TRIED = 64  # multisets from which the size of all steps is estimated


class Laws(NamedTuple):
    """What branches at one state turn into in a step: G laws, one after the other.

    numbers: (G,) the branches of each, sorted. starts: (G + 1,) where the laws start. coefficients:
    (L,). successors: (L, n) rows of branches.
    """

    numbers: Ints
    starts: Ints
    coefficients: Floats
    successors: Ints


class System(NamedTuple):
    """T_n on N multisets, rows (N, n), that lead to no others: x -> constant (N,) + matrix x."""

    constant: Floats
    matrix: sparse.csr_array
    rows: Ints

    @property
    def orders(self) -> Ints:
        """(N,) the order of each multiset."""
        return np.where(self.rows >= 0, self.rows % self.rows.shape[1] + 1, 0).sum(1)


@dataclass(frozen=True)
class MultisetOperator:
    """T_n for one JMDP, policy (S, A) and coupling, acting on the vector of multiset moments (N,).

    A multiset is a row (n,) of sorted branch codes s * n + m - 1, with -1 in front where it has
    fewer than n branches. While a multiset steps, the codes of branches that have not stepped yet
    are raised by S * n, so that they stand last.
    """

    jm: JMDP
    policy: Floats
    order: int
    coupling: str = "joint"

    @cached_property
    def given_noise(self) -> list[tuple[float, MultisetOperator]]:
        """The operators given what all states share, with probabilities: one for each noise."""
        if self.coupling != "common":
            return [(1.0, self)]
        operators = [replace(self, jm=jm, coupling="joint") for jm in self.jm.given_noise]
        return list(zip(self.jm.noise_probs.tolist(), operators, strict=True))

    def action_law(self, state: int, counts: Sequence[tuple[int, int]]) -> Law:
        """One step of prod_a Z(state, a)^(m_a), counts = ((a, m_a), ...) with distinct actions."""
        tables = range(self.jm.starts[state], self.jm.starts[state + 1])
        probs = self.jm.probs[tables]
        if self.coupling == "independent":
            return multiply(
                mix(zip(probs, (self._power(table, *count) for table in tables), strict=True))
                for count in counts
            )
        joint = (multiply(self._power(table, *count) for count in counts) for table in tables)
        return mix(zip(probs, joint, strict=True))

    def _power(self, table: int, action: int, power: int) -> Law:
        """(R + gamma Z')^m of one action in one table."""
        reward = self.jm.rewards[table, action]
        after = int(self.jm.next_states[table, action])
        terms: Law = {}
        for left in range(power + 1):
            factor = comb(power, left) * reward ** (power - left) * self.jm.gamma**left
            terms[((after, left),) if left else ()] = factor
        return {branches: c for branches, c in terms.items() if c != 0.0}

    def collapsed_law(self, state: int, powers: Sequence[int]) -> Law:
        """One step of E prod_i Z(state, A_i)^(m_i): the actions are drawn first, then coalesced."""
        drawn: dict[Any, float] = {(): 1.0}  # sorted (action, multiplicity): probability
        for power in powers:
            more = defaultdict[Any, float](float)
            for (counts, weight), a in product(drawn.items(), np.flatnonzero(self.policy[state])):
                taken = Counter(dict(counts)) + Counter({a: power})
                more[tuple(sorted(taken.items()))] += weight * self.policy[state, a]
            drawn = more
        return mix((weight, self.action_law(state, counts)) for counts, weight in drawn.items())

    def rows_of(self, multisets: Iterable[Branches]) -> Ints:
        """(q, n), one row for each multiset."""
        rows = []
        for branches in multisets:
            codes = sorted(s * self.order + m - 1 for s, m in branches)
            rows.append([-1] * (self.order - len(codes)) + codes)
        return np.reshape(np.array(rows, np.int64), (-1, self.order))

    def numbers(self, rows: Ints) -> Ints:
        """(q,) one number for each row (q, n); zero for the empty multiset."""
        base = 2 * self.jm.num_states * self.order + 1
        if base**self.order >= 2**63:
            raise ValueError(
                f"order {self.order} on {self.jm.num_states} states has too many coordinates to "
                "number"
            )
        return np.asarray((rows + 1) @ base ** np.arange(self.order)[::-1])

    @property
    def _at_one_state(self) -> list[tuple[int, tuple[int, ...]]]:
        """The multisets of one state: the state, and its multiplicities."""
        powers = [p for total in range(1, self.order + 1) for p in partitions(total)]
        return list(product(range(self.jm.num_states), powers))

    @cached_property
    def _laws(self) -> Laws:
        """The laws of all branches that can be at one state, one law after the other."""
        laws: list[tuple[Branches, Law]] = [((), {(): 1.0})]  # what has no branches stays as it is
        for state, powers in self._at_one_state:
            branches = tuple((state, m) for m in powers)
            laws.append((branches, self.collapsed_law(state, powers)))
        numbers = self.numbers(self.rows_of(branches for branches, _ in laws))
        ordered = [laws[i][1] for i in np.argsort(numbers)]
        starts = np.cumsum([0, *map(len, ordered)])
        coefficients = np.array([c for law in ordered for c in law.values()])
        successors = self.rows_of(branches for law in ordered for branches in law)
        return Laws(np.sort(numbers), starts, coefficients, successors)

    def _merged(self, steps: sparse.coo_array, reached: Ints) -> tuple[sparse.csr_array, Ints]:
        """Steps (q, N) to rows (N, n), with those to equal rows added up."""
        _, first, target = np.unique(self.numbers(reached), return_index=True, return_inverse=True)
        at = (steps.row, target.astype(np.int32)[steps.col])
        return sparse.csr_array((steps.data, at), (steps.shape[0], len(first))), reached[first]

    def _step_one_state(self, rows: Ints) -> tuple[sparse.csr_array, Ints]:
        """Step the last waiting state of every row (q, n): a matrix (q, p), and the rows (p, n)."""
        n = self.order
        laws = self._laws
        raised = self.jm.num_states * n
        steps = (rows // n == rows[:, -1:] // n) & (rows >= raised)
        law = np.searchsorted(laws.numbers, self.numbers(np.where(steps, rows - raised, -1)))
        counts = np.diff(laws.starts)[law]
        source = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        entry = np.arange(len(source)) + (laws.starts[law] - counts.cumsum() + counts)[source]
        moved = np.concatenate([np.where(steps, -1, rows)[source], laws.successors[entry]], axis=1)
        moved = np.sort(moved, axis=1)[:, n:]
        at = (source, np.arange(len(source)))
        shape = (len(rows), len(source))
        return self._merged(sparse.coo_array((laws.coefficients[entry], at), shape), moved)

    def step(self, rows: Ints) -> tuple[sparse.csr_array, Ints]:
        """Step every state of every row (q, n): a matrix (q, p), and the rows (p, n) reached."""
        if self.coupling == "common":
            steps = [(prob, *given.step(rows)) for prob, given in self.given_noise]
            side_by_side = sparse.hstack([prob * step for prob, step, _ in steps], format="coo")
            return self._merged(side_by_side, np.concatenate([after for _, _, after in steps]))
        raised = self.jm.num_states * self.order
        matrix, rows = self._step_one_state(np.where(rows >= 0, rows + raised, -1))
        while rows.max(initial=-1) >= raised:
            step, rows = self._step_one_state(rows)
            matrix = matrix @ step
        return matrix, rows

    def _require_room(self, rows: Ints, count: int) -> None:
        """Refuse the steps of `count` multisets, like those in rows (q, n), if they do not fit."""
        some = rows[:: 1 + len(rows) // _TRIED]
        entries = self.step(some)[0].nnz / len(some)
        matrices = 6 if self.coupling == "common" else 3
        needed = count * (16.0 * matrices * entries + 72.0 * self.order)
        what = f"order {self.order} on {self.jm.num_states:,} states with {count:,} multisets"
        require(needed, what, "use a lower order, or jipe2 for means and covariances")

    def closure(self, seeds: Ints) -> System:
        """T_n on the multisets that the seeds, rows (q, n), lead to, and on these themselves."""
        numbers, first = np.unique(self.numbers(seeds), return_index=True)
        new = seeds[first]
        known = np.append(0, numbers)
        found = [new]
        steps = []
        while len(new):
            self._require_room(new, len(known))
            rows = new
            new = new[:0]
            for part in np.array_split(rows, 1 + len(rows) // _ROWS):
                matrix, reached = self.step(part)
                numbers = self.numbers(reached)
                place = np.searchsorted(known, numbers)
                unknown = known.take(place, mode="clip") != numbers
                new = np.concatenate([new, reached[unknown]])
                known = np.insert(known, place[unknown], numbers[unknown])
                steps.append((matrix, numbers))
            found.append(new)
        rows = np.concatenate(found)
        # The empty multiset, whose moment is one, is the last column.
        column = np.argsort(np.append(self.numbers(rows), 0)).astype(np.int32)
        placed = []
        for matrix, numbers in steps:
            columns = column[np.searchsorted(known, numbers)][matrix.indices]
            shape = (matrix.shape[0], len(column))
            placed.append(sparse.csr_array((matrix.data, columns, matrix.indptr), shape=shape))
        whole = sparse.vstack(placed, format="csr")
        return System(whole[:, [-1]].toarray()[:, 0], whole[:, :-1], rows)

    @cached_property
    def system(self) -> System:
        """What moments of one state, or of its multisets, lead to, up to the order."""
        own = {tuple((s, m) for m in powers) for s, powers in self._at_one_state}
        reached = own.union(*self.same_state_laws.values())
        return self.closure(self.rows_of(sorted(reached - {()})))

    @cached_property
    def same_state_laws(self) -> dict[tuple[StateAction, ...], Law]:
        """One step of all moments of one state, up to the order."""
        orders = range(1, self.order + 1)
        chosen = [x for k in orders for x in combinations(range(self.jm.num_actions), k)]
        every = product(range(self.jm.num_states), chosen)
        coordinates = (tuple((s, a) for a in actions) for s, actions in every)
        return {x: self.law(x) for x in coordinates}

    @property
    def orders(self) -> Ints:
        """(N,) the order of each multiset of `system`."""
        return self.system.orders

    @property
    def weights(self) -> Floats:
        """(N,) lambda_k of each."""
        return self.norm_weights(self.orders)

    def norm_weights(self, orders: Ints) -> Floats:
        """lambda_k of each order k, (q,)."""
        base = norm_weight(2, self.jm.gamma, self.jm.reward_bound)
        return np.power(base, orders - 1.0)

    def apply(self, x: Floats) -> Floats:
        """T_n on `system`."""
        return np.asarray(self.system.constant + self.system.matrix @ x)

    def law(self, coordinates: Sequence[StateAction]) -> Law:
        """One step of prod_i Z(s_i, a_i)."""
        actions = defaultdict[int, Counter[int]](Counter)
        for s, a in coordinates:
            actions[s][a] += 1
        return mix(
            (prob, multiply(given.action_law(s, list(n.items())) for s, n in actions.items()))
            for prob, given in self.given_noise
        )


def mix(laws: Iterable[tuple[float, Law]]) -> Law:
    """The weighted sum of polynomials in branches."""
    total = defaultdict[Branches, float](float)
    for weight, law in laws:
        for branches, c in law.items():
            total[branches] += weight * c
    return total


def multiply(laws: Iterable[Law]) -> Law:
    """The product of polynomials in branches: distinct branches stay distinct."""
    total: Law = {(): 1.0}
    for law in laws:
        longer = defaultdict[Branches, float](float)
        for (left, c), (right, d) in product(total.items(), law.items()):
            longer[tuple(sorted(left + right))] += c * d
        total = longer
    return total


def partitions(total: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as a non-decreasing sum."""
    yield (total,)
    for first in range(least, total // 2 + 1):
        for rest in partitions(total - first, first):
            yield (first, *rest)
