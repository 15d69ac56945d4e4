"""Incremental JIPE-2 by stochastic gradient descent on TD errors, an ensemble at a time.

    target network  <-  (1 - tau) target + tau online          after every step
    loss            =   sum over members and blocks of  weight * mean squared TD error / unit^2

Each member has its own units (of mu and of C), so no discount outweighs another. The members share
nothing but their batches. A run takes minutes: it is saved at its end, and one that was killed
starts anew.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from experiments.atari.networks import TD_BLOCKS, Config, Network, Params
from experiments.atari.replay import Replay
from experiments.atari.td_errors import block_errors
from experiments.files import replacing
from jmdp_lib import checks
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor

_EAGER_STEPS = 3  # before a graph is recorded


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run: the ensemble, its weights, and how it learned.

    errors: (T, len(TD_BLOCKS), E) mean squared TD errors before each step.
    """

    network: Network
    params: Params
    errors: Tensor

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tensors, numbers and words only."""
        network = self.network
        state = {
            "config": asdict(network.config),
            "network": (network.sizes, network.rewards, network.varied),
            "params": self.params,
            "errors": self.errors,
        }
        with replacing(path) as part:
            torch.save(state, part)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trained:
        """What `save` wrote, on the CPU. No tables are needed to predict."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            network = Network(Config(**state["config"]), *state["network"])
            return Trained(network, state["params"], state["errors"])
        except Exception as error:
            raise ValueError(f"{path} is damaged: remove it to train this run anew") from error


def learning_rate(config: Config, step: int) -> float:
    """A cosine from learning_rate down to learning_rate * final_rate."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * falling)


def train(network: Network, data: Replay) -> Trained:
    """Learn the moments of all members from tables on the device of the network.

    The policy is uniform.
    """
    device = network.scale.device
    stream = None
    if device.type == "cuda":  # on the stream that is there by default, no graph can be recorded
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        params, errors = _descend(network, data)
        finite = errors.isfinite().flatten(1).all(1)
        last = int(finite.sum())  # and now all that the stream does is done
    if last < len(errors):
        raise FloatingPointError(f"TD errors are no longer finite at step {last + 1}")
    return Trained(network, params, errors)


def _descend(network: Network, data: Replay) -> tuple[Params, Tensor]:
    """Make all steps; the weights, and the errors of `Trained`.

    A step is a few hundred small kernels. On a GPU they are recorded as one graph after a few
    steps, and replayed: launching them one by one takes longer than running them.
    """
    config = network.config
    device = network.scale.device
    online = network.initial(_generator(torch.device("cpu"), config.seed, 0))
    target = {name: weight.clone() for name, weight in online.items()}
    rate = torch.zeros((), device=device)  # a graph reads it there
    draws = _generator(device, config.seed, 1)
    make_step = _stepper(network, data, online, target, rate, draws)
    graph = None
    errors = []
    for step in range(config.steps):
        rate.fill_(learning_rate(config, step))
        if device.type == "cuda" and step == _EAGER_STEPS:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(draws)
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                found = make_step()
        if graph is None:
            found = make_step()
        else:
            graph.replay()
        errors.append(found.clone())
        with torch.no_grad():
            learned = [weight.detach() for weight in online.values()]
            torch._foreach_lerp_(list(target.values()), learned, config.polyak)
    return {name: weight.detach() for name, weight in online.items()}, torch.stack(errors)


def _stepper(
    network: Network,
    data: Replay,
    online: Params,
    target: Params,
    rate: Tensor,
    draws: torch.Generator,
) -> Callable[[], Tensor]:
    """A function that makes one SGD step, and returns the errors before it."""
    loss_weights = _loss_weights(network)
    optimiser = torch.optim.AdamW(
        [weight.requires_grad_(True) for weight in online.values()],
        lr=rate,
        weight_decay=network.config.weight_decay,
        fused=True,
        capturable=rate.is_cuda,
    )

    def step() -> Tensor:
        batch = data.sample(network.config, draws)
        blocks = block_errors(network, online, target, batch)
        optimiser.zero_grad()
        (loss_weights * blocks).sum().backward()
        optimiser.step()
        return blocks.detach()

    return step


def _generator(device: torch.device, seed: int, key: int) -> torch.Generator:
    """A stream of a run: 0 its first weights, 1 its batches."""
    [number] = checks.seed_of(seed, key).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(number))


def _loss_weights(network: Network) -> Tensor:
    """(len(TD_BLOCKS), E): the weights of the blocks, in the units of each member."""
    unit = network.mean_scale
    units = torch.stack([unit, *[network.scale] * (len(TD_BLOCKS) - 2), unit**2])
    weights = torch.tensor(network.config.block_weights, device=unit.device)
    by_member = weights[:, None].expand(-1, len(unit))
    return torch.cat([by_member, network.learned[None]]) / units**2
