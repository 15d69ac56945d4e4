"""How many states a network must see to foresee Atari's rewards: `python foresight.py`.

The mean network of `experiments.atari`, two layers of 512 units on the bytes and bits of RAM,
learns the clipped reward of an action and nothing else: no shock, no successor. Along uniform
random play it sees every state and two actions of each, on a deterministic emulator. Each number
says how many times smaller the squared error on new games is than that of the best constant,
1 / (1 - R^2); the number in brackets is for the training states. Training takes the same number of
steps whatever the number of states. If both numbers are alike, more steps are needed, not more
states. One seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from timing import machine
from torch import Tensor, nn

from experiments.atari.networks import ram_features
from experiments.atari.tables import collect
from jmdp_lib.atari import Game

HERE = Path(__file__).resolve().parent
GAMES = ("BattleZone", "Boxing", "Atlantis")  # where the mean of chapter 5 hardly falls
STATES, HELD_OUT = (8_000, 40_000, 200_000), 20_000
HIDDEN, BATCH, STEPS, RATE, WEIGHT_DECAY = 512, 512, 6_000, 1e-3, 0.1


class Seen(NamedTuple):
    """N states, two actions of each: RAM (N, 128), actions and clipped rewards (N, 2).

    unit: standard deviation of the rewards, what the network's outputs are multiples of.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    unit: float
    num_actions: int

    @classmethod
    def of(cls, game: str, states: int, seed: int) -> Seen:
        played = Game(game, sticky_prob=0.0)
        tables = collect(played, states, seed, actions=2, follow_share=0.0, spacing=1)
        rewards = tables.rewards.astype(np.float32)
        arrays = (tables.observations, tables.actions, rewards)
        return cls(*map(torch.tensor, arrays), float(rewards.std()), tables.num_actions)

    def features(self, rows: Tensor) -> Tensor:
        """(len(rows), F) what the network sees of these states."""
        none = torch.full((len(rows),), self.num_actions)  # no previous action
        return ram_features(self.observations[rows], none, self.num_actions)

    def errors(self, network: nn.Module, rows: Tensor) -> Tensor:
        """(len(rows), 2) foreseen - received, in units."""
        foreseen = network(self.features(rows)).gather(1, self.actions[rows])
        return foreseen - self.rewards[rows] / self.unit


def fitted(seen: Seen, count: int, seed: int = 0) -> nn.Module:
    """The network that has seen the first `count` states."""
    generator = torch.Generator().manual_seed(seed)
    inputs = seen.features(torch.tensor([0])).shape[1]
    with torch.random.fork_rng(devices=[]):  # layers draw from the global stream
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(inputs, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, seen.num_actions),
        )
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS, RATE / 100)
    for _ in range(STEPS):
        rows = torch.randint(count, (BATCH,), generator=generator)
        optimiser.zero_grad()
        seen.errors(network, rows).square().mean().backward()
        optimiser.step()
        rate.step()
    return network


def measured(game: str) -> pd.DataFrame:
    """Falls below a constant's error, a row for each number of states."""
    seen = Seen.of(game, max(STATES), 0)
    new = Seen.of(game, HELD_OUT, 1)._replace(unit=seen.unit)
    rows = []
    for count in STATES:
        network = fitted(seen, count)
        row = {"game": game, "states": count}
        with torch.no_grad():
            for name, part in (("training", seen), ("held_out", new)):
                some = torch.arange(min(count, HELD_OUT) if part is seen else HELD_OUT)
                constant = part.rewards[some].var() / seen.unit**2
                row[name] = float(constant / part.errors(network, some).square().mean())
        rows.append(row)
        print(row, flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    found = pd.concat([measured(game) for game in GAMES], ignore_index=True)
    found.to_csv(HERE / "foresight.csv", index=False, float_format="%.4g")
    lines = [
        "# Foreseeing Atari's rewards",
        "",
        (__doc__ or "").split("\n\n", 1)[1].strip(),
        machine("torch", "ale_py"),
        "",
        "| game | " + " | ".join(f"{count:,} states" for count in STATES) + " |",
        "|---|" + "---|" * len(STATES),
    ]
    for game, rows in found.groupby("game", sort=False):
        both = zip(rows.held_out, rows.training, strict=True)
        cells = (f"{new:.1f} ({old:.0f})" for new, old in both)
        lines.append(f"| {game} | " + " | ".join(cells) + " |")
    (HERE / "foresight.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
