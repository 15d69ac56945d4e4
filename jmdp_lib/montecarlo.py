"""Monte Carlo on a JMDP, in compiled code: recursive pairs, and the whole joint return vector.

It knows nothing of moments, which is why it can check them. The couplings are those of `jipe2`.

*Recursive pairs* (`simulate_pairs`) play out the process whose moments $T_2$
computes. Two branches start at one state with two actions. While they are at the same state they
read the same outcome table; at distinct states their tables are independent, or with
coupling="common" those of the same noise; and once they stand at the same state with the same
action they are one branch for good (same reward, next state and next action ever after).

*Random maps* (`simulate_returns`) give the returns of all state-actions at once. One time step
draws a table for every state and a next action for every state-action x = (s, a). That is a random
map f of state-actions, with rewards R(x), and the maps of distinct time steps are independent. So

    Z(x) = R_0(x) + gamma Z_1(f_0(x)),

where Z_1 is made of the later maps in the same way. A sample starts at z = 0 and goes back in time,
z <- R + gamma z[f]. State-actions that a map sends to one state-action share all that follows. With
coupling="common" one noise draws the tables of all states; with "independent" every state-action
has a table of its own. Next actions are always drawn for each state-action by itself.

A further sampler is a kernel that fills rows of an array, and a function that hands chunks of it to
threads. Random streams belong to chunks, so threads do not change the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from jmdp_lib import checks
from jmdp_lib.checks import Floats, Ints, Policy, Seed
from jmdp_lib.machine import cached, hot, inline, progress, require
from jmdp_lib.model import JMDP, checked_coupling, require_tables
from jmdp_lib.operators.draws import alias_tables, cells, cumulative, find, pick, pick_cell

RUNS_PER_STREAM = 4096
_SAMPLES = 64  # of all returns, per random stream
_LONGEST = 10**7  # steps of a run, unless a horizon is given: about a second for a pair
_INDEPENDENT = 1
_COMMON = 2
_MODES = {"joint": 0, "independent": _INDEPENDENT, "common": _COMMON}


def simulate_pairs(
    jm: JMDP,
    policy: Policy,
    state: int,
    actions: tuple[int, int],
    num_pairs: int,
    seed: Seed = 0,
    horizon: int | None = None,
    truncation: float = 1e-7,
    coupling: str = "joint",
) -> Floats:
    """Play recursive pairs: returns (num_pairs, 2), rows $Z(s, a), Z(s, b)$ for actions = (a, b).

    The two actions may be the same: then so are the returns.

    seed: an integer, a sequence of integers or a SeedSequence; None draws fresh entropy.
    horizon: steps after which returns are cut; unless given, it follows from `truncation`.
    truncation: which share of the largest possible return may be cut off.
    coupling: which branches share a draw, as in `jipe2`.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> returns = jl.simulate_pairs(jm, jl.goal_policy(3), 4, (0, 2), num_pairs=20_000, seed=0)
        >>> gap = returns[:, 0] - returns[:, 1]
        >>> print(f"mean {gap.mean():.2f}, variance {gap.var():.2f}; exact are 1.96 and 0.68")
        mean 1.96, variance 0.67; exact are 1.96 and 0.68
    """
    steps = horizon_for(jm, truncation) if horizon is None else horizon
    matrix = checks.policy_matrix(jm, policy)
    state = checks.index("state", state, jm.num_states)
    if len(actions) != 2:
        raise ValueError(f"actions must be a pair of actions, got {actions!r}")
    chosen = [checks.index("action", action, jm.num_actions) for action in actions]
    num_pairs = checks.at_least("num_pairs", num_pairs, 1)
    steps = checks.at_least("horizon", steps, 1)
    model = BranchModel.of(jm, [matrix], checked_coupling(jm, coupling))
    start = BranchStart.of(state, chosen, [0, 0])
    plan = BranchPlan(model, start, BranchLimits(steps, jm.gamma, True))
    return play_branches(plan, num_pairs, seed, "num_pairs").returns


def horizon_for(jm: JMDP, truncation: float) -> int:
    """Steps after which at most this share of the largest return, r_max / (1 - g), is left."""
    other = "pass horizon= to simulate_pairs, a larger truncation=, or a model with a smaller gamma"
    return checks.derived_horizon(jm.gamma, truncation, _LONGEST, other)


class _Tables(NamedTuple):
    """Outcome tables, to draw from by `pick`: as in a JMDP, with cumulative probabilities."""

    starts: Ints
    cumulative: Floats
    rewards: Floats
    next_states: Ints


class _LoneBranch(NamedTuple):
    """The law of (R, S') of a branch that shares its state with no other, as alias tables.

    Such a branch needs neither its action nor its table by name: one draw gives reward and next
    state. starts: (Q S + 1,), for Q policies one after the other. threshold: (L,). rewards,
    next_states: (2 L,), by cell (see `draws.pick_cell`).
    """

    starts: Ints
    threshold: Floats
    rewards: Floats
    next_states: Ints


class BranchModel(NamedTuple):
    """A JMDP and Q policies, as the kernel reads them. policy_cdf: (Q S A,)."""

    num_states: int
    mode: int
    policy_cdf: Floats
    tables: _Tables
    law: _LoneBranch

    @classmethod
    def of(cls, jm: JMDP, policies: Sequence[Floats], coupling: str) -> BranchModel:
        """policies: (S, A) each. The coupling has been checked."""
        tables = _Tables(jm.starts, cumulative(jm.starts, jm.probs), jm.rewards, jm.next_states)
        policy_cdf = np.cumsum(np.concatenate(policies), 1).ravel()
        return cls(jm.num_states, _MODES[coupling], policy_cdf, tables, _lone_branch(jm, policies))


class BranchStart(NamedTuple):
    """Where m branches start.

    actions: (m,) their first actions; (0,) if these are drawn, by one number for all branches.
    kinds: (m,) which policy each of them follows. one: (m,) the first branch that each is one with.
    num_played: how many are not one with an earlier one. one_policy: whether all follow the same.
    """

    state: int
    actions: Ints
    kinds: Ints
    one: Ints
    num_played: int
    one_policy: bool

    @classmethod
    def of(cls, state: int, actions: Sequence[int], kinds: Sequence[int]) -> BranchStart:
        """Without actions, branches of one policy are one from the start."""
        one = [*range(len(kinds))] if actions else [*map(kinds.index, kinds)]
        return cls(
            state=state,
            actions=np.array(actions, np.int64),
            kinds=np.array(kinds, np.int64),
            one=np.array(one, np.int64),
            num_played=len(set(one)),
            one_policy=len(set(kinds)) == 1,
        )


class BranchLimits(NamedTuple):
    """Until when runs are played. whole: on to the horizon where all branches are one for good."""

    steps: int
    gamma: float
    whole: bool


class BranchPlan(NamedTuple):
    """What all runs have in common."""

    model: BranchModel
    start: BranchStart
    limits: BranchLimits


class BranchRuns(NamedTuple):
    """N runs of m branches.

    returns: (N, m). labels: (N, m), equal where branches have the same future after the horizon.
    queries: (N,) draws of tables: of one or more actions at one state.
    """

    returns: Floats
    labels: Ints
    queries: Ints


def play_branches(
    plan: BranchPlan, num_runs: int, seed: Seed, name: str = "num_runs"
) -> BranchRuns:
    """Play branches of a JMDP. The first runs are the same however many are asked for.

    name: what their number is called where there are too many.
    """
    size = plan.start.kinds.size
    require(8.0 * num_runs * (2 * size + 1), f"a sample of {name} = {num_runs:,}", "ask for fewer")
    runs = BranchRuns(
        returns=np.empty((num_runs, size)),
        labels=np.empty((num_runs, size), np.int64),
        queries=np.empty(num_runs, np.int64),
    )
    chunks = [slice(i, i + RUNS_PER_STREAM) for i in range(0, num_runs, RUNS_PER_STREAM)]
    root = checks.seed_sequence(seed)

    def fill(number: int) -> None:
        rng = checks.stream(root, "simulate_pairs", number)
        part: Any = (array[chunks[number]] for array in runs)
        _fill_runs(rng, BranchRuns(*part), _Branches.of(size), plan)

    with ThreadPoolExecutor(get_num_threads()) as pool:  # the kernel releases the GIL
        list(pool.map(fill, range(len(chunks))))
    return runs


def _lone_branch(jm: JMDP, policies: Sequence[Floats]) -> _LoneBranch:
    parts = []
    for kind, policy in enumerate(policies):
        weight = (jm.probs[:, None] * policy[jm.table_states]).ravel()
        owners = np.repeat(jm.table_states + kind * jm.num_states, jm.num_actions)
        outcome = np.stack([owners, jm.rewards.ravel(), jm.next_states.ravel()], axis=1)
        parts.append(np.column_stack([outcome, weight])[weight > 0])
    played = np.concatenate(parts)
    distinct, inverse = np.unique(played[:, :3], axis=0, return_inverse=True)
    probs = np.bincount(inverse.ravel(), played[:, 3])
    owners = np.arange(len(policies) * jm.num_states + 1)
    starts = np.searchsorted(distinct[:, 0], owners).astype(np.int64)
    threshold, alias = alias_tables(starts, probs)
    either = cells(alias)
    return _LoneBranch(starts, threshold, distinct[either, 1], distinct[either, 2].astype(np.int64))


@inline
def _settled(x: int, model: Any) -> bool:
    """Whether a branch at x stays for ever and earns the same: what is left is a geometric sum."""
    law = model.law
    low = law.starts[x]
    return law.starts[x + 1] - low == 1 and law.next_states[2 * low] == x % model.num_states


@inline
def _alone(rng: Any, x: int, weight: float, steps: int, gamma: float, model: Any) -> float:
    """What one branch earns in so many steps, times the weight of the first.

    x: its state, plus S times the number of its policy.
    """
    law = model.law
    base = x - x % model.num_states
    earned = 0.0
    step = 0
    while step < steps and not _settled(x, model):
        i = pick_cell(rng, law.starts[x], law.starts[x + 1], law.threshold)
        earned += weight * law.rewards[i]
        x = base + law.next_states[i]
        weight *= gamma
        step += 1
    if step < steps:
        left = steps - step
        rest = (1.0 - gamma**left) / (1.0 - gamma) if gamma < 1.0 else float(left)
        earned += weight * rest * law.rewards[2 * law.starts[x]]
    return earned


class _Branches(NamedTuple):
    """Where the branches of a run are, (m,) each.

    states, actions: of every branch. one: the first branch that it is one with for good; itself, if
    it is still played. source: the first branch that comes from the same state-action: both draw
    their next actions by one number. numbers: these. host: the first branch at the same state.
    shared: whether it shares a draw with another one. tables: what was drawn. rewards: of the step.
    """

    states: Ints
    actions: Ints
    one: Ints
    source: Ints
    numbers: Floats
    host: Ints
    shared: NDArray[np.bool_]
    tables: Ints
    rewards: Floats

    @classmethod
    def of(cls, size: int) -> _Branches:
        kinds = {"numbers": float, "rewards": float, "shared": bool}
        return cls(*(np.zeros(size, kinds.get(name, np.int64)) for name in cls._fields))


@inline
def _look_around(at: Any, named: bool) -> int:
    """Find out who shares a state; returns how many branches are at the state of an earlier one.

    named: whether all branches need their actions and tables by name.
    """
    meetings = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        at.host[j] = j
        at.shared[j] = named
        for i in range(j):
            if at.one[i] == i and at.states[i] == at.states[j]:
                at.host[j] = i
                at.shared[i] = True
                at.shared[j] = True
                meetings += 1
                break
    return meetings


@inline
def _choose(rng: Any, at: Any, model: Any, kinds: Any) -> None:
    """Actions of the branches that share a draw: of the others nobody needs to know them."""
    num_actions = model.tables.rewards.shape[1]
    for j in range(at.one.size):
        if at.one[j] != j or not at.shared[j]:
            continue
        if num_actions > 1:
            at.numbers[j] = rng.random() if at.source[j] == j else at.numbers[at.source[j]]
        low = (kinds[j] * model.num_states + at.states[j]) * num_actions
        at.actions[j] = find(at.numbers[j], model.policy_cdf, low, low + num_actions) - low


@inline
def _merge(at: Any, kinds: Any) -> int:
    """Find out who is at one state-action; returns how many branches are still to be played."""
    played = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        at.source[j] = j
        for i in range(j):
            here = at.one[i] == i and at.host[i] == at.host[j]
            if here and at.shared[j] and at.actions[i] == at.actions[j]:
                at.source[j] = i
                break
        if at.source[j] < j and kinds[at.source[j]] == kinds[j]:
            for k in range(j, at.one.size):
                if at.one[k] == j:
                    at.one[k] = at.source[j]
        else:
            played += 1
    return played


@inline
def _two_apart(rng: Any, at: Any, returns: Any, plan: Any, step: int, weight: float) -> Any:
    """Play two branches while they share no state; returns the step, and its weight, then.

    `_move` would do the same: here most of the time is spent, and nothing is looked up.
    """
    model, start, limits = plan
    law = model.law
    first = start.kinds[0] * model.num_states
    second = start.kinds[1] * model.num_states
    x = at.states[0]
    y = at.states[1]
    left = returns[0]
    right = returns[1]
    while step < limits.steps and x != y:
        i = pick_cell(rng, law.starts[first + x], law.starts[first + x + 1], law.threshold)
        j = pick_cell(rng, law.starts[second + y], law.starts[second + y + 1], law.threshold)
        left += weight * law.rewards[i]
        right += weight * law.rewards[j]
        x = law.next_states[i]
        y = law.next_states[j]
        weight *= limits.gamma
        step += 1
    returns[0] = left
    returns[1] = right
    at.states[0] = x
    at.states[1] = y
    at.source[1] = 1
    return step, weight


@inline
def _move(rng: Any, at: Any, model: Any, kinds: Any) -> int:
    """One step of all branches that are played; returns the number of queries."""
    tables = model.tables
    law = model.law
    noise = 0
    queries = 0
    for j in range(at.one.size):
        if at.one[j] != j:
            continue
        if not at.shared[j]:
            x = kinds[j] * model.num_states + at.states[j]
            cell = pick_cell(rng, law.starts[x], law.starts[x + 1], law.threshold)
            at.rewards[j] = law.rewards[cell]
            at.states[j] = law.next_states[cell]
            queries += 1
            continue
        x = at.states[j]
        leader = at.source[j] if model.mode == _INDEPENDENT else at.host[j]
        queries += leader == j
        if model.mode == _COMMON and j > 0:
            at.tables[j] = tables.starts[x] + noise
        elif leader < j:
            at.tables[j] = at.tables[leader]
        else:
            at.tables[j] = pick(rng, tables.cumulative, tables.starts[x], tables.starts[x + 1])
            noise = at.tables[j] - tables.starts[x]
        at.rewards[j] = tables.rewards[at.tables[j], at.actions[j]]
        at.states[j] = tables.next_states[at.tables[j], at.actions[j]]
    return queries


@inline
def _begin(at: Any, returns: Any, start: Any) -> None:
    """All branches at the start, with nothing earned."""
    for j in range(at.one.size):
        returns[j] = 0.0
        at.states[j] = start.state
        at.one[j] = start.one[j]
        at.source[j] = j if start.actions.size else 0
        if start.actions.size:
            at.actions[j] = start.actions[j]


@hot
def _fill_runs(rng: Any, runs: Any, at: Any, plan: Any) -> None:
    """Fill the rows of `BranchRuns`. at: scratch."""
    model, start, limits = plan
    size = start.kinds.size
    for run in range(runs.queries.size):
        returns = runs.returns[run]
        _begin(at, returns, start)
        played = start.num_played
        weight = 1.0
        step = 0
        queries = 0
        while step < limits.steps and (played > 1 or (step == 0 and start.actions.size > 0)):
            if size == 2 and model.mode != _COMMON and at.states[0] != at.states[1]:
                queries -= 2 * step
                step, weight = _two_apart(rng, at, returns, plan, step, weight)
                queries += 2 * step
                continue
            given = step == 0 and start.actions.size > 0
            meetings = _look_around(at, given or model.mode == _COMMON)
            if not given:
                if start.one_policy and meetings == played - 1 and _settled(at.states[0], model):
                    break
                _choose(rng, at, model, start.kinds)
            played = _merge(at, start.kinds)
            if played == 1 and not limits.whole:
                break
            queries += _move(rng, at, model, start.kinds)
            for j in range(size):
                returns[j] += weight * at.rewards[at.one[j]]
            weight *= limits.gamma
            step += 1
        left = limits.steps - step
        if left > 0 and limits.whole:  # from here on all branches earn the same
            x = start.kinds[0] * model.num_states + at.states[0]
            earned = _alone(rng, x, weight, left, limits.gamma, model)
            for j in range(size):
                returns[j] += earned
            queries += left
        for j in range(size):
            runs.labels[run, j] = at.one[j] if left == 0 else 0
        runs.queries[run] = queries


def simulate_returns(
    jm: JMDP,
    policy: Policy,
    num_samples: int,
    seed: Seed = 0,
    coupling: str = "joint",
    truncation: float = 1e-7,
) -> Floats:
    """Sample the joint returns of all state-actions: (N, S, A), one row $Z$ for every sample.

    Within a sample all returns belong to one world, so any covariance of any two state-actions, and
    the law of any function of them, can be estimated. For two actions of one state
    `simulate_pairs` is much faster.

    seed: an integer, a sequence of integers or a SeedSequence; None draws fresh entropy.
    coupling: which state-actions share a draw, as in `jipe2`.
    truncation: which share of the largest possible return may be cut off.

    The first samples are the same however many are asked for.

    Example:
        >>> import jmdp_lib as jl
        >>> import numpy as np
        >>> jm = jl.windy_gridworld(size=3, gamma=0.9)
        >>> z = jl.simulate_returns(jm, jl.goal_policy(3), num_samples=20_000, seed=0)
        >>> z.shape
        (20000, 9, 4)
        >>> gap = z[:, 4, 0] - z[:, 4, 2]
        >>> print(f"mean {gap.mean():.2f}, variance {gap.var():.2f}; exact are 1.96 and 0.68")
        mean 1.97, variance 0.67; exact are 1.96 and 0.68
        >>> print(f"of two states: {np.cov(z[:, 3, 1], z[:, 6, 0])[0, 1]:.2f}; exact is 0.12")
        of two states: 0.12; exact is 0.12
    """
    require_tables("simulate_returns", jm)
    matrix = checks.policy_matrix(jm, policy)
    num_samples = checks.at_least("num_samples", num_samples, 1)
    mode = _MODES[checked_coupling(jm, coupling)]
    steps = horizon_for(jm, truncation)
    root = checks.purpose_seed(seed, "simulate_returns")
    threads = get_num_threads()
    words = (num_samples + threads + 8) * matrix.size + 8 * jm.probs.size
    what = f"a sample of num_samples = {num_samples:,} times {matrix.size:,} state-actions"
    require(8.0 * words, what, "ask for fewer")
    returns = np.empty((num_samples, matrix.size))
    laws = (_table_law(jm), _action_law(matrix))
    maps = _Maps(steps, mode, jm.gamma, jm.rewards, jm.next_states, *laws)

    def fill(chunk: int) -> None:
        out = returns[chunk * _SAMPLES : (chunk + 1) * _SAMPLES]
        rng = checks.generator(root, chunk)
        _fill_samples(rng, out, np.empty(matrix.size), maps)

    chunks = range(-(-num_samples // _SAMPLES))
    with (
        ThreadPoolExecutor(threads) as pool,  # the kernel releases the GIL
        progress(len(chunks), "simulate_returns", unit="chunk") as bar,
    ):
        for _ in pool.map(fill, chunks):
            bar.update()
    return returns.reshape(num_samples, *matrix.shape)


class _Law(NamedTuple):
    """One law for every state, to draw from by `pick_cell`.

    starts: (S + 1,). threshold: (L,). meaning: (2 L,), what each cell stands for.
    """

    starts: Ints
    threshold: Floats
    meaning: Ints


def _table_law(jm: JMDP) -> _Law:
    """The law of every state's table, whose cells mean tables."""
    threshold, alias = alias_tables(jm.starts, jm.probs)
    return _Law(jm.starts, threshold, cells(alias))


def _action_law(policy: Floats) -> _Law:
    """The law of every state's action, whose cells mean state-actions s * A + a.

    Actions of probability zero are left out: a deterministic policy draws nothing.
    """
    played = np.flatnonzero(policy)
    starts = np.concatenate([[0], np.cumsum((policy > 0).sum(1))])
    threshold, alias = alias_tables(starts, policy.ravel()[played])
    return _Law(starts, threshold, played[cells(alias)])


class _Maps(NamedTuple):
    """What all random maps have in common."""

    steps: int
    mode: int
    gamma: float
    rewards: Floats
    next_states: Ints
    tables: _Law
    actions: _Law


@cached(nogil=True)
def _fill_samples(rng: Any, out: Any, scratch: Any, maps: Any) -> None:
    """Fill out (n, S * A) with n samples. scratch: room for one of them."""
    steps, mode, gamma, rewards, next_states, tables, actions = maps
    starts = tables.starts
    num_states = starts.size - 1
    num_actions = rewards.shape[1]
    for sample in range(out.shape[0]):
        z = out[sample]
        after = scratch
        z[:] = 0.0
        for _ in range(steps):
            z, after = after, z
            k = 0
            if mode == _COMMON:  # noise k is table k of every state
                k = tables.meaning[pick_cell(rng, starts[0], starts[1], tables.threshold)]
            for s in range(num_states):
                low = starts[s]
                high = starts[s + 1]
                table = low + k
                if mode != _COMMON:
                    table = tables.meaning[pick_cell(rng, low, high, tables.threshold)]
                for a in range(num_actions):
                    if mode == _INDEPENDENT and a > 0:
                        table = tables.meaning[pick_cell(rng, low, high, tables.threshold)]
                    x = next_states[table, a]
                    low_x = actions.starts[x]
                    cell = pick_cell(rng, low_x, actions.starts[x + 1], actions.threshold)
                    then = after[actions.meaning[cell]]
                    z[s * num_actions + a] = rewards[table, a] + gamma * then
        if steps % 2 == 1:  # the last step wrote to the scratch
            out[sample] = z
