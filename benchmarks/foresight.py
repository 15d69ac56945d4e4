"""How many states a network must see to foresee Atari's rewards: `python foresight.py`.

The mean network of `jmdp_lib.atari`, two layers of 512 units on the bytes and bits of RAM, learns
the clipped reward of an action and nothing else: no shock, no successor. Along uniform random play
every state is looked at, two actions of each, on a deterministic emulator. A number says how many
times smaller the squared error on new games is than that of the best constant, 1 / (1 - R^2).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from timing import machine
from torch import Tensor, nn

from jmdp_lib.atari.collect import collect
from jmdp_lib.atari.networks import ram_features

HERE = Path(__file__).resolve().parent
GAMES = ("Pong", "BattleZone", "Boxing", "Atlantis")
STATES, HELD_OUT = (8_000, 40_000, 200_000), 20_000
HIDDEN, BATCH, STEPS, RATE, WEIGHT_DECAY = 512, 1_024, 3_000, 1e-3, 1.0


class Seen(NamedTuple):
    """N states, two actions of each: RAM (N, 128), actions and clipped rewards (N, 2)."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    num_actions: int

    @classmethod
    def of(cls, game: str, states: int, seed: int) -> Seen:
        tables = collect(
            game, states, seed, sticky_prob=0.0, actions=2, follow_share=0.0, spacing=1
        )
        rewards = np.clip(tables.rewards, -1.0, 1.0).astype(np.float32)
        arrays = (tables.observations, tables.actions, rewards)
        return cls(*map(torch.tensor, arrays), tables.num_actions)

    def errors(self, network: nn.Module, rows: Tensor) -> Tensor:
        """(len(rows), 2) foreseen - received."""
        none = torch.full((len(rows),), self.num_actions)  # no previous action
        features = ram_features(self.observations[rows], none, self.num_actions)
        return network(features).gather(1, self.actions[rows]) - self.rewards[rows]


def fitted(seen: Seen, count: int, seed: int = 0) -> nn.Module:
    """The network that has seen the first `count` states."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    inputs = 9 * seen.observations.shape[1] + seen.num_actions + 1
    network = nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, seen.num_actions),
    )  # fmt: skip
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
    """Mean squared errors, a row for each number of states."""
    seen, new = Seen.of(game, max(STATES), 0), Seen.of(game, HELD_OUT, 1)
    rows = []
    for count in STATES:
        network = fitted(seen, count)
        with torch.no_grad():
            training, held_out = (
                float(part.errors(network, torch.arange(min(count, HELD_OUT))).square().mean())
                for part in (seen, new)
            )
        rows.append({"game": game, "states": count, "constant": float(new.rewards.var()),
                     "training": training, "held_out": held_out})  # fmt: skip
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    found = pd.concat([measured(game) for game in GAMES], ignore_index=True)
    found.to_csv(HERE / "foresight.csv", index=False, float_format="%.5g")
    falls = found.assign(fall=found["constant"] / found["held_out"])
    lines = [
        "# Foreseeing Atari's rewards", "", (__doc__ or "").split("\n\n", 1)[1].strip(),
        machine("torch", "ale_py"), "",
        "| game | " + " | ".join(f"{count:,} states" for count in STATES) + " |",
        "|---|" + "---|" * len(STATES),
    ]  # fmt: skip
    for game, rows in falls.groupby("game", sort=False):
        lines.append(f"| {game} | " + " | ".join(f"{fall:.1f}" for fall in rows["fall"]) + " |")
    (HERE / "foresight.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
