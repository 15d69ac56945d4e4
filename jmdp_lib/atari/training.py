"""Incremental JIPE-2 by stochastic gradient descent on TD errors, an ensemble at a time.

    target network  <-  (1 - tau) target + tau online          after every step
    loss            =   sum over members and blocks of  weight * mean squared TD error / unit^2

The units (of mu, of C) are a member's own, so no discount outweighs another; the members share
nothing but their batches. Resumed from a checkpoint, a run on the CPU goes on bit for bit; so did
one on an H200.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jmdp_lib import checks
from jmdp_lib.atari import checkpoints
from jmdp_lib.atari.config import BLOCKS, Config
from jmdp_lib.atari.data import Data, fingerprint, network_for
from jmdp_lib.atari.evaluation import Policy, expected_errors, look_ahead, uniform
from jmdp_lib.atari.losses import block_errors
from jmdp_lib.atari.networks import Network, Params, num_features
from jmdp_lib.atari.sampled import sampled_errors
from jmdp_lib.atari.tables import Tables
from jmdp_lib.machine import progress as show_progress


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run: the ensemble, its weights, and where its curves and checkpoint are."""

    network: Network
    params: Params
    folder: Path

    @property
    def metrics(self) -> Path:
        """The curves, as `checkpoints.Metrics` writes them."""
        return self.folder / "metrics.csv"

    @staticmethod
    def load(folder: str | Path, device: str = "cpu") -> Trained:
        """The run in a folder as its last checkpoint has it: no tables are needed to predict."""
        place, folder = require_device(device), Path(folder)
        state = checkpoints.load(folder / "checkpoint.pt")
        config, actions = Config(**state["config"]), state["shape"]["num_actions"]
        size = num_features(config, actions, state["shape"]["observation size"])
        units = {name: unit.to(place) for name, unit in state["units"].items()}
        params = {name: weight.to(place) for name, weight in state["params"].items()}
        return Trained(Network(config, actions, size, **units), params, folder)


