"""Incremental JIPE-2 by stochastic gradient descent on TD errors, an ensemble at a time.

    target network  <-  (1 - tau) target + tau online          after every step
    loss            =   sum over members and blocks of  weight * mean squared TD error / unit^2

Each member has its own units (of mu and of C), so no discount outweighs another. The members share
nothing but their batches.
"""

from __future__ import annotations

import math
import time

import numpy as np

from experiments.atari.networks import Network, Params
from experiments.atari.replay import Replay
from experiments.atari.settings import Config
from experiments.atari.td_errors import block_errors
from experiments.graphs import recorded
from jmdp_lib import randomness
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor


SILENCE = 60.0  # seconds without a line of a training


def learning_rate(config: Config, step: int) -> float:
    """A cosine from learning_rate down to learning_rate * final_rate."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * falling)


class Descent:
    """Weights that learn, `online`, those of the target network, and the input of a step."""

    def __init__(self, network: Network, data: Replay, seed: int) -> None:
        config = network.config
        device = network.scale.device
        self.network = network
        self.data = data
        self.online = network.initial(_generator(torch.device("cpu"), seed, 0))
        self.target = {name: weight.clone() for name, weight in self.online.items()}
        self.batches = _generator(device, seed, 1)
        self.rate = torch.zeros((), device=device)  # a graph reads it there
        self.loss_weights = _loss_weights(network)
        self.optimiser = torch.optim.AdamW(
            [weight.requires_grad_(True) for weight in self.online.values()],
            lr=self.rate,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )

    def step(self) -> None:
        """Descend the errors of one batch; the target follows."""
        batch = self.data.sample(self.network.config, self.batches)
        blocks = block_errors(self.network, self.online, self.target, batch)
        self.optimiser.zero_grad(set_to_none=True)
        (self.loss_weights * blocks).sum().backward()
        self.optimiser.step()
        with torch.no_grad():
            learned = [weight.detach() for weight in self.online.values()]
            torch._foreach_lerp_(list(self.target.values()), learned, self.network.config.polyak)


def train(network: Network, data: Replay, seed: int) -> Params:
    """Learn the moments of all members from tables on the device of the network.

    The policy is uniform. A line is printed each minute.
    """
    descent = Descent(network, data, seed)
    step = recorded(descent.step, network.scale.device, [descent.batches])
    steps, said = network.config.steps, time.monotonic()
    for t in range(steps):
        descent.rate.fill_(learning_rate(network.config, t))
        step()
        if time.monotonic() - said >= SILENCE:
            print(f"step {t + 1:,} of {steps:,}", flush=True)
            said = time.monotonic()
    params = {name: weight.detach() for name, weight in descent.online.items()}
    if not all(weight.isfinite().all() for weight in params.values()):
        raise FloatingPointError("weights are no longer finite")
    return params


def _generator(device: torch.device, seed: int, key: int) -> torch.Generator:
    """A stream of a run: 0 its first weights, 1 its batches."""
    [number] = randomness.seed_of(seed, key).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(number))


def _loss_weights(network: Network) -> Tensor:
    """(len(TD_BLOCKS), E): the weights of the blocks, in the units of each member."""
    weights = torch.tensor(network.config.block_weights, device=network.scale.device)
    unit, mean_unit = network.scale.flatten(), network.mean_scale.flatten()
    units = torch.stack([mean_unit, *[unit] * (len(weights) - 1)])
    return weights[:, None] / units**2
