"""What a trained ensemble says: errors of the expected backup, and gap statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jmdp_lib.atari.data import Batch, Data
from jmdp_lib.atari.losses import block_errors, state_targets
from jmdp_lib.atari.networks import Collapsed, Network, Params, collapse

# pi(. | state) (..., A) of observations (..., D) uint8 and previous actions (...)
Policy = Callable[[Tensor, Tensor], Tensor]


def uniform(num_actions: int) -> Policy:
    """The uniform policy."""

    def policy(observations: Tensor, previous: Tensor) -> Tensor:
        shape = (*previous.shape, num_actions)
        return torch.full(shape, 1.0 / num_actions, device=observations.device)

    return policy


def look_ahead(network: Network, params: Params, batch: Batch, policy: Policy) -> Collapsed:
    """The collapsed moments of every successor of a batch, (E, B, K, m)."""
    ahead = network(params, batch.next_observations, batch.next_previous)
    return collapse(ahead, policy(batch.next_observations, batch.next_previous))


@torch.no_grad()
def expected_errors(
    network: Network,
    params: Params,
    data: Data,
    policy: Policy,
    raw: bool = False,
    max_entries: int = 4_096,
) -> Tensor:
    """(len(BLOCKS), E) mean squared error of the expected backup, M - T_2 M, on held-out tables.

    Shock and policy are averaged out in closed form, tables by their probabilities: `data` must be
    complete. Unlike a sampled TD error it has no floor but what the network cannot represent.
    raw: of the second moments Sigma, the paper's coordinates, rather than of the covariances C.
    At most `max_entries` states and followed pairs; states are compared with their neighbours.
    """
    gamma = network.gammas
    total = torch.zeros((), device=gamma.device)
    parts = []
    for batch, followed, share in _chunks(data, max_entries):
        here = network(params, batch.observations, batch.previous)
        ahead = look_ahead(network, params, batch, policy)
        block = block_errors(
            batch, here, ahead, followed, gamma, network.shock, complete=True, raw=raw
        )
        parts.append(block * share)
        total = total + share
    return torch.stack(parts).sum(0) / total.clamp(min=1e-12)


def _chunks(
    data: Data, max_entries: int, size: int = 128
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Batches with all columns, their followed pairs, and the share (BLOCKS, 1) they count with."""
    device = data.rows.device
    count = min(len(data.rows), max_entries)
    spread = torch.arange(count, device=device) * len(data.rows) // count  # over all of the data
    for entries in spread.split(size):
        cross = float(len(entries) > 1)  # a state alone has no neighbour
        share = torch.tensor([1.0, 1, 1, cross, 0, 1], device=device)[:, None] * len(entries)
        none = torch.empty((0, 2), dtype=torch.long, device=device)
        yield _whole(data, entries), none, share
    count = min(len(data.pairs), max_entries // 2)
    spread = torch.arange(count, device=device) * len(data.pairs) // max(count, 1)
    for pairs in data.pairs[spread].split(size // 2) if count else ():
        share = torch.tensor([0.0, 0, 0, 0, 1, 0], device=device)[:, None] * len(pairs)
        places = torch.arange(2 * len(pairs), device=device).reshape(2, -1).T
        yield _whole(data, pairs.T.flatten()), places, share


def _whole(data: Data, entries: Tensor) -> Batch:
    """All tables and all queried actions of the entries (B,)."""
    columns = torch.arange(data.actions.shape[1], device=data.rows.device)
    return data.gather(entries, columns.expand(len(entries), -1))


@dataclass(frozen=True, eq=False)
class Gaps:
    """Predicted gaps Z(s, a) - Z(s, b) for S states and E members.

    mean: (E, S, A). covariance: (E, S, A, A). Entry [e, s, a, b] of gap_mean, coupled and
    independent is about Z(s, a) - Z(s, b): its mean, its variance where both actions share one
    table, and its variance were their returns independent.
    """

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """(E, S, A) Var Z(s, a)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def gap_mean(self) -> Tensor:
        """E Z(s, a) - E Z(s, b)."""
        return self.mean[..., :, None] - self.mean[..., None, :]

    @property
    def independent(self) -> Tensor:
        """Var Z(s, a) + Var Z(s, b)."""
        return self.variance[..., :, None] + self.variance[..., None, :]

    @property
    def coupled(self) -> Tensor:
        """Var Z(s, a) + Var Z(s, b) - 2 Cov."""
        return self.independent - 2 * self.covariance


@torch.no_grad()
def predict_gaps(network: Network, params: Params, observations: Tensor, previous: Tensor) -> Gaps:
    """The gaps at states seen as observations (S, D) uint8 with previous actions (S,)."""
    device = network.scale.device
    parts = [
        network(params, seen.to(device), last.to(device))
        for seen, last in zip(observations.split(256), previous.split(256), strict=True)
    ]
    mean = torch.cat([part.mean for part in parts], 1)
    return Gaps(mean, torch.cat([part.covariance for part in parts], 1))


@torch.no_grad()
def backed_up_gaps(
    network: Network, params: Params, data: Data, policy: Policy, size: int = 64
) -> Gaps:
    """The gaps at the G entries of complete tables with all actions, by one exact backup.

    T_2 of the network's moments: what the first step brings is read from the state's own tables,
    and only what comes later is the network's.
    """
    parts = []
    for entries in torch.arange(len(data.rows), device=data.rows.device).split(size):
        batch = _whole(data, entries)
        here = network(params, batch.observations, batch.previous)
        ahead = look_ahead(network, params, batch, policy)
        parts.append(
            state_targets(batch, here, ahead, network.gammas, network.shock, complete=True)
        )
    return Gaps(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))
