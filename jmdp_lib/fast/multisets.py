"""T_n for any order n (Section 5.3), on multisets of (state, multiplicity).

An order-k coordinate E[Z(x_1) ... Z(x_k)] is a set of *branches*: state-actions that are the same
are one random variable, so they are one branch with a multiplicity. Averaged over the policy, a
coordinate is a multiset {(s_1, m_1), ..., (s_j, m_j)} with m_1 + ... + m_j = k,

    F = E[ prod_i Z(s_i, A_i)^(m_i) ],        A_i ~ pi(. | s_i) independent.

In one step, branches at the same state that draw the same action coalesce, and branches at the same
state share the table. Each branch then becomes a sum over the number m - l of factors that pick the
reward,

    (R + gamma Z')^m = sum_l C(m, l) R^(m-l) gamma^l Z'^l          (eq. (33), M^(0) = 1).

States are independent of each other, so a multiset steps one state at a time. Multisets in which
some states have stepped are unknowns, too. This keeps the system sparse: a row has as many entries
as one state has outcomes, not the product of these numbers over all states of the multiset. With
common noise, all of this holds given the noise. On all multisets that can be reached, the larger
system is one affine map x -> b + A x.
"""

from __future__ import annotations

from collections import Counter
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
from jmdp_lib.fast.collapsed import entries_of, ragged
from jmdp_lib.fast.dense import largest_of
from jmdp_lib.machine import cached, hot, inline, progress, require
from jmdp_lib.model import JMDP, JOINT, Coupling
from jmdp_lib.moments import StateAction, norm_weight

_ENTRIES = 1 << 18  # largest number of entries of the matrix that are made at a time
_OUTCOMES = 1 << 20  # outcomes of states that are computed at a time


@dataclass(frozen=True, kw_only=True)
class System(Chain):
    """T_n as an affine map of E unknowns: closed under T_n, each divided by its lambda_k.

    Unknowns are N multisets, and multisets of which some states have stepped. One state of each
    steps by source + kernel @ x.

    rows: (E, n) codes of the unknowns. orders: (E,) k. weights: (E,) lambda_k of eq. (34). waiting:
    (E,) number of states that have yet to step, zero for the N multisets.
    """

    rows: Ints
    orders: Ints
    weights: Floats
    waiting: Ints

    def all_step(self, x: Any) -> Floats:
        """T_n (E,) of the multisets in x, (E,) or one number; the other unknowns follow exactly."""
        moved = x
        for _ in range(self.waiting.max(initial=0) + 1):
            moved = self.source + self.kernel @ np.where(self.waiting == 0, x, moved)
        return moved

    def residual(self, x: Floats) -> float:
        """Largest |T_n x - x| over the multisets."""
        return largest_of((self.all_step(x) - x)[self.waiting == 0])


class Index(NamedTuple):
    """Hash table of distinct rows of codes.

    rows: (Q, n), with capacity for Q rows. slots: position in `rows` by hash; -1 if free.
    """

    rows: Ints
    slots: Ints

    @classmethod
    def of(cls, rows: Ints, spare: int) -> Index:
        """Index of rows (q, n), with capacity for `spare` more."""
        size = len(rows) + spare
        index = cls(
            rows=np.empty((size, rows.shape[1]), np.int64),
            slots=np.full(1 << (2 * size).bit_length(), -1, np.int32),
        )
        _write(index, rows)
        return index


class Transitions(NamedTuple):
    """One step of L sets of branches, each at one state, with l outcomes in all.

    sets: rows of the sets. starts: (L + 1,) first outcome of each set. coefficients: (l,). rows:
    (l, n) branches after the step.
    """

    sets: Index
    starts: Ints
    coefficients: Floats
    rows: Ints


