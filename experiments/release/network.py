"""The release's networks: one encoder, a mean, and one of two heads for second moments.

A *coordinate* is a state and an action. The encoder gives h of a screen; an action has an embedding
e; z = (h, e). Head "pair" is a network of its own for two coordinates,

    Sigma(x, y) = f(z + z', |z - z'|, z z'),

and "covgram" the Gram form of Appendix C, Sigma(x, y) = mu(x) mu(y) + <v(z), v(z')>. The losses are
mean squared TD errors on three batches: X and Y of executed actions, Q of queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from experiments.release.settings import Settings
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor, nn

# Which coordinates make the pairs diag, same, cross, and the two variances of the gap. Of the
# present there are four coordinates, X, Y, Q first and Q second action; of the future six, since
# next actions are drawn anew for each use: X for mu, X for diag, X and Y for cross, both of Q.
PRESENT_PAIRS = ((0, 0), (2, 3), (0, 1), (2, 2), (3, 3))
FUTURE_PAIRS = ((1, 1), (4, 5), (2, 3), (4, 4), (5, 5))
NUM_BATCHES, NUM_PRESENT, NUM_FUTURE = 3, 4, 6


class Coordinates(NamedTuple):
    """mean (..., B) and the input of the head, features (..., B, F), of B states and actions."""

    mean: Tensor
    features: Tensor


class Network(nn.Module):  # type: ignore[misc]
    """Means and second moments of screens (B, 84, 84) of bytes; layers have torch's own start."""

    def __init__(self, settings: Settings, num_actions: int) -> None:
        super().__init__()
        hidden = settings.hidden
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
        self.mean = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, num_actions)
        )
        self.embedding = nn.Embedding(num_actions, settings.embedding)
        width = hidden + settings.embedding
        kind = PairHead if settings.network == "pair" else GramHead
        self.head = kind(settings, width)
        self.register_buffer("present", one_hot(PRESENT_PAIRS, NUM_PRESENT), persistent=False)
        self.register_buffer("future", one_hot(FUTURE_PAIRS, NUM_FUTURE), persistent=False)

    def encode(self, screens: Tensor) -> Tensor:
        """(B, hidden) of bytes (B, 84, 84)."""
        return self.encoder(screens.unsqueeze(1).float() / 255.0)

    def at(self, encoded: Tensor, chosen: Tensor) -> Coordinates:
        """Evaluate encoded states (..., hidden) at actions, rows (..., A) of the identity."""
        z = torch.cat([encoded, chosen @ self.embedding.weight], -1)
        return Coordinates((self.mean(encoded) * chosen).sum(-1), self.head.features(z))

    def fitted(self, x: Coordinates, y: Coordinates) -> Tensor:
        """Values of the head (..., B): covariances ("covgram") or second moments."""
        return self.head(x.features, y.features)

    def beyond(self, x: Coordinates, y: Coordinates) -> Tensor | float:
        """Part of a second moment that `fitted` leaves out."""
        return x.mean * y.mean if self.head.centred else 0.0

    def second(self, x: Coordinates, y: Coordinates) -> Tensor:
        """Second moments (..., B)."""
        return self.fitted(x, y) + self.beyond(x, y)