def require_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:1`, refused where it is not there."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {name!r} is unknown: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device {name!r} was asked for, but there is no GPU; use device='cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(f"device {name!r} was asked for; GPUs: {torch.cuda.device_count()}")
    return device


def _generator(device: torch.device, seed: int, *key: int) -> torch.Generator:
    """A stream of a run: 0 its first weights, 1 its batches, (2, step) the batch watched then."""
    own = checks.seed_sequence(seed, *key).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(own[0]))


def learning_rate(config: Config, step: int) -> float:
    """A cosine from learning_rate down to learning_rate * final_rate."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * falling)


def train(
    tables: Tables,
    config: Config,
    folder: str | Path,
    held_out: Tables | None = None,
    policy: Policy | None = None,
    device: str = "cpu",
) -> Trained:
    """Learn the moments of all members; metrics.csv and checkpoint.pt grow in `folder`.

    held_out: complete tables for the error of the expected backup. policy: uniform by default.
    A checkpoint in the folder is gone on from, if it is of this very run, and refused otherwise; on
    another kind of device only a finished one is taken.
    """
    place = require_device(device)
    network = network_for(tables, config, place)
    data = Data.of(tables, config, place)
    check = None
    if held_out is not None:
        sizes = (tables.num_actions, tables.observations.shape[1])
        checks.same_shape(
            "held_out", (held_out.num_actions, held_out.observations.shape[1]), sizes,
            "(num_actions, observation size)",
        )  # fmt: skip
        check = Data.of(held_out, config, place)
    policy = policy or uniform(tables.num_actions)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = {
        "num_actions": tables.num_actions,
        "observation size": tables.observations.shape[1],
        "checksum": fingerprint(tables),
        "held-out checksum": 0 if held_out is None else fingerprint(held_out),
    }
    with torch.no_grad():
        acts = policy(data.observations[:64], data.previous[:64])
    run = _Run.start(network, shape, acts, folder)
    metrics = checkpoints.Metrics(folder / "metrics.csv", config, run.step if run.resumed else None)

    watched = replace(config, complete=False, batch=min(config.batch, 256))

    def log_sampled(step: int) -> None:
        """A fresh batch each time, by the step's own stream: a resumed run draws the same."""
        if check is not None:
            stream = _generator(place, config.seed, 2, step)
            batch, followed = check.sample(watched, stream)
            errors = sampled_errors(network, run.online, batch, followed, policy, stream)
            metrics.append(step, "sampled", errors)

    def log_expected(step: int) -> None:
        if check is not None:
            for curve, raw in (("expected", False), ("expected_raw", True)):
                errors = expected_errors(network, run.online, check, policy, raw)
                metrics.append(step, curve, errors)

    if not run.resumed:
        log_sampled(0)
        log_expected(0)
    bar = show_progress(config.steps, config.name, "step")
    bar.update(run.step)
    advance = _Steps(run, data, policy)
    while run.step < config.steps:
        run.window.append(advance())
        bar.update()
        last = run.step == config.steps
        if run.step % config.log_every == 0 or last:
            mean = torch.stack(run.window).mean(0)
            run.window.clear()
            if not bool(mean.isfinite().all()):
                raise FloatingPointError(f"TD errors are no longer finite at step {run.step}")
            metrics.append(run.step, "td", mean)
            log_sampled(run.step)
            bar.set_postfix(mu=f"{float(mean[0].mean()):.2g}", gap=f"{float(mean[-1].mean()):.2g}")
        if run.step % config.eval_every == 0 or last:
            log_expected(run.step)
        if run.step % config.save_every == 0 or last:
            run.save()
    bar.close()
    return Trained(network, run.online, folder)


@dataclass(eq=False)
class _Run:
    """All that changes during a run, and so all that a checkpoint holds."""

    network: Network
    shape: dict[str, int]
    policy: Tensor  # (n, A) what it does at the first states
    path: Path
    online: Params
    target: Params
    optimiser: torch.optim.AdamW
    generator: torch.Generator
    weights: Tensor  # (len(BLOCKS), E) of the mean squared errors in the loss
    step: int
    resumed: bool
    window: list[Tensor]  # errors (len(BLOCKS), E) of the steps since the last logged one

    @classmethod
    def start(cls, network: Network, shape: dict[str, int], policy: Tensor, folder: Path) -> _Run:
        config, device = network.config, network.scale.device
        path = folder / "checkpoint.pt"
        state = None
        if path.exists():
            state = checkpoints.load(path)
            checkpoints.check_fits(path, state, config, shape, policy)
        online = network.initial(_generator(torch.device("cpu"), config.seed, 0))
        if state:
            online = {name: state["params"][name].to(device) for name in online}
        for weight in online.values():
            weight.requires_grad_(True)
        target = {name: weight.detach().clone() for name, weight in online.items()}
        graph = device.type == "cuda"
        optimiser = torch.optim.AdamW(
            online.values(),
            lr=torch.tensor(config.learning_rate, device=device) if graph else config.learning_rate,
            weight_decay=config.weight_decay,
            capturable=graph,
        )
        generator = _generator(device, config.seed, 1)
        step = int(state["step"]) if state else 0
        if state:
            target = {name: state["target"][name].to(device) for name in target}
        if state and step < config.steps:
            there = state.get("device", device.type)
            if there != device.type:
                raise ValueError(f"{path} was written on {there!r}: go on with device={there!r}")
            # Rates and flags are this run's: a graph replays a rate that is not on its device as
            # the number that it was when the graph was recorded.
            optimiser.load_state_dict(
                {**optimiser.state_dict(), "state": state["optimiser"]["state"]}
            )
            generator.set_state(state["generator"])
        units = torch.stack([network.mean_scale, *[network.scale] * (len(BLOCKS) - 1)])
        weights = torch.tensor(config.block_weights, device=device)[:, None] / units**2
        return cls(
            network, shape, policy, path, online, target, optimiser, generator, weights, step,
            bool(state), [blocks.to(device) for blocks in state["window"]] if state else [],
        )  # fmt: skip

    def save(self) -> None:
        checkpoints.save(
            self.path,
            {
                "config": asdict(self.network.config),
                "shape": self.shape,
                "policy": self.policy,
                "units": self.network.units,
                "device": self.network.scale.device.type,
                "step": self.step,
                "params": {name: w.detach() for name, w in self.online.items()},
                "target": self.target,
                "optimiser": self.optimiser.state_dict(),
                "generator": self.generator.get_state(),
                "window": self.window,
            },
        )

    def advance(self, data: Data, policy: Policy) -> Tensor:
        """One SGD step; the (len(BLOCKS), E) mean squared TD errors before it."""
        network, config = self.network, self.network.config
        batch, followed = data.sample(config, self.generator)
        with torch.no_grad():
            ahead = look_ahead(network, self.target, batch, policy)
        here = network(self.online, batch.observations, batch.previous).at(batch.actions)
        blocks = block_errors(
            batch, here, ahead, followed, network.gammas, network.shock, config.complete
        )
        self.optimiser.zero_grad()
        (self.weights * blocks).sum().backward()
        self.optimiser.step()
        with torch.no_grad():
            old, new = list(self.target.values()), [w.detach() for w in self.online.values()]
            torch._foreach_lerp_(old, new, config.polyak)
        return blocks.detach()


@dataclass(eq=False)
class _Steps:
    """The steps of a run, one a call.

    A step is a few hundred small kernels. On a GPU they are recorded as one graph after a few
    steps, and replayed: launching them one by one takes longer than running them.
    """

    run: _Run
    data: Data
    policy: Policy
    warm: int = 3
    graph: torch.cuda.CUDAGraph | None = None
    blocks: Tensor | None = None

    def __call__(self) -> Tensor:
        run = self.run
        for group in run.optimiser.param_groups:
            rate = learning_rate(run.network.config, run.step)
            group["lr"] = group["lr"].fill_(rate) if torch.is_tensor(group["lr"]) else rate
        run.step += 1
        if run.network.scale.device.type != "cuda":
            return run.advance(self.data, self.policy)
        if self.graph is None and self.warm > 0:
            self.warm -= 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                blocks = run.advance(self.data, self.policy)
            torch.cuda.current_stream().wait_stream(stream)
            return blocks
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(run.generator)
            run.optimiser.zero_grad()
            with torch.cuda.graph(self.graph):
                self.blocks = run.advance(self.data, self.policy)
        self.graph.replay()
        assert self.blocks is not None
        return self.blocks.clone()
