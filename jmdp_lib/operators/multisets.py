"""T_n for any order n (Section 5.3), on multisets of (state, multiplicity).

An order-k coordinate E[Z(x_1) ... Z(x_k)] is a set of *branches*: state-actions that are the same
are one random variable, so they are one branch with a multiplicity. Averaged over the policy, a
coordinate is a multiset {(s_1, m_1), ..., (s_j, m_j)} with m_1 + ... + m_j = k,

    F = E[ prod_i Z(s_i, A_i)^(m_i) ],        A_i ~ pi(. | s_i) independent.

One step: branches at the same state that draw the same action become one; branches at the same
state share the table; each then turns into a sum over how many of its factors pick the reward,

    (R + gamma Z')^m = sum_l C(m, l) R^(m-l) gamma^l Z'^l          (eq. (33), M^(0) = 1).

States are independent of each other, so the step of a multiset is the product of the steps of its
states: the `law` of (state, multiplicities) is worked out once and reused. On all multisets that
can be reached, T_n is then one sparse affine map x -> b + A x.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
from scipy import sparse

from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import available_bytes, gibibytes
from jmdp_lib.model import JMDP
from jmdp_lib.moments import norm_weight
from jmdp_lib.operators.closure import close_and_compile

Branches = tuple[tuple[int, int], ...]  # sorted (state, multiplicity)
Law = dict[Branches, float]  # a polynomial: coefficient of each product of successor branches

# Up to this many multisets all of them are kept; beyond it only what same-state queries reach.
ALL_LIMIT = 250_000


@dataclass(frozen=True)
class MultisetOperator:
    """T_n for one JMDP and one policy (S, A), acting on the vector of multiset moments (N,)."""

    jm: JMDP
    policy: Floats
    order: int
    independent: bool = False

    def action_law(self, state: int, counts: Sequence[tuple[int, int]]) -> Law:
        """One step of prod_a Z(state, a)^(m_a), counts = ((a, m_a), ...) with distinct actions."""
        jm, law = self.jm, defaultdict[Branches, float](float)
        tables = range(jm.starts[state], jm.starts[state + 1])

        def factor(table: int, action: int, power: int) -> Law:
            reward, after = jm.rewards[table, action], int(jm.next_states[table, action])
            terms: Law = {
                ((after, left),) if left else (): comb(power, left)
                * reward ** (power - left) * jm.gamma**left
                for left in range(power + 1)
            }  # fmt: skip
            return {branches: c for branches, c in terms.items() if c != 0.0}

        if self.independent:
            averages = []
            for action, power in counts:
                average = defaultdict[Branches, float](float)
                for table in tables:
                    for branches, c in factor(table, action, power).items():
                        average[branches] += jm.probs[table] * c
                averages.append(average)
            return multiply(averages)
        for table in tables:
            joint = multiply(factor(table, action, power) for action, power in counts)
            for branches, c in joint.items():
                law[branches] += jm.probs[table] * c
        return law

    def collapsed_law(self, state: int, powers: Sequence[int]) -> Law:
        """One step of E prod_i Z(state, A_i)^(m_i): the actions are drawn first, then coalesced."""
        assignments: dict[tuple[int, ...], float] = {(0,) * self.jm.num_actions: 1.0}
        for power in powers:
            drawn = defaultdict[tuple[int, ...], float](float)
            for counts, weight in assignments.items():
                for a in np.flatnonzero(self.policy[state]):
                    more = (*counts[:a], counts[a] + power, *counts[a + 1 :])
                    drawn[more] += weight * self.policy[state, a]
            assignments = drawn
        law = defaultdict[Branches, float](float)
        for counts, weight in assignments.items():
            taken = [(a, m) for a, m in enumerate(counts) if m]
            for branches, c in self.action_law(state, taken).items():
                law[branches] += weight * c
        return law

    @cached_property
    def system(self) -> tuple[Floats, sparse.csr_array, Ints]:
        """b (N,), A (N, N) sparse, and the multisets as sorted branch codes (N, n), -1 for none."""
        n, jm = self.order, self.jm
        if (jm.num_states * n + 1) ** n >= 2**63:
            raise ValueError(
                f"order {n} on {jm.num_states} states has too many coordinates to index"
            )
        signatures = [p for total in range(1, n + 1) for p in partitions(total)]
        law_starts = np.zeros(jm.num_states * len(signatures) + 1, dtype=np.int64)
        coefficients: list[float] = []
        codes: list[list[int]] = []
        for i, (state, powers) in enumerate(product(range(jm.num_states), signatures)):
            for branches, c in self.collapsed_law(state, powers).items():
                coefficients.append(c)
                codes.append(self._encode(branches))
            law_starts[i + 1] = len(codes)
        keys = [sum(m * (n + 1) ** j for j, m in enumerate(powers)) for powers in signatures]
        by_key = np.argsort(keys)
        budget = available_bytes() // 2
        constant, data, columns, starts, found = close_and_compile(
            np.array([self._encode(seed) for seed in self._seeds()], dtype=np.int64),
            law_starts, np.array(coefficients), np.array(codes, dtype=np.int64).reshape(-1, n),
            np.array(keys)[by_key], by_key, jm.num_states, n, budget // 12,
        )  # fmt: skip
        if starts[-1] < 0:
            raise MemoryError(
                f"order {n} on {jm.num_states} states needs more than the {gibibytes(budget)} that "
                f"are free: {len(found):,} coordinates were reached with more to come"
            )
        matrix = sparse.csr_array((data, columns, starts), shape=(len(found), len(found)))
        return constant, matrix, found

    def _seeds(self) -> Iterator[Branches]:
        """What is solved: all multisets of the orders that have few, and what queries lead to."""
        states, orders = range(self.jm.num_states), range(1, self.order + 1)
        few = [k for k in orders if num_multisets(self.jm.num_states, k) <= ALL_LIMIT]
        if self.order not in few:
            yield from self._same_state_successors()
        for powers in (p for total in few for p in partitions(total)):
            repeats = [(m, combinations_with_replacement(states, k))
                       for m, k in Counter(powers).items()]  # fmt: skip
            for chosen in product(*(picks for _, picks in repeats)):
                yield tuple(
                    (s, m) for (m, _), picks in zip(repeats, chosen, strict=True) for s in picks
                )

    def _same_state_successors(self) -> Iterator[Branches]:
        seen: set[Branches] = set()
        for state, k in product(range(self.jm.num_states), range(1, self.order + 1)):
            for actions in combinations_with_replacement(range(self.jm.num_actions), k):
                for branches in self.action_law(state, list(Counter(actions).items())):
                    if branches and branches not in seen:
                        seen.add(branches)
                        yield branches

    @cached_property
    def orders(self) -> Ints:
        """(N,) the order of each multiset."""
        codes = self.system[2]
        return np.where(codes >= 0, codes % self.order + 1, 0).sum(1)

    @cached_property
    def weights(self) -> Floats:
        """(N,) lambda_k of each multiset."""
        jm = self.jm
        lambdas = [norm_weight(k, jm.gamma, jm.reward_bound) for k in range(1, self.order + 1)]
        return np.array(lambdas)[self.orders - 1]

    @cached_property
    def _index(self) -> dict[bytes, int]:
        return {codes.tobytes(): i for i, codes in enumerate(self.system[2])}

    @cached_property
    def longest_sum(self) -> int:
        """How many terms one coordinate of T_n M sums at most."""
        return int(np.diff(self.system[1].indptr).max())

    def zero(self) -> Floats:
        """M_0 = 0."""
        return np.zeros(len(self.system[0]))

    def apply(self, state: Floats) -> Floats:
        """T_n."""
        constant, matrix, _ = self.system
        return np.asarray(constant + matrix @ state)

    def distance(self, new: Floats, old: Floats) -> float:
        """||new - old||_lambda over the multisets."""
        return float((np.abs(new - old) / self.weights).max())

    def moment(self, state: Floats, coordinates: Sequence[tuple[int, int]]) -> float:
        """E prod_i Z(s_i, a_i): one step of the law of the given state-actions."""
        actions = defaultdict[int, Counter[int]](Counter)
        for s, a in coordinates:
            actions[s][a] += 1
        law = multiply(self.action_law(s, list(counts.items())) for s, counts in actions.items())
        return float(sum(c * self._value(state, branches) for branches, c in law.items()))

    def average(self, moment: Callable[[list[tuple[int, int]]], float]) -> Floats:
        """(N,) any collection, given coordinate by coordinate, averaged over the policy."""
        allowed = [np.flatnonzero(row) for row in self.policy]
        values = np.zeros(len(self.system[2]))
        for i, codes in enumerate(self.system[2]):
            branches = [divmod(int(code), self.order) for code in codes if code >= 0]
            for actions in product(*(allowed[s] for s, _ in branches)):
                chosen = [(s, int(a), m + 1) for (s, m), a in zip(branches, actions, strict=True)]
                weight = np.prod([self.policy[s, a] for s, a, _ in chosen])
                values[i] += weight * moment([(s, a) for s, a, m in chosen for _ in range(m)])
        return values

    def _value(self, state: Floats, branches: Branches) -> float:
        if not branches:
            return 1.0  # M^(0) = 1
        index = self._index.get(np.array(self._encode(branches), dtype=np.int64).tobytes())
        if index is None:
            raise ValueError(
                f"this moment needs that of the successors {branches} (state, multiplicity), which "
                "no same-state query reaches; at this order and size only those were solved"
            )
        return float(state[index])

    def _encode(self, branches: Branches) -> list[int]:
        codes = sorted(s * self.order + m - 1 for s, m in branches)
        return codes + [-1] * (self.order - len(codes))


@dataclass(frozen=True)
class MultisetSource:
    """Coordinates of a collection that is held as multisets."""

    operator: MultisetOperator
    state: Floats

    def moment(self, coordinates: Sequence[tuple[int, int]]) -> float:
        """E of the product of the returns."""
        return self.operator.moment(self.state, coordinates)

    def covariance(self, mean: Floats) -> Floats:
        """(S, A, A) same-state covariances."""
        num_states, num_actions = mean.shape
        blocks = np.empty((num_states, num_actions, num_actions))
        for s, a in np.ndindex(mean.shape):
            for b in range(a, num_actions):
                value = self.moment([(s, a), (s, b)]) - mean[s, a] * mean[s, b]
                blocks[s, a, b] = blocks[s, b, a] = value
        return blocks

    def full_second(self) -> Floats:
        """(S, A, S, A)."""
        shape = self.operator.policy.shape
        full = np.empty(shape + shape)
        for x in np.ndindex(shape):
            for y in np.ndindex(shape):
                full[x + y] = self.moment([x, y]) if x <= y else full[y + x]
        return full


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


def num_multisets(num_states: int, order: int) -> int:
    """How many multisets of (state, multiplicity) have order 1 to `order`."""
    count = 0
    for total in range(1, order + 1):
        for powers in partitions(total):
            ways = 1
            for repeats in Counter(powers).values():
                ways *= comb(num_states + repeats - 1, repeats)
            count += ways
    return count
