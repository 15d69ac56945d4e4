"""Queried tables as tensors on one device, and batches of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jmdp_lib import checks
from jmdp_lib.atari.config import Config
from jmdp_lib.atari.networks import Network, num_features
from jmdp_lib.atari.tables import Tables
from jmdp_lib.checks import Floats

_INTEGERS = ("actions", "previous", "next_previous", "next_ids", "state_ids", "pairs")
_TYPES: dict[str, type] = {
    "observations": np.uint8, "next_observations": np.uint8, "terminated": np.bool_,
    **dict.fromkeys(_INTEGERS, np.integer),
}  # fmt: skip


class Batch(NamedTuple):
    """B queried states, K tables of each, m actions of each (the same in all its tables).

    observations: (B, D) uint8. previous: (B,). state_ids: (B,). actions: (B, m).
    weights: (B, K) probabilities of the tables. rewards: (B, K, m), clipped, without shock.
    next_observations: (B, K, m, D) uint8. next_previous, next_ids: (B, K, m).
    alive: (B, K, m) 0 where the branch ended.
    """

    observations: Tensor
    previous: Tensor
    state_ids: Tensor
    actions: Tensor
    weights: Tensor
    rewards: Tensor
    next_observations: Tensor
    next_previous: Tensor
    next_ids: Tensor
    alive: Tensor


@dataclass(frozen=True, eq=False)
class Data:
    """`Tables` on a device, N rows; an *entry* is a state with its K tables, G in all.

    States with fewer tables are padded with weight 0. Entries are drawn as often as their states
    were met. A state of which other actions were queried at another visit is another entry.

    actions: (N, m). observations: (N, D) uint8. previous: (N,). rewards, alive: (N, m), as in
    `Batch`. next_observations: (N, m, D) uint8. next_previous: (N, m). next_ids: (N, m) small
    numbers, equal iff the successors are the same state. rows, weights: (G, K). state_ids: (G,).
    pairs: (P, 2) entries. cumulative: (G,) for sampling.
    """

    actions: Tensor
    observations: Tensor
    previous: Tensor
    rewards: Tensor
    next_observations: Tensor
    next_previous: Tensor
    next_ids: Tensor
    alive: Tensor
    rows: Tensor
    weights: Tensor
    state_ids: Tensor
    pairs: Tensor
    cumulative: Tensor

    @classmethod
    def of(cls, tables: Tables, config: Config, device: str | torch.device = "cpu") -> Data:
        """The tables, checked, on the device; rewards clipped as the config says."""
        check_tables(tables)
        next_ids = np.unique(tables.next_ids, return_inverse=True)[1].reshape(tables.rewards.shape)
        rows, weights, entry, visits = _grouped(tables, next_ids)
        arrays: dict[str, NDArray[Any]] = {
            "actions": tables.actions,
            "observations": tables.observations,
            "previous": tables.previous,
            "rewards": np.clip(tables.rewards, -config.reward_clip, config.reward_clip),
            "next_observations": tables.next_observations,
            "next_previous": tables.next_previous,
            "next_ids": next_ids,
            "alive": ~tables.terminated,
            "rows": rows,
            "weights": weights,
            "state_ids": tables.state_ids[rows[:, 0]],
            "pairs": entry[tables.pairs],
            "cumulative": np.cumsum(visits),
        }
        single = ("rewards", "alive", "weights")  # cumulative stays double: G may be large

        def tensor(name: str, array: NDArray[Any]) -> Tensor:
            return torch.tensor(array, dtype=torch.float32 if name in single else None).to(device)

        return cls(**{name: tensor(name, array) for name, array in arrays.items()})

    def sample(self, config: Config, generator: torch.Generator) -> tuple[Batch, Tensor]:
        """A batch, and the places (p, 2) in it of followed pairs.

        The pairs stand first: p left ends, p right ends, then states drawn on their own. So one
        pass through the network serves every block.
        """
        device, total = self.rows.device, self.cumulative[-1]
        count = int(config.batch * config.pair_share / 2) if len(self.pairs) else 0

        def uniform(*size: int) -> Tensor:
            return torch.rand(size, generator=generator, device=device, dtype=torch.float64)

        chosen = (uniform(count) * len(self.pairs)).long()
        drawn = torch.searchsorted(self.cumulative, uniform(config.batch - 2 * count) * total)
        entries = torch.cat([self.pairs[chosen].T.flatten(), drawn.clamp(max=len(self.rows) - 1)])
        queried = self.actions.shape[1]
        columns = uniform(config.batch, queried).argsort(1)[:, : config.actions]
        table = None
        if not config.complete:
            below = self.weights[entries].cumsum(1) < uniform(config.batch, 1)
            table = below.sum(1).clamp(max=self.rows.shape[1] - 1)
        places = torch.arange(count, device=device)
        return self.gather(entries, columns, table), torch.stack([places, places + count], 1)

    def gather(self, entries: Tensor, columns: Tensor, table: Tensor | None = None) -> Batch:
        """Entries (B,), of each these columns (B, m) of all its tables, or of one of them (B,)."""
        rows, weights = self.rows[entries], self.weights[entries]
        first = rows[:, 0]
        if table is not None:
            rows = rows.gather(1, table[:, None])
            weights = torch.ones_like(weights[:, :1])
        at = (rows[:, :, None], columns[:, None, :])
        actions = self.actions[first].gather(1, columns)
        return Batch(
            self.observations[first], self.previous[first], self.state_ids[entries], actions,
            weights, self.rewards[at], self.next_observations[at],
            self.next_previous[at], self.next_ids[at], self.alive[at],
        )  # fmt: skip


def network_for(tables: Tables, config: Config, device: str | torch.device = "cpu") -> Network:
    """The ensemble that fits the tables, in units taken from their rewards.

    Rewards of mean r and variance s^2 in every step give returns of mean r / (1 - gamma) and
    variance (s^2 + shock) / (1 - gamma^2); of the shock, what "local" has to learn comes a step
    later. Only a unit: it need not be right.
    """
    num_actions = tables.num_actions
    loadings = np.ones(num_actions) if config.loadings is None else np.array(config.loadings)
    checks.same_shape("loadings", loadings.shape, (num_actions,), "(num_actions,)")
    rewards = np.clip(tables.rewards, -config.reward_clip, config.reward_clip)
    gamma = np.array([gamma for gamma, _ in config.members])
    local = np.array([kind != "gram" for _, kind in config.members], dtype=float)
    spread = float(rewards.var()) + 1e-6  # rewards may all be equal
    shock = config.sigma**2 * float(np.mean(loadings**2)) * np.where(local > 0, gamma**2, 1.0)

    def tensor(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=device)

    return Network(
        config,
        num_actions,
        num_features(config, num_actions, tables.observations.shape[1]),
        gammas=tensor(gamma),
        local=tensor(local),
        near=tensor([float(kind == "near") for _, kind in config.members]),
        shock=tensor(config.sigma * loadings),
        mean_offset=tensor(rewards.mean() / (1 - gamma)),
        mean_scale=tensor(np.sqrt(spread / (1 - gamma**2))),
        scale=tensor((spread + shock) / (1 - gamma**2)),
    )


def fingerprint(tables: Tables) -> int:
    """A checksum of everything, that tells one collection of tables from another."""
    found = 0
    for field in fields(tables):
        found = zlib.crc32(np.ascontiguousarray(getattr(tables, field.name)).tobytes(), found)
    return found


def check_tables(tables: Tables) -> None:
    """Refuse tables whose entries cannot be right; that their shapes fit, `Tables` itself sees."""
    count, actions, queried = len(tables), tables.num_actions, tables.actions
    if not count:
        raise ValueError("tables must hold at least one row, got none")
    for name, kind in _TYPES.items():
        found = getattr(tables, name).dtype
        if not np.issubdtype(found, kind):
            raise ValueError(f"tables.{name} must be of type {kind.__name__}, got {found}")
    checks.floats("tables.rewards", tables.rewards, "row", "column")
    weights = checks.floats("tables.weights", tables.weights, "row")
    checks.refuse("tables.weights", weights, weights <= 0, "is not positive", ("row",))
    for name, high in (("previous", actions), ("next_previous", actions)):
        values = getattr(tables, name)
        axes = ("row", "column")[: values.ndim]
        outside = (values < 0) | (values > high)
        checks.refuse(f"tables.{name}", values, outside, f"is not in 0..{high}", axes)
    outside = (queried < 0) | (queried >= actions)
    outside[:, 1:] |= queried[:, 1:] <= queried[:, :-1]
    why = f"is out of order or not one of the {actions} actions"
    checks.refuse("tables.actions", queried, outside, why, ("row", "column"))
    pairs = tables.pairs
    outside = (pairs < 0) | (pairs >= count)
    checks.refuse(
        "tables.pairs", pairs, outside, f"is not one of the {count} rows", ("pair", "end")
    )


def _grouped(
    tables: Tables, next_ids: NDArray[Any]
) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp], Floats]:
    """Rows and weights (G, K) of every state, the group (N,) of every row, visits (G,).

    Equal tables of a state become one: a state that was met again, lotteries that do not matter.
    """
    query = np.column_stack([tables.state_ids, tables.actions])
    state = np.unique(query, axis=0, return_inverse=True)[1].reshape(-1)  # small: exact as floats
    key = np.hstack([state[:, None], next_ids, tables.terminated, tables.rewards])
    _, kept, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
    which = which.reshape(-1)  # the distinct table that each row is
    weights = np.bincount(which, tables.weights)
    group = state[kept]  # sorted, for the key starts with it
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(kept)) - starts[group]
    rows = np.repeat(kept[starts][:, None], sizes.max(), axis=1)
    table = np.zeros(rows.shape)
    rows[group, place] = kept
    visits = np.bincount(group, weights).astype(np.float64)
    table[group, place] = weights / visits[group]
    return rows, table, group[which], visits
