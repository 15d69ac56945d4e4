"""What settles how fast in JIPE-2."""

from __future__ import annotations

import numpy as np
import pytest

import jmdp_lib as jl
from jmdp_lib.solvers.trace import covariance_rates, decay_rate, trace_jipe2


@pytest.mark.parametrize("coupling", ["joint", "independent"])
def test_trace_has_the_residuals_of_jipe2(coupling: str) -> None:
    jm = jl.windy_gridworld(3, gamma=0.8)
    sol = jl.jipe2(jm, jl.uniform_policy(jm), coupling=coupling, route="sweeps")
    trace = trace_jipe2(jm, jl.uniform_policy(jm), sol.iterations, coupling)
    np.testing.assert_allclose(trace.residuals, sol.residuals, rtol=0, atol=1e-13)


def test_trace_agrees_with_the_literal_operator() -> None:
    rng = np.random.default_rng(0)
    jm = jl.JMDP(rng.dirichlet([1, 1], 3), rng.uniform(-2, 2, (3, 2, 2)),
                 rng.integers(3, size=(3, 2, 2)), 0.7)  # fmt: skip
    policy = rng.dirichlet([1, 1], 3)
    trace = trace_jipe2(jm, policy, 4)
    mean, second = np.zeros((3, 2)), np.zeros((3, 2, 3, 2))
    for k in range(4):
        after = jl.apply_t2(jm, policy, mean, second)
        centred = [s - np.multiply.outer(m, m) for m, s in ((mean, second), after)]
        assert np.isclose(trace.mean[k], np.abs(after[0] - mean).max())
        assert np.isclose(trace.second[k], np.abs(after[1] - second).max())
        assert np.isclose(trace.covariance[k], np.abs(centred[1] - centred[0]).max())
        mean, second = after


def test_decay_rate_of_a_geometric_sequence() -> None:
    values = 5.0 * 0.7 ** np.arange(60)
    assert np.isclose(decay_rate(values), 0.7)
    values[:10] = 5.0
    assert np.isclose(decay_rate(values, first=10), 0.7)
    assert np.isclose(decay_rate(np.r_[values, np.full(50, 1e-16)], first=10), 0.7)


def test_decay_rate_needs_two_values() -> None:
    with pytest.raises(ValueError, match="found 1 of 3"):
        decay_rate([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="not finite"):
        decay_rate([1.0, np.nan])


def test_covariances_settle_at_the_slower_of_the_two_rates() -> None:
    grid, stock = jl.windy_gridworld(3), jl.inventory()
    for jm in (grid, stock):
        policy = jl.uniform_policy(jm)
        late = decay_rate(trace_jipe2(jm, policy, 300).covariance, first=100, floor=1e-12)
        assert np.isclose(late, max(covariance_rates(jm, policy)), atol=1e-3)
    by_means, by_noise = covariance_rates(grid, jl.uniform_policy(grid))
    assert by_means > by_noise
    by_means, by_noise = covariance_rates(stock, jl.uniform_policy(stock))
    assert by_means < by_noise == pytest.approx(stock.gamma**2)


def test_a_chain_is_exact_after_its_coins() -> None:
    chain = jl.coupled_reward_chain(6)
    assert covariance_rates(chain, jl.uniform_policy(chain)) == (0.0, 0.0)
    changes = trace_jipe2(chain, jl.uniform_policy(chain), 10).covariance
    assert (changes[:5] > 0.1).all()
    assert (changes[5:] < 1e-14).all()


def test_nothing_random_is_no_rate() -> None:
    calm = jl.windy_gridworld(2, gust_prob=0.0)
    assert covariance_rates(calm, jl.goal_policy(2)) == pytest.approx((0.0, 0.0))
