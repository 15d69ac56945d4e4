"""The release's network, its targets and its losses: a mean head and a Gram head on one encoder.

Written from the facts that the release states, not copied. For a query x = (s, a), y = (s, b) with
rewards r and successors x', y' under uniform next actions, and with the target network's means m
and vectors v, the targets are

    t(x) = (1 - gamma) r_x + gamma m(x'),
    C(x, y) = t(x) t(y) + gamma^2 <v(x'), v(y')> - m(x) m(y),

for x = y (`diag`), two actions of one query (`same`), and actions of two queries (`cross`). All
losses are mean squared errors, `gap` that of C(x, x) + C(y, y) - 2 C(x, y).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.atari.release_settings import Settings


class Answers(NamedTuple):
    """Means (B, 2) and Gram vectors (B, 2, D) of two actions at each of B states."""

    mean: Tensor
    vectors: Tensor


class Covariances(NamedTuple):
    """Of B queries of two actions: diag (B, 2), same (B,), and cross (B,) with the next query."""

    diag: Tensor
    same: Tensor
    cross: Tensor

    @property
    def gap(self) -> Tensor:
        """(B,) the variance of the difference of the two actions."""
        return self.diag.sum(1) - 2.0 * self.same


class Network(nn.Module):  # type: ignore[misc]  # torch is not followed
    """One grey screen in, mean and Gram vector of every action out."""

    def __init__(self, num_actions: int, hidden: int, gram_dim: int, gram_start: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, hidden),
            nn.ReLU(),
        )
        self.mean = nn.Linear(hidden, num_actions)
        self.gram = nn.Linear(hidden, num_actions * gram_dim)
        nn.init.normal_(self.gram.weight, std=gram_start)
        nn.init.zeros_(self.gram.bias)
        self.gram_dim = gram_dim

    def forward(self, screens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, A) means and (B, A, D) vectors of (B, 84, 84) screens of bytes."""
        found = self.encoder(screens.unsqueeze(1).float() / 255.0)
        return self.mean(found), self.gram(found).unflatten(1, (-1, self.gram_dim))


def new_network(settings: Settings, num_actions: int, seed: np.random.SeedSequence) -> Network:
    """A fresh network, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed.generate_state(1)[0]))
        return Network(num_actions, settings.hidden, settings.gram_dim, settings.gram_start)


def answers(outputs: tuple[Tensor, Tensor], chosen: Tensor) -> Answers:
    """What the network says of the chosen actions, (B, 2, A) rows of the identity matrix."""
    mean, vectors = outputs
    return Answers((chosen @ mean.unsqueeze(2)).squeeze(2), chosen @ vectors)


def covariances(vectors: Tensor) -> Covariances:
    """Inner products of vectors (B, 2, D); cross: of a first action and the next query's second."""
    first, second = vectors.unbind(1)
    return Covariances(
        diag=(vectors**2).sum(2),
        same=(first * second).sum(1),
        cross=(first * second.roll(-1, 0)).sum(1),
    )


def targets(
    rewards: Tensor, alive: Tensor, now: Answers, later: Answers, gamma: float
) -> tuple[Tensor, Covariances]:
    """Sampled targets of the means (B, 2) and of the covariances.

    rewards, alive: (B, 2) with shocks; 0 where the game was over.
    now, later: the target network at the queries, and at successors with their next actions.
    """
    mean = (1.0 - gamma) * rewards + gamma * alive * later.mean
    sampled = covariances(mean.unsqueeze(2))
    further = covariances(gamma * alive.unsqueeze(2) * later.vectors)
    old = covariances(now.mean.unsqueeze(2))
    parts = zip(sampled, further, old, strict=True)
    return mean, Covariances(*(seen + beyond - known for seen, beyond, known in parts))


def losses(predicted: Answers, mean: Tensor, covariance: Covariances) -> Tensor:
    """(5,) mean squared errors: mu, diag, same, cross, gap."""
    found = covariances(predicted.vectors)
    errors = [predicted.mean - mean]
    errors += [one - other for one, other in zip(found, covariance, strict=True)]
    errors += [found.gap - covariance.gap]
    return torch.stack([(error**2).mean() for error in errors])


def predictions(outputs: tuple[Tensor, Tensor], chosen: Tensor) -> dict[str, float]:
    """What the network says at S states, on average.

    mean: of the chosen actions. coupled: their gap's variance. independent: the sum of their two
    variances. states_apart: the variance of the gap of one action between two different states,
    over all actions: far below `coupled`, if the vectors hardly depend on the state.
    """
    found = answers(outputs, chosen)
    covariance = covariances(found.vectors)
    vectors = outputs[1]  # (S, A, D)
    spread = (vectors - vectors.mean(0)).square().sum(2).mean().item()
    states = len(vectors)
    return {
        "mean": found.mean.mean().item(),
        "coupled": covariance.gap.mean().item(),
        "independent": covariance.diag.sum(1).mean().item(),
        "states_apart": 2.0 * spread * states / (states - 1) if states > 1 else 0.0,
    }