class PairHead(nn.Module):  # type: ignore[misc]
    """A second moment from sums, distances and products of two coordinates."""

    centred = False

    def __init__(self, settings: Settings, width: int) -> None:
        super().__init__()
        hidden = settings.hidden
        self.layers = nn.Sequential(
            nn.Linear(3 * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def features(self, z: Tensor) -> Tensor:
        return z

    def forward(self, z: Tensor, other: Tensor) -> Tensor:
        seen = torch.cat([z + other, (z - other).abs(), z * other], -1)
        return self.layers(seen).squeeze(-1)


class GramHead(nn.Module):  # type: ignore[misc]
    """A covariance as the inner product of two vectors."""

    centred = True

    def __init__(self, settings: Settings, width: int) -> None:
        super().__init__()
        last = nn.Linear(settings.hidden, settings.gram_dim)
        nn.init.normal_(last.weight, std=settings.gram_start)
        nn.init.zeros_(last.bias)
        self.features = nn.Sequential(nn.Linear(width, settings.hidden), nn.ReLU(), last)

    def forward(self, v: Tensor, other: Tensor) -> Tensor:
        return (v * other).sum(-1)


def new_network(settings: Settings, num_actions: int, seed: np.random.SeedSequence) -> Network:
    """A fresh network, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed.generate_state(1)[0]))
        return Network(settings, num_actions)


def one_hot(pairs: tuple[tuple[int, int], ...], size: int) -> Tensor:
    """(2, P, size): the left and the right ends of P pairs, as rows of the identity matrix.

    A product with them picks the ends of all pairs at once. Its gradient is one more product,
    where that of an index would be two kernels for each end and a sum in an order of chance.
    """
    return torch.eye(size)[torch.tensor(pairs).T]


def picked(ends: Tensor, part: Tensor) -> Tensor:
    """(P, ...) of (n, ...): the values at one end of each pair, a row of `ends` (P, n)."""
    return torch.tensordot(ends, part, 1)


def paired(coordinates: Coordinates, pairs: Tensor) -> list[Coordinates]:
    """The left and the right ends, (P, B, ...), of coordinates (n, B, ...); pairs: `one_hot`."""
    return [Coordinates(*(picked(ends, part) for part in coordinates)) for ends in pairs]


def targets(
    target: Network, rewards: Tensor, alive: Tensor, after: Coordinates, gamma: float
) -> tuple[Tensor, Tensor]:
    """The targets of the mean (B,), and of the second moments of FUTURE_PAIRS (5, B).

    rewards, alive: (6, B) of the six coordinates: with shocks, times 1 - gamma; 0 where the branch
        ended. after: the target network at the next states and actions, (6, B, ...).
    """
    mean = rewards[0] + gamma * alive[0] * after.mean[0]
    x, y = paired(after, target.future)
    r, s = (picked(ends, rewards) for ends in target.future)
    p, q = (picked(ends, alive) for ends in target.future)
    both = p * q  # on the diagonal p^2 = p
    second = r * s + gamma * (r * q * y.mean + s * p * x.mean)
    return mean, second + gamma**2 * both * target.second(x, y)


def gap(second: Tensor) -> Tensor:
    """E (Z_a - Z_b)^2 (B,) of second moments (5, B) in the order of PRESENT_PAIRS."""
    return second[3] + second[4] - 2.0 * second[1]


def losses(
    network: Network, now: Coordinates, mean: Tensor, second: Tensor, old: Tensor | float
) -> Tensor:
    """(5,) mean squared TD errors, in the order of LOSSES.

    now: the online network at the four present coordinates (4, B, ...). mean, second: the targets.
    old: the target network's `beyond` there: "covgram" fits covariances, that is second
    moments minus the product of the target network's own means at the present pair.
    """
    x, y = paired(now, network.present)
    fitted = network.fitted(x, y)
    gaps = gap(fitted + network.beyond(x, y)) - gap(second)
    errors = torch.stack([now.mean[0] - mean, *(fitted - (second - old))[:3], gaps])
    return (errors**2).mean(1)


@torch.no_grad()
def predictions(network: Network, screens: Tensor, chosen: Tensor) -> dict[str, float]:
    """Average predictions at S states; screens (S, 84, 84), chosen (S, 2, A).

    mean: of the chosen actions. coupled: their gap's variance. negative: at how many of the states
    the second moments make it negative, as a share; it counts as 0 there. independent: the sum of
    the two variances. states_apart: the variance of the gap between one action's returns in two
    states.
    """
    encoded = network.encode(screens)
    a, b = (network.at(encoded, chosen[:, k]) for k in (0, 1))
    elsewhere = network.at(encoded.roll(len(encoded) // 2, 0), chosen[:, 0])
    apart = gap_variance(network, a, b)
    variances = [network.second(x, x) - x.mean**2 for x in (a, b)]
    return {
        "mean": (a.mean + b.mean).mean().item() / 2.0,
        "coupled": apart.clamp(min=0.0).mean().item(),
        "negative": (apart < 0.0).float().mean().item(),
        "independent": sum(v.clamp(min=0.0).mean().item() for v in variances),
        "states_apart": gap_variance(network, a, elsewhere).clamp(min=0.0).mean().item(),
    }


def gap_variance(network: Network, x: Coordinates, y: Coordinates) -> Tensor:
    """Var (Z(x) - Z(y)) (S,), as the second moments have it; it may be negative."""
    squares = network.second(x, x) + network.second(y, y) - 2.0 * network.second(x, y)
    return squares - (x.mean - y.mean) ** 2
