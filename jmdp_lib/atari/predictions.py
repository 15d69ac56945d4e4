"""Gaps predicted with the emulator's help: from a state's own tables, or after a few steps."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from jmdp_lib.atari.networks import Gaps, Network, Params
from jmdp_lib.atari.recursive_pairs import PairRecords, Tail
from jmdp_lib.atari.replay import Replay
from jmdp_lib.atari.td_errors import look_ahead, policy_moments, state_targets
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor


@torch.no_grad()
def backed_up_gaps(network: Network, params: Params, data: Replay, size: int = 64) -> Gaps:
    """The gaps at the G entries of complete tables with all actions, by one exact backup.

    This is T_2 of the network's moments: the first step is read from the state's own tables, and
    only what comes later is predicted.
    """
    parts = []
    for entries in torch.arange(len(data.rows), device=data.rows.device).split(size):
        batch = data.gather(entries)
        parts.append(state_targets(network, batch, look_ahead(network, params, batch)))
    return network.gaps(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))


@torch.no_grad()
def tail(network: Network, params: Params, records: PairRecords, place: int) -> Tail:
    """What the E members predict for recorded pairs from time `records.depths[place]` on."""
    depth, device = int(records.depths[place]), network.scale.device

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=device)

    seen, last = tensor(records.seen[:, :, place]), tensor(records.previous[:, :, place])
    ahead = policy_moments(network(params, seen, last), network.policy)  # (E, M, 2, .)
    met = records.same_state & (records.played[:, 0] == records.played[:, 1])
    one, same = tensor(met[:, :depth].any(1)), tensor(records.same_state[:, depth])
    alive = tensor(records.alive[:, :, depth])
    gamma = (network.gammas**depth / network.earned)[:, None, None]
    apart = [(part[:, :, 0] * part[:, :, 1]).sum(-1) for part in (ahead.shared, ahead.near)]
    close = (ahead.place[:, :, 0] - ahead.place[:, :, 1]).square().sum(-1).neg().exp()
    pair = apart[0] + close * apart[1] + same * ahead.merged[..., 0]
    pair = alive.all(1) * torch.where(one, ahead.single[..., 0], pair)  # (E, M)
    value, single = alive * gamma * ahead.value, alive * gamma**2 * ahead.single
    gap = single.sum(-1) - 2 * gamma[..., 0] ** 2 * pair
    return Tail(*(part.double().cpu().numpy() for part in (value, single, gap)))
