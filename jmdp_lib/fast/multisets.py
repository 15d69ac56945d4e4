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

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement as combinations
from itertools import product
from math import comb
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.fast.affine import Chain, Solved, solve
from jmdp_lib.fast.collapsed import ragged
from jmdp_lib.machine import progress, require
from jmdp_lib.model import JMDP, JOINT, Coupling
from jmdp_lib.moments import StateAction, norm_weight, same_state_moments

Branches = tuple[tuple[int, int], ...]  # (number, multiplicity), see `MultisetOperator`
Law = dict[Branches, float]  # a polynomial: coefficient of each product of successor branches
Key = TypeVar("Key")

_ROWS = 50_000  # multisets that step at a time
_TRIED = 64  # multisets from which the size of all steps is estimated


class System(NamedTuple):
    """T_n on N multisets that lead to no others: x -> constant (N,) + matrix x.

    numbers: (N,) of the multisets. orders: (N,) their k. weights: (N,) lambda_k, eq. (34).
    """

    constant: Floats
    matrix: sparse.csr_array
    numbers: Ints
    orders: Ints
    weights: Floats

    def apply(self, x: Floats) -> Floats:
        """T_n."""
        return np.asarray(self.constant + self.matrix @ x)


@dataclass(frozen=True)
class MultisetOperator:
    """T_n for one JMDP, policy (S, A) and coupling, acting on moments (N,) of multisets.

    A branch has a number: s, of which the policy draws the action; S + s, the same while its
    multiset steps and it has not yet; or 2 S + s A + a, a state-action. With its multiplicity m it
    has the code number * n + m - 1. A multiset is a row (n,) of sorted codes, with -1 in front
    where it has fewer than n branches.
    """

    jm: JMDP
    policy: Floats
    order: int
    coupling: Coupling = JOINT

    def __post_init__(self) -> None:
        codes = 4 * self.jm.num_states + 2 * self.policy.size + 2  # a branch, and whether it ends
        if codes**self.order >= 2**63:
            raise ValueError(
                f"order {self.order} on {self.jm.num_states} states has too many coordinates to "
                "number"
            )

    @cached_property
    def given_noise(self) -> list[tuple[float, MultisetOperator]]:
        """The operators given what all states share, with probabilities: one for each noise."""
        operators = [replace(self, jm=jm, coupling=JOINT) for jm in self.jm.given_noise]
        return list(zip(self.jm.noise_probs.tolist(), operators, strict=True))

    def coordinate(self, state_actions: Iterable[StateAction]) -> Branches:
        """The branches of prod_i Z(s_i, a_i)."""
        num_states, num_actions = self.policy.shape
        powers = Counter(state_actions).items()
        return tuple((2 * num_states + s * num_actions + a, m) for (s, a), m in powers)

    @cached_property
    def same_state(self) -> Ints:
        """(q, n) all moments of one state, up to the order."""
        states, actions = map(range, self.policy.shape)
        chosen = [x for k in range(1, self.order + 1) for x in combinations(actions, k)]
        every = product(states, chosen)
        return self.rows_of(self.coordinate((s, a) for a in x) for s, x in every)

    def _action_law(self, state: int, actions: tuple[int, ...]) -> Law:
        """One step of prod_i Z(state, a_i); actions that are the same are one branch."""
        counts = Counter(actions).items()
        tables = range(self.jm.starts[state], self.jm.starts[state + 1])
        if len(counts) > 1 and not self.coupling.at_one_state:
            return multiply(self._action_law(state, m * (a,)) for a, m in counts)
        joint = (multiply(self._power(table, *count) for count in counts) for table in tables)
        return mix(zip(self.jm.probs[tables], joint, strict=True))

    def _power(self, table: int, action: int, power: int) -> Law:
        """(R + gamma Z')^m of one action in one table."""
        reward = self.jm.rewards[table, action]
        after = int(self.jm.next_states[table, action])
        terms: Law = {}
        for left in range(power + 1):
            factor = comb(power, left) * reward ** (power - left) * self.jm.gamma**left
            if factor != 0.0:
                terms[((after, left),) if left else ()] = factor
        return terms

    @cached_property
    def _laws(self) -> dict[tuple[int, ...], tuple[Floats, Ints]]:
        """What `_law` has worked out; what has no branches stays as it is."""
        return {(-1,) * self.order: (np.ones(1), self.rows_of([()]))}

    def _law(self, row: tuple[int, ...]) -> tuple[Floats, Ints]:
        """One step of branches that are at one state: coefficients (l,) of rows (l, n).

        The policy draws its actions first; then branches of equal actions coalesce.
        """
        if row not in self._laws:
            drawn: dict[tuple[int, ...], float] = {(): 1.0}  # sorted actions: probability
            for code in row[row.count(-1) :]:
                number, less = divmod(code, self.order)
                chances = self._chances[number - self.jm.num_states]
                drawn = mix(
                    (chances[a] * weight, {tuple(sorted(x + (less + 1) * (a,))): 1.0})
                    for x, weight in drawn.items()
                    for a in np.flatnonzero(chances).tolist()
                )
            state = self._owners[row[-1] // self.order]
            law = mix((weight, self._action_law(state, x)) for x, weight in drawn.items())
            self._laws[row] = np.array(list(law.values())), self.rows_of(law)
        return self._laws[row]

    @cached_property
    def _chances(self) -> Floats:
        """(S + S A, A), the actions of branches that have not stepped: drawn, or given."""
        given = np.tile(np.eye(self.jm.num_actions), (self.jm.num_states, 1))
        return np.concatenate([self.policy, given])

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
        base = 2 * self.jm.num_states + self.policy.size + 1
        places = np.arange(self.order)[::-1]
        if (base * self.order) ** self.order < 2**63:
            return np.asarray((rows + 1) @ (base * self.order) ** places)
        branches = rows // self.order  # which NumPy does faster than divmod
        there = rows >= 0
        ends = np.cumsum((rows - self.order * branches + 1) * there, axis=1) - 1
        which = (branches + 1) @ base**places
        return np.asarray((which << self.order) + (there << np.maximum(ends, 0)).sum(1))

    @cached_property
    def _owners(self) -> Ints:
        """The state of every branch by its number, if it has to step; else -1, as for no branch."""
        states = np.arange(self.jm.num_states)
        stepped = np.full(states.size, -1)
        return np.concatenate([stepped, states, states.repeat(self.jm.num_actions), [-1]])

    def _merged(self, steps: sparse.coo_array, reached: Ints) -> tuple[sparse.csr_array, Ints]:
        """Steps (q, N) to rows (N, n), with those to equal rows added up."""
        _, first, target = np.unique(self.numbers(reached), return_index=True, return_inverse=True)
        at = (steps.row, target.astype(np.int32)[steps.col])
        return sparse.csr_array((steps.data, at), (steps.shape[0], len(first))), reached[first]

    def _step_one_state(self, rows: Ints) -> tuple[sparse.csr_array, Ints]:
        """Step the last waiting state of every row (q, n): a matrix (q, p), and the rows (p, n)."""
        n = self.order
        owners = self._owners[rows // n]
        steps = (owners == owners[:, -1:]) & (owners >= 0)
        parts = np.where(steps, rows, -1)
        _, first, law = np.unique(self.numbers(parts), return_index=True, return_inverse=True)
        laws = [self._law(tuple(part)) for part in parts[first].tolist()]
        coefficients, successors = map(np.concatenate, zip(*laws, strict=True))
        sizes = np.array([len(own) for own, _ in laws])
        _, source, within = ragged(sizes[law])
        entry = (np.cumsum(sizes) - sizes)[law][source] + within
        moved = np.concatenate([np.where(steps, -1, rows)[source], successors[entry]], axis=1)
        moved = np.sort(moved, axis=1)[:, n:]
        at = source.astype(np.int32), np.arange(source.size)
        each = sparse.coo_array((coefficients[entry], at), (len(rows), source.size))
        return self._merged(each, moved)

    def step(self, rows: Ints) -> tuple[sparse.csr_array, Ints]:
        """Step every state of every row (q, n): a matrix (q, p), and the rows (p, n) reached."""
        if self.coupling.across_states:
            steps = [(prob, *given.step(rows)) for prob, given in self.given_noise]
            side_by_side = sparse.hstack([prob * step for prob, step, _ in steps], format="coo")
            return self._merged(side_by_side, np.concatenate([after for _, _, after in steps]))
        last = self.jm.num_states * self.order  # what has not stepped has higher codes
        waiting = (rows >= 0) & (rows < last)
        matrix, rows = self._step_one_state(np.where(waiting, rows + last, rows))
        while rows.max(initial=-1) >= last:
            step, rows = self._step_one_state(rows)
            matrix = matrix @ step
        return matrix, rows

    def _require_room(self, rows: Ints, count: int) -> None:
        """Refuse the steps of `count` multisets, like those in rows (q, n), if they do not fit."""
        some = rows[:: 1 + len(rows) // _TRIED]
        entries = self.step(some)[0].nnz / len(some)
        matrices = 6 if self.coupling.across_states else 3
        needed = count * (16.0 * matrices * entries + 72.0 * self.order)
        what = f"order {self.order} on {self.jm.num_states:,} states with {count:,} multisets"
        require(needed, what, "use a lower order, or jipe2 for means and covariances")

    def closure(self, seeds: Ints) -> System:
        """T_n on the multisets that the seeds, rows (q, n), lead to, and on these themselves."""
        own, first = np.unique(self.numbers(seeds), return_index=True)
        queue = deque([seeds[first]])
        numbered = np.append(0, own)  # in the order of the queue, after the empty multiset
        parts = []
        steps = []
        with progress(None, f"multisets of order {self.order}", "multiset") as bar:
            while queue:
                part = queue.popleft()
                self._require_room(part, len(numbered))
                matrix, reached = self.step(part)
                numbers = self.numbers(reached)
                unknown = ~np.isin(numbers, numbered)
                numbered = np.append(numbered, numbers[unknown])
                new = reached[unknown]
                queue += [new[i : i + _ROWS] for i in range(0, len(new), _ROWS)]
                parts.append(part)
                steps.append((matrix, numbers))
                bar.update(len(part))
        order = np.argsort(numbered).astype(np.int32)
        placed = []
        for matrix, numbers in steps:
            columns = order[np.searchsorted(numbered, numbers, sorter=order)]
            entries = matrix.data, columns[matrix.indices], matrix.indptr
            placed.append(sparse.csr_array(entries, shape=(matrix.shape[0], order.size)))
        whole = sparse.vstack(placed, format="csr")
        rows = np.concatenate(parts)
        orders = np.where(rows >= 0, rows % self.order + 1, 0).sum(1)
        weights = norm_weight(2, self.jm.gamma, self.jm.reward_bound) ** (orders - 1.0)
        constant = whole[:, [0]].toarray()[:, 0]
        return System(constant, whole[:, 1:], numbered[1:], orders, weights)

    @cached_property
    def system(self) -> System:
        """What moments of one state lead to, and these themselves."""
        return self.closure(self.same_state)


def mix(laws: Iterable[tuple[float, dict[Key, float]]]) -> dict[Key, float]:
    """The weighted sum of polynomials in branches."""
    total = defaultdict[Key, float](float)
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
        weights = system.weights
        scaled = sparse.diags_array(1.0 / weights) @ system.matrix @ sparse.diags_array(weights)
        chain = Chain(sparse.csr_array(scaled), 1.0, system.constant / weights)
        solution = solve(chain, self.goal, self.operator.jm.gamma, self.name)
        moments = (solution.x * weights).tolist()
        self.solved.update(zip(system.numbers.tolist(), moments, strict=True))
        return solution

    def same_state(self) -> tuple[Floats, Floats | None]:
        """Means (S, A) and covariances (S, A, A), or None at order 1."""
        shape = self.operator.policy.shape
        mean = same_state_moments(self.moment, shape, 1)
        if self.operator.order == 1:
            return mean, None
        return mean, same_state_moments(self.moment, shape, 2) - mean[:, :, None] * mean[:, None, :]

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
