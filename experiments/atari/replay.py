"""Queried tables as tensors on one device, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.atari.settings import Config
from experiments.atari.tables import QueryTables
from jmdp_lib.checks import Floats, Ints
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor

_OF_STATE = ("observations", "state_ids")
_OF_BRANCH = ("rewards", "next_observations", "next_ids", "alive")


class Batch(NamedTuple):
    """B queried states, K tables of each, m actions of each (the same in all its tables).

    observations: (B, D) uint8. state_ids: (B,). actions: (B, m).
    weights: (B, K) probabilities of the tables. rewards: (B, K, m), without shock.
    next_observations: (B, K, m, D) uint8. next_ids: (B, K, m).
    alive: (B, K, m) 0 where the branch ended.
    pairs: p followed pairs stand first: p left ends, p right ends, then states drawn on their own.
    """

    observations: Tensor
    state_ids: Tensor
    actions: Tensor
    weights: Tensor
    rewards: Tensor
    next_observations: Tensor
    next_ids: Tensor
    alive: Tensor
    pairs: int


@dataclass(frozen=True, eq=False)
class Replay:
    """`QueryTables` on a device, N rows; an *entry* is a state with its K tables, G in all.

    States with fewer tables are padded with weight 0. An entry is drawn in proportion to how often
    its state was met. If another visit queried other actions of a state, that is another entry.

    columns: of the tables by name, (N, ...), as in `Batch`; next_ids are small numbers here.
    rows, weights: (G, K). pairs: (P, 2) entries. cumulative: (G,) visits, for sampling.
    """

    columns: dict[str, Tensor]
    rows: Tensor
    weights: Tensor
    pairs: Tensor
    cumulative: Tensor

    @classmethod
    def of(cls, tables: QueryTables, device: str | torch.device = "cpu") -> Replay:
        """The tables on the device."""
        next_ids = np.unique(tables.next_ids, return_inverse=True)[1].reshape(tables.rewards.shape)
        rows, weights, entry, visits = _grouped(tables, next_ids)
        same = ("actions", *_OF_STATE, "next_observations")
        columns = {name: getattr(tables, name) for name in same} | {
            "rewards": tables.rewards.astype(np.float32),
            "alive": (~tables.terminated).astype(np.float32),
            "next_ids": next_ids,
        }
        others = (rows, weights.astype(np.float32), entry[tables.pairs], np.cumsum(visits))
        return cls(
            {name: torch.tensor(array).to(device) for name, array in columns.items()},
            *(torch.tensor(array).to(device) for array in others),
        )

    def sample(self, config: Config, generator: torch.Generator) -> Batch:
        """Followed pairs and states drawn on their own: one pass through the network serves all."""
        device = self.rows.device
        count = int(config.batch * config.pair_share / 2) if len(self.pairs) else 0

        def uniform(*size: int) -> Tensor:
            return torch.rand(size, generator=generator, device=device, dtype=torch.float64)

        chosen = (uniform(count) * len(self.pairs)).long()
        visits = uniform(config.batch - 2 * count) * self.cumulative[-1]
        drawn = torch.searchsorted(self.cumulative, visits)
        entries = torch.cat([self.pairs[chosen].T.flatten(), drawn.clamp(max=len(self.rows) - 1)])
        num_queried = self.columns["actions"].shape[1]
        columns = uniform(config.batch, num_queried).argsort(1)[:, : config.actions]
        return self.gather(entries, columns, count)

    def gather(self, entries: Tensor, columns: Tensor | None = None, pairs: int = 0) -> Batch:
        """A batch of entries (B,) with all their tables: all columns, or these (B, m)."""
        actions = self.columns["actions"]
        if columns is None:
            every = torch.arange(actions.shape[1], device=actions.device)
            columns = every.expand(len(entries), -1)
        rows = self.rows[entries]
        first = rows[:, 0]
        at = (rows[:, :, None], columns[:, None, :])
        return Batch(
            **{name: self.columns[name][first] for name in _OF_STATE},
            **{name: self.columns[name][at] for name in _OF_BRANCH},
            actions=actions[first].gather(1, columns),
            weights=self.weights[entries],
            pairs=pairs,
        )


def _grouped(
    tables: QueryTables, next_ids: Ints
) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp], Floats]:
    """Rows and weights (G, K) of every state, the group (N,) of every row, visits (G,).

    Equal tables of a state become one: a state that was met again, lotteries that do not matter.
    """
    query = np.column_stack([tables.state_ids, tables.actions])
    state = np.unique(query, axis=0, return_inverse=True)[1].reshape(-1)  # small: exact as floats
    key = np.hstack([state[:, None], next_ids, tables.terminated, tables.rewards])
    _, distinct, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
    which = which.reshape(-1)  # the distinct table that each row is
    weights = np.bincount(which, tables.weights)
    group = state[distinct]  # sorted, for the key starts with it
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(distinct)) - starts[group]
    rows = np.repeat(distinct[starts][:, None], sizes.max(), axis=1)
    rows[group, place] = distinct
    visits = np.bincount(group, weights).astype(np.float64)
    probs = np.zeros(rows.shape)
    probs[group, place] = weights / visits[group]
    return rows, probs, group[which], visits