@dataclass(frozen=True)
class MultisetOperator:
    """T_n for one JMDP, policy (S, A) and coupling, acting on moments (N,) of multisets.

    A branch has a kind: s if the policy draws its action, S + s A + a if it is a state-action. In a
    multiset of which some states have stepped, branches that have yet to step have the kind plus
    (k + 1) (S + S A), for noise k if states share one, and k = 0 otherwise. With multiplicity m the
    code of a branch is kind * n + m - 1. A multiset is a row (n,) of sorted codes, with -1 in front
    if it has fewer than n branches.
    """

    jm: JMDP
    policy: Floats
    order: int
    coupling: Coupling = JOINT

    def __post_init__(self) -> None:
        branches = 2 * self._kinds * (self._noise.size + 1) + 2
        if branches**self.order >= 2**63:
            raise ValueError(
                f"order {self.order} on {self.jm.num_states} states has too many coordinates to "
                "number"
            )

    @property
    def _kinds(self) -> int:
        return self.jm.num_states + self.policy.size

    @cached_property
    def _noise(self) -> Floats:
        """Probabilities (K,) of the noise that states share; K = 1 if they share none."""
        return self.jm.noise_probs if self.coupling.across_states else np.ones(1)

    @cached_property
    def _states(self) -> Ints:
        """State of each kind of branch, (S + S A,)."""
        states = np.arange(self.jm.num_states)
        return np.concatenate([states, states.repeat(self.jm.num_actions)])

    @cached_property
    def _actions(self) -> sparse.csr_array:
        """Action probabilities (S + S A + 1, A) of each kind; the last row stands for no branch."""
        given = np.tile(np.eye(self.jm.num_actions), (self.jm.num_states, 1))
        return sparse.csr_array(np.concatenate([self.policy, given, given[:1]]))

    def rows_of(self, products: Iterable[Iterable[StateAction]]) -> Ints:
        """Rows (q, n) of the multisets of prod_i Z(s_i, a_i)."""
        num_states, num_actions = self.policy.shape
        rows = []
        for powers in map(Counter, products):
            kinds = ((num_states + s * num_actions + a, m) for (s, a), m in powers.items())
            codes = sorted(kind * self.order + m - 1 for kind, m in kinds)
            rows.append([-1] * (self.order - len(codes)) + codes)
        return np.reshape(np.array(rows, np.int64), (-1, self.order))

    def at_all_states(self, chosen: Iterable[tuple[int, ...]]) -> Ints:
        """Rows (S * q, n) of the q products of returns of chosen actions, state by state."""
        first = self.rows_of([(0, a) for a in x] for x in chosen)
        return self._repeated(first, self.jm.num_states, self.jm.num_actions)

    def _repeated(self, rows: Ints, count: int, step: int) -> Ints:
        """Copies (count * q, n) of rows (q, n): in copy i, i * step is added to every kind."""
        shift = np.arange(count)[:, None, None] * step * self.order
        return np.where(rows < 0, -1, rows + shift).reshape(-1, self.order)

    @cached_property
    def same_state(self) -> Ints:
        """Rows (q, n) of all moments of one state, up to the order."""
        actions = range(self.jm.num_actions)
        chosen = [x for k in range(1, self.order + 1) for x in combinations(actions, k)]
        return self.at_all_states(chosen)

    @cached_property
    def _transitions(self) -> Transitions:
        """One step of every set of branches that may be at one state."""
        powers = [[0] * (self.order - len(x)) + x for x in partitions(self.order) if x]
        drawn = self._repeated(np.array(powers) - 1, self.jm.num_states, 1)
        rows = np.concatenate([drawn, self.same_state])
        rows = self._repeated(rows, self._noise.size + 1, self._kinds)[len(rows) :]
        tables = 1 if self.coupling.across_states else int(np.diff(self.jm.starts).max())
        most = 2**self.order * tables * comb(self.jm.num_actions + self.order - 1, self.order)
        size = max(1, _OUTCOMES // most)
        steps = [self._outcomes(rows[i : i + size]) for i in range(0, len(rows), size)]
        sizes, coefficients, after = map(np.concatenate, zip(*steps, strict=True))
        return Transitions(Index.of(rows, 0), np.append(0, np.cumsum(sizes)), coefficients, after)

    def _outcomes(self, rows: Ints) -> tuple[Ints, Floats, Ints]:
        """One step of rows (q, n), all of whose branches are at one state and have yet to step.

        Returns the number of outcomes of each row, (q,), and the coefficients and rows of all
        outcomes.
        """
        kind = rows[:, -1] // self.order
        step = self._states[kind % self._kinds] * self._noise.size + kind // self._kinds - 1
        starts, probs = self._tables
        weights, codes = self._drawn(rows)
        shared = self.coupling.at_one_state
        for i in reversed(range(self.order)):
            if i == self.order - 1 or not shared:
                row, table = entries_of(starts, step[codes[:, -1]])
                weights, codes = weights[row] * probs[table], codes[row]
            row, factors, after = self._powers(table, codes[:, i])
            weights, codes, table = weights[row] * factors, codes[row], table[row]
            codes[:, i] = after
            if not shared:
                weights, codes = merged(weights, codes)
        codes[:, :-1].sort(axis=1)
        weights, codes = merged(weights, codes)
        return np.bincount(codes[:, -1], minlength=len(rows)), weights, codes[:, :-1]

    def _drawn(self, rows: Ints) -> tuple[Floats, Ints]:
        """Draw actions for the branches in rows (q, n); branches with equal actions coalesce.

        Returns the probability of each outcome, and (n + 1,) its branches, as sorted
        (action + 1) (n + 1) + multiplicity, padded with zeros in front, and its position in q.
        """
        width = max(self.order, self.jm.num_actions)
        powers = np.zeros((len(rows), width + 1), np.int64)
        powers[:, -1] = np.arange(len(rows))
        weights = np.ones(len(rows))
        for column in rows.T:
            own = column[powers[:, -1]]
            kinds = np.where(own < 0, self._kinds, own // self.order % self._kinds)
            row, entry = entries_of(self._actions.indptr, kinds)
            powers = powers[row]
            action = np.arange(row.size), self._actions.indices[entry]
            powers[action] += np.where(own < 0, 0, own % self.order + 1)[row]
            weights, powers = merged(weights[row] * self._actions.data[entry], powers)
        codes = powers[:, :-1]
        codes += (codes > 0) * np.arange(1, width + 1) * (self.order + 1)
        codes.sort(axis=1)
        return weights, powers[:, -self.order - 1 :]

    @cached_property
    def _tables(self) -> tuple[Ints, Floats]:
        """First table of each state and noise, (S K + 1,), and the probabilities of all tables."""
        if self.coupling.across_states:
            return np.arange(self.jm.probs.size + 1), np.ones(self.jm.probs.size)
        return self.jm.starts, self.jm.probs

    def _powers(self, table: Ints, codes: Ints) -> tuple[Ints, Floats, Ints]:
        """Expand (R + gamma Z')^m for actions and multiplicities in codes (q,), as in `_drawn`.

        table: (q,). Returns for each term its position in q, its coefficient, and the code of Z'^l,
        -1 for l = 0.
        """
        row, left = ragged(codes % (self.order + 1) + 1)
        action, power = np.divmod(codes[row], self.order + 1)
        which = table[row], action - 1
        orders = range(self.order + 1)
        choices = np.array([[comb(m, k) for k in orders] for m in orders])
        factors = choices[power, left] * self.jm.rewards[which] ** (power - left)
        factors *= self.jm.gamma**left
        after = np.where(left > 0, self.jm.next_states[which] * self.order + left - 1, -1)
        some = factors != 0.0
        return row[some], factors[some], after[some]

    def closure(self, seeds: Ints) -> System:
        """T_n on the seeds, distinct rows (q, n), and on all multisets that they lead to."""
        transitions = self._transitions
        most = self._noise.size * max(1, int(np.diff(transitions.starts).max()))
        world = self._noise, self._states, np.full((2, self.order), -1)
        index = Index.of(np.concatenate([np.full((1, self.order), -1), seeds]), 0)  # first M^(0)
        size = len(index.rows)
        steps: list[tuple[Any, ...]] = []
        done = 1
        with progress(None, f"multisets of order {self.order}", "multiset") as bar:
            while done < size:
                count = min(size - done, max(1, _ENTRIES // most))
                if size + count * most > len(index.rows):
                    self._require_room(size, done, steps)
                    index = Index.of(index.rows[:size], size + count * most)
                step = np.zeros(count), np.zeros(count, np.int64)
                entries = np.empty(count * most), np.empty(count * most, np.int32)
                size = _follow(index, size, done, transitions, world, (*step, *entries))
                done += count
                steps.append((*step, *(x[: step[1].sum()].copy() for x in entries)))
                bar.update(count)
        return self._assembled(index.rows[1:size].copy(), steps)

    def _assembled(self, rows: Ints, steps: list[tuple[Any, ...]]) -> System:
        """System of the unknowns in rows (E, n), from their steps as `closure` recorded them."""
        source, sizes, coefficients, columns = map(np.concatenate, zip(*steps, strict=True))
        orders = np.where(rows < 0, 0, rows % self.order + 1).sum(1)
        kinds = rows // self.order
        states = np.where(kinds < self._kinds, -1, self._states[kinds % self._kinds])
        waiting = (np.diff(states, axis=1, prepend=-1) != 0).sum(1)
        weights = norm_weight(2, self.jm.gamma, self.jm.reward_bound) ** (orders - 1.0)
        coefficients *= weights[columns] / np.repeat(weights, sizes)
        starts = np.append(0, np.cumsum(sizes))
        kernel = sparse.csr_array((coefficients, columns, starts), (source.size,) * 2)
        # Two noises may give equal entries, with which SciPy's search for components never ends.
        kernel.sum_duplicates()
        _, blocks = csgraph.connected_components(kernel, connection="strong")
        alone = (waiting == 0) & (np.bincount(blocks, waiting == 0) == 1)[blocks]
        while (inner := returning(kernel, blocks, alone)).nnz:
            kernel = kernel - inner + inner @ kernel  # sources stay: no way back leads to M^(0)
        # Successors first. Within a strong component: a multiset that is alone in it, then unknowns
        # by the number of states that have yet to step, then other multisets.
        ranks = np.where(waiting > 0, waiting, np.where(alone, 0, self.order))
        order = np.lexsort((ranks, blocks))
        place = np.argsort(order).astype(np.int32)
        kernel = kernel[order]
        kernel = sparse.csr_array((kernel.data, place[kernel.indices], kernel.indptr), kernel.shape)
        return System(
            *(kernel, 1.0, (source / weights)[order], np.arange(order.size)),
            rows=rows[order],
            orders=orders[order],
            weights=weights[order],
            waiting=waiting[order],
        )

    def _require_room(self, count: int, stepped: int, steps: list[tuple[Any, ...]]) -> None:
        """Refuse `count` unknowns that do not fit, judged by the entries of those that stepped."""
        entries = sum(step[2].size for step in steps)
        needed = count * (44.0 * entries / stepped + 16.0 * self.order + 200.0)
        what = f"order {self.order} on {self.jm.num_states:,} states with {count:,} multisets"
        require(needed, what, "use a lower order, or jipe2 for means and covariances")

    @cached_property
    def system(self) -> System:
        """System of all moments of one state, and of all multisets that they lead to."""
        return self.closure(self.same_state)


@inline
def _position(index, row, size):
    """Position of a row (n,) among the first `size` rows; a new row is written behind them."""
    rows, slots = index
    mixed = 0
    for code in row:
        mixed = ((mixed ^ (code + 1)) * 0x1000193) & 0xFFFFFFFF
    slot = (mixed ^ (mixed >> 15)) & (slots.size - 1)
    while slots[slot] >= 0:
        same = 0
        while same < row.size and rows[slots[slot], same] == row[same]:
            same += 1
        if same == row.size:
            break
        slot = (slot + 1) & (slots.size - 1)
    if slots[slot] < 0:
        slots[slot] = size
        for p in range(row.size):
            rows[size, p] = row[p]
    return slots[slot]


@cached(error_model="numpy")
def _write(index, rows):
    """Write distinct rows to an empty index."""
    for size in range(len(rows)):
        _position(index, rows[size], size)


@inline
def _split(row, shift, states, own):
    """Write the codes of the last state of a row to `own`, shifted; returns how many it keeps."""
    order = own.size
    state = states[row[order - 1] // order % states.size]
    first = 0 if shift else states.size * order  # of the codes that have yet to step
    own[:] = -1
    kept = order
    while kept > 0 and row[kept - 1] >= first:
        if states[row[kept - 1] // order % states.size] != state:
            break
        kept -= 1
        own[kept] = row[kept] + shift
    return kept


@inline
def _merge(row, kept, shift, moved, after):
    """Write the sorted union of the first codes of a row, shifted, and of `moved` to `after`."""
    other = after.size
    for p in range(after.size - 1, -1, -1):
        stays = row[kept - 1] + shift if kept and row[kept - 1] >= 0 else -1
        comes = moved[other - 1] if other else -1
        if stays > comes:
            kept -= 1
        else:
            other -= 1
        after[p] = max(stays, comes)


@hot
def _follow(index, size, first, transitions, world, out):
    """Step one state of each of `count` unknowns, from row `first` on; returns the rows in use.

    world: probabilities of the noise, states of the kinds, and two rows as scratch. out: constants
    (count,), numbers of entries (count,), and all entries with their columns.
    """
    noise, states, (own, after) = world
    constants, sizes, coefficients, columns = out
    begun = states.size * own.size  # codes from here on have yet to step
    n = 0
    for i in range(sizes.size):
        row = index.rows[first + i]
        starts = row[own.size - 1] < begun
        before = n
        for k in range(noise.size if starts else 1):
            shift = (k + 1) * begun if starts else 0
            kept = _split(row, shift, states, own)
            which = _position(transitions.sets, own, -1)
            for e in range(transitions.starts[which], transitions.starts[which + 1]):
                _merge(row, kept, shift, transitions.rows[e], after)
                column = _position(index, after, size)
                size += column == size
                coefficient = transitions.coefficients[e] * (noise[k] if starts else 1.0)
                if column:
                    coefficients[n] = coefficient
                    columns[n] = column - 1
                    n += 1
                else:
                    constants[i] += coefficient
        sizes[i] = n - before
    return size


def partitions(total: int, least: int = 1) -> Iterator[list[int]]:
    """Ascending lists of integers, each at least `least`, whose sum is at most the total."""
    yield []
    for first in range(least, total + 1):
        for others in partitions(total - first, first):
            yield [first, *others]


def returning(kernel: sparse.csr_array, blocks: Any, alone: Any) -> sparse.csr_array:
    """Entries of a matrix (E, E) by which a multiset leads back to itself, if alone in its block.

    Substituted, they become entries on the diagonal, and one sweep is exact. blocks: (E,) strong
    components. alone: (E,) true for the only multiset of a block.
    """
    entries = kernel.tocoo()
    row, column = entries.coords
    back = alone[row] & (row != column) & (blocks[row] == blocks[column])
    return sparse.csr_array((entries.data[back], (row[back], column[back])), kernel.shape)


def merged(weights: Floats, rows: Ints) -> tuple[Floats, Ints]:
    """Distinct rows (q, n) in order, the last column first, and the sums of their weights (q,)."""
    order = np.lexsort(rows.T)
    rows = rows[order]
    first = np.flatnonzero(np.append(len(rows) > 0, (rows[1:] != rows[:-1]).any(axis=1)))
    return np.add.reduceat(weights[order], first), rows[first]


def keys_of(rows: Ints) -> list[bytes]:
    """Dictionary key of each row (q, n): its bytes."""
    rows = np.ascontiguousarray(rows)
    return rows.view(f"V{rows.itemsize * rows.shape[-1]}").ravel().tolist()


@dataclass(frozen=True)
class MomentsFromMultisets:
    """Source of moments; multisets outside the first system are solved when they are read.

    residual_tol: tolerance in the paper's norm. solved: moment of each multiset, by `keys_of`.
    """

    operator: MultisetOperator
    residual_tol: float
    solved: dict[bytes, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Display name of the solver."""
        return f"JIPE-{self.operator.order}"

    def solve(self, system: System) -> Solved:
        """Solve a system for its moments, in units of lambda, where T_n contracts by gamma."""
        solution = solve(system, self.residual_tol, self.operator.jm.gamma, self.name)
        some = system.waiting == 0
        moments = (system.weights * solution.x)[some].tolist()
        self.solved.update(zip(keys_of(system.rows[some]), moments, strict=True))
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
        """Moments (S, q) of the chosen actions at each state."""
        rows = self.operator.at_all_states(chosen)
        return np.reshape(self._read(rows), (self.operator.jm.num_states, -1))

    def _read(self, rows: Ints) -> list[float]:
        """Moments (q,) of rows (q, n); if any has not been solved, all are solved now."""
        keys = keys_of(rows)
        if not self.solved.keys() >= {*keys}:
            self.solve(self.operator.closure(np.unique(rows, axis=0)))
        return [self.solved[key] for key in keys]

    def moment(self, coordinates: Sequence[StateAction]) -> float:
        """Expectation of the product of the returns."""
        return self._read(self.operator.rows_of([coordinates]))[0]

    def full_second(self) -> Floats:
        """Sigma (S, A, S, A)."""
        shape = self.operator.policy.shape
        pairs = product(np.ndindex(shape), repeat=2)
        return np.reshape(self._read(self.operator.rows_of(pairs)), shape * 2)
