"""The range over all couplings: linear programs over whole tables, and couplings inside it."""

import sys

import numpy as np
import pytest
from brute import tables_of
from scipy.optimize import linprog
from strategies import random_jmdp, random_policy

import jmdp_lib as jl


def transported(jm, value, c, state, sign):
    """The least (sign 1) or largest E[(y_0 - mu_0)(y_1 - mu_1) + gamma^2 c(S'_0, S'_1)] over all
    joint distributions of the outcomes of two actions at a state, by a linear program."""
    outcomes = tables_of(jm, state)
    probs = np.array([p for p, _, _ in outcomes])
    after = np.array([x for _, _, x in outcomes])
    y = np.array([r for _, r, _ in outcomes]) + jm.gamma * value[after]
    y -= probs @ y
    costs = np.outer(*y.T) + jm.gamma**2 * c[np.ix_(*after.T)]
    each = np.eye(probs.size)
    rows = np.concatenate([np.kron(each, np.ones(probs.size)), np.kron(np.ones(probs.size), each)])
    solved = linprog(sign * costs.ravel(), A_eq=rows, b_eq=np.tile(probs, 2))
    assert solved.status == 0
    return sign * solved.fun


def between_states(jm, policy, variance, gap_variance):
    """c (S, S): on the diagonal from the variances of two actions and of their gap; elsewhere
    c = gamma^2 P c P', by a linear system."""
    kernel = np.einsum("sa,sat->st", policy, jm.marginal_mdp()[0])
    moves = jm.gamma**2 * np.kron(kernel, kernel)
    same = np.eye(jm.num_states, dtype=bool).ravel()
    moves[same] = 0.0
    blocks = (variance[:, :, None] + variance[:, None] - gap_variance) / 2.0
    source = np.diag(np.einsum("sa,sb,sab->s", policy, policy, blocks)).ravel()
    return np.linalg.solve(np.eye(same.size) - moves, source).reshape(len(kernel), -1)


@pytest.mark.slow
@pytest.mark.parametrize(("num_states", "num_tables"), [(1, 12), (2, 2), (2, 4), (3, 3)])
def test_two_actions_solve_the_optimality_equation(num_states, num_tables):
    """The extreme covariances of a state's two actions are those of the best joint distribution of
    one step, followed by the extremes at all states. Since the operator is monotone and contracts,
    one coupling attains them, and none goes beyond. Six models of each size: discounts from 0.1 to
    0.9, some policies deterministic."""
    rng = np.random.default_rng([num_states, num_tables])
    for gamma in np.linspace(0.1, 0.9, 6):
        jm = random_jmdp(rng, num_states, 2, num_tables, gamma)
        policy = random_policy(rng, jm, deterministic=rng.random() < 0.3)
        span = jl.laws.coupling_range(jm, policy, tol=1e-11)
        moments = jl.jipe2(jm, policy, tol=1e-11).moments
        variance, value = moments.variance, (policy * moments.mean).sum(1)
        for sign, array in ((-1.0, span.gap_variance_low), (1.0, span.gap_variance_high)):
            c = between_states(jm, policy, variance, array)
            for s in range(num_states):
                expected = variance[s].sum() - 2.0 * transported(jm, value, c, s, sign)
                assert array[s, 0, 1] == pytest.approx(expected, abs=1e-7)


def test_one_action_has_nothing_to_couple():
    jm = random_jmdp(np.random.default_rng(0), 3, 1, 2)
    assert not jl.laws.coupling_range(jm, np.ones((3, 1))).gap_variance_high.any()


@pytest.mark.parametrize("gamma", [0.9, 0.97])
def test_the_error_bound_is_nearly_attained(gamma, monkeypatch):
    """Guards 2 (gamma^2 moved + slack) / (1 - gamma^2): one state with so many actions that its
    branches hardly ever merge, after one round of policy iteration."""
    size = 60
    rewards = np.tile(np.array([-1.0, 1.0])[:, None], size)
    jm = jl.JMDP([[0.5, 0.5]], rewards[None], np.zeros((1, 2, size), int), gamma)
    fine = jl.laws.coupling_range(jm, policy := jl.uniform_policy(jm), tol=1e-12)
    assert fine.converged
    monkeypatch.setattr(sys.modules["jmdp_lib.laws.coupling_range"], "_ROUNDS", 1)
    with pytest.warns(jl.ConvergenceWarning, match="coupling_range stopped"):
        rough = jl.laws.coupling_range(jm, policy)
    assert not rough.converged
    names = "gap_variance_low", "gap_variance_high"
    off = max(np.abs(getattr(rough, name) - getattr(fine, name)).max() for name in names)
    assert off <= rough.error_bound * jl.norm_weight(2, gamma) <= 1.45 * off
