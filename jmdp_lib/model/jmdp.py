"""The joint Markov decision process (Definition 4.3).

A JMDP is (S, A, gamma, J) where J(. | s) is a distribution of *outcome tables*

    ((R^(a), S'^(a)))_{a in A},

the outcome of every action under the same realised randomness. Here J(. | s) has finite
support: state s owns the tables starts[s] .. starts[s+1] - 1, each with a probability, and each
table holds reward and next state *together* for every action (the marginal kernels P_R and P_S
alone would not fix how R and S' depend on each other). Tables of distinct states, and of the same
state at different times, are independent: the one-step coupling regime of Section 4. Where all
states have one distribution of tables, `coupling="common"` lets them share the draw of a time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import ReadOnly, rounding_of
from jmdp_lib.model.counts import counted_tables
from jmdp_lib.model.coupling import Coupling
from jmdp_lib.model.quantiles import quantile_tables
from jmdp_lib.model.simulator import Simulator, check_simulator, draw_index
from jmdp_lib.model.tables import is_product, tables_of_step
from jmdp_lib.randomness import RNG


@dataclass(frozen=True, eq=False)
class JMDP(ReadOnly):
    """A finite joint MDP (Definition 4.3), immutable, with T outcome tables sorted by state.

    State s draws table k with probability table_probs[s, k]; action a then earns rewards[s, k, a]
    and moves to next_states[s, k, a]. Tables of probability zero are dropped once they are checked,
    so states may have different numbers of tables. `from_tables` takes them stacked instead.
    All arrays are read-only.

    Args:
        table_probs: (S, K), each row sums to one.
        rewards: (S, K, A).
        next_states: (S, K, A), integers below S.
        gamma: discount factor in [0, 1).

    Attributes:
        gamma: discount factor in [0, 1).
        starts: (S + 1,) the tables of state s are those from starts[s] up to starts[s + 1] - 1.
        probs: (T,) probability of each table in its state.
        rewards: (T, A) reward of each action in each table.
        next_states: (T, A) next state of each action in each table.
        queries_per_state: number of queries in which the tables of each state were counted; None if
            they are exact.
        knows_noise: False if table k of a state is not the outcome of a noise k, see `noise_probs`.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.JMDP([[0.5, 0.5]], [[[1, 0], [0, 1]]], [[[0, 0], [0, 0]]], gamma=0.9)
        >>> jm
        JMDP(num_states=1, num_actions=2, num_tables=2, gamma=0.9)
        >>> rewards, next_states = jm.query(0, [0, 1], np.random.default_rng(0))
        >>> rewards.tolist(), next_states.tolist()
        ([0.0, 1.0], [0, 0])
        >>> transition_probs, mean_rewards = jm.marginal_mdp()
        >>> mean_rewards.tolist(), jm.is_coupled
        ([[0.5, 0.5]], True)
    """

    gamma: float
    starts: Ints
    probs: Floats
    rewards: Floats
    next_states: Ints
    queries_per_state: int | None = None
    knows_noise: bool = True

    def __init__(
        self, table_probs: ArrayLike, rewards: ArrayLike, next_states: ArrayLike, gamma: float
    ) -> None:
        gamma = checks.discount(gamma)
        axes = ("state", "table", "action")
        probs = checks.distributions("table_probs", table_probs, *axes[:2])
        reward, successor = _checked_tables(rewards, next_states, axes, probs.shape, len(probs))
        drawn = np.nonzero(probs)
        starts = np.searchsorted(drawn[0], np.arange(len(probs) + 1))
        tables = {"probs": probs[drawn], "rewards": reward[drawn], "next_states": successor[drawn]}
        self.__setstate__({"gamma": gamma, "starts": starts} | tables)

    @classmethod
    def _of(cls, **fields: Any) -> JMDP:
        """A model from its fields, which have been checked."""
        jm = cls.__new__(cls)
        jm.__setstate__(fields)
        return jm

    def _with(self, **changes: Any) -> JMDP:
        """This model with some fields replaced."""
        return self._of(**self.__getstate__() | changes)

    def with_gamma(self, gamma: float) -> JMDP:
        """This model with another discount factor.

        Args:
            gamma: the discount factor, in [0, 1).

        Example:
            >>> import jmdp_lib as jl
            >>> short = jl.windy_gridworld(size=3, gamma=0.95).with_gamma(0.5)
            >>> short.gamma, jl.windy_gridworld(size=3, gamma=0.95).gamma
            (0.5, 0.95)
        """
        return self._with(gamma=checks.discount(gamma))

    @classmethod
    def from_tables(
        cls,
        states: ArrayLike,
        probs: ArrayLike,
        rewards: ArrayLike,
        next_states: ArrayLike,
        num_states: int,
        gamma: float,
    ) -> JMDP:
        """Tables stacked in any order.

        Args:
            states: (T,) the state that draws each table.
            probs: (T,) probability of each table; those of a state sum to one.
            rewards: (T, A).
            next_states: (T, A), integers below num_states.
            num_states: |S|.
            gamma: discount factor in [0, 1).

        Example:
            >>> import jmdp_lib as jl
            >>> jm = jl.JMDP.from_tables(
            ...     states=[0, 0, 1], probs=[0.5, 0.5, 1.0], rewards=[[1, 0], [0, 1], [0, 0]],
            ...     next_states=[[1, 1], [1, 1], [1, 1]], num_states=2, gamma=0.9)
            >>> jm.num_states, jm.num_actions, jm.table_states.tolist(), jm.is_coupled
            (2, 2, [0, 0, 1], True)
        """
        gamma = checks.discount(gamma)
        num_states = checks.at_least("num_states", num_states, 1)
        state = checks.integers("states", states, "table", below=num_states)
        prob = checks.floats("probs", probs, "table", shape=state.shape)
        axes = ("table", "action")
        reward, successor = _checked_tables(rewards, next_states, axes, state.shape, num_states)
        checks.refuse("probs", prob, prob < 0, "is negative", ["table"])
        totals: Floats = np.bincount(state, prob, minlength=num_states).astype(float)
        checks.sums_to_one("probs", probs, totals, ["state"])
        order = np.argsort(state, kind="stable")
        order = order[prob[order] > 0]
        state = state[order]
        return cls._of(
            gamma=gamma,
            starts=np.searchsorted(state, np.arange(num_states + 1)),
            probs=prob[order] / totals[state],
            rewards=reward[order],
            next_states=successor[order],
        )

    @classmethod
    def from_step(
        cls,
        num_states: int,
        num_actions: int,
        gamma: float,
        noise_probs: ArrayLike,
        step: Callable[[int, int, int], tuple[float, int]],
    ) -> JMDP:
        """A model from a step function and the distribution of its noise (Assumption 4.5).

        Args:
            num_states: |S|.
            num_actions: |A|.
            gamma: discount factor in [0, 1).
            noise_probs: (K,) probability of each noise $u$ in 0, ..., K - 1. It is drawn once per
                table, *before* any action is looked at, and afresh for every state and time. All
                states have one distribution of the noise; they share its draws only with
                `coupling="common"`.
            step: step(s, a, u) -> (reward, next_state), $r = g(s, a, u)$ and $s' = h(s, a, u)$. It
                must be pure: all of its randomness is in u. It is called once for every (s, a, u),
                and for a few of them twice more to see whether it is pure.

        Example:
            >>> import jmdp_lib as jl
            >>> def step(state, action, rain):
            ...     return (-0.2 if action == 0 else -float(rain)), state
            ...
            >>> jm = jl.JMDP.from_step(1, 2, 0.9, [0.7, 0.3], step)
            >>> jm.noise_probs.tolist()
            [0.7, 0.3]
            >>> print(f"{jl.jipe2(jm, [0]).moments.gap_mean[0, 0, 1]:.2f} for the umbrella")
            0.10 for the umbrella
        """
        gamma = checks.discount(gamma)
        return cls(*tables_of_step(num_states, num_actions, noise_probs, step), gamma)

    @classmethod
    def from_simulator(
        cls, simulator: Simulator, queries_per_state: int, *, rng: RNG = None
    ) -> JMDP:
        """The empirical model, counted in repeated queries of all actions in every state.

        Equal answers are one table, whose probability is its share of the queries. Statistics of
        this model are estimates. Every state has a random stream of its own.

        Args:
            simulator: an object with num_states, num_actions, gamma and query.
            queries_per_state: the number of queries, 2 or more.
            rng: an integer, a SeedSequence or a Generator; None draws fresh entropy.

        Example:
            >>> import jmdp_lib as jl
            >>> shop = jl.inventory(capacity=2, max_order=1, gamma=0.9)
            >>> counted = jl.JMDP.from_simulator(shop, queries_per_state=500, rng=0)
            >>> models = (shop, counted)
            >>> gaps = [jl.jipe2(jm, [1, 0, 0]).moments.gap_mean[0, 1, 0] for jm in models]
            >>> print(f"exact {gaps[0]:.2f}, counted {gaps[1]:.2f}")
            exact 1.88, counted 1.89
        """
        check_simulator(simulator)
        count = checks.at_least("queries_per_state", queries_per_state, 2)
        jm = cls.from_tables(*counted_tables(simulator, count, rng), simulator.gamma)
        return jm._with(queries_per_state=count, knows_noise=False)

    @classmethod
    def from_mdp(cls, transition_probs: ArrayLike, rewards: ArrayLike, gamma: float) -> JMDP:
        """A model with the marginals of an MDP, in which luck for one action is luck for all.

        One uniform number picks the outcomes of all actions. Those of each action are ordered from
        worst to best, by $r + gamma v(s')$ with $v$ the value of the uniform policy; the order of
        states matters only for outcomes that tie. For another joint distribution, list its tables
        in `from_tables`. Independent actions need no tables: `jipe2(coupling="independent")`
        evaluates any JMDP as if its actions were independent.

        Args:
            transition_probs: (S, A, S).
            rewards: (S, A), or (S, A, S) if they depend on the next state.
            gamma: discount factor in [0, 1).

        Example:
            >>> import jmdp_lib as jl
            >>> moves = [[[0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]]
            >>> jm = jl.JMDP.from_mdp(moves, [[0, 0], [1, 1]], gamma=0.5)
            >>> print(jl.jipe2(jm, [0, 0]).moments.correlation[0, 0, 1].round(3))
            1.0
        """
        gamma = checks.discount(gamma)
        tables = quantile_tables(transition_probs, rewards, gamma)
        return cls.from_tables(*tables, gamma)._with(knows_noise=False)

    def __repr__(self) -> str:
        return (
            f"JMDP(num_states={self.num_states}, num_actions={self.num_actions}, "
            f"num_tables={self.probs.size}, gamma={self.gamma})"
        )

    @property
    def num_states(self) -> int:
        """The number of states, $|S|$."""
        return self.starts.size - 1

    @property
    def num_actions(self) -> int:
        """The number of actions, $|A|$."""
        return int(self.rewards.shape[1])

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """The least and the largest reward of any table, (lo, hi)."""
        return float(self.rewards.min()), float(self.rewards.max())

    @cached_property
    def reward_bound(self) -> float:
        """$r_{max}$, the largest $|R|$; one if all rewards are zero.

        All accuracies are relative to it. The paper, whose rewards are in [0, 1], has 1.
        """
        return float(np.abs(self.reward_range).max()) or 1.0

    @cached_property
    def reward_offset(self) -> float:
        """The common offset of all rewards: the smallest if they have one sign, else zero."""
        low, high = self.reward_range
        return min(max(low, 0.0), high)

    @cached_property
    def without_offset(self) -> JMDP:
        """This model without `reward_offset`, which changes no gap; solvers work on it.

        All of its returns are smaller by `return_offset`, which then costs no digits. A reward that
        differs from the offset by rounding alone becomes zero.
        """
        if self.reward_offset == 0.0:
            return self
        rewards = self.rewards - self.reward_offset
        rewards[np.abs(rewards) <= rounding_of(0) * self.reward_bound] = 0.0
        return self._with(rewards=rewards)

    @property
    def return_offset(self) -> float:
        """The share of `reward_offset` in every return."""
        return self.reward_offset / (1.0 - self.gamma)

    @cached_property
    def table_states(self) -> Ints:
        """The state (T,) that owns each table."""
        return np.repeat(np.arange(self.num_states), np.diff(self.starts))

    @cached_property
    def noise_probs(self) -> Floats:
        """Probabilities (K,) of the noise that all states share: noise k is table k of every state.

        Models of `from_step` have one, and so have arrays in which every state lists the same
        probabilities in the same order; tables of probability zero do not count. All other models
        are refused, since their tables do not say which of them belong to one noise. So are those
        of `from_mdp` and `from_simulator`, whatever their tables are.
        """
        require_noise(self)
        return self.probs[: self.starts[1]]

    @cached_property
    def averaging(self) -> sparse.csr_array:
        """Sparse (S, T): row s has the probabilities of its tables; averaging @ f is $E[f | s]$."""
        return sparse.csr_array((self.probs, np.arange(self.probs.size), self.starts))

    @cached_property
    def transitions(self) -> sparse.csr_array:
        """Sparse (S * A, S): marginal transitions of every state-action, row s * A + a."""
        rows = self.table_states[:, None] * self.num_actions + np.arange(self.num_actions)
        shape = (self.num_states * self.num_actions, self.num_states)
        weights = np.repeat(self.probs, self.num_actions)
        entries = weights, (rows.ravel(), self.next_states.ravel())
        kernel = sparse.csr_array(entries, shape=shape)
        checks.frozen(kernel.data)
        return kernel

    def query(
        self, state: int, actions: Sequence[int], rng: np.random.Generator
    ) -> tuple[Floats, Ints]:
        """One draw of the joint sample-transition model $J_m$, eq. (6): all m actions, one table.

        One uniform number draws the table, whatever the actions are. To execute one of the actions
        and to forget the others is ordinary interaction with an MDP.

        Args:
            state: the state of the query.
            actions: distinct actions, m of them.
            rng: a Generator of NumPy, from which the table is drawn.

        Returns:
            Rewards (m,) and next states (m,).
        """
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"rng must be a numpy.random.Generator, got {rng!r}")
        state = checks.index("state", state, self.num_states)
        columns = checks.distinct_actions(actions, self.num_actions)
        first = self.starts[state]
        own = self.probs[first : self.starts[state + 1]]
        table = first + draw_index(own.cumsum(), rng)
        return self.rewards[table, columns], self.next_states[table, columns]

    def marginal_mdp(self) -> tuple[Floats, Floats]:
        """The MDP without the coupling, eq. (5).

        Returns:
            Transitions (S, A, S) and mean rewards (S, A).
        """
        shape = (self.num_states, self.num_actions, self.num_states)
        return self.transitions.toarray().reshape(shape), self.averaging @ self.rewards

    @cached_property
    def is_coupled(self) -> bool:
        """True in a coupled-dynamics environment (Definition 4.2).

        That is one with a state at which the joint distribution of all actions is not a product.
        """
        outcomes = np.stack([self.rewards, self.next_states], axis=-1)  # (T, A, 2)
        by_state = (np.split(array, self.starts[1:-1]) for array in (self.probs, outcomes))
        return not all(map(is_product, *by_state))


def require_tables(solver: str, model: object) -> None:
    """Refuse a model without outcome tables, and say what to use instead of `solver`."""
    if not isinstance(model, JMDP):
        countable = hasattr(model, "query") and hasattr(model, "num_states")
        counts = "`JMDP.from_simulator` counts the tables of this one; " if countable else ""
        raise TypeError(
            f"{solver} needs a JMDP, whose outcome tables are given, got {model!r}. {counts}"
            "`jl.simulators.estimate_gaps` estimates the gaps of any simulator; `JMDP.from_step` "
            "and `JMDP.from_mdp` make a JMDP from a known model"
        )


def require_noise(model: Any) -> None:
    """Refuse a model unless all of its states share one noise.

    It must declare that (`knows_noise`), and a JMDP must have the same probabilities in all states.
    """
    if not hasattr(model, "knows_noise"):
        raise ValueError(
            'coupling="common" needs a JMDP: a query draws the noise of one state, not of two'
        )
    if not model.knows_noise:
        raise ValueError(
            'coupling="common" needs a declared noise, and this model, like those of from_mdp and '
            "from_simulator, does not say which tables of two states belong to one noise. Use "
            'JMDP.from_step, or simulate: estimate_gaps(simulator, ..., coupling="common")'
        )
    if not isinstance(model, JMDP):
        return
    first = model.probs[: model.starts[1]]
    unlike = np.diff(model.starts) != first.size
    if not unlike.any():
        unlike = np.abs(model.probs.reshape(-1, first.size) - first).max(1) > 1e-12
    if unlike.any():
        s = int(unlike.argmax())
        own = model.probs[model.starts[s] : model.starts[s + 1]]
        raise ValueError(
            'coupling="common" needs one distribution of tables in all states, as from_step gives: '
            f"state {s} has the probabilities {own.round(6)}, state 0 {first.round(6)}"
        )


def checked_coupling(model: object, name: str | Coupling) -> Coupling:
    """The coupling that a user names, if the model has it.

    Only a model that knows its noise (`JMDP.noise_probs`) has draws that distinct states share.
    """
    coupling = Coupling.named(name)
    if coupling.across_states:
        require_noise(model)
    return coupling


def _checked_tables(
    rewards: ArrayLike,
    next_states: ArrayLike,
    axes: Sequence[str],
    shape: tuple[int, ...],
    num_states: int,
) -> tuple[Floats, Ints]:
    """Check rewards and next states, arrays of the given shape plus a last axis for actions."""
    reward = checks.floats("rewards", rewards, *axes, shape=(*shape, None))
    checks.reward_unit("rewards", float(np.abs(reward).max()))
    return reward, checks.integers(
        "next_states", next_states, *axes, shape=reward.shape, below=num_states
    )
