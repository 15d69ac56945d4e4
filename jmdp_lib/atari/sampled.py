"""The paper's own TD errors (Section 5.2): one table, one shock, one next action of a branch.

    mu        R_a + gamma mu(X') - mu(x)                                         X' = (S'_a, A')
    sigma     R_a R_b + gamma (R_a mu(Y') + R_b mu(X')) + gamma^2 Sigma(X', Y') - Sigma(x, y)

Branches in one state read one shock; with the same next action there they are one branch. The mean
square of such an error has a floor, the variance of its target, that no learning removes. So it is
watched here and not descended: `losses` takes the same expectations in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jmdp_lib.atari.data import Batch
from jmdp_lib.atari.evaluation import Policy
from jmdp_lib.atari.losses import compared_pairs, cross_error, mean_squares, outer, state_errors
from jmdp_lib.atari.networks import Estimate, Network, Params, inner, nearness


@torch.no_grad()
def sampled_errors(
    network: Network,
    params: Params,
    batch: Batch,
    followed: Tensor,
    policy: Policy,
    generator: torch.Generator,
) -> Tensor:
    """(len(BLOCKS), E) mean squares, of a batch with one drawn table of each state (K = 1)."""
    gamma = network.gammas[:, None, None, None]
    here = network(params, batch.observations, batch.previous).at(batch.actions)
    seen, last = batch.next_observations[:, 0], batch.next_previous[:, 0]  # (B, m, D), (B, m)
    law = policy(seen, last)
    drawn = torch.multinomial(law.flatten(0, 1), 1, generator=generator)
    ahead = network(params, seen.flatten(0, 1), last.flatten()).at(drawn)  # (E, B m, 1, .)
    parts = [*(part.squeeze(2) for part in ahead[:-1]), ahead.place]
    after = Estimate(*(part.unflatten(1, last.shape) for part in parts))  # (E, B, m, .)
    coin = torch.rand(len(last), 1, generator=generator, device=last.device) < 0.5
    rewards = batch.rewards[:, 0] + network.shock[batch.actions] * (2.0 * coin - 1.0)
    branch = (batch.next_ids[:, 0], drawn.reshape(last.shape), batch.alive[:, 0], rewards)

    def target(i: Tensor, j: Tensor) -> Tensor:
        """Of Sigma (E, P, m, m) between the branches of the states i and j (P,)."""
        left, right = (Estimate(*(part[:, at] for part in after)) for at in (i, j))
        (ids, action, alive, reward), (other_ids, other_action, other_alive, other_reward) = (
            tuple(part[at] for part in branch) for at in (i, j)
        )
        same = ids[..., :, None] == other_ids[..., None, :]
        one = same & (action[..., :, None] == other_action[..., None, :])
        covariance = inner(left.shared, right.shared) + same * inner(left.local, right.local)
        covariance += nearness(left.place, right.place) * inner(left.near, right.near)
        covariance += one * left.own[..., :, None]
        mean, other_mean = alive * left.mean, other_alive * right.mean
        second = outer(alive, other_alive) * covariance + outer(mean, other_mean)
        mixed = outer(reward, other_mean) + outer(mean, other_reward)
        return outer(reward, other_reward) + gamma * mixed + gamma**2 * second

    every = torch.arange(len(last), device=last.device)
    pairs = compared_pairs(batch, followed)
    nothing = torch.zeros_like(here.mean)
    errors = state_errors(here, nothing, target(every, every), raw=True)
    errors["mu"] = here.mean - rewards - gamma[..., 0] * branch[2] * after.mean
    cross = cross_error(here, nothing, target(*pairs.unbind(1)), pairs, raw=True)
    return mean_squares(batch, errors, cross, pairs)
