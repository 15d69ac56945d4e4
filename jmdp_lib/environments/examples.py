"""Examples 1 and 2 of the paper: equal marginals, different joint laws."""

from __future__ import annotations

from jmdp_lib.model import JMDP


def example_1(gamma: float = 0.9) -> JMDP:
    """One state, two actions, U ~ Bernoulli(1/2), rewards R^(1) = U and R^(2) = 1 - U."""
    return JMDP.from_step(1, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(u == a), 0))


def example_2_1(gamma: float = 0.9) -> JMDP:
    """Two states, U ~ Bernoulli(1/2), both actions move to U: S'^(1) = S'^(2).

    The paper leaves the rewards open; here state 1 pays 1 and state 0 pays nothing, whatever the
    action, so that every dependence of the returns comes from the transitions.
    """
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), u))


def example_2_2(gamma: float = 0.9) -> JMDP:
    """As example_2_1, but the actions move apart: S'^(1) = U and S'^(2) = 1 - U."""
    return JMDP.from_step(2, 2, gamma, [0.5, 0.5], lambda s, a, u: (float(s), 1 - u if a else u))
