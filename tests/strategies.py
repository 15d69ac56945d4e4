"""Random problems for hypothesis: JMDPs with signed rewards, policies of every kind."""

import numpy as np
import pytest
from hypothesis import strategies as st

import jmdp_lib as jl

ROUTES = [{"route": "sweeps"}, {"route": "reachable"}, {"route": "dense"}, {"device": "cpu"}]
"""Ways to `jipe2`: tests of routes run all of them."""

COUPLINGS = ("joint", "independent", "common")
on_all_couplings = pytest.mark.parametrize("coupling", COUPLINGS)


def random_jmdp(rng, num_states=3, num_actions=2, num_tables=3, gamma=0.8, scale=1.0):
    """Dirichlet tables, some of probability zero, rewards in [-scale, scale], any successors."""
    probs = rng.dirichlet(np.full(num_tables, 0.7), size=num_states)
    if num_tables > 1:
        probs[0, 0] = 0.0  # ragged: state 0 has a table less
        probs[0] /= probs[0].sum()
    rewards = rng.uniform(-scale, scale, (num_states, num_tables, num_actions))
    successors = rng.integers(num_states, size=(num_states, num_tables, num_actions))
    return jl.JMDP(probs, rewards, successors, gamma)


def raised(jm, constant):
    """The model with a constant added to all rewards."""
    tables = jm.table_states, jm.probs, jm.rewards + constant, jm.next_states
    return jl.JMDP.from_tables(*tables, jm.num_states, jm.gamma)


def shared_noise_model(seed, num_states=3, num_actions=3, num_tables=3, gamma=0.7):
    """A random model whose states share their noise, so that all couplings are defined."""
    rng = np.random.default_rng(seed)
    shape = (num_states, num_tables, num_actions)
    probs = np.tile(rng.dirichlet(np.ones(num_tables)), (num_states, 1))
    after = rng.integers(num_states, size=shape)
    return jl.JMDP(probs, rng.uniform(-1.0, 1.0, shape), after, gamma)


def frozen_lake(gamma=0.95):
    """The tables of Gymnasium's lake: an action slips to the first, second or third of its list."""
    import gymnasium

    entries = gymnasium.make("FrozenLake-v1").unwrapped.P
    tables = [
        [[row[a][k % len(row[a])] for a in row] for k in range(3)] for row in entries.values()
    ]
    _, states, rewards, _ = np.moveaxis(tables, -1, 0)  # (S, K, A) each
    return jl.JMDP(np.full((16, 3), 1 / 3), rewards, states.astype(int), gamma)


def random_policy(rng, jm, deterministic=False):
    """Dirichlet rows, or one action per state."""
    if deterministic:
        return np.eye(jm.num_actions)[rng.integers(jm.num_actions, size=jm.num_states)]
    return rng.dirichlet(np.ones(jm.num_actions), size=jm.num_states)


@st.composite
def problems(draw, max_states=4, max_actions=3, max_tables=3, max_gamma=0.9):
    """(jm, policy, rng)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    jm = random_jmdp(
        rng,
        draw(st.integers(1, max_states), label="num_states"),
        draw(st.integers(1, max_actions), label="num_actions"),
        draw(st.integers(1, max_tables), label="num_tables"),
        draw(st.sampled_from([0.0, 0.3, 0.7, max_gamma]), label="gamma"),
        draw(st.sampled_from([0.5, 1.0, 3.0]), label="scale"),
    )
    return jm, random_policy(rng, jm, draw(st.booleans(), label="deterministic")), rng


def coupled(problem, coupling):
    """A problem whose states share their noise, if the coupling needs it."""
    jm, policy, rng = problem
    if coupling == "common":
        jm = shared_noise_model(rng, jm.num_states, jm.num_actions, gamma=jm.gamma)
    return jm, policy, rng


def implicit(jm):
    """The same model without an enumeration: its tables are a function of the state."""

    def tables(s):
        own = slice(*jm.starts[s : s + 2])
        return jm.probs[own], jm.rewards[own], jm.next_states[own].tolist()

    options = {"reward_range": jm.reward_range, "knows_noise": jm.knows_noise}
    return jl.large.ImplicitJMDP(tables, jm.num_actions, jm.gamma, **options)


class Plain:
    """A JMDP as a simulator with no more than the four names of the protocol."""

    def __init__(self, jm):
        self.num_states, self.num_actions, self.gamma = jm.num_states, jm.num_actions, jm.gamma
        self.jm = jm

    def query(self, state, actions, rng):
        return self.jm.query(state, actions, rng)


class Counting(Plain):
    """Counts its queries, and fails after a number of them."""

    queries = 0
    error = OSError("the licence server is gone")

    def __init__(self, jm, last=np.inf):
        super().__init__(jm)
        self.last = last

    def query(self, state, actions, rng):
        self.queries += 1
        if self.queries > self.last:
            raise self.error
        return super().query(state, actions, rng)


def arrays_of(jm, end=None):
    """A model with a noise, as a simulator of arrays.

    end: a state at which episodes end; steps from there would earn nan.
    """
    shape = (jm.num_states, -1, jm.num_actions)
    rewards, after = jm.rewards.reshape(shape).copy(), jm.next_states.reshape(shape)
    cumulative = jm.noise_probs.cumsum()
    if end is not None:
        rewards[end] = np.nan

    def step(states, actions, uniforms):
        tables = np.searchsorted(cumulative[:-1], uniforms, side="right")
        where = states, tables, actions
        over = () if end is None else (after[where] == end,)
        return rewards[where], after[where], *over

    sizes = {"num_actions": jm.num_actions, "gamma": jm.gamma, "num_states": jm.num_states}
    return jl.simulators.VectorSimulator(step, lambda n, rng: rng.random(n), **sizes)
